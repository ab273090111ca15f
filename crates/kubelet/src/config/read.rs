//! Decodes a document by the table of fields: unknown fields and values of the wrong type are reported and left out, missing
//! ones get their defaults. The result is well-formed in any case, so that it can be validated, too.

use orlop_api::duration::parse_duration;
use orlop_api::quantity::Quantity;
use orlop_api::{Path, ProblemKind};
use serde_json::{Map, Value, json};
use serde_saphyr::options::DuplicateKeyPolicy;

use super::table::{FIELDS, Fill, Kind, Row};

pub(super) const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
pub(super) const KIND: &str = "KubeletConfiguration";

pub(super) fn document(text: &str) -> Result<Value, String> {
    if text.trim().is_empty() {
        return Err("the file is empty: a KubeletConfiguration is required".to_string());
    }
    let options = serde_saphyr::options! {
        duplicate_keys: DuplicateKeyPolicy::Error,
        legacy_octal_numbers: true,
        with_snippet: false,
        budget: serde_saphyr::budget! { max_depth: orlop_api::schema::MAX_DEPTH as usize },
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|e| format!("error converting YAML to JSON: {e}"))
}

/// The document with everything filled in, and what was wrong with it.
pub(super) fn complete(document: &Value) -> (Value, Vec<String>) {
    let mut problems = Vec::new();
    for (name, wanted) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        match document.get(name).and_then(Value::as_str) {
            Some(found) if found == wanted => {}
            Some(found) => problems.push(format!("{name}: unsupported value {found:?}, must be {wanted:?}")),
            None => problems.push(format!("{name}: must be {wanted:?}")),
        }
    }
    let mut reader = Reader { problems };
    let value = reader.object(Some(document), FIELDS, &Path::default());
    (value, reader.problems)
}

struct Reader {
    problems: Vec<String>,
}

impl Reader {
    fn wrong(&mut self, path: &Path, value: &Value, wanted: impl Into<String>) {
        let problem = orlop_api::Problem {
            kind: ProblemKind::Invalid,
            field: path.to_string(),
            value: Some(value.to_string()),
            detail: wanted.into(),
        };
        self.problems.push(problem.to_string());
    }

    fn object(&mut self, value: Option<&Value>, rows: &'static [Row], path: &Path) -> Value {
        let empty = Map::new();
        let given = match value {
            None | Some(Value::Null) => &empty,
            Some(Value::Object(map)) => map,
            Some(other) => {
                self.wrong(path, other, "must be an object");
                &empty
            }
        };
        for key in given.keys().filter(|key| !rows.iter().any(|row| row.name == *key)) {
            let field = match path.to_string() {
                parent if parent.is_empty() => key.clone(),
                parent => format!("{parent}.{key}"),
            };
            self.problems
                .push(format!("strict decoding error: unknown field {field:?}"));
        }
        let mut out = Map::new();
        for row in rows {
            if let Some(value) = self.field(given.get(row.name), row, &path.field(row.name)) {
                out.insert(row.name.to_string(), value);
            }
        }
        Value::Object(out)
    }

    fn field(&mut self, value: Option<&Value>, row: &'static Row, path: &Path) -> Option<Value> {
        // Parts that hold defaults are there whether they were given or not.
        if let Kind::Object(rows) = row.kind {
            return Some(self.object(value, rows, path));
        }
        let given = value
            .filter(|v| !v.is_null())
            .and_then(|v| self.typed(v, row.kind, path));
        given
            .filter(|v| !(row.zero_is_absent && is_zero(v, row.kind)))
            .or_else(|| filled(row.fill))
    }

    /// The value if it is of that kind.
    fn typed(&mut self, value: &Value, kind: Kind, path: &Path) -> Option<Value> {
        let wanted = match kind {
            Kind::Flag if value.is_boolean() => return Some(value.clone()),
            Kind::Flag => "must be true or false".to_string(),
            Kind::Int if value.as_i64().is_some_and(|n| i32::try_from(n).is_ok()) => return Some(value.clone()),
            Kind::Int => "must be a 32-bit integer".to_string(),
            Kind::Long if value.is_i64() => return Some(value.clone()),
            Kind::Long => "must be an integer".to_string(),
            Kind::Float if value.is_number() => return Some(value.clone()),
            Kind::Float => "must be a number".to_string(),
            Kind::Text if value.is_string() => return Some(value.clone()),
            Kind::Text => "must be a string".to_string(),
            Kind::Word(words) => match value.as_str() {
                // An empty word is one that is not given.
                Some(word) if word.is_empty() || words.contains(&word) => return Some(value.clone()),
                _ => format!("must be one of: {}", words.join(", ")),
            },
            Kind::Duration if value.as_str().is_some_and(|text| parse_duration(text).is_ok()) => {
                return Some(value.clone());
            }
            Kind::Duration => "must be a duration such as \"15s\" or \"1m30s\"".to_string(),
            Kind::Quantity => return self.quantity(value, path),
            Kind::Texts => return self.list(value, path, |r, v, p| r.typed(v, Kind::Text, p)),
            Kind::Ints => return self.list(value, path, |r, v, p| r.typed(v, Kind::Int, p)),
            Kind::List(rows) => return self.list(value, path, |r, v, p| Some(r.object(Some(v), rows, p))),
            Kind::TextMap => return self.map(value, path, |r, v, p| r.typed(v, Kind::Text, p)),
            Kind::Quantities => return self.map(value, path, |r, v, p| r.quantity(v, p)),
            Kind::FlagMap => return self.map(value, path, |r, v, p| r.typed(v, Kind::Flag, p)),
            Kind::TextsMap => return self.map(value, path, |r, v, p| r.typed(v, Kind::Texts, p)),
            Kind::Taints => return self.list(value, path, Reader::taint),
            Kind::Opaque if value.is_object() => return Some(value.clone()),
            Kind::Opaque | Kind::Object(_) => "must be an object".to_string(),
        };
        self.wrong(path, value, wanted);
        None
    }

    /// As text; a bare number will do.
    fn quantity(&mut self, value: &Value, path: &Path) -> Option<Value> {
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            _ => String::new(),
        };
        match Quantity::parse(&text) {
            Ok(quantity) if !quantity.is_negative() => Some(Value::from(text)),
            Ok(_) => {
                self.wrong(path, value, "must not be negative");
                None
            }
            Err(why) => {
                self.wrong(path, value, why);
                None
            }
        }
    }

    fn taint(&mut self, value: &Value, path: &Path) -> Option<Value> {
        const ROWS: &[Row] = &[
            text("key"),
            text("value"),
            Row {
                name: "effect",
                kind: Kind::Word(&["NoSchedule", "PreferNoSchedule", "NoExecute"]),
                fill: Fill::Nothing,
                zero_is_absent: false,
            },
        ];
        const fn text(name: &'static str) -> Row {
            Row {
                name,
                kind: Kind::Text,
                fill: Fill::Nothing,
                zero_is_absent: false,
            }
        }
        let taint = self.object(Some(value), ROWS, path);
        let part = |name| taint[name].as_str().unwrap_or("");
        let mut wrong = orlop_api::names::qualified_name(part("key"));
        wrong.extend(orlop_api::names::label_value(part("value")));
        if part("effect").is_empty() {
            wrong.push("an effect is required".to_string());
        }
        for why in &wrong {
            self.wrong(path, value, why.as_str());
        }
        wrong.is_empty().then_some(taint)
    }

    fn list(
        &mut self,
        value: &Value,
        path: &Path,
        mut item: impl FnMut(&mut Reader, &Value, &Path) -> Option<Value>,
    ) -> Option<Value> {
        let Some(items) = value.as_array() else {
            self.wrong(path, value, "must be a list");
            return None;
        };
        let read = items.iter().enumerate();
        Some(read.filter_map(|(i, v)| item(self, v, &path.index(i))).collect())
    }

    fn map(
        &mut self,
        value: &Value,
        path: &Path,
        mut item: impl FnMut(&mut Reader, &Value, &Path) -> Option<Value>,
    ) -> Option<Value> {
        let Some(entries) = value.as_object() else {
            self.wrong(path, value, "must be an object");
            return None;
        };
        let read = entries.iter();
        let read = read.filter_map(|(key, v)| Some((key.clone(), item(self, v, &path.key(key))?)));
        Some(Value::Object(read.collect()))
    }
}

fn is_zero(value: &Value, kind: Kind) -> bool {
    match (kind, value) {
        (Kind::Duration, Value::String(text)) => parse_duration(text) == Ok(0),
        (_, Value::String(text)) => text.is_empty(),
        (_, Value::Number(number)) => number.as_f64() == Some(0.0),
        _ => false,
    }
}

fn filled(fill: Fill) -> Option<Value> {
    Some(match fill {
        Fill::Nothing => return None,
        Fill::Flag(value) => json!(value),
        Fill::Int(value) => json!(value),
        Fill::Float(value) => json!(value),
        Fill::Text(value) => json!(value),
        Fill::Texts(values) => json!(values),
        Fill::TextMap(entries) => entries.iter().map(|(k, v)| (k.to_string(), json!(v))).collect(),
    })
}
