//! Service account tokens for pods: requested, cached, and refreshed before they expire.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use orlop_api::types::authentication::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use orlop_api::types::core::Pod;
use orlop_base::Clock;
use orlop_base::clock::Shift;
use orlop_client::{Api, path};
use parking_lot::Mutex;
use rustc_hash::FxHasher;

use super::{ObjectError, Result};

/// A token is asked for again after a day at the latest.
const AGE_MAX: Duration = Duration::from_secs(24 * 3600);
/// Tokens of pods that started together are not all asked for in the same second again.
const JITTER_MAX_MS: u64 = 10_000;
/// Tokens kept at once.
const KEPT_MAX: usize = 10_000;

pub struct Token {
    pub token: String,
    pub expires: Timestamp,
    /// How long it is to live, as the server granted it.
    life_seconds: i64,
}

impl std::fmt::Debug for Token {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "a token until {}", self.expires)
    }
}

impl Token {
    /// When to ask for the next one.
    fn renew_at(&self, jitter: Duration) -> Timestamp {
        let ahead = |seconds: i64| self.expires.later_by_seconds(seconds.saturating_neg());
        let aged = ahead(self.life_seconds).later(AGE_MAX);
        aged.min(ahead(self.life_seconds / 5)).earlier(jitter)
    }
}

/// The cache key of a token: another lifetime or audience is another token.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    pod_uid: String,
    namespace: String,
    service_account: String,
    audiences: Vec<String>,
    expiration_seconds: Option<i64>,
}

impl Key {
    fn jitter(&self) -> Duration {
        let hash = BuildHasherDefault::<FxHasher>::default().hash_one(self);
        Duration::from_millis(hash % JITTER_MAX_MS)
    }
}

pub(super) struct Request {
    key: Key,
    body: TokenRequest,
}

impl Request {
    pub(super) fn new(namespace: &str, service_account: &str, spec: &TokenRequestSpec, pod: &Pod) -> Request {
        let key = Key {
            pod_uid: pod.metadata.uid.clone().unwrap_or_default(),
            namespace: namespace.to_string(),
            service_account: service_account.to_string(),
            audiences: spec.audiences.clone().unwrap_or_default(),
            expiration_seconds: spec.expiration_seconds,
        };
        let bound = BoundObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Pod".into()),
            name: pod.metadata.name.clone(),
            uid: pod.metadata.uid.clone(),
        };
        let spec = TokenRequestSpec {
            bound_object_ref: Some(bound),
            ..spec.clone()
        };
        let body = TokenRequest {
            spec: Some(spec),
            ..TokenRequest::default()
        };
        Request { key, body }
    }
}

#[derive(Default)]
pub(super) struct Tokens {
    kept: Mutex<HashMap<Key, Arc<Token>>>,
}

impl Tokens {
    pub(super) async fn get(&self, api: &Api, request: Request, clock: &Clock) -> Result<Arc<Token>> {
        let known = self.kept.lock().get(&request.key).cloned();
        if let Some(token) = known
            .as_ref()
            .filter(|t| clock.now() < t.renew_at(request.key.jitter()))
        {
            return Ok(token.clone());
        }
        let key = &request.key;
        let path = path::subresource(
            "v1",
            Some(&key.namespace),
            "serviceaccounts",
            &key.service_account,
            "token",
        );
        let mut is_away = false;
        let answer = match api.create::<TokenRequest>(&path, &request.body).await {
            Ok(answer) => read(answer),
            Err(error) => {
                is_away = error.is_away();
                Err(error.chain())
            }
        };
        match (answer, known) {
            (Ok(token), _) => {
                let token = Arc::new(token);
                self.keep(request.key, token.clone(), clock.now());
                Ok(token)
            }
            (Err(error), Some(token)) if clock.now() < token.expires => {
                if !is_away {
                    let account = format!("{}/{}", key.namespace, key.service_account);
                    tracing::warn!(account, err = error, "failed to refresh service account token");
                }
                Ok(token)
            }
            (Err(error), Some(_)) => {
                let account = format!("{}/{}", key.namespace, key.service_account);
                Err(ObjectError::Failed(format!(
                    "token {account} expired and refresh failed: {error}"
                )))
            }
            (Err(error), None) => Err(ObjectError::Failed(format!("failed to fetch token: {error}"))),
        }
    }

    fn keep(&self, key: Key, token: Arc<Token>, now: Timestamp) {
        let mut kept = self.kept.lock();
        if kept.len() >= KEPT_MAX {
            kept.retain(|_, token| now < token.expires);
        }
        if kept.len() < KEPT_MAX {
            kept.insert(key, token);
        }
    }

    pub(super) fn forget(&self, pod_uid: &str) {
        self.kept.lock().retain(|key, _| key.pod_uid != pod_uid);
    }
}

fn read(answer: TokenRequest) -> std::result::Result<Token, String> {
    let granted = answer.spec.and_then(|spec| spec.expiration_seconds);
    let status = answer.status.unwrap_or_default();
    match (status.token, status.expiration_timestamp, granted) {
        (Some(token), Some(expires), Some(seconds)) => Ok(Token {
            token,
            expires: expires.0,
            life_seconds: seconds,
        }),
        _ => Err("the TokenRequest response lacks the token, its expiration or its lifetime".into()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Objects;
    use super::super::fake::FakeCluster;
    use super::*;

    const PATH: &str = "/api/v1/namespaces/a/serviceaccounts/default/token";

    fn answer(cluster: &FakeCluster, token: &str, clock: &Clock, seconds: i64) {
        let expires = clock.now().later_by_seconds(seconds);
        let status = json!({"token": token, "expirationTimestamp": orlop_base::clock::rfc3339(expires)});
        cluster.put(
            PATH,
            json!({"spec": {"audiences": [], "expirationSeconds": seconds}, "status": status}),
        );
    }

    async fn ask(objects: &Objects) -> String {
        let pod: Pod =
            orlop_api::types::from_value(json!({"metadata": {"name": "p", "namespace": "a", "uid": "u"}})).unwrap();
        let spec = TokenRequestSpec {
            audiences: Some(vec!["vault".into()]),
            expiration_seconds: Some(3600),
            ..TokenRequestSpec::default()
        };
        match objects.service_account_token("a", "default", &spec, &pod).await {
            Ok(token) => token.token.clone(),
            Err(error) => error.to_string(),
        }
    }

    #[tokio::test]
    async fn renewed_at_four_fifths_of_its_life_and_kept_while_the_server_is_away() {
        let cluster = FakeCluster::default();
        let clock = Clock::manual("2026-01-02T03:04:05Z".parse().unwrap());
        let objects = Objects::new(Some(cluster.api()), clock.clone());
        assert!(ask(&objects).await.starts_with("failed to fetch token: "));
        answer(&cluster, "one", &clock, 3600);
        assert_eq!(ask(&objects).await, "one");
        let (_, body) = cluster.requests().pop().unwrap();
        let expected = json!({
            "audiences": ["vault"], "expirationSeconds": 3600,
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"},
        });
        assert_eq!(body["spec"], expected);

        answer(&cluster, "two", &clock, 3600);
        clock.advance(Duration::from_secs(2860));
        assert_eq!(ask(&objects).await, "one");
        clock.advance(Duration::from_secs(21));
        cluster.set_down(true);
        assert_eq!(ask(&objects).await, "one");
        clock.advance(Duration::from_secs(720));
        let error = ask(&objects).await;
        assert!(
            error.starts_with("token a/default expired and refresh failed: "),
            "{error}"
        );
        cluster.set_down(false);
        answer(&cluster, "three", &clock, 3600);
        assert_eq!(ask(&objects).await, "three");
        answer(&cluster, "four", &clock, 3600);
        objects.pod_gone("u");
        assert_eq!(ask(&objects).await, "four");
    }

    #[test]
    fn a_day_is_the_longest() {
        let expires: Timestamp = "2027-01-01T00:00:00Z".parse().unwrap();
        let cases = [
            (600, "2026-12-31T23:58:00Z"),
            (365 * 86400, "2026-01-02T00:00:00Z"),
            // Whatever the server says, there is a time to ask again.
            (i64::MAX, "-009999-01-02T01:59:59Z"),
            (i64::MIN, "9999-12-30T22:00:00.999999999Z"),
        ];
        for (seconds, renew) in cases {
            let token = Token {
                token: String::new(),
                expires,
                life_seconds: seconds,
            };
            assert_eq!(token.renew_at(Duration::ZERO).to_string(), renew);
        }
    }
}
