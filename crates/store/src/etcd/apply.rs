//! The one thread that changes the image: what the watch brings is opened, decoded, and made visible.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use orlop_base::Clock;
use tokio::sync::{mpsc, oneshot, watch};

use super::Etcd;
use super::messages::{Event as EtcdEvent, EventType, KeyValue};
use crate::log::OpenError;
use crate::recover::on_all_cores;
use crate::stats::Counters;
use crate::{Item, Record, RecordError, Revision};

/// Events forgotten after a batch beyond those it added.
const TRIM_EXTRA: usize = 256;

pub(super) enum Fed {
    /// All that there is, at a revision.
    Everything {
        revision: Revision,
        kvs: Vec<KeyValue>,
        /// At the start what cannot be read is a reason not to start.
        loaded: Option<oneshot::Sender<Result<(), OpenError>>>,
    },
    /// What happened then, whole revisions.
    Events(Vec<EtcdEvent>),
    /// Time has passed.
    Tick,
}

pub(super) struct Applier<R: Record> {
    etcd: Arc<Etcd<R>>,
    fed: mpsc::Receiver<Fed>,
}

/// A change of one key, ready to be applied; none for what is not ours or cannot be read.
type Change<R> = Option<(Arc<str>, Option<Arc<R>>)>;

impl<R: Record> Applier<R> {
    pub(super) fn new(etcd: Arc<Etcd<R>>, fed: mpsc::Receiver<Fed>) -> Applier<R> {
        Applier { etcd, fed }
    }

    pub(super) fn run(mut self) {
        /// Even if the thread panics nobody may wait for a revision that never comes.
        struct Abandon<R: Record>(Arc<Etcd<R>>, Clock);
        impl<R: Record> Drop for Abandon<R> {
            fn drop(&mut self) {
                self.0.abandon();
                self.0.reached.abandon();
                let health = &self.0.shared.health;
                health.failed(self.1.now().into(), "the store is closed".into());
            }
        }
        let _abandon = Abandon(self.etcd.clone(), self.etcd.options.clock.clone());
        while let Some(fed) = self.fed.blocking_recv() {
            match fed {
                Fed::Everything { revision, kvs, loaded } => {
                    let done = self.replace(revision, kvs, loaded.is_some());
                    match (done, loaded) {
                        (done, Some(loaded)) => drop(loaded.send(done)),
                        (Err(error), None) => tracing::error!(%error, "failed to load all of etcd's records"),
                        (Ok(()), None) => {}
                    }
                }
                Fed::Events(events) => self.apply(events),
                Fed::Tick => self.trim(),
            }
        }
    }

    /// What etcd has for a record, opened and decoded.
    fn record(&self, key: &str, value: &Bytes) -> Result<Arc<R>, RecordError> {
        let opened = match self.etcd.options.transformer.as_deref() {
            Some(transformer) => transformer.open(key, value),
            None => Ok(None),
        };
        let opened = opened.map_err(|e| RecordError(e.to_string()))?;
        let bytes = self.etcd.codec.decode(key, opened.unwrap_or_else(|| value.clone()))?;
        R::decode(key, bytes).map(Arc::new)
    }

    /// The whole image anew: at the start, and when what happened in between is lost. Watchers of before have to list again.
    fn replace(&self, revision: Revision, kvs: Vec<KeyValue>, strictly: bool) -> Result<(), OpenError> {
        let before: HashMap<Arc<str>, Item<R>> = {
            let state = self.etcd.shared.state.read();
            let items = state.keys.iter().filter_map(|(key, v)| v.current.item(key));
            items.map(|item| (item.key.clone(), item)).collect()
        };
        self.etcd.unreadable.lock().clear();
        let decoded = on_all_cores(kvs, |kv: KeyValue| {
            let Some(key) = self.etcd.codec.key(&kv.key) else {
                return Ok(None);
            };
            let known = before.get(key.as_str());
            let modified = kv.mod_revision as Revision;
            let record = match known.filter(|item| item.mod_revision == modified) {
                Some(item) => Ok(item.record.clone()),
                None => match self.etcd.in_flight.find(&key, &kv.value, modified) {
                    Some(record) => Ok(record),
                    None => self.record(&key, &kv.value),
                },
            };
            match (record, known) {
                (Ok(record), _) => Ok(Some((
                    Item {
                        key: known.map_or_else(|| key.into(), |item| item.key.clone()),
                        record,
                        create_revision: kv.create_revision as Revision,
                        mod_revision: modified,
                    },
                    None,
                ))),
                (Err(reason), _) if strictly => Err(OpenError::Record { key, reason }),
                (Err(reason), Some(old)) => Ok(Some((old.clone(), Some(reason)))),
                (Err(reason), None) => {
                    self.unreadable(&key, reason);
                    Ok(None)
                }
            }
        })?;
        let mut items = Vec::with_capacity(decoded.len());
        for (item, unreadable) in decoded.into_iter().flatten() {
            if let Some(reason) = unreadable {
                self.unreadable(&item.key, reason);
            }
            items.push(item);
        }
        // The order of keys in etcd may be another one.
        items.sort_by(|a, b| a.key.cmp(&b.key));
        let (calls, old) = {
            let mut state = self.etcd.shared.state.write();
            let old = state.replace(revision, items);
            let calls: Vec<watch::Sender<()>> = state.buckets.iter().map(|bucket| bucket.wake.clone()).collect();
            (calls, old)
        };
        for call in calls {
            call.send_replace(());
        }
        self.etcd.reached.announce(revision);
        drop(old);
        Ok(())
    }

    fn unreadable(&self, key: &str, reason: RecordError) {
        tracing::error!(key, %reason, "failed to read a record from etcd; going on with what was there before");
        self.etcd.unreadable.lock().insert(key.to_string(), reason.0);
    }

    fn change(&self, event: &EtcdEvent) -> Change<R> {
        let kv = event.kv.as_ref()?;
        let key = self.etcd.codec.key(&kv.key)?;
        if event.r#type == EventType::Delete as i32 {
            self.etcd.unreadable.lock().remove(&key);
            return Some((key.into(), None));
        }
        let sent = self.etcd.in_flight.find(&key, &kv.value, kv.mod_revision as Revision);
        let record = match sent {
            Some(record) => Ok(record),
            None => self.record(&key, &kv.value),
        };
        match record {
            Ok(record) => {
                self.etcd.unreadable.lock().remove(&key);
                Some((key.into(), Some(record)))
            }
            Err(reason) => {
                self.unreadable(&key, reason);
                None
            }
        }
    }

    fn apply(&self, events: Vec<EtcdEvent>) {
        let etcd = &self.etcd;
        let revision = |event: &EtcdEvent| event.kv.as_ref().map_or(0, |kv| kv.mod_revision as Revision);
        let at = etcd.revision();
        // What was seen before a watch broke off may come again.
        let new = events.iter().filter(|event| revision(event) > at);
        let changes: Vec<(Revision, Change<R>)> = new.map(|event| (revision(event), self.change(event))).collect();
        let Some((last, _)) = changes.last() else {
            return;
        };
        let last = *last;
        let micros = etcd.options.clock.now().as_microsecond();
        let mut touched: Vec<usize> = Vec::new();
        let (calls, forgotten) = {
            let mut state = etcd.shared.state.write();
            for (revision, change) in changes {
                if let Some((key, record)) = change {
                    touched.extend(state.write(revision, micros, &key, record));
                }
            }
            state.revision = last;
            let budget = touched.len() * 2 + TRIM_EXTRA;
            touched.sort_unstable();
            touched.dedup();
            let calls: Vec<watch::Sender<()>> = touched.iter().map(|b| state.buckets[*b].wake.clone()).collect();
            (calls, state.trim(&etcd.options.bounds(), micros, budget))
        };
        for call in calls {
            call.send_replace(());
        }
        Counters::add(&etcd.shared.counters.compactions, usize::from(!forgotten.is_empty()));
        etcd.reached.announce(last);
    }

    /// Forgets what has become too old while nothing happened.
    fn trim(&self) {
        loop {
            let micros = self.etcd.options.clock.now().as_microsecond();
            let bounds = self.etcd.options.bounds();
            let forgotten = self.etcd.shared.state.write().trim(&bounds, micros, 4096);
            if forgotten.is_empty() {
                return;
            }
            Counters::add(&self.etcd.shared.counters.compactions, 1);
        }
    }
}
