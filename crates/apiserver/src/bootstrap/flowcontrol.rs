//! Flow schemas and priority levels. The table of them is in the API crate, where validation needs the mandatory ones.

use orlop_api::flowcontrol::standard;
use serde_json::{Value, json};

/// Priority levels, then the flow schemas that name them, each of which finds its level there. `now` is since when.
pub fn objects(now: &str) -> Vec<Value> {
    let mut schemas = standard::flow_schemas();
    for schema in &mut schemas {
        let level = schema
            .pointer("/spec/priorityLevelConfiguration/name")
            .and_then(Value::as_str)
            .unwrap_or("");
        let message =
            format!("This FlowSchema references the PriorityLevelConfiguration object named \"{level}\" and it exists");
        schema["status"] = json!({"conditions": [{
            "type": "Dangling", "status": "False", "lastTransitionTime": now, "reason": "Found", "message": message,
        }]});
    }
    [standard::priority_levels(), schemas].concat()
}
