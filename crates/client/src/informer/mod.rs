//! A resource as a stream of changes: its whole state first, then every change in order, until the shutdown.
//!
//! ```text
//!            ┌──────────── refused (an older server) ───────────┐
//!            │                                                  ▼
//!   start ──► streaming list: ADDED … bookmark ──► Reset     paged list ──► Reset
//!     ▲                                              │                        │
//!     │                                              ▼                        │
//!     └── 410 Gone ─────────────────────────── watch from a revision ◄────────┘
//!                                               ▲                  │ broken or at its end
//!                                               └──────────────────┘
//! ```
//!
//! Nothing is lost: a watch goes on after the last line that was handed over; if the server no longer knows what came
//! after it, the whole state comes again as a `Reset`. A consumer that is slow only slows the reading; should it be
//! slower than the server's history is long, that means a `Reset`.
//!
//! Each object is decoded once, from the line as it came straight into the consumer's type, which only `consumer` knows:
//! everything else is compiled once for all types. The revision to go on from is read out of the last line only when it
//! is needed.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use orlop_base::{Random, Shutdown};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::api::{Api, ListQuery};
use crate::backoff::Backoff;
use crate::error::{Error, Status, UnavailableReason};
use crate::lines::Lines;
use crate::path::with_query;
use crate::reachability::Failures;
use consumer::{Channel, Consumer};
use watch_event::{EventType, WatchEvent};

pub use consumer::Decode;
pub use sink::{Inbox, Sink, start, start_with};

mod consumer;
mod sink;
mod watch_event;

/// A server sends a bookmark every minute or so; after this long without a line the connection is taken for dead.
const SILENCE_MAX: Duration = Duration::from_secs(150);
/// Watches are asked to end after five to ten minutes, so that clients spread anew. Upstream: client-go.
const WATCH_SECONDS: u64 = 300;
/// A watch that ends sooner than this is a failure, not an end: asking again at once would go on and on.
const WATCH_MIN: Duration = Duration::from_secs(1);
const INITIAL_END: &str = "k8s.io/initial-events-end";

/// A change, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta<T> {
    /// The whole state, at the start and whenever the server can no longer tell what changed: whatever is not in it is
    /// gone. A `Bookmark` follows.
    Reset(Vec<T>),
    Applied(T),
    Deleted(T),
    /// All changes up to this revision have been handed over.
    Bookmark(u64),
}

/// What to watch.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// The path of a collection; see `path::collection`.
    pub path: String,
    pub field_selector: String,
    pub label_selector: String,
}

impl Selection {
    /// Every object of a collection.
    pub fn all(path: impl Into<String>) -> Selection {
        Selection {
            path: path.into(),
            ..Selection::default()
        }
    }

    /// Only what this field selector matches.
    pub fn with_fields(mut self, selector: &str) -> Selection {
        self.field_selector = selector.to_string();
        self
    }

    /// Only what this label selector matches.
    pub fn with_labels(mut self, selector: &str) -> Selection {
        self.label_selector = selector.to_string();
        self
    }
}

/// As a stream: hands every change to `sink` until the shutdown, or until nobody receives any more. Objects that are not
/// of the shape of `T` are logged and left out.
pub fn watch<'a, T>(
    api: Api,
    selection: Selection,
    sink: mpsc::Sender<Delta<T>>,
    shutdown: Shutdown,
) -> BoxFuture<'a, ()>
where
    T: DeserializeOwned + Send + 'a,
{
    watch_with(api, selection, |json| serde_json::from_slice(json), sink, shutdown)
}

fn watch_with<'a, T: Send + 'a>(
    api: Api,
    selection: Selection,
    decode: Decode<T>,
    sink: mpsc::Sender<Delta<T>>,
    shutdown: Shutdown,
) -> BoxFuture<'a, ()> {
    let abandoned = sink.clone();
    let consumer = Box::new(Channel::new(decode, sink));
    run(
        api,
        selection,
        consumer,
        Box::pin(async move { abandoned.closed().await }),
        shutdown,
    )
}

/// Boxed here, so that this crate has the only copy of the code.
fn run<'a>(
    api: Api,
    selection: Selection,
    consumer: Box<dyn Consumer + 'a>,
    abandoned: BoxFuture<'a, ()>,
    shutdown: Shutdown,
) -> BoxFuture<'a, ()> {
    let mut informer = Informer {
        api,
        selection,
        consumer,
        backoff: Backoff::new(Random::from_entropy()),
        failures: Failures::default(),
        random: Random::from_entropy(),
        streams_lists: true,
        position: None,
    };
    Box::pin(async move {
        tokio::select! {
            _ = shutdown.wait() => {}
            _ = abandoned => {}
            _ = informer.run() => {}
        }
    })
}

struct Informer<'a> {
    api: Api,
    selection: Selection,
    consumer: Box<dyn Consumer + 'a>,
    backoff: Backoff,
    failures: Failures,
    random: Random,
    /// Until the server says it can't.
    streams_lists: bool,
    /// None: the state is unknown and must be listed.
    position: Option<Position>,
}

/// The place in the history up to which all has been handed over.
enum Position {
    Revision(String),
    After(Bytes),
}

/// Why a list or a watch is over.
enum WatchEnd {
    /// As watches do; go on from the position.
    Closed,
    /// Nobody receives any more.
    Abandoned,
    Failed(Error),
}

impl From<Error> for WatchEnd {
    fn from(error: Error) -> WatchEnd {
        WatchEnd::Failed(error)
    }
}

/// What a line of a watch means to the informer; objects are with the consumer by then.
enum Decoded {
    Change,
    /// An object that is not of the consumer's shape.
    Skipped,
    Bookmark(PartialMeta),
    Error(Status),
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Partial {
    metadata: PartialMeta,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PartialMeta {
    namespace: String,
    name: String,
    resource_version: String,
    annotations: Option<BTreeMap<String, String>>,
}

impl Informer<'_> {
    async fn run(&mut self) {
        loop {
            let error = match self.list_or_watch().await {
                WatchEnd::Abandoned => return,
                WatchEnd::Closed => continue,
                WatchEnd::Failed(error) => error,
            };
            let path = &self.selection.path;
            if let Error::Gone(_) = error {
                self.position = None;
                // Once is no failure but the way of slow watches; time and again is.
                if !self.backoff.has_failed() {
                    self.backoff.next_delay();
                    tracing::info!(path, "watch expired; listing again");
                    continue;
                }
            }
            // An API server whose etcd is too old for them answers with an internal error.
            let refused = matches!(
                error,
                Error::Invalid(_) | Error::Unavailable(UnavailableReason::Server(_))
            );
            if self.streams_lists && self.position.is_none() && refused {
                tracing::info!(path, err = %error, "streaming lists are not supported; listing in pages");
                self.streams_lists = false;
                continue;
            }
            let delay = match &error {
                Error::TooManyRequests { retry_after, .. } => self.backoff.next_delay().max(*retry_after),
                _ => self.backoff.next_delay(),
            };
            if self.failures.is_news(&error) {
                tracing::warn!(path, err = error.chain(), "failed to watch; retrying");
            } else {
                tracing::debug!(path, err = error.chain(), ?delay, "failed to watch; retrying");
            }
            tokio::time::sleep(delay).await;
        }
    }

    /// One list, or one watch from its start to its end.
    async fn list_or_watch(&mut self) -> WatchEnd {
        // A position without a revision is none.
        let revision = self.position.as_ref().map_or(String::new(), Position::revision);
        if revision.is_empty() {
            self.position = None;
            if !self.streams_lists {
                return self.list().await.unwrap_or_else(WatchEnd::from);
            }
        }
        let uri = self.watch_uri(&revision);
        match self.api.open(&uri).await {
            Ok(body) => self.follow(Lines::new(body)).await,
            Err(error) => error.into(),
        }
    }

    fn watch_uri(&mut self, revision: &str) -> String {
        let seconds = (WATCH_SECONDS + self.random.below(WATCH_SECONDS)).to_string();
        let listing = |value: &'static str| if self.position.is_none() { value } else { "" };
        with_query(
            &self.selection.path,
            &[
                ("watch", "true"),
                ("allowWatchBookmarks", "true"),
                ("sendInitialEvents", listing("true")),
                ("resourceVersionMatch", listing("NotOlderThan")),
                ("resourceVersion", revision),
                ("fieldSelector", &self.selection.field_selector),
                ("labelSelector", &self.selection.label_selector),
                ("timeoutSeconds", &seconds),
            ],
        )
    }

    async fn list(&mut self) -> Result<WatchEnd, Error> {
        let query = ListQuery {
            field_selector: self.selection.field_selector.clone(),
            label_selector: self.selection.label_selector.clone(),
            ..ListQuery::default()
        };
        let list = self.api.list::<Box<RawValue>>(&self.selection.path, &query).await?;
        self.consumer.begin_state();
        for item in list.items {
            let object = item.get().as_bytes();
            if let Err(error) = self.consumer.decode(EventType::Added, object) {
                let partial = serde_json::from_slice(object).unwrap_or_default();
                self.report_unreadable(&partial, &error);
            }
        }
        Ok(self.hand_over_state(list.resource_version).await)
    }

    /// Reads a watch to its end.
    async fn follow(&mut self, mut lines: Lines) -> WatchEnd {
        let opened = Instant::now();
        let mut is_state = self.position.is_none();
        if is_state {
            self.consumer.begin_state();
        }
        loop {
            let line = match tokio::time::timeout(SILENCE_MAX, lines.next()).await {
                Err(_) => return Error::Unavailable(UnavailableReason::Timeout(SILENCE_MAX)).into(),
                Ok(Err(error)) => return Error::transport(error).into(),
                Ok(Ok(None)) if is_state => {
                    return Error::transport("watch ended before the initial list was complete").into();
                }
                Ok(Ok(None)) if opened.elapsed() < WATCH_MIN => {
                    return Error::transport("watch ended as soon as it began").into();
                }
                Ok(Ok(None)) => return WatchEnd::Closed,
                Ok(Ok(Some(line))) => line,
            };
            match self.decode(&line) {
                Err(error) => return error.into(),
                Ok(Decoded::Error(status)) => return Error::from_status(status, None).into(),
                Ok(Decoded::Change | Decoded::Skipped) => {}
                Ok(Decoded::Bookmark(meta)) => {
                    if is_state && meta.annotations.is_some_and(|a| a.contains_key(INITIAL_END)) {
                        match self.hand_over_state(meta.resource_version).await {
                            WatchEnd::Closed => is_state = false,
                            end => return end,
                        }
                        continue;
                    }
                    if let Ok(revision) = meta.resource_version.parse() {
                        self.consumer.add_bookmark(revision);
                    }
                }
            }
            if is_state {
                continue;
            }
            if !self.consumer.send().await {
                return WatchEnd::Abandoned;
            }
            self.position = Some(Position::After(line));
            self.backoff.reset();
            self.failures.succeeded();
        }
    }

    fn decode(&mut self, line: &[u8]) -> Result<Decoded, Error> {
        if let Some(event) = WatchEvent::split(line)
            && let Ok(decoded) = self.decode_event(event)
        {
            return Ok(decoded);
        }
        let event = WatchEvent::parse(line).map_err(|error| self.unreadable(error))?;
        match self.decode_event(event) {
            Ok(decoded) => Ok(decoded),
            Err(error) => match serde_json::from_slice(event.object) {
                Ok(partial) if event.event_type.is_change() => {
                    self.report_unreadable(&partial, &error);
                    Ok(Decoded::Skipped)
                }
                _ => Err(self.unreadable(error)),
            },
        }
    }

    fn decode_event(&mut self, event: WatchEvent<'_>) -> serde_json::Result<Decoded> {
        match event.event_type {
            EventType::Bookmark => {
                let bookmark: Partial = serde_json::from_slice(event.object)?;
                Ok(Decoded::Bookmark(bookmark.metadata))
            }
            EventType::Error => serde_json::from_slice(event.object).map(Decoded::Error),
            change => self.consumer.decode(change, event.object).map(|()| Decoded::Change),
        }
    }

    fn unreadable(&self, source: serde_json::Error) -> Error {
        Error::Unreadable {
            request: format!("the watch of {}", self.selection.path),
            source,
        }
    }

    fn report_unreadable(&self, partial: &Partial, error: &serde_json::Error) {
        let PartialMeta { namespace, name, .. } = &partial.metadata;
        let path = &self.selection.path;
        tracing::error!(path, namespace, name, err = %error, "failed to decode object; ignoring it");
    }

    /// Sends the state that has been decoded, which is that at `revision`, and watches from there on.
    async fn hand_over_state(&mut self, revision: String) -> WatchEnd {
        if let Ok(revision) = revision.parse() {
            self.consumer.add_bookmark(revision);
        }
        if !self.consumer.send().await {
            return WatchEnd::Abandoned;
        }
        self.position = Some(Position::Revision(revision));
        WatchEnd::Closed
    }
}

impl Position {
    /// Empty if the line has none.
    fn revision(&self) -> String {
        let line = match self {
            Position::Revision(revision) => return revision.clone(),
            Position::After(line) => line,
        };
        match WatchEvent::parse(line) {
            Ok(event) if event.event_type != EventType::Error => {
                let partial: Partial = serde_json::from_slice(event.object).unwrap_or_default();
                partial.metadata.resource_version
            }
            Ok(_) | Err(_) => String::new(),
        }
    }
}

#[cfg(test)]
mod faults;
#[cfg(test)]
mod tests;
