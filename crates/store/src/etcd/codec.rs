//! What keys and records look like in etcd.

use std::time::Duration;

use bytes::Bytes;

use crate::RecordError;

pub trait StorageCodec: Send + Sync {
    /// What all keys in etcd begin with that may be ours.
    fn prefix(&self) -> &[u8];

    /// The key in etcd.
    fn etcd_key(&self, key: &str) -> Bytes;

    /// The other way; none for a key that is not ours.
    fn key(&self, etcd_key: &[u8]) -> Option<String>;

    /// What etcd gets for a record, before it is sealed.
    fn encode(&self, key: &str, record: &Bytes) -> Result<Bytes, RecordError>;

    /// The record's bytes, from what etcd has. It may have been written by another program.
    fn decode(&self, key: &str, value: Bytes) -> Result<Bytes, RecordError>;

    /// How long what is written under the key lives.
    fn ttl(&self, key: &str) -> Option<Duration> {
        let _ = key;
        None
    }
}

/// Keys and records as they are.
pub struct PlainCodec;

impl StorageCodec for PlainCodec {
    fn prefix(&self) -> &[u8] {
        b"/"
    }

    fn etcd_key(&self, key: &str) -> Bytes {
        Bytes::copy_from_slice(key.as_bytes())
    }

    fn key(&self, etcd_key: &[u8]) -> Option<String> {
        std::str::from_utf8(etcd_key).ok().map(str::to_string)
    }

    fn encode(&self, _key: &str, record: &Bytes) -> Result<Bytes, RecordError> {
        Ok(record.clone())
    }

    fn decode(&self, _key: &str, value: Bytes) -> Result<Bytes, RecordError> {
        Ok(value)
    }
}
