//! Query parameters and path segments of a request.

/// The decoded parameters of a query, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn parse(text: &str) -> Query {
        let pairs = text.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(name, true), decode(value, true))
        });
        Query(pairs.collect())
    }

    pub(crate) fn first(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(n, _)| n == name);
        found.map(|(_, value)| value.as_str())
    }

    pub(crate) fn all(&self, name: &str) -> Vec<String> {
        let found = self.0.iter().filter(|(n, _)| n == name);
        found.map(|(_, value)| value.clone()).collect()
    }

    /// As Go's conversion reads booleans: anything but an empty word, `0` and `false` is true.
    pub(crate) fn flag(&self, name: &str) -> bool {
        self.first(name)
            .is_some_and(|value| !matches!(value.to_ascii_lowercase().as_str(), "" | "0" | "false"))
    }
}

/// Undoes percent-encoding. What is no encoding stays as it is.
pub(super) fn decode(text: &str, plus_is_space: bool) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let digits = bytes.get(i + 1..i + 3).and_then(|d| std::str::from_utf8(d).ok());
        let byte = digits.filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
        match (bytes[i], byte.and_then(|d| u8::from_str_radix(d, 16).ok())) {
            (b'%', Some(byte)) => {
                out.push(byte);
                i += 3;
                continue;
            }
            (b'+', _) if plus_is_space => out.push(b' '),
            (byte, _) => out.push(byte),
        }
        i += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// The decoded parts of a path between its slashes; empty ones are left out.
pub(crate) fn segments(path: &str) -> Vec<String> {
    let parts = path.split('/').filter(|part| !part.is_empty());
    parts.map(|part| decode(part, false)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_and_paths() {
        let query = Query::parse("command=sh&command=-c&command=echo+%22a%26b%22&input=1&tty=false&x");
        assert_eq!(query.all("command"), ["sh", "-c", "echo \"a&b\""]);
        assert!(query.flag("input") && !query.flag("tty") && !query.flag("x") && !query.flag("y"));
        assert_eq!(query.first("x"), Some(""));
        assert_eq!(segments("/a//b%2Fc/%zz/d+e"), ["a", "b/c", "%zz", "d+e"]);
        assert_eq!(decode("%", true), "%");
    }

    proptest::proptest! {
        #[test]
        fn hostile_text_is_no_harm(text in "\\PC{0,60}") {
            Query::parse(&text);
            segments(&text);
        }
    }
}
