//! The request chain: every request, from the network or from inside the process, takes these steps in this order.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::header::{HeaderValue, WARNING};
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt, Collected, Limited};
use orlop_api::kind::Verbs;
use orlop_api::selector::{FieldSelector, LabelSelector};
use orlop_api::{KindDef, Status};
use orlop_base::clock::Shift;
use orlop_base::{BoxFuture, Shutdown};
use serde_json::json;

use crate::audit::AuditLog;
use crate::authn::{CertIdentity, UserInfo};
use crate::authz::{self, Attributes};
use crate::connect::{self, AnyBody, Asked, BodyError, Nodes};
use crate::health::Health;
use crate::metrics::{InFlight, Metrics};
use crate::negotiate::{self, Format, Shape, Wanted};
use crate::registry::body::internal_type_name;
use crate::registry::list::ListOptions;
use crate::registry::patch;
use crate::registry::update::Endpoint;
use crate::registry::{Context, Outcome, Registry, Warnings, WriteOptions};
use crate::request::RequestInfo;
use crate::respond::{self, Body};
use crate::table::IncludeObject;
use crate::{computed, discovery, health, kinds, openapi, usage};

/// The API server without its listener: requests in, responses out.
pub struct Server {
    pub registry: Arc<Registry>,
    pub nodes: Nodes,
    pub(crate) usage: usage::Kept,
    pub health: Health,
    pub metrics: Metrics,
    pub audit: Option<AuditLog>,
    pub shutdown: Shutdown,
}

/// What the transport knows of a client.
#[derive(Default)]
pub struct Connection {
    pub peer: Option<IpAddr>,
    pub certificate: Option<CertIdentity>,
    /// Who calls from inside the process; set only by the in-process transport.
    pub trusted_user: Option<Arc<UserInfo>>,
}

/// What a request holds besides its headers.
struct Content<'a> {
    body: AnyBody,
    /// Path and query as they came.
    target: &'a str,
    /// The way out of HTTP, on a connection that has one.
    upgrade: Option<hyper::upgrade::OnUpgrade>,
}

impl Server {
    /// Bodies of all kinds take the same way, behind one type: the whole chain would be compiled for each of them.
    pub fn handle<'a, B>(
        self: &'a Arc<Self>,
        request: Request<B>,
        connection: &'a Connection,
    ) -> BoxFuture<'a, Response<Body>>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BodyError>,
    {
        self.boxed_answer(request.map(|body| body.map_err(Into::into).boxed_unsync()), connection)
    }

    fn boxed_answer<'a>(
        self: &'a Arc<Self>,
        request: Request<AnyBody>,
        connection: &'a Connection,
    ) -> BoxFuture<'a, Response<Body>> {
        Box::pin(self.answer(request, connection))
    }

    async fn answer(self: &Arc<Self>, request: Request<AnyBody>, connection: &Connection) -> Response<Body> {
        let started = std::time::Instant::now();
        let received = self.registry.now();
        let (mut parts, body) = request.into_parts();
        let target = parts
            .uri
            .path_and_query()
            .map_or("/", |target| target.as_str())
            .to_string();
        let content = Content {
            body,
            target: &target,
            upgrade: parts.extensions.remove(),
        };
        // 1. What is asked for.
        let info = RequestInfo::parse(&parts.method, parts.uri.path(), parts.uri.query().unwrap_or(""));
        let kind = kinds::of_resource(&info.group, &info.version, &info.resource);
        let warnings = Warnings::default();
        let mut user = None;
        let download = connect::download_of(&info, &parts.headers, content.upgrade.as_ref());
        let result = self
            .serve(
                &parts.method,
                &info,
                kind,
                &parts.headers,
                content,
                connection,
                &warnings,
                &mut user,
            )
            .await;
        let mut response = result.unwrap_or_else(|status| {
            let pretty = wants_pretty(&info, &parts.headers);
            let wanted = negotiate::accept(&parts.headers, pretty).unwrap_or(Wanted { pretty, ..Wanted::JSON });
            respond::error(&status, wanted)
        });
        if let Some(upgrade) = download {
            response = self.over_websocket(&parts.headers, upgrade, response);
        }
        add_headers(response.headers_mut(), &warnings);
        // Last: it is counted and, if wanted, written down.
        let code = response.status().as_u16();
        let took = (!info.is_long_running()).then(|| started.elapsed());
        self.metrics
            .observe(&info, kind.is_some(), info.query.get("dryRun").is_some(), code, took);
        if let Some(audit) = &self.audit {
            audit.record(
                &info,
                &parts.uri.to_string(),
                user.as_deref(),
                code,
                received,
                self.registry.now(),
            );
        }
        response
    }

    #[expect(clippy::too_many_arguments, reason = "the state of one request, used once")]
    async fn serve(
        self: &Arc<Self>,
        method: &Method,
        info: &RequestInfo,
        kind: Option<&'static KindDef>,
        headers: &HeaderMap,
        content: Content<'_>,
        connection: &Connection,
        warnings: &Warnings,
        who: &mut Option<Arc<UserInfo>>,
    ) -> Result<Response<Body>, Status> {
        // 2. Who asks. 3. On whose behalf.
        let user = self.user(headers, connection)?;
        let user = self.impersonated(user, info, headers)?;
        *who = Some(user.clone());
        // 4. Room for one more? Watches and the like do not count: they wait, they do not work.
        // The cluster's own components in this process have bounds of their own (`orlop_client::Api`) and wait there.
        let _in_flight = match connection.trusted_user {
            Some(_) => None,
            None => self.admit_in_flight(info, &user)?,
        };
        // 5. May they?
        self.authorize(info, &user)?;
        // 6. Paths that are no resources.
        if !info.is_resource {
            return self.non_resource(info, headers);
        }
        // 7. The kind, and what the client wants to read.
        let Some(kind) = kind else {
            let known = kinds::has_version(&info.group, &info.version);
            return if known {
                Err(Status::no_such_resource())
            } else {
                Ok(respond::page_not_found())
            };
        };
        check_route(kind, info, method)?;
        if let Some(text) = deprecation(kind) {
            warnings.add(text);
        }
        // Some lead on to a node or a pod, which then decides all else.
        if connect::leads_on(kind, info) {
            let Content { body, target, upgrade } = content;
            let (user, peer) = (&*user, connection.peer);
            let asked = Asked {
                kind,
                info,
                user,
                method,
                headers,
                target,
                peer,
                upgrade,
            };
            return self.lead_on(asked, body).await;
        }
        let wanted = self.wanted(kind, info, headers)?;
        if info.verb == "watch" {
            return self.watch(kind, info, wanted);
        }
        // 8. The body, of bounded size, in bounded time.
        let deadline = tokio::time::Instant::now().later(self.registry.config.request_timeout);
        let bytes = tokio::time::timeout_at(deadline, self.read_body(content.body))
            .await
            .map_err(|_| Status::timeout("the request body did not arrive in time"))??;
        // 9. The verb.
        let ctx = Context {
            info,
            user: &user,
            headers,
            now: self.registry.now(),
            options: WriteOptions::parse(info.verb, patch::is_apply(headers), &info.query, headers)?,
            warnings,
        };
        tokio::time::timeout_at(deadline, self.dispatch(kind, &bytes, headers, &ctx, wanted))
            .await
            .map_err(|_| Status::timeout("request did not complete within the allotted timeout"))?
    }

    fn user(&self, headers: &HeaderMap, connection: &Connection) -> Result<Arc<UserInfo>, Status> {
        if let Some(user) = &connection.trusted_user {
            return Ok(user.clone());
        }
        let now = self.registry.now();
        let found = self
            .registry
            .authenticator
            .authenticate(headers, connection.certificate.as_ref(), now, &*self.registry)
            .map_err(|e| e.status())?;
        Ok(found.unwrap_or_else(|| Arc::new(UserInfo::anonymous())))
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

    fn admit_in_flight(&self, info: &RequestInfo, user: &UserInfo) -> Result<Option<InFlight>, Status> {
        if info.is_long_running() || user.in_group("system:masters") {
            return Ok(None);
        }
        let config = &self.registry.config;
        let (counter, limit) = match info.is_mutating() {
            true => (&self.metrics.in_flight_mutating, config.max_mutating_in_flight),
            false => (&self.metrics.in_flight_readonly, config.max_readonly_in_flight),
        };
        match InFlight::try_enter(counter, limit) {
            Some(guard) => Ok(Some(guard)),
            None => {
                self.metrics.rejected.fetch_add(1, Ordering::Relaxed);
                Err(Status::too_many_requests(
                    "Too many requests, please try again later.",
                    1,
                ))
            }
        }
    }

    fn authorize(&self, info: &RequestInfo, user: &UserInfo) -> Result<(), Status> {
        let selected = Selected::of(info);
        let attributes = selected.attributes(info, user);
        let decision = self.registry.authorizer.authorize(&attributes, &*self.registry);
        if decision.allowed {
            Ok(())
        } else {
            Err(authz::forbidden(&attributes, &decision.reason))
        }
    }

    fn wanted(&self, kind: &KindDef, info: &RequestInfo, headers: &HeaderMap) -> Result<Wanted, Status> {
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
        Ok(wanted)
    }

    async fn read_body(&self, body: AnyBody) -> Result<Bytes, Status> {
        let limit = self.registry.config.max_body_bytes;
        let collected = limited(body, limit).await.map_err(|e| {
            if e.is::<http_body_util::LengthLimitError>() {
                Status::too_large(format!("Request entity too large: limit is {limit}"))
            } else {
                Status::bad_request(format!("the request body could not be read: {e}"))
            }
        })?;
        Ok(collected.to_bytes())
    }

    fn watch(&self, kind: &'static KindDef, info: &RequestInfo, wanted: Wanted) -> Result<Response<Body>, Status> {
        if !kind.is_stored() {
            return Err(Status::method_not_allowed());
        }
        let watch = self.registry.watch(kind, info, wanted, self.shutdown.clone())?;
        Ok(respond::watch(watch, wanted, self.metrics.long_running(info, true)))
    }

    async fn dispatch(
        &self,
        kind: &'static KindDef,
        bytes: &[u8],
        headers: &HeaderMap,
        ctx: &Context<'_>,
        wanted: Wanted,
    ) -> Result<Response<Body>, Status> {
        let (registry, info) = (&self.registry, ctx.info);
        let include = IncludeObject::parse(info.query.get("includeObject"))?;
        if !info.subresource.is_empty() {
            let outcome = registry.subresource(kind, bytes, headers, ctx).await?;
            return Ok(respond::outcome(registry, kind, outcome, wanted, include));
        }
        let outcome = match (info.verb, kind.verbs) {
            ("create", Verbs::CreateOnly) => registry.create_only(kind, bytes, headers, ctx).await?,
            ("get" | "list", Verbs::ReadOnly) if usage::serves(kind) => Outcome::ok(self.measured(kind, info).await?),
            ("get", Verbs::ReadOnly) => Outcome::ok(computed::get(kind, &info.name)?),
            ("list", Verbs::ReadOnly) => Outcome::ok(computed::list(kind)),
            ("list", _) => {
                let options = ListOptions::parse(kind, info)?;
                let page = registry.page(kind, &options)?;
                let selective = !options.filter.is_empty();
                let prefix = kinds::key_prefix(kind, Some(&info.namespace));
                return Ok(respond::list(
                    registry, kind, page, &prefix, selective, wanted, include, headers,
                ));
            }
            ("get", _) => {
                registry.check_revision(info.query.get("resourceVersion").unwrap_or(""))?;
                registry.get(kind, &info.namespace, &info.name)?
            }
            ("create", _) => registry.create(kind, bytes, headers, ctx).await?,
            ("update", _) => registry.update(kind, &Endpoint::MAIN, bytes, headers, ctx).await?,
            ("patch", _) => registry.patch(kind, &Endpoint::MAIN, bytes, headers, ctx).await?,
            ("delete", _) => registry.delete(kind, bytes, ctx).await?,
            ("deletecollection", _) => {
                let page = registry.delete_collection(kind, bytes, ctx).await?;
                return Ok(respond::list(registry, kind, page, "", true, wanted, include, headers));
            }
            _ => return Err(Status::method_not_allowed()),
        };
        Ok(respond::outcome(registry, kind, outcome, wanted, include))
    }

    fn non_resource(&self, info: &RequestInfo, headers: &HeaderMap) -> Result<Response<Body>, Status> {
        if info.path.starts_with("//") {
            return Ok(respond::page_not_found());
        }
        if let Some(mut response) = health::respond(&self.health, &info.path, &info.query) {
            respond::never_sniff(&mut response);
            return Ok(response);
        }
        if !matches!(info.verb, "get" | "head") {
            return Err(Status::method_not_allowed());
        }
        let config = &self.registry.config;
        let address = format!("{}:{}", config.bind, config.port);
        if let Some(response) = discovery::respond(&info.path, headers, &address) {
            return Ok(respond::compressed(response, headers));
        }
        if let Some(response) = openapi::respond(&info.path, &info.query, headers) {
            return Ok(respond::compressed(response, headers));
        }
        match info.path.trim_end_matches('/') {
            "" => Ok(respond::indented_json(200, &json!({"paths": root_paths()}))),
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
                    ["apis", group, _] => orlop_api::kinds::all().any(|k| k.group == *group),
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
        let objects: Vec<(String, usize)> = orlop_api::kinds::all()
            .filter(|k| k.is_stored() && k.stored_as.is_empty())
            .map(|k| (k.store_prefix(), store.count(&kinds::key_prefix(k, None))))
            .collect();
        self.metrics.render(&store.stats(), &objects)
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
fn deprecation(kind: &KindDef) -> Option<&'static str> {
    match (kind.group, kind.kind) {
        ("", "ComponentStatus") => Some("v1 ComponentStatus is deprecated in v1.19+"),
        ("", "Endpoints") => Some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"),
        _ => None,
    }
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

fn root_paths() -> Vec<String> {
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
    for kind in orlop_api::kinds::all().filter(|k| !k.group.is_empty()) {
        paths.push(format!("/apis/{}", kind.group));
        paths.push(format!("/apis/{}/{}", kind.group, kind.version));
    }
    paths.sort();
    paths.dedup();
    paths
}

fn add_headers(headers: &mut HeaderMap, warnings: &Warnings) {
    // What may be kept says so itself.
    let keep = HeaderValue::from_static("no-cache, private");
    headers.entry("cache-control").or_insert(keep);
    headers.insert(
        "audit-id",
        HeaderValue::from_str(&uuid::Uuid::new_v4().to_string()).expect("a uuid is ASCII"),
    );
    for text in warnings.take() {
        let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let quoted = format!("299 - \"{}\"", clean.replace('\\', "\\\\").replace('"', "\\\""));
        if let Ok(value) = HeaderValue::from_bytes(quoted.as_bytes()) {
            headers.append(WARNING, value);
        }
    }
}

/// Outside the async code, where the compiler can't see that the error is one already.
fn limited(body: AnyBody, limit: usize) -> BoxFuture<'static, Result<Collected<Bytes>, BodyError>> {
    Box::pin(Limited::new(body, limit).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_there_or_not_and_take_their_methods_alone() {
        for (method, path, wanted) in [
            ("GET", "/api/v1/pods", 0),
            ("POST", "/api/v1/pods", 405),
            ("DELETE", "/api/v1/pods", 405),
            ("HEAD", "/api/v1/pods", 405),
            ("GET", "/api/v1/pods/x", 404),
            ("POST", "/api/v1/namespaces/d/pods", 0),
            ("PUT", "/api/v1/namespaces/d/pods", 405),
            ("OPTIONS", "/api/v1/namespaces/d/pods/x", 405),
            ("OPTIONS", "/api/v1/namespaces/d/pods/x/proxy", 0),
            ("DELETE", "/api/v1/namespaces/d/pods", 0),
            ("POST", "/api/v1/namespaces/d/pods/x", 405),
            ("PATCH", "/api/v1/namespaces/d/pods/x", 0),
            ("POST", "/api/v1/namespaces/d/pods/x/status", 405),
            ("POST", "/api/v1/namespaces/d/pods/x/binding", 0),
            ("GET", "/api/v1/namespaces/d/pods/x/nosuch", 404),
            ("GET", "/api/v1/namespaces/d/nodes", 404),
            ("GET", "/api/v1/namespaces/d", 0),
            ("DELETE", "/api/v1/namespaces", 405),
            ("PUT", "/api/v1/namespaces/d/finalize", 0),
            ("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", 0),
            ("GET", "/apis/authorization.k8s.io/v1/subjectaccessreviews", 405),
            ("GET", "/apis/authorization.k8s.io/v1/subjectaccessreviews/x", 404),
            ("POST", "/apis/authorization.k8s.io/v1/localsubjectaccessreviews", 404),
        ] {
            let method: Method = method.parse().unwrap();
            let info = RequestInfo::parse(&method, path, "");
            let kind = kinds::of_resource(&info.group, &info.version, &info.resource).unwrap();
            let got = check_route(kind, &info, &method).map_or_else(|s| s.code, |()| 0);
            assert_eq!(got, wanted, "{method} {path}");
        }
    }
}
