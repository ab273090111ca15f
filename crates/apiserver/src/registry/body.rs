//! From the bytes of a request to a value in the shape of its kind, with unknown and doubled fields named.

use http::HeaderMap;
use orlop_api::schema::{self, Decoded, TypeRef};
use orlop_api::{KindDef, Status, Value, protobuf};

use super::context::{Context, FieldValidation};
use crate::negotiate::{Format, body_format};

/// What a body must be.
#[derive(Clone, Copy)]
pub struct BodyType {
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    pub ty: TypeRef,
}

impl BodyType {
    pub fn new(group: &'static str, version: &'static str, kind: &'static str, schema_name: &str) -> BodyType {
        let ty = schema::schema()
            .get(schema_name)
            .expect("the schema table has every type that is served");
        BodyType {
            group,
            version,
            kind,
            ty,
        }
    }

    pub fn of(kind: &KindDef) -> BodyType {
        BodyType::new(kind.group, kind.version, kind.kind, kind.schema)
    }

    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_string()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }
}

/// Decodes a body that must be an object of the wanted type. Names what is wrong; changes nothing.
pub fn decode(bytes: &[u8], headers: &HeaderMap, wanted: BodyType, ctx: &Context<'_>) -> Result<Value, Status> {
    if bytes.is_empty() {
        return Err(unrecognized(wanted, "the body is empty"));
    }
    let decoded = match body_format(headers)? {
        Format::Json => schema::decode_json(bytes, wanted.ty).map_err(|e| undecodable(wanted, &e))?,
        Format::Yaml => schema::decode_yaml(bytes, wanted.ty).map_err(|e| undecodable(wanted, &e))?,
        Format::Protobuf => from_protobuf(bytes, wanted)?,
    };
    let value = strict(decoded, wanted, ctx)?;
    check_type(value, wanted)
}

/// The same for a value that a patch made.
pub fn from_patched(value: Value, wanted: BodyType, ctx: &Context<'_>) -> Result<Value, Status> {
    let decoded = schema::from_value(value, wanted.ty).map_err(|e| undecodable(wanted, &e))?;
    let value = strict(decoded, wanted, ctx)?;
    check_type(value, wanted)
}

fn from_protobuf(bytes: &[u8], wanted: BodyType) -> Result<Decoded, Status> {
    let (meta, mut value) = protobuf::decode_as(bytes, wanted.ty).map_err(|e| unrecognized(wanted, &e.to_string()))?;
    for (name, text) in [("apiVersion", meta.api_version), ("kind", meta.kind)] {
        if !text.is_empty() {
            value[name] = text.into();
        }
    }
    Ok(Decoded {
        value,
        problems: vec![],
    })
}

fn unrecognized(wanted: BodyType, why: &str) -> Status {
    Status::bad_request(format!(
        "the object provided is unrecognized (must be of type {}): {why}",
        wanted.kind
    ))
}

fn undecodable(wanted: BodyType, error: &schema::DecodeError) -> Status {
    if !error.0.starts_with("json: ") {
        return unrecognized(wanted, &format!("couldn't get version/kind; json parse error: {error}"));
    }
    Status::bad_request(format!(
        "{} in version {:?} cannot be handled as a {}: {error}",
        wanted.kind, wanted.version, wanted.kind
    ))
}

/// Unknown and doubled fields: an error, advice or nothing, as the client asked.
fn strict(decoded: Decoded, wanted: BodyType, ctx: &Context<'_>) -> Result<Value, Status> {
    report_unknown(&decoded.problems, wanted, ctx)?;
    Ok(decoded.value)
}

pub fn report_unknown(problems: &[String], wanted: BodyType, ctx: &Context<'_>) -> Result<(), Status> {
    match ctx.options.field_validation {
        FieldValidation::Warn => problems.iter().for_each(|p| ctx.warnings.add(p.clone())),
        FieldValidation::Strict if !problems.is_empty() => {
            return Err(Status::bad_request(format!(
                "{} in version {:?} cannot be handled as a {}: strict decoding error: {}",
                wanted.kind,
                wanted.version,
                wanted.kind,
                problems.join(", ")
            )));
        }
        _ => {}
    }
    Ok(())
}

/// apiVersion and kind may be left out; if given they must be the endpoint's.
fn check_type(mut value: Value, wanted: BodyType) -> Result<Value, Status> {
    let expected = wanted.api_version();
    let text = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or("").to_string();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    if !kind.is_empty() && kind != wanted.kind {
        let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
        return Err(Status::bad_request(format!(
            "{kind} in version {version:?} cannot be handled as a {}: no kind {kind:?} is registered for this endpoint (group {group:?})",
            wanted.kind
        )));
    }
    if !api_version.is_empty() && api_version != expected {
        return Err(Status::bad_request(format!(
            "the API version in the data ({api_version}) does not match the expected API version ({expected})"
        )));
    }
    value["apiVersion"] = expected.into();
    value["kind"] = wanted.kind.into();
    Ok(value)
}
