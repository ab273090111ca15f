//! Compiled expressions and what they are evaluated with: the values of variables, and a budget.

use crate::ast::CheckedAst;
use crate::decl::DeclType;
use crate::estimate::{self, CostEstimate, SizeEstimate};
use crate::eval;
use crate::limits;
use crate::plan::Plan;
use crate::stack;
use crate::types::Type;
use crate::value::Value;
use std::sync::{Arc, OnceLock};

/// A compiled expression. Cheap to share, evaluated any number of times, from any thread.
#[derive(Debug)]
pub struct Program {
    pub(crate) plan: Plan,
    pub(crate) ast: CheckedAst,
    pub(crate) variables: Arc<[(String, Arc<DeclType>)]>,
}

impl Program {
    /// The value of the expression for these variables.
    ///
    /// Its cost goes to the budget, also if it fails.
    ///
    /// # Errors
    /// What the expression does wrong, in cel-go's words, and the ends of budgets.
    pub fn eval<'a>(&'a self, activation: &Activation<'a>, budget: &mut Budget<'_>) -> Result<Value<'a>, EvalError> {
        let evaluated = stack::with_room(self.plan.nesting, || eval::run(self, activation, budget));
        evaluated.unwrap_or_else(|why| Err(EvalError::new(format!("the expression is nested too deeply: {why}"))))
    }

    /// The type of its value.
    pub fn output_type(&self) -> &Type {
        self.ast.output_type()
    }

    /// The lowest and the highest cost that evaluations may have, as far as the declared types of the variables tell.
    pub fn estimate(&self) -> CostEstimate {
        self.estimate_with(None)
    }

    /// The same, with all texts that are not literals of one size: for comparisons with other engines.
    #[doc(hidden)]
    pub fn estimate_with_texts_of(&self, size: SizeEstimate) -> CostEstimate {
        self.estimate_with(Some(size))
    }

    fn estimate_with(&self, texts: Option<SizeEstimate>) -> CostEstimate {
        let estimate = || estimate::estimate(&self.ast, &self.variables, texts);
        // What cannot be estimated may cost anything.
        stack::with_room(self.plan.nesting, estimate).unwrap_or(CostEstimate { min: 0, max: u64::MAX })
    }

    /// Whether it uses this variable: `oldSelf` makes a rule a transition rule.
    pub fn uses(&self, variable: &str) -> bool {
        self.ast.uses(variable)
    }
}

/// The values of variables during evaluations.
#[derive(Default, Debug)]
pub struct Activation<'a> {
    values: Vec<(&'a str, Value<'a>)>,
    variables: Option<(&'a str, Variables<'a>)>,
}

impl<'a> Activation<'a> {
    pub fn new() -> Activation<'a> {
        Activation::default()
    }

    /// Gives a variable its value. A variable that has none gives `no such attribute(s): NAME` where it is used.
    #[must_use]
    pub fn bind(mut self, name: &'a str, value: Value<'a>) -> Activation<'a> {
        self.values.retain(|(bound, _)| *bound != name);
        self.values.push((name, value));
        self
    }

    /// Makes `name` an object whose fields are expressions, evaluated at their first use with this same activation.
    #[must_use]
    pub fn bind_variables(mut self, name: &'a str, variables: Variables<'a>) -> Activation<'a> {
        self.variables = Some((name, variables));
        self
    }

    pub(crate) fn value(&self, name: &str) -> Option<&Value<'a>> {
        self.values
            .iter()
            .find(|(bound, _)| *bound == name)
            .map(|(_, value)| value)
    }

    pub(crate) fn variables(&self, name: &str) -> Option<&Variables<'a>> {
        self.variables
            .as_ref()
            .filter(|(bound, _)| *bound == name)
            .map(|(_, variables)| variables)
    }

    pub(crate) fn the_variables(&self) -> Option<&Variables<'a>> {
        self.variables.as_ref().map(|(_, variables)| variables)
    }
}

/// Named expressions of a policy (`variables.NAME`). What one evaluates to is kept for the activation that it is bound to.
#[derive(Default, Debug)]
pub struct Variables<'a> {
    entries: Vec<(&'a str, &'a Program, OnceLock<Result<Value<'a>, EvalError>>)>,
}

impl<'a> Variables<'a> {
    /// In the order of their definition; each may use those before it.
    pub fn new(entries: impl IntoIterator<Item = (&'a str, &'a Program)>) -> Variables<'a> {
        let entries = entries
            .into_iter()
            .map(|(name, program)| (name, program, OnceLock::new()));
        Variables {
            entries: entries.collect(),
        }
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.entries.iter().any(|(entry, _, _)| *entry == name)
    }

    pub(crate) fn get(
        &self,
        name: &str,
        activation: &Activation<'a>,
        budget: &mut Budget<'_>,
    ) -> Option<Result<Value<'a>, EvalError>> {
        let (_, program, cell) = self.entries.iter().find(|(entry, _, _)| *entry == name)?;
        if let Some(known) = cell.get() {
            return Some(known.clone());
        }
        let result = program.eval(activation, budget);
        Some(cell.get_or_init(|| result).clone())
    }
}

/// What evaluations may cost.
pub struct Budget<'b> {
    per_call: u64,
    remaining: u64,
    last: u64,
    /// Variables that are being evaluated inside of one another.
    nested: u32,
    cancelled: Option<&'b (dyn Fn() -> bool + Sync)>,
}

impl<'b> Budget<'b> {
    /// For evaluations that may cost so much together (see [`limits`]), and each [`limits::PER_CALL_LIMIT`].
    pub fn new(total: u64) -> Budget<'b> {
        Budget {
            per_call: limits::PER_CALL_LIMIT,
            remaining: total,
            last: 0,
            nested: 0,
            cancelled: None,
        }
    }

    /// Without a bound on the sum.
    pub fn per_call() -> Budget<'b> {
        Budget::new(u64::MAX)
    }

    /// Another bound of one evaluation.
    #[must_use]
    pub fn with_per_call_limit(mut self, limit: u64) -> Budget<'b> {
        self.per_call = limit;
        self
    }

    /// Asks now and then, in loops, whether nobody waits for the value any more.
    #[must_use]
    pub fn with_cancellation(mut self, cancelled: &'b (dyn Fn() -> bool + Sync)) -> Budget<'b> {
        self.cancelled = Some(cancelled);
        self
    }

    /// What is left of the sum.
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// What the last evaluation cost, with the variables that it was the first to use.
    pub fn last_cost(&self) -> u64 {
        self.last
    }

    pub(crate) fn limit(&self) -> u64 {
        self.per_call
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.is_some_and(|cancelled| cancelled())
    }

    /// Takes the cost of an evaluation; false if it is more than there was.
    pub(crate) fn charge(&mut self, cost: u64) -> bool {
        let enough = cost <= self.remaining;
        self.remaining = self.remaining.saturating_sub(cost);
        enough
    }

    pub(crate) fn set_last_cost(&mut self, cost: u64) {
        self.last = cost;
    }

    pub(crate) fn clear_last_cost(&mut self) {
        self.last = 0;
    }

    /// Notes that a variable is evaluated in the middle of an evaluation; false if that is too deep.
    pub(crate) fn enter(&mut self, limit: u32) -> bool {
        self.nested += 1;
        self.nested <= limit
    }

    pub(crate) fn leave(&mut self) {
        self.nested = self.nested.saturating_sub(1);
    }
}

/// Why an expression has no value. `Display` is what users see.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct EvalError {
    pub kind: EvalErrorKind,
    pub message: String,
}

/// What a caller may want to tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvalErrorKind {
    /// The expression cannot be evaluated for these values: no such key, an overflow …
    Value,
    /// One evaluation cost more than [`limits::PER_CALL_LIMIT`].
    CostLimit,
    /// All evaluations cost more than the budget.
    OutOfBudget,
    /// Nobody waits any more.
    Cancelled,
}

impl EvalError {
    pub(crate) fn new(message: impl Into<String>) -> EvalError {
        EvalError {
            kind: EvalErrorKind::Value,
            message: message.into(),
        }
    }

    pub(crate) fn no_such_overload() -> EvalError {
        EvalError::new("no such overload")
    }

    pub(crate) fn cost_limit() -> EvalError {
        EvalError {
            kind: EvalErrorKind::CostLimit,
            message: "operation cancelled: actual cost limit exceeded".to_string(),
        }
    }

    pub(crate) fn out_of_budget() -> EvalError {
        EvalError {
            kind: EvalErrorKind::OutOfBudget,
            message: "validation failed due to running out of cost budget, no further validation rules will be run"
                .to_string(),
        }
    }

    pub(crate) fn cancelled() -> EvalError {
        EvalError {
            kind: EvalErrorKind::Cancelled,
            message: "operation interrupted".to_string(),
        }
    }

    /// Ends the evaluation at once: `||` and the like must not swallow it.
    pub(crate) fn is_final(&self) -> bool {
        self.kind != EvalErrorKind::Value
    }
}
