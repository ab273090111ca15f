//! PodTopologyLabels: a pod carries the zone and the region of its node, from the moment it has one.
//! Upstream: plugin/pkg/admission/podtopologylabels (v1.36), which labels the Binding; here bindings arrive as the pod
//! they make.

use orlop_api::{Status, Value};

use super::{Operation, Plugin, Review};
use crate::lookup::text;

pub(super) const PLUGIN: Plugin = Plugin {
    name: "PodTopologyLabels",
    mutate: Some(mutate),
    validate: None,
};

const LABELS: &[&str] = &["topology.kubernetes.io/zone", "topology.kubernetes.io/region"];

fn mutate(review: &Review<'_>, pod: &mut Value, _: Option<&Value>) -> Result<(), Status> {
    let created = review.is("", "pods") && review.operation == Operation::Create;
    if !created && !review.is_sub("", "pods", "binding") {
        return Ok(());
    }
    let node = text(pod, &["spec", "nodeName"]).to_string();
    if node.is_empty() {
        return Ok(());
    }
    for label in LABELS {
        if let Some(value) = review.lookup.label("nodes", "", &node, label) {
            pod["metadata"]["labels"][*label] = value.into();
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::fixture::Desk;
    use super::*;

    #[test]
    fn pods_learn_where_their_node_is() {
        let desk = Desk::new()
            .with(
                "nodes",
                json!({"metadata": {"name": "n", "labels": {"topology.kubernetes.io/zone": "z", "x": "y"}}}),
            )
            .with("nodes", json!({"metadata": {"name": "bare"}}));
        let pod = |node: &str| json!({"metadata": {"name": "p", "labels": {"a": "b"}}, "spec": {"nodeName": node}});
        let plain = json!({"a": "b"});
        let placed = json!({"a": "b", "topology.kubernetes.io/zone": "z"});
        for (node, labels) in [("n", &placed), ("bare", &plain), ("gone", &plain), ("", &plain)] {
            let created = desk.create(&PLUGIN, "pods", pod(node)).unwrap();
            assert_eq!(created["metadata"]["labels"], *labels, "{node}");
        }
        let bound = desk.update(&PLUGIN, "pods/binding", pod("n"), pod("")).unwrap();
        assert_eq!(bound["metadata"]["labels"], placed);
        let updated = desk.update(&PLUGIN, "pods", pod("n"), pod("n")).unwrap();
        assert_eq!(updated["metadata"]["labels"], plain);
    }
}
