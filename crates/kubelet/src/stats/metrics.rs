//! Prometheus' text: `/metrics`, `/metrics/resource`, `/metrics/cadvisor`.
// Upstream: pkg/kubelet/metrics/collectors/resource_metrics.go, cadvisor's metrics/prometheus.go (v1.36)

use std::fmt::{Display, Write};

use k8s_openapi::api::core::v1::Pod;

use super::summary::{ContainerStats, PodStats, Summary};
use crate::node::Machine;

/// One family of samples after the other.
#[derive(Default)]
pub struct Text(String);

impl Text {
    pub fn family(&mut self, name: &str, kind: &str, help: &str) {
        writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}").expect("a string takes it");
    }

    /// `time` in milliseconds, where the value is of another time than now.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display, time: Option<i64>) {
        self.0.push_str(name);
        for (i, (label, text)) in labels.iter().enumerate() {
            self.0.push(if i == 0 { '{' } else { ',' });
            write!(self.0, "{label}=\"{}\"", escaped(text)).expect("a string takes it");
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
        write!(self.0, " {value}").expect("a string takes it");
        if let Some(time) = time {
            write!(self.0, " {time}").expect("a string takes it");
        }
        self.0.push('\n');
    }

    pub fn finish(self) -> String {
        self.0
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn millis(time: &str) -> Option<i64> {
    Some(time.parse::<jiff::Timestamp>().ok()?.as_millisecond())
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

/// A value of a container, and when it was.
type Read = fn(&ContainerStats) -> Option<(f64, Option<i64>)>;

const CPU: Read = |c| {
    let cpu = c.cpu.as_ref()?;
    Some((seconds(cpu.usage_core_nano_seconds?), millis(&cpu.time)))
};
const WORKING_SET: Read = |c| {
    let memory = c.memory.as_ref()?;
    Some((memory.working_set_bytes? as f64, millis(&memory.time)))
};
const USAGE: Read = |c| {
    let memory = c.memory.as_ref()?;
    Some((memory.usage_bytes? as f64, millis(&memory.time)))
};
const RSS: Read = |c| {
    let memory = c.memory.as_ref()?;
    Some((memory.rss_bytes? as f64, millis(&memory.time)))
};
const STARTED: Read = |c| Some((c.started_seconds, None));
const SWAP: Read = |c| {
    let swap = c.swap.as_ref()?;
    Some((swap.swap_usage_bytes? as f64, millis(&swap.time)))
};
const FS: Read = |c| {
    let fs = c.rootfs.as_ref()?;
    Some((fs.used_bytes? as f64, millis(&fs.time)))
};

pub fn resource(summary: &Summary) -> String {
    let mut text = Text::default();
    let families: [(&str, &str, &str, Read); 4] = [
        (
            "container_cpu_usage_seconds_total",
            "counter",
            "[STABLE] Cumulative cpu time consumed by the container in core-seconds",
            CPU,
        ),
        (
            "container_memory_working_set_bytes",
            "gauge",
            "[STABLE] Current working set of the container in bytes",
            WORKING_SET,
        ),
        (
            "container_start_time_seconds",
            "gauge",
            "[STABLE] Start time of the container since unix epoch in seconds",
            STARTED,
        ),
        (
            "container_swap_usage_bytes",
            "gauge",
            "[ALPHA] Current amount of the container swap usage in bytes. Reported only on non-windows systems",
            SWAP,
        ),
    ];
    for (name, kind, help, read) in families {
        text.family(name, kind, help);
        for (pod, container) in containers(summary) {
            let Some((value, time)) = read(container) else { continue };
            let labels = [
                ("container", container.name.as_str()),
                ("namespace", &pod.pod_ref.namespace),
                ("pod", &pod.pod_ref.name),
            ];
            text.sample(name, &labels, value, time);
        }
    }
    node_resource(&mut text, summary);
    pod_resource(&mut text, summary);
    text.family(
        "resource_scrape_error",
        "gauge",
        "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise",
    );
    text.sample("resource_scrape_error", &[], 0, None);
    text.finish()
}

fn node_resource(text: &mut Text, summary: &Summary) {
    if let Some(cpu) = &summary.node.cpu
        && let Some(used) = cpu.usage_core_nano_seconds
    {
        let name = "node_cpu_usage_seconds_total";
        text.family(
            name,
            "counter",
            "[STABLE] Cumulative cpu time consumed by the node in core-seconds",
        );
        text.sample(name, &[], seconds(used), millis(&cpu.time));
    }
    if let Some(memory) = &summary.node.memory
        && let Some(used) = memory.working_set_bytes
    {
        let name = "node_memory_working_set_bytes";
        text.family(name, "gauge", "[STABLE] Current working set of the node in bytes");
        text.sample(name, &[], used, millis(&memory.time));
    }
}

fn pod_resource(text: &mut Text, summary: &Summary) {
    let labels = |pod: &PodStats| {
        [
            ("namespace", pod.pod_ref.namespace.clone()),
            ("pod", pod.pod_ref.name.clone()),
        ]
    };
    let name = "pod_cpu_usage_seconds_total";
    text.family(
        name,
        "counter",
        "[STABLE] Cumulative cpu time consumed by the pod in core-seconds",
    );
    for pod in &summary.pods {
        let Some((cpu, used)) = pod.cpu.as_ref().and_then(|c| Some((c, c.usage_core_nano_seconds?))) else {
            continue;
        };
        let labels = labels(pod);
        let labels: Vec<(&str, &str)> = labels.iter().map(|(k, v)| (*k, v.as_str())).collect();
        text.sample(name, &labels, seconds(used), millis(&cpu.time));
    }
    let name = "pod_memory_working_set_bytes";
    text.family(name, "gauge", "[STABLE] Current working set of the pod in bytes");
    for pod in &summary.pods {
        let Some((memory, used)) = pod.memory.as_ref().and_then(|m| Some((m, m.working_set_bytes?))) else {
            continue;
        };
        let labels = labels(pod);
        let labels: Vec<(&str, &str)> = labels.iter().map(|(k, v)| (*k, v.as_str())).collect();
        text.sample(name, &labels, used, millis(&memory.time));
    }
}

fn containers(summary: &Summary) -> impl Iterator<Item = (&PodStats, &ContainerStats)> {
    let pods = summary.pods.iter();
    pods.flat_map(|pod| pod.containers.iter().map(move |container| (pod, container)))
}

/// The main series of cAdvisor's.
pub fn cadvisor(summary: &Summary, machine: &Machine) -> String {
    let mut text = Text::default();
    let families: [(&str, &str, &str, Read); 6] = [
        (
            "container_cpu_usage_seconds_total",
            "counter",
            "Cumulative cpu time consumed in seconds.",
            CPU,
        ),
        (
            "container_fs_usage_bytes",
            "gauge",
            "Number of bytes that are consumed by the container on this filesystem.",
            FS,
        ),
        ("container_memory_rss", "gauge", "Size of RSS in bytes.", RSS),
        (
            "container_memory_usage_bytes",
            "gauge",
            "Current memory usage in bytes, including all memory regardless of when it was accessed",
            USAGE,
        ),
        (
            "container_memory_working_set_bytes",
            "gauge",
            "Current working set in bytes.",
            WORKING_SET,
        ),
        (
            "container_start_time_seconds",
            "gauge",
            "Start time of the container since unix epoch in seconds.",
            STARTED,
        ),
    ];
    for (name, kind, help, read) in families {
        text.family(name, kind, help);
        for (pod, container) in containers(summary) {
            let Some((value, time)) = read(container) else { continue };
            let mut labels = vec![("container", container.name.as_str())];
            if name == "container_cpu_usage_seconds_total" {
                labels.push(("cpu", "total"));
            }
            labels.extend([
                ("id", container.id.as_str()),
                ("image", &container.image),
                ("name", &container.id),
                ("namespace", &pod.pod_ref.namespace),
                ("pod", &pod.pod_ref.name),
            ]);
            text.sample(name, &labels, value, time);
        }
    }
    network(&mut text, summary);
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
        text.family(name, "gauge", help);
        let labels = [
            ("boot_id", machine.boot_id.as_str()),
            ("machine_id", &machine.machine_id),
            ("system_uuid", &machine.system_uuid),
        ];
        text.sample(name, &labels, value, None);
    }
    text.finish()
}

fn network(text: &mut Text, summary: &Summary) {
    type Count = fn(&super::summary::Interface) -> Option<u64>;
    let families: [(&str, &str, Count); 4] = [
        (
            "container_network_receive_bytes_total",
            "Cumulative count of bytes received",
            |i| i.rx_bytes,
        ),
        (
            "container_network_receive_errors_total",
            "Cumulative count of errors encountered while receiving",
            |i| i.rx_errors,
        ),
        (
            "container_network_transmit_bytes_total",
            "Cumulative count of bytes transmitted",
            |i| i.tx_bytes,
        ),
        (
            "container_network_transmit_errors_total",
            "Cumulative count of errors encountered while transmitting",
            |i| i.tx_errors,
        ),
    ];
    for (name, help, count) in families {
        text.family(name, "counter", help);
        for pod in &summary.pods {
            let Some(network) = &pod.network else { continue };
            let only = [network.interface.clone()];
            let all = if network.interfaces.is_empty() {
                &only[..]
            } else {
                &network.interfaces
            };
            for interface in all {
                let Some(value) = count(interface) else { continue };
                let labels = [
                    ("interface", interface.name.as_str()),
                    ("namespace", &pod.pod_ref.namespace),
                    ("pod", &pod.pod_ref.name),
                ];
                text.sample(name, &labels, value, millis(&network.time));
            }
        }
    }
}

/// The agent's own: what it runs, and what it takes itself.
pub fn own(node_name: &str, pods: &[std::sync::Arc<Pod>]) -> String {
    let mut text = Text::default();
    text.family(
        "kubelet_node_name",
        "gauge",
        "[ALPHA] The node's name. The count is always 1.",
    );
    text.sample("kubelet_node_name", &[("node", node_name)], 1, None);
    let phase = |pod: &Pod| pod.status.as_ref().and_then(|s| s.phase.clone()).unwrap_or_default();
    let running = pods.iter().filter(|pod| phase(pod) == "Running").count();
    text.family(
        "kubelet_running_pods",
        "gauge",
        "[ALPHA] Number of pods that have a running pod sandbox",
    );
    text.sample("kubelet_running_pods", &[], running, None);
    let name = "kubelet_running_containers";
    text.family(name, "gauge", "[ALPHA] Number of containers currently running");
    let mut counts = [("created", 0), ("exited", 0), ("running", 0)];
    for status in pods.iter().filter_map(|pod| pod.status.as_ref()) {
        let all = status
            .container_statuses
            .iter()
            .chain(&status.init_container_statuses)
            .flatten();
        for state in all.filter_map(|c| c.state.as_ref()) {
            let i = match (&state.running, &state.terminated) {
                (Some(_), _) => 2,
                (_, Some(_)) => 1,
                _ => 0,
            };
            counts[i].1 += 1;
        }
    }
    for (state, count) in counts {
        text.sample(name, &[("container_state", state)], count, None);
    }
    text.finish()
}

#[cfg(test)]
mod tests {
    use super::super::summary::{Cpu, Interface, Memory, Network, PodRef};
    use super::*;

    #[test]
    fn the_text_of_a_picture() {
        let summary = Summary {
            pods: vec![PodStats {
                pod_ref: PodRef {
                    name: "p\"1".into(),
                    namespace: "d".into(),
                    uid: "u".into(),
                },
                containers: vec![ContainerStats {
                    name: "c".into(),
                    id: "id1".into(),
                    image: "busybox".into(),
                    cpu: Some(Cpu {
                        time: "2026-01-01T00:00:00Z".into(),
                        usage_core_nano_seconds: Some(1_500_000_000),
                        usage_nano_cores: None,
                    }),
                    memory: Some(Memory {
                        time: "2026-01-01T00:00:00Z".into(),
                        working_set_bytes: Some(1024),
                        ..Memory::default()
                    }),
                    ..ContainerStats::default()
                }],
                network: Some(Network {
                    interface: Interface {
                        name: "eth0".into(),
                        rx_bytes: Some(7),
                        ..Interface::default()
                    },
                    ..Network::default()
                }),
                ..PodStats::default()
            }],
            ..Summary::default()
        };
        let text = resource(&summary);
        let lines = [
            "container_cpu_usage_seconds_total{container=\"c\",namespace=\"d\",pod=\"p\\\"1\"} 1.5 1767225600000",
            "container_memory_working_set_bytes{container=\"c\",namespace=\"d\",pod=\"p\\\"1\"} 1024 1767225600000",
            "resource_scrape_error 0",
        ];
        for line in lines {
            assert!(text.lines().any(|l| l == line), "{line}\nis not in\n{text}");
        }
        let text = cadvisor(&summary, &Machine::default());
        let lines = [
            "container_cpu_usage_seconds_total{container=\"c\",cpu=\"total\",id=\"id1\",image=\"busybox\",name=\"id1\",\
             namespace=\"d\",pod=\"p\\\"1\"} 1.5 1767225600000",
            "container_network_receive_bytes_total{interface=\"eth0\",namespace=\"d\",pod=\"p\\\"1\"} 7",
        ];
        for line in lines {
            assert!(text.lines().any(|l| l == line), "{line}\nis not in\n{text}");
        }
        assert!(own("n", &[]).contains("kubelet_node_name{node=\"n\"} 1\n"));
    }
}
