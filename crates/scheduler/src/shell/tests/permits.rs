//! Permit: pods that wait for somebody's word between their node and their binding.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::{Calls, Notes, Scheduler, World};
use crate::cluster::node::NodeInfo;
use crate::cluster::pod::PodInfo;
use crate::framework::permit::WaitingPods;
use crate::framework::points::{Permission, Permit, Plugin};
use crate::framework::verdict::Rejection;

const WAIT: Duration = Duration::from_secs(60);

/// Lets pods whose name begins with `gang` go when there are as many as it takes, and asks nobody about others.
struct Gang {
    size: usize,
    waiting: Arc<Mutex<Option<WaitingPods>>>,
}

impl Plugin for Gang {
    fn name(&self) -> &'static str {
        "Gang"
    }

    fn permit(&self) -> Option<&dyn Permit> {
        Some(self)
    }
}

impl Permit for Gang {
    fn permit(&self, pod: &Arc<PodInfo>, _: &NodeInfo, waiting: &WaitingPods) -> Permission {
        *self.waiting.lock() = Some(waiting.clone());
        if pod.key.name.starts_with("no-") {
            return Permission::Reject(Rejection::unschedulable("not in this gang"));
        }
        if !pod.key.name.starts_with("gang") {
            return Permission::Allow;
        }
        let others = waiting.list();
        if others.len() + 1 < self.size {
            return Permission::Wait(WAIT);
        }
        for (other, _) in others {
            waiting.allow(&other.uid, "Gang");
        }
        Permission::Allow
    }
}

fn gang(world: &World, size: usize) -> (Scheduler, Arc<Mutex<Option<WaitingPods>>>) {
    let (calls, waiting) = (Calls::default(), Arc::default());
    let gang = Gang {
        size,
        waiting: Arc::clone(&waiting),
    };
    let plugins: Vec<Box<dyn Plugin>> = vec![Box::new(Notes("Notes", calls.clone())), Box::new(gang)];
    (world.schedule_with(plugins, calls, 1), waiting)
}

#[tokio::test(start_paused = true)]
async fn a_group_is_bound_together() {
    let world = World::with_nodes(&["a", "b"]);
    let (scheduler, _) = gang(&world, 3);
    world.server.add_pod("gang-1", "1");
    world.server.add_pod("gang-2", "1");
    world.server.add_pod("alone", "1");
    world.until_bound("alone").await;
    world.pass(Duration::from_secs(30)).await;
    world.assert_bound_once(&["alone"]);
    assert_eq!(scheduler.assumed(), 2.0, "their places are kept");
    world.server.add_pod("gang-3", "1");
    for pod in ["gang-1", "gang-2", "gang-3"] {
        world.until_bound(pod).await;
    }
    world.assert_bound_once(&["alone", "gang-1", "gang-2", "gang-3"]);
    assert!(
        scheduler.calls().iter().all(|call| !call.contains("back")),
        "{:?}",
        scheduler.calls()
    );
    let waits = "scheduler_permit_wait_duration_seconds_count{result=\"Success\"}";
    assert_eq!(scheduler.figure(waits), 2.0);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_waits_in_vain_is_unschedulable() {
    let world = World::with_nodes(&["a"]);
    let (scheduler, _) = gang(&world, 3);
    world.server.add_pod("gang-1", "3");
    world.until("it has a place", || scheduler.assumed() == 1.0).await;
    world.server.add_pod("rival", "3");
    let full = || {
        world
            .server
            .conditions("rival")
            .iter()
            .any(|c| c.contains("1 Insufficient cpu"))
    };
    world.until("the place is taken", full).await;
    let told = "Unschedulable: 0/1 nodes are available: 1 rejected due to timeout after waiting 1m0s at plugin Gang.";
    let took = world
        .until("its time is over", || {
            world.server.conditions("gang-1").first().is_some_and(|c| c == told)
        })
        .await;
    assert!(
        took > Duration::from_secs(55) && took < Duration::from_secs(62),
        "{took:?}"
    );
    assert_eq!(scheduler.calls()[1], "Notes gives a of gang-1 back");
    world.until_bound("rival").await;
    world.assert_bound_once(&["rival"]);
    let held = "scheduler_unschedulable_pods{plugin=\"Gang\",profile=\"default-scheduler\"}";
    world.pass(Duration::from_secs(1)).await;
    assert!(scheduler.figure(held) <= 1.0);
    let waits = "scheduler_permit_wait_duration_seconds_count{result=\"Unschedulable\"}";
    assert_eq!(scheduler.figure(waits), 1.0);
}

#[tokio::test(start_paused = true)]
async fn plugins_may_refuse_at_once_or_later() {
    let world = World::with_nodes(&["a", "b"]);
    let (scheduler, handle) = gang(&world, 9);
    world.server.add_pod("no-way", "1");
    let told = "Unschedulable: 0/1 nodes are available: 1 not in this gang.";
    world
        .until("refused at once", || world.server.conditions("no-way") == [told])
        .await;
    world.server.add_pod("gang-1", "1");
    world.until("it waits", || scheduler.assumed() == 1.0).await;
    let waiting = handle.lock().clone().unwrap();
    assert_eq!(waiting.list()[0].0.key.name.as_ref(), "gang-1");
    assert!(waiting.reject("uid-of-gang-1", "Gang", "the gang broke up"));
    let told = "Unschedulable: 0/1 nodes are available: 1 the gang broke up.";
    world
        .until("refused later", || world.server.conditions("gang-1") == [told])
        .await;
    let back = |pod: &str| {
        scheduler
            .calls()
            .iter()
            .any(|call| call.ends_with(&format!("of {pod} back")))
    };
    assert!(back("no-way") && back("gang-1"), "{:?}", scheduler.calls());
    world.assert_bound_once(&[]);
}

/// Deleted, bound by another, or without its node: what waits is cleared away.
#[tokio::test(start_paused = true)]
async fn what_waits_can_be_overtaken_by_events() {
    let world = World::with_nodes(&["a", "b"]);
    let (scheduler, handle) = gang(&world, 9);
    for pod in ["gang-1", "gang-2", "gang-3"] {
        world.server.add_pod(pod, "1");
    }
    world.until("they wait", || scheduler.assumed() == 3.0).await;
    world.server.delete_pod("gang-1");
    assert_eq!(world.server.bind("gang-2", "b"), 201);
    world.until("one is left", || scheduler.assumed() == 1.0).await;
    let waiting = handle.lock().clone().unwrap();
    let (pod, node) = waiting.list().remove(0);
    assert_eq!(pod.key.name.as_ref(), "gang-3");
    world.server.delete_node(&node);
    world.pass(Duration::from_secs(1)).await;
    assert!(waiting.allow("uid-of-gang-3", "Gang"));
    let gone = format!("SchedulerError: node {:?} is gone", &*node);
    world
        .until("it is told", || world.server.conditions("gang-3") == [gone.as_str()])
        .await;
    // It is tried again and waits again, on the other node.
    world.until("it waits again", || !waiting.list().is_empty()).await;
    assert_ne!(waiting.list()[0].1, node);
    assert!(waiting.allow("uid-of-gang-3", "Gang"));
    world.until_bound("gang-3").await;
    world.assert_bound_once(&["gang-2", "gang-3"]);
    let back = scheduler.calls().iter().filter(|call| call.contains("back")).count();
    assert_eq!(back, 3, "{:?}", scheduler.calls());
}

/// A more important pod takes the place of one that waits: no need to delete that one.
#[tokio::test(start_paused = true)]
async fn a_waiting_pod_can_be_preempted() {
    let world = World::with_nodes(&["a"]);
    let (scheduler, _) = gang(&world, 9);
    world.server.add_pod("gang-1", "3");
    world.until("it waits", || scheduler.assumed() == 1.0).await;
    let container = serde_json::json!({"name": "c", "resources": {"requests": {"cpu": "3"}}});
    world.server.put_pod(
        "urgent",
        serde_json::json!({"priority": 1000, "containers": [container]}),
    );
    world.until_bound("urgent").await;
    world.assert_bound_once(&["urgent"]);
    assert!(world.server.conditions("gang-1")[0].starts_with("SchedulerError: waiting on permit for pod: preempted"));
    assert!(scheduler.calls().contains(&"Notes gives a of gang-1 back".to_string()));
}
