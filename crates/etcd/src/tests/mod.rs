//! Tests of the member as a whole, without a network.

mod keys;
mod leases;
mod watches;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use orlop_base::Shutdown;

use crate::errors::Error;
use crate::messages::*;
use crate::server::{Server, Settings};

fn settings(dir: &Path) -> Settings {
    Settings {
        data_dir: dir.into(),
        name: "test".into(),
        peer_urls: vec!["http://localhost:2380".into()],
        client_urls: vec!["http://localhost:2379".into()],
        cluster_token: "token".into(),
        sync: false,
        max_txn_ops: 128,
        max_request_bytes: 1_572_864,
        quota_bytes: None,
        progress_notify_interval: Duration::from_secs(600),
    }
}

async fn open(dir: &Path) -> Arc<Server> {
    open_with(settings(dir)).await
}

async fn open_with(settings: Settings) -> Arc<Server> {
    Server::open(settings, Shutdown::default()).await.unwrap()
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn put_request(key: &str, value: &str) -> PutRequest {
    PutRequest {
        key: bytes(key),
        value: bytes(value),
        ..PutRequest::default()
    }
}

/// Returns the revision.
async fn put(server: &Arc<Server>, key: &str, value: &str) -> i64 {
    let response = server.put(put_request(key, value)).await.unwrap();
    response.header.unwrap().revision
}

async fn delete(server: &Arc<Server>, key: &str, range_end: &str) -> i64 {
    let request = DeleteRangeRequest {
        key: bytes(key),
        range_end: bytes(range_end),
        prev_kv: false,
    };
    server.delete_range(request).await.unwrap().deleted
}

fn range_request(key: &str, range_end: &str) -> RangeRequest {
    RangeRequest {
        key: bytes(key),
        range_end: bytes(range_end),
        ..RangeRequest::default()
    }
}

/// `key=value@mod(create,version)`
fn show(kv: &KeyValue) -> String {
    let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
    format!(
        "{}={}@{}({},{})",
        text(&kv.key),
        text(&kv.value),
        kv.mod_revision,
        kv.create_revision,
        kv.version
    )
}

fn list(server: &Server, key: &str, range_end: &str, revision: i64) -> Result<Vec<String>, Error> {
    let request = RangeRequest {
        revision,
        ..range_request(key, range_end)
    };
    Ok(server.range(&request)?.kvs.iter().map(show).collect())
}

fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}
