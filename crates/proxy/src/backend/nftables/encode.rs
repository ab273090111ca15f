//! Steps as netlink messages, rules as the small machine's instructions that the kernel runs.
//!
//! Registers: 1 to 4 are of sixteen bytes; 8 to 23 are the same space in pieces of four.

use std::hash::{DefaultHasher, Hasher};
use std::net::IpAddr;

use ipnet::IpNet;

use super::names::TABLE;
use super::ruleset::{
    Chain, Container, Data, KeyKind, Name, Op, Part, Place, Range, Rule, Side, Statement, Value, ValueKind, Verdict,
    set_name,
};
use super::slots::shard_of;
use super::wire::{self, chain, data, element, elements, expression, rule, set, table};
use crate::netlink::{APPEND, CREATE, Message};
use crate::plan::{Family, Protocol};

/// nft's numbers for types, which make `nft list` show keys and values as what they are.
const TYPE_INTEGER: u32 = 4;
const TYPE_INET_PROTOCOL: u32 = 12;
const TYPE_INET_SERVICE: u32 = 13;
pub(super) const TYPE_VERDICT: u32 = 0xffff_ff00;

/// How many clients an affinity set remembers at most.
const AFFINITY_SIZE: u32 = 65535;

/// An element or step alone in a message takes less than this; messages of many elements stop here.
pub(super) const ELEMENTS_LENGTH: usize = 24 * 1024;

pub(super) fn message(family: Family, kind: u16, flags: u16) -> Message {
    let header = [wire::family(family), 0, 0, 0];
    let mut message = Message::new(wire::SUBSYSTEM | kind, flags, &header);
    message.text(table::NAME, TABLE);
    message
}

/// The message of a step, but for elements, many of which share one: [`begin_elements`].
pub(super) fn step(family: Family, op: &Op, id: u32) -> Message {
    match op {
        Op::AddTable => {
            let mut m = message(family, wire::NEW_TABLE, CREATE);
            m.be32(table::FLAGS, 0);
            m.attribute(table::USERDATA, &udata_text(0, "rules for kube-proxy"));
            m
        }
        Op::DeleteTable => message(family, wire::DELETE_TABLE, 0),
        Op::AddContainer(container) => add_container(family, (*container, 0), id),
        Op::AddShard(shard) => add_container(family, (Container::ServiceEndpoints, *shard), id),
        Op::AddAffinity(name) => add_affinity(family, name, id),
        Op::DeleteSet(name) => named(family, wire::DELETE_SET, 0, set::NAME, name),
        Op::AddChain(chain) => add_chain(family, chain),
        Op::FlushChain(name) => named(family, wire::DELETE_RULE, 0, rule::CHAIN, name),
        Op::DeleteChain(name) => named(family, wire::DELETE_CHAIN, 0, chain::NAME, name),
        Op::AddRule(name, rule) => add_rule(family, name, rule),
        Op::AddElement((place, value)) => {
            let mut m = begin_elements(family, place.set(), true);
            m.nested(elements::LIST, |m| put_element(m, place, Some(value)));
            m
        }
        Op::DeleteElement(place) => {
            let mut m = begin_elements(family, place.set(), false);
            m.nested(elements::LIST, |m| put_element(m, place, None));
            m
        }
    }
}

fn named(family: Family, kind: u16, flags: u16, attribute: u16, name: &str) -> Message {
    let mut m = message(family, kind, flags);
    m.text(attribute, name);
    m
}

fn add_chain(family: Family, chain: &Chain) -> Message {
    let mut m = named(family, wire::NEW_CHAIN, CREATE, chain::NAME, &chain.name);
    if let Some(hook) = chain.hook {
        m.text(chain::TYPE, hook.kind);
        m.be32(chain::POLICY, wire::ACCEPT);
        m.nested(chain::HOOK, |m| {
            m.be32(chain::HOOK_NUMBER, hook.number);
            m.be32(chain::HOOK_PRIORITY, hook.priority as u32);
        });
    }
    if let Some(comment) = chain.comment {
        m.attribute(chain::USERDATA, &udata_text(0, comment));
    }
    m
}

/// What `nft` keeps beside an object: type, length, bytes.
fn udata(kind: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() + 2);
    out.extend_from_slice(&[kind, bytes.len() as u8]);
    out.extend_from_slice(bytes);
    out
}

fn udata_text(kind: u8, text: &str) -> Vec<u8> {
    // The length is one byte; comments are shorter but for services with very long names.
    let end = (0..=text.len().min(200))
        .rev()
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(0);
    udata(kind, &[&text.as_bytes()[..end], &[0]].concat())
}

fn udata_number(kind: u8, number: u32) -> Vec<u8> {
    udata(kind, &number.to_ne_bytes())
}

/// The comment of an element as it is kept, cut where it is too long.
pub(super) fn comment_bytes(comment: &str) -> Vec<u8> {
    udata_text(0, comment)
}

/// Type and length of a container's key and value, as the kernel has them.
pub(super) fn shape(family: Family, container: Container) -> Shape {
    let (address, length) = match family {
        Family::V4 => (7, 4),
        Family::V6 => (8, 16),
    };
    let part = |part: &Part| match part {
        Part::Source | Part::Destination => (address, length),
        Part::Protocol => (TYPE_INET_PROTOCOL, 4),
        Part::Port => (TYPE_INET_SERVICE, 4),
    };
    // Types of concatenations have six bits for each part.
    let joined = |parts: &[Part]| {
        let parts = parts.iter().map(part);
        parts.fold((0, 0), |(types, lengths), (kind, length)| {
            (types << 6 | kind, lengths + length)
        })
    };
    let (key_type, key_length) = match container.key() {
        KeyKind::Slot => (TYPE_INTEGER, 4),
        KeyKind::Packet(parts) => joined(parts),
    };
    let (flags, data_type, data_length) = match container.value() {
        ValueKind::None => (0, 0, 0),
        ValueKind::Verdict => (wire::SET_MAP, TYPE_VERDICT, 0),
        ValueKind::Endpoint => {
            let (kind, length) = joined(&[Part::Destination, Part::Port]);
            (wire::SET_MAP, kind, length)
        }
    };
    Shape {
        flags,
        key_type,
        key_length,
        data_type,
        data_length,
    }
}

/// The shape of a set in which packets leave their senders' addresses.
pub(super) fn affinity_shape(family: Family) -> Shape {
    Shape {
        flags: wire::SET_TIMEOUT | wire::SET_EVAL,
        ..shape(family, Container::ClusterIps)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shape {
    pub flags: u32,
    pub key_type: u32,
    pub key_length: u32,
    pub data_type: u32,
    pub data_length: u32,
}

fn put_shape(m: &mut Message, shape: Shape, id: u32) {
    m.be32(set::FLAGS, shape.flags);
    m.be32(set::KEY_TYPE, shape.key_type);
    m.be32(set::KEY_LENGTH, shape.key_length);
    if shape.flags & wire::SET_MAP != 0 {
        m.be32(set::DATA_TYPE, shape.data_type);
        m.be32(set::DATA_LENGTH, shape.data_length);
    }
    m.be32(set::ID, id);
}

fn add_container(family: Family, set: (Container, u32), id: u32) -> Message {
    let mut m = named(family, wire::NEW_SET, CREATE, set::NAME, &set_name(set));
    let container = set.0;
    put_shape(&mut m, shape(family, container), id);
    m.attribute(set::USERDATA, &container_udata(family, container));
    m
}

fn add_affinity(family: Family, name: &str, id: u32) -> Message {
    let mut m = named(family, wire::NEW_SET, CREATE, set::NAME, name);
    put_shape(&mut m, affinity_shape(family), id);
    m.nested(set::DESCRIPTION, |m| {
        m.be32(set::DESCRIPTION_SIZE, AFFINITY_SIZE);
    });
    m.attribute(set::USERDATA, &udata_number(UDATA_KEY_ORDER, 2));
    m
}

const UDATA_KEY_ORDER: u8 = 0;
const UDATA_DATA_ORDER: u8 = 1;
const UDATA_KEY_TYPEOF: u8 = 3;
const UDATA_DATA_TYPEOF: u8 = 4;
const UDATA_COMMENT: u8 = 7;

/// From what expressions keys and values come (`typeof`), as nft writes it down for itself: without it, it could not
/// tell what a slot is.
fn container_udata(family: Family, container: Container) -> Vec<u8> {
    const PAYLOAD: u32 = 7;
    const CONCAT: u32 = 13;
    const NUMGEN: u32 = 23;
    let nest = |kind: u8, parts: &[Vec<u8>]| udata(kind, &parts.concat());
    let typeof_ =
        |kind: u8, expression: u32, parts: &[Vec<u8>]| nest(kind, &[udata_number(0, expression), nest(1, parts)]);
    let mut out = vec![];
    if container == Container::ServiceEndpoints {
        let (header, field) = match family {
            Family::V4 => (12, 12),
            Family::V6 => (13, 9),
        };
        let random = [udata_number(0, 1), udata_number(1, 65536), udata_number(2, 0)];
        let part = |at, header, field| typeof_(at, PAYLOAD, &[udata_number(0, header), udata_number(1, field)]);
        let endpoint = [part(0, header, field), part(1, 11, 2)];
        out.extend(udata_number(UDATA_KEY_ORDER, 1));
        out.extend(udata_number(UDATA_DATA_ORDER, 0));
        out.extend(typeof_(UDATA_KEY_TYPEOF, NUMGEN, &random));
        out.extend(typeof_(UDATA_DATA_TYPEOF, CONCAT, &endpoint));
    }
    out.extend(udata_text(UDATA_COMMENT, container.comment()));
    out
}

/// A message that adds elements to a container, or deletes them.
pub(super) fn begin_elements(family: Family, set: (Container, u32), add: bool) -> Message {
    let (kind, flags) = match add {
        true => (wire::NEW_ELEMENTS, CREATE),
        false => (wire::DELETE_ELEMENTS, 0),
    };
    named(family, kind, flags, elements::SET, &set_name(set))
}

pub(super) fn put_element(m: &mut Message, place: &Place, value: Option<&Value>) {
    m.nested(1, |m| {
        m.nested(element::KEY, |m| {
            m.attribute(data::VALUE, &place.key);
        });
        let Some(value) = value else { return };
        match &value.data {
            Data::None => {}
            Data::Verdict(verdict) => {
                m.nested(element::DATA, |m| put_verdict(m, verdict));
            }
            Data::Endpoint(bytes) => {
                m.nested(element::DATA, |m| {
                    m.attribute(data::VALUE, bytes);
                });
            }
        }
        if let Some(comment) = &value.comment {
            m.attribute(element::USERDATA, &comment_bytes(comment));
        }
    });
}

fn put_verdict(m: &mut Message, verdict: &Verdict) {
    m.nested(data::VERDICT, |m| match verdict {
        Verdict::Drop => {
            m.be32(data::CODE, wire::DROP);
        }
        Verdict::Return => {
            m.be32(data::CODE, wire::RETURN);
        }
        Verdict::Jump(chain) => {
            m.be32(data::CODE, wire::JUMP).text(data::CHAIN, chain);
        }
        Verdict::Goto(chain) => {
            m.be32(data::CODE, wire::GOTO).text(data::CHAIN, chain);
        }
    });
}

fn add_rule(family: Family, name: &Name, rule: &Rule) -> Message {
    let mut m = named(family, wire::NEW_RULE, CREATE | APPEND, rule::CHAIN, name);
    let start = m.len();
    m.nested(rule::EXPRESSIONS, |m| put_statements(m, family, rule));
    let tag = tag_of(&m.bytes()[start..], rule);
    let mut kept = rule.comment.map_or_else(Vec::new, |comment| udata_text(0, comment));
    kept.extend(udata(wire::UDATA_TAG, &tag.to_ne_bytes()));
    if let Some(Range { first, length }) = rule.range() {
        let numbers = [first.to_ne_bytes(), length.to_ne_bytes()].concat();
        kept.extend(udata(wire::UDATA_RANGE, &numbers));
    }
    m.attribute(rule::USERDATA, &kept);
    m
}

/// By which a rule in the kernel is known again: whoever else writes rules leaves no tag, or that of another rule.
pub(super) fn tag(family: Family, rule: &Rule) -> u64 {
    let mut m = Message::new(0, 0, &[]);
    let start = m.len();
    m.nested(rule::EXPRESSIONS, |m| put_statements(m, family, rule));
    tag_of(&m.bytes()[start..], rule)
}

fn tag_of(expressions: &[u8], rule: &Rule) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(expressions);
    hasher.write(rule.comment.unwrap_or_default().as_bytes());
    hasher.finish()
}

/// Writes instructions, one after the other.
struct Program<'a> {
    message: &'a mut Message,
    family: Family,
}

fn put_statements(m: &mut Message, family: Family, rule: &Rule) {
    let mut program = Program { message: m, family };
    for statement in &rule.statements {
        program.put(statement);
    }
}

const NETWORK: u32 = 1;
const TRANSPORT: u32 = 2;
const EQUAL: u32 = 0;
const NOT_EQUAL: u32 = 1;

impl Program<'_> {
    fn expression(&mut self, name: &str, fill: impl FnOnce(&mut Message)) {
        self.message.nested(1, |m| {
            m.text(expression::NAME, name);
            m.nested(expression::DATA, fill);
        });
    }

    fn put(&mut self, statement: &Statement) {
        match statement {
            Statement::New => self.connection(0, 8),
            Statement::Translated => self.connection(2, 0x20),
            Statement::Local(side) => self.local(*side),
            Statement::Protocol(protocol) => self.protocol(*protocol),
            Statement::Within { side, range, not } => self.within(*side, *range, *not),
            Statement::Interface { name, prefix, not } => self.interface(name, *prefix, *not),
            Statement::In(container) => {
                self.load_key(*container);
                self.lookup(container.name(), None);
            }
            Statement::Dispatch(container) => {
                self.load_key(*container);
                self.lookup(container.name(), Some(0));
            }
            Statement::Remembered(set) => {
                self.load(Part::Source, 1);
                self.lookup(set, None);
            }
            Statement::Remember { set, seconds } => self.remember(set, *seconds),
            Statement::Mark(mark) => self.change_mark(!mark, *mark),
            Statement::Marked(mark) => {
                self.meta(META_MARK, 1);
                self.bitwise(&mark.to_ne_bytes(), &[0; 4]);
                self.compare(NOT_EQUAL, &[0; 4]);
            }
            Statement::Unmark(mark) => self.change_mark(u32::MAX, *mark),
            Statement::Masquerade => self.expression("masq", |m| {
                m.be32(1, 0x10);
            }),
            Statement::Reject => self.reject(),
            Statement::DnatAny { range, count } => {
                self.draw(range.first, *count);
                let set = (Container::ServiceEndpoints, shard_of(range.first));
                self.lookup(&set_name(set), Some(1));
                let port = if self.family == Family::V4 { 9 } else { 2 };
                self.dnat(port, false);
            }
            Statement::OneIn(count) => {
                self.draw(0, *count);
                self.compare(EQUAL, &[0; 4]);
            }
            Statement::Dnat(address) => {
                match address.ip() {
                    IpAddr::V4(ip) => self.immediate(1, &ip.octets()),
                    IpAddr::V6(ip) => self.immediate(1, &ip.octets()),
                }
                self.immediate(2, &address.port().to_be_bytes());
                self.dnat(2, true);
            }
            Statement::Verdict(verdict) => self.expression("immediate", |m| {
                m.be32(1, 0).nested(2, |m| put_verdict(m, verdict));
            }),
        }
    }

    fn meta(&mut self, key: u32, register: u32) {
        self.expression("meta", |m| {
            m.be32(2, key).be32(1, register);
        });
    }

    fn payload(&mut self, base: u32, offset: u32, length: u32, register: u32) {
        self.expression("payload", |m| {
            m.be32(1, register).be32(2, base).be32(3, offset).be32(4, length);
        });
    }

    fn address(&self, side: Part) -> (u32, u32) {
        match (self.family, side) {
            (Family::V4, Part::Source) => (12, 4),
            (Family::V4, _) => (16, 4),
            (Family::V6, Part::Source) => (8, 16),
            (Family::V6, _) => (24, 16),
        }
    }

    fn load(&mut self, part: Part, register: u32) {
        match part {
            Part::Source | Part::Destination => {
                let (offset, length) = self.address(part);
                self.payload(NETWORK, offset, length, register);
            }
            Part::Protocol => self.meta(META_PROTOCOL, register),
            Part::Port => self.payload(TRANSPORT, 2, 2, register),
        }
    }

    fn load_key(&mut self, container: Container) {
        let KeyKind::Packet(parts) = container.key() else {
            return;
        };
        // Counted in pieces of four bytes.
        let mut at = 0;
        for part in parts {
            self.load(*part, if at % 4 == 0 { 1 + at / 4 } else { 8 + at });
            let is_address = matches!(part, Part::Source | Part::Destination);
            at += if is_address && self.family == Family::V6 { 4 } else { 1 };
        }
    }

    fn lookup(&mut self, set: &str, to: Option<u32>) {
        self.expression("lookup", |m| {
            m.be32(2, 1);
            if let Some(register) = to {
                m.be32(3, register);
            }
            m.text(1, set);
        });
    }

    fn compare(&mut self, how: u32, with: &[u8]) {
        self.expression("cmp", |m| {
            m.be32(1, 1).be32(2, how).nested(3, |m| {
                m.attribute(data::VALUE, with);
            });
        });
    }

    fn bitwise(&mut self, mask: &[u8], xor: &[u8]) {
        self.expression("bitwise", |m| {
            m.be32(1, 1).be32(2, 1).be32(3, mask.len() as u32);
            m.nested(4, |m| {
                m.attribute(data::VALUE, mask);
            });
            m.nested(5, |m| {
                m.attribute(data::VALUE, xor);
            });
        });
    }

    fn immediate(&mut self, register: u32, value: &[u8]) {
        self.expression("immediate", |m| {
            m.be32(1, register).nested(2, |m| {
                m.attribute(data::VALUE, value);
            });
        });
    }

    fn connection(&mut self, key: u32, bit: u32) {
        self.expression("ct", |m| {
            m.be32(2, key).be32(1, 1);
        });
        self.bitwise(&bit.to_ne_bytes(), &[0; 4]);
        self.compare(NOT_EQUAL, &[0; 4]);
    }

    fn local(&mut self, side: Side) {
        const ADDRESS_TYPE: u32 = 3;
        const LOCAL: u32 = 2;
        self.expression("fib", |m| {
            let flags = if side == Side::Source { 1 } else { 2 };
            m.be32(3, flags).be32(2, ADDRESS_TYPE).be32(1, 1);
        });
        self.compare(EQUAL, &LOCAL.to_ne_bytes());
    }

    fn protocol(&mut self, protocol: Protocol) {
        self.meta(META_PROTOCOL, 1);
        self.compare(EQUAL, &[protocol.number()]);
    }

    fn within(&mut self, side: Side, range: IpNet, not: bool) {
        let part = if side == Side::Source {
            Part::Source
        } else {
            Part::Destination
        };
        let (offset, length) = self.address(part);
        let how = if not { NOT_EQUAL } else { EQUAL };
        let (network, mask) = match range {
            IpNet::V4(range) => (range.network().octets().to_vec(), range.netmask().octets().to_vec()),
            IpNet::V6(range) => (range.network().octets().to_vec(), range.netmask().octets().to_vec()),
        };
        let bits = u32::from(range.prefix_len());
        if bits > 0 && bits.is_multiple_of(8) {
            self.payload(NETWORK, offset, bits / 8, 1);
            return self.compare(how, &network[..bits as usize / 8]);
        }
        self.payload(NETWORK, offset, length, 1);
        self.bitwise(&mask, &vec![0; mask.len()]);
        self.compare(how, &network);
    }

    fn interface(&mut self, name: &str, prefix: bool, not: bool) {
        self.meta(META_INTERFACE, 1);
        let how = if not { NOT_EQUAL } else { EQUAL };
        let length = name.len().min(15);
        let mut bytes = [0; 16];
        bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
        let compared = if prefix { length.max(1) } else { 16 };
        self.compare(how, &bytes[..compared]);
    }

    fn remember(&mut self, set: &str, seconds: u32) {
        const UPDATE: u32 = 1;
        self.load(Part::Source, 1);
        self.expression("dynset", |m| {
            m.be32(4, 1).be32(3, UPDATE);
            m.be64(6, u64::from(seconds) * 1000);
            m.text(1, set);
        });
    }

    fn change_mark(&mut self, mask: u32, xor: u32) {
        self.meta(META_MARK, 1);
        self.bitwise(&mask.to_ne_bytes(), &xor.to_ne_bytes());
        self.expression("meta", |m| {
            m.be32(2, META_MARK).be32(3, 1);
        });
    }

    fn reject(&mut self) {
        // Port unreachable.
        let code = if self.family == Family::V4 { 3 } else { 4 };
        self.expression("reject", |m| {
            m.be32(1, 0).attribute(2, &[code]);
        });
    }

    fn draw(&mut self, first: u32, count: u32) {
        const RANDOM: u32 = 1;
        self.expression("numgen", |m| {
            m.be32(1, 1).be32(2, count).be32(3, RANDOM).be32(4, first);
        });
    }

    /// To the address in register 1.
    fn dnat(&mut self, port: u32, constant: bool) {
        const TO: u32 = 1;
        let family = u32::from(wire::family(self.family));
        self.expression("nat", |m| {
            m.be32(1, TO).be32(2, family).be32(3, 1).be32(5, port);
            if constant {
                m.be32(7, 2);
            }
        });
    }
}

const META_MARK: u32 = 3;
const META_INTERFACE: u32 = 6;
const META_PROTOCOL: u32 = 16;
