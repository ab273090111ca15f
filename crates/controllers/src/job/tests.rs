//! Whole Jobs, decided on and counted in a small world of their own.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use orlop_api::batch::job_status;
use orlop_api::field::{Cursor, Problems};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::plan::{self, Done, PodAction};
use super::tracking;
use super::view::{FINALIZER, INDEX, JobSnapshot, backoff_so_far, count};
use crate::objects::job::JobStatus;
use crate::objects::{Job, Pod, condition};
use crate::runtime::Next;

/// A Job, its pods, and what has been counted so far.
struct World {
    spec: Value,
    job: Job,
    pods: Vec<Arc<Pod>>,
    now: Timestamp,
    next_pod: u32,
    /// Uids that have been listed as uncounted, and those that have left the lists.
    listed: BTreeSet<String>,
    counted: BTreeSet<String>,
}

impl World {
    fn new(spec: Value) -> World {
        World {
            job: serde_json::from_value(json!({"metadata": {"name": "j", "uid": "job"}, "spec": spec})).unwrap(),
            spec,
            pods: vec![],
            now: Timestamp::from_second(1_000_000).unwrap(),
            next_pod: 0,
            listed: BTreeSet::new(),
            counted: BTreeSet::new(),
        }
    }

    fn pass(&mut self, seconds: i64) {
        self.now = self.now.checked_add(SignedDuration::from_secs(seconds)).unwrap();
    }

    fn respec(&mut self, field: &str, value: Value) {
        self.spec[field] = value;
        self.job.spec = serde_json::from_value(self.spec.clone()).unwrap();
    }

    fn pod(&mut self, index: usize, change: impl FnOnce(&mut Pod)) {
        change(Arc::make_mut(&mut self.pods[index]));
    }

    /// The pod ends; with an exit code.
    fn end(&mut self, index: usize, code: i32) {
        let now = self.now;
        self.pod(index, |pod| {
            let phase = if code == 0 { "Succeeded" } else { "Failed" };
            pod.status.phase = phase.to_string();
            let state = json!([{"name": "c", "state": {"terminated": {"exitCode": code, "finishedAt": now}}}]);
            pod.status.container_statuses = serde_json::from_value(state).unwrap();
        });
    }

    fn delete(&mut self, index: usize) {
        let now = self.now;
        self.pod(index, |pod| pod.metadata.deletion_timestamp = Some(now));
    }

    /// Deleted pods end, and go once nothing holds them.
    fn reap(&mut self) {
        for index in 0..self.pods.len() {
            if self.pods[index].metadata.is_deleted() && !self.pods[index].is_terminal() {
                self.end(index, 137);
            }
        }
        self.sweep();
    }

    fn sweep(&mut self) {
        self.pods
            .retain(|pod| !(pod.metadata.is_deleted() && pod.is_terminal() && pod.metadata.finalizers.is_empty()));
    }

    fn running(&self) -> Vec<usize> {
        (0..self.pods.len()).filter(|i| self.pods[*i].is_active()).collect()
    }

    /// A write of the status: the API server must accept it, and nothing may be counted but what was listed.
    fn write(&mut self, status: &JobStatus) {
        let whole = |status: &JobStatus| {
            let mut patch = status.for_patch();
            drop_nulls(&mut patch);
            json!({"spec": self.spec, "status": patch})
        };
        let (old, new) = (whole(&self.job.status), whole(status));
        let mut problems = Problems::default();
        job_status::validate(&Cursor::root(&new), &Cursor::root(&old), &mut problems);
        assert!(problems.is_empty(), "{problems:?}\n{old}\n{new}");
        let before = &self.job.status;
        let lists = |s: &JobStatus| s.uncounted_terminated_pods.clone();
        let (was, is) = (lists(before), lists(status));
        for (was, is, counters, indexed) in [
            (&was.failed, &is.failed, status.failed - before.failed, false),
            (
                &was.succeeded,
                &is.succeeded,
                status.succeeded - before.succeeded,
                self.job.is_indexed(),
            ),
        ] {
            let left: Vec<&String> = was.iter().filter(|uid| !is.contains(uid)).collect();
            assert!(
                indexed || counters == count(left.len()),
                "counted {counters}, listed {left:?}"
            );
            for uid in left {
                assert!(self.counted.insert(uid.clone()), "{uid} is counted twice");
            }
            for uid in is.iter().filter(|uid| !was.contains(uid)) {
                assert!(self.listed.insert(uid.clone()), "{uid} is listed twice");
            }
        }
        self.job.status = status.clone();
    }

    /// One reconcile that breaks off after so many writes. Says when to look again.
    fn reconcile(&mut self, mut writes: usize) -> Next {
        if self.job.is_finished() {
            return Next::Done;
        }
        let (job, pods, released) = (self.job.clone(), self.pods.clone(), HashSet::new());
        let seen = JobSnapshot {
            job: &job,
            pods: &pods,
            released: &released,
            backoff: backoff_so_far(&job, &pods),
            now: self.now,
        };
        let tally = seen.tally();
        let decision = plan::decide(&seen, &tally);
        let Some(done) = self.apply(&decision.act, &mut writes) else {
            return Next::Done;
        };
        let tracking = tracking::track(&seen, &tally, &decision, &done);
        if tracking.status != job.status {
            if !spend(&mut writes) {
                return Next::Done;
            }
            self.write(&tracking.status);
        }
        let mut gone = HashSet::new();
        for pod in &tracking.release {
            if !spend(&mut writes) {
                return Next::Done;
            }
            self.release(&pod.metadata.uid);
            gone.insert(pod.metadata.uid.clone());
        }
        let (status, _) = tracking::conclude(&seen, &tracking, &gone);
        if status != tracking.status && spend(&mut writes) {
            self.write(&status);
        }
        decision.next
    }

    fn release(&mut self, uid: &str) {
        for pod in self.pods.iter_mut().filter(|pod| pod.metadata.uid == uid) {
            Arc::make_mut(pod).metadata.finalizers.clear();
        }
        self.sweep();
    }

    fn apply(&mut self, act: &PodAction, writes: &mut usize) -> Option<Done> {
        let mut done = Done::default();
        match act {
            PodAction::Nothing => {}
            PodAction::Create(new) => {
                let base = super::pods::base(&self.job);
                for one in new {
                    spend(writes).then_some(())?;
                    let mut pod = super::pods::pod(&self.job, &base, one);
                    pod["metadata"]["uid"] = json!(format!("p{}", self.next_pod));
                    pod["metadata"]["name"] = json!(format!("p{}", self.next_pod));
                    pod["metadata"]["creationTimestamp"] = json!(self.now);
                    pod["status"] = json!({"phase": "Running"});
                    self.next_pod += 1;
                    self.pods.push(Arc::new(serde_json::from_value(pod).unwrap()));
                    done.created += 1;
                }
            }
            PodAction::Remove(pods) | PodAction::Stop(pods) => {
                for pod in pods {
                    if matches!(act, PodAction::Remove(_)) {
                        spend(writes).then_some(())?;
                        self.release(&pod.metadata.uid);
                    }
                    spend(writes).then_some(())?;
                    let index = self
                        .pods
                        .iter()
                        .position(|p| p.metadata.uid == pod.metadata.uid)
                        .unwrap();
                    self.delete(index);
                    done.removed += 1;
                }
            }
        }
        Some(done)
    }

    fn settle(&mut self) {
        for _ in 0..20 {
            let before = (self.job.status.clone(), self.next_pod);
            self.reconcile(usize::MAX);
            if before == (self.job.status.clone(), self.next_pod) {
                return;
            }
        }
        panic!("does not come to rest: {:?}", self.job.status);
    }

    fn said(&self) -> String {
        let shown = self.job.status.conditions.iter().filter(|c| c.is_true());
        shown
            .map(|c| format!("{} {}: {}", c.r#type, c.reason, c.message))
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// active, succeeded, failed
    fn counts(&self) -> (i64, i64, i64) {
        let status = &self.job.status;
        assert!(status.uncounted_terminated_pods.is_empty());
        (status.active, status.succeeded, status.failed)
    }
}

fn drop_nulls(value: &mut Value) {
    if let Some(map) = value.as_object_mut() {
        map.retain(|_, v| !v.is_null());
        map.values_mut().for_each(drop_nulls);
    }
}

fn spend(writes: &mut usize) -> bool {
    let left = *writes > 0;
    *writes = writes.saturating_sub(1);
    left
}

fn plain(parallelism: i64, completions: i64) -> Value {
    json!({"parallelism": parallelism, "completions": completions, "backoffLimit": 6, "completionMode": "NonIndexed",
           "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c"}]}}})
}

fn with(mut spec: Value, more: Value) -> Value {
    let more = more.as_object().unwrap().clone();
    spec.as_object_mut().unwrap().extend(more);
    spec
}

fn indexed(parallelism: i64, completions: i64) -> Value {
    with(plain(parallelism, completions), json!({"completionMode": "Indexed"}))
}

#[test]
fn runs_to_completion() {
    let mut world = World::new(plain(2, 3));
    world.settle();
    assert_eq!(
        (world.counts(), world.job.status.start_time),
        ((2, 0, 0), Some(world.now))
    );
    world.end(0, 0);
    world.settle();
    assert_eq!(world.counts(), (2, 1, 0));
    world.end(1, 0);
    world.end(2, 0);
    world.settle();
    assert_eq!(world.counts(), (0, 3, 0));
    assert_eq!(
        world.said(),
        "SuccessCriteriaMet CompletionsReached: Reached expected number of succeeded pods\n\
         Complete CompletionsReached: Reached expected number of succeeded pods"
    );
    assert_eq!(world.job.status.completion_time, Some(world.now));
    assert!(world.pods.iter().all(|pod| pod.metadata.finalizers.is_empty()));
}

#[test]
fn without_completions_one_success_is_enough_when_all_have_ended() {
    let mut world = World::new(with(plain(3, 1), json!({"completions": null})));
    world.settle();
    world.end(0, 0);
    world.settle();
    assert_eq!(world.counts(), (2, 1, 0), "nobody new, and who runs may go on");
    world.end(1, 1);
    world.end(2, 0);
    world.settle();
    assert_eq!((world.counts(), world.job.is_complete()), ((0, 2, 1), true));
}

#[test]
fn failures_are_waited_for_and_limited() {
    let mut world = World::new(with(plain(1, 1), json!({"backoffLimit": 2})));
    world.settle();
    for (failures, wait) in [(1, 10), (2, 20)] {
        world.end(failures - 1, 1);
        world.settle();
        assert_eq!(world.counts(), (0, 0, failures as i64));
        assert_eq!(world.reconcile(usize::MAX), Next::After(Duration::from_secs(wait)));
        world.pass(wait as i64);
        world.settle();
        assert_eq!(world.counts(), (1, 0, failures as i64));
    }
    world.end(2, 1);
    world.settle();
    assert_eq!(world.counts(), (0, 0, 3));
    assert_eq!(
        world.said(),
        "FailureTarget BackoffLimitExceeded: Job has reached the specified backoff limit\n\
         Failed BackoffLimitExceeded: Job has reached the specified backoff limit"
    );
}

#[test]
fn restarts_in_place_count_too() {
    let template = json!({"template": {"spec": {"restartPolicy": "OnFailure"}}, "backoffLimit": 2});
    let mut world = World::new(with(plain(2, 2), template));
    world.settle();
    for (restarts, ended) in [(1, false), (2, true)] {
        world.pod(0, |pod| {
            pod.status.container_statuses = serde_json::from_value(json!([{"restartCount": restarts}])).unwrap();
        });
        world.settle();
        assert_eq!(condition::holds(&world.job.status.conditions, "FailureTarget"), ended);
    }
    assert_eq!((world.counts().0, world.job.status.terminating), (0, Some(2)));
    assert!(!world.job.is_finished(), "not before they are gone");
    world.reap();
    world.settle();
    assert_eq!((world.counts(), world.job.is_finished()), ((0, 0, 2), true));
}

#[test]
fn the_deadline_stops_all() {
    let mut world = World::new(with(plain(2, 2), json!({"activeDeadlineSeconds": 60})));
    world.settle();
    assert_eq!(world.reconcile(usize::MAX), Next::After(Duration::from_secs(60)));
    world.pass(60);
    world.settle();
    world.reap();
    world.settle();
    assert_eq!(world.counts(), (0, 0, 2));
    assert!(
        world
            .said()
            .contains("Failed DeadlineExceeded: Job was active longer than specified deadline")
    );
}

#[test]
fn suspended_and_resumed() {
    let mut world = World::new(with(plain(2, 4), json!({"suspend": true, "activeDeadlineSeconds": 60})));
    world.settle();
    assert_eq!((world.counts(), world.job.status.start_time), ((0, 0, 0), None));
    assert_eq!(world.said(), "Suspended JobSuspended: Job suspended");
    world.pass(1000);
    world.respec("suspend", json!(false));
    world.settle();
    assert_eq!((world.counts().0, world.job.status.start_time), (2, Some(world.now)));
    let resumed = condition::find(&world.job.status.conditions, "Suspended").unwrap();
    assert_eq!(
        (&*resumed.status, &*resumed.reason, &*resumed.message),
        ("False", "JobResumed", "Job resumed")
    );
    world.end(0, 0);
    world.settle();
    world.respec("suspend", json!(true));
    world.settle();
    assert_eq!(world.counts(), (0, 1, 0), "what was stopped does not count as failed");
    assert_eq!(
        (world.job.status.terminating, world.job.status.start_time),
        (Some(2), None)
    );
    world.reap();
    world.respec("suspend", json!(false));
    world.settle();
    assert_eq!(world.counts(), (2, 1, 0));
}

#[test]
fn fewer_pods_when_parallelism_goes_down() {
    let mut world = World::new(plain(4, 9));
    world.settle();
    world.pod(2, |pod| pod.status.phase = "Pending".to_string());
    world.respec("parallelism", json!(3));
    world.settle();
    assert_eq!((world.counts(), world.pods[2].metadata.is_deleted()), ((3, 0, 0), true));
    world.respec("parallelism", json!(0));
    world.settle();
    assert_eq!(world.counts(), (0, 0, 0));
}

#[test]
fn indexes_each_done_once() {
    let mut world = World::new(indexed(3, 5));
    world.settle();
    let index = |world: &World, pod: usize| world.pods[pod].metadata.annotation(INDEX).unwrap().to_string();
    assert_eq!((0..3).map(|i| index(&world, i)).collect::<Vec<_>>(), ["0", "1", "2"]);
    world.end(1, 0);
    world.pass(1);
    world.end(2, 1);
    world.settle();
    assert_eq!((world.counts(), &*world.job.status.completed_indexes), ((1, 1, 1), "1"));
    world.pass(10);
    world.settle();
    assert_eq!((index(&world, 3), index(&world, 4)), ("2".to_string(), "3".to_string()));
    // A second pod of an index, and one of an index that does not exist, have to go.
    for (n, index) in [("x", "0"), ("y", "7")] {
        let mut twin = (*world.pods[0]).clone();
        twin.metadata.uid = n.to_string();
        twin.metadata.annotations.insert(INDEX.to_string(), index.to_string());
        twin.status.phase = "Pending".to_string();
        world.pods.push(Arc::new(twin));
    }
    world.settle();
    let leaving: Vec<&str> = world
        .pods
        .iter()
        .filter(|p| p.metadata.is_deleted())
        .map(|p| &*p.metadata.uid)
        .collect();
    assert_eq!(leaving, ["x", "y"]);
    while !world.job.is_finished() {
        for pod in world.running() {
            world.end(pod, 0);
        }
        world.reap();
        world.settle();
    }
    assert_eq!(
        (world.counts(), &*world.job.status.completed_indexes),
        ((0, 5, 1), "0-4")
    );
}

#[test]
fn a_limit_for_each_index() {
    let mut world = World::new(with(
        indexed(2, 2),
        json!({"backoffLimitPerIndex": 1, "backoffLimit": 1000}),
    ));
    world.settle();
    world.end(0, 1);
    world.settle();
    assert_eq!(
        (world.counts(), world.job.status.failed_indexes.as_deref()),
        ((1, 0, 0), Some(""))
    );
    assert_eq!(
        world.pods[0].metadata.finalizers,
        [FINALIZER],
        "holds the number of failures until the next try"
    );
    assert_eq!(world.reconcile(usize::MAX), Next::After(Duration::from_secs(10)));
    world.pass(10);
    world.settle();
    assert_eq!(
        world.pods[2]
            .metadata
            .annotation("batch.kubernetes.io/job-index-failure-count"),
        Some("1")
    );
    assert_eq!(world.counts(), (2, 0, 1));
    world.end(2, 1);
    world.settle();
    assert_eq!(
        (world.counts(), world.job.status.failed_indexes.as_deref()),
        ((1, 0, 2), Some("0"))
    );
    world.end(1, 0);
    world.settle();
    assert_eq!((world.counts(), &*world.job.status.completed_indexes), ((0, 1, 2), "1"));
    assert!(world.said().ends_with("Failed FailedIndexes: Job has failed indexes"));

    let spec = json!({"backoffLimitPerIndex": 0, "maxFailedIndexes": 1, "backoffLimit": 1000});
    let mut world = World::new(with(indexed(3, 9), spec));
    world.settle();
    world.end(0, 1);
    world.settle();
    assert!(!world.job.is_finished());
    world.end(1, 1);
    world.settle();
    world.reap();
    world.settle();
    assert!(
        world.said().ends_with(
            "Failed MaxFailedIndexesExceeded: Job has exceeded the specified maximal number of failed indexes"
        )
    );
}

#[test]
fn a_failure_policy_rules() {
    let rules = json!([
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}},
        {"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [43]}},
        {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [44]}},
    ]);
    let policy =
        json!({"podFailurePolicy": {"rules": rules}, "backoffLimitPerIndex": 3, "podReplacementPolicy": "Failed"});
    let mut world = World::new(with(indexed(3, 4), policy));
    world.settle();
    world.end(0, 43);
    world.end(1, 44);
    world.settle();
    assert_eq!(
        (world.counts(), world.job.status.failed_indexes.as_deref()),
        ((2, 0, 1), Some("0"))
    );
    world.pass(10);
    world.settle();
    let again = world
        .pods
        .iter()
        .rev()
        .find(|p| p.metadata.annotation(INDEX) == Some("1"))
        .unwrap();
    assert_eq!(
        again
            .metadata
            .annotation("batch.kubernetes.io/job-index-ignored-failure-count"),
        Some("1")
    );
    assert_eq!(world.counts(), (3, 0, 1), "an ignored failure is not counted");
    // Deleted, but not ended: not replaced yet, and not failed.
    world.delete(2);
    world.settle();
    assert_eq!((world.counts(), world.job.status.terminating), ((2, 0, 1), Some(1)));
    world.end(2, 42);
    world.settle();
    world.reap();
    world.settle();
    assert!(
        world.said().ends_with(
            "Failed PodFailurePolicy: Container c for pod /p2 failed with exit code 42 matching FailJob rule at index 0"
        ),
        "{}",
        world.said()
    );
}

#[test]
fn enough_by_success_policy() {
    let policy = json!({"successPolicy": {"rules": [{"succeededIndexes": "0", "succeededCount": 1}]}});
    let mut world = World::new(with(indexed(3, 3), policy));
    world.settle();
    world.end(0, 0);
    world.settle();
    assert_eq!((world.counts(), world.job.status.terminating), ((0, 1, 0), Some(2)));
    assert_eq!(
        world.said(),
        "SuccessCriteriaMet SuccessPolicy: Matched rules at index 0"
    );
    world.reap();
    world.settle();
    assert!(
        world
            .said()
            .ends_with("Complete SuccessPolicy: Matched rules at index 0")
    );
    assert_eq!(world.counts(), (0, 1, 0), "what was stopped has not failed");
}

#[test]
fn a_thousand_pods_are_counted_in_parts() {
    let mut world = World::new(plain(1200, 1200));
    world.settle();
    assert_eq!(world.counts(), (1200, 0, 0));
    (0..1200).for_each(|pod| world.end(pod, 0));
    world.reconcile(1);
    assert_eq!(world.job.status.uncounted_terminated_pods.succeeded.len(), 500);
    world.settle();
    assert_eq!((world.counts(), world.job.is_complete()), ((0, 1200, 0), true));
}

#[derive(Clone, Debug)]
enum Step {
    Reconcile(usize),
    End(usize, i32),
    Delete(usize),
    Reap,
    Pass(i64),
    Suspend(bool),
    Parallelism(i64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0usize..12).prop_map(Step::Reconcile),
        4 => (0usize..8, prop_oneof![Just(0), Just(1), Just(44)]).prop_map(|(pod, code)| Step::End(pod, code)),
        1 => (0usize..8).prop_map(Step::Delete),
        1 => Just(Step::Reap),
        2 => (0i64..100).prop_map(Step::Pass),
        1 => any::<bool>().prop_map(Step::Suspend),
        1 => (0i64..6).prop_map(Step::Parallelism),
    ]
}

fn any_spec() -> impl Strategy<Value = Value> {
    let extras = prop_oneof![
        Just(json!({})),
        Just(json!({"backoffLimit": 1})),
        Just(json!({"podReplacementPolicy": "Failed"})),
        Just(json!({"podFailurePolicy": {"rules": [
            {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [44]}}]}})),
    ];
    let per_index = prop_oneof![
        Just(json!({})),
        Just(json!({"backoffLimitPerIndex": 1, "backoffLimit": 99}))
    ];
    (1i64..5, 1i64..7, any::<bool>(), extras, per_index).prop_map(
        |(parallelism, completions, is_indexed, extra, limit)| match is_indexed {
            true => with(with(indexed(parallelism, completions), extra), limit),
            false => with(plain(parallelism, completions), extra),
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Reconciles break off after any write (`World::write` checks each), pods do what they like: every pod that ended is counted
    /// once, and the Job comes to its end.
    #[test]
    fn each_pod_is_counted_once(spec in any_spec(), steps in prop::collection::vec(step(), 0..60)) {
        let mut world = World::new(spec);
        for step in steps {
            let running = world.running();
            let of = |n: usize| running.get(n % running.len().max(1)).copied();
            match step {
                Step::Reconcile(writes) => drop(world.reconcile(writes)),
                Step::End(pod, code) => if let Some(pod) = of(pod) { world.end(pod, code) },
                Step::Delete(pod) => if let Some(pod) = of(pod) { world.delete(pod) },
                Step::Reap => world.reap(),
                Step::Pass(seconds) => world.pass(seconds),
                Step::Suspend(on) => world.respec("suspend", json!(on)),
                Step::Parallelism(n) => world.respec("parallelism", json!(n)),
            }
            let wanted = world.job.spec.completions.unwrap();
            prop_assert!(world.job.status.active <= 5 && world.job.status.succeeded <= wanted + 5);
        }
        world.respec("suspend", json!(false));
        world.respec("parallelism", json!(2));
        for _ in 0..60 {
            for pod in world.running() {
                world.end(pod, 0);
            }
            world.reap();
            world.pass(601);
            world.reconcile(usize::MAX);
        }
        prop_assert!(world.job.is_finished(), "{:?}", world.job.status);
        prop_assert!(world.job.status.uncounted_terminated_pods.is_empty());
        prop_assert_eq!(&world.listed, &world.counted);
        if world.job.is_complete() {
            prop_assert!(world.job.status.succeeded >= world.job.spec.completions.unwrap());
        }
    }
}
