//! The API over the objects: requests in, answers and watches out, and all that can go wrong on the way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use orlop_api::selector::{FieldSelector, LabelSelector};
use orlop_base::Random;
use orlop_base::clock::Shift;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use super::faults::{Fault, Faults};
use super::parts;
use super::store::{ListSelector, ObjectPath, Refusal, Store, StoreResult};

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Body = UnsyncBoxBody<Bytes, BoxError>;

/// A watch says every so often how far it is.
const BOOKMARKS: Duration = Duration::from_secs(60);

/// A request as a test sees it.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub method: Method,
    /// Without the query.
    pub path: String,
    pub query: Vec<(String, String)>,
    pub body: Value,
    pub content_type: String,
    /// The account of the controller that asks.
    pub by: String,
}

impl Call {
    pub(crate) fn is_write(&self) -> bool {
        self.method != Method::GET
    }

    pub(crate) fn parameter(&self, name: &str) -> &str {
        self.query
            .iter()
            .find(|(key, _)| key == name)
            .map_or("", |(_, value)| value)
    }
}

/// May answer a request in the server's stead.
pub(super) type Hook = Box<dyn FnMut(&Call, &mut Store) -> Option<StoreResult<Value>> + Send>;

/// What all connections share.
pub(super) struct Shared {
    pub store: Mutex<Store>,
    pub faults: Mutex<(Faults, Random)>,
    pub hook: Mutex<Option<Hook>>,
    /// Method, path, by whom, and the answer's code (0: none).
    pub log: Mutex<Vec<(Call, u16)>>,
    revision: watch::Sender<u64>,
    in_flight: AtomicUsize,
    last_activity: Mutex<Instant>,
    start: (jiff::Timestamp, Instant),
}

impl Shared {
    pub(super) fn new(store: Store, seed: u64) -> Arc<Shared> {
        let start = (store.clock.now(), Instant::now());
        Arc::new(Shared {
            revision: watch::Sender::new(store.revision()),
            store: Mutex::new(store),
            faults: Mutex::new((Faults::default(), Random::seeded(seed ^ 0x5EED))),
            hook: Mutex::default(),
            log: Mutex::default(),
            in_flight: AtomicUsize::new(0),
            last_activity: Mutex::new(start.1),
            start,
        })
    }

    /// Wall-clock time goes with tokio's, which a test holds still or lets run.
    pub(super) fn tick(&self) {
        let clock = &self.store.lock().clock;
        let behind = self.start.0.later(self.start.1.elapsed()).duration_since(clock.now());
        clock.advance(behind.try_into().unwrap_or_default());
    }

    /// Watches look again.
    pub(super) fn tell(&self) {
        let revision = self.store.lock().revision();
        self.revision.send_if_modified(|known| {
            let news = *known != revision;
            *known = revision;
            news
        });
    }

    fn active(&self) {
        *self.last_activity.lock() = Instant::now();
    }

    /// For how long nothing has been asked, answered or watched.
    pub(super) fn quiet_for(&self) -> Duration {
        match self.in_flight.load(Ordering::SeqCst) {
            0 => self.last_activity.lock().elapsed(),
            _ => Duration::ZERO,
        }
    }

    fn draw(&self, write: bool) -> Option<Fault> {
        let (faults, random) = &mut *self.faults.lock();
        faults.draw(random, write)
    }
}

/// One client's way to the server.
#[derive(Clone)]
pub(super) struct Connection {
    pub shared: Arc<Shared>,
    pub dead: Arc<AtomicBool>,
    /// Writes until the connection is cut; negative: any number.
    pub writes_left: Arc<AtomicI64>,
}

impl Connection {
    pub(super) fn new(shared: Arc<Shared>) -> Connection {
        Connection {
            shared,
            dead: Arc::default(),
            writes_left: Arc::new(AtomicI64::new(-1)),
        }
    }

    pub(super) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }

    pub(super) fn cut(&self) {
        self.dead.store(true, Ordering::SeqCst);
        // Watches end, too.
        self.shared.revision.send_modify(|_| {});
    }

    fn count_write(&self) {
        if self.writes_left.load(Ordering::SeqCst) > 0 && self.writes_left.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.cut();
        }
    }

    async fn answer(self, call: Call) -> Result<Response<Body>, BoxError> {
        let shared = self.shared.clone();
        if self.is_dead() {
            return Err("the connection is cut".into());
        }
        if call.parameter("watch") == "true" {
            return self.watch(&call);
        }
        shared.active();
        shared.in_flight.fetch_add(1, Ordering::SeqCst);
        let _guard = InFlight(shared.clone());
        // A request takes a moment: others come in between.
        tokio::task::yield_now().await;
        let events = call.path.ends_with("/events") || call.path.contains("/events/");
        let fault = if events { None } else { shared.draw(call.is_write()) };
        let done = match &fault {
            Some(fault) if !fault.done => Err(fault.refusal()),
            _ => self.handle(&call),
        };
        let code = done.as_ref().map_or_else(|refusal| refusal.code, |_| 200);
        let lost = fault.as_ref().is_some_and(|fault| fault.lost);
        shared.log.lock().push((call.clone(), if lost { 0 } else { code }));
        if call.is_write() && !events && done.is_ok() {
            self.count_write();
        }
        match fault {
            Some(fault) if fault.silent => std::future::pending().await,
            Some(fault) if fault.lost => Err("the connection broke".into()),
            _ => Ok(respond(code, done)),
        }
    }

    fn handle(&self, call: &Call) -> StoreResult<Value> {
        self.shared.tick();
        let answer = {
            let mut hook = self.shared.hook.lock();
            let mut store = self.shared.store.lock();
            let hooked = hook.as_mut().and_then(|hook| hook(call, &mut store));
            hooked.unwrap_or_else(|| route(call, &mut store))
        };
        self.shared.tell();
        answer
    }

    fn watch(self, call: &Call) -> Result<Response<Body>, BoxError> {
        self.shared.active();
        if let Some(fault) = self.shared.draw(false) {
            let refusal = fault.refusal();
            return Ok(respond(refusal.code, Err(refusal)));
        }
        let target = match target(&call.path) {
            Ok((place, _)) => wanted(place, call),
            Err(refusal) => Err(refusal),
        };
        let wanted = match target {
            Ok(wanted) => wanted,
            Err(refusal) => return Ok(respond(refusal.code, Err(refusal))),
        };
        let seconds = call.parameter("timeoutSeconds").parse().unwrap_or(300);
        let since: u64 = call.parameter("resourceVersion").parse().unwrap_or(0);
        let mut first = String::new();
        let mut position = since;
        if since == 0 {
            let store = self.shared.store.lock();
            for object in store.list(&wanted) {
                first.push_str(&format!("{{\"type\":\"ADDED\",\"object\":{object}}}\n"));
            }
            position = store.revision();
            if call.parameter("sendInitialEvents") == "true" {
                first.push_str(&bookmark(position, true));
            }
        }
        let watching = Watching {
            revision: self.shared.revision.subscribe(),
            connection: self,
            wanted,
            position,
            first: Some(first).filter(|first| !first.is_empty()),
            end: Instant::now().later(Duration::from_secs(seconds)),
        };
        let frames = futures::stream::unfold(watching, Watching::next);
        Ok(Response::new(UnsyncBoxBody::new(StreamBody::new(Box::pin(frames)))))
    }
}

struct InFlight(Arc<Shared>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::SeqCst);
        self.0.active();
    }
}

struct Watching {
    connection: Connection,
    wanted: ListSelector,
    position: u64,
    revision: watch::Receiver<u64>,
    first: Option<String>,
    end: Instant,
}

type Frames = Result<Frame<Bytes>, BoxError>;

impl Watching {
    async fn next(mut self) -> Option<(Frames, Watching)> {
        if let Some(first) = self.first.take() {
            return Some((Ok(Frame::data(first.into())), self));
        }
        let mut quiet_until = Instant::now().later(BOOKMARKS);
        loop {
            self.revision.borrow_and_update();
            if self.connection.is_dead() {
                return Some((Err("the connection is cut".into()), self));
            }
            if Instant::now() >= self.end {
                return None;
            }
            let shared = self.connection.shared.clone();
            if shared.store.lock().revision() > self.position {
                let (lag, broken) = {
                    let (faults, random) = &mut *shared.faults.lock();
                    (faults.lag(random), faults.breaks(random))
                };
                if !lag.is_zero() {
                    shared.active();
                    tokio::time::sleep(lag).await;
                }
                if broken {
                    return Some((Err("the connection broke".into()), self));
                }
                let (lines, position) = shared.store.lock().changes(&self.wanted, self.position);
                self.position = position;
                if !lines.is_empty() {
                    shared.active();
                    return Some((Ok(Frame::data(lines.concat().into())), self));
                }
            }
            if Instant::now() >= quiet_until {
                let line = bookmark(self.position, false);
                return Some((Ok(Frame::data(line.into())), self));
            }
            quiet_until = quiet_until.min(self.end);
            let _ = tokio::time::timeout_at(quiet_until, self.revision.changed()).await;
        }
    }
}

fn bookmark(revision: u64, ends_initial: bool) -> String {
    let annotations = match ends_initial {
        true => json!({"k8s.io/initial-events-end": "true"}),
        false => json!({}),
    };
    let meta = json!({"resourceVersion": revision.to_string(), "annotations": annotations});
    format!("{{\"type\":\"BOOKMARK\",\"object\":{{\"metadata\":{meta}}}}}\n")
}

fn respond(code: u16, answer: StoreResult<Value>) -> Response<Body> {
    let body = answer.unwrap_or_else(|refusal| refusal.body());
    let body = Full::new(Bytes::from(body.to_string())).map_err(|never| match never {});
    let response = Response::builder().status(code).body(body.boxed_unsync());
    response.expect("a response of known parts")
}

/// What a path names, and which part of it.
pub(super) fn target(path: &str) -> StoreResult<(ObjectPath, String)> {
    let unknown = || Refusal::new(404, "NotFound", format!("the server could not find {path}"));
    let mut segments: Vec<String> = path.trim_matches('/').split('/').map(unescape).collect();
    let versions = if segments[0] == "api" { 2 } else { 3 };
    if segments.len() <= versions || !matches!(segments[0].as_str(), "api" | "apis") {
        return Err(unknown());
    }
    let group = if versions == 2 {
        String::new()
    } else {
        segments[1].clone()
    };
    segments.drain(..versions);
    let mut namespace = String::new();
    // `namespaces/x/status` is a part of a namespace, `namespaces/x/pods` is something in it.
    let in_namespace =
        segments[0] == "namespaces" && segments.len() >= 3 && !matches!(segments[2].as_str(), "status" | "finalize");
    if in_namespace {
        namespace = segments[1].clone();
        segments.drain(..2);
    }
    let mut rest = segments.into_iter();
    let resource = rest.next().ok_or_else(unknown)?;
    let (name, part) = (rest.next().unwrap_or_default(), rest.next().unwrap_or_default());
    Ok((
        ObjectPath {
            collection: super::collection(&group, &resource),
            namespace,
            name,
        },
        part,
    ))
}

fn wanted(place: ObjectPath, call: &Call) -> StoreResult<ListSelector> {
    let bad = |message: String| Refusal::new(400, "BadRequest", message);
    Ok(ListSelector {
        place,
        labels: LabelSelector::parse(call.parameter("labelSelector")).map_err(bad)?,
        fields: FieldSelector::parse(call.parameter("fieldSelector")).map_err(bad)?,
    })
}

fn route(call: &Call, store: &mut Store) -> StoreResult<Value> {
    let (place, part) = target(&call.path)?;
    if !matches!(part.as_str(), "" | "status" | "finalize" | "approval") {
        return parts::handle(call, store, &place, &part);
    }
    let found = |object: Arc<Value>| (*object).clone();
    match (&call.method, place.name.is_empty()) {
        (&Method::GET, true) => {
            let items = store.list(&wanted(place, call)?);
            let items: Vec<&Value> = items.iter().map(|item| &**item).collect();
            Ok(json!({"kind": "List", "apiVersion": "v1", "metadata":
                {"resourceVersion": store.revision().to_string()}, "items": items}))
        }
        (&Method::GET, false) => store.get(&place).map(found),
        (&Method::POST, true) => store.create(&place, call.body.clone(), false).map(found),
        (&Method::PUT, false) => {
            let body = call.body.clone();
            let change = |object: &mut Value| {
                *object = body;
                Ok(())
            };
            store.update(&place, &part, change).map(found)
        }
        (&Method::PATCH, false) => {
            let applied = call.content_type.contains("apply-patch");
            if applied && store.get(&place).is_err() {
                let collection = ObjectPath {
                    name: String::new(),
                    ..place
                };
                return store.create(&collection, call.body.clone(), false).map(found);
            }
            store.update(&place, &part, |object| patch(object, call)).map(found)
        }
        (&Method::DELETE, false) => store.delete(&place, &call.body).map(found),
        (&Method::DELETE, true) => {
            let all = store.list(&wanted(place.clone(), call)?);
            for object in all {
                let text = |field: &str| object["metadata"][field].as_str().unwrap_or("").to_string();
                let one = ObjectPath {
                    collection: place.collection.clone(),
                    namespace: text("namespace"),
                    name: text("name"),
                };
                store.delete(&one, &call.body)?;
            }
            Ok(json!({"kind": "Status", "status": "Success"}))
        }
        _ => Err(Refusal::new(405, "MethodNotAllowed", "not allowed here")),
    }
}

/// Strategic merge patches and server-side apply are taken as merge patches.
pub(super) fn patch(object: &mut Value, call: &Call) -> StoreResult<()> {
    if call.content_type.contains("json-patch") {
        let operations: json_patch::Patch =
            serde_json::from_value(call.body.clone()).map_err(|e| Refusal::new(400, "BadRequest", e.to_string()))?;
        return json_patch::patch(object, &operations).map_err(|e| Refusal::new(422, "Invalid", e.to_string()));
    }
    if call.content_type.contains("strategic") {
        let text = |field: &str| object[field].as_str().unwrap_or("").to_string();
        let kind = orlop_api::schema::schema().kind(&text("apiVersion"), &text("kind"));
        let kind = kind.ok_or_else(|| Refusal::new(415, "UnsupportedMediaType", "a kind without strategic patches"))?;
        return orlop_api::patch::strategic::apply(object, call.body.clone(), kind)
            .map_err(|e| Refusal::new(422, "Invalid", format!("{e:?}")));
    }
    json_patch::merge(object, &call.body);
    Ok(())
}

fn unescape(text: &str) -> String {
    let mut bytes = vec![];
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let hex = |b: Option<u8>| b.and_then(|b| (b as char).to_digit(16)).unwrap_or(0) as u8;
        match byte {
            b'%' => bytes.push(hex(rest.next()) << 4 | hex(rest.next())),
            b'+' => bytes.push(b' '),
            byte => bytes.push(byte),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

impl<B> tower::Service<Request<B>> for Connection
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: std::fmt::Debug,
{
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let connection = self.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.expect("a body").to_bytes();
            let header = |name| parts.headers.get(name).map_or("", |v| v.to_str().unwrap()).to_string();
            let query = parts
                .uri
                .query()
                .unwrap_or("")
                .split('&')
                .filter(|pair| !pair.is_empty());
            let call = Call {
                path: parts.uri.path().to_string(),
                query: query
                    .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
                    .map(|(key, value)| (unescape(key), unescape(value)))
                    .collect(),
                body: serde_json::from_slice(&body).unwrap_or(Value::Null),
                content_type: header("content-type"),
                by: header("user-agent"),
                method: parts.method,
            };
            connection.answer(call).await
        })
    }
}
