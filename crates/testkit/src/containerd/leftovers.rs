//! What containers are made of, counted and taken away.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::Containerd;
use crate::wait::eventually;

/// What is there of pods, in numbers. The default is how it should be in the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leftovers {
    pub sandboxes: usize,
    pub containers: usize,
    /// Root file systems, shared memory, network namespaces.
    pub mounts: usize,
    /// Of containers; those of pods are made by the agent, which gives them the pod's uid.
    pub cgroups: usize,
    pub network_namespaces: usize,
    /// Masquerading and host ports.
    pub network_rules: usize,
}

pub(crate) fn count(containerd: &Containerd) -> Leftovers {
    let kinds = |kind: &str| {
        let listed = containerd.ctr(&format!(
            "containers list --quiet 'labels.\"io.cri-containerd.kind\"=={kind}'"
        ));
        listed.ok().lines().count()
    };
    let ids = containerd.ids();
    Leftovers {
        sandboxes: kinds("sandbox"),
        containers: kinds("container"),
        mounts: mounts(containerd.path()).len(),
        cgroups: cgroups(&ids).len(),
        network_namespaces: entries(&containerd.path().join("state/io.containerd.grpc.v1.cri/netns")).len(),
        network_rules: network_rules(&ids).len(),
    }
}

/// Mount points under a directory, the innermost first.
pub(crate) fn mounts(directory: &Path) -> Vec<PathBuf> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = table
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(PathBuf::from);
    let mut found: Vec<PathBuf> = points.filter(|point| point.starts_with(directory)).collect();
    found.reverse();
    found
}

pub(crate) fn entries(directory: &Path) -> Vec<PathBuf> {
    let read = std::fs::read_dir(directory).into_iter().flatten();
    read.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

/// The cgroups whose name ends with one of these ids, the innermost first.
fn cgroups(ids: &[String]) -> Vec<PathBuf> {
    cgroups_where(|name| ids.iter().any(|id| name.ends_with(id.as_str())))
}

/// The cgroups with such a name, the innermost first.
pub(crate) fn cgroups_where(is_wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let mut found = vec![];
    let mut pending = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(directory) = pending.pop() {
        for path in entries(&directory)
            .into_iter()
            .filter(|p| p.is_dir() && !p.is_symlink())
        {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let name = name.strip_suffix(".scope").unwrap_or(&name);
            if is_wanted(name) {
                found.push(path.clone());
            }
            pending.push(path);
        }
    }
    found.reverse();
    found
}

/// Ends processes and takes away mounts, cgroups and network rules, after containerd itself has ended.
pub(crate) fn take_away(directory: &Path, ids: &[String]) {
    let cgroups = cgroups(ids);
    for shim in shims(directory) {
        let _ = kill(shim, Signal::SIGKILL);
    }
    for cgroup in &cgroups {
        for process in processes(cgroup) {
            let _ = kill(process, Signal::SIGKILL);
        }
    }
    eventually("killed processes are gone", || {
        cgroups.iter().all(|c| processes(c).is_empty()).then_some(())
    });
    for cgroup in &cgroups {
        drop(std::fs::remove_dir(cgroup));
    }
    remove_network_rules(ids);
    unmount(directory);
}

/// Takes away what is mounted under a directory.
pub(crate) fn unmount(directory: &Path) {
    for mount in mounts(directory) {
        drop(
            Command::new("umount")
                .arg("--lazy")
                .arg(mount)
                .stderr(Stdio::null())
                .status(),
        );
    }
}

/// The rules that name one of these ids, as `iptables` shows them: `-A CHAIN …`.
fn network_rules(ids: &[String]) -> Vec<String> {
    let output = Command::new("iptables")
        .args(["--wait", "--table", "nat", "--list-rules"])
        .output();
    let text = output
        .map(|o| String::from_utf8_lossy(&o.stdout).into_owned())
        .unwrap_or_default();
    let named = text
        .lines()
        .filter(|line| ids.iter().any(|id| line.contains(id.as_str())));
    named.map(str::to_string).collect()
}

/// Rules go first, then the chains that CNI's plugins made for them and that nothing leads to any more.
fn remove_network_rules(ids: &[String]) {
    let rules = network_rules(ids);
    let iptables = |arguments: &str| {
        let line = format!("iptables --wait --table nat {arguments}");
        drop(Command::new("bash").args(["-c", &line]).stderr(Stdio::null()).status());
    };
    for rule in &rules {
        iptables(&rule.replacen("-A", "-D", 1));
    }
    let targets = rules
        .iter()
        .filter_map(|rule| rule.rsplit("-j ").next()?.split(' ').next());
    for chain in targets.filter(|target| target.starts_with("CNI-")) {
        iptables(&format!("--flush {chain}"));
        iptables(&format!("--delete-chain {chain}"));
    }
}

pub(crate) fn processes(cgroup: &Path) -> Vec<Pid> {
    let text = std::fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
    text.lines()
        .filter_map(|line| line.parse().ok())
        .map(Pid::from_raw)
        .collect()
}

/// The processes between containerd and containers: they name its socket in their arguments.
fn shims(directory: &Path) -> Vec<Pid> {
    let directory = directory.display().to_string();
    let ours = |path: &PathBuf| {
        let line = std::fs::read(path.join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        line.split('\0')
            .next()
            .is_some_and(|program| program.contains("containerd-shim"))
            && line.contains(&directory)
    };
    let all = entries(Path::new("/proc")).into_iter().filter(ours);
    all.filter_map(|path| path.file_name()?.to_string_lossy().parse().ok())
        .map(Pid::from_raw)
        .collect()
}
