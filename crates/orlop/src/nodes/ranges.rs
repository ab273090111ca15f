//! Who has which addresses (pure): the pods of each node, and the worker nodes themselves.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net};
use orlop_netlink::Family;
use serde::{Deserialize, Serialize};

/// A cluster's pods are in a range that has room for this many times its first node's.
const NODES_BITS: u8 = 8;
/// Where the ranges of worker nodes' own addresses are taken from; a cluster has one of these of /24.
const NODE_RANGES: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(172, 30, 0, 0), 16);
const NODE_RANGE_PREFIX: u8 = 24;
/// The same for IPv6: unique local addresses, whose global id is our name.
const NODE_RANGES_V6: [u16; 3] = [0xfd6f, 0x726c, 0x6f70];
const NODE_RANGE_PREFIX_V6: u8 = 64;
/// The first address of the range is the machine's, the last one nobody's.
pub(crate) const WORKERS_MAX: u8 = 252;

/// The ranges that pods have addresses of: one, or one of each family. The first family is the primary one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct PodRanges(Vec<IpNet>);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PodRangesError {
    #[error("{0:?} is not a valid CIDR")]
    Invalid(String),
    #[error("must be a single CIDR or a dual-stack pair of CIDRs")]
    NotDualStack,
}

impl PodRanges {
    pub(crate) fn iter(&self) -> impl Iterator<Item = IpNet> {
        self.0.iter().copied()
    }

    pub(crate) fn primary(&self) -> IpNet {
        self.0[0]
    }

    pub(crate) fn families(&self) -> Vec<Family> {
        self.iter().map(|range| Family::of(range.addr())).collect()
    }

    /// The ranges of all pods, when these are those of the first node's.
    pub(crate) fn of_cluster(&self) -> PodRanges {
        PodRanges(self.iter().map(cluster_range).collect())
    }

    /// The ranges of a worker's pods, when these are those of the first node's; workers are numbered from 1 on. None: there
    /// are not that many.
    pub(crate) fn of_worker(&self, number: u8) -> Option<PodRanges> {
        let ranges: Option<Vec<IpNet>> = self.iter().map(|first| worker_pod_range(first, number)).collect();
        ranges.map(PodRanges)
    }
}

impl FromStr for PodRanges {
    type Err = PodRangesError;

    fn from_str(text: &str) -> Result<PodRanges, PodRangesError> {
        let parse = |text: &str| {
            let range: IpNet = text
                .trim()
                .parse()
                .map_err(|_| PodRangesError::Invalid(text.to_string()))?;
            Ok(range.trunc())
        };
        let ranges: Vec<IpNet> = text.split(',').map(parse).collect::<Result<_, _>>()?;
        match ranges.as_slice() {
            [_] => Ok(PodRanges(ranges)),
            [a, b] if a.addr().is_ipv4() != b.addr().is_ipv4() => Ok(PodRanges(ranges)),
            _ => Err(PodRangesError::NotDualStack),
        }
    }
}

impl TryFrom<String> for PodRanges {
    type Error = PodRangesError;

    fn try_from(text: String) -> Result<PodRanges, PodRangesError> {
        text.parse()
    }
}

impl From<PodRanges> for String {
    fn from(ranges: PodRanges) -> String {
        ranges.to_string()
    }
}

impl fmt::Display for PodRanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self.iter().map(|range| range.to_string()).collect();
        f.write_str(&texts.join(","))
    }
}

fn cluster_range(first: IpNet) -> IpNet {
    let prefix = first.prefix_len().saturating_sub(NODES_BITS);
    IpNet::new_assert(first.addr(), prefix).trunc()
}

fn worker_pod_range(first: IpNet, number: u8) -> Option<IpNet> {
    let mut ranges = cluster_range(first).subnets(first.prefix_len()).ok()?;
    let first = first.trunc();
    ranges
        .by_ref()
        .filter(|range| *range != first)
        .nth(usize::from(number).checked_sub(1)?)
}

/// The machine's address as the workers see it.
pub(crate) fn gateway(range: Ipv4Net) -> Ipv4Addr {
    nth(range, 1)
}

/// The addresses of the two ends of a worker's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkEnds {
    pub worker: IpAddr,
    /// The machine's, as the worker sees it: the same for all workers.
    pub gateway: IpAddr,
}

impl LinkEnds {
    pub(crate) fn new(range: Ipv4Net, number: u8, family: Family) -> LinkEnds {
        match family {
            Family::V4 => LinkEnds {
                worker: nth(range, 1 + u32::from(number)).into(),
                gateway: gateway(range).into(),
            },
            Family::V6 => LinkEnds {
                worker: nth_v6(range, 1 + u16::from(number)).into(),
                gateway: nth_v6(range, 1).into(),
            },
        }
    }
}

/// A worker's own addresses, of these families.
pub(crate) fn worker_addresses(range: Ipv4Net, number: u8, families: &[Family]) -> Vec<IpAddr> {
    let of = |family: &Family| LinkEnds::new(range, number, *family).worker;
    families.iter().map(of).collect()
}

/// The range of the workers' addresses in this family.
pub(crate) fn node_range(range: Ipv4Net, family: Family) -> IpNet {
    match family {
        Family::V4 => range.into(),
        Family::V6 => IpNet::new_assert(nth_v6(range, 0).into(), NODE_RANGE_PREFIX_V6),
    }
}

/// Where the addresses of all clusters' workers are.
pub(crate) fn all_node_ranges() -> [IpNet; 2] {
    let [a, b, c] = NODE_RANGES_V6;
    let v6 = IpNet::new_assert(Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0).into(), 48);
    [NODE_RANGES.into(), v6]
}

fn nth(range: Ipv4Net, number: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(range.network()).saturating_add(number))
}

/// Every IPv4 range has an IPv6 one: as nobody uses that one, nobody uses this one.
fn nth_v6(range: Ipv4Net, number: u16) -> Ipv6Addr {
    let [.., third, _] = range.network().octets();
    let [a, b, c] = NODE_RANGES_V6;
    Ipv6Addr::new(a, b, c, third.into(), 0, 0, 0, number)
}

/// A range for worker nodes that nobody on this machine uses. `seed` has clusters begin to look at different places.
pub(crate) fn choose_node_range(seed: u64, used: &[IpNet]) -> Option<Ipv4Net> {
    let all: Vec<Ipv4Net> = NODE_RANGES.subnets(NODE_RANGE_PREFIX).ok()?.collect();
    let start = usize::try_from(seed % all.len() as u64).unwrap_or(0);
    let is_free = |range: &&Ipv4Net| {
        let overlaps = |other: &IpNet| match other {
            IpNet::V4(other) => range.contains(&other.network()) || other.contains(&range.network()),
            IpNet::V6(_) => false,
        };
        !used.iter().any(overlaps)
    };
    all.iter().cycle().skip(start).take(all.len()).find(is_free).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    #[test]
    fn pods_of_each_node() {
        let first = net("10.244.0.0/24");
        assert_eq!(cluster_range(first), net("10.244.0.0/16"));
        assert_eq!(worker_pod_range(first, 1), Some(net("10.244.1.0/24")));
        assert_eq!(worker_pod_range(first, 252), Some(net("10.244.252.0/24")));
        // The first node's need not be the first.
        let third = net("10.50.2.0/24");
        let ranges = [1, 2, 3].map(|number| worker_pod_range(third, number).unwrap().to_string());
        assert_eq!(ranges, ["10.50.0.0/24", "10.50.1.0/24", "10.50.3.0/24"]);
        assert_eq!(worker_pod_range(first, 0), None);
        assert_eq!(worker_pod_range(net("0.0.0.0/0"), 1), None);
        assert_eq!(worker_pod_range(net("fd00:1::/64"), 1), Some(net("fd00:1:0:1::/64")));
    }

    #[test]
    fn addresses_of_nodes() {
        let range: Ipv4Net = "172.30.7.0/24".parse().unwrap();
        assert_eq!(gateway(range).to_string(), "172.30.7.1");
        let addresses = |number: u8| {
            let addresses = worker_addresses(range, number, &Family::ALL);
            addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>()
        };
        assert_eq!(addresses(1), ["172.30.7.2", "fd6f:726c:6f70:7::2"]);
        assert_eq!(addresses(WORKERS_MAX), ["172.30.7.253", "fd6f:726c:6f70:7::fd"]);
        assert_eq!(
            LinkEnds::new(range, 1, Family::V6).gateway.to_string(),
            "fd6f:726c:6f70:7::1"
        );
        assert_eq!(node_range(range, Family::V6), net("fd6f:726c:6f70:7::/64"));
    }

    #[test]
    fn ranges_of_one_and_two_families() {
        let both: PodRanges = "10.244.0.9/24, fd00:1::/64".parse().unwrap();
        assert_eq!(both.to_string(), "10.244.0.0/24,fd00:1::/64");
        assert_eq!(both.of_cluster().to_string(), "10.244.0.0/16,fd00:1::/56");
        assert_eq!(both.of_worker(2).unwrap().to_string(), "10.244.2.0/24,fd00:1:0:2::/64");
        assert_eq!(both.families(), [Family::V4, Family::V6]);
        let one: PodRanges = "fd00:1::/64".parse().unwrap();
        assert_eq!((one.primary(), one.of_worker(0)), (net("fd00:1::/64"), None));
        for (wrong, why) in [
            ("10.244.0.0", PodRangesError::Invalid("10.244.0.0".to_string())),
            ("", PodRangesError::Invalid(String::new())),
            ("10.1.0.0/24,10.2.0.0/24", PodRangesError::NotDualStack),
            ("10.1.0.0/24,fd00::/64,fd01::/64", PodRangesError::NotDualStack),
        ] {
            assert_eq!(wrong.parse::<PodRanges>(), Err(why), "{wrong}");
        }
        let stored = serde_json::to_string(&both).unwrap();
        assert_eq!(serde_json::from_str::<PodRanges>(&stored).unwrap(), both);
    }

    #[test]
    fn ranges_that_are_in_use_are_passed_over() {
        let chosen = |seed: u64, used: &[&str]| {
            let used: Vec<IpNet> = used.iter().map(|text| net(text)).collect();
            choose_node_range(seed, &used).map(|range| range.to_string())
        };
        assert_eq!(chosen(5, &[]).unwrap(), "172.30.5.0/24");
        assert_eq!(
            chosen(5, &["172.30.5.9/32", "172.30.6.0/23", "10.0.0.0/8"]).unwrap(),
            "172.30.8.0/24"
        );
        assert_eq!(chosen(255, &["172.30.255.0/24"]).unwrap(), "172.30.0.0/24");
        assert_eq!(chosen(1, &["172.16.0.0/12"]), None);
    }
}
