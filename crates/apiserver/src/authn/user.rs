//! Who makes a request, and the names that Kubernetes reserves for users and groups.

use std::collections::BTreeMap;

use orlop_api::names;
use serde_json::{Map, Value, json};

use crate::lookup::strings;

pub const ANONYMOUS: &str = "system:anonymous";
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
pub const AUTHENTICATED: &str = "system:authenticated";
/// May do everything, whatever RBAC says.
pub const MASTERS: &str = "system:masters";
pub const NODES: &str = "system:nodes";
pub const NODE_PREFIX: &str = "system:node:";
pub const SERVICE_ACCOUNT_PREFIX: &str = "system:serviceaccount:";
pub const SERVICE_ACCOUNTS: &str = "system:serviceaccounts";

/// Keys of `UserInfo::extra` that say which credential was used and what it was bound to.
pub const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";
pub const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
pub const POD_UID: &str = "authentication.kubernetes.io/pod-uid";
pub const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
pub const NODE_UID: &str = "authentication.kubernetes.io/node-uid";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserInfo {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

impl UserInfo {
    pub fn new(name: impl Into<String>, groups: &[&str]) -> UserInfo {
        UserInfo {
            name: name.into(),
            groups: groups.iter().map(|g| g.to_string()).collect(),
            ..Default::default()
        }
    }

    /// Somebody without credentials.
    pub fn anonymous() -> UserInfo {
        UserInfo::new(ANONYMOUS, &[UNAUTHENTICATED])
    }

    /// A service account with the groups every service account has, `system:authenticated` among them.
    pub fn service_account(namespace: &str, name: &str, uid: &str) -> UserInfo {
        let mut user = UserInfo {
            name: service_account_username(namespace, name),
            uid: uid.to_string(),
            groups: service_account_groups(namespace),
            ..Default::default()
        };
        user.ensure_group(AUTHENTICATED);
        user
    }

    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }

    pub fn is_anonymous(&self) -> bool {
        self.name == ANONYMOUS || self.in_group(UNAUTHENTICATED)
    }

    pub(crate) fn ensure_group(&mut self, group: &str) {
        if !self.in_group(group) {
            self.groups.push(group.to_string());
        }
    }

    /// Whoever proved who they are is in `system:authenticated`.
    pub(crate) fn ensure_authenticated(&mut self) {
        if !self.is_anonymous() {
            self.ensure_group(AUTHENTICATED);
        }
    }

    /// The node a kubelet speaks for: its user name carries the prefix and it is in the nodes' group. The name may be
    /// empty, which identifies no node.
    pub fn node_name(&self) -> Option<&str> {
        self.name.strip_prefix(NODE_PREFIX).filter(|_| self.in_group(NODES))
    }

    /// `authentication.k8s.io/v1` UserInfo, as in TokenReview, SelfSubjectReview and admission requests.
    pub fn to_value(&self) -> Value {
        let mut map = Map::new();
        for (key, text) in [("username", &self.name), ("uid", &self.uid)] {
            if !text.is_empty() {
                map.insert(key.into(), json!(text));
            }
        }
        if !self.groups.is_empty() {
            map.insert("groups".into(), json!(self.groups));
        }
        if !self.extra.is_empty() {
            map.insert("extra".into(), json!(self.extra));
        }
        Value::Object(map)
    }

    /// The subject of a SubjectAccessReview's spec, which calls the name `user`.
    pub fn from_review_spec(spec: &Value) -> UserInfo {
        let text = |key: &str| spec[key].as_str().unwrap_or("").to_string();
        let extra = spec["extra"].as_object().into_iter().flatten();
        UserInfo {
            name: text("user"),
            uid: text("uid"),
            groups: strings(spec.get("groups")),
            extra: extra
                .map(|(key, values)| (key.clone(), strings(Some(values))))
                .collect(),
        }
    }
}

pub fn service_account_username(namespace: &str, name: &str) -> String {
    format!("{SERVICE_ACCOUNT_PREFIX}{namespace}:{name}")
}

pub fn service_account_groups(namespace: &str) -> Vec<String> {
    vec![SERVICE_ACCOUNTS.to_string(), format!("{SERVICE_ACCOUNTS}:{namespace}")]
}

/// Namespace and name of the service account that a user name stands for, if it is a well-formed one.
pub fn split_service_account(username: &str) -> Option<(&str, &str)> {
    let (namespace, name) = username.strip_prefix(SERVICE_ACCOUNT_PREFIX)?.split_once(':')?;
    let valid = names::dns_label(namespace).is_empty() && names::dns_subdomain(name).is_empty();
    valid.then_some((namespace, name))
}

/// The node that a user name stands for, if it is a well-formed one.
pub fn split_node(username: &str) -> Option<&str> {
    let name = username.strip_prefix(NODE_PREFIX)?;
    names::dns_subdomain(name).is_empty().then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_names_are_taken_apart() {
        assert_eq!(
            split_service_account("system:serviceaccount:ns:a.b"),
            Some(("ns", "a.b"))
        );
        for bad in [
            "",
            "ns:a",
            "system:serviceaccount:ns",
            "system:serviceaccount:ns:a:b",
            "system:serviceaccount:N:a",
        ] {
            assert_eq!(split_service_account(bad), None, "{bad}");
        }
        assert_eq!(split_node("system:node:n1"), Some("n1"));
        assert_eq!(split_node("system:node:"), None);

        let mut kubelet = UserInfo::new("system:node:n1", &[]);
        assert_eq!(kubelet.node_name(), None);
        kubelet.ensure_group(NODES);
        kubelet.ensure_group(NODES);
        assert_eq!((kubelet.node_name(), kubelet.groups.len()), (Some("n1"), 1));
    }

    #[test]
    fn written_as_kubernetes_writes_it() {
        let mut user = UserInfo::service_account("ns", "default", "u-1");
        user.extra.insert(CREDENTIAL_ID.into(), vec!["JTI=x".into()]);
        assert_eq!(
            user.to_value(),
            json!({"username": "system:serviceaccount:ns:default", "uid": "u-1",
                "groups": ["system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated"],
                "extra": {"authentication.kubernetes.io/credential-id": ["JTI=x"]}})
        );
        let spec = json!({"user": "u", "groups": ["a"], "extra": {"k": ["v"]}});
        let back = UserInfo::from_review_spec(&spec);
        assert_eq!(
            (back.name.as_str(), back.groups, back.extra["k"].clone()),
            ("u", vec!["a".into()], vec!["v".into()])
        );
    }
}
