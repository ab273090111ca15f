//! Requests that leave the API server again: pods/log, exec, attach, portforward, and the proxies to pods, services and
//! nodes. What is asked for is checked here; the rest is done by the pod's kubelet, or the pod itself.
//!
//! `options` reads and checks the request, `target` finds where it goes (both pure), `transport` makes the connection,
//! `forward` carries the bytes. `relay` takes requests to extension API servers, over the connections of `extension`. Upgraded connections pass through byte by byte; only where a kubelet does not speak
//! WebSocket itself is the client's WebSocket turned into SPDY here.

mod extension;
mod forward;
mod links;
mod options;
mod relay;
mod target;
#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) mod through_tests;
mod transport;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Limited};
use hyper::upgrade::OnUpgrade;
use orlop_api::{KindDef, Status, Value};
use orlop_base::clock::Shift;
use orlop_streaming::{ConnectError, Cut, Upgrade, is_upgrade, is_websocket, serve_download, websocket_protocols};
use tokio::sync::OwnedSemaphorePermit;

use crate::admission::{self, Operation, Review};
use crate::authn::UserInfo;
use crate::authz;
use crate::chain::Server;
use crate::lookup::{ObjectLookup, text};
use crate::registry::Warnings;
use crate::request::RequestInfo;
use crate::respond::{self, Body};

pub(crate) use extension::{Backend, BackendError, FetchError, FetchLimits, Fetched, FrontProxy};
use options::{LogOptions, StreamOptions};
pub(crate) use relay::Relayed;
pub(crate) use target::is_proxyable;
use target::{ConnectTarget, Kubelet};
pub use transport::NodesInside;
pub(crate) use transport::{Nodes, connect_error_text};

pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;
pub(crate) type AnyBody = UnsyncBoxBody<Bytes, BodyError>;

/// A session through this server that nobody uses ends after this long; the kubelet has a limit of its own.
const IDLE: Duration = orlop_streaming::IDLE_DEFAULT;

fn later(by: Duration) -> tokio::time::Instant {
    tokio::time::Instant::now().later(by)
}

/// The parts of a request that only these handlers need.
pub(crate) struct Asked<'a> {
    pub kind: &'static KindDef,
    pub info: &'a RequestInfo,
    pub user: &'a UserInfo,
    pub method: &'a Method,
    pub headers: &'a HeaderMap,
    /// Path and query as they came.
    pub target: &'a str,
    pub peer: Option<IpAddr>,
    pub upgrade: Option<OnUpgrade>,
    pub warnings: &'a Warnings,
}

/// Whether a request is one of these.
pub(crate) fn leads_on(kind: &KindDef, info: &RequestInfo) -> bool {
    matches!(
        (kind.group, kind.plural, info.subresource.as_str()),
        ("", "pods", "log" | "exec" | "attach" | "portforward" | "proxy") | ("", "services" | "nodes", "proxy")
    )
}

/// What a client that asks for WebSocket can also be sent that way: watches and logs.
pub(crate) fn download_of(info: &RequestInfo, headers: &HeaderMap, upgrade: Option<&OnUpgrade>) -> Option<OnUpgrade> {
    let is_log = info.group.is_empty() && info.resource == "pods" && info.subresource == "log";
    let wanted = (info.verb == "watch" || is_log) && is_websocket(headers);
    upgrade.filter(|_| wanted).cloned()
}

/// Why a kubelet did not answer a question of the server's own.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    #[error("{}", .0.message)]
    Node(Status),
    #[error(transparent)]
    Unreached(#[from] transport::Unreached),
    #[error("it answers {0}")]
    Refused(StatusCode),
    #[error(transparent)]
    Body(Box<dyn std::error::Error + Send + Sync>),
}

impl Server {
    /// The same answer in the messages of a WebSocket, if it is one that succeeds.
    pub(crate) fn over_websocket(
        &self,
        headers: &HeaderMap,
        upgrade: OnUpgrade,
        response: Response<Body>,
    ) -> Response<Body> {
        if response.status() != StatusCode::OK {
            return response;
        }
        let content_type = response.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes);
        let is_json = content_type.is_some_and(|value| value.starts_with(b"application/json"));
        let cut = if is_json { Cut::Lines } else { Cut::AsItComes };
        let data = response.into_body().into_data_stream();
        let data = data
            .take_while(|bytes| futures::future::ready(bytes.is_ok()))
            .filter_map(|bytes| futures::future::ready(bytes.ok()))
            .boxed();
        match serve_download(headers, upgrade, cut, data) {
            Err(refusal) => refusal.response().map(|text| Body::Whole(Some(text.into()))),
            Ok(Upgrade { response, run }) => {
                let shutdown = self.shutdown.clone();
                tokio::spawn(async move {
                    tokio::select! {
                        () = run => {}
                        () = shutdown.wait() => {}
                    }
                });
                response.map(|()| Body::empty())
            }
        }
    }

    pub(crate) async fn lead_on(self: &Arc<Self>, asked: Asked<'_>, body: AnyBody) -> Result<Response<Body>, Status> {
        match asked.info.subresource.as_str() {
            "log" => self.pod_log(asked).await,
            "proxy" => {
                self.admit(&asked).await?;
                self.proxy(asked, body).await
            }
            _ => {
                self.may_create(&asked)?;
                self.admit(&asked).await?;
                self.pod_stream(asked).await
            }
        }
    }

    /// Asks the configured policies and webhooks. What they see is the options of the request.
    async fn admit(&self, asked: &Asked<'_>) -> Result<(), Status> {
        let (registry, info) = (&self.registry, asked.info);
        let review = Review {
            operation: Operation::Connect,
            kind: asked.kind,
            subresource: &info.subresource,
            namespace: info.namespace.clone(),
            name: info.name.clone(),
            name_prefix: String::new(),
            user: asked.user,
            dry_run: false,
            now: registry.now(),
            lookup: &**registry,
            config: &registry.config,
            authorizer: &registry.authorizer,
            warnings: asked.warnings,
            request: info,
            delete: None,
            dynamic: &registry.dynamic_admission,
            kinds: &registry.kinds,
            conversions: Default::default(),
        };
        let mut options = options::object(asked.kind, info);
        admission::connect(&review, &mut options).await
    }

    fn pod(&self, namespace: &str, name: &str) -> Result<Arc<Value>, Status> {
        ObjectLookup::get(&*self.registry, "pods", namespace, name).ok_or_else(|| Status::not_found("", "pods", name))
    }

    fn kubelet(&self, node: &str, resource: &str) -> Result<Kubelet, Status> {
        // Kubernetes looks the node up in the name of the resource that was asked for, and says so.
        let missing = || Status::not_found("", resource, node);
        let node = ObjectLookup::get(&*self.registry, "nodes", "", node).ok_or_else(missing)?;
        target::kubelet(&node)
    }

    /// What a node's kubelet answers to a question of our own.
    pub(crate) async fn ask_kubelet(&self, node: &str, target: &str, bytes_max: usize) -> Result<Bytes, AskError> {
        let kubelet = self.kubelet(node, "nodes").map_err(AskError::Node)?;
        let place = ConnectTarget::kubelet(&kubelet, target.to_string());
        let io = self.nodes.dial(&place, transport::Trust::Kubelet);
        let response = forward::get(io.await?, &place).await?;
        if response.status() != StatusCode::OK {
            return Err(AskError::Refused(response.status()));
        }
        let body = Limited::new(response.into_body(), bytes_max).collect().await;
        body.map(|body| body.to_bytes()).map_err(AskError::Body)
    }

    async fn pod_log(&self, asked: Asked<'_>) -> Result<Response<Body>, Status> {
        let info = asked.info;
        let options = LogOptions::parse(&info.query, &info.name)?;
        let pod = self.pod(&info.namespace, &info.name)?;
        let container = target::choose_container(&pod, &options.container)?;
        let node = text(&pod, &["spec", "nodeName"]);
        if node.is_empty() {
            // There is nothing to read yet, and nobody to ask.
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::NO_CONTENT;
            return Ok(response);
        }
        let kubelet = self.kubelet(node, "pods")?;
        let path = format!(
            "/containerLogs/{}/{}/{container}{}",
            info.namespace,
            info.name,
            options.query()
        );
        let place = ConnectTarget::kubelet(&kubelet, path);
        let trust = if options.skip_verification {
            transport::Trust::Anyone
        } else {
            transport::Trust::Kubelet
        };
        let failed = |error: transport::Unreached| Status::plain_error(format!("Get {:?}: {error}", place.url()));
        let io = self.nodes.dial(&place, trust).await.map_err(failed)?;
        let response = forward::get(io, &place).await.map_err(failed)?;
        let guard = self.metrics.long_running(info);
        forward::log_response(response, &info.name, guard).await
    }

    /// exec, attach and portforward.
    async fn pod_stream(self: &Arc<Self>, mut asked: Asked<'_>) -> Result<Response<Body>, Status> {
        let info = asked.info;
        let options = StreamOptions::parse(&info.subresource, &info.query)?;
        let pod = self.pod(&info.namespace, &info.name)?;
        let path = match info.subresource.as_str() {
            "portforward" => format!("/portForward/{}/{}{}", info.namespace, info.name, options.query()),
            verb => {
                let container = target::choose_container(&pod, &options.container)?;
                format!(
                    "/{verb}/{}/{}/{container}{}",
                    info.namespace,
                    info.name,
                    options.query()
                )
            }
        };
        let node = text(&pod, &["spec", "nodeName"]);
        if node.is_empty() {
            return Err(Status::bad_request(format!(
                "pod {} does not have a host assigned",
                info.name
            )));
        }
        let kubelet = self.kubelet(node, "pods")?;
        let upgrade = asked.upgrade.take().filter(|_| is_upgrade(asked.headers));
        let upgrade = upgrade.ok_or_else(|| Status::bad_request("Upgrade request required"))?;
        let place = ConnectTarget::kubelet(&kubelet, path);
        let permit = self.nodes.permit()?;
        let failed = |error| Status::plain_error(format!("error dialing backend: {error}"));
        let io = self
            .nodes
            .dial(&place, transport::Trust::Kubelet)
            .await
            .map_err(failed)?;
        let is_new = |name: &str| name == "v5.channel.k8s.io" || name.starts_with("SPDY/3.1+");
        let translate =
            is_websocket(asked.headers) && !kubelet.speaks_websocket && websocket_protocols(asked.headers).any(is_new);
        if !translate {
            let request = forward::request(&asked, &place, AnyBody::default(), true)?;
            let passed = forward::upgraded(io, request, upgrade).await;
            return self.carry(asked.info, passed.map_err(failed)?, permit);
        }
        let backend = http::Request::get(&place.target)
            .header(http::header::HOST, place.authority())
            .body(());
        let backend = backend.map_err(Status::internal)?;
        let mut request = http::Request::new(());
        *request.headers_mut() = asked.headers.clone();
        request.extensions_mut().insert(upgrade);
        let connected = if info.subresource == "portforward" {
            translate_ports(io, backend, &mut request).await
        } else {
            translate_session(io, backend, &mut request, options.streams).await
        };
        let carried = connected.map(|Upgrade { response, run }| (response.map(|()| Body::empty()), Some(run)));
        self.carry(asked.info, carried.or_else(refusal)?, permit)
    }

    /// Runs what an upgrade started until it ends or the server stops.
    fn carry(
        &self,
        info: &RequestInfo,
        (response, run): (Response<Body>, Option<forward::Run>),
        permit: OwnedSemaphorePermit,
    ) -> Result<Response<Body>, Status> {
        if let Some(run) = run {
            let (shutdown, guard) = (self.shutdown.clone(), self.metrics.long_running(info));
            tokio::spawn(async move {
                let _held = (permit, guard);
                tokio::select! {
                    () = run => {}
                    () = shutdown.wait() => {}
                }
            });
        }
        Ok(response)
    }

    /// Running a command is a write, even when a WebSocket can only ask for it with GET.
    fn may_create(&self, asked: &Asked<'_>) -> Result<(), Status> {
        let info = asked.info;
        let attributes = authz::Attributes {
            version: &info.version,
            ..authz::Attributes::resource(asked.user, "create", &info.group, &info.resource)
        };
        let attributes = attributes
            .in_namespace(&info.namespace)
            .named(&info.name)
            .subresource(&info.subresource);
        let decision = self.registry.authorizer.authorize(&attributes, &*self.registry);
        if decision.allowed {
            return Ok(());
        }
        Err(authz::forbidden(&attributes, &decision.reason))
    }

    async fn proxy(self: &Arc<Self>, mut asked: Asked<'_>, body: AnyBody) -> Result<Response<Body>, Status> {
        let info = asked.info;
        if let Some(redirect) = forward::redirect_to_root(&asked) {
            return Ok(redirect);
        }
        let id = target::ProxyId::parse(&info.name)
            .ok_or_else(|| Status::bad_request(format!("invalid {} request {:?}", asked.kind.singular, info.name)))?;
        let lookup = &*self.registry;
        let place = match asked.kind.plural {
            "pods" => target::pod(&*self.pod(&info.namespace, &id.name)?, &id)?,
            "services" => {
                let turn = uuid::Uuid::new_v4().as_u64_pair().0 as usize;
                target::service(lookup, &info.namespace, &id, &info.name, turn)?
            }
            _ => target::node(&self.kubelet(&id.name, "nodes")?, &id)?,
        };
        let place = ConnectTarget {
            target: forward::proxied_target(asked.target, info),
            ..place
        };
        let trust = if place.node.is_some() {
            transport::Trust::Kubelet
        } else {
            transport::Trust::Proxied
        };
        let failed = |error: transport::Unreached| match error.0.as_str() {
            why @ transport::NOT_ALLOWED => Status::bad_request(why),
            why => Status::unavailable(format!("error trying to reach service: {why}")),
        };
        let io = self.nodes.dial(&place, trust).await.map_err(failed)?;
        match asked.upgrade.take().filter(|_| is_upgrade(asked.headers)) {
            Some(upgrade) => {
                let permit = self.nodes.permit()?;
                let request = forward::request(&asked, &place, body, true)?;
                let passed = forward::upgraded(io, request, upgrade).await;
                self.carry(info, passed.map_err(failed)?, permit)
            }
            None => {
                let request = forward::request(&asked, &place, body, false)?;
                let response = forward::send(io, request).await.map_err(failed)?;
                let guard = self.metrics.long_running(info);
                Ok(forward::proxied_response(response, asked.target, info, guard).await)
            }
        }
    }
}

async fn translate_session(
    io: Box<dyn orlop_streaming::Pipe>,
    backend: http::Request<()>,
    request: &mut http::Request<()>,
    streams: orlop_streaming::Streams,
) -> Result<Upgrade, Refused> {
    let session = orlop_streaming::session_over(io, backend, streams).await?;
    Ok(orlop_streaming::serve_session(request, streams, IDLE, || async {
        Ok(session)
    })?)
}

async fn translate_ports(
    io: Box<dyn orlop_streaming::Pipe>,
    backend: http::Request<()>,
    request: &mut http::Request<()>,
) -> Result<Upgrade, Refused> {
    let ports = orlop_streaming::port_forward_over(io, backend).await?;
    let open = move |port| {
        let ports = ports.clone();
        async move { ports.open(port).await.map_err(|error| error.to_string()) }
    };
    Ok(orlop_streaming::serve_port_forward(request, IDLE, open)?)
}

/// Why a translated connection is not there.
enum Refused {
    ByKubelet(ConnectError),
    ByUs(orlop_streaming::Refusal),
}

impl From<ConnectError> for Refused {
    fn from(error: ConnectError) -> Self {
        Refused::ByKubelet(error)
    }
}

impl From<orlop_streaming::Refusal> for Refused {
    fn from(refusal: orlop_streaming::Refusal) -> Self {
        Refused::ByUs(refusal)
    }
}

/// A refusal as the HTTP answer it is, or as the error it is.
fn refusal(refused: Refused) -> Result<(Response<Body>, Option<forward::Run>), Status> {
    match refused {
        Refused::ByUs(refusal) => Ok((refusal.response().map(|text| Body::Whole(Some(text.into()))), None)),
        Refused::ByKubelet(ConnectError::Refused(status, text)) => {
            Ok((respond::plain(status.as_u16(), "text/plain; charset=utf-8", text), None))
        }
        Refused::ByKubelet(error) => Err(Status::plain_error(format!("error dialing backend: {error}"))),
    }
}
