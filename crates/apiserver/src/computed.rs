//! Kinds that are made up when they are asked for (`Verbs::ReadOnly`): nothing of them is stored.

use orlop_api::core::component_status::component;
use orlop_api::{KindDef, Status, Value};
use serde_json::json;

/// All there are now. The store is the one component that this process can vouch for.
fn all(kind: &KindDef) -> Vec<Value> {
    match kind.kind {
        "ComponentStatus" => vec![component("etcd-0", Ok("ok"))],
        _ => vec![],
    }
}

pub fn get(kind: &KindDef, name: &str) -> Result<Value, Status> {
    let found = all(kind).into_iter().find(|object| object["metadata"]["name"] == name);
    // Upstream: component statuses are the one resource whose absence is told in the singular.
    let resource = if kind.kind == "ComponentStatus" {
        kind.singular
    } else {
        kind.plural
    };
    found.ok_or_else(|| Status::not_found(kind.group, resource, name))
}

pub fn list(kind: &KindDef) -> Value {
    let mut items = all(kind);
    for object in &mut items {
        let members = object.as_object_mut().expect("made as an object");
        members.remove("kind");
        members.remove("apiVersion");
    }
    json!({"kind": format!("{}List", kind.kind), "apiVersion": kind.api_version(), "metadata": {}, "items": items})
}
