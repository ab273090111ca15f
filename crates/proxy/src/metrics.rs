//! `kubeproxy_*`, under upstream's names, once for each address family where upstream has it so.

use std::collections::BTreeMap;
use std::time::Duration;

use orlop_serving::metrics::text::{float, header, line};
use parking_lot::Mutex;

use crate::backend::{Mode, Report};

#[derive(Default)]
pub struct Metrics {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    families: Vec<&'static str>,
    mode: Option<Mode>,
    sync: Histogram,
    full: Histogram,
    partial: Histogram,
    programming: Histogram,
    conntrack: Histogram,
    conntrack_deleted: u64,
    last_synced: f64,
    last_queued: f64,
    endpoint_changes: Changes,
    service_changes: Changes,
    failures: BTreeMap<&'static str, u64>,
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

#[derive(Default)]
struct Histogram {
    /// As many as there are bounds, and one for what is above.
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    fn observe(&mut self, bounds: &[f64], seconds: f64) {
        self.counts.resize(bounds.len() + 1, 0);
        self.counts[bounds.partition_point(|bound| *bound < seconds)] += 1;
        self.sum += seconds;
    }

    fn write(&self, out: &mut String, bounds: &[f64], name: &str, labels: &str) {
        let comma = if labels.is_empty() { "" } else { "," };
        let bounds = bounds.iter().copied().chain([f64::INFINITY]);
        let mut seen = 0;
        for (place, bound) in bounds.enumerate() {
            seen += self.counts.get(place).copied().unwrap_or(0);
            let labels = format!("{labels}{comma}le=\"{}\"", float(bound));
            line(out, &format!("{name}_bucket"), &labels, seen);
        }
        line(out, &format!("{name}_sum"), labels, float(self.sum));
        line(out, &format!("{name}_count"), labels, seen);
    }
}

/// A millisecond, and fourteen times the double.
fn sync_bounds() -> Vec<f64> {
    (0..15).map(|n| 0.001 * f64::from(1 << n)).collect()
}

fn programming_bounds() -> Vec<f64> {
    let linear = |start: f64, step: f64, count: u32| (0..count).map(move |n| start + step * f64::from(n));
    let bounds = linear(0.25, 0.25, 2).chain(linear(1.0, 1.0, 59));
    bounds
        .chain(linear(60.0, 5.0, 12))
        .chain(linear(120.0, 30.0, 7))
        .collect()
}

impl Metrics {
    /// None before the first sync.
    pub fn mode(&self) -> Option<Mode> {
        self.state.lock().mode
    }

    pub fn set_mode(&self, mode: Mode, families: Vec<&'static str>) {
        let mut state = self.state.lock();
        state.mode = Some(mode);
        state.families = families;
        state.rules.clear();
        state.written.clear();
    }

    pub fn queued(&self, now: jiff::Timestamp) {
        self.state.lock().last_queued = seconds(now);
    }

    pub fn service_changed(&self) {
        let mut state = self.state.lock();
        state.service_changes.total += 1;
        state.service_changes.pending += 1;
    }

    pub fn endpoints_changed(&self) {
        let mut state = self.state.lock();
        state.endpoint_changes.total += 1;
        state.endpoint_changes.pending += 1;
    }

    pub fn synced(&self, now: jiff::Timestamp, took: Duration, was_full: bool, report: &Report) {
        let mut state = self.state.lock();
        let (bounds, took) = (sync_bounds(), took.as_secs_f64());
        state.sync.observe(&bounds, took);
        match was_full {
            true => state.full.observe(&bounds, took),
            false => state.partial.observe(&bounds, took),
        }
        state.last_synced = seconds(now);
        state.service_changes.pending = 0;
        state.endpoint_changes.pending = 0;
        state.rules.extend(report.rules.iter().copied());
        state.written = report.written.iter().copied().collect();
    }

    pub fn failed(&self, what: &'static str) {
        *self.state.lock().failures.entry(what).or_default() += 1;
    }

    pub fn programmed(&self, age: Duration) {
        self.state
            .lock()
            .programming
            .observe(&programming_bounds(), age.as_secs_f64());
    }

    pub fn flows_cleaned(&self, took: Duration, deleted: usize) {
        let mut state = self.state.lock();
        state.conntrack.observe(&sync_bounds(), took.as_secs_f64());
        state.conntrack_deleted += deleted as u64;
    }

    pub fn no_local_endpoints(&self, internal: usize, external: usize) {
        self.state.lock().no_local = (internal, external);
    }

    pub fn answered(&self, is_healthz: bool, code: u16) {
        let mut state = self.state.lock();
        let codes = if is_healthz {
            &mut state.healthz
        } else {
            &mut state.livez
        };
        *codes.entry(code).or_default() += 1;
    }

    /// In the Prometheus text format.
    pub fn render(&self) -> String {
        let mut out = String::new();
        let state = self.state.lock();
        state.write_durations(&mut out);
        state.write_gauges(&mut out);
        state.write_changes(&mut out);
        state.write_rules(&mut out);
        drop(state);
        orlop_serving::metrics::process::write(&mut out);
        out
    }
}

fn seconds(at: jiff::Timestamp) -> f64 {
    at.as_microsecond() as f64 / 1e6
}

impl State {
    fn each_family(&self) -> impl Iterator<Item = String> + '_ {
        self.families.iter().map(|family| format!("ip_family=\"{family}\""))
    }

    fn write_durations(&self, out: &mut String) {
        let (sync, programming) = (sync_bounds(), programming_bounds());
        for (name, help, bounds, histogram) in [
            (
                "sync_proxy_rules_duration_seconds",
                "SyncProxyRules latency in seconds",
                &sync,
                &self.sync,
            ),
            (
                "sync_full_proxy_rules_duration_seconds",
                "SyncProxyRules latency in seconds for full resyncs",
                &sync,
                &self.full,
            ),
            (
                "sync_partial_proxy_rules_duration_seconds",
                "SyncProxyRules latency in seconds for partial resyncs",
                &sync,
                &self.partial,
            ),
            (
                "network_programming_duration_seconds",
                "In Cluster Network Programming Latency in seconds",
                &programming,
                &self.programming,
            ),
            (
                "conntrack_reconciler_sync_duration_seconds",
                "ReconcileConntrackFlowsLatency latency in seconds",
                &sync,
                &self.conntrack,
            ),
        ] {
            let name = format!("kubeproxy_{name}");
            header(out, &name, "histogram", help);
            for family in self.each_family() {
                histogram.write(out, bounds, &name, &family);
            }
        }
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
        let deleted = self.conntrack_deleted;
        self.each_family().for_each(|family| line(out, name, &family, deleted));
    }

    fn write_rules(&self, out: &mut String) {
        let Some(mode) = self.mode else { return };
        for (name, help) in [
            (
                "iptables_restore_failures_total",
                "Cumulative proxy iptables restore failures",
            ),
            (
                "iptables_partial_restore_failures_total",
                "Cumulative proxy iptables partial restore failures",
            ),
            (
                "nftables_sync_failures_total",
                "Cumulative proxy nftables sync failures",
            ),
            (
                "nftables_cleanup_failures_total",
                "Cumulative proxy nftables cleanup failures",
            ),
        ] {
            let count = self.failures.get(name).copied().unwrap_or(0);
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
    use super::*;

    #[test]
    fn upstreams_names_with_their_labels() {
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
        let text = metrics.render();
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
