//! CertificateSigningRequest: asked for by anyone who may, approved through one subresource, issued through another.
//!
//! What the request path must do beyond the row: on creation `set_requestor`; before a write through `approval` or
//! `status`, `stamp_conditions`; for `approval`, `prepare_approval` and `validate_approval` in place of the row's
//! functions for status; and a check of the request's signature, for which there is no cryptography here.
//!
//! Upstream: pkg/apis/certificates/validation, pkg/registry/certificates/certificates (v1.36).

use std::collections::BTreeSet;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use serde_json::Value;

use super::pem;
use crate::field::{Cursor, Problems};
use crate::kind::{Column, KindDef, SelectableField, Subresource, copy_member, drop_status};
use crate::printing::{age, human_duration, text, text_or_none};
use crate::{fill, rules};

pub const DEF: KindDef = KindDef {
    group: super::GROUP,
    kind: "CertificateSigningRequest",
    plural: "certificatesigningrequests",
    singular: "certificatesigningrequest",
    short_names: &["csr"],
    namespaced: false,
    schema: "certificates/v1.CertificateSigningRequest",
    subresources: &[
        Subresource {
            name: "approval",
            ..Subresource::STATUS
        },
        Subresource::STATUS,
    ],
    fields: &[SelectableField::at("spec.signerName")],
    columns: &[
        Column::AGE,
        Column::string("SignerName"),
        Column::string("Requestor"),
        Column::string("RequestedDuration"),
        Column::string("Condition"),
    ],
    cells,
    name_rule: |_| vec![],
    prepare_create,
    // What was asked for does not change.
    prepare_update: |new, old| {
        copy_member(new, old, "spec");
        copy_member(new, old, "status");
    },
    prepare_status,
    validate: |request, p| {
        validate_spec(&request.at("spec"), p);
        validate_conditions(&request.at("status").at("conditions"), p);
    },
    validate_status,
    ..KindDef::BASE
};

/// Who asked: what the server knows of the user, not what the request says.
pub struct Requestor<'a> {
    pub username: &'a str,
    pub uid: &'a str,
    pub groups: &'a [String],
    pub extra: &'a [(String, Vec<String>)],
}

pub fn set_requestor(request: &mut Value, by: &Requestor<'_>) {
    let spec = fill::member(request, "spec");
    for (name, value) in [("username", by.username), ("uid", by.uid)] {
        if !value.is_empty() {
            spec[name] = value.into();
        }
    }
    if !by.groups.is_empty() {
        spec["groups"] = by.groups.into();
    }
    if !by.extra.is_empty() {
        let extra = by.extra.iter().map(|(k, v)| (k.clone(), Value::from(v.clone())));
        spec["extra"] = Value::Object(extra.collect());
    }
}

fn prepare_create(request: &mut Value) {
    drop_status(request);
    if let Some(spec) = request.get_mut("spec").and_then(Value::as_object_mut) {
        for name in ["username", "uid", "groups", "extra"] {
            spec.remove(name);
        }
    }
}

/// Who may issue may not decide: approvals and denials that are there stay as they are.
fn prepare_status(new: &mut Value, old: &Value) {
    copy_member(new, old, "spec");
    for kind in ["Approved", "Denied"] {
        let kept: Vec<Value> = of_type(old, kind).cloned().collect();
        let Some(conditions) = new.pointer_mut("/status/conditions").and_then(Value::as_array_mut) else {
            continue;
        };
        let places: Vec<&mut Value> = conditions.iter_mut().filter(|c| text(c, "/type") == kind).collect();
        if places.len() == kept.len() {
            for (place, condition) in places.into_iter().zip(kept) {
                *place = condition;
            }
        }
    }
}

/// Readies an update through the approval subresource: only the conditions, and the metadata, are the writer's.
pub fn prepare_approval(new: &mut Value, old: &Value) {
    let conditions = new.pointer("/status/conditions").cloned();
    copy_member(new, old, "spec");
    copy_member(new, old, "status");
    let status = fill::member(new, "status");
    match conditions {
        Some(list) => status["conditions"] = list,
        None => {
            status.as_object_mut().map(|s| s.remove("conditions"));
        }
    }
}

/// Dates the conditions of an update that carry no date.
pub fn stamp_conditions(new: &mut Value, old: &Value, now: Timestamp) {
    let now = Value::from(now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
    let Some(conditions) = new.pointer_mut("/status/conditions").and_then(Value::as_array_mut) else {
        return;
    };
    for condition in conditions {
        let (kind, status) = (
            text(condition, "/type").to_string(),
            text(condition, "/status").to_string(),
        );
        fill::absent(condition, "lastUpdateTime", now.clone());
        let before = of_type(old, &kind)
            .filter(|c| text(c, "/status") == status)
            .find_map(|c| c.get("lastTransitionTime").filter(|t| !t.is_null()));
        fill::absent(condition, "lastTransitionTime", before.unwrap_or(&now).clone());
    }
}

fn of_type<'a>(request: &'a Value, kind: &str) -> impl Iterator<Item = &'a Value> {
    let conditions = request.pointer("/status/conditions").and_then(Value::as_array);
    conditions
        .into_iter()
        .flatten()
        .filter(move |c| text(c, "/type") == kind)
}

const USAGES: &[&str] = &[
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

fn validate_spec(spec: &Cursor<'_>, p: &mut Problems) {
    let request = spec.at("request");
    if let Err(complaint) = check_request(request.str()) {
        p.invalid(&request, complaint);
    }
    let usages = spec.at("usages");
    if usages.is_empty() {
        p.required(&usages, "");
    }
    for usage in usages.items().filter(|u| !USAGES.contains(&u.str())) {
        p.not_supported(&usage, USAGES);
    }
    let mut seen = BTreeSet::new();
    for usage in usages.items() {
        if !seen.insert(usage.str()) {
            p.duplicate(&usage);
        }
    }
    let signer = spec.at("signerName");
    if signer.str() == "kubernetes.io/legacy-unknown" {
        p.invalid(&signer, "the legacy signerName is not allowed via this API version");
    } else {
        rules::signer_name(&signer, p);
    }
    let expires = spec.at("expirationSeconds");
    if expires.as_i64().is_some_and(|s| s < 600) {
        p.invalid(
            &expires,
            "may not specify a duration less than 600 seconds (10 minutes)",
        );
    }
}

/// PEM in base64, as bytes are in JSON.
fn pem_text(encoded: &str) -> String {
    let bytes = BASE64_STANDARD.decode(encoded).unwrap_or_default();
    String::from_utf8(bytes).unwrap_or_default()
}

fn check_request(encoded: &str) -> Result<(), &'static str> {
    let text = pem_text(encoded);
    match pem::next(&text) {
        Some((block, _)) if block.label == "CERTIFICATE REQUEST" => match pem::is_sequence(&block.der) {
            true => Ok(()),
            false => Err("asn1: syntax error: not one sequence"),
        },
        _ => Err("PEM block type must be CERTIFICATE REQUEST"),
    }
}

fn check_certificate(encoded: &str) -> Result<(), String> {
    if encoded.is_empty() {
        return Ok(());
    }
    let text = pem_text(encoded);
    let (mut rest, mut count) = (text.as_str(), 0);
    while let Some((block, after)) = pem::next(rest) {
        if block.label != "CERTIFICATE" {
            return Err(format!(
                "only CERTIFICATE PEM blocks are allowed, found {:?}",
                block.label
            ));
        }
        if block.has_headers {
            return Err("no PEM block headers are permitted".into());
        }
        if block.der.is_empty() {
            return Err("found CERTIFICATE PEM block containing 0 certificates".into());
        }
        if !pem::is_sequence(&block.der) {
            return Err("x509: malformed certificate".into());
        }
        (rest, count) = (after, count + 1);
    }
    match count {
        0 => Err("must contain at least one CERTIFICATE PEM block".into()),
        _ => Ok(()),
    }
}

fn validate_conditions(conditions: &Cursor<'_>, p: &mut Problems) {
    let mut seen = BTreeSet::new();
    for condition in conditions.items() {
        let (kind, status) = (condition.at("type"), condition.at("status"));
        if kind.is_empty() {
            p.required(&kind, "");
        }
        // The three that decide can only be true: there is no taking back.
        let allowed: &[&str] = match kind.str() {
            "Approved" | "Denied" | "Failed" => &["True"],
            _ => &["True", "False", "Unknown"],
        };
        p.one_of(&status, true, allowed);
        let opposite = match kind.str() {
            "Approved" => "Denied",
            "Denied" => "Approved",
            _ => "",
        };
        if !opposite.is_empty() && seen.contains(opposite) {
            let detail = "Approved and Denied conditions are mutually exclusive";
            p.invalid_value(conditions.path(), &kind.str().into(), detail);
        }
        if !seen.insert(kind.str()) {
            p.duplicate(&rules::as_text(&kind));
        }
    }
}

/// Rules of updates through either subresource: nothing decided is taken back, and a certificate that is new is one.
fn validate_subresource(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    validate_spec(&new.at("spec"), p);
    let conditions = new.at("status").at("conditions");
    validate_conditions(&conditions, p);
    let (certificate, before) = (new.at("status").at("certificate"), old.at("status").at("certificate"));
    if certificate.str() != before.str()
        && let Err(complaint) = check_certificate(certificate.str())
    {
        p.invalid_value(certificate.path(), &"<certificate data>".into(), complaint);
    }
    for kind in ["Approved", "Denied", "Failed"] {
        if count(new, kind) < count(old, kind) {
            p.forbidden(
                &conditions,
                format!("updates may not remove a condition of type {kind:?}"),
            );
        }
    }
}

fn count(request: &Cursor<'_>, kind: &str) -> usize {
    request.value().map_or(0, |r| of_type(r, kind).count())
}

fn validate_status(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    validate_subresource(new, old, p);
    let conditions = new.at("status").at("conditions");
    for kind in ["Approved", "Denied"] {
        if count(new, kind) > count(old, kind) {
            p.forbidden(&conditions, format!("updates may not add a condition of type {kind:?}"));
        }
    }
    let (certificate, before) = (new.at("status").at("certificate"), old.at("status").at("certificate"));
    if !before.is_empty() && certificate.str() != before.str() {
        p.forbidden(&certificate, "updates may not modify existing certificate content");
    }
}

/// Validates an update through the approval subresource.
pub fn validate_approval(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    validate_subresource(new, old, p);
    let certificate = new.at("status").at("certificate");
    if certificate.str() != old.at("status").at("certificate").str() {
        p.forbidden(&certificate, "updates may not set certificate content");
    }
}

fn cells(request: &Value, now: Timestamp) -> Vec<Value> {
    let has = |kind: &str| of_type(request, kind).next().is_some();
    let mut state = match (has("Denied"), has("Approved")) {
        (true, _) => "Denied",
        (false, true) => "Approved",
        (false, false) => "Pending",
    }
    .to_string();
    if has("Failed") {
        state.push_str(",Failed");
    }
    if !text(request, "/status/certificate").is_empty() {
        state.push_str(",Issued");
    }
    let duration = request.pointer("/spec/expirationSeconds").and_then(Value::as_i64);
    vec![
        age(request, now),
        text_or_none(request, "/spec/signerName"),
        text(request, "/spec/username").into(),
        duration.map_or("<none>".into(), human_duration).into(),
        state.into(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind_check::{merged, refuses, row, status_problems};
    use serde_json::json;

    fn pem_bytes(label: &str) -> String {
        BASE64_STANDARD.encode(format!("-----BEGIN {label}-----\nMAA=\n-----END {label}-----\n"))
    }

    fn request() -> Value {
        json!({"metadata": {"name": "c"}, "spec": {"request": pem_bytes("CERTIFICATE REQUEST"),
            "signerName": "example.com/s", "usages": ["client auth"], "username": "ann", "expirationSeconds": 3600},
            "status": {}})
    }

    fn with(conditions: Value) -> Value {
        merged(&request(), &json!({"status": {"conditions": conditions}}))
    }

    fn approved() -> Value {
        json!({"type": "Approved", "status": "True", "reason": "r"})
    }

    fn approval_problems(new: Value, old: Value) -> Vec<String> {
        let mut new = new;
        prepare_approval(&mut new, &old);
        let mut p = Problems::default();
        validate_approval(&Cursor::root(&new), &Cursor::root(&old), &mut p);
        p.0.iter().map(|p| p.to_string()).collect()
    }

    #[test]
    fn requests_are_checked() {
        refuses(
            &DEF,
            &request(),
            &[
                (
                    json!({"spec": {"request": pem_bytes("CERTIFICATE")}}),
                    &format!(
                        "spec.request: Invalid value: {:?}: PEM block type must be CERTIFICATE REQUEST",
                        pem_bytes("CERTIFICATE")
                    ),
                ),
                (json!({"spec": {"usages": null}}), "spec.usages: Required value"),
                (
                    json!({"spec": {"usages": ["any", "any"]}}),
                    r#"spec.usages[1]: Duplicate value: "any""#,
                ),
                (
                    json!({"spec": {"signerName": "kubernetes.io/legacy-unknown"}}),
                    r#"spec.signerName: Invalid value: "kubernetes.io/legacy-unknown": the legacy signerName is not allowed via this API version"#,
                ),
                (json!({"spec": {"signerName": null}}), "spec.signerName: Required value"),
                (
                    json!({"spec": {"expirationSeconds": 599}}),
                    "spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 600 seconds (10 minutes)",
                ),
                (
                    json!({"status": {"conditions": [{"status": "True"}]}}),
                    "status.conditions[0].type: Required value",
                ),
                (
                    json!({"status": {"conditions": [{"type": "Failed", "status": "False"}]}}),
                    r#"status.conditions[0].status: Unsupported value: "False": supported values: "True""#,
                ),
                (
                    json!({"status": {"conditions": [approved(), {"type": "Denied", "status": "True"}]}}),
                    r#"status.conditions: Invalid value: "Denied": Approved and Denied conditions are mutually exclusive"#,
                ),
                (
                    json!({"status": {"conditions": [{"type": "X", "status": "True"}, {"type": "X", "status": "True"}]}}),
                    r#"status.conditions[1].type: Duplicate value: "X""#,
                ),
            ],
        );
        assert_eq!(
            crate::kind_check::create_problems(&DEF, merged(&request(), &json!({"spec": {"usages": ["x"]}}))).len(),
            1
        );
    }

    #[test]
    fn creation_forgets_what_the_server_knows_better() {
        let mut new = with(json!([approved()]));
        prepare_create(&mut new);
        assert_eq!((&new["status"], new["spec"].get("username")), (&json!({}), None));
        let (groups, extra) = (["g".to_string()], [("k".to_string(), vec!["v".to_string()])]);
        let by = Requestor {
            username: "bob",
            uid: "",
            groups: &groups,
            extra: &extra,
        };
        set_requestor(&mut new, &by);
        assert_eq!(new["spec"]["username"], "bob");
        assert_eq!(
            (&new["spec"]["groups"], &new["spec"]["extra"]),
            (&json!(["g"]), &json!({"k": ["v"]}))
        );
        let mut update = merged(
            &request(),
            &json!({"spec": {"usages": ["any"]}, "status": {"certificate": "x"}}),
        );
        (DEF.prepare_update)(&mut update, &request());
        assert_eq!(update, request());
    }

    #[test]
    fn approval_decides_and_status_issues() {
        let cert = json!({"status": {"certificate": pem_bytes("CERTIFICATE")}});
        let issued = merged(&with(json!([approved()])), &cert);
        // Approval: conditions and annotations are taken, all else is kept.
        let patch = json!({"metadata": {"annotations": {"a": "b"}}, "spec": {"usages": []}, "status": {"certificate": "x", "conditions": [approved()]}});
        let mut new = merged(&request(), &patch);
        prepare_approval(&mut new, &request());
        assert_eq!(new["metadata"]["annotations"]["a"], "b");
        assert_eq!(
            (&new["spec"], new["status"].get("certificate")),
            (&request()["spec"], None)
        );
        assert!(approval_problems(with(json!([approved()])), request()).is_empty());
        assert_eq!(
            approval_problems(request(), with(json!([approved()]))),
            [r#"status.conditions: Forbidden: updates may not remove a condition of type "Approved""#]
        );
        // Status: certificates are taken, decisions are not.
        assert!(status_problems(&DEF, issued.clone(), with(json!([approved()]))).is_empty());
        for (new, old, wanted) in [
            (
                with(json!([approved()])),
                request(),
                r#"status.conditions: Forbidden: updates may not add a condition of type "Approved""#,
            ),
            (
                merged(&request(), &json!({"status": {"certificate": pem_bytes("KEY")}})),
                request(),
                r#"status.certificate: Invalid value: "<certificate data>": only CERTIFICATE PEM blocks are allowed, found "KEY""#,
            ),
            (
                merged(&request(), &json!({"status": {"certificate": "AAAA"}})),
                request(),
                r#"status.certificate: Invalid value: "<certificate data>": must contain at least one CERTIFICATE PEM block"#,
            ),
            (
                with(json!([approved()])),
                issued.clone(),
                "status.certificate: Forbidden: updates may not modify existing certificate content",
            ),
        ] {
            assert_eq!(status_problems(&DEF, new, old), [wanted]);
        }
        let mut changed = with(json!([{"type": "Approved", "status": "True", "reason": "other"}]));
        prepare_status(&mut changed, &with(json!([approved()])));
        assert_eq!(changed["status"]["conditions"][0]["reason"], "r");
        assert_eq!(row(&DEF, &issued), "<unknown>|example.com/s|ann|60m|Approved,Issued");
        assert_eq!(row(&DEF, &json!({})), "<unknown>|<none>||<none>|Pending");
    }

    #[test]
    fn conditions_are_dated() {
        let now: Timestamp = "2026-01-02T03:04:05.6Z".parse().unwrap();
        let old = with(json!([{"type": "A", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}]));
        let mut new = with(json!([{"type": "A", "status": "True"}, {"type": "B", "status": "True"}]));
        stamp_conditions(&mut new, &old, now);
        let c = &new["status"]["conditions"];
        assert_eq!(c[0]["lastTransitionTime"], "2020-01-01T00:00:00Z");
        assert_eq!(c[0]["lastUpdateTime"], "2026-01-02T03:04:05Z");
        assert_eq!(c[1]["lastTransitionTime"], "2026-01-02T03:04:05Z");
    }
}
