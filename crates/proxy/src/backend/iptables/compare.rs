//! What must change for the kernel to hold the rules of a plan, from what it holds now. Pure.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};

use super::names::{KUBELET_FIREWALL, is_of_service};
use super::render::{self, Chain, Context, SHARED, Table};
use super::saved::{Saved, is_ours, target};
use super::script::Script;
use crate::plan::ServicePort;

/// More changes than this to a chain, and more than half of it: it is written anew.
const MANY: usize = 100;

/// How many rules there are once a plan is applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub nat: usize,
    pub filter: usize,
}

pub(super) fn compare<'a>(
    saved: &Saved,
    context: &Context,
    ports: impl Iterator<Item = &'a ServicePort>,
) -> (Script, Counts) {
    let mut script = Script::default();
    let mut counts = Counts::default();
    let mut shared: BTreeMap<(Table, &'static str), Vec<String>> =
        SHARED.iter().map(|place| (*place, vec![])).collect();
    let mut wanted: FxHashSet<String> = FxHashSet::default();

    for (table, chain) in render::fixed_chains(context) {
        counts.add(table, chain.rules.len());
        match saved.chain(table, &chain.name) {
            Some(found) if found == chain.rules => {}
            // The kubelet's chain, which may hold more than our rule.
            Some(found) if chain.name == KUBELET_FIREWALL => {
                let missing = chain.rules.iter().filter(|rule| !found.contains(rule));
                missing.for_each(|rule| script.append(table, KUBELET_FIREWALL, rule));
            }
            _ => script.write_fixed(table, chain),
        }
    }
    for port in ports {
        let rules = render::service(context, port);
        for line in rules.shared {
            let chain = shared
                .get_mut(&(line.table, line.chain))
                .expect("all shared chains are there");
            chain.push(line.rule);
        }
        let mut differ = vec![];
        for chain in rules.chains {
            counts.add(Table::Nat, chain.rules.len());
            wanted.insert(chain.name.clone());
            if saved.chain(Table::Nat, &chain.name) != Some(&chain.rules) {
                differ.push(chain);
            }
        }
        script.write_group(differ);
    }
    for ((table, name), rules) in shared {
        let tail = render::tail(context, table, name);
        counts.add(table, rules.len() + tail.len());
        compare_shared(saved, table, name, rules, tail, &mut script);
    }
    for jump in render::jumps(context) {
        let is_there = saved
            .chain(jump.table, jump.from)
            .is_some_and(|rules| rules.contains(&jump.rule));
        if !is_there {
            script.jump(&jump);
        }
    }
    let held = saved.held_by_others(Table::Nat, &[]);
    let names = saved.chains(Table::Nat).map(|(name, _)| name);
    for name in names.filter(|name| is_of_service(name) && !wanted.contains(*name) && !held.contains(name)) {
        script.delete(Table::Nat, name);
    }
    (script, counts)
}

impl Counts {
    /// Rules that a script writes or removes.
    pub(super) fn written(script: &Script) -> Counts {
        Counts {
            nat: script.written(Table::Nat),
            filter: script.written(Table::Filter),
        }
    }

    pub(super) fn merge(&mut self, other: Counts) {
        self.nat += other.nat;
        self.filter += other.filter;
    }

    pub(super) fn by_table(self) -> Vec<(&'static str, usize)> {
        vec![("filter", self.filter), ("nat", self.nat)]
    }

    pub(super) fn add(&mut self, table: Table, rules: usize) {
        match table {
            Table::Nat => self.nat += rules,
            Table::Filter => self.filter += rules,
            Table::Mangle => {}
        }
    }

    pub(super) fn subtract(&mut self, table: Table, rules: usize) {
        match table {
            Table::Nat => self.nat = self.nat.saturating_sub(rules),
            Table::Filter => self.filter = self.filter.saturating_sub(rules),
            Table::Mangle => {}
        }
    }
}

/// A chain in which each service has its rules, in whatever order, and behind them all the `tail`.
fn compare_shared(saved: &Saved, table: Table, name: &str, rules: Vec<String>, tail: Vec<String>, script: &mut Script) {
    let whole = |rules: Vec<String>, tail: Vec<String>| Chain {
        name: name.to_string(),
        rules: rules.into_iter().chain(tail).collect(),
    };
    let found = match saved.chain(table, name) {
        Some(found) if !found.is_empty() || (rules.is_empty() && tail.is_empty()) => found,
        _ => return script.rewrite(table, whole(rules, tail), true),
    };
    let is_tail_right = found.ends_with(&tail);
    let head = &found[..found.len() - if is_tail_right { tail.len() } else { 0 }];
    let mut missing: FxHashMap<&str, usize> = FxHashMap::default();
    for rule in &rules {
        *missing.entry(rule).or_default() += 1;
    }
    let mut excess = vec![];
    for rule in head {
        match missing.get_mut(rule.as_str()) {
            Some(count) if *count > 0 => *count -= 1,
            _ => excess.push(rule.as_str()),
        }
    }
    let added: Vec<&str> = rules
        .iter()
        .map(String::as_str)
        .filter(|rule| missing.get_mut(rule).is_some_and(take_one))
        .collect();
    let changes = excess.len() + added.len();
    if changes > MANY && changes * 2 > rules.len() {
        return script.rewrite(table, whole(rules, tail), false);
    }
    for rule in excess {
        script.remove(table, name, rule);
    }
    script.add(table, name, &added);
    if !is_tail_right {
        for rule in &tail {
            script.append(table, name, rule);
        }
    }
}

fn take_one(count: &mut usize) -> bool {
    let is_left = *count > 0;
    *count = count.saturating_sub(1);
    is_left
}

/// What takes away everything that kube-proxy makes, and nothing of others. The kubelet's firewall stays.
pub(super) fn clean(saved: &Saved, context: &Context) -> Script {
    let mut script = Script::default();
    let mut jumps = render::jumps(context);
    jumps.retain(|jump| target(&jump.rule) != Some(KUBELET_FIREWALL));
    for jump in &jumps {
        let found = saved.chain(jump.table, jump.from).unwrap_or_default();
        for _ in found.iter().filter(|rule| **rule == jump.rule) {
            script.remove(jump.table, jump.from, &jump.rule);
        }
    }
    for table in Table::ALL {
        let held = saved.held_by_others(table, &jumps);
        for (name, _) in saved.chains(table).filter(|(name, _)| is_ours(table, name)) {
            match held.contains(name) {
                // Somebody else's rule leads here. It may go on doing so; there is nothing here any more.
                true => script.write_fixed(
                    table,
                    Chain {
                        name: name.to_string(),
                        rules: vec![],
                    },
                ),
                false => script.delete(table, name),
            }
        }
    }
    script
}
