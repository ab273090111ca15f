//! The URLs of webhooks: `https://host[:port][/path]`, and durations as Go writes them.

use std::time::Duration;

pub(super) struct HttpsUrl {
    pub authority: String,
    /// Without the brackets of an IPv6 address.
    pub host: String,
    pub port: u16,
    pub path: String,
}

/// A text that is no such URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct UrlError(String);

impl HttpsUrl {
    pub(super) fn parse(given: &str) -> Result<HttpsUrl, UrlError> {
        let wrong = |why: &str| UrlError(format!("parse {given:?}: {why}"));
        let uri: http::Uri = given
            .parse()
            .map_err(|e: http::uri::InvalidUri| wrong(&e.to_string()))?;
        let authority = uri.authority().filter(|_| uri.scheme_str() == Some("https"));
        let authority = authority.ok_or_else(|| wrong("not an https URL"))?;
        let host = authority.host();
        if host.is_empty() || authority.as_str().contains('@') {
            return Err(wrong("no host in request URL"));
        }
        Ok(HttpsUrl {
            authority: authority.to_string(),
            host: host.trim_start_matches('[').trim_end_matches(']').to_string(),
            port: authority.port_u16().unwrap_or(443),
            path: uri.path().to_string(),
        })
    }
}

/// Whole seconds, rounded up, as Go writes a duration: `5s`, `1m0s`.
pub(crate) fn go_seconds(duration: Duration) -> String {
    let seconds = duration.as_millis().div_ceil(1000);
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s}s"),
        (0, m, s) => format!("{m}m{s}s"),
        (h, m, s) => format!("{h}h{m}m{s}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let parsed = |given| HttpsUrl::parse(given).map(|u| (u.authority, u.host, u.port, u.path));
        let url = |a: &str, h: &str, p, path: &str| Ok((a.to_string(), h.to_string(), p, path.to_string()));
        assert_eq!(parsed("https://a.b/c/d"), url("a.b", "a.b", 443, "/c/d"));
        assert_eq!(parsed("https://a.b"), url("a.b", "a.b", 443, "/"));
        assert_eq!(parsed("https://[::1]:8443/x"), url("[::1]:8443", "::1", 8443, "/x"));
        for bad in ["http://a", "a/b", "https://u@a/", "https:///x", "::"] {
            assert!(parsed(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn durations_are_rounded_up() {
        for (millis, text) in [
            (1, "1s"),
            (10_000, "10s"),
            (29_001, "30s"),
            (60_000, "1m0s"),
            (3_600_000, "1h0m0s"),
        ] {
            assert_eq!(go_seconds(Duration::from_millis(millis)), text);
        }
    }
}
