//! IPVS in the kernel, over generic netlink (family "IPVS"): virtual servers, real servers, timeouts.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use netlink_sys::protocols::NETLINK_GENERIC;

use super::operations::VirtualServer;
use super::render::{At, ServerKey};
use crate::plan::{Family, Protocol};
use orlop_netlink::{
    self as netlink, Connection, DUMP, Message, Response, attributes, family_number, ip, octets, text,
};

const CONTROL: u16 = 0x10;
const CONTROL_GET_FAMILY: u8 = 3;
const CONTROL_FAMILY_ID: u16 = 1;
const CONTROL_FAMILY_NAME: u16 = 2;

/// Command and version, then two bytes that nothing uses.
const HEADER: usize = 4;

const NEW_SERVICE: u8 = 1;
const SET_SERVICE: u8 = 2;
const DELETE_SERVICE: u8 = 3;
const GET_SERVICE: u8 = 4;
const NEW_DESTINATION: u8 = 5;
const SET_DESTINATION: u8 = 6;
const DELETE_DESTINATION: u8 = 7;
const GET_DESTINATION: u8 = 8;
const SET_CONFIG: u8 = 12;
const GET_INFO: u8 = 15;

const SERVICE: u16 = 1;
const DESTINATION: u16 = 2;
const TIMEOUT_TCP: u16 = 4;
const TIMEOUT_TCP_FIN: u16 = 5;
const TIMEOUT_UDP: u16 = 6;

const SERVICE_FAMILY: u16 = 1;
const SERVICE_PROTOCOL: u16 = 2;
const SERVICE_ADDRESS: u16 = 3;
const SERVICE_PORT: u16 = 4;
const SERVICE_MARK: u16 = 5;
const SERVICE_SCHEDULER: u16 = 6;
const SERVICE_FLAGS: u16 = 7;
const SERVICE_TIMEOUT: u16 = 8;
const SERVICE_NETMASK: u16 = 9;

const DESTINATION_ADDRESS: u16 = 1;
const DESTINATION_PORT: u16 = 2;
const DESTINATION_METHOD: u16 = 3;
const DESTINATION_WEIGHT: u16 = 4;
const DESTINATION_UPPER: u16 = 5;
const DESTINATION_LOWER: u16 = 6;
const DESTINATION_ACTIVE: u16 = 7;
const DESTINATION_INACTIVE: u16 = 8;
const DESTINATION_FAMILY: u16 = 11;

/// Set by the kernel on every service in its table.
const HASHED: u32 = 0x2;
/// Rewrite addresses both ways.
const MASQUERADING: u32 = 0;

/// How a virtual server is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Config {
    pub scheduler: Arc<str>,
    pub flags: u32,
    pub timeout: u32,
}

/// A real server as the kernel has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Real {
    pub address: SocketAddr,
    pub weight: u32,
    pub active: u32,
    pub inactive: u32,
}

impl Real {
    pub(super) fn connections(&self) -> u64 {
        u64::from(self.active) + u64::from(self.inactive)
    }
}

/// A change of the kernel's table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Command {
    NewServer(ServerKey, Config),
    SetServer(ServerKey, Config),
    DeleteServer(ServerKey),
    NewReal(ServerKey, SocketAddr),
    SetReal(ServerKey, SocketAddr, u32),
    DeleteReal(ServerKey, SocketAddr),
}

impl Command {
    pub(super) fn server(&self) -> ServerKey {
        match self {
            Command::NewServer(key, _)
            | Command::SetServer(key, _)
            | Command::DeleteServer(key)
            | Command::NewReal(key, _)
            | Command::SetReal(key, _, _)
            | Command::DeleteReal(key, _) => *key,
        }
    }
}

pub(super) struct Kernel {
    connection: Connection,
    family: u16,
}

impl Kernel {
    /// An error of kind `NotFound` says that the kernel has no IPVS.
    pub(super) fn open() -> io::Result<Kernel> {
        let mut connection = Connection::open(NETLINK_GENERIC)?;
        let mut message = Message::new(CONTROL, 0, &[CONTROL_GET_FAMILY, 1, 0, 0]);
        message.text(CONTROL_FAMILY_NAME, "IPVS");
        let mut family = None;
        connection.request(message, |response| {
            let id = response.attributes(HEADER).get(CONTROL_FAMILY_ID);
            family = id.and_then(|value| netlink::ne16(value, 0));
        })?;
        let family = family.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let mut kernel = Kernel { connection, family };
        // The family may be there while the rest is not, in a namespace that the module does not know.
        let message = kernel.message(GET_INFO, 0);
        kernel.connection.request(message, |_| {})?;
        Ok(kernel)
    }

    fn message(&self, command: u8, flags: u16) -> Message {
        Message::new(self.family, flags, &[command, 1, 0, 0])
    }

    /// Of those that are zero the kernel keeps what it has.
    pub(super) fn set_timeouts(&mut self, tcp: Duration, tcp_fin: Duration, udp: Duration) -> io::Result<()> {
        let mut message = self.message(SET_CONFIG, 0);
        for (kind, timeout) in [(TIMEOUT_TCP, tcp), (TIMEOUT_TCP_FIN, tcp_fin), (TIMEOUT_UDP, udp)] {
            message.ne32(kind, u32::try_from(timeout.as_secs()).unwrap_or(u32::MAX));
        }
        self.connection.request(message, |_| {})
    }

    /// All virtual servers, also those of others.
    pub(super) fn servers(&mut self) -> io::Result<Vec<(ServerKey, VirtualServer)>> {
        let mut found = Vec::new();
        let message = self.message(GET_SERVICE, DUMP);
        self.connection
            .dump(message, |response| found.extend(server(response)))?;
        Ok(found)
    }

    /// The real servers of a virtual server.
    pub(super) fn reals(&mut self, key: ServerKey) -> io::Result<Vec<Real>> {
        let mut found = Vec::new();
        let mut message = self.message(GET_DESTINATION, DUMP);
        message.nested(SERVICE, |m| name(m, key));
        self.connection
            .dump(message, |response| found.extend(real(response, key.family())))?;
        Ok(found)
    }

    /// Does them in order, each by itself; the outcome of each.
    pub(super) fn run(&mut self, commands: &[Command]) -> io::Result<Vec<io::Result<()>>> {
        let mut messages: Vec<Message> = commands.iter().map(|command| self.encode(command)).collect();
        self.connection.pipeline(&mut messages)
    }

    fn encode(&self, command: &Command) -> Message {
        let simple = |code, key| {
            let mut message = self.message(code, 0);
            message.nested(SERVICE, |m| name(m, key));
            message
        };
        match command {
            Command::NewServer(key, config) => self.service(NEW_SERVICE, *key, config),
            Command::SetServer(key, config) => self.service(SET_SERVICE, *key, config),
            Command::DeleteServer(key) => simple(DELETE_SERVICE, *key),
            Command::NewReal(key, real) => {
                let mut message = simple(NEW_DESTINATION, *key);
                message.nested(DESTINATION, |m| destination(m, *real, 1));
                message
            }
            Command::SetReal(key, real, weight) => {
                let mut message = simple(SET_DESTINATION, *key);
                message.nested(DESTINATION, |m| destination(m, *real, *weight));
                message
            }
            Command::DeleteReal(key, real) => {
                let mut message = simple(DELETE_DESTINATION, *key);
                message.nested(DESTINATION, |m| destination(m, *real, 0));
                message
            }
        }
    }

    fn service(&self, code: u8, key: ServerKey, config: &Config) -> Message {
        let mut message = self.message(code, 0);
        message.nested(SERVICE, |m| {
            name(m, key);
            m.text(SERVICE_SCHEDULER, &config.scheduler);
            let mut flags = config.flags.to_ne_bytes().to_vec();
            flags.extend_from_slice(&u32::MAX.to_ne_bytes());
            m.attribute(SERVICE_FLAGS, &flags);
            m.ne32(SERVICE_TIMEOUT, config.timeout);
            // Each client by itself is persistent.
            m.ne32(SERVICE_NETMASK, if key.family() == Family::V4 { u32::MAX } else { 128 });
        });
        message
    }
}

/// What names a virtual server.
fn name(message: &mut Message, key: ServerKey) {
    message.ne16(SERVICE_FAMILY, u16::from(family_number(key.family())));
    match key {
        ServerKey::At(At { protocol, address }) => {
            message.ne16(SERVICE_PROTOCOL, u16::from(protocol.number()));
            message.attribute(SERVICE_ADDRESS, &wide(address.ip()));
            message.attribute(SERVICE_PORT, &address.port().to_be_bytes());
        }
        ServerKey::Marked(_, mark) => {
            message.ne32(SERVICE_MARK, mark);
        }
    }
}

fn destination(message: &mut Message, real: SocketAddr, weight: u32) {
    message.attribute(DESTINATION_ADDRESS, &wide(real.ip()));
    message.attribute(DESTINATION_PORT, &real.port().to_be_bytes());
    message.ne32(DESTINATION_METHOD, MASQUERADING);
    message.ne32(DESTINATION_WEIGHT, weight);
    message.ne32(DESTINATION_UPPER, 0);
    message.ne32(DESTINATION_LOWER, 0);
    let family = family_number(Family::of(real.ip()));
    message.ne16(DESTINATION_FAMILY, u16::from(family));
}

/// Addresses take 16 bytes here, whatever their family.
fn wide(ip: IpAddr) -> [u8; 16] {
    let mut bytes = [0; 16];
    let octets = octets(ip);
    bytes[..octets.len()].copy_from_slice(&octets);
    bytes
}

fn narrow(bytes: &[u8], family: Family) -> Option<IpAddr> {
    ip(bytes.get(..if family == Family::V4 { 4 } else { 16 })?)
}

fn family_of(number: u16) -> Option<Family> {
    netlink::family_of(u8::try_from(number).ok()?)
}

/// The attributes of a nested one, by their numbers.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn within(response: Response<'a>, outer: u16) -> Option<Fields<'a>> {
        response.attributes(HEADER).get(outer).map(Fields)
    }

    fn bytes(&self, wanted: u16) -> Option<&'a [u8]> {
        attributes(self.0).get(wanted)
    }

    fn ne16(&self, wanted: u16) -> Option<u16> {
        netlink::ne16(self.bytes(wanted)?, 0)
    }

    fn be16(&self, wanted: u16) -> Option<u16> {
        self.ne16(wanted).map(u16::from_be)
    }

    fn ne32(&self, wanted: u16) -> Option<u32> {
        netlink::ne32(self.bytes(wanted)?, 0)
    }
}

/// None for what we would never make, such as other protocols.
fn server(response: Response) -> Option<(ServerKey, VirtualServer)> {
    let fields = Fields::within(response, SERVICE)?;
    let family = family_of(fields.ne16(SERVICE_FAMILY)?)?;
    let key = match fields.ne32(SERVICE_MARK) {
        Some(mark) => ServerKey::Marked(family, mark),
        None => {
            let number = fields.ne16(SERVICE_PROTOCOL)?;
            let all = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
            let protocol = all
                .into_iter()
                .find(|protocol| u16::from(protocol.number()) == number)?;
            let ip = narrow(fields.bytes(SERVICE_ADDRESS)?, family)?;
            let address = SocketAddr::new(ip, fields.be16(SERVICE_PORT)?);
            ServerKey::At(At { protocol, address })
        }
    };
    let seen = VirtualServer {
        scheduler: text(fields.bytes(SERVICE_SCHEDULER)?).into(),
        flags: fields.ne32(SERVICE_FLAGS)? & !HASHED,
        timeout: fields.ne32(SERVICE_TIMEOUT)?,
        ..VirtualServer::default()
    };
    Some((key, seen))
}

fn real(response: Response, of_server: Family) -> Option<Real> {
    let fields = Fields::within(response, DESTINATION)?;
    let family = fields.ne16(DESTINATION_FAMILY).and_then(family_of).unwrap_or(of_server);
    let ip = narrow(fields.bytes(DESTINATION_ADDRESS)?, family)?;
    Some(Real {
        address: SocketAddr::new(ip, fields.be16(DESTINATION_PORT)?),
        weight: fields.ne32(DESTINATION_WEIGHT)?,
        active: fields.ne32(DESTINATION_ACTIVE).unwrap_or_default(),
        inactive: fields.ne32(DESTINATION_INACTIVE).unwrap_or_default(),
    })
}
