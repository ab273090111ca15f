//! OpenAPI: what the API looks like, for `kubectl explain`, for clients that check before they send, for generators.
//!
//! Everything is made from the table of types (`definitions`) and the table of kinds (`paths`, `operations`,
//! `parameters`); `docs` has the prose. `document` writes whole documents, `gnostic` their protobuf form. Documents are
//! made when first asked for and kept compressed; what identifies them is known without making them.

mod custom;
mod definitions;
mod docs;
mod document;
mod enums;
mod gnostic;
mod gnostic_v2;
mod gnostic_v3;
mod names;
mod operations;
mod order;
mod parameters;
mod parts;
mod paths;
#[cfg(test)]
mod tests;

use std::fmt::{self, Write as _};
use std::io::Read;
use std::sync::{Arc, OnceLock};

use aws_lc_rs::digest;
use bytes::{Buf, Bytes};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH, LOCATION, VARY,
};
use http::{HeaderMap, Response, StatusCode};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use crate::custom::Snapshot;
use crate::request::Query;
use crate::respond::{self, Body, Chunks};
use document::{Document, Format};
pub(crate) use parts::swagger_part;

/// Kept documents may take this much, compressed. All of them fit; the bound is for groups to come.
const CACHE_BYTES: usize = 4 << 20;
/// Clients that cannot read gzip get pieces of this size.
const CHUNK: usize = 64 << 10;

/// Answers /openapi/v2 and /openapi/v3…; `None` for other paths.
pub(crate) fn respond(
    custom: &Arc<Snapshot>,
    path: &str,
    query: &Query,
    headers: &HeaderMap,
) -> Option<Response<Body>> {
    match path.trim_end_matches('/') {
        "/openapi/v3" => Some(index(custom, headers)),
        "/openapi/v2" => Some(document(custom, Document::Swagger, query, headers)),
        path => {
            let name = path.strip_prefix("/openapi/v3/")?;
            let found = Document::parts(custom).into_iter().find(|d| d.name() == name)?;
            Some(document(custom, found, query, headers))
        }
    }
}

/// Where the documents are.
fn index(custom: &Snapshot, headers: &HeaderMap) -> Response<Body> {
    let entry = |d: Document| (d.name(), json!({"serverRelativeURL": url(custom, d)}));
    let paths: Map<String, Value> = Document::parts(custom).into_iter().map(entry).collect();
    let etag = quoted(&hash_of("index", &custom::sum(custom, None)));
    if is_known(headers, &etag) {
        return bare(StatusCode::NOT_MODIFIED, &etag);
    }
    let mut response = respond::json(200, &json!({"paths": paths}));
    response.headers_mut().insert(ETAG, etag);
    response
}

/// With the hash in it, so that whoever keeps the answer need never ask again.
fn url(custom: &Snapshot, document: Document) -> String {
    format!("/openapi/v3/{}?hash={}", document.name(), hash(custom, document))
}

fn hash(custom: &Snapshot, document: Document) -> String {
    let of_custom = match document {
        Document::Swagger => custom::sum(custom, None),
        Document::Group(gv) => custom::sum(custom, Some(gv)),
        Document::Root(_) => vec![],
    };
    hash_of(&document.name(), &of_custom)
}

fn document(custom: &Arc<Snapshot>, document: Document, query: &Query, headers: &HeaderMap) -> Response<Body> {
    let hash = hash(custom, document);
    let etag = quoted(&hash);
    let Some(format) = wanted(headers, document) else {
        return bare(StatusCode::NOT_ACCEPTABLE, &etag);
    };
    let asked = query.get("hash").filter(|_| document != Document::Swagger);
    if asked.is_some_and(|h| h != hash) {
        let mut response = bare(StatusCode::MOVED_PERMANENTLY, &etag);
        let location = HeaderValue::from_str(&url(custom, document)).expect("made of plain words");
        response.headers_mut().insert(LOCATION, location);
        return response;
    }
    let mut response = match is_known(headers, &etag) {
        true => bare(StatusCode::NOT_MODIFIED, &etag),
        false => whole(packed(custom, document, format, &hash), document, format, headers),
    };
    let map = response.headers_mut();
    map.insert(ETAG, etag);
    map.insert(VARY, HeaderValue::from_static("Accept, Accept-Encoding"));
    if asked.is_some() {
        // A year. Upstream says it with an Expires header.
        let forever = HeaderValue::from_static("public, immutable, max-age=31536000");
        map.insert(CACHE_CONTROL, forever);
    }
    response
}

fn whole(packed: Bytes, document: Document, format: Format, headers: &HeaderMap) -> Response<Body> {
    let gzip = respond::accepts_gzip(headers);
    let mut response = Response::new(match gzip {
        true => Body::Chunks(Chunks::new(std::iter::once(packed))),
        false => Body::Chunks(unpacked(packed)),
    });
    let content_type = match (format, document) {
        (Format::Json, _) => "application/json",
        (Format::Protobuf, Document::Swagger) => "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
        (Format::Protobuf, _) => "application/com.github.proto-openapi.spec.v3.v1.0+protobuf",
    };
    let map = response.headers_mut();
    map.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    if gzip {
        map.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    response
}

/// What was packed here, piece by piece.
pub(crate) fn unpacked(packed: Bytes) -> Chunks {
    Chunks::new(Unpacked(GzDecoder::new(packed.reader())))
}

struct Unpacked(GzDecoder<bytes::buf::Reader<Bytes>>);

impl Iterator for Unpacked {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let mut chunk = Vec::with_capacity(CHUNK);
        let read = self.0.by_ref().take(CHUNK as u64).read_to_end(&mut chunk);
        read.expect("packed here, in memory");
        (!chunk.is_empty()).then(|| chunk.into())
    }
}

fn bare(status: StatusCode, etag: &HeaderValue) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response.headers_mut().insert(ETAG, etag.clone());
    response
}

fn quoted(hash: &str) -> HeaderValue {
    HeaderValue::from_str(&format!("\"{hash}\"")).expect("made of hexadecimal digits")
}

fn is_known(headers: &HeaderMap, etag: &HeaderValue) -> bool {
    let etag = etag.to_str().unwrap_or_default();
    let given = headers.get_all(IF_NONE_MATCH).iter().filter_map(|v| v.to_str().ok());
    given
        .flat_map(|v| v.split(','))
        .map(|v| v.trim().trim_start_matches("W/"))
        .any(|v| v == "*" || v == etag)
}

/// The format that the client likes best among those there are; `None`: none of them.
fn wanted(headers: &HeaderMap, document: Document) -> Option<Format> {
    let accept: Vec<&str> = headers.get_all(ACCEPT).iter().filter_map(|v| v.to_str().ok()).collect();
    if accept.is_empty() {
        return Some(Format::Json);
    }
    let version = if document == Document::Swagger { "v2" } else { "v3" };
    let clause = |clause: &str| {
        let mut words = clause.split(';').map(str::trim);
        let media = words.next()?;
        let weight = words
            .find_map(|w| w.strip_prefix("q=")?.parse::<f32>().ok())
            .unwrap_or(1.0);
        let format = match media {
            "application/json" | "application/*" | "*/*" => Format::Json,
            _ => {
                let name = media.strip_prefix("application/com.github.proto-openapi.spec.")?;
                let sign = name.strip_prefix(version)?.strip_suffix("v1.0+protobuf")?;
                matches!(sign, "@" | ".").then_some(Format::Protobuf)?
            }
        };
        (weight > 0.0).then_some((weight, format))
    };
    let mut clauses: Vec<_> = accept.iter().flat_map(|v| v.split(',')).filter_map(clause).collect();
    clauses.sort_by(|a, b| b.0.total_cmp(&a.0));
    clauses.first().map(|c| c.1)
}

struct Kept {
    document: Document,
    format: Format,
    hash: String,
    packed: Bytes,
}

/// The document, compressed: made at first use, then kept, the least recently used one going first.
fn packed(custom: &Arc<Snapshot>, document: Document, format: Format, hash: &str) -> Bytes {
    static KEPT: Mutex<Vec<Kept>> = Mutex::new(vec![]);
    // Held while a document is made: whoever else wants it waits and need not make it, too.
    let mut kept = KEPT.lock();
    let place = kept.iter().position(|k| (k.document, k.format) == (document, format));
    let found = place.map(|i| kept.remove(i)).filter(|found| found.hash == hash);
    if let Some(found) = found {
        kept.push(found);
    } else {
        let custom = custom.clone();
        // On a thread of its own, of which nothing is kept: all the memory that making it takes can be given back.
        let made = std::thread::spawn(move || pack(&custom, document, format));
        let packed = Bytes::copy_from_slice(&made.join().expect("making documents does not fail"));
        kept.push(Kept {
            document,
            format,
            hash: hash.to_string(),
            packed,
        });
    }
    while kept.len() > 1 && kept.iter().map(|k| k.packed.len()).sum::<usize>() > CACHE_BYTES {
        kept.remove(0);
    }
    kept.last().expect("pushed just now").packed.clone()
}

fn pack(custom: &Snapshot, document: Document, format: Format) -> Vec<u8> {
    let mut encoder = GzEncoder::new(vec![], Compression::default());
    document
        .write(custom, format, &mut encoder)
        .expect("writing to memory does not fail");
    encoder.finish().expect("writing to memory does not fail")
}

/// Tells versions of a document apart. Documents are functions of this program, its tables and the definitions of custom
/// kinds, so the hash is one of those.
fn hash_of(name: &str, of_custom: &[u8]) -> String {
    static TABLES: OnceLock<Vec<u8>> = OnceLock::new();
    let tables = TABLES.get_or_init(|| {
        let mut sum = Sum(digest::Context::new(&digest::SHA256));
        sum.tables().expect("summing does not fail");
        sum.0.finish().as_ref().to_vec()
    });
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(tables);
    context.update(name.as_bytes());
    context.update(of_custom);
    context.finish().as_ref().iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02X}").expect("writing to a string does not fail");
        text
    })
}

struct Sum(digest::Context);

impl fmt::Write for Sum {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.update(text.as_bytes());
        Ok(())
    }
}

impl Sum {
    fn tables(&mut self) -> fmt::Result {
        // The build script sums up this module's sources and the descriptions.
        write!(self, "{} {}", crate::discovery::GIT_VERSION, env!("ORLOP_OPENAPI_SUM"))?;
        for ty in orlop_api::schema::schema().types() {
            write!(self, "{ty:?}")?;
        }
        for kind in orlop_api::kinds::all() {
            write!(self, "{} {} {} ", kind.group, kind.version, kind.kind)?;
            write!(self, "{} {} {:?};", kind.plural, kind.namespaced, kind.verbs)?;
            for sub in kind.subresources {
                write!(self, "{} {} {} {}", sub.name, sub.group, sub.version, sub.kind)?;
                write!(self, "{:?};", sub.verbs)?;
            }
        }
        Ok(())
    }
}
