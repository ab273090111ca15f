//! Steps as commands of `nft`, for people: in error messages and in tests, where `nft` itself reads them.

use std::fmt::{self, Display, Write};
use std::net::IpAddr;

use super::names::TABLE;
use super::ruleset::{
    Chain, Container, Data, Element, ElementKey, KeyKind, Op, Rule, Script, Side, Statement, ValueKind, Verdict,
    endpoint_of, family_name, set_name, slot_of,
};
use super::slots::shard_of;
use crate::plan::Family;
use orlop_netlink::nft::Part;

/// Something in the table of a family.
pub(super) struct In<'a, T>(pub Family, pub &'a T);

impl Display for In<'_, Script> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for op in &self.1.ops {
            writeln!(f, "{}", In(self.0, op))?;
        }
        for chain in &self.1.stale {
            writeln!(f, "{}", In(self.0, &Op::DeleteChain(chain.clone())))?;
        }
        Ok(())
    }
}

impl Display for In<'_, Op> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = format!("{} {TABLE}", family_name(self.0));
        match self.1 {
            Op::AddTable => write!(f, "add table {table} {{ comment \"rules for kube-proxy\" ; }}"),
            Op::DeleteTable => write!(f, "delete table {table}"),
            Op::AddContainer(container) => container_text(f, self.0, &table, (*container, 0)),
            Op::AddShard(shard) => container_text(f, self.0, &table, (Container::ServiceEndpoints, *shard)),
            Op::AddAffinity(name) => {
                let address = address_type(self.0);
                write!(
                    f,
                    "add set {table} {name} {{ type {address} ; size 65535 ; flags dynamic,timeout ; }}"
                )
            }
            Op::DeleteSet(name) => write!(f, "delete set {table} {name}"),
            Op::AddChain(chain) => chain_text(f, &table, chain),
            Op::FlushChain(name) => write!(f, "flush chain {table} {name}"),
            Op::DeleteChain(name) => write!(f, "delete chain {table} {name}"),
            Op::AddRule(chain, rule) => write!(f, "add rule {table} {chain} {}", In(self.0, rule)),
            Op::AddElement((place, value)) => element_text(f, self.0, &table, &(place.clone(), value.clone())),
            Op::DeleteElement(place) => {
                let key = key_text(self.0, place);
                write!(f, "delete element {table} {} {{ {key} }}", set_name(place.set()))
            }
        }
    }
}

fn address_type(family: Family) -> &'static str {
    match family {
        Family::V4 => "ipv4_addr",
        Family::V6 => "ipv6_addr",
    }
}

fn container_text(
    f: &mut fmt::Formatter<'_>,
    family: Family,
    table: &str,
    (container, shard): (Container, u32),
) -> fmt::Result {
    let ip = family_name(family);
    let (word, key) = match container.key() {
        KeyKind::Slot => ("typeof", "numgen random mod 65536".to_string()),
        KeyKind::Packet(parts) => {
            let parts = parts.iter().map(|part| match part {
                Part::Source | Part::Destination => address_type(family),
                Part::Protocol => "inet_proto",
                Part::Port => "inet_service",
            });
            ("type", parts.collect::<Vec<_>>().join(" . "))
        }
    };
    let (kind, value) = match container.value() {
        ValueKind::None => ("set", String::new()),
        ValueKind::Verdict => ("map", " : verdict".to_string()),
        ValueKind::Endpoint => ("map", format!(" : {ip} daddr . th dport")),
    };
    let (name, comment) = (set_name((container, shard)), container.comment());
    write!(
        f,
        "add {kind} {table} {name} {{ {word} {key}{value} ; comment \"{comment}\" ; }}"
    )
}

fn chain_text(f: &mut fmt::Formatter<'_>, table: &str, chain: &Chain) -> fmt::Result {
    write!(f, "add chain {table} {}", chain.name)?;
    if let Some(hook) = chain.hook {
        let name = ["prerouting", "input", "forward", "output", "postrouting"][hook.number as usize];
        write!(f, " {{ type {} hook {name} priority {} ; }}", hook.kind, hook.priority)?;
    }
    if let Some(comment) = chain.comment {
        write!(f, " {{ comment \"{comment}\" ; }}")?;
    }
    Ok(())
}

fn key_text(family: Family, place: &ElementKey) -> String {
    let KeyKind::Packet(parts) = place.container.key() else {
        return slot_of(&place.key).map_or_else(String::new, |slot| slot.to_string());
    };
    let mut rest = &place.key[..];
    let mut take = |length: usize| {
        let (part, after) = rest.split_at(length.min(rest.len()));
        rest = after;
        part
    };
    let parts = parts.iter().map(|part| match (part, family) {
        (Part::Source | Part::Destination, Family::V4) => match <[u8; 4]>::try_from(take(4)) {
            Ok(bytes) => IpAddr::from(bytes).to_string(),
            Err(_) => "?".to_string(),
        },
        (Part::Source | Part::Destination, Family::V6) => match <[u8; 16]>::try_from(take(16)) {
            Ok(bytes) => IpAddr::from(bytes).to_string(),
            Err(_) => "?".to_string(),
        },
        (Part::Protocol, _) => match take(4).first() {
            Some(6) => "tcp".to_string(),
            Some(17) => "udp".to_string(),
            Some(132) => "sctp".to_string(),
            other => format!("{}", other.copied().unwrap_or_default()),
        },
        (Part::Port, _) => match take(4) {
            [high, low, ..] => u16::from_be_bytes([*high, *low]).to_string(),
            _ => "?".to_string(),
        },
    });
    parts.collect::<Vec<_>>().join(" . ")
}

fn element_text(f: &mut fmt::Formatter<'_>, family: Family, table: &str, (place, value): &Element) -> fmt::Result {
    let (name, key) = (set_name(place.set()), key_text(family, place));
    write!(f, "add element {table} {name} {{ {key}")?;
    if let Some(comment) = &value.comment {
        write!(f, " comment \"{comment}\"")?;
    }
    match &value.data {
        Data::None => {}
        Data::Verdict(verdict) => write!(f, " : {verdict}")?,
        Data::Endpoint(bytes) => match endpoint_of(bytes) {
            Some(address) => write!(f, " : {} . {}", address.ip(), address.port())?,
            None => write!(f, " : ?")?,
        },
    }
    write!(f, " }}")
}

impl Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Drop => f.write_str("drop"),
            Verdict::Return => f.write_str("return"),
            Verdict::Jump(chain) => write!(f, "jump {chain}"),
            Verdict::Goto(chain) => write!(f, "goto {chain}"),
        }
    }
}

impl Display for In<'_, Rule> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, statement) in self.1.statements.iter().enumerate() {
            if i > 0 {
                f.write_char(' ')?;
            }
            write!(f, "{}", In(self.0, statement))?;
        }
        match self.1.comment {
            Some(comment) => write!(f, " comment \"{comment}\""),
            None => Ok(()),
        }
    }
}

impl Display for In<'_, Statement> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ip = family_name(self.0);
        let side = |side: &Side| match side {
            Side::Source => "saddr",
            Side::Destination => "daddr",
        };
        let unless = |not: &bool| if *not { "!= " } else { "" };
        match self.1 {
            Statement::New => f.write_str("ct state new"),
            Statement::Translated => f.write_str("ct status dnat"),
            Statement::Local(which) => write!(f, "fib {} type local", side(which)),
            Statement::Protocol(protocol) => write!(f, "meta l4proto {}", protocol.as_str()),
            Statement::Within {
                side: which,
                range,
                not,
            } => {
                let whole = range.prefix_len() == range.max_prefix_len();
                write!(f, "{ip} {} {}", side(which), unless(not))?;
                match whole {
                    true => write!(f, "{}", range.addr()),
                    false => write!(f, "{range}"),
                }
            }
            Statement::Interface { name, prefix, not } => {
                let star = if *prefix { "*" } else { "" };
                write!(f, "iifname {}\"{name}{star}\"", unless(not))
            }
            Statement::In(container) => write!(f, "{} @{}", looked_up(ip, *container), container.name()),
            Statement::Dispatch(container) => write!(f, "{} vmap @{}", looked_up(ip, *container), container.name()),
            Statement::Remembered(set) => write!(f, "{ip} saddr @{set}"),
            Statement::Remember { set, seconds } => write!(f, "update @{set} {{ {ip} saddr timeout {seconds}s }}"),
            Statement::Mark(mark) => write!(f, "mark set mark or {mark:#x}"),
            Statement::Marked(mark) => write!(f, "mark and {mark:#x} != 0"),
            Statement::Unmark(mark) => write!(f, "mark set mark xor {mark:#x}"),
            Statement::Masquerade => f.write_str("masquerade fully-random"),
            Statement::Reject => f.write_str("reject"),
            Statement::DnatAny { range, count } => write!(
                f,
                "dnat {ip} addr . port to numgen random mod {count} offset {} map @{}",
                range.first,
                set_name((Container::ServiceEndpoints, shard_of(range.first)))
            ),
            Statement::OneIn(count) => write!(f, "numgen random mod {count} == 0"),
            Statement::Dnat(address) => write!(f, "dnat to {address}"),
            Statement::Verdict(verdict) => write!(f, "{verdict}"),
        }
    }
}

fn looked_up(ip: &str, container: Container) -> String {
    let KeyKind::Packet(parts) = container.key() else {
        return String::new();
    };
    let parts = parts.iter().map(|part| match part {
        Part::Source => format!("{ip} saddr"),
        Part::Destination => format!("{ip} daddr"),
        Part::Protocol => "meta l4proto".to_string(),
        Part::Port => "th dport".to_string(),
    });
    parts.collect::<Vec<_>>().join(" . ")
}
