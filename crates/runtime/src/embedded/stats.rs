//! What containers and pods use.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::cgroups::{Group, MemoryCounters, Pressure, PressureLine, Usage};
use super::sandboxes::now_ns;
use super::store::{Container, Sandbox, Stage, matches};
use super::{Embedded, blocking};
use crate::cri::messages::*;
use crate::{Code, Error, Result};

/// Walking a writable layer takes long if it is large: its size is measured at most this often.
const LAYER_INTERVAL: Duration = Duration::from_secs(10);
/// A rate over less than this says little.
const RATE_INTERVAL: Duration = Duration::from_millis(100);

/// What was measured last, by container or sandbox.
#[derive(Default)]
pub(super) struct StatsCache {
    layers: Mutex<HashMap<String, (Instant, LayerUsage)>>,
    cpu: Mutex<HashMap<String, CpuSample>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct LayerUsage {
    bytes: u64,
    inodes: u64,
}

#[derive(Clone, Copy, Debug)]
struct CpuSample {
    at: Instant,
    total_ns: u64,
    nano_cores: Option<u64>,
}

impl StatsCache {
    pub(super) fn forget(&self, id: &str) {
        self.layers.lock().remove(id);
        self.cpu.lock().remove(id);
    }

    /// Cores in use since the sample before, in billionths.
    fn nano_cores(&self, id: &str, total_ns: u64) -> Option<u64> {
        let now = Instant::now();
        let mut samples = self.cpu.lock();
        let nano_cores = match samples.get(id) {
            Some(old) if now.duration_since(old.at) < RATE_INTERVAL => return old.nano_cores,
            Some(old) => {
                let elapsed = now.duration_since(old.at).as_nanos();
                let used = u128::from(total_ns.saturating_sub(old.total_ns));
                u64::try_from(used * 1_000_000_000 / elapsed).ok()
            }
            None => None,
        };
        let sample = CpuSample {
            at: now,
            total_ns,
            nano_cores,
        };
        samples.insert(id.to_string(), sample);
        nano_cores
    }
}

fn value(value: u64) -> Option<UInt64Value> {
    Some(UInt64Value { value })
}

impl Embedded {
    pub(super) async fn stats_of(&self, id: &str) -> Result<ContainerStats> {
        let container = self.container(id)?;
        if !matches!(container.stage(), Stage::Running { .. }) {
            return Err(Error::new(
                Code::NotFound,
                format!("container {:?} is not running", container.id),
            ));
        }
        let embedded = self.clone();
        blocking(move || Ok(embedded.measure_container(&container))).await
    }

    pub(super) async fn list_stats(&self, filter: ContainerStatsFilter) -> Result<Vec<ContainerStats>> {
        let running = |container: &Arc<Container>| {
            let config = container.record.lock().config.clone().unwrap_or_default();
            matches!(container.stage(), Stage::Running { .. })
                && container.id.starts_with(&filter.id)
                && container.sandbox.id.starts_with(&filter.pod_sandbox_id)
                && matches(&config.labels, &filter.label_selector)
        };
        let containers: Vec<_> = self
            .inner
            .store
            .lock()
            .containers
            .values()
            .filter(|c| running(c))
            .cloned()
            .collect();
        let embedded = self.clone();
        blocking(move || Ok(containers.iter().map(|c| embedded.measure_container(c)).collect())).await
    }

    pub(super) async fn list_sandbox_stats(&self, filter: PodSandboxStatsFilter) -> Result<Vec<PodSandboxStats>> {
        let wanted = |sandbox: &Arc<Sandbox>| {
            sandbox.state() == PodSandboxState::Ready
                && sandbox.id.starts_with(&filter.id)
                && matches(&sandbox.record.lock().config().labels, &filter.label_selector)
        };
        let sandboxes: Vec<_> = self
            .inner
            .store
            .lock()
            .sandboxes
            .values()
            .filter(|s| wanted(s))
            .cloned()
            .collect();
        let embedded = self.clone();
        blocking(move || Ok(sandboxes.iter().map(|s| embedded.measure_sandbox(s)).collect())).await
    }

    fn measure_container(&self, container: &Container) -> ContainerStats {
        let record = container.record.lock().clone();
        let config = record.config.unwrap_or_default();
        let usage = self.usage(&record.cgroup);
        let timestamp = now_ns();
        ContainerStats {
            attributes: Some(ContainerAttributes {
                id: container.id.clone(),
                metadata: config.metadata,
                labels: config.labels,
                annotations: config.annotations,
            }),
            cpu: usage
                .cpu_ns
                .map(|total| self.render_cpu(&container.id, total, &usage, timestamp)),
            memory: usage.memory.map(|memory| render_memory(&memory, &usage, timestamp)),
            writable_layer: Some(self.measure_layer(container, timestamp)),
            swap: usage.memory.and_then(|memory| render_swap(&memory, timestamp)),
            io: render_io(&usage, timestamp),
        }
    }

    fn measure_sandbox(&self, sandbox: &Sandbox) -> PodSandboxStats {
        let config = sandbox.record.lock().config();
        let parent = config.linux.clone().unwrap_or_default().cgroup_parent;
        // The group that containers are in.
        let group = super::cgroups::container_path(&parent, "x");
        let group = Path::new(&group)
            .parent()
            .map(|p| p.to_string_lossy().into_owned())
            .unwrap_or_default();
        let usage = match parent.is_empty() {
            true => Usage::default(),
            false => self.usage(&group),
        };
        let timestamp = now_ns();
        let containers = self.inner.store.lock().containers_of(&sandbox.id);
        let running = containers.iter().filter(|c| matches!(c.stage(), Stage::Running { .. }));
        PodSandboxStats {
            attributes: Some(PodSandboxAttributes {
                id: sandbox.id.clone(),
                metadata: config.metadata,
                labels: config.labels,
                annotations: config.annotations,
            }),
            linux: Some(LinuxPodSandboxStats {
                cpu: usage
                    .cpu_ns
                    .map(|total| self.render_cpu(&sandbox.id, total, &usage, timestamp)),
                memory: usage.memory.map(|memory| render_memory(&memory, &usage, timestamp)),
                network: read_network(*sandbox.shim.lock(), timestamp),
                process: usage.processes.map(|count| ProcessUsage {
                    timestamp,
                    process_count: value(count),
                }),
                containers: running.map(|container| self.measure_container(container)).collect(),
                io: render_io(&usage, timestamp),
            }),
        }
    }

    fn usage(&self, path: &str) -> Usage {
        let hierarchies = &self.inner.hierarchies;
        Group { hierarchies, path }.usage()
    }

    fn render_cpu(&self, id: &str, total_ns: u64, usage: &Usage, timestamp: i64) -> CpuUsage {
        CpuUsage {
            timestamp,
            usage_core_nano_seconds: value(total_ns),
            usage_nano_cores: self.inner.stats.nano_cores(id, total_ns).and_then(value),
            psi: usage.cpu_pressure.as_ref().map(render_pressure),
        }
    }

    fn measure_layer(&self, container: &Container, timestamp: i64) -> FilesystemUsage {
        let cached = self.inner.stats.layers.lock().get(&container.id).copied();
        let usage = match cached {
            Some((at, usage)) if at.elapsed() < LAYER_INTERVAL => usage,
            _ => {
                let usage = measure_directory(&container.dir.join("upper"));
                self.inner
                    .stats
                    .layers
                    .lock()
                    .insert(container.id.clone(), (Instant::now(), usage));
                usage
            }
        };
        FilesystemUsage {
            timestamp,
            fs_id: Some(FilesystemIdentifier {
                mountpoint: self.inner.layout.pods().display().to_string(),
            }),
            used_bytes: value(usage.bytes),
            inodes_used: value(usage.inodes),
        }
    }

    /// Of all writable layers together.
    pub(super) async fn container_filesystem(&self) -> Result<FilesystemUsage> {
        let containers: Vec<Arc<Container>> = self.inner.store.lock().containers.values().cloned().collect();
        let embedded = self.clone();
        blocking(move || {
            let timestamp = now_ns();
            let mut total = FilesystemUsage {
                timestamp,
                fs_id: Some(FilesystemIdentifier {
                    mountpoint: embedded.inner.layout.pods().display().to_string(),
                }),
                used_bytes: value(0),
                inodes_used: value(0),
            };
            for container in containers {
                let one = embedded.measure_layer(&container, timestamp);
                add(&mut total.used_bytes, one.used_bytes);
                add(&mut total.inodes_used, one.inodes_used);
            }
            Ok(total)
        })
        .await
    }
}

fn add(total: &mut Option<UInt64Value>, one: Option<UInt64Value>) {
    if let (Some(total), Some(one)) = (total, one) {
        total.value += one.value;
    }
}

fn render_memory(memory: &MemoryCounters, usage: &Usage, timestamp: i64) -> MemoryUsage {
    MemoryUsage {
        timestamp,
        working_set_bytes: value(memory.working_set),
        available_bytes: memory
            .limit
            .and_then(|limit| value(limit.saturating_sub(memory.working_set))),
        usage_bytes: value(memory.usage),
        rss_bytes: value(memory.rss),
        page_faults: value(memory.page_faults),
        major_page_faults: value(memory.major_page_faults),
        psi: usage.memory_pressure.as_ref().map(render_pressure),
    }
}

fn render_io(usage: &Usage, timestamp: i64) -> Option<IoUsage> {
    usage.io_pressure.as_ref().map(|pressure| IoUsage {
        timestamp,
        psi: Some(render_pressure(pressure)),
    })
}

fn render_pressure(pressure: &Pressure) -> PsiStats {
    let line = |line: &PressureLine| {
        let [avg10, avg60, avg300] = line.averages;
        Some(PsiData {
            // The CRI counts nanoseconds.
            total: line.total.saturating_mul(1000),
            avg10,
            avg60,
            avg300,
        })
    };
    PsiStats {
        some: line(&pressure.some),
        full: line(&pressure.full),
    }
}

fn render_swap(memory: &MemoryCounters, timestamp: i64) -> Option<SwapUsage> {
    let used = memory.swap?;
    Some(SwapUsage {
        timestamp,
        swap_available_bytes: memory.swap_limit.and_then(|limit| value(limit.saturating_sub(used))),
        swap_usage_bytes: value(used),
    })
}

/// What is vanishing meanwhile does not count. A file with several names counts for each, which is good enough here.
fn measure_directory(dir: &Path) -> LayerUsage {
    let mut usage = LayerUsage::default();
    let mut left: Vec<PathBuf> = vec![dir.to_path_buf()];
    while let Some(dir) = left.pop() {
        let Ok(entries) = std::fs::read_dir(dir) else { continue };
        for entry in entries.flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            usage.bytes += metadata.blocks() * 512;
            usage.inodes += 1;
            if metadata.is_dir() {
                left.push(entry.path());
            }
        }
    }
    usage
}

/// The shim is in the pod's network.
fn read_network(shim: Option<i32>, timestamp: i64) -> Option<NetworkUsage> {
    let text = std::fs::read_to_string(format!("/proc/{}/net/dev", shim.filter(|pid| *pid > 0)?)).ok()?;
    let interfaces = parse_network(&text);
    Some(NetworkUsage {
        timestamp,
        default_interface: interfaces.iter().find(|i| i.name == "eth0").cloned(),
        interfaces: interfaces.into_iter().filter(|i| i.name != "eth0").collect(),
    })
}

/// `/proc/net/dev`, without the loopback.
fn parse_network(text: &str) -> Vec<NetworkInterfaceUsage> {
    let parse = |line: &str| {
        let (name, counters) = line.split_once(':')?;
        let counters: Vec<u64> = counters.split_whitespace().filter_map(|c| c.parse().ok()).collect();
        let name = name.trim();
        (name != "lo" && counters.len() >= 11).then(|| NetworkInterfaceUsage {
            name: name.to_string(),
            rx_bytes: value(counters[0]),
            rx_errors: value(counters[2]),
            tx_bytes: value(counters[8]),
            tx_errors: value(counters[10]),
        })
    };
    text.lines().filter_map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_counters() {
        let text = "Inter-|   Receive\n face |bytes\n    lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n  \
                    eth0: 100 2 3 0 0 0 0 0 400 5 6 0 0 0 0 0\n";
        let parsed = parse_network(text);
        assert_eq!(parsed.len(), 1);
        assert_eq!((&parsed[0].rx_bytes, &parsed[0].tx_errors), (&value(100), &value(6)));
    }

    #[test]
    fn directories_are_measured() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("a")).unwrap();
        std::fs::write(dir.path().join("a/file"), vec![1; 10_000]).unwrap();
        let usage = measure_directory(dir.path());
        assert_eq!(usage.inodes, 2);
        assert!(usage.bytes >= 10_000);
    }
}
