//! How many replicas each ReplicaSet should have now.
//!
//! Two limits hold at every step: no more pods than wanted and the surge together, no fewer available ones than wanted
//! without those that may be missing. A set that was scaled down still has the pods of its status; and while a
//! set has not observed its spec, nobody knows what it is about to do, so the others wait for it.
// Upstream: pkg/controller/deployment/{rolling,recreate,sync}.go. Differs in that upstream counts the replicas in the specs of sets,
// not what they have: it may have more pods, or fewer available ones, for a moment.

use std::cmp::Reverse;
use std::sync::Arc;

use super::history::{self, DESIRED};
use super::sets::{Sets, age, is_active, is_observed, size};
use crate::objects::{Deployment, ReplicaSet};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    /// Of the set of the present template; none if there is none and none is to be made now.
    pub new: Option<i64>,
    /// In the order of `Sets::old`.
    pub old: Vec<i64>,
    /// All sets with pods are to remember how many replicas are wanted, whether their own number changes or not.
    pub remember: bool,
}

impl Sizes {
    fn as_they_are(sets: &Sets) -> Sizes {
        Sizes {
            new: sets.new.as_deref().map(size),
            old: sets.old.iter().map(|set| size(set)).collect(),
            remember: false,
        }
    }

    fn grows(&self, from: &Sizes) -> bool {
        let more = |(to, from): (&i64, &i64)| to > from;
        self.new > from.new || self.old.iter().zip(&from.old).any(more)
    }
}

/// `old_pods_run`: whether pods of old sets are still there, even if on their way out.
pub(super) fn plan_sizes(deployment: &Deployment, sets: &Sets, old_pods_run: bool) -> Sizes {
    let now = Sizes::as_they_are(sets);
    let settled = sets.all().all(|set| is_settled(set));
    if deployment.spec.paused || (deployment.is_rolling() && was_scaled(deployment, sets)) {
        let next = scale(deployment, sets, now.clone());
        return if settled || !next.grows(&now) { next } else { now };
    }
    match deployment.is_rolling() {
        true if settled => roll(deployment, sets, now),
        true => now,
        false => recreate(deployment, sets, now, settled && !old_pods_run),
    }
}

/// Whether it is known what the set has been up to: it has observed its generation, or has only had one.
fn is_settled(set: &ReplicaSet) -> bool {
    is_observed(set) || set.metadata.generation <= 1
}

/// Whether the desired number of replicas differs from when the sets were last scaled.
fn was_scaled(deployment: &Deployment, sets: &Sets) -> bool {
    let active = sets.all().filter(|set| is_active(set));
    active
        .filter_map(|set| history::number(set, DESIRED))
        .any(|desired| desired != deployment.replicas())
}

/// Pods that a set has or may make at any moment.
fn pods(set: &ReplicaSet) -> i64 {
    size(set).max(set.status.replicas)
}

/// Pods of the set that serve and go on to do so.
fn available(set: &ReplicaSet) -> i64 {
    set.status.available_replicas.min(size(set))
}

/// First the new set grows as far as the surge allows, then old ones shrink as far as there are enough available pods.
fn roll(deployment: &Deployment, sets: &Sets, mut sizes: Sizes) -> Sizes {
    let wanted = deployment.replicas();
    let now = sizes.new.unwrap_or(0);
    let there: i64 = sets.all().map(|set| pods(set)).sum();
    let new = match now >= wanted {
        true => wanted,
        false => now + (deployment.max_replicas() - there).clamp(0, wanted - now),
    };
    sizes.new = Some(new);
    let new_available = sets.new.as_deref().map_or(0, available).min(new);
    let old: i64 = sizes.old.iter().sum();
    let mut spare = old + new_available - deployment.min_available();
    // Those that do not serve are not missed.
    for (set, size) in sets.old.iter().zip(&mut sizes.old) {
        let idle = *size - available(set);
        let fewer = idle.min(spare).max(0);
        *size -= fewer;
        spare -= fewer;
    }
    let serving: i64 = sets.old.iter().map(|set| available(set)).sum();
    let mut spare = spare.min(serving + new_available - deployment.min_available());
    for size in &mut sizes.old {
        let fewer = spare.clamp(0, *size);
        *size -= fewer;
        spare -= fewer;
    }
    sizes
}

/// The new set gets its pods only when there is no old one any more.
fn recreate(deployment: &Deployment, sets: &Sets, mut sizes: Sizes, may_be_gone: bool) -> Sizes {
    sizes.old.fill(0);
    let shrinks = sizes.new.is_some_and(|new| new > deployment.replicas());
    let gone = |set: &ReplicaSet| pods(set) == 0 && set.status.terminating_replicas.unwrap_or(0) == 0;
    let old_gone = may_be_gone && sets.old.iter().all(|set| gone(set));
    if old_gone || shrinks {
        sizes.new = Some(deployment.replicas());
    }
    sizes
}

/// Another number of replicas, without going on with the rollout: each set gets its share.
fn scale(deployment: &Deployment, sets: &Sets, mut sizes: Sizes) -> Sizes {
    sizes.remember = true;
    let mut active = sets.all().filter(|set| is_active(set));
    let only = match (active.next(), active.next()) {
        (Some(only), None) => Some(only),
        (None, _) => sets.new.as_ref().or(sets.old.last()),
        _ => None,
    };
    if let Some(only) = only {
        // What others have not yet given up counts.
        let others: i64 = sets.all().filter(|set| !same(set, only)).map(|set| pods(set)).sum();
        let room = (deployment.max_replicas() - others).max(size(only));
        set_size(sets, &mut sizes, only, deployment.replicas().min(room));
        return sizes;
    }
    let saturated = |set: &ReplicaSet| {
        size(set) == deployment.replicas()
            && history::number(set, DESIRED) == Some(deployment.replicas())
            && set.status.available_replicas == deployment.replicas()
    };
    if sets.new.as_deref().is_some_and(saturated) {
        sizes.old.fill(0);
    } else {
        share(deployment, sets, &mut sizes);
    }
    sizes
}

fn share(deployment: &Deployment, sets: &Sets, sizes: &mut Sizes) {
    let mut active: Vec<&Arc<ReplicaSet>> = sets.all().filter(|set| is_active(set)).collect();
    let allowed = if deployment.replicas() > 0 {
        deployment.max_replicas()
    } else {
        0
    };
    let told: i64 = active.iter().map(|set| size(set)).sum();
    let there: i64 = sets.all().map(|set| pods(set)).sum();
    let change = match allowed - told {
        more if more > 0 => (allowed - there).max(0),
        fewer => fewer,
    };
    if change == 0 || active.is_empty() {
        return;
    }
    // From the largest; of equal ones, newer ones grow and older ones shrink first.
    active.sort_by(|a, b| age(a).cmp(&age(b)));
    if change > 0 {
        active.reverse();
    }
    active.sort_by_key(|set| Reverse(size(set)));
    let mut left = change;
    for set in &active {
        let part = proportion(deployment, set);
        let part = if change > 0 {
            part.clamp(0, left)
        } else {
            part.clamp(left, 0)
        };
        set_size(sets, sizes, set, size(set) + part);
        left -= part;
    }
    // What rounding left over goes to the largest.
    let largest = active[0];
    let grown = get_size(sets, sizes, largest) + left;
    set_size(sets, sizes, largest, grown.max(0));
    if change < 0 {
        keep_serving(deployment, sets, sizes);
    }
}

/// Gives what serves precedence over what does not, where too little would be left. Upstream does not.
fn keep_serving(deployment: &Deployment, sets: &Sets, sizes: &mut Sizes) {
    let serving: i64 = sets.all().map(|set| available(set)).sum();
    let kept: i64 = sets
        .all()
        .map(|set| available(set).min(get_size(sets, sizes, set)))
        .sum();
    let missing = (deployment.min_available().min(serving) - kept).max(0);
    let (mut give, mut take) = (missing, missing);
    for set in sets.all() {
        let told = get_size(sets, sizes, set);
        let more = (available(set) - told).clamp(0, give);
        let fewer = (told - available(set)).clamp(0, take);
        set_size(sets, sizes, set, told + more - fewer);
        give -= more;
        take -= fewer;
    }
}

/// By how much the set would change if it kept its part of the whole.
fn proportion(deployment: &Deployment, set: &ReplicaSet) -> i64 {
    if deployment.replicas() == 0 {
        return -size(set);
    }
    let before = history::number(set, history::MAX).filter(|max| *max > 0);
    let before = before.unwrap_or(deployment.status.replicas);
    if before == 0 {
        return 0;
    }
    let exact = (size(set) * deployment.max_replicas()) as f64 / before as f64;
    exact.round() as i64 - size(set)
}

fn same(a: &Arc<ReplicaSet>, b: &Arc<ReplicaSet>) -> bool {
    a.metadata.uid == b.metadata.uid
}

fn set_size(sets: &Sets, sizes: &mut Sizes, set: &Arc<ReplicaSet>, size: i64) {
    match sets.old.iter().position(|old| same(old, set)) {
        Some(place) => sizes.old[place] = size,
        None => sizes.new = Some(size),
    }
}

fn get_size(sets: &Sets, sizes: &Sizes, set: &Arc<ReplicaSet>) -> i64 {
    match sets.old.iter().position(|old| same(old, set)) {
        Some(place) => sizes.old[place],
        None => sizes.new.unwrap_or(0),
    }
}
