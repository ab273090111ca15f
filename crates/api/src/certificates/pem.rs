//! PEM blocks, as far as the API looks into them. What is signed by whom is for those who have the keys.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

#[derive(Debug, PartialEq)]
pub(super) struct Block<'a> {
    pub label: &'a str,
    pub has_headers: bool,
    pub der: Vec<u8>,
}

/// The next block of a text and what follows it. What is not a block is passed over.
pub(super) fn next(text: &str) -> Option<(Block<'_>, &str)> {
    let mut rest = text;
    loop {
        let start = rest.find("-----BEGIN ")?;
        let at_line_start = start == 0 || rest.as_bytes()[start - 1] == b'\n';
        rest = &rest[start + "-----BEGIN ".len()..];
        if at_line_start && let Some(found) = block(rest) {
            return Some(found);
        }
    }
}

/// A block whose label comes next.
fn block(text: &str) -> Option<(Block<'_>, &str)> {
    let (label, body) = text.split_once("-----")?;
    let end = format!("-----END {label}-----");
    let at = body.find(&end)?;
    let after = &body[at + end.len()..];
    let mut has_headers = false;
    let mut encoded = String::with_capacity(at);
    for line in body[..at].lines() {
        match line.contains(':') {
            true => has_headers = true,
            false => encoded.extend(line.chars().filter(|c| !c.is_whitespace())),
        }
    }
    let der = BASE64_STANDARD.decode(encoded).ok()?;
    Some((
        Block {
            label,
            has_headers,
            der,
        },
        after,
    ))
}

/// One DER sequence and nothing after it.
pub(super) fn is_sequence(der: &[u8]) -> bool {
    let [0x30, length, rest @ ..] = der else { return false };
    if *length < 0x80 {
        return rest.len() == usize::from(*length);
    }
    let count = usize::from(length & 0x7f);
    if count == 0 || count > 4 || rest.len() < count {
        return false;
    }
    let length = rest[..count].iter().fold(0usize, |n, b| n << 8 | usize::from(*b));
    rest.len() - count == length
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_between_other_text() {
        let text =
            "a note\n-----BEGIN A-----\nMAA=\n-----END A-----\n-----BEGIN B-----\nx: y\n\nMAA=\n-----END B-----\n";
        let (a, rest) = next(text).unwrap();
        let (b, rest) = next(rest).unwrap();
        assert_eq!((a.label, a.has_headers, a.der), ("A", false, vec![0x30, 0]));
        assert_eq!((b.label, b.has_headers), ("B", true));
        assert_eq!(next(rest), None);
        assert_eq!(next("-----BEGIN A-----\n???\n-----END A-----"), None);
        assert_eq!(next("-----BEGIN A-----\nMAA="), None);
    }

    #[test]
    fn sequences() {
        for (der, wanted) in [
            (&[0x30, 0x00][..], true),
            (&[0x30, 0x01, 0x05], true),
            (&[0x30, 0x81, 0x01, 0x05], true),
            (&[0x30, 0x02, 0x05], false),
            (&[0x31, 0x00], false),
            (&[0x30, 0x80], false),
            (&[], false),
        ] {
            assert_eq!(is_sequence(der), wanted, "{der:?}");
        }
    }
}
