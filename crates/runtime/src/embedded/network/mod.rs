//! The pod network of a node: each pod a veth pair, an address of the node's pod range, and routes; host ports and
//! masquerading in an nf_tables table. Over netlink, without any program.
//!
//! ```text
//!  pod: eth0 10.244.1.5/32 ── veth ── node: orl… 10.244.1.1/32      route 10.244.1.5/32 dev orl…
//!       default via 10.244.1.1
//! ```
//!
//! Links are routed, not bridged: pods share no Ethernet segment. Every packet between two pods of a node is thus forwarded
//! by the node as those between nodes are, so that services (whose replies must pass where their addresses were
//! translated) and network policies need neither `br_netfilter` nor connection tracking in bridges, which many kernels
//! lack; no pod can take another's address by ARP or NDP; and a pod that reaches itself through a service needs no
//! hairpin mode. The gateway's address is on each link, so pods see the same as on a bridge.
//!
//! What a sandbox has is written down before it is made (`sandboxes`, `addresses`): every call can be repeated, and
//! [`PodNetwork::retain`] finishes what a process that was killed had begun. A thread in the node's namespace does all the
//! work, one call after the other, but for the deletion of links, which the kernel takes tens of milliseconds for
//! (`reaper`); what must be done inside a pod's namespace is done by a thread that enters it and ends.

mod addresses;
mod error;
mod files;
mod host_ports;
mod names;
mod node;
mod overlay;
mod pod;
mod reaper;
mod rules;
mod sandboxes;
#[cfg(test)]
mod tests;
mod worker;

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use orlop_netlink::Namespace;
use tokio::sync::{mpsc, oneshot};

use crate::cri::messages::PortMapping;
pub use error::{PodNetworkError, Result};
use names::Names;
pub use names::{nodes_prefix, nodes_table, policy_table};
pub use overlay::{PeerNode, Transport};
use reaper::Reaper;
use worker::Worker;

/// Calls that wait for the worker.
const CALLS_MAX: usize = 256;

#[derive(Clone, Debug)]
pub struct Options {
    /// Where the network keeps who has which address; its own.
    pub state_dir: PathBuf,
    /// Names of links and tables carry the cluster and the node: two clusters on one machine keep apart.
    pub cluster: String,
    pub node: String,
    /// The ranges of all pods of the cluster. Packets to them keep the pod's address.
    pub cluster_ranges: Vec<IpNet>,
    /// None: that of the link that leads out of the node, less what the transport needs.
    pub mtu: Option<u32>,
    /// How pods of other nodes are reached.
    pub transport: Transport,
    /// The node's network namespace. None: that of the calling thread.
    pub namespace: Option<PathBuf>,
}

/// What [`PodNetwork::retain`] found and freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Freed {
    pub sandboxes: usize,
    pub addresses: usize,
    pub links: usize,
}

/// The pod network of one node. Cheap to clone; the worker ends with the last one.
#[derive(Clone)]
pub struct PodNetwork {
    calls: mpsc::Sender<Call>,
    reaper: Reaper,
}

type Call = Box<dyn FnOnce(&mut Worker) + Send>;

impl PodNetwork {
    /// Reads what an earlier process left. Pods can be attached once the node's ranges are set.
    pub fn open(options: Options) -> Result<PodNetwork> {
        let namespace = match &options.namespace {
            Some(path) => Namespace::open(path),
            None => Namespace::current(),
        };
        let namespace = namespace.map_err(error::kernel("open the node's network namespace"))?;
        let reaper = Reaper::start(namespace.clone(), Names::new(&options.cluster, &options.node).group)?;
        let (calls, mut waiting) = mpsc::channel::<Call>(CALLS_MAX);
        let (opened, result) = std::sync::mpsc::sync_channel(1);
        let body = move || {
            let worker = namespace
                .enter()
                .map_err(error::kernel("enter the node's network namespace"))
                .and_then(|()| Worker::open(options, namespace));
            let mut worker = match worker {
                Ok(worker) => worker,
                Err(error) => return drop(opened.send(Err(error))),
            };
            let _ = opened.send(Ok(()));
            while let Some(call) = waiting.blocking_recv() {
                call(&mut worker);
            }
        };
        let spawned = std::thread::Builder::new().name("pod-network".to_string()).spawn(body);
        spawned.map_err(error::kernel("start the pod network's worker"))?;
        result.recv().map_err(|_| PodNetworkError::Stopped)??;
        Ok(PodNetwork { calls, reaper })
    }

    /// The ranges that the node's pods have addresses of, one of each family at most: the kubelet learns them from the
    /// Node. Setting the same again is fine, and looks after the node's settings.
    pub async fn set_ranges(&self, ranges: Vec<IpNet>) -> Result<()> {
        self.call(move |worker| worker.set_ranges(&ranges)).await
    }

    /// Whether pods can be attached.
    pub async fn is_ready(&self) -> bool {
        self.call(|worker| Ok(worker.is_ready())).await.unwrap_or(false)
    }

    /// Gives a sandbox its link, addresses, routes and host ports; returns the addresses, in the order of the ranges. Doing
    /// it again is fine, and completes what was begun.
    pub async fn attach(&self, sandbox: &str, netns: &Path, ports: &[PortMapping]) -> Result<Vec<IpAddr>> {
        let (sandbox, netns, ports) = (sandbox.to_string(), netns.to_path_buf(), ports.to_vec());
        self.call(move |worker| worker.attach(&sandbox, &netns, &ports)).await
    }

    /// Takes back what a sandbox has. Doing it again is fine, and so is a namespace that is gone.
    pub async fn detach(&self, sandbox: &str) -> Result<()> {
        let sandbox = sandbox.to_string();
        let id = sandbox.clone();
        if let Some(link) = self.call(move |worker| worker.link_of(&id)).await? {
            self.reaper.delete(link).await?;
        }
        self.call(move |worker| worker.forget(&sandbox)).await
    }

    /// Frees what belongs to no sandbox of these: after a restart, with all sandboxes that there are.
    pub async fn retain(&self, live: &[String]) -> Result<Freed> {
        let live = live.to_vec();
        self.call(move |worker| worker.retain(&live)).await
    }

    /// The other nodes of the cluster: their pods become reachable, and those of nodes that are not named no longer are.
    pub async fn set_nodes(&self, nodes: Vec<PeerNode>) -> Result<()> {
        self.call(move |worker| worker.set_nodes(&nodes)).await
    }

    /// Removes every link, route, table and file of this network.
    pub async fn remove_all(&self) -> Result<()> {
        self.call(Worker::remove_all).await
    }

    async fn call<T: Send + 'static>(&self, work: impl FnOnce(&mut Worker) -> Result<T> + Send + 'static) -> Result<T> {
        let (answer, answered) = oneshot::channel();
        // Whoever gave up waiting does not undo what was done: every call can be repeated.
        let call: Call = Box::new(move |worker| drop(answer.send(work(worker))));
        self.calls.send(call).await.map_err(|_| PodNetworkError::Stopped)?;
        answered.await.map_err(|_| PodNetworkError::Stopped)?
    }
}
