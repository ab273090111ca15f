//! From blobs on the disk to an image in the index: what loading archives and the built-in images have in common.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::content::{Needs, Work};
use super::digest::Digest;
use super::error::ImageError;
use super::index::ImageRecord;
use super::manifest::{Descriptor, ImageConfig, Manifest};
use super::pull::{image_size, layer_records};
use super::unpack::Cancel;
use super::{Inner, blocking};

/// An image whose blobs are about to be published.
pub(super) struct Install {
    pub descriptor: Descriptor,
    pub manifest: Manifest,
    pub config: ImageConfig,
    pub references: BTreeSet<String>,
    pub pinned: bool,
}

impl Install {
    /// Checks it as if it had been pulled.
    pub(super) fn record(&self) -> Result<ImageRecord, ImageError> {
        self.manifest.check()?;
        let chain_ids = self.config.chain_ids(self.manifest.layers.len())?;
        let layers = layer_records(&self.manifest, &self.config, chain_ids);
        let blobs = self.manifest.layers.iter().map(|l| l.digest.clone());
        let documents = [self.manifest.config.digest.clone(), self.descriptor.digest.clone()];
        Ok(ImageRecord {
            id: self.manifest.config.digest.clone(),
            manifest: self.descriptor.clone(),
            layers,
            blobs: blobs.chain(documents).collect(),
            references: self.references.clone(),
            size: image_size(&self.descriptor, &self.manifest),
            user: self.config.config.user.clone(),
            pinned: self.pinned,
        })
    }
}

/// Publishes blobs, unpacks and lists images. `publish` gives each blob its place unless it is there; it is called after
/// all of them were leased.
pub(super) async fn install(
    inner: &Arc<Inner>,
    work: &Arc<Work>,
    images: &[Install],
    publish: impl FnOnce(&Work) -> std::io::Result<()> + Send + 'static,
) -> Result<Vec<Digest>, ImageError> {
    let records: Vec<ImageRecord> = images.iter().map(Install::record).collect::<Result<_, _>>()?;
    let mut needs = Needs::default();
    for record in &records {
        needs.extend(record.needs());
    }
    let publisher = work.clone();
    let published = blocking(move || {
        publisher.rely_on(&needs)?;
        publish(&publisher)
    });
    published.await??;
    let cancel = Cancel::default();
    let _guard = cancel.on_drop();
    for record in &records {
        for number in 0..record.layers.len() {
            inner.unpack(work, &record.layers, number, cancel.clone()).await?;
        }
    }
    let ids = records.iter().map(|r| r.id.clone()).collect();
    inner.commit(records).await?;
    Ok(ids)
}
