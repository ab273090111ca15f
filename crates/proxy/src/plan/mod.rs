//! Where packets to a service go on this node, whatever the back end.
//!
//! Each service port stands on its own, once for each address family, so that a change costs what changed. Two services
//! that claim the same address and port (external and load balancer addresses, node ports) are told apart here: the
//! older one has it, the other is planned without it.

mod endpoints;
mod facts;
mod planner;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;

pub use orlop_netlink::{Family, Protocol};

pub use facts::{HEADLESS, PROXY_NAME};
pub use planner::{HealthCheck, PendingChanges, Planner, ServiceName};

/// A port of a service, in one family.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub family: Family,
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    /// Empty where a service has one port and gives it no name.
    pub port: Arc<str>,
}

/// `namespace/name:port`, or `namespace/name` where the port has no name: as in upstream's comments and hashes.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)?;
        match &*self.port {
            "" => Ok(()),
            port => write!(f, ":{port}"),
        }
    }
}

/// Where packets may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint {
    pub address: SocketAddr,
    /// On this node.
    pub is_local: bool,
}

/// One service port in one family, with all that decides about its packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    pub key: Key,
    pub protocol: Protocol,
    pub cluster_ip: IpAddr,
    pub port: u16,
    pub node_port: Option<u16>,
    pub external_ips: Vec<IpAddr>,
    /// Ingress addresses of a load balancer whose packets arrive with that destination (`ipMode: VIP`).
    pub load_balancer_ips: Vec<IpAddr>,
    /// Who may come by a load balancer address. Empty: anyone.
    pub source_ranges: Vec<IpNet>,
    /// Session affinity by client address, for this many seconds.
    pub affinity: Option<u32>,
    /// `internalTrafficPolicy: Local`
    pub internal_local: bool,
    /// `externalTrafficPolicy: Local`. Only for services that are reachable from outside.
    pub external_local: bool,
    /// Where load balancers ask whether this node has endpoints.
    pub health_check_node_port: Option<u16>,
    /// Where packets go under policy Cluster, sorted; empty if none ever do. Those on this node may be in `local` too.
    pub cluster: Vec<Endpoint>,
    /// Where packets go under policy Local, sorted; empty if none ever do.
    pub local: Vec<Endpoint>,
    /// There is an endpoint somewhere that takes packets, if not on this node: a policy that finds none here drops,
    /// where otherwise it rejects.
    pub has_endpoints: bool,
}

/// What to do with packets for which there is no endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The service has no endpoints: said with an ICMP message.
    Reject,
    /// It has some, but none on this node: dropped, since another node is meant to answer.
    Drop,
}

impl ServicePort {
    /// Reachable at its cluster address alone, with nowhere to go yet.
    pub fn bare(key: Key, protocol: Protocol, cluster_ip: IpAddr, port: u16) -> ServicePort {
        ServicePort {
            key,
            protocol,
            cluster_ip,
            port,
            node_port: None,
            external_ips: vec![],
            load_balancer_ips: vec![],
            source_ranges: vec![],
            affinity: None,
            internal_local: false,
            external_local: false,
            health_check_node_port: None,
            cluster: vec![],
            local: vec![],
            has_endpoints: false,
        }
    }

    /// Reachable from outside the cluster.
    pub fn is_external(&self) -> bool {
        self.node_port.is_some() || !self.external_ips.is_empty() || !self.load_balancer_ips.is_empty()
    }

    /// Some packets go to `cluster`: those of this node's pods and processes to outer addresses do under any policy.
    pub fn uses_cluster(&self) -> bool {
        !self.internal_local || self.is_external()
    }

    /// Some packets go to `local`.
    pub fn uses_local(&self) -> bool {
        self.internal_local || (self.is_external() && self.external_local)
    }

    /// For packets to the cluster address.
    pub fn internal_endpoints(&self) -> &[Endpoint] {
        if self.internal_local {
            &self.local
        } else {
            &self.cluster
        }
    }

    /// For packets from outside the cluster, to node ports, external and load balancer addresses. Packets of this
    /// node's own pods and processes to those addresses go to `cluster` whatever the policy.
    pub fn external_endpoints(&self) -> &[Endpoint] {
        if self.external_local {
            &self.local
        } else {
            &self.cluster
        }
    }

    /// How packets to the cluster address are refused; none if they go somewhere.
    pub fn internal_refusal(&self) -> Option<Refusal> {
        refusal(self.internal_endpoints(), self.has_endpoints)
    }

    /// How packets from outside are refused; none if they go somewhere.
    pub fn external_refusal(&self) -> Option<Refusal> {
        refusal(self.external_endpoints(), self.has_endpoints)
    }

    /// All endpoints that some packets go to, each once, sorted.
    pub fn endpoints(&self) -> Vec<Endpoint> {
        let mut all = Vec::with_capacity(self.cluster.len() + self.local.len());
        if self.uses_cluster() {
            all.extend_from_slice(&self.cluster);
        }
        if self.uses_local() {
            all.extend_from_slice(&self.local);
        }
        all.sort_unstable();
        all.dedup();
        all
    }
}

fn refusal(endpoints: &[Endpoint], has_endpoints: bool) -> Option<Refusal> {
    match (endpoints.is_empty(), has_endpoints) {
        (false, _) => None,
        (true, true) => Some(Refusal::Drop),
        (true, false) => Some(Refusal::Reject),
    }
}

/// What a proxy knows of its node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    /// The node's own addresses, the first of each family first.
    pub addresses: Vec<IpAddr>,
    /// `topology.kubernetes.io/zone`
    pub zone: Option<String>,
    pub pod_ranges: Vec<IpNet>,
}

impl Node {
    pub fn address(&self, family: Family) -> Option<IpAddr> {
        self.addresses.iter().copied().find(|ip| Family::of(*ip) == family)
    }
}

/// Everything a back end applies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub ports: BTreeMap<Key, Arc<ServicePort>>,
    pub node: Node,
}

/// Which service ports a sync must look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    All,
    /// Sorted, each once. A key that is not in the plan is gone.
    Keys(Vec<Key>),
}
