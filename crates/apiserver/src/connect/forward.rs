//! Carrying requests and answers between a client and a backend.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderName, HeaderValue, LOCATION,
    SEC_WEBSOCKET_PROTOCOL, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, BodyStream, Empty, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use orlop_api::Status;
use orlop_streaming::Pipe;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};

use super::target::ConnectTarget;
use super::transport::Unreached;
use super::{AnyBody, Asked, BodyError, links};
use crate::metrics::InFlight;
use crate::request::RequestInfo;
use crate::respond::{self, Body};

pub(super) type Run = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Once one side has ended, how long the other may take: all protocols that are passed through end together.
const LINGER: Duration = Duration::from_secs(10);
const COPY_BYTES: usize = 32 << 10;
/// Of an error's text.
const ERROR_BYTES_MAX: usize = 50_000;
/// What is about one connection, not about the request.
const HOP_BY_HOP: [&str; 6] = [
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
];
/// A WebSocket client that can't set headers names its token among the protocols.
const TOKEN_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

/// Sends a request over a connection of its own.
pub(super) async fn send(io: Box<dyn Pipe>, request: Request<AnyBody>) -> Result<Response<Incoming>, Unreached> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(io)).await?;
    tokio::spawn(connection.with_upgrades());
    Ok(sender.send_request(request).await?)
}

/// Asks for what a place names.
pub(super) async fn get(io: Box<dyn Pipe>, place: &ConnectTarget) -> Result<Response<Incoming>, Unreached> {
    let body = Empty::new().map_err(|never| match never {}).boxed_unsync();
    let request = Request::get(&place.target).header(HOST, place.authority()).body(body);
    send(io, request.map_err(|error| Unreached(error.to_string()))?).await
}

/// The client's request as the backend gets it: without what was meant for us alone.
pub(super) fn request(
    asked: &Asked<'_>,
    place: &ConnectTarget,
    body: AnyBody,
    upgrading: bool,
) -> Result<Request<AnyBody>, Status> {
    let mut request = Request::new(body);
    *request.method_mut() = asked.method.clone();
    *request.uri_mut() = place
        .target
        .parse()
        .map_err(|_| Status::bad_request("the path is not valid"))?;
    let headers = request.headers_mut();
    *headers = asked.headers.clone();
    strip(headers, upgrading);
    let gone: Vec<HeaderName> = headers.keys().filter(|name| says_who_asks(name)).cloned().collect();
    for name in gone {
        headers.remove(name);
    }
    hide_token(headers);
    let value = |text: &str| HeaderValue::from_str(text).map_err(|_| Status::bad_request("the path is not valid"));
    headers.insert(HOST, value(&place.authority())?);
    if let Some(peer) = asked.peer {
        let before = headers.get("x-forwarded-for").and_then(|value| value.to_str().ok());
        let chain = before.map_or_else(|| peer.to_string(), |before| format!("{before}, {peer}"));
        headers.insert("x-forwarded-for", value(&chain)?);
    }
    if asked.info.subresource == "proxy" {
        let path = asked.target.split('?').next().unwrap_or_default();
        headers.insert("x-forwarded-uri", value(path)?);
        headers.insert("x-forwarded-proto", HeaderValue::from_static("https"));
        if let Some(host) = asked.headers.get(HOST) {
            headers.insert("x-forwarded-host", host.clone());
        }
    }
    Ok(request)
}

/// Whether a header tells us, and nobody else, who a client is or wants to be: credentials, impersonation, and what front
/// proxies say in the name of their users, which a backend behind us must not believe a client. Some servers take an
/// underscore for a dash.
pub(super) fn says_who_asks(name: &HeaderName) -> bool {
    let name = name.as_str().replace('_', "-");
    name == AUTHORIZATION.as_str() || name.starts_with("impersonate-") || name.starts_with("x-remote-")
}

/// Takes away what is about one connection: what the standard says, and what the sender says it is.
pub(super) fn strip(headers: &mut HeaderMap, upgrading: bool) {
    let listed: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .into_iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
        .collect();
    let upgrade = headers.get(UPGRADE).filter(|_| upgrading).cloned();
    for name in listed {
        headers.remove(name);
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
    headers.remove(TE);
    headers.remove(TRAILER);
    headers.remove(TRANSFER_ENCODING);
    headers.remove(CONNECTION);
    headers.remove(UPGRADE);
    if let Some(protocol) = upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, protocol);
    }
}

pub(super) fn hide_token(headers: &mut HeaderMap) {
    let names: Vec<String> = orlop_streaming::websocket_protocols(headers)
        .map(str::to_string)
        .collect();
    if !names.iter().any(|name| name.starts_with(TOKEN_PROTOCOL)) {
        return;
    }
    let kept: Vec<&str> = names
        .iter()
        .map(String::as_str)
        .filter(|name| !name.starts_with(TOKEN_PROTOCOL))
        .collect();
    headers.remove(SEC_WEBSOCKET_PROTOCOL);
    if let Ok(value) = HeaderValue::try_from(kept.join(", ")) {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, value);
    }
}

/// Sends a request to leave HTTP on; where the backend agrees the client gets its answer, and the future passes bytes
/// both ways. A refusal is passed on.
pub(super) async fn upgraded(
    io: Box<dyn Pipe>,
    request: Request<AnyBody>,
    client: OnUpgrade,
) -> Result<(Response<Body>, Option<Run>), Unreached> {
    let mut response = send(io, request).await?;
    let status = response.status();
    if status != StatusCode::SWITCHING_PROTOCOLS {
        if status.as_u16() < 400 {
            return Err(Unreached(format!(
                "invalid upgrade response: status code {}",
                status.as_u16()
            )));
        }
        strip(response.headers_mut(), false);
        return Ok((
            response.map(|body| Body::Stream(body.map_err(Into::into).boxed_unsync(), None)),
            None,
        ));
    }
    let backend = hyper::upgrade::on(&mut response);
    let (mut parts, _) = response.into_parts();
    strip(&mut parts.headers, true);
    let run = async move {
        match tokio::try_join!(client, backend) {
            Ok((client, backend)) => pass(TokioIo::new(client), TokioIo::new(backend)).await,
            Err(error) => tracing::debug!(%error, "a connection did not switch protocols"),
        }
    };
    Ok((Response::from_parts(parts, Body::empty()), Some(Box::pin(run))))
}

/// Passes bytes both ways until one side ends, and what is on its way then.
async fn pass(one: impl Pipe, other: impl Pipe) {
    let ((from_one, to_one), (from_other, to_other)) = (split(one), split(other));
    let (there, back) = (copy(from_one, to_other), copy(from_other, to_one));
    tokio::pin!(there, back);
    tokio::select! {
        () = &mut there => drop(tokio::time::timeout(LINGER, back).await),
        () = &mut back => drop(tokio::time::timeout(LINGER, there).await),
    }
}

/// Copies to the end and passes the end on; an error is an end.
async fn copy(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) {
    let mut buffer = vec![0; COPY_BYTES];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if to.write_all(&buffer[..count]).await.is_err() || to.flush().await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}

/// A kubelet's answer to a request for logs: the logs as they come, or what went wrong.
pub(super) async fn log_response(
    response: Response<Incoming>,
    pod: &str,
    guard: InFlight,
) -> Result<Response<Body>, Status> {
    let status = response.status();
    let body = response.into_body();
    if status.is_success() {
        let mut response = Response::new(Body::Stream(body.map_err(Into::into).boxed_unsync(), Some(guard)));
        response
            .headers_mut()
            .insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        return Ok(response);
    }
    let text = match Limited::new(body, ERROR_BYTES_MAX).collect().await {
        Ok(body) => String::from_utf8_lossy(&body.to_bytes()).into_owned(),
        Err(error) => return Err(Status::internal(error)),
    };
    Err(log_error(status.as_u16(), text, pod))
}

fn log_error(code: u16, text: String, pod: &str) -> Status {
    let about = format!("( pods/log {pod})");
    match code {
        500 => Status::internal(text),
        400 => Status::bad_request(text),
        401 => Status::new(
            code,
            "Unauthorized",
            format!("the server has asked for the client to provide credentials {about}"),
        ),
        403 => Status::new(code, "Forbidden", format!("{text} {about}")),
        404 => Status::new(
            code,
            "NotFound",
            format!("the server could not find the requested resource {about}"),
        ),
        503 => {
            let text = format!("the server is currently unable to handle the request {about}");
            Status::new(code, "ServiceUnavailable", text)
        }
        501.. => {
            let text = format!("an error on the server ({text:?}) has prevented the request from succeeding {about}");
            Status::new(code, "InternalError", text)
        }
        _ => {
            let text =
                format!("the server responded with the status code {code} but did not return more information {about}");
            Status::new(code, "", text)
        }
    }
}

/// How many segments of a path come before what is proxied.
fn prefix_segments(info: &RequestInfo) -> usize {
    if info.namespace.is_empty() { 5 } else { 7 }
}

/// The path before what is proxied, and what is proxied, with its slash if there is any.
fn split_path<'a>(path: &'a str, info: &RequestInfo) -> (&'a str, &'a str) {
    let mut seen = 0;
    for (at, byte) in path.bytes().enumerate() {
        let starts = byte != b'/' && (at == 0 || path.as_bytes()[at - 1] == b'/');
        seen += usize::from(starts);
        if seen == prefix_segments(info) && byte == b'/' {
            return path.split_at(at);
        }
    }
    (path, "")
}

/// Path and query for the backend of a proxied request.
pub(super) fn proxied_target(target: &str, info: &RequestInfo) -> String {
    let (path, query) = target
        .split_once('?')
        .map_or((target, ""), |(path, query)| (path, query));
    let (_, rest) = split_path(path, info);
    let rest = if rest.is_empty() { "/" } else { rest };
    if query.is_empty() {
        rest.to_string()
    } else {
        format!("{rest}?{query}")
    }
}

/// Pages refer to others relative to their own path, so the root of what is proxied must end in a slash.
pub(super) fn redirect_to_root(asked: &Asked<'_>) -> Option<Response<Body>> {
    let (path, query) = asked
        .target
        .split_once('?')
        .map_or((asked.target, ""), |(path, query)| (path, query));
    let (_, rest) = split_path(path, asked.info);
    let plain = matches!(*asked.method, Method::GET | Method::HEAD) && asked.upgrade.is_none();
    if !rest.is_empty() || !plain {
        return None;
    }
    let to = if query.is_empty() {
        format!("{path}/")
    } else {
        format!("{path}/?{query}")
    };
    let mut response = respond::plain(301, "text/plain; charset=utf-8", Bytes::new());
    response.headers_mut().insert(LOCATION, HeaderValue::try_from(to).ok()?);
    Some(response)
}

/// A backend's answer as the client gets it: redirects lead through the proxy again, and its rules about other sites do
/// not become ours.
pub(super) async fn proxied_response(
    response: Response<Incoming>,
    target: &str,
    info: &RequestInfo,
    guard: InFlight,
) -> Response<Body> {
    let (mut parts, body) = response.into_parts();
    strip(&mut parts.headers, false);
    for name in ["credentials", "headers", "methods", "origin"] {
        parts.headers.remove(format!("access-control-allow-{name}"));
    }
    let (prefix, _) = split_path(target.split('?').next().unwrap_or_default(), info);
    let moved = parts.headers.get(LOCATION).and_then(|value| value.to_str().ok());
    let moved = moved.filter(|to| to.starts_with('/') && !to.starts_with("//") && !to.starts_with(prefix));
    if let Some(Ok(to)) = moved.map(|to| HeaderValue::try_from(format!("{prefix}{to}"))) {
        parts.headers.insert(LOCATION, to);
    }
    if parts.headers.contains_key(CONTENT_LENGTH) && parts.status == StatusCode::NO_CONTENT {
        parts.headers.remove(CONTENT_LENGTH);
    }
    let body = match is_page(&parts.headers) && parts.status != StatusCode::NO_CONTENT {
        true => with_links(&mut parts.headers, body, prefix).await,
        false => body.map_err(Into::into).boxed_unsync(),
    };
    Response::from_parts(parts, Body::Stream(body, Some(guard)))
}

/// HTML that can be read, of a size that can be held.
fn is_page(headers: &HeaderMap) -> bool {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("");
    let media_type = text(CONTENT_TYPE).split(';').next().unwrap_or("").trim();
    let length: Option<usize> = text(CONTENT_LENGTH).parse().ok();
    media_type.eq_ignore_ascii_case("text/html")
        && matches!(text(CONTENT_ENCODING), "" | "gzip")
        && length.is_none_or(|length| length <= links::PAGE_MAX)
}

/// The page with its links led through the proxy. One that turns out too large, or breaks off, goes as far as it came
/// and then as it is.
async fn with_links(headers: &mut HeaderMap, mut body: Incoming, prefix: &str) -> AnyBody {
    let mut page = vec![];
    let mut trouble = None;
    while page.len() <= links::PAGE_MAX {
        match body.frame().await {
            None => break,
            Some(Err(error)) => {
                trouble = Some(error);
                break;
            }
            Some(Ok(frame)) => page.extend_from_slice(&frame.into_data().unwrap_or_default()),
        }
    }
    let is_whole = trouble.is_none() && page.len() <= links::PAGE_MAX;
    let rewritten = match headers.contains_key(CONTENT_ENCODING) {
        _ if !is_whole => None,
        true => links::unpacked(&page).map(|page| links::rewritten(&page, prefix)),
        false => Some(links::rewritten(&page, prefix)),
    };
    match rewritten {
        Some(text) => {
            headers.remove(CONTENT_ENCODING);
            headers.remove(CONTENT_LENGTH);
            Full::new(Bytes::from(text))
                .map_err(|never| match never {})
                .boxed_unsync()
        }
        None => {
            let begun = futures::stream::iter([Ok(Frame::data(Bytes::from(page)))]);
            let broken = futures::stream::iter(trouble.map(|error| Err(BodyError::from(error))));
            let rest = BodyStream::new(body).map(|frame| frame.map_err(BodyError::from));
            StreamBody::new(begun.chain(broken).chain(rest)).boxed_unsync()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(path: &str) -> RequestInfo {
        RequestInfo::parse(&Method::GET, path, "")
    }

    #[test]
    fn proxied_paths_stay_as_they_are() {
        for (target, wanted) in [
            ("/api/v1/namespaces/d/pods/p/proxy", "/"),
            ("/api/v1/namespaces/d/pods/p/proxy/", "/"),
            (
                "/api/v1/namespaces/d/pods/p:80/proxy/a%2Fb//c/?x=%20",
                "/a%2Fb//c/?x=%20",
            ),
            (
                "/api/v1/nodes/n/proxy/stats/summary?only=cpu",
                "/stats/summary?only=cpu",
            ),
            ("/api/v1/namespaces/d/services/proxy/proxy/proxy", "/proxy"),
        ] {
            assert_eq!(
                proxied_target(target, &info(target.split('?').next().unwrap())),
                wanted,
                "{target}"
            );
        }
    }

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in lines {
            map.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        map
    }

    fn names(map: &HeaderMap) -> Vec<&str> {
        let mut names: Vec<&str> = map.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn what_is_about_one_connection_stays_there() {
        let sent = [
            ("connection", "close, X-Secret"),
            ("connection", "x-more,keep-alive , upgrade, bad name"),
            ("x-secret", "1"),
            ("x-more", "1"),
            ("x-kept", "1"),
            ("keep-alive", "timeout=5"),
            ("proxy-authorization", "Basic x"),
            ("proxy-connection", "keep-alive"),
            ("transfer-encoding", "chunked"),
            ("te", "trailers"),
            ("trailer", "x"),
            ("upgrade", "websocket"),
        ];
        let mut plain = headers(&sent);
        strip(&mut plain, false);
        assert_eq!(names(&plain), ["x-kept"]);
        let mut upgrading = headers(&sent);
        strip(&mut upgrading, true);
        assert_eq!(names(&upgrading), ["connection", "upgrade", "x-kept"]);
        assert_eq!(upgrading[CONNECTION], "Upgrade");
        assert_eq!(upgrading[UPGRADE], "websocket");
        // No upgrade is made of what is none.
        let mut none = headers(&[("connection", "upgrade")]);
        strip(&mut none, true);
        assert!(none.is_empty());
    }

    #[test]
    fn backends_are_told_nothing_about_users() {
        for name in [
            "authorization",
            "impersonate-user",
            "impersonate-uid",
            "impersonate-group",
            "impersonate-extra-scopes",
            "x-remote-user",
            "x-remote-uid",
            "x-remote-group",
            "x-remote-extra-scopes",
            "x_remote_user",
            "impersonate_user",
        ] {
            assert!(says_who_asks(&HeaderName::from_static(name)), "{name}");
        }
        for name in ["x-forwarded-for", "cookie", "remote-user", "x-remote"] {
            assert!(!says_who_asks(&HeaderName::from_static(name)), "{name}");
        }
        let path = "/api/v1/namespaces/d/pods/p/proxy/";
        let sent = headers(&[
            ("authorization", "Bearer x"),
            ("x-remote-user", "admin"),
            ("x-remote-group", "system:masters"),
            ("impersonate-user", "admin"),
            ("connection", "x-hidden"),
            ("x-hidden", "1"),
            ("x-kept", "1"),
        ]);
        let (info, user) = (info(path), crate::authn::UserInfo::anonymous());
        let asked = Asked {
            kind: crate::kinds::of_resource("", "v1", "pods").unwrap(),
            info: &info,
            user: &user,
            method: &Method::GET,
            headers: &sent,
            target: path,
            peer: None,
            upgrade: None,
            warnings: &crate::registry::Warnings::default(),
        };
        let place = ConnectTarget {
            https: false,
            hosts: vec!["10.0.0.1".into()],
            port: 80,
            target: "/".into(),
            node: None,
            only_proxyable: true,
        };
        let request = request(&asked, &place, AnyBody::default(), false).unwrap();
        assert_eq!(
            names(request.headers()),
            ["host", "x-forwarded-proto", "x-forwarded-uri", "x-kept"]
        );
    }

    #[test]
    fn secrets_stay_here() {
        let mut headers = HeaderMap::new();
        headers.insert(
            SEC_WEBSOCKET_PROTOCOL,
            HeaderValue::from_static("base64url.bearer.authorization.k8s.io.c2VjcmV0, v5.channel.k8s.io"),
        );
        hide_token(&mut headers);
        assert_eq!(headers[SEC_WEBSOCKET_PROTOCOL], "v5.channel.k8s.io");
    }

    #[test]
    fn what_a_kubelet_says_becomes_a_status() {
        for (code, text, reason, message) in [
            (
                400,
                "container \"a\" in pod \"p\" is waiting to start: ContainerCreating",
                "BadRequest",
                "container \"a\" in pod \"p\" is waiting to start: ContainerCreating",
            ),
            (500, "boom", "InternalError", "Internal error occurred: boom"),
            (
                404,
                "404 page not found",
                "NotFound",
                "the server could not find the requested resource ( pods/log p)",
            ),
            (
                502,
                "x",
                "InternalError",
                "an error on the server (\"x\") has prevented the request from succeeding ( pods/log p)",
            ),
        ] {
            let status = log_error(code, text.to_string(), "p");
            assert_eq!(
                (status.code, &*status.reason, status.message.as_str()),
                (code, reason, message)
            );
        }
    }
}
