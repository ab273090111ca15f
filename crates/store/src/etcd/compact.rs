//! Compaction of etcd's history: by one of all servers that share it, kube-apiservers included.
// Upstream: staging/src/k8s.io/apiserver/pkg/storage/etcd3/compact.go (v1.36)

use std::time::Duration;

use bytes::Bytes;
use orlop_base::clock::Shift;
use tokio::time::Instant;

use super::Etcd;
use super::client::CallError;
use super::messages::{
    Compare, CompareResult, CompareTarget, PutRequest, RangeRequest, Request, RequestOp, Response, TargetUnion,
    TxnRequest,
};
use crate::Record;

/// Its version is the logical time of compactions; its value the revision of the last one.
const KEY: Bytes = Bytes::from_static(b"compact_rev_key");
/// A slow answer is no reason to ask another member.
const CALM: usize = 9;
const PATIENCE: Duration = Duration::from_secs(10);

/// What one server knows of compactions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CompactionClock {
    version: i64,
    /// etcd's revision when `version` was learnt: what the next compaction goes up to.
    revision: i64,
}

impl<R: Record> Etcd<R> {
    pub(super) async fn compact_regularly(&self, interval: Duration) {
        if interval.is_zero() {
            return;
        }
        let mut clock = CompactionClock::default();
        loop {
            tokio::time::sleep(interval).await;
            match self.compact_once(clock).await {
                Ok(next) => clock = next,
                Err(error) => tracing::warn!(%error, "failed to compact etcd's history"),
            }
        }
    }

    /// Whoever finds the clock as it was left moves it on and compacts up to where it was then; the others learn the time.
    pub(super) async fn compact_once(&self, clock: CompactionClock) -> Result<CompactionClock, CallError> {
        let until = Instant::now().later(PATIENCE);
        let request = |request| RequestOp { request: Some(request) };
        let txn = TxnRequest {
            compare: vec![Compare {
                result: CompareResult::Equal as i32,
                target: CompareTarget::Version as i32,
                key: KEY,
                target_union: Some(TargetUnion::Version(clock.version)),
                range_end: Bytes::new(),
            }],
            success: vec![request(Request::Put(PutRequest {
                key: KEY,
                value: clock.revision.to_string().into(),
                ..PutRequest::default()
            }))],
            failure: vec![request(Request::Range(RangeRequest {
                key: KEY,
                ..RangeRequest::default()
            }))],
        };
        let answer = self.client.txn(txn, CALM, until).await?;
        let revision = answer.header.unwrap_or_default().revision;
        if !answer.succeeded {
            let version = answer.responses.into_iter().find_map(|op| match op.response {
                Some(Response::Range(range)) => Some(range.kvs.first()?.version),
                _ => None,
            });
            let version = version.unwrap_or_default();
            return Ok(CompactionClock { version, revision });
        }
        if clock.revision > 0 {
            match self.client.compact(clock.revision, until).await {
                Err(error) if !error.is_compacted() => return Err(error),
                _ => tracing::debug!(revision = clock.revision, "compacted etcd's history"),
            }
        }
        let version = clock.version + 1;
        Ok(CompactionClock { version, revision })
    }

    /// The revision of the last compaction, if there was one, and etcd's present one.
    pub(super) async fn last_compaction(&self, until: Instant) -> Result<(Option<i64>, i64), CallError> {
        let request = RangeRequest {
            key: KEY,
            ..RangeRequest::default()
        };
        let answer = self.client.range(request, until).await?;
        let kv = answer.kvs.first();
        let compacted = kv.and_then(|kv| std::str::from_utf8(&kv.value).ok()?.parse().ok());
        Ok((compacted, answer.header.unwrap_or_default().revision))
    }
}
