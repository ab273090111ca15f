//! Tables for people, and metadata alone for programs that need no more.

use jiff::Timestamp;
use orlop_api::autoscaling::scale;
use orlop_api::kind::Column;
use orlop_api::{KindDef, Status, Value};
use serde_json::json;

use crate::custom;

/// What each row of a table carries of its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IncludeObject {
    None,
    Metadata,
    Object,
}

impl IncludeObject {
    pub fn parse(text: Option<&str>) -> Result<IncludeObject, Status> {
        match text {
            None | Some("" | "Metadata") => Ok(IncludeObject::Metadata),
            Some("None") => Ok(IncludeObject::None),
            Some("Object") => Ok(IncludeObject::Object),
            Some(other) => Err(Status::bad_request(format!(
                "Unable to convert to Table as requested: includeObject: Invalid value: {other:?}: must be 'Metadata', 'Object', 'None', or empty"
            ))),
        }
    }
}

/// A `meta.k8s.io/v1` Table with a row per object.
pub fn of_objects(
    kind: &KindDef,
    objects: &[Value],
    metadata: Value,
    now: Timestamp,
    include: IncludeObject,
    with_columns: bool,
) -> Value {
    let mut objects: Vec<&Value> = objects.iter().collect();
    // The order in which requests are matched, not that of the names.
    if kind.kind == "FlowSchema" {
        objects.sort_by_key(|o| o.pointer("/spec/matchingPrecedence").and_then(Value::as_i64));
    }
    let rows: Vec<Value> = objects.iter().map(|o| row(kind, o, now, include)).collect();
    let columns = if with_columns { columns(kind) } else { Value::Null };
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
        "columnDefinitions": columns, "rows": rows,
    })
}

/// The table of one answer: an object of the kind, a list of them, or a Scale. Other answers have none.
pub fn of_answer(kind: &KindDef, value: &Value, now: Timestamp, include: IncludeObject) -> Option<Value> {
    let metadata = || json!({"resourceVersion": value["metadata"]["resourceVersion"]});
    match value["kind"].as_str()? {
        k if k == kind.kind => {
            let objects = std::slice::from_ref(value);
            Some(of_objects(kind, objects, metadata(), now, include, true))
        }
        "Scale" => {
            let objects = std::slice::from_ref(value);
            Some(of_objects(&scale::TABLE, objects, metadata(), now, include, true))
        }
        k if k == list_kind(kind) => {
            let items = value["items"].as_array().map_or(&[][..], Vec::as_slice);
            Some(of_objects(kind, items, value["metadata"].clone(), now, include, true))
        }
        _ => None,
    }
}

/// The kind of a list of these.
pub fn list_kind(kind: &KindDef) -> String {
    match custom::of(kind) {
        Some(served) => served.facts.list_kind.clone(),
        None => format!("{}List", kind.kind),
    }
}

pub fn columns(kind: &KindDef) -> Value {
    let name = json!({"name": "Name", "type": "string", "format": "name", "description": "The name of the object, unique in its namespace.", "priority": 0});
    if let Some(version) = custom::schema_of(kind) {
        let rest = version.columns().iter().map(|c| {
            json!({"name": c.name, "type": c.kind, "format": c.format, "description": c.description, "priority": c.priority})
        });
        return std::iter::once(name).chain(rest).collect();
    }
    let rest = kind.columns.iter().map(
        |c| json!({"name": c.name, "type": c.kind, "format": format(c), "description": c.description, "priority": c.priority}),
    );
    // A kind that shows its own name elsewhere (events) says so by having a Name column of its own.
    let own_name = kind.columns.iter().any(|c| c.name == "Name");
    (!own_name).then_some(name).into_iter().chain(rest).collect()
}

/// Names are marked as such, and so is what Kubernetes takes for one.
fn format(column: &Column) -> &'static str {
    match column.name {
        "Name" | "Attacher" => "name",
        // Of measurements.
        "cpu" | "memory" => "quantity",
        "Window" => "duration",
        _ => "",
    }
}

pub fn row(kind: &KindDef, object: &Value, now: Timestamp, include: IncludeObject) -> Value {
    let own_name = kind.columns.iter().any(|c| c.name == "Name");
    // A bookmark is no object: it has a revision and nothing to show.
    let is_bookmark = object["metadata"].get("name").is_none();
    let cells: Vec<Value> = if is_bookmark {
        vec![]
    } else {
        let name = (!own_name).then(|| object["metadata"]["name"].clone());
        let rest = match custom::schema_of(kind) {
            Some(version) => version.cells(object, now),
            None => (kind.cells)(object, now),
        };
        name.into_iter().chain(rest).collect()
    };
    let shown = match include {
        IncludeObject::None => Value::Null,
        IncludeObject::Metadata => partial(object),
        IncludeObject::Object => object.clone(),
    };
    json!({"cells": cells, "object": shown})
}

/// `PartialObjectMetadata`: the metadata and nothing else.
pub fn partial(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
}

pub fn partial_list(objects: &[Value], metadata: Value) -> Value {
    let items: Vec<Value> = objects.iter().map(partial).collect();
    json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "items": items})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds;

    #[test]
    fn answers_become_tables() {
        let deployments = kinds::of_resource("apps", "v1", "deployments").unwrap();
        let scale = json!({
            "kind": "Scale", "metadata": {"name": "a", "uid": "u"}, "spec": {"replicas": 3}, "status": {"replicas": 2},
        });
        let table = of_answer(deployments, &scale, Timestamp::UNIX_EPOCH, IncludeObject::None).unwrap();
        assert_eq!(table["columnDefinitions"][1]["name"], "Desired");
        assert_eq!(table["rows"][0]["cells"][2], 2);
        let status = json!({"kind": "Status"});
        assert!(of_answer(deployments, &status, Timestamp::UNIX_EPOCH, IncludeObject::None).is_none());

        let schemas = kinds::of_resource("flowcontrol.apiserver.k8s.io", "v1", "flowschemas").unwrap();
        let schema = |name: &str, n: i64| json!({"metadata": {"name": name}, "spec": {"matchingPrecedence": n}});
        let list = json!({"kind": "FlowSchemaList", "metadata": {}, "items": [schema("a", 9), schema("b", 1)]});
        let table = of_answer(schemas, &list, Timestamp::UNIX_EPOCH, IncludeObject::None).unwrap();
        assert_eq!(table["rows"][0]["cells"][0], "b");
    }
}
