//! Expressions with the values, types, errors and costs that Kubernetes and cel-go give them.
//!
//! The files of `tests/corpus` are read line by line:
//!
//! ```text
//! # a comment
//! @schema NAME JSON      declares a variable with the type of a schema
//! @root NAME JSON        the same for the root of a resource
//! @var NAME TYPE         declares a variable of a type (dyn, int, string, authorizer …)
//! @value NAME JSON       gives a variable a value
//! @reset                 forgets all variables
//! @mode unoptimized      constants cost as in upstream's own tests of costs; texts are estimated to have 0..12 characters
//! EXPRESSION  =>  OUTCOME  [| type TYPE] [| cost N] [| estimate MIN..MAX] [| max N] [| over N]
//! ```
//!
//! An outcome is JSON, `ok` (any value), `compiles` (not evaluated), `error: TEXT` (a problem of compilation whose text contains this), or
//! `fails: TEXT` (the exact error of the evaluation), `wrong: TEXT` (either of both, containing this). In expressions `␤` is
//! the end of a line.

use orlop_cel::{
    Activation, Authorizer, Budget, Decision, DeclType, Env, Program, Requirement, SizeEstimate, Type, Value, Verdict,
    self_type,
};
use serde_json::Value as Json;
use std::sync::Arc;

struct AllowAll;

impl Authorizer for AllowAll {
    fn check(&self, _: &Requirement) -> Verdict {
        Verdict {
            decision: Decision::Allow,
            reason: String::new(),
            error: None,
        }
    }
}

#[derive(Default)]
struct World {
    variables: Vec<(String, Arc<DeclType>)>,
    values: Vec<(String, Json)>,
    unoptimized: bool,
    mutation: bool,
}

struct Row<'r> {
    expression: &'r str,
    outcome: &'r str,
    ty: Option<&'r str>,
    cost: Option<u64>,
    estimate: Option<(u64, u64)>,
    /// The estimated maximum, or what it must not be less than.
    max: Option<u64>,
    over: Option<u64>,
}

fn row(line: &str) -> Row<'_> {
    let (expression, rest) = line
        .rsplit_once("  =>  ")
        .unwrap_or_else(|| panic!("no outcome: {line}"));
    let mut parts = rest.split("  |  ");
    let mut row = Row {
        expression: expression.trim(),
        outcome: parts.next().expect("there is a first part").trim(),
        ty: None,
        cost: None,
        estimate: None,
        max: None,
        over: None,
    };
    for part in parts {
        match part.trim().split_once(' ').expect("a word and a value") {
            ("type", ty) => row.ty = Some(ty),
            ("cost", cost) => row.cost = Some(cost.parse().expect("a number")),
            ("max", max) => row.max = Some(max.parse().expect("a number")),
            ("over", over) => row.over = Some(over.parse().expect("a number")),
            ("estimate", range) => {
                let (min, max) = range.split_once("..").expect("a range");
                row.estimate = Some((min.parse().expect("a number"), max.parse().expect("a number")));
            }
            (other, _) => panic!("unknown {other} in {line}"),
        }
    }
    row
}

/// `int`, `list(string)`, `map(string,list(dyn))` …
fn simple_type(text: &str) -> Type {
    if let Some(item) = text.strip_prefix("list(").and_then(|rest| rest.strip_suffix(')')) {
        return Type::list(simple_type(item));
    }
    if let Some(inner) = text.strip_prefix("optional(").and_then(|rest| rest.strip_suffix(')')) {
        return Type::optional(simple_type(inner));
    }
    if let Some(entry) = text.strip_prefix("map(").and_then(|rest| rest.strip_suffix(')')) {
        let (key, value) = entry.split_once(',').expect("a map has keys and values");
        return Type::map(simple_type(key), simple_type(value));
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
        "authorizer" => Type::authorizer(),
        other => panic!("no such type here: {other}"),
    }
}

impl World {
    fn directive(&mut self, line: &str) {
        let mut parts = line.splitn(3, ' ');
        let (word, name) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
        let rest = parts.next().unwrap_or("");
        let json = || serde_json::from_str::<Json>(rest).unwrap_or_else(|why| panic!("{line}: {why}"));
        match word {
            "@reset" => *self = World::default(),
            "@mode" => {
                self.unoptimized |= name == "unoptimized";
                self.mutation |= name == "mutation";
            }
            "@schema" | "@root" => {
                let decl = self_type(&json(), "selfType", word == "@root").expect("the schema can be seen");
                self.variables.retain(|(declared, _)| declared != name);
                self.variables.push((name.to_string(), decl));
            }
            "@var" => {
                self.variables.retain(|(declared, _)| declared != name);
                self.variables
                    .push((name.to_string(), Arc::new(DeclType::simple(simple_type(rest)))));
            }
            "@value" => {
                self.values.retain(|(bound, _)| bound != name);
                self.values.push((name.to_string(), json()));
            }
            other => panic!("no such directive: {other}"),
        }
    }

    fn env(&self) -> Env {
        let mut builder = Env::builder();
        for (name, decl) in &self.variables {
            builder = builder.variable(name.clone(), decl.clone());
        }
        if self.unoptimized {
            builder = builder.unoptimized();
        }
        if self.mutation {
            builder = builder.mutation_types();
        }
        builder.build()
    }

    /// What is different from what the row says.
    fn check(&self, row: &Row<'_>) -> Result<(), String> {
        let expression = row.expression.replace('␤', "\n");
        let compiled = self.env().compile(&expression, &[]);
        let wrong = row.outcome.strip_prefix("wrong:").map(str::trim);
        if let (Err(error), Some(text)) = (&compiled, wrong) {
            let found = error.to_string();
            return if found.contains(text) {
                Ok(())
            } else {
                Err(format!("does not compile: {found}"))
            };
        }
        let program = match (compiled, row.outcome.strip_prefix("error:")) {
            (Err(error), Some(text)) if error.to_string().contains(text.trim()) => return Ok(()),
            (Err(error), _) => return Err(format!("does not compile: {error}")),
            (Ok(_), Some(_)) => return Err("compiles".to_string()),
            (Ok(program), None) => program,
        };
        if let Some(ty) = row.ty.filter(|ty| *ty != program.output_type().to_string()) {
            return Err(format!("type {}, not {ty}", program.output_type()));
        }
        if let Some((min, max)) = row.estimate {
            let found = if self.unoptimized {
                program.estimate_with_texts_of(SizeEstimate { min: 0, max: 12 })
            } else {
                program.estimate()
            };
            if (found.min, found.max) != (min, max) {
                return Err(format!("estimate {}..{}, not {min}..{max}", found.min, found.max));
            }
        }
        let max = program.estimate().max;
        if row.max.is_some_and(|wanted| max != wanted) || row.over.is_some_and(|over| max < over) {
            return Err(format!("estimated maximum {max}"));
        }
        if row.outcome == "compiles" {
            Ok(())
        } else {
            self.evaluate(row, &program)
        }
    }

    fn evaluate(&self, row: &Row<'_>, program: &Program) -> Result<(), String> {
        let mut activation = Activation::new();
        for (name, decl) in &self.variables {
            if *decl.ty() == Type::authorizer() {
                activation = activation.bind(name, Value::authorizer(&AllowAll));
            }
            let json = self.values.iter().find(|(bound, _)| bound == name);
            if let Some((_, json)) = json {
                let value = Value::declared(json, decl).map_err(|why| format!("{name}: {why}"))?;
                activation = activation.bind(name, value);
            }
        }
        let mut budget = Budget::per_call();
        let result = program.eval(&activation, &mut budget);
        match (&result, row.outcome, row.outcome.strip_prefix("fails:")) {
            (Err(error), outcome, _)
                if outcome
                    .strip_prefix("wrong:")
                    .is_some_and(|text| error.message.contains(text.trim())) => {}
            (Err(error), _, Some(text)) if error.to_string() == text.trim() => {}
            (Err(error), ..) => return Err(format!("fails: {error}")),
            (Ok(value), _, Some(_)) => return Err(format!("is {:?}", value.to_json())),
            (Ok(_), "ok", _) => {}
            (Ok(value), outcome, _) => {
                let found = value.to_json().map_err(|why| format!("{why}: {value:?}"))?;
                let wanted: Json = serde_json::from_str(outcome).map_err(|why| format!("outcome: {why}"))?;
                if found != wanted {
                    return Err(format!("is {found}"));
                }
            }
        }
        match row.cost {
            Some(cost) if cost != budget.last_cost() => Err(format!("cost {}, not {cost}", budget.last_cost())),
            _ => Ok(()),
        }
    }
}

#[test]
fn corpus_agrees() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus");
    let mut paths: Vec<_> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    let (mut rows, mut problems) = (0, Vec::new());
    for path in paths {
        let mut world = World::default();
        let text = std::fs::read_to_string(&path).unwrap();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            match line.chars().next() {
                None | Some('#') => {}
                Some('@') => world.directive(line),
                Some(_) => {
                    rows += 1;
                    if let Err(problem) = world.check(&row(line)) {
                        let file = path.file_name().unwrap_or_default().to_string_lossy();
                        problems.push(format!("{file}:{}: {line}\n    {problem}", number + 1));
                    }
                }
            }
        }
    }
    assert!(
        problems.is_empty(),
        "{} of {rows} rows:\n{}",
        problems.len(),
        problems.join("\n")
    );
    assert!(rows > 600, "only {rows} rows");
}
