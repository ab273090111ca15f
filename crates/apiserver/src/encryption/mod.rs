//! Encryption at rest: what chosen resources' records look like in the log and its snapshots. Memory stays plain.
//!
//! A record is written with the first provider that the configuration has for its resource and read with any of them; what
//! tells them apart stands before the ciphertext, as Kubernetes has it (`k8s:enc:aescbc:v1:key1:`). Records that another
//! provider has written are stale: writing them again, even without a change, encrypts them anew. Snapshots of the log do
//! that by themselves.
// Upstream: staging/src/k8s.io/apiserver/pkg/server/options/encryptionconfig (v1.36)

mod configuration;
mod kms;
mod local;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use orlop_base::{BoxFuture, Clock, Shutdown};
use orlop_store::{TransformError, Transformer};
use parking_lot::{Mutex, RwLock};

use configuration::{EncryptionConfiguration, Keys, ProviderConfiguration};
use kms::{Kms, KmsError};
use local::Cipher;

use crate::config_file::{self, FileError, Reloads};
use crate::kinds;

/// What all ciphertext begins with.
pub(crate) const ENCRYPTED: &[u8] = b"k8s:enc:";

/// Why encryption at rest cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum EncryptionError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Kms(#[from] KmsError),
}

type KeySource = Box<dyn Fn() -> Vec<Arc<str>> + Send + Sync>;

/// Encrypts records on their way to the log.
pub struct Encryption {
    rules: RwLock<Arc<Rules>>,
    /// Keys of records that the log holds in another form than they would be written in now.
    stale: Arc<Stale>,
    path: PathBuf,
    loaded: Vec<u8>,
    reloads: Reloads,
    /// Where a record is, to those who share the store; what AES-GCM authenticates beside it.
    place: OnceLock<Box<dyn Fn(&str) -> String + Send + Sync>>,
}

#[derive(Default)]
struct Stale {
    keys: Mutex<HashSet<Arc<str>>>,
    /// All keys of the store, once it is open.
    source: OnceLock<KeySource>,
}

impl Stale {
    fn everything(&self) {
        if let Some(source) = self.source.get() {
            let all = source();
            self.keys.lock().extend(all);
        }
    }
}

/// A loaded configuration.
struct Rules {
    entries: Vec<Entry>,
}

struct Entry {
    resources: Vec<String>,
    providers: Vec<Provider>,
}

struct Provider {
    /// `k8s:enc:aescbc:v1:`; empty for identity.
    prefix: String,
    kind: ProviderKind,
}

enum ProviderKind {
    Identity,
    /// With what stands before the ciphertext of each key (`key1:`).
    Local(Vec<(String, Cipher)>),
    Kms(Arc<Kms>),
}

impl Encryption {
    /// Reads the configuration and reaches its KMS plugins.
    pub async fn load(path: &Path, clock: &Clock) -> Result<Encryption, EncryptionError> {
        let loaded = config_file::read(path)?;
        let stale = Arc::new(Stale::default());
        let rules = Rules::load(&loaded, path, clock, &stale).await?;
        Ok(Encryption {
            rules: RwLock::new(Arc::new(rules)),
            stale,
            path: path.to_path_buf(),
            loaded,
            reloads: Reloads::new("apiserver_encryption_config_controller"),
            place: OnceLock::new(),
        })
    }

    /// Says under which names records are kept, if those are not their keys. Before any is read.
    pub(crate) fn set_place(&self, place: Box<dyn Fn(&str) -> String + Send + Sync>) {
        let _ = self.place.set(place);
    }

    fn place<'k>(&self, key: &'k str) -> std::borrow::Cow<'k, str> {
        self.place.get().map_or(key.into(), |place| place(key).into())
    }

    /// Says how all keys of the store are found, once it is open.
    pub(crate) fn set_key_source(&self, source: KeySource) {
        let _ = self.stale.source.set(source);
    }

    /// Reads the configuration again as it changes.
    pub(crate) async fn follow(self: Arc<Self>, clock: Clock, shutdown: Shutdown) {
        let load = |found: Vec<Vec<u8>>| {
            let (this, clock) = (self.clone(), clock.clone());
            let reload = async move {
                let rules = Rules::load(&found[0], &this.path, &clock, &this.stale).await?;
                *this.rules.write() = Arc::new(rules);
                this.stale.everything();
                Ok(())
            };
            Box::pin(reload) as BoxFuture<'static, Result<(), EncryptionError>>
        };
        let (paths, known) = (vec![self.path.clone()], vec![self.loaded.clone()]);
        config_file::follow(paths, known, &self.reloads, &clock, &shutdown, load).await;
    }

    pub(crate) fn write_metrics(&self, out: &mut String) {
        self.reloads.write_metrics(out);
    }

    fn sealed(&self, key: &str, plain: &Bytes, is_new: bool) -> Result<Option<Bytes>, TransformError> {
        let rules = self.rules.read().clone();
        let resource = resource_of(key);
        let Some(first) = rules.providers(resource).first() else {
            return Ok(None);
        };
        let failed = |why: &dyn ToString| {
            TransformError(format!("failed to encrypt {resource} for storage: {}", why.to_string()))
        };
        let place = &self.place(key);
        let mut out = first.prefix.clone().into_bytes();
        match &first.kind {
            ProviderKind::Identity => return Ok(None),
            ProviderKind::Local(keys) => {
                let Some((name, cipher)) = keys.first() else {
                    return Err(failed(&"there is no key"));
                };
                out.extend_from_slice(name.as_bytes());
                cipher.encrypt(place, plain, &mut out).map_err(|e| failed(&e))?;
            }
            ProviderKind::Kms(kms) => out.extend(kms.encrypt(place, plain, is_new).map_err(|e| failed(&e))?),
        }
        Ok(Some(out.into()))
    }
}

impl Transformer for Encryption {
    fn seal(&self, key: &str, plain: &Bytes) -> Result<Option<Bytes>, TransformError> {
        let sealed = self.sealed(key, plain, true)?;
        self.stale.keys.lock().remove(key);
        Ok(sealed)
    }

    fn reseal(&self, key: &str, plain: &Bytes) -> Result<Option<Bytes>, TransformError> {
        self.sealed(key, plain, false)
    }

    fn open(&self, key: &str, sealed: &Bytes) -> Result<Option<Bytes>, TransformError> {
        let rules = self.rules.read().clone();
        let (plain, is_stale) = rules.open(key, &self.place(key), sealed)?;
        if is_stale {
            self.stale.keys.lock().insert(key.into());
        }
        Ok(plain)
    }

    fn is_stale(&self, key: &str) -> bool {
        self.stale.keys.lock().contains(key)
    }
}

impl Rules {
    async fn load(bytes: &[u8], path: &Path, clock: &Clock, stale: &Arc<Stale>) -> Result<Rules, EncryptionError> {
        let parsed = EncryptionConfiguration::parse(bytes).map_err(|e| FileError::invalid(path, e))?;
        let mut entries = Vec::new();
        for entry in parsed.resources {
            let mut providers = Vec::new();
            for provider in &entry.providers {
                providers.push(Provider::load(provider, path, clock, stale).await?);
            }
            entries.push(Entry {
                resources: entry.resources,
                providers,
            });
        }
        Ok(Rules { entries })
    }

    /// The providers for a resource: those of the first entry that names it.
    fn providers(&self, resource: &str) -> &[Provider] {
        let found = self
            .entries
            .iter()
            .find(|entry| entry.resources.iter().any(|named| covers(named, resource)));
        found.map_or(&[], |entry| &entry.providers)
    }

    /// The plain form, if it was another one, and whether it is stale.
    fn open(&self, key: &str, place: &str, sealed: &Bytes) -> Result<(Option<Bytes>, bool), TransformError> {
        let resource = resource_of(key);
        let providers = self.providers(resource);
        if !sealed.starts_with(ENCRYPTED) {
            let identity = providers.iter().position(|p| matches!(p.kind, ProviderKind::Identity));
            return match (providers.is_empty(), identity) {
                (true, _) => Ok((None, false)),
                (false, Some(position)) => Ok((None, position > 0)),
                (false, None) => Err(unreadable(resource, "it is not encrypted", "add the provider identity")),
            };
        }
        let mut why = "no matching prefix found".to_string();
        for (position, provider) in providers.iter().enumerate() {
            if provider.prefix.is_empty() || !sealed.starts_with(provider.prefix.as_bytes()) {
                continue;
            }
            match provider.open(place, &sealed[provider.prefix.len()..]) {
                Ok((plain, is_stale)) => return Ok((Some(plain.into()), is_stale || position > 0)),
                Err(error) => why = error,
            }
        }
        let form = sealed
            .split(|byte| *byte == b':')
            .take(5)
            .collect::<Vec<_>>()
            .join(&b':');
        let form = String::from_utf8_lossy(&form[..form.len().min(100)]).into_owned();
        let form: String = form.chars().take_while(|c| c.is_ascii_graphic()).collect();
        let why = format!("{why} (it was written as {form})");
        Err(unreadable(
            resource,
            &why,
            "add the provider and the key that it was written with",
        ))
    }
}

fn unreadable(resource: &str, why: &str, advice: &str) -> TransformError {
    TransformError(format!(
        "failed to decrypt {resource}: {why}; {advice} to the file of --encryption-provider-config"
    ))
}

/// `secrets`, `deployments.apps`.
fn resource_of(key: &str) -> &str {
    let rest = key.strip_prefix(kinds::PREFIX).unwrap_or(key);
    rest.split('/').next().unwrap_or(rest)
}

/// Whether what an entry names (`secrets`, `*.apps`, `*.`, `*.*`) is or includes a resource.
fn covers(named: &str, resource: &str) -> bool {
    let group = resource.split_once('.').map_or("", |(_, group)| group);
    match named.strip_prefix("*.") {
        Some("*") => true,
        Some(wanted) => wanted == group,
        None => named == resource,
    }
}

impl Provider {
    async fn load(
        configuration: &ProviderConfiguration,
        path: &Path,
        clock: &Clock,
        stale: &Arc<Stale>,
    ) -> Result<Provider, EncryptionError> {
        let local = |name: &str, keys: &Keys, make: fn(&[u8]) -> Option<Cipher>| {
            let ciphers = keys.keys.iter().map(|key| {
                let cipher = make(&key.secret()).ok_or_else(|| FileError::invalid(path, "a key cannot be used"))?;
                Ok((format!("{}:", key.name), cipher))
            });
            Ok::<_, EncryptionError>(Provider {
                prefix: format!("k8s:enc:{name}:v1:"),
                kind: ProviderKind::Local(ciphers.collect::<Result<_, FileError>>()?),
            })
        };
        if let Some(keys) = &configuration.aesgcm {
            return local("aesgcm", keys, Cipher::gcm);
        }
        if let Some(keys) = &configuration.aescbc {
            return local("aescbc", keys, Cipher::cbc);
        }
        if let Some(keys) = &configuration.secretbox {
            return local("secretbox", keys, Cipher::secretbox);
        }
        let Some(configuration) = &configuration.kms else {
            return Ok(Provider {
                prefix: String::new(),
                kind: ProviderKind::Identity,
            });
        };
        let kms = Kms::connect(configuration, clock.clone()).await?;
        let stale = stale.clone();
        kms.follow(move || stale.everything());
        Ok(Provider {
            prefix: format!("k8s:enc:kms:v2:{}:", configuration.name),
            kind: ProviderKind::Kms(kms),
        })
    }

    fn open(&self, key: &str, data: &[u8]) -> Result<(Vec<u8>, bool), String> {
        match &self.kind {
            ProviderKind::Identity => Err("identity transformer tried to read encrypted data".to_string()),
            ProviderKind::Kms(kms) => kms.decrypt(key, data).map_err(|e| e.to_string()),
            ProviderKind::Local(keys) => {
                let mut why = "no key of that name".to_string();
                for (position, (name, cipher)) in keys.iter().enumerate() {
                    if let Some(body) = data.strip_prefix(name.as_bytes()) {
                        match cipher.decrypt(key, body) {
                            Ok(plain) => return Ok((plain, position > 0)),
                            Err(error) => why = error.to_string(),
                        }
                    }
                }
                Err(why)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn load(resources: &str) -> Encryption {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = format!(
            "{{apiVersion: apiserver.config.k8s.io/v1, kind: EncryptionConfiguration, resources: {resources}}}"
        );
        std::fs::write(file.path(), text).unwrap();
        Encryption::load(file.path(), &Clock::System).await.unwrap()
    }

    fn provider(kind: &str, names: &[&str]) -> String {
        let key = |name: &&str| {
            use base64::Engine;
            let secret = base64::prelude::BASE64_STANDARD.encode(name.repeat(32).get(..32).unwrap());
            format!("{{name: {name}, secret: {secret}}}")
        };
        let keys: Vec<String> = names.iter().map(key).collect();
        format!("{{{kind}: {{keys: [{}]}}}}", keys.join(", "))
    }

    fn secrets(providers: &[String]) -> String {
        format!("[{{resources: [secrets], providers: [{}]}}]", providers.join(", "))
    }

    const KEY: &str = "/registry/secrets/ns/name";

    #[tokio::test]
    async fn keys_are_rotated() {
        let plain = Bytes::from_static(b"\x01plain");
        let identity = "{identity: {}}".to_string();
        for kind in ["aesgcm", "aescbc", "secretbox"] {
            let first = load(&secrets(&[provider(kind, &["k1"])])).await;
            let sealed = first.seal(KEY, &plain).unwrap().unwrap();
            let prefix = format!("k8s:enc:{kind}:v1:k1:");
            assert!(sealed.starts_with(prefix.as_bytes()));
            assert_eq!(first.open(KEY, &sealed).unwrap(), Some(plain.clone()));
            assert!(!first.is_stale(KEY));

            let second = load(&secrets(&[provider(kind, &["k2", "k1"]), identity.clone()])).await;
            assert_eq!(second.open(KEY, &sealed).unwrap(), Some(plain.clone()));
            assert!(second.is_stale(KEY), "written with the second key");
            let again = second.seal(KEY, &plain).unwrap().unwrap();
            assert!(again.starts_with(format!("k8s:enc:{kind}:v1:k2:").as_bytes()) && !second.is_stale(KEY));
            assert_eq!(second.open(KEY, &plain).unwrap(), None);
            assert!(second.is_stale(KEY), "not encrypted yet");

            let without = load(&secrets(&[provider(kind, &["k2"])])).await;
            let error = without.open(KEY, &sealed).unwrap_err().to_string();
            let form = prefix.trim_end_matches(':');
            let wanted = format!("failed to decrypt secrets: no key of that name (it was written as {form}");
            assert!(error.starts_with(&wanted), "{error}");
            assert!(
                without
                    .open(KEY, &plain)
                    .unwrap_err()
                    .to_string()
                    .contains("it is not encrypted")
            );

            let back = load(&secrets(&[identity.clone(), provider(kind, &["k1"])])).await;
            assert_eq!(back.open(KEY, &sealed).unwrap(), Some(plain.clone()));
            assert!(back.is_stale(KEY));
            assert_eq!(back.seal(KEY, &plain).unwrap(), None);
        }
    }

    #[tokio::test]
    async fn the_first_entry_that_names_a_resource_counts() {
        let cbc = provider("aescbc", &["k"]);
        let rules = format!(
            "[{{resources: [events], providers: [{{identity: {{}}}}]}}, {{resources: ['*.apps'], providers: [{cbc}]}}, \
             {{resources: ['*.'], providers: [{cbc}]}}]"
        );
        let encryption = load(&rules).await;
        let plain = Bytes::from_static(b"x");
        for (key, wanted) in [
            ("/registry/events/ns/e", false),
            ("/registry/deployments.apps/ns/d", true),
            ("/registry/pods/ns/p", true),
            ("/registry/jobs.batch/ns/j", false),
        ] {
            assert_eq!(encryption.seal(key, &plain).unwrap().is_some(), wanted, "{key}");
        }
        assert!(covers("*.*", "jobs.batch") && covers("jobs.batch", "jobs.batch") && !covers("jobs", "jobs.batch"));
    }
}
