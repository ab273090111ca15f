//! JSONPath as kubectl has it: what printer columns and selectable fields say where a value is.
//!
//! Upstream: client-go/util/jsonpath (v1.36), without ranges, which make no sense in one column.

use std::borrow::Cow;
use std::cmp::Ordering;

use serde_json::Value;

/// The most values that one path finds: `..` and `[*]` multiply.
const MAX_RESULTS: usize = 10_000;
/// How deep filters and unions may nest in each other.
const MAX_NESTING: usize = 16;

/// A text that is no path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct PathError(String);

fn wrong<T>(text: impl Into<String>) -> Result<T, PathError> {
    Err(PathError(text.into()))
}

/// A path that was read.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct JsonPath(Vec<Step>);

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Field(Box<str>),
    Slice([Option<i64>; 3], bool),
    Union(Vec<JsonPath>),
    Filter(JsonPath, JsonPath, Box<str>),
    Wildcard,
    Recursive,
    Literal(Value),
}

impl JsonPath {
    /// Reads a path as it stands in a definition: without the outer braces.
    pub(crate) fn parse(text: &str) -> Result<JsonPath, PathError> {
        Parser { rest: text, nesting: 0 }.path()
    }

    /// What is found; None if a step cannot be taken on what is there.
    pub(crate) fn find<'v>(&self, value: &'v Value) -> Option<Vec<Cow<'v, Value>>> {
        self.walk(vec![Cow::Borrowed(value)])
    }

    fn walk<'v>(&self, from: Vec<Cow<'v, Value>>) -> Option<Vec<Cow<'v, Value>>> {
        let mut at = from;
        for step in &self.0 {
            at = step.take(at)?;
            if at.len() > MAX_RESULTS {
                return None;
            }
        }
        Some(at)
    }
}

impl Step {
    fn take<'v>(&self, from: Vec<Cow<'v, Value>>) -> Option<Vec<Cow<'v, Value>>> {
        let mut out = vec![];
        match self {
            Step::Literal(value) => return Some(from.iter().map(|_| Cow::Owned(value.clone())).collect()),
            Step::Union(paths) => {
                for path in paths {
                    out.extend(path.walk(from.clone())?);
                }
                return Some(out);
            }
            _ => {}
        }
        for value in from {
            let borrowed: &'v Value = match value {
                Cow::Borrowed(value) => value,
                // A literal has no parts.
                Cow::Owned(_) => return None,
            };
            self.take_one(borrowed, &mut out)?;
        }
        Some(out)
    }

    fn take_one<'v>(&self, value: &'v Value, out: &mut Vec<Cow<'v, Value>>) -> Option<()> {
        if value.is_null() {
            return Some(());
        }
        match self {
            Step::Field(name) => out.extend(value.get(&**name).map(Cow::Borrowed)),
            Step::Slice(params, derived) => {
                let list = value.as_array()?;
                out.extend(slice(list, *params, *derived)?.map(Cow::Borrowed));
            }
            Step::Filter(left, right, operator) => {
                for element in value.as_array()? {
                    if filter(element, left, right, operator)? {
                        out.push(Cow::Borrowed(element));
                    }
                }
            }
            Step::Wildcard => out.extend(parts(value).map(Cow::Borrowed)),
            Step::Recursive => descend(value, out),
            Step::Union(_) | Step::Literal(_) => {}
        }
        Some(())
    }
}

fn parts(value: &Value) -> Box<dyn Iterator<Item = &Value> + '_> {
    match value {
        Value::Object(map) => Box::new(map.values()),
        Value::Array(list) => Box::new(list.iter()),
        _ => Box::new(std::iter::empty()),
    }
}

fn descend<'v>(value: &'v Value, out: &mut Vec<Cow<'v, Value>>) {
    let has_parts = match value {
        Value::Object(map) => !map.is_empty(),
        Value::Array(list) => !list.is_empty(),
        _ => false,
    };
    if !has_parts || out.len() > MAX_RESULTS {
        return;
    }
    out.push(Cow::Borrowed(value));
    parts(value).for_each(|part| descend(part, out));
}

/// The elements from, to and by which steps; None if an index is out of bounds.
fn slice(list: &[Value], [from, to, step]: [Option<i64>; 3], derived: bool) -> Option<impl Iterator<Item = &Value>> {
    let length = i64::try_from(list.len()).ok()?;
    let mut from = from.unwrap_or(0);
    let mut to = to.unwrap_or(length);
    if from < 0 {
        from = from.checked_add(length)?;
    }
    if to < 0 || (to == 0 && derived) {
        to = to.checked_add(length)?;
    }
    let step = match step {
        Some(step) => usize::try_from(step).ok().filter(|s| *s > 0)?,
        None => 1,
    };
    if from == to {
        return Some(list[..0].iter().step_by(step));
    }
    if from >= length || from < 0 || to > length || to < 0 || from > to {
        return None;
    }
    let range = usize::try_from(from).ok()?..usize::try_from(to).ok()?;
    Some(list[range].iter().step_by(step))
}

fn filter(element: &Value, left: &JsonPath, right: &JsonPath, operator: &str) -> Option<bool> {
    let lefts = left.find(element);
    if operator == "exists" {
        return Some(lefts.is_some_and(|l| !l.is_empty()));
    }
    let lefts = lefts?;
    let [left] = lefts.as_slice() else {
        return lefts.is_empty().then_some(false);
    };
    let rights = right.find(element)?;
    let [right] = rights.as_slice() else {
        return rights.is_empty().then_some(false);
    };
    let order = compare(left, right)?;
    match operator {
        "==" => Some(order.is_eq()),
        "!=" => Some(order.is_ne()),
        "<" => ordered(left).then(|| order.is_lt()),
        ">" => ordered(left).then(|| order.is_gt()),
        "<=" => ordered(left).then(|| order.is_le()),
        ">=" => ordered(left).then(|| order.is_ge()),
        _ => None,
    }
}

fn ordered(value: &Value) -> bool {
    value.is_string() || value.is_number()
}

/// Only values of one type can be compared, as in Go's templates.
fn compare(a: &Value, b: &Value) -> Option<Ordering> {
    match (a, b) {
        (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
        (Value::Bool(a), Value::Bool(b)) => Some(a.cmp(b)),
        (Value::Number(x), Value::Number(y)) => match (x.as_i64(), y.as_i64()) {
            (Some(x), Some(y)) => Some(x.cmp(&y)),
            (None, None) => x.as_f64()?.partial_cmp(&y.as_f64()?),
            _ => None,
        },
        _ => None,
    }
}

struct Parser<'t> {
    rest: &'t str,
    nesting: usize,
}

impl<'t> Parser<'t> {
    fn path(mut self) -> Result<JsonPath, PathError> {
        if self.nesting > MAX_NESTING {
            return wrong("nested too deeply");
        }
        let mut steps = vec![];
        // A closing brace would end the action, and text would follow.
        while let Some(c) = self.rest.chars().next().filter(|c| *c != '}') {
            self.step(c, &mut steps)?;
        }
        Ok(JsonPath(steps))
    }

    fn step(&mut self, c: char, steps: &mut Vec<Step>) -> Result<(), PathError> {
        if let Some(rest) = self.rest.strip_prefix("[?(") {
            self.rest = rest;
            steps.push(self.filter()?);
            return Ok(());
        }
        if let Some(rest) = self.rest.strip_prefix("..") {
            if steps.last() == Some(&Step::Recursive) {
                return wrong("invalid multiple recursive descent");
            }
            self.rest = rest;
            steps.push(Step::Recursive);
            if rest.starts_with(|c: char| c == '_' || c.is_alphanumeric()) {
                steps.push(self.field());
            }
            return Ok(());
        }
        let after = &self.rest[c.len_utf8()..];
        match c {
            '\n' | '\r' => return wrong("unclosed action"),
            ' ' | '@' | '$' => self.rest = after,
            '[' => {
                self.rest = after;
                self.array(steps)?;
            }
            '"' | '\'' => {
                self.rest = after;
                steps.push(self.quoted(c)?);
            }
            '.' => {
                self.rest = after;
                steps.push(self.field());
            }
            '+' | '-' | '0'..='9' => steps.push(self.number()?),
            c if c == '_' || c.is_alphanumeric() => {
                let word = self.until_terminator();
                match &*word {
                    "true" => steps.push(Step::Literal(true.into())),
                    "false" => steps.push(Step::Literal(false.into())),
                    _ => return wrong(format!("unrecognized identifier {word}")),
                }
            }
            other => {
                return wrong(format!(
                    "unrecognized character in action: U+{:04X} '{other}'",
                    other as u32
                ));
            }
        }
        Ok(())
    }

    /// Up to the next character that ends a name; a backslash makes one part of it.
    fn until_terminator(&mut self) -> String {
        let mut out = String::new();
        let mut chars = self.rest.char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' => {
                    out.extend(chars.next().map(|(_, c)| c).filter(|c| *c != '\\'));
                }
                ' ' | '\t' | '\r' | '\n' | '.' | ',' | '[' | ']' | '$' | '@' | '{' | '}' => {
                    self.rest = &self.rest[at..];
                    return out;
                }
                c => out.push(c),
            }
        }
        self.rest = "";
        out
    }

    fn field(&mut self) -> Step {
        match self.until_terminator() {
            name if name == "*" => Step::Wildcard,
            name => Step::Field(name.into()),
        }
    }

    fn number(&mut self) -> Result<Step, PathError> {
        let sign = usize::from(self.rest.starts_with(['+', '-']));
        let digits = self.rest[sign..].find(|c: char| c != '.' && !c.is_ascii_digit());
        let (text, rest) = self.rest.split_at(digits.map_or(self.rest.len(), |d| d + sign));
        self.rest = rest;
        let number = match text.parse::<i64>() {
            Ok(n) => Some(Value::from(n)),
            Err(_) => text.parse::<f64>().ok().map(Value::from),
        };
        number.map_or_else(
            || wrong(format!("cannot parse number {text}")),
            |n| Ok(Step::Literal(n)),
        )
    }

    fn quoted(&mut self, quote: char) -> Result<Step, PathError> {
        let mut out = String::new();
        let mut chars = self.rest.char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '\n' => break,
                '\\' => match chars.next() {
                    Some((_, 'n')) => out.push('\n'),
                    Some((_, 't')) => out.push('\t'),
                    Some((_, 'r')) => out.push('\r'),
                    Some((_, c @ ('\\' | '"' | '\''))) => out.push(c),
                    _ => return wrong(format!("unquote string {} error invalid syntax", self.rest)),
                },
                c if c == quote => {
                    self.rest = &self.rest[at + 1..];
                    return Ok(Step::Literal(out.into()));
                }
                c => out.push(c),
            }
        }
        wrong("unterminated quoted string")
    }

    fn array(&mut self, steps: &mut Vec<Step>) -> Result<(), PathError> {
        let end = self
            .rest
            .find([']', '\n'])
            .filter(|at| self.rest[*at..].starts_with(']'));
        let Some(end) = end else {
            return wrong("unterminated array");
        };
        let text = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        let text = if text == "*" { ":" } else { text };
        if text.contains(',') {
            let of_part = |part: &str| {
                let text = format!("[{}]", part.trim_matches(' '));
                let nested = Parser {
                    rest: &text,
                    nesting: self.nesting + 1,
                };
                nested.path()
            };
            steps.push(Step::Union(text.split(',').map(of_part).collect::<Result<_, _>>()?));
            return Ok(());
        }
        let quoted = text.strip_prefix('\'').and_then(|t| t.strip_suffix('\''));
        if let Some(name) = quoted.filter(|n| !n.contains('\'')) {
            let text = format!(".{name}");
            let nested = Parser {
                rest: &text,
                nesting: self.nesting + 1,
            };
            steps.extend(nested.path()?.0);
            return Ok(());
        }
        steps.push(index(text)?);
        Ok(())
    }

    fn filter(&mut self) -> Result<Step, PathError> {
        let (mut quote, mut previous) = (None, ' ');
        let end = self.rest.char_indices().find_map(|(at, c)| {
            match (c, quote) {
                ('"' | '\'', None) => quote = Some(c),
                (c, Some(q)) if c == q && previous != '\\' => quote = None,
                (')', None) => return Some(at),
                _ => {}
            }
            previous = c;
            None
        });
        let Some(end) = end else {
            return wrong("unterminated filter");
        };
        let text = &self.rest[..end];
        let Some(rest) = self.rest[end + 1..].strip_prefix(']') else {
            return wrong("unclosed array expect ]");
        };
        self.rest = rest;
        let nested = |text: &str| {
            let nested = Parser {
                rest: text,
                nesting: self.nesting + 1,
            };
            nested.path()
        };
        let is_operator = |c: char| matches!(c, '!' | '<' | '=' | '>');
        let operator = text.find(is_operator).filter(|at| *at > 0);
        let Some(start) = operator else {
            return Ok(Step::Filter(nested(text)?, JsonPath(vec![]), "exists".into()));
        };
        let length = text[start..].find(|c| !is_operator(c)).unwrap_or(text.len() - start);
        let (left, rest) = text.split_at(start);
        let (operator, right) = rest.split_at(length);
        Ok(Step::Filter(nested(left)?, nested(right)?, operator.into()))
    }
}

/// `0`, `-1`, `1:`, `0:10:2`
fn index(text: &str) -> Result<Step, PathError> {
    let parts: Vec<&str> = text.split(':').collect();
    if parts.len() > 3 {
        return wrong(format!("invalid array index {text}"));
    }
    let number = |at: usize| match parts.get(at).copied().unwrap_or("") {
        "" => Ok(None),
        word => match word.parse::<i64>() {
            Ok(n) => Ok(Some(n)),
            Err(_) => wrong(format!("invalid array index {text}")),
        },
    };
    let (from, mut to, step) = (number(0)?, number(1)?, number(2)?);
    let derived = parts.len() == 1;
    if derived {
        to = Some(from.unwrap_or(0).saturating_add(1));
    }
    Ok(Step::Slice([from, to, step], derived))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn paths_find_what_kubectl_finds() {
        let object = json!({
            "spec": {"a": 1, "b.c": "dotted", "list": [{"n": "x", "v": 1}, {"n": "y", "v": 2}, {"n": "z"}], "f": 1.5},
            "metadata": {"labels": {"app.kubernetes.io/name": "web"}},
            "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Synced", "status": "False"}], "null": null},
        });
        for (path, expected) in [
            (".spec.a", json!([1])),
            (".spec.missing", json!([])),
            (".status.null", json!([null])),
            (".status.null.x", json!([])),
            (r".spec.b\.c", json!(["dotted"])),
            (r".metadata.labels.app\.kubernetes\.io/name", json!(["web"])),
            (".metadata.labels['app\\.kubernetes\\.io/name']", json!(["web"])),
            (".spec.list[0].n", json!(["x"])),
            (".spec.list[-1].n", json!(["z"])),
            (".spec.list[*].n", json!(["x", "y", "z"])),
            (".spec.list[0:2].n", json!(["x", "y"])),
            (".spec.list[0:3:2].n", json!(["x", "z"])),
            (".spec.list[0,2].n", json!(["x", "z"])),
            (".spec.list[?(@.v==2)].n", json!(["y"])),
            (".spec.list[?(@.v)].n", json!(["x", "y"])),
            (".spec.list[?(@.v<2)].n", json!(["x"])),
            (r#".status.conditions[?(@.type=="Ready")].status"#, json!(["True"])),
            (".status.conditions[?(@.type == 'Ready')].status", json!(["True"])),
            ("..n", json!(["x", "y", "z"])),
            (".spec['a','f']", json!([1, 1.5])),
            ("$.spec.a", json!([1])),
        ] {
            let found = JsonPath::parse(path)
                .unwrap_or_else(|e| panic!("{path}: {e}"))
                .find(&object);
            let found: Value = found
                .unwrap_or_else(|| panic!("{path}"))
                .into_iter()
                .map(Cow::into_owned)
                .collect();
            assert_eq!(found, expected, "{path}");
        }
        for path in [".spec.list[3].n", ".spec.a[0]", ".spec.list[?(@.n<1)].n"] {
            assert_eq!(JsonPath::parse(path).unwrap().find(&object), None, "{path}");
        }
    }

    #[test]
    fn what_is_no_path_is_refused() {
        for (path, message) in [
            (".a[", "unterminated array"),
            (".a[x]", "invalid array index x"),
            (".a[?(@.b)", "unclosed array expect ]"),
            (".a[?(@.b", "unterminated filter"),
            ("....", "invalid multiple recursive descent"),
            ("^", "unrecognized character in action: U+005E '^'"),
            ("'b", "unterminated quoted string"),
        ] {
            assert_eq!(
                JsonPath::parse(path).map_err(|e| e.to_string()),
                Err(message.to_string()),
                "{path}"
            );
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(path in r#"[.a-c\[\]?@()'",:*0-9=<>\\$ -]{0,24}"#) {
            let object = json!({"a": [{"b": 1}, {"c": [1, 2]}], "b": {"a": {"c": "x"}}});
            if let Ok(path) = JsonPath::parse(&path) {
                let _ = path.find(&object);
            }
        }
    }
}
