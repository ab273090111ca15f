//! Who has which part of the cluster's pod addresses.
//!
//! A range of the cluster is cut into slots of one size. What a node has takes all slots that it touches, whatever its
//! own size: settings may have changed since it was given out. Slots are counted, so that two nodes with the same range
//! (somebody's mistake) don't free it for a third when one of them goes.
// Upstream: pkg/controller/nodeipam/ipam (v1.36)

use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;
use rustc_hash::FxHashMap;

/// Upstream: a range may be cut into this many slots at most; only IPv6 can have more.
const SLOTS_BITS_MAX: u8 = 16;

/// One range of the cluster, cut into slots.
#[derive(Debug)]
struct Slots {
    cluster: IpNet,
    /// How long the prefix of a slot is.
    prefix: u8,
    count: u128,
    /// What is never given out.
    kept: Vec<RangeInclusive<u128>>,
    used: FxHashMap<u128, u32>,
    next: u128,
}

/// Cluster CIDRs that no node CIDR can be allocated from.
#[derive(Debug, thiserror::Error)]
pub(super) enum CidrError {
    #[error("--cluster-cidr must be given if --allocate-node-cidrs is set")]
    NoClusterCidr,
    #[error("mask size of cluster CIDR {cluster} must be less than or equal to the node CIDR mask size {prefix}")]
    MaskTooSmall { cluster: IpNet, prefix: u8 },
    #[error(
        "the node CIDR mask size {prefix} is too large for cluster CIDR {cluster}: at most {SLOTS_BITS_MAX} bits more"
    )]
    MaskTooLarge { cluster: IpNet, prefix: u8 },
}

impl Slots {
    fn new(cluster: IpNet, prefix: u8) -> Result<Slots, CidrError> {
        let cluster = cluster.trunc();
        let bits = prefix
            .checked_sub(cluster.prefix_len())
            .filter(|_| prefix <= cluster.max_prefix_len());
        let bits = bits.ok_or(CidrError::MaskTooSmall { cluster, prefix })?;
        if cluster.addr().is_ipv6() && bits > SLOTS_BITS_MAX {
            return Err(CidrError::MaskTooLarge { cluster, prefix });
        }
        Ok(Slots {
            cluster,
            prefix,
            count: 1 << bits,
            kept: vec![],
            used: FxHashMap::default(),
            next: 0,
        })
    }

    /// The slots that a range touches; none if it is elsewhere.
    fn touched(&self, range: &IpNet) -> Option<RangeInclusive<u128>> {
        let same_family = range.addr().is_ipv4() == self.cluster.addr().is_ipv4();
        if !same_family || !(self.cluster.contains(range) || range.contains(&self.cluster)) {
            return None;
        }
        let shift = self.cluster.max_prefix_len() - self.prefix;
        let start = number(self.cluster.network());
        let slot = |address: IpAddr| (number(address).saturating_sub(start) >> shift).min(self.count - 1);
        Some(slot(range.network())..=slot(range.broadcast()))
    }

    fn range(&self, slot: u128) -> IpNet {
        let shift = self.cluster.max_prefix_len() - self.prefix;
        let address = number(self.cluster.network()) + (slot << shift);
        let address = match self.cluster {
            IpNet::V4(_) => IpAddr::V4(u32::try_from(address).expect("within an IPv4 range").into()),
            IpNet::V6(_) => IpAddr::V6(address.into()),
        };
        IpNet::new(address, self.prefix).expect("the prefix was checked")
    }

    fn take(&mut self, range: &IpNet) {
        for slot in self.touched(range).into_iter().flatten() {
            *self.used.entry(slot).or_default() += 1;
        }
    }

    fn free(&mut self, range: &IpNet) {
        for slot in self.touched(range).into_iter().flatten() {
            if let Some(count) = self.used.get_mut(&slot) {
                *count -= 1;
                if *count == 0 {
                    self.used.remove(&slot);
                }
            }
        }
    }

    /// The next free slot after the one given out last: what was freed lately rests.
    fn take_next(&mut self) -> Option<IpNet> {
        let mut left = self.count;
        let mut slot = self.next;
        while left > 0 {
            let kept = self.kept.iter().find(|kept| kept.contains(&slot));
            let step = match kept {
                Some(kept) => (kept.end() - slot + 1).min(left),
                None if self.used.contains_key(&slot) => 1,
                None => {
                    self.next = (slot + 1) % self.count;
                    let range = self.range(slot);
                    self.take(&range);
                    return Some(range);
                }
            };
            left -= step;
            slot = (slot + step) % self.count;
        }
        None
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
    }
}

#[derive(Debug)]
pub(super) struct Ranges {
    families: Vec<Slots>,
    /// What each node has, or is about to get.
    nodes: FxHashMap<String, Vec<IpNet>>,
}

impl Ranges {
    /// `services`: addresses that are not for pods.
    pub(super) fn new(
        clusters: &[IpNet],
        prefix: impl Fn(&IpNet) -> u8,
        services: &[IpNet],
    ) -> Result<Ranges, CidrError> {
        if clusters.is_empty() {
            return Err(CidrError::NoClusterCidr);
        }
        let families: Result<Vec<Slots>, CidrError> = clusters.iter().map(|c| Slots::new(*c, prefix(c))).collect();
        let mut families = families?;
        for slots in &mut families {
            slots.kept = services.iter().filter_map(|service| slots.touched(service)).collect();
        }
        Ok(Ranges {
            families,
            nodes: FxHashMap::default(),
        })
    }

    /// What the node has. One that has none keeps what it is about to get.
    pub(super) fn observe(&mut self, node: &str, cidrs: &[String]) {
        let has: Vec<IpNet> = cidrs.iter().filter_map(|cidr| cidr.parse().ok()).collect();
        if has.is_empty() || self.nodes.get(node) == Some(&has) {
            return;
        }
        self.free(node);
        for range in &has {
            self.families.iter_mut().for_each(|slots| slots.take(range));
        }
        self.nodes.insert(node.to_string(), has);
    }

    pub(super) fn free(&mut self, node: &str) {
        for range in self.nodes.remove(node).unwrap_or_default() {
            self.families.iter_mut().for_each(|slots| slots.free(&range));
        }
    }

    /// What the node gets, the same each time until it has it or it is freed. None: all are taken.
    pub(super) fn reserve(&mut self, node: &str) -> Option<Vec<IpNet>> {
        if let Some(has) = self.nodes.get(node) {
            return Some(has.clone());
        }
        let next: Vec<u128> = self.families.iter().map(|slots| slots.next).collect();
        let taken: Vec<Option<IpNet>> = self.families.iter_mut().map(Slots::take_next).collect();
        if taken.iter().all(Option::is_some) {
            let taken: Vec<IpNet> = taken.into_iter().flatten().collect();
            self.nodes.insert(node.to_string(), taken.clone());
            return Some(taken);
        }
        for ((slots, range), next) in self.families.iter_mut().zip(taken).zip(next) {
            range.iter().for_each(|range| slots.free(range));
            slots.next = next;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn nets(text: &str) -> Vec<IpNet> {
        text.split_whitespace().map(|t| t.parse().unwrap()).collect()
    }

    fn ranges(clusters: &str, v4: u8, v6: u8, services: &str) -> Result<Ranges, CidrError> {
        let prefix = |net: &IpNet| if net.addr().is_ipv4() { v4 } else { v6 };
        Ranges::new(&nets(clusters), prefix, &nets(services))
    }

    fn next(ranges: &mut Ranges, node: &str) -> String {
        let got = ranges.reserve(node).unwrap_or_default();
        got.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        for (clusters, v4, v6, expected) in [
            ("", 24, 64, "--cluster-cidr must be given"),
            ("10.0.0.0/16", 8, 64, "must be less than or equal"),
            ("10.0.0.0/16", 33, 64, "must be less than or equal"),
            ("fd00::/48", 24, 65, "too large"),
        ] {
            assert!(
                ranges(clusters, v4, v6, "").unwrap_err().to_string().contains(expected),
                "{clusters}"
            );
        }
        assert!(ranges("10.0.0.0/8 fd00::/48", 28, 64, "").is_ok());
    }

    #[test]
    fn nodes_get_the_next_free_slots() {
        let mut r = ranges("10.244.0.0/22 fd00:1::/62", 24, 64, "10.244.1.0/25 fd00:2::/64").unwrap();
        r.observe("old", &["10.244.2.128/25".to_string()]);
        assert_eq!(next(&mut r, "a"), "10.244.0.0/24 fd00:1::/64");
        assert_eq!(
            next(&mut r, "a"),
            "10.244.0.0/24 fd00:1::/64",
            "the same until it has it"
        );
        assert_eq!(
            next(&mut r, "b"),
            "10.244.3.0/24 fd00:1:0:1::/64",
            "past what services and the old node have"
        );
        assert_eq!(next(&mut r, "c"), "", "one family alone is of no use");
        assert_eq!(next(&mut r, "d"), "");
        r.observe("a", &["10.244.0.0/24".to_string(), "fd00:1::/64".to_string()]);
        r.free("old");
        assert_eq!(next(&mut r, "c"), "10.244.2.0/24 fd00:1:0:2::/64");
        r.free("a");
        assert_eq!(next(&mut r, "d"), "10.244.0.0/24 fd00:1:0:3::/64");
    }

    #[test]
    fn what_two_nodes_have_is_free_when_both_are_gone() {
        let mut r = ranges("10.0.0.0/24", 25, 64, "").unwrap();
        let same = ["10.0.0.0/25".to_string()];
        r.observe("a", &same);
        r.observe("b", &same);
        assert_eq!(next(&mut r, "c"), "10.0.0.128/25");
        r.free("a");
        assert_eq!(next(&mut r, "d"), "");
        r.free("b");
        assert_eq!(next(&mut r, "d"), "10.0.0.0/25");
        // All of it, and more than all.
        r.observe("huge", &["10.0.0.0/8".to_string()]);
        r.free("c");
        r.free("d");
        assert_eq!(next(&mut r, "e"), "");
        r.observe("elsewhere", &["192.168.0.0/24".to_string(), "nonsense".to_string()]);
        r.free("huge");
        assert_eq!(next(&mut r, "e"), "10.0.0.128/25", "what was freed lately rests");
    }

    proptest! {
        /// No two nodes ever share an address, nobody gets a service's, and all that is free can be given out.
        #[test]
        fn ranges_never_overlap(steps in prop::collection::vec((0..4u8, 0..40u8), 1..150)) {
            let service: IpNet = "10.0.3.0/26".parse().unwrap();
            let mut r = ranges("10.0.0.0/21", 26, 64, "10.0.3.0/26").unwrap();
            let mut held: BTreeMap<u8, IpNet> = BTreeMap::new();
            for (what, node) in steps {
                if what == 0 {
                    r.free(&format!("n{node}"));
                    held.remove(&node);
                    continue;
                }
                let got = r.reserve(&format!("n{node}"));
                prop_assert_eq!(got.is_some(), held.contains_key(&node) || held.len() < 31);
                let Some(got) = got else { continue };
                if what == 1 {
                    r.observe(&format!("n{node}"), &[got[0].to_string()]);
                }
                held.insert(node, got[0]);
                for (other, range) in &held {
                    prop_assert!(*other == node || !(range.contains(&got[0]) || got[0].contains(range)));
                }
                prop_assert!(!service.contains(&got[0]) && !got[0].contains(&service));
            }
        }
    }
}
