//! Subsets in one form only: every address and port once, addresses that share all their ports together, all in order.
// Upstream: pkg/api/v1/endpoints/util.go (v1.36), which orders by hashes.

use std::collections::BTreeMap;

use crate::objects::endpoints::{Address, Port, Subset};

/// Addresses in one object at most.
const MAX: usize = 1000;

/// An address of one pod: pods on their node's network share addresses.
type Identity = (String, String);

fn identity(address: &Address) -> Identity {
    let uid = address.target_ref.as_ref().map_or("", |target| &target.uid);
    (address.ip.clone(), uid.to_string())
}

pub(crate) fn canonical(subsets: &[Subset]) -> Vec<Subset> {
    let mut addresses: BTreeMap<Identity, &Address> = BTreeMap::new();
    // Who offers the port, and whether they are ready; what is ready here and not ready there is not.
    let mut offers: BTreeMap<Option<&Port>, BTreeMap<Identity, bool>> = BTreeMap::new();
    for subset in subsets {
        let ports: Vec<Option<&Port>> = match subset.ports.is_empty() {
            true => vec![None],
            false => subset.ports.iter().map(Some).collect(),
        };
        let ready = subset.addresses.iter().map(|address| (address, true));
        let not_ready = subset.not_ready_addresses.iter().map(|address| (address, false));
        for (address, ready) in ready.chain(not_ready) {
            addresses.entry(identity(address)).or_insert(address);
            for port in &ports {
                let offers = offers.entry(*port).or_default();
                *offers.entry(identity(address)).or_insert(true) &= ready;
            }
        }
    }
    let mut alike: BTreeMap<Vec<(Identity, bool)>, Vec<&Port>> = BTreeMap::new();
    for (port, offered) in offers {
        alike.entry(offered.into_iter().collect()).or_default().extend(port);
    }
    let subset = |(offered, ports): (Vec<(Identity, bool)>, Vec<&Port>)| {
        let only = |ready: bool| {
            let chosen = offered.iter().filter(move |(_, is_ready)| *is_ready == ready);
            chosen.map(|(identity, _)| addresses[identity].clone()).collect()
        };
        Subset {
            addresses: only(true),
            not_ready_addresses: only(false),
            ports: ports.into_iter().cloned().collect(),
        }
    };
    let mut subsets: Vec<Subset> = alike.into_iter().map(subset).collect();
    subsets.sort_by(|a, b| a.ports.cmp(&b.ports));
    subsets
}

/// Leaves out what is too much, a like share of each subset, and what is not ready first. Says whether it had to.
pub(super) fn truncate(subsets: &mut [Subset]) -> bool {
    let ready: usize = subsets.iter().map(|s| s.addresses.len()).sum();
    let not_ready: usize = subsets.iter().map(|s| s.not_ready_addresses.len()).sum();
    if ready + not_ready <= MAX {
        return false;
    }
    if ready > MAX {
        subsets.iter_mut().for_each(|subset| subset.not_ready_addresses.clear());
        cut(subsets.iter_mut().map(|s| &mut s.addresses), ready, MAX);
    } else {
        cut(
            subsets.iter_mut().map(|s| &mut s.not_ready_addresses),
            not_ready,
            MAX - ready,
        );
    }
    true
}

fn cut<'a>(lists: impl Iterator<Item = &'a mut Vec<Address>>, total: usize, room: usize) {
    let mut left = room;
    for list in lists {
        let share = (list.len() * room).div_ceil(total).min(left);
        list.truncate(share);
        left -= list.len();
    }
}
