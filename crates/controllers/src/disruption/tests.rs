use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use orlop_base::clock::Shift;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::plan::{asks_owners, failed, plan, stale_in, status_json, without_target};
use super::{DEF, PodDisruptionBudget};
use crate::objects::{Condition, Pod};
use crate::testing::Cluster;

fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

fn budget(spec: Value, disrupted: Value) -> PodDisruptionBudget {
    let status = json!({"disruptedPods": disrupted});
    serde_json::from_value(json!({"metadata": {"generation": 2}, "spec": spec, "status": status})).unwrap()
}

/// `a b- c!`: ready, not ready, on its way out.
fn pods(words: &str) -> Vec<Arc<Pod>> {
    let pod = |word: &str| {
        let name = word.trim_end_matches(['-', '!']);
        let ready = if word.ends_with('-') { "False" } else { "True" };
        let deleted = word.ends_with('!').then_some("2026-01-01T11:59:00Z");
        let status = json!({"conditions": [{"type": "Ready", "status": ready}]});
        let value = json!({"metadata": {"name": name, "deletionTimestamp": deleted}, "status": status});
        Arc::new(serde_json::from_value(value).unwrap())
    };
    words.split_whitespace().map(pod).collect()
}

#[test]
fn what_may_be_disrupted() {
    let (min, max) = (
        |v: Value| json!({"minAvailable": v}),
        |v: Value| json!({"maxUnavailable": v}),
    );
    // The budget, its pods, what their owners want; expected, healthy, desired, allowed.
    let cases = [
        (min(json!(2)), "a b c", 0, [3, 3, 2, 1]),
        (min(json!(3)), "a b c", 0, [3, 3, 3, 0]),
        (min(json!(2)), "a b- c!", 0, [3, 1, 2, 0]),
        (min(json!(0)), "", 0, [0, 0, 0, 0]),
        (min(json!("50%")), "a b c", 3, [3, 3, 2, 1]),
        (min(json!("50%")), "a b", 7, [7, 2, 4, 0]),
        (min(json!("100%")), "a b c", 3, [3, 3, 3, 0]),
        (max(json!(1)), "a b c", 3, [3, 3, 2, 1]),
        (max(json!(5)), "a b c", 3, [3, 3, 0, 3]),
        (max(json!("30%")), "a b c", 3, [3, 3, 2, 1]),
        (max(json!("0%")), "a b c", 3, [3, 3, 3, 0]),
        (max(json!(1)), "a b- c", 3, [3, 2, 2, 0]),
        (max(json!(1)), "", 0, [0, 0, 0, 0]),
        // More than wanted, in a rollout.
        (max(json!(1)), "a b c d", 3, [3, 4, 2, 2]),
        (json!({}), "a", 0, [0, 1, 0, 0]),
    ];
    for (spec, words, wanted, expected) in cases {
        let budget = budget(spec.clone(), json!({}));
        let status = plan(&budget, &pods(words), wanted, now()).unwrap().status;
        let counts = [
            status.expected_pods,
            status.current_healthy,
            status.desired_healthy,
            status.disruptions_allowed,
        ];
        assert_eq!(counts, expected, "{spec} {words}");
        assert_eq!(
            asks_owners(&budget),
            wanted > 0 || spec.get("maxUnavailable").is_some(),
            "{spec}"
        );
        let reason = if expected[3] > 0 {
            ("True", "SufficientPods")
        } else {
            ("False", "InsufficientPods")
        };
        let condition = &status.conditions[0];
        assert_eq!((condition.status.as_str(), condition.reason.as_str()), reason);
        assert_eq!(
            (condition.observed_generation, condition.last_transition_time),
            (Some(2), Some(now()))
        );
    }
}

#[test]
fn evictions_count_until_their_pods_go_or_time_is_up() {
    let budget = budget(
        json!({"minAvailable": 1}),
        json!({"a": "2026-01-01T11:59:00Z", "b": "2026-01-01T11:57:00Z", "c": "2026-01-01T11:59:30Z",
               "gone": "2026-01-01T11:59:00Z", "odd": "9999-12-30T22:00:00Z"}),
    );
    let plan = plan(&budget, &pods("a b c! d odd"), 0, now()).unwrap();
    let waiting: Vec<&String> = plan.status.disrupted_pods.keys().collect();
    assert_eq!(waiting, ["a", "odd"]);
    assert_eq!(plan.status.current_healthy, 2, "b, which did not go, and d");
    let late: Vec<&str> = plan.not_deleted.iter().map(|pod| pod.metadata.name.as_str()).collect();
    assert_eq!(late, ["b"]);
    assert_eq!(plan.look_after, Some(Duration::from_millis(60_001)));
    let sent = status_json(&budget.status, &plan.status);
    let gone = json!({"a": "2026-01-01T11:59:00Z", "odd": "9999-12-30T22:00:00Z", "b": null, "c": null, "gone": null});
    assert_eq!(sent["disruptedPods"], gone);
    assert_eq!(sent["conditions"][0]["message"], "");
    let none = status_json(&budget.status, &failed(&budget, "why", now()));
    assert_eq!(none["conditions"][0]["message"], "why");
}

#[test]
fn announcements_go_stale() {
    let pod = |status: &str, reason: &str, since: &str, phase: &str, deleted: Option<&str>| -> Pod {
        serde_json::from_value(json!({
            "metadata": {"deletionTimestamp": deleted, "generation": 4},
            "status": {"phase": phase, "conditions": [{"type": "DisruptionTarget", "status": status, "reason": reason,
                        "message": "m", "lastTransitionTime": format!("2026-01-01T{since}Z")}]},
        }))
        .unwrap()
    };
    let at = Some("2026-01-01T11:59:00Z");
    let cases = [
        (
            pod("True", "EvictionByEvictionAPI", "11:59:00", "Running", None),
            Some(60),
        ),
        (
            pod("True", "EvictionByEvictionAPI", "11:00:00", "Running", None),
            Some(0),
        ),
        (pod("True", "TerminationByKubelet", "11:00:00", "Running", None), None),
        (pod("True", "PreemptionByScheduler", "11:00:00", "Failed", None), None),
        (pod("True", "PreemptionByScheduler", "11:00:00", "Running", at), None),
        (pod("False", "", "11:00:00", "Running", None), None),
    ];
    for (pod, expected) in cases {
        assert_eq!(stale_in(&pod, now()).map(|d| d.as_secs()), expected, "{pod:?}");
    }
    let stale = pod("True", "EvictionByEvictionAPI", "11:00:00", "Running", None);
    let taken_back = Condition {
        r#type: "DisruptionTarget".to_string(),
        status: "False".to_string(),
        observed_generation: Some(4),
        last_transition_time: Some(now()),
        ..Condition::default()
    };
    assert_eq!(without_target(&stale, now()), [taken_back]);
}

proptest! {
    /// Whoever evicts no more than is allowed never leaves fewer healthy pods than the budget asks for.
    #[test]
    fn what_is_allowed_can_be_afforded(
        ready in prop::collection::vec((any::<bool>(), any::<bool>(), prop::option::of(0..300i64)), 0..20),
        wanted in 0..25i64, number in 0..25i64, form in 0..4,
    ) {
        let pods: Vec<Arc<Pod>> = ready.iter().enumerate().map(|(n, (ready, deleted, _))| {
            let word = format!("p{n}{}", if *deleted { "!" } else if *ready { "" } else { "-" });
            pods(&word).remove(0)
        }).collect();
        let disrupted: serde_json::Map<String, Value> = ready.iter().enumerate().filter_map(|(n, (_, _, ago))| {
            let at = now().earlier(Duration::from_secs(u64::try_from((*ago)?).unwrap()));
            Some((format!("p{n}"), json!(at)))
        }).collect();
        let value = if form % 2 == 0 { json!(number) } else { json!(format!("{}%", number * 4)) };
        let spec = if form < 2 { json!({"minAvailable": value}) } else { json!({"maxUnavailable": value}) };
        let budget = budget(spec, Value::Object(disrupted));
        let plan = plan(&budget, &pods, wanted, now()).unwrap();
        let status = &plan.status;
        prop_assert!(status.disruptions_allowed >= 0);
        if status.disruptions_allowed > 0 {
            prop_assert!(status.current_healthy - status.disruptions_allowed >= status.desired_healthy);
        }
        let whole = pods.iter().filter(|pod| pod.is_ready() && !pod.metadata.is_deleted()).count();
        prop_assert!(status.current_healthy <= i64::try_from(whole).unwrap());
        // What is said is final: the same look says the same.
        let mut again = budget.clone();
        again.status = status.clone();
        prop_assert_eq!(&super::plan::plan(&again, &pods, wanted, now()).unwrap().status, status);
    }
}

fn owned(name: &str, ready: bool, owner: Option<Value>) -> Value {
    let owners: Vec<Value> = owner.into_iter().collect();
    let status = if ready { "True" } else { "False" };
    json!({"apiVersion": "v1", "kind": "Pod",
           "metadata": {"name": name, "namespace": "ns", "labels": {"app": "web"}, "ownerReferences": owners},
           "spec": {"nodeName": "n"},
           "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": status}]}})
}

fn owner(version: &str, kind: &str, name: &str, uid: &Value) -> Option<Value> {
    Some(json!({"apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": true}))
}

fn web_budget(spec: Value) -> Value {
    let mut spec = spec;
    spec["selector"] = json!({"matchLabels": {"app": "web"}});
    json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
           "metadata": {"name": "b", "namespace": "ns", "generation": 1}, "spec": spec})
}

fn counts(cluster: &Cluster) -> [i64; 4] {
    let status = cluster.get::<PodDisruptionBudget>("ns", "b").unwrap().status;
    [
        status.expected_pods,
        status.current_healthy,
        status.desired_healthy,
        status.disruptions_allowed,
    ]
}

#[tokio::test(start_paused = true)]
async fn budgets_follow_pods_and_owners() {
    let cluster = Cluster::new();
    let deployment = cluster.put(json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "d", "namespace": "ns"}, "spec": {"replicas": 4}}));
    let mut sets = vec![];
    for (name, replicas) in [("old", 1), ("new", 3)] {
        let owners = owner("apps/v1", "Deployment", "d", &deployment["metadata"]["uid"]);
        sets.push(cluster.put(json!({"apiVersion": "apps/v1", "kind": "ReplicaSet",
            "metadata": {"name": name, "namespace": "ns", "ownerReferences": [owners]},
            "spec": {"replicas": replicas}})));
    }
    let of = |n: usize| owner("apps/v1", "ReplicaSet", ["old", "new"][n], &sets[n]["metadata"]["uid"]);
    for (name, set) in [("a", 0), ("b", 1), ("c", 1), ("d", 1)] {
        cluster.put(owned(name, true, of(set)));
    }
    cluster.put(web_budget(json!({"maxUnavailable": "25%"})));
    cluster.run(&[&DEF]);
    cluster.wait_until_idle().await;
    assert_eq!(counts(&cluster), [4, 4, 3, 1]);
    cluster.edit_status::<Pod>("ns", "c", |pod| {
        pod["status"]["conditions"][0]["status"] = json!("False")
    });
    cluster.wait_until_idle().await;
    assert_eq!(counts(&cluster), [4, 3, 3, 0]);
    // A StatefulSet's pod, one of a kind that nobody here knows, and one of nobody.
    let others = cluster.put(json!({"apiVersion": "apps/v1", "kind": "StatefulSet",
        "metadata": {"name": "s", "namespace": "ns"}, "spec": {"replicas": 2}}));
    cluster.put(owned(
        "s-0",
        true,
        owner("apps/v1", "StatefulSet", "s", &others["metadata"]["uid"]),
    ));
    cluster.hook(|call, _| match call.path.as_str() {
        "/apis/example.com/v1" => Some(Ok(json!({"resources": [
            {"name": "gizmos", "kind": "Gizmo"}, {"name": "gizmos/scale", "kind": "Scale"},
            {"name": "plains", "kind": "Plain"}]}))),
        "/apis/example.com/v1/namespaces/ns/gizmos/g/scale" => {
            Some(Ok(json!({"metadata": {"uid": "g1"}, "spec": {"replicas": 5}})))
        }
        _ => None,
    });
    cluster.put(owned("g", true, owner("example.com/v1", "Gizmo", "g", &json!("g1"))));
    cluster.put(owned("nobodys", true, None));
    cluster.wait_until_idle().await;
    assert_eq!(counts(&cluster), [4 + 2 + 5, 3 + 3, 8, 0]);
    assert!(
        cluster
            .events()
            .iter()
            .any(|event| event.starts_with("Warning UnmanagedPods Pods selected by"))
    );
    // One whose owner can't be scaled: nothing is allowed, and it says why.
    cluster.put(owned(
        "plain",
        true,
        owner("example.com/v1", "Plain", "p", &json!("p1")),
    ));
    cluster.advance(Duration::from_secs(5)).await;
    let status = cluster.get::<PodDisruptionBudget>("ns", "b").unwrap().status;
    let condition = &status.conditions[0];
    let said = "plains.example.com does not implement the scale subresource";
    assert_eq!(
        (condition.reason.as_str(), condition.message.as_str()),
        ("SyncFailed", said)
    );
    cluster.remove::<Pod>("ns", "plain");
    cluster.wait_until_idle().await;
    assert_eq!(counts(&cluster), [11, 6, 8, 0]);
}

#[tokio::test(start_paused = true)]
async fn dropped_evictions_are_taken_back() {
    let cluster = Cluster::new();
    for name in ["a", "b", "c"] {
        cluster.put(owned(name, true, None));
    }
    let mut budget = web_budget(json!({"minAvailable": 1}));
    budget["status"] = json!({"disruptedPods": {"a": cluster.clock.now(), "b": cluster.clock.now()}});
    cluster.put(budget);
    cluster.edit_status::<Pod>("ns", "c", |pod| {
        let at = pod["metadata"]["creationTimestamp"].clone();
        let target = json!({"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
                            "lastTransitionTime": at});
        pod["status"]["conditions"].as_array_mut().unwrap().push(target);
    });
    cluster.run(&[&DEF]);
    cluster.wait_until_idle().await;
    assert_eq!(counts(&cluster), [3, 1, 1, 0]);
    cluster.delete::<Pod>("ns", "b");
    cluster.advance(Duration::from_secs(110)).await;
    let status = cluster.get::<PodDisruptionBudget>("ns", "b").unwrap().status;
    assert_eq!(status.disrupted_pods.keys().collect::<Vec<_>>(), ["a"]);
    let target = |cluster: &Cluster| {
        cluster
            .get::<Pod>("ns", "c")
            .unwrap()
            .condition("DisruptionTarget")
            .cloned()
    };
    assert!(target(&cluster).unwrap().is_true());
    cluster.advance(Duration::from_secs(15)).await;
    assert_eq!(counts(&cluster), [2, 2, 1, 1]);
    assert!(
        cluster
            .get::<PodDisruptionBudget>("ns", "b")
            .unwrap()
            .status
            .disrupted_pods
            .is_empty()
    );
    assert_eq!(target(&cluster).unwrap().status, "False");
    let late = "Warning NotDeleted Pod was expected by PDB ns/b to be deleted but it wasn't";
    assert!(
        cluster.events().iter().any(|event| event == late),
        "{:?}",
        cluster.events()
    );
}
