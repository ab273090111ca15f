//! From the log to the state, once, at open.
//!
//! Decoding a record is what costs. So what has left history is folded into the base undecoded, a later value over an
//! earlier one, and only what remains is decoded: the base, on all cores, and the transactions that are still history.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use crate::compact::Bounds;
use crate::log::{BaseItem, Log, OpenError, Replayed};
use crate::state::MemoryImage;
use crate::store::Options;
use crate::transform::{TransformError, Transformer};
use crate::{Item, Record, RecordError, Revision};

/// Below this many items a thread costs more than it saves.
const ITEMS_PER_THREAD: usize = 1024;

struct Folder {
    base: BTreeMap<Arc<str>, BaseItem>,
    /// The revision of `base`; transactions after it are in `recent`.
    folded: Revision,
    recent: VecDeque<Recent>,
    recent_events: usize,
    recent_bytes: u64,
    too_old: i64,
    bounds: Bounds,
}

struct Recent {
    revision: Revision,
    micros: i64,
    writes: Vec<(Arc<str>, Option<Bytes>)>,
}

impl Recent {
    fn bytes(&self) -> u64 {
        self.writes
            .iter()
            .filter_map(|(_, bytes)| bytes.as_ref())
            .map(|bytes| bytes.len() as u64)
            .sum()
    }
}

impl Folder {
    fn take(&mut self, replayed: Replayed) {
        match replayed {
            Replayed::Base { revision, items } => {
                self.base = items.into_iter().map(|item| (item.key.clone(), item)).collect();
                self.folded = revision;
            }
            Replayed::Transaction {
                revision,
                micros,
                writes,
            } => {
                let recent = Recent {
                    revision,
                    micros,
                    writes,
                };
                self.recent_events += recent.writes.len();
                self.recent_bytes += recent.bytes();
                self.recent.push_back(recent);
                self.fold();
            }
        }
    }

    /// Opens all that was sealed. What can't be opened any more (its key is gone, since it was written again with another
    /// one) may be history: it is folded away, with what is older. Only what is live must be opened.
    fn open(&mut self, transformer: &dyn Transformer) -> Result<(), OpenError> {
        let mut unreadable: BTreeMap<Arc<str>, TransformError> = BTreeMap::new();
        for item in self.base.values_mut() {
            match transformer.open(&item.key, &item.bytes) {
                Ok(plain) => item.bytes = plain.unwrap_or_else(|| item.bytes.clone()),
                Err(error) => drop(unreadable.insert(item.key.clone(), error)),
            }
        }
        // History may begin where nothing is unreadable from then on.
        let mut begins = usize::from(!unreadable.is_empty());
        for (position, recent) in self.recent.iter_mut().enumerate() {
            for (key, bytes) in &mut recent.writes {
                let opened = match bytes {
                    Some(sealed) => transformer.open(key, sealed),
                    None => Ok(None),
                };
                match opened {
                    Ok(plain) => {
                        if plain.is_some() {
                            *bytes = plain;
                        }
                        unreadable.remove(key);
                    }
                    Err(error) => drop(unreadable.insert(key.clone(), error)),
                }
            }
            if !unreadable.is_empty() {
                begins = position + 2;
            }
        }
        if let Some((key, error)) = unreadable.pop_first() {
            return Err(OpenError::Record {
                key: key.to_string(),
                reason: RecordError(error.to_string()),
            });
        }
        (0..begins).for_each(|_| self.fold_oldest());
        Ok(())
    }

    fn fold(&mut self) {
        while let Some(oldest) = self.recent.front()
            && (self.recent_events > self.bounds.events
                || self.recent_bytes > self.bounds.bytes
                || oldest.micros <= self.too_old)
        {
            self.fold_oldest();
        }
    }

    fn fold_oldest(&mut self) {
        if let Some(oldest) = self.recent.pop_front() {
            self.recent_events -= oldest.writes.len();
            // What was opened has another length.
            self.recent_bytes = self.recent_bytes.saturating_sub(oldest.bytes());
            self.folded = oldest.revision;
            for (key, bytes) in oldest.writes {
                match bytes {
                    None => {
                        self.base.remove(&key);
                    }
                    Some(bytes) => {
                        let item = self.base.entry(key.clone()).or_insert_with(|| BaseItem {
                            key,
                            created: oldest.revision,
                            modified: oldest.revision,
                            bytes: Bytes::new(),
                        });
                        (item.modified, item.bytes) = (oldest.revision, bytes);
                    }
                }
            }
        }
    }
}

pub(crate) fn replay<R: Record>(log: &mut dyn Log, options: &Options) -> Result<MemoryImage<R>, OpenError> {
    let now = options.clock.now().as_microsecond();
    let bounds = options.bounds();
    let mut folder = Folder {
        base: BTreeMap::new(),
        folded: 0,
        recent: VecDeque::new(),
        recent_events: 0,
        recent_bytes: 0,
        too_old: bounds.too_old(now),
        bounds,
    };
    let revision = log.replay(&mut |replayed| folder.take(replayed))?;
    if let Some(transformer) = options.transformer.as_deref() {
        folder.open(transformer)?;
    }
    let items = decode_all(folder.base.into_values().collect())?;
    let mut state = MemoryImage::from_items(folder.folded, folder.folded, items);
    for recent in folder.recent {
        for (key, bytes) in recent.writes {
            let record = bytes.map(|bytes| decode::<R>(&key, bytes)).transpose()?;
            state.write(recent.revision, recent.micros, &key, record);
        }
    }
    state.revision = revision;
    while !state.trim(&bounds, now, usize::MAX).is_empty() {}
    Ok(state)
}

fn decode<R: Record>(key: &str, bytes: Bytes) -> Result<Arc<R>, OpenError> {
    R::decode(key, bytes).map(Arc::new).map_err(|reason| OpenError::Record {
        key: key.into(),
        reason,
    })
}

fn decode_all<R: Record>(raw: Vec<BaseItem>) -> Result<Vec<Item<R>>, OpenError> {
    on_all_cores(raw, |raw: BaseItem| {
        let record = decode(&raw.key, raw.bytes)?;
        Ok(Item {
            key: raw.key,
            record,
            create_revision: raw.created,
            mod_revision: raw.modified,
        })
    })
}

/// Maps items in order, on as many threads as are worth it.
pub(crate) fn on_all_cores<A: Send, B: Send, E: Send>(
    items: Vec<A>,
    map: impl Fn(A) -> Result<B, E> + Sync,
) -> Result<Vec<B>, E> {
    let threads = std::thread::available_parallelism()
        .map_or(1, |n| n.get())
        .min(items.len() / ITEMS_PER_THREAD);
    if threads < 2 {
        return items.into_iter().map(map).collect();
    }
    let (share, map) = (items.len().div_ceil(threads), &map);
    let mut items = items.into_iter();
    std::thread::scope(|scope| {
        let mut workers = Vec::new();
        while items.len() > 0 {
            let part: Vec<A> = items.by_ref().take(share).collect();
            workers.push(scope.spawn(move || part.into_iter().map(map).collect::<Result<Vec<_>, E>>()));
        }
        let mut mapped = Vec::new();
        for worker in workers {
            mapped.extend(worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        Ok(mapped)
    })
}
