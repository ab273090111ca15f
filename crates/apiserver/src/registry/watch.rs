//! watch: a stream of events from a revision on, seen through selectors.
//!
//! Nothing is queued per watcher: the store keeps the recent events, and each watcher is a place in them. One that reads
//! too slowly falls out of the history and is told `410 Expired`, as every client expects.

use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use orlop_api::{KindDef, Status, Value};
use orlop_base::Shutdown;
use orlop_base::clock::Shift;
use orlop_store::{Event, Item, Revision, Watcher};
use serde_json::json;

use super::Registry;
use super::context::OptionProblems;
use super::list::{ListOptions, expired, parse_revision};
use crate::kinds;
use crate::negotiate::{Format, Representation, Shape};
use crate::object::{Object, type_head};
use crate::request::RequestInfo;
use crate::table;

/// How often a quiet watch tells its client how far it has come, if the client wants to know.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);

/// A running watch. `next` gives the bytes of the next frames.
pub struct Watch {
    registry: Arc<Registry>,
    kind: &'static KindDef,
    options: ListOptions,
    wanted: Representation,
    include_object: table::IncludeObject,
    watcher: Watcher<Object>,
    /// The state at the start, sent as ADDED events before anything else.
    initial: std::vec::IntoIter<Item<Object>>,
    /// Set while the end of the initial state is still to be announced (streaming lists).
    announce_initial_end: Option<Revision>,
    /// Why there is nothing to watch. Upstream: told in the stream, not by the answer's code.
    refused: Option<Status>,
    bookmarks: bool,
    deadline: tokio::time::Instant,
    shutdown: Shutdown,
    type_head: String,
    last_sent: Revision,
    table_started: bool,
    done: bool,
}

impl Registry {
    pub fn watch(
        self: &Arc<Self>,
        kind: &'static KindDef,
        info: &RequestInfo,
        wanted: Representation,
        shutdown: Shutdown,
    ) -> Result<Watch, Status> {
        let options = ListOptions::parse(kind, info)?;
        let query = &info.query;
        let bookmarks = query.flag("allowWatchBookmarks");
        let matching = query.get("resourceVersionMatch").unwrap_or("");
        let send_initial = query.get("sendInitialEvents").map(|_| query.flag("sendInitialEvents"));
        check_initial_events(send_initial, matching, query.get("continue").unwrap_or(""))?;
        let from = parse_revision(&options.resource_version)?;
        let prefix = kinds::key_prefix(kind, Some(&options.namespace));
        // No revision, or 0: the state as it is now comes first. A streaming list wants it whatever revision it names.
        let wants_state = match send_initial {
            Some(wants) => wants,
            None => matches!(from, None | Some(0)),
        };
        let (initial, after) = if wants_state {
            let page = self.page(
                kind,
                &ListOptions {
                    limit: 0,
                    at: None,
                    start_after: None,
                    filter: options.filter.from_outside(),
                    ..options.clone()
                },
            )?;
            (page.items, page.revision)
        } else {
            (vec![], from.filter(|n| *n > 0).unwrap_or_else(|| self.store.revision()))
        };
        // A revision that is not there yet: the client saw the future of another life of this server. The watch waits
        // for it rather than failing, as etcd does.
        let current = self.store.revision();
        let (watcher, refused) = match self.store.watch(&prefix, after.min(current)) {
            Ok(watcher) => (watcher, None),
            Err(_) => {
                let watcher = self.store.watch(&prefix, current).map_err(|_| expired_watch(after))?;
                (watcher, Some(expired_watch(after)))
            }
        };
        let timeout = match query.number("timeoutSeconds")? {
            Some(n) if n > 0 => Duration::from_secs(n as u64),
            // A watch ends by itself if the client sets no limit, so that connections are spread anew. Upstream: after a
            // random time between the least one and twice that.
            _ => {
                let least = self.config.min_request_timeout;
                least.saturating_add(least.checked_div(2).unwrap_or_default())
            }
        };
        let include_object = table::IncludeObject::parse(query.get("includeObject"))?;
        Ok(Watch {
            registry: self.clone(),
            kind,
            wanted,
            include_object,
            watcher,
            initial: initial.into_iter(),
            refused,
            announce_initial_end: (send_initial == Some(true) && bookmarks).then_some(after),
            bookmarks,
            deadline: tokio::time::Instant::now().later(timeout),
            shutdown,
            type_head: type_head(kind.kind, &kind.api_version()),
            last_sent: after,
            table_started: false,
            done: false,
            options,
        })
    }
}

fn check_initial_events(send_initial: Option<bool>, matching: &str, token: &str) -> Result<(), Status> {
    let mut problems = OptionProblems::default();
    let field = "resourceVersionMatch";
    if send_initial.is_some() && matching != "NotOlderThan" {
        let detail = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
        problems.forbidden(field, detail);
    }
    if !matching.is_empty() {
        if send_initial.is_none() {
            let detail = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
            problems.forbidden(field, detail);
        }
        if matching != "NotOlderThan" {
            problems.not_supported(field, &format!("{matching:?}"), "\"NotOlderThan\"");
        }
        if !token.is_empty() {
            problems.forbidden(field, "resourceVersionMatch is forbidden when continue is provided");
        }
    }
    problems.end("ListOptions")
}

fn expired_watch(asked: Revision) -> Status {
    Status::expired(format!("too old resource version: {asked}"))
}

/// Frames go out in pieces of about this size, so that a long initial state does not sit in memory twice.
const CHUNK: usize = 64 * 1024;

impl Watch {
    /// The next bytes to send; `None` at the end.
    pub async fn next(&mut self) -> Option<Bytes> {
        if self.done {
            return None;
        }
        if let Some(status) = self.refused.take() {
            self.done = true;
            return Some(self.frame_value("ERROR", &status.to_value()));
        }
        if self.kind.custom.is_some() && !self.initial.as_slice().is_empty() {
            let initial = std::mem::take(&mut self.initial).collect();
            match self.registry.present_all(self.kind, initial).await {
                Ok(mut items) => {
                    items.retain(|item| self.options.filter.matches(self.kind, item));
                    self.initial = items.into_iter();
                }
                Err(status) => return Some(self.fail(&status)),
            }
        }
        if let Some(chunk) = self.next_initial() {
            return Some(chunk);
        }
        // Set once, so that events which this client does not get to see do not put it off for ever.
        let mut bookmark_at = tokio::time::Instant::now().later(BOOKMARK_EVERY);
        loop {
            let shutdown = self.shutdown.clone();
            let events = tokio::select! {
                events = self.watcher.next() => events,
                _ = tokio::time::sleep_until(bookmark_at), if self.bookmarks => {
                    let revision = self.watcher.progress();
                    if revision > self.last_sent {
                        return Some(self.bookmark(revision, false));
                    }
                    bookmark_at = bookmark_at.later(BOOKMARK_EVERY);
                    continue;
                }
                _ = tokio::time::sleep_until(self.deadline) => {
                    self.done = true;
                    return self.bookmarks.then(|| self.bookmark(self.watcher.progress(), false));
                }
                _ = shutdown.wait() => return None,
            };
            match events {
                Ok(events) => {
                    let events = match self.presented(events).await {
                        Ok(events) => events,
                        Err(status) => return Some(self.fail(&status)),
                    };
                    if let Some(bytes) = self.frames(&events) {
                        return Some(bytes);
                    }
                }
                Err(_) => {
                    self.done = true;
                    let status = expired().to_value();
                    return Some(self.frame_value("ERROR", &status));
                }
            }
        }
    }

    /// Ends the watch with an error in the stream.
    fn fail(&mut self, status: &Status) -> Bytes {
        self.done = true;
        self.frame_value("ERROR", &status.to_value())
    }

    /// Events of custom kinds in the version that is watched.
    async fn presented(&self, events: Vec<Arc<Event<Object>>>) -> Result<Vec<Arc<Event<Object>>>, Status> {
        if self.kind.custom.is_none() {
            return Ok(events);
        }
        let mut shown = Vec::with_capacity(events.len());
        for event in events {
            shown.push(self.registry.present_event(self.kind, event).await?);
        }
        Ok(shown)
    }

    fn next_initial(&mut self) -> Option<Bytes> {
        let mut out = BytesMut::new();
        while out.len() < CHUNK {
            let Some(item) = self.initial.next() else { break };
            self.write(&mut out, "ADDED", &item);
        }
        if self.initial.as_slice().is_empty()
            && let Some(revision) = self.announce_initial_end.take()
        {
            out.put(self.bookmark(revision, true));
        }
        (!out.is_empty()).then(|| out.freeze())
    }

    fn frames(&mut self, events: &[Arc<Event<Object>>]) -> Option<Bytes> {
        // One plain event for one plain watcher is the common case: the bytes are made once and shared by all.
        if let [event] = events
            && self.is_plain()
        {
            self.last_sent = event.revision;
            return Some(
                event
                    .encoded
                    .get_or_init(|| plain_frame(event, &self.type_head))
                    .clone(),
            );
        }
        let about = |e: &Arc<Event<Object>>| {
            e.item
                .as_ref()
                .or(e.previous.as_ref())
                .map_or(0, |i| i.record.size() + 96)
        };
        let mut out = BytesMut::with_capacity(events.iter().map(about).sum());
        for event in events {
            if self.is_plain() {
                out.put_slice(event.encoded.get_or_init(|| plain_frame(event, &self.type_head)));
            } else if let Some((kind, item)) = self.seen_through_selector(event) {
                self.write(&mut out, kind, &item);
            } else {
                continue;
            }
            self.last_sent = event.revision;
        }
        (!out.is_empty()).then(|| out.freeze())
    }

    /// Whole objects in JSON with no selector: what all such watchers of a resource get is the same.
    fn is_plain(&self) -> bool {
        self.options.filter.is_empty()
            && self.wanted.shape == Shape::Object
            && self.wanted.format == Format::Json
            && self.kind.stored_as.is_empty()
    }

    /// What an event is to someone who sees only what the selector matches.
    fn seen_through_selector(&self, event: &Event<Object>) -> Option<(&'static str, Item<Object>)> {
        let matches =
            |item: &Option<Item<Object>>| item.as_ref().is_some_and(|i| self.options.filter.matches(self.kind, i));
        let (was, is) = (matches(&event.previous), matches(&event.item));
        let gone = || {
            // What is gone is shown as it last was, at the revision at which it went.
            let last = event
                .previous
                .as_ref()
                .expect("an object that matched before was there before");
            Item {
                mod_revision: event.revision,
                ..last.clone()
            }
        };
        let now = || event.item.clone().expect("an object that matches now is there now");
        match (was, is) {
            (false, true) => Some(("ADDED", now())),
            (true, true) => Some(("MODIFIED", now())),
            (true, false) => Some(("DELETED", gone())),
            (false, false) => None,
        }
    }

    fn write(&mut self, out: &mut BytesMut, event: &'static str, item: &Item<Object>) {
        if self.wanted.shape == Shape::Object && self.wanted.format == Format::Json && self.kind.stored_as.is_empty() {
            write_frame(out, event, item, &self.type_head);
            return;
        }
        let object = self.registry.value_as(item, self.kind);
        let value = self.shaped(object);
        out.put(self.frame_value(event, &value));
    }

    fn shaped(&mut self, object: Value) -> Value {
        match self.wanted.shape {
            Shape::Object => object,
            Shape::PartialObjectMetadata | Shape::PartialObjectMetadataList => table::partial(&object),
            Shape::Table => {
                let now = self.registry.now();
                let revision = object["metadata"]["resourceVersion"].as_str().unwrap_or("").to_string();
                // Only the first table of a watch carries the column definitions.
                let with_columns = !std::mem::replace(&mut self.table_started, true);
                table::of_objects(
                    self.kind,
                    &[object],
                    json!({"resourceVersion": revision}),
                    now,
                    self.include_object,
                    with_columns,
                )
            }
        }
    }

    fn bookmark(&mut self, revision: Revision, initial_end: bool) -> Bytes {
        self.last_sent = revision;
        let mut metadata = json!({"resourceVersion": revision.to_string()});
        if initial_end {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let mut object = json!({"kind": self.kind.kind, "apiVersion": self.kind.api_version(), "metadata": metadata});
        if self.wanted.format == Format::Json && self.wanted.shape == Shape::Object {
            // Typed clients decode a bookmark like any object; fields that are always there stay there.
            fill_always(self.kind, &mut object);
        }
        let value = self.shaped(object);
        self.frame_value("BOOKMARK", &value)
    }

    fn frame_value(&self, event: &str, object: &Value) -> Bytes {
        crate::respond::watch_frame(event, object, self.wanted, self.kind)
    }
}

fn fill_always(kind: &KindDef, object: &mut Value) {
    let schema = orlop_api::schema::schema();
    if let Some(ty) = schema.get(kind.schema)
        && let Ok(decoded) = orlop_api::schema::from_value(object.take(), ty)
    {
        *object = decoded.value;
    }
}

fn plain_frame(event: &Event<Object>, type_head: &str) -> Bytes {
    let (kind, item) = match (&event.previous, &event.item) {
        (None, Some(item)) => ("ADDED", item.clone()),
        (_, Some(item)) => ("MODIFIED", item.clone()),
        (Some(last), None) => (
            "DELETED",
            Item {
                mod_revision: event.revision,
                ..last.clone()
            },
        ),
        (None, None) => unreachable!("an event without an object before or after"),
    };
    let mut out = BytesMut::with_capacity(item.record.size() + 64);
    write_frame(&mut out, kind, &item, type_head);
    out.freeze()
}

fn write_frame(out: &mut BytesMut, event: &str, item: &Item<Object>, type_head: &str) {
    out.put_slice(br#"{"type":""#);
    out.put_slice(event.as_bytes());
    out.put_slice(br#"","object":"#);
    item.record.write_whole(item.mod_revision, type_head, out);
    out.put_slice(b"}\n");
}
