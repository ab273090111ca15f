//! Bytes on disk. All integers are little-endian.
//!
//! ```text
//! file      = header frame*
//! header    = magic[8] version:u32 revision:u64 count:u64 crc:u32      crc over the 28 bytes before it
//! frame     = length:u32 crc:u32 payload[length]                       crc over length and payload
//! log       : revision = the first one that may be in the file; count = 0; a frame is one batch:
//!   payload = first revision:u64 micros:i64 transactions:u32 (writes:u32 write*)*
//!   write   = 1 key:bytes value:bytes | 0 key:bytes                    bytes = length:u32 octet*
//! snapshot  : revision = that of the state; count = items in the file; a frame is some of the items:
//!   payload = items:u32 (created:u64 modified:u64 key:bytes value:bytes)*
//! ```
//!
//! A frame is one batch because a batch is what one fsync makes durable. Until it returns, any part of the batch may be
//! on disk and any other missing. So a broken frame with a whole one after it is never the trace of a crash: it is
//! damage to something that was acknowledged.

use std::io::{self, Read};
use std::sync::Arc;

use bytes::Bytes;

use crate::Revision;
use crate::log::{BaseItem, Transaction};

pub const HEADER: usize = 32;
pub const FRAME: usize = 8;
/// Far beyond what one batch or snapshot frame can hold; a greater length is damage.
const LONGEST: u32 = 1 << 30;
const VERSION: u32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Magic {
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub revision: Revision,
    pub count: u64,
}

impl Header {
    pub fn encode(self, magic: Magic) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        out[..8].copy_from_slice(magic.bytes());
        out[8..12].copy_from_slice(&VERSION.to_le_bytes());
        out[12..20].copy_from_slice(&self.revision.to_le_bytes());
        out[20..28].copy_from_slice(&self.count.to_le_bytes());
        let crc = crc32fast::hash(&out[..28]);
        out[28..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    pub fn decode(magic: Magic, bytes: &[u8; HEADER]) -> Result<Header, String> {
        let mut cursor = Cursor(bytes);
        if cursor.take(8)? != magic.bytes() {
            return Err("this is not a file of Orlop's store".into());
        }
        let version = cursor.u32()?;
        let header = Header {
            revision: cursor.u64()?,
            count: cursor.u64()?,
        };
        if cursor.u32()? != crc32fast::hash(&bytes[..28]) {
            return Err("the checksum of the header does not match".into());
        }
        if version != VERSION {
            return Err(format!("format version {version}, this orlop knows {VERSION}"));
        }
        Ok(header)
    }
}

/// Writes a frame to `out`: its payload is what `payload` appends.
pub fn frame(out: &mut Vec<u8>, payload: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; FRAME]);
    payload(out);
    let length = u32::try_from(out.len() - start - FRAME).expect("a batch is bounded far below 4 GiB");
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
    let crc = checksum(&out[start..start + 4], &out[start + FRAME..]);
    out[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
}

fn checksum(length: &[u8], payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(length);
    hasher.update(payload);
    hasher.finalize()
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    let length = u32::try_from(bytes.len()).expect("keys and records are bounded far below 4 GiB");
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(bytes);
}

pub fn put_batch(out: &mut Vec<u8>, micros: i64, batch: &[Transaction<'_>]) {
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

pub fn put_items(out: &mut Vec<u8>, items: &[BaseItem]) {
    out.extend_from_slice(&(items.len() as u32).to_le_bytes());
    for item in items {
        out.extend_from_slice(&item.created.to_le_bytes());
        out.extend_from_slice(&item.modified.to_le_bytes());
        put_bytes(out, item.key.as_bytes());
        put_bytes(out, &item.bytes);
    }
}

/// The writes of one transaction; none: delete.
pub type Writes = Vec<(Arc<str>, Option<Bytes>)>;

#[derive(Debug)]
pub struct Batch {
    pub first: Revision,
    pub micros: i64,
    pub transactions: Vec<Writes>,
}

pub fn get_batch(payload: &[u8]) -> Result<Batch, String> {
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
    cursor.end()?;
    Ok(Batch {
        first,
        micros,
        transactions,
    })
}

pub fn get_items(payload: &[u8], into: &mut Vec<BaseItem>) -> Result<(), String> {
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
    fn take(&mut self, n: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = self.0.split_at_checked(n).ok_or("a record reaches beyond its frame")?;
        self.0 = rest;
        Ok(taken)
    }

    fn u32(&mut self) -> Result<u32, String> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into().expect("four bytes")))
    }

    fn u64(&mut self) -> Result<u64, String> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into().expect("eight bytes")))
    }

    fn bytes(&mut self) -> Result<&'a [u8], String> {
        let length = self.u32()?;
        self.take(length as usize)
    }

    fn key(&mut self) -> Result<Arc<str>, String> {
        Ok(std::str::from_utf8(self.bytes()?)
            .map_err(|_| "a key is not UTF-8")?
            .into())
    }

    /// A copy: a slice would keep the whole frame in memory.
    fn value(&mut self) -> Result<Bytes, String> {
        Ok(Bytes::copy_from_slice(self.bytes()?))
    }

    fn end(&self) -> Result<(), String> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err("a frame is longer than its records".into())
        }
    }
}

/// What the next bytes of a file are.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// The payload is in the buffer.
    Frame,
    End,
    /// Too short, too long or the wrong checksum.
    Broken(&'static str),
}

/// Reads the next frame's payload into `payload`.
pub fn next_frame(from: &mut dyn Read, payload: &mut Vec<u8>) -> io::Result<Next> {
    let mut head = [0; FRAME];
    match read_up_to(from, &mut head)? {
        0 => return Ok(Next::End),
        FRAME => {}
        _ => return Ok(Next::Broken("it ends inside a frame")),
    }
    let (length, crc) = split_head(&head);
    if length > LONGEST {
        return Ok(Next::Broken("a frame's length is impossible"));
    }
    payload.clear();
    let read = from.take(u64::from(length)).read_to_end(payload)?;
    if read < length as usize {
        return Ok(Next::Broken("it ends inside a frame"));
    }
    if checksum(&head[..4], payload) != crc {
        return Ok(Next::Broken("a frame's checksum does not match"));
    }
    Ok(Next::Frame)
}

pub fn read_up_to(from: &mut dyn Read, buffer: &mut [u8]) -> io::Result<usize> {
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

fn split_head(head: &[u8]) -> (u32, u32) {
    let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
    (word(0), word(4))
}

/// Looks for a whole batch of a revision after `last` anywhere in `tail`, which starts with a broken frame. Its offset.
pub fn find_batch(tail: &[u8], last: Revision) -> Option<usize> {
    // The batch's own header is 20 bytes, and no batch is made of fewer.
    const LEAST: usize = FRAME + 20;
    // Every lost revision took some bytes, so the next one cannot be further away than that. This makes the search
    // cheap: almost no offset gets as far as the checksum.
    let furthest = last.saturating_add(1 + tail.len() as u64);
    (1..tail.len().saturating_sub(LEAST - 1)).find(|&at| {
        let candidate = &tail[at..];
        let (length, crc) = split_head(candidate);
        let length = length as usize;
        if length < LEAST - FRAME || length > candidate.len() - FRAME {
            return false;
        }
        let first = u64::from_le_bytes(candidate[FRAME..FRAME + 8].try_into().expect("eight bytes"));
        first > last && first <= furthest && checksum(&candidate[..4], &candidate[FRAME..FRAME + length]) == crc
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
            frame(&mut bytes, |out| put_batch(out, micros, &batch));
            prop_assert_eq!(find_batch(&bytes, first - 1), Some(3));
            prop_assert_eq!(find_batch(&bytes, first), None, "a revision from the past is no sign of damage");
            let (mut file, mut payload) = (&bytes[3..], Vec::new());
            prop_assert_eq!(next_frame(&mut file, &mut payload).unwrap(), Next::Frame);
            let read = get_batch(&payload).unwrap();
            prop_assert_eq!((read.first, read.micros, read.transactions), (first, micros, all));
            prop_assert_eq!(next_frame(&mut file, &mut payload).unwrap(), Next::End);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 0..200)) {
            let _ = get_batch(&bytes);
            let _ = get_items(&bytes, &mut Vec::new());
            let _ = find_batch(&bytes, 1);
            let _ = next_frame(&mut &bytes[..], &mut Vec::new());
            if let Some(header) = bytes.first_chunk() {
                prop_assert!(Header::decode(Magic::Log, header).is_err());
            }
        }
    }
}
