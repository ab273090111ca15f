//! What is mounted in a container: the kernel's file systems, the pod's files, the kubelet's volumes.

use std::path::{Path, PathBuf};

use crate::cri::messages::{ContainerConfig, Mount, MountPropagation};
use crate::embedded::spec::{Access, MountKind, MountSpec, Propagation};

use super::{PlanError, Result};

/// The pod's own files and choices that mounts follow from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PodFiles {
    /// The pod's directory, with `hostname`, `hosts` and `resolv.conf`.
    pub dir: PathBuf,
    /// `/dev/shm` and message queues are the node's.
    pub host_ipc: bool,
    pub user_namespace: bool,
    pub privileged: bool,
    pub read_only_root: bool,
}

/// Volumes that the image declares. They are in the writable layer as it is; only where the root is read-only do they need
/// a place of their own. A mount of the kubelet's replaces one.
pub(crate) fn plan_volumes(volumes: &[String], container: &Path, read_only_root: bool) -> Vec<MountSpec> {
    let volume = |(at, target): (usize, &String)| MountSpec {
        target: clean(target),
        kind: MountKind::Volume {
            source: container.join("volumes").join(at.to_string()),
        },
    };
    match read_only_root {
        true => volumes.iter().enumerate().map(volume).collect(),
        false => vec![],
    }
}

/// An image that is mounted as a volume: its layers by the mount's place in the configuration.
pub(crate) type ImageLayers = Vec<Option<Vec<PathBuf>>>;

/// All mounts, in the order in which they are made. A mount of the kubelet's replaces ours at the same place.
pub(crate) fn plan(
    config: &ContainerConfig,
    pod: &PodFiles,
    images: &ImageLayers,
    volumes: Vec<MountSpec>,
) -> Result<Vec<MountSpec>> {
    let own: Vec<PathBuf> = config.mounts.iter().map(|m| clean(&m.container_path)).collect();
    let replaced = |target: &Path| {
        let under_dev = target.starts_with("/dev") && own.iter().any(|path| path == Path::new("/dev"));
        own.iter().any(|path| path == target) || under_dev
    };
    let mut mounts: Vec<MountSpec> = kernel_mounts(pod)
        .into_iter()
        .filter(|m| !replaced(&m.target))
        .collect();
    let mut given: Vec<MountSpec> = config
        .mounts
        .iter()
        .enumerate()
        .map(|(at, mount)| kubelet_mount(mount, images.get(at).cloned().flatten()))
        .collect::<Result<_>>()?;
    let others = pod_mounts(pod).into_iter().chain(volumes);
    given.extend(others.filter(|m| !replaced(&m.target)));
    // What is mounted higher up must not hide what is mounted below.
    given.sort_by_key(|mount| mount.target.components().count());
    mounts.append(&mut given);
    Ok(mounts)
}

fn kernel_mounts(pod: &PodFiles) -> Vec<MountSpec> {
    let writable = pod.privileged;
    let mounts = [
        ("/proc", MountKind::Proc),
        ("/dev", MountKind::Dev),
        ("/dev/pts", MountKind::DevPts),
        ("/dev/mqueue", MountKind::MessageQueues),
        ("/sys", MountKind::Sys { writable }),
        (
            "/sys/fs/cgroup",
            MountKind::Cgroup {
                writable,
                whole: pod.privileged,
            },
        ),
    ];
    let spec = |(target, kind): (&str, MountKind)| MountSpec {
        target: target.into(),
        kind,
    };
    mounts.into_iter().map(spec).collect()
}

fn pod_mounts(pod: &PodFiles) -> Vec<MountSpec> {
    let access = match pod.read_only_root {
        true => Access::ReadOnly,
        false => Access::ReadWrite,
    };
    let bind = |source: PathBuf, access| MountKind::Bind {
        source,
        access,
        propagation: Propagation::Private,
        mapped: pod.user_namespace,
    };
    let shm = match pod.host_ipc {
        true => bind("/dev/shm".into(), Access::ReadWrite),
        false => MountKind::PodShm,
    };
    let file = |name: &str| MountSpec {
        target: Path::new("/etc").join(name),
        kind: bind(pod.dir.join(name), access),
    };
    let mut mounts: Vec<MountSpec> = ["hostname", "hosts", "resolv.conf"].map(file).into();
    mounts.push(MountSpec {
        target: "/dev/shm".into(),
        kind: shm,
    });
    mounts
}

fn kubelet_mount(mount: &Mount, image: Option<Vec<PathBuf>>) -> Result<MountSpec> {
    let target = clean(&mount.container_path);
    if let Some(layers) = image {
        let kind = MountKind::Image {
            layers,
            sub_path: mount.image_sub_path.clone(),
        };
        return Ok(MountSpec { target, kind });
    }
    let propagation = match MountPropagation::try_from(mount.propagation) {
        Ok(MountPropagation::HostToContainer) => Propagation::HostToContainer,
        Ok(MountPropagation::Bidirectional) => Propagation::Bidirectional,
        Ok(MountPropagation::Private) | Err(_) => Propagation::Private,
    };
    let kind = MountKind::Bind {
        source: PathBuf::from(&mount.host_path),
        access: access(mount, propagation)?,
        propagation,
        mapped: !mount.uid_mappings.is_empty() || !mount.gid_mappings.is_empty(),
    };
    Ok(MountSpec { target, kind })
}

fn access(mount: &Mount, propagation: Propagation) -> Result<Access> {
    match (mount.readonly, mount.recursive_read_only) {
        (false, true) => Err(PlanError(format!(
            "recursive read-only mount conflicts with RW mount (hostPath={:?})",
            mount.host_path
        ))),
        (true, true) if propagation != Propagation::Private => Err(PlanError(format!(
            "recursive read-only mount needs private propagation (hostPath={:?})",
            mount.host_path
        ))),
        (true, true) => Ok(Access::RecursiveReadOnly),
        (true, false) => Ok(Access::ReadOnly),
        (false, false) => Ok(Access::ReadWrite),
    }
}

/// What is propagated has to be on a mount that propagates. `mountinfo` is that of the node, `path` without links.
// Upstream: containerd internal/cri/opts ensureShared, ensureSharedOrSlave (v2.3)
pub(crate) fn check_propagation(mountinfo: &str, path: &Path, propagation: MountPropagation) -> Result<()> {
    let (accepted, wanted): (&[&str], &str) = match propagation {
        MountPropagation::Private => return Ok(()),
        MountPropagation::HostToContainer => (&["shared:", "master:"], "a shared or slave"),
        MountPropagation::Bidirectional => (&["shared:"], "a shared"),
    };
    let Some((mount_point, options)) = find_mount(mountinfo, path) else {
        return Err(PlanError(format!("path {:?} is on no known mount", path.display())));
    };
    match options
        .split(' ')
        .any(|option| accepted.iter().any(|prefix| option.starts_with(prefix)))
    {
        true => Ok(()),
        false => Err(PlanError(format!(
            "path {:?} is mounted on {mount_point:?} but it is not {wanted} mount",
            path.display()
        ))),
    }
}

/// Mount point and optional fields of the mount that a path is on: of those that hold it the longest, of these the last.
fn find_mount<'a>(mountinfo: &'a str, path: &Path) -> Option<(String, &'a str)> {
    let parse = |line: &'a str| {
        let (before, _) = line.split_once(" - ")?;
        let mut fields = before.splitn(7, ' ');
        let mount_point = fields.nth(4)?.replace("\\040", " ");
        Some((mount_point, fields.nth(1).unwrap_or_default()))
    };
    let holding = mountinfo
        .lines()
        .filter_map(parse)
        .filter(|(mount_point, _)| path.starts_with(mount_point));
    holding.max_by_key(|(mount_point, _)| mount_point.len())
}

/// A path without `.`, `..` and doubled slashes, from the root.
fn clean(path: &str) -> PathBuf {
    let mut clean = PathBuf::from("/");
    for part in Path::new(path).components() {
        match part {
            std::path::Component::Normal(name) => clean.push(name),
            std::path::Component::ParentDir => drop(clean.pop()),
            _ => {}
        }
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(target: &str, source: &str) -> Mount {
        Mount {
            container_path: target.to_string(),
            host_path: source.to_string(),
            ..Mount::default()
        }
    }

    fn pod() -> PodFiles {
        PodFiles {
            dir: "/pod".into(),
            ..PodFiles::default()
        }
    }

    fn targets(mounts: Vec<Mount>) -> Vec<String> {
        let config = ContainerConfig {
            mounts,
            ..ContainerConfig::default()
        };
        let planned = plan(&config, &pod(), &vec![], vec![]).unwrap();
        planned.iter().map(|m| m.target.display().to_string()).collect()
    }

    #[test]
    fn the_kubelets_mounts_replace_ours() {
        assert_eq!(
            targets(vec![
                mount("/a/b/c", "/x"),
                mount("/etc//hosts", "/y"),
                mount("/a", "/z")
            ]),
            [
                "/proc",
                "/dev",
                "/dev/pts",
                "/dev/mqueue",
                "/sys",
                "/sys/fs/cgroup",
                "/a",
                "/etc/hosts",
                "/etc/hostname",
                "/etc/resolv.conf",
                "/dev/shm",
                "/a/b/c",
            ]
        );
        let with_dev = targets(vec![mount("/dev", "/dev"), mount("/dev/termination-log", "/t")]);
        assert_eq!(
            with_dev.iter().filter(|t| t.starts_with("/dev")).collect::<Vec<_>>(),
            ["/dev", "/dev/termination-log"]
        );
    }

    #[test]
    fn propagation_needs_mounts_that_propagate() {
        let mountinfo = "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
                         30 22 0:25 / /var/lib rw shared:5 - tmpfs x rw\n\
                         31 22 0:26 / /srv rw master:5 propagate_from:2 - tmpfs x rw\n\
                         32 22 0:27 / /with\\040space rw shared:7 - tmpfs x rw\n";
        use MountPropagation::{Bidirectional, HostToContainer, Private};
        let check = |path: &str, propagation| check_propagation(mountinfo, Path::new(path), propagation);
        assert!(check("/etc", Private).is_ok());
        assert_eq!(
            check("/etc", HostToContainer).unwrap_err().0,
            "path \"/etc\" is mounted on \"/\" but it is not a shared or slave mount"
        );
        assert!(check("/var/lib/kubelet", Bidirectional).is_ok());
        assert!(check("/var/library", Bidirectional).is_err());
        assert!(check("/srv/x", HostToContainer).is_ok());
        assert!(check("/srv/x", Bidirectional).is_err());
        assert!(check("/with space/x", Bidirectional).is_ok());
    }

    #[test]
    fn read_only_mounts() {
        let read_only = |recursive: bool, readonly: bool, propagation: MountPropagation| {
            let mount = Mount {
                readonly,
                recursive_read_only: recursive,
                propagation: propagation as i32,
                ..mount("/a", "/b")
            };
            kubelet_mount(&mount, None).map(|m| m.kind)
        };
        let bind = |access, propagation| MountKind::Bind {
            source: "/b".into(),
            access,
            propagation,
            mapped: false,
        };
        use MountPropagation::{Bidirectional, HostToContainer, Private};
        assert_eq!(
            read_only(false, true, HostToContainer),
            Ok(bind(Access::ReadOnly, Propagation::HostToContainer))
        );
        assert_eq!(
            read_only(true, true, Private),
            Ok(bind(Access::RecursiveReadOnly, Propagation::Private))
        );
        assert_eq!(
            read_only(false, false, Bidirectional),
            Ok(bind(Access::ReadWrite, Propagation::Bidirectional))
        );
        assert!(read_only(true, false, Private).is_err());
        assert!(read_only(true, true, HostToContainer).is_err());
    }
}
