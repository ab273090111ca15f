//! How long a pod may stay on a node with taints that make pods leave.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use crate::objects::Taint;
use crate::objects::Toleration;
use crate::objects::{Node, Pod};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EvictionDecision {
    Stays,
    /// It has been on notice since then, and goes after this long; zero is now.
    Goes {
        since: Instant,
        after: Duration,
    },
}

/// What the tolerations say to all taints together.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Tolerance {
    No,
    Forever,
    /// The least of what they allow. `added`: when the first of the taints that are tolerated for a while came, as far
    /// as that is written down.
    While {
        time: Duration,
        added: Option<Timestamp>,
    },
}

pub(super) fn no_execute(node: &Node) -> impl Iterator<Item = &Taint> {
    node.spec.taints.iter().filter(|taint| taint.effect == "NoExecute")
}

pub(super) fn tolerance<'a>(taints: impl Iterator<Item = &'a Taint>, tolerations: &[Toleration]) -> Tolerance {
    let mut least: Option<(i64, Option<Timestamp>)> = None;
    for taint in taints {
        // The first that matches counts, even if a later one allows more.
        let Some(toleration) = tolerations.iter().find(|t| t.tolerates(taint)) else {
            return Tolerance::No;
        };
        let Some(seconds) = toleration.toleration_seconds else {
            continue;
        };
        least = Some(match least {
            None => (seconds, taint.time_added),
            Some((least, added)) => (least.min(seconds), added.min(taint.time_added)),
        });
    }
    match least {
        None => Tolerance::Forever,
        Some((seconds, added)) => Tolerance::While {
            time: Duration::from_secs(u64::try_from(seconds).unwrap_or(0)),
            added,
        },
    }
}

/// `on_notice`: since when the pod has been known to have to leave. `now` and `wall` are the same moment.
pub(super) fn plan(
    pod: &Pod,
    node: Option<&Node>,
    on_notice: Option<Instant>,
    now: Instant,
    wall: Timestamp,
) -> EvictionDecision {
    let Some(node) = node.filter(|_| !pod.metadata.is_deleted()) else {
        return EvictionDecision::Stays;
    };
    match tolerance(no_execute(node), &pod.spec.tolerations) {
        Tolerance::Forever => EvictionDecision::Stays,
        Tolerance::No => EvictionDecision::Goes {
            since: on_notice.unwrap_or(now),
            after: Duration::ZERO,
        },
        Tolerance::While { time, added } => {
            let since = on_notice.unwrap_or_else(|| first_notice(pod, added, now, wall));
            let after = time.saturating_sub(now.saturating_duration_since(since));
            EvictionDecision::Goes { since, after }
        }
    }
}

/// Since when a pod that nobody remembers has been on notice: the taint may have come before this process did, but not
/// before the pod came to the node.
// Differs from upstream, which gives a pod its whole time again whenever the controller starts.
fn first_notice(pod: &Pod, added: Option<Timestamp>, now: Instant, wall: Timestamp) -> Instant {
    let scheduled = pod.condition("PodScheduled").and_then(|c| c.last_transition_time);
    let came = scheduled.or(pod.metadata.creation_timestamp);
    let (Some(added), Some(came)) = (added, came) else {
        return now;
    };
    let ago = Duration::try_from(wall.duration_since(added.max(came))).unwrap_or(Duration::ZERO);
    now.checked_sub(ago).unwrap_or(now)
}
