//! Plans in tables, then the controller on an API server in memory, together with the one of ReplicaSets.

use std::time::Duration;

use serde_json::{Value, json};

use super::sizes::{Sizes, plan_sizes};
use super::*;
use crate::objects::condition;
use crate::replica_set::REPLICA_SET;
use crate::testing::{Cluster, Nodes};

const NS: &str = "ns";

fn deployment(spec: Value) -> Value {
    let mut object = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": NS},
        "spec": {
            "replicas": 3, "progressDeadlineSeconds": 600, "revisionHistoryLimit": 10,
            "selector": {"matchLabels": {"app": "web"}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "a", "image": "one"}]}},
        },
    });
    json_patch::merge(&mut object["spec"], &spec);
    object
}

/// As `(told, there, available, annotated desired, annotated max)`.
type SetCounts = (i64, i64, i64, i64, i64);

fn set(name: &str, template: &str, (told, there, available, desired, max): SetCounts) -> Arc<ReplicaSet> {
    let value = json!({
        "metadata": {"name": name, "uid": name, "creationTimestamp": format!("2026-01-01T00:00:{:02}Z", name.len()),
                     "annotations": {history::DESIRED: desired.to_string(), history::MAX: max.to_string()}},
        "spec": {"replicas": told, "template": {"metadata": {"labels": {"app": "web"}},
                 "spec": {"containers": [{"name": "a", "image": template}]}}},
        "status": {"replicas": there, "availableReplicas": available},
    });
    Arc::new(serde_json::from_value(value).unwrap())
}

fn sizes_of(spec: Value, old: &[SetCounts], new: Option<SetCounts>, old_pods_run: bool) -> Sizes {
    let deployment: Deployment = serde_json::from_value(deployment(spec)).unwrap();
    let sets = Sets {
        new: new.map(|new| set("newest-set", "one", new)),
        old: old
            .iter()
            .enumerate()
            .map(|(n, seen)| set(&"o".repeat(4 + n), "old", *seen))
            .collect(),
    };
    plan_sizes(&deployment, &sets, old_pods_run)
}

#[test]
fn rolling_keeps_the_limits() {
    let limits = |replicas: i64, surge: Value, unavailable: Value| {
        json!({"replicas": replicas,
               "strategy": {"rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}})
    };
    let ten = limits(10, json!(3), json!(2));
    let three = limits(3, json!("25%"), json!("25%"));
    // Spec, old sets, the new one; expected sizes: of the new one, of the old ones.
    let cases: Vec<(&Value, Vec<SetCounts>, Option<SetCounts>, i64, Vec<i64>)> = vec![
        (&three, vec![], None, 3, vec![]),
        (&three, vec![(3, 3, 3, 3, 4)], None, 1, vec![3]),
        (&three, vec![(3, 3, 3, 3, 4)], Some((1, 1, 0, 3, 4)), 1, vec![3]),
        (&three, vec![(3, 3, 3, 3, 4)], Some((1, 1, 1, 3, 4)), 1, vec![2]),
        // Told to give up one, which is still there: no room yet.
        (&three, vec![(2, 3, 3, 3, 4)], Some((1, 1, 1, 3, 4)), 1, vec![2]),
        (&three, vec![(2, 2, 2, 3, 4)], Some((1, 1, 1, 3, 4)), 2, vec![2]),
        (&ten, vec![(10, 10, 10, 10, 13)], None, 3, vec![8]),
        (&ten, vec![(8, 8, 8, 10, 13)], Some((5, 5, 0, 10, 13)), 5, vec![8]),
        // The new ones never come up and an old one is lost: nothing more is given up.
        (&ten, vec![(8, 8, 7, 10, 13)], Some((5, 5, 0, 10, 13)), 5, vec![8]),
        // Undone: the ones that do not serve go first, and not more than can be spared.
        (&ten, vec![(5, 5, 0, 10, 13)], Some((8, 8, 7, 10, 13)), 8, vec![1]),
        // Two old sets, the older one serves, the other does not.
        (
            &ten,
            vec![(8, 8, 8, 10, 13), (5, 5, 0, 10, 13)],
            Some((0, 0, 0, 10, 13)),
            0,
            vec![8, 0],
        ),
        (&ten, vec![(0, 0, 0, 10, 13)], Some((13, 13, 13, 10, 13)), 10, vec![0]),
    ];
    for (spec, old, new, expected_new, expected_old) in cases {
        let sizes = sizes_of(spec.clone(), &old, new, true);
        let expected = (Some(expected_new), expected_old);
        assert_eq!((sizes.new, sizes.old), expected, "{spec} {old:?} {new:?}");
    }
}

#[test]
fn limits_that_come_to_nothing_let_one_be_missing() {
    for (replicas, surge, unavailable, expected) in [
        (2, json!("0%"), json!("1%"), (2, 1)),
        (1, json!("0%"), json!("1%"), (1, 0)),
        (2, json!("1%"), json!("25%"), (3, 2)),
        (1, json!("1%"), json!("0%"), (2, 1)),
        (3, json!(0), json!(9), (3, 0)),
        (0, json!(1), json!(0), (1, 0)),
    ] {
        let spec = json!({"replicas": replicas,
            "strategy": {"rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}});
        let d: Deployment = serde_json::from_value(deployment(spec)).unwrap();
        assert_eq!(
            (d.max_replicas(), d.min_available()),
            expected,
            "{replicas} {surge} {unavailable}"
        );
    }
}

#[test]
fn scaling_shares_by_size() {
    let spec = |replicas: i64, surge: i64, paused: bool| json!({"replicas": replicas, "paused": paused, "strategy": {"rollingUpdate": {"maxSurge": surge, "maxUnavailable": 2}}});
    let cases: Vec<(Value, Vec<SetCounts>, Option<SetCounts>, Option<i64>, Vec<i64>)> = vec![
        // One set: it gets all.
        (spec(5, 0, false), vec![], Some((3, 3, 3, 3, 3)), Some(5), vec![]),
        (spec(5, 0, true), vec![(3, 3, 3, 3, 3)], None, None, vec![5]),
        (
            spec(0, 0, true),
            vec![(3, 3, 3, 3, 3)],
            Some((0, 0, 0, 3, 3)),
            Some(0),
            vec![0],
        ),
        // None has pods: the new one, or the newest.
        (
            spec(4, 0, true),
            vec![(0, 0, 0, 0, 0), (0, 0, 0, 0, 0)],
            None,
            None,
            vec![0, 4],
        ),
        (spec(4, 0, true), vec![], None, None, vec![]),
        // In the middle of a rollout each keeps its part.
        (
            spec(15, 3, false),
            vec![(8, 8, 8, 10, 13)],
            Some((5, 5, 5, 10, 13)),
            Some(7),
            vec![11],
        ),
        (
            spec(5, 3, false),
            vec![(8, 8, 8, 10, 13)],
            Some((5, 5, 5, 10, 13)),
            Some(3),
            vec![5],
        ),
        (
            spec(0, 3, false),
            vec![(8, 8, 8, 10, 13)],
            Some((5, 5, 5, 10, 13)),
            Some(0),
            vec![0],
        ),
        // The one that serves is not given up for those that do not.
        (
            json!({"replicas": 1, "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}}),
            vec![(1, 1, 1, 8, 8)],
            Some((7, 7, 0, 8, 8)),
            Some(1),
            vec![1],
        ),
        // Equal sizes: newer ones grow first, older ones shrink first.
        (
            spec(11, 0, true),
            vec![(5, 5, 5, 10, 10)],
            Some((5, 5, 5, 10, 10)),
            Some(6),
            vec![5],
        ),
        (
            spec(9, 0, true),
            vec![(5, 5, 5, 10, 10)],
            Some((5, 5, 5, 10, 10)),
            Some(5),
            vec![4],
        ),
        // The new one has all that is wanted: an old one that came along gives up.
        (
            spec(5, 0, true),
            vec![(5, 5, 5, 5, 5)],
            Some((5, 5, 5, 5, 5)),
            Some(5),
            vec![0],
        ),
    ];
    for (spec, old, new, expected_new, expected_old) in cases {
        let sizes = sizes_of(spec.clone(), &old, new, true);
        assert_eq!(
            (sizes.new, sizes.old, sizes.remember),
            (expected_new, expected_old, true),
            "{spec} {old:?} {new:?}"
        );
    }
}

#[test]
fn recreating_waits_until_the_old_are_gone() {
    let spec = json!({"strategy": {"type": "Recreate", "rollingUpdate": null}});
    for (old, new, run, expected) in [
        (vec![(3, 3, 3, 3, 3)], None, true, (None, vec![0])),
        (vec![(0, 1, 0, 3, 3)], None, true, (None, vec![0])),
        (vec![(0, 0, 0, 3, 3)], None, true, (None, vec![0])),
        (vec![(0, 0, 0, 3, 3)], None, false, (Some(3), vec![0])),
        (vec![(2, 0, 0, 3, 3)], Some((0, 0, 0, 3, 3)), false, (Some(0), vec![0])),
        (vec![], Some((5, 5, 5, 5, 5)), false, (Some(3), vec![])),
    ] {
        let sizes = sizes_of(spec.clone(), &old, new, run);
        assert_eq!((sizes.new, sizes.old), expected, "{old:?} {new:?} {run}");
    }
}

fn start_cluster(spec: Value) -> Cluster {
    let cluster = Cluster::new();
    cluster.nodes(Nodes::new(3));
    cluster.change_nodes(|nodes| nodes.broken_image = Some("broken".to_string()));
    cluster.put(deployment(spec));
    cluster.run(&[&DEF, &REPLICA_SET]);
    cluster
}

fn the_deployment(cluster: &Cluster) -> Deployment {
    cluster.get(NS, "web").unwrap()
}

fn set_image(cluster: &Cluster, image: &str) {
    cluster.edit::<Deployment>(NS, "web", |d| {
        d["spec"]["template"]["spec"]["containers"][0]["image"] = json!(image);
    });
}

/// "image:pods", of the pods that are there.
fn images(cluster: &Cluster) -> Vec<String> {
    let mut counts = std::collections::BTreeMap::new();
    for pod in cluster.values::<Pod>(NS) {
        let image = pod["spec"]["containers"][0]["image"].as_str().unwrap().to_string();
        *counts.entry(image).or_insert(0) += 1;
    }
    counts.iter().map(|(image, count)| format!("{image}:{count}")).collect()
}

fn progressing(cluster: &Cluster) -> (String, String, String) {
    let deployment = the_deployment(cluster);
    let found = condition::find(&deployment.status.conditions, "Progressing").unwrap();
    (found.status.clone(), found.reason.clone(), found.message.clone())
}

#[tokio::test(start_paused = true)]
async fn a_deployment_comes_up_and_says_so() {
    let cluster = start_cluster(json!({}));
    cluster.wait_until_idle().await;
    let d = the_deployment(&cluster);
    assert_eq!(images(&cluster), ["one:3"]);
    let s = &d.status;
    let counts = (
        s.replicas,
        s.updated_replicas,
        s.ready_replicas,
        s.available_replicas,
        s.unavailable_replicas,
    );
    assert_eq!(
        (counts, s.observed_generation, s.terminating_replicas),
        ((3, 3, 3, 3, 0), 1, Some(0))
    );
    assert_eq!(d.metadata.annotation(history::REVISION), Some("1"));
    let set = &cluster.list::<ReplicaSet>(NS)[0];
    let name = &set.metadata.name;
    assert_eq!(set.metadata.label(sets::HASH_LABEL), name.strip_prefix("web-"));
    assert_eq!(set.spec.template.metadata.labels[sets::HASH_LABEL], name[4..]);
    assert_eq!(set.metadata.annotation(history::MAX), Some("4"));
    let done = format!("ReplicaSet \"{name}\" has successfully progressed.");
    assert_eq!(
        progressing(&cluster),
        ("True".into(), "NewReplicaSetAvailable".into(), done)
    );
    let available = condition::find(&s.conditions, "Available").unwrap();
    assert_eq!(
        (available.is_true(), &*available.reason),
        (true, "MinimumReplicasAvailable")
    );
    let events = cluster.events();
    let scaled = format!("Normal ScalingReplicaSet Scaled up replica set {name} from 0 to 3");
    assert!(events.contains(&scaled), "{events:?}");
    // And then all is quiet.
    let writes = cluster.writes().len();
    cluster.advance(Duration::from_secs(3600)).await;
    assert_eq!(cluster.writes().len(), writes);
}

#[tokio::test(start_paused = true)]
async fn rollouts_are_undone_and_remembered() {
    let cluster = start_cluster(json!({"revisionHistoryLimit": 2}));
    cluster.edit::<Deployment>(NS, "web", |d| {
        d["metadata"]["annotations"] = json!({"kubernetes.io/change-cause": "first"})
    });
    cluster.wait_until_idle().await;
    for (image, revision) in [("two", "2"), ("one", "3"), ("three", "4"), ("four", "5")] {
        set_image(&cluster, image);
        cluster.wait_until_idle().await;
        assert_eq!(images(&cluster), [format!("{image}:3")]);
        let d = the_deployment(&cluster);
        assert_eq!(d.metadata.annotation(history::REVISION), Some(revision), "{image}");
    }
    let sets = cluster.values::<ReplicaSet>(NS);
    let of = |image: &str| {
        let has = |set: &&Arc<Value>| set["spec"]["template"]["spec"]["containers"][0]["image"] == image;
        sets.iter().find(has)
    };
    // Two old ones are kept; the one that was current twice remembers both times.
    assert!(sets.len() == 3 && of("two").is_none(), "{}", sets.len());
    let annotations = &of("one").unwrap()["metadata"]["annotations"];
    assert_eq!(annotations["deployment.kubernetes.io/revision"], "3");
    assert_eq!(annotations["deployment.kubernetes.io/revision-history"], "1");
    assert_eq!(annotations["kubernetes.io/change-cause"], "first");
}

#[tokio::test(start_paused = true)]
async fn a_rollout_that_gets_stuck_says_so_and_keeps_serving() {
    let cluster = start_cluster(json!({"progressDeadlineSeconds": 60}));
    cluster.wait_until_idle().await;
    set_image(&cluster, "broken");
    cluster.wait_until_idle().await;
    assert_eq!(images(&cluster), ["broken:1", "one:3"]);
    assert_eq!(progressing(&cluster).1, "ReplicaSetUpdated");
    cluster.advance(Duration::from_secs(70)).await;
    let (status, reason, message) = progressing(&cluster);
    assert_eq!((&*status, &*reason), ("False", "ProgressDeadlineExceeded"));
    assert!(message.ends_with("has timed out progressing."), "{message}");
    set_image(&cluster, "one");
    cluster.wait_until_idle().await;
    assert_eq!(
        (images(&cluster), progressing(&cluster).1),
        (vec!["one:3".to_string()], "NewReplicaSetAvailable".into())
    );
}

#[tokio::test(start_paused = true)]
async fn while_paused_only_the_size_changes() {
    let cluster = start_cluster(json!({}));
    cluster.wait_until_idle().await;
    cluster.edit::<Deployment>(NS, "web", |d| {
        d["spec"]["paused"] = json!(true);
        d["spec"]["replicas"] = json!(5);
    });
    set_image(&cluster, "two");
    cluster.wait_until_idle().await;
    assert_eq!(images(&cluster), ["one:5"]);
    let paused = (
        "Unknown".into(),
        "DeploymentPaused".into(),
        "Deployment is paused".into(),
    );
    assert_eq!(progressing(&cluster), paused);
    assert_eq!(the_deployment(&cluster).status.updated_replicas, 0);
    cluster.edit::<Deployment>(NS, "web", |d| d["spec"]["paused"] = json!(false));
    cluster.wait_until_idle().await;
    assert_eq!(
        (images(&cluster), progressing(&cluster).1),
        (vec!["two:5".to_string()], "NewReplicaSetAvailable".into())
    );
}

#[tokio::test(start_paused = true)]
async fn recreating_never_runs_both() {
    let cluster = start_cluster(json!({"strategy": {"type": "Recreate", "rollingUpdate": null}}));
    cluster.change_nodes(|nodes| nodes.stop_after = Duration::from_secs(10));
    cluster.wait_until_idle().await;
    set_image(&cluster, "two");
    cluster.wait_until_idle().await;
    // They take their time to end: quiet, but not over.
    assert_eq!(images(&cluster), ["one:3"]);
    assert_eq!(the_deployment(&cluster).status.terminating_replicas, Some(3));
    cluster.advance(Duration::from_secs(10)).await;
    assert_eq!(images(&cluster), ["two:3"]);
}

#[tokio::test(start_paused = true)]
async fn pods_count_only_after_their_first_seconds() {
    let cluster = start_cluster(json!({"minReadySeconds": 30, "strategy": {"rollingUpdate": {"maxUnavailable": 0}}}));
    cluster.wait_until_idle().await;
    let status = the_deployment(&cluster).status;
    assert_eq!((status.ready_replicas, status.available_replicas), (3, 0));
    cluster.advance(Duration::from_secs(31)).await;
    assert_eq!(the_deployment(&cluster).status.available_replicas, 3);
    set_image(&cluster, "two");
    cluster.advance(Duration::from_secs(20)).await;
    assert_eq!(images(&cluster), ["one:3", "two:1"]);
    cluster.advance(Duration::from_secs(200)).await;
    assert_eq!(images(&cluster), ["two:3"]);
}

#[tokio::test(start_paused = true)]
async fn sets_are_adopted_and_released_by_their_labels() {
    let cluster = Cluster::new();
    cluster.nodes(Nodes::new(1));
    let template = deployment(json!({}))["spec"]["template"].clone();
    // One of the very template, made by hand, and one of another.
    for (name, image) in [("mine", "one"), ("older", "zero")] {
        let mut template = template.clone();
        template["spec"]["containers"][0]["image"] = json!(image);
        cluster.put(json!({"apiVersion": "apps/v1", "kind": "ReplicaSet",
            "metadata": {"name": name, "namespace": NS, "labels": {"app": "web"}},
            "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "template": template}}));
    }
    let foreign = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "foreign", "namespace": NS,
        "labels": {"app": "web"}, "ownerReferences": [{"apiVersion": "v1", "kind": "X", "name": "x", "uid": "x", "controller": true}]},
        "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "web"}}, "template": template}});
    cluster.put(foreign.clone());
    cluster.put(deployment(json!({})));
    cluster.run(&[&DEF]);
    cluster.wait_until_idle().await;
    let owner = |name: &str| {
        let set: ReplicaSet = cluster.get(NS, name).unwrap();
        set.metadata.controller().map(|owner| owner.name.clone())
    };
    assert_eq!(owner("mine").as_deref(), Some("web"));
    assert_eq!(owner("older").as_deref(), Some("web"));
    assert_eq!(owner("foreign").as_deref(), Some("x"));
    assert_eq!(cluster.list::<ReplicaSet>(NS).len(), 3);
    assert_eq!(
        cluster
            .get::<ReplicaSet>(NS, "mine")
            .unwrap()
            .metadata
            .annotation(history::REVISION),
        Some("1")
    );
    assert_eq!(progressing(&cluster).1, "FoundNewReplicaSet");
    cluster.edit::<ReplicaSet>(NS, "older", |set| set["metadata"]["labels"] = json!({"app": "other"}));
    cluster.wait_until_idle().await;
    assert_eq!(owner("older"), None);
}

#[tokio::test(start_paused = true)]
async fn a_taken_name_is_a_collision() {
    let cluster = Cluster::new();
    cluster.nodes(Nodes::new(1));
    let wanted: Deployment = serde_json::from_value(deployment(json!({}))).unwrap();
    let (name, _) = sets::new_set(&wanted, 3, json!({}));
    cluster.put(
        json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": name, "namespace": NS},
        "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "else"}}}}),
    );
    cluster.put(deployment(json!({})));
    cluster.run(&[&DEF, &REPLICA_SET]);
    cluster.wait_until_idle().await;
    assert_eq!(the_deployment(&cluster).status.collision_count, Some(1));
    assert_eq!(
        (images(&cluster), cluster.list::<ReplicaSet>(NS).len()),
        (vec!["one:3".to_string()], 2)
    );
}

#[tokio::test(start_paused = true)]
async fn what_keeps_pods_from_being_made_is_told() {
    let cluster = start_cluster(json!({}));
    cluster.hook(|call, _| {
        let pods = call.method == "POST" && call.path.ends_with("/pods");
        pods.then(|| Err(crate::testing::Refusal::new(403, "Forbidden", "exceeded quota")))
    });
    cluster.advance(Duration::from_secs(5)).await;
    let status = the_deployment(&cluster).status;
    let failure = condition::find(&status.conditions, "ReplicaFailure").unwrap();
    assert_eq!(
        (&*failure.reason, &*failure.message),
        ("FailedCreate", "exceeded quota")
    );
    assert_eq!(status.unavailable_replicas, 3);
    cluster.hook(|_, _| None);
    cluster.advance(Duration::from_secs(600)).await;
    let status = the_deployment(&cluster).status;
    assert!(condition::find(&status.conditions, "ReplicaFailure").is_none() && status.available_replicas == 3);
}

#[tokio::test(start_paused = true)]
async fn selecting_everything_is_refused() {
    let cluster = start_cluster(json!({"selector": {"matchLabels": null}}));
    cluster.wait_until_idle().await;
    assert!(cluster.list::<ReplicaSet>(NS).is_empty());
    assert_eq!(the_deployment(&cluster).status.observed_generation, 1);
    assert!(
        cluster.events()[0].starts_with("Warning SelectingAll"),
        "{:?}",
        cluster.events()
    );
}
