//! A directory tree that a stranger's paths are resolved in.
//!
//! Every step is one `openat` that follows no link. Links are resolved here, as in a `chroot` at the tree's root: an
//! absolute target starts at the root, and `..` at the root stays there. So no name in an archive leads out of the
//! tree, whatever links the archive made before. (`openat2` could do it too, but it is younger than the kernels
//! and the seccomp profiles of outer containers that we meet.)

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

/// As many links as containerd follows on one path.
const MAX_LINKS: usize = 255;
/// Deeper than images are, and less than there are file descriptors to remove it again.
const MAX_DEPTH: usize = 512;

const OPEN_DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// A tree, by its root.
pub(crate) struct Tree {
    root: OwnedFd,
}

/// A directory in a tree, with the names that lead there without any link.
pub struct TreeDir {
    fd: OwnedFd,
    names: Vec<Vec<u8>>,
}

/// What makes a directory that is missing on the way: the one it belongs into, and its name.
type Make<'a> = &'a mut dyn FnMut(&TreeDir, &[u8]) -> io::Result<()>;

impl Tree {
    pub(crate) fn open(root: &Path) -> io::Result<Tree> {
        let root = rustix::fs::openat(CWD, root, OPEN_DIRECTORY, Mode::empty())?;
        Ok(Tree { root })
    }

    pub(crate) fn root(&self) -> io::Result<TreeDir> {
        Ok(TreeDir {
            fd: self.root.try_clone()?,
            names: vec![],
        })
    }

    /// The directory that the names lead to; `None` if there is none.
    pub(crate) fn find(&self, names: &[&[u8]]) -> io::Result<Option<TreeDir>> {
        self.walk(names, None)
    }

    /// The directory that the names lead to, with all that is missing on the way made.
    pub(crate) fn find_or_make(&self, names: &[&[u8]], make: Make<'_>) -> io::Result<TreeDir> {
        let found = self.walk(names, Some(make))?;
        found.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }

    fn walk(&self, names: &[&[u8]], mut make: Option<Make<'_>>) -> io::Result<Option<TreeDir>> {
        let mut pending: VecDeque<Vec<u8>> = names.iter().map(|n| n.to_vec()).collect();
        let mut at = self.root()?;
        let mut links = 0;
        while let Some(name) = pending.pop_front() {
            match name.as_slice() {
                b"" | b"." => continue,
                b".." => {
                    at = self.without_links(&at.names[..at.names.len().saturating_sub(1)])?;
                    continue;
                }
                _ => {}
            }
            match at.enter(&name) {
                Ok(next) => at = next,
                Err(Errno::NOENT) => {
                    let Some(make) = make.as_mut() else {
                        return Ok(None);
                    };
                    make(&at, &name)?;
                    at = at.enter(&name)?;
                }
                Err(Errno::NOTDIR | Errno::LOOP) => {
                    let target = match at.read_link(&name) {
                        Ok(target) => target,
                        Err(Errno::INVAL) if make.is_none() => return Ok(None),
                        Err(Errno::INVAL) => return Err(Errno::NOTDIR.into()),
                        Err(e) => return Err(e.into()),
                    };
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(Errno::LOOP.into());
                    }
                    if target.starts_with(b"/") {
                        at = self.root()?;
                    }
                    for part in target.split(|b| *b == b'/').rev() {
                        pending.push_front(part.to_vec());
                    }
                }
                Err(e) => return Err(e.into()),
            }
            if at.names.len() > MAX_DEPTH {
                return Err(Errno::NAMETOOLONG.into());
            }
        }
        Ok(Some(at))
    }

    /// A directory by names that are no links.
    pub(crate) fn without_links(&self, names: &[Vec<u8>]) -> io::Result<TreeDir> {
        let mut at = self.root()?;
        for name in names {
            at = at.enter(name)?;
        }
        Ok(at)
    }
}

impl TreeDir {
    pub fn names(&self) -> &[Vec<u8>] {
        &self.names
    }

    pub fn enter(&self, name: &[u8]) -> Result<TreeDir, Errno> {
        let fd = rustix::fs::openat(&self.fd, name, OPEN_DIRECTORY, Mode::empty())?;
        let names = self.names.iter().cloned().chain([name.to_vec()]).collect();
        Ok(TreeDir { fd, names })
    }

    fn read_link(&self, name: &[u8]) -> Result<Vec<u8>, Errno> {
        Ok(rustix::fs::readlinkat(&self.fd, name, vec![])?.into_bytes())
    }

    /// What is there under this name, without following it.
    pub fn stat(&self, name: &[u8]) -> io::Result<Option<rustix::fs::Stat>> {
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Removes a file, or a directory with all that is in it.
    pub fn remove(&self, name: &[u8], stat: &rustix::fs::Stat) -> io::Result<()> {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => std::fs::remove_dir_all(self.path_of(name)),
            _ => Ok(rustix::fs::unlinkat(&self.fd, name, AtFlags::empty())?),
        }
    }

    /// A path for calls that have no form for directories by descriptor. It goes through the descriptor, so nothing on
    /// the way can have changed.
    pub fn path_of(&self, name: &[u8]) -> PathBuf {
        Path::new("/proc/self/fd")
            .join(self.fd.as_raw_fd().to_string())
            .join(OsStr::from_bytes(name))
    }
}

impl AsFd for TreeDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The parts of a name in an archive, as if it were cleaned and joined to `/`: `..` leads up as far as the root.
pub(crate) fn clean(name: &[u8]) -> Vec<&[u8]> {
    let mut parts: Vec<&[u8]> = vec![];
    for part in name.split(|b| *b == b'/') {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn names_are_cleaned() {
        for (name, clean_name) in [
            ("./a/b", "a/b"),
            ("/a//b/", "a/b"),
            ("../../etc", "etc"),
            ("a/../../b", "b"),
            (".", ""),
            ("a/./..", ""),
        ] {
            assert_eq!(clean(name.as_bytes()).join(&b'/'), clean_name.as_bytes());
        }
    }

    #[test]
    fn links_stay_inside() {
        let outside = tempfile::tempdir().unwrap();
        let root = outside.path().join("root");
        std::fs::create_dir_all(root.join("usr/lib")).unwrap();
        std::fs::create_dir(outside.path().join("secret")).unwrap();
        for (target, link) in [
            ("usr/lib", "lib"),
            ("/usr", "abs"),
            ("../../../secret", "out"),
            ("loop", "loop"),
            ("usr/lib/..", "up"),
        ] {
            symlink(target, root.join(link)).unwrap();
        }
        std::fs::write(root.join("file"), "").unwrap();
        let tree = Tree::open(&root).unwrap();
        let find = |path: &str| {
            let names: Vec<&[u8]> = path.split('/').map(str::as_bytes).collect();
            let found = tree.find(&names).map_err(|e| e.raw_os_error());
            found.map(|dir| dir.map(|d| String::from_utf8(d.names.join(&b'/')).unwrap()))
        };
        assert_eq!(find("lib"), Ok(Some("usr/lib".into())));
        assert_eq!(find("abs/lib"), Ok(Some("usr/lib".into())));
        assert_eq!(find("up/lib"), Ok(Some("usr/lib".into())));
        assert_eq!(find("out"), Ok(None));
        assert_eq!(find("file"), Ok(None));
        assert_eq!(find("file/x"), Ok(None));
        assert_eq!(find("loop"), Err(Some(Errno::LOOP.raw_os_error())));
        // What is made through a link that leads out is made inside.
        let mut made = vec![];
        let dir = tree.find_or_make(&[b"out", b"x"], &mut |at, name| {
            made.push(String::from_utf8_lossy(name).into_owned());
            Ok(rustix::fs::mkdirat(at, name, Mode::RWXU)?)
        });
        assert_eq!(dir.unwrap().names, [b"secret".to_vec(), b"x".to_vec()]);
        assert_eq!(made, ["secret", "x"]);
        assert!(root.join("secret/x").is_dir());
        assert!(!outside.path().join("secret/x").exists());
        let error = tree.find_or_make(&[b"file", b"x"], &mut |_, _| Ok(())).err().unwrap();
        assert_eq!(error.raw_os_error(), Some(Errno::NOTDIR.raw_os_error()));
    }
}
