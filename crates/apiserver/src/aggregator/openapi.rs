//! The Swagger 2.0 document with the parts of extension API servers. Few clients still read it, so those servers are asked
//! only when somebody does, and at most once a minute.
//!
//! Of another server's document only the paths below its versions are taken, with the definitions that these need. A
//! definition that has the name of another one, but is another one, gets a new name.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::StreamExt;
use http::header::{ACCEPT, CONTENT_ENCODING, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH, VARY};
use http::{HeaderMap, Response, StatusCode};
use orlop_api::Value;
use orlop_base::clock::Shift;
use serde_json::Map;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::merge::whole;
use super::{Remote, aggregator_user, resolve};
use crate::chain::Server;
use crate::connect::{FetchLimits, Fetched};
use crate::openapi;
use crate::respond::{self, Body, Chunks};

const FRESH: Duration = Duration::from_secs(60);
const LIMITS: FetchLimits = FetchLimits {
    bytes: 8 << 20,
    wait: Duration::from_secs(5),
};
/// Of so many servers; the document says nothing of more.
const SOURCES_MAX: usize = 64;
const AT_ONCE: usize = 8;
const REFERENCE: &str = "#/definitions/";

/// What one version of a group adds to the document.
#[derive(Debug, Default, PartialEq)]
struct Part {
    paths: Map<String, Value>,
    definitions: Map<String, Value>,
}

#[derive(Default)]
pub(super) struct Cache(tokio::sync::Mutex<State>);

#[derive(Default)]
struct State {
    read: Option<Read>,
    /// By what clients accept: JSON or protobuf.
    merged: Vec<Merged>,
}

struct Read {
    tables: u64,
    at: Instant,
    parts: Arc<Vec<Part>>,
}

#[derive(Clone)]
struct Merged {
    content_type: HeaderValue,
    local: HeaderValue,
    parts: Arc<Vec<Part>>,
    packed: Bytes,
    etag: HeaderValue,
}

impl Server {
    pub(super) async fn merged_swagger(self: &Arc<Self>, headers: &HeaderMap) -> Option<Response<Body>> {
        let mut accept = HeaderMap::new();
        if let Some(wanted) = headers.get(ACCEPT) {
            accept.insert(ACCEPT, wanted.clone());
        }
        let local = openapi::respond(
            &self.registry.kinds.snapshot(),
            "/openapi/v2",
            &Default::default(),
            &accept,
        )?;
        if local.status() != StatusCode::OK {
            return None;
        }
        let content_type = local.headers().get(CONTENT_TYPE)?.clone();
        let etag = local.headers().get(ETAG)?.clone();
        // Held while servers are asked: whoever else wants the document waits and need not ask, too.
        let mut state = self.aggregator.swagger.0.lock().await;
        let parts = self.read_parts(&mut state).await;
        if parts.is_empty() {
            return None;
        }
        let is_current = |kept: &&Merged| {
            kept.content_type == content_type && kept.local == etag && Arc::ptr_eq(&kept.parts, &parts)
        };
        let known = state.merged.iter().find(is_current).cloned();
        let merged = match known {
            Some(merged) => merged,
            None => {
                let (source, kind) = (parts.clone(), content_type.clone());
                let made = tokio::task::spawn_blocking(move || pack(local, &kind, &source)).await;
                let (packed, hash) = made.ok().flatten()?;
                let merged = Merged {
                    content_type,
                    local: etag,
                    parts,
                    packed,
                    etag: HeaderValue::from_str(&format!("\"{hash}\"")).expect("made of hexadecimal digits"),
                };
                state.merged.retain(|other| other.content_type != merged.content_type);
                state.merged.push(merged.clone());
                merged
            }
        };
        Some(merged.respond(headers))
    }

    async fn read_parts(self: &Arc<Self>, state: &mut State) -> Arc<Vec<Part>> {
        let tables = *self.aggregator.changed.borrow();
        let now = Instant::now();
        if let Some(read) = &state.read
            && read.tables == tables
            && now < read.at.later(FRESH)
        {
            return read.parts.clone();
        }
        let table = self.aggregator.table();
        let mut remotes: Vec<Arc<Remote>> = table.all_remotes().filter(|r| r.api.is_available()).cloned().collect();
        remotes.sort_by(|a, b| a.api.name.cmp(&b.api.name));
        remotes.truncate(SOURCES_MAX);
        let read = remotes.into_iter().map(|remote| self.read_part(remote));
        let read: Vec<Option<Part>> = futures::stream::iter(read).buffered(AT_ONCE).collect().await;
        let parts: Vec<Part> = read.into_iter().flatten().collect();
        // The same as before: what was made of them is still right.
        let parts = match &state.read {
            Some(before) if *before.parts == parts => before.parts.clone(),
            _ => Arc::new(parts),
        };
        state.read = Some(Read {
            tables,
            at: now,
            parts: parts.clone(),
        });
        parts
    }

    async fn read_part(self: &Arc<Self>, remote: Arc<Remote>) -> Option<Part> {
        let backend = remote.backend.as_ref().ok()?;
        let endpoints = resolve::endpoints(&*self.registry, &backend.service).ok()?;
        let endpoint = backend.choose(&endpoints)?;
        let user = aggregator_user();
        let answer = backend
            .fetch(endpoint, "/openapi/v2", "application/json", &user, LIMITS)
            .await;
        let answer: Fetched = answer.ok().filter(|answer| answer.code == 200)?;
        let (group, version) = (remote.api.group.clone(), remote.api.version.clone());
        let read = move || {
            let document: Value = serde_json::from_slice(&answer.bytes).ok()?;
            Some(part(document, &group, &version))
        };
        tokio::task::spawn_blocking(read).await.ok().flatten()
    }
}

impl Merged {
    fn respond(self, headers: &HeaderMap) -> Response<Body> {
        let mut response = match headers.get(IF_NONE_MATCH) == Some(&self.etag) {
            true => {
                let mut response = Response::new(Body::empty());
                *response.status_mut() = StatusCode::NOT_MODIFIED;
                response
            }
            false if respond::accepts_gzip(headers) => {
                let mut response = Response::new(Body::Chunks(Chunks::new(std::iter::once(self.packed))));
                let gzip = HeaderValue::from_static("gzip");
                response.headers_mut().insert(CONTENT_ENCODING, gzip);
                response
            }
            false => Response::new(Body::Chunks(openapi::unpacked(self.packed))),
        };
        let map = response.headers_mut();
        map.insert(CONTENT_TYPE, self.content_type);
        map.insert(ETAG, self.etag);
        map.insert(VARY, HeaderValue::from_static("Accept, Accept-Encoding"));
        response
    }
}

/// The merged document, compressed, and what tells it apart.
fn pack(local: Response<Body>, content_type: &HeaderValue, parts: &[Part]) -> Option<(Bytes, String)> {
    let local = whole(local.into_body())?;
    let is_json = content_type.as_bytes().starts_with(b"application/json");
    let merged = match is_json {
        true => merge_json(&local, parts)?,
        false => merge_protobuf(&local, parts),
    };
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &merged);
    let hash = digest.as_ref().iter().map(|byte| format!("{byte:02X}")).collect();
    let mut encoder = GzEncoder::new(vec![], Compression::default());
    encoder.write_all(&merged).expect("writing to memory does not fail");
    let packed = encoder.finish().expect("writing to memory does not fail");
    Some((packed.into(), hash))
}

type Members<'d> = BTreeMap<String, &'d RawValue>;

fn merge_json(local: &[u8], parts: &[Part]) -> Option<Vec<u8>> {
    let document: Members<'_> = serde_json::from_slice(local).ok()?;
    let inner = |name: &str| -> Option<Members<'_>> { serde_json::from_str(document.get(name)?.get()).ok() };
    let (mut paths, mut definitions) = (inner("paths")?, inner("definitions")?);
    let known = |name: &str| {
        definitions
            .get(name)
            .and_then(|raw| serde_json::from_str(raw.get()).ok())
    };
    let added = join(parts, &known);
    let raw = |map: &Map<String, Value>| -> Vec<(String, Box<RawValue>)> {
        let text = |value: &Value| serde_json::value::to_raw_value(value).expect("a value is always JSON");
        map.iter().map(|(name, value)| (name.clone(), text(value))).collect()
    };
    let (new_paths, new_definitions) = (raw(&added.paths), raw(&added.definitions));
    paths.extend(new_paths.iter().map(|(name, value)| (name.clone(), &**value)));
    definitions.extend(new_definitions.iter().map(|(name, value)| (name.clone(), &**value)));
    let text = |members: &Members<'_>| serde_json::value::to_raw_value(members).expect("names and JSON are JSON");
    let (paths, definitions) = (text(&paths), text(&definitions));
    let mut document = document.clone();
    document.insert("paths".into(), &paths);
    document.insert("definitions".into(), &definitions);
    serde_json::to_vec(&document).ok()
}

/// Messages may be appended to: what comes twice is merged by whoever reads it.
fn merge_protobuf(local: &[u8], parts: &[Part]) -> Vec<u8> {
    // Nothing of ours can be looked up here; what others share with us replaces it and is nearly the same.
    let added = join(parts, &|_| None);
    let mut merged = local.to_vec();
    merged.extend(openapi::swagger_part(&added.paths, &added.definitions));
    merged
}

/// The paths below the version, with the definitions that they need.
fn part(mut document: Value, group: &str, version: &str) -> Part {
    let root = format!("/apis/{group}/{version}/");
    let mut part = Part::default();
    // Whatever it is that they sent.
    let mut take = |name: &str| match document.get_mut(name).map(Value::take) {
        Some(Value::Object(members)) => members,
        _ => Map::new(),
    };
    let (paths, mut definitions) = (take("paths"), take("definitions"));
    part.paths = paths.into_iter().filter(|(path, _)| path.starts_with(&root)).collect();
    let mut wanted: VecDeque<String> = VecDeque::new();
    part.paths
        .values()
        .for_each(|path| references(path, &mut |name| wanted.push_back(name.to_string())));
    while let Some(name) = wanted.pop_front() {
        if let Some(definition) = definitions.remove(&name) {
            references(&definition, &mut |name| wanted.push_back(name.to_string()));
            part.definitions.insert(name, definition);
        }
    }
    part
}

/// All parts as one. `known` are definitions that are there already.
fn join(parts: &[Part], known: &dyn Fn(&str) -> Option<Value>) -> Part {
    let mut joined = Part::default();
    for part in parts {
        let mut renamed: BTreeMap<&str, String> = BTreeMap::new();
        let mut taken: BTreeSet<String> = BTreeSet::new();
        for (name, definition) in &part.definitions {
            let other = joined.definitions.get(name).cloned().or_else(|| known(name));
            if other.is_some_and(|other| other != *definition) {
                let is_free = |name: &String| {
                    !joined.definitions.contains_key(name)
                        && known(name).is_none()
                        && !part.definitions.contains_key(name)
                        && !taken.contains(name)
                };
                let new = (2..).map(|n| format!("{name}_v{n}")).find(is_free);
                let new = new.expect("there are more numbers than definitions");
                taken.insert(new.clone());
                renamed.insert(name, new);
            }
        }
        let new_name = |name: &str| renamed.get(name).cloned();
        for (name, definition) in &part.definitions {
            let mut definition = definition.clone();
            rename(&mut definition, &new_name);
            let name = new_name(name).unwrap_or_else(|| name.clone());
            joined.definitions.entry(name).or_insert(definition);
        }
        for (path, item) in &part.paths {
            let mut item = item.clone();
            rename(&mut item, &new_name);
            joined.paths.entry(path.clone()).or_insert(item);
        }
    }
    joined
}

fn references(value: &Value, found: &mut dyn FnMut(&str)) {
    match value {
        Value::Object(members) => {
            if let Some(name) = members
                .get("$ref")
                .and_then(Value::as_str)
                .and_then(|r| r.strip_prefix(REFERENCE))
            {
                found(name);
            }
            members.values().for_each(|inner| references(inner, found));
        }
        Value::Array(items) => items.iter().for_each(|inner| references(inner, found)),
        _ => {}
    }
}

fn rename(value: &mut Value, new_name: &dyn Fn(&str) -> Option<String>) {
    match value {
        Value::Object(members) => {
            if let Some(Value::String(reference)) = members.get_mut("$ref")
                && let Some(new) = reference.strip_prefix(REFERENCE).and_then(new_name)
            {
                *reference = format!("{REFERENCE}{new}");
            }
            members.values_mut().for_each(|inner| rename(inner, new_name));
        }
        Value::Array(items) => items.iter_mut().for_each(|inner| rename(inner, new_name)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refers(name: &str) -> Value {
        json!({"get": {"schema": {"$ref": format!("{REFERENCE}{name}")}}})
    }

    fn document() -> Value {
        json!({
            "paths": {"/apis/g/v1/things": refers("Thing"), "/apis/g/v2/things": refers("Other"), "/version": refers("V")},
            "definitions": {
                "Thing": {"properties": {"meta": {"$ref": "#/definitions/Meta"}, "own": {"$ref": "#/definitions/Thing"}}},
                "Meta": {"type": "object", "description": "theirs"}, "Same": {}, "Other": {}, "V": {}},
        })
    }

    #[test]
    fn of_another_server_only_its_version_is_taken() {
        let part = part(document(), "g", "v1");
        assert_eq!(part.paths.keys().collect::<Vec<_>>(), ["/apis/g/v1/things"]);
        assert_eq!(part.definitions.keys().collect::<Vec<_>>(), ["Meta", "Thing"]);
        assert_eq!(super::part(json!([]), "g", "v1"), Part::default());
    }

    #[test]
    fn other_definitions_of_the_same_name_get_new_names() {
        let local = json!({
            "swagger": "2.0",
            "paths": {"/api/v1/pods": refers("Meta")},
            "definitions": {"Meta": {"type": "object", "description": "ours"}, "Meta_v2": {}},
        });
        let merged = merge_json(local.to_string().as_bytes(), &[part(document(), "g", "v1")]).unwrap();
        let merged: Value = serde_json::from_slice(&merged).unwrap();
        assert_eq!(
            merged,
            json!({
                "swagger": "2.0",
                "paths": {"/api/v1/pods": refers("Meta"), "/apis/g/v1/things": refers("Thing")},
                "definitions": {
                    "Meta": {"type": "object", "description": "ours"}, "Meta_v2": {},
                    "Meta_v3": {"type": "object", "description": "theirs"},
                    "Thing": {"properties": {
                        "meta": {"$ref": "#/definitions/Meta_v3"}, "own": {"$ref": "#/definitions/Thing"}}},
                },
            })
        );
    }

    #[test]
    fn protobuf_is_appended_to() {
        let merged = merge_protobuf(b"local", &[part(document(), "g", "v1")]);
        assert!(merged.starts_with(b"local"));
        let text = String::from_utf8_lossy(&merged);
        assert!(text.contains("/apis/g/v1/things") && text.contains("Thing"));
    }
}
