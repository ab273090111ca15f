//! What a node's silence and conditions mean for its conditions, taints, labels and pods.

use std::time::Duration;

use jiff::Timestamp;

use crate::objects::Taint;
use crate::objects::condition::whole_seconds;
use crate::objects::{Condition, Labels, Node, Pod, condition};

pub(super) const NOT_READY: &str = "node.kubernetes.io/not-ready";
pub(super) const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
const NO_SCHEDULE: &str = "NoSchedule";
const NO_EXECUTE: &str = "NoExecute";

/// Condition, its status, and the taint it calls for.
const RULES: [(&str, &str, &str); 6] = [
    ("Ready", "False", NOT_READY),
    ("Ready", "Unknown", UNREACHABLE),
    ("MemoryPressure", "True", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "True", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "True", "node.kubernetes.io/pid-pressure"),
    ("NetworkUnavailable", "True", "node.kubernetes.io/network-unavailable"),
];

/// What a kubelet reports. The network's state is not among it: others keep that.
const REPORTED: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

/// The label that leads, and its older name, which follows.
const LABELS: [(&str, &str); 2] = [
    ("kubernetes.io/os", "beta.kubernetes.io/os"),
    ("kubernetes.io/arch", "beta.kubernetes.io/arch"),
];

/// How long a node may be silent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grace {
    pub running: Duration,
    /// Of a node that has not reported anything yet.
    pub starting: Duration,
}

#[derive(Debug, Default, PartialEq)]
pub(super) struct Plan {
    /// The node has been silent for too long: its conditions as they should be. All else follows from them, later.
    pub conditions: Option<Vec<Condition>>,
    /// Labels to set.
    pub labels: Labels,
    /// The taints as they should be, if they are not.
    pub taints: Option<Vec<Taint>>,
    /// The taint that makes pods leave, as soon as the zone's rate allows it.
    pub evict: Option<&'static str>,
    /// Nobody hears of the node's pods any more: they can't count as ready.
    pub pods_unready: bool,
    /// When to see whether the node is still not silent for too long.
    pub look_after: Option<Duration>,
}

/// `all_down`: no node of the cluster is ready.
pub(super) fn plan(node: &Node, silent: Duration, all_down: bool, grace: Grace, now: Timestamp) -> Plan {
    let ready = node.condition("Ready");
    let status = ready.map_or("", |ready| ready.status.as_str());
    let grace = if ready.is_some() { grace.running } else { grace.starting };
    if status != "Unknown" && silent > grace {
        return Plan {
            conditions: Some(unknown(node, now)),
            ..Plan::default()
        };
    }
    let (taints, evict) = taints(node, status, all_down, now);
    Plan {
        conditions: None,
        labels: labels(node),
        taints: (taints != node.spec.taints).then_some(taints),
        evict,
        pods_unready: status == "Unknown",
        // Past it, not at it.
        look_after: (status != "Unknown")
            .then(|| grace.saturating_sub(silent).saturating_add(Duration::from_millis(1))),
    }
}

/// The conditions of a node that nobody hears of.
fn unknown(node: &Node, now: Timestamp) -> Vec<Condition> {
    let mut conditions = node.status.conditions.clone();
    let now = Some(whole_seconds(now));
    for kind in REPORTED {
        match conditions.iter_mut().find(|c| c.r#type == kind) {
            Some(known) if known.status == "Unknown" => {}
            Some(known) => {
                known.status = "Unknown".to_string();
                known.reason = "NodeStatusUnknown".to_string();
                known.message = "Kubelet stopped posting node status.".to_string();
                known.last_transition_time = now;
            }
            None => conditions.push(Condition {
                r#type: kind.to_string(),
                status: "Unknown".to_string(),
                reason: "NodeStatusNeverUpdated".to_string(),
                message: "Kubelet never posted node status.".to_string(),
                last_heartbeat_time: node.metadata.creation_timestamp,
                last_transition_time: now,
                ..Condition::default()
            }),
        }
    }
    conditions
}

fn labels(node: &Node) -> Labels {
    let labels = &node.metadata.labels;
    let follow = LABELS.iter().filter_map(|(leads, follows)| {
        let value = labels.get(*leads)?;
        (labels.get(*follows) != Some(value)).then(|| (follows.to_string(), value.clone()))
    });
    follow.collect()
}

/// The node's taints as they should be right now, and the one that has to wait. Taints of others stay.
fn taints(node: &Node, ready: &str, all_down: bool, now: Timestamp) -> (Vec<Taint>, Option<&'static str>) {
    let mut taints = node.spec.taints.clone();
    // Differs from upstream: a node that has not said anything yet keeps the taint it was born with.
    if ready.is_empty() {
        return (taints, None);
    }
    let new = |key: &str, effect: &str| Taint {
        key: key.to_string(),
        effect: effect.to_string(),
        time_added: Some(whole_seconds(now)),
        ..Taint::default()
    };
    let holds = |(kind, status, _): &&(&str, &str, &str)| node.condition(kind).is_some_and(|c| c.status == *status);
    let mut wanted: Vec<&str> = RULES.iter().filter(holds).map(|rule| rule.2).collect();
    if node.spec.unschedulable {
        wanted.push(UNSCHEDULABLE);
    }
    let follows = |taint: &Taint| {
        taint.effect == NO_SCHEDULE && (taint.key == UNSCHEDULABLE || RULES.iter().any(|rule| rule.2 == taint.key))
    };
    taints.retain(|taint| !follows(taint) || wanted.contains(&taint.key.as_str()));
    for key in wanted {
        if !has(&taints, key, NO_SCHEDULE) {
            taints.push(new(key, NO_SCHEDULE));
        }
    }

    let (evicts, other) = match ready {
        "False" if !all_down => (Some(NOT_READY), UNREACHABLE),
        "Unknown" if !all_down => (Some(UNREACHABLE), NOT_READY),
        _ => (None, ""),
    };
    // One such taint may at once become the other: its pods are leaving already.
    let leaving = evicts.is_some() && has(&taints, other, NO_EXECUTE);
    let ours = |taint: &Taint| taint.effect == NO_EXECUTE && (taint.key == NOT_READY || taint.key == UNREACHABLE);
    taints.retain(|taint| !ours(taint) || Some(taint.key.as_str()) == evicts);
    match evicts {
        Some(key) if has(&taints, key, NO_EXECUTE) => (taints, None),
        Some(key) if leaving => {
            taints.push(new(key, NO_EXECUTE));
            (taints, None)
        }
        evicts => (taints, evicts),
    }
}

fn has(taints: &[Taint], key: &str, effect: &str) -> bool {
    taints.iter().any(|taint| taint.key == key && taint.effect == effect)
}

/// The taints with the one that makes pods leave.
pub(super) fn with_eviction(mut taints: Vec<Taint>, key: &str, now: Timestamp) -> Vec<Taint> {
    taints.push(Taint {
        key: key.to_string(),
        effect: NO_EXECUTE.to_string(),
        time_added: Some(whole_seconds(now)),
        ..Taint::default()
    });
    taints
}

/// The pod's conditions without its being ready; none if it is not.
pub(super) fn unready(pod: &Pod, now: Timestamp) -> Option<Vec<Condition>> {
    let ready = pod.condition("Ready").filter(|ready| ready.status != "False")?.clone();
    let mut conditions = pod.status.conditions.clone();
    let status = "False".to_string();
    condition::set(&mut conditions, Condition { status, ..ready }, now);
    Some(conditions)
}

/// Which zone the node is in; empty for none.
// Upstream: component-helpers node/topology GetZoneKey (v1.36)
pub(super) fn zone(node: &Node) -> String {
    let label = |old: &str, new: &str| node.metadata.label(old).or(node.metadata.label(new)).unwrap_or("");
    let zone = label("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone");
    let region = label(
        "failure-domain.beta.kubernetes.io/region",
        "topology.kubernetes.io/region",
    );
    match (region, zone) {
        ("", "") => String::new(),
        (region, zone) => format!("{region}:\0:{zone}"),
    }
}

/// Whether the node says something of its zone's health.
pub(super) fn counts(node: &Node) -> bool {
    !node
        .metadata
        .labels
        .contains_key("node.kubernetes.io/exclude-disruption")
}
