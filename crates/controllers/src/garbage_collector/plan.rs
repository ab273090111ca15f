//! What is to be done about a node, as far as the graph can tell.

use rustc_hash::FxHashSet;

use super::graph::{Coordinates, Graph, Looked, Marks, Node, Owner, Presence, Uid};

/// A node as it was when the plan was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Item {
    pub uid: Uid,
    pub coordinates: Coordinates,
    pub revision: u64,
    pub marks: Marks,
    pub owners: Box<[Owner]>,
    pub has_dependents: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    Nothing,
    /// Only named so far: see whether it is at one of these places (if any).
    Verify(Vec<Coordinates>),
    /// Take the references to it from its dependents, then the finalizer `orphan` from it.
    Orphan(Item, Vec<(Uid, Coordinates)>),
    /// All dependents that it had to wait for are gone: take the finalizer `foregroundDeletion` from it.
    Release(Item),
    /// See whether its owners allow it to stay; one verdict an owner.
    Judge(Item, Vec<OwnerState>),
}

/// What is known of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnerState {
    /// It is there, and not about to go after its dependents.
    Solid,
    /// It is on its way out and waits for its dependents to go first.
    Waiting,
    /// It is not there.
    Dangling,
    /// The API server must be asked.
    Unsure,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Keep,
    /// Keep it, but take away the references to these.
    Loosen(Vec<Uid>),
    Delete(Policy),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Policy {
    Background,
    Foreground,
    Orphan,
}

impl Policy {
    pub(super) fn name(self) -> &'static str {
        match self {
            Policy::Background => "Background",
            Policy::Foreground => "Foreground",
            Policy::Orphan => "Orphan",
        }
    }
}

pub(super) fn plan(graph: &Graph, uid: &str) -> Plan {
    let (Some(node), Some(uid)) = (graph.node(uid), graph.uid(uid)) else {
        return Plan::Nothing;
    };
    match &node.presence {
        Presence::Gone => return Plan::Nothing,
        Presence::Named(places) => {
            let open = places.iter().filter(|(_, known)| *known == Looked::NotYet);
            return Plan::Verify(open.map(|(coordinates, _)| coordinates.clone()).collect());
        }
        Presence::Observed => {}
    }
    let item = Item {
        uid: uid.clone(),
        coordinates: node.coordinates.clone(),
        revision: node.revision,
        marks: node.marks,
        owners: node.owners.clone(),
        has_dependents: !node.dependents.is_empty(),
    };
    if node.marks.orphans() {
        let others = node.dependents.iter().filter(|dependent| **dependent != uid);
        let coordinates = |uid: &Uid| graph.node(uid).map(|node| (uid.clone(), node.coordinates.clone()));
        return Plan::Orphan(item, others.filter_map(coordinates).collect());
    }
    if node.marks.waits() {
        return match is_blocked(graph, &uid) {
            true => Plan::Nothing,
            false => Plan::Release(item),
        };
    }
    // What is on its way out goes by itself; its dependents come when it is gone.
    if node.marks.deleted || node.owners.is_empty() {
        return Plan::Nothing;
    }
    let verdicts: Vec<OwnerState> = node.owners.iter().map(|o| verdict(graph, node, o)).collect();
    match verdicts.iter().all(|verdict| *verdict == OwnerState::Solid) {
        true => Plan::Nothing,
        false => Plan::Judge(item, verdicts),
    }
}

fn verdict(graph: &Graph, dependent: &Node, owner: &Owner) -> OwnerState {
    let Some(node) = graph.node(&owner.uid) else {
        return OwnerState::Unsure;
    };
    match &node.presence {
        Presence::Named(places) => {
            let coordinates = owner.coordinates(&dependent.coordinates);
            match places.contains(&(coordinates, Looked::Absent)) {
                true => OwnerState::Dangling,
                false => OwnerState::Unsure,
            }
        }
        _ if !node.is_at(owner, &dependent.coordinates.namespace) => OwnerState::Unsure,
        Presence::Gone => OwnerState::Dangling,
        Presence::Observed if node.marks.waits() => OwnerState::Waiting,
        Presence::Observed => OwnerState::Solid,
    }
}

/// Whether a waiting node has to wait on. It has to as long as a dependent blocks it; unless all those that block it, and
/// those that block them, wait for one another in a circle: then nothing but letting one go helps.
fn is_blocked(graph: &Graph, uid: &Uid) -> bool {
    let mut after: FxHashSet<&Uid> = FxHashSet::default();
    let mut open = vec![uid];
    while let Some(at) = open.pop() {
        for dependent in blocking(graph, at) {
            if !graph.node(dependent).is_some_and(Node::waits) {
                return true;
            }
            if after.insert(dependent) {
                open.push(dependent);
            }
        }
    }
    after.remove(uid);
    if after.is_empty() {
        return false;
    }
    // All that must go before this node waits, too. Does all of it wait for this node?
    let mut before: FxHashSet<&Uid> = FxHashSet::default();
    let mut open = vec![uid];
    while let Some(at) = open.pop() {
        let Some(node) = graph.node(at) else { continue };
        for owner in node.owners.iter().filter(|owner| owner.blocks) {
            if after.contains(&owner.uid) && before.insert(&owner.uid) {
                open.push(&owner.uid);
            }
        }
    }
    before.len() < after.len()
}

/// The dependents that a waiting node waits for. Itself is none of them, nor are those whose references are wrong: of these
/// some never go.
fn blocking<'a>(graph: &'a Graph, uid: &'a Uid) -> impl Iterator<Item = &'a Uid> {
    let node = graph.node(uid);
    let dependents = node.map(|node| node.dependents.iter());
    dependents.into_iter().flatten().filter(move |dependent| {
        let blocks = |dependent: &Node| {
            let (mut owners, namespace) = (dependent.owners.iter(), &dependent.coordinates.namespace);
            let right = |owner: &Owner| node.is_some_and(|node| node.is_meant_by(owner, namespace));
            owners.any(|owner| owner.uid == *uid && owner.blocks && right(owner))
        };
        *dependent != uid && graph.node(dependent).is_some_and(blocks)
    })
}

/// Once nothing is unsure.
pub(super) fn decide(item: &Item, verdicts: &[OwnerState]) -> Decision {
    let with = |wanted: OwnerState| {
        let owners = item.owners.iter().zip(verdicts);
        owners
            .filter(move |(_, verdict)| **verdict == wanted)
            .map(|(owner, _)| owner.uid.clone())
    };
    let has = |wanted: OwnerState| verdicts.contains(&wanted);
    if verdicts.is_empty() || has(OwnerState::Unsure) {
        return Decision::Keep;
    }
    if has(OwnerState::Solid) {
        // An owner that waits would wait for ever if its reference stayed.
        let solid: Vec<Uid> = with(OwnerState::Solid).collect();
        let mut loose: Vec<Uid> = with(OwnerState::Dangling).chain(with(OwnerState::Waiting)).collect();
        // Taken away by uid: a second, right reference to the same owner would go with it.
        loose.retain(|uid| !solid.contains(uid));
        loose.dedup();
        return match loose.is_empty() {
            true => Decision::Keep,
            false => Decision::Loosen(loose),
        };
    }
    if has(OwnerState::Waiting) && item.has_dependents {
        return Decision::Delete(Policy::Foreground);
    }
    Decision::Delete(match item.marks {
        Marks { orphan: true, .. } => Policy::Orphan,
        Marks { foreground: true, .. } => Policy::Foreground,
        _ => Policy::Background,
    })
}
