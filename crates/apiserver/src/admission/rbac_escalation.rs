//! Nobody hands out more rights than they hold: roles and bindings are checked against the writer's own rules. (In
//! Kubernetes this lives in the storage of the RBAC kinds; to users it is the same.)

use orlop_api::{Status, Value};

use super::{Change, Plugin, Review};

pub(super) const PLUGIN: Plugin = Plugin {
    name: "RBACEscalation",
    mutate: None,
    validate: Some(validate),
};

fn validate(review: &Review<'_>, new: Option<&Value>, old: Option<&Value>) -> Result<Vec<Change>, Status> {
    let Some(new) = new.filter(|_| review.kind.group == "rbac.authorization.k8s.io") else {
        return Ok(vec![]);
    };
    let (resource, namespace) = (review.kind.plural, &review.namespace);
    review
        .authorizer
        .check_escalation(review.user, resource, namespace, new, old, review.lookup)?;
    Ok(vec![])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::fixture::{Desk, told};
    use super::*;

    #[test]
    fn rights_are_handed_on_only_by_who_has_them() {
        const ROLES: &str = "roles.rbac.authorization.k8s.io";
        let rule = |verb: &str| json!({"verbs": [verb], "apiGroups": [""], "resources": ["pods"]});
        let role =
            |name: &str, verb: &str| json!({"metadata": {"name": name, "namespace": "ns"}, "rules": [rule(verb)]});
        let desk = Desk::new().user("u", &[]).with(ROLES, role("mine", "get")).with(
            "rolebindings.rbac.authorization.k8s.io",
            json!({"metadata": {"name": "b", "namespace": "ns"}, "subjects": [{"kind": "User", "name": "u"}],
                "roleRef": {"kind": "Role", "name": "mine"}}),
        );
        assert_eq!(told(desk.create(&PLUGIN, ROLES, role("new", "get"))), "ok");
        let refused = told(desk.create(&PLUGIN, ROLES, role("new", "delete")));
        let start = "roles.rbac.authorization.k8s.io \"new\" is forbidden: user \"u\" (groups=[]) is attempting to grant RBAC permissions not currently held:\n";
        assert!(refused.starts_with(start), "{refused}");
        assert_eq!(told(desk.delete(&PLUGIN, ROLES, role("new", "delete"))), "ok");
        let other = json!({"metadata": {"name": "m", "namespace": "ns"}});
        assert_eq!(told(desk.create(&PLUGIN, "configmaps", other)), "ok");
        assert_eq!(told(Desk::new().create(&PLUGIN, ROLES, role("new", "delete"))), "ok");
    }
}
