//! The controller on an API server in memory.

use std::time::Duration;

use serde_json::{Value, json};

use super::DEF;
use crate::objects::{ControllerRevision, PersistentVolumeClaim, Pod, StatefulSet};
use crate::testing::{Cluster, Faults, Nodes};

fn stateful_set(replicas: u32) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "web", "namespace": "ns"},
        "spec": {
            "replicas": replicas, "serviceName": "nginx", "selector": {"matchLabels": {"app": "web"}},
            "podManagementPolicy": "OrderedReady", "revisionHistoryLimit": 2,
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
            "persistentVolumeClaimRetentionPolicy": {"whenScaled": "Retain", "whenDeleted": "Retain"},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "a", "image": "one"}]}},
            "volumeClaimTemplates": [{"metadata": {"name": "www"}, "spec": {"accessModes": ["ReadWriteOnce"]}}],
        },
    })
}

fn cluster(seed: u64, set: Value) -> Cluster {
    let cluster = Cluster::seeded(seed);
    cluster.nodes(Nodes::new(2));
    cluster.put(set);
    cluster
}

fn edit(cluster: &Cluster, change: impl FnOnce(&mut Value)) {
    assert!(cluster.edit::<StatefulSet>("ns", "web", |set| change(&mut set["spec"])));
}

fn set_image(cluster: &Cluster, image: &str) {
    edit(cluster, |spec| {
        spec["template"]["spec"]["containers"][0]["image"] = json!(image)
    });
}

/// `web-0=one web-1=two`
fn pods(cluster: &Cluster) -> String {
    let pods = cluster.values::<Pod>("ns");
    let line = |pod: &Value| {
        let (name, image) = (&pod["metadata"]["name"], &pod["spec"]["containers"][0]["image"]);
        format!("{}={}", name.as_str().unwrap(), image.as_str().unwrap())
    };
    pods.iter().map(|pod| line(pod)).collect::<Vec<_>>().join(" ")
}

fn claims(cluster: &Cluster) -> Vec<PersistentVolumeClaim> {
    cluster.list("ns")
}

fn status(cluster: &Cluster) -> crate::objects::stateful_set::StatefulSetStatus {
    cluster.get::<StatefulSet>("ns", "web").unwrap().status
}

#[tokio::test(start_paused = true)]
async fn pods_come_and_go_in_order() {
    let cluster = cluster(1, stateful_set(3));
    cluster.run(&[&DEF]);
    cluster.wait_until_idle().await;
    assert_eq!(pods(&cluster), "web-0=one web-1=one web-2=one");
    let names: Vec<String> = claims(&cluster).into_iter().map(|c| c.metadata.name).collect();
    assert_eq!(names, ["www-web-0", "www-web-1", "www-web-2"]);
    let now = status(&cluster);
    assert_eq!((now.replicas, now.ready_replicas, now.available_replicas), (3, 3, 3));
    assert_eq!(
        (now.current_replicas, now.updated_replicas, now.collision_count),
        (3, 3, Some(0))
    );
    assert_eq!(
        now.current_revision,
        cluster.list::<ControllerRevision>("ns")[0].metadata.name
    );
    edit(&cluster, |spec| spec["replicas"] = json!(1));
    cluster.wait_until_idle().await;
    assert_eq!((pods(&cluster).as_str(), claims(&cluster).len()), ("web-0=one", 3));
    let events = cluster.events();
    let pods: Vec<&str> = events
        .iter()
        .filter_map(|e| e.split_once("Pod web-"))
        .map(|(_, rest)| rest)
        .collect();
    let end = " in StatefulSet web success";
    let wanted = ["0", "0ful", "1", "1ful", "2", "2ful", "2ful", "1ful"].map(|w| match w.strip_suffix("ful") {
        Some(n) => format!("{n}{end}ful"),
        None => format!("{w}{end}"),
    });
    assert_eq!(pods, wanted);
}

#[tokio::test(start_paused = true)]
async fn updates_go_down_to_the_partition_and_back() {
    let cluster = cluster(2, stateful_set(3));
    cluster.run(&[&DEF]);
    cluster.wait_until_idle().await;
    edit(&cluster, |spec| {
        spec["updateStrategy"]["rollingUpdate"]["partition"] = json!(2)
    });
    set_image(&cluster, "two");
    cluster.wait_until_idle().await;
    assert_eq!(pods(&cluster), "web-0=one web-1=one web-2=two");
    let now = status(&cluster);
    assert_eq!((now.current_replicas, now.updated_replicas), (2, 1));
    assert_ne!(now.current_revision, now.update_revision);
    // A pod below the partition comes back as it was.
    cluster.delete::<Pod>("ns", "web-0");
    cluster.wait_until_idle().await;
    assert_eq!(pods(&cluster), "web-0=one web-1=one web-2=two");
    edit(&cluster, |spec| {
        spec["updateStrategy"]["rollingUpdate"]["partition"] = json!(0)
    });
    cluster.wait_until_idle().await;
    assert_eq!(pods(&cluster), "web-0=two web-1=two web-2=two");
    let now = status(&cluster);
    assert_eq!((now.current_replicas, now.updated_replicas), (3, 3));
    assert_eq!(now.current_revision, now.update_revision);
    set_image(&cluster, "one");
    cluster.wait_until_idle().await;
    assert_eq!(pods(&cluster), "web-0=one web-1=one web-2=one");
    let mut numbers: Vec<i64> = cluster
        .list::<ControllerRevision>("ns")
        .iter()
        .map(|r| r.revision)
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [2, 3], "the first revision is the third now");
}

#[tokio::test(start_paused = true)]
async fn claims_have_the_owners_that_the_policy_wants() {
    let mut set = stateful_set(2);
    set["spec"]["persistentVolumeClaimRetentionPolicy"] = json!({"whenScaled": "Delete", "whenDeleted": "Delete"});
    let cluster = cluster(3, set);
    cluster.run(&[&DEF]);
    cluster.wait_until_idle().await;
    let owners = |cluster: &Cluster| -> Vec<String> {
        let owner = |c: &PersistentVolumeClaim| c.metadata.controller().map_or(String::new(), |o| o.kind.clone());
        claims(cluster).iter().map(owner).collect()
    };
    assert_eq!(owners(&cluster), ["StatefulSet", "StatefulSet"]);
    let old: Pod = cluster.get("ns", "web-1").unwrap();
    edit(&cluster, |spec| spec["replicas"] = json!(1));
    cluster.wait_until_idle().await;
    assert_eq!(owners(&cluster), ["StatefulSet", "Pod"]);
    assert_eq!(claims(&cluster)[1].metadata.controller().unwrap().uid, old.metadata.uid);
    // While the old claim is still there (the garbage collector has it), there is no new pod; then there is.
    edit(&cluster, |spec| spec["replicas"] = json!(2));
    cluster.wait_until_idle().await;
    assert_eq!(pods(&cluster), "web-0=one");
    assert!(cluster.remove::<PersistentVolumeClaim>("ns", "www-web-1"));
    cluster.wait_until_idle().await;
    assert_eq!(
        (pods(&cluster).as_str(), owners(&cluster).len()),
        ("web-0=one web-1=one", 2)
    );
    edit(&cluster, |spec| {
        spec["persistentVolumeClaimRetentionPolicy"] = json!({"whenScaled": "Retain", "whenDeleted": "Retain"})
    });
    cluster.wait_until_idle().await;
    assert_eq!(owners(&cluster), ["", ""]);
}

#[tokio::test(start_paused = true)]
async fn only_pods_of_its_name_are_taken() {
    let cluster = cluster(4, stateful_set(1));
    let pod = |name: &str, labels: Value| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "ns", "labels": labels},
               "spec": {"containers": [{"name": "a", "image": "mine"}]}})
    };
    cluster.put(pod("stranger", json!({"app": "web"})));
    cluster.put(pod("web-7", json!({"app": "other"})));
    cluster.put(pod("web-5", json!({"app": "web"})));
    cluster.run(&[&DEF]);
    cluster.wait_until_idle().await;
    // One is taken, and as there is no place for it, deleted.
    assert_eq!(pods(&cluster), "stranger=mine web-0=one web-7=mine");
    let stranger: Pod = cluster.get("ns", "stranger").unwrap();
    assert!(stranger.metadata.owner_references.is_empty());
}

#[tokio::test(start_paused = true)]
async fn failed_pods_come_back_and_available_takes_its_time() {
    let mut set = stateful_set(2);
    set["spec"]["minReadySeconds"] = json!(10);
    let cluster = cluster(5, set);
    cluster.run(&[&DEF]);
    cluster.wait_until_idle().await;
    assert_eq!(
        (pods(&cluster).as_str(), status(&cluster).available_replicas),
        ("web-0=one", 0)
    );
    cluster.advance(Duration::from_secs(30)).await;
    assert_eq!(
        (pods(&cluster).as_str(), status(&cluster).available_replicas),
        ("web-0=one web-1=one", 2)
    );
    let before: Pod = cluster.get("ns", "web-0").unwrap();
    cluster.edit_status::<Pod>("ns", "web-0", |pod| pod["status"]["phase"] = json!("Failed"));
    cluster.wait_until_idle().await;
    let after: Pod = cluster.get("ns", "web-0").unwrap();
    assert_ne!(before.metadata.uid, after.metadata.uid);
}

#[tokio::test(start_paused = true)]
async fn with_faults_and_restarts_they_come_to_the_same_end() {
    for seed in 0..16 {
        let mut set = stateful_set(4);
        if seed % 2 == 0 {
            set["spec"]["podManagementPolicy"] = json!("Parallel");
        }
        let cluster = cluster(seed, set);
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
        edit(&cluster, |spec| spec["replicas"] = json!(3));
        cluster.wait_until_idle().await;
        cluster.calm().await;
        assert_eq!(pods(&cluster), "web-0=two web-1=two web-2=two", "seed {seed}");
        assert_eq!(status(&cluster).updated_replicas, 3, "seed {seed}");
    }
}
