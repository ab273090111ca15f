//! The kinds of the apiextensions group: CustomResourceDefinition.
//!
//! None can be made yet, and none is pretended to be stored: the list is there to read, and empty. Clients do read it:
//! kubectl does so before it says that a kind is unknown, and takes a missing list for a failure.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::kind::{Column, KindDef, Verbs};
use crate::printing::text;

pub const ALL: &[&KindDef] = &[&CUSTOM_RESOURCE_DEFINITION];

pub const CUSTOM_RESOURCE_DEFINITION: KindDef = KindDef {
    group: "apiextensions.k8s.io",
    kind: "CustomResourceDefinition",
    plural: "customresourcedefinitions",
    singular: "customresourcedefinition",
    short_names: &["crd", "crds"],
    categories: &["api-extensions"],
    namespaced: false,
    schema: "apiextensions/v1.CustomResourceDefinition",
    verbs: Verbs::ReadOnly,
    columns: &[Column::string("Created At")],
    cells,
    ..KindDef::BASE
};

fn cells(definition: &Value, _now: Timestamp) -> Vec<Value> {
    vec![json!(text(definition, "/metadata/creationTimestamp"))]
}
