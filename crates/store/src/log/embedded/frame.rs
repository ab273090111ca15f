//! Bytes on disk. All integers are little-endian.
//!
//! ```text
//! file      = header frame*
//! header    = magic[8] version:u32 revision:u64 count:u64 segment:u64 end:u64 chain:u32 crc:u32
//!                                                                      crc over the 48 bytes before it
//! frame     = length:u32 previous:u32 crc:u32 payload[length]          crc over length, previous and payload
//! log       : revision = the first one that may be in the file; count = 0; a frame is one batch:
//!   payload = first revision:u64 micros:i64 transactions:u32 (writes:u32 write*)*
//!   write   = 1 key:bytes value:bytes | 0 key:bytes                    bytes = length:u32 octet*
//!   segment, end, chain: the segment before it (by its first revision), its length and its last checksum. Whatever
//!             follows there was refused.
//! snapshot  : revision = that of the state; count = items in the file; a frame is some of the items:
//!   payload = items:u32 (created:u64 modified:u64 key:bytes value:bytes)*
//!   segment   = the first revision that was not in the log when the snapshot began: the segments before it are
//!             replaced by the snapshot, the one of that name goes on from it; end = chain = 0
//! ```
//!
//! `previous` is the checksum of the frame before it, or of the header: a chain, so that no frame can be missing, come
//! twice or come from another file unnoticed. A batch without transactions says nothing, in as many zeros as it likes:
//! it shows that the disk can be written again.
//!
//! Version 1 has a header of 32 bytes without `segment`, `end` and `chain`, and frames of `length crc payload` without a
//! chain. Such files are read and not appended to.
//!
//! A frame is one batch because a batch is what one fsync makes durable. Until it returns, any part of the batch may be
//! on disk and any other missing. So a broken frame with a whole one after it is never the trace of a crash: it is
//! damage to something that was acknowledged. For the last one, the mark tells.

use std::borrow::Cow;
use std::io::{self, Read};
use std::sync::Arc;

use bytes::Bytes;

use crate::Revision;
use crate::log::{BaseItem, Transaction};

/// Of the version that is written.
pub(super) const HEADER: usize = Format::V2.header();
pub(super) const FRAME: usize = Format::V2.frame();
/// Far beyond what one batch or snapshot frame can hold; a greater length is damage.
const LONGEST: u32 = 1 << 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    V1,
    V2,
}

impl Format {
    fn of_version(version: u32) -> Result<Format, Damage> {
        match version {
            1 => Ok(Format::V1),
            2 => Ok(Format::V2),
            other => Err(format!("format version {other}, this orlop knows 1 and 2").into()),
        }
    }

    /// Bytes of a file's header.
    pub(super) const fn header(self) -> usize {
        match self {
            Format::V1 => 32,
            Format::V2 => 52,
        }
    }

    /// Bytes of a frame before its payload.
    pub(super) const fn frame(self) -> usize {
        match self {
            Format::V1 => 8,
            Format::V2 => 12,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Magic {
    Log,
    Snapshot,
}

impl Magic {
    fn bytes(self) -> &'static [u8; 8] {
        match self {
            Magic::Log => b"ORLOPLOG",
            Magic::Snapshot => b"ORLOPSNP",
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    pub revision: Revision,
    pub count: u64,
    pub link: Link,
}

/// How files follow each other; all zero in version 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Link {
    pub segment: Revision,
    pub end: u64,
    pub chain: u32,
}

/// A header as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opened {
    pub format: Format,
    pub header: Header,
    /// Where the chain of frames begins.
    pub chain: u32,
}

impl Header {
    /// The bytes, and where the chain of frames begins.
    pub(super) fn encode(self, magic: Magic) -> ([u8; HEADER], u32) {
        let mut out = [0; HEADER];
        out[..8].copy_from_slice(magic.bytes());
        out[8..12].copy_from_slice(&2u32.to_le_bytes());
        out[12..20].copy_from_slice(&self.revision.to_le_bytes());
        out[20..28].copy_from_slice(&self.count.to_le_bytes());
        out[28..36].copy_from_slice(&self.link.segment.to_le_bytes());
        out[36..44].copy_from_slice(&self.link.end.to_le_bytes());
        out[44..48].copy_from_slice(&self.link.chain.to_le_bytes());
        let crc = crc32fast::hash(&out[..48]);
        out[48..].copy_from_slice(&crc.to_le_bytes());
        (out, crc)
    }

    fn decode(magic: Magic, format: Format, bytes: &[u8]) -> Result<Opened, Damage> {
        let (content, crc) = bytes.split_at(bytes.len() - 4);
        let crc = Cursor(crc).u32()?;
        if crc != crc32fast::hash(content) {
            return Err("the checksum of the header does not match".into());
        }
        let mut cursor = Cursor(content);
        if cursor.take(8)? != magic.bytes() {
            return Err(FOREIGN.into());
        }
        let _version = cursor.u32()?;
        let (revision, count) = (cursor.u64()?, cursor.u64()?);
        let link = match format {
            Format::V1 => Link::default(),
            Format::V2 => Link {
                segment: cursor.u64()?,
                end: cursor.u64()?,
                chain: cursor.u32()?,
            },
        };
        let header = Header { revision, count, link };
        let chain = if format == Format::V2 { crc } else { 0 };
        Ok(Opened { format, header, chain })
    }
}

const FOREIGN: &str = "this is not a file of Orlop's store";

/// Why a file, or a part of it, can't be what was once written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Damage {
    /// The file ends before its header does: what a crash leaves of a new one.
    #[error("the header is incomplete")]
    NoHeader,
    #[error("{0}")]
    Content(Cow<'static, str>),
}

impl From<&'static str> for Damage {
    fn from(reason: &'static str) -> Damage {
        Damage::Content(reason.into())
    }
}

impl From<String> for Damage {
    fn from(reason: String) -> Damage {
        Damage::Content(reason.into())
    }
}

/// Reads the header at the beginning of a file, or says why it is none.
pub(super) fn read_header(magic: Magic, from: &mut dyn Read) -> io::Result<Result<Opened, Damage>> {
    let mut bytes = [0; HEADER];
    if read_up_to(from, &mut bytes[..12])? < 12 {
        return Ok(Err(Damage::NoHeader));
    }
    if bytes[..8] != *magic.bytes() {
        return Ok(Err(FOREIGN.into()));
    }
    let version = u32::from_le_bytes(bytes[8..12].try_into().expect("four bytes"));
    let format = match Format::of_version(version) {
        Ok(format) => format,
        Err(reason) => return Ok(Err(reason)),
    };
    let bytes = &mut bytes[..format.header()];
    if read_up_to(from, &mut bytes[12..])? < bytes.len() - 12 {
        return Ok(Err(Damage::NoHeader));
    }
    Ok(Header::decode(magic, format, bytes))
}

/// Writes a frame to `out` that follows the one with the checksum `previous`: its payload is what `payload` appends.
/// Returns its checksum.
pub(super) fn frame(out: &mut Vec<u8>, previous: u32, payload: impl FnOnce(&mut Vec<u8>)) -> u32 {
    let start = out.len();
    out.extend_from_slice(&[0; FRAME]);
    payload(out);
    let length = u32::try_from(out.len() - start - FRAME).expect("a batch is bounded far below 4 GiB");
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
    out[start + 4..start + 8].copy_from_slice(&previous.to_le_bytes());
    let crc = checksum(&out[start..start + 8], &out[start + FRAME..]);
    out[start + 8..start + 12].copy_from_slice(&crc.to_le_bytes());
    crc
}

fn checksum(head: &[u8], payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(head);
    hasher.update(payload);
    hasher.finalize()
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    let length = u32::try_from(bytes.len()).expect("keys and records are bounded far below 4 GiB");
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(bytes);
}

pub(super) fn put_batch(out: &mut Vec<u8>, micros: i64, batch: &[Transaction<'_>]) {
    out.extend_from_slice(
        &batch
            .first()
            .map_or(0, |transaction| transaction.revision)
            .to_le_bytes(),
    );
    out.extend_from_slice(&micros.to_le_bytes());
    out.extend_from_slice(&(batch.len() as u32).to_le_bytes());
    for transaction in batch {
        out.extend_from_slice(&(transaction.writes.len() as u32).to_le_bytes());
        for (key, value) in &transaction.writes {
            out.push(u8::from(value.is_some()));
            put_bytes(out, key.as_bytes());
            if let Some(value) = value {
                put_bytes(out, value);
            }
        }
    }
}

/// A batch without transactions, of one page.
pub(super) fn put_void(out: &mut Vec<u8>, next: Revision, micros: i64) {
    const PAGE: usize = 4096;
    let start = out.len();
    out.extend_from_slice(&next.to_le_bytes());
    out.extend_from_slice(&micros.to_le_bytes());
    out.resize(start + PAGE, 0);
}

pub(super) fn put_items(out: &mut Vec<u8>, items: &[BaseItem]) {
    out.extend_from_slice(&(items.len() as u32).to_le_bytes());
    for item in items {
        out.extend_from_slice(&item.created.to_le_bytes());
        out.extend_from_slice(&item.modified.to_le_bytes());
        put_bytes(out, item.key.as_bytes());
        put_bytes(out, &item.bytes);
    }
}

/// The writes of one transaction; none: delete.
pub(super) type Writes = Vec<(Arc<str>, Option<Bytes>)>;

#[derive(Debug)]
pub(super) struct Batch {
    pub first: Revision,
    pub micros: i64,
    pub transactions: Vec<Writes>,
}

pub(super) fn get_batch(payload: &[u8]) -> Result<Batch, Damage> {
    let mut cursor = Cursor(payload);
    let (first, micros, count) = (cursor.u64()?, cursor.u64()? as i64, cursor.u32()?);
    let mut transactions = Vec::new();
    for _ in 0..count {
        let mut writes = Vec::new();
        for _ in 0..cursor.u32()? {
            let is_put = cursor.take(1)?[0] == 1;
            let key = cursor.key()?;
            let value = if is_put { Some(cursor.value()?) } else { None };
            writes.push((key, value));
        }
        transactions.push(writes);
    }
    if count > 0 || cursor.0.iter().any(|octet| *octet != 0) {
        cursor.end()?;
    }
    Ok(Batch {
        first,
        micros,
        transactions,
    })
}

pub(super) fn get_items(payload: &[u8], into: &mut Vec<BaseItem>) -> Result<(), Damage> {
    let mut cursor = Cursor(payload);
    for _ in 0..cursor.u32()? {
        let (created, modified) = (cursor.u64()?, cursor.u64()?);
        into.push(BaseItem {
            created,
            modified,
            key: cursor.key()?,
            bytes: cursor.value()?,
        });
    }
    cursor.end()
}

struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], Damage> {
        let (taken, rest) = self.0.split_at_checked(n).ok_or("a record reaches beyond its frame")?;
        self.0 = rest;
        Ok(taken)
    }

    fn u32(&mut self) -> Result<u32, Damage> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into().expect("four bytes")))
    }

    fn u64(&mut self) -> Result<u64, Damage> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into().expect("eight bytes")))
    }

    fn bytes(&mut self) -> Result<&'a [u8], Damage> {
        let length = self.u32()?;
        self.take(length as usize)
    }

    fn key(&mut self) -> Result<Arc<str>, Damage> {
        Ok(std::str::from_utf8(self.bytes()?)
            .map_err(|_| "a key is not UTF-8")?
            .into())
    }

    /// A copy: a slice would keep the whole frame in memory.
    fn value(&mut self) -> Result<Bytes, Damage> {
        Ok(Bytes::copy_from_slice(self.bytes()?))
    }

    fn end(&self) -> Result<(), Damage> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err("a frame is longer than its records".into())
        }
    }
}

/// What the next bytes of a file are.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The payload is in the buffer.
    Frame(Head),
    End,
    /// Too short, too long or the wrong checksum.
    Broken(&'static str),
}

/// What comes before a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub length: u32,
    /// The checksum of the frame before it; none in version 1.
    pub previous: Option<u32>,
    pub crc: u32,
}

impl Head {
    fn decode(format: Format, bytes: &[u8]) -> Head {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        match format {
            Format::V1 => Head {
                length: word(0),
                previous: None,
                crc: word(4),
            },
            Format::V2 => Head {
                length: word(0),
                previous: Some(word(4)),
                crc: word(8),
            },
        }
    }
}

/// Reads the next frame's payload into `payload`.
pub(super) fn next_frame(format: Format, from: &mut dyn Read, payload: &mut Vec<u8>) -> io::Result<Next> {
    let mut bytes = [0; FRAME];
    let bytes = &mut bytes[..format.frame()];
    match read_up_to(from, bytes)? {
        0 => return Ok(Next::End),
        read if read == bytes.len() => {}
        _ => return Ok(Next::Broken("it ends inside a frame")),
    }
    let head = Head::decode(format, bytes);
    if head.length > LONGEST {
        return Ok(Next::Broken("a frame's length is impossible"));
    }
    payload.clear();
    let read = from.take(u64::from(head.length)).read_to_end(payload)?;
    if read < head.length as usize {
        return Ok(Next::Broken("it ends inside a frame"));
    }
    if checksum(&bytes[..bytes.len() - 4], payload) != head.crc {
        return Ok(Next::Broken("a frame's checksum does not match"));
    }
    Ok(Next::Frame(head))
}

pub(super) fn read_up_to(from: &mut dyn Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match from.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Looks for a whole batch of a revision after `last` anywhere in `tail`, which starts with a broken frame. Its offset.
pub(super) fn find_batch(format: Format, tail: &[u8], last: Revision) -> Option<usize> {
    // The batch's own header is 20 bytes, and no batch is made of fewer.
    const LEAST: usize = 20;
    let frame = format.frame();
    // Every lost revision took some bytes, so the next one cannot be further away than that. This makes the search
    // cheap: almost no offset gets as far as the checksum.
    let furthest = last.saturating_add(1 + tail.len() as u64);
    (1..tail.len().saturating_sub(frame + LEAST - 1)).find(|&at| {
        let candidate = &tail[at..];
        let head = Head::decode(format, candidate);
        let length = head.length as usize;
        if length < LEAST || length > candidate.len() - frame {
            return false;
        }
        let first = u64::from_le_bytes(candidate[frame..frame + 8].try_into().expect("eight bytes"));
        first > last
            && first <= furthest
            && checksum(&candidate[..frame - 4], &candidate[frame..frame + length]) == head.crc
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn writes() -> impl Strategy<Value = Writes> {
        let value = proptest::option::of(proptest::collection::vec(any::<u8>(), 0..20).prop_map(Bytes::from));
        proptest::collection::vec(("[a-zß/]{0,9}".prop_map(Arc::from), value), 0..4)
    }

    proptest! {
        #[test]
        fn batches_come_back(all in proptest::collection::vec(writes(), 1..4), first in 2..1u64 << 40, micros: i64) {
            let batch: Vec<Transaction<'_>> = (first..)
                .zip(&all)
                .map(|(revision, writes)| {
                    let writes = writes.iter().map(|(key, value)| (key, value.as_ref())).collect();
                    Transaction { revision, compares: Vec::new(), writes }
                })
                .collect();
            let mut bytes = vec![7; 3];
            let crc = frame(&mut bytes, 77, |out| put_batch(out, micros, &batch));
            prop_assert_eq!(find_batch(Format::V2, &bytes, first - 1), Some(3));
            prop_assert_eq!(find_batch(Format::V2, &bytes, first), None, "a revision from the past is no sign of damage");
            let (mut file, mut payload) = (&bytes[3..], Vec::new());
            let head = Head { length: (bytes.len() - 3 - FRAME) as u32, previous: Some(77), crc };
            prop_assert_eq!(next_frame(Format::V2, &mut file, &mut payload).unwrap(), Next::Frame(head));
            let read = get_batch(&payload).unwrap();
            prop_assert_eq!((read.first, read.micros, read.transactions), (first, micros, all));
            prop_assert_eq!(next_frame(Format::V2, &mut file, &mut payload).unwrap(), Next::End);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 0..200)) {
            let _ = get_batch(&bytes);
            let _ = get_items(&bytes, &mut Vec::new());
            for format in [Format::V1, Format::V2] {
                let _ = find_batch(format, &bytes, 1);
                let _ = next_frame(format, &mut &bytes[..], &mut Vec::new());
            }
            prop_assert!(read_header(Magic::Log, &mut &bytes[..]).unwrap().is_err());
        }
    }
}
