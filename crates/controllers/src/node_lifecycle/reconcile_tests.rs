//! From a node that falls silent to its pods' end, over the API.

use std::time::Duration;

use serde_json::{Value, json};

use super::DEF;
use crate::objects::{Kind, Lease, Node, Pod};
use crate::testing::{Cluster, Faults, Nodes};
use crate::{pod_gc, taint_eviction};

const SECOND: Duration = Duration::from_secs(1);

fn put_node(cluster: &Cluster, name: &str) {
    let now = cluster.clock.now();
    let conditions: Vec<Value> = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"]
        .iter()
        .map(|kind| {
            let status = if *kind == "Ready" { "True" } else { "False" };
            json!({"type": kind, "status": status, "lastHeartbeatTime": now, "lastTransitionTime": now})
        })
        .collect();
    let taint = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"});
    cluster.put(json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/os": "linux"}},
        "spec": {"taints": [taint]}, "status": {"conditions": conditions}}));
    cluster.put(json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": name, "namespace": "kube-node-lease"}, "spec": {"renewTime": now}}));
}

fn put_pod(cluster: &Cluster, name: &str, node: &str, seconds: Option<i64>) {
    let toleration = |key: &str| {
        json!({"key": format!("node.kubernetes.io/{key}"), "operator": "Exists",
                                        "effect": "NoExecute", "tolerationSeconds": seconds})
    };
    cluster.put(
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "ns"},
        "spec": {"nodeName": node, "tolerations": [toleration("not-ready"), toleration("unreachable")],
                 "containers": [{"name": "c"}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}),
    );
}

/// Time goes by while these nodes renew their leases.
async fn live(cluster: &Cluster, nodes: &[&str], seconds: u64) {
    for _ in 0..seconds / 5 {
        // Kubelets do not wait until the controllers have come to rest.
        cluster.pass(SECOND.saturating_mul(5)).await;
        let now = json!(cluster.clock.now());
        for node in nodes {
            cluster.edit::<Lease>("kube-node-lease", node, |lease| {
                lease["spec"]["renewTime"] = now.clone()
            });
        }
    }
}

fn taints(cluster: &Cluster, node: &str) -> String {
    let taints = cluster.get::<Node>("", node).unwrap().spec.taints;
    let short = |key: &str| key.trim_start_matches("node.kubernetes.io/").to_string();
    let words: Vec<String> = taints
        .iter()
        .map(|t| format!("{}:{}", short(&t.key), t.effect))
        .collect();
    words.join(" ")
}

fn ready<T: Kind>(cluster: &Cluster, namespace: &str, name: &str) -> String {
    let value = cluster.value::<T>(namespace, name).unwrap();
    let conditions = value["status"]["conditions"].as_array().unwrap();
    let ready = conditions.iter().find(|c| c["type"] == "Ready").unwrap();
    ready["status"].as_str().unwrap().to_string()
}

fn pods(cluster: &Cluster) -> Vec<String> {
    cluster
        .list::<Pod>("ns")
        .into_iter()
        .map(|pod| pod.metadata.name)
        .collect()
}

fn has_event(cluster: &Cluster, event: &str) -> bool {
    cluster.events().iter().any(|e| e == event)
}

#[tokio::test(start_paused = true)]
async fn a_silent_node_loses_its_pods_and_a_heard_one_keeps_them() {
    let cluster = Cluster::new();
    for node in ["a", "b", "c"] {
        put_node(&cluster, node);
    }
    put_pod(&cluster, "tolerant", "a", None);
    put_pod(&cluster, "patient", "a", Some(60));
    put_pod(&cluster, "elsewhere", "b", Some(0));
    // Its kubelet is gone, those of the others are not.
    cluster.change_nodes(|nodes| nodes.partitioned = ["a".to_string()].into());
    cluster.run(&[&DEF, &taint_eviction::DEF, &pod_gc::DEF]);
    live(&cluster, &["b", "c"], 40).await;
    assert_eq!(taints(&cluster, "a"), "", "the taint it was born with is gone");
    assert_eq!(
        cluster
            .get::<Node>("", "a")
            .unwrap()
            .metadata
            .label("beta.kubernetes.io/os"),
        Some("linux")
    );
    let writes = cluster.writes().len();
    live(&cluster, &["a", "b", "c"], 200).await;
    assert_eq!(
        cluster.writes().len(),
        writes,
        "leases alone cost nothing: {:?}",
        cluster.writes()
    );

    live(&cluster, &["b", "c"], 60).await;
    assert_eq!(ready::<Node>(&cluster, "", "a"), "Unknown");
    assert_eq!(taints(&cluster, "a"), "unreachable:NoSchedule unreachable:NoExecute");
    assert_eq!(ready::<Pod>(&cluster, "ns", "patient"), "False");
    assert_eq!(ready::<Pod>(&cluster, "ns", "elsewhere"), "True");
    for event in [
        "Normal NodeNotReady Node a status is now: NodeNotReady",
        "Warning NodeNotReady Node is not ready",
    ] {
        assert!(has_event(&cluster, event), "{event}: {:?}", cluster.events());
    }
    live(&cluster, &["b", "c"], 65).await;
    let patient = cluster.get::<Pod>("ns", "patient").unwrap();
    assert!(
        patient.metadata.is_deleted(),
        "on its way out; its kubelet can't say so"
    );
    assert_eq!(
        patient.condition("DisruptionTarget").unwrap().reason,
        "DeletionByTaintManager"
    );
    assert!(has_event(
        &cluster,
        "Normal TaintManagerEviction Marking for deletion Pod ns/patient"
    ));
    assert!(!cluster.get::<Pod>("ns", "tolerant").unwrap().metadata.is_deleted());

    // Somebody says that the machine is off for good.
    cluster.edit::<Node>("", "a", |node| {
        let taint = json!({"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"});
        node["spec"]["taints"].as_array_mut().unwrap().push(taint);
    });
    live(&cluster, &["b", "c"], 10).await;
    assert_eq!(pods(&cluster), ["elsewhere"]);
    assert!(
        !cluster.writes().iter().any(|write| write.ends_with(" 409")),
        "{:?}",
        cluster.writes()
    );
}

#[tokio::test(start_paused = true)]
async fn a_node_that_comes_back_keeps_its_pods() {
    let cluster = Cluster::new();
    for node in ["a", "b"] {
        put_node(&cluster, node);
    }
    put_pod(&cluster, "p", "a", Some(300));
    cluster.run(&[&DEF, &taint_eviction::DEF]);
    live(&cluster, &["b"], 100).await;
    assert_eq!(taints(&cluster, "a"), "unreachable:NoSchedule unreachable:NoExecute");
    // First the kubelet says that it is not ready yet.
    for (status, expected) in [("False", "not-ready:NoSchedule not-ready:NoExecute"), ("True", "")] {
        let now = json!(cluster.clock.now());
        cluster.edit_status::<Node>("", "a", |node| {
            for condition in node["status"]["conditions"].as_array_mut().unwrap() {
                condition["lastHeartbeatTime"] = now.clone();
                let is_ready = condition["type"] == "Ready";
                condition["status"] = json!(if is_ready { status } else { "False" });
            }
        });
        live(&cluster, &["a", "b"], 10).await;
        assert_eq!(taints(&cluster, "a"), expected);
    }
    assert!(
        has_event(&cluster, "Normal TaintManagerEviction Cancelling deletion of Pod ns/p"),
        "{:?}",
        cluster.events()
    );
    live(&cluster, &["a", "b"], 400).await;
    assert!(!cluster.get::<Pod>("ns", "p").unwrap().metadata.is_deleted());
}

#[tokio::test(start_paused = true)]
async fn if_all_are_silent_nobody_leaves() {
    let cluster = Cluster::new();
    for node in ["a", "b", "c"] {
        put_node(&cluster, node);
        put_pod(&cluster, &format!("on-{node}"), node, Some(0));
    }
    cluster.run(&[&DEF, &taint_eviction::DEF]);
    live(&cluster, &["c"], 45).await;
    // The last one falls silent a little later.
    live(&cluster, &[], 120).await;
    for node in ["a", "b", "c"] {
        assert_eq!(taints(&cluster, node), "unreachable:NoSchedule");
    }
    assert!(!cluster.get::<Pod>("ns", "on-c").unwrap().metadata.is_deleted());
    // One is back: it was we who were deaf, but the others are still silent and lose their pods one by one.
    let now = json!(cluster.clock.now());
    cluster.edit_status::<Node>("", "c", |node| {
        for condition in node["status"]["conditions"].as_array_mut().unwrap() {
            condition["lastHeartbeatTime"] = now.clone();
            condition["status"] = json!(if condition["type"] == "Ready" { "True" } else { "False" });
        }
    });
    cluster.wait_until_idle().await;
    let evicting = |node: &str| taints(&cluster, node).contains("NoExecute");
    assert_eq!(
        [evicting("a"), evicting("b"), evicting("c")]
            .iter()
            .filter(|e| **e)
            .count(),
        1
    );
    live(&cluster, &["c"], 15).await;
    assert_eq!([evicting("a"), evicting("b"), evicting("c")], [true, true, false]);
    assert_eq!(taints(&cluster, "c"), "");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_never_reports_becomes_unknown() {
    let cluster = Cluster::new();
    put_node(&cluster, "b");
    cluster.put(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}}));
    cluster.run(&[&DEF]);
    live(&cluster, &["b"], 55).await;
    assert!(cluster.get::<Node>("", "a").unwrap().status.conditions.is_empty());
    live(&cluster, &["b"], 15).await;
    let node = cluster.get::<Node>("", "a").unwrap();
    let reasons: Vec<&str> = node.status.conditions.iter().map(|c| c.reason.as_str()).collect();
    assert_eq!(reasons, ["NodeStatusNeverUpdated"; 4]);
    cluster.remove::<Node>("", "a");
    cluster.wait_until_idle().await;
    for event in [
        "Normal RegisteredNode Node a event: Registered Node a in Controller",
        "Normal RemovingNode Node a event: Removing Node a from Controller",
    ] {
        assert!(has_event(&cluster, event), "{event}");
    }
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_node_that_is_gone_end() {
    let cluster = Cluster::new();
    put_node(&cluster, "a");
    put_node(&cluster, "b");
    for (name, node) in [("p", "a"), ("q", "b"), ("r", "never")] {
        put_pod(&cluster, name, node, Some(300));
    }
    // Nobody ends what has no kubelet.
    cluster.change_nodes(|nodes| nodes.partitioned = ["a".to_string(), "never".to_string()].into());
    cluster.run(&[&pod_gc::DEF]);
    cluster.wait_until_idle().await;
    cluster.remove::<Node>("", "a");
    cluster.advance(30 * SECOND).await;
    assert_eq!(pods(&cluster), ["p", "q", "r"]);
    cluster.advance(20 * SECOND).await;
    assert_eq!(pods(&cluster), ["q"]);
    let failed = cluster
        .calls()
        .into_iter()
        .find(|call| call.path.ends_with("/pods/p/status"))
        .unwrap();
    assert_eq!(failed.body["status"]["phase"], "Failed");
    assert_eq!(failed.body["status"]["conditions"][1]["reason"], "DeletionByPodGC");
}

#[tokio::test(start_paused = true)]
async fn too_many_ended_pods_go() {
    let cluster = Cluster::new();
    for n in 0..20 {
        cluster.put(json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": format!("p{n:02}"), "namespace": "ns",
                         "creationTimestamp": format!("2025-01-01T00:00:{n:02}Z")},
            "spec": {"nodeName": ""}, "status": {"phase": "Succeeded"}}));
    }
    let settings = crate::Settings {
        terminated_pod_gc_threshold: 5,
        ..crate::Settings::default()
    };
    cluster.run_with(&[&pod_gc::DEF], settings);
    cluster.wait_until_idle().await;
    assert_eq!(pods(&cluster), ["p15", "p16", "p17", "p18", "p19"]);
    cluster.put(json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "deleted", "namespace": "ns", "finalizers": ["x/y"], "deletionGracePeriodSeconds": 0,
                     "deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": {"phase": "Pending"}}));
    cluster.wait_until_idle().await;
    assert_eq!(cluster.get::<Pod>("ns", "deleted").unwrap().status.phase, "Failed");
}

#[tokio::test(start_paused = true)]
async fn faults_and_restarts_change_nothing_in_the_end() {
    for seed in 0..12 {
        let cluster = Cluster::seeded(seed);
        for node in ["a", "b", "c", "d"] {
            put_node(&cluster, node);
            for n in 0..3 {
                put_pod(&cluster, &format!("{node}-{n}"), node, Some(20 * n));
            }
        }
        cluster.faults(Faults {
            one_in: 10,
            lag_max: Duration::from_millis(300),
            break_one_in: 50,
        });
        cluster.nodes(Nodes::new(0));
        cluster.run(&[&DEF, &taint_eviction::DEF, &pod_gc::DEF]);
        cluster.kill_after_writes(3 + u32::try_from(seed).unwrap());
        // Lost answers cost half a minute each, a restart all patience with silent nodes.
        live(&cluster, &["b", "c", "d"], 260).await;
        cluster.faults(Faults::default());
        live(&cluster, &["b", "c", "d"], 180).await;
        let on = |node: &str| {
            cluster
                .list::<Pod>("ns")
                .iter()
                .filter(|p| p.spec.node_name == node)
                .count()
        };
        assert_eq!((on("a"), on("b"), on("c"), on("d")), (0, 3, 3, 3), "seed {seed}");
        assert_eq!(
            taints(&cluster, "a"),
            "unreachable:NoSchedule unreachable:NoExecute",
            "seed {seed}"
        );
    }
}
