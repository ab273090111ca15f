//! The kinds of the admissionregistration group: webhooks and policies that look at requests on their way in.
//!
//! Upstream: pkg/apis/admissionregistration/{v1/defaults.go,validation}, pkg/registry/admissionregistration (v1.36).
//! CEL is not compiled here: `expressions::of` lists what is to be compiled, and the API server reports what is not CEL.

use crate::field::Cursor;
use crate::kind::KindDef;

pub mod bindings;
pub mod expressions;
mod matching;
pub mod policies;
pub mod webhooks;

pub const GROUP: &str = "admissionregistration.k8s.io";

pub const ALL: &[&KindDef] = &[
    &policies::MUTATING,
    &bindings::MUTATING,
    &webhooks::MUTATING,
    &policies::VALIDATING,
    &bindings::VALIDATING,
    &webhooks::VALIDATING,
];

/// What the kinds of this group have in common.
const BASE: KindDef = KindDef {
    group: GROUP,
    categories: &["api-extensions"],
    namespaced: false,
    warnings,
    generation: true,
    unconditional_update: false,
    ..KindDef::BASE
};

const STATIC_SUFFIX: &str = ".static.k8s.io";

fn warnings(object: &Cursor<'_>, _: Option<&Cursor<'_>>) -> Vec<String> {
    match object.at("metadata").at("name").str().ends_with(STATIC_SUFFIX) {
        true => vec![format!(
            "metadata.name: names ending with {STATIC_SUFFIX:?} are reserved for static manifest-based configurations and cannot be managed via the API"
        )],
        false => vec![],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn reserved_names_are_warned_of() {
        let named = |name: &str| json!({"metadata": {"name": name}});
        assert_eq!(warnings(&Cursor::root(&named("a.static.k8s.io")), None).len(), 1);
        assert!(warnings(&Cursor::root(&named("a")), None).is_empty());
    }
}
