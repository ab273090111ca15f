//! Binding: the scheduler's word that a pod goes to a node. It is created, never stored.

use crate::field::{Cursor, Problems, shown};
use crate::kind::{KindDef, Verbs};
use crate::workload;

pub const DEF: KindDef = KindDef {
    kind: "Binding",
    plural: "bindings",
    singular: "binding",
    schema: "core/v1.Binding",
    verbs: Verbs::CreateOnly,
    validate,
    ..KindDef::BASE
};

/// The target is a node, and is named.
pub fn validate(binding: &Cursor<'_>, p: &mut Problems) {
    let target = binding.at("target");
    if !matches!(target.at("kind").str(), "" | "Node") {
        let kind = target.at("kind");
        workload::unsupported(kind.path(), shown(kind.value()), &["Node", "<empty>"], p);
    }
    if target.at("name").is_empty() {
        p.required(&target.at("name"), "");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_binding_names_a_node() {
        for (binding, want) in [
            (json!({"target": {"kind": "Node", "name": "a"}}), ""),
            (json!({"target": {"name": "a"}}), ""),
            (json!({}), "target.name: Required value"),
            (
                json!({"target": {"kind": "Pod", "name": "a"}}),
                r#"target.kind: Unsupported value: "Pod": supported values: "Node", "<empty>""#,
            ),
        ] {
            let mut p = Problems::default();
            validate(&Cursor::root(&binding), &mut p);
            let got: Vec<String> = p.0.iter().map(ToString::to_string).collect();
            assert_eq!(got.join("\n"), want, "{binding}");
        }
    }
}
