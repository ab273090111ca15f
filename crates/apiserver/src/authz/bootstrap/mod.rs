//! The roles and bindings of every cluster: what a server that starts with an empty store grants to whom.
//!
//! Each carries an annotation that lets the server put back what is missing from it; an operator who sets it to "false"
//! keeps his own version. Upstream: plugin/pkg/auth/authorizer/rbac/bootstrappolicy (v1.36, default feature gates).

mod controllers;
mod roles;

use serde_json::{Map, Value, json};

use controllers::CONTROLLERS;
use roles::{AGGREGATED, CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, METRICS_READER, ROLE_BINDINGS, ROLES};

const GROUP: &str = "rbac.authorization.k8s.io";

/// Says whether the server may add what is missing from a default role or binding.
pub const AUTO_UPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";

/// Everyone who does something may tell what became of it.
const EVENTS: &str = "create,update,patch core,events.k8s.io: events";

/// All default objects, roles before the bindings that name them.
pub fn policy() -> Vec<Value> {
    [
        cluster_roles(),
        cluster_role_bindings(),
        namespaced_roles(),
        namespaced_role_bindings(),
    ]
    .concat()
}

pub fn cluster_roles() -> Vec<Value> {
    let plain = CLUSTER_ROLES.iter().map(|(name, rules)| {
        let mut role = object("ClusterRole", None, name);
        let part_of = match name.strip_prefix("system:aggregate-to-") {
            Some(target) => vec![target],
            None if *name == METRICS_READER => vec!["view", "edit", "admin"],
            None => vec![],
        };
        for target in part_of {
            role["metadata"]["labels"][aggregate_to(target)] = "true".into();
        }
        with_rules(role, rules)
    });
    let aggregated = AGGREGATED.iter().map(|(name, part_of)| {
        let mut role = object("ClusterRole", None, name);
        if let Some(target) = part_of {
            role["metadata"]["labels"][aggregate_to(target)] = "true".into();
        }
        role["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {aggregate_to(name): "true"}}]});
        role["rules"] = Value::Null;
        role
    });
    let controllers = CONTROLLERS.iter().map(|(name, rules)| {
        let name = format!("system:controller:{name}");
        with_rules(object("ClusterRole", None, &name), rules)
    });
    plain.chain(aggregated).chain(controllers).collect()
}

pub fn cluster_role_bindings() -> Vec<Value> {
    let plain = CLUSTER_ROLE_BINDINGS.iter().map(|(role, subjects)| {
        let binding = object("ClusterRoleBinding", None, role);
        bound(binding, "ClusterRole", role, subjects)
    });
    let controllers = CONTROLLERS.iter().map(|(name, _)| {
        let role = format!("system:controller:{name}");
        let account = format!("account kube-system/{name}");
        bound(
            object("ClusterRoleBinding", None, &role),
            "ClusterRole",
            &role,
            &[&account],
        )
    });
    plain.chain(controllers).collect()
}

pub fn namespaced_roles() -> Vec<Value> {
    let roles = ROLES.iter();
    roles
        .map(|(namespace, name, rules)| with_rules(object("Role", Some(namespace), name), rules))
        .collect()
}

pub fn namespaced_role_bindings() -> Vec<Value> {
    let bindings = ROLE_BINDINGS.iter();
    bindings
        .map(|(namespace, name, role, subjects)| {
            let binding = object("RoleBinding", Some(namespace), name);
            bound(binding, "Role", role, subjects)
        })
        .collect()
}

fn aggregate_to(role: &str) -> String {
    format!("{GROUP}/aggregate-to-{role}")
}

fn object(kind: &str, namespace: Option<&str>, name: &str) -> Value {
    let mut object = json!({"apiVersion": format!("{GROUP}/v1"), "kind": kind, "metadata": {"name": name,
        "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"}, "annotations": {AUTO_UPDATE: "true"}}});
    if let Some(namespace) = namespace {
        object["metadata"]["namespace"] = namespace.into();
    }
    object
}

fn with_rules(mut role: Value, rules: &[&str]) -> Value {
    role["rules"] = rules.iter().map(|text| rule(text)).collect();
    role
}

fn bound(mut binding: Value, kind: &str, role: &str, subjects: &[&str]) -> Value {
    binding["roleRef"] = json!({"apiGroup": GROUP, "kind": kind, "name": role});
    if !subjects.is_empty() {
        binding["subjects"] = subjects.iter().map(|text| subject(text)).collect();
    }
    binding
}

/// A rule in one line: `verbs groups: resources = names`, the names being optional, or `verbs /url …`. Verbs and groups
/// are joined by commas, all else by spaces; `core` is the group without a name, `read` and `write` stand for all verbs
/// of their sort.
fn rule(text: &str) -> Value {
    let (verbs, rest) = text.split_once(' ').expect("a rule starts with verbs");
    let mut verbs: Vec<&str> = verbs
        .split(',')
        .flat_map(|verb| match verb {
            "read" => vec!["get", "list", "watch"],
            "write" => vec!["create", "delete", "deletecollection", "patch", "update"],
            other => vec![other],
        })
        .collect();
    verbs.sort_unstable();
    let mut rule = Map::new();
    rule.insert("verbs".into(), json!(verbs));
    match rest.split_once(": ") {
        None => {
            rule.insert("nonResourceURLs".into(), words(rest));
        }
        Some((groups, rest)) => {
            let groups = groups.split(',').map(|group| if group == "core" { "" } else { group });
            rule.insert("apiGroups".into(), groups.collect());
            let (resources, names) = rest.split_once(" = ").map_or((rest, None), |(r, n)| (r, Some(n)));
            rule.insert("resources".into(), words(resources));
            if let Some(names) = names {
                rule.insert("resourceNames".into(), words(names));
            }
        }
    }
    Value::Object(rule)
}

fn words(text: &str) -> Value {
    text.split_whitespace().collect()
}

/// `user name`, `group name` or `account namespace/name`.
fn subject(text: &str) -> Value {
    let (kind, name) = text.split_once(' ').expect("a subject is a kind and a name");
    match kind {
        "user" => json!({"apiGroup": GROUP, "kind": "User", "name": name}),
        "group" => json!({"apiGroup": GROUP, "kind": "Group", "name": name}),
        _ => {
            let (namespace, name) = name.split_once('/').expect("an account has a namespace");
            json!({"kind": "ServiceAccount", "name": name, "namespace": namespace})
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use orlop_api::kind::KindDef;
    use orlop_api::rbac::{bindings, roles};
    use orlop_api::{Cursor, Problems};

    use super::*;

    #[test]
    fn rules_in_one_line() {
        for (text, wanted) in [
            (
                "read,approve core,apps: pods pods/log = a b",
                json!({"verbs": ["approve", "get", "list", "watch"], "apiGroups": ["", "apps"],
                    "resources": ["pods", "pods/log"], "resourceNames": ["a", "b"]}),
            ),
            (
                "get /healthz /livez",
                json!({"verbs": ["get"], "nonResourceURLs": ["/healthz", "/livez"]}),
            ),
            (
                "* *: *",
                json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}),
            ),
        ] {
            assert_eq!(rule(text), wanted);
        }
        assert_eq!(
            subject("account a/b"),
            json!({"kind": "ServiceAccount", "name": "b", "namespace": "a"})
        );
    }

    #[test]
    fn every_object_is_valid_and_there_once() {
        let check = |def: &KindDef, objects: Vec<Value>| {
            let mut seen = BTreeSet::new();
            for object in &objects {
                let mut p = Problems::default();
                (def.validate)(&Cursor::root(object), &mut p);
                assert!(p.is_empty(), "{object}: {p:?}");
                let mut filled = object.clone();
                (def.default)(&mut filled);
                assert_eq!(&filled, object, "nothing is left to be filled in");
                let key = format!("{}/{}", object["metadata"]["namespace"], object["metadata"]["name"]);
                assert!(seen.insert(key), "{object} is there twice");
            }
            objects.len()
        };
        let counts = [
            check(&roles::CLUSTER_ROLE, cluster_roles()),
            check(&bindings::CLUSTER_ROLE_BINDING, cluster_role_bindings()),
            check(&roles::ROLE, namespaced_roles()),
            check(&bindings::ROLE_BINDING, namespaced_role_bindings()),
        ];
        assert_eq!(policy().len(), counts.iter().sum::<usize>());
    }

    #[test]
    fn bindings_name_roles_that_are_there() {
        let names = |list: &[Value], kind: &str| -> BTreeSet<String> {
            let of = |o: &Value| format!("{kind} {} {}", o["metadata"]["namespace"], o["metadata"]["name"]);
            list.iter().map(of).collect()
        };
        let mut known = names(&cluster_roles(), "ClusterRole");
        known.extend(names(&namespaced_roles(), "Role"));
        for b in cluster_role_bindings().iter().chain(&namespaced_role_bindings()) {
            let kind = b["roleRef"]["kind"].as_str().unwrap();
            let role = format!("{kind} {} {}", b["metadata"]["namespace"], b["roleRef"]["name"]);
            assert!(known.contains(&role), "{b}");
        }
    }

    #[test]
    fn admin_is_made_of_edit_and_edit_of_view() {
        let find = |name: &str| {
            cluster_roles()
                .into_iter()
                .find(|r| r["metadata"]["name"] == name)
                .unwrap()
        };
        let (admin, edit, own) = (find("admin"), find("edit"), find("system:aggregate-to-admin"));
        let gathers = &admin["aggregationRule"]["clusterRoleSelectors"][0]["matchLabels"];
        let label = "rbac.authorization.k8s.io/aggregate-to-admin";
        assert_eq!(gathers, &json!({label: "true"}));
        for part in [edit, own] {
            assert_eq!(part["metadata"]["labels"][label], "true");
        }
    }
}
