//! Image references: `[registry[:port]/]path[:tag][@digest]`, with Docker's defaults for what is left out.
//!
//! Upstream: github.com/distribution/reference, whose error messages users see.

use crate::embedded::images::Digest;

const DEFAULT_DOMAIN: &str = "docker.io";
const LEGACY_DOMAIN: &str = "index.docker.io";
const OFFICIAL: &str = "library/";
const MAX_PATH: usize = 255;
const MAX_TAG: usize = 128;

/// An image as a pod names it, with its registry and what is meant of its repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageName {
    /// With the registry: `docker.io/library/busybox`.
    pub repository: String,
    /// `latest` if neither tag nor digest was given.
    pub tag: Option<String>,
    /// `sha256:…`
    pub digest: Option<String>,
}

/// What is wrong with an image's name, as users see it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("couldn't parse image name {image:?}: {reason}")]
pub struct ImageNameError {
    pub image: String,
    pub reason: String,
}

impl ImageName {
    pub fn parse(image: &str) -> Result<ImageName, ImageNameError> {
        parse(image).map_err(|reason| ImageNameError {
            image: image.to_string(),
            reason,
        })
    }

    /// The whole name: `docker.io/library/busybox:latest`.
    pub fn canonical(&self) -> String {
        let mut text = self.repository.clone();
        if let Some(tag) = &self.tag {
            text = format!("{text}:{tag}");
        }
        if let Some(digest) = &self.digest {
            text = format!("{text}@{digest}");
        }
        text
    }
}

/// The name as a runtime is given it: as it was written, with a tag. Short names stay short: what they stand for is
/// the runtime's to say.
pub fn with_tag(image: &str) -> Result<String, ImageNameError> {
    let name = ImageName::parse(image)?;
    match (&name.tag, &name.digest) {
        (Some(tag), None) if !image.ends_with(&format!(":{tag}")) => Ok(format!("{image}:{tag}")),
        _ => Ok(image.to_string()),
    }
}

fn parse(image: &str) -> Result<ImageName, String> {
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
    let whole = format!("{domain}/{remainder}");
    let Some((repository, path_length, tag, digest)) = take_apart(&whole) else {
        return Err(match take_apart(&whole.to_lowercase()) {
            Some(_) => "repository name must be lowercase".to_string(),
            None => "invalid reference format".to_string(),
        });
    };
    if path_length > MAX_PATH {
        return Err(format!("repository name must not be more than {MAX_PATH} characters"));
    }
    if let Some(digest) = digest {
        Digest::parse(digest).map_err(|e| e.to_string())?;
    }
    let tag = tag.or(digest.is_none().then_some("latest"));
    Ok(ImageName {
        repository: repository.to_string(),
        tag: tag.map(str::to_string),
        digest: digest.map(str::to_string),
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

/// Repository, length of its path without the domain, tag, digest; `None` if it is no reference.
fn take_apart(whole: &str) -> Option<(&str, usize, Option<&str>, Option<&str>)> {
    let (rest, digest) = match whole.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (whole, None),
    };
    let last = rest.rfind('/').map_or(0, |slash| slash + 1);
    let (repository, tag) = match rest[last..].split_once(':') {
        Some((name, tag)) => (&rest[..last + name.len()], Some(tag)),
        None => (rest, None),
    };
    let (domain, path) = repository.split_once('/')?;
    let fits = is_domain(domain)
        && path.split('/').all(is_path_component)
        && tag.is_none_or(is_tag)
        && digest.is_none_or(looks_like_digest);
    fits.then_some((repository, path.len(), tag, digest))
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
    fn names_and_their_defaults() {
        for (image, canonical, given) in [
            ("busybox", "docker.io/library/busybox:latest", "busybox:latest"),
            ("busybox:1.36", "docker.io/library/busybox:1.36", "busybox:1.36"),
            ("a/b", "docker.io/a/b:latest", "a/b:latest"),
            ("docker.io/a", "docker.io/library/a:latest", "docker.io/a:latest"),
            (
                "index.docker.io/a/b",
                "docker.io/a/b:latest",
                "index.docker.io/a/b:latest",
            ),
            ("localhost/a", "localhost/a:latest", "localhost/a:latest"),
            (
                "reg.io:5000/a/b__c.d--e:v1",
                "reg.io:5000/a/b__c.d--e:v1",
                "reg.io:5000/a/b__c.d--e:v1",
            ),
            ("reg:5000/a", "reg:5000/a:latest", "reg:5000/a:latest"),
            ("[::1]:5000/a", "[::1]:5000/a:latest", "[::1]:5000/a:latest"),
            ("Reg/a", "Reg/a:latest", "Reg/a:latest"),
            (
                &format!("busybox@{SHA}"),
                &format!("docker.io/library/busybox@{SHA}"),
                &format!("busybox@{SHA}"),
            ),
            (
                &format!("q.io/b:x@{SHA}"),
                &format!("q.io/b:x@{SHA}"),
                &format!("q.io/b:x@{SHA}"),
            ),
        ] {
            assert_eq!(ImageName::parse(image).unwrap().canonical(), canonical);
            assert_eq!(with_tag(image).unwrap(), given);
        }
    }

    #[test]
    fn names_that_are_none() {
        let hash = "7cc4b5aefd1d0cadf8d97d4350462ba51c694ebca145b08d7d41b41acc8db5aa";
        let long = "a".repeat(256);
        for (image, why) in [
            ("", "invalid reference format"),
            ("a b", "invalid reference format"),
            ("a:", "invalid reference format"),
            ("a:b c", "invalid reference format"),
            (":tag", "invalid reference format"),
            ("a//b", "invalid reference format"),
            ("a/", "invalid reference format"),
            ("/a", "invalid reference format"),
            ("a/../b", "invalid reference format"),
            ("a___b", "invalid reference format"),
            ("-a", "invalid reference format"),
            ("a@sha256:12", "invalid reference format"),
            ("reg.io:x/a", "invalid reference format"),
            ("https://reg.io/a", "invalid reference format"),
            (
                "Busybox",
                "invalid reference format: repository name (library/Busybox) must be lowercase",
            ),
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
            let want = format!("couldn't parse image name {image:?}: {why}");
            assert_eq!(ImageName::parse(image).unwrap_err().to_string(), want);
        }
    }

    proptest! {
        /// Nothing panics, and what was read once reads the same again.
        #[test]
        fn canonical_names_stay(image in "[a-zA-Z0-9./:@_\\[\\]-]{0,40}|[a-z]{1,4}(/[a-z]{1,4}){0,3}(:[a-z]{1,3})?") {
            if let Ok(name) = ImageName::parse(&image) {
                prop_assert_eq!(ImageName::parse(&name.canonical()), Ok(name));
            }
        }
    }
}
