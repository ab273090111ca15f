//! Small clusters for tests.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::cluster::node::NodeId;
use crate::cluster::pod::PodInfo;
use crate::framework::points::{Filter, Score};
use crate::framework::verdict::{PreFilter, PreScore};

#[derive(Default)]
pub(crate) struct World {
    pub cluster: Cluster,
    pods: usize,
}

/// Keeps plugins' answers short: `ok`, `U: reason` or `UU: reason`.
pub(crate) fn verdict(verdict: &crate::framework::verdict::Verdict) -> String {
    match verdict {
        Ok(()) => "ok".to_string(),
        Err(r) => format!("{}: {}", if r.unresolvable { "UU" } else { "U" }, r.message()),
    }
}

impl World {
    /// Each node has its name as hostname, beside the labels given.
    pub(crate) fn node(&mut self, name: &str, labels: Value) -> NodeId {
        let mut node = json!({"metadata": {"name": name, "labels": labels}});
        node["metadata"]["labels"]["kubernetes.io/hostname"] = json!(name);
        self.node_as_is(node)
    }

    pub(crate) fn node_as_is(&mut self, node: Value) -> NodeId {
        self.cluster.observe_node(&serde_json::from_value(node).unwrap())
    }

    /// Namespace `ns`, unless it says otherwise.
    pub(crate) fn pod(&mut self, labels: Value, spec: Value) -> Arc<PodInfo> {
        self.pod_as_is(json!({"metadata": {"labels": labels}, "spec": spec}))
    }

    pub(crate) fn pod_as_is(&mut self, mut pod: Value) -> Arc<PodInfo> {
        self.pods += 1;
        let (meta, name) = (&mut pod["metadata"], format!("pod{}", self.pods));
        for (key, value) in [("namespace", "ns"), ("name", &name), ("uid", &name)] {
            if meta[key].is_null() {
                meta[key] = json!(value);
            }
        }
        self.cluster.decode(serde_json::from_value(pod).unwrap())
    }

    pub(crate) fn place(&mut self, node: &str, labels: Value, mut spec: Value) -> Arc<PodInfo> {
        spec["nodeName"] = json!(node);
        let pod = self.pod(labels, spec);
        self.cluster.add_pod(pod.clone());
        pod
    }

    pub(crate) fn ids(&self) -> Vec<NodeId> {
        let mut ids: Vec<NodeId> = self.cluster.nodes().map(|n| n.id).collect();
        ids.sort_by_key(|id| self.cluster.node(*id).unwrap().name.clone());
        ids
    }

    /// Answers for all nodes, by name; None if the plugin skips.
    pub(crate) fn filter<P: Filter>(&self, plugin: &P, pod: &PodInfo) -> Option<Vec<String>> {
        match plugin.pre_filter(pod, &self.cluster) {
            PreFilter::Skip => None,
            PreFilter::Run(state) => {
                let ids = self.ids();
                let nodes = ids.iter().map(|id| self.cluster.node(*id).unwrap());
                let one_by_one: Vec<String> = nodes.map(|n| verdict(&plugin.filter(&state, pod, n))).collect();
                let (mut kept, mut at_once) = (ids.clone(), vec!["ok".to_string(); ids.len()]);
                plugin.retain(&state, pod, &self.cluster, &mut kept, &mut |id, why| {
                    let at = ids.iter().position(|i| *i == id).unwrap();
                    at_once[at] = verdict(&Err(why));
                });
                assert_eq!(at_once, one_by_one, "all nodes at once");
                assert_eq!(kept.len(), at_once.iter().filter(|v| *v == "ok").count());
                Some(one_by_one)
            }
            _ => panic!("neither of them narrows down nodes beforehand"),
        }
    }

    /// Raw and normalised scores of all nodes, by name; None if the plugin skips.
    pub(crate) fn score<P: Score>(&self, plugin: &P, pod: &PodInfo) -> Option<(Vec<i64>, Vec<i64>)> {
        let ids = self.ids();
        let PreScore::Run(state) = plugin.pre_score(pod, &self.cluster, &ids) else {
            return None;
        };
        let nodes = ids.iter().map(|id| self.cluster.node(*id).unwrap());
        let raw: Vec<i64> = nodes.map(|n| plugin.score(&state, pod, n)).collect();
        let mut scores = vec![];
        plugin.score_all(&state, pod, &self.cluster, &ids, &mut scores);
        assert_eq!(scores, raw, "all nodes at once");
        plugin.normalize(&state, pod, &ids, &mut scores);
        Some((raw, scores))
    }
}
