//! etcd's keys are bytes, the store's are text: each byte becomes the character of that number, which keeps their order
//! and leaves ASCII, all that Kubernetes uses, as it is. All keys are in one bucket of the store.

use std::sync::Arc;

use bytes::Bytes;

/// What the store's keys begin with.
pub(crate) const PREFIX: &str = "/e/k/";
/// The first key that is none of ours.
const AFTER_ALL: &str = "/e/k0";

/// The store's key for one of etcd's.
pub(crate) fn encode(key: &[u8]) -> String {
    let mut out = String::with_capacity(PREFIX.len() + key.len());
    out.push_str(PREFIX);
    match std::str::from_utf8(key) {
        Ok(text) if text.is_ascii() => out.push_str(text),
        _ => out.extend(key.iter().map(|byte| char::from(*byte))),
    }
    out
}

/// The inverse.
pub(crate) fn decode(key: &str) -> Bytes {
    let key = key.strip_prefix(PREFIX).unwrap_or(key);
    match key.is_ascii() {
        true => Bytes::copy_from_slice(key.as_bytes()),
        false => key.chars().filter_map(|c| u8::try_from(u32::from(c)).ok()).collect(),
    }
}

/// The keys from one on and before another, as the store has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyRange {
    pub from: Arc<str>,
    pub before: Arc<str>,
}

impl KeyRange {
    /// As requests say it: without an end one key, with the end `\0` all from the first one on.
    pub(crate) fn new(key: &[u8], range_end: &[u8]) -> KeyRange {
        let from = encode(key);
        let before = match range_end {
            [] => format!("{from}\0"),
            [0] => AFTER_ALL.to_string(),
            end => encode(end),
        };
        KeyRange {
            from: from.into(),
            before: before.into(),
        }
    }

    pub(crate) fn all() -> KeyRange {
        KeyRange {
            from: PREFIX.into(),
            before: AFTER_ALL.into(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.from >= self.before
    }

    pub(crate) fn contains(&self, key: &str) -> bool {
        *self.from <= *key && key < &*self.before
    }

    /// The one key that this is, if it was asked for by name.
    pub(crate) fn single(&self) -> Option<&str> {
        (self.before.strip_suffix('\0') == Some(&self.from)).then_some(&self.from)
    }

    /// What all keys of the range begin with.
    pub(crate) fn prefix(&self) -> &str {
        if self.single().is_some() {
            return &self.from;
        }
        // A range that ends right behind a prefix, as `/a/` to `/a0`: all its keys have that prefix.
        let shared = self
            .from
            .char_indices()
            .zip(self.before.chars())
            .take_while(|((_, a), b)| a == b)
            .last()
            .map_or(0, |((at, c), _)| at + c.len_utf8());
        let mut others = self.before[shared..].chars();
        let prefix = match (self.from[shared..].chars().next(), others.next(), others.next()) {
            (Some(a), Some(b), None) if u32::from(a) + 1 == u32::from(b) => &self.from[..shared + a.len_utf8()],
            _ => &self.from[..shared],
        };
        match prefix.len() >= PREFIX.len() {
            true => prefix,
            false => PREFIX,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranges_as_requests_say_them() {
        let all = KeyRange::new(b"\0", b"\0");
        for (key, end, inside, outside) in [
            (
                &b"/a/"[..],
                &b"/a0"[..],
                &[&b"/a/"[..], b"/a/b", b"/a/\xff"][..],
                &[&b"/a0"[..], b"/a", b"/b"][..],
            ),
            (b"k", b"", &[b"k"], &[b"k\0", b"j", b"kk"]),
            (b"k", b"\0", &[b"k", b"z", b"\xff\xff"], &[b"j"]),
            (b"b", b"a", &[], &[b"a", b"b"]),
            (b"\x7f", b"\x81", &[b"\x7f", b"\x80", b"\x80\xff"], &[b"\x81"]),
        ] {
            let range = KeyRange::new(key, end);
            for key in inside {
                assert!(range.contains(&encode(key)), "{range:?} {key:?}");
                assert!(encode(key).starts_with(range.prefix()), "{range:?} {key:?}");
                assert!(all.contains(&encode(key)) && KeyRange::all().contains(&encode(key)));
            }
            for key in outside {
                assert!(!range.contains(&encode(key)), "{range:?} {key:?}");
            }
        }
        assert_eq!(
            KeyRange::new(b"/registry/pods/", b"/registry/pods0").prefix(),
            "/e/k//registry/pods/"
        );
        assert_eq!(
            KeyRange::new(b"/registry/pods/a/b\0", b"/registry/pods0").prefix(),
            "/e/k//registry/pods/"
        );
        assert_eq!(KeyRange::new(b"k", b"").prefix(), "/e/k/k");
        assert_eq!(KeyRange::new(b"k", b"\0").prefix(), PREFIX);
        assert!(KeyRange::new(b"b", b"a").is_empty());
    }

    proptest! {
        #[test]
        fn keys_keep_their_order(a: Vec<u8>, b: Vec<u8>) {
            prop_assert_eq!(a.cmp(&b), encode(&a).cmp(&encode(&b)));
            prop_assert_eq!(&decode(&encode(&a))[..], &a[..]);
        }

        #[test]
        fn all_keys_of_a_range_have_its_prefix(a: Vec<u8>, b: Vec<u8>, key: Vec<u8>) {
            let range = KeyRange::new(&a, &b);
            if range.contains(&encode(&key)) {
                prop_assert!(encode(&key).starts_with(range.prefix()), "{:?}", range);
            }
        }
    }
}
