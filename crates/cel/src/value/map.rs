//! Maps and objects: parts of objects as they are, and maps that expressions build.

use super::{JsonEntries, Text, Value, convert};
use crate::decl::{DeclType, Shape};
use crate::escape::{escape, unescape};
use crate::program::EvalError;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Clone, Debug)]
pub enum Map<'a> {
    /// In an object, with the declared type of the map or object.
    Json(&'a JsonEntries, Option<&'a DeclType>),
    Shared(Arc<Entries<'a>>),
}

/// Entries in their order, found by key.
#[derive(Clone, Debug, Default)]
pub struct Entries<'a> {
    entries: Vec<(Value<'a>, Value<'a>)>,
    index: BTreeMap<Key<'a>, usize>,
}

/// A value that can be found: numbers by their value, whatever their type.
#[derive(Clone, Debug)]
pub(crate) enum Key<'a> {
    Null,
    Bool(bool),
    Int(i128),
    Double(u64),
    String(Text<'a>),
    Bytes(Arc<[u8]>),
    /// The values of several keys.
    Many(Vec<Key<'a>>),
}

impl Key<'_> {
    fn rank(&self) -> u8 {
        match self {
            Key::Null => 0,
            Key::Bool(_) => 1,
            Key::Int(_) => 2,
            Key::Double(_) => 3,
            Key::String(_) => 4,
            Key::Bytes(_) => 5,
            Key::Many(_) => 6,
        }
    }
}

impl<'a> Key<'a> {
    /// None if the value cannot be a key.
    pub(crate) fn of(value: &Value<'a>) -> Option<Key<'a>> {
        Some(match value {
            Value::Null => Key::Null,
            Value::Bool(bool) => Key::Bool(*bool),
            Value::Int(int) => Key::Int(i128::from(*int)),
            Value::Uint(uint) => Key::Int(i128::from(*uint)),
            Value::Double(double) => {
                // Within these bounds whole doubles are integers, and conversion keeps them.
                let whole = double.trunc() == *double && double.abs() < 1e30;
                if whole {
                    Key::Int(*double as i128)
                } else {
                    Key::Double(double.to_bits())
                }
            }
            Value::String(text) => Key::String(text.clone()),
            Value::Bytes(bytes) => Key::Bytes(bytes.clone()),
            _ => return None,
        })
    }
}

impl Ord for Key<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Key::Bool(a), Key::Bool(b)) => a.cmp(b),
            (Key::Int(a), Key::Int(b)) => a.cmp(b),
            (Key::Double(a), Key::Double(b)) => a.cmp(b),
            (Key::String(a), Key::String(b)) => a.as_str().cmp(b.as_str()),
            (Key::Bytes(a), Key::Bytes(b)) => a.cmp(b),
            (Key::Many(a), Key::Many(b)) => a.cmp(b),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

impl PartialOrd for Key<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Key<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Key<'_> {}

impl<'a> Entries<'a> {
    pub(crate) fn get(&self, key: &Value<'a>) -> Option<&Value<'a>> {
        let at = *self.index.get(&Key::of(key)?)?;
        self.entries.get(at).map(|(_, value)| value)
    }

    /// Sets an entry; false if the key cannot be one.
    pub(crate) fn insert(&mut self, key: Value<'a>, value: Value<'a>) -> bool {
        let Some(found) = Key::of(&key) else {
            return false;
        };
        match self.index.get(&found) {
            Some(at) => self.entries[*at].1 = value,
            None => {
                self.index.insert(found, self.entries.len());
                self.entries.push((key, value));
            }
        }
        true
    }

    pub(crate) fn has(&self, key: &Value<'a>) -> bool {
        Key::of(key).is_some_and(|key| self.index.contains_key(&key))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(Value<'a>, Value<'a>)> {
        self.entries.iter()
    }
}

impl<'a> Map<'a> {
    pub fn len(&self) -> usize {
        match self {
            Map::Json(entries, _) => entries.len(),
            Map::Shared(entries) => entries.entries.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value of a key, or of a field by its escaped name.
    ///
    /// # Errors
    /// If it is not as its declared type says.
    pub fn get(&self, key: &str) -> Result<Option<Value<'a>>, EvalError> {
        match self {
            Map::Json(entries, None) => Ok(entries.get(key).map(Value::json)),
            Map::Json(entries, Some(decl)) => match decl.shape() {
                Shape::Object(object) => {
                    let Some(field) = object.field(key) else {
                        // What no field declares can be compared, but not seen.
                        let name = unescape(key);
                        let value = name.and_then(|name| entries.get(&*name)).filter(|_| object.is_open());
                        return Ok(value.map(Value::json));
                    };
                    match entries.get(&field.name) {
                        Some(value) if !value.is_null() => convert::declared(value, &field.decl).map(Some),
                        _ => Ok(None),
                    }
                }
                Shape::Map { values } => entries
                    .get(key)
                    .map(|value| convert::declared(value, values))
                    .transpose(),
                _ => Ok(entries.get(key).map(Value::json)),
            },
            Map::Shared(entries) => {
                let found = Value::String(Text::Shared(Arc::from(key)));
                Ok(entries.get(&found).cloned())
            }
        }
    }

    /// The value of any key.
    pub(crate) fn find(&self, key: &Value<'a>) -> Result<Option<Value<'a>>, EvalError> {
        match (self, key) {
            (Map::Shared(entries), _) => Ok(entries.get(key).cloned()),
            (Map::Json(..), Value::String(text)) => self.get(text),
            (Map::Json(_, Some(_)), _) => Err(EvalError::no_such_overload()),
            (Map::Json(_, None), _) => Ok(None),
        }
    }

    /// Keys; of objects the escaped names of fields that are there.
    pub(crate) fn keys(&self) -> Vec<Value<'a>> {
        match self {
            Map::Json(entries, decl) => {
                let object = super::object_type(*decl);
                let keys = entries.keys().filter_map(|key| match object {
                    None => Some(Value::String(Text::Borrowed(key))),
                    Some(object) => {
                        let escaped = escape(key)?;
                        object.field(&escaped)?;
                        Some(match escaped {
                            std::borrow::Cow::Borrowed(key) => Value::String(Text::Borrowed(key)),
                            std::borrow::Cow::Owned(key) => Value::string(key),
                        })
                    }
                });
                keys.collect()
            }
            Map::Shared(entries) => entries.iter().map(|(key, _)| key.clone()).collect(),
        }
    }

    /// Keys and values.
    pub(crate) fn pairs(&self) -> Result<Vec<(Value<'a>, Value<'a>)>, EvalError> {
        if let Map::Shared(entries) = self {
            return Ok(entries.entries.clone());
        }
        let keys = self.keys().into_iter();
        let pairs = keys.map(|key| {
            let value = self.find(&key)?.unwrap_or(Value::Null);
            Ok((key, value))
        });
        pairs.collect()
    }
}
