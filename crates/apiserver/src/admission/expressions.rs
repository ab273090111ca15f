//! Refuses webhook configurations and policies whose expressions do not compile.
//!
//! Upstream: pkg/apis/admissionregistration/validation (v1.36).

use orlop_api::admissionregistration::GROUP;
use orlop_api::admissionregistration::expressions::{self, Role};
use orlop_api::{Cursor, Problems};
use orlop_cel::Type;

use super::cel::Compiler;
use crate::registry::rules::Rules;

const fn rules(kind: &'static str) -> Rules {
    Rules {
        group: GROUP,
        kind,
        validate_create: validate,
        validate_update,
        ..Rules::NONE
    }
}

pub(crate) const MUTATING_WEBHOOKS: Rules = rules("MutatingWebhookConfiguration");
pub(crate) const VALIDATING_WEBHOOKS: Rules = rules("ValidatingWebhookConfiguration");
pub(crate) const MUTATING_POLICIES: Rules = rules("MutatingAdmissionPolicy");
pub(crate) const VALIDATING_POLICIES: Rules = rules("ValidatingAdmissionPolicy");

fn validate(object: &Cursor<'_>, problems: &mut Problems) {
    let mut compiler = Compiler::default();
    for expression in expressions::of(object) {
        let text = match expression.role {
            Role::AuditAnnotation => expression.text.trim(),
            _ => expression.text,
        };
        let compiled = compiler.compile(text, expression.role, expression.has_params);
        let ty = compiled
            .as_ref()
            .map_or(Type::Dyn, |program| program.output_type().clone());
        if let Err(why) = compiled {
            problems.invalid_value(&expression.path, &text.into(), why.to_string());
        }
        if expression.role == Role::Variable {
            compiler.declare(expression.name, ty);
        }
    }
}

/// What is stored already was found good once: only changed expressions are looked at again.
fn validate_update(new: &Cursor<'_>, old: &Cursor<'_>, problems: &mut Problems) {
    let texts = |object: &Cursor<'_>| -> Vec<(String, bool)> {
        let all = expressions::of(object);
        all.iter()
            .map(|e| (format!("{} {}", e.path, e.text), e.has_params))
            .collect()
    };
    if texts(new) != texts(old) {
        validate(new, problems);
    }
}
