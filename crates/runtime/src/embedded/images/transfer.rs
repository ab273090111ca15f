//! Images from archives and to archives.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::content::{Durability, Needs, Work, read_json, write_json};
use super::unpack::Cancel;
use super::{Digest, ImageError, ImageStore, Inner, Reference, Result, archive, blocking, end, install};

/// An image that came out of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedImage {
    pub id: String,
    pub tags: Vec<String>,
}

/// Archives that `load_directory` has loaded, by path.
#[derive(Default, serde::Serialize, serde::Deserialize)]
struct LoadedArchives {
    archives: BTreeMap<String, LoadedArchive>,
}

#[derive(serde::Serialize, serde::Deserialize)]
struct LoadedArchive {
    stamp: ArchiveStamp,
    ids: Vec<String>,
}

/// Inode, size and time of change: what tells a file from the one that replaced it.
type ArchiveStamp = (u64, u64, i64, i64);

const LOADED: &str = "loaded.json";
const ARCHIVE_SUFFIXES: [&str; 4] = [".tar", ".tar.gz", ".tgz", ".tar.zst"];

impl ImageStore {
    /// Loads the images of an archive: what `docker save` or `save` wrote, or an OCI layout, compressed or not.
    pub async fn load(&self, archive: impl Read + Send + 'static) -> Result<Vec<LoadedImage>> {
        let inner = self.inner.clone();
        let cancel = Cancel::default();
        let _guard = cancel.on_drop();
        let work = Arc::new(blocking(move || inner.layout.begin_work()).await??);
        let loaded = self.load_archive(archive, &work, &cancel).await;
        end(work).await?;
        loaded
    }

    async fn load_archive(
        &self,
        archive: impl Read + Send + 'static,
        work: &Arc<Work>,
        cancel: &Cancel,
    ) -> Result<Vec<LoadedImage>> {
        let (inner, at, cancel) = (self.inner.clone(), work.clone(), cancel.clone());
        let unpacked = blocking(move || archive::unpack_archive(archive, &at, &inner.limits, &cancel)?.images());
        let mut found = unpacked.await??;
        let publish = found.publisher(self.inner.layout.clone());
        let ids = install::install(&self.inner, work, &found.images, publish).await?;
        let loaded = ids.into_iter().zip(&found.images).map(|(id, image)| LoadedImage {
            id: id.to_string(),
            tags: image.references.iter().filter(|r| !r.contains('@')).cloned().collect(),
        });
        Ok(loaded.collect())
    }

    /// Loads all archives in a directory that are new or have changed since. One that cannot be loaded is logged and
    /// keeps no other from being loaded; a directory that is not there has none.
    pub async fn load_directory(&self, dir: &Path) -> Result<Vec<LoadedImage>> {
        let (inner, dir) = (self.inner.clone(), dir.to_path_buf());
        let (found, notes) = blocking(move || inner.find_archives(&dir)).await??;
        let mut notes = notes;
        let mut loaded = vec![];
        for (path, stamp) in found {
            let name = path.display().to_string();
            let opened = path.clone();
            let outcome = match blocking(move || File::open(opened)).await? {
                Ok(file) => self.load(file).await,
                Err(source) => Err(ImageError::File { path, source }),
            };
            match outcome {
                Ok(images) => {
                    tracing::info!(file = name, images = images.len(), "loaded image archive");
                    let ids = images.iter().map(|i| i.id.clone()).collect();
                    notes.archives.insert(name, LoadedArchive { stamp, ids });
                    loaded.extend(images);
                }
                Err(err) => tracing::error!(file = name, err = err.chain(), "failed to load image archive"),
            }
        }
        if !loaded.is_empty() {
            let path = self.inner.layout.root().join(LOADED);
            blocking(move || write_json(&path, &notes, Durability::Process)).await??;
        }
        Ok(loaded)
    }

    /// Writes images as an archive that `docker load` and everybody who knows OCI layouts can read. Images that are
    /// named by a tag are saved with that tag, those named by id or digest with all they have.
    pub async fn save(&self, images: &[String], sink: impl Write + Send + 'static) -> Result<()> {
        let (inner, images) = (self.inner.clone(), images.to_vec());
        blocking(move || {
            let work = inner.layout.begin_work()?;
            let saved = inner.save(&work, &images, sink);
            work.end();
            saved
        })
        .await?
    }
}

impl Inner {
    fn save(&self, work: &Work, images: &[String], sink: impl Write) -> Result<()> {
        let index = self.index.read(&self.layout.index())?;
        let mut saved: Vec<archive::Saved> = vec![];
        for image in images {
            let record = index.find(image).ok_or_else(|| ImageError::NotFound(image.clone()))?;
            let named = Reference::parse(image).ok().and_then(|r| r.tagged());
            let tags: Vec<String> = match named.filter(|tag| record.references.contains(tag)) {
                Some(tag) => vec![tag],
                None => record.tags().cloned().collect(),
            };
            match saved.iter_mut().find(|s| s.record.id == record.id) {
                Some(known) => known.tags.extend(tags),
                None => saved.push(archive::Saved {
                    record: record.clone(),
                    tags,
                }),
            }
        }
        let mut needs = Needs::default();
        for image in &mut saved {
            image.tags.sort();
            image.tags.dedup();
            needs.extend(image.record.needs());
        }
        work.rely_on(&needs)?;
        archive::write_archive(&self.layout, &saved, sink)
    }

    /// Archives in a directory that were not loaded as they are now, and which were.
    fn find_archives(&self, dir: &Path) -> io::Result<(Vec<(PathBuf, ArchiveStamp)>, LoadedArchives)> {
        let mut notes: LoadedArchives = read_json(&self.layout.root().join(LOADED))
            .ok()
            .flatten()
            .unwrap_or_default();
        let index = self.index.read(&self.layout.index())?;
        let is_listed = |id: &String| Digest::parse(id).is_ok_and(|id| index.images.contains_key(&id));
        notes.archives.retain(|_, archive| archive.ids.iter().all(is_listed));
        let entries = match std::fs::read_dir(dir) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok((vec![], notes)),
            Err(e) => return Err(e),
        };
        let mut found = vec![];
        for entry in entries {
            let path = entry?.path();
            let is_archive = ARCHIVE_SUFFIXES
                .iter()
                .any(|suffix| path.to_string_lossy().ends_with(suffix));
            let Ok(meta) = std::fs::metadata(&path) else {
                continue;
            };
            let stamp = (meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec());
            let known = notes.archives.get(&path.display().to_string());
            if is_archive && meta.is_file() && known.is_none_or(|known| known.stamp != stamp) {
                found.push((path, stamp));
            }
        }
        found.sort();
        Ok((found, notes))
    }
}
