//! One endpoint during one pull.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, RANGE};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Uri};
use hyper::body::Incoming;
use parking_lot::Mutex;

use super::super::digest::Digest;
use super::super::manifest::{self, Descriptor, MAX_MANIFEST_BYTES};
use super::super::reference::Target;
use super::super::registries::Endpoint;
use super::auth::{self, Challenge, Credentials, TokenResponse};
use super::http::shown;
use super::{Http, RegistryError};

/// Tokens are a few kilobytes.
const MAX_TOKEN_BYTES: u64 = 1 << 20;

const ACCEPTED: HeaderValue = HeaderValue::from_static(
    "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
     application/vnd.docker.distribution.manifest.list.v2+json, \
     application/vnd.docker.distribution.manifest.v2+json",
);

pub(crate) struct Session {
    http: Arc<Http>,
    endpoint: Endpoint,
    /// What the registry accepted from us last.
    authorization: Mutex<Option<HeaderValue>>,
}

/// What a tag leads to. The registry may have sent it along.
pub(crate) struct Resolved {
    pub digest: Digest,
    pub media_type: String,
    pub content: Option<Bytes>,
}

impl Session {
    pub(crate) fn new(http: Arc<Http>, endpoint: Endpoint) -> Session {
        let authorization = match &endpoint.credentials {
            Some(Credentials::RegistryToken(token)) => auth::bearer(token),
            _ => None,
        };
        Session {
            http,
            endpoint,
            authorization: Mutex::new(authorization),
        }
    }

    pub(crate) fn base(&self) -> &str {
        &self.endpoint.base
    }

    pub(crate) fn http(&self) -> &Http {
        &self.http
    }

    /// The digest behind a tag or digest. Asked with HEAD, which registries do not count as a pull; where that does not
    /// tell, the document itself does.
    pub(crate) async fn resolve(&self, target: &Target) -> Result<Resolved, RegistryError> {
        let name = match target {
            Target::Tag(tag) => tag.clone(),
            Target::Digest(digest) => digest.to_string(),
        };
        let uri = self.uri(&format!("manifests/{name}"))?;
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, ACCEPTED);
        match self.retried(&Method::HEAD, &uri, &headers).await {
            Ok(response) => {
                if let Some(resolved) = resolved_by_head(target, response.headers()) {
                    return Ok(resolved);
                }
            }
            // Some servers do not know HEAD, or say more to GET.
            Err(e) if e.is_not_found() => return Err(e),
            Err(RegistryError::Status { status, .. }) if !status.is_server_error() && status != 429 => {}
            Err(e) => return Err(e),
        }
        let (content, media_type) = self.document(&uri).await?;
        let digest = match target {
            Target::Tag(_) => Digest::of(&content),
            Target::Digest(digest) => {
                check_digest(digest, &content)?;
                digest.clone()
            }
        };
        Ok(Resolved {
            digest,
            media_type,
            content: Some(content),
        })
    }

    /// A manifest or index by its digest.
    pub(crate) async fn manifest(&self, digest: &Digest) -> Result<(Bytes, String), RegistryError> {
        let uri = self.uri(&format!("manifests/{digest}"))?;
        let (content, media_type) = self.document(&uri).await?;
        check_digest(digest, &content)?;
        Ok((content, media_type))
    }

    async fn document(&self, uri: &Uri) -> Result<(Bytes, String), RegistryError> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, ACCEPTED);
        let response = self.retried(&Method::GET, uri, &headers).await?;
        let media_type = response.headers().get(CONTENT_TYPE);
        let media_type = media_type.and_then(|v| v.to_str().ok()).unwrap_or_default().to_string();
        let content = self
            .http
            .read_body("manifest", uri, response, MAX_MANIFEST_BYTES)
            .await?;
        Ok((content, media_type))
    }

    /// A small blob, whole: an image's configuration.
    pub(crate) async fn small_blob(&self, descriptor: &Descriptor) -> Result<Bytes, RegistryError> {
        let limit = descriptor.size.min(manifest::MAX_CONFIG_BYTES);
        let uri = self.blob_uri(&descriptor.digest)?;
        let response = self.retried(&Method::GET, &uri, &HeaderMap::new()).await?;
        let content = self.http.read_body("image config", &uri, response, limit).await?;
        check_digest(&descriptor.digest, &content)?;
        Ok(content)
    }

    /// A blob from an offset on: status 206 says that the offset was heeded.
    pub(crate) async fn open_blob(&self, digest: &Digest, offset: u64) -> Result<Response<Incoming>, RegistryError> {
        let uri = self.blob_uri(digest)?;
        let mut headers = HeaderMap::new();
        if offset > 0 {
            let range = HeaderValue::from_str(&format!("bytes={offset}-"));
            headers.insert(RANGE, range.expect("digits make a header"));
        }
        self.request(&Method::GET, &uri, &headers).await
    }

    pub(crate) fn blob_uri(&self, digest: &Digest) -> Result<Uri, RegistryError> {
        self.uri(&format!("blobs/{digest}"))
    }

    fn uri(&self, rest: &str) -> Result<Uri, RegistryError> {
        let Endpoint {
            base, path, namespace, ..
        } = &self.endpoint;
        let query = match namespace {
            Some(namespace) => format!("?ns={}", auth::percent_encode(namespace)),
            None => String::new(),
        };
        let text = format!("{base}/{path}/{rest}{query}");
        text.parse().map_err(|_| RegistryError::Invalid {
            url: text,
            reason: "it is no URL".to_string(),
        })
    }

    /// A request that is repeated while the server says that it may work later.
    async fn retried(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<Response<Incoming>, RegistryError> {
        let mut attempt = 1;
        loop {
            match self.request(method, uri, headers).await {
                Err(e) if e.is_transient() && attempt < self.http.timeouts.attempts => {
                    self.back_off(attempt, &e).await;
                    attempt += 1;
                }
                other => return other,
            }
        }
    }

    /// Waits before the next attempt: as long as the server said, or longer each time.
    pub(crate) async fn back_off(&self, attempt: u32, error: &RegistryError) {
        let timeouts = &self.http.timeouts;
        let own = timeouts.back_off.saturating_mul(1 << attempt.saturating_sub(1).min(10));
        let wait = error.retry_after().map_or(own, Duration::from_secs);
        tracing::debug!(endpoint = %self.endpoint.base, attempt, err = %error, "retrying request to registry");
        tokio::time::sleep(wait.min(timeouts.max_back_off)).await;
    }

    /// A request that succeeds or is an error; who we are is proven when asked for.
    async fn request(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<Response<Incoming>, RegistryError> {
        let first = self.authorization.lock().clone();
        let response = self.attempt(method, uri, headers, first).await?;
        let response = match response.status() {
            StatusCode::UNAUTHORIZED => {
                let challenges = auth::challenges(response.headers());
                match self.authorize(&challenges).await? {
                    // There is nothing that could be said better.
                    None => response,
                    Some(authorization) => {
                        *self.authorization.lock() = Some(authorization.clone());
                        self.attempt(method, uri, headers, Some(authorization)).await?
                    }
                }
            }
            _ => response,
        };
        match response.status() {
            status if status.is_success() => Ok(response),
            StatusCode::NOT_FOUND => Err(RegistryError::NotFound(shown(uri))),
            _ => Err(self.http.status_error(method, uri, response).await),
        }
    }

    async fn attempt(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
        authorization: Option<HeaderValue>,
    ) -> Result<Response<Incoming>, RegistryError> {
        let mut headers = headers.clone();
        if let Some(authorization) = authorization {
            headers.insert(AUTHORIZATION, authorization);
        }
        self.http.follow(method, uri, &headers).await
    }

    /// What answers the registry's challenges; `None` if we have nothing to say.
    async fn authorize(&self, challenges: &[Challenge]) -> Result<Option<HeaderValue>, RegistryError> {
        for challenge in challenges {
            match challenge {
                Challenge::Basic => {
                    if let Some(Credentials::Basic { username, password }) = &self.endpoint.credentials {
                        return Ok(auth::basic(username, password));
                    }
                }
                Challenge::Bearer { realm, service, scope } => {
                    let default_scope = format!("repository:{}:pull", self.endpoint.path);
                    let scope = scope.as_deref().unwrap_or(&default_scope);
                    let token = self.fetch_token(realm, service.as_deref(), scope).await;
                    let token = token.map_err(|e| RegistryError::Token(Box::new(e)))?;
                    return Ok(auth::bearer(&token));
                }
            }
        }
        Ok(None)
    }

    /// A token for pulling: anonymous ones are asked for in the same way.
    async fn fetch_token(&self, realm: &str, service: Option<&str>, scope: &str) -> Result<String, RegistryError> {
        let uri = self.check_realm(realm)?;
        let encode = auth::percent_encode;
        let mut query = format!("scope={}", encode(scope));
        if let Some(service) = service {
            query = format!("service={}&{query}", encode(service));
        }
        let (method, asked, response) = match &self.endpoint.credentials {
            Some(Credentials::IdentityToken(token)) => {
                let form = format!(
                    "grant_type=refresh_token&client_id=orlop&refresh_token={}&{query}",
                    encode(token)
                );
                (Method::POST, uri.clone(), self.http.post_form(&uri, form).await?)
            }
            credentials => {
                let mut headers = HeaderMap::new();
                if let Some(Credentials::Basic { username, password }) = credentials
                    && let Some(value) = auth::basic(username, password)
                {
                    headers.insert(AUTHORIZATION, value);
                }
                let separator = if uri.query().is_some() { '&' } else { '?' };
                let asked = format!("{uri}{separator}{query}").parse::<Uri>();
                let asked = asked.map_err(|_| invalid_realm(realm))?;
                let response = self.http.follow(&Method::GET, &asked, &headers).await?;
                (Method::GET, asked, response)
            }
        };
        if !response.status().is_success() {
            // Not "denied": that is what the registry says, this is about who we are.
            let status = response.status();
            return Err(match self.http.status_error(&method, &asked, response).await {
                RegistryError::Denied { detail, .. } => RegistryError::Status {
                    method,
                    url: shown(&asked),
                    status,
                    detail,
                    retry_after: None,
                },
                other => other,
            });
        }
        let body = self.http.read_body("token", &asked, response, MAX_TOKEN_BYTES).await?;
        let token = serde_json::from_slice::<TokenResponse>(&body)
            .ok()
            .and_then(TokenResponse::into_token);
        token.ok_or_else(|| RegistryError::Invalid {
            url: shown(&asked),
            reason: "it has no token".to_string(),
        })
    }

    /// A secret that is protected on its way to the registry is not sent in the clear to another place.
    fn check_realm(&self, realm: &str) -> Result<Uri, RegistryError> {
        let uri: Uri = realm.parse().map_err(|_| invalid_realm(realm))?;
        match (uri.scheme_str(), uri.authority()) {
            (Some("https"), Some(_)) => Ok(uri),
            (Some("http"), Some(_)) if self.endpoint.base.starts_with("http://") => Ok(uri),
            (Some("http"), Some(_)) if self.endpoint.credentials.is_none() => Ok(uri),
            _ => Err(invalid_realm(realm)),
        }
    }
}

fn invalid_realm(realm: &str) -> RegistryError {
    RegistryError::Challenge(format!("token endpoint {realm:?} is not usable"))
}

pub(crate) fn check_digest(expected: &Digest, content: &[u8]) -> Result<(), RegistryError> {
    let mut hasher = expected.hasher();
    hasher.update(content);
    let actual = hasher.finish();
    match actual == *expected {
        true => Ok(()),
        false => Err(RegistryError::Digest {
            actual,
            expected: expected.clone(),
        }),
    }
}

/// The answer to HEAD, if it has all that is needed and fits what was asked for.
fn resolved_by_head(target: &Target, headers: &HeaderMap) -> Option<Resolved> {
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok());
    let told = Digest::parse(text("docker-content-digest")?).ok()?;
    let digest = match target {
        Target::Tag(_) => told,
        Target::Digest(asked) => asked.clone(),
    };
    let media_type = text(CONTENT_TYPE.as_str())?.to_string();
    let size: u64 = text(CONTENT_LENGTH.as_str())?.parse().ok()?;
    (size > 0 && size <= MAX_MANIFEST_BYTES).then_some(Resolved {
        digest,
        media_type,
        content: None,
    })
}
