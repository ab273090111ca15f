//! What the kernel holds of a table.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use super::encode::{UDATA_TAG, shape};
use super::plan::Step;
use super::{Data, ElementName, Hook, Key, Name, SetKind, Target};
use crate::nft::wire::{self, chain, elements, rule, set, table};
use crate::nft::{ElementData, Shape, Verdict, message, named, read_elements, read_udata};
use crate::{Connection, Family, Response, attributes, be32, text};

/// How often a table is read again if something changed meanwhile.
const READS: usize = 4;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    pub is_there: bool,
    pub chains: BTreeMap<Name, HeldChain>,
    /// Whether it is of the kind that is wanted.
    pub sets: BTreeMap<Name, bool>,
    /// Of the sets that are wanted.
    pub elements: BTreeMap<ElementName, Data>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HeldChain {
    hook: Option<HeldHook>,
    /// The rules' tags; none for a rule that is not ours.
    pub rules: Vec<Option<u64>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct HeldHook {
    kind: String,
    number: u32,
    priority: i32,
    policy: u32,
}

impl HeldChain {
    pub(super) fn has_hook(&self, wanted: Option<Hook>) -> bool {
        match (&self.hook, wanted) {
            (None, None) => true,
            (Some(held), Some(hook)) => *held == HeldHook::from(hook),
            _ => false,
        }
    }
}

impl From<Hook> for HeldHook {
    fn from(hook: Hook) -> HeldHook {
        HeldHook {
            kind: hook.kind.to_string(),
            number: hook.number,
            priority: hook.priority,
            policy: wire::ACCEPT,
        }
    }
}

impl Held {
    /// The kernel has taken this step.
    pub(super) fn take(&mut self, step: Step) {
        match step {
            Step::DeleteTable => *self = Held::default(),
            Step::AddTable => self.is_there = true,
            Step::AddSet(name, _) => drop(self.sets.insert(name, true)),
            Step::AddChain(name, hook) => {
                let hook = hook.map(HeldHook::from);
                self.chains.insert(name, HeldChain { hook, rules: vec![] });
            }
            Step::DeleteElement(name) => drop(self.elements.remove(&name)),
            Step::FlushChain(name) => self.chains.entry(name).or_default().rules.clear(),
            Step::AddRule(name, rule) => self.chains.entry(name).or_default().rules.push(Some(rule.tag)),
            Step::AddElement(name, data) => drop(self.elements.insert(name, data)),
            Step::DeleteSet(name) => drop(self.sets.remove(&name)),
            Step::DeleteChain(name) => drop(self.chains.remove(&name)),
        }
    }
}

pub(super) fn read(
    connection: &mut Connection,
    family: Family,
    name: &str,
    wanted: &BTreeMap<Name, SetKind>,
) -> io::Result<Held> {
    // Whoever changes any table meanwhile may make us miss something of ours. If they never rest, so be it: steps from
    // what lacks something fail or do too much, and the next ones are right.
    for _ in 1..READS {
        let (held, is_whole) = read_once(connection, family, name, wanted)?;
        if is_whole {
            return Ok(held);
        }
    }
    Ok(read_once(connection, family, name, wanted)?.0)
}

fn read_once(
    connection: &mut Connection,
    family: Family,
    name: &str,
    wanted: &BTreeMap<Name, SetKind>,
) -> io::Result<(Held, bool)> {
    let mut held = Held::default();
    match connection.request(message(family, name, wire::GET_TABLE, 0), |_| {}) {
        Err(error) if error.raw_os_error() == Some(nix::libc::ENOENT) => return Ok((held, true)),
        outcome => outcome?,
    }
    held.is_there = true;
    let mut is_whole = true;
    let mut dump = |message, each: &mut dyn FnMut(Response)| {
        connection.dump(message, each)?;
        is_whole &= !connection.was_interrupted();
        io::Result::Ok(())
    };
    let ask = |kind| message(family, name, kind, 0);
    dump(ask(wire::GET_CHAIN), &mut |response| {
        held.chains.extend(read_chain(response, name));
    })?;
    dump(ask(wire::GET_RULE), &mut |response| {
        if let Some((chain, tag)) = read_rule(response, name) {
            held.chains.entry(chain).or_default().rules.push(tag);
        }
    })?;
    dump(ask(wire::GET_SET), &mut |response| {
        if let Some((set, found)) = read_set(response, name) {
            let kind = wanted.get(&set);
            held.sets
                .insert(set, kind.is_some_and(|kind| shape(family, *kind) == found));
        }
    })?;
    for set in held
        .sets
        .iter()
        .filter(|(_, is_as_wanted)| **is_as_wanted)
        .map(|(set, _)| set)
    {
        let message = named(family, name, wire::GET_ELEMENTS, 0, elements::SET, set);
        dump(message, &mut |response| {
            for parts in read_elements(response) {
                let key = Key {
                    first: parts.key.into(),
                    last: parts.end.map(Into::into),
                };
                held.elements.insert((Arc::clone(set), key), read_data(parts.data));
            }
        })?;
    }
    Ok((held, is_whole))
}

fn read_chain(response: Response, of: &str) -> Option<(Name, HeldChain)> {
    let get = |kind| response.attributes(wire::HEADER).get(kind);
    if text(get(chain::TABLE)?) != of {
        return None;
    }
    let hook = get(chain::HOOK).map(|hook| {
        let number = |kind| attributes(hook).get(kind).and_then(be32).unwrap_or_default();
        HeldHook {
            kind: get(chain::TYPE).map_or_else(String::new, |kind| text(kind).to_string()),
            number: number(chain::HOOK_NUMBER),
            priority: number(chain::HOOK_PRIORITY) as i32,
            policy: get(chain::POLICY).and_then(be32).unwrap_or(wire::ACCEPT),
        }
    });
    Some((text(get(chain::NAME)?).into(), HeldChain { hook, rules: vec![] }))
}

fn read_rule(response: Response, of: &str) -> Option<(Name, Option<u64>)> {
    let get = |kind| response.attributes(wire::HEADER).get(kind);
    if text(get(rule::TABLE)?) != of {
        return None;
    }
    let kept = get(rule::USERDATA).unwrap_or_default();
    let tag = read_udata(kept).find(|(kind, _)| *kind == UDATA_TAG);
    let tag = tag.and_then(|(_, tag)| Some(u64::from_ne_bytes(tag.try_into().ok()?)));
    Some((text(get(rule::CHAIN)?).into(), tag))
}

fn read_set(response: Response, of: &str) -> Option<(Name, Shape)> {
    let get = |kind| response.attributes(wire::HEADER).get(kind);
    let number = |kind| get(kind).and_then(be32).unwrap_or_default();
    if text(get(table::NAME)?) != of {
        return None;
    }
    let mut shape = Shape {
        flags: number(set::FLAGS),
        key_type: number(set::KEY_TYPE),
        key_length: number(set::KEY_LENGTH),
        data_type: number(set::DATA_TYPE),
        data_length: number(set::DATA_LENGTH),
    };
    // The length of verdicts is the kernel's own affair.
    if shape.data_type == wire::TYPE_VERDICT {
        shape.data_length = 0;
    }
    Some((text(get(set::NAME)?).into(), shape))
}

fn read_data(data: ElementData) -> Data {
    match data {
        ElementData::None => Data::None,
        ElementData::Value(bytes) => Data::Value(bytes.into()),
        ElementData::Verdict(verdict) => Data::Verdict(match verdict {
            Verdict::Accept => Target::Accept,
            Verdict::Drop => Target::Drop,
            Verdict::Return => Target::Return,
            Verdict::Jump(chain) => Target::Jump(chain.into()),
            Verdict::Goto(chain) => Target::Goto(chain.into()),
        }),
    }
}
