//! How long to wait after pods have failed: 10 s after the first failure in a row, then twice as long each time, up to
//! 10 minutes. A success begins a new row.
// Upstream: pkg/controller/job/backoff_utils.go (v1.36)

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::objects::Pod;

const FIRST: Duration = Duration::from_secs(10);
const MAX: Duration = Duration::from_secs(600);

/// The failures since the last success.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Backoff {
    pub failures: i64,
    pub last: Option<Timestamp>,
}

impl Backoff {
    /// As it is after more pods have ended, well or badly, at these times.
    pub(super) fn after(&self, succeeded: &[Timestamp], failed: &[Timestamp]) -> Backoff {
        let last_success = succeeded.iter().max();
        let mut row = if last_success.is_some() {
            Backoff::default()
        } else {
            *self
        };
        for at in failed
            .iter()
            .filter(|at| last_success.is_none_or(|success| *at > success))
        {
            row.failures += 1;
            row.last = row.last.max(Some(*at));
        }
        row
    }

    /// How long until pods may be made again.
    pub(super) fn wait(&self, now: Timestamp) -> Duration {
        wait(self.failures, self.last, now)
    }
}

pub(super) fn wait(failures: i64, last: Option<Timestamp>, now: Timestamp) -> Duration {
    let (Some(last), Some(doublings)) = (last, failures.checked_sub(1).filter(|n| *n >= 0)) else {
        return Duration::ZERO;
    };
    let whole = FIRST.saturating_mul(1 << doublings.min(16)).min(MAX);
    // A clock that was set back does not make it longer than it can be.
    let since = Duration::try_from(now.duration_since(last)).unwrap_or_default();
    whole.saturating_sub(since)
}

/// The end of the last container; where that is not known, what comes nearest to it.
pub(super) fn ended_at(pod: &Pod) -> Timestamp {
    containers_ended_at(pod)
        .or_else(|| {
            pod.condition("Ready")
                .filter(|c| c.status == "False")?
                .last_transition_time
        })
        .or_else(|| {
            let grace = SignedDuration::from_secs(pod.metadata.deletion_grace_period_seconds.unwrap_or(0));
            pod.metadata.deletion_timestamp?.checked_sub(grace).ok()
        })
        .or(pod.metadata.creation_timestamp)
        .unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Sidecars end after the containers, so they count as well.
fn containers_ended_at(pod: &Pod) -> Option<Timestamp> {
    let is_sidecar = |name: &str| {
        let mut inits = pod.spec.init_containers.iter();
        inits.any(|c| c.name == name && c.restart_policy == "Always")
    };
    let sidecars = pod
        .status
        .init_container_statuses
        .iter()
        .filter(|s| is_sidecar(&s.name));
    let mut last = None;
    for status in pod.status.container_statuses.iter().chain(sidecars) {
        last = last.max(Some(status.state.terminated.as_ref()?.finished_at?));
    }
    last
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn waits_double_up_to_ten_minutes() {
        for (failures, wanted) in [
            (0, 0),
            (1, 10),
            (2, 20),
            (3, 40),
            (6, 320),
            (7, 600),
            (8, 600),
            (i64::MAX, 600),
        ] {
            let row = Backoff {
                failures,
                last: Some(at(1000)),
            };
            assert_eq!(row.wait(at(1000)).as_secs(), wanted, "{failures} failures");
            assert_eq!(row.wait(at(1000 + 4)).as_secs(), u64::saturating_sub(wanted, 4));
            assert_eq!(row.wait(at(500)).as_secs(), wanted, "a clock set back");
        }
    }

    #[test]
    fn a_success_begins_a_new_row() {
        let row = |failures, last: i64| Backoff {
            failures,
            last: (last > 0).then(|| at(last)),
        };
        for (before, succeeded, failed, wanted) in [
            (row(0, 0), vec![], vec![], row(0, 0)),
            (row(2, 50), vec![], vec![], row(2, 50)),
            (row(2, 50), vec![], vec![70, 60], row(4, 70)),
            (row(2, 50), vec![60], vec![], row(0, 0)),
            (row(2, 50), vec![60], vec![55, 60], row(0, 0)),
            (row(2, 50), vec![60, 40], vec![61, 80, 59], row(2, 80)),
        ] {
            let times = |seconds: &[i64]| seconds.iter().map(|t| at(*t)).collect::<Vec<_>>();
            let after = before.after(&times(&succeeded), &times(&failed));
            assert_eq!(after, wanted, "{before:?} + {succeeded:?} / {failed:?}");
        }
    }

    #[test]
    fn when_a_pod_ended() {
        let time = |t: i64| at(t).to_string();
        let ended = |t: i64| json!({"state": {"terminated": {"finishedAt": time(t)}}});
        let side = json!({"name": "s", "state": {"terminated": {"finishedAt": time(90)}}});
        let meta =
            json!({"creationTimestamp": time(10), "deletionTimestamp": time(80), "deletionGracePeriodSeconds": 30});
        let unready = json!([{"type": "Ready", "status": "False", "lastTransitionTime": time(60)}]);
        for (pod, wanted) in [
            (
                json!({"metadata": meta, "status": {"containerStatuses": [ended(40), ended(70), ended(50)]}}),
                70,
            ),
            (
                json!({"metadata": meta, "spec": {"initContainers": [{"name": "s", "restartPolicy": "Always"}]},
                       "status": {"containerStatuses": [ended(40)], "initContainerStatuses": [side]}}),
                90,
            ),
            (
                json!({"metadata": meta, "spec": {"initContainers": [{"name": "s"}]},
                       "status": {"containerStatuses": [ended(40)], "initContainerStatuses": [side]}}),
                40,
            ),
            (
                json!({"metadata": meta, "status": {"containerStatuses": [ended(40), {}], "conditions": unready}}),
                60,
            ),
            (
                json!({"metadata": meta, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}),
                50,
            ),
            (json!({"metadata": {"creationTimestamp": time(10)}}), 10),
        ] {
            let pod: Pod = serde_json::from_value(pod).unwrap();
            assert_eq!(ended_at(&pod), at(wanted), "{pod:?}");
        }
    }
}
