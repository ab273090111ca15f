//! Delegated authentication and authorization: TokenReview and SubjectAccessReview, answers cached for a while.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::ops::RangeInclusive;
use std::time::Duration;

use jiff::Timestamp;
use orlop_client::{Api, Error, path};
use orlop_x509::{ClientAuthority, ClientCertificate};
use parking_lot::Mutex;
use rustls_pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Entries of each cache.
const CACHE_MAX: usize = 4096;
/// The API server has this long to answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A user as the API server knows it: `status.user` of a TokenReview, and the spec of a SubjectAccessReview.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(default)]
pub struct User {
    #[serde(rename(deserialize = "username", serialize = "user"))]
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// Whoever shows no credentials.
    pub fn anonymous() -> User {
        User {
            name: "system:anonymous".to_string(),
            groups: vec!["system:unauthenticated".to_string()],
            ..User::default()
        }
    }

    /// The common name is the user, every organisation a group. None if there is no common name: that is nobody.
    fn of_certificate(certificate: &ClientCertificate) -> Option<User> {
        let subject = &certificate.subject;
        let name = Some(subject.common_name()).filter(|name| !name.is_empty())?.to_string();
        let mut groups: Vec<String> = subject.organizations().map(str::to_string).collect();
        groups.push("system:authenticated".to_string());
        Some(User {
            name,
            uid: subject.user_uid().unwrap_or_default().to_string(),
            groups,
            ..User::default()
        })
    }
}

/// Whom a connection's client certificate identifies. Made once a connection.
#[derive(Clone, Debug, Default)]
pub enum CertificateIdentity {
    /// No certificate was shown, or it names nobody.
    #[default]
    Nobody,
    /// One that is good for nothing: whoever shows it and nothing better is not served.
    Invalid,
    User {
        user: User,
        /// In seconds since the epoch.
        valid: RangeInclusive<i64>,
    },
}

impl CertificateIdentity {
    /// From what the client showed, the leaf first.
    pub fn new(
        clients: Option<&ClientAuthority>,
        chain: Option<&[CertificateDer<'_>]>,
        now: Timestamp,
    ) -> CertificateIdentity {
        let (Some(clients), Some(chain)) = (clients, chain) else {
            return CertificateIdentity::Nobody;
        };
        match clients.verify(chain, now) {
            Err(why) => {
                tracing::debug!(err = %why, "failed to verify client certificate");
                CertificateIdentity::Invalid
            }
            Ok(certificate) => match User::of_certificate(&certificate) {
                Some(user) => CertificateIdentity::User {
                    user,
                    valid: certificate.valid,
                },
                None => CertificateIdentity::Nobody,
            },
        }
    }

    /// Who it is: nobody without a certificate, an error with one that is not, or no longer, good.
    pub fn user(&self, now: Timestamp) -> Result<Option<&User>, InvalidCertificate> {
        match self {
            CertificateIdentity::Nobody => Ok(None),
            CertificateIdentity::User { user, valid } if valid.contains(&now.as_second()) => Ok(Some(user)),
            CertificateIdentity::User { .. } | CertificateIdentity::Invalid => Err(InvalidCertificate),
        }
    }
}

/// A certificate was shown that is not good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidCertificate;

/// How long answers are cached.
#[derive(Clone, Copy, Debug)]
pub struct ReviewTtls {
    pub known_token: Duration,
    pub refused_token: Duration,
    pub allowed: Duration,
    pub denied: Duration,
}

impl ReviewTtls {
    /// The same for all answers.
    pub const fn all(duration: Duration) -> ReviewTtls {
        ReviewTtls {
            known_token: duration,
            refused_token: duration,
            allowed: duration,
            denied: duration,
        }
    }
}

/// Asks the API server, with one client for tokens and one for permissions.
pub struct Reviews {
    authentication: Api,
    authorization: Api,
    ttls: ReviewTtls,
    users: TtlCache<String, Option<User>>,
    permissions: TtlCache<(User, String), bool>,
}

impl Reviews {
    /// Requests time out after ten seconds whatever the clients' own limit.
    pub fn new(authentication: Api, authorization: Api, ttls: ReviewTtls) -> Reviews {
        Reviews {
            authentication: authentication.with_timeout(TIMEOUT),
            authorization: authorization.with_timeout(TIMEOUT),
            ttls,
            users: TtlCache::default(),
            permissions: TtlCache::default(),
        }
    }

    /// The user of a bearer token; none if it is not valid or the API server could not be asked.
    pub async fn user_of_token(&self, token: &str, now: Timestamp) -> Option<User> {
        if let Some(known) = self.users.get(&token.to_string(), now) {
            return known;
        }
        let body = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token},
        });
        let at = path::collection("authentication.k8s.io/v1", None, "tokenreviews");
        let answer: Result<Value, Error> = self.authentication.create(&at, &body).await;
        let review = answer
            .inspect_err(|e| {
                if !e.is_away() {
                    tracing::warn!(err = e.chain(), "failed to review token");
                }
            })
            .ok()?;
        let authenticated = review["status"]["authenticated"] == true;
        let user: Option<User> = authenticated
            .then(|| serde_json::from_value(review["status"]["user"].clone()).ok())
            .flatten();
        let ttl = match user {
            Some(_) => self.ttls.known_token,
            None => self.ttls.refused_token,
        };
        self.users.keep(token.to_string(), user.clone(), now, ttl);
        user
    }

    /// Asks whether the user may, with `attributes` as the part of a SubjectAccessReview with this name. An error means
    /// that the API server could not be asked; it is not cached.
    pub async fn is_permitted(
        &self,
        user: &User,
        part: &str,
        attributes: Value,
        now: Timestamp,
    ) -> Result<bool, Error> {
        let question = (user.clone(), attributes.to_string());
        if let Some(known) = self.permissions.get(&question, now) {
            return Ok(known);
        }
        let mut spec = serde_json::to_value(user).expect("names can be written as JSON");
        spec[part] = attributes;
        let body = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec});
        let at = path::collection("authorization.k8s.io/v1", None, "subjectaccessreviews");
        let answer: Result<Value, Error> = self.authorization.create(&at, &body).await;
        let review = answer?;
        let allowed = review["status"]["allowed"] == true;
        let ttl = if allowed { self.ttls.allowed } else { self.ttls.denied };
        self.permissions.keep(question, allowed, now, ttl);
        Ok(allowed)
    }
}

/// The token of an `Authorization: Bearer` header.
pub fn bearer(header: Option<&str>) -> Option<&str> {
    let (scheme, token) = header?.trim().split_once(' ')?;
    Some(token.trim()).filter(|token| scheme.eq_ignore_ascii_case("bearer") && !token.is_empty())
}

/// Values that hold for a while. Full of valid ones, it takes no more.
struct TtlCache<K, V>(Mutex<HashMap<K, (Timestamp, V)>>);

impl<K, V> Default for TtlCache<K, V> {
    fn default() -> Self {
        TtlCache(Mutex::default())
    }
}

impl<K: Eq + Hash, V: Clone> TtlCache<K, V> {
    fn get(&self, key: &K, now: Timestamp) -> Option<V> {
        let held = self.0.lock();
        held.get(key)
            .filter(|(until, _)| now < *until)
            .map(|(_, value)| value.clone())
    }

    fn keep(&self, key: K, value: V, now: Timestamp, ttl: Duration) {
        let mut held = self.0.lock();
        if held.len() >= CACHE_MAX {
            held.retain(|_, (until, _)| now < *until);
        }
        if held.len() < CACHE_MAX {
            held.insert(key, (now.saturating_add(ttl).unwrap_or(now), value));
        }
    }
}
