//! The server's own metrics, under Kubernetes' names, in the Prometheus text format.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use orlop_base::Counts;
use orlop_base::metrics::process;
use orlop_base::metrics::series::{Family, Histogram, Series};
use orlop_base::metrics::text::{self, header, line};
use orlop_store::SYNC_BUCKETS;
use parking_lot::Mutex;

use crate::kinds;
use crate::request::RequestInfo;

/// Upper bounds in seconds. Upstream: the buckets of apiserver_request_duration_seconds.
const BUCKETS: &[f64] = &[
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0,
];

/// Upper bound of the label sets of one metric. Requests with further ones are counted under `OVERFLOW`.
const MAX_SERIES: usize = 10_000;

/// What a request was about.
const LABELS: [&str; 8] = [
    "component",
    "dry_run",
    "group",
    "resource",
    "scope",
    "subresource",
    "verb",
    "version",
];
type LabelValues<'a> = [&'a str; LABELS.len()];

/// The label values of all requests past `MAX_SERIES`. Upstream: "unexpected" replaces values outside an allow list.
const OVERFLOW: LabelValues<'static> = {
    let mut values = ["unexpected"; LABELS.len()];
    values[0] = "apiserver";
    values[1] = "";
    values
};

/// The series of one metric, by what requests were about.
type ByRequest<T> = Family<T, { LABELS.len() }>;

pub struct Metrics {
    requests: ByRequest<RequestSeries>,
    long_running: ByRequest<Arc<AtomicI64>>,
    terminations: ByRequest<CountsByCode>,
    in_flight_mutating: Arc<AtomicI64>,
    in_flight_readonly: Arc<AtomicI64>,
    pub rejected: AtomicI64,
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics::with_max_series(MAX_SERIES)
    }
}

/// What is kept of requests of one kind: two metrics, found with one look since every request is counted in both.
struct RequestSeries {
    codes: CountsByCode,
    /// Of requests that are not long-running.
    durations: Histogram,
}

/// A counter for each HTTP status code.
#[derive(Default)]
struct CountsByCode(Mutex<BTreeMap<u16, u64>>);

impl CountsByCode {
    fn increment(&self, code: u16) {
        *self.0.lock().entry(code).or_default() += 1;
    }
}

impl Series for CountsByCode {
    fn write(&self, out: &mut String, name: &str, labels: &str) {
        for (code, count) in self.0.lock().iter() {
            line(out, name, &format!("code=\"{code}\",{labels}"), count);
        }
    }
}

/// Counts a request as under way until dropped.
pub struct InFlight(Arc<AtomicI64>, Option<Arc<AtomicI64>>);

impl InFlight {
    pub fn enter(counter: &Arc<AtomicI64>) -> InFlight {
        counter.fetch_add(1, Ordering::Relaxed);
        InFlight(counter.clone(), None)
    }

    /// Counted by another counter, too.
    pub fn and(mut self, counter: Arc<AtomicI64>) -> InFlight {
        counter.fetch_add(1, Ordering::Relaxed);
        self.1 = Some(counter);
        self
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        for counter in [Some(&self.0), self.1.as_ref()].into_iter().flatten() {
            counter.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The label values of a request. Only words from the table of kinds get in, so clients can't invent any.
fn with_labels<R>(info: &RequestInfo, dry_run: bool, act: impl FnOnce(LabelValues) -> R) -> R {
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
        "get" => "GET",
        "list" => "LIST",
        "create" => "POST",
        "update" => "PUT",
        "patch" => "PATCH",
        "delete" => "DELETE",
        other => &other.to_ascii_uppercase(),
    };
    let dry_run = if dry_run { "All" } else { "" };
    act(["apiserver", dry_run, group, resource, scope, subresource, verb, version])
}

impl Metrics {
    fn with_max_series(max_series: usize) -> Metrics {
        fn family<T>(max_series: usize, make: impl Fn() -> T + Send + Sync + 'static) -> ByRequest<T> {
            Family::new(LABELS, make).bounded(max_series, OVERFLOW)
        }
        let bounds: Arc<[f64]> = BUCKETS.into();
        Metrics {
            requests: family(max_series, move || RequestSeries {
                codes: CountsByCode::default(),
                durations: Histogram::new(bounds.clone()),
            }),
            long_running: family(max_series, Arc::default),
            terminations: family(max_series, CountsByCode::default),
            in_flight_mutating: Arc::default(),
            in_flight_readonly: Arc::default(),
            rejected: AtomicI64::default(),
        }
    }

    /// A request was answered; `took` is left out for long-running ones.
    pub fn observe(&self, info: &RequestInfo, dry_run: bool, code: u16, took: Option<Duration>) {
        with_labels(info, dry_run, |labels| {
            self.requests.with(labels, |series| {
                series.codes.increment(code);
                if let Some(took) = took {
                    series.durations.observe(took.as_secs_f64());
                }
            });
        });
    }

    /// A request that was not served for the server's own sake: rejected for want of seats, or ended by a panic.
    pub fn terminated(&self, info: &RequestInfo, code: u16) {
        with_labels(info, false, |labels| {
            self.terminations.with(labels, |codes| codes.increment(code));
        });
    }

    /// A request that is executed.
    pub fn in_flight(&self, info: &RequestInfo) -> InFlight {
        InFlight::enter(match info.is_mutating() {
            true => &self.in_flight_mutating,
            false => &self.in_flight_readonly,
        })
    }

    /// A watch or another request that stays open.
    pub fn long_running(&self, info: &RequestInfo) -> InFlight {
        with_labels(info, false, |labels| self.long_running.with(labels, InFlight::enter))
    }

    pub fn render(&self, store: &orlop_store::Stats, objects: &[(String, usize)], connections: &Counts) -> String {
        let mut out = String::with_capacity(64 * 1024);
        let name = "apiserver_request_total";
        let help = "Counter of apiserver requests broken out for each verb, dry run value, group, version, resource, \
                    scope, component, and HTTP response code.";
        header(&mut out, name, "counter", help);
        self.requests.write_part(&mut out, name, |series| Some(&series.codes));
        let name = "apiserver_request_duration_seconds";
        let help = "Response latency distribution in seconds for each verb, dry run value, group, version, resource, \
                    subresource, scope and component.";
        header(&mut out, name, "histogram", help);
        self.requests.write_part(&mut out, name, |series| {
            Some(&series.durations).filter(|durations| !durations.is_empty())
        });
        let name = "apiserver_current_inflight_requests";
        let help = "Number of requests currently in flight in this apiserver per request kind.";
        header(&mut out, name, "gauge", help);
        for (kind, count) in [
            ("mutating", &self.in_flight_mutating),
            ("readOnly", &self.in_flight_readonly),
        ] {
            line(
                &mut out,
                name,
                &format!("request_kind=\"{kind}\""),
                count.load(Ordering::Relaxed),
            );
        }
        let name = "apiserver_longrunning_requests";
        let help = "Gauge of all active long-running apiserver requests broken out by verb, group, version, resource, \
                    scope and component.";
        header(&mut out, name, "gauge", help);
        self.long_running.write(&mut out, name);
        let name = "apiserver_rejected_requests_total";
        let help = "Number of requests rejected with 429 by API Priority and Fairness.";
        header(&mut out, name, "counter", help);
        line(&mut out, name, "", self.rejected.load(Ordering::Relaxed));
        let name = "apiserver_storage_objects";
        let help = "Number of stored objects at the time of last check split by kind.";
        header(&mut out, name, "gauge", help);
        for (resource, count) in objects {
            line(&mut out, name, &format!("resource=\"{resource}\""), count);
        }
        let name = "apiserver_request_terminations_total";
        let help = "Number of requests which apiserver terminated in self-defense.";
        header(&mut out, name, "counter", help);
        self.terminations.write(&mut out, name);
        render_connections(&mut out, connections);
        render_store(&mut out, store);
        process::write(&mut out);
        out
    }
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
    let counted: u64 = log.syncs_by_bucket.iter().sum();
    let mut counts = log.syncs_by_bucket.to_vec();
    counts.push(log.syncs.saturating_sub(counted));
    text::histogram(out, name, "", &SYNC_BUCKETS, &counts, log.sync_time.as_secs_f64());
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;

    fn info(path: &str) -> RequestInfo {
        RequestInfo::parse(&Method::GET, path, "")
    }

    fn rendered(values: LabelValues) -> String {
        let pairs: Vec<String> = LABELS.iter().zip(values).map(|(n, v)| text::label(n, v)).collect();
        pairs.join(",")
    }

    fn labels(info: &RequestInfo, dry_run: bool) -> String {
        with_labels(info, dry_run, rendered)
    }

    fn render(metrics: &Metrics) -> String {
        metrics.render(&orlop_store::Stats::default(), &[], &Counts::default())
    }

    #[test]
    fn requests_past_the_bound_are_counted_together() {
        let metrics = Metrics::with_max_series(2);
        let took = Some(Duration::from_millis(1));
        let mut open = vec![];
        for resource in ["pods", "nodes", "secrets", "services", "pods"] {
            let info = info(&format!("/api/v1/{resource}"));
            metrics.observe(&info, false, 200, took);
            metrics.terminated(&info, 429);
            open.push(metrics.long_running(&info));
        }
        let text = render(&metrics);
        let overflow = rendered(OVERFLOW);
        assert_eq!(
            overflow,
            r#"component="apiserver",dry_run="",group="unexpected",resource="unexpected",scope="unexpected",subresource="unexpected",verb="unexpected",version="unexpected""#
        );
        let count = |name: &str, labels: &str| {
            let start = format!("{name}{{{labels}}} ");
            let found: Vec<&str> = text.lines().filter_map(|l| l.strip_prefix(&start)).collect();
            assert_eq!(found.len(), 1, "{start}");
            found[0].parse::<u64>().unwrap()
        };
        for (labels, expected) in [
            (labels(&info("/api/v1/pods"), false).as_str(), 2),
            (labels(&info("/api/v1/nodes"), false).as_str(), 1),
            (&overflow, 2),
        ] {
            let with_code = |code: u16| format!("code=\"{code}\",{labels}");
            assert_eq!(count("apiserver_request_total", &with_code(200)), expected);
            assert_eq!(count("apiserver_request_terminations_total", &with_code(429)), expected);
            assert_eq!(count("apiserver_request_duration_seconds_count", labels), expected);
            assert_eq!(count("apiserver_longrunning_requests", labels), expected);
        }
        drop(open);
        let text = render(&metrics);
        assert!(text.contains(&format!("apiserver_longrunning_requests{{{overflow}}} 0\n")));
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
