//! Who uses an image's layers. A container holds them by its id, in a file: they stay whether or not this process lives,
//! and whether or not the image is still listed.

use std::io;
use std::path::{Path, PathBuf};

use super::content::Holder;
use super::copy::copy_layers;
use super::unpack::Cancel;
use super::{Digest, ImageConfig, ImageError, ImageStore, Inner, Result, Whiteouts, blocking};

/// What holds layers: a container of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderId {
    /// The node, by a name that stays the same when it is started again.
    pub owner: String,
    pub container: String,
}

/// An image ready to be a container's root.
#[derive(Clone, Debug)]
pub struct PreparedImage {
    pub id: Digest,
    pub config: ImageConfig,
    /// Directories to stack, lowest first.
    pub layers: Vec<PathBuf>,
    /// What the layers' whiteouts look like: only [`Whiteouts::Overlay`] can be mounted as overlayfs.
    pub whiteouts: Whiteouts,
    /// As container statuses have it: a digest of the repository, or the id.
    pub image_ref: String,
}

impl ImageStore {
    /// The directories of an image and what its containers start with. The container holds them from now on, whether
    /// this process lives or not.
    pub async fn prepare(&self, image: &str, holder: &HolderId) -> Result<PreparedImage> {
        let inner = self.inner.clone();
        let (image, holder) = (image.to_string(), holder.clone());
        blocking(move || inner.prepare(&image, &holder)).await?
    }

    /// The container is gone. Doing it again is fine.
    pub async fn release(&self, holder: &HolderId) -> Result<()> {
        let inner = self.inner.clone();
        let id = holder_key(holder);
        Ok(blocking(move || inner.release(&[id])).await??)
    }

    /// Releases what containers of a node held that are gone: for its start.
    pub async fn release_absent(&self, owner: &str, live: &[String]) -> Result<()> {
        let inner = self.inner.clone();
        let (owner, live) = (owner.to_string(), live.to_vec());
        let live: Vec<String> = live
            .into_iter()
            .map(|c| {
                holder_key(&HolderId {
                    owner: owner.clone(),
                    container: c,
                })
            })
            .collect();
        Ok(blocking(move || {
            let holders = inner.layout.read_holders()?.into_iter();
            let gone: Vec<String> = holders
                .filter(|h| h.owner == owner && !live.contains(&h.id))
                .map(|h| h.id)
                .collect();
            inner.release(&gone)
        })
        .await??)
    }

    /// Copies an image's layers into an empty directory, for roots that cannot be mounted.
    pub async fn copy_root(&self, image: &PreparedImage, to: &Path) -> Result<()> {
        let (image, to) = (image.clone(), to.to_path_buf());
        let cancel = Cancel::default();
        let _guard = cancel.on_drop();
        Ok(blocking(move || copy_layers(&image.layers, image.whiteouts, &to, &cancel)).await??)
    }
}

impl Inner {
    fn prepare(&self, image: &str, holder: &HolderId) -> Result<PreparedImage> {
        // Under the lock, so that no sweep comes between finding the layers and holding them.
        let _lock = self.layout.lock()?;
        let index = self.index.read(&self.layout.index())?;
        let record = index
            .find(image)
            .ok_or_else(|| ImageError::NotFound(image.to_string()))?;
        let config = match std::fs::read(self.layout.blob(&record.id)) {
            Ok(bytes) => ImageConfig::parse(&bytes)?,
            Err(_) => {
                return Err(ImageError::Incomplete {
                    image: record.id.clone(),
                    digest: record.id.clone(),
                });
            }
        };
        for layer in &record.layers {
            if self.layout.layer_info(&layer.chain_id)?.is_none() {
                return Err(ImageError::Incomplete {
                    image: record.id.clone(),
                    digest: layer.chain_id.clone(),
                });
            }
        }
        self.layout.write_holder(&Holder {
            id: holder_key(holder),
            owner: holder.owner.clone(),
            image: record.id.to_string(),
            layers: record.layers.iter().map(|l| l.chain_id.clone()).collect(),
        })?;
        Ok(PreparedImage {
            id: record.id.clone(),
            config,
            layers: record
                .layers
                .iter()
                .map(|l| self.layout.layer_fs(&l.chain_id))
                .collect(),
            whiteouts: self.whiteouts,
            image_ref: record
                .digests()
                .next()
                .cloned()
                .unwrap_or_else(|| record.id.to_string()),
        })
    }

    fn release(&self, holders: &[String]) -> io::Result<()> {
        let lock = self.layout.lock()?;
        let index = self.index.read(&self.layout.index())?;
        let mut orphaned = false;
        for id in holders {
            if let Some(holder) = self.layout.remove_holder(id)? {
                orphaned |= !index.images.keys().any(|i| i.as_str() == holder.image);
            }
        }
        match orphaned {
            // Its image went before it.
            true => self.layout.sweep(lock, index.needs()),
            false => Ok(()),
        }
    }
}

fn holder_key(holder: &HolderId) -> String {
    format!("{}/{}", holder.owner, holder.container)
}
