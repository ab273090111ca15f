//! `matchConditions`: CEL expressions that all have to be true for a webhook or policy to be asked.
//!
//! Upstream: apiserver/pkg/admission/plugin/webhook/matchconditions (v1.36).

use orlop_api::admissionregistration::expressions::Role;
use orlop_api::{KindDef, Value};
use orlop_base::clock::monotonic;
use orlop_cel::{Activation, Budget, limits};

use super::Review;
use super::cel::{Compiler, Expression, Inputs};
use super::metrics::Step;
use super::shown::Form;
use crate::lookup::text;

/// Whether all conditions hold.
#[derive(Debug, PartialEq)]
pub(super) enum Matched {
    Yes,
    No,
    /// One of them could not be evaluated, and none is false. `open`: then nothing is asked and the request goes on.
    Failed {
        why: String,
        open: bool,
    },
}

/// The conditions of one webhook or policy.
#[derive(Debug)]
pub(super) struct Conditions {
    expressions: Vec<Expression>,
    fails_open: bool,
}

impl Conditions {
    pub(super) fn new(conditions: &[Value], has_params: bool, fails_open: bool) -> Conditions {
        let compiler = Compiler::default();
        let compiled = conditions.iter().map(|condition| {
            let text = text(condition, &["expression"]);
            Expression {
                text: text.to_string(),
                program: compiler.compile(text, Role::MatchCondition, has_params),
            }
        });
        Conditions {
            expressions: compiled.collect(),
            fails_open,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.expressions.is_empty()
    }

    /// For a webhook, which has no parameters.
    pub(super) fn evaluate(
        &self,
        review: &Review<'_>,
        name: &str,
        step: Step,
        kind: &'static KindDef,
        form: &Form<'_>,
    ) -> Matched {
        if self.is_empty() {
            return Matched::Yes;
        }
        let inputs = Inputs::new(review, kind, form.borrowed(), false);
        self.evaluate_for(review, "webhook", name, step, &inputs.activation(None, true))
    }

    /// Evaluates them, and counts it as those of the webhook or policy of that name.
    pub(super) fn evaluate_for<'a>(
        &'a self,
        review: &Review<'_>,
        owner: &str,
        name: &str,
        step: Step,
        activation: &Activation<'a>,
    ) -> Matched {
        if self.is_empty() {
            return Matched::Yes;
        }
        let (metrics, operation) = (&review.dynamic.metrics, review.operation);
        let started = monotonic();
        let matched = self.evaluate_all(activation);
        metrics.evaluated(owner, name, step, operation, started.elapsed());
        match matched {
            Matched::Yes => {}
            Matched::No => metrics.excluded(owner, name, step, operation),
            Matched::Failed { .. } => metrics.evaluation_error(owner, name, step, operation),
        }
        matched
    }

    fn evaluate_all<'a>(&'a self, activation: &Activation<'a>) -> Matched {
        let mut budget = Budget::new(limits::RUNTIME_CEL_COST_BUDGET_MATCH_CONDITIONS);
        let mut errors: Vec<String> = vec![];
        for expression in &self.expressions {
            match expression.evaluate(activation, &mut budget) {
                Ok(value) if value.as_bool() == Some(false) => return Matched::No,
                Ok(_) => {}
                Err(error) => errors.push(error.text().to_string()),
            }
        }
        match errors.as_slice() {
            [] => Matched::Yes,
            _ => Matched::Failed {
                why: super::together(errors),
                open: self.fails_open,
            },
        }
    }
}
