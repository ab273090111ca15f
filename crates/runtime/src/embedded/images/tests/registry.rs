//! A registry on loopback, with faults.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use base64::Engine;
use bytes::Bytes;
use futures::StreamExt;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::TcpListener;

use super::super::digest::Digest;
use super::super::manifest::OCI_INDEX;
use super::images::TestImage;

type Body = BoxBody<Bytes, std::io::Error>;

/// What goes wrong with one request.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    Status(u16),
    StatusWith(u16, &'static str, &'static str),
    /// No answer at all.
    Hang,
    /// So many bytes of the body, then silence.
    HangAfter(usize),
    /// So many bytes of the body, then the connection ends.
    CutAfter(usize),
    /// Another body.
    Body(Vec<u8>),
    Redirect(String),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Access {
    #[default]
    Open,
    Basic,
    /// A token endpoint that gives everybody a token, but only the user a good one.
    Token,
    /// The same, for who shows an identity token.
    Identity,
    /// A token that the registry takes as it is.
    RegistryToken,
}

#[derive(Default)]
struct State {
    manifests: HashMap<String, (String, Vec<u8>)>,
    blobs: HashMap<String, Vec<u8>>,
    faults: Vec<(String, VecDeque<Fault>)>,
    access: Access,
    no_head: bool,
    /// Everything that was asked for: `GET /v2/… Range`.
    log: Vec<(String, HeaderMap)>,
}

pub(crate) struct TestRegistry {
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
    server: tokio::task::JoinHandle<()>,
}

impl Drop for TestRegistry {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl TestRegistry {
    pub(crate) async fn start() -> TestRegistry {
        TestRegistry::start_with(None).await
    }

    /// Over TLS, if there is something to speak it with.
    pub(crate) async fn start_with(tls: Option<Arc<rustls::ServerConfig>>) -> TestRegistry {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state: Arc<Mutex<State>> = Arc::default();
        let shared = state.clone();
        let server = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (shared, tls) = (shared.clone(), tls.clone());
                tokio::spawn(async move {
                    let service = service_fn(move |request| answer(shared.clone(), address, request));
                    let server = hyper::server::conn::http1::Builder::new();
                    let Some(config) = tls else {
                        let _ = server.serve_connection(TokioIo::new(stream), service).await;
                        return;
                    };
                    if let Ok(stream) = tokio_rustls::TlsAcceptor::from(config).accept(stream).await {
                        let _ = server.serve_connection(TokioIo::new(stream), service).await;
                    }
                });
            }
        });
        TestRegistry { address, state, server }
    }

    /// With a tag; the image's own digest always works.
    pub(crate) fn push(&self, repository: &str, tag: &str, image: &TestImage) {
        let manifest_type = super::super::manifest::OCI_MANIFEST;
        self.put(repository, tag, manifest_type, &image.manifest);
        self.put_blobs(image);
    }

    pub(crate) fn push_index(&self, repository: &str, tag: &str, image: &TestImage) {
        self.push(repository, "by-digest-only", image);
        self.put(repository, tag, OCI_INDEX, &image.index());
    }

    pub(crate) fn put(&self, repository: &str, tag: &str, media_type: &str, content: &[u8]) {
        let mut state = self.state.lock();
        for name in [tag.to_string(), Digest::of(content).to_string()] {
            let value = (media_type.to_string(), content.to_vec());
            state.manifests.insert(format!("{repository}/manifests/{name}"), value);
        }
    }

    pub(crate) fn put_blobs(&self, image: &TestImage) {
        let mut state = self.state.lock();
        for blob in image.blobs() {
            state.blobs.insert(Digest::of(&blob).to_string(), blob);
        }
    }

    /// The next requests whose method and path contain the text meet these.
    pub(crate) fn fail(&self, what: &str, faults: impl IntoIterator<Item = Fault>) {
        self.state
            .lock()
            .faults
            .push((what.to_string(), faults.into_iter().collect()));
    }

    pub(crate) fn set_access(&self, access: Access) {
        self.state.lock().access = access;
    }

    pub(crate) fn refuse_head(&self) {
        self.state.lock().no_head = true;
    }

    /// An image's name here.
    pub(crate) fn name(&self, rest: &str) -> String {
        format!("{}/{rest}", self.address)
    }

    pub(crate) fn log(&self) -> Vec<String> {
        self.state.lock().log.iter().map(|(line, _)| line.clone()).collect()
    }

    pub(crate) fn headers_of(&self, what: &str) -> Vec<HeaderMap> {
        let state = self.state.lock();
        let found = state.log.iter().filter(|(line, _)| line.contains(what));
        found.map(|(_, headers)| headers.clone()).collect()
    }

    pub(crate) fn count(&self, what: &str) -> usize {
        self.headers_of(what).len()
    }
}

async fn answer(
    state: Arc<Mutex<State>>,
    address: SocketAddr,
    request: Request<Incoming>,
) -> Result<Response<Body>, std::io::Error> {
    let line = format!("{} {}", request.method(), request.uri());
    let fault = {
        let mut state = state.lock();
        state.log.push((line.clone(), request.headers().clone()));
        let found = state
            .faults
            .iter_mut()
            .find(|(what, left)| line.contains(what.as_str()) && !left.is_empty());
        found.and_then(|(_, faults)| faults.pop_front())
    };
    let mut cut = None;
    let mut hang = false;
    match fault {
        None => {}
        Some(Fault::Status(status)) => return Ok(plain(status, "")),
        Some(Fault::StatusWith(status, name, value)) => {
            let mut response = plain(
                status,
                r#"{"errors":[{"code":"TOOMANYREQUESTS","message":"slow down"}]}"#,
            );
            response.headers_mut().insert(name, value.parse().unwrap());
            return Ok(response);
        }
        Some(Fault::Hang) => std::future::pending().await,
        Some(Fault::HangAfter(bytes)) => (cut, hang) = (Some(bytes), true),
        Some(Fault::CutAfter(bytes)) => cut = Some(bytes),
        Some(Fault::Body(body)) => return Ok(Response::new(full(body))),
        Some(Fault::Redirect(to)) => {
            let mut response = plain(307, "");
            response.headers_mut().insert("location", to.parse().unwrap());
            return Ok(response);
        }
    }
    if request.uri().path() == "/token" {
        return Ok(give_token(&state, request).await);
    }
    if let Some(refusal) = check_access(&state.lock(), address, request.headers()) {
        return Ok(refusal);
    }
    Ok(serve(&state.lock(), &request, cut, hang))
}

fn serve(state: &State, request: &Request<Incoming>, cut: Option<usize>, hang: bool) -> Response<Body> {
    let path = request.uri().path().trim_start_matches("/v2/");
    let head = request.method() == Method::HEAD;
    if head && state.no_head {
        return plain(405, "");
    }
    if let Some((media_type, content)) = state.manifests.get(path) {
        let builder = Response::builder()
            .header("content-type", media_type)
            .header("content-length", content.len())
            .header("docker-content-digest", Digest::of(content).to_string());
        let content = if head { vec![] } else { content.clone() };
        return builder.body(body(content, cut, hang)).unwrap();
    }
    let digest = path.rsplit('/').next().unwrap_or_default();
    let Some(blob) = state.blobs.get(digest).filter(|_| path.contains("/blobs/")) else {
        return plain(
            404,
            r#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}"#,
        );
    };
    let range = request.headers().get("range").and_then(|v| v.to_str().ok());
    let offset = range.and_then(|r| r.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
    let rest = blob[offset.unwrap_or(0)..].to_vec();
    Response::builder()
        .status(if offset.is_some() { 206 } else { 200 })
        .header("content-length", rest.len())
        .body(body(rest, cut, hang))
        .unwrap()
}

const USER: (&str, &str) = ("user", "secret");

fn is_basic(headers: &HeaderMap) -> bool {
    let encoded = base64::prelude::BASE64_STANDARD.encode(format!("{}:{}", USER.0, USER.1));
    headers
        .get("authorization")
        .is_some_and(|v| v.as_bytes() == format!("Basic {encoded}").as_bytes())
}

fn check_access(state: &State, address: SocketAddr, headers: &HeaderMap) -> Option<Response<Body>> {
    let has = |token: &str| {
        headers
            .get("authorization")
            .is_some_and(|v| v.as_bytes() == token.as_bytes())
    };
    let (allowed, challenge) = match state.access {
        Access::Open => return None,
        Access::Basic => (is_basic(headers), "Basic realm=\"test\"".to_string()),
        Access::RegistryToken => (has("Bearer given"), "Bearer".to_string()),
        Access::Token | Access::Identity => (
            has("Bearer good"),
            format!("Bearer realm=\"http://{address}/token\",service=\"test\",scope=\"repository:a:pull\""),
        ),
    };
    if allowed {
        return None;
    }
    let mut response = plain(
        401,
        r#"{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}"#,
    );
    response
        .headers_mut()
        .insert("www-authenticate", challenge.parse().unwrap());
    Some(response)
}

async fn give_token(state: &Arc<Mutex<State>>, request: Request<Incoming>) -> Response<Body> {
    let access = state.lock().access.clone();
    let good = match access {
        Access::Identity => {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let form = String::from_utf8(body.to_vec()).unwrap();
            form.contains("grant_type=refresh_token") && form.contains("refresh_token=identity%2B1")
        }
        _ => {
            let query = request.uri().query().unwrap_or_default().to_string();
            assert!(
                query.contains("service=test") && query.contains("scope=repository%3Aa%3Apull"),
                "{query}"
            );
            is_basic(request.headers())
        }
    };
    match good {
        true => plain(200, r#"{"token":"good"}"#),
        false => plain(200, r#"{"access_token":"anonymous"}"#),
    }
}

fn plain(status: u16, text: &str) -> Response<Body> {
    let mut response = Response::new(full(text.as_bytes().to_vec()));
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    response
}

fn full(content: Vec<u8>) -> Body {
    Full::new(Bytes::from(content))
        .map_err(|e: Infallible| match e {})
        .boxed()
}

fn body(content: Vec<u8>, cut: Option<usize>, hang: bool) -> Body {
    let Some(length) = cut.filter(|c| *c < content.len()) else {
        return full(content);
    };
    let first = futures::stream::iter([Ok(Frame::data(Bytes::from(content[..length].to_vec())))]);
    match hang {
        true => BodyExt::boxed(StreamBody::new(first.chain(futures::stream::pending()))),
        false => {
            // The server sends what it has when there is nothing more at the moment.
            let end = futures::stream::once(async {
                tokio::task::yield_now().await;
                Err(std::io::Error::other("cut"))
            });
            BodyExt::boxed(StreamBody::new(first.chain(end)))
        }
    }
}
