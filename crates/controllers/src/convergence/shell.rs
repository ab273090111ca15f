//! Random schedules with the controllers themselves, on an API server in memory that fails one call in ten.

use std::sync::Arc;
use std::time::Duration;

use orlop_base::Random;
use serde_json::{Value, json};

use super::invariants::is_as_wanted;
use super::schedule::{Seed, draw_limits};
use crate::deployment;
use crate::objects::{Deployment, Pod, ReplicaSet};
use crate::replica_set::REPLICA_SET;
use crate::testing::{Cluster, Faults, Nodes};

const NS: &str = "ns";

pub(super) fn run(seed: u64) {
    let _seed = Seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(schedule(seed));
}

async fn schedule(seed: u64) {
    let mut random = Random::seeded(seed);
    let cluster = Cluster::seeded(seed);
    cluster.nodes(Nodes::new(3));
    cluster.change_nodes(|nodes| {
        nodes.start_after = Duration::from_millis(random.below(3000));
        nodes.stop_after = Duration::from_millis(random.below(3000));
    });
    cluster.faults(Faults {
        one_in: 10,
        lag_max: Duration::from_millis(random.below(400)),
        break_one_in: 40,
    });
    cluster.put(foreign_pod());
    cluster.put(new_deployment(&mut random));
    cluster.run(&[&deployment::DEF, &REPLICA_SET]);
    for _ in 0..3 + random.below(6) {
        act(&cluster, &mut random);
        cluster.pass(Duration::from_millis(random.below(4000))).await;
    }
    cluster.change_nodes(|nodes| nodes.partitioned.clear());
    cluster.edit::<Deployment>(NS, "web", |d| d["spec"]["paused"] = json!(false));
    cluster.calm().await;
    check(&cluster);
}

fn foreign_pod() -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "foreign", "namespace": NS, "labels": {"app": "web"},
        "ownerReferences": [{"apiVersion": "v1", "kind": "X", "name": "x", "uid": "foreign", "controller": true}]}})
}

fn new_deployment(random: &mut Random) -> Value {
    let (surge, unavailable) = draw_limits(random);
    let strategy = match random.below(5) {
        0 => json!({"type": "Recreate"}),
        _ => json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}),
    };
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": NS},
        "spec": {
            "replicas": random.below(9), "progressDeadlineSeconds": 600, "revisionHistoryLimit": 2, "strategy": strategy,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "a", "image": "0"}]}},
        },
    })
}

fn act(cluster: &Cluster, random: &mut Random) {
    let edit = |change: &dyn Fn(&mut Value)| {
        cluster.edit::<Deployment>(NS, "web", change);
    };
    let number = random.below(9);
    match random.below(11) {
        0 | 1 => edit(&|d| d["spec"]["replicas"] = json!(number)),
        2..=4 => edit(&|d| d["spec"]["template"]["spec"]["containers"][0]["image"] = json!((number % 4).to_string())),
        5 => edit(&|d| d["spec"]["paused"] = json!(number.is_multiple_of(2))),
        6 => cluster.kill_after_writes(1 + number as u32),
        7 => cluster.change_nodes(|nodes| {
            nodes.partitioned = [format!("node-{}", number % 4)].into();
        }),
        8 => {
            // As the garbage collector would, its pods go with it.
            let sets = cluster.list::<ReplicaSet>(NS);
            if let Some(set) = sets.get(number as usize % sets.len().max(1)) {
                cluster.remove::<ReplicaSet>(NS, &set.metadata.name);
                for pod in cluster.list::<Pod>(NS) {
                    if pod
                        .metadata
                        .controller()
                        .is_some_and(|owner| owner.uid == set.metadata.uid)
                    {
                        cluster.remove::<Pod>(NS, &pod.metadata.name);
                    }
                }
            }
        }
        _ => {
            let pods = cluster
                .list::<Pod>(NS)
                .into_iter()
                .filter(|pod| pod.metadata.name != "foreign");
            for pod in pods.take(number as usize % 3) {
                cluster.delete::<Pod>(NS, &pod.metadata.name);
            }
        }
    }
}

fn check(cluster: &Cluster) {
    let deployment: Deployment = cluster.get(NS, "web").unwrap();
    let sets = cluster.list::<ReplicaSet>(NS).into_iter().map(Arc::new).collect();
    // Pods of a set that was deleted while one was being made for it.
    let pods = cluster
        .list::<Pod>(NS)
        .into_iter()
        .filter(|pod| pod.metadata.name != "foreign");
    let pods: Vec<Arc<Pod>> = pods.map(Arc::new).collect();
    is_as_wanted(Some(&deployment), sets, &pods);
    assert!(cluster.get::<Pod>(NS, "foreign").is_some());
}
