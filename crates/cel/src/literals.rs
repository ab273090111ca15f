//! What is wrong with constants in an expression that checks: durations, timestamps, patterns and templates that can be
//! read already, and lists and maps of several types.
//!
//! Upstream: cel-go/cel/validator.go, the validator of cel-go/ext/formatting.go.

use crate::ast::{CheckedAst, Element, Entry, Expr, Kind, Literal};
use crate::library::{self, template};
use crate::plan::literal_value;
use crate::source::{Issues, Source};
use crate::types::Type;

/// Notes the problems of an expression's constants.
pub(crate) fn validate(ast: &CheckedAst, source: &Source) -> Result<(), Issues> {
    let mut validator = Validator {
        ast,
        source,
        issues: Issues::default(),
    };
    validator.visit(&ast.expr, false);
    validator.issues.sort();
    if validator.issues.is_empty() {
        Ok(())
    } else {
        Err(validator.issues)
    }
}

struct Validator<'v> {
    ast: &'v CheckedAst,
    source: &'v Source,
    issues: Issues,
}

fn text(expr: &Expr) -> Option<&std::sync::Arc<str>> {
    match &expr.kind {
        Kind::Literal(Literal::String(text)) => Some(text),
        _ => None,
    }
}

impl Validator<'_> {
    fn report(&mut self, id: crate::ast::Id, message: String) {
        let offset = self.ast.offsets.get(id as usize).copied();
        self.issues.push(self.source, offset, message);
    }

    /// `mixed` says that lists and maps may have elements of several types here: in arguments of `format`.
    fn visit(&mut self, expr: &Expr, mixed: bool) {
        let mut inside = mixed;
        match &expr.kind {
            Kind::Call { function, target, args } => {
                self.call(expr, function, target.as_deref(), args);
                inside |= function == "format";
            }
            Kind::List(elements) if !mixed => self.list(elements),
            Kind::Map(entries) if !mixed => self.map(entries),
            _ => {}
        }
        let mut children = Vec::new();
        expr.children(&mut |child| children.push(child));
        for child in children {
            self.visit(child, inside);
        }
    }

    fn call(&mut self, expr: &Expr, function: &str, target: Option<&Expr>, args: &[Expr]) {
        let Some(first) = args.first() else {
            return;
        };
        match (function, text(first)) {
            ("duration" | "timestamp", _) => {
                let Kind::Literal(literal) = &first.kind else {
                    return;
                };
                let argument = [literal_value(literal)];
                let converted = library::native(function).map(|native| (native.call)(&argument).is_ok());
                if converted == Some(false) {
                    self.report(first.id, format!("invalid {function} argument"));
                }
            }
            ("matches", Some(pattern)) if library::regex::compile(pattern).is_err() => {
                self.report(first.id, "invalid matches argument".to_string());
            }
            ("format", _) => {
                if let (Some(template), Kind::List(elements)) = (target.and_then(text), &first.kind) {
                    self.template(expr, template, elements);
                }
            }
            _ => {}
        }
    }

    fn template(&mut self, expr: &Expr, template: &str, args: &[Element]) {
        let parts = match template::parse(template, args.len(), false) {
            Ok(parts) => parts,
            Err(error) => return self.report(expr.id, error.to_string()),
        };
        let mut next = 0;
        for part in parts {
            let template::Part::Clause(clause) = part else {
                continue;
            };
            let arg = &args[next].value;
            next += 1;
            if let Some(bad) = self.misfit(clause.kind, arg) {
                let complaint = template::complaint(clause.kind, self.ast.ty(bad.id).name());
                return self.report(bad.id, format!("error during formatting: {complaint}"));
            }
        }
        if args.len() > next {
            let message = format!(
                "too many arguments supplied to string.format (expected {next}, got {})",
                args.len()
            );
            self.report(expr.id, message);
        }
    }

    /// The part of an argument that a clause does not take.
    fn misfit<'e>(&self, kind: char, arg: &'e Expr) -> Option<&'e Expr> {
        if !template::takes(kind, self.ast.ty(arg.id)) {
            return Some(arg);
        }
        match &arg.kind {
            Kind::List(elements) if kind == 's' => {
                elements.iter().find_map(|element| self.misfit(kind, &element.value))
            }
            Kind::Map(entries) if kind == 's' => {
                let parts = entries.iter().flat_map(|entry| [&entry.key, &entry.value]);
                parts.into_iter().find_map(|part| self.misfit(kind, part))
            }
            _ => None,
        }
    }

    fn element_type(&self, expr: &Expr, optional: bool) -> Type {
        match self.ast.ty(expr.id) {
            Type::Optional(inner) if optional => (**inner).clone(),
            ty => ty.clone(),
        }
    }

    fn mismatch(&mut self, expr: &Expr, expected: &Type, found: &Type) {
        self.report(expr.id, format!("expected type '{expected}' but found '{found}'"));
    }

    fn list(&mut self, elements: &[Element]) {
        let mut expected: Option<Type> = None;
        for element in elements {
            let ty = self.element_type(&element.value, element.optional);
            match &expected {
                None => expected = Some(ty),
                Some(expected) if !ty.is_exactly(expected) => {
                    let expected = expected.clone();
                    self.mismatch(&element.value, &expected, &ty);
                    return;
                }
                Some(_) => {}
            }
        }
    }

    fn map(&mut self, entries: &[Entry]) {
        let mut expected: Option<(Type, Type)> = None;
        for entry in entries {
            let key = self.element_type(&entry.key, false);
            let value = self.element_type(&entry.value, entry.optional);
            let Some((key_wanted, value_wanted)) = expected.clone() else {
                expected = Some((key, value));
                continue;
            };
            if !key.is_exactly(&key_wanted) {
                self.mismatch(&entry.key, &key_wanted, &key);
            }
            if !value.is_exactly(&value_wanted) {
                self.mismatch(&entry.value, &value_wanted, &value);
            }
        }
    }
}
