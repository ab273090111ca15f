//! Ranges of pod addresses for nodes: each gets a part of the cluster's, one of each family, and keeps it for life.
//!
//! Off unless `--allocate-node-cidrs`.
// Upstream: pkg/controller/nodeipam (v1.36), the range allocator

mod ranges;

use std::sync::Arc;

use ipnet::IpNet;
use orlop_client::Error;
use parking_lot::Mutex;
use serde_json::json;

use self::ranges::Ranges;
use crate::objects::Node;
use crate::runtime::{Cache, Def, Key, Next, Reconcile, ReconcileError, ReconcileResult, Recorder, Setup, Writer};

pub(crate) const DEF: Def = Def {
    name: "node-ipam-controller",
    account: "node-controller",
    on_by_default: true,
    start,
};

const WORKERS: usize = 8;

struct Controller {
    nodes: Cache<Node>,
    ranges: Arc<Mutex<Ranges>>,
    recorder: Recorder,
}

fn start(setup: &Setup) {
    let settings = &setup.settings;
    if !settings.allocate_node_cidrs {
        return;
    }
    let prefix = |cluster: &IpNet| match cluster {
        IpNet::V4(_) => settings.node_cidr_mask_size_ipv4,
        IpNet::V6(_) => settings.node_cidr_mask_size_ipv6,
    };
    let ranges = match Ranges::new(&settings.cluster_cidrs, prefix, &settings.service_cluster_ip_ranges) {
        Ok(ranges) => Arc::new(Mutex::new(ranges)),
        Err(error) => return tracing::error!(controller = DEF.name, err = %error, "failed to start controller"),
    };
    let (queue, nodes) = (setup.queue("cidrallocator_node"), setup.cache::<Node>());
    let (wake, held) = (queue.clone(), ranges.clone());
    nodes.on_change(move |old, new| {
        let Some(node) = new.or(old) else { return };
        let name = &node.metadata.name;
        match new {
            None => held.lock().free(name),
            Some(node) if node.spec.pod_cidrs.is_empty() => wake.add(Key::from_object(&**node)),
            Some(node) => held.lock().observe(name, &node.spec.pod_cidrs),
        }
    });
    let recorder = setup.recorder.clone();
    setup.run(
        queue,
        WORKERS,
        Controller {
            nodes,
            ranges,
            recorder,
        },
    );
}

impl Reconcile for Controller {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        let node = self.nodes.at(key).filter(|node| !node.metadata.is_deleted());
        let Some(node) = node.filter(|node| node.spec.pod_cidrs.is_empty()) else {
            return Ok(Next::Done);
        };
        let reserved = self.ranges.lock().reserve(&key.name);
        let Some(ranges) = reserved else {
            self.record_event(&node, "CIDRNotAvailable");
            return Err(ReconcileError::NotYet("no pod CIDR is left to allocate".to_string()));
        };
        let ranges: Vec<String> = ranges.iter().map(ToString::to_string).collect();
        let patch = json!({"metadata": {"uid": node.metadata.uid}, "spec": {"podCIDR": ranges[0], "podCIDRs": ranges}});
        match writer.patch::<Node>(&node.metadata, &patch).await {
            Ok(_) => Ok(Next::Done),
            Err(error) => {
                // Whether it was done is not known if no answer came: then the node keeps its reservation, and the next
                // try asks for the same.
                if !matches!(error, Error::Unavailable(_) | Error::Unreadable { .. }) {
                    self.ranges.lock().free(&key.name);
                }
                if matches!(error, Error::NotFound(_)) {
                    return Ok(Next::Done);
                }
                self.record_event(&node, "CIDRAssignmentFailed");
                Err(error.into())
            }
        }
    }
}

impl Controller {
    fn record_event(&self, node: &Node, reason: &'static str) {
        let note = format!("Node {} status is now: {reason}", node.metadata.name);
        self.recorder.normal(node, reason, note);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::settings::Settings;
    use crate::testing::{Cluster, Faults};

    fn put_node(cluster: &Cluster, name: &str) {
        cluster.put(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}));
    }

    fn cidrs(cluster: &Cluster, name: &str) -> Vec<String> {
        cluster.get::<Node>("", name).unwrap().spec.pod_cidrs
    }

    fn settings(on: bool, cluster: &str) -> Settings {
        Settings {
            allocate_node_cidrs: on,
            cluster_cidrs: cluster.split(',').map(|c| c.parse().unwrap()).collect(),
            ..Settings::default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nodes_get_ranges_while_there_are_some() {
        let cluster = Cluster::new();
        put_node(&cluster, "a");
        cluster.run_with(&[&DEF], settings(false, "10.244.0.0/23"));
        cluster.wait_until_idle().await;
        assert!(cidrs(&cluster, "a").is_empty(), "off unless asked for");
        cluster.put(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "b"},
                           "spec": {"podCIDR": "10.244.0.0/24", "podCIDRs": ["10.244.0.0/24"]}}));
        cluster.run_with(&[&DEF], settings(true, "10.244.0.0/23,fd00::/60"));
        cluster.wait_until_idle().await;
        assert_eq!(cidrs(&cluster, "a"), ["10.244.1.0/24", "fd00::/64"]);
        put_node(&cluster, "c");
        cluster.advance(Duration::from_secs(2)).await;
        assert!(cidrs(&cluster, "c").is_empty());
        let said = "Normal CIDRNotAvailable Node c status is now: CIDRNotAvailable";
        assert!(cluster.events().iter().any(|event| event == said));
        cluster.remove::<Node>("", "b");
        cluster.advance(Duration::from_secs(20)).await;
        assert_eq!(cidrs(&cluster, "c"), ["10.244.0.0/24", "fd00:0:0:1::/64"]);
    }

    #[tokio::test(start_paused = true)]
    async fn faults_and_restarts_never_give_one_range_twice() {
        for seed in 0..10 {
            let cluster = Cluster::seeded(seed);
            cluster.faults(Faults {
                one_in: 5,
                lag_max: Duration::from_millis(300),
                break_one_in: 50,
            });
            cluster.run_with(&[&DEF], settings(true, "10.244.0.0/20"));
            for n in 0..16 {
                put_node(&cluster, &format!("n{n}"));
            }
            cluster.kill_after_writes(5);
            cluster.advance(Duration::from_secs(60)).await;
            cluster.calm().await;
            let mut all: Vec<String> = (0..16).flat_map(|n| cidrs(&cluster, &format!("n{n}"))).collect();
            all.sort();
            all.dedup();
            assert_eq!(all.len(), 16, "seed {seed}: {all:?}");
        }
    }
}
