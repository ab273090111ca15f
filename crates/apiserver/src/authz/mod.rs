//! Authorisation: may this user do that? Asked in order, the first answer counts: members of `system:masters` may do
//! everything, then each authorizer of a chain says yes, no or nothing. By default these are the node authoriser and RBAC,
//! neither of which ever says "no"; configurations name others, webhooks among them. What nobody allows is refused.

mod aggregate;
mod attributes;
pub mod bootstrap;
mod chain;
mod configuration;
#[cfg(test)]
mod effects_tests;
mod escalation;
mod node;
mod pod_references;
mod rbac;
mod review;
mod rules;
mod webhook;

pub use aggregate::aggregate;
pub use attributes::{Attributes, Decision, forbidden};
pub use chain::{AuthorizationError, AuthorizationOptions, Authorizer};
pub use configuration::{AuthorizationConfigError, AuthorizationConfiguration, AuthorizerOptions, WebhookFlags};
pub use node::NodeAuthorizer;
pub use rbac::{Rbac, RulesOf};
pub use review::check_local_review;
pub use rules::PolicyRule;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::authn::{MASTERS, UserInfo};
    use crate::lookup::fixture::Objects;

    #[test]
    fn the_first_yes_counts() {
        let objects = Objects::default()
            .with("clusterroles.rbac.authorization.k8s.io", json!({"metadata": {"name": "r"},
                "rules": [{"verbs": ["list"], "apiGroups": [""], "resources": ["nodes"]}]}))
            .with("clusterrolebindings.rbac.authorization.k8s.io", json!({"metadata": {"name": "b"},
                "subjects": [{"kind": "Group", "name": "system:nodes"}], "roleRef": {"kind": "ClusterRole", "name": "r"}}))
            .with("clusterrolebindings.rbac.authorization.k8s.io", json!({"metadata": {"name": "c"},
                "subjects": [{"kind": "Group", "name": "system:nodes"}], "roleRef": {"kind": "ClusterRole", "name": "gone"}}));
        let authorizer = Authorizer::default();
        let (master, node) = (
            UserInfo::new("m", &[MASTERS]),
            UserInfo::new("system:node:n", &["system:nodes"]),
        );
        let ask = |user: &UserInfo, verb: &str| {
            authorizer.authorize(&Attributes::resource(user, verb, "", "nodes"), &objects)
        };
        assert!(ask(&master, "anything").allowed);
        assert!(
            ask(&node, "list").allowed,
            "by RBAC, though the node authoriser has a reason against it"
        );
        assert!(ask(&node, "patch").allowed, "by the node authoriser");
        let refused = ask(&node, "watch");
        assert!(!refused.allowed && !refused.denied);
        assert_eq!(
            &*refused.reason,
            "node 'n' cannot read all nodes, only its own Node object\n\
             RBAC: clusterrole.rbac.authorization.k8s.io \"gone\" not found"
        );
    }
}
