//! What a registry says an image is made of: manifests, indexes and the image's configuration. Pure: bytes in, checked
//! values out.
//!
//! Upstream: opencontainers/image-spec (manifest.md, image-index.md, config.md) and Docker's schema 2, which differ in
//! media types only.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use super::digest::{Digest, chain_ids};

pub(super) const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(super) const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(super) const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub(super) const OCI_LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
pub(super) const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
pub(super) const DOCKER_INDEX: &str = "application/vnd.docker.distribution.manifest.list.v2+json";

/// As many as Docker stacks: beyond, overlayfs cannot mount them with what fits in a page of mount options.
pub(super) const MAX_LAYERS: usize = 127;
/// Manifests and indexes: what containerd and registries allow.
pub(super) const MAX_MANIFEST_BYTES: u64 = 4 << 20;
pub(super) const MAX_CONFIG_BYTES: u64 = 8 << 20;

/// A piece of content by name, with what is to be expected of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Descriptor {
    #[serde(default)]
    pub media_type: String,
    pub digest: Digest,
    pub size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Platform {
    #[serde(default)]
    pub architecture: String,
    #[serde(default)]
    pub os: String,
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "String::is_empty")]
    pub variant: String,
}

/// A manifest: one image for one platform.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Manifest {
    pub schema_version: u32,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub media_type: String,
    pub config: Descriptor,
    pub layers: Vec<Descriptor>,
}

/// An image index: the same image for several platforms.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Index {
    pub schema_version: u32,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub media_type: String,
    pub manifests: Vec<Descriptor>,
}

/// What a reference may lead to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Document {
    Manifest(Manifest),
    Index(Index),
}

/// Why a document of a registry or an archive cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InvalidManifest {
    #[error("failed to decode manifest")]
    Json(#[source] serde_json::Error),
    #[error("failed to decode image config")]
    Config(#[source] serde_json::Error),
    #[error("media type {0:?} is not supported: the image must be OCI or Docker schema 2")]
    MediaType(String),
    /// A document that reads as both could mean one image to a scanner and another one to a runtime (CVE-2021-41190).
    #[error("invalid manifest: it is both a manifest and an index")]
    Ambiguous,
    #[error("layer {digest}: media type {media_type:?} is not supported")]
    Layer { digest: Digest, media_type: String },
    #[error("too many layers: the image has {0}, at most {MAX_LAYERS} are supported")]
    TooManyLayers(usize),
    #[error("mismatched image rootfs and manifest layers: {diff_ids} and {layers}")]
    Mismatch { diff_ids: usize, layers: usize },
    #[error("no match for platform {0} in manifest: not found")]
    Platform(String),
    #[error("image index is nested too deeply")]
    Nested,
    #[error("{what} has {size} bytes, at most {limit} are allowed")]
    TooLarge { what: &'static str, size: u64, limit: u64 },
}

impl Document {
    /// Reads a document. What it says of itself counts more than the media type it was sent with, which mirrors and
    /// plain file servers often get wrong.
    pub(super) fn parse(bytes: &[u8], sent_as: &str) -> Result<Document, InvalidManifest> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Shape {
            #[serde(default, deserialize_with = "or_default")]
            schema_version: u32,
            #[serde(default, deserialize_with = "or_default")]
            media_type: String,
            #[serde(default)]
            manifests: Option<serde::de::IgnoredAny>,
            #[serde(default)]
            layers: Option<serde::de::IgnoredAny>,
            #[serde(default)]
            config: Option<serde::de::IgnoredAny>,
        }
        let shape: Shape = serde_json::from_slice(bytes).map_err(InvalidManifest::Json)?;
        let media_type = match shape.media_type.is_empty() {
            true => sent_as.split(';').next().unwrap_or_default().trim(),
            false => shape.media_type.as_str(),
        };
        let (lists, stacks) = (
            shape.manifests.is_some(),
            shape.layers.is_some() || shape.config.is_some(),
        );
        let is_index = match media_type {
            OCI_INDEX | DOCKER_INDEX => true,
            OCI_MANIFEST | DOCKER_MANIFEST => false,
            _ if shape.schema_version == 2 && (lists || stacks) && shape.media_type.is_empty() => lists,
            other => return Err(InvalidManifest::MediaType(other.to_string())),
        };
        if lists && stacks {
            return Err(InvalidManifest::Ambiguous);
        }
        match is_index {
            true => serde_json::from_slice(bytes).map(Document::Index),
            false => serde_json::from_slice(bytes).map(Document::Manifest),
        }
        .map_err(InvalidManifest::Json)
    }
}

impl Manifest {
    /// Refuses what could not be unpacked, before anything large is downloaded.
    pub(super) fn check(&self) -> Result<(), InvalidManifest> {
        if self.layers.len() > MAX_LAYERS {
            return Err(InvalidManifest::TooManyLayers(self.layers.len()));
        }
        if self.config.size > MAX_CONFIG_BYTES {
            return Err(InvalidManifest::TooLarge {
                what: "image config",
                size: self.config.size,
                limit: MAX_CONFIG_BYTES,
            });
        }
        match self.layers.iter().find(|l| !is_layer(&l.media_type)) {
            None => Ok(()),
            Some(layer) => Err(InvalidManifest::Layer {
                digest: layer.digest.clone(),
                media_type: layer.media_type.clone(),
            }),
        }
    }
}

/// How a layer is compressed is read off its bytes; the media type only says that it is a layer.
fn is_layer(media_type: &str) -> bool {
    let base = media_type.split('+').next().unwrap_or_default();
    let oci = matches!(
        base,
        OCI_LAYER | "application/vnd.oci.image.layer.nondistributable.v1.tar"
    );
    let docker = media_type.starts_with("application/vnd.docker.image.rootfs.")
        && (media_type.contains(".diff.tar") || media_type.contains(".foreign.diff.tar"));
    (oci || docker) && !media_type.contains("+encrypted")
}

impl Platform {
    /// Where this binary runs.
    pub(super) fn host() -> Platform {
        let (architecture, variant) = match std::env::consts::ARCH {
            "x86_64" => ("amd64", ""),
            "aarch64" => ("arm64", "v8"),
            "x86" => ("386", ""),
            "arm" => ("arm", "v7"),
            "powerpc64" if cfg!(target_endian = "little") => ("ppc64le", ""),
            other => (other, ""),
        };
        Platform {
            architecture: architecture.to_string(),
            os: "linux".to_string(),
            variant: variant.to_string(),
        }
    }

    /// How well an image for `other` fits here, lower is better; `None` if it does not run here.
    ///
    /// Upstream: containerd/platforms (`platformVector`): a newer processor runs what was built for an older one.
    fn rank(&self, other: &Platform) -> Option<u32> {
        if self.os != other.os || self.architecture != other.architecture {
            return None;
        }
        let (ours, theirs) = (
            version(&self.architecture, &self.variant),
            version(&other.architecture, &other.variant),
        );
        ours.checked_sub(theirs)
    }
}

impl std::fmt::Display for Platform {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        match self.variant.is_empty() {
            true => Ok(()),
            false => write!(f, "/{}", self.variant),
        }
    }
}

/// A variant as a number: no variant is the oldest one that there are images for.
fn version(architecture: &str, variant: &str) -> u32 {
    let default = match architecture {
        "arm64" => 8,
        "arm" => 7,
        _ => 1,
    };
    let number = variant.strip_prefix('v').unwrap_or(variant).split('.').next();
    number.and_then(|n| n.parse().ok()).unwrap_or(default)
}

/// The manifest of an index that fits this platform best; the first one among equals.
pub(super) fn choose<'a>(index: &'a Index, platform: &Platform) -> Result<&'a Descriptor, InvalidManifest> {
    let fitting = index.manifests.iter().filter_map(|descriptor| {
        let rank = match &descriptor.platform {
            Some(other) => platform.rank(other)?,
            // Not said: perhaps ours, so only where nothing else fits.
            None => u32::MAX,
        };
        Some((rank, descriptor))
    });
    let best = fitting.min_by_key(|(rank, _)| *rank).map(|(_, descriptor)| descriptor);
    best.ok_or_else(|| InvalidManifest::Platform(platform.to_string()))
}

/// The image's configuration, as far as it concerns containers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct ImageConfig {
    #[serde(default, deserialize_with = "or_default")]
    pub architecture: String,
    #[serde(default, deserialize_with = "or_default")]
    pub os: String,
    #[serde(default, deserialize_with = "or_default")]
    pub config: ContainerDefaults,
    #[serde(default, deserialize_with = "or_default")]
    pub rootfs: RootFs,
}

/// What containers of the image start with unless the pod says otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ContainerDefaults {
    #[serde(deserialize_with = "or_default")]
    pub user: String,
    #[serde(deserialize_with = "or_default")]
    pub env: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub entrypoint: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub cmd: Vec<String>,
    #[serde(deserialize_with = "names")]
    pub volumes: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub working_dir: String,
    #[serde(deserialize_with = "or_default")]
    pub labels: BTreeMap<String, String>,
    #[serde(deserialize_with = "or_default")]
    pub stop_signal: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct RootFs {
    #[serde(default, deserialize_with = "or_default")]
    pub diff_ids: Vec<Digest>,
}

impl ImageConfig {
    pub fn parse(bytes: &[u8]) -> Result<ImageConfig, InvalidManifest> {
        serde_json::from_slice(bytes).map_err(InvalidManifest::Config)
    }

    /// The names of the layers' stacks, lowest first, once it is sure that there is one a layer.
    pub fn chain_ids(&self, layers: usize) -> Result<Vec<Digest>, InvalidManifest> {
        let diff_ids = self.rootfs.diff_ids.len();
        match diff_ids == layers {
            true => Ok(chain_ids(&self.rootfs.diff_ids)),
            false => Err(InvalidManifest::Mismatch { diff_ids, layers }),
        }
    }
}

/// Go writes `null` for what is empty.
pub(super) fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// Go writes sets as objects of empty objects.
fn names<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let set: Option<BTreeMap<String, serde::de::IgnoredAny>> = Option::deserialize(deserializer)?;
    Ok(set.unwrap_or_default().into_keys().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor(platform: &str) -> Descriptor {
        let mut parts = platform.split('/');
        let mut part = || parts.next().unwrap_or_default().to_string();
        Descriptor {
            media_type: OCI_MANIFEST.to_string(),
            digest: Digest::of(platform.as_bytes()),
            size: 1,
            platform: (!platform.is_empty()).then(|| Platform {
                os: part(),
                architecture: part(),
                variant: part(),
            }),
            annotations: BTreeMap::new(),
        }
    }

    fn platform(text: &str) -> Platform {
        descriptor(text).platform.unwrap()
    }

    #[test]
    fn the_platform_that_fits_best() {
        for (here, offered, chosen) in [
            (
                "linux/amd64",
                &["windows/amd64", "linux/arm64", "linux/amd64"][..],
                "linux/amd64",
            ),
            ("linux/amd64", &["unknown/unknown", "linux/amd64/v1"], "linux/amd64/v1"),
            ("linux/arm64/v8", &["linux/arm/v7", "linux/arm64"], "linux/arm64"),
            (
                "linux/arm/v7",
                &["linux/arm/v5", "linux/arm/v6", "linux/arm/v8"],
                "linux/arm/v6",
            ),
            ("linux/arm/v7", &["linux/arm/v6", "linux/arm/v7"], "linux/arm/v7"),
            ("linux/amd64", &["", "linux/amd64"], "linux/amd64"),
            ("linux/amd64", &["linux/arm64", ""], ""),
        ] {
            let index = Index {
                schema_version: 2,
                media_type: OCI_INDEX.to_string(),
                manifests: offered.iter().map(|p| descriptor(p)).collect(),
            };
            let best = choose(&index, &platform(here)).unwrap();
            assert_eq!(best.digest, Digest::of(chosen.as_bytes()), "{here} among {offered:?}");
        }
    }

    #[test]
    fn no_platform_fits() {
        let manifests = vec![descriptor("linux/s390x"), descriptor("linux/amd64/v3")];
        let index = Index {
            schema_version: 2,
            media_type: String::new(),
            manifests,
        };
        let error = choose(&index, &platform("linux/amd64")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "no match for platform linux/amd64 in manifest: not found"
        );
    }

    fn manifest_json(extra: &str) -> String {
        let digest = Digest::of(b"x");
        format!(r#"{{"schemaVersion":2{extra},"config":{{"digest":"{digest}","size":2}},"layers":[]}}"#)
    }

    #[test]
    fn documents_by_what_they_say() {
        let plain = manifest_json("");
        assert!(matches!(
            Document::parse(plain.as_bytes(), "text/plain"),
            Ok(Document::Manifest(_))
        ));
        let index = format!(r#"{{"schemaVersion":2,"mediaType":"{OCI_INDEX}","manifests":[]}}"#);
        assert!(matches!(
            Document::parse(index.as_bytes(), OCI_MANIFEST),
            Ok(Document::Index(_))
        ));
        for (text, sent_as, why) in [
            ("garbage", OCI_MANIFEST, "failed to decode manifest"),
            ("{}", OCI_MANIFEST, "failed to decode manifest"),
            ("[1]", OCI_MANIFEST, "failed to decode manifest"),
            (
                r#"{"schemaVersion":1}"#,
                "application/vnd.docker.distribution.manifest.v1+prettyjws",
                "media type \"application/vnd.docker.distribution.manifest.v1+prettyjws\" is not supported: the image \
                 must be OCI or Docker schema 2",
            ),
            (
                &manifest_json(r#","manifests":[]"#),
                OCI_MANIFEST,
                "invalid manifest: it is both a manifest and an index",
            ),
        ] {
            assert_eq!(Document::parse(text.as_bytes(), sent_as).unwrap_err().to_string(), why);
        }
    }

    #[test]
    fn layers_beyond_what_can_be_mounted() {
        let layer = Descriptor {
            media_type: format!("{OCI_LAYER}+zstd"),
            ..descriptor("")
        };
        let mut manifest = Manifest {
            schema_version: 2,
            media_type: String::new(),
            config: descriptor(""),
            layers: vec![layer; MAX_LAYERS],
        };
        manifest.check().unwrap();
        manifest.layers.extend(manifest.layers.clone());
        assert_eq!(
            manifest.check().unwrap_err().to_string(),
            "too many layers: the image has 254, at most 127 are supported"
        );
        manifest.layers.truncate(1);
        manifest.layers[0].media_type = "application/vnd.cncf.helm.chart.content.v1.tar+gzip".to_string();
        assert!(manifest.check().unwrap_err().to_string().contains("is not supported"));
    }

    #[test]
    fn configurations_with_nulls() {
        let text = r#"{"architecture":"amd64","os":"linux","config":{"User":"1000:1000","Env":["A=b"],"Entrypoint":null,
            "Cmd":["/echo"],"Volumes":{"/data":{}},"WorkingDir":"/","Labels":null,"StopSignal":"SIGQUIT"},
            "rootfs":{"type":"layers","diff_ids":null}}"#;
        let config = ImageConfig::parse(text.as_bytes()).unwrap();
        assert_eq!(config.config.volumes, ["/data"]);
        assert!(config.config.entrypoint.is_empty());
        assert_eq!(config.chain_ids(0).unwrap(), []);
        assert!(config.chain_ids(1).is_err());
    }
}
