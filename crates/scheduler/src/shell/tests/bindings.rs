//! Bindings that fail, one way after the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;

use super::server::Fault;
use super::{Calls, Notes, Scheduler, World};
use crate::cluster::Cluster;
use crate::cluster::node::NodeInfo;
use crate::cluster::pod::PodInfo;
use crate::framework::points::{Plugin, PreBind, Progress, Write};

const CONFLICT: &str =
    "Operation cannot be fulfilled on pods/binding \"p\": pod p is already assigned to node \"elsewhere\"";

/// How the first binding fails, what is told of it, and how long the pod waits at least before it is tried again.
struct Case {
    fault: Fault,
    told: &'static str,
    after: Duration,
}

fn refused(code: u16, reason: &'static str, message: &'static str, told: &'static str) -> Case {
    Case {
        fault: Fault::Refuse(code, reason, message),
        told,
        after: Duration::from_secs(1),
    }
}

#[tokio::test(start_paused = true)]
async fn a_binding_that_fails_is_taken_back_and_tried_again() {
    let silent = "API server unavailable: no response within 30s";
    let cases = [
        refused(409, "Conflict", CONFLICT, CONFLICT),
        refused(404, "NotFound", "pods \"p\" not found", "pods \"p\" not found"),
        refused(500, "InternalError", "etcd is not well", "etcd is not well"),
        refused(503, "ServiceUnavailable", "not now", "not now"),
        refused(422, "Invalid", "target: wrong", "target: wrong"),
        Case {
            fault: Fault::Silence,
            told: silent,
            after: Duration::from_secs(31),
        },
    ];
    for case in cases {
        let world = World::with_nodes(&["a"]);
        let scheduler = world.schedule();
        world.server.fail_binding(case.fault);
        world.server.add_pod("p", "3");
        let took = world.until_bound("p").await;
        // A second of back-off, as for any first failure.
        assert!(
            took >= case.after && took < case.after + Duration::from_secs(2),
            "{}: {took:?}",
            case.told
        );
        assert_eq!(world.server.asked().len(), 2, "{}", case.told);
        world.assert_bound_once(&["p"]);

        let told = format!("running Bind plugin \"DefaultBinder\": {}", case.told);
        assert_eq!(world.server.conditions("p"), [format!("SchedulerError: {told}")]);
        let scheduled = || world.server.events().len() == 2;
        world.until("events are written", scheduled).await;
        let events = [
            format!("FailedScheduling: {told}"),
            "Scheduled: Successfully assigned default/p to a".to_string(),
        ];
        assert_eq!(world.server.events(), events);

        let calls = [
            "First reserves a for p",
            "Second reserves a for p",
            "Second gives a of p back",
            "First gives a of p back",
            "First reserves a for p",
            "Second reserves a for p",
        ];
        assert_eq!(scheduler.calls(), calls, "{}", case.told);
        world.until("nothing is assumed", || scheduler.assumed() == 0.0).await;
        let attempts = |result: &str| {
            let labels = format!("{{profile=\"default-scheduler\",result=\"{result}\"}}");
            scheduler.figure(&format!("scheduler_schedule_attempts_total{labels}"))
        };
        assert_eq!((attempts("error"), attempts("scheduled")), (1.0, 1.0));
    }
}

/// What a failed binding held is free at once, for others.
#[tokio::test(start_paused = true)]
async fn others_take_the_place_of_a_pod_whose_binding_failed() {
    let world = World::with_nodes(&["a"]);
    let scheduler = world.schedule();
    world.server.fail_binding(Fault::Silence);
    world.server.add_pod("p", "3");
    world
        .until("the first is being bound", || world.server.asked().len() == 1)
        .await;
    world.server.add_pod("q", "2");
    let full = "Unschedulable: 0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: \
                0/1 nodes are available: 1 No preemption victims found for incoming pod.";
    world
        .until("the second finds no room", || world.server.conditions("q") == [full])
        .await;
    world.until_bound("q").await;
    world
        .until("the first has none now", || world.server.conditions("p").len() == 2)
        .await;
    assert_eq!(world.server.conditions("p")[1], full);
    // Neither is lost: room for the other, and it goes there.
    world.server.delete_pod("q");
    world.until_bound("p").await;
    world.assert_bound_once(&["p", "q"]);
    world.until("nothing is assumed", || scheduler.assumed() == 0.0).await;
}

/// Back-off doubles while bindings go on failing: 1, 2, 4, 8, 10, 10 … seconds.
#[tokio::test(start_paused = true)]
async fn failures_in_a_row_wait_longer_and_longer() {
    let world = World::with_nodes(&["a"]);
    world.schedule();
    for _ in 0..6 {
        world.server.fail_binding(Fault::Refuse(500, "InternalError", "no"));
    }
    world.server.add_pod("p", "1");
    for (n, least) in [(1, 0), (2, 1), (3, 2), (4, 4), (5, 8), (6, 10), (7, 10)] {
        let took = world
            .until("it is tried again", || world.server.asked().len() == n)
            .await;
        let range = Duration::from_secs(least)..Duration::from_secs(least + 2);
        assert!(range.contains(&took), "try {n}: {took:?}");
    }
    world.until_bound("p").await;
    world.assert_bound_once(&["p"]);
}

/// Nobody knows whether a binding that was not answered was done. The watch does.
#[tokio::test(start_paused = true)]
async fn a_binding_that_was_done_in_silence_is_not_repeated() {
    let world = World::with_nodes(&["a", "b"]);
    let scheduler = world.schedule();
    world.server.fail_binding(Fault::DoneInSilence);
    world.server.add_pod("p", "3");
    world.until_bound("p").await;
    world.pass(Duration::from_secs(120)).await;
    assert_eq!(world.server.asked().len(), 1);
    world.assert_bound_once(&["p"]);
    assert_eq!(scheduler.assumed(), 0.0);
    // Its node is known to be taken.
    world.server.add_pod("q", "3");
    world.until_bound("q").await;
    assert_ne!(world.server.node_of("p"), world.server.node_of("q"));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_vanishes_before_the_binding_is_done() {
    let world = World::with_nodes(&["a"]);
    let scheduler = world.schedule();
    let release = world.server.hold_binding();
    world.server.add_pod("p", "3");
    world
        .until("it is being bound", || world.server.asked().len() == 1)
        .await;
    world.server.delete_node("a");
    world.pass(Duration::from_secs(1)).await;
    // The API server does not look at nodes: the binding is done, and whoever collects garbage will find it.
    drop(release);
    world.until_bound("p").await;
    world.until("nothing is assumed", || scheduler.assumed() == 0.0).await;
    // The pod counts on its node should that come back.
    world.server.add_node("a", "4");
    world.server.add_pod("q", "2");
    let full = "Unschedulable: 0/1 nodes are available: 1 Insufficient cpu.";
    let told = || world.server.conditions("q").iter().any(|c| c.starts_with(full));
    world.until("the node is full", told).await;
    world.assert_bound_once(&["p"]);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_vanishes_and_a_binding_that_is_refused() {
    let world = World::with_nodes(&["a"]);
    world.schedule();
    world
        .server
        .fail_binding(Fault::Refuse(404, "NotFound", "nodes \"a\" not found"));
    world.server.add_pod("p", "3");
    world
        .until("it is being bound", || world.server.asked().len() == 1)
        .await;
    world.server.delete_node("a");
    world.pass(Duration::from_secs(5)).await;
    assert_eq!(
        world.server.conditions("p").last().unwrap(),
        "Unschedulable: no nodes available to schedule pods"
    );
    world.server.add_node("b", "4");
    world.until_bound("p").await;
    assert_eq!(world.server.bound(), [("p".to_string(), "b".to_string())]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_deleted_during_its_binding() {
    for recreated in [false, true] {
        let world = World::with_nodes(&["a"]);
        let scheduler = world.schedule();
        let release = world.server.hold_binding();
        world.server.add_pod("p", "3");
        world
            .until("it is being bound", || world.server.asked().len() == 1)
            .await;
        world.server.delete_pod("p");
        if recreated {
            // Of the same name, but not the same: what was under way is not for this one.
            world.server.add_pod("other", "1");
        }
        world.pass(Duration::from_secs(2)).await;
        drop(release);
        world.until("nothing is assumed", || scheduler.assumed() == 0.0).await;
        world.pass(Duration::from_secs(60)).await;
        assert_eq!(world.server.conditions("p"), [""; 0], "nobody is left to be told");
        let calls = scheduler.calls();
        assert!(calls.contains(&"First gives a of p back".to_string()), "{calls:?}");
        world.server.add_pod("q", "3");
        world.until_bound("q").await;
        world.assert_bound_once(if recreated { &["other", "q"] } else { &["q"] });
    }
}

/// A pod that changes while it is bound is tried again as it is now.
#[tokio::test(start_paused = true)]
async fn the_newest_version_is_tried_again() {
    let world = World::new();
    for name in ["a", "b"] {
        world
            .server
            .put_node(json!({"metadata": {"name": name, "labels": {"on": name}},
            "status": {"allocatable": {"cpu": "4", "pods": "110"}}}));
    }
    world.schedule();
    let release = world.server.hold_binding();
    world.server.add_pod("p", "3");
    world
        .until("it is being bound", || world.server.asked().len() == 1)
        .await;
    let other = if world.server.asked()[0].1 == "a" { "b" } else { "a" };
    world.server.put_pod(
        "p",
        json!({"nodeSelector": {"on": other}, "containers": [{"name": "c"}]}),
    );
    world.pass(Duration::from_secs(1)).await;
    world.server.go_away();
    drop(release);
    world.pass(Duration::from_secs(1)).await;
    world.server.come_back();
    world.until_bound("p").await;
    assert_eq!(world.server.bound(), [("p".to_string(), other.to_string())]);
}

/// Something must be there before a pod is bound, and takes its time.
struct Slow(Arc<AtomicBool>);

impl Plugin for Slow {
    fn name(&self) -> &'static str {
        "Slow"
    }

    fn pre_bind(&self) -> Option<&dyn PreBind> {
        Some(self)
    }
}

impl PreBind for Slow {
    fn writes(&self, pod: &PodInfo, _: &NodeInfo, _: &Cluster) -> Vec<Write> {
        vec![Write {
            method: "PATCH",
            path: format!("/wanted/{}", pod.key.name),
            body: json!({}),
        }]
    }

    fn progress(&self, _: &PodInfo, _: &NodeInfo, _: &Cluster) -> Progress {
        if self.0.load(Ordering::SeqCst) {
            Progress::Done
        } else {
            Progress::Waiting(Duration::from_secs(60))
        }
    }
}

fn slowly(world: &World) -> (Scheduler, Arc<AtomicBool>) {
    let (calls, done) = (Calls::default(), Arc::<AtomicBool>::default());
    let plugins: Vec<Box<dyn Plugin>> = vec![Box::new(Notes("Notes", calls.clone())), Box::new(Slow(done.clone()))];
    (world.schedule_with(plugins, calls, 1), done)
}

#[tokio::test(start_paused = true)]
async fn a_binding_waits_for_what_must_come_before_it() {
    let world = World::with_nodes(&["a"]);
    let (scheduler, done) = slowly(&world);
    world.server.add_pod("p", "1");
    world.pass(Duration::from_secs(30)).await;
    assert_eq!((world.server.asked().len(), scheduler.assumed()), (0, 1.0));
    done.store(true, Ordering::SeqCst);
    world.until_bound("p").await;
    // In vain: taken back, told, and tried again.
    done.store(false, Ordering::SeqCst);
    world.server.add_pod("q", "1");
    let told = "SchedulerError: binding volumes: context deadline exceeded";
    let took = world
        .until("its time is over", || world.server.conditions("q") == [told])
        .await;
    assert!(
        took >= Duration::from_secs(60) && took < Duration::from_secs(63),
        "{took:?}"
    );
    assert!(scheduler.calls().contains(&"Notes gives a of q back".to_string()));
    done.store(true, Ordering::SeqCst);
    world.until_bound("q").await;
    world.assert_bound_once(&["p", "q"]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_deleted_before_its_binding() {
    let world = World::with_nodes(&["a", "b"]);
    let (scheduler, done) = slowly(&world);
    world.server.add_pod("deleted", "1");
    world.server.add_pod("taken", "1");
    world.until("both wait", || scheduler.assumed() == 2.0).await;
    world.pass(Duration::from_secs(1)).await;
    world.server.delete_pod("deleted");
    assert_eq!(world.server.bind("taken", "b"), 201);
    let took = world.until("nothing is assumed", || scheduler.assumed() == 0.0).await;
    assert!(took < Duration::from_secs(2), "{took:?}");
    let back = scheduler.calls().iter().filter(|call| call.ends_with("back")).count();
    assert_eq!(back, 2, "{:?}", scheduler.calls());
    done.store(true, Ordering::SeqCst);
    world.pass(Duration::from_secs(120)).await;
    assert_eq!(world.server.asked().len(), 0);
    assert_eq!(world.server.events(), [""; 0]);
}
