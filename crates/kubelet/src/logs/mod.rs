//! Reading containers' log files, which runtimes write in the CRI's format.
//!
//! [`mod@line`] knows what a line looks like, [`filter`] turns lines into the bytes a reader asked for; both are pure.
//! [`tail`] reads a file from the right place on, over rotations if it is to follow. At no time is more than one block
//! in memory, whatever is in the file.

pub mod filter;
pub mod line;
pub mod tail;

use jiff::Timestamp;

pub use tail::{Source, read};

/// Which streams of a container to show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Streams {
    #[default]
    All,
    Stdout,
    Stderr,
}

/// What a reader asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Query {
    pub follow: bool,
    pub since: Option<Timestamp>,
    /// So many last lines of the file; none for all.
    pub tail_lines: Option<u64>,
    pub timestamps: bool,
    pub limit_bytes: Option<u64>,
    pub streams: Streams,
}
