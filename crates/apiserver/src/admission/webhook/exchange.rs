//! What a webhook is sent, and what it may answer. Pure.
//!
//! Upstream: apiserver/pkg/admission/plugin/webhook/{request/admissionreview.go,errors/statuserror.go} (v1.36).

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use orlop_api::{KindDef, Status, Value, schema};
use serde_json::json;

use super::super::Review;
use super::super::shown::{Form, options, type_name};
use super::ReviewVersion;
use crate::lookup::{strings, text};

/// The request without its objects.
pub(in super::super) fn attributes(review: &Review<'_>, kind: &KindDef) -> Value {
    let resource = |kind: &KindDef| json!({"group": kind.group, "version": kind.version, "resource": kind.plural});
    let mut request = json!({
        "uid": "",
        "kind": type_name(kind, review.subresource).to_value(),
        "resource": resource(kind),
        "requestKind": type_name(review.kind, review.subresource).to_value(),
        "requestResource": resource(review.kind),
        "operation": review.operation.name(),
        "userInfo": review.user.to_value(),
        "object": null,
        "oldObject": null,
        "dryRun": review.dry_run,
        "options": options(review),
    });
    let optional = [
        ("subResource", review.subresource),
        ("requestSubResource", review.subresource),
        ("name", review.name.as_str()),
        ("namespace", review.namespace_attribute()),
    ];
    for (name, given) in optional.into_iter().filter(|(_, given)| !given.is_empty()) {
        request[name] = given.into();
    }
    request
}

/// The AdmissionReview for a webhook that wants to see the object as `kind`.
pub(super) fn request(
    review: &Review<'_>,
    version: ReviewVersion,
    uid: &str,
    kind: &'static KindDef,
    form: &Form<'_>,
) -> Vec<u8> {
    let mut request = attributes(review, kind);
    request["uid"] = uid.into();
    request["object"] = json!(form.object.as_deref());
    request["oldObject"] = json!(form.old.as_deref());
    let whole = json!({"kind": "AdmissionReview", "apiVersion": version.api_version(), "request": request});
    whole.to_string().into_bytes()
}

/// An answer that may be acted upon.
#[derive(Debug, PartialEq)]
pub(super) struct Answer {
    pub allowed: bool,
    /// Why not, as the webhook put it.
    pub status: Value,
    /// A JSON patch.
    pub patch: Option<Vec<u8>>,
    pub warnings: Vec<String>,
    pub audit_annotations: BTreeMap<String, String>,
}

/// An answer that makes no sense.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum AnswerError {
    #[error("failed to call webhook: {0}")]
    Undecodable(String),
    #[error("received invalid webhook response: {0}")]
    Invalid(String),
    #[error("unsupported patch type {0:?}")]
    PatchType(String),
}

pub(super) fn read(body: &[u8], version: ReviewVersion, uid: &str, mutating: bool) -> Result<Answer, AnswerError> {
    let review = decode(body, version)?;
    let invalid = |why: String| Err(AnswerError::Invalid(why));
    let Some(response) = review.get("response").filter(|r| r.is_object()) else {
        return invalid("webhook response was absent".into());
    };
    let given = text(response, &["uid"]);
    if version == ReviewVersion::V1 && given != uid {
        return invalid(format!("expected response.uid={uid:?}, got {given:?}"));
    }
    let patch = STANDARD.decode(text(response, &["patch"]));
    let patch = patch.map_err(|e| AnswerError::Undecodable(e.to_string()))?;
    let patch_type = response.get("patchType").and_then(Value::as_str);
    let patch = check_patch(patch, patch_type, version, mutating)?;
    let annotations = response.get("auditAnnotations").and_then(Value::as_object);
    let text_of = |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.to_string()));
    Ok(Answer {
        allowed: response["allowed"] == true,
        status: response.get("status").cloned().unwrap_or(Value::Null),
        patch,
        warnings: strings(response.get("warnings")),
        audit_annotations: annotations.into_iter().flatten().filter_map(text_of).collect(),
    })
}

fn decode(body: &[u8], version: ReviewVersion) -> Result<Value, AnswerError> {
    let undecodable = |why: String| AnswerError::Undecodable(why);
    if body.is_empty() {
        let why = "0-length response with status code: 200 and content type: application/json";
        return Err(undecodable(why.into()));
    }
    if let Some(why) = schema::json_syntax_error(body) {
        return Err(undecodable(format!(
            "couldn't get version/kind; json parse error: {why}"
        )));
    }
    let ty = schema::schema()
        .get("admission/v1.AdmissionReview")
        .expect("the schema has AdmissionReview");
    let decoded = schema::decode_json(body, ty)
        .map_err(|e| undecodable(e.to_string()))?
        .value;
    let (kind, api_version) = (text(&decoded, &["kind"]), text(&decoded, &["apiVersion"]));
    for (member, given) in [("Kind", kind), ("apiVersion", api_version)] {
        if given.is_empty() {
            let body: String = String::from_utf8_lossy(body).chars().take(200).collect();
            return Err(undecodable(format!("Object '{member}' is missing in '{body}'")));
        }
    }
    if (kind, api_version) != ("AdmissionReview", version.api_version()) {
        let why = format!(
            "expected webhook response of {}, Kind=AdmissionReview, got {api_version}, Kind={kind}",
            version.api_version()
        );
        return Err(AnswerError::Invalid(why));
    }
    Ok(decoded)
}

/// The patch, where one may stand and is of a type that is known.
fn check_patch(
    patch: Vec<u8>,
    patch_type: Option<&str>,
    version: ReviewVersion,
    mutating: bool,
) -> Result<Option<Vec<u8>>, AnswerError> {
    let invalid = |why: &str| Err(AnswerError::Invalid(why.into()));
    if version == ReviewVersion::V1Beta1 {
        return Ok(Some(patch).filter(|patch| mutating && !patch.is_empty()));
    }
    match (mutating, patch.is_empty(), patch_type) {
        (false, false, _) => invalid("validating webhook may not return response.patch"),
        (false, true, Some(_)) => invalid("validating webhook may not return response.patchType"),
        (true, false, None) => invalid("webhook returned response.patch but not response.patchType"),
        (true, true, Some(_)) => invalid("webhook returned response.patchType but not response.patch"),
        (true, false, Some("")) => invalid("webhook returned invalid response.patchType of \"\""),
        (true, false, Some("JSONPatch")) => Ok(Some(patch)),
        (true, false, Some(other)) => Err(AnswerError::PatchType(other.into())),
        (_, true, None) => Ok(None),
    }
}

/// A refusal by a webhook, in its words and as it wants it counted.
pub(super) fn denial(webhook: &str, given: Value) -> Status {
    let mut status = Status::from_value(&given, 0);
    status.code = status.code.max(400);
    let denied_by = format!("admission webhook {webhook:?} denied the request");
    status.message = match (status.message.as_str(), &*status.reason) {
        ("", "") => format!("{denied_by} without explanation"),
        ("", reason) => format!("{denied_by}: {reason}"),
        (message, _) => format!("{denied_by}: {message}"),
    };
    status
}
