//! RoleBinding and ClusterRoleBinding.
//!
//! Upstream: pkg/apis/rbac/{v1/defaults.go,validation}, pkg/registry/rbac/{rolebinding,clusterrolebinding} (v1.36).

use jiff::Timestamp;
use serde_json::{Value, json};

use super::GROUP;
use crate::field::{Cursor, Problems};
use crate::kind::{Column, KindDef};
use crate::printing::{age, text};
use crate::{fill, names};

pub const ROLE_BINDING: KindDef = KindDef {
    group: GROUP,
    kind: "RoleBinding",
    plural: "rolebindings",
    singular: "rolebinding",
    schema: "rbac/v1.RoleBinding",
    columns: &[
        Column::string("Role"),
        Column::AGE,
        Column::wide("Users"),
        Column::wide("Groups"),
        Column::wide("ServiceAccounts"),
    ],
    cells,
    name_rule: names::path_segment,
    default,
    validate: |binding, p| validate(binding, &["Role", "ClusterRole"], false, p),
    validate_update,
    create_on_update: true,
    ..KindDef::BASE
};

pub const CLUSTER_ROLE_BINDING: KindDef = KindDef {
    kind: "ClusterRoleBinding",
    plural: "clusterrolebindings",
    singular: "clusterrolebinding",
    namespaced: false,
    schema: "rbac/v1.ClusterRoleBinding",
    validate: |binding, p| validate(binding, &["ClusterRole"], true, p),
    ..ROLE_BINDING
};

fn default(binding: &mut Value) {
    fill::empty(fill::member(binding, "roleRef"), "apiGroup", GROUP);
    for subject in fill::items(binding, "subjects") {
        if matches!(text(subject, "/kind"), "User" | "Group") {
            fill::empty(subject, "apiGroup", GROUP);
        }
    }
}

fn validate(binding: &Cursor<'_>, role_kinds: &[&str], cluster_wide: bool, p: &mut Problems) {
    let role = binding.at("roleRef");
    if role.at("apiGroup").str() != GROUP {
        p.not_supported(&role.at("apiGroup"), &[GROUP]);
    }
    if !role_kinds.contains(&role.at("kind").str()) {
        p.not_supported_as_listed(&role.at("kind"), role_kinds);
    }
    let name = role.at("name");
    if name.is_empty() {
        p.required(&name, "");
    } else {
        p.invalid_each(&name, names::path_segment(name.str()));
    }
    for subject in binding.at("subjects").items() {
        validate_subject(&subject, cluster_wide, p);
    }
}

fn validate_subject(subject: &Cursor<'_>, cluster_wide: bool, p: &mut Problems) {
    let (name, group) = (subject.at("name"), subject.at("apiGroup"));
    if name.is_empty() {
        p.required(&name, "");
    }
    match subject.at("kind").str() {
        "ServiceAccount" => {
            if !name.is_empty() {
                p.invalid_each(&name, names::dns_subdomain(name.str()));
            }
            if !group.is_empty() {
                p.not_supported(&group, &[""]);
            }
            if cluster_wide && subject.at("namespace").is_empty() {
                p.required(&subject.at("namespace"), "");
            }
        }
        "User" | "Group" => {
            if group.str() != GROUP {
                p.not_supported(&group, &[GROUP]);
            }
        }
        _ => p.not_supported_as_listed(&subject.at("kind"), &["ServiceAccount", "User", "Group"]),
    }
}

/// A binding's role is for life: else whoever may edit a binding could turn it into another grant unnoticed.
fn validate_update(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    let role = new.at("roleRef");
    if role.value() != old.at("roleRef").value() {
        // Shown with Go's field names, as upstream prints its internal type.
        let shown = json!({"APIGroup": role.at("apiGroup").str(), "Kind": role.at("kind").str(), "Name": role.at("name").str()});
        p.invalid_value(role.path(), &shown, "cannot change roleRef");
    }
}

fn cells(binding: &Value, now: Timestamp) -> Vec<Value> {
    let subjects = |kind: &str| -> Value {
        let list = binding.get("subjects").and_then(Value::as_array).into_iter().flatten();
        let names: Vec<String> = list
            .filter(|s| text(s, "/kind") == kind)
            .map(|s| match kind {
                "ServiceAccount" => format!("{}/{}", text(s, "/namespace"), text(s, "/name")),
                _ => text(s, "/name").to_string(),
            })
            .collect();
        names.join(", ").into()
    };
    let role = format!("{}/{}", text(binding, "/roleRef/kind"), text(binding, "/roleRef/name"));
    vec![
        role.into(),
        age(binding, now),
        subjects("User"),
        subjects("Group"),
        subjects("ServiceAccount"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind_check::{defaulted, refuses, refuses_update, row};

    fn binding() -> Value {
        json!({"metadata": {"name": "b", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "roleRef": {"kind": "ClusterRole", "name": "view"},
            "subjects": [{"kind": "User", "name": "ann"}, {"kind": "Group", "name": "g"},
                {"kind": "User", "name": "bob"}, {"kind": "ServiceAccount", "name": "sa", "namespace": "ns"}]})
    }

    #[test]
    fn api_groups_are_filled_in() {
        let b = defaulted(&ROLE_BINDING, binding());
        assert_eq!(b["roleRef"]["apiGroup"], GROUP);
        let groups: Vec<&str> = (0..4).map(|i| text(&b["subjects"][i], "/apiGroup")).collect();
        assert_eq!(groups, [GROUP, GROUP, GROUP, ""]);
    }

    #[test]
    fn bindings_are_checked() {
        let both = [
            (
                json!({"roleRef": {"apiGroup": "x"}}),
                r#"roleRef.apiGroup: Unsupported value: "x": supported values: "rbac.authorization.k8s.io""#,
            ),
            (json!({"roleRef": {"name": ""}}), "roleRef.name: Required value"),
            (
                json!({"roleRef": {"name": "a/b"}}),
                r#"roleRef.name: Invalid value: "a/b": may not contain '/'"#,
            ),
            (
                json!({"subjects": [{"kind": "User"}]}),
                "subjects[0].name: Required value",
            ),
            (
                json!({"subjects": [{"kind": "Pod", "name": "a"}]}),
                r#"subjects[0].kind: Unsupported value: "Pod": supported values: "ServiceAccount", "User", "Group""#,
            ),
            (
                json!({"subjects": [{"kind": "Group", "name": "a", "apiGroup": "x"}]}),
                r#"subjects[0].apiGroup: Unsupported value: "x": supported values: "rbac.authorization.k8s.io""#,
            ),
            (
                json!({"subjects": [{"kind": "ServiceAccount", "name": "a", "namespace": "n", "apiGroup": "x"}]}),
                r#"subjects[0].apiGroup: Unsupported value: "x": supported values: """#,
            ),
        ];
        refuses(&ROLE_BINDING, &binding(), &both);
        refuses(&CLUSTER_ROLE_BINDING, &binding(), &both);
        refuses(
            &ROLE_BINDING,
            &binding(),
            &[(
                json!({"roleRef": {"kind": "Pod"}}),
                r#"roleRef.kind: Unsupported value: "Pod": supported values: "Role", "ClusterRole""#,
            )],
        );
        refuses(
            &CLUSTER_ROLE_BINDING,
            &binding(),
            &[
                (
                    json!({"roleRef": {"kind": "Role"}}),
                    r#"roleRef.kind: Unsupported value: "Role": supported values: "ClusterRole""#,
                ),
                (
                    json!({"subjects": [{"kind": "ServiceAccount", "name": "a"}]}),
                    "subjects[0].namespace: Required value",
                ),
            ],
        );
    }

    #[test]
    fn the_role_may_not_change() {
        refuses_update(
            &ROLE_BINDING,
            &binding(),
            &[(
                json!({"roleRef": {"name": "edit"}}),
                r#"roleRef: Invalid value: {"APIGroup":"rbac.authorization.k8s.io","Kind":"ClusterRole","Name":"edit"}: cannot change roleRef"#,
            )],
        );
    }

    #[test]
    fn subjects_stand_in_wide_columns() {
        assert_eq!(row(&ROLE_BINDING, &binding()), "ClusterRole/view|10m|ann, bob|g|ns/sa");
    }
}
