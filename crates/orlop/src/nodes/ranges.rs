//! Who has which addresses (pure): the pods of each node, and the worker nodes themselves.

use std::net::Ipv4Addr;

use ipnet::{IpNet, Ipv4Net};

/// A cluster's pods are in a range that has room for this many times its first node's.
const NODES_BITS: u8 = 8;
/// Where the ranges of worker nodes' own addresses are taken from; a cluster has one of these of /24.
const NODE_RANGES: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(172, 30, 0, 0), 16);
const NODE_RANGE_PREFIX: u8 = 24;
/// The first address of the range is the machine's, the last one nobody's.
pub(crate) const WORKERS_MAX: u8 = 252;

/// The range of all pods, when this is the range of the first node's.
pub(crate) fn cluster_range(first: IpNet) -> IpNet {
    let prefix = first.prefix_len().saturating_sub(NODES_BITS);
    IpNet::new_assert(first.addr(), prefix).trunc()
}

/// The range of a worker's pods; workers are numbered from 1 on. None: there are not that many.
pub(crate) fn worker_pod_range(first: IpNet, number: u8) -> Option<IpNet> {
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

pub(crate) fn worker_address(range: Ipv4Net, number: u8) -> Ipv4Addr {
    nth(range, 1 + u32::from(number))
}

fn nth(range: Ipv4Net, number: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(range.network()).saturating_add(number))
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
        assert_eq!(worker_address(range, 1).to_string(), "172.30.7.2");
        assert_eq!(worker_address(range, WORKERS_MAX).to_string(), "172.30.7.253");
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
