//! Tables, chains, sets and their elements as netlink messages, and elements read back.

use super::wire::{self, chain, data, element, elements, set, table};
use super::{message, named};
use crate::Family;
use crate::{CREATE, Message, Response, attributes, be32, text};

/// A part of a packet, of a key or of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Source,
    Destination,
    Protocol,
    Port,
}

impl Part {
    /// nft's number of its type, and its length in bytes.
    fn shape(self, family: Family) -> (u32, u32) {
        match (self, family) {
            (Part::Source | Part::Destination, Family::V4) => (wire::TYPE_IPV4_ADDRESS, 4),
            (Part::Source | Part::Destination, Family::V6) => (wire::TYPE_IPV6_ADDRESS, 16),
            (Part::Protocol, _) => (wire::TYPE_INET_PROTOCOL, 1),
            (Part::Port, _) => (wire::TYPE_INET_SERVICE, 2),
        }
    }

    /// Its length in bytes.
    pub fn length(self, family: Family) -> u32 {
        self.shape(family).1
    }

    /// How many registers of four bytes it fills.
    pub fn registers(self, family: Family) -> u32 {
        self.length(family).div_ceil(4)
    }
}

/// Type and length of a key or value made of these parts. Parts of a concatenation are filled up to four bytes each.
pub fn key_shape(family: Family, parts: &[Part]) -> (u32, u32) {
    if let [part] = parts {
        return part.shape(family);
    }
    // Types of concatenations have six bits for each part.
    let parts = parts.iter().map(|part| part.shape(family));
    parts.fold((0, 0), |(types, lengths), (kind, length)| {
        (types << 6 | kind, lengths + length.next_multiple_of(4))
    })
}

/// Where the kernel leads packets into a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hook {
    pub kind: &'static str,
    pub number: u32,
    pub priority: i32,
}

pub fn add_table(family: Family, name: &str) -> Message {
    let mut m = message(family, name, wire::NEW_TABLE, CREATE);
    m.be32(table::FLAGS, 0);
    m
}

pub fn add_chain(family: Family, table: &str, name: &str, hook: Option<Hook>, comment: Option<&str>) -> Message {
    let mut m = named(family, table, wire::NEW_CHAIN, CREATE, chain::NAME, name);
    if let Some(hook) = hook {
        m.text(chain::TYPE, hook.kind);
        m.be32(chain::POLICY, wire::ACCEPT);
        m.nested(chain::HOOK, |m| {
            m.be32(chain::HOOK_NUMBER, hook.number);
            m.be32(chain::HOOK_PRIORITY, hook.priority as u32);
        });
    }
    if let Some(comment) = comment {
        m.attribute(chain::USERDATA, &udata_text(wire::UDATA_COMMENT, comment));
    }
    m
}

/// What a set or map holds, as the kernel has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    pub flags: u32,
    pub key_type: u32,
    pub key_length: u32,
    pub data_type: u32,
    pub data_length: u32,
}

/// `id` must be unique in the transaction. What else a set needs (a description, what nft keeps) is the caller's to add.
pub fn add_set(family: Family, table: &str, name: &str, shape: Shape, id: u32) -> Message {
    let mut m = named(family, table, wire::NEW_SET, CREATE, set::NAME, name);
    m.be32(set::FLAGS, shape.flags);
    m.be32(set::KEY_TYPE, shape.key_type);
    m.be32(set::KEY_LENGTH, shape.key_length);
    if shape.flags & wire::SET_MAP != 0 {
        m.be32(set::DATA_TYPE, shape.data_type);
        m.be32(set::DATA_LENGTH, shape.data_length);
    }
    m.be32(set::ID, id);
    m
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict<'a> {
    Drop,
    Accept,
    Return,
    Jump(&'a str),
    Goto(&'a str),
}

impl<'a> Verdict<'a> {
    pub fn put(self, m: &mut Message) {
        m.nested(data::VERDICT, |m| {
            match self {
                Verdict::Drop => m.be32(data::CODE, wire::DROP),
                Verdict::Accept => m.be32(data::CODE, wire::ACCEPT),
                Verdict::Return => m.be32(data::CODE, wire::RETURN),
                Verdict::Jump(chain) => m.be32(data::CODE, wire::JUMP).text(data::CHAIN, chain),
                Verdict::Goto(chain) => m.be32(data::CODE, wire::GOTO).text(data::CHAIN, chain),
            };
        });
    }

    /// From the attributes of the data that holds it; none if it is another, or no verdict.
    pub fn read(bytes: &'a [u8]) -> Option<Verdict<'a>> {
        let verdict = attributes(bytes).get(data::VERDICT)?;
        let code = be32(attributes(verdict).get(data::CODE)?)?;
        let chain = attributes(verdict).get(data::CHAIN).map(text);
        match (code, chain) {
            (wire::DROP, _) => Some(Verdict::Drop),
            (wire::ACCEPT, _) => Some(Verdict::Accept),
            (wire::RETURN, _) => Some(Verdict::Return),
            (wire::JUMP, Some(chain)) => Some(Verdict::Jump(chain)),
            (wire::GOTO, Some(chain)) => Some(Verdict::Goto(chain)),
            _ => None,
        }
    }
}

/// What a map has for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementData<'a> {
    None,
    Value(&'a [u8]),
    Verdict(Verdict<'a>),
}

/// An element of a set or map. Keys of concatenations have each part filled up to four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElementParts<'a> {
    pub key: &'a [u8],
    /// The last key of an interval.
    pub end: Option<&'a [u8]>,
    pub data: ElementData<'a>,
    pub comment: Option<&'a str>,
}

impl<'a> ElementParts<'a> {
    /// Just a key: of a set, or to delete it.
    pub fn key(key: &'a [u8]) -> ElementParts<'a> {
        ElementParts {
            key,
            end: None,
            data: ElementData::None,
            comment: None,
        }
    }
}

/// Appends an element to a list (`elements::LIST`).
pub fn put_element(m: &mut Message, parts: &ElementParts) {
    m.nested(wire::ITEM, |m| {
        put_value(m, element::KEY, parts.key);
        match parts.data {
            ElementData::None => {}
            ElementData::Value(bytes) => put_value(m, element::DATA, bytes),
            ElementData::Verdict(verdict) => {
                m.nested(element::DATA, |m| verdict.put(m));
            }
        }
        if let Some(comment) = parts.comment {
            m.attribute(element::USERDATA, &udata_text(wire::UDATA_COMMENT, comment));
        }
        if let Some(end) = parts.end {
            put_value(m, element::KEY_END, end);
        }
    });
}

pub(super) fn put_value(m: &mut Message, attribute: u16, bytes: &[u8]) {
    m.nested(attribute, |m| {
        m.attribute(data::VALUE, bytes);
    });
}

/// The elements of an answer to `GET_ELEMENTS`.
pub fn read_elements<'a>(response: Response<'a>) -> impl Iterator<Item = ElementParts<'a>> {
    let lists = response.attributes(wire::HEADER);
    let lists = lists.filter(|(kind, _)| *kind == elements::LIST);
    lists
        .flat_map(|(_, list)| attributes(list))
        .map(|(_, item)| read_element(item))
}

fn read_element(item: &[u8]) -> ElementParts<'_> {
    let value = |bytes| attributes(bytes).get(data::VALUE);
    let mut parts = ElementParts::key(&[]);
    for (kind, bytes) in attributes(item) {
        match kind {
            element::KEY => parts.key = value(bytes).unwrap_or_default(),
            element::KEY_END => parts.end = value(bytes),
            element::DATA => {
                let verdict = || Verdict::read(bytes).map_or(ElementData::None, ElementData::Verdict);
                parts.data = value(bytes).map_or_else(verdict, ElementData::Value);
            }
            element::USERDATA => {
                parts.comment = read_udata(bytes)
                    .find(|(k, _)| *k == wire::UDATA_COMMENT)
                    .map(|(_, v)| text(v))
            }
            _ => {}
        }
    }
    parts
}

/// What `nft` keeps beside an object: type, length, bytes. At most 255 of them.
pub fn udata(kind: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() + 2);
    out.extend_from_slice(&[kind, bytes.len() as u8]);
    out.extend_from_slice(bytes);
    out
}

/// A comment, cut where it is too long.
pub fn udata_text(kind: u8, text: &str) -> Vec<u8> {
    // The length is one byte; comments are shorter but for services with very long names.
    let end = (0..=text.len().min(200))
        .rev()
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(0);
    udata(kind, &[&text.as_bytes()[..end], &[0]].concat())
}

pub fn udata_number(kind: u8, number: u32) -> Vec<u8> {
    udata(kind, &number.to_ne_bytes())
}

/// What is kept beside an object, as (type, bytes); ends at the first that is malformed.
pub fn read_udata(mut bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let [kind, length, rest @ ..] = bytes else {
            return None;
        };
        let (value, after) = rest.split_at_checked(usize::from(*length))?;
        bytes = after;
        Some((*kind, value))
    })
}
