//! A disk for tests: any operation can be made to fail, and the power can be cut.
//!
//! It keeps, beside the real files, what would survive a power cut: content as of the last sync of each file, names as of
//! the last sync of the directory. What came later may survive in part. What was there when a sync failed counts as
//! written all the same, as it does for Linux: later syncs leave it out unless it is written again.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use orlop_base::Random;
use parking_lot::Mutex;

use super::disk::{Disk, DiskFile, RealDisk};

/// Power cuts tear content at multiples of this; small, so that small files are torn too.
const SECTOR: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Call {
    Create,
    Append,
    Write,
    WriteAt,
    Sync,
    Truncate,
    Rename,
    Remove,
    SyncDir,
    Available,
}

#[derive(Default)]
struct World {
    /// How, and how often still.
    failing: HashMap<Call, (io::ErrorKind, usize)>,
    names: HashMap<PathBuf, usize>,
    durable_names: HashMap<PathBuf, usize>,
    contents: Vec<Content>,
}

#[derive(Default)]
struct Content {
    live: Vec<u8>,
    durable: Vec<u8>,
    /// Bytes before this were given up by a sync that failed, but for those in `rewritten`.
    dropped: usize,
    rewritten: Vec<Range<usize>>,
}

impl Content {
    fn new(bytes: Vec<u8>) -> Content {
        Content {
            live: bytes.clone(),
            durable: bytes,
            ..Content::default()
        }
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        let end = at + bytes.len();
        self.live.resize(self.live.len().max(end), 0);
        self.live[at..end].copy_from_slice(bytes);
        self.rewritten.push(at..end);
    }

    fn fail_sync(&mut self) {
        self.dropped = self.live.len();
        self.rewritten.clear();
    }

    fn sync(&mut self) {
        let before = std::mem::replace(&mut self.durable, self.live.clone());
        for at in 0..self.dropped.min(self.durable.len()) {
            if !self.rewritten.iter().any(|range| range.contains(&at)) {
                self.durable[at] = before.get(at).copied().unwrap_or(0);
            }
        }
    }

    fn truncate(&mut self, len: usize) {
        self.live.truncate(len);
        self.dropped = self.dropped.min(len);
    }
}

#[derive(Clone, Default)]
pub(super) struct FaultyDisk(Arc<Mutex<World>>);

struct FaultyFile {
    world: Arc<Mutex<World>>,
    id: usize,
    real: Box<dyn DiskFile>,
}

impl World {
    fn check(&mut self, call: Call) -> io::Result<()> {
        match self.failing.get_mut(&call) {
            Some((kind, left)) if *left > 0 => {
                *left -= 1;
                Err((*kind).into())
            }
            _ => Ok(()),
        }
    }

    fn add(&mut self, path: &Path, content: Content) -> usize {
        self.contents.push(content);
        self.names.insert(path.into(), self.contents.len() - 1);
        self.contents.len() - 1
    }
}

impl FaultyDisk {
    pub(super) fn fail(&self, call: Call, kind: io::ErrorKind) {
        self.0.lock().failing.insert(call, (kind, usize::MAX));
    }

    pub(super) fn fail_once(&self, call: Call, kind: io::ErrorKind) {
        self.0.lock().failing.insert(call, (kind, 1));
    }

    pub(super) fn heal_call(&self, call: Call) {
        self.0.lock().failing.remove(&call);
    }

    pub(super) fn heal(&self) {
        self.0.lock().failing.clear();
    }

    /// Leaves in `dir` what a power cut could leave, and starts anew from there.
    pub(super) fn cut_power(&self, dir: &Path, random: &mut Random) {
        let mut now = self.0.lock();
        let mut world = std::mem::take(&mut *now);
        let mut paths: Vec<PathBuf> = world.names.keys().chain(world.durable_names.keys()).cloned().collect();
        paths.sort();
        paths.dedup();
        for path in paths {
            assert_eq!(path.parent(), Some(dir));
            let _ = std::fs::remove_file(&path);
            let (live, durable) = (world.names.get(&path), world.durable_names.get(&path));
            let survivor = if random.below(2) == 0 { live } else { durable };
            if let Some(id) = survivor {
                let torn = tear(&mut world.contents[*id], random);
                std::fs::write(&path, &torn).unwrap();
                now.add(&path, Content::new(torn));
            }
        }
        now.durable_names = now.names.clone();
    }
}

/// What is on disk of a file: the durable part, and any of the sectors that were changed since.
fn tear(content: &mut Content, random: &mut Random) -> Vec<u8> {
    let (live, durable) = (&content.live, &content.durable);
    let lengths = (live.len().min(durable.len()), live.len().max(durable.len()));
    let length = lengths.0 + random.below((lengths.1 - lengths.0) as u64 + 1) as usize;
    let mut torn: Vec<u8> = (0..length).map(|at| durable.get(at).copied().unwrap_or(0)).collect();
    for (index, sector) in torn.chunks_mut(SECTOR).enumerate() {
        if random.below(2) == 0 {
            for (offset, byte) in sector.iter_mut().enumerate() {
                *byte = live.get(index * SECTOR + offset).copied().unwrap_or(*byte);
            }
        }
    }
    // Two names may lead to one file; it looks the same under both.
    *content = Content::new(torn.clone());
    torn
}

impl Disk for FaultyDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let mut world = self.0.lock();
        world.check(Call::Create)?;
        let real = RealDisk.create(path)?;
        let id = world.add(path, Content::default());
        Ok(Box::new(FaultyFile {
            world: self.0.clone(),
            id,
            real,
        }))
    }

    fn update(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let mut world = self.0.lock();
        world.check(Call::Append)?;
        let real = RealDisk.update(path)?;
        let id = *world.names.get(path).expect("every file was made here");
        Ok(Box::new(FaultyFile {
            world: self.0.clone(),
            id,
            real,
        }))
    }

    fn append(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let mut world = self.0.lock();
        world.check(Call::Append)?;
        let real = RealDisk.append(path)?;
        let id = *world.names.get(path).expect("every file was made here");
        Ok(Box::new(FaultyFile {
            world: self.0.clone(),
            id,
            real,
        }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut world = self.0.lock();
        world.check(Call::Rename)?;
        RealDisk.rename(from, to)?;
        let id = world.names.remove(from).expect("only files made here are renamed");
        world.names.insert(to.into(), id);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut world = self.0.lock();
        world.check(Call::Remove)?;
        RealDisk.remove(path)?;
        world.names.remove(path);
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut world = self.0.lock();
        world.check(Call::SyncDir)?;
        RealDisk.sync_dir(dir)?;
        world.durable_names = world.names.clone();
        Ok(())
    }

    fn available(&self, dir: &Path) -> io::Result<u64> {
        match self.0.lock().check(Call::Available) {
            Ok(()) => RealDisk.available(dir),
            Err(_) => Ok(1000),
        }
    }
}

impl DiskFile for FaultyFile {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut world = self.world.lock();
        let fate = world.check(Call::Write);
        // A failing write gets part of the way.
        let written = if fate.is_ok() {
            bytes
        } else {
            &bytes[..bytes.len() * 2 / 3]
        };
        self.real.write_all(written)?;
        let content = &mut world.contents[self.id];
        content.write(content.live.len(), written);
        fate
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut world = self.world.lock();
        world.check(Call::WriteAt)?;
        self.real.write_at(offset, bytes)?;
        world.contents[self.id].write(offset as usize, bytes);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut world = self.world.lock();
        let fate = world.check(Call::Sync);
        let content = &mut world.contents[self.id];
        match fate {
            Ok(()) => content.sync(),
            Err(_) => content.fail_sync(),
        }
        fate
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        let mut world = self.world.lock();
        world.check(Call::Truncate)?;
        self.real.truncate(len)?;
        world.contents[self.id].truncate(len as usize);
        Ok(())
    }
}
