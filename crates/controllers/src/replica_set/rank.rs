//! Which pods of too many go first: those that are missed least.
// Upstream: pkg/controller/controller_utils.go ActivePodsWithRanks

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;

use crate::objects::Pod;

const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// The first `count` to go of the active pods.
pub(super) fn first_to_go(active: &[&Arc<Pod>], related: &[Arc<Pod>], count: usize, now: Timestamp) -> Vec<Arc<Pod>> {
    if count >= active.len() {
        return active.iter().map(|pod| (*pod).clone()).collect();
    }
    let mut on_node: HashMap<&str, usize> = HashMap::new();
    for pod in related.iter().filter(|pod| pod.is_active()) {
        *on_node.entry(&pod.spec.node_name).or_default() += 1;
    }
    let mut ranked: Vec<&Arc<Pod>> = active.to_vec();
    ranked.sort_by_cached_key(|pod| {
        let together = on_node.get(pod.spec.node_name.as_str()).copied().unwrap_or(0);
        place(pod, together, now)
    });
    ranked.into_iter().take(count).cloned().collect()
}

/// Less goes first. `together`: active pods of the family on the same node.
///
/// Ages count as equal if they are of the same order, so that a scale down does not always take what the newest node runs
/// (upstream: LogarithmicScaleDown). Upstream lets chance decide there at once; here what follows may say more, and only then
/// chance, the uid, decides.
fn place(pod: &Pod, together: usize, now: Timestamp) -> impl Ord + use<> {
    let phase = match pod.status.phase.as_str() {
        "Pending" | "" => 0,
        "Unknown" => 1,
        _ => 2,
    };
    (
        (!pod.spec.node_name.is_empty(), phase, pod.is_ready()),
        (cost(pod), Reverse(together), order_of_age(ready_since(pod), now)),
        (Reverse(pod.restarts()), Reverse(pod.sidecar_restarts())),
        order_of_age(pod.metadata.creation_timestamp, now),
        pod.metadata.uid.clone(),
    )
}

fn cost(pod: &Pod) -> i32 {
    pod.metadata
        .annotation(DELETION_COST)
        .and_then(|text| text.parse().ok())
        .unwrap_or(0)
}

/// None for pods that are not ready: they are alike here.
fn ready_since(pod: &Pod) -> Option<Timestamp> {
    pod.condition("Ready").filter(|c| c.is_true())?.last_transition_time
}

/// The power of two that the age is above: -1 for none yet. An unknown time goes before a known one.
fn order_of_age(since: Option<Timestamp>, now: Timestamp) -> Option<i64> {
    let age = i64::try_from(now.duration_since(since?).as_nanos()).unwrap_or(i64::MAX);
    Some(if age > 0 { i64::from(age.ilog2()) } else { -1 })
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
