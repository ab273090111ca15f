//! A client's request on its way to an extension API server, and the answer on its way back.
//!
//! Who asks is decided here and said in headers; what clients say in such headers themselves is thrown away. Upstream:
//! handler_proxy.go of kube-aggregator (v1.36).

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{HOST, HeaderName, HeaderValue, InvalidHeaderValue};
use http::{HeaderMap, Method, Request, Response};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use orlop_api::Status;
use orlop_streaming::is_upgrade;
use tokio::time::{Instant, Sleep};

use super::extension::Backend;
use super::forward::{self, hide_token, says_who_asks, strip};
use super::transport::Unreached;
use super::{AnyBody, BodyError};
use crate::aggregator::Remote;
use crate::aggregator::resolve::{self, Endpoint};
use crate::authn::UserInfo;
use crate::chain::Server;
use crate::request::RequestInfo;
use crate::respond::{self, Body};

/// Discovery of one group version must be quick: all clients wait for it.
const DISCOVERY_WAIT: Duration = Duration::from_secs(5);

/// A client's request but for its body.
pub(crate) struct Relayed<'a> {
    pub info: &'a RequestInfo,
    pub user: &'a UserInfo,
    pub method: &'a Method,
    pub headers: &'a HeaderMap,
    /// Path and query as they came.
    pub target: &'a str,
    pub peer: Option<IpAddr>,
    pub audit_id: HeaderValue,
    pub upgrade: Option<OnUpgrade>,
}

/// Why there is no answer of the extension API server's own.
#[derive(Debug, thiserror::Error)]
enum RelayError {
    #[error("service unavailable")]
    Unavailable,
    #[error("error trying to reach service: {0}")]
    Unreached(#[from] Unreached),
    #[error("error trying to reach service: context deadline exceeded")]
    SlowDiscovery,
    #[error("{0}")]
    Backend(super::extension::BackendError),
    #[error("the backend attempted to redirect this request, which is not permitted")]
    Redirect,
    #[error("a header can't be passed on: {0}")]
    Header(#[from] InvalidHeaderValue),
    #[error("the path can't be passed on")]
    Path,
}

impl RelayError {
    fn code(&self) -> u16 {
        match self {
            RelayError::Unavailable | RelayError::Unreached(_) | RelayError::SlowDiscovery => 503,
            RelayError::Backend(_) => 500,
            RelayError::Redirect => 502,
            RelayError::Header(_) | RelayError::Path => 400,
        }
    }

    /// As upstream's: plain text.
    fn response(&self) -> Response<Body> {
        let mut response = respond::plain(self.code(), "text/plain; charset=utf-8", format!("{self}\n"));
        respond::never_sniff(&mut response);
        response
    }
}

impl Server {
    /// Answers with what the extension API server answers, or with why it does not.
    pub(crate) async fn relay(
        self: &Arc<Self>,
        remote: &Remote,
        asked: Relayed<'_>,
        body: AnyBody,
    ) -> Result<Response<Body>, Status> {
        let info = asked.info;
        let limit = self.registry.config.request_timeout;
        let deadline = (!info.is_long_running() && asked.upgrade.is_none()).then(|| super::later(limit));
        let relaying = self.try_relay(remote, asked, body, deadline);
        let answer = match deadline {
            Some(deadline) => tokio::time::timeout_at(deadline, relaying).await,
            None => Ok(relaying.await),
        };
        match answer {
            Err(_) => Err(Status::timeout("request did not complete within the allotted timeout")),
            Ok(Ok(response)) => Ok(response),
            Ok(Err(Either::Refused(status))) => Err(status),
            Ok(Err(Either::Failed(error))) => {
                tracing::debug!(api_service = remote.api.name, err = %error, "failed to proxy request");
                self.metrics.terminated(info, error.code());
                Ok(error.response())
            }
        }
    }

    async fn try_relay(
        self: &Arc<Self>,
        remote: &Remote,
        mut asked: Relayed<'_>,
        body: AnyBody,
        deadline: Option<Instant>,
    ) -> Result<Response<Body>, Either> {
        let info = asked.info;
        if !remote.api.is_available() {
            return Err(RelayError::Unavailable.into());
        }
        let backend = remote.backend.as_ref().map_err(|e| RelayError::Backend(e.clone()))?;
        let endpoints = resolve::endpoints(&*self.registry, &backend.service).map_err(|_| RelayError::Unavailable)?;
        let endpoint = backend.choose(&endpoints).ok_or(RelayError::Unavailable)?;
        if let Some(client) = asked.upgrade.take().filter(|_| is_upgrade(asked.headers)) {
            let permit = self.nodes.permit()?;
            let request = request(&asked, endpoint, backend, body, true)?;
            let io = backend.dial(endpoint).await.map_err(RelayError::Unreached)?;
            let passed = forward::upgraded(io, request, client).await;
            return Ok(self.carry(info, passed.map_err(RelayError::Unreached)?, permit)?);
        }
        let is_repeatable = matches!(*asked.method, Method::GET | Method::HEAD) && body.is_end_stream();
        let first = request(&asked, endpoint, backend, body, false)?;
        let sending = async {
            match backend.send(first).await {
                Err(error) if is_repeatable && error.is_end() => {
                    let again = request(&asked, endpoint, backend, AnyBody::default(), false);
                    backend.send(again.map_err(|error| Unreached(error.to_string()))?).await
                }
                answer => answer,
            }
        };
        let response = match info.is_resource {
            true => sending.await,
            false => match tokio::time::timeout(DISCOVERY_WAIT, sending).await {
                Ok(answer) => answer,
                Err(_) => return Err(RelayError::SlowDiscovery.into()),
            },
        };
        let mut response = response.map_err(RelayError::Unreached)?;
        if response.status().is_redirection() && response.headers().contains_key(http::header::LOCATION) {
            return Err(RelayError::Redirect.into());
        }
        strip(response.headers_mut(), false);
        let guard = self.metrics.long_running(info);
        Ok(response.map(|body| match deadline {
            Some(deadline) => Body::Stream(Until::new(body, deadline).boxed_unsync(), None),
            None => Body::Stream(body.map_err(Into::into).boxed_unsync(), Some(guard)),
        }))
    }
}

enum Either {
    Refused(Status),
    Failed(RelayError),
}

impl From<Status> for Either {
    fn from(status: Status) -> Either {
        Either::Refused(status)
    }
}

impl From<RelayError> for Either {
    fn from(error: RelayError) -> Either {
        Either::Failed(error)
    }
}

/// The client's request as the extension API server gets it.
fn request(
    asked: &Relayed<'_>,
    endpoint: &Endpoint,
    backend: &Backend,
    body: AnyBody,
    upgrading: bool,
) -> Result<Request<AnyBody>, RelayError> {
    let mut request = Request::new(body);
    *request.method_mut() = asked.method.clone();
    // A connection of its own takes the path alone; the pool wants to know where to go.
    let address = match upgrading {
        true => asked.target.to_string(),
        false => format!("https://{}{}", endpoint.authority(), asked.target),
    };
    *request.uri_mut() = address.parse().map_err(|_| RelayError::Path)?;
    let headers = request.headers_mut();
    *headers = asked.headers.clone();
    strip(headers, upgrading);
    let gone: Vec<HeaderName> = headers.keys().filter(|name| says_who_asks(name)).cloned().collect();
    for name in gone {
        headers.remove(name);
    }
    hide_token(headers);
    headers.insert(HOST, HeaderValue::from_str(&backend.service.host())?);
    headers.insert("audit-id", asked.audit_id.clone());
    if let Some(peer) = asked.peer {
        let before = headers.get("x-forwarded-for").and_then(|value| value.to_str().ok());
        let chain = before.map_or_else(|| peer.to_string(), |before| format!("{before}, {peer}"));
        headers.insert("x-forwarded-for", HeaderValue::from_str(&chain)?);
    }
    say_who_asks(headers, asked.user)?;
    Ok(request)
}

/// Says in whose name we ask. Only who trusts our certificate believes it.
pub(super) fn say_who_asks(headers: &mut HeaderMap, user: &UserInfo) -> Result<(), InvalidHeaderValue> {
    let value = |text: &str| HeaderValue::from_bytes(text.as_bytes());
    headers.insert("x-remote-user", value(&user.name)?);
    if !user.uid.is_empty() {
        headers.insert("x-remote-uid", value(&user.uid)?);
    }
    for group in &user.groups {
        headers.append("x-remote-group", value(group)?);
    }
    for (key, values) in &user.extra {
        let name = HeaderName::from_bytes(format!("x-remote-extra-{}", escaped(key)).as_bytes())
            .expect("what is no part of a header name is escaped");
        for text in values {
            headers.append(name.clone(), value(text)?);
        }
    }
    Ok(())
}

/// A key as a part of a header name: what can't be in one is percent-encoded, and so is the percent sign.
fn escaped(key: &str) -> String {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&b);
    let mut out = String::with_capacity(key.len());
    for byte in key.bytes() {
        match is_plain(byte) {
            true => out.push(byte.into()),
            false => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// A body that must end in time.
struct Until {
    body: Incoming,
    deadline: Pin<Box<Sleep>>,
}

impl Until {
    fn new(body: Incoming, deadline: Instant) -> Until {
        Until {
            body,
            deadline: Box::pin(tokio::time::sleep_until(deadline)),
        }
    }
}

impl http_body::Body for Until {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        std::task::ready!(self.deadline.as_mut().poll(cx));
        Poll::Ready(Some(
            Err("the answer of the extension API server takes too long".into()),
        ))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_named_in_headers() {
        let mut user = UserInfo::new("jane", &["a", "b"]);
        user.uid = "u-1".into();
        user.extra
            .insert("example.com/scopes%".into(), vec!["x".into(), "y".into()]);
        let mut headers = HeaderMap::new();
        say_who_asks(&mut headers, &user).unwrap();
        let all = |name: &str| {
            headers
                .get_all(name)
                .iter()
                .map(|v| v.to_str().unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(all("x-remote-user"), ["jane"]);
        assert_eq!(all("x-remote-uid"), ["u-1"]);
        assert_eq!(all("x-remote-group"), ["a", "b"]);
        assert_eq!(all("x-remote-extra-example.com%2fscopes%25"), ["x", "y"]);
        assert!(say_who_asks(&mut headers, &UserInfo::new("a\nb", &[])).is_err());
        let mut headers = HeaderMap::new();
        say_who_asks(&mut headers, &UserInfo::new("j\u{e4}ne", &[])).unwrap();
        assert_eq!(headers["x-remote-user"].as_bytes(), "j\u{e4}ne".as_bytes());
    }
}
