//! Paths in a container's root, which the image and the pod's author chose: nothing in them leads out of it.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, readlinkat};
use nix::libc;
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{Gid, Uid, fchownat};

use crate::embedded::sys::mounts::open_in_root;

/// As many as the kernel follows.
const LINKS_MAX: usize = 40;

/// The root of a container, before or after it is one.
#[derive(Debug)]
pub(super) struct Root {
    pub dir: OwnedFd,
    /// Who owns what is made in it.
    pub owner: (u32, u32),
}

impl Root {
    /// What is at a path, links followed.
    pub(super) fn open(&self, path: &Path) -> io::Result<OwnedFd> {
        open_in_root(self.dir.as_fd(), path, libc::O_PATH, 0)
    }

    /// What is at a path; a directory or an empty file if there is nothing.
    pub(super) fn open_or_create(&self, path: &Path, directory: bool) -> io::Result<OwnedFd> {
        match self.open(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            other => return other,
        }
        let resolved = self.resolve(path)?;
        if directory {
            return self.create_dirs(&resolved);
        }
        let parent = self.create_dirs(resolved.parent().unwrap_or(Path::new("")))?;
        let name = resolved.file_name().ok_or(Errno::EISDIR)?;
        let flags = OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_WRONLY;
        let file = nix::fcntl::openat(parent.as_fd(), name, flags, Mode::from_bits_truncate(0o755))?;
        self.set_owner(file.as_fd(), Path::new(""), AtFlags::AT_EMPTY_PATH)?;
        self.open(&resolved)
    }

    /// The directory that a path is in, made if need be, and the path's last part.
    pub(super) fn open_parent(&self, path: &Path) -> io::Result<(OwnedFd, OsString)> {
        let parent = path.parent().unwrap_or(Path::new("/"));
        let name = path.file_name().ok_or(Errno::EISDIR)?;
        Ok((self.open_or_create(parent, true)?, name.to_os_string()))
    }

    pub(super) fn set_owner(&self, at: BorrowedFd<'_>, name: &Path, flags: AtFlags) -> io::Result<()> {
        match self.owner {
            (0, 0) => Ok(()),
            (uid, gid) => Ok(fchownat(
                at,
                name,
                Some(Uid::from_raw(uid)),
                Some(Gid::from_raw(gid)),
                flags,
            )?),
        }
    }

    /// Makes the directories of a path without links.
    fn create_dirs(&self, resolved: &Path) -> io::Result<OwnedFd> {
        let mut dir = self.dir.try_clone()?;
        for part in resolved.components() {
            let Component::Normal(name) = part else { continue };
            match mkdirat(dir.as_fd(), name, Mode::from_bits_truncate(0o755)) {
                Ok(()) => self.set_owner(dir.as_fd(), Path::new(name), AtFlags::AT_SYMLINK_NOFOLLOW)?,
                Err(Errno::EEXIST) => {}
                Err(e) => return Err(e.into()),
            }
            let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            dir = nix::fcntl::openat(dir.as_fd(), name, flags, Mode::empty())?;
        }
        Ok(dir)
    }

    /// A path without links: where those on the way lead, also ones whose target is not there.
    fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        let mut parts: VecDeque<OsString> = parts(path);
        let mut resolved = PathBuf::new();
        let mut links = 0;
        while let Some(part) = parts.pop_front() {
            if part == ".." {
                resolved.pop();
                continue;
            }
            let next = resolved.join(&part);
            match self.read_link(&next)? {
                None => resolved = next,
                Some(target) => {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(Errno::ELOOP.into());
                    }
                    if target.is_absolute() {
                        resolved = PathBuf::new();
                    }
                    for part in self::parts(&target).into_iter().rev() {
                        parts.push_front(part);
                    }
                }
            }
        }
        Ok(resolved)
    }

    /// Where a link leads; `None` for everything else, also for nothing.
    fn read_link(&self, path: &Path) -> io::Result<Option<PathBuf>> {
        let link = match open_in_root(self.dir.as_fd(), path, libc::O_PATH | libc::O_NOFOLLOW, 0) {
            Ok(link) => link,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        match readlinkat(link.as_fd(), "") {
            Ok(target) => Ok(Some(target.into())),
            Err(Errno::EINVAL | Errno::ENOENT) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }
}

/// The names in a path, and `..`.
fn parts(path: &Path) -> VecDeque<OsString> {
    let name = |part: Component<'_>| match part {
        Component::Normal(name) => Some(name.to_os_string()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    };
    path.components().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn root(dir: &Path) -> Root {
        Root {
            dir: fs::File::open(dir).unwrap().into(),
            owner: (0, 0),
        }
    }

    #[test]
    fn links_stay_inside() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("root/etc")).unwrap();
        let at = dir.path().join("root");
        symlink("../../../outside", at.join("out")).unwrap();
        symlink("/run/resolv.conf", at.join("etc/resolv.conf")).unwrap();
        symlink("loop", at.join("loop")).unwrap();
        let root = root(&at);
        root.open_or_create(Path::new("/out/a"), true).unwrap();
        assert!(at.join("outside/a").is_dir());
        root.open_or_create(Path::new("/etc/resolv.conf"), false).unwrap();
        assert!(at.join("run/resolv.conf").is_file());
        root.open_or_create(Path::new("/../../x/y/../z"), true).unwrap();
        assert!(at.join("x/z").is_dir());
        assert!(root.open_or_create(Path::new("/loop/a"), true).is_err());
        let (parent, name) = root.open_parent(Path::new("/dev/null")).unwrap();
        assert!(at.join("dev").is_dir() && name == "null");
        drop(parent);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
