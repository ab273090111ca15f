//! What goes wrong, and goes on when the cause has gone.

use orlop_runtime::simulated::Kind as Call;
use orlop_runtime::{Code, Error};

use super::*;
use crate::pod::testing::pod;

fn error(message: &str) -> Error {
    Error::new(Code::Other, message)
}

#[tokio::test(start_paused = true)]
async fn each_failure_has_its_reason_and_passes() {
    let cases: &[(Call, &str, &str)] = &[
        (Call::CreateContainer, "CreateContainerError", "a Failed: Error: boom"),
        (Call::StartContainer, "RunContainerError", "a Failed: Error: boom"),
    ];
    for (call, reason, event) in cases {
        let world = World::new();
        world.pass(0.1).await;
        world.runtime.fail_next(*call, error("boom"));
        world.workers.update(Arc::new(pod("containers=a,b")));
        world.pass(1.0).await;
        assert_eq!(world.states(), format!("a=waiting({reason}) b=running"));
        assert!(world.events().iter().any(|e| e == event));
        assert_eq!(world.phase(), "Pending");
        world.pass(11.0).await;
        assert!(world.states().starts_with("a=running"), "{}", world.states());
        assert_eq!(world.phase(), "Running");
    }
}

#[tokio::test(start_paused = true)]
async fn config_image_mount_and_sandbox_failures() {
    let world = World::new();
    world.pass(0.1).await;
    world.fakes.environment.0.lock().refuse_mount =
        Some("MountVolume.SetUp failed for volume \"v\" : configmap \"c\" not found".into());
    world.workers.update(Arc::new(pod("containers=a")));
    world.pass(5.0).await;
    assert_eq!(world.states(), "a=waiting(ContainerCreating)");
    assert!(
        world
            .events()
            .iter()
            .all(|e| e.starts_with("p FailedMount: MountVolume.SetUp failed"))
    );
    assert_eq!(world.calls(), [""; 0]);
    world.fakes.environment.0.lock().refuse_mount = None;
    world.fakes.configurator.0.lock().image = Some(ContainerStartError {
        reason: "ErrImagePull".into(),
        message: "no such image".into(),
        retry_after: None,
    });
    world.runtime.fail_next(Call::RunPodSandbox, error("no network"));
    world.pass(11.0).await;
    assert!(
        world.events().contains(
            &"p FailedCreatePodSandBox: Failed to create pod sandbox: rpc error: code = Unknown desc = no network"
                .to_string()
        )
    );
    world.pass(11.0).await;
    assert_eq!(world.states(), "a=waiting(ErrImagePull)");
    *world.fakes.configurator.0.lock() = Refusals {
        image: None,
        config: Some("secret \"s\" not found".into()),
    };
    world.pass(11.0).await;
    assert_eq!(world.states(), "a=waiting(CreateContainerConfigError)");
    assert!(
        world
            .events()
            .contains(&"a Failed: Error: secret \"s\" not found".to_string())
    );
    world.fakes.configurator.0.lock().config = None;
    world.pass(11.0).await;
    assert_eq!(
        (world.states().as_str(), world.phase().as_str()),
        ("a=running", "Running")
    );
}

#[tokio::test(start_paused = true)]
async fn a_changed_pod_need_not_wait_for_the_retry() {
    let world = World::new();
    world.pass(0.1).await;
    let refusal = ContainerStartError {
        reason: "ErrImagePull".into(),
        message: "no".into(),
        retry_after: None,
    };
    world.fakes.configurator.0.lock().image = Some(refusal);
    world.workers.update(Arc::new(pod("containers=a")));
    world.pass(1.0).await;
    assert_eq!(world.states(), "a=waiting(ErrImagePull)");
    world.fakes.configurator.0.lock().image = None;
    world.workers.update(Arc::new(pod("containers=a a.image=other")));
    world.pass(1.0).await;
    assert_eq!(world.states(), "a=running");
}

#[tokio::test(start_paused = true)]
async fn a_stuck_pod_holds_up_nobody_and_can_be_deleted() {
    let world = World::new();
    world.pass(0.1).await;
    let hold = world.runtime.hold(Call::RunPodSandbox);
    let stuck = Arc::new(pod("containers=a"));
    world.workers.update(stuck.clone());
    world.pass(1.0).await;
    drop(hold);
    let hold = world.runtime.hold(Call::StartContainer);
    world.pass(1.0).await;
    let mut other = pod("containers=a");
    other.metadata.uid = Some("other".into());
    other.metadata.name = Some("q".into());
    world.workers.update(Arc::new(other));
    world.pass(1.0).await;
    drop(hold);
    world.pass(1.0).await;
    let status = world.workers.status("other").unwrap();
    assert_eq!(status.phase.as_deref(), Some("Running"));
    world.workers.update(deleted(&stuck, 1));
    world.pass(1.0).await;
    assert_eq!(world.phase(), "Failed");
}

#[tokio::test(start_paused = true)]
async fn a_dead_sandbox_is_replaced() {
    let world = World::new();
    world.pass(0.1).await;
    world.workers.update(Arc::new(pod("init=i containers=a")));
    world.pass(1.0).await;
    world.calls();
    world.events();
    world.runtime.kill_sandbox("ns/p");
    world.pass(2.0).await;
    let calls = world.calls();
    let starts: Vec<&String> = calls
        .iter()
        .filter(|c| c.starts_with("Start") || c.starts_with("Run"))
        .collect();
    assert_eq!(
        starts,
        ["RunPodSandbox p", "StartContainer p/i", "StartContainer p/a"],
        "{calls:?}"
    );
    assert_eq!(
        world.events()[0],
        "p SandboxChanged: Pod sandbox changed, it will be killed and re-created."
    );
    assert_eq!(world.states(), "i=ended(0)#1 a=running#1");
}

#[tokio::test(start_paused = true)]
async fn a_new_agent_restarts_nothing() {
    let world = World::new();
    world.pass(0.1).await;
    let desired = Arc::new(pod("init=i,s* containers=a"));
    world.workers.update(desired.clone());
    world.pass(1.0).await;
    world.runtime.exit("ns/p/a", 1);
    world.pass(1.0).await;
    assert_eq!(world.states(), "i=ended(0) s=running a=running#1");
    let mut known = (*desired).clone();
    known.status = Some(world.status());
    world.calls();
    let world = world.restarted().await;
    world.workers.update(Arc::new(known.clone()));
    world.workers.sources_ready();
    world.pass(100.0).await;
    assert_eq!(world.calls(), [""; 0]);
    assert_eq!(world.states(), "i=ended(0) s=running a=running#1");
    assert_eq!(world.status().start_time, known.status.as_ref().unwrap().start_time);
    assert_eq!(world.status(), known.status.clone().unwrap());
}

#[tokio::test(start_paused = true)]
async fn what_no_source_has_is_ended() {
    let world = World::new();
    world.pass(0.1).await;
    world.workers.update(Arc::new(pod("containers=a,b")));
    world.pass(1.0).await;
    let world = world.restarted().await;
    world.calls();
    world.pass(5.0).await;
    assert_eq!(world.calls(), [""; 0]);
    world.workers.sources_ready();
    world.pass(5.0).await;
    let calls = world.calls();
    assert_eq!(calls.iter().filter(|c| c.starts_with("Stop")).count(), 3, "{calls:?}");
    assert_eq!(calls.iter().filter(|c| c.starts_with("Remove")).count(), 3, "{calls:?}");
    assert!(world.workers.pods().is_empty() && world.fakes.environment.0.lock().held.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_is_away_is_waited_for() {
    let world = World::new();
    world.pass(0.1).await;
    let desired = Arc::new(pod("containers=a"));
    world.workers.update(desired.clone());
    world.pass(1.0).await;
    let away = || Some(Error::new(Code::Unavailable, "connection refused"));
    for call in [Call::ListContainers, Call::ListPodSandbox, Call::StopContainer] {
        world.runtime.fail_always(call, away());
    }
    world.runtime.end_events();
    world.workers.update(deleted(&desired, 5));
    let is_healthy = || world.fakes.metrics.is_pleg_healthy(world.clock.now());
    world.pass(30.0).await;
    assert_eq!((world.phase().as_str(), is_healthy()), ("Running", true));
    world.pass(180.0).await;
    assert!(!is_healthy(), "no successful relist for three minutes");
    for call in [Call::ListContainers, Call::ListPodSandbox, Call::StopContainer] {
        world.runtime.fail_always(call, None);
    }
    world.pass(15.0).await;
    assert_eq!((world.phase().as_str(), is_healthy()), ("Failed", true));
}

#[tokio::test(start_paused = true)]
async fn a_static_pod_waits_for_its_predecessor() {
    let world = World::new();
    world.pass(0.1).await;
    world
        .workers
        .update(annotated(pod("static containers=a"), &[("stop-delay", "3s")]));
    world.pass(1.0).await;
    let mut next = pod("static containers=a a.image=new");
    next.metadata.uid = Some("uid2".into());
    world.workers.update(Arc::new(next));
    world.workers.remove("uid");
    world.pass(1.0).await;
    assert!(world.workers.status("uid2").is_none());
    world.pass(4.0).await;
    assert_eq!(world.workers.status("uid2").unwrap().phase.as_deref(), Some("Running"));
    assert!(world.workers.status("uid").is_none());
}

#[tokio::test(start_paused = true)]
async fn what_happens_while_the_events_are_broken_is_soon_found() {
    let world = World::new();
    world.pass(0.1).await;
    world.workers.update(Arc::new(pod("containers=a")));
    world.pass(1.0).await;
    // Events were heard, so the next relist is far away.
    world.runtime.end_events();
    world.runtime.exit("ns/p/a", 1);
    world.pass(3.0).await;
    assert_eq!(world.states(), "a=running#1");
    world.runtime.exit("ns/p/a", 1);
    world.pass(1.0).await;
    assert_eq!(world.states(), "a=waiting(CrashLoopBackOff)#1");
}
