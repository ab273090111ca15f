//! Credentials for registries, from pull secrets and from the node's own Docker configuration.
//!
//! Upstream: pkg/credentialprovider (v1.36). Its plugins are in `providers`.

use std::collections::BTreeMap;

use aws_lc_rs::digest;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use orlop_api::types::core::Secret;
use orlop_runtime::cri::messages::AuthConfig;
use serde::{Deserialize, Serialize};

const DEFAULT_REGISTRY: &str = "index.docker.io";

/// Where credentials came from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SecretSource {
    pub uid: String,
    pub namespace: String,
    pub name: String,
    /// So that the same credentials in another secret are known again.
    pub credential_hash: String,
}

/// A service account for whose pods a credential provider gave them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AccountSource {
    pub uid: String,
    pub namespace: String,
    pub name: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    Secret(SecretSource),
    ServiceAccount(AccountSource),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Credentials {
    pub auth: AuthConfig,
    /// `None`: the node's own, for every pod.
    pub source: Option<Source>,
}

/// By registry and path, as they were added.
#[derive(Clone, Debug, Default)]
pub struct Keyring {
    entries: BTreeMap<String, Vec<Credentials>>,
}

#[derive(Deserialize)]
struct DockerConfigJson {
    #[serde(default)]
    auths: DockerConfig,
}

/// What is wrong with the credentials in a pull secret or a configuration of Docker's.
#[derive(Debug, thiserror::Error)]
pub enum KeyringError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Base64(#[from] base64::DecodeError),
    #[error(transparent)]
    Utf8(#[from] std::string::FromUtf8Error),
    #[error("unable to parse auth field, must be formatted as base64(username:password)")]
    AuthField,
}

type DockerConfig = BTreeMap<String, Entry>;

#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
struct Entry {
    #[serde(skip_serializing_if = "String::is_empty")]
    username: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    password: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    auth: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    email: String,
}

impl Entry {
    /// With user and password from `auth`, if that is given.
    fn decoded(mut self) -> Result<Entry, KeyringError> {
        let auth = std::mem::take(&mut self.auth);
        if auth.is_empty() {
            return Ok(self);
        }
        let bytes = match auth.trim().ends_with('=') {
            true => STANDARD.decode(auth.trim()),
            false => STANDARD_NO_PAD.decode(auth.trim()),
        };
        let text = String::from_utf8(bytes?)?;
        let Some((username, password)) = text.split_once(':') else {
            return Err(KeyringError::AuthField);
        };
        self.username = username.to_string();
        self.password = password.to_string();
        Ok(self)
    }

    fn hash(&self) -> String {
        let text = serde_json::to_vec(self).expect("strings only");
        hex(digest::digest(&digest::SHA256, &text).as_ref())
    }
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Keyring {
    /// From secrets of the types `kubernetes.io/dockerconfigjson` and `kubernetes.io/dockercfg`; others say nothing.
    pub fn from_secrets<'a>(secrets: impl IntoIterator<Item = &'a Secret>) -> Result<Keyring, KeyringError> {
        let mut keyring = Keyring::default();
        for secret in secrets {
            let data = |key: &str| secret.data.as_ref().and_then(|data| data.get(key));
            let config = match secret.type_.as_deref() {
                Some("kubernetes.io/dockerconfigjson") => match data(".dockerconfigjson") {
                    Some(text) if !text.0.is_empty() => {
                        serde_json::from_slice::<DockerConfigJson>(&text.0).map(|config| config.auths)
                    }
                    _ => continue,
                },
                Some("kubernetes.io/dockercfg") => match data(".dockercfg") {
                    Some(text) if !text.0.is_empty() => serde_json::from_slice(&text.0),
                    _ => continue,
                },
                _ => continue,
            };
            let text = |field: &Option<String>| field.clone().unwrap_or_default();
            let source = SecretSource {
                uid: text(&secret.metadata.uid),
                namespace: text(&secret.metadata.namespace),
                name: text(&secret.metadata.name),
                credential_hash: String::new(),
            };
            keyring.add(config?, Some(&source))?;
        }
        Ok(keyring)
    }

    /// From the text of a `config.json` of Docker's.
    pub fn from_config(text: &[u8]) -> Result<Keyring, KeyringError> {
        let config: DockerConfigJson = serde_json::from_slice(text)?;
        let mut keyring = Keyring::default();
        keyring.add(config.auths, None)?;
        Ok(keyring)
    }

    fn add(&mut self, config: DockerConfig, source: Option<&SecretSource>) -> Result<(), KeyringError> {
        for (location, entry) in config {
            let entry = entry.decoded()?;
            let source = source.map(|source| {
                Source::Secret(SecretSource {
                    credential_hash: entry.hash(),
                    ..source.clone()
                })
            });
            self.insert(&location, entry.username, entry.password, source);
        }
        Ok(())
    }

    pub fn insert(&mut self, location: &str, username: String, password: String, source: Option<Source>) {
        let auth = AuthConfig {
            username,
            password,
            ..AuthConfig::default()
        };
        let credentials = Credentials { auth, source };
        self.entries.entry(key(location)).or_default().push(credentials);
    }

    /// All that fit an image's repository, the most specific first.
    pub fn lookup(&self, repository: &str) -> Vec<Credentials> {
        let fitting = self.entries.iter().rev().filter(|(key, _)| fits(key, repository));
        let found: Vec<Credentials> = fitting.flat_map(|(_, credentials)| credentials).cloned().collect();
        if found.is_empty() && is_default_registry(repository) {
            return self.entries.get(DEFAULT_REGISTRY).cloned().unwrap_or_default();
        }
        found
    }
}

/// Registry and path without what makes no difference: the scheme, `/v1/` and `/v2/`, a lone slash.
fn key(location: &str) -> String {
    let rest = location.strip_prefix("https://").or(location.strip_prefix("http://"));
    let rest = rest.unwrap_or(location);
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let (host, path) = split_host(rest);
    let path = match path.starts_with("/v1/") || path.starts_with("/v2/") {
        true => &path[3..],
        false => path,
    };
    format!("{host}{}", if path == "/" { "" } else { path })
}

/// Host with port; path with its slash.
fn split_host(location: &str) -> (&str, &str) {
    location.split_at(location.find('/').unwrap_or(location.len()))
}

/// Part for part of the host name, where `*` stands for any text; the port must be the same, the path a prefix.
pub fn fits(key: &str, repository: &str) -> bool {
    let ((pattern, prefix), (host, path)) = (split_host(key), split_host(repository));
    let split_port = |host: &str| match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name.to_string(), port.to_string()),
        _ => (host.to_string(), String::new()),
    };
    let ((pattern, wanted_port), (host, port)) = (split_port(pattern), split_port(host));
    let parts = |host: &str| host.split('.').map(str::to_string).collect::<Vec<_>>();
    let (patterns, names) = (parts(&pattern), parts(&host));
    wanted_port == port
        && patterns.len() == names.len()
        && path.starts_with(prefix)
        && patterns
            .iter()
            .zip(&names)
            .all(|(pattern, name)| glob(pattern.as_bytes(), name.as_bytes()))
}

/// Patterns come from secrets: however many stars one has, it takes no longer than its length times the name's.
fn glob(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    // The last star, and where what it stands for ends so far: the only place to go back to.
    let mut star = None;
    while n < name.len() {
        match (pattern.get(p), star) {
            (Some(b'*'), _) => {
                star = Some((p, n));
                p += 1;
            }
            (Some(letter), _) if *letter == name[n] => {
                p += 1;
                n += 1;
            }
            (_, Some((at, end))) => {
                star = Some((at, end + 1));
                p = at + 1;
                n = end + 1;
            }
            (_, None) => return false,
        }
    }
    pattern[p..].iter().all(|letter| *letter == b'*')
}

fn is_default_registry(repository: &str) -> bool {
    match repository.split_once('/') {
        Some(("docker.io" | DEFAULT_REGISTRY, _)) | None => true,
        Some((first, _)) => !first.is_empty() && !first.contains(['.', ':']),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_anything_and_cost_little() {
        for (pattern, name, fits) in [
            ("", "", true),
            ("*", "", true),
            ("a*c", "abc", true),
            ("a*c", "ac", true),
            ("a*c", "acb", false),
            ("*.io", "gcr.io", true),
            ("*b*b", "abbb", true),
            ("a", "", false),
            ("", "a", false),
        ] {
            assert_eq!(glob(pattern.as_bytes(), name.as_bytes()), fits, "{pattern} {name}");
        }
        assert!(!glob(&b"*a".repeat(100), &b"a".repeat(99)));
        assert!(!glob(&[b"*a".repeat(100), b"b".to_vec()].concat(), &b"a".repeat(5000)));
    }

    fn secret(kind: &str, key: &str, text: &str) -> Secret {
        let data = STANDARD.encode(text);
        orlop_api::types::from_value(serde_json::json!({
            "metadata": {"name": "s", "namespace": "n", "uid": "u"}, "type": kind, "data": {key: data},
        }))
        .unwrap()
    }

    fn config(auths: &str) -> Secret {
        secret(
            "kubernetes.io/dockerconfigjson",
            ".dockerconfigjson",
            &format!(r#"{{"auths": {{{auths}}}}}"#),
        )
    }

    fn users(keyring: &Keyring, repository: &str) -> Vec<String> {
        keyring
            .lookup(repository)
            .into_iter()
            .map(|found| found.auth.username)
            .collect()
    }

    #[test]
    fn the_most_specific_credentials_come_first() {
        let auths = r#"
            "quay.io": {"username": "host"}, "https://quay.io/coreos": {"username": "path"},
            "*.example.com": {"username": "star"}, "reg:5000": {"username": "port"},
            "https://index.docker.io/v1/": {"username": "hub"}, "r*g.io/": {"username": "mark"}"#;
        let keyring = Keyring::from_secrets([&config(auths)]).unwrap();
        for (repository, want) in [
            ("quay.io/coreos/etcd", &["path", "host"][..]),
            ("quay.io/other", &["host"]),
            ("a.example.com/x", &["star"]),
            ("a.b.example.com/x", &[]),
            ("reg:5000/x", &["port"]),
            ("reg:5001/x", &[]),
            ("docker.io/library/busybox", &["hub"]),
            ("rag.io/x", &["mark"]),
            ("gcr.io/x", &[]),
        ] {
            assert_eq!(users(&keyring, repository), want, "{repository}");
        }
    }

    #[test]
    fn both_types_and_the_auth_field() {
        let old = secret(
            "kubernetes.io/dockercfg",
            ".dockercfg",
            r#"{"a.io": {"auth": "dTpwOnE="}}"#,
        );
        let unpadded = config(r#""b.io": {"auth": "dXM6cHc", "email": "e"}"#);
        let other = secret("Opaque", ".dockercfg", r#"{"c.io": {"username": "x"}}"#);
        let keyring = Keyring::from_secrets([&old, &unpadded, &other]).unwrap();
        let found = &keyring.lookup("a.io/x")[0];
        assert_eq!(
            (found.auth.username.as_str(), found.auth.password.as_str()),
            ("u", "p:q")
        );
        assert!(matches!(&found.source, Some(Source::Secret(secret)) if secret.name == "s"));
        assert_eq!(users(&keyring, "b.io/x"), ["us"]);
        assert!(keyring.lookup("c.io/x").is_empty());
        let node = Keyring::from_config(br#"{"auths": {"d.io": {"username": "n"}}}"#).unwrap();
        assert_eq!(node.lookup("d.io/x")[0].source, None);
    }

    #[test]
    fn broken_secrets_are_named() {
        assert!(Keyring::from_secrets([&config(r#""a": 1"#)]).is_err());
        assert!(Keyring::from_secrets([&config(r#""a": {"auth": "bm9jb2xvbg=="}"#)]).is_err());
    }
}
