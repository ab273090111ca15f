//! The scheduler's metrics, under kube-scheduler's names, labels and buckets, in the Prometheus text format.
//!
//! The engine calls in at every attempt, so that counting takes atomics and short locks only; `render` does the rest.
//!
//! Upstream: pkg/scheduler/metrics (v1.36).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use orlop_client::leader::LeaseHealth;
use parking_lot::Mutex;

use orlop_serving::metrics::{process, text};

use crate::queue::{Counts, Incoming, QueuedPod, SubQueue, Trigger};
use orlop_serving::metrics::series::{Buckets, Family, Histogram, Series};

/// Attempts beyond this share one label.
const ATTEMPTS_MAX: u32 = 15;

const SCHEDULING: Buckets = Buckets {
    start: 0.001,
    factor: 2.0,
    count: 15,
};
const SLI: Buckets = Buckets {
    start: 0.01,
    factor: 2.0,
    count: 20,
};
const ATTEMPTS: Buckets = Buckets {
    start: 1.0,
    factor: 2.0,
    count: 5,
};
const VICTIMS: Buckets = Buckets {
    start: 1.0,
    factor: 2.0,
    count: 7,
};
const POINT: Buckets = Buckets {
    start: 0.0001,
    factor: 2.0,
    count: 12,
};
const PLUGIN: Buckets = Buckets {
    start: 0.00001,
    factor: 1.5,
    count: 20,
};

/// The metrics of one scheduler, under kube-scheduler's names, and what its health checks need to know.
pub struct Metrics {
    lease: String,
    leading: AtomicBool,
    synced: AtomicBool,
    lease_health: Mutex<Option<LeaseHealth>>,
    /// Active, back-off, unschedulable, gated, in flight.
    pending: [AtomicU64; 5],
    incoming: Mutex<BTreeMap<(String, &'static str), u64>>,
    /// How many kinds of entries `incoming` was made from, and how many pods they count: nothing is done while these
    /// stay the same.
    incoming_seen: Mutex<(usize, u64)>,
    nodes: AtomicU64,
    pods: AtomicU64,
    assumed: AtomicU64,
    attempts: Family<AtomicU64, 2>,
    attempt_duration: Family<Histogram, 2>,
    algorithm: Histogram,
    sli: Family<Histogram, 1>,
    pod_attempts: Histogram,
    after_flush: AtomicU64,
    points: Family<Histogram, 3>,
    plugins: Family<Histogram, 3>,
    preemptions: AtomicU64,
    victims: Histogram,
    unschedulable: Family<Gauge, 2>,
    permit_wait: Family<Histogram, 1>,
}

/// Goes up and down.
#[derive(Default)]
struct Gauge(AtomicU64);

impl Series for Gauge {
    fn write(&self, out: &mut String, name: &str, labels: &str) {
        text::line(out, name, labels, self.0.load(Ordering::Relaxed));
    }
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics::for_lease("kube-scheduler")
    }
}

impl Metrics {
    /// Of a scheduler that takes part in the election for the lease of this name.
    pub fn for_lease(name: &str) -> Metrics {
        let histograms = |buckets: Buckets| {
            let bounds = buckets.bounds();
            move || Histogram::new(bounds.clone())
        };
        Metrics {
            lease: name.to_string(),
            leading: AtomicBool::new(false),
            synced: AtomicBool::new(false),
            lease_health: Mutex::default(),
            pending: Default::default(),
            incoming: Mutex::default(),
            incoming_seen: Mutex::default(),
            nodes: AtomicU64::new(0),
            pods: AtomicU64::new(0),
            assumed: AtomicU64::new(0),
            attempts: Family::new(["profile", "result"], AtomicU64::default),
            attempt_duration: Family::new(["profile", "result"], histograms(SCHEDULING)),
            algorithm: Histogram::new(SCHEDULING.bounds()),
            sli: Family::new(["attempts"], histograms(SLI)),
            pod_attempts: Histogram::new(ATTEMPTS.bounds()),
            after_flush: AtomicU64::new(0),
            points: Family::new(["extension_point", "profile", "status"], histograms(POINT)),
            plugins: Family::new(["extension_point", "plugin", "status"], histograms(PLUGIN)),
            preemptions: AtomicU64::new(0),
            victims: Histogram::new(VICTIMS.bounds()),
            unschedulable: Family::new(["plugin", "profile"], Gauge::default),
            permit_wait: Family::new(["result"], histograms(SCHEDULING)),
        }
    }

    /// Whether this process may schedule.
    pub fn set_leading(&self, leading: bool) {
        self.leading.store(leading, Ordering::Relaxed);
    }

    pub fn is_leading(&self) -> bool {
        self.leading.load(Ordering::Relaxed)
    }

    /// Whether every kind of object has been listed; /readyz says so.
    pub fn set_synced(&self, synced: bool) {
        self.synced.store(synced, Ordering::Relaxed);
    }

    pub fn is_synced(&self) -> bool {
        self.synced.load(Ordering::Relaxed)
    }

    /// The election that this process takes part in; /healthz and /readyz report on its lease.
    pub fn set_lease_health(&self, health: LeaseHealth) {
        *self.lease_health.lock() = Some(health);
    }

    /// False if this process leads, or led, by a lease that it failed to renew.
    pub fn is_lease_healthy(&self) -> bool {
        self.lease_health.lock().as_ref().is_none_or(LeaseHealth::is_healthy)
    }

    pub fn observe_queue(&self, counts: Counts, incoming: &Incoming) {
        let now = [
            counts.active,
            counts.backoff,
            counts.unschedulable,
            counts.gated,
            counts.in_flight,
        ];
        for (held, now) in self.pending.iter().zip(now) {
            held.store(now as u64, Ordering::Relaxed);
        }
        let seen = incoming
            .iter()
            .fold((0, 0), |(kinds, pods), (_, _, n)| (kinds + 1, pods + n));
        if std::mem::replace(&mut *self.incoming_seen.lock(), seen) == seen {
            return;
        }
        let mut totals = self.incoming.lock();
        totals.clear();
        for (queue, trigger, n) in incoming.iter() {
            *totals.entry((trigger_label(trigger), queue_label(queue))).or_default() += n;
        }
    }

    pub fn observe_cache(&self, nodes: usize, pods: usize, assumed: usize) {
        self.nodes.store(nodes as u64, Ordering::Relaxed);
        self.pods.store(pods as u64, Ordering::Relaxed);
        self.assumed.store(assumed as u64, Ordering::Relaxed);
    }

    /// Scheduling algorithm latency in seconds.
    pub fn algorithm(&self, took: Duration) {
        self.algorithm.observe(took.as_secs_f64());
    }

    /// A pod is bound; `elapsed` since this attempt began.
    pub fn scheduled(&self, profile: &str, elapsed: Duration, queued: &QueuedPod, now: Timestamp) {
        self.attempt("scheduled", profile, elapsed);
        self.pod_attempts.observe(f64::from(queued.attempts));
        let since = queued.initial_attempt.unwrap_or(queued.timestamp);
        let waited = Duration::try_from(now.duration_since(since)).unwrap_or_default();
        let attempts = match queued.attempts {
            n if n >= ATTEMPTS_MAX => format!("{ATTEMPTS_MAX}+"),
            n => n.to_string(),
        };
        self.sli.with([&attempts], |h| h.observe(waited.as_secs_f64()));
        if queued.flushed {
            self.after_flush.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// An attempt came to this: `scheduled`, `unschedulable` or `error`.
    pub fn attempt(&self, result: &str, profile: &str, elapsed: Duration) {
        let labels = [profile, result];
        self.attempts.with(labels, |n| {
            n.fetch_add(1, Ordering::Relaxed);
        });
        self.attempt_duration.with(labels, |h| h.observe(elapsed.as_secs_f64()));
    }

    pub fn preemption_attempt(&self) {
        self.preemptions.fetch_add(1, Ordering::Relaxed);
    }

    pub fn preemption_victims(&self, victims: usize) {
        self.victims.observe(victims as f64);
    }

    /// All plugins of a point (`PreFilter`, `Score`, …) with what they came to (`Success`, `Unschedulable`, …).
    pub fn extension_point(&self, name: &str, status: &str, profile: &str, took: Duration) {
        self.points
            .with([name, profile, status], |h| h.observe(took.as_secs_f64()));
    }

    /// One plugin at one point. Worth measuring for some of the cycles only.
    pub fn plugin(&self, name: &str, point: &str, status: &str, took: Duration) {
        self.plugins
            .with([point, name, status], |h| h.observe(took.as_secs_f64()));
    }

    /// How many pods wait because this plugin rejected them: plugin, profile, pods. What is not named stays as it was.
    pub fn observe_rejected<'a>(&self, pods: impl Iterator<Item = (&'static str, &'a str, usize)>) {
        for (plugin, profile, n) in pods {
            self.unschedulable
                .with([plugin, profile], |gauge| gauge.0.store(n as u64, Ordering::Relaxed));
        }
    }

    /// A pod that had to wait for permission waits no longer, with this result.
    pub fn permit_wait(&self, result: &str, waited: Duration) {
        self.permit_wait.with([result], |h| h.observe(waited.as_secs_f64()));
    }

    /// All of it.
    pub fn render(&self) -> String {
        let mut out = String::with_capacity(32 * 1024);
        self.write_leader(&mut out);
        process::write(&mut out);
        self.write_gauges(&mut out);
        self.write_attempts(&mut out);
        self.write_framework(&mut out);
        self.write_preemption(&mut out);
        out
    }

    fn write_leader(&self, out: &mut String) {
        let name = "leader_election_master_status";
        text::header(
            out,
            name,
            "gauge",
            "Whether this process is the leader: 1 if it holds the lease, 0 if it is on standby.",
        );
        text::line(
            out,
            name,
            &text::label("name", &self.lease),
            u8::from(self.is_leading()),
        );
    }

    fn write_gauges(&self, out: &mut String) {
        let mut gauge = |name: &str, help: &str, label: &str, values: &[(&str, &AtomicU64)]| {
            text::header(out, name, "gauge", help);
            for (value, count) in values {
                text::line(out, name, &text::label(label, value), count.load(Ordering::Relaxed));
            }
        };
        let help = "Number of nodes, pods and assumed pods in the scheduler cache.";
        let sizes = [
            ("assumed_pods", &self.assumed),
            ("nodes", &self.nodes),
            ("pods", &self.pods),
        ];
        gauge("scheduler_cache_size", help, "type", &sizes);
        let [active, backoff, unschedulable, gated, in_flight] = &self.pending;
        let help = "Number of in-flight events; PodPopped counts the pods in a scheduling or binding cycle.";
        gauge("scheduler_inflight_events", help, "event", &[("PodPopped", in_flight)]);
        let help = "Number of pending pods by queue: active, backoff, unschedulable (waiting for an event), gated (scheduling \
                    gates).";
        let queues = [
            ("active", active),
            ("backoff", backoff),
            ("gated", gated),
            ("unschedulable", unschedulable),
        ];
        gauge("scheduler_pending_pods", help, "queue", &queues);
        let name = "scheduler_queue_incoming_pods_total";
        text::header(
            out,
            name,
            "counter",
            "Number of pods added to scheduling queues by event and queue.",
        );
        for ((event, queue), n) in self.incoming.lock().iter() {
            let labels = format!("{},{}", text::label("event", event), text::label("queue", queue));
            text::line(out, name, &labels, n);
        }
        let name = "scheduler_unschedulable_pods";
        let help =
            "Number of unschedulable pods by rejecting plugin; a pod counts once for each plugin that rejected it.";
        text::header(out, name, "gauge", help);
        self.unschedulable.write(out, name);
    }

    fn write_attempts(&self, out: &mut String) {
        let name = "scheduler_schedule_attempts_total";
        text::header(
            out,
            name,
            "counter",
            "Number of attempts to schedule pods, by result and profile.",
        );
        self.attempts.write(out, name);
        let name = "scheduler_scheduling_attempt_duration_seconds";
        text::header(
            out,
            name,
            "histogram",
            "Scheduling attempt latency in seconds (scheduling algorithm and binding).",
        );
        self.attempt_duration.write(out, name);
        let name = "scheduler_scheduling_algorithm_duration_seconds";
        text::header(out, name, "histogram", "Scheduling algorithm latency in seconds.");
        self.algorithm.write(out, name, "");
        let name = "scheduler_pod_scheduling_attempts";
        text::header(
            out,
            name,
            "histogram",
            "Number of attempts to successfully schedule a pod.",
        );
        self.pod_attempts.write(out, name, "");
        let name = "scheduler_pod_scheduling_sli_duration_seconds";
        let help =
            "Latency in seconds from when a pod enters the scheduling queue until it is bound, by number of attempts.";
        text::header(out, name, "histogram", help);
        self.sli.write(out, name);
        let name = "scheduler_pod_scheduled_after_flush_total";
        let help = "Number of pods scheduled after a flush of the unschedulable pods by timeout.";
        text::header(out, name, "counter", help);
        self.after_flush.write(out, name, "");
    }

    fn write_framework(&self, out: &mut String) {
        let name = "scheduler_framework_extension_point_duration_seconds";
        text::header(
            out,
            name,
            "histogram",
            "Latency in seconds of all plugins of an extension point.",
        );
        self.points.write(out, name);
        let name = "scheduler_plugin_execution_duration_seconds";
        text::header(
            out,
            name,
            "histogram",
            "Latency in seconds of one plugin at an extension point.",
        );
        self.plugins.write(out, name);
        let name = "scheduler_permit_wait_duration_seconds";
        let help = "Duration in seconds of waiting on permit, by result.";
        text::header(out, name, "histogram", help);
        self.permit_wait.write(out, name);
    }

    fn write_preemption(&self, out: &mut String) {
        let name = "scheduler_preemption_attempts_total";
        text::header(out, name, "counter", "Total preemption attempts in the cluster.");
        self.preemptions.write(out, name, "");
        let name = "scheduler_preemption_victims";
        text::header(out, name, "histogram", "Number of selected preemption victims.");
        self.victims.write(out, name, "");
    }
}

/// Gated pods wait among the unschedulable ones, so they count there when they come in.
fn queue_label(queue: SubQueue) -> &'static str {
    match queue {
        SubQueue::Gated => SubQueue::Unschedulable.label(),
        other => other.label(),
    }
}

fn trigger_label(trigger: Trigger) -> String {
    trigger.to_string()
}

#[cfg(test)]
mod tests;
