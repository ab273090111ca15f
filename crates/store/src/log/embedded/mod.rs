//! The default log: files in one directory, which one process owns.
//!
//! ```text
//! lock                          flock'ed; the owner's pid
//! log-<first revision>.orl      batches, one frame each, appended and synced before anyone is answered
//! snapshot-<revision>.orl       the live state at a revision; written beside the log, then older files go
//! mark                          up to where the log is known to be durable
//! *.tmp                         unfinished; removed at open
//! ```
//!
//! The active segment is made at the first commit that needs one. After a failure its state is unknown beyond `good`,
//! the length up to which it is durable: nothing more is written before it has been cut back to that, or left for a new
//! segment whose header says where it ends, so what was answered as failed cannot come back after a restart. As long as
//! neither works, whether the batch will be there after a restart is not known, and is not claimed to be.

mod disk;
mod frame;
mod lock;
mod mark;
mod recovery;
mod snapshot;

#[cfg(test)]
mod faulty;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use orlop_base::clock::monotonic;
use parking_lot::Mutex;

use self::disk::{Disk, DiskFile, RealDisk, UnsyncedDisk};
use self::frame::{HEADER, Header, Link, Magic};
use self::lock::DirLock;
use self::mark::{Mark, Marked};
use self::recovery::Active;
use super::{AppendResult, Checkpoint, Log, LogError, LogMeter, OpenError, Replayed, Transaction};
use crate::Revision;

/// A buffer larger than this is given back after the batch that needed it.
const BUFFER_KEPT: usize = 1 << 20;

#[derive(Clone, Debug)]
pub struct EmbeddedOptions {
    /// A snapshot is written when the log is longer than this and than twice the live state.
    pub snapshot_bytes: u64,
    /// Whether to wait for the disk. Without that a crash of the machine (not of the process) loses what was acknowledged.
    pub sync: bool,
}

impl Default for EmbeddedOptions {
    fn default() -> EmbeddedOptions {
        EmbeddedOptions {
            snapshot_bytes: 64 << 20,
            sync: true,
        }
    }
}

pub struct EmbeddedLog {
    dir: PathBuf,
    disk: Arc<dyn Disk>,
    options: EmbeddedOptions,
    /// The last durable revision.
    revision: Revision,
    active: Option<Segment>,
    /// The segment before the active one.
    previous: Link,
    mark: Mark,
    inventory: Arc<Mutex<Inventory>>,
    meter: Arc<LogMeter>,
    buffer: Vec<u8>,
    /// Last, so that it is released after everything else is closed.
    _lock: DirLock,
}

/// The file that is being appended to.
struct Segment {
    path: PathBuf,
    first: Revision,
    /// None: to be opened anew before use.
    file: Option<Box<dyn DiskFile>>,
    /// Durable up to here.
    good: u64,
    /// The checksum of the last frame before `good`.
    chain: u32,
    health: Health,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Health {
    Good,
    /// A write failed: there may be something beyond `good`.
    Longer,
    /// A sync failed: the same, and the kernel may have dropped what it could not write. Or there may be a segment that
    /// goes on from `good`. Take a new file afterwards.
    Suspect,
}

/// The files that are complete, shared with a snapshot being written.
#[derive(Default)]
struct Inventory {
    sealed: Vec<Sealed>,
    snapshot: Option<(PathBuf, u64)>,
    active_bytes: u64,
    retry_at: u64,
}

struct Sealed {
    path: PathBuf,
    bytes: u64,
}

impl Inventory {
    fn log_bytes(&self) -> u64 {
        self.active_bytes + self.sealed.iter().map(|sealed| sealed.bytes).sum::<u64>()
    }

    fn bytes(&self) -> u64 {
        self.log_bytes() + self.snapshot.as_ref().map_or(0, |(_, bytes)| *bytes)
    }
}

fn segment_name(first: Revision) -> String {
    format!("log-{first:020}.orl")
}

fn snapshot_name(revision: Revision) -> String {
    format!("snapshot-{revision:020}.orl")
}

/// Makes the directory and those above it, durably: a synced file is lost all the same if its directory is.
fn make_dir(dir: &Path) -> io::Result<()> {
    let missing = dir
        .ancestors()
        .take_while(|above| !above.as_os_str().is_empty() && !above.exists())
        .count();
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    for above in dir
        .ancestors()
        .skip(1)
        .take(missing)
        .filter(|above| !above.as_os_str().is_empty())
    {
        File::open(above)?.sync_all()?;
    }
    Ok(())
}

impl EmbeddedLog {
    /// Makes the directory if need be and takes its lock. Nothing is read before `Store::open`.
    pub fn open(dir: impl AsRef<Path>, options: EmbeddedOptions) -> Result<EmbeddedLog, OpenError> {
        let disk: Arc<dyn Disk> = match options.sync {
            true => Arc::new(RealDisk),
            false => Arc::new(UnsyncedDisk),
        };
        EmbeddedLog::open_on(disk, dir.as_ref(), options)
    }

    fn open_on(disk: Arc<dyn Disk>, dir: &Path, options: EmbeddedOptions) -> Result<EmbeddedLog, OpenError> {
        make_dir(dir).map_err(OpenError::io(dir))?;
        let lock = DirLock::take(dir)?;
        Ok(EmbeddedLog {
            dir: dir.into(),
            disk,
            options,
            revision: 1,
            active: None,
            previous: Link::default(),
            mark: Mark::new(dir),
            inventory: Arc::default(),
            meter: Arc::default(),
            buffer: Vec::new(),
            _lock: lock,
        })
    }

    /// Sees to it that there is a segment that can be appended to.
    fn prepare(&mut self) -> Result<(), LogError> {
        self.undo()?;
        if self.active.is_none() {
            self.active = Some(self.create(self.previous)?);
        }
        Ok(())
    }

    /// Appends a frame and makes it durable; `revision` is the last one afterwards. After `prepare`.
    fn append(&mut self, revision: Revision, payload: impl FnOnce(&mut Vec<u8>)) -> Result<(), LogError> {
        let segment = self.active.as_mut().expect("prepared before");
        self.buffer.clear();
        let chain = frame::frame(&mut self.buffer, segment.chain, payload);
        let appended = segment.append(&self.buffer, chain, &self.meter);
        let written = self.buffer.len() as u64;
        if self.buffer.capacity() > BUFFER_KEPT {
            self.buffer = Vec::new();
        }
        if let Err(error) = appended {
            let mut error = LogError::new(&segment.path, error);
            // Part of a frame is no frame.
            let may_be_whole = segment.health == Health::Suspect;
            // At once, so that a restart does not find the failed batch; if it fails too, before the next append.
            if let Err(undoing) = self.undo() {
                tracing::error!(error = %undoing, "failed to undo a failed write; refusing writes until that works");
                error.undecided = may_be_whole;
            }
            return Err(error);
        }
        self.revision = revision;
        // Before anyone is answered: who finds less than this knows that it was acknowledged.
        self.mark.raise(Marked {
            segment: segment.first,
            revision,
        });
        let disk_bytes = {
            let mut inventory = self.inventory.lock();
            inventory.active_bytes = segment.good;
            inventory.bytes()
        };
        self.meter.disk_bytes.store(disk_bytes, Ordering::Relaxed);
        self.meter.written_bytes.fetch_add(written, Ordering::Relaxed);
        Ok(())
    }

    /// Cuts off what a failure may have left, or leaves it behind. Until this works nothing can be written.
    fn undo(&mut self) -> Result<(), LogError> {
        let Some(segment) = &mut self.active else { return Ok(()) };
        if segment.health == Health::Good {
            return Ok(());
        }
        let Err(error) = segment.cut(&*self.disk) else {
            if segment.health == Health::Suspect {
                self.seal();
            } else {
                segment.health = Health::Good;
            }
            return Ok(());
        };
        // From here on there may be a segment that says where this one ends, even if making it fails half-way.
        segment.health = Health::Suspect;
        let error = LogError::new(&segment.path, error);
        let (first, link) = (segment.first, segment.link());
        let link = if self.is_replaced_by_next(first) {
            self.previous
        } else {
            link
        };
        let next = self.create(link).map_err(|_| error)?;
        self.seal();
        self.active = Some(next);
        Ok(())
    }

    /// A segment without batches has the name that the next one will have.
    fn is_replaced_by_next(&self, first: Revision) -> bool {
        first == self.revision + 1
    }

    /// The next commit starts a new segment.
    fn seal(&mut self) {
        if let Some(segment) = self.active.take() {
            let is_replaced = self.is_replaced_by_next(segment.first);
            let mut inventory = self.inventory.lock();
            inventory.active_bytes = 0;
            if !is_replaced {
                self.previous = segment.link();
                inventory.sealed.push(Sealed {
                    path: segment.path,
                    bytes: segment.good,
                });
            }
        }
    }

    /// A segment whose header is durable before it has its name, so that a crash leaves none without; and one that has
    /// its name before the mark tells of it.
    fn create(&mut self, link: Link) -> Result<Segment, LogError> {
        let first = self.revision + 1;
        let path = self.dir.join(segment_name(first));
        let created = self.create_file(&path, first, link).and_then(|(file, chain)| {
            let marked = Marked {
                segment: first,
                revision: self.revision,
            };
            self.mark.store(&*self.disk, marked)?;
            Ok((file, chain))
        });
        let (file, chain) = created.map_err(|error| LogError::new(&path, error))?;
        Ok(Segment {
            path,
            first,
            file: Some(file),
            good: HEADER as u64,
            chain,
            health: Health::Good,
        })
    }

    fn create_file(&self, path: &Path, first: Revision, link: Link) -> io::Result<(Box<dyn DiskFile>, u32)> {
        let unfinished = path.with_extension("tmp");
        let mut file = self.disk.create(&unfinished)?;
        let header = Header {
            revision: first,
            count: 0,
            link,
        };
        let (header, chain) = header.encode(Magic::Log);
        file.write_all(&header)?;
        file.sync()?;
        self.disk.rename(&unfinished, path)?;
        self.disk.sync_dir(&self.dir)?;
        Ok((file, chain))
    }
}

impl Segment {
    fn link(&self) -> Link {
        Link {
            segment: self.first,
            end: self.good,
            chain: self.chain,
        }
    }

    fn append(&mut self, bytes: &[u8], chain: u32, meter: &LogMeter) -> io::Result<()> {
        let file = self.file.as_mut().expect("a segment in good health is open");
        if let Err(error) = file.write_all(bytes) {
            self.health = Health::Longer;
            return Err(error);
        }
        let start = monotonic();
        if let Err(error) = file.sync() {
            self.health = Health::Suspect;
            return Err(error);
        }
        meter.synced(start.elapsed());
        self.good += bytes.len() as u64;
        self.chain = chain;
        Ok(())
    }

    fn cut(&mut self, disk: &dyn Disk) -> io::Result<()> {
        // Through a new descriptor: errors of the old one are not to be mistaken for errors of the cut.
        self.file = None;
        let mut file = disk.append(&self.path)?;
        file.truncate(self.good)?;
        file.sync()?;
        self.file = Some(file);
        Ok(())
    }
}

impl Log for EmbeddedLog {
    fn replay(&mut self, sink: &mut dyn FnMut(Replayed)) -> Result<Revision, OpenError> {
        let recovered = recovery::recover(&self.dir, &*self.disk, sink)?;
        self.revision = recovered.revision;
        self.previous = recovered.previous;
        let mut inventory = self.inventory.lock();
        inventory.sealed = recovered.sealed;
        inventory.snapshot = recovered.snapshot;
        if let Some(Active { first, bytes, chain }) = recovered.active {
            let path = self.dir.join(segment_name(first));
            let file = self.disk.append(&path).map_err(OpenError::io(&path))?;
            // Before what it replaces goes: the mark must not name a segment that was removed.
            let marked = Marked {
                segment: first,
                revision: self.revision,
            };
            let stored = self.mark.store(&*self.disk, marked);
            stored.map_err(OpenError::io(mark::mark_path(&self.dir)))?;
            inventory.active_bytes = bytes;
            self.active = Some(Segment {
                path,
                first,
                file: Some(file),
                good: bytes,
                chain,
                health: Health::Good,
            });
        }
        recovery::remove(&*self.disk, &recovered.superfluous);
        self.meter.disk_bytes.store(inventory.bytes(), Ordering::Relaxed);
        Ok(self.revision)
    }

    fn commit(&mut self, micros: i64, batch: &[Transaction<'_>]) -> Result<Vec<AppendResult>, LogError> {
        let revision = self.revision + batch.len() as u64;
        self.prepare()
            .and_then(|()| self.append(revision, |out| frame::put_batch(out, micros, batch)))
            .inspect_err(|_| {
                self.meter.failures.fetch_add(1, Ordering::Relaxed);
            })?;
        Ok(batch
            .iter()
            .map(|transaction| AppendResult::Committed(transaction.revision))
            .collect())
    }

    fn repair(&mut self) -> Result<(), LogError> {
        self.undo()
    }

    fn probe(&mut self, micros: i64) -> Result<(), LogError> {
        let revision = self.revision;
        self.prepare()?;
        self.append(revision, |out| frame::put_void(out, revision + 1, micros))
    }

    fn checkpoint(&mut self, live_bytes: u64) -> Option<Box<dyn Checkpoint>> {
        let log_bytes = {
            let inventory = self.inventory.lock();
            let bytes = inventory.log_bytes();
            let outgrown = bytes > self.options.snapshot_bytes.max(2 * live_bytes) && bytes >= inventory.retry_at;
            outgrown.then_some(bytes)?
        };
        if self
            .active
            .as_ref()
            .is_some_and(|segment| segment.health != Health::Good)
        {
            return None;
        }
        self.seal();
        let inventory = self.inventory.lock();
        let sealed = inventory.sealed.iter().map(|sealed| sealed.path.clone());
        let superseded = sealed
            .chain(inventory.snapshot.iter().map(|(path, _)| path.clone()))
            .collect();
        drop(inventory);
        Some(Box::new(snapshot::Job {
            dir: self.dir.clone(),
            disk: self.disk.clone(),
            inventory: self.inventory.clone(),
            meter: self.meter.clone(),
            sealed: self.revision,
            superseded,
            expected: live_bytes,
            retry_at: log_bytes + self.options.snapshot_bytes / 4,
        }))
    }

    fn meter(&self) -> Arc<LogMeter> {
        self.meter.clone()
    }
}
