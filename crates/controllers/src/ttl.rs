//! Sets on each node how long its kubelet may cache secrets and config maps: the longer, the larger the cluster is. The
//! annotation `node.alpha.kubernetes.io/ttl` has the seconds.
// Upstream: pkg/controller/ttl (v1.36)

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::json;

use crate::objects::{Meta, Node};
use crate::runtime::{Cache, Def, Key, Next, Reconcile, ReconcileResult, Setup, WorkQueue, Writer};

pub(crate) const DEF: Def = Def {
    name: "ttl-controller",
    account: "ttl-controller",
    on_by_default: true,
    start,
};

const TTL: &str = "node.alpha.kubernetes.io/ttl";

/// Fewest and most nodes of a size, and the seconds. They overlap, so that a node more or less does not change all others.
const SIZES: [(usize, usize, u32); 5] = [
    (0, 100, 0),
    (90, 500, 15),
    (450, 1000, 30),
    (900, 2000, 60),
    (1800, usize::MAX, 300),
];

/// Which of `SIZES` a cluster of so many nodes has that had this one before.
fn plan_size(before: usize, nodes: usize) -> usize {
    let mut size = before;
    while nodes > SIZES[size].1 {
        size += 1;
    }
    while nodes < SIZES[size].0 {
        size -= 1;
    }
    size
}

/// Whether the annotation has to be written.
fn needs_update(node: &Meta, seconds: u32) -> bool {
    node.annotation(TTL).and_then(|text| text.parse().ok()) != Some(seconds)
}

struct Controller {
    nodes: Cache<Node>,
    queue: WorkQueue,
    size: Mutex<usize>,
}

fn start(setup: &Setup) {
    let queue = setup.queue("ttlcontroller");
    let nodes = setup.cache::<Node>();
    let wake = queue.clone();
    nodes.on_change(move |old, new| {
        let annotated = |node: &Arc<Node>| node.metadata.annotation(TTL).map(String::from);
        // Not whenever its status changes, which is all the time. But also if it went: the cluster is smaller now.
        if let Some(node) = new.or(old)
            && old.map(annotated) != new.map(annotated)
        {
            wake.add(Key::from_object(&**node));
        }
    });
    let controller = Controller {
        nodes,
        queue: queue.clone(),
        size: Mutex::default(),
    };
    setup.run(queue, setup.settings.concurrent_syncs, controller);
}

impl Controller {
    /// The seconds for a cluster of the present size; should that be another size than before, every key is queued.
    fn seconds(&self) -> u32 {
        let mut size = self.size.lock();
        let now = plan_size(*size, self.nodes.count());
        if now != *size {
            *size = now;
            self.nodes
                .list()
                .iter()
                .for_each(|node| self.queue.add(Key::from_object(&**node)));
        }
        SIZES[now].2
    }
}

impl Reconcile for Controller {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        let seconds = self.seconds();
        if let Some(node) = self.nodes.at(key)
            && needs_update(&node.metadata, seconds)
        {
            let annotations = json!({TTL: seconds.to_string()});
            let patch = json!({"metadata": {"uid": node.metadata.uid, "annotations": annotations}});
            writer.patch::<Node>(&node.metadata, &patch).await?;
        }
        Ok(Next::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Cluster;

    #[test]
    fn sizes_overlap() {
        let seconds = |steps: &[usize]| {
            let mut size = 0;
            let each = steps.iter().map(|nodes| {
                size = plan_size(size, *nodes);
                SIZES[size].2
            });
            each.collect::<Vec<u32>>()
        };
        assert_eq!(seconds(&[0, 1, 100, 101, 90, 89]), [0, 0, 0, 15, 15, 0]);
        assert_eq!(seconds(&[500, 501, 450, 449]), [15, 30, 30, 15]);
        assert_eq!(seconds(&[5000, 1800, 1799, 3]), [300, 300, 60, 0]);
    }

    fn put(cluster: &Cluster, nodes: std::ops::Range<usize>) {
        for n in nodes {
            cluster.put(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": format!("n{n}")}}));
        }
    }

    fn annotations(cluster: &Cluster) -> Vec<String> {
        let nodes = cluster.list::<Node>("").into_iter();
        let mut told: Vec<String> = nodes
            .map(|node| node.metadata.annotation(TTL).unwrap_or("").to_string())
            .collect();
        told.dedup();
        told
    }

    #[tokio::test(start_paused = true)]
    async fn all_are_told_when_the_cluster_grows() {
        let cluster = Cluster::new();
        put(&cluster, 0..100);
        cluster.run(&[&DEF]);
        cluster.wait_until_idle().await;
        assert_eq!((annotations(&cluster), cluster.writes().len()), (vec!["0".into()], 100));
        put(&cluster, 100..101);
        cluster.wait_until_idle().await;
        assert_eq!(
            (annotations(&cluster), cluster.writes().len()),
            (vec!["15".into()], 201)
        );
        // Somebody meddles; a node's status changes; a few nodes go, then more.
        cluster.edit::<Node>("", "n7", |node| node["metadata"]["annotations"][TTL] = "x".into());
        cluster.edit_status::<Node>("", "n8", |node| node["status"]["a"] = "b".into());
        for n in 90..101 {
            cluster.delete::<Node>("", &format!("n{n}"));
        }
        cluster.wait_until_idle().await;
        assert_eq!(
            (annotations(&cluster), cluster.writes().len()),
            (vec!["15".into()], 202)
        );
        cluster.delete::<Node>("", "n0");
        cluster.wait_until_idle().await;
        assert_eq!(annotations(&cluster), ["0"]);
    }
}
