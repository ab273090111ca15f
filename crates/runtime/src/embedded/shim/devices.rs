//! Device nodes and links in a container's `/dev`.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::{FchmodatFlags, Mode, SFlag, fchmodat, makedev, mknodat};
use nix::unistd::{Gid, Uid, fchownat, symlinkat};

use crate::embedded::spec::{ContainerSpec, DeviceSpec, MountKind};

use super::error::{Result, Step};
use super::root_path::Root;

const LINKS: [(&str, &str); 6] = [
    ("/proc/self/fd", "/dev/fd"),
    ("/proc/self/fd/0", "/dev/stdin"),
    ("/proc/self/fd/1", "/dev/stdout"),
    ("/proc/self/fd/2", "/dev/stderr"),
    ("/proc/kcore", "/dev/core"),
    ("pts/ptmx", "/dev/ptmx"),
];

/// Furnishes `/dev`. One that was mounted from the node is left as it is.
pub(super) fn create_all(spec: &ContainerSpec, root: &Root) -> Result<()> {
    if !spec.mounts.iter().any(|m| m.kind == MountKind::Dev) {
        return Ok(());
    }
    for device in &spec.devices {
        create(device, root).step_with(|| format!("create device {}", device.path.display()))?;
    }
    for (target, link) in LINKS {
        let (dir, name) = root.open_parent(Path::new(link)).step("open /dev")?;
        match symlinkat(target, dir.as_fd(), name.as_os_str()) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(e) => return Err(e).step_with(|| format!("create {link}")),
        }
    }
    Ok(())
}

fn create(device: &DeviceSpec, root: &Root) -> io::Result<()> {
    let (dir, name) = root.open_parent(&device.path)?;
    let kind = if device.block { SFlag::S_IFBLK } else { SFlag::S_IFCHR };
    let mode = Mode::from_bits_truncate(device.mode);
    let number = makedev(u64::from(device.major), u64::from(device.minor));
    match mknodat(dir.as_fd(), name.as_os_str(), kind, mode, number) {
        Ok(()) => {}
        Err(Errno::EEXIST) => return Ok(()),
        Err(e) => return Err(e.into()),
    }
    fchmodat(dir.as_fd(), name.as_os_str(), mode, FchmodatFlags::FollowSymlink)?;
    let (uid, gid) = (device.uid + root.owner.0, device.gid + root.owner.1);
    if (uid, gid) != (0, 0) {
        let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        fchownat(dir.as_fd(), name.as_os_str(), uid, gid, AtFlags::AT_SYMLINK_NOFOLLOW)?;
    }
    Ok(())
}
