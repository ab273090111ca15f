//! Random clusters of owners and dependents, deleted in all three ways: what stays is what must, and nothing that has an
//! owner goes.
//!
//! The API server is a map here, each kind's watch a queue that is heard late, and a reconcile plans at one time and acts at a
//! later one, so that every plan may be out of date when it is carried out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use orlop_base::Random;

use super::graph::{Coordinates, Graph, Marks, News, Owner, PartialMeta, PartialObject, Type};
use super::plan::{Decision, Item, OwnerState, Plan, Policy, decide, plan};
use crate::objects::OwnerReference;

/// Kind 0 lives in no namespace.
const KINDS: usize = 4;
const NAMESPACES: [&str; 3] = ["", "one", "two"];

type Change = (Arc<Type>, Option<PartialObject>, String);

struct World {
    random: Random,
    objects: BTreeMap<String, (usize, PartialMeta)>,
    revision: u64,
    made: usize,
    watches: Vec<VecDeque<Change>>,
    graph: Graph,
    types: Vec<Arc<Type>>,
    woken: BTreeSet<String>,
    /// What the collector deleted.
    collected: BTreeSet<String>,
}

impl World {
    fn new(seed: u64) -> World {
        let mut graph = Graph::default();
        let types = (0..KINDS).map(|kind| graph.ty("v1", &format!("K{kind}"))).collect();
        World {
            random: Random::seeded(seed),
            objects: BTreeMap::new(),
            revision: 0,
            made: 0,
            watches: vec![VecDeque::new(); KINDS],
            graph,
            types,
            woken: BTreeSet::new(),
            collected: BTreeSet::new(),
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random.below(bound as u64) as usize
    }

    // ---- The API server.

    fn write(&mut self, uid: &str) {
        self.revision += 1;
        let (kind, meta) = self.objects.get_mut(uid).unwrap();
        meta.resource_version = self.revision.to_string();
        let (kind, meta) = (*kind, meta.clone());
        let gone = meta.deletion_timestamp.is_some() && meta.finalizers.is_empty();
        let seen = (!gone).then_some(PartialObject { metadata: meta });
        if gone {
            self.objects.remove(uid);
        }
        self.watches[kind].push_back((self.types[kind].clone(), seen, uid.to_string()));
    }

    fn delete(&mut self, uid: &str, policy: Policy) {
        let Some((_, meta)) = self.objects.get_mut(uid) else {
            return;
        };
        meta.deletion_timestamp = Some(serde::de::IgnoredAny);
        meta.finalizers.retain(|f| f != "orphan" && f != "foregroundDeletion");
        match policy {
            Policy::Background => {}
            Policy::Foreground => meta.finalizers.push("foregroundDeletion".into()),
            Policy::Orphan => meta.finalizers.push("orphan".into()),
        }
        self.write(uid);
    }

    fn loosen(&mut self, uid: &str, owners: &[Arc<str>]) {
        let Some((_, meta)) = self.objects.get_mut(uid) else {
            return;
        };
        let before = meta.owner_references.len();
        meta.owner_references
            .retain(|o| !owners.iter().any(|uid| **uid == *o.uid));
        if meta.owner_references.len() != before {
            self.write(uid);
        }
    }

    fn create(&mut self) {
        let kind = self.below(KINDS);
        let namespace = match kind {
            0 => "",
            _ => NAMESPACES[1 + self.below(2)],
        };
        self.made += 1;
        let uid = format!("u{}", self.made);
        let mut owner_references: Vec<OwnerReference> = vec![];
        for _ in 0..self.below(4).saturating_sub(1) {
            let new = self.reference();
            if owner_references.iter().all(|known| known.uid != new.uid) {
                owner_references.push(new);
            }
        }
        let metadata = PartialMeta {
            name: format!("n{}", self.made),
            namespace: namespace.into(),
            uid: uid.clone(),
            owner_references,
            ..PartialMeta::default()
        };
        self.objects.insert(uid.clone(), (kind, metadata));
        self.write(&uid);
    }

    /// Mostly to something that is there; now and then wrong in some way.
    fn reference(&mut self) -> OwnerReference {
        let number = 1 + self.below(self.made.max(1));
        let uid = match self.below(8) {
            0 => format!("never-{number}"),
            _ => format!("u{number}"),
        };
        let kind = match self.objects.get(&uid) {
            Some((kind, _)) if self.random.below(12) > 0 => *kind,
            _ => self.below(KINDS),
        };
        let wrong_name = self.below(20) == 0;
        OwnerReference {
            api_version: "v1".into(),
            kind: format!("K{kind}"),
            name: format!("n{}", if wrong_name { 0 } else { number }),
            uid,
            controller: None,
            block_owner_deletion: Some(self.below(3) > 0),
        }
    }

    /// A user ties a knot.
    fn add_owner(&mut self) {
        let uids: Vec<String> = self.objects.keys().cloned().collect();
        if uids.is_empty() {
            return;
        }
        let uid = uids[self.below(uids.len())].clone();
        let reference = self.reference();
        let (_, meta) = self.objects.get_mut(&uid).unwrap();
        if meta.owner_references.iter().all(|o| o.uid != reference.uid) {
            meta.owner_references.push(reference);
            self.write(&uid);
        }
    }

    fn delete_one(&mut self, policy: Policy) -> Option<String> {
        let uids: Vec<String> = self.objects.keys().cloned().collect();
        let uid = uids.get(self.below(uids.len().max(1)))?.clone();
        self.delete(&uid, policy);
        Some(uid)
    }

    // ---- What is true of an owner, whoever knows it.

    /// None: it can't be said, as the coordinates can't be.
    fn truth(&self, namespace: &str, uid: &str, kind: &str, name: &str) -> Option<OwnerState> {
        if kind != "K0" && namespace.is_empty() {
            return None;
        }
        let Some((number, meta)) = self.objects.get(uid) else {
            return Some(OwnerState::Dangling);
        };
        let namespace = if kind == "K0" { "" } else { namespace };
        let there = format!("K{number}") == kind && meta.name == name && meta.namespace == namespace;
        Some(match (there, meta.marks().waits()) {
            (false, _) => OwnerState::Dangling,
            (true, true) => OwnerState::Waiting,
            (true, false) => OwnerState::Solid,
        })
    }

    fn truth_of_owners(&self, uid: &str) -> Vec<Option<OwnerState>> {
        let meta = &self.objects[uid].1;
        let owners = meta.owner_references.iter();
        owners
            .map(|o| self.truth(&meta.namespace, &o.uid, &o.kind, &o.name))
            .collect()
    }

    // ---- The collector.

    fn tell(&mut self, news: News) {
        self.woken.extend(news.wake.iter().map(|uid| uid.to_string()));
    }

    /// The next change of a kind reaches the graph.
    fn hear(&mut self, kind: usize) -> bool {
        let Some((ty, seen, uid)) = self.watches[kind].pop_front() else {
            return false;
        };
        let mut news = News::default();
        match seen {
            Some(seen) => self.graph.observe(&ty, &seen, &mut news),
            None => self.graph.remove(&ty, &uid, &mut news),
        }
        self.tell(news);
        true
    }

    /// The watch of a kind breaks: the whole state comes instead of what happened in between.
    fn list_again(&mut self, kind: usize) {
        self.watches[kind].clear();
        let of_kind = self.objects.values().filter(|(k, _)| *k == kind);
        let all: Vec<PartialObject> = of_kind
            .map(|(_, meta)| PartialObject { metadata: meta.clone() })
            .collect();
        let mut news = News::default();
        self.graph.reset(&self.types[kind].clone(), &all, &mut news);
        self.tell(news);
    }

    fn take_turn(&mut self) -> Option<(String, Plan)> {
        let uids: Vec<String> = self.woken.iter().cloned().collect();
        let uid = uids.get(self.below(uids.len().max(1)))?.clone();
        self.woken.remove(&uid);
        let plan = plan(&self.graph, &uid);
        Some((uid, plan))
    }

    fn act(&mut self, uid: &str, plan: Plan) {
        match plan {
            Plan::Nothing => {}
            Plan::Verify(places) => self.verify(uid, &places),
            Plan::Orphan(item, dependents) => {
                for (dependent, _) in dependents {
                    self.loosen(&dependent, std::slice::from_ref(&item.uid));
                }
                self.remove_finalizer(uid, "orphan");
            }
            Plan::Release(_) => self.remove_finalizer(uid, "foregroundDeletion"),
            Plan::Judge(item, verdicts) => self.judge(uid, &item, verdicts),
        }
    }

    fn verify(&mut self, uid: &str, places: &[Coordinates]) {
        for coordinates in places {
            match self.truth(&coordinates.namespace, uid, &coordinates.ty.kind, &coordinates.name) {
                Some(OwnerState::Dangling) => {
                    let mut news = News::default();
                    self.graph.mark_absent(uid, coordinates, &mut news);
                    self.tell(news);
                }
                // Comes again.
                Some(_) => drop(self.woken.insert(uid.to_string())),
                None => {}
            }
        }
    }

    fn judge(&mut self, uid: &str, item: &Item, mut verdicts: Vec<OwnerState>) {
        for (owner, verdict) in item.owners.iter().zip(&mut verdicts) {
            if matches!(verdict, OwnerState::Unsure | OwnerState::Waiting) {
                let Owner { ty, name, uid, .. } = owner;
                let truth = self.truth(&item.coordinates.namespace, uid, &ty.kind, name);
                *verdict = truth.unwrap_or(OwnerState::Solid);
            }
        }
        match decide(item, &verdicts) {
            Decision::Keep => {}
            Decision::Loosen(owners) => self.loosen(uid, &owners),
            Decision::Delete(policy) => {
                let Some((_, live)) = self.objects.get(uid) else { return };
                if live.resource_version != item.revision.to_string() {
                    self.woken.insert(uid.to_string());
                    return;
                }
                let truth = self.truth_of_owners(uid);
                assert!(
                    !truth.is_empty()
                        && truth
                            .iter()
                            .all(|t| matches!(t, Some(OwnerState::Dangling | OwnerState::Waiting))),
                    "{uid} was deleted, but its owners are {truth:?}, not {verdicts:?}"
                );
                self.collected.insert(uid.to_string());
                self.delete(uid, policy);
            }
        }
    }

    fn remove_finalizer(&mut self, uid: &str, finalizer: &str) {
        if let Some((_, meta)) = self.objects.get_mut(uid)
            && meta.finalizers.iter().any(|f| f == finalizer)
        {
            meta.finalizers.retain(|f| f != finalizer);
            self.write(uid);
        }
    }

    /// Until nothing is heard and nobody is woken.
    fn settle(&mut self) {
        for _ in 0..5_000 {
            let kind = self.below(KINDS);
            let heard = self.hear(kind) || (0..KINDS).any(|kind| self.hear(kind));
            match self.take_turn() {
                Some((uid, plan)) => self.act(&uid, plan),
                None if !heard => return,
                None => {}
            }
        }
        panic!("goes round in circles: {:?}", self.woken);
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (uid, (kind, meta)) in &self.objects {
            let owners = meta.owner_references.iter();
            let owner = |o: &OwnerReference| format!(" {} {} {} {:?}", o.kind, o.name, o.uid, o.block_owner_deletion);
            let owners: String = owners.map(owner).collect();
            let (namespace, finalizers) = (&meta.namespace, &meta.finalizers);
            text.push_str(&format!("\nK{kind} {namespace}/{uid} {finalizers:?} after{owners}"));
        }
        text
    }

    /// What must hold whenever all is quiet.
    fn check(&self) {
        for (uid, (_, meta)) in &self.objects {
            assert!(!meta.marks().orphans(), "{uid} waits for its dependents to be let go");
            assert!(!meta.marks().waits(), "{uid} waits for its dependents:{}", self.text());
            let truth = self.truth_of_owners(uid);
            let stays = truth.is_empty() || truth.iter().any(|t| matches!(t, None | Some(OwnerState::Solid)));
            assert!(stays, "{uid} has lost its owners: {truth:?}");
            let node = self.graph.node(uid).expect("what is there is known");
            assert!(node.is_observed() && node.marks == Marks::default() && node.owners.len() == truth.len());
        }
        // What the graph still knows is there, or somebody who is there says that it is.
        let named: BTreeSet<&str> = self
            .objects
            .values()
            .flat_map(|(_, meta)| meta.owner_references.iter().map(|o| o.uid.as_str()))
            .collect();
        let known = self
            .objects
            .keys()
            .map(String::as_str)
            .chain(named)
            .collect::<BTreeSet<_>>();
        assert_eq!(self.graph.len(), known.len());
    }

    /// What has to be left of the objects once this one is deleted: worked out from all objects at once.
    fn expected_after(&self, uid: &str, policy: Policy) -> BTreeSet<String> {
        let mut left = self.objects.clone();
        left.remove(uid);
        if policy == Policy::Orphan {
            for (_, meta) in left.values_mut() {
                meta.owner_references.retain(|o| o.uid != uid);
            }
        }
        loop {
            let world = World {
                objects: left.clone(),
                ..World::new(0)
            };
            let lost = |uid: &&String| {
                let truth = world.truth_of_owners(uid);
                !truth.is_empty() && truth.iter().all(|t| *t == Some(OwnerState::Dangling))
            };
            let lost: Vec<String> = left.keys().filter(lost).cloned().collect();
            if lost.is_empty() {
                return left.into_keys().collect();
            }
            left.retain(|uid, _| !lost.contains(uid));
        }
    }
}

const POLICIES: [Policy; 3] = [Policy::Background, Policy::Foreground, Policy::Orphan];

/// More with `ORLOP_SEEDS=10`: ten times as many.
fn seeds(usual: u64) -> u64 {
    let more = std::env::var("ORLOP_SEEDS").ok().and_then(|n| n.parse().ok());
    usual * more.unwrap_or(1)
}

/// One thing after another: what is left is exactly what must be.
#[test]
fn what_remains_is_what_must() {
    for seed in 0..seeds(1_000) {
        let mut world = World::new(seed);
        for _ in 0..3 + seed % 12 {
            world.create();
            if world.below(4) == 0 {
                world.add_owner();
            }
        }
        world.settle();
        world.check();
        for _ in 0..4 {
            let policy = POLICIES[world.below(3)];
            let uids: Vec<String> = world.objects.keys().cloned().collect();
            let Some(uid) = uids.get(world.below(uids.len().max(1))) else {
                break;
            };
            let expected = world.expected_after(uid, policy);
            world.delete(uid, policy);
            world.settle();
            world.check();
            let left: BTreeSet<String> = world.objects.keys().cloned().collect();
            assert_eq!(left, expected, "seed {seed}: after {uid} was deleted ({policy:?})");
        }
    }
}

/// All at once: nothing goes that has an owner (`judge` checks that), and all comes to an end.
#[test]
fn whatever_happens_nothing_with_an_owner_goes() {
    for seed in 0..seeds(4_000) {
        let mut world = World::new(seed);
        let mut users: BTreeSet<String> = BTreeSet::new();
        let mut under_way: Vec<(String, Plan)> = vec![];
        let mut ever: BTreeSet<String> = BTreeSet::new();
        for _ in 0..60 {
            match world.below(12) {
                0..=2 => world.create(),
                3 => world.add_owner(),
                4 => {
                    let policy = POLICIES[world.below(3)];
                    users.extend(world.delete_one(policy));
                }
                5..=8 => {
                    let kind = world.below(KINDS);
                    world.hear(kind);
                }
                9 if world.below(6) == 0 => {
                    let kind = world.below(KINDS);
                    world.list_again(kind);
                }
                _ if under_way.len() > 2 || world.woken.is_empty() => {
                    if !under_way.is_empty() {
                        let (uid, plan) = under_way.remove(0);
                        world.act(&uid, plan);
                    }
                }
                _ => under_way.extend(world.take_turn()),
            }
            ever.extend(world.objects.keys().cloned());
        }
        for (uid, plan) in under_way {
            world.act(&uid, plan);
        }
        world.settle();
        world.check();
        let gone: BTreeSet<String> = ever
            .difference(&world.objects.keys().cloned().collect())
            .cloned()
            .collect();
        let by_somebody = users.union(&world.collected).cloned().collect();
        assert!(gone.is_subset(&by_somebody), "seed {seed}: {gone:?}");
    }
}
