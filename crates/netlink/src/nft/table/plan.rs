//! Which steps lead from what the kernel holds to what it should: a pure function.

use std::sync::Arc;

use super::read::Held;
use super::{Chain, Data, ElementName, Hook, Name, Noted, Rule, SetKind, Wanted};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    DeleteTable,
    AddTable,
    AddSet(Name, SetKind),
    AddChain(Name, Option<Hook>),
    DeleteElement(ElementName),
    FlushChain(Name),
    AddRule(Name, Rule),
    AddElement(ElementName, Data),
    DeleteSet(Name),
    DeleteChain(Name),
}

impl Step {
    /// For errors.
    pub(super) fn describe(&self) -> String {
        match self {
            Step::DeleteTable => "delete table".to_string(),
            Step::AddTable => "add table".to_string(),
            Step::AddSet(name, _) => format!("add set {name}"),
            Step::AddChain(name, _) => format!("add chain {name}"),
            Step::DeleteElement((set, _)) => format!("delete element of set {set}"),
            Step::FlushChain(name) => format!("flush chain {name}"),
            Step::AddRule(chain, _) => format!("add rule to chain {chain}"),
            Step::AddElement((set, _), _) => format!("add element to set {set}"),
            Step::DeleteSet(name) => format!("delete set {name}"),
            Step::DeleteChain(name) => format!("delete chain {name}"),
        }
    }
}

/// In the order in which they must be taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Steps {
    pub changes: Vec<Step>,
    /// Chains that nothing leads to once the changes are made.
    pub stale: Vec<Name>,
}

impl Steps {
    pub(super) fn count(&self) -> usize {
        self.changes.len() + self.stale.len()
    }
}

pub(super) fn plan(wanted: &Wanted, held: &Held, noted: &Noted) -> Steps {
    if !is_compatible(wanted, held) {
        return anew(wanted);
    }
    let mut steps = Steps::default();
    if !held.is_there {
        steps.changes.push(Step::AddTable);
    }
    // First what others may refer to, last what they may have referred to.
    add_sets(&mut steps, wanted, held, noted);
    add_chains(&mut steps, wanted, held, noted);
    delete_elements(&mut steps, wanted, held, noted);
    write_rules(&mut steps, wanted, held, noted);
    add_elements(&mut steps, wanted, held, noted);
    for name in noted.sets.iter().filter(|name| !wanted.sets.contains_key(*name)) {
        if held.sets.contains_key(name) {
            steps.changes.push(Step::DeleteSet(Arc::clone(name)));
        }
    }
    steps
}

/// Sets and base chains can't be changed in place: if one is not as it should be, the table was made by another version
/// or by somebody else.
fn is_compatible(wanted: &Wanted, held: &Held) -> bool {
    let same_sets = held
        .sets
        .iter()
        .all(|(name, is_as_wanted)| *is_as_wanted || !wanted.sets.contains_key(name));
    let same_hooks = held
        .chains
        .iter()
        .all(|(name, chain)| wanted.chains.get(name).is_none_or(|wanted| chain.has_hook(wanted.hook)));
    // A base chain that is not wanted would go on to decide about packets until it is deleted: a table of others.
    let no_others = held
        .chains
        .iter()
        .all(|(name, chain)| chain.has_hook(None) || wanted.chains.contains_key(name));
    same_sets && same_hooks && no_others
}

/// All of it anew, in one transaction, so that packets meet the old table or the new one.
fn anew(wanted: &Wanted) -> Steps {
    let everything = Noted {
        chains: wanted.chains.keys().cloned().collect(),
        sets: wanted.sets.keys().cloned().collect(),
        elements: wanted.elements.keys().cloned().collect(),
    };
    let mut steps = plan(wanted, &Held::default(), &everything);
    steps.changes.insert(0, Step::DeleteTable);
    steps
}

fn add_sets(steps: &mut Steps, wanted: &Wanted, held: &Held, noted: &Noted) {
    for name in &noted.sets {
        if let Some(kind) = wanted.sets.get(name).filter(|_| !held.sets.contains_key(name)) {
            steps.changes.push(Step::AddSet(Arc::clone(name), *kind));
        }
    }
}

fn add_chains(steps: &mut Steps, wanted: &Wanted, held: &Held, noted: &Noted) {
    for name in &noted.chains {
        if let Some(chain) = wanted.chains.get(name).filter(|_| !held.chains.contains_key(name)) {
            steps.changes.push(Step::AddChain(Arc::clone(name), chain.hook));
        }
    }
}

fn delete_elements(steps: &mut Steps, wanted: &Wanted, held: &Held, noted: &Noted) {
    for name in &noted.elements {
        let (old, new) = (held.elements.get(name), wanted.elements.get(name));
        if old.is_some() && old != new {
            steps.changes.push(Step::DeleteElement(name.clone()));
        }
    }
}

fn write_rules(steps: &mut Steps, wanted: &Wanted, held: &Held, noted: &Noted) {
    for name in &noted.chains {
        let old = held.chains.get(name);
        match wanted.chains.get(name) {
            Some(chain) if old.is_some_and(|old| is_same(old.rules.iter().copied(), chain)) => {}
            Some(chain) => {
                if old.is_some_and(|old| !old.rules.is_empty()) {
                    steps.changes.push(Step::FlushChain(Arc::clone(name)));
                }
                let add = |rule: &Rule| Step::AddRule(Arc::clone(name), rule.clone());
                steps.changes.extend(chain.rules.iter().map(add));
            }
            None => {
                let Some(old) = old else { continue };
                if !old.rules.is_empty() {
                    steps.changes.push(Step::FlushChain(Arc::clone(name)));
                }
                steps.stale.push(Arc::clone(name));
            }
        }
    }
}

fn is_same(held: impl Iterator<Item = Option<u64>>, chain: &Chain) -> bool {
    held.eq(chain.rules.iter().map(|rule| Some(rule.tag)))
}

fn add_elements(steps: &mut Steps, wanted: &Wanted, held: &Held, noted: &Noted) {
    for name in &noted.elements {
        if let Some(data) = wanted
            .elements
            .get(name)
            .filter(|data| held.elements.get(name) != Some(data))
        {
            steps.changes.push(Step::AddElement(name.clone(), data.clone()));
        }
    }
}
