//! What a workload's run found, for people and for programs.

use std::time::Duration;

use serde_json::{Value, json};

use super::throughput::{mean, percentile};
use super::workload::Params;
use crate::bench::process::Usage;

/// A process that was looked at.
pub(crate) struct Process {
    pub pid: u32,
    pub usage: Usage,
    /// Processor time during the measurement.
    pub cpu: Duration,
}

pub(crate) struct WorkloadResult {
    pub workload: String,
    pub size: String,
    pub params: Params,
    pub upstream_threshold: Option<f64>,
    pub nodes: usize,
    pub pods: usize,
    /// From the first create to the last binding seen.
    pub duration: Duration,
    /// From the first create to the last create answered.
    pub create_time: Duration,
    /// Rates of 1 s windows, in order of time.
    pub windows: Vec<f64>,
    /// Create sent to binding seen, sorted.
    pub latencies_ms: Vec<f64>,
    pub processes: Vec<Process>,
    pub client_cpu: Duration,
}

const MB: f64 = 1e6;

impl WorkloadResult {
    /// Pods a second over the whole measurement.
    pub(crate) fn rate(&self) -> f64 {
        match self.duration.as_secs_f64() {
            0.0 => 0.0,
            seconds => self.pods as f64 / seconds,
        }
    }

    fn sorted_windows(&self) -> Vec<f64> {
        let mut windows = self.windows.clone();
        windows.sort_by(f64::total_cmp);
        windows
    }

    /// Of all processes together.
    fn peak(&self) -> String {
        match self.processes.as_slice() {
            [] => "-".to_string(),
            all => format!("{:.1}", all.iter().map(|p| p.usage.peak as f64 / MB).sum::<f64>()),
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        let (windows, latencies) = (self.sorted_windows(), &self.latencies_ms);
        let process = |p: &Process| {
            json!({"pid": p.pid, "name": p.usage.name, "resident_mb": rounded(p.usage.resident as f64 / MB),
                   "peak_mb": rounded(p.usage.peak as f64 / MB), "cpu_seconds": rounded(p.cpu.as_secs_f64())})
        };
        let window = |share| rounded(percentile(&windows, share));
        let latency = |share| rounded(percentile(latencies, share));
        json!({
            "workload": self.workload, "size": self.size, "params": self.params, "nodes": self.nodes, "pods": self.pods,
            "seconds": rounded(self.duration.as_secs_f64()), "create_seconds": rounded(self.create_time.as_secs_f64()),
            "pods_per_second": rounded(self.rate()), "upstream_threshold": self.upstream_threshold,
            "windows": {"count": windows.len(), "average": rounded(mean(&windows)), "p50": window(0.5), "p90": window(0.9),
                        "p95": window(0.95), "p99": window(0.99)},
            "latency_ms": {"p50": latency(0.5), "p90": latency(0.9), "p99": latency(0.99), "max": latency(1.0)},
            "processes": self.processes.iter().map(process).collect::<Vec<_>>(),
            "client_cpu_seconds": rounded(self.client_cpu.as_secs_f64()),
        })
    }

    /// The figures that have no column in the table.
    pub(crate) fn details(&self) -> String {
        let windows = self.sorted_windows();
        let latency = |share| shown_ms(percentile(&self.latencies_ms, share));
        let mut lines = vec![format!(
            "  {:.0} pods/s; {} pods in {:.2} s, created in {:.2} s; create → bound p50 {}, p90 {}, p99 {}, max {}",
            self.rate(),
            self.pods,
            self.duration.as_secs_f64(),
            self.create_time.as_secs_f64(),
            latency(0.5),
            latency(0.9),
            latency(0.99),
            latency(1.0),
        )];
        lines.push(match windows.is_empty() {
            true => "  too short for windows of 1 s by scheduler_perf's rules".to_string(),
            false => format!(
                "  {} windows of 1 s: average {:.0}, p50 {:.0}, p90 {:.0}, p95 {:.0}, p99 {:.0} pods/s",
                windows.len(),
                mean(&windows),
                percentile(&windows, 0.5),
                percentile(&windows, 0.9),
                percentile(&windows, 0.95),
                percentile(&windows, 0.99),
            ),
        });
        for p in &self.processes {
            lines.push(format!(
                "  {} ({}): {:.1} MB, peak {:.1} MB; processor {:.2} s while measuring",
                p.usage.name,
                p.pid,
                p.usage.resident as f64 / MB,
                p.usage.peak as f64 / MB,
                p.cpu.as_secs_f64()
            ));
        }
        lines.push(format!(
            "  this client: processor {:.2} s",
            self.client_cpu.as_secs_f64()
        ));
        lines.join("\n")
    }
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

fn shown_ms(ms: f64) -> String {
    match ms {
        ms if ms >= 10_000.0 => format!("{:.1} s", ms / 1e3),
        ms if ms >= 1_000.0 => format!("{:.2} s", ms / 1e3),
        ms if ms >= 10.0 => format!("{ms:.0} ms"),
        ms => format!("{ms:.1} ms"),
    }
}

/// One row a workload. `1 s avg` and the percentiles beside it are by scheduler_perf's rules; `k8s min` is the average that
/// Kubernetes asks of its own runs.
pub(crate) fn table(outcomes: &[WorkloadResult]) -> String {
    let mut rows = vec![format!(
        "{:<48} {:>6} {:>6} {:>8} {:>8} {:>8} {:>8} {:>8} {:>7} {:>9} {:>9} {:>9} {:>8}",
        "workload (size)",
        "nodes",
        "pods",
        "seconds",
        "pods/s",
        "1 s avg",
        "p50",
        "p99",
        "k8s min",
        "lat. p50",
        "lat. p99",
        "lat. max",
        "peak MB"
    )];
    for o in outcomes {
        let windows = o.sorted_windows();
        let rate = |value: f64| match windows.is_empty() {
            true => "-".to_string(),
            false => format!("{value:.0}"),
        };
        let latency = |share| shown_ms(percentile(&o.latencies_ms, share));
        rows.push(format!(
            "{:<48} {:>6} {:>6} {:>8.2} {:>8.0} {:>8} {:>8} {:>8} {:>7} {:>9} {:>9} {:>9} {:>8}",
            match o.size.as_str() {
                "full" => o.workload.clone(),
                size => format!("{} ({size})", o.workload),
            },
            o.nodes,
            o.pods,
            o.duration.as_secs_f64(),
            o.rate(),
            rate(mean(&windows)),
            rate(percentile(&windows, 0.5)),
            rate(percentile(&windows, 0.99)),
            o.upstream_threshold.map_or("-".to_string(), |t| format!("{t:.0}")),
            latency(0.5),
            latency(0.99),
            latency(1.0),
            o.peak(),
        ));
    }
    rows.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome() -> WorkloadResult {
        WorkloadResult {
            workload: "SchedulingBasic".into(),
            size: "full".into(),
            params: Params::from([("nodes".into(), 5)]),
            upstream_threshold: Some(270.0),
            nodes: 5,
            pods: 100,
            duration: Duration::from_secs(4),
            create_time: Duration::from_secs(1),
            windows: vec![30.0, 10.0, 20.0],
            latencies_ms: (1..=100).map(f64::from).collect(),
            processes: vec![Process {
                pid: 1,
                usage: Usage {
                    name: "orlop".into(),
                    resident: 1_000_000,
                    peak: 2_000_000,
                    cpu: Duration::from_secs(9),
                },
                cpu: Duration::from_secs(3),
            }],
            client_cpu: Duration::from_millis(500),
        }
    }

    #[test]
    fn figures_are_the_same_in_every_form() {
        let outcome = outcome();
        let json = outcome.to_json();
        assert_eq!(json["pods_per_second"], 25.0);
        assert_eq!(
            json["windows"],
            json!({"count": 3, "average": 20.0, "p50": 20.0, "p90": 30.0, "p95": 30.0, "p99": 30.0})
        );
        assert_eq!(
            json["latency_ms"],
            json!({"p50": 50.0, "p90": 90.0, "p99": 99.0, "max": 100.0})
        );
        assert_eq!(
            json["processes"][0],
            json!({"pid": 1, "name": "orlop", "resident_mb": 1.0, "peak_mb": 2.0, "cpu_seconds": 3.0})
        );
        let details = outcome.details();
        assert!(details.contains("25 pods/s") && details.contains("p99 99 ms") && details.contains("peak 2.0 MB"));
        let table = table(&[outcome]);
        let widths: Vec<usize> = table.lines().map(|l| l.chars().count()).collect();
        assert!(widths.len() == 2 && widths[0] == widths[1], "{table}");
    }

    #[test]
    fn a_short_run_has_no_windows() {
        let mut outcome = outcome();
        (outcome.windows, outcome.pods, outcome.duration, outcome.latencies_ms) = (vec![], 0, Duration::ZERO, vec![]);
        assert_eq!(outcome.to_json()["windows"]["count"], 0);
        assert_eq!(outcome.rate(), 0.0);
        assert!(outcome.details().contains("too short"));
        outcome.processes.clear();
        assert!(table(&[outcome]).ends_with(" -"));
    }
}
