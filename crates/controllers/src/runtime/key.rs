//! Which object to look at.

use std::fmt;

use crate::objects::{Kind, Meta};

/// Namespace and name; the namespace is empty for objects that live in none.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub namespace: String,
    pub name: String,
}

impl Key {
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Key {
        Key {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    pub fn from_object<T: Kind>(object: &T) -> Key {
        Key::from_meta(object.meta())
    }

    pub fn from_meta(meta: &Meta) -> Key {
        Key::new(&*meta.namespace, &*meta.name)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace.as_str() {
            "" => f.write_str(&self.name),
            namespace => write!(f, "{namespace}/{}", self.name),
        }
    }
}
