//! Mounts: the classic call where one is enough, and the newer ones (Linux 5.12) for trees and their attributes.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::libc;

use super::{c_path, checked, owned};

pub(crate) const OPEN_TREE_CLONE: libc::c_uint = 1;
pub(crate) const ATTR_RDONLY: u64 = 0x1;
pub(crate) const ATTR_NOSUID: u64 = 0x2;
pub(crate) const ATTR_NODEV: u64 = 0x4;
pub(crate) const ATTR_NOEXEC: u64 = 0x8;
pub(crate) const ATTR_IDMAP: u64 = 0x0010_0000;

const MOVE_MOUNT_F_EMPTY_PATH: libc::c_uint = 0x4;
const MOVE_MOUNT_T_EMPTY_PATH: libc::c_uint = 0x40;
const RESOLVE_IN_ROOT: u64 = 0x10;

/// `struct mount_attr` of `mount_setattr(2)`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MountAttr {
    pub set: u64,
    pub clear: u64,
    pub propagation: u64,
    pub user_namespace: u64,
}

impl MountAttr {
    pub(crate) fn read_only() -> MountAttr {
        MountAttr {
            set: ATTR_RDONLY,
            ..MountAttr::default()
        }
    }
}

/// `struct open_how` of `openat2(2)`.
#[repr(C)]
struct OpenHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

/// `mount(2)`.
pub(crate) fn mount(
    source: Option<&CStr>,
    target: &Path,
    kind: Option<&CStr>,
    flags: libc::c_ulong,
    data: Option<&CStr>,
) -> io::Result<()> {
    let target = c_path(target)?;
    let or_null = |text: Option<&CStr>| text.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: all pointers are NUL-terminated texts that outlive the call, or null where that is allowed.
    let result = unsafe {
        libc::mount(
            or_null(source),
            target.as_ptr(),
            or_null(kind),
            flags,
            or_null(data).cast(),
        )
    };
    checked(result.into()).map(drop)
}

/// Unmounts at once what nobody uses any more, and the rest when they stop using it.
pub(crate) fn unmount_lazily(target: &Path) -> io::Result<()> {
    let target = c_path(target)?;
    // SAFETY: the pointer is a NUL-terminated text that outlives the call.
    checked(unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) }.into()).map(drop)
}

/// A copy of the mounts at and below a path, attached nowhere.
pub(crate) fn clone_tree(at: BorrowedFd<'_>, path: &CStr, recursive: bool) -> io::Result<OwnedFd> {
    let recursive = if recursive {
        libc::AT_RECURSIVE as libc::c_uint
    } else {
        0
    };
    let flags = OPEN_TREE_CLONE | libc::O_CLOEXEC as libc::c_uint | recursive | libc::AT_EMPTY_PATH as libc::c_uint;
    // SAFETY: the path is a NUL-terminated text that outlives the call.
    owned(unsafe { libc::syscall(libc::SYS_open_tree, at.as_raw_fd(), path.as_ptr(), flags) })
}

/// [`clone_tree`] of a path from the root or the working directory.
pub(crate) fn clone_tree_at(path: &Path, recursive: bool) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    let recursive = if recursive {
        libc::AT_RECURSIVE as libc::c_uint
    } else {
        0
    };
    let flags = OPEN_TREE_CLONE | libc::O_CLOEXEC as libc::c_uint | recursive;
    // SAFETY: the path is a NUL-terminated text that outlives the call.
    owned(unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), flags) })
}

/// Attaches mounts that are attached nowhere.
pub(crate) fn attach_tree(tree: BorrowedFd<'_>, target: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: both paths are the empty text; the descriptors are open.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            tree.as_raw_fd(),
            c"".as_ptr(),
            target.as_raw_fd(),
            c"".as_ptr(),
            MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH,
        )
    };
    checked(result).map(drop)
}

/// Changes the attributes of a mount, or of all below it too.
pub(crate) fn set_attributes(mount: BorrowedFd<'_>, recursive: bool, attr: &MountAttr) -> io::Result<()> {
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the attributes have the kernel's layout, and their size is given.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            std::ptr::from_ref(attr),
            size_of::<MountAttr>(),
        )
    };
    checked(result).map(drop)
}

/// Opens a path below a directory as if that were the root: links and `..` do not lead out of it.
pub(crate) fn open_in_root(root: BorrowedFd<'_>, path: &Path, flags: libc::c_int, mode: u32) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    let how = OpenHow {
        flags: (flags | libc::O_CLOEXEC) as u64,
        mode: u64::from(mode),
        resolve: RESOLVE_IN_ROOT,
    };
    // SAFETY: the path is a NUL-terminated text, and `how` has the kernel's layout with its size given.
    owned(unsafe {
        libc::syscall(
            libc::SYS_openat2,
            root.as_raw_fd(),
            path.as_ptr(),
            std::ptr::from_ref(&how),
            size_of::<OpenHow>(),
        )
    })
}

/// Makes the working directory the root of this mount namespace, and the old root its child on top of it.
pub(crate) fn pivot_to_working_directory() -> io::Result<()> {
    // SAFETY: both paths are NUL-terminated constants.
    checked(unsafe { libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()) }).map(drop)
}

/// A directory of an overlayfs layer hides what lower layers have in it.
pub(crate) fn is_opaque(dir: &Path) -> bool {
    let Ok(path) = c_path(dir) else { return false };
    let mut value = [0u8; 1];
    // SAFETY: the texts are NUL-terminated, and the buffer has the size that is given.
    let length = unsafe {
        libc::lgetxattr(
            path.as_ptr(),
            c"trusted.overlay.opaque".as_ptr(),
            value.as_mut_ptr().cast(),
            value.len(),
        )
    };
    length == 1 && value == *b"y"
}

/// The kernel has `mount_setattr(2)`.
pub(crate) fn supports_attributes() -> bool {
    let attr = MountAttr::default();
    // SAFETY: as in `set_attributes`; an invalid descriptor is refused.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            -1,
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            std::ptr::from_ref(&attr),
            size_of::<MountAttr>(),
        )
    };
    result != -1 || io::Error::last_os_error().raw_os_error() != Some(libc::ENOSYS)
}

/// Overlayfs can have its writable layer in this directory: not if that is on an overlayfs itself, for one. Tries it, in a
/// mount namespace of a thread that ends with it.
pub(crate) fn overlay_can_write_to(dir: &Path) -> bool {
    let place = dir.join(".overlay-probe");
    let probe = || {
        for part in ["lower", "upper", "work", "merged"] {
            std::fs::create_dir_all(place.join(part))?;
        }
        super::namespaces::unshare(libc::CLONE_NEWNS)?;
        mount(None, Path::new("/"), None, libc::MS_REC | libc::MS_PRIVATE, None)?;
        // The working directory is the thread's own since it has its own mounts.
        nix::unistd::chdir(&place)?;
        mount(
            Some(c"overlay"),
            Path::new("merged"),
            Some(c"overlay"),
            0,
            Some(c"lowerdir=lower,upperdir=upper,workdir=work"),
        )
    };
    let mounted = std::thread::scope(|scope| {
        scope
            .spawn(probe)
            .join()
            .is_ok_and(|result: io::Result<()>| result.is_ok())
    });
    drop(std::fs::remove_dir_all(&place));
    mounted
}
