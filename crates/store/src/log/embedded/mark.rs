//! The high-water mark: up to where the log is known to be durable, in a file of its own.
//!
//! ```text
//! mark      = magic[8] version:u32 segment:u64 revision:u64 crc:u32      crc over the 28 bytes before it
//! ```
//!
//! It is what tells a torn end of the log (never synced, so never acknowledged) from damage to it. It is written over
//! in place after every sync of the log and before anyone is answered, but synced itself only when a segment begins and
//! at the end: a process that is killed leaves it exact, a power cut leaves an older one. So it may be too low and never
//! too high: recovery must reach it, and may go beyond it.

use std::io;
use std::path::{Path, PathBuf};

use super::disk::{Disk, DiskFile};
use crate::Revision;

const MAGIC: &[u8; 8] = b"ORLOPMRK";
const VERSION: u32 = 1;
const BYTES: usize = 32;

/// What was durable when the mark was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Marked {
    /// The segment that was being written to, by its first revision: it exists unless a snapshot replaced it.
    pub segment: Revision,
    pub revision: Revision,
}

impl Marked {
    fn encode(self) -> [u8; BYTES] {
        let mut out = [0; BYTES];
        out[..8].copy_from_slice(MAGIC);
        out[8..12].copy_from_slice(&VERSION.to_le_bytes());
        out[12..20].copy_from_slice(&self.segment.to_le_bytes());
        out[20..28].copy_from_slice(&self.revision.to_le_bytes());
        let crc = crc32fast::hash(&out[..28]);
        out[28..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8]) -> Option<Marked> {
        let bytes: &[u8; BYTES] = bytes.try_into().ok()?;
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let is_whole = bytes[28..] == crc32fast::hash(&bytes[..28]).to_le_bytes();
        (is_whole && bytes[..8] == *MAGIC && bytes[8..12] == VERSION.to_le_bytes()).then(|| Marked {
            segment: u64_at(12),
            revision: u64_at(20),
        })
    }
}

pub(super) fn mark_path(dir: &Path) -> PathBuf {
    dir.join("mark")
}

/// None if there is none, or none that can be read.
pub(super) fn load(dir: &Path) -> io::Result<Option<Marked>> {
    let path = mark_path(dir);
    let bytes = match std::fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read?,
    };
    let marked = Marked::decode(&bytes);
    if marked.is_none() {
        // A power cut can leave it empty. Whoever damages the log and the mark alike is not noticed.
        tracing::warn!(path = %path.display(), "ignored an unreadable high-water mark of the log");
    }
    Ok(marked)
}

pub(super) struct Mark {
    dir: PathBuf,
    file: Option<Box<dyn DiskFile>>,
    is_failing: bool,
}

impl Mark {
    pub(super) fn new(dir: &Path) -> Mark {
        Mark {
            dir: dir.into(),
            file: None,
            is_failing: false,
        }
    }

    /// Durable when this returns. The file is made if it is not there.
    pub(super) fn store(&mut self, disk: &dyn Disk, marked: Marked) -> io::Result<()> {
        let path = mark_path(&self.dir);
        // Through a new descriptor: errors of an old one are not to be mistaken for errors of this.
        self.file = None;
        let is_new = !path.exists();
        let mut file = if is_new {
            disk.create(&path)?
        } else {
            disk.update(&path)?
        };
        file.write_at(0, &marked.encode())?;
        file.sync()?;
        if is_new {
            disk.sync_dir(&self.dir)?;
        }
        self.file = Some(file);
        Ok(())
    }

    /// Not durable. What it is about is, so a failure is no reason to refuse anything: the mark stays lower than it could.
    pub(super) fn raise(&mut self, marked: Marked) {
        let Some(file) = &mut self.file else { return };
        let written = file.write_at(0, &marked.encode());
        match written {
            Err(error) if !self.is_failing => {
                let path = mark_path(&self.dir);
                tracing::warn!(path = %path.display(), %error, "failed to raise the high-water mark of the log");
                self.is_failing = true;
            }
            Ok(()) => self.is_failing = false,
            Err(_) => {}
        }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // A clean end leaves an exact one, whatever happens to the machine afterwards.
        if let Some(mut file) = self.file.take() {
            let _ = file.sync();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_change_is_noticed() {
        let marked = Marked {
            segment: 7,
            revision: 1 << 40,
        };
        let bytes = marked.encode();
        assert_eq!(Marked::decode(&bytes), Some(marked));
        for at in 0..BYTES {
            let mut changed = bytes;
            changed[at] ^= 0x10;
            assert_eq!(Marked::decode(&changed), None, "byte {at}");
            assert_eq!(Marked::decode(&bytes[..at]), None, "cut at {at}");
        }
        assert_eq!(Marked::decode(&[0; BYTES]), None);
    }
}
