//! KMS v2: a plugin behind a local socket encrypts seeds; keys derived from a seed encrypt records. Records are encrypted
//! without asking the plugin, so that it may be away for a while; a seed is used for new writes as long as the plugin was
//! heard of in the last three minutes.
// Upstream: staging/src/k8s.io/apiserver/pkg/storage/value/encrypt/envelope/kmsv2 (v1.36)

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Prk};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use orlop_base::Clock;
use orlop_base::clock::rfc3339;
use parking_lot::{Mutex, RwLock};
use prost::Message;
use tokio::net::UnixStream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use super::configuration::KmsConfiguration;
use super::local::{CipherError, Gcm, random};

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long the last good status of the plugin lets records be encrypted.
const WRITE_TTL: Duration = Duration::from_secs(180);
const HEALTHY_POLL: Duration = Duration::from_secs(60);
const UNHEALTHY_POLL: Duration = Duration::from_secs(10);
const SEED_LEN: usize = 32;
const INFO_LEN: usize = 32;
/// Seeds that records were encrypted with; beyond it all are asked for again.
const MAX_SEEDS: usize = 1024;
const MAX_KEY_ID: usize = 1024;

#[derive(Clone, PartialEq, Message)]
struct StatusRequest {}

#[derive(Clone, PartialEq, Message)]
struct StatusResponse {
    #[prost(string, tag = "1")]
    version: String,
    #[prost(string, tag = "2")]
    healthz: String,
    #[prost(string, tag = "3")]
    key_id: String,
}

#[derive(Clone, PartialEq, Message)]
struct DecryptRequest {
    #[prost(bytes = "vec", tag = "1")]
    ciphertext: Vec<u8>,
    #[prost(string, tag = "2")]
    uid: String,
    #[prost(string, tag = "3")]
    key_id: String,
    #[prost(btree_map = "string, bytes", tag = "4")]
    annotations: std::collections::BTreeMap<String, Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct DecryptResponse {
    #[prost(bytes = "vec", tag = "1")]
    plaintext: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct EncryptRequest {
    #[prost(bytes = "vec", tag = "1")]
    plaintext: Vec<u8>,
    #[prost(string, tag = "2")]
    uid: String,
}

#[derive(Clone, PartialEq, Message)]
struct EncryptResponse {
    #[prost(bytes = "vec", tag = "1")]
    ciphertext: Vec<u8>,
    #[prost(string, tag = "2")]
    key_id: String,
    #[prost(btree_map = "string, bytes", tag = "3")]
    annotations: std::collections::BTreeMap<String, Vec<u8>>,
}

/// What is stored of a record.
#[derive(Clone, PartialEq, Message)]
struct EncryptedObject {
    #[prost(bytes = "vec", tag = "1")]
    encrypted_data: Vec<u8>,
    #[prost(string, tag = "2")]
    key_id: String,
    #[prost(bytes = "vec", tag = "3")]
    encrypted_dek_source: Vec<u8>,
    #[prost(btree_map = "string, bytes", tag = "4")]
    annotations: std::collections::BTreeMap<String, Vec<u8>>,
    /// 0: the source is an AES-GCM key; 1: a seed that keys are derived from.
    #[prost(int32, tag = "5")]
    encrypted_dek_source_type: i32,
}

const SEED_TYPE: i32 = 1;

/// Why a plugin is of no use.
#[derive(Debug, thiserror::Error)]
pub enum KmsError {
    #[error("kms provider {name}: {method}: {reason}")]
    Call {
        name: String,
        method: &'static str,
        reason: String,
    },
    #[error("kms provider {name}: {reason}")]
    Answer { name: String, reason: String },
    #[error("kms provider {name}: encryptedDEKSource with keyID hash {hash:?} expired at {at}")]
    Expired { name: String, hash: String, at: String },
    #[error("kms provider {name}: {reason}")]
    Cipher { name: String, reason: String },
}

pub(super) struct Kms {
    name: String,
    channel: Channel,
    timeout: Duration,
    clock: Clock,
    runtime: tokio::runtime::Handle,
    /// Set once the plugin was reached.
    current: RwLock<Option<Arc<Current>>>,
    seeds: Mutex<HashMap<[u8; 32], Arc<Source>>>,
}

/// What new records are encrypted with.
struct Current {
    envelope: EncryptedObject,
    source: Arc<Source>,
    expires: Timestamp,
}

/// What a record's key comes from.
enum Source {
    Seed(Prk),
    Key(Gcm),
}

struct KeyLength;

impl KeyType for KeyLength {
    fn len(&self) -> usize {
        SEED_LEN
    }
}

impl Source {
    fn of(bytes: &[u8], kind: i32) -> Option<Source> {
        match kind {
            SEED_TYPE if bytes.len() >= SEED_LEN => Some(Source::Seed(Prk::new_less_safe(HKDF_SHA256, bytes))),
            0 => Gcm::new(bytes).map(Source::Key),
            _ => None,
        }
    }

    fn derived(seed: &Prk, info: &[u8]) -> Result<Gcm, CipherError> {
        let mut key = [0; SEED_LEN];
        let parts = [info];
        let expanded = seed.expand(&parts, KeyLength).and_then(|okm| okm.fill(&mut key));
        expanded.map_err(|_| CipherError::Encrypt)?;
        Gcm::new(&key).ok_or(CipherError::Encrypt)
    }

    fn encrypt(&self, key: &str, plain: &[u8]) -> Result<Vec<u8>, CipherError> {
        let mut out = Vec::with_capacity(plain.len() + 2 * INFO_LEN);
        match self {
            Source::Seed(seed) => {
                let info = random::<INFO_LEN>()?;
                out.extend_from_slice(&info);
                Source::derived(seed, &info)?.encrypt(key, plain, &mut out)?;
            }
            Source::Key(gcm) => gcm.encrypt(key, plain, &mut out)?,
        }
        Ok(out)
    }

    fn decrypt(&self, key: &str, data: &[u8]) -> Result<Vec<u8>, CipherError> {
        match self {
            Source::Seed(seed) => {
                let (info, body) = data.split_first_chunk::<INFO_LEN>().ok_or(CipherError::TooShort)?;
                Source::derived(seed, info)?.decrypt(key, body)
            }
            Source::Key(gcm) => gcm.decrypt(key, data),
        }
    }
}

impl Kms {
    /// Reaches the plugin for the first time.
    pub(super) async fn connect(configuration: &KmsConfiguration, clock: Clock) -> Result<Arc<Kms>, KmsError> {
        let path = configuration.socket().unwrap_or_default().to_string();
        let connector = tower::service_fn(move |_: http::Uri| {
            let path = path.clone();
            async move { UnixStream::connect(socket_address(&path)).await.map(TokioIo::new) }
        });
        let kms = Arc::new(Kms {
            name: configuration.name.clone(),
            channel: Endpoint::from_static("http://localhost").connect_with_connector_lazy(connector),
            timeout: configuration.timeout.unwrap_or(DEFAULT_TIMEOUT),
            clock,
            runtime: tokio::runtime::Handle::current(),
            current: RwLock::new(None),
            seeds: Mutex::default(),
        });
        kms.refresh().await?;
        Ok(kms)
    }

    /// Looks after the plugin until nobody uses it any more. `rotated` is called when it has a new key.
    pub(super) fn follow(self: &Arc<Self>, rotated: impl Fn() + Send + 'static) {
        let weak = Arc::downgrade(self);
        tokio::spawn(async move {
            let mut pause = HEALTHY_POLL;
            loop {
                tokio::time::sleep(pause).await;
                let Some(kms) = weak.upgrade() else { return };
                pause = match kms.refresh().await {
                    Ok(false) => HEALTHY_POLL,
                    Ok(true) => {
                        rotated();
                        HEALTHY_POLL
                    }
                    Err(e) => {
                        tracing::warn!(err = %e, "failed to reach KMS plugin");
                        UNHEALTHY_POLL
                    }
                };
            }
        });
    }

    /// Asks how the plugin is, and makes a new seed if it has a new key (which is then what is returned).
    async fn refresh(&self) -> Result<bool, KmsError> {
        let status: StatusResponse = self.call("Status", StatusRequest {}).await?;
        if status.healthz != "ok" {
            return Err(self.wrong(format!("got unexpected healthz status: {:?}", status.healthz)));
        }
        if !matches!(status.version.as_str(), "v2" | "v2beta1") {
            return Err(self.wrong(format!("expected KMSv2 API version, got {:?}", status.version)));
        }
        self.check_key_id(&status.key_id)?;
        let expires = self.clock.now().saturating_add(WRITE_TTL).unwrap_or(Timestamp::MAX);
        let known = self.current.read().clone();
        if let Some(known) = known.filter(|known| known.envelope.key_id == status.key_id) {
            let renewed = Current {
                envelope: known.envelope.clone(),
                source: known.source.clone(),
                expires,
            };
            *self.current.write() = Some(Arc::new(renewed));
            return Ok(false);
        }
        let (envelope, source) = self.new_seed().await?;
        if envelope.key_id != status.key_id {
            return Err(self.wrong("the keyID of Encrypt is not that of Status; trying again".to_string()));
        }
        let current = Current {
            envelope,
            source,
            expires,
        };
        *self.current.write() = Some(Arc::new(current));
        Ok(true)
    }

    async fn new_seed(&self) -> Result<(EncryptedObject, Arc<Source>), KmsError> {
        let seed = random::<SEED_LEN>().map_err(|source| self.cipher(source))?;
        let request = EncryptRequest {
            plaintext: seed.to_vec(),
            uid: uuid::Uuid::new_v4().to_string(),
        };
        let answer: EncryptResponse = self.call("Encrypt", request).await?;
        self.check_key_id(&answer.key_id)?;
        if answer.ciphertext.is_empty() || answer.ciphertext.len() > 1024 {
            return Err(self.wrong("encrypted DEK source is empty or longer than 1024 bytes".to_string()));
        }
        let source = Source::of(&seed, SEED_TYPE).map(Arc::new);
        let source = source.ok_or_else(|| self.cipher(CipherError::Encrypt))?;
        let envelope = EncryptedObject {
            encrypted_data: vec![],
            key_id: answer.key_id,
            encrypted_dek_source: answer.ciphertext,
            annotations: answer.annotations,
            encrypted_dek_source_type: SEED_TYPE,
        };
        self.remember(digest(&envelope), source.clone());
        Ok((envelope, source))
    }

    /// `is_new` is false for what was stored before: that may be encrypted however long the plugin has been away.
    pub(super) fn encrypt(&self, key: &str, plain: &[u8], is_new: bool) -> Result<Vec<u8>, KmsError> {
        let current = self.current.read().clone();
        let current = current.ok_or_else(|| self.wrong("the plugin was not reached yet".to_string()))?;
        if is_new && self.clock.now() > current.expires {
            let hash = crate::pki::sha256(current.envelope.key_id.as_bytes());
            return Err(KmsError::Expired {
                name: self.name.clone(),
                hash: hash
                    .iter()
                    .fold("sha256:".to_string(), |hash, byte| format!("{hash}{byte:02x}")),
                at: rfc3339(current.expires),
            });
        }
        let data = current
            .source
            .encrypt(key, plain)
            .map_err(|source| self.cipher(source))?;
        let envelope = EncryptedObject {
            encrypted_data: data,
            ..current.envelope.clone()
        };
        Ok(envelope.encode_to_vec())
    }

    /// What a record holds, and whether another key would be used for it now. May ask the plugin: not to be called from a
    /// task of the runtime.
    pub(super) fn decrypt(&self, key: &str, data: &[u8]) -> Result<(Vec<u8>, bool), KmsError> {
        let mut envelope = EncryptedObject::decode(data).map_err(|e| self.wrong(e.to_string()))?;
        let data = std::mem::take(&mut envelope.encrypted_data);
        let digest = digest(&envelope);
        let known = self.seeds.lock().get(&digest).cloned();
        let source = match known {
            Some(source) => source,
            None => {
                let source = self.runtime.block_on(self.ask_for_source(&envelope))?;
                self.remember(digest, source.clone());
                source
            }
        };
        let plain = source.decrypt(key, &data).map_err(|source| self.cipher(source))?;
        let current = self.current.read();
        let is_stale = current
            .as_ref()
            .is_none_or(|current| current.envelope.key_id != envelope.key_id);
        Ok((plain, is_stale))
    }

    async fn ask_for_source(&self, envelope: &EncryptedObject) -> Result<Arc<Source>, KmsError> {
        let request = DecryptRequest {
            ciphertext: envelope.encrypted_dek_source.clone(),
            uid: uuid::Uuid::new_v4().to_string(),
            key_id: envelope.key_id.clone(),
            annotations: envelope.annotations.clone(),
        };
        let answer: DecryptResponse = self.call("Decrypt", request).await?;
        let source = Source::of(&answer.plaintext, envelope.encrypted_dek_source_type).map(Arc::new);
        source.ok_or_else(|| self.wrong("invalid length of a decrypted DEK source".to_string()))
    }

    fn remember(&self, digest: [u8; 32], source: Arc<Source>) {
        let mut seeds = self.seeds.lock();
        if seeds.len() >= MAX_SEEDS {
            seeds.clear();
        }
        seeds.insert(digest, source);
    }

    async fn call<Q, A>(&self, method: &'static str, request: Q) -> Result<A, KmsError>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let failed = |reason: String| KmsError::Call {
            name: self.name.clone(),
            method,
            reason,
        };
        let exchange = async {
            let mut grpc = Grpc::new(self.channel.clone());
            grpc.ready().await.map_err(|e| e.to_string())?;
            let path = format!("/v2.KeyManagementService/{method}");
            let path: PathAndQuery = path.parse().map_err(|_| "invalid path".to_string())?;
            let codec = ProstCodec::<Q, A>::default();
            let answer = grpc.unary(tonic::Request::new(request), path, codec).await;
            answer.map(tonic::Response::into_inner).map_err(|e| e.to_string())
        };
        match tokio::time::timeout(self.timeout, exchange).await {
            Ok(answered) => answered.map_err(failed),
            Err(_) => Err(failed(format!("no answer within {:?}", self.timeout))),
        }
    }

    fn check_key_id(&self, key_id: &str) -> Result<(), KmsError> {
        match key_id.len() {
            0 => Err(self.wrong("keyID is empty".to_string())),
            length if length > MAX_KEY_ID => {
                Err(self.wrong(format!("keyID is {length} bytes, which exceeds the maximum of 1024")))
            }
            _ => Ok(()),
        }
    }

    fn wrong(&self, reason: String) -> KmsError {
        KmsError::Answer {
            name: self.name.clone(),
            reason,
        }
    }

    fn cipher(&self, source: CipherError) -> KmsError {
        KmsError::Cipher {
            name: self.name.clone(),
            reason: source.to_string(),
        }
    }
}

/// Tells what records were encrypted with apart.
fn digest(envelope: &EncryptedObject) -> [u8; 32] {
    crate::pki::sha256(&envelope.encode_to_vec())
}

/// Names of abstract sockets begin with a zero byte, which configurations write as `@`.
fn socket_address(path: &str) -> std::path::PathBuf {
    match path.strip_prefix('@') {
        Some(name) => std::path::PathBuf::from(format!("\0{name}")),
        None => std::path::PathBuf::from(path),
    }
}

#[cfg(test)]
mod tests;
