//! Steps as netlink messages, in one transaction.

use std::io;

use super::plan::Step;
use super::{Data, DataKind, ElementName, Rule, SetKind, Target};
use crate::nft::wire::{self, chain, elements, rule, set};
use crate::nft::{
    Batch, ElementData, ElementParts, Shape, Verdict, add_chain, add_set, add_table, key_shape, message, named,
    put_element, udata, udata_number, udata_text,
};
use crate::{APPEND, BatchError, CREATE, Connection, Family, Message};

/// What we keep beside a rule, past the types that nft knows.
pub(super) const UDATA_TAG: u8 = 0xe0;

/// Messages of many elements stop here: an attribute is shorter than 64 KiB.
const ELEMENTS_LENGTH: usize = 24 * 1024;

/// With an error comes the step that was refused, or the first of those that share a message.
pub(super) fn commit(
    connection: &mut Connection,
    family: Family,
    table: &str,
    steps: &[Step],
) -> Result<(), (Option<usize>, io::Error)> {
    let mut batch = Batch::new();
    // Which step each message begins with.
    let mut begins = vec![];
    let mut at = 0;
    while at < steps.len() {
        let (message, next) = next_message(family, table, steps, at);
        batch.push(message);
        begins.push(at);
        at = next;
    }
    batch
        .commit(connection)
        .map_err(|BatchError { at, error }| (at.and_then(|at| begins.get(at).copied()), error))
}

/// One message, and the step that comes after those in it: elements of a set share one.
fn next_message(family: Family, table: &str, steps: &[Step], at: usize) -> (Message, usize) {
    match &steps[at] {
        Step::AddElement((set, _), _) => {
            let message = named(family, table, wire::NEW_ELEMENTS, CREATE, elements::SET, set);
            with_elements(message, steps, at, |step| match step {
                Step::AddElement(name, data) if name.0 == *set => Some((name, Some(data))),
                _ => None,
            })
        }
        Step::DeleteElement((set, _)) => {
            let message = named(family, table, wire::DELETE_ELEMENTS, 0, elements::SET, set);
            with_elements(message, steps, at, |step| match step {
                Step::DeleteElement(name) if name.0 == *set => Some((name, None)),
                _ => None,
            })
        }
        // Ids of sets are unique in a transaction.
        step => (single(family, table, step, at as u32 + 1), at + 1),
    }
}

fn with_elements<'a>(
    mut message: Message,
    steps: &'a [Step],
    at: usize,
    element: impl Fn(&'a Step) -> Option<(&'a ElementName, Option<&'a Data>)>,
) -> (Message, usize) {
    let mut next = at;
    message.nested(elements::LIST, |list| {
        while let Some((name, data)) = steps.get(next).and_then(&element)
            && list.len() < ELEMENTS_LENGTH
        {
            let parts = ElementParts {
                end: name.1.last.as_deref(),
                data: data.map_or(ElementData::None, element_data),
                ..ElementParts::key(&name.1.first)
            };
            put_element(list, &parts);
            next += 1;
        }
    });
    (message, next)
}

fn element_data(data: &Data) -> ElementData<'_> {
    match data {
        Data::None => ElementData::None,
        Data::Value(bytes) => ElementData::Value(bytes),
        Data::Verdict(target) => ElementData::Verdict(match target {
            Target::Accept => Verdict::Accept,
            Target::Drop => Verdict::Drop,
            Target::Return => Verdict::Return,
            Target::Jump(chain) => Verdict::Jump(chain),
            Target::Goto(chain) => Verdict::Goto(chain),
        }),
    }
}

fn single(family: Family, table: &str, step: &Step, id: u32) -> Message {
    match step {
        Step::DeleteTable => message(family, table, wire::DELETE_TABLE, 0),
        Step::AddTable => add_table(family, table),
        Step::AddSet(name, kind) => add_set_of(family, table, name, *kind, id),
        Step::AddChain(name, hook) => add_chain(family, table, name, *hook, None),
        Step::FlushChain(name) => named(family, table, wire::DELETE_RULE, 0, rule::CHAIN, name),
        Step::AddRule(name, rule) => add_rule(family, table, name, rule),
        Step::DeleteSet(name) => named(family, table, wire::DELETE_SET, 0, set::NAME, name),
        Step::DeleteChain(name) => named(family, table, wire::DELETE_CHAIN, 0, chain::NAME, name),
        Step::AddElement((set, _), _) => named(family, table, wire::NEW_ELEMENTS, CREATE, elements::SET, set),
        Step::DeleteElement((set, _)) => named(family, table, wire::DELETE_ELEMENTS, 0, elements::SET, set),
    }
}

/// As the kernel has it.
pub(super) fn shape(family: Family, kind: SetKind) -> Shape {
    let (key_type, key_length) = key_shape(family, kind.key);
    let mut shape = Shape {
        key_type,
        key_length,
        ..Shape::default()
    };
    match kind.data {
        DataKind::None => {}
        DataKind::Verdict => {
            shape.flags |= wire::SET_MAP;
            shape.data_type = wire::TYPE_VERDICT;
        }
        DataKind::Value(parts) => {
            shape.flags |= wire::SET_MAP;
            (shape.data_type, shape.data_length) = key_shape(family, parts);
        }
    }
    if kind.is_interval {
        shape.flags |= wire::SET_INTERVAL | wire::SET_CONCATENATED;
    }
    shape
}

fn add_set_of(family: Family, table: &str, name: &str, kind: SetKind, id: u32) -> Message {
    let mut message = add_set(family, table, name, shape(family, kind), id);
    if kind.is_interval {
        message.nested(set::DESCRIPTION, |m| {
            m.nested(set::DESCRIPTION_FIELDS, |m| {
                for part in kind.key {
                    m.nested(wire::ITEM, |m| {
                        m.be32(set::FIELD_LENGTH, part.length(family));
                    });
                }
            });
        });
    }
    // For nft, which shows keys and values.
    let mut kept = udata_number(wire::UDATA_SET_KEY_ORDER, wire::NETWORK_ORDER);
    if let DataKind::Value(_) = kind.data {
        kept.extend(udata_number(wire::UDATA_SET_DATA_ORDER, wire::NETWORK_ORDER));
    }
    message.attribute(set::USERDATA, &kept);
    message
}

fn add_rule(family: Family, table: &str, name: &str, rule: &Rule) -> Message {
    let mut message = named(family, table, wire::NEW_RULE, CREATE | APPEND, rule::CHAIN, name);
    message.nested_bytes(rule::EXPRESSIONS, &rule.expressions);
    let mut kept = vec![];
    if let Some(comment) = &rule.comment {
        // The length of all that is kept is one byte, and the tag needs room too.
        kept.extend(udata_text(wire::UDATA_COMMENT, comment));
    }
    kept.extend(udata(UDATA_TAG, &rule.tag.to_ne_bytes()));
    message.attribute(rule::USERDATA, &kept);
    message
}
