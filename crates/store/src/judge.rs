//! What is to become of a transaction, as far as its comparisons go: the same for every kind of store.

use std::sync::Arc;

use crate::decide::Write;
use crate::{Action, Expect, Item, Txn};

/// All comparisons hold.
pub(crate) struct Judged<R> {
    pub writes: Vec<Write<R>>,
    /// What the key of each write held before.
    pub before: Vec<Option<Item<R>>>,
}

/// The first comparison that does not hold. `pending`: what it lost to is not durable yet.
pub(crate) struct Lost<R> {
    pub key: Arc<str>,
    pub current: Option<Item<R>>,
    pub pending: bool,
}

/// `current` says what a key holds before the transaction, and whether that is still pending.
pub(crate) fn judge<R>(txn: &Txn<R>, current: impl Fn(&str) -> (Option<Item<R>>, bool)) -> Result<Judged<R>, Lost<R>> {
    let mut writes = Vec::with_capacity(txn.ops.len());
    let mut before = Vec::with_capacity(txn.ops.len());
    for op in &txn.ops {
        let (current, pending) = current(&op.key);
        let holds = match op.expect {
            Expect::Absent => current.is_none(),
            Expect::At(revision) => current.as_ref().is_some_and(|item| item.mod_revision == revision),
            Expect::Present => current.is_some(),
            Expect::Any => true,
        };
        if !holds {
            let key = op.key.clone();
            return Err(Lost { key, current, pending });
        }
        let record = match &op.action {
            Action::Check => continue,
            Action::Put(record) => Some(record.clone()),
            Action::Delete => None,
        };
        let key = op.key.clone();
        writes.push(Write { key, record });
        before.push(current);
    }
    Ok(Judged { writes, before })
}
