//! Layers from archive to directory, with nothing taken on trust: names stay inside the layer (`tree`), sizes are
//! bounded while they grow, and the uncompressed stream must have the digest that the image's configuration names.
//!
//! What a layer's entries mean follows containerd (`pkg/archive`), which unpacks for overlayfs as we do: each layer into
//! a directory of its own, looking at the layers below only for the attributes of directories that are not in the
//! archive themselves. Differs from upstream: attributes that steer overlayfs (`trusted.overlay.*`) are never taken from an
//! archive, and hard links leave the file's attributes alone (changing the owner again would clear its capabilities).

mod compression;
mod tree;
mod whiteout;

use std::fs::File;
use std::io::{self, BufRead, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use super::digest::{Digest, Hasher};
use super::tar::{Entry, Kind, TarError, TarReader};
pub(crate) use compression::decompress;
pub(crate) use tree::{Tree, TreeDir};
pub use whiteout::Whiteouts;
pub(crate) use whiteout::{Meaning, is_directory};

#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    #[error(transparent)]
    Tar(TarError),
    #[error("{path}")]
    Entry {
        path: String,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Io(io::Error),
    #[error("invalid whiteout {0:?}")]
    Whiteout(String),
    #[error("{path}: owner {id} is out of range")]
    Owner { path: String, id: u64 },
    #[error("layer expands to more than {0} bytes, which looks like a decompression bomb")]
    TooLarge(u64),
    #[error("layer has more than {0} files")]
    TooManyFiles(u64),
    #[error("no space left on device: {free} bytes free, {reserve} are kept in reserve")]
    NoSpace { free: u64, reserve: u64 },
    #[error("wrong diff id calculated on extraction: {actual}, expected {expected}")]
    DiffId { actual: Digest, expected: Digest },
    #[error("canceled")]
    Canceled,
}

/// What an archive may make of our disk.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Uncompressed bytes that any layer may have, however small it was before.
    pub small: u64,
    /// Beyond that: so many times its compressed size. (Programs compress to a third, text to a tenth, gzip's best is
    /// a thousandth.)
    pub ratio: u64,
    /// Uncompressed bytes that no layer may exceed.
    pub bytes: u64,
    /// Files of one layer.
    pub files: u64,
    /// Bytes of the disk that are left free.
    pub reserve: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            small: 1 << 30,
            ratio: 200,
            bytes: 256 << 30,
            files: 4_000_000,
            reserve: 64 << 20,
        }
    }
}

impl Limits {
    fn bytes_of(&self, compressed: u64) -> u64 {
        compressed.saturating_mul(self.ratio).max(self.small).min(self.bytes)
    }

    /// Whether so much more fits on the disk that holds this directory.
    pub fn check_space(&self, dir: impl AsFd, more: u64) -> Result<(), UnpackError> {
        let disk = rustix::fs::fstatvfs(dir).map_err(|e| UnpackError::Io(e.into()))?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        match free >= more.saturating_add(self.reserve) {
            true => Ok(()),
            false => Err(UnpackError::NoSpace {
                free,
                reserve: self.reserve,
            }),
        }
    }
}

/// Says to work on another thread that nobody waits for it any more.
#[derive(Clone, Default)]
pub(crate) struct Cancel(Arc<AtomicBool>);

impl Cancel {
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Set when the guard is dropped.
    pub(crate) fn on_drop(&self) -> CancelGuard {
        CancelGuard(self.clone())
    }
}

pub(crate) struct CancelGuard(Cancel);

impl Drop for CancelGuard {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}

/// Where a layer goes.
pub(crate) struct LayerTarget<'a> {
    /// An empty directory.
    pub dir: &'a Path,
    /// The layers below, topmost first.
    pub below: &'a [PathBuf],
    pub whiteouts: Whiteouts,
    pub limits: Limits,
}

/// What a layer takes on the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LayerUsage {
    pub bytes: u64,
    pub inodes: u64,
}

/// Unpacks a layer whose archive has `compressed` bytes. What was written when it fails is the caller's to remove.
pub(crate) fn unpack_layer(
    archive: impl BufRead + Send,
    compressed: u64,
    diff_id: &Digest,
    target: &LayerTarget<'_>,
    cancel: &Cancel,
) -> Result<LayerUsage, UnpackError> {
    let stream = MeasuredReader {
        source: decompress(archive).map_err(UnpackError::Io)?,
        hasher: diff_id.hasher(),
        read: 0,
        limit: target.limits.bytes_of(compressed),
        cancel,
        stopped: None,
    };
    let mut unpacker = Unpacker::new(target, TarReader::new(stream))?;
    let unpacked = unpacker.run().and_then(|()| Ok(unpacker.archive.drain()?));
    let stream = unpacker.archive.into_source();
    // What our own reader refused came back as an error of reading.
    if let Some(why) = stream.stopped {
        return Err(why);
    }
    unpacked?;
    let actual = stream.hasher.finish();
    match actual == *diff_id {
        true => Ok(unpacker.usage),
        false => Err(UnpackError::DiffId {
            actual,
            expected: diff_id.clone(),
        }),
    }
}

impl From<TarError> for UnpackError {
    fn from(error: TarError) -> UnpackError {
        match error {
            TarError::Io(e) if e.kind() == io::ErrorKind::UnexpectedEof => UnpackError::Tar(TarError::CutOff),
            TarError::Io(e) => UnpackError::Io(e),
            other => UnpackError::Tar(other),
        }
    }
}

/// Hashes and counts what passes, and stops it when it is too much or nobody wants it any more.
struct MeasuredReader<'a, R> {
    source: R,
    hasher: Hasher,
    read: u64,
    limit: u64,
    cancel: &'a Cancel,
    stopped: Option<UnpackError>,
}

impl<R: Read> Read for MeasuredReader<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.cancel.is_set() {
            self.stopped = Some(UnpackError::Canceled);
            return Err(io::Error::other("canceled"));
        }
        let count = self.source.read(buffer)?;
        self.hasher.update(&buffer[..count]);
        self.read += count as u64;
        if self.read > self.limit {
            self.stopped = Some(UnpackError::TooLarge(self.limit));
            return Err(io::Error::other("too large"));
        }
        Ok(count)
    }
}

/// Blocks of a file system, for what a file takes of it.
const DISK_BLOCK: u64 = 4096;
/// How much is written between two looks at the free space.
const SPACE_CHECK_INTERVAL: u64 = 32 << 20;

struct Unpacker<'a, R> {
    target: &'a LayerTarget<'a>,
    tree: Tree,
    /// The layers below that can be opened, topmost first.
    below: Vec<Tree>,
    archive: TarReader<R>,
    /// The directory of the last entry: the next one is most often in the same.
    last: Option<(Vec<Vec<u8>>, TreeDir)>,
    /// Directories get their times when nothing is put into them any more.
    directory_times: Vec<(Vec<Vec<u8>>, (i64, u32))>,
    usage: LayerUsage,
    unchecked: u64,
    buffer: Vec<u8>,
    is_root: bool,
}

impl<'a, R: Read> Unpacker<'a, R> {
    fn new(target: &'a LayerTarget<'a>, archive: TarReader<R>) -> Result<Self, UnpackError> {
        let tree = Tree::open(target.dir).map_err(UnpackError::Io)?;
        let below: io::Result<Vec<Tree>> = target.below.iter().map(|dir| Tree::open(dir)).collect();
        Ok(Unpacker {
            target,
            tree,
            below: below.map_err(UnpackError::Io)?,
            archive,
            last: None,
            directory_times: vec![],
            usage: LayerUsage::default(),
            unchecked: SPACE_CHECK_INTERVAL,
            buffer: vec![0; 128 << 10],
            is_root: nix::unistd::geteuid().is_root(),
        })
    }

    fn run(&mut self) -> Result<(), UnpackError> {
        while let Some(entry) = self.archive.next_entry()? {
            self.usage.inodes += 1;
            if self.usage.inodes > self.target.limits.files {
                return Err(UnpackError::TooManyFiles(self.target.limits.files));
            }
            self.count(DISK_BLOCK)?;
            self.unpack(&entry)?;
        }
        for (names, modified) in std::mem::take(&mut self.directory_times) {
            // It may have been replaced by something else since.
            if let Ok(dir) = self.tree.without_links(&names) {
                rustix::fs::futimens(&dir, &timestamps(modified)).map_err(|e| UnpackError::Io(e.into()))?;
            }
        }
        Ok(())
    }

    fn unpack(&mut self, entry: &Entry) -> Result<(), UnpackError> {
        let names = tree::clean(&entry.name);
        // The root itself: its attributes are not the archive's to say.
        let Some((base, parent)) = names.split_last() else {
            return Ok(());
        };
        let meaning = whiteout::meaning(base);
        match meaning {
            Meaning::Metadata => return Ok(()),
            Meaning::Invalid => return Err(UnpackError::Whiteout(lossy(&entry.name))),
            _ => {}
        }
        let dir = self.parent(parent).map_err(|source| failed(entry, source))?;
        match meaning {
            Meaning::Opaque => self.hide_all(&dir),
            Meaning::Whiteout(hidden) => self.target.whiteouts.hide(&dir, hidden),
            _ => return self.create(entry, dir, base, parent),
        }
        .map_err(|source| failed(entry, source))?;
        self.keep(parent, dir);
        Ok(())
    }

    fn hide_all(&self, dir: &TreeDir) -> io::Result<()> {
        self.target.whiteouts.hide_all(dir)?;
        // Overlayfs does not look at a layer's root: what is below it is hidden one by one.
        if dir.names().is_empty() && self.target.whiteouts == Whiteouts::Overlay {
            for below in self.target.below {
                for name in std::fs::read_dir(below)? {
                    self.target.whiteouts.hide(dir, name?.file_name().as_bytes())?;
                }
            }
        }
        Ok(())
    }

    /// The directory that an entry goes into, made if the archive did not name it.
    fn parent(&mut self, names: &[&[u8]]) -> io::Result<TreeDir> {
        if let Some((last, dir)) = self.last.take()
            && last.iter().map(Vec::as_slice).eq(names.iter().copied())
        {
            return Ok(dir);
        }
        let below = &self.below;
        let mut made = 0;
        let found = self.tree.find_or_make(names, &mut |at, name| {
            made += 1;
            make_parent(at, name, below)
        });
        self.usage.inodes += made;
        self.usage.bytes += made * DISK_BLOCK;
        found
    }

    fn keep(&mut self, names: &[&[u8]], dir: TreeDir) {
        self.last = Some((names.iter().map(|n| n.to_vec()).collect(), dir));
    }

    fn create(&mut self, entry: &Entry, dir: TreeDir, base: &[u8], parent: &[&[u8]]) -> Result<(), UnpackError> {
        let owner = Owner::of(entry)?;
        let io_failed = |source| failed(entry, source);
        let existing = dir.stat(base).map_err(io_failed)?;
        let stays = existing.as_ref().is_some_and(is_directory) && entry.kind == Kind::Directory;
        // Whatever was there, a directory that was hidden before starts empty.
        let was_hidden = existing.as_ref().is_some_and(whiteout::is_whiteout_device);
        let replaced = existing.filter(|_| !stays);
        if let Some(stat) = &replaced {
            dir.remove(base, stat).map_err(io_failed)?;
        }
        match entry.kind {
            Kind::Regular => self.create_file(entry, &dir, base, &owner)?,
            Kind::Directory => self
                .create_directory(entry, &dir, base, &owner, stays)
                .map_err(io_failed)?,
            Kind::HardLink => self.link(entry, &dir, base).map_err(io_failed)?,
            Kind::Symlink => self.create_symlink(entry, &dir, base, &owner).map_err(io_failed)?,
            Kind::Character | Kind::Block | Kind::Fifo => {
                self.create_node(entry, &dir, base, &owner).map_err(io_failed)?;
            }
        }
        if was_hidden && entry.kind == Kind::Directory {
            let hidden = dir.enter(base).map_err(|e| io_failed(e.into()))?;
            self.target.whiteouts.hide_all(&hidden).map_err(io_failed)?;
        }
        // Replacing a directory or a link may have changed where names lead to.
        if replaced.is_none() {
            self.keep(parent, dir);
        }
        Ok(())
    }

    fn create_file(&mut self, entry: &Entry, dir: &TreeDir, base: &[u8], owner: &Owner) -> Result<(), UnpackError> {
        let io_failed = |source| failed(entry, source);
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(dir, base, flags, Mode::from_raw_mode(0o600)).map_err(|e| io_failed(e.into()))?;
        let mut file = File::from(fd);
        loop {
            let count = match self.archive.read(&mut self.buffer) {
                Ok(0) => break,
                Ok(count) => count,
                Err(e) => return Err(TarError::Io(e).into()),
            };
            file.write_all(&self.buffer[..count]).map_err(io_failed)?;
            self.count(count as u64)?;
        }
        self.usage.bytes += entry.size.next_multiple_of(DISK_BLOCK);
        self.set_attributes(entry, &file, owner).map_err(io_failed)?;
        rustix::fs::futimens(&file, &timestamps(entry.modified)).map_err(|e| io_failed(e.into()))
    }

    fn create_directory(
        &mut self,
        entry: &Entry,
        dir: &TreeDir,
        base: &[u8],
        owner: &Owner,
        exists: bool,
    ) -> io::Result<()> {
        if !exists {
            rustix::fs::mkdirat(dir, base, Mode::RWXU)?;
            self.usage.bytes += DISK_BLOCK;
        }
        let made = dir.enter(base)?;
        self.set_attributes(entry, &made, owner)?;
        self.directory_times.push((made.names().to_vec(), entry.modified));
        Ok(())
    }

    /// Owner first: changing it clears the bits and capabilities that follow.
    fn set_attributes(&self, entry: &Entry, file: impl AsFd, owner: &Owner) -> io::Result<()> {
        if self.is_root {
            rustix::fs::fchown(&file, Some(owner.uid), Some(owner.gid))?;
        }
        for (name, value) in wanted_attributes(entry) {
            ignore_unsupported(rustix::fs::fsetxattr(&file, name, value, XattrFlags::empty()))?;
        }
        Ok(rustix::fs::fchmod(&file, Mode::from_raw_mode(entry.mode))?)
    }

    /// To another file of the same layer, never through a link.
    fn link(&mut self, entry: &Entry, dir: &TreeDir, base: &[u8]) -> io::Result<()> {
        let names = tree::clean(&entry.link);
        let (target, parent) = names.split_last().ok_or(Errno::PERM)?;
        let target_dir = self.tree.find(parent)?.ok_or(Errno::NOENT)?;
        Ok(rustix::fs::linkat(&target_dir, *target, dir, base, AtFlags::empty())?)
    }

    fn create_symlink(&mut self, entry: &Entry, dir: &TreeDir, base: &[u8], owner: &Owner) -> io::Result<()> {
        rustix::fs::symlinkat(entry.link.as_slice(), dir, base)?;
        self.set_attributes_by_name(entry, dir, base, owner)
    }

    fn create_node(&mut self, entry: &Entry, dir: &TreeDir, base: &[u8], owner: &Owner) -> io::Result<()> {
        let kind = match entry.kind {
            Kind::Character => FileType::CharacterDevice,
            Kind::Block => FileType::BlockDevice,
            _ => FileType::Fifo,
        };
        // Nobody but root can make devices, and nobody but root runs containers from here.
        if !self.is_root && kind != FileType::Fifo {
            return Ok(());
        }
        let device = rustix::fs::makedev(entry.device.0, entry.device.1);
        rustix::fs::mknodat(dir, base, kind, Mode::from_raw_mode(0o600), device)?;
        self.set_attributes_by_name(entry, dir, base, owner)?;
        Ok(rustix::fs::chmodat(
            dir,
            base,
            Mode::from_raw_mode(entry.mode),
            AtFlags::empty(),
        )?)
    }

    /// For what is not opened: links, devices and pipes.
    fn set_attributes_by_name(&self, entry: &Entry, dir: &TreeDir, base: &[u8], owner: &Owner) -> io::Result<()> {
        if self.is_root {
            let (uid, gid) = (Some(owner.uid), Some(owner.gid));
            rustix::fs::chownat(dir, base, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        for (name, value) in wanted_attributes(entry) {
            let path = dir.path_of(base);
            ignore_unsupported(rustix::fs::lsetxattr(&path, name, value, XattrFlags::empty()))?;
        }
        let times = timestamps(entry.modified);
        Ok(rustix::fs::utimensat(dir, base, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn count(&mut self, written: u64) -> Result<(), UnpackError> {
        self.unchecked += written;
        if self.unchecked >= SPACE_CHECK_INTERVAL {
            self.unchecked = 0;
            let root = self.tree.root().map_err(UnpackError::Io)?;
            self.target.limits.check_space(&root, SPACE_CHECK_INTERVAL)?;
        }
        Ok(())
    }
}

struct Owner {
    uid: Uid,
    gid: Gid,
}

impl Owner {
    fn of(entry: &Entry) -> Result<Owner, UnpackError> {
        // The highest number means "unchanged" to the kernel.
        let id = |id: u64| match u32::try_from(id) {
            Ok(id) if id != u32::MAX => Ok(id),
            _ => Err(UnpackError::Owner {
                path: lossy(&entry.name),
                id,
            }),
        };
        Ok(Owner {
            uid: Uid::from_raw(id(entry.uid)?),
            gid: Gid::from_raw(id(entry.gid)?),
        })
    }
}

/// Makes a directory that the archive uses without naming it, with the attributes that it has below.
fn make_parent(at: &TreeDir, name: &[u8], below: &[Tree]) -> io::Result<()> {
    rustix::fs::mkdirat(at, name, Mode::from_raw_mode(0o755))?;
    let made = at.enter(name)?;
    // The umask is not the archive's business.
    rustix::fs::fchmod(&made, Mode::from_raw_mode(0o755))?;
    let names: Vec<&[u8]> = made.names().iter().map(Vec::as_slice).collect();
    for layer in below {
        let (parent, base) = names.split_at(names.len() - 1);
        let Some(dir) = layer.find(parent)? else {
            continue;
        };
        return match dir.stat(base[0])? {
            None => continue,
            Some(stat) if is_directory(&stat) => copy_directory_attributes(&dir.enter(base[0])?, &made),
            // Replaced by something else: the directory is a new one.
            Some(_) => Ok(()),
        };
    }
    Ok(())
}

pub(crate) fn copy_directory_attributes(from: &TreeDir, to: &TreeDir) -> io::Result<()> {
    let stat = rustix::fs::fstat(from)?;
    if nix::unistd::geteuid().is_root() {
        let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
        rustix::fs::fchown(to, Some(uid), Some(gid))?;
    }
    rustix::fs::fchmod(to, Mode::from_raw_mode(stat.st_mode))?;
    let modified = (stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(0));
    Ok(rustix::fs::futimens(to, &timestamps(modified))?)
}

/// What a stranger may set: file capabilities, access lists and users' own. Not what steers overlayfs or the host's
/// security modules.
fn wanted_attributes(entry: &Entry) -> impl Iterator<Item = (&str, &[u8])> {
    let wanted = |name: &str| {
        name == "security.capability"
            || name.starts_with("system.posix_acl_")
            || name.starts_with("user.") && !name.starts_with("user.overlay.")
    };
    let attributes = entry.xattrs.iter().filter(move |(name, _)| wanted(name));
    attributes.map(|(name, value)| (name.as_str(), value.as_slice()))
}

/// Not every file system has every attribute, and links have few: images are used without them, as upstream does.
fn ignore_unsupported(result: rustix::io::Result<()>) -> io::Result<()> {
    match result {
        Ok(()) | Err(Errno::NOTSUP | Errno::PERM) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// Times that file systems can hold: 1901 to 2446.
pub(crate) fn timestamps((seconds, nanos): (i64, u32)) -> Timestamps {
    let time = Timespec {
        tv_sec: seconds.clamp(-0x8000_0000, 0x3_7fff_ffff),
        tv_nsec: nanos.into(),
    };
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}

fn lossy(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// Names the entry. The kernel's word for a full disk is kept: users search for it.
fn failed(entry: &Entry, source: io::Error) -> UnpackError {
    UnpackError::Entry {
        path: lossy(&entry.name),
        source,
    }
}

#[cfg(test)]
mod tests;
