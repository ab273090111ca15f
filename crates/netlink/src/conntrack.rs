//! Flows in the kernel's table, over netlink (ctnetlink).

use std::io;
use std::net::{IpAddr, SocketAddr};

use netlink_sys::protocols::NETLINK_NETFILTER;
use nix::errno::Errno;

use crate::{Connection, Family, Message, Protocol, Response, attributes, family_number, ip};

const GET: u16 = 1 << 8 | 1;
const DELETE: u16 = 1 << 8 | 2;
/// Family, version, resource.
const HEADER: usize = 4;

const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;
const ID: u16 = 12;
const ZONE: u16 = 18;
const FILTER: u16 = 25;

const TUPLE_IP: u16 = 1;
const TUPLE_PROTOCOL: u16 = 2;
const PROTOCOL_NUMBER: u16 = 1;
const SOURCE_PORT: u16 = 2;
const DESTINATION_PORT: u16 = 3;

const FILTER_ORIGINAL: u16 = 1;
const FILTER_REPLY: u16 = 2;
const BY_PROTOCOL: u32 = 1 << 3;

const NESTED: u16 = 0x8000;
/// How many flows are deleted in one go.
const BATCH: usize = 256;

/// A flow and what names it to the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    pub source: SocketAddr,
    /// Where its client thinks that it goes.
    pub destination: SocketAddr,
    /// Where it really goes.
    pub answered_by: SocketAddr,
    name: Name,
}

/// Attributes as they came, to be given back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Name {
    tuple: Vec<u8>,
    id: Option<Vec<u8>>,
    zone: Option<Vec<u8>>,
}

impl Flow {
    /// One that no kernel has a name for: to try decisions about flows with.
    pub fn unnamed(source: SocketAddr, destination: SocketAddr, answered_by: SocketAddr) -> Flow {
        Flow {
            source,
            destination,
            answered_by,
            name: Name::default(),
        }
    }
}

/// The table of the network namespace in which it was opened.
pub struct Conntrack {
    connection: Connection,
}

impl Conntrack {
    pub fn open() -> io::Result<Conntrack> {
        let connection = Connection::open(NETLINK_NETFILTER)?;
        Ok(Conntrack { connection })
    }

    /// The flows of a protocol that are wanted; only those are kept while the table is read.
    pub fn flows(
        &mut self,
        family: Family,
        protocol: Protocol,
        is_wanted: impl Fn(&Flow) -> bool,
    ) -> io::Result<Vec<Flow>> {
        let plain = || Message::new(GET, 0, &header(family));
        let mut filtered = plain();
        filtered
            .nested(ORIGINAL, |m| {
                m.nested(TUPLE_PROTOCOL, |m| {
                    m.attribute(PROTOCOL_NUMBER, &[protocol.number()]);
                });
            })
            .nested(FILTER, |m| {
                m.ne32(FILTER_ORIGINAL, BY_PROTOCOL).ne32(FILTER_REPLY, 0);
            });
        match self.dump(filtered, protocol, &is_wanted) {
            // Before 5.8 the kernel gives all or nothing.
            Err(e) if is_unknown(&e) => self.dump(plain(), protocol, &is_wanted),
            done => done,
        }
    }

    fn dump(
        &mut self,
        message: Message,
        protocol: Protocol,
        is_wanted: &impl Fn(&Flow) -> bool,
    ) -> io::Result<Vec<Flow>> {
        let mut found = vec![];
        let keep = |response: Response| found.extend(flow(response, protocol).filter(|flow| is_wanted(flow)));
        self.connection.dump(message, keep)?;
        Ok(found)
    }

    /// How many were still there.
    pub fn delete(&mut self, family: Family, flows: &[Flow]) -> io::Result<usize> {
        let mut deleted = 0;
        for part in flows.chunks(BATCH) {
            let mut messages: Vec<Message> = part.iter().map(|flow| delete(family, flow)).collect();
            for outcome in self.connection.pipeline(&mut messages)? {
                match outcome {
                    Ok(()) => deleted += 1,
                    Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(deleted)
    }
}

fn is_unknown(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(Errno::from_raw);
    matches!(code, Some(Errno::EINVAL | Errno::EOPNOTSUPP))
}

fn header(family: Family) -> [u8; HEADER] {
    [family_number(family), 0, 0, 0]
}

fn delete(family: Family, flow: &Flow) -> Message {
    let mut message = Message::new(DELETE, 0, &header(family));
    message.attribute(ORIGINAL | NESTED, &flow.name.tuple);
    // A new flow with the same addresses has another number, and stays.
    for (kind, value) in [(ID, &flow.name.id), (ZONE, &flow.name.zone)] {
        if let Some(value) = value {
            message.attribute(kind, value);
        }
    }
    message
}

fn flow(response: Response, protocol: Protocol) -> Option<Flow> {
    let (mut original, mut reply, mut name) = (None, None, Name::default());
    for (kind, value) in response.attributes(HEADER) {
        match kind {
            ORIGINAL => {
                original = tuple(value, protocol);
                name.tuple = value.to_vec();
            }
            REPLY => reply = tuple(value, protocol),
            ID => name.id = Some(value.to_vec()),
            ZONE => name.zone = Some(value.to_vec()),
            _ => {}
        }
    }
    let ((source, destination), (answered_by, _)) = (original?, reply?);
    Some(Flow {
        source,
        destination,
        answered_by,
        name,
    })
}

/// Source and destination, if it is of that protocol.
fn tuple(bytes: &[u8], protocol: Protocol) -> Option<(SocketAddr, SocketAddr)> {
    let mut ips = attributes(attributes(bytes).get(TUPLE_IP)?).filter_map(|(_, value)| ip(value));
    let (source, destination): (IpAddr, IpAddr) = (ips.next()?, ips.next()?);
    let rest = attributes(bytes).get(TUPLE_PROTOCOL)?;
    if attributes(rest).get(PROTOCOL_NUMBER)? != [protocol.number()] {
        return None;
    }
    let port = |kind| Some(u16::from_be_bytes(attributes(rest).get(kind)?.try_into().ok()?));
    Some((
        SocketAddr::new(source, port(SOURCE_PORT)?),
        SocketAddr::new(destination, port(DESTINATION_PORT)?),
    ))
}
