//! TaintNodesByCondition: a new node takes no pods until its conditions have been looked at.

use orlop_api::{Status, Value};
use serde_json::json;

use super::{Operation, Plugin, Review};

pub const PLUGIN: Plugin = Plugin {
    name: "TaintNodesByCondition",
    mutate: Some(mutate),
    validate: None,
};

fn mutate(review: &Review<'_>, node: &mut Value, _: Option<&Value>) -> Result<(), Status> {
    if !review.is("", "nodes") || review.operation != Operation::Create {
        return Ok(());
    }
    let mut taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    let not_ready = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"});
    if !taints
        .iter()
        .any(|t| t["key"] == not_ready["key"] && t["effect"] == not_ready["effect"])
    {
        taints.push(not_ready);
        node["spec"]["taints"] = taints.into();
    }
    Ok(())
}
