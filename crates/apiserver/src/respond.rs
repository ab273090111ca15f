//! From outcomes to HTTP responses: representation, compression, streaming.

use std::future::Future;
use std::io::Write;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as Poller, Poll};

use bytes::{BufMut, Bytes, BytesMut};
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, HeaderValue, VARY, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, Response, StatusCode};
use http_body::Frame;
use orlop_api::schema::{self, InOrder};
use orlop_api::{KindDef, Status, Value, protobuf};
use orlop_store::{Item, Page};
use serde_json::json;

use crate::audit::Completion;
use crate::connect::AnyBody;
use crate::long_list::LongList;
use crate::metrics::InFlight;
use crate::negotiate::{Format, Representation, Shape};
use crate::object::{Object, type_head};
use crate::registry::list::write_continue;
use crate::registry::watch::Watch;
use crate::registry::{Registry, VerbResult};
use crate::table::{self, IncludeObject};

/// Answers at least this long are compressed if the client can read it. Upstream: 128 KiB, too.
const GZIP_FROM: usize = 128 * 1024;
/// Lists at least this long are made while they are sent.
const LONG: usize = 128 * 1024;
/// They go out in pieces of about this size. Others wait for as many pieces as there are readers: with 128 KiB, a hundred
/// readers of long lists made everybody else wait for tens of milliseconds.
const CHUNK: usize = 32 * 1024;

/// The body of every response.
pub enum Body {
    Whole(Option<Bytes>),
    /// Made while they are sent, a piece in each turn.
    Chunks(Chunks),
    Watch(WatchBody),
    /// What another server answers, as it comes; counted while it lasts.
    Stream(AnyBody, Option<InFlight>),
    /// One whose end is recorded in the audit log.
    Followed(Box<(Body, Completion)>),
}

/// Pieces of a body, and whether others had their turn since the last one was made.
pub struct Chunks {
    pieces: Box<dyn Iterator<Item = Bytes> + Send>,
    is_rested: bool,
}

impl Chunks {
    pub fn new(pieces: impl Iterator<Item = Bytes> + Send + 'static) -> Chunks {
        Chunks {
            pieces: Box::new(pieces),
            is_rested: true,
        }
    }

    /// A client that reads quickly would otherwise keep this thread until its list is done.
    fn poll(&mut self, cx: &mut Poller<'_>) -> Poll<Option<Bytes>> {
        if !std::mem::replace(&mut self.is_rested, true) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.is_rested = false;
        Poll::Ready(self.pieces.next())
    }
}

impl Iterator for Chunks {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        self.pieces.next()
    }
}

impl Body {
    pub fn empty() -> Body {
        Body::Whole(None)
    }
}

/// A watch as a body. The event loop of the watch is a future that is made anew for each batch.
pub struct WatchBody {
    state: WatchState,
    _in_flight: InFlight,
}

type NextFrame = Pin<Box<dyn Future<Output = (Watch, Option<Bytes>)> + Send>>;

enum WatchState {
    Idle(Box<Watch>),
    Waiting(NextFrame),
    Done,
}

impl WatchBody {
    pub fn new(watch: Watch, in_flight: InFlight) -> WatchBody {
        WatchBody {
            state: WatchState::Idle(Box::new(watch)),
            _in_flight: in_flight,
        }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    /// Only what comes from another server can fail.
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Poller<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = match self.get_mut() {
            Body::Whole(bytes) => bytes.take(),
            Body::Chunks(chunks) => std::task::ready!(chunks.poll(cx)),
            Body::Watch(watch) => match watch.poll(cx) {
                Poll::Ready(bytes) => bytes,
                Poll::Pending => return Poll::Pending,
            },
            Body::Stream(body, _) => return Pin::new(body).poll_frame(cx),
            Body::Followed(followed) => return Pin::new(&mut followed.0).poll_frame(cx),
        };
        Poll::Ready(frame.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Body::Whole(bytes) => bytes.is_none(),
            Body::Chunks(_) => false,
            Body::Watch(watch) => matches!(watch.state, WatchState::Done),
            Body::Stream(body, _) => body.is_end_stream(),
            Body::Followed(followed) => followed.0.is_end_stream(),
        }
    }

    fn size_hint(&self) -> http_body::SizeHint {
        match self {
            Body::Whole(bytes) => http_body::SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64)),
            Body::Stream(body, _) => body.size_hint(),
            Body::Followed(followed) => followed.0.size_hint(),
            _ => http_body::SizeHint::default(),
        }
    }
}

impl WatchBody {
    fn poll(&mut self, cx: &mut Poller<'_>) -> Poll<Option<Bytes>> {
        if let WatchState::Idle(_) = self.state
            && let WatchState::Idle(mut watch) = std::mem::replace(&mut self.state, WatchState::Done)
        {
            self.state = WatchState::Waiting(Box::pin(async move {
                let bytes = watch.next().await;
                (*watch, bytes)
            }));
        }
        let WatchState::Waiting(future) = &mut self.state else {
            return Poll::Ready(None);
        };
        match future.as_mut().poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready((watch, bytes)) => {
                self.state = if bytes.is_some() {
                    WatchState::Idle(Box::new(watch))
                } else {
                    WatchState::Done
                };
                Poll::Ready(bytes)
            }
        }
    }
}

pub fn plain(code: u16, content_type: &'static str, bytes: impl Into<Bytes>) -> Response<Body> {
    let bytes: Bytes = bytes.into();
    let mut response = Response::new(Body::Whole((!bytes.is_empty()).then_some(bytes)));
    *response.status_mut() = StatusCode::from_u16(code).expect("codes are made here and valid");
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

pub fn json(code: u16, value: &Value) -> Response<Body> {
    let text = serde_json::to_string(&InOrder::of(value)).expect("a value is always JSON");
    plain(code, "application/json", text)
}

/// JSON for people, who are the ones to read it. Upstream: `/` and `/version` are always indented.
pub fn indented_json(code: u16, value: &impl serde::Serialize) -> Response<Body> {
    let text = serde_json::to_string_pretty(value).expect("a JSON value can be written");
    plain(code, "application/json", text)
}

/// An error, in the representation the client reads.
pub fn error(status: &Status, wanted: Representation) -> Response<Body> {
    let value = status.to_value();
    let wanted = Representation {
        shape: Shape::Object,
        ..wanted
    };
    let mut response = value_response(status.code, &value, wanted, "meta/v1.Status");
    if status.code == 403 || status.reason == "BadRequest" && status.message.contains("impersonating") {
        never_sniff(&mut response);
    }
    if let Some(seconds) = status
        .details
        .as_ref()
        .map(|d| d.retry_after_seconds)
        .filter(|s| *s > 0)
    {
        response.headers_mut().insert(http::header::RETRY_AFTER, seconds.into());
    } else if status.code == 429 {
        response
            .headers_mut()
            .insert(http::header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

/// Forbids browsers to guess another type. Where Kubernetes says so: refusals, and plain text.
pub fn never_sniff(response: &mut Response<Body>) {
    response
        .headers_mut()
        .insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
}

/// A path that leads nowhere at all.
pub fn page_not_found() -> Response<Body> {
    let mut response = plain(404, "text/plain; charset=utf-8", "404 page not found\n");
    never_sniff(&mut response);
    response
}

/// A value in the wanted format. `schema_name` is its type, for protobuf.
pub(crate) fn value_response(code: u16, value: &Value, wanted: Representation, schema_name: &str) -> Response<Body> {
    match wanted.format {
        // Indented answers end without a line break, as Go's do.
        Format::Json if wanted.pretty => {
            let text = serde_json::to_string_pretty(&InOrder::of(value)).expect("a value is always JSON");
            plain(code, "application/json", text)
        }
        Format::Json => {
            let mut text = serde_json::to_string(&InOrder::of(value)).expect("a value is always JSON");
            text.push('\n');
            plain(code, "application/json", text)
        }
        Format::Yaml => match serde_saphyr::to_string(value) {
            Ok(text) => plain(code, "application/yaml", text),
            Err(e) => plain(500, "text/plain", e.to_string()),
        },
        Format::Protobuf => match schema::schema().get(schema_name) {
            Some(ty) => plain(code, Format::Protobuf.content_type(), encode_protobuf(value, ty)),
            None => json(code, value),
        },
    }
}

fn encode_protobuf(value: &Value, ty: schema::TypeRef) -> Vec<u8> {
    let text = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or("");
    protobuf::encode(value, text("apiVersion"), text("kind"), ty)
}

/// What a single-object verb gave back.
pub fn outcome(
    registry: &Registry,
    kind: &'static KindDef,
    outcome: VerbResult,
    wanted: Representation,
    include: IncludeObject,
) -> Response<Body> {
    let (value, code) = match outcome {
        VerbResult::Stored { item, created } => {
            let code = if created { 201 } else { 200 };
            if wanted.format == Format::Json
                && wanted.shape == Shape::Object
                && !wanted.pretty
                && kind.stored_as.is_empty()
            {
                return plain(code, "application/json", whole(&item, kind));
            }
            (registry.value_as(&item, kind), code)
        }
        VerbResult::Value { value, code } => (value, code),
    };
    if wanted.shape == Shape::Table
        && let Some(table) = table::of_answer(kind, &value, registry.now(), include)
    {
        let format = json_or_yaml(wanted.format);
        return value_response(code, &table, Representation { format, ..wanted }, "");
    }
    let is_list = value["kind"] == table::list_kind(kind);
    let own = is_list || value["kind"] == kind.kind;
    let (value, schema_name) = match wanted.shape {
        // What has no table is given as it is.
        Shape::Object | Shape::Table => {
            let name = schema_of(&value, kind);
            (value, name)
        }
        // Statuses and other answers that are not of the kind are given as they are.
        _ if !own => {
            let name = schema_of(&value, kind);
            (value, name)
        }
        Shape::PartialObjectMetadata | Shape::PartialObjectMetadataList if is_list => {
            let list = table::partial_list(&items(&value), value["metadata"].clone());
            (list, "meta/v1.PartialObjectMetadataList".to_string())
        }
        Shape::PartialObjectMetadata | Shape::PartialObjectMetadataList => {
            (table::partial(&value), "meta/v1.PartialObjectMetadata".to_string())
        }
    };
    value_response(code, &value, wanted, &schema_name)
}

/// Tables have no protobuf form worth having.
fn json_or_yaml(format: Format) -> Format {
    if format == Format::Protobuf {
        Format::Json
    } else {
        format
    }
}

/// The schema name of an answer: the kind's own, a well-known subresource body, or a Status.
fn items(list: &Value) -> Vec<Value> {
    list["items"].as_array().cloned().unwrap_or_default()
}

fn schema_of(value: &Value, kind: &KindDef) -> String {
    match value.get("kind").and_then(Value::as_str).unwrap_or("") {
        k if k == kind.kind => kind.schema.to_string(),
        "Status" => "meta/v1.Status".to_string(),
        "Scale" => "autoscaling/v1.Scale".to_string(),
        "TokenRequest" => "authentication/v1.TokenRequest".to_string(),
        "Eviction" => "policy/v1.Eviction".to_string(),
        k if k == format!("{}List", kind.kind) => format!("{}List", kind.schema),
        _ => String::new(),
    }
}

fn whole(item: &Item<Object>, kind: &KindDef) -> Bytes {
    let mut out = BytesMut::with_capacity(item.record.size() + 64);
    item.record
        .write_whole(item.mod_revision, &type_head(kind.kind, &kind.api_version()), &mut out);
    out.put_u8(b'\n');
    out.freeze()
}

/// metadata of a list: its revision, and where the next page starts.
fn list_metadata(page: &Page<Object>, prefix: &str, selective: bool) -> Value {
    let mut metadata = json!({"resourceVersion": page.revision.to_string()});
    if page.more
        && let Some(last) = page.items.last()
    {
        metadata["continue"] = write_continue(page.revision, prefix, &last.key).into();
        // With a selector nobody knows how many of the rest match, so nothing is said.
        if !selective {
            metadata["remainingItemCount"] = page.remaining.into();
        }
    }
    metadata
}

/// A page of a list, and how it is to be shown.
pub struct Listing {
    pub kind: &'static KindDef,
    pub page: Page<Object>,
    pub prefix: String,
    pub selective: bool,
    pub wanted: Representation,
    pub include: IncludeObject,
    pub gzip: bool,
}

impl Listing {
    /// Stored bytes are served bytes.
    fn is_plain(&self) -> bool {
        let Representation { format, shape, pretty } = self.wanted;
        format == Format::Json && shape == Shape::Object && !pretty && self.kind.stored_as.is_empty()
    }

    fn bytes(&self) -> usize {
        self.page.items.iter().map(|i| i.record.size()).sum()
    }

    /// Whether much must be done before the first byte can go out.
    pub fn is_heavy(&self) -> bool {
        let must_measure = self.wanted.format == Format::Protobuf && self.wanted.shape != Shape::Table;
        !self.is_plain() && must_measure && self.bytes() >= LONG
    }

    pub fn respond(self, registry: &Arc<Registry>) -> Response<Body> {
        let metadata = list_metadata(&self.page, &self.prefix, self.selective);
        if self.is_plain() {
            return stream_list(self.kind, self.page, &metadata, self.gzip);
        }
        // Tables of these are sorted, and there are few.
        if self.bytes() >= LONG && self.kind.kind != "FlowSchema" {
            return self.long_list(registry, metadata);
        }
        self.short_list(registry, metadata)
    }

    /// A list that is made while it is sent.
    fn long_list(self, registry: &Arc<Registry>, metadata: Value) -> Response<Body> {
        let Listing {
            kind, wanted, include, ..
        } = self;
        let (envelope, member, schema_name) = match wanted.shape {
            Shape::Table => {
                let table = json!({
                    "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
                    "columnDefinitions": table::columns(kind),
                });
                (table, "rows", String::new())
            }
            Shape::PartialObjectMetadata | Shape::PartialObjectMetadataList => {
                let list = table::partial_list(&[], metadata);
                (
                    without_items(list),
                    "items",
                    "meta/v1.PartialObjectMetadataList".to_string(),
                )
            }
            Shape::Object => {
                let list = json!({
                    "kind": table::list_kind(kind), "apiVersion": kind.api_version(), "metadata": metadata,
                });
                (list, "items", format!("{}List", kind.schema))
            }
        };
        let (registry, now) = (registry.clone(), registry.now());
        let show = move |item: Item<Object>| {
            let object = registry.value_as(&item, kind);
            match wanted.shape {
                Shape::Table => table::row(kind, &object, now, include),
                Shape::PartialObjectMetadata | Shape::PartialObjectMetadataList => table::partial(&object),
                Shape::Object if kind.custom.is_some() => object,
                Shape::Object => without_type(object),
            }
        };
        let format = match wanted.shape {
            Shape::Table => json_or_yaml(wanted.format),
            _ => wanted.format,
        };
        let items = self.page.items.into_iter().map(show);
        let list = LongList::new(
            &envelope,
            member,
            items,
            Representation { format, ..wanted },
            &schema_name,
        );
        let content_type = list.content_type();
        chunked(list, content_type, self.gzip)
    }

    fn short_list(self, registry: &Registry, metadata: Value) -> Response<Body> {
        let Listing { kind, wanted, .. } = self;
        let objects: Vec<Value> = self.page.items.iter().map(|i| registry.value_as(i, kind)).collect();
        let response = match wanted.shape {
            Shape::Table => {
                let table = table::of_objects(kind, &objects, metadata, registry.now(), self.include, true);
                let format = json_or_yaml(wanted.format);
                value_response(200, &table, Representation { format, ..wanted }, "")
            }
            Shape::PartialObjectMetadata | Shape::PartialObjectMetadataList => value_response(
                200,
                &table::partial_list(&objects, metadata),
                wanted,
                "meta/v1.PartialObjectMetadataList",
            ),
            Shape::Object => {
                let items: Vec<Value> = match kind.custom {
                    Some(_) => objects,
                    None => objects.into_iter().map(without_type).collect(),
                };
                let list = json!({
                    "kind": table::list_kind(kind), "apiVersion": kind.api_version(),
                    "metadata": metadata, "items": items,
                });
                value_response(200, &list, wanted, &format!("{}List", kind.schema))
            }
        };
        gzipped(response, self.gzip)
    }
}

fn without_items(mut list: Value) -> Value {
    if let Some(members) = list.as_object_mut() {
        members.remove("items");
    }
    list
}

fn without_type(mut object: Value) -> Value {
    if let Some(members) = object.as_object_mut() {
        members.remove("kind");
        members.remove("apiVersion");
    }
    object
}

/// The list as stored bytes, made piece by piece while it is sent.
fn stream_list(kind: &KindDef, page: Page<Object>, metadata: &Value, gzip: bool) -> Response<Body> {
    let head = format!(
        r#"{{"kind":{:?},"apiVersion":{:?},"metadata":{metadata},"items":["#,
        table::list_kind(kind),
        kind.api_version()
    );
    let about: usize = page.items.iter().map(|i| i.record.size()).sum();
    let chunks = ListChunks {
        head: Some(head),
        items: page.items.into_iter(),
        first: true,
        done: false,
    };
    if about < LONG {
        let mut out = BytesMut::with_capacity(about + 256);
        chunks.for_each(|c| out.put_slice(&c));
        return plain(200, "application/json", out.freeze());
    }
    chunked(chunks, "application/json", gzip)
}

fn chunked(
    pieces: impl Iterator<Item = Bytes> + Send + 'static,
    content_type: &'static str,
    gzip: bool,
) -> Response<Body> {
    let chunks = match gzip {
        true => Chunks::new(GzipChunks::new(pieces)),
        false => Chunks::new(pieces),
    };
    let mut response = Response::new(Body::Chunks(chunks));
    let map = response.headers_mut();
    map.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    if gzip {
        map.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        map.insert(VARY, HeaderValue::from_static("Accept-Encoding"));
    }
    response
}

struct ListChunks {
    head: Option<String>,
    items: std::vec::IntoIter<Item<Object>>,
    first: bool,
    done: bool,
}

impl Iterator for ListChunks {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        if self.done {
            return None;
        }
        let mut out = BytesMut::with_capacity(CHUNK + 8192);
        if let Some(head) = self.head.take() {
            out.put_slice(head.as_bytes());
        }
        while out.len() < CHUNK {
            let Some(item) = self.items.next() else {
                out.put_slice(b"]}\n");
                self.done = true;
                break;
            };
            if !std::mem::replace(&mut self.first, false) {
                out.put_u8(b',');
            }
            item.record.write_item(item.mod_revision, &mut out);
        }
        Some(out.freeze())
    }
}

struct GzipChunks<I> {
    chunks: I,
    encoder: Option<GzEncoder<Vec<u8>>>,
}

impl<I> GzipChunks<I> {
    fn new(chunks: I) -> GzipChunks<I> {
        GzipChunks {
            chunks,
            encoder: Some(GzEncoder::new(Vec::new(), Compression::fast())),
        }
    }
}

impl<I: Iterator<Item = Bytes>> Iterator for GzipChunks<I> {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        loop {
            let encoder = self.encoder.as_mut()?;
            match self.chunks.next() {
                Some(chunk) => {
                    encoder
                        .write_all(&chunk)
                        .expect("compressing into memory does not fail");
                    if encoder.get_ref().len() >= CHUNK / 8 {
                        return Some(std::mem::take(encoder.get_mut()).into());
                    }
                }
                None => {
                    let encoder = self.encoder.take()?;
                    return Some(encoder.finish().expect("compressing into memory does not fail").into());
                }
            }
        }
    }
}

pub(crate) fn accepts_gzip(headers: &HeaderMap) -> bool {
    let header = headers.get(ACCEPT_ENCODING).and_then(|v| v.to_str().ok()).unwrap_or("");
    header.split(',').any(|e| e.trim().split(';').next() == Some("gzip"))
}

/// Compresses a whole body where that pays.
pub fn compressed(response: Response<Body>, headers: &HeaderMap) -> Response<Body> {
    gzipped(response, accepts_gzip(headers))
}

fn gzipped(response: Response<Body>, accepts_gzip: bool) -> Response<Body> {
    let (mut parts, body) = response.into_parts();
    match body {
        Body::Whole(Some(bytes)) if bytes.len() >= GZIP_FROM && accepts_gzip => {
            let packed: Vec<Bytes> = GzipChunks::new(std::iter::once(bytes)).collect();
            parts.headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            parts.headers.insert(VARY, HeaderValue::from_static("Accept-Encoding"));
            Response::from_parts(parts, Body::Chunks(Chunks::new(packed.into_iter())))
        }
        body => Response::from_parts(parts, body),
    }
}

pub fn watch(watch: Watch, wanted: Representation, in_flight: InFlight) -> Response<Body> {
    let mut response = Response::new(Body::Watch(WatchBody::new(watch, in_flight)));
    let content_type = match (wanted.format, wanted.shape) {
        (Format::Protobuf, Shape::Object | Shape::PartialObjectMetadata | Shape::PartialObjectMetadataList) => {
            "application/vnd.kubernetes.protobuf;stream=watch"
        }
        (Format::Yaml, _) => "application/yaml;stream=watch",
        _ => "application/json",
    };
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// One event of a watch: a JSON line, or a length and a protobuf message.
pub fn watch_frame(event: &str, object: &Value, wanted: Representation, kind: &KindDef) -> Bytes {
    let schema_name = match wanted.shape {
        Shape::Table => String::new(),
        Shape::Object => schema_of(object, kind),
        _ if event == "ERROR" => "meta/v1.Status".to_string(),
        _ => "meta/v1.PartialObjectMetadata".to_string(),
    };
    let types = schema::schema();
    if wanted.format == Format::Protobuf
        && let Some(ty) = types.get(&schema_name)
    {
        let message = protobuf::encode_watch_event(event, &encode_protobuf(object, ty));
        let mut out = BytesMut::with_capacity(message.len() + 4);
        out.put_u32(message.len() as u32);
        out.put_slice(&message);
        return out.freeze();
    }
    let object = serde_json::to_string(&InOrder::of(object)).expect("a value is always JSON");
    Bytes::from(format!("{{\"type\":{event:?},\"object\":{object}}}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_written_as_people_know_it() {
        let status = Status::not_found("apps", "deployments", "x").to_value();
        assert_eq!(
            serde_json::to_string(&InOrder::of(&status)).unwrap(),
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"deployments.apps \"x\" not found","reason":"NotFound","details":{"name":"x","group":"apps","kind":"deployments"},"code":404}"#
        );
    }
}
