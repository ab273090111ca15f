//! Evaluates plans, and counts what that costs.
//!
//! Upstream: cel-go/interpreter/{interpretable,attributes,runtimecost}.go.

pub(crate) mod cost;

use crate::library;
use crate::limits;
use crate::plan::{Attribute, Call, Construct, Fold, Node, Pattern, Qualifier, QualifierKey, Root};
use crate::program::{Activation, Budget, EvalError, Program};
use crate::value::{Entries, Key, List, MAX_LENGTH, Map, Object, Value};
use std::sync::Arc;

type Result<T> = std::result::Result<T, EvalError>;

const IDENTIFIER: u64 = 1;
const LIST: u64 = 10;
const MAP: u64 = 30;
const OBJECT: u64 = 40;

/// How many variables may use variables that use variables ….
const MAX_NESTED_VARIABLES: u32 = 32;

/// Elements that calls may copy into new lists. Adding lists costs one, however long they are.
const MAX_COPIED: u64 = 50_000_000;

/// Evaluates a program and charges what it cost, with the variables that it used first.
pub(crate) fn run<'a>(program: &'a Program, activation: &Activation<'a>, budget: &mut Budget<'_>) -> Result<Value<'a>> {
    let mut run = Run {
        activation,
        budget,
        slots: vec![Slot::Empty; program.plan.slots],
        cost: 0,
        of_variables: 0,
        turns: 0,
        copied: 0,
    };
    let result = run.eval(&program.plan.root);
    let cost = run.cost.saturating_add(run.of_variables);
    let result = match (result, run.budget.charge(run.cost)) {
        (Ok(_), false) => Err(EvalError::out_of_budget()),
        (result, _) => result,
    };
    budget.set_last_cost(cost);
    result
}

/// A variable of a loop.
#[derive(Clone)]
enum Slot<'a> {
    Empty,
    /// The first value of an accumulator, computed when it is first looked at.
    Lazy(&'a Node),
    Done(Value<'a>),
    /// A step failed; `all` and `exists` may get over it.
    Failed(EvalError),
}

struct Run<'r, 'b, 'a> {
    activation: &'r Activation<'a>,
    budget: &'r mut Budget<'b>,
    slots: Vec<Slot<'a>>,
    cost: u64,
    /// What variables of the policy cost that were used first here.
    of_variables: u64,
    turns: u32,
    copied: u64,
}

/// What selections lead to.
enum Selected<'a> {
    Value(Value<'a>),
    Absent,
}

impl<'a> Run<'_, '_, 'a> {
    fn charge(&mut self, cost: u64) -> Result<()> {
        self.cost = self.cost.saturating_add(cost);
        if self.cost > self.budget.limit() {
            return Err(EvalError::cost_limit());
        }
        Ok(())
    }

    fn eval(&mut self, node: &'a Node) -> Result<Value<'a>> {
        match node {
            Node::Const(value) => Ok(value.clone()),
            Node::Attribute(attribute) => self.attribute(attribute),
            Node::And(terms) => self.logical(terms, false),
            Node::Or(terms) => self.logical(terms, true),
            Node::Equal(sides, wanted) => {
                let (left, right) = self.both(&sides[0], &sides[1])?;
                self.charge(cost::equality(&left, &right, *wanted))?;
                Ok(Value::Bool(left.equals(&right) == *wanted))
            }
            Node::Call(call) => self.call(call),
            Node::Pattern(pattern) => self.pattern(pattern),
            Node::Among(parts) => {
                let value = self.eval(&parts.0)?;
                Ok(Value::Bool(Key::of(&value).is_some_and(|key| parts.1.contains(&key))))
            }
            Node::OptionalOr(sides, unwrap) => match self.eval(&sides[0])? {
                Value::Optional(Some(value)) if *unwrap => Ok((*value).clone()),
                Value::Optional(None) => self.eval(&sides[1]),
                other => Ok(other),
            },
            Node::List(elements) => self.list(elements),
            Node::Map(entries) => self.map(entries),
            Node::Object(construct) => self.object(construct),
            Node::Fold(fold) => self.fold(fold),
        }
    }

    /// Both values. The second is evaluated, and counted, even if the first is an error.
    fn both(&mut self, one: &'a Node, two: &'a Node) -> Result<(Value<'a>, Value<'a>)> {
        let one = self.eval(one);
        if let Err(error) = &one
            && error.is_final()
        {
            return Err(error.clone());
        }
        let two = self.eval(two);
        match (one, two) {
            (Ok(one), Ok(two)) => Ok((one, two)),
            (_, Err(error)) if error.is_final() => Err(error),
            (Err(error), _) | (_, Err(error)) => Err(error),
        }
    }

    /// `&&` (decided by false) and `||` (decided by true). Errors count only if no side decides.
    fn logical(&mut self, terms: &'a [Node; 2], decisive: bool) -> Result<Value<'a>> {
        let mut failed = None;
        for term in terms {
            match self.eval(term) {
                Ok(Value::Bool(value)) if value == decisive => return Ok(Value::Bool(decisive)),
                Ok(Value::Bool(_)) => {}
                Ok(_) => failed = failed.or(Some(EvalError::no_such_overload())),
                Err(error) if error.is_final() => return Err(error),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(Value::Bool(!decisive)), Err)
    }

    fn attribute(&mut self, attribute: &'a Attribute) -> Result<Value<'a>> {
        let value = self.resolve(attribute)?;
        if !attribute.test_only && !matches!(attribute.root, Root::Conditional(_)) {
            self.charge(IDENTIFIER)?;
        }
        match value {
            Value::Optional(inner) if attribute.test_only => Ok(Value::Bool(inner.is_some())),
            value => Ok(value),
        }
    }

    /// The value of an attribute, without the cost of looking at it.
    fn resolve(&mut self, attribute: &'a Attribute) -> Result<Value<'a>> {
        let value = match &attribute.root {
            Root::Variable(name) => match self.activation.value(name) {
                Some(value) => value.clone(),
                None if self.activation.variables(name).is_some() => Value::Variables,
                None => return Err(EvalError::new(format!("no such attribute(s): {name}"))),
            },
            Root::Slot(slot) => self.slot(*slot)?,
            Root::Value(node) => self.eval(node)?,
            Root::Conditional(parts) => {
                let branch = match self.eval(&parts.0)? {
                    Value::Bool(true) => &parts.1,
                    Value::Bool(false) => &parts.2,
                    _ => return Err(EvalError::no_such_overload()),
                };
                return self.resolve(branch);
            }
        };
        self.select(value, &attribute.qualifiers)
    }

    fn slot(&mut self, slot: usize) -> Result<Value<'a>> {
        match &self.slots[slot] {
            Slot::Done(value) => return Ok(value.clone()),
            Slot::Failed(error) => return Err(error.clone()),
            Slot::Lazy(node) => {
                let node = *node;
                let value = self.eval(node);
                if let Err(error) = &value
                    && error.is_final()
                {
                    return value;
                }
                self.set(slot, value)
            }
            Slot::Empty => return Err(EvalError::new("no such attribute(s): loop variable")),
        }
        self.slot(slot)
    }

    fn set(&mut self, slot: usize, value: Result<Value<'a>>) {
        self.slots[slot] = match value {
            Ok(value) => Slot::Done(value),
            Err(error) => Slot::Failed(error),
        };
    }

    fn select(&mut self, mut value: Value<'a>, qualifiers: &'a [Arc<Qualifier>]) -> Result<Value<'a>> {
        if qualifiers.is_empty() {
            return Ok(value);
        }
        let mut optional = false;
        if let Value::Optional(inner) = value {
            let Some(inner) = inner else {
                return Ok(Value::Optional(None));
            };
            value = (*inner).clone();
            optional = true;
        }
        for qualifier in qualifiers {
            optional |= qualifier.optional;
            let computed;
            let key: &Value<'a> = match &qualifier.key {
                QualifierKey::Const(key) => key,
                QualifierKey::Computed(attribute) => {
                    computed = self.resolve(attribute)?;
                    &computed
                }
            };
            let is_conditional = matches!(
                &qualifier.key,
                QualifierKey::Computed(attribute) if matches!(attribute.root, Root::Conditional(_))
            );
            let unit = if is_conditional { 0 } else { IDENTIFIER };
            let selected = self.step(&value, key, optional || qualifier.test_only)?;
            match selected {
                _ if qualifier.test_only && !optional => {
                    self.charge(unit)?;
                    value = Value::Bool(matches!(selected, Selected::Value(_)));
                }
                Selected::Value(found) => {
                    self.charge(unit)?;
                    value = found;
                }
                Selected::Absent => {
                    if qualifier.test_only {
                        self.charge(unit)?;
                    }
                    return Ok(Value::Optional(None));
                }
            }
        }
        Ok(if optional {
            Value::Optional(Some(Arc::new(value)))
        } else {
            value
        })
    }

    /// One selection. What is absent is an error, unless `may_be_absent`.
    fn step(&mut self, value: &Value<'a>, key: &Value<'a>, may_be_absent: bool) -> Result<Selected<'a>> {
        let found = match (value, key) {
            (Value::Map(map), _) => map.find(key)?,
            (Value::List(list), _) => {
                let at = list_index(key)?;
                let found = usize::try_from(at).ok().and_then(|at| list.get(at)).transpose()?;
                if found.is_none() && !may_be_absent {
                    return Err(EvalError::new(format!("index out of bounds: {}", library::shown(key))));
                }
                found
            }
            (Value::Variables, Value::String(name)) => self.variable(name)?,
            (Value::Object(object), Value::String(name)) => object.fields.get(name.as_str()).cloned(),
            _ => None,
        };
        match found {
            Some(found) => Ok(Selected::Value(found)),
            None if may_be_absent => Ok(Selected::Absent),
            None => Err(EvalError::new(format!("no such key: {}", library::shown(key)))),
        }
    }

    /// A policy's variable, evaluated if this is its first use.
    fn variable(&mut self, name: &str) -> Result<Option<Value<'a>>> {
        let Some(variables) = self.activation.the_variables().filter(|variables| variables.has(name)) else {
            return Ok(None);
        };
        if !self.budget.enter(MAX_NESTED_VARIABLES) {
            return Err(EvalError::new("variables are nested too deeply"));
        }
        self.budget.clear_last_cost();
        let value = variables.get(name, self.activation, self.budget);
        self.of_variables = self.of_variables.saturating_add(self.budget.last_cost());
        self.budget.leave();
        value.transpose()
    }

    fn call(&mut self, call: &'a Call) -> Result<Value<'a>> {
        if call.not_strictly_false {
            let value = match self.eval(&call.args[0]) {
                Ok(Value::Bool(value)) => value,
                Err(error) if error.is_final() => return Err(error),
                _ => true,
            };
            self.charge(1)?;
            return Ok(Value::Bool(value));
        }
        match call.args.as_slice() {
            [one] => {
                let args = [self.eval(one)?];
                self.finish(call, &args)
            }
            [one, two] => {
                let (one, two) = self.both(one, two)?;
                self.finish(call, &[one, two])
            }
            all => {
                let mut args = Vec::with_capacity(all.len());
                for arg in all {
                    args.push(self.eval(arg)?);
                }
                self.finish(call, &args)
            }
        }
    }

    fn finish(&mut self, call: &'a Call, args: &[Value<'a>]) -> Result<Value<'a>> {
        if let Some(least) = call.cost.least(args)
            && self.cost.saturating_add(least) > self.budget.limit()
        {
            return Err(EvalError::cost_limit());
        }
        let result = (call.native.call)(args)?;
        if let Value::List(list) = &result {
            self.copied = self.copied.saturating_add(list.len() as u64);
            if self.copied > MAX_COPIED {
                return Err(EvalError::cost_limit());
            }
        }
        self.charge(call.cost.actual(args, &result))?;
        Ok(result)
    }

    fn pattern(&mut self, pattern: &'a Pattern) -> Result<Value<'a>> {
        let mut args = Vec::with_capacity(pattern.args.len());
        for arg in &pattern.args {
            args.push(self.eval(arg)?);
        }
        let result = library::regex::apply(pattern.function, &pattern.regex, &args)?;
        self.charge(pattern.cost.actual(&args, &result))?;
        Ok(result)
    }

    fn list(&mut self, elements: &'a [(Node, bool)]) -> Result<Value<'a>> {
        let mut items = Vec::with_capacity(elements.len());
        for (node, optional) in elements {
            let value = self.eval(node)?;
            match value {
                Value::Optional(inner) if *optional => items.extend(inner.map(|inner| (*inner).clone())),
                value if *optional => {
                    let shown = library::shown(&value);
                    let message = format!("cannot initialize optional list element from non-optional value {shown}");
                    return Err(EvalError::new(message));
                }
                value => items.push(value),
            }
        }
        self.charge(LIST)?;
        Ok(Value::list(items))
    }

    fn map(&mut self, entries: &'a [(Node, Node, bool)]) -> Result<Value<'a>> {
        let mut map = Entries::default();
        for (key, value, optional) in entries {
            let (key, value) = (self.eval(key)?, self.eval(value)?);
            let value = match value {
                Value::Optional(inner) if *optional => match inner {
                    Some(inner) => (*inner).clone(),
                    None => continue,
                },
                value if *optional => return Err(not_optional(&library::shown(&key), &value)),
                value => value,
            };
            let ty = key.type_of();
            if !map.insert(key, value) {
                return Err(EvalError::new(format!("unsupported key type: {ty}")));
            }
        }
        self.charge(MAP)?;
        Ok(Value::Map(Map::Shared(Arc::new(map))))
    }

    fn object(&mut self, construct: &'a Construct) -> Result<Value<'a>> {
        let mut object = Object {
            ty: construct.ty.clone(),
            fields: std::collections::BTreeMap::new(),
        };
        for (name, node, optional) in &construct.fields {
            let value = match self.eval(node)? {
                Value::Optional(inner) if *optional => match inner {
                    Some(inner) => (*inner).clone(),
                    None => {
                        object.fields.remove(name);
                        continue;
                    }
                },
                value if *optional => return Err(not_optional(name, &value)),
                value => value,
            };
            object.fields.insert(name.clone(), value);
        }
        self.charge(OBJECT)?;
        Ok(Value::Object(Arc::new(object)))
    }

    fn fold(&mut self, fold: &'a Fold) -> Result<Value<'a>> {
        let range = self.eval(&fold.range)?;
        self.slots[fold.accumulator] = Slot::Lazy(&fold.init);
        match (&range, fold.second) {
            (Value::List(list), second) => {
                for at in 0..list.len() {
                    let Some(item) = list.get(at) else { break };
                    match second {
                        Some(second) => {
                            self.set(fold.first, Ok(Value::Int(i64::try_from(at).unwrap_or(i64::MAX))));
                            self.set(second, item);
                        }
                        None => self.set(fold.first, item),
                    }
                    if !self.turn(fold)? {
                        break;
                    }
                }
            }
            (Value::Map(map), None) => {
                for key in map.keys() {
                    self.set(fold.first, Ok(key));
                    if !self.turn(fold)? {
                        break;
                    }
                }
            }
            (Value::Map(map), Some(second)) => {
                for key in map.keys() {
                    let value = map.find(&key).map(|value| value.unwrap_or(Value::Null));
                    self.set(second, value);
                    self.set(fold.first, Ok(key));
                    if !self.turn(fold)? {
                        break;
                    }
                }
            }
            (other, _) => {
                let message = format!("got '{}', expected iterable type", other.type_of().name());
                return Err(EvalError::new(message));
            }
        }
        let result = self.eval(&fold.result);
        self.slots[fold.accumulator] = Slot::Empty;
        result
    }

    /// One turn of a loop; false if it was the last.
    fn turn(&mut self, fold: &'a Fold) -> Result<bool> {
        match self.eval(&fold.condition) {
            Ok(Value::Bool(false)) => return Ok(false),
            Err(error) if error.is_final() => return Err(error),
            _ => {}
        }
        let value = self.accumulate(fold);
        if let Err(error) = &value
            && error.is_final()
        {
            return Err(error.clone());
        }
        self.set(fold.accumulator, value);
        self.turns += 1;
        if self.turns >= limits::CHECK_FREQUENCY {
            self.turns = 0;
            if self.budget.is_cancelled() {
                return Err(EvalError::cancelled());
            }
        }
        Ok(true)
    }

    fn accumulate(&mut self, fold: &'a Fold) -> Result<Value<'a>> {
        let Node::Attribute(Attribute {
            root: Root::Conditional(parts),
            ..
        }) = &fold.step
        else {
            return self.appended(fold, &fold.step);
        };
        // A filter: most steps either append or leave the accumulator alone, and neither needs a copy of it.
        match self.eval(&parts.0)? {
            Value::Bool(true) => match &parts.1 {
                Attribute {
                    root: Root::Value(node),
                    qualifiers,
                    ..
                } if qualifiers.is_empty() => self.appended(fold, node),
                attribute => self.resolve(attribute),
            },
            Value::Bool(false) => self.resolve(&parts.2),
            _ => Err(EvalError::no_such_overload()),
        }
    }

    /// Evaluates a step. One that appends to the accumulator does so in place, at the cost of making it anew.
    fn appended(&mut self, fold: &'a Fold, step: &'a Node) -> Result<Value<'a>> {
        let Node::Call(call) = step else {
            return self.eval(step);
        };
        let is_accumulator = matches!(
            call.args.first(),
            Some(Node::Attribute(Attribute { root: Root::Slot(slot), qualifiers, .. }))
                if *slot == fold.accumulator && qualifiers.is_empty()
        );
        let is_append = call.function == "_+_" || call.function == "cel.@mapInsert";
        if !is_accumulator || !is_append {
            return self.eval(step);
        }
        // The accumulator's own cost and its first value, as if it were looked at.
        self.slot(fold.accumulator)?;
        self.charge(IDENTIFIER)?;
        let mut rest = Vec::with_capacity(2);
        for arg in &call.args[1..] {
            rest.push(self.eval(arg)?);
        }
        let taken = std::mem::replace(&mut self.slots[fold.accumulator], Slot::Empty);
        match (taken, rest.as_slice()) {
            (Slot::Done(Value::List(List::Shared(mut items))), [Value::List(added)]) if call.function == "_+_" => {
                let owned = Arc::make_mut(&mut items);
                if owned.len() + added.len() > MAX_LENGTH {
                    return Err(EvalError::cost_limit());
                }
                owned.extend(added.values()?);
                self.charge(1)?;
                Ok(Value::List(List::Shared(items)))
            }
            (Slot::Done(Value::Map(Map::Shared(mut entries))), [key, value]) if call.function == "cel.@mapInsert" => {
                library::insert(Arc::make_mut(&mut entries), key.clone(), value.clone())?;
                self.charge(1)?;
                Ok(Value::Map(Map::Shared(entries)))
            }
            (Slot::Done(first), _) => {
                let mut args = vec![first];
                args.extend(rest);
                self.finish(call, &args)
            }
            _ => Err(EvalError::no_such_overload()),
        }
    }
}

fn not_optional(entry: &str, value: &Value<'_>) -> EvalError {
    let shown = library::shown(value);
    EvalError::new(format!(
        "cannot initialize optional entry '{entry}' from non-optional value {shown}"
    ))
}

fn list_index(key: &Value<'_>) -> Result<i64> {
    match key {
        Value::Int(at) => Ok(*at),
        Value::Uint(at) => {
            i64::try_from(*at).map_err(|_| EvalError::new(format!("unsupported index value {at} in list")))
        }
        // In this range every whole double is an integer.
        Value::Double(at) if at.trunc() == *at && at.abs() < 9.0e15 => Ok(*at as i64),
        Value::Double(at) => Err(EvalError::new(format!("unsupported index value {at} in list"))),
        other => {
            let ty = other.type_of();
            Err(EvalError::new(format!(
                "unsupported index type '{}' in list",
                ty.name()
            )))
        }
    }
}
