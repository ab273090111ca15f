//! Admission: what is decided about a write by looking at other objects and at who writes.
//!
//! `ALL` lists the plugins in Kubernetes' order. First every plugin may change the object (`mutate`), then, with the object
//! as it will be stored, every plugin may refuse it (`validate`). Validation may also ask for other objects to change in
//! the same transaction (`Change`): that is how quota use stays exact.

mod certificates;
mod default_classes;
mod default_toleration_seconds;
mod limit_ranger;
mod namespace_lifecycle;
mod node_declared_features;
mod node_restriction;
mod persistent_volume_claim_resize;
mod pod_api_references;
mod pod_resize;
mod pod_security;
mod pod_topology_labels;
mod priority;
mod rbac_escalation;
pub mod resource_quota;
mod runtime_class;
mod service_account;
mod storage_object_in_use;
mod taint_nodes_by_condition;

#[cfg(test)]
mod fixture;
#[cfg(test)]
pub use certificates::tests::signing_request;

use jiff::Timestamp;
use orlop_api::{KindDef, Status, Value};
use orlop_store::Revision;

use crate::authn::UserInfo;
use crate::authz::Authorizer;
use crate::config::Config;
use crate::lookup::{ObjectLookup, text};
use crate::registry::Warnings;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
}

/// The write under review.
pub struct Review<'r> {
    pub operation: Operation,
    pub kind: &'static KindDef,
    pub subresource: &'r str,
    /// "" for cluster-scoped kinds.
    pub namespace: String,
    /// "" while it is still to be generated: nothing may be decided by what it will start with.
    pub name: String,
    /// What a name that is still to be generated will start with, for messages alone.
    pub name_prefix: String,
    pub user: &'r UserInfo,
    pub dry_run: bool,
    pub now: Timestamp,
    pub lookup: &'r (dyn ObjectLookup + Sync),
    pub config: &'r Config,
    pub authorizer: &'r Authorizer,
    pub warnings: &'r Warnings,
}

impl Review<'_> {
    /// Whether this is about the resource itself ("pods"), not one of its subresources, in the given group.
    pub fn is(&self, group: &str, plural: &str) -> bool {
        self.kind.group == group && self.kind.plural == plural && self.subresource.is_empty()
    }

    /// Whether this is about a subresource of the given resource, "pods/status".
    pub fn is_sub(&self, group: &str, plural: &str, subresource: &str) -> bool {
        self.kind.group == group && self.kind.plural == plural && self.subresource == subresource
    }

    /// The same review, which also knows what refusals are to mention when the object has no name yet.
    fn prefixed_by(&self, object: &Value) -> Review<'_> {
        Review {
            name: self.name.clone(),
            name_prefix: text(object, &["metadata", "generateName"]).to_string(),
            namespace: self.namespace.clone(),
            ..*self
        }
    }

    /// What messages call the object.
    pub fn displayed_name(&self) -> &str {
        match (self.name.as_str(), self.name_prefix.as_str()) {
            ("", "") => "Unknown",
            ("", prefix) => prefix,
            (name, _) => name,
        }
    }

    pub fn forbidden(&self, why: impl std::fmt::Display) -> Status {
        Status::forbidden(self.kind.group, self.kind.plural, self.displayed_name(), why)
    }
}

/// Several complaints in one, each told once: `a`, `[a, b]`.
fn together(complaints: Vec<String>) -> String {
    let mut told: Vec<String> = vec![];
    for complaint in complaints {
        if !told.contains(&complaint) {
            told.push(complaint);
        }
    }
    match told.as_slice() {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}

/// Another object that must change together with the one under review, if it is still at `revision`.
pub struct Change {
    pub kind: &'static KindDef,
    pub namespace: String,
    pub name: String,
    pub revision: Revision,
    pub value: Value,
}

/// (review, the object, the object as it is stored now)
pub type Mutate = fn(&Review<'_>, &mut Value, Option<&Value>) -> Result<(), Status>;
/// (review, the object (none on delete), the object as it is stored now)
pub type Validate = fn(&Review<'_>, Option<&Value>, Option<&Value>) -> Result<Vec<Change>, Status>;

pub struct Plugin {
    /// Kubernetes' name of it.
    pub name: &'static str,
    pub mutate: Option<Mutate>,
    pub validate: Option<Validate>,
}

/// In the order in which Kubernetes runs them.
pub const ALL: &[&Plugin] = &[
    &namespace_lifecycle::PLUGIN,
    &limit_ranger::PLUGIN,
    &service_account::PLUGIN,
    &node_restriction::PLUGIN,
    &taint_nodes_by_condition::PLUGIN,
    &pod_security::PLUGIN,
    &priority::PLUGIN,
    &default_toleration_seconds::PLUGIN,
    &default_classes::STORAGE,
    &storage_object_in_use::PLUGIN,
    &persistent_volume_claim_resize::PLUGIN,
    &runtime_class::PLUGIN,
    &certificates::APPROVAL,
    &certificates::SIGNING,
    &certificates::SUBJECT,
    &default_classes::INGRESS,
    &pod_topology_labels::PLUGIN,
    &node_declared_features::PLUGIN,
    &pod_resize::PLUGIN,
    &rbac_escalation::PLUGIN,
    &resource_quota::PLUGIN,
];

pub fn mutate(review: &Review<'_>, object: &mut Value, old: Option<&Value>) -> Result<(), Status> {
    let named;
    let review = if review.name.is_empty() {
        named = review.prefixed_by(object);
        &named
    } else {
        review
    };
    for plugin in ALL {
        if let Some(mutate) = plugin.mutate {
            mutate(review, object, old)?;
        }
    }
    Ok(())
}

pub fn validate(review: &Review<'_>, object: Option<&Value>, old: Option<&Value>) -> Result<Vec<Change>, Status> {
    let mut changes = vec![];
    for plugin in ALL {
        if let Some(validate) = plugin.validate {
            changes.extend(validate(review, object, old)?);
        }
    }
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::fixture::{Desk, told};
    use super::*;

    #[test]
    fn plugins_run_in_the_order_of_kubernetes() {
        let names: Vec<&str> = ALL.iter().map(|p| p.name).collect();
        let expected = [
            "NamespaceLifecycle",
            "LimitRanger",
            "ServiceAccount",
            "NodeRestriction",
            "TaintNodesByCondition",
            "PodSecurity",
            "Priority",
            "DefaultTolerationSeconds",
            "DefaultStorageClass",
            "StorageObjectInUseProtection",
            "PersistentVolumeClaimResize",
            "RuntimeClass",
            "CertificateApproval",
            "CertificateSigning",
            "CertificateSubjectRestriction",
            "DefaultIngressClass",
            "PodTopologyLabels",
            "NodeDeclaredFeatureValidator",
            "PodResizeValidator",
            "RBACEscalation",
            "ResourceQuota",
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn a_plain_pod_is_completed() {
        let desk = Desk::new();
        let mut pod = json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": {"containers": [{"name": "c"}]}});
        let review = desk.review(Operation::Create, "pods", &pod);
        mutate(&review, &mut pod, None).unwrap();
        assert!(validate(&review, Some(&pod), None).unwrap().is_empty());
        let spec = pod["spec"].as_object().unwrap();
        let members: Vec<&str> = spec.keys().map(String::as_str).collect();
        let expected = [
            "containers",
            "preemptionPolicy",
            "priority",
            "serviceAccount",
            "serviceAccountName",
            "tolerations",
            "volumes",
        ];
        assert_eq!(members, expected);
        assert_eq!(pod["metadata"], json!({"name": "p", "namespace": "ns"}));
        let completed = pod.clone();
        mutate(&review, &mut pod, None).unwrap();
        assert_eq!(pod, completed, "a second time changes nothing");
    }

    #[test]
    fn refusals_mention_what_a_name_will_start_with() {
        let desk = Desk::new();
        for (metadata, named) in [
            (json!({"name": "p", "generateName": "g-"}), "p"),
            (json!({"generateName": "g-"}), "g-"),
            (json!({}), "Unknown"),
        ] {
            let mut pod = json!({"metadata": metadata, "spec": {"priorityClassName": "gone"}});
            let review = desk.review(Operation::Create, "pods", &pod);
            let expected = format!("pods {named:?} is forbidden: no PriorityClass with name gone was found");
            assert_eq!(told(mutate(&review, &mut pod, None)), expected);
        }
    }

    #[test]
    fn complaints_are_told_once() {
        let list = |texts: &[&str]| texts.iter().map(|t| t.to_string()).collect();
        assert_eq!(together(list(&["a", "a"])), "a");
        assert_eq!(together(list(&["a", "b", "a"])), "[a, b]");
    }
}
