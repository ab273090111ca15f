//! RuntimeClass: which handler of the container runtime runs a pod, what that costs, and where it can.
//!
//! Upstream: pkg/apis/node/validation, pkg/registry/node/runtimeclass (v1.36).

use std::collections::BTreeSet;

use serde_json::json;

use crate::core::pod_spec;
use crate::field::{Cursor, Path, Problems};
use crate::kind::{Column, KindDef};
use crate::printing::{age, text};
use crate::{meta, names, resources, rules};

pub const DEF: KindDef = KindDef {
    group: super::GROUP,
    kind: "RuntimeClass",
    plural: "runtimeclasses",
    singular: "runtimeclass",
    namespaced: false,
    schema: "node/v1.RuntimeClass",
    columns: &[Column::string("Handler"), Column::AGE],
    cells: |class, now| vec![text(class, "/handler").into(), age(class, now)],
    validate,
    validate_update: |new, old, p| {
        p.immutable(&rules::as_text(&new.at("handler")), &rules::as_text(&old.at("handler")))
    },
    warnings,
    create_on_update: true,
    unconditional_update: false,
    ..KindDef::BASE
};

fn validate(class: &Cursor<'_>, p: &mut Problems) {
    rules::required(&class.at("handler"), names::dns_label, p);
    validate_overhead(&class.at("overhead"), p);
    let scheduling = class.at("scheduling");
    meta::validate_labels(&scheduling.at("nodeSelector"), p);
    pod_spec::validate_tolerations(&scheduling.at("tolerations"), p);
    let mut seen = BTreeSet::new();
    for toleration in scheduling.at("tolerations").items() {
        let key = ["key", "operator", "value", "effect"].map(|field| toleration.at(field).str());
        if !seen.insert(key) {
            p.duplicate(&toleration);
        }
    }
}

/// What a pod costs beyond its containers follows the rules of what a container is limited to, and is reported so.
fn validate_overhead(overhead: &Cursor<'_>, p: &mut Problems) {
    if let Some(fixed) = overhead.at("podFixed").value() {
        let limits = json!({"limits": fixed});
        let here = Cursor::new(Some(&limits), overhead.path().clone());
        pod_spec::validate_requirements(&here, resource_name, p);
    }
}

fn resource_name(name: &str, path: &Path, p: &mut Problems) {
    let known = pod_spec::validate_resource_name(name, path, p);
    if known && !name.contains('/') && !resources::is_standard_for_containers(name) {
        p.invalid_value(path, &name.into(), "must be a standard resource for containers");
    }
}

fn warnings(class: &Cursor<'_>, _: Option<&Cursor<'_>>) -> Vec<String> {
    let selector = class.at("scheduling").at("nodeSelector");
    let advice = selector.entries().filter_map(|(key, _)| super::deprecated_label(key));
    advice.map(|a| format!("{}: {a}", selector.path())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind_check::{refuses, refuses_update, row};

    #[test]
    fn classes_are_checked() {
        let base = json!({"handler": "runc", "scheduling": {"tolerations": [{"key": "a", "operator": "Exists"}]}});
        refuses(
            &DEF,
            &base,
            &[
                (json!({"handler": ""}), "handler: Required value"),
                (
                    json!({"handler": "a.b"}),
                    r#"handler: Invalid value: "a.b": must not contain dots"#,
                ),
                (
                    json!({"overhead": {"podFixed": {"cpu": "-1"}}}),
                    r#"overhead.limits[cpu]: Invalid value: "-1": must be greater than or equal to 0"#,
                ),
                (
                    json!({"overhead": {"podFixed": {"pods": "1"}}}),
                    r#"overhead.limits[pods]: Invalid value: "pods": must be a standard resource for containers"#,
                ),
                (
                    json!({"scheduling": {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}}),
                    r#"scheduling.tolerations[0].operator: Invalid value: "b": value must be empty when `operator` is 'Exists'"#,
                ),
                (
                    json!({"scheduling": {"tolerations": [{"key": "a", "operator": "Exists"}, {"key": "a", "operator": "Exists"}]}}),
                    r#"scheduling.tolerations[1]: Duplicate value: {"key":"a","operator":"Exists"}"#,
                ),
            ],
        );
        refuses_update(
            &DEF,
            &base,
            &[(
                json!({"handler": "kata"}),
                r#"handler: Invalid value: "kata": field is immutable"#,
            )],
        );
        assert_eq!(row(&DEF, &base), "runc|<unknown>");
        let old = json!({"scheduling": {"nodeSelector": {"beta.kubernetes.io/os": "linux"}}});
        assert_eq!(
            warnings(&Cursor::root(&old), None),
            [r#"scheduling.nodeSelector: deprecated since v1.14; use "kubernetes.io/os" instead"#]
        );
    }
}
