//! Collects usage from the runtime and the kernel. CPU rates are computed from the previous request; without a recent one,
//! from two samples a second apart. So nothing is measured while nobody asks.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use orlop_api::types::core::{Pod, PodStatus};
use orlop_base::Clock;
use orlop_base::clock::rfc3339;
use orlop_runtime::Runtime;
use orlop_runtime::cri::messages as cri;
use parking_lot::Mutex;

use super::disk::{self, Places};
use super::groups::{self, Groups, Row};
use super::host;
use super::summary::*;
use super::volumes::VolumeSizes;
use crate::cgroups::Cgroups;
use crate::hosted::HostedPods;
use crate::pod::observed::{CONTAINER_NAME, POD_NAME, POD_NAMESPACE, POD_UID};

/// Looks closer together than this use the rate of the one before.
const RATE_MIN_NANOS: i64 = 1_000_000_000;
/// The average over more than this says little about now.
const RATE_MAX_NANOS: i64 = 30_000_000_000;
/// Between two looks where the first has nothing to compare with: a little more than the least.
const SECOND_LOOK: Duration = Duration::from_millis(1_100);
/// Where the kernel shows processes.
const PROC: &str = "/proc";

#[derive(Debug, thiserror::Error)]
#[error("failed to get container stats from the runtime: {0}")]
pub struct StatsError(#[from] orlop_runtime::Error);

/// Cheap to clone.
#[derive(Clone)]
pub struct Gatherer {
    shared: Arc<Shared>,
}

pub struct Options {
    pub runtime: Arc<dyn Runtime>,
    pub node_name: String,
    pub root_dir: PathBuf,
    pub pod_logs_dir: PathBuf,
    /// None where pods have no groups, as simulated ones.
    pub cgroups: Option<Cgroups>,
    pub volumes: VolumeSizes,
    pub hosted: HostedPods,
    pub clock: Clock,
}

struct Shared {
    runtime: Arc<dyn Runtime>,
    node_name: String,
    places: Places,
    cgroups: Option<Cgroups>,
    volumes: VolumeSizes,
    hosted: HostedPods,
    clock: Clock,
    /// When the machine was started, and this kubelet.
    started: Timestamp,
    agent_started: Timestamp,
    rates: Mutex<HashMap<String, Sample>>,
    /// One asks at a time; whoever comes meanwhile has something to compare with.
    asking: tokio::sync::Mutex<()>,
}

/// CPU time of something as of when.
#[derive(Clone, Copy)]
struct Sample {
    at_nanos: i64,
    used: u64,
    rate: Option<u64>,
}

impl Gatherer {
    pub fn new(options: Options) -> Gatherer {
        let now = options.clock.now();
        Gatherer {
            shared: Arc::new(Shared {
                runtime: options.runtime,
                node_name: options.node_name,
                places: Places {
                    root_dir: options.root_dir,
                    pod_logs_dir: options.pod_logs_dir,
                },
                cgroups: options.cgroups,
                volumes: options.volumes,
                hosted: options.hosted,
                clock: options.clock,
                started: machine_started().unwrap_or(now),
                agent_started: now,
                rates: Mutex::default(),
                asking: tokio::sync::Mutex::default(),
            }),
        }
    }

    /// Everything, or CPU and memory alone. `pods` are those of this node, with their statuses.
    pub async fn summary(&self, pods: &[Arc<Pod>], only_cpu_and_memory: bool) -> Result<Summary, StatsError> {
        let shared = &self.shared;
        let _turn = shared.asking.lock().await;
        let mut summary = self.look(pods).await?;
        if lacks_rates(&summary) {
            tokio::time::sleep(SECOND_LOOK).await;
            summary = self.look(pods).await?;
        }
        if only_cpu_and_memory {
            leave_cpu_and_memory(&mut summary);
            return Ok(summary);
        }
        summary.node.runtime = self.runtime_file_systems(&rfc3339(shared.clock.now())).await;
        let uids: Vec<String> = summary.pods.iter().map(|pod| pod.pod_ref.uid.clone()).collect();
        shared.volumes.refresh(&uids).await;
        let pods = pods.to_vec();
        Ok(self.files(move |shared| shared.add_disks(summary, &pods)).await)
    }

    /// Totals of CPU and memory, for those who work out the rates themselves.
    pub async fn totals(&self, pods: &[Arc<Pod>]) -> Result<Summary, StatsError> {
        let _turn = self.shared.asking.lock().await;
        let mut summary = self.look(pods).await?;
        leave_cpu_and_memory(&mut summary);
        Ok(summary)
    }

    /// All counters of the cgroups.
    pub async fn rows(&self, pods: &[Arc<Pod>]) -> Result<Vec<Row>, StatsError> {
        let _turn = self.shared.asking.lock().await;
        let summary = self.look(pods).await?;
        let pods = pods.to_vec();
        Ok(self.files(move |shared| shared.rows(summary, &pods)).await)
    }

    /// There may be many files: not on the threads of the async runtime.
    async fn files<T: Send + 'static>(&self, work: impl FnOnce(&Shared) -> T + Send + 'static) -> T {
        let shared = self.shared.clone();
        crate::blocking::run(move || work(&shared))
            .await
            .expect("reading files does not panic")
    }

    /// CPU and memory of everything, and what else the runtime reports of containers and pods.
    async fn look(&self, pods: &[Arc<Pod>]) -> Result<Summary, StatsError> {
        let shared = &self.shared;
        let stats = shared
            .runtime
            .list_container_stats(cri::ContainerStatsFilter::default())
            .await?;
        // Older runtimes don't know these; then the containers are added up.
        let sandboxes = shared
            .runtime
            .list_pod_sandbox_stats(cri::PodSandboxStatsFilter::default())
            .await;
        let containers = shared.runtime.list_containers(cri::ContainerFilter::default()).await?;
        let mut summary = assemble(pods, &stats, &sandboxes.unwrap_or_default(), &containers);
        let pods = pods.to_vec();
        let now = shared.clock.now();
        if let Some(process) = host::ProcessUsage::read() {
            let hosted = shared.hosted.all();
            summary
                .pods
                .extend(hosted.iter().filter_map(|pod| pod.usage(&process, now)));
        }
        let mut summary = self.files(move |shared| shared.add_node(summary, &pods, now)).await;
        self.add_rates(&mut summary, now);
        summary.node.cpu = host::cpu_nanoseconds().map(|used| self.node_cpu(used, now));
        Ok(summary)
    }

    fn node_cpu(&self, used: u64, now: Timestamp) -> Cpu {
        let at = nanos(now);
        Cpu {
            time: rfc3339(now),
            at_nanos: at,
            usage_nano_cores: rate(&mut self.shared.rates.lock(), "", used, at),
            usage_core_nano_seconds: Some(used),
        }
    }

    /// Fills in the rates that the runtime does not report.
    fn add_rates(&self, summary: &mut Summary, now: Timestamp) {
        let mut rates = self.shared.rates.lock();
        let mut known = HashSet::from([String::new()]);
        let mut add = |key: String, cpu: &mut Option<Cpu>| {
            let Some(cpu) = cpu else { return };
            if let (None, Some(used)) = (cpu.usage_nano_cores, cpu.usage_core_nano_seconds) {
                let at = if cpu.at_nanos == 0 { nanos(now) } else { cpu.at_nanos };
                cpu.usage_nano_cores = rate(&mut rates, &key, used, at);
            }
            known.insert(key);
        };
        for group in &mut summary.node.system_containers {
            add(format!("system/{}", group.name), &mut group.cpu);
        }
        for pod in &mut summary.pods {
            add(format!("pod/{}", pod.pod_ref.uid), &mut pod.cpu);
            for container in &mut pod.containers {
                add(container.id.clone(), &mut container.cpu);
            }
        }
        // What is gone needs no memory.
        rates.retain(|key, _| known.contains(key));
    }

    async fn runtime_file_systems(&self, time: &str) -> Option<RuntimeFs> {
        let told = self.shared.runtime.image_fs_info().await.ok()?;
        let fs = |usage: &cri::FilesystemUsage| {
            let mount = usage.fs_id.as_ref().map(|id| PathBuf::from(&id.mountpoint));
            let mut fs = mount
                .and_then(|path| host::file_system(&path, time))
                .unwrap_or_else(|| Fs {
                    time: time.to_string(),
                    ..Fs::default()
                });
            // Of images and layers alone, not of the whole file system.
            fs.used_bytes = number(&usage.used_bytes);
            fs.inodes_used = number(&usage.inodes_used);
            fs
        };
        Some(RuntimeFs {
            image_fs: told.image_filesystems.first().map(fs),
            container_fs: told
                .container_filesystems
                .first()
                .or(told.image_filesystems.first())
                .map(fs),
        })
    }
}

/// What reads files, away from the async runtime.
impl Shared {
    /// The machine, and the groups of pods as wholes.
    fn add_node(&self, mut summary: Summary, pods: &[Arc<Pod>], now: Timestamp) -> Summary {
        let time = rfc3339(now);
        summary.node = NodeStats {
            node_name: self.node_name.clone(),
            start_time: rfc3339(self.started),
            memory: host::memory(&time),
            swap: host::swap(&time),
            ..NodeStats::default()
        };
        if let Some(cgroups) = &self.cgroups {
            groups::add_swap(cgroups, pods, &mut summary, &time);
            let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
            summary.node.system_containers = groups::system_containers(cgroups, &own, self.agent_started, now);
        }
        summary
    }

    /// Networks and disks of the node and of pods.
    fn add_disks(&self, mut summary: Summary, pods: &[Arc<Pod>]) -> Summary {
        let time = rfc3339(self.clock.now());
        summary.node.network = host::network(&time);
        summary.node.fs = host::file_system(&self.places.root_dir, &time);
        summary.node.rlimit = host::rlimit(&time);
        if let Some(cgroups) = &self.cgroups {
            Groups::find(cgroups, pods).add_networks(&mut summary, Path::new(PROC), &time);
        }
        disk::add_layers(&mut summary);
        let unknown = || Fs {
            time: time.clone(),
            ..Fs::default()
        };
        let root = summary.node.fs.clone().unwrap_or_else(unknown);
        for pod in &mut summary.pods {
            let known = pods
                .iter()
                .find(|p| p.metadata.uid.as_deref() == Some(&pod.pod_ref.uid));
            let volumes = known.map(|known| self.volumes.of_pod(known)).unwrap_or_default();
            disk::add_storage(pod, volumes, &self.places, &root);
        }
        summary
    }

    fn rows(&self, mut summary: Summary, pods: &[Arc<Pod>]) -> Vec<Row> {
        let now = self.clock.now();
        let time = rfc3339(now);
        summary.node.network = host::network(&time);
        disk::add_layers(&mut summary);
        let groups = self.cgroups.as_ref().map(|cgroups| Groups::find(cgroups, pods));
        if let Some(groups) = &groups {
            groups.add_networks(&mut summary, Path::new(PROC), &time);
        }
        groups::rows(&summary, groups.as_ref(), now)
    }
}

/// For those who ask for no more, and often.
fn leave_cpu_and_memory(summary: &mut Summary) {
    for pod in &mut summary.pods {
        (pod.network, pod.processes) = (None, None);
        for container in &mut pod.containers {
            container.rootfs = None;
        }
    }
}

/// Something that uses CPU time, and it is not known how much in a second.
fn lacks_rates(summary: &Summary) -> bool {
    let containers = summary.pods.iter().flat_map(|pod| &pod.containers);
    let pods = summary.pods.iter().map(|pod| &pod.cpu);
    let all = containers.map(|c| &c.cpu).chain(pods).chain([&summary.node.cpu]);
    let lacks = |cpu: &Cpu| cpu.usage_core_nano_seconds.is_some() && cpu.usage_nano_cores.is_none();
    all.flatten().any(lacks)
}

fn nanos(time: Timestamp) -> i64 {
    i64::try_from(time.as_nanosecond()).unwrap_or(i64::MAX)
}

/// Nanoseconds of CPU per second since the last sample.
fn rate(samples: &mut HashMap<String, Sample>, key: &str, used: u64, at_nanos: i64) -> Option<u64> {
    let before = samples.get(key).copied();
    let rate = match before {
        Some(sample) if at_nanos - sample.at_nanos < RATE_MIN_NANOS => return sample.rate,
        Some(sample) if at_nanos - sample.at_nanos > RATE_MAX_NANOS => None,
        // A counter that went back is another container's.
        Some(sample) if used >= sample.used => {
            let per_second = u128::from(used - sample.used) * 1_000_000_000 / (at_nanos - sample.at_nanos) as u128;
            u64::try_from(per_second).ok()
        }
        _ => None,
    };
    samples.insert(key.to_string(), Sample { at_nanos, used, rate });
    rate
}

fn machine_started() -> Option<Timestamp> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    let line = stat.lines().find_map(|line| line.strip_prefix("btime "))?;
    Timestamp::from_second(line.trim().parse().ok()?).ok()
}

fn assemble(
    pods: &[Arc<Pod>],
    stats: &[cri::ContainerStats],
    sandboxes: &[cri::PodSandboxStats],
    containers: &[cri::Container],
) -> Summary {
    let running: HashMap<&str, &cri::Container> = containers
        .iter()
        .filter(|c| c.state == cri::ContainerState::Running as i32)
        .map(|c| (c.id.as_str(), c))
        .collect();
    let mut found: BTreeMap<PodRef, PodStats> = BTreeMap::new();
    for one in stats {
        let Some(attributes) = &one.attributes else { continue };
        let Some(container) = running.get(attributes.id.as_str()) else {
            continue;
        };
        let pod_ref = reference(&attributes.labels);
        let pod = found.entry(pod_ref.clone()).or_insert_with(|| PodStats {
            pod_ref,
            ..PodStats::default()
        });
        pod.containers.push(of_container(one, container));
    }
    for (pod_ref, pod) in &mut found {
        let known = pods.iter().find(|p| p.metadata.uid.as_deref() == Some(&pod_ref.uid));
        let status = known.and_then(|p| p.status.as_ref());
        let started = status.and_then(|s| s.start_time.clone());
        pod.start_time = started.map_or(String::new(), |time| rfc3339(time.0));
        pod.containers
            .iter_mut()
            .for_each(|container| name_image(container, status));
        let own = sandboxes.iter().find(|s| {
            let labels = s.attributes.as_ref().map(|a| &a.labels);
            labels.is_some_and(|labels| reference(labels) == *pod_ref)
        });
        let attributes = own.and_then(|s| s.attributes.as_ref());
        pod.sandbox = attributes.map(|a| a.id.clone()).unwrap_or_default();
        finish_pod(pod, own.and_then(|s| s.linux.as_ref()));
    }
    Summary {
        node: NodeStats::default(),
        pods: found.into_values().collect(),
    }
}

/// CRI-O lists containers with the ids of their images; the pod's status has the names.
fn name_image(container: &mut ContainerStats, status: Option<&PodStatus>) {
    if container.image.contains(['/', ':']) {
        return;
    }
    let lists = status.map(|s| {
        [
            &s.container_statuses,
            &s.init_container_statuses,
            &s.ephemeral_container_statuses,
        ]
    });
    let mut all = lists.into_iter().flatten().flatten().flatten();
    if let Some(found) = all.find(|c| c.name == container.name) {
        container.image.clone_from(&found.image);
    }
}

fn reference(labels: &BTreeMap<String, String>) -> PodRef {
    let label = |name: &str| labels.get(name).cloned().unwrap_or_default();
    PodRef {
        name: label(POD_NAME),
        namespace: label(POD_NAMESPACE),
        uid: label(POD_UID),
    }
}

fn of_container(stats: &cri::ContainerStats, container: &cri::Container) -> ContainerStats {
    let started = Timestamp::from_nanosecond(container.created_at.into()).unwrap_or_default();
    let layer = stats.writable_layer.as_ref().and_then(|layer| layer.fs_id.as_ref());
    let layer_mount = layer.map(|id| id.mountpoint.clone());
    ContainerStats {
        name: container.labels.get(CONTAINER_NAME).cloned().unwrap_or_default(),
        start_time: rfc3339(started),
        cpu: stats.cpu.as_ref().map(cpu),
        memory: stats.memory.as_ref().map(memory),
        rootfs: stats.writable_layer.as_ref().map(|layer| Fs {
            time: time_of(layer.timestamp),
            used_bytes: number(&layer.used_bytes),
            inodes_used: number(&layer.inodes_used),
            ..Fs::default()
        }),
        logs: None,
        swap: stats.swap.as_ref().map(|swap| Swap {
            time: time_of(swap.timestamp),
            swap_available_bytes: available(&swap.swap_available_bytes),
            swap_usage_bytes: number(&swap.swap_usage_bytes),
        }),
        id: container.id.clone(),
        image: container.image.as_ref().map(|i| i.image.clone()).unwrap_or_default(),
        started_seconds: container.created_at as f64 / 1e9,
        layer_mount: layer_mount.unwrap_or_default(),
    }
}

/// What the runtime says of the pod as a whole; else the sum of its containers.
fn finish_pod(pod: &mut PodStats, own: Option<&cri::LinuxPodSandboxStats>) {
    pod.containers.sort_by(|a, b| a.name.cmp(&b.name));
    let containers = &pod.containers;
    let sum = |of: &dyn Fn(&ContainerStats) -> Option<u64>| {
        let values: Vec<u64> = containers.iter().filter_map(of).collect();
        (!values.is_empty()).then(|| values.iter().sum::<u64>())
    };
    let newest = |of: &dyn Fn(&ContainerStats) -> Option<&String>| containers.iter().filter_map(of).max().cloned();
    let cpu_at = containers.iter().filter_map(|c| Some(c.cpu.as_ref()?.at_nanos)).max();
    let memory_time = newest(&|c| c.memory.as_ref().map(|m| &m.time));
    let summed_cpu = cpu_at.map(|at_nanos| Cpu {
        time: time_of(at_nanos),
        at_nanos,
        usage_nano_cores: sum(&|c| c.cpu.as_ref()?.usage_nano_cores),
        usage_core_nano_seconds: sum(&|c| c.cpu.as_ref()?.usage_core_nano_seconds),
    });
    let summed_memory = memory_time.map(|time| Memory {
        time,
        usage_bytes: sum(&|c| c.memory.as_ref()?.usage_bytes),
        working_set_bytes: sum(&|c| c.memory.as_ref()?.working_set_bytes),
        rss_bytes: sum(&|c| c.memory.as_ref()?.rss_bytes),
        ..Memory::default()
    });
    // Runtimes report swap of containers only; the pod's cgroup is preferred, if there is one.
    let swap_time = newest(&|c| c.swap.as_ref().map(|swap| &swap.time));
    pod.swap = swap_time.map(|time| Swap {
        time,
        swap_available_bytes: sum(&|c| c.swap.as_ref()?.swap_available_bytes),
        swap_usage_bytes: sum(&|c| c.swap.as_ref()?.swap_usage_bytes),
    });
    pod.cpu = own.and_then(|o| o.cpu.as_ref()).map(cpu).or(summed_cpu);
    pod.memory = own.and_then(|o| o.memory.as_ref()).map(memory).or(summed_memory);
    let when = pod.cpu.as_ref().map_or(String::new(), |cpu| cpu.time.clone());
    pod.network = own.and_then(|o| o.network.as_ref()).map(|n| network(n, &when));
    let count = own.and_then(|o| number(&o.process.as_ref()?.process_count));
    pod.processes = count.map(|process_count| Processes { process_count });
}

fn number(value: &Option<cri::UInt64Value>) -> Option<u64> {
    value.as_ref().map(|v| v.value)
}

/// Without a limit there is no available amount: CRI-O reports one all the same.
fn available(value: &Option<cri::UInt64Value>) -> Option<u64> {
    number(value).filter(|bytes| *bytes < 1 << 62)
}

fn time_of(nanos: i64) -> String {
    rfc3339(Timestamp::from_nanosecond(nanos.into()).unwrap_or_default())
}

fn cpu(cpu: &cri::CpuUsage) -> Cpu {
    Cpu {
        time: time_of(cpu.timestamp),
        at_nanos: cpu.timestamp,
        usage_nano_cores: number(&cpu.usage_nano_cores),
        usage_core_nano_seconds: number(&cpu.usage_core_nano_seconds),
    }
}

fn memory(memory: &cri::MemoryUsage) -> Memory {
    Memory {
        time: time_of(memory.timestamp),
        available_bytes: available(&memory.available_bytes),
        usage_bytes: number(&memory.usage_bytes),
        working_set_bytes: number(&memory.working_set_bytes),
        rss_bytes: number(&memory.rss_bytes),
        page_faults: number(&memory.page_faults),
        major_page_faults: number(&memory.major_page_faults),
    }
}

/// `when` is for runtimes that don't tell. Loopback is nobody's network, though CRI-O takes it for the first. Some tell of
/// the default one among the others too.
fn network(network: &cri::NetworkUsage, when: &str) -> Network {
    let mut all: Vec<Interface> = vec![];
    for told in network.default_interface.iter().chain(&network.interfaces) {
        if told.name != "lo" && all.iter().all(|known| known.name != told.name) {
            all.push(interface(told));
        }
    }
    let time = match network.timestamp {
        0 => when.to_string(),
        nanos => time_of(nanos),
    };
    Network::of(time, all, groups::DEFAULT_INTERFACE)
}

fn interface(told: &cri::NetworkInterfaceUsage) -> Interface {
    Interface {
        name: told.name.clone(),
        rx_bytes: number(&told.rx_bytes),
        rx_errors: number(&told.rx_errors),
        tx_bytes: number(&told.tx_bytes),
        tx_errors: number(&told.tx_errors),
        ..Interface::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(value: u64) -> Option<cri::UInt64Value> {
        Some(cri::UInt64Value { value })
    }

    fn labels(container: &str) -> BTreeMap<String, String> {
        [
            (POD_NAME, "p"),
            (POD_NAMESPACE, "d"),
            (POD_UID, "u"),
            (CONTAINER_NAME, container),
        ]
        .map(|(k, v)| (k.to_string(), v.to_string()))
        .into()
    }

    fn stats(id: &str, cpu: u64, memory: u64) -> cri::ContainerStats {
        cri::ContainerStats {
            attributes: Some(cri::ContainerAttributes {
                id: id.into(),
                labels: labels(id),
                ..cri::ContainerAttributes::default()
            }),
            cpu: Some(cri::CpuUsage {
                timestamp: 1_000_000_000,
                usage_core_nano_seconds: value(cpu),
                ..cri::CpuUsage::default()
            }),
            memory: Some(cri::MemoryUsage {
                timestamp: 1_000_000_000,
                working_set_bytes: value(memory),
                ..cri::MemoryUsage::default()
            }),
            ..cri::ContainerStats::default()
        }
    }

    fn container(id: &str, state: cri::ContainerState) -> cri::Container {
        cri::Container {
            id: id.into(),
            state: state as i32,
            labels: labels(id),
            ..cri::Container::default()
        }
    }

    #[test]
    fn what_cri_o_tells_otherwise() {
        let interface = |name: &str, bytes: u64| cri::NetworkInterfaceUsage {
            name: name.into(),
            rx_bytes: value(bytes),
            ..cri::NetworkInterfaceUsage::default()
        };
        let told = network(
            &cri::NetworkUsage {
                default_interface: Some(interface("lo", 1)),
                interfaces: vec![interface("eth0", 2), interface("net1", 3), interface("eth0", 2)],
                ..cri::NetworkUsage::default()
            },
            "now",
        );
        assert_eq!((told.time.as_str(), told.interface.name.as_str()), ("now", "eth0"));
        let names: Vec<&str> = told.interfaces.iter().map(|i| i.name.as_str()).collect();
        assert_eq!((told.interface.rx_bytes, names), (Some(2), vec!["eth0", "net1"]));
        assert_eq!(available(&value(9_223_372_036_843_859_968)), None);
        assert_eq!(available(&value(5)), Some(5));
        let status: PodStatus = serde_json::from_value(serde_json::json!({"containerStatuses": [
            {"name": "c", "image": "docker.io/library/nginx:latest", "imageID": "", "ready": true, "restartCount": 0},
        ]}))
        .unwrap();
        for (listed, named) in [
            ("21a001f3deb4", "docker.io/library/nginx:latest"),
            ("nginx:1.2", "nginx:1.2"),
        ] {
            let mut container = ContainerStats {
                name: "c".into(),
                image: listed.into(),
                ..ContainerStats::default()
            };
            name_image(&mut container, Some(&status));
            assert_eq!(container.image, named);
        }
    }

    #[test]
    fn containers_make_a_pod() {
        use cri::ContainerState::*;
        let all = [
            stats("b", 5, 50),
            stats("a", 3, 30),
            stats("dead", 9, 90),
            stats("unknown", 1, 1),
        ];
        let containers = [
            container("a", Running),
            container("b", Running),
            container("dead", Exited),
        ];
        let summary = assemble(&[], &all, &[], &containers);
        let pod = &summary.pods[0];
        let names: Vec<&str> = pod.containers.iter().map(|c| c.name.as_str()).collect();
        assert_eq!((summary.pods.len(), names), (1, vec!["a", "b"]));
        assert_eq!(pod.cpu.as_ref().unwrap().usage_core_nano_seconds, Some(8));
        assert_eq!(pod.memory.as_ref().unwrap().working_set_bytes, Some(80));
        assert_eq!(pod.pod_ref.uid, "u");
        // What the runtime says of the pod wins.
        let own = cri::PodSandboxStats {
            attributes: Some(cri::PodSandboxAttributes {
                id: "s1".into(),
                labels: labels(""),
                ..cri::PodSandboxAttributes::default()
            }),
            linux: Some(cri::LinuxPodSandboxStats {
                memory: Some(cri::MemoryUsage {
                    working_set_bytes: value(100),
                    ..cri::MemoryUsage::default()
                }),
                ..cri::LinuxPodSandboxStats::default()
            }),
        };
        let summary = assemble(&[], &all, &[own], &containers);
        assert_eq!(summary.pods[0].memory.as_ref().unwrap().working_set_bytes, Some(100));
        assert_eq!(summary.pods[0].sandbox, "s1");
        let json = serde_json::to_value(&summary).unwrap();
        assert_eq!(json["pods"][0]["containers"][0]["cpu"]["usageCoreNanoSeconds"], 3);
    }

    #[test]
    fn swap_of_containers_is_added_up() {
        let swapping = |id: &str, used: u64| cri::ContainerStats {
            swap: Some(cri::SwapUsage {
                swap_usage_bytes: value(used),
                ..cri::SwapUsage::default()
            }),
            ..stats(id, 1, 1)
        };
        let containers = ["a", "b"].map(|id| container(id, cri::ContainerState::Running));
        let summary = assemble(&[], &[swapping("a", 2), swapping("b", 3)], &[], &containers);
        let swap = summary.pods[0].swap.as_ref().unwrap();
        assert_eq!((swap.swap_usage_bytes, swap.swap_available_bytes), (Some(5), None));
        let without = assemble(&[], &[stats("a", 1, 1)], &[], &containers);
        assert_eq!(without.pods[0].swap, None);
    }

    #[test]
    fn rates_between_askings() {
        let mut samples = HashMap::new();
        let second = 1_000_000_000;
        let mut ask = |used, at| rate(&mut samples, "c", used, at);
        assert_eq!(ask(100, 0), None);
        assert_eq!(ask(150, second / 2), None);
        assert_eq!(ask(300, 2 * second), Some(100));
        assert_eq!(ask(400, 2 * second + 1), Some(100));
        assert_eq!(ask(0, 4 * second), None, "a counter that went back");
        assert_eq!(ask(60, 34 * second), Some(2));
        assert_eq!(ask(600, 65 * second), None, "long ago");
        assert_eq!(ask(700, 66 * second), Some(100));
    }
}
