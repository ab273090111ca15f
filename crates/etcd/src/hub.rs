//! Whom an event concerns. One task follows the store and puts each event into the inboxes of those who watch its key, so
//! that a stream of watches is woken for its own events only.
//!
//! An inbox is bounded: a watch that does not get on loses its place here and reads the store's history by itself until
//! it has caught up (`watch.rs`).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use orlop_store::{Event, RangeQuery, Revision, Store};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::keys::{self, KeyRange};
use crate::lease::Leases;
use crate::pair::Pair;

/// Events that may wait in an inbox for one watch.
const ROOM: usize = 4096;

pub(crate) type StoredEvent = Arc<Event<Pair>>;

pub(crate) struct Hub {
    inner: Mutex<Inner>,
    /// All events up to here have been handed out.
    handed_out: watch::Sender<Revision>,
}

struct Inner {
    revision: Revision,
    next: u64,
    subscriptions: BTreeMap<u64, Subscription>,
    /// Watches of one key by that key, and the others.
    points: HashMap<Arc<str>, Vec<u64>>,
    ranges: BTreeMap<u64, KeyRange>,
}

struct Subscription {
    inbox: Arc<Inbox>,
    watch_id: i64,
    point: Option<Arc<str>>,
}

/// The events of one stream's watches.
#[derive(Default)]
pub(crate) struct Inbox {
    mail: Mutex<Mail>,
    arrived: Notify,
}

#[derive(Default)]
pub(crate) struct Mail {
    /// By watch; whole revisions only.
    pub events: BTreeMap<i64, Vec<StoredEvent>>,
    /// Watches that lost their place, and what had come for them.
    pub lagging: Vec<i64>,
}

impl Inbox {
    pub(crate) fn take(&self) -> Mail {
        std::mem::take(&mut *self.mail.lock())
    }

    pub(crate) async fn arrived(&self) {
        self.arrived.notified().await;
    }
}

impl Hub {
    pub(crate) fn new(revision: Revision) -> Hub {
        Hub {
            inner: Mutex::new(Inner {
                revision,
                next: 0,
                subscriptions: BTreeMap::new(),
                points: HashMap::new(),
                ranges: BTreeMap::new(),
            }),
            handed_out: watch::Sender::new(revision),
        }
    }

    /// All events up to here are in the inboxes they belong to.
    pub(crate) fn revision(&self) -> Revision {
        self.inner.lock().revision
    }

    pub(crate) fn watchers(&self) -> usize {
        self.inner.lock().subscriptions.len()
    }

    /// Waits until all events up to a revision have been handed out.
    pub(crate) async fn reached(&self, revision: Revision) {
        let mut handed_out = self.handed_out.subscribe();
        // The sender lives in self, so this cannot fail.
        let _ = handed_out.wait_for(|reached| *reached >= revision).await;
    }

    /// From here on the inbox gets what happens in the range, if whoever asks has seen all up to `seen` and that is not
    /// less than what has been handed out. It may get some of what it has seen once more.
    pub(crate) fn subscribe(&self, range: &KeyRange, inbox: &Arc<Inbox>, watch_id: i64, seen: Revision) -> Option<u64> {
        let mut inner = self.inner.lock();
        if seen < inner.revision {
            return None;
        }
        let id = inner.next;
        inner.next += 1;
        let point: Option<Arc<str>> = range.single().map(Arc::from);
        match &point {
            Some(key) => inner.points.entry(key.clone()).or_default().push(id),
            None => {
                inner.ranges.insert(id, range.clone());
            }
        }
        let subscription = Subscription {
            inbox: inbox.clone(),
            watch_id,
            point,
        };
        inner.subscriptions.insert(id, subscription);
        Some(id)
    }

    pub(crate) fn unsubscribe(&self, id: u64) {
        self.inner.lock().unsubscribe(id);
    }

    /// Hands out whole revisions, and moves on to `revision`.
    fn hand_out(&self, events: &[StoredEvent], revision: Revision) {
        let mut inner = self.inner.lock();
        let mut concerned: HashMap<u64, Vec<StoredEvent>> = HashMap::new();
        for event in events {
            let points = inner.points.get(&event.key).into_iter().flatten();
            let ranges = inner.ranges.iter().filter(|(_, range)| range.contains(&event.key));
            for id in points.chain(ranges.map(|(id, _)| id)) {
                concerned.entry(*id).or_default().push(event.clone());
            }
        }
        for (id, events) in concerned {
            inner.deliver(id, events);
        }
        inner.revision = revision;
        drop(inner);
        self.handed_out.send_replace(revision);
    }

    /// After a gap: everybody has to look for themselves.
    fn skip_to(&self, revision: Revision) {
        let mut inner = self.inner.lock();
        let ids: Vec<u64> = inner.subscriptions.keys().copied().collect();
        for id in ids {
            inner.drop_out(id);
        }
        inner.revision = revision;
        drop(inner);
        self.handed_out.send_replace(revision);
    }
}

impl Inner {
    fn unsubscribe(&mut self, id: u64) -> Option<Subscription> {
        let subscription = self.subscriptions.remove(&id)?;
        match &subscription.point {
            Some(key) => {
                if let Some(ids) = self.points.get_mut(key) {
                    ids.retain(|other| *other != id);
                    if ids.is_empty() {
                        self.points.remove(key);
                    }
                }
            }
            None => {
                self.ranges.remove(&id);
            }
        }
        Some(subscription)
    }

    fn deliver(&mut self, id: u64, events: Vec<StoredEvent>) {
        let Some(subscription) = self.subscriptions.get(&id) else {
            return;
        };
        let mut mail = subscription.inbox.mail.lock();
        let waiting = mail.events.entry(subscription.watch_id).or_default();
        if waiting.len() >= ROOM {
            drop(mail);
            self.drop_out(id);
            return;
        }
        waiting.extend(events);
        drop(mail);
        subscription.inbox.arrived.notify_one();
    }

    fn drop_out(&mut self, id: u64) {
        if let Some(subscription) = self.unsubscribe(id) {
            let mut mail = subscription.inbox.mail.lock();
            mail.events.remove(&subscription.watch_id);
            mail.lagging.push(subscription.watch_id);
            drop(mail);
            subscription.inbox.arrived.notify_one();
        }
    }
}

/// Follows the store from where the hub and the leases stand; for ever.
pub(crate) async fn follow(store: Store<Pair>, hub: Arc<Hub>, leases: Arc<Leases>) {
    let mut following = store.watch(keys::PREFIX, hub.revision()).ok();
    loop {
        let Some(watcher) = &mut following else {
            // History was cut before this task had seen it: what leases have is read from the keys, and watches see to
            // themselves.
            tracing::warn!("lagging behind the store's history; reading all keys");
            let revision = read_leases(&store, &leases);
            hub.skip_to(revision);
            following = store.watch(keys::PREFIX, revision).ok();
            continue;
        };
        match watcher.next().await {
            Ok(events) => {
                for event in &events {
                    leases.observe(event);
                }
                let last = events.last().map_or(0, |event| event.revision);
                hub.hand_out(&events, watcher.progress().max(last));
            }
            Err(_) => following = None,
        }
    }
}

/// Attaches all keys to their leases; returns the revision at which they were read.
pub(crate) fn read_leases(store: &Store<Pair>, leases: &Leases) -> Revision {
    let query = RangeQuery {
        prefix: keys::PREFIX,
        ..RangeQuery::default()
    };
    let page = store.range(query, &mut |item| {
        leases.attach(item);
        false
    });
    page.expect("a range over the present can always be read").revision
}
