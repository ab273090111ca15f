//! Connection tracking: UDP flows that lead to endpoints that are gone, and the kernel's limits.
//!
//! The kernel decides once where a flow goes, and a UDP flow never ends as long as its client goes on sending. So when
//! the endpoint of a flow is gone, or a service without endpoints (whose packets went to nobody) has got one, the flow
//! has to be forgotten for its next packet to be looked at again.
//!
//! Endpoints that serve, if not for new flows (other policies or zones, while they terminate), keep theirs: as TCP
//! connections do. A service that has no endpoints keeps its flows too; there is nowhere else to go.
//!
//! Upstream: pkg/proxy/conntrack (v1.36).

mod sysctls;

use orlop_netlink::conntrack::{Conntrack, Flow};
pub use sysctls::{Sysctl, apply, cores, sysctls};

use std::io;
use std::net::{IpAddr, SocketAddr};

use rustc_hash::{FxHashMap, FxHashSet};

use crate::plan::{Change, Family, Plan, Protocol, ServicePort};

/// Deletes flows to service ports that may have changed and whose endpoints don't serve any more. `serving` says which
/// endpoints of a port do. How many were deleted; without a UDP service among them nothing is even looked at.
pub fn clean_stale(
    plan: &Plan,
    change: &Change,
    serving: impl Fn(&ServicePort) -> Vec<SocketAddr>,
) -> io::Result<DeletedFlows> {
    let expected = ServiceFlows::new(changed(plan, change), serving);
    let mut deleted = DeletedFlows::default();
    if expected.is_empty() {
        return Ok(deleted);
    }
    let mut conntrack = Conntrack::open()?;
    for (family, count) in [(Family::V4, &mut deleted.v4), (Family::V6, &mut deleted.v6)] {
        if expected.families.contains(&family) {
            let stale = conntrack.flows(family, Protocol::Udp, |flow| expected.is_stale(flow))?;
            *count = conntrack.delete(family, &stale)?;
        }
    }
    Ok(deleted)
}

/// How many flows were deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeletedFlows {
    pub v4: usize,
    pub v6: usize,
}

fn changed<'a>(plan: &'a Plan, change: &'a Change) -> Box<dyn Iterator<Item = &'a ServicePort> + 'a> {
    match change {
        Change::All => Box::new(plan.ports.values().map(|port| &**port)),
        Change::Keys(keys) => Box::new(keys.iter().filter_map(|key| plan.ports.get(key)).map(|port| &**port)),
    }
}

/// Where flows to UDP services may lead. Pure.
#[derive(Debug, Default)]
pub struct ServiceFlows {
    families: FxHashSet<Family>,
    /// By index: the endpoints of a service port.
    endpoints: Vec<FxHashSet<SocketAddr>>,
    addresses: FxHashMap<SocketAddr, usize>,
    node_ports: FxHashMap<(Family, u16), usize>,
}

impl ServiceFlows {
    pub fn new<'a>(
        ports: impl Iterator<Item = &'a ServicePort>,
        serving: impl Fn(&ServicePort) -> Vec<SocketAddr>,
    ) -> ServiceFlows {
        let mut wanted = ServiceFlows::default();
        for port in ports.filter(|port| port.protocol == Protocol::Udp) {
            let endpoints: FxHashSet<SocketAddr> = serving(port).into_iter().collect();
            if endpoints.is_empty() {
                continue;
            }
            let (index, family) = (wanted.endpoints.len(), port.key.family);
            wanted.endpoints.push(endpoints);
            wanted.families.insert(family);
            let outside = port.external_ips.iter().chain(&port.load_balancer_ips);
            let ips = std::iter::once(&port.cluster_ip).chain(outside);
            wanted
                .addresses
                .extend(ips.map(|ip: &IpAddr| (SocketAddr::new(*ip, port.port), index)));
            wanted
                .node_ports
                .extend(port.node_port.map(|number| ((family, number), index)));
        }
        wanted
    }

    pub fn is_empty(&self) -> bool {
        self.endpoints.is_empty()
    }

    /// It goes to a service, and not to an endpoint of it.
    pub fn is_stale(&self, flow: &Flow) -> bool {
        let family = Family::of(flow.destination.ip());
        let by_address = self.addresses.get(&flow.destination);
        let by_node_port = self.node_ports.get(&(family, flow.destination.port()));
        [by_address, by_node_port]
            .into_iter()
            .flatten()
            .any(|index| !self.endpoints[*index].contains(&flow.answered_by))
    }
}

#[cfg(test)]
mod tests;
