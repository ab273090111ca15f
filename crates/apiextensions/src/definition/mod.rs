//! CustomResourceDefinitions: defaults, what a writer may not set, and all rules that a definition must satisfy.
//!
//! `validate` is for new definitions and `validate_update` for changed ones: what an old definition was allowed to have it
//! may keep (each is the whole validation, not an addition to the other).
//!
//! The rules are written for Kubernetes' internal form, whose words stand in messages: what all versions have alike
//! stands there at the top (`spec.validation`, `spec.subresources`, `spec.additionalPrinterColumns`,
//! `spec.selectableFields`), and a conversion webhook as `spec.conversion.webhookClientConfig`.
//!
//! Upstream: apiextensions-apiserver pkg/apis/apiextensions/{v1,validation} and pkg/registry/customresourcedefinition
//! (v1.36).

pub(crate) mod approval;
#[cfg(test)]
mod cases;
mod defaults;
mod field_path;
mod ratchet;
mod schema;
mod spec;
mod structure;
#[cfg(test)]
mod tests;

use base64::Engine;
use orlop_api::field::{Cursor, Path, Problems};
use orlop_api::structural::Structural;
use orlop_api::{meta, names};
use serde_json::{Value, json};

use self::ratchet::Options;
use crate::validate;

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or("")
}

fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn is_true(value: &Value, name: &str) -> bool {
    value.get(name).and_then(Value::as_bool) == Some(true)
}

/// Fills in defaults: names that follow from the kind, conversion None, a webhook service's port, the first stored version.
pub fn default(definition: &mut Value) {
    if let Some(spec) = definition.get_mut("spec").filter(|s| s.is_object()) {
        default_spec(spec);
    }
    let stored = definition.pointer("/status/storedVersions").and_then(Value::as_array);
    if stored.is_none_or(Vec::is_empty) {
        add_stored_version(definition);
    }
}

fn default_spec(spec: &mut Value) {
    if let Some(names) = spec.get_mut("names").filter(|n| n.is_object()) {
        let kind = text(names, "kind").to_string();
        if text(names, "singular").is_empty() && !kind.is_empty() {
            names["singular"] = kind.to_lowercase().into();
        }
        if text(names, "listKind").is_empty() && !kind.is_empty() {
            names["listKind"] = format!("{kind}List").into();
        }
    }
    if spec.get("conversion").is_none_or(Value::is_null) {
        spec["conversion"] = json!({"strategy": "None"});
    }
    let service = spec.pointer_mut("/conversion/webhook/clientConfig/service");
    if let Some(service) = service.filter(|s| s.is_object())
        && service.get("port").is_none_or(Value::is_null)
    {
        service["port"] = 443.into();
    }
}

/// The storage version is one in which objects are stored from now on.
fn add_stored_version(definition: &mut Value) {
    let spec = definition.get("spec").unwrap_or(&Value::Null);
    let storage = list(spec, "versions").iter().find(|v| is_true(v, "storage"));
    let Some(name) = storage.map(|v| text(v, "name").to_string()) else {
        return;
    };
    if !definition.get("status").is_some_and(Value::is_object) {
        definition["status"] = json!({});
    }
    let status = &mut definition["status"];
    if !status.get("storedVersions").is_some_and(Value::is_array) {
        status["storedVersions"] = json!([]);
    }
    let stored = status["storedVersions"].as_array_mut().expect("made a list just above");
    if !stored.iter().any(|v| v == &name) {
        stored.push(name.into());
    }
}

/// Readies a new definition: its status is the system's, and says only in which version objects are stored.
pub fn prepare_create(definition: &mut Value) {
    definition["status"] =
        json!({"acceptedNames": {"kind": "", "plural": ""}, "conditions": null, "storedVersions": null});
    add_stored_version(definition);
}

/// Readies an update: it keeps the old status, to which a new storage version is added.
pub fn prepare_update(new: &mut Value, old: &Value) {
    orlop_api::kind::keep_status(new, old);
    add_stored_version(new);
}

/// Readies an update of the status: the spec stays, and of the metadata all but managedFields.
pub fn prepare_status(new: &mut Value, old: &Value) {
    orlop_api::kind::keep_all_but_status(new, old);
}

/// The name that a definition must have.
pub fn required_name(definition: &Value) -> String {
    let spec = definition.get("spec").unwrap_or(&Value::Null);
    format!(
        "{}.{}",
        spec.get("names").map_or("", |n| text(n, "plural")),
        text(spec, "group")
    )
}

/// Validates a new definition.
pub fn validate(new: &Cursor<'_>, p: &mut Problems) {
    let Some(definition) = new.value() else { return };
    let name = new.at("metadata").at("name");
    if !name.is_empty() && name.str() != required_name(definition) {
        p.invalid(&name, "must be spec.names.plural+\".\"+spec.group");
    }
    spec::validate(&new.at("spec"), &Options::for_create(), p);
    validate_common(new, None, p);
}

/// Validates a changed definition.
pub fn validate_update(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    let (Some(new_value), Some(old_value)) = (new.value(), old.value()) else {
        return;
    };
    let options = Options::for_update(new_value, old_value);
    let (spec, old_spec) = (new.at("spec"), old.at("spec"));
    spec::validate(&spec, &options, p);
    if options.require_immutable_names {
        meta::immutable_text(&spec.at("scope"), &old_spec.at("scope"), p);
        meta::immutable_text(&spec.at("names").at("kind"), &old_spec.at("names").at("kind"), p);
    }
    meta::immutable_text(&spec.at("group"), &old_spec.at("group"), p);
    meta::immutable_text(&spec.at("names").at("plural"), &old_spec.at("names").at("plural"), p);
    validate_common(new, Some(old_value), p);
}

/// Validates an update of the status.
pub fn validate_status(new: &Cursor<'_>, _: &Cursor<'_>, p: &mut Problems) {
    spec::validate_names(&new.at("status").at("acceptedNames"), p);
}

fn validate_common(new: &Cursor<'_>, old: Option<&Value>, p: &mut Problems) {
    let definition = new.value().unwrap_or(&Value::Null);
    spec::validate_names(&new.at("status").at("acceptedNames"), p);
    validate_stored_versions(new, p);
    approval::validate(definition, old, p);
    let preserved = |d: &Value| d.pointer("/spec/preserveUnknownFields").and_then(Value::as_bool) == Some(true);
    if !old.is_some_and(preserved) && preserved(definition) {
        let detail =
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        p.invalid(&new.at("spec").at("preserveUnknownFields"), detail);
    }
}

fn validate_stored_versions(new: &Cursor<'_>, p: &mut Problems) {
    let stored = new.at("status").at("storedVersions");
    if stored.is_empty() {
        return p.invalid(&stored, "must have at least one stored version");
    }
    let names: Vec<&str> = stored.items().map(|v| v.str()).collect();
    let mut known = vec![];
    for version in new.at("spec").at("versions").items() {
        let name = version.at("name").str();
        known.push(name);
        if version.at("storage").is_true() && !names.contains(&name) {
            p.invalid(&stored, format!("must have the storage version {name}"));
        }
    }
    for version in stored.items().filter(|v| !known.contains(&v.str())) {
        let name = version.str();
        p.invalid(
            &version,
            format!(
                "missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions until \
                 a storage migration ensures no data remains persisted in {name} and removes {name} from status.storedVersions"
            ),
        );
    }
}

/// Advice for the writer: formats that say nothing about values, unless they were there before.
pub fn warnings(new: &Cursor<'_>, old: Option<&Cursor<'_>>) -> Vec<String> {
    let unrecognized = |definition: Option<&Value>| -> Vec<String> {
        let mut found = vec![];
        for schema in definition.into_iter().flat_map(ratchet::schemas) {
            ratchet::any_schema(schema, &mut |s| {
                let format = s.get("format").and_then(Value::as_str).unwrap_or("");
                let ty = s.get("type").and_then(Value::as_str).unwrap_or("");
                if !format.is_empty() && validate::unrecognized(ty, format) {
                    found.push(format.to_string());
                }
                false
            });
        }
        found
    };
    let before = unrecognized(old.and_then(Cursor::value));
    let found = unrecognized(new.value()).into_iter().filter(|f| !before.contains(f));
    found.map(|format| format!("unrecognized format {format:?}")).collect()
}

/// A field path of a rule as messages write it; None if it leads nowhere.
pub(crate) fn follow_path(path: &str, schema: &Structural) -> Option<String> {
    field_path::follow(path, schema, true)
        .ok()
        .map(|found| found.path.to_string())
}

/// Whether a schema is structural, its patterns apart.
pub(crate) fn is_structural(schema: &Value) -> bool {
    let mut p = Problems::default();
    structure::is_sound(&Cursor::root(schema), &mut p) && p.is_empty()
}

/// What keeps the schemas of a definition's versions from being structural.
pub(crate) fn non_structural(spec: &Value, p: &mut Problems) {
    let spec = Cursor::new(Some(spec), Path::default().field("spec"));
    for version in spec.at("versions").items() {
        let schema = version.at("schema").at("openAPIV3Schema");
        if schema.exists() {
            structure::validate(&schema, p);
        }
    }
}

/// Why a CA bundle (base64) holds no certificates.
pub(crate) fn ca_bundle_error(bundle: &str) -> Option<&'static str> {
    if bundle.is_empty() {
        return None;
    }
    let decoded = base64::engine::general_purpose::STANDARD
        .decode(bundle)
        .unwrap_or_default();
    let text = String::from_utf8_lossy(&decoded);
    let (begin, end) = ("-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----");
    let is_certificate = |block: &str| {
        let body: String = block.split(end).next().unwrap_or("").split_whitespace().collect();
        let der = base64::engine::general_purpose::STANDARD.decode(body);
        // A certificate is a sequence that fills its block.
        der.is_ok_and(|der| der.first() == Some(&0x30) && der_length(&der) == Some(der.len()))
    };
    let has_certificate = text
        .split(begin)
        .skip(1)
        .any(|block| block.contains(end) && is_certificate(block));
    (!has_certificate).then_some("unable to load root certificates: unable to parse bytes as PEM block")
}

/// The length that the first element of a DER text says it has, its header included.
fn der_length(der: &[u8]) -> Option<usize> {
    let first = usize::from(*der.get(1)?);
    if first < 0x80 {
        return Some(first + 2);
    }
    let count = first & 0x7f;
    let digits = der.get(2..2 + count)?;
    let length = digits
        .iter()
        .try_fold(0usize, |n, b| n.checked_mul(256)?.checked_add(usize::from(*b)))?;
    length.checked_add(2 + count)
}

/// `Invalid value` with all messages of a rule in one.
fn joined(c: &Cursor<'_>, messages: &[String], prefix: &str, p: &mut Problems) {
    if !messages.is_empty() {
        meta::invalid_text(c, format!("{prefix}{}", messages.join(",")), p);
    }
}

fn dns_1035(c: &Cursor<'_>, p: &mut Problems) {
    joined(c, &names::dns_1035_label(c.str()), "", p);
}
