//! NodeDeclaredFeatures: pods that need something new of the kubelet go where it says that it can do it.

use crate::cluster::Cluster;
use crate::cluster::node::NodeInfo;
use crate::cluster::pod::PodInfo;
use crate::framework::detail::Detail;
use crate::framework::event::{Actions, Event, EventKind, Hint, Resource};
use crate::framework::points::{AnyFilter, Filter, Plugin, Scope};
use crate::framework::verdict::{PreFilter, Rejection, Verdict};
use crate::model::PodSpec;

const UNSATISFIED: Rejection = Rejection::unresolvable("node(s) didn't match Pod's required features");

/// A feature, and whether a pod needs it from the start. Features that only matter to changes of running pods are not
/// here: they are the API server's to check.
///
/// Upstream: component-helpers/nodedeclaredfeatures/features (v1.36).
const FEATURES: [(&str, fn(&PodSpec) -> bool); 2] = [
    ("RestartAllContainersOnContainerExits", restarts_all_containers),
    ("UserNamespacesHostNetworkSupport", |spec| {
        spec.host_network && spec.host_users == Some(false)
    }),
];

fn restarts_all_containers(spec: &PodSpec) -> bool {
    let mut rules = (spec.containers.iter().chain(&spec.init_containers)).flat_map(|c| &c.restart_policy_rules);
    rules.any(|r| r.action == "RestartAllContainers")
}

fn required(spec: &PodSpec) -> Vec<&'static str> {
    let needed = FEATURES.iter().filter(|(_, is_needed)| is_needed(spec));
    needed.map(|(name, _)| *name).collect()
}

#[derive(Default)]
pub struct NodeDeclaredFeatures;

impl Plugin for NodeDeclaredFeatures {
    fn name(&self) -> &'static str {
        "NodeDeclaredFeatures"
    }

    fn filter(&self) -> Option<&dyn AnyFilter> {
        Some(self)
    }

    fn events(&self) -> Vec<EventKind> {
        vec![
            EventKind::new(Resource::Node, Actions::ADD.or(Actions::UPDATE_DECLARED_FEATURES)),
            EventKind::new(Resource::OwnPod, Actions::UPDATE),
        ]
    }

    fn hint(&self, pod: &PodInfo, event: &Event, _: &Cluster) -> Hint {
        if let (before, Some(now)) = event.nodes() {
            return Hint::queue_if(before.is_none_or(|b| b.declared_features != now.declared_features));
        }
        let (Some(before), Some(now)) = event.pods() else {
            return Hint::Queue;
        };
        Hint::queue_if(now.uid == pod.uid && required(&before.class.spec) != required(&now.class.spec))
    }
}

impl Filter for NodeDeclaredFeatures {
    type State = Vec<&'static str>;
    const SCOPE: Scope = Scope::Node;

    fn pre_filter(&self, pod: &PodInfo, _: &Cluster) -> PreFilter<Vec<&'static str>> {
        match required(&pod.class.spec) {
            none if none.is_empty() => PreFilter::Skip,
            some => PreFilter::Run(some),
        }
    }

    fn filter(&self, required: &Vec<&'static str>, _: &PodInfo, node: &NodeInfo) -> Verdict {
        let is_declared = |name: &&str| node.declared_features.iter().any(|f| f == name);
        if required.iter().all(is_declared) {
            Ok(())
        } else {
            Err(UNSATISFIED)
        }
    }

    fn details(&self, required: &Vec<&'static str>, _: &PodInfo, node: &NodeInfo) -> Vec<Detail> {
        let is_missing = |name: &&&str| !node.declared_features.iter().any(|f| f == **name);
        let missing = required.iter().filter(is_missing);
        missing.map(|name| Detail::Feature { name: name.to_string() }).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::storage::fixture::World;
    use crate::framework::event::Object;
    use crate::model::Node;

    fn node(name: &str, features: Value) -> Node {
        serde_json::from_value(json!({"metadata": {"name": name}, "status": {"declaredFeatures": features}})).unwrap()
    }

    fn restarting() -> Value {
        json!({"containers": [{"name": "c", "restartPolicyRules": [{"action": "RestartAllContainers"}]}]})
    }

    #[test]
    fn pods_go_where_their_features_are() {
        let mut world = World::default();
        world.cluster.observe_node(&node(
            "both",
            json!([
                "Other",
                "RestartAllContainersOnContainerExits",
                "UserNamespacesHostNetworkSupport"
            ]),
        ));
        world.cluster.observe_node(&node("none", json!([])));
        world
            .cluster
            .observe_node(&node("users", json!(["UserNamespacesHostNetworkSupport"])));
        let no = "UU node(s) didn't match Pod's required features";
        let cases = [
            (json!({}), "skip".to_string()),
            (json!({"hostNetwork": true}), "skip".to_string()),
            (json!({"hostNetwork": true, "hostUsers": true}), "skip".to_string()),
            (
                json!({"hostNetwork": true, "hostUsers": false}),
                format!("both: ok; none: {no}; users: ok"),
            ),
            (
                json!({"containers": [{"restartPolicyRules": [{"action": "Restart"}]}]}),
                "skip".to_string(),
            ),
            (restarting(), format!("both: ok; none: {no}; users: {no}")),
            (
                json!({"initContainers": restarting()["containers"], "hostNetwork": true, "hostUsers": false}),
                format!("both: ok; none: {no}; users: {no}"),
            ),
        ];
        for (spec, expected) in cases {
            let pod = world.pod_with("p", json!({"spec": spec}));
            assert_eq!(world.ask(&NodeDeclaredFeatures, &pod), expected, "{spec}");
        }
    }

    #[test]
    fn changes_of_features_matter() {
        let mut world = World::default();
        let info = |features| {
            let id = crate::cluster::node::NodeId(0);
            Object::Node(Arc::new(NodeInfo::new(id, &node("n", features))))
        };
        let pod = world.pod_with("p", json!({"spec": restarting()}));
        let without = Object::Pod(world.pod_with("p", json!({})));
        let other = Object::Pod(world.pod_with("q", json!({})));
        let now = Object::Pod(pod.clone());
        let cases = [
            (Object::None, info(json!(["A"])), Hint::Queue),
            (info(json!(["A"])), info(json!(["A"])), Hint::Skip),
            (info(json!(["A"])), info(json!(["A", "B"])), Hint::Queue),
            (now.clone(), now.clone(), Hint::Skip),
            (without, now.clone(), Hint::Queue),
            (now, other, Hint::Skip),
        ];
        for (at, (old, new, expected)) in cases.into_iter().enumerate() {
            let event = Event {
                resource: Resource::Node,
                actions: Actions::UPDATE,
                old,
                new,
            };
            assert_eq!(
                NodeDeclaredFeatures.hint(&pod, &event, &world.cluster),
                expected,
                "case {at}"
            );
        }
    }
}
