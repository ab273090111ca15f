//! Which addresses are made local, and the routes that do it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;

use ipnet::IpNet;
use nix::libc;

use crate::backend::{Error, Result};
use orlop_netlink::route::Route;

/// Ranges stand for all addresses in them; an address outside has a route of its own for as long as a service has it.
pub(super) struct Routes {
    ranges: Vec<IpNet>,
    /// How many service ports need a route, and whether it is there.
    wanted: BTreeMap<IpNet, LocalRoute>,
    /// Those to be looked at.
    stale: BTreeSet<IpNet>,
    /// Addresses that are local anyway.
    own: HashSet<IpAddr>,
    loopback: u32,
    allowed: bool,
    has_warned: bool,
}

#[derive(Default)]
struct LocalRoute {
    users: usize,
    there: bool,
}

impl Routes {
    pub(super) fn new(ranges: Vec<IpNet>) -> Routes {
        let mut routes = Routes {
            ranges: ranges.iter().map(IpNet::trunc).collect(),
            wanted: BTreeMap::new(),
            stale: BTreeSet::new(),
            own: HashSet::new(),
            loopback: 1,
            allowed: true,
            has_warned: false,
        };
        routes.forget();
        routes
    }

    /// Routes may be made, as far as is known.
    pub(super) fn allowed(&self) -> bool {
        self.allowed
    }

    /// Routes in place.
    pub(super) fn len(&self) -> usize {
        self.wanted.values().filter(|wanted| wanted.there).count()
    }

    fn route_for(&self, ip: IpAddr) -> Option<IpNet> {
        let covered = self.ranges.iter().any(|range| range.contains(&ip));
        (!covered && !ip.is_loopback()).then(|| IpNet::from(ip))
    }

    pub(super) fn claim(&mut self, addresses: impl Iterator<Item = IpAddr>) {
        for ip in addresses {
            if let Some(route) = self.route_for(ip) {
                self.wanted.entry(route).or_default().users += 1;
                self.stale.insert(route);
            }
        }
    }

    pub(super) fn release(&mut self, addresses: impl Iterator<Item = IpAddr>) {
        for ip in addresses {
            if let Some(route) = self.route_for(ip)
                && let Some(wanted) = self.wanted.get_mut(&route)
            {
                wanted.users = wanted.users.saturating_sub(1);
                self.stale.insert(route);
            }
        }
    }

    /// Finds what is in the kernel. What an earlier process left is kept if it is still needed.
    pub(super) fn compare(&mut self, route: &mut Route, own: &HashSet<IpAddr>) -> Result<()> {
        self.own.clone_from(own);
        if let Ok(Some(lo)) = route.link("lo") {
            self.loopback = lo.index;
        }
        let found = route
            .local_routes()
            .map_err(|e| Error(format!("failed to list routes: {e}")))?;
        let found: BTreeSet<IpNet> = found.into_iter().map(|(range, _)| range).collect();
        for (range, wanted) in &mut self.wanted {
            wanted.there = found.contains(range);
        }
        for range in found {
            self.wanted.entry(range).or_default().there = true;
        }
        self.stale.extend(self.wanted.keys().copied());
        // Perhaps this process may now what it might not before.
        self.allowed = true;
        Ok(())
    }

    /// Makes and takes away routes; how many.
    pub(super) fn apply(&mut self) -> Result<usize> {
        let stale = std::mem::take(&mut self.stale);
        let is_own = |range: &IpNet| range.prefix_len() == range.max_prefix_len() && self.own.contains(&range.addr());
        let needed = |range: &IpNet, wanted: &LocalRoute| (wanted.users > 0 && !is_own(range)) != wanted.there;
        let due: Vec<IpNet> = stale
            .into_iter()
            .filter(|range| self.wanted.get(range).is_some_and(|wanted| needed(range, wanted)))
            .collect();
        let mut written = 0;
        if !due.is_empty() && self.allowed {
            let mut route = Route::open().map_err(|e| Error(format!("failed to open a route socket: {e}")))?;
            for range in &due {
                written += self.change(&mut route, *range)?;
            }
        }
        self.wanted.retain(|_, wanted| wanted.users > 0 || wanted.there);
        Ok(written)
    }

    fn change(&mut self, route: &mut Route, range: IpNet) -> Result<usize> {
        let Some(wanted) = self.wanted.get_mut(&range).filter(|_| self.allowed) else {
            return Ok(0);
        };
        let outcome = match wanted.there {
            false => route.add_local_route(range, self.loopback),
            true => route.remove_local_route(range, self.loopback),
        };
        match outcome {
            Ok(()) => {
                wanted.there = !wanted.there;
                Ok(1)
            }
            Err(e) if [Some(libc::EPERM), Some(libc::EACCES)].contains(&e.raw_os_error()) => {
                self.allowed = false;
                if !std::mem::replace(&mut self.has_warned, true) {
                    tracing::warn!(
                        "serving services on node ports and addresses of this node only: not allowed to add routes \
                         (CAP_NET_ADMIN)"
                    );
                }
                Ok(0)
            }
            // Such as an IPv6 range on a machine without IPv6: its services are not supported then, the others are.
            Err(e) => {
                tracing::warn!(%range, err = %e, "failed to change local route");
                Ok(0)
            }
        }
    }

    /// As if no service were there; the ranges are wanted by themselves.
    pub(super) fn forget(&mut self) {
        for wanted in self.wanted.values_mut() {
            wanted.users = 0;
        }
        for range in self.ranges.clone() {
            self.wanted.entry(range).or_default().users = 1;
        }
        self.stale.extend(self.wanted.keys().copied());
    }

    /// Takes away all that this process or an earlier one has made.
    pub(super) fn remove_all(&mut self) -> Result<()> {
        let mut route = Route::open().map_err(|e| Error(format!("failed to open a route socket: {e}")))?;
        let found = route
            .local_routes()
            .map_err(|e| Error(format!("failed to list routes: {e}")))?;
        for (range, link) in found {
            let removed = route.remove_local_route(range, link);
            removed.map_err(|e| Error(format!("failed to delete the local route to {range}: {e}")))?;
        }
        self.wanted.clear();
        self.forget();
        Ok(())
    }
}
