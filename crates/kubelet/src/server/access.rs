//! Authentication and authorization of requests: client certificates and tokens, TokenReview and SubjectAccessReview.
// Upstream: pkg/kubelet/server/auth.go, cmd/kubelet/app/auth.go (v1.36)

use std::time::Duration;

use jiff::Timestamp;
use orlop_client::Api;
use orlop_serving::reviews::{CertificateIdentity as Certified, ReviewTtls, Reviews, User, bearer};
use serde_json::json;

use crate::config::{AuthorizationMode, Config};

/// A token that was refused is refused again for this long.
const REFUSED_TOKEN: Duration = Duration::from_secs(10);

/// Why a request is not served.
#[derive(Debug, PartialEq, Eq)]
pub enum Denial {
    Unauthenticated,
    Forbidden {
        user: String,
        verb: &'static str,
        subresource: &'static str,
    },
    /// Nobody could say.
    Unknown(String),
}

pub struct Access {
    /// None: nobody to ask.
    reviews: Option<Reviews>,
    node: String,
    anonymous: bool,
    tokens: bool,
    mode: AuthorizationMode,
}

impl Access {
    pub fn new(api: Option<Api>, node: &str, config: &Config) -> Access {
        let lasting = ReviewTtls {
            known_token: config.authentication.webhook.cache_ttl,
            refused_token: REFUSED_TOKEN,
            allowed: config.authorization.webhook.cache_authorized_ttl,
            denied: config.authorization.webhook.cache_unauthorized_ttl,
        };
        Access {
            reviews: api.map(|api| Reviews::new(api.clone(), api, lasting)),
            node: node.to_string(),
            anonymous: config.authentication.anonymous.enabled,
            tokens: config.authentication.webhook.enabled,
            mode: config.authorization.mode,
        }
    }

    /// `certified` is what the client's certificate says, `header` the one for authorization. A token counts where the
    /// certificate is no good.
    pub async fn check(
        &self,
        certified: &Certified,
        header: Option<&str>,
        method: &http::Method,
        path: &str,
        now: Timestamp,
    ) -> Result<User, Denial> {
        let user = match (certified.user(now), bearer(header)) {
            (Ok(Some(user)), _) => user.clone(),
            (_, Some(token)) if self.tokens => self.user_of_token(token, now).await?,
            (Ok(None), None) if self.anonymous => User::anonymous(),
            _ => return Err(Denial::Unauthenticated),
        };
        if self.mode == AuthorizationMode::AlwaysAllow {
            return Ok(user);
        }
        let verb = verb(method);
        let wanted = subresources(path);
        for subresource in wanted {
            if self.is_permitted(&user, verb, subresource, now).await? {
                return Ok(user);
            }
        }
        Err(Denial::Forbidden {
            user: user.name,
            verb,
            subresource: wanted.last().copied().unwrap_or("proxy"),
        })
    }

    async fn user_of_token(&self, token: &str, now: Timestamp) -> Result<User, Denial> {
        let user = match &self.reviews {
            Some(reviews) => reviews.user_of_token(token, now).await,
            None => None,
        };
        user.ok_or(Denial::Unauthenticated)
    }

    async fn is_permitted(
        &self,
        user: &User,
        verb: &'static str,
        subresource: &'static str,
        now: Timestamp,
    ) -> Result<bool, Denial> {
        // Alone, there is nobody who could allow it.
        let Some(reviews) = &self.reviews else { return Ok(false) };
        let attributes = json!({
            "verb": verb, "version": "v1", "resource": "nodes", "subresource": subresource, "name": self.node,
        });
        let asked = reviews.is_permitted(user, "resourceAttributes", attributes, now);
        asked.await.map_err(|e| Denial::Unknown(e.chain()))
    }
}

fn verb(method: &http::Method) -> &'static str {
    match *method {
        http::Method::POST => "create",
        http::Method::PUT => "update",
        http::Method::PATCH => "patch",
        http::Method::DELETE => "delete",
        _ => "get",
    }
}

/// Of the node: being allowed one of them is enough.
fn subresources(path: &str) -> &'static [&'static str] {
    let first = path.trim_start_matches('/').split('/').next().unwrap_or_default();
    match first {
        "pods" | "runningpods" => &["pods", "proxy"],
        "healthz" => &["healthz", "proxy"],
        "configz" => &["configz", "proxy"],
        "stats" => &["stats"],
        "metrics" => &["metrics"],
        "logs" => &["log"],
        "checkpoint" => &["checkpoint"],
        _ => &["proxy"],
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;

    use bytes::Bytes;
    use http::{Method, Request, Response};
    use http_body_util::{BodyExt, Full};
    use parking_lot::Mutex;
    use serde_json::Value;

    use super::*;
    use crate::config::parse;

    /// Knows token `good` as alice, and lets alice see statistics.
    fn api(asked: Arc<Mutex<Vec<String>>>) -> Api {
        let service = tower::service_fn(move |request: Request<Full<Bytes>>| {
            let asked = asked.clone();
            async move {
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let body: Value = serde_json::from_slice(&body).unwrap();
                let spec = &body["spec"];
                asked.lock().push(spec.to_string());
                let status = match body["kind"].as_str().unwrap() {
                    "TokenReview" if spec["token"] == "good" => {
                        json!({"authenticated": true, "user": {"username": "alice", "groups": ["g"]}})
                    }
                    "TokenReview" => json!({"authenticated": false}),
                    _ => {
                        let attributes = &spec["resourceAttributes"];
                        json!({"allowed": spec["user"] == "alice" && attributes["subresource"] == "stats"})
                    }
                };
                let answer = json!({"status": status}).to_string();
                Ok::<_, Infallible>(
                    Response::builder()
                        .status(201)
                        .body(Full::new(Bytes::from(answer)))
                        .unwrap(),
                )
            }
        });
        Api::in_process(service, "test")
    }

    #[tokio::test]
    async fn who_may_see_what() {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let access = Access::new(Some(api(asked.clone())), "n1", &Config::default());
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let now = at("2026-01-01T00:00:00Z");
        let check = |header: Option<&'static str>, path: &'static str, now| {
            let access = &access;
            async move { access.check(&Certified::Nobody, header, &Method::GET, path, now).await }
        };
        assert_eq!(check(None, "/stats/summary", now).await, Err(Denial::Unauthenticated));
        assert_eq!(check(Some("Basic x"), "/pods", now).await, Err(Denial::Unauthenticated));
        assert_eq!(
            check(Some("Bearer bad"), "/stats/summary", now).await,
            Err(Denial::Unauthenticated)
        );
        assert_eq!(
            check(Some("Bearer good"), "/stats/summary", now).await.unwrap().name,
            "alice"
        );
        let no = check(Some("Bearer good"), "/exec/a/b/c", now).await;
        let forbidden = Denial::Forbidden {
            user: "alice".into(),
            verb: "get",
            subresource: "proxy",
        };
        assert_eq!(no, Err(forbidden));
        let first = asked.lock().len();
        // Remembered, for as long as is configured.
        check(Some("Bearer good"), "/stats/summary", now).await.unwrap();
        check(Some("Bearer good"), "/exec/a/b/c", now).await.unwrap_err();
        assert_eq!(asked.lock().len(), first);
        check(Some("Bearer good"), "/exec/a/b/c", at("2026-01-01T00:00:31Z"))
            .await
            .unwrap_err();
        assert_eq!(asked.lock().len(), first + 1);
        let last = asked.lock().last().unwrap().clone();
        assert!(
            last.contains(r#""name":"n1""#) && last.contains(r#""subresource":"proxy""#),
            "{last}"
        );
        // A certificate needs no token.
        let user = alice();
        assert!(access.check(&user, None, &Method::GET, "/stats", now).await.is_ok());
        // A bad one is worth nothing, and no obstacle to a token.
        let invalid = Certified::Invalid;
        let denied = access.check(&invalid, None, &Method::GET, "/stats", now).await;
        assert_eq!(denied, Err(Denial::Unauthenticated));
        let header = Some("Bearer good");
        let by_token = access.check(&invalid, header, &Method::GET, "/stats", now).await;
        assert_eq!(by_token.unwrap().name, "alice");
    }

    fn alice() -> Certified {
        let user = User {
            name: "alice".into(),
            ..User::default()
        };
        Certified::User {
            user,
            valid: 0..=i64::MAX,
        }
    }

    #[tokio::test]
    async fn alone_and_lenient() {
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let user = alice();
        let alone = Access::new(None, "n1", &Config::default());
        let denied = alone.check(&user, None, &Method::GET, "/pods", now).await;
        assert!(matches!(denied, Err(Denial::Forbidden { .. })));
        let flags = [
            ("authorization.mode", json!("AlwaysAllow")),
            ("authentication.anonymous.enabled", json!(true)),
        ];
        let lenient = Access::new(None, "n1", &parse(None, &flags).unwrap());
        let user = lenient
            .check(&Certified::Nobody, None, &Method::POST, "/run/a/b/c", now)
            .await;
        assert_eq!(user.unwrap().name, "system:anonymous");
        let forged = lenient
            .check(&Certified::Invalid, None, &Method::GET, "/pods", now)
            .await;
        assert_eq!(forged, Err(Denial::Unauthenticated));
    }

    #[test]
    fn what_paths_are() {
        let cases = [
            ("/pods", "pods proxy"),
            ("/runningpods/", "pods proxy"),
            ("/healthz/ping", "healthz proxy"),
            ("/metrics/cadvisor", "metrics"),
            ("/logs/", "log"),
            ("/logsx", "proxy"),
            ("/containerLogs/a/b/c", "proxy"),
            ("/", "proxy"),
        ];
        for (path, expected) in cases {
            assert_eq!(subresources(path).join(" "), expected, "{path}");
        }
        assert_eq!((verb(&Method::HEAD), verb(&Method::POST)), ("get", "create"));
    }
}
