//! `workqueue_*` metrics: depth, latency and work duration of each work queue.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use orlop_base::metrics::series::{Histogram, Series};
use orlop_base::metrics::text;
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
pub struct QueueMetrics {
    adds: AtomicU64,
    depth: AtomicU64,
    retries: AtomicU64,
    waited: Histogram,
    worked: Histogram,
    /// When the reconciles in progress began.
    processing: Mutex<BTreeMap<u64, Instant>>,
    next_processing: AtomicU64,
}

impl Default for QueueMetrics {
    fn default() -> QueueMetrics {
        let bounds: Arc<[f64]> = BOUNDS.into();
        QueueMetrics {
            adds: AtomicU64::default(),
            depth: AtomicU64::default(),
            retries: AtomicU64::default(),
            waited: Histogram::new(bounds.clone()),
            worked: Histogram::new(bounds),
            processing: Mutex::default(),
            next_processing: AtomicU64::default(),
        }
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
        self.waited.observe(waited.as_secs_f64());
        self.depth(left);
    }

    /// A reconcile begins; `ended` takes the number.
    pub(super) fn began(&self) -> u64 {
        let id = self.next_processing.fetch_add(1, Ordering::Relaxed);
        self.processing.lock().insert(id, Instant::now());
        id
    }

    fn running(&self) -> Vec<Duration> {
        self.processing.lock().values().map(|since| since.elapsed()).collect()
    }

    pub(super) fn ended(&self, id: u64) {
        if let Some(since) = self.processing.lock().remove(&id) {
            self.worked.observe(since.elapsed().as_secs_f64());
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
        let mut each = |name: &str, kind: &str, help: &str, write: &dyn Fn(&QueueMetrics, &mut String, &str)| {
            text::header(out, name, kind, help);
            for (queue, metrics) in queues.iter() {
                write(metrics, out, &text::label("name", queue));
            }
        };
        let name = "workqueue_adds_total";
        let help = "Total number of keys added to the work queue.";
        each(name, "counter", help, &|m, out, labels| m.adds.write(out, name, labels));
        let name = "workqueue_depth";
        let help = "Current number of keys in the work queue.";
        each(name, "gauge", help, &|m, out, labels| m.depth.write(out, name, labels));
        let name = "workqueue_longest_running_processor_seconds";
        let help = "Seconds that the longest running reconcile has been in progress.";
        each(name, "gauge", help, &|m, out, labels| {
            let longest = m.running().into_iter().max().unwrap_or_default();
            text::line(out, name, labels, longest.as_secs_f64());
        });
        let name = "workqueue_queue_duration_seconds";
        let help = "Seconds that a key stays in the work queue before it is processed.";
        each(name, "histogram", help, &|m, out, labels| {
            m.waited.write(out, name, labels)
        });
        let name = "workqueue_retries_total";
        let help = "Total number of keys requeued after a failed reconcile.";
        each(name, "counter", help, &|m, out, labels| {
            m.retries.write(out, name, labels)
        });
        let name = "workqueue_unfinished_work_seconds";
        let help = "Seconds of work in progress that work_duration does not include yet.";
        each(name, "gauge", help, &|m, out, labels| {
            let sum: Duration = m.running().into_iter().sum();
            text::line(out, name, labels, sum.as_secs_f64());
        });
        let name = "workqueue_work_duration_seconds";
        let help = "Seconds that processing a key from the work queue takes.";
        each(name, "histogram", help, &|m, out, labels| {
            m.worked.write(out, name, labels)
        });
    }
}
