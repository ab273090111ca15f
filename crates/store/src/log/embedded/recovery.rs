//! Reading the directory back: the newest whole snapshot and the segments after it.
//!
//! A broken end of the last segment is what a crash leaves, if it lies beyond the mark: it was never acknowledged, so it
//! is cut off and reported. Anything else that does not fit together is damage to acknowledged data, and refused.
//!
//! A directory without a mark is one of version 1, or one whose owner removed the mark to start with what is left.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::disk::Disk;
use super::frame::{self, Damage, Format, Link, Magic, Next, Opened};
use super::mark::{self, Marked};
use super::{Sealed, segment_name, snapshot};
use crate::Revision;
use crate::log::{OpenError, Replayed};

/// The revision of a store in which nothing happened yet.
const EMPTY: Revision = 1;

pub(super) struct Recovered {
    pub revision: Revision,
    pub sealed: Vec<Sealed>,
    /// The segment to go on with, if there is one that ends at `revision`.
    pub active: Option<Active>,
    /// The segment before the active one.
    pub previous: Link,
    pub snapshot: Option<(PathBuf, u64)>,
    /// Files to be removed.
    pub superfluous: Vec<PathBuf>,
}

pub(super) struct Active {
    pub first: Revision,
    pub bytes: u64,
    pub chain: u32,
}

/// The snapshot to start from.
struct Base {
    revision: Revision,
    /// The log up to this revision is in it and superfluous.
    replaced: Revision,
    file: Option<(PathBuf, u64)>,
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

pub(super) fn recover(dir: &Path, disk: &dyn Disk, sink: &mut dyn FnMut(Replayed)) -> Result<Recovered, OpenError> {
    let listing = list(dir)?;
    if !listing.segments.is_empty() || !listing.snapshots.is_empty() {
        // The last process may have died before it could do this. We are about to trust the names we see: to append
        // to one file and to remove others because of it.
        disk.sync_dir(dir).map_err(OpenError::io(dir))?;
    }
    let marked = mark::load(dir).map_err(OpenError::io(mark::mark_path(dir)))?;
    let mut superfluous = listing.unfinished;
    let base = base(listing.snapshots, &listing.segments, &mut superfluous, sink)?;
    if let Some(marked) = marked {
        check_files(dir, &base, &listing.segments, marked)?;
    }

    let mut reader = Reader {
        dir,
        disk,
        sink,
        base: base.revision,
        marked,
        last: base.revision,
        payload: Vec::new(),
    };
    let mut sealed = Vec::new();
    let (mut newest, mut last) = (None, None);
    for (index, (first, path)) in listing.segments.iter().enumerate() {
        let next = listing.segments.get(index + 1);
        // Wholly before the snapshot: the crash came before it could be removed.
        if next.is_some_and(|(next, _)| *next <= base.revision + 1) {
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
        let until = match next {
            Some((_, next)) => Until::Next(link_to(*first, next)?),
            None => Until::Torn,
        };
        let Some(read) = reader.segment(*first, path, until)? else {
            continue;
        };
        newest = Some(read.link());
        match next {
            None => last = Some((path, read)),
            Some(_) => sealed.push(Sealed {
                path: path.clone(),
                bytes: read.bytes,
            }),
        }
    }
    let revision = reader.last;
    if let Some(marked) = marked
        && marked.revision > revision
    {
        return Err(lost(
            dir,
            &format!("the log ends at revision {revision}"),
            revision,
            marked,
        ));
    }

    let mut active = None;
    if let Some((path, read)) = last {
        make_durable(disk, path, &read).map_err(OpenError::io(path))?;
        let first = read.opened.header.revision;
        if read.opened.format == Format::V2 && read.last == revision {
            newest = Some(read.opened.header.link);
            active = Some(Active {
                first,
                bytes: read.bytes,
                chain: read.chain,
            });
        } else if first != revision + 1 {
            // One without batches has the name that the next one will have, and is replaced by it.
            sealed.push(Sealed {
                path: path.clone(),
                bytes: read.bytes,
            });
        }
    }
    if let (None, Some(marked)) = (&active, marked) {
        // Nothing is written now that would tell of another one.
        let named = dir.join(segment_name(marked.segment));
        superfluous.retain(|path| *path != named || marked.segment <= base.replaced);
    }
    Ok(Recovered {
        revision,
        sealed,
        active,
        previous: newest.unwrap_or_default(),
        snapshot: base.file,
        superfluous,
    })
}

pub(super) fn remove(disk: &dyn Disk, superfluous: &[PathBuf]) {
    for path in superfluous {
        if let Err(error) = disk.remove(path) {
            tracing::warn!(path = %path.display(), %error, "failed to remove a superseded file");
        }
    }
}

/// What was acknowledged after `last` is not there.
fn lost(dir: &Path, what: &str, last: Revision, marked: Marked) -> OpenError {
    OpenError::Lost {
        what: format!(
            "{what}, but revisions {} to {} were acknowledged",
            last + 1,
            marked.revision
        ),
        mark: mark::mark_path(dir),
    }
}

/// Files whose names must be there.
fn check_files(dir: &Path, base: &Base, segments: &[(Revision, PathBuf)], marked: Marked) -> Result<(), OpenError> {
    let missing = |first| {
        Err(OpenError::Lost {
            what: format!("{} is missing", dir.join(segment_name(first)).display()),
            mark: mark::mark_path(dir),
        })
    };
    if marked.segment > base.replaced && !segments.iter().any(|(first, _)| *first == marked.segment) {
        return missing(marked.segment);
    }
    // The snapshot holds what was written while it was, so there was a segment for that; it may have been removed when
    // the next one had begun.
    let goes_on = base.replaced + 1..=base.revision + 1;
    if base.revision > base.replaced && !segments.iter().any(|(first, _)| goes_on.contains(first)) {
        return missing(base.replaced + 1);
    }
    Ok(())
}

/// What the next segment says about the end of this one.
fn link_to(first: Revision, next: &Path) -> Result<Option<Link>, OpenError> {
    let mut file = File::open(next).map_err(OpenError::io(next))?;
    let opened = frame::read_header(Magic::Log, &mut file).map_err(OpenError::io(next))?;
    // What is wrong with its header is said when its turn comes.
    Ok(opened
        .ok()
        .map(|opened| opened.header.link)
        .filter(|link| link.segment == first))
}

/// The last process may have died between writing and syncing, or its sync may have failed and the kernel forgotten that
/// there is something to write. What we show from now on must stay.
fn make_durable(disk: &dyn Disk, path: &Path, read: &ReadSegment) -> io::Result<()> {
    let mut file = disk.update(path)?;
    if let Some(start) = read.unmarked {
        let mut from = File::open(path)?;
        from.seek(SeekFrom::Start(start))?;
        let mut rest = from.take(read.bytes - start);
        let mut offset = start;
        let mut some = vec![0; 1 << 20];
        loop {
            let count = frame::read_up_to(&mut rest, &mut some)?;
            if count == 0 {
                break;
            }
            file.write_at(offset, &some[..count])?;
            offset += count as u64;
        }
    }
    file.sync()
}

/// Hands over the newest snapshot that can be read, and says which one it was.
fn base(
    snapshots: Vec<(Revision, PathBuf)>,
    segments: &[(Revision, PathBuf)],
    superfluous: &mut Vec<PathBuf>,
    sink: &mut dyn FnMut(Replayed),
) -> Result<Base, OpenError> {
    let mut broken: Option<(PathBuf, String)> = None;
    let mut found: Option<Base> = None;
    for (revision, path) in snapshots.into_iter().rev() {
        if found.is_some() {
            superfluous.push(path);
            continue;
        }
        match snapshot::load(&path).map_err(OpenError::io(&path))? {
            Ok(loaded) if loaded.revision == revision => {
                let bytes = std::fs::metadata(&path).map_err(OpenError::io(&path))?.len();
                let (replaced, items) = (loaded.replaced, loaded.items);
                sink(Replayed::Base { revision, items });
                found = Some(Base {
                    revision,
                    replaced,
                    file: Some((path, bytes)),
                });
            }
            Ok(loaded) => broken = Some((path, format!("it holds revision {}", loaded.revision))),
            Err(reason) => broken = Some((path, reason.to_string())),
        }
    }
    let base = found.unwrap_or(Base {
        revision: EMPTY,
        replaced: EMPTY,
        file: None,
    });
    if let Some((file, reason)) = broken {
        // Only good if the log still reaches back to before it was written.
        if segments.first().is_none_or(|(first, _)| *first > base.revision + 1) {
            return Err(OpenError::Corrupt {
                file,
                offset: 0,
                reason,
            });
        }
        tracing::warn!(path = %file.display(), reason, "ignoring a broken snapshot; the log has everything it had");
        superfluous.push(file);
    }
    Ok(base)
}

struct Reader<'a> {
    dir: &'a Path,
    disk: &'a dyn Disk,
    sink: &'a mut dyn FnMut(Replayed),
    base: Revision,
    marked: Option<Marked>,
    /// The last revision handed over, or the base's.
    last: Revision,
    payload: Vec<u8>,
}

struct ReadSegment {
    opened: Opened,
    /// The last revision in it.
    last: Revision,
    bytes: u64,
    chain: u32,
    /// Where that begins of which the mark does not say that it is durable.
    unmarked: Option<u64>,
}

impl ReadSegment {
    /// What the segment after it says of it.
    fn link(&self) -> Link {
        Link {
            segment: self.opened.header.revision,
            end: self.bytes,
            chain: self.chain,
        }
    }
}

/// How a segment ends.
#[derive(Clone, Copy)]
enum Until {
    /// There is another one, which may say where.
    Next(Option<Link>),
    /// It is the last one: there may be part of a frame.
    Torn,
}

impl Reader<'_> {
    /// None if nothing of the segment is left.
    fn segment(&mut self, first: Revision, path: &Path, until: Until) -> Result<Option<ReadSegment>, OpenError> {
        let io = || OpenError::io(path);
        let corrupt = |offset, reason: String| OpenError::Corrupt {
            file: path.into(),
            offset,
            reason,
        };
        let file = File::open(path).map_err(io())?;
        let length = file.metadata().map_err(io())?.len();
        let mut file = BufReader::with_capacity(256 << 10, file);
        let opened = match frame::read_header(Magic::Log, &mut file).map_err(io())? {
            Ok(opened) => opened,
            Err(reason @ Damage::NoHeader) if matches!(until, Until::Torn) => {
                let what = format!("{} is damaged at byte 0: {reason}", path.display());
                match self.marked {
                    Some(marked) if marked.segment == first => {
                        let mark = mark::mark_path(self.dir);
                        return Err(OpenError::Lost { what, mark });
                    }
                    _ => self.check_mark(&what, first - 1)?,
                }
                tracing::warn!(path = %path.display(), bytes = length, "removed a torn log: it had no whole header");
                self.disk.remove(path).map_err(io())?;
                return Ok(None);
            }
            Err(reason) => return Err(corrupt(0, reason.to_string())),
        };
        if opened.header.revision != first {
            let reason = format!("it holds revisions from {}", opened.header.revision);
            return Err(corrupt(0, reason));
        }

        let format = opened.format;
        let mut read = ReadSegment {
            opened,
            last: first - 1,
            bytes: format.header() as u64,
            chain: opened.chain,
            unmarked: None,
        };
        loop {
            let offset = read.bytes;
            if let Until::Next(Some(link)) = until
                && offset >= link.end
            {
                if (offset, read.chain) != (link.end, link.chain) {
                    return Err(corrupt(
                        offset,
                        format!("it does not end at byte {} as the next file says", link.end),
                    ));
                }
                return Ok(Some(read));
            }
            match frame::next_frame(format, &mut file, &mut self.payload).map_err(io())? {
                Next::End => {
                    if let Until::Next(Some(link)) = until {
                        return Err(corrupt(offset, format!("it was {} bytes long", link.end)));
                    }
                    return Ok(Some(read));
                }
                Next::Frame(head) => {
                    if head.previous.is_some_and(|previous| previous != read.chain) {
                        return Err(corrupt(offset, "a frame does not follow the one before it".into()));
                    }
                    read.last = self
                        .batch(read.last)
                        .map_err(|reason| corrupt(offset, reason.to_string()))?;
                    read.bytes += (format.frame() + self.payload.len()) as u64;
                    read.chain = if format == Format::V2 { head.crc } else { 0 };
                    if self.marked.is_some_and(|marked| read.last > marked.revision) {
                        read.unmarked.get_or_insert(offset);
                    }
                }
                Next::Broken(reason) => {
                    if let Until::Next(_) = until {
                        return Err(corrupt(offset, reason.into()));
                    }
                    self.cut(path, file.into_inner(), &read, length, reason)?;
                    return Ok(Some(read));
                }
            }
        }
    }

    /// Fails if something after this revision was acknowledged: then a broken end is no trace of a crash.
    fn check_mark(&self, what: &str, last: Revision) -> Result<(), OpenError> {
        let last = last.max(self.base);
        match self.marked {
            Some(marked) if marked.revision > last => Err(lost(self.dir, what, last, marked)),
            _ => Ok(()),
        }
    }

    /// Hands over the batch in `payload`, which comes after `last`. Its last revision.
    fn batch(&mut self, last: Revision) -> Result<Revision, Damage> {
        let batch = frame::get_batch(&self.payload)?;
        if batch.first != last + 1 {
            return Err(format!("revision {} follows revision {last}", batch.first).into());
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

    fn cut(&self, path: &Path, mut file: File, read: &ReadSegment, length: u64, reason: &str) -> Result<(), OpenError> {
        let io = || OpenError::io(path);
        let (offset, last) = (read.bytes, read.last);
        let mut tail = Vec::new();
        file.seek(SeekFrom::Start(offset)).map_err(io())?;
        file.read_to_end(&mut tail).map_err(io())?;
        if let Some(after) = frame::find_batch(read.opened.format, &tail, last) {
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
        self.check_mark(
            &format!("{} is damaged at byte {offset}: {reason}", path.display()),
            last,
        )?;
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
