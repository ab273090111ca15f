//! `workqueue_*` metrics: depth, latency and work duration of each work queue.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

/// Upper bounds in seconds. Upstream: 1e-8 s and nine times the tenfold.
const BOUNDS: [f64; 10] = [1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0];

/// The work queue metrics of a controller manager, one set for each queue name.
#[derive(Default)]
pub struct Metrics {
    queues: RwLock<BTreeMap<String, Arc<QueueMetrics>>>,
}

/// The metrics of one work queue.
#[derive(Default)]
pub struct QueueMetrics {
    adds: AtomicU64,
    depth: AtomicU64,
    retries: AtomicU64,
    waited: Timing,
    worked: Timing,
    /// When the reconciles in progress began.
    processing: Mutex<BTreeMap<u64, Instant>>,
    next_processing: AtomicU64,
}

#[derive(Default)]
struct Timing {
    /// One for each bound, and one for what is above all of them.
    counts: [AtomicU64; BOUNDS.len() + 1],
    nanos: AtomicU64,
}

impl Timing {
    fn observe(&self, took: Duration) {
        let bucket = BOUNDS.partition_point(|bound| *bound < took.as_secs_f64());
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
    }

    fn write(&self, out: &mut String, name: &str, queue: &str) {
        let mut total = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            total += count.load(Ordering::Relaxed);
            let bound = match BOUNDS.get(bucket) {
                None => "+Inf".to_string(),
                Some(bound) if *bound < 1e-4 => format!("{bound:e}").replace("e-", "e-0"),
                Some(bound) => bound.to_string(),
            };
            let _ = writeln!(out, "{name}_bucket{{name=\"{queue}\",le=\"{bound}\"}} {total}");
        }
        let sum = self.nanos.load(Ordering::Relaxed) as f64 / 1e9;
        let _ = writeln!(
            out,
            "{name}_sum{{name=\"{queue}\"}} {sum}\n{name}_count{{name=\"{queue}\"}} {total}"
        );
    }
}

impl QueueMetrics {
    pub(super) fn added(&self) {
        self.adds.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn depth(&self, depth: usize) {
        self.depth.store(depth as u64, Ordering::Relaxed);
    }

    pub(super) fn retried(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn taken(&self, waited: Duration, left: usize) {
        self.waited.observe(waited);
        self.depth(left);
    }

    /// A reconcile begins; `ended` takes the number.
    pub(super) fn began(&self) -> u64 {
        let id = self.next_processing.fetch_add(1, Ordering::Relaxed);
        self.processing.lock().insert(id, Instant::now());
        id
    }

    pub(super) fn ended(&self, id: u64) {
        if let Some(since) = self.processing.lock().remove(&id) {
            self.worked.observe(since.elapsed());
        }
    }
}

impl Metrics {
    /// The metrics of the queue of this name; queues of one name share them.
    pub fn queue(&self, name: &str) -> Arc<QueueMetrics> {
        self.queues.write().entry(name.to_string()).or_default().clone()
    }

    /// Appends all metrics to `out` in the Prometheus text format.
    pub fn render(&self, out: &mut String) {
        let queues = self.queues.read();
        let mut each = |name: &str, kind: &str, help: &str, write: &dyn Fn(&mut String, &str, &QueueMetrics)| {
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
            queues.iter().for_each(|(queue, metrics)| write(out, queue, metrics));
        };
        let line = |out: &mut String, name: &str, queue: &str, value: f64| {
            let _ = writeln!(out, "{name}{{name=\"{queue}\"}} {value}");
        };
        let count = |n: &AtomicU64| n.load(Ordering::Relaxed) as f64;
        each(
            "workqueue_adds_total",
            "counter",
            "Total number of keys added to the work queue.",
            &|out, queue, m| {
                line(out, "workqueue_adds_total", queue, count(&m.adds));
            },
        );
        each(
            "workqueue_depth",
            "gauge",
            "Current number of keys in the work queue.",
            &|out, queue, m| {
                line(out, "workqueue_depth", queue, count(&m.depth));
            },
        );
        let name = "workqueue_longest_running_processor_seconds";
        each(
            name,
            "gauge",
            "Seconds that the longest running reconcile has been in progress.",
            &|out, queue, m| {
                let longest = m.processing.lock().values().map(|since| since.elapsed()).max();
                line(out, name, queue, longest.unwrap_or_default().as_secs_f64());
            },
        );
        let name = "workqueue_queue_duration_seconds";
        each(
            name,
            "histogram",
            "Seconds that a key stays in the work queue before it is processed.",
            &|out, queue, m| m.waited.write(out, name, queue),
        );
        each(
            "workqueue_retries_total",
            "counter",
            "Total number of keys requeued after a failed reconcile.",
            &|out, queue, m| {
                line(out, "workqueue_retries_total", queue, count(&m.retries));
            },
        );
        let name = "workqueue_unfinished_work_seconds";
        each(
            name,
            "gauge",
            "Seconds of work in progress that work_duration does not include yet.",
            &|out, queue, m| {
                let sum: Duration = m.processing.lock().values().map(|since| since.elapsed()).sum();
                line(out, name, queue, sum.as_secs_f64());
            },
        );
        let name = "workqueue_work_duration_seconds";
        each(
            name,
            "histogram",
            "Seconds that processing a key from the work queue takes.",
            &|out, queue, m| m.worked.write(out, name, queue),
        );
    }
}
