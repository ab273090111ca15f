//! What a group uses, from its files.

use std::fs;
use std::path::Path;

use super::{Group, Version};

/// Memory in bytes and faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemoryCounters {
    pub usage: u64,
    /// Without what the kernel could drop at once: files that were not used lately.
    pub working_set: u64,
    pub rss: u64,
    pub page_faults: u64,
    pub major_page_faults: u64,
    /// `None`: unlimited.
    pub limit: Option<u64>,
    pub swap: Option<u64>,
    pub swap_limit: Option<u64>,
}

/// How long tasks waited for a resource: some of them, and all at once.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Pressure {
    pub some: PressureLine,
    pub full: PressureLine,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PressureLine {
    /// Microseconds.
    pub total: u64,
    /// Percent of the last 10, 60 and 300 seconds.
    pub averages: [f64; 3],
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Usage {
    pub cpu_ns: Option<u64>,
    pub memory: Option<MemoryCounters>,
    pub processes: Option<u64>,
    /// Only with version 2, and where the kernel counts it.
    pub cpu_pressure: Option<Pressure>,
    pub memory_pressure: Option<Pressure>,
    pub io_pressure: Option<Pressure>,
}

/// Version 1 shows a limit near this where there is none.
const UNLIMITED_V1: u64 = 1 << 62;

impl Group<'_> {
    /// Blocking, but the files are the kernel's memory.
    pub(crate) fn usage(&self) -> Usage {
        match self.hierarchies.version {
            Version::V1 => self.usage_v1(),
            Version::V2 => self.usage_v2(),
        }
    }

    fn usage_v1(&self) -> Usage {
        let dir = |controller| self.hierarchies.dir(controller, self.path);
        Usage {
            cpu_ns: dir("cpuacct").and_then(|dir| number(&dir, "cpuacct.usage")),
            memory: dir("memory").and_then(|dir| memory_v1(&dir)),
            processes: dir("pids").and_then(|dir| number(&dir, "pids.current")),
            ..Usage::default()
        }
    }

    fn usage_v2(&self) -> Usage {
        let Some(dir) = self.hierarchies.dir("", self.path) else {
            return Usage::default();
        };
        Usage {
            cpu_ns: field(&read(&dir, "cpu.stat"), "usage_usec").map(|us| us * 1000),
            memory: memory_v2(&dir),
            processes: number(&dir, "pids.current"),
            cpu_pressure: parse_pressure(&read(&dir, "cpu.pressure")),
            memory_pressure: parse_pressure(&read(&dir, "memory.pressure")),
            io_pressure: parse_pressure(&read(&dir, "io.pressure")),
        }
    }
}

/// Two lines such as `some avg10=0.12 avg60=0.00 avg300=0.00 total=1234`; older kernels have no `full` for CPUs.
fn parse_pressure(text: &str) -> Option<Pressure> {
    let line = |name: &str| {
        let fields = text.lines().find_map(|line| line.strip_prefix(name))?;
        let value = |key: &str| {
            fields
                .split_whitespace()
                .find_map(|field| field.strip_prefix(key)?.strip_prefix('='))
        };
        let average = |key: &str| value(key)?.parse().ok();
        Some(PressureLine {
            total: value("total")?.parse().ok()?,
            averages: [average("avg10")?, average("avg60")?, average("avg300")?],
        })
    };
    Some(Pressure {
        some: line("some ")?,
        full: line("full ").unwrap_or_default(),
    })
}

fn memory_v1(dir: &Path) -> Option<MemoryCounters> {
    let usage = number(dir, "memory.usage_in_bytes")?;
    let stat = read(dir, "memory.stat");
    let of = |name| field(&stat, name).unwrap_or(0);
    let limited = |file| number(dir, file).filter(|limit| *limit < UNLIMITED_V1);
    let with_swap = number(dir, "memory.memsw.usage_in_bytes");
    let limit = limited("memory.limit_in_bytes");
    Some(MemoryCounters {
        usage,
        working_set: usage.saturating_sub(of("total_inactive_file")),
        rss: of("total_rss"),
        page_faults: of("total_pgfault"),
        major_page_faults: of("total_pgmajfault"),
        limit,
        swap: with_swap.map(|both| both.saturating_sub(usage)),
        swap_limit: limited("memory.memsw.limit_in_bytes")
            .zip(limit)
            .map(|(both, memory)| both.saturating_sub(memory)),
    })
}

fn memory_v2(dir: &Path) -> Option<MemoryCounters> {
    let usage = number(dir, "memory.current")?;
    let stat = read(dir, "memory.stat");
    let of = |name| field(&stat, name).unwrap_or(0);
    Some(MemoryCounters {
        usage,
        working_set: usage.saturating_sub(of("inactive_file")),
        rss: of("anon"),
        page_faults: of("pgfault"),
        major_page_faults: of("pgmajfault"),
        limit: number(dir, "memory.max"),
        swap: number(dir, "memory.swap.current"),
        swap_limit: number(dir, "memory.swap.max"),
    })
}

fn read(dir: &Path, file: &str) -> String {
    fs::read_to_string(dir.join(file)).unwrap_or_default()
}

/// `None` also for `max`.
fn number(dir: &Path, file: &str) -> Option<u64> {
    read(dir, file).trim().parse().ok()
}

fn field(text: &str, name: &str) -> Option<u64> {
    let value = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok();
    text.lines().find_map(value)
}

#[cfg(test)]
mod tests {
    use super::super::Hierarchies;
    use super::*;

    #[test]
    fn usage_of_version_2() {
        let dir = tempfile::tempdir().unwrap();
        for (file, text) in [
            ("cgroup.controllers", "cpu memory pids"),
            ("g/cpu.stat", "usage_usec 12\nuser_usec 3\n"),
            ("g/memory.current", "1000\n"),
            (
                "g/memory.stat",
                "anon 300\nfile 5\ninactive_file 400\npgfault 7\npgmajfault 2\n",
            ),
            ("g/memory.max", "max\n"),
            ("g/pids.current", "3\n"),
            (
                "g/cpu.pressure",
                "some avg10=1.50 avg60=0.25 avg300=0.00 total=77\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=5\n",
            ),
        ] {
            fs::create_dir_all(dir.path().join("g")).unwrap();
            fs::write(dir.path().join(file), text).unwrap();
        }
        let hierarchies = Hierarchies::detect(dir.path()).unwrap();
        let usage = Group {
            hierarchies: &hierarchies,
            path: "/g",
        }
        .usage();
        assert_eq!(usage.cpu_ns, Some(12_000));
        assert_eq!(usage.processes, Some(3));
        let pressure = usage.cpu_pressure.unwrap();
        assert_eq!((pressure.some.total, pressure.full.total), (77, 5));
        assert_eq!(pressure.some.averages, [1.5, 0.25, 0.0]);
        assert_eq!(usage.io_pressure, None);
        let memory = usage.memory.unwrap();
        assert_eq!((memory.usage, memory.working_set, memory.rss), (1000, 600, 300));
        assert_eq!(
            (memory.page_faults, memory.major_page_faults, memory.limit),
            (7, 2, None)
        );
    }
}
