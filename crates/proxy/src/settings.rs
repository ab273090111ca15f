//! Settings of a proxy that come from its configuration, not from the cluster.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;

use crate::plan::Family;

/// How back ends tell a local pod's packet from others. Upstream: `detectLocalMode`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DetectLocal {
    /// Nothing can be told: whatever goes to a cluster address is masqueraded only where it must be.
    #[default]
    None,
    /// Pods have addresses of these ranges (`ClusterCIDR` and `NodeCIDR`), at most one of each family.
    Ranges(Vec<IpNet>),
    /// Pods come in through this bridge (`BridgeInterface`).
    Bridge(String),
    /// Pods come in through interfaces whose names begin so (`InterfaceNamePrefix`).
    Prefix(String),
}

/// What back ends need to know. All that comes from a KubeProxyConfiguration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How traffic of this node's pods is told from others'.
    pub detect_local: DetectLocal,
    /// Masquerade all traffic to cluster addresses.
    pub masquerade_all: bool,
    /// The bit of a packet's mark that asks for masquerading.
    pub masquerade_bit: u8,
    /// Node ports on 127.0.0.1 (iptables only).
    pub localhost_node_ports: bool,
    /// Where node ports are open. Empty: as the mode has it by default (all local addresses; in nftables the node's own).
    pub node_port_ranges: Vec<IpNet>,
    /// `nodePortAddresses: [primary]`: the node's own addresses only.
    pub node_ports_on_primary: bool,
    /// The service ranges: a packet to an address in them that no rule takes must not leave the machine. In userspace
    /// mode they are made local, with one route each where the process may do that. Empty: not known.
    pub service_ranges: Vec<IpNet>,
    /// Sync services of IPv4.
    pub v4: bool,
    /// Sync services of IPv6.
    pub v6: bool,
    /// For IPVS mode.
    pub ipvs: IpvsSettings,
    /// For userspace mode.
    pub userspace: UserspaceSettings,
}

/// The section `ipvs` of a KubeProxyConfiguration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpvsSettings {
    /// rr, lc, dh, sh, sed, nq, wrr, wlc, mh
    pub scheduler: String,
    /// Answer ARP requests only on the interface that has the address.
    pub strict_arp: bool,
    /// Of idle TCP connections. Zero: as the kernel has it.
    pub tcp_timeout: Duration,
    /// After a FIN. Zero: as the kernel has it.
    pub tcp_fin_timeout: Duration,
    /// Of idle UDP flows. Zero: as the kernel has it.
    pub udp_timeout: Duration,
    /// Virtual servers of these addresses are not ours.
    pub exclude_ranges: Vec<IpNet>,
}

/// Settings of the userspace mode; a KubeProxyConfiguration has none of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserspaceSettings {
    /// How long a UDP client may be silent.
    pub udp_idle_timeout: Duration,
    /// Where node ports listen; none: on all addresses.
    pub bind: Option<IpAddr>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            detect_local: DetectLocal::None,
            masquerade_all: false,
            masquerade_bit: 14,
            localhost_node_ports: false,
            node_port_ranges: vec![],
            node_ports_on_primary: false,
            service_ranges: vec![],
            v4: true,
            v6: true,
            ipvs: IpvsSettings {
                scheduler: "rr".to_string(),
                strict_arp: false,
                tcp_timeout: Duration::ZERO,
                tcp_fin_timeout: Duration::ZERO,
                udp_timeout: Duration::ZERO,
                exclude_ranges: vec![],
            },
            userspace: UserspaceSettings {
                udp_idle_timeout: Duration::from_millis(250),
                bind: None,
            },
        }
    }
}

impl Settings {
    /// Whether services of this family are synced.
    pub fn does(&self, family: Family) -> bool {
        match family {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        }
    }

    /// The service ranges of a family, none within another.
    pub fn service_ranges_of(&self, family: Family) -> Vec<IpNet> {
        let ranges = self
            .service_ranges
            .iter()
            .filter(|range| Family::of(range.addr()) == family);
        IpNet::aggregate(&ranges.map(IpNet::trunc).collect())
    }

    /// The mark that asks for masquerading.
    pub fn masquerade_mark(&self) -> u32 {
        1 << self.masquerade_bit
    }
}
