use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};

use super::DEF;
use super::graph::{Graph, Marks, News, PartialObject};
use super::plan::{Decision, Item, OwnerState, Plan, Policy, decide, plan};
use crate::discovery::fake::{self, Served};
use crate::objects::{Kind, Meta, Node, Pod, ReplicaSet};
use crate::testing::{Cluster, Faults, Nodes, Refusal};

#[derive(Deserialize)]
struct ConfigMap {
    metadata: Meta,
}

impl Kind for ConfigMap {
    const API_VERSION: &'static str = "v1";
    const KIND: &'static str = "ConfigMap";
    const RESOURCE: &'static str = "configmaps";

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

// ---- Deciding.

fn item(owners: &[&str], has_dependents: bool, marks: Marks) -> Item {
    let references: Vec<Value> = owners
        .iter()
        .map(|uid| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": uid, "uid": uid}))
        .collect();
    let seen = json!({"metadata": {"name": "it", "namespace": "ns", "uid": "it", "resourceVersion": "5",
        "ownerReferences": references}});
    let seen: PartialObject = serde_json::from_value(seen).unwrap();
    let mut graph = Graph::default();
    let ty = graph.ty("v1", "ConfigMap");
    graph.observe(&ty, &seen, &mut News::default());
    match plan(&graph, "it") {
        Plan::Judge(item, _) => Item {
            has_dependents,
            marks,
            ..item
        },
        other => panic!("{other:?}"),
    }
}

#[test]
fn owners_decide() {
    use OwnerState::*;
    let plain = Marks::default();
    let orphan = Marks { orphan: true, ..plain };
    let foreground = Marks {
        foreground: true,
        ..plain
    };
    let loosen = |uids: &[&str]| Decision::Loosen(uids.iter().map(|uid| Arc::from(*uid)).collect());
    let cases = [
        ("one is there", vec![Solid], false, plain, Decision::Keep),
        (
            "nobody is",
            vec![Dangling],
            false,
            plain,
            Decision::Delete(Policy::Background),
        ),
        ("one of two is", vec![Solid, Dangling], true, plain, loosen(&["b"])),
        ("one is, one waits", vec![Waiting, Solid], true, plain, loosen(&["a"])),
        (
            "one waits for a leaf",
            vec![Waiting],
            false,
            plain,
            Decision::Delete(Policy::Background),
        ),
        (
            "one waits for a branch",
            vec![Waiting],
            true,
            plain,
            Decision::Delete(Policy::Foreground),
        ),
        (
            "one waits, one is gone",
            vec![Waiting, Dangling],
            true,
            plain,
            Decision::Delete(Policy::Foreground),
        ),
        (
            "it wants to orphan",
            vec![Dangling],
            true,
            orphan,
            Decision::Delete(Policy::Orphan),
        ),
        (
            "it wants to wait",
            vec![Dangling],
            true,
            foreground,
            Decision::Delete(Policy::Foreground),
        ),
        ("nobody knows", vec![Dangling, Unsure], false, plain, Decision::Keep),
    ];
    for (name, verdicts, has_dependents, marks, expected) in cases {
        let owners = &["a", "b"][..verdicts.len()];
        assert_eq!(
            decide(&item(owners, has_dependents, marks), &verdicts),
            expected,
            "{name}"
        );
    }
}

#[test]
fn a_hundred_thousand_objects_are_cheap() {
    let mut graph = Graph::default();
    let (sets, pods) = (graph.ty("apps/v1", "ReplicaSet"), graph.ty("v1", "Pod"));
    let mut news = News::default();
    let uid = |n: u32| format!("{n:08}-0000-4000-8000-000000000000");
    let seen = |n: u32, owner: Option<u32>| -> PartialObject {
        let owner = owner.map(|o| {
            json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("set-{o}"),
            "uid": uid(o), "controller": true, "blockOwnerDeletion": true})
        });
        let owners: Vec<Value> = owner.into_iter().collect();
        serde_json::from_value(
            json!({"metadata": {"name": format!("set-{n}"), "namespace": "ns", "uid": uid(n),
            "resourceVersion": "1", "ownerReferences": owners}}),
        )
        .unwrap()
    };
    for set in 0..100 {
        graph.observe(&sets, &seen(set, None), &mut news);
    }
    for pod in 100..100_000 {
        graph.observe(&pods, &seen(pod, Some(pod % 100)), &mut news);
    }
    assert_eq!(
        (graph.len(), news),
        (100_000, News::default()),
        "all owners are there: nobody has anything to do"
    );
    // A change that is none wakes nobody; an owner that goes wakes its own alone.
    let mut news = News::default();
    graph.observe(&pods, &seen(777, Some(77)), &mut news);
    assert_eq!(news, News::default());
    graph.remove(&sets, &uid(77), &mut news);
    assert_eq!(news.wake.len(), 999);
    assert!(matches!(plan(&graph, &news.wake[0]), Plan::Judge(_, verdicts) if verdicts == [OwnerState::Dangling]));
}

// ---- With an API server.

fn cluster(seed: u64) -> (Cluster, Arc<Mutex<Vec<Served>>>) {
    let cluster = Cluster::seeded(seed);
    let served = Arc::new(Mutex::new(fake::USUAL.to_vec()));
    let known = served.clone();
    cluster.hook(move |call, _| {
        // As for custom resources: the other kind of patch is next.
        if call.content_type.contains("strategic") {
            return Some(Err(Refusal::new(415, "UnsupportedMediaType", "no such patch here")));
        }
        fake::answer(&call.path, &known.lock()).map(Ok)
    });
    (cluster, served)
}

fn owned(kind: &str, name: &str, owners: &[&Value]) -> Value {
    let references: Vec<Value> = owners
        .iter()
        .map(|owner| {
            let meta = &owner["metadata"];
            json!({"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": meta["name"], "uid": meta["uid"],
                "controller": true, "blockOwnerDeletion": true})
        })
        .collect();
    let api_version = if matches!(kind, "ReplicaSet" | "Deployment") {
        "apps/v1"
    } else {
        "v1"
    };
    json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name, "namespace": "ns",
        "ownerReferences": references}, "spec": {}})
}

/// A set, two pods of its own on a node, and a config map of the second pod's.
fn family(cluster: &Cluster) -> Value {
    let set = cluster.put(owned("ReplicaSet", "set", &[]));
    for name in ["one", "two"] {
        let mut pod = owned("Pod", name, &[&set]);
        pod["spec"] = json!({"nodeName": "node-0", "terminationGracePeriodSeconds": 30});
        let pod = cluster.put(pod);
        cluster.put(owned("ConfigMap", name, &[&pod]));
    }
    set
}

async fn after(policy: &str) -> (Cluster, Vec<String>) {
    let (cluster, _) = cluster(1);
    family(&cluster);
    cluster.nodes(Nodes::new(1));
    cluster.change_nodes(|nodes| nodes.stop_after = Duration::from_secs(2));
    cluster.run(&[&DEF]);
    cluster.wait_until_idle().await;
    assert_eq!(cluster.writes(), [""; 0], "nothing to collect yet");
    cluster.delete_with::<ReplicaSet>("ns", "set", json!({"propagationPolicy": policy}));
    cluster.advance(Duration::from_secs(5)).await;
    let all = cluster.writes();
    let writes = all
        .iter()
        .map(|line| {
            line.replace("generic-garbage-collector ", "")
                .replace("/namespaces/ns", "")
        })
        .collect();
    (cluster, writes)
}

#[tokio::test(start_paused = true)]
async fn in_the_background_dependents_go_last() {
    let (cluster, mut writes) = after("Background").await;
    assert!(cluster.list::<Pod>("").is_empty() && cluster.list::<ConfigMap>("").is_empty());
    writes.sort();
    let expected = [
        "DELETE /api/v1/configmaps/one 200",
        "DELETE /api/v1/configmaps/two 200",
        "DELETE /api/v1/pods/one 200",
        "DELETE /api/v1/pods/two 200",
    ];
    assert_eq!(writes, expected, "one request each");
}

#[tokio::test(start_paused = true)]
async fn in_the_foreground_the_owner_goes_last() {
    let (cluster, writes) = after("Foreground").await;
    assert!(cluster.list::<Pod>("").is_empty() && cluster.list::<ConfigMap>("").is_empty());
    assert!(cluster.list::<ReplicaSet>("").is_empty());
    assert_eq!(writes.last().unwrap(), "PATCH /apis/apps/v1/replicasets/set 200");
    let at = |line: &str| writes.iter().position(|write| write == line);
    // The pods have dependents of their own, so they wait, too.
    assert!(
        at("DELETE /api/v1/configmaps/two 200") < at("PATCH /api/v1/pods/two 200"),
        "{writes:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn orphans_stay() {
    let (cluster, _) = after("Orphan").await;
    assert!(cluster.list::<ReplicaSet>("").is_empty());
    let pods = cluster.list::<Pod>("ns");
    assert!(pods.len() == 2 && pods.iter().all(|pod| pod.metadata.owner_references.is_empty()));
    assert_eq!(cluster.list::<ConfigMap>("ns").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn wrong_references() {
    let (cluster, _) = cluster(1);
    let mut far = owned("ConfigMap", "far", &[]);
    far["metadata"]["namespace"] = "elsewhere".into();
    let far = cluster.put(far);
    let there = cluster.put(owned("ConfigMap", "there", &[]));
    cluster.put(owned("ConfigMap", "beyond", &[&far]));
    cluster.put(owned("ConfigMap", "both", &[&far, &there]));
    let mut of_nobody = there.clone();
    of_nobody["metadata"]["uid"] = "00000000-no-such".into();
    cluster.put(owned("ConfigMap", "of-nobody", &[&of_nobody]));
    let mut of_unknown = there.clone();
    of_unknown["kind"] = "Mystery".into();
    cluster.put(owned("ConfigMap", "of-unknown", &[&of_unknown]));
    let mut node = owned("Node", "node", &[&there]);
    node["metadata"]["namespace"] = "".into();
    cluster.put(node);
    cluster.run(&[&DEF]);
    cluster.advance(Duration::from_secs(60)).await;
    let names: Vec<String> = cluster
        .list::<ConfigMap>("")
        .into_iter()
        .map(|c| c.metadata.name)
        .collect();
    assert_eq!(names, ["far", "both", "of-unknown", "there"]);
    let both = cluster.get::<ConfigMap>("ns", "both").unwrap();
    let owners: Vec<&str> = both.metadata.owner_references.iter().map(|o| o.name.as_str()).collect();
    assert_eq!(owners, ["there"], "what is wrong is taken away");
    assert!(
        cluster.get::<Node>("", "node").is_some(),
        "can't be judged, so it stays"
    );
    let uid = far["metadata"]["uid"].as_str().unwrap();
    let event = format!(
        "Warning OwnerRefInvalidNamespace ownerRef [v1/ConfigMap, namespace: ns, name: far, uid: {uid}] does not exist in namespace \"ns\""
    );
    assert!(cluster.events().contains(&event), "{:?}", cluster.events());
}

#[tokio::test(start_paused = true)]
async fn kinds_come_and_go() {
    let (cluster, served) = cluster(1);
    cluster.run(&[&DEF]);
    cluster.wait_until_idle().await;
    served.lock().push(("example.com/v1", "crons", "Cron", true));
    let mut cron = owned("Cron", "cron", &[]);
    cron["apiVersion"] = "example.com/v1".into();
    let cron = cluster.put(cron);
    cluster.put(owned("ConfigMap", "of-cron", &[&cron]));
    cluster.advance(Duration::from_secs(40)).await;
    assert_eq!(cluster.list::<ConfigMap>("").len(), 1, "its owner is there");
    // The kind goes: nobody can tell whether the owner is there.
    served.lock().pop();
    cluster.advance(Duration::from_secs(100)).await;
    assert_eq!(cluster.list::<ConfigMap>("").len(), 1);
    served.lock().push(("example.com/v1", "crons", "Cron", true));
    let api = cluster.api();
    let path = "/apis/example.com/v1/namespaces/ns/crons/cron";
    api.delete(path, &Default::default()).await.unwrap();
    cluster.advance(Duration::from_secs(1200)).await;
    assert_eq!(cluster.list::<ConfigMap>("").len(), 0);
}

/// Calls fail, watches lag and break, the collector is killed between two writes: what remains is what must.
#[tokio::test(start_paused = true)]
async fn faults_and_restarts() {
    for seed in 0..12 {
        for policy in ["Background", "Foreground", "Orphan"] {
            let (cluster, _) = cluster(seed);
            let set = family(&cluster);
            let other = cluster.put(owned("ReplicaSet", "other", &[]));
            cluster.put(owned("ConfigMap", "of-both", &[&set, &other]));
            cluster.put(owned("ConfigMap", "of-other", &[&other]));
            cluster.nodes(Nodes::new(1));
            cluster.faults(Faults {
                one_in: 5,
                lag_max: Duration::from_millis(300),
                break_one_in: 20,
            });
            cluster.run(&[&DEF]);
            cluster.kill_after_writes(1 + seed as u32 % 5);
            cluster.wait_until_idle().await;
            cluster.delete_with::<ReplicaSet>("ns", "set", json!({"propagationPolicy": policy}));
            cluster.advance(Duration::from_secs(90)).await;
            cluster.calm().await;
            let configs = cluster.list::<ConfigMap>("").into_iter();
            let names: Vec<String> = configs.map(|c| c.metadata.name).collect();
            let (pods, sets) = (cluster.list::<Pod>("").len(), cluster.list::<ReplicaSet>("").len());
            match policy {
                "Orphan" => assert_eq!((names.len(), pods), (4, 2), "seed {seed}, {policy}: {names:?}"),
                _ => assert_eq!(
                    (names, pods),
                    (vec!["of-both".into(), "of-other".into()], 0),
                    "seed {seed}, {policy}"
                ),
            }
            assert_eq!(sets, 1, "seed {seed}, {policy}");
            let both = cluster.get::<ConfigMap>("ns", "of-both").unwrap();
            assert_eq!(both.metadata.owner_references.len(), 1, "seed {seed}, {policy}");
        }
    }
}
