//! A checked expression as the tree that is evaluated: names are places, functions are pointers, constants are values,
//! and each call knows how its cost is computed.
//!
//! What is constant is computed here, as upstream's optimizer does, since that shows in costs.
//!
//! Upstream: cel-go/interpreter/planner.go, decorators.go, attributes.go.

use crate::ast::{CheckedAst, Comprehension, Element, Entry, Expr, FieldInit, Kind, Literal, Name, operators};
use crate::decl::ObjectType;
use crate::eval::cost::Rule;
use crate::library::{self, Native};
use crate::program::EvalError;
use crate::types::Type;
use crate::value::{Entries, Key, List, Map, Text, Value};
use regex::Regex;
use std::collections::BTreeSet;
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) root: Node,
    /// How many places for variables of loops there are.
    pub(crate) slots: usize,
    /// How deep nodes are inside of nodes.
    pub(crate) nesting: usize,
}

#[derive(Clone, Debug)]
pub(crate) enum Node {
    Const(Value<'static>),
    Attribute(Attribute),
    And(Arc<[Node; 2]>),
    Or(Arc<[Node; 2]>),
    Equal(Arc<[Node; 2]>, bool),
    Call(Arc<Call>),
    /// `list.matches('…')`, `find`, `findAll` with a constant pattern.
    Pattern(Arc<Pattern>),
    /// `in` with a constant list of simple values, which costs nothing.
    Among(Arc<(Node, BTreeSet<Key<'static>>)>),
    /// `or` or `orValue` of optionals.
    OptionalOr(Arc<[Node; 2]>, bool),
    List(Arc<[(Node, bool)]>),
    Map(Arc<[(Node, Node, bool)]>),
    Object(Arc<Construct>),
    Fold(Arc<Fold>),
}

/// A variable or a value, and selections from it.
#[derive(Clone, Debug)]
pub(crate) struct Attribute {
    pub(crate) root: Root,
    pub(crate) qualifiers: Vec<Arc<Qualifier>>,
    /// The last selection is a presence test.
    pub(crate) test_only: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Root {
    Variable(Arc<str>),
    Slot(usize),
    Value(Arc<Node>),
    /// `c ? a : b`; selections are on both.
    Conditional(Arc<(Node, Attribute, Attribute)>),
}

#[derive(Debug)]
pub(crate) struct Qualifier {
    pub(crate) key: QualifierKey,
    pub(crate) optional: bool,
    pub(crate) test_only: bool,
}

#[derive(Debug)]
pub(crate) enum QualifierKey {
    Const(Value<'static>),
    Computed(Attribute),
}

#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) function: &'static str,
    pub(crate) native: Native,
    pub(crate) args: Vec<Node>,
    pub(crate) cost: Rule,
    /// A call that takes errors for values.
    pub(crate) not_strictly_false: bool,
}

#[derive(Debug)]
pub(crate) struct Pattern {
    pub(crate) function: &'static str,
    pub(crate) regex: Regex,
    pub(crate) args: Vec<Node>,
    pub(crate) cost: Rule,
}

#[derive(Debug)]
pub(crate) struct Construct {
    pub(crate) ty: Arc<ObjectType>,
    pub(crate) fields: Vec<(String, Node, bool)>,
}

#[derive(Debug)]
pub(crate) struct Fold {
    pub(crate) range: Node,
    pub(crate) accumulator: usize,
    pub(crate) first: usize,
    pub(crate) second: Option<usize>,
    pub(crate) init: Node,
    pub(crate) condition: Node,
    pub(crate) step: Node,
    pub(crate) result: Node,
}

/// Functions that are planned here, not called.
#[cfg(test)]
pub(crate) fn is_special(function: &str) -> bool {
    use operators as op;
    [
        op::CONDITIONAL,
        op::AND,
        op::OR,
        op::EQUALS,
        op::NOT_EQUALS,
        op::INDEX,
        op::OPT_INDEX,
        op::OPT_SELECT,
        "or",
        "orValue",
    ]
    .contains(&function)
}

/// Conversions that are computed when their argument is constant.
const CONVERSIONS: [&str; 10] = [
    "bool",
    "bytes",
    "double",
    "duration",
    "dyn",
    "int",
    "string",
    "timestamp",
    "type",
    "uint",
];

/// The plan of an expression. Constants that cannot be converted or compiled are an error here already.
pub(crate) fn plan(ast: &CheckedAst, optimized: bool) -> Result<Plan, EvalError> {
    let mut planner = Planner {
        ast,
        optimized,
        scopes: Vec::new(),
        slots: 0,
        depth: 0,
        nesting: 0,
    };
    let root = planner.node(&ast.expr)?;
    Ok(Plan {
        root,
        slots: planner.slots,
        nesting: planner.nesting,
    })
}

struct Planner<'p> {
    ast: &'p CheckedAst,
    optimized: bool,
    /// Variables of loops and their places, the innermost last.
    scopes: Vec<(&'p str, usize)>,
    slots: usize,
    depth: usize,
    nesting: usize,
}

type Planned = Result<Node, EvalError>;

fn constant(node: &Node) -> Option<&Value<'static>> {
    match node {
        Node::Const(value) => Some(value),
        _ => None,
    }
}

/// The node as something to select from.
fn attribute(node: Node) -> Attribute {
    match node {
        Node::Attribute(attribute) => attribute,
        node => Attribute {
            root: Root::Value(Arc::new(node)),
            qualifiers: Vec::new(),
            test_only: false,
        },
    }
}

impl Attribute {
    fn push(&mut self, qualifier: Arc<Qualifier>) {
        self.test_only |= qualifier.test_only;
        match &mut self.root {
            Root::Conditional(parts) => {
                let mut changed = (**parts).clone();
                changed.1.push(qualifier.clone());
                changed.2.push(qualifier);
                *parts = Arc::new(changed);
            }
            _ => self.qualifiers.push(qualifier),
        }
    }
}

impl<'p> Planner<'p> {
    fn nodes<'e>(&mut self, exprs: impl IntoIterator<Item = &'e Expr>) -> Result<Vec<Node>, EvalError>
    where
        'e: 'p,
    {
        exprs.into_iter().map(|expr| self.node(expr)).collect()
    }

    fn node(&mut self, expr: &'p Expr) -> Planned {
        self.depth += 1;
        self.nesting = self.nesting.max(self.depth);
        let planned = self.node_inside(expr);
        self.depth -= 1;
        planned
    }

    fn node_inside(&mut self, expr: &'p Expr) -> Planned {
        if let Some(name) = self.ast.name(expr.id)
            && matches!(expr.kind, Kind::Ident(_) | Kind::Select { .. })
        {
            return Ok(self.name(name));
        }
        match &expr.kind {
            Kind::Literal(literal) => Ok(Node::Const(literal_value(literal))),
            // The checker has given every name a meaning.
            Kind::Ident(name) => Ok(self.name(&Name::Variable(name.clone()))),
            Kind::Select {
                operand,
                field,
                test_only,
            } => {
                let mut attribute = attribute(self.node(operand)?);
                attribute.push(Arc::new(Qualifier {
                    key: QualifierKey::Const(Value::string(field.as_str())),
                    optional: false,
                    test_only: *test_only,
                }));
                Ok(Node::Attribute(attribute))
            }
            Kind::Call { function, target, args } => {
                let all = target.iter().map(|target| &**target).chain(args);
                let nodes = self.nodes(all)?;
                self.call(expr, function, nodes)
            }
            Kind::List(elements) => self.list(elements),
            Kind::Map(entries) => self.map(entries),
            Kind::Struct { fields, .. } => self.construct(expr, fields),
            Kind::Comprehension(fold) => self.fold(fold),
        }
    }

    fn name(&self, name: &Name) -> Node {
        let root = match name {
            Name::Type(ty) => return Node::Const(Value::Type(ty.clone())),
            Name::Variable(name) => Root::Variable(Arc::from(name.as_str())),
            Name::Local(name) => {
                let slot = self.scopes.iter().rev().find(|(local, _)| local == name);
                match slot {
                    Some((_, slot)) => Root::Slot(*slot),
                    None => Root::Variable(Arc::from(name.as_str())),
                }
            }
        };
        Node::Attribute(Attribute {
            root,
            qualifiers: Vec::new(),
            test_only: false,
        })
    }

    fn call(&mut self, expr: &Expr, function: &str, mut nodes: Vec<Node>) -> Planned {
        use operators as op;
        let two = |nodes: Vec<Node>| -> Arc<[Node; 2]> {
            Arc::new(
                nodes
                    .try_into()
                    .expect("operators have as many operands as the parser gave them"),
            )
        };
        match function {
            op::AND => return Ok(Node::And(two(nodes))),
            op::OR => return Ok(Node::Or(two(nodes))),
            op::EQUALS => return Ok(Node::Equal(two(nodes), true)),
            op::NOT_EQUALS => return Ok(Node::Equal(two(nodes), false)),
            op::CONDITIONAL => {
                let (if_false, if_true) = (nodes.pop(), nodes.pop());
                let parts = nodes.pop().zip(if_true).zip(if_false);
                let ((condition, if_true), if_false) = parts.expect("the parser gave it three");
                return Ok(Node::Attribute(Attribute {
                    root: Root::Conditional(Arc::new((condition, attribute(if_true), attribute(if_false)))),
                    qualifiers: Vec::new(),
                    test_only: false,
                }));
            }
            op::INDEX | op::OPT_INDEX | op::OPT_SELECT => return Ok(index(nodes, function != op::INDEX)),
            "or" | "orValue" if nodes.len() == 2 => return Ok(Node::OptionalOr(two(nodes), function == "orValue")),
            _ => {}
        }
        let overloads = self.ast.overloads(expr.id);
        let overload = if let [one] = overloads { one } else { "" };
        if self.optimized
            && function == op::IN
            && overload == "in_list"
            && let Some(Value::List(list)) = constant(&nodes[1])
        {
            if list.is_empty() {
                return Ok(Node::Const(Value::Bool(false)));
            }
            if let Some(values) = simple_values(list) {
                return Ok(Node::Among(Arc::new((nodes.swap_remove(0), values))));
            }
        }
        let function = match overload {
            "list_duration_sum_duration" => library::lists::SUM_OF_DURATIONS,
            _ => function,
        };
        let native =
            library::native(function).ok_or_else(|| EvalError::new(format!("no such overload: {function}")))?;
        if self.optimized
            && CONVERSIONS.contains(&function)
            && let [Node::Const(value)] = nodes.as_slice()
        {
            return (native.call)(std::slice::from_ref(value)).map(Node::Const);
        }
        let cost = Rule::of(native.name, overload);
        if ["matches", "find", "findAll"].contains(&function)
            && let Some(Value::String(pattern)) = nodes.get(1).and_then(constant)
        {
            let regex = library::regex::compile(pattern)?;
            return Ok(Node::Pattern(Arc::new(Pattern {
                function: native.name,
                regex,
                args: nodes,
                cost,
            })));
        }
        Ok(Node::Call(Arc::new(Call {
            function: native.name,
            native,
            args: nodes,
            cost,
            not_strictly_false: function == op::NOT_STRICTLY_FALSE,
        })))
    }

    fn list(&mut self, elements: &'p [Element]) -> Planned {
        let mut nodes = Vec::with_capacity(elements.len());
        for element in elements {
            nodes.push((self.node(&element.value)?, element.optional));
        }
        let constants: Option<Vec<_>> = nodes
            .iter()
            .map(|(node, optional)| constant(node).filter(|_| !optional).cloned())
            .collect();
        Ok(match constants {
            Some(items) if self.optimized => Node::Const(Value::List(List::Shared(Arc::new(items)))),
            _ => Node::List(nodes.into()),
        })
    }

    fn map(&mut self, entries: &'p [Entry]) -> Planned {
        let mut nodes = Vec::with_capacity(entries.len());
        for entry in entries {
            nodes.push((self.node(&entry.key)?, self.node(&entry.value)?, entry.optional));
        }
        let mut constants = Entries::default();
        let all = nodes
            .iter()
            .all(|(key, value, optional)| match (constant(key), constant(value)) {
                (Some(key), Some(value)) if !optional => constants.insert(key.clone(), value.clone()),
                _ => false,
            });
        Ok(if all && self.optimized {
            Node::Const(Value::Map(Map::Shared(Arc::new(constants))))
        } else {
            Node::Map(nodes.into())
        })
    }

    fn construct(&mut self, expr: &Expr, fields: &'p [FieldInit]) -> Planned {
        let Some(Name::Type(Type::Object(ty))) = self.ast.name(expr.id) else {
            return Err(EvalError::new("unknown type"));
        };
        let ty = ty.clone();
        let mut nodes = Vec::with_capacity(fields.len());
        for field in fields {
            nodes.push((field.name.clone(), self.node(&field.value)?, field.optional));
        }
        Ok(Node::Object(Arc::new(Construct { ty, fields: nodes })))
    }

    fn slot(&mut self) -> usize {
        self.slots += 1;
        self.slots - 1
    }

    fn fold(&mut self, fold: &'p Comprehension) -> Planned {
        let (init, range) = (self.node(&fold.init)?, self.node(&fold.range)?);
        let outer = self.scopes.len();
        let (accumulator, first) = (self.slot(), self.slot());
        let second = fold.iter_var2.as_ref().map(|_| self.slot());
        self.scopes.push((&fold.accu_var, accumulator));
        self.scopes.push((&fold.iter_var, first));
        if let Some((name, slot)) = fold.iter_var2.as_deref().zip(second) {
            self.scopes.push((name, slot));
        }
        let (condition, step) = (self.node(&fold.condition)?, self.node(&fold.step)?);
        self.scopes.truncate(outer + 1);
        let result = self.node(&fold.result)?;
        self.scopes.truncate(outer);
        Ok(Node::Fold(Arc::new(Fold {
            range,
            accumulator,
            first,
            second,
            init,
            condition,
            step,
            result,
        })))
    }
}

/// The values of a list, if all are such that equal ones have equal keys.
fn simple_values(list: &List<'static>) -> Option<BTreeSet<Key<'static>>> {
    let keys = list.iter().map(|item| match item.ok()? {
        Value::Bytes(_) => None,
        item => Key::of(&item),
    });
    keys.collect()
}

/// An operand with one more selection.
fn index(mut nodes: Vec<Node>, optional: bool) -> Node {
    let key = nodes.pop().expect("the parser gave it two");
    let mut attribute_ = attribute(nodes.pop().expect("the parser gave it two"));
    let key = match key {
        Node::Const(value) => QualifierKey::Const(value),
        node => QualifierKey::Computed(attribute(node)),
    };
    attribute_.push(Arc::new(Qualifier {
        key,
        optional,
        test_only: false,
    }));
    Node::Attribute(attribute_)
}

pub(crate) fn literal_value(literal: &Literal) -> Value<'static> {
    match literal {
        Literal::Null => Value::Null,
        Literal::Bool(bool) => Value::Bool(*bool),
        Literal::Int(int) => Value::Int(*int),
        Literal::Uint(uint) => Value::Uint(*uint),
        Literal::Double(double) => Value::Double(*double),
        Literal::String(text) => Value::String(Text::Shared(text.clone())),
        Literal::Bytes(bytes) => Value::Bytes(bytes.clone()),
    }
}
