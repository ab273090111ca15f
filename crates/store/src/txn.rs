//! Transactions: what to compare, what to write, and how it can fail.

use std::fmt;
use std::sync::Arc;

use crate::{Item, Revision};

/// All-or-nothing. Every comparison sees the state before the transaction; if all hold, all writes happen at one
/// revision. If a transaction writes a key twice, the last write counts.
pub struct Txn<R> {
    pub ops: Vec<Op<R>>,
}

/// One key's part of a transaction.
pub struct Op<R> {
    pub key: Arc<str>,
    pub expect: Expect,
    pub action: Action<R>,
}

/// What must hold for the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    Absent,
    /// Last modified at exactly this revision.
    At(Revision),
    /// There, at any revision.
    Present,
    Any,
}

pub enum Action<R> {
    Put(Arc<R>),
    /// Deleting what is not there changes nothing and is no event.
    Delete,
    /// Compare only.
    Check,
}

impl<R> Op<R> {
    pub fn new(key: impl Into<Arc<str>>, expect: Expect, action: Action<R>) -> Op<R> {
        Op {
            key: key.into(),
            expect,
            action,
        }
    }

    pub fn create(key: impl Into<Arc<str>>, record: Arc<R>) -> Op<R> {
        Op::new(key, Expect::Absent, Action::Put(record))
    }

    pub fn update(key: impl Into<Arc<str>>, at: Revision, record: Arc<R>) -> Op<R> {
        Op::new(key, Expect::At(at), Action::Put(record))
    }

    pub fn delete(key: impl Into<Arc<str>>, at: Revision) -> Op<R> {
        Op::new(key, Expect::At(at), Action::Delete)
    }

    pub fn check(key: impl Into<Arc<str>>, expect: Expect) -> Op<R> {
        Op::new(key, expect, Action::Check)
    }
}

impl<R> From<Op<R>> for Txn<R> {
    fn from(op: Op<R>) -> Txn<R> {
        Txn { ops: vec![op] }
    }
}

impl<R> From<Vec<Op<R>>> for Txn<R> {
    fn from(ops: Vec<Op<R>>) -> Txn<R> {
        Txn { ops }
    }
}

/// Why a transaction was not committed. Nothing of it is visible in any of these cases, and nothing of it comes back
/// after a restart unless it is `Unknown`.
pub enum CommitError<R> {
    /// The first comparison that did not hold, and what the key held instead.
    Conflict { key: Arc<str>, current: Option<Item<R>> },
    /// The log could not be written (disk full, read-only, I/O error). Says what to do; the next write tries again.
    Unavailable(String),
    /// As `Unavailable`, and what the log holds of the transaction could neither be made durable nor be undone yet. It
    /// is not visible now, but may be after a restart.
    Unknown(String),
    /// etcd does not take it, now or later; says why.
    Refused(String),
    /// More bytes than a transaction may have.
    TooLarge { bytes: usize, limit: usize },
    /// The store was closed.
    Closed,
}

impl<R> fmt::Debug for CommitError<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CommitError::Conflict { key, current } => f
                .debug_struct("Conflict")
                .field("key", key)
                .field("current", current)
                .finish(),
            CommitError::Unavailable(why) => f.debug_tuple("Unavailable").field(why).finish(),
            CommitError::Unknown(why) => f.debug_tuple("Unknown").field(why).finish(),
            CommitError::Refused(why) => f.debug_tuple("Refused").field(why).finish(),
            CommitError::TooLarge { bytes, limit } => f
                .debug_struct("TooLarge")
                .field("bytes", bytes)
                .field("limit", limit)
                .finish(),
            CommitError::Closed => f.write_str("Closed"),
        }
    }
}

impl<R> fmt::Display for CommitError<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CommitError::Conflict { key, current: None } => write!(f, "{key} is not there"),
            CommitError::Conflict {
                key,
                current: Some(item),
            } => {
                write!(f, "{key} was last changed at revision {}", item.mod_revision)
            }
            CommitError::Unavailable(why) | CommitError::Unknown(why) | CommitError::Refused(why) => f.write_str(why),
            CommitError::TooLarge { bytes, limit } => {
                write!(f, "request is too large: {bytes} bytes, limit {limit}")
            }
            CommitError::Closed => f.write_str("the store is closed"),
        }
    }
}

impl<R> std::error::Error for CommitError<R> {}
