//! Several schedulers for the same pods: the API server lets one of them win, the others notice.

use std::time::Duration;

use super::server::Fault;
use super::{Calls, World};

/// Both see the same pods at the same time and choose differently.
#[tokio::test(start_paused = true)]
async fn two_schedulers_that_pick_the_same_pods() {
    let world = World::with_nodes(&["a", "b", "c"]);
    let names: Vec<String> = (0..30).map(|i| format!("p{i:02}")).collect();
    for name in &names {
        world.server.add_pod(name, "400m");
    }
    let schedulers = [1, 2].map(|seed| world.schedule_with(vec![], Calls::default(), seed));
    for name in &names {
        world.until_bound(name).await;
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    world.assert_bound_once(&names);
    assert!(
        world.server.asked().len() > names.len(),
        "they did get in each other's way"
    );

    // Nobody goes on trying, and both know what is where: 30 × 400 m in 12 CPUs is all.
    world.pass(Duration::from_secs(30)).await;
    let asked = world.server.asked().len();
    world.pass(Duration::from_secs(120)).await;
    assert_eq!(world.server.asked().len(), asked, "the case is closed");
    for scheduler in &schedulers {
        assert_eq!(scheduler.assumed(), 0.0);
        assert_eq!(scheduler.figure("scheduler_cache_size{type=\"pods\"}"), 30.0);
        for queue in ["active", "backoff", "unschedulable", "gated"] {
            assert_eq!(
                scheduler.figure(&format!("scheduler_pending_pods{{queue={queue:?}}}")),
                0.0,
                "{queue}"
            );
        }
        assert_eq!(scheduler.figure("scheduler_inflight_events{event=\"PodPopped\"}"), 0.0);
    }
    let taken = |node: &str| world.server.bound().iter().filter(|(_, n)| n == node).count();
    let most = ["a", "b", "c"].map(taken);
    // Each saw only its own choices at first, so a node may have got more than it has room for, as in Kubernetes; but
    // pods that come later see the truth.
    assert_eq!(most.iter().sum::<usize>(), 30);
    world.server.add_pod("late", "4");
    world
        .until("no room for it", || !world.server.conditions("late").is_empty())
        .await;
}

/// The other's binding is seen before our own is refused: the pod must not be queued again.
#[tokio::test(start_paused = true)]
async fn a_pod_that_another_has_bound_is_left_alone() {
    let world = World::with_nodes(&["a", "b"]);
    let scheduler = world.schedule();
    let release = world.server.hold_binding();
    world.server.add_pod("p", "3");
    world
        .until("it is being bound", || world.server.asked().len() == 1)
        .await;
    let ours = world.server.asked()[0].1.clone();
    let other = if ours == "a" { "b" } else { "a" };
    assert_eq!(world.server.bind("p", other), 201);
    world.pass(Duration::from_secs(1)).await;
    drop(release);
    world.pass(Duration::from_secs(300)).await;
    assert_eq!(world.server.asked().len(), 1, "it is not tried again");
    assert_eq!(world.server.bound(), [("p".to_string(), other.to_string())]);
    let why = format!(
        "FailedScheduling: running Bind plugin \"DefaultBinder\": Operation cannot be fulfilled on pods/binding \"p\": \
         pod p is already assigned to node {other:?}"
    );
    assert_eq!(world.server.events(), [why]);
    assert_eq!(world.server.conditions("p"), [""; 0], "it is scheduled, after all");
    assert_eq!(scheduler.assumed(), 0.0);
    // Where it is counts, not where we wanted it.
    world.server.add_pod("q", "3");
    world.until_bound("q").await;
    assert_eq!(world.server.node_of("q"), Some(ours));
}

/// Refused first, seen afterwards.
#[tokio::test(start_paused = true)]
async fn a_pod_that_is_seen_to_be_bound_while_it_backs_off() {
    let world = World::with_nodes(&["a", "b"]);
    world.schedule();
    world.server.fail_binding(Fault::Refuse(
        409,
        "Conflict",
        "pod p is already assigned to node \"a\"",
    ));
    world.server.add_pod("p", "3");
    world
        .until("it was refused", || !world.server.conditions("p").is_empty())
        .await;
    assert_eq!(world.server.bind("p", "a"), 201);
    world.pass(Duration::from_secs(120)).await;
    assert_eq!(world.server.asked().len(), 1);
    world.assert_bound_once(&["p"]);
}
