//! The store's directory: where things are, who may change them, and what is swept.
//!
//! ```text
//! ROOT/lock                   held for every change of what is listed below; never while something large is written
//! ROOT/index.json             the images: replaced whole, so readers see one state or the next (index.rs)
//! ROOT/blobs/sha256/HEX       manifests, configurations and layers as they came, for `save` and for layers in common
//! ROOT/layers/ID/fs           an unpacked layer, by the stack it is the top of; ID is short, see `layer_id`
//! ROOT/layers/ID/layer.json   what it is and what it takes on the disk
//! ROOT/holders/ID.json        layers that a container uses
//! ROOT/work/PID-N/            work under way: `lease` names what it relies on, and is locked as long as it goes on
//! ```
//!
//! Content is made in a directory of work and renamed to its place when it is complete, so whatever has a name is
//! whole. A sweep removes what neither an image nor a container nor work under way names. Work names what it needs
//! before it looks whether it is there, so what it found stays. All of that holds between processes, and a process
//! that was killed leaves only a directory of work with no lock on it, which the next sweep removes.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::digest::Digest;

/// What something relies on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Needs {
    #[serde(default)]
    pub blobs: BTreeSet<Digest>,
    /// By the stacks that they are the tops of.
    #[serde(default)]
    pub layers: BTreeSet<Digest>,
}

impl Needs {
    pub(super) fn extend(&mut self, other: Needs) {
        self.blobs.extend(other.blobs);
        self.layers.extend(other.layers);
    }
}

/// What an unpacked layer is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LayerInfo {
    pub chain_id: Digest,
    pub diff_id: Digest,
    pub bytes: u64,
    pub inodes: u64,
}

/// Paths of a store.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    root: PathBuf,
}

impl Layout {
    /// Makes what is missing. Only root may look inside: layers contain programs that take their owner's rights.
    pub(super) fn create(root: &Path) -> io::Result<Layout> {
        let layout = Layout {
            root: root.to_path_buf(),
        };
        for dir in [
            layout.root.clone(),
            layout.root.join("blobs"),
            layout.layers(),
            layout.holders(),
            layout.work(),
        ] {
            DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        }
        Ok(layout)
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn index(&self) -> PathBuf {
        self.root.join("index.json")
    }

    pub(super) fn layers(&self) -> PathBuf {
        self.root.join("layers")
    }

    pub(super) fn holders(&self) -> PathBuf {
        self.root.join("holders")
    }

    fn work(&self) -> PathBuf {
        self.root.join("work")
    }

    pub(super) fn blob(&self, digest: &Digest) -> PathBuf {
        self.root.join("blobs").join(digest.algorithm()).join(digest.hex())
    }

    pub(super) fn layer(&self, chain_id: &Digest) -> PathBuf {
        self.layers().join(layer_id(chain_id))
    }

    /// The directory to mount.
    pub(super) fn layer_fs(&self, chain_id: &Digest) -> PathBuf {
        self.layer(chain_id).join("fs")
    }

    pub(super) fn has_blob(&self, digest: &Digest) -> bool {
        self.blob(digest).exists()
    }

    /// The layer, if it is there.
    pub(super) fn layer_info(&self, chain_id: &Digest) -> io::Result<Option<LayerInfo>> {
        let info: Option<LayerInfo> = read_json(&self.layer(chain_id).join("layer.json"))?;
        match info {
            // The names of directories are cut short.
            Some(info) if info.chain_id != *chain_id => Err(io::Error::other(format!(
                "layers {chain_id} and {} have the same short name",
                info.chain_id
            ))),
            other => Ok(other),
        }
    }

    /// Waits until nobody else changes the store. Not across anything slow.
    pub(super) fn lock(&self) -> io::Result<StoreLock> {
        let file = open_lock(&self.root.join("lock"))?;
        loop {
            match rustix::fs::flock(&file, FlockOperation::LockExclusive) {
                Ok(()) => return Ok(StoreLock { _file: file }),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// A directory for work, and the right to what it will rely on.
    pub(super) fn begin_work(&self) -> io::Result<Work> {
        self.make_work(&self.lock()?)
    }

    /// Under the lock, so that nobody takes it for abandoned before its lease is locked.
    fn make_work(&self, _lock: &StoreLock) -> io::Result<Work> {
        let mut number = 0u64;
        let dir = loop {
            let dir = self.work().join(format!("{}-{number}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&dir) {
                Ok(()) => break dir,
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => number += 1,
                Err(e) => return Err(e),
            }
        };
        let lease = open_lock(&dir.join(LEASE))?;
        rustix::fs::flock(&lease, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Work {
            layout: self.clone(),
            dir,
            lease: Some(lease),
        })
    }

    /// Removes what is left of work whose process is gone.
    pub(super) fn remove_abandoned(&self, lock: &StoreLock) -> io::Result<()> {
        // Holders are written under the lock: whoever wrote one of these was killed.
        for entry in fs::read_dir(self.holders())? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == TEMPORARY) {
                fs::remove_file(path)?;
            }
        }
        self.leases(lock).map(drop)
    }

    /// What work under way relies on. Removes what is left of work that ended otherwise.
    fn leases(&self, _lock: &StoreLock) -> io::Result<Needs> {
        let mut needs = Needs::default();
        for entry in fs::read_dir(self.work())? {
            let dir = entry?.path();
            if is_abandoned(&dir)? {
                remove_tree(&dir)?;
                continue;
            }
            needs.extend(read_json(&dir.join(LEASE))?.unwrap_or_default());
        }
        Ok(needs)
    }

    /// Removes all blobs and layers that nothing needs. They are moved out of the way at once, and removed when the
    /// lock is given back, since that takes its time.
    pub(super) fn sweep(&self, lock: StoreLock, images: Needs) -> io::Result<()> {
        let mut needs = images;
        needs.extend(self.leases(&lock)?);
        for holder in self.read_holders()? {
            needs.layers.extend(holder.layers);
        }
        let kept_layers: BTreeSet<String> = needs.layers.iter().map(layer_id).collect();
        let mut garbage = vec![];
        for entry in fs::read_dir(self.layers())? {
            let entry = entry?;
            if !entry
                .file_name()
                .to_str()
                .is_some_and(|name| kept_layers.contains(name))
            {
                garbage.push(entry.path());
            }
        }
        let kept_blobs: BTreeSet<PathBuf> = needs.blobs.iter().map(|d| self.blob(d)).collect();
        for (path, _) in self.blobs()? {
            if !kept_blobs.contains(&path) {
                garbage.push(path);
            }
        }
        if garbage.is_empty() {
            return Ok(());
        }
        let work = self.make_work(&lock)?;
        for (number, path) in garbage.iter().enumerate() {
            fs::rename(path, work.path(&format!("garbage-{number}")))?;
        }
        drop(lock);
        work.end();
        Ok(())
    }

    /// All blobs with their sizes.
    pub(super) fn blobs(&self) -> io::Result<Vec<(PathBuf, u64)>> {
        let mut blobs = vec![];
        for algorithm in fs::read_dir(self.root.join("blobs"))? {
            for entry in fs::read_dir(algorithm?.path())? {
                let entry = entry?;
                match entry.metadata() {
                    Ok(meta) => blobs.push((entry.path(), meta.blocks().saturating_mul(512))),
                    // Swept meanwhile.
                    Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(blobs)
    }

    pub(super) fn read_holders(&self) -> io::Result<Vec<Holder>> {
        let mut holders = vec![];
        for entry in fs::read_dir(self.holders())? {
            let path = entry?.path();
            // Not what is being written, nor what is left of that.
            if path.extension().is_some_and(|e| e == "json") {
                holders.extend(read_json::<Holder>(&path)?);
            }
        }
        Ok(holders)
    }

    fn holder(&self, id: &str) -> PathBuf {
        // Ids are chosen by callers: what they look like as a file's name is not.
        self.holders().join(format!("{}.json", Digest::of(id.as_bytes()).hex()))
    }

    pub(super) fn write_holder(&self, holder: &Holder) -> io::Result<()> {
        // No containers are left after a power cut, so it need not be on the disk.
        write_json(&self.holder(&holder.id), holder, Durability::Process)
    }

    pub(super) fn remove_holder(&self, id: &str) -> io::Result<Option<Holder>> {
        let path = self.holder(id);
        let holder = read_json(&path)?;
        ignore_missing(fs::remove_file(path))?;
        Ok(holder)
    }

    /// Puts everything on the disk: what the index names must be there after a power cut too.
    pub(super) fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(File::open(&self.root)?)?)
    }
}

/// A container that uses an image's layers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Holder {
    pub id: String,
    /// Whose container it is: each node of a machine knows its own.
    pub owner: String,
    /// The image's id.
    pub image: String,
    pub layers: Vec<Digest>,
}

/// The right to change the store.
pub(super) struct StoreLock {
    _file: File,
}

const LEASE: &str = "lease";

/// A directory for work that is removed when it ends, however it ends.
pub(super) struct Work {
    layout: Layout,
    dir: PathBuf,
    /// Locked for as long as it is open; `None` once the work has ended.
    lease: Option<File>,
}

impl Work {
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Removes what is left of it, now.
    pub(super) fn end(mut self) {
        if let Some(lease) = self.lease.take() {
            end_work(&self.dir, lease);
        }
    }

    /// Says what this work relies on, before it looks whether it is there.
    pub(super) fn rely_on(&self, needs: &Needs) -> io::Result<()> {
        let _lock = self.layout.lock()?;
        // In place: the lock belongs to the file.
        let text = serde_json::to_vec(needs).map_err(io::Error::other)?;
        fs::write(self.dir.join(LEASE), text)
    }

    /// Gives a complete file its place among the blobs; whoever comes second with the same has done no harm.
    pub(super) fn publish_blob(&self, file: &Path, digest: &Digest) -> io::Result<()> {
        let place = self.layout.blob(digest);
        if let Some(parent) = place.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
        }
        fs::rename(file, place)
    }

    /// A small blob that is in memory, unless it is there.
    pub(super) fn write_blob(&self, digest: &Digest, content: &[u8]) -> io::Result<()> {
        if self.layout.has_blob(digest) {
            return Ok(());
        }
        let path = self.path(&format!("blob-{}", digest.hex()));
        fs::write(&path, content)?;
        self.publish_blob(&path, digest)
    }

    /// Gives a complete layer its place. `dir` has `fs` in it.
    pub(super) fn publish_layer(&self, dir: &Path, info: &LayerInfo) -> io::Result<()> {
        write_json(&dir.join("layer.json"), info, Durability::Process)?;
        match fs::rename(dir, self.layout.layer(&info.chain_id)) {
            // Unpacked by somebody else meanwhile.
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists
                ) =>
            {
                Ok(())
            }
            other => other,
        }
    }
}

impl Drop for Work {
    /// For work that was given up. Removing takes its time, which is not to be that of whoever dropped a future; if
    /// nobody does it any more, the next sweep will.
    fn drop(&mut self) {
        let Some(lease) = self.lease.take() else {
            return;
        };
        let dir = std::mem::take(&mut self.dir);
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || end_work(&dir, lease))),
            Err(_) => end_work(&dir, lease),
        }
    }
}

fn end_work(dir: &Path, lease: File) {
    if let Err(err) = remove_tree(dir) {
        tracing::warn!(dir = %dir.display(), %err, "failed to remove work directory");
    }
    // While it is locked nobody else removes what we are removing.
    drop(lease);
}

/// The name of a layer's directory: short enough that as many layers as there may be fit into a page of mount options,
/// given relative to their parent (127 × 28 bytes). 96 bits are enough to tell layers apart; `layer.json` has all of it.
fn layer_id(chain_id: &Digest) -> String {
    chain_id.hex()[..24].to_string()
}

fn open_lock(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.open(path)
}

/// Whether nobody holds the lease any more.
fn is_abandoned(dir: &Path) -> io::Result<bool> {
    let lease = match File::open(dir.join(LEASE)) {
        Ok(lease) => lease,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(true),
        Err(e) => return Err(e),
    };
    match rustix::fs::flock(&lease, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Removes a directory with all that is in it. Doing it again is fine.
fn remove_tree(dir: &Path) -> io::Result<()> {
    ignore_missing(fs::remove_dir_all(dir))
}

pub(super) fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// A file that is there; a file that cannot be read as what it should be is an error.
pub(super) fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    // A lease that says nothing yet.
    if text.is_empty() {
        return Ok(None);
    }
    let value = serde_json::from_slice(&text).map_err(|e| {
        let message = format!("{}: {e}", path.display());
        io::Error::new(io::ErrorKind::InvalidData, message)
    })?;
    Ok(Some(value))
}

/// What a written file has to survive.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Durability {
    /// The process being killed.
    Process,
    /// A power cut.
    Machine,
}

/// The extension of files that are being written.
const TEMPORARY: &str = "new";

/// Replaces a file whole.
pub(super) fn write_json(path: &Path, value: &impl Serialize, durability: Durability) -> io::Result<()> {
    let text = serde_json::to_vec(value).map_err(io::Error::other)?;
    let temporary = path.with_extension(TEMPORARY);
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(&temporary)?;
    file.write_all(&text)?;
    if durability == Durability::Machine {
        file.sync_data()?;
    }
    fs::rename(temporary, path)
}
