//! Links, addresses, routes and neighbours of one network namespace (rtnetlink).

mod links;
mod neighbours;
mod routes;

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use netlink_sys::protocols::NETLINK_ROUTE;

use crate::Family;
pub use links::{Veth, Vxlan};
pub use neighbours::{ForwardingEntry, Mac, Neighbour};
pub use routes::{RouteEntry, RouteKind, everywhere};

use crate::{
    CREATE, Connection, EXCLUSIVE, Message, Response, attributes, family_number, family_of, ip, ne32, octets, text,
};

const NEW_LINK: u16 = 16;
const DELETE_LINK: u16 = 17;
const GET_LINK: u16 = 18;
const NEW_ADDRESS: u16 = 20;
const DELETE_ADDRESS: u16 = 21;
const GET_ADDRESS: u16 = 22;
const NEW_ROUTE: u16 = 24;
const DELETE_ROUTE: u16 = 25;
const GET_ROUTE: u16 = 26;

const LINK_HEADER: usize = 16;
const LINK_ADDRESS: u16 = 1;
const LINK_NAME: u16 = 3;
const LINK_MTU: u16 = 4;
const LINK_PEER: u16 = 5;
const LINK_INFO: u16 = 18;
const LINK_INFO_KIND: u16 = 1;
const LINK_FLAG_UP: u32 = 1;

const ADDRESS_HEADER: usize = 8;
const ADDRESS_PEER: u16 = 1;
const ADDRESS_LOCAL: u16 = 2;
const ADDRESS_FLAGS: u16 = 8;
/// No detection of duplicates: the address may be used at once.
const ADDRESS_FLAG_NODAD: u32 = 2;

const ROUTE_HEADER: usize = 12;
const ROUTE_DESTINATION: u16 = 1;
const ROUTE_LINK: u16 = 4;
const TABLE_LOCAL: u8 = 255;
const TYPE_LOCAL: u8 = 2;
const SCOPE_HOST: u8 = 254;
/// Who made a route, so that ours are told from the kernel's and from other programs'.
const MADE_BY_US: u8 = 79;

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    pub index: u32,
    pub name: String,
    /// `dummy`, `veth`, `bridge` …; empty for most that are hardware, and the loopback.
    pub kind: String,
    pub mtu: u32,
    pub is_up: bool,
    /// The index of the link that it is on top of, or, of a veth, of its other end; that may be in another namespace.
    pub peer: Option<u32>,
    /// The hardware address of Ethernet devices.
    pub mac: Option<Mac>,
    /// The address that a VXLAN device sends from.
    pub local: Option<IpAddr>,
}

/// An address of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    pub ip: IpAddr,
    pub prefix: u8,
    /// The index of the link that has it.
    pub link: u32,
}

/// A change of one address of a link; the whole address, as /32 or /128.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressChange {
    Add(IpAddr),
    Remove(IpAddr),
}

pub struct Route {
    connection: Connection,
}

impl Route {
    /// For the network namespace of this thread.
    pub fn open() -> io::Result<Route> {
        let connection = Connection::open(NETLINK_ROUTE)?;
        Ok(Route { connection })
    }

    pub fn links(&mut self) -> io::Result<Vec<Link>> {
        let mut found = Vec::new();
        let message = Message::new(GET_LINK, 0, &[0; LINK_HEADER]);
        self.connection.dump(message, |response| found.extend(link(response)))?;
        Ok(found)
    }

    pub fn link(&mut self, name: &str) -> io::Result<Option<Link>> {
        let mut message = Message::new(GET_LINK, 0, &[0; LINK_HEADER]);
        message.text(LINK_NAME, name);
        let mut found = None;
        match self.connection.request(message, |response| found = link(response)) {
            Err(e) if has_code(&e, nix::libc::ENODEV) => Ok(None),
            Err(e) => Err(e),
            Ok(()) => Ok(found),
        }
    }

    /// Makes a dummy device unless there is a device of that name.
    pub fn ensure_dummy(&mut self, name: &str) -> io::Result<Link> {
        if let Some(found) = self.link(name)? {
            return Ok(found);
        }
        let mut message = Message::new(NEW_LINK, CREATE | EXCLUSIVE, &[0; LINK_HEADER]);
        message.text(LINK_NAME, name).nested(LINK_INFO, |info| {
            info.text(LINK_INFO_KIND, "dummy");
        });
        match self.connection.request(message, |_| {}) {
            Err(e) if !has_code(&e, nix::libc::EEXIST) => return Err(e),
            _ => {}
        }
        let found = self.link(name)?;
        found.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                format!("device {name} was made and is not there"),
            )
        })
    }

    /// Deletes a device; none of that index is fine.
    pub fn delete_link(&mut self, index: u32) -> io::Result<()> {
        let mut header = [0; LINK_HEADER];
        header[4..8].copy_from_slice(&index.to_ne_bytes());
        let message = Message::new(DELETE_LINK, 0, &header);
        absent_is_fine(self.connection.request(message, |_| {}))
    }

    /// All addresses of this host, of all its links.
    pub fn addresses(&mut self) -> io::Result<Vec<Address>> {
        let mut found = Vec::new();
        let message = Message::new(GET_ADDRESS, 0, &[0; ADDRESS_HEADER]);
        self.connection
            .dump(message, |response| found.extend(address(response)))?;
        Ok(found)
    }

    /// The addresses under which this host may be reached from elsewhere: without loopback and IPv6 link-local ones, and
    /// without those of the links that are left out.
    pub fn reachable_addresses(&mut self, without: &[u32]) -> io::Result<BTreeSet<IpAddr>> {
        let all = self.addresses()?;
        let wanted = all
            .into_iter()
            .filter(|a| !without.contains(&a.link) && is_reachable(a.ip));
        Ok(wanted.map(|a| a.ip).collect())
    }

    /// Brings addresses onto a link and off it. One that is there already, or gone already, is fine. Those that the link
    /// does not take (IPv6 may be off there), with the reason; the rest is done.
    pub fn change_addresses(&mut self, link: u32, changes: &[AddressChange]) -> io::Result<Vec<(IpAddr, io::Error)>> {
        let mut messages: Vec<Message> = changes.iter().map(|change| address_change(link, *change)).collect();
        let outcomes = self.connection.pipeline(&mut messages)?;
        let mut refused = Vec::new();
        for (outcome, change) in outcomes.into_iter().zip(changes) {
            match change {
                AddressChange::Add(ip) => match present_is_fine(outcome) {
                    // The link itself is gone.
                    Err(e) if has_code(&e, nix::libc::ENODEV) => return Err(e),
                    Err(e) => refused.push((*ip, e)),
                    Ok(()) => {}
                },
                AddressChange::Remove(_) => absent_is_fine(outcome)?,
            }
        }
        Ok(refused)
    }

    /// Gives a link an address that may be used at once, without a route to its network. One that is there is fine.
    pub fn add_address(&mut self, link: u32, ip: IpAddr) -> io::Result<()> {
        let mut message = address_change(link, AddressChange::Add(ip));
        if ip.is_ipv6() {
            message.ne32(ADDRESS_FLAGS, ADDRESS_FLAG_NODAD);
        }
        present_is_fine(self.connection.request(message, |_| {}))
    }

    /// Makes a whole range local to this host, through a link (that of `lo`, mostly): `ip route add local RANGE dev LINK`.
    pub fn add_local_route(&mut self, range: IpNet, link: u32) -> io::Result<()> {
        let message = local_route(NEW_ROUTE, CREATE | EXCLUSIVE, range, link);
        present_is_fine(self.connection.request(message, |_| {}))
    }

    /// Takes away what `add_local_route` made, and only that.
    pub fn remove_local_route(&mut self, range: IpNet, link: u32) -> io::Result<()> {
        let message = local_route(DELETE_ROUTE, 0, range, link);
        absent_is_fine(self.connection.request(message, |_| {}))
    }

    /// The ranges that `add_local_route` made, in this process or an earlier one, with their links.
    pub fn local_routes(&mut self) -> io::Result<Vec<(IpNet, u32)>> {
        let mut found = Vec::new();
        for family in Family::ALL {
            let mut header = [0; ROUTE_HEADER];
            header[0] = family_number(family);
            let message = Message::new(GET_ROUTE, 0, &header);
            let outcome = self
                .connection
                .dump(message, |response| found.extend(our_route(response)));
            match outcome {
                // A kernel without IPv6 has no routes of it.
                Err(e) if family == Family::V6 && has_code(&e, nix::libc::EOPNOTSUPP) => {}
                outcome => outcome?,
            }
        }
        Ok(found)
    }
}

/// Whether others may come by this address: neither loopback nor IPv6 link-local.
pub fn is_reachable(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => !v4.is_loopback(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
    }
}

fn has_code(error: &io::Error, code: i32) -> bool {
    error.raw_os_error() == Some(code)
}

fn present_is_fine(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(e) if has_code(&e, nix::libc::EEXIST) => Ok(()),
        outcome => outcome,
    }
}

fn absent_is_fine(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(e)
            if [
                nix::libc::ENODEV,
                nix::libc::EADDRNOTAVAIL,
                nix::libc::ESRCH,
                nix::libc::ENOENT,
            ]
            .iter()
            .any(|c| has_code(&e, *c)) =>
        {
            Ok(())
        }
        outcome => outcome,
    }
}

fn link(response: Response) -> Option<Link> {
    if response.kind != NEW_LINK {
        return None;
    }
    let mut link = Link {
        index: ne32(response.payload, 4)?,
        name: String::new(),
        kind: String::new(),
        mtu: 0,
        is_up: ne32(response.payload, 8)? & LINK_FLAG_UP != 0,
        peer: None,
        mac: None,
        local: None,
    };
    for (attribute, value) in response.attributes(LINK_HEADER) {
        match attribute {
            LINK_ADDRESS => link.mac = Mac::read(value),
            LINK_NAME => link.name = text(value).to_string(),
            LINK_MTU => link.mtu = ne32(value, 0)?,
            LINK_PEER => link.peer = ne32(value, 0),
            LINK_INFO => {
                link.kind = attributes(value)
                    .get(LINK_INFO_KIND)
                    .map_or_else(String::new, |kind| text(kind).to_string());
                link.local = links::vxlan_local(&link.kind, value);
            }
            _ => {}
        }
    }
    Some(link)
}

fn address(response: Response) -> Option<Address> {
    if response.kind != NEW_ADDRESS {
        return None;
    }
    let prefix = *response.payload.get(1)?;
    let link = ne32(response.payload, 4)?;
    let of = |kind| response.attributes(ADDRESS_HEADER).get(kind).and_then(ip);
    // On a link between two hosts the other end is the first, and on IPv6 there may be no other.
    let ip = of(ADDRESS_LOCAL).or_else(|| of(ADDRESS_PEER))?;
    Some(Address { ip, prefix, link })
}

fn address_change(link: u32, change: AddressChange) -> Message {
    let (kind, flags, ip) = match change {
        AddressChange::Add(ip) => (NEW_ADDRESS, CREATE | EXCLUSIVE, ip),
        AddressChange::Remove(ip) => (DELETE_ADDRESS, 0, ip),
    };
    let bytes = octets(ip);
    let mut header = [0; ADDRESS_HEADER];
    header[0] = family_number(Family::of(ip));
    header[1] = bytes.len() as u8 * 8;
    header[4..8].copy_from_slice(&link.to_ne_bytes());
    let mut message = Message::new(kind, flags, &header);
    message.attribute(ADDRESS_LOCAL, &bytes).attribute(ADDRESS_PEER, &bytes);
    message
}

fn local_route(kind: u16, flags: u16, range: IpNet, link: u32) -> Message {
    let range = range.trunc();
    let mut header = [0; ROUTE_HEADER];
    header[0] = family_number(Family::of(range.addr()));
    header[1] = range.prefix_len();
    header[4] = TABLE_LOCAL;
    header[5] = MADE_BY_US;
    header[6] = SCOPE_HOST;
    header[7] = TYPE_LOCAL;
    let mut message = Message::new(kind, flags, &header);
    message
        .attribute(ROUTE_DESTINATION, &octets(range.addr()))
        .ne32(ROUTE_LINK, link);
    message
}

fn our_route(response: Response) -> Option<(IpNet, u32)> {
    let header = response.payload.get(..ROUTE_HEADER)?;
    if response.kind != NEW_ROUTE || header[5] != MADE_BY_US || header[7] != TYPE_LOCAL {
        return None;
    }
    let of = |kind| response.attributes(ROUTE_HEADER).get(kind);
    let unspecified = match family_of(header[0])? {
        Family::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
    };
    let destination = of(ROUTE_DESTINATION).and_then(ip).unwrap_or(unspecified);
    let link = ne32(of(ROUTE_LINK)?, 0)?;
    Some((IpNet::new(destination, header[1]).ok()?, link))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::in_namespace;

    /// What a dummy device is like is tried where kernels have them: with IPVS.
    #[test]
    fn a_link_takes_and_loses_addresses() {
        in_namespace(|| {
            let mut route = Route::open().unwrap();
            assert_eq!(route.link("kube-ipvs0").unwrap(), None);
            let lo = route.link("lo").unwrap().unwrap();
            assert!(route.links().unwrap().contains(&lo));

            let ips: Vec<IpAddr> = vec!["10.96.0.1".parse().unwrap(), "fd00:10:96::1".parse().unwrap()];
            let add: Vec<_> = ips.iter().map(|ip| AddressChange::Add(*ip)).collect();
            assert!(route.change_addresses(lo.index, &add).unwrap().is_empty());
            assert!(route.change_addresses(lo.index, &add).unwrap().is_empty());
            assert_eq!(
                route.reachable_addresses(&[]).unwrap().into_iter().collect::<Vec<_>>(),
                ips
            );
            assert!(route.reachable_addresses(&[lo.index]).unwrap().is_empty());
            let v6 = route.addresses().unwrap().into_iter().find(|a| a.ip == ips[1]).unwrap();
            assert_eq!((v6.prefix, v6.link), (128, lo.index));

            let remove = [AddressChange::Remove(ips[0])];
            assert!(route.change_addresses(lo.index, &remove).unwrap().is_empty());
            assert!(route.change_addresses(lo.index, &remove).unwrap().is_empty());
            assert_eq!(
                route.reachable_addresses(&[]).unwrap().into_iter().collect::<Vec<_>>(),
                ips[1..]
            );
        });
    }

    #[test]
    fn thousands_of_addresses_go_in_one_call() {
        in_namespace(|| {
            let mut route = Route::open().unwrap();
            let lo = route.link("lo").unwrap().unwrap();
            let add: Vec<_> = (0..3000u32)
                .map(|n| AddressChange::Add(Ipv4Addr::from(0x0a60_0000 + n).into()))
                .collect();
            assert!(route.change_addresses(lo.index, &add).unwrap().is_empty());
            assert_eq!(route.reachable_addresses(&[]).unwrap().len(), 3000);
        });
    }

    #[test]
    fn a_range_becomes_local_and_is_known_as_ours() {
        in_namespace(|| {
            let mut route = Route::open().unwrap();
            let lo = route.link("lo").unwrap().unwrap();
            let status = std::process::Command::new("ip")
                .args(["link", "set", "lo", "up"])
                .status()
                .unwrap();
            assert!(status.success());
            let ranges: [IpNet; 2] = ["10.96.0.0/12".parse().unwrap(), "fd00:10:96::/112".parse().unwrap()];
            for range in ranges {
                route.add_local_route(range, lo.index).unwrap();
                route.add_local_route(range, lo.index).unwrap();
            }
            assert_eq!(route.local_routes().unwrap(), ranges.map(|r| (r, lo.index)));
            std::net::UdpSocket::bind("10.96.3.4:0").expect("the range is local");
            for range in ranges {
                route.remove_local_route(range, lo.index).unwrap();
                route.remove_local_route(range, lo.index).unwrap();
            }
            assert_eq!(route.local_routes().unwrap(), []);
            std::net::UdpSocket::bind("10.96.3.4:0").expect_err("the range is local no more");
        });
    }
}
