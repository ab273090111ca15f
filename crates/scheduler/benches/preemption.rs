//! How long it takes to decide who must go for a more important pod, when every node is full of lesser ones. The shape of
//! scheduler_perf's PreemptionBasic: four pods of 900m on each node, of which three must go for each pod of 3000m.
//!
//! `cargo bench -p orlop-scheduler --bench preemption [-- NODES]`

use std::sync::Arc;
use std::time::Duration;

use orlop_scheduler::cluster::Cluster;
use orlop_scheduler::cluster::pod::PodInfo;
use orlop_scheduler::config::Config;
use orlop_scheduler::cycle::{Core, ScheduleFailure};
use orlop_scheduler::plugins;
use orlop_scheduler::preemption::{DefaultPreemption, Preemption, best};
use serde_json::json;

const PER_NODE: usize = 4;
const PREEMPTORS: usize = 200;

fn pod(cluster: &mut Cluster, name: &str, cpu: &str, priority: i32, node: Option<usize>) -> Arc<PodInfo> {
    let mut spec = json!({
        "schedulerName": "default-scheduler", "priority": priority,
        "containers": [{"name": "c", "image": "pause", "resources": {"requests": {"cpu": cpu, "memory": "500Mi"}}}],
    });
    if let Some(node) = node {
        spec["nodeName"] = json!(format!("node-{node}"));
    }
    let pod = json!({"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": spec,
        "status": {"startTime": "2026-01-01T00:00:00Z"}});
    cluster.decode(serde_json::from_value(pod).unwrap())
}

fn full(nodes: usize) -> Cluster {
    let mut cluster = Cluster::default();
    for i in 0..nodes {
        let node = json!({"metadata": {"name": format!("node-{i}"), "labels": {"kubernetes.io/hostname": format!("node-{i}")}},
            "status": {"allocatable": {"cpu": "4", "memory": "32Gi", "pods": "110"}}});
        cluster.observe_node(&serde_json::from_value(node).unwrap());
        for n in 0..PER_NODE {
            let low = pod(&mut cluster, &format!("low-{i}-{n}"), "900m", 0, Some(i));
            cluster.add_pod(low);
        }
    }
    cluster
}

/// Decides for one pod after the other, carrying out each decision; what each took.
fn run(nodes: usize) -> Vec<Duration> {
    let mut cluster = full(nodes);
    let mut core = Core::new(plugins::profiles(&Config::default()).unwrap(), 1);
    let args = DefaultPreemption::default();
    let mut took = vec![];
    for i in 0..PREEMPTORS.min(nodes) {
        let high = pod(&mut cluster, &format!("high-{i}"), "3000m", 1000, None);
        let start = orlop_base::clock::monotonic();
        let Err(ScheduleFailure::Unfit(error)) = core.schedule(0, &cluster, &high) else {
            panic!("every node is full");
        };
        let Preemption::Candidates(candidates) = core.preempt(0, &cluster, &high, &error.diagnosis, &args) else {
            panic!("lesser pods can go");
        };
        let chosen = best(candidates).expect("there are candidates");
        took.push(start.elapsed());
        for victim in &chosen.victims {
            cluster.remove_pod(&victim.uid);
        }
        cluster.assume(&high, chosen.node);
    }
    took.sort();
    took
}

fn main() {
    println!(
        "{:>8}{:>12}{:>12}{:>12}{:>12}   ms a decision",
        "nodes", "mean", "p50", "p99", "most"
    );
    let wanted: Vec<usize> = std::env::args().filter_map(|a| a.parse().ok()).collect();
    let sizes = if wanted.is_empty() {
        vec![500, 1_000, 5_000, 20_000]
    } else {
        wanted
    };
    for nodes in sizes {
        let took = run(nodes);
        let ms = |d: Duration| d.as_secs_f64() * 1e3;
        let mean = ms(took.iter().sum::<Duration>()) / took.len() as f64;
        let at = |share: f64| ms(took[((took.len() - 1) as f64 * share) as usize]);
        println!(
            "{nodes:>8}{mean:>12.3}{:>12.3}{:>12.3}{:>12.3}",
            at(0.5),
            at(0.99),
            at(1.0)
        );
    }
}
