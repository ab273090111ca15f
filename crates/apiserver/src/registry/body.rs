//! From the bytes of a request to a value in the shape of its kind, with unknown and doubled fields named.

use std::sync::Arc;

use http::HeaderMap;
use orlop_api::schema::{self, Decoded, TypeRef};
use orlop_api::{KindDef, Status, Value, protobuf};
use orlop_apiextensions::CustomVersion;

use super::context::{Context, FieldValidation};
use crate::custom;
use crate::kinds;
use crate::negotiate::{Format, body_format};

/// What a body must be.
#[derive(Clone)]
pub struct BodyType {
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    pub schema: BodySchema,
}

/// What its members must be.
#[derive(Clone)]
pub enum BodySchema {
    BuiltIn(TypeRef),
    Custom(Arc<CustomVersion>),
}

impl BodySchema {
    fn decode_json(&self, bytes: &[u8]) -> Result<Decoded, schema::DecodeError> {
        match self {
            BodySchema::BuiltIn(ty) => schema::decode_json(bytes, *ty),
            BodySchema::Custom(version) => version.decode_json(bytes),
        }
    }

    fn decode_yaml(&self, bytes: &[u8]) -> Result<Decoded, schema::DecodeError> {
        match self {
            BodySchema::BuiltIn(ty) => schema::decode_yaml(bytes, *ty),
            BodySchema::Custom(version) => version.decode_yaml(bytes),
        }
    }

    fn read_value(&self, value: Value) -> Result<Decoded, schema::DecodeError> {
        match self {
            BodySchema::BuiltIn(ty) => schema::from_value(value, *ty),
            BodySchema::Custom(version) => version.from_value(value),
        }
    }
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
            schema: BodySchema::BuiltIn(ty),
        }
    }

    pub fn of(kind: &KindDef) -> Result<BodyType, Status> {
        let Some(served) = custom::of(kind) else {
            return Ok(BodyType::new(kind.group, kind.version, kind.kind, kind.schema));
        };
        Ok(BodyType {
            group: kind.group,
            version: kind.version,
            kind: kind.kind,
            schema: BodySchema::Custom(served.schema()?),
        })
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
pub fn decode(bytes: &[u8], headers: &HeaderMap, wanted: &BodyType, ctx: &Context<'_>) -> Result<Value, Status> {
    let decoded = match body_format(headers)? {
        // To Go, null is an object that says nothing.
        Format::Json if bytes.trim_ascii() == b"null" => wanted
            .schema
            .decode_json(b"{}")
            .map_err(|e| undecodable_json(bytes, wanted, &e))?,
        Format::Json => wanted
            .schema
            .decode_json(bytes)
            .map_err(|e| undecodable_json(bytes, wanted, &e))?,
        Format::Yaml => wanted
            .schema
            .decode_yaml(bytes)
            .map_err(|e| undecodable_yaml(bytes, wanted, &e))?,
        Format::Protobuf => from_protobuf(bytes, wanted)?,
    };
    check_type(&decoded.value, wanted)?;
    let value = strict(decoded, wanted, ctx)?;
    Ok(with_type(value, wanted))
}

/// Why a value is not of the wanted type, in upstream's words.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TypeMismatch(pub String);

/// The same for a value that a patch made. `Err` says why it is none of the wanted type.
pub fn from_patched(value: Value, wanted: &BodyType, ctx: &Context<'_>) -> Result<Result<Value, TypeMismatch>, Status> {
    let decoded = match wanted.schema.read_value(value) {
        Ok(decoded) => decoded,
        Err(e) => return Ok(Err(TypeMismatch(e.to_string()))),
    };
    if let Err(why) = type_problem(&decoded.value, wanted) {
        return Ok(Err(TypeMismatch(why)));
    }
    if ctx.options.field_validation == FieldValidation::Strict && !decoded.problems.is_empty() {
        let problems = decoded.problems.join(", ");
        return Ok(Err(TypeMismatch(format!("strict decoding error: {problems}"))));
    }
    let value = strict(decoded, wanted, ctx)?;
    Ok(Ok(with_type(value, wanted)))
}

fn from_protobuf(bytes: &[u8], wanted: &BodyType) -> Result<Decoded, Status> {
    let BodySchema::BuiltIn(ty) = wanted.schema else {
        return Err(Status::unsupported_media_type(
            "the body of the request was in an unknown format - accepted media types include: application/json, application/yaml",
        ));
    };
    let (meta, mut value) = protobuf::decode_as(bytes, ty)
        .map_err(|e| unrecognized(wanted, e.to_string().trim_start_matches("proto: "), bytes))?;
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

fn unrecognized(wanted: &BodyType, why: &str, bytes: &[u8]) -> Status {
    let kind = wanted.kind;
    let start = summary(bytes);
    Status::bad_request(format!(
        "the object provided is unrecognized (must be of type {kind}): {why} ({start})"
    ))
}

/// The start of a body as it stands in messages: text if it may be JSON, else hexadecimal.
fn summary(bytes: &[u8]) -> String {
    const SHOWN: usize = 30;
    let start = &bytes[..bytes.len().min(SHOWN)];
    let text = match bytes.first() {
        None => return "<empty>".to_string(),
        Some(b'{') => String::from_utf8_lossy(start).into_owned(),
        Some(_) => start.iter().map(|b| format!("{b:02x}")).collect(),
    };
    if bytes.len() > SHOWN {
        format!("{text} ...")
    } else {
        text
    }
}

fn undecodable_json(bytes: &[u8], wanted: &BodyType, error: &schema::DecodeError) -> Status {
    let no_type = |why: &str| {
        let why = format!("couldn't get version/kind; json parse error: {why}");
        unrecognized(wanted, &why, bytes)
    };
    if let Some(why) = schema::json_syntax_error(bytes) {
        return no_type(&why);
    }
    let Ok(value) = serde_json::from_slice::<Value>(bytes) else {
        return no_type(&error.0);
    };
    let go_struct =
        r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;
    let Some(members) = value.as_object() else {
        let kind = json_type(&value);
        return no_type(&format!(
            "json: cannot unmarshal {kind} into Go value of type {go_struct}"
        ));
    };
    for name in ["apiVersion", "kind"] {
        if let Some(other) = members.get(name).filter(|v| !v.is_string() && !v.is_null()) {
            let kind = json_type(other);
            return no_type(&format!(
                "json: cannot unmarshal {kind} into Go struct field .{name} of type string"
            ));
        }
    }
    undecodable(&value, wanted, error)
}

fn undecodable_yaml(bytes: &[u8], wanted: &BodyType, error: &schema::DecodeError) -> Status {
    match schema::yaml_to_value(bytes) {
        Err(_) => unrecognized(wanted, &error.0, bytes),
        Ok((value, _)) => undecodable(&value, wanted, error),
    }
}

/// A body that says what it is, but is not of that type.
fn undecodable(value: &Value, wanted: &BodyType, error: &schema::DecodeError) -> Status {
    if let Err(status) = check_type(value, wanted) {
        return status;
    }
    Status::bad_request(format!(
        "{} in version {:?} cannot be handled as a {}: {error}",
        wanted.kind, wanted.version, wanted.kind
    ))
}

fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Unknown and doubled fields: an error, advice or nothing, as the client asked.
fn strict(decoded: Decoded, wanted: &BodyType, ctx: &Context<'_>) -> Result<Value, Status> {
    report_unknown(&decoded.problems, wanted, ctx)?;
    Ok(decoded.value)
}

pub fn report_unknown(problems: &[String], wanted: &BodyType, ctx: &Context<'_>) -> Result<(), Status> {
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
fn check_type(value: &Value, wanted: &BodyType) -> Result<(), Status> {
    let Err(why) = type_problem(value, wanted) else {
        return Ok(());
    };
    let text = |name: &str| value.get(name).and_then(Value::as_str).filter(|s| !s.is_empty());
    let kind = text("kind").unwrap_or(wanted.kind);
    let version = text("apiVersion").map_or(wanted.version, |v| v.rsplit('/').next().unwrap_or(""));
    // Another version of the same thing is understood, but not here.
    if why.starts_with("the API version") {
        return Err(Status::bad_request(why));
    }
    Err(Status::bad_request(format!(
        "{kind} in version {version:?} cannot be handled as a {}: {why}",
        wanted.kind
    )))
}

/// Why an object that says what it is is not of the wanted type.
fn type_problem(value: &Value, wanted: &BodyType) -> Result<(), String> {
    let expected = wanted.api_version();
    let text = |name: &str| value.get(name).and_then(Value::as_str).filter(|s| !s.is_empty());
    let api_version = text("apiVersion").unwrap_or(&expected);
    let kind = text("kind").unwrap_or(wanted.kind);
    if kind == wanted.kind && api_version == expected {
        return Ok(());
    }
    let version = api_version.rsplit('/').next().unwrap_or("");
    Err(match kinds::of_kind(api_version, kind) {
        Some(other) if other.kind == wanted.kind && other.group == wanted.group => {
            format!("the API version in the data ({api_version}) does not match the expected API version ({expected})")
        }
        Some(_) => {
            let package = package(wanted.group);
            format!(
                "converting ({version}.{kind}) to ({package}.{}): unknown conversion",
                wanted.kind
            )
        }
        None => format!(
            "no kind {kind:?} is registered for version {api_version:?} in scheme \"pkg/api/legacyscheme/scheme.go:30\""
        ),
    })
}

fn with_type(mut value: Value, wanted: &BodyType) -> Value {
    value["apiVersion"] = wanted.api_version().into();
    value["kind"] = wanted.kind.into();
    value
}

/// The name of a group in the messages of Kubernetes' own types.
fn package(group: &str) -> &str {
    match group.split('.').next().unwrap_or("") {
        "" | "events" => "core",
        first => first,
    }
}

/// "core.ConfigMap": a kind, in messages about what it is inside the server.
pub fn internal_type_name(kind: &KindDef) -> String {
    format!("{}.{}", package(kind.group), kind.kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_of_another_type_are_refused_by_what_they_are() {
        let wanted = BodyType::new("", "v1", "ConfigMap", "core/v1.ConfigMap");
        let refuse = |body: &str| match wanted.schema.decode_json(body.as_bytes()) {
            Err(e) => undecodable_json(body.as_bytes(), &wanted, &e).message,
            Ok(decoded) => check_type(&decoded.value, &wanted).map_or_else(|s| s.message, |()| "fine".into()),
        };
        for (body, message) in [
            (r#"{"kind":"ConfigMap"}"#, "fine"),
            (
                "",
                "the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error: unexpected end of JSON input (<empty>)",
            ),
            (
                r#"{"apiVersion":"v1","kind":"ConfigMap","#,
                r#"the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error: unexpected end of JSON input ({"apiVersion":"v1","kind":"Con ...)"#,
            ),
            (
                r#"{"kind":7}"#,
                r#"the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error: json: cannot unmarshal number into Go struct field .kind of type string ({"kind":7})"#,
            ),
            (
                r#"{"apiVersion":"v1","kind":"Pod"}"#,
                r#"Pod in version "v1" cannot be handled as a ConfigMap: converting (v1.Pod) to (core.ConfigMap): unknown conversion"#,
            ),
            (
                r#"{"apiVersion":"v1","kind":"Nosuch"}"#,
                r#"Nosuch in version "v1" cannot be handled as a ConfigMap: no kind "Nosuch" is registered for version "v1" in scheme "pkg/api/legacyscheme/scheme.go:30""#,
            ),
            (
                r#"{"data":{"a":1}}"#,
                r#"ConfigMap in version "v1" cannot be handled as a ConfigMap: json: cannot unmarshal number into Go struct field ConfigMap.data of type string"#,
            ),
        ] {
            assert_eq!(refuse(body), message);
        }
    }
}
