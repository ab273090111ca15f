//! Admission policies: ValidatingAdmissionPolicy and MutatingAdmissionPolicy with their bindings.
//!
//! Here is what both have in common: what policies and bindings say, compiled, and which parameters they are evaluated
//! with. `validating` and `mutating` evaluate them.
//!
//! Upstream: apiserver/pkg/admission/plugin/policy/generic (v1.36).

mod mutating;
#[cfg(test)]
mod tests;
pub(crate) mod type_check;
mod validating;

use std::ops::Deref;
use std::sync::Arc;

use orlop_api::admissionregistration::expressions::Role;
use orlop_api::selector::LabelSelector;
use orlop_api::{KindDef, Value};
use orlop_cel::Type;

use super::Review;
use super::cel::{Compiler, Expression};
use super::conditions::Conditions;
use super::matching::Matcher;
use super::shown::{converted, converter};
use crate::kinds;
use crate::lookup::{ObjectLookup, items, strings, text};

pub(super) use mutating::{PolicyRounds, mutate};
pub(super) use validating::validate;

pub(super) const MUTATING: [&str; 2] = [
    "mutatingadmissionpolicies.admissionregistration.k8s.io",
    "mutatingadmissionpolicybindings.admissionregistration.k8s.io",
];
pub(super) const VALIDATING: [&str; 2] = [
    "validatingadmissionpolicies.admissionregistration.k8s.io",
    "validatingadmissionpolicybindings.admissionregistration.k8s.io",
];

/// A policy, with all that binds it.
pub(super) struct Policy {
    definition: Arc<Definition>,
    bindings: Vec<Binding>,
}

impl Deref for Policy {
    type Target = Definition;

    fn deref(&self) -> &Definition {
        &self.definition
    }
}

/// A policy as its object describes it, ready to be evaluated.
pub(super) struct Definition {
    /// Which state of the object it was compiled from.
    uid: String,
    revision: String,
    name: String,
    matcher: Matcher,
    fails_open: bool,
    /// apiVersion and kind of its parameters.
    param_kind: Option<(String, String)>,
    conditions: Conditions,
    variables: Vec<(String, Expression)>,
    /// Of a validating policy.
    validations: Vec<Validation>,
    audit_annotations: Vec<(String, Expression)>,
    /// Of a mutating policy.
    mutations: Vec<Mutation>,
    reinvoke: bool,
}

struct Validation {
    expression: Expression,
    message: String,
    message_expression: Option<Expression>,
    reason: String,
}

enum Mutation {
    ApplyConfiguration(Expression),
    JsonPatch(Expression),
}

struct Binding {
    name: String,
    matcher: Option<Matcher>,
    params: Option<ParamRef>,
    /// Of a validating policy: Deny, Warn, Audit.
    actions: Vec<String>,
}

struct ParamRef {
    name: String,
    namespace: String,
    selector: Result<Option<LabelSelector>, String>,
    must_exist: bool,
}

/// The policies that something binds, ordered by name. What was compiled before and has not changed is taken over.
pub(super) fn compile(
    lookup: &(dyn ObjectLookup + Sync),
    [policies, bindings]: [&str; 2],
    before: &[Policy],
) -> Vec<Policy> {
    let name = |object: &Value| text(object, &["metadata", "name"]).to_string();
    let mut policies = lookup.list(policies, None);
    policies.sort_by_cached_key(|policy| name(policy));
    let mut bindings = lookup.list(bindings, None);
    bindings.sort_by_cached_key(|binding| name(binding));
    let bound = |policy: &Arc<Value>| {
        let own = bindings
            .iter()
            .filter(|b| text(b, &["spec", "policyName"]) == name(policy));
        let own: Vec<Binding> = own.map(|b| Binding::from_value(b)).collect();
        (!own.is_empty()).then(|| Policy {
            definition: definition(policy, before),
            bindings: own,
        })
    };
    policies.iter().filter_map(bound).collect()
}

fn definition(policy: &Value, before: &[Policy]) -> Arc<Definition> {
    let word = |name| text(policy, &["metadata", name]);
    let place = before
        .binary_search_by(|known| known.name.as_str().cmp(word("name")))
        .ok();
    let known = place.map(|place| &before[place].definition);
    match known.filter(|known| known.uid == word("uid") && known.revision == word("resourceVersion")) {
        Some(known) => known.clone(),
        None => Arc::new(Definition::new(policy)),
    }
}

impl Binding {
    fn from_value(binding: &Value) -> Binding {
        let spec = &binding["spec"];
        let params = spec.get("paramRef").filter(|params| params.is_object());
        Binding {
            name: text(binding, &["metadata", "name"]).to_string(),
            matcher: spec
                .get("matchResources")
                .filter(|m| m.is_object())
                .map(Matcher::of_resources),
            params: params.map(|params| ParamRef {
                name: text(params, &["name"]).to_string(),
                namespace: text(params, &["namespace"]).to_string(),
                selector: match params.get("selector").filter(|selector| selector.is_object()) {
                    Some(selector) => LabelSelector::from_object(selector)
                        .map(Some)
                        .map_err(|e| e.to_string()),
                    None => Ok(None),
                },
                must_exist: text(params, &["parameterNotFoundAction"]) == "Deny",
            }),
            actions: strings(spec.get("validationActions")),
        }
    }
}

impl Definition {
    fn new(policy: &Value) -> Definition {
        let spec = &policy["spec"];
        let param_kind = spec.get("paramKind").filter(|kind| kind.is_object());
        let has_params = param_kind.is_some();
        let fails_open = text(spec, &["failurePolicy"]) == "Ignore";
        let mut compiler = Compiler::default();
        let mut variables = vec![];
        for variable in items(spec, &["variables"]) {
            let (name, text) = (text(variable, &["name"]), text(variable, &["expression"]));
            let program = compiler.compile(text, Role::Variable, has_params);
            let ty = program
                .as_ref()
                .map_or(Type::Dyn, |program| program.output_type().clone());
            compiler.declare(name, ty);
            let text = text.to_string();
            variables.push((name.to_string(), Expression { text, program }));
        }
        let expression = |text: &str, role| Expression {
            text: text.to_string(),
            program: compiler.compile(text, role, has_params),
        };
        let optional = |text: &str, role| (!text.trim().is_empty()).then(|| expression(text, role));
        let validation = |v: &Value| Validation {
            expression: expression(text(v, &["expression"]), Role::Validation),
            message: text(v, &["message"]).to_string(),
            message_expression: optional(text(v, &["messageExpression"]), Role::Message),
            reason: text(v, &["reason"]).to_string(),
        };
        let annotation = |a: &Value| {
            let value = text(a, &["valueExpression"]).trim();
            (text(a, &["key"]).to_string(), expression(value, Role::AuditAnnotation))
        };
        let mutation = |m: &Value| match text(m, &["patchType"]) {
            "JSONPatch" => {
                let text = text(m, &["jsonPatch", "expression"]);
                Mutation::JsonPatch(expression(text, Role::JsonPatch))
            }
            _ => {
                let text = text(m, &["applyConfiguration", "expression"]);
                Mutation::ApplyConfiguration(expression(text, Role::ApplyConfiguration))
            }
        };
        Definition {
            uid: text(policy, &["metadata", "uid"]).to_string(),
            revision: text(policy, &["metadata", "resourceVersion"]).to_string(),
            name: text(policy, &["metadata", "name"]).to_string(),
            matcher: Matcher::of_resources(&spec["matchConstraints"]),
            fails_open,
            param_kind: param_kind.map(|kind| {
                let word = |name| text(kind, &[name]).to_string();
                (word("apiVersion"), word("kind"))
            }),
            conditions: Conditions::new(items(spec, &["matchConditions"]), has_params, fails_open),
            validations: items(spec, &["validations"]).iter().map(validation).collect(),
            audit_annotations: items(spec, &["auditAnnotations"]).iter().map(annotation).collect(),
            mutations: items(spec, &["mutations"]).iter().map(mutation).collect(),
            reinvoke: text(spec, &["reinvocationPolicy"]) == "IfNeeded",
            variables,
        }
    }

    /// The kind of its parameters, if it has any; an error if there is no such kind (yet).
    fn param_kind(&self, review: &Review<'_>) -> Result<Option<&'static KindDef>, String> {
        let Some((api_version, kind)) = &self.param_kind else {
            return Ok(None);
        };
        let found = review.kinds.of_kind(api_version, kind).filter(|kind| kind.is_stored());
        let missing = || {
            let slash = if api_version.contains('/') { "" } else { "/" };
            format!("failed to find resource referenced by paramKind: '{slash}{api_version}, Kind={kind}'")
        };
        found.map(Some).ok_or_else(missing)
    }
}

/// What the policy is evaluated with for a binding, once for each: none if it takes no parameters, or the binding gives it
/// none.
// Upstream: CollectParams
async fn params(
    review: &Review<'_>,
    kind: Option<&'static KindDef>,
    reference: Option<&ParamRef>,
) -> Result<Vec<Option<Arc<Value>>>, String> {
    let (Some(kind), Some(reference)) = (kind, reference) else {
        return Ok(vec![None]);
    };
    let namespace = match (kind.namespaced, reference.namespace.as_str()) {
        (true, "") => match review.namespace_attribute() {
            "" => {
                let why = "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources";
                return Err(why.into());
            }
            own => own,
        },
        (true, given) => given,
        (false, "") => "",
        (false, _) => return Err("paramRef.namespace must not be provided for a cluster-scoped `paramKind`".into()),
    };
    let resource = kind.store_prefix();
    let selector = reference.selector.as_ref().map_err(Clone::clone)?;
    let found: Vec<Arc<Value>> = match (reference.name.as_str(), selector) {
        ("", None) => return Err("one of name or selector must be provided".into()),
        ("", Some(selector)) => {
            let all = review.lookup.list(&resource, kind.namespaced.then_some(namespace));
            let selected = |object: &Arc<Value>| selector.matches_map(object.pointer("/metadata/labels"));
            all.into_iter().filter(selected).collect()
        }
        (name, _) => review.lookup.get(&resource, namespace, name).into_iter().collect(),
    };
    if found.is_empty() && reference.must_exist {
        return Err("no params found for policy binding with `Deny` parameterNotFoundAction".into());
    }
    let mut params = vec![];
    for object in found {
        let as_asked = match kind.stored_as.is_empty() {
            true => converter(review)
                .serve_one(kind, &object)
                .await
                .map_err(|status| status.message)?,
            false => {
                let stored = kinds::of_stored(kind.stored_as).expect("stored_as names a kind");
                Arc::new(converted(stored, kind, (*object).clone()))
            }
        };
        params.push(Some(as_asked));
    }
    Ok(params)
}
