//! Macros: calls that become loops and presence tests when they are parsed.
//!
//! Upstream: cel-go/parser/macro.go, cel-go/ext/{bindings,comprehensions}.go, cel-go/cel/library.go (optMap).

use crate::ast::{ACCUMULATOR, Comprehension, Element, Expr, Id, Kind, Literal, OLD_ACCUMULATOR, operators};
use crate::parser::{Nodes, call};

/// The iteration variable of loops that make no turn.
const UNUSED: &str = "#unused";

/// The node that is wrong, and why.
type Problem = (Id, String);

/// The call, or what the macro of this name makes of it.
pub(crate) fn expand(
    nodes: &mut Nodes,
    id: Id,
    function: &str,
    target: Option<Expr>,
    args: Vec<Expr>,
) -> Result<Expr, Problem> {
    let mut make = Make {
        offset: nodes.offset(id),
        nodes,
    };
    match (function, target, args.len()) {
        ("has", None, 1) => make.has(args),
        ("bind", Some(target), 3) if is_cel(&target) => make.bind(args),
        ("all" | "exists" | "exists_one" | "existsOne", Some(target), 2 | 3) => make.quantifier(function, target, args),
        ("map", Some(target), 2 | 3) => make.map(target, args),
        ("filter", Some(target), 2) => make.filter(target, args),
        ("transformList" | "transformMap" | "transformMapEntry", Some(target), 3 | 4) => {
            make.transform(function, target, args)
        }
        ("sortBy", Some(target), 2) => make.sort_by(target, args),
        ("optMap" | "optFlatMap", Some(target), 2) => make.opt_map(function, target, args),
        (_, target, _) => Ok(Expr {
            id,
            kind: Kind::Call {
                function: function.to_string(),
                target: target.map(Box::new),
                args,
            },
        }),
    }
}

fn is_cel(target: &Expr) -> bool {
    matches!(&target.kind, Kind::Ident(name) if name == "cel")
}

fn ident(expr: &Expr) -> Option<&str> {
    match &expr.kind {
        Kind::Ident(name) => Some(name),
        _ => None,
    }
}

/// The name of a variable that a macro declares.
fn variable(expr: &Expr, otherwise: &str) -> Result<String, Problem> {
    let name = ident(expr).ok_or_else(|| (expr.id, otherwise.to_string()))?;
    if name == ACCUMULATOR || name == OLD_ACCUMULATOR {
        return Err((
            expr.id,
            "iteration variable overwrites accumulator variable".to_string(),
        ));
    }
    Ok(name.to_string())
}

const SIMPLE: &str = "argument must be a simple name";

/// Takes the arguments apart; their number was looked at before.
fn parts<const N: usize>(args: Vec<Expr>) -> [Expr; N] {
    args.try_into().expect("the macro was found by its number of arguments")
}

/// Makes nodes at the place of the macro.
struct Make<'n> {
    offset: u32,
    nodes: &'n mut Nodes,
}

impl Make<'_> {
    fn node(&mut self, kind: Kind) -> Expr {
        Expr {
            id: self.nodes.id(self.offset),
            kind,
        }
    }

    fn literal(&mut self, literal: Literal) -> Expr {
        self.node(Kind::Literal(literal))
    }

    fn accumulator(&mut self) -> Expr {
        self.node(Kind::Ident(ACCUMULATOR.to_string()))
    }

    fn call(&mut self, function: &str, args: Vec<Expr>) -> Expr {
        let id = self.nodes.id(self.offset);
        call(id, function, args)
    }

    fn member(&mut self, function: &str, target: Expr) -> Expr {
        self.node(Kind::Call {
            function: function.to_string(),
            target: Some(Box::new(target)),
            args: vec![],
        })
    }

    fn list(&mut self, elements: Vec<Expr>) -> Expr {
        let elements = elements.into_iter().map(|value| Element { value, optional: false });
        let elements = elements.collect();
        self.node(Kind::List(elements))
    }

    fn fold(&mut self, fold: Comprehension) -> Expr {
        self.node(Kind::Comprehension(Box::new(fold)))
    }

    /// The same expression as other nodes.
    fn copy(&mut self, expr: &Expr) -> Expr {
        let mut copy = expr.clone();
        self.renumber(&mut copy);
        copy
    }

    fn renumber(&mut self, expr: &mut Expr) {
        // A tree that is too large is refused later, but must not become larger still.
        if self.nodes.are_too_many() {
            return;
        }
        let offset = self.nodes.offset(expr.id);
        expr.id = self.nodes.id(offset);
        match &mut expr.kind {
            Kind::Literal(_) | Kind::Ident(_) => {}
            Kind::Select { operand, .. } => self.renumber(operand),
            Kind::Call { target, args, .. } => {
                target.iter_mut().for_each(|target| self.renumber(target));
                args.iter_mut().for_each(|arg| self.renumber(arg));
            }
            Kind::List(elements) => elements
                .iter_mut()
                .for_each(|element| self.renumber(&mut element.value)),
            Kind::Map(entries) => entries.iter_mut().for_each(|entry| {
                self.renumber(&mut entry.key);
                self.renumber(&mut entry.value);
            }),
            Kind::Struct { fields, .. } => fields.iter_mut().for_each(|field| {
                field.id = self.nodes.id(self.nodes.offset(field.id));
                self.renumber(&mut field.value);
            }),
            Kind::Comprehension(fold) => {
                for part in [
                    &mut fold.range,
                    &mut fold.init,
                    &mut fold.condition,
                    &mut fold.step,
                    &mut fold.result,
                ] {
                    self.renumber(part);
                }
            }
        }
    }

    fn has(&mut self, args: Vec<Expr>) -> Result<Expr, Problem> {
        let [arg] = parts(args);
        match arg.kind {
            Kind::Select {
                operand,
                field,
                test_only: false,
            } => Ok(self.node(Kind::Select {
                operand,
                field,
                test_only: true,
            })),
            _ => Err((arg.id, "invalid argument to has() macro".to_string())),
        }
    }

    /// A loop that makes no turn: `result` with `init` as a variable.
    fn bind_as(&mut self, name: String, init: Expr, result: Expr) -> Expr {
        let (range, condition) = (self.list(vec![]), self.literal(Literal::Bool(false)));
        let step = self.node(Kind::Ident(name.clone()));
        self.fold(Comprehension {
            iter_var: UNUSED.to_string(),
            iter_var2: None,
            range,
            accu_var: name,
            init,
            condition,
            step,
            result,
        })
    }

    fn bind(&mut self, args: Vec<Expr>) -> Result<Expr, Problem> {
        let [name, init, result] = parts(args);
        let text = ident(&name).map(str::to_string);
        let text = text.ok_or_else(|| {
            (
                name.id,
                "cel.bind() variable names must be simple identifiers".to_string(),
            )
        })?;
        Ok(self.bind_as(text, init, result))
    }

    fn opt_map(&mut self, function: &str, target: Expr, args: Vec<Expr>) -> Result<Expr, Problem> {
        let [name, mapped] = parts(args);
        let text = ident(&name).map(str::to_string);
        let text = text.ok_or_else(|| {
            (
                name.id,
                format!("{function}() variable name must be a simple identifier"),
            )
        })?;
        let copy = self.copy(&target);
        let value = self.member("value", copy);
        let mut result = self.bind_as(text, value, mapped);
        if function == "optMap" {
            result = self.call("optional.of", vec![result]);
        }
        let has = self.member("hasValue", target);
        let none = self.call("optional.none", vec![]);
        Ok(self.call(operators::CONDITIONAL, vec![has, result, none]))
    }

    /// One or two variables, and what follows them.
    fn variables(
        &mut self,
        mut args: Vec<Expr>,
        two: bool,
        otherwise: &str,
    ) -> Result<(String, Option<String>, Vec<Expr>), Problem> {
        let rest = args.split_off(if two { 2 } else { 1 });
        if !two {
            return Ok((variable(&args[0], otherwise)?, None, rest));
        }
        for arg in &args {
            ident(arg).ok_or_else(|| (arg.id, otherwise.to_string()))?;
        }
        if ident(&args[0]) == ident(&args[1]) {
            let name = ident(&args[0]).unwrap_or_default();
            return Err((args[1].id, format!("duplicate variable name: {name}")));
        }
        let (first, second) = (variable(&args[0], otherwise)?, variable(&args[1], otherwise)?);
        Ok((first, Some(second), rest))
    }

    fn quantifier(&mut self, function: &str, target: Expr, args: Vec<Expr>) -> Result<Expr, Problem> {
        let two = args.len() == 3;
        let (iter_var, iter_var2, rest) = self.variables(args, two, SIMPLE)?;
        let [predicate] = parts(rest);
        let (init, condition, step, result);
        match function {
            "all" => {
                init = self.literal(Literal::Bool(true));
                let accumulator = self.accumulator();
                condition = self.call(operators::NOT_STRICTLY_FALSE, vec![accumulator]);
                let accumulator = self.accumulator();
                step = self.call(operators::AND, vec![accumulator, predicate]);
                result = self.accumulator();
            }
            "exists" => {
                init = self.literal(Literal::Bool(false));
                let accumulator = self.accumulator();
                let not = self.call(operators::NOT, vec![accumulator]);
                condition = self.call(operators::NOT_STRICTLY_FALSE, vec![not]);
                let accumulator = self.accumulator();
                step = self.call(operators::OR, vec![accumulator, predicate]);
                result = self.accumulator();
            }
            _ => {
                init = self.literal(Literal::Int(0));
                condition = self.literal(Literal::Bool(true));
                let (accumulator, one) = (self.accumulator(), self.literal(Literal::Int(1)));
                let more = self.call(operators::ADD, vec![accumulator, one]);
                let same = self.accumulator();
                step = self.call(operators::CONDITIONAL, vec![predicate, more, same]);
                let (accumulator, one) = (self.accumulator(), self.literal(Literal::Int(1)));
                result = self.call(operators::EQUALS, vec![accumulator, one]);
            }
        }
        Ok(self.fold(Comprehension {
            iter_var,
            iter_var2,
            range: target,
            accu_var: ACCUMULATOR.to_string(),
            init,
            condition,
            step,
            result,
        }))
    }

    /// A loop over all of the range that starts with an empty list or map.
    fn gather(
        &mut self,
        target: Expr,
        variables: (String, Option<String>),
        init: Expr,
        filter: Option<Expr>,
        step: Expr,
    ) -> Expr {
        let step = match filter {
            Some(filter) => {
                let same = self.accumulator();
                self.call(operators::CONDITIONAL, vec![filter, step, same])
            }
            None => step,
        };
        let condition = self.literal(Literal::Bool(true));
        let result = self.accumulator();
        self.fold(Comprehension {
            iter_var: variables.0,
            iter_var2: variables.1,
            range: target,
            accu_var: ACCUMULATOR.to_string(),
            init,
            condition,
            step,
            result,
        })
    }

    /// The accumulated list with one more element.
    fn append(&mut self, element: Expr) -> Expr {
        let accumulator = self.accumulator();
        let list = self.list(vec![element]);
        self.call(operators::ADD, vec![accumulator, list])
    }

    /// The list in the order of the keys that the expression gives for its elements.
    fn sort_by(&mut self, target: Expr, args: Vec<Expr>) -> Result<Expr, Problem> {
        const INPUT: &str = "@__sortBy_input__";
        let sortable = matches!(
            target.kind,
            Kind::List(_) | Kind::Select { .. } | Kind::Ident(_) | Kind::Comprehension(_) | Kind::Call { .. }
        );
        if !sortable {
            let message = "sortBy can only be applied to a list, identifier, comprehension, call or select expression";
            return Err((target.id, message.to_string()));
        }
        let input = |make: &mut Self| make.node(Kind::Ident(INPUT.to_string()));
        let range = input(self);
        let keys = self.map(range, args)?;
        let list = input(self);
        let sorted = self.node(Kind::Call {
            function: "@sortByAssociatedKeys".to_string(),
            target: Some(Box::new(list)),
            args: vec![keys],
        });
        Ok(self.bind_as(INPUT.to_string(), target, sorted))
    }

    fn map(&mut self, target: Expr, args: Vec<Expr>) -> Result<Expr, Problem> {
        let (iter_var, _, mut rest) = self.variables(args, false, "argument is not an identifier")?;
        let transform = rest.pop().expect("the macro was found by its number of arguments");
        let init = self.list(vec![]);
        let step = self.append(transform);
        Ok(self.gather(target, (iter_var, None), init, rest.pop(), step))
    }

    fn filter(&mut self, target: Expr, args: Vec<Expr>) -> Result<Expr, Problem> {
        let [name, predicate] = parts(args);
        let iter_var = variable(&name, "argument is not an identifier")?;
        let init = self.list(vec![]);
        let step = self.append(name);
        Ok(self.gather(target, (iter_var, None), init, Some(predicate), step))
    }

    fn transform(&mut self, function: &str, target: Expr, args: Vec<Expr>) -> Result<Expr, Problem> {
        let (key, value, mut rest) = self.variables(args, true, SIMPLE)?;
        let transform = rest.pop().expect("the macro was found by its number of arguments");
        let (init, step);
        if function == "transformList" {
            init = self.list(vec![]);
            step = self.append(transform);
        } else {
            init = self.node(Kind::Map(vec![]));
            let mut insert = vec![self.accumulator()];
            if function == "transformMap" {
                insert.push(self.node(Kind::Ident(key.clone())));
            }
            insert.push(transform);
            step = self.call(operators::MAP_INSERT, insert);
        }
        Ok(self.gather(target, (key, value), init, rest.pop(), step))
    }
}
