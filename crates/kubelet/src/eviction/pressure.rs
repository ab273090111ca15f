//! Which thresholds are met, for how long, and which node conditions follow. Pure.
//!
//! A threshold that is met stays met until its minimum reclaim is available in addition; it is acted on after its grace
//! period. A node condition stays for the transition period after its last threshold was met.
//!
//! Upstream: pkg/kubelet/eviction/eviction_manager.go `synchronize` (v1.36).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use super::signals::{Kind, Observations, Threshold};
use crate::node::Pressure;

/// State between observations. Thresholds are identified by their index.
#[derive(Clone, Debug, Default)]
pub struct PressureState {
    first_met: BTreeMap<usize, Timestamp>,
    last_seen: BTreeMap<Kind, Timestamp>,
    /// With their grace period over, and not resolved yet.
    met: BTreeSet<usize>,
}

/// The result of one observation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    pub pressure: Pressure,
    /// The thresholds to act on, the most urgent first.
    pub act_on: Vec<usize>,
}

pub fn look(
    observations: &Observations,
    thresholds: &[Threshold],
    state: &mut PressureState,
    transition: Duration,
    now: Timestamp,
) -> Verdict {
    let mut met: BTreeSet<usize> = met(observations, thresholds, false).collect();
    met.extend(self::met(observations, thresholds, true).filter(|i| state.met.contains(i)));
    state.first_met.retain(|i, _| met.contains(i));
    for &i in &met {
        state.first_met.entry(i).or_insert(now);
        state.last_seen.insert(thresholds[i].signal.kind(), now);
    }
    let under = |kind: Kind| {
        let seen = state.last_seen.get(&kind);
        seen.is_some_and(|seen| since(*seen, now) < transition)
    };
    let pressure = Pressure {
        memory: under(Kind::Memory),
        disk: under(Kind::Disk),
        pid: under(Kind::Pid),
    };
    let over = |(i, first): (&usize, &Timestamp)| (since(*first, now) >= thresholds[*i].grace).then_some(*i);
    state.met = state.first_met.iter().filter_map(over).collect();
    let mut act_on: Vec<usize> = state.met.iter().copied().collect();
    // Memory first: without it nothing else works. The sort keeps the order of the rest.
    act_on.sort_by_key(|i| thresholds[*i].signal.kind() != Kind::Memory);
    Verdict { pressure, act_on }
}

/// The thresholds that are met, whatever their grace period.
pub fn met(observations: &Observations, thresholds: &[Threshold], reclaimed: bool) -> impl Iterator<Item = usize> {
    thresholds.iter().enumerate().filter_map(move |(i, threshold)| {
        let observed = observations.get(&threshold.signal)?;
        threshold.is_met(observed, reclaimed).then_some(i)
    })
}

fn since(then: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(then)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;
    use crate::eviction::signals::{Observation, Signal};
    use orlop_api::quantity::Quantity;
    use proptest::prelude::*;

    fn threshold(signal: Signal, value: &str, grace: u64, reclaim: Option<&str>) -> Threshold {
        let quantity = |text: &str| config::Threshold::Quantity(Quantity::parse(text).unwrap());
        Threshold {
            signal,
            value: quantity(value),
            grace: Duration::from_secs(grace),
            min_reclaim: reclaim.map(quantity),
        }
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + seconds).unwrap()
    }

    fn seen(memory: i64, disk: i64) -> Observations {
        let of = |available| Observation {
            available,
            capacity: 1000,
        };
        [
            (Signal::MemoryAvailable, of(memory)),
            (Signal::NodeFsAvailable, of(disk)),
        ]
        .into()
    }

    /// Each line: seconds, memory and disk available; pressure `m`, `d`; what is acted on.
    #[test]
    fn thresholds_over_time() {
        let thresholds = [
            threshold(Signal::NodeFsAvailable, "100", 0, Some("50")),
            threshold(Signal::MemoryAvailable, "200", 30, None),
            threshold(Signal::MemoryAvailable, "50", 0, None),
        ];
        let mut state = PressureState::default();
        for (second, memory, disk, pressure, act_on) in [
            (0, 500, 500, "", &[][..]),
            (10, 100, 500, "m", &[]), // soft: not yet
            (30, 100, 500, "m", &[]),
            (35, 250, 500, "m", &[]), // above again: the grace period starts anew
            (40, 100, 500, "m", &[]),
            (69, 100, 500, "m", &[]),
            (70, 100, 500, "m", &[1]),
            (71, 40, 500, "m", &[1, 2]),
            (72, 40, 99, "md", &[1, 2, 0]), // memory first
            (73, 500, 120, "md", &[0]),     // above, but not by as much as is to be reclaimed
            (74, 500, 149, "md", &[0]),
            (75, 500, 150, "md", &[]),
            (76, 500, 140, "md", &[]), // resolved: only the threshold itself counts again
            (371, 500, 500, "md", &[]),
            (372, 500, 500, "d", &[]), // five minutes after the last time
            (374, 500, 500, "", &[]),
        ] {
            let verdict = look(
                &seen(memory, disk),
                &thresholds,
                &mut state,
                Duration::from_secs(300),
                at(second),
            );
            let mut shown = String::new();
            shown.extend(verdict.pressure.memory.then_some('m'));
            shown.extend(verdict.pressure.disk.then_some('d'));
            assert_eq!((shown.as_str(), &verdict.act_on[..]), (pressure, act_on), "{second}");
        }
    }

    #[test]
    fn what_is_not_observed_is_not_short() {
        let thresholds = [threshold(Signal::PidAvailable, "10", 0, None)];
        let verdict = look(
            &seen(0, 0),
            &thresholds,
            &mut PressureState::default(),
            Duration::from_secs(1),
            at(0),
        );
        assert_eq!(verdict, Verdict::default());
    }

    proptest! {
        /// Acts only while less is there than threshold and reclaim together, never before the grace period is over,
        /// and pressure is reported whenever there is something to act on.
        #[test]
        fn acts_only_when_short(steps in proptest::collection::vec((1i64..40, 0i64..400), 1..60), grace in 0u64..60) {
            let thresholds = [threshold(Signal::MemoryAvailable, "200", grace, Some("100"))];
            let (mut state, mut now, mut short_since) = (PressureState::default(), 0, None);
            for (step, memory) in steps {
                now += step;
                let verdict = look(&seen(memory, 0), &thresholds, &mut state, Duration::from_secs(300), at(now));
                if memory < 200 {
                    short_since.get_or_insert(now);
                } else if memory >= 300 {
                    short_since = None;
                }
                if !verdict.act_on.is_empty() {
                    prop_assert!(memory < 300);
                    prop_assert!(short_since.is_some_and(|s| now - s >= grace as i64));
                    prop_assert!(verdict.pressure.memory);
                }
                if memory < 200 {
                    prop_assert!(verdict.pressure.memory);
                }
                if grace == 0 && memory < 200 {
                    prop_assert_eq!(verdict.act_on, [0]);
                }
            }
        }
    }
}
