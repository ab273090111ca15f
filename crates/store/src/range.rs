//! Reading many keys at one revision.

use std::ops::Bound;
use std::sync::Arc;

use parking_lot::{RwLock, RwLockReadGuard};

use crate::state::{MemoryImage, Version};
use crate::{Item, Record, Revision};

/// Keys walked before waiting writers get a turn.
const STRIDE: usize = 1024;

/// Which keys, as of when, and how many.
#[derive(Clone, Copy, Debug, Default)]
pub struct RangeQuery<'a> {
    pub prefix: &'a str,
    /// Only keys after this one, which itself is left out.
    pub start_after: Option<&'a str>,
    /// Only this key and those after it.
    pub from: Option<&'a str>,
    /// Only keys before this one.
    pub before: Option<&'a str>,
    /// None: now.
    pub at: Option<Revision>,
    /// Kept items at most; none: all.
    pub limit: Option<usize>,
}

/// What a range found, ascending by key.
#[derive(Debug)]
pub struct Page<R> {
    pub items: Vec<Item<R>>,
    /// The revision all of it was read at; the next page is read at this one too.
    pub revision: Revision,
    /// There are keys after the last item (which a filter may or may not keep).
    pub more: bool,
    /// How many, unfiltered.
    pub remaining: u64,
}

/// Why nothing can be read or watched at a revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    #[error("the required revision has been compacted; the oldest one left is {compacted}")]
    Compacted { compacted: Revision },
    #[error("the required revision lies in the future; the current one is {current}")]
    Future { current: Revision },
}

impl<R: Record> MemoryImage<R> {
    /// Checks that `revision` can still, and already, be read.
    pub(crate) fn readable(&self, revision: Revision) -> Result<(), RangeError> {
        if revision > self.revision {
            return Err(RangeError::Future { current: self.revision });
        }
        if revision < self.compacted {
            return Err(RangeError::Compacted {
                compacted: self.compacted,
            });
        }
        Ok(())
    }

    /// Visits the keys of a query from `from` on that were there at `at`. After `stride` keys, returns the one to go on
    /// after.
    fn visit(
        &self,
        query: &RangeQuery<'_>,
        from: Bound<&str>,
        at: Revision,
        stride: usize,
        visitor: &mut dyn FnMut(&Arc<str>, &Version<R>),
    ) -> Option<Arc<str>> {
        for (walked, (key, versions)) in self.keys.range::<str, _>((from, Bound::Unbounded)).enumerate() {
            if !key.starts_with(query.prefix) || query.before.is_some_and(|before| &**key >= before) {
                return None;
            }
            if let Some(version) = versions.at(at) {
                visitor(key, version);
            }
            if walked + 1 >= stride {
                return Some(key.clone());
            }
        }
        None
    }
}

/// Walks as `MemoryImage::visit` does, but lets writers in every `stride` keys; what they write has later revisions and so
/// does not show. Fails if they compacted the revision away in the meantime.
fn walk<R: Record>(
    lock: &RwLock<MemoryImage<R>>,
    query: &RangeQuery<'_>,
    stride: usize,
    visitor: &mut dyn FnMut(&Arc<str>, &Version<R>),
) -> Result<Revision, RangeError> {
    let mut state = lock.read();
    let at = query.at.unwrap_or(state.revision);
    state.readable(at)?;
    let first = query.from.map_or(query.prefix, |from| from.max(query.prefix));
    let from = match query.start_after {
        Some(after) if after >= first => Bound::Excluded(after),
        _ => Bound::Included(first),
    };
    let mut paused = state.visit(query, from, at, stride, visitor);
    while let Some(key) = paused {
        RwLockReadGuard::bump(&mut state);
        state.readable(at)?;
        paused = state.visit(query, Bound::Excluded(&key), at, stride, visitor);
    }
    Ok(at)
}

/// See [`crate::Store::range`].
pub(crate) fn range<R: Record>(
    lock: &RwLock<MemoryImage<R>>,
    query: &RangeQuery<'_>,
    keep: &mut dyn FnMut(&Item<R>) -> bool,
) -> Result<Page<R>, RangeError> {
    match page(lock, query, STRIDE, keep) {
        // "Now" cannot be too old: hold the lock throughout instead.
        Err(RangeError::Compacted { .. }) if query.at.is_none() => page(lock, query, usize::MAX, keep),
        done => done,
    }
}

fn page<R: Record>(
    lock: &RwLock<MemoryImage<R>>,
    query: &RangeQuery<'_>,
    stride: usize,
    keep: &mut dyn FnMut(&Item<R>) -> bool,
) -> Result<Page<R>, RangeError> {
    let limit = query.limit.unwrap_or(usize::MAX);
    let mut items = Vec::new();
    let mut remaining = 0;
    let revision = walk(lock, query, stride, &mut |key, version| {
        if items.len() >= limit {
            remaining += 1;
        } else if let Some(item) = version.item(key)
            && keep(&item)
        {
            items.push(item);
        }
    })?;
    Ok(Page {
        items,
        revision,
        more: remaining > 0,
        remaining,
    })
}

/// See [`crate::Store::count`].
pub(crate) fn count<R: Record>(lock: &RwLock<MemoryImage<R>>, prefix: &str) -> usize {
    // A whole bucket keeps its own count; a key named like the bucket would be in it but not under the prefix.
    if let Some(name) = prefix.strip_suffix('/').filter(|name| name.matches('/').count() == 2) {
        let state = lock.read();
        if let Some(index) = state.find_bucket(name)
            && !state.keys.contains_key(name)
        {
            return state.buckets[index].live_keys;
        }
    }
    let query = RangeQuery {
        prefix,
        ..RangeQuery::default()
    };
    let attempt = |stride| {
        let mut count = 0;
        let walked = walk(lock, &query, stride, &mut |_, _| count += 1);
        walked.map(|_| count)
    };
    attempt(STRIDE)
        .or_else(|_| attempt(usize::MAX))
        .expect("the current revision is neither compacted nor in the future while the lock is held")
}
