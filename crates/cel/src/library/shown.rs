//! Values as messages show them.

use super::conversions::double_text;
use super::time;
use crate::value::Value;

/// More is cut off.
const LONGEST: usize = 1024;

/// The value in a message.
pub(crate) fn shown(value: &Value<'_>) -> String {
    let mut text = match value {
        Value::Null => "null".to_string(),
        Value::Bool(bool) => bool.to_string(),
        Value::Int(int) => int.to_string(),
        Value::Uint(uint) => uint.to_string(),
        Value::Double(double) => double_text(*double),
        Value::String(text) => text.to_string(),
        Value::Timestamp(at) => time::timestamp_text(at),
        Value::Duration(nanos) => time::duration_text(*nanos),
        other => match other.to_json() {
            Ok(json) => json.to_string(),
            Err(_) => other.type_of().to_string(),
        },
    };
    if text.len() > LONGEST {
        let end = (0..=LONGEST).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
    }
    text
}
