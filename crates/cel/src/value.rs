//! Values of expressions. What comes from an object borrows from its JSON; only what an expression builds is its own.
//!
//! Upstream: cel-go/common/types, apiserver/pkg/cel/common/valuesunstructured.go.

use crate::authorizer::{Authorizer, ResourceAttributes, Selector, Subject, Verdict};
use crate::decl::{DeclType, ObjectType, Shape};
use crate::library::{self, cidr::Cidr, format::NamedFormat, semver::Version, time::Time, url::Url};
use crate::program::EvalError;
use crate::types::Type;
use orlop_api::quantity::Quantity;
use serde_json::{Map as JsonMap, Value as Json};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

mod compare;
mod convert;
mod list;
mod map;

pub(crate) use compare::order;
pub use convert::JsonError;
pub use list::List;
pub(crate) use list::MAX_LENGTH;
pub(crate) use map::Entries;
pub(crate) use map::Key;
pub use map::Map;

/// A value.
#[derive(Clone, Debug)]
pub enum Value<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(Text<'a>),
    Bytes(Arc<[u8]>),
    Timestamp(Time),
    /// In nanoseconds.
    Duration(i64),
    List(List<'a>),
    Map(Map<'a>),
    Optional(Option<Arc<Value<'a>>>),
    Type(Type),
    /// What an expression constructed: `Object.spec{…}`.
    Object(Arc<Object<'a>>),
    Quantity(Arc<Quantity>),
    Url(Arc<Url>),
    Ip(IpAddr),
    Cidr(Cidr),
    Semver(Arc<Version>),
    Format(&'static NamedFormat),
    Authorizer(Check<'a>),
    /// The object of `variables.NAME` expressions; it has no value of its own.
    #[doc(hidden)]
    Variables,
}

/// A string: a part of an object or of an expression, or one that was built.
#[derive(Clone, Debug)]
pub enum Text<'a> {
    Borrowed(&'a str),
    Shared(Arc<str>),
}

/// An object that an expression constructed.
#[derive(Clone, Debug)]
pub struct Object<'a> {
    pub(crate) ty: Arc<ObjectType>,
    pub(crate) fields: BTreeMap<String, Value<'a>>,
}

/// A step on the way from `authorizer` to an answer.
#[derive(Clone, Debug)]
pub struct Check<'a>(pub(crate) Step<'a>);

#[derive(Clone, Debug)]
pub(crate) enum Step<'a> {
    Authorizer(Subject<'a>),
    Path(Subject<'a>, Text<'a>),
    Group(Subject<'a>, Text<'a>),
    Resource(Subject<'a>, Arc<ResourceAttributes>),
    Decision(Arc<Verdict>),
}

impl Text<'_> {
    pub fn as_str(&self) -> &str {
        match self {
            Text::Borrowed(text) => text,
            Text::Shared(text) => text,
        }
    }
}

impl std::ops::Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl<'a> Value<'a> {
    /// A value without declared type, as policies see objects.
    pub fn json(json: &'a Json) -> Value<'a> {
        match json {
            Json::Null => Value::Null,
            Json::Bool(bool) => Value::Bool(*bool),
            Json::Number(number) => match number.as_i64() {
                Some(int) => Value::Int(int),
                None => Value::Double(number.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(text) => Value::String(Text::Borrowed(text)),
            Json::Array(items) => Value::List(List::Json(items, None)),
            Json::Object(entries) => Value::Map(Map::Json(entries, None)),
        }
    }

    /// A value of a declared type.
    ///
    /// # Errors
    /// If the JSON is not as the type says.
    pub fn declared(json: &'a Json, decl: &'a DeclType) -> Result<Value<'a>, EvalError> {
        convert::declared(json, decl)
    }

    pub fn string(text: impl Into<Arc<str>>) -> Value<'a> {
        Value::String(Text::Shared(text.into()))
    }

    /// An optional value, such as `oldSelf` of rules with optionalOldSelf.
    pub fn optional(value: Option<Value<'a>>) -> Value<'a> {
        Value::Optional(value.map(Arc::new))
    }

    /// A list of values.
    pub fn list(items: Vec<Value<'a>>) -> Value<'a> {
        Value::List(List::Shared(Arc::new(items)))
    }

    /// A map from strings.
    pub fn map(entries: impl IntoIterator<Item = (String, Value<'a>)>) -> Value<'a> {
        let mut map = Entries::default();
        for (key, value) in entries {
            map.insert(Value::string(key), value);
        }
        Value::Map(Map::Shared(Arc::new(map)))
    }

    /// The `authorizer` of an expression. The variable's type is [`Type::authorizer`].
    pub fn authorizer(authorizer: &'a dyn Authorizer) -> Value<'a> {
        Value::Authorizer(Check(Step::Authorizer(Subject {
            authorizer,
            service_account: None,
        })))
    }

    /// The `authorizer.requestResource` of an expression. The variable's type is [`Type::resource_check`].
    pub fn request_resource(authorizer: &'a dyn Authorizer, resource: impl Into<Arc<ResourceAttributes>>) -> Value<'a> {
        let subject = Subject {
            authorizer,
            service_account: None,
        };
        Value::Authorizer(Check(Step::Resource(subject, resource.into())))
    }

    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Value::Bool(bool) => Some(*bool),
            _ => None,
        }
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    pub fn is_null(&self) -> bool {
        matches!(self, Value::Null)
    }

    /// The type that `type()` gives and messages name.
    pub fn type_of(&self) -> Type {
        match self {
            Value::Null => Type::Null,
            Value::Bool(_) => Type::Bool,
            Value::Int(_) => Type::Int,
            Value::Uint(_) => Type::Uint,
            Value::Double(_) => Type::Double,
            Value::String(_) => Type::String,
            Value::Bytes(_) => Type::Bytes,
            Value::Timestamp(_) => Type::Timestamp,
            Value::Duration(_) => Type::Duration,
            Value::List(_) => Type::list(Type::Dyn),
            Value::Map(_) | Value::Variables => Type::map(Type::Dyn, Type::Dyn),
            Value::Optional(_) => Type::optional(Type::Dyn),
            Value::Type(_) => Type::Type(None),
            Value::Object(object) => Type::Object(object.ty.clone()),
            Value::Quantity(_) => Type::Opaque(library::QUANTITY),
            Value::Url(_) => Type::Opaque(library::URL),
            Value::Ip(_) => Type::Opaque(library::IP),
            Value::Cidr(_) => Type::Opaque(library::CIDR),
            Value::Semver(_) => Type::Opaque(library::SEMVER),
            Value::Format(_) => Type::Opaque(library::FORMAT),
            Value::Authorizer(check) => Type::Opaque(match &check.0 {
                Step::Authorizer(_) => library::AUTHORIZER,
                Step::Path(..) => library::PATH_CHECK,
                Step::Group(..) => library::GROUP_CHECK,
                Step::Resource(..) => library::RESOURCE_CHECK,
                Step::Decision(_) => library::DECISION,
            }),
        }
    }

    /// The value as JSON: what a mutation writes, what a claim mapping gives.
    ///
    /// # Errors
    /// If it or a part of it has no form in JSON.
    pub fn to_json(&self) -> Result<Json, JsonError> {
        convert::to_json(self)
    }

    /// Equal as CEL compares: numbers by value, lists and maps by their declared types.
    pub fn equals(&self, other: &Value<'_>) -> bool {
        compare::equal(self, other)
    }

    /// What costs of calls depend on: characters, bytes, items, entries; else 1.
    pub(crate) fn cost_size(&self) -> u64 {
        match self {
            Value::String(text) => text.chars().count() as u64,
            Value::Bytes(bytes) => bytes.len() as u64,
            Value::List(list) => list.len() as u64,
            Value::Map(map) => map.len() as u64,
            Value::Cidr(_) | Value::Ip(_) => self.address_size(),
            Value::Optional(Some(inner)) => inner.cost_size(),
            _ => 1,
        }
    }

    /// The `size()` that upstream gives addresses: that of their bytes.
    fn address_size(&self) -> u64 {
        match self {
            Value::Ip(ip) => library::ip::size(ip),
            Value::Cidr(cidr) => cidr.size(),
            _ => 1,
        }
    }

    /// Empty, zero, false or null: what `optional.ofNonZeroValue` takes for none.
    pub(crate) fn is_zero(&self) -> bool {
        match self {
            Value::Null => true,
            Value::Bool(bool) => !bool,
            Value::Int(int) => *int == 0,
            Value::Uint(uint) => *uint == 0,
            Value::Double(double) => *double == 0.0,
            Value::String(text) => text.is_empty(),
            Value::Bytes(bytes) => bytes.is_empty(),
            Value::Duration(nanos) => *nanos == 0,
            Value::Timestamp(time) => time.is_zero(),
            Value::List(list) => list.is_empty(),
            Value::Map(map) => map.is_empty(),
            Value::Object(object) => object.fields.is_empty(),
            Value::Optional(inner) => inner.is_none(),
            _ => false,
        }
    }
}

impl Type {
    /// The type of the variable `authorizer`.
    pub fn authorizer() -> Type {
        Type::Opaque(library::AUTHORIZER)
    }

    /// The type of the variable `authorizer.requestResource`.
    pub fn resource_check() -> Type {
        Type::Opaque(library::RESOURCE_CHECK)
    }
}

/// What an object with declared fields is read as.
pub(crate) fn object_type(decl: Option<&DeclType>) -> Option<&Arc<ObjectType>> {
    match decl.map(DeclType::shape) {
        Some(Shape::Object(object)) => Some(object),
        _ => None,
    }
}

/// The JSON of an object, for those that look at it as a whole.
pub(crate) type JsonEntries = JsonMap<String, Json>;

/// A selector in a resource check.
pub(crate) fn selector(text: &str) -> Option<Selector> {
    (!text.is_empty()).then(|| Selector(text.to_string()))
}
