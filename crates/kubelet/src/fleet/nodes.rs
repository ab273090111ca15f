//! The nodes themselves: registered once, then kept alive by leases and, more rarely, their status.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use orlop_base::clock::{rfc3339, rfc3339_micro};
use orlop_base::{Clock, Shutdown};
use orlop_client::{Api, Delta, Error, Selection, path};
use parking_lot::Mutex;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::Options;
use super::behaviour::{FAULT, Fault};
use super::conditions::{Seen, Standing, Stored, Told, condition, revision, standing};

/// Upstream: the kubelet renews its lease every ten seconds and says its status every five minutes.
const LEASE_EVERY: Duration = Duration::from_secs(10);
const LEASE_SECONDS: u32 = 40;
const STATUS_EVERY: Duration = Duration::from_secs(300);
/// Heartbeats are spread evenly over the time between two of a node's, in steps of this.
const TICK: Duration = Duration::from_millis(100);
const IN_FLIGHT: usize = 16;
/// The conditions that are told.
const CONDITIONS: [&str; 4] = ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"];
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

/// What is known of the nodes that others ask for: faults by number.
#[derive(Clone, Default)]
pub struct Faults(Arc<Mutex<HashMap<usize, Fault>>>);

impl Faults {
    pub fn of(&self, node: usize) -> Option<Fault> {
        self.0.lock().get(&node).copied()
    }
}

#[derive(Deserialize)]
struct NodeSeen {
    metadata: Meta,
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
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    conditions: Vec<Seen>,
}

impl NodeSeen {
    fn told(&self) -> Told {
        Told {
            revision: revision(&self.metadata.resource_version),
            standing: standing(CONDITIONS, &self.status.conditions),
        }
    }
}

/// The address that all of them share: nothing listens there for them.
pub fn host_ip(node: usize) -> String {
    format!("198.18.{}.{}", (node >> 8) & 255, node & 255)
}

/// The pods' addresses of a node: 100.64.0.0/10 has room for 16,384 nodes of 254.
pub fn pod_net(node: usize) -> [u8; 3] {
    [100, 64 + ((node >> 8) & 63) as u8, (node & 255) as u8]
}

pub async fn keep(api: Api, options: Options, clock: Clock, shutdown: Shutdown, faults: Faults) {
    let (sender, changes) = mpsc::channel(64);
    let selection = Selection::all(path::collection("v1", None, "nodes")).with_labels("orlop.io/simulated=true");
    tokio::spawn(orlop_client::watch(api.clone(), selection, sender, shutdown.clone()));
    let nodes = Nodes {
        api,
        told: Mutex::new(vec![Told::default(); options.count]),
        options,
        clock,
        faults,
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
    faults: Faults,
    /// Deleted by someone: they stay so until they are registered anew.
    gone: Mutex<std::collections::HashSet<usize>>,
    /// How the conditions stand at the API server, by number.
    told: Mutex<Vec<Told>>,
}

impl Nodes {
    async fn live(&self) {
        self.each(0..self.options.count, |node| self.register(node)).await;
        tracing::info!("{} simulated nodes are registered", self.options.count);
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut tick = 0u64;
        loop {
            ticks.tick().await;
            let now = self.clock.now();
            self.each(due(self.options.count, tick, LEASE_EVERY), |n| self.renew(n, now))
                .await;
            self.each(due(self.options.count, tick, STATUS_EVERY), |n| self.say_status(n, now))
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
                    break;
                }
                // The watch tells how it stands, and what is not so any more is said then.
                Err(Error::AlreadyExists(_)) => break,
                Err(e) if e.is_passing() => tokio::time::sleep(Duration::from_secs(1)).await,
                Err(e) => break tracing::warn!("{} can't be registered: {}", self.options.name(node), e.chain()),
            }
        }
        self.renew(node, now).await;
    }

    fn is_silent(&self, node: usize) -> bool {
        self.faults.of(node) == Some(Fault::Silent) || self.gone.lock().contains(&node)
    }

    async fn renew(&self, node: usize, now: Timestamp) {
        if self.is_silent(node) {
            return;
        }
        let name = self.options.name(node);
        let patch = json!({"spec": {"renewTime": rfc3339_micro(now)}});
        let renewed = self
            .api
            .patch_merge::<IgnoredAny>(&format!("{LEASES}/{name}"), &patch)
            .await;
        let outcome = match renewed {
            Err(Error::NotFound(_)) => self.api.create::<IgnoredAny>(LEASES, &lease(&name, now)).await,
            other => other,
        };
        if let Err(e) = outcome {
            tracing::debug!("the lease of {name} is not renewed: {}", e.chain());
        }
    }

    async fn say_status(&self, node: usize, now: Timestamp) {
        let (told, fault) = (self.told.lock()[node], self.faults.of(node));
        // What has turned can't be told before it is known how things stood.
        if self.is_silent(node) || told.revision == 0 {
            return;
        }
        let at = path::subresource("v1", None, "nodes", &self.options.name(node), "status");
        let patch = json!({"status": {"conditions": conditions(fault, told.standing, now)}});
        match self.api.patch_strategic::<Stored>(&at, &patch).await {
            Ok(stored) => {
                self.learn(node, stored.told(holding(fault)));
            }
            Err(e) => tracing::debug!("the status of {} is not said: {}", self.options.name(node), e.chain()),
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
                    if let Some(number) = self.options.number(&node.metadata.name) {
                        self.gone.lock().insert(number);
                    }
                }
                Delta::Bookmark(_) => {}
            }
        }
    }

    async fn observe_one(&self, seen: &NodeSeen) {
        let Some(node) = self.options.number(&seen.metadata.name) else {
            return;
        };
        self.gone.lock().remove(&node);
        let standing = self.learn(node, seen.told());
        let fault = seen.metadata.annotations.get(FAULT).and_then(|text| Fault::parse(text));
        let before = match fault {
            Some(fault) => self.faults.0.lock().insert(node, fault),
            None => self.faults.0.lock().remove(&node),
        };
        // Others change conditions as well: the node controller, of nodes that it does not hear of.
        if before != fault || standing != holding(fault) {
            self.say_status(node, self.clock.now()).await;
        }
    }
}

/// The nodes whose turn it is at this tick: all of them once in a period, as evenly as can be.
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

fn node_object(options: &Options, node: usize, now: Timestamp) -> Value {
    let name = options.name(node);
    let [a, b, c] = pod_net(node);
    let mut labels = json!({
        "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
        "beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": "amd64", "orlop.io/simulated": "true",
    });
    if options.zones > 0 {
        labels["topology.kubernetes.io/region"] = options.prefix.as_str().into();
        labels["topology.kubernetes.io/zone"] = format!("{}-zone-{}", options.prefix, node % options.zones).into();
    }
    let resources = json!({"cpu": options.cpu, "memory": options.memory, "pods": options.pods.to_string(),
        "ephemeral-storage": "1Ti"});
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
        "spec": {"podCIDR": format!("{a}.{b}.{c}.0/24"), "podCIDRs": [format!("{a}.{b}.{c}.0/24")]},
        "status": {
            "capacity": resources, "allocatable": resources, "conditions": conditions(None, Standing::default(), now),
            "declaredFeatures": ["InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScalingInitContainers",
                "RestartAllContainersOnContainerExits"],
            "addresses": [{"type": "InternalIP", "address": host_ip(node)}, {"type": "Hostname", "address": name}],
            "nodeInfo": {
                "architecture": "amd64", "operatingSystem": "linux", "osImage": "Simulated",
                "kubeletVersion": crate::node::KUBELET_VERSION, "kubeProxyVersion": "", "kernelVersion": "simulated",
                "containerRuntimeVersion": "simulated://1", "machineID": name, "systemUUID": name, "bootID": name,
            },
        },
    })
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
        (_, false) => ("KubeletNotReady", "simulated: the node is told to be not ready"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Server;
    use super::*;

    const PATH: &str = "/api/v1/nodes/sim-0";

    fn nodes(server: &Server, clock: &Clock) -> Nodes {
        Nodes {
            api: server.api(),
            told: Mutex::new(vec![Told::default()]),
            options: Options {
                count: 1,
                ..Options::default()
            },
            clock: clock.clone(),
            faults: Faults::default(),
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
