//! A container's root file system: the image's layers with a writable one on top, in the container's own mount namespace.
//! The node's mount table never shows it, and it goes with the container's last process.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::libc;

use crate::embedded::spec::RootSpec;
use crate::embedded::sys::fd_path;
use crate::embedded::sys::mounts::{self, ATTR_IDMAP, MountAttr};

use super::error::{Result, Step};
use super::root_path::Root;

/// A pod's user namespace: its descriptor, and what its root is outside.
#[derive(Clone, Copy, Debug)]
pub(super) struct MappedUsers<'a> {
    pub namespace: BorrowedFd<'a>,
    pub root: (u32, u32),
}

impl MappedUsers<'_> {
    /// What a user inside is outside: the kubelet maps one range, from 0 on.
    pub(super) fn outside(&self, uid: u32) -> u32 {
        self.root.0.saturating_add(uid)
    }
}

/// Mounts the root of a container.
pub(super) fn mount_root(spec: &RootSpec, users: Option<MappedUsers<'_>>) -> Result<Root> {
    match spec.copied {
        true => {
            let tree = mounts::clone_tree_at(&spec.upper, false).step("open the container's files")?;
            if let Some(users) = users {
                map_owners(tree.as_fd(), users).step("map owners of the container's files")?;
            }
            let target = open_path(&spec.mount_point).step("open the mount point")?;
            mounts::attach_tree(tree.as_fd(), target.as_fd()).step("mount the container's files")?;
        }
        false => mount_overlay(spec, users)?,
    }
    Ok(Root {
        dir: open_path(&spec.mount_point).step("open the root")?,
        owner: users.map_or((0, 0), |users| users.root),
    })
}

fn mount_overlay(spec: &RootSpec, users: Option<MappedUsers<'_>>) -> Result<()> {
    let layers = match users {
        Some(users) => mapped_layers(&spec.layers, &spec.mount_point, users)?,
        None => open_layers(&spec.layers)?,
    };
    let upper = open_path(&spec.upper).step("open the writable layer")?;
    let work = open_path(&spec.work).step("open the work directory")?;
    // Descriptors name the directories in few bytes, however many layers there are: options have to fit a page.
    nix::unistd::chdir("/proc/self/fd").step("enter /proc/self/fd")?;
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        lower_option(&layers),
        upper.as_raw_fd(),
        work.as_raw_fd()
    );
    // Nobody mounts a container's writable layer a second time, so it need not be synced: not when its programs ask for
    // it, and not, with everything else on that disk, when the container ends.
    let mounted = match overlay(&spec.mount_point, 0, &format!("{options},volatile")) {
        Err(e) if e.raw_os_error() == Some(Errno::EINVAL as i32) => overlay(&spec.mount_point, 0, &options),
        other => other,
    };
    mounted.step("mount overlayfs")?;
    nix::unistd::chdir("/").step("enter /")
}

/// Mounts the files of an image, read-only. `place` is a directory that nobody needs by its path.
pub(super) fn mount_image(
    layers: &[PathBuf],
    target: BorrowedFd<'_>,
    place: &Path,
    users: Option<MappedUsers<'_>>,
) -> Result<()> {
    // Overlayfs without a writable layer takes two or more.
    if let [layer] = layers {
        return bind_layer(layer, target, users).step("mount the image");
    }
    let opened = match users {
        Some(users) => mapped_layers(layers, place, users)?,
        None => open_layers(layers)?,
    };
    nix::unistd::chdir("/proc/self/fd").step("enter /proc/self/fd")?;
    let options = format!("lowerdir={}", lower_option(&opened));
    overlay(Path::new(&fd_path(target)), libc::MS_RDONLY, &options).step("mount the image")?;
    nix::unistd::chdir("/").step("enter /")
}

fn bind_layer(layer: &Path, target: BorrowedFd<'_>, users: Option<MappedUsers<'_>>) -> io::Result<()> {
    let tree = mounts::clone_tree_at(layer, false)?;
    if let Some(users) = users {
        map_owners(tree.as_fd(), users)?;
    }
    let attr = MountAttr::read_only();
    mounts::set_attributes(tree.as_fd(), false, &attr)?;
    mounts::attach_tree(tree.as_fd(), target)
}

fn overlay(target: &Path, flags: libc::c_ulong, options: &str) -> io::Result<()> {
    let options = CString::new(options)?;
    mounts::mount(Some(c"overlay"), target, Some(c"overlay"), flags, Some(&options))
}

/// The topmost layer comes first.
fn lower_option(layers: &[OwnedFd]) -> String {
    let numbers: Vec<String> = layers.iter().rev().map(|l| l.as_raw_fd().to_string()).collect();
    numbers.join(":")
}

fn open_layers(layers: &[PathBuf]) -> Result<Vec<OwnedFd>> {
    let open = |path: &PathBuf| open_path(path).step_with(|| format!("open layer {}", path.display()));
    layers.iter().map(open).collect()
}

/// Layers as the user namespace shows their owners. Overlayfs wants them mounted somewhere: on a tmpfs at `place`, which
/// the overlay is mounted over afterwards.
fn mapped_layers(layers: &[PathBuf], place: &Path, users: MappedUsers<'_>) -> Result<Vec<OwnedFd>> {
    mounts::mount(Some(c"layers"), place, Some(c"tmpfs"), 0, Some(c"mode=755")).step("mount a place for layers")?;
    let map = |(at, path): (usize, &PathBuf)| {
        let tree = mounts::clone_tree_at(path, false)?;
        map_owners(tree.as_fd(), users)?;
        let target = place.join(at.to_string());
        std::fs::create_dir(&target)?;
        mounts::attach_tree(tree.as_fd(), open_path(&target)?.as_fd())?;
        open_path(&target)
    };
    let mapped =
        |(at, path): (usize, &PathBuf)| map((at, path)).step_with(|| format!("map owners in {}", path.display()));
    layers.iter().enumerate().map(mapped).collect()
}

/// Shows the owners of a mount's files as a user namespace maps them.
pub(super) fn map_owners(tree: BorrowedFd<'_>, users: MappedUsers<'_>) -> io::Result<()> {
    let attr = MountAttr {
        set: ATTR_IDMAP,
        user_namespace: users.namespace.as_raw_fd() as u64,
        ..MountAttr::default()
    };
    mounts::set_attributes(tree, false, &attr)
}

/// A descriptor that only stands for a place.
pub(super) fn open_path(path: &Path) -> io::Result<OwnedFd> {
    let file = File::options().read(true).custom_flags(libc::O_PATH).open(path)?;
    Ok(file.into())
}

/// Makes the container's root that of this process and its mount namespace.
pub(super) fn enter_root(root: &Root) -> Result<()> {
    nix::unistd::fchdir(root.dir.as_fd()).step("enter the root")?;
    mounts::pivot_to_working_directory().step("change the root")?;
    mounts::unmount_lazily(Path::new(".")).step("unmount the old root")?;
    nix::unistd::chdir("/").step("enter /")
}
