use serde_json::json;

use super::*;
use crate::lookup::fixture::Objects;

fn role(namespace: &str, name: &str, verbs: &[&str], resources: &[&str]) -> Value {
    let rules = [PolicyRule::resource(verbs, &[""], resources).to_value()];
    json!({"metadata": {"namespace": namespace, "name": name}, "rules": rules})
}

fn binding(namespace: &str, name: &str, role: (&str, &str), subjects: Value) -> Value {
    json!({"metadata": {"namespace": namespace, "name": name}, "subjects": subjects,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role.0, "name": role.1}})
}

fn cluster() -> Objects {
    let group = |name: &str| json!({"kind": "Group", "name": name});
    let user = |name: &str| json!({"kind": "User", "name": name});
    Objects::default()
        .with(CLUSTER_ROLES, role("", "reader", &["get", "list"], &["pods"]))
        .with(CLUSTER_ROLES, role("", "node-reader", &["get"], &["nodes"]))
        .with(ROLES, role("a", "writer", &["create"], &["pods"]))
        .with(CLUSTER_ROLE_BINDINGS, binding("", "all-read", ("ClusterRole", "reader"), json!([group("readers"), user("eve")])))
        .with(CLUSTER_ROLE_BINDINGS, binding("", "dangling", ("ClusterRole", "gone"), json!([user("eve")])))
        .with(ROLE_BINDINGS, binding("a", "write", ("Role", "writer"), json!([
            {"kind": "ServiceAccount", "name": "robot"}, {"kind": "ServiceAccount", "name": "robot", "namespace": "b"}])))
        .with(ROLE_BINDINGS, binding("b", "write", ("Role", "writer"), json!([user("eve")])))
        .with(ROLE_BINDINGS, binding("b", "read-here", ("ClusterRole", "reader"), json!([user("bob")])))
        .with(ROLE_BINDINGS, binding("b", "nodes", ("ClusterRole", "node-reader"), json!([user("bob")])))
}

#[test]
fn truth_table() {
    let reader = UserInfo::new("x", &["readers", "others"]);
    let (eve, bob) = (UserInfo::new("eve", &["readers"]), UserInfo::new("bob", &[]));
    let robots = ["a", "b", "c"].map(|namespace| UserInfo::service_account(namespace, "robot", ""));
    let not_found = |kind: &str, name: &str| format!("{kind}.rbac.authorization.k8s.io {name:?} not found");
    let by_group = r#"RBAC: allowed by ClusterRoleBinding "all-read" of ClusterRole "reader" to Group "readers""#;
    let robot_in = |namespace: &str| {
        format!(r#"RBAC: allowed by RoleBinding "write/a" of Role "writer" to ServiceAccount "robot/{namespace}""#)
    };
    let eves_error = format!("RBAC: {}", not_found("clusterrole", "gone"));
    let eves_errors = format!(
        "RBAC: [{}, {}]",
        not_found("clusterrole", "gone"),
        not_found("role", "writer")
    );
    let bobs_reason = r#"RBAC: allowed by RoleBinding "read-here/b" of ClusterRole "reader" to User "bob""#;
    // who, verb resource namespace, allowed, reason
    let cases: Vec<(&UserInfo, &str, bool, &str)> = vec![
        (&reader, "get pods a", true, by_group),
        (&reader, "list pods ", true, by_group),
        (&reader, "create pods a", false, ""),
        (&reader, "get nodes ", false, ""),
        (&eve, "create pods a", false, &eves_error),
        (&eve, "create pods b", false, &eves_errors),
        (&bob, "get pods b", true, bobs_reason),
        (&bob, "get pods a", false, ""),
        (&bob, "get pods ", false, ""),
        // A cluster role bound in a namespace says nothing about cluster-scoped requests.
        (&bob, "get nodes ", false, ""),
        (&robots[2], "create pods a", false, ""),
        (&robots[0], "create pods b", false, ""),
    ];
    let (objects, rbac) = (cluster(), Rbac::default());
    let check = |user: &UserInfo, request: &str, allowed: bool, reason: &str| {
        let parts: Vec<&str> = request.split(' ').collect();
        let attrs = Attributes::resource(user, parts[0], "", parts[1]).in_namespace(parts[2]);
        let decision = rbac.authorize(&attrs, &objects);
        assert_eq!(
            (decision.allowed, &*decision.reason),
            (allowed, reason),
            "{} {request}",
            user.name
        );
        assert!(!decision.denied);
    };
    for (user, request, allowed, reason) in cases {
        check(user, request, allowed, reason);
    }
    check(&robots[0], "create pods a", true, &robot_in("a"));
    check(&robots[1], "create pods a", true, &robot_in("b"));
}

#[test]
fn changes_are_seen_at_once() {
    let (objects, rbac) = (cluster(), Rbac::default());
    let bob = UserInfo::new("bob", &[]);
    let attrs = Attributes::resource(&bob, "get", "", "secrets").in_namespace("b");
    assert!(!rbac.authorize(&attrs, &objects).allowed);
    objects.put(CLUSTER_ROLES, role("", "reader", &["get"], &["secrets"]));
    assert!(rbac.authorize(&attrs, &objects).allowed);
    objects.remove(ROLE_BINDINGS, "b", "read-here");
    assert!(!rbac.authorize(&attrs, &objects).allowed);
}

#[test]
fn aggregated_roles_work_before_any_controller_ran() {
    let objects = cluster()
        .with(
            CLUSTER_ROLES,
            json!({"metadata": {"name": "sum"}, "aggregationRule":
            {"clusterRoleSelectors": [{"matchLabels": {"part": "yes"}}]}}),
        )
        .with(
            CLUSTER_ROLES,
            json!({"metadata": {"name": "part", "labels": {"part": "yes"}},
            "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["nodes"]}]}),
        )
        .with(
            CLUSTER_ROLE_BINDINGS,
            binding(
                "",
                "sum",
                ("ClusterRole", "sum"),
                json!([{"kind": "User", "name": "u"}]),
            ),
        );
    let user = UserInfo::new("u", &[]);
    assert!(
        Rbac::default()
            .authorize(&Attributes::resource(&user, "get", "", "nodes"), &objects)
            .allowed
    );
}

#[test]
fn a_binding_counts_once_in_listings() {
    let (objects, rbac) = (cluster(), Rbac::default());
    // Eve is in "all-read" as a user and through her group.
    let found = rbac.rules_of(&UserInfo::new("eve", &["readers"]), "b", &objects);
    assert_eq!(found.rules.len(), 1);
    assert_eq!(found.errors.len(), 2);
    assert_eq!(rbac.rules_of(&UserInfo::new("bob", &[]), "b", &objects).rules.len(), 2);
}

#[test]
fn checks_of_a_busy_user_are_cheap() {
    let objects = Objects::default();
    for i in 0..200 {
        objects.put(
            CLUSTER_ROLES,
            role("", &format!("r{i}"), &["get", "list", "watch"], &["a", "b", "c"]),
        );
        let subjects = json!([{"kind": "ServiceAccount", "namespace": "kube-system", "name": format!("c{i}")}]);
        objects.put(
            CLUSTER_ROLE_BINDINGS,
            binding("", &format!("b{i}"), ("ClusterRole", &format!("r{i}")), subjects),
        );
    }
    let (rbac, user) = (Rbac::default(), UserInfo::service_account("kube-system", "c7", ""));
    let attrs = Attributes::resource(&user, "watch", "", "c");
    assert!(rbac.authorize(&attrs, &objects).allowed);
    let index = rbac.index(&objects);
    // Of 200 bindings only the user's own is looked at, and the index is not built again.
    assert_eq!(index.grants(&user, "").count(), 1);
    assert!(Arc::ptr_eq(&index, &rbac.index(&objects)));
}
