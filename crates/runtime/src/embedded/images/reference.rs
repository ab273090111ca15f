//! What an image's name means to the store and to registries: where both tag and digest are given the digest decides, and the
//! tag is dropped, as containerd does (`ParseDockerRef`).

use std::fmt;

use super::digest::Digest;
use crate::image_name::ImageName;

/// A complete reference: registry, repository and what is wanted of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// The registry: `docker.io`, `localhost:5000`.
    domain: String,
    /// The repository in the registry: `library/busybox`.
    path: String,
    target: Target,
}

/// Which of a repository's images is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Tag(String),
    Digest(Digest),
}

/// Why a text is no reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to parse image reference {image:?}: {reason}")]
pub struct InvalidReference {
    pub image: String,
    pub reason: String,
}

impl Reference {
    pub fn parse(image: &str) -> Result<Reference, InvalidReference> {
        parse(image).map_err(|reason| InvalidReference {
            image: image.to_string(),
            reason,
        })
    }

    pub fn domain(&self) -> &str {
        &self.domain
    }

    pub fn path(&self) -> &str {
        &self.path
    }

    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Registry and path: `docker.io/library/busybox`.
    pub fn repository(&self) -> String {
        format!("{}/{}", self.domain, self.path)
    }

    /// As the CRI's `repo_digests` has it: `docker.io/library/busybox@sha256:…`.
    pub fn with_digest(&self, digest: &Digest) -> String {
        format!("{}@{digest}", self.repository())
    }

    /// As the CRI's `repo_tags` has it; `None` for a reference by digest.
    pub fn tagged(&self) -> Option<String> {
        match &self.target {
            Target::Tag(_) => Some(self.to_string()),
            Target::Digest(_) => None,
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.target {
            Target::Tag(tag) => write!(f, "{}/{}:{tag}", self.domain, self.path),
            Target::Digest(digest) => write!(f, "{}/{}@{digest}", self.domain, self.path),
        }
    }
}

fn parse(image: &str) -> Result<Reference, String> {
    let name = ImageName::parse(image).map_err(|e| e.reason)?;
    let target = match &name.digest {
        Some(digest) => Target::Digest(Digest::parse(digest).map_err(|e| e.to_string())?),
        None => Target::Tag(name.tag.unwrap_or_default()),
    };
    let (domain, path) = name.repository.split_once('/').ok_or("invalid reference format")?;
    Ok(Reference {
        domain: domain.to_string(),
        path: path.to_string(),
        target,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SHA: &str = "sha256:7cc4b5aefd1d0cadf8d97d4350462ba51c694ebca145b08d7d41b41acc8db5aa";

    #[test]
    fn references_and_their_defaults() {
        for (image, whole) in [
            ("busybox", "docker.io/library/busybox:latest"),
            ("busybox:1.36", "docker.io/library/busybox:1.36"),
            ("a/b", "docker.io/a/b:latest"),
            ("docker.io/a", "docker.io/library/a:latest"),
            ("index.docker.io/a/b", "docker.io/a/b:latest"),
            ("localhost/a", "localhost/a:latest"),
            ("reg.io:5000/a/b__c.d--e:v1", "reg.io:5000/a/b__c.d--e:v1"),
            ("[::1]:5000/a", "[::1]:5000/a:latest"),
            ("Reg/a", "Reg/a:latest"),
            ("orlop.local/echo", "orlop.local/echo:latest"),
            (&format!("busybox@{SHA}"), &format!("docker.io/library/busybox@{SHA}")),
            // The digest decides.
            (&format!("q.io/b:x@{SHA}"), &format!("q.io/b@{SHA}")),
        ] {
            let reference = Reference::parse(image).unwrap();
            assert_eq!(reference.to_string(), whole);
            assert_eq!(reference.tagged().is_none(), image.contains('@'));
        }
    }

    /// The grammar's own tests are in `image_name`.
    #[test]
    fn references_that_are_none() {
        let hash = SHA.strip_prefix("sha256:").unwrap();
        for (image, why) in [
            ("a/../b", "invalid reference format"),
            (
                "reg.io/Foo:x",
                "invalid reference format: repository name (Foo) must be lowercase",
            ),
            (&format!("a@md5:{hash}"), "unsupported digest algorithm"),
        ] {
            let want = format!("failed to parse image reference {image:?}: {why}");
            assert_eq!(Reference::parse(image).unwrap_err().to_string(), want);
        }
    }

    proptest! {
        /// Nothing panics, and what was read once reads the same again.
        #[test]
        fn whole_references_stay(image in "[a-zA-Z0-9./:@_\\[\\]-]{0,40}|[a-z]{1,4}(/[a-z]{1,4}){0,3}(:[a-z]{1,3})?") {
            if let Ok(reference) = Reference::parse(&image) {
                prop_assert_eq!(Reference::parse(&reference.to_string()), Ok(reference));
            }
        }
    }
}
