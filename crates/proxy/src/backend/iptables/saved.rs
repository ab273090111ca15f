//! What the kernel holds, as rules in the text form of `iptables-save`. Pure.

use rustc_hash::{FxHashMap, FxHashSet};

use super::names::{self, is_of_service};
use super::render::{Jump, SHARED, Table};

/// Chains by name, with their rules (without `-A NAME`).
pub(super) type Chains = FxHashMap<String, Vec<String>>;

/// The tables that were read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Saved {
    tables: FxHashMap<Table, Chains>,
}

impl Saved {
    pub(super) fn insert(&mut self, table: Table, chains: Chains) {
        self.tables.insert(table, chains);
    }

    pub(super) fn chain(&self, table: Table, name: &str) -> Option<&[String]> {
        let chains = self.tables.get(&table)?;
        chains.get(name).map(Vec::as_slice)
    }

    pub(super) fn chains(&self, table: Table) -> impl Iterator<Item = (&str, &[String])> {
        let chains = self.tables.get(&table).into_iter().flatten();
        chains.map(|(name, rules)| (name.as_str(), rules.as_slice()))
    }

    /// Chains to which rules of others lead: they can't be deleted. `jumps` are ours.
    pub(super) fn held_by_others(&self, table: Table, jumps: &[Jump]) -> FxHashSet<&str> {
        let others = self.chains(table).filter(|(name, _)| !is_ours(table, name));
        let rules = others.flat_map(|(name, rules)| rules.iter().map(move |rule| (name, rule)));
        let foreign = rules.filter(|(from, rule)| {
            let is_jump = |jump: &Jump| (jump.table, jump.from, &jump.rule) == (table, *from, *rule);
            !jumps.iter().any(is_jump)
        });
        foreign.filter_map(|(_, rule)| target(rule)).collect()
    }
}

/// A chain that kube-proxy makes, and nobody else.
pub(super) fn is_ours(table: Table, chain: &str) -> bool {
    let is_fixed = match table {
        Table::Nat => chain == names::POSTROUTING || chain == names::MARK_MASQ,
        Table::Filter => chain == names::FORWARD,
        Table::Mangle => false,
    };
    is_fixed
        || chain == names::CANARY
        || SHARED.contains(&(table, chain))
        || (table == Table::Nat && is_of_service(chain))
}

/// Where a rule jumps to.
pub(super) fn target(rule: &str) -> Option<&str> {
    let (_, after) = rule.rsplit_once("-j ").or_else(|| rule.rsplit_once("-g "))?;
    after.split_whitespace().next()
}

/// The chains in the output of `iptables-save -t TABLE`.
pub(super) fn parse(text: &str) -> Chains {
    let mut chains = Chains::default();
    for line in text.lines() {
        if let Some(chain) = line.strip_prefix(':') {
            let name = chain.split_whitespace().next().unwrap_or_default();
            chains.entry(name.to_string()).or_default();
            continue;
        }
        // With counters a rule begins with [packets:bytes].
        let rule = match line.starts_with('[') {
            true => line.split_once("] ").map_or(line, |(_, rule)| rule),
            false => line,
        };
        let Some(rest) = rule.strip_prefix("-A ") else { continue };
        let (name, rule) = rest.split_once(' ').unwrap_or((rest, ""));
        match chains.get_mut(name) {
            Some(rules) => rules.push(rule.to_string()),
            None => {
                chains.insert(name.to_string(), vec![rule.to_string()]);
            }
        }
    }
    chains
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saved_text_becomes_chains() {
        let text = "# Generated\n*nat\n:PREROUTING ACCEPT [1:60]\n:KUBE-SEP-A - [0:0]\n:MINE - [0:0]\n\
                    -A PREROUTING -j KUBE-SERVICES\n[3:4] -A MINE -s 10.0.0.0/8 -j KUBE-SEP-A\n-A MINE\nCOMMIT\n";
        let mut saved = Saved::default();
        saved.insert(Table::Nat, parse(text));
        assert_eq!(saved.chain(Table::Nat, "PREROUTING").unwrap(), ["-j KUBE-SERVICES"]);
        assert_eq!(saved.chain(Table::Nat, "KUBE-SEP-A").unwrap().len(), 0);
        assert_eq!(
            saved.chain(Table::Nat, "MINE").unwrap(),
            ["-s 10.0.0.0/8 -j KUBE-SEP-A", ""]
        );
        assert_eq!(saved.chain(Table::Nat, "KUBE-SERVICES"), None);
        assert!(saved.held_by_others(Table::Nat, &[]).contains("KUBE-SEP-A"));
    }
}
