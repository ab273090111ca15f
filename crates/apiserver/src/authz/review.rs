//! Access reviews: answers to "may this user do that?" and "what may I do here?".
//! Upstream: pkg/registry/authorization (v1.36).

use orlop_api::Status;
use orlop_api::selector::{FieldSelector, FieldTerm, LabelSelector};
use serde_json::{Map, Value, json};

use super::rbac::joined;
use super::{Attributes, Authorizer, PolicyRule};
use crate::authn::UserInfo;
use crate::lookup::{ObjectLookup, items, text};

impl Authorizer {
    /// The status of a SubjectAccessReview or LocalSubjectAccessReview: about the user that the spec names.
    pub fn subject_access_review(&self, spec: &Value, lookup: &dyn ObjectLookup) -> Value {
        self.access_review(&UserInfo::from_review_spec(spec), spec, lookup)
    }

    /// The status of a SelfSubjectAccessReview: about whoever asks.
    pub fn self_subject_access_review(&self, user: &UserInfo, spec: &Value, lookup: &dyn ObjectLookup) -> Value {
        self.access_review(user, spec, lookup)
    }

    /// The status of a SelfSubjectRulesReview: everything the user may do in a namespace, as far as it can be listed.
    pub fn self_subject_rules_review(&self, user: &UserInfo, namespace: &str, lookup: &dyn ObjectLookup) -> Value {
        let found = self.rules_of(user, namespace, lookup);
        let resource = found.rules.iter().filter(|rule| !rule.resources.is_empty());
        let path = found.rules.iter().filter(|rule| !rule.non_resource_urls.is_empty());
        let mut status = json!({
            "resourceRules": resource.map(resource_rule).collect::<Vec<_>>(),
            "nonResourceRules": path.map(path_rule).collect::<Vec<_>>(),
            "incomplete": found.is_incomplete,
        });
        if let Some(errors) = joined(&found.errors) {
            status["evaluationError"] = json!(errors);
        }
        status
    }

    fn access_review(&self, user: &UserInfo, spec: &Value, lookup: &dyn ObjectLookup) -> Value {
        let mut errors = Vec::new();
        let (fields, labels);
        let attrs = match spec.get("resourceAttributes") {
            Some(resource) => {
                fields = field_selector(&resource["fieldSelector"], &mut errors);
                labels = label_selector(&resource["labelSelector"], &mut errors);
                Attributes {
                    field_selector: fields.as_ref(),
                    label_selector: labels.as_ref(),
                    ..resource_attributes(user, resource)
                }
            }
            None => {
                let path = &spec["nonResourceAttributes"];
                Attributes::path(user, text(path, &["verb"]), text(path, &["path"]))
            }
        };
        let decision = self.authorize(&attrs, lookup);
        errors.extend(decision.error.iter().map(|error| error.to_string()));
        let mut status = Map::new();
        status.insert("allowed".into(), json!(decision.allowed));
        if decision.denied {
            status.insert("denied".into(), json!(true));
        }
        if !decision.reason.is_empty() {
            status.insert("reason".into(), json!(&*decision.reason));
        }
        if !errors.is_empty() {
            status.insert("evaluationError".into(), json!(errors.join("; ")));
        }
        Value::Object(status)
    }
}

/// A LocalSubjectAccessReview is about the namespace it is created in.
pub fn check_local_review(review: &Value, namespace: &str) -> Result<(), Status> {
    if namespace.is_empty() {
        return Err(Status::bad_request("namespace is required on this type: "));
    }
    if text(review, &["metadata", "namespace"]) != namespace {
        let message = format!("spec.resourceAttributes.namespace must match namespace: {namespace}");
        return Err(Status::bad_request(message));
    }
    Ok(())
}

fn resource_attributes<'a>(user: &'a UserInfo, resource: &'a Value) -> Attributes<'a> {
    let part = |name| text(resource, &[name]);
    Attributes {
        version: if part("version").is_empty() {
            "*"
        } else {
            part("version")
        },
        subresource: part("subresource"),
        namespace: part("namespace"),
        name: part("name"),
        ..Attributes::resource(user, part("verb"), part("group"), part("resource"))
    }
}

/// What cannot be understood is left out, which only makes the question broader; the status says so.
fn note_ignored(which: &str, any_left: bool, errors: &mut Vec<String>) {
    let partially = if any_left { "partially " } else { "" };
    errors.push(format!(
        "spec.resourceAttributes.{which} {partially}ignored due to parse error"
    ));
}

fn field_selector(selector: &Value, errors: &mut Vec<String>) -> Option<FieldSelector> {
    let requirements = items(selector, &["requirements"]);
    if requirements.is_empty() {
        let raw = text(selector, &["rawSelector"]);
        return match FieldSelector::parse(raw) {
            _ if raw.is_empty() => None,
            Ok(selector) => Some(selector),
            Err(_) => {
                note_ignored("fieldSelector", false, errors);
                None
            }
        };
    }
    let term = |requirement: &Value| {
        let [value] = items(requirement, &["values"]) else {
            return None;
        };
        let equal = match text(requirement, &["operator"]) {
            "In" => true,
            "NotIn" => false,
            _ => return None,
        };
        Some(FieldTerm {
            field: text(requirement, &["key"]).to_string(),
            equal,
            value: value.as_str()?.to_string(),
        })
    };
    let terms: Vec<FieldTerm> = requirements.iter().filter_map(term).collect();
    if terms.len() < requirements.len() {
        note_ignored("fieldSelector", !terms.is_empty(), errors);
    }
    (!terms.is_empty()).then_some(FieldSelector { terms })
}

fn label_selector(selector: &Value, errors: &mut Vec<String>) -> Option<LabelSelector> {
    let requirements = items(selector, &["requirements"]);
    if requirements.is_empty() {
        let raw = text(selector, &["rawSelector"]);
        return match LabelSelector::parse(raw) {
            _ if raw.is_empty() => None,
            Ok(selector) => Some(selector),
            Err(_) => {
                note_ignored("labelSelector", false, errors);
                None
            }
        };
    }
    let one = |requirement: &Value| LabelSelector::from_object(&json!({"matchExpressions": [requirement]})).ok();
    let parsed: Vec<LabelSelector> = requirements.iter().filter_map(one).collect();
    if parsed.len() < requirements.len() {
        note_ignored("labelSelector", !parsed.is_empty(), errors);
    }
    let requirements: Vec<_> = parsed.into_iter().flat_map(|selector| selector.requirements).collect();
    (!requirements.is_empty()).then_some(LabelSelector { requirements })
}

fn resource_rule(rule: &PolicyRule) -> Value {
    PolicyRule {
        non_resource_urls: Vec::new(),
        ..rule.clone()
    }
    .to_value()
}

fn path_rule(rule: &PolicyRule) -> Value {
    json!({"verbs": rule.verbs, "nonResourceURLs": rule.non_resource_urls})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lookup::fixture::Objects;

    fn cluster() -> Objects {
        let rules = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]},
            {"verbs": ["get"], "nonResourceURLs": ["/healthz"]}]);
        let subjects = json!([{"kind": "Group", "name": "readers"}]);
        let reference = |name: &str| json!({"kind": "ClusterRole", "name": name});
        Objects::default()
            .with(
                "clusterroles.rbac.authorization.k8s.io",
                json!({"metadata": {"name": "read"}, "rules": rules}),
            )
            .with(
                "clusterrolebindings.rbac.authorization.k8s.io",
                json!({"metadata": {"name": "read"}, "subjects": subjects, "roleRef": reference("read")}),
            )
            .with(
                "clusterrolebindings.rbac.authorization.k8s.io",
                json!({"metadata": {"name": "lost"}, "subjects": subjects, "roleRef": reference("gone")}),
            )
    }

    #[test]
    fn access_reviews() {
        let allowed = r#"RBAC: allowed by ClusterRoleBinding "read" of ClusterRole "read" to Group "readers""#;
        let lost = r#"RBAC: clusterrole.rbac.authorization.k8s.io "gone" not found"#;
        let cases = [
            (
                json!({"user": "u", "groups": ["readers"], "resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "x"}}),
                json!({"allowed": true, "reason": allowed}),
            ),
            (
                json!({"user": "u", "groups": ["readers"], "resourceAttributes": {"verb": "list", "resource": "pods"}}),
                json!({"allowed": false, "reason": lost}),
            ),
            (
                json!({"user": "u", "resourceAttributes": {"verb": "get", "resource": "pods"}}),
                json!({"allowed": false}),
            ),
            (
                json!({"user": "u", "groups": ["readers"], "nonResourceAttributes": {"verb": "get", "path": "/healthz"}}),
                json!({"allowed": true, "reason": allowed}),
            ),
            (
                json!({"user": "u", "groups": ["system:masters"], "nonResourceAttributes": {"verb": "post", "path": "/x"}}),
                json!({"allowed": true}),
            ),
            // A kubelet may list pods only with the right selector.
            (
                json!({"user": "system:node:n", "groups": ["system:nodes"], "resourceAttributes": {"verb": "list", "resource": "pods",
                "fieldSelector": {"requirements": [{"key": "spec.nodeName", "operator": "In", "values": ["n"]}]}}}),
                json!({"allowed": true}),
            ),
            (
                json!({"user": "system:node:n", "groups": ["system:nodes"], "resourceAttributes": {"verb": "list", "resource": "pods",
                "fieldSelector": {"rawSelector": "nonsense"}}}),
                json!({"allowed": false, "reason": "can only list/watch pods with spec.nodeName field selector",
                    "evaluationError": "spec.resourceAttributes.fieldSelector ignored due to parse error"}),
            ),
            (
                json!({"user": "system:node:n", "groups": ["system:nodes"], "resourceAttributes": {"verb": "list", "resource": "pods",
                "fieldSelector": {"requirements": [{"key": "spec.nodeName", "operator": "In", "values": ["n"]},
                    {"key": "a", "operator": "Exists"}]},
                "labelSelector": {"requirements": [{"key": "a", "operator": "Nonsense"}]}}}),
                json!({"allowed": true, "evaluationError": concat!(
                    "spec.resourceAttributes.fieldSelector partially ignored due to parse error; ",
                    "spec.resourceAttributes.labelSelector ignored due to parse error")}),
            ),
        ];
        let (objects, authorizer) = (cluster(), Authorizer::default());
        for (spec, status) in cases {
            assert_eq!(authorizer.subject_access_review(&spec, &objects), status, "{spec}");
        }
        let me = UserInfo::new("me", &["readers"]);
        let spec = json!({"user": "ignored", "resourceAttributes": {"verb": "get", "resource": "pods"}});
        assert_eq!(
            authorizer.self_subject_access_review(&me, &spec, &objects)["allowed"],
            true
        );
    }

    #[test]
    fn rules_reviews() {
        let (objects, authorizer) = (cluster(), Authorizer::default());
        let me = UserInfo::new("me", &["readers"]);
        assert_eq!(
            authorizer.self_subject_rules_review(&me, "default", &objects),
            json!({"resourceRules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}],
                "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/healthz"]}], "incomplete": false,
                "evaluationError": "clusterrole.rbac.authorization.k8s.io \"gone\" not found"})
        );
        let node = UserInfo::new("system:node:n", &["system:nodes"]);
        assert_eq!(
            authorizer.self_subject_rules_review(&node, "default", &objects),
            json!({"resourceRules": [], "nonResourceRules": [], "incomplete": true,
                "evaluationError": "node authorizer does not support user rule resolution"})
        );
    }

    #[test]
    fn local_reviews_are_local() {
        let review = json!({"metadata": {"namespace": "a"}});
        assert!(check_local_review(&review, "a").is_ok());
        assert_eq!(check_local_review(&review, "b").unwrap_err().code, 400);
        assert_eq!(check_local_review(&review, "").unwrap_err().code, 400);
    }
}
