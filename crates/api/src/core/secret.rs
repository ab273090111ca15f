//! Secrets: values in base64 under `data`; `stringData` is only a way to write them.
//!
//! Upstream: pkg/registry/core/secret, ValidateSecret (v1.36). Differs: no warning when a TLS key does not fit its
//! certificate, as nothing here reads certificates.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::config_map::{MAX_BYTES, decoded_len, validate_immutable, validate_key};
use crate::field::{Cursor, Path, ProblemKind, Problems};
use crate::kind::{Column, KindDef, SelectableField};
use crate::{fill, meta, printing};

pub const DEF: KindDef = KindDef {
    kind: "Secret",
    plural: "secrets",
    singular: "secret",
    schema: "core/v1.Secret",
    fields: &[SelectableField::at("type")],
    columns: &[Column::string("Type"), Column::string("Data"), Column::AGE],
    cells,
    default,
    validate,
    validate_update,
    ..KindDef::BASE
};

/// The annotation of a token secret: whose token it is.
pub const SERVICE_ACCOUNT_NAME: &str = "kubernetes.io/service-account.name";

fn default(secret: &mut Value) {
    fill::empty(secret, "type", "Opaque");
    merge_string_data(secret);
}

/// `stringData` goes into `data`, over what is there, and is gone.
fn merge_string_data(secret: &mut Value) {
    let Some(Value::Object(texts)) = secret.as_object_mut().and_then(|s| s.remove("stringData")) else {
        return;
    };
    if texts.is_empty() {
        return;
    }
    let data = fill::member(secret, "data");
    for (key, text) in texts {
        data[&key] = STANDARD.encode(text.as_str().unwrap_or("")).into();
    }
}

fn validate(secret: &Cursor<'_>, p: &mut Problems) {
    let data = secret.at("data");
    let mut size = 0;
    for (key, value) in data.entries() {
        validate_key(key, &value, p);
        size += decoded_len(value.str());
    }
    if size > MAX_BYTES {
        p.too_long(&data, MAX_BYTES);
    }
    let kind = secret.at("type").str().strip_prefix("kubernetes.io/").unwrap_or("");
    match kind {
        "service-account-token" if meta::annotation(secret, SERVICE_ACCOUNT_NAME).is_none_or(str::is_empty) => {
            let path = Path::default().field("metadata").field("annotations");
            require(&path.key(SERVICE_ACCOUNT_NAME), p);
        }
        "dockercfg" => validate_json(&data, ".dockercfg", p),
        "dockerconfigjson" => validate_json(&data, ".dockerconfigjson", p),
        _ => {}
    }
    for key in missing_keys(kind, &data) {
        require(&data.path().key(key), p);
    }
}

/// The keys that a type demands and the data does not have. Empty values are fine, but not for a private key.
fn missing_keys(kind: &str, data: &Cursor<'_>) -> Vec<&'static str> {
    let absent = |key: &&'static str| !data.has_key(key);
    match kind {
        "basic-auth" if data.has_key("username") || data.has_key("password") => vec![],
        "basic-auth" => vec!["username", "password"],
        "ssh-auth" if data.at("ssh-privatekey").is_empty() => vec!["ssh-privatekey"],
        "tls" => ["tls.crt", "tls.key"].into_iter().filter(absent).collect(),
        _ => vec![],
    }
}

fn require(path: &Path, p: &mut Problems) {
    p.push(ProblemKind::Required, path, None, "");
}

/// A key that must be there and hold a JSON object.
fn validate_json(data: &Cursor<'_>, key: &'static str, p: &mut Problems) {
    let path = data.path().key(key);
    let Some(base64) = data.at(key).as_str() else {
        return require(&path, p);
    };
    let bytes = STANDARD.decode(base64).unwrap_or_default();
    let detail = match serde_json::from_slice::<Value>(&bytes) {
        Ok(Value::Object(_) | Value::Null) => return,
        Ok(_) => "json: cannot unmarshal into Go value of type map[string]interface {}".to_string(),
        Err(e) if e.is_eof() => "unexpected end of JSON input".to_string(),
        Err(e) => e.to_string(),
    };
    // The contents are a secret: they are not shown.
    p.invalid_value(&path, &json!("<secret contents redacted>"), detail);
}

fn validate_update(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    meta::immutable_text(&new.at("type"), &old.at("type"), p);
    validate_immutable(new, old, &["data"], p);
}

fn cells(secret: &Value, now: Timestamp) -> Vec<Value> {
    let count = secret.get("data").and_then(Value::as_object).map_or(0, |m| m.len());
    vec![
        printing::text(secret, "/type").into(),
        count.into(),
        printing::age(secret, now),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind_check::{create_problems, defaulted, refuses, refuses_update, row};

    #[test]
    fn string_data_is_merged_and_never_stored() {
        let secret = json!({"data": {"a": "eA==", "b": "eQ=="}, "stringData": {"b": "new", "c": ""}});
        let secret = defaulted(&DEF, secret);
        assert_eq!(
            secret,
            json!({"type": "Opaque", "data": {"a": "eA==", "b": "bmV3", "c": ""}})
        );
        assert_eq!(row(&DEF, &secret), "Opaque|3|<unknown>");
        assert_eq!(defaulted(&DEF, json!({"stringData": {}})), json!({"type": "Opaque"}));
    }

    #[test]
    fn types_demand_their_keys() {
        let redacted = "data[.dockercfg]: Invalid value: \"<secret contents redacted>\"";
        let kind = |k: &str, data: Value| json!({"type": format!("kubernetes.io/{k}"), "data": data});
        for (secret, wanted) in [
            (kind("made-up", json!({})), ""),
            (
                kind("service-account-token", json!({})),
                "metadata.annotations[kubernetes.io/service-account.name]: Required value",
            ),
            (kind("dockercfg", json!({})), "data[.dockercfg]: Required value"),
            (
                kind("dockercfg", json!({".dockercfg": ""})),
                &format!("{redacted}: unexpected end of JSON input"),
            ),
            (
                kind("dockercfg", json!({".dockercfg": "W10="})),
                &format!("{redacted}: json: cannot unmarshal into Go value of type map[string]interface {{}}"),
            ),
            (
                kind("dockerconfigjson", json!({})),
                "data[.dockerconfigjson]: Required value",
            ),
            (kind("dockerconfigjson", json!({".dockerconfigjson": "e30="})), ""),
            (
                kind("basic-auth", json!({})),
                "data[username]: Required value; data[password]: Required value",
            ),
            (kind("basic-auth", json!({"password": ""})), ""),
            (
                kind("ssh-auth", json!({"ssh-privatekey": ""})),
                "data[ssh-privatekey]: Required value",
            ),
            (
                kind("tls", json!({})),
                "data[tls.crt]: Required value; data[tls.key]: Required value",
            ),
            (kind("tls", json!({"tls.crt": "", "tls.key": ""})), ""),
        ] {
            assert_eq!(create_problems(&DEF, secret.clone()).join("; "), wanted, "{secret}");
        }
        let annotated = json!({"type": "kubernetes.io/service-account-token", "metadata": {"annotations": {SERVICE_ACCOUNT_NAME: "default"}}});
        refuses(
            &DEF,
            &annotated,
            &[
                (
                    json!({"data": {"..": ""}}),
                    "data[..]: Invalid value: \"..\": must not be '..'",
                ),
                (
                    json!({"data": {"k": "A".repeat(1_398_108)}}),
                    "data: Too long: may not be more than 1048576 bytes",
                ),
            ],
        );
    }

    #[test]
    fn updates() {
        let text = "Forbidden: field is immutable when `immutable` is set";
        refuses_update(
            &DEF,
            &json!({"data": {"a": ""}, "immutable": true}),
            &[
                (
                    json!({"type": "other"}),
                    "type: Invalid value: \"other\": field is immutable",
                ),
                (json!({"immutable": false}), &format!("immutable: {text}")),
                (json!({"stringData": {"a": "b"}}), &format!("data: {text}")),
            ],
        );
    }
}
