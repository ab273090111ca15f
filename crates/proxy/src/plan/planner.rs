//! Objects in, plan out: a change costs what it changes.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::facts::{self, PortFacts, ServiceFacts, SliceFacts};
use super::{Change, Family, Key, Node, Plan, Protocol, ServicePort, endpoints};
use crate::objects::{EndpointSlice, Service};

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceName {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl ServiceName {
    pub fn new(namespace: &str, name: &str) -> ServiceName {
        ServiceName {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

/// What a service's health check node port reports to load balancers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    pub port: u16,
    /// Ready endpoints on this node.
    pub local_endpoints: usize,
}

/// What is new since the last time.
#[derive(Debug, PartialEq, Eq)]
pub struct PendingChanges {
    pub change: Change,
    /// When the changes of endpoints that are now planned happened.
    pub triggered: Vec<jiff::Timestamp>,
}

/// What is known of a service and the slices that speak for it; either may come first.
#[derive(Debug, Default)]
struct Known {
    facts: Option<ServiceFacts>,
    slices: BTreeMap<Box<str>, SliceFacts>,
    /// The keys in the plan.
    keys: Vec<Key>,
    claims: Vec<(Claim, Rank)>,
}

/// Something that only one service port can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Claim {
    Address(IpAddr, u16, Protocol),
    NodePort(u16, Protocol),
}

/// Who has the better claim. A cluster address is nobody else's, whatever they write into their external addresses;
/// otherwise the older service has it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    is_external: bool,
    created: Option<jiff::Timestamp>,
    service: ServiceName,
    port: Arc<str>,
}

#[derive(Default)]
pub struct Planner {
    plan: Plan,
    services: FxHashMap<ServiceName, Known>,
    /// Which service a slice spoke for when it was last seen.
    slices: FxHashMap<ServiceName, ServiceName>,
    claims: FxHashMap<Claim, BTreeSet<Rank>>,
    health: BTreeMap<ServiceName, HealthCheck>,
    stale: BTreeSet<ServiceName>,
    all: bool,
    triggered: Vec<jiff::Timestamp>,
}

/// Changes of endpoints whose age is reported in one sync.
const TRIGGERS_MAX: usize = 10_000;

impl Planner {
    pub fn new(node: Node) -> Planner {
        Planner {
            plan: Plan {
                node,
                ..Plan::default()
            },
            all: true,
            ..Planner::default()
        }
    }

    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Endpoints of a service port that take packets of flows under way, if perhaps not of new ones from this node.
    pub fn serving(&self, key: &Key) -> Vec<SocketAddr> {
        let name = ServiceName {
            namespace: key.namespace.clone(),
            name: key.name.clone(),
        };
        let Some(known) = self.services.get(&name) else {
            return vec![];
        };
        let mut ports = known.facts.iter().flat_map(|facts| &facts.ports);
        let Some(port) = ports.find(|port| port.name == key.port) else {
            return vec![];
        };
        let found = endpoints::of_port(known.slices.values(), key.family, port);
        let serving = found
            .into_iter()
            .filter(|(_, endpoint)| endpoint.ready || endpoint.lingers);
        serving.map(|(address, _)| address).collect()
    }

    pub fn health_checks(&self) -> &BTreeMap<ServiceName, HealthCheck> {
        &self.health
    }

    /// The node is another than it was: everything is looked at again.
    pub fn set_node(&mut self, node: Node) {
        if self.plan.node != node {
            self.plan.node = node;
            self.all = true;
            self.stale.extend(self.services.keys().cloned());
        }
    }

    pub fn apply_service(&mut self, service: &Service) {
        let name = ServiceName::new(&service.metadata.namespace, &service.metadata.name);
        let facts = facts::service(service);
        if facts.is_none() && !self.services.contains_key(&name) {
            return;
        }
        let known = self.services.entry(name.clone()).or_default();
        if known.facts != facts {
            known.facts = facts;
            self.stale.insert(name);
        }
    }

    pub fn forget_service(&mut self, namespace: &str, name: &str) {
        let name = ServiceName::new(namespace, name);
        if let Some(known) = self.services.get_mut(&name) {
            known.facts = None;
            self.stale.insert(name);
        }
    }

    /// The whole state: what is not in it is gone.
    pub fn replace_services(&mut self, services: &[Service]) {
        let named = |s: &Service| ServiceName::new(&s.metadata.namespace, &s.metadata.name);
        let there: HashSet<ServiceName> = services.iter().map(named).collect();
        let gone: Vec<ServiceName> = self.services.keys().filter(|n| !there.contains(n)).cloned().collect();
        for name in gone {
            self.forget_service(&name.namespace, &name.name);
        }
        services.iter().for_each(|service| self.apply_service(service));
    }

    pub fn apply_slice(&mut self, slice: &EndpointSlice) {
        let id = ServiceName::new(&slice.metadata.namespace, &slice.metadata.name);
        let Some(service) = slice.service() else {
            tracing::warn!(namespace = %id.namespace, name = %id.name, "ignoring endpoint slice without a service name");
            self.forget_slice(&id.namespace, &id.name);
            return;
        };
        let service = ServiceName::new(&id.namespace, service);
        if self.slices.get(&id).is_some_and(|before| *before != service) {
            self.forget_slice(&id.namespace, &id.name);
        }
        let Some(facts) = facts::slice(slice) else { return };
        let known = self.services.entry(service.clone()).or_default();
        if known.slices.get(&*id.name) == Some(&facts) {
            return;
        }
        known.slices.insert((*id.name).into(), facts);
        if self.triggered.len() < TRIGGERS_MAX {
            self.triggered.extend(facts::triggered(slice));
        }
        self.slices.insert(id, service.clone());
        self.stale.insert(service);
    }

    pub fn forget_slice(&mut self, namespace: &str, name: &str) {
        let id = ServiceName::new(namespace, name);
        let Some(service) = self.slices.remove(&id) else { return };
        if let Some(known) = self.services.get_mut(&service)
            && known.slices.remove(name).is_some()
        {
            self.stale.insert(service);
        }
    }

    pub fn replace_slices(&mut self, slices: &[EndpointSlice]) {
        let named = |s: &EndpointSlice| ServiceName::new(&s.metadata.namespace, &s.metadata.name);
        let there: HashSet<ServiceName> = slices.iter().map(named).collect();
        let gone: Vec<ServiceName> = self.slices.keys().filter(|n| !there.contains(n)).cloned().collect();
        for id in gone {
            self.forget_slice(&id.namespace, &id.name);
        }
        slices.iter().for_each(|slice| self.apply_slice(slice));
    }

    /// Nothing has changed since the last `take`.
    pub fn is_settled(&self) -> bool {
        self.stale.is_empty() && !self.all
    }

    /// Brings the plan up to date, and says what is new in it.
    pub fn take_changes(&mut self) -> PendingChanges {
        let mut changed = BTreeSet::new();
        // Claims first: whoever loses or wins an address by them is planned anew too.
        let stale = std::mem::take(&mut self.stale);
        let mut again = stale.clone();
        for name in &stale {
            self.claim(name, &mut again);
        }
        for name in &again {
            self.replan(name, &mut changed);
        }
        let change = match std::mem::take(&mut self.all) {
            true => Change::All,
            false => Change::Keys(changed.into_iter().collect()),
        };
        PendingChanges {
            change,
            triggered: std::mem::take(&mut self.triggered),
        }
    }

    /// Puts the claims of a service in place of those it had. `again` gets those who had or now have one of them.
    fn claim(&mut self, name: &ServiceName, again: &mut BTreeSet<ServiceName>) {
        let Some(known) = self.services.get_mut(name) else {
            return;
        };
        let claims = known.facts.as_ref().map_or_else(Vec::new, |facts| claims(name, facts));
        if claims == known.claims {
            return;
        }
        let before = std::mem::replace(&mut known.claims, claims);
        for (claim, rank) in before {
            if let Some(ranks) = self.claims.get_mut(&claim) {
                ranks.remove(&rank);
                again.extend(ranks.first().map(|first| first.service.clone()));
                if ranks.is_empty() {
                    self.claims.remove(&claim);
                }
            }
        }
        for (claim, rank) in &self.services[name].claims {
            let ranks = self.claims.entry(*claim).or_default();
            again.extend(ranks.first().map(|first| first.service.clone()));
            ranks.insert(rank.clone());
        }
    }

    fn replan(&mut self, name: &ServiceName, changed: &mut BTreeSet<Key>) {
        let Some(known) = self.services.get(name) else { return };
        let mut ports: Vec<ServicePort> = vec![];
        if let Some(facts) = &known.facts {
            for cluster_ip in &facts.cluster_ips {
                let port = |port| self.port(name, known, facts, *cluster_ip, port);
                ports.extend(facts.ports.iter().map(port));
            }
        }
        let health = known.facts.as_ref().and_then(|facts| self.health_check(known, facts));
        let keys: Vec<Key> = ports.iter().map(|port| port.key.clone()).collect();
        let known = self.services.get_mut(name).expect("it was there above");
        for gone in known.keys.iter().filter(|key| !keys.contains(key)) {
            self.plan.ports.remove(gone);
            changed.insert(gone.clone());
        }
        known.keys = keys;
        if known.facts.is_none() && known.slices.is_empty() {
            self.services.remove(name);
        }
        for port in ports {
            let is_new = self.plan.ports.get(&port.key).is_none_or(|before| **before != port);
            // An endpoint that gets no new flows may have ended now, and with it the UDP flows under way.
            if is_new || port.protocol == Protocol::Udp {
                changed.insert(port.key.clone());
            }
            if is_new {
                self.plan.ports.insert(port.key.clone(), Arc::new(port));
            }
        }
        match health {
            Some(health) => self.health.insert(name.clone(), health),
            None => self.health.remove(name),
        };
    }

    fn port(
        &self,
        name: &ServiceName,
        known: &Known,
        facts: &ServiceFacts,
        cluster_ip: IpAddr,
        port: &PortFacts,
    ) -> ServicePort {
        let family = Family::of(cluster_ip);
        let mine = |claim: Claim, is_external: bool| self.has(claim, &rank(name, facts, port, is_external));
        let addresses = |list: &[IpAddr]| -> Vec<IpAddr> {
            let mut kept: Vec<IpAddr> = list.iter().copied().filter(|ip| Family::of(*ip) == family).collect();
            kept.retain(|ip| mine(Claim::Address(*ip, port.port, port.protocol), true));
            kept.sort_unstable();
            kept.dedup();
            kept
        };
        let external_ips = addresses(&facts.external_ips);
        let mut load_balancer_ips = addresses(&facts.load_balancer_ips);
        load_balancer_ips.retain(|ip| !external_ips.contains(ip));
        let ranges = facts.source_ranges.iter().copied();
        let mut source_ranges: Vec<_> = ranges.filter(|r| Family::of(r.addr()) == family).collect();
        if source_ranges.iter().any(|range| range.prefix_len() == 0) {
            source_ranges.clear();
        }
        let mut planned = ServicePort {
            key: Key {
                family,
                namespace: name.namespace.clone(),
                name: name.name.clone(),
                port: port.name.clone(),
            },
            protocol: port.protocol,
            cluster_ip,
            port: port.port,
            node_port: port
                .node_port
                .filter(|p| mine(Claim::NodePort(*p, port.protocol), true)),
            external_ips,
            load_balancer_ips,
            source_ranges,
            affinity: facts.affinity,
            internal_local: facts.internal_local,
            external_local: facts.external_local,
            health_check_node_port: facts.health_check_node_port,
            cluster: vec![],
            local: vec![],
            has_endpoints: false,
        };
        let found = endpoints::of_port(known.slices.values(), family, port);
        let (cluster, local) = (planned.uses_cluster(), planned.uses_local());
        let chosen = endpoints::choose(&found, &self.plan.node, cluster, local);
        planned.cluster = chosen.cluster;
        planned.local = chosen.local;
        planned.has_endpoints = chosen.has_endpoints;
        planned
    }

    fn has(&self, claim: Claim, rank: &Rank) -> bool {
        let first = self.claims.get(&claim).and_then(|ranks| ranks.first());
        first.is_none_or(|first| first.service == rank.service && first.port == rank.port)
    }

    fn health_check(&self, known: &Known, facts: &ServiceFacts) -> Option<HealthCheck> {
        let endpoints = known.slices.values().flat_map(|slice| &slice.endpoints);
        let here = endpoints.filter(|e| e.ready && endpoints::is_local(e, &self.plan.node));
        let addresses: HashSet<IpAddr> = here.map(|endpoint| endpoint.ip).collect();
        Some(HealthCheck {
            port: facts.health_check_node_port?,
            local_endpoints: addresses.len(),
        })
    }
}

fn rank(name: &ServiceName, facts: &ServiceFacts, port: &PortFacts, is_external: bool) -> Rank {
    Rank {
        is_external,
        created: facts.created,
        service: name.clone(),
        port: port.name.clone(),
    }
}

fn claims(name: &ServiceName, facts: &ServiceFacts) -> Vec<(Claim, Rank)> {
    let mut claims = vec![];
    for port in &facts.ports {
        let address = |ip: &IpAddr| Claim::Address(*ip, port.port, port.protocol);
        let outer = facts.external_ips.iter().chain(&facts.load_balancer_ips).map(address);
        let outer = outer.chain(port.node_port.map(|p| Claim::NodePort(p, port.protocol)));
        let inner = facts.cluster_ips.iter().map(address);
        claims.extend(inner.map(|claim| (claim, rank(name, facts, port, false))));
        claims.extend(outer.map(|claim| (claim, rank(name, facts, port, true))));
    }
    claims.sort_unstable();
    claims.dedup();
    claims
}
