//! Evaluating rules on an object: until one costs too much, or all together do.

use std::collections::HashMap;

use orlop_api::field::{Path, ProblemKind, Problems, shown};
use orlop_api::structural::SchemaType;
use orlop_cel::{Activation, Budget, DeclType, EvalError, EvalErrorKind, Value as CelValue, limits};
use serde_json::{Map, Value};

use super::{CompiledRule, RuleTree};

const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

/// Evaluates all rules on an object. With an old one, transition rules too, and what has not changed is forgiven.
pub(crate) fn validate_rules(tree: &RuleTree, new: &Value, old: Option<&Value>, p: &mut Problems) {
    evaluate(tree, new, old, old, &Path::default(), p);
}

/// The same for a part of an object: nothing is forgiven.
pub(crate) fn validate_rules_at(tree: &RuleTree, new: &Value, old: Option<&Value>, at: &Path, p: &mut Problems) {
    evaluate(tree, new, old, None, at, p);
}

fn evaluate(
    tree: &RuleTree,
    new: &Value,
    old: Option<&Value>,
    correlated: Option<&Value>,
    at: &Path,
    p: &mut Problems,
) {
    let mut evaluation = Evaluation {
        budget: Budget::new(limits::RUNTIME_CEL_COST_BUDGET),
        problems: p,
    };
    let before = Before {
        correlated,
        same_above: false,
        root: true,
    };
    // Whatever stopped it was told.
    let _ = evaluation.node(tree, new, old, before, at);
}

/// No further rules are evaluated.
struct Stopped;

/// What is known of a value's past, for forgiving what has not changed.
#[derive(Clone, Copy)]
struct Before<'v> {
    correlated: Option<&'v Value>,
    /// What holds the value cannot be told from its old self any more; this says whether the nearest part above that
    /// can is the same as before.
    same_above: bool,
    root: bool,
}

impl<'v> Before<'v> {
    fn unchanged(self, value: &Value) -> bool {
        match self.correlated {
            Some(old) => old == value,
            None => self.same_above,
        }
    }

    /// The past of a part, given that of the whole.
    fn part(self, whole: &Value, found: Option<&'v Value>) -> Before<'v> {
        let Some(old) = self.correlated else {
            return Before { root: false, ..self };
        };
        Before {
            correlated: found,
            same_above: found.is_none() && old == whole,
            root: false,
        }
    }
}

struct Evaluation<'b, 'p> {
    budget: Budget<'b>,
    problems: &'p mut Problems,
}

impl Evaluation<'_, '_> {
    fn node<'v>(
        &mut self,
        tree: &'v RuleTree,
        value: &'v Value,
        old: Option<&'v Value>,
        before: Before<'v>,
        at: &Path,
    ) -> Result<(), Stopped> {
        if value.is_null() {
            return Ok(());
        }
        self.rules(tree, value, old.filter(|o| !o.is_null()), before, at)?;
        match value {
            Value::Object(map) => self.members(tree, value, map, old, before, at),
            Value::Array(list) => self.elements(tree, value, list, old, before, at),
            _ => Ok(()),
        }
    }

    fn members<'v>(
        &mut self,
        tree: &'v RuleTree,
        value: &'v Value,
        map: &'v Map<String, Value>,
        old: Option<&'v Value>,
        before: Before<'v>,
        at: &Path,
    ) -> Result<(), Stopped> {
        let old_map = old.and_then(Value::as_object);
        let past = |name: &str| match before.root && matches!(name, "apiVersion" | "kind") {
            true => Before {
                correlated: None,
                same_above: false,
                root: false,
            },
            false => before.part(value, before.correlated.and_then(|o| o.get(name))),
        };
        if let Some(additional) = &tree.additional {
            for (name, part) in map {
                let old = old_map.and_then(|o| o.get(name));
                self.node(additional, part, old, past(name), &at.key(name))?;
            }
        }
        for (name, below) in &tree.properties {
            if let Some(part) = map.get(&**name) {
                let old = old_map.and_then(|o| o.get(&**name));
                self.node(below, part, old, past(name), &at.member(name))?;
            }
        }
        Ok(())
    }

    fn elements<'v>(
        &mut self,
        tree: &'v RuleTree,
        value: &'v Value,
        list: &'v [Value],
        old: Option<&'v Value>,
        before: Before<'v>,
        at: &Path,
    ) -> Result<(), Stopped> {
        let Some(items) = &tree.items else { return Ok(()) };
        let key = |value: &Value| {
            let parts: Vec<Option<&Value>> = tree.keys.iter().map(|k| value.get(&**k)).collect();
            serde_json::to_string(&parts).unwrap_or_default()
        };
        let olds = old.and_then(Value::as_array).filter(|_| !tree.keys.is_empty());
        let mut by_key: HashMap<String, &Value> = HashMap::new();
        for old in olds.into_iter().flatten() {
            by_key.entry(key(old)).or_insert(old);
        }
        for (i, element) in list.iter().enumerate() {
            let old = if by_key.is_empty() {
                None
            } else {
                by_key.get(&key(element)).copied()
            };
            self.node(items, element, old, before.part(value, old), &at.index(i))?;
        }
        Ok(())
    }

    fn rules<'v>(
        &mut self,
        tree: &'v RuleTree,
        value: &'v Value,
        old: Option<&'v Value>,
        before: Before<'v>,
        at: &Path,
    ) -> Result<(), Stopped> {
        let Some(decl) = tree.decl.as_deref().filter(|_| !tree.rules.is_empty()) else {
            return Ok(());
        };
        let mut place = Place { tree, value, at };
        let values = match Bound::new(value, old, decl) {
            Ok(values) => values,
            Err(e) => {
                for rule in &tree.rules {
                    self.problem(&place, format!("{e} evaluating rule: {}", rule.name));
                }
                return Ok(());
            }
        };
        for rule in &tree.rules {
            self.rule(rule, &values, before, &mut place)?;
        }
        Ok(())
    }

    /// A problem whose value is shown as the type's name, as Kubernetes does where rules fail to evaluate.
    fn problem(&mut self, place: &Place<'_>, detail: String) {
        let shown = Some(format!("{:?}", place.tree.ty.name()));
        self.problems.push(ProblemKind::Invalid, place.at, shown, detail);
    }

    fn rule<'v>(
        &mut self,
        rule: &'v CompiledRule,
        values: &Bound<'v>,
        before: Before<'v>,
        place: &mut Place<'_>,
    ) -> Result<(), Stopped> {
        let program = match &rule.program {
            None => return Ok(()),
            Some(Err(e)) => {
                self.problem(place, format!("rule compile error: {e}"));
                return Ok(());
            }
            Some(Ok(program)) => program,
        };
        if rule.uses_old_self && values.old.is_none() && !rule.optional_old_self {
            return Ok(());
        }
        if self.budget.remaining() == 0 {
            self.problem(place, OUT_OF_BUDGET.to_string());
            return Err(Stopped);
        }
        let activation = values.activation(rule.optional_old_self);
        match program.eval(&activation, &mut self.budget) {
            Err(e) => return self.failed(&e, rule, place),
            Ok(result) if result.as_bool() == Some(true) => return Ok(()),
            Ok(_) => {}
        }
        let forgiven = !rule.uses_old_self && before.unchanged(place.value);
        let inner = rule.field_path.as_ref().map(|path| place.at.member(path));
        let at = inner.as_ref().unwrap_or(place.at);
        let message = match self.message(rule, &activation) {
            Ok(message) => message,
            Err(detail) => {
                if !forgiven {
                    let shown = Some(format!("{:?}", place.tree.ty.name()));
                    self.problems.push(ProblemKind::Invalid, at, shown, detail);
                }
                return Err(Stopped);
            }
        };
        if forgiven {
            return Ok(());
        }
        let detail = message.unwrap_or_else(|| match &*rule.message {
            "" => format!("failed rule: {}", rule.name),
            message => message.to_string(),
        });
        // Of what has parts only the place is told.
        let value = match place.tree.ty {
            SchemaType::Object | SchemaType::Array => None,
            _ => Some(shown(Some(place.value))),
        };
        match rule.reason.as_deref() {
            Some("FieldValueForbidden") => self.problems.push(ProblemKind::Forbidden, at, None, detail),
            Some("FieldValueRequired") => self.problems.push(ProblemKind::Required, at, None, detail),
            Some("FieldValueDuplicate") => self.problems.push(ProblemKind::Duplicate, at, value, ""),
            _ => self.problems.push(ProblemKind::Invalid, at, value, detail),
        }
        Ok(())
    }

    fn failed(&mut self, e: &EvalError, rule: &CompiledRule, place: &Place<'_>) -> Result<(), Stopped> {
        let name = &rule.name;
        match e.kind {
            EvalErrorKind::OutOfBudget => {
                self.problem(place, OUT_OF_BUDGET.to_string());
                Err(Stopped)
            }
            EvalErrorKind::CostLimit => {
                let why = "no further validation rules will be run due to call cost exceeds limit for rule";
                self.problem(place, format!("'{e}': {why}: {name}"));
                Err(Stopped)
            }
            EvalErrorKind::Value | EvalErrorKind::Cancelled => {
                let text = e.to_string();
                if text.starts_with("no such overload") {
                    let why = "call arguments did not match a supported operator, function or macro signature for rule";
                    self.problem(place, format!("'{text}': {why}: {name}"));
                } else {
                    self.problem(place, format!("{text} evaluating rule: {name}"));
                }
                Ok(())
            }
        }
    }

    /// What the message expression gives, if there is one and it gives something usable; an error if it cost too much.
    fn message<'v>(&mut self, rule: &'v CompiledRule, activation: &Activation<'v>) -> Result<Option<String>, String> {
        let Some(Ok(program)) = &rule.message_expression else {
            return Ok(None);
        };
        let text = match program.eval(activation, &mut self.budget) {
            Ok(value) => value.as_str().map(|text| text.trim().to_string()),
            Err(e) if e.kind == EvalErrorKind::OutOfBudget => {
                return Err(
                    "messageExpression evaluation failed due to running out of cost budget, no further validation rules will be run"
                        .to_string(),
                );
            }
            Err(e) if e.kind == EvalErrorKind::CostLimit => {
                return Err(
                    "no further validation rules will be run due to call cost exceeds limit for messageExpression"
                        .to_string(),
                );
            }
            Err(_) => None,
        };
        let usable = |text: &String| {
            !text.is_empty()
                && !text.contains('\n')
                && text.len() <= limits::MAX_EVALUATED_MESSAGE_EXPRESSION_SIZE_BYTES
        };
        Ok(text.filter(usable))
    }
}

/// Where rules are evaluated.
struct Place<'a> {
    tree: &'a RuleTree,
    value: &'a Value,
    at: &'a Path,
}

/// The values of a node's variables.
struct Bound<'v> {
    new: CelValue<'v>,
    old: Option<CelValue<'v>>,
}

impl<'v> Bound<'v> {
    fn new(value: &'v Value, old: Option<&'v Value>, decl: &'v DeclType) -> Result<Bound<'v>, EvalError> {
        Ok(Bound {
            new: CelValue::declared(value, decl)?,
            old: old.map(|old| CelValue::declared(old, decl)).transpose()?,
        })
    }

    fn activation(&self, optional_old_self: bool) -> Activation<'v> {
        let activation = Activation::new().bind("self", self.new.clone());
        match (&self.old, optional_old_self) {
            (old, true) => activation.bind("oldSelf", CelValue::optional(old.clone())),
            (Some(old), false) => activation.bind("oldSelf", old.clone()),
            (None, false) => activation,
        }
    }
}
