//! Reading the directory back: the newest whole snapshot and the segments after it.
//!
//! A broken end of the last segment is what a crash leaves: it was never acknowledged, so it is cut off and reported.
//! Anything else that does not fit together is damage to acknowledged data, and refused.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::disk::Disk;
use super::frame::{self, FRAME, HEADER, Header, Magic, Next};
use super::{Sealed, snapshot};
use crate::Revision;
use crate::log::{OpenError, Replayed};

/// The revision of a store in which nothing happened yet.
const EMPTY: Revision = 1;

pub struct Recovered {
    pub revision: Revision,
    pub sealed: Vec<Sealed>,
    /// The segment to go on with, if there is one that ends at `revision`.
    pub active: Option<Sealed>,
    pub snapshot: Option<(PathBuf, u64)>,
}

/// What is in the directory, ascending by revision.
#[derive(Default)]
struct Listing {
    segments: Vec<(Revision, PathBuf)>,
    snapshots: Vec<(Revision, PathBuf)>,
    unfinished: Vec<PathBuf>,
}

fn list(dir: &Path) -> Result<Listing, OpenError> {
    let mut listing = Listing::default();
    for entry in std::fs::read_dir(dir).map_err(OpenError::io(dir))? {
        let path = entry.map_err(OpenError::io(dir))?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            continue;
        };
        let numbered = |prefix| {
            name.strip_prefix(prefix)?
                .strip_suffix(".orl")?
                .parse()
                .ok()
                .map(|n: Revision| (n, path.clone()))
        };
        if let Some(segment) = numbered("log-") {
            listing.segments.push(segment);
        } else if let Some(snapshot) = numbered("snapshot-") {
            listing.snapshots.push(snapshot);
        } else if name.ends_with(".tmp") && (name.starts_with("log-") || name.starts_with("snapshot-")) {
            listing.unfinished.push(path);
        }
    }
    listing.segments.sort();
    listing.snapshots.sort();
    Ok(listing)
}

pub fn recover(dir: &Path, disk: &dyn Disk, sink: &mut dyn FnMut(Replayed)) -> Result<Recovered, OpenError> {
    let listing = list(dir)?;
    if !listing.segments.is_empty() || !listing.snapshots.is_empty() {
        // The last process may have died before it could do this. We are about to trust the names we see: to append
        // to one file and to remove others because of it.
        disk.sync_dir(dir).map_err(OpenError::io(dir))?;
    }
    let mut superfluous = listing.unfinished;
    let (base, snapshot) = base(listing.snapshots, &listing.segments, &mut superfluous, sink)?;

    let mut reader = Reader {
        disk,
        sink,
        base,
        last: base,
        payload: Vec::new(),
    };
    let (mut sealed, mut active) = (Vec::new(), None);
    let count = listing.segments.len();
    for (index, (first, path)) in listing.segments.iter().enumerate() {
        // Wholly before the snapshot: the crash came before it could be removed.
        if listing
            .segments
            .get(index + 1)
            .is_some_and(|(next, _)| *next <= base + 1)
        {
            superfluous.push(path.clone());
            continue;
        }
        if *first > reader.last + 1 {
            let reason = format!("revisions {} to {} are missing before it", reader.last + 1, first - 1);
            return Err(OpenError::Corrupt {
                file: path.clone(),
                offset: 0,
                reason,
            });
        }
        let is_last = index + 1 == count;
        let Some(read) = reader.segment(*first, path, is_last)? else {
            continue;
        };
        let bytes = read.bytes;
        match is_last && read.last == reader.last.max(base) {
            true => {
                active = Some(Sealed {
                    path: path.clone(),
                    bytes,
                })
            }
            false => sealed.push(Sealed {
                path: path.clone(),
                bytes,
            }),
        }
    }
    let revision = reader.last.max(base);
    for path in superfluous {
        if let Err(error) = disk.remove(&path) {
            tracing::warn!(path = %path.display(), %error, "cannot remove a superseded file");
        }
    }
    Ok(Recovered {
        revision,
        sealed,
        active,
        snapshot,
    })
}

/// Hands over the newest snapshot that can be read, and says which one it was.
#[allow(clippy::type_complexity, reason = "used once, right above")]
fn base(
    snapshots: Vec<(Revision, PathBuf)>,
    segments: &[(Revision, PathBuf)],
    superfluous: &mut Vec<PathBuf>,
    sink: &mut dyn FnMut(Replayed),
) -> Result<(Revision, Option<(PathBuf, u64)>), OpenError> {
    let mut broken: Option<(PathBuf, String)> = None;
    let mut found = None;
    for (revision, path) in snapshots.into_iter().rev() {
        if found.is_some() {
            superfluous.push(path);
            continue;
        }
        match snapshot::load(&path).map_err(OpenError::io(&path))? {
            Ok((inside, items)) if inside == revision => {
                let bytes = std::fs::metadata(&path).map_err(OpenError::io(&path))?.len();
                sink(Replayed::Base { revision, items });
                found = Some((revision, path, bytes));
            }
            Ok((inside, _)) => broken = Some((path, format!("it holds revision {inside}"))),
            Err(reason) => broken = Some((path, reason)),
        }
    }
    let base = found.as_ref().map_or(EMPTY, |(revision, ..)| *revision);
    if let Some((file, reason)) = broken {
        // Only good if the log still reaches back to before it was written.
        if segments.first().is_none_or(|(first, _)| *first > base + 1) {
            return Err(OpenError::Corrupt {
                file,
                offset: 0,
                reason,
            });
        }
        tracing::warn!(path = %file.display(), reason, "ignoring a broken snapshot; the log has everything it had");
        superfluous.push(file);
    }
    Ok((base, found.map(|(_, path, bytes)| (path, bytes))))
}

struct Reader<'a> {
    disk: &'a dyn Disk,
    sink: &'a mut dyn FnMut(Replayed),
    base: Revision,
    /// The last revision handed over, or the base's.
    last: Revision,
    payload: Vec<u8>,
}

struct ReadSegment {
    /// The last revision in it.
    last: Revision,
    bytes: u64,
}

impl Reader<'_> {
    /// None if nothing of the segment is left.
    fn segment(&mut self, first: Revision, path: &Path, is_last: bool) -> Result<Option<ReadSegment>, OpenError> {
        let io = || OpenError::io(path);
        let corrupt = |offset, reason: String| OpenError::Corrupt {
            file: path.into(),
            offset,
            reason,
        };
        let file = File::open(path).map_err(io())?;
        let length = file.metadata().map_err(io())?.len();
        let mut file = BufReader::with_capacity(256 << 10, file);
        let mut header = [0; HEADER];
        if frame::read_up_to(&mut file, &mut header).map_err(io())? < HEADER {
            if !is_last {
                return Err(corrupt(0, "the header is incomplete".into()));
            }
            tracing::warn!(path = %path.display(), bytes = length, "cut a torn end off the log: it had no whole header");
            self.disk.remove(path).map_err(io())?;
            return Ok(None);
        }
        let header = Header::decode(Magic::Log, &header).map_err(|reason| corrupt(0, reason))?;
        if header.revision != first {
            return Err(corrupt(0, format!("it holds revisions from {}", header.revision)));
        }

        let mut offset = HEADER as u64;
        let mut last = first - 1;
        loop {
            match frame::next_frame(&mut file, &mut self.payload).map_err(io())? {
                Next::End => return Ok(Some(ReadSegment { last, bytes: offset })),
                Next::Frame => {
                    last = self.batch(last).map_err(|reason| corrupt(offset, reason))?;
                    offset += (FRAME + self.payload.len()) as u64;
                }
                Next::Broken(reason) => {
                    if !is_last {
                        return Err(corrupt(offset, reason.into()));
                    }
                    self.cut(path, file.into_inner(), offset, length, last)?;
                    return Ok(Some(ReadSegment { last, bytes: offset }));
                }
            }
        }
    }

    /// Hands over the batch in `payload`, which comes after `last`. Its last revision.
    fn batch(&mut self, last: Revision) -> Result<Revision, String> {
        let batch = frame::get_batch(&self.payload)?;
        if batch.first != last + 1 {
            return Err(format!("revision {} follows revision {last}", batch.first));
        }
        let mut revision = last;
        for writes in batch.transactions {
            revision += 1;
            if revision > self.base {
                (self.sink)(Replayed::Transaction {
                    revision,
                    micros: batch.micros,
                    writes,
                });
                self.last = revision;
            }
        }
        Ok(revision)
    }

    fn cut(&self, path: &Path, mut file: File, offset: u64, length: u64, last: Revision) -> Result<(), OpenError> {
        let io = || OpenError::io(path);
        let mut tail = Vec::new();
        file.seek(SeekFrom::Start(offset)).map_err(io())?;
        file.read_to_end(&mut tail).map_err(io())?;
        if let Some(after) = frame::find_batch(&tail, last) {
            let reason = format!(
                "the frame is broken, but a whole one follows at byte {}",
                offset + after as u64
            );
            return Err(OpenError::Corrupt {
                file: path.into(),
                offset,
                reason,
            });
        }
        tracing::warn!(
            path = %path.display(),
            bytes = length - offset,
            offset,
            revision = last,
            "cut a torn end off the log: it was never acknowledged"
        );
        let mut file = self.disk.append(path).map_err(io())?;
        file.truncate(offset).and_then(|()| file.sync()).map_err(io())
    }
}
