//! What etcd says over plain HTTP: health, version, metrics.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::{Method, StatusCode};
use orlop_base::metrics::{process, text as metric};
use orlop_store::SYNC_BUCKETS;
use tonic::body::Body;

use crate::grpc::text;
use crate::server::{CLUSTER_VERSION, Server, VERSION};

const JSON: &str = "application/json";
const PLAIN: &str = "text/plain; charset=utf-8";

/// Where processes of this machine learn which directory has the data: `orlop apiserver --etcd-servers` asks.
pub const DATA_DIR_PAGE: &str = "/orlop/data-dir";

/// Answers a request that is no gRPC call.
pub(crate) fn answer(
    server: &Arc<Server>,
    is_local: bool,
    method: &Method,
    path: &str,
    query: Option<&str>,
) -> http::Response<Body> {
    let not_found = || text(StatusCode::NOT_FOUND, PLAIN, "404 page not found\n".into());
    if method != Method::GET && method != Method::HEAD {
        return match path {
            "/health" | "/version" | "/metrics" | "/livez" | "/readyz" => {
                text(StatusCode::METHOD_NOT_ALLOWED, PLAIN, "Method Not Allowed\n".into())
            }
            _ => not_found(),
        };
    }
    match path {
        "/health" => health(server, query.unwrap_or_default()),
        "/livez" => text(StatusCode::OK, PLAIN, "ok\n".into()),
        "/readyz" => match server.trouble() {
            None => text(StatusCode::OK, PLAIN, "ok\n".into()),
            Some(error) => text(
                StatusCode::SERVICE_UNAVAILABLE,
                PLAIN,
                format!("[-]data_corruption failed: {error}\n"),
            ),
        },
        "/version" => {
            let body = format!(
                r#"{{"etcdserver":"{VERSION}","etcdcluster":"{CLUSTER_VERSION}","storage":"{CLUSTER_VERSION}"}}"#
            );
            text(StatusCode::OK, JSON, body)
        }
        "/metrics" => text(
            StatusCode::OK,
            "text/plain; version=0.0.4; charset=utf-8",
            metrics(server),
        ),
        DATA_DIR_PAGE if is_local => data_dir(server),
        _ => not_found(),
    }
}

fn data_dir(server: &Server) -> http::Response<Body> {
    match std::path::absolute(&server.settings.data_dir) {
        Ok(path) => text(StatusCode::OK, PLAIN, format!("{}\n", path.display())),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, PLAIN, error.to_string()),
    }
}

fn health(server: &Server, query: &str) -> http::Response<Body> {
    let excludes_alarm = query.split('&').any(|part| part == "exclude=NOSPACE");
    let reason = match server.trouble() {
        Some(_) => "RAFT NO LEADER",
        None if server.has_alarm() && !excludes_alarm => "ALARM NOSPACE",
        None => return text(StatusCode::OK, JSON, r#"{"health":"true","reason":""}"#.into()),
    };
    let body = format!(r#"{{"health":"false","reason":"{reason}"}}"#);
    text(StatusCode::SERVICE_UNAVAILABLE, JSON, body)
}

fn metrics(server: &Server) -> String {
    let mut out = String::new();
    let stats = server.kv.stats();
    let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let mut one = |name: &str, kind: &str, help: &str, labels: &str, value: u64| {
        metric::header(&mut out, name, kind, help);
        metric::line(&mut out, name, labels, value);
    };
    let version = metric::label("server_version", VERSION);
    one("etcd_server_version", "gauge", "Which version is running.", &version, 1);
    one(
        "etcd_server_has_leader",
        "gauge",
        "Whether or not a leader exists.",
        "",
        1,
    );
    one(
        "etcd_server_is_leader",
        "gauge",
        "Whether or not this member is a leader.",
        "",
        1,
    );
    let healthy = u64::from(server.trouble().is_none());
    one(
        "etcd_server_health_success",
        "gauge",
        "Whether writes work.",
        "",
        healthy,
    );
    let applied = stats.commits;
    one(
        "etcd_server_proposals_committed_total",
        "gauge",
        "The total number of proposals committed.",
        "",
        applied,
    );
    one(
        "etcd_server_proposals_applied_total",
        "gauge",
        "The total number of proposals applied.",
        "",
        applied,
    );
    one(
        "etcd_server_proposals_failed_total",
        "counter",
        "The total number of failed proposals seen.",
        "",
        stats.unavailable,
    );
    let quota = server.settings.quota_bytes.unwrap_or(0);
    one(
        "etcd_server_quota_backend_bytes",
        "gauge",
        "Current backend storage quota size in bytes.",
        "",
        quota,
    );
    one(
        "etcd_mvcc_db_total_size_in_bytes",
        "gauge",
        "Bytes of the log and its snapshot on disk.",
        "",
        stats.log.disk_bytes,
    );
    let used = stats.live_bytes + stats.history_bytes;
    one(
        "etcd_mvcc_db_total_size_in_use_in_bytes",
        "gauge",
        "Bytes of keys, values and history.",
        "",
        used,
    );
    one(
        "etcd_mvcc_put_total",
        "counter",
        "Total number of puts seen by this member.",
        "",
        load(&server.calls.puts),
    );
    one(
        "etcd_mvcc_range_total",
        "counter",
        "Total number of ranges seen by this member.",
        "",
        load(&server.calls.ranges),
    );
    one(
        "etcd_mvcc_delete_total",
        "counter",
        "Total number of deletes seen by this member.",
        "",
        load(&server.calls.deletes),
    );
    one(
        "etcd_mvcc_txn_total",
        "counter",
        "Total number of txns seen by this member.",
        "",
        load(&server.calls.txns),
    );
    one(
        "etcd_debugging_mvcc_keys_total",
        "gauge",
        "Total number of keys.",
        "",
        stats.keys as u64,
    );
    one(
        "etcd_debugging_mvcc_current_revision",
        "gauge",
        "The current revision of store.",
        "",
        stats.revision,
    );
    one(
        "etcd_debugging_mvcc_compact_revision",
        "gauge",
        "The revision of the last compaction in store.",
        "",
        stats.compacted,
    );
    one(
        "etcd_debugging_mvcc_watcher_total",
        "gauge",
        "Total number of watchers.",
        "",
        server.hub.watchers() as u64,
    );
    let expired = load(&server.calls.expired_leases);
    one(
        "etcd_debugging_server_lease_expired_total",
        "counter",
        "The total number of expired leases.",
        "",
        expired,
    );
    one(
        "etcd_debugging_lease_total",
        "gauge",
        "How many leases there are.",
        "",
        server.lease_count() as u64,
    );
    let name = "etcd_disk_wal_fsync_duration_seconds";
    metric::header(&mut out, name, "histogram", "How long syncs of the log take.");
    let mut counts = stats.log.syncs_by_bucket.to_vec();
    let in_buckets: u64 = counts.iter().sum();
    counts.push(stats.log.syncs.saturating_sub(in_buckets));
    metric::histogram(
        &mut out,
        name,
        "",
        &SYNC_BUCKETS,
        &counts,
        stats.log.sync_time.as_secs_f64(),
    );
    process::write(&mut out);
    out
}
