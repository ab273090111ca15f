//! The scale subresource: where in an object its replicas are.
//!
//! Upstream: apiextensions-apiserver pkg/registry/customresource/etcd.go and validator.go (v1.36).

use orlop_api::field::{Path, Problems};
use orlop_api::patch::go_text;
use serde_json::{Map, Value, json};

/// Dotted paths as they stand in the definition: ".spec.replicas".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScalePaths {
    pub spec_replicas: Box<str>,
    pub status_replicas: Box<str>,
    pub label_selector: Option<Box<str>>,
}

/// An object that has no scale to give, or takes none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ScaleError(pub String);

fn words(path: &str) -> impl Iterator<Item = &str> {
    path.strip_prefix('.').unwrap_or(path).split('.')
}

/// The value at a path; an error if the way there leads through something that is no object.
fn at<'v>(object: &'v Value, path: &str) -> Result<Option<&'v Value>, ScaleError> {
    let mut value = object;
    let mut so_far = String::new();
    for word in words(path) {
        let Some(map) = value.as_object() else {
            return Err(ScaleError(format!(
                "{} accessor error: {} is of the type {}, expected map[string]interface {{}}",
                so_far,
                go_text(value),
                go_type(value)
            )));
        };
        so_far.push('.');
        so_far.push_str(word);
        match map.get(word) {
            Some(next) => value = next,
            None => return Ok(None),
        }
    }
    Ok(Some(value))
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

fn wrong_type(path: &str, value: &Value, expected: &str) -> ScaleError {
    let path: Vec<&str> = words(path).collect();
    ScaleError(format!(
        ".{} accessor error: {} is of the type {}, expected {expected}",
        path.join("."),
        go_text(value),
        go_type(value)
    ))
}

fn integer(object: &Value, path: &str) -> Result<Option<i64>, ScaleError> {
    match at(object, path)? {
        None => Ok(None),
        Some(value) => value.as_i64().map(Some).ok_or_else(|| wrong_type(path, value, "int64")),
    }
}

fn string<'v>(object: &'v Value, path: &str) -> Result<&'v str, ScaleError> {
    match at(object, path)? {
        None => Ok(""),
        Some(value) => value.as_str().ok_or_else(|| wrong_type(path, value, "string")),
    }
}

impl ScalePaths {
    /// Those of a version of a definition, if it has the subresource.
    pub(crate) fn compile(version: &Value) -> Option<ScalePaths> {
        let scale = version.get("subresources")?.get("scale")?.as_object()?;
        let text = |name: &str| scale.get(name).and_then(Value::as_str).unwrap_or("");
        Some(ScalePaths {
            spec_replicas: text("specReplicasPath").into(),
            status_replicas: text("statusReplicasPath").into(),
            label_selector: Some(text("labelSelectorPath")).filter(|p| !p.is_empty()).map(Box::from),
        })
    }

    /// The object's Scale (autoscaling/v1).
    pub fn get_scale(&self, object: &Value) -> Result<Value, ScaleError> {
        let replicas = integer(object, &self.spec_replicas)?;
        let Some(replicas) = replicas else {
            return Err(ScaleError(format!(
                "the spec replicas field {:?} does not exist",
                &*self.spec_replicas
            )));
        };
        let status = integer(object, &self.status_replicas)?.unwrap_or(0);
        let metadata = |name: &str| {
            object
                .get("metadata")
                .and_then(|m| m.get(name))
                .filter(|v| !v.is_null())
                .cloned()
        };
        let mut meta = Map::new();
        for name in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
            meta.extend(metadata(name).map(|value| (name.to_string(), value)));
        }
        let mut spec = Map::new();
        if replicas != 0 {
            spec.insert("replicas".into(), replicas.into());
        }
        let mut scale = json!({
            "apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": meta, "spec": spec,
            "status": {"replicas": status},
        });
        if let Some(path) = &self.label_selector {
            let selector = string(object, path)?;
            if !selector.is_empty() {
                scale["status"]["selector"] = selector.into();
            }
        }
        Ok(scale)
    }

    /// Writes the replicas that a Scale asks for into the object.
    pub fn set_scale(&self, object: &mut Value, scale: &Value) -> Result<(), ScaleError> {
        let replicas = scale.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(0);
        let mut value = object;
        let words: Vec<&str> = words(&self.spec_replicas).collect();
        for (i, word) in words.iter().enumerate() {
            let Value::Object(map) = value else {
                return Err(ScaleError(format!(
                    "value cannot be set because .{} is not a map[string]interface{{}}",
                    words[..i].join(".")
                )));
            };
            let empty = || match i + 1 == words.len() {
                true => Value::Null,
                false => Value::Object(Map::new()),
            };
            value = map.entry(word.to_string()).or_insert_with(empty);
        }
        *value = replicas.into();
        Ok(())
    }

    /// What validation says of the replicas to be.
    pub(crate) fn validate_spec(&self, object: &Value, p: &mut Problems) {
        validate_replicas(object, &self.spec_replicas, p);
    }

    /// The same of the replicas that are.
    pub(crate) fn validate_status(&self, object: &Value, p: &mut Problems) {
        validate_replicas(object, &self.status_replicas, p);
        if let Some(path) = &self.label_selector
            && let Err(e) = string(object, path)
        {
            p.invalid_value(&Path::default().member(path), &"".into(), e.to_string());
        }
    }
}

fn validate_replicas(object: &Value, path: &str, p: &mut Problems) {
    let place = Path::default().member(path);
    match integer(object, path) {
        Err(e) => p.invalid_value(&place, &0.into(), e.to_string()),
        Ok(Some(n)) if n < 0 => p.invalid_value(&place, &n.into(), "should be a non-negative integer"),
        Ok(Some(n)) if n > i64::from(i32::MAX) => {
            p.invalid_value(
                &place,
                &n.into(),
                format!("should be less than or equal to {}", i32::MAX),
            );
        }
        Ok(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths() -> ScalePaths {
        let version = json!({"subresources": {"scale": {
            "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector",
        }}});
        ScalePaths::compile(&version).unwrap()
    }

    #[test]
    fn a_scale_is_read_and_written() {
        let mut object = json!({
            "metadata": {"name": "a", "namespace": "n", "labels": {"x": "y"}, "resourceVersion": "7"},
            "spec": {"replicas": 3}, "status": {"replicas": 2, "selector": "a=b"},
        });
        let scale = paths().get_scale(&object).unwrap();
        assert_eq!(
            scale,
            json!({
                "apiVersion": "autoscaling/v1", "kind": "Scale",
                "metadata": {"name": "a", "namespace": "n", "resourceVersion": "7"},
                "spec": {"replicas": 3}, "status": {"replicas": 2, "selector": "a=b"},
            })
        );
        paths()
            .set_scale(&mut object, &json!({"spec": {"replicas": 5}}))
            .unwrap();
        assert_eq!(object["spec"]["replicas"], 5);
        let mut empty = json!({"metadata": {}});
        paths()
            .set_scale(&mut empty, &json!({"spec": {"replicas": 1}}))
            .unwrap();
        assert_eq!(empty["spec"], json!({"replicas": 1}));
        assert_eq!(
            paths().get_scale(&json!({"spec": {}})).unwrap_err().to_string(),
            "the spec replicas field \".spec.replicas\" does not exist"
        );
    }

    #[test]
    fn replicas_are_validated() {
        for (object, expected) in [
            (json!({"spec": {"replicas": 1}}), ""),
            (json!({}), ""),
            (
                json!({"spec": {"replicas": -1}}),
                ".spec.replicas: Invalid value: -1: should be a non-negative integer",
            ),
            (
                json!({"spec": {"replicas": 1_i64 << 40}}),
                ".spec.replicas: Invalid value: 1099511627776: should be less than or equal to 2147483647",
            ),
            (
                json!({"spec": {"replicas": "x"}}),
                ".spec.replicas: Invalid value: 0: .spec.replicas accessor error: x is of the type string, expected int64",
            ),
        ] {
            let mut p = Problems::default();
            paths().validate_spec(&object, &mut p);
            assert_eq!(p.0.first().map(ToString::to_string).unwrap_or_default(), expected);
        }
    }
}
