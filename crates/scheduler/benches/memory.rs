//! What the scheduler's state of a cluster takes: resident memory before and after, step by step. Objects are decoded
//! from JSON one by one, as a watch brings them.
//!
//! `cargo bench -p orlop-scheduler --bench memory [-- NODES PODS]`

use orlop_scheduler::cluster::Cluster;
use orlop_scheduler::config::Config;
use orlop_scheduler::cycle::Core;
use orlop_scheduler::model::{Node, Pod};
use orlop_scheduler::plugins;
use serde_json::json;

/// Deployments that the pods belong to: as many classes and sets of labels.
const APPS: usize = 200;

/// `VmRSS` of this process, in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).expect("a line for it");
    line.split_whitespace()
        .nth(1)
        .expect("a number")
        .parse()
        .expect("a number")
}

fn node(i: usize) -> Node {
    let images: Vec<_> = (0..20)
        .map(|n| json!({"names": [format!("registry.example.com/app-{n}:1")], "sizeBytes": 100_000_000 + n}))
        .collect();
    let text = json!({
        "metadata": {"name": format!("node-{i}"), "uid": format!("node-uid-{i}"), "resourceVersion": "1", "labels": {
            "kubernetes.io/hostname": format!("node-{i}"), "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
            "topology.kubernetes.io/zone": format!("zone-{}", i % 3), "topology.kubernetes.io/region": "region",
        }},
        "status": {"allocatable": {"cpu": "32", "memory": "256Gi", "ephemeral-storage": "1Ti", "pods": "110"},
            "images": images},
    });
    serde_json::from_str(&text.to_string()).unwrap()
}

/// On its node, unless it waits.
fn pod(i: usize, node: Option<usize>) -> Pod {
    let app = format!("app-{}", i % APPS);
    let mut text = json!({
        "metadata": {"name": format!("{app}-5d59d67564-{i:05}"), "namespace": format!("team-{}", i % 20),
            "uid": format!("0b1c2d3e-0000-4000-8000-{i:012}"), "resourceVersion": format!("{}", 100_000 + i),
            "labels": {"app": app, "pod-template-hash": "5d59d67564", "tier": "web"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("{app}-5d59d67564"),
                "uid": format!("owner-{app}"), "controller": true}]},
        "spec": {"schedulerName": "default-scheduler", "priority": 0,
            "containers": [{"name": "c", "image": format!("registry.example.com/{app}:1"),
                "resources": {"requests": {"cpu": format!("{}m", 10 + i % APPS), "memory": "64Mi"}}}],
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute",
                "tolerationSeconds": 300}]},
        "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"},
    });
    if let Some(node) = node {
        text["spec"]["nodeName"] = json!(format!("node-{node}"));
    }
    serde_json::from_str(&text.to_string()).unwrap()
}

fn main() {
    let wanted: Vec<usize> = std::env::args().filter_map(|a| a.parse().ok()).collect();
    let (nodes, pods) = match wanted.as_slice() {
        [nodes, pods, ..] => (*nodes, *pods),
        _ => (5_000, 50_000),
    };
    let start = resident();
    let mut last = start;
    let mut tell = |what: &str| {
        let now = resident();
        let mb = |kib: u64| kib as f64 / 1024.0;
        println!(
            "{what:44}{:>10.1} MB{:>10.1} MB in all",
            mb(now.saturating_sub(last)),
            mb(now.saturating_sub(start))
        );
        last = now;
    };
    let mut cluster = Cluster::default();
    for i in 0..nodes {
        cluster.observe_node(&node(i));
    }
    tell(&format!("{nodes} nodes"));
    for i in 0..pods {
        let info = cluster.decode(pod(i, Some(i % nodes)));
        cluster.add_pod(info);
    }
    tell(&format!("{pods} pods on them"));
    let mut core = Core::new(plugins::profiles(&Config::default()).unwrap(), 1);
    for i in pods..pods + APPS {
        let waiting = cluster.decode(pod(i, None));
        let choice = core.schedule(0, &cluster, &waiting).expect("there is room");
        cluster.assume(&waiting, choice.node);
    }
    tell(&format!("decisions for {APPS} classes of pods"));
}
