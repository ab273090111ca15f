//! What is stored: records, the items that carry them with their revisions, and the events that changed them.

use std::fmt;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use crate::Revision;

/// What is stored under a key. The store only needs bytes; an owner may keep more beside them (labels, offsets).
pub trait Record: Send + Sync + Sized + 'static {
    /// What goes to the log.
    fn bytes(&self) -> &Bytes;

    /// The inverse, at recovery.
    fn decode(key: &str, bytes: Bytes) -> Result<Self, RecordError>;
}

/// Why bytes are not a record; ends up in [`crate::OpenError`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RecordError(pub String);

/// Plain bytes are a record too.
impl Record for Bytes {
    fn bytes(&self) -> &Bytes {
        self
    }

    fn decode(_key: &str, bytes: Bytes) -> Result<Self, RecordError> {
        Ok(bytes)
    }
}

/// A record under its key, as of one revision. Cloning copies two pointers.
pub struct Item<R> {
    pub key: Arc<str>,
    pub record: Arc<R>,
    pub create_revision: Revision,
    pub mod_revision: Revision,
}

impl<R> Clone for Item<R> {
    fn clone(&self) -> Self {
        Item {
            key: self.key.clone(),
            record: self.record.clone(),
            create_revision: self.create_revision,
            mod_revision: self.mod_revision,
        }
    }
}

impl<R> fmt::Debug for Item<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}@{} (created {})",
            self.key, self.mod_revision, self.create_revision
        )
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    Put,
    Delete,
}

/// One change of one key. There is one allocation per event however many watchers see it.
pub struct Event<R> {
    pub revision: Revision,
    pub key: Arc<str>,
    pub kind: EventKind,
    /// What the key holds from this revision on; none after a delete.
    pub item: Option<Item<R>>,
    /// What it held before; none if this created it.
    pub previous: Option<Item<R>>,
    /// A place for whoever serves watches to keep the encoded event, so that it is encoded once and not per watcher.
    pub encoded: OnceLock<Bytes>,
}

impl<R> fmt::Debug for Event<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {} at {}", self.kind, self.key, self.revision)
    }
}
