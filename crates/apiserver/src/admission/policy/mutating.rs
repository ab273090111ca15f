//! MutatingAdmissionPolicy: what its mutations make of the object.
//!
//! Upstream: apiserver/pkg/admission/plugin/policy/mutating (v1.36).

use std::collections::HashSet;
use std::sync::Arc;

use orlop_api::patch::{apply as ownership, json as json_patch};
use orlop_api::status::Cause;
use orlop_api::{KindDef, Status, Value};
use orlop_base::clock::monotonic;
use orlop_cel::{Budget, limits};

use super::super::Review;
use super::super::cel::{Expression, Inputs, with_variables};
use super::super::conditions::Matched;
use super::super::metrics::Step;
use super::super::shown::{Form, put_back, schema_type, type_name};
use super::{Binding, Mutation, Policy, params};
use crate::custom;
use crate::lookup::text;

/// What reinvocation remembers of the first round.
#[derive(Default)]
pub(in super::super) struct PolicyRounds {
    called: HashSet<String>,
    again: HashSet<String>,
    output: Option<Value>,
}

impl PolicyRounds {
    fn require_all(&mut self) {
        self.again.extend(self.called.drain());
    }
}

/// Why a policy refuses a request: it is misconfigured, or an expression fails.
struct PolicyError {
    message: String,
    /// Empty: Forbidden.
    reason: &'static str,
}

/// A policy, one of its bindings, and one parameter of that.
struct Invocation<'p> {
    policy: &'p Policy,
    binding: &'p Binding,
    kind: &'static KindDef,
    param: Option<Arc<Value>>,
}

impl Invocation<'_> {
    /// Tells it from others, so that reinvocation knows it again.
    fn key(&self) -> String {
        let param = |name| {
            self.param
                .as_deref()
                .map_or("", |param| text(param, &["metadata", name]))
        };
        format!(
            "{}/{}/{}/{}",
            self.policy.name,
            self.binding.name,
            param("namespace"),
            param("name")
        )
    }

    fn error(&self, why: &str, reason: &'static str) -> Option<PolicyError> {
        let (policy, binding) = (&self.policy.name, &self.binding.name);
        (!self.policy.fails_open).then(|| PolicyError {
            message: format!("policy '{policy}' with binding '{binding}' denied request: {why}"),
            reason,
        })
    }
}

/// One round of the policies. Says whether one of them has changed the object.
pub(in super::super) async fn mutate(
    review: &Review<'_>,
    policies: &[Policy],
    rounds: &mut PolicyRounds,
    round: u8,
    object: &mut Value,
    old: Option<&Value>,
) -> Result<bool, Status> {
    if round > 0 && rounds.output.as_ref() != Some(object) {
        rounds.require_all();
    }
    let mut errors = vec![];
    let invocations = invocations(review, policies, object, old, &mut errors).await;
    let mut changed = false;
    for invocation in invocations {
        let key = invocation.key();
        match invocation.is_wanted(review, object, old).await? {
            Matched::Yes => {}
            Matched::No | Matched::Failed { open: true, .. } => continue,
            Matched::Failed { why, open: false } => {
                errors.extend(invocation.error(&why, "Invalid"));
                continue;
            }
        }
        if round > 0 && !rounds.again.contains(&key) {
            continue;
        }
        let mut has_changed = false;
        for mutation in &invocation.policy.mutations {
            let started = monotonic();
            let applied = invocation.apply(review, mutation, object, old).await;
            let error = applied.as_ref().err().map(MutationError::text);
            let (policy, binding) = (&invocation.policy.name, &invocation.binding.name);
            let metrics = &review.dynamic.metrics;
            metrics.mutated(error, policy, binding, started.elapsed());
            match applied {
                Ok(by_this) => has_changed |= by_this,
                Err(MutationError::Status(status)) => return Err(status),
                Err(MutationError::Policy(why)) => errors.extend(invocation.error(&why, "Invalid")),
            }
        }
        if has_changed {
            changed = true;
            rounds.require_all();
        }
        if invocation.policy.reinvoke {
            rounds.called.insert(key);
        }
    }
    rounds.output = Some(object.clone());
    match errors.is_empty() {
        true => Ok(changed),
        false => Err(refusal(review, errors)),
    }
}

fn refusal(review: &Review<'_>, errors: Vec<PolicyError>) -> Status {
    let mut status = review.forbidden("admission request denied by policy");
    if let Some(first) = errors.first() {
        status.message = first.message.clone();
        if !first.reason.is_empty() {
            status.reason = first.reason.into();
        }
    }
    let causes = errors.into_iter().map(|error| Cause {
        reason: String::new(),
        message: error.message,
        field: String::new(),
    });
    status.details.get_or_insert_default().causes.extend(causes);
    status
}

async fn invocations<'p>(
    review: &Review<'_>,
    policies: &'p [Policy],
    object: &Value,
    old: Option<&Value>,
    errors: &mut Vec<PolicyError>,
) -> Vec<Invocation<'p>> {
    let mut found = vec![];
    for policy in policies {
        let mut misconfigured = |binding: Option<&Binding>, why: &str| {
            let (name, what) = (&policy.name, if binding.is_some() { "binding" } else { "policy" });
            let message = match binding {
                Some(binding) => format!(
                    "policy '{name}' with binding '{}' denied request: failed to configure {what}: {why}",
                    binding.name
                ),
                None => format!("policy {name:?} denied request: failed to configure {what}: {why}"),
            };
            if !policy.fails_open {
                errors.push(PolicyError { message, reason: "" });
            }
        };
        let kind = match policy.matcher.matches(review, Some(object), old) {
            Ok(Some(kind)) => kind,
            Ok(None) => continue,
            Err(status) => {
                misconfigured(None, &status.message);
                continue;
            }
        };
        let param_kind = match policy.param_kind(review) {
            Ok(param_kind) => param_kind,
            Err(why) => {
                misconfigured(None, &why);
                continue;
            }
        };
        for binding in &policy.bindings {
            let allows = |matcher: &super::Matcher| matcher.allows(review, Some(object), old);
            match binding.matcher.as_ref().map_or(Ok(true), allows) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(status) => {
                    misconfigured(Some(binding), &status.message);
                    continue;
                }
            }
            if let Err(status) = Form::new(review, kind, Some(object), old).await {
                misconfigured(None, &status.message);
                continue;
            }
            match params(review, param_kind, binding.params.as_ref()).await {
                Err(why) => misconfigured(Some(binding), &why),
                Ok(params) => found.extend(params.into_iter().map(|param| Invocation {
                    policy,
                    binding,
                    kind,
                    param,
                })),
            }
        }
    }
    found
}

/// Why a mutation was not made.
enum MutationError {
    /// The request ends with this, whatever the failurePolicy.
    Status(Status),
    Policy(String),
}

impl MutationError {
    fn text(&self) -> &str {
        match self {
            MutationError::Status(status) => &status.message,
            MutationError::Policy(why) => why,
        }
    }
}

impl Invocation<'_> {
    async fn is_wanted(&self, review: &Review<'_>, object: &Value, old: Option<&Value>) -> Result<Matched, Status> {
        if self.policy.conditions.is_empty() {
            return Ok(Matched::Yes);
        }
        let form = Form::new(review, self.kind, Some(object), old).await?;
        let inputs = Inputs::new(review, self.kind, form, false);
        let null = Value::Null;
        let (conditions, name) = (&self.policy.conditions, &self.policy.name);
        let activation = inputs.activation(self.params(&null), true);
        Ok(conditions.evaluate_for(review, "policy", name, Step::Validate, &activation))
    }

    fn params<'a>(&'a self, null: &'a Value) -> Option<&'a Value> {
        let has_params = self.policy.param_kind.is_some();
        has_params.then(|| self.param.as_deref().unwrap_or(null))
    }

    /// Evaluates one mutation on what those before it made, and puts what it makes in the object's place.
    async fn apply(
        &self,
        review: &Review<'_>,
        mutation: &Mutation,
        object: &mut Value,
        old: Option<&Value>,
    ) -> Result<bool, MutationError> {
        let (Mutation::ApplyConfiguration(expression) | Mutation::JsonPatch(expression)) = mutation;
        let form = Form::new(review, self.kind, Some(object), old).await;
        let form = form.map_err(MutationError::Status)?;
        let before = form.object.clone().unwrap_or_default().into_owned();
        let made = self.evaluate(review, expression, form).map_err(MutationError::Policy)?;
        let after = match mutation {
            Mutation::ApplyConfiguration(_) => self.merged(review, &before, made).map_err(MutationError::Policy)?,
            Mutation::JsonPatch(_) => match patched(before, &made).map_err(MutationError::Policy)? {
                Some(after) => after,
                None => return Ok(false),
            },
        };
        put_back(review, self.kind, after, object)
            .await
            .map_err(MutationError::Status)
    }

    fn evaluate(&self, review: &Review<'_>, expression: &Expression, form: Form<'_>) -> Result<Value, String> {
        let inputs = Inputs::new(review, self.kind, form, true);
        let null = Value::Null;
        let activation = with_variables(inputs.activation(self.params(&null), true), &self.policy.variables);
        let mut budget = Budget::new(limits::RUNTIME_CEL_COST_BUDGET);
        let value = expression.evaluate(&activation, &mut budget);
        let value = value.map_err(|error| error.text().to_string())?;
        value.to_json().map_err(|error| format!("type mismatch: {error}"))
    }

    /// An apply configuration merged by the kind's schema. Nobody owns what it sets.
    fn merged(&self, review: &Review<'_>, before: &Value, mut config: Value) -> Result<Value, String> {
        let name = type_name(self.kind, review.subresource);
        config["apiVersion"] = name.api_version().into();
        config["kind"] = name.kind.into();
        let version = custom::schema_of(self.kind).filter(|_| name == type_name(self.kind, ""));
        let ty = match &version {
            Some(version) => version.object_type(),
            None => schema_type(self.kind, name).into(),
        };
        ownership::merge_configuration(before, &config, ty).map_err(|why| format!("error applying patch: {why}"))
    }
}

/// The object with the operations applied; none if a `test` among them fails.
fn patched(mut object: Value, operations: &Value) -> Result<Option<Value>, String> {
    match json_patch::apply(&mut object, operations.to_string().as_bytes()) {
        Ok(()) => Ok(Some(object)),
        Err(error) if json_patch::is_failed_test(&error) => Ok(None),
        Err(error) => Err(format!("JSON Patch: {error}")),
    }
}
