//! The controller on an API server in memory.

use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::objects::condition;
use crate::testing::{Cluster, Nodes, Refusal};

const NS: &str = "ns";

fn set(replicas: u32) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "web", "namespace": NS},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web", "tier": "x"}}, "spec": {"containers": [{"name": "a"}]}},
        },
    })
}

fn pod(name: &str, phase: &str, labels: Value, owner: Option<&str>) -> Value {
    let owners = owner.map(|uid| json!({"apiVersion": "v1", "kind": "X", "name": uid, "uid": uid, "controller": true}));
    let owners: Vec<Value> = owners.into_iter().collect();
    json!({"apiVersion": "v1", "kind": "Pod", "spec": {"nodeName": "node-0", "containers": [{"name": "a"}]},
           "metadata": {"name": name, "namespace": NS, "labels": labels, "ownerReferences": owners},
           "status": {"phase": phase}})
}

fn start_cluster(replicas: u32) -> Cluster {
    let cluster = Cluster::new();
    cluster.nodes(Nodes::new(2));
    cluster.put(set(replicas));
    cluster.run(&[&REPLICA_SET]);
    cluster
}

fn the_set(cluster: &Cluster) -> ReplicaSet {
    cluster.get(NS, "web").unwrap()
}

/// The names of the pods that the set manages.
fn managed(cluster: &Cluster) -> Vec<String> {
    let uid = the_set(cluster).metadata.uid;
    let pods = cluster.list::<Pod>(NS).into_iter();
    let mine = pods.filter(|pod| pod.metadata.controller().is_some_and(|owner| owner.uid == uid));
    mine.map(|pod| pod.metadata.name).collect()
}

#[tokio::test(start_paused = true)]
async fn pods_are_adopted_and_released_by_their_labels() {
    let cluster = Cluster::new();
    cluster.nodes(Nodes::new(1));
    cluster.put(set(2));
    let web = json!({"app": "web"});
    cluster.put(pod("orphan", "Running", web.clone(), None));
    cluster.put(pod("other", "Running", json!({"app": "other"}), None));
    cluster.put(pod("foreign", "Running", web.clone(), Some("somebody")));
    cluster.put(pod("ended", "Succeeded", web, None));
    cluster.run(&[&REPLICA_SET]);
    cluster.wait_until_idle().await;
    let mine = managed(&cluster);
    assert!(mine.len() == 2 && mine[0] == "orphan", "{mine:?}");
    let status = the_set(&cluster).status;
    // It lacks a label of the template.
    assert_eq!((status.replicas, status.fully_labeled_replicas), (2, 1));
    cluster.edit::<Pod>(NS, "orphan", |pod| pod["metadata"]["labels"] = json!({"app": "debug"}));
    cluster.wait_until_idle().await;
    let mine = managed(&cluster);
    assert!(mine.len() == 2 && mine[0] != "orphan", "{mine:?}");
    assert_eq!(cluster.list::<Pod>(NS).len(), 6, "nobody else's pod is touched");
}

#[tokio::test(start_paused = true)]
async fn pods_that_end_are_replaced_and_no_longer_counted() {
    let cluster = start_cluster(3);
    cluster.wait_until_idle().await;
    let names = managed(&cluster);
    cluster.edit_status::<Pod>(NS, &names[0], |pod| pod["status"]["phase"] = json!("Failed"));
    cluster.delete::<Pod>(NS, &names[1]);
    cluster.wait_until_idle().await;
    let status = the_set(&cluster).status;
    assert_eq!(
        (status.replicas, status.ready_replicas, status.terminating_replicas),
        (3, 3, Some(0))
    );
    // The failed one stays until somebody collects it.
    assert_eq!(managed(&cluster).len(), 4);
}

#[tokio::test(start_paused = true)]
async fn too_many_go_with_those_first_that_are_missed_least() {
    let cluster = start_cluster(4);
    cluster.wait_until_idle().await;
    let unready = managed(&cluster)[2].clone();
    cluster.edit_status::<Pod>(NS, &unready, |pod| pod["status"]["conditions"] = json!([]));
    cluster.edit::<ReplicaSet>(NS, "web", |set| set["spec"]["replicas"] = json!(3));
    cluster.wait_until_idle().await;
    let left = managed(&cluster);
    assert!(left.len() == 3 && !left.contains(&unready), "{left:?}");
    let deleted = format!("Normal SuccessfulDelete Deleted pod: {unready}");
    assert!(cluster.events().contains(&deleted));
}

#[tokio::test(start_paused = true)]
async fn what_can_not_be_made_costs_few_requests_and_is_told() {
    let cluster = start_cluster(100);
    cluster.hook(|call, _| {
        let refused = call.method == "POST" && call.path.ends_with("/pods");
        refused.then(|| Err(Refusal::new(403, "Forbidden", "exceeded quota")))
    });
    cluster.pass(Duration::from_secs(10)).await;
    let posts = cluster.writes().iter().filter(|line| line.contains("POST")).count();
    // One a try, and each waits twice as long as the one before.
    assert!((5..15).contains(&posts), "{posts}");
    let status = the_set(&cluster).status;
    let failure = condition::find(&status.conditions, "ReplicaFailure").unwrap();
    assert_eq!(
        (&*failure.status, &*failure.reason, &*failure.message),
        ("True", "FailedCreate", "exceeded quota")
    );
    assert!(cluster.events()[0].starts_with("Warning FailedCreate Error creating: exceeded quota"));
    cluster.hook(|_, _| None);
    cluster.advance(Duration::from_secs(30)).await;
    let status = the_set(&cluster).status;
    assert_eq!((status.ready_replicas, status.conditions.len()), (100, 0));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_made_where_all_is_to_end() {
    let cluster = Cluster::new();
    cluster.put(set(3));
    cluster.put(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NS,
        "deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    cluster.run(&[&REPLICA_SET]);
    cluster.advance(Duration::from_secs(60)).await;
    let posts = cluster.writes().iter().filter(|line| line.contains("POST")).count();
    // Tried, and tried again when the status was written; not time and again.
    assert!(posts <= 2 && cluster.list::<Pod>(NS).is_empty(), "{posts}");
    // Nor for a set that is itself on its way out.
    let cluster = Cluster::new();
    let mut ending = set(3);
    ending["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    ending["metadata"]["finalizers"] = json!(["foregroundDeletion"]);
    cluster.put(ending);
    cluster.run(&[&REPLICA_SET]);
    cluster.wait_until_idle().await;
    assert!(cluster.list::<Pod>(NS).is_empty());
}

#[tokio::test(start_paused = true)]
async fn pods_count_as_available_after_their_first_seconds() {
    let cluster = start_cluster(2);
    cluster.edit::<ReplicaSet>(NS, "web", |set| set["spec"]["minReadySeconds"] = json!(60));
    cluster.wait_until_idle().await;
    let status = the_set(&cluster).status;
    assert_eq!((status.ready_replicas, status.available_replicas), (2, 0));
    cluster.advance(Duration::from_secs(61)).await;
    assert_eq!(the_set(&cluster).status.available_replicas, 2);
}

#[tokio::test(start_paused = true)]
async fn many_come_in_bursts_and_the_status_is_written_sparingly() {
    let cluster = start_cluster(1200);
    cluster.wait_until_idle().await;
    let status = the_set(&cluster).status;
    assert_eq!((status.replicas, status.ready_replicas), (1200, 1200));
    let writes = cluster.writes();
    let (pods, others): (Vec<_>, Vec<_>) = writes.iter().partition(|line| line.contains("/pods "));
    assert_eq!(pods.len(), 1200);
    assert!(others.len() < 20, "{}", others.len());
}

#[tokio::test(start_paused = true)]
async fn replication_controllers_are_the_same() {
    let cluster = Cluster::new();
    cluster.nodes(Nodes::new(1));
    cluster.put(json!({
        "apiVersion": "v1", "kind": "ReplicationController", "metadata": {"name": "web", "namespace": NS},
        "spec": {"replicas": 2, "selector": {"app": "web"},
                 "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "a"}]}}},
    }));
    cluster.run(&[&REPLICA_SET, &REPLICATION_CONTROLLER]);
    cluster.wait_until_idle().await;
    let made: ReplicationController = cluster.get(NS, "web").unwrap();
    assert_eq!(
        (made.status.ready_replicas, made.status.terminating_replicas),
        (2, None)
    );
    assert_eq!(cluster.list::<Pod>(NS).len(), 2);
}
