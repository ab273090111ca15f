//! patch: JSON patch, merge patch, strategic merge patch and server-side apply.

use http::HeaderMap;
use http::header::CONTENT_TYPE;
use orlop_api::patch::{self, apply as ownership};
use orlop_api::schema;
use orlop_api::{KindDef, Status, Value};

use super::body::{self, BodyType};
use super::create::{meta_text, place_in_namespace, reset_fields};
use super::update::Endpoint;
use super::{Context, Outcome, Registry};
use crate::kinds;
use crate::negotiate::media_type;

const JSON_PATCH: &str = "application/json-patch+json";
const MERGE_PATCH: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY_YAML: &str = "application/apply-patch+yaml";
const APPLY_JSON: &str = "application/apply-patch+json";

fn patch_type(headers: &HeaderMap) -> String {
    media_type(headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or(""))
}

pub fn is_apply(headers: &HeaderMap) -> bool {
    matches!(patch_type(headers).as_str(), APPLY_YAML | APPLY_JSON)
}

/// A patch, understood but not yet applied.
pub enum Patch {
    Json(Vec<u8>),
    Merge(Value),
    Strategic(Value),
}

impl Patch {
    pub fn parse(bytes: &[u8], headers: &HeaderMap) -> Result<Patch, Status> {
        match patch_type(headers).as_str() {
            JSON_PATCH => Ok(Patch::Json(bytes.to_vec())),
            MERGE_PATCH => Ok(Patch::Merge(parse_json(bytes)?)),
            STRATEGIC => Ok(Patch::Strategic(parse_json(bytes)?)),
            _ => Err(Status::unsupported_media_type(format!(
                "the body of the request was in an unknown format - accepted media types include: {JSON_PATCH}, {MERGE_PATCH}, {APPLY_YAML}, {STRATEGIC}"
            ))),
        }
    }

    pub fn apply(&self, target: &mut Value, ty: schema::TypeRef) -> Result<(), Status> {
        match self {
            Patch::Json(bytes) => patch::json::apply(target, bytes).map_err(Status::from),
            Patch::Merge(value) => {
                patch::merge::apply(target, value.clone());
                Ok(())
            }
            Patch::Strategic(value) => patch::strategic::apply(target, value.clone(), ty).map_err(Status::from),
        }
    }
}

fn parse_json(bytes: &[u8]) -> Result<Value, Status> {
    serde_json::from_slice(bytes).map_err(|e| Status::bad_request(format!("error decoding patch: {e}")))
}

impl Registry {
    pub async fn patch(
        &self,
        kind: &'static KindDef,
        endpoint: &Endpoint,
        bytes: &[u8],
        headers: &HeaderMap,
        ctx: &Context<'_>,
    ) -> Result<Outcome, Status> {
        if is_apply(headers) {
            return self.apply(kind, endpoint, bytes, ctx).await;
        }
        if ctx.options.force.is_some() {
            return Err(Status::new(
                422,
                "Invalid",
                "PatchOptions.meta.k8s.io \"\" is invalid: force: Forbidden: may not be specified for non-apply patch",
            ));
        }
        let patch = Patch::parse(bytes, headers)?;
        let wanted = BodyType::of(kind);
        self.change(kind, endpoint, ctx, &|old| {
            let mut new = old.clone();
            patch.apply(&mut new, wanted.ty)?;
            if !new.is_object() {
                return Err(Status::bad_request("the patch does not leave an object"));
            }
            let mut new = body::from_patched(new, wanted, ctx)?;
            check_same_object(&mut new, old)?;
            Ok(new)
        })
        .await
    }

    async fn apply(
        &self,
        kind: &'static KindDef,
        endpoint: &Endpoint,
        bytes: &[u8],
        ctx: &Context<'_>,
    ) -> Result<Outcome, Status> {
        if ctx.info.query.get("fieldManager").unwrap_or("").is_empty() {
            return Err(Status::new(
                422,
                "Invalid",
                "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch",
            ));
        }
        let mut applied = decode_applied(bytes, kind, ctx)?;
        place_in_namespace(kind, &mut applied, &ctx.info.namespace)?;
        match meta_text(&applied, "name") {
            "" => applied["metadata"]["name"] = ctx.info.name.as_str().into(),
            _ => super::create::check_name(&applied, &ctx.info.name)?,
        }
        if applied
            .pointer("/metadata/managedFields")
            .and_then(Value::as_array)
            .is_some_and(|m| !m.is_empty())
        {
            return Err(Status::bad_request("metadata.managedFields must be nil"));
        }
        let merge = |live: Option<&Value>| -> Result<Value, Status> {
            let options = ownership::ApplyOptions {
                manager: &ctx.options.manager,
                force: ctx.options.force.unwrap_or(false),
                now: ctx.now,
                api_version: &kind.api_version(),
                subresource: endpoint.subresource,
                reset: reset_fields(kind, endpoint.subresource),
            };
            ownership::apply(live, &applied, schema::schema().get(kind.schema), &options).map_err(Status::from)
        };
        let wanted = BodyType::of(kind);
        let exists = self
            .store
            .get(&kinds::key(kind, &ctx.info.namespace, &ctx.info.name))
            .is_some();
        if !exists && endpoint.subresource.is_empty() {
            if meta_text(&applied, "uid") != "" {
                let why = "uid mismatch: the provided object specified uid, and no existing object was found";
                return Err(Status::conflict(kind.group, kind.plural, &ctx.info.name, why));
            }
            let value = body::from_patched(merge(None)?, wanted, ctx)?;
            return self.create_value(kind, value, ctx).await;
        }
        self.change(kind, endpoint, ctx, &|old| {
            body::from_patched(merge(Some(old))?, wanted, ctx)
        })
        .await
    }
}

/// What an apply sends: YAML (or JSON, which is YAML too), with unknown fields named but nothing filled in: absent
/// fields are not wanted, which is not the same as empty.
fn decode_applied(bytes: &[u8], kind: &'static KindDef, ctx: &Context<'_>) -> Result<Value, Status> {
    let wanted = BodyType::of(kind);
    let (sent, mut problems) =
        schema::yaml_to_value(bytes).map_err(|e| Status::bad_request(format!("error decoding YAML: {e}")))?;
    if !sent.is_object() {
        return Err(Status::bad_request("error decoding YAML: an object is wanted"));
    }
    // Decoding checks types, names unknown fields and brings values to one form; what it fills in is not taken over.
    let decoded = schema::from_value(sent.clone(), wanted.ty)
        .map_err(|e| Status::bad_request(format!("failed to create typed patch object: {e}")))?;
    problems.extend(decoded.problems);
    body::report_unknown(&problems, wanted, ctx)?;
    let value = only_what_was_sent(&sent, decoded.value);
    for (name, given) in [("apiVersion", kind.api_version()), ("kind", kind.kind.to_string())] {
        match value.get(name).and_then(Value::as_str) {
            Some(v) if v == given => {}
            None | Some("") => {
                return Err(Status::bad_request(format!(
                    "invalid object type: {name} is required in an apply patch"
                )));
            }
            Some(other) => {
                return Err(Status::bad_request(format!(
                    "the {name} in the data ({other}) does not match the expected {name} ({given})"
                )));
            }
        }
    }
    Ok(value)
}

/// The decoded object without what decoding filled in.
fn only_what_was_sent(sent: &Value, decoded: Value) -> Value {
    match (sent, decoded) {
        (Value::Object(sent), Value::Object(decoded)) => {
            let kept = decoded.into_iter().filter_map(|(name, value)| {
                let before = sent.get(&name)?;
                Some((name, only_what_was_sent(before, value)))
            });
            Value::Object(kept.collect())
        }
        (Value::Array(sent), Value::Array(decoded)) if sent.len() == decoded.len() => sent
            .iter()
            .zip(decoded)
            .map(|(s, d)| only_what_was_sent(s, d))
            .collect(),
        (_, decoded) => decoded,
    }
}

/// A patch may not turn the object into another one.
fn check_same_object(new: &mut Value, old: &Value) -> Result<(), Status> {
    for name in ["name", "namespace"] {
        let (was, is) = (meta_text(old, name), meta_text(new, name));
        if is.is_empty() && !was.is_empty() {
            new["metadata"][name] = was.into();
        } else if was != is {
            return Err(Status::bad_request(format!(
                "the {name} of the provided object does not match the {name} sent on the request: {is} != {was}"
            )));
        }
    }
    Ok(())
}
