//! Pod admission by node resources, node name, node selector, affinity and taints. The scheduler has checked the same; but
//! static pods and direct bindings bypass it, and nodes change.
// Upstream: pkg/kubelet/lifecycle/predicate.go, eviction_manager.go Admit, nodeshutdown (v1.36)

use std::collections::{BTreeMap, BTreeSet};

use orlop_api::quantity::Quantity;
use orlop_api::resources;
use orlop_api::types::core::{Node, NodeSelectorRequirement, NodeSelectorTerm, Pod, Taint, Toleration};

use super::preemption::{self, Lack};
use crate::node::Pressure;
use crate::pod::policy;
use crate::spec::resources::{QosClass, amount_of, is_critical, is_static, pod_requests, qos_class};

/// Why a pod is rejected at admission: it becomes Failed with this reason, and `Pod was rejected: ` before the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    pub reason: String,
    pub message: String,
}

fn reject<T>(reason: impl Into<String>, message: impl Into<String>) -> Result<T, Rejection> {
    Err(Rejection {
        reason: reason.into(),
        message: message.into(),
    })
}

/// Node state for admission, beside the Node object.
#[derive(Clone, Copy, Debug, Default)]
pub struct NodeState {
    pub pressure: Pressure,
    pub shutting_down: bool,
}

/// `others` are the pods that were admitted before and have not terminated. Returns the indices of those to preempt
/// first: a critical pod preempts others where only resources are lacking.
pub fn admit(pod: &Pod, others: &[&Pod], node: &Node, state: NodeState) -> Result<Vec<usize>, Rejection> {
    if state.shutting_down {
        return reject("NodeShutdown", "Pod was rejected as the node is shutting down.");
    }
    under_pressure(pod, state.pressure)?;
    operating_system(pod)?;
    groups_policy(pod, node)?;
    declared_features(pod, node)?;
    let lacks = lacks(pod, others, node);
    let predicates = predicates(pod, others, node);
    let Some(lack) = lacks.first() else {
        return predicates.map(|()| Vec::new());
    };
    if !is_critical(pod) {
        let (name, message) = (&lack.name, message(lack));
        return reject(format!("OutOf{name}"), message);
    }
    predicates?;
    preemption::plan(pod, others, &lacks).or_else(|error| {
        let message = "Unexpected error while attempting to recover from admission failure: preemption: error finding a \
                       set of pods to preempt";
        reject("UnexpectedAdmissionError", format!("{message}: {error}"))
    })
}

fn message(lack: &Lack) -> String {
    let Lack {
        name,
        requested,
        used,
        capacity,
    } = lack;
    format!("Node didn't have enough resource: {name}, requested: {requested}, used: {used}, capacity: {capacity}")
}

/// All but resources.
fn predicates(pod: &Pod, others: &[&Pod], node: &Node) -> Result<(), Rejection> {
    let predicate = |name: &str, why: &str| reject(name, format!("Predicate {name} failed: {why}"));
    if !wants_node(pod, node) {
        return predicate("NodeAffinity", "node(s) didn't match Pod's node affinity/selector");
    }
    let spec = pod.spec.as_ref();
    let name = spec.and_then(|s| s.node_name.as_deref()).unwrap_or_default();
    if !name.is_empty() && Some(name) != node.metadata.name.as_deref() {
        return predicate("NodeName", "node(s) didn't match the requested node name");
    }
    if ports_taken(pod, others) {
        return predicate(
            "NodePorts",
            "node(s) didn't have free ports for the requested pod ports",
        );
    }
    let taints = node.spec.as_ref().and_then(|s| s.taints.as_deref()).unwrap_or_default();
    let tolerations = spec.and_then(|s| s.tolerations.as_deref()).unwrap_or_default();
    let tolerated = |taint: &Taint| tolerations.iter().any(|t| tolerates(t, taint));
    if !is_static(pod)
        && taints
            .iter()
            .any(|taint| taint.effect == "NoExecute" && !tolerated(taint))
    {
        return predicate("TaintToleration", "node(s) had taints that the pod didn't tolerate");
    }
    Ok(())
}

fn under_pressure(pod: &Pod, pressure: Pressure) -> Result<(), Rejection> {
    if pressure == Pressure::default() || is_critical(pod) {
        return Ok(());
    }
    let only_memory = Pressure {
        memory: true,
        ..Pressure::default()
    };
    if pressure == only_memory {
        let taint = Taint {
            key: "node.kubernetes.io/memory-pressure".into(),
            effect: "NoSchedule".into(),
            ..Taint::default()
        };
        let tolerations = pod
            .spec
            .as_ref()
            .and_then(|s| s.tolerations.as_deref())
            .unwrap_or_default();
        if qos_class(pod) != QosClass::BestEffort || tolerations.iter().any(|t| tolerates(t, &taint)) {
            return Ok(());
        }
    }
    let names = [
        ("MemoryPressure", pressure.memory),
        ("DiskPressure", pressure.disk),
        ("PIDPressure", pressure.pid),
    ];
    let names: Vec<&str> = names
        .into_iter()
        .filter(|(_, yes)| *yes)
        .map(|(name, _)| name)
        .collect();
    reject("Evicted", format!("The node had condition: [{}]. ", names.join(" ")))
}

fn operating_system(pod: &Pod) -> Result<(), Rejection> {
    const OS: &str = "kubernetes.io/os";
    let Some(spec) = &pod.spec else { return Ok(()) };
    // The label of the pod, not its selector: that is one of the predicates.
    let label = pod.metadata.labels.as_ref().and_then(|l| l.get(OS));
    if label.is_some_and(|label| label != crate::node::OS) {
        return reject(
            "PodOSSelectorNodeLabelDoesNotMatch",
            "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
        );
    }
    if spec.os.as_ref().is_some_and(|os| os.name != crate::node::OS) {
        return reject(
            "PodOSNotSupported",
            "Failed to admit pod as the OS field doesn't match node OS",
        );
    }
    Ok(())
}

fn groups_policy(pod: &Pod, node: &Node) -> Result<(), Rejection> {
    let context = pod.spec.as_ref().and_then(|s| s.security_context.as_ref());
    let strict = context.and_then(|c| c.supplemental_groups_policy.as_deref()) == Some("Strict");
    let features = node.status.as_ref().and_then(|s| s.features.as_ref());
    let supported = features.and_then(|f| f.supplemental_groups_policy).unwrap_or(false);
    match strict && !supported {
        true => reject(
            "SupplementalGroupsPolicyNotSupported",
            "SupplementalGroupsPolicy=Strict is not supported in this node",
        ),
        false => Ok(()),
    }
}

/// What the pod needs and the node does not declare.
fn declared_features(pod: &Pod, node: &Node) -> Result<(), Rejection> {
    let declared = node.status.as_ref().and_then(|s| s.declared_features.as_ref());
    let Some(declared) = declared else { return Ok(()) };
    let spec = pod.spec.as_ref();
    let host_network = spec.is_some_and(|s| s.host_network == Some(true) && s.host_users == Some(false));
    let needed = [
        ("RestartAllContainersOnContainerExits", policy::could_restart_all(pod)),
        ("UserNamespacesHostNetworkSupport", host_network),
    ];
    let missing = needed
        .into_iter()
        .filter(|(name, needed)| *needed && !declared.iter().any(|d| d == name));
    let missing: Vec<&str> = missing.map(|(name, _)| name).collect();
    match missing.is_empty() {
        true => Ok(()),
        false => reject(
            "PodFeatureUnsupported",
            format!(
                "Pod requires node features that are not available: {}",
                missing.join(", ")
            ),
        ),
    }
}

/// Insufficient resources: the main ones first, in this order.
fn lacks(pod: &Pod, others: &[&Pod], node: &Node) -> Vec<Lack> {
    let empty = BTreeMap::new();
    let allocatable = node
        .status
        .as_ref()
        .and_then(|s| s.allocatable.as_ref())
        .unwrap_or(&empty);
    let capacity = |name: &str| {
        let text = allocatable.get(name).map_or("0", |quantity| quantity.0.as_str());
        amount_of(name, &Quantity::parse(text).unwrap_or(Quantity::ZERO))
    };
    let lack = |name: &str, requested: i64, used: i64| {
        let capacity = capacity(name);
        (requested > capacity.saturating_sub(used)).then(|| Lack {
            name: name.to_string(),
            requested,
            used,
            capacity,
        })
    };
    let mut lacks: Vec<Lack> = lack("pods", 1, others.len() as i64).into_iter().collect();
    let wanted = pod_requests(pod, true);
    if wanted.iter().all(|(_, quantity)| quantity.is_zero()) {
        return lacks;
    }
    let mut used = resources::ResourceList::default();
    for other in others {
        resources::add(&mut used, &pod_requests(other, true));
    }
    let first = ["cpu", "memory", "ephemeral-storage"];
    let rest = wanted
        .keys()
        .map(|name| name.as_ref())
        .filter(|name| !first.contains(name));
    for name in first.into_iter().chain(rest) {
        let Some(requested) = wanted.get(name).filter(|quantity| !quantity.is_zero()) else {
            continue;
        };
        // Extended resources that the node does not report are counted by the cluster.
        if resources::is_extended(name) && !allocatable.contains_key(name) {
            continue;
        }
        let used = used.get(name).map_or(0, |quantity| amount_of(name, quantity));
        lacks.extend(lack(name, amount_of(name, requested), used));
    }
    lacks
}

/// Node selector and required node affinity.
fn wants_node(pod: &Pod, node: &Node) -> bool {
    let Some(spec) = &pod.spec else { return true };
    let empty = BTreeMap::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&empty);
    let selected = spec
        .node_selector
        .iter()
        .flatten()
        .all(|(k, v)| labels.get(k) == Some(v));
    let affinity = spec.affinity.as_ref().and_then(|a| a.node_affinity.as_ref());
    let required = affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    let name = node.metadata.name.as_deref().unwrap_or_default();
    selected
        && required.is_none_or(|r| {
            r.node_selector_terms
                .iter()
                .any(|term| term_matches(term, name, labels))
        })
}

fn term_matches(term: &NodeSelectorTerm, name: &str, labels: &BTreeMap<String, String>) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    // A term that says nothing matches nothing.
    !(expressions.is_empty() && fields.is_empty())
        && expressions
            .iter()
            .all(|e| requirement(e, labels.get(&e.key).map(String::as_str)))
        && fields
            .iter()
            .all(|f| f.key == "metadata.name" && requirement(f, Some(name)))
}

fn requirement(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = || value.is_some_and(|value| values.iter().any(|v| v == value));
    let number = |text: Option<&str>| text.and_then(|t| t.parse::<i64>().ok());
    let compared = || Some((number(value)?, number(values.first().map(String::as_str))?));
    match requirement.operator.as_str() {
        "In" => listed(),
        "NotIn" => !listed(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared().is_some_and(|(a, b)| a > b),
        "Lt" => compared().is_some_and(|(a, b)| a < b),
        _ => false,
    }
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let (key, effect) = (text(&toleration.key), text(&toleration.effect));
    (effect.is_empty() || effect == taint.effect)
        && (key.is_empty() || key == taint.key)
        && match toleration.operator.as_deref() {
            Some("Exists") => true,
            None | Some("" | "Equal") => text(&toleration.value) == text(&taint.value),
            _ => false,
        }
}

/// Host address, protocol and port.
type HostPort = (String, String, i32);

fn host_ports(pod: &Pod) -> BTreeSet<HostPort> {
    let Some(spec) = &pod.spec else {
        return BTreeSet::new();
    };
    let sidecars = spec
        .init_containers
        .iter()
        .flatten()
        .filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let ports = spec
        .containers
        .iter()
        .chain(sidecars)
        .flat_map(|c| c.ports.iter().flatten());
    ports
        .filter_map(|port| {
            let number = port.host_port.filter(|n| *n > 0)?;
            let address = port
                .host_ip
                .clone()
                .filter(|ip| !ip.is_empty())
                .unwrap_or("0.0.0.0".into());
            Some((address, port.protocol.clone().unwrap_or("TCP".into()), number))
        })
        .collect()
}

fn ports_taken(pod: &Pod, others: &[&Pod]) -> bool {
    let wanted = host_ports(pod);
    if wanted.is_empty() {
        return false;
    }
    let clash = |(ip, protocol, port): &HostPort, taken: &HostPort| {
        (protocol, port) == (&taken.1, &taken.2) && (*ip == taken.0 || ip == "0.0.0.0" || taken.0 == "0.0.0.0")
    };
    let taken: BTreeSet<HostPort> = others.iter().flat_map(|other| host_ports(other)).collect();
    wanted.iter().any(|port| taken.iter().any(|other| clash(port, other)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(spec: Value) -> Pod {
        let mut whole = json!({"containers": [{"name": "c"}]});
        for (key, value) in spec.as_object().unwrap() {
            whole[key] = value.clone();
        }
        orlop_api::types::from_value(json!({"metadata": {"name": "p"}, "spec": whole})).unwrap()
    }

    fn asking(cpu: &str, memory: &str) -> Value {
        json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory}}}]})
    }

    fn node() -> Node {
        orlop_api::types::from_value(json!({
            "metadata": {"name": "n", "labels": {"kubernetes.io/os": "linux", "disk": "ssd", "size": "5"}},
            "spec": {"taints": [{"key": "gone", "effect": "NoExecute"}, {"key": "soft", "effect": "NoSchedule"}]},
            "status": {"allocatable": {"cpu": "2", "memory": "1Gi", "pods": "3"}},
        }))
        .unwrap()
    }

    /// With the toleration that the node asks for.
    fn tolerant(mut spec: Value) -> Pod {
        spec["tolerations"] = json!([{"key": "gone", "operator": "Exists"}]);
        pod(spec)
    }

    fn verdict(pod: &Pod, others: &[&Pod]) -> String {
        match admit(pod, others, &node(), NodeState::default()) {
            Ok(gone) if gone.is_empty() => "yes".into(),
            Ok(gone) => format!("yes, without {gone:?}"),
            Err(Rejection { reason, message }) => format!("{reason}: {message}"),
        }
    }

    #[test]
    fn resources_run_out() {
        let one = tolerant(asking("1500m", "512Mi"));
        assert_eq!(verdict(&one, &[]), "yes");
        assert_eq!(
            verdict(&one, &[&one]),
            "OutOfcpu: Node didn't have enough resource: cpu, requested: 1500, used: 1500, capacity: 2000"
        );
        let memory = tolerant(asking("100m", "600Mi"));
        assert_eq!(
            verdict(&memory, &[&one]),
            "OutOfmemory: Node didn't have enough resource: memory, requested: 629145600, used: 536870912, capacity: \
             1073741824"
        );
        let none = tolerant(json!({}));
        assert_eq!(verdict(&none, &[&one, &one]), "yes");
        assert_eq!(
            verdict(&none, &[&none, &none, &none]),
            "OutOfpods: Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3"
        );
        let disk = json!({"containers": [{"name": "c", "resources": {"requests": {"ephemeral-storage": "1"}}}]});
        assert!(verdict(&tolerant(disk), &[]).starts_with("OutOfephemeral-storage: "));
        let extended = json!({"containers": [{"name": "c", "resources": {"requests": {"example.com/x": "1"}}}]});
        assert_eq!(verdict(&tolerant(extended), &[]), "yes");
    }

    #[test]
    fn critical_pods_push_others_off() {
        let critical = |extra: Value| {
            let mut spec = asking("1500m", "512Mi");
            spec["priority"] = json!(2_000_000_000);
            for (key, value) in extra.as_object().unwrap() {
                spec[key] = value.clone();
            }
            tolerant(spec)
        };
        let (one, small) = (tolerant(asking("1500m", "512Mi")), tolerant(asking("100m", "1Mi")));
        let wants = critical(json!({}));
        assert_eq!(verdict(&wants, &[]), "yes");
        assert_eq!(verdict(&wants, &[&small]), "yes");
        assert_eq!(verdict(&wants, &[&small, &one]), "yes, without [1]");
        assert_eq!(verdict(&wants, &[&small, &small, &small]), "yes, without [0]");
        assert_eq!(
            verdict(&wants, &[&wants]),
            "UnexpectedAdmissionError: Unexpected error while attempting to recover from admission failure: \
             preemption: error finding a set of pods to preempt: no set of running pods found to reclaim resources: \
             [(res: cpu, q: 1000), ]"
        );
        // Nobody goes for a pod that can't run here anyway.
        let elsewhere = critical(json!({"nodeSelector": {"disk": "hdd"}}));
        assert!(verdict(&elsewhere, &[&one]).starts_with("NodeAffinity: "));
        // A static pod is critical whatever its priority.
        let mut file = one.clone();
        file.metadata.annotations = Some([(crate::sources::CONFIG_SOURCE.to_string(), "file".to_string())].into());
        assert_eq!(verdict(&file, &[&one]), "yes, without [0]");
    }

    #[test]
    fn nodes_that_are_not_wanted() {
        let affinity = |expression: Value| {
            json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}}})
        };
        let no = "NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector";
        let cases = [
            (json!({"nodeSelector": {"disk": "ssd"}}), "yes"),
            (json!({"nodeSelector": {"disk": "hdd"}}), no),
            (
                affinity(json!({"key": "disk", "operator": "In", "values": ["ssd"]})),
                "yes",
            ),
            (
                affinity(json!({"key": "disk", "operator": "NotIn", "values": ["ssd"]})),
                no,
            ),
            (
                affinity(json!({"key": "size", "operator": "Gt", "values": ["4"]})),
                "yes",
            ),
            (affinity(json!({"key": "size", "operator": "Lt", "values": ["4"]})), no),
            (affinity(json!({"key": "other", "operator": "Exists"})), no),
            (affinity(json!({"key": "other", "operator": "DoesNotExist"})), "yes"),
            (
                json!({"nodeName": "m"}),
                "NodeName: Predicate NodeName failed: node(s) didn't match the requested node name",
            ),
            (json!({"nodeSelector": {"kubernetes.io/os": "windows"}}), no),
            (
                json!({"os": {"name": "windows"}}),
                "PodOSNotSupported: Failed to admit pod as the OS field doesn't match node OS",
            ),
            (
                json!({"securityContext": {"supplementalGroupsPolicy": "Strict"}}),
                "SupplementalGroupsPolicyNotSupported: SupplementalGroupsPolicy=Strict is not supported in this node",
            ),
        ];
        for (spec, expected) in cases {
            assert_eq!(verdict(&tolerant(spec.clone()), &[]), expected, "{spec}");
        }
        let mut labelled = tolerant(json!({}));
        labelled.metadata.labels = Some([("kubernetes.io/os".to_string(), "windows".to_string())].into());
        assert_eq!(
            verdict(&labelled, &[]),
            "PodOSSelectorNodeLabelDoesNotMatch: Failed to admit pod as the `kubernetes.io/os` label doesn't match \
             node label"
        );
        assert!(verdict(&pod(json!({})), &[]).starts_with("TaintToleration: Predicate TaintToleration failed"));
        let mut file = pod(json!({}));
        file.metadata.annotations = Some([(crate::sources::CONFIG_SOURCE.to_string(), "file".to_string())].into());
        assert_eq!(verdict(&file, &[]), "yes");
    }

    #[test]
    fn features_that_the_node_does_not_declare() {
        let restarts = json!({"containers": [{"name": "c", "restartPolicy": "Never", "restartPolicyRules": [
            {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}]}]});
        let mapped = json!({"hostNetwork": true, "hostUsers": false});
        let on = |spec: &Value, features: Option<&[&str]>| {
            let mut node = node();
            let features = features.map(|f| f.iter().map(|f| f.to_string()).collect());
            node.status.as_mut().unwrap().declared_features = features;
            let verdict = admit(&tolerant(spec.clone()), &[], &node, NodeState::default());
            verdict.err().map(|r| format!("{}: {}", r.reason, r.message))
        };
        let missing = |name: &str| {
            Some(format!(
                "PodFeatureUnsupported: Pod requires node features that are not available: {name}"
            ))
        };
        assert_eq!(on(&restarts, None), None);
        assert_eq!(on(&restarts, Some(&["RestartAllContainersOnContainerExits"])), None);
        assert_eq!(
            on(&restarts, Some(&[])),
            missing("RestartAllContainersOnContainerExits")
        );
        assert_eq!(on(&mapped, Some(&[])), missing("UserNamespacesHostNetworkSupport"));
    }

    #[test]
    fn ports_are_taken_once() {
        let with = |port: Value| tolerant(json!({"containers": [{"name": "c", "ports": [port]}]}));
        let web = with(json!({"containerPort": 80, "hostPort": 80}));
        let local = with(json!({"containerPort": 80, "hostPort": 80, "hostIP": "127.0.0.1"}));
        let other = with(json!({"containerPort": 80, "hostPort": 80, "hostIP": "10.0.0.1"}));
        let udp = with(json!({"containerPort": 80, "hostPort": 80, "protocol": "UDP"}));
        let taken = "NodePorts: Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports";
        assert_eq!(verdict(&web, &[&udp]), "yes");
        assert_eq!(verdict(&web, &[&local]), taken);
        assert_eq!(verdict(&local, &[&web]), taken);
        assert_eq!(verdict(&local, &[&other]), "yes");
    }

    #[test]
    fn under_pressure_and_at_the_end() {
        let state = |memory, disk, pid| NodeState {
            pressure: Pressure { memory, disk, pid },
            shutting_down: false,
        };
        let ask = |pod: &Pod, state| {
            admit(pod, &[], &node(), state)
                .err()
                .map(|r| r.reason + ": " + &r.message)
        };
        let mut tolerates = tolerant(json!({}));
        let tolerations = &mut tolerates.spec.as_mut().unwrap().tolerations;
        tolerations.as_mut().unwrap().push(Toleration {
            key: Some("node.kubernetes.io/memory-pressure".into()),
            operator: Some("Exists".into()),
            effect: Some("NoSchedule".into()),
            ..Toleration::default()
        });
        let (poor, rich) = (tolerant(json!({})), tolerant(asking("1", "1")));
        let critical = tolerant(json!({"priority": 2_000_000_000}));
        for (pod, state, conditions) in [
            (&poor, state(false, false, false), ""),
            (&poor, state(true, false, false), "MemoryPressure"),
            (&rich, state(true, false, false), ""),
            (&tolerates, state(true, false, false), ""),
            (&tolerates, state(true, true, false), "MemoryPressure DiskPressure"),
            (&rich, state(false, true, true), "DiskPressure PIDPressure"),
            (&critical, state(true, true, true), ""),
        ] {
            let expected = format!("Evicted: The node had condition: [{conditions}]. ");
            let expected = (!conditions.is_empty()).then_some(expected);
            assert_eq!(ask(pod, state), expected, "{state:?}");
        }
        let ending = NodeState {
            shutting_down: true,
            ..NodeState::default()
        };
        assert!(ask(&critical, ending).unwrap().starts_with("NodeShutdown: "));
    }
}
