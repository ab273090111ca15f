//! Changes to the tables, and their text for `iptables-restore --noflush`. Pure.
//!
//! A chain that is declared (`:NAME - [0:0]`) is made, or emptied if it is there; whatever is not named stays. Each
//! table of an input changes at once or not at all.

use std::fmt::Write;

use super::names::{MARK_MASQ, SERVICES};
use super::render::{Chain, Jump, ServiceRules, Table};

/// A rule to put into, or take from, a chain that other rules are in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub table: Table,
    pub chain: String,
    pub rule: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rewritten {
    table: Table,
    chain: Chain,
    /// It was not there, or empty: it may be filled bit by bit.
    is_new: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Script {
    fixed: Vec<(Table, Chain)>,
    /// Chains of services, in the nat table; those of one group lead to each other.
    groups: Vec<Vec<Chain>>,
    removed: Vec<Line>,
    inserted: Vec<Line>,
    appended: Vec<Line>,
    rewritten: Vec<Rewritten>,
    deleted: Vec<(Table, String)>,
}

impl Script {
    pub(super) fn is_empty(&self) -> bool {
        *self == Script::default()
    }

    /// A chain of ours, whole.
    pub(super) fn write_fixed(&mut self, table: Table, chain: Chain) {
        self.fixed.push((table, chain));
    }

    pub(super) fn write_group(&mut self, chains: Vec<Chain>) {
        if !chains.is_empty() {
            self.groups.push(chains);
        }
    }

    /// A chain that all services share, whole.
    pub(super) fn rewrite(&mut self, table: Table, chain: Chain, is_new: bool) {
        self.rewritten.push(Rewritten { table, chain, is_new });
    }

    pub(super) fn remove(&mut self, table: Table, chain: &str, rule: &str) {
        self.removed.push(line(table, chain, rule));
    }

    /// Rules of a service, in order. KUBE-SERVICES ends with rules for all services (node ports in the nat table, refusals
    /// in the filter table), so new ones go before all others there; elsewhere behind.
    pub(super) fn add(&mut self, table: Table, chain: &str, rules: &[&str]) {
        let lines = rules.iter().map(|rule| line(table, chain, rule));
        match chain {
            SERVICES => self.inserted.extend(lines.rev()),
            _ => self.appended.extend(lines),
        }
    }

    pub(super) fn append(&mut self, table: Table, chain: &str, rule: &str) {
        self.appended.push(line(table, chain, rule));
    }

    pub(super) fn jump(&mut self, jump: &Jump) {
        self.inserted.push(line(jump.table, jump.from, &jump.rule));
    }

    /// Empties and deletes a chain, once nothing leads there.
    pub(super) fn delete(&mut self, table: Table, name: &str) {
        self.deleted.push((table, name.to_string()));
    }

    /// From one state of a service port to another.
    pub(super) fn diff(&mut self, old: &ServiceRules, new: &ServiceRules) {
        let changed = new.chains.iter().filter(|chain| !old.chains.contains(chain));
        self.write_group(changed.cloned().collect());
        let gone = old
            .chains
            .iter()
            .filter(|chain| new.chains.iter().all(|other| other.name != chain.name));
        for chain in gone {
            self.delete(Table::Nat, &chain.name);
        }
        let rules = |of: &ServiceRules, table: Table, name: &str| -> Vec<String> {
            let shared = of
                .shared
                .iter()
                .filter(|shared| (shared.table, shared.chain) == (table, name));
            shared.map(|shared| shared.rule.clone()).collect()
        };
        for (table, name) in super::render::SHARED {
            let (before, after) = (rules(old, table, name), rules(new, table, name));
            if before != after {
                for rule in &before {
                    self.remove(table, name, rule);
                }
                self.add(table, name, &after.iter().map(String::as_str).collect::<Vec<_>>());
            }
        }
    }

    /// Rules written and removed in a table.
    pub(super) fn written(&self, table: Table) -> usize {
        let groups = self.groups.iter().flatten().filter(|_| table == Table::Nat);
        let fixed = self.fixed.iter().filter(|(of, _)| *of == table).map(|(_, chain)| chain);
        let rewritten = self.rewritten.iter().filter(|r| r.table == table).map(|r| &r.chain);
        let whole: usize = groups
            .chain(fixed)
            .chain(rewritten)
            .map(|chain| chain.rules.len())
            .sum();
        let lines = self.removed.iter().chain(&self.inserted).chain(&self.appended);
        whole + lines.filter(|line| line.table == table).count()
    }

    fn size(&self) -> usize {
        Table::ALL.iter().map(|table| self.written(*table)).sum::<usize>() + self.deleted.len()
    }

    /// The inputs to give to `iptables-restore` in order. `most` rules are in one, if that can be: the nf_tables variant
    /// takes time that grows faster than what it is given. Everything is there before something leads to it, and
    /// nothing leads to what is deleted.
    pub(super) fn inputs(mut self, most: usize) -> Vec<String> {
        if self.is_empty() {
            return vec![];
        }
        self.deleted
            .sort_unstable_by(|a, b| (a.0, depth(&a.1), &a.1).cmp(&(b.0, depth(&b.1), &b.1)));
        if self.size() <= most {
            return vec![self.text()];
        }
        let mut parts = vec![Script {
            fixed: self.fixed,
            ..Script::default()
        }];
        parts.extend(
            pack(self.groups, most, |group| group.iter().map(|c| c.rules.len()).sum()).map(|groups| Script {
                groups,
                ..Script::default()
            }),
        );
        let (new, old): (Vec<_>, Vec<_>) = self.rewritten.into_iter().partition(|rewritten| rewritten.is_new);
        for rewritten in new {
            parts.extend(fill(rewritten, most));
        }
        // In one piece, since packets pass here: a rule that moves is never missing.
        parts.push(Script {
            removed: self.removed,
            inserted: self.inserted,
            appended: self.appended,
            rewritten: old,
            ..Script::default()
        });
        parts.extend(pack(self.deleted, most, |_| 1).map(|deleted| Script {
            deleted,
            ..Script::default()
        }));
        let parts = parts.into_iter().filter(|part| !part.is_empty());
        parts.map(|part| part.text()).collect()
    }

    fn text(&self) -> String {
        let mut out = String::new();
        for table in Table::ALL {
            self.table_text(table, &mut out);
        }
        out
    }

    fn table_text(&self, table: Table, out: &mut String) {
        let start = out.len();
        let _ = writeln!(out, "*{}", table.as_str());
        let empty = out.len();
        let fixed = self.fixed.iter().filter(|(of, _)| *of == table).map(|(_, chain)| chain);
        let groups = self.groups.iter().flatten().filter(|_| table == Table::Nat);
        let rewritten = self.rewritten.iter().filter(|r| r.table == table).map(|r| &r.chain);
        let whole: Vec<&Chain> = fixed.chain(groups).chain(rewritten).collect();
        let deleted: Vec<&str> = self
            .deleted
            .iter()
            .filter(|(of, _)| *of == table)
            .map(|(_, n)| n.as_str())
            .collect();
        for name in whole
            .iter()
            .map(|chain| chain.name.as_str())
            .chain(deleted.iter().copied())
        {
            let _ = writeln!(out, ":{name} - [0:0]");
        }
        for (command, lines) in [("-D", &self.removed), ("-I", &self.inserted), ("-A", &self.appended)] {
            if command == "-I" {
                for chain in &whole {
                    for rule in &chain.rules {
                        let _ = writeln!(out, "-A {} {rule}", chain.name);
                    }
                }
            }
            for line in lines.iter().filter(|line| line.table == table) {
                let _ = writeln!(out, "{command} {} {}", line.chain, line.rule);
            }
        }
        for name in deleted {
            let _ = writeln!(out, "-X {name}");
        }
        if out.len() == empty {
            out.truncate(start);
        } else {
            out.push_str("COMMIT\n");
        }
    }
}

/// How far a chain is from where packets come in: rules lead from lower to higher.
fn depth(chain: &str) -> usize {
    const DEEPER: [&str; 6] = [
        "KUBE-FW-",
        "KUBE-EXT-",
        "KUBE-SVC-",
        "KUBE-SVL-",
        "KUBE-SEP-",
        MARK_MASQ,
    ];
    DEEPER
        .iter()
        .position(|prefix| chain.starts_with(prefix))
        .map_or(0, |place| place + 1)
}

fn line(table: Table, chain: &str, rule: &str) -> Line {
    Line {
        table,
        chain: chain.to_string(),
        rule: rule.to_string(),
    }
}

/// Items in packs of about `most`, of which each counts for as much as `weight` says.
fn pack<T>(items: Vec<T>, most: usize, weight: impl Fn(&T) -> usize) -> impl Iterator<Item = Vec<T>> {
    let mut packs: Vec<Vec<T>> = vec![];
    let mut filled = most;
    for item in items {
        let weight = weight(&item);
        if filled + weight > most || packs.is_empty() {
            packs.push(vec![]);
            filled = 0;
        }
        filled += weight;
        packs.last_mut().expect("a pack was put there").push(item);
    }
    packs.into_iter()
}

/// Fills a chain that was empty in several steps.
fn fill(rewritten: Rewritten, most: usize) -> Vec<Script> {
    let Rewritten { table, chain, .. } = rewritten;
    let mut parts = pack(chain.rules, most, |_| 1);
    let first = Script {
        rewritten: vec![Rewritten {
            table,
            chain: Chain {
                name: chain.name.clone(),
                rules: parts.next().unwrap_or_default(),
            },
            is_new: true,
        }],
        ..Script::default()
    };
    let rest = parts.map(|rules| Script {
        appended: rules.iter().map(|rule| line(table, &chain.name, rule)).collect(),
        ..Script::default()
    });
    std::iter::once(first).chain(rest).collect()
}
