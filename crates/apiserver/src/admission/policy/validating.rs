//! ValidatingAdmissionPolicy: what its validations decide, and what becomes of that.
//!
//! Upstream: apiserver/pkg/admission/plugin/policy/validating (v1.36).

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use orlop_api::status::Cause;
use orlop_api::{KindDef, Status, Value};
use orlop_base::clock::monotonic;
use orlop_cel::{Budget, limits};
use serde_json::json;

use super::super::Review;
use super::super::cel::{EvaluationError, Inputs, with_variables};
use super::super::conditions::Matched;
use super::super::metrics::Step;
use super::super::shown::Form;
use super::{Binding, Policy, Validation, params};

/// The longest value of an audit annotation.
const ANNOTATION_BYTES_MAX: usize = 10 << 10;

/// What a validation that does not hold comes to.
#[derive(Debug, PartialEq)]
struct Failure {
    message: String,
    /// Empty: Invalid.
    reason: String,
    /// Which validation.
    index: usize,
}

/// What one evaluation of a policy gives.
#[derive(Default)]
struct Outcome {
    failures: Vec<Failure>,
    /// Key and value.
    annotations: Vec<(String, String)>,
    /// Annotations that have no value, where that is a reason to refuse.
    annotation_errors: Vec<String>,
    /// Why validations have no value, where that is no reason to refuse.
    tolerated: Vec<String>,
    took: Duration,
}

/// A refusal by a policy, in a binding if it is about one.
struct Denial<'p> {
    policy: &'p Policy,
    binding: Option<&'p Binding>,
    message: String,
    reason: String,
}

/// What expressions see of the request, made once for each kind in whose form a policy wants to see it.
struct Seen<'r> {
    review: &'r Review<'r>,
    object: Option<&'r Value>,
    old: Option<&'r Value>,
    by_kind: Vec<(&'static KindDef, Inputs<'r>)>,
}

impl<'r> Seen<'r> {
    async fn by(&mut self, kind: &'static KindDef) -> Result<&Inputs<'r>, Status> {
        let known = self.by_kind.iter().position(|(known, _)| std::ptr::eq(*known, kind));
        let place = match known {
            Some(place) => place,
            None => {
                let form = Form::new(self.review, kind, self.object, self.old).await?;
                self.by_kind.push((kind, Inputs::new(self.review, kind, form, true)));
                self.by_kind.len() - 1
            }
        };
        Ok(&self.by_kind[place].1)
    }
}

/// Lets all policies that look at the request refuse it.
pub(in super::super) async fn validate(
    review: &Review<'_>,
    policies: &[Policy],
    object: Option<&Value>,
    old: Option<&Value>,
) -> Result<(), Status> {
    let mut denials = vec![];
    let mut seen = Seen {
        review,
        object,
        old,
        by_kind: vec![],
    };
    for policy in policies {
        match policy.matcher.matches(review, object, old) {
            Ok(None) => {}
            Ok(Some(kind)) => policy.review(&mut seen, kind, &mut denials).await,
            Err(status) => misconfigured(policy, None, &status.message, &mut denials),
        }
    }
    match denials.first() {
        Some(denial) => Err(refusal(review, denial)),
        None => Ok(()),
    }
}

fn misconfigured<'p>(policy: &'p Policy, binding: Option<&'p Binding>, why: &str, denials: &mut Vec<Denial<'p>>) {
    if !policy.fails_open {
        let what = if binding.is_some() { "binding" } else { "policy" };
        denials.push(Denial {
            policy,
            binding,
            message: format!("failed to configure {what}: {why}"),
            reason: String::new(),
        });
    }
}

fn refusal(review: &Review<'_>, denial: &Denial<'_>) -> Status {
    let (policy, message) = (&denial.policy.name, &denial.message);
    let message = match denial.binding {
        Some(binding) => format!(
            "ValidatingAdmissionPolicy '{policy}' with binding '{}' denied request: {message}",
            binding.name
        ),
        None => format!("ValidatingAdmissionPolicy '{policy}' denied request: {message}"),
    };
    let mut status = review.forbidden(&message);
    let reason = if denial.reason.is_empty() {
        "Invalid"
    } else {
        &denial.reason
    };
    status.code = match reason {
        "Unauthorized" => 401,
        "Forbidden" => 403,
        "RequestEntityTooLarge" => 413,
        _ => 422,
    };
    status.reason = reason.to_string().into();
    let cause = Cause {
        reason: String::new(),
        message,
        field: String::new(),
    };
    status.details.get_or_insert_default().causes.push(cause);
    status
}

impl Policy {
    async fn review<'p>(&'p self, seen: &mut Seen<'_>, kind: &'static KindDef, denials: &mut Vec<Denial<'p>>) {
        let (review, object, old) = (seen.review, seen.object, seen.old);
        let param_kind = match self.param_kind(review) {
            Ok(param_kind) => param_kind,
            Err(why) => {
                misconfigured(self, None, &why, denials);
                return;
            }
        };
        let mut annotations: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for binding in &self.bindings {
            let allows = |matcher: &super::Matcher| matcher.allows(review, object, old);
            match binding.matcher.as_ref().map_or(Ok(true), allows) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(status) => {
                    misconfigured(self, Some(binding), &status.message, denials);
                    continue;
                }
            }
            let params = match params(review, param_kind, binding.params.as_ref()).await {
                Ok(params) => params,
                Err(why) => {
                    misconfigured(self, Some(binding), &why, denials);
                    continue;
                }
            };
            let inputs = match seen.by(kind).await {
                Ok(inputs) => inputs,
                Err(status) => {
                    let why = format!("failed to convert object version: {}", status.message);
                    misconfigured(self, Some(binding), &why, denials);
                    continue;
                }
            };
            for param in params {
                let started = monotonic();
                let mut outcome = self.evaluate(review, inputs, param);
                outcome.took = started.elapsed();
                let metrics = &review.dynamic.metrics;
                for (action, messages) in [("allow", &outcome.tolerated), ("deny", &outcome.annotation_errors)] {
                    for message in messages {
                        metrics.checked(action, message, &self.name, &binding.name, outcome.took);
                    }
                }
                self.act(review, binding, &outcome, denials);
                for (key, value) in outcome.annotations {
                    let values = annotations.entry(key).or_default();
                    if !values.contains(&value) {
                        values.push(value);
                    }
                }
                denials.extend(outcome.annotation_errors.into_iter().map(|message| Denial {
                    policy: self,
                    binding: Some(binding),
                    message,
                    reason: String::new(),
                }));
            }
        }
        for (key, values) in annotations {
            review
                .warnings
                .annotate(format!("{}/{key}", self.name), values.join(", "));
        }
    }

    /// Does with failures what the binding says: Deny, Warn, Audit.
    fn act<'p>(&'p self, review: &Review<'_>, binding: &'p Binding, outcome: &Outcome, denials: &mut Vec<Denial<'p>>) {
        for failure in &outcome.failures {
            for action in &binding.actions {
                let (policy, message) = (&self.name, &failure.message);
                let metrics = &review.dynamic.metrics;
                metrics.checked(&action.to_lowercase(), message, policy, &binding.name, outcome.took);
                match action.as_str() {
                    "Deny" => denials.push(Denial {
                        policy: self,
                        binding: Some(binding),
                        message: message.clone(),
                        reason: failure.reason.clone(),
                    }),
                    "Warn" => review.warnings.add(format!(
                        "Validation failed for ValidatingAdmissionPolicy '{policy}' with binding '{}': {message}",
                        binding.name
                    )),
                    _ => {
                        let value = json!([{"message": message, "policy": policy, "binding": binding.name,
                            "expressionIndex": failure.index, "validationActions": binding.actions}]);
                        let key = "validation.policy.admission.k8s.io/validation_failure";
                        review.warnings.annotate(key.to_string(), value.to_string());
                    }
                }
            }
        }
    }

    fn evaluate(&self, review: &Review<'_>, inputs: &Inputs<'_>, param: Option<Arc<Value>>) -> Outcome {
        let null = Value::Null;
        let param = self.param_kind.is_some().then(|| param.as_deref().unwrap_or(&null));
        let failed = |why: &str| {
            let failure = Failure {
                message: why.to_string(),
                reason: String::new(),
                index: 0,
            };
            match self.fails_open {
                true => Outcome {
                    tolerated: vec![failure.message],
                    ..Default::default()
                },
                false => Outcome {
                    failures: vec![failure],
                    ..Default::default()
                },
            }
        };
        let activation = with_variables(inputs.activation(param, true), &self.variables);
        let conditions = &self.conditions;
        match conditions.evaluate_for(review, "policy", &self.name, Step::Validate, &activation) {
            Matched::Yes => {}
            Matched::No | Matched::Failed { open: true, .. } => return Outcome::default(),
            Matched::Failed { why, open: false } => return failed(&why),
        }
        let mut budget = Budget::new(limits::RUNTIME_CEL_COST_BUDGET);
        let mut verdicts = vec![];
        for validation in &self.validations {
            match validation.expression.evaluate(&activation, &mut budget) {
                Ok(value) => verdicts.push(Ok(value.as_bool() == Some(true))),
                Err(EvaluationError::OutOfBudget(why)) => return failed(&why),
                Err(EvaluationError::Expression(why)) => verdicts.push(Err(why)),
            }
        }
        let messages = OnceCell::new();
        let messages = || {
            let activation = || with_variables(inputs.activation(param, false), &self.variables);
            messages.get_or_init(activation)
        };
        let mut outcome = Outcome::default();
        for (index, (validation, verdict)) in self.validations.iter().zip(verdicts).enumerate() {
            match verdict {
                Ok(true) => {}
                Ok(false) => match validation.message(messages(), &mut budget) {
                    Ok(message) => outcome.failures.push(Failure {
                        message,
                        reason: validation.reason.clone(),
                        index,
                    }),
                    Err(why) => return failed(&format!("failed messageExpression: {why}")),
                },
                Err(message) if self.fails_open => outcome.tolerated.push(message),
                Err(message) => outcome.failures.push(Failure {
                    message,
                    reason: String::new(),
                    index,
                }),
            }
        }
        let mut budget = Budget::new(limits::RUNTIME_CEL_COST_BUDGET);
        for (key, expression) in &self.audit_annotations {
            match expression.evaluate(&activation, &mut budget) {
                Ok(value) => {
                    let value = value.as_str().unwrap_or("").trim();
                    if !value.is_empty() {
                        let end = value.floor_char_boundary(ANNOTATION_BYTES_MAX);
                        outcome.annotations.push((key.clone(), value[..end].to_string()));
                    }
                }
                Err(_) if self.fails_open => {}
                Err(EvaluationError::OutOfBudget(why)) => return failed(&why),
                Err(EvaluationError::Expression(why)) => outcome.annotation_errors.push(why),
            }
        }
        outcome
    }
}

impl Validation {
    /// What to tell the user: what the messageExpression gives, else the message, else the expression itself. An error if
    /// the budget is spent.
    fn message<'a>(
        &'a self,
        activation: &orlop_cel::Activation<'a>,
        budget: &mut Budget<'_>,
    ) -> Result<String, String> {
        if let Some(expression) = &self.message_expression {
            match expression.evaluate(activation, budget) {
                Ok(value) => {
                    let message = value.as_str().unwrap_or("").trim();
                    let fits = message.len() <= limits::MAX_EVALUATED_MESSAGE_EXPRESSION_SIZE_BYTES;
                    if !message.is_empty() && fits && !message.contains('\n') {
                        return Ok(message.to_string());
                    }
                }
                Err(EvaluationError::OutOfBudget(why)) => return Err(why),
                Err(EvaluationError::Expression(why)) => {
                    tracing::debug!(err = %why, "failed to evaluate messageExpression");
                }
            }
        }
        Ok(match self.message.trim() {
            "" => format!("failed expression: {}", self.expression.text.trim()),
            message => message.to_string(),
        })
    }
}
