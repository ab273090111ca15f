//! Images as files: what `docker save` and OCI layouts look like, read and written.
//!
//! An archive is unpacked into the directory of work first, each file hashed on the way; what it says is looked at
//! afterwards, since the list of what is in it may come last. What is written is both at once: an OCI layout, and what
//! `docker load` of any age understands.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::json;

use super::content::{Layout, Work};
use super::digest::Digest;
use super::error::ImageError;
use super::index::ImageRecord;
use super::install::Install;
use super::manifest::{
    Descriptor, Document, ImageConfig, Index, MAX_CONFIG_BYTES, MAX_MANIFEST_BYTES, Manifest, OCI_MANIFEST, Platform,
    choose, or_default,
};
use super::reference::Reference;
use super::tar::{Kind, TarReader, TarWriter};
use super::unpack::{Cancel, Limits, UnpackError, decompress};

/// Files in an archive: three a layer, and some.
const MAX_FILES: usize = 20_000;
/// Links to links.
const MAX_LINKS: usize = 8;
const NAME_ANNOTATION: &str = "io.containerd.image.name";
const TAG_ANNOTATION: &str = "org.opencontainers.image.ref.name";
const DOCKER_LAYER: &str = "application/vnd.docker.image.rootfs.diff.tar";

/// A file of an archive, out of it.
#[derive(Clone, Debug)]
struct ArchiveFile {
    path: PathBuf,
    digest: Digest,
    size: u64,
}

enum ArchiveEntry {
    File(ArchiveFile),
    Link(String),
}

/// An archive that was unpacked into a directory of work.
pub(super) struct UnpackedArchive {
    entries: HashMap<String, ArchiveEntry>,
    by_digest: HashMap<Digest, ArchiveFile>,
}

/// Images of an archive, and where their blobs are.
pub(super) struct ArchiveImages {
    pub images: Vec<Install>,
    blobs: Vec<ArchiveBlob>,
}

enum ArchiveBlob {
    File(ArchiveFile),
    Document(Digest, Vec<u8>),
}

/// Takes an archive apart.
pub(super) fn unpack_archive(
    archive: impl Read + Send,
    work: &Work,
    limits: &Limits,
    cancel: &Cancel,
) -> Result<UnpackedArchive, ImageError> {
    let stream = decompress(BufReader::with_capacity(128 << 10, archive)).map_err(not_an_archive)?;
    let mut reader = TarReader::new(stream);
    let dir = work.path("archive");
    std::fs::create_dir(&dir)?;
    let space = File::open(&dir)?;
    let mut unpacked = UnpackedArchive {
        entries: HashMap::new(),
        by_digest: HashMap::new(),
    };
    let mut total = 0u64;
    while let Some(entry) = reader.next_entry().map_err(ImageError::Tar)? {
        if unpacked.entries.len() >= MAX_FILES {
            return Err(ImageError::Archive(format!("it has more than {MAX_FILES} files")));
        }
        let name = clean_name(&entry.name, "");
        match entry.kind {
            Kind::Regular => {
                total = total.saturating_add(entry.size);
                if total > limits.bytes {
                    return Err(ImageError::Space(UnpackError::TooLarge(limits.bytes)));
                }
                limits.check_space(&space, entry.size).map_err(ImageError::Space)?;
                let path = dir.join(unpacked.entries.len().to_string());
                let file = copy_out(&mut reader, path, entry.size, cancel)?;
                unpacked.by_digest.insert(file.digest.clone(), file.clone());
                unpacked.entries.insert(name, ArchiveEntry::File(file));
            }
            Kind::Symlink => {
                let parent = name.rsplit_once('/').map_or("", |(parent, _)| parent);
                let target = clean_name(&entry.link, parent);
                unpacked.entries.insert(name, ArchiveEntry::Link(target));
            }
            Kind::HardLink => {
                let target = clean_name(&entry.link, "");
                unpacked.entries.insert(name, ArchiveEntry::Link(target));
            }
            _ => {}
        }
    }
    Ok(unpacked)
}

fn not_an_archive(error: io::Error) -> ImageError {
    ImageError::Archive(error.to_string())
}

fn copy_out(reader: &mut impl Read, path: PathBuf, size: u64, cancel: &Cancel) -> Result<ArchiveFile, ImageError> {
    let mut file = File::create_new(&path)?;
    let mut hasher = super::digest::Hasher::sha256();
    let mut buffer = vec![0; 128 << 10];
    loop {
        if cancel.is_set() {
            return Err(ImageError::Space(UnpackError::Canceled));
        }
        match reader.read(&mut buffer).map_err(not_an_archive)? {
            0 => break,
            count => {
                hasher.update(&buffer[..count]);
                file.write_all(&buffer[..count])?;
            }
        }
    }
    Ok(ArchiveFile {
        path,
        digest: hasher.finish(),
        size,
    })
}

/// A name from the archive's root, whatever it looks like.
fn clean_name(name: &[u8], parent: &str) -> String {
    let name = String::from_utf8_lossy(name);
    let mut parts: Vec<&str> = match name.starts_with('/') {
        true => vec![],
        false => parent.split('/').filter(|p| !p.is_empty()).collect(),
    };
    for part in name.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// `manifest.json` of `docker save`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerImage {
    config: String,
    #[serde(default, deserialize_with = "or_default")]
    repo_tags: Vec<String>,
    #[serde(default, deserialize_with = "or_default")]
    layers: Vec<String>,
}

impl UnpackedArchive {
    /// The images for this platform.
    pub(super) fn images(&self) -> Result<ArchiveImages, ImageError> {
        let docker: Vec<DockerImage> = match self.file("manifest.json") {
            Some(file) => parse(&self.read(file, MAX_MANIFEST_BYTES)?, "manifest.json")?,
            None => vec![],
        };
        let found = match self.file("index.json") {
            Some(file) => {
                let index: Index = parse(&self.read(file, MAX_MANIFEST_BYTES)?, "index.json")?;
                self.layout_images(&index, &docker)?
            }
            None if !docker.is_empty() => self.docker_images(&docker)?,
            None => {
                let why = "it has neither index.json nor manifest.json";
                return Err(ImageError::Archive(why.to_string()));
            }
        };
        match found.images.is_empty() {
            true => Err(ImageError::Archive("there is no image in it".to_string())),
            false => Ok(found),
        }
    }

    fn file(&self, name: &str) -> Option<&ArchiveFile> {
        let mut name = name;
        for _ in 0..MAX_LINKS {
            match self.entries.get(name)? {
                ArchiveEntry::File(file) => return Some(file),
                ArchiveEntry::Link(target) => name = target,
            }
        }
        None
    }

    fn read(&self, file: &ArchiveFile, limit: u64) -> Result<Vec<u8>, ImageError> {
        if file.size > limit {
            return Err(ImageError::Archive(format!("a document in it exceeds {limit} bytes")));
        }
        Ok(std::fs::read(&file.path)?)
    }

    /// A blob by its digest. The name it has does not matter: what it is was computed.
    fn blob(&self, digest: &Digest) -> Result<&ArchiveFile, ImageError> {
        let missing = || ImageError::Archive(format!("blob {digest} is missing"));
        self.by_digest.get(digest).ok_or_else(missing)
    }

    /// Images of an OCI layout, by name; those without one are listed by their id alone.
    fn layout_images(&self, index: &Index, docker: &[DockerImage]) -> Result<ArchiveImages, ImageError> {
        let here = Platform::host();
        let mut by_name: BTreeMap<Option<String>, Vec<Descriptor>> = BTreeMap::new();
        for descriptor in &index.manifests {
            by_name.entry(name_of(descriptor)).or_default().push(descriptor.clone());
        }
        let mut found = ArchiveImages {
            images: vec![],
            blobs: vec![],
        };
        let mut refused = None;
        for (name, manifests) in by_name {
            // One name may stand for several platforms; without a name each is an image.
            let choices: Vec<Vec<Descriptor>> = match name {
                Some(_) => vec![manifests],
                None => manifests.into_iter().map(|d| vec![d]).collect(),
            };
            for manifests in choices {
                let index = Index {
                    schema_version: 2,
                    media_type: String::new(),
                    manifests,
                };
                match choose(&index, &here) {
                    Ok(descriptor) => self.layout_image(descriptor, name.as_deref(), docker, &mut found)?,
                    Err(why) => refused = Some(why),
                }
            }
        }
        match (found.images.is_empty(), refused) {
            (true, Some(why)) => Err(why.into()),
            _ => Ok(found),
        }
    }

    fn layout_image(
        &self,
        descriptor: &Descriptor,
        name: Option<&str>,
        docker: &[DockerImage],
        found: &mut ArchiveImages,
    ) -> Result<(), ImageError> {
        let target = descriptor.digest.clone();
        let mut descriptor = descriptor.clone();
        let manifest = loop {
            let bytes = self.read(self.blob(&descriptor.digest)?, MAX_MANIFEST_BYTES)?;
            match Document::parse(&bytes, &descriptor.media_type)? {
                Document::Manifest(manifest) => break manifest,
                Document::Index(index) => {
                    let chosen = choose(&index, &Platform::host())?;
                    if chosen.digest == descriptor.digest {
                        return Err(ImageError::Archive("an index contains itself".to_string()));
                    }
                    descriptor = chosen.clone();
                }
            }
        };
        let config_file = self.blob(&manifest.config.digest)?;
        let config = ImageConfig::parse(&self.read(config_file, MAX_CONFIG_BYTES)?)?;
        let tags = docker
            .iter()
            .filter(|d| self.file(&d.config).is_some_and(|f| f.digest == config_file.digest));
        let names = name
            .into_iter()
            .chain(tags.flat_map(|d| d.repo_tags.iter().map(String::as_str)));
        let mut references = BTreeSet::new();
        for name in names {
            let reference = Reference::parse(name)?;
            references.extend(reference.tagged());
            references.insert(reference.with_digest(&target));
        }
        found
            .blobs
            .push(ArchiveBlob::File(self.blob(&descriptor.digest)?.clone()));
        found.blobs.push(ArchiveBlob::File(config_file.clone()));
        for layer in &manifest.layers {
            found.blobs.push(ArchiveBlob::File(self.blob(&layer.digest)?.clone()));
        }
        found.images.push(Install {
            descriptor: plain_descriptor(&descriptor),
            manifest,
            config,
            references,
            pinned: false,
        });
        Ok(())
    }

    /// Images of older versions of Docker: they get the manifest that a registry would have for them.
    fn docker_images(&self, docker: &[DockerImage]) -> Result<ArchiveImages, ImageError> {
        let mut found = ArchiveImages {
            images: vec![],
            blobs: vec![],
        };
        for image in docker {
            let named = |name: &str| {
                let missing = || ImageError::Archive(format!("{name} is missing"));
                self.file(&clean_name(name.as_bytes(), "")).ok_or_else(missing)
            };
            let config_file = named(&image.config)?;
            let config = ImageConfig::parse(&self.read(config_file, MAX_CONFIG_BYTES)?)?;
            let mut layers = vec![];
            for layer in &image.layers {
                let file = named(layer)?;
                layers.push(describe(&layer_type(&file.path)?, file));
                found.blobs.push(ArchiveBlob::File(file.clone()));
            }
            let manifest = Manifest {
                schema_version: 2,
                media_type: super::manifest::DOCKER_MANIFEST.to_string(),
                config: describe("application/vnd.docker.container.image.v1+json", config_file),
                layers,
            };
            found.blobs.push(ArchiveBlob::File(config_file.clone()));
            let document = serde_json::to_vec(&manifest).map_err(io::Error::other)?;
            let descriptor = Descriptor {
                media_type: manifest.media_type.clone(),
                digest: Digest::of(&document),
                size: document.len() as u64,
                platform: None,
                annotations: BTreeMap::new(),
            };
            found
                .blobs
                .push(ArchiveBlob::Document(descriptor.digest.clone(), document));
            let tags = image.repo_tags.iter().map(|tag| Ok(Reference::parse(tag)?.to_string()));
            found.images.push(Install {
                descriptor,
                manifest,
                config,
                references: tags.collect::<Result<_, ImageError>>()?,
                pinned: false,
            });
        }
        Ok(found)
    }
}

impl ArchiveImages {
    /// What publishes all blobs that are not there yet.
    pub(super) fn publisher(&mut self, layout: Layout) -> impl FnOnce(&Work) -> io::Result<()> + Send + 'static {
        let blobs = std::mem::take(&mut self.blobs);
        move |work| {
            for blob in blobs {
                match blob {
                    ArchiveBlob::File(file) if layout.has_blob(&file.digest) => {}
                    ArchiveBlob::File(file) => work.publish_blob(&file.path, &file.digest)?,
                    ArchiveBlob::Document(digest, bytes) => work.write_blob(&digest, &bytes)?,
                }
            }
            Ok(())
        }
    }
}

/// As `ctr`, `nerdctl`, Docker and skopeo write names.
fn name_of(descriptor: &Descriptor) -> Option<String> {
    let annotations = &descriptor.annotations;
    let whole = annotations.get(NAME_ANNOTATION);
    // Of a tag alone nobody knows whose it is.
    let tag = annotations.get(TAG_ANNOTATION).filter(|name| name.contains(['/', ':']));
    let name = whole.or(tag)?;
    Reference::parse(name).is_ok().then(|| name.clone())
}

fn plain_descriptor(descriptor: &Descriptor) -> Descriptor {
    Descriptor {
        platform: None,
        annotations: BTreeMap::new(),
        ..descriptor.clone()
    }
}

fn describe(media_type: &str, file: &ArchiveFile) -> Descriptor {
    Descriptor {
        media_type: media_type.to_string(),
        digest: file.digest.clone(),
        size: file.size,
        platform: None,
        annotations: BTreeMap::new(),
    }
}

fn layer_type(path: &Path) -> io::Result<String> {
    let mut magic = [0; 4];
    let count = File::open(path)?.read(&mut magic)?;
    Ok(match &magic[..count] {
        [0x1f, 0x8b, ..] => format!("{DOCKER_LAYER}.gzip"),
        [0x28, 0xb5, 0x2f, 0xfd] => format!("{DOCKER_LAYER}.zstd"),
        _ => DOCKER_LAYER.to_string(),
    })
}

fn parse<T: serde::de::DeserializeOwned>(bytes: &[u8], name: &str) -> Result<T, ImageError> {
    serde_json::from_slice(bytes).map_err(|e| ImageError::Archive(format!("{name}: {e}")))
}

/// An image to be saved, with the names it is saved by.
pub(super) struct Saved {
    pub record: ImageRecord,
    pub tags: Vec<String>,
}

/// Writes images as one archive.
pub(super) fn write_archive(layout: &Layout, images: &[Saved], sink: impl Write) -> Result<(), ImageError> {
    let mut writer = TarWriter::new(io::BufWriter::with_capacity(128 << 10, sink));
    writer.append_file("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    writer.append_file("index.json", layout_index(images).to_string().as_bytes())?;
    writer.append_file("manifest.json", docker_manifest(images).to_string().as_bytes())?;
    let mut written = BTreeSet::new();
    for image in images {
        let record = &image.record;
        let documents = [&record.manifest.digest, &record.id];
        for digest in documents
            .into_iter()
            .chain(record.layers.iter().map(|l| &l.blob.digest))
        {
            if !written.insert(digest) {
                continue;
            }
            let mut blob = File::open(layout.blob(digest)).map_err(|_| ImageError::Incomplete {
                image: record.id.clone(),
                digest: digest.clone(),
            })?;
            let size = blob.metadata()?.len();
            writer.append_stream(&blob_name(digest), size, &mut blob)?;
        }
    }
    writer.finish()?;
    Ok(())
}

fn blob_name(digest: &Digest) -> String {
    format!("blobs/{}/{}", digest.algorithm(), digest.hex())
}

fn layout_index(images: &[Saved]) -> serde_json::Value {
    let mut manifests = vec![];
    for image in images {
        let manifest = &image.record.manifest;
        let media_type = match manifest.media_type.is_empty() {
            true => OCI_MANIFEST,
            false => &manifest.media_type,
        };
        let descriptor = json!({ "mediaType": media_type, "digest": manifest.digest, "size": manifest.size });
        if image.tags.is_empty() {
            manifests.push(descriptor.clone());
        }
        for tag in &image.tags {
            let short = tag.rsplit(':').next().unwrap_or_default();
            let mut named = descriptor.clone();
            named["annotations"] = json!({ NAME_ANNOTATION: tag, TAG_ANNOTATION: short });
            manifests.push(named);
        }
    }
    json!({ "schemaVersion": 2, "mediaType": super::manifest::OCI_INDEX, "manifests": manifests })
}

fn docker_manifest(images: &[Saved]) -> serde_json::Value {
    let images = images.iter().map(|image| {
        let layers = image.record.layers.iter().map(|l| blob_name(&l.blob.digest));
        json!({
            "Config": blob_name(&image.record.id),
            "RepoTags": image.tags,
            "Layers": layers.collect::<Vec<_>>(),
        })
    });
    images.collect()
}
