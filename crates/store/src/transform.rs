//! What stands between records and the log: encryption at rest. The memory image stays plain; what the log and its snapshots
//! hold is sealed.

use std::sync::Arc;

use bytes::Bytes;

use crate::{Action, Record, Txn};

pub trait Transformer: Send + Sync {
    /// What the log is to hold for a record that is written now; none to hold it as it is.
    fn seal(&self, key: &str, plain: &Bytes) -> Result<Option<Bytes>, TransformError>;

    /// The same for a record that was written before and is copied into a snapshot.
    fn reseal(&self, key: &str, plain: &Bytes) -> Result<Option<Bytes>, TransformError> {
        self.seal(key, plain)
    }

    /// What `seal` was given; none if it was held as it was.
    fn open(&self, key: &str, sealed: &Bytes) -> Result<Option<Bytes>, TransformError>;

    /// Whether the log may hold what is under a key in another form than `seal` would give it now.
    fn is_stale(&self, key: &str) -> bool {
        let _ = key;
        false
    }
}

/// Why a record could not be sealed or opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TransformError(pub String);

/// Sealed records of a transaction, by key.
pub(crate) type Sealed = Vec<(Arc<str>, Bytes)>;

/// Seals what a transaction writes.
pub(crate) fn seal<R: Record>(transformer: &dyn Transformer, txn: &Txn<R>) -> Result<Sealed, TransformError> {
    let mut sealed = Sealed::new();
    for op in &txn.ops {
        if let Action::Put(record) = &op.action
            && let Some(bytes) = transformer.seal(&op.key, record.bytes())?
        {
            sealed.push((op.key.clone(), bytes));
        }
    }
    Ok(sealed)
}

/// The sealed form of a record, if it has one. Of several writes of a key the last counts.
pub(crate) fn find<'a>(sealed: &'a Sealed, key: &str) -> Option<&'a Bytes> {
    let found = sealed.iter().rev().find(|(sealed, _)| **sealed == *key);
    found.map(|(_, bytes)| bytes)
}
