//! Image references: `[registry[:port]/]path[:tag][@digest]`, with Docker's defaults for what is left out.
//!
//! Upstream: github.com/distribution/reference, whose error messages users know. Where both tag and digest are given
//! the digest decides, and the tag is dropped, as containerd does (`ParseDockerRef`).

use std::fmt;

use super::digest::Digest;

const DEFAULT_DOMAIN: &str = "docker.io";
const LEGACY_DOMAIN: &str = "index.docker.io";
const OFFICIAL: &str = "library/";
const MAX_PATH: usize = 255;
const MAX_TAG: usize = 128;

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
    let is_hash = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
    if image.len() == 64 && image.chars().all(is_hash) {
        return Err(format!(
            "invalid repository name ({image}), cannot specify 64-byte hexadecimal strings"
        ));
    }
    let (domain, remainder) = split_domain(image);
    let remote = remainder.split(':').next().unwrap_or_default();
    if remote.to_lowercase() != remote {
        return Err(format!(
            "invalid reference format: repository name ({remote}) must be lowercase"
        ));
    }
    let Some((path, tag, digest)) = split_remainder(domain, &remainder) else {
        return Err("invalid reference format".to_string());
    };
    if path.len() > MAX_PATH {
        return Err(format!("repository name must not be more than {MAX_PATH} characters"));
    }
    let target = match digest {
        Some(digest) => Target::Digest(Digest::parse(digest).map_err(|e| e.to_string())?),
        None => Target::Tag(tag.unwrap_or("latest").to_string()),
    };
    Ok(Reference {
        domain: domain.to_string(),
        path: path.to_string(),
        target,
    })
}

fn split_domain(name: &str) -> (&str, String) {
    let Some((first, rest)) = name.split_once('/') else {
        return (DEFAULT_DOMAIN, format!("{OFFICIAL}{name}"));
    };
    let looks_like_host = first.contains(['.', ':']) || first == "localhost" || first.to_lowercase() != first;
    let (domain, remote) = match first {
        LEGACY_DOMAIN => (DEFAULT_DOMAIN, rest),
        _ if looks_like_host => (first, rest),
        _ => (DEFAULT_DOMAIN, name),
    };
    match domain == DEFAULT_DOMAIN && !remote.contains('/') {
        true => (domain, format!("{OFFICIAL}{remote}")),
        false => (domain, remote.to_string()),
    }
}

/// Path, tag and digest; `None` if it is no reference.
fn split_remainder<'a>(domain: &str, remainder: &'a str) -> Option<(&'a str, Option<&'a str>, Option<&'a str>)> {
    let (rest, digest) = match remainder.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (remainder, None),
    };
    let last = rest.rfind('/').map_or(0, |slash| slash + 1);
    let (path, tag) = match rest[last..].split_once(':') {
        Some((name, tag)) => (&rest[..last + name.len()], Some(tag)),
        None => (rest, None),
    };
    let fits = is_domain(domain)
        && path.split('/').all(is_path_component)
        && tag.is_none_or(is_tag)
        && digest.is_none_or(looks_like_digest);
    fits.then_some((path, tag, digest))
}

fn is_domain(domain: &str) -> bool {
    let (host, port) = match domain.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (domain, None),
    };
    let digits = |port: &str| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    if !port.is_none_or(digits) {
        return false;
    }
    if let Some(address) = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        return !address.is_empty() && address.bytes().all(|b| b.is_ascii_hexdigit() || b == b':');
    }
    host.split('.').all(|part| {
        let inner = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
        !part.is_empty() && part.bytes().all(inner) && !part.starts_with('-') && !part.ends_with('-')
    })
}

/// Letters and digits, with one period, one or two underscores or any number of dashes between them.
fn is_path_component(part: &str) -> bool {
    let alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = part.as_bytes();
    let (Some(&first), Some(&last)) = (bytes.first(), bytes.last()) else {
        return false;
    };
    if !alphanumeric(first) || !alphanumeric(last) {
        return false;
    }
    part.split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        .all(|separator| matches!(separator, "" | "." | "_" | "__") || separator.bytes().all(|b| b == b'-'))
}

fn is_tag(tag: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let inner = |b: u8| word(b) || b == b'.' || b == b'-';
    tag.len() <= MAX_TAG && tag.bytes().next().is_some_and(word) && tag.bytes().all(inner)
}

fn looks_like_digest(digest: &str) -> bool {
    let Some((algorithm, hex)) = digest.split_once(':') else {
        return false;
    };
    let part = |part: &str| {
        part.bytes().next().is_some_and(|b| b.is_ascii_alphabetic()) && part.bytes().all(|b| b.is_ascii_alphanumeric())
    };
    algorithm.split(['-', '_', '+', '.']).all(part) && hex.len() >= 32 && hex.bytes().all(|b| b.is_ascii_hexdigit())
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

    #[test]
    fn references_that_are_none() {
        let hash = "7cc4b5aefd1d0cadf8d97d4350462ba51c694ebca145b08d7d41b41acc8db5aa";
        let long = "a".repeat(256);
        for (image, why) in [
            ("", "invalid reference format"),
            ("a b", "invalid reference format"),
            ("a:", "invalid reference format"),
            (":tag", "invalid reference format"),
            ("a//b", "invalid reference format"),
            ("a/", "invalid reference format"),
            ("/a", "invalid reference format"),
            ("a/../b", "invalid reference format"),
            ("a___b", "invalid reference format"),
            ("a@sha256:12", "invalid reference format"),
            ("reg.io:x/a", "invalid reference format"),
            ("https://reg.io/a", "invalid reference format"),
            (
                "reg.io/Foo:x",
                "invalid reference format: repository name (Foo) must be lowercase",
            ),
            (
                hash,
                &format!("invalid repository name ({hash}), cannot specify 64-byte hexadecimal strings"),
            ),
            (
                &format!("q.io/{long}"),
                "repository name must not be more than 255 characters",
            ),
            (&format!("a@md5:{hash}"), "unsupported digest algorithm"),
            (&format!("a@sha256:{}", &hash[1..]), "invalid checksum digest length"),
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
