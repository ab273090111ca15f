//! Who owns whom: every object that can be deleted, by its uid, with its owners and its dependents.
//!
//! A uid that is only known from somebody's reference is in it, too (`Presence::Named`), until its object shows up or is
//! known not to be there. What went away stays (`Presence::Gone`) as long as somebody refers to it: its dependents need to
//! know. So the graph knows no more than the objects in the cluster say, and forgets with them.
//!
//! Changes come in through `observe`, `remove`, `reset`, `forget_kind` and `mark_absent`; what comes out is which keys to queue
//! (`News`). Nothing is decided here.

use std::collections::BTreeSet;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::objects::OwnerReference;

pub(super) type Uid = Arc<str>;

/// `apps/v1`, `Deployment`. Shared by all objects of the kind.
#[derive(Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Type {
    pub api_version: Box<str>,
    pub kind: Box<str>,
}

impl Type {
    fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }
}

/// Where an object is, or is said to be.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Coordinates {
    pub ty: Arc<Type>,
    /// Empty for objects that live in none.
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl fmt::Display for Coordinates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Type { api_version, kind } = &*self.ty;
        write!(f, "{api_version}/{kind} {}/{}", self.namespace, self.name)
    }
}

/// A reference to an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    pub ty: Arc<Type>,
    pub name: Arc<str>,
    pub uid: Uid,
    /// A foreground deletion of the owner waits for this dependent.
    pub blocks: bool,
}

impl Owner {
    /// Where the owner would be; the namespace counts only if owners of its kind have one.
    pub(super) fn coordinates(&self, dependent: &Coordinates) -> Coordinates {
        Coordinates {
            ty: self.ty.clone(),
            namespace: dependent.namespace.clone(),
            name: self.name.clone(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    /// Somebody refers to it; it has not been seen. These are all the places where it is said to be, and whether it is
    /// known not to be there.
    Named(Vec<(Coordinates, Looked)>),
    Observed,
    /// It was seen, and seen to go. A uid never comes back.
    Gone,
}

/// What a look at a coordinates found where something is said to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Looked {
    /// Nothing: it is queued again and again until that changes.
    NotYet,
    Absent,
}

#[derive(Clone, Debug)]
pub(super) struct Node {
    /// Where it is; if it has not been seen: where the first reference says it is.
    pub coordinates: Coordinates,
    pub presence: Presence,
    pub owners: Box<[Owner]>,
    pub dependents: BTreeSet<Uid>,
    /// The resource version of this state; 0 if it is not a number.
    pub revision: u64,
    pub marks: Marks,
}

/// What decides how an object goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Marks {
    /// It is on its way out.
    pub deleted: bool,
    /// It has the finalizer `foregroundDeletion`.
    pub foreground: bool,
    /// It has the finalizer `orphan`.
    pub orphan: bool,
}

impl Marks {
    /// On its way out, but only after its dependents.
    pub(super) fn waits(self) -> bool {
        self.deleted && self.foreground
    }

    /// On its way out, and its dependents are to stay.
    pub(super) fn orphans(self) -> bool {
        self.deleted && self.orphan
    }
}

impl Node {
    fn named(coordinates: Coordinates) -> Node {
        Node {
            coordinates,
            presence: Presence::Named(vec![]),
            owners: Box::default(),
            dependents: BTreeSet::new(),
            revision: 0,
            marks: Marks::default(),
        }
    }

    pub(super) fn is_observed(&self) -> bool {
        self.presence == Presence::Observed
    }

    /// PartialObject, on its way out, waiting for its dependents.
    pub(super) fn waits(&self) -> bool {
        self.is_observed() && self.marks.waits()
    }

    /// Whether the reference, on a dependent in this namespace, says rightly where this node is.
    pub(super) fn is_at(&self, owner: &Owner, namespace: &str) -> bool {
        self.coordinates.ty == owner.ty && self.coordinates.name == owner.name && !self.is_beyond(namespace)
    }

    /// Like `is_at`, in whatever version of the kind.
    pub(super) fn is_meant_by(&self, owner: &Owner, namespace: &str) -> bool {
        let (ours, theirs) = (&self.coordinates.ty, &owner.ty);
        let same_kind = ours.kind == theirs.kind && ours.group() == theirs.group();
        same_kind && self.coordinates.name == owner.name && !self.is_beyond(namespace)
    }

    /// It lives in another namespace: its dependents can't be here.
    fn is_beyond(&self, namespace: &str) -> bool {
        !self.coordinates.namespace.is_empty() && *self.coordinates.namespace != *namespace
    }
}

/// An object as the API shows it: the little of it that is of interest here.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PartialObject {
    pub metadata: PartialMeta,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PartialMeta {
    pub name: String,
    pub namespace: String,
    pub uid: String,
    pub resource_version: String,
    pub deletion_timestamp: Option<IgnoredAny>,
    pub finalizers: Vec<String>,
    pub owner_references: Vec<OwnerReference>,
}

impl PartialMeta {
    pub(super) fn marks(&self) -> Marks {
        let has = |name: &str| self.finalizers.iter().any(|f| f == name);
        Marks {
            deleted: self.deletion_timestamp.is_some(),
            foreground: has(super::FOREGROUND),
            orphan: has(super::ORPHAN),
        }
    }
}

/// What follows from a change.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct News {
    /// Which keys to queue.
    pub wake: Vec<Uid>,
    /// References to an owner in another namespace.
    pub beyond: Vec<Beyond>,
}

/// A dependent that names an owner which lives in another namespace.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Beyond {
    pub dependent: Coordinates,
    pub uid: Uid,
    pub owner: Owner,
}

#[derive(Default)]
pub(super) struct Graph {
    nodes: FxHashMap<Uid, Node>,
    types: Shared<Type>,
    namespaces: Shared<str>,
}

/// Values of which one copy serves all. Those that nobody uses any more are dropped now and then.
struct Shared<T: ?Sized> {
    known: FxHashSet<Arc<T>>,
    prune_at: usize,
}

impl<T: ?Sized + Eq + Hash> Default for Shared<T> {
    fn default() -> Shared<T> {
        Shared {
            known: FxHashSet::default(),
            prune_at: 128,
        }
    }
}

impl<T: ?Sized + Eq + Hash> Shared<T> {
    fn of(&mut self, value: &T, make: impl FnOnce() -> Arc<T>) -> Arc<T> {
        if let Some(known) = self.known.get(value) {
            return known.clone();
        }
        if self.known.len() >= self.prune_at {
            self.known.retain(|value| Arc::strong_count(value) > 1);
            self.prune_at = (2 * self.known.len()).max(128);
        }
        let value = make();
        self.known.insert(value.clone());
        value
    }
}

impl Graph {
    pub(super) fn node(&self, uid: &str) -> Option<&Node> {
        self.nodes.get(uid)
    }

    pub(super) fn uid(&self, uid: &str) -> Option<Uid> {
        self.nodes.get_key_value(uid).map(|(uid, _)| uid.clone())
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The one `Type` of this kind.
    pub(super) fn ty(&mut self, api_version: &str, kind: &str) -> Arc<Type> {
        let ty = Arc::new(Type {
            api_version: api_version.into(),
            kind: kind.into(),
        });
        self.types.of(&ty, || ty.clone())
    }

    fn namespace(&mut self, name: &str) -> Arc<str> {
        self.namespaces.of(name, || name.into())
    }

    /// An object as it is now.
    pub(super) fn observe(&mut self, ty: &Arc<Type>, seen: &PartialObject, news: &mut News) {
        let meta = &seen.metadata;
        if meta.uid.is_empty() {
            return;
        }
        let (uid, is_new) = match self.nodes.get_key_value(meta.uid.as_str()) {
            // The same object under a second name (two groups that share a kind): the first one counts.
            Some((_, node)) if node.is_observed() && node.coordinates.ty != *ty => return,
            Some((uid, node)) => (uid.clone(), !node.is_observed()),
            None => (Uid::from(meta.uid.as_str()), true),
        };
        if is_new {
            self.appear(ty, &uid, meta, news);
        }
        self.set_owners(&uid, &meta.owner_references, news);
        let node = self.nodes.get_mut(&uid).expect("it has just appeared");
        let before = std::mem::replace(&mut node.marks, meta.marks());
        node.revision = meta.resource_version.parse().unwrap_or(0);
        let marks = node.marks;
        if !is_new && before == marks {
            return;
        }
        if marks.orphans() || marks.waits() {
            news.wake.push(uid.clone());
        }
        if marks.waits() && (is_new || !before.waits()) {
            news.wake.extend(self.nodes[&uid].dependents.iter().cloned());
            self.wake_waiting_owners(&uid, news);
        }
    }

    fn appear(&mut self, ty: &Arc<Type>, uid: &Uid, meta: &PartialMeta, news: &mut News) {
        let coordinates = Coordinates {
            ty: ty.clone(),
            namespace: self.namespace(&meta.namespace),
            name: meta.name.as_str().into(),
        };
        let node = self
            .nodes
            .entry(uid.clone())
            .or_insert_with(|| Node::named(coordinates.clone()));
        node.coordinates = coordinates;
        node.presence = Presence::Observed;
        // Those who refer to it somewhere else are wrong, or know it by another version: they have to look.
        let dependents: Vec<Uid> = node.dependents.iter().cloned().collect();
        for dependent in dependents {
            self.check_reference(&dependent, uid, news);
        }
    }

    /// Wakes a dependent whose reference to an observed owner does not fit.
    fn check_reference(&self, dependent: &Uid, owner: &Uid, news: &mut News) {
        let (Some(node), Some(owner)) = (self.nodes.get(dependent), self.nodes.get(owner)) else {
            return;
        };
        let namespace = &node.coordinates.namespace;
        let references = node
            .owners
            .iter()
            .filter(|o| self.nodes.get(&o.uid).is_some_and(|n| std::ptr::eq(n, owner)));
        for reference in references {
            if owner.is_at(reference, namespace) {
                continue;
            }
            news.wake.push(dependent.clone());
            if owner.is_beyond(namespace) {
                news.beyond.push(Beyond {
                    dependent: node.coordinates.clone(),
                    uid: dependent.clone(),
                    owner: reference.clone(),
                });
            }
        }
    }

    fn set_owners(&mut self, uid: &Uid, references: &[OwnerReference], news: &mut News) {
        let old = &self.nodes[uid].owners;
        let same = old.len() == references.len() && old.iter().zip(references).all(|(a, b)| is_same(a, b));
        if same {
            return;
        }
        let new: Box<[Owner]> = references.iter().map(|reference| self.owner(reference)).collect();
        let node = self.nodes.get_mut(uid).expect("the caller has it");
        let old = std::mem::replace(&mut node.owners, new.clone());
        for owner in old.iter().filter(|o| !new.contains(o)) {
            let still_named = new.iter().any(|n| n.uid == owner.uid);
            self.let_go(uid, &owner.uid, still_named, news);
        }
        for owner in new.iter().filter(|o| !old.contains(o)) {
            self.attach(uid, owner, news);
        }
    }

    /// Shares names and uids with the owner's node, if there is one.
    fn owner(&mut self, reference: &OwnerReference) -> Owner {
        let ty = self.ty(&reference.api_version, &reference.kind);
        let known = self.nodes.get_key_value(reference.uid.as_str());
        let name = known
            .filter(|(_, node)| *node.coordinates.name == *reference.name)
            .map_or_else(
                || reference.name.as_str().into(),
                |(_, node)| node.coordinates.name.clone(),
            );
        Owner {
            ty,
            name,
            uid: known.map_or_else(|| reference.uid.as_str().into(), |(uid, _)| uid.clone()),
            blocks: reference.block_owner_deletion == Some(true),
        }
    }

    fn attach(&mut self, uid: &Uid, owner: &Owner, news: &mut News) {
        let coordinates = owner.coordinates(&self.nodes[uid].coordinates);
        let node = self.nodes.entry(owner.uid.clone());
        let node = node.or_insert_with(|| Node::named(coordinates.clone()));
        node.dependents.insert(uid.clone());
        match &mut node.presence {
            Presence::Named(places) => match places.iter().find(|(known, _)| *known == coordinates) {
                Some((_, Looked::Absent)) => news.wake.push(uid.clone()),
                Some((_, Looked::NotYet)) => {}
                None => {
                    // Is it there?
                    places.push((coordinates, Looked::NotYet));
                    news.wake.push(owner.uid.clone());
                }
            },
            Presence::Gone => news.wake.push(uid.clone()),
            Presence::Observed => {
                if node.marks.waits() {
                    news.wake.push(uid.clone());
                }
                self.check_reference(uid, &owner.uid, news);
            }
        }
    }

    /// A dependent's reference is no more, or not as it was.
    fn let_go(&mut self, dependent: &Uid, owner: &Uid, still_named: bool, news: &mut News) {
        let Some(node) = self.nodes.get_mut(owner) else { return };
        if node.waits() {
            news.wake.push(owner.clone());
        }
        if !still_named {
            node.dependents.remove(dependent);
            if node.dependents.is_empty() && !node.is_observed() {
                self.nodes.remove(owner);
            }
        }
    }

    fn wake_waiting_owners(&self, uid: &Uid, news: &mut News) {
        for owner in &self.nodes[uid].owners {
            if self.nodes.get(&owner.uid).is_some_and(Node::waits) {
                news.wake.push(owner.uid.clone());
            }
        }
    }

    /// An object has gone.
    pub(super) fn remove(&mut self, ty: &Arc<Type>, uid: &str, news: &mut News) {
        let known = self.nodes.get_key_value(uid);
        let Some((uid, node)) = known.filter(|(_, node)| node.is_observed() && node.coordinates.ty == *ty) else {
            return;
        };
        let uid = uid.clone();
        news.wake.extend(node.dependents.iter().filter(|d| **d != uid).cloned());
        self.end(&uid, Presence::Gone, news);
    }

    /// The node is not observed any more; without dependents it is not in the graph any more either.
    fn end(&mut self, uid: &Uid, presence: Presence, news: &mut News) {
        let node = self.nodes.get_mut(uid).expect("the caller has it");
        node.presence = presence;
        node.marks = Marks::default();
        let owners = std::mem::take(&mut node.owners);
        for owner in &owners {
            self.let_go(uid, &owner.uid, false, news);
        }
        if self.nodes.get(uid).is_some_and(|node| node.dependents.is_empty()) {
            self.nodes.remove(uid);
        }
    }

    /// The whole state of a kind: what is not in it is gone.
    pub(super) fn reset(&mut self, ty: &Arc<Type>, all: &[PartialObject], news: &mut News) {
        let there: FxHashSet<&str> = all.iter().map(|seen| seen.metadata.uid.as_str()).collect();
        for uid in self.observed(ty) {
            if !there.contains(&*uid) {
                self.remove(ty, &uid, news);
            }
        }
        for seen in all {
            self.observe(ty, seen, news);
        }
    }

    /// Nobody watches this kind any more: its objects may be there or not.
    pub(super) fn forget_kind(&mut self, ty: &Arc<Type>, news: &mut News) {
        for uid in self.observed(ty) {
            let mut places = vec![];
            for dependent in self.nodes[&uid].dependents.iter().map(|d| &self.nodes[d]) {
                for owner in dependent.owners.iter().filter(|owner| owner.uid == uid) {
                    let coordinates = (owner.coordinates(&dependent.coordinates), Looked::NotYet);
                    if !places.contains(&coordinates) {
                        places.push(coordinates);
                    }
                }
            }
            self.end(&uid, Presence::Named(places), news);
            if self.nodes.contains_key(&uid) {
                news.wake.push(uid);
            }
        }
    }

    fn observed(&self, ty: &Arc<Type>) -> Vec<Uid> {
        let nodes = self.nodes.iter();
        let of_kind = nodes.filter(|(_, node)| node.is_observed() && node.coordinates.ty == *ty);
        of_kind.map(|(uid, _)| uid.clone()).collect()
    }

    /// The API server says that no object of this uid is at this coordinates.
    pub(super) fn mark_absent(&mut self, uid: &str, coordinates: &Coordinates, news: &mut News) {
        let Some(node) = self.nodes.get_mut(uid) else { return };
        let Presence::Named(places) = &mut node.presence else {
            return;
        };
        let Some((_, known)) = places.iter_mut().find(|(at, _)| at == coordinates) else {
            return;
        };
        *known = Looked::Absent;
        let node = &self.nodes[uid];
        for dependent in &node.dependents {
            let there = |o: &Owner| &*o.uid == uid && o.coordinates(&self.nodes[dependent].coordinates) == *coordinates;
            if self.nodes[dependent].owners.iter().any(there) {
                news.wake.push(dependent.clone());
            }
        }
    }
}

pub(super) fn is_same(owner: &Owner, reference: &OwnerReference) -> bool {
    *owner.uid == *reference.uid
        && *owner.name == *reference.name
        && *owner.ty.kind == *reference.kind
        && *owner.ty.api_version == *reference.api_version
        && owner.blocks == (reference.block_owner_deletion == Some(true))
}
