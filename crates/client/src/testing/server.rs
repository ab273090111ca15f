//! The API over the objects: requests in, answers and watches out, and all that can go wrong on the way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use orlop_api::selector::{FieldSelector, LabelSelector};
use orlop_base::clock::Shift;
use orlop_base::{Clock, Random};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use super::faults::{Fault, Faults};
use super::parts;
use super::store::{ListSelector, ObjectPath, Refusal, Store, StoreResult, collection};
use crate::Api;
use crate::error::BoxError;

type Body = UnsyncBoxBody<Bytes, BoxError>;

/// A watch says every so often how far it is.
const BOOKMARKS: Duration = Duration::from_secs(60);

/// A request as a test sees it.
#[derive(Clone, Debug)]
pub struct Call {
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
    pub fn is_write(&self) -> bool {
        self.method != Method::GET
    }

    pub fn parameter(&self, name: &str) -> &str {
        self.query
            .iter()
            .find(|(key, _)| key == name)
            .map_or("", |(_, value)| value)
    }
}

/// How a request is answered in the server's stead.
pub enum Reply {
    Now(StoreResult<Value>),
    /// The connection stays open and silent.
    Never,
    /// Answered once the future is done.
    After(
        BoxFuture<'static, ()>,
        Box<dyn FnOnce(&mut Store) -> StoreResult<Value> + Send>,
    ),
}

type Hook = Box<dyn FnMut(&Call, &mut Store) -> Option<Reply> + Send>;

/// An API server in memory. Clones are the same server.
#[derive(Clone)]
pub struct Server {
    shared: Arc<Shared>,
}

/// What all connections share.
struct Shared {
    store: Mutex<Store>,
    faults: Mutex<(Faults, Random)>,
    hook: Mutex<Option<Hook>>,
    /// Requests but for watches, and the answer's code (0: none).
    log: Mutex<Vec<(Call, u16)>>,
    revision: watch::Sender<u64>,
    outage: Mutex<Outage>,
    /// Watches from before the last change of this are broken.
    breaks: AtomicU64,
    /// Watches from before the last change of this fell behind.
    expirations: AtomicU64,
    in_flight: AtomicUsize,
    last_activity: Mutex<Instant>,
    start: (jiff::Timestamp, Instant),
}

/// What the server does not do at present.
#[derive(Clone, Copy, Debug, Default)]
struct Outage {
    /// Anything.
    down: bool,
    /// Be read or watched.
    blind: bool,
    /// Take watches: it answers 429.
    busy: bool,
}

impl Server {
    /// The wall clock goes with tokio's, which a test holds still or lets run. In a runtime.
    pub fn new(clock: Clock, seed: u64) -> Server {
        let store = Store::new(clock, seed);
        let start = (store.clock.now(), Instant::now());
        let shared = Shared {
            revision: watch::Sender::new(store.revision()),
            store: Mutex::new(store),
            faults: Mutex::new((Faults::default(), Random::seeded(seed ^ 0x5EED))),
            hook: Mutex::default(),
            log: Mutex::default(),
            outage: Mutex::default(),
            breaks: AtomicU64::new(0),
            expirations: AtomicU64::new(0),
            in_flight: AtomicUsize::new(0),
            last_activity: Mutex::new(start.1),
            start,
        };
        Server {
            shared: Arc::new(shared),
        }
    }

    /// For requests of the test's own, or of the component under test.
    pub fn api(&self) -> Api {
        Api::in_process(self.connect(), "test")
    }

    pub fn connect(&self) -> Connection {
        Connection {
            shared: self.shared.clone(),
            dead: Arc::default(),
            writes_left: Arc::new(AtomicI64::new(-1)),
        }
    }

    /// What goes wrong from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.shared.faults.lock().0 = faults;
    }

    /// Asked before the server; may answer in its stead.
    pub fn set_hook(&self, hook: impl FnMut(&Call, &mut Store) -> Option<Reply> + Send + 'static) {
        *self.shared.hook.lock() = Some(Box::new(hook));
    }

    /// Wall-clock time goes on as tokio's did.
    pub fn tick(&self) {
        self.shared.tick();
    }

    pub fn read<R>(&self, look: impl FnOnce(&Store) -> R) -> R {
        look(&self.shared.store.lock())
    }

    /// Changes objects as nobody's request; watches see it.
    pub fn write<R>(&self, change: impl FnOnce(&mut Store) -> R) -> R {
        self.shared.tick();
        let done = change(&mut self.shared.store.lock());
        self.shared.tell();
        done
    }

    /// What a test says the object at this path is like, status and all; made if it is not there.
    pub fn put(&self, path: &str, object: Value) {
        let (place, _) = target(path).expect("the path of an object");
        self.write(|store| store.put(&place, object));
    }

    /// Away with it, whatever holds it. False if it is not there.
    pub fn remove(&self, path: &str) -> bool {
        let (place, _) = target(path).expect("the path of an object");
        self.write(|store| store.remove(&place).is_ok())
    }

    pub fn get(&self, path: &str) -> Option<Value> {
        let (place, _) = target(path).expect("the path of an object");
        self.read(|store| store.get(&place).ok().map(|found| (*found).clone()))
    }

    /// All requests but watches, with the codes they were answered with; 0 if no answer came.
    pub fn log(&self) -> Vec<(Call, u16)> {
        self.shared.log.lock().clone()
    }

    /// For how long nothing has been asked, answered or watched.
    pub fn quiet_for(&self) -> Duration {
        match self.shared.in_flight.load(Ordering::SeqCst) {
            0 => self.shared.last_activity.lock().elapsed(),
            _ => Duration::ZERO,
        }
    }

    /// Connections fail, those that are open included.
    pub fn go_away(&self) {
        self.shared.outage.lock().down = true;
        self.break_watches();
    }

    pub fn come_back(&self) {
        self.shared.outage.lock().down = false;
    }

    /// Watches break, and nothing can be read or watched again; all else works.
    pub fn hide(&self) {
        self.shared.outage.lock().blind = true;
        self.break_watches();
    }

    pub fn show(&self) {
        self.shared.outage.lock().blind = false;
    }

    /// New watches are refused with 429.
    pub fn refuse_watches(&self, refused: bool) {
        self.shared.outage.lock().busy = refused;
    }

    pub fn break_watches(&self) {
        self.shared.breaks.fetch_add(1, Ordering::SeqCst);
        self.shared.revision.send_modify(|_| {});
    }

    /// All watches end because they fell behind, and nothing before now can be had again.
    pub fn compact(&self) {
        self.shared.store.lock().compact();
        self.shared.expirations.fetch_add(1, Ordering::SeqCst);
        self.shared.revision.send_modify(|_| {});
    }
}

impl Shared {
    fn tick(&self) {
        let clock = &self.store.lock().clock;
        let behind = self.start.0.later(self.start.1.elapsed()).duration_since(clock.now());
        clock.advance(behind.try_into().unwrap_or_default());
    }

    /// Watches look again.
    fn tell(&self) {
        let revision = self.store.lock().revision();
        self.revision.send_if_modified(|known| {
            let news = *known != revision;
            *known = revision;
            news
        });
    }

    fn generation(&self) -> (u64, u64) {
        (
            self.breaks.load(Ordering::SeqCst),
            self.expirations.load(Ordering::SeqCst),
        )
    }

    fn active(&self) {
        *self.last_activity.lock() = Instant::now();
    }

    fn draw(&self, write: bool) -> Option<Fault> {
        let (faults, random) = &mut *self.faults.lock();
        faults.draw(random, write)
    }
}

/// One client's way to the server.
#[derive(Clone)]
pub struct Connection {
    shared: Arc<Shared>,
    dead: Arc<AtomicBool>,
    /// Writes until the connection is cut; negative: any number.
    writes_left: Arc<AtomicI64>,
}

impl Connection {
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }

    /// Nothing that is asked here from now on is done.
    pub fn cut(&self) {
        self.dead.store(true, Ordering::SeqCst);
        // Watches end, too.
        self.shared.revision.send_modify(|_| {});
    }

    /// Cuts the connection after so many more writes.
    pub fn cut_after_writes(&self, writes: u32) {
        self.writes_left.store(i64::from(writes.max(1)), Ordering::SeqCst);
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
        let outage = *shared.outage.lock();
        if outage.down || (outage.blind && !call.is_write()) {
            return Err("connection refused".into());
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
            _ => self.handle(&call).await,
        };
        if shared.outage.lock().down {
            return Err("connection reset".into());
        }
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

    async fn handle(&self, call: &Call) -> StoreResult<Value> {
        self.shared.tick();
        let reply = {
            let mut hook = self.shared.hook.lock();
            let mut store = self.shared.store.lock();
            let reply = hook.as_mut().and_then(|hook| hook(call, &mut store));
            reply.unwrap_or_else(|| Reply::Now(route(call, &mut store)))
        };
        let answer = match reply {
            Reply::Now(answer) => answer,
            Reply::Never => {
                self.shared.tell();
                std::future::pending().await
            }
            Reply::After(held, answer) => {
                held.await;
                match self.shared.outage.lock().down {
                    true => Err(Refusal::new(503, "ServiceUnavailable", "gone meanwhile")),
                    false => answer(&mut self.shared.store.lock()),
                }
            }
        };
        self.shared.tell();
        answer
    }

    fn watch(self, call: &Call) -> Result<Response<Body>, BoxError> {
        self.shared.active();
        let refusal = match self.shared.outage.lock().busy {
            true => Some(Refusal::new(429, "TooManyRequests", "no watches at present")),
            false => self.shared.draw(false).map(|fault| fault.refusal()),
        };
        if let Some(refusal) = refusal {
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
            generation: self.shared.generation(),
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
    /// When it began.
    generation: (u64, u64),
    wanted: ListSelector,
    position: u64,
    revision: watch::Receiver<u64>,
    first: Option<String>,
    end: Instant,
}

/// The last line of a watch that fell behind.
const EXPIRED: &str = concat!(
    r#"{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old resource version"}}"#,
    "\n"
);

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
            let (breaks, expirations) = shared.generation();
            if expirations != self.generation.1 || shared.store.lock().is_compacted(self.position) {
                self.end = Instant::now();
                return Some((Ok(Frame::data(EXPIRED.into())), self));
            }
            if breaks != self.generation.0 {
                return Some((Err("connection reset".into()), self));
            }
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
fn target(path: &str) -> StoreResult<(ObjectPath, String)> {
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
            collection: collection(&group, &resource),
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
        labels: LabelSelector::parse(call.parameter("labelSelector")).map_err(|e| bad(e.to_string()))?,
        fields: FieldSelector::parse(call.parameter("fieldSelector")).map_err(|e| bad(e.to_string()))?,
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
