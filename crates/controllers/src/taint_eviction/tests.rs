use std::time::Duration;

use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::plan::{EvictionDecision, Tolerance, no_execute, plan, tolerance};
use crate::objects::Taint;
use crate::objects::Toleration;
use crate::objects::{Node, Pod};

fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

/// `a=1:NoExecute@11:58:00 b:NoSchedule`
fn node(taints: &str) -> Node {
    let taints: Vec<Value> = taints
        .split_whitespace()
        .map(|word| {
            let (word, added) = word.split_once('@').unwrap_or((word, ""));
            let (left, effect) = word.split_once(':').unwrap();
            let (key, value) = left.split_once('=').unwrap_or((left, ""));
            let added = Some(added)
                .filter(|at| !at.is_empty())
                .map(|at| format!("2026-01-01T{at}Z"));
            json!({"key": key, "value": value, "effect": effect, "timeAdded": added})
        })
        .collect();
    serde_json::from_value(json!({"spec": {"taints": taints}})).unwrap()
}

/// `a=1:NoExecute/30 b:/5 *:`: a key without a value means that any will do.
fn tolerations(words: &str) -> Vec<Toleration> {
    let one = |word: &str| {
        let (word, seconds) = word.split_once('/').unwrap_or((word, ""));
        let (left, effect) = word.split_once(':').unwrap();
        let (key, value) = left.split_once('=').unwrap_or((left, ""));
        Toleration {
            key: key.trim_matches('*').to_string(),
            operator: if left.contains('=') { "Equal" } else { "Exists" }.to_string(),
            value: value.to_string(),
            effect: effect.to_string(),
            toleration_seconds: seconds.parse().ok(),
        }
    };
    words.split_whitespace().map(one).collect()
}

#[test]
fn the_shortest_toleration_counts() {
    let cases = [
        ("", "", "forever"),
        ("a:NoSchedule", "", "forever"),
        ("a:NoExecute", "", "no"),
        ("a=1:NoExecute", "a=2:NoExecute", "no"),
        ("a=1:NoExecute", "a=1:NoSchedule", "no"),
        ("a=1:NoExecute", "a=1:", "forever"),
        ("a=1:NoExecute", "*:", "forever"),
        ("a=1:NoExecute", "a:NoExecute/30", "30s"),
        ("a=1:NoExecute", "a:NoExecute/-5", "0ns"),
        ("a:NoExecute b:NoExecute", "a:/30", "no"),
        ("a:NoExecute b:NoExecute", "a:/30 b:", "30s"),
        ("a:NoExecute b:NoExecute", "a:/30 b:/20", "20s"),
        // The first that matches, not the most generous.
        ("a:NoExecute", "a:/30 a:", "30s"),
        ("a:NoExecute", "a: a:/30", "forever"),
        ("a:NoExecute", "b:/5 a:/30", "30s"),
    ];
    for (taints, words, expected) in cases {
        let said = match tolerance(no_execute(&node(taints)), &tolerations(words)) {
            Tolerance::No => "no".to_string(),
            Tolerance::Forever => "forever".to_string(),
            Tolerance::While { time, .. } => format!("{time:?}"),
        };
        assert_eq!(said, expected, "{taints} {words}");
    }
}

#[tokio::test(start_paused = true)]
async fn time_runs_from_the_taint_or_the_pods_coming() {
    let start = Instant::now() + Duration::from_secs(100_000);
    // Taints, tolerations, when the pod came, on notice for how long (if known), seconds left.
    let cases = [
        ("a:NoExecute", "a:/300", "10:00:00", None, Some(300)),
        ("a:NoExecute", "a:/300", "10:00:00", Some(100), Some(200)),
        ("a:NoExecute", "a:/300", "10:00:00", Some(1000), Some(0)),
        ("a:NoExecute@11:58:00", "a:/300", "10:00:00", None, Some(180)),
        ("a:NoExecute@11:00:00", "a:/300", "10:00:00", None, Some(0)),
        ("a:NoExecute@11:58:00", "a:/300", "11:59:00", None, Some(240)),
        // From a clock that is ahead.
        ("a:NoExecute@12:58:00", "a:/300", "11:59:00", None, Some(300)),
        // What is tolerated forever does not start the time of what came later.
        (
            "a:NoExecute@09:00:00 b:NoExecute@11:59:50",
            "a: b:/60",
            "10:00:00",
            None,
            Some(50),
        ),
        (
            "a:NoExecute@09:00:00 b:NoExecute",
            "a: b:/60",
            "10:00:00",
            None,
            Some(60),
        ),
        // One taint that became another.
        ("b:NoExecute@11:59:50", "a:/60 b:/60", "10:00:00", Some(30), Some(30)),
        ("a:NoExecute", "", "10:00:00", None, Some(0)),
        ("a:NoExecute", "a:", "10:00:00", Some(10), None),
        ("", "", "10:00:00", Some(10), None),
    ];
    for (taints, words, came, notice, expected) in cases {
        let tolerations = json!(tolerations(words));
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"creationTimestamp": "2026-01-01T08:00:00Z"}, "spec": {"tolerations": tolerations},
            "status": {"conditions": [{"type": "PodScheduled", "status": "True",
                                       "lastTransitionTime": format!("2026-01-01T{came}Z")}]},
        }))
        .unwrap();
        let notice = notice.map(|ago| start - Duration::from_secs(ago));
        let left = match plan(&pod, Some(&node(taints)), notice, start, now()) {
            EvictionDecision::Stays => None,
            EvictionDecision::Goes { since, after } => {
                assert!(since <= start && notice.is_none_or(|notice| notice == since));
                Some(after.as_secs())
            }
        };
        assert_eq!(left, expected, "{taints} {words}");
        let mut leaving = pod.clone();
        leaving.metadata.deletion_timestamp = Some(now());
        assert_eq!(
            plan(&leaving, Some(&node(taints)), notice, start, now()),
            EvictionDecision::Stays
        );
        assert_eq!(plan(&pod, None, notice, start, now()), EvictionDecision::Stays);
    }
}

fn some_taints() -> impl Strategy<Value = Vec<Taint>> {
    let taint = ("[ab]", "[12]?", prop_oneof!["NoExecute", "NoSchedule"]);
    let taint = taint.prop_map(|(key, value, effect)| Taint {
        key,
        value,
        effect,
        time_added: None,
    });
    prop::collection::vec(taint, 0..4)
}

fn some_tolerations() -> impl Strategy<Value = Vec<Toleration>> {
    let seconds = prop::option::of(-1..100i64);
    let one = (
        "[ab]?",
        prop_oneof!["Exists", "Equal"],
        "[12]?",
        prop_oneof!["", "NoExecute"],
        seconds,
    );
    let one = one.prop_map(|(key, operator, value, effect, toleration_seconds)| Toleration {
        key,
        operator,
        value,
        effect,
        toleration_seconds,
    });
    prop::collection::vec(one, 0..4)
}

fn seconds(tolerance: &Tolerance) -> u64 {
    match tolerance {
        Tolerance::No => 0,
        Tolerance::Forever => u64::MAX,
        Tolerance::While { time, .. } => time.as_secs(),
    }
}

proptest! {
    /// A further taint never lengthens a pod's stay; a further toleration at the end never shortens it, except that it may
    /// turn what was not tolerated at all into something that is.
    #[test]
    fn more_taints_never_help(taints in some_taints(), more in some_taints(), held in some_tolerations(),
                              late in some_tolerations()) {
        let execute = |taints: &[Taint]| -> Vec<Taint> {
            taints.iter().filter(|t| t.effect == "NoExecute").cloned().collect()
        };
        let (few, all) = (execute(&taints), execute(&[taints, more].concat()));
        let before = tolerance(few.iter(), &held);
        let after = tolerance(all.iter(), &held);
        prop_assert!(seconds(&after) <= seconds(&before), "{before:?} {after:?}");
        let generous = tolerance(few.iter(), &[held, late].concat());
        prop_assert!(seconds(&generous) >= seconds(&before), "{before:?} {generous:?}");
    }
}
