//! PodResizeValidator: a running pod is not resized beyond what its node could ever give.
//! Upstream: plugin/pkg/admission/podresize (v1.36).

use orlop_api::quantity::Quantity;
use orlop_api::resources::{self, PodResourceOptions};
use orlop_api::status::Cause;
use orlop_api::{Status, Value};

use super::{Change, Operation, Plugin, Review};
use crate::lookup::text;

pub(super) const PLUGIN: Plugin = Plugin {
    name: "PodResizeValidator",
    mutate: None,
    validate: Some(validate),
};

fn validate(review: &Review<'_>, new: Option<&Value>, old: Option<&Value>) -> Result<Vec<Change>, Status> {
    let (Some(pod), Some(old)) = (new, old) else {
        return Ok(vec![]);
    };
    let changed = old["metadata"]["generation"] != pod["metadata"]["generation"];
    let node = text(pod, &["spec", "nodeName"]);
    if !review.is_sub("", "pods", "resize") || review.operation != Operation::Update || !changed || node.is_empty() {
        return Ok(vec![]);
    }
    let node = review
        .lookup
        .get("nodes", "", node)
        .ok_or_else(|| review.forbidden(format!("node {node:?} not found")))?;
    let refuse = |reason: &str, why: String| {
        let mut status = review.forbidden(why);
        status.details.get_or_insert_default().causes.push(Cause {
            reason: reason.into(),
            message: String::new(),
            field: String::new(),
        });
        Err(status)
    };
    let system = text(&node, &["metadata", "labels", "kubernetes.io/os"]);
    if !matches!(system, "" | "linux") {
        let why = format!(
            "pod resize is only supported on linux nodes, node {:?} is {system:?}",
            text(&node, &["metadata", "name"])
        );
        return refuse("UnsupportedPlatform", why);
    }
    match beyond_node(pod, &node) {
        None => Ok(vec![]),
        Some(what) => refuse(
            "NodeCapacity",
            format!("node didn't have enough allocatable resources: {what}"),
        ),
    }
}

fn beyond_node(pod: &Value, node: &Value) -> Option<String> {
    let requests = resources::pod_requests(pod, PodResourceOptions::default());
    let allocatable = resources::list(node.pointer("/status/allocatable"));
    let units: [(&str, fn(&Quantity) -> i64); 2] = [("cpu", Quantity::milli_value), ("memory", Quantity::value)];
    let beyond: Vec<String> = units
        .iter()
        .filter_map(|(name, shown)| {
            let wanted = requests.get(*name).cloned().unwrap_or_default();
            let there = allocatable.get(*name).cloned().unwrap_or_default();
            let told = || format!("{name}, requested: {}, allocatable: {}", shown(&wanted), shown(&there));
            (wanted > there).then(told)
        })
        .collect();
    (!beyond.is_empty()).then(|| beyond.join("; "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::fixture::{Desk, told};
    use super::*;

    #[test]
    fn resizes_stay_within_the_node() {
        let node = |name: &str, os: &str| {
            json!({"metadata": {"name": name, "labels": {"kubernetes.io/os": os}},
                "status": {"allocatable": {"cpu": "2", "memory": "1Gi"}}})
        };
        let desk = Desk::new()
            .with("nodes", node("n", "linux"))
            .with("nodes", node("w", "windows"));
        let pod = |node: &str, generation: i64, cpu: &str, memory: &str| {
            let requests = json!({"cpu": cpu, "memory": memory});
            json!({"metadata": {"name": "p", "generation": generation},
                "spec": {"nodeName": node, "containers": [{"name": "c", "resources": {"requests": requests}}]}})
        };
        let refused = |why: &str| format!("pods \"p\" is forbidden: {why}");
        let cases = [
            (pod("n", 2, "2", "1Gi"), "ok".to_string()),
            (pod("", 2, "9", "1Gi"), "ok".to_string()),
            (pod("n", 1, "9", "1Gi"), "ok".to_string()),
            (
                pod("n", 2, "2500m", "2Gi"),
                refused(
                    "node didn't have enough allocatable resources: cpu, requested: 2500, allocatable: 2000; \
                     memory, requested: 2147483648, allocatable: 1073741824",
                ),
            ),
            (pod("gone", 2, "1", "1Gi"), refused("node \"gone\" not found")),
            (
                pod("w", 2, "1", "1Gi"),
                refused("pod resize is only supported on linux nodes, node \"w\" is \"windows\""),
            ),
        ];
        for (new, expected) in cases {
            let result = desk.update(&PLUGIN, "pods/resize", new.clone(), pod("n", 1, "1", "1Gi"));
            assert_eq!(told(result), expected, "{new}");
        }
        let refused = desk.update(&PLUGIN, "pods/resize", pod("n", 2, "9", "1Gi"), pod("n", 1, "1", "1Gi"));
        assert_eq!(refused.unwrap_err().details.unwrap().causes[0].reason, "NodeCapacity");
        let plain = desk.update(&PLUGIN, "pods", pod("n", 2, "9", "1Gi"), pod("n", 1, "1", "1Gi"));
        assert_eq!(told(plain), "ok");
    }
}
