//! The declared types of what policies and match conditions see besides objects: `request` and `namespaceObject`.
//!
//! Upstream: apiserver/pkg/admission/plugin/cel/compile.go (BuildRequestType, BuildNamespaceType).

use crate::decl::{DeclType, Field, ObjectType};
use crate::types::Type;
use std::sync::Arc;

fn object(name: &str, fields: impl IntoIterator<Item = (String, Field)>) -> DeclType {
    DeclType::object(Arc::new(ObjectType::new(name, fields)))
}

fn strings(names: &[&str]) -> Vec<(String, Field)> {
    names
        .iter()
        .map(|name| Field::new(*name, DeclType::simple(Type::String)))
        .collect()
}

/// The type of `request`, an AdmissionRequest without its objects.
pub fn request_type() -> DeclType {
    let kind = || object("kubernetes.GroupVersionKind", strings(&["group", "version", "kind"]));
    let resource = || {
        object(
            "kubernetes.GroupVersionResource",
            strings(&["group", "version", "resource"]),
        )
    };
    let list = || Type::list(Type::String);
    let mut user = strings(&["username", "uid"]);
    user.push(Field::new("groups", DeclType::simple(list())));
    user.push(Field::new("extra", DeclType::simple(Type::map(Type::String, list()))));

    let mut fields = strings(&["subResource", "requestSubResource", "name", "namespace", "operation"]);
    fields.push(Field::new("kind", kind()));
    fields.push(Field::new("resource", resource()));
    fields.push(Field::new("requestKind", kind()));
    fields.push(Field::new("requestResource", resource()));
    fields.push(Field::new("userInfo", object("kubernetes.UserInfo", user)));
    fields.push(Field::new("dryRun", DeclType::simple(Type::Bool)));
    fields.push(Field::new("options", DeclType::dynamic()));
    object("kubernetes.AdmissionRequest", fields)
}

/// The type of `namespaceObject`.
pub fn namespace_type() -> DeclType {
    let list = || DeclType::simple(Type::list(Type::String));
    let text_map = || DeclType::simple(Type::map(Type::String, Type::String));
    let time = || DeclType::simple(Type::Timestamp);

    let mut condition = strings(&["status", "type", "message", "reason"]);
    condition.push(Field::new("lastTransitionTime", time()));
    let condition = object("kubernetes.NamespaceCondition", condition);

    let mut status = strings(&["phase"]);
    let conditions = DeclType::list(Arc::new(condition), crate::decl::ListType::Atomic, None);
    status.push(Field::new("conditions", conditions));

    let mut metadata = strings(&["name", "generateName", "namespace", "UID", "resourceVersion"]);
    metadata.push(Field::new("labels", text_map()));
    metadata.push(Field::new("annotations", text_map()));
    metadata.push(Field::new("creationTimestamp", time()));
    metadata.push(Field::new("deletionTimestamp", time()));
    metadata.push(Field::new("deletionGracePeriodSeconds", DeclType::simple(Type::Int)));
    metadata.push(Field::new("generation", DeclType::simple(Type::Int)));
    metadata.push(Field::new("finalizers", list()));

    let fields = [
        Field::new("metadata", object("kubernetes.NamespaceMetadata", metadata)),
        Field::new(
            "spec",
            object("kubernetes.NamespaceSpec", [Field::new("finalizers", list())]),
        ),
        Field::new("status", object("kubernetes.NamespaceStatus", status)),
    ];
    object("kubernetes.Namespace", fields)
}
