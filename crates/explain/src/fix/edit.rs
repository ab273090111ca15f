//! One change to a pod or to the cluster: what it does, in a sentence, and how to do it.

use orlop_scheduler::cluster::pod::PodKey;
use orlop_scheduler::model::{Node, Pod, Taint, Toleration};
use serde::Serialize;

use super::request;
use crate::amount;
use crate::detail::taint_text;

pub(super) const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// The smallest changes there are. Indices are those of the lists in the pod as it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(tag = "type", rename_all_fields = "camelCase")]
pub enum Edit {
    // ---- on the pod ----
    RemoveSchedulingGate {
        name: String,
    },
    SetSchedulerName {
        name: String,
    },
    AddToleration {
        taint: Taint,
    },
    DropNodeSelector {
        key: String,
        value: String,
    },
    DropNodeAffinity,
    /// One requirement of one term of required node affinity.
    DropNodeAffinityRequirement {
        term: usize,
        index: usize,
        field: bool,
        text: String,
    },
    DropPodAffinityTerm {
        index: usize,
        topology_key: String,
    },
    DropPodAntiAffinityTerm {
        index: usize,
        topology_key: String,
    },
    /// `ScheduleAnyway` instead of `DoNotSchedule`.
    RelaxTopologySpread {
        index: usize,
        topology_key: String,
    },
    RaiseMaxSkew {
        index: usize,
        topology_key: String,
        from: i32,
        to: i32,
    },
    /// The pod as a whole requests this much of a resource; cpu in thousandths.
    LowerRequest {
        resource: String,
        from: i64,
        to: i64,
    },
    DropHostPort {
        port: i32,
        protocol: String,
    },
    DropResourceClaims,
    // ---- on the cluster ----
    Uncordon {
        node: String,
    },
    RemoveTaint {
        node: String,
        taint: Taint,
    },
    SetLabel {
        node: String,
        key: String,
        value: String,
    },
    RemoveLabel {
        node: String,
        key: String,
    },
    Evict {
        namespace: String,
        name: String,
        uid: String,
        node: String,
    },
    AddNode {
        like: String,
        name: String,
    },
}

impl Edit {
    pub fn is_of_pod(&self) -> bool {
        !matches!(
            self,
            Edit::Uncordon { .. }
                | Edit::RemoveTaint { .. }
                | Edit::SetLabel { .. }
                | Edit::RemoveLabel { .. }
                | Edit::Evict { .. }
                | Edit::AddNode { .. }
        )
    }

    /// Filter plugins whose verdict it can change; none for those that are not about nodes.
    pub(super) fn concerns(&self) -> &'static [&'static str] {
        match self {
            Edit::AddToleration { .. } => &["TaintToleration", "NodeUnschedulable", "PodTopologySpread"],
            Edit::DropNodeSelector { .. } | Edit::DropNodeAffinity | Edit::DropNodeAffinityRequirement { .. } => {
                &["NodeAffinity", "PodTopologySpread"]
            }
            Edit::DropPodAffinityTerm { .. } | Edit::DropPodAntiAffinityTerm { .. } => &["InterPodAffinity"],
            Edit::RelaxTopologySpread { .. } | Edit::RaiseMaxSkew { .. } => &["PodTopologySpread"],
            Edit::LowerRequest { .. } => &["NodeResourcesFit"],
            Edit::DropHostPort { .. } => &["NodePorts"],
            Edit::DropResourceClaims => &["DynamicResources"],
            _ => &[],
        }
    }

    /// `remove the taint team=red:NoSchedule from node n1`
    pub fn text(&self) -> String {
        match self {
            Edit::RemoveSchedulingGate { name } => format!("remove the scheduling gate {name}"),
            Edit::SetSchedulerName { name } => format!("set schedulerName to {name}"),
            Edit::AddToleration { taint } => format!("tolerate the taint {}", text_of(taint)),
            Edit::DropNodeSelector { key, value } => format!("drop {key}={value} from nodeSelector"),
            Edit::DropNodeAffinity => "drop the required node affinity".into(),
            Edit::DropNodeAffinityRequirement { term, text, .. } => {
                format!("drop \"{text}\" from term {} of the required node affinity", term + 1)
            }
            Edit::DropPodAffinityTerm { index, topology_key } => {
                format!("drop term {} of the required pod affinity ({topology_key})", index + 1)
            }
            Edit::DropPodAntiAffinityTerm { index, topology_key } => {
                format!(
                    "drop term {} of the required pod anti-affinity ({topology_key})",
                    index + 1
                )
            }
            Edit::RelaxTopologySpread { topology_key, .. } => {
                format!("set whenUnsatisfiable to ScheduleAnyway in the topology spread constraint on {topology_key}")
            }
            Edit::RaiseMaxSkew {
                topology_key, from, to, ..
            } => format!("raise maxSkew of the topology spread constraint on {topology_key} from {from} to {to}"),
            Edit::LowerRequest { resource, from, to: 0 } => {
                format!("drop the request for {resource} ({})", amount::short(resource, *from))
            }
            Edit::LowerRequest { resource, from, to } => format!(
                "request {} {resource} instead of {}",
                amount::exact(resource, *to),
                amount::short(resource, *from)
            ),
            Edit::DropHostPort { port, protocol } => format!("drop host port {port}/{protocol}"),
            Edit::DropResourceClaims => "drop the resource claims".into(),
            Edit::Uncordon { node } => format!("uncordon node {node}"),
            Edit::RemoveTaint { node, taint } => format!("remove the taint {} from node {node}", text_of(taint)),
            Edit::SetLabel { node, key, value } => format!("label node {node} with {key}={value}"),
            Edit::RemoveLabel { node, key } => format!("remove the label {key} from node {node}"),
            Edit::Evict {
                namespace, name, node, ..
            } => format!("evict pod {namespace}/{name} from node {node}"),
            Edit::AddNode { like, .. } => format!("add one more node like {like}"),
        }
    }

    /// The kubectl command that does it, where there is one.
    pub fn command(&self, pod: &PodKey) -> Option<String> {
        let (namespace, name) = (&pod.namespace, &pod.name);
        Some(match self {
            Edit::Uncordon { node } => format!("kubectl uncordon {node}"),
            Edit::RemoveTaint { node, taint } => format!("kubectl taint node {node} {}:{}-", taint.key, taint.effect),
            Edit::SetLabel { node, key, value } => format!("kubectl label node {node} {key}={value} --overwrite"),
            Edit::RemoveLabel { node, key } => format!("kubectl label node {node} {key}-"),
            Edit::Evict { namespace, name, .. } => format!("kubectl delete pod -n {namespace} {name}"),
            Edit::RemoveSchedulingGate { .. } => format!(
                "kubectl patch pod -n {namespace} {name} --type=merge -p '{{\"spec\":{{\"schedulingGates\":null}}}}'"
            ),
            Edit::AddToleration { taint } => {
                let toleration = serde_json::to_string(&toleration(taint)).expect("a toleration is JSON");
                format!(
                    "kubectl patch pod -n {namespace} {name} --type=json -p \
                     '[{{\"op\":\"add\",\"path\":\"/spec/tolerations/-\",\"value\":{toleration}}}]'"
                )
            }
            _ => return None,
        })
    }
}

fn text_of(taint: &Taint) -> String {
    taint_text(&taint.key, &taint.value, &taint.effect)
}

/// The narrowest toleration that covers the taint.
pub(super) fn toleration(taint: &Taint) -> Toleration {
    Toleration {
        key: taint.key.clone(),
        operator: if taint.value.is_empty() { "Exists" } else { "Equal" }.into(),
        value: taint.value.clone(),
        effect: taint.effect.clone(),
        toleration_seconds: None,
    }
}

/// The pod with these changes. None if one of them can't be made.
pub fn edited_pod(pod: &Pod, edits: &[Edit]) -> Option<Pod> {
    let mut pod = pod.clone();
    let spec = &mut pod.spec;
    // Lists shrink last, from behind, so that indices stay what they were.
    let (mut near, mut apart, mut requirements) = (vec![], vec![], vec![]);
    for edit in edits {
        match edit {
            Edit::RemoveSchedulingGate { name } => spec.scheduling_gates.retain(|gate| gate.name != *name),
            Edit::SetSchedulerName { name } => spec.scheduler_name = name.clone(),
            Edit::AddToleration { taint } => spec.tolerations.push(toleration(taint)),
            Edit::DropNodeSelector { key, .. } => drop(spec.node_selector.remove(key)),
            Edit::DropNodeAffinity => {
                let affinity = spec.affinity.node_affinity.as_mut()?;
                (affinity.required, affinity.required_during_execution) = (None, None);
            }
            Edit::DropNodeAffinityRequirement { term, index, field, .. } => requirements.push((*term, *field, *index)),
            Edit::DropPodAffinityTerm { index, .. } => near.push(*index),
            Edit::DropPodAntiAffinityTerm { index, .. } => apart.push(*index),
            Edit::RelaxTopologySpread { index, .. } => {
                spec.topology_spread_constraints.get_mut(*index)?.when_unsatisfiable = "ScheduleAnyway".into();
            }
            Edit::RaiseMaxSkew { index, to, .. } => spec.topology_spread_constraints.get_mut(*index)?.max_skew = *to,
            Edit::LowerRequest { resource, to, .. } => {
                request::lower(spec, resource, *to).then_some(())?;
            }
            Edit::DropHostPort { port, protocol } => {
                let is_it = |p: &orlop_scheduler::model::ContainerPort| {
                    p.host_port == *port && (p.protocol == *protocol || p.protocol.is_empty() && protocol == "TCP")
                };
                for container in spec.containers.iter_mut().chain(&mut spec.init_containers) {
                    container.ports.retain(|p| !is_it(p));
                }
            }
            Edit::DropResourceClaims => spec.resource_claims = 0,
            _ => {}
        }
    }
    requirements.sort();
    for (term, field, index) in requirements.into_iter().rev() {
        let required = spec.affinity.node_affinity.as_mut().and_then(|a| a.required.as_mut());
        // Gone with the whole affinity: two changes of which one is enough.
        let term = required?.node_selector_terms.get_mut(term)?;
        let list = if field {
            &mut term.match_fields
        } else {
            &mut term.match_expressions
        };
        if index >= list.len() {
            return None;
        }
        list.remove(index);
    }
    let drop_terms = |terms: &mut Vec<_>, mut indices: Vec<usize>| {
        indices.sort();
        for index in indices
            .into_iter()
            .rev()
            .filter(|i| *i < terms.len())
            .collect::<Vec<_>>()
        {
            terms.remove(index);
        }
    };
    drop_terms(&mut spec.affinity.pod_affinity.required, near);
    drop_terms(&mut spec.affinity.pod_anti_affinity.required, apart);
    Some(pod)
}

/// The node with those of the changes that are about it.
pub fn edited_node(node: &Node, edits: &[Edit]) -> Node {
    let mut node = node.clone();
    let own = node.metadata.name.clone();
    for edit in edits {
        match edit {
            Edit::Uncordon { node: name } if *name == own => {
                node.spec.unschedulable = false;
                node.spec.taints.retain(|taint| taint.key != UNSCHEDULABLE);
            }
            Edit::RemoveTaint { node: name, taint } if *name == own => {
                node.spec
                    .taints
                    .retain(|t| t.key != taint.key || t.effect != taint.effect);
            }
            Edit::SetLabel { node: name, key, value } if *name == own => {
                node.metadata.labels.insert(key.clone(), value.clone());
            }
            Edit::RemoveLabel { node: name, key } if *name == own => drop(node.metadata.labels.remove(key)),
            _ => {}
        }
    }
    node
}

/// A node of the same shape: empty, schedulable, with labels and taints that it was given and not those of its condition.
pub fn node_like(node: &Node, name: &str) -> Node {
    const HOSTNAME: &str = "kubernetes.io/hostname";
    let mut new = node.clone();
    new.metadata.name = name.to_string();
    new.metadata.uid = name.to_string();
    if let Some(host) = new.metadata.labels.get_mut(HOSTNAME) {
        *host = name.to_string();
    }
    new.spec.unschedulable = false;
    new.spec.taints.retain(|taint| !is_of_condition(taint));
    new
}

/// Put there by controllers for as long as the node is in some condition.
pub(super) fn is_of_condition(taint: &Taint) -> bool {
    taint.key.starts_with("node.kubernetes.io/")
}
