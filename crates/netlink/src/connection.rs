//! Messages with attributes, requests, dumps and batches.
//!
//! Blocking on purpose: the kernel answers while it works. One connection speaks one protocol (netfilter, route,
//! generic); it is bound to the network namespace in which it was opened.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use netlink_sys::{Socket, SocketAddr};
use nix::sys::socket::{setsockopt, sockopt};

use crate::Family;

pub const REQUEST: u16 = 0x1;
pub const ACK: u16 = 0x4;
pub const ECHO: u16 = 0x8;
pub const DUMP: u16 = 0x300;
pub const REPLACE: u16 = 0x100;
pub const EXCLUSIVE: u16 = 0x200;
pub const CREATE: u16 = 0x400;
pub const APPEND: u16 = 0x800;

/// Address families.
const INET: u8 = 2;
const INET6: u8 = 10;

const NOOP: u16 = 1;
const ERROR: u16 = 2;
const DONE: u16 = 3;

/// In the flags of an answer.
const INTERRUPTED: u16 = 0x10;

const HEADER: usize = 16;
const NESTED: u16 = 0x8000;
/// The two highest bits of an attribute's type say how it is made up.
const TYPE_MASK: u16 = 0x3fff;
/// Answers to a dump come in pieces of up to 32 KiB; a batch is acknowledged in small ones.
const RECEIVE: usize = 64 * 1024;

/// A message under construction.
#[derive(Clone, Debug)]
pub struct Message {
    bytes: Vec<u8>,
}

impl Message {
    /// `header` is that of the protocol (nfgenmsg, genlmsghdr, ifaddrmsg …).
    pub fn new(kind: u16, flags: u16, header: &[u8]) -> Message {
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flags | REQUEST).to_ne_bytes());
        bytes.extend_from_slice(header);
        let mut message = Message { bytes };
        message.pad();
        message
    }

    fn pad(&mut self) {
        while !self.bytes.len().is_multiple_of(4) {
            self.bytes.push(0);
        }
    }

    pub fn attribute(&mut self, kind: u16, value: &[u8]) -> &mut Message {
        let length = u16::try_from(value.len() + 4).expect("an attribute is shorter than 64 KiB");
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value);
        self.pad();
        self
    }

    /// A name, with the zero byte that the kernel wants.
    pub fn text(&mut self, kind: u16, value: &str) -> &mut Message {
        let mut bytes = Vec::with_capacity(value.len() + 1);
        bytes.extend_from_slice(value.as_bytes());
        bytes.push(0);
        self.attribute(kind, &bytes)
    }

    /// In network order, as netfilter has its numbers.
    pub fn be32(&mut self, kind: u16, value: u32) -> &mut Message {
        self.attribute(kind, &value.to_be_bytes())
    }

    pub fn be64(&mut self, kind: u16, value: u64) -> &mut Message {
        self.attribute(kind, &value.to_be_bytes())
    }

    /// In the machine's order, as most others have them.
    pub fn ne32(&mut self, kind: u16, value: u32) -> &mut Message {
        self.attribute(kind, &value.to_ne_bytes())
    }

    pub fn ne16(&mut self, kind: u16, value: u16) -> &mut Message {
        self.attribute(kind, &value.to_ne_bytes())
    }

    pub fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Message)) -> &mut Message {
        let start = self.bytes.len();
        self.attribute(kind | NESTED, &[]);
        fill(self);
        let length = u16::try_from(self.bytes.len() - start).expect("nested attributes are shorter than 64 KiB");
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self
    }

    /// Attributes that were written before, without the header of what they were part of.
    pub fn nested_bytes(&mut self, kind: u16, attributes: &[u8]) -> &mut Message {
        self.attribute(kind | NESTED, attributes)
    }

    /// The header of a message within an attribute, such as that of a veth's peer.
    pub fn header(&mut self, header: &[u8]) -> &mut Message {
        self.bytes.extend_from_slice(header);
        self.pad();
        self
    }

    /// How long the message is so far.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.len() <= HEADER
    }

    /// Netlink's header, the protocol's, and the attributes so far.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Has the kernel say so once it has done it: for one of a batch.
    pub fn acknowledge(&mut self) {
        self.add_flags(ACK);
    }

    fn flags(&self) -> u16 {
        ne16(&self.bytes, 6).unwrap_or_default()
    }

    fn add_flags(&mut self, flags: u16) {
        let flags = self.flags() | flags;
        self.bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
    }

    fn finish(&mut self, sequence: u32) -> &[u8] {
        let length = self.bytes.len() as u32;
        self.bytes[0..4].copy_from_slice(&length.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        &self.bytes
    }
}

/// An answer: its type, and what follows the netlink header (the protocol's header and the attributes).
#[derive(Clone, Copy, Debug)]
pub struct Response<'a> {
    pub kind: u16,
    pub payload: &'a [u8],
}

impl<'a> Response<'a> {
    /// The attributes behind a protocol's header of this length.
    pub fn attributes(&self, header: usize) -> Attributes<'a> {
        attributes(self.payload.get(header..).unwrap_or_default())
    }
}

/// Attributes as (type, value); ends at the first that is malformed.
pub fn attributes(bytes: &[u8]) -> Attributes<'_> {
    Attributes { rest: bytes }
}

#[derive(Clone, Debug)]
pub struct Attributes<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<(u16, &'a [u8])> {
        let (length, kind) = (ne16(self.rest, 0)?, ne16(self.rest, 2)?);
        let value = self.rest.get(4..usize::from(length))?;
        let next = usize::from(length).next_multiple_of(4);
        self.rest = self.rest.get(next..).unwrap_or_default();
        Some((kind & TYPE_MASK, value))
    }
}

impl<'a> Attributes<'a> {
    /// The value of the first attribute of this type.
    pub fn get(mut self, kind: u16) -> Option<&'a [u8]> {
        self.find_map(|(found, value)| (found == kind).then_some(value))
    }
}

/// A name up to its zero byte; empty if it is not UTF-8.
pub fn text(bytes: &[u8]) -> &str {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    std::str::from_utf8(&bytes[..end]).unwrap_or_default()
}

/// A whole value in network order.
pub fn be32(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}

/// In the machine's order, from this byte on.
pub fn ne16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// In the machine's order, from this byte on.
pub fn ne32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// An address of four or sixteen bytes in network order.
pub fn ip(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(bytes) {
        return Some(Ipv4Addr::from(v4).into());
    }
    <[u8; 16]>::try_from(bytes).ok().map(|v6| Ipv6Addr::from(v6).into())
}

/// As `ip` reads it.
pub fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

/// The kernel's number of an address family.
pub fn family_number(family: Family) -> u8 {
    match family {
        Family::V4 => INET,
        Family::V6 => INET6,
    }
}

/// The family of this number, if it is an address family.
pub fn family_of(number: u8) -> Option<Family> {
    match number {
        INET => Some(Family::V4),
        INET6 => Some(Family::V6),
        _ => None,
    }
}

pub struct Connection {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
    interrupted: bool,
}

struct Borrowed<'a>(&'a Socket);

impl AsFd for Borrowed<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Connection {
    /// For nf_tables and conntrack.
    pub fn netfilter() -> io::Result<Connection> {
        Connection::open(netlink_sys::protocols::NETLINK_NETFILTER)
    }

    /// `protocol` is one of `netlink_sys::protocols`.
    pub fn open(protocol: isize) -> io::Result<Connection> {
        let mut socket = Socket::new(protocol)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        // An error comes without the message that it is about: those may be longer than what is read at once.
        socket.set_cap_ack(true)?;
        // The kernel's answers to what was sent in one piece wait here until they are read.
        let room = 2 << 20;
        if setsockopt(&Borrowed(&socket), sockopt::RcvBufForce, &room).is_err() {
            let _ = setsockopt(&Borrowed(&socket), sockopt::RcvBuf, &room);
        }
        Ok(Connection {
            socket,
            sequence: 1,
            buffer: Vec::with_capacity(RECEIVE),
            interrupted: false,
        })
    }

    /// Sends one message and waits until the kernel has done it. `each` sees what it answers before that.
    pub fn request(&mut self, mut message: Message, each: impl FnMut(Response)) -> io::Result<()> {
        message.add_flags(ACK);
        let sequence = self.next_sequence();
        self.socket.send(message.finish(sequence), 0)?;
        self.receive(sequence, 1, each)
    }

    /// Asks for all objects of a kind.
    pub fn dump(&mut self, mut message: Message, each: impl FnMut(Response)) -> io::Result<()> {
        message.add_flags(DUMP);
        let sequence = self.next_sequence();
        self.interrupted = false;
        self.socket.send(message.finish(sequence), 0)?;
        self.receive(sequence, 1, each)
    }

    /// Something changed while the last dump was under way, so that it may lack objects or have some twice.
    pub fn was_interrupted(&self) -> bool {
        self.interrupted
    }

    /// Sends many messages at once, which the kernel does in order, and each by itself. The answer of each, in their
    /// order; the first error is that of the call only if nothing could be sent.
    pub fn pipeline(&mut self, messages: &mut [Message]) -> io::Result<Vec<io::Result<()>>> {
        let mut outcomes = Vec::with_capacity(messages.len());
        // The kernel answers as it goes, so what it says must fit into the socket's buffer until it is read.
        for part in messages.chunks_mut(256) {
            let first = self.sequence.wrapping_add(1);
            let mut bytes = Vec::new();
            for message in part.iter_mut() {
                message.add_flags(ACK);
                let sequence = self.next_sequence();
                bytes.extend_from_slice(message.finish(sequence));
            }
            self.allow_sending(bytes.len());
            self.socket.send(&bytes, 0)?;
            for offset in 0..part.len() {
                outcomes.push(self.receive(first.wrapping_add(offset as u32), 1, |_| {}));
            }
        }
        Ok(outcomes)
    }

    /// Sends one piece made of many messages, such as netfilter's transactions, in which some ask for an
    /// acknowledgement (`ACK`); errors come unasked. The first error, with the place of its message.
    pub fn batch(&mut self, messages: &mut [Message]) -> Result<(), BatchError> {
        let at = |error| BatchError { at: None, error };
        let first = self.sequence.wrapping_add(1);
        let mut bytes = Vec::with_capacity(messages.iter().map(Message::len).sum());
        let mut last_acked = None;
        for message in messages.iter_mut() {
            let sequence = self.next_sequence();
            if message.flags() & ACK != 0 {
                last_acked = Some(sequence);
            }
            bytes.extend_from_slice(message.finish(sequence));
        }
        self.allow_sending(bytes.len());
        self.socket.send(&bytes, 0).map_err(at)?;
        let Some(last) = last_acked else { return Ok(()) };
        let mut failed: Option<BatchError> = None;
        loop {
            self.fill().map_err(at)?;
            let mut rest = &self.buffer[..];
            while let Some((kind, sequence, payload, next)) = split(rest) {
                rest = next;
                if kind != ERROR {
                    continue;
                }
                let code = ne32(payload, 0).map_or(0, |n| n as i32);
                if code != 0 && failed.is_none() {
                    let place = sequence.wrapping_sub(first) as usize;
                    failed = Some(BatchError {
                        at: (place < messages.len()).then_some(place),
                        error: io::Error::from_raw_os_error(-code),
                    });
                }
                if sequence == last || code != 0 {
                    // After an error the kernel undoes the whole transaction and may not come to the last message; what
                    // else it has to say is already in the socket.
                    if let Some(failed) = failed {
                        self.drain();
                        return Err(failed);
                    }
                    return Ok(());
                }
            }
        }
    }

    /// A transaction goes to the kernel as one piece, however large.
    fn allow_sending(&self, bytes: usize) {
        let socket = Borrowed(&self.socket);
        let wanted = bytes.saturating_mul(2).max(1 << 20);
        if setsockopt(&socket, sockopt::SndBufForce, &wanted).is_err() {
            let _ = setsockopt(&socket, sockopt::SndBuf, &wanted);
        }
    }

    fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
    }

    fn fill(&mut self) -> io::Result<()> {
        self.buffer.clear();
        loop {
            match self.socket.recv(&mut self.buffer, 0) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
                Ok(_) => return Ok(()),
            }
        }
    }

    /// Reads away what is waiting.
    fn drain(&mut self) {
        if self.socket.set_non_blocking(true).is_ok() {
            loop {
                self.buffer.clear();
                if self.socket.recv(&mut self.buffer, 0).is_err() {
                    break;
                }
            }
            let _ = self.socket.set_non_blocking(false);
        }
    }

    fn receive(&mut self, sequence: u32, mut ends: usize, mut each: impl FnMut(Response)) -> io::Result<()> {
        // What came in one piece with the end of an earlier answer is still to be read.
        loop {
            if self.buffer.is_empty() {
                self.fill()?;
            }
            let mut used = 0;
            let mut outcome = None;
            while let Some((kind, found, payload, next)) = split(&self.buffer[used..]) {
                let flags = ne16(&self.buffer, used + 6).unwrap_or_default();
                used = self.buffer.len() - next.len();
                if found != sequence {
                    continue;
                }
                self.interrupted |= flags & INTERRUPTED != 0;
                match kind {
                    NOOP => {}
                    DONE | ERROR => {
                        let code = ne32(payload, 0).map_or(0, |n| n as i32);
                        if code != 0 {
                            outcome = Some(Err(io::Error::from_raw_os_error(-code)));
                            break;
                        }
                        ends -= 1;
                        if ends == 0 {
                            outcome = Some(Ok(()));
                            break;
                        }
                    }
                    _ => each(Response { kind, payload }),
                }
            }
            if let Some(outcome) = outcome {
                self.buffer.drain(..used);
                return outcome;
            }
            self.buffer.clear();
        }
    }
}

impl AsRawFd for Connection {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// Why a batch was undone.
#[derive(Debug)]
pub struct BatchError {
    /// Which of its messages was refused.
    pub at: Option<usize>,
    pub error: io::Error,
}

/// The first message of these bytes: type, sequence, payload; and the rest.
fn split(bytes: &[u8]) -> Option<(u16, u32, &[u8], &[u8])> {
    let length = ne32(bytes, 0)? as usize;
    let payload = bytes.get(HEADER..length)?;
    let rest = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some((ne16(bytes, 4)?, ne32(bytes, 8)?, payload, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_come_back_as_written() {
        let mut message = Message::new(7, 0, &[1, 2]);
        message.text(1, "abc").be32(2, 5).nested(3, |m| {
            m.attribute(4, &[9; 5]);
        });
        let (_, _, payload, rest) = split(message.finish(3)).unwrap();
        assert!(rest.is_empty());
        let response = Response { kind: 7, payload };
        let found: Vec<_> = response.attributes(4).collect();
        assert_eq!(found[0], (1, &b"abc\0"[..]));
        assert_eq!(found[1], (2, &5u32.to_be_bytes()[..]));
        assert_eq!(attributes(found[2].1).collect::<Vec<_>>(), [(4, &[9u8; 5][..])]);
    }

    #[test]
    fn malformed_attributes_end_the_list() {
        assert_eq!(attributes(&[3, 0, 1, 0]).count(), 0);
        assert_eq!(attributes(&[40, 0, 1, 0, 1]).count(), 0);
        assert_eq!(attributes(&[]).count(), 0);
    }
}
