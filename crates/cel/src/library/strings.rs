//! Strings. Positions count code points.
//!
//! Upstream: cel-go/ext/strings.go (version 2), cel-go/common/types/string.go.

use super::{Body, Outcome, no_overload};
use crate::program::EvalError;
use crate::value::{List, Text, Value};

pub(super) const FUNCTIONS: &[(&str, Body)] = &[
    ("contains", |args| test(args, |text, part| text.contains(part))),
    ("startsWith", |args| test(args, |text, part| text.starts_with(part))),
    ("endsWith", |args| test(args, |text, part| text.ends_with(part))),
    ("charAt", char_at),
    ("indexOf", index_of),
    ("lastIndexOf", last_index_of),
    ("lowerAscii", |args| map(args, |text| text.to_ascii_lowercase())),
    ("upperAscii", |args| map(args, |text| text.to_ascii_uppercase())),
    ("trim", |args| map(args, |text| text.trim().to_string())),
    ("replace", replace),
    ("split", split),
    ("substring", substring),
    ("join", join),
    ("strings.quote", |args| map(args, quote)),
    ("jsonpatch.escapeKey", |args| {
        map(args, |text| text.replace('~', "~0").replace('/', "~1"))
    }),
];

/// No string is made longer: its cost would be beyond all limits.
const LONGEST: usize = 64 << 20;

fn test<'a>(args: &[Value<'a>], test: fn(&str, &str) -> bool) -> Outcome<'a> {
    match args {
        [Value::String(text), Value::String(part)] => Ok(Value::Bool(test(text, part))),
        _ => no_overload(),
    }
}

fn map<'a>(args: &[Value<'a>], map: fn(&str) -> String) -> Outcome<'a> {
    match args {
        [Value::String(text)] => Ok(Value::string(map(text))),
        _ => no_overload(),
    }
}

fn out_of_range(at: i64) -> EvalError {
    EvalError::new(format!("index out of range: {at}"))
}

/// The byte where the character at this position starts; the end for the position after the last.
fn byte_at(text: &str, at: i64) -> Result<usize, EvalError> {
    let position = usize::try_from(at).map_err(|_| out_of_range(at))?;
    if text.is_ascii() {
        return if position <= text.len() {
            Ok(position)
        } else {
            Err(out_of_range(at))
        };
    }
    let mut starts = text.char_indices().map(|(start, _)| start).chain([text.len()]);
    starts.nth(position).ok_or_else(|| out_of_range(at))
}

fn char_at<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::String(text), Value::Int(at)] => {
            let start = byte_at(text, *at)?;
            let found = text[start..].chars().next();
            Ok(Value::string(found.map(String::from).unwrap_or_default()))
        }
        _ => no_overload(),
    }
}

/// How many characters are before a byte.
fn position(text: &str, byte: usize) -> i64 {
    i64::try_from(text[..byte].chars().count()).unwrap_or(i64::MAX)
}

fn index_of<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let (text, part, from) = match args {
        [Value::String(text), Value::String(part)] => (text, part, 0),
        [Value::String(text), Value::String(part), Value::Int(from)] => (text, part, *from),
        [Value::List(list), item] => return list_index(list, item, false),
        _ => return no_overload(),
    };
    if part.is_empty() {
        return Ok(Value::Int(from));
    }
    if from < 0 {
        return Err(out_of_range(from));
    }
    let found = byte_at(text, from)
        .ok()
        .and_then(|start| Some(start + text[start..].find(part.as_str())?));
    Ok(Value::Int(found.map_or(-1, |byte| position(text, byte))))
}

fn last_index_of<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let (text, part, until) = match args {
        [Value::String(text), Value::String(part)] => (text, part, None),
        [Value::String(text), Value::String(part), Value::Int(until)] => (text, part, Some(*until)),
        [Value::List(list), item] => return list_index(list, item, true),
        _ => return no_overload(),
    };
    let length = position(text, text.len());
    if part.is_empty() {
        return Ok(Value::Int(until.unwrap_or(length)));
    }
    let end = match until {
        Some(until) if until < 0 => return Err(out_of_range(until)),
        Some(until) if until >= length => return Ok(Value::Int(-1)),
        // The part may start at this position, so it ends so much later.
        Some(until) => {
            let end = until.saturating_add(position(part, part.len()));
            byte_at(text, end).unwrap_or(text.len())
        }
        None => text.len(),
    };
    let found = text[..end].rfind(part.as_str());
    Ok(Value::Int(found.map_or(-1, |byte| position(text, byte))))
}

fn list_index<'a>(list: &List<'a>, item: &Value<'a>, last: bool) -> Outcome<'a> {
    let mut found = -1;
    for (at, other) in list.iter().enumerate() {
        if other?.equals(item) {
            found = i64::try_from(at).unwrap_or(i64::MAX);
            if !last {
                break;
            }
        }
    }
    Ok(Value::Int(found))
}

fn replace<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let (text, from, to, most) = match args {
        [Value::String(text), Value::String(from), Value::String(to)] => (text, from, to, -1),
        [
            Value::String(text),
            Value::String(from),
            Value::String(to),
            Value::Int(most),
        ] => (text, from, to, *most),
        _ => return no_overload(),
    };
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let found = if from.is_empty() {
        text.chars().count() + 1
    } else {
        text.matches(from.as_str()).take(most).count()
    };
    let longest = text.len().saturating_add(found.min(most).saturating_mul(to.len()));
    if longest > LONGEST {
        return Err(EvalError::cost_limit());
    }
    Ok(Value::string(text.replacen(from.as_str(), to, most)))
}

fn split<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let (text, by, most) = match args {
        [Value::String(text), Value::String(by)] => (text, by, -1),
        [Value::String(text), Value::String(by), Value::Int(most)] => (text, by, *most),
        _ => return no_overload(),
    };
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    if most == 0 {
        return Ok(Value::list(vec![]));
    }
    let parts: Vec<Value<'a>> = if by.is_empty() {
        let mut rest = text.as_str();
        let mut parts = Vec::new();
        while let Some(c) = rest.chars().next() {
            let end = if parts.len() + 1 == most {
                rest.len()
            } else {
                c.len_utf8()
            };
            parts.push(Value::string(&rest[..end]));
            rest = &rest[end..];
        }
        parts
    } else {
        match text {
            Text::Borrowed(text) => text
                .splitn(most, by.as_str())
                .map(|part| Value::String(Text::Borrowed(part)))
                .collect(),
            Text::Shared(text) => text.splitn(most, by.as_str()).map(Value::string).collect(),
        }
    };
    Ok(Value::list(parts))
}

fn substring<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let (text, start, end) = match args {
        [Value::String(text), Value::Int(start)] => (text, *start, None),
        [Value::String(text), Value::Int(start), Value::Int(end)] => (text, *start, Some(*end)),
        _ => return no_overload(),
    };
    if let Some(end) = end
        && start > end
    {
        return Err(EvalError::new(format!(
            "invalid substring range. start: {start}, end: {end}"
        )));
    }
    let from = byte_at(text, start)?;
    let to = end.map_or(Ok(text.len()), |end| byte_at(text, end))?;
    Ok(match text {
        Text::Borrowed(text) => Value::String(Text::Borrowed(&text[from..to])),
        Text::Shared(text) => Value::string(&text[from..to]),
    })
}

fn join<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let (list, between) = match args {
        [Value::List(list)] => (list, ""),
        [Value::List(list), Value::String(between)] => (list, between.as_str()),
        _ => return no_overload(),
    };
    let mut text = String::new();
    for (at, item) in list.iter().enumerate() {
        if at > 0 {
            text.push_str(between);
        }
        match item? {
            Value::String(part) => text.push_str(&part),
            other => return Err(EvalError::new(format!("join: invalid input: {}", super::shown(&other)))),
        }
        if text.len() > LONGEST {
            return Err(EvalError::cost_limit());
        }
    }
    Ok(Value::string(text))
}

/// In quotes, with CEL's escapes.
fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
