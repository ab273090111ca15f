//! Nobody may grant what they do not have: checks before roles and bindings are written.
//! Upstream: pkg/registry/rbac/*/policybased, pkg/registry/rbac/validation (v1.36).

use orlop_api::Status;
use serde_json::Value;

use super::rbac::{joined, referenced_rules};
use super::rules::{join_verbs, quoted, uncovered};
use super::{Attributes, Authorizer, PolicyRule};
use crate::authn::{MASTERS, UserInfo};
use crate::lookup::{ObjectLookup, items, text};

const GROUP: &str = "rbac.authorization.k8s.io";

impl Authorizer {
    /// Checks a write of any RBAC object (`resource` is roles, clusterroles, rolebindings or clusterrolebindings;
    /// others pass). `old` is what is replaced, if anything; the namespace is that of the request.
    pub fn check_escalation(
        &self,
        user: &UserInfo,
        resource: &str,
        namespace: &str,
        new: &Value,
        old: Option<&Value>,
        lookup: &dyn ObjectLookup,
    ) -> Result<(), Status> {
        if user.in_group(MASTERS) {
            return Ok(());
        }
        match resource {
            "roles" | "clusterroles" => self.check_role(user, resource, namespace, new, old, lookup),
            "rolebindings" | "clusterrolebindings" => self.check_binding(user, resource, namespace, new, old, lookup),
            _ => Ok(()),
        }
    }

    fn check_role(
        &self,
        user: &UserInfo,
        resource: &str,
        namespace: &str,
        new: &Value,
        old: Option<&Value>,
        lookup: &dyn ObjectLookup,
    ) -> Result<(), Status> {
        let name = text(new, &["metadata", "name"]);
        // On create the request has no name yet, so a right to escalate certain roles does not reach that far.
        let request_name = if old.is_some() { name } else { "" };
        let attrs = Attributes::resource(user, "escalate", GROUP, resource)
            .in_namespace(namespace)
            .named(request_name);
        if self.authorize(&attrs, lookup).allowed || old.is_some_and(|old| only_housekeeping(new, old)) {
            return Ok(());
        }
        let refuse = |why: String| Status::forbidden(GROUP, resource, name, why);
        self.confirm_held(user, namespace, &PolicyRule::all_of(new), lookup)
            .map_err(refuse)?;
        if is_aggregating(new) || old.is_some_and(is_aggregating) {
            let everything = [
                PolicyRule::resource(&["*"], &["*"], &["*"]),
                PolicyRule::urls(&["*"], &["*"]),
            ];
            let message = "must have cluster-admin privileges to use the aggregationRule";
            self.confirm_held(user, namespace, &everything, lookup)
                .map_err(|_| refuse(message.into()))?;
        }
        Ok(())
    }

    fn check_binding(
        &self,
        user: &UserInfo,
        resource: &str,
        namespace: &str,
        new: &Value,
        old: Option<&Value>,
        lookup: &dyn ObjectLookup,
    ) -> Result<(), Status> {
        if old.is_some_and(|old| only_housekeeping(new, old)) || self.may_bind(user, namespace, &new["roleRef"], lookup)
        {
            return Ok(());
        }
        let reference = &new["roleRef"];
        let rules =
            referenced_rules(reference, namespace, lookup).map_err(|error| match text(reference, &["kind"]) {
                "ClusterRole" => Status::not_found(GROUP, "clusterroles", text(reference, &["name"])),
                "Role" => Status::not_found(GROUP, "roles", text(reference, &["name"])),
                _ => Status::internal(error.to_string()),
            })?;
        let name = text(new, &["metadata", "name"]);
        self.confirm_held(user, namespace, &rules, lookup)
            .map_err(|why| Status::forbidden(GROUP, resource, name, why))
    }

    fn may_bind(&self, user: &UserInfo, namespace: &str, reference: &Value, lookup: &dyn ObjectLookup) -> bool {
        let resource = match text(reference, &["kind"]) {
            "ClusterRole" => "clusterroles",
            "Role" => "roles",
            _ => return false,
        };
        let attrs = Attributes::resource(user, "bind", text(reference, &["apiGroup"]), resource)
            .in_namespace(namespace)
            .named(text(reference, &["name"]));
        self.authorize(&attrs, lookup).allowed
    }

    /// The user holds every one of the rules, in the namespace or everywhere; else the message says what is missing.
    fn confirm_held(
        &self,
        user: &UserInfo,
        namespace: &str,
        rules: &[PolicyRule],
        lookup: &dyn ObjectLookup,
    ) -> Result<(), String> {
        let held = self.rbac.rules_of(user, namespace, lookup);
        let missing = uncovered(&held.rules, rules);
        if missing.is_empty() {
            return Ok(());
        }
        let mut lines: Vec<String> = join_verbs(missing).iter().map(PolicyRule::compact).collect();
        lines.sort();
        lines.dedup();
        let mut message = format!(
            "user {:?} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}",
            user.name,
            quoted(&user.groups),
            lines.join("\n")
        );
        if let Some(errors) = joined(&held.errors) {
            message.push_str(&format!("; resolution errors: [{errors}]"));
        }
        Err(message)
    }
}

fn is_aggregating(role: &Value) -> bool {
    !items(role, &["aggregationRule", "clusterRoleSelectors"]).is_empty()
}

/// Whether an update changes nothing but what the garbage collector changes.
fn only_housekeeping(new: &Value, old: &Value) -> bool {
    let without = |object: &Value| {
        let mut object = object.clone();
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            for field in ["ownerReferences", "finalizers", "managedFields", "selfLink"] {
                metadata.remove(field);
            }
        }
        object
    };
    without(new) == without(old)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::lookup::fixture::Objects;

    fn role(name: &str, rules: Value) -> Value {
        json!({"metadata": {"name": name}, "rules": rules})
    }

    fn binding(name: &str, role: &str, user: &str) -> Value {
        json!({"metadata": {"name": name}, "subjects": [{"kind": "User", "name": user}],
            "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": role}})
    }

    fn cluster() -> Objects {
        let pods = json!([{"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods"]}]);
        let all = json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}, {"verbs": ["*"], "nonResourceURLs": ["*"]}]);
        let escalate = json!([{"verbs": ["escalate"], "apiGroups": [GROUP], "resources": ["clusterroles"]},
            {"verbs": ["bind"], "apiGroups": [GROUP], "resources": ["clusterroles"], "resourceNames": ["all"]}]);
        let mut objects = Objects::default();
        for (name, rules, user) in [
            ("pods", pods, "reader"),
            ("all", all, "chief"),
            ("escalate", escalate, "smith"),
        ] {
            objects = objects
                .with("clusterroles.rbac.authorization.k8s.io", role(name, rules))
                .with(
                    "clusterrolebindings.rbac.authorization.k8s.io",
                    binding(name, name, user),
                );
        }
        objects
    }

    #[test]
    fn granting_needs_holding() {
        let secrets = role(
            "new",
            json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods", "secrets"]}]),
        );
        let harmless = role(
            "new",
            json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["x"]}]),
        );
        let mut gathering = role("new", json!([]));
        gathering["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]});
        let mut local = binding("new", "mine", "u");
        local["roleRef"]["kind"] = json!("Role");
        let not_held = concat!(
            r#"clusterroles.rbac.authorization.k8s.io "new" is forbidden: user "reader" (groups=["g" "h"]) is attempting "#,
            "to grant RBAC permissions not currently held:\n",
            r#"{APIGroups:[""], Resources:["secrets"], Verbs:["get"]}"#
        );
        let not_held_binding = concat!(
            r#"clusterrolebindings.rbac.authorization.k8s.io "new" is forbidden: user "reader" (groups=["g" "h"]) is "#,
            "attempting to grant RBAC permissions not currently held:\n",
            r#"{APIGroups:["*"], Resources:["*"], Verbs:["*"]}"#,
            "\n",
            r#"{NonResourceURLs:["*"], Verbs:["*"]}"#
        );
        let aggregation = concat!(
            r#"clusterroles.rbac.authorization.k8s.io "new" is forbidden: must have cluster-admin privileges to use "#,
            "the aggregationRule"
        );
        // user, resource, object, message
        let cases = [
            ("reader", "clusterroles", &harmless, ""),
            ("reader", "roles", &harmless, ""),
            ("reader", "clusterroles", &secrets, not_held),
            ("smith", "clusterroles", &secrets, ""),
            ("chief", "clusterroles", &secrets, ""),
            ("chief", "clusterroles", &gathering, ""),
            ("reader", "clusterroles", &gathering, aggregation),
            ("reader", "clusterrolebindings", &binding("new", "pods", "u"), ""),
            (
                "reader",
                "clusterrolebindings",
                &binding("new", "all", "u"),
                not_held_binding,
            ),
            ("smith", "clusterrolebindings", &binding("new", "all", "u"), ""),
            ("chief", "rolebindings", &binding("new", "all", "u"), ""),
            (
                "reader",
                "rolebindings",
                &binding("new", "gone", "u"),
                r#"clusterroles.rbac.authorization.k8s.io "gone" not found"#,
            ),
            (
                "reader",
                "rolebindings",
                &local,
                r#"roles.rbac.authorization.k8s.io "mine" not found"#,
            ),
            ("reader", "pods", &secrets, ""),
        ];
        let (objects, authorizer) = (cluster(), Authorizer::default());
        for (user, resource, object, message) in cases {
            let user = UserInfo::new(user, &["g", "h"]);
            let namespace = if resource.starts_with("cluster") { "" } else { "ns" };
            let result = authorizer.check_escalation(&user, resource, namespace, object, None, &objects);
            assert_eq!(
                result.err().map(|s| s.message).unwrap_or_default(),
                message,
                "{} {resource} {object}",
                user.name
            );
        }
        let master = UserInfo::new("nobody", &[MASTERS]);
        assert!(
            authorizer
                .check_escalation(&master, "clusterroles", "", &secrets, None, &objects)
                .is_ok()
        );
    }

    #[test]
    fn the_garbage_collector_may_touch_what_it_could_not_grant() {
        let (objects, authorizer, user) = (cluster(), Authorizer::default(), UserInfo::new("reader", &[]));
        let old = role(
            "new",
            json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"]}]),
        );
        let mut new = old.clone();
        new["metadata"]["finalizers"] = json!(["x"]);
        assert!(
            authorizer
                .check_escalation(&user, "roles", "ns", &new, Some(&old), &objects)
                .is_ok()
        );
        new["metadata"]["labels"] = json!({"a": "b"});
        assert!(
            authorizer
                .check_escalation(&user, "roles", "ns", &new, Some(&old), &objects)
                .is_err()
        );
    }
}
