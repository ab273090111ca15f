//! Usage by cgroup: of pods, of the kubelet itself, and of everything for cAdvisor's metrics. Files only; blocking.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use orlop_api::types::core::Pod;
use orlop_base::clock::rfc3339;

use super::host;
use super::summary::*;
use crate::cgroups::{Cgroups, Counters, Tree};
use crate::spec::{CgroupVersion, is_host_network, uid};

/// What a pod's network is called on the inside, nearly always.
pub const DEFAULT_INTERFACE: &str = "eth0";

/// One row of cAdvisor's: a group with what is known of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// The group's path.
    pub id: String,
    /// The runtime's id of the container or sandbox; empty for other groups, as are the names they lack.
    pub name: String,
    pub image: String,
    pub container: String,
    pub namespace: String,
    pub pod: String,
    /// In milliseconds.
    pub at: Option<i64>,
    pub started_seconds: Option<f64>,
    pub counters: Counters,
    pub processes: Option<u64>,
    pub layer: Option<Fs>,
    pub interfaces: Vec<Interface>,
}

/// A pod's group, and those in it by the runtime's ids.
struct PodGroups {
    group: String,
    parts: HashMap<String, String>,
    has_own_network: bool,
}

/// Where the pods of a summary are in the tree, by uid.
pub struct Groups<'a> {
    cgroups: &'a Cgroups,
    pods: HashMap<&'a str, PodGroups>,
}

impl<'a> Groups<'a> {
    /// Looks into each pod's group once.
    pub fn find(cgroups: &'a Cgroups, pods: &'a [Arc<Pod>]) -> Groups<'a> {
        let with_group = pods.iter().map(|pod| (pod, cgroups.pod_group(pod)));
        let found = with_group.filter(|(_, group)| !group.is_empty()).map(|(pod, group)| {
            let names = cgroups.tree().names_below(&group);
            let part = |name: &String| Some((runtime_id(name)?.to_string(), format!("{group}/{name}")));
            let parts = names.iter().filter_map(part).collect();
            let has_own_network = !is_host_network(pod);
            let groups = PodGroups {
                group,
                parts,
                has_own_network,
            };
            (uid(pod), groups)
        });
        Groups {
            pods: found.collect(),
            cgroups,
        }
    }

    fn tree(&self) -> &Tree {
        self.cgroups.tree()
    }

    /// All interfaces of the pods, as their processes see them: few runtimes report more than one.
    pub fn add_networks(&self, summary: &mut Summary, proc: &Path, time: &str) {
        for pod in &mut summary.pods {
            let groups = self.pods.get(pod.pod_ref.uid.as_str());
            let Some(groups) = groups.filter(|groups| groups.has_own_network) else {
                continue;
            };
            // Any process will do. The sandbox's is there as long as the pod's network.
            let ids = [&pod.sandbox].into_iter().chain(pod.containers.iter().map(|c| &c.id));
            let pids = ids.filter_map(|id| self.tree().own_pids(groups.parts.get(id)?)?.first().copied());
            let mut seen = pids.filter_map(|pid| std::fs::read_to_string(proc.join(format!("{pid}/net/dev"))).ok());
            if let Some(devices) = seen.next() {
                pod.network = Some(Network::of(
                    time.to_string(),
                    host::interfaces(&devices),
                    DEFAULT_INTERFACE,
                ));
            }
        }
    }

    /// The rows of a pod: its own group, its containers, and its sandbox with the network.
    fn rows_of_pod(&self, pod: &PodStats, now: Timestamp) -> Vec<Row> {
        let groups = self.pods.get(pod.pod_ref.uid.as_str());
        let own = groups.and_then(|groups| self.row_of_group(&groups.group, now));
        let part = |id: &str| groups.and_then(|groups| groups.parts.get(id));
        let mut rows: Vec<Row> = own.into_iter().collect();
        for container in &pod.containers {
            let mut row = row_of_container(container);
            if let Some(group) = part(&container.id) {
                self.overlay(&mut row, group, now);
            }
            rows.push(row);
        }
        // Where a sandbox is no process of its own it has no group; it is found below its pod's all the same.
        let below_pod = || groups.map(|groups| format!("{}/{}", groups.group, pod.sandbox));
        rows.extend(row_of_sandbox(pod, part(&pod.sandbox).cloned().or_else(below_pod)));
        rows
    }

    fn row_of_group(&self, group: &str, now: Timestamp) -> Option<Row> {
        Some(Row {
            id: group.to_string(),
            at: Some(now.as_millisecond()),
            started_seconds: self.tree().created(group).and_then(seconds),
            counters: self.tree().counters(group)?,
            ..Row::default()
        })
    }

    /// The kernel's counters of a container are newer and more complete than the runtime's.
    fn overlay(&self, row: &mut Row, group: &str, now: Timestamp) {
        let Some(counters) = self.tree().counters(group) else {
            return;
        };
        row.id = group.to_string();
        row.at = Some(now.as_millisecond());
        row.counters = counters;
        row.processes = self.tree().own_pids(group).map(|pids| pids.len() as u64);
    }
}

/// The whole picture: the machine, the groups that pods share, the pods, their containers. `groups` is none where pods have
/// none; then the runtime's stats are used.
pub fn rows(summary: &Summary, groups: Option<&Groups>, now: Timestamp) -> Vec<Row> {
    let mut rows = vec![root(summary, groups.map(Groups::tree), now)];
    if let Some(groups) = groups {
        let shared = groups.cgroups.shared_groups();
        rows.extend(shared.iter().filter_map(|group| groups.row_of_group(group, now)));
    }
    for pod in &summary.pods {
        let own = match groups {
            Some(groups) => groups.rows_of_pod(pod, now),
            None => {
                let containers = pod.containers.iter().map(row_of_container);
                containers.chain(row_of_sandbox(pod, None)).collect()
            }
        };
        rows.extend(own.into_iter().map(|row| Row {
            namespace: pod.pod_ref.namespace.clone(),
            pod: pod.pod_ref.name.clone(),
            ..row
        }));
    }
    rows
}

/// The group of all. Version 2 does not count its memory: the machine's is it.
fn root(summary: &Summary, tree: Option<&Tree>, now: Timestamp) -> Row {
    let node = &summary.node;
    let told = told(node.cpu.as_ref(), node.memory.as_ref(), node.swap.as_ref());
    let counted = tree.and_then(|tree| tree.counters("/")).unwrap_or_default();
    let started = node.start_time.parse::<Timestamp>().ok();
    Row {
        id: "/".to_string(),
        at: Some(now.as_millisecond()),
        started_seconds: started.map(|time| time.as_second() as f64),
        counters: Counters {
            cpu_ns: told.cpu_ns.or(counted.cpu_ns),
            memory: told.memory.or(counted.memory),
            memory_working_set: told.memory_working_set.or(counted.memory_working_set),
            memory_rss: counted.memory_rss.or(told.memory_rss),
            memory_swap: counted.memory_swap.or(told.memory_swap),
            ..counted
        },
        interfaces: node.network.iter().flat_map(|n| n.interfaces.clone()).collect(),
        ..Row::default()
    }
}

fn row_of_container(container: &ContainerStats) -> Row {
    let (cpu, memory) = (container.cpu.as_ref(), container.memory.as_ref());
    let time = cpu.map(|cpu| &cpu.time).or(memory.map(|memory| &memory.time));
    let time = time.and_then(|time| time.parse::<Timestamp>().ok());
    Row {
        id: container.id.clone(),
        name: container.id.clone(),
        image: container.image.clone(),
        container: container.name.clone(),
        at: time.map(|time| time.as_millisecond()),
        started_seconds: Some(container.started_seconds),
        counters: told(cpu, memory, container.swap.as_ref()),
        layer: container.rootfs.clone(),
        ..Row::default()
    }
}

/// The network is the sandbox's; its container has nothing else that anybody would look for.
fn row_of_sandbox(pod: &PodStats, group: Option<String>) -> Option<Row> {
    let network = pod.network.as_ref()?;
    let time = network.time.parse::<Timestamp>().ok();
    Some(Row {
        id: group.unwrap_or_else(|| pod.sandbox.clone()),
        name: pod.sandbox.clone(),
        at: time.map(|time| time.as_millisecond()),
        interfaces: network.interfaces.clone(),
        ..Row::default()
    })
}

/// The runtime's stats.
fn told(cpu: Option<&Cpu>, memory: Option<&Memory>, swap: Option<&Swap>) -> Counters {
    Counters {
        cpu_ns: cpu.and_then(|cpu| cpu.usage_core_nano_seconds),
        memory: memory.and_then(|memory| memory.usage_bytes),
        memory_working_set: memory.and_then(|memory| memory.working_set_bytes),
        memory_rss: memory.and_then(|memory| memory.rss_bytes),
        memory_swap: swap.and_then(|swap| swap.swap_usage_bytes),
        page_faults: memory.and_then(|memory| memory.page_faults),
        major_page_faults: memory.and_then(|memory| memory.major_page_faults),
        ..Counters::default()
    }
}

/// The id in the name that a runtime gives a group: `<id>`, `cri-containerd-<id>.scope`, `crio-<id>.scope`. What watches
/// over a container (`crio-conmon-<id>.scope`) is not the container.
fn runtime_id(group: &str) -> Option<&str> {
    let name = group.strip_suffix(".scope").unwrap_or(group);
    let (before, id) = name.rsplit_once('-').unwrap_or(("", name));
    (!before.ends_with("conmon")).then_some(id)
}

fn seconds(time: SystemTime) -> Option<f64> {
    Some(time.duration_since(UNIX_EPOCH).ok()?.as_secs() as f64)
}

/// Swap usage of whole pods: no runtime reports it.
pub fn add_swap(cgroups: &Cgroups, pods: &[Arc<Pod>], summary: &mut Summary, time: &str) {
    let by_uid: HashMap<&str, &Arc<Pod>> = pods.iter().map(|pod| (uid(pod), pod)).collect();
    for pod in &mut summary.pods {
        let group = by_uid.get(pod.pod_ref.uid.as_str()).map(|pod| cgroups.pod_group(pod));
        let Some(group) = group.filter(|group| !group.is_empty()) else {
            continue;
        };
        if let Some((used, limit)) = cgroups.tree().swap(&group) {
            pod.swap = Some(swap(used, limit, time));
        }
    }
}

fn swap(used: u64, limit: Option<u64>, time: &str) -> Swap {
    Swap {
        time: time.to_string(),
        swap_available_bytes: limit.map(|limit| limit.saturating_sub(used)),
        swap_usage_bytes: Some(used),
    }
}

/// All pods together, and this kubelet, if it has a group to itself. `own` is the text of `/proc/self/cgroup`.
// Upstream: pkg/kubelet/server/stats/summary_sys_containers.go (v1.36)
pub fn system_containers(cgroups: &Cgroups, own: &str, started: Timestamp, now: Timestamp) -> Vec<ContainerStats> {
    let tree = cgroups.tree();
    let of_agent = own_group(own, tree.version()).map(|group| (KUBELET, group, Some(started)));
    let of_pods = cgroups
        .shared_groups()
        .into_iter()
        .next()
        .map(|group| (PODS, group, None));
    let one = |(name, group, started): (&str, String, Option<Timestamp>)| {
        let made = || Timestamp::try_from(tree.created(&group)?).ok();
        let counters = tree.counters(&group)?;
        let swap = tree.swap(&group);
        Some(ContainerStats {
            name: name.to_string(),
            start_time: started.or_else(made).map(rfc3339).unwrap_or_default(),
            swap: swap.map(|(used, limit)| self::swap(used, limit, &rfc3339(now))),
            ..of_counters(&counters, &rfc3339(now))
        })
    };
    of_agent.into_iter().chain(of_pods).filter_map(one).collect()
}

fn of_counters(counters: &Counters, time: &str) -> ContainerStats {
    let time = time.to_string();
    let limit = counters.memory_limit.filter(|limit| *limit > 0);
    let room = limit.zip(counters.memory_working_set);
    let memory = counters.memory.map(|usage| Memory {
        time: time.clone(),
        available_bytes: room.map(|(limit, used)| limit.saturating_sub(used)),
        usage_bytes: Some(usage),
        working_set_bytes: counters.memory_working_set,
        rss_bytes: counters.memory_rss,
        page_faults: counters.page_faults,
        major_page_faults: counters.major_page_faults,
    });
    ContainerStats {
        cpu: counters.cpu_ns.map(|used| Cpu {
            time,
            usage_core_nano_seconds: Some(used),
            ..Cpu::default()
        }),
        memory,
        ..ContainerStats::default()
    }
}

/// The group of a process, where its CPU and memory are counted together and apart from all others'.
// Upstream: pkg/kubelet/cm/container_manager_linux.go (getContainer)
fn own_group(text: &str, version: CgroupVersion) -> Option<String> {
    let group = |controller: &str| {
        text.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, group) = rest.split_once(':')?;
            controllers.split(',').any(|c| c == controller).then_some(group)
        })
    };
    let found = match version {
        CgroupVersion::V2 => group(""),
        CgroupVersion::V1 => group("cpu").filter(|cpu| group("memory") == Some(cpu)),
    };
    found.filter(|group| *group != "/").map(str::to_string)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;
    use crate::spec::NodeFacts;
    use crate::spec::testing::pod;

    /// A tree of version 2 in a directory: files with their text.
    fn fake(files: &[(&str, &str)]) -> (tempfile::TempDir, Cgroups) {
        let dir = tempfile::tempdir().unwrap();
        for (file, text) in [("cgroup.controllers", "cpu memory pids\n")].iter().chain(files) {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let tree = Tree::at(dir.path()).unwrap();
        (dir, Cgroups::new(tree, Arc::new(NodeFacts::default())))
    }

    fn summary() -> Summary {
        Summary {
            node: NodeStats {
                memory: Some(Memory {
                    working_set_bytes: Some(500),
                    ..Memory::default()
                }),
                ..NodeStats::default()
            },
            pods: vec![PodStats {
                pod_ref: PodRef {
                    name: "web".into(),
                    namespace: "default".into(),
                    uid: "u-1".into(),
                },
                containers: vec![ContainerStats {
                    name: "c".into(),
                    id: "abc".into(),
                    image: "busybox".into(),
                    started_seconds: 7.0,
                    memory: Some(Memory {
                        time: "2026-01-01T00:00:00Z".into(),
                        usage_bytes: Some(1),
                        ..Memory::default()
                    }),
                    ..ContainerStats::default()
                }],
                sandbox: "def".into(),
                ..PodStats::default()
            }],
        }
    }

    const DEVICES: &str = "Inter-| Receive\n face |bytes\n lo: 1 1 1 1 0 0 0 0 1 1 1 1\n net1: 1 2 3 4 0 0 0 0 5 6 7 8\n \
                           eth0: 11 12 13 14 0 0 0 0 15 16 17 18\n";
    const FILES: &[(&str, &str)] = &[
        ("cpu.stat", "usage_usec 9\n"),
        ("kubepods/cpu.stat", "usage_usec 8\n"),
        ("kubepods/memory.current", "300\n"),
        ("kubepods/memory.max", "1000\n"),
        ("kubepods/memory.swap.current", "4\n"),
        ("kubepods/besteffort/podu-1/cpu.stat", "usage_usec 7\n"),
        ("kubepods/besteffort/podu-1/memory.swap.current", "3\n"),
        ("kubepods/besteffort/podu-1/memory.swap.max", "10\n"),
        ("kubepods/besteffort/podu-1/abc/memory.current", "200\n"),
        ("kubepods/besteffort/podu-1/abc/cgroup.procs", "42\n43\n"),
        ("kubepods/besteffort/podu-1/def/cgroup.procs", "41\n"),
        ("agent.slice/cpu.stat", "usage_usec 6\n"),
    ];

    #[test]
    fn names_of_groups() {
        for (group, id) in [
            ("abc", Some("abc")),
            ("cri-containerd-abc.scope", Some("abc")),
            ("crio-abc.scope", Some("abc")),
            ("crio-abc", Some("abc")),
            ("crio-conmon-abc.scope", None),
        ] {
            assert_eq!(runtime_id(group), id, "{group}");
        }
    }

    #[test]
    fn rows_from_the_machine_down() {
        let (_dir, cgroups) = fake(FILES);
        let pods = [Arc::new(pod(json!({})))];
        let (mut summary, now) = (summary(), Timestamp::from_second(5).unwrap());
        summary.pods[0].network = Some(Network::of("t".into(), host::interfaces(DEVICES), DEFAULT_INTERFACE));
        let all = rows(&summary, Some(&Groups::find(&cgroups, &pods)), now);
        let shown: Vec<String> = all
            .iter()
            .map(|r| format!("{} {} {} {} {}", r.id, r.pod, r.container, r.name, r.image))
            .collect();
        let expected = [
            "/    ",
            "/kubepods    ",
            "/kubepods/besteffort    ",
            "/kubepods/besteffort/podu-1 web   ",
            "/kubepods/besteffort/podu-1/abc web c abc busybox",
            "/kubepods/besteffort/podu-1/def web  def ",
        ];
        assert_eq!(shown, expected);
        // Version 2 does not count the memory of all.
        assert_eq!(all[0].counters.memory_working_set, Some(500));
        assert_eq!(
            (all[0].counters.cpu_ns, all[3].counters.cpu_ns),
            (Some(9000), Some(7000))
        );
        // The kernel's counters win, and missing files change nothing.
        let container = &all[4];
        assert_eq!(
            (container.counters.memory, container.counters.cpu_ns),
            (Some(200), None)
        );
        assert_eq!((container.processes, container.at), (Some(2), Some(5000)));
        assert_eq!(all[5].interfaces.len(), 2);
        assert!(all[..5].iter().all(|row| row.interfaces.is_empty()));
    }

    #[test]
    fn without_groups_the_runtime_is_believed() {
        let all = rows(&summary(), None, Timestamp::UNIX_EPOCH);
        assert_eq!(
            (all.len(), all[1].id.as_str(), all[1].counters.memory),
            (2, "abc", Some(1))
        );
        assert_eq!(all[1].at, Some(1_767_225_600_000));
    }

    #[test]
    fn networks_as_processes_see_them() {
        let (dir, cgroups) = fake(FILES);
        let proc = dir.path().join("proc");
        fs::create_dir_all(proc.join("41/net")).unwrap();
        fs::write(proc.join("41/net/dev"), DEVICES).unwrap();
        let mut own = summary();
        let pods = [Arc::new(pod(json!({})))];
        Groups::find(&cgroups, &pods).add_networks(&mut own, &proc, "t");
        let network = own.pods[0].network.as_ref().unwrap();
        let names: Vec<&str> = network.interfaces.iter().map(|i| i.name.as_str()).collect();
        assert_eq!((network.interface.name.as_str(), names), ("eth0", vec!["net1", "eth0"]));
        assert_eq!(
            (network.interface.rx_packets, network.interface.tx_dropped),
            (Some(12), Some(18))
        );
        // The node's network is no pod's.
        let mut host = summary();
        let pods = [Arc::new(pod(json!({"hostNetwork": true})))];
        Groups::find(&cgroups, &pods).add_networks(&mut host, &proc, "t");
        assert_eq!(host.pods[0].network, None);
    }

    #[test]
    fn pods_and_the_agent_as_wholes() {
        let (_dir, cgroups) = fake(FILES);
        let pods = [Arc::new(pod(json!({})))];
        let mut summary = summary();
        add_swap(&cgroups, &pods, &mut summary, "t");
        assert_eq!(summary.pods[0].swap, Some(swap(3, Some(10), "t")));
        let now = Timestamp::from_second(5).unwrap();
        let all = system_containers(&cgroups, "0::/agent.slice\n", Timestamp::UNIX_EPOCH, now);
        let shown: Vec<(&str, Option<u64>)> = all
            .iter()
            .map(|c| (c.name.as_str(), c.cpu.as_ref().unwrap().usage_core_nano_seconds))
            .collect();
        assert_eq!(shown, [("kubelet", Some(6000)), ("pods", Some(8000))]);
        assert_eq!(all[0].start_time, "1970-01-01T00:00:00Z");
        let memory = all[1].memory.as_ref().unwrap();
        assert_eq!((memory.usage_bytes, memory.available_bytes), (Some(300), Some(700)));
        assert_eq!(all[1].swap.as_ref().unwrap().swap_usage_bytes, Some(4));
        // Where the kubelet shares a group with everything, that says nothing of it.
        assert_eq!(system_containers(&cgroups, "0::/\n", now, now).len(), 1);
    }

    #[test]
    fn the_group_of_a_process() {
        use CgroupVersion::{V1, V2};
        for (text, version, expected) in [
            ("0::/a.slice\n", V2, Some("/a.slice")),
            ("0::/\n", V2, None),
            ("4:memory:/a\n2:cpu,cpuacct:/a\n0::/\n", V1, Some("/a")),
            ("4:memory:/a\n2:cpu,cpuacct:/b\n", V1, None),
            ("", V1, None),
        ] {
            assert_eq!(own_group(text, version).as_deref(), expected, "{text}");
        }
    }
}
