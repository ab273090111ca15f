//! What mutating policies construct without a schema: `Object` and `Object.FIELD…` with any fields, and `JSONPatch`.
//!
//! Upstream: apiserver/pkg/cel/mutation.

use crate::decl::{DeclType, Field, ObjectType};
use crate::types::Type;
use std::sync::Arc;

pub(crate) const OBJECT: &str = "Object";
pub(crate) const JSON_PATCH: &str = "JSONPatch";

/// The type of this name, if it is one that policies construct.
pub(crate) fn object_type(name: &str) -> Option<Arc<ObjectType>> {
    if name == JSON_PATCH {
        let text = |name| Field::new(name, DeclType::simple(Type::String));
        let value = Field::new("value", DeclType::dynamic());
        let fields = [text("op"), text("path"), text("from"), value];
        return Some(Arc::new(ObjectType::new(JSON_PATCH, fields)));
    }
    let is_object = name == OBJECT || name.strip_prefix(OBJECT).is_some_and(|rest| rest.starts_with('.'));
    is_object.then(|| Arc::new(ObjectType::open(name)))
}
