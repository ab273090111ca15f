//! Tape archives, read and written as a stream.
//!
//! Our own reader because archives come from strangers: what it keeps in memory is bounded (the `tar` crate reads
//! extended headers of any size), and it knows what image layers contain and nothing else. Reads ustar, PAX and GNU
//! archives; sparse files are refused by name.

mod reader;
mod writer;

pub(crate) use reader::{Entry, Kind, TarError, TarReader};
pub(crate) use writer::TarWriter;

const BLOCK: usize = 512;

/// Bytes up to the next whole block.
fn padding(size: u64) -> u64 {
    size.next_multiple_of(BLOCK as u64) - size
}
