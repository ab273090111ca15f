//! What is mounted in a container's root.

use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::libc;
use nix::sys::stat::{SFlag, fstat};

use crate::embedded::cgroups::{CgroupSpec, Version};
use crate::embedded::copy;
use crate::embedded::spec::{Access, ContainerSpec, MountKind, MountSpec, Propagation};
use crate::embedded::sys::mounts::{self, ATTR_NODEV, ATTR_NOEXEC, ATTR_NOSUID, ATTR_RDONLY, MountAttr};
use crate::embedded::sys::{fd_path, namespaces};

use super::error::{Result, Step};
use super::root_path::Root;
use super::rootfs::{self, MappedUsers};
use super::sandbox::{Sandbox, open_own};

const QUIET: libc::c_ulong = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;

/// Copies of what is bound into the container, taken while its mounts are still those of the node: what is mounted there
/// later may then appear here, and the other way round.
#[derive(Debug)]
pub(super) struct Trees(Vec<Option<OwnedFd>>);

pub(super) fn open_trees(spec: &ContainerSpec, sandbox: &Sandbox, users: Option<MappedUsers<'_>>) -> Result<Trees> {
    let own = open_own("mnt")?;
    let open = |mount: &MountSpec| match &mount.kind {
        MountKind::Bind {
            source,
            access,
            propagation,
            mapped,
        } => {
            let tree = mounts::clone_tree_at(source, true)
                .step_with(|| format!("open {} for {}", source.display(), mount.target.display()))?;
            set_bind_attributes(tree.as_fd(), *access, *propagation)
                .and_then(|()| match (users, mapped) {
                    (Some(users), true) => map_bind_owners(tree.as_fd(), users),
                    _ => Ok(()),
                })
                .step_with(|| format!("set attributes of {}", mount.target.display()))?;
            Ok(Some(tree))
        }
        MountKind::PodShm => match &sandbox.shm {
            Some(shm) => clone_shm(shm.as_fd(), own.as_fd()).map(Some),
            None => Ok(None),
        },
        _ => Ok(None),
    };
    let trees = spec.mounts.iter().map(open).collect::<Result<_>>()?;
    mounts::mount(None, Path::new("/"), None, libc::MS_REC | libc::MS_PRIVATE, None).step("make mounts private")?;
    Ok(Trees(trees))
}

fn set_bind_attributes(tree: BorrowedFd<'_>, access: Access, propagation: Propagation) -> io::Result<()> {
    let propagation = match propagation {
        Propagation::Private => libc::MS_PRIVATE,
        Propagation::HostToContainer => libc::MS_SLAVE,
        Propagation::Bidirectional => libc::MS_SHARED,
    };
    let attr = MountAttr {
        propagation,
        set: if access == Access::RecursiveReadOnly {
            ATTR_RDONLY
        } else {
            0
        },
        ..MountAttr::default()
    };
    mounts::set_attributes(tree, true, &attr)?;
    if access == Access::ReadOnly {
        let attr = MountAttr::read_only();
        mounts::set_attributes(tree, false, &attr)?;
    }
    Ok(())
}

/// Not every file system can; then the owners are nobody, but what is readable for all stays so.
fn map_bind_owners(tree: BorrowedFd<'_>, users: MappedUsers<'_>) -> io::Result<()> {
    rootfs::map_owners(tree, users)
}

/// A mount namespace shows its mounts only to those who are in it.
fn clone_shm(shm: BorrowedFd<'_>, own: BorrowedFd<'_>) -> Result<OwnedFd> {
    namespaces::enter(shm, libc::CLONE_NEWNS).step("enter the namespace of /dev/shm")?;
    let tree = mounts::clone_tree_at(Path::new("/"), false).step("open /dev/shm");
    namespaces::enter(own, libc::CLONE_NEWNS).step("leave the namespace of /dev/shm")?;
    tree
}

/// Mounts everything in order.
pub(super) fn mount_all(spec: &ContainerSpec, root: &Root, trees: Trees, users: Option<MappedUsers<'_>>) -> Result<()> {
    for (mount, tree) in spec.mounts.iter().zip(trees.0) {
        mount_one(spec, mount, root, tree, users).map_err(|e| e.at(&mount.target))?;
    }
    Ok(())
}

fn mount_one(
    spec: &ContainerSpec,
    mount: &MountSpec,
    root: &Root,
    tree: Option<OwnedFd>,
    users: Option<MappedUsers<'_>>,
) -> Result<()> {
    if let Some(tree) = tree {
        let directory = is_directory(tree.as_fd()).step("stat")?;
        let target = root
            .open_or_create(&mount.target, directory)
            .step("create the mount point")?;
        return mounts::attach_tree(tree.as_fd(), target.as_fd()).step("mount");
    }
    let target = root
        .open_or_create(&mount.target, true)
        .step("create the mount point")?;
    let at = |kind: &CStr, flags, options: &str| mount_at(&target, kind, flags, options);
    let (uid, gid) = root.owner;
    match &mount.kind {
        MountKind::Proc => at(c"proc", QUIET, ""),
        MountKind::Sys { writable } => at(c"sysfs", QUIET | if *writable { 0 } else { libc::MS_RDONLY }, ""),
        MountKind::Dev => {
            let options = format!("mode=755,size=65536k,uid={uid},gid={gid}");
            at(c"tmpfs", libc::MS_NOSUID | libc::MS_STRICTATIME, &options)
        }
        MountKind::DevPts => {
            let options = format!("newinstance,ptmxmode=0666,mode=0620,gid={}", gid + 5);
            at(c"devpts", libc::MS_NOSUID | libc::MS_NOEXEC, &options)
        }
        MountKind::MessageQueues => at(c"mqueue", QUIET, ""),
        MountKind::Cgroup { writable, .. } => mount_cgroup(&spec.cgroup, root, mount, *writable),
        MountKind::Image { layers, sub_path } => mount_image(layers, sub_path, root, mount, (&spec.root.work, users)),
        // Both have a tree unless the pod has no /dev/shm of its own, and then neither has a container.
        MountKind::PodShm | MountKind::Bind { .. } => Ok(()),
        MountKind::Volume { source } => mount_volume(source, target.as_fd()),
    }
}

fn mount_at(target: &OwnedFd, kind: &CStr, flags: libc::c_ulong, options: &str) -> Result<()> {
    let options = CString::new(options).expect("options have no NUL");
    let path = PathBuf::from(fd_path(target.as_fd()));
    mounts::mount(Some(kind), &path, Some(kind), flags, Some(&options)).step("mount")
}

fn is_directory(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let mode = SFlag::from_bits_truncate(fstat(fd)?.st_mode);
    Ok(mode & SFlag::S_IFMT == SFlag::S_IFDIR)
}

/// Version 2: the namespace's root. Version 1: the container's own group of every tree, as nothing hides the others.
fn mount_cgroup(cgroup: &CgroupSpec, root: &Root, mount: &MountSpec, writable: bool) -> Result<()> {
    let target = root
        .open_or_create(&mount.target, true)
        .step("create the mount point")?;
    let read_only = if writable { 0 } else { libc::MS_RDONLY };
    if cgroup.hierarchies.version == Version::V2 {
        return mount_at(&target, c"cgroup2", QUIET | libc::MS_RELATIME | read_only, "");
    }
    mount_at(&target, c"tmpfs", QUIET, "mode=755")?;
    let dir = root.open(&mount.target).step("open")?;
    let place = PathBuf::from(fd_path(dir.as_fd()));
    for tree in cgroup
        .hierarchies
        .trees
        .iter()
        .filter(|tree| !tree.controllers.is_empty())
    {
        let name = tree.controllers.join(",");
        let own = tree.root.join(cgroup.path.trim_start_matches('/'));
        bind_group(&own, &place.join(&name), writable).step_with(|| format!("mount cgroup {name}"))?;
        if tree.controllers.len() > 1 {
            for controller in &tree.controllers {
                std::os::unix::fs::symlink(&name, place.join(controller)).step("link a controller")?;
            }
        }
    }
    if !writable {
        set_read_only(dir.as_fd()).step("make cgroups read-only")?;
    }
    Ok(())
}

fn bind_group(source: &Path, target: &Path, writable: bool) -> io::Result<()> {
    fs::create_dir(target)?;
    let tree = mounts::clone_tree_at(source, false)?;
    let attr = MountAttr {
        set: ATTR_NOSUID | ATTR_NODEV | ATTR_NOEXEC | if writable { 0 } else { ATTR_RDONLY },
        ..MountAttr::default()
    };
    mounts::set_attributes(tree.as_fd(), false, &attr)?;
    mounts::attach_tree(tree.as_fd(), rootfs::open_path(target)?.as_fd())
}

pub(super) fn set_read_only(mount: BorrowedFd<'_>) -> io::Result<()> {
    let attr = MountAttr::read_only();
    mounts::set_attributes(mount, false, &attr)
}

fn mount_image(
    layers: &[PathBuf],
    sub_path: &str,
    root: &Root,
    mount: &MountSpec,
    (place, users): (&Path, Option<MappedUsers<'_>>),
) -> Result<()> {
    let target = root
        .open_or_create(&mount.target, true)
        .step("create the mount point")?;
    rootfs::mount_image(layers, target.as_fd(), place, users)?;
    if sub_path.is_empty() {
        return Ok(());
    }
    let image = Root {
        dir: root.open(&mount.target).step("open the image")?,
        owner: root.owner,
    };
    let part = image
        .open(Path::new(sub_path))
        .step_with(|| format!("find {sub_path} in the image"))?;
    let tree = mounts::clone_tree(part.as_fd(), c"", false).step("open a part of the image")?;
    let target = image.dir;
    mounts::attach_tree(tree.as_fd(), target.as_fd()).step("mount a part of the image")
}

fn mount_volume(source: &Path, target: BorrowedFd<'_>) -> Result<()> {
    fs::create_dir_all(source)
        .and_then(|()| copy::copy_directory(Path::new(&fd_path(target)), source))
        .step("copy what the image has")?;
    let tree = mounts::clone_tree_at(source, false).step("open the volume")?;
    mounts::attach_tree(tree.as_fd(), target).step("mount")
}

/// Hides a path: a file is empty, a directory too. What is not there needs no hiding.
pub(super) fn mask(root: &Root, path: &Path) -> Result<()> {
    let Some(target) = open_if_there(root, path)? else {
        return Ok(());
    };
    if is_directory(target.as_fd()).step("stat")? {
        return mount_at(&target, c"tmpfs", libc::MS_RDONLY, "size=0").map_err(|e| e.at(path));
    }
    let null = mounts::clone_tree_at(Path::new("/dev/null"), false).step("open /dev/null")?;
    mounts::attach_tree(null.as_fd(), target.as_fd()).step_with(|| format!("mask {}", path.display()))
}

/// Makes a path and what is mounted below it read-only.
pub(super) fn protect(root: &Root, path: &Path) -> Result<()> {
    let Some(target) = open_if_there(root, path)? else {
        return Ok(());
    };
    let attr = MountAttr::read_only();
    mounts::clone_tree(target.as_fd(), c"", true)
        .and_then(|tree| {
            mounts::set_attributes(tree.as_fd(), true, &attr)?;
            mounts::attach_tree(tree.as_fd(), target.as_fd())
        })
        .step_with(|| format!("make {} read-only", path.display()))
}

fn open_if_there(root: &Root, path: &Path) -> Result<Option<OwnedFd>> {
    match root.open(path) {
        Ok(target) => Ok(Some(target)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e).step_with(|| format!("open {}", path.display())),
    }
}
