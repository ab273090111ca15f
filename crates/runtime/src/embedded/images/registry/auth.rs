//! Who we are to a registry: credentials, and the challenges that ask for them.
//!
//! Upstream: distribution's token authentication (docs/spec/auth/token.md), RFC 9110 §11.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::{HeaderMap, HeaderValue, header};
use serde::Deserialize;

use crate::cri::messages::AuthConfig;

/// What a user proves who they are with.
#[derive(Clone, PartialEq, Eq)]
pub enum Credentials {
    Basic {
        username: String,
        password: String,
    },
    /// Exchanged for a token at the token endpoint.
    IdentityToken(String),
    /// Sent to the registry as it is.
    RegistryToken(String),
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Credentials::Basic { username, .. } => write!(f, "Basic({username:?})"),
            Credentials::IdentityToken(_) => write!(f, "IdentityToken"),
            Credentials::RegistryToken(_) => write!(f, "RegistryToken"),
        }
    }
}

impl Credentials {
    /// What a pull secret says for a host; `None` if it is empty, or meant for another one.
    ///
    /// Upstream: containerd, internal/cri/server/images/image_pull.go (`ParseAuth`).
    pub fn of(auth: &AuthConfig, host: &str) -> Option<Credentials> {
        if !auth.server_address.is_empty() && !is_address_of(&auth.server_address, host) {
            return None;
        }
        if !auth.username.is_empty() && !auth.password.is_empty() {
            return Some(Credentials::Basic {
                username: auth.username.clone(),
                password: auth.password.clone(),
            });
        }
        if !auth.identity_token.is_empty() {
            return Some(Credentials::IdentityToken(auth.identity_token.clone()));
        }
        if !auth.registry_token.is_empty() {
            return Some(Credentials::RegistryToken(auth.registry_token.clone()));
        }
        let decoded = BASE64_STANDARD.decode(auth.auth.trim()).ok()?;
        let decoded = String::from_utf8(decoded).ok()?;
        let (username, password) = decoded.split_once(':')?;
        Some(Credentials::Basic {
            username: username.to_string(),
            password: password.trim_matches('\0').to_string(),
        })
    }
}

/// `https://index.docker.io/v1/` is what Docker calls its own registry.
fn is_address_of(address: &str, host: &str) -> bool {
    let bare = address.split_once("://").map_or(address, |(_, rest)| rest);
    let bare = bare.split('/').next().unwrap_or_default();
    let docker = ["docker.io", "index.docker.io", "registry-1.docker.io"];
    bare == host || docker.contains(&bare) && docker.contains(&host)
}

pub(crate) fn basic(username: &str, password: &str) -> Option<HeaderValue> {
    let encoded = BASE64_STANDARD.encode(format!("{username}:{password}"));
    sensitive(format!("Basic {encoded}"))
}

pub(crate) fn bearer(token: &str) -> Option<HeaderValue> {
    sensitive(format!("Bearer {token}"))
}

fn sensitive(text: String) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(&text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// How a registry wants to be told who is asking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Challenge {
    Basic,
    Bearer {
        realm: String,
        service: Option<String>,
        scope: Option<String>,
    },
}

/// The challenges of a response, those we can answer, in order.
pub(crate) fn challenges(headers: &HeaderMap) -> Vec<Challenge> {
    let values = headers.get_all(header::WWW_AUTHENTICATE).iter();
    values
        .filter_map(|v| v.to_str().ok())
        .flat_map(parse_challenges)
        .collect()
}

/// `Bearer realm="…",service="…", Basic realm="…"`.
fn parse_challenges(text: &str) -> Vec<Challenge> {
    let mut found: Vec<(String, Vec<(String, String)>)> = vec![];
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let end = rest.find([' ', '=', ',']).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        match after.strip_prefix('=') {
            Some(after) => {
                let (value, after) = read_value(after);
                if let Some((_, parameters)) = found.last_mut() {
                    parameters.push((word.to_ascii_lowercase(), value));
                }
                rest = after;
            }
            None => {
                if !word.is_empty() {
                    found.push((word.to_ascii_lowercase(), vec![]));
                }
                rest = after;
            }
        }
        rest = rest.trim_start_matches([' ', ',', '\t']);
        // A stray sign that is none of ours would never be passed.
        if let Some(after) = rest.strip_prefix('=') {
            rest = after;
        }
    }
    found
        .into_iter()
        .filter_map(|(scheme, parameters)| challenge(&scheme, parameters))
        .collect()
}

fn challenge(scheme: &str, parameters: Vec<(String, String)>) -> Option<Challenge> {
    let parameter = |name: &str| parameters.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone());
    match scheme {
        "basic" => Some(Challenge::Basic),
        "bearer" => Some(Challenge::Bearer {
            realm: parameter("realm")?,
            service: parameter("service"),
            scope: parameter("scope"),
        }),
        _ => None,
    }
}

/// A quoted text with its escapes, or a word.
fn read_value(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([',', ' ']).unwrap_or(text.len());
        return (text[..end].to_string(), &text[end..]);
    };
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((at, next)) = characters.next() {
        match next {
            '"' => return (value, &quoted[at + 1..]),
            '\\' => value.extend(characters.next().map(|(_, c)| c)),
            _ => value.push(next),
        }
    }
    (value, "")
}

/// What a token endpoint answers; both names are in use.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct TokenResponse {
    token: Option<String>,
    access_token: Option<String>,
}

impl TokenResponse {
    pub(crate) fn into_token(self) -> Option<String> {
        self.token.or(self.access_token).filter(|token| !token.is_empty())
    }
}

/// A text as a part of a query.
pub(crate) fn percent_encode(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(byte as char),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn challenges_of_registries() {
        let bearer = |realm: &str, service: Option<&str>, scope: Option<&str>| Challenge::Bearer {
            realm: realm.to_string(),
            service: service.map(str::to_string),
            scope: scope.map(str::to_string),
        };
        for (text, want) in [
            ("Basic realm=\"x\"", vec![Challenge::Basic]),
            ("basic", vec![Challenge::Basic]),
            (
                "Bearer realm=\"https://auth.docker.io/token\",service=\"registry.docker.io\",scope=\"repository:a/b:pull,push\"",
                vec![bearer(
                    "https://auth.docker.io/token",
                    Some("registry.docker.io"),
                    Some("repository:a/b:pull,push"),
                )],
            ),
            (
                "Bearer realm=https://x/token, Basic realm=\"a \\\"b\\\", c\"",
                vec![bearer("https://x/token", None, None), Challenge::Basic],
            ),
            ("Bearer service=\"no realm\"", vec![]),
            ("Negotiate", vec![]),
            ("Bearer realm=\"open", vec![bearer("open", None, None)]),
            ("= = ,,=", vec![]),
        ] {
            assert_eq!(parse_challenges(text), want, "{text}");
        }
    }

    proptest! {
        #[test]
        fn challenges_end(text in "[ =,a\"\\\\BbearerBasic]{0,60}") {
            parse_challenges(&text);
        }
    }

    #[test]
    fn pull_secrets() {
        let auth = AuthConfig {
            auth: BASE64_STANDARD.encode("u:p:q\0"),
            ..AuthConfig::default()
        };
        let want = Credentials::Basic {
            username: "u".to_string(),
            password: "p:q".to_string(),
        };
        assert_eq!(Credentials::of(&auth, "r.io"), Some(want.clone()));
        let other = AuthConfig {
            server_address: "https://index.docker.io/v1/".to_string(),
            ..auth
        };
        assert_eq!(Credentials::of(&other, "r.io"), None);
        assert_eq!(Credentials::of(&other, "docker.io"), Some(want));
        assert_eq!(Credentials::of(&AuthConfig::default(), "r.io"), None);
    }
}
