//! A root file system as a copy of all layers: for stores whose layers cannot be mounted, and machines without overlayfs.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid, XattrFlags};
use rustix::io::Errno;

use super::unpack::{Cancel, Meaning, Tree, TreeDir, Whiteouts, copy_directory_attributes, is_directory, timestamps};

/// Copies layers, lowest first, into an empty directory.
pub(super) fn copy_layers(
    layers: &[PathBuf],
    whiteouts: Whiteouts,
    to: &std::path::Path,
    cancel: &Cancel,
) -> io::Result<()> {
    let target = Tree::open(to)?.root()?;
    for layer in layers {
        let mut copy = LayerCopy {
            whiteouts,
            cancel,
            links: HashMap::new(),
        };
        copy.directory(&Tree::open(layer)?.root()?, &target)?;
    }
    Ok(())
}

struct LayerCopy<'a> {
    whiteouts: Whiteouts,
    cancel: &'a Cancel,
    /// Where files with several names were copied to first.
    links: HashMap<(u64, u64), PathBuf>,
}

impl LayerCopy<'_> {
    /// What hides goes first, then what is there.
    fn directory(&mut self, from: &TreeDir, to: &TreeDir) -> io::Result<()> {
        if self.cancel.is_set() {
            return Err(io::Error::other("canceled"));
        }
        let names = names_in(from)?;
        if self.whiteouts.is_opaque(from)? {
            for name in names_in(to)? {
                remove(to, name.as_bytes())?;
            }
        }
        let mut present = vec![];
        for name in &names {
            let name = name.as_bytes();
            let Some(stat) = from.stat(name)? else {
                continue;
            };
            match self.whiteouts.meaning_of(name, &stat) {
                Meaning::Whiteout(hidden) => remove(to, hidden)?,
                Meaning::Plain => present.push((name, stat)),
                _ => {}
            }
        }
        for (name, stat) in present {
            self.entry(from, to, name, &stat)?;
        }
        Ok(())
    }

    fn entry(&mut self, from: &TreeDir, to: &TreeDir, name: &[u8], stat: &Stat) -> io::Result<()> {
        let existing = to.stat(name)?;
        if is_directory(stat) {
            if !existing.as_ref().is_some_and(is_directory) {
                remove(to, name)?;
                rustix::fs::mkdirat(to, name, Mode::RWXU)?;
            }
            let (source, target) = (from.enter(name)?, to.enter(name)?);
            self.directory(&source, &target)?;
            copy_attributes(from, to, name)?;
            return copy_directory_attributes(&source, &target);
        }
        remove(to, name)?;
        let key = (stat.st_dev, stat.st_ino);
        if stat.st_nlink > 1
            && let Some(first) = self.links.get(&key)
        {
            let path = to.path_of(name);
            return std::fs::hard_link(first, path);
        }
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => copy_file(from, to, name)?,
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(from, name, vec![])?;
                rustix::fs::symlinkat(&target, to, name)?;
            }
            kind => rustix::fs::mknodat(to, name, kind, Mode::from_raw_mode(0o600), stat.st_rdev)?,
        }
        self.set_metadata(from, to, name, stat)?;
        if stat.st_nlink > 1 {
            self.links.insert(
                key,
                std::fs::canonicalize(to.path_of(b"."))?.join(OsString::from_vec(name.to_vec())),
            );
        }
        Ok(())
    }

    /// Owner first: changing it clears bits and capabilities.
    fn set_metadata(&self, from: &TreeDir, to: &TreeDir, name: &[u8], stat: &Stat) -> io::Result<()> {
        if nix::unistd::geteuid().is_root() {
            let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
            rustix::fs::chownat(to, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        copy_attributes(from, to, name)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
            rustix::fs::chmodat(to, name, Mode::from_raw_mode(stat.st_mode), AtFlags::empty())?;
        }
        let modified = (stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(0));
        Ok(rustix::fs::utimensat(
            to,
            name,
            &timestamps(modified),
            AtFlags::SYMLINK_NOFOLLOW,
        )?)
    }
}

/// The kernel copies, and shares the blocks where the file system can.
fn copy_file(from: &TreeDir, to: &TreeDir, name: &[u8]) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut source = File::from(rustix::fs::openat(from, name, flags, Mode::empty())?);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut target = File::from(rustix::fs::openat(to, name, flags, Mode::from_raw_mode(0o600))?);
    io::copy(&mut source, &mut target).map(drop)
}

fn remove(dir: &TreeDir, name: &[u8]) -> io::Result<()> {
    match dir.stat(name)? {
        Some(stat) => dir.remove(name, &stat),
        None => Ok(()),
    }
}

fn names_in(dir: &TreeDir) -> io::Result<Vec<OsString>> {
    std::fs::read_dir(dir.path_of(b"."))?
        .map(|entry| Ok(entry?.file_name()))
        .collect()
}

/// Extended attributes but those of overlayfs.
fn copy_attributes(from: &TreeDir, to: &TreeDir, name: &[u8]) -> io::Result<()> {
    let (source, target) = (from.path_of(name), to.path_of(name));
    let mut names = vec![0u8; 64 << 10];
    let length = match rustix::fs::llistxattr(&source, &mut names[..]) {
        Ok(length) => length,
        Err(Errno::NOTSUP) => return Ok(()),
        Err(e) => return Err(e.into()),
    };
    for attribute in names[..length].split(|b| *b == 0).filter(|n| !n.is_empty()) {
        if attribute.starts_with(b"trusted.overlay.") {
            continue;
        }
        let mut value = vec![0u8; 64 << 10];
        let length = rustix::fs::lgetxattr(&source, attribute, &mut value[..])?;
        match rustix::fs::lsetxattr(&target, attribute, &value[..length], XattrFlags::empty()) {
            Ok(()) | Err(Errno::NOTSUP | Errno::PERM) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}
