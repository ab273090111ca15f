//! patch: JSON patch, merge patch, strategic merge patch and server-side apply.

use http::HeaderMap;
use http::header::CONTENT_TYPE;
use orlop_api::patch::{self, apply as ownership};
use orlop_api::schema;
use orlop_api::{KindDef, Path, Problems, Status, Value};

use super::body::{self, BodySchema, BodyType, TypeMismatch};
use super::context::FieldValidation;
use super::create::{meta_text, place_in_namespace, reset_fields};
use super::update::Endpoint;
use super::{Context, Registry, VerbResult};
use crate::custom;
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
            MERGE_PATCH => Ok(Patch::Merge(patch::merge::decode(bytes)?)),
            STRATEGIC => Ok(Patch::Strategic(patch::strategic::decode(bytes)?)),
            _ => {
                let mut status = Status::unsupported_media_type("415: Unsupported Media Type");
                status.details = Some(Box::default());
                Err(status)
            }
        }
    }

    pub fn apply(&self, target: &mut Value, schema: &BodySchema) -> Result<(), Status> {
        match self {
            Patch::Json(bytes) => patch::json::apply(target, bytes).map_err(Status::from),
            Patch::Merge(value) => {
                patch::merge::apply(target, value.clone());
                Ok(())
            }
            Patch::Strategic(value) => match schema {
                BodySchema::BuiltIn(ty) => patch::strategic::apply(target, value.clone(), *ty).map_err(Status::from),
                // Nothing says how lists of custom kinds merge in this way.
                BodySchema::Custom(_) => Err(Status::unsupported_media_type(format!(
                    "the body of the request was in an unknown format - accepted media types include: {JSON_PATCH}, {MERGE_PATCH}, {APPLY_YAML}"
                ))),
            },
        }
    }

    /// What the patch makes of an object, decoded again.
    pub fn patched(&self, old: &Value, wanted: &BodyType, ctx: &Context<'_>) -> Result<Value, Status> {
        let mut new = old.clone();
        self.apply(&mut new, &wanted.schema)?;
        if !new.is_object() {
            return Err(Status::bad_request("the patch does not leave an object"));
        }
        body::from_patched(new, wanted, ctx)?.map_err(|TypeMismatch(why)| match self {
            Patch::Strategic(value) => does_not_fit(&patch::go_text(value), in_converter_words(why)),
            _ => does_not_fit(&self.shown_by_result(old, wanted), why),
        })
    }

    /// A strategic patch is itself shown when it does not fit, the others by what they lead to: made again, since
    /// hardly any patch has to be shown.
    fn shown_by_result(&self, old: &Value, wanted: &BodyType) -> String {
        let mut new = old.clone();
        if self.apply(&mut new, &wanted.schema).is_err() {
            return String::new();
        }
        if let Some(meta) = new["metadata"].as_object_mut() {
            meta.remove("managedFields");
        }
        new.to_string()
    }
}

/// What a strategic patch makes is not read from JSON but converted, and refused in other words.
fn in_converter_words(why: String) -> String {
    let words = why.strip_prefix("json: cannot unmarshal ").and_then(|rest| {
        let (from, rest) = rest.split_once(" into ")?;
        let (_, wanted) = rest.rsplit_once(" of type ")?;
        Some((from, wanted))
    });
    let Some((from, wanted)) = words else { return why };
    let from_kind = match from {
        "number" => "int64",
        "array" => "slice",
        "object" => "map",
        other => other,
    };
    match wanted {
        "string" if from == "number" => "cannot convert int64 to string".to_string(),
        "string" | "bool" | "int32" | "int64" | "float64" => format!("unrecognized type: {wanted}"),
        w if w.starts_with("[]") => format!("cannot restore slice from {from_kind}"),
        w if w.starts_with("map[") => format!("cannot restore map from {from_kind}"),
        _ => format!("cannot restore struct from: {from_kind}"),
    }
}

fn does_not_fit(shown: &str, why: String) -> Status {
    let mut problems = Problems::default();
    problems.invalid_value(&Path::default().field("patch"), &shown.into(), why);
    Status::invalid("", "", "", &problems)
}

impl Registry {
    pub async fn patch(
        &self,
        kind: &'static KindDef,
        endpoint: &Endpoint,
        bytes: &[u8],
        headers: &HeaderMap,
        ctx: &Context<'_>,
    ) -> Result<VerbResult, Status> {
        if is_apply(headers) {
            return self.apply(kind, endpoint, bytes, ctx).await;
        }
        let patch = Patch::parse(bytes, headers)?;
        let wanted = BodyType::of(kind)?;
        self.change(kind, endpoint, ctx, &|old| {
            let mut new = patch.patched(old, &wanted, ctx)?;
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
    ) -> Result<VerbResult, Status> {
        let applied = decode_applied(bytes, ctx)?;
        let version = custom::schema_of(kind);
        let merge = |live: Option<&Value>| -> Result<Value, Status> {
            let options = ownership::ApplyOptions {
                manager: &ctx.options.manager,
                force: ctx.options.force.unwrap_or(false),
                now: ctx.now,
                api_version: &kind.api_version(),
                subresource: endpoint.subresource,
                reset: reset_fields(kind, endpoint.subresource),
            };
            ownership::apply(live, &applied, custom::object_type(kind, &version), &options).map_err(Status::from)
        };
        let wanted = BodyType::of(kind)?;
        let exists = self
            .store
            .get(&kinds::key(kind, &ctx.info.namespace, &ctx.info.name))
            .is_some();
        if !exists && endpoint.subresource.is_empty() {
            self.authorize_create(ctx)?;
            if !meta_text(&applied, "uid").is_empty() {
                let uid = meta_text(&applied, "uid");
                let why =
                    format!("uid mismatch: the provided object specified uid {uid}, and no existing object was found");
                return Err(Status::conflict(kind.group, kind.plural, &ctx.info.name, why));
            }
            let mut value = decoded(merge(None)?, &wanted, ctx)?;
            place_in_namespace(kind, &mut value, &ctx.info.namespace)?;
            super::create::check_name(&value, &ctx.info.name)?;
            return self.create_value(kind, value, ctx).await;
        }
        self.change(kind, endpoint, ctx, &|old| {
            let mut new = decoded(merge(Some(old))?, &wanted, ctx)?;
            check_same_object(&mut new, old)?;
            Ok(new)
        })
        .await
    }
}

/// What an apply made, decoded again. That it fits the type was seen before.
fn decoded(merged: Value, wanted: &BodyType, ctx: &Context<'_>) -> Result<Value, Status> {
    body::from_patched(merged, wanted, ctx)?.map_err(|TypeMismatch(why)| Status::plain_error(why))
}

/// What an apply sends: YAML (or JSON, which is YAML too), as it is: absent fields are not wanted, which is not the same
/// as empty.
fn decode_applied(bytes: &[u8], ctx: &Context<'_>) -> Result<Value, Status> {
    let bad = |why: String| Status::bad_request(format!("error decoding YAML: {why}"));
    let (sent, problems) = schema::yaml_to_value(bytes).map_err(|e| bad(e.to_string()))?;
    if !sent.is_object() {
        return Err(bad("must be an object".to_string()));
    }
    for problem in problems {
        match ctx.options.field_validation {
            FieldValidation::Ignore => {}
            FieldValidation::Warn => ctx.warnings.add(problem),
            FieldValidation::Strict => {
                return Err(Status::bad_request(format!("error strict decoding YAML: {problem}")));
            }
        }
    }
    Ok(sent)
}

/// A patch may not turn the object into another one.
fn check_same_object(new: &mut Value, old: &Value) -> Result<(), Status> {
    for name in ["name", "namespace"] {
        let (was, is) = (meta_text(old, name), meta_text(new, name));
        if is.is_empty() && !was.is_empty() {
            new["metadata"][name] = was.into();
        } else if was != is {
            return Err(Status::bad_request(match name {
                "namespace" => {
                    "the namespace of the provided object does not match the namespace sent on the request".to_string()
                }
                _ => format!("the name of the object ({is}) does not match the name on the URL ({was})"),
            }));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_are_refused_in_their_own_words() {
        for (why, wanted) in [
            (
                "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32",
                "unrecognized type: int32",
            ),
            (
                "json: cannot unmarshal number into Go struct field ConfigMap.data of type string",
                "cannot convert int64 to string",
            ),
            (
                "json: cannot unmarshal string into Go struct field PodSpec.spec.containers of type []v1.Container",
                "cannot restore slice from string",
            ),
            (
                "strict decoding error: unknown field \"a\"",
                "strict decoding error: unknown field \"a\"",
            ),
        ] {
            assert_eq!(in_converter_words(why.to_string()), wanted);
        }
    }
}
