//! Admission: what is decided about a write by looking at other objects and at who writes.
//!
//! `ALL` lists the built-in plugins in Kubernetes' order. First every plugin may change the object (`mutate`), then, with
//! the object as it will be stored, every plugin may refuse it (`validate`). In both halves what users configure, policies
//! and webhooks (`dynamic`), comes after the built-in plugins, and may take a while. Last comes the quota (`charge_quota`):
//! it asks for other objects to change in the same transaction (`Change`), which is how quota use stays exact.

mod cel;
mod certificates;
mod conditions;
mod default_classes;
mod default_toleration_seconds;
mod dynamic;
pub(crate) mod expressions;
mod limit_ranger;
mod matching;
mod metrics;
mod namespace_lifecycle;
mod node_declared_features;
mod node_restriction;
mod persistent_volume_claim_resize;
mod pod_api_references;
mod pod_resize;
mod pod_security;
mod pod_topology_labels;
pub(crate) mod policy;
mod priority;
mod privileged;
mod rbac_escalation;
pub mod resource_quota;
mod runtime_class;
mod service_account;
mod shown;
mod storage_object_in_use;
mod switches;
mod taint_nodes_by_condition;
mod webhook;

#[cfg(test)]
mod fixture;
#[cfg(test)]
pub use certificates::tests::signing_request;

pub use pod_security::PodSecurityConfiguration;
pub use switches::{SwitchError, Switches};

use jiff::Timestamp;
use orlop_api::{KindDef, Status, Value};
use orlop_base::clock::monotonic;
use orlop_store::Revision;

use crate::authn::UserInfo;
use crate::authz::Authorizer;
use crate::config::Config;
use crate::custom::Kinds;
use crate::lookup::{ObjectLookup, text};
use crate::registry::Warnings;
use crate::registry::delete::DeleteOptions;
use crate::request::RequestInfo;
use metrics::Step;
pub(crate) use shown::Conversions;

pub use dynamic::{DynamicAdmission, connect};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
    Connect,
}

impl Operation {
    /// As rules and metrics call it.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Create => "CREATE",
            Operation::Update => "UPDATE",
            Operation::Delete => "DELETE",
            Operation::Connect => "CONNECT",
        }
    }
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
    pub request: &'r RequestInfo,
    /// Of a delete.
    pub delete: Option<&'r DeleteOptions>,
    pub dynamic: &'r DynamicAdmission,
    pub(crate) kinds: &'r Kinds,
    pub(crate) conversions: Conversions,
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

    /// Whether this is about a namespace itself.
    fn is_namespace_object(&self) -> bool {
        self.kind.group.is_empty() && self.kind.plural == "namespaces"
    }

    /// The namespace of the request, which for a namespace that is there already is itself.
    fn namespace_attribute(&self) -> &str {
        match self.is_namespace_object() && self.operation != Operation::Create {
            true => &self.name,
            false => &self.namespace,
        }
    }

    /// The same review, which also knows what refusals are to mention when the object has no name yet.
    fn prefixed_by(&self, object: &Value) -> Review<'_> {
        Review {
            name: self.name.clone(),
            name_prefix: text(object, &["metadata", "generateName"]).to_string(),
            namespace: self.namespace.clone(),
            conversions: Conversions::default(),
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

/// The built-in plugins, in the order in which Kubernetes runs them. Policies, webhooks and the quota follow.
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
];

/// Lets every plugin change the object.
pub async fn mutate(review: &Review<'_>, object: &mut Value, old: Option<&Value>) -> Result<(), Status> {
    let named;
    let review = if review.name.is_empty() {
        named = review.prefixed_by(object);
        &named
    } else {
        review
    };
    let started = monotonic();
    let mutated = async {
        mutate_built_in(review, object, old)?;
        dynamic::mutate(review, Some(object), old, |object| mutate_built_in(review, object, old)).await
    };
    let result = mutated.await;
    let metrics = &review.dynamic.metrics;
    metrics.step(Step::Admit, review.operation, result.is_err(), started.elapsed());
    result
}

pub(crate) fn mutate_built_in(review: &Review<'_>, object: &mut Value, old: Option<&Value>) -> Result<(), Status> {
    let mut plugins = review.config.admission.enabled().filter_map(|plugin| plugin.mutate);
    plugins.try_for_each(|mutate| mutate(review, object, old))
}

/// Lets every plugin but the quota refuse the request. Before a delete is refused by anybody, mutating webhooks see it too.
pub async fn validate(review: &Review<'_>, object: Option<&Value>, old: Option<&Value>) -> Result<(), Status> {
    let started = monotonic();
    let validated = async {
        if review.operation == Operation::Delete {
            dynamic::mutate(review, None, old, |_| Ok(())).await?;
        }
        validate_built_in(review, object, old)?;
        dynamic::validate(review, object, old).await
    };
    let result = validated.await;
    let metrics = &review.dynamic.metrics;
    metrics.step(Step::Validate, review.operation, result.is_err(), started.elapsed());
    result
}

pub(crate) fn validate_built_in(
    review: &Review<'_>,
    object: Option<&Value>,
    old: Option<&Value>,
) -> Result<(), Status> {
    if let Some(object) = object
        && !review.config.admission.allow_privileged
    {
        privileged::refuse(review, object)?;
    }
    let mut plugins = review.config.admission.enabled().filter_map(|plugin| plugin.validate);
    plugins.try_for_each(|validate| validate(review, object, old).map(|_| ()))
}

/// The policies and webhooks alone, for what built-in plugins see in another form.
pub(crate) async fn review_dynamic(review: &Review<'_>, object: &mut Value) -> Result<(), Status> {
    dynamic::mutate(review, Some(object), None, |_| Ok(())).await?;
    dynamic::validate(review, Some(object), None).await
}

/// What the write changes in quotas, or why they have no room for it. Comes last, and close to the transaction: until that
/// has happened, no other write may be charged.
pub fn charge_quota(review: &Review<'_>, object: Option<&Value>, old: Option<&Value>) -> Result<Vec<Change>, Status> {
    if !review.config.admission.is_on(&resource_quota::PLUGIN) {
        return Ok(vec![]);
    }
    let charge = resource_quota::PLUGIN.validate.expect("the quota validates");
    charge(review, object, old)
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
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn a_plain_pod_is_completed() {
        let desk = Desk::new();
        let mut pod = json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": {"containers": [{"name": "c"}]}});
        let review = desk.review(Operation::Create, "pods", &pod);
        mutate_built_in(&review, &mut pod, None).unwrap();
        validate_built_in(&review, Some(&pod), None).unwrap();
        assert!(charge_quota(&review, Some(&pod), None).unwrap().is_empty());
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
        mutate_built_in(&review, &mut pod, None).unwrap();
        assert_eq!(pod, completed, "a second time changes nothing");
    }

    #[tokio::test]
    async fn refusals_mention_what_a_name_will_start_with() {
        let desk = Desk::new();
        for (metadata, named) in [
            (json!({"name": "p", "generateName": "g-"}), "p"),
            (json!({"generateName": "g-"}), "g-"),
            (json!({}), "Unknown"),
        ] {
            let mut pod = json!({"metadata": metadata, "spec": {"priorityClassName": "gone"}});
            let review = desk.review(Operation::Create, "pods", &pod);
            let expected = format!("pods {named:?} is forbidden: no PriorityClass with name gone was found");
            assert_eq!(told(mutate(&review, &mut pod, None).await), expected);
        }
    }

    #[test]
    fn complaints_are_told_once() {
        let list = |texts: &[&str]| texts.iter().map(|t| t.to_string()).collect();
        assert_eq!(together(list(&["a", "a"])), "a");
        assert_eq!(together(list(&["a", "b", "a"])), "[a, b]");
    }
}
