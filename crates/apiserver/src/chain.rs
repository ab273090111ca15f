//! The request chain: every request, from the network or from inside the process, takes these steps in this order.

mod seats;
mod shared;
mod to_the_end;

use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use futures::FutureExt;
use http::header::{HeaderValue, WARNING};
use http::{HeaderMap, Method, Request, Response};
use http_body_util::BodyExt;
use orlop_api::kind::Verbs;
use orlop_api::selector::{FieldSelector, LabelSelector};
use orlop_api::{KindDef, Status};
use orlop_base::clock::monotonic;
use orlop_base::{BoxFuture, Connections, Peer, Shutdown};
use parking_lot::Mutex;
use serde_json::json;

use self::to_the_end::ToTheEnd;
use crate::aggregator::Aggregator;
use crate::audit::{self, AuditLog, Completion, Stage, Trail};
use crate::authn::{CertIdentity, UserInfo};
use crate::authz::{self, Attributes};
use crate::bodies;
use crate::connect::{self, AnyBody, Asked, BodyError, Nodes};
use crate::custom::{self, Snapshot};
use crate::encryption::Encryption;
use crate::flowcontrol::{Flow, FlowControl};
use crate::health::Health;
use crate::metrics::Metrics;
use crate::negotiate::{self, Format, Representation, Shape};
use crate::registry::body::internal_type_name;
use crate::registry::list::ListOptions;
use crate::registry::patch;
use crate::registry::update::Endpoint;
use crate::registry::{Context, Registry, VerbResult, Warnings, WriteOptions};
use crate::request::RequestInfo;
use crate::respond::{self, Body, Listing};
use crate::shares::{self, Share, Shares};
use crate::table::IncludeObject;
use crate::{computed, discovery, health, kinds, openapi, usage};

/// The API server without its listener: requests in, responses out.
pub struct Server {
    pub registry: Arc<Registry>,
    pub nodes: Nodes,
    pub aggregator: Aggregator,
    pub(crate) usage: usage::Kept,
    pub health: Health,
    pub metrics: Metrics,
    pub audit: Option<Arc<AuditLog>>,
    pub(crate) encryption: Option<Arc<Encryption>>,
    pub connections: Arc<Connections>,
    pub(crate) shares: Shares,
    pub(crate) flow_control: FlowControl,
    pub shutdown: Shutdown,
}

/// What the transport knows of a client.
#[derive(Default)]
pub struct Connection {
    pub peer: Option<IpAddr>,
    pub certificate: Option<CertIdentity>,
    /// Who calls from inside the process; set only by the in-process transport.
    pub trusted_user: Option<Arc<UserInfo>>,
    /// Its place among the connections, if it has one.
    pub client: Option<Arc<Peer>>,
}

/// A request without its body.
struct Call {
    method: Method,
    headers: HeaderMap,
    /// Path and query as they came.
    target: String,
    info: RequestInfo,
    kind: Option<&'static KindDef>,
    connection: Arc<Connection>,
    warnings: Warnings,
    /// What the audit log says of it. Filled on the way, by one step at a time.
    trail: Mutex<Trail>,
    /// Its flow schema, once it was asked for.
    flow: OnceLock<Arc<Flow>>,
}

/// What a request holds besides its headers.
struct Content {
    /// Until it is read.
    body: Option<AnyBody>,
    /// The way out of HTTP, on a connection that has one.
    upgrade: Option<hyper::upgrade::OnUpgrade>,
}

impl Call {
    /// Whether somebody leads on from here to a node or a pod.
    fn leads_on(&self) -> bool {
        self.kind.is_some_and(|kind| connect::leads_on(kind, &self.info))
    }

    /// Whether it may change what is stored.
    fn is_write(&self) -> bool {
        self.info.is_resource && self.info.is_mutating() && !self.leads_on()
    }

    fn error(&self, status: &Status) -> Response<Body> {
        let pretty = wants_pretty(&self.info, &self.headers);
        let wanted = negotiate::accept(&self.headers, pretty).unwrap_or(Representation {
            pretty,
            ..Representation::JSON
        });
        respond::error(status, wanted)
    }
}

/// How a request ended that was not answered as it wished.
enum Failure {
    Refused(Status),
    Panicked,
}

impl Server {
    /// Bodies of all kinds take the same way, behind one type: the whole chain would be compiled for each of them.
    pub fn handle<B>(
        self: &Arc<Self>,
        request: Request<B>,
        connection: &Arc<Connection>,
    ) -> BoxFuture<'static, Response<Body>>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BodyError>,
    {
        let request = request.map(|body| body.map_err(Into::into).boxed_unsync());
        self.clone().boxed_answer(request, connection.clone())
    }

    fn boxed_answer(
        self: Arc<Self>,
        request: Request<AnyBody>,
        connection: Arc<Connection>,
    ) -> BoxFuture<'static, Response<Body>> {
        let (mut parts, body) = request.into_parts();
        let content = Content {
            body: Some(body),
            upgrade: parts.extensions.remove(),
        };
        let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
        // 1. What is asked for.
        let info = RequestInfo::parse(&parts.method, parts.uri.path(), parts.uri.query().unwrap_or(""));
        let kind = self
            .registry
            .kinds
            .of_resource(&info.group, &info.version, &info.resource);
        let trail = match &self.audit {
            Some(_) => Trail::new(&info, target, &parts.headers, connection.peer, self.registry.now()),
            None => Trail::unlogged(&info, &parts.headers),
        };
        let call = Arc::new(Call {
            target: target.to_string(),
            method: parts.method,
            headers: parts.headers,
            info,
            kind,
            connection,
            warnings: Warnings::default(),
            trail: Mutex::new(trail),
            flow: OnceLock::new(),
        });
        let is_write = call.is_write();
        let answer = self.answer(call, content);
        match is_write {
            true => Box::pin(ToTheEnd::new(answer)),
            false => Box::pin(answer),
        }
    }

    async fn answer(self: Arc<Self>, call: Arc<Call>, mut content: Content) -> Response<Body> {
        let started = monotonic();
        let info = &call.info;
        let download = connect::download_of(info, &call.headers, content.upgrade.as_ref());
        let served = AssertUnwindSafe(self.serve(&call, &mut content)).catch_unwind().await;
        let (mut response, failure) = match served {
            Ok(Ok(response)) => (response, None),
            Ok(Err(status)) => (call.error(&status), Some(Failure::Refused(status))),
            // The panic itself is in the log already.
            Err(_) => {
                self.metrics.terminated(info, 500);
                let status = Status::internal("This request caused apiserver to panic. Look in the logs for details.");
                (call.error(&status), Some(Failure::Panicked))
            }
        };
        if let Some(upgrade) = download {
            response = self.over_websocket(&call.headers, upgrade, response);
        }
        add_headers(response.headers_mut(), &call.warnings, call.trail.lock().id());
        for (name, uid) in call.flow.get().into_iter().flat_map(|flow| flow.headers()) {
            response.headers_mut().insert(name, uid);
        }
        // Last: it is counted and, if wanted, written down.
        let code = response.status().as_u16();
        let took = (!info.is_long_running()).then(|| started.elapsed());
        let dry_run = info.query.get("dryRun").is_some();
        self.metrics.observe(info, dry_run, code, took);
        // Nobody has read it: its client shall see the answer nevertheless, unless it waits for one before it sends.
        let waits = call.headers.contains_key(http::header::EXPECT);
        if let Some(body) = content.body.take().filter(|_| !waits) {
            bodies::drain(body);
        }
        self.record_end(&call, failure.as_ref(), response)
    }

    /// Writes the end of a request to the audit log, or has it written when the answer has ended.
    fn record_end(&self, call: &Call, failure: Option<&Failure>, mut response: Response<Body>) -> Response<Body> {
        let Some(log) = &self.audit else { return response };
        let mut trail = call.trail.lock();
        if trail.coverage.level == audit::Level::RequestResponse && !call.info.is_long_running() {
            (response, trail.response_object) = audit::take_response_object(response, &trail.coverage);
        }
        trail.annotations.extend(call.warnings.take_annotations());
        if trail.coverage.level >= audit::Level::Request {
            trail.annotations.extend(call.warnings.take_request_annotations());
        }
        let trail = trail;
        let status = match failure {
            Some(Failure::Refused(status)) => Some(status),
            _ => None,
        };
        let said = audit::response_status(response.status().as_u16(), status);
        let now = self.registry.now();
        if let Some(Failure::Panicked) = failure {
            log.record(&trail, Stage::Panic, Some(&said), now);
            return response;
        }
        if !call.info.is_long_running() {
            log.record(&trail, Stage::ResponseComplete, Some(&said), now);
            return response;
        }
        log.record(&trail, Stage::ResponseStarted, Some(&said), now);
        let completion = Completion {
            log: log.clone(),
            trail: trail.clone(),
            response: said,
            clock: self.registry.clock.clone(),
        };
        response.map(|body| Body::Followed(Box::new((body, completion))))
    }

    async fn serve(self: &Arc<Self>, call: &Arc<Call>, content: &mut Content) -> Result<Response<Body>, Status> {
        let (info, headers, connection) = (&call.info, &call.headers, &call.connection);
        // 2. Who asks. 3. On whose behalf.
        let asker = self.user(info, headers, connection).await;
        self.begin_audit(call, asker.as_ref().ok())?;
        let asker = asker?;
        if !asker.is_anonymous()
            && let Some(client) = &connection.client
        {
            client.authenticated();
        }
        let user = self.impersonated(asker.clone(), info, headers)?;
        if !Arc::ptr_eq(&user, &asker) {
            call.trail.lock().impersonated = Some(user.clone());
        }
        // 4. May they?
        self.authorize(call, &user).await?;
        // What others serve is theirs to answer.
        if let Some(remote) = self.aggregator.remote(info) {
            return self.pass_on(call, content, &user, &remote).await;
        }
        // 5. Paths that are no resources.
        if !info.is_resource {
            let _admitted = self.take_seats(call, &user).await?;
            if let Some(response) = self.merged_document(info, headers).await {
                return Ok(response);
            }
            return self.non_resource(info, headers);
        }
        // 6. The kind, and what the client wants to read.
        let Some(kind) = call.kind else {
            let known = self.registry.kinds.has_version(&info.group, &info.version);
            return if known {
                Err(Status::no_such_resource())
            } else {
                Ok(respond::page_not_found())
            };
        };
        check_route(kind, info, &call.method)?;
        if let Some(text) = deprecation(kind) {
            call.warnings.add(text);
        }
        // Some lead on to a node or a pod, which then decides all else.
        if call.leads_on() {
            let _admitted = self.take_seats(call, &user).await?;
            self.record_begin(call, &[]);
            let asked = Asked {
                kind,
                info,
                user: &user,
                method: &call.method,
                headers,
                target: &call.target,
                peer: connection.peer,
                upgrade: content.upgrade.take(),
                warnings: &call.warnings,
            };
            return self.lead_on(asked, content.body.take().unwrap_or_default()).await;
        }
        let wanted = self.wanted(kind, info, headers)?;
        if info.verb == "watch" {
            let _admitted = self.take_seats(call, &user).await?;
            return self.watch(kind, info, wanted).await;
        }
        // 7. The body, of bounded size, in bounded time. Whoever is slow to send it takes nobody's place meanwhile.
        let share = Share::of(&user);
        let config = &self.registry.config;
        let began = tokio::time::Instant::now();
        let late = || Status::timeout("request did not complete within the allotted timeout");
        let sent = match &mut content.body {
            Some(body) => {
                let read = bodies::read(body, config.max_body_bytes, self.shares.memory(share));
                tokio::time::timeout(config.request_timeout, read)
                    .await
                    .map_err(|_| late())??
            }
            None => bodies::Content::default(),
        };
        content.body = None;
        // 8. The verb, with a place among those under way.
        let work = Work {
            kind,
            user,
            wanted,
            bytes: sent.bytes.clone(),
        };
        let done = async {
            if self.weight(call, &work) > bodies::SMALL {
                return self.work_aside(call, work, share).await;
            }
            let _admitted = self.take_seats(call, &work.user).await?;
            self.record_begin(call, &work.bytes);
            self.work(call, &work).await
        };
        let left = config.request_timeout.saturating_sub(began.elapsed());
        tokio::time::timeout(left, done).await.map_err(|_| late())?
    }

    /// Tells the audit log who asks. A policy then says what is recorded of the request, and may have that begin here.
    fn begin_audit(&self, call: &Call, user: Option<&Arc<UserInfo>>) -> Result<(), Status> {
        let Some(log) = &self.audit else { return Ok(()) };
        let mut trail = call.trail.lock();
        trail.user = user.cloned();
        match log.begin(&mut trail, &call.info, user.map(|user| &**user), self.registry.now()) {
            true => Ok(()),
            false => Err(Status::internal("failed to store audit event")),
        }
    }

    /// Tells the audit log of a request that may change something before it does, and what it holds.
    fn record_begin(&self, call: &Call, body: &[u8]) {
        let Some(log) = &self.audit else { return };
        let mut trail = call.trail.lock();
        if trail.coverage.level >= audit::Level::Request {
            trail.request_object = audit::request_object(body, &call.headers, &trail.coverage);
        }
        if call.is_write() || call.leads_on() {
            trail.name_created(body);
            if !log.has_policy() {
                log.record(&trail, Stage::RequestReceived, None, self.registry.now());
            }
        }
    }

    /// About how many bytes must be taken apart and put together for a request.
    fn weight(&self, call: &Call, work: &Work) -> usize {
        let (info, wanted) = (&call.info, work.wanted);
        let is_plain = wanted.format == Format::Json && wanted.shape == Shape::Object && !wanted.pretty;
        let reads_stored = match info.verb {
            "get" => !is_plain,
            "patch" | "update" | "delete" => true,
            _ => !info.subresource.is_empty(),
        };
        let stored = || {
            let key = kinds::key(work.kind, &info.namespace, &info.name);
            self.registry.store.get(&key).map_or(0, |item| item.record.size())
        };
        let stored = match reads_stored && !info.name.is_empty() && work.kind.is_stored() {
            true => stored(),
            false => 0,
        };
        let sent = match info.is_mutating() {
            true => work.bytes.len(),
            false => 0,
        };
        // What is stored was taken apart before, and mostly by the cluster's own components.
        sent + stored / 4
    }

    /// What takes long is done on a thread of its own, a few at a time: it would keep the threads that all requests share
    /// from serving any.
    async fn work_aside(
        self: &Arc<Self>,
        call: &Arc<Call>,
        work: Work,
        share: Share,
    ) -> Result<Response<Body>, Status> {
        let turn = self.shares.turn(share).await;
        let admitted = self.take_seats(call, &work.user).await?;
        self.record_begin(call, &work.bytes);
        let (server, call, runtime) = (self.clone(), call.clone(), tokio::runtime::Handle::current());
        aside(move || {
            let _held = admitted;
            runtime.block_on(shares::with_turn(turn, server.work(&call, &work)))
        })
        .await
    }

    async fn work(&self, call: &Call, work: &Work) -> Result<Response<Body>, Status> {
        let (info, headers) = (&call.info, &call.headers);
        let ctx = Context {
            info,
            user: &work.user,
            headers,
            now: self.registry.now(),
            options: WriteOptions::parse(info.verb, patch::is_apply(headers), &info.query, headers)?,
            warnings: &call.warnings,
        };
        self.dispatch(work.kind, &work.bytes, headers, &ctx, work.wanted).await
    }

    async fn user(
        &self,
        info: &RequestInfo,
        headers: &HeaderMap,
        connection: &Connection,
    ) -> Result<Arc<UserInfo>, Status> {
        if let Some(user) = &connection.trusted_user {
            return Ok(user.clone());
        }
        let now = self.registry.now();
        let authenticator = &self.registry.authenticator;
        let certificate = connection.certificate.as_ref();
        match authenticator
            .authenticate(headers, certificate, now, &*self.registry)
            .await
        {
            Ok(Some(user)) => Ok(user),
            Ok(None) if authenticator.takes_anonymous(&info.path) => Ok(Arc::new(UserInfo::anonymous())),
            Ok(None) => Err(Status::unauthorized()),
            Err(e) => {
                tracing::debug!(err = %e, "failed to authenticate request");
                Err(e.status())
            }
        }
    }

    fn impersonated(
        &self,
        user: Arc<UserInfo>,
        info: &RequestInfo,
        headers: &HeaderMap,
    ) -> Result<Arc<UserInfo>, Status> {
        if !headers.keys().any(|k| k.as_str().starts_with("impersonate-")) {
            return Ok(user);
        }
        let authorizer = &self.registry.authorizer;
        let allowed = |attributes: &Attributes<'_>| authorizer.authorize(attributes, &*self.registry);
        let selected = Selected::of(info);
        let other = crate::authn::impersonate(&selected.attributes(info, &user), headers, &allowed)?;
        Ok(other.map_or(user, Arc::new))
    }

    async fn authorize(&self, call: &Call, user: &UserInfo) -> Result<(), Status> {
        let selected = Selected::of(&call.info);
        let attributes = selected.attributes(&call.info, user);
        let decision = self.registry.authorizer.decide(&attributes, &*self.registry).await;
        let failed = decision.error.as_ref().filter(|_| !decision.allowed);
        let reason = match failed {
            Some(_) => "internal error".into(),
            None => decision.reason.clone(),
        };
        call.trail.lock().decision = Some((decision.allowed, reason));
        match (decision.allowed, failed) {
            (true, _) => Ok(()),
            (false, Some(error)) => Err(Status::internal(error.to_string())),
            (false, None) => Err(authz::forbidden(&attributes, &decision.reason)),
        }
    }

    fn wanted(&self, kind: &KindDef, info: &RequestInfo, headers: &HeaderMap) -> Result<Representation, Status> {
        let wanted = negotiate::accept(headers, wants_pretty(info, headers))?;
        // Questions have no table: there is nothing to list.
        if wanted.shape == Shape::Table && kind.verbs == Verbs::CreateOnly {
            return Err(Status::not_acceptable(
                "only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf",
            ));
        }
        if info.verb == "watch" && wanted.format == Format::Yaml {
            return Err(Status::not_acceptable(
                "only the following media types are accepted: application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch",
            ));
        }
        check_shape(kind, info, wanted.shape)?;
        // Of objects whose type only their definition knows there is no protobuf.
        if wanted.format == Format::Protobuf && wanted.shape == Shape::Object && kind.custom.is_some() {
            return negotiate::without_protobuf(headers, wanted);
        }
        Ok(wanted)
    }

    async fn watch(
        &self,
        kind: &'static KindDef,
        info: &RequestInfo,
        wanted: Representation,
    ) -> Result<Response<Body>, Status> {
        if !kind.is_stored() {
            return Err(Status::method_not_allowed());
        }
        self.registry.await_start(info).await?;
        let watch = self.registry.watch(kind, info, wanted, self.shutdown.clone())?;
        let mut guard = self.metrics.long_running(info);
        if info.query.get("fieldSelector").is_none_or(str::is_empty) {
            guard = guard.and(self.flow_control.watches(&info.group, &info.resource));
        }
        Ok(respond::watch(watch, wanted, guard))
    }

    async fn carry_out(
        &self,
        kind: &'static KindDef,
        bytes: &[u8],
        headers: &HeaderMap,
        ctx: &Context<'_>,
        wanted: Representation,
    ) -> Result<Response<Body>, Status> {
        let (registry, info) = (&self.registry, ctx.info);
        let include = IncludeObject::parse(info.query.get("includeObject"))?;
        if !info.subresource.is_empty() {
            let outcome = registry.subresource(kind, bytes, headers, ctx).await?;
            return Ok(respond::outcome(registry, kind, outcome, wanted, include));
        }
        let outcome = match (info.verb, kind.verbs) {
            ("create", Verbs::CreateOnly) => registry.create_only(kind, bytes, headers, ctx).await?,
            ("get" | "list", Verbs::ReadOnly) if usage::serves(kind) => {
                VerbResult::ok(self.measured(kind, info).await?)
            }
            ("get", Verbs::ReadOnly) => VerbResult::ok(computed::get(self, kind, &info.name)?),
            ("list", Verbs::ReadOnly) => VerbResult::ok(computed::list(self, kind)),
            ("list", _) => {
                let options = ListOptions::parse(kind, info)?;
                let page = registry.presented_page(kind, &options).await?;
                let selective = !options.filter.is_empty();
                let prefix = kinds::key_prefix(kind, Some(&info.namespace));
                let listing = Listing {
                    kind,
                    page,
                    prefix,
                    selective,
                    wanted,
                    include,
                    gzip: respond::accepts_gzip(headers),
                };
                return self.list(listing, Share::of(ctx.user)).await;
            }
            ("get", _) => {
                registry.check_revision(info.query.get("resourceVersion").unwrap_or(""))?;
                registry.get(kind, &info.namespace, &info.name).await?
            }
            ("create", _) => registry.create(kind, bytes, headers, ctx).await?,
            ("update", _) => registry.update(kind, &Endpoint::MAIN, bytes, headers, ctx).await?,
            ("patch", _) => registry.patch(kind, &Endpoint::MAIN, bytes, headers, ctx).await?,
            ("delete", _) => registry.delete(kind, bytes, ctx).await?,
            ("deletecollection", _) => {
                let page = registry.delete_collection(kind, bytes, ctx).await?;
                let listing = Listing {
                    kind,
                    page,
                    prefix: String::new(),
                    selective: true,
                    wanted,
                    include,
                    gzip: respond::accepts_gzip(headers),
                };
                return Ok(listing.respond(registry));
            }
            _ => return Err(Status::method_not_allowed()),
        };
        Ok(respond::outcome(registry, kind, outcome, wanted, include))
    }

    /// A list, begun aside if that takes long.
    async fn list(&self, listing: Listing, share: Share) -> Result<Response<Body>, Status> {
        if !listing.is_heavy() {
            return Ok(listing.respond(&self.registry));
        }
        let (turn, registry) = (self.shares.turn(share).await, self.registry.clone());
        aside(move || {
            let _turn = turn;
            Ok(listing.respond(&registry))
        })
        .await
    }

    fn non_resource(&self, info: &RequestInfo, headers: &HeaderMap) -> Result<Response<Body>, Status> {
        if info.path.starts_with("//") {
            return Ok(respond::page_not_found());
        }
        if let Some(mut response) = health::respond(self, &info.path, &info.query) {
            respond::never_sniff(&mut response);
            return Ok(response);
        }
        if !matches!(info.verb, "get" | "head") {
            return Err(Status::method_not_allowed());
        }
        if let Some(text) = self.flow_control.dump(&info.path, &info.query, self.registry.now()) {
            return Ok(respond::plain(200, "text/plain; charset=utf-8", text));
        }
        let config = &self.registry.config;
        let address = config.external_address();
        let custom = self.registry.kinds.snapshot();
        if let Some(response) = discovery::respond(&custom, &info.path, headers, &address) {
            return Ok(respond::compressed(response, headers));
        }
        if let Some(response) = openapi::respond(&custom, &info.path, &info.query, headers) {
            return Ok(respond::compressed(response, headers));
        }
        match info.path.trim_end_matches('/') {
            "" => Ok(respond::indented_json(
                200,
                &json!({"paths": root_paths(&custom, self.aggregator.root_paths())}),
            )),
            "/version" => Ok(respond::indented_json(200, &discovery::version())),
            "/metrics" => Ok(respond::plain(
                200,
                "text/plain; version=0.0.4; charset=utf-8",
                self.render_metrics(),
            )),
            "/.well-known/openid-configuration" => Ok(respond::json(
                200,
                &self.registry.authenticator.issuer().openid_configuration(&address),
            )),
            "/openid/v1/jwks" => Ok(respond::plain(
                200,
                "application/jwk-set+json",
                self.registry.authenticator.issuer().jwks().to_string(),
            )),
            path => {
                // An unknown version of a known group is a missing resource, anything else no place at all.
                let words: Vec<&str> = path.split('/').skip(1).collect();
                let known = match words.as_slice() {
                    ["api", _] => true,
                    ["apis", group, _] => self.registry.kinds.has_group(group),
                    _ => false,
                };
                if known {
                    Err(Status::no_such_resource())
                } else {
                    Ok(respond::page_not_found())
                }
            }
        }
    }

    fn render_metrics(&self) -> String {
        let store = &self.registry.store;
        let custom = self.registry.kinds.snapshot();
        let objects: Vec<(String, usize)> = orlop_api::kinds::all()
            .chain(custom.stored())
            .filter(|k| k.is_stored() && k.stored_as.is_empty())
            .map(|k| (k.store_prefix(), store.count(&kinds::key_prefix(k, None))))
            .collect();
        let mut text = self
            .metrics
            .render(&store.stats(), &objects, &self.connections.counts());
        self.aggregator.write_metrics(&mut text);
        self.flow_control.write_metrics(&mut text);
        self.registry.dynamic_admission.metrics.render(&mut text);
        self.registry.kinds.conversions.render(&mut text);
        health::write_metrics(self, &mut text);
        if let Some(log) = &self.audit {
            log.write_metrics(&mut text);
        }
        self.registry.authenticator.write_metrics(&mut text);
        self.registry.authorizer.write_metrics(&mut text);
        if let Some(encryption) = &self.encryption {
            encryption.write_metrics(&mut text);
        }
        text
    }
}

/// Whether the path leads to the kind, and whether the method can be used there.
fn check_route(kind: &KindDef, info: &RequestInfo, method: &Method) -> Result<(), Status> {
    let in_namespace = !info.namespace.is_empty() && kind.plural != "namespaces";
    let verbs = kind.verbs.names();
    let lists = verbs.contains(&"list");
    let (there, allowed) = match (info.name.is_empty(), info.subresource.is_empty()) {
        // A collection; of a namespaced kind also all namespaces at once, to look at.
        (true, _) => {
            let everywhere = kind.namespaced && !in_namespace;
            let there = if everywhere {
                lists
            } else {
                kind.namespaced == in_namespace
            };
            let looks = matches!(info.verb, "list" | "watch");
            let changes = matches!(info.verb, "create" | "deletecollection") && !everywhere;
            (there, (looks || changes) && verbs.contains(&info.verb))
        }
        (false, true) => {
            let there = kind.namespaced == in_namespace && verbs.contains(&"get");
            let item = matches!(info.verb, "get" | "watch" | "update" | "patch" | "delete");
            (there, item && verbs.contains(&info.verb))
        }
        (false, false) => match kind.subresource(&info.subresource) {
            Some(sub) => (kind.namespaced == in_namespace, sub.verbs.contains(&info.verb)),
            None => (false, false),
        },
    };
    // HEAD and OPTIONS are known to proxies alone.
    let is_proxy = info.subresource == "proxy";
    let allowed = match *method {
        Method::HEAD => allowed && is_proxy,
        Method::OPTIONS => is_proxy,
        _ => allowed,
    };
    match (there, allowed) {
        (true, true) => Ok(()),
        (true, false) => Err(Status::method_not_allowed()),
        (false, _) => Err(Status::no_such_resource()),
    }
}

/// A list is not one object, and one object is no list, whatever form is asked for.
fn check_shape(kind: &KindDef, info: &RequestInfo, shape: Shape) -> Result<(), Status> {
    let name = internal_type_name(kind);
    match (shape, info.verb) {
        (Shape::PartialObjectMetadata, "list") => Err(Status::not_acceptable(format!(
            "you requested PartialObjectMetadata, but the requested object is a list (*{name}List)"
        ))),
        (Shape::PartialObjectMetadataList, "get" | "create" | "update" | "patch") => Err(Status::not_acceptable(
            format!("you requested PartialObjectMetadataList, but the requested object is not a list (*{name})"),
        )),
        _ => Ok(()),
    }
}

/// Kinds that clients had better not use any more.
fn deprecation(kind: &KindDef) -> Option<String> {
    if let Some(served) = custom::of(kind) {
        return served.version().deprecation.clone();
    }
    let text = match (kind.group, kind.kind) {
        ("", "ComponentStatus") => Some("v1 ComponentStatus is deprecated in v1.19+"),
        ("", "Endpoints") => Some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"),
        _ => None,
    };
    text.map(str::to_string)
}

fn wants_pretty(info: &RequestInfo, headers: &HeaderMap) -> bool {
    let asked = info.query.get("pretty").map(|_| info.query.flag("pretty"));
    asked.unwrap_or_else(|| is_for_eyes(headers))
}

/// People with a browser or curl like line breaks. Upstream: the same three.
fn is_for_eyes(headers: &HeaderMap) -> bool {
    let agent = headers
        .get(http::header::USER_AGENT)
        .and_then(|v| v.to_str().ok())
        .unwrap_or("");
    ["curl", "Wget", "Mozilla/5.0"].iter().any(|a| agent.starts_with(a))
}

/// What a request selects, for authorisation: a right to one name or one node's pods may depend on it.
struct Selected {
    name: String,
    fields: Option<FieldSelector>,
    labels: Option<LabelSelector>,
}

impl Selected {
    fn of(info: &RequestInfo) -> Selected {
        let selects = info.name.is_empty() && matches!(info.verb, "list" | "watch" | "deletecollection");
        let query = |name: &str| info.query.get(name).filter(|text| selects && !text.is_empty());
        let fields = query("fieldSelector").and_then(|s| FieldSelector::parse(s).ok());
        let labels = query("labelSelector").and_then(|s| LabelSelector::parse(s).ok());
        let name = fields
            .as_ref()
            .and_then(|s| s.exact("metadata.name"))
            .unwrap_or(&info.name)
            .to_string();
        Selected { name, fields, labels }
    }

    /// What authorisation is asked.
    fn attributes<'a>(&'a self, info: &'a RequestInfo, user: &'a UserInfo) -> Attributes<'a> {
        if !info.is_resource {
            return Attributes::path(user, info.verb, &info.path);
        }
        let attributes = Attributes {
            version: &info.version,
            field_selector: self.fields.as_ref(),
            label_selector: self.labels.as_ref(),
            ..Attributes::resource(user, info.verb, &info.group, &info.resource)
        };
        attributes
            .in_namespace(&info.namespace)
            .named(&self.name)
            .subresource(&info.subresource)
    }
}

/// `others` are those of extension API servers.
fn root_paths(custom: &Snapshot, others: Vec<String>) -> Vec<String> {
    let mut paths: Vec<String> = [
        "/.well-known/openid-configuration",
        "/api",
        "/api/v1",
        "/apis",
        "/apis/",
    ]
    .iter()
    .chain(&[
        "/healthz",
        "/livez",
        "/metrics",
        "/openapi/v2",
        "/openapi/v3",
        "/openid/v1/jwks",
        "/readyz",
        "/version",
    ])
    .map(|p| p.to_string())
    .collect();
    let all = orlop_api::kinds::all().chain(custom.served());
    for kind in all.filter(|k| !k.group.is_empty()) {
        paths.push(format!("/apis/{}", kind.group));
        paths.push(format!("/apis/{}/{}", kind.group, kind.version));
    }
    paths.extend(others);
    paths.sort();
    paths.dedup();
    paths
}

fn add_headers(headers: &mut HeaderMap, warnings: &Warnings, audit_id: HeaderValue) {
    // What may be kept says so itself.
    let keep = HeaderValue::from_static("no-cache, private");
    headers.entry("cache-control").or_insert(keep);
    headers.insert("audit-id", audit_id);
    for text in warnings.take() {
        let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let quoted = format!("299 - \"{}\"", clean.replace('\\', "\\\\").replace('"', "\\\""));
        if let Ok(value) = HeaderValue::from_bytes(quoted.as_bytes()) {
            headers.append(WARNING, value);
        }
    }
}

/// Runs what takes long on a thread of its own. A panic there goes on here.
async fn aside(
    work: impl FnOnce() -> Result<Response<Body>, Status> + Send + 'static,
) -> Result<Response<Body>, Status> {
    match tokio::task::spawn_blocking(work).await {
        Ok(answer) => answer,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(Status::unavailable("the server is stopping")),
        },
    }
}

/// A verb to be carried out.
struct Work {
    kind: &'static KindDef,
    user: Arc<UserInfo>,
    wanted: Representation,
    bytes: Bytes,
}

#[cfg(test)]
mod tests;
