//! Rules of kinds beyond their rows: those that need what `orlop_api` does not depend on, such as compiled expressions and
//! schemas of custom kinds. They run where the row's own rules run, after them.

use jiff::Timestamp;
use orlop_api::{Cursor, KindDef, Problems, Value, meta};
use orlop_apiextensions::definition;

use crate::admission::expressions;
use crate::custom;

/// What is added to the rules of one kind's row.
#[derive(Clone, Copy)]
pub(crate) struct Rules {
    pub group: &'static str,
    pub kind: &'static str,
    pub default: fn(&mut Value),
    pub prepare_create: fn(&mut Value),
    /// (new, old)
    pub prepare_update: fn(&mut Value, &Value),
    pub validate_create: fn(&Cursor<'_>, &mut Problems),
    /// (new, old), on updates through the main endpoint.
    pub validate_update: fn(&Cursor<'_>, &Cursor<'_>, &mut Problems),
    /// (new, old), on updates through the status subresource.
    pub validate_status: fn(&Cursor<'_>, &Cursor<'_>, &mut Problems),
    /// (new, old if an update). Advice for the writer.
    pub warnings: fn(&Cursor<'_>, Option<&Cursor<'_>>) -> Vec<String>,
    /// Readies an object that is marked as deleted.
    pub prepare_delete: fn(&mut Value, Timestamp),
}

impl Rules {
    pub(crate) const NONE: Rules = Rules {
        group: "",
        kind: "",
        default: |_| {},
        prepare_create: |_| {},
        prepare_update: |_, _| {},
        validate_create: |_, _| {},
        validate_update: |_, _, _| {},
        validate_status: |_, _, _| {},
        warnings: |_, _| vec![],
        prepare_delete: |_, _| {},
    };
}

/// One row for each kind that has such rules.
const ALL: &[&Rules] = &[
    &CUSTOM_RESOURCE_DEFINITION,
    &expressions::MUTATING_POLICIES,
    &expressions::MUTATING_WEBHOOKS,
    &expressions::VALIDATING_POLICIES,
    &expressions::VALIDATING_WEBHOOKS,
];

const CUSTOM_RESOURCE_DEFINITION: Rules = Rules {
    group: "apiextensions.k8s.io",
    kind: "CustomResourceDefinition",
    default: definition::default,
    prepare_create: definition::prepare_create,
    prepare_update: definition::prepare_update,
    validate_create: definition::validate,
    validate_update: definition::validate_update,
    validate_status: definition::validate_status,
    warnings: definition::warnings,
    prepare_delete: custom::prepare_delete,
};

fn of(kind: &KindDef) -> &'static Rules {
    let own = |rules: &&&Rules| rules.kind == kind.kind && rules.group == kind.group;
    ALL.iter().find(own).copied().unwrap_or(&Rules::NONE)
}

/// Names of finalizers must be standard or qualified; kinds beyond the core API take any.
// Upstream: pkg/apis/core/validation (ValidateObjectMeta), which other API servers' kinds do not use
pub(crate) fn validate_finalizers(kind: &KindDef, finalizers: &Cursor<'_>, problems: &mut Problems) {
    let is_core = kind.custom.is_none() && !matches!(kind.group, "apiextensions.k8s.io" | "apiregistration.k8s.io");
    if is_core {
        meta::validate_builtin_finalizers(finalizers, problems);
    }
}

/// Fills in the defaults of the kind.
pub(crate) fn fill_defaults(kind: &KindDef, object: &mut Value) {
    (kind.default)(object);
    (of(kind).default)(object);
    if let Some(version) = custom::schema_of(kind) {
        version.default(object);
    }
}

pub(crate) fn prepare_create(kind: &KindDef, object: &mut Value) {
    (kind.prepare_create)(object);
    (of(kind).prepare_create)(object);
}

pub(crate) fn prepare_update(kind: &KindDef, new: &mut Value, old: &Value) {
    (kind.prepare_update)(new, old);
    (of(kind).prepare_update)(new, old);
}

pub(crate) fn warnings(kind: &KindDef, new: &Cursor<'_>, old: Option<&Cursor<'_>>) -> Vec<String> {
    let mut all = (kind.warnings)(new, old);
    all.extend((of(kind).warnings)(new, old));
    all
}

pub(crate) fn prepare_delete(kind: &KindDef, object: &mut Value, now: Timestamp) {
    (of(kind).prepare_delete)(object, now);
}

pub(crate) fn validate_create(kind: &KindDef, object: &Cursor<'_>, problems: &mut Problems) {
    (kind.validate)(object, problems);
    (kind.validate_create)(object, problems);
    (of(kind).validate_create)(object, problems);
}

pub(crate) fn validate_update(kind: &KindDef, new: &Cursor<'_>, old: &Cursor<'_>, problems: &mut Problems) {
    (kind.validate)(new, problems);
    (kind.validate_update)(new, old, problems);
    (of(kind).validate_update)(new, old, problems);
}

pub(crate) fn validate_status(kind: &KindDef, new: &Cursor<'_>, old: &Cursor<'_>, problems: &mut Problems) {
    (kind.validate_status)(new, old, problems);
    (of(kind).validate_status)(new, old, problems);
}
