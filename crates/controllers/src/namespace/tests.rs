use std::time::Duration;

use jiff::Timestamp;
use orlop_client::{DeleteOptions, path};
use serde_json::{Value, json};

use super::DEF;
use super::plan::*;
use crate::discovery::Resource;
use crate::discovery::fake;
use crate::objects::{Condition, Namespace, Pod};
use crate::settings::Settings;
use crate::testing::{Cluster, Faults, Nodes};

fn resource(api_version: &str, name: &str) -> Resource {
    Resource {
        api_version: api_version.into(),
        name: name.into(),
        kind: String::new(),
        namespaced: true,
        verbs: vec![],
        preferred: true,
    }
}

fn held(object: Value) -> Held {
    serde_json::from_value(object).unwrap()
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

#[test]
fn pods_take_as_long_as_they_say() {
    let pods = [
        held(json!({"spec": {"terminationGracePeriodSeconds": 20}, "status": {"phase": "Running"}})),
        held(json!({"spec": {"terminationGracePeriodSeconds": 40}})),
        held(json!({"spec": {"terminationGracePeriodSeconds": 999}, "status": {"phase": "Succeeded"}})),
    ];
    let deleted = at("2026-01-01T00:00:00Z");
    for (now, expected) in [("00:00:00", 40), ("00:00:39", 40), ("00:00:40", 0), ("00:10:00", 0)] {
        let now = at(&format!("2026-01-01T{now}Z"));
        assert_eq!(grace_seconds(&pods, deleted, now), expected, "{now}");
    }
    assert_eq!(grace_seconds(&[], deleted, deleted), 0);
}

#[test]
fn leftovers_say_why_they_are_there() {
    let (pods, sets) = (resource("v1", "pods"), resource("apps/v1", "replicasets"));
    let plain = held(json!({}));
    let kept = held(json!({"metadata": {"finalizers": ["a", "b"]}, "status": {"phase": {"odd": 1}}}));
    assert_eq!(left("ns", &pods, &[], 30), None);
    let ending = left("ns", &pods, &[plain.clone(), plain.clone()], 30).unwrap();
    assert_eq!((ending.count, ending.estimate, ending.error), (2, 30, None));
    let held = left("ns", &sets, &[kept.clone(), kept, plain.clone()], 0).unwrap();
    assert_eq!((held.count, held.estimate, &held.error), (3, 15, &None));
    assert_eq!(held.finalizers, [("a".to_string(), 2), ("b".to_string(), 2)].into());
    let odd = left("ns", &sets, &[plain], 0).unwrap();
    let why = "unexpected items still remain in namespace: ns for gvr: apps/v1, Resource=replicasets";
    assert_eq!(odd.error.as_deref(), Some(why));
    let report = |left: Vec<Left>| Report {
        left: left.into_iter().map(|left| (sets.clone(), left)).collect(),
        ..Report::default()
    };
    assert_eq!(report(vec![held.clone(), odd.clone()]).look_after_seconds(), 8);
    assert_eq!(report(vec![odd]).look_after_seconds(), 15);
    let long = Left { estimate: 9000, ..held };
    assert_eq!(report(vec![long]).look_after_seconds(), 60);
}

#[test]
fn conditions_tell_how_it_stands() {
    let left = |count, finalizers: &[(&str, usize)], error: Option<&str>| Left {
        count,
        finalizers: finalizers.iter().map(|(f, n)| (f.to_string(), *n)).collect(),
        estimate: 15,
        error: error.map(String::from),
    };
    let report = Report {
        discovery: Some("Discovery failed for some groups, 1 failing: …".into()),
        left: vec![
            (resource("v1", "pods"), left(2, &[("x/y", 2)], None)),
            (
                resource("apps/v1", "replicasets"),
                left(1, &[("x/y", 1), ("a/b", 1)], None),
            ),
            (resource("batch/v1", "jobs"), left(0, &[], Some("no way"))),
        ],
    };
    let (first, later) = (at("2026-01-01T00:00:00Z"), at("2026-01-01T00:01:00Z"));
    let other = Condition {
        r#type: "Other".into(),
        ..Condition::default()
    };
    let told = conditions(std::slice::from_ref(&other), &report, first);
    let text = |all: &[Condition]| -> Vec<String> {
        let line = |c: &Condition| format!("{} {} {}: {}", c.r#type, c.status, c.reason, c.message);
        all.iter().map(line).collect()
    };
    let expected = [
        "Other  : ",
        "NamespaceDeletionDiscoveryFailure True DiscoveryFailed: Discovery failed for some groups, 1 failing: …",
        "NamespaceDeletionGroupVersionParsingFailure False ParsedGroupVersions: All legacy kube types successfully parsed",
        "NamespaceDeletionContentFailure True ContentDeletionFailed: Failed to delete all resource types, 1 remaining: no way",
        "NamespaceContentRemaining True SomeResourcesRemain: Some resources are remaining: pods. has 2 resource instances, replicasets.apps has 1 resource instances",
        "NamespaceFinalizersRemaining True SomeFinalizersRemain: Some content in the namespace has finalizers remaining: a/b in 1 resource instances, x/y in 3 resource instances",
    ];
    assert_eq!(text(&told), expected);
    assert_eq!(conditions(&told, &report, later), told, "nothing new: nothing to write");
    let well = conditions(&told, &Report::default(), later);
    let expected = [
        "Other  : ",
        "NamespaceDeletionDiscoveryFailure False ResourcesDiscovered: All resources successfully discovered",
        "NamespaceDeletionGroupVersionParsingFailure False ParsedGroupVersions: All legacy kube types successfully parsed",
        "NamespaceDeletionContentFailure False ContentDeleted: All content successfully deleted, may be waiting on finalization",
        "NamespaceContentRemaining False ContentRemoved: All content successfully removed",
        "NamespaceFinalizersRemaining False ContentHasNoFinalizers: All content-preserving finalizers finished",
    ];
    assert_eq!(text(&well), expected);
    let since: Vec<_> = well.iter().map(|c| c.last_transition_time).collect();
    assert_eq!(
        since,
        [None, Some(later), Some(first), Some(later), Some(later), Some(later)]
    );
}

// ---- With an API server.

fn cluster(seed: u64, names: &[&str]) -> Cluster {
    let cluster = Cluster::seeded(seed);
    cluster.hook(|call, _| fake::answer(&call.path, fake::USUAL).map(Ok));
    for name in names {
        cluster.put(
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name},
            "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}),
        );
        for n in 0..3 {
            cluster.put(object("Pod", name, n, json!({"spec": {"nodeName": "node-0"}})));
            cluster.put(object("ConfigMap", name, n, json!({})));
        }
    }
    cluster
}

fn object(kind: &str, namespace: &str, n: usize, more: Value) -> Value {
    let mut object = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": format!("{kind}-{n}").to_lowercase(),
        "namespace": namespace}, "spec": {}});
    json_patch::merge(&mut object, &more);
    object
}

fn quick() -> Settings {
    Settings {
        namespace_deletion_delay: Duration::ZERO,
        ..Settings::default()
    }
}

async fn count(cluster: &Cluster, resource: &str, namespace: &str) -> usize {
    let collection = path::collection("v1", Some(namespace), resource);
    let (api, query) = (cluster.api(), Default::default());
    api.list::<Value>(&collection, &query).await.unwrap().items.len()
}

#[tokio::test(start_paused = true)]
async fn pods_go_first_then_the_rest_then_the_namespace() {
    let cluster = cluster(1, &["one", "two"]);
    cluster.nodes(Nodes::new(1));
    cluster.change_nodes(|nodes| nodes.stop_after = Duration::from_secs(8));
    cluster.run_with(&[&DEF], quick());
    cluster.wait_until_idle().await;
    cluster.delete::<Namespace>("", "one");
    cluster.advance(Duration::from_secs(2)).await;
    let namespace = cluster.get::<Namespace>("", "one").expect("its pods are still there");
    let remaining = namespace
        .status
        .conditions
        .iter()
        .find(|c| c.r#type == "NamespaceContentRemaining");
    let told = "Some resources are remaining: pods. has 3 resource instances";
    assert_eq!(remaining.map(|c| c.message.as_str()), Some(told));
    assert_eq!(count(&cluster, "configmaps", "one").await, 3, "only after the pods");
    // Long before it would look again: the end of the last pod is heard of.
    cluster.advance(Duration::from_secs(6)).await;
    assert!(cluster.get::<Namespace>("", "one").is_none());
    assert_eq!(count(&cluster, "configmaps", "one").await, 0);
    assert_eq!(
        (
            count(&cluster, "configmaps", "two").await,
            cluster.list::<Pod>("two").len()
        ),
        (3, 3)
    );
}

#[tokio::test(start_paused = true)]
async fn finalizers_hold_it_and_are_named() {
    let cluster = cluster(1, &["ns"]);
    cluster.nodes(Nodes::new(1));
    cluster.put(object(
        "ConfigMap",
        "ns",
        7,
        json!({"metadata": {"finalizers": ["example.com/hold"]}}),
    ));
    cluster.run(&[&DEF]);
    cluster.wait_until_idle().await;
    cluster.delete::<Namespace>("", "ns");
    cluster.advance(Duration::from_secs(2)).await;
    assert_eq!(count(&cluster, "configmaps", "ns").await, 4, "left alone at first");
    cluster.advance(Duration::from_secs(200)).await;
    assert_eq!(count(&cluster, "configmaps", "ns").await, 1);
    let told = |cluster: &Cluster| -> Vec<String> {
        let namespace = cluster.get::<Namespace>("", "ns").unwrap();
        let holds = namespace.status.conditions.iter().filter(|c| c.is_true());
        holds.map(|c| c.message.clone()).collect()
    };
    let expected = [
        "Some resources are remaining: configmaps. has 1 resource instances",
        "Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances",
    ];
    assert_eq!(told(&cluster), expected);
    let writes = cluster.writes().len();
    cluster.advance(Duration::from_secs(300)).await;
    assert_eq!(cluster.writes().len(), writes, "nothing changes, nothing is written");
    let api = cluster.api();
    let path = path::object("v1", Some("ns"), "configmaps", "configmap-7");
    let patch = json!({"metadata": {"finalizers": null}});
    api.patch_merge::<Value>(&path, &patch).await.unwrap();
    let _ = api.delete(&path, &DeleteOptions::default()).await;
    cluster.wait_until_idle().await;
    assert!(cluster.get::<Namespace>("", "ns").is_none());
}

#[tokio::test(start_paused = true)]
async fn faults_and_restarts() {
    for seed in 0..12 {
        let cluster = cluster(seed, &["one", "two"]);
        cluster.nodes(Nodes::new(1));
        cluster.faults(Faults {
            one_in: 6,
            lag_max: Duration::from_millis(300),
            break_one_in: 20,
        });
        cluster.run_with(&[&DEF], quick());
        cluster.kill_after_writes(1 + seed as u32 % 4);
        cluster.delete::<Namespace>("", "one");
        cluster.advance(Duration::from_secs(120)).await;
        cluster.calm().await;
        assert!(cluster.get::<Namespace>("", "one").is_none(), "seed {seed}");
        assert_eq!(
            count(&cluster, "configmaps", "one").await + cluster.list::<Pod>("one").len(),
            0
        );
        assert_eq!(
            count(&cluster, "configmaps", "two").await + cluster.list::<Pod>("two").len(),
            6
        );
    }
}
