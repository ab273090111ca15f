//! Pulling: from a reference to layers on the disk and a line in the index.
//!
//! Downloads run beside each other and beside unpacking, which goes from the lowest layer up. Nothing runs in tasks of
//! its own: who drops the future ends it, and what was under way is removed with its directory of work.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use futures::channel::mpsc;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};

use super::content::{Needs, Work};
use super::digest::Digest;
use super::error::ImageError;
use super::index::{ImageRecord, LayerRecord};
use super::manifest::{Descriptor, Document, ImageConfig, InvalidManifest, Manifest, Platform, choose};
use super::reference::Reference;
use super::registry::{BlobSink, Download, RegistryError, Resolved, Session};
use super::unpack::Cancel;
use super::{Inner, blocking};
use crate::cri::messages::AuthConfig;

/// Layers of one image that are downloaded at the same time, as Docker and containerd do.
const PARALLEL_DOWNLOADS: usize = 3;
/// Indexes in indexes: registries do not have them, a hostile one might.
const MAX_INDEX_DEPTH: usize = 3;

/// How far a pull is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PullEvent {
    /// The manifest is known: these are the layers with their sizes.
    Resolved {
        layers: Vec<(Digest, u64)>,
    },
    /// So much of a layer is here.
    Downloading {
        layer: Digest,
        done: u64,
        total: u64,
    },
    Unpacking {
        layer: Digest,
    },
    /// The layer is ready, perhaps since long.
    Ready {
        layer: Digest,
    },
}

/// Is told how far a pull is, from several tasks and often.
pub type Progress = Arc<dyn Fn(PullEvent) + Send + Sync>;

/// One pull under way.
pub(super) struct Pull<'a> {
    inner: &'a Arc<Inner>,
    work: Arc<Work>,
    progress: Progress,
    /// Where to ask, the endpoint that knew the image first.
    sessions: Vec<Session>,
    /// What has been found out to be needed so far.
    needs: Needs,
}

impl<'a> Pull<'a> {
    pub(super) async fn begin(
        inner: &'a Arc<Inner>,
        reference: &Reference,
        auth: Option<&AuthConfig>,
        progress: Progress,
    ) -> Result<Pull<'a>, ImageError> {
        let layout = inner.layout.clone();
        let work = blocking(move || layout.begin_work()).await??;
        let endpoints = inner.http.registries().endpoints(reference, auth);
        let sessions = endpoints
            .into_iter()
            .map(|e| Session::new(inner.http.clone(), e))
            .collect();
        Ok(Pull {
            inner,
            work: Arc::new(work),
            progress,
            sessions,
            needs: Needs::default(),
        })
    }

    pub(super) async fn run(mut self, reference: &Reference) -> Result<ImageRecord, ImageError> {
        let resolved = self.resolve(reference).await?;
        let target = resolved.digest.clone();
        let (manifest_descriptor, manifest) = self.manifest(resolved).await?;
        manifest.check()?;
        let config = self.config(&manifest.config).await?;
        let chain_ids = config.chain_ids(manifest.layers.len())?;
        let layers = layer_records(&manifest, &config, chain_ids);
        self.rely_on(&manifest, &layers).await?;
        self.layers(&layers).await?;
        let mut references = BTreeSet::from([reference.with_digest(&target)]);
        references.extend(reference.tagged());
        Ok(ImageRecord {
            id: manifest.config.digest.clone(),
            size: image_size(&manifest_descriptor, &manifest),
            manifest: manifest_descriptor,
            layers,
            blobs: self.needs.blobs,
            references,
            user: config.config.user,
            pinned: false,
        })
    }

    /// Asks the endpoints one by one what the reference leads to.
    async fn resolve(&mut self, reference: &Reference) -> Result<Resolved, ImageError> {
        let mut failed = vec![];
        let mut last = None;
        for number in 0..self.sessions.len() {
            let session = &self.sessions[number];
            match session.resolve(reference.target()).await {
                Ok(resolved) => {
                    self.sessions.rotate_left(number);
                    return Ok(resolved);
                }
                Err(source) => {
                    if let Some((base, error)) = last.take() {
                        failed.push(format!("{base}: {}", super::error::chain(&error as &RegistryError)));
                    }
                    last = Some((session.base().to_string(), source));
                }
            }
        }
        let (_, source) = last.expect("there is always the image's own registry");
        let error = ImageError::Resolve {
            reference: reference.to_string(),
            source: Box::new(match source {
                RegistryError::NotFound(_) => RegistryError::NotFound(reference.to_string()),
                other => other,
            }),
        };
        match failed.is_empty() {
            true => Err(error),
            false => Err(ImageError::Mirrors {
                mirrors: failed,
                source: Box::new(error),
            }),
        }
    }

    /// The manifest for this platform, through indexes if need be.
    async fn manifest(&mut self, resolved: Resolved) -> Result<(Descriptor, Manifest), ImageError> {
        let (mut digest, mut media_type, mut content) = (resolved.digest, resolved.media_type, resolved.content);
        for _ in 0..=MAX_INDEX_DEPTH {
            let bytes = match content.take() {
                Some(bytes) => bytes,
                None => self.document(&digest, &mut media_type).await?,
            };
            let document = Document::parse(&bytes, &media_type)?;
            self.store_document(&digest, bytes.clone()).await?;
            match document {
                Document::Manifest(manifest) => {
                    let descriptor = Descriptor {
                        media_type: manifest_type(&manifest, &media_type),
                        digest,
                        size: bytes.len() as u64,
                        platform: None,
                        annotations: Default::default(),
                    };
                    return Ok((descriptor, manifest));
                }
                Document::Index(index) => {
                    let chosen = choose(&index, &Platform::host())?;
                    digest = chosen.digest.clone();
                    media_type = chosen.media_type.clone();
                }
            }
        }
        Err(InvalidManifest::Nested.into())
    }

    /// A manifest that we have, or from whoever has it.
    async fn document(&mut self, digest: &Digest, media_type: &mut String) -> Result<Bytes, ImageError> {
        self.needs.blobs.insert(digest.clone());
        self.save_needs().await?;
        if let Some(bytes) = self.stored(digest).await? {
            return Ok(bytes);
        }
        let mut last = None;
        for session in &self.sessions {
            match session.manifest(digest).await {
                Ok((bytes, sent_as)) => {
                    *media_type = sent_as;
                    return Ok(bytes);
                }
                Err(e) => last = Some(e),
            }
        }
        Err(fetch_failed(digest, last))
    }

    async fn config(&mut self, descriptor: &Descriptor) -> Result<ImageConfig, ImageError> {
        let digest = &descriptor.digest;
        self.needs.blobs.insert(digest.clone());
        self.save_needs().await?;
        if let Some(bytes) = self.stored(digest).await? {
            return Ok(ImageConfig::parse(&bytes)?);
        }
        let mut last = None;
        for session in &self.sessions {
            match session.small_blob(descriptor).await {
                Ok(bytes) => {
                    let config = ImageConfig::parse(&bytes)?;
                    self.store_document(digest, bytes).await?;
                    return Ok(config);
                }
                Err(e) => last = Some(e),
            }
        }
        Err(fetch_failed(digest, last))
    }

    async fn stored(&self, digest: &Digest) -> Result<Option<Bytes>, ImageError> {
        let path = self.inner.layout.blob(digest);
        let read = blocking(move || std::fs::read(path)).await?;
        match read {
            Ok(bytes) => Ok(Some(bytes.into())),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Keeps a small document whose digest was verified.
    async fn store_document(&mut self, digest: &Digest, bytes: Bytes) -> Result<(), ImageError> {
        if self.needs.blobs.insert(digest.clone()) {
            self.save_needs().await?;
        }
        let (work, digest) = (self.work.clone(), digest.clone());
        Ok(blocking(move || work.write_blob(&digest, &bytes)).await??)
    }

    async fn rely_on(&mut self, manifest: &Manifest, layers: &[LayerRecord]) -> Result<(), ImageError> {
        self.needs
            .blobs
            .extend(manifest.layers.iter().map(|l| l.digest.clone()));
        self.needs.layers.extend(layers.iter().map(|l| l.chain_id.clone()));
        self.save_needs().await
    }

    async fn save_needs(&self) -> Result<(), ImageError> {
        let (work, needs) = (self.work.clone(), self.needs.clone());
        Ok(blocking(move || work.rely_on(&needs)).await??)
    }

    /// Downloads some layers while others are unpacked.
    async fn layers(&self, layers: &[LayerRecord]) -> Result<(), ImageError> {
        (self.progress)(PullEvent::Resolved {
            layers: layers.iter().map(|l| (l.blob.digest.clone(), l.blob.size)).collect(),
        });
        let (arrived, mut arrivals) = mpsc::unbounded();
        let download = async {
            // Boxed: the compiler can't tell otherwise that they may be sent between threads.
            let download_one = |(number, layer)| self.download_layer(number, layer).boxed();
            let downloads: Vec<BoxFuture<'_, _>> = layers.iter().enumerate().map(download_one).collect();
            let mut downloads = futures::stream::iter(downloads).buffer_unordered(PARALLEL_DOWNLOADS);
            while let Some(number) = downloads.next().await {
                // Who receives ends only with an error, which ends this too.
                let _ = arrived.unbounded_send(number?);
            }
            drop(arrived);
            Ok::<(), ImageError>(())
        };
        let unpack = async {
            let mut here = BTreeSet::new();
            let mut next = 0;
            while let Some(number) = arrivals.next().await {
                here.insert(number);
                while here.remove(&next) {
                    self.unpack(layers, next).await?;
                    next += 1;
                }
            }
            Ok(())
        };
        futures::try_join!(download, unpack)?;
        Ok(())
    }

    async fn download_layer(&self, number: usize, layer: &LayerRecord) -> Result<usize, ImageError> {
        self.download(&layer.blob).await?;
        Ok(number)
    }

    /// One layer's blob, unless it is here already. Two pulls do not download the same at the same time.
    async fn download(&self, blob: &Descriptor) -> Result<(), ImageError> {
        let _turn = self.inner.flights.enter(blob.digest.as_str()).await;
        let (layout, digest) = (self.inner.layout.clone(), blob.digest.clone());
        if blocking(move || layout.has_blob(&digest)).await? {
            return Ok(());
        }
        let _permit = self
            .inner
            .downloads
            .acquire()
            .await
            .expect("the semaphore is never closed");
        let mut last = None;
        for (number, session) in self.sessions.iter().enumerate() {
            let path = self.work.path(&format!("{}-{number}", blob.digest.hex()));
            let sink = self.create_sink(path.clone(), blob).await?;
            let report = |done| {
                (self.progress)(PullEvent::Downloading {
                    layer: blob.digest.clone(),
                    done,
                    total: blob.size,
                });
            };
            let download = Download {
                session,
                descriptor: blob,
                progress: &report,
            };
            match download.run(sink).await {
                Ok(()) => {
                    let (work, digest) = (self.work.clone(), blob.digest.clone());
                    return Ok(blocking(move || work.publish_blob(&path, &digest)).await??);
                }
                Err(e) => {
                    blocking(move || std::fs::remove_file(path)).await??;
                    last = Some(e);
                }
            }
        }
        Err(fetch_failed(&blob.digest, last))
    }

    async fn create_sink(&self, path: std::path::PathBuf, blob: &Descriptor) -> Result<BlobSink, ImageError> {
        let (limits, blob, root) = (self.inner.limits, blob.clone(), self.inner.layout.root().to_path_buf());
        blocking(move || {
            let root = std::fs::File::open(root)?;
            limits.check_space(root, blob.size).map_err(ImageError::Space)?;
            Ok(BlobSink::create(&path, &blob)?)
        })
        .await?
    }

    async fn unpack(&self, layers: &[LayerRecord], number: usize) -> Result<(), ImageError> {
        let layer = layers[number].blob.digest.clone();
        (self.progress)(PullEvent::Unpacking { layer: layer.clone() });
        let cancel = Cancel::default();
        let _guard = cancel.on_drop();
        self.inner.unpack(&self.work, layers, number, cancel).await?;
        (self.progress)(PullEvent::Ready { layer });
        Ok(())
    }

    /// Keeps what the pull relies on until its record is in the index.
    pub(super) fn work(&self) -> Arc<Work> {
        self.work.clone()
    }
}

pub(super) fn layer_records(manifest: &Manifest, config: &ImageConfig, chain_ids: Vec<Digest>) -> Vec<LayerRecord> {
    let layers = manifest.layers.iter().zip(&config.rootfs.diff_ids).zip(chain_ids);
    layers
        .map(|((blob, diff_id), chain_id)| LayerRecord {
            blob: blob.clone(),
            diff_id: diff_id.clone(),
            chain_id,
        })
        .collect()
}

/// As containerd counts: what was downloaded.
pub(super) fn image_size(descriptor: &Descriptor, manifest: &Manifest) -> u64 {
    let layers = manifest.layers.iter().map(|l| l.size);
    layers.fold(
        descriptor.size.saturating_add(manifest.config.size),
        u64::saturating_add,
    )
}

fn manifest_type(manifest: &Manifest, sent_as: &str) -> String {
    match manifest.media_type.is_empty() {
        true => sent_as.split(';').next().unwrap_or_default().trim().to_string(),
        false => manifest.media_type.clone(),
    }
}

fn fetch_failed(digest: &Digest, last: Option<RegistryError>) -> ImageError {
    ImageError::Fetch {
        digest: digest.clone(),
        source: Box::new(last.expect("there is always the image's own registry")),
    }
}
