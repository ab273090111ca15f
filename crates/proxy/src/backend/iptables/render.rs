//! Service ports as rules. Pure.
//!
//! Rules are written the way `iptables-save` shows them, so that what the kernel holds can be compared as text, and
//! `-D` finds what `-A` made. Their order and comments are kube-proxy's.
//!
//! ```text
//!  nat: KUBE-SERVICES ─► KUBE-SVC-x (cluster address, policy Cluster) ─┬─► KUBE-SEP-y ─► DNAT
//!             │      └─► KUBE-SVL-x (cluster address, policy Local) ───┤
//!             │      └─► KUBE-EXT-x (external address) ─► SVC or SVL ──┘
//!             │      └─► KUBE-FW-x (load balancer with source ranges) ─► KUBE-EXT-x
//!             └────────► KUBE-NODEPORTS ─► KUBE-EXT-x
//!  filter: KUBE-SERVICES, KUBE-EXTERNAL-SERVICES refuse what has no endpoints, and KUBE-SERVICES at its end what goes to
//!          any service address: nat has taken all that a service has. KUBE-PROXY-FIREWALL refuses what came by a load
//!          balancer address and was let through by no source range; KUBE-NODEPORTS accepts health checks.
//! ```
//!
//! Upstream: pkg/proxy/iptables/proxier.go (v1.36).

use std::fmt::Write;
use std::net::IpAddr;

use ipnet::IpNet;

use super::names::{
    CANARY, EXTERNAL_SERVICES, FORWARD, KUBELET_FIREWALL, MARK_MASQ, NODE_PORTS, Names, POSTROUTING, PROXY_FIREWALL,
    SERVICES,
};
use crate::plan::{Endpoint, Family, Refusal, ServicePort};

/// From this many endpoints on, rules of single services and endpoints have no comments: half of their size.
pub(super) const LARGE: usize = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Table {
    Filter,
    Nat,
    Mangle,
}

impl Table {
    /// In the order in which they are written.
    pub(super) const ALL: [Table; 3] = [Table::Filter, Table::Nat, Table::Mangle];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Table::Filter => "filter",
            Table::Nat => "nat",
            Table::Mangle => "mangle",
        }
    }
}

/// What tells packets of local pods from others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Local {
    Source(IpNet),
    Interface(String),
}

/// Where node ports are open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NodePorts {
    AllLocal,
    On(Vec<IpAddr>),
}

/// What rules depend on beside the service port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Context {
    pub family: Family,
    pub mark: u32,
    pub masquerade_all: bool,
    pub local: Option<Local>,
    pub node_ip: Option<IpAddr>,
    pub node_ports: NodePorts,
    pub localhost_node_ports: bool,
    /// Where cluster addresses come from, none within another.
    pub service_ranges: Vec<IpNet>,
    /// The kernel's connection tracking takes segments outside the window: none are dropped as invalid.
    pub tcp_be_liberal: bool,
    /// `MASQUERADE --random-fully` is known.
    pub random_fully: bool,
    pub is_large: bool,
}

/// A chain and its rules, without `-A NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chain {
    pub name: String,
    pub rules: Vec<String>,
}

/// A service port's rule in a chain that all services share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shared {
    pub table: Table,
    pub chain: &'static str,
    pub rule: String,
}

/// All rules of one service port. Its own chains are in the nat table; those that are jumped to come first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ServiceRules {
    pub chains: Vec<Chain>,
    pub shared: Vec<Shared>,
}

impl ServiceRules {
    /// How many rules in a table.
    pub(super) fn count(&self, table: Table) -> usize {
        let shared = self.shared.iter().filter(|shared| shared.table == table).count();
        let own = self.chains.iter().map(|chain| chain.rules.len()).sum::<usize>();
        shared + if table == Table::Nat { own } else { 0 }
    }

    fn share(&mut self, table: Table, chain: &'static str, rule: String) {
        let shared = Shared { table, chain, rule };
        // An address that a service names twice is refused once.
        if !self.shared.contains(&shared) {
            self.shared.push(shared);
        }
    }
}

/// The chains that services share, with the tables they are in.
pub(super) const SHARED: [(Table, &str); 6] = [
    (Table::Filter, SERVICES),
    (Table::Filter, EXTERNAL_SERVICES),
    (Table::Filter, NODE_PORTS),
    (Table::Filter, PROXY_FIREWALL),
    (Table::Nat, SERVICES),
    (Table::Nat, NODE_PORTS),
];

/// Chains that are the same whatever services there are.
pub(super) fn fixed_chains(context: &Context) -> Vec<(Table, Chain)> {
    let mark = format!("{:#x}/{0:#x}", context.mark);
    let chain = |table, name: &str, rules: Vec<String>| {
        let name = name.to_string();
        (table, Chain { name, rules })
    };
    let random = if context.random_fully { " --random-fully" } else { "" };
    let postrouting = vec![
        format!("-m mark ! --mark {mark} -j RETURN"),
        // Taken off again, lest a packet that comes by twice is masqueraded twice.
        format!("-j MARK --set-xmark {:#x}/0x0", context.mark),
        format!(
            "{} -j MASQUERADE{random}",
            comment("kubernetes service traffic requiring SNAT")
        ),
    ];
    let mut forward = vec![];
    if !context.tcp_be_liberal {
        // What conntrack can't place would be answered by a reset from an endpoint's own address.
        forward.push("-m conntrack --ctstate INVALID -j DROP".to_string());
    }
    forward.push(format!(
        "{} -m mark --mark {mark} -j ACCEPT",
        comment("kubernetes forwarding rules")
    ));
    let related = comment("kubernetes forwarding conntrack rule");
    forward.push(format!(
        "{related} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"
    ));

    let mut chains = vec![
        chain(Table::Nat, MARK_MASQ, vec![format!("-j MARK --set-xmark {mark}")]),
        chain(Table::Nat, POSTROUTING, postrouting),
        chain(Table::Filter, FORWARD, forward),
    ];
    if guards_localhost(context) {
        let rule = format!(
            "! -s 127.0.0.0/8 -d 127.0.0.0/8 {} -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP",
            comment("block incoming localnet connections")
        );
        chains.push(chain(Table::Filter, KUBELET_FIREWALL, vec![rule]));
    }
    chains.extend(Table::ALL.map(|table| chain(table, CANARY, vec![])));
    chains
}

/// With 127/8 routed, neighbours could reach what listens on it.
fn guards_localhost(context: &Context) -> bool {
    context.localhost_node_ports && context.family == Family::V4
}

/// The rules behind all others in a chain that services share.
pub(super) fn tail(context: &Context, table: Table, chain: &str) -> Vec<String> {
    match (table, chain) {
        (Table::Nat, SERVICES) => to_node_ports(context),
        (Table::Filter, SERVICES) => refuse_unknown(context),
        _ => vec![],
    }
}

/// A service's port is no service address any more when its packets come here. What still is would leave the machine by
/// whatever route there is. Upstream does this in nftables mode only (`cluster-ips-check`).
fn refuse_unknown(context: &Context) -> Vec<String> {
    let comment = comment("reject traffic to unknown ports and addresses of services");
    let target = reject(context.family);
    let ranges = context.service_ranges.iter();
    ranges
        .map(|range| format!("-d {range} {comment} -j {target}"))
        .collect()
}

fn reject(family: Family) -> &'static str {
    match family {
        Family::V4 => "REJECT --reject-with icmp-port-unreachable",
        Family::V6 => "REJECT --reject-with icmp6-port-unreachable",
    }
}

fn to_node_ports(context: &Context) -> Vec<String> {
    let comment = comment("kubernetes service nodeports; NOTE: this must be the last rule in this chain");
    match &context.node_ports {
        NodePorts::AllLocal => {
            // On ::1 they can't work; on 127/8 only with a sysctl.
            let except = match (context.family, context.localhost_node_ports) {
                (Family::V6, _) => "! -d ::1/128 ",
                (Family::V4, false) => "! -d 127.0.0.0/8 ",
                (Family::V4, true) => "",
            };
            vec![format!(
                "{except}{comment} -m addrtype --dst-type LOCAL -j {NODE_PORTS}"
            )]
        }
        NodePorts::On(ips) => ips
            .iter()
            .map(|ip| format!("-d {} {comment} -j {NODE_PORTS}", host(*ip)))
            .collect(),
    }
}

/// A rule in one of the kernel's own chains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Jump {
    pub table: Table,
    pub from: &'static str,
    pub rule: String,
}

/// What leads into our chains, each put before what is there, in this order.
pub(super) fn jumps(context: &Context) -> Vec<Jump> {
    const PORTALS: &str = "kubernetes service portals";
    const VISIBLE: &str = "kubernetes externally-visible service portals";
    const BALANCERS: &str = "kubernetes load balancer firewall";
    let jump = |table, from, is_for_new: bool, text: &str, to: &str| {
        let new = if is_for_new { "-m conntrack --ctstate NEW " } else { "" };
        let rule = format!("{new}{} -j {to}", comment(text));
        Jump { table, from, rule }
    };
    let filter = |from, is_for_new, text, to| jump(Table::Filter, from, is_for_new, text, to);
    let mut jumps = vec![
        filter("INPUT", true, VISIBLE, EXTERNAL_SERVICES),
        filter("FORWARD", true, VISIBLE, EXTERNAL_SERVICES),
        filter("INPUT", false, "kubernetes health check service ports", NODE_PORTS),
        filter("FORWARD", true, PORTALS, SERVICES),
        filter("OUTPUT", true, PORTALS, SERVICES),
        filter("FORWARD", false, "kubernetes forwarding rules", FORWARD),
        filter("INPUT", true, BALANCERS, PROXY_FIREWALL),
        filter("OUTPUT", true, BALANCERS, PROXY_FIREWALL),
        filter("FORWARD", true, BALANCERS, PROXY_FIREWALL),
        jump(Table::Nat, "OUTPUT", false, PORTALS, SERVICES),
        jump(Table::Nat, "PREROUTING", false, PORTALS, SERVICES),
        jump(
            Table::Nat,
            "POSTROUTING",
            false,
            "kubernetes postrouting rules",
            POSTROUTING,
        ),
    ];
    if guards_localhost(context) {
        jumps.extend(["INPUT", "OUTPUT"].map(|from| Jump {
            table: Table::Filter,
            from,
            rule: format!("-j {KUBELET_FIREWALL}"),
        }));
    }
    jumps
}

pub(super) fn service(context: &Context, port: &ServicePort) -> ServiceRules {
    let names = Names::new(&port.key, port.protocol);
    let mut rules = ServiceRules::default();
    let service = Service { context, port, names };
    service.shared(&mut rules);
    service.endpoints(&mut rules);
    service.splits(&mut rules);
    service.external(&mut rules);
    service.firewall(&mut rules);
    rules
}

struct Service<'a> {
    context: &'a Context,
    port: &'a ServicePort,
    names: Names,
}

impl Service<'_> {
    /// Rules in the chains of all services.
    fn shared(&self, rules: &mut ServiceRules) {
        let (port, names, text) = (self.port, &self.names, &self.names.text);
        let number = port.port;
        match self.refuse(port.internal_refusal()) {
            None => {
                let target = if port.internal_local {
                    names.local()
                } else {
                    names.cluster()
                };
                let rule = self.to(port.cluster_ip, number, &format!("{text} cluster IP"), &target);
                rules.share(Table::Nat, SERVICES, rule);
            }
            Some((reason, target)) => {
                let rule = self.to(port.cluster_ip, number, &reason, target);
                rules.share(Table::Filter, SERVICES, rule);
            }
        }
        let refusal = self.refuse(port.external_refusal());
        let balancer_chain = if self.has_firewall() {
            names.firewall()
        } else {
            names.external()
        };
        let external = port
            .external_ips
            .iter()
            .map(|ip| (*ip, "external IP", names.external()));
        let balancers = port
            .load_balancer_ips
            .iter()
            .map(|ip| (*ip, "loadbalancer IP", balancer_chain.clone()));
        for (ip, kind, chain) in external.chain(balancers) {
            if port.has_endpoints {
                let rule = self.to(ip, number, &format!("{text} {kind}"), &chain);
                rules.share(Table::Nat, SERVICES, rule);
            }
            if let Some((reason, target)) = &refusal {
                let rule = self.to(ip, number, reason, target);
                rules.share(Table::Filter, EXTERNAL_SERVICES, rule);
            }
        }
        if self.has_firewall() {
            let reason = format!("{text} traffic not accepted by {}", names.firewall());
            for ip in &port.load_balancer_ips {
                rules.share(Table::Filter, PROXY_FIREWALL, self.to(*ip, number, &reason, "DROP"));
            }
        }
        if let Some(number) = port.node_port {
            let protocol = port.protocol.as_str();
            if port.has_endpoints {
                let target = names.external();
                let rule = format!(
                    "-p {protocol} {} -m {protocol} --dport {number} -j {target}",
                    comment(text)
                );
                rules.share(Table::Nat, NODE_PORTS, rule);
            }
            if let Some((reason, target)) = &refusal {
                let on = format!("{} -m addrtype --dst-type LOCAL", comment(reason));
                let rule = format!("-p {protocol} {on} -m {protocol} --dport {number} -j {target}");
                rules.share(Table::Filter, EXTERNAL_SERVICES, rule);
            }
        }
        if let Some(number) = port.health_check_node_port {
            let comment = comment(&format!("{text} health check node port"));
            let rule = format!("-p tcp {comment} -m tcp --dport {number} -j ACCEPT");
            rules.share(Table::Filter, NODE_PORTS, rule);
        }
    }

    /// Why packets are refused, and the target that does it.
    fn refuse(&self, refusal: Option<Refusal>) -> Option<(String, &'static str)> {
        let text = &self.names.text;
        refusal.map(|refusal| match refusal {
            Refusal::Drop => (format!("{text} has no local endpoints"), "DROP"),
            Refusal::Reject => (format!("{text} has no endpoints"), reject(self.context.family)),
        })
    }

    fn to(&self, ip: IpAddr, port: u16, text: &str, target: &str) -> String {
        let protocol = self.port.protocol.as_str();
        let comment = comment(text);
        format!(
            "-d {} -p {protocol} {comment} -m {protocol} --dport {port} -j {target}",
            host(ip)
        )
    }

    fn has_firewall(&self) -> bool {
        let port = self.port;
        port.has_endpoints && !port.load_balancer_ips.is_empty() && !port.source_ranges.is_empty()
    }

    /// The comment of rules of which there are many.
    fn frequent_comment(&self, text: &str) -> String {
        if self.context.is_large {
            String::new()
        } else {
            format!("{} ", comment(text))
        }
    }

    fn endpoints(&self, rules: &mut ServiceRules) {
        let protocol = self.port.protocol.as_str();
        let comment = self.frequent_comment(&self.names.text);
        for endpoint in self.port.endpoints() {
            let (address, name) = (endpoint.address, self.names.endpoint(endpoint.address));
            // An endpoint that reaches itself must see another source address, else it would answer itself directly.
            let hairpin = format!("-s {} {comment}-j {MARK_MASQ}", host(address.ip()));
            let remember = match self.port.affinity {
                Some(_) => format!("-m recent --set {} ", self.recent(&name)),
                None => String::new(),
            };
            let nat = format!("-p {protocol} {comment}{remember}-m {protocol} -j DNAT --to-destination {address}");
            let rules_of_chain = vec![hairpin, nat];
            rules.chains.push(Chain {
                name,
                rules: rules_of_chain,
            });
        }
    }

    fn recent(&self, name: &str) -> String {
        let mask = match self.context.family {
            Family::V4 => "255.255.255.255",
            Family::V6 => "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
        };
        format!("--name {name} --mask {mask} --rsource")
    }

    /// The chains that split packets over endpoints.
    fn splits(&self, rules: &mut ServiceRules) {
        let port = self.port;
        if port.uses_cluster() && !port.cluster.is_empty() {
            let chain = self.split(self.names.cluster(), &port.cluster, !port.internal_local);
            rules.chains.push(chain);
        }
        if port.uses_local() && !port.local.is_empty() {
            let chain = self.split(self.names.local(), &port.local, port.internal_local);
            rules.chains.push(chain);
        }
    }

    fn split(&self, name: String, endpoints: &[Endpoint], is_internal: bool) -> Chain {
        let mut rules = vec![];
        if is_internal {
            rules.extend(self.masquerade_internal());
        }
        let text = &self.names.text;
        let targets: Vec<(String, String)> = endpoints
            .iter()
            .map(|endpoint| {
                let comment = self.frequent_comment(&format!("{text} -> {}", endpoint.address));
                (comment, self.names.endpoint(endpoint.address))
            })
            .collect();
        if let Some(seconds) = self.port.affinity {
            rules.extend(targets.iter().map(|(comment, target)| {
                let recent = self.recent(target);
                format!("{comment}-m recent --rcheck --seconds {seconds} --reap {recent} -j {target}")
            }));
        }
        let count = targets.len();
        rules.extend(
            targets
                .iter()
                .enumerate()
                .map(|(place, (comment, target))| match count - place {
                    1 => format!("{comment}-j {target}"),
                    rest => {
                        let part = probability(rest);
                        format!("{comment}-m statistic --mode random --probability {part} -j {target}")
                    }
                }),
        );
        Chain { name, rules }
    }

    /// Packets to a cluster address from elsewhere than the cluster come back by this node only if it masquerades.
    fn masquerade_internal(&self) -> Option<String> {
        let from = match (self.context.masquerade_all, &self.context.local) {
            (true, _) => (String::new(), String::new()),
            (false, None) => return None,
            (false, Some(local)) => selector(local, "! "),
        };
        let protocol = self.port.protocol.as_str();
        let comment = comment(&format!("{} cluster IP", self.names.text));
        let (source, interface) = from;
        let to = host(self.port.cluster_ip);
        let number = self.port.port;
        Some(format!(
            "{source}-d {to} {interface}-p {protocol} {comment} -m {protocol} --dport {number} -j {MARK_MASQ}"
        ))
    }

    fn external(&self, rules: &mut ServiceRules) {
        let (port, text) = (self.port, &self.names.text);
        if !port.has_endpoints || !port.is_external() {
            return;
        }
        let mut list = vec![];
        if !port.external_local {
            let comment = comment(&format!("masquerade traffic for {text} external destinations"));
            list.push(format!("{comment} -j {MARK_MASQ}"));
        } else if !port.cluster.is_empty() {
            // What comes from this node goes by no policy, as if it had gone out to the load balancer and come back.
            let cluster = self.names.cluster();
            if let Some(local) = &self.context.local {
                let (source, interface) = selector(local, "");
                let comment = comment(&format!("pod traffic for {text} external destinations"));
                list.push(format!("{source}{interface}{comment} -j {cluster}"));
            }
            for (what, target) in [("masquerade", MARK_MASQ), ("route", &cluster)] {
                let comment = comment(&format!("{what} LOCAL traffic for {text} external destinations"));
                list.push(format!("{comment} -m addrtype --src-type LOCAL -j {target}"));
            }
        }
        if port.external_refusal().is_none() {
            let target = if port.external_local {
                self.names.local()
            } else {
                self.names.cluster()
            };
            list.push(format!("-j {target}"));
        }
        let name = self.names.external();
        rules.chains.push(Chain { name, rules: list });
    }

    fn firewall(&self, rules: &mut ServiceRules) {
        if !self.has_firewall() {
            return;
        }
        let (port, text) = (self.port, &self.names.text);
        let external = self.names.external();
        let comment_of_balancer = comment(&format!("{text} loadbalancer IP"));
        let allow = |range: IpNet| {
            let source = match range.prefix_len() {
                0 => String::new(),
                _ => format!("-s {} ", range.trunc()),
            };
            format!("{source}{comment_of_balancer} -j {external}")
        };
        let mut list: Vec<String> = port.source_ranges.iter().map(|range| allow(*range)).collect();
        let is_in = |ip: IpAddr| port.source_ranges.iter().any(|range| range.contains(&ip));
        if self.context.node_ip.is_some_and(is_in) {
            // Where the balancer's address is on this machine, its packets to it have it as their source too.
            list.extend(port.load_balancer_ips.iter().map(|ip| allow(IpNet::from(*ip))));
        }
        list.push(comment(&format!(
            "other traffic to {text} will be dropped by {PROXY_FIREWALL}"
        )));
        let name = self.names.firewall();
        rules.chains.push(Chain { name, rules: list });
    }
}

/// What selects local pods (or with `"! "` all others), by its place in a rule: source, interface.
fn selector(local: &Local, not: &str) -> (String, String) {
    match local {
        Local::Source(range) => (format!("{not}-s {} ", range.trunc()), String::new()),
        Local::Interface(name) => (String::new(), format!("{not}-i {name} ")),
    }
}

fn comment(text: &str) -> String {
    // Quoted as iptables-save does: wherever there is more than letters, digits, - and _, which is always so here.
    format!("-m comment --comment \"{text}\"")
}

/// One address, as a range.
fn host(ip: IpAddr) -> String {
    IpNet::from(ip).to_string()
}

/// One in `count`. The kernel has it in 31 bits, and shows it so; users give ten digits.
fn probability(count: usize) -> String {
    let mut given = String::new();
    let _ = write!(given, "{:.10}", 1.0 / count as f64);
    let parsed: f64 = given.parse().expect("a number was written");
    let scale = f64::from(1u32 << 31);
    format!("{:.11}", (scale * parsed).round() / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_shown_as_the_kernel_has_them() {
        assert_eq!(probability(2), "0.50000000000");
        assert_eq!(probability(3), "0.33333333349");
        assert_eq!(probability(5), "0.20000000019");
    }
}
