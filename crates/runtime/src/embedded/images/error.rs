//! Errors of the image store, in the words that containerd's users know from their pods' events.

use std::io;
use std::path::PathBuf;

use super::digest::Digest;
use super::manifest::InvalidManifest;
use super::reference::InvalidReference;
use super::registries::RegistriesError;
use super::registry::RegistryError;
use super::tar::TarError;
use super::unpack::UnpackError;
use crate::{Code, Error};

#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error(transparent)]
    Reference(#[from] InvalidReference),
    #[error(transparent)]
    Registries(#[from] RegistriesError),
    #[error("failed to pull and unpack image {image:?}")]
    Pull {
        image: String,
        #[source]
        source: Box<ImageError>,
    },
    #[error("failed to resolve reference {reference:?}")]
    Resolve {
        reference: String,
        #[source]
        source: Box<RegistryError>,
    },
    /// The mirrors failed too, each in its own way.
    #[error("{} failed before", .mirrors.join("; "))]
    Mirrors {
        mirrors: Vec<String>,
        #[source]
        source: Box<ImageError>,
    },
    #[error("failed to copy {digest}")]
    Fetch {
        digest: Digest,
        #[source]
        source: Box<RegistryError>,
    },
    #[error(transparent)]
    Manifest(#[from] InvalidManifest),
    #[error("failed to extract layer {diff_id}")]
    Extract {
        diff_id: Digest,
        #[source]
        source: UnpackError,
    },
    #[error("image {0:?}: not found")]
    NotFound(String),
    #[error("image {image} is incomplete: blob {digest} is missing; pull it again")]
    Incomplete { image: Digest, digest: Digest },
    #[error("invalid image archive: {0}")]
    Archive(String),
    #[error("invalid image archive")]
    Tar(#[source] TarError),
    #[error(transparent)]
    Space(UnpackError),
    #[error("failed to access image store")]
    Store(#[from] io::Error),
    #[error("failed to access {path}")]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl ImageError {
    fn code(&self) -> Code {
        match self {
            ImageError::NotFound(_) | ImageError::Manifest(InvalidManifest::Platform(_)) => Code::NotFound,
            ImageError::Resolve { source, .. } if source.is_not_found() => Code::NotFound,
            ImageError::Resolve { source, .. } | ImageError::Fetch { source, .. } => match **source {
                RegistryError::Timeout { .. } => Code::DeadlineExceeded,
                _ => Code::Other,
            },
            ImageError::Pull { source, .. } | ImageError::Mirrors { source, .. } => source.code(),
            _ => Code::Other,
        }
    }

    /// This and all that led to it, as one sentence.
    pub fn chain(&self) -> String {
        chain(self)
    }
}

/// An error with its sources. Some libraries repeat what the next one says.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let more = source.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        next = source.source();
    }
    text
}

impl From<ImageError> for Error {
    fn from(error: ImageError) -> Error {
        Error::new(error.code(), error.chain())
    }
}
