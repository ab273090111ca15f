//! Links that are made here: pairs of veth devices, and VXLAN devices.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::{
    DELETE_LINK, LINK_ADDRESS, LINK_FLAG_UP, LINK_HEADER, LINK_INFO, LINK_INFO_KIND, LINK_MTU, LINK_NAME, Mac,
    NEW_LINK, Route, absent_is_fine,
};
use crate::{CREATE, EXCLUSIVE, Message, attributes, ip, octets};

const LINK_INFO_DATA: u16 = 2;
const LINK_GROUP: u16 = 27;
const LINK_NAMESPACE: u16 = 28;
const VETH_PEER: u16 = 1;

const VXLAN_ID: u16 = 1;
const VXLAN_LOCAL: u16 = 4;
const VXLAN_LEARNING: u16 = 7;
const VXLAN_PORT: u16 = 15;
const VXLAN_LOCAL6: u16 = 17;

/// A pair of veth devices, one end of which is in another network namespace.
#[derive(Clone, Copy, Debug)]
pub struct Veth<'a> {
    pub name: &'a str,
    pub peer_name: &'a str,
    pub peer_namespace: BorrowedFd<'a>,
    pub mtu: u32,
}

/// A VXLAN device that learns nothing: where frames go is told by its forwarding entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vxlan<'a> {
    pub name: &'a str,
    /// Its VNI.
    pub id: u32,
    /// The address from which its packets are sent.
    pub local: IpAddr,
    pub port: u16,
    pub mac: Mac,
    pub mtu: u32,
}

/// The header of messages about a link; 0: one that is yet to be made.
fn header(index: u32, flags: u32) -> [u8; LINK_HEADER] {
    let mut header = [0; LINK_HEADER];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    // Which flags are to change.
    header[12..16].copy_from_slice(&flags.to_ne_bytes());
    header
}

fn into_group(name: &str, group: u32) -> Message {
    let mut message = Message::new(NEW_LINK, 0, &header(0, 0));
    message.text(LINK_NAME, name).ne32(LINK_GROUP, group);
    message
}

/// From what a link says of itself (`LINK_INFO`).
pub(super) fn vxlan_local(kind: &str, info: &[u8]) -> Option<IpAddr> {
    let data = attributes(info).get(LINK_INFO_DATA).filter(|_| kind == "vxlan")?;
    let of = |kind| attributes(data).get(kind).and_then(ip);
    of(VXLAN_LOCAL).or_else(|| of(VXLAN_LOCAL6))
}

impl Route {
    /// The other end is made where it belongs, so that nothing has to be moved or renamed. An error if one of the
    /// names is taken.
    pub fn create_veth(&mut self, veth: &Veth) -> io::Result<()> {
        let mut message = Message::new(NEW_LINK, CREATE | EXCLUSIVE, &header(0, 0));
        message.text(LINK_NAME, veth.name).ne32(LINK_MTU, veth.mtu);
        message.nested(LINK_INFO, |info| {
            info.text(LINK_INFO_KIND, "veth").nested(LINK_INFO_DATA, |data| {
                data.nested(VETH_PEER, |peer| {
                    let namespace = veth.peer_namespace.as_raw_fd();
                    peer.header(&header(0, 0))
                        .text(LINK_NAME, veth.peer_name)
                        .ne32(LINK_MTU, veth.mtu)
                        .attribute(LINK_NAMESPACE, &namespace.to_ne_bytes());
                });
            });
        });
        self.connection.request(message, |_| {})
    }

    /// An error if the name is taken.
    pub fn create_vxlan(&mut self, vxlan: &Vxlan) -> io::Result<()> {
        let mut message = Message::new(NEW_LINK, CREATE | EXCLUSIVE, &header(0, 0));
        message.text(LINK_NAME, vxlan.name).ne32(LINK_MTU, vxlan.mtu);
        message.attribute(LINK_ADDRESS, &vxlan.mac.0);
        message.nested(LINK_INFO, |info| {
            info.text(LINK_INFO_KIND, "vxlan").nested(LINK_INFO_DATA, |data| {
                let local = if vxlan.local.is_ipv4() {
                    VXLAN_LOCAL
                } else {
                    VXLAN_LOCAL6
                };
                data.ne32(VXLAN_ID, vxlan.id)
                    .attribute(local, &octets(vxlan.local))
                    .attribute(VXLAN_PORT, &vxlan.port.to_be_bytes())
                    .attribute(VXLAN_LEARNING, &[0]);
            });
        });
        self.connection.request(message, |_| {})
    }

    /// Deletes links by their names, all at once: the kernel waits for the users of what it deletes, which takes as long for
    /// one link as for many. Names that there are no links of are fine. The group's number is one that nobody else has.
    pub fn delete_links(&mut self, names: &[String], group: u32) -> io::Result<()> {
        let mut messages: Vec<Message> = names.iter().map(|name| into_group(name, group)).collect();
        for outcome in self.connection.pipeline(&mut messages)? {
            absent_is_fine(outcome)?;
        }
        let mut message = Message::new(DELETE_LINK, 0, &header(0, 0));
        message.ne32(LINK_GROUP, group);
        absent_is_fine(self.connection.request(message, |_| {}))
    }

    pub fn set_up(&mut self, index: u32) -> io::Result<()> {
        let message = Message::new(NEW_LINK, 0, &header(index, LINK_FLAG_UP));
        self.connection.request(message, |_| {})
    }

    /// Nothing goes through it any more, and the kernel forgets the routes by it.
    pub fn set_down(&mut self, index: u32) -> io::Result<()> {
        let mut header = header(index, 0);
        header[12..16].copy_from_slice(&LINK_FLAG_UP.to_ne_bytes());
        let message = Message::new(NEW_LINK, 0, &header);
        self.connection.request(message, |_| {})
    }
}
