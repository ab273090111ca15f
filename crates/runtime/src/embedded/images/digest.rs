//! Digests of content: `sha256:…`, and the hash functions behind them.

use std::fmt;

use aws_lc_rs::digest as hash;
use serde::{Deserialize, Serialize};

/// A checked digest: a known algorithm and as many lower-case hexadecimal digits as it has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(String);

/// What is wrong with a digest, in the words of opencontainers/go-digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidDigest {
    #[error("unsupported digest algorithm")]
    Algorithm,
    #[error("invalid checksum digest length")]
    Length,
    #[error("invalid checksum digest format")]
    Format,
}

impl Digest {
    pub fn parse(text: &str) -> Result<Digest, InvalidDigest> {
        let (algorithm, hex) = text.split_once(':').ok_or(InvalidDigest::Format)?;
        let length = match algorithm {
            "sha256" => 64,
            "sha384" => 96,
            "sha512" => 128,
            _ => return Err(InvalidDigest::Algorithm),
        };
        if hex.len() != length {
            return Err(InvalidDigest::Length);
        }
        match hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)) {
            true => Ok(Digest(text.to_string())),
            false => Err(InvalidDigest::Format),
        }
    }

    /// The SHA-256 of some bytes.
    pub fn of(bytes: &[u8]) -> Digest {
        let mut hasher = Hasher::sha256();
        hasher.update(bytes);
        hasher.finish()
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn algorithm(&self) -> &str {
        self.parts().0
    }

    pub fn hex(&self) -> &str {
        self.parts().1
    }

    fn parts(&self) -> (&str, &str) {
        self.0.split_once(':').expect("a checked digest has a colon")
    }

    /// What computes digests of this one's algorithm.
    pub fn hasher(&self) -> Hasher {
        Hasher::new(match self.algorithm() {
            "sha384" => &hash::SHA384,
            "sha512" => &hash::SHA512,
            _ => &hash::SHA256,
        })
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Digest {
    type Error = InvalidDigest;

    fn try_from(text: String) -> Result<Digest, InvalidDigest> {
        Digest::parse(&text)
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> String {
        digest.0
    }
}

/// A digest in the making.
#[derive(Clone)]
pub struct Hasher {
    context: hash::Context,
    name: &'static str,
}

impl Hasher {
    pub fn sha256() -> Hasher {
        Hasher::new(&hash::SHA256)
    }

    fn new(algorithm: &'static hash::Algorithm) -> Hasher {
        let name = match algorithm.output_len() {
            48 => "sha384",
            64 => "sha512",
            _ => "sha256",
        };
        Hasher {
            context: hash::Context::new(algorithm),
            name,
        }
    }

    pub fn update(&mut self, bytes: &[u8]) {
        self.context.update(bytes);
    }

    pub fn finish(self) -> Digest {
        let mut text = format!("{}:", self.name);
        for byte in self.context.finish().as_ref() {
            text.push(char::from_digit(u32::from(byte >> 4), 16).expect("a nibble is a digit"));
            text.push(char::from_digit(u32::from(byte & 15), 16).expect("a nibble is a digit"));
        }
        Digest(text)
    }
}

/// The name of a stack of layers: each layer's digest hashed with the name of what is below it.
///
/// Upstream: opencontainers/image-spec, config.md, "Layer ChainID".
pub(super) fn chain_ids(diff_ids: &[Digest]) -> Vec<Digest> {
    let mut chain: Vec<Digest> = Vec::with_capacity(diff_ids.len());
    for diff_id in diff_ids {
        let next = match chain.last() {
            None => diff_id.clone(),
            Some(below) => Digest::of(format!("{below} {diff_id}").as_bytes()),
        };
        chain.push(next);
    }
    chain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_digests() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::of(b"").as_str(), empty);
        let long = Digest::parse(&format!("sha512:{}", "0".repeat(128))).unwrap();
        assert!(long.hasher().finish().as_str().starts_with("sha512:cf83e1357eefb8bd"));
    }

    #[test]
    fn digests_that_are_none() {
        for (text, why) in [
            ("", InvalidDigest::Format),
            ("sha256", InvalidDigest::Format),
            ("md5:00", InvalidDigest::Algorithm),
            ("sha256:00", InvalidDigest::Length),
            (&format!("sha256:{}", "A".repeat(64)), InvalidDigest::Format),
            (&format!("sha256:../{}", "a".repeat(61)), InvalidDigest::Format),
        ] {
            assert_eq!(Digest::parse(text), Err(why));
        }
    }

    #[test]
    fn chains_depend_on_what_is_below() {
        let (a, b) = (Digest::of(b"a"), Digest::of(b"b"));
        let chain = chain_ids(&[a.clone(), b.clone()]);
        assert_eq!(chain, [a.clone(), Digest::of(format!("{a} {b}").as_bytes())]);
        assert_ne!(chain[1], chain_ids(&[b, a])[1]);
    }
}
