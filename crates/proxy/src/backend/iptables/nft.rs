//! The tables of the nf_tables variant, read over netlink.
//!
//! `iptables-nft-save` takes time that grows with the square of the chains: most of a minute for 10,000 services. The
//! kernel itself lists their rules in a fraction of a second, as expressions; those of which our rules are made are
//! turned back into the text that `iptables-save` would show. A rule that has others is no rule of ours: of it only
//! where it leads to is shown. Should some version of iptables make ours in another way, `is_known` says so, and the
//! program is asked.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::IpNet;
use netlink_sys::protocols::NETLINK_NETFILTER;

use super::render::Table;
use super::saved::{Chains, Saved, is_ours};
use crate::plan::Family;
use orlop_netlink::nft::Verdict;
use orlop_netlink::nft::wire::{self, bitwise, chain, cmp, data, expression, immediate, meta, payload, rule, xt};
use orlop_netlink::{Connection, Message, Response, attributes, be32, family_number, ne16, ne32, text};

const GET_CHAIN: u16 = wire::SUBSYSTEM | wire::GET_CHAIN;
const GET_RULE: u16 = wire::SUBSYSTEM | wire::GET_RULE;

/// What stands for a rule, or a part of it, that is not ours.
const UNKNOWN: &str = "?";

/// The tables of a family; none if a chain of ours has a rule with unknown expressions.
pub(super) fn read(family: Family) -> io::Result<Option<Saved>> {
    let mut connection = Connection::open(NETLINK_NETFILTER)?;
    let header = [family_number(family), 0, 0, 0];
    let mut places: Vec<(Table, String)> = vec![];
    connection.dump(Message::new(GET_CHAIN, 0, &header), |response| {
        let find = |kind| response.attributes(wire::HEADER).get(kind).map(text);
        let of = find(chain::TABLE).unwrap_or_default();
        let table = Table::ALL.into_iter().find(|table| table.as_str() == of);
        places.extend(
            table
                .zip(find(chain::NAME))
                .map(|(table, name)| (table, name.to_string())),
        );
    })?;
    let mut tables = Table::ALL.map(|table| (table, Chains::default()));
    let mut is_known = true;
    // Chain by chain: the kernel finds its place in a list of all rules by counting from the start, for every few dozen.
    for (table, name) in places {
        let mut message = Message::new(GET_RULE, 0, &header);
        message.text(rule::TABLE, table.as_str()).text(rule::CHAIN, &name);
        let mut rules: Vec<String> = vec![];
        match connection.dump(message, |response| rules.extend(read_rule(&response, family))) {
            // Deleted meanwhile.
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        }
        is_known &= !(is_ours(table, &name) && rules.iter().any(|rule| rule.starts_with(UNKNOWN)));
        let (_, chains) = tables
            .iter_mut()
            .find(|(of, _)| *of == table)
            .expect("all tables are there");
        chains.insert(name, rules);
    }
    let mut saved = Saved::default();
    for (table, chains) in tables {
        saved.insert(table, chains);
    }
    Ok(is_known.then_some(saved))
}

/// A rule's text.
fn read_rule(response: &Response, family: Family) -> Option<String> {
    let expressions = response.attributes(wire::HEADER).get(rule::EXPRESSIONS)?;
    let mut decoder = Decoder {
        family: Some(family),
        ..Decoder::default()
    };
    let mut is_known = true;
    for (_, item) in attributes(expressions) {
        let name = attributes(item).get(expression::NAME).map(text).unwrap_or_default();
        let data = attributes(item).get(expression::DATA).unwrap_or_default();
        is_known &= decoder.read_expression(name, data).is_some();
    }
    Some(match is_known && decoder.loaded.is_none() {
        true => decoder.finish(),
        false => format!("{UNKNOWN} {}", decoder.target),
    })
}

/// What was last loaded, to be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loaded {
    Protocol,
    Interface,
    Mark,
    Source,
    Destination,
    DestinationPort,
}

/// Puts a rule together from its expressions.
#[derive(Debug, Default)]
struct Decoder {
    family: Option<Family>,
    loaded: Option<Loaded>,
    mask: Option<Vec<u8>>,
    protocol: Option<&'static str>,
    source: String,
    destination: String,
    interface: String,
    matches: String,
    target: String,
}

impl Decoder {
    fn finish(self) -> String {
        let protocol = self.protocol.map(|name| format!("-p {name} ")).unwrap_or_default();
        let Decoder {
            source,
            destination,
            interface,
            matches,
            target,
            ..
        } = self;
        let rule = format!("{source}{destination}{interface}{protocol}{matches}{target}");
        rule.trim_end().to_string()
    }

    /// None: this is not of ours.
    fn read_expression(&mut self, name: &str, bytes: &[u8]) -> Option<()> {
        let field = |kind| attributes(bytes).get(kind);
        let number = |kind| field(kind).and_then(be32);
        let value = |kind| attributes(field(kind)?).get(data::VALUE);
        match name {
            "counter" => Some(()),
            "meta" => self.load(match number(meta::KEY)? {
                wire::META_MARK => Loaded::Mark,
                wire::META_INPUT_NAME => Loaded::Interface,
                wire::META_PROTOCOL => Loaded::Protocol,
                _ => return None,
            }),
            "payload" => self.load(match (number(payload::BASE)?, number(payload::OFFSET)?, self.family?) {
                (wire::NETWORK_HEADER, 12, Family::V4) | (wire::NETWORK_HEADER, 8, Family::V6) => Loaded::Source,
                (wire::NETWORK_HEADER, 16, Family::V4) | (wire::NETWORK_HEADER, 24, Family::V6) => Loaded::Destination,
                (wire::TRANSPORT_HEADER, 2, _) if number(payload::LENGTH)? == 2 => Loaded::DestinationPort,
                _ => return None,
            }),
            "bitwise" => {
                let is_plain = value(bitwise::XOR)?.iter().all(|byte| *byte == 0);
                self.mask = Some(value(bitwise::MASK)?.to_vec());
                is_plain.then_some(())
            }
            "cmp" => self.compare(number(cmp::OPERATOR)?, value(cmp::DATA)?),
            "immediate" => self.verdict(Verdict::read(field(immediate::DATA)?)?),
            "match" => self.matched(text(field(xt::NAME)?), number(xt::REVISION)?, field(xt::INFO)?),
            "target" => self.targeted(text(field(xt::NAME)?), number(xt::REVISION)?, field(xt::INFO)?),
            _ => None,
        }
    }

    fn load(&mut self, what: Loaded) -> Option<()> {
        self.loaded.replace(what).is_none().then_some(())
    }

    fn compare(&mut self, operator: u32, value: &[u8]) -> Option<()> {
        let mask = self.mask.take();
        let not = match operator {
            wire::EQUAL => "",
            wire::NOT_EQUAL => "! ",
            _ => return None,
        };
        match (self.loaded.take()?, mask) {
            (Loaded::Protocol, None) if not.is_empty() => {
                self.protocol = Some(match value {
                    [6] => "tcp",
                    [17] => "udp",
                    [132] => "sctp",
                    _ => return None,
                });
            }
            (Loaded::Interface, None) => {
                // A whole name is compared with its zero byte, the beginning of one without.
                let name = text(value);
                let rest = if value.contains(&0) { "" } else { "+" };
                self.interface = format!("{not}-i {name}{rest} ");
            }
            (Loaded::Mark, mask) => {
                let mask = ne32(&mask?, 0)?;
                self.matches += &format!("-m mark {not}--mark {:#x}/{mask:#x} ", ne32(value, 0)?);
            }
            (Loaded::Source, mask) => self.source = format!("{not}-s {} ", self.range(value, mask)?),
            (Loaded::Destination, mask) => self.destination = format!("{not}-d {} ", self.range(value, mask)?),
            (Loaded::DestinationPort, None) if not.is_empty() => {
                let port = u16::from_be_bytes(value.try_into().ok()?);
                self.matches += &format!("-m {} --dport {port} ", self.protocol?);
            }
            _ => return None,
        }
        Some(())
    }

    /// Whole bytes of an address are compared as such, others under a mask.
    fn range(&self, value: &[u8], mask: Option<Vec<u8>>) -> Option<IpNet> {
        let mut octets = [0; 16];
        octets.get_mut(..value.len())?.copy_from_slice(value);
        let ip = address(&octets, self.family?)?;
        let prefix = match mask {
            None => value.len() * 8,
            Some(mask) => {
                let ones: u32 = mask.iter().map(|byte| byte.leading_ones()).sum();
                let is_prefix = mask.iter().map(|byte| byte.count_ones()).sum::<u32>() == ones;
                is_prefix.then_some(ones as usize)?
            }
        };
        IpNet::new(ip, u8::try_from(prefix).ok()?).ok()
    }

    fn verdict(&mut self, verdict: Verdict) -> Option<()> {
        self.target = match verdict {
            Verdict::Jump(chain) => format!("-j {chain}"),
            Verdict::Goto(chain) => format!("-g {chain}"),
            Verdict::Return => "-j RETURN".to_string(),
            Verdict::Drop => "-j DROP".to_string(),
            Verdict::Accept => "-j ACCEPT".to_string(),
        };
        Some(())
    }

    /// The kernel's xt_… structures.
    fn matched(&mut self, name: &str, revision: u32, info: &[u8]) -> Option<()> {
        let shown = match (name, revision) {
            ("comment", 0) => format!("-m comment --comment \"{}\" ", text(info)),
            ("statistic", 0) => {
                let is_random = (ne16(info, 0)?, ne16(info, 2)?) == (0, 0);
                let part = f64::from(ne32(info, 4)?) / f64::from(1u32 << 31);
                is_random.then(|| format!("-m statistic --mode random --probability {part:.11} "))?
            }
            ("recent", 1) => self.recent(info)?,
            ("addrtype", 1) => match (ne16(info, 0)?, ne16(info, 2)?, ne32(info, 4)?) {
                (4, 0, 0) => "-m addrtype --src-type LOCAL ".to_string(),
                (0, 4, 0) => "-m addrtype --dst-type LOCAL ".to_string(),
                _ => return None,
            },
            ("tcp", 0) => {
                (info.get(..12)? == [0, 0, 255, 255, 0, 0, 255, 255, 0, 0, 0, 0]).then(|| "-m tcp ".into())?
            }
            ("udp", 0) => (info.get(..9)? == [0, 0, 255, 255, 0, 0, 255, 255, 0]).then(|| "-m udp ".into())?,
            ("sctp", 0) => sctp(info)?,
            ("conntrack", 3) => conntrack(info)?,
            _ => return None,
        };
        self.matches += &shown;
        Some(())
    }

    fn recent(&self, info: &[u8]) -> Option<String> {
        let (seconds, hits) = (ne32(info, 0)?, ne32(info, 4)?);
        let (flags, inverted) = (*info.get(8)?, *info.get(9)?);
        let (name, side) = (text(info.get(10..210)?), *info.get(210)?);
        let mask = address(info.get(212..228)?, self.family?)?;
        let rest = format!("--name {name} --mask {mask} --rsource ");
        match (flags, hits, inverted, side) {
            (0x02, 0, 0, 0) if seconds == 0 => Some(format!("-m recent --set {rest}")),
            (0x21, 0, 0, 0) => Some(format!("-m recent --rcheck --seconds {seconds} --reap {rest}")),
            _ => None,
        }
    }

    fn targeted(&mut self, name: &str, revision: u32, info: &[u8]) -> Option<()> {
        const RANDOM_FULLY: u32 = 16;
        let fully = |flags: u32| match flags {
            0 => Some(""),
            RANDOM_FULLY => Some(" --random-fully"),
            _ => None,
        };
        self.target = match (name, revision, self.family?) {
            ("REJECT", 0, Family::V4) if ne32(info, 0)? == 3 => "-j REJECT --reject-with icmp-port-unreachable".into(),
            ("REJECT", 0, Family::V6) if ne32(info, 0)? == 4 => "-j REJECT --reject-with icmp6-port-unreachable".into(),
            ("MARK", 2, _) => format!("-j MARK --set-xmark {:#x}/{:#x}", ne32(info, 0)?, ne32(info, 4)?),
            ("MASQUERADE", 0, Family::V4) => format!("-j MASQUERADE{}", fully(ne32(info, 4)?)?),
            ("MASQUERADE", 0, Family::V6) => format!("-j MASQUERADE{}", fully(ne32(info, 0)?)?),
            ("DNAT", 2, family) => {
                let (first, last) = (info.get(4..20)?, info.get(20..36)?);
                let (low, high) = (info.get(36..38)?, info.get(38..40)?);
                if ne32(info, 0)? != 3 || first != last || low != high {
                    return None;
                }
                let port = u16::from_be_bytes(low.try_into().ok()?);
                format!(
                    "-j DNAT --to-destination {}",
                    SocketAddr::new(address(first, family)?, port)
                )
            }
            _ => return None,
        };
        Some(())
    }
}

/// In 16 bytes, of which IPv4 takes the first four.
fn address(bytes: &[u8], family: Family) -> Option<IpAddr> {
    let bytes: [u8; 16] = bytes.try_into().ok()?;
    Some(match family {
        Family::V4 => Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]).into(),
        Family::V6 => Ipv6Addr::from(bytes).into(),
    })
}

/// Only states are looked at.
fn conntrack(info: &[u8]) -> Option<String> {
    const BY_STATE: u16 = 1;
    let not = match (ne16(info, 146)?, ne16(info, 148)?) {
        (BY_STATE, 0) => "",
        (BY_STATE, BY_STATE) => "! ",
        _ => return None,
    };
    let states = match ne16(info, 150)? {
        1 => "INVALID",
        8 => "NEW",
        6 => "RELATED,ESTABLISHED",
        0x86 => "RELATED,ESTABLISHED,DNAT",
        _ => return None,
    };
    Some(format!("-m conntrack {not}--ctstate {states} "))
}

/// SCTP's ports are compared here rather than by an expression of their own.
fn sctp(info: &[u8]) -> Option<String> {
    const BY_DESTINATION: u32 = 2;
    let (flags, inverted) = (ne32(info, 284)?, ne32(info, 288)?);
    match (flags, inverted, ne16(info, 0)?, ne16(info, 2)?) {
        (0, 0, _, _) => Some("-m sctp ".to_string()),
        (BY_DESTINATION, 0, first, last) if first == last => Some(format!("-m sctp --dport {first} ")),
        _ => None,
    }
}
