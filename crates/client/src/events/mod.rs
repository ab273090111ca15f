//! Events: what a component tells people about an object, as `events.k8s.io/v1`.
//!
//! `Recorder::record` only puts the event into a bounded queue and never waits; when the queue is full the event is
//! dropped and counted. One task takes events out, folds repetitions into series (`series`), and writes with several
//! requests in flight.
//!
//! Upstream: client-go tools/events. Differs in that refusals which pass (429, 5xx) are tried again, too, and that the
//! memory for repetitions is bounded.

mod series;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use jiff::Timestamp;
use orlop_base::clock::{Shift, rfc3339_micro};
use orlop_base::{Clock, Random, Shutdown};
use serde::Serialize;
use serde::de::IgnoredAny;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use self::series::{Aggregator, Report, SERIES_IDLE};
use crate::api::Api;
use crate::backoff::jittered;
use crate::error::{Error, Result};
use crate::path;

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
/// Upstream: validation of events allows this many bytes.
const NOTE_MAX: usize = 1024;
const INSTANCE_MAX: usize = 128;

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
    /// Empty for objects that live in none; their events go to `default`.
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

#[derive(Clone, Debug)]
pub struct Event {
    pub regarding: ObjectReference,
    pub related: Option<ObjectReference>,
    pub kind: EventType,
    /// Why, in one word for programs: `Scheduled`.
    pub reason: Cow<'static, str>,
    /// What was done or tried: `Binding`.
    pub action: Cow<'static, str>,
    /// For people; cut at 1024 bytes.
    pub note: String,
}

/// Who reports.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Source {
    controller: String,
    instance: String,
    /// Events that differ in their note only are different events.
    notes_matter: bool,
}

impl Source {
    fn new(controller: &str) -> Source {
        let hostname = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
        let mut instance = format!("{controller}-{}", hostname.unwrap_or_default());
        instance.truncate(instance.floor_char_boundary(INSTANCE_MAX));
        Source {
            controller: controller.to_string(),
            instance,
            notes_matter: false,
        }
    }
}

struct Queued {
    source: Arc<Source>,
    event: Event,
    at: Timestamp,
}

/// Takes events. Clones are cheap and share the queue.
#[derive(Clone)]
pub struct Recorder {
    source: Arc<Source>,
    queue: mpsc::Sender<Queued>,
    dropped: Arc<AtomicU64>,
    clock: Clock,
}

impl Recorder {
    /// A recorder for what `controller` reports, and the task that writes the events. The task ends some moments after
    /// the shutdown, when the events recorded before are written.
    pub fn start(api: Api, controller: &str, clock: Clock, shutdown: Shutdown) -> (Recorder, JoinHandle<()>) {
        let (sender, queue) = mpsc::channel(QUEUE);
        let writer = Writer {
            api,
            clock: clock.clone(),
            aggregator: Aggregator::default(),
            backlog: VecDeque::new(),
        };
        let recorder = Recorder {
            source: Arc::new(Source::new(controller)),
            queue: sender,
            dropped: Arc::default(),
            clock,
        };
        (recorder, tokio::spawn(writer.run(queue, shutdown)))
    }

    /// The same queue for another reporting controller, as for another profile of a scheduler.
    pub fn reporting_as(&self, controller: &str) -> Recorder {
        Recorder {
            source: Arc::new(Source::new(controller)),
            ..self.clone()
        }
    }

    /// From here on only events with the same note are taken for repetitions: each of "Created pod: …" is written, as
    /// Kubernetes' controllers do it (client-go tools/record), and not a count of the first.
    pub fn telling_notes_apart(self) -> Recorder {
        let source = Source {
            notes_matter: true,
            ..Source::new(&self.source.controller)
        };
        Recorder {
            source: Arc::new(source),
            ..self
        }
    }

    /// Never waits. If too many events wait already, this one is dropped.
    pub fn record(&self, mut event: Event) {
        cut(&mut event.note);
        let queued = Queued {
            source: self.source.clone(),
            event,
            at: self.clock.now(),
        };
        if self.queue.try_send(queued).is_err() {
            let dropped = self.dropped.fetch_add(1, Ordering::Relaxed) + 1;
            if dropped.is_power_of_two() {
                tracing::warn!("{dropped} events dropped so far: the API server does not take them fast enough");
            }
        }
    }

    /// Events that were not written because too many waited.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// Upstream: kube-scheduler ends a note that is too long in " ...".
fn cut(note: &mut String) {
    const ELLIPSIS: &str = " ...";
    if note.len() > NOTE_MAX {
        note.truncate(note.floor_char_boundary(NOTE_MAX - ELLIPSIS.len()));
        note.push_str(ELLIPSIS);
    }
}

struct Writer {
    api: Api,
    clock: Clock,
    aggregator: Aggregator,
    backlog: VecDeque<Report>,
}

impl Writer {
    async fn run(mut self, mut queue: mpsc::Receiver<Queued>, shutdown: Shutdown) {
        let mut writing = FuturesUnordered::new();
        let mut batch = Vec::with_capacity(IN_FLIGHT);
        let mut sweeps = 0;
        let mut next_sweep = Instant::now().later(SERIES_IDLE);
        let mut drained_by = None;
        let mut open = true;
        loop {
            while writing.len() < IN_FLIGHT
                && let Some(report) = self.backlog.pop_front()
            {
                writing.push(write(self.api.clone(), report, Random::from_entropy()));
            }
            if !open && writing.is_empty() {
                return;
            }
            let end = drained_by.unwrap_or(next_sweep);
            tokio::select! {
                Some(()) = writing.next(), if !writing.is_empty() => {}
                count = queue.recv_many(&mut batch, IN_FLIGHT), if open && self.backlog.is_empty() && writing.len() < IN_FLIGHT => {
                    open = count > 0;
                    let reports = batch.drain(..).filter_map(|q| self.aggregator.observe(q.source, q.event, q.at));
                    self.backlog.extend(reports);
                }
                _ = shutdown.wait(), if drained_by.is_none() => {
                    queue.close();
                    drained_by = Some(Instant::now().later(DRAIN));
                }
                _ = tokio::time::sleep_until(end) => {
                    if drained_by.is_some() {
                        tracing::debug!("gave up on the events that were still to be written");
                        return;
                    }
                    sweeps += 1;
                    next_sweep = Instant::now().later(SERIES_IDLE);
                    let refresh = sweeps % SWEEPS_PER_REFRESH == 0;
                    self.backlog.extend(self.aggregator.sweep(self.clock.now(), refresh));
                }
            }
        }
    }
}

/// Writes until it is written, refused for good, or tried too often.
async fn write(api: Api, report: Report, mut random: Random) {
    let name = &report.name;
    for attempt in 0..TRIES {
        let delay = match write_once(&api, &report).await {
            Ok(()) => return,
            Err(Error::TooManyRequests { retry_after, .. }) => retry_after,
            // The event of a series was not there a moment ago and is now: it was written just then.
            Err(Error::AlreadyExists(_)) if report.series.is_some() => Duration::ZERO,
            Err(Error::AlreadyExists(_) | Error::NotFound(_) | Error::Forbidden(_)) if report.series.is_none() => {
                // Written by a try whose answer was lost, or the namespace is going away.
                return tracing::debug!("the event {name} was refused");
            }
            Err(error) if error.is_passing() => RETRY_FIRST.saturating_mul(1 << attempt.min(10)).min(RETRY_MAX),
            Err(error) => return tracing::warn!("the event {name} was refused: {}", error.chain()),
        };
        tokio::time::sleep(jittered(delay, 0.25, &mut random)).await;
    }
    tracing::warn!("the event {name} could not be written in {TRIES} tries");
}

async fn write_once(api: &Api, report: &Report) -> Result<()> {
    let namespace = Some(report.namespace());
    if let Some(series) = &report.series {
        let path = path::object("events.k8s.io/v1", namespace, "events", &report.name);
        let patch = SeriesPatch { series: series.into() };
        match api.patch_strategic::<IgnoredAny>(&path, &patch).await {
            // Expired meanwhile, or never written: then write it whole.
            Err(Error::NotFound(_)) => {}
            answer => return answer.map(|_| ()),
        }
    }
    let path = path::collection("events.k8s.io/v1", namespace, "events");
    api.create::<IgnoredAny>(&path, &EventObject::from(report))
        .await
        .map(|_| ())
}

#[derive(Serialize)]
struct SeriesPatch {
    series: SeriesObject,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SeriesObject {
    count: u32,
    last_observed_time: String,
}

impl From<&series::Series> for SeriesObject {
    fn from(series: &series::Series) -> SeriesObject {
        SeriesObject {
            count: series.count,
            last_observed_time: rfc3339_micro(series.last),
        }
    }
}

#[derive(Serialize)]
struct Metadata<'a> {
    name: &'a str,
    namespace: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct EventObject<'a> {
    api_version: &'static str,
    kind: &'static str,
    metadata: Metadata<'a>,
    event_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    series: Option<SeriesObject>,
    reporting_controller: &'a str,
    reporting_instance: &'a str,
    action: &'a str,
    reason: &'a str,
    regarding: &'a ObjectReference,
    #[serde(skip_serializing_if = "Option::is_none")]
    related: Option<&'a ObjectReference>,
    note: &'a str,
    r#type: EventType,
}

impl<'a> From<&'a Report> for EventObject<'a> {
    fn from(report: &'a Report) -> EventObject<'a> {
        let event = &report.event;
        EventObject {
            api_version: "events.k8s.io/v1",
            kind: "Event",
            metadata: Metadata {
                name: &report.name,
                namespace: report.namespace(),
            },
            event_time: rfc3339_micro(report.at),
            series: report.series.as_ref().map(SeriesObject::from),
            reporting_controller: &report.source.controller,
            reporting_instance: &report.source.instance,
            action: &event.action,
            reason: &event.reason,
            regarding: &event.regarding,
            related: event.related.as_ref(),
            note: &event.note,
            r#type: event.kind,
        }
    }
}

#[cfg(test)]
mod tests;
