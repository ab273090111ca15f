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
//! Each line is decoded once, straight into the consumer's type. The revision to go on from is read out of the last line
//! only when it is needed.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::time::Duration;

use bytes::Bytes;
use orlop_base::{Random, Shutdown};
use serde::de::{DeserializeOwned, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::api::{Api, ListQuery};
use crate::backoff::Backoff;
use crate::error::{Error, Status, UnavailableReason};
use crate::lines::Lines;
use crate::path::with_query;
use crate::reachability::Failures;

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

/// Hands every change to `sink` until the shutdown, or until nobody receives any more. Objects that are not of the shape
/// of `T` are logged and left out.
pub async fn watch<T>(api: Api, selection: Selection, sink: mpsc::Sender<Delta<T>>, shutdown: Shutdown)
where
    T: DeserializeOwned + Send,
{
    let abandoned = sink.clone();
    let mut informer = Informer {
        api,
        selection,
        sink,
        backoff: Backoff::new(Random::from_entropy()),
        failures: Failures::default(),
        random: Random::from_entropy(),
        streams_lists: true,
        position: None,
    };
    tokio::select! {
        _ = shutdown.wait() => {}
        _ = abandoned.closed() => {}
        _ = informer.run() => {}
    }
}

struct Informer<T> {
    api: Api,
    selection: Selection,
    sink: mpsc::Sender<Delta<T>>,
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

/// Why a list or watch is over.
enum WatchEnd {
    /// As watches do; go on from the position.
    Expected,
    /// Nobody receives any more.
    Abandoned,
    Failed(Error),
}

impl From<Error> for WatchEnd {
    fn from(error: Error) -> WatchEnd {
        WatchEnd::Failed(error)
    }
}

/// A line of a watch. Decoded in one go, as servers write the type first.
enum Line<T> {
    Added(T),
    Modified(T),
    Deleted(T),
    Bookmark(Partial),
    Error(Status),
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum LineType {
    Added,
    Modified,
    Deleted,
    Bookmark,
    Error,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum LineField {
    Type,
    Object,
    #[serde(other)]
    Other,
}

/// By hand: what serde derives for such an enum also reads objects that come before their type, from a buffer, and so has
/// the code for all of `T` twice. For large types that is minutes of building and megabytes of binary.
impl<'de, T: Deserialize<'de>> Deserialize<'de> for Line<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Line<T>, D::Error> {
        deserializer.deserialize_map(LineVisitor(PhantomData))
    }
}

/// The type comes first from every server; should it not, the line is put in order and read again.
fn read_line<T: DeserializeOwned>(line: &[u8]) -> serde_json::Result<Line<T>> {
    let error = match serde_json::from_slice(line) {
        Ok(line) => return Ok(line),
        Err(error) => error,
    };
    #[derive(Deserialize)]
    struct Parts<'a> {
        r#type: &'a str,
        #[serde(borrow)]
        object: &'a RawValue,
    }
    match serde_json::from_slice::<Parts<'_>>(line) {
        Ok(parts) if !line.starts_with(b"{\"type\"") => {
            let ordered = format!("{{\"type\":{:?},\"object\":{}}}", parts.r#type, parts.object.get());
            serde_json::from_slice(ordered.as_bytes())
        }
        _ => Err(error),
    }
}

struct LineVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for LineVisitor<T> {
    type Value = Line<T>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a watch event, its type first")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Line<T>, A::Error> {
        let (mut kind, mut line) = (None, None);
        while let Some(field) = map.next_key()? {
            match (field, kind) {
                (LineField::Type, _) => kind = Some(map.next_value()?),
                (LineField::Other, _) => drop(map.next_value::<IgnoredAny>()?),
                (LineField::Object, None) => return Err(serde::de::Error::missing_field("type")),
                (LineField::Object, Some(LineType::Bookmark)) => line = Some(Line::Bookmark(map.next_value()?)),
                (LineField::Object, Some(LineType::Error)) => line = Some(Line::Error(map.next_value()?)),
                (LineField::Object, Some(kind)) => {
                    let object = map.next_value()?;
                    line = Some(match kind {
                        LineType::Added => Line::Added(object),
                        LineType::Deleted => Line::Deleted(object),
                        _ => Line::Modified(object),
                    });
                }
            }
        }
        line.ok_or_else(|| serde::de::Error::missing_field("object"))
    }
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

/// The state while it is still coming in. What is not ADDED changes what came before it, so from there on the deltas are
/// kept apart, to be handed over after the state.
struct Initial<T> {
    items: Vec<T>,
    later: Vec<Delta<T>>,
}

impl<T> Initial<T> {
    fn push(&mut self, delta: Delta<T>, is_new: bool) {
        match delta {
            Delta::Applied(item) if is_new && self.later.is_empty() => self.items.push(item),
            delta => self.later.push(delta),
        }
    }
}

impl<T: DeserializeOwned + Send> Informer<T> {
    async fn run(&mut self) {
        loop {
            let error = match self.list_or_watch().await {
                WatchEnd::Abandoned => return,
                WatchEnd::Expected => continue,
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
        // As bytes, like everything else here: one copy of the code that reads `T`.
        let decode = |raw: Box<RawValue>| match serde_json::from_slice(raw.get().as_bytes()) {
            Ok(item) => Some(item),
            Err(error) => {
                let partial = serde_json::from_str::<Partial>(raw.get()).unwrap_or_default();
                self.report_unreadable(&partial, &error);
                None
            }
        };
        let items = list.items.into_iter().filter_map(decode).collect();
        let initial = Initial { items, later: vec![] };
        match self.hand_over_state(initial, &list.resource_version).await {
            Some(()) => {
                self.position = Some(Position::Revision(list.resource_version));
                Ok(WatchEnd::Expected)
            }
            None => Ok(WatchEnd::Abandoned),
        }
    }

    /// Reads a watch to its end.
    async fn follow(&mut self, mut lines: Lines) -> WatchEnd {
        let opened = Instant::now();
        let mut initial = self.position.is_none().then(|| Initial {
            items: vec![],
            later: vec![],
        });
        loop {
            let line = match tokio::time::timeout(SILENCE_MAX, lines.next()).await {
                Err(_) => return Error::Unavailable(UnavailableReason::Timeout(SILENCE_MAX)).into(),
                Ok(Err(error)) => return Error::transport(error).into(),
                Ok(Ok(None)) if initial.is_some() => {
                    return Error::transport("watch ended before the initial list was complete").into();
                }
                Ok(Ok(None)) if opened.elapsed() < WATCH_MIN => {
                    return Error::transport("watch ended as soon as it began").into();
                }
                Ok(Ok(None)) => return WatchEnd::Expected,
                Ok(Ok(Some(line))) => line,
            };
            let (delta, is_new) = match self.decode(&line) {
                Err(error) => return error.into(),
                Ok(None) => (None, false),
                Ok(Some(Line::Added(item))) => (Some(Delta::Applied(item)), true),
                Ok(Some(Line::Modified(item))) => (Some(Delta::Applied(item)), false),
                Ok(Some(Line::Deleted(item))) => (Some(Delta::Deleted(item)), false),
                Ok(Some(Line::Error(status))) => return Error::from_status(status, None).into(),
                Ok(Some(Line::Bookmark(bookmark))) => {
                    let ends = bookmark
                        .metadata
                        .annotations
                        .is_some_and(|a| a.contains_key(INITIAL_END));
                    let revision = bookmark.metadata.resource_version;
                    if let Some(state) = initial.take_if(|_| ends) {
                        if self.hand_over_state(state, &revision).await.is_none() {
                            return WatchEnd::Abandoned;
                        }
                        self.position = Some(Position::Revision(revision));
                        continue;
                    }
                    (revision.parse().ok().map(Delta::Bookmark), false)
                }
            };
            match (&mut initial, delta) {
                (Some(state), Some(delta)) => state.push(delta, is_new),
                (Some(_), None) => {}
                (None, delta) => {
                    if let Some(delta) = delta
                        && self.sink.send(delta).await.is_err()
                    {
                        return WatchEnd::Abandoned;
                    }
                    self.position = Some(Position::After(line));
                    self.backoff.reset();
                    self.failures.succeeded();
                }
            }
        }
    }

    /// A line; none if its object is not of the consumer's shape.
    fn decode(&self, line: &Bytes) -> Result<Option<Line<T>>, Error> {
        let error = match read_line::<T>(line) {
            Ok(line) => return Ok(Some(line)),
            Err(error) => error,
        };
        match read_line::<Partial>(line) {
            Ok(Line::Added(partial) | Line::Modified(partial) | Line::Deleted(partial)) => {
                self.report_unreadable(&partial, &error);
                Ok(None)
            }
            _ => Err(Error::Unreadable {
                request: format!("the watch of {}", self.selection.path),
                source: error,
            }),
        }
    }

    fn report_unreadable(&self, partial: &Partial, error: &serde_json::Error) {
        let PartialMeta { namespace, name, .. } = &partial.metadata;
        let path = &self.selection.path;
        tracing::error!(path, namespace, name, err = %error, "failed to decode object; ignoring it");
    }

    /// None if nobody receives any more.
    async fn hand_over_state(&mut self, state: Initial<T>, revision: &str) -> Option<()> {
        self.sink.send(Delta::Reset(state.items)).await.ok()?;
        let bookmark = revision.parse().ok().map(Delta::Bookmark);
        for delta in state.later.into_iter().chain(bookmark) {
            self.sink.send(delta).await.ok()?;
        }
        Some(())
    }
}

impl Position {
    /// Empty if the line has none.
    fn revision(&self) -> String {
        let line = match self {
            Position::Revision(revision) => return revision.clone(),
            Position::After(line) => line,
        };
        match read_line::<Partial>(line) {
            Ok(Line::Added(object) | Line::Modified(object) | Line::Deleted(object) | Line::Bookmark(object)) => {
                object.metadata.resource_version
            }
            Ok(Line::Error(_)) | Err(_) => String::new(),
        }
    }
}

#[cfg(test)]
mod faults;
#[cfg(test)]
mod tests;
