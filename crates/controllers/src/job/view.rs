//! What a Job and its pods look like: who is active, who has ended and is not counted yet, which indexes are done.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use jiff::Timestamp;

use super::backoff::{Backoff, ended_at};
use super::indexes::Indexes;
use super::policy::{self, Failure};
use crate::objects::{Job, Pod};

pub(super) const FINALIZER: &str = "batch.kubernetes.io/job-tracking";
pub(super) const INDEX: &str = "batch.kubernetes.io/job-completion-index";
pub(super) const FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
pub(super) const IGNORED_FAILURES: &str = "batch.kubernetes.io/job-index-ignored-failure-count";

/// All that a decision is made from.
#[derive(Clone, Copy)]
pub(super) struct JobSnapshot<'a> {
    pub job: &'a Job,
    /// Those it manages.
    pub pods: &'a [Arc<Pod>],
    /// Pods (by uid) that have lost the finalizer, though they may not look like it yet.
    pub released: &'a HashSet<String>,
    /// The failures in a row among the pods that are counted.
    pub backoff: Backoff,
    pub now: Timestamp,
}

/// What is seen, counted once.
pub(super) struct Tally<'a> {
    pub active: Vec<&'a Arc<Pod>>,
    pub ready: i64,
    /// On their way out and not ended.
    pub terminating: i64,
    /// Ended, and neither counted nor about to be.
    pub new_succeeded: Vec<&'a Arc<Pod>>,
    pub new_failed: Vec<&'a Arc<Pod>>,
    /// With all that have ended.
    pub succeeded: i64,
    pub failed: i64,
    /// Indexed Jobs: those done according to the status, and those done by now.
    pub completed_before: Indexes,
    pub completed: Indexes,
    /// Jobs with a limit per index.
    pub failed_indexes: Option<Indexes>,
    /// The last failed pod of an index that waits for its next try: it holds the number of failures until then.
    pub awaiting_next: BTreeMap<i64, &'a Arc<Pod>>,
}

pub(super) fn index_of(pod: &Pod) -> Option<i64> {
    let index: i64 = pod.metadata.annotation(INDEX)?.parse().ok()?;
    (index >= 0).then_some(index)
}

fn number(pod: &Pod, annotation: &str) -> i64 {
    let value = pod.metadata.annotation(annotation).and_then(|text| text.parse().ok());
    value.filter(|n| (0..=i64::from(i32::MAX)).contains(n)).unwrap_or(0)
}

/// Failures of this pod's index before it: those that count, and those that were ignored.
pub(super) fn failures_before(pod: &Pod) -> (i64, i64) {
    (number(pod, FAILURES), number(pod, IGNORED_FAILURES))
}

/// The failures in a row, as the pods tell that are counted and still there.
pub(super) fn backoff_so_far(job: &Job, pods: &[Arc<Pod>]) -> Backoff {
    let uncounted = &job.status.uncounted_terminated_pods;
    let listed: HashSet<&String> = uncounted.succeeded.iter().chain(&uncounted.failed).collect();
    let is_counted = |pod: &&Arc<Pod>| !pod.metadata.has_finalizer(FINALIZER) || listed.contains(&pod.metadata.uid);
    let ended = |phase: &str| -> Vec<_> {
        let pods = pods.iter().filter(is_counted).filter(|pod| pod.status.phase == phase);
        pods.map(|pod| ended_at(pod)).collect()
    };
    Backoff::default().after(&ended("Succeeded"), &ended("Failed"))
}

impl<'a> JobSnapshot<'a> {
    /// Holds the finalizer: it is not counted, or its counting is not done.
    pub(super) fn is_tracked(&self, pod: &Pod) -> bool {
        pod.metadata.has_finalizer(FINALIZER) && !self.released.contains(&pod.metadata.uid)
    }

    pub(super) fn completions(&self) -> i64 {
        self.job.spec.completions.unwrap_or(0)
    }

    /// The pod's index, if it is one that the Job has.
    pub(super) fn valid_index(&self, pod: &Pod) -> Option<i64> {
        index_of(pod).filter(|index| *index < self.completions())
    }

    /// Pods of an indexed Job only count with an index.
    pub(super) fn has_place(&self, pod: &Pod) -> bool {
        !self.job.is_indexed() || self.valid_index(pod).is_some()
    }

    /// A pod that is deleted may never come to say that it failed; so it counts as failed, unless the Job waits for the
    /// end of such pods anyway.
    pub(super) fn is_failed(&self, pod: &Pod) -> bool {
        match pod.status.phase.as_str() {
            "Failed" => true,
            "Succeeded" => false,
            _ => pod.metadata.is_deleted() && !self.job.replaces_only_ended_pods(),
        }
    }

    pub(super) fn tally(&self) -> Tally<'a> {
        let status = &self.job.status;
        let uncounted = &status.uncounted_terminated_pods;
        let known: HashSet<&str> = uncounted
            .succeeded
            .iter()
            .chain(&uncounted.failed)
            .map(|u| &**u)
            .collect();
        let active: Vec<_> = self.pods.iter().filter(|pod| pod.is_active()).collect();
        let fresh = || {
            let news = self
                .pods
                .iter()
                .filter(|pod| self.is_tracked(pod) && self.has_place(pod));
            news.filter(|pod| !known.contains(pod.metadata.uid.as_str()))
        };
        let new_succeeded: Vec<_> = fresh().filter(|pod| pod.status.phase == "Succeeded").collect();
        let new_failed: Vec<_> = fresh().filter(|pod| self.is_failed(pod)).collect();
        let counting = new_failed
            .iter()
            .filter(|pod| policy::judge(self.job, pod).counts())
            .count();
        let mut tally = Tally {
            ready: count(active.iter().filter(|pod| pod.is_ready()).count()),
            terminating: count(
                self.pods
                    .iter()
                    .filter(|p| p.metadata.is_deleted() && !p.is_terminal())
                    .count(),
            ),
            succeeded: status.succeeded + count(new_succeeded.len()) + count(uncounted.succeeded.len()),
            failed: status.failed + count(counting) + count(uncounted.failed.len()),
            active,
            new_succeeded,
            new_failed,
            completed_before: Indexes::default(),
            completed: Indexes::default(),
            failed_indexes: None,
            awaiting_next: BTreeMap::new(),
        };
        if self.job.is_indexed() {
            self.tally_indexes(&mut tally);
        }
        tally
    }

    fn tally_indexes(&self, tally: &mut Tally<'a>) {
        let status = &self.job.status;
        tally.completed_before = Indexes::parse(&status.completed_indexes, self.completions());
        let tracked = || self.pods.iter().filter(|pod| self.is_tracked(pod));
        let done = tracked().filter(|pod| pod.status.phase == "Succeeded");
        let done: Indexes = done.filter_map(|pod| self.valid_index(pod)).collect();
        tally.completed = tally.completed_before.union(&done);
        tally.succeeded = tally.completed.count();
        let Some(limit) = self.job.spec.backoff_limit_per_index else {
            return;
        };
        let before = Indexes::parse(status.failed_indexes.as_deref().unwrap_or(""), self.completions());
        let failed = tracked().filter(|pod| self.fails_index(pod, limit));
        let failed: Indexes = failed.filter_map(|pod| self.valid_index(pod)).collect();
        tally.failed_indexes = Some(before.union(&failed));
        tally.awaiting_next = self.awaiting_next(tally);
    }

    fn fails_index(&self, pod: &Pod, limit: i64) -> bool {
        self.is_failed(pod)
            && match policy::judge(self.job, pod) {
                Failure::Ignored => false,
                Failure::FailsIndex => true,
                Failure::Counts | Failure::FailsJob(_) => failures_before(pod).0 >= limit,
            }
    }

    fn awaiting_next(&self, tally: &Tally<'a>) -> BTreeMap<i64, &'a Arc<Pod>> {
        let active: HashSet<i64> = tally.active.iter().filter_map(|pod| index_of(pod)).collect();
        let given_up = |index| tally.failed_indexes.as_ref().is_some_and(|failed| failed.has(index));
        // The pod with the most failures behind it, and of those the last.
        let rank = |pod: &Pod| {
            let (counted, ignored) = failures_before(pod);
            (counted + ignored, ended_at(pod))
        };
        let mut last: BTreeMap<i64, &'a Arc<Pod>> = BTreeMap::new();
        for pod in self
            .pods
            .iter()
            .filter(|pod| self.is_tracked(pod) && self.is_failed(pod))
        {
            let Some(index) = self.valid_index(pod) else { continue };
            if tally.completed.has(index) || given_up(index) || active.contains(&index) {
                continue;
            }
            last.entry(index)
                .and_modify(|held| {
                    if rank(pod) >= rank(held) {
                        *held = pod;
                    }
                })
                .or_insert(pod);
        }
        last
    }
}

pub(super) fn count(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
