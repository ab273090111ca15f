//! The keys of an OpenID Connect provider: found through its discovery document, fetched again when a token is signed with
//! one that is not known.

use std::time::Duration;

use bytes::Bytes;
use http::header::ACCEPT;
use http::{HeaderValue, Request, StatusCode, Uri};
use http_body_util::Full;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use parking_lot::RwLock;
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::configuration::Issuer;
use crate::remote::{CallError, HttpClient, TlsOptions, TlsSetupError};

const WELL_KNOWN: &str = "/.well-known/openid-configuration";
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);
/// Tokens with unknown keys are free to make: they have keys fetched no more often than this.
const FETCH_PAUSE: Duration = Duration::from_secs(1);
const MAX_KEYS: usize = 256;

/// Why a provider's keys are not there.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("oidc: invalid URL {0:?}")]
    Url(String),
    #[error("{url}: status {code}")]
    Status { url: String, code: StatusCode },
    #[error("oidc: failed to decode {what}: {reason}")]
    Document { what: &'static str, reason: String },
    #[error("oidc: issuer did not match the issuer returned by provider, expected {expected:?} got {found:?}")]
    Issuer { expected: String, found: String },
    #[error("oidc: keys were fetched less than {FETCH_PAUSE:?} ago")]
    TooSoon,
}

/// The keys of one provider.
pub(super) struct ProviderKeys {
    issuer: String,
    discovery_url: String,
    client: HttpClient,
    keys: RwLock<Vec<ProviderKey>>,
    fetches: tokio::sync::Mutex<Fetches>,
}

#[derive(Default)]
struct Fetches {
    jwks_uri: Option<String>,
    last: Option<Instant>,
}

#[derive(Clone)]
struct ProviderKey {
    id: Option<String>,
    key: DecodingKey,
}

#[derive(Deserialize)]
struct Discovery {
    #[serde(default)]
    issuer: String,
    #[serde(default)]
    jwks_uri: String,
}

impl ProviderKeys {
    pub(super) fn new(issuer: &Issuer) -> Result<ProviderKeys, TlsSetupError> {
        let authority = &issuer.certificate_authority;
        let tls = TlsOptions {
            authority: (!authority.is_empty()).then(|| authority.clone().into_bytes()),
            ..TlsOptions::default()
        };
        let discovery_url = match issuer.discovery_url.as_str() {
            "" => format!("{}{WELL_KNOWN}", issuer.url.trim_end_matches('/')),
            url => url.to_string(),
        };
        Ok(ProviderKeys {
            issuer: issuer.url.clone(),
            discovery_url,
            client: HttpClient::new(&tls)?,
            keys: RwLock::default(),
            fetches: tokio::sync::Mutex::default(),
        })
    }

    /// Whether keys were ever fetched.
    pub(super) fn are_known(&self) -> bool {
        !self.keys.read().is_empty()
    }

    /// The claims of a token that one of the known keys has signed.
    pub(super) fn verify(&self, token: &str, key_id: Option<&str>, algorithm: Algorithm) -> Option<Map<String, Value>> {
        let mut validation = Validation::new(algorithm);
        // Times, issuer and audiences are checked by our clock and Kubernetes' rules.
        validation.required_spec_claims.clear();
        validation.validate_exp = false;
        validation.validate_aud = false;
        let keys = self.keys.read();
        let mut candidates = keys.iter().filter(|key| match (&key.id, key_id) {
            (Some(id), Some(wanted)) => id == wanted,
            _ => true,
        });
        candidates.find_map(|candidate| {
            if !candidate.key.family().algorithms().contains(&algorithm) {
                return None;
            }
            let decoded = jsonwebtoken::decode::<Map<String, Value>>(token, &candidate.key, &validation);
            decoded.ok().map(|token| token.claims)
        })
    }

    /// Fetches the keys. Many callers at once cause one fetch.
    pub(super) async fn fetch(&self) -> Result<(), KeysError> {
        let asked = Instant::now();
        let mut fetches = self.fetches.lock().await;
        if let Some(last) = fetches.last {
            // Somebody else's fetch has ended meanwhile.
            if last >= asked {
                return Ok(());
            }
            if last.elapsed() < FETCH_PAUSE {
                return Err(KeysError::TooSoon);
            }
        }
        let outcome = self.fetch_now(&mut fetches).await;
        fetches.last = Some(Instant::now());
        outcome
    }

    async fn fetch_now(&self, fetches: &mut Fetches) -> Result<(), KeysError> {
        let uri = match fetches.jwks_uri.clone() {
            Some(uri) => uri,
            None => {
                let uri = self.discover().await?;
                fetches.jwks_uri.insert(uri).clone()
            }
        };
        let bytes = self.get(&uri).await?;
        let keys = parse_keys(&bytes).map_err(|reason| KeysError::Document {
            what: "keys",
            reason: reason.to_string(),
        })?;
        *self.keys.write() = keys;
        Ok(())
    }

    async fn discover(&self) -> Result<String, KeysError> {
        let bytes = self.get(&self.discovery_url).await?;
        let failed = |reason: String| KeysError::Document {
            what: "provider discovery object",
            reason,
        };
        let document: Discovery = serde_json::from_slice(&bytes).map_err(|e| failed(e.to_string()))?;
        if document.issuer != self.issuer {
            return Err(KeysError::Issuer {
                expected: self.issuer.clone(),
                found: document.issuer,
            });
        }
        match document.jwks_uri.as_str() {
            "" => Err(failed("provider did not return JWKS URL".to_string())),
            _ => Ok(document.jwks_uri),
        }
    }

    async fn get(&self, url: &str) -> Result<Bytes, KeysError> {
        let uri: Uri = url.parse().map_err(|_| KeysError::Url(url.to_string()))?;
        if uri.authority().is_none() {
            return Err(KeysError::Url(url.to_string()));
        }
        let mut request = Request::new(Full::default());
        *request.uri_mut() = uri;
        let headers = request.headers_mut();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        let (code, _, bytes) = self.client.send(request, FETCH_TIMEOUT).await?;
        match code {
            StatusCode::OK => Ok(bytes),
            code => Err(KeysError::Status {
                url: url.to_string(),
                code,
            }),
        }
    }
}

/// The keys of a set that can be used here; others are left out.
fn parse_keys(bytes: &[u8]) -> Result<Vec<ProviderKey>, serde_json::Error> {
    #[derive(Deserialize)]
    struct KeySet {
        keys: Vec<Value>,
    }
    let set: KeySet = serde_json::from_slice(bytes)?;
    let usable = set.keys.into_iter().filter_map(|value| {
        if value["use"].as_str().is_some_and(|purpose| purpose != "sig") {
            return None;
        }
        let jwk: Jwk = serde_json::from_value(value).ok()?;
        let key = DecodingKey::from_jwk(&jwk).ok()?;
        Some(ProviderKey {
            id: jwk.common.key_id,
            key,
        })
    });
    Ok(usable.take(MAX_KEYS).collect())
}
