//! The type checker: finds out what names mean, which overloads calls may be, and the type of each node.
//!
//! Upstream: cel-go/checker/checker.go, cel-go/checker/env.go.

mod unify;

use crate::ast::{Ast, CheckedAst, Comprehension, Element, Entry, Expr, FieldInit, Id, Kind, Literal, Name, operators};
use crate::env::Env;
use crate::functions::{self, Function, Overload};
use crate::library;
use crate::source::{Issues, Source};
use crate::types::Type;
use std::collections::BTreeSet;
use unify::Bindings;

/// Types that are larger are taken for dynamic: maps of maps of themselves would double with each step.
const MAX_TYPE_SIZE: usize = 1000;

/// Checks an expression.
pub(crate) fn check(ast: Ast, source: &Source, env: &Env) -> Result<CheckedAst, Issues> {
    let size = ast.offsets.len();
    let mut checker = Checker {
        source,
        env,
        offsets: &ast.offsets,
        issues: Issues::default(),
        bindings: Bindings::default(),
        scopes: Vec::new(),
        types: vec![Type::Dyn; size],
        overloads: vec![Vec::new(); size],
        names: vec![None; size],
        renames: Vec::new(),
        used: BTreeSet::new(),
    };
    checker.check(&ast.expr);
    let Checker {
        mut issues,
        bindings,
        types,
        overloads,
        names,
        renames,
        used,
        ..
    } = checker;
    if !issues.is_empty() {
        issues.sort();
        return Err(issues);
    }
    let mut expr = ast.expr;
    rename(&mut expr, &renames.into_iter().collect());
    Ok(CheckedAst {
        expr,
        offsets: ast.offsets,
        types: types.iter().map(|ty| bindings.substitute(ty, true)).collect(),
        overloads,
        names,
        used,
    })
}

/// Calls whose target was the first part of the function's name (`optional.of`) get that name.
fn rename(expr: &mut Expr, renames: &std::collections::HashMap<Id, &'static str>) {
    let renamed = renames.get(&expr.id);
    match &mut expr.kind {
        Kind::Literal(_) | Kind::Ident(_) => {}
        Kind::Select { operand, .. } => rename(operand, renames),
        Kind::Call { function, target, args } => {
            if let Some(name) = renamed {
                *function = (*name).to_string();
                *target = None;
            }
            target.iter_mut().for_each(|target| rename(target, renames));
            args.iter_mut().for_each(|arg| rename(arg, renames));
        }
        Kind::List(elements) => elements
            .iter_mut()
            .for_each(|element| rename(&mut element.value, renames)),
        Kind::Map(entries) => entries.iter_mut().for_each(|entry| {
            rename(&mut entry.key, renames);
            rename(&mut entry.value, renames);
        }),
        Kind::Struct { fields, .. } => fields.iter_mut().for_each(|field| rename(&mut field.value, renames)),
        Kind::Comprehension(fold) => {
            let fold = &mut **fold;
            for part in [
                &mut fold.range,
                &mut fold.init,
                &mut fold.condition,
                &mut fold.step,
                &mut fold.result,
            ] {
                rename(part, renames);
            }
        }
    }
}

struct Checker<'c> {
    source: &'c Source,
    env: &'c Env,
    offsets: &'c [u32],
    issues: Issues,
    bindings: Bindings,
    /// Variables of loops, the innermost last.
    scopes: Vec<(String, Type)>,
    types: Vec<Type>,
    overloads: Vec<Vec<&'static str>>,
    names: Vec<Option<Name>>,
    renames: Vec<(Id, &'static str)>,
    used: BTreeSet<String>,
}

/// The inside of an optional, and whether it was one.
fn unwrap_optional(ty: Type) -> (Type, bool) {
    match ty {
        Type::Optional(inner) => ((*inner).clone(), true),
        other => (other, false),
    }
}

impl Checker<'_> {
    fn report(&mut self, id: Id, message: String) {
        let offset = self.offsets.get(id as usize).copied();
        self.issues.push(self.source, offset, message);
    }

    fn set(&mut self, id: Id, ty: Type) -> Type {
        self.types[id as usize] = ty.clone();
        ty
    }

    fn undeclared(&mut self, id: Id, name: &str) -> Type {
        let container = self.env.container();
        self.report(
            id,
            format!("undeclared reference to '{name}' (in container '{container}')"),
        );
        self.set(id, Type::Error)
    }

    fn mismatch(&mut self, id: Id, expected: &Type, actual: &Type) {
        self.report(id, format!("expected type '{expected}' but found '{actual}'"));
    }

    /// The type of a node, which is noted too.
    fn check(&mut self, expr: &Expr) -> Type {
        match &expr.kind {
            Kind::Literal(literal) => self.set(expr.id, literal_type(literal)),
            Kind::Ident(name) => match self.look_up(name) {
                Some((meaning, ty)) => self.named(expr.id, meaning, ty),
                None => self.undeclared(expr.id, name),
            },
            Kind::Select {
                operand,
                field,
                test_only,
            } => self.select(expr, operand, field, *test_only),
            Kind::Call { function, target, args } => self.call(expr.id, function, target.as_deref(), args),
            Kind::List(elements) => self.list(expr.id, elements),
            Kind::Map(entries) => self.map(expr.id, entries),
            Kind::Struct { name, fields } => self.construct(expr.id, name, fields),
            Kind::Comprehension(fold) => self.comprehension(expr.id, fold),
        }
    }

    fn named(&mut self, id: Id, meaning: Name, ty: Type) -> Type {
        if let Name::Variable(name) = &meaning {
            self.used.insert(name.clone());
        }
        self.names[id as usize] = Some(meaning);
        self.set(id, ty)
    }

    /// The names that a name may stand for, seen from the container.
    fn candidates(&self, name: &str) -> Vec<String> {
        if let Some(absolute) = name.strip_prefix('.') {
            return vec![absolute.to_string()];
        }
        let mut container = self.env.container();
        let mut candidates = Vec::new();
        while !container.is_empty() {
            candidates.push(format!("{container}.{name}"));
            container = container.rfind('.').map_or("", |at| &container[..at]);
        }
        candidates.push(name.to_string());
        candidates
    }

    fn look_up(&self, name: &str) -> Option<(Name, Type)> {
        for candidate in self.candidates(name) {
            if let Some((local, ty)) = self.scopes.iter().rev().find(|(local, _)| *local == candidate) {
                return Some((Name::Local(local.clone()), ty.clone()));
            }
            if let Some(decl) = self.env.variable(&candidate) {
                return Some((Name::Variable(candidate), decl.ty().clone()));
            }
            if let Some(ty) = library::type_named(&candidate) {
                return Some((Name::Type(ty.clone()), Type::type_of(ty)));
            }
            if let Some(object) = self.env.object_type(&candidate) {
                let ty = Type::Object(object);
                return Some((Name::Type(ty.clone()), Type::type_of(ty)));
            }
        }
        None
    }

    fn look_up_function(&self, name: &str) -> Option<&'static Function> {
        let candidates = self.candidates(name);
        let function = candidates.iter().find_map(|candidate| functions::find(candidate))?;
        (self.env.has_mutation_functions() || !functions::is_for_mutations(function.name)).then_some(function)
    }

    fn select(&mut self, expr: &Expr, operand: &Expr, field: &str, test_only: bool) -> Type {
        if !test_only
            && let Some(name) = expr.qualified_name()
            && let Some((meaning, ty)) = self.look_up(&name)
        {
            return self.named(expr.id, meaning, ty);
        }
        let ty = self.select_field(expr.id, operand, field, false);
        let ty = if test_only { Type::Bool } else { ty };
        let ty = self.bindings.substitute(&ty, false);
        self.set(expr.id, ty)
    }

    fn select_field(&mut self, id: Id, operand: &Expr, field: &str, optional: bool) -> Type {
        let operand = self.check(operand);
        let (target, was_optional) = unwrap_optional(self.bindings.substitute(&operand, false));
        let ty = match &target {
            Type::Map(entry) => entry.1.clone(),
            Type::Object(object) if object.is_open() => Type::Dyn,
            Type::Object(object) => match object.field(field) {
                Some(field) => field.decl.ty().clone(),
                None => {
                    self.report(id, format!("undefined field '{field}'"));
                    Type::Error
                }
            },
            Type::Param(_) => {
                self.bindings.assignable(&Type::Dyn, &target);
                Type::Dyn
            }
            Type::Opaque(name) if library::is_object(name) => {
                self.report(id, format!("undefined field '{field}'"));
                Type::Error
            }
            other => {
                if !other.is_dyn_or_error() {
                    self.report(id, format!("type '{other}' does not support field selection"));
                }
                Type::Dyn
            }
        };
        if was_optional || optional {
            Type::optional(ty)
        } else {
            ty
        }
    }

    fn opt_select(&mut self, id: Id, args: &[Expr]) -> Type {
        let [operand, field] = args else {
            return self.set(id, Type::Error);
        };
        let Kind::Literal(Literal::String(name)) = &field.kind else {
            return self.set(id, Type::Error);
        };
        self.set(field.id, Type::String);
        let ty = self.select_field(id, operand, name, true);
        let ty = self.bindings.substitute(&ty, false);
        self.overloads[id as usize] = vec!["select_optional_field"];
        self.set(id, ty)
    }

    fn call(&mut self, id: Id, function: &str, target: Option<&Expr>, args: &[Expr]) -> Type {
        if function == operators::OPT_SELECT {
            return self.opt_select(id, args);
        }
        let mut types: Vec<Type> = args.iter().map(|arg| self.check(arg)).collect();
        let Some(target) = target else {
            let Some(found) = self.look_up_function(function) else {
                return self.undeclared(id, function);
            };
            return self.resolve(id, found, args, types, false);
        };
        // `a.b.c()` is the function `a.b.c`, if there is one, or else `c` of `a.b`.
        if let Some(prefix) = target.qualified_name()
            && let Some(found) = self.look_up_function(&format!("{prefix}.{function}"))
        {
            self.renames.push((id, found.name));
            return self.resolve(id, found, args, types, false);
        }
        types.insert(0, self.check(target));
        match self.look_up_function(function) {
            Some(found) => self.resolve(id, found, args, types, true),
            None => self.undeclared(id, function),
        }
    }

    /// Finds the overloads that fit; the result's type is theirs, if they agree.
    fn resolve(&mut self, id: Id, function: &'static Function, args: &[Expr], types: Vec<Type>, member: bool) -> Type {
        if function.name == operators::AND || function.name == operators::OR {
            return self.resolve_logical(id, function, args, &types);
        }
        let (mut result, mut ids): (Option<Type>, Vec<&'static str>) = (None, Vec::new());
        for overload in function.overloads.iter().filter(|overload| overload.member == member) {
            let Some(ty) = self.try_overload(overload, &types) else {
                continue;
            };
            ids.push(overload.id);
            result = Some(match result {
                Some(before) if !before.is_dyn() && !ty.is_exactly(&before) => Type::Dyn,
                Some(before) => before,
                None => ty,
            });
        }
        match result {
            Some(ty) => {
                self.overloads[id as usize] = ids;
                self.set(id, ty)
            }
            None => {
                let types: Vec<String> = types
                    .iter()
                    .map(|ty| self.bindings.substitute(ty, true).to_string())
                    .collect();
                let signature = match (member, types.split_first()) {
                    (true, Some((receiver, rest))) => format!("{receiver}.({})", rest.join(", ")),
                    _ => format!("({})", types.join(", ")),
                };
                let name = function.name;
                self.report(
                    id,
                    format!("found no matching overload for '{name}' applied to '{signature}'"),
                );
                self.set(id, Type::Error)
            }
        }
    }

    fn resolve_logical(&mut self, id: Id, function: &'static Function, args: &[Expr], types: &[Type]) -> Type {
        let mut ok = true;
        for (arg, ty) in args.iter().zip(types) {
            if !self.bindings.assignable(ty, &Type::Bool) {
                let ty = self.bindings.substitute(ty, false);
                self.mismatch(arg.id, &Type::Bool, &ty);
                ok = false;
            }
        }
        self.overloads[id as usize] = function.overloads.iter().map(|overload| overload.id).collect();
        self.set(id, if ok { Type::Bool } else { Type::Error })
    }

    /// The result's type, if the arguments fit.
    fn try_overload(&mut self, overload: &Overload, types: &[Type]) -> Option<Type> {
        if overload.args.len() != types.len() {
            return None;
        }
        let mut fresh = self.bindings.instantiation();
        let wanted: Vec<Type> = overload.args.iter().map(|arg| fresh.instantiate(arg)).collect();
        let result = fresh.instantiate(&overload.result);
        self.bindings
            .all_assignable(types, &wanted)
            .then(|| self.bindings.substitute(&result, false))
    }

    /// The more general of two types in one list or map. What mixes types is looked for afterwards.
    fn join(&mut self, before: Option<Type>, ty: Type) -> Option<Type> {
        let Some(before) = before else {
            return Some(ty);
        };
        let agree = self.bindings.assignable(&before, &ty);
        Some(if agree {
            unify::most_general(before, ty)
        } else {
            Type::Dyn
        })
    }

    /// The type of an element that may be an optional to be left out.
    fn optional_element(&mut self, id: Id, ty: Type, optional: bool) -> Type {
        if !optional {
            return ty;
        }
        let (inner, was_optional) = unwrap_optional(ty);
        if !was_optional && !inner.is_dyn() {
            self.mismatch(id, &Type::optional(inner.clone()), &inner);
        }
        inner
    }

    fn list(&mut self, id: Id, elements: &[Element]) -> Type {
        let mut item = None;
        for element in elements {
            let ty = self.check(&element.value);
            let ty = self.optional_element(element.value.id, ty, element.optional);
            item = self.join(item, ty);
        }
        let item = item.unwrap_or_else(|| self.bindings.fresh());
        self.set(id, Type::list(item))
    }

    fn map(&mut self, id: Id, entries: &[Entry]) -> Type {
        let (mut key, mut value) = (None, None);
        for entry in entries {
            let ty = self.check(&entry.key);
            key = self.join(key, ty);
            let ty = self.check(&entry.value);
            let ty = self.optional_element(entry.value.id, ty, entry.optional);
            value = self.join(value, ty);
        }
        let key = key.unwrap_or_else(|| self.bindings.fresh());
        let value = value.unwrap_or_else(|| self.bindings.fresh());
        let bounded = |checker: &Self, ty: Type| {
            let whole = checker.bindings.substitute(&ty, false);
            if unify::size(&whole, MAX_TYPE_SIZE) < MAX_TYPE_SIZE {
                ty
            } else {
                Type::Dyn
            }
        };
        let ty = Type::map(bounded(self, key), bounded(self, value));
        self.set(id, ty)
    }

    fn construct(&mut self, id: Id, name: &str, fields: &[FieldInit]) -> Type {
        let Some((meaning, ty)) = self.look_up(name) else {
            return self.undeclared(id, name);
        };
        let object = match &meaning {
            Name::Type(Type::Object(object)) => Some(object.clone()),
            Name::Type(other) => {
                self.report(id, format!("'{}' is not a message type", other.name()));
                None
            }
            _ => {
                self.report(id, format!("'{}' is not a type", ty.name()));
                None
            }
        };
        let result = object.clone().map_or(Type::Error, Type::Object);
        self.names[id as usize] = Some(meaning);
        self.set(id, result);
        for field in fields {
            let ty = self.check(&field.value);
            let wanted = match &object {
                Some(object) if object.is_open() => Type::Dyn,
                Some(object) => match object.field(&field.name) {
                    Some(found) => found.decl.ty().clone(),
                    None => {
                        self.report(field.id, format!("undefined field '{}'", field.name));
                        Type::Error
                    }
                },
                None => Type::Error,
            };
            let ty = self.optional_element(field.value.id, ty, field.optional);
            if !self.bindings.assignable(&wanted, &ty) {
                let name = &field.name;
                let ty = self.bindings.substitute(&ty, false);
                let message = format!("expected type of field '{name}' is '{wanted}' but provided type is '{ty}'");
                self.report(field.id, message);
            }
        }
        self.types[id as usize].clone()
    }

    /// The types of the loop's variables.
    fn iteration(&mut self, fold: &Comprehension) -> (Type, Type) {
        let range = self.check(&fold.range);
        let range = self.bindings.substitute(&range, false);
        match &range {
            Type::List(item) if fold.iter_var2.is_some() => (Type::Int, (**item).clone()),
            Type::List(item) => ((**item).clone(), Type::Dyn),
            Type::Map(entry) => (entry.0.clone(), entry.1.clone()),
            Type::Dyn | Type::Error | Type::Param(_) => {
                self.bindings.assignable(&Type::Dyn, &range);
                (Type::Dyn, Type::Dyn)
            }
            other => {
                let message = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                self.report(fold.range.id, message);
                (Type::Error, Type::Error)
            }
        }
    }

    fn comprehension(&mut self, id: Id, fold: &Comprehension) -> Type {
        let (first, second) = self.iteration(fold);
        let accumulated = self.check(&fold.init);
        let outer = self.scopes.len();
        self.scopes.push((fold.accu_var.clone(), accumulated.clone()));
        self.scopes.push((fold.iter_var.clone(), first));
        if let Some(name) = &fold.iter_var2 {
            self.scopes.push((name.clone(), second));
        }
        self.check_is(&fold.condition, &Type::Bool);
        self.check_is(&fold.step, &accumulated);
        self.scopes.truncate(outer + 1);
        let result = self.check(&fold.result);
        self.scopes.truncate(outer);
        let result = self.bindings.substitute(&result, false);
        self.set(id, result)
    }

    fn check_is(&mut self, expr: &Expr, wanted: &Type) {
        let ty = self.check(expr);
        if !self.bindings.assignable(wanted, &ty) {
            let (wanted, ty) = (
                self.bindings.substitute(wanted, false),
                self.bindings.substitute(&ty, false),
            );
            self.mismatch(expr.id, &wanted, &ty);
        }
    }
}

fn literal_type(literal: &Literal) -> Type {
    match literal {
        Literal::Null => Type::Null,
        Literal::Bool(_) => Type::Bool,
        Literal::Int(_) => Type::Int,
        Literal::Uint(_) => Type::Uint,
        Literal::Double(_) => Type::Double,
        Literal::String(_) => Type::String,
        Literal::Bytes(_) => Type::Bytes,
    }
}
