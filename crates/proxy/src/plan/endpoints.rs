//! Which endpoints a service port's packets go to from this node.
//!
//! Ready ones; if there are none, those that still serve while they terminate. Hints keep packets in the zone or on the
//! node only if every ready endpoint has one and one of them is for us. Upstream: pkg/proxy/topology.go (v1.36).

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::facts::{EndpointFacts, PortFacts, SliceFacts};
use super::{Endpoint, Family, Node};

/// The endpoints of one service port, each address once, in order.
pub(super) fn of_port<'a>(
    slices: impl Iterator<Item = &'a SliceFacts>,
    family: Family,
    port: &PortFacts,
) -> BTreeMap<SocketAddr, &'a EndpointFacts> {
    let mut found = BTreeMap::new();
    for slice in slices.filter(|slice| slice.family == family) {
        let ports = slice.ports.iter();
        for target in ports.filter(|p| p.name == port.name && p.protocol == port.protocol) {
            for endpoint in &slice.endpoints {
                let address = SocketAddr::new(endpoint.ip, target.port);
                // An address that is in two slices has moved between them: the one that isn't leaving counts.
                if !endpoint.terminating || !found.contains_key(&address) {
                    found.insert(address, endpoint);
                }
            }
        }
    }
    found
}

/// What packets are split over, by policy.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Chosen {
    pub cluster: Vec<Endpoint>,
    pub local: Vec<Endpoint>,
    pub has_endpoints: bool,
}

pub(super) fn choose(
    endpoints: &BTreeMap<SocketAddr, &EndpointFacts>,
    node: &Node,
    uses_cluster: bool,
    uses_local: bool,
) -> Chosen {
    let take = |wanted: &dyn Fn(&EndpointFacts) -> bool| -> Vec<Endpoint> {
        let taken = endpoints.iter().filter(|(_, endpoint)| wanted(endpoint));
        taken
            .map(|(address, endpoint)| Endpoint {
                address: *address,
                is_local: is_local(endpoint, node),
            })
            .collect()
    };
    let or_lingering = |ready: Vec<Endpoint>, wanted: &dyn Fn(&EndpointFacts) -> bool| match ready.is_empty() {
        true => take(&|e| e.lingers && wanted(e)),
        false => ready,
    };
    let mut chosen = Chosen {
        has_endpoints: endpoints.values().any(|e| e.ready || e.lingers),
        ..Chosen::default()
    };
    if uses_cluster {
        let near = nearness(endpoints, node);
        let ready = take(&|e| e.ready && near.takes(e, node));
        chosen.cluster = or_lingering(ready, &|_| true);
    }
    if uses_local {
        let ready = take(&|e| e.ready && is_local(e, node));
        chosen.local = or_lingering(ready, &|e| is_local(e, node));
    }
    chosen
}

pub(super) fn is_local(endpoint: &EndpointFacts, node: &Node) -> bool {
    !node.name.is_empty() && *endpoint.node == *node.name
}

/// How near endpoints must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nearness {
    Anywhere,
    Zone,
    Node,
}

impl Nearness {
    fn takes(self, endpoint: &EndpointFacts, node: &Node) -> bool {
        match self {
            Nearness::Anywhere => true,
            Nearness::Zone => is_for_zone(endpoint, node),
            Nearness::Node => is_for_node(endpoint, node),
        }
    }
}

fn is_for_zone(endpoint: &EndpointFacts, node: &Node) -> bool {
    let zone = node.zone.as_deref();
    endpoint.zones.iter().any(|hint| Some(&**hint) == zone)
}

fn is_for_node(endpoint: &EndpointFacts, node: &Node) -> bool {
    endpoint.nodes.iter().any(|hint| **hint == *node.name)
}

fn nearness(endpoints: &BTreeMap<SocketAddr, &EndpointFacts>, node: &Node) -> Nearness {
    let ready = || endpoints.values().filter(|endpoint| endpoint.ready);
    let holds = |has_hint: fn(&EndpointFacts) -> bool, is_ours: fn(&EndpointFacts, &Node) -> bool| {
        ready().all(|e| has_hint(e)) && ready().any(|e| is_ours(e, node))
    };
    if holds(|e| !e.nodes.is_empty(), is_for_node) {
        Nearness::Node
    } else if holds(|e| !e.zones.is_empty(), is_for_zone) {
        Nearness::Zone
    } else {
        Nearness::Anywhere
    }
}
