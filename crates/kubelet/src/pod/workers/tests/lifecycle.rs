//! Pods from beginning to end.

use super::*;
use crate::pod::testing::pod;
use orlop_runtime::simulated::Kind as Call;

#[tokio::test(start_paused = true)]
async fn a_pod_starts_runs_and_is_deleted() {
    let world = World::new();
    world.pass(0.1).await;
    let desired = Arc::new(pod("containers=a,b"));
    world.workers.update(desired.clone());
    world.pass(0.3).await;
    assert_eq!(
        (world.phase().as_str(), world.states().as_str()),
        ("Running", "a=running b=running")
    );
    let started = [
        "RunPodSandbox p",
        "CreateContainer p/a",
        "StartContainer p/a",
        "CreateContainer p/b",
        "StartContainer p/b",
    ];
    assert_eq!(world.calls(), started);
    let told = [
        "a Created: Container created",
        "a Started: Container started",
        "b Created: Container created",
        "b Started: Container started",
    ];
    assert_eq!(world.events(), told);
    let status = world.status();
    assert_eq!(status.pod_ip.as_deref().map(|ip| ip.starts_with("10.244.")), Some(true));
    // Nothing happens: nothing is done.
    world.pass(200.0).await;
    assert_eq!(world.calls(), [""; 0]);
    world.workers.update(deleted(&desired, 30));
    world.pass(0.5).await;
    let mut calls = world.calls();
    calls[..2].sort();
    let ended = ["StopContainer p/a", "StopContainer p/b", "StopPodSandbox p"];
    assert_eq!(calls[..3], ended);
    assert_eq!(
        calls[3..].iter().filter(|c| c.starts_with("Remove")).count(),
        3,
        "{calls:?}"
    );
    assert!(world.fakes.environment.0.lock().held.is_empty());
    assert_eq!(world.phase(), "Failed");
    let mut events = world.events();
    events.sort();
    assert_eq!(
        events,
        ["a Killing: Stopping container a", "b Killing: Stopping container b"]
    );
    world.workers.remove("uid");
    world.pass(0.2).await;
    assert!(world.workers.pods().is_empty());
}

#[tokio::test(start_paused = true)]
async fn init_containers_run_one_after_the_other() {
    let world = World::new();
    world.pass(0.1).await;
    let notes = [("run-for.i", "2s"), ("run-for.j", "3s")];
    world.workers.update(annotated(pod("init=i,s*,j containers=a"), &notes));
    world.pass(1.0).await;
    assert_eq!(
        world.states(),
        "i=running s=waiting(PodInitializing) j=waiting(PodInitializing) a=waiting(PodInitializing)"
    );
    world.pass(2.0).await;
    assert_eq!(
        world.states(),
        "i=ended(0) s=running j=running a=waiting(PodInitializing)"
    );
    assert_eq!(world.phase(), "Pending");
    world.pass(3.0).await;
    assert_eq!(world.states(), "i=ended(0) s=running j=ended(0) a=running");
    assert_eq!(world.phase(), "Running");
    let starts: Vec<String> = world.calls().into_iter().filter(|c| c.starts_with("Start")).collect();
    assert_eq!(
        starts,
        [
            "StartContainer p/i",
            "StartContainer p/s",
            "StartContainer p/j",
            "StartContainer p/a"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn what_crashes_waits_longer_and_longer() {
    let world = World::new();
    world.pass(0.1).await;
    world
        .workers
        .update(annotated(pod("containers=a"), &[("run-for", "1s"), ("exit-code", "3")]));
    // Starts at 0; ends at 1, starts at once; ends at 2, starts 10 s later; ends at 13, starts 20 s later …
    world.pass(1.5).await;
    assert_eq!(world.states(), "a=running#1");
    world.pass(2.0).await;
    assert_eq!(world.states(), "a=waiting(CrashLoopBackOff)#1");
    world.pass(8.0).await;
    assert_eq!(world.states(), "a=waiting(CrashLoopBackOff)#1");
    world.pass(1.5).await;
    assert_eq!(world.states(), "a=running#2");
    world.pass(18.5).await;
    assert_eq!(world.states(), "a=waiting(CrashLoopBackOff)#2");
    world.pass(2.1).await;
    assert_eq!(world.states(), "a=running#3");
    let events = world.events();
    let back_offs = events
        .iter()
        .filter(|e| e.contains("BackOff: Back-off restarting failed container a in pod p_ns(uid)"));
    assert_eq!(back_offs.count(), 2, "{events:?}");
    assert_eq!(world.phase(), "Running");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_done_frees_what_it_holds_and_stays() {
    let world = World::new();
    world.pass(0.1).await;
    let desired = annotated(pod("restartPolicy=Never init=s* containers=a"), &[("run-for.a", "2s")]);
    world.workers.update(desired.clone());
    world.pass(1.0).await;
    assert_eq!(
        (world.phase().as_str(), world.fakes.environment.0.lock().held.len()),
        ("Running", 1)
    );
    world.pass(3.0).await;
    assert_eq!(
        (world.phase().as_str(), world.states().as_str()),
        ("Succeeded", "s=ended(143) a=ended(0)")
    );
    assert!(world.fakes.environment.0.lock().held.is_empty());
    assert!(!world.calls().iter().any(|c| c.starts_with("Remove")));
    // Its containers are there for their logs until it is deleted.
    world.workers.update(deleted(&desired, 0));
    world.pass(0.5).await;
    assert_eq!(world.calls().iter().filter(|c| c.starts_with("Remove")).count(), 3);
    assert_eq!(world.phase(), "Succeeded");
}

#[tokio::test(start_paused = true)]
async fn a_grace_period_can_be_made_shorter() {
    let world = World::new();
    world.pass(0.1).await;
    let desired = annotated(pod("grace=100 containers=a"), &[("stop-delay", "10m")]);
    world.workers.update(desired.clone());
    world.pass(1.0).await;
    world.workers.update(deleted(&desired, 100));
    world.pass(20.0).await;
    assert_eq!(world.states(), "a=running");
    world.workers.update(deleted(&desired, 5));
    world.pass(4.0).await;
    assert_eq!(world.states(), "a=running");
    world.pass(2.0).await;
    assert_eq!(world.states(), "a=ended(137)");
    assert_eq!(world.phase(), "Failed");
}

#[tokio::test(start_paused = true)]
async fn hooks_run_and_sidecars_go_last() {
    let world = World::new();
    world.pass(0.1).await;
    let desired = annotated(pod("init=s*,t* containers=a a.preStop=4"), &[("stop-delay.a", "2s")]);
    world.workers.update(desired.clone());
    world.pass(1.0).await;
    world.calls();
    world.workers.update(deleted(&desired, 30));
    world.pass(3.0).await;
    assert_eq!(world.calls(), [""; 0]);
    world.pass(2.0).await;
    assert_eq!(world.calls(), ["StopContainer p/a"]);
    world.pass(2.0).await;
    let stops: Vec<String> = world.calls().into_iter().filter(|c| c.starts_with("Stop")).collect();
    assert_eq!(stops, ["StopContainer p/t", "StopContainer p/s", "StopPodSandbox p"]);
}

#[tokio::test(start_paused = true)]
async fn probes_restart_and_hold_back() {
    let world = World::new();
    world.pass(0.1).await;
    world
        .workers
        .update(Arc::new(pod("containers=a a.liveness a.readiness a.startup")));
    world.pass(0.5).await;
    let ready = |world: &World| world.status().container_statuses.unwrap()[0].ready;
    assert!(!ready(&world));
    world.set_probe("a", |p| (p.startup, p.readiness) = (Some(true), Some(true)));
    world.pass(0.2).await;
    assert!(ready(&world));
    world.set_probe("a", |p| p.readiness = Some(false));
    world.pass(0.2).await;
    assert!(!ready(&world));
    assert_eq!(world.states(), "a=running");
    world.events();
    world.set_probe("a", |p| p.liveness = Some(false));
    world.pass(0.5).await;
    assert_eq!(world.states(), "a=running#1");
    let events = world.events();
    assert_eq!(
        events[0],
        "a Killing: Container a failed liveness probe, will be restarted"
    );
}

/// A container takes its time to end; what is said of the other one meanwhile does not wait for that.
#[tokio::test(start_paused = true)]
async fn readiness_is_told_while_another_container_is_ended() {
    let world = World::new();
    world.pass(0.1).await;
    world
        .workers
        .update(Arc::new(pod("containers=a,b a.liveness b.readiness")));
    world.pass(0.5).await;
    let ready = |world: &World| world.status().container_statuses.unwrap()[1].ready;
    world.set_probe("b", |p| p.readiness = Some(true));
    world.pass(0.2).await;
    assert!(ready(&world));
    let hold = world.runtime.hold(Call::StopContainer);
    world.set_probe("a", |p| p.liveness = Some(false));
    world.pass(0.2).await;
    world.set_probe("b", |p| p.readiness = Some(false));
    world.pass(0.2).await;
    assert!(!ready(&world));
    assert_eq!(world.states(), "a=running b=running");
    drop(hold);
    world.pass(0.5).await;
    assert!(!ready(&world));
    assert_eq!(world.states(), "a=running#1 b=running");
}

#[tokio::test(start_paused = true)]
async fn a_deadline_and_an_eviction_end_a_pod() {
    let world = World::new();
    world.pass(0.1).await;
    world.workers.update(Arc::new(pod("deadline=5 containers=a")));
    world.pass(4.0).await;
    assert_eq!(world.phase(), "Running");
    world.pass(2.0).await;
    let status = world.status();
    assert_eq!(
        (status.phase.as_deref(), status.reason.as_deref()),
        (Some("Failed"), Some("DeadlineExceeded"))
    );
    let message = "Pod was active on the node longer than the specified deadline";
    assert_eq!(status.message.as_deref(), Some(message));

    let world = World::new();
    world.pass(0.1).await;
    world.workers.update(Arc::new(pod("containers=a")));
    world.pass(1.0).await;
    let eviction = Eviction {
        reason: "Evicted".into(),
        message: "The node was low on resource: memory.".into(),
        grace_seconds: Some(0),
        condition: None,
    };
    world.workers.evict("uid", eviction);
    world.workers.freed("uid").await;
    world.pass(0.5).await;
    let status = world.status();
    assert_eq!(
        (status.phase.as_deref(), status.reason.as_deref()),
        (Some("Failed"), Some("Evicted"))
    );
}

#[tokio::test(start_paused = true)]
async fn resources_change_while_it_runs() {
    let world = World::new();
    world.has_cpus(4);
    world.pass(0.1).await;
    world.workers.update(Arc::new(pod("containers=a a.requests=cpu:1")));
    world.pass(0.5).await;
    world.calls();
    let cpu = |world: &World| {
        let status = world.status().container_statuses.unwrap().remove(0);
        status.resources.unwrap().requests.unwrap()["cpu"].0.clone()
    };
    let condition = |world: &World, type_: &str| world.status().conditions.unwrap().iter().any(|c| c.type_ == type_);
    world.workers.update(Arc::new(pod("containers=a a.requests=cpu:2")));
    world.pass(0.5).await;
    assert_eq!(world.calls(), ["UpdateContainerResources p/a"]);
    assert_eq!(cpu(&world), "2");
    let events: Vec<String> = world.events().into_iter().filter(|e| e.contains("Resize")).collect();
    assert!(
        events[0].starts_with("p ResizeStarted: Pod resize started: {\"containers\""),
        "{events:?}"
    );
    assert!(events[1].starts_with("p ResizeCompleted"), "{events:?}");
    // There is no room for that.
    world.workers.update(Arc::new(pod("containers=a a.requests=cpu:5")));
    world.pass(0.5).await;
    assert_eq!(
        (cpu(&world).as_str(), condition(&world, "PodResizePending")),
        ("2", true)
    );
    world
        .workers
        .update(Arc::new(pod("containers=a a.requests=cpu:3 a.resize=cpu")));
    world.pass(0.5).await;
    assert_eq!(
        (cpu(&world).as_str(), condition(&world, "PodResizePending")),
        ("3", false)
    );
    assert_eq!(world.states(), "a=running#1");
}

#[tokio::test(start_paused = true)]
async fn a_pod_without_room_is_rejected() {
    let world = World::new();
    world.has_cpus(1);
    world.pass(0.1).await;
    world.workers.update(Arc::new(pod("containers=a a.requests=cpu:2")));
    world.pass(0.5).await;
    let status = world.status();
    assert_eq!(
        (status.phase.as_deref(), status.reason.as_deref()),
        (Some("Failed"), Some("OutOfcpu"))
    );
    assert_eq!(world.calls(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn an_ephemeral_container_joins_and_ends() {
    let world = World::new();
    world.pass(0.1).await;
    world
        .workers
        .update(annotated(pod("containers=a"), &[("run-for.e", "2s")]));
    world.pass(0.5).await;
    world
        .workers
        .update(annotated(pod("containers=a ephemeral=e"), &[("run-for.e", "2s")]));
    world.pass(1.0).await;
    assert_eq!(world.states(), "a=running e=running");
    world.pass(60.0).await;
    assert_eq!(world.states(), "a=running e=ended(0)");
}

#[tokio::test(start_paused = true)]
async fn all_containers_start_over_on_a_rule() {
    let world = World::new();
    world.pass(0.1).await;
    let spec = "restartPolicy=Never init=i containers=a,b a.restartPolicy=Never a.rule=In:42:RestartAllContainers";
    world.workers.update(Arc::new(pod(spec)));
    world.pass(1.0).await;
    assert_eq!(world.states(), "i=ended(0) a=running b=running");
    world.calls();
    world.runtime.exit("ns/p/a", 42);
    world.pass(1.0).await;
    let calls = world.calls();
    let starts: Vec<&String> = calls.iter().filter(|c| c.starts_with("Start")).collect();
    assert_eq!(
        starts,
        ["StartContainer p/i", "StartContainer p/a", "StartContainer p/b"],
        "{calls:?}"
    );
    assert_eq!(world.phase(), "Running");
}
