//! Objects in events: what was sent and what was answered, as JSON.

use std::io::Read;

use bytes::Bytes;
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use orlop_api::{protobuf, schema};
use serde_json::Value;

use super::policy::Coverage;
use crate::negotiate::media_type;
use crate::respond::{Body, Chunks};

/// Of an answer that is recorded; larger ones are left out.
const MAX_BYTES: usize = 16 << 20;

/// The body of a request as an object, none if it is empty or not readable.
pub(crate) fn request_object(bytes: &[u8], headers: &HeaderMap, coverage: &Coverage) -> Option<Value> {
    decode(bytes, headers, coverage)
}

/// The object that a response holds. Lists that are made while they are sent are made now.
pub(crate) fn take_response_object(
    response: http::Response<Body>,
    coverage: &Coverage,
) -> (http::Response<Body>, Option<Value>) {
    let (parts, body) = response.into_parts();
    let (body, bytes) = whole(body);
    let object = bytes.and_then(|bytes| {
        let zipped = parts.headers.get(CONTENT_ENCODING).is_some_and(|value| value == "gzip");
        match zipped {
            true => decode(&unzipped(&bytes)?, &parts.headers, coverage),
            false => decode(&bytes, &parts.headers, coverage),
        }
    });
    (http::Response::from_parts(parts, body), object)
}

fn whole(body: Body) -> (Body, Option<Bytes>) {
    match body {
        Body::Whole(Some(bytes)) => (Body::Whole(Some(bytes.clone())), Some(bytes)),
        Body::Chunks(mut chunks) => {
            let mut pieces: Vec<Bytes> = Vec::new();
            let mut size = 0;
            for piece in chunks.by_ref() {
                size += piece.len();
                pieces.push(piece);
                if size > MAX_BYTES {
                    let rest = pieces.into_iter().chain(chunks);
                    return (Body::Chunks(Chunks::new(rest)), None);
                }
            }
            let bytes = Bytes::from(pieces.concat());
            (Body::Chunks(Chunks::new(pieces.into_iter())), Some(bytes))
        }
        other => (other, None),
    }
}

fn unzipped(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut plain = Vec::new();
    let bound = MAX_BYTES as u64;
    let read = flate2::read::GzDecoder::new(bytes).take(bound).read_to_end(&mut plain);
    (read.is_ok() && plain.len() < MAX_BYTES).then_some(plain)
}

fn decode(bytes: &[u8], headers: &HeaderMap, coverage: &Coverage) -> Option<Value> {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let mut value = match media_type(content_type.unwrap_or("")).as_str() {
        _ if bytes.is_empty() => return None,
        "application/vnd.kubernetes.protobuf" => {
            let (api_version, kind, mut value) = protobuf::decode(bytes).ok()?;
            value["apiVersion"] = api_version.into();
            value["kind"] = kind.into();
            value
        }
        "application/yaml" | "application/apply-patch+yaml" => schema::yaml_to_value(bytes).ok()?.0,
        _ => serde_json::from_slice(bytes).ok()?,
    };
    if coverage.omit_managed_fields {
        drop_managed_fields(&mut value);
    }
    Some(value)
}

/// Takes `metadata.managedFields` out of an object, or of the items of a list.
fn drop_managed_fields(value: &mut Value) {
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    if let Some(items) = value.get_mut("items").and_then(Value::as_array_mut) {
        items.iter_mut().for_each(drop_managed_fields);
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use serde_json::json;

    use super::super::policy::Level;
    use super::*;

    fn headers(content_type: &'static str) -> HeaderMap {
        [(CONTENT_TYPE, HeaderValue::from_static(content_type))]
            .into_iter()
            .collect()
    }

    #[test]
    fn bodies_are_recorded_as_json() {
        let mut coverage = Coverage::all(Level::Request);
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"a": "b"}});
        let ty = schema::schema().get("core/v1.ConfigMap").unwrap();
        let message = protobuf::encode(&object, "v1", "ConfigMap", ty);
        for (content_type, bytes) in [
            ("application/json", object.to_string().into_bytes()),
            ("application/yaml; charset=utf-8", object.to_string().into_bytes()),
            ("application/vnd.kubernetes.protobuf", message),
        ] {
            let found = decode(&bytes, &headers(content_type), &coverage);
            assert_eq!(found.as_ref(), Some(&object), "{content_type}");
        }
        let patch = decode(
            b"[{\"op\": \"remove\"}]",
            &headers("application/json-patch+json"),
            &coverage,
        );
        assert_eq!(patch, Some(json!([{"op": "remove"}])));
        assert_eq!(decode(b"", &headers("application/json"), &coverage), None);
        assert_eq!(decode(b"{", &headers("application/json"), &coverage), None);

        coverage.omit_managed_fields = true;
        let list = json!({"items": [{"metadata": {"name": "a", "managedFields": [1]}}]});
        let found = decode(list.to_string().as_bytes(), &headers("application/json"), &coverage);
        assert_eq!(found, Some(json!({"items": [{"metadata": {"name": "a"}}]})));
    }

    #[test]
    fn answers_are_recorded_and_still_sent() {
        let coverage = Coverage::all(Level::RequestResponse);
        let pieces = ["{\"items\": [", "1, 2", "]}"].map(Bytes::from);
        let body = Body::Chunks(Chunks::new(pieces.clone().into_iter()));
        let (response, object) = take_response_object(http::Response::new(body), &coverage);
        assert_eq!(object, Some(json!({"items": [1, 2]})));
        let Body::Chunks(chunks) = response.into_body() else {
            panic!("still in pieces");
        };
        assert_eq!(chunks.collect::<Vec<_>>(), pieces);
    }
}
