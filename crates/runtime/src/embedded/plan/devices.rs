//! Device nodes of a container: the usual ones, those that a device plugin hands out, or all of the node's.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::sys::stat::{major, minor};

use crate::cri::messages::Device;
use crate::embedded::cgroups::{DeviceKind, DeviceRule, default_rules};
use crate::embedded::spec::DeviceSpec;

use super::{PlanError, Result};

/// Directories of the node's `/dev` that are mounts of the container's own, or not about devices.
const SKIPPED: [&str; 7] = ["pts", "shm", "fd", "mqueue", ".lxc", ".lxd-mounts", ".udev"];
/// `/dev` is not deep.
const DEPTH_MAX: usize = 8;

/// Devices with the rules that allow their use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Devices {
    pub nodes: Vec<DeviceSpec>,
    pub rules: Vec<DeviceRule>,
}

/// The devices of a container. Looks at the node's `/dev`; blocking.
pub(crate) fn plan(wanted: &[Device], privileged: bool) -> Result<Devices> {
    let mut devices = Devices {
        nodes: default_nodes(),
        rules: default_rules(),
    };
    for device in wanted {
        let nodes = host_devices(device).map_err(|e| PlanError(format!("device {:?}: {e}", device.host_path)))?;
        for node in nodes {
            devices.rules.push(rule(&node, &device.permissions));
            add(&mut devices.nodes, node);
        }
    }
    if privileged {
        let mut all = vec![];
        walk(Path::new("/dev"), &mut all, 0);
        for node in all {
            add(&mut devices.nodes, node);
        }
        devices.rules = vec![DeviceRule::all()];
    }
    Ok(devices)
}

fn add(nodes: &mut Vec<DeviceSpec>, node: DeviceSpec) {
    if !nodes.iter().any(|n| n.path == node.path) {
        nodes.push(node);
    }
}

fn default_nodes() -> Vec<DeviceSpec> {
    let nodes = [
        ("null", 1, 3),
        ("zero", 1, 5),
        ("full", 1, 7),
        ("random", 1, 8),
        ("urandom", 1, 9),
        ("tty", 5, 0),
    ];
    let node = |(name, major, minor): (&str, u32, u32)| DeviceSpec {
        path: Path::new("/dev").join(name),
        block: false,
        major,
        minor,
        mode: 0o666,
        uid: 0,
        gid: 0,
    };
    nodes.into_iter().map(node).collect()
}

fn rule(node: &DeviceSpec, permissions: &str) -> DeviceRule {
    DeviceRule {
        kind: if node.block {
            DeviceKind::Block
        } else {
            DeviceKind::Character
        },
        major: Some(node.major),
        minor: Some(node.minor),
        read: permissions.contains('r'),
        write: permissions.contains('w'),
        make: permissions.contains('m'),
    }
}

/// A node, or all of a directory.
fn host_devices(device: &Device) -> io::Result<Vec<DeviceSpec>> {
    let host = fs::canonicalize(&device.host_path)?;
    let metadata = fs::metadata(&host)?;
    let target = PathBuf::from(&device.container_path);
    if !metadata.is_dir() {
        let node = node(target, &metadata).ok_or_else(|| io::Error::other("not a device node"))?;
        return Ok(vec![node]);
    }
    let mut nodes = vec![];
    walk(&host, &mut nodes, 0);
    for node in &mut nodes {
        if let Ok(below) = node.path.strip_prefix(&host) {
            node.path = target.join(below);
        }
    }
    match nodes.is_empty() {
        true => Err(io::Error::other("directory has no device nodes")),
        false => Ok(nodes),
    }
}

fn node(path: PathBuf, metadata: &fs::Metadata) -> Option<DeviceSpec> {
    let kind = metadata.file_type();
    (kind.is_block_device() || kind.is_char_device()).then(|| DeviceSpec {
        path,
        block: kind.is_block_device(),
        major: major(metadata.rdev()) as u32,
        minor: minor(metadata.rdev()) as u32,
        mode: metadata.mode() & 0o7777,
        uid: metadata.uid(),
        gid: metadata.gid(),
    })
}

/// What vanishes meanwhile is left out.
fn walk(dir: &Path, into: &mut Vec<DeviceSpec>, depth: usize) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Ok(metadata) = entry.metadata() else { continue };
        if metadata.is_dir() && depth < DEPTH_MAX {
            if depth > 0 || !SKIPPED.iter().any(|skipped| name == *skipped) {
                walk(&entry.path(), into, depth + 1);
            }
        } else if name != "console" && name != "ptmx" {
            into.extend(node(entry.path(), &metadata));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_come_with_their_rules() {
        let device = Device {
            container_path: "/dev/mine".to_string(),
            host_path: "/dev/null".to_string(),
            permissions: "rw".to_string(),
        };
        let devices = plan(&[device], false).unwrap();
        let mine = devices.nodes.last().unwrap();
        assert_eq!(
            (mine.path.as_path(), mine.major, mine.minor),
            (Path::new("/dev/mine"), 1, 3)
        );
        assert_eq!(devices.rules.last().unwrap().line(), "c 1:3 rw");
        assert_eq!(devices.nodes.len(), 7);
    }

    #[test]
    fn what_is_no_device_is_refused() {
        let device = |path: &str| Device {
            container_path: "/dev/x".to_string(),
            host_path: path.to_string(),
            permissions: "r".to_string(),
        };
        assert!(plan(&[device("/etc/hostname")], false).is_err());
        assert!(plan(&[device("/no/such")], false).is_err());
    }

    #[test]
    fn privileged_containers_have_all() {
        let devices = plan(&[], true).unwrap();
        assert_eq!(devices.rules, [DeviceRule::all()]);
        assert!(
            devices
                .nodes
                .iter()
                .filter(|n| n.path == Path::new("/dev/null"))
                .count()
                == 1
        );
    }
}
