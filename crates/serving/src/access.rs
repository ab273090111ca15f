//! Authentication and authorization of requests, delegated to the API server and cached for a few seconds.
// Upstream: staging/src/k8s.io/apiserver/pkg/server/options/{authentication,authorization}.go (v1.36)

use std::time::Duration;

use jiff::Timestamp;
use orlop_client::{Api, path};
use serde_json::{Value, json};

use crate::reviews::{CertificateIdentity, ReviewTtls, Reviews, User, bearer};

/// How long the API server's answers are cached.
const CACHE_TTL: Duration = Duration::from_secs(10);
/// For the request for the client CA.
const TIMEOUT: Duration = Duration::from_secs(10);
/// May see everything.
const MASTERS: &str = "system:masters";

/// Why a request is not served.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Denial {
    Unauthenticated,
    Forbidden {
        user: String,
        verb: String,
        path: String,
    },
    /// The API server could not be asked.
    Unknown(String),
}

pub(super) struct Access {
    reviews: Reviews,
    always: Vec<String>,
}

impl Access {
    pub(crate) fn new(authentication: Api, authorization: Api, always: Vec<String>) -> Access {
        Access {
            reviews: Reviews::new(authentication, authorization, ReviewTtls::all(CACHE_TTL)),
            always,
        }
    }

    /// `certified` is what the client's certificate says, `header` the one for authorization. A token counts where the
    /// certificate is no good.
    pub(crate) async fn check(
        &self,
        certified: &CertificateIdentity,
        header: Option<&str>,
        verb: &str,
        path: &str,
        now: Timestamp,
    ) -> Result<(), Denial> {
        let user = match (certified.user(now), bearer(header)) {
            (Ok(Some(user)), _) => user.clone(),
            (_, Some(token)) => {
                let known = self.reviews.user_of_token(token, now).await;
                known.ok_or(Denial::Unauthenticated)?
            }
            (Err(_), None) => return Err(Denial::Unauthenticated),
            (Ok(None), None) => User::anonymous(),
        };
        if self.is_always_allowed(path) || user.groups.iter().any(|g| g == MASTERS) {
            return Ok(());
        }
        let attributes = json!({"path": path, "verb": verb});
        let asked = self
            .reviews
            .is_permitted(&user, "nonResourceAttributes", attributes, now);
        if asked.await.map_err(|e| Denial::Unknown(e.chain()))? {
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
}

/// The client CA, as the API server publishes it. Without it, only tokens are accepted.
pub(super) async fn client_authority(api: &Api) -> Option<String> {
    let name = "extension-apiserver-authentication";
    let at = path::object("v1", Some("kube-system"), "configmaps", name);
    match api.with_timeout(TIMEOUT).get::<Value>(&at).await {
        Ok(found) => found["data"]["client-ca-file"]
            .as_str()
            .filter(|pem| !pem.is_empty())
            .map(str::to_string),
        Err(e) => {
            let err = e.chain();
            match e.is_away() {
                // The client has logged it.
                true => tracing::debug!(err, "failed to get the client CA; client certificates are not accepted"),
                false => tracing::warn!(err, "failed to get the client CA; client certificates are not accepted"),
            }
            None
        }
    }
}
