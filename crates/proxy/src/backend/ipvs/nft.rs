//! The table of [`super::rules`] in the kernel: its chains, sets and elements over netlink.

use std::io;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use netlink_sys::protocols::NETLINK_NETFILTER;
use rustc_hash::FxHashMap;

use super::render::{At, Element, Match, Set, Value};
use super::rules::{Chain, Part, Rule, Statement, TABLE};
use crate::netlink::{APPEND, Answer, BatchError, CREATE, Connection, Message, attributes};
use crate::plan::{Family, Protocol};
use crate::route::{ip, octets};

const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEW_TABLE: u8 = 0;
const DELETE_TABLE: u8 = 2;
const NEW_CHAIN: u8 = 3;
const NEW_RULE: u8 = 6;
const GET_RULE: u8 = 7;
const DELETE_RULE: u8 = 8;
const NEW_SET: u8 = 9;
const GET_SET: u8 = 10;
const NEW_ELEMENT: u8 = 12;
const GET_ELEMENT: u8 = 13;
const DELETE_ELEMENT: u8 = 14;

/// Family, version, and for batches the subsystem.
const HEADER: usize = 4;
/// First attribute of tables, chains, rules and sets alike: the table's name.
const IN_TABLE: u16 = 1;
const ITEM: u16 = 1;

const SET_INTERVAL: u32 = 0x4;
const SET_MAP: u32 = 0x8;
const SET_CONCATENATED: u32 = 0x80;

/// Registers of four bytes, one after the other.
const FIRST_REGISTER: u32 = 8;
/// That of marks and names, apart from the others.
const OTHER_REGISTER: u32 = 20;

/// Elements in one message, and in one transaction.
const IN_MESSAGE: usize = 400;
const IN_BATCH: usize = 20_000;

pub(super) struct Nft {
    connection: Connection,
}

/// What there is of a table.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    pub sets: Vec<Set>,
    /// Chains and their rules' comments, in order.
    pub rules: Vec<(String, String)>,
}

impl Nft {
    pub(super) fn open() -> io::Result<Nft> {
        let connection = Connection::open(NETLINK_NETFILTER)?;
        Ok(Nft { connection })
    }

    /// What there is of the table; none if it is not there at all.
    pub(super) fn find(&mut self, family: Family) -> io::Result<Option<Found>> {
        let mut found = Found::default();
        let mut message = message(GET_SET, 0, family);
        message.text(IN_TABLE, TABLE);
        match self
            .connection
            .dump(message, |answer| found.sets.extend(set_of(answer)))
        {
            Err(e) if e.raw_os_error() == Some(nix::libc::ENOENT) => return Ok(None),
            outcome => outcome?,
        }
        let mut message = self::message(GET_RULE, 0, family);
        message.text(IN_TABLE, TABLE);
        self.connection
            .dump(message, |answer| found.rules.extend(rule_of(answer)))?;
        Ok((found != Found::default()).then_some(found))
    }

    /// The elements of a set that is there.
    pub(super) fn elements(
        &mut self,
        family: Family,
        set: Set,
        into: &mut FxHashMap<Element, Value>,
    ) -> io::Result<()> {
        let mut message = message(GET_ELEMENT, 0, family);
        message.text(IN_TABLE, TABLE).text(2, set.name());
        self.connection
            .dump(message, |answer| elements_of(answer, family, set, into))
    }

    /// Makes the table with all its sets and chains. Those that are there stay, with their elements; the rules of all
    /// chains are written anew, all at once.
    pub(super) fn write_table(&mut self, family: Family, chains: &[Chain]) -> io::Result<()> {
        let mut messages = Vec::new();
        let mut table = message(NEW_TABLE, CREATE, family);
        table.text(IN_TABLE, TABLE).ne32(2, 0);
        messages.push(table);
        messages.extend(
            Set::ALL
                .iter()
                .enumerate()
                .map(|(id, set)| new_set(family, *set, id as u32 + 1)),
        );
        messages.extend(chains.iter().map(|chain| new_chain(family, chain)));
        for chain in chains {
            let mut flush = message(DELETE_RULE, 0, family);
            flush.text(IN_TABLE, TABLE).text(2, chain.name);
            messages.push(flush);
        }
        for chain in chains {
            messages.extend(chain.rules.iter().map(|rule| new_rule(family, chain.name, rule)));
        }
        self.batch(messages)
    }

    pub(super) fn delete_table(&mut self, family: Family) -> io::Result<()> {
        let mut delete = message(DELETE_TABLE, 0, family);
        delete.text(IN_TABLE, TABLE);
        match self.batch(vec![delete]) {
            Err(e) if e.raw_os_error() == Some(nix::libc::ENOENT) => Ok(()),
            outcome => outcome,
        }
    }

    /// Takes elements away, then brings others, as one transaction where there are not very many.
    pub(super) fn change(&mut self, remove: &[Element], add: &[(Element, Value)]) -> io::Result<()> {
        for family in Family::ALL {
            let remove: Vec<_> = remove
                .iter()
                .filter(|e| e.family == family)
                .map(|e| (*e, Value::None))
                .collect();
            let add: Vec<_> = add.iter().filter(|(e, _)| e.family == family).cloned().collect();
            let mut messages = Vec::new();
            let mut count = 0;
            for (code, flags, all) in [(DELETE_ELEMENT, 0, &remove), (NEW_ELEMENT, CREATE, &add)] {
                for of_set in by_set(all) {
                    for part in of_set.chunks(IN_MESSAGE) {
                        messages.push(element_message(code, flags, family, part));
                        count += part.len();
                        if count >= IN_BATCH {
                            self.batch(std::mem::take(&mut messages))?;
                            count = 0;
                        }
                    }
                }
            }
            if !messages.is_empty() {
                self.batch(messages)?;
            }
        }
        Ok(())
    }

    fn batch(&mut self, messages: Vec<Message>) -> io::Result<()> {
        let edge = |kind| Message::new(kind, 0, &[0, 0, 0, SUBSYSTEM as u8]);
        let mut all = vec![edge(BATCH_BEGIN)];
        all.extend(messages);
        if let Some(last) = all.last_mut() {
            last.ask_for_answer();
        }
        all.push(edge(BATCH_END));
        self.connection
            .batch(&mut all)
            .map_err(|BatchError { error, .. }| error)
    }
}

fn message(code: u8, flags: u16, family: Family) -> Message {
    let number = if family == Family::V4 { 2 } else { 10 };
    Message::new(SUBSYSTEM << 8 | u16::from(code), flags, &[number, 0, 0, 0])
}

fn by_set(elements: &[(Element, Value)]) -> Vec<Vec<(Element, Value)>> {
    let of = |set: Set| {
        elements
            .iter()
            .filter(|(e, _)| e.set == set)
            .cloned()
            .collect::<Vec<_>>()
    };
    Set::ALL.into_iter().map(of).filter(|all| !all.is_empty()).collect()
}

/// The number of a type that `nft` shows values by, and its length.
fn kind_of(part: Part, family: Family) -> (u32, u32) {
    match (part, family) {
        (Part::Source | Part::Destination, Family::V4) => (7, 4),
        (Part::Source | Part::Destination, Family::V6) => (8, 16),
        (Part::Protocol, _) => (12, 1),
        (Part::Port, _) => (13, 2),
    }
}

fn new_set(family: Family, set: Set, id: u32) -> Message {
    let kinds: Vec<(u32, u32)> = set.parts().iter().map(|part| kind_of(*part, family)).collect();
    let kind = kinds.iter().fold(0, |all, (kind, _)| all << 6 | kind);
    let length = match kinds[..] {
        [(_, length)] => length,
        _ => kinds.iter().map(|(_, length)| length.next_multiple_of(4)).sum(),
    };
    let mut flags = 0;
    if set.is_map() {
        flags |= SET_MAP;
    }
    if set.is_interval() {
        flags |= SET_INTERVAL | SET_CONCATENATED;
    }
    let mut message = message(NEW_SET, CREATE, family);
    message
        .text(IN_TABLE, TABLE)
        .text(2, set.name())
        .be32(3, flags)
        .be32(4, kind)
        .be32(5, length);
    if set.is_map() {
        const MARK: u32 = 19;
        message.be32(6, MARK).be32(7, 4);
        // For `nft`, which shows values: keys are in network order, marks in the machine's.
        message.attribute(
            13,
            &[&[0, 4][..], &2u32.to_ne_bytes(), &[1, 4], &1u32.to_ne_bytes()].concat(),
        );
    }
    if set.is_interval() {
        message.nested(9, |description| {
            description.nested(2, |fields| {
                for (_, length) in &kinds {
                    fields.nested(ITEM, |field| {
                        field.be32(1, *length);
                    });
                }
            });
        });
    }
    message.be32(10, id);
    message
}

fn new_chain(family: Family, chain: &Chain) -> Message {
    let mut message = message(NEW_CHAIN, CREATE, family);
    message.text(IN_TABLE, TABLE).text(3, chain.name);
    if let Some(hook) = chain.hook {
        message.nested(4, |m| {
            m.be32(1, hook.number).be32(2, hook.priority as u32);
        });
        message.text(7, hook.kind);
    }
    message
}

fn new_rule(family: Family, chain: &str, rule: &Rule) -> Message {
    let mut message = message(NEW_RULE, CREATE | APPEND, family);
    message.text(IN_TABLE, TABLE).text(2, chain).nested(4, |list| {
        for statement in &rule.statements {
            Expressions { list, family }.statement(statement);
        }
    });
    // A comment as `nft` has it: its type, its length, its text.
    let text = rule.to_string();
    let mut comment = vec![0, text.len() as u8 + 1];
    comment.extend_from_slice(text.as_bytes());
    comment.push(0);
    message.attribute(7, &comment);
    message
}

/// What the kernel computes for a rule, one expression after the other.
struct Expressions<'a> {
    list: &'a mut Message,
    family: Family,
}

const EQUAL: u32 = 0;
const NOT_EQUAL: u32 = 1;
const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;
const META_MARK: u32 = 3;
const META_INPUT_NAME: u32 = 6;
const META_PROTOCOL: u32 = 16;

impl Expressions<'_> {
    fn add(&mut self, name: &str, fill: impl FnOnce(&mut Message)) {
        self.list.nested(ITEM, |item| {
            item.text(1, name).nested(2, fill);
        });
    }

    fn statement(&mut self, statement: &Statement) {
        match statement {
            Statement::New => {
                const STATE: u32 = 0;
                const NEW: u32 = 8;
                self.add("ct", |m| {
                    m.be32(1, OTHER_REGISTER).be32(2, STATE);
                });
                self.mask(&NEW.to_ne_bytes(), &[0; 4]);
                self.compare(NOT_EQUAL, &[0; 4]);
            }
            Statement::Tcp => {
                self.meta(META_PROTOCOL, OTHER_REGISTER);
                self.compare(EQUAL, &[Protocol::Tcp.number()]);
            }
            Statement::In(set) => self.lookup(*set, set.parts(), false),
            Statement::NotIn(set) => self.lookup(*set, set.parts(), true),
            Statement::SourceIn(set) => self.lookup(*set, &[Part::Source], false),
            Statement::Source { range, not } => self.range(Part::Source, *range, *not),
            Statement::Destination(range) => self.range(Part::Destination, *range, false),
            Statement::Interface { name, prefix, not } => self.interface(name, *prefix, *not),
            Statement::MarkFrom(set) => {
                self.load(set.parts());
                self.add("lookup", |m| {
                    m.text(1, set.name()).be32(2, FIRST_REGISTER).be32(3, OTHER_REGISTER);
                });
                self.set_mark();
            }
            Statement::Mark(bits) => self.change_mark(!bits, *bits),
            Statement::Unmark(bits) => self.change_mark(!bits, 0),
            Statement::Marked(mask, value) => {
                self.meta(META_MARK, OTHER_REGISTER);
                self.mask(&mask.to_ne_bytes(), &[0; 4]);
                self.compare(EQUAL, &value.to_ne_bytes());
            }
            Statement::Masquerade => {
                const FULLY_RANDOM: u32 = 0x10;
                self.add("masq", |m| {
                    m.be32(1, FULLY_RANDOM);
                });
            }
            Statement::Reject => {
                let port_unreachable = if self.family == Family::V4 { 3 } else { 4 };
                self.add("reject", |m| {
                    m.be32(1, 0).attribute(2, &[port_unreachable]);
                });
            }
            Statement::Drop => self.verdict(0, None),
            Statement::Accept => self.verdict(1, None),
            Statement::Return => self.verdict(-5, None),
            Statement::Jump(to) => self.verdict(-3, Some(to)),
        }
    }

    fn meta(&mut self, key: u32, register: u32) {
        self.add("meta", |m| {
            m.be32(1, register).be32(2, key);
        });
    }

    fn set_mark(&mut self) {
        self.add("meta", |m| {
            m.be32(3, OTHER_REGISTER).be32(2, META_MARK);
        });
    }

    fn change_mark(&mut self, keep: u32, with: u32) {
        self.meta(META_MARK, OTHER_REGISTER);
        self.mask(&keep.to_ne_bytes(), &with.to_ne_bytes());
        self.set_mark();
    }

    /// `register = register & mask ^ with`
    fn mask(&mut self, mask: &[u8], with: &[u8]) {
        self.add("bitwise", |m| {
            m.be32(1, OTHER_REGISTER)
                .be32(2, OTHER_REGISTER)
                .be32(3, mask.len() as u32);
            m.nested(4, |value| {
                value.attribute(1, mask);
            });
            m.nested(5, |value| {
                value.attribute(1, with);
            });
        });
    }

    fn compare(&mut self, how: u32, with: &[u8]) {
        self.add("cmp", |m| {
            m.be32(1, OTHER_REGISTER).be32(2, how).nested(3, |value| {
                value.attribute(1, with);
            });
        });
    }

    fn payload(&mut self, register: u32, base: u32, offset: u32, length: u32) {
        self.add("payload", |m| {
            m.be32(1, register).be32(2, base).be32(3, offset).be32(4, length);
        });
    }

    /// Puts parts of the packet into registers, one after the other.
    fn load(&mut self, parts: &[Part]) {
        let (source, destination) = if self.family == Family::V4 { (12, 16) } else { (8, 24) };
        let mut register = FIRST_REGISTER;
        for part in parts {
            let (_, length) = kind_of(*part, self.family);
            match part {
                Part::Source => self.payload(register, NETWORK_HEADER, source, length),
                Part::Destination => self.payload(register, NETWORK_HEADER, destination, length),
                Part::Protocol => self.meta(META_PROTOCOL, register),
                Part::Port => self.payload(register, TRANSPORT_HEADER, 2, length),
            }
            register += length.div_ceil(4);
        }
    }

    fn lookup(&mut self, set: Set, parts: &[Part], not: bool) {
        self.load(parts);
        self.add("lookup", |m| {
            m.text(1, set.name()).be32(2, FIRST_REGISTER);
            if not {
                m.be32(5, 1);
            }
        });
    }

    fn range(&mut self, side: Part, range: IpNet, not: bool) {
        let offset = match (side, self.family) {
            (Part::Source, Family::V4) => 12,
            (Part::Source, Family::V6) => 8,
            (_, Family::V4) => 16,
            (_, Family::V6) => 24,
        };
        let network = octets(range.network());
        self.payload(OTHER_REGISTER, NETWORK_HEADER, offset, network.len() as u32);
        self.mask(&octets(range.netmask()), &vec![0; network.len()]);
        self.compare(if not { NOT_EQUAL } else { EQUAL }, &network);
    }

    /// Of a name's beginning only that many bytes are compared.
    fn interface(&mut self, name: &str, prefix: bool, not: bool) {
        let mut bytes = name.as_bytes().to_vec();
        if !prefix {
            bytes.resize(16, 0);
        }
        bytes.truncate(16);
        self.meta(META_INPUT_NAME, OTHER_REGISTER);
        self.compare(if not { NOT_EQUAL } else { EQUAL }, &bytes);
    }

    fn verdict(&mut self, code: i32, chain: Option<&str>) {
        self.add("immediate", |m| {
            m.be32(1, 0).nested(2, |data| {
                data.nested(2, |verdict| {
                    verdict.be32(1, code as u32);
                    if let Some(chain) = chain {
                        verdict.text(2, chain);
                    }
                });
            });
        });
    }
}

/// An element's key as the kernel has it: each part filled up to four bytes. For a range also its end.
fn key_of(element: &Element) -> (Vec<u8>, Option<Vec<u8>>) {
    let port = |bytes: &mut Vec<u8>, port: u16| {
        bytes.extend_from_slice(&port.to_be_bytes());
        bytes.extend_from_slice(&[0, 0]);
    };
    let at = |at: &At| {
        let mut bytes = octets(at.address.ip());
        bytes.extend_from_slice(&[at.protocol.number(), 0, 0, 0]);
        port(&mut bytes, at.address.port());
        bytes
    };
    match &element.matches {
        Match::Address(ip) if element.set == Set::Hairpin => ([octets(*ip), octets(*ip)].concat(), None),
        Match::Address(ip) => (octets(*ip), None),
        Match::Port(number) => (number.to_be_bytes().to_vec(), None),
        Match::ProtocolPort(protocol, number) => {
            let mut bytes = vec![protocol.number(), 0, 0, 0];
            port(&mut bytes, *number);
            (bytes, None)
        }
        Match::At(to) => (at(to), None),
        Match::From(to, range) => {
            let start = [at(to), octets(range.network())].concat();
            let end = [at(to), octets(range.broadcast())].concat();
            (start, Some(end))
        }
    }
}

/// Elements of one set.
fn element_message(code: u8, flags: u16, family: Family, elements: &[(Element, Value)]) -> Message {
    let mut message = message(code, flags, family);
    let set = elements.first().map_or(Set::Addresses, |(element, _)| element.set);
    message.text(IN_TABLE, TABLE).text(2, set.name()).nested(3, |list| {
        for (element, value) in elements {
            let (key, end) = key_of(element);
            list.nested(ITEM, |item| {
                item.nested(1, |m| {
                    m.attribute(1, &key);
                });
                if let Value::Mark(mark) = value {
                    item.nested(2, |m| {
                        m.attribute(1, &mark.to_ne_bytes());
                    });
                }
                if let Some(end) = end {
                    item.nested(10, |m| {
                        m.attribute(1, &end);
                    });
                }
            });
        }
    });
    message
}

fn text(value: &[u8]) -> String {
    let value = value.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(value).into_owned()
}

fn set_of(answer: Answer) -> Option<Set> {
    let name = answer
        .attributes(HEADER)
        .find(|(kind, _)| *kind == 2)
        .map(|(_, value)| text(value))?;
    Set::ALL.into_iter().find(|set| set.name() == name)
}

fn rule_of(answer: Answer) -> Option<(String, String)> {
    let find = |wanted| {
        answer
            .attributes(HEADER)
            .find(|(kind, _)| *kind == wanted)
            .map(|(_, value)| value)
    };
    let comment = find(7).and_then(|value| value.get(2..)).map(text).unwrap_or_default();
    Some((text(find(2)?), comment))
}

fn elements_of(answer: Answer, family: Family, set: Set, into: &mut FxHashMap<Element, Value>) {
    let lists = answer.attributes(HEADER).filter(|(kind, _)| *kind == 3);
    for (_, item) in lists.flat_map(|(_, list)| attributes(list)) {
        let field = |wanted| {
            let (_, nested) = attributes(item).find(|(kind, _)| *kind == wanted)?;
            attributes(nested).find(|(kind, _)| *kind == 1).map(|(_, value)| value)
        };
        let Some(matches) = field(1).and_then(|key| match_of(set, family, key, field(10))) else {
            continue;
        };
        let value = match field(2).and_then(|value| value.try_into().ok()) {
            Some(mark) => Value::Mark(u32::from_ne_bytes(mark)),
            None => Value::None,
        };
        into.insert(Element { family, set, matches }, value);
    }
}

/// The other way round than `key_of`.
fn match_of(set: Set, family: Family, key: &[u8], end: Option<&[u8]>) -> Option<Match> {
    let width = if family == Family::V4 { 4 } else { 16 };
    let address = |from: usize| ip(key.get(from..from + width)?);
    let protocol = |from: usize| {
        let all = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
        all.into_iter().find(|p| Some(&p.number()) == key.get(from))
    };
    let port = |from: usize| Some(u16::from_be_bytes(key.get(from..from + 2)?.try_into().ok()?));
    let at = || {
        let address = SocketAddr::new(address(0)?, port(width + 4)?);
        Some(At {
            protocol: protocol(width)?,
            address,
        })
    };
    match set {
        Set::Addresses | Set::NodeAddresses | Set::Hairpin => Some(Match::Address(address(0)?)),
        Set::HealthPorts => Some(Match::Port(port(0)?)),
        Set::MasqueradeNodePorts | Set::DroppedNodePorts | Set::LocalNodePorts => {
            Some(Match::ProtocolPort(protocol(0)?, port(4)?))
        }
        Set::Allowed => {
            let (first, last) = (address(width + 8)?, ip(end?.get(width + 8..)?)?);
            Some(Match::From(at()?, range(first, last)?))
        }
        _ => Some(Match::At(at()?)),
    }
}

/// The range that goes from one address to another.
fn range(first: IpAddr, last: IpAddr) -> Option<IpNet> {
    let same = match (first, last) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (u32::from(a) ^ u32::from(b)).leading_zeros(),
        (IpAddr::V6(a), IpAddr::V6(b)) => (u128::from(a) ^ u128::from(b)).leading_zeros(),
        _ => return None,
    };
    IpNet::new(first, same as u8).ok()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::super::rules::chains;
    use super::super::tests::golden;
    use super::super::wanted::marks;
    use super::*;
    use crate::settings::{DetectLocal, Settings};
    use crate::testing::in_namespace;

    fn at(address: &str) -> At {
        At {
            protocol: Protocol::Tcp,
            address: address.parse().unwrap(),
        }
    }

    fn some(family: Family) -> Vec<(Element, Value)> {
        let (ip, range): (IpAddr, IpNet) = match family {
            Family::V4 => ("10.96.0.10".parse().unwrap(), "203.0.113.0/24".parse().unwrap()),
            Family::V6 => ("fd00:96::10".parse().unwrap(), "2001:db8:3::/48".parse().unwrap()),
        };
        let to = at(&SocketAddr::new(ip, 80).to_string());
        let of = |set: Set| match set {
            Set::Addresses | Set::NodeAddresses | Set::Hairpin => Match::Address(ip),
            Set::HealthPorts => Match::Port(32_000),
            Set::MasqueradeNodePorts | Set::DroppedNodePorts | Set::LocalNodePorts => {
                Match::ProtocolPort(Protocol::Udp, 30_053)
            }
            Set::Allowed => Match::From(to, range),
            _ => Match::At(to),
        };
        let value = |set: Set| {
            if set.is_map() {
                Value::Mark(0x4f12_3456)
            } else {
                Value::None
            }
        };
        Set::ALL
            .into_iter()
            .map(|set| {
                (
                    Element {
                        family,
                        set,
                        matches: of(set),
                    },
                    value(set),
                )
            })
            .collect()
    }

    fn listed() -> String {
        let output = Command::new("nft")
            .args(["list", "ruleset"])
            .output()
            .expect("nft is installed");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn nft_reads_the_table_as_it_was_meant() {
        let found = in_namespace(|| {
            let mut nft = Nft::open().unwrap();
            let settings = Settings {
                detect_local: DetectLocal::Ranges(vec![
                    "10.244.0.0/16".parse().unwrap(),
                    "fd00:244::/56".parse().unwrap(),
                ]),
                service_ranges: vec!["10.96.0.0/12".parse().unwrap(), "fd00:96::/112".parse().unwrap()],
                ..Settings::default()
            };
            for family in Family::ALL {
                assert_eq!(nft.find(family).unwrap(), None);
                nft.write_table(family, &chains(&settings, family, marks(14))).unwrap();
                nft.change(&[], &some(family)).unwrap();
            }
            listed()
        });
        golden("table.nft", &found);
    }

    #[test]
    fn local_traffic_is_known_in_each_way() {
        let mut found = String::new();
        for detect_local in [
            DetectLocal::None,
            DetectLocal::Bridge("cni0".into()),
            DetectLocal::Prefix("veth".into()),
        ] {
            let settings = Settings {
                detect_local,
                ..Settings::default()
            };
            let all = in_namespace(|| {
                let mut nft = Nft::open().unwrap();
                nft.write_table(Family::V4, &chains(&settings, Family::V4, marks(14)))
                    .unwrap();
                listed()
            });
            let of_interest = |line: &&str| {
                line.contains("@cluster-ips") || line.contains("from-local comment") || line.contains("from-local\"")
            };
            found += &format!("# {:?}\n", settings.detect_local);
            found += &all
                .lines()
                .filter(of_interest)
                .map(|line| format!("{}\n", line.trim()))
                .collect::<String>();
        }
        golden("local.nft", &found);
    }

    #[test]
    fn what_is_written_is_read_back() {
        in_namespace(|| {
            let mut nft = Nft::open().unwrap();
            for family in Family::ALL {
                let chains = chains(&Settings::default(), family, marks(14));
                nft.write_table(family, &chains).unwrap();
                let elements = some(family);
                nft.change(&[], &elements).unwrap();
                let mut held = FxHashMap::default();
                for set in Set::ALL {
                    nft.elements(family, set, &mut held).unwrap();
                }
                assert_eq!(held, elements.iter().cloned().collect());
                let found = nft.find(family).unwrap().unwrap();
                assert_eq!(found.sets.len(), Set::ALL.len());
                assert_eq!(
                    found.rules.len(),
                    chains.iter().map(|chain| chain.rules.len()).sum::<usize>()
                );

                // Written again, it keeps its elements.
                nft.write_table(family, &chains).unwrap();
                assert_eq!(nft.find(family).unwrap().unwrap(), found);
                let mut again = FxHashMap::default();
                nft.elements(family, Set::Allowed, &mut again).unwrap();
                assert_eq!(again.len(), 1);

                // A range gives way to one within it.
                let mut narrower = elements.iter().find(|(e, _)| e.set == Set::Allowed).cloned().unwrap();
                let Match::From(to, range) = narrower.0.matches else {
                    panic!("a range")
                };
                let wide = narrower.0;
                narrower.0.matches = Match::From(to, IpNet::new(range.addr(), range.prefix_len() + 4).unwrap());
                nft.change(&[wide], &[narrower.clone()]).unwrap();
                let mut again = FxHashMap::default();
                nft.elements(family, Set::Allowed, &mut again).unwrap();
                assert_eq!(again, [narrower].into_iter().collect());

                nft.delete_table(family).unwrap();
                nft.delete_table(family).unwrap();
                assert_eq!(nft.find(family).unwrap(), None);
            }
        });
    }
}
