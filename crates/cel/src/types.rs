//! CEL's types, as the checker reasons about them and as messages write them.
//!
//! Upstream: cel-go/common/types/types.go, cel-go/checker/format.go.

use crate::decl::ObjectType;
use std::fmt;
use std::sync::Arc;

/// A type of CEL. `Display` is how error messages write it.
#[derive(Clone, Debug)]
pub enum Type {
    /// The type of what did not check; agrees with everything, so that one mistake gives one message.
    Error,
    /// Checked when evaluated only.
    Dyn,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    String,
    Bytes,
    Timestamp,
    Duration,
    List(Arc<Type>),
    Map(Arc<(Type, Type)>),
    Optional(Arc<Type>),
    /// The type of a type; without parameter, of any.
    Type(Option<Arc<Type>>),
    /// A type of a library: Quantity, URL, Authorizer …, by its name.
    Opaque(&'static str),
    /// An object with declared fields. Two are the same if they have the same name.
    Object(Arc<ObjectType>),
    /// A type parameter of an overload (`A`), or a type variable of the checker (`_var3`).
    Param(Param),
}

/// Which type parameter or variable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Param {
    /// A parameter in a declaration.
    Declared(char),
    /// A variable of one check.
    Variable(u32),
}

impl Type {
    /// `list(item)`
    pub fn list(item: Type) -> Type {
        Type::List(Arc::new(item))
    }

    /// `map(key, value)`
    pub fn map(key: Type, value: Type) -> Type {
        Type::Map(Arc::new((key, value)))
    }

    /// `optional_type(inner)`
    pub fn optional(inner: Type) -> Type {
        Type::Optional(Arc::new(inner))
    }

    /// The type of the type `inner`.
    pub fn type_of(inner: Type) -> Type {
        Type::Type(Some(Arc::new(inner)))
    }

    /// The name without parameters: `list` of a list of strings.
    pub fn name(&self) -> &str {
        match self {
            Type::Error => "!error!",
            Type::Dyn => "dyn",
            Type::Null => "null_type",
            Type::Bool => "bool",
            Type::Int => "int",
            Type::Uint => "uint",
            Type::Double => "double",
            Type::String => "string",
            Type::Bytes => "bytes",
            Type::Timestamp => "google.protobuf.Timestamp",
            Type::Duration => "google.protobuf.Duration",
            Type::List(_) => "list",
            Type::Map(_) => "map",
            Type::Optional(_) => "optional_type",
            Type::Type(_) => "type",
            Type::Opaque(name) => name,
            Type::Object(object) => object.name(),
            Type::Param(_) => "param",
        }
    }

    /// The name with its parameters as declarations write it: `map(string, google.protobuf.Timestamp)`.
    pub fn declared(&self) -> String {
        match self {
            Type::List(inner) | Type::Optional(inner) | Type::Type(Some(inner)) => {
                format!("{}({})", self.name(), inner.declared())
            }
            Type::Map(entry) => format!("map({}, {})", entry.0.declared(), entry.1.declared()),
            _ => self.name().to_string(),
        }
    }

    /// The same type, parameters included.
    pub fn is_exactly(&self, other: &Type) -> bool {
        match (self, other) {
            (Type::List(a), Type::List(b)) | (Type::Optional(a), Type::Optional(b)) => a.is_exactly(b),
            (Type::Map(a), Type::Map(b)) => a.0.is_exactly(&b.0) && a.1.is_exactly(&b.1),
            (Type::Type(Some(a)), Type::Type(Some(b))) => a.is_exactly(b),
            (Type::Type(a), Type::Type(b)) => a.is_none() && b.is_none(),
            (Type::Opaque(a), Type::Opaque(b)) => a == b,
            (Type::Object(a), Type::Object(b)) => a.name() == b.name(),
            (Type::Param(a), Type::Param(b)) => a == b,
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }

    /// Whether values of this type are taken where `wanted` is: the same type, or one of both is dynamic.
    pub fn fits(&self, wanted: &Type) -> bool {
        match (self, wanted) {
            (Type::Dyn | Type::Error, _) | (_, Type::Dyn | Type::Error) => true,
            (Type::List(a), Type::List(b)) | (Type::Optional(a), Type::Optional(b)) => a.fits(b),
            (Type::Map(a), Type::Map(b)) => a.0.fits(&b.0) && a.1.fits(&b.1),
            (Type::Type(_), Type::Type(_)) => true,
            (Type::Param(_), _) | (_, Type::Param(_)) => true,
            _ => self.is_exactly(wanted),
        }
    }

    pub(crate) fn is_dyn(&self) -> bool {
        matches!(self, Type::Dyn)
    }

    pub(crate) fn is_dyn_or_error(&self) -> bool {
        matches!(self, Type::Dyn | Type::Error)
    }

    /// Of a fixed size: what the cost of comparing it does not depend on.
    pub(crate) fn is_scalar(&self) -> bool {
        match self {
            Type::Bool | Type::Double | Type::Duration | Type::Int | Type::Timestamp | Type::Uint => true,
            Type::Optional(inner) => inner.is_scalar(),
            _ => false,
        }
    }
}

impl PartialEq for Type {
    fn eq(&self, other: &Type) -> bool {
        self.is_exactly(other)
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Null => f.write_str("null"),
            Type::Timestamp => f.write_str("timestamp"),
            Type::Duration => f.write_str("duration"),
            Type::List(item) => write!(f, "list({item})"),
            Type::Map(entry) => write!(f, "map({}, {})", entry.0, entry.1),
            Type::Optional(inner) => write!(f, "optional_type({inner})"),
            Type::Type(Some(inner)) => write!(f, "type({inner})"),
            Type::Param(Param::Declared(name)) => write!(f, "{name}"),
            Type::Param(Param::Variable(number)) => write!(f, "_var{number}"),
            _ => f.write_str(self.name()),
        }
    }
}
