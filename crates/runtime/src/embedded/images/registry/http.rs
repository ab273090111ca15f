//! Requests to registries and to where they redirect.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{AUTHORIZATION, HeaderMap, LOCATION, USER_AGENT};
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use parking_lot::Mutex;
use tokio::time::timeout;

use super::super::registries::Registries;
use super::proxy::{Proxies, ProxyConnector};
use super::{RegistryError, tls};

const MAX_REDIRECTS: usize = 10;
/// Error documents of registries are a few hundred bytes.
const MAX_ERROR_BYTES: u64 = 64 << 10;

type HttpClient = Client<HttpsConnector<ProxyConnector>, Full<Bytes>>;

/// How long servers are waited for, and how often.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    pub connect: Duration,
    /// From a request to the head of its response.
    pub response: Duration,
    /// Between two pieces of a body.
    pub idle: Duration,
    /// In each of these periods at least `MIN_PROGRESS` bytes must come.
    pub progress: Duration,
    /// Attempts for one document or blob, with twice this much more time between them each time.
    pub attempts: u32,
    pub back_off: Duration,
    pub max_back_off: Duration,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            connect: Duration::from_secs(15),
            response: Duration::from_secs(30),
            idle: Duration::from_secs(30),
            progress: Duration::from_secs(60),
            attempts: 5,
            back_off: Duration::from_millis(500),
            max_back_off: Duration::from_secs(20),
        }
    }
}

/// Connections to all registries.
pub(crate) struct Http {
    registries: Arc<Registries>,
    proxies: Proxies,
    pub timeouts: Timeouts,
    /// By host with settings of its own; the empty name is for all others.
    clients: Mutex<HashMap<String, HttpClient>>,
}

impl Http {
    pub(crate) fn new(registries: Arc<Registries>, proxies: Proxies, timeouts: Timeouts) -> Http {
        Http {
            registries,
            proxies,
            timeouts,
            clients: Mutex::default(),
        }
    }

    pub(crate) fn registries(&self) -> &Registries {
        &self.registries
    }

    /// The client for a host, made when it is first needed: reading the machine's certificates takes its time.
    fn client(&self, host: &str) -> Result<HttpClient, RegistryError> {
        let files = self.registries.tls(host);
        let key = if files.is_some() { host } else { "" };
        if let Some(client) = self.clients.lock().get(key) {
            return Ok(client.clone());
        }
        let config = tls::client_config(host, files)?;
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_connect_timeout(Some(self.timeouts.connect));
        connector.set_nodelay(true);
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(config)
            .https_or_http()
            .enable_http1()
            .wrap_connector(ProxyConnector {
                proxies: self.proxies.clone(),
                direct: connector,
                timeout: self.timeouts.connect,
            });
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(15))
            .pool_max_idle_per_host(4)
            .build(connector);
        self.clients.lock().insert(key.to_string(), client.clone());
        Ok(client)
    }

    /// One request and the head of its response.
    async fn send(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
        body: &Bytes,
    ) -> Result<Response<Incoming>, RegistryError> {
        let url = shown(uri);
        let host = uri.authority().map(|a| a.as_str()).unwrap_or_default();
        let client = self.client(host)?;
        let mut request = Request::new(Full::new(body.clone()));
        *request.method_mut() = method.clone();
        *request.uri_mut() = uri.clone();
        *request.headers_mut() = headers.clone();
        request.headers_mut().insert(USER_AGENT, USER_AGENT_VALUE);
        match timeout(self.timeouts.response, client.request(request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(source)) => Err(RegistryError::Request {
                method: method.clone(),
                url,
                source,
            }),
            Err(_) => Err(RegistryError::Timeout {
                method: method.clone(),
                url,
                seconds: self.timeouts.response.as_secs_f32(),
            }),
        }
    }

    /// A request and where it is redirected to. Who we are is told to the first host only.
    pub(crate) async fn follow(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<Response<Incoming>, RegistryError> {
        let mut headers = headers.clone();
        let mut at = uri.clone();
        for _ in 0..=MAX_REDIRECTS {
            let response = self.send(method, &at, &headers, &Bytes::new()).await?;
            if !is_redirect(response.status()) {
                return Ok(response);
            }
            let next = redirect_target(&at, response.headers()).map_err(|location| RegistryError::Location {
                method: method.clone(),
                url: shown(&at),
                location,
            })?;
            if next.authority() != at.authority() || next.scheme() != at.scheme() {
                headers.remove(AUTHORIZATION);
            }
            at = next;
        }
        Err(RegistryError::Redirects {
            method: method.clone(),
            url: shown(uri),
            limit: MAX_REDIRECTS,
        })
    }

    /// A form sent by POST, never redirected: it has secrets in it.
    pub(crate) async fn post_form(&self, uri: &Uri, form: String) -> Result<Response<Incoming>, RegistryError> {
        let mut headers = HeaderMap::new();
        let form_type = HeaderValue::from_static("application/x-www-form-urlencoded");
        headers.insert(http::header::CONTENT_TYPE, form_type);
        self.send(&Method::POST, uri, &headers, &Bytes::from(form)).await
    }

    /// A whole body of bounded size.
    pub(crate) async fn read_body(
        &self,
        what: &'static str,
        uri: &Uri,
        response: Response<Incoming>,
        limit: u64,
    ) -> Result<Bytes, RegistryError> {
        let url = shown(uri);
        let too_large = || RegistryError::TooLarge {
            what,
            url: shown(uri),
            limit,
        };
        let mut body = response.into_body();
        let mut bytes = BytesMut::new();
        let all = timeout(self.timeouts.progress, async {
            while let Some(frame) = timeout(self.timeouts.idle, body.frame()).await? {
                let Ok(frame) = frame else {
                    return Ok(Err(RegistryError::CutOff {
                        url: url.clone(),
                        read: bytes.len() as u64,
                        size: limit,
                    }));
                };
                if let Ok(data) = frame.into_data() {
                    if bytes.len() as u64 + data.len() as u64 > limit {
                        return Ok(Err(too_large()));
                    }
                    bytes.extend_from_slice(&data);
                }
            }
            Ok::<_, tokio::time::error::Elapsed>(Ok(()))
        });
        match all.await {
            Ok(Ok(read)) => read?,
            Ok(Err(_)) | Err(_) => {
                return Err(RegistryError::Timeout {
                    method: Method::GET,
                    url,
                    seconds: self.timeouts.idle.as_secs_f32(),
                });
            }
        }
        Ok(bytes.freeze())
    }

    /// What went wrong, with the registry's own words where it has some.
    pub(crate) async fn status_error(&self, method: &Method, uri: &Uri, response: Response<Incoming>) -> RegistryError {
        let status = response.status();
        let retry_after = response.headers().get(http::header::RETRY_AFTER);
        let retry_after = retry_after.and_then(|v| v.to_str().ok()?.parse().ok());
        let body = self.read_body("error document", uri, response, MAX_ERROR_BYTES).await;
        let detail = body.ok().and_then(|body| server_message(&body));
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => RegistryError::Denied { status, detail },
            _ => RegistryError::Status {
                method: method.clone(),
                url: shown(uri),
                status,
                detail,
                retry_after,
            },
        }
    }
}

const USER_AGENT_VALUE: HeaderValue = HeaderValue::from_static(concat!("orlop/", env!("CARGO_PKG_VERSION")));

/// A URL as logs and events may have it: queries of redirects have signatures in them.
pub(crate) fn shown(uri: &Uri) -> String {
    let text = uri.to_string();
    text.split('?').next().unwrap_or_default().to_string()
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

/// Where a redirect leads to: a whole URL or a path at the same host, never from https to http.
fn redirect_target(at: &Uri, headers: &HeaderMap) -> Result<Uri, String> {
    let location = headers.get(LOCATION).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let whole = match (
        location.starts_with('/') && !location.starts_with("//"),
        at.scheme_str(),
        at.authority(),
    ) {
        (true, Some(scheme), Some(authority)) => format!("{scheme}://{authority}{location}"),
        _ => location.to_string(),
    };
    let refused = || location.chars().take(200).collect::<String>();
    let uri: Uri = whole.parse().map_err(|_| refused())?;
    let scheme = uri.scheme_str();
    let fits = scheme == Some("https") || scheme == Some("http") && at.scheme_str() == Some("http");
    match fits && uri.authority().is_some_and(|a| !a.as_str().contains('@')) {
        true => Ok(uri),
        false => Err(refused()),
    }
}

/// `{"errors":[{"code":"DENIED","message":"…"}]}`, or the first line of a text.
fn server_message(body: &[u8]) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Errors {
        errors: Vec<RegistryMessage>,
    }
    #[derive(serde::Deserialize)]
    struct RegistryMessage {
        #[serde(default)]
        code: String,
        #[serde(default)]
        message: String,
    }
    const MAX_MESSAGE: usize = 300;
    let text = match serde_json::from_slice::<Errors>(body) {
        Ok(Errors { errors }) => {
            let texts = errors
                .iter()
                .map(|e| format!("{}: {}", e.code.to_lowercase(), e.message));
            texts.collect::<Vec<_>>().join(", ")
        }
        Err(_) => std::str::from_utf8(body).ok()?.lines().next()?.trim().to_string(),
    };
    let printable = text
        .chars()
        .filter(|c| !c.is_control())
        .take(MAX_MESSAGE)
        .collect::<String>();
    (!printable.is_empty() && !printable.starts_with('<')).then_some(printable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_lead_to_servers_only() {
        let check = |at: &str, location: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(LOCATION, HeaderValue::from_str(location).unwrap());
            redirect_target(&at.parse().unwrap(), &headers).map(|u| u.to_string())
        };
        let at = "https://r.io/v2/a/blobs/x";
        assert_eq!(check(at, "/other?x=1").unwrap(), "https://r.io/other?x=1");
        assert_eq!(check(at, "https://cdn.io/x").unwrap(), "https://cdn.io/x");
        for refused in [
            "http://cdn.io/x",
            "file:///etc/passwd",
            "",
            "//cdn.io/x",
            "https://u:p@cdn.io/",
            "::",
        ] {
            assert!(check(at, refused).is_err(), "{refused}");
        }
        assert!(check("http://r.io/", "http://cdn.io/x").is_ok());
        assert_eq!(shown(&"https://a/b?sig=secret".parse().unwrap()), "https://a/b");
    }

    #[test]
    fn words_of_servers() {
        for (body, want) in [
            (
                r#"{"errors":[{"code":"DENIED","message":"no"},{"code":"X"}]}"#,
                Some("denied: no, x: "),
            ),
            ("too many requests\nmore", Some("too many requests")),
            ("<html>", None),
            ("", None),
            ("a\x1b[31mb", Some("a[31mb")),
        ] {
            assert_eq!(server_message(body.as_bytes()).as_deref(), want);
        }
    }
}
