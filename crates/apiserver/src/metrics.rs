//! The server's own metrics, under Kubernetes' names, in the Prometheus text format.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use orlop_base::Counts;
use orlop_store::SYNC_BUCKETS;
use parking_lot::Mutex;

use crate::kinds;
use crate::request::RequestInfo;
use crate::shares::Places;

/// Upper bounds in seconds. Upstream: the buckets of apiserver_request_duration_seconds.
const BUCKETS: &[f64] = &[
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0,
];

/// Upper bound of the label sets of one metric. Requests with further ones are counted under `OVERFLOW`.
const MAX_SERIES: usize = 10_000;

/// The labels of all requests past `MAX_SERIES`. Upstream: "unexpected" replaces label values outside an allow list.
const OVERFLOW: &str = r#"component="apiserver",dry_run="",group="unexpected",resource="unexpected",scope="unexpected",subresource="unexpected",verb="unexpected",version="unexpected""#;

#[derive(Default)]
pub struct Metrics {
    /// By labels and status code.
    requests: Family<BTreeMap<u16, u64>>,
    durations: Family<Histogram>,
    long_running: Family<Arc<AtomicI64>>,
    terminations: Family<BTreeMap<u16, u64>>,
    pub in_flight_mutating: Places,
    pub in_flight_readonly: Places,
    pub rejected: AtomicI64,
}

/// The series of one metric, by their labels.
struct Family<T> {
    series: Mutex<BTreeMap<String, T>>,
    max_series: usize,
}

impl<T> Default for Family<T> {
    fn default() -> Family<T> {
        Family {
            series: Mutex::default(),
            max_series: MAX_SERIES,
        }
    }
}

impl<T: Default> Family<T> {
    /// Updates the series with these labels; the overflow series if there are too many.
    fn update<R>(&self, labels: &str, update: impl FnOnce(&mut T) -> R) -> R {
        let mut series = self.series.lock();
        if let Some(value) = series.get_mut(labels) {
            return update(value);
        }
        let labels = if series.len() < self.max_series {
            labels
        } else {
            OVERFLOW
        };
        update(series.entry(labels.to_string()).or_default())
    }
}

impl Family<BTreeMap<u16, u64>> {
    fn increment(&self, labels: &str, code: u16) {
        self.update(labels, |codes| *codes.entry(code).or_default() += 1);
    }

    fn render(&self, out: &mut String, name: &str, help: &str) {
        header(out, name, "counter", help);
        for (labels, codes) in self.series.lock().iter() {
            for (code, count) in codes {
                line(out, name, &format!("code=\"{code}\",{labels}"), count);
            }
        }
    }
}

#[derive(Clone, Default)]
struct Histogram {
    /// Observations in each of `BUCKETS` alone; those above the last bound are in `total` only.
    counts: [u64; BUCKETS.len()],
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
fn labels(info: &RequestInfo, dry_run: bool) -> String {
    let scope = match (info.name.is_empty(), info.namespace.is_empty()) {
        _ if !info.is_resource => "",
        (false, _) => "resource",
        (true, false) => "namespace",
        (true, true) => "cluster",
    };
    let kind = kinds::of_resource(&info.group, &info.version, &info.resource).filter(|_| info.is_resource);
    let (group, version, resource) = kind.map_or(("", "", ""), |k| (k.group, k.version, k.plural));
    let subresource = kind
        .and_then(|k| k.subresource(&info.subresource))
        .map_or("", |s| s.name);
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
    /// A request was answered; `took` is left out for long-running ones.
    pub fn observe(&self, info: &RequestInfo, dry_run: bool, code: u16, took: Option<Duration>) {
        let labels = labels(info, dry_run);
        self.requests.increment(&labels, code);
        if let Some(took) = took {
            self.durations.update(&labels, |h| h.observe(took.as_secs_f64()));
        }
    }

    /// A request that was not served for the server's own sake: rejected by the in-flight limit, or ended by a panic.
    pub fn terminated(&self, info: &RequestInfo, code: u16) {
        self.terminations.increment(&labels(info, false), code);
    }

    /// A watch or another request that stays open.
    pub fn long_running(&self, info: &RequestInfo) -> InFlight {
        self.long_running
            .update(&labels(info, false), |counter| InFlight::enter(counter))
    }

    pub fn render(&self, store: &orlop_store::Stats, objects: &[(String, usize)], connections: &Counts) -> String {
        let mut out = String::with_capacity(64 * 1024);
        self.requests.render(
            &mut out,
            "apiserver_request_total",
            "Counter of apiserver requests broken out for each verb, dry run value, group, version, resource, scope, \
             component, and HTTP response code.",
        );
        let name = "apiserver_request_duration_seconds";
        let help = "Response latency distribution in seconds for each verb, dry run value, group, version, resource, \
                    subresource, scope and component.";
        header(&mut out, name, "histogram", help);
        for (labels, h) in self.durations.series.lock().iter() {
            histogram(&mut out, name, labels, BUCKETS, &h.counts, h.sum, h.total);
        }
        let name = "apiserver_current_inflight_requests";
        let help = "Number of requests currently in flight in this apiserver per request kind.";
        header(&mut out, name, "gauge", help);
        for (kind, count) in [
            ("mutating", &self.in_flight_mutating),
            ("readOnly", &self.in_flight_readonly),
        ] {
            line(&mut out, name, &format!("request_kind=\"{kind}\""), count.under_way());
        }
        let name = "apiserver_longrunning_requests";
        let help = "Gauge of all active long-running apiserver requests broken out by verb, group, version, resource, \
                    scope and component.";
        header(&mut out, name, "gauge", help);
        for (labels, count) in self.long_running.series.lock().iter() {
            line(&mut out, name, labels, count.load(Ordering::Relaxed));
        }
        let name = "apiserver_rejected_requests_total";
        let help = "Number of requests rejected with 429 by the in-flight limit.";
        header(&mut out, name, "counter", help);
        line(&mut out, name, "", self.rejected.load(Ordering::Relaxed));
        let name = "apiserver_storage_objects";
        let help = "Number of stored objects at the time of last check split by kind.";
        header(&mut out, name, "gauge", help);
        for (resource, count) in objects {
            line(&mut out, name, &format!("resource=\"{resource}\""), count);
        }
        self.terminations.render(
            &mut out,
            "apiserver_request_terminations_total",
            "Number of requests which apiserver terminated in self-defense.",
        );
        render_connections(&mut out, connections);
        render_store(&mut out, store);
        render_process(&mut out);
        out
    }
}

impl Histogram {
    fn observe(&mut self, value: f64) {
        if let Some(i) = BUCKETS.iter().position(|b| value <= *b) {
            self.counts[i] += 1;
        }
        self.sum += value;
        self.total += 1;
    }
}

/// One series of a histogram. `counts` are those of each bucket alone; `total` has the ones above the last bound, too.
fn histogram(out: &mut String, name: &str, labels: &str, bounds: &[f64], counts: &[u64], sum: f64, total: u64) {
    let separator = if labels.is_empty() { "" } else { "," };
    let bucket = format!("{name}_bucket");
    let mut cumulative = 0;
    for (bound, count) in bounds.iter().zip(counts) {
        cumulative += count;
        line(out, &bucket, &format!("{labels}{separator}le=\"{bound}\""), cumulative);
    }
    line(out, &bucket, &format!("{labels}{separator}le=\"+Inf\""), total);
    line(out, &format!("{name}_sum"), labels, sum);
    line(out, &format!("{name}_count"), labels, total);
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
    let help = "Number of open connections, by whether a request on them was authenticated.";
    header(out, open, "gauge", help);
    line(out, open, "authenticated=\"true\"", counts.known);
    line(out, open, "authenticated=\"false\"", counts.strangers);
    let totals = [
        ("accepted", "Number of accepted connections.", counts.accepted),
        (
            "rejected",
            "Number of connections closed on accept because of the connection limit.",
            counts.rejected,
        ),
        (
            "shed",
            "Number of connections without a request closed in favor of new ones.",
            counts.shed,
        ),
        (
            "expired",
            "Number of connections closed because they were idle for too long.",
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
    let gauges = [
        (
            "apiserver_storage_size_bytes",
            "Size of the storage database file physically allocated in bytes.",
            store.log.disk_bytes,
        ),
        (
            "etcd_debugging_mvcc_keys_total",
            "Total number of keys.",
            store.keys as u64,
        ),
        (
            "etcd_debugging_mvcc_watcher_total",
            "Total number of watchers.",
            store.watchers as u64,
        ),
        (
            "etcd_debugging_mvcc_current_revision",
            "The current revision of store.",
            store.revision,
        ),
        (
            "etcd_debugging_mvcc_compact_revision",
            "The revision of the last compaction in store.",
            store.compacted,
        ),
    ];
    for (name, help, value) in gauges {
        header(out, name, "gauge", help);
        line(out, name, "", value);
    }
    // Conflicts are transactions too: their comparison failed.
    let name = "etcd_mvcc_txn_total";
    header(out, name, "counter", "Total number of txns seen by this member.");
    line(out, name, "", store.commits + store.conflicts);
    let name = "etcd_disk_wal_fsync_duration_seconds";
    let help = "The latency distributions of fsync called by WAL.";
    header(out, name, "histogram", help);
    let log = &store.log;
    let sum = log.sync_time.as_secs_f64();
    histogram(out, name, "", &SYNC_BUCKETS, &log.syncs_by_bucket, sum, log.syncs);
}

fn render_process(out: &mut String) {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm
        .split_whitespace()
        .nth(1)
        .and_then(|p| p.parse().ok())
        .unwrap_or(0);
    let name = "process_resident_memory_bytes";
    header(out, name, "gauge", "Resident memory size in bytes.");
    line(out, name, "", pages * 4096);
    let files = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    header(out, "process_open_fds", "gauge", "Number of open file descriptors.");
    line(out, "process_open_fds", "", files);
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;

    fn info(path: &str) -> RequestInfo {
        RequestInfo::parse(&Method::GET, path, "")
    }

    fn render(metrics: &Metrics) -> String {
        metrics.render(&orlop_store::Stats::default(), &[], &Counts::default())
    }

    #[test]
    fn requests_past_the_bound_are_counted_together() {
        let metrics = Metrics {
            requests: Family {
                max_series: 2,
                ..Family::default()
            },
            durations: Family {
                max_series: 2,
                ..Family::default()
            },
            terminations: Family {
                max_series: 2,
                ..Family::default()
            },
            long_running: Family {
                max_series: 2,
                ..Family::default()
            },
            ..Metrics::default()
        };
        let took = Some(Duration::from_millis(1));
        let mut open = vec![];
        for resource in ["pods", "nodes", "secrets", "services", "pods"] {
            let info = info(&format!("/api/v1/{resource}"));
            metrics.observe(&info, false, 200, took);
            metrics.terminated(&info, 429);
            open.push(metrics.long_running(&info));
        }
        let text = render(&metrics);
        let count = |name: &str, labels: &str| {
            let start = format!("{name}{{{labels}}} ");
            let found: Vec<&str> = text.lines().filter_map(|l| l.strip_prefix(&start)).collect();
            assert_eq!(found.len(), 1, "{start}");
            found[0].parse::<u64>().unwrap()
        };
        for (labels, expected) in [
            (labels(&info("/api/v1/pods"), false).as_str(), 2),
            (labels(&info("/api/v1/nodes"), false).as_str(), 1),
            (OVERFLOW, 2),
        ] {
            let with_code = |code: u16| format!("code=\"{code}\",{labels}");
            assert_eq!(count("apiserver_request_total", &with_code(200)), expected);
            assert_eq!(count("apiserver_request_terminations_total", &with_code(429)), expected);
            assert_eq!(count("apiserver_request_duration_seconds_count", labels), expected);
            assert_eq!(count("apiserver_longrunning_requests", labels), expected);
        }
        drop(open);
        let text = render(&metrics);
        assert!(text.contains(&format!("apiserver_longrunning_requests{{{OVERFLOW}}} 0\n")));
    }

    #[test]
    fn clients_invent_no_labels() {
        let of = |path: &str| labels(&info(path), false);
        assert!(of("/api/v1/namespaces/d/pods/p/log").contains(r#"subresource="log""#));
        for path in [
            "/api/v1/namespaces/d/pods/p/in\",vented=\"",
            "/api/v1/namespaces/d/pods/p/invented",
        ] {
            let labels = of(path);
            assert!(labels.contains(r#"resource="pods""#), "{labels}");
            assert!(labels.contains(r#"subresource="""#), "{labels}");
        }
        assert!(of("/api/v1/invented").contains(r#"resource="""#));
    }

    #[test]
    fn buckets_are_cumulative() {
        let metrics = Metrics::default();
        for millis in [1, 5, 30, 70_000] {
            metrics.observe(&info("/api/v1/pods"), false, 200, Some(Duration::from_millis(millis)));
        }
        let text = render(&metrics);
        let labels = labels(&info("/api/v1/pods"), false);
        for (bound, count) in [("0.005", 2), ("0.025", 2), ("0.05", 3), ("60", 3), ("+Inf", 4)] {
            let sample = format!("apiserver_request_duration_seconds_bucket{{{labels},le=\"{bound}\"}} {count}\n");
            assert!(text.contains(&sample), "{sample}{text}");
        }
    }
}
