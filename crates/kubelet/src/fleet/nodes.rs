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

/// Upstream: the kubelet renews its lease every ten seconds and says its status every five minutes.
const LEASE_EVERY: Duration = Duration::from_secs(10);
const LEASE_SECONDS: u32 = 40;
const STATUS_EVERY: Duration = Duration::from_secs(300);
/// Heartbeats are spread evenly over the time between two of a node's, in steps of this.
const TICK: Duration = Duration::from_millis(100);
const IN_FLIGHT: usize = 16;
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
}

#[derive(Deserialize)]
struct Meta {
    name: String,
    #[serde(default)]
    annotations: HashMap<String, String>,
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
                .create::<IgnoredAny>(&nodes, &node_object(&self.options, node, now))
                .await
            {
                Ok(_) => break,
                Err(Error::AlreadyExists(_)) => break self.say_status(node, now).await,
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
        if self.is_silent(node) {
            return;
        }
        let at = path::subresource("v1", None, "nodes", &self.options.name(node), "status");
        let patch = json!({"status": {"conditions": conditions(self.faults.of(node), now)}});
        if let Err(e) = self.api.patch_strategic::<IgnoredAny>(&at, &patch).await {
            tracing::debug!("the status of {} is not said: {}", self.options.name(node), e.chain());
        }
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
        let fault = seen.metadata.annotations.get(FAULT).and_then(|text| Fault::parse(text));
        let before = match fault {
            Some(fault) => self.faults.0.lock().insert(node, fault),
            None => self.faults.0.lock().remove(&node),
        };
        if before != fault {
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
            "capacity": resources, "allocatable": resources, "conditions": conditions(None, now),
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

fn conditions(fault: Option<Fault>, now: Timestamp) -> Value {
    let now = rfc3339(now);
    let one = |kind: &str, holds: bool, reason: &str, message: &str| {
        json!({"type": kind, "status": if holds { "True" } else { "False" }, "reason": reason, "message": message,
            "lastHeartbeatTime": now, "lastTransitionTime": now})
    };
    let pressure = |kind: &str, holds: bool, good: (&str, &str), bad: (&str, &str)| {
        let (reason, message) = if holds { bad } else { good };
        one(kind, holds, reason, message)
    };
    let ready = match fault {
        Some(Fault::NotReady) => one(
            "Ready",
            false,
            "KubeletNotReady",
            "simulated: the node is told to be not ready",
        ),
        _ => one("Ready", true, "KubeletReady", "kubelet is posting ready status"),
    };
    json!([
        pressure(
            "MemoryPressure",
            fault == Some(Fault::MemoryPressure),
            ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
            (
                "KubeletHasInsufficientMemory",
                "kubelet has insufficient memory available"
            ),
        ),
        pressure(
            "DiskPressure",
            fault == Some(Fault::DiskPressure),
            ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
            ("KubeletHasDiskPressure", "kubelet has disk pressure"),
        ),
        pressure(
            "PIDPressure",
            fault == Some(Fault::PidPressure),
            ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
            ("KubeletHasInsufficientPID", "kubelet has insufficient PID available"),
        ),
        ready,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

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
