//! The table of [`super::rules`] in the kernel: its chains, sets and elements over netlink.

use std::io;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use netlink_sys::protocols::NETLINK_NETFILTER;
use rustc_hash::FxHashMap;

use super::render::{At, Element, Match, Set, Value};
use super::rules::{Chain, Rule, Statement, TABLE};
use crate::plan::{Family, Protocol};
use orlop_netlink::nft::wire::{self, elements, rule, set};
use orlop_netlink::nft::{self, Batch, ElementData, ElementParts, Expressions, Part, Shape, Verdict};
use orlop_netlink::{APPEND, CREATE, Connection, Message, Response, ip, octets, text};

/// Elements in one message, and in one transaction.
const IN_MESSAGE: usize = 400;
const IN_BATCH: usize = 20_000;

pub(super) struct Nft {
    connection: Connection,
}

/// What there is of a table.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct TableContents {
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
    pub(super) fn find(&mut self, family: Family) -> io::Result<Option<TableContents>> {
        let mut found = TableContents::default();
        let message = |kind| nft::message(family, TABLE, kind, 0);
        match self
            .connection
            .dump(message(wire::GET_SET), |response| found.sets.extend(read_set(response)))
        {
            Err(e) if e.raw_os_error() == Some(nix::libc::ENOENT) => return Ok(None),
            outcome => outcome?,
        }
        self.connection.dump(message(wire::GET_RULE), |response| {
            found.rules.extend(read_rule(response))
        })?;
        Ok((found != TableContents::default()).then_some(found))
    }

    /// The elements of a set that is there.
    pub(super) fn elements(
        &mut self,
        family: Family,
        set: Set,
        into: &mut FxHashMap<Element, Value>,
    ) -> io::Result<()> {
        let message = nft::named(family, TABLE, wire::GET_ELEMENTS, 0, elements::SET, set.name());
        self.connection
            .dump(message, |response| read_elements(response, family, set, into))
    }

    /// Makes the table with all its sets and chains. Those that are there stay, with their elements; the rules of all
    /// chains are written anew, all at once.
    pub(super) fn write_table(&mut self, family: Family, chains: &[Chain]) -> io::Result<()> {
        let mut batch = Batch::new();
        batch.push(nft::add_table(family, TABLE));
        for (id, set) in Set::ALL.into_iter().enumerate() {
            batch.push(add_set(family, set, id as u32 + 1));
        }
        for chain in chains {
            batch.push(nft::add_chain(family, TABLE, chain.name, chain.hook, None));
        }
        for chain in chains {
            let flush = nft::named(family, TABLE, wire::DELETE_RULE, 0, rule::CHAIN, chain.name);
            batch.push(flush);
        }
        for chain in chains {
            for rule in &chain.rules {
                batch.push(add_rule(family, chain.name, rule));
            }
        }
        self.commit(batch)
    }

    pub(super) fn delete_table(&mut self, family: Family) -> io::Result<()> {
        let mut batch = Batch::new();
        batch.push(nft::message(family, TABLE, wire::DELETE_TABLE, 0));
        match self.commit(batch) {
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
            let (mut batch, mut count) = (Batch::new(), 0);
            for (kind, flags, all) in [(wire::DELETE_ELEMENTS, 0, &remove), (wire::NEW_ELEMENTS, CREATE, &add)] {
                for of_set in by_set(all) {
                    for part in of_set.chunks(IN_MESSAGE) {
                        batch.push(element_message(kind, flags, family, part));
                        count += part.len();
                        if count >= IN_BATCH {
                            self.commit(std::mem::replace(&mut batch, Batch::new()))?;
                            count = 0;
                        }
                    }
                }
            }
            if !batch.is_empty() {
                self.commit(batch)?;
            }
        }
        Ok(())
    }

    fn commit(&mut self, batch: Batch) -> io::Result<()> {
        batch.commit(&mut self.connection).map_err(|refused| refused.error)
    }
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

fn add_set(family: Family, set: Set, id: u32) -> Message {
    let (key_type, key_length) = nft::key_shape(family, set.parts());
    let mut shape = Shape {
        key_type,
        key_length,
        ..Shape::default()
    };
    if set.is_map() {
        shape.flags |= wire::SET_MAP;
        (shape.data_type, shape.data_length) = (wire::TYPE_MARK, 4);
    }
    if set.is_interval() {
        shape.flags |= wire::SET_INTERVAL | wire::SET_CONCATENATED;
    }
    let mut message = nft::add_set(family, TABLE, set.name(), shape, id);
    if set.is_map() {
        // For `nft`, which shows values: keys are in network order, marks in the machine's.
        let key = nft::udata_number(wire::UDATA_SET_KEY_ORDER, wire::NETWORK_ORDER);
        let mark = nft::udata_number(wire::UDATA_SET_DATA_ORDER, wire::HOST_ORDER);
        message.attribute(set::USERDATA, &[key, mark].concat());
    }
    if set.is_interval() {
        message.nested(set::DESCRIPTION, |m| {
            m.nested(set::DESCRIPTION_FIELDS, |m| {
                for part in set.parts() {
                    m.nested(wire::ITEM, |m| {
                        m.be32(set::FIELD_LENGTH, part.length(family));
                    });
                }
            });
        });
    }
    message
}

fn add_rule(family: Family, chain: &str, rule: &Rule) -> Message {
    let mut message = nft::named(family, TABLE, wire::NEW_RULE, CREATE | APPEND, rule::CHAIN, chain);
    message.nested(rule::EXPRESSIONS, |list| {
        let mut expressions = Expressions::new(list, family);
        for statement in &rule.statements {
            put_statement(&mut expressions, statement);
        }
    });
    let comment = nft::udata_text(wire::UDATA_COMMENT, &rule.to_string());
    message.attribute(rule::USERDATA, &comment);
    message
}

fn put_statement(to: &mut Expressions, statement: &Statement) {
    const NEW: u32 = 8;
    let mut look_up = |set: &Set, parts: &[Part], inverted: bool| {
        to.load(parts);
        to.lookup(set.name(), inverted);
    };
    match statement {
        Statement::New => to.connection_state(NEW),
        Statement::Tcp => to.protocol(Protocol::Tcp.number()),
        Statement::In(set) => look_up(set, set.parts(), false),
        Statement::NotIn(set) => look_up(set, set.parts(), true),
        Statement::SourceIn(set) => look_up(set, &[Part::Source], false),
        Statement::Source { range, not } => to.within(Part::Source, *range, *not),
        Statement::Destination(range) => to.within(Part::Destination, *range, false),
        Statement::Interface { name, prefix, not } => to.input_interface(name, *prefix, *not),
        Statement::MarkFrom(set) => {
            to.load(set.parts());
            to.map(set.name());
            to.set_mark();
        }
        Statement::Mark(bits) => to.change_mark(!bits, *bits),
        Statement::Unmark(bits) => to.change_mark(!bits, 0),
        Statement::Marked(mask, value) => {
            to.load_mark();
            to.change_bits(&mask.to_ne_bytes(), &[0; 4]);
            to.compare(false, &value.to_ne_bytes());
        }
        Statement::Masquerade => to.masquerade(),
        Statement::Reject => to.reject(),
        Statement::Drop => to.verdict(Verdict::Drop),
        Statement::Accept => to.verdict(Verdict::Accept),
        Statement::Return => to.verdict(Verdict::Return),
        Statement::Jump(chain) => to.verdict(Verdict::Jump(chain)),
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
fn element_message(kind: u16, flags: u16, family: Family, of_set: &[(Element, Value)]) -> Message {
    let set = of_set.first().map_or(Set::Addresses, |(element, _)| element.set);
    let mut message = nft::named(family, TABLE, kind, flags, elements::SET, set.name());
    message.nested(elements::LIST, |list| {
        for (element, value) in of_set {
            let (key, end) = key_of(element);
            let mark = match value {
                Value::Mark(mark) => Some(mark.to_ne_bytes()),
                Value::None | Value::Server(_) => None,
            };
            let parts = ElementParts {
                end: end.as_deref(),
                data: mark.as_ref().map_or(ElementData::None, |mark| ElementData::Value(mark)),
                ..ElementParts::key(&key)
            };
            nft::put_element(list, &parts);
        }
    });
    message
}

fn read_set(response: Response) -> Option<Set> {
    let name = text(response.attributes(wire::HEADER).get(set::NAME)?);
    Set::ALL.into_iter().find(|set| set.name() == name)
}

/// A rule's chain and its comment.
fn read_rule(response: Response) -> Option<(String, String)> {
    let chain = text(response.attributes(wire::HEADER).get(rule::CHAIN)?);
    let kept = response
        .attributes(wire::HEADER)
        .get(rule::USERDATA)
        .unwrap_or_default();
    let comment = nft::read_udata(kept).find(|(kind, _)| *kind == wire::UDATA_COMMENT);
    let comment = comment.map_or("", |(_, comment)| text(comment));
    Some((chain.to_string(), comment.to_string()))
}

fn read_elements(response: Response, family: Family, set: Set, into: &mut FxHashMap<Element, Value>) {
    for parts in nft::read_elements(response) {
        let Some(matches) = match_of(set, family, parts.key, parts.end) else {
            continue;
        };
        let value = match parts.data {
            ElementData::Value(mark) => mark
                .try_into()
                .map_or(Value::None, |mark| Value::Mark(u32::from_ne_bytes(mark))),
            _ => Value::None,
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

    use super::super::desired::marks;
    use super::super::rules::chains;
    use super::super::tests::golden;
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
