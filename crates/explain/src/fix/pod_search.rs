//! Changes of the pod: sets of them, the smaller ones first.

use std::collections::BTreeSet;

use orlop_scheduler::cluster::node::NodeId;
use orlop_scheduler::model::Pod;

use super::atoms::{admission, pod_atoms};
use super::budget::Budget;
use super::edit::{Edit, edited_pod};
use super::trial::place_with;
use super::{CHANGES_MAX, Fix, Search, Target};
use crate::world::World;

const WHAT: &str = "changes of the pod";
/// Fixes of this kind that are reported, at most.
const MAX_FIXES: usize = 5;
/// A maxSkew beyond this is no spreading any more.
const SKEW_MAX: i32 = 1 << 16;

impl Search<'_> {
    pub(super) fn on_pod(&self, world: &mut World, budget: &mut Budget) -> Vec<Fix> {
        let first = admission(world, self.pod);
        let info = world.cluster.decode(self.pod.clone());
        let atoms = pod_atoms(world, self.pod, &info);
        let mut found: Vec<Vec<Edit>> = vec![];
        for size in 0..=CHANGES_MAX.saturating_sub(first.len().min(CHANGES_MAX)) {
            for set in subsets(atoms.len(), size) {
                let chosen: Vec<&Edit> = set.iter().map(|i| &atoms[*i]).collect();
                if !self.could_do(&chosen) {
                    continue;
                }
                if !budget.take(world.cluster.width(), 0, WHAT) {
                    return self.best_fixes(world, found);
                }
                let edits: Vec<Edit> = first.iter().chain(chosen).cloned().collect();
                if self.fits_somewhere(world, &edits) {
                    found.push(edits);
                }
            }
            if !found.is_empty() {
                break;
            }
        }
        let exact = found.into_iter().filter_map(|edits| self.exactly(world, budget, edits));
        let exact = exact.collect();
        self.best_fixes(world, exact)
    }

    fn best_fixes(&self, world: &mut World, found: Vec<Vec<Edit>>) -> Vec<Fix> {
        // What gives up least first: the order of the atoms, amounts by how much is given up.
        let fixes = found.into_iter().filter_map(|edits| {
            let trial = place_with(world, self.pod, &edits)?;
            Some(Fix::new(Target::Pod, self.key, trial, edits))
        });
        fixes.take(MAX_FIXES).collect()
    }

    /// Whether all that rejects some node is about something that these changes touch.
    fn could_do(&self, edits: &[&Edit]) -> bool {
        let touched: BTreeSet<&str> = edits.iter().flat_map(|edit| edit.concerns()).copied().collect();
        let rows = &self.explanation.node_details;
        // Where a plugin rules out every node at once, what the others say is not known.
        rows.is_empty()
            || rows.iter().any(|row| {
                row.nominated_pods_in_the_way
                    || row
                        .rejections
                        .iter()
                        .all(|rejection| touched.contains(rejection.plugin))
            })
    }

    fn fits_somewhere(&self, world: &mut World, edits: &[Edit]) -> bool {
        !fitting(world, self.pod, edits, 1).is_empty()
    }

    /// The same changes with amounts as close to what the pod asks for as they can be.
    fn exactly(&self, world: &mut World, budget: &mut Budget, mut edits: Vec<Edit>) -> Option<Vec<Edit>> {
        if edits.iter().any(|edit| matches!(edit, Edit::LowerRequest { .. })) {
            budget.take(world.cluster.width(), 0, WHAT);
            self.amounts(world, &mut edits);
        }
        for at in 0..edits.len() {
            if let Edit::RelaxTopologySpread { index, topology_key } = &edits[at] {
                let raised = self.skew(world, budget, &edits, at, *index, topology_key);
                edits[at] = raised.unwrap_or_else(|| edits[at].clone());
            }
        }
        self.fits_somewhere(world, &edits).then_some(edits)
    }

    /// Fills in the most that each lowered request can be on one node that would do.
    fn amounts(&self, world: &mut World, edits: &mut [Edit]) {
        let nodes = fitting(world, self.pod, edits, usize::MAX);
        let lowered = |edits: &[Edit]| -> Vec<(usize, String, i64)> {
            let all = edits.iter().enumerate();
            let each = all.filter_map(|(at, edit)| match edit {
                Edit::LowerRequest { resource, from, .. } => Some((at, resource.clone(), *from)),
                _ => None,
            });
            each.collect()
        };
        let wanted = lowered(edits);
        let best = nodes.into_iter().filter_map(|id| {
            let amounts: Vec<i64> = wanted
                .iter()
                .map(|(_, resource, from)| free(world, id, self.pod, resource).clamp(0, *from))
                .collect();
            // What is kept of the request that loses most, in millionths.
            let kept = wanted
                .iter()
                .zip(&amounts)
                .map(|((_, _, from), to)| i128::from(*to) * 1_000_000 / i128::from((*from).max(1)));
            Some((kept.min()?, amounts))
        });
        // The first of the best.
        let best = best.reduce(|best, next| if next.0 > best.0 { next } else { best });
        let Some((_, amounts)) = best else { return };
        for ((at, ..), amount) in wanted.iter().zip(amounts) {
            if let Edit::LowerRequest { to, .. } = &mut edits[*at] {
                *to = amount;
            }
        }
    }

    /// The least maxSkew that does, if a larger one can do at all.
    fn skew(
        &self,
        world: &mut World,
        budget: &mut Budget,
        edits: &[Edit],
        at: usize,
        index: usize,
        topology_key: &str,
    ) -> Option<Edit> {
        let from = self.pod.spec.topology_spread_constraints.get(index)?.max_skew;
        let raised = |to: i32| Edit::RaiseMaxSkew {
            index,
            topology_key: topology_key.to_string(),
            from,
            to,
        };
        let mut does = |to: i32, budget: &mut Budget| {
            let mut tried = edits.to_vec();
            tried[at] = raised(to);
            budget.take(world.cluster.width(), 0, WHAT) && self.fits_somewhere(world, &tried)
        };
        if !does(SKEW_MAX, budget) {
            return None;
        }
        let (mut too_small, mut enough) = (from, SKEW_MAX);
        while enough - too_small > 1 {
            let middle = too_small + (enough - too_small) / 2;
            if does(middle, budget) {
                enough = middle;
            } else {
                too_small = middle;
            }
        }
        Some(raised(enough))
    }
}

/// The nodes that would take the pod with these changes.
fn fitting(world: &mut World, pod: &Pod, edits: &[Edit], limit: usize) -> Vec<NodeId> {
    let Some(edited) = edited_pod(pod, edits) else {
        return vec![];
    };
    let Some(profile) = world.profile_of(&edited.spec.scheduler_name) else {
        return vec![];
    };
    let info = world.cluster.decode(edited);
    world.core.fitting(profile, &world.cluster, &info, limit)
}

/// What is left of a resource on a node, for this pod: pods that were promised the node count.
fn free(world: &World, id: NodeId, pod: &Pod, resource: &str) -> i64 {
    let Some(node) = world.cluster.node(id) else { return 0 };
    let priority = pod.spec.priority.unwrap_or(0);
    let promised = world.cluster.nominated.on(&node.name).iter();
    let promised = promised.filter(|p| p.priority() >= priority && *p.uid != *pod.metadata.uid);
    let promised: i64 = promised.map(|p| p.requests().exact.amount(resource)).sum();
    let used = node.requested.amount(resource).saturating_add(promised);
    node.allocatable.amount(resource).saturating_sub(used)
}

/// All sets of `size` numbers below `all`, in order.
pub(super) fn subsets(all: usize, size: usize) -> impl Iterator<Item = Vec<usize>> {
    let mut next = (size <= all).then(|| (0..size).collect::<Vec<_>>());
    std::iter::from_fn(move || {
        let current = next.take()?;
        let mut following = current.clone();
        for at in (0..size).rev() {
            if following[at] < all - size + at {
                following[at] += 1;
                for later in at + 1..size {
                    following[later] = following[later - 1] + 1;
                }
                next = Some(following);
                break;
            }
        }
        Some(current)
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_set_comes_once() {
        let sets = |all, size| super::subsets(all, size).collect::<Vec<_>>();
        assert_eq!(sets(3, 0), [Vec::<usize>::new()]);
        assert_eq!(sets(3, 2), [[0, 1], [0, 2], [1, 2]]);
        assert_eq!(sets(2, 3), Vec::<Vec<usize>>::new());
        assert_eq!(sets(6, 3).len(), 20);
    }
}
