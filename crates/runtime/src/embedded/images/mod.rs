//! Images: pulled from registries, loaded from archives or built in, unpacked once, shared by all nodes of a machine.
//!
//! A reference becomes layers on the disk (`pull`), an archive too (`archive`), and so do the images that Orlop brings along
//! (`builtin`). What is where on the disk, and how several processes share it, is in `content`; which images there are is
//! one file (`index`). Whoever runs containers asks for an image with [`ImageStore::prepare`], gets the directories to stack,
//! and holds them by the container's id until [`ImageStore::release`].
//!
//! Compressed layers are kept beside the unpacked ones, as containerd does: `save` needs them bit by bit, and an image
//! that shares them does not download them again. It costs about a third more disk.

mod archive;
mod builtin;
mod content;
mod copy;
mod digest;
mod error;
mod flights;
mod format;
mod holders;
mod index;
mod install;
mod manifest;
mod pull;
mod reference;
mod registries;
mod registry;
mod rewrite;
mod tar;
mod transfer;
mod unpack;

use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::cri::messages::{AuthConfig, FilesystemIdentifier, FilesystemUsage, Image, ImageSpec, UInt64Value};
use content::{LayerInfo, Layout, Work, read_json};
use flights::Flights;
use index::{ImageIndex, ImageRecord, IndexCache, LayerRecord};
use pull::Pull;
use registry::Http;
use unpack::{Cancel, LayerTarget, unpack_layer};

pub use digest::Digest;
pub use error::ImageError;
pub use holders::{HolderId, PreparedImage};
pub use manifest::{ContainerDefaults, ImageConfig};
pub use pull::{Progress, PullEvent};
pub use reference::{InvalidReference, Reference};
pub use registries::{Registries, RegistriesError};
pub use registry::{Proxies, Timeouts};
pub use transfer::LoadedImage;
pub use unpack::{Limits, Whiteouts};

pub type Result<T, E = ImageError> = std::result::Result<T, E>;

/// The registry of the images that are built in. It is never asked over the network.
pub const BUILT_IN_REGISTRY: &str = "orlop.local";

/// Downloads of all pulls together.
const MAX_DOWNLOADS: usize = 6;

/// How a store behaves.
pub struct Options {
    pub registries: Registries,
    pub proxies: Proxies,
    pub timeouts: Timeouts,
    pub limits: Limits,
    /// Whether images are on the disk before they are listed, so that they survive a power cut.
    pub durable: bool,
    /// Whether the images that are built in are listed.
    pub builtin: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            registries: Registries::default(),
            proxies: Proxies::from_env(),
            timeouts: Timeouts::default(),
            limits: Limits::default(),
            durable: true,
            builtin: true,
        }
    }
}

/// The images of a machine. Cheap to clone.
#[derive(Clone)]
pub struct ImageStore {
    inner: Arc<Inner>,
}

struct Inner {
    layout: Layout,
    index: IndexCache,
    http: Arc<Http>,
    limits: Limits,
    whiteouts: Whiteouts,
    flights: Flights,
    downloads: Semaphore,
    durable: bool,
}

/// What `prune` removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prune {
    /// Images without a tag.
    Untagged,
    /// Images without a container.
    Unused,
}

impl ImageStore {
    /// Opens the store in a directory, or makes it. What work that was interrupted left behind is removed.
    pub async fn open(root: &Path, options: Options) -> Result<ImageStore> {
        let root = root.to_path_buf();
        let (layout, whiteouts) = blocking(move || format::open_layout(&root)).await??;
        let inner = Inner {
            layout,
            index: IndexCache::default(),
            http: Arc::new(Http::new(
                Arc::new(options.registries),
                options.proxies,
                options.timeouts,
            )),
            limits: options.limits,
            whiteouts,
            flights: Flights::default(),
            downloads: Semaphore::new(MAX_DOWNLOADS),
            durable: options.durable,
        };
        let store = ImageStore { inner: Arc::new(inner) };
        if options.builtin {
            store.install_builtin().await?;
        }
        Ok(store)
    }

    /// Lists the images that are built in, unless they are already.
    async fn install_builtin(&self) -> Result<()> {
        let index = self.inner.read_index().await?;
        let (mut missing, mut blobs) = (vec![], vec![]);
        for image in builtin::images()? {
            let record = image.install.record()?;
            let known = index.images.get(&record.id);
            let listed = known.is_some_and(|known| known.references.is_superset(&record.references));
            if !listed || !self.inner.is_complete(&record).await? {
                missing.push(image.install);
                blobs.extend(image.blobs);
            }
        }
        if !missing.is_empty() {
            let layout = self.inner.layout.clone();
            let work = Arc::new(blocking(move || layout.begin_work()).await??);
            let publish = move |work: &Work| {
                let mut blobs = blobs.iter();
                blobs.try_for_each(|(digest, blob)| work.write_blob(digest, blob))
            };
            let installed = install::install(&self.inner, &work, &missing, publish).await;
            end(work).await?;
            installed?;
        }
        // Those of an earlier version have lost their tags.
        let outdated = |record: &ImageRecord| record.pinned && record.tags().next().is_none();
        if self.inner.read_index().await?.images.values().any(outdated) {
            let change = move |index: &mut ImageIndex| {
                index.images.retain(|_, record| !outdated(record));
                true
            };
            self.inner.change(change).await?;
        }
        Ok(())
    }

    /// Pulls an image and returns its id. Dropping the future leaves nothing of it to be seen.
    pub async fn pull(&self, image: &ImageSpec, auth: Option<&AuthConfig>, progress: Progress) -> Result<String> {
        let reference = Reference::parse(&image.image)?;
        let pulled = self.pull_reference(&reference, auth, progress).await;
        let id = pulled.map_err(|source| ImageError::Pull {
            image: reference.to_string(),
            source: Box::new(source),
        })?;
        Ok(id.to_string())
    }

    async fn pull_reference(
        &self,
        reference: &Reference,
        auth: Option<&AuthConfig>,
        progress: Progress,
    ) -> Result<Digest> {
        if reference.domain() == BUILT_IN_REGISTRY {
            let found = self.inner.find(&reference.to_string()).await?;
            return Ok(found.ok_or_else(|| ImageError::NotFound(reference.to_string()))?.id);
        }
        let pull = Pull::begin(&self.inner, reference, auth, progress).await?;
        let work = pull.work();
        let pulled = match pull.run(reference).await {
            Ok(record) => {
                let id = record.id.clone();
                self.inner.commit(vec![record]).await.map(|()| id)
            }
            Err(e) => Err(e),
        };
        end(work).await?;
        pulled
    }

    pub async fn list(&self) -> Result<Vec<Image>> {
        let index = self.inner.read_index().await?;
        Ok(index.images.values().map(ImageRecord::message).collect())
    }

    /// By reference, by id, or by the beginning of an id.
    pub async fn status(&self, image: &ImageSpec) -> Result<Option<Image>> {
        Ok(self.inner.find(&image.image).await?.map(|record| record.message()))
    }

    /// Removes an image with all its names, as the CRI wants it. Layers that containers hold stay until they are
    /// released. Doing it again is fine.
    pub async fn remove(&self, image: &ImageSpec) -> Result<()> {
        let image = image.image.clone();
        self.inner
            .change(move |index| {
                let id = index.find(&image).map(|record| record.id.clone());
                id.is_some_and(|id| index.images.remove(&id).is_some())
            })
            .await
    }

    /// As `remove`, for a node that shares the store: an image of which another one has containers stays. Its kubelet knows
    /// only its own, and so what nobody uses.
    pub async fn remove_for(&self, image: &ImageSpec, owner: &str) -> Result<()> {
        let (inner, name, own) = (self.inner.clone(), image.image.clone(), owner.to_string());
        let is_used = blocking(move || {
            let index = inner.index.read(&inner.layout.index())?;
            let Some(record) = index.find(&name) else {
                return Ok(false);
            };
            let holders = inner.layout.read_holders()?;
            let is_others = |holder: &content::Holder| holder.owner != own && holder.image == record.id.as_str();
            Ok::<_, io::Error>(holders.iter().any(is_others))
        });
        match is_used.await?? {
            true => Ok(()),
            false => self.remove(image).await,
        }
    }

    /// Takes one name off an image; the image goes with its last tag. Returns whether there was one.
    pub async fn untag(&self, reference: &str) -> Result<bool> {
        let whole = Reference::parse(reference)?.to_string();
        let known = self.inner.read_index().await?;
        let found = known.images.values().any(|record| record.references.contains(&whole));
        self.inner.change(move |index| index.untag(&whole).is_some()).await?;
        Ok(found)
    }

    /// Removes images that are not pinned, and returns their ids.
    pub async fn prune(&self, which: Prune) -> Result<Vec<String>> {
        let inner = self.inner.clone();
        let pruned = blocking(move || {
            let lock = inner.layout.lock()?;
            let mut index = (*inner.index.read(&inner.layout.index())?).clone();
            let held: Vec<String> = inner.layout.read_holders()?.into_iter().map(|h| h.image).collect();
            let before: Vec<Digest> = index.images.keys().cloned().collect();
            index.images.retain(|id, record| match which {
                _ if record.pinned => true,
                Prune::Untagged => record.tags().next().is_some(),
                Prune::Unused => held.iter().any(|h| h == id.as_str()),
            });
            inner.index.write(&inner.layout.index(), &index)?;
            inner.layout.sweep(lock, index.needs())?;
            let gone = before.iter().filter(|id| !index.images.contains_key(*id));
            Ok::<_, io::Error>(gone.map(Digest::to_string).collect())
        });
        Ok(pruned.await??)
    }

    /// What all images take on the disk.
    pub async fn fs_usage(&self) -> Result<FilesystemUsage> {
        let inner = self.inner.clone();
        let (bytes, inodes) = blocking(move || inner.usage()).await??;
        let now = orlop_base::clock::wall().duration_since(std::time::UNIX_EPOCH);
        Ok(FilesystemUsage {
            timestamp: i64::try_from(now.unwrap_or_default().as_nanos()).unwrap_or(i64::MAX),
            fs_id: Some(FilesystemIdentifier {
                mountpoint: self.inner.layout.root().display().to_string(),
            }),
            used_bytes: Some(UInt64Value { value: bytes }),
            inodes_used: Some(UInt64Value { value: inodes }),
        })
    }
}

impl Inner {
    async fn read_index(self: &Arc<Self>) -> Result<Arc<ImageIndex>> {
        let inner = self.clone();
        Ok(blocking(move || inner.index.read(&inner.layout.index())).await??)
    }

    async fn find(self: &Arc<Self>, image: &str) -> Result<Option<ImageRecord>> {
        Ok(self.read_index().await?.find(image).cloned())
    }

    /// Changes the index; if that took something away, so is what only it needed.
    async fn change(self: &Arc<Self>, change: impl FnOnce(&mut ImageIndex) -> bool + Send + 'static) -> Result<()> {
        let inner = self.clone();
        let changed = blocking(move || {
            let lock = inner.layout.lock()?;
            let mut index = (*inner.index.read(&inner.layout.index())?).clone();
            if !change(&mut index) {
                return Ok(());
            }
            inner.index.write(&inner.layout.index(), &index)?;
            inner.layout.sweep(lock, index.needs())
        });
        Ok(changed.await??)
    }

    /// Lists images whose parts are all in place; from then on the index holds them, and no longer the work.
    async fn commit(self: &Arc<Self>, records: Vec<ImageRecord>) -> Result<()> {
        let inner = self.clone();
        let committed = blocking(move || {
            if inner.durable {
                inner.layout.sync()?;
            }
            let _lock = inner.layout.lock()?;
            let mut index = (*inner.index.read(&inner.layout.index())?).clone();
            for record in records {
                index.insert(record);
            }
            inner.index.write(&inner.layout.index(), &index)
        });
        Ok(committed.await??)
    }

    /// Whether everything that the index names is there.
    async fn is_complete(self: &Arc<Self>, record: &ImageRecord) -> Result<bool> {
        let (inner, record) = (self.clone(), record.clone());
        let complete = blocking(move || {
            let blobs = record.blobs.iter().all(|digest| inner.layout.has_blob(digest));
            let mut layers = record.layers.iter();
            let missing = layers.find_map(|layer| match inner.layout.layer_info(&layer.chain_id) {
                Ok(Some(_)) => None,
                Ok(None) => Some(Ok(())),
                Err(e) => Some(Err(e)),
            });
            missing.transpose().map(|missing| blobs && missing.is_none())
        });
        Ok(complete.await??)
    }

    /// Unpacks one layer of an image whose lower ones are in place, unless it is there.
    async fn unpack(
        self: &Arc<Self>,
        work: &Arc<Work>,
        layers: &[LayerRecord],
        number: usize,
        cancel: Cancel,
    ) -> Result<()> {
        let layer = layers[number].clone();
        let _turn = self.flights.enter(layer.chain_id.as_str()).await;
        let below: Vec<PathBuf> = layers[..number]
            .iter()
            .rev()
            .map(|l| self.layout.layer_fs(&l.chain_id))
            .collect();
        let (inner, work) = (self.clone(), work.clone());
        blocking(move || inner.unpack_now(&work, &layer, &below, &cancel)).await?
    }

    fn unpack_now(&self, work: &Work, layer: &LayerRecord, below: &[PathBuf], cancel: &Cancel) -> Result<()> {
        if self.layout.layer_info(&layer.chain_id)?.is_some() {
            return Ok(());
        }
        let dir = work.path(&format!("layer-{}", layer.chain_id.hex()));
        let fs = dir.join("fs");
        std::fs::create_dir_all(&fs)?;
        // What a container's root looks like, whatever our umask is.
        std::fs::set_permissions(&fs, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        let archive = File::open(self.layout.blob(&layer.blob.digest))?;
        let compressed = archive.metadata()?.len();
        let target = LayerTarget {
            dir: &fs,
            below,
            whiteouts: self.whiteouts,
            limits: self.limits,
        };
        let archive = BufReader::with_capacity(128 << 10, archive);
        let usage = unpack_layer(archive, compressed, &layer.diff_id, &target, cancel).map_err(|source| {
            ImageError::Extract {
                diff_id: layer.diff_id.clone(),
                source,
            }
        })?;
        let info = LayerInfo {
            chain_id: layer.chain_id.clone(),
            diff_id: layer.diff_id.clone(),
            bytes: usage.bytes,
            inodes: usage.inodes,
        };
        Ok(work.publish_layer(&dir, &info)?)
    }

    fn usage(&self) -> io::Result<(u64, u64)> {
        let (mut bytes, mut inodes) = (0u64, 0u64);
        for (_, size) in self.layout.blobs()? {
            bytes = bytes.saturating_add(size);
            inodes += 1;
        }
        for entry in std::fs::read_dir(self.layout.layers())? {
            let info: Option<LayerInfo> = read_json(&entry?.path().join("layer.json"))?;
            if let Some(info) = info {
                bytes = bytes.saturating_add(info.bytes);
                inodes = inodes.saturating_add(info.inodes);
            }
        }
        Ok((bytes, inodes))
    }
}

/// Ends work that nobody else has a part in any more.
async fn end(work: Arc<Work>) -> Result<()> {
    blocking(move || Arc::into_inner(work).map(Work::end)).await.map(drop)
}

/// Work for a thread that may wait for the disk.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => Ok(done),
        Err(failed) => match failed.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(canceled) => Err(ImageError::Store(io::Error::other(canceled))),
        },
    }
}

#[cfg(test)]
mod tests;
