//! `kubeproxy.config.k8s.io/v1alpha1` KubeProxyConfiguration: from a file, from flags, or from the `kube-proxy` ConfigMap.
//!
//! Every problem is named at once. Fields that are not known are warnings, as upstream has it. Of what differs from
//! upstream: `mode: userspace` is one; node ports on loopback are off unless asked for; `minSyncPeriod` is zero unless
//! given, since a sync costs what changed.

mod document;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;
use serde_json::Value;

use crate::backend::{Mode, ParseModeError};
use crate::plan::Node;
use crate::settings::{DetectLocal, IpvsSettings, Settings};
use document::Document;

pub const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
pub const KIND: &str = "KubeProxyConfiguration";
pub const HEALTHZ_PORT: u16 = 10256;
pub const METRICS_PORT: u16 = 10249;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// None: the best that this machine can do.
    pub mode: Option<Mode>,
    pub kubeconfig: String,
    pub hostname_override: String,
    /// The node's own address, if it is said; else it is the Node object's.
    pub bind_address: IpAddr,
    pub healthz: Option<SocketAddr>,
    pub metrics: Option<SocketAddr>,
    pub bind_address_hard_fail: bool,
    pub iptables: Periods,
    pub nftables: Periods,
    pub ipvs: Periods,
    pub iptables_marks: Marks,
    pub nftables_marks: Marks,
    pub localhost_node_ports: bool,
    pub ipvs_settings: IpvsSettings,
    pub detect_local_mode: LocalMode,
    pub cluster_cidrs: Vec<IpNet>,
    pub bridge: String,
    pub interface_prefix: String,
    pub node_port_ranges: Vec<IpNet>,
    pub node_ports_on_primary: bool,
    pub oom_score_adj: Option<i32>,
    pub conntrack: Conntrack,
}

/// How often rules are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Periods {
    /// After this long everything is compared with the kernel.
    pub sync: Duration,
    /// Syncs are at least this far apart.
    pub min_sync: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    pub masquerade_bit: u8,
    pub masquerade_all: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalMode {
    ClusterCidr,
    NodeCidr,
    BridgeInterface,
    InterfaceNamePrefix,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conntrack {
    pub max_per_core: u32,
    pub min: u32,
    /// Zero, here and below: as it is.
    pub tcp_established_timeout: Duration,
    pub tcp_close_wait_timeout: Duration,
    pub tcp_be_liberal: bool,
    pub udp_timeout: Duration,
    pub udp_stream_timeout: Duration,
}

impl Default for Config {
    fn default() -> Config {
        let (config, _) = parse("", &[]).expect("an empty document is a configuration");
        config
    }
}

/// A field's path (`ipvs.scheduler`) and the value that a flag gives it.
pub type Override = (&'static str, Value);

/// The configuration, and what is odd in it; or all that is wrong. The document may lack its `apiVersion` and `kind`, as
/// when somebody patches a ConfigMap with nothing but `mode: ipvs`.
pub fn parse(text: &str, overrides: &[Override]) -> Result<(Config, Vec<String>), Vec<String>> {
    let (document, warnings) = document::read(text, overrides)?;
    let mut problems = vec![];
    let config = understand(&document, &mut problems);
    match problems.is_empty() {
        true => Ok((config, warnings)),
        false => Err(problems),
    }
}

fn understand(document: &Document, problems: &mut Vec<String>) -> Config {
    let mode = match &*document.mode {
        "" => None,
        text => text
            .parse()
            .map_err(|e: ParseModeError| problems.push(format!("mode: {e}")))
            .ok(),
    };
    let unspecified = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let bind_address = address("bindAddress", &document.bind_address, problems).unwrap_or(unspecified);
    let (all, loopback): (IpAddr, IpAddr) = match bind_address {
        IpAddr::V4(_) => (unspecified, Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(_) => (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::LOCALHOST.into()),
    };
    let healthz = endpoint(
        "healthzBindAddress",
        &document.healthz_bind_address,
        all,
        HEALTHZ_PORT,
        problems,
    );
    let metrics = endpoint(
        "metricsBindAddress",
        &document.metrics_bind_address,
        loopback,
        METRICS_PORT,
        problems,
    );
    let (node_port_ranges, node_ports_on_primary) = node_ports(&document.node_port_addresses, problems);
    let cluster_cidrs = document.cluster_cidr.split(',').map(str::trim);
    let config = Config {
        mode,
        kubeconfig: document.client_connection.kubeconfig.clone(),
        hostname_override: document.hostname_override.clone(),
        bind_address,
        healthz,
        metrics,
        bind_address_hard_fail: document.bind_address_hard_fail,
        iptables: document.iptables.periods("iptables", problems),
        nftables: document.nftables.periods("nftables", problems),
        ipvs: document.ipvs.periods(problems),
        iptables_marks: document.iptables.marks("iptables", problems),
        nftables_marks: document.nftables.marks("nftables", problems),
        localhost_node_ports: document.iptables.localhost_node_ports.unwrap_or(false),
        ipvs_settings: ipvs(document, problems),
        detect_local_mode: local_mode(&document.detect_local_mode, problems),
        cluster_cidrs: ranges("clusterCIDR", cluster_cidrs.filter(|c| !c.is_empty()), problems),
        bridge: document.detect_local.bridge_interface.clone(),
        interface_prefix: document.detect_local.interface_name_prefix.clone(),
        node_port_ranges,
        node_ports_on_primary,
        oom_score_adj: document.oom_score_adj,
        conntrack: document.conntrack.understand(problems),
    };
    check(&config, problems);
    config
}

/// What only the whole shows.
fn check(config: &Config, problems: &mut Vec<String>) {
    if config.oom_score_adj.is_some_and(|n| !(-1000..=1000).contains(&n)) {
        problems.push("oomScoreAdj: must be within the range [-1000, 1000]".to_string());
    }
    let is_missing = |name: &str, mode: LocalMode| config.detect_local_mode == mode && name.is_empty();
    if is_missing(&config.bridge, LocalMode::BridgeInterface) {
        problems.push("detectLocal.bridgeInterface: must not be empty".to_string());
    }
    if is_missing(&config.interface_prefix, LocalMode::InterfaceNamePrefix) {
        problems.push("detectLocal.interfaceNamePrefix: must not be empty".to_string());
    }
    let v4 = config.cluster_cidrs.iter().filter(|r| r.addr().is_ipv4()).count();
    if v4 > 1 || config.cluster_cidrs.len() - v4 > 1 {
        let text = "clusterCIDR: must be either a single CIDR or a dual-stack pair of CIDRs";
        problems.push(format!("{text} (such as 10.100.0.0/16,fde4:8dba:82e1::/48)"));
    }
}

fn address(field: &str, text: &str, problems: &mut Vec<String>) -> Option<IpAddr> {
    if text.is_empty() {
        return None;
    }
    let parsed = text.parse();
    parsed
        .map_err(|_| problems.push(format!("{field}: {text:?}: must be a valid IP address")))
        .ok()
}

/// An address with a port, or either alone. Empty: the default. Port 0 stands for none.
fn endpoint(field: &str, text: &str, ip: IpAddr, port: u16, problems: &mut Vec<String>) -> Option<SocketAddr> {
    if text.is_empty() {
        return Some(SocketAddr::new(ip, port));
    }
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    let parsed = text
        .parse()
        .or_else(|_| bare.parse().map(|ip| SocketAddr::new(ip, port)));
    match parsed {
        Ok(address) if address.port() == 0 => None,
        Ok(address) => Some(address),
        Err(_) => {
            problems.push(format!("{field}: {text:?}: must be IP:port"));
            None
        }
    }
}

fn node_ports(texts: &[String], problems: &mut Vec<String>) -> (Vec<IpNet>, bool) {
    let on_primary = texts.iter().any(|text| text == "primary");
    if on_primary && texts.len() > 1 {
        problems.push("nodePortAddresses: can't use both 'primary' and CIDRs".to_string());
    }
    let others = texts.iter().map(String::as_str).filter(|text| *text != "primary");
    (ranges("nodePortAddresses", others, problems), on_primary)
}

fn ranges<'a>(field: &str, texts: impl Iterator<Item = &'a str>, problems: &mut Vec<String>) -> Vec<IpNet> {
    let mut read = vec![];
    for text in texts {
        match text.parse::<IpNet>() {
            Ok(range) => read.push(range.trunc()),
            Err(_) => problems.push(format!("{field}: {text:?}: must be a valid CIDR")),
        }
    }
    read
}

fn local_mode(text: &str, problems: &mut Vec<String>) -> LocalMode {
    match text {
        "" | "ClusterCIDR" => LocalMode::ClusterCidr,
        "NodeCIDR" => LocalMode::NodeCidr,
        "BridgeInterface" => LocalMode::BridgeInterface,
        "InterfaceNamePrefix" => LocalMode::InterfaceNamePrefix,
        _ => {
            let modes = "ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix";
            problems.push(format!("detectLocalMode: {text:?}: must be {modes}"));
            LocalMode::ClusterCidr
        }
    }
}

/// The algorithms that the kernel has.
const SCHEDULERS: [&str; 9] = ["rr", "lc", "dh", "sh", "sed", "nq", "wrr", "wlc", "mh"];

fn ipvs(document: &Document, problems: &mut Vec<String>) -> IpvsSettings {
    let ipvs = &document.ipvs;
    let scheduler = match &*ipvs.scheduler {
        "" => "rr",
        known if SCHEDULERS.contains(&known) => known,
        other => {
            problems.push(format!(
                "ipvs.scheduler: {other:?}: must be one of {}",
                SCHEDULERS.join(", ")
            ));
            "rr"
        }
    };
    let mut time = |field: &str, text: &str| document::duration(&format!("ipvs.{field}"), text, problems);
    IpvsSettings {
        scheduler: scheduler.to_string(),
        strict_arp: ipvs.strict_arp,
        tcp_timeout: time("tcpTimeout", &ipvs.tcp_timeout),
        tcp_fin_timeout: time("tcpFinTimeout", &ipvs.tcp_fin_timeout),
        udp_timeout: time("udpTimeout", &ipvs.udp_timeout),
        exclude_ranges: ranges(
            "ipvs.excludeCIDRs",
            ipvs.exclude_cidrs.iter().map(String::as_str),
            problems,
        ),
    }
}

impl Config {
    pub fn periods(&self, mode: Mode) -> Periods {
        match mode {
            Mode::Nftables => self.nftables,
            Mode::Ipvs => self.ipvs,
            Mode::Iptables | Mode::Userspace => self.iptables,
        }
    }

    /// What a back end is made with.
    pub fn settings(&self, mode: Mode, node: &Node, service_ranges: &[IpNet]) -> Settings {
        let marks = match mode {
            Mode::Nftables => self.nftables_marks,
            _ => self.iptables_marks,
        };
        let detect_local = match self.detect_local_mode {
            LocalMode::ClusterCidr if self.cluster_cidrs.is_empty() => DetectLocal::None,
            LocalMode::ClusterCidr => DetectLocal::Ranges(self.cluster_cidrs.clone()),
            LocalMode::NodeCidr => DetectLocal::Ranges(node.pod_ranges.clone()),
            LocalMode::BridgeInterface => DetectLocal::Bridge(self.bridge.clone()),
            LocalMode::InterfaceNamePrefix => DetectLocal::Prefix(self.interface_prefix.clone()),
        };
        Settings {
            detect_local,
            masquerade_all: marks.masquerade_all,
            masquerade_bit: marks.masquerade_bit,
            localhost_node_ports: self.localhost_node_ports,
            node_port_ranges: self.node_port_ranges.clone(),
            node_ports_on_primary: self.node_ports_on_primary,
            ipvs: self.ipvs_settings.clone(),
            service_ranges: service_ranges.to_vec(),
            ..Settings::default()
        }
    }
}
