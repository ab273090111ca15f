//! Reading words: YAML or JSON to a value without losing keys given twice, and objects field by field so that what
//! nobody asked for is reported as unknown.

use orlop_api::duration::parse_duration;
use orlop_api::{Cursor, Path};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::options::DuplicateKeyPolicy;

use super::problem::Problems;

/// The document as a value. Keys given twice are reported; the last one counts.
pub(super) fn document(text: &str, p: &mut Problems) -> Option<Value> {
    if text.trim().is_empty() {
        p.unreadable("the file is empty: a KubeSchedulerConfiguration is needed".to_string());
        return None;
    }
    let options = serde_saphyr::options! {
        duplicate_keys: DuplicateKeyPolicy::LastWins,
        legacy_octal_numbers: true,
        with_snippet: false,
        budget: serde_saphyr::budget! { max_depth: orlop_api::schema::MAX_DEPTH as usize },
    };
    match serde_saphyr::from_str_with_options::<Tree>(text, options) {
        Ok(tree) => Some(tree.into_value(&mut String::new(), p)),
        Err(error) => {
            p.unreadable(format!("error converting YAML to JSON: {error}"));
            None
        }
    }
}

/// A document with all its keys, also those given twice.
enum Tree {
    Map(Vec<(String, Tree)>),
    List(Vec<Tree>),
    Leaf(Value),
}

impl Tree {
    fn into_value(self, path: &mut String, p: &mut Problems) -> Value {
        let here = path.len();
        match self {
            Tree::Leaf(value) => value,
            Tree::List(list) => {
                let mut out = Vec::with_capacity(list.len());
                for (i, item) in list.into_iter().enumerate() {
                    path.push_str(&format!("[{i}]"));
                    out.push(item.into_value(path, p));
                    path.truncate(here);
                }
                Value::Array(out)
            }
            Tree::Map(entries) => {
                let mut out = Map::new();
                for (key, item) in entries {
                    if here > 0 {
                        path.push('.');
                    }
                    path.push_str(&key);
                    let value = item.into_value(path, p);
                    if out.insert(key, value).is_some() {
                        p.strict("duplicate field", path.clone());
                    }
                    path.truncate(here);
                }
                Value::Object(out)
            }
        }
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Tree, D::Error> {
        deserializer.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E: Error>(self, v: bool) -> Result<Tree, E> {
        Ok(Tree::Leaf(v.into()))
    }

    fn visit_i64<E: Error>(self, v: i64) -> Result<Tree, E> {
        Ok(Tree::Leaf(v.into()))
    }

    fn visit_u64<E: Error>(self, v: u64) -> Result<Tree, E> {
        Ok(Tree::Leaf(v.into()))
    }

    fn visit_f64<E: Error>(self, v: f64) -> Result<Tree, E> {
        match Number::from_f64(v) {
            Some(n) => Ok(Tree::Leaf(n.into())),
            None => Err(E::custom("numbers must be finite")),
        }
    }

    fn visit_str<E: Error>(self, v: &str) -> Result<Tree, E> {
        Ok(Tree::Leaf(v.into()))
    }

    fn visit_unit<E: Error>(self) -> Result<Tree, E> {
        Ok(Tree::Leaf(Value::Null))
    }

    fn visit_none<E: Error>(self) -> Result<Tree, E> {
        Ok(Tree::Leaf(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tree, D::Error> {
        Tree::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Tree, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = seq.next_element()? {
            list.push(item);
        }
        Ok(Tree::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tree, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Tree::Map(entries))
    }
}

/// An object being read. Each field is asked for by name and type; null counts as absent, as in Go. `close` reports
/// what nobody asked for.
pub(super) struct Fields<'a> {
    here: Cursor<'a>,
    asked: Vec<&'static str>,
}

impl<'a> Fields<'a> {
    pub(super) fn open(here: Cursor<'a>, p: &mut Problems) -> Fields<'a> {
        if let Some(value) = here.value()
            && !value.is_object()
        {
            p.wrong_type(here.path(), value, "must be an object");
        }
        Fields { here, asked: vec![] }
    }

    pub(super) fn path(&self) -> &Path {
        self.here.path()
    }

    pub(super) fn at(&mut self, name: &'static str) -> Cursor<'a> {
        self.asked.push(name);
        self.here.at(name)
    }

    pub(super) fn close(self, p: &mut Problems) {
        let Some(map) = self.here.value().and_then(Value::as_object) else {
            return;
        };
        for key in map.keys().filter(|key| !self.asked.contains(&key.as_str())) {
            let parent = self.here.path().to_string();
            let field = if parent.is_empty() {
                key.clone()
            } else {
                format!("{parent}.{key}")
            };
            p.strict("unknown field", field);
        }
    }

    /// The value if `read` can make something of it; a problem if it cannot.
    fn typed<T>(
        &mut self,
        name: &'static str,
        wanted: &str,
        p: &mut Problems,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Option<T> {
        let c = self.at(name);
        let value = c.value()?;
        let read = read(value);
        if read.is_none() {
            p.wrong_type(c.path(), value, wanted);
        }
        read
    }

    pub(super) fn text(&mut self, name: &'static str, p: &mut Problems) -> Option<String> {
        self.typed(name, "must be a string", p, |v| v.as_str().map(str::to_string))
    }

    /// A string that counts as absent if it is empty.
    pub(super) fn filled(&mut self, name: &'static str, p: &mut Problems) -> Option<String> {
        self.text(name, p).filter(|s| !s.is_empty())
    }

    pub(super) fn flag(&mut self, name: &'static str, p: &mut Problems) -> Option<bool> {
        self.typed(name, "must be true or false", p, Value::as_bool)
    }

    pub(super) fn int(&mut self, name: &'static str, p: &mut Problems) -> Option<i32> {
        self.typed(name, "must be a 32-bit integer", p, |v| {
            v.as_i64().and_then(|n| i32::try_from(n).ok())
        })
    }

    pub(super) fn long(&mut self, name: &'static str, p: &mut Problems) -> Option<i64> {
        self.typed(name, "must be an integer", p, Value::as_i64)
    }

    pub(super) fn float(&mut self, name: &'static str, p: &mut Problems) -> Option<f32> {
        self.typed(name, "must be a number", p, |v| {
            v.as_f64().map(|n| n as f32).filter(|n| n.is_finite())
        })
    }

    /// Nanoseconds of a duration.
    pub(super) fn duration(&mut self, name: &'static str, p: &mut Problems) -> Option<i64> {
        self.typed(name, "must be a duration such as \"15s\" or \"1m30s\"", p, |v| {
            v.as_str().and_then(|text| parse_duration(text).ok())
        })
    }

    pub(super) fn list(&mut self, name: &'static str, p: &mut Problems) -> Vec<Cursor<'a>> {
        let c = self.at(name);
        if let Some(value) = c.value()
            && !value.is_array()
        {
            p.wrong_type(c.path(), value, "must be a list");
        }
        c.items().collect()
    }

    pub(super) fn texts(&mut self, name: &'static str, p: &mut Problems) -> Vec<String> {
        let mut texts = Vec::new();
        for item in self.list(name, p) {
            match (item.as_str(), item.value()) {
                (Some(text), _) => texts.push(text.to_string()),
                (None, value) => p.wrong_type(item.path(), value.unwrap_or(&Value::Null), "must be a string"),
            }
        }
        texts
    }
}
