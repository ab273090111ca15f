//! `/metrics/cadvisor`: the series that dashboards use, one row a cgroup.
// Upstream: cadvisor's metrics/prometheus.go, pkg/kubelet/server/server.go (containerPrometheusLabelsFunc) (v1.36)

use jiff::Timestamp;

use super::groups::Row;
use super::metrics::Text;
use super::summary::Interface;
use crate::node::Machine;

const COUNTER: &str = "counter";
const GAUGE: &str = "gauge";

/// A series; some families have several, distinguished by labels of their own.
struct Series {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    labels: &'static [(&'static str, &'static str)],
    read: fn(&Row) -> Option<f64>,
}

const fn counter(name: &'static str, help: &'static str, read: fn(&Row) -> Option<f64>) -> Series {
    labelled(name, COUNTER, help, &[], read)
}

const fn gauge(name: &'static str, help: &'static str, read: fn(&Row) -> Option<f64>) -> Series {
    labelled(name, GAUGE, help, &[], read)
}

const fn labelled(
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    labels: &'static [(&'static str, &'static str)],
    read: fn(&Row) -> Option<f64>,
) -> Series {
    Series {
        name,
        kind,
        help,
        labels,
        read,
    }
}

fn float(value: Option<u64>) -> Option<f64> {
    value.map(|value| value as f64)
}

fn seconds(nanos: Option<u64>) -> Option<f64> {
    nanos.map(|nanos| nanos as f64 / 1e9)
}

/// Of groups whose CPU time is limited; others are never throttled.
fn limited(row: &Row, value: Option<u64>) -> Option<u64> {
    row.counters.cpu_quota.and(value)
}

/// Measured: with the time of it.
const MEASURED: &[Series] = &[
    labelled(
        "container_cpu_usage_seconds_total",
        COUNTER,
        "Cumulative cpu time consumed in seconds.",
        &[("cpu", "total")],
        |r| seconds(r.counters.cpu_ns),
    ),
    counter(
        "container_cpu_user_seconds_total",
        "Cumulative user cpu time consumed in seconds.",
        |r| seconds(r.counters.cpu_user_ns),
    ),
    counter(
        "container_cpu_system_seconds_total",
        "Cumulative system cpu time consumed in seconds.",
        |r| seconds(r.counters.cpu_system_ns),
    ),
    counter(
        "container_cpu_cfs_periods_total",
        "Number of elapsed enforcement period intervals.",
        |r| float(limited(r, r.counters.cpu_periods)),
    ),
    counter(
        "container_cpu_cfs_throttled_periods_total",
        "Number of throttled period intervals.",
        |r| float(limited(r, r.counters.cpu_throttled_periods)),
    ),
    counter(
        "container_cpu_cfs_throttled_seconds_total",
        "Total time duration the container has been throttled.",
        |r| seconds(limited(r, r.counters.cpu_throttled_ns)),
    ),
    gauge("container_memory_cache", "Number of bytes of page cache memory.", |r| {
        float(r.counters.memory_cache)
    }),
    gauge("container_memory_rss", "Size of RSS in bytes.", |r| {
        float(r.counters.memory_rss)
    }),
    gauge(
        "container_memory_mapped_file",
        "Size of memory mapped files in bytes.",
        |r| float(r.counters.memory_mapped),
    ),
    gauge("container_memory_swap", "Container swap usage in bytes.", |r| {
        float(r.counters.memory_swap)
    }),
    counter("container_memory_failcnt", "Number of memory usage hits limits.", |r| {
        float(r.counters.memory_failures)
    }),
    gauge(
        "container_memory_usage_bytes",
        "Current memory usage in bytes, including all memory regardless of when it was accessed.",
        |r| float(r.counters.memory),
    ),
    gauge(
        "container_memory_max_usage_bytes",
        "Maximum memory usage recorded in bytes.",
        |r| float(r.counters.memory_peak),
    ),
    gauge(
        "container_memory_working_set_bytes",
        "Current working set in bytes.",
        |r| float(r.counters.memory_working_set),
    ),
    labelled(
        "container_memory_failures_total",
        COUNTER,
        "Cumulative count of memory allocation failures.",
        &[("failure_type", "pgfault"), ("scope", "container")],
        |r| float(r.counters.page_faults),
    ),
    labelled(
        "container_memory_failures_total",
        COUNTER,
        "Cumulative count of memory allocation failures.",
        &[("failure_type", "pgfault"), ("scope", "hierarchy")],
        |r| float(r.counters.page_faults),
    ),
    labelled(
        "container_memory_failures_total",
        COUNTER,
        "Cumulative count of memory allocation failures.",
        &[("failure_type", "pgmajfault"), ("scope", "container")],
        |r| float(r.counters.major_page_faults),
    ),
    labelled(
        "container_memory_failures_total",
        COUNTER,
        "Cumulative count of memory allocation failures.",
        &[("failure_type", "pgmajfault"), ("scope", "hierarchy")],
        |r| float(r.counters.major_page_faults),
    ),
    counter(
        "container_oom_events_total",
        "Count of out of memory events observed for the container.",
        |r| float(r.counters.oom_kills),
    ),
    gauge(
        "container_processes",
        "Number of processes running inside the container.",
        |r| float(r.processes),
    ),
    gauge(
        "container_threads",
        "Number of threads running inside the container.",
        |r| float(r.counters.threads),
    ),
    gauge(
        "container_threads_max",
        "Maximum number of threads allowed inside the container, infinity if value is zero.",
        |r| float(r.counters.threads_max),
    ),
];

/// Set, not measured: without a time.
const SET: &[Series] = &[
    gauge(
        "container_start_time_seconds",
        "Start time of the container since unix epoch in seconds.",
        |r| r.started_seconds.filter(|seconds| *seconds > 0.0),
    ),
    gauge("container_spec_cpu_period", "CPU period of the container.", |r| {
        float(r.counters.cpu_period)
    }),
    gauge("container_spec_cpu_quota", "CPU quota of the container.", |r| {
        float(r.counters.cpu_quota)
    }),
    gauge("container_spec_cpu_shares", "CPU share of the container.", |r| {
        float(r.counters.cpu_shares)
    }),
    gauge(
        "container_spec_memory_limit_bytes",
        "Memory limit for the container.",
        |r| float(r.counters.memory_limit),
    ),
    gauge(
        "container_spec_memory_reservation_limit_bytes",
        "Memory reservation limit for the container.",
        |r| float(r.counters.memory_reservation),
    ),
    gauge(
        "container_spec_memory_swap_limit_bytes",
        "Memory swap limit for the container.",
        |r| float(r.counters.swap_limit),
    ),
];

/// Of the file system that a writable layer is on, with the device.
const LAYER: &[Series] = &[
    gauge("container_fs_inodes_free", "Number of available Inodes.", |r| {
        float(r.layer.as_ref()?.inodes_free)
    }),
    gauge("container_fs_inodes_total", "Number of Inodes.", |r| {
        float(r.layer.as_ref()?.inodes)
    }),
    gauge(
        "container_fs_limit_bytes",
        "Number of bytes that can be consumed by the container on this filesystem.",
        |r| float(r.layer.as_ref()?.capacity_bytes),
    ),
    gauge(
        "container_fs_usage_bytes",
        "Number of bytes that are consumed by the container on this filesystem.",
        |r| float(r.layer.as_ref()?.used_bytes),
    ),
];

type Count = fn(&Interface) -> Option<u64>;

const NETWORK: &[(&str, &str, Count)] = &[
    (
        "container_network_receive_bytes_total",
        "Cumulative count of bytes received.",
        |i| i.rx_bytes,
    ),
    (
        "container_network_receive_packets_total",
        "Cumulative count of packets received.",
        |i| i.rx_packets,
    ),
    (
        "container_network_receive_packets_dropped_total",
        "Cumulative count of packets dropped while receiving.",
        |i| i.rx_dropped,
    ),
    (
        "container_network_receive_errors_total",
        "Cumulative count of errors encountered while receiving.",
        |i| i.rx_errors,
    ),
    (
        "container_network_transmit_bytes_total",
        "Cumulative count of bytes transmitted.",
        |i| i.tx_bytes,
    ),
    (
        "container_network_transmit_packets_total",
        "Cumulative count of packets transmitted.",
        |i| i.tx_packets,
    ),
    (
        "container_network_transmit_packets_dropped_total",
        "Cumulative count of packets dropped while transmitting.",
        |i| i.tx_dropped,
    ),
    (
        "container_network_transmit_errors_total",
        "Cumulative count of errors encountered while transmitting.",
        |i| i.tx_errors,
    ),
];

/// The page. Without rows it has the scrape error and the machine's metrics only.
pub fn render(rows: Option<&[Row]>, machine: &Machine, now: Timestamp) -> String {
    let mut text = Text::default();
    let failed = i32::from(rows.is_none());
    let rows = rows.unwrap_or_default();
    let name = "container_last_seen";
    let mut page = Page {
        text: &mut text,
        family: "",
    };
    for row in rows {
        let seen = now.as_second() as f64;
        page.sample(
            (name, GAUGE, "Last time a container was seen by the exporter."),
            row,
            &[],
            Some(seen),
            Some(now.as_millisecond()),
        );
    }
    for series in MEASURED {
        rows.iter()
            .for_each(|row| page.sample(series.family(), row, series.labels, (series.read)(row), row.at));
    }
    for series in SET {
        rows.iter()
            .for_each(|row| page.sample(series.family(), row, series.labels, (series.read)(row), None));
    }
    for series in LAYER {
        for row in rows {
            let device = row.layer.as_ref().map_or("", |layer| &layer.device);
            page.sample(series.family(), row, &[("device", device)], (series.read)(row), row.at);
        }
    }
    for (name, help, count) in NETWORK {
        for row in rows {
            for interface in &row.interfaces {
                let labels = [("interface", interface.name.as_str())];
                page.sample((name, COUNTER, help), row, &labels, float(count(interface)), row.at);
            }
        }
    }
    text.family(
        "container_scrape_error",
        GAUGE,
        "1 if containers could not be looked at, else 0",
    );
    text.sample("container_scrape_error", &[], failed, None);
    of_machine(&mut text, machine);
    text.finish()
}

impl Series {
    fn family(&self) -> Family {
        (self.name, self.kind, self.help)
    }
}

/// Name, kind, help.
type Family = (&'static str, &'static str, &'static str);

/// Writes samples, and what family they are of before the first.
struct Page<'a> {
    text: &'a mut Text,
    family: &'static str,
}

impl Page<'_> {
    fn sample(&mut self, family: Family, row: &Row, more: &[(&str, &str)], value: Option<f64>, time: Option<i64>) {
        let Some(value) = value else { return };
        let (name, kind, help) = family;
        if self.family != name {
            self.text.family(name, kind, help);
            self.family = name;
        }
        let mut labels = vec![
            ("container", row.container.as_str()),
            ("id", &row.id),
            ("image", &row.image),
            ("name", &row.name),
            ("namespace", &row.namespace),
            ("pod", &row.pod),
        ];
        labels.extend(more);
        labels.sort_unstable_by_key(|(label, _)| *label);
        self.text.sample(name, &labels, value, time);
    }
}

fn of_machine(text: &mut Text, machine: &Machine) {
    for (name, help, value) in [
        ("machine_cpu_cores", "Number of logical CPU cores.", machine.cores),
        (
            "machine_memory_bytes",
            "Amount of memory installed on the machine.",
            machine.memory_bytes,
        ),
        (
            "machine_swap_bytes",
            "Amount of swap memory available on the machine.",
            machine.swap_bytes,
        ),
    ] {
        text.family(name, GAUGE, help);
        let labels = [
            ("boot_id", machine.boot_id.as_str()),
            ("machine_id", &machine.machine_id),
            ("system_uuid", &machine.system_uuid),
        ];
        text.sample(name, &labels, value, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroups::Counters;
    use crate::stats::summary::Fs;

    fn container() -> Row {
        Row {
            id: "/kubepods/podu/c1".into(),
            name: "c1".into(),
            image: "busybox".into(),
            container: "c".into(),
            namespace: "d".into(),
            pod: "p\"1".into(),
            at: Some(1000),
            started_seconds: Some(7.0),
            counters: Counters {
                cpu_ns: Some(1_500_000_000),
                cpu_quota: Some(50_000),
                cpu_throttled_ns: Some(500_000_000),
                memory_working_set: Some(1024),
                memory_limit: Some(4096),
                page_faults: Some(3),
                ..Counters::default()
            },
            layer: Some(Fs {
                used_bytes: Some(9),
                device: "/dev/a".into(),
                ..Fs::default()
            }),
            ..Row::default()
        }
    }

    fn lines(rows: Option<&[Row]>) -> Vec<String> {
        let now = Timestamp::from_second(5).unwrap();
        let page = render(rows, &Machine::default(), now);
        page.lines().map(str::to_string).collect()
    }

    #[track_caller]
    fn check(row: Row, expected: &[&str]) {
        let lines = lines(Some(&[row]));
        for line in expected {
            assert!(
                lines.iter().any(|l| l == line),
                "{line}\nis not in\n{}",
                lines.join("\n")
            );
        }
    }

    #[test]
    fn rows_of_containers() {
        const WHO: &str = "id=\"/kubepods/podu/c1\",image=\"busybox\",name=\"c1\",namespace=\"d\",pod=\"p\\\"1\"";
        let lines = [
            format!("container_last_seen{{container=\"c\",{WHO}}} 5 5000"),
            format!("container_cpu_usage_seconds_total{{container=\"c\",cpu=\"total\",{WHO}}} 1.5 1000"),
            format!("container_cpu_cfs_throttled_seconds_total{{container=\"c\",{WHO}}} 0.5 1000"),
            format!("container_memory_working_set_bytes{{container=\"c\",{WHO}}} 1024 1000"),
            format!("container_spec_memory_limit_bytes{{container=\"c\",{WHO}}} 4096"),
            format!("container_spec_cpu_quota{{container=\"c\",{WHO}}} 50000"),
            format!("container_start_time_seconds{{container=\"c\",{WHO}}} 7"),
            format!("container_fs_usage_bytes{{container=\"c\",device=\"/dev/a\",{WHO}}} 9 1000"),
            format!(
                "container_memory_failures_total{{container=\"c\",failure_type=\"pgfault\",{WHO},scope=\"container\"}} 3 1000"
            ),
            "container_scrape_error 0".to_string(),
        ];
        check(container(), &lines.iter().map(String::as_str).collect::<Vec<_>>());
    }

    #[test]
    fn the_network_of_a_sandbox_has_both_directions() {
        let sandbox = Row {
            id: "/kubepods/podu/s1".into(),
            name: "s1".into(),
            interfaces: vec![Interface {
                name: "eth0".into(),
                rx_packets: Some(7),
                tx_dropped: Some(8),
                ..Interface::default()
            }],
            ..Row::default()
        };
        const WHO: &str = "id=\"/kubepods/podu/s1\",image=\"\",interface=\"eth0\",name=\"s1\",namespace=\"\",pod=\"\"";
        let lines = [
            format!("container_network_receive_packets_total{{container=\"\",{WHO}}} 7"),
            format!("container_network_transmit_packets_dropped_total{{container=\"\",{WHO}}} 8"),
        ];
        check(sandbox, &lines.iter().map(String::as_str).collect::<Vec<_>>());
    }

    #[test]
    fn what_is_not_known_is_left_out() {
        let mut free = container();
        free.counters.cpu_quota = None;
        let lines = lines(Some(&[free]));
        for absent in [
            "container_memory_swap",
            "container_cpu_cfs_throttled_seconds_total",
            "container_spec_cpu_quota",
            "container_network_receive_bytes_total",
        ] {
            assert!(!lines.iter().any(|line| line.contains(absent)), "{absent}");
        }
    }

    #[test]
    fn a_family_is_told_of_once() {
        let lines = lines(Some(&[container(), container()]));
        let mut families: Vec<&String> = lines.iter().filter(|line| line.starts_with("# TYPE")).collect();
        let all = families.len();
        families.sort();
        families.dedup();
        assert_eq!(families.len(), all);
    }

    #[test]
    fn an_error_leaves_the_machine() {
        let lines = lines(None);
        assert!(lines.contains(&"container_scrape_error 1".to_string()));
        assert!(lines.iter().any(|line| line.starts_with("machine_cpu_cores{")));
        assert!(!lines.iter().any(|line| line.starts_with("container_cpu")));
    }
}
