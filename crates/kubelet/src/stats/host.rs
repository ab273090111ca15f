//! Usage of the node itself, from /proc and the file systems.

use std::path::Path;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

use super::summary::{Fs, Interface, Memory, Network, Rlimit, Swap};
use crate::node::machine::meminfo_bytes;

/// Nanoseconds of CPU time that all processes have used since the machine started.
pub fn cpu_nanoseconds() -> Option<u64> {
    let usage = |path: &str| std::fs::read_to_string(path).ok();
    let v2 = usage("/sys/fs/cgroup/cpu.stat").and_then(|text| cpu_stat(&text));
    let v1 = || usage("/sys/fs/cgroup/cpuacct/cpuacct.usage")?.trim().parse().ok();
    v2.or_else(v1).or_else(|| proc_stat(&usage("/proc/stat")?))
}

fn cpu_stat(text: &str) -> Option<u64> {
    let micros = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
    micros.trim().parse::<u64>().ok()?.checked_mul(1000)
}

/// The first line: user, nice, system, idle, iowait, irq, softirq, steal in hundredths of a second.
fn proc_stat(text: &str) -> Option<u64> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let busy: u64 = [0, 1, 2, 5, 6, 7].iter().filter_map(|i| ticks.get(*i)).sum();
    (ticks.len() >= 4).then(|| busy.saturating_mul(10_000_000))
}

pub fn memory(time: &str) -> Option<Memory> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    Some(memory_of(&meminfo, time))
}

fn memory_of(meminfo: &str, time: &str) -> Memory {
    let bytes = |name| meminfo_bytes(meminfo, name);
    let total = bytes("MemTotal");
    let usage = total.saturating_sub(bytes("MemFree"));
    // As for containers: all but the pages of files that nobody has touched of late.
    let working_set = usage.saturating_sub(bytes("Inactive(file)"));
    Memory {
        time: time.to_string(),
        available_bytes: Some(total.saturating_sub(working_set)),
        usage_bytes: Some(usage),
        working_set_bytes: Some(working_set),
        rss_bytes: Some(bytes("AnonPages")),
        ..Memory::default()
    }
}

pub fn swap(time: &str) -> Option<Swap> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let (total, free) = (
        meminfo_bytes(&meminfo, "SwapTotal"),
        meminfo_bytes(&meminfo, "SwapFree"),
    );
    Some(Swap {
        time: time.to_string(),
        swap_available_bytes: Some(free),
        swap_usage_bytes: Some(total.saturating_sub(free)),
    })
}

pub fn network(time: &str) -> Option<Network> {
    let text = std::fs::read_to_string("/proc/net/dev").ok()?;
    let routes = std::fs::read_to_string("/proc/net/route").unwrap_or_default();
    Some(network_of(&text, &routes, time))
}

fn network_of(devices: &str, routes: &str, time: &str) -> Network {
    let default = routes.lines().skip(1).find_map(|line| {
        let mut words = line.split_whitespace();
        let name = words.next()?;
        (words.next()? == "00000000").then_some(name)
    });
    Network::of(time.to_string(), interfaces(devices), default.unwrap_or_default())
}

/// All lines of a `/proc/net/dev` but those of loopback and of the host's ends of containers' cables.
// Upstream: cadvisor's container/libcontainer/handler.go (isIgnoredDevice)
pub fn interfaces(devices: &str) -> Vec<Interface> {
    let ignored = |i: &Interface| {
        ["lo", "veth", "docker", "nerdctl"]
            .iter()
            .any(|p| i.name.starts_with(p))
    };
    let all = devices.lines().skip(2).filter_map(interface);
    all.filter(|interface| !ignored(interface)).collect()
}

fn interface(line: &str) -> Option<Interface> {
    let (name, numbers) = line.split_once(':')?;
    let numbers: Vec<u64> = numbers.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let number = |at: usize| numbers.get(at).copied();
    Some(Interface {
        name: name.trim().to_string(),
        rx_bytes: number(0),
        rx_packets: number(1),
        rx_errors: number(2),
        rx_dropped: number(3),
        tx_bytes: number(8),
        tx_packets: number(9),
        tx_errors: number(10),
        tx_dropped: number(11),
    })
}

/// The file system that a path is on.
pub fn file_system(path: &Path, time: &str) -> Option<Fs> {
    let fs = nix::sys::statvfs::statvfs(path).ok()?;
    let size = |blocks: u64| blocks.saturating_mul(fs.fragment_size());
    Some(Fs {
        time: time.to_string(),
        available_bytes: Some(size(fs.blocks_available())),
        capacity_bytes: Some(size(fs.blocks())),
        used_bytes: Some(size(fs.blocks().saturating_sub(fs.blocks_free()))),
        inodes_free: Some(fs.files_free()),
        inodes: Some(fs.files()),
        inodes_used: Some(fs.files().saturating_sub(fs.files_free())),
        device: String::new(),
    })
}

/// What is mounted where a path is, from the text of `/proc/self/mounts`. Of two at one place the later hides the other.
pub fn device<'a>(mounts: &'a str, path: &Path) -> Option<&'a str> {
    let places = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ');
        Some((words.next()?, words.next()?))
    });
    let around = places.filter(|(_, place)| path.starts_with(place));
    around.max_by_key(|(_, place)| place.len()).map(|(device, _)| device)
}

pub fn rlimit(time: &str) -> Option<Rlimit> {
    let max = std::fs::read_to_string("/proc/sys/kernel/pid_max").ok()?;
    let load = std::fs::read_to_string("/proc/loadavg").ok()?;
    Some(Rlimit {
        time: time.to_string(),
        maxpid: max.trim().parse().ok()?,
        curproc: processes(&load)?,
    })
}

/// `0.00 0.01 0.05 1/123 4567`: the number of processes and threads is after the slash.
fn processes(loadavg: &str) -> Option<u64> {
    loadavg.split_whitespace().nth(3)?.split_once('/')?.1.parse().ok()
}

/// What this process uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessUsage {
    pub cpu_nanoseconds: u64,
    pub resident_bytes: u64,
}

impl ProcessUsage {
    /// None if the kernel does not say.
    pub fn read() -> Option<ProcessUsage> {
        let used = getrusage(UsageWho::RUSAGE_SELF).ok()?;
        let nanos = |time: TimeVal| {
            let micros = i128::from(time.tv_sec()) * 1_000_000 + i128::from(time.tv_usec());
            u64::try_from(micros * 1000).ok()
        };
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kibibytes: u64 = resident.trim().strip_suffix(" kB")?.parse().ok()?;
        Some(ProcessUsage {
            cpu_nanoseconds: nanos(used.user_time())? + nanos(used.system_time())?,
            resident_bytes: kibibytes.checked_mul(1024)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_as_linux_writes_them() {
        assert_eq!(cpu_stat("usage_usec 1500\nuser_usec 1\n"), Some(1_500_000));
        assert_eq!(proc_stat("cpu  10 1 5 1000 7 2 3 1 0 0\ncpu0 1\n"), Some(220_000_000));
        assert_eq!(proc_stat("cpu 1"), None);
        let meminfo =
            "MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 400 kB\nInactive(file): 300 kB\nAnonPages: 50 kB\n";
        let memory = memory_of(meminfo, "t");
        assert_eq!(
            (memory.working_set_bytes, memory.usage_bytes),
            (Some(600 << 10), Some(900 << 10))
        );
        let devices = "Inter-| Receive\n face |bytes\n    lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n  \
                       eth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\nveth12: 1\n";
        let routes = "Iface Destination\neth0 00000000 0100\n";
        let network = network_of(devices, routes, "t");
        assert_eq!((network.interface.name.as_str(), network.interfaces.len()), ("eth0", 1));
        assert_eq!(
            (network.interface.tx_bytes, network.interface.rx_errors),
            (Some(9), Some(3))
        );
        assert_eq!(
            (network.interface.tx_dropped, network.interface.rx_packets),
            (Some(12), Some(2))
        );
        assert_eq!(processes("0.00 0.01 0.05 1/123 4567"), Some(123));
        assert_eq!(processes(""), None);
    }

    #[test]
    fn the_device_under_a_path() {
        let mounts = "/dev/a / ext4 rw 0 0\n/dev/b /var/lib xfs rw 0 0\n/dev/c /var/lib xfs rw 0 0\ntmpfs /var/libx tmpfs rw 0 0\n";
        for (path, expected) in [("/etc", "/dev/a"), ("/var/lib/x", "/dev/c"), ("/var/libx", "tmpfs")] {
            assert_eq!(device(mounts, Path::new(path)), Some(expected), "{path}");
        }
        assert_eq!(device("", Path::new("/")), None);
    }

    #[test]
    fn this_machine_can_be_read() {
        assert!(cpu_nanoseconds().is_some() && memory("t").is_some() && rlimit("t").is_some());
        assert!(file_system(Path::new("/"), "t").unwrap().capacity_bytes > Some(0));
    }
}
