//! Lists: parts of objects as they are, and lists that expressions build.

use super::{Value, compare, convert};
use crate::decl::{DeclType, ListType, Shape};
use crate::program::EvalError;
use serde_json::Value as Json;
use std::sync::Arc;

/// Longer lists are not built: no expression could look at all of their elements within its cost limit.
pub(crate) const MAX_LENGTH: usize = 1 << 20;

#[derive(Clone, Debug)]
pub enum List<'a> {
    /// In an object, with the declared type of the list.
    Json(&'a [Json], Option<&'a DeclType>),
    Shared(Arc<Vec<Value<'a>>>),
    /// A sum of lists that are sets or maps by declaration.
    Declared(Arc<Vec<Value<'a>>>, &'a DeclType),
}

impl<'a> List<'a> {
    pub fn len(&self) -> usize {
        match self {
            List::Json(items, _) => items.len(),
            List::Shared(items) | List::Declared(items, _) => items.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The element at a position.
    ///
    /// # Errors
    /// If it is not as its declared type says.
    pub fn get(&self, at: usize) -> Option<Result<Value<'a>, EvalError>> {
        match self {
            List::Json(items, decl) => {
                let item = items.get(at)?;
                Some(match decl.map(DeclType::shape) {
                    Some(Shape::List { items, .. }) => convert::declared(item, items),
                    _ => Ok(Value::json(item)),
                })
            }
            List::Shared(items) | List::Declared(items, _) => items.get(at).cloned().map(Ok),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = Result<Value<'a>, EvalError>> + '_ {
        (0..self.len()).filter_map(|at| self.get(at))
    }

    /// All elements.
    pub(crate) fn values(&self) -> Result<Vec<Value<'a>>, EvalError> {
        self.iter().collect()
    }

    /// The declared type, if it says that the list is a set or a map.
    pub(crate) fn unordered(&self) -> Option<(&'a DeclType, &'a ListType)> {
        let decl = match self {
            List::Json(_, decl) => (*decl)?,
            List::Declared(_, decl) => decl,
            List::Shared(_) => return None,
        };
        match decl.shape() {
            Shape::List { list_type, .. } if *list_type != ListType::Atomic => Some((decl, list_type)),
            _ => None,
        }
    }

    pub(crate) fn contains(&self, value: &Value<'_>) -> Result<bool, EvalError> {
        for item in self.iter() {
            if compare::equal(&item?, value) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// `self + other`, as the declared type of the left says.
    pub(crate) fn add(&self, other: &List<'a>) -> Result<List<'a>, EvalError> {
        if self.len() + other.len() > MAX_LENGTH {
            return Err(EvalError::cost_limit());
        }
        let mut items = self.values()?;
        let Some((decl, list_type)) = self.unordered() else {
            items.extend(other.values()?);
            return Ok(List::Shared(Arc::new(items)));
        };
        let mut places = std::collections::BTreeMap::new();
        for (at, item) in items.iter().enumerate() {
            places.insert(compare::member_key(item, list_type), at);
        }
        for item in other.iter() {
            let item = item?;
            let key = compare::member_key(&item, list_type);
            match places.get(&key) {
                Some(at) if matches!(list_type, ListType::Map(_)) => items[*at] = item,
                Some(_) => {}
                None => {
                    places.insert(key, items.len());
                    items.push(item);
                }
            }
        }
        Ok(List::Declared(Arc::new(items), decl))
    }
}
