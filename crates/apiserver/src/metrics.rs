//! The server's own metrics, under Kubernetes' names, in the Prometheus text format.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use orlop_base::Counts;
use parking_lot::Mutex;

use crate::request::RequestInfo;
use crate::shares::Places;

/// Upper bounds in seconds. Upstream: the buckets of apiserver_request_duration_seconds.
const BUCKETS: &[f64] = &[
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0,
];

/// Label sets come from requests: past this many the rest is counted together.
const MAX_SERIES: usize = 10_000;

#[derive(Default)]
pub struct Metrics {
    requests: Mutex<BTreeMap<String, u64>>,
    durations: Mutex<BTreeMap<String, Histogram>>,
    long_running: Mutex<BTreeMap<String, Arc<AtomicI64>>>,
    terminations: Mutex<BTreeMap<String, u64>>,
    pub in_flight_mutating: Places,
    pub in_flight_readonly: Places,
    pub rejected: AtomicI64,
}

#[derive(Clone)]
struct Histogram {
    counts: Vec<u64>,
    sum: f64,
    total: u64,
}

/// Counts a request as under way until dropped.
pub struct InFlight(Arc<AtomicI64>);

impl InFlight {
    pub fn enter(counter: &Arc<AtomicI64>) -> InFlight {
        counter.fetch_add(1, Ordering::Relaxed);
        InFlight(counter.clone())
    }

    /// Enters unless `limit` are already under way.
    pub fn try_enter(counter: &Arc<AtomicI64>, limit: usize) -> Option<InFlight> {
        let guard = InFlight::enter(counter);
        (guard.0.load(Ordering::Relaxed) <= limit as i64).then_some(guard)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The labels that say what a request was about. Only words from the table of kinds get in, so clients can't grow them.
fn labels(info: &RequestInfo, dry_run: bool, known: bool) -> String {
    let scope = match (info.name.is_empty(), info.namespace.is_empty()) {
        _ if !info.is_resource => "",
        (false, _) => "resource",
        (true, false) => "namespace",
        (true, true) => "cluster",
    };
    let (group, version, resource, subresource) = match known {
        true => (
            info.group.as_str(),
            info.version.as_str(),
            info.resource.as_str(),
            info.subresource.as_str(),
        ),
        false => ("", "", "", ""),
    };
    let verb = match info.verb {
        "create" => "POST",
        "update" => "PUT",
        other => &other.to_ascii_uppercase(),
    };
    let dry = if dry_run { "All" } else { "" };
    format!(
        r#"component="apiserver",dry_run="{dry}",group="{group}",resource="{resource}",scope="{scope}",subresource="{subresource}",verb="{verb}",version="{version}""#
    )
}

impl Metrics {
    pub fn observe(&self, info: &RequestInfo, known: bool, dry_run: bool, code: u16, took: Option<Duration>) {
        let labels = labels(info, dry_run, known);
        let mut requests = self.requests.lock();
        let key = format!("{labels},code=\"{code}\"");
        if requests.len() < MAX_SERIES || requests.contains_key(&key) {
            *requests.entry(key).or_default() += 1;
        }
        drop(requests);
        let Some(took) = took.map(|t| t.as_secs_f64()) else {
            return;
        };
        let mut durations = self.durations.lock();
        if durations.len() >= MAX_SERIES && !durations.contains_key(&labels) {
            return;
        }
        let empty = || Histogram {
            counts: vec![0; BUCKETS.len()],
            sum: 0.0,
            total: 0,
        };
        let histogram = durations.entry(labels).or_insert_with(empty);
        if let Some(i) = BUCKETS.iter().position(|b| took <= *b) {
            histogram.counts[i] += 1;
        }
        histogram.sum += took;
        histogram.total += 1;
    }

    /// A request that was not served for the server's own sake: rejected by the in-flight limit, or ended by a panic.
    pub fn terminated(&self, info: &RequestInfo, known: bool, code: u16) {
        let key = format!("{},code=\"{code}\"", labels(info, false, known));
        let mut terminations = self.terminations.lock();
        if terminations.len() < MAX_SERIES || terminations.contains_key(&key) {
            *terminations.entry(key).or_default() += 1;
        }
    }

    /// A watch or another request that stays open.
    pub fn long_running(&self, info: &RequestInfo, known: bool) -> InFlight {
        let mut map = self.long_running.lock();
        InFlight::enter(map.entry(labels(info, false, known)).or_default())
    }

    pub fn render(&self, store: &orlop_store::Stats, objects: &[(String, usize)], connections: &Counts) -> String {
        let mut out = String::with_capacity(64 * 1024);
        header(
            &mut out,
            "apiserver_request_total",
            "counter",
            "Requests by verb, resource and answer.",
        );
        for (labels, count) in self.requests.lock().iter() {
            line(&mut out, "apiserver_request_total", labels, count);
        }
        header(
            &mut out,
            "apiserver_request_duration_seconds",
            "histogram",
            "How long requests took.",
        );
        for (labels, h) in self.durations.lock().iter() {
            h.render(&mut out, "apiserver_request_duration_seconds", labels);
        }
        header(
            &mut out,
            "apiserver_current_inflight_requests",
            "gauge",
            "Requests under way.",
        );
        for (kind, count) in [
            ("mutating", &self.in_flight_mutating),
            ("readOnly", &self.in_flight_readonly),
        ] {
            let labels = format!("request_kind=\"{kind}\"");
            line(
                &mut out,
                "apiserver_current_inflight_requests",
                &labels,
                count.under_way(),
            );
        }
        header(
            &mut out,
            "apiserver_longrunning_requests",
            "gauge",
            "Watches and the like that are open.",
        );
        for (labels, count) in self.long_running.lock().iter() {
            line(
                &mut out,
                "apiserver_longrunning_requests",
                labels,
                count.load(Ordering::Relaxed),
            );
        }
        header(
            &mut out,
            "apiserver_rejected_requests_total",
            "counter",
            "Requests answered 429 at the door.",
        );
        line(
            &mut out,
            "apiserver_rejected_requests_total",
            "",
            self.rejected.load(Ordering::Relaxed),
        );
        header(
            &mut out,
            "apiserver_storage_objects",
            "gauge",
            "Stored objects by resource.",
        );
        for (resource, count) in objects {
            line(
                &mut out,
                "apiserver_storage_objects",
                &format!("resource=\"{resource}\""),
                count,
            );
        }
        header(
            &mut out,
            "apiserver_request_terminations_total",
            "counter",
            "Requests that were not served in self-defence, or because of a panic.",
        );
        for (labels, count) in self.terminations.lock().iter() {
            line(&mut out, "apiserver_request_terminations_total", labels, count);
        }
        render_connections(&mut out, connections);
        render_store(&mut out, store);
        render_process(&mut out);
        out
    }
}

impl Histogram {
    fn render(&self, out: &mut String, name: &str, labels: &str) {
        let mut seen = 0;
        for (bound, count) in BUCKETS.iter().zip(&self.counts) {
            seen += count;
            line(
                out,
                &format!("{name}_bucket"),
                &format!("{labels},le=\"{bound}\""),
                seen,
            );
        }
        line(
            out,
            &format!("{name}_bucket"),
            &format!("{labels},le=\"+Inf\""),
            self.total,
        );
        line(out, &format!("{name}_sum"), labels, self.sum);
        line(out, &format!("{name}_count"), labels, self.total);
    }
}

pub(crate) fn header(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

pub(crate) fn line(out: &mut String, name: &str, labels: &str, value: impl std::fmt::Display) {
    let _ = if labels.is_empty() {
        writeln!(out, "{name} {value}")
    } else {
        writeln!(out, "{name}{{{labels}}} {value}")
    };
}

fn render_connections(out: &mut String, counts: &Counts) {
    let open = "apiserver_open_connections";
    header(
        out,
        open,
        "gauge",
        "Connections, by whether a request on them was authenticated.",
    );
    line(out, open, "authenticated=\"true\"", counts.known);
    line(out, open, "authenticated=\"false\"", counts.strangers);
    let totals = [
        ("accepted", "Connections that found room.", counts.accepted),
        (
            "rejected",
            "Connections closed at once, for want of room.",
            counts.rejected,
        ),
        (
            "shed",
            "Connections without a request closed to make room.",
            counts.shed,
        ),
        (
            "expired",
            "Connections closed after too long without a request.",
            counts.expired,
        ),
    ];
    for (name, help, count) in totals {
        let name = format!("apiserver_connections_{name}_total");
        header(out, &name, "counter", help);
        line(out, &name, "", count);
    }
}

fn render_store(out: &mut String, store: &orlop_store::Stats) {
    let gauges: &[(&str, &str, f64)] = &[
        (
            "apiserver_storage_size_bytes",
            "Bytes of the store on disk.",
            store.log.disk_bytes as f64,
        ),
        (
            "etcd_debugging_mvcc_keys_total",
            "Keys in the store.",
            store.keys as f64,
        ),
        (
            "etcd_debugging_store_watchers",
            "Open watches on the store.",
            store.watchers as f64,
        ),
        (
            "etcd_debugging_mvcc_current_revision",
            "The newest revision.",
            store.revision as f64,
        ),
        (
            "etcd_debugging_mvcc_compact_revision",
            "The oldest revision that can still be read is the next one.",
            store.compacted as f64,
        ),
        (
            "etcd_disk_wal_fsync_duration_seconds_sum",
            "Time spent waiting for the disk.",
            store.log.sync_time.as_secs_f64(),
        ),
        (
            "etcd_disk_wal_fsync_duration_seconds_count",
            "How often the disk was waited for.",
            store.log.syncs as f64,
        ),
        ("etcd_mvcc_put_total", "Transactions committed.", store.commits as f64),
    ];
    for (name, help, value) in gauges {
        header(out, name, "gauge", help);
        line(out, name, "", value);
    }
}

fn render_process(out: &mut String) {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm
        .split_whitespace()
        .nth(1)
        .and_then(|p| p.parse().ok())
        .unwrap_or(0);
    header(out, "process_resident_memory_bytes", "gauge", "Resident memory.");
    line(out, "process_resident_memory_bytes", "", pages * 4096);
    let files = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    header(out, "process_open_fds", "gauge", "Open files.");
    line(out, "process_open_fds", "", files);
}
