//! Cgroups of containers, in those of their pods: one tree with version 2, one a controller (or a few) with version 1.
//!
//! Which file gets which text ([`limits`], [`devices`]) is pure. The shim makes a container's group, and removes it when the
//! container has ended ([`group`]); the runtime reads usage ([`usage`]) and changes limits in place.

mod device_filter;
mod devices;
mod group;
mod limits;
mod usage;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub(crate) use devices::{DeviceKind, DeviceRule, default_rules};
pub(crate) use group::{Group, kill_and_remove};
pub(crate) use limits::{CgroupWrite, container_writes, update_writes};
pub(crate) use usage::{MemoryCounters, Pressure, PressureLine, Usage};

/// Where cgroups are mounted everywhere.
pub(crate) const MOUNT: &str = "/sys/fs/cgroup";
/// Version 2's tree on hybrid systems: without controllers, but it can kill a whole group at once.
const HYBRID: &str = "unified";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Version {
    V1,
    V2,
}

/// One tree of groups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hierarchy {
    pub root: PathBuf,
    pub controllers: Vec<String>,
}

/// The mounted trees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hierarchies {
    pub version: Version,
    pub trees: Vec<Hierarchy>,
}

impl Hierarchies {
    /// Looks at what is mounted at a directory, `/sys/fs/cgroup`.
    pub(crate) fn detect(mount: &Path) -> io::Result<Hierarchies> {
        if let Ok(controllers) = fs::read_to_string(mount.join("cgroup.controllers")) {
            return Ok(Hierarchies {
                version: Version::V2,
                trees: vec![Hierarchy {
                    root: mount.to_path_buf(),
                    controllers: controllers.split_whitespace().map(str::to_string).collect(),
                }],
            });
        }
        let mut trees: Vec<Hierarchy> = vec![];
        for entry in fs::read_dir(mount)? {
            let entry = entry?;
            // `cpu` may be a link to `cpu,cpuacct`.
            if entry.file_type()?.is_symlink() || !entry.path().join("cgroup.procs").exists() {
                continue;
            }
            let name = entry.file_name().to_string_lossy().into_owned();
            let controllers = match name.as_str() {
                HYBRID => vec![],
                _ => name.split(',').map(str::to_string).collect(),
            };
            trees.push(Hierarchy {
                root: entry.path(),
                controllers,
            });
        }
        trees.sort_by(|a, b| a.root.cmp(&b.root));
        match trees.is_empty() {
            false => Ok(Hierarchies {
                version: Version::V1,
                trees,
            }),
            true => Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("no cgroups are mounted at {}", mount.display()),
            )),
        }
    }

    /// The directory of a group in the tree of a controller.
    pub(crate) fn dir(&self, controller: &str, group: &str) -> Option<PathBuf> {
        let has = |tree: &&Hierarchy| self.version == Version::V2 || tree.controllers.iter().any(|c| c == controller);
        Some(below(&self.trees.iter().find(has)?.root, group))
    }

    /// The tree of version 2, also on hybrid systems.
    pub(crate) fn unified(&self) -> Option<&Path> {
        let unified = |tree: &&Hierarchy| self.version == Version::V2 || tree.controllers.is_empty();
        self.trees.iter().find(unified).map(|tree| tree.root.as_path())
    }

    /// With version 1 the first process that changes its cgroup waits for all CPUs to pass through the scheduler, some ten
    /// milliseconds; those that follow soon do not. So a process of no use goes ahead while a pod's network is made.
    /// Version 2 makes processes where they belong. Returns a group's directory if that is worth while.
    pub(crate) fn slow_to_join(&self, group: &str) -> Option<PathBuf> {
        let dir = self
            .dir("memory", group)
            .filter(|_| self.version == Version::V1 && !group.is_empty())?;
        let slice = group.ends_with(".slice");
        (!slice).then_some(dir)
    }

    /// Its root hides `memory.swap.max` with version 2; the file of a group tells.
    pub(crate) fn limits_swap(&self, group: &str) -> bool {
        let file = match self.version {
            Version::V1 => "memory.memsw.limit_in_bytes",
            Version::V2 => "memory.swap.max",
        };
        self.dir("memory", group).is_some_and(|dir| dir.join(file).exists())
    }
}

/// A container's cgroup, to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CgroupSpec {
    pub hierarchies: Hierarchies,
    /// Below the root of every tree.
    pub path: String,
    pub writes: Vec<CgroupWrite>,
    /// Which devices may be used; everything else may not.
    pub devices: Vec<DeviceRule>,
}

/// The directory of a group below a tree's root.
fn below(root: &Path, group: &str) -> PathBuf {
    root.join(group.trim_start_matches('/'))
}

/// The path of a container's group: `<parent>/<id>`, or a scope in the slice that systemd's driver names
/// (`a-b.slice` is at `a.slice/a-b.slice`).
pub(crate) fn container_path(parent: &str, id: &str) -> String {
    let name = parent.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let Some(slice) = name.strip_suffix(".slice") else {
        return format!("{}/{id}", parent.trim_end_matches('/'));
    };
    let mut path = String::new();
    for (end, _) in slice.match_indices('-').chain([(slice.len(), "")]) {
        path.push_str(&format!("/{}.slice", &slice[..end]));
    }
    format!("{path}/orlop-{id}.scope")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_below_their_pods() {
        for (parent, expected) in [
            ("/kubepods/burstable/podx", "/kubepods/burstable/podx/c"),
            ("", "/c"),
            (
                "kubepods-burstable-podx_y.slice",
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podx_y.slice/orlop-c.scope",
            ),
            ("/kubepods.slice", "/kubepods.slice/orlop-c.scope"),
        ] {
            assert_eq!(container_path(parent, "c"), expected);
        }
    }

    #[test]
    fn trees_are_found() {
        let dir = tempfile::tempdir().unwrap();
        for tree in ["memory", "cpu,cpuacct", "unified", "systemd"] {
            fs::create_dir(dir.path().join(tree)).unwrap();
            fs::write(dir.path().join(tree).join("cgroup.procs"), "").unwrap();
        }
        std::os::unix::fs::symlink("cpu,cpuacct", dir.path().join("cpu")).unwrap();
        let v1 = Hierarchies::detect(dir.path()).unwrap();
        assert_eq!(v1.version, Version::V1);
        assert_eq!(v1.trees.len(), 4);
        assert_eq!(v1.dir("cpuacct", "/a/b"), Some(dir.path().join("cpu,cpuacct/a/b")));
        assert_eq!(v1.dir("pids", "/a"), None);
        assert_eq!(v1.unified(), Some(dir.path().join("unified").as_path()));

        fs::write(dir.path().join("cgroup.controllers"), "cpu memory\n").unwrap();
        let v2 = Hierarchies::detect(dir.path()).unwrap();
        assert_eq!(v2.dir("pids", "/a"), Some(dir.path().join("a")));
        assert!(Hierarchies::detect(&dir.path().join("memory")).is_err());
    }
}
