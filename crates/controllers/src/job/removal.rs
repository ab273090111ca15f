//! Which of a Job's active pods go when there are too many: those that have come least far, and of an index with several
//! pods all but one.

use std::cmp::{Ordering, Reverse};
use std::collections::BTreeMap;
use std::sync::Arc;

use super::view::index_of;
use crate::objects::{Job, Pod};

/// At least `at_least` of the active pods; for an indexed Job also those without a place of their own.
pub(super) fn to_remove(job: &Job, active: &[&Arc<Pod>], at_least: usize) -> Vec<Arc<Pod>> {
    let (mut gone, mut left): (Vec<&Arc<Pod>>, Vec<&Arc<Pod>>) = (vec![], vec![]);
    if job.is_indexed() {
        let completions = job.spec.completions.unwrap_or(0);
        let mut by_index: BTreeMap<i64, Vec<&Arc<Pod>>> = BTreeMap::new();
        for pod in active {
            match index_of(pod).filter(|index| *index < completions) {
                Some(index) => by_index.entry(index).or_default().push(pod),
                None => gone.push(pod),
            }
        }
        for mut pods in by_index.into_values() {
            pods.sort_by(|a, b| least_missed(a, b));
            left.extend(pods.pop());
            gone.append(&mut pods);
        }
    } else {
        left.extend(active);
    }
    if gone.len() < at_least {
        left.sort_by(|a, b| least_missed(a, b));
        let more = at_least - gone.len();
        gone.extend(left.into_iter().take(more));
    }
    gone.into_iter().cloned().collect()
}

/// Less goes first.
// Upstream: pkg/controller/controller_utils.go ActivePods
fn least_missed(a: &Pod, b: &Pod) -> Ordering {
    let phase = |pod: &Pod| match pod.status.phase.as_str() {
        "Pending" | "" => 0,
        "Unknown" => 1,
        _ => 2,
    };
    // Younger goes first, and what has no time at all before everything.
    let young = |t: Option<jiff::Timestamp>| (t.is_some(), Reverse(t));
    let ready_since = |pod: &Pod| pod.condition("Ready").filter(|c| c.is_true())?.last_transition_time;
    let place = |pod: &Pod| {
        (
            !pod.spec.node_name.is_empty(),
            phase(pod),
            pod.is_ready(),
            young(ready_since(pod)),
            Reverse(pod.restarts()),
            young(pod.metadata.creation_timestamp),
        )
    };
    // A fixed order among equals can be replayed.
    place(a)
        .cmp(&place(b))
        .then_with(|| a.metadata.uid.cmp(&b.metadata.uid))
}
