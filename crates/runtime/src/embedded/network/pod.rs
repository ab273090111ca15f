//! The pod's end of its link.

use std::io;
use std::net::IpAddr;

use ipnet::IpNet;
use orlop_netlink::route::{Link, Route, RouteEntry, RouteKind, everywhere};
use orlop_netlink::{Family, Namespace};

use super::error::{Result, kernel};
use super::node;

pub(super) const LINK: &str = "eth0";

/// An address of a pod and where its packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PodAddress {
    pub ip: IpAddr,
    pub gateway: IpAddr,
}

/// The pod's link, if there is one.
pub(super) fn find(namespace: &Namespace) -> Result<Option<Link>> {
    let inside = namespace.run(|| Route::open()?.link(LINK)).and_then(|found| found);
    inside.map_err(kernel("find the pod's link"))
}

/// Gives the link its addresses and routes. What is there already is fine.
pub(super) fn set_up(namespace: &Namespace, addresses: &[PodAddress]) -> Result<()> {
    let inside = namespace.run(|| set_up_here(addresses));
    inside.map_err(kernel("enter the pod's network namespace"))?
}

fn set_up_here(addresses: &[PodAddress]) -> Result<()> {
    // Packets that come back by the link that they left by are no reason to leave the gateway out.
    node::set_unless_same("net/ipv4/conf/all/accept_redirects", "0")?;
    node::set_unless_same(&format!("net/ipv4/conf/{LINK}/accept_redirects"), "0")?;
    if addresses.iter().any(|address| address.ip.is_ipv6()) {
        node::set_unless_same(&format!("net/ipv6/conf/{LINK}/disable_ipv6"), "0")?;
        node::set_unless_same(&format!("net/ipv6/conf/{LINK}/accept_dad"), "0")?;
        node::set_unless_same(&format!("net/ipv6/conf/{LINK}/accept_ra"), "0")?;
        node::set_unless_same(&format!("net/ipv6/conf/{LINK}/accept_redirects"), "0")?;
    }
    configure(addresses).map_err(kernel("configure the pod's link"))
}

fn configure(addresses: &[PodAddress]) -> io::Result<()> {
    let mut route = Route::open()?;
    let gone = |name| io::Error::new(io::ErrorKind::NotFound, format!("no link {name}"));
    let loopback = route.link("lo")?.ok_or_else(|| gone("lo"))?;
    if !loopback.is_up {
        route.set_up(loopback.index)?;
    }
    let link = route.link(LINK)?.ok_or_else(|| gone(LINK))?;
    for address in addresses {
        route.add_address(link.index, address.ip)?;
    }
    if !link.is_up {
        route.set_up(link.index)?;
    }
    for address in addresses {
        for entry in routes(link.index, *address) {
            route.replace_route(&entry)?;
        }
    }
    Ok(())
}

/// Everything goes to the gateway, which no address of the link says where to find.
fn routes(link: u32, address: PodAddress) -> [RouteEntry; 2] {
    let by_gateway = RouteKind::Unicast {
        link: Some(link),
        gateway: Some(address.gateway),
        is_on_link: false,
    };
    [
        RouteEntry::by_link(IpNet::from(address.gateway), link),
        RouteEntry::new(everywhere(Family::of(address.ip)), by_gateway),
    ]
}
