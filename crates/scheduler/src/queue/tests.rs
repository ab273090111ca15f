//! The queue against small stories, and against a model that does the same with lists.

mod model;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use super::*;
use crate::cluster::pod::Pods;
use crate::framework::event::Actions;
use crate::model::{ObjectMeta, Pod, PodSpec, SchedulingGate, Toleration};

const GATES: &str = "SchedulingGates";
const HOLD: &str = "Hold";

fn registered() -> Vec<(&'static str, Vec<EventKind>)> {
    let kind = EventKind::new;
    vec![
        (GATES, vec![kind(Resource::OwnPod, Actions::GATES_ELIMINATED)]),
        (HOLD, vec![kind(Resource::Node, Actions::DELETE)]),
        (
            "A",
            vec![
                kind(Resource::Node, Actions::ADD.or(Actions::UPDATE_LABEL)),
                kind(Resource::AssignedPod, Actions::DELETE),
            ],
        ),
        (
            "B",
            vec![
                kind(Resource::AssignedPod, Actions::ADD.or(Actions::DELETE)),
                kind(Resource::OwnPod, Actions::UPDATE_TOLERATION),
            ],
        ),
        ("C", vec![kind(Resource::CsiNode, Actions::UPDATE)]),
        ("D", vec![]),
    ]
}

/// Gates pods that have gates or are held; hints by the first letter of the pod's name and the plugin.
#[derive(Default)]
struct Plugins {
    held: RefCell<BTreeSet<String>>,
    asked: Cell<usize>,
    say: Cell<Option<Hint>>,
}

impl Advice for Plugins {
    fn pre_enqueue(&self, pod: &PodInfo) -> Result<(), (&'static str, Rejection)> {
        self.asked.set(self.asked.get() + 1);
        let closed = Rejection::unresolvable("closed");
        if !pod.class.spec.scheduling_gates.is_empty() {
            Err((GATES, closed))
        } else if self.held.borrow().contains(&*pod.uid) {
            Err((HOLD, closed))
        } else {
            Ok(())
        }
    }

    fn hint(&self, plugin: &'static str, pod: &PodInfo, event: &Event) -> Hint {
        self.asked.set(self.asked.get() + 1);
        let sum = |text: &str| text.bytes().map(usize::from).sum::<usize>();
        let skip = (sum(plugin) + sum(&pod.uid) + event.actions.0 as usize).is_multiple_of(3);
        self.say.get().unwrap_or(if skip { Hint::Skip } else { Hint::Queue })
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Shape {
    priority: i32,
    gates: usize,
    tolerations: usize,
}

fn pod(uid: &str, shape: Shape) -> Arc<PodInfo> {
    Pods::default().observe(Pod {
        metadata: ObjectMeta {
            name: uid.into(),
            namespace: "default".into(),
            uid: uid.into(),
            ..Default::default()
        },
        spec: PodSpec {
            priority: Some(shape.priority),
            scheduling_gates: vec![SchedulingGate::default(); shape.gates],
            tolerations: vec![Toleration::default(); shape.tolerations],
            ..Default::default()
        },
        ..Default::default()
    })
}

fn plain(uid: &str) -> Arc<PodInfo> {
    pod(uid, Shape::default())
}

fn prio(uid: &str, priority: i32) -> Arc<PodInfo> {
    pod(
        uid,
        Shape {
            priority,
            ..Default::default()
        },
    )
}

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millisecond(ms).unwrap()
}

fn event(resource: Resource, actions: Actions) -> Event {
    Event {
        resource,
        actions,
        old: Object::None,
        new: Object::None,
    }
}

fn queue() -> (SchedulingQueue, Plugins) {
    let plugins = Plugins::default();
    plugins.say.set(Some(Hint::Queue));
    (SchedulingQueue::new(QueueConfig::default(), registered()), plugins)
}

fn popped(queue: &mut SchedulingQueue) -> Vec<String> {
    std::iter::from_fn(|| queue.pop())
        .map(|p| p.pod.uid.to_string())
        .collect()
}

fn place(queue: &SchedulingQueue, uid: &str) -> SubQueue {
    queue.get(uid).expect("it waits").0
}

const BY_A: AttemptFailure<'static> = AttemptFailure::Rejected {
    by: &["A"],
    pending: &[],
};

#[test]
fn pops_by_priority_then_by_time_then_in_order() {
    let (mut q, p) = queue();
    for (ms, pod) in [
        (5, prio("late", 1)),
        (1, plain("first")),
        (1, plain("second")),
        (0, plain("early")),
        (9, prio("high", 7)),
    ] {
        q.add(pod, at(ms), &p);
    }
    // A change of priority moves a pod that waits.
    q.update(prio("second", 3), at(10), &p);
    assert_eq!(popped(&mut q), ["high", "second", "late", "early", "first"]);
}

#[test]
fn a_rejected_pod_waits_for_an_event_and_its_backoff() {
    let (mut q, p) = queue();
    q.add(plain("x"), at(0), &p);
    let x = q.pop().unwrap();
    assert_eq!(q.failed(x, BY_A, at(400), &p), Some(SubQueue::Unschedulable));
    assert_eq!(q.on_event(&event(Resource::CsiNode, Actions::UPDATE), at(500), &p), 0);
    p.say.set(Some(Hint::Skip));
    assert_eq!(q.on_event(&event(Resource::Node, Actions::ADD), at(500), &p), 0);
    p.say.set(Some(Hint::Queue));
    assert_eq!(q.on_event(&event(Resource::Node, Actions::ADD), at(500), &p), 1);
    assert_eq!(place(&q, "x"), SubQueue::Backoff);
    // 0.4 s + 1 s, down to the second, and that second has to be over.
    assert_eq!(q.next_deadline(), Some(at(2000)));
    q.flush(at(1999), &p);
    assert_eq!(place(&q, "x"), SubQueue::Backoff);
    q.flush(at(2000), &p);
    assert_eq!(place(&q, "x"), SubQueue::Active);
    // Once the back-off is over, an event makes it active at once.
    let x = q.pop().unwrap();
    assert_eq!((x.attempts, x.unschedulable_count), (2, 1));
    q.failed(x, BY_A, at(2000), &p);
    assert_eq!(q.on_event(&event(Resource::Node, Actions::ADD), at(5000), &p), 1);
    assert_eq!(place(&q, "x"), SubQueue::Active);
    assert_eq!(q.incoming().of(SubQueue::Active, Trigger::BackoffComplete), 1);
    assert_eq!(
        q.incoming()
            .of(SubQueue::Unschedulable, Trigger::ScheduleAttemptFailure),
        2
    );
}

#[test]
fn idle_takes_from_backoff_but_not_after_errors() {
    let (mut q, p) = queue();
    for (uid, priority) in [("x", 0), ("y", 5), ("e", 9)] {
        q.add(prio(uid, priority), at(0), &p);
    }
    let tried: Vec<QueuedPod> = std::iter::from_fn(|| q.pop()).collect();
    for pod in tried {
        let outcome = if &*pod.pod.uid == "e" {
            AttemptFailure::Error
        } else {
            BY_A
        };
        q.failed(pod, outcome, at(100), &p);
    }
    q.on_event(&event(Resource::Any, Actions::UPDATE), at(100), &p);
    assert_eq!(q.counts().backoff, 3);
    assert_eq!(popped(&mut q), ["y", "x"]);
    q.flush(at(2000), &p);
    let e = q.pop().unwrap();
    assert_eq!((e.consecutive_errors, e.unschedulable_count), (1, 0));
    // The back-off of errors counts errors in a row; a rejection ends the row.
    q.failed(e, AttemptFailure::Error, at(2000), &p);
    assert_eq!(q.next_deadline(), Some(at(5000)));
    q.flush(at(5000), &p);
    let e = q.pop().unwrap();
    q.failed(e, BY_A, at(5000), &p);
    let e = q.get("e").unwrap().1;
    assert_eq!((e.consecutive_errors, e.unschedulable_count), (0, 1));
}

#[test]
fn events_while_in_flight_count() {
    let (mut q, p) = queue();
    q.add(plain("x"), at(0), &p);
    let x = q.pop().unwrap();
    q.on_event(&event(Resource::Node, Actions::ADD), at(0), &p);
    assert_eq!(q.failed(x, BY_A, at(0), &p), Some(SubQueue::Backoff));
    assert_eq!(q.in_flight.kept(), (0, 0));
    // Not of interest to its plugin.
    let x = q.pop().unwrap();
    q.on_event(&event(Resource::CsiNode, Actions::UPDATE), at(0), &p);
    assert_eq!(q.failed(x, BY_A, at(0), &p), Some(SubQueue::Unschedulable));
    // A pending plugin that says so saves the back-off.
    assert!(q.activate("x", at(0), &p));
    let x = q.pop().unwrap();
    let pending = AttemptFailure::Rejected {
        by: &["A"],
        pending: &["C"],
    };
    q.on_event(&event(Resource::Node, Actions::ADD), at(0), &p);
    q.on_event(&event(Resource::CsiNode, Actions::UPDATE), at(0), &p);
    assert_eq!(q.failed(x, pending, at(0), &p), Some(SubQueue::Active));
    // Being activated counts as well.
    let x = q.pop().unwrap();
    assert!(!q.activate("x", at(0), &p));
    assert_eq!(q.failed(x, BY_A, at(0), &p), Some(SubQueue::Backoff));
    // And so does what is no longer known.
    let x = q.pop().unwrap();
    for _ in 0..=QueueConfig::default().in_flight_events_max {
        q.on_event(&event(Resource::CsiNode, Actions::UPDATE), at(0), &p);
    }
    assert_eq!(q.failed(x, BY_A, at(0), &p), Some(SubQueue::Backoff));
}

#[test]
fn a_try_ends_with_the_newest_version_or_with_none() {
    let (mut q, p) = queue();
    q.add(plain("x"), at(0), &p);
    q.add(plain("gone"), at(1), &p);
    let (x, gone) = (q.pop().unwrap(), q.pop().unwrap());
    let tolerant = Shape {
        tolerations: 1,
        ..Default::default()
    };
    q.update(pod("x", tolerant), at(1), &p);
    q.delete("gone");
    let by_b = AttemptFailure::Rejected {
        by: &["B"],
        pending: &[],
    };
    assert_eq!(q.failed(x, by_b, at(1), &p), Some(SubQueue::Backoff));
    assert_eq!(q.get("x").unwrap().1.pod.class.spec.tolerations.len(), 1);
    assert_eq!(q.failed(gone, by_b, at(1), &p), None);
    assert!(!q.done("gone"));
    assert!(!q.done("x"), "it is not in flight");
}

#[test]
fn gated_pods_are_left_alone() {
    let (mut q, p) = queue();
    let gated = Shape {
        gates: 1,
        ..Default::default()
    };
    for i in 0..1000 {
        q.add(pod(&format!("g{i}"), gated), at(0), &p);
    }
    assert_eq!(q.counts().gated, 1000);
    p.asked.set(0);
    for _ in 0..1000 {
        q.on_event(&event(Resource::AssignedPod, Actions::DELETE), at(0), &p);
    }
    assert_eq!(p.asked.get(), 0);
    assert!(!q.activate("g7", at(0), &p));
    q.update(plain("g7"), at(0), &p);
    assert_eq!((place(&q, "g7"), q.counts().gated), (SubQueue::Active, 999));
    assert_eq!(popped(&mut q), ["g7"]);
}

#[test]
fn a_rejected_pod_can_become_gated() {
    let (mut q, p) = queue();
    q.add(plain("x"), at(0), &p);
    let x = q.pop().unwrap();
    p.held.borrow_mut().insert("x".into());
    q.failed(x, BY_A, at(0), &p);
    assert_eq!(place(&q, "x"), SubQueue::Unschedulable);
    q.on_event(&event(Resource::Node, Actions::ADD), at(0), &p);
    let (queue, x) = q.get("x").unwrap();
    assert_eq!((queue, x.gated_by), (SubQueue::Gated, Some(HOLD)));
    assert_eq!(q.names(x.rejected_by).collect::<Vec<_>>(), [HOLD, "A"]);
    // From now on only what may open the gate is of interest.
    p.held.borrow_mut().clear();
    q.on_event(&event(Resource::Node, Actions::ADD), at(0), &p);
    assert_eq!(place(&q, "x"), SubQueue::Gated);
    q.on_event(&event(Resource::Node, Actions::DELETE), at(0), &p);
    assert_eq!(place(&q, "x"), SubQueue::Backoff);
}

#[test]
fn who_waits_for_minutes_is_tried_again() {
    let (mut q, p) = queue();
    q.add(plain("x"), at(0), &p);
    let x = q.pop().unwrap();
    q.failed(x, BY_A, at(0), &p);
    let mut now = at(0);
    while place(&q, "x") == SubQueue::Unschedulable {
        now = q.next_deadline().unwrap();
        q.flush(now, &p);
    }
    // The first check after five minutes have passed.
    assert_eq!(now, at(330_000));
    let x = q.pop().unwrap();
    assert!(x.flushed);
    q.failed(x, BY_A, now, &p);
    assert!(!q.get("x").unwrap().1.flushed);
}

#[test]
fn without_backoff_nothing_waits() {
    let p = Plugins::default();
    p.say.set(Some(Hint::Queue));
    let config = QueueConfig {
        max_backoff: Duration::ZERO,
        ..Default::default()
    };
    let mut q = SchedulingQueue::new(config, registered());
    q.add(plain("x"), at(0), &p);
    let x = q.pop().unwrap();
    assert_eq!(q.failed(x, AttemptFailure::Error, at(0), &p), Some(SubQueue::Active));
    let x = q.pop().unwrap();
    q.failed(x, BY_A, at(0), &p);
    q.on_event(&event(Resource::Node, Actions::ADD), at(0), &p);
    assert_eq!(place(&q, "x"), SubQueue::Active);
}

#[test]
fn memory_is_given_back() {
    let (mut q, p) = queue();
    q.add(plain("slow"), at(0), &p);
    let slow = q.pop().unwrap();
    for i in 0..5000 {
        q.add(plain("x"), at(i), &p);
        if i % 2 == 0 {
            q.pop();
        }
        q.delete("x");
        q.on_event(&event(Resource::Node, Actions::ADD), at(i), &p);
    }
    let (events, starts) = q.in_flight.kept();
    assert_eq!(events, 5000, "`slow` may want to know");
    assert!(starts <= 1100, "{starts}");
    assert!(q.slots.len() <= 2);
    q.done(&slow.pod.uid);
    assert_eq!(q.in_flight.kept(), (0, 0));
    assert_eq!(q.counts(), Counts::default());
}

#[test]
fn its_own_place_given_back_is_no_news_to_a_pod() {
    let (mut q, p) = queue();
    p.say.set(Some(Hint::Queue));
    for uid in ["x", "y"] {
        q.add(plain(uid), at(0), &p);
        let popped = q.pop().unwrap();
        assert_eq!(q.failed(popped, BY_A, at(0), &p), Some(SubQueue::Unschedulable));
    }
    let released = Event {
        old: Object::Pod(plain("x")),
        ..event(Resource::AssignedPod, Actions::DELETE)
    };
    assert_eq!(q.on_event(&released, at(10), &p), 1);
    assert_eq!(place(&q, "x"), SubQueue::Unschedulable);
    assert_eq!(place(&q, "y"), SubQueue::Backoff);
}

#[test]
fn rejected_pods_are_counted_until_they_are_tried_again() {
    let (mut q, p) = queue();
    p.say.set(Some(Hint::Queue));
    let news = |q: &mut SchedulingQueue| -> Option<Vec<(&'static str, usize)>> {
        q.rejected().map(|all| all.map(|(plugin, _, n)| (plugin, n)).collect())
    };
    q.add(plain("x"), at(0), &p);
    assert_eq!(news(&mut q), None, "nobody rejected anything");
    let x = q.pop().unwrap();
    let both = AttemptFailure::Rejected {
        by: &["A"],
        pending: &["B"],
    };
    q.failed(x, both, at(0), &p);
    assert_eq!(news(&mut q), Some(vec![("A", 1), ("B", 1)]));
    assert_eq!(news(&mut q), None, "told once");
    // It may wait elsewhere meanwhile; it counts until it is tried.
    q.on_event(&event(Resource::Node, Actions::ADD), at(10), &p);
    assert_eq!(news(&mut q), Some(vec![("A", 1), ("B", 1)]));
    q.flush(at(9000), &p);
    q.pop().unwrap();
    assert_eq!(news(&mut q), Some(vec![("A", 0), ("B", 0)]));
    let gated = Shape {
        gates: 1,
        ..Shape::default()
    };
    q.add(pod("g", gated), at(0), &p);
    assert_eq!(news(&mut q), Some(vec![("A", 0), ("B", 0), (GATES, 1)]));
    q.delete("g");
    assert_eq!(news(&mut q), Some(vec![("A", 0), ("B", 0), (GATES, 0)]));
}
