//! Property names as identifiers of CEL: `a-b` is `a__dash__b`.
//!
//! Upstream: apiserver/pkg/cel/escaping.go (v1.36).

use std::borrow::Cow;

/// Words that are no identifiers. `true`, `false`, `null` and `in` are tokens of their own.
const RESERVED: [&str; 21] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

pub(crate) fn is_reserved(name: &str) -> bool {
    RESERVED.contains(&name)
}

/// The identifier by which a property is reached; None if there is none.
pub fn escape(name: &str) -> Option<Cow<'_, str>> {
    if name.is_empty() || name.as_bytes()[0].is_ascii_digit() {
        return None;
    }
    if is_reserved(name) {
        return Some(Cow::Owned(format!("__{name}__")));
    }
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    if name.bytes().all(plain) && !name.contains("__") {
        return Some(Cow::Borrowed(name));
    }
    let (mut out, mut rest) = (String::with_capacity(name.len() + 16), name);
    while let Some(c) = rest.chars().next() {
        let (written, taken) = match c {
            '_' if rest.starts_with("__") => ("__underscores__", 2),
            '.' => ("__dot__", 1),
            '-' => ("__dash__", 1),
            '/' => ("__slash__", 1),
            c if c.is_ascii_alphanumeric() || c == '_' => (&rest[..1], 1),
            _ => return None,
        };
        out.push_str(written);
        rest = &rest[taken..];
    }
    Some(Cow::Owned(out))
}

/// The property that an identifier reaches; None if it has an escape that there is not.
pub fn unescape(identifier: &str) -> Option<Cow<'_, str>> {
    if !identifier.contains("__") {
        return Some(Cow::Borrowed(identifier));
    }
    let (mut out, mut rest) = (String::with_capacity(identifier.len()), identifier);
    while let Some(start) = rest.find("__") {
        // An escape is two underscores, something without any, and two more.
        let inner = &rest[start + 2..];
        let length = inner.find('_').unwrap_or(inner.len());
        if length == 0 || !inner[length..].starts_with("__") {
            // With three underscores the escape may start at the second.
            out.push_str(&rest[..=start]);
            rest = &rest[start + 1..];
            continue;
        }
        out.push_str(&rest[..start]);
        let word = &inner[..length];
        out.push_str(match word {
            "underscores" => "__",
            "dot" => ".",
            "dash" => "-",
            "slash" => "/",
            _ if is_reserved(word) && word.len() + 4 == identifier.len() => word,
            _ => return None,
        });
        rest = &inner[length + 2..];
    }
    out.push_str(rest);
    Some(Cow::Owned(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_identifiers() {
        for (name, identifier) in [
            ("", None),
            ("1a", None),
            ("abc", Some("abc")),
            ("a_b", Some("a_b")),
            ("namespace", Some("__namespace__")),
            ("a-b.c/d", Some("a__dash__b__dot__c__slash__d")),
            ("a__b", Some("a__underscores__b")),
            ("a___b", Some("a__underscores___b")),
            ("__dot__", Some("__underscores__dot__underscores__")),
            ("$ref", None),
            ("ä", None),
            ("-", Some("__dash__")),
        ] {
            let escaped = escape(name);
            assert_eq!(escaped.as_deref(), identifier, "{name}");
            if let Some(escaped) = escaped {
                assert_eq!(unescape(&escaped).as_deref(), Some(name));
            }
        }
        assert_eq!(unescape("a__illegal__b"), None);
        assert_eq!(unescape("__if__x"), None);
    }
}
