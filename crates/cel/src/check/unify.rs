//! Which types agree, and what type variables stand for.
//!
//! Upstream: cel-go/checker/types.go.

use crate::types::{Param, Type};

/// What the type variables of one check stand for, by number. Attempts that fail are undone by a trail.
#[derive(Default)]
pub(super) struct Bindings {
    bound: Vec<Option<Type>>,
    /// Variables that were bound, and what they stood for before, since the attempt began.
    trail: Vec<(u32, Option<Type>)>,
}

/// Gives the parameters of one overload new variables.
pub(super) struct Instantiation<'b> {
    bindings: &'b mut Bindings,
    params: Vec<(char, Type)>,
}

impl Instantiation<'_> {
    pub(super) fn instantiate(&mut self, ty: &Type) -> Type {
        match ty {
            Type::Param(Param::Declared(name)) => {
                if let Some((_, variable)) = self.params.iter().find(|(param, _)| param == name) {
                    return variable.clone();
                }
                let variable = self.bindings.fresh();
                self.params.push((*name, variable.clone()));
                variable
            }
            Type::List(item) => Type::list(self.instantiate(item)),
            Type::Optional(inner) => Type::optional(self.instantiate(inner)),
            Type::Map(entry) => Type::map(self.instantiate(&entry.0), self.instantiate(&entry.1)),
            Type::Type(Some(inner)) => Type::type_of(self.instantiate(inner)),
            other => other.clone(),
        }
    }
}

impl Bindings {
    /// A new type variable.
    pub(super) fn fresh(&mut self) -> Type {
        self.bound.push(None);
        let number = u32::try_from(self.bound.len() - 1).unwrap_or(u32::MAX);
        Type::Param(Param::Variable(number))
    }

    pub(super) fn instantiation(&mut self) -> Instantiation<'_> {
        Instantiation {
            bindings: self,
            params: Vec::new(),
        }
    }

    fn find(&self, param: Param) -> Option<&Type> {
        match param {
            Param::Variable(number) => self.bound.get(number as usize)?.as_ref(),
            Param::Declared(_) => None,
        }
    }

    fn bind(&mut self, param: Param, ty: Type) {
        if let Param::Variable(number) = param
            && let Some(place) = self.bound.get_mut(number as usize)
        {
            let before = place.replace(ty);
            self.trail.push((number, before));
        }
    }

    /// Whether a value of one type may be where the other is wanted. Variables are bound to make it so.
    pub(super) fn assignable(&mut self, from: &Type, to: &Type) -> bool {
        self.attempt(|bindings| bindings.unify(from, to))
    }

    pub(super) fn all_assignable(&mut self, from: &[Type], to: &[Type]) -> bool {
        self.attempt(|bindings| {
            from.len() == to.len() && from.iter().zip(to).all(|(from, to)| bindings.unify(from, to))
        })
    }

    fn attempt(&mut self, attempt: impl FnOnce(&mut Self) -> bool) -> bool {
        self.trail.clear();
        let ok = attempt(self);
        if !ok {
            while let Some((number, before)) = self.trail.pop() {
                self.bound[number as usize] = before;
            }
        }
        ok
    }

    fn unify(&mut self, from: &Type, to: &Type) -> bool {
        if let Type::Param(param) = to {
            let (valid, was_bound) = self.stands_for(from, *param);
            if valid || was_bound {
                return valid;
            }
        }
        if let Type::Param(param) = from {
            return self.stands_for(to, *param).0;
        }
        if from.is_dyn_or_error() || to.is_dyn_or_error() {
            return true;
        }
        match (from, to) {
            (Type::Null, other) | (other, Type::Null) => is_nullable(other),
            (Type::List(from), Type::List(to)) | (Type::Optional(from), Type::Optional(to)) => self.unify(from, to),
            (Type::Map(from), Type::Map(to)) => self.unify(&from.0, &to.0) && self.unify(&from.1, &to.1),
            (Type::Type(_), Type::Type(_)) => true,
            _ => from.is_exactly(to),
        }
    }

    /// Whether a variable can stand for a type, and whether it was bound before.
    fn stands_for(&mut self, ty: &Type, param: Param) -> (bool, bool) {
        if matches!(ty, Type::Param(same) if *same == param) {
            return (true, true);
        }
        if let Some(bound) = self.find(param).cloned() {
            if ty.is_exactly(&bound) {
                return (true, true);
            }
            if !self.unify(ty, &bound) {
                return (false, true);
            }
            let general = most_general(ty.clone(), bound);
            if self.does_not_occur(param, &general) {
                self.bind(param, general);
            }
            return (true, true);
        }
        if self.does_not_occur(param, ty) {
            self.bind(param, ty.clone());
            return (true, false);
        }
        (false, false)
    }

    fn does_not_occur(&self, param: Param, within: &Type) -> bool {
        match within {
            Type::Param(same) if *same == param => false,
            Type::Param(other) => self.find(*other).is_none_or(|bound| self.does_not_occur(param, bound)),
            Type::List(inner) | Type::Optional(inner) | Type::Type(Some(inner)) => self.does_not_occur(param, inner),
            Type::Map(entry) => self.does_not_occur(param, &entry.0) && self.does_not_occur(param, &entry.1),
            _ => true,
        }
    }

    /// The type with its variables replaced by what they stand for; those that stand for nothing are kept, or dynamic.
    pub(super) fn substitute(&self, ty: &Type, to_dyn: bool) -> Type {
        match ty {
            Type::Param(param) => match self.find(*param) {
                Some(bound) => self.substitute(bound, to_dyn),
                None if to_dyn => Type::Dyn,
                None => ty.clone(),
            },
            Type::List(item) => Type::list(self.substitute(item, to_dyn)),
            Type::Optional(inner) => Type::optional(self.substitute(inner, to_dyn)),
            Type::Map(entry) => Type::map(self.substitute(&entry.0, to_dyn), self.substitute(&entry.1, to_dyn)),
            Type::Type(Some(inner)) => Type::type_of(self.substitute(inner, to_dyn)),
            other => other.clone(),
        }
    }
}

/// Null may be where these are.
fn is_nullable(ty: &Type) -> bool {
    matches!(
        ty,
        Type::Null | Type::Opaque(_) | Type::Optional(_) | Type::Object(_) | Type::Duration | Type::Timestamp
    )
}

/// Of two types that agree the one that says less.
pub(super) fn most_general(a: Type, b: Type) -> Type {
    if is_equal_or_less_specific(&a, &b) { a } else { b }
}

fn is_equal_or_less_specific(a: &Type, b: &Type) -> bool {
    match (a, b) {
        (Type::Dyn | Type::Param(_), _) => true,
        (_, Type::Dyn | Type::Param(_)) => false,
        (Type::List(a), Type::List(b)) | (Type::Optional(a), Type::Optional(b)) => is_equal_or_less_specific(a, b),
        (Type::Map(a), Type::Map(b)) => is_equal_or_less_specific(&a.0, &b.0) && is_equal_or_less_specific(&a.1, &b.1),
        (Type::Type(_), Type::Type(_)) => true,
        _ => a.is_exactly(b),
    }
}

/// How many types a type is made of, counted up to a limit.
pub(super) fn size(ty: &Type, limit: usize) -> usize {
    if limit == 0 {
        return 0;
    }
    match ty {
        Type::List(inner) | Type::Optional(inner) | Type::Type(Some(inner)) => 1 + size(inner, limit - 1),
        Type::Map(entry) => {
            let key = 1 + size(&entry.0, limit - 1);
            key + size(&entry.1, limit.saturating_sub(key))
        }
        _ => 1,
    }
}
