//! Images made for tests.

use std::io::Write;

use flate2::write::GzEncoder;
use serde_json::json;

use super::super::digest::Digest;
use super::super::manifest::{OCI_CONFIG, OCI_INDEX, OCI_LAYER, OCI_MANIFEST};
use super::super::tar::{Entry, Kind, TarWriter};

pub(crate) fn entry(name: &str, kind: Kind) -> Entry {
    Entry {
        name: name.as_bytes().to_vec(),
        kind,
        mode: if kind == Kind::Directory { 0o755 } else { 0o644 },
        uid: 0,
        gid: 0,
        size: 0,
        modified: (1_700_000_000, 0),
        link: vec![],
        device: (0, 0),
        xattrs: vec![],
    }
}

pub(crate) fn link(name: &str, kind: Kind, target: &str) -> Entry {
    Entry {
        link: target.as_bytes().to_vec(),
        ..entry(name, kind)
    }
}

/// An archive of entries with their contents.
pub(crate) fn archive(entries: &[(Entry, &[u8])]) -> Vec<u8> {
    let mut writer = TarWriter::new(vec![]);
    for (entry, content) in entries {
        let entry = Entry {
            size: content.len() as u64,
            ..entry.clone()
        };
        writer.append(&entry, &mut &content[..]).unwrap();
    }
    writer.finish().unwrap()
}

/// An archive of plain files.
pub(crate) fn files(files: &[(&str, &[u8])]) -> Vec<u8> {
    let entries: Vec<_> = files
        .iter()
        .map(|(name, content)| (entry(name, Kind::Regular), *content))
        .collect();
    archive(&entries)
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(vec![], flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub(crate) fn zstd(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}

/// An image with its blobs.
#[derive(Clone)]
pub(crate) struct TestImage {
    pub manifest: Vec<u8>,
    pub config: Vec<u8>,
    pub layers: Vec<Vec<u8>>,
}

impl TestImage {
    /// Of archives that are compressed in turn with gzip, zstd and not at all.
    pub(crate) fn new(archives: &[Vec<u8>]) -> TestImage {
        let layers: Vec<Vec<u8>> = archives
            .iter()
            .enumerate()
            .map(|(number, archive)| match number % 3 {
                0 => gzip(archive),
                1 => zstd(archive),
                _ => archive.clone(),
            })
            .collect();
        let diff_ids: Vec<Digest> = archives.iter().map(|a| Digest::of(a)).collect();
        TestImage::with_layers(layers, &diff_ids)
    }

    pub(crate) fn with_layers(layers: Vec<Vec<u8>>, diff_ids: &[Digest]) -> TestImage {
        let config = json!({
            "architecture": "amd64",
            "os": "linux",
            "config": { "User": "1000:1000", "Env": ["PATH=/bin"], "Cmd": ["/hello"] },
            "rootfs": { "type": "layers", "diff_ids": diff_ids },
        });
        let config = config.to_string().into_bytes();
        let layer = |(number, layer): (usize, &Vec<u8>)| {
            let suffix = ["+gzip", "+zstd", ""][number % 3];
            json!({ "mediaType": format!("{OCI_LAYER}{suffix}"), "digest": Digest::of(layer), "size": layer.len() })
        };
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": { "mediaType": OCI_CONFIG, "digest": Digest::of(&config), "size": config.len() },
            "layers": layers.iter().enumerate().map(layer).collect::<Vec<_>>(),
        });
        TestImage {
            manifest: manifest.to_string().into_bytes(),
            config,
            layers,
        }
    }

    /// Two small layers, with something of the given text in them.
    pub(crate) fn small(text: &str) -> TestImage {
        TestImage::new(&[
            files(&[("hello", text.as_bytes()), ("etc/base", b"base")]),
            files(&[("etc/top", text.as_bytes())]),
        ])
    }

    pub(crate) fn id(&self) -> Digest {
        Digest::of(&self.config)
    }

    pub(crate) fn digest(&self) -> Digest {
        Digest::of(&self.manifest)
    }

    pub(crate) fn blobs(&self) -> Vec<Vec<u8>> {
        let mut blobs = self.layers.clone();
        blobs.push(self.config.clone());
        blobs
    }

    /// An index with this image for the platform of this machine, between two others.
    pub(crate) fn index(&self) -> Vec<u8> {
        let here = super::super::manifest::Platform::host();
        let of = |os: &str, architecture: &str, digest: &Digest, size: usize| {
            json!({
                "mediaType": OCI_MANIFEST, "digest": digest, "size": size,
                "platform": { "os": os, "architecture": architecture },
            })
        };
        let other = Digest::of(b"another manifest");
        json!({
            "schemaVersion": 2,
            "mediaType": OCI_INDEX,
            "manifests": [
                of("windows", &here.architecture, &other, 5),
                of("linux", &here.architecture, &self.digest(), self.manifest.len()),
                of("linux", "s390x", &other, 5),
            ],
        })
        .to_string()
        .into_bytes()
    }
}
