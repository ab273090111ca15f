use orlop_api::selector::Op;
use serde_json::Value;

use super::*;
use crate::persistent_volume;
use crate::settings::Settings;
use crate::testing::Cluster;

fn place() -> VolumeRoot {
    VolumeRoot {
        directory: PathBuf::from("/data/local-path"),
        node: Some("here".to_string()),
    }
}

#[test]
fn only_directories_that_were_made_here_are_removed() {
    let volume = |changes: Value| -> PersistentVolume {
        let mut object = json!({
            "metadata": {"name": "pvc-1", "annotations": {PROVISIONED_BY: PROVISIONER, plan::NODE: "here"}},
            "spec": {"hostPath": {"path": "/data/local-path/pvc-1_ns_c"}, "persistentVolumeReclaimPolicy": "Delete"},
            "status": {"phase": "Released"},
        });
        json_patch::merge(&mut object, &changes);
        serde_json::from_value(object).unwrap()
    };
    let path = |path: &str| json!({"spec": {"hostPath": {"path": path}}});
    let there = json!({"metadata": {"annotations": {plan::NODE: "there"}}});
    let mut deleted_there = there.clone();
    deleted_there["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let elsewhere = |node: &str| Reclaim::Elsewhere(node.to_string());
    let cases = [
        (json!({}), Reclaim::Remove(PathBuf::from("/data/local-path/pvc-1_ns_c"))),
        (json!({"status": {"phase": "Bound"}}), Reclaim::Nothing),
        (
            json!({"metadata": {"annotations": {PROVISIONED_BY: "x.io/p"}}}),
            Reclaim::Nothing,
        ),
        (
            json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}}),
            Reclaim::Nothing,
        ),
        (
            json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"},
                   "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
            Reclaim::LetGo,
        ),
        (there, elsewhere("there")),
        (deleted_there, Reclaim::LetGo),
        (path("/data/local-path"), elsewhere("here")),
        (path("/data/local-path/pvc-2_ns_c"), elsewhere("here")),
        (path("/data/local-path/../pvc-1_ns_c"), elsewhere("here")),
        (path("/data/local-path/pvc-1_/.."), elsewhere("here")),
        (path("/data/pvc-1_ns_c"), elsewhere("here")),
        (json!({"spec": {"hostPath": null}}), elsewhere("here")),
    ];
    for (changes, expected) in cases {
        assert_eq!(plan::reclaim(&volume(changes.clone()), &place()), expected, "{changes}");
    }
}

#[test]
fn what_directories_cannot_be() {
    let class = serde_json::from_value(plan::class("local-path", true)).unwrap();
    let node: Node = serde_json::from_value(json!({"metadata": {"name": "n"}})).unwrap();
    for spec in [
        json!({"volumeMode": "Block"}),
        json!({"selector": {"matchLabels": {}}}),
        json!({"dataSource": {"kind": "VolumeSnapshot", "name": "s"}}),
        json!({"volumeAttributesClassName": "gold"}),
    ] {
        let claim = serde_json::from_value(json!({"spec": spec})).unwrap();
        let made = plan::volume(&claim, &class, "n", Some(&node), &place());
        assert!(matches!(made, Err(Refusal::Never(_))));
    }
    let claim = PersistentVolumeClaim::default();
    let made = plan::volume(&claim, &class, "n", None, &place());
    assert_eq!(made, Err(Refusal::NoNode("n".to_string())));
}

/// Makes a directory of its own below the system's, gone at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        Scratch(std::env::temp_dir().join(format!("orlop-local-path-{name}-{}", std::process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn start_in(cluster: &Cluster, directory: &Scratch) {
    let settings = Settings {
        local_path_dir: Some(directory.0.clone()),
        local_node: Some("here".to_string()),
        ..Settings::default()
    };
    cluster.run_with(&[&DEF, &persistent_volume::DEF], settings);
}

fn claim(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"namespace": "ns", "name": name},
           "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
           "status": {"phase": "Pending"}})
}

fn choose(cluster: &Cluster, name: &str, node: &str) {
    cluster.edit::<PersistentVolumeClaim>("ns", name, |claim| {
        claim["metadata"]["annotations"][SELECTED_NODE] = json!(node);
    });
}

#[tokio::test(start_paused = true)]
async fn a_claim_lives_and_dies() {
    let (cluster, scratch) = (Cluster::new(), Scratch::new("life"));
    for name in ["here", "there"] {
        let labels = json!({"kubernetes.io/hostname": format!("host-{name}")});
        cluster.put(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}));
    }
    cluster.put(claim("a"));
    cluster.put(claim("b"));
    start_in(&cluster, &scratch);
    cluster.wait_until_idle().await;
    let class = cluster.get::<StorageClass>("", "local-path").unwrap();
    assert!(class.is_default() && class.waits_for_consumer());
    let get = |name: &str| cluster.get::<PersistentVolumeClaim>("ns", name).unwrap();
    // It got the class after the fact, and waits.
    assert_eq!(
        (get("a").class(), get("a").status.phase.as_str()),
        ("local-path", "Pending")
    );
    choose(&cluster, "a", "here");
    choose(&cluster, "b", "there");
    cluster.wait_until_idle().await;
    let volume_of = |name: &str| {
        cluster
            .get::<PersistentVolume>("", &get(name).spec.volume_name)
            .unwrap()
    };
    let volume = volume_of("a");
    assert_eq!(
        (get("a").status.phase.as_str(), volume.status.phase.as_str()),
        ("Bound", "Bound")
    );
    let terms = volume.spec.node_affinity.required.as_ref().unwrap();
    let wanted = &terms.node_selector_terms[0].match_expressions[0].op;
    assert_eq!(*wanted, Op::In(vec!["host-here".to_string()]));
    let path = PathBuf::from(&volume.spec.host_path.as_ref().unwrap().path);
    assert!(path.starts_with(&scratch.0) && path.is_dir());
    let other = PathBuf::from(&volume_of("b").spec.host_path.unwrap().path);
    assert!(!other.exists());
    std::fs::write(path.join("data"), "x").unwrap();
    // The end.
    cluster.delete::<PersistentVolumeClaim>("ns", "a");
    cluster.delete::<PersistentVolumeClaim>("ns", "b");
    cluster.wait_until_idle().await;
    assert!(!path.exists());
    let left = cluster.list::<PersistentVolume>("");
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].status.phase, "Released");
    let events = cluster.events();
    let expected = format!(
        "Warning VolumeFailedDelete directory {} is on node there, which is not this machine: remove it there, then delete \
         the volume",
        other.display()
    );
    assert!(events.contains(&expected), "{events:?}");
    let expected = format!(
        "Normal ProvisioningSucceeded Successfully provisioned volume {}",
        volume.metadata.name
    );
    assert!(events.contains(&expected), "{events:?}");
    cluster.delete::<PersistentVolume>("", &left[0].metadata.name);
    cluster.wait_until_idle().await;
    assert!(cluster.list::<PersistentVolume>("").is_empty());
}

#[tokio::test(start_paused = true)]
async fn being_killed_at_any_write_loses_nothing() {
    for writes in 1..12 {
        let (cluster, scratch) = (Cluster::new(), Scratch::new(&format!("kill{writes}")));
        cluster.put(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "here"}}));
        cluster.put(claim("a"));
        choose(&cluster, "a", "here");
        start_in(&cluster, &scratch);
        cluster.kill_after_writes(writes);
        cluster.wait_until_idle().await;
        let bound = cluster.get::<PersistentVolumeClaim>("ns", "a").unwrap();
        assert_eq!(bound.status.phase, "Bound", "killed after {writes} writes");
        assert_eq!(cluster.list::<PersistentVolume>("").len(), 1);
        cluster.kill_after_writes(writes);
        cluster.delete::<PersistentVolumeClaim>("ns", "a");
        cluster.wait_until_idle().await;
        assert!(
            cluster.list::<PersistentVolume>("").is_empty(),
            "killed after {writes} writes"
        );
        assert_eq!(std::fs::read_dir(&scratch.0).unwrap().count(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_went_is_chosen_anew() {
    let (cluster, scratch) = (Cluster::new(), Scratch::new("gone"));
    cluster.put(
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "mine",
        "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}, "provisioner": "x.io/p"}),
    );
    let mut wants = claim("a");
    wants["spec"]["storageClassName"] = json!("local-path");
    cluster.put(wants);
    choose(&cluster, "a", "gone");
    start_in(&cluster, &scratch);
    cluster.wait_until_idle().await;
    let class = cluster.get::<StorageClass>("", "local-path").unwrap();
    assert!(!class.is_default());
    let claim = cluster.get::<PersistentVolumeClaim>("ns", "a").unwrap();
    assert_eq!(claim.selected_node(), None);
    let expected = "Warning ProvisioningFailed failed to get target node: node \"gone\" not found".to_string();
    assert!(cluster.events().contains(&expected), "{:?}", cluster.events());
}
