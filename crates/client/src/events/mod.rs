//! Events: what a component reports about an object, for people.
//!
//! `Recorder::record` only puts the event into a bounded queue and never waits; when the queue is full the event is
//! dropped and counted. One task takes events out, decides what becomes of them, and writes with several requests in
//! flight (`outbox`, `wire`). As in Kubernetes there are two APIs: kubelets and controllers report `core/v1` events with
//! counts (`correlator`), the scheduler and the proxy `events.k8s.io/v1` with series (`series`).
//!
//! Upstream: client-go tools/record and tools/events. Differs in that refusals which pass (429, 5xx) are tried again,
//! too, and that the memory for repetitions is bounded.

mod correlator;
mod lru;
mod outbox;
mod series;
mod wire;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use jiff::Timestamp;
use orlop_api::names;
use orlop_base::clock::Shift;
use orlop_base::{Clock, Random, Shutdown};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use self::correlator::Correlator;
use self::outbox::Outbox;
use self::series::{SERIES_IDLE, SeriesKeeper};
use crate::api::Api;
use crate::backoff::jittered;
use crate::error::Error;

/// Events that may wait to be written.
const QUEUE: usize = 16_384;
/// Requests in flight at once: few, so that in a burst what is reported does not hold up what is done.
const IN_FLIGHT: usize = 4;
/// Upstream: client-go writes an event at most this often, about ten seconds apart.
const TRIES: u32 = 12;
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(10);
/// Running series are written anew every so many sweeps, half an hour apart, so that they do not expire.
const SWEEPS_PER_REFRESH: u32 = 5;
/// How long a component that stops waits for its last events.
const DRAIN: Duration = Duration::from_secs(3);
/// Upstream: validation of `events.k8s.io` allows this many bytes.
const NOTE_MAX: usize = 1024;
/// Messages of `core/v1` may be of any length; what a failed probe says is up to 10 KiB.
const MESSAGE_MAX: usize = 12 << 10;
const INSTANCE_MAX: usize = 128;

/// The type of an event; no others are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum EventType {
    Normal,
    Warning,
}

/// The object that an event is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectReference {
    #[serde(skip_serializing_if = "str::is_empty")]
    pub api_version: Cow<'static, str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub kind: Cow<'static, str>,
    /// Empty for cluster-scoped objects; their events go to `default`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field_path: String,
}

/// An event as a component reports it. Name, times and count are the recorder's.
#[derive(Clone, Debug)]
pub struct Event {
    pub regarding: ObjectReference,
    pub related: Option<ObjectReference>,
    pub kind: EventType,
    /// Why, in one word for programs: `Scheduled`.
    pub reason: Cow<'static, str>,
    /// What was done or tried: `Binding`.
    pub action: Cow<'static, str>,
    /// For people; a very long one is cut.
    pub note: String,
}

/// The component that reports events, and the API that it uses.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Source {
    controller: String,
    api: EventApi,
}

#[derive(Debug, PartialEq, Eq, Hash)]
enum EventApi {
    /// `core/v1`: equal events are counted.
    CoreV1 {
        /// The node that it reports from; empty for what runs for the whole cluster.
        host: String,
    },
    /// `events.k8s.io/v1`: events with the same reason about the same version of an object are a series.
    EventsV1 {
        instance: String,
        /// Events that differ in their note only are different events.
        notes_matter: bool,
    },
}

impl Source {
    fn events_v1(controller: &str, notes_matter: bool) -> Source {
        let hostname = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
        let mut instance = format!("{controller}-{}", hostname.unwrap_or_default());
        instance.truncate(instance.floor_char_boundary(INSTANCE_MAX));
        Source {
            controller: controller.to_string(),
            api: EventApi::EventsV1 { instance, notes_matter },
        }
    }

    fn core_v1(component: &str, host: &str) -> Source {
        Source {
            controller: component.to_string(),
            api: EventApi::CoreV1 { host: host.to_string() },
        }
    }

    fn note_max(&self) -> usize {
        match self.api {
            EventApi::CoreV1 { .. } => MESSAGE_MAX,
            EventApi::EventsV1 { .. } => NOTE_MAX,
        }
    }
}

/// An event as it is to stand in the cluster.
#[derive(Clone, Debug)]
struct Report {
    source: Arc<Source>,
    event: Event,
    name: Box<str>,
    first: Timestamp,
    last: Timestamp,
    /// How often it was seen: the first time it is made, later it is changed.
    count: u32,
}

impl Report {
    fn namespace(&self) -> &str {
        match self.event.regarding.namespace.as_str() {
            "" => "default",
            namespace => namespace,
        }
    }

    fn group(&self) -> &'static str {
        match self.source.api {
            EventApi::CoreV1 { .. } => "v1",
            EventApi::EventsV1 { .. } => "events.k8s.io/v1",
        }
    }
}

/// Gives events their names.
#[derive(Default)]
struct EventNames {
    last_nanosecond: i128,
}

impl EventNames {
    /// Unique by its time, which therefore never stands still. Upstream: `<object>.<nanoseconds, hexadecimal>`.
    fn next(&mut self, object: &str, at: Timestamp) -> Box<str> {
        self.last_nanosecond = at.as_nanosecond().max(self.last_nanosecond + 1);
        let name = format!("{object}.{:x}", self.last_nanosecond);
        match names::dns_subdomain(&name).is_empty() {
            true => name.into(),
            false => uuid::Uuid::new_v4().to_string().into(),
        }
    }
}

struct QueuedEvent {
    source: Arc<Source>,
    event: Event,
    at: Timestamp,
}

/// Records events without ever waiting. Clones are cheap and share the queue.
#[derive(Clone)]
pub struct Recorder {
    source: Arc<Source>,
    queue: mpsc::Sender<QueuedEvent>,
    dropped: Arc<AtomicU64>,
    clock: Clock,
}

impl Recorder {
    /// A recorder for what `controller` reports as `events.k8s.io/v1`, and the task that writes the events. The task
    /// ends some moments after the shutdown, when the events recorded before are written.
    pub fn start(api: Api, controller: &str, clock: Clock, shutdown: Shutdown) -> (Recorder, JoinHandle<()>) {
        let (sender, queue) = mpsc::channel(QUEUE);
        let writer = Writer {
            api,
            clock: clock.clone(),
            names: EventNames::default(),
            series: SeriesKeeper::default(),
            correlators: HashMap::new(),
            outbox: Outbox::default(),
        };
        let recorder = Recorder {
            source: Arc::new(Source::events_v1(controller, false)),
            queue: sender,
            dropped: Arc::default(),
            clock,
        };
        (recorder, orlop_base::spawn(writer.run(queue, shutdown)))
    }

    /// The same queue for another reporting controller, as for another profile of a scheduler.
    pub fn reporting_as(&self, controller: &str) -> Recorder {
        self.with(Source::events_v1(controller, false))
    }

    /// From here on only events with the same note are taken for repetitions.
    pub fn telling_notes_apart(self) -> Recorder {
        self.with(Source::events_v1(&self.source.controller, true))
    }

    /// The same queue for a component that reports `core/v1` events, as kubelets (with their node as `host`) and
    /// controllers (without) do.
    pub fn core_v1_source(&self, component: &str, host: &str) -> Recorder {
        self.with(Source::core_v1(component, host))
    }

    fn with(&self, source: Source) -> Recorder {
        Recorder {
            source: Arc::new(source),
            ..self.clone()
        }
    }

    /// Never waits. If too many events wait already, this one is dropped.
    pub fn record(&self, mut event: Event) {
        cut(&mut event.note, self.source.note_max());
        let queued = QueuedEvent {
            source: self.source.clone(),
            event,
            at: self.clock.now(),
        };
        if self.queue.try_send(queued).is_err() {
            let dropped = self.dropped.fetch_add(1, Ordering::Relaxed) + 1;
            if dropped.is_power_of_two() {
                tracing::warn!(dropped, "dropped events: queue is full");
            }
        }
    }

    /// Events that were not written because too many waited.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// Upstream: kube-scheduler ends a note that is too long in " ...".
fn cut(note: &mut String, max: usize) {
    const ELLIPSIS: &str = " ...";
    if note.len() > max {
        note.truncate(note.floor_char_boundary(max - ELLIPSIS.len()));
        note.push_str(ELLIPSIS);
    }
}

struct Writer {
    api: Api,
    clock: Clock,
    names: EventNames,
    series: SeriesKeeper,
    /// One a source, as upstream.
    correlators: HashMap<Arc<Source>, Correlator>,
    outbox: Outbox,
}

impl Writer {
    /// What to write, if anything.
    fn observe(&mut self, QueuedEvent { source, event, at }: QueuedEvent) -> Option<Report> {
        match source.api {
            EventApi::EventsV1 { .. } => self.series.observe(source, event, at, &mut self.names),
            EventApi::CoreV1 { .. } => {
                let correlator = self.correlators.entry(source.clone()).or_default();
                correlator.correlate(source, event, at, &mut self.names)
            }
        }
    }

    async fn run(mut self, mut queue: mpsc::Receiver<QueuedEvent>, shutdown: Shutdown) {
        let mut writing = FuturesUnordered::new();
        let mut batch = Vec::with_capacity(IN_FLIGHT);
        let mut sweeps = 0;
        let mut next_sweep = Instant::now().later(SERIES_IDLE);
        let mut drained_by = None;
        let mut open = true;
        loop {
            while writing.len() < IN_FLIGHT
                && let Some(report) = self.outbox.next()
            {
                writing.push(write(self.api.clone(), report, Random::from_entropy()));
            }
            if !open && writing.is_empty() {
                return;
            }
            let end = drained_by.unwrap_or(next_sweep);
            tokio::select! {
                Some(name) = writing.next(), if !writing.is_empty() => self.outbox.finish(&name),
                count = queue.recv_many(&mut batch, IN_FLIGHT), if open && self.outbox.is_empty() && writing.len() < IN_FLIGHT => {
                    open = count > 0;
                    for queued in batch.drain(..) {
                        let report = self.observe(queued);
                        self.outbox.extend(report);
                    }
                }
                _ = shutdown.wait(), if drained_by.is_none() => {
                    queue.close();
                    drained_by = Some(Instant::now().later(DRAIN));
                }
                _ = tokio::time::sleep_until(end) => {
                    if drained_by.is_some() {
                        tracing::debug!("gave up writing events at shutdown");
                        return;
                    }
                    sweeps += 1;
                    next_sweep = Instant::now().later(SERIES_IDLE);
                    let refresh = sweeps % SWEEPS_PER_REFRESH == 0;
                    self.outbox.extend(self.series.sweep(self.clock.now(), refresh));
                }
            }
        }
    }
}

/// Writes until it is written, refused for good, or tried too often. Gives the name back.
async fn write(api: Api, report: Report, random: Random) -> Box<str> {
    write_patiently(&api, &report, random).await;
    report.name
}

async fn write_patiently(api: &Api, report: &Report, mut random: Random) {
    let name = &report.name;
    for attempt in 0..TRIES {
        let delay = match wire::write_once(api, report).await {
            Ok(()) => return,
            Err(Error::TooManyRequests { retry_after, .. }) => retry_after,
            // What is to be changed was not there a moment ago and is now: it was written just then.
            Err(Error::AlreadyExists(_)) if report.count > 1 => Duration::ZERO,
            Err(Error::AlreadyExists(_) | Error::NotFound(_) | Error::Forbidden(_)) => {
                // Written by a try whose answer was lost, or the namespace is going away.
                return tracing::debug!(event = %name, "event rejected");
            }
            Err(error) if error.is_passing() => RETRY_FIRST.saturating_mul(1 << attempt.min(10)).min(RETRY_MAX),
            Err(error) => {
                return tracing::warn!(event = %name, err = %error.chain(), "failed to write event, not retrying");
            }
        };
        tokio::time::sleep(jittered(delay, 0.25, &mut random)).await;
    }
    tracing::debug!(event = %name, tries = TRIES, "failed to write event, retry limit exceeded");
}

#[cfg(test)]
mod correlator_tests;
#[cfg(test)]
mod tests;
