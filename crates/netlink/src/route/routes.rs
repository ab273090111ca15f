//! Routes of the main table.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::{
    DELETE_ROUTE, GET_ROUTE, MADE_BY_US, NEW_ROUTE, ROUTE_DESTINATION, ROUTE_HEADER, ROUTE_LINK, Route, absent_is_fine,
    has_code,
};
use crate::{CREATE, Family, Message, REPLACE, Response, family_number, family_of, ip, ne32, octets};

const ROUTE_GATEWAY: u16 = 5;
const ROUTE_METRIC: u16 = 6;
const ROUTE_SOURCE: u16 = 7;
const TABLE_MAIN: u8 = 254;
const TYPE_UNICAST: u8 = 1;
const TYPE_UNREACHABLE: u8 = 7;
const SCOPE_LINK: u8 = 253;
/// The gateway is on the link, whatever addresses the link has.
const FLAG_ON_LINK: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RouteKind {
    /// By a link, and by a gateway if there is one.
    Unicast {
        link: Option<u32>,
        gateway: Option<IpAddr>,
        /// The gateway is on the link although no address of the link says so.
        is_on_link: bool,
    },
    /// Whoever sends there is told that there is nobody.
    Unreachable,
}

/// A route of the main table. Metric 0 is the kernel's default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RouteEntry {
    pub to: IpNet,
    pub kind: RouteKind,
    /// The source address of what this host sends that way, where it is not left to the kernel.
    pub source: Option<IpAddr>,
    pub metric: u32,
}

impl RouteEntry {
    /// By a link alone.
    pub fn by_link(to: IpNet, link: u32) -> RouteEntry {
        let kind = RouteKind::Unicast {
            link: Some(link),
            gateway: None,
            is_on_link: false,
        };
        RouteEntry::new(to, kind)
    }

    /// By a gateway, on whatever link it is.
    pub fn by_gateway(to: IpNet, gateway: IpAddr) -> RouteEntry {
        let kind = RouteKind::Unicast {
            link: None,
            gateway: Some(gateway),
            is_on_link: false,
        };
        RouteEntry::new(to, kind)
    }

    pub fn new(to: IpNet, kind: RouteKind) -> RouteEntry {
        RouteEntry {
            to: to.trunc(),
            kind,
            source: None,
            metric: 0,
        }
    }
}

/// `0.0.0.0/0` or `::/0`.
pub fn everywhere(family: Family) -> IpNet {
    IpNet::new_assert(unspecified(family), 0)
}

fn unspecified(family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
        Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
    }
}

impl Route {
    /// Adds a route, or puts it in the place of another to the same destination with the same metric.
    pub fn replace_route(&mut self, route: &RouteEntry) -> io::Result<()> {
        let message = message(NEW_ROUTE, CREATE | REPLACE, route);
        self.connection.request(message, |_| {})
    }

    /// One that is gone is fine.
    pub fn delete_route(&mut self, route: &RouteEntry) -> io::Result<()> {
        let message = message(DELETE_ROUTE, 0, route);
        absent_is_fine(self.connection.request(message, |_| {}))
    }

    /// The routes that `replace_route` made, in this process or an earlier one.
    pub fn our_routes(&mut self) -> io::Result<Vec<RouteEntry>> {
        let mut found = vec![];
        self.dump_routes(|entry, is_ours| found.extend(is_ours.then_some(entry)))?;
        Ok(found)
    }

    /// The link that leads out of this host: that of the default route with the lowest metric, IPv4 first.
    pub fn default_link(&mut self) -> io::Result<Option<u32>> {
        let mut found: Vec<(bool, u32, u32)> = vec![];
        self.dump_routes(|entry, _| {
            if let (0, RouteKind::Unicast { link: Some(link), .. }) = (entry.to.prefix_len(), entry.kind) {
                found.push((entry.to.addr().is_ipv6(), entry.metric, link));
            }
        })?;
        Ok(found.into_iter().min().map(|(_, _, link)| link))
    }

    fn dump_routes(&mut self, mut each: impl FnMut(RouteEntry, bool)) -> io::Result<()> {
        for family in Family::ALL {
            let mut header = [0; ROUTE_HEADER];
            header[0] = family_number(family);
            let message = Message::new(GET_ROUTE, 0, &header);
            let outcome = self.connection.dump(message, |response| {
                if let Some((entry, is_ours)) = read(response) {
                    each(entry, is_ours);
                }
            });
            match outcome {
                // A kernel without IPv6 has no routes of it.
                Err(e) if family == Family::V6 && has_code(&e, nix::libc::EOPNOTSUPP) => {}
                outcome => outcome?,
            }
        }
        Ok(())
    }
}

fn message(kind: u16, how: u16, route: &RouteEntry) -> Message {
    let family = Family::of(route.to.addr());
    let mut header = [0; ROUTE_HEADER];
    header[0] = family_number(family);
    header[1] = route.to.prefix_len();
    header[4] = TABLE_MAIN;
    header[5] = MADE_BY_US;
    header[7] = match route.kind {
        RouteKind::Unicast { .. } => TYPE_UNICAST,
        RouteKind::Unreachable => TYPE_UNREACHABLE,
    };
    if let RouteKind::Unicast {
        gateway, is_on_link, ..
    } = route.kind
    {
        if gateway.is_none() && family == Family::V4 {
            header[6] = SCOPE_LINK;
        }
        if is_on_link {
            header[8..12].copy_from_slice(&FLAG_ON_LINK.to_ne_bytes());
        }
    }
    let mut message = Message::new(kind, how, &header);
    if route.to.prefix_len() > 0 {
        message.attribute(ROUTE_DESTINATION, &octets(route.to.network()));
    }
    if let RouteKind::Unicast { link, gateway, .. } = route.kind {
        if let Some(link) = link {
            message.ne32(ROUTE_LINK, link);
        }
        if let Some(gateway) = gateway {
            message.attribute(ROUTE_GATEWAY, &octets(gateway));
        }
    }
    if let Some(source) = route.source {
        message.attribute(ROUTE_SOURCE, &octets(source));
    }
    if route.metric > 0 {
        message.ne32(ROUTE_METRIC, route.metric);
    }
    message
}

/// A route of the main table, and whether it is one of ours.
fn read(response: Response) -> Option<(RouteEntry, bool)> {
    let header = response.payload.get(..ROUTE_HEADER)?;
    if response.kind != NEW_ROUTE || header[4] != TABLE_MAIN {
        return None;
    }
    let of = |kind| response.attributes(ROUTE_HEADER).get(kind);
    let address = |kind| of(kind).and_then(ip);
    let kind = match header[7] {
        TYPE_UNICAST => RouteKind::Unicast {
            link: of(ROUTE_LINK).and_then(|value| ne32(value, 0)),
            gateway: address(ROUTE_GATEWAY),
            is_on_link: ne32(header, 8)? & FLAG_ON_LINK != 0,
        },
        TYPE_UNREACHABLE => RouteKind::Unreachable,
        _ => return None,
    };
    let to = address(ROUTE_DESTINATION).unwrap_or(unspecified(family_of(header[0])?));
    let entry = RouteEntry {
        to: IpNet::new(to, header[1]).ok()?,
        kind,
        source: address(ROUTE_SOURCE),
        metric: of(ROUTE_METRIC).and_then(|value| ne32(value, 0)).unwrap_or(0),
    };
    Some((entry, header[5] == MADE_BY_US))
}
