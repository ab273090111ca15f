//! Service account tokens: JSON web tokens signed with the cluster's key (ES256, or what files of the user's ask for). Issued here, and checked on every
//! request against the objects they are bound to. Signatures are checked once per token and remembered: a signature
//! that was good stays good, and all that can change is looked at again each time.
//! Upstream: pkg/serviceaccount (v1.36).

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jiff::Timestamp;
use jsonwebtoken::{EncodingKey, Header};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::{
    Authenticated, AuthnError, CREDENTIAL_ID, NODE_NAME, NODE_UID, POD_NAME, POD_UID, UserInfo, data_of, same_bytes,
    service_account_username, split_service_account,
};
use crate::lookup::{ObjectLookup, text};

mod keys;

use keys::{SigningKey, VerifyingKey};

pub const DEFAULT_ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
const LEGACY_ISSUER: &str = "kubernetes/serviceaccount";
/// Clocks may differ by this, and objects being deleted keep their tokens valid for this long.
const LEEWAY_SECONDS: i64 = 60;
pub(super) const YEAR_SECONDS: i64 = 365 * 24 * 3600;
/// Tokens whose signature is remembered; beyond, all are forgotten and checked again as they come.
const REMEMBERED: usize = 8192;

/// A service account, for whom a token is issued.
#[derive(Clone, Copy, Debug)]
pub struct ServiceAccountRef<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    pub uid: &'a str,
}

/// The object whose deletion ends a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BoundObject {
    /// With the node it runs on, for information; the node's UID may be unknown.
    Pod {
        object: Bound,
        node: Option<Bound>,
    },
    Secret(Bound),
    Node(Bound),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Bound {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot use the service account key")]
pub struct KeyError(#[source] Box<dyn std::error::Error + Send + Sync>);

#[derive(Debug, thiserror::Error)]
#[error("failed to generate token")]
pub struct IssueError(#[source] pub(super) jsonwebtoken::errors::Error);

/// Issues and verifies service account tokens.
pub struct TokenIssuer {
    issuer: String,
    /// Whose tokens are taken too.
    other_issuers: Vec<String>,
    api_audiences: Vec<String>,
    signing: EncodingKey,
    header: Header,
    /// One at least.
    verifying: Vec<VerifyingKey>,
    /// Where others find the keys, if not where this server is.
    jwks_uri: Option<String>,
    max_expiration: Option<std::time::Duration>,
    pub(crate) legacy_uses: LegacyUses,
    remembered: Mutex<HashMap<[u8; 32], Arc<Verified>>>,
}

/// Says on which day a token of a secret was last used. Upstream: pkg/serviceaccount/legacy.go
pub(crate) const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
/// Secrets whose label is still to be written. Others are noted when their token is used again.
const MAX_LEGACY_USES: usize = 1000;

/// Secrets whose tokens were used on a day that they don't say.
#[derive(Default)]
pub(crate) struct LegacyUses {
    secrets: Mutex<BTreeSet<(String, String)>>,
    changed: Notify,
}

/// The day, as labels have it.
pub(crate) fn day(now: Timestamp) -> String {
    now.strftime("%Y-%m-%d").to_string()
}

impl LegacyUses {
    fn note(&self, secret: &Value, now: Timestamp) {
        if text(secret, &["metadata", "labels", LAST_USED]) == day(now) {
            return;
        }
        let mut secrets = self.secrets.lock();
        if secrets.len() < MAX_LEGACY_USES {
            let part = |name| text(secret, &["metadata", name]).to_string();
            secrets.insert((part("namespace"), part("name")));
            self.changed.notify_one();
        }
    }

    /// Namespaces and names, once there are any.
    pub(crate) async fn next(&self) -> BTreeSet<(String, String)> {
        loop {
            let secrets = std::mem::take(&mut *self.secrets.lock());
            if !secrets.is_empty() {
                return secrets;
            }
            self.changed.notified().await;
        }
    }
}

/// Claims that carry our signature, and the user they make.
pub(super) struct Verified {
    claims: Claims,
    user: Option<Arc<UserInfo>>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Claims {
    iss: String,
    sub: String,
    #[serde(deserialize_with = "one_or_many", skip_serializing_if = "Vec::is_empty")]
    aud: Vec<String>,
    #[serde(deserialize_with = "seconds", skip_serializing_if = "Option::is_none")]
    exp: Option<i64>,
    #[serde(deserialize_with = "seconds", skip_serializing_if = "Option::is_none")]
    nbf: Option<i64>,
    #[serde(deserialize_with = "seconds", skip_serializing_if = "Option::is_none")]
    iat: Option<i64>,
    #[serde(skip_serializing_if = "String::is_empty")]
    jti: String,
    #[serde(rename = "kubernetes.io", skip_serializing_if = "Option::is_none")]
    kubernetes: Option<KubernetesClaims>,
    #[serde(flatten)]
    legacy: LegacyClaims,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct KubernetesClaims {
    namespace: String,
    serviceaccount: Bound,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod: Option<Bound>,
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<Bound>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<Bound>,
    #[serde(deserialize_with = "seconds", skip_serializing_if = "Option::is_none")]
    warnafter: Option<i64>,
}

/// Claims of tokens kept in secrets, which never expire.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct LegacyClaims {
    #[serde(
        rename = "kubernetes.io/serviceaccount/namespace",
        skip_serializing_if = "String::is_empty"
    )]
    namespace: String,
    #[serde(
        rename = "kubernetes.io/serviceaccount/secret.name",
        skip_serializing_if = "String::is_empty"
    )]
    secret: String,
    #[serde(
        rename = "kubernetes.io/serviceaccount/service-account.name",
        skip_serializing_if = "String::is_empty"
    )]
    name: String,
    #[serde(
        rename = "kubernetes.io/serviceaccount/service-account.uid",
        skip_serializing_if = "String::is_empty"
    )]
    uid: String,
}

impl Claims {
    /// Of a token that a secret holds.
    pub(super) fn for_secret(account: ServiceAccountRef<'_>, secret: &str) -> Claims {
        Claims {
            iss: LEGACY_ISSUER.into(),
            sub: service_account_username(account.namespace, account.name),
            legacy: LegacyClaims {
                namespace: account.namespace.into(),
                secret: secret.into(),
                name: account.name.into(),
                uid: account.uid.into(),
            },
            ..Default::default()
        }
    }
}

fn one_or_many<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Audience {
        One(String),
        Many(Vec<String>),
    }
    Ok(match Audience::deserialize(deserializer)? {
        Audience::One(one) => vec![one],
        Audience::Many(many) => many,
    })
}

/// JSON web tokens may give fractions of seconds; nobody needs them.
fn seconds<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    Ok(Option::<f64>::deserialize(deserializer)?.map(|seconds| seconds as i64))
}

impl TokenIssuer {
    /// A private key in PEM: RSA or P-256. The API server is its own only audience.
    pub fn new(issuer: &str, private_key: &str) -> Result<TokenIssuer, KeyError> {
        let SigningKey { algorithm, key, public } = keys::signing_key(private_key)?;
        let mut header = Header::new(algorithm);
        header.typ = None;
        header.kid = Some(public.id.clone());
        Ok(TokenIssuer {
            issuer: issuer.to_string(),
            other_issuers: vec![],
            api_audiences: vec![issuer.to_string()],
            signing: key,
            header,
            verifying: vec![public],
            jwks_uri: None,
            max_expiration: None,
            legacy_uses: LegacyUses::default(),
            remembered: Mutex::default(),
        })
    }

    /// Takes tokens that the private halves of these keys signed: texts in PEM, each with a key or several. If there are
    /// none, those that this one signs.
    // Upstream: --service-account-key-file; the signing key counts only if it is among them.
    pub fn with_verifying_keys(mut self, texts: &[String]) -> Result<TokenIssuer, KeyError> {
        let mut verifying: Vec<VerifyingKey> = Vec::new();
        for text in texts {
            for key in keys::verifying_keys(text)? {
                if verifying.iter().all(|other| other.id != key.id) {
                    verifying.push(key);
                }
            }
        }
        if !verifying.is_empty() {
            self.verifying = verifying;
        }
        Ok(self)
    }

    /// Takes the tokens of these issuers too, if they are signed with a key that is known.
    pub fn with_other_issuers(mut self, issuers: Vec<String>) -> TokenIssuer {
        self.other_issuers = issuers;
        self
    }

    /// Says that the keys are to be found there.
    pub fn with_jwks_uri(mut self, uri: Option<String>) -> TokenIssuer {
        self.jwks_uri = uri;
        self
    }

    /// Tokens that are asked for last no longer.
    pub fn with_max_expiration(mut self, most: Option<std::time::Duration>) -> TokenIssuer {
        self.max_expiration = most;
        self
    }

    pub(super) fn max_expiration_seconds(&self) -> Option<i64> {
        self.max_expiration.and_then(|most| most.as_secs().try_into().ok())
    }

    /// Other audiences than the issuer itself.
    pub fn with_api_audiences(mut self, audiences: Vec<String>) -> TokenIssuer {
        self.api_audiences = audiences;
        self
    }

    /// What tokens name as their issuer.
    pub fn name(&self) -> &str {
        &self.issuer
    }

    /// What tokens for the API server itself must name as their audience.
    pub fn api_audiences(&self) -> &[String] {
        &self.api_audiences
    }

    /// A token that expires, and when it does. At least ten minutes, at most a year from now.
    pub fn issue(
        &self,
        account: ServiceAccountRef<'_>,
        audiences: &[String],
        expiration_seconds: i64,
        bound: Option<BoundObject>,
        now: Timestamp,
    ) -> Result<(String, Timestamp), IssueError> {
        self.issue_with_warning(account, audiences, expiration_seconds, None, bound, now)
            .map(|(token, exp, _)| (token, exp))
    }

    /// As `issue`; after `warn_after_seconds` use of the token counts as stale. Also returns the token's id.
    pub(super) fn issue_with_warning(
        &self,
        account: ServiceAccountRef<'_>,
        audiences: &[String],
        expiration_seconds: i64,
        warn_after_seconds: Option<i64>,
        bound: Option<BoundObject>,
        now: Timestamp,
    ) -> Result<(String, Timestamp, String), IssueError> {
        let at = now.as_second();
        let expires = at + expiration_seconds.clamp(600, YEAR_SECONDS);
        let (mut pod, mut secret, mut node) = (None, None, None);
        match bound {
            Some(BoundObject::Pod { object, node: on }) => (pod, node) = (Some(object), on),
            Some(BoundObject::Secret(object)) => secret = Some(object),
            Some(BoundObject::Node(object)) => node = Some(object),
            None => {}
        }
        let claims = Claims {
            iss: self.issuer.clone(),
            sub: service_account_username(account.namespace, account.name),
            aud: audiences.to_vec(),
            exp: Some(expires),
            nbf: Some(at),
            iat: Some(at),
            jti: uuid::Uuid::new_v4().to_string(),
            kubernetes: Some(KubernetesClaims {
                namespace: account.namespace.into(),
                serviceaccount: Bound {
                    name: account.name.into(),
                    uid: account.uid.into(),
                },
                pod,
                secret,
                node,
                warnafter: warn_after_seconds.map(|seconds| at + seconds),
            }),
            legacy: LegacyClaims::default(),
        };
        let token = self.sign(&claims)?;
        Ok((
            token,
            Timestamp::from_second(expires).unwrap_or(Timestamp::MAX),
            claims.jti,
        ))
    }

    /// A token for a secret of type `kubernetes.io/service-account-token`: good as long as the secret has it.
    pub fn issue_for_secret(&self, account: ServiceAccountRef<'_>, secret: &str) -> Result<String, IssueError> {
        self.sign(&Claims::for_secret(account, secret))
    }

    fn sign(&self, claims: &Claims) -> Result<String, IssueError> {
        jsonwebtoken::encode(&self.header, claims, &self.signing).map_err(IssueError)
    }

    /// Whether a bearer token claims to be one of ours; nothing is verified yet.
    fn is_ours(&self, token: &str) -> bool {
        let mut parts = token.split('.');
        let (Some(_), Some(payload), Some(_), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
            return false;
        };
        #[derive(Deserialize)]
        struct Issuer {
            #[serde(default)]
            iss: String,
        }
        let claims = BASE64_URL_SAFE_NO_PAD.decode(payload).ok();
        let claims = claims.and_then(|json| serde_json::from_slice::<Issuer>(&json).ok());
        claims.is_some_and(|claims| {
            [self.issuer.as_str(), LEGACY_ISSUER].contains(&claims.iss.as_str())
                || self.other_issuers.contains(&claims.iss)
        })
    }

    /// The user of a token and the audiences it is good for among those asked for; none if the token is not one of
    /// ours.
    pub(super) fn authenticate(
        &self,
        token: &str,
        audiences: &[String],
        now: Timestamp,
        lookup: &dyn ObjectLookup,
    ) -> Result<Option<Authenticated>, AuthnError> {
        let verified = match self.verify(token)? {
            Some(verified) => verified,
            None => return Ok(None),
        };
        let claims = &verified.claims;
        // Tokens without an audience are for the API server only.
        let own = if claims.aud.is_empty() {
            &self.api_audiences
        } else {
            &claims.aud
        };
        let common: Vec<String> = own.iter().filter(|a| audiences.contains(a)).cloned().collect();
        if common.is_empty() {
            let message = format!("token audiences {own:?} is invalid for the target audiences {audiences:?}");
            return Err(AuthnError::Token(message));
        }
        if claims.iss == LEGACY_ISSUER {
            let kept = claims.check_legacy(token, lookup).map_err(AuthnError::Token)?;
            self.legacy_uses.note(&kept, now);
        } else {
            claims.check_times(now).map_err(|why| AuthnError::Token(why.into()))?;
            claims.check_objects(now, lookup).map_err(AuthnError::Token)?;
        }
        let user = verified
            .user
            .clone()
            .ok_or_else(|| AuthnError::Token("token names no service account".into()))?;
        Ok(Some(Authenticated {
            user,
            audiences: common,
        }))
    }

    fn verify(&self, token: &str) -> Result<Option<Arc<Verified>>, AuthnError> {
        let digest = crate::pki::sha256(token.as_bytes());
        if let Some(verified) = self.remembered.lock().get(&digest) {
            return Ok(Some(verified.clone()));
        }
        if !self.is_ours(token) {
            return Ok(None);
        }
        let invalid = |error: jsonwebtoken::errors::Error| AuthnError::Token(error.to_string());
        let header = jsonwebtoken::decode_header(token).map_err(invalid)?;
        let candidates = self.verifying.iter().filter(|key| match &header.kid {
            Some(id) => *id == key.id,
            None => true,
        });
        let mut refused = AuthnError::Token("invalid signature, no keys found".into());
        let mut decoded = None;
        for candidate in candidates.filter(|key| key.algorithm == header.alg) {
            match jsonwebtoken::decode::<Claims>(token, &candidate.key, &candidate.validation) {
                Ok(found) => {
                    decoded = Some(found);
                    break;
                }
                Err(error) => refused = invalid(error),
            }
        }
        let Some(decoded) = decoded else {
            return Err(refused);
        };
        let user = decoded.claims.user().map(Arc::new);
        let verified = Arc::new(Verified {
            claims: decoded.claims,
            user,
        });
        let mut remembered = self.remembered.lock();
        if remembered.len() >= REMEMBERED {
            remembered.clear();
        }
        remembered.insert(digest, verified.clone());
        Ok(Some(verified))
    }

    /// `/.well-known/openid-configuration`; the address is where clients reach the API server.
    pub fn openid_configuration(&self, external_address: &str) -> Value {
        let algorithms: std::collections::BTreeSet<&str> = self
            .verifying
            .iter()
            .filter_map(|key| key.jwk["alg"].as_str())
            .collect();
        json!({
            "issuer": self.issuer,
            "jwks_uri": self.jwks_uri.clone().unwrap_or_else(|| format!("https://{external_address}/openid/v1/jwks")),
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": algorithms,
        })
    }

    /// `/openid/v1/jwks`: the public keys with which others can verify tokens.
    pub fn jwks(&self) -> Value {
        let keys: Vec<&Value> = self.verifying.iter().map(|key| &key.jwk).collect();
        json!({"keys": keys})
    }
}

impl Claims {
    fn user(&self) -> Option<UserInfo> {
        if self.iss == LEGACY_ISSUER {
            let legacy = &self.legacy;
            return Some(UserInfo::service_account(&legacy.namespace, &legacy.name, &legacy.uid));
        }
        let kubernetes = self.kubernetes.as_ref()?;
        let account = &kubernetes.serviceaccount;
        let mut user = UserInfo::service_account(&kubernetes.namespace, &account.name, &account.uid);
        let mut add = |key: &str, value: &str| {
            if !value.is_empty() {
                user.extra.insert(key.into(), vec![value.into()]);
            }
        };
        if !self.jti.is_empty() {
            add(CREDENTIAL_ID, &format!("JTI={}", self.jti));
        }
        if let Some(pod) = kubernetes
            .pod
            .as_ref()
            .filter(|pod| !pod.name.is_empty() && !pod.uid.is_empty())
        {
            add(POD_NAME, &pod.name);
            add(POD_UID, &pod.uid);
        }
        if let Some(node) = kubernetes.node.as_ref().filter(|node| !node.name.is_empty()) {
            add(NODE_NAME, &node.name);
            add(NODE_UID, &node.uid);
        }
        Some(user)
    }

    fn check_times(&self, now: Timestamp) -> Result<(), &'static str> {
        let (early, late) = (now.as_second() - LEEWAY_SECONDS, now.as_second() + LEEWAY_SECONDS);
        if self.nbf.is_some_and(|nbf| late < nbf) {
            Err("service account token is not valid yet")
        } else if self.exp.is_some_and(|exp| early > exp) {
            Err("service account token has expired")
        } else if self.iat.is_some_and(|iat| late < iat) {
            Err("service account token is issued in the future")
        } else {
            Ok(())
        }
    }

    /// The service account and what the token is bound to are still there, and still the same.
    fn check_objects(&self, now: Timestamp, lookup: &dyn ObjectLookup) -> Result<(), String> {
        let claims = self.kubernetes.as_ref().ok_or("token names no service account")?;
        let (namespace, account) = (&claims.namespace, &claims.serviceaccount);
        let object = lookup
            .get("serviceaccounts", namespace, &account.name)
            .ok_or_else(|| format!("serviceaccounts {:?} not found", account.name))?;
        let uid = text(&object, &["metadata", "uid"]);
        if uid != account.uid {
            return Err(format!(
                "service account UID ({uid}) does not match claim ({})",
                account.uid
            ));
        }
        if is_gone(&object, now) {
            return Err(format!("service account {namespace}/{} has been deleted", account.name));
        }
        if let Some(secret) = &claims.secret {
            check_bound("secret", lookup.get("secrets", namespace, &secret.name), secret, now)?;
        }
        match (&claims.pod, &claims.node) {
            (Some(pod), _) => check_bound("pod", lookup.get("pods", namespace, &pod.name), pod, now),
            (None, Some(node)) => check_bound("node", lookup.get("nodes", "", &node.name), node, now),
            (None, None) => Ok(()),
        }
    }

    /// The secret that the token is of.
    fn check_legacy(&self, token: &str, lookup: &dyn ObjectLookup) -> Result<Arc<Value>, String> {
        let LegacyClaims {
            namespace,
            secret,
            name,
            uid,
        } = &self.legacy;
        for (claim, value) in [
            ("namespace", namespace),
            ("secretName", secret),
            ("serviceAccountName", name),
            ("serviceAccountUID", uid),
        ] {
            if value.is_empty() {
                return Err(format!("{claim} claim is missing"));
            }
        }
        if split_service_account(&self.sub) != Some((namespace, name)) {
            return Err("sub claim is invalid".into());
        }
        let being_deleted = |object: &Value| object["metadata"].get("deletionTimestamp").is_some();
        let kept = lookup
            .get("secrets", namespace, secret)
            .filter(|secret| !being_deleted(secret));
        let kept = kept.ok_or("Token has been invalidated")?;
        if !same_bytes(&data_of(&kept, "token"), token.as_bytes()) {
            return Err("Token does not match server's copy".into());
        }
        let account = lookup.get("serviceaccounts", namespace, name);
        let account = account.ok_or_else(|| format!("serviceaccounts {name:?} not found"))?;
        if being_deleted(&account) {
            return Err(format!("ServiceAccount {namespace}/{name} has been deleted"));
        }
        let current = text(&account, &["metadata", "uid"]);
        if current != uid {
            return Err(format!("ServiceAccount UID ({current}) does not match claim ({uid})"));
        }
        match text(
            &kept,
            &["metadata", "labels", "kubernetes.io/legacy-token-invalid-since"],
        ) {
            "" => Ok(kept),
            _ => Err(format!(
                "the token in secret {namespace}/{secret} for service account {namespace}/{name} has been marked invalid"
            )),
        }
    }
}

fn check_bound(kind: &str, object: Option<Arc<Value>>, bound: &Bound, now: Timestamp) -> Result<(), String> {
    let object = object.ok_or("service account token has been invalidated")?;
    let uid = text(&object, &["metadata", "uid"]);
    if uid != bound.uid {
        return Err(format!(
            "{kind} UID ({uid}) does not match service account {kind} ref claim ({})",
            bound.uid
        ));
    }
    match is_gone(&object, now) {
        true => Err("service account token has been invalidated".into()),
        false => Ok(()),
    }
}

/// Whether an object should have gone by now; shortly after its time, tokens are still good for a tidy end.
fn is_gone(object: &Value, now: Timestamp) -> bool {
    let deletion: Option<Timestamp> = text(object, &["metadata", "deletionTimestamp"]).parse().ok();
    deletion.is_some_and(|at| at.as_second() < now.as_second() - LEEWAY_SECONDS)
}

#[cfg(test)]
pub(super) mod tests;
