//! On which nodes a set's pods belong, and how each pod is bound to its node: by affinity to the node's name, so that the
//! scheduler places it like any other pod.
// Upstream: pkg/controller/daemon/util and NodeShouldRunDaemonPod (v1.36)

use serde::Deserialize;
use serde_json::{Value, json};

use crate::objects::Toleration;
use crate::objects::{Labels, Node, Pod};
use orlop_api::objects::NodeSelector;

const IGNORED_DURING_EXECUTION: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const REQUIRED_DURING_EXECUTION: &str = "requiredDuringSchedulingRequiredDuringExecution";

/// What a node is to a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// Gets a pod.
    Runs,
    /// Gets none, but keeps what it has.
    Keeps,
    /// Must not have one.
    Not,
}

/// What of a template decides about nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Placement {
    node_name: String,
    tolerations: Vec<Toleration>,
    node_selector: Labels,
    /// All must match.
    required: Vec<NodeSelector>,
}

impl Placement {
    pub(super) fn from_template(template: &Value) -> Placement {
        let spec = &template["spec"];
        let affinity = &spec["affinity"]["nodeAffinity"];
        let required = [IGNORED_DURING_EXECUTION, REQUIRED_DURING_EXECUTION];
        Placement {
            node_name: spec["nodeName"].as_str().unwrap_or_default().to_string(),
            tolerations: tolerations(spec),
            node_selector: read(&spec["nodeSelector"]),
            required: required
                .iter()
                .filter(|field| affinity[**field].is_object())
                .map(|field| read(&affinity[*field]))
                .collect(),
        }
    }

    pub(super) fn fit(&self, node: &Node) -> Fit {
        let (name, labels) = (node.metadata.name.as_str(), &node.metadata.labels);
        let selected = (self.node_name.is_empty() || self.node_name == name)
            && self.node_selector.iter().all(|(k, v)| labels.get(k) == Some(v))
            && self.required.iter().all(|selector| selector.matches(name, labels));
        if !selected {
            return Fit::Not;
        }
        let untolerated = |effects: &[&str]| {
            let mut taints = node.spec.taints.iter().filter(|t| effects.contains(&&*t.effect));
            taints.any(|taint| !self.tolerations.iter().any(|t| t.tolerates(taint)))
        };
        if untolerated(&["NoExecute"]) {
            Fit::Not
        } else if untolerated(&["NoSchedule"]) {
            Fit::Keeps
        } else {
            Fit::Runs
        }
    }
}

/// What can't be read decides nothing.
fn read<T: for<'a> Deserialize<'a> + Default>(value: &Value) -> T {
    T::deserialize(value).unwrap_or_default()
}

/// The pod's own, and those of every daemon: it stays when its node is in trouble, and runs on nodes that take no new pods.
pub(super) fn tolerations(spec: &Value) -> Vec<Toleration> {
    const ALWAYS: [(&str, &str); 6] = [
        ("node.kubernetes.io/not-ready", "NoExecute"),
        ("node.kubernetes.io/unreachable", "NoExecute"),
        ("node.kubernetes.io/disk-pressure", "NoSchedule"),
        ("node.kubernetes.io/memory-pressure", "NoSchedule"),
        ("node.kubernetes.io/pid-pressure", "NoSchedule"),
        ("node.kubernetes.io/unschedulable", "NoSchedule"),
    ];
    const ON_HOST_NETWORK: (&str, &str) = ("node.kubernetes.io/network-unavailable", "NoSchedule");
    let on_host = spec["hostNetwork"] == true;
    let mut all: Vec<Toleration> = read(&spec["tolerations"]);
    for (key, effect) in ALWAYS.into_iter().chain(on_host.then_some(ON_HOST_NETWORK)) {
        let wanted = Toleration {
            key: key.to_string(),
            operator: "Exists".to_string(),
            effect: effect.to_string(),
            ..Toleration::default()
        };
        // One that says the same for a limited time is replaced by one without a limit.
        let alike = |t: &&mut Toleration| {
            t.key == wanted.key && t.effect == wanted.effect && t.operator == wanted.operator && t.value.is_empty()
        };
        let mut found = false;
        for toleration in all.iter_mut().filter(alike) {
            *toleration = wanted.clone();
            found = true;
        }
        if !found {
            all.push(wanted);
        }
    }
    all
}

/// Binds a pod's spec to a node; what the template required of nodes was looked at before.
pub(super) fn bind(spec: &mut Value, node: &str) {
    let affinity = &mut spec["affinity"]["nodeAffinity"][IGNORED_DURING_EXECUTION];
    *affinity = json!({"nodeSelectorTerms": [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]},
    ]});
}

/// The node that a pod runs on or is bound to.
pub(super) fn target(pod: &Pod) -> Option<&str> {
    if !pod.spec.node_name.is_empty() {
        return Some(&pod.spec.node_name);
    }
    let required = &pod.spec.affinity.as_ref()?.node_affinity[IGNORED_DURING_EXECUTION];
    let terms = required["nodeSelectorTerms"].as_array()?;
    let fields = terms.iter().filter_map(|term| term["matchFields"].as_array()).flatten();
    let names = fields.filter(|r| r["key"] == "metadata.name" && r["operator"] == "In");
    match names.map(|r| r["values"].as_array()).next()??.as_slice() {
        [name] => name.as_str(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, labels: Value, taints: Value) -> Node {
        serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}}))
            .unwrap()
    }

    fn required(field: &str, terms: Value) -> Value {
        json!({"affinity": {"nodeAffinity": {field: {"nodeSelectorTerms": terms}}}})
    }

    #[test]
    fn which_nodes_run_a_pod() {
        let taint = |key: &str, effect: &str| json!([{"key": key, "effect": effect}]);
        let expression = |key: &str, op: &str, values: Value| json!([{"matchExpressions": [{"key": key, "operator": op, "values": values}]}]);
        let plain = node("n", json!({"zone": "a", "size": "8"}), json!([]));
        for (case, spec, node, fit) in [
            ("nothing asked", json!({}), plain.clone(), Fit::Runs),
            ("its name", json!({"nodeName": "n"}), plain.clone(), Fit::Runs),
            ("another name", json!({"nodeName": "m"}), plain.clone(), Fit::Not),
            (
                "its label",
                json!({"nodeSelector": {"zone": "a"}}),
                plain.clone(),
                Fit::Runs,
            ),
            (
                "another label",
                json!({"nodeSelector": {"zone": "b"}}),
                plain.clone(),
                Fit::Not,
            ),
            (
                "in",
                required(IGNORED_DURING_EXECUTION, expression("zone", "In", json!(["a", "b"]))),
                plain.clone(),
                Fit::Runs,
            ),
            (
                "not in",
                required(IGNORED_DURING_EXECUTION, expression("zone", "NotIn", json!(["a"]))),
                plain.clone(),
                Fit::Not,
            ),
            (
                "greater",
                required(IGNORED_DURING_EXECUTION, expression("size", "Gt", json!(["7"]))),
                plain.clone(),
                Fit::Runs,
            ),
            (
                "less",
                required(IGNORED_DURING_EXECUTION, expression("size", "Lt", json!(["8"]))),
                plain.clone(),
                Fit::Not,
            ),
            (
                "required in execution",
                required(REQUIRED_DURING_EXECUTION, expression("zone", "Exists", json!([]))),
                plain.clone(),
                Fit::Runs,
            ),
            (
                "not in execution",
                required(REQUIRED_DURING_EXECUTION, expression("disk", "Exists", json!([]))),
                plain.clone(),
                Fit::Not,
            ),
            (
                "no terms",
                required(IGNORED_DURING_EXECUTION, json!([])),
                plain.clone(),
                Fit::Not,
            ),
            (
                "an empty term",
                required(IGNORED_DURING_EXECUTION, json!([{}])),
                plain.clone(),
                Fit::Not,
            ),
            (
                "one of two terms",
                required(
                    IGNORED_DURING_EXECUTION,
                    json!([{}, {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}]),
                ),
                plain,
                Fit::Runs,
            ),
            (
                "cordoned",
                json!({}),
                node("n", json!({}), taint("node.kubernetes.io/unschedulable", "NoSchedule")),
                Fit::Runs,
            ),
            (
                "not ready",
                json!({}),
                node("n", json!({}), taint("node.kubernetes.io/not-ready", "NoExecute")),
                Fit::Runs,
            ),
            (
                "not ready, new",
                json!({}),
                node("n", json!({}), taint("node.kubernetes.io/not-ready", "NoSchedule")),
                Fit::Keeps,
            ),
            (
                "tainted",
                json!({}),
                node("n", json!({}), taint("gpu", "NoSchedule")),
                Fit::Keeps,
            ),
            (
                "evicting",
                json!({}),
                node("n", json!({}), taint("gpu", "NoExecute")),
                Fit::Not,
            ),
            (
                "preferred",
                json!({}),
                node("n", json!({}), taint("gpu", "PreferNoSchedule")),
                Fit::Runs,
            ),
            (
                "tolerated",
                json!({"tolerations": [{"operator": "Exists"}]}),
                node("n", json!({}), taint("gpu", "NoExecute")),
                Fit::Runs,
            ),
            (
                "no network",
                json!({}),
                node(
                    "n",
                    json!({}),
                    taint("node.kubernetes.io/network-unavailable", "NoSchedule"),
                ),
                Fit::Keeps,
            ),
            (
                "no network needed",
                json!({"hostNetwork": true}),
                node(
                    "n",
                    json!({}),
                    taint("node.kubernetes.io/network-unavailable", "NoSchedule"),
                ),
                Fit::Runs,
            ),
        ] {
            assert_eq!(
                Placement::from_template(&json!({"spec": spec})).fit(&node),
                fit,
                "{case}"
            );
        }
    }

    #[test]
    fn tolerations_are_added_once_and_without_a_limit() {
        let spec = json!({"tolerations": [
            {"key": "mine", "operator": "Equal", "value": "v", "effect": "NoExecute", "tolerationSeconds": 7},
            {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
        ]});
        let all = tolerations(&spec);
        let told: Vec<String> = all
            .iter()
            .map(|t| {
                format!(
                    "{}:{}:{:?}",
                    t.key.rsplit('/').next().unwrap(),
                    t.effect,
                    t.toleration_seconds
                )
            })
            .collect();
        let wanted = [
            "mine:NoExecute:Some(7)",
            "unreachable:NoExecute:None",
            "not-ready:NoExecute:None",
            "disk-pressure:NoSchedule:None",
            "memory-pressure:NoSchedule:None",
            "pid-pressure:NoSchedule:None",
            "unschedulable:NoSchedule:None",
        ];
        assert_eq!(told, wanted);
        let again = tolerations(&json!({"tolerations": all}));
        assert_eq!(again, all);
        assert_eq!(tolerations(&json!({"hostNetwork": true})).len(), 7);
    }

    #[test]
    fn a_pod_is_bound_to_its_node_and_found_again() {
        let mut spec = required(
            IGNORED_DURING_EXECUTION,
            json!([{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]),
        );
        spec["affinity"]["podAntiAffinity"] = json!({"kept": 1});
        for mut spec in [json!({}), spec] {
            bind(&mut spec, "n1");
            let pod: Pod = serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap();
            assert_eq!(target(&pod), Some("n1"));
        }
        let on: Pod = serde_json::from_value(json!({"spec": {"nodeName": "n2"}})).unwrap();
        assert_eq!(target(&on), Some("n2"));
        assert_eq!(target(&Pod::default()), None);
    }
}
