//! Counters and durations of the kubelet itself, for `/metrics`, under upstream's names. What follows from the current
//! pods is in `stats/metrics.rs`.
// Upstream: pkg/kubelet/metrics/metrics.go, pkg/kubelet/server/metrics/metrics.go (v1.36)

mod measured;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use orlop_serving::metrics::series::{Buckets, Family, Histogram, Series};
use orlop_serving::metrics::text::header;

pub use self::measured::Measured;

const DEFAULT_BOUNDS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
const START_BOUNDS: [f64; 25] = [
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0,
    600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];
const PULL_BOUNDS: [f64; 18] = [
    1.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0,
    3600.0,
];
const OPERATION_BUCKETS: Buckets = Buckets {
    start: 0.005,
    factor: 2.5,
    count: 14,
};

/// Upstream: the PLEG is unhealthy once its last successful relist is so many seconds ago. One is due every minute.
const RELIST_THRESHOLD: u64 = 3 * 60;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Label of images larger than this, up to the next bound.
const IMAGE_SIZES: [(u64, &str); 12] = [
    (0, "0-10MB"),
    (10 * MIB, "10MB-100MB"),
    (100 * MIB, "100MB-500MB"),
    (500 * MIB, "500MB-1GB"),
    (GIB, "1GB-5GB"),
    (5 * GIB, "5GB-10GB"),
    (10 * GIB, "10GB-20GB"),
    (20 * GIB, "20GB-30GB"),
    (30 * GIB, "30GB-40GB"),
    (40 * GIB, "40GB-60GB"),
    (60 * GIB, "60GB-100GB"),
    (100 * GIB, "GT100GB"),
];

type Counters<const N: usize> = Family<AtomicU64, N>;
type Histograms<const N: usize> = Family<Histogram, N>;

pub struct Metrics {
    operations: Counters<1>,
    operation_errors: Counters<1>,
    operation_seconds: Histograms<1>,
    sandbox_seconds: Histograms<1>,
    sandbox_errors: Counters<1>,
    started_pods: AtomicU64,
    failed_pods: AtomicU64,
    started_containers: Counters<1>,
    failed_containers: Counters<2>,
    ended_containers: Counters<3>,
    pod_syncs: Histograms<1>,
    start: Histogram,
    start_total: Histogram,
    start_without_pulls: Histogram,
    relist: Histogram,
    relist_interval: Histogram,
    /// In seconds since 1970.
    relisted_at: AtomicU64,
    pulls: Histograms<1>,
    collected_images: Counters<1>,
    evictions: Counters<1>,
    requests: Counters<4>,
    request_seconds: Histograms<4>,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

impl Default for Metrics {
    fn default() -> Metrics {
        fn counters<const N: usize>(labels: [&'static str; N]) -> Counters<N> {
            Family::new(labels, AtomicU64::default)
        }
        fn histograms<const N: usize>(labels: [&'static str; N], bounds: &[f64]) -> Histograms<N> {
            let bounds: Arc<[f64]> = bounds.into();
            Family::new(labels, move || Histogram::new(bounds.clone()))
        }
        const REQUEST: [&str; 4] = ["long_running", "method", "path", "server_type"];
        let start = || Histogram::new(START_BOUNDS.as_slice().into());
        let default = || Histogram::new(DEFAULT_BOUNDS.as_slice().into());
        Metrics {
            operations: counters(["operation_type"]),
            operation_errors: counters(["operation_type"]),
            operation_seconds: histograms(["operation_type"], &OPERATION_BUCKETS.bounds()),
            sandbox_seconds: histograms(["runtime_handler"], &DEFAULT_BOUNDS),
            sandbox_errors: counters(["runtime_handler"]),
            started_pods: AtomicU64::default(),
            failed_pods: AtomicU64::default(),
            started_containers: counters(["container_type"]),
            failed_containers: counters(["code", "container_type"]),
            ended_containers: counters(["container_type", "exit_code", "reason"]),
            pod_syncs: histograms(["operation_type"], &DEFAULT_BOUNDS),
            start: start(),
            start_total: start(),
            start_without_pulls: start(),
            relist: default(),
            relist_interval: default(),
            relisted_at: AtomicU64::default(),
            pulls: histograms(["image_size_in_bytes"], &PULL_BOUNDS),
            collected_images: counters(["reason"]),
            evictions: counters(["eviction_signal"]),
            requests: counters(REQUEST),
            request_seconds: histograms(REQUEST, &DEFAULT_BOUNDS),
        }
    }
}

fn one_more(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// How long a pod took to run for the first time.
pub struct Started {
    pub since_seen: Duration,
    pub since_created: Duration,
    /// Of the latter: pulls and init containers.
    pub excluded: Duration,
}

impl Metrics {
    fn called(&self, operation: &'static str, took: Duration, failed: bool) {
        self.operations.with([operation], one_more);
        self.operation_seconds
            .with([operation], |h| h.observe(took.as_secs_f64()));
        if failed {
            self.operation_errors.with([operation], one_more);
        }
    }

    fn made_sandbox(&self, handler: &str, took: Duration, failed: bool) {
        one_more(&self.started_pods);
        self.sandbox_seconds.with([handler], |h| h.observe(took.as_secs_f64()));
        if failed {
            one_more(&self.failed_pods);
            self.sandbox_errors.with([handler], one_more);
        }
    }

    /// A container start; `failure` is the reason if it failed.
    pub fn container_started(&self, kind: &str, failure: Option<&str>) {
        self.started_containers.with([kind], one_more);
        if let Some(code) = failure {
            self.failed_containers.with([code, kind], one_more);
        }
    }

    pub fn container_ended(&self, kind: &str, exit_code: i32, reason: &str) {
        let code = exit_code.to_string();
        self.ended_containers.with([kind, &code, reason], one_more);
    }

    /// A pod worker synced its pod: "create", "update" or "sync".
    pub fn pod_synced(&self, operation: &str, took: Duration) {
        self.pod_syncs.with([operation], |h| h.observe(took.as_secs_f64()));
    }

    pub fn pod_runs(&self, started: &Started) {
        let total = started.since_created.as_secs_f64();
        self.start.observe(started.since_seen.as_secs_f64());
        self.start_total.observe(total);
        let excluded = started.excluded.as_secs_f64();
        self.start_without_pulls.observe((total - excluded).max(0.0));
    }

    /// A relist of the runtime's sandboxes and containers, successful or not.
    pub fn relisted(&self, took: Duration, since_last: Option<Duration>) {
        self.relist.observe(took.as_secs_f64());
        if let Some(interval) = since_last {
            self.relist_interval.observe(interval.as_secs_f64());
        }
    }

    /// A relist succeeded.
    pub fn pleg_seen(&self, now: Timestamp) {
        let seconds = u64::try_from(now.as_second()).unwrap_or(0);
        self.relisted_at.store(seconds, Ordering::Relaxed);
    }

    /// Whether the runtime was listed within the threshold. It was before the first time.
    pub fn is_pleg_healthy(&self, now: Timestamp) -> bool {
        let last = self.relisted_at.load(Ordering::Relaxed);
        last == 0 || u64::try_from(now.as_second()).is_ok_and(|now| now < last + RELIST_THRESHOLD)
    }

    /// Zero bytes: the size of the image is unknown.
    pub fn pulled(&self, bytes: u64, took: Duration) {
        self.pulls.with([size_label(bytes)], |h| h.observe(took.as_secs_f64()));
    }

    /// "age" or "space"
    pub fn image_collected(&self, reason: &str) {
        self.collected_images.with([reason], one_more);
    }

    pub fn evicted(&self, signal: &str) {
        self.evictions.with([signal], one_more);
    }

    /// `path` is the first segment of the request's path; unknown ones share a label.
    pub fn request(&self, method: &str, path: &str, took: Duration) {
        let is_long = matches!(path, "exec" | "attach" | "portForward" | "debug");
        let labels = [if is_long { "true" } else { "false" }, method, path, "readwrite"];
        self.requests.with(labels, one_more);
        self.request_seconds.with(labels, |h| h.observe(took.as_secs_f64()));
    }

    pub fn write(&self, out: &mut String) {
        self.write_runtime(out);
        self.write_pods(out);
        self.requests.show(
            out,
            "http_requests_total",
            "Number of HTTP requests received since the server started.",
        );
        let help = "Duration in seconds to serve HTTP requests.";
        self.request_seconds.show(out, "http_requests_duration_seconds", help);
    }

    fn write_runtime(&self, out: &mut String) {
        let help = "Cumulative number of runtime operations by operation type.";
        self.operations.show(out, "runtime_operations_total", help);
        let help = "Cumulative number of runtime operation errors by operation type.";
        self.operation_errors.show(out, "runtime_operations_errors_total", help);
        let help = "Duration in seconds of runtime operations. Broken down by operation type.";
        self.operation_seconds
            .show(out, "runtime_operations_duration_seconds", help);
        let help = "Duration in seconds of the run_podsandbox operations. Broken down by RuntimeClass.Handler.";
        self.sandbox_seconds.show(out, "run_podsandbox_duration_seconds", help);
        let help = "Cumulative number of the run_podsandbox operation errors by RuntimeClass.Handler.";
        self.sandbox_errors.show(out, "run_podsandbox_errors_total", help);
        let help = "Duration in seconds for relisting pods in PLEG.";
        self.relist.show(out, "pleg_relist_duration_seconds", help);
        let help = "Interval in seconds between relisting in PLEG.";
        self.relist_interval.show(out, "pleg_relist_interval_seconds", help);
        let name = "kubelet_pleg_last_seen_seconds";
        header(
            out,
            name,
            "gauge",
            "[ALPHA] Timestamp in seconds when PLEG was last seen active.",
        );
        self.relisted_at.write(out, name, "");
        let help = "Duration in seconds to pull an image. Broken down by image size.";
        self.pulls.show(out, "image_pull_duration_seconds", help);
        let help = "Total number of images garbage collected by the kubelet, whether for disk usage or image age.";
        self.collected_images.show(out, "image_garbage_collected_total", help);
    }

    fn write_pods(&self, out: &mut String) {
        self.started_pods
            .show(out, "started_pods_total", "Cumulative number of pods started.");
        self.failed_pods.show(
            out,
            "started_pods_errors_total",
            "Cumulative number of errors when starting pods.",
        );
        let help = "Cumulative number of containers started.";
        self.started_containers.show(out, "started_containers_total", help);
        let help = "Cumulative number of errors when starting containers.";
        self.failed_containers
            .show(out, "started_containers_errors_total", help);
        self.ended_containers.show(
            out,
            "terminated_containers_total",
            "Cumulative number of terminated containers.",
        );
        self.pod_syncs.show(
            out,
            "pod_worker_duration_seconds",
            "Duration in seconds to sync a single pod. Broken down by operation type: create, update, or sync.",
        );
        let help = "Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run.";
        self.start.show(out, "pod_start_duration_seconds", help);
        let help =
            "Duration in seconds to start a pod since creation, including time to pull images and run init containers.";
        self.start_total.show(out, "pod_start_total_duration_seconds", help);
        let help =
            "Duration in seconds to start a pod since creation, excluding time to pull images and run init containers.";
        self.start_without_pulls
            .show(out, "pod_start_sli_duration_seconds", help);
        self.evictions.show(
            out,
            "evictions",
            "Cumulative number of pod evictions by eviction signal.",
        );
    }
}

/// What can be shown as a whole metric of the kubelet's.
trait Show {
    const KIND: &'static str;
    fn lines(&self, out: &mut String, name: &str);

    fn show(&self, out: &mut String, name: &str, help: &str) {
        let name = format!("kubelet_{name}");
        header(out, &name, Self::KIND, &format!("[ALPHA] {help}"));
        self.lines(out, &name);
    }
}

impl Show for AtomicU64 {
    const KIND: &'static str = "counter";

    fn lines(&self, out: &mut String, name: &str) {
        Series::write(self, out, name, "");
    }
}

impl Show for Histogram {
    const KIND: &'static str = "histogram";

    fn lines(&self, out: &mut String, name: &str) {
        Series::write(self, out, name, "");
    }
}

impl<T: Series + Show, const N: usize> Show for Family<T, N> {
    const KIND: &'static str = T::KIND;

    fn lines(&self, out: &mut String, name: &str) {
        self.write(out, name);
    }
}

fn size_label(bytes: u64) -> &'static str {
    let larger = IMAGE_SIZES.iter().rev().find(|(bound, _)| bytes > *bound);
    larger.map_or("N/A", |(_, label)| label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_rendered() {
        let metrics = Metrics::default();
        let second = Duration::from_secs(1);
        metrics.called("status", second, true);
        metrics.made_sandbox("", second, false);
        metrics.container_started("init_container", Some("ErrImagePull"));
        metrics.container_ended("container", 137, "OOMKilled");
        metrics.pod_runs(&Started {
            since_seen: second,
            since_created: second * 10,
            excluded: second * 7,
        });
        metrics.pulled(200 * MIB, second * 3);
        metrics.evicted("memory.available");
        metrics.request("GET", "exec", second);
        let mut text = String::new();
        metrics.write(&mut text);
        let lines = [
            "kubelet_runtime_operations_total{operation_type=\"status\"} 1",
            "kubelet_runtime_operations_errors_total{operation_type=\"status\"} 1",
            "kubelet_runtime_operations_duration_seconds_bucket{operation_type=\"status\",le=\"0.005\"} 0",
            "kubelet_run_podsandbox_duration_seconds_count{runtime_handler=\"\"} 1",
            "kubelet_started_pods_total 1",
            "kubelet_started_pods_errors_total 0",
            "kubelet_started_containers_errors_total{code=\"ErrImagePull\",container_type=\"init_container\"} 1",
            "kubelet_terminated_containers_total{container_type=\"container\",exit_code=\"137\",reason=\"OOMKilled\"} 1",
            "kubelet_pod_start_sli_duration_seconds_bucket{le=\"3\"} 1",
            "kubelet_pod_start_total_duration_seconds_bucket{le=\"8\"} 0",
            "kubelet_image_pull_duration_seconds_bucket{image_size_in_bytes=\"100MB-500MB\",le=\"5\"} 1",
            "kubelet_evictions{eviction_signal=\"memory.available\"} 1",
            "kubelet_http_requests_total{long_running=\"true\",method=\"GET\",path=\"exec\",server_type=\"readwrite\"} 1",
        ];
        for line in lines {
            assert!(text.lines().any(|l| l == line), "{line}\nis not in\n{text}");
        }
    }

    #[test]
    fn sizes_of_images() {
        let cases = [
            (0, "N/A"),
            (1, "0-10MB"),
            (10 * MIB, "0-10MB"),
            (10 * MIB + 1, "10MB-100MB"),
            (u64::MAX, "GT100GB"),
        ];
        for (bytes, expected) in cases {
            assert_eq!(size_label(bytes), expected, "{bytes}");
        }
    }
}
