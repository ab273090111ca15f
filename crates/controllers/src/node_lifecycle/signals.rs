//! When each node last gave a sign of life.
//!
//! Signs are a lease that was renewed and a status whose heartbeat moved. What counts is when a sign was *seen* here, by a
//! clock that never jumps: the clocks of nodes may be wrong, and so may ours.

use std::time::Duration;

use jiff::Timestamp;
use rustc_hash::FxHashMap;
use tokio::time::Instant;

use crate::objects::{Lease, Node};

#[derive(Default)]
pub(super) struct Signals(FxHashMap<String, Signal>);

struct Signal {
    last: Instant,
    /// Whether there is a node of this name; a lease may be there before it.
    is_node: bool,
    /// The newest heartbeat of the condition Ready; the outer none means that there is no such condition.
    heartbeat: Option<Option<Timestamp>>,
    renewed: Option<Timestamp>,
}

impl Signals {
    pub(super) fn observe_node(&mut self, node: &Node, now: Instant, wall: Timestamp) {
        let heartbeat = node.condition("Ready").map(|ready| ready.last_heartbeat_time);
        let signal = self.0.entry(node.metadata.name.clone()).or_insert_with(|| {
            // A node that never reported has been silent since it came into being.
            let age = match (heartbeat, node.metadata.creation_timestamp) {
                (None, Some(created)) => wall.duration_since(created).try_into().unwrap_or(Duration::ZERO),
                _ => Duration::ZERO,
            };
            Signal {
                last: now.checked_sub(age).unwrap_or(now),
                is_node: false,
                heartbeat,
                renewed: None,
            }
        });
        signal.is_node = true;
        if signal.heartbeat != heartbeat {
            signal.heartbeat = heartbeat;
            signal.last = now;
        }
    }

    pub(super) fn observe_lease(&mut self, lease: &Lease, now: Instant) {
        let (name, renewed) = (lease.metadata.name.as_str(), lease.spec.renew_time);
        match self.0.get_mut(name) {
            Some(signal) if renewed > signal.renewed => {
                signal.renewed = renewed;
                signal.last = now;
            }
            Some(_) => {}
            None => {
                let signal = Signal {
                    last: now,
                    is_node: false,
                    heartbeat: None,
                    renewed,
                };
                self.0.insert(name.to_string(), signal);
            }
        }
    }

    pub(super) fn forget_node(&mut self, name: &str) {
        self.0.remove(name);
    }

    pub(super) fn forget_lease(&mut self, name: &str) {
        if self.0.get(name).is_some_and(|signal| !signal.is_node) {
            self.0.remove(name);
        }
    }

    /// None of a node that was never seen.
    pub(super) fn silent_for(&self, name: &str, now: Instant) -> Option<Duration> {
        self.0
            .get(name)
            .map(|signal| now.saturating_duration_since(signal.last))
    }

    /// All count as heard of now.
    pub(super) fn pardon_all(&mut self, now: Instant) {
        self.0.values_mut().for_each(|signal| signal.last = now);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn signs_of_life_count_from_when_they_are_seen() {
        let wall: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        let node = |heartbeat: Option<&str>| -> Node {
            let ready = |at: &str| json!([{"type": "Ready", "status": "True", "lastHeartbeatTime": at}]);
            serde_json::from_value(json!({
                "metadata": {"name": "n", "creationTimestamp": "2026-01-01T11:59:30Z"},
                "status": {"conditions": heartbeat.map_or(json!([]), ready)},
            }))
            .unwrap()
        };
        let lease = |at: &str| -> Lease {
            serde_json::from_value(json!({"metadata": {"name": "n"}, "spec": {"renewTime": at}})).unwrap()
        };
        let mut signals = Signals::default();
        let start = Instant::now() + Duration::from_secs(1000);
        let at = |s| start + Duration::from_secs(s);
        let silent = |signals: &Signals, s| signals.silent_for("n", at(s)).map(|d| d.as_secs());
        signals.observe_node(&node(None), at(0), wall);
        assert_eq!(silent(&signals, 0), Some(30), "since it was made");
        // A node's clock may be years off.
        signals.observe_node(&node(Some("2020-01-01T00:00:00Z")), at(5), wall);
        signals.observe_node(&node(Some("2020-01-01T00:00:00Z")), at(7), wall);
        assert_eq!(silent(&signals, 10), Some(5));
        signals.observe_lease(&lease("2020-01-01T00:00:01Z"), at(12));
        signals.observe_lease(&lease("2020-01-01T00:00:01Z"), at(15));
        assert_eq!(
            silent(&signals, 20),
            Some(8),
            "a lease that stays as it is says nothing"
        );
        signals.observe_lease(&lease("2019-01-01T00:00:01Z"), at(20));
        assert_eq!(silent(&signals, 20), Some(8), "nor does one that goes back");
        signals.pardon_all(at(30));
        assert_eq!(silent(&signals, 31), Some(1));
        signals.forget_lease("n");
        assert!(silent(&signals, 31).is_some(), "the node is still there");
        signals.forget_node("n");
        signals.observe_lease(&lease("2020-01-01T00:00:01Z"), at(40));
        assert_eq!(silent(&signals, 41), Some(1), "a lease may come first");
        signals.forget_lease("n");
        assert_eq!(silent(&signals, 41), None);
    }
}
