//! Printer columns: what of an object stands in a table beside its name.
//!
//! Upstream: apiextensions-apiserver pkg/registry/customresource/tableconvertor (v1.36).

use jiff::Timestamp;
use orlop_api::printing;
use serde_json::{Value, json};

use crate::jsonpath::JsonPath;

/// A column after NAME.
#[derive(Debug, Clone)]
pub struct CustomColumn {
    pub name: Box<str>,
    /// "string", "integer", "number", "boolean", "date"
    pub kind: Box<str>,
    pub format: Box<str>,
    pub description: Box<str>,
    pub priority: i32,
    path: JsonPath,
}

/// A definition that names no columns has this one.
fn age() -> CustomColumn {
    CustomColumn {
        name: "Age".into(),
        kind: "date".into(),
        format: "".into(),
        description: "CreationTimestamp is a timestamp representing the server time when this object was created. It is not \
                      guaranteed to be set in happens-before order across separate operations. Clients may not set this \
                      value. It is represented in RFC3339 form and is in UTC.\n\nPopulated by the system. Read-only. Null \
                      for lists. More info: \
                      https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata"
            .into(),
        priority: 0,
        path: JsonPath::parse(".metadata.creationTimestamp").expect("a plain path"),
    }
}

/// The columns of a version. If one of its paths cannot be read, that one and those after it are left out.
pub(crate) fn compile(version: &Value) -> Box<[CustomColumn]> {
    let text = |column: &Value, name: &str| column.get(name).and_then(Value::as_str).unwrap_or("").to_string();
    let given = version.get("additionalPrinterColumns").and_then(Value::as_array);
    let Some(given) = given.filter(|columns| !columns.is_empty()) else {
        return [age()].into();
    };
    let compiled = given.iter().map_while(|column| {
        let path = text(column, "jsonPath");
        let description = match text(column, "description") {
            empty if empty.is_empty() => format!("Custom resource definition column (in JSONPath format): {path}"),
            description => description,
        };
        Some(CustomColumn {
            name: text(column, "name").into(),
            kind: text(column, "type").into(),
            format: text(column, "format").into(),
            description: description.into(),
            priority: column
                .get("priority")
                .and_then(Value::as_i64)
                .and_then(|n| i32::try_from(n).ok())
                .unwrap_or(0),
            path: JsonPath::parse(&path).ok()?,
        })
    });
    compiled.collect()
}

impl CustomColumn {
    /// The cell of an object; null if there is nothing to show.
    pub(crate) fn cell(&self, object: &Value, now: Timestamp) -> Value {
        let found = self.path.find(object).unwrap_or_default();
        let Some(value) = found.first() else {
            return Value::Null;
        };
        match (&*self.kind, &**value) {
            ("string", value) => printed(value).into(),
            (_, Value::Null) => Value::Null,
            ("integer", Value::Number(n)) => match (n.as_i64(), n.as_f64()) {
                (Some(n), _) => n.into(),
                (None, Some(f)) => (f as i64).into(),
                (None, None) => Value::Null,
            },
            ("number", Value::Number(n)) => json!(n),
            ("boolean", Value::Bool(b)) => (*b).into(),
            ("date", Value::String(text)) => match text.parse::<Timestamp>() {
                Ok(_) => printing::since(Some(text), now).into(),
                Err(_) => "<invalid>".into(),
            },
            _ => Value::Null,
        }
    }
}

/// As kubectl prints a value: strings as they are, lists and maps as JSON.
pub(crate) fn printed(value: &Value) -> String {
    match value {
        Value::Null => "<no value>".to_string(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
