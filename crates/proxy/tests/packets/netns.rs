//! Network namespaces without names, and the links, addresses and routes in them.
//!
//! A namespace lives as long as its file is open, so nothing is left behind whatever becomes of a test, and tests can't
//! meet each other.

use std::fs::File;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::{fs, thread};

use ipnet::IpNet;
use netlink_sys::protocols::NETLINK_ROUTE;
use nix::net::if_::if_nametoindex;
use nix::sched::{CloneFlags, setns, unshare};
use orlop_netlink::{CREATE, Connection, EXCLUSIVE, Message};

const NEW_LINK: u16 = 16;
const SET_LINK: u16 = 19;
const NEW_ADDRESS: u16 = 20;
const NEW_ROUTE: u16 = 24;

#[derive(Clone)]
pub(crate) struct Netns {
    file: Arc<File>,
}

impl Netns {
    /// A namespace of its own, with its loopback up.
    pub(crate) fn new() -> Netns {
        let file = thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("network namespaces (as root)");
            File::open("/proc/thread-self/ns/net").unwrap()
        });
        let netns = Netns {
            file: Arc::new(file.join().unwrap()),
        };
        netns.enter(|| {
            // Addresses can be used at once.
            set("net/ipv6/conf/all/accept_dad", "0");
            set("net/ipv6/conf/default/accept_dad", "0");
            // Whoever is refused hears of it each time.
            set("net/ipv4/icmp_ratelimit", "0");
            set("net/ipv6/icmp/ratelimit", "0");
            up("lo");
        });
        netns
    }

    /// Does something on a thread that is in this namespace. Processes and sockets it makes are in it too.
    pub(crate) fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let worker = scope.spawn(|| {
                self.set_here();
                work()
            });
            match worker.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// Moves the calling thread into this namespace for good.
    pub(crate) fn set_here(&self) {
        setns(&*self.file, CloneFlags::CLONE_NEWNET).expect("a namespace can be entered");
    }

    /// Packets for others are passed on.
    pub(crate) fn forward(&self) {
        self.enter(|| {
            set("net/ipv4/ip_forward", "1");
            set("net/ipv4/conf/all/send_redirects", "0");
            set("net/ipv4/conf/default/send_redirects", "0");
            set("net/ipv6/conf/all/forwarding", "1");
        });
    }
}

impl AsRawFd for Netns {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

/// Sets a kernel parameter of the namespace one is in.
pub(crate) fn set(name: &str, value: &str) {
    let path = format!("/proc/sys/{name}");
    fs::write(&path, value).unwrap_or_else(|e| panic!("{path} = {value}: {e}"));
}

fn route_socket() -> Connection {
    Connection::open(NETLINK_ROUTE).expect("a route socket")
}

fn request(message: Message, what: &str) {
    route_socket()
        .request(message, |_| {})
        .unwrap_or_else(|e| panic!("{what}: {e}"));
}

fn index(link: &str) -> u32 {
    if_nametoindex(link).unwrap_or_else(|e| panic!("link {link}: {e}"))
}

fn link_header(index: u32, flags: u32) -> [u8; 16] {
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..16].copy_from_slice(&flags.to_ne_bytes());
    header
}

fn push(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    bytes.extend_from_slice(&(value.len() as u16 + 4).to_ne_bytes());
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

/// A cable between two namespaces.
pub(crate) fn cable(left: (&Netns, &str), right: (&Netns, &str)) {
    left.0.enter(|| {
        let mut peer = link_header(0, 0).to_vec();
        push(&mut peer, 3, format!("{}\0", right.1).as_bytes());
        push(&mut peer, 28, &right.0.file.as_raw_fd().to_ne_bytes());
        let mut message = Message::new(NEW_LINK, CREATE | EXCLUSIVE, &link_header(0, 0));
        message.text(3, left.1).nested(18, |info| {
            info.text(1, "veth").nested(2, |data| {
                data.attribute(1, &peer);
            });
        });
        request(message, "a pair of veth devices");
        up(left.1);
    });
    right.0.enter(|| up(right.1));
}

/// A bridge in the namespace one is in.
pub(crate) fn bridge(name: &str) {
    let mut message = Message::new(NEW_LINK, CREATE | EXCLUSIVE, &link_header(0, 0));
    message.text(3, name).nested(18, |info| {
        info.text(1, "bridge");
    });
    request(message, "a bridge");
    up(name);
}

/// Makes a link a port of a bridge; frames may leave by the port they came by.
pub(crate) fn plug(link: &str, bridge: &str) {
    let mut message = Message::new(NEW_LINK, 0, &link_header(index(link), 0));
    message.ne32(10, index(bridge));
    request(message, "a port of a bridge");
    let mut header = link_header(index(link), 0);
    header[0] = 7;
    let mut message = Message::new(SET_LINK, 0, &header);
    message.nested(12, |port| {
        port.attribute(4, &[1]);
    });
    request(message, "hairpin mode of a port");
}

pub(crate) fn up(link: &str) {
    request(Message::new(NEW_LINK, 0, &link_header(index(link), 1)), "a link up");
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

fn family(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 2 } else { 10 }
}

/// Gives a link an address, with the route to its network that the prefix length stands for.
pub(crate) fn address(link: &str, address: IpNet) {
    let mut header = vec![family(address.addr()), address.prefix_len(), 0, 0];
    header.extend_from_slice(&index(link).to_ne_bytes());
    let mut message = Message::new(NEW_ADDRESS, CREATE | EXCLUSIVE, &header);
    let bytes = octets(address.addr());
    message.attribute(1, &bytes).attribute(2, &bytes);
    if address.addr().is_ipv6() {
        // No detection of duplicates.
        message.ne32(8, 2);
    }
    request(message, &format!("address {address} of {link}"));
}

/// A route by a link, and by a gateway if there is one.
pub(crate) fn route(to: IpNet, link: &str, gateway: Option<IpAddr>) {
    const TABLE_MAIN: u8 = 254;
    const BY_ADMINISTRATOR: u8 = 4;
    const UNICAST: u8 = 1;
    let scope = if gateway.is_some() || to.addr().is_ipv6() {
        0
    } else {
        253
    };
    let mut header = vec![family(to.addr()), to.prefix_len(), 0, 0];
    header.extend_from_slice(&[TABLE_MAIN, BY_ADMINISTRATOR, scope, UNICAST, 0, 0, 0, 0]);
    let mut message = Message::new(NEW_ROUTE, CREATE | EXCLUSIVE, &header);
    message.attribute(1, &octets(to.network())).ne32(4, index(link));
    if let Some(gateway) = gateway {
        message.attribute(5, &octets(gateway));
    }
    request(message, &format!("route to {to} by {link} {gateway:?}"));
}
