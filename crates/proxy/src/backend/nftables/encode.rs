//! Steps as netlink messages.

use std::hash::{DefaultHasher, Hasher};

use super::names::TABLE;
use super::ruleset::{
    Container, Data, ElementKey, KeyKind, Name, Op, Range, Rule, Side, Statement, Value, ValueKind, set_name,
};
use super::slots::shard_of;
use crate::plan::Family;
use orlop_netlink::nft::wire::{self, chain, elements, rule, set, table};
use orlop_netlink::nft::{
    self, ElementData, ElementParts, Expressions, Part, Shape, key_shape, udata, udata_number, udata_text,
};
use orlop_netlink::{APPEND, CREATE, Message};

/// How many clients an affinity set remembers at most.
const AFFINITY_SIZE: u32 = 65535;

/// An element or step alone in a message takes less than this; messages of many elements stop here.
pub(super) const ELEMENTS_LENGTH: usize = 24 * 1024;

/// What we keep beside a rule, past the types that nft knows: by what it is known again, and its range of slots.
pub(super) const UDATA_TAG: u8 = 0xe0;
pub(super) const UDATA_RANGE: u8 = 0xe1;

pub(super) fn message(family: Family, kind: u16, flags: u16) -> Message {
    nft::message(family, TABLE, kind, flags)
}

fn named(family: Family, kind: u16, flags: u16, attribute: u16, name: &str) -> Message {
    nft::named(family, TABLE, kind, flags, attribute, name)
}

/// The message of a step, but for elements, many of which share one: [`begin_elements`].
pub(super) fn step(family: Family, op: &Op, id: u32) -> Message {
    match op {
        Op::AddTable => {
            let mut m = nft::add_table(family, TABLE);
            let comment = udata_text(wire::UDATA_COMMENT, "rules for kube-proxy");
            m.attribute(table::USERDATA, &comment);
            m
        }
        Op::DeleteTable => message(family, wire::DELETE_TABLE, 0),
        Op::AddContainer(container) => add_container(family, (*container, 0), id),
        Op::AddShard(shard) => add_container(family, (Container::ServiceEndpoints, *shard), id),
        Op::AddAffinity(name) => add_affinity(family, name, id),
        Op::DeleteSet(name) => named(family, wire::DELETE_SET, 0, set::NAME, name),
        Op::AddChain(chain) => nft::add_chain(family, TABLE, &chain.name, chain.hook, chain.comment),
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

/// Type and length of a container's key and value, as the kernel has them.
pub(super) fn shape(family: Family, container: Container) -> Shape {
    let (key_type, key_length) = match container.key() {
        KeyKind::Slot => (wire::TYPE_INTEGER, 4),
        KeyKind::Packet(parts) => key_shape(family, parts),
    };
    let (flags, data_type, data_length) = match container.value() {
        ValueKind::None => (0, 0, 0),
        ValueKind::Verdict => (wire::SET_MAP, wire::TYPE_VERDICT, 0),
        ValueKind::Endpoint => {
            let (kind, length) = key_shape(family, &[Part::Destination, Part::Port]);
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

fn add_container(family: Family, set: (Container, u32), id: u32) -> Message {
    let container = set.0;
    let mut m = nft::add_set(family, TABLE, &set_name(set), shape(family, container), id);
    m.attribute(set::USERDATA, &container_udata(family, container));
    m
}

fn add_affinity(family: Family, name: &str, id: u32) -> Message {
    let mut m = nft::add_set(family, TABLE, name, affinity_shape(family), id);
    m.nested(set::DESCRIPTION, |m| {
        m.be32(set::DESCRIPTION_SIZE, AFFINITY_SIZE);
    });
    let order = udata_number(wire::UDATA_SET_KEY_ORDER, wire::NETWORK_ORDER);
    m.attribute(set::USERDATA, &order);
    m
}

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
        out.extend(udata_number(wire::UDATA_SET_KEY_ORDER, wire::HOST_ORDER));
        out.extend(udata_number(wire::UDATA_SET_DATA_ORDER, 0));
        out.extend(typeof_(wire::UDATA_SET_KEY_TYPEOF, NUMGEN, &random));
        out.extend(typeof_(wire::UDATA_SET_DATA_TYPEOF, CONCAT, &endpoint));
    }
    out.extend(udata_text(wire::UDATA_SET_COMMENT, container.comment()));
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

pub(super) fn put_element(m: &mut Message, place: &ElementKey, value: Option<&Value>) {
    let parts = match value {
        None => ElementParts::key(&place.key),
        Some(value) => ElementParts {
            data: match &value.data {
                Data::None => ElementData::None,
                Data::Verdict(verdict) => ElementData::Verdict(verdict.as_nft()),
                Data::Endpoint(bytes) => ElementData::Value(bytes),
            },
            comment: value.comment.as_deref(),
            ..ElementParts::key(&place.key)
        },
    };
    nft::put_element(m, &parts);
}

fn add_rule(family: Family, name: &Name, rule: &Rule) -> Message {
    let mut m = named(family, wire::NEW_RULE, CREATE | APPEND, rule::CHAIN, name);
    let start = m.len();
    m.nested(rule::EXPRESSIONS, |m| put_statements(m, family, rule));
    let tag = tag_of(&m.bytes()[start..], rule);
    let mut kept = rule
        .comment
        .map_or_else(Vec::new, |comment| udata_text(wire::UDATA_COMMENT, comment));
    kept.extend(udata(UDATA_TAG, &tag.to_ne_bytes()));
    if let Some(Range { first, length }) = rule.range() {
        let numbers = [first.to_ne_bytes(), length.to_ne_bytes()].concat();
        kept.extend(udata(UDATA_RANGE, &numbers));
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

fn put_statements(m: &mut Message, family: Family, rule: &Rule) {
    let mut expressions = Expressions::new(m, family);
    for statement in &rule.statements {
        put_statement(&mut expressions, statement);
    }
}

fn put_statement(to: &mut Expressions, statement: &Statement) {
    const NEW: u32 = 8;
    const TRANSLATED: u32 = 0x20;
    match statement {
        Statement::New => to.connection_state(NEW),
        Statement::Translated => to.connection_status(TRANSLATED),
        Statement::Local(side) => to.is_local(*side == Side::Source),
        Statement::Protocol(protocol) => to.protocol(protocol.number()),
        Statement::Within { side, range, not } => {
            let part = match side {
                Side::Source => Part::Source,
                Side::Destination => Part::Destination,
            };
            to.within(part, *range, *not);
        }
        Statement::Interface { name, prefix, not } => to.input_interface(name, *prefix, *not),
        Statement::In(container) => {
            load_key(to, *container);
            to.lookup(container.name(), false);
        }
        Statement::Dispatch(container) => {
            load_key(to, *container);
            to.dispatch(container.name());
        }
        Statement::Remembered(set) => {
            to.load(&[Part::Source]);
            to.lookup(set, false);
        }
        Statement::Remember { set, seconds } => {
            to.load(&[Part::Source]);
            to.update_set(set, *seconds);
        }
        Statement::Mark(mark) => to.change_mark(!mark, *mark),
        Statement::Marked(mark) => {
            to.load_mark();
            to.change_bits(&mark.to_ne_bytes(), &[0; 4]);
            to.compare(true, &[0; 4]);
        }
        Statement::Unmark(mark) => to.change_mark(u32::MAX, *mark),
        Statement::Masquerade => to.masquerade(),
        Statement::Reject => to.reject(),
        Statement::DnatAny { range, count } => {
            to.load_random(range.first, *count);
            let set = (Container::ServiceEndpoints, shard_of(range.first));
            to.map(&set_name(set));
            to.dnat_to_loaded();
        }
        Statement::OneIn(count) => {
            to.load_random(0, *count);
            to.compare(false, &[0; 4]);
        }
        Statement::Dnat(address) => to.dnat_to(address.ip(), address.port()),
        Statement::Verdict(verdict) => to.verdict(verdict.as_nft()),
    }
}

fn load_key(to: &mut Expressions, container: Container) {
    if let KeyKind::Packet(parts) = container.key() {
        to.load(parts);
    }
}
