//! Each controller as a service account of its own, on a cluster elsewhere: tokens asked for with the manager's rights, and
//! anew before they run out.
// Upstream: staging/src/k8s.io/controller-manager/pkg/clientbuilder (v1.36)

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::header::AUTHORIZATION;
use http::{HeaderValue, Request, Response};
use http_body_util::Full;
use jiff::Timestamp;
use orlop_base::Clock;
use orlop_base::clock::Shift;
use orlop_client::{Api, Client, Error, ResponseBody, path};
use serde_json::{Value, json};
use tokio::sync::Mutex;

const NAMESPACE: &str = "kube-system";
/// How long tokens are asked for; the server may give less.
const SECONDS: i64 = 3600;

/// Makes an `Api` for any service account in `kube-system`.
#[derive(Clone)]
pub(crate) struct Accounts {
    /// May make service accounts, and tokens for them.
    manager: Api,
    /// To the same cluster, without credentials.
    client: Client,
}

impl Accounts {
    pub(crate) fn new(manager: Api, client: Client) -> Accounts {
        Accounts { manager, client }
    }

    pub(crate) fn api(&self, account: &str) -> Api {
        let tokens = Tokens {
            manager: self.manager.clone(),
            account: account.to_string(),
            current: Mutex::new(None),
        };
        let client = self.client.clone();
        Api::in_process(
            WithToken {
                client,
                tokens: Arc::new(tokens),
            },
            "kube-controller-manager",
        )
    }
}

struct Tokens {
    manager: Api,
    account: String,
    /// And from when on to ask for another.
    current: Mutex<Option<(HeaderValue, Timestamp)>>,
}

impl Tokens {
    async fn header(&self) -> Result<HeaderValue, Error> {
        let mut current = self.current.lock().await;
        let now = Clock::System.now();
        if let Some((header, until)) = &*current
            && now < *until
        {
            return Ok(header.clone());
        }
        let token = match self.request().await {
            Err(Error::NotFound(_)) => {
                self.create_account().await?;
                self.request().await?
            }
            answer => answer?,
        };
        let text = token["status"]["token"].as_str().unwrap_or_default();
        let mut header = HeaderValue::try_from(format!("Bearer {text}")).unwrap_or(HeaderValue::from_static(""));
        header.set_sensitive(true);
        let expires = token["status"]["expirationTimestamp"]
            .as_str()
            .and_then(|t| t.parse::<Timestamp>().ok());
        let lasts = expires.map_or(SECONDS, |at| at.duration_since(now).as_secs());
        // Four fifths of its time, so that one that is refused now and then is still good.
        let until = now.later_by_seconds(lasts.saturating_mul(4) / 5);
        *current = Some((header.clone(), until));
        Ok(header)
    }

    async fn request(&self) -> Result<Value, Error> {
        let at = path::subresource("v1", Some(NAMESPACE), "serviceaccounts", &self.account, "token");
        let body = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": SECONDS},
        });
        self.manager.create(&at, &body).await
    }

    async fn create_account(&self) -> Result<(), Error> {
        let at = path::collection("v1", Some(NAMESPACE), "serviceaccounts");
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": self.account}});
        match self.manager.create::<Value>(&at, &account).await {
            Ok(_) | Err(Error::AlreadyExists(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

#[derive(Clone)]
struct WithToken {
    client: Client,
    tokens: Arc<Tokens>,
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl tower::Service<Request<Full<Bytes>>> for WithToken {
    type Response = Response<ResponseBody>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Full<Bytes>>) -> Self::Future {
        let WithToken { client, tokens } = self.clone();
        Box::pin(async move {
            request.headers_mut().insert(AUTHORIZATION, tokens.header().await?);
            Ok(client.send(request).await?)
        })
    }
}
