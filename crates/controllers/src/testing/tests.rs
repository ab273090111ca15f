use serde_json::json;

use super::*;
use crate::objects::{Pod, ReplicaSet};
use crate::replica_set::REPLICA_SET;

fn replica_set(replicas: u32) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "web", "namespace": "ns"},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "a", "image": "i"}]}},
        },
    })
}

#[tokio::test(start_paused = true)]
async fn controllers_run_on_it() {
    let cluster = Cluster::new();
    cluster.nodes(Nodes::new(2));
    cluster.put(replica_set(3));
    cluster.run(&[&REPLICA_SET]);
    cluster.wait_until_idle().await;
    assert_eq!(cluster.list::<Pod>("ns").len(), 3);
    let set: ReplicaSet = cluster.get("ns", "web").unwrap();
    assert_eq!((set.status.ready_replicas, set.status.observed_generation), (3, 1));
    assert_eq!(cluster.events().len(), 3, "{:?}", cluster.events());
    cluster.edit::<ReplicaSet>("ns", "web", |set| set["spec"]["replicas"] = json!(1));
    cluster.wait_until_idle().await;
    assert_eq!(cluster.list::<Pod>("ns").len(), 1);
    let set: ReplicaSet = cluster.get("ns", "web").unwrap();
    assert_eq!((set.status.replicas, set.status.observed_generation), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn with_faults_and_restarts_they_come_to_the_same_end() {
    for seed in 0..20 {
        let cluster = Cluster::seeded(seed);
        cluster.nodes(Nodes::new(2));
        cluster.faults(Faults {
            one_in: 4,
            lag_max: Duration::from_millis(300),
            break_one_in: 20,
        });
        cluster.put(replica_set(5));
        cluster.run(&[&REPLICA_SET]);
        cluster.kill_after_writes(seed as u32 % 5);
        cluster.wait_until_idle().await;
        cluster.calm().await;
        assert_eq!(cluster.list::<Pod>("ns").len(), 5, "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_rules_of_writing() {
    let cluster = Cluster::new();
    let api = cluster.api();
    let pods = "/api/v1/namespaces/ns/pods";
    let body = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"generateName": "p-", "finalizers": ["x/y"]},
                      "spec": {"nodeName": "n"}, "status": {"phase": "Running"}});
    let made: Value = api.create(pods, &body).await.unwrap();
    assert_eq!(
        (&made["status"]["phase"], &made["metadata"]["generation"]),
        (&json!("Pending"), &json!(1))
    );
    let name = made["metadata"]["name"].as_str().unwrap();
    let at = format!("{pods}/{name}");
    let stale = json!({"metadata": {"resourceVersion": "1"}});
    let refused = api.patch_merge::<Value>(&at, &stale).await.unwrap_err();
    assert!(matches!(refused, orlop_client::Error::Conflict(_)), "{refused:?}");
    let patch = json!({"status": {"phase": "Running"}, "spec": {"nodeName": "m"}});
    let patched: Value = api.patch_merge(&format!("{at}/status"), &patch).await.unwrap();
    assert_eq!(
        (&patched["status"]["phase"], &patched["spec"]["nodeName"]),
        (&json!("Running"), &json!("n"))
    );
    // Deleted, it waits for the kubelet and then for the finalizer.
    assert!(cluster.delete::<Pod>("ns", name));
    let pod: Pod = cluster.get("ns", name).unwrap();
    assert_eq!(pod.metadata.deletion_grace_period_seconds, Some(30));
    assert!(cluster.delete_with::<Pod>("ns", name, json!({"gracePeriodSeconds": 0})));
    assert!(cluster.get::<Pod>("ns", name).is_some());
    let gone: Value = api
        .patch_merge(&at, &json!({"metadata": {"finalizers": null}}))
        .await
        .unwrap();
    assert!(gone["metadata"]["finalizers"].is_null() && cluster.get::<Pod>("ns", name).is_none());
    let body = json!({"metadata": {"name": "p"}, "kind": "Pod"});
    api.create::<Value>(pods, &body).await.unwrap();
    let twice = api.create::<Value>(pods, &body).await.unwrap_err();
    assert!(matches!(twice, orlop_client::Error::AlreadyExists(_)), "{twice:?}");
    let bind = json!({"target": {"name": "n"}});
    api.create::<Value>(&format!("{pods}/p/binding"), &bind).await.unwrap();
    assert_eq!(cluster.get::<Pod>("ns", "p").unwrap().spec.node_name, "n");
}

#[test]
fn plurals() {
    let cases = [
        "NetworkPolicy",
        "StorageClass",
        "Endpoints",
        "Pod",
        "Ingress",
        "EndpointSlice",
    ];
    let resources = [
        "networkpolicies",
        "storageclasses",
        "endpoints",
        "pods",
        "ingresses",
        "endpointslices",
    ];
    assert_eq!(cases.map(plural), resources);
}
