//! An address for a machine that has none but loopback, such as a laptop without a network: nodes, and the API server as pods
//! reach it, need one. It is on `lo`, and leads nowhere else.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use orlop_kubelet::node::address;
use orlop_netlink::route::{AddressChange, Route};

use super::{Machine, Purge, Removal};
use crate::data_dir;
use crate::nodes::{ranges, used_networks};

pub(super) const REMOVAL: Removal = Removal {
    what: "the node's address",
    run: |purge| Box::pin(run(purge)),
};

const LOOPBACK: &str = "lo";

/// The address of this machine's node: one that it has, else one that it is given, the same at every start.
pub(crate) fn node_address(data_dir: &Path) -> io::Result<IpAddr> {
    let found = address::default_address();
    if !found.is_loopback() {
        return Ok(found);
    }
    let own = match Machine::read(data_dir)?.own_address {
        Some(own) => own,
        None => choose(data_dir)?,
    };
    let mut route = Route::open()?;
    let loopback = route.link(LOOPBACK)?.ok_or(io::ErrorKind::NotFound)?;
    // A new network namespace has it down.
    route.set_up(loopback.index)?;
    route.add_address(loopback.index, own.into())?;
    tracing::info!(address = %own, "found no address but loopback, gave one to this machine");
    Ok(own.into())
}

/// Written down before it is there, so that a purge finds it.
fn choose(data_dir: &Path) -> io::Result<Ipv4Addr> {
    let seed = data_dir::absolute(data_dir)
        .display()
        .to_string()
        .bytes()
        .map(u64::from)
        .sum();
    let range = ranges::choose_node_range(seed, &used_networks()?);
    let range = range.ok_or_else(|| io::Error::other("all of 172.30.0.0/16 is in use"))?;
    let own = ranges::gateway(range);
    let machine = Machine {
        made_data_dir: data_dir::is_vacant(data_dir),
        own_address: Some(own),
        ..Machine::default()
    };
    data_dir::create_private(data_dir)?;
    Machine::record(data_dir, machine)?;
    Ok(own)
}

async fn run(purge: &mut Purge) {
    let Some(own) = purge.machine.own_address else { return };
    let removed = Route::open().and_then(|mut route| {
        let there = route.addresses()?.iter().any(|address| address.ip == own);
        if let Some(loopback) = route.link(LOOPBACK)?.filter(|_| there) {
            route.change_addresses(loopback.index, &[AddressChange::Remove(own.into())])?;
        }
        Ok(there)
    });
    match removed {
        Ok(true) => purge.removed(format!("address {own}")),
        Ok(false) => {}
        Err(error) => purge.failed(&format!("address {own}"), error),
    }
}
