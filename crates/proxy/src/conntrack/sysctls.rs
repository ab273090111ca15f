//! The kernel's limits for connection tracking, as a KubeProxyConfiguration has them.

use std::fs;
use std::io;
use std::path::Path;

use crate::config::Conntrack;

/// No machine gets more than this by its number of cores: each flow takes memory.
const MOST: u64 = 1 << 20;

/// A value in a file of the kernel's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sysctl {
    /// From the root.
    pub path: &'static str,
    pub value: u64,
    /// More is right too.
    pub is_least: bool,
}

/// What a configuration asks for on a machine with so many cores.
pub fn sysctls(config: &Conntrack, cores: usize) -> Vec<Sysctl> {
    let set = |path, value| Sysctl {
        path,
        value,
        is_least: false,
    };
    let mut wanted = vec![];
    if config.max_per_core > 0 {
        let scaled = u64::from(config.max_per_core) * cores as u64;
        let most = if scaled > MOST {
            MOST
        } else {
            scaled.max(u64::from(config.min))
        };
        wanted.push(set("proc/sys/net/netfilter/nf_conntrack_max", most));
        // Up to four flows in each list of the table.
        wanted.push(Sysctl {
            is_least: true,
            ..set("sys/module/nf_conntrack/parameters/hashsize", most / 4)
        });
    }
    let timeouts = [
        (
            "proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established",
            config.tcp_established_timeout,
        ),
        (
            "proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait",
            config.tcp_close_wait_timeout,
        ),
        ("proc/sys/net/netfilter/nf_conntrack_udp_timeout", config.udp_timeout),
        (
            "proc/sys/net/netfilter/nf_conntrack_udp_timeout_stream",
            config.udp_stream_timeout,
        ),
    ];
    let given = timeouts.into_iter().filter(|(_, timeout)| !timeout.is_zero());
    wanted.extend(given.map(|(path, timeout)| set(path, timeout.as_secs())));
    if config.tcp_be_liberal {
        wanted.push(set("proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal", 1));
    }
    wanted
}

/// Writes what differs; what can't be written is said, and the rest done.
pub fn apply(root: &Path, wanted: &[Sysctl]) -> Vec<String> {
    let mut problems = vec![];
    for sysctl in wanted {
        let path = root.join(sysctl.path);
        let found = fs::read_to_string(&path)
            .ok()
            .and_then(|text| text.trim().parse::<u64>().ok());
        let is_right = |found: u64| found == sysctl.value || (sysctl.is_least && found > sysctl.value);
        if found.is_some_and(is_right) {
            continue;
        }
        let written = fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .and_then(|mut file| io::Write::write_all(&mut file, sysctl.value.to_string().as_bytes()));
        match written {
            Ok(()) => tracing::info!(path = %path.display(), value = sysctl.value, "set sysctl"),
            // Of the whole machine, and read-only in namespaces of it: a higher limit does no harm.
            Err(e)
                if e.kind() == io::ErrorKind::PermissionDenied
                    && sysctl.path.ends_with("nf_conntrack_max")
                    && found.is_some_and(|found| found > sysctl.value) => {}
            Err(e) => {
                let (path, value) = (path.display(), sysctl.value);
                let now = found.map_or("unknown".to_string(), |found| found.to_string());
                problems.push(format!("failed to set {path} to {value} (current value: {now}): {e}"));
            }
        }
    }
    problems
}

/// How many cores the machine has, whatever part of them this process may use.
pub fn cores() -> usize {
    let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    match count(&online) {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        found => found,
    }
}

/// The numbers in `0-3,6`.
fn count(list: &str) -> usize {
    let range = |text: &str| -> Option<usize> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        Some((last + 1).saturating_sub(first))
    };
    list.trim().split(',').filter_map(range).sum()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::Config;

    fn text(wanted: &[Sysctl]) -> Vec<String> {
        let name = |path: &str| path.rsplit('/').next().unwrap().to_string();
        wanted
            .iter()
            .map(|sysctl| format!("{}={}", name(sysctl.path), sysctl.value))
            .collect()
    }

    #[test]
    fn limits_follow_the_configuration_and_the_cores() {
        let config = Config::default().conntrack;
        let defaults = [
            "nf_conntrack_max=131072",
            "hashsize=32768",
            "nf_conntrack_tcp_timeout_established=86400",
            "nf_conntrack_tcp_timeout_close_wait=3600",
        ];
        assert_eq!(text(&sysctls(&config, 2)), defaults);
        assert_eq!(text(&sysctls(&config, 16))[0], "nf_conntrack_max=524288");
        assert_eq!(text(&sysctls(&config, 64))[0], "nf_conntrack_max=1048576");
        let other = Conntrack {
            max_per_core: 0,
            tcp_be_liberal: true,
            tcp_established_timeout: Duration::ZERO,
            udp_timeout: Duration::from_secs(40),
            udp_stream_timeout: Duration::from_secs(90),
            ..config
        };
        let wanted = [
            "nf_conntrack_tcp_timeout_close_wait=3600",
            "nf_conntrack_udp_timeout=40",
            "nf_conntrack_udp_timeout_stream=90",
            "nf_conntrack_tcp_be_liberal=1",
        ];
        assert_eq!(text(&sysctls(&other, 2)), wanted);
    }

    #[test]
    fn only_what_differs_is_written() {
        let root = tempfile::tempdir().unwrap();
        let file = |name: &str, value: &str| fs::write(root.path().join(name), value).unwrap();
        let sysctl = |path, value, is_least| Sysctl { path, value, is_least };
        file("same", "5\n");
        file("other", "4\n");
        file("more", "9\n");
        let wanted = [
            sysctl("same", 5, false),
            sysctl("other", 5, false),
            sysctl("more", 5, true),
            sysctl("missing", 5, false),
        ];
        let problems = apply(root.path(), &wanted);
        assert_eq!(problems.len(), 1);
        assert!(
            problems[0].contains("missing to 5 (current value: unknown)"),
            "{problems:?}"
        );
        let read = |name: &str| fs::read_to_string(root.path().join(name)).unwrap();
        // The kernel's files take a value whole; a plain one keeps what was behind it.
        assert_eq!(
            (read("same"), read("other"), read("more")),
            ("5\n".into(), "5\n".into(), "9\n".into())
        );
    }

    #[test]
    fn cores_are_counted() {
        assert_eq!((count("0-3,6\n"), count("0"), count("")), (5, 1, 0));
        assert!(cores() > 0);
    }
}
