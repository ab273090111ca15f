//! Tables for people, and metadata alone for programs that need no more.

use jiff::Timestamp;
use orlop_api::{KindDef, Status, Value};
use serde_json::json;

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
    let rows: Vec<Value> = objects.iter().map(|o| row(kind, o, now, include)).collect();
    let columns = if with_columns { columns(kind) } else { Value::Null };
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
        "columnDefinitions": columns, "rows": rows,
    })
}

fn columns(kind: &KindDef) -> Value {
    let name = json!({"name": "Name", "type": "string", "format": "name", "description": "The name of the object, unique in its namespace.", "priority": 0});
    let rest = kind.columns.iter().map(
        |c| json!({"name": c.name, "type": c.kind, "format": "", "description": c.description, "priority": c.priority}),
    );
    // A kind that shows its own name elsewhere (events) says so by having a Name column of its own.
    let own_name = kind.columns.iter().any(|c| c.name == "Name");
    (!own_name).then_some(name).into_iter().chain(rest).collect()
}

fn row(kind: &KindDef, object: &Value, now: Timestamp, include: IncludeObject) -> Value {
    let own_name = kind.columns.iter().any(|c| c.name == "Name");
    // A bookmark is no object: it has a revision and nothing to show.
    let is_bookmark = object["metadata"].get("uid").is_none();
    let cells: Vec<Value> = if is_bookmark {
        vec![]
    } else {
        let name = (!own_name).then(|| object["metadata"]["name"].clone());
        name.into_iter().chain((kind.cells)(object, now)).collect()
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
