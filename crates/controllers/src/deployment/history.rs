//! Revisions: each template has been current once or several times, and its ReplicaSet remembers when.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::sets::{Sets, age, is_observed, size};
use crate::objects::{Deployment, Meta, ReplicaSet};

pub(super) const REVISION: &str = "deployment.kubernetes.io/revision";
const HISTORY: &str = "deployment.kubernetes.io/revision-history";
pub(super) const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
pub(super) const MAX: &str = "deployment.kubernetes.io/max-replicas";
/// What a set does not take over from its Deployment.
const OWN: [&str; 6] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    REVISION,
    HISTORY,
    DESIRED,
    MAX,
    "deprecated.deployment.rollback.to",
];
/// The history is cut at the front to stay below this.
const HISTORY_CHARS_MAX: usize = 2000;

pub(super) type Annotations = BTreeMap<String, String>;

/// None if it is not a number; 0 if there is none.
fn revision(meta: &Meta) -> Option<i64> {
    meta.annotation(REVISION).map_or(Some(0), |text| text.parse().ok())
}

/// The revision that the present template has, or would get.
pub(super) fn next_revision(old: &[Arc<ReplicaSet>]) -> i64 {
    let newest = old.iter().filter_map(|set| revision(&set.metadata)).max();
    newest.unwrap_or(0).max(0) + 1
}

/// The annotations that the set of the present template lacks: the Deployment's own, its revision, and those revisions
/// it was before. `set` is none if it is yet to be made.
pub(super) fn missing_annotations(
    deployment: &Deployment,
    set: Option<&ReplicaSet>,
    old: &[Arc<ReplicaSet>],
) -> Annotations {
    let none = Annotations::new();
    let has = set.map_or(&none, |set| &set.metadata.annotations);
    let mut missing: Annotations = deployment
        .metadata
        .annotations
        .iter()
        .filter(|(key, value)| !OWN.contains(&key.as_str()) && has.get(*key) != Some(*value))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    let next = next_revision(old);
    let before = has.get(REVISION);
    // A revision that somebody made unreadable is left alone.
    let known = before.map_or(Some(0), |text| text.parse().ok());
    if known.is_some_and(|known: i64| known < next) {
        missing.insert(REVISION.to_string(), next.to_string());
        if let Some(before) = before
            && let Some(history) = appended(has.get(HISTORY).map_or("", String::as_str), before)
        {
            missing.insert(HISTORY.to_string(), history);
        }
    }
    missing
}

fn appended(history: &str, revision: &str) -> Option<String> {
    if history.is_empty() {
        return Some(revision.to_string());
    }
    let mut kept = history;
    while kept.len() + 1 + revision.len() > HISTORY_CHARS_MAX {
        kept = kept.split_once(',').map_or("", |(_, rest)| rest);
        if kept.is_empty() {
            return (revision.len() <= HISTORY_CHARS_MAX).then(|| revision.to_string());
        }
    }
    Some(format!("{kept},{revision}"))
}

/// How many replicas all sets together should have and may have, as a set remembers it.
pub(super) fn size_annotations(deployment: &Deployment) -> [(&'static str, String); 2] {
    [
        (DESIRED, deployment.replicas().to_string()),
        (MAX, deployment.max_replicas().to_string()),
    ]
}

/// A number that a set was annotated with.
pub(super) fn number(set: &ReplicaSet, annotation: &str) -> Option<i64> {
    let number: i64 = set.metadata.annotation(annotation)?.parse().ok()?;
    (0..=i64::from(i32::MAX)).contains(&number).then_some(number)
}

/// The sets beyond the history limit, the oldest revisions first; sets that have or want pods stay.
pub(super) fn outdated(deployment: &Deployment, sets: &Sets) -> Vec<Arc<ReplicaSet>> {
    let Some(limit) = deployment.history_limit() else {
        return vec![];
    };
    let mut old: Vec<&Arc<ReplicaSet>> = sets.old.iter().filter(|set| !set.metadata.is_deleted()).collect();
    old.sort_by(|a, b| match (revision(&a.metadata), revision(&b.metadata)) {
        (Some(x), Some(y)) if x != y => x.cmp(&y),
        _ => age(a).cmp(&age(b)),
    });
    let beyond = old.len().saturating_sub(limit);
    let idle = |set: &ReplicaSet| set.status.replicas == 0 && size(set) == 0 && is_observed(set);
    old.into_iter().take(beyond).filter(|set| idle(set)).cloned().collect()
}
