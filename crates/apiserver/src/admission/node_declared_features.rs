//! NodeDeclaredFeatureValidator: a running pod is not changed into something that its node says it can't do.
//! Upstream: plugin/pkg/admission/nodedeclaredfeatures, component-helpers/nodedeclaredfeatures (v1.36).

use orlop_api::resources::is_sidecar;
use orlop_api::{Status, Value};

use super::{Change, Operation, Plugin, Review};
use crate::lookup::{items, text};

pub(super) const PLUGIN: Plugin = Plugin {
    name: "NodeDeclaredFeatureValidator",
    mutate: None,
    validate: Some(validate),
};

/// Features that a change may need, in the order of messages, and whether this one (new, old) does.
type Needs = fn(&Value, &Value) -> bool;
const FEATURES: &[(&str, Needs)] = &[
    ("InPlacePodLevelResourcesVerticalScaling", |new, old| {
        new.pointer("/spec/resources") != old.pointer("/spec/resources")
    }),
    ("InPlacePodVerticalScalingInitContainers", resizes_init_container),
];

fn resizes_init_container(new: &Value, old: &Value) -> bool {
    let (new, old) = (
        items(new, &["spec", "initContainers"]),
        items(old, &["spec", "initContainers"]),
    );
    old.iter()
        .zip(new)
        .any(|(old, new)| !is_sidecar(old) && old.get("resources") != new.get("resources"))
}

fn validate(review: &Review<'_>, new: Option<&Value>, old: Option<&Value>) -> Result<Vec<Change>, Status> {
    let (Some(new), Some(old)) = (new, old) else {
        return Ok(vec![]);
    };
    let concerned = review.is("", "pods") || review.is_sub("", "pods", "resize");
    let changed = old["metadata"]["generation"] != new["metadata"]["generation"];
    let name = text(new, &["spec", "nodeName"]);
    if !concerned || review.operation != Operation::Update || !changed || name.is_empty() {
        return Ok(vec![]);
    }
    let needed: Vec<&str> = FEATURES
        .iter()
        .filter(|(_, needs)| needs(new, old))
        .map(|f| f.0)
        .collect();
    if needed.is_empty() {
        return Ok(vec![]);
    }
    let node = review
        .lookup
        .get("nodes", "", name)
        .ok_or_else(|| review.forbidden(format!("node {name:?} not found")))?;
    let declared = items(&node, &["status", "declaredFeatures"]);
    let missing: Vec<&str> = needed
        .into_iter()
        .filter(|f| !declared.iter().any(|d| d == f))
        .collect();
    if missing.is_empty() {
        return Ok(vec![]);
    }
    Err(review.forbidden(format!(
        "pod update requires features {} which are not available on node {name:?}",
        missing.join(", ")
    )))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::fixture::{Desk, told, with};
    use super::*;

    #[test]
    fn changes_need_a_node_that_can_make_them() {
        let able = [
            "InPlacePodLevelResourcesVerticalScaling",
            "InPlacePodVerticalScalingInitContainers",
        ];
        let desk = Desk::new().with("nodes", json!({"metadata": {"name": "old"}})).with(
            "nodes",
            json!({"metadata": {"name": "new"}, "status": {"declaredFeatures": able}}),
        );
        let pod = |node: &str| {
            json!({"metadata": {"name": "p", "generation": 1}, "spec": {"nodeName": node,
                "initContainers": [{"name": "i", "resources": {"requests": {"cpu": "1"}}}]}})
        };
        let resized = |node: &str| {
            with(
                pod(node),
                json!({"metadata": {"generation": 2}, "spec": {"resources": {"requests": {"cpu": "1"}},
                    "initContainers": [{"name": "i", "resources": {"requests": {"cpu": "2"}}}]}}),
            )
        };
        let refused = "pods \"p\" is forbidden: pod update requires features InPlacePodLevelResourcesVerticalScaling, InPlacePodVerticalScalingInitContainers which are not available on node \"old\"";
        for (node, expected) in [
            ("old", refused),
            ("new", "ok"),
            ("", "ok"),
            ("gone", "pods \"p\" is forbidden: node \"gone\" not found"),
        ] {
            let result = desk.update(&PLUGIN, "pods/resize", resized(node), pod(node));
            assert_eq!(told(result), expected);
        }
        let same = with(pod("old"), json!({"metadata": {"generation": 2}}));
        assert_eq!(told(desk.update(&PLUGIN, "pods", same, pod("old"))), "ok");
        let sidecar = |cpu: &str| {
            json!({"metadata": {"name": "p", "generation": cpu.len()}, "spec": {"nodeName": "old", "initContainers": [
                {"name": "i", "restartPolicy": "Always", "resources": {"requests": {"cpu": cpu}}}]}})
        };
        assert_eq!(
            told(desk.update(&PLUGIN, "pods/resize", sidecar("10"), sidecar("1"))),
            "ok"
        );
    }
}
