//! Which pods of too many go first: those that are missed least.
// Upstream: pkg/controller/controller_utils.go ActivePodsWithRanks

use std::cmp::{Ordering, Reverse};
use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;

use crate::objects::Pod;

const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// The first `count` to go of the active pods.
pub fn first_to_go(active: &[&Arc<Pod>], related: &[Arc<Pod>], count: usize, now: Timestamp) -> Vec<Arc<Pod>> {
    if count >= active.len() {
        return active.iter().map(|pod| (*pod).clone()).collect();
    }
    let mut on_node: HashMap<&str, usize> = HashMap::new();
    for pod in related.iter().filter(|pod| pod.is_active()) {
        *on_node.entry(&pod.spec.node_name).or_default() += 1;
    }
    let mut ranked: Vec<(Place<'_>, &Arc<Pod>)> = active
        .iter()
        .map(|pod| {
            let together = on_node.get(pod.spec.node_name.as_str()).copied().unwrap_or(0);
            (Place { pod, together, now }, *pod)
        })
        .collect();
    ranked.sort_by(|(a, _), (b, _)| a.order(b));
    ranked.into_iter().take(count).map(|(_, pod)| pod.clone()).collect()
}

struct Place<'a> {
    pod: &'a Pod,
    /// Active pods of the family on the same node.
    together: usize,
    now: Timestamp,
}

impl Place<'_> {
    /// Less goes first.
    fn order(&self, other: &Place<'_>) -> Ordering {
        let (a, b) = (self.pod, other.pod);
        let assigned = |pod: &Pod| !pod.spec.node_name.is_empty();
        let phase = |pod: &Pod| match pod.status.phase.as_str() {
            "Pending" | "" => 0,
            "Unknown" => 1,
            _ => 2,
        };
        assigned(a)
            .cmp(&assigned(b))
            .then_with(|| phase(a).cmp(&phase(b)))
            .then_with(|| a.is_ready().cmp(&b.is_ready()))
            .then_with(|| cost(a).cmp(&cost(b)))
            .then_with(|| other.together.cmp(&self.together))
            .then_with(|| by_age(ready_since(a), ready_since(b), self.now, a.is_ready() && b.is_ready()))
            .then_with(|| Reverse(a.restarts()).cmp(&Reverse(b.restarts())))
            .then_with(|| {
                by_age(
                    a.metadata.creation_timestamp,
                    b.metadata.creation_timestamp,
                    self.now,
                    true,
                )
            })
            // Upstream leaves ties to the sort; a fixed order can be replayed.
            .then_with(|| a.metadata.uid.cmp(&b.metadata.uid))
    }
}

fn cost(pod: &Pod) -> i32 {
    pod.metadata
        .annotation(DELETION_COST)
        .and_then(|text| text.parse().ok())
        .unwrap_or(0)
}

fn ready_since(pod: &Pod) -> Option<Timestamp> {
    pod.condition("Ready")?.last_transition_time
}

/// Younger goes first, where ages count as equal if they are of the same order: so a scale down does not always take
/// what the newest node runs. Upstream: LogarithmicScaleDown. An unknown time goes before a known one.
fn by_age(a: Option<Timestamp>, b: Option<Timestamp>, now: Timestamp, counts: bool) -> Ordering {
    if !counts || a == b {
        return Ordering::Equal;
    }
    match (a, b) {
        (None, _) => Ordering::Less,
        (_, None) => Ordering::Greater,
        (Some(a), Some(b)) => order_of_age(a, now).cmp(&order_of_age(b, now)),
    }
}

fn order_of_age(since: Timestamp, now: Timestamp) -> i64 {
    let seconds = now.as_second().saturating_sub(since.as_second());
    if seconds <= 0 {
        -1
    } else {
        i64::from(63 - seconds.leading_zeros() as i32)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_least_missed_go_first() {
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        let pod =
            |name: &str, node: &str, phase: &str, ready: Option<&str>, cost: &str, restarts: i64, created: &str| {
                let condition = |since: &str| json!([{"type": "Ready", "status": "True", "lastTransitionTime": since}]);
                let pod: Pod = serde_json::from_value(json!({
                    "metadata": {"name": name, "uid": name, "creationTimestamp": created,
                                 "annotations": {DELETION_COST: cost}},
                    "spec": {"nodeName": node},
                    "status": {"phase": phase, "conditions": ready.map_or(json!([]), condition),
                               "containerStatuses": [{"restartCount": restarts}]},
                }))
                .unwrap();
                Arc::new(pod)
            };
        let (old, young) = ("2026-01-01T08:00:00Z", "2026-01-01T11:59:00Z");
        // In the order in which they must go.
        let pods = [
            pod("unassigned", "", "Pending", None, "", 0, old),
            pod("pending", "n0", "Pending", None, "", 0, old),
            pod("unready", "n0", "Running", None, "", 0, old),
            pod("cheap", "n0", "Running", Some(old), "-5", 0, old),
            pod("crowded", "n1", "Running", Some(old), "", 0, old),
            pod("lately-ready", "n2", "Running", Some(young), "", 0, old),
            pod("restarted", "n3", "Running", Some(old), "", 3, old),
            pod("young", "n4", "Running", Some(old), "", 0, young),
            pod("old", "n5", "Running", Some(old), "", 0, old),
            pod("dear", "n1", "Running", Some(old), "7", 0, young),
        ];
        let mut shuffled: Vec<&Arc<Pod>> = pods.iter().rev().collect();
        shuffled.rotate_left(3);
        let first = first_to_go(&shuffled, &pods, 9, now);
        let names = |pods: &[Arc<Pod>]| pods.iter().map(|p| p.metadata.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&first), names(&pods[..9]));
        assert_eq!(first_to_go(&shuffled, &pods, 99, now).len(), 10);
    }
}
