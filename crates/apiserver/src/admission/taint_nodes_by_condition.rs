//! TaintNodesByCondition: a new node takes no pods until its conditions have been looked at.
//! Upstream: plugin/pkg/admission/nodetaint (v1.36).

use orlop_api::{Status, Value};
use serde_json::json;

use super::{Operation, Plugin, Review};
use crate::lookup::items;

pub(super) const PLUGIN: Plugin = Plugin {
    name: "TaintNodesByCondition",
    mutate: Some(mutate),
    validate: None,
};

fn mutate(review: &Review<'_>, node: &mut Value, _: Option<&Value>) -> Result<(), Status> {
    if !review.is("", "nodes") || review.operation != Operation::Create {
        return Ok(());
    }
    let mut taints = items(node, &["spec", "taints"]).to_vec();
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

#[cfg(test)]
mod tests {
    use super::super::fixture::Desk;
    use super::*;

    #[test]
    fn new_nodes_are_not_ready() {
        let (key, added) = (
            "node.kubernetes.io/not-ready",
            json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}),
        );
        let other = json!({"key": key, "effect": "NoExecute"});
        let timed = json!({"key": key, "effect": "NoSchedule", "value": "x"});
        for (given, expected) in [
            (json!([]), json!([added])),
            (json!([other]), json!([other, added])),
            (json!([timed]), json!([timed])),
        ] {
            let node = json!({"metadata": {"name": "n"}, "spec": {"taints": given}});
            let created = Desk::new().create(&PLUGIN, "nodes", node.clone()).unwrap();
            assert_eq!(created["spec"]["taints"], expected);
            let updated = Desk::new()
                .update(&PLUGIN, "nodes", node.clone(), node.clone())
                .unwrap();
            assert_eq!(updated, node);
        }
    }
}
