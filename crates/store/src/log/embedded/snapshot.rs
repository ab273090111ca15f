//! Snapshots: the live state in one file, so that the log before it can go.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::disk::Disk;
use super::frame::{self, Damage, Format, Header, Link, Magic, Next, Opened};
use super::{Inventory, snapshot_name};
use crate::Revision;
use crate::log::{BaseItem, Checkpoint, LogError, LogMeter};

/// Bytes of a frame, roughly: small enough to stop quickly when cancelled.
const FRAME_BYTES: usize = 256 << 10;
/// Bytes to leave free for the log while a snapshot is being written.
const SPARE_BYTES: u64 = 1 << 20;
/// Bytes between syncs: one large sync at the end would make the log's own wait behind it.
const SYNC_BYTES: usize = 8 << 20;

pub(super) struct Loaded {
    pub revision: Revision,
    /// The log up to this revision is superfluous.
    pub replaced: Revision,
    pub items: Vec<BaseItem>,
}

/// Everything in the snapshot, or why it cannot be used.
pub(super) fn load(path: &Path) -> io::Result<Result<Loaded, Damage>> {
    let mut file = BufReader::with_capacity(FRAME_BYTES, File::open(path)?);
    let opened = match frame::read_header(Magic::Snapshot, &mut file)? {
        Ok(opened) => opened,
        Err(reason) => return Ok(Err(reason)),
    };
    let Header { revision, link, .. } = opened.header;
    let replaced = match opened.format {
        Format::V1 => revision,
        Format::V2 => link.segment.saturating_sub(1),
    };
    Ok(load_items(&mut file, opened)?.map(|items| Loaded {
        revision,
        replaced,
        items,
    }))
}

fn load_items(file: &mut dyn Read, opened: Opened) -> io::Result<Result<Vec<BaseItem>, Damage>> {
    let count = opened.header.count;
    let mut chain = opened.chain;
    let mut items = Vec::new();
    let mut payload = Vec::new();
    loop {
        match frame::next_frame(opened.format, file, &mut payload)? {
            Next::Frame(head) if head.previous.is_some_and(|previous| previous != chain) => {
                return Ok(Err("a frame does not follow the one before it".into()));
            }
            Next::Frame(head) => {
                chain = head.crc;
                if let Err(reason) = frame::get_items(&payload, &mut items) {
                    return Ok(Err(reason));
                }
            }
            Next::End if items.len() as u64 == count => return Ok(Ok(items)),
            Next::End => return Ok(Err(format!("{} of {count} items are there", items.len()).into())),
            Next::Broken(reason) => return Ok(Err(reason.into())),
        }
    }
}

/// A snapshot to be written.
pub(super) struct Job {
    pub dir: PathBuf,
    pub disk: Arc<dyn Disk>,
    pub inventory: Arc<Mutex<Inventory>>,
    pub meter: Arc<LogMeter>,
    /// The last revision of the log when the snapshot began.
    pub sealed: Revision,
    /// What it makes superfluous.
    pub superseded: Vec<PathBuf>,
    /// Bytes it is going to take, roughly.
    pub expected: u64,
    /// If it fails, do not try again before the log has grown to this.
    pub retry_at: u64,
}

impl Checkpoint for Job {
    fn write(
        self: Box<Self>,
        revision: Revision,
        count: u64,
        items: &mut dyn Iterator<Item = BaseItem>,
        cancel: &AtomicBool,
    ) -> Result<(), LogError> {
        let path = self.dir.join(snapshot_name(revision));
        let unfinished = path.with_extension("tmp");
        let link = Link {
            segment: self.sealed + 1,
            ..Link::default()
        };
        let header = Header { revision, count, link };
        match self.write_file(&unfinished, &path, header, items, cancel) {
            Ok(None) => {
                let _ = self.disk.remove(&unfinished);
                Ok(())
            }
            Ok(Some(bytes)) => {
                self.adopt(path, revision, bytes);
                Ok(())
            }
            Err(error) => {
                let _ = self.disk.remove(&unfinished);
                self.inventory.lock().retry_at = self.retry_at;
                Err(LogError::new(path, error))
            }
        }
    }
}

impl Job {
    /// The length of the file, or none if cancelled.
    fn write_file(
        &self,
        unfinished: &Path,
        path: &Path,
        header: Header,
        items: &mut dyn Iterator<Item = BaseItem>,
        cancel: &AtomicBool,
    ) -> io::Result<Option<u64>> {
        // The log must not run out of space because of us.
        if self.disk.available(&self.dir)? < self.expected.saturating_add(self.expected / 8 + SPARE_BYTES) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let mut file = self.disk.create(unfinished)?;
        let (header, mut chain) = header.encode(Magic::Snapshot);
        let mut buffer = header.to_vec();
        let (mut written, mut unsynced) = (0, 0);
        let mut some = Vec::new();
        loop {
            if cancel.load(Ordering::Relaxed) {
                return Ok(None);
            }
            some.clear();
            let mut bytes = 0;
            while bytes < FRAME_BYTES
                && let Some(item) = items.next()
            {
                bytes += item.key.len() + item.bytes.len();
                some.push(item);
            }
            if some.is_empty() && buffer.is_empty() {
                break;
            }
            if !some.is_empty() {
                chain = frame::frame(&mut buffer, chain, |out| frame::put_items(out, &some));
            }
            file.write_all(&buffer)?;
            written += buffer.len() as u64;
            unsynced += buffer.len();
            buffer.clear();
            if unsynced >= SYNC_BYTES {
                file.sync()?;
                unsynced = 0;
            }
        }
        if cancel.load(Ordering::Relaxed) {
            return Ok(None);
        }
        file.sync()?;
        drop(file);
        self.disk.rename(unfinished, path)?;
        self.disk.sync_dir(&self.dir)?;
        Ok(Some(written))
    }

    /// The snapshot counts now; what it replaces can go. A file that cannot be removed is tried again at the next open.
    fn adopt(&self, path: PathBuf, revision: Revision, bytes: u64) {
        for old in self.superseded.iter().filter(|old| **old != path) {
            if let Err(error) = self.disk.remove(old) {
                tracing::warn!(path = %old.display(), %error, "failed to remove a superseded file");
            }
        }
        let mut inventory = self.inventory.lock();
        inventory
            .sealed
            .retain(|sealed| !self.superseded.contains(&sealed.path));
        inventory.snapshot = Some((path, bytes));
        inventory.retry_at = 0;
        self.meter.disk_bytes.store(inventory.bytes(), Ordering::Relaxed);
        self.meter.snapshots.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(revision, bytes, "wrote a snapshot");
    }
}
