//! `workqueue_*`: how much waits for whom, and how long things take.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

/// Upper bounds in seconds. Upstream: 1e-8 s and nine times the tenfold.
const BOUNDS: [f64; 10] = [1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0];

/// Of all queues of a process.
#[derive(Default)]
pub struct Metrics {
    queues: RwLock<BTreeMap<String, Arc<QueueMetrics>>>,
}

/// Of one queue.
#[derive(Default)]
pub struct QueueMetrics {
    adds: AtomicU64,
    depth: AtomicU64,
    retries: AtomicU64,
    waited: Timing,
    worked: Timing,
    /// When the turns under way began.
    turns: Mutex<BTreeMap<u64, Instant>>,
    next_turn: AtomicU64,
}

#[derive(Default)]
struct Timing {
    /// One for each bound, and one for what is above all of them.
    counts: [AtomicU64; BOUNDS.len() + 1],
    nanos: AtomicU64,
}

impl Timing {
    fn observe(&self, took: Duration) {
        let place = BOUNDS.partition_point(|bound| *bound < took.as_secs_f64());
        self.counts[place].fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
    }

    fn write(&self, out: &mut String, name: &str, queue: &str) {
        let mut seen = 0;
        for (place, count) in self.counts.iter().enumerate() {
            seen += count.load(Ordering::Relaxed);
            let bound = match BOUNDS.get(place) {
                None => "+Inf".to_string(),
                Some(bound) if *bound < 1e-4 => format!("{bound:e}").replace("e-", "e-0"),
                Some(bound) => bound.to_string(),
            };
            let _ = writeln!(out, "{name}_bucket{{name=\"{queue}\",le=\"{bound}\"}} {seen}");
        }
        let sum = self.nanos.load(Ordering::Relaxed) as f64 / 1e9;
        let _ = writeln!(
            out,
            "{name}_sum{{name=\"{queue}\"}} {sum}\n{name}_count{{name=\"{queue}\"}} {seen}"
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

    /// A turn begins; the number ends it.
    pub(super) fn began(&self) -> u64 {
        let turn = self.next_turn.fetch_add(1, Ordering::Relaxed);
        self.turns.lock().insert(turn, Instant::now());
        turn
    }

    pub(super) fn ended(&self, turn: u64) {
        if let Some(since) = self.turns.lock().remove(&turn) {
            self.worked.observe(since.elapsed());
        }
    }
}

impl Metrics {
    pub fn queue(&self, name: &str) -> Arc<QueueMetrics> {
        self.queues.write().entry(name.to_string()).or_default().clone()
    }

    /// In the Prometheus text format.
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
        each("workqueue_adds_total", "counter", "Keys added.", &|out, queue, m| {
            line(out, "workqueue_adds_total", queue, count(&m.adds));
        });
        each("workqueue_depth", "gauge", "Keys that wait now.", &|out, queue, m| {
            line(out, "workqueue_depth", queue, count(&m.depth));
        });
        let name = "workqueue_longest_running_processor_seconds";
        each(
            name,
            "gauge",
            "For how long the oldest turn has been under way.",
            &|out, queue, m| {
                let longest = m.turns.lock().values().map(|since| since.elapsed()).max();
                line(out, name, queue, longest.unwrap_or_default().as_secs_f64());
            },
        );
        let name = "workqueue_queue_duration_seconds";
        each(
            name,
            "histogram",
            "How long keys waited for their turn.",
            &|out, queue, m| m.waited.write(out, name, queue),
        );
        each(
            "workqueue_retries_total",
            "counter",
            "Turns that failed and come again.",
            &|out, queue, m| {
                line(out, "workqueue_retries_total", queue, count(&m.retries));
            },
        );
        let name = "workqueue_unfinished_work_seconds";
        each(
            name,
            "gauge",
            "For how long all turns under way have been, in sum.",
            &|out, queue, m| {
                let sum: Duration = m.turns.lock().values().map(|since| since.elapsed()).sum();
                line(out, name, queue, sum.as_secs_f64());
            },
        );
        let name = "workqueue_work_duration_seconds";
        each(name, "histogram", "How long turns took.", &|out, queue, m| {
            m.worked.write(out, name, queue)
        });
    }
}
