//! Figures from the moments at which pods were bound. Pure.

use std::time::Duration;

const WINDOW: Duration = Duration::from_secs(1);

/// Rates (pods/s) of 1 s windows by the rules of scheduler_perf: nothing is recorded until the first window with a binding
/// is over, and that one is dropped; windows without bindings are joined to the next one that has some, whose rate is then
/// recorded once for each of them. `bound` is sorted and counts from the start of the measurement, as does `end`, after
/// which no window is closed.
// Upstream: test/integration/scheduler_perf, throughputCollector (v1.36)
pub(super) fn windows(bound: &[Duration], end: Duration) -> Vec<f64> {
    let mut rates = vec![];
    let mut last: Option<(Duration, usize)> = None;
    let mut joined = 1;
    let mut now = WINDOW;
    while now <= end {
        let count = bound.partition_point(|at| *at <= now);
        match last {
            None if count == 0 => {}
            None => last = Some((now, count)),
            Some((_, before)) if count == before => joined += 1,
            Some((since, before)) => {
                let rate = (count - before) as f64 / now.saturating_sub(since).as_secs_f64();
                rates.extend(std::iter::repeat_n(rate, joined));
                (last, joined) = (Some((now, count)), 1);
            }
        }
        now = now.saturating_add(WINDOW);
    }
    rates
}

/// When scheduler_perf would notice that all pods are bound: it looks once a second from the moment all are created.
pub(super) fn noticed(all_created: Duration, last_bound: Duration) -> Duration {
    let late = last_bound.saturating_sub(all_created);
    all_created.saturating_add(WINDOW.saturating_mul(late.as_millis().div_ceil(WINDOW.as_millis()) as u32))
}

/// The value at this share of a sorted list, by rank rounded up; 0 for an empty one.
pub(super) fn percentile(sorted: &[f64], share: f64) -> f64 {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied().unwrap_or(0.0)
}

pub(super) fn mean(values: &[f64]) -> f64 {
    match values.len() {
        0 => 0.0,
        n => values.iter().sum::<f64>() / n as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: &[f64]) -> Vec<Duration> {
        seconds.iter().map(|s| Duration::from_secs_f64(*s)).collect()
    }

    #[test]
    fn windows_follow_scheduler_perf() {
        let cases: [(&str, &[f64], f64, &[f64]); 6] = [
            ("nothing bound", &[], 5.0, &[]),
            ("the first window is dropped", &[0.1, 0.2, 0.3], 1.0, &[]),
            ("then each counts", &[0.1, 1.1, 1.2, 2.5], 3.0, &[2.0, 1.0]),
            ("empty windows before the first binding", &[2.5, 3.1, 3.2], 4.0, &[2.0]),
            (
                "a gap takes the rate of the whole",
                &[0.5, 3.1, 3.2, 3.3],
                4.0,
                &[1.0, 1.0, 1.0],
            ),
            ("a gap at the end is left out", &[0.5, 1.5], 9.0, &[1.0]),
        ];
        for (name, bound, end, wanted) in cases {
            assert_eq!(windows(&at(bound), Duration::from_secs_f64(end)), wanted, "{name}");
        }
    }

    #[test]
    fn the_end_is_noticed_once_a_second() {
        let ms = Duration::from_millis;
        for (created, bound, wanted) in [
            (2500, 2400, 2500),
            (2500, 2600, 3500),
            (2500, 3500, 3500),
            (0, 3001, 4000),
        ] {
            assert_eq!(noticed(ms(created), ms(bound)), ms(wanted));
        }
    }

    #[test]
    fn percentiles_round_the_rank_up() {
        let values: Vec<f64> = (1..=10).map(f64::from).collect();
        for (share, wanted) in [
            (0.5, 5.0),
            (0.9, 9.0),
            (0.95, 10.0),
            (0.99, 10.0),
            (0.0, 1.0),
            (1.0, 10.0),
        ] {
            assert_eq!(percentile(&values, share), wanted, "{share}");
        }
        assert_eq!(percentile(&[], 0.5), 0.0);
        assert_eq!(mean(&[1.0, 2.0]), 1.5);
        assert_eq!(mean(&[]), 0.0);
    }
}
