//! The memory image: per key its current version and the older ones still in history, and per bucket the ring of
//! events that watchers read.
//!
//! A key's versions and the events tell the same story: every version but the oldest was brought by an event still in
//! history, so forgetting the oldest event (see `compact`) is what makes the version before it unreachable.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, OnceLock};

use tokio::sync::watch;

use crate::{Event, EventKind, Item, Record, Revision};

pub(crate) struct MemoryImage<R> {
    pub revision: Revision,
    /// Reads at a smaller revision are refused.
    pub compacted: Revision,
    pub keys: BTreeMap<Arc<str>, Versions<R>>,
    pub live_keys: usize,
    /// Keys and records of the current versions.
    pub live_bytes: u64,
    /// One entry per event in history, in order over all buckets: which bucket's ring holds it.
    pub past: VecDeque<Past>,
    /// Bytes of superseded records that history keeps alive.
    pub past_bytes: u64,
    /// Never shrinks: watchers refer to buckets by index, and there are as many as there are resources.
    pub buckets: Vec<Bucket<R>>,
    bucket_by_name: HashMap<Arc<str>, usize>,
}

pub(crate) struct Versions<R> {
    pub current: Version<R>,
    /// Oldest first; empty for most keys most of the time.
    pub older: VecDeque<Version<R>>,
}

pub(crate) struct Version<R> {
    pub created: Revision,
    pub modified: Revision,
    /// None: deleted at `modified`.
    pub record: Option<Arc<R>>,
}

pub(crate) struct Past {
    pub bucket: usize,
    /// When it was committed, microseconds since the epoch.
    pub micros: i64,
}

/// The keys of one resource: what one watcher may wake for.
pub(crate) struct Bucket<R> {
    pub name: Arc<str>,
    pub ring: VecDeque<Arc<Event<R>>>,
    /// The revision of the newest event that was dropped from the ring.
    pub trimmed: Revision,
    pub live_keys: usize,
    pub wake: watch::Sender<()>,
}

/// The bucket of a key or of a prefix inside a bucket: its first two path segments, as in `/registry/pods`.
pub(crate) fn bucket_name(key: &str) -> &str {
    match key.match_indices('/').nth(2) {
        Some((end, _)) => &key[..end],
        None => key,
    }
}

impl<R> Version<R> {
    pub(crate) fn item(&self, key: &Arc<str>) -> Option<Item<R>> {
        Some(Item {
            key: key.clone(),
            record: self.record.clone()?,
            create_revision: self.created,
            mod_revision: self.modified,
        })
    }
}

impl<R> Versions<R> {
    /// The version that readers at `at` see, if the key was there.
    pub(crate) fn at(&self, at: Revision) -> Option<&Version<R>> {
        let version = if self.current.modified <= at {
            &self.current
        } else {
            let newer = self.older.partition_point(|v| v.modified <= at);
            self.older.get(newer.checked_sub(1)?)?
        };
        version.record.is_some().then_some(version)
    }
}

fn size<R: Record>(key: &str, record: &R) -> u64 {
    (key.len() + record.bytes().len()) as u64
}

impl<R: Record> MemoryImage<R> {
    pub(crate) fn new(revision: Revision, compacted: Revision) -> MemoryImage<R> {
        MemoryImage {
            revision,
            compacted,
            keys: BTreeMap::new(),
            live_keys: 0,
            live_bytes: 0,
            past: VecDeque::new(),
            past_bytes: 0,
            buckets: Vec::new(),
            bucket_by_name: HashMap::new(),
        }
    }

    /// The state after recovery, before the transactions that are still history. `items` ascend by key.
    pub(crate) fn from_items(revision: Revision, compacted: Revision, items: Vec<Item<R>>) -> MemoryImage<R> {
        let mut state = MemoryImage::new(revision, compacted);
        state.fill(items);
        state
    }

    /// The same in place of what was there, without history: watchers at an older revision have lost track. Returns what
    /// was there, for the caller to drop outside the lock.
    #[must_use]
    pub(crate) fn replace(&mut self, revision: Revision, items: Vec<Item<R>>) -> impl Sized + use<R> {
        let mut rings = Vec::with_capacity(self.buckets.len());
        for bucket in &mut self.buckets {
            rings.push(std::mem::take(&mut bucket.ring));
            bucket.trimmed = revision;
            bucket.live_keys = 0;
        }
        self.past.clear();
        (self.past_bytes, self.live_bytes) = (0, 0);
        (self.revision, self.compacted) = (revision, revision);
        let keys = std::mem::take(&mut self.keys);
        self.fill(items);
        (keys, rings)
    }

    fn fill(&mut self, items: Vec<Item<R>>) {
        self.live_keys = items.len();
        for item in &items {
            self.live_bytes += size(&item.key, &*item.record);
            let bucket = self.bucket(bucket_name(&item.key));
            self.buckets[bucket].live_keys += 1;
        }
        let versions = items.into_iter().map(|item| {
            let current = Version {
                created: item.create_revision,
                modified: item.mod_revision,
                record: Some(item.record),
            };
            (
                item.key,
                Versions {
                    current,
                    older: VecDeque::new(),
                },
            )
        });
        self.keys = versions.collect();
    }

    pub(crate) fn get(&self, key: &str) -> Option<Item<R>> {
        let (key, versions) = self.keys.get_key_value(key)?;
        versions.current.item(key)
    }

    pub(crate) fn find_bucket(&self, name: &str) -> Option<usize> {
        self.bucket_by_name.get(name).copied()
    }

    /// The index of a bucket, which is made if need be.
    pub(crate) fn bucket(&mut self, name: &str) -> usize {
        if let Some(index) = self.find_bucket(name) {
            return index;
        }
        let name: Arc<str> = name.into();
        self.buckets.push(Bucket {
            name: name.clone(),
            ring: VecDeque::new(),
            trimmed: 0,
            live_keys: 0,
            wake: watch::Sender::new(()),
        });
        self.bucket_by_name.insert(name, self.buckets.len() - 1);
        self.buckets.len() - 1
    }

    /// One write of the transaction at `revision`. Returns the bucket it touched, or none if it changed nothing.
    pub(crate) fn write(
        &mut self,
        revision: Revision,
        micros: i64,
        key: &Arc<str>,
        record: Option<Arc<R>>,
    ) -> Option<usize> {
        // Keep one copy of each key, whoever brings another.
        let key = self
            .keys
            .get_key_value(&**key)
            .map_or(key, |(stored, _)| stored)
            .clone();
        let previous = self.keys.get(&*key).and_then(|v| v.current.item(&key));
        if record.is_none() && previous.is_none() {
            return None;
        }
        let bucket = self.bucket(bucket_name(&key));
        if let Some(old) = &previous {
            self.live_bytes -= size(&key, &*old.record);
            self.past_bytes += size("", &*old.record);
        }
        if let Some(new) = &record {
            self.live_bytes += size(&key, &**new);
        }
        match (&previous, &record) {
            (None, Some(_)) => {
                self.live_keys += 1;
                self.buckets[bucket].live_keys += 1;
            }
            (Some(_), None) => {
                self.live_keys -= 1;
                self.buckets[bucket].live_keys -= 1;
            }
            _ => {}
        }

        let created = previous.as_ref().map_or(revision, |old| old.create_revision);
        let current = Version {
            created,
            modified: revision,
            record,
        };
        let item = current.item(&key);
        match self.keys.get_mut(&*key) {
            Some(versions) => versions
                .older
                .push_back(std::mem::replace(&mut versions.current, current)),
            None => {
                self.keys.insert(
                    key.clone(),
                    Versions {
                        current,
                        older: VecDeque::new(),
                    },
                );
            }
        }
        let kind = if item.is_some() {
            EventKind::Put
        } else {
            EventKind::Delete
        };
        let event = Event {
            revision,
            key,
            kind,
            item,
            previous,
            encoded: OnceLock::new(),
        };
        self.buckets[bucket].ring.push_back(Arc::new(event));
        self.past.push_back(Past { bucket, micros });
        Some(bucket)
    }
}
