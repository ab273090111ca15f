//! The default log: files in one directory, which one process owns.
//!
//! ```text
//! lock                          flock'ed; the owner's pid
//! log-<first revision>.orl      batches, one frame each, appended and synced before anyone is answered
//! snapshot-<revision>.orl       the live state at a revision; written beside the log, then older files go
//! *.tmp                         unfinished; removed at open
//! ```
//!
//! The active segment is made at the first commit that needs one. After a failure its state is unknown beyond `good`,
//! the length up to which it is durable: nothing more is written before it has been cut back to that, so what was
//! answered as failed cannot come back after a restart.

mod disk;
mod frame;
mod lock;
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
use std::time::Instant;

use parking_lot::Mutex;

use self::disk::{Disk, DiskFile, RealDisk};
use self::frame::{HEADER, Header, Magic};
use self::lock::DirLock;
use super::{Checkpoint, Log, LogError, LogMeter, OpenError, Outcome, Replayed, Transaction};
use crate::Revision;

/// A buffer larger than this is given back after the batch that needed it.
const BUFFER_KEPT: usize = 1 << 20;

#[derive(Clone, Debug)]
pub struct EmbeddedOptions {
    /// A snapshot is written when the log is longer than this and than twice the live state.
    pub snapshot_bytes: u64,
}

impl Default for EmbeddedOptions {
    fn default() -> EmbeddedOptions {
        EmbeddedOptions {
            snapshot_bytes: 64 << 20,
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
    inventory: Arc<Mutex<Inventory>>,
    meter: Arc<LogMeter>,
    buffer: Vec<u8>,
    /// Last, so that it is released after everything else is closed.
    _lock: DirLock,
}

/// The file that is being appended to.
struct Segment {
    path: PathBuf,
    /// None: to be opened anew before use.
    file: Option<Box<dyn DiskFile>>,
    /// Durable up to here.
    good: u64,
    health: Health,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Health {
    Good,
    /// A write failed: there may be something beyond `good`.
    Longer,
    /// A sync failed: the same, and the kernel may have dropped what it could not write. Take a new file afterwards.
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
        EmbeddedLog::open_on(Arc::new(RealDisk), dir.as_ref(), options)
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
            inventory: Arc::default(),
            meter: Arc::default(),
            buffer: Vec::new(),
            _lock: lock,
        })
    }

    /// Appends the buffer and makes it durable.
    fn append(&mut self) -> Result<(), LogError> {
        self.repair()?;
        if self.active.is_none() {
            let path = self.dir.join(segment_name(self.revision + 1));
            let created = self.create(&path);
            self.active = Some(created.map_err(|error| LogError::new(&path, error))?);
        }
        let segment = self.active.as_mut().expect("made above");
        segment
            .append(&self.buffer, &self.meter)
            .map_err(|error| LogError::new(&segment.path, error))?;
        self.inventory.lock().active_bytes = segment.good;
        Ok(())
    }

    /// Cuts off what a failure may have left. Until this works nothing can be written.
    fn repair(&mut self) -> Result<(), LogError> {
        let Some(segment) = &mut self.active else { return Ok(()) };
        if segment.health == Health::Good {
            return Ok(());
        }
        segment
            .cut(&*self.disk)
            .map_err(|error| LogError::new(&segment.path, error))?;
        if segment.health == Health::Suspect {
            self.seal();
        } else {
            segment.health = Health::Good;
        }
        Ok(())
    }

    /// The next commit starts a new segment.
    fn seal(&mut self) {
        if let Some(segment) = self.active.take() {
            let mut inventory = self.inventory.lock();
            inventory.active_bytes = 0;
            // One without batches has the name that the next one will have, and is replaced by it.
            if segment.good > HEADER as u64 {
                inventory.sealed.push(Sealed {
                    path: segment.path,
                    bytes: segment.good,
                });
            }
        }
    }

    /// A segment whose header is durable before it has its name, so that a crash leaves none without.
    fn create(&self, path: &Path) -> io::Result<Segment> {
        let unfinished = path.with_extension("tmp");
        let mut file = self.disk.create(&unfinished)?;
        file.write_all(
            &Header {
                revision: self.revision + 1,
                count: 0,
            }
            .encode(Magic::Log),
        )?;
        file.sync()?;
        self.disk.rename(&unfinished, path)?;
        self.disk.sync_dir(&self.dir)?;
        Ok(Segment {
            path: path.into(),
            file: Some(file),
            good: HEADER as u64,
            health: Health::Good,
        })
    }
}

impl Segment {
    fn append(&mut self, bytes: &[u8], meter: &LogMeter) -> io::Result<()> {
        let file = self.file.as_mut().expect("a segment in good health is open");
        if let Err(error) = file.write_all(bytes) {
            self.health = Health::Longer;
            return Err(error);
        }
        #[allow(clippy::disallowed_methods, reason = "measures the disk; nothing depends on it")]
        let start = Instant::now();
        if let Err(error) = file.sync() {
            self.health = Health::Suspect;
            return Err(error);
        }
        meter.synced(start.elapsed());
        self.good += bytes.len() as u64;
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
        let mut inventory = self.inventory.lock();
        inventory.sealed = recovered.sealed;
        inventory.snapshot = recovered.snapshot;
        if let Some(Sealed { path, bytes }) = recovered.active {
            let mut file = self.disk.append(&path).map_err(OpenError::io(&path))?;
            // The last process may have died between writing and syncing. What we show from now on must stay.
            file.sync().map_err(OpenError::io(&path))?;
            inventory.active_bytes = bytes;
            self.active = Some(Segment {
                path,
                file: Some(file),
                good: bytes,
                health: Health::Good,
            });
        }
        self.meter.disk_bytes.store(inventory.bytes(), Ordering::Relaxed);
        Ok(self.revision)
    }

    fn commit(&mut self, micros: i64, batch: &[Transaction<'_>]) -> Result<Vec<Outcome>, LogError> {
        self.buffer.clear();
        frame::frame(&mut self.buffer, |out| frame::put_batch(out, micros, batch));
        let appended = self.append();
        let written = self.buffer.len() as u64;
        if self.buffer.capacity() > BUFFER_KEPT {
            self.buffer = Vec::new();
        }
        if let Err(error) = appended {
            self.meter.failures.fetch_add(1, Ordering::Relaxed);
            // At once, so that a restart does not find the failed batch; if it fails too, before the next append.
            if let Err(error) = self.repair() {
                tracing::error!(%error, "cannot cut off a failed write; refusing writes until that works");
            }
            return Err(error);
        }
        self.revision += batch.len() as u64;
        self.meter.written_bytes.fetch_add(written, Ordering::Relaxed);
        self.meter
            .disk_bytes
            .store(self.inventory.lock().bytes(), Ordering::Relaxed);
        Ok(batch
            .iter()
            .map(|transaction| Outcome::Committed(transaction.revision))
            .collect())
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
            superseded,
            expected: live_bytes,
            retry_at: log_bytes + self.options.snapshot_bytes / 4,
        }))
    }

    fn meter(&self) -> Arc<LogMeter> {
        self.meter.clone()
    }
}
