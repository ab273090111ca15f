//! `authorizer.group('apps').resource('deployments').check('get').allowed()`.
//!
//! Upstream: apiserver/pkg/cel/library/authz.go.

use super::{Body, Outcome, no_overload};
use crate::authorizer::{Decision, ResourceAttributes, Subject, Target};
use crate::program::EvalError;
use crate::value::{Check, Step, Value, selector};
use orlop_api::names;
use std::sync::Arc;

pub(super) const FUNCTIONS: &[(&str, Body)] = &[
    ("path", |args| match args {
        [Value::Authorizer(Check(Step::Authorizer(subject))), Value::String(path)] => {
            if path.trim().is_empty() {
                return Err(EvalError::new("path must not be empty"));
            }
            step(Step::Path(subject.clone(), path.clone()))
        }
        _ => no_overload(),
    }),
    ("group", |args| match args {
        [
            Value::Authorizer(Check(Step::Authorizer(subject))),
            Value::String(group),
        ] => step(Step::Group(subject.clone(), group.clone())),
        _ => no_overload(),
    }),
    ("serviceAccount", service_account),
    ("resource", |args| match args {
        [
            Value::Authorizer(Check(Step::Group(subject, group))),
            Value::String(resource),
        ] => {
            if resource.trim().is_empty() {
                return Err(EvalError::new("resource must not be empty"));
            }
            let attributes = ResourceAttributes {
                group: group.to_string(),
                resource: resource.to_string(),
                ..ResourceAttributes::default()
            };
            step(Step::Resource(subject.clone(), Arc::new(attributes)))
        }
        _ => no_overload(),
    }),
    ("subresource", |args| {
        change(args, |resource, text| resource.subresource = text.to_string())
    }),
    ("namespace", |args| {
        change(args, |resource, text| resource.namespace = text.to_string())
    }),
    ("name", |args| {
        change(args, |resource, text| resource.name = text.to_string())
    }),
    ("fieldSelector", |args| {
        change(args, |resource, text| resource.field_selector = selector(text))
    }),
    ("labelSelector", |args| {
        change(args, |resource, text| resource.label_selector = selector(text))
    }),
    ("check", check),
    ("allowed", |args| {
        decision(args, |verdict| Value::Bool(verdict.decision == Decision::Allow))
    }),
    ("reason", |args| {
        decision(args, |verdict| Value::string(verdict.reason.as_str()))
    }),
    ("errored", |args| {
        decision(args, |verdict| Value::Bool(verdict.error.is_some()))
    }),
    ("error", |args| {
        decision(args, |verdict| Value::string(verdict.error.as_deref().unwrap_or("")))
    }),
];

fn step(step: Step<'_>) -> Outcome<'_> {
    Ok(Value::Authorizer(Check(step)))
}

fn service_account<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    match args {
        [
            Value::Authorizer(Check(Step::Authorizer(subject))),
            Value::String(namespace),
            Value::String(name),
        ] => {
            if !names::dns_subdomain(name).is_empty() {
                return Err(EvalError::new("Invalid service account name"));
            }
            if !names::dns_label(namespace).is_empty() {
                return Err(EvalError::new("Invalid service account namespace"));
            }
            step(Step::Authorizer(Subject {
                authorizer: subject.authorizer,
                service_account: Some(Arc::new((namespace.to_string(), name.to_string()))),
            }))
        }
        _ => no_overload(),
    }
}

fn change<'a>(args: &[Value<'a>], change: fn(&mut ResourceAttributes, &str)) -> Outcome<'a> {
    match args {
        [
            Value::Authorizer(Check(Step::Resource(subject, resource))),
            Value::String(text),
        ] => {
            let mut changed = (**resource).clone();
            change(&mut changed, text);
            step(Step::Resource(subject.clone(), Arc::new(changed)))
        }
        _ => no_overload(),
    }
}

fn check<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let verdict = match args {
        [Value::Authorizer(Check(Step::Path(subject, path))), Value::String(verb)] => {
            subject.check(verb, Target::Path(path.to_string()))
        }
        [
            Value::Authorizer(Check(Step::Resource(subject, resource))),
            Value::String(verb),
        ] => subject.check(verb, Target::Resource((**resource).clone())),
        _ => return no_overload(),
    };
    step(Step::Decision(Arc::new(verdict)))
}

fn decision<'a>(args: &[Value<'a>], of: fn(&crate::authorizer::Verdict) -> Value<'static>) -> Outcome<'a> {
    match args {
        [Value::Authorizer(Check(Step::Decision(verdict)))] => Ok(of(verdict)),
        _ => no_overload(),
    }
}
