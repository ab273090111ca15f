//! A table that is described as it should be and brought there by what differs.
//!
//! ```text
//!  put_*, remove_* ──► wanted ─┐
//!                              ├─► plan: steps (pure) ──► one transaction ──► the kernel
//!  read, steps taken ──► held ─┘
//! ```
//!
//! What is put or removed is noted, and [`Table::sync`] looks only at what was noted, so that it costs what changed. What
//! the kernel holds is read when it is not known: at first, after an error, and on [`Table::resync`]. Rules carry a tag by
//! which they are known again, so that a table that is right is left alone by a process that finds it.

mod encode;
mod plan;
mod read;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::sync::Arc;

use super::{Expressions, Hook, Part};
use crate::{Connection, Family, Message};

use plan::{Step, Steps};
use read::Held;

pub type Name = Arc<str>;

/// A rule, known by its tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    expressions: Vec<u8>,
    comment: Option<Name>,
    tag: u64,
}

impl Rule {
    pub fn new(family: Family, write: impl FnOnce(&mut Expressions)) -> Rule {
        let mut scratch = Message::new(0, 0, &[]);
        let start = scratch.len();
        write(&mut Expressions::new(&mut scratch, family));
        let expressions = scratch.bytes()[start..].to_vec();
        let tag = tag(&expressions, None);
        Rule {
            expressions,
            comment: None,
            tag,
        }
    }

    /// With a comment for whoever lists the table.
    pub fn commented(mut self, comment: impl Into<Name>) -> Rule {
        let comment = comment.into();
        self.tag = tag(&self.expressions, Some(&comment));
        self.comment = Some(comment);
        self
    }
}

fn tag(expressions: &[u8], comment: Option<&str>) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(expressions);
    hasher.write(comment.unwrap_or_default().as_bytes());
    hasher.finish()
}

/// A chain; where packets enter it, if not by jumps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    pub hook: Option<Hook>,
    pub rules: Vec<Rule>,
}

/// What the elements of a set or map are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetKind {
    pub key: &'static [Part],
    /// Elements are ranges in each part. Only for keys of several parts.
    pub is_interval: bool,
    pub data: DataKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataKind {
    None,
    Verdict,
    /// An address, or an address with a port …
    Value(&'static [Part]),
}

/// The key of an element, each part of a concatenation filled up to four bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub first: Box<[u8]>,
    /// The last key of an interval.
    pub last: Option<Box<[u8]>>,
}

impl Key {
    pub fn new(bytes: impl Into<Box<[u8]>>) -> Key {
        Key {
            first: bytes.into(),
            last: None,
        }
    }

    /// Of a set of intervals: single values are intervals too.
    pub fn interval(first: impl Into<Box<[u8]>>, last: impl Into<Box<[u8]>>) -> Key {
        Key {
            first: first.into(),
            last: Some(last.into()),
        }
    }
}

/// What a map has for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    None,
    Verdict(Target),
    Value(Box<[u8]>),
}

/// What becomes of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Accept,
    Drop,
    Return,
    Jump(Name),
    Goto(Name),
}

/// A set's name, and the key of one of its elements.
type ElementName = (Name, Key);

/// What a table has, or should have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Wanted {
    chains: BTreeMap<Name, Chain>,
    sets: BTreeMap<Name, SetKind>,
    elements: BTreeMap<ElementName, Data>,
}

/// What may differ from what the kernel holds.
#[derive(Clone, Debug, Default)]
struct Noted {
    chains: BTreeSet<Name>,
    sets: BTreeSet<Name>,
    elements: BTreeSet<ElementName>,
}

/// Why a table could not be brought to what it should be.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    #[error("failed to read table {table}")]
    Read { table: String, source: io::Error },
    #[error("failed to change table {table}: {step}")]
    Change {
        table: String,
        step: String,
        source: io::Error,
    },
}

pub struct Table {
    family: Family,
    name: Name,
    wanted: Wanted,
    noted: Noted,
    /// None: not known.
    held: Option<Held>,
    /// Chains that nothing leads to any more and that the kernel still found in use.
    stale: BTreeSet<Name>,
}

impl Table {
    pub fn new(family: Family, name: impl Into<Name>) -> Table {
        Table {
            family,
            name: name.into(),
            wanted: Wanted::default(),
            noted: Noted::default(),
            held: None,
            stale: BTreeSet::new(),
        }
    }

    pub fn family(&self) -> Family {
        self.family
    }

    /// The chain becomes this, with all of its rules.
    pub fn put_chain(&mut self, name: &Name, chain: Chain) {
        if self.wanted.chains.get(name) != Some(&chain) {
            self.wanted.chains.insert(Arc::clone(name), chain);
            self.noted.chains.insert(Arc::clone(name));
        }
    }

    pub fn remove_chain(&mut self, name: &Name) {
        if self.wanted.chains.remove(name).is_some() {
            self.noted.chains.insert(Arc::clone(name));
        }
    }

    /// A set of another kind needs another name.
    pub fn put_set(&mut self, name: &Name, kind: SetKind) {
        if self.wanted.sets.insert(Arc::clone(name), kind) != Some(kind) {
            self.noted.sets.insert(Arc::clone(name));
        }
    }

    /// With all its elements.
    pub fn remove_set(&mut self, name: &Name) {
        if self.wanted.sets.remove(name).is_none() {
            return;
        }
        self.noted.sets.insert(Arc::clone(name));
        for key in self.elements(name) {
            self.remove_element(name, &key);
        }
    }

    /// The keys that a set should have.
    pub fn elements(&self, set: &Name) -> Vec<Key> {
        let from = (Arc::clone(set), Key::new([]));
        let of_set = self.wanted.elements.range(from..).take_while(|((of, _), _)| of == set);
        of_set.map(|((_, key), _)| key.clone()).collect()
    }

    pub fn put_element(&mut self, set: &Name, key: Key, data: Data) {
        let name = (Arc::clone(set), key);
        if self.wanted.elements.get(&name) != Some(&data) {
            self.noted.elements.insert(name.clone());
            self.wanted.elements.insert(name, data);
        }
    }

    pub fn remove_element(&mut self, set: &Name, key: &Key) {
        let name = (Arc::clone(set), key.clone());
        if self.wanted.elements.remove(&name).is_some() {
            self.noted.elements.insert(name);
        }
    }

    /// Brings the kernel's table to what it should be, looking only at what was put or removed since the last time. How
    /// many steps it took.
    pub fn sync(&mut self, connection: &mut Connection) -> Result<usize, TableError> {
        if self.held.is_none() {
            let held = read::read(connection, self.family, &self.name, &self.wanted.sets);
            let held = held.map_err(|source| self.read_error(source))?;
            self.note_all(&held);
            self.held = Some(held);
        }
        let held = self.held.get_or_insert_default();
        let steps = plan::plan(&self.wanted, held, &self.noted);
        let taken = steps.count();
        if let Err(error) = self.commit(connection, steps) {
            self.held = None;
            return Err(error);
        }
        self.noted = Noted::default();
        Ok(taken)
    }

    /// The same, whatever others did to the table meanwhile.
    pub fn resync(&mut self, connection: &mut Connection) -> Result<usize, TableError> {
        self.held = None;
        self.sync(connection)
    }

    /// Deletes the table. That there is none is fine.
    pub fn delete(&mut self, connection: &mut Connection) -> Result<(), TableError> {
        self.held = None;
        let deleted = encode::commit(connection, self.family, &self.name, &[Step::DeleteTable]);
        match deleted {
            Err((_, error)) if error.raw_os_error() == Some(nix::libc::ENOENT) => Ok(()),
            Err((at, error)) => Err(self.change_error(&[Step::DeleteTable], at, error)),
            Ok(()) => Ok(()),
        }
    }

    fn note_all(&mut self, held: &Held) {
        let Wanted { chains, sets, elements } = &self.wanted;
        self.noted.chains = chains.keys().chain(held.chains.keys()).cloned().collect();
        self.noted.sets = sets.keys().chain(held.sets.keys()).cloned().collect();
        self.noted.elements = elements.keys().chain(held.elements.keys()).cloned().collect();
    }

    /// The changes are one transaction. Chains that are not needed any more are deleted after it, since some kernels
    /// find them in use until the transaction that took the last way to them is done.
    fn commit(&mut self, connection: &mut Connection, steps: Steps) -> Result<(), TableError> {
        let Steps { changes, stale } = steps;
        if !changes.is_empty() {
            let done = encode::commit(connection, self.family, &self.name, &changes);
            done.map_err(|(at, error)| self.change_error(&changes, at, error))?;
            let held = self.held.get_or_insert_default();
            changes.into_iter().for_each(|step| held.take(step));
        }
        self.stale.extend(stale);
        let wanted = &self.wanted.chains;
        self.stale.retain(|name| !wanted.contains_key(name));
        if self.stale.is_empty() {
            return Ok(());
        }
        let deletions: Vec<Step> = self.stale.iter().cloned().map(Step::DeleteChain).collect();
        match encode::commit(connection, self.family, &self.name, &deletions) {
            Err((_, error)) if error.raw_os_error() == Some(nix::libc::EBUSY) => Ok(()),
            Err((at, error)) => Err(self.change_error(&deletions, at, error)),
            Ok(()) => {
                self.stale.clear();
                let held = self.held.get_or_insert_default();
                deletions.into_iter().for_each(|step| held.take(step));
                Ok(())
            }
        }
    }

    fn title(&self) -> String {
        let family = match self.family {
            Family::V4 => "ip",
            Family::V6 => "ip6",
        };
        format!("{family} {}", self.name)
    }

    fn read_error(&self, source: io::Error) -> TableError {
        TableError::Read {
            table: self.title(),
            source,
        }
    }

    fn change_error(&self, steps: &[Step], at: Option<usize>, source: io::Error) -> TableError {
        let step = at.and_then(|at| steps.get(at));
        TableError::Change {
            table: self.title(),
            step: step.map_or_else(|| "commit".to_string(), Step::describe),
            source,
        }
    }
}
