//! What the cluster says of those who ask: who a token belongs to, and what they may. Its answers are remembered for a while.

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

/// Answers of each kind remembered at most.
const ANSWERS_MAX: usize = 4096;
/// The API server has this long to answer.
const TIMEOUT: Duration = Duration::from_secs(10);

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
    /// Who doesn't say who they are.
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

/// What a connection's client certificate says. Made once a connection.
#[derive(Clone, Debug, Default)]
pub enum Certified {
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

impl Certified {
    /// From what the client showed, the leaf first.
    pub fn new(clients: Option<&ClientAuthority>, chain: Option<&[CertificateDer<'_>]>, now: Timestamp) -> Certified {
        let (Some(clients), Some(chain)) = (clients, chain) else {
            return Certified::Nobody;
        };
        match clients.verify(chain, now) {
            Err(why) => {
                tracing::debug!(err = %why, "failed to verify client certificate");
                Certified::Invalid
            }
            Ok(certificate) => match User::of_certificate(&certificate) {
                Some(user) => Certified::User {
                    user,
                    valid: certificate.valid,
                },
                None => Certified::Nobody,
            },
        }
    }

    /// Who it is: nobody without a certificate, an error with one that is not, or no longer, good.
    pub fn user(&self, now: Timestamp) -> Result<Option<&User>, InvalidCertificate> {
        match self {
            Certified::Nobody => Ok(None),
            Certified::User { user, valid } if valid.contains(&now.as_second()) => Ok(Some(user)),
            Certified::User { .. } | Certified::Invalid => Err(InvalidCertificate),
        }
    }
}

/// A certificate was shown that is not good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidCertificate;

/// How long answers hold.
#[derive(Clone, Copy, Debug)]
pub struct Lasting {
    pub known_token: Duration,
    pub refused_token: Duration,
    pub allowed: Duration,
    pub denied: Duration,
}

impl Lasting {
    pub const fn all(duration: Duration) -> Lasting {
        Lasting {
            known_token: duration,
            refused_token: duration,
            allowed: duration,
            denied: duration,
        }
    }
}

/// Asks the cluster, through one API for tokens and one for permissions.
pub struct Reviews {
    authentication: Api,
    authorization: Api,
    lasting: Lasting,
    users: Remembered<String, Option<User>>,
    permissions: Remembered<(User, String), bool>,
}

impl Reviews {
    pub fn new(authentication: Api, authorization: Api, lasting: Lasting) -> Reviews {
        Reviews {
            authentication: authentication.with_timeout(TIMEOUT),
            authorization: authorization.with_timeout(TIMEOUT),
            lasting,
            users: Remembered::default(),
            permissions: Remembered::default(),
        }
    }

    /// None: nobody's, or nobody could say.
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
            Some(_) => self.lasting.known_token,
            None => self.lasting.refused_token,
        };
        self.users.keep(token.to_string(), user.clone(), now, ttl);
        user
    }

    /// `attributes` are the part of a SubjectAccessReview with this name. An error says why nobody could say.
    pub async fn is_permitted(
        &self,
        user: &User,
        part: &str,
        attributes: Value,
        now: Timestamp,
    ) -> Result<bool, String> {
        let question = (user.clone(), attributes.to_string());
        if let Some(known) = self.permissions.get(&question, now) {
            return Ok(known);
        }
        let mut spec = serde_json::to_value(user).expect("names can be written as JSON");
        spec[part] = attributes;
        let body = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec});
        let at = path::collection("authorization.k8s.io/v1", None, "subjectaccessreviews");
        let answer: Result<Value, Error> = self.authorization.create(&at, &body).await;
        let review = answer.map_err(|e| e.chain())?;
        let allowed = review["status"]["allowed"] == true;
        let ttl = if allowed {
            self.lasting.allowed
        } else {
            self.lasting.denied
        };
        self.permissions.keep(question, allowed, now, ttl);
        Ok(allowed)
    }
}

/// The token of a header for authorization.
pub fn bearer(header: Option<&str>) -> Option<&str> {
    let (scheme, token) = header?.trim().split_once(' ')?;
    Some(token.trim()).filter(|token| scheme.eq_ignore_ascii_case("bearer") && !token.is_empty())
}

/// Answers that hold for a while.
struct Remembered<K, V>(Mutex<HashMap<K, (Timestamp, V)>>);

impl<K, V> Default for Remembered<K, V> {
    fn default() -> Self {
        Remembered(Mutex::default())
    }
}

impl<K: Eq + Hash, V: Clone> Remembered<K, V> {
    fn get(&self, key: &K, now: Timestamp) -> Option<V> {
        let held = self.0.lock();
        held.get(key)
            .filter(|(until, _)| now < *until)
            .map(|(_, value)| value.clone())
    }

    fn keep(&self, key: K, value: V, now: Timestamp, ttl: Duration) {
        let mut held = self.0.lock();
        if held.len() >= ANSWERS_MAX {
            held.retain(|_, (until, _)| now < *until);
        }
        if held.len() < ANSWERS_MAX {
            held.insert(key, (now.saturating_add(ttl).unwrap_or(now), value));
        }
    }
}
