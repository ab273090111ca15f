//! Rates and latencies.

use std::time::Duration;

use orlop_base::clock::monotonic;

/// What one measurement found.
pub(crate) struct Figures {
    pub name: String,
    pub operations: usize,
    pub elapsed: Duration,
    latencies: Vec<Duration>,
    pub bytes: u64,
    pub note: String,
}

impl Figures {
    pub(crate) fn new(name: impl Into<String>, elapsed: Duration, mut latencies: Vec<Duration>) -> Figures {
        latencies.sort();
        Figures {
            name: name.into(),
            operations: latencies.len(),
            elapsed,
            latencies,
            bytes: 0,
            note: String::new(),
        }
    }

    pub(crate) fn rate(&self) -> f64 {
        self.operations as f64 / self.elapsed.as_secs_f64()
    }

    /// The latency below which this share of the operations stayed.
    pub(crate) fn percentile(&self, share: f64) -> Duration {
        match self.latencies.len() {
            0 => Duration::ZERO,
            n => self.latencies[((n as f64 * share) as usize).min(n - 1)],
        }
    }
}

/// Times one operation into `into`.
pub(crate) async fn timed<T>(into: &mut Vec<Duration>, operation: impl Future<Output = T>) -> T {
    let start = monotonic();
    let result = operation.await;
    into.push(start.elapsed());
    result
}

pub(crate) fn shown(d: Duration) -> String {
    match d.as_secs_f64() {
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 0.001 => format!("{:.2} ms", s * 1e3),
        s => format!("{:.0} µs", s * 1e6),
    }
}

/// A table for people.
pub(crate) fn print_table(figures: &[Figures]) {
    let width = figures
        .iter()
        .map(|f| f.name.chars().count())
        .max()
        .unwrap_or(0)
        .max(34);
    println!(
        "{:<width$} {:>9} {:>12} {:>10} {:>10} {:>10}  ",
        "", "count", "per second", "p50", "p99", "max"
    );
    for f in figures {
        println!(
            "{:<width$} {:>9} {:>12.0} {:>10} {:>10} {:>10}  {}",
            f.name,
            f.operations,
            f.rate(),
            shown(f.percentile(0.5)),
            shown(f.percentile(0.99)),
            shown(f.percentile(1.0)),
            f.note
        );
    }
}

pub(crate) fn to_json(figures: &[Figures]) -> serde_json::Value {
    let row = |f: &Figures| {
        serde_json::json!({
            "name": f.name, "count": f.operations, "seconds": f.elapsed.as_secs_f64(), "per_second": f.rate(),
            "p50_ms": f.percentile(0.5).as_secs_f64() * 1e3, "p99_ms": f.percentile(0.99).as_secs_f64() * 1e3,
            "max_ms": f.percentile(1.0).as_secs_f64() * 1e3, "bytes": f.bytes, "note": f.note,
        })
    };
    figures.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_come_from_sorted_latencies() {
        let latencies = (1..=100).rev().map(Duration::from_millis).collect();
        let figures = Figures::new("x", Duration::from_secs(2), latencies);
        assert_eq!(figures.rate(), 50.0);
        assert_eq!(figures.percentile(0.5), Duration::from_millis(51));
        assert_eq!(figures.percentile(1.0), Duration::from_millis(100));
    }
}
