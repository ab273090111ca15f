//! Transactions that are decided where they are carried out: by a function that sees the state right before them.
//!
//! Comparisons of single keys (see [`crate::Txn`]) can't say that no key of a range came or went in the meantime. Whoever
//! needs that hands in a function; the writer thread calls it between two transactions, so there is no meantime.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use crate::state::MemoryImage;
use crate::{Item, RangeError, Record, Revision, Txn};

/// One key's part of what was decided; none: delete.
pub struct Write<R> {
    pub key: Arc<str>,
    pub record: Option<Arc<R>>,
}

/// What is to be written, given what is there; nothing: no revision is taken.
pub type Decide<R> = Box<dyn FnOnce(&View<'_, R>) -> Vec<Write<R>> + Send>;

/// What waits for the writer thread. An etcd that several servers share can't take decisions: it only compares keys.
pub(crate) enum Proposal<R> {
    Ops(Txn<R>),
    Decide { bytes: usize, decide: Option<Decide<R>> },
}

/// The state between two transactions.
pub struct View<'a, R> {
    pub(crate) state: &'a MemoryImage<R>,
    /// What transactions before this one, in the same batch, will have changed.
    pub(crate) changed: &'a BTreeMap<Arc<str>, Option<Item<R>>>,
    pub(crate) revision: Revision,
}

impl<R: Record> View<'_, R> {
    /// That of the transaction before; what is decided gets the next one.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    pub fn get(&self, key: &str) -> Option<Item<R>> {
        match self.changed.get(key) {
            Some(changed) => changed.clone(),
            None => self.state.get(key),
        }
    }

    /// The keys from one on and before another, ascending. Stops when `visit` says no.
    pub fn range(&self, from: &str, before: &str, visit: &mut dyn FnMut(Item<R>) -> bool) {
        if from >= before {
            return;
        }
        let bounds = (Bound::Included(from), Bound::Excluded(before));
        let mut changed = self.changed.range::<str, _>(bounds).peekable();
        let mut stored = self.state.keys.range::<str, _>(bounds).peekable();
        loop {
            let next = match (stored.peek(), changed.peek()) {
                (Some((key, _)), Some((other, _))) if key < other => {
                    stored.next().and_then(|(key, v)| v.current.item(key))
                }
                (Some((key, _)), Some((other, _))) => {
                    // What changed replaces what is stored.
                    if key == other {
                        stored.next();
                    }
                    changed.next().and_then(|(_, item)| item.clone())
                }
                (Some(_), None) => stored.next().and_then(|(key, v)| v.current.item(key)),
                (None, Some(_)) => changed.next().and_then(|(_, item)| item.clone()),
                (None, None) => return,
            };
            // A key that was deleted is no item.
            if let Some(item) = next
                && !visit(item)
            {
                return;
            }
        }
    }

    /// The same at an older revision.
    pub fn range_at(
        &self,
        at: Revision,
        from: &str,
        before: &str,
        visit: &mut dyn FnMut(Item<R>) -> bool,
    ) -> Result<(), RangeError> {
        if at == self.revision {
            self.range(from, before, visit);
            return Ok(());
        }
        self.state.readable(at)?;
        if from >= before {
            return Ok(());
        }
        let bounds = (Bound::Included(from), Bound::Excluded(before));
        for (key, versions) in self.state.keys.range::<str, _>(bounds) {
            if let Some(item) = versions.at(at).and_then(|version| version.item(key))
                && !visit(item)
            {
                break;
            }
        }
        Ok(())
    }
}
