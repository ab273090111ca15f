use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::testing::Cluster;

const HANDLE: &str = "kubernetes.io/csi/d.io^h-v";

#[test]
fn names_are_upstreams() {
    let volume: PersistentVolume =
        serde_json::from_value(json!({"spec": {"csi": {"driver": "d.io", "volumeHandle": "h"}}})).unwrap();
    // printf 'hd.ion' | sha256sum
    assert_eq!(
        plan::attachment_name(&volume, "n").unwrap(),
        "csi-f9c0a2e55a623bb2869fea8487e4badd0af73938bd4b9b164f308d27ed06b4cc"
    );
    assert_eq!(plan::unique_name(&volume).unwrap(), "kubernetes.io/csi/d.io^h");
    assert_eq!(plan::unique_name(&PersistentVolume::default()), None);
}

fn node(cluster: &Cluster, name: &str) {
    cluster.put(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
                       "status": {"conditions": [{"type": "Ready", "status": "True"}]}}));
}

/// A claim and the volume that it is bound to.
fn bound(cluster: &Cluster, name: &str, mode: &str) {
    cluster.put(
        json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": format!("v{name}")},
        "spec": {"accessModes": [mode], "csi": {"driver": "d.io", "volumeHandle": format!("h-{name}")},
                 "claimRef": {"namespace": "ns", "name": name, "uid": format!("u{name}")}},
        "status": {"phase": "Bound"}}),
    );
    cluster.put(json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"namespace": "ns", "name": name, "uid": format!("u{name}")},
        "spec": {"volumeName": format!("v{name}")}, "status": {"phase": "Bound"}}));
}

fn pod(cluster: &Cluster, name: &str, node: &str, claim: &str) {
    cluster.put(
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "ns", "name": name},
        "spec": {"nodeName": node, "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]},
        "status": {"phase": "Running"}}),
    );
}

fn attachments(cluster: &Cluster) -> Vec<String> {
    let all = cluster.list::<VolumeAttachment>("");
    let mut all: Vec<String> = all
        .iter()
        .map(|a| format!("{} on {}", source(a), a.spec.node_name))
        .collect();
    all.sort();
    all
}

fn source(attachment: &VolumeAttachment) -> String {
    attachment.spec.source.persistent_volume_name.clone().unwrap()
}

/// What the driver does.
fn attach_all(cluster: &Cluster) {
    for attachment in cluster.list::<VolumeAttachment>("") {
        cluster.edit_status::<VolumeAttachment>("", &attachment.metadata.name, |a| {
            a["status"] = json!({"attached": true});
        });
    }
}

fn in_use(cluster: &Cluster, node: &str, volumes: Value) {
    cluster.edit_status::<Node>("", node, |n| n["status"]["volumesInUse"] = volumes);
}

fn reported(cluster: &Cluster, node: &str) -> Vec<String> {
    let node = cluster.get::<Node>("", node).unwrap();
    node.status.volumes_attached.iter().map(|v| v.name.clone()).collect()
}

async fn with_one_attached() -> Cluster {
    let cluster = Cluster::new();
    for name in ["a", "b"] {
        node(&cluster, name);
    }
    bound(&cluster, "v", "ReadWriteOnce");
    pod(&cluster, "p", "a", "v");
    cluster.run(&[&DEF]);
    cluster.wait_until_idle().await;
    assert_eq!(
        (attachments(&cluster), reported(&cluster, "a")),
        (vec!["vv on a".to_string()], vec![])
    );
    attach_all(&cluster);
    in_use(&cluster, "a", json!([HANDLE]));
    cluster.wait_until_idle().await;
    assert_eq!(reported(&cluster, "a"), [HANDLE]);
    cluster
}

#[tokio::test(start_paused = true)]
async fn a_volume_moves_when_its_node_lets_go() {
    let cluster = with_one_attached().await;
    let said = "Normal SuccessfulAttachVolume AttachVolume.Attach succeeded for volume \"vv\" ".to_string();
    assert!(cluster.events().contains(&said), "{:?}", cluster.events());
    pod(&cluster, "q", "b", "v");
    cluster.wait_until_idle().await;
    let said = "Warning FailedAttachVolume Waiting for detach for volume \"vv\" Volume is already used by pod(s) p";
    assert!(cluster.events().iter().any(|e| e == said), "{:?}", cluster.events());
    cluster.remove::<Pod>("ns", "p");
    cluster.wait_until_idle().await;
    assert_eq!(attachments(&cluster), ["vv on a"]);
    in_use(&cluster, "a", json!([]));
    cluster.wait_until_idle().await;
    assert_eq!(
        (attachments(&cluster), reported(&cluster, "a")),
        (vec!["vv on b".to_string()], vec![])
    );
}

#[tokio::test(start_paused = true)]
async fn lost_nodes_are_waited_for_six_minutes() {
    let cluster = with_one_attached().await;
    cluster.remove::<Pod>("ns", "p");
    cluster.advance(Duration::from_secs(1000)).await;
    assert_eq!(attachments(&cluster), ["vv on a"]);
    cluster.edit_status::<Node>("", "a", |n| {
        n["status"]["conditions"] = json!([{"type": "Ready", "status": "Unknown"}])
    });
    cluster.wait_until_idle().await;
    assert!(attachments(&cluster).is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_is_out_of_service_has_nothing_attached() {
    let cluster = with_one_attached().await;
    cluster.remove::<Pod>("ns", "p");
    cluster.edit_status::<Node>("", "a", |n| n["status"]["conditions"] = json!([]));
    cluster.advance(Duration::from_secs(350)).await;
    assert_eq!(attachments(&cluster), ["vv on a"]);
    cluster.edit::<Node>("", "a", |n| {
        n["spec"]["taints"] = json!([{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]);
    });
    cluster.wait_until_idle().await;
    assert!(attachments(&cluster).is_empty() && reported(&cluster, "a").is_empty());
    // And so has what is gone.
    let cluster = with_one_attached().await;
    cluster.remove::<Node>("", "a");
    cluster.remove::<Pod>("ns", "p");
    cluster.wait_until_idle().await;
    assert!(attachments(&cluster).is_empty());
}

#[tokio::test(start_paused = true)]
async fn drivers_may_need_no_attaching() {
    let cluster = Cluster::new();
    node(&cluster, "a");
    node(&cluster, "b");
    cluster.put(
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": "d.io"},
                       "spec": {"attachRequired": false}}),
    );
    bound(&cluster, "v", "ReadWriteMany");
    pod(&cluster, "p", "a", "v");
    pod(&cluster, "q", "b", "v");
    // Not ours: another's name, and a volume that nobody knows.
    let foreign = json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": "x"},
        "spec": {"attacher": "d.io", "nodeName": "a", "source": {"persistentVolumeName": "vv"}}});
    cluster.put(foreign);
    cluster.run(&[&DEF]);
    cluster.wait_until_idle().await;
    assert_eq!(attachments(&cluster), ["vv on a"]);
    cluster.edit::<CsiDriver>("", "d.io", |d| d["spec"]["attachRequired"] = json!(true));
    cluster.wait_until_idle().await;
    assert_eq!(attachments(&cluster), ["vv on a", "vv on a", "vv on b"]);
    // What a driver complains of, its pods hear.
    let id = plan::attachment_name(&cluster.get::<PersistentVolume>("", "vv").unwrap(), "b").unwrap();
    cluster.edit_status::<VolumeAttachment>("", &id, |a| {
        a["status"] = json!({"attachError": {"message": "no room"}})
    });
    cluster.wait_until_idle().await;
    let said = "Warning FailedAttachVolume AttachVolume.Attach failed for volume \"vv\" : no room".to_string();
    assert!(cluster.events().contains(&said), "{:?}", cluster.events());
    cluster.remove::<Pod>("ns", "p");
    cluster.remove::<Pod>("ns", "q");
    cluster.wait_until_idle().await;
    assert_eq!(attachments(&cluster), ["vv on a"]);
}

#[tokio::test(start_paused = true)]
async fn being_killed_at_any_write_loses_nothing() {
    for writes in 1..6 {
        let cluster = with_one_attached().await;
        bound(&cluster, "w", "ReadWriteOnce");
        cluster.kill_after_writes(writes);
        pod(&cluster, "q", "a", "w");
        cluster.remove::<Pod>("ns", "p");
        in_use(&cluster, "a", json!([]));
        cluster.wait_until_idle().await;
        attach_all(&cluster);
        cluster.wait_until_idle().await;
        assert_eq!(attachments(&cluster), ["vw on a"], "killed after {writes} writes");
        assert_eq!(reported(&cluster, "a"), ["kubernetes.io/csi/d.io^h-w"]);
    }
}
