//! Seats that a priority level does not need are lent to those that do. Every ten seconds: how many seats each level could
//! have used, and from that how many it has from now on. Pure.
//!
//! Upstream: updateBorrowing and computeConcurrencyAllocation of k8s.io/apiserver (v1.36).

use std::time::Duration;

/// How often limits are adjusted.
pub(super) const PERIOD: Duration = Duration::from_secs(10);
/// Of the smoothed demand so much remains after a period: half of it after five minutes.
const SMOOTHING: f64 = 0.977;
/// Nobody's target is less, so that shares can be computed.
const TARGET_MIN: f64 = 0.001;

/// The demand for seats over time.
#[derive(Clone, Debug, Default)]
pub(super) struct Integrator {
    value: f64,
    since: Duration,
    began: Duration,
    sum: f64,
    sum_of_squares: f64,
    max: f64,
}

/// What was demanded in a period.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Observed {
    pub average: f64,
    pub deviation: f64,
    pub max: f64,
}

impl Integrator {
    pub(super) fn set(&mut self, now: Duration, value: f64) {
        let seconds = now.saturating_sub(self.since).as_secs_f64();
        self.sum += self.value * seconds;
        self.sum_of_squares += self.value * self.value * seconds;
        self.since = self.since.max(now);
        self.value = value;
        self.max = self.max.max(value);
    }

    /// Ends a period and begins the next one.
    pub(super) fn reset(&mut self, now: Duration) -> Observed {
        self.set(now, self.value);
        let seconds = now.saturating_sub(self.began).as_secs_f64();
        let observed = match seconds > 0.0 {
            true => {
                let average = self.sum / seconds;
                let variance = self.sum_of_squares / seconds - average * average;
                Observed {
                    average,
                    deviation: variance.max(0.0).sqrt(),
                    max: self.max,
                }
            }
            false => Observed {
                average: self.value,
                deviation: 0.0,
                max: self.max,
            },
        };
        (self.sum, self.sum_of_squares, self.max, self.began) = (0.0, 0.0, self.value, now);
        observed
    }
}

/// A level's demand over the periods.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Demand {
    pub observed: Observed,
    pub smoothed: f64,
}

impl Demand {
    /// Rises at once, falls slowly.
    pub(super) fn update(&mut self, observed: Observed) {
        self.observed = observed;
        let envelope = observed.average + observed.deviation;
        self.smoothed = envelope.max(SMOOTHING * self.smoothed + (1.0 - SMOOTHING) * envelope);
    }
}

/// The bounds of a level's seats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bounds {
    pub nominal: u32,
    pub min: u32,
    pub max: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Party {
    pub is_exempt: bool,
    pub bounds: Bounds,
    pub demand: Demand,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Share {
    pub seats: u32,
    pub target: f64,
}

/// The seats of each level, and the fair fraction: by what targets were multiplied.
pub(super) fn adjust(parties: &[Party]) -> (Vec<Share>, f64) {
    let nominal_sum: i64 = parties.iter().map(|p| i64::from(p.bounds.nominal)).sum();
    let peak = |party: &Party| party.demand.observed.max.round() as u32;
    let exempt = |party: &Party| party.bounds.min.max(peak(party));
    // What it lends it gets back at once when it needs it.
    let lower = |party: &Party| party.bounds.min.max(party.bounds.nominal.min(peak(party)));
    let limited = || parties.iter().filter(|party| !party.is_exempt);
    let exempt_sum: i64 = parties
        .iter()
        .filter(|p| p.is_exempt)
        .map(|p| i64::from(exempt(p)))
        .sum();
    let left = nominal_sum - exempt_sum;
    let min_sum: i64 = limited().map(|p| i64::from(p.bounds.min)).sum();
    let lower_sum: i64 = limited().map(|p| i64::from(lower(p))).sum();
    let items: Vec<Item> = limited()
        .map(|party| {
            let low = f64::from(lower(party));
            Item {
                low,
                high: f64::from(party.bounds.max).max(low),
                target: low.max(party.demand.smoothed),
            }
        })
        .collect();
    let (seats, fair): (Vec<f64>, f64) = if left <= min_sum {
        (limited().map(|p| f64::from(p.bounds.min)).collect(), 0.0)
    } else if left <= lower_sum {
        let part = (left - min_sum) as f64 / (lower_sum - min_sum) as f64;
        let between = |p: &Party| f64::from(p.bounds.min) + (f64::from(lower(p) - p.bounds.min) * part).round();
        (limited().map(between).collect(), 0.0)
    } else {
        allocate(left as f64, &items)
    };
    let mut limited_shares = seats.iter().zip(&items).map(|(seats, item)| Share {
        seats: seats.round() as u32,
        target: item.target,
    });
    let share = |party: &Party| match party.is_exempt {
        true => Some(Share {
            seats: exempt(party),
            target: f64::from(exempt(party)),
        }),
        false => limited_shares.next(),
    };
    (parties.iter().map(share).map(Option::unwrap_or_default).collect(), fair)
}

#[derive(Clone, Copy, Debug)]
struct Item {
    low: f64,
    high: f64,
    target: f64,
}

impl Item {
    fn at(&self, fraction: f64) -> f64 {
        (fraction * self.target.max(TARGET_MIN)).clamp(self.low, self.high)
    }
}

/// Multiplies all targets by the same fraction, within bounds, so that together they are `sum`, or as near as bounds allow.
fn allocate(sum: f64, items: &[Item]) -> (Vec<f64>, f64) {
    let total = |fraction: f64| items.iter().map(|item| item.at(fraction)).sum::<f64>();
    let relative = |bound: fn(&Item) -> f64| items.iter().map(move |item| bound(item) / item.target.max(TARGET_MIN));
    let mut bounds: Vec<f64> = relative(|item| item.low).chain(relative(|item| item.high)).collect();
    bounds.sort_by(f64::total_cmp);
    // Between two neighbouring bounds the total is a straight line.
    let mut low = 0.0;
    let mut fraction = bounds.last().copied().unwrap_or(0.0);
    for bound in bounds {
        let (before, after) = (total(low), total(bound));
        if after >= sum {
            let slope = after - before;
            fraction = match slope > 0.0 {
                true => low + (bound - low) * ((sum - before) / slope).clamp(0.0, 1.0),
                false => bound,
            };
            break;
        }
        low = bound;
    }
    (items.iter().map(|item| item.at(fraction)).collect(), fraction)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn party(nominal: u32, min: u32, max: u32, demand: f64) -> Party {
        let mut party = Party {
            is_exempt: false,
            bounds: Bounds { nominal, min, max },
            demand: Demand::default(),
        };
        party.demand.update(Observed {
            average: demand,
            deviation: 0.0,
            max: demand,
        });
        party
    }

    fn seats(parties: &[Party]) -> Vec<u32> {
        adjust(parties).0.iter().map(|share| share.seats).collect()
    }

    #[test]
    fn seats_go_where_they_are_used() {
        // Nobody does anything: by the lower bounds.
        assert_eq!(seats(&[party(50, 50, 100, 0.0), party(50, 50, 100, 0.0)]), [50, 50]);
        // One lends, the other borrows.
        assert_eq!(seats(&[party(50, 10, 100, 0.0), party(50, 10, 100, 500.0)]), [10, 90]);
        assert_eq!(seats(&[party(50, 10, 100, 0.0), party(50, 10, 60, 500.0)]), [40, 60]);
        // Who needs its own gets it back.
        assert_eq!(seats(&[party(50, 10, 100, 50.0), party(50, 10, 100, 500.0)]), [50, 50]);
        // Exempt requests take what they take.
        let exempt = Party {
            is_exempt: true,
            ..party(0, 0, 0, 30.0)
        };
        assert_eq!(
            seats(&[exempt, party(50, 10, 100, 50.0), party(50, 10, 100, 50.0)]),
            [30, 35, 35]
        );
        let all = Party {
            is_exempt: true,
            ..party(0, 0, 0, 300.0)
        };
        assert_eq!(
            seats(&[all, party(50, 10, 100, 50.0), party(50, 10, 100, 50.0)]),
            [300, 10, 10]
        );
    }

    #[test]
    fn demand_rises_at_once_and_falls_slowly() {
        let mut integrator = Integrator::default();
        let at = Duration::from_secs;
        integrator.set(at(0), 10.0);
        integrator.set(at(5), 0.0);
        let observed = integrator.reset(at(10));
        assert_eq!((observed.average, observed.deviation, observed.max), (5.0, 5.0, 10.0));
        let mut demand = Demand::default();
        demand.update(observed);
        assert_eq!(demand.smoothed, 10.0);
        demand.update(integrator.reset(at(20)));
        assert!(demand.smoothed > 9.7 && demand.smoothed < 9.8);
        assert_eq!(demand.observed.max, 0.0);
    }

    proptest! {
        #[test]
        fn bounds_hold_and_nothing_is_wasted(
            parts in proptest::collection::vec((1..100_u32, 0..100_u32, 0..200_u32, 0.0..300.0_f64), 1..8)
        ) {
            let parties: Vec<Party> = parts
                .iter()
                .map(|(nominal, lent, borrow, demand)| {
                    party(*nominal, nominal - nominal * lent / 100, nominal + borrow, *demand)
                })
                .collect();
            let (shares, _) = adjust(&parties);
            for (party, share) in parties.iter().zip(&shares) {
                prop_assert!(share.seats >= party.bounds.min && share.seats <= party.bounds.max);
            }
            let (given, there): (i64, i64) = (
                shares.iter().map(|s| i64::from(s.seats)).sum(),
                parties.iter().map(|p| i64::from(p.bounds.nominal)).sum(),
            );
            // But for rounding.
            prop_assert!((given - there).abs() <= parties.len() as i64, "{given} of {there}");
        }
    }
}
