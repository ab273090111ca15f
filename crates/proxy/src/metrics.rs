//! `kubeproxy_*`, under upstream's names, once for each address family where upstream has it so.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use orlop_base::metrics::process;
use orlop_base::metrics::series::{Buckets, Histogram, Series};
use orlop_base::metrics::text::{header, label, line};
use parking_lot::Mutex;

use crate::backend::{Mode, Report};
use crate::conntrack::DeletedFlows;

/// The proxy's metrics. Shared by the sync loop, which counts, and the metrics port, which renders.
pub struct Metrics {
    sync: Histogram,
    full: Histogram,
    partial: Histogram,
    programming: Histogram,
    conntrack: Histogram,
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    families: Vec<&'static str>,
    mode: Option<Mode>,
    conntrack_deleted: DeletedFlows,
    last_synced: f64,
    last_queued: f64,
    endpoint_changes: Changes,
    service_changes: Changes,
    failures: BTreeMap<SyncFailure, u64>,
    rules: BTreeMap<&'static str, usize>,
    written: BTreeMap<&'static str, usize>,
    /// Services under policy Local that have no endpoint here: internal, external.
    no_local: (usize, usize),
    healthz: BTreeMap<u16, u64>,
    livez: BTreeMap<u16, u64>,
}

#[derive(Default)]
struct Changes {
    total: u64,
    pending: u64,
}

/// What failed, each with a counter of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SyncFailure {
    IptablesRestore,
    IptablesPartialRestore,
    NftablesSync,
    NftablesCleanup,
    IpvsSync,
    UserspaceSync,
}

impl SyncFailure {
    /// The first four are upstream's; it has none for a sync of IPVS as a whole, nor a userspace mode.
    const ALL: [(SyncFailure, &'static str, &'static str); 6] = [
        (
            SyncFailure::IptablesRestore,
            "iptables_restore_failures_total",
            "Cumulative proxy iptables restore failures",
        ),
        (
            SyncFailure::IptablesPartialRestore,
            "iptables_partial_restore_failures_total",
            "Cumulative proxy iptables partial restore failures",
        ),
        (
            SyncFailure::NftablesSync,
            "nftables_sync_failures_total",
            "Cumulative proxy nftables sync failures",
        ),
        (
            SyncFailure::NftablesCleanup,
            "nftables_cleanup_failures_total",
            "Cumulative proxy nftables cleanup failures",
        ),
        (
            SyncFailure::IpvsSync,
            "ipvs_sync_failures_total",
            "Cumulative proxy ipvs sync failures",
        ),
        (
            SyncFailure::UserspaceSync,
            "userspace_sync_failures_total",
            "Cumulative proxy userspace sync failures",
        ),
    ];
}

/// A millisecond, and fourteen times the double.
fn sync_bounds() -> Arc<[f64]> {
    let buckets = Buckets {
        start: 0.001,
        factor: 2.0,
        count: 15,
    };
    buckets.bounds()
}

fn programming_bounds() -> Arc<[f64]> {
    let linear = |start: f64, step: f64, count: u32| (0..count).map(move |n| start + step * f64::from(n));
    let bounds = linear(0.25, 0.25, 2).chain(linear(1.0, 1.0, 59));
    bounds
        .chain(linear(60.0, 5.0, 12))
        .chain(linear(120.0, 30.0, 7))
        .collect()
}

impl Default for Metrics {
    fn default() -> Metrics {
        let of_syncs = || Histogram::new(sync_bounds());
        Metrics {
            sync: of_syncs(),
            full: of_syncs(),
            partial: of_syncs(),
            programming: Histogram::new(programming_bounds()),
            conntrack: of_syncs(),
            counts: Mutex::default(),
        }
    }
}

impl Metrics {
    /// None before the first sync.
    pub fn mode(&self) -> Option<Mode> {
        self.counts.lock().mode
    }

    /// Another mode is in use: its rules are counted from now on.
    pub fn set_mode(&self, mode: Mode, families: Vec<&'static str>) {
        let mut counts = self.counts.lock();
        counts.mode = Some(mode);
        counts.families = families;
        counts.rules.clear();
        counts.written.clear();
    }

    /// A sync is needed.
    pub fn queued(&self, now: jiff::Timestamp) {
        self.counts.lock().last_queued = seconds(now);
    }

    /// A service changed; pending until the next sync that succeeds.
    pub fn service_changed(&self) {
        let mut counts = self.counts.lock();
        counts.service_changes.total += 1;
        counts.service_changes.pending += 1;
    }

    /// An endpoint slice changed; pending until the next sync that succeeds.
    pub fn endpoints_changed(&self) {
        let mut counts = self.counts.lock();
        counts.endpoint_changes.total += 1;
        counts.endpoint_changes.pending += 1;
    }

    /// A sync succeeded: nothing is pending.
    pub fn synced(&self, now: jiff::Timestamp, took: Duration, was_full: bool, report: &Report) {
        let took = took.as_secs_f64();
        self.sync.observe(took);
        match was_full {
            true => self.full.observe(took),
            false => self.partial.observe(took),
        }
        let mut counts = self.counts.lock();
        counts.last_synced = seconds(now);
        counts.service_changes.pending = 0;
        counts.endpoint_changes.pending = 0;
        counts.rules.extend(report.rules.iter().copied());
        counts.written = report.written.iter().copied().collect();
    }

    /// A sync failed in this mode. Upstream counts a failed partial iptables sync as both kinds of failure.
    pub fn sync_failed(&self, mode: Mode, was_full: bool) {
        let mut counts = self.counts.lock();
        let mut count = |failure| *counts.failures.entry(failure).or_default() += 1;
        match mode {
            Mode::Iptables => count(SyncFailure::IptablesRestore),
            Mode::Nftables => count(SyncFailure::NftablesSync),
            Mode::Ipvs => count(SyncFailure::IpvsSync),
            Mode::Userspace => count(SyncFailure::UserspaceSync),
        }
        if mode == Mode::Iptables && !was_full {
            count(SyncFailure::IptablesPartialRestore);
        }
    }

    /// The rules of a mode no longer in use could not be removed. Upstream counts it for nftables only.
    pub fn cleanup_failed(&self, mode: Mode) {
        if mode == Mode::Nftables {
            *self
                .counts
                .lock()
                .failures
                .entry(SyncFailure::NftablesCleanup)
                .or_default() += 1;
        }
    }

    /// A change was in place this long after the endpoint changed.
    pub fn programmed(&self, age: Duration) {
        self.programming.observe(age.as_secs_f64());
    }

    /// A run of the conntrack cleanup.
    pub fn flows_cleaned(&self, took: Duration, deleted: DeletedFlows) {
        self.conntrack.observe(took.as_secs_f64());
        let mut counts = self.counts.lock();
        counts.conntrack_deleted.v4 += deleted.v4;
        counts.conntrack_deleted.v6 += deleted.v6;
    }

    /// Service ports under a policy Local that have endpoints on other nodes only.
    pub fn no_local_endpoints(&self, internal: usize, external: usize) {
        self.counts.lock().no_local = (internal, external);
    }

    /// `/healthz` or `/livez` was answered with this code.
    pub fn answered(&self, is_healthz: bool, code: u16) {
        let mut counts = self.counts.lock();
        let codes = if is_healthz {
            &mut counts.healthz
        } else {
            &mut counts.livez
        };
        *codes.entry(code).or_default() += 1;
    }

    /// In the Prometheus text format.
    pub fn render(&self) -> String {
        let mut out = String::new();
        let families: Vec<String> = self.counts.lock().each_family().collect();
        self.write_durations(&mut out, &families);
        let counts = self.counts.lock();
        counts.write_gauges(&mut out);
        counts.write_changes(&mut out);
        counts.write_rules(&mut out);
        drop(counts);
        process::write(&mut out);
        out
    }

    fn write_durations(&self, out: &mut String, families: &[String]) {
        for (name, help, histogram) in [
            (
                "sync_proxy_rules_duration_seconds",
                "SyncProxyRules latency in seconds",
                &self.sync,
            ),
            (
                "sync_full_proxy_rules_duration_seconds",
                "SyncProxyRules latency in seconds for full resyncs",
                &self.full,
            ),
            (
                "sync_partial_proxy_rules_duration_seconds",
                "SyncProxyRules latency in seconds for partial resyncs",
                &self.partial,
            ),
            (
                "network_programming_duration_seconds",
                "In Cluster Network Programming Latency in seconds",
                &self.programming,
            ),
            (
                "conntrack_reconciler_sync_duration_seconds",
                "ReconcileConntrackFlowsLatency latency in seconds",
                &self.conntrack,
            ),
        ] {
            let name = format!("kubeproxy_{name}");
            header(out, &name, "histogram", help);
            for family in families {
                histogram.write(out, &name, family);
            }
        }
    }
}

fn seconds(at: jiff::Timestamp) -> f64 {
    at.as_microsecond() as f64 / 1e6
}

impl Counts {
    fn each_family(&self) -> impl Iterator<Item = String> + '_ {
        self.families.iter().map(|family| format!("ip_family=\"{family}\""))
    }

    fn write_gauges(&self, out: &mut String) {
        for (name, help, value) in [
            (
                "sync_proxy_rules_last_timestamp_seconds",
                "The last time proxy rules were successfully synced",
                self.last_synced,
            ),
            (
                "sync_proxy_rules_last_queued_timestamp_seconds",
                "The last time a sync of proxy rules was queued",
                self.last_queued,
            ),
        ] {
            let name = format!("kubeproxy_{name}");
            header(out, &name, "gauge", help);
            self.each_family().for_each(|family| line(out, &name, &family, value));
        }
        let name = "kubeproxy_sync_proxy_rules_no_local_endpoints_total";
        header(
            out,
            name,
            "gauge",
            "Number of services with a Local traffic policy and no endpoints",
        );
        for (policy, value) in [("internal", self.no_local.0), ("external", self.no_local.1)] {
            line(out, name, &format!("traffic_policy=\"{policy}\""), value);
        }
    }

    fn write_changes(&self, out: &mut String) {
        for (what, title, changes) in [
            ("endpoint", "Endpoint", &self.endpoint_changes),
            ("service", "Service", &self.service_changes),
        ] {
            let name = format!("kubeproxy_sync_proxy_rules_{what}_changes");
            header(
                out,
                &format!("{name}_pending"),
                "gauge",
                &format!("Pending proxy rules {title} changes"),
            );
            line(out, &format!("{name}_pending"), "", changes.pending);
            header(
                out,
                &format!("{name}_total"),
                "counter",
                &format!("Cumulative proxy rules {title} changes"),
            );
            line(out, &format!("{name}_total"), "", changes.total);
        }
        for (name, help, codes) in [
            ("healthz", "Cumulative proxy healthz HTTP status", &self.healthz),
            ("livez", "Cumulative proxy livez HTTP status", &self.livez),
        ] {
            let name = format!("kubeproxy_proxy_{name}_total");
            header(out, &name, "counter", help);
            codes
                .iter()
                .for_each(|(code, count)| line(out, &name, &format!("code=\"{code}\""), count));
        }
        let name = "kubeproxy_conntrack_reconciler_deleted_entries_total";
        header(
            out,
            name,
            "counter",
            "Cumulative conntrack flows deleted by conntrack reconciler",
        );
        for family in &self.families {
            let deleted = match *family {
                "IPv6" => self.conntrack_deleted.v6,
                _ => self.conntrack_deleted.v4,
            };
            line(out, name, &label("ip_family", family), deleted);
        }
    }

    fn write_rules(&self, out: &mut String) {
        let Some(mode) = self.mode else { return };
        for (failure, name, help) in SyncFailure::ALL {
            let count = self.failures.get(&failure).copied().unwrap_or(0);
            let name = format!("kubeproxy_sync_proxy_rules_{name}");
            header(out, &name, "counter", help);
            self.each_family().for_each(|family| line(out, &name, &family, count));
        }
        for (name, help, counts) in [
            ("total", "Total number of rules owned by the proxy", &self.rules),
            (
                "last",
                "Number of rules written by the proxy in last sync",
                &self.written,
            ),
        ] {
            let name = format!("kubeproxy_sync_proxy_rules_{mode}_{name}");
            header(out, &name, "gauge", help);
            counts
                .iter()
                .for_each(|(table, count)| line(out, &name, &format!("table=\"{table}\""), count));
        }
    }
}

#[cfg(test)]
mod tests {
    use orlop_base::metrics::exposition;

    use super::*;

    fn used() -> Metrics {
        let metrics = Metrics::default();
        metrics.set_mode(Mode::Iptables, vec!["IPv4"]);
        metrics.service_changed();
        let report = Report {
            rules: vec![("nat", 12)],
            written: vec![("nat", 3)],
            problems: vec![],
        };
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        metrics.synced(now, Duration::from_millis(3), true, &report);
        metrics.programmed(Duration::from_millis(300));
        metrics.answered(true, 200);
        metrics
    }

    #[test]
    fn each_metric_is_what_its_type_says() {
        let metrics = used();
        metrics.set_mode(Mode::Ipvs, vec!["IPv4", "IPv6"]);
        metrics.flows_cleaned(Duration::from_millis(1), DeletedFlows { v4: 3, v6: 0 });
        let families = exposition::parse(&metrics.render()).unwrap();
        assert!(families.values().all(|family| !family.help.is_empty()));
        assert_eq!(
            families["kubeproxy_network_programming_duration_seconds"].kind,
            "histogram"
        );
        let changes = &families["kubeproxy_sync_proxy_rules_service_changes_total"];
        assert_eq!(changes.value(&[]), Some(1.0));
        let deleted = &families["kubeproxy_conntrack_reconciler_deleted_entries_total"];
        assert_eq!(deleted.value(&[("ip_family", "IPv4")]), Some(3.0));
        assert_eq!(deleted.value(&[("ip_family", "IPv6")]), Some(0.0));
        exposition::parse(&Metrics::default().render()).unwrap();
    }

    #[test]
    fn failures_are_counted_as_those_of_their_mode() {
        for (mode, was_full, expected) in [
            (Mode::Iptables, true, &["iptables_restore"][..]),
            (Mode::Iptables, false, &["iptables_partial_restore", "iptables_restore"]),
            (Mode::Nftables, false, &["nftables_sync"]),
            (Mode::Ipvs, true, &["ipvs_sync"]),
            (Mode::Userspace, true, &["userspace_sync"]),
        ] {
            let metrics = used();
            metrics.set_mode(mode, vec!["IPv4"]);
            metrics.sync_failed(mode, was_full);
            let families = exposition::parse(&metrics.render()).unwrap();
            let failed = families.iter().filter_map(|(name, family)| {
                let name = name.strip_prefix("kubeproxy_sync_proxy_rules_")?;
                let name = name.strip_suffix("_failures_total")?;
                (family.value(&[("ip_family", "IPv4")])? > 0.0).then_some(name)
            });
            assert_eq!(failed.collect::<Vec<_>>(), expected, "{mode}");
        }
    }

    #[test]
    fn upstreams_names_with_their_labels() {
        let text = used().render();
        for wanted in [
            "kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family=\"IPv4\",le=\"0.004\"} 1",
            "kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"} 1",
            "kubeproxy_network_programming_duration_seconds_bucket{ip_family=\"IPv4\",le=\"0.5\"} 1",
            "kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"} 1767225600",
            "kubeproxy_sync_proxy_rules_service_changes_total 1",
            "kubeproxy_sync_proxy_rules_service_changes_pending 0",
            "kubeproxy_sync_proxy_rules_iptables_total{table=\"nat\"} 12",
            "kubeproxy_sync_proxy_rules_iptables_last{table=\"nat\"} 3",
            "kubeproxy_proxy_healthz_total{code=\"200\"} 1",
        ] {
            assert!(text.lines().any(|line| line == wanted), "{wanted}\n{text}");
        }
    }
}
