//! A stream of watches: one task for all of a stream's watches, which waits for requests, for its inbox, and for room to
//! send.
//!
//! ```text
//!            created ──► catching up (reads the store's history by itself) ──► following (its events come by the inbox)
//!                             ▲                                                     │ the inbox was full
//!                             └─────────────────────────────────────────────────────┘
//! ```
//!
//! Either way a watch remembers the next revision that it has not sent, so nothing is sent twice or left out.
//!
//! Upstream: server/etcdserver/api/v3rpc/watch.go, server/storage/mvcc/watchable_store.go.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use orlop_store::{EventKind, RangeError, RangeQuery, Revision, Watcher};
use prost::Message;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tonic::Status;

use crate::errors::Error;
use crate::hub::{Inbox, StoredEvent};
use crate::keys::{self, KeyRange};
use crate::messages::{
    Event, EventType, FilterType, KeyValue, WatchCreateRequest, WatchRequest, WatchRequestUnion, WatchResponse,
};
use crate::pair::{Pair, key_value, signed};
use crate::server::Server;

/// Of answers that concern no watch, or all of them.
const NO_WATCH: i64 = -1;
/// Answers that may wait for a slow client; behind them its events wait in the inbox, then in the store's history.
const ANSWERS: usize = 16;
/// Watches of one stream. Upstream has no such bound.
const WATCHES: usize = 100_000;
/// Upstream: grpcOverheadBytes.
const OVERHEAD: usize = 512 * 1024;

type Answers = mpsc::Sender<Result<WatchResponse, Status>>;

/// The client has gone.
struct Gone;

struct Watch {
    range: KeyRange,
    /// Everything before this revision has been sent.
    next: Revision,
    no_put: bool,
    no_delete: bool,
    prev_kv: bool,
    progress_notify: bool,
    /// Something was sent since the last tick.
    active: bool,
    fragment: bool,
    following: Following,
}

enum Following {
    /// Its place in the hub.
    Hub(u64),
    /// Not yet, or not any more.
    CatchingUp(Option<Watcher<Pair>>),
}

/// Serves a stream; returns its answers.
pub(crate) fn serve(
    server: Arc<Server>,
    requests: impl Stream<Item = Result<WatchRequest, Status>> + Send + Unpin + 'static,
) -> mpsc::Receiver<Result<WatchResponse, Status>> {
    let (answers, receiver) = mpsc::channel(ANSWERS);
    let mut stream = WatchStream {
        inbox: Arc::default(),
        watches: BTreeMap::new(),
        next_id: 0,
        wanted_progress: None,
        answers,
        server,
    };
    tokio::spawn(async move {
        // Whoever has gone needs no answer.
        let _ = stream.run(requests).await;
    });
    receiver
}

struct WatchStream {
    server: Arc<Server>,
    inbox: Arc<Inbox>,
    watches: BTreeMap<i64, Watch>,
    next_id: i64,
    /// The revision at which progress was asked for; told once all events up to there have been sent.
    wanted_progress: Option<Revision>,
    answers: Answers,
}

impl Drop for WatchStream {
    fn drop(&mut self) {
        for watch in self.watches.values() {
            watch.leave(&self.server);
        }
    }
}

impl WatchStream {
    async fn run(
        &mut self,
        mut requests: impl Stream<Item = Result<WatchRequest, Status>> + Send + Unpin,
    ) -> Result<(), Gone> {
        let server = self.server.clone();
        let inbox = self.inbox.clone();
        let answers = self.answers.clone();
        let mut ticks = tokio::time::interval(server.settings.progress_notify_interval.max(Duration::from_millis(100)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.reset();
        loop {
            let is_behind = self.send_events().await?;
            let wanted = self.wanted_progress;
            tokio::select! {
                // Requests first: whoever cancels a watch that is far behind need not wait for it.
                biased;
                () = answers.closed() => return Err(Gone),
                request = requests.next() => match request {
                    Some(Ok(request)) => self.handle(request).await?,
                    // The client is done, or has gone.
                    Some(Err(_)) | None => return Ok(()),
                },
                () = server.stopping.wait() => {
                    let _ = answers.try_send(Err(Error::Stopped.into()));
                    return Ok(());
                }
                _ = ticks.tick() => self.notify_progress().await?,
                () = tokio::task::yield_now(), if is_behind => {}
                () = inbox.arrived(), if !is_behind => {}
                () = server.hub.reached(wanted.unwrap_or(0)), if wanted.is_some() && !is_behind => {}
            }
        }
    }

    async fn send(&self, response: WatchResponse) -> Result<(), Gone> {
        self.answers.send(Ok(response)).await.map_err(|_| Gone)
    }

    fn response(&self, watch_id: i64, revision: Revision) -> WatchResponse {
        WatchResponse {
            header: Some(self.server.header(revision)),
            watch_id,
            ..WatchResponse::default()
        }
    }

    async fn handle(&mut self, request: WatchRequest) -> Result<(), Gone> {
        match request.request_union {
            Some(WatchRequestUnion::Create(request)) => self.create(&request).await,
            Some(WatchRequestUnion::Cancel(request)) => {
                let Some(watch) = self.watches.remove(&request.watch_id) else {
                    return Ok(());
                };
                watch.leave(&self.server);
                let mut response = self.response(request.watch_id, self.server.revision());
                response.canceled = true;
                self.send(response).await
            }
            Some(WatchRequestUnion::Progress(_)) => {
                self.wanted_progress = Some(self.server.revision());
                Ok(())
            }
            None => Ok(()),
        }
    }

    async fn create(&mut self, request: &WatchCreateRequest) -> Result<(), Gone> {
        let revision = self.server.revision();
        let watch_id = match self.place(request) {
            Ok(id) => id,
            Err(reason) => {
                let mut response = self.response(NO_WATCH, revision);
                (response.created, response.canceled) = (true, true);
                response.cancel_reason = reason.to_string();
                return self.send(response).await;
            }
        };
        let key: &[u8] = match &request.key[..] {
            [] => b"\0",
            key => key,
        };
        let has = |filter: FilterType| request.filters.contains(&(filter as i32));
        let next = match u64::try_from(request.start_revision) {
            Ok(start) if start > 0 => start,
            _ => revision + 1,
        };
        let watch = Watch {
            range: KeyRange::new(key, &request.range_end),
            next,
            no_put: has(FilterType::NoPut),
            no_delete: has(FilterType::NoDelete),
            prev_kv: request.prev_kv,
            progress_notify: request.progress_notify,
            active: false,
            fragment: request.fragment,
            following: Following::CatchingUp(None),
        };
        self.watches.insert(watch_id, watch);
        let mut response = self.response(watch_id, revision);
        response.created = true;
        self.send(response).await
    }

    /// The number of a new watch, or why there can be none.
    fn place(&mut self, request: &WatchCreateRequest) -> Result<i64, &'static str> {
        if request.start_revision < 0 {
            return Err("etcdserver: mvcc: required revision has been compacted");
        }
        let key: &[u8] = match &request.key[..] {
            [] => b"\0",
            key => key,
        };
        if KeyRange::new(key, &request.range_end).is_empty() {
            return Err("mvcc: watcher range is empty");
        }
        if self.watches.len() >= WATCHES {
            return Err("etcdserver: too many requests");
        }
        if request.watch_id != 0 {
            return match self.watches.contains_key(&request.watch_id) {
                true => Err("mvcc: duplicate watch ID provided on the WatchStream"),
                false => Ok(request.watch_id),
            };
        }
        while self.watches.contains_key(&self.next_id) {
            self.next_id += 1;
        }
        self.next_id += 1;
        Ok(self.next_id - 1)
    }

    /// Sends what there is: what came by the inbox, and of each watch that catches up some. Whether there may be more.
    async fn send_events(&mut self) -> Result<bool, Gone> {
        // Before the inbox is looked at: then all up to here has been in it.
        let handed_out = self.server.hub.revision();
        let mail = self.inbox.take();
        for id in mail.lagging {
            if let Some(watch) = self.watches.get_mut(&id) {
                watch.following = Following::CatchingUp(None);
            }
        }
        for (id, events) in mail.events {
            let Some(watch) = self.watches.get_mut(&id) else {
                continue;
            };
            // An older place of a watch of that number may have left some.
            if matches!(watch.following, Following::Hub(_)) {
                let last = events.last().map_or(0, |event| event.revision);
                let ready = watch.messages(&events);
                watch.next = watch.next.max(last + 1);
                self.send_batch(id, ready, last).await?;
            }
        }
        let behind: Vec<i64> = self
            .watches
            .iter()
            .filter(|(_, watch)| watch.is_behind())
            .map(|(id, _)| *id)
            .collect();
        let mut is_behind = false;
        for id in behind {
            is_behind |= self.catch_up(id).await?;
        }
        if !is_behind && self.wanted_progress.is_some_and(|wanted| wanted <= handed_out) {
            self.wanted_progress = None;
            self.send(self.response(NO_WATCH, handed_out)).await?;
        }
        Ok(is_behind)
    }

    /// One step; whether there is another.
    async fn catch_up(&mut self, id: i64) -> Result<bool, Gone> {
        let Some(watch) = self.watches.get_mut(&id) else {
            return Ok(false);
        };
        match watch.step(&self.server, &self.inbox, id) {
            Ok(Step::Events(events)) => {
                let last = events.last().map_or(0, |event| event.revision);
                let ready = watch.messages(&events);
                watch.next = watch.next.max(last + 1);
                self.send_batch(id, ready, last).await?;
                Ok(true)
            }
            Ok(Step::Oldest(kvs, revision)) => {
                watch.next = revision + 1;
                let put = |kv| Event {
                    r#type: EventType::Put as i32,
                    kv: Some(kv),
                    prev_kv: None,
                };
                let events = match watch.no_put {
                    true => vec![],
                    false => kvs.into_iter().map(put).collect(),
                };
                self.send_batch(id, events, revision).await?;
                Ok(true)
            }
            Ok(Step::Following) => Ok(false),
            Ok(Step::NotYet) => Ok(true),
            Err(compacted) => {
                self.watches.remove(&id);
                let mut response = self.response(id, self.server.revision());
                response.canceled = true;
                response.compact_revision = signed(compacted);
                self.send(response).await?;
                Ok(false)
            }
        }
    }

    async fn send_batch(&mut self, id: i64, events: Vec<Event>, revision: Revision) -> Result<(), Gone> {
        let Some(watch) = self.watches.get_mut(&id).filter(|_| !events.is_empty()) else {
            return Ok(());
        };
        watch.active = true;
        let fragment = watch.fragment;
        let mut response = self.response(id, revision);
        let most = self.server.settings.max_request_bytes + OVERHEAD;
        if !fragment {
            response.events = events;
            return self.send(response).await;
        }
        for (part, is_last) in fragments(events, most) {
            let mut response = response.clone();
            response.fragment = !is_last;
            response.events = part;
            self.send(response).await?;
        }
        Ok(())
    }

    /// Tells watches that asked for it, and to which nothing was sent since the last time, how far they are.
    async fn notify_progress(&mut self) -> Result<(), Gone> {
        let revision = self.server.hub.revision();
        let mut quiet = Vec::new();
        for (id, watch) in &mut self.watches {
            if watch.progress_notify && !watch.active && !watch.is_behind() {
                quiet.push(*id);
            }
            watch.active = false;
        }
        // What came in the meantime goes first.
        if self.send_events().await? {
            return Ok(());
        }
        for id in quiet {
            if self.watches.get(&id).is_some_and(|watch| !watch.active) {
                self.send(self.response(id, revision)).await?;
            }
        }
        Ok(())
    }
}

/// Splits events into messages below a size, one event at least in each; says which is the last.
fn fragments(events: Vec<Event>, most: usize) -> Vec<(Vec<Event>, bool)> {
    let mut parts: Vec<Vec<Event>> = Vec::new();
    let mut bytes = 0;
    for event in events {
        let size = event.encoded_len() + 8;
        match parts.last_mut() {
            Some(part) if bytes + size < most => part.push(event),
            _ => {
                parts.push(vec![event]);
                bytes = 0;
            }
        }
        bytes += size;
    }
    let count = parts.len();
    let number = |(n, part)| (part, n + 1 == count);
    parts.into_iter().enumerate().map(number).collect()
}

/// What there is for a watch that catches up.
enum Step {
    Events(Vec<StoredEvent>),
    /// What was written at the oldest revision that is left, of which history no longer tells.
    Oldest(Vec<KeyValue>, Revision),
    /// It has caught up, and has a place in the hub.
    Following,
    /// There is more in the meantime.
    NotYet,
}

impl Watch {
    fn is_behind(&self) -> bool {
        matches!(self.following, Following::CatchingUp(_))
    }

    fn leave(&self, server: &Server) {
        if let Following::Hub(place) = self.following {
            server.hub.unsubscribe(place);
        }
    }

    /// What of some events is to be sent.
    fn messages(&self, events: &[StoredEvent]) -> Vec<Event> {
        let wanted = events.iter().filter(|event| {
            let filtered = match event.kind {
                EventKind::Put => self.no_put,
                EventKind::Delete => self.no_delete,
            };
            event.revision >= self.next && !filtered && self.range.contains(&event.key)
        });
        wanted.map(|event| self.message(event)).collect()
    }

    fn message(&self, event: &StoredEvent) -> Event {
        let kv = match &event.item {
            Some(item) => key_value(item),
            None => KeyValue {
                key: keys::decode(&event.key),
                mod_revision: signed(event.revision),
                ..KeyValue::default()
            },
        };
        let kind = match event.kind {
            EventKind::Put => EventType::Put,
            EventKind::Delete => EventType::Delete,
        };
        let previous = event.previous.as_ref().filter(|_| self.prev_kv);
        Event {
            r#type: kind as i32,
            kv: Some(kv),
            prev_kv: previous.map(key_value),
        }
    }

    /// Reads on in the store's history. Fails with the revision that it was compacted at.
    fn step(&mut self, server: &Server, inbox: &Arc<Inbox>, id: i64) -> Result<Step, Revision> {
        let Following::CatchingUp(watcher) = &mut self.following else {
            return Ok(Step::Following);
        };
        if watcher.is_none() {
            match server.kv.watch(self.range.prefix(), self.next.saturating_sub(1)) {
                Ok(opened) => *watcher = Some(opened),
                // It starts in the future, where nothing can have been missed.
                Err(RangeError::Future { .. }) => {
                    let seen = self.next.saturating_sub(1);
                    return Ok(self.follow(server, inbox, id, seen));
                }
                Err(RangeError::Compacted { compacted }) if compacted == self.next => {
                    let kvs = oldest(server, &self.range, compacted).ok_or_else(|| server.kv.compacted())?;
                    return Ok(Step::Oldest(kvs, compacted));
                }
                Err(RangeError::Compacted { compacted }) => return Err(compacted),
            }
        }
        let Some(watcher) = watcher else {
            return Ok(Step::NotYet);
        };
        match watcher.try_next() {
            Ok(events) if events.is_empty() => {
                let seen = watcher.progress();
                self.next = self.next.max(seen + 1);
                Ok(self.follow(server, inbox, id, seen))
            }
            Ok(events) => Ok(Step::Events(events)),
            Err(RangeError::Compacted { compacted }) => Err(compacted),
            Err(RangeError::Future { .. }) => Ok(Step::NotYet),
        }
    }

    fn follow(&mut self, server: &Server, inbox: &Arc<Inbox>, id: i64, seen: Revision) -> Step {
        match server.hub.subscribe(&self.range, inbox, id, seen) {
            Some(place) => {
                self.following = Following::Hub(place);
                Step::Following
            }
            None => Step::NotYet,
        }
    }
}

/// The keys of a range that were last written at the compacted revision, as they were then.
fn oldest(server: &Server, range: &KeyRange, at: Revision) -> Option<Vec<KeyValue>> {
    let query = RangeQuery {
        prefix: keys::PREFIX,
        from: Some(&range.from),
        before: Some(&range.before),
        at: Some(at),
        ..RangeQuery::default()
    };
    let page = server.kv.range(query, &mut |item| item.mod_revision == at).ok()?;
    Some(page.items.iter().map(key_value).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_are_below_a_size_and_keep_the_order() {
        let event = |n: usize| Event {
            kv: Some(KeyValue {
                key: vec![b'k'; n].into(),
                ..KeyValue::default()
            }),
            ..Event::default()
        };
        let sizes = |most| {
            let parts = fragments(vec![event(100), event(10), event(300), event(1)], most);
            let lengths: Vec<_> = parts.iter().map(|(part, _)| part.len()).collect();
            assert_eq!(parts.iter().filter(|(_, is_last)| *is_last).count(), 1);
            assert!(parts.last().is_some_and(|(_, is_last)| *is_last));
            lengths
        };
        assert_eq!(sizes(10_000), [4]);
        assert_eq!(sizes(200), [2, 1, 1]);
        assert_eq!(sizes(1), [1, 1, 1, 1]);
        assert!(fragments(vec![], 10).is_empty());
    }
}
