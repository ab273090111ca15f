//! What `iptables-restore --noflush` does to tables.

use std::collections::BTreeMap;

use super::*;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Model {
    pub chains: BTreeMap<(Table, String), Vec<String>>,
}

impl Model {
    /// Only the kernel's own chains.
    pub(super) fn new() -> Model {
        let own = [
            (Table::Nat, &["PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"][..]),
            (Table::Filter, &["INPUT", "FORWARD", "OUTPUT"][..]),
            (
                Table::Mangle,
                &["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"][..],
            ),
        ];
        let names = own
            .iter()
            .flat_map(|(table, names)| names.iter().map(|name| (*table, name.to_string())));
        Model {
            chains: names.map(|place| (place, vec![])).collect(),
        }
    }

    pub(super) fn saved(&self) -> Saved {
        let mut saved = Saved::default();
        for table in Table::ALL {
            let chains = self.chains.iter().filter(|((of, _), _)| *of == table);
            saved.insert(
                table,
                chains.map(|((_, name), rules)| (name.clone(), rules.clone())).collect(),
            );
        }
        saved
    }

    /// Each table at once or not at all; the line that is refused.
    pub(super) fn restore(&mut self, input: &str) -> Result<(), String> {
        let mut table = Table::Nat;
        let mut next = self.clone();
        for line in input.lines() {
            match line.strip_prefix('*') {
                Some(name) => table = Table::ALL.into_iter().find(|table| table.as_str() == name).unwrap(),
                None if line == "COMMIT" => *self = next.clone(),
                None => next.line(table, line).map_err(|e| format!("{line:?}: {e}"))?,
            }
        }
        Ok(())
    }

    fn line(&mut self, table: Table, line: &str) -> Result<(), String> {
        if let Some(chain) = line.strip_prefix(':') {
            let name = chain.strip_suffix(" - [0:0]").ok_or("odd declaration")?;
            self.chains.insert((table, name.to_string()), vec![]);
            return Ok(());
        }
        let (command, rest) = line.split_once(' ').ok_or("odd line")?;
        let (name, rule) = rest.split_once(' ').unwrap_or((rest, ""));
        let place = (table, name.to_string());
        if command == "-X" {
            let rules = self.chains.get(&place).ok_or("no such chain")?;
            if !rules.is_empty() || self.is_referred_to(table, name) {
                return Err("not empty, or something leads to it".to_string());
            }
            self.chains.remove(&place);
            return Ok(());
        }
        let target = saved::target(rule).filter(|target| target.starts_with("KUBE-"));
        if target.is_some_and(|target| !self.chains.contains_key(&(table, target.to_string()))) {
            return Err("leads nowhere".to_string());
        }
        let rules = self.chains.get_mut(&place).ok_or("no such chain")?;
        match command {
            "-A" => rules.push(rule.to_string()),
            "-I" => rules.insert(0, rule.to_string()),
            "-D" => {
                let at = rules.iter().position(|other| other == rule).ok_or("no such rule")?;
                rules.remove(at);
            }
            _ => return Err("unknown command".to_string()),
        }
        Ok(())
    }

    fn is_referred_to(&self, table: Table, name: &str) -> bool {
        let mut rules = self
            .chains
            .iter()
            .filter(|((of, _), _)| *of == table)
            .flat_map(|(_, rules)| rules);
        rules.any(|rule| saved::target(rule) == Some(name))
    }

    pub(super) fn apply(&mut self, script: Script, most: usize) {
        for input in script.inputs(most) {
            self.restore(&input).unwrap_or_else(|e| panic!("{e}\nin\n{input}"));
        }
    }

    /// The order of services in shared chains says nothing; that the tail comes last does.
    pub(super) fn in_order(mut self, context: &Context) -> Model {
        for (table, name) in render::SHARED {
            if let Some(rules) = self.chains.get_mut(&(table, name.to_string())) {
                let tail = render::tail(context, table, name);
                assert!(rules.ends_with(&tail), "{rules:?} ends with {tail:?}");
                let end = rules.len() - tail.len();
                rules[..end].sort();
            }
        }
        self
    }
}
