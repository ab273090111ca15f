//! Prometheus text format: `/metrics`, `/metrics/resource`. That of `/metrics/cadvisor` is in [`super::cadvisor`].
// Upstream: pkg/kubelet/metrics/collectors/resource_metrics.go (v1.36)

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::{Display, Write};

use orlop_api::types::core::Pod;

use super::summary::{ContainerStats, Fs, PodStats, Summary};

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

fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(['\\', '"', '\n']) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
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
const STARTED: Read = |c| (c.started_seconds > 0.0).then_some((c.started_seconds, None));
const SWAP: Read = |c| {
    let swap = c.swap.as_ref()?;
    Some((swap.swap_usage_bytes? as f64, millis(&swap.time)))
};
/// What is used and what is left.
const SWAP_LIMIT: Read = |c| {
    let swap = c.swap.as_ref()?;
    let limit = swap.swap_available_bytes? + swap.swap_usage_bytes.unwrap_or(0);
    Some((limit as f64, millis(&swap.time)))
};

pub fn resource(summary: &Summary) -> String {
    let mut text = Text::default();
    container_resource(&mut text, summary);
    node_resource(&mut text, summary);
    pod_resource(&mut text, summary);
    scrape_error(&mut text, 0);
    text.finish()
}

/// The page when there is no summary: only the scrape error.
pub fn no_resource() -> String {
    let mut text = Text::default();
    scrape_error(&mut text, 1);
    text.finish()
}

/// The older `scrape_error` is hidden since Kubernetes 1.30.
fn scrape_error(text: &mut Text, value: u8) {
    let name = "resource_scrape_error";
    text.family(
        name,
        "gauge",
        "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise",
    );
    text.sample(name, &[], value, None);
}

fn container_resource(text: &mut Text, summary: &Summary) {
    let families: [(&str, &str, &str, Read); 5] = [
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
        (
            "container_swap_limit_bytes",
            "gauge",
            "[ALPHA] Current amount of the container swap limit in bytes. Reported only on non-windows systems",
            SWAP_LIMIT,
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
    if let Some(swap) = &summary.node.swap
        && let Some(used) = swap.swap_usage_bytes
    {
        let name = "node_swap_usage_bytes";
        text.family(
            name,
            "gauge",
            "[ALPHA] Current swap usage of the node in bytes. Reported only on non-windows systems",
        );
        text.sample(name, &[], used, millis(&swap.time));
    }
}

fn pod_resource(text: &mut Text, summary: &Summary) {
    type ReadPod = fn(&PodStats) -> Option<(f64, &String)>;
    let families: [(&str, &str, &str, ReadPod); 3] = [
        (
            "pod_cpu_usage_seconds_total",
            "counter",
            "[STABLE] Cumulative cpu time consumed by the pod in core-seconds",
            |pod| {
                let cpu = pod.cpu.as_ref()?;
                Some((seconds(cpu.usage_core_nano_seconds?), &cpu.time))
            },
        ),
        (
            "pod_memory_working_set_bytes",
            "gauge",
            "[STABLE] Current working set of the pod in bytes",
            |pod| {
                let memory = pod.memory.as_ref()?;
                Some((memory.working_set_bytes? as f64, &memory.time))
            },
        ),
        (
            "pod_swap_usage_bytes",
            "gauge",
            "[ALPHA] Current amount of the pod swap usage in bytes. Reported only on non-windows systems",
            |pod| {
                let swap = pod.swap.as_ref()?;
                Some((swap.swap_usage_bytes? as f64, &swap.time))
            },
        ),
    ];
    for (name, kind, help, read) in families {
        text.family(name, kind, help);
        for pod in &summary.pods {
            let Some((value, time)) = read(pod) else { continue };
            let labels = [
                ("namespace", pod.pod_ref.namespace.as_str()),
                ("pod", &pod.pod_ref.name),
            ];
            text.sample(name, &labels, value, millis(time));
        }
    }
}

fn containers(summary: &Summary) -> impl Iterator<Item = (&PodStats, &ContainerStats)> {
    let pods = summary.pods.iter();
    pods.flat_map(|pod| pod.containers.iter().map(move |container| (pod, container)))
}

/// Capacity and usage of volumes of claims. A claim that several pods use is reported once.
// Upstream: pkg/kubelet/metrics/collectors/volume_stats.go (v1.36)
pub fn volume_stats(summary: &Summary) -> String {
    type Count = fn(&Fs) -> Option<u64>;
    let families: [(&str, &str, Count); 6] = [
        (
            "kubelet_volume_stats_capacity_bytes",
            "Capacity in bytes of the volume",
            |fs| fs.capacity_bytes,
        ),
        (
            "kubelet_volume_stats_available_bytes",
            "Number of available bytes in the volume",
            |fs| fs.available_bytes,
        ),
        (
            "kubelet_volume_stats_used_bytes",
            "Number of used bytes in the volume",
            |fs| fs.used_bytes,
        ),
        (
            "kubelet_volume_stats_inodes",
            "Maximum number of inodes in the volume",
            |fs| fs.inodes,
        ),
        (
            "kubelet_volume_stats_inodes_free",
            "Number of free inodes in the volume",
            |fs| fs.inodes_free,
        ),
        (
            "kubelet_volume_stats_inodes_used",
            "Number of used inodes in the volume",
            |fs| fs.inodes_used,
        ),
    ];
    let volumes = summary.pods.iter().flat_map(|pod| &pod.volumes);
    let mut claims: BTreeMap<(&str, &str), &Fs> = BTreeMap::new();
    for volume in volumes {
        if let Some(claim) = &volume.pvc_ref {
            claims.entry((&claim.namespace, &claim.name)).or_insert(&volume.fs);
        }
    }
    let mut text = Text::default();
    for (name, help, count) in families.iter().filter(|_| !claims.is_empty()) {
        text.family(name, "gauge", &format!("[ALPHA] {help}"));
        for ((namespace, claim), fs) in &claims {
            let labels = [("namespace", *namespace), ("persistentvolumeclaim", *claim)];
            if let Some(value) = count(fs) {
                text.sample(name, &labels, value, None);
            }
        }
    }
    text.finish()
}

/// The kubelet's own: its node, pods and containers.
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
    use super::super::summary::{Cpu, Memory, NodeStats, PodRef, PvcRef, Swap, VolumeStats};
    use super::*;

    fn swap(used: u64, available: Option<u64>) -> Option<Swap> {
        Some(Swap {
            time: "2026-01-01T00:00:00Z".into(),
            swap_available_bytes: available,
            swap_usage_bytes: Some(used),
        })
    }

    fn summary() -> Summary {
        let time = "2026-01-01T00:00:00Z".to_string();
        let container = ContainerStats {
            name: "c".into(),
            cpu: Some(Cpu {
                time: time.clone(),
                usage_core_nano_seconds: Some(1_500_000_000),
                ..Cpu::default()
            }),
            memory: Some(Memory {
                time,
                working_set_bytes: Some(1024),
                ..Memory::default()
            }),
            swap: swap(3, Some(7)),
            ..ContainerStats::default()
        };
        Summary {
            node: NodeStats {
                swap: swap(5, None),
                ..NodeStats::default()
            },
            pods: vec![PodStats {
                pod_ref: PodRef {
                    name: "p\"1".into(),
                    namespace: "d".into(),
                    uid: "u".into(),
                },
                containers: vec![container],
                swap: swap(4, None),
                ..PodStats::default()
            }],
        }
    }

    #[track_caller]
    fn check(text: &str, lines: &[&str]) {
        for line in lines {
            assert!(text.lines().any(|l| l == *line), "{line}\nis not in\n{text}");
        }
    }

    #[test]
    fn the_text_of_a_picture() {
        let text = resource(&summary());
        check(
            &text,
            &[
                "container_cpu_usage_seconds_total{container=\"c\",namespace=\"d\",pod=\"p\\\"1\"} 1.5 1767225600000",
                "container_memory_working_set_bytes{container=\"c\",namespace=\"d\",pod=\"p\\\"1\"} 1024 1767225600000",
                "container_swap_usage_bytes{container=\"c\",namespace=\"d\",pod=\"p\\\"1\"} 3 1767225600000",
                "container_swap_limit_bytes{container=\"c\",namespace=\"d\",pod=\"p\\\"1\"} 10 1767225600000",
                "pod_swap_usage_bytes{namespace=\"d\",pod=\"p\\\"1\"} 4 1767225600000",
                "node_swap_usage_bytes 5 1767225600000",
                "resource_scrape_error 0",
            ],
        );
        assert!(!text.contains("\ncontainer_start_time_seconds{"), "{text}");
        assert!(own("n", &[]).contains("kubelet_node_name{node=\"n\"} 1\n"));
    }

    #[test]
    fn an_error_is_a_sample() {
        let text = no_resource();
        check(&text, &["resource_scrape_error 1"]);
        assert_eq!(text.lines().count(), 3, "{text}");
    }

    #[test]
    fn each_claim_once() {
        let volume = |claim: Option<&str>, used: u64| VolumeStats {
            name: "v".into(),
            pvc_ref: claim.map(|name| PvcRef {
                name: name.into(),
                namespace: "d".into(),
            }),
            fs: Fs {
                capacity_bytes: Some(100),
                used_bytes: Some(used),
                inodes_free: Some(9),
                ..Fs::default()
            },
        };
        let pod = |volumes| PodStats {
            volumes,
            ..PodStats::default()
        };
        let first = pod(vec![volume(Some("b"), 1), volume(None, 2), volume(Some("a"), 3)]);
        let summary = Summary {
            pods: vec![first, pod(vec![volume(Some("b"), 4)])],
            ..Summary::default()
        };
        let text = volume_stats(&summary);
        check(
            &text,
            &[
                "kubelet_volume_stats_used_bytes{namespace=\"d\",persistentvolumeclaim=\"a\"} 3",
                "kubelet_volume_stats_used_bytes{namespace=\"d\",persistentvolumeclaim=\"b\"} 1",
                "kubelet_volume_stats_capacity_bytes{namespace=\"d\",persistentvolumeclaim=\"a\"} 100",
                "kubelet_volume_stats_inodes_free{namespace=\"d\",persistentvolumeclaim=\"b\"} 9",
            ],
        );
        let samples = text.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(samples, 2 * 3, "{text}");
        assert_eq!(volume_stats(&Summary::default()), "");
    }
}
