//! Path elements as they are written in `FieldsV1`: `f:` a field or map key, `k:` a list element by its key fields, `v:`
//! a list element by its value, `i:` one by its index (never made here, but users may send it).

use std::cmp::Ordering;
use std::fmt::Write as _;

use serde_json::{Map, Value};

pub(super) fn field(name: &str) -> String {
    let mut out = String::with_capacity(name.len() + 2);
    out.push_str("f:");
    out.push_str(name);
    out
}

pub(super) fn value(value: &Value) -> String {
    let mut out = String::from("v:");
    write_json(&mut out, value);
    out
}

/// The element of a list whose elements are told apart by some of their fields. The pairs must be sorted by name.
pub(super) fn key<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a Value)>) -> String {
    let mut out = String::with_capacity(40);
    out.push_str("k:{");
    for (i, (name, value)) in pairs.into_iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        out.push('"');
        out.push_str(name);
        out.push_str("\":");
        write_json(&mut out, value);
    }
    out.push('}');
    out
}

fn write_json(out: &mut String, value: &Value) {
    match value {
        Value::String(s) if s.bytes().all(|b| b >= b' ' && b != b'"' && b != b'\\') => {
            out.push('"');
            out.push_str(s);
            out.push('"');
        }
        Value::Number(n) => write!(out, "{n}").expect("writing to a string"),
        other => write!(out, "{other}").expect("writing to a string"),
    }
}

/// A sent element written our way: keys sorted, no spaces. None: not an element. Some(None): of a kind we do not know.
pub(super) fn canonical(sent: &str) -> Option<Option<String>> {
    let (kind, rest) = sent.split_at_checked(2)?;
    match kind {
        "f:" => Some(Some(sent.to_string())),
        "k:" => {
            let map: Map<String, Value> = serde_json::from_str(rest).ok()?;
            Some(Some(key(map.iter().map(|(k, v)| (k.as_str(), v)))))
        }
        "v:" => Some(Some(value(&serde_json::from_str(rest).ok()?))),
        "i:" => rest.parse::<i64>().ok().map(|_| Some(sent.to_string())),
        _ if kind.ends_with(':') => Some(None),
        _ => None,
    }
}

/// As people read it: `.spec`, `[name="web"]`, `[="x"]`, `[0]`.
pub(super) fn show(element: &str, out: &mut String) {
    let (kind, rest) = element.split_at_checked(2).unwrap_or((element, ""));
    match kind {
        "f:" => {
            out.push('.');
            out.push_str(rest);
        }
        "k:" => {
            let map: Map<String, Value> = serde_json::from_str(rest).unwrap_or_default();
            out.push('[');
            for (i, (name, value)) in map.iter().enumerate() {
                let comma = if i > 0 { "," } else { "" };
                write!(out, "{comma}{name}={value}").expect("writing to a string");
            }
            out.push(']');
        }
        "v:" => write!(out, "[={rest}]").expect("writing to a string"),
        _ => write!(out, "[{rest}]").expect("writing to a string"),
    }
}

/// Fields first, then keys, values and indexes; numbers by value.
pub(super) fn order(a: &str, b: &str) -> Ordering {
    let rank = |e: &str| match e.as_bytes().first() {
        Some(b'f') => 0,
        Some(b'k') => 1,
        Some(b'v') => 2,
        _ => 3,
    };
    let by_kind = rank(a).cmp(&rank(b));
    if by_kind.is_ne() || rank(a) == 0 {
        return by_kind.then_with(|| a.cmp(b));
    }
    let parse = |e: &str| serde_json::from_str::<Value>(e.get(2..).unwrap_or_default()).unwrap_or_default();
    order_values(&parse(a), &parse(b)).then_with(|| a.cmp(b))
}

fn order_values(a: &Value, b: &Value) -> Ordering {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => match (a.as_i64(), b.as_i64()) {
            (Some(a), Some(b)) => a.cmp(&b),
            _ => a.as_f64().partial_cmp(&b.as_f64()).unwrap_or(Ordering::Equal),
        },
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (Value::Object(a), Value::Object(b)) => {
            let mut pairs = a.iter().zip(b.iter());
            let first = pairs.find_map(|((ka, va), (kb, vb))| {
                Some(ka.cmp(kb).then_with(|| order_values(va, vb))).filter(|o| o.is_ne())
            });
            first.unwrap_or_else(|| a.len().cmp(&b.len()))
        }
        (Value::Number(_), _) => Ordering::Less,
        (_, Value::Number(_)) => Ordering::Greater,
        (Value::String(_), _) => Ordering::Less,
        (_, Value::String(_)) => Ordering::Greater,
        _ => Ordering::Equal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn elements_are_written_and_shown() {
        let port = json!(80);
        let name = json!("a\"b");
        let cases = [
            (field("spec"), "f:spec", ".spec"),
            (
                key([("port", &port), ("protocol", &json!("TCP"))]),
                "k:{\"port\":80,\"protocol\":\"TCP\"}",
                "[port=80,protocol=\"TCP\"]",
            ),
            (key([("name", &name)]), "k:{\"name\":\"a\\\"b\"}", "[name=\"a\\\"b\"]"),
            (value(&json!("x")), "v:\"x\"", "[=\"x\"]"),
            (value(&json!(true)), "v:true", "[=true]"),
            ("i:3".to_string(), "i:3", "[3]"),
        ];
        for (element, written, shown) in cases {
            assert_eq!(element, written);
            let mut text = String::new();
            show(&element, &mut text);
            assert_eq!(text, shown);
            assert_eq!(canonical(&element), Some(Some(element)));
        }
    }

    #[test]
    fn numbers_sort_by_value() {
        let mut elements = [
            "v:\"a\"",
            "k:{\"port\":443}",
            "k:{\"port\":80}",
            "i:2",
            "f:z",
            "v:7",
            "f:a",
        ];
        elements.sort_by(|a, b| order(a, b));
        assert_eq!(
            elements,
            [
                "f:a",
                "f:z",
                "k:{\"port\":80}",
                "k:{\"port\":443}",
                "v:7",
                "v:\"a\"",
                "i:2"
            ]
        );
    }
}
