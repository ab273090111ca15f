//! The syntax tree of an expression, and what the checker found out about it.
//!
//! Upstream: cel-go/common/ast.

use crate::types::Type;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A node. Types, overloads and places are found by it.
pub(crate) type Id = u32;

/// The variable that macros gather results in. No identifier of a user can be it.
pub(crate) const ACCUMULATOR: &str = "@result";
/// The old name of it, which iteration variables must still not have.
pub(crate) const OLD_ACCUMULATOR: &str = "__result__";

/// Names of operators, as functions.
pub(crate) mod operators {
    pub(crate) const CONDITIONAL: &str = "_?_:_";
    pub(crate) const AND: &str = "_&&_";
    pub(crate) const OR: &str = "_||_";
    pub(crate) const NOT: &str = "!_";
    pub(crate) const EQUALS: &str = "_==_";
    pub(crate) const NOT_EQUALS: &str = "_!=_";
    pub(crate) const LESS: &str = "_<_";
    pub(crate) const LESS_EQUALS: &str = "_<=_";
    pub(crate) const GREATER: &str = "_>_";
    pub(crate) const GREATER_EQUALS: &str = "_>=_";
    pub(crate) const ADD: &str = "_+_";
    pub(crate) const SUBTRACT: &str = "_-_";
    pub(crate) const MULTIPLY: &str = "_*_";
    pub(crate) const DIVIDE: &str = "_/_";
    pub(crate) const MODULO: &str = "_%_";
    pub(crate) const NEGATE: &str = "-_";
    pub(crate) const INDEX: &str = "_[_]";
    pub(crate) const OPT_INDEX: &str = "_[?_]";
    pub(crate) const OPT_SELECT: &str = "_?._";
    pub(crate) const IN: &str = "@in";
    pub(crate) const NOT_STRICTLY_FALSE: &str = "@not_strictly_false";
    pub(crate) const MAP_INSERT: &str = "cel.@mapInsert";
}

#[derive(Clone, Debug)]
pub(crate) struct Expr {
    pub(crate) id: Id,
    pub(crate) kind: Kind,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Literal(Literal),
    Ident(String),
    Select {
        operand: Box<Expr>,
        field: String,
        /// `has(operand.field)`
        test_only: bool,
    },
    Call {
        function: String,
        target: Option<Box<Expr>>,
        args: Vec<Expr>,
    },
    List(Vec<Element>),
    Map(Vec<Entry>),
    Struct {
        name: String,
        fields: Vec<FieldInit>,
    },
    Comprehension(Box<Comprehension>),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Literal {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(Arc<str>),
    Bytes(Arc<[u8]>),
}

#[derive(Clone, Debug)]
pub(crate) struct Element {
    pub(crate) value: Expr,
    pub(crate) optional: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: Expr,
    pub(crate) value: Expr,
    pub(crate) optional: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct FieldInit {
    pub(crate) id: Id,
    pub(crate) name: String,
    pub(crate) value: Expr,
    pub(crate) optional: bool,
}

/// A loop over a list or map, with one variable (element or key) or two (index and element, key and value).
#[derive(Clone, Debug)]
pub(crate) struct Comprehension {
    pub(crate) iter_var: String,
    pub(crate) iter_var2: Option<String>,
    pub(crate) range: Expr,
    pub(crate) accu_var: String,
    pub(crate) init: Expr,
    pub(crate) condition: Expr,
    pub(crate) step: Expr,
    pub(crate) result: Expr,
}

impl Comprehension {
    /// `cel.bind` and the like: no turn is made, the result is computed with the initial value as variable.
    pub(crate) fn is_bind(&self) -> bool {
        let no_range = matches!(&self.range.kind, Kind::List(elements) if elements.is_empty());
        let never = matches!(self.condition.kind, Kind::Literal(Literal::Bool(false)));
        no_range && never && self.accu_var != OLD_ACCUMULATOR
    }
}

impl Expr {
    /// `a.b.c` of identifiers and selections.
    pub(crate) fn qualified_name(&self) -> Option<String> {
        match &self.kind {
            Kind::Ident(name) => Some(name.clone()),
            Kind::Select {
                operand,
                field,
                test_only: false,
            } => {
                let mut name = operand.qualified_name()?;
                name.push('.');
                name.push_str(field);
                Some(name)
            }
            _ => None,
        }
    }

    /// Calls `visit` with what is directly inside.
    pub(crate) fn children<'e>(&'e self, visit: &mut dyn FnMut(&'e Expr)) {
        match &self.kind {
            Kind::Literal(_) | Kind::Ident(_) => {}
            Kind::Select { operand, .. } => visit(operand),
            Kind::Call { target, args, .. } => target.iter().map(|target| &**target).chain(args).for_each(visit),
            Kind::List(elements) => elements.iter().for_each(|element| visit(&element.value)),
            Kind::Map(entries) => entries.iter().for_each(|entry| {
                visit(&entry.key);
                visit(&entry.value);
            }),
            Kind::Struct { fields, .. } => fields.iter().for_each(|field| visit(&field.value)),
            Kind::Comprehension(fold) => {
                for part in [&fold.range, &fold.init, &fold.condition, &fold.step, &fold.result] {
                    visit(part);
                }
            }
        }
    }
}

/// An expression and where its nodes are in the source.
#[derive(Clone, Debug)]
pub(crate) struct Ast {
    pub(crate) expr: Expr,
    /// Code points before each node's place, by id.
    pub(crate) offsets: Vec<u32>,
}

/// An expression whose names and types are known.
#[derive(Clone, Debug)]
pub(crate) struct CheckedAst {
    pub(crate) expr: Expr,
    pub(crate) offsets: Vec<u32>,
    /// By id.
    pub(crate) types: Vec<Type>,
    /// By id: the overloads that a call may be.
    pub(crate) overloads: Vec<Vec<&'static str>>,
    /// Selections that are one variable's or type's name together, such as `authorizer.requestResource`, by id.
    pub(crate) names: Vec<Option<Name>>,
    /// The variables that are used.
    pub(crate) used: BTreeSet<String>,
}

/// What an identifier means.
#[derive(Clone, Debug)]
pub(crate) enum Name {
    Variable(String),
    /// A variable of a macro or a bind.
    Local(String),
    Type(Type),
}

impl CheckedAst {
    pub(crate) fn output_type(&self) -> &Type {
        self.ty(self.expr.id)
    }

    pub(crate) fn ty(&self, id: Id) -> &Type {
        self.types.get(id as usize).unwrap_or(&Type::Dyn)
    }

    pub(crate) fn overloads(&self, id: Id) -> &[&'static str] {
        self.overloads.get(id as usize).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn name(&self, id: Id) -> Option<&Name> {
        self.names.get(id as usize)?.as_ref()
    }

    pub(crate) fn uses(&self, variable: &str) -> bool {
        self.used.contains(variable)
    }
}
