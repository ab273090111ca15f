//! Who asks, and may they: answered by the cluster, and remembered for a few seconds.
// Upstream: staging/src/k8s.io/apiserver/pkg/server/options/{authentication,authorization}.go (v1.36)

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::time::Duration;

use jiff::Timestamp;
use orlop_client::{Api, Error, path};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use x509_parser::prelude::{FromDer, X509Certificate};

/// How long the cluster's answer holds.
const REMEMBERED: Duration = Duration::from_secs(10);
/// Answers remembered at most.
const ANSWERS_MAX: usize = 1024;
/// The API server has this long to answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// May see everything.
const MASTERS: &str = "system:masters";

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct User {
    #[serde(rename(deserialize = "username", serialize = "user"))]
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

/// Why a request is not served.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Denial {
    Unauthenticated,
    Forbidden {
        user: String,
        verb: String,
        path: String,
    },
    /// Nobody could say.
    Unknown(String),
}

pub(super) struct Access {
    authentication: Api,
    authorization: Api,
    always: Vec<String>,
    users: Remembered<String, Option<User>>,
    permissions: Remembered<(User, String, String), bool>,
}

impl Access {
    pub fn new(authentication: Api, authorization: Api, always: Vec<String>) -> Access {
        Access {
            authentication: authentication.with_timeout(TIMEOUT),
            authorization: authorization.with_timeout(TIMEOUT),
            always,
            users: Remembered::default(),
            permissions: Remembered::default(),
        }
    }

    /// `certified` is who the client's certificate names, `header` the one for authorization.
    pub async fn check(
        &self,
        certified: Option<&User>,
        header: Option<&str>,
        verb: &str,
        path: &str,
        now: Timestamp,
    ) -> Result<(), Denial> {
        let user = match (certified, bearer(header)) {
            (Some(user), _) => user.clone(),
            (None, Some(token)) => self.user_of_token(token, now).await?,
            (None, None) => anonymous(),
        };
        if self.is_always_allowed(path) || user.groups.iter().any(|g| g == MASTERS) {
            return Ok(());
        }
        if self.is_permitted(&user, verb, path, now).await? {
            return Ok(());
        }
        Err(Denial::Forbidden {
            user: user.name,
            verb: verb.to_string(),
            path: path.to_string(),
        })
    }

    fn is_always_allowed(&self, path: &str) -> bool {
        let path = path.trim_start_matches('/');
        self.always.iter().any(|allowed| {
            let allowed = allowed.trim_start_matches('/');
            match allowed.strip_suffix('*') {
                Some(prefix) => path.starts_with(prefix),
                None => path == allowed,
            }
        })
    }

    async fn user_of_token(&self, token: &str, now: Timestamp) -> Result<User, Denial> {
        if let Some(known) = self.users.get(&token.to_string(), now) {
            return known.ok_or(Denial::Unauthenticated);
        }
        let body = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token},
        });
        let at = path::collection("authentication.k8s.io/v1", None, "tokenreviews");
        let answer: Result<Value, Error> = self.authentication.create(&at, &body).await;
        let review = answer.map_err(|e| {
            tracing::warn!("a token could not be checked: {}", e.chain());
            Denial::Unauthenticated
        })?;
        let authenticated = review["status"]["authenticated"] == true;
        let user = authenticated
            .then(|| serde_json::from_value(review["status"]["user"].clone()).ok())
            .flatten();
        self.users.keep(token.to_string(), user.clone(), now);
        user.ok_or(Denial::Unauthenticated)
    }

    async fn is_permitted(&self, user: &User, verb: &str, path: &str, now: Timestamp) -> Result<bool, Denial> {
        let question = (user.clone(), verb.to_string(), path.to_string());
        if let Some(known) = self.permissions.get(&question, now) {
            return Ok(known);
        }
        let mut spec = serde_json::to_value(user).expect("names can be written as JSON");
        spec["nonResourceAttributes"] = json!({"path": path, "verb": verb});
        let body = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec});
        let at = path::collection("authorization.k8s.io/v1", None, "subjectaccessreviews");
        let answer: Result<Value, Error> = self.authorization.create(&at, &body).await;
        let review = answer.map_err(|e| Denial::Unknown(e.chain()))?;
        let allowed = review["status"]["allowed"] == true;
        self.permissions.keep(question, allowed, now);
        Ok(allowed)
    }
}

fn bearer(header: Option<&str>) -> Option<&str> {
    let (scheme, token) = header?.trim().split_once(' ')?;
    Some(token.trim()).filter(|token| scheme.eq_ignore_ascii_case("bearer") && !token.is_empty())
}

fn anonymous() -> User {
    User {
        name: "system:anonymous".to_string(),
        groups: vec!["system:unauthenticated".to_string()],
        ..User::default()
    }
}

/// The authority whose certificates clients may show, as the API server publishes it. Without it, tokens alone count.
pub(super) async fn client_authority(api: &Api) -> Option<String> {
    let name = "extension-apiserver-authentication";
    let at = path::object("v1", Some("kube-system"), "configmaps", name);
    match api.with_timeout(TIMEOUT).get::<Value>(&at).await {
        Ok(found) => found["data"]["client-ca-file"]
            .as_str()
            .filter(|pem| !pem.is_empty())
            .map(str::to_string),
        Err(e) => {
            tracing::warn!(
                "client certificates are not accepted here, tokens are: {at}: {}",
                e.chain()
            );
            None
        }
    }
}

/// The common name is the user, every organisation a group. TLS has verified the chain.
pub(super) fn user_of_certificate(der: &[u8]) -> Option<User> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let subject = certificate.subject();
    let text = |value: &x509_parser::x509::AttributeTypeAndValue<'_>| value.as_str().ok().map(str::to_string);
    let name = subject
        .iter_common_name()
        .last()
        .and_then(text)
        .filter(|name| !name.is_empty())?;
    let mut groups: Vec<String> = subject.iter_organization().filter_map(text).collect();
    groups.push("system:authenticated".to_string());
    Some(User {
        name,
        groups,
        ..User::default()
    })
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

    fn keep(&self, key: K, value: V, now: Timestamp) {
        let mut held = self.0.lock();
        if held.len() >= ANSWERS_MAX {
            held.retain(|_, (until, _)| now < *until);
        }
        if held.len() < ANSWERS_MAX {
            held.insert(key, (now.saturating_add(REMEMBERED).unwrap_or(now), value));
        }
    }
}
