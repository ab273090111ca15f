//! Who is reached at which hardware address: neighbours (ARP, NDP) and the forwarding entries of VXLAN devices.

use std::io;
use std::net::IpAddr;

use super::{Route, absent_is_fine};
use crate::{CREATE, Family, Message, REPLACE, Response, family_number, ip, ne16, ne32, octets};

const NEW_NEIGHBOUR: u16 = 28;
const DELETE_NEIGHBOUR: u16 = 29;
const GET_NEIGHBOUR: u16 = 30;
const NEIGHBOUR_HEADER: usize = 12;
const DESTINATION: u16 = 1;
const HARDWARE_ADDRESS: u16 = 2;
const PERMANENT: u16 = 0x80;
/// An entry of the device itself, not of a bridge that it is a port of.
const FLAG_SELF: u8 = 0x02;
const FAMILY_BRIDGE: u8 = 7;

/// An Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    pub(super) fn read(bytes: &[u8]) -> Option<Mac> {
        Some(Mac(bytes.try_into().ok()?))
    }
}

/// An address that is reached by a hardware address, for as long as the entry is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Neighbour {
    pub ip: IpAddr,
    pub mac: Mac,
}

/// To which host a VXLAN device sends frames for a hardware address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ForwardingEntry {
    pub mac: Mac,
    pub to: IpAddr,
}

impl Route {
    /// The permanent neighbours of a link, both families.
    pub fn neighbours(&mut self, link: u32) -> io::Result<Vec<Neighbour>> {
        let mut found = vec![];
        for family in Family::ALL {
            self.dump_neighbours(family_number(family), link, |ip, mac| found.push(Neighbour { ip, mac }))?;
        }
        Ok(found)
    }

    pub fn put_neighbour(&mut self, link: u32, neighbour: Neighbour) -> io::Result<()> {
        let family = family_number(Family::of(neighbour.ip));
        let message = entry(NEW_NEIGHBOUR, family, link, 0, neighbour.ip, neighbour.mac);
        self.connection.request(message, |_| {})
    }

    pub fn delete_neighbour(&mut self, link: u32, neighbour: Neighbour) -> io::Result<()> {
        let family = family_number(Family::of(neighbour.ip));
        let message = entry(DELETE_NEIGHBOUR, family, link, 0, neighbour.ip, neighbour.mac);
        absent_is_fine(self.connection.request(message, |_| {}))
    }

    /// The permanent forwarding entries of a VXLAN device.
    pub fn forwarding_entries(&mut self, link: u32) -> io::Result<Vec<ForwardingEntry>> {
        let mut found = vec![];
        self.dump_neighbours(FAMILY_BRIDGE, link, |to, mac| found.push(ForwardingEntry { mac, to }))?;
        Ok(found)
    }

    pub fn put_forwarding_entry(&mut self, link: u32, to: ForwardingEntry) -> io::Result<()> {
        let message = entry(NEW_NEIGHBOUR, FAMILY_BRIDGE, link, FLAG_SELF, to.to, to.mac);
        self.connection.request(message, |_| {})
    }

    pub fn delete_forwarding_entry(&mut self, link: u32, to: ForwardingEntry) -> io::Result<()> {
        let message = entry(DELETE_NEIGHBOUR, FAMILY_BRIDGE, link, FLAG_SELF, to.to, to.mac);
        absent_is_fine(self.connection.request(message, |_| {}))
    }

    fn dump_neighbours(&mut self, family: u8, link: u32, mut each: impl FnMut(IpAddr, Mac)) -> io::Result<()> {
        let message = Message::new(GET_NEIGHBOUR, 0, &header(family, 0, 0));
        self.connection.dump(message, |response| {
            if let Some((ip, mac)) = permanent(response, link) {
                each(ip, mac);
            }
        })
    }
}

fn header(family: u8, link: u32, flags: u8) -> [u8; NEIGHBOUR_HEADER] {
    let mut header = [0; NEIGHBOUR_HEADER];
    header[0] = family;
    header[4..8].copy_from_slice(&link.to_ne_bytes());
    header[8..10].copy_from_slice(&PERMANENT.to_ne_bytes());
    header[10] = flags;
    header
}

fn entry(kind: u16, family: u8, link: u32, flags: u8, to: IpAddr, mac: Mac) -> Message {
    let how = if kind == NEW_NEIGHBOUR { CREATE | REPLACE } else { 0 };
    let mut message = Message::new(kind, how, &header(family, link, flags));
    message
        .attribute(DESTINATION, &octets(to))
        .attribute(HARDWARE_ADDRESS, &mac.0);
    message
}

fn permanent(response: Response, link: u32) -> Option<(IpAddr, Mac)> {
    let ours = response.kind == NEW_NEIGHBOUR
        && ne32(response.payload, 4)? == link
        && ne16(response.payload, 8)? & PERMANENT != 0;
    let of = |kind| response.attributes(NEIGHBOUR_HEADER).get(kind);
    let destination = ours.then(|| of(DESTINATION)).flatten().and_then(ip)?;
    Some((destination, Mac::read(of(HARDWARE_ADDRESS)?)?))
}
