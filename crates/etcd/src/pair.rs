//! What is stored under a key: its lease and how often it was written, before the value.

use bytes::{BufMut, Bytes, BytesMut};
use orlop_store::{Item, Record, RecordError};

use crate::keys;
use crate::messages::KeyValue;

/// lease:i64 version:u64, little-endian.
const HEAD: usize = 16;

pub(crate) struct Pair {
    bytes: Bytes,
    pub lease: i64,
    /// Writes since the key was created.
    pub version: i64,
}

impl Pair {
    pub(crate) fn new(value: &[u8], lease: i64, version: i64) -> Pair {
        let mut bytes = BytesMut::with_capacity(HEAD + value.len());
        bytes.put_i64_le(lease);
        bytes.put_i64_le(version);
        bytes.put_slice(value);
        Pair {
            bytes: bytes.freeze(),
            lease,
            version,
        }
    }

    pub(crate) fn value(&self) -> Bytes {
        self.bytes.slice(HEAD..)
    }
}

impl Record for Pair {
    fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    fn decode(_: &str, bytes: Bytes) -> Result<Pair, RecordError> {
        let number = |at: usize| {
            let octets = bytes.get(at..at + 8)?;
            Some(i64::from_le_bytes(octets.try_into().ok()?))
        };
        match (number(0), number(8)) {
            (Some(lease), Some(version)) => Ok(Pair { lease, version, bytes }),
            _ => Err(RecordError(format!("a value of {} bytes is too short", bytes.len()))),
        }
    }
}

/// A revision as messages have it.
pub(crate) fn signed(revision: u64) -> i64 {
    i64::try_from(revision).unwrap_or(i64::MAX)
}

/// An item as messages have it.
pub(crate) fn key_value(item: &Item<Pair>) -> KeyValue {
    KeyValue {
        key: keys::decode(&item.key),
        create_revision: signed(item.create_revision),
        mod_revision: signed(item.mod_revision),
        version: item.record.version,
        value: item.record.value(),
        lease: item.record.lease,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let pair = Pair::new(b"value", -3, 7);
        let read = Pair::decode("k", pair.bytes().clone()).unwrap();
        assert_eq!((read.lease, read.version, &read.value()[..]), (-3, 7, &b"value"[..]));
        assert_eq!(
            Pair::decode("k", Bytes::from_static(&[0; 15])).err().unwrap().0,
            "a value of 15 bytes is too short"
        );
    }
}
