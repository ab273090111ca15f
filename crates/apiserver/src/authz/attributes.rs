//! What authorisation is asked (attributes of a request) and what it answers.

use std::sync::Arc;

use orlop_api::Status;
use orlop_api::selector::{FieldSelector, LabelSelector};

use crate::authn::UserInfo;

/// One request, as far as authorisation cares. Empty strings stand for "none".
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a> {
    pub user: &'a UserInfo,
    /// get, list, watch, create, update, patch, delete, deletecollection, or a special verb such as impersonate; for
    /// paths the lower-case HTTP method.
    pub verb: &'a str,
    pub group: &'a str,
    pub version: &'a str,
    pub resource: &'a str,
    pub subresource: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
    /// The path of a request that is not for a resource.
    pub path: &'a str,
    pub is_resource: bool,
    /// Selectors of list, watch and deletecollection; they can only narrow what is asked for.
    pub field_selector: Option<&'a FieldSelector>,
    pub label_selector: Option<&'a LabelSelector>,
}

impl<'a> Attributes<'a> {
    pub fn resource(user: &'a UserInfo, verb: &'a str, group: &'a str, resource: &'a str) -> Attributes<'a> {
        Attributes {
            user,
            verb,
            group,
            version: "*",
            resource,
            subresource: "",
            namespace: "",
            name: "",
            path: "",
            is_resource: true,
            field_selector: None,
            label_selector: None,
        }
    }

    pub fn path(user: &'a UserInfo, verb: &'a str, path: &'a str) -> Attributes<'a> {
        Attributes {
            path,
            is_resource: false,
            version: "",
            ..Attributes::resource(user, verb, "", "")
        }
    }

    pub fn in_namespace(self, namespace: &'a str) -> Attributes<'a> {
        Attributes { namespace, ..self }
    }

    pub fn named(self, name: &'a str) -> Attributes<'a> {
        Attributes { name, ..self }
    }

    pub fn subresource(self, subresource: &'a str) -> Attributes<'a> {
        Attributes { subresource, ..self }
    }
}

/// The answer. Neither allowed nor denied means that nobody had an opinion, which refuses the request as well.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    pub allowed: bool,
    pub denied: bool,
    pub reason: Arc<str>,
    /// What kept an authorizer from an answer.
    pub error: Option<Arc<str>>,
}

impl Decision {
    pub fn allow(reason: impl Into<Arc<str>>) -> Decision {
        Decision {
            allowed: true,
            reason: reason.into(),
            ..Default::default()
        }
    }

    pub fn no_opinion(reason: impl Into<Arc<str>>) -> Decision {
        Decision {
            reason: reason.into(),
            ..Default::default()
        }
    }
}

/// The refusal that a client sees.
pub fn forbidden(attrs: &Attributes<'_>, reason: &str) -> Status {
    let mut message = html_safe(&refusal(attrs));
    if !reason.is_empty() {
        message.push_str(": ");
        message.push_str(reason);
    }
    Status::forbidden(attrs.group, attrs.resource, attrs.name, message)
}

fn refusal(attrs: &Attributes<'_>) -> String {
    let (user, verb) = (&attrs.user.name, attrs.verb);
    if !attrs.is_resource {
        return format!("User {user:?} cannot {verb} path {:?}", attrs.path);
    }
    let resource = match attrs.subresource {
        "" => attrs.resource.to_string(),
        subresource => format!("{}/{subresource}", attrs.resource),
    };
    let scope = match attrs.namespace {
        "" => "at the cluster scope".to_string(),
        namespace => format!("in the namespace {namespace:?}"),
    };
    format!(
        "User {user:?} cannot {verb} resource {resource:?} in API group {:?} {scope}",
        attrs.group
    )
}

/// Browsers must not take a message for markup: it repeats what the client sent.
fn html_safe(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_read_as_kubernetes_words_them() {
        let (user, anonymous) = (UserInfo::new("u", &[]), UserInfo::anonymous());
        let pods = Attributes::resource(&user, "list", "", "pods").in_namespace("default");
        let scale = Attributes::resource(&user, "update", "apps", "deployments")
            .subresource("scale")
            .named("web");
        let cases = [
            (
                forbidden(&pods, ""),
                r#"pods is forbidden: User "u" cannot list resource "pods" in API group "" in the namespace "default""#,
            ),
            (
                forbidden(&pods, r#"RBAC: clusterrole.rbac.authorization.k8s.io "x" not found"#),
                concat!(
                    r#"pods is forbidden: User "u" cannot list resource "pods" in API group "" in the namespace "#,
                    r#""default": RBAC: clusterrole.rbac.authorization.k8s.io "x" not found"#
                ),
            ),
            (
                forbidden(&scale, ""),
                concat!(
                    r#"deployments.apps "web" is forbidden: User "u" cannot update resource "deployments/scale" "#,
                    r#"in API group "apps" at the cluster scope"#
                ),
            ),
            (
                forbidden(&Attributes::path(&anonymous, "get", "/"), ""),
                r#"forbidden: User "system:anonymous" cannot get path "/""#,
            ),
            (
                forbidden(&Attributes::path(&anonymous, "get", "/<b>"), ""),
                r#"forbidden: User "system:anonymous" cannot get path "/&lt;b&gt;""#,
            ),
        ];
        for (status, message) in cases {
            assert_eq!(
                (status.code, &*status.reason, status.message.as_str()),
                (403, "Forbidden", message)
            );
        }
    }
}
