//! The node authoriser: a kubelet may read what its own pods refer to, and deal with its own node, lease and the like.
//! Upstream: plugin/pkg/auth/authorizer/node (v1.36), which keeps a graph of the cluster up to date at all times. Differs
//! from it: relations are looked up when a kubelet asks. The pod that justified an answer is remembered and looked at
//! again first, so that repeated questions cost one read, and an answer is never older than the store.
//!
//! What a node may write of an object is the business of the NodeRestriction admission step.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;
use serde_json::Value;

use super::pod_references::{Referenced, refers_to, volume_needs_secret};
use super::{Attributes, Decision, PolicyRule};
use crate::lookup::{ObjectLookup, text};

/// Remembered pods are forgotten all at once beyond this; finding them again costs one walk through a namespace each.
const MEMORY: usize = 1 << 16;
const NODE_LEASES: &str = "kube-node-lease";
const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// What every node may do, beyond what is decided one by one below.
static NODE_RULES: LazyLock<Vec<PolicyRule>> = LazyLock::new(|| {
    let rule = PolicyRule::resource;
    let read = &["get", "list", "watch"];
    vec![
        rule(&["create"], &["authentication.k8s.io"], &["tokenreviews"]),
        rule(
            &["create"],
            &["authorization.k8s.io"],
            &["subjectaccessreviews", "localsubjectaccessreviews"],
        ),
        rule(read, &[""], &["services"]),
        rule(&["create", "update", "patch"], &["", "events.k8s.io"], &["events"]),
        rule(&["get"], &[""], &["endpoints"]),
        rule(
            &["create", "get", "list", "watch"],
            &["certificates.k8s.io"],
            &["certificatesigningrequests"],
        ),
        rule(read, &["storage.k8s.io"], &["csidrivers"]),
        rule(read, &["node.k8s.io"], &["runtimeclasses"]),
    ]
});

#[derive(Default)]
pub struct NodeAuthorizer {
    remembered: Mutex<HashMap<Question, (String, String)>>,
}

/// "Does a pod on this node refer to that object?"; answered by the pod's namespace and name.
#[derive(PartialEq, Eq, Hash)]
struct Question {
    node: String,
    what: Referenced,
    namespace: String,
    name: String,
}

/// Why a node may not do something; empty where there is nothing to say.
#[derive(Debug, Default)]
struct Refusal(String);

impl From<&str> for Refusal {
    fn from(reason: &str) -> Refusal {
        Refusal(reason.to_string())
    }
}

impl From<String> for Refusal {
    fn from(reason: String) -> Refusal {
        Refusal(reason)
    }
}

impl NodeAuthorizer {
    /// No opinion about anybody but nodes.
    pub fn authorize(&self, attrs: &Attributes<'_>, lookup: &dyn ObjectLookup) -> Decision {
        match attrs.user.node_name() {
            None => Decision::default(),
            Some("") => Decision::no_opinion(format!("unknown node for user {:?}", attrs.user.name)),
            Some(node) => match self.check(node, attrs, lookup) {
                Ok(()) => Decision {
                    allowed: true,
                    ..Default::default()
                },
                Err(Refusal(reason)) => Decision::no_opinion(reason),
            },
        }
    }

    fn check(&self, node: &str, attrs: &Attributes<'_>, lookup: &dyn ObjectLookup) -> Result<(), Refusal> {
        if !attrs.is_resource {
            return by_rules(attrs);
        }
        match (attrs.group, attrs.resource) {
            ("", "secrets") => {
                readable_by_name(attrs)?;
                self.secret(node, attrs, lookup)
            }
            ("", "configmaps") => {
                readable_by_name(attrs)?;
                self.referenced(node, Referenced::ConfigMap, attrs, lookup)
            }
            ("", "serviceaccounts") => self.service_account(node, attrs, lookup),
            ("", "persistentvolumeclaims") => {
                if attrs.subresource == "status" {
                    verb_in(attrs, &["update", "patch"], "can only get/update/patch this type")?;
                    named(attrs)?;
                } else {
                    gettable(attrs)?;
                }
                self.referenced(node, Referenced::PersistentVolumeClaim, attrs, lookup)
            }
            ("", "persistentvolumes") => {
                gettable(attrs)?;
                self.volume(node, attrs.name, lookup)
            }
            ("resource.k8s.io", "resourceclaims") => {
                gettable(attrs)?;
                self.referenced(node, Referenced::ResourceClaim, attrs, lookup)
            }
            ("storage.k8s.io", "volumeattachments") => {
                gettable(attrs)?;
                names_node(node, lookup.get("volumeattachments.storage.k8s.io", "", attrs.name))
            }
            ("resource.k8s.io", "resourceslices") => resource_slice(node, attrs, lookup),
            ("coordination.k8s.io", "leases") => lease(node, attrs),
            ("storage.k8s.io", "csinodes") => csi_node(node, attrs),
            ("", "nodes") => own_node(node, attrs),
            ("", "pods") => pod(node, attrs, lookup),
            // Needs the PodCertificateRequest feature, which is off by default.
            ("certificates.k8s.io", "podcertificaterequests") => Err(Refusal::default()),
            _ => by_rules(attrs),
        }
    }

    /// Referred to by a pod, or needed by a volume whose claim a pod refers to.
    fn secret(&self, node: &str, attrs: &Attributes<'_>, lookup: &dyn ObjectLookup) -> Result<(), Refusal> {
        if self.is_referenced(node, Referenced::Secret, attrs.namespace, attrs.name, lookup) {
            return Ok(());
        }
        let volumes = lookup.list("persistentvolumes", None);
        let mut needing = volumes
            .iter()
            .filter(|v| volume_needs_secret(v, attrs.namespace, attrs.name));
        related(node, needing.any(|volume| self.claims(node, volume, lookup)))
    }

    fn volume(&self, node: &str, name: &str, lookup: &dyn ObjectLookup) -> Result<(), Refusal> {
        let volume = lookup.get("persistentvolumes", "", name);
        related(node, volume.is_some_and(|volume| self.claims(node, &volume, lookup)))
    }

    fn claims(&self, node: &str, volume: &Value, lookup: &dyn ObjectLookup) -> bool {
        let claim = |part| text(volume, &["spec", "claimRef", part]);
        let (namespace, name) = (claim("namespace"), claim("name"));
        !name.is_empty() && self.is_referenced(node, Referenced::PersistentVolumeClaim, namespace, name, lookup)
    }

    /// Read for credential providers, or a token made for a pod.
    fn service_account(&self, node: &str, attrs: &Attributes<'_>, lookup: &dyn ObjectLookup) -> Result<(), Refusal> {
        if attrs.verb == "get" && attrs.subresource.is_empty() {
            readable_by_name(attrs)?;
        } else if attrs.verb != "create" || attrs.name.is_empty() {
            return Err("can only create tokens for individual service accounts".into());
        } else if attrs.subresource != "token" {
            return Err("can only create token subresource of serviceaccount".into());
        }
        self.referenced(node, Referenced::ServiceAccount, attrs, lookup)
    }

    fn referenced(
        &self,
        node: &str,
        what: Referenced,
        attrs: &Attributes<'_>,
        lookup: &dyn ObjectLookup,
    ) -> Result<(), Refusal> {
        related(
            node,
            self.is_referenced(node, what, attrs.namespace, attrs.name, lookup),
        )
    }

    fn is_referenced(
        &self,
        node: &str,
        what: Referenced,
        namespace: &str,
        name: &str,
        lookup: &dyn ObjectLookup,
    ) -> bool {
        let refers = |pod: &Value| {
            // A mirror pod is made by the kubelet itself; it must not give itself access to anything.
            is_on(pod, node)
                && pod["metadata"]["annotations"].get(MIRROR_ANNOTATION).is_none()
                && refers_to(pod, what, name)
        };
        let question = Question {
            node: node.into(),
            what,
            namespace: namespace.into(),
            name: name.into(),
        };
        let remembered = self.remembered.lock().get(&question).cloned();
        if let Some((namespace, name)) = remembered
            && lookup.get("pods", &namespace, &name).is_some_and(|pod| refers(&pod))
        {
            return true;
        }
        let pods = lookup.list("pods", Some(namespace));
        let Some(pod) = pods.iter().find(|pod| refers(pod)) else {
            return false;
        };
        let mut memory = self.remembered.lock();
        if memory.len() >= MEMORY {
            memory.clear();
        }
        memory.insert(question, (namespace.into(), text(pod, &["metadata", "name"]).into()));
        true
    }
}

fn is_on(pod: &Value, node: &str) -> bool {
    text(pod, &["spec", "nodeName"]) == node
}

fn by_rules(attrs: &Attributes<'_>) -> Result<(), Refusal> {
    match NODE_RULES.iter().any(|rule| rule.allows(attrs)) {
        true => Ok(()),
        false => Err(Refusal::default()),
    }
}

fn related(node: &str, related: bool) -> Result<(), Refusal> {
    match related {
        true => Ok(()),
        false => Err(format!("no relationship found between node '{node}' and this object").into()),
    }
}

/// Attachments and slices say themselves which node they belong to.
fn names_node(node: &str, object: Option<Arc<Value>>) -> Result<(), Refusal> {
    related(
        node,
        object.is_some_and(|object| text(&object, &["spec", "nodeName"]) == node),
    )
}

fn verb_in(attrs: &Attributes<'_>, verbs: &[&str], otherwise: &str) -> Result<(), Refusal> {
    match verbs.contains(&attrs.verb) {
        true => Ok(()),
        false => Err(otherwise.into()),
    }
}

fn named(attrs: &Attributes<'_>) -> Result<(), Refusal> {
    match attrs.name {
        "" => Err("No Object name found".into()),
        _ => Ok(()),
    }
}

fn gettable(attrs: &Attributes<'_>) -> Result<(), Refusal> {
    verb_in(attrs, &["get"], "can only get individual resources of this type")?;
    if !attrs.subresource.is_empty() {
        return Err("cannot get subresource".into());
    }
    named(attrs)
}

fn readable_by_name(attrs: &Attributes<'_>) -> Result<(), Refusal> {
    verb_in(attrs, &["get", "list", "watch"], "can only read resources of this type")?;
    if !attrs.subresource.is_empty() {
        return Err("cannot read subresource".into());
    }
    if attrs.namespace.is_empty() {
        return Err("can only read namespaced object of this type".into());
    }
    named(attrs)
}

/// Lists and watches of one's own only: the selector must say so.
fn selects_node(node: &str, attrs: &Attributes<'_>, otherwise: &str) -> Result<(), Refusal> {
    match attrs
        .field_selector
        .and_then(|selector| selector.exact("spec.nodeName"))
    {
        Some(name) if name == node => Ok(()),
        _ => Err(otherwise.into()),
    }
}

fn lease(node: &str, attrs: &Attributes<'_>) -> Result<(), Refusal> {
    let verbs = &["get", "create", "update", "patch", "delete"];
    verb_in(
        attrs,
        verbs,
        "can only get, create, update, patch, or delete a node lease",
    )?;
    if attrs.namespace != NODE_LEASES {
        return Err(format!("can only access leases in the {NODE_LEASES:?} system namespace").into());
    }
    // On create the name is in the object; admission looks at it.
    if attrs.verb != "create" && attrs.name != node {
        return Err("can only access node lease with the same name as the requesting node".into());
    }
    Ok(())
}

fn csi_node(node: &str, attrs: &Attributes<'_>) -> Result<(), Refusal> {
    let verbs = &["get", "create", "update", "patch", "delete"];
    verb_in(attrs, verbs, "can only get, create, update, patch, or delete a CSINode")?;
    if !attrs.subresource.is_empty() {
        return Err("cannot authorize CSINode subresources".into());
    }
    if attrs.verb != "create" && attrs.name != node {
        return Err("can only access CSINode with the same name as the requesting node".into());
    }
    Ok(())
}

fn resource_slice(node: &str, attrs: &Attributes<'_>, lookup: &dyn ObjectLookup) -> Result<(), Refusal> {
    if !attrs.subresource.is_empty() {
        return Err("cannot authorize ResourceSlice subresources".into());
    }
    match attrs.verb {
        "create" => Ok(()),
        "get" | "update" | "patch" | "delete" => {
            named(attrs)?;
            names_node(node, lookup.get("resourceslices.resource.k8s.io", "", attrs.name))
        }
        "list" | "watch" | "deletecollection" => {
            let otherwise = "can only list/watch/deletecollection resourceslices with nodeName field selector";
            selects_node(node, attrs, otherwise)
        }
        _ => Err(
            "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, \
                  delete, deletecollection"
                .into(),
        ),
    }
}

fn own_node(node: &str, attrs: &Attributes<'_>) -> Result<(), Refusal> {
    match (attrs.subresource, attrs.verb) {
        ("", "create" | "update" | "patch") | ("status", "update" | "patch") => Ok(()),
        ("", "get" | "list" | "watch") => match attrs.name {
            name if name == node => Ok(()),
            "" => Err(format!("node '{node}' cannot read all nodes, only its own Node object").into()),
            name => Err(format!("node '{node}' cannot read '{name}', only its own Node object").into()),
        },
        _ => Err(Refusal::default()),
    }
}

fn pod(node: &str, attrs: &Attributes<'_>, lookup: &dyn ObjectLookup) -> Result<(), Refusal> {
    let own = || {
        let pod = lookup.get("pods", attrs.namespace, attrs.name);
        related(node, pod.is_some_and(|pod| is_on(&pod, node)))
    };
    match (attrs.subresource, attrs.verb) {
        ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => Ok(()),
        ("", "get") => {
            gettable(attrs)?;
            own()
        }
        ("", "list" | "watch") => selects_node(
            node,
            attrs,
            "can only list/watch pods with spec.nodeName field selector",
        )
        .or_else(|refusal| match attrs.name {
            "" => Err(refusal),
            _ => own(),
        }),
        _ => Err(Refusal::default()),
    }
}

#[cfg(test)]
mod tests;
