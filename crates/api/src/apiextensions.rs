//! The kinds of the apiextensions group: CustomResourceDefinition. Its rules, which need schemas and expressions, are in
//! `crates/apiextensions`; the API server adds them to this row.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::kind::{self, Column, KindDef, Subresource};
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
    subresources: &[Subresource::STATUS],
    columns: &[Column::string("Created At")],
    cells,
    generation: true,
    unconditional_update: false,
    prepare_status: keep_spec,
    ..KindDef::BASE
};

fn cells(definition: &Value, _now: Timestamp) -> Vec<Value> {
    vec![json!(text(definition, "/metadata/creationTimestamp"))]
}

/// Labels, annotations and finalizers may be written through the status endpoint, too.
// Upstream: apiextensions-apiserver pkg/registry/customresourcedefinition/strategy.go (issue 137681)
fn keep_spec(new: &mut Value, old: &Value) {
    kind::copy_member(new, old, "spec");
}
