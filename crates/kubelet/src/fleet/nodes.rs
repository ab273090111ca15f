//! The nodes themselves: registered once, then kept alive by leases and, more rarely, their status.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use orlop_api::types::core::Taint;
use orlop_base::clock::{rfc3339, rfc3339_micro};
use orlop_base::{Clock, Shutdown};
use orlop_client::{Api, Delta, Error, Selection, path};
use parking_lot::Mutex;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::admission::{DECLARED_FEATURES, NodeTraits};
use super::behaviour::{FAULT, Fault};
use super::conditions::{ReportedCondition, Standing, Stored, Told, condition, revision, standing};
use super::{Group, Groups, Options};

/// Upstream: the kubelet renews its lease every ten seconds and says its status every five minutes.
const LEASE_EVERY: Duration = Duration::from_secs(10);
const LEASE_SECONDS: u32 = 40;
const STATUS_EVERY: Duration = Duration::from_secs(300);
/// Heartbeats are spread evenly over the time between two of a node's, in steps of this.
const TICK: Duration = Duration::from_millis(100);
const IN_FLIGHT: usize = 16;
/// The conditions that are reported.
const CONDITIONS: [&str; 4] = ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"];
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

/// What admission and the kubelet endpoints need to know of the nodes. Cheap to clone.
#[derive(Clone)]
pub(super) struct NodeCache {
    nodes: Arc<Groups>,
    state: Arc<Mutex<NodeCacheState>>,
}

#[derive(Default)]
struct NodeCacheState {
    /// By number.
    faults: HashMap<usize, Fault>,
    /// Nodes that were registered or seen by the watch.
    seen: HashSet<usize>,
    /// Those of them that differ from their group: others gave them labels or taints.
    changed: HashMap<usize, Box<NodeTraits>>,
}

impl NodeCache {
    pub(super) fn new(nodes: Arc<Groups>) -> NodeCache {
        NodeCache {
            nodes,
            state: Arc::default(),
        }
    }

    pub(super) fn fault(&self, node: usize) -> Option<Fault> {
        self.state.lock().faults.get(&node).copied()
    }

    /// None before the node was seen.
    pub(super) fn traits(&self, node: usize) -> Option<NodeTraits> {
        let state = self.state.lock();
        match state.changed.get(&node) {
            _ if !state.seen.contains(&node) => None,
            Some(changed) => Some((**changed).clone()),
            None => Some(traits_of_group(&self.nodes, node)),
        }
    }

    /// The fault that it had before.
    pub(super) fn learn(&self, node: usize, traits: NodeTraits, fault: Option<Fault>) -> Option<Fault> {
        let as_made = traits == traits_of_group(&self.nodes, node);
        let mut state = self.state.lock();
        state.seen.insert(node);
        match as_made {
            true => drop(state.changed.remove(&node)),
            false => drop(state.changed.insert(node, Box::new(traits))),
        }
        match fault {
            Some(fault) => state.faults.insert(node, fault),
            None => state.faults.remove(&node),
        }
    }

    /// The node is as its group says.
    pub(super) fn registered(&self, node: usize) {
        self.state.lock().seen.insert(node);
    }
}

fn traits_of_group(nodes: &Groups, node: usize) -> NodeTraits {
    let group = nodes.group(node);
    NodeTraits {
        labels: nodes.labels(node),
        taints: group.taints.clone(),
        allocatable: group.resources.clone(),
    }
}

#[derive(Deserialize)]
struct NodeSeen {
    metadata: Meta,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    name: String,
    #[serde(default)]
    resource_version: String,
    #[serde(default)]
    annotations: HashMap<String, String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Spec {
    taints: Vec<Taint>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    conditions: Vec<ReportedCondition>,
    allocatable: BTreeMap<String, String>,
}

impl NodeSeen {
    fn told(&self) -> Told {
        Told {
            revision: revision(&self.metadata.resource_version),
            standing: standing(CONDITIONS, &self.status.conditions),
        }
    }

    fn traits(&self) -> NodeTraits {
        NodeTraits {
            labels: self.metadata.labels.clone(),
            taints: self.spec.taints.clone(),
            allocatable: self.status.allocatable.clone(),
        }
    }
}

/// The address that all of them share: nothing listens there for them.
pub(super) fn host_ip(node: usize) -> String {
    format!("198.18.{}.{}", (node >> 8) & 255, node & 255)
}

/// The pods' addresses of a node: 100.64.0.0/10 has room for 16,384 nodes of 254.
pub(super) fn pod_net(node: usize) -> [u8; 3] {
    [100, 64 + ((node >> 8) & 63) as u8, (node & 255) as u8]
}

pub(super) async fn keep(api: Api, options: Options, clock: Clock, shutdown: Shutdown, seen: NodeCache) {
    let (sender, changes) = mpsc::channel(64);
    let selection = Selection::all(path::collection("v1", None, "nodes")).with_labels("orlop.io/simulated=true");
    orlop_base::spawn(orlop_client::watch(api.clone(), selection, sender, shutdown.clone()));
    let nodes = Nodes {
        api,
        told: Mutex::new(vec![Told::default(); options.nodes.count()]),
        options,
        clock,
        seen,
        gone: Mutex::default(),
    };
    tokio::select! {
        () = shutdown.wait() => {}
        () = async { tokio::join!(nodes.live(), nodes.observe(changes)); } => {}
    }
}

struct Nodes {
    api: Api,
    options: Options,
    clock: Clock,
    seen: NodeCache,
    /// Deleted from the API server: they stay so until they are registered again.
    gone: Mutex<std::collections::HashSet<usize>>,
    /// How the conditions stand at the API server, by number.
    told: Mutex<Vec<Told>>,
}

impl Nodes {
    async fn live(&self) {
        let count = self.options.nodes.count();
        self.each(0..count, |node| self.register(node)).await;
        tracing::info!(count, "registered simulated nodes");
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut tick = 0u64;
        loop {
            ticks.tick().await;
            let now = self.clock.now();
            self.each(due(count, tick, LEASE_EVERY), |n| self.renew(n, now)).await;
            self.each(due(count, tick, STATUS_EVERY), |n| self.say_status(n, now))
                .await;
            tick += 1;
        }
    }

    async fn each<F: Future<Output = ()>>(&self, nodes: impl IntoIterator<Item = usize>, what: impl Fn(usize) -> F) {
        futures::stream::iter(nodes).for_each_concurrent(IN_FLIGHT, what).await;
    }

    async fn register(&self, node: usize) {
        let now = self.clock.now();
        let nodes = path::collection("v1", None, "nodes");
        loop {
            match self
                .api
                .create::<Stored>(&nodes, &node_object(&self.options, node, now))
                .await
            {
                Ok(stored) => {
                    self.learn(node, stored.told(holding(None)));
                    self.seen.registered(node);
                    break;
                }
                // The watch delivers the current conditions, and outdated ones are corrected then.
                Err(Error::AlreadyExists(_)) => break self.update_capacity(node).await,
                Err(e) if e.is_passing() => tokio::time::sleep(Duration::from_secs(1)).await,
                Err(e) => break tracing::warn!(node = self.name(node), err = e.chain(), "failed to register node"),
            }
        }
        self.renew(node, now).await;
    }

    fn name(&self, node: usize) -> &str {
        self.options.nodes.name(node)
    }

    /// Updates capacity and images of a node that was registered before. Labels and taints stay: as with a real node
    /// they are set when it is registered.
    async fn update_capacity(&self, node: usize) {
        let at = path::subresource("v1", None, "nodes", self.name(node), "status");
        let patch = json!({"status": capacity(self.options.nodes.group(node))});
        if let Err(e) = self.api.patch_strategic::<IgnoredAny>(&at, &patch).await {
            tracing::debug!(node = self.name(node), err = %e.chain(), "failed to update node capacity");
        }
    }

    fn is_silent(&self, node: usize) -> bool {
        self.seen.fault(node) == Some(Fault::Silent) || self.gone.lock().contains(&node)
    }

    async fn renew(&self, node: usize, now: Timestamp) {
        if self.is_silent(node) {
            return;
        }
        let name = self.name(node);
        let patch = json!({"spec": {"renewTime": rfc3339_micro(now)}});
        let renewed = self
            .api
            .patch_merge::<IgnoredAny>(&format!("{LEASES}/{name}"), &patch)
            .await;
        let outcome = match renewed {
            Err(Error::NotFound(_)) => self.api.create::<IgnoredAny>(LEASES, &lease(name, now)).await,
            other => other,
        };
        if let Err(e) = outcome {
            tracing::debug!(node = name, err = e.chain(), "failed to update node lease");
        }
    }

    async fn say_status(&self, node: usize, now: Timestamp) {
        let (told, fault) = (self.told.lock()[node], self.seen.fault(node));
        // Transitions can't be computed before the current conditions are known.
        if self.is_silent(node) || told.revision == 0 {
            return;
        }
        let at = path::subresource("v1", None, "nodes", self.name(node), "status");
        let patch = json!({"status": {"conditions": conditions(fault, told.standing, now)}});
        match self.api.patch_strategic::<Stored>(&at, &patch).await {
            Ok(stored) => {
                self.learn(node, stored.told(holding(fault)));
            }
            Err(e) => tracing::debug!(node = self.name(node), err = e.chain(), "failed to update node status"),
        }
    }

    /// How its conditions stand with that.
    fn learn(&self, node: usize, news: Told) -> Standing {
        let told = &mut self.told.lock()[node];
        told.learn(news);
        told.standing
    }

    /// Follows what users do to the nodes: faults by annotation, deletion.
    async fn observe(&self, mut changes: mpsc::Receiver<Delta<NodeSeen>>) {
        while let Some(delta) = changes.recv().await {
            match delta {
                Delta::Reset(all) => {
                    for node in all {
                        self.observe_one(&node).await;
                    }
                }
                Delta::Applied(node) => self.observe_one(&node).await,
                Delta::Deleted(node) => {
                    if let Some(number) = self.options.nodes.number(&node.metadata.name) {
                        self.gone.lock().insert(number);
                    }
                }
                Delta::Bookmark(_) => {}
            }
        }
    }

    async fn observe_one(&self, seen: &NodeSeen) {
        let Some(node) = self.options.nodes.number(&seen.metadata.name) else {
            return;
        };
        self.gone.lock().remove(&node);
        let standing = self.learn(node, seen.told());
        let fault = seen.metadata.annotations.get(FAULT).and_then(|text| Fault::parse(text));
        let before = self.seen.learn(node, seen.traits(), fault);
        // Others change conditions as well: the node controller, of nodes that it does not hear of.
        if before != fault || standing != holding(fault) {
            self.say_status(node, self.clock.now()).await;
        }
    }
}

/// The nodes that are due at this tick: all of them once in a period, spread evenly.
fn due(count: usize, tick: u64, period: Duration) -> std::ops::Range<usize> {
    let steps = (period.as_millis() / TICK.as_millis()) as u64;
    let step = tick % steps;
    let at = |step: u64| (count as u64 * step / steps) as usize;
    at(step)..at(step + 1)
}

fn lease(name: &str, now: Timestamp) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name, "namespace": "kube-node-lease"},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": rfc3339_micro(now)},
    })
}

/// Capacity, allocatable resources and images.
fn capacity(group: &Group) -> Value {
    let images = group
        .images
        .iter()
        .map(|(name, bytes)| json!({"names": [name], "sizeBytes": bytes}));
    json!({"capacity": group.resources, "allocatable": group.resources, "images": images.collect::<Vec<_>>()})
}

fn node_object(options: &Options, node: usize, now: Timestamp) -> Value {
    let (nodes, name) = (&options.nodes, options.nodes.name(node));
    let [a, b, c] = pod_net(node);
    let mut object = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": nodes.labels(node)},
        "spec": {"podCIDR": format!("{a}.{b}.{c}.0/24"), "podCIDRs": [format!("{a}.{b}.{c}.0/24")],
            "taints": nodes.group(node).taints},
        "status": {
            "conditions": conditions(None, Standing::default(), now),
            "declaredFeatures": DECLARED_FEATURES,
            "features": {"supplementalGroupsPolicy": true},
            "addresses": [{"type": "InternalIP", "address": host_ip(node)}, {"type": "Hostname", "address": name}],
            "nodeInfo": {
                "architecture": "amd64", "operatingSystem": "linux", "osImage": "Simulated",
                "kubeletVersion": crate::node::KUBELET_VERSION, "kubeProxyVersion": "", "kernelVersion": "simulated",
                "containerRuntimeVersion": "simulated://1", "machineID": name, "systemUUID": name, "bootID": name,
            },
        },
    });
    if let (Value::Object(status), Value::Object(capacity)) = (&mut object["status"], capacity(nodes.group(node))) {
        status.extend(capacity);
    }
    object
}

/// Which conditions hold of a node with this fault.
fn holding(fault: Option<Fault>) -> Standing {
    let pressures = [Fault::MemoryPressure, Fault::DiskPressure, Fault::PidPressure];
    let [memory, disk, pids] = pressures.map(|pressure| fault == Some(pressure));
    [memory, disk, pids, fault != Some(Fault::NotReady)].map(Some)
}

/// `before`: how they stand so far.
fn conditions(fault: Option<Fault>, before: Standing, now: Timestamp) -> Value {
    let made = CONDITIONS.iter().zip(holding(fault)).zip(before);
    made.map(|((kind, holds), before)| {
        let holds = holds == Some(true);
        let (reason, message) = explained(kind, holds);
        let mut condition = condition(kind, holds, before, Some(reason), Some(message), now);
        condition["lastHeartbeatTime"] = rfc3339(now).into();
        condition
    })
    .collect()
}

/// Reason and message.
fn explained(kind: &str, holds: bool) -> (&'static str, &'static str) {
    match (kind, holds) {
        ("MemoryPressure", false) => ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        ("MemoryPressure", true) => (
            "KubeletHasInsufficientMemory",
            "kubelet has insufficient memory available",
        ),
        ("DiskPressure", false) => ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        ("DiskPressure", true) => ("KubeletHasDiskPressure", "kubelet has disk pressure"),
        ("PIDPressure", false) => ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        ("PIDPressure", true) => ("KubeletHasInsufficientPID", "kubelet has insufficient PID available"),
        (_, true) => ("KubeletReady", "kubelet is posting ready status"),
        (_, false) => ("KubeletNotReady", "simulated: the node is set to NotReady"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Server;
    use super::*;

    const PATH: &str = "/api/v1/nodes/sim-0";

    fn nodes(server: &Server, clock: &Clock) -> Nodes {
        of_kind(server, clock, "sim=1")
    }

    fn of_kind(server: &Server, clock: &Clock, group: &str) -> Nodes {
        let nodes = Arc::new(Groups::new(vec![Group::parse(group).unwrap()]).unwrap());
        Nodes {
            api: server.api(),
            told: Mutex::new(vec![Told::default()]),
            seen: NodeCache::new(nodes.clone()),
            options: Options {
                nodes,
                ..Options::default()
            },
            clock: clock.clone(),
            gone: Mutex::default(),
        }
    }

    /// `MemoryPressure=False@0 …`: the conditions and the seconds at which they turned.
    fn told(server: &Server) -> String {
        server.conditions(PATH)
    }

    async fn watched(nodes: &Nodes, server: &Server) {
        let seen: NodeSeen = serde_json::from_value(server.get(PATH)).unwrap();
        nodes.observe_one(&seen).await;
    }

    #[tokio::test]
    async fn conditions_keep_the_time_at_which_they_turned() {
        let (server, clock) = (Server::default(), Clock::manual(Timestamp::UNIX_EPOCH));
        let first = nodes(&server, &clock);
        first.register(0).await;
        let new = "MemoryPressure=False@0 DiskPressure=False@0 PIDPressure=False@0 Ready=True@0";
        assert_eq!(told(&server), new);

        clock.advance(STATUS_EVERY);
        first.say_status(0, clock.now()).await;
        assert_eq!(told(&server), new);
        assert_eq!(
            server.get(PATH)["status"]["conditions"][3]["lastHeartbeatTime"],
            "1970-01-01T00:05:00Z"
        );

        server.change(PATH, json!({"metadata": {"annotations": {FAULT: "disk-pressure"}}}));
        watched(&first, &server).await;
        let pressed = "MemoryPressure=False@0 DiskPressure=True@300 PIDPressure=False@0 Ready=True@0";
        assert_eq!(told(&server), pressed);
        clock.advance(STATUS_EVERY);
        first.say_status(0, clock.now()).await;
        assert_eq!(told(&server), pressed, "before the watch has told of the change");

        // Another one takes over: nothing has turned by that.
        clock.advance(STATUS_EVERY);
        let second = nodes(&server, &clock);
        second.register(0).await;
        second.say_status(0, clock.now()).await;
        watched(&second, &server).await;
        second.say_status(0, clock.now()).await;
        assert_eq!(told(&server), pressed);
    }

    #[tokio::test]
    async fn a_node_taken_for_dead_says_that_it_lives() {
        let (server, clock) = (Server::default(), Clock::manual(Timestamp::UNIX_EPOCH));
        let nodes = nodes(&server, &clock);
        nodes.register(0).await;
        clock.advance(STATUS_EVERY);
        let unknown = json!([{"type": "Ready", "status": "Unknown", "lastTransitionTime": "1970-01-01T00:01:00Z"}]);
        server.change(PATH, json!({"status": {"conditions": unknown}}));
        watched(&nodes, &server).await;
        let alive = "MemoryPressure=False@0 DiskPressure=False@0 PIDPressure=False@0 Ready=True@300";
        assert_eq!(told(&server), alive);
        let written = server.get(PATH);
        watched(&nodes, &server).await;
        assert_eq!(server.get(PATH), written, "once is enough");
    }

    #[tokio::test]
    async fn nodes_are_as_their_group_says() {
        let (server, clock) = (Server::default(), Clock::manual(Timestamp::UNIX_EPOCH));
        let group = "sim=1:cpu=4,example.com/gpu=2,label=size=Large,taint=a=b:NoSchedule,role=worker,image=nginx=5Mi";
        let first = of_kind(&server, &clock, group);
        assert_eq!(first.seen.traits(0), None, "not before it is there");
        first.register(0).await;
        let node = server.get(PATH);
        assert_eq!(node["metadata"]["labels"]["size"], "Large");
        assert_eq!(node["metadata"]["labels"]["node-role.kubernetes.io/worker"], "");
        assert_eq!(
            node["spec"]["taints"],
            json!([{"key": "a", "value": "b", "effect": "NoSchedule"}])
        );
        let resources = json!({"cpu": "4", "memory": "256Gi", "pods": "110", "ephemeral-storage": "1Ti",
            "example.com/gpu": "2"});
        assert_eq!(node["status"]["capacity"], resources);
        assert_eq!(node["status"]["allocatable"], resources);
        let image = json!({"names": ["nginx:latest"], "sizeBytes": 5 << 20});
        assert_eq!(node["status"]["images"], json!([image]));
        watched(&first, &server).await;
        assert_eq!(first.seen.traits(0), Some(traits_of_group(&first.options.nodes, 0)));
        assert!(first.seen.state.lock().changed.is_empty(), "nothing to remember");
        // What others do to it counts, and what the group says of its size.
        server.change(PATH, json!({"metadata": {"labels": {"disk": "ssd"}}}));
        watched(&first, &server).await;
        assert_eq!(first.seen.traits(0).unwrap().labels["disk"], "ssd");
        let second = of_kind(&server, &clock, "sim=1:cpu=8");
        second.register(0).await;
        assert_eq!(second.seen.traits(0), None, "it may have changed");
        watched(&second, &server).await;
        let traits = second.seen.traits(0).unwrap();
        assert_eq!(
            (traits.labels["disk"].as_str(), traits.allocatable["cpu"].as_str()),
            ("ssd", "8")
        );
        assert_eq!(traits.taints.len(), 1);
    }

    #[test]
    fn every_node_has_its_turn_once_in_a_period() {
        for count in [0, 1, 7, 100, 5000] {
            let mut seen = vec![0; count];
            for tick in 0..100 {
                let turn = due(count, tick, LEASE_EVERY);
                assert!(turn.len() <= count / 100 + 1, "{count}: evenly");
                turn.for_each(|n| seen[n] += 1);
            }
            assert!(seen.iter().all(|n| *n == 1), "{count}");
        }
    }
}
