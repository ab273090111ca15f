//! Converting objects between the versions of a kind: what is asked of a webhook, and what is believed of its answer.
//!
//! Upstream: apiextensions-apiserver pkg/apiserver/conversion (v1.36).

use orlop_api::field::{Path, Problems};
use orlop_api::{Cursor, meta};
use serde_json::{Map, Value, json};

/// Why objects could not be converted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConversionError {
    #[error("no supported conversion review versions")]
    NoReviewVersion,
    /// The call failed, or its answer is no review or tells of a failure.
    #[error("conversion webhook for {kind} failed: {why}")]
    Failed { kind: String, why: String },
    #[error("conversion webhook for {kind} returned {found} objects, expected {expected}")]
    Count {
        kind: String,
        found: usize,
        expected: usize,
    },
    #[error("conversion webhook for {kind} returned invalid converted object at index {index}: {why}")]
    Object { kind: String, index: usize, why: String },
    #[error("conversion webhook for {kind} returned invalid metadata in object at index {index}: {why}")]
    Metadata { kind: String, index: usize, why: String },
}

impl ConversionError {
    /// A call that got no answer.
    pub fn call(object: &Value, why: impl std::fmt::Display) -> ConversionError {
        ConversionError::Failed {
            kind: go_kind(object),
            why: why.to_string(),
        }
    }
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or("")
}

fn metadata<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get("metadata").map_or("", |m| text(m, name))
}

/// As Go prints a group, version and kind: `example.com/v1, Kind=Foo`.
fn go_kind(object: &Value) -> String {
    let api_version = text(object, "apiVersion");
    let slash = if api_version.contains('/') { "" } else { "/" };
    format!("{slash}{api_version}, Kind={}", text(object, "kind"))
}

/// Whether an object has to be converted to be of that version.
pub fn needs_conversion(object: &Value, api_version: &str) -> bool {
    text(object, "apiVersion") != api_version
}

/// The conversion of definitions without a webhook: only the version changes.
pub fn convert_none(object: &mut Value, api_version: &str) {
    if let Some(map) = object.as_object_mut() {
        map.insert("apiVersion".into(), api_version.into());
    }
}

/// The version of ConversionReview that the webhook and we both know: "v1" or "v1beta1", the first that it names.
pub fn review_version(review_versions: &[&str]) -> Result<&'static str, ConversionError> {
    let known = review_versions.iter().find_map(|v| match *v {
        "v1" => Some("v1"),
        "v1beta1" => Some("v1beta1"),
        _ => None,
    });
    known.ok_or(ConversionError::NoReviewVersion)
}

/// The body of a request: objects that need conversion.
pub fn request(review_version: &str, uid: &str, objects: &[&Value], api_version: &str) -> Value {
    json!({
        "kind": "ConversionReview", "apiVersion": format!("apiextensions.k8s.io/{review_version}"),
        "request": {"uid": uid, "desiredAPIVersion": api_version, "objects": objects},
    })
}

/// Checks the answer to a request, and gives the converted objects in the order of the originals: with the originals'
/// metadata, of which a webhook may change only labels and annotations.
pub fn accept(
    review_version: &str,
    uid: &str,
    originals: &[&Value],
    api_version: &str,
    answer: Value,
) -> Result<Vec<Value>, ConversionError> {
    let Some(first) = originals.first() else {
        return Ok(vec![]);
    };
    let kind = go_kind(first);
    let converted = converted_objects(review_version, uid, answer).map_err(|why| ConversionError::Failed {
        kind: kind.clone(),
        why,
    })?;
    if converted.len() != originals.len() {
        return Err(ConversionError::Count {
            kind,
            found: converted.len(),
            expected: originals.len(),
        });
    }
    let mut out = Vec::with_capacity(converted.len());
    for (index, (mut converted, original)) in converted.into_iter().zip(originals).enumerate() {
        check_object(original, &converted, api_version).map_err(|why| ConversionError::Object {
            kind: kind.clone(),
            index,
            why,
        })?;
        restore_metadata(original, &mut converted).map_err(|why| ConversionError::Metadata {
            kind: kind.clone(),
            index,
            why,
        })?;
        out.push(converted);
    }
    Ok(out)
}

fn converted_objects(review_version: &str, uid: &str, mut answer: Value) -> Result<Vec<Value>, String> {
    if review_version == "v1" {
        let expected = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview"});
        let (expected, found) = (go_kind(&expected), go_kind(&answer));
        if expected != found {
            return Err(format!("expected webhook response of {expected}, got {found}"));
        }
    }
    let Some(response) = answer.get_mut("response").filter(|r| r.is_object()) else {
        return Err("no response provided".to_string());
    };
    let found = text(response, "uid");
    if review_version == "v1" && found != uid {
        return Err(format!("expected response.uid={uid:?}, got {found:?}"));
    }
    let result = response.get("result").unwrap_or(&Value::Null);
    let (status, message) = (text(result, "status"), text(result, "message"));
    if status != "Success" {
        return Err(match message {
            "" => format!("response.result.status was '{status}', not 'Success'"),
            message => message.to_string(),
        });
    }
    match response.get_mut("convertedObjects").map(Value::take) {
        Some(Value::Array(list)) => Ok(list),
        _ => Ok(vec![]),
    }
}

fn check_object(original: &Value, converted: &Value, api_version: &str) -> Result<(), String> {
    if !converted.is_object() || text(converted, "kind").is_empty() {
        return Err(format!("Object 'Kind' is missing in '{converted}'"));
    }
    let found = text(converted, "apiVersion");
    if found != api_version {
        return Err(format!(
            "invalid groupVersion (expected {api_version}, received {found})"
        ));
    }
    let (expected, found) = (text(original, "kind"), text(converted, "kind"));
    if expected != found {
        return Err(format!("invalid kind (expected {expected}, received {found})"));
    }
    for (name, shown) in [("name", "name"), ("namespace", "namespace"), ("uid", "UID")] {
        let (expected, found) = (metadata(original, name), metadata(converted, name));
        if expected != found {
            return Err(format!("must have the same {shown}: {expected} != {found}"));
        }
    }
    Ok(())
}

fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

fn restore_metadata(original: &Value, converted: &mut Value) -> Result<(), String> {
    let mut answered = match converted.get_mut("metadata").map(Value::take) {
        None => return Err("missing metadata in converted object".to_string()),
        Some(Value::Object(map)) => map,
        Some(other) => {
            return Err(format!(
                "invalid metadata of type {} in converted object",
                go_type(&other)
            ));
        }
    };
    let mut restored = match original.get("metadata") {
        None => Map::new(),
        Some(Value::Object(map)) => map.clone(),
        Some(other) => return Err(format!("invalid metadata of type {} in input object", go_type(other))),
    };
    for name in ["labels", "annotations"] {
        let answer = match answered.remove(name) {
            None | Some(Value::Null) => {
                restored.remove(name);
                continue;
            }
            Some(answer) => answer,
        };
        let Some(map) = answer.as_object() else {
            return Err(format!(
                "invalid metadata.{name} of type {} in converted object",
                go_type(&answer)
            ));
        };
        if let Some((key, value)) = map.iter().find(|(_, v)| !v.is_string()) {
            let found = go_type(value);
            return Err(format!(
                "metadata.{name}[{key}] must be a string, but is {found} in converted object"
            ));
        }
        if restored.get(name) != Some(&answer) {
            check_changed(name, &answer)?;
        }
        restored.insert(name.to_string(), answer);
    }
    converted["metadata"] = Value::Object(restored);
    Ok(())
}

fn check_changed(name: &str, answer: &Value) -> Result<(), String> {
    let mut p = Problems::default();
    let at = Path::default().field("metadata");
    if name == "labels" {
        meta::validate_labels(&Cursor::new(Some(answer), at.field("labels")), &mut p);
    } else {
        meta::validate_annotations(&Cursor::new(Some(answer), at.field("annotation")), &mut p);
    }
    let texts: Vec<String> = p.0.iter().map(ToString::to_string).collect();
    match texts.as_slice() {
        [] => Ok(()),
        [one] => Err(one.clone()),
        many => Err(format!("[{}]", many.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(version: &str, metadata: Value) -> Value {
        json!({"apiVersion": format!("ex.io/{version}"), "kind": "Foo", "metadata": metadata, "spec": {"v": version}})
    }

    fn answered(response: Value) -> Result<Vec<Value>, String> {
        let original = object(
            "v1",
            json!({"name": "a", "uid": "u", "labels": {"a": "b"}, "finalizers": ["x/y"]}),
        );
        let answer = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "response": response});
        accept("v1", "1", &[&original], "ex.io/v2", answer).map_err(|e| e.to_string())
    }

    fn success(objects: Value) -> Value {
        json!({"uid": "1", "result": {"status": "Success"}, "convertedObjects": objects})
    }

    #[test]
    fn good_answers_are_believed() {
        let converted = object(
            "v2",
            json!({"name": "a", "uid": "u", "labels": {"new": "label"}, "finalizers": [], "generation": 9}),
        );
        assert_eq!(
            answered(success(json!([converted]))),
            Ok(vec![object(
                "v2",
                json!({"name": "a", "uid": "u", "labels": {"new": "label"}, "finalizers": ["x/y"]})
            )])
        );
    }

    #[test]
    fn lies_are_not() {
        let of = |metadata: Value| success(json!([object("v2", metadata)]));
        let prefix = "conversion webhook for ex.io/v1, Kind=Foo";
        for (response, expected) in [
            (Value::Null, "failed: no response provided"),
            (json!({"uid": "2"}), "failed: expected response.uid=\"1\", got \"2\""),
            (
                json!({"uid": "1", "result": {"status": "Failure", "message": "oh"}}),
                "failed: oh",
            ),
            (
                json!({"uid": "1", "result": {}}),
                "failed: response.result.status was '', not 'Success'",
            ),
            (success(json!([])), "returned 0 objects, expected 1"),
            (
                success(json!([object("v1", json!({"name": "a", "uid": "u"}))])),
                "returned invalid converted object at index 0: invalid groupVersion (expected ex.io/v2, received ex.io/v1)",
            ),
            (
                of(json!({"name": "b", "uid": "u"})),
                "returned invalid converted object at index 0: must have the same name: a != b",
            ),
            (
                of(json!({"name": "a", "uid": "v"})),
                "returned invalid converted object at index 0: must have the same UID: u != v",
            ),
            (
                of(json!({"name": "a", "uid": "u", "labels": {"x": 1}})),
                "returned invalid metadata in object at index 0: metadata.labels[x] must be a string, but is int64 in converted object",
            ),
            (
                success(json!([{"apiVersion": "ex.io/v2", "kind": "Bar", "metadata": {}}])),
                "returned invalid converted object at index 0: invalid kind (expected Foo, received Bar)",
            ),
        ] {
            assert_eq!(answered(response), Err(format!("{prefix} {expected}")));
        }
        let original = object("v1", json!({"name": "a"}));
        let wrong = json!({"apiVersion": "v1", "kind": "Status"});
        let error = accept("v1", "1", &[&original], "ex.io/v2", wrong)
            .unwrap_err()
            .to_string();
        assert_eq!(
            error,
            format!(
                "{prefix} failed: expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, got /v1, Kind=Status"
            )
        );
    }

    #[test]
    fn requests_name_a_common_version() {
        assert_eq!(review_version(&["v9", "v1beta1", "v1"]), Ok("v1beta1"));
        assert_eq!(review_version(&["v9"]), Err(ConversionError::NoReviewVersion));
        let one = object("v1", json!({}));
        let body = request("v1", "1", &[&one], "ex.io/v2");
        assert_eq!(body["request"]["objects"], json!([one]));
        assert!(needs_conversion(&one, "ex.io/v2") && !needs_conversion(&one, "ex.io/v1"));
    }
}
