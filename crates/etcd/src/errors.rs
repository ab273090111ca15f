//! What can go wrong, with etcd's codes and words: clients tell errors apart by the text.
//!
//! Upstream: api/v3rpc/rpctypes/error.go (etcd 3.6).

use orlop_store::{CommitError, RangeError};
use tonic::{Code, Status};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    #[error("etcdserver: key is not provided")]
    EmptyKey,
    #[error("etcdserver: key not found")]
    KeyNotFound,
    #[error("etcdserver: value is provided")]
    ValueProvided,
    #[error("etcdserver: lease is provided")]
    LeaseProvided,
    #[error("etcdserver: too many operations in txn request")]
    TooManyOps,
    #[error("etcdserver: duplicate key given in txn request")]
    DuplicateKey,
    #[error("etcdserver: invalid sort option")]
    InvalidSortOption,
    #[error("etcdserver: mvcc: required revision has been compacted")]
    Compacted,
    #[error("etcdserver: mvcc: required revision is a future revision")]
    FutureRevision,
    #[error("etcdserver: mvcc: database space exceeded")]
    NoSpace,
    #[error("etcdserver: requested lease not found")]
    LeaseNotFound,
    #[error("etcdserver: lease already exists")]
    LeaseExists,
    #[error("etcdserver: too large lease TTL")]
    LeaseTtlTooLarge,
    #[error("etcdserver: request is too large")]
    TooLarge,
    #[error("etcdserver: server stopped")]
    Stopped,
    #[error("etcdserver: authentication is not enabled")]
    AuthNotEnabled,
    #[error("etcdserver: bad leader transferee")]
    BadLeaderTransferee,
    /// The log can't be written; says what to do.
    #[error("etcdserver: {0}")]
    Log(String),
    /// What a single member that keeps no database file can't do.
    #[error("etcdserver: {0}")]
    Unsupported(&'static str),
}

impl Error {
    fn code(&self) -> Code {
        match self {
            Error::EmptyKey
            | Error::KeyNotFound
            | Error::ValueProvided
            | Error::LeaseProvided
            | Error::TooManyOps
            | Error::DuplicateKey
            | Error::InvalidSortOption
            | Error::TooLarge => Code::InvalidArgument,
            Error::Compacted | Error::FutureRevision | Error::LeaseTtlTooLarge => Code::OutOfRange,
            Error::NoSpace => Code::ResourceExhausted,
            Error::LeaseNotFound => Code::NotFound,
            Error::LeaseExists | Error::AuthNotEnabled | Error::BadLeaderTransferee => Code::FailedPrecondition,
            Error::Stopped | Error::Log(_) => Code::Unavailable,
            Error::Unsupported(_) => Code::Unimplemented,
        }
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Status {
        Status::new(error.code(), error.to_string())
    }
}

impl From<RangeError> for Error {
    fn from(error: RangeError) -> Error {
        match error {
            RangeError::Compacted { .. } => Error::Compacted,
            RangeError::Future { .. } => Error::FutureRevision,
        }
    }
}

impl<R> From<CommitError<R>> for Error {
    fn from(error: CommitError<R>) -> Error {
        match error {
            CommitError::TooLarge { .. } => Error::TooLarge,
            CommitError::Closed => Error::Stopped,
            CommitError::Unavailable(why) | CommitError::Unknown(why) | CommitError::Refused(why) => Error::Log(why),
            CommitError::Conflict { key, .. } => Error::Log(format!("{key} was changed by another request")),
        }
    }
}
