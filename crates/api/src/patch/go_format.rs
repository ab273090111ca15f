//! Values as Go prints them with `%v`, for messages that clients see.

use std::fmt;

use serde_json::{Map, Value};

/// `map[a:1 b:[x y]]`, `<nil>`, strings bare.
pub(super) struct GoFormatted<'a>(pub &'a Value);

pub(super) struct GoFormattedMap<'a>(pub &'a Map<String, Value>);

pub(super) struct GoFormattedList<'a>(pub &'a [Value]);

impl fmt::Display for GoFormatted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Value::Null => f.write_str("<nil>"),
            Value::Bool(b) => write!(f, "{b}"),
            Value::Number(n) => write!(f, "{n}"),
            Value::String(s) => f.write_str(s),
            Value::Array(list) => GoFormattedList(list).fmt(f),
            Value::Object(map) => GoFormattedMap(map).fmt(f),
        }
    }
}

impl fmt::Display for GoFormattedMap<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("map[")?;
        for (i, (key, value)) in self.0.iter().enumerate() {
            write!(f, "{}{key}:{}", if i == 0 { "" } else { " " }, GoFormatted(value))?;
        }
        f.write_str("]")
    }
}

impl fmt::Display for GoFormattedList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, value) in self.0.iter().enumerate() {
            write!(f, "{}{}", if i == 0 { "" } else { " " }, GoFormatted(value))?;
        }
        f.write_str("]")
    }
}

/// The name of the Go type that JSON decodes to.
pub(super) fn go_type(value: &Value) -> &'static str {
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

/// What `encoding/json` calls the kind of a JSON value.
pub(super) fn json_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_print_as_in_go() {
        let value = json!({"b": [1, "x", null, 1.5], "a": {"t": true}});
        assert_eq!(GoFormatted(&value).to_string(), "map[a:map[t:true] b:[1 x <nil> 1.5]]");
    }
}
