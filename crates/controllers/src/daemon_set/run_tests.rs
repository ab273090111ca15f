//! The controller on an API server in memory.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use super::DEF;
use crate::objects::{ControllerRevision, DaemonSet, Node, Pod};
use crate::revisions;
use crate::testing::{Cluster, Faults, Nodes};

fn node(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"runs": "d"}}})
}

fn daemon_set() -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "d", "namespace": "ns"},
        "spec": {
            "selector": {"matchLabels": {"app": "d"}}, "revisionHistoryLimit": 1,
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}},
            "template": {"metadata": {"labels": {"app": "d"}},
                         "spec": {"nodeSelector": {"runs": "d"}, "containers": [{"name": "a", "image": "one"}]}},
        },
    })
}

fn cluster(seed: u64) -> Cluster {
    let cluster = Cluster::seeded(seed);
    cluster.nodes(Nodes::new(4));
    for n in 0..3 {
        cluster.put(node(&format!("node-{n}")));
    }
    cluster.put(daemon_set());
    cluster
}

fn nodes_with_pods(cluster: &Cluster) -> Vec<String> {
    let mut nodes: Vec<String> = cluster
        .list::<Pod>("ns")
        .into_iter()
        .map(|p| p.spec.node_name)
        .collect();
    nodes.sort();
    nodes
}

fn set_image(cluster: &Cluster, image: &str) {
    cluster.edit::<DaemonSet>("ns", "d", |set| {
        set["spec"]["template"]["spec"]["containers"][0]["image"] = json!(image);
    });
}

fn images(cluster: &Cluster) -> BTreeSet<String> {
    let pods = cluster.values::<Pod>("ns");
    let image = |pod: &Value| pod["spec"]["containers"][0]["image"].as_str().unwrap().to_string();
    pods.iter().map(|pod| image(pod)).collect()
}

/// `1=one 3=two`, in the order of their numbers.
fn history(cluster: &Cluster) -> String {
    let mut all = cluster.list::<ControllerRevision>("ns");
    all.sort_by_key(|r| r.revision);
    let image = |r: &ControllerRevision| r.data["spec"]["template"]["spec"]["containers"][0]["image"].clone();
    let line = |r: &ControllerRevision| format!("{}={}", r.revision, image(r).as_str().unwrap());
    all.iter().map(line).collect::<Vec<_>>().join(" ")
}

#[tokio::test(start_paused = true)]
async fn pods_follow_the_nodes() {
    let cluster = cluster(1);
    cluster.run(&[&DEF]);
    cluster.wait_until_idle().await;
    assert_eq!(nodes_with_pods(&cluster), ["node-0", "node-1", "node-2"]);
    let set: DaemonSet = cluster.get("ns", "d").unwrap();
    let status = &set.status;
    assert_eq!(
        (
            status.desired_number_scheduled,
            status.number_available,
            status.updated_number_scheduled
        ),
        (3, 3, 3)
    );
    let pod = &cluster.list::<Pod>("ns")[0];
    let revision = &cluster.list::<ControllerRevision>("ns")[0];
    let hash = revision.metadata.label(revisions::POD_LABEL);
    assert_eq!(pod.metadata.label(revisions::POD_LABEL), hash);
    assert_eq!(revision.metadata.name, format!("d-{}", hash.unwrap()));
    assert_eq!(pod.spec.tolerations.len(), 6);
    assert!(
        cluster
            .events()
            .iter()
            .any(|e| e.starts_with("Normal SuccessfulCreate Created pod: d-"))
    );
    // One comes, one goes, and one is no longer meant for it.
    cluster.put(node("node-3"));
    cluster.edit::<Node>("", "node-1", |node| node["metadata"]["labels"] = json!({}));
    cluster.wait_until_idle().await;
    assert_eq!(nodes_with_pods(&cluster), ["node-0", "node-2", "node-3"]);
    let set: DaemonSet = cluster.get("ns", "d").unwrap();
    assert_eq!(
        (set.status.desired_number_scheduled, set.status.number_misscheduled),
        (3, 0)
    );
    // Heartbeats make no work.
    let writes = cluster.writes().len();
    cluster.edit_status::<Node>("", "node-0", |node| {
        node["status"]["conditions"] = json!([{"type": "Ready"}])
    });
    cluster.wait_until_idle().await;
    assert_eq!(cluster.writes().len(), writes);
}

#[tokio::test(start_paused = true)]
async fn updates_leave_a_history_to_go_back_to() {
    let cluster = cluster(2);
    cluster.run(&[&DEF]);
    cluster.wait_until_idle().await;
    set_image(&cluster, "two");
    cluster.wait_until_idle().await;
    assert_eq!(
        (images(&cluster), history(&cluster).as_str()),
        (["two".to_string()].into(), "1=one 2=two")
    );
    set_image(&cluster, "one");
    cluster.wait_until_idle().await;
    assert_eq!(
        (images(&cluster), history(&cluster).as_str()),
        (["one".to_string()].into(), "2=two 3=one")
    );
    set_image(&cluster, "three");
    cluster.wait_until_idle().await;
    assert_eq!(history(&cluster), "3=one 4=three");
    let set: DaemonSet = cluster.get("ns", "d").unwrap();
    assert_eq!(
        (set.status.observed_generation, set.status.updated_number_scheduled),
        (4, 3)
    );
}

#[tokio::test(start_paused = true)]
async fn a_name_that_is_taken_is_not_used() {
    let cluster = cluster(3);
    cluster.run(&[&DEF]);
    cluster.wait_until_idle().await;
    let taken = cluster.list::<ControllerRevision>("ns")[0].metadata.name.clone();
    cluster.kill();
    cluster.edit::<ControllerRevision>("ns", &taken, |r| {
        r["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "v1", "kind": "X", "name": "x", "uid": "x", "controller": true}]);
    });
    cluster.run(&[&DEF]);
    cluster.wait_until_idle().await;
    let set: DaemonSet = cluster.get("ns", "d").unwrap();
    let names: Vec<String> = cluster
        .list::<ControllerRevision>("ns")
        .into_iter()
        .map(|r| r.metadata.name)
        .collect();
    assert_eq!((set.status.collision_count, names.len()), (Some(1), 2));
    assert_eq!(
        set.status.updated_number_scheduled, 3,
        "all pods are of the new revision"
    );
}

#[tokio::test(start_paused = true)]
async fn failed_pods_are_replaced_later_and_later() {
    let cluster = cluster(4);
    cluster.run(&[&DEF]);
    cluster.wait_until_idle().await;
    let fail = || {
        let pod = cluster
            .list::<Pod>("ns")
            .into_iter()
            .find(|p| p.spec.node_name == "node-0")
            .unwrap();
        cluster.edit_status::<Pod>("ns", &pod.metadata.name, |p| p["status"]["phase"] = json!("Failed"));
        pod.metadata.name
    };
    let first = fail();
    cluster.wait_until_idle().await;
    assert!(cluster.get::<Pod>("ns", &first).is_none());
    let note =
        format!("Warning FailedDaemonPod Found failed daemon pod ns/{first} on node node-0, will try to kill it");
    assert!(cluster.events().contains(&note), "{:?}", cluster.events());
    for wait in [1, 2, 4, 8, 16] {
        let next = fail();
        cluster.advance(Duration::from_secs(wait + 2)).await;
        assert!(cluster.get::<Pod>("ns", &next).is_none(), "{wait}");
    }
    let last = fail();
    cluster.advance(Duration::from_secs(3)).await;
    assert!(cluster.get::<Pod>("ns", &last).is_some());
    cluster.advance(Duration::from_secs(30)).await;
    assert_eq!(nodes_with_pods(&cluster).len(), 3);
    assert!(cluster.get::<Pod>("ns", &last).is_none());
}

#[tokio::test(start_paused = true)]
async fn with_faults_and_restarts_there_is_one_pod_a_node_in_the_end() {
    for seed in 0..12 {
        let cluster = cluster(seed);
        cluster.faults(Faults {
            one_in: 5,
            lag_max: Duration::from_millis(200),
            break_one_in: 20,
        });
        cluster.run(&[&DEF]);
        cluster.kill_after_writes(1 + seed as u32 % 6);
        cluster.wait_until_idle().await;
        set_image(&cluster, "two");
        cluster.kill_after_writes(1 + seed as u32 % 4);
        cluster.wait_until_idle().await;
        cluster.calm().await;
        assert_eq!(nodes_with_pods(&cluster), ["node-0", "node-1", "node-2"], "seed {seed}");
        assert_eq!(images(&cluster), ["two".to_string()].into(), "seed {seed}");
        assert!(history(&cluster).ends_with("=two"), "{}", history(&cluster));
    }
}
