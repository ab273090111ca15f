//! Nodes that run pods, as far as controllers can tell: pods are bound, become ready, and end when deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use orlop_base::clock::{Shift, rfc3339};
use serde_json::{Value, json};

use orlop_client::testing::{ListSelector, ObjectPath, Store, collection};

const NAMED_NODE: &str = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0\
                          /matchFields/0/values/0";

/// A scheduler and kubelets in a few lines. `Default`: no nodes, so nothing is bound.
#[derive(Default)]
pub(crate) struct Nodes {
    pub names: Vec<String>,
    /// Cut off: neither starts nor ends pods, nor says anything.
    pub partitioned: BTreeSet<String>,
    /// Pods whose first container has this image run but do not become ready.
    pub broken_image: Option<String>,
    /// From bound to ready.
    pub start_after: Duration,
    /// From deleted to gone.
    pub stop_after: Duration,
    /// When the kubelet first saw the pod (uid) in need of the next step.
    since: BTreeMap<String, Timestamp>,
    seen: u64,
    next: usize,
}

impl Nodes {
    pub(crate) fn new(count: usize) -> Nodes {
        Nodes {
            names: (0..count).map(|n| format!("node-{n}")).collect(),
            ..Nodes::default()
        }
    }

    /// At all pods in the next step, whether they have changed or not.
    pub(super) fn look_again(&mut self) {
        self.seen = 0;
    }

    /// Brings every pod a step on, if it is time.
    pub(super) fn step(&mut self, store: &mut Store) {
        if self.seen == store.revision() && self.since.is_empty() {
            return;
        }
        // As it was before: what is bound now is looked at again in the next step.
        self.seen = store.revision();
        let mut waiting = BTreeMap::new();
        let now = store.clock.now();
        let all = ListSelector {
            place: ObjectPath {
                collection: collection("", "pods"),
                ..ObjectPath::default()
            },
            ..ListSelector::default()
        };
        for pod in store.list(&all) {
            let text = |pointer: &str| pod.pointer(pointer).and_then(Value::as_str).unwrap_or("").to_string();
            let place = ObjectPath {
                collection: all.place.collection.clone(),
                namespace: text("/metadata/namespace"),
                name: text("/metadata/name"),
            };
            let (uid, node, phase) = (text("/metadata/uid"), text("/spec/nodeName"), text("/status/phase"));
            let deleted = pod["metadata"]["deletionTimestamp"].is_string();
            if node.is_empty() {
                self.bind(store, &place, deleted);
                continue;
            }
            let idle = !deleted && phase != "Pending";
            if idle || self.partitioned.contains(&node) {
                continue;
            }
            let since = *self.since.get(&uid).unwrap_or(&now);
            let wait = if deleted { self.stop_after } else { self.start_after };
            if since.later(wait) > now {
                waiting.insert(uid, since);
                continue;
            }
            match deleted {
                true => {
                    let _ = store.delete(&place, &json!({"gracePeriodSeconds": 0}));
                }
                false => {
                    let image = text("/spec/containers/0/image");
                    let ready = self.broken_image.as_ref() != Some(&image);
                    let _ = store.update(&place, "status", |pod| {
                        set_running(pod, ready, now);
                        Ok(())
                    });
                }
            }
        }
        self.since = waiting;
    }

    fn bind(&mut self, store: &mut Store, place: &ObjectPath, deleted: bool) {
        let up: Vec<&String> = self.names.iter().filter(|n| !self.partitioned.contains(*n)).collect();
        if up.is_empty() || deleted {
            return;
        }
        self.next += 1;
        let node = up[self.next % up.len()].clone();
        let _ = store.update(place, "", |pod| {
            // A daemon's pod says where it belongs.
            let named = pod.pointer(NAMED_NODE).cloned().unwrap_or_else(|| json!(node));
            if up.iter().any(|node| named == **node) {
                pod["spec"]["nodeName"] = named;
            }
            Ok(())
        });
    }
}

/// Running, with one IP and a Ready condition since now.
pub(super) fn set_running(pod: &mut Value, ready: bool, now: Timestamp) {
    let now = rfc3339(now);
    let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
    let containers: Vec<Value> = containers
        .map(|c| {
            json!({"name": c["name"], "ready": ready, "restartCount": 0, "image": c["image"],
                   "state": {"running": {"startedAt": now}}})
        })
        .collect();
    pod["status"]["phase"] = json!("Running");
    pod["status"]["startTime"] = json!(now);
    pod["status"]["podIP"] = json!("10.0.0.1");
    pod["status"]["podIPs"] = json!([{"ip": "10.0.0.1"}]);
    pod["status"]["containerStatuses"] = json!(containers);
    let status = if ready { "True" } else { "False" };
    pod["status"]["conditions"] = json!([
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": now},
        {"type": "ContainersReady", "status": status, "lastTransitionTime": now},
        {"type": "Ready", "status": status, "lastTransitionTime": now},
    ]);
}
