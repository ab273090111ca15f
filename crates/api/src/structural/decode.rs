//! Decoding a body of a custom kind in one pass over the text: pruned, metadata read as ObjectMeta, unwanted nulls gone;
//! unknown and repeated fields are reported. The result is what Kubernetes' decoder for custom resources gives.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::{Structural, is_meta_field};
use crate::field::cut;
use crate::schema::{
    DecodeError, Decoded, MAX_DEPTH, PartSeed, TypeRef, float, json_syntax_error, schema, text_of_bytes, yaml_to_value,
};

/// No more problems of one sort are reported.
const MAX_PROBLEMS: usize = 100;

impl Structural {
    /// Decodes a body in JSON. `None` for a schema that is not there keeps all fields.
    pub fn decode_json(&self, bytes: &[u8]) -> Result<Decoded, DecodeError> {
        let text = text_of_bytes(bytes);
        let mut de = serde_json::Deserializer::from_str(&text);
        let mut found = Found::default();
        let read = found.seed(self).deserialize(&mut de);
        let read = read.and_then(|value| de.end().map(|()| value));
        found.end(read.map_err(|e| json_syntax_error(bytes).unwrap_or_else(|| e.to_string())))
    }

    /// Decodes a body in YAML.
    pub fn decode_yaml(&self, bytes: &[u8]) -> Result<Decoded, DecodeError> {
        // JSON is YAML, and much faster to read as JSON.
        if bytes.trim_ascii_start().first() == Some(&b'{')
            && let Ok(decoded) = self.decode_json(bytes)
        {
            return Ok(decoded);
        }
        let (value, mut problems) = yaml_to_value(bytes)?;
        let decoded = self.from_value(value)?;
        problems.extend(decoded.problems);
        Ok(Decoded {
            value: decoded.value,
            problems,
        })
    }

    /// Decodes a value, such as a patch or a conversion leaves: the same checks and pruning.
    // Not a constructor: a schema reads a value.
    #[allow(clippy::wrong_self_convention)]
    pub fn from_value(&self, value: Value) -> Result<Decoded, DecodeError> {
        let mut found = Found::default();
        let read = found.seed(self).deserialize(value);
        found.end(read.map_err(|e| e.to_string()))
    }
}

/// What is reported, in the order in which Kubernetes reports it.
#[derive(Default)]
struct Found {
    duplicate: Vec<String>,
    /// Fields that ObjectMeta does not have, at the root.
    metadata: Vec<String>,
    unknown: Vec<String>,
    /// The same in embedded resources.
    embedded: Vec<String>,
    failure: Option<String>,
}

impl Found {
    fn seed<'a>(&'a mut self, schema: &'a Structural) -> Seed<'a, 'a> {
        Seed {
            found: self,
            mode: Mode::of(Some(schema)),
            root: true,
            at: &Path::ROOT,
            depth: 0,
        }
    }

    fn end(mut self, read: Result<Value, String>) -> Result<Decoded, DecodeError> {
        if let Some(text) = self.failure {
            return Err(DecodeError(text));
        }
        let value = read.map_err(DecodeError)?;
        if !value.is_object() {
            return Err(DecodeError(
                "couldn't get version/kind; json parse error: expected an object".into(),
            ));
        }
        self.unknown.sort();
        self.embedded.sort();
        let mut problems = self.duplicate;
        problems.extend(self.metadata);
        for path in self.unknown.into_iter().chain(self.embedded) {
            problems.push(format!("unknown field \"{path}\""));
        }
        problems.truncate(MAX_PROBLEMS);
        Ok(Decoded { value, problems })
    }

    fn duplicate(&mut self, at: &Path<'_>, name: &str) {
        if self.duplicate.len() < MAX_PROBLEMS {
            let text = format!("duplicate field {:?}", at.text(name));
            if !self.duplicate.contains(&text) {
                self.duplicate.push(text);
            }
        }
    }

    fn unknown(&mut self, at: &Path<'_>, name: &str) {
        if self.unknown.len() < MAX_PROBLEMS {
            let path = at.text(name);
            if !self.unknown.contains(&path) {
                self.unknown.push(path);
            }
        }
    }

    fn fail<E: Error>(&mut self, text: String) -> E {
        self.failure.get_or_insert(text);
        E::custom("refused")
    }
}

/// Where we are: kept on the stack, written out only when there is something to report.
struct Path<'a> {
    up: Option<&'a Path<'a>>,
    step: Step<'a>,
}

enum Step<'a> {
    Root,
    Name(&'a str),
    Index(usize),
}

impl<'a> Path<'a> {
    const ROOT: Path<'static> = Path {
        up: None,
        step: Step::Root,
    };

    fn down(&'a self, step: Step<'a>) -> Path<'a> {
        Path { up: Some(self), step }
    }

    fn write(&self, out: &mut String) {
        if let Some(up) = self.up {
            up.write(out);
        }
        match self.step {
            Step::Root => {}
            Step::Index(i) => out.push_str(&format!("[{i}]")),
            Step::Name(name) => {
                if !out.is_empty() {
                    out.push('.');
                }
                out.push_str(name);
            }
        }
    }

    fn text(&self, name: &str) -> String {
        let mut out = String::new();
        self.down(Step::Name(name)).write(&mut out);
        cut(out)
    }
}

/// What is done with the fields of a value.
#[derive(Clone, Copy)]
enum Mode<'s> {
    /// Those that the schema does not name go; without a schema all do.
    Prune(Option<&'s Structural>),
    /// All stay; below those that are named the schema goes on.
    Keep(&'s Structural),
    /// All stay.
    Any,
}

impl<'s> Mode<'s> {
    fn of(schema: Option<&'s Structural>) -> Mode<'s> {
        match schema {
            Some(s) if s.preserve_unknown_fields => Mode::Keep(s),
            other => Mode::Prune(other),
        }
    }

    fn schema(self) -> Option<&'s Structural> {
        match self {
            Mode::Prune(schema) => schema,
            Mode::Keep(schema) => Some(schema),
            Mode::Any => None,
        }
    }

    fn items(self) -> Mode<'s> {
        match self {
            Mode::Prune(schema) => Mode::of(schema.and_then(|s| s.items.as_deref())),
            Mode::Keep(schema) => schema.items.as_deref().map_or(Mode::Any, Mode::Keep),
            Mode::Any => Mode::Any,
        }
    }

    /// How the value under a name is read; None if it is removed.
    fn member(self, name: &str) -> Option<Mode<'s>> {
        let Some(schema) = self.schema() else {
            return matches!(self, Mode::Any).then_some(Mode::Any);
        };
        match (schema.property(name), schema.has_additional(), self) {
            (Some(property), ..) => Some(Mode::of(Some(property))),
            (None, true, _) => Some(Mode::of(schema.additional_schema())),
            (None, false, Mode::Keep(_)) => Some(Mode::Any),
            (None, false, _) => None,
        }
    }
}

/// Reads one value.
struct Seed<'a, 's> {
    found: &'a mut Found,
    mode: Mode<'s>,
    root: bool,
    at: &'a Path<'a>,
    depth: u32,
}

impl Seed<'_, '_> {
    fn deeper<E: Error>(&mut self) -> Result<u32, E> {
        if self.depth >= MAX_DEPTH {
            return Err(self.found.fail(format!("exceeded max depth of {MAX_DEPTH}")));
        }
        Ok(self.depth + 1)
    }

    /// apiVersion, kind or metadata of a resource.
    fn meta_member<'de, A: MapAccess<'de>>(&mut self, name: &str, depth: u32, map: &mut A) -> Result<Value, A::Error> {
        if name == "metadata" {
            return self.metadata(depth, map);
        }
        let at = self.at.down(Step::Name(name));
        let value = map.next_value_seed(Seed {
            found: &mut *self.found,
            mode: Mode::Any,
            root: false,
            at: &at,
            depth,
        })?;
        if value.is_string() {
            return Ok(value);
        }
        let shown = crate::field::shown(Some(&value));
        let text = match self.root {
            true => format!(".{name} accessor error: {shown} is of the wrong type, expected string"),
            false => format!("{}: Invalid value: {shown}: must be a string", self.at.text(name)),
        };
        Err(self.found.fail(text))
    }

    fn metadata<'de, A: MapAccess<'de>>(&mut self, depth: u32, map: &mut A) -> Result<Value, A::Error> {
        let place = self.at.text("metadata");
        let mut problems = vec![];
        let value = map.next_value_seed(PartSeed {
            ty: object_meta(),
            depth,
            place: &place,
            problems: &mut problems,
            failure: &mut self.found.failure,
        });
        let value = match value {
            Ok(value) => value,
            Err(e) => {
                if let (Some(text), false) = (&mut self.found.failure, self.root) {
                    *text = format!("{place}: Invalid value: {text}");
                }
                return Err(e);
            }
        };
        for problem in problems {
            if problem.starts_with("duplicate") {
                self.found.duplicate.push(problem);
            } else if self.root {
                self.found.metadata.push(problem);
            } else if let Some((_, path)) = problem.split_once('"') {
                self.found.embedded.push(path.trim_end_matches('"').to_string());
            }
        }
        Ok(match value {
            Value::Null => Value::Object(Map::new()),
            other => other,
        })
    }
}

fn object_meta() -> TypeRef {
    schema().get("meta/v1.ObjectMeta").expect("the table has ObjectMeta")
}

impl<'de> DeserializeSeed<'de> for Seed<'_, '_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Value, D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_, '_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, b: bool) -> Result<Value, E> {
        Ok(Value::Bool(b))
    }

    fn visit_i64<E: Error>(self, n: i64) -> Result<Value, E> {
        Ok(Value::from(n))
    }

    /// What is no int64 is a float to Kubernetes.
    fn visit_u64<E: Error>(self, n: u64) -> Result<Value, E> {
        Ok(i64::try_from(n).map_or_else(|_| float(n as f64), Value::from))
    }

    fn visit_f64<E: Error>(self, n: f64) -> Result<Value, E> {
        Ok(float(n))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        Ok(Value::String(text.to_string()))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Value, E> {
        Ok(Value::String(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<Value, A::Error> {
        let depth = self.deeper()?;
        let mode = self.mode.items();
        let mut out = vec![];
        loop {
            let at = self.at.down(Step::Index(out.len()));
            let next = seq.next_element_seed(Seed {
                found: &mut *self.found,
                mode,
                root: false,
                at: &at,
                depth,
            })?;
            match next {
                Some(value) => out.push(value),
                None => return Ok(Value::Array(out)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Value, A::Error> {
        let depth = self.deeper()?;
        let embedded = self.root || self.mode.schema().is_some_and(|s| s.embedded_resource);
        let mut out = Map::new();
        while let Some(name) = map.next_key::<Cow<'de, str>>()? {
            if embedded && is_meta_field(&name) {
                let value = self.meta_member(&name, depth, &mut map)?;
                if out.insert(name.to_string(), value).is_some() {
                    self.found.duplicate(self.at, &name);
                }
                continue;
            }
            let mode = self.mode.member(&name);
            let at = self.at.down(Step::Name(&name));
            let value = map.next_value_seed(Seed {
                found: &mut *self.found,
                // What is removed is read all the same: fields given twice are reported wherever they are.
                mode: mode.unwrap_or(Mode::Any),
                root: false,
                at: &at,
                depth,
            })?;
            match mode {
                None => self.found.unknown(self.at, &name),
                Some(mode) => {
                    let unwanted = value.is_null()
                        && mode
                            .schema()
                            .is_some_and(|s| !s.nullable && s.default_value().is_none());
                    let before = match unwanted {
                        true => out.remove(&*name),
                        false => out.insert(name.to_string(), value),
                    };
                    if before.is_some() {
                        self.found.duplicate(self.at, &name);
                    }
                }
            }
        }
        Ok(Value::Object(out))
    }
}
