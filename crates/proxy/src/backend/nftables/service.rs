//! One service port as chains, sets and elements.
//!
//! ```text
//!  services ─► @service-ips ──────────────► service-… / local-… ─► an endpoint by lot
//!           └► @service-nodeports ─► external-… ─┘
//! ```
//!
//! With session affinity the lot falls between chains, one for each endpoint, which remember the client. There the
//! chain of a service has a rule for each endpoint anyway, so the lot is drawn rule by rule and needs no map.
//!
//! Upstream: pkg/proxy/nftables (v1.36).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;

use super::base::{REJECT, family_of, local_detector};
use super::names::Names;
use super::ruleset::{
    Chain, Container, Data, Element, ElementKey, Name, Rule, Side, Statement, Value, Verdict, endpoint_value, ip_key,
    push_ip, push_port, push_protocol, service_key, slot_key,
};
use super::slots::Layout;
use crate::plan::{Endpoint, Refusal, ServicePort};
use crate::settings::Settings;

/// Which numbers the endpoints of a service port without session affinity have, for each policy that some of its
/// packets come under.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Layouts {
    pub cluster: Option<Layout>,
    pub local: Option<Layout>,
}

/// What a service port adds to its table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Piece {
    /// Those that others lead to first.
    pub chains: Vec<Chain>,
    /// Affinity sets.
    pub sets: Vec<Name>,
    /// By number: this service port's alone.
    pub slots: Vec<Element>,
    /// Some of them (cluster addresses, hairpin connections) other service ports may want as well.
    pub elements: Vec<Element>,
}

/// The endpoints that the chain of policy Cluster has. Empty: there is no such chain.
pub(super) fn cluster_endpoints(port: &ServicePort) -> &[Endpoint] {
    // Packets of this node go to any endpoint, even where those from outside may not.
    if port.uses_cluster() || port.is_external() {
        &port.cluster
    } else {
        &[]
    }
}

/// The endpoints that the chain of policy Local has.
pub(super) fn local_endpoints(port: &ServicePort) -> &[Endpoint] {
    if port.uses_local() { &port.local } else { &[] }
}

pub(super) fn render(
    settings: &Settings,
    node_address: Option<IpAddr>,
    port: &ServicePort,
    names: &Names,
    layouts: &Layouts,
) -> Piece {
    let mut piece = Piece::default();
    let policies = [
        (names.service(), cluster_endpoints(port), &layouts.cluster),
        (names.local(), local_endpoints(port), &layouts.local),
    ];
    for (name, endpoints, layout) in policies {
        match (layout, port.affinity) {
            _ if endpoints.is_empty() => {}
            (_, Some(seconds)) => add_sticky(&mut piece, port, names, name, endpoints, seconds),
            (Some(layout), None) => add_policy(&mut piece, port, name, layout),
            (None, None) => {}
        }
    }
    let outside = (port.is_external() && port.has_endpoints).then(|| {
        let chain = external(settings, port, names);
        let name = Arc::clone(&chain.name);
        piece.chains.push(chain);
        name
    });
    let ranges: Vec<IpNet> = own_ranges(port);
    let firewall = (!port.load_balancer_ips.is_empty() && !ranges.is_empty()).then(|| {
        let chain = firewall(port, node_address, names, &ranges);
        let name = Arc::clone(&chain.name);
        piece.chains.push(chain);
        name
    });
    add_internal(&mut piece, port, names);
    add_external(&mut piece, port, outside.as_ref(), firewall.as_ref());
    add_hairpin(&mut piece, port);
    // An address may be both an external and a load balancer's one.
    piece.elements.sort_by(|(a, _), (b, _)| a.cmp(b));
    piece.elements.dedup_by(|(b, _), (a, _)| a == b);
    piece
}

fn own_ranges(port: &ServicePort) -> Vec<IpNet> {
    let family = port.key.family;
    let own = port.source_ranges.iter().filter(|range| family_of(range) == family);
    own.map(IpNet::trunc).collect()
}

/// A chain that sends packets to one of these endpoints.
fn add_policy(piece: &mut Piece, port: &ServicePort, chain: Name, layout: &Layout) {
    let (range, count) = (layout.range, layout.order.len() as u32);
    let rule = Rule::new([Statement::Protocol(port.protocol), Statement::DnatAny { range, count }]);
    piece.chains.push(Chain::new(chain, vec![rule]));
    piece.slots.extend(layout.order.iter().enumerate().map(|(i, address)| {
        let place = ElementKey {
            container: Container::ServiceEndpoints,
            key: slot_key(range.first + i as u32),
        };
        let data = Data::Endpoint(endpoint_value(*address));
        (place, Value { data, comment: None })
    }));
}

/// The same with session affinity: one that is remembered, or else one by lot.
fn add_sticky(piece: &mut Piece, port: &ServicePort, names: &Names, chain: Name, endpoints: &[Endpoint], seconds: u32) {
    let (mut remembered, mut drawn) = (vec![], vec![]);
    for (i, endpoint) in endpoints.iter().enumerate() {
        let (name, set) = names.endpoint(endpoint.address);
        let goto = Statement::Verdict(Verdict::Goto(Arc::clone(&name)));
        remembered.push(Rule::new([Statement::Remembered(Arc::clone(&set)), goto.clone()]));
        drawn.push(Rule::new(match endpoints.len() - i {
            1 => vec![goto],
            left => vec![Statement::OneIn(left as u32), goto],
        }));
        // An endpoint under both policies has one chain.
        if !piece.sets.contains(&set) {
            piece
                .chains
                .push(endpoint_chain(port, name, &set, seconds, endpoint.address));
            piece.sets.push(set);
        }
    }
    remembered.append(&mut drawn);
    piece.chains.push(Chain::new(chain, remembered));
}

fn endpoint_chain(port: &ServicePort, name: Name, set: &Name, seconds: u32, address: SocketAddr) -> Chain {
    let remember = Statement::Remember {
        set: Arc::clone(set),
        // Zero is for ever to the kernel.
        seconds: seconds.max(1),
    };
    let rules = vec![
        Rule::new([remember]),
        Rule::new([Statement::Protocol(port.protocol), Statement::Dnat(address)]),
    ];
    Chain::new(name, rules)
}

/// Where packets to node ports, external and load balancer addresses come in.
fn external(settings: &Settings, port: &ServicePort, names: &Names) -> Chain {
    let mark = Statement::Mark(settings.masquerade_mark());
    let goto = |name: Name| Statement::Verdict(Verdict::Goto(name));
    let mut rules = vec![];
    let policy = if port.external_local {
        // Upstream: packets of this node's pods and processes are under no policy, as if they had gone out to a
        // load balancer and come in again.
        let to_any = (!cluster_endpoints(port).is_empty()).then(|| goto(names.service()));
        if let (Some(local_pod), Some(to_any)) = (local_detector(settings, port.key.family, false), &to_any) {
            rules.push(Rule::new([local_pod, to_any.clone()]).saying("short-circuit pod traffic"));
        }
        let own = Statement::Local(Side::Source);
        rules.push(Rule::new([own.clone(), mark]).saying("masquerade local traffic"));
        if let Some(to_any) = to_any {
            rules.push(Rule::new([own, to_any]).saying("short-circuit local traffic"));
        }
        (!local_endpoints(port).is_empty()).then(|| names.local())
    } else {
        rules.push(Rule::new([mark]).saying("masquerade"));
        (!cluster_endpoints(port).is_empty()).then(|| names.service())
    };
    rules.extend(policy.map(|name| Rule::new([goto(name)])));
    Chain::new(names.external(), rules)
}

/// Drops what comes by a load balancer address from elsewhere.
fn firewall(port: &ServicePort, node_address: Option<IpAddr>, names: &Names, ranges: &[IpNet]) -> Chain {
    let from_node = node_address.is_some_and(|ip| ranges.iter().any(|range| range.contains(&ip)));
    // The address is often this node's own too, and then its packets to the address come from the address.
    let also = if from_node { &port.load_balancer_ips[..] } else { &[] };
    let allowed = ranges.iter().copied().chain(also.iter().map(|ip| IpNet::from(*ip)));
    let mut rules: Vec<Rule> = allowed
        .map(|range| {
            let within = Statement::Within {
                side: Side::Source,
                range,
                not: false,
            };
            Rule::new([within, Statement::Verdict(Verdict::Return)])
        })
        .collect();
    rules.push(Rule::new([Statement::Verdict(Verdict::Drop)]));
    Chain::new(names.firewall(), rules)
}

fn refusal(refusal: Refusal, port: &ServicePort) -> Value {
    let verdict = match refusal {
        Refusal::Reject => Verdict::Goto(REJECT.into()),
        Refusal::Drop => Verdict::Drop,
    };
    Value {
        data: Data::Verdict(verdict),
        comment: Some(port.key.to_string().into()),
    }
}

fn add_internal(piece: &mut Piece, port: &ServicePort, names: &Names) {
    let place = ElementKey {
        container: Container::ClusterIps,
        key: ip_key(port.cluster_ip),
    };
    piece.elements.push((place, Value::NONE));
    let (container, value) = match port.internal_refusal() {
        Some(how) => (Container::NoEndpointServices, refusal(how, port)),
        None if port.internal_local => (Container::ServiceIps, Value::goto(&names.local())),
        None => (Container::ServiceIps, Value::goto(&names.service())),
    };
    let key = service_key(Some(port.cluster_ip), port.protocol, port.port);
    piece.elements.push((ElementKey { container, key }, value));
}

fn add_external(piece: &mut Piece, port: &ServicePort, outside: Option<&Name>, firewall: Option<&Name>) {
    let mut add = |container, ip, number, value| {
        let key = service_key(ip, port.protocol, number);
        piece.elements.push((ElementKey { container, key }, value));
    };
    let refused = port.external_refusal().map(|how| refusal(how, port));
    for ip in port.external_ips.iter().chain(&port.load_balancer_ips) {
        if let Some(outside) = outside {
            add(Container::ServiceIps, Some(*ip), port.port, Value::goto(outside));
        }
        if let Some(refused) = &refused {
            add(Container::NoEndpointServices, Some(*ip), port.port, refused.clone());
        }
    }
    if let Some(firewall) = firewall {
        for ip in &port.load_balancer_ips {
            add(Container::FirewallIps, Some(*ip), port.port, Value::goto(firewall));
        }
    }
    // Source ranges are not for node ports, for better or worse.
    if let Some(node_port) = port.node_port {
        if let Some(outside) = outside {
            add(Container::ServiceNodePorts, None, node_port, Value::goto(outside));
        }
        if let Some(refused) = refused {
            add(Container::NoEndpointNodePorts, None, node_port, refused);
        }
    }
}

/// A pod that gets its own packet back must see another sender than itself.
fn add_hairpin(piece: &mut Piece, port: &ServicePort) {
    for endpoint in port.endpoints().iter().filter(|endpoint| endpoint.is_local) {
        let mut key = ip_key(endpoint.address.ip());
        push_ip(&mut key, endpoint.address.ip());
        push_protocol(&mut key, port.protocol);
        push_port(&mut key, endpoint.address.port());
        let container = Container::Hairpin;
        piece.elements.push((ElementKey { container, key }, Value::NONE));
    }
}
