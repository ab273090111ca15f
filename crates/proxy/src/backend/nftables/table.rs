//! One table: what is in it, and what must be done to bring it to a plan. Pure: nothing here speaks to the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::base::{self, NodePorts};
use super::encode;
use super::kernel::{FoundChain, Snapshot};
use super::names::Names;
use super::ruleset::{Chain, Container, Data, Element, ElementKey, Name, Op, Range, Rule, Script, Value, slot_key};
use super::ruleset::{endpoint_of, family_name, set_name};
use super::service::{self, Layouts, Piece};
use super::slots::{Layout, Slots, shard_of};
use crate::plan::{Endpoint, Family, Key, Plan, ServicePort};
use crate::settings::Settings;

/// A service port as it is in the table.
struct Stored {
    port: Arc<ServicePort>,
    names: Names,
    layouts: Layouts,
    piece: Piece,
}

impl Stored {
    fn count(&self) -> usize {
        self.piece.slots.len() + self.piece.chains.iter().map(|chain| chain.rules.len()).sum::<usize>()
    }

    fn ranges(&self) -> impl Iterator<Item = Range> {
        let layouts = [&self.layouts.cluster, &self.layouts.local];
        layouts.into_iter().flatten().map(|layout| layout.range)
    }
}

pub(super) struct Table {
    family: Family,
    stored: FxHashMap<Key, Stored>,
    elements: Elements,
    slots: Slots,
    /// How many chains draw from each shard.
    shards: BTreeMap<u32, u32>,
    /// Ranges that are free once the script is done.
    freed: Vec<Range>,
    /// Chains that nothing leads to, not deleted yet.
    pub stale: BTreeSet<Name>,
    /// Rules and slots.
    counted: usize,
}

/// Elements and who wants them. Where two want a different value in one place (which the planner sees to that they
/// don't), the one whose name comes first has it, whoever came first.
#[derive(Default)]
struct Elements {
    wanted: FxHashMap<ElementKey, SmallVec<[(Name, Value); 1]>>,
}

impl Elements {
    fn get(&self, place: &ElementKey) -> Option<&Value> {
        self.wanted
            .get(place)
            .and_then(|owners| owners.first())
            .map(|(_, value)| value)
    }

    fn add(&mut self, owner: &Name, (place, value): &Element) {
        let owners = self.wanted.entry(place.clone()).or_default();
        let at = owners.partition_point(|(other, _)| other < owner);
        owners.insert(at, (Arc::clone(owner), value.clone()));
    }

    fn remove(&mut self, owner: &Name, place: &ElementKey) {
        if let Some(owners) = self.wanted.get_mut(place) {
            owners.retain(|(other, _)| other != owner);
            if owners.is_empty() {
                self.wanted.remove(place);
            }
        }
    }
}

/// The steps in the order in which they may be taken, whatever service port they are of.
#[derive(Default)]
struct Phases {
    /// Nothing leads to these yet.
    creations: Script,
    /// Rules and slots of each service port together.
    changes: Script,
    /// Slots of chains that are new, all together: they fill few messages so.
    slots: Script,
    elements: Script,
    /// Nothing leads to these any more.
    removals: Script,
    stale: Vec<Name>,
}

impl Phases {
    fn into_script(self) -> Script {
        let mut script = Script::default();
        for phase in [self.creations, self.changes, self.slots, self.elements, self.removals] {
            let start = script.ops.len();
            script.ops.extend(phase.ops);
            script.units.extend(phase.units.into_iter().map(|end| start + end));
        }
        script.stale = self.stale;
        script
    }
}

fn rewrite(script: &mut Script, chain: &Chain, flush: bool) {
    if flush {
        script.ops.push(Op::FlushChain(Arc::clone(&chain.name)));
    }
    let rules = chain.rules.iter().cloned();
    script
        .ops
        .extend(rules.map(|rule| Op::AddRule(Arc::clone(&chain.name), rule)));
}

fn replace(script: &mut Script, place: &ElementKey, before: Option<&Value>, after: Option<&Value>) {
    if before == after {
        return;
    }
    if before.is_some() {
        script.ops.push(Op::DeleteElement(place.clone()));
    }
    if let Some(after) = after {
        script.ops.push(Op::AddElement((place.clone(), after.clone())));
    }
}

/// Slots of one service port. Those that only go are left until nothing can draw them any more.
fn replace_slots(phases: &mut Phases, before: &[Element], after: &[Element]) {
    let old: FxHashMap<&ElementKey, &Value> = before.iter().map(|(place, value)| (place, value)).collect();
    let new: FxHashSet<&ElementKey> = after.iter().map(|(place, _)| place).collect();
    let is_new = before.is_empty();
    let slot_phase = if is_new { &mut phases.slots } else { &mut phases.changes };
    for (place, value) in after {
        replace(slot_phase, place, old.get(place).copied(), Some(value));
    }
    phases.slots.end_unit();
    phases.changes.end_unit();
    let gone = before.iter().filter(|(place, _)| !new.contains(place));
    phases
        .removals
        .ops
        .extend(gone.map(|(place, _)| Op::DeleteElement(place.clone())));
}

/// Why a service port can't be synced at all.
fn problem(port: &ServicePort) -> Option<String> {
    let family = port.key.family;
    let ips = [port.cluster_ip].into_iter().chain(port.external_ips.iter().copied());
    let ips = ips.chain(port.load_balancer_ips.iter().copied());
    let endpoints = port
        .cluster
        .iter()
        .chain(&port.local)
        .map(|endpoint| endpoint.address.ip());
    let stranger = ips.chain(endpoints).find(|ip| Family::of(*ip) != family)?;
    Some(format!(
        "{}: {stranger} is no address of family {}",
        port.key,
        family_name(family)
    ))
}

impl Table {
    pub(super) fn new(family: Family) -> Table {
        Table {
            family,
            stored: FxHashMap::default(),
            elements: Elements::default(),
            slots: Slots::default(),
            shards: BTreeMap::new(),
            freed: vec![],
            stale: BTreeSet::new(),
            counted: 0,
        }
    }

    /// Rules and elements in place.
    pub(super) fn count(&self) -> usize {
        self.counted + self.elements.wanted.len()
    }

    /// What must be done where only these service ports may differ. Call [`Table::done`] once it is.
    pub(super) fn change(
        &mut self,
        settings: &Settings,
        plan: &Plan,
        keys: &[Key],
        problems: &mut Vec<String>,
    ) -> Option<Script> {
        let mut phases = Phases::default();
        let mut touched: BTreeMap<ElementKey, Option<Value>> = BTreeMap::new();
        let mut shards: BTreeMap<u32, bool> = BTreeMap::new();
        let family = self.family;
        for key in keys.iter().filter(|key| key.family == family) {
            let port = plan.ports.get(key);
            if self.stored.get(key).map(|stored| &stored.port) == port {
                continue;
            }
            let old = self.stored.remove(key);
            let new = match port {
                None => None,
                Some(port) => match problem(port) {
                    Some(problem) => {
                        problems.push(problem);
                        None
                    }
                    None => Some(self.store(settings, plan, port, old.as_ref().map(|old| &old.layouts))?),
                },
            };
            self.note(&mut touched, old.as_ref(), new.as_ref());
            let ranges = old.iter().chain(&new).flat_map(Stored::ranges);
            for shard in ranges.map(|range| shard_of(range.first)) {
                shards.entry(shard).or_insert(self.shards.contains_key(&shard));
            }
            change_port(&mut phases, old.as_ref(), new.as_ref());
            if let Some(old) = old {
                self.count_out(&old);
            }
            if let Some(new) = new {
                self.count_in(&new);
                self.stored.insert(key.clone(), new);
            }
        }
        self.change_shards(&mut phases, &shards);
        for (place, before) in &touched {
            replace(&mut phases.elements, place, before.as_ref(), self.elements.get(place));
            phases.elements.end_unit();
        }
        for op in &phases.creations.ops {
            if let Op::AddChain(chain) = op {
                self.stale.remove(&chain.name);
            }
        }
        Some(phases.into_script())
    }

    fn count_in(&mut self, stored: &Stored) {
        self.counted += stored.count();
        for range in stored.ranges() {
            *self.shards.entry(shard_of(range.first)).or_default() += 1;
        }
    }

    fn count_out(&mut self, stored: &Stored) {
        self.counted -= stored.count();
        for shard in stored.ranges().map(|range| shard_of(range.first)) {
            let left = self.shards.remove(&shard).unwrap_or_default().saturating_sub(1);
            if left > 0 {
                self.shards.insert(shard, left);
            }
        }
    }

    /// Shards that may have come or gone, and whether they were there.
    fn change_shards(&self, phases: &mut Phases, shards: &BTreeMap<u32, bool>) {
        for (shard, was) in shards {
            match (was, self.shards.contains_key(shard)) {
                (false, true) => phases.creations.unit([Op::AddShard(*shard)]),
                (true, false) => phases.removals.unit([delete_shard(*shard)]),
                _ => {}
            }
        }
    }

    /// Renders a service port with its endpoints where they were, as far as can be.
    fn store(
        &mut self,
        settings: &Settings,
        plan: &Plan,
        port: &Arc<ServicePort>,
        old: Option<&Layouts>,
    ) -> Option<Stored> {
        let names = Names::new(&port.key, port.protocol);
        let mut lay_out = |endpoints: &[Endpoint], old: Option<&Layout>| -> Option<Option<Layout>> {
            let mut addresses: Vec<SocketAddr> = endpoints.iter().map(|endpoint| endpoint.address).collect();
            addresses.sort_unstable();
            addresses.dedup();
            let new = match addresses.is_empty() || port.affinity.is_some() {
                true => None,
                false => Some(Layout::new(old, &addresses, &mut self.slots)?),
            };
            let kept = new.as_ref().map(|new| new.range);
            self.freed
                .extend(old.map(|old| old.range).filter(|range| kept != Some(*range)));
            Some(new)
        };
        let layouts = Layouts {
            cluster: lay_out(
                service::cluster_endpoints(port),
                old.and_then(|old| old.cluster.as_ref()),
            )?,
            local: lay_out(service::local_endpoints(port), old.and_then(|old| old.local.as_ref()))?,
        };
        let piece = service::render(settings, plan.node.address(self.family), port, &names, &layouts);
        Some(Stored {
            port: Arc::clone(port),
            names,
            layouts,
            piece,
        })
    }

    /// Puts down who wants which elements now, and what was there of those that may have changed.
    fn note(&mut self, touched: &mut BTreeMap<ElementKey, Option<Value>>, old: Option<&Stored>, new: Option<&Stored>) {
        let same = |stored: Option<&Stored>, element: &Element| {
            stored.is_some_and(|stored| {
                stored
                    .piece
                    .elements
                    .binary_search_by(|e| e.0.cmp(&element.0))
                    .is_ok_and(|at| stored.piece.elements[at] == *element)
            })
        };
        let same_owner = old.zip(new).is_some_and(|(old, new)| old.names == new.names);
        let both = |other: Option<&Stored>, element: &Element| same_owner && same(other, element);
        if let Some(old) = old {
            for element in old.piece.elements.iter().filter(|element| !both(new, element)) {
                touched
                    .entry(element.0.clone())
                    .or_insert_with(|| self.elements.get(&element.0).cloned());
                self.elements.remove(&old.names.base, &element.0);
            }
            if new.is_none() {
                self.freed.extend(old.ranges());
            }
        }
        if let Some(new) = new {
            for element in new.piece.elements.iter().filter(|element| !both(old, element)) {
                touched
                    .entry(element.0.clone())
                    .or_insert_with(|| self.elements.get(&element.0).cloned());
                self.elements.add(&new.names.base, element);
            }
        }
    }

    /// The kernel is as the last script had it.
    pub(super) fn done(&mut self) {
        for range in self.freed.drain(..) {
            self.slots.give_back(range);
        }
    }

    /// What must be done to bring the table from what it is, whoever made it so, to the plan.
    pub(super) fn rebuild(
        &mut self,
        settings: &Settings,
        plan: &Plan,
        own_addresses: &[IpAddr],
        snapshot: &Snapshot,
        problems: &mut Vec<String>,
    ) -> Option<Script> {
        let earlier = std::mem::replace(self, Table::new(self.family)).stored;
        let node_ports = NodePorts::new(settings, self.family, &plan.node, own_addresses);
        let chains = base::chains(settings, self.family, &node_ports);
        let nothing = Snapshot::default();
        let compatible = self.is_compatible(snapshot, &chains);
        let found = if compatible { snapshot } else { &nothing };

        let ranges = found
            .chains
            .values()
            .flat_map(|chain| chain.rules.iter().filter_map(|rule| rule.range));
        ranges.for_each(|range| self.slots.keep_off(range));
        let family = self.family;
        for (key, port) in plan.ports.iter().filter(|(key, _)| key.family == family) {
            if let Some(problem) = problem(port) {
                problems.push(problem);
                continue;
            }
            let layouts = self.recover(port, found, earlier.get(key).map(|stored| &stored.layouts));
            let stored = self.store(settings, plan, port, Some(&layouts))?;
            for element in &stored.piece.elements {
                self.elements.add(&stored.names.base, element);
            }
            self.count_in(&stored);
            self.stored.insert(key.clone(), stored);
        }
        for element in base::elements(&node_ports) {
            self.elements.add(&Name::from(""), &element);
        }
        self.counted += chains.iter().map(|chain| chain.rules.len()).sum::<usize>();
        let mut script = self.compare(&chains, found);
        if !compatible {
            script.ops.insert(0, Op::DeleteTable);
            script.whole = true;
        }
        self.stale = script.stale.iter().cloned().collect();
        Some(script)
    }

    /// Sets and base chains can't be changed in place. If one is not as we would have made it, the table was made by
    /// something else, or by another version of us, and is made anew as a whole.
    fn is_compatible(&self, snapshot: &Snapshot, chains: &[Chain]) -> bool {
        let same_hook = |chain: &Chain| match (snapshot.chains.get(&chain.name), chain.hook) {
            (None, _) => true,
            (Some(FoundChain { hook: Some(seen), .. }), Some(hook)) => seen.equals(hook),
            (Some(FoundChain { hook, .. }), wanted) => hook.is_none() && wanted.is_none(),
        };
        let same_shape = |container: &Container| {
            let seen = snapshot.sets.get(container.name());
            seen.is_none_or(|seen| *seen == encode::shape(self.family, *container))
        };
        let affinity = encode::affinity_shape(self.family);
        let mut affinity_sets = snapshot.sets.iter().filter(|(name, _)| name.starts_with("affinity-"));
        let endpoints = encode::shape(self.family, Container::ServiceEndpoints);
        let prefix = Container::ServiceEndpoints.name();
        let mut shards = snapshot.sets.iter().filter(|(name, _)| name.starts_with(prefix));
        let service_hook = |(name, chain): (&Name, &FoundChain)| name.contains('/') && chain.hook.is_some();
        chains.iter().all(same_hook)
            && Container::FIXED.iter().all(same_shape)
            && shards.all(|(_, shape)| *shape == endpoints)
            && affinity_sets.all(|(_, shape)| *shape == affinity)
            && !snapshot.chains.iter().any(service_hook)
    }

    /// Which numbers the endpoints of a service port have in the kernel, or had before someone took its rules away.
    fn recover(&mut self, port: &ServicePort, found: &Snapshot, earlier: Option<&Layouts>) -> Layouts {
        if found.chains.is_empty() || port.affinity.is_some() {
            return Layouts::default();
        }
        let names = Names::new(&port.key, port.protocol);
        let mut layout = |chain: Name, used: bool, earlier: Option<&Layout>| {
            let rules = found.chains.get(&chain).filter(|_| used)?;
            let range = rules.rules.iter().find_map(|rule| rule.range);
            let range = self.slots.claim(range.or(earlier.map(|earlier| earlier.range))?)?;
            let at = |i: u32| {
                let key = slot_key(range.first + i);
                let container = Container::ServiceEndpoints;
                match &found.elements.get(&ElementKey { container, key })?.data {
                    Data::Endpoint(bytes) => endpoint_of(bytes),
                    _ => None,
                }
            };
            // One that is not known is as good as one that went.
            let nobody = SocketAddr::from(([0, 0, 0, 0], 0));
            let mut order: Vec<SocketAddr> = (0..range.length).map(|i| at(i).unwrap_or(nobody)).collect();
            while order.last() == Some(&nobody) {
                order.pop();
            }
            Some(Layout { range, order })
        };
        Layouts {
            cluster: layout(
                names.service(),
                !service::cluster_endpoints(port).is_empty(),
                earlier.and_then(|l| l.cluster.as_ref()),
            ),
            local: layout(
                names.local(),
                !service::local_endpoints(port).is_empty(),
                earlier.and_then(|l| l.local.as_ref()),
            ),
        }
    }

    fn compare(&self, base: &[Chain], found: &Snapshot) -> Script {
        let mut phases = Phases::default();
        if !found.awake {
            phases.creations.unit([Op::AddTable]);
        }
        for container in Container::FIXED {
            if !found.sets.contains_key(container.name()) {
                phases.creations.unit([Op::AddContainer(container)]);
            }
        }
        let mut chains: FxHashSet<&Name> = FxHashSet::default();
        let mut sets: FxHashSet<&str> = Container::FIXED.iter().map(|container| container.name()).collect();
        let mut slots: FxHashSet<&ElementKey> = FxHashSet::default();
        for chain in base {
            chains.insert(&chain.name);
            self.compare_chain(&mut phases, chain, found);
        }
        phases.changes.end_unit();
        // In order, so that the same plan gives the same script.
        let mut stored: Vec<&Stored> = self.stored.values().collect();
        stored.sort_unstable_by(|a, b| a.port.key.cmp(&b.port.key));
        for stored in stored {
            let piece = &stored.piece;
            for set in piece.sets.iter().filter(|set| !found.sets.contains_key(*set)) {
                phases.creations.unit([Op::AddAffinity(Arc::clone(set))]);
            }
            for chain in &piece.chains {
                self.compare_chain(&mut phases, chain, found);
            }
            let is_new = piece.chains.iter().all(|chain| !found.chains.contains_key(&chain.name));
            let slot_phase = if is_new { &mut phases.slots } else { &mut phases.changes };
            for (place, value) in &piece.slots {
                replace(slot_phase, place, found.elements.get(place), Some(value));
            }
            phases.slots.end_unit();
            phases.changes.end_unit();
            chains.extend(piece.chains.iter().map(|chain| &chain.name));
            sets.extend(piece.sets.iter().map(|set| &**set));
            slots.extend(piece.slots.iter().map(|(place, _)| place));
        }
        self.compare_elements(&mut phases, &slots, found);
        let here: FxHashSet<u32> = found.shards().collect();
        let come = self.shards.keys().filter(|shard| !here.contains(shard));
        phases.creations.unit(come.map(|shard| Op::AddShard(*shard)));
        let shard_names: Vec<_> = self
            .shards
            .keys()
            .map(|shard| set_name((Container::ServiceEndpoints, *shard)))
            .collect();
        sets.extend(shard_names.iter().map(|name| &**name));
        let mut gone: Vec<&Name> = found.chains.keys().filter(|name| !chains.contains(name)).collect();
        gone.sort_unstable();
        phases
            .removals
            .unit(gone.iter().map(|name| Op::FlushChain(Arc::clone(name))));
        let mut gone_sets: Vec<&Name> = found.sets.keys().filter(|name| !sets.contains(&***name)).collect();
        gone_sets.sort_unstable();
        phases
            .removals
            .unit(gone_sets.into_iter().map(|name| Op::DeleteSet(Arc::clone(name))));
        phases.stale = gone.into_iter().cloned().collect();
        phases.into_script()
    }

    fn compare_chain(&self, phases: &mut Phases, chain: &Chain, found: &Snapshot) {
        let seen = found.chains.get(&chain.name);
        if seen.is_none() {
            phases.creations.unit([without_rules(chain)]);
        }
        let same = |seen: &FoundChain| {
            let wanted = chain.rules.iter().map(|rule| Some(encode::tag(self.family, rule)));
            seen.rules.len() == chain.rules.len() && wanted.eq(seen.rules.iter().map(|rule| rule.tag))
        };
        if !seen.is_some_and(same) {
            // Where there is a table, it may have changed since it was read.
            rewrite(&mut phases.changes, chain, !found.chains.is_empty());
        }
    }

    fn compare_elements(&self, phases: &mut Phases, slots: &FxHashSet<&ElementKey>, found: &Snapshot) {
        let gone = found
            .elements
            .iter()
            .filter(|(place, _)| !slots.contains(place) && !self.elements.wanted.contains_key(place));
        let differ = self.elements.wanted.keys().filter_map(|place| {
            let (before, after) = (found.elements.get(place), self.elements.get(place));
            (before != after).then_some((place, before, after))
        });
        let gone = gone.map(|(place, value)| (place, Some(value), None));
        let mut all: Vec<_> = differ.chain(gone).collect();
        all.sort_unstable_by(|a, b| a.0.cmp(b.0));
        for (place, before, after) in all {
            replace(&mut phases.elements, place, before, after);
            phases.elements.end_unit();
        }
    }
}

fn delete_shard(shard: u32) -> Op {
    Op::DeleteSet(Name::from(&*set_name((Container::ServiceEndpoints, shard))))
}

fn without_rules(chain: &Chain) -> Op {
    Op::AddChain(Chain {
        rules: vec![],
        ..chain.clone()
    })
}

/// The chains, sets and slots of one service port.
fn change_port(phases: &mut Phases, old: Option<&Stored>, new: Option<&Stored>) {
    let nothing = Piece::default();
    let before = old.map_or(&nothing, |old| &old.piece);
    let after = new.map_or(&nothing, |new| &new.piece);
    let old_chains: FxHashMap<&Name, &Vec<Rule>> = before.chains.iter().map(|c| (&c.name, &c.rules)).collect();
    let new_chains: FxHashSet<&Name> = after.chains.iter().map(|chain| &chain.name).collect();
    let old_sets: FxHashSet<&Name> = before.sets.iter().collect();
    let new_sets: FxHashSet<&Name> = after.sets.iter().collect();

    let come = after.sets.iter().filter(|set| !old_sets.contains(set));
    phases.creations.unit(come.map(|set| Op::AddAffinity(Arc::clone(set))));
    for chain in &after.chains {
        match old_chains.get(&chain.name) {
            None => {
                phases.creations.unit([without_rules(chain)]);
                rewrite(&mut phases.changes, chain, false);
            }
            Some(rules) if **rules != chain.rules => rewrite(&mut phases.changes, chain, true),
            Some(_) => {}
        }
    }
    replace_slots(phases, &before.slots, &after.slots);

    let gone: Vec<&Name> = before
        .chains
        .iter()
        .map(|chain| &chain.name)
        .filter(|name| !new_chains.contains(name))
        .collect();
    phases
        .removals
        .ops
        .extend(gone.iter().map(|name| Op::FlushChain(Arc::clone(name))));
    let gone_sets = before.sets.iter().filter(|set| !new_sets.contains(set));
    phases
        .removals
        .unit(gone_sets.map(|set| Op::DeleteSet(Arc::clone(set))));
    phases.stale.extend(gone.into_iter().cloned());
}
