//! The functions of expressions, one module a library.
//!
//! A function is found by its name and looks at its arguments itself: what an overload does not take is
//! `no such overload`.

pub(crate) mod addresses;
pub(crate) mod arithmetic;
pub(crate) mod authorization;
pub(crate) mod conversions;
pub(crate) mod format;
pub(crate) mod lists;
pub(crate) mod optional;
pub(crate) mod quantities;
pub(crate) mod regex;
pub(crate) mod semver;
pub(crate) mod shown;
pub(crate) mod strings;
pub(crate) mod template;
pub(crate) mod time;
pub(crate) mod url;

pub(crate) use addresses::{cidr, ip};
pub(crate) use lists::insert;
pub(crate) use shown::shown;

use crate::program::EvalError;
use crate::types::Type;
use crate::value::Value;
use std::collections::HashMap;
use std::fmt;
use std::sync::LazyLock;

pub(crate) const IP: &str = "net.IP";
pub(crate) const CIDR: &str = "net.CIDR";
pub(crate) const URL: &str = "kubernetes.URL";
pub(crate) const QUANTITY: &str = "kubernetes.Quantity";
pub(crate) const SEMVER: &str = "kubernetes.Semver";
pub(crate) const FORMAT: &str = "kubernetes.NamedFormat";
pub(crate) const AUTHORIZER: &str = "kubernetes.authorization.Authorizer";
pub(crate) const PATH_CHECK: &str = "kubernetes.authorization.PathCheck";
pub(crate) const GROUP_CHECK: &str = "kubernetes.authorization.GroupCheck";
pub(crate) const RESOURCE_CHECK: &str = "kubernetes.authorization.ResourceCheck";
pub(crate) const DECISION: &str = "kubernetes.authorization.Decision";

/// What a function makes of its arguments.
pub(crate) type Outcome<'a> = Result<Value<'a>, EvalError>;

/// A function of a library.
pub(crate) type Body = for<'a> fn(&[Value<'a>]) -> Outcome<'a>;

/// A function and its name.
#[derive(Clone, Copy)]
pub(crate) struct Native {
    pub(crate) name: &'static str,
    pub(crate) call: Body,
}

impl fmt::Debug for Native {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Functions of one library.
type Table = &'static [(&'static str, Body)];

static NATIVES: LazyLock<HashMap<&'static str, Native>> = LazyLock::new(|| {
    let tables: [Table; 14] = [
        arithmetic::FUNCTIONS,
        conversions::FUNCTIONS,
        time::FUNCTIONS,
        strings::FUNCTIONS,
        template::FUNCTIONS,
        lists::FUNCTIONS,
        optional::FUNCTIONS,
        regex::FUNCTIONS,
        url::FUNCTIONS,
        quantities::FUNCTIONS,
        addresses::FUNCTIONS,
        format::FUNCTIONS,
        semver::FUNCTIONS,
        authorization::FUNCTIONS,
    ];
    let all = tables.into_iter().flatten();
    all.map(|(name, call)| (*name, Native { name, call: *call })).collect()
});

/// The function of this name.
pub(crate) fn native(name: &str) -> Option<Native> {
    NATIVES.get(name).copied()
}

/// The type that an identifier names.
pub(crate) fn type_named(name: &str) -> Option<Type> {
    Some(match name {
        "bool" => Type::Bool,
        "bytes" => Type::Bytes,
        "double" => Type::Double,
        "dyn" => Type::Dyn,
        "int" => Type::Int,
        "list" => Type::list(Type::Dyn),
        "map" => Type::map(Type::Dyn, Type::Dyn),
        "null_type" => Type::Null,
        "string" => Type::String,
        "type" => Type::Type(None),
        "uint" => Type::Uint,
        "optional_type" => Type::optional(Type::Dyn),
        "google.protobuf.Timestamp" => Type::Timestamp,
        "google.protobuf.Duration" => Type::Duration,
        "net.IP" => Type::Opaque(IP),
        "net.CIDR" => Type::Opaque(CIDR),
        _ => return None,
    })
}

/// A type of a library that upstream declares as an object, without fields.
pub(crate) fn is_object(name: &str) -> bool {
    name.starts_with("kubernetes.")
}

fn no_overload<'a>() -> Outcome<'a> {
    Err(EvalError::no_such_overload())
}
