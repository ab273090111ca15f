//! What functions there are: their overloads with the types of arguments and results.
//!
//! `functions/declarations.txt` has them as data: a name, and under it, indented, `OVERLOAD: ARGUMENTS -> RESULT`. A dot
//! before the first argument says that it is the receiver (`text.trim()`); capital letters are type parameters.
//!
//! Upstream: cel-go/common/stdlib, cel-go/ext, cel-go/cel/library.go, apiserver/pkg/cel/library.

use crate::library;
use crate::types::{Param, Type};
use std::collections::HashMap;
use std::sync::LazyLock;

pub(crate) struct Function {
    pub(crate) name: &'static str,
    pub(crate) overloads: Vec<Overload>,
}

pub(crate) struct Overload {
    pub(crate) id: &'static str,
    pub(crate) member: bool,
    pub(crate) args: Vec<Type>,
    pub(crate) result: Type,
}

static FUNCTIONS: LazyLock<HashMap<&'static str, Function>> = LazyLock::new(|| {
    let mut functions: Vec<Function> = Vec::new();
    for line in include_str!("functions/declarations.txt").lines() {
        match line.strip_prefix("    ") {
            None => functions.push(Function {
                name: line,
                overloads: Vec::new(),
            }),
            Some(overload) => {
                let function = functions.last_mut().expect("overloads are under a name");
                function.overloads.push(parse(overload));
            }
        }
    }
    functions
        .into_iter()
        .map(|function| (function.name, function))
        .collect()
});

/// The function of this name.
pub(crate) fn find(name: &str) -> Option<&'static Function> {
    FUNCTIONS.get(name)
}

/// Functions that exist only where mutations are made.
pub(crate) fn is_for_mutations(name: &str) -> bool {
    name == "jsonpatch.escapeKey"
}

fn parse(line: &'static str) -> Overload {
    let (id, signature) = line.split_once(": ").expect("an overload has a name and a signature");
    let (args, result) = signature.split_once("-> ").expect("a signature has a result");
    let (member, args) = match args.strip_prefix('.') {
        Some(args) => (true, args),
        None => (false, args),
    };
    Overload {
        id,
        member,
        args: split(args.trim()).into_iter().map(parse_type).collect(),
        result: parse_type(result),
    }
}

/// Splits at commas that are not inside of parentheses.
fn split(list: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in list.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(list[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    if !list[start..].trim().is_empty() {
        parts.push(list[start..].trim());
    }
    parts
}

fn parse_type(text: &str) -> Type {
    if let Some((name, params)) = text.strip_suffix(')').and_then(|text| text.split_once('(')) {
        let mut params = split(params).into_iter().map(parse_type);
        let mut next = || params.next().expect("a type has its parameters");
        return match name {
            "list" => Type::list(next()),
            "optional" => Type::optional(next()),
            "type" => Type::type_of(next()),
            _ => Type::map(next(), next()),
        };
    }
    match text {
        "bool" => Type::Bool,
        "int" => Type::Int,
        "uint" => Type::Uint,
        "double" => Type::Double,
        "string" => Type::String,
        "bytes" => Type::Bytes,
        "timestamp" => Type::Timestamp,
        "duration" => Type::Duration,
        "dyn" => Type::Dyn,
        "ip" => Type::Opaque(library::IP),
        "cidr" => Type::Opaque(library::CIDR),
        "url" => Type::Opaque(library::URL),
        "quantity" => Type::Opaque(library::QUANTITY),
        "semver" => Type::Opaque(library::SEMVER),
        "format" => Type::Opaque(library::FORMAT),
        "authorizer" => Type::Opaque(library::AUTHORIZER),
        "path_check" => Type::Opaque(library::PATH_CHECK),
        "group_check" => Type::Opaque(library::GROUP_CHECK),
        "resource_check" => Type::Opaque(library::RESOURCE_CHECK),
        "decision" => Type::Opaque(library::DECISION),
        _ => {
            let mut letters = text.chars();
            let letter = letters
                .next()
                .filter(|c| c.is_ascii_uppercase() && letters.next().is_none());
            Type::Param(Param::Declared(letter.expect("what is no type is a type parameter")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each function can be called, and no overload is there twice.
    #[test]
    fn declarations_are_complete() {
        let mut ids: Vec<&str> = FUNCTIONS
            .values()
            .flat_map(|f| f.overloads.iter().map(|o| o.id))
            .collect();
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count);
        for function in FUNCTIONS.values() {
            assert!(!function.overloads.is_empty(), "{}", function.name);
            assert!(
                crate::plan::is_special(function.name) || library::native(function.name).is_some(),
                "{} has no implementation",
                function.name
            );
        }
    }
}
