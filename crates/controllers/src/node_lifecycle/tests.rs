use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use orlop_base::clock::Shift;
use proptest::prelude::*;
use serde_json::json;
use tokio::time::Instant;

use super::plan::{self, Grace, Plan};
use super::zones::{Rates, TaintPermission, ZoneChange, Zones};
use crate::objects::{Node, Pod};

const GRACE: Grace = Grace {
    running: Duration::from_secs(50),
    starting: Duration::from_secs(60),
};

fn now() -> Timestamp {
    "2026-01-01T12:00:00.5Z".parse().unwrap()
}

/// `Ready=True DiskPressure=True unschedulable not-ready:NoExecute mine:NoExecute`
fn node(words: &str) -> Node {
    let (mut conditions, mut taints, mut unschedulable) = (vec![], vec![], false);
    for word in words.split_whitespace() {
        if let Some((kind, status)) = word.split_once('=') {
            conditions.push(json!({"type": kind, "status": status, "reason": "Kubelet",
                                   "lastHeartbeatTime": "2026-01-01T11:00:00Z",
                                   "lastTransitionTime": "2026-01-01T10:00:00Z"}));
        } else if let Some((key, effect)) = word.split_once(':') {
            let key = if key == "mine" {
                key.to_string()
            } else {
                format!("node.kubernetes.io/{key}")
            };
            taints.push(json!({"key": key, "effect": effect}));
        } else {
            unschedulable = word == "unschedulable";
        }
    }
    let meta = json!({"name": "n", "uid": "u", "creationTimestamp": "2026-01-01T09:00:00Z"});
    let spec = json!({"unschedulable": unschedulable, "taints": taints});
    serde_json::from_value(json!({"metadata": meta, "spec": spec, "status": {"conditions": conditions}})).unwrap()
}

/// What becomes of the taints, in short, and the one that waits.
fn taints(node: &Node, plan: &Plan) -> String {
    let taints = plan.taints.as_ref().unwrap_or(&node.spec.taints);
    let short = |key: &str| key.trim_start_matches("node.kubernetes.io/").to_string();
    let mut words: Vec<String> = taints
        .iter()
        .map(|t| format!("{}:{}", short(&t.key), t.effect))
        .collect();
    if let Some(key) = plan.evict {
        words.push(format!("({})", short(key)));
    }
    words.join(" ")
}

#[test]
fn taints_follow_conditions() {
    // The node, whether all nodes are down, its taints after.
    let cases = [
        ("not-ready:NoSchedule", false, "not-ready:NoSchedule"),
        ("Ready=True", false, ""),
        (
            "Ready=True not-ready:NoSchedule mine:NoExecute",
            false,
            "mine:NoExecute",
        ),
        ("Ready=True not-ready:NoExecute unreachable:NoExecute", false, ""),
        ("Ready=False", false, "not-ready:NoSchedule (not-ready)"),
        ("Ready=False", true, "not-ready:NoSchedule"),
        (
            "Ready=False not-ready:NoExecute",
            false,
            "not-ready:NoExecute not-ready:NoSchedule",
        ),
        ("Ready=False not-ready:NoExecute", true, "not-ready:NoSchedule"),
        (
            "Ready=False unreachable:NoExecute",
            false,
            "not-ready:NoSchedule not-ready:NoExecute",
        ),
        (
            "Ready=Unknown not-ready:NoExecute",
            false,
            "unreachable:NoSchedule unreachable:NoExecute",
        ),
        (
            "Ready=Unknown unreachable:NoExecute unreachable:NoSchedule",
            false,
            "unreachable:NoExecute unreachable:NoSchedule",
        ),
        (
            "Ready=Unknown not-ready:NoSchedule",
            false,
            "unreachable:NoSchedule (unreachable)",
        ),
        (
            "Ready=True DiskPressure=True MemoryPressure=False unschedulable mine:NoSchedule",
            false,
            "mine:NoSchedule disk-pressure:NoSchedule unschedulable:NoSchedule",
        ),
        (
            "Ready=True PIDPressure=Unknown NetworkUnavailable=True unschedulable:NoSchedule",
            false,
            "network-unavailable:NoSchedule",
        ),
        ("Ready=True out-of-service:NoExecute", false, "out-of-service:NoExecute"),
    ];
    for (words, all_down, expected) in cases {
        let node = node(words);
        let plan = plan::plan(&node, Duration::ZERO, all_down, GRACE, now());
        assert_eq!(taints(&node, &plan), expected, "{words}");
        let added = plan.taints.iter().flatten().filter(|t| !node.spec.taints.contains(t));
        assert!(
            added
                .into_iter()
                .all(|t| t.time_added == Some("2026-01-01T12:00:00Z".parse().unwrap()))
        );
    }
}

#[test]
fn silence_makes_conditions_unknown() {
    // The node, seconds of silence, its conditions after (none: it has time left).
    let posted = "Kubelet stopped posting node status.";
    let cases = [
        ("Ready=True", 50, None),
        (
            "Ready=True DiskPressure=False NetworkUnavailable=False",
            51,
            Some(
                "Ready NodeStatusUnknown,DiskPressure NodeStatusUnknown,NetworkUnavailable Kubelet,\
               MemoryPressure NodeStatusNeverUpdated,PIDPressure NodeStatusNeverUpdated",
            ),
        ),
        (
            "Ready=False",
            51,
            Some(
                "Ready NodeStatusUnknown,MemoryPressure NodeStatusNeverUpdated,\
               DiskPressure NodeStatusNeverUpdated,PIDPressure NodeStatusNeverUpdated",
            ),
        ),
        ("Ready=Unknown", 5000, None),
        ("", 60, None),
        (
            "",
            61,
            Some(
                "Ready NodeStatusNeverUpdated,MemoryPressure NodeStatusNeverUpdated,\
               DiskPressure NodeStatusNeverUpdated,PIDPressure NodeStatusNeverUpdated",
            ),
        ),
    ];
    for (words, silent, expected) in cases {
        let node = node(words);
        let plan = plan::plan(&node, Duration::from_secs(silent), false, GRACE, now());
        let said = plan.conditions.as_ref().map(|conditions| {
            let said: Vec<String> = conditions
                .iter()
                .map(|c| format!("{} {}", c.r#type, c.reason))
                .collect();
            said.join(",")
        });
        assert_eq!(said.as_deref(), expected, "{words}");
        for c in plan.conditions.iter().flatten().filter(|c| c.reason != "Kubelet") {
            assert_eq!(
                (c.status.as_str(), c.last_transition_time),
                ("Unknown", "2026-01-01T12:00:00Z".parse().ok())
            );
            let heartbeat = if c.message == posted { "11:00:00" } else { "09:00:00" };
            assert_eq!(c.last_heartbeat_time, format!("2026-01-01T{heartbeat}Z").parse().ok());
        }
        match plan.look_after {
            Some(wait) => assert!(Duration::from_secs(silent) + wait > Duration::from_secs(50)),
            None => assert!(plan.conditions.is_some() || plan.pods_unready, "{words}"),
        }
    }
}

#[test]
fn labels_of_old_names_follow() {
    let cases = [
        (json!({}), json!({})),
        (json!({"beta.kubernetes.io/os": "windows"}), json!({})),
        (
            json!({"kubernetes.io/os": "linux"}),
            json!({"beta.kubernetes.io/os": "linux"}),
        ),
        (
            json!({"kubernetes.io/os": "linux", "beta.kubernetes.io/os": "linux"}),
            json!({}),
        ),
        (
            json!({"kubernetes.io/arch": "arm64", "beta.kubernetes.io/arch": "amd64"}),
            json!({"beta.kubernetes.io/arch": "arm64"}),
        ),
    ];
    for (labels, expected) in cases {
        let node: Node = serde_json::from_value(json!({"metadata": {"labels": labels}})).unwrap();
        let plan = plan::plan(&node, Duration::ZERO, false, GRACE, now());
        assert_eq!(json!(plan.labels), expected, "{labels}");
    }
}

#[test]
fn pods_of_silent_nodes_are_not_ready() {
    let pod = |conditions| -> Pod { serde_json::from_value(json!({"status": {"conditions": conditions}})).unwrap() };
    let before = "2026-01-01T10:00:00Z";
    let ready = |status: &str, since: &str| json!({"type": "Ready", "status": status, "lastTransitionTime": since, "observedGeneration": 3});
    let other = json!({"type": "Initialized", "status": "True"});
    assert_eq!(plan::unready(&pod(json!([])), now()), None);
    assert_eq!(plan::unready(&pod(json!([ready("False", before)])), now()), None);
    let marked = plan::unready(&pod(json!([other, ready("True", before)])), now());
    assert_eq!(json!(marked), json!([other, ready("False", "2026-01-01T12:00:00Z")]));
}

fn zones() -> Zones {
    Zones::new(Rates {
        normal: 0.1,
        reduced: 0.01,
        large: 50,
        unhealthy: 0.55,
    })
}

fn ask(zones: &mut Zones, node: &str, at: Instant) -> String {
    match zones.ask(node, at) {
        TaintPermission::Wait => "wait".to_string(),
        TaintPermission::After(wait) => format!("{}s", wait.as_secs()),
        TaintPermission::Go { next } => format!("go {}", next.unwrap_or_default()).trim_end().to_string(),
    }
}

#[tokio::test(start_paused = true)]
async fn nodes_of_a_zone_stand_in_line() {
    let mut zones = zones();
    for (name, zone, ready) in [
        ("a", "z", false),
        ("b", "z", false),
        ("c", "z", true),
        ("d", "y", false),
    ] {
        zones.observe(name, zone, ready, true);
    }
    let start = Instant::now();
    let at = |s| start + Duration::from_secs(s);
    assert_eq!(ask(&mut zones, "a", at(0)), "go");
    assert_eq!(ask(&mut zones, "b", at(1)), "9s");
    assert_eq!(
        ask(&mut zones, "d", at(1)),
        "go",
        "each zone has its own rate, one that is all down the normal one"
    );
    zones.observe("c", "z", false, true);
    assert!(zones.all_down());
    assert_eq!(ask(&mut zones, "b", at(20)), "wait", "nothing is ready: nobody leaves");
    assert_eq!(zones.observe("d", "y", true, true), ZoneChange::SomeUp);
    assert_eq!(ask(&mut zones, "b", at(21)), "go");
    assert_eq!(ask(&mut zones, "c", at(22)), "9s");
    assert_eq!(ask(&mut zones, "a", at(22)), "wait", "behind the other");
    assert_eq!(zones.leave("c"), Some("a".to_string()));
    assert_eq!(ask(&mut zones, "a", at(31)), "go");
    zones.give_back("a");
    assert_eq!(ask(&mut zones, "a", at(31)), "go", "what was not used is free");
    assert_eq!(ask(&mut zones, "b", at(31)), "10s");
    assert_eq!(ask(&mut zones, "c", at(31)), "wait");
    assert_eq!(zones.forget("b"), ZoneChange::Wake(vec!["c".to_string()]));
}

#[test]
fn the_rate_falls_with_the_zone() {
    // Nodes, ready ones, what the second to ask hears after one second.
    let cases = [
        (3, 1, "9s"),
        (3, 0, "9s"),
        (4, 1, "wait"),
        (10, 5, "9s"),
        (10, 4, "wait"),
        (50, 10, "wait"),
        (51, 10, "99s"),
        (100, 60, "9s"),
        (100, 0, "9s"),
    ];
    for (size, ready, expected) in cases {
        let mut zones = zones();
        zones.observe("elsewhere", "y", true, true);
        // One that does not count changes nothing.
        zones.observe("odd", "z", true, false);
        for n in 0..size {
            zones.observe(&format!("n{n}"), "z", n < ready, true);
        }
        let start = Instant::from_std(orlop_base::clock::monotonic());
        let first = ask(&mut zones, &format!("n{}", size - 1), start);
        assert_eq!(first == "go", expected != "wait");
        let second = ask(&mut zones, &format!("n{}", size - 2), start + Duration::from_secs(1));
        assert_eq!(second, expected, "{size} {ready}");
    }
}

#[derive(Clone, Debug)]
enum Step {
    Observe {
        node: u8,
        zone: u8,
        ready: bool,
        counts: bool,
    },
    Forget(u8),
    Leave(u8),
    Pass {
        seconds: u8,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..12u8, 0..3u8, any::<bool>(), prop::bool::weighted(0.9))
            .prop_map(|(node, zone, ready, counts)| Step::Observe { node, zone, ready, counts }),
        1 => (0..12u8).prop_map(Step::Forget),
        1 => (0..12u8).prop_map(Step::Leave),
        4 => (0..30u8).prop_map(|seconds| Step::Pass { seconds }),
    ];
    prop::collection::vec(step, 1..60)
}

/// Plays nodes that ask when they are told to, and only then.
#[derive(Default)]
struct Asking {
    /// When each asks next.
    due: BTreeMap<String, Instant>,
    /// Not ready and not yet gone ahead.
    want: BTreeMap<String, String>,
    gone: Vec<(String, Instant)>,
}

impl Asking {
    fn follow(&mut self, change: ZoneChange, now: Instant) {
        let woken = match change {
            ZoneChange::Nothing => vec![],
            ZoneChange::Wake(names) => names,
            ZoneChange::AllDown | ZoneChange::SomeUp => self.want.keys().cloned().collect(),
        };
        self.due.extend(woken.into_iter().map(|name| (name, now)));
    }

    /// Lets all ask whose time comes until `end`.
    fn play(&mut self, zones: &mut Zones, end: Instant) {
        while let Some((name, at)) = self
            .due
            .iter()
            .min_by_key(|(_, at)| **at)
            .map(|(n, at)| (n.clone(), *at))
        {
            if at > end {
                break;
            }
            self.due.remove(&name);
            let Some(zone) = self.want.get(&name).cloned() else {
                continue;
            };
            match zones.ask(&name, at) {
                TaintPermission::Wait => {}
                TaintPermission::After(wait) => {
                    self.due.insert(name, at.later(wait));
                }
                TaintPermission::Go { next } => {
                    assert!(!zones.all_down(), "nobody leaves when nothing is ready");
                    self.want.remove(&name);
                    self.gone.push((zone, at));
                    self.due.extend(next.map(|next| (next, at)));
                }
            }
        }
    }
}

proptest! {
    /// Never faster than the rate, and whoever waits gets there in the end.
    #[test]
    fn lines_move_at_the_rate(steps in steps()) {
        let mut zones = zones();
        let mut asking = Asking::default();
        let mut now = Instant::from_std(orlop_base::clock::monotonic());
        for step in steps {
            match step {
                Step::Observe { node, zone, ready, counts } => {
                    let (name, zone) = (format!("n{node}"), format!("z{zone}"));
                    if ready {
                        asking.want.remove(&name);
                    } else {
                        asking.want.insert(name.clone(), zone.clone());
                    }
                    asking.due.insert(name.clone(), now);
                    let change = zones.observe(&name, &zone, ready, counts);
                    asking.follow(change, now);
                }
                Step::Forget(node) => {
                    let name = format!("n{node}");
                    asking.want.remove(&name);
                    let change = zones.forget(&name);
                    asking.follow(change, now);
                }
                Step::Leave(node) => {
                    let name = format!("n{node}");
                    asking.want.remove(&name);
                    let next = zones.leave(&name);
                    asking.due.extend(next.map(|next| (next, now)));
                }
                Step::Pass { seconds } => now = now.later(Duration::from_secs(seconds.into())),
            }
            asking.play(&mut zones, now);
        }
        // Enough nodes to make every zone healthy.
        for n in 0..60 {
            for zone in 0..3 {
                let change = zones.observe(&format!("more-{zone}-{n}"), &format!("z{zone}"), true, true);
                asking.follow(change, now);
            }
        }
        asking.play(&mut zones, now.later(Duration::from_secs(1000)));
        prop_assert!(asking.want.is_empty(), "left waiting: {:?}", asking.want);
        for zone in ["z0", "z1", "z2"] {
            let times: Vec<Instant> = asking.gone.iter().filter(|(z, _)| z == zone).map(|(_, at)| *at).collect();
            prop_assert!(times.windows(2).all(|w| w[1].duration_since(w[0]) >= Duration::from_secs(10)), "{zone} {times:?}");
        }
    }
}
