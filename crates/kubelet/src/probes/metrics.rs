//! Probe counters, for `/metrics/probes`. They last as long as the pod does.
//!
//! Upstream: pkg/kubelet/prober/prober_manager.go: only successes are timed.

use std::fmt::Write;
use std::time::Duration;

use super::PodProbes;

const BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

#[derive(Debug, Default)]
pub(super) struct Counters {
    successful: u64,
    failed: u64,
    /// How many were within each bucket and no smaller one.
    buckets: [u64; BUCKETS.len()],
    seconds: f64,
}

impl Counters {
    pub(super) fn count(&mut self, success: bool, took: Duration) {
        if !success {
            self.failed += 1;
            return;
        }
        self.successful += 1;
        let took = took.as_secs_f64();
        self.seconds += took;
        if let Some(bucket) = BUCKETS.iter().position(|&bound| took <= bound) {
            self.buckets[bucket] += 1;
        }
    }
}

pub(super) fn render(pods: &[&PodProbes]) -> String {
    let mut out = String::new();
    let name = "prober_probe_duration_seconds";
    let _ = writeln!(out, "# HELP {name} [ALPHA] Duration in seconds for a probe response.");
    let _ = writeln!(out, "# TYPE {name} histogram");
    for (labels, counters, _) in series(pods) {
        if counters.successful == 0 {
            continue;
        }
        let mut sum = 0;
        for (bound, count) in BUCKETS.iter().zip(counters.buckets) {
            sum += count;
            let _ = writeln!(out, "{name}_bucket{{{labels},le=\"{bound}\"}} {sum}");
        }
        let _ = writeln!(out, "{name}_bucket{{{labels},le=\"+Inf\"}} {}", counters.successful);
        let _ = writeln!(out, "{name}_sum{{{labels}}} {}", counters.seconds);
        let _ = writeln!(out, "{name}_count{{{labels}}} {}", counters.successful);
    }
    let name = "prober_probe_total";
    let help = "Cumulative number of a liveness, readiness or startup probe for a container by result.";
    let _ = writeln!(out, "# HELP {name} [BETA] {help}");
    let _ = writeln!(out, "# TYPE {name} counter");
    for (labels, counters, uid) in series(pods) {
        for (result, count) in [("failed", counters.failed), ("successful", counters.successful)] {
            if count > 0 {
                let _ = writeln!(out, "{name}{{{labels},pod_uid=\"{uid}\",result=\"{result}\"}} {count}");
            }
        }
    }
    out
}

/// Names and uids need no escaping: validation lets no quotes through.
fn series<'a>(pods: &'a [&PodProbes]) -> impl Iterator<Item = (String, &'a Counters, &'a str)> {
    pods.iter().flat_map(|pod| {
        pod.counters.iter().map(|((container, kind), counters)| {
            let (namespace, name, kind) = (&pod.namespace, &pod.name, kind.name());
            let labels =
                format!("container=\"{container}\",namespace=\"{namespace}\",pod=\"{name}\",probe_type=\"{kind}\"");
            (labels, counters, &*pod.uid)
        })
    })
}
