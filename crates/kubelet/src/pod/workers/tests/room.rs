//! Who is admitted, who goes for whom, and who may grow when there is room.

use super::*;
use crate::pod::testing::pod;

/// A pod of this name that asks for so much cpu.
fn named(name: &str, cpu: u32, priority: i32) -> Pod {
    let mut pod = pod(&format!("containers=a a.requests=cpu:{cpu} grace=1"));
    pod.metadata.name = Some(name.into());
    pod.metadata.uid = Some(name.into());
    pod.spec.as_mut().unwrap().priority = Some(priority);
    pod
}

fn again(pod: &Pod, cpu: u32) -> Arc<Pod> {
    let mut pod = pod.clone();
    pod.metadata.generation = pod.metadata.generation.map(|g| g + 1);
    let resources = pod.spec.as_mut().unwrap().containers[0].resources.as_mut().unwrap();
    let amount = orlop_api::types::meta::Quantity(cpu.to_string());
    resources.requests.as_mut().unwrap().insert("cpu".into(), amount);
    Arc::new(pod)
}

impl World {
    fn phase_of(&self, uid: &str) -> (String, String) {
        let status = self.workers.status(uid).unwrap_or_default();
        (status.phase.unwrap_or_default(), status.reason.unwrap_or_default())
    }

    /// The cpu a pod's container has, and the reason of its condition of this type.
    fn has(&self, uid: &str, condition: &str) -> (String, Option<String>) {
        let status = self.workers.status(uid).unwrap_or_default();
        let container = status.container_statuses.unwrap().remove(0);
        let cpu = container.resources.unwrap().requests.unwrap()["cpu"].0.clone();
        let conditions = status.conditions.unwrap_or_default();
        let found = conditions.into_iter().find(|c| c.type_ == condition);
        (cpu, found.map(|c| c.reason.unwrap_or_default()))
    }
}

#[tokio::test(start_paused = true)]
async fn a_critical_pod_pushes_others_off() {
    let world = World::new();
    world.has_cpus(4);
    world.pass(0.1).await;
    for (name, cpu) in [("small", 1), ("large", 2)] {
        world.workers.update(Arc::new(named(name, cpu, 0)));
    }
    world.pass(0.5).await;
    world.events();
    world.calls();
    world.workers.update(Arc::new(named("system", 3, 2_000_000_000)));
    world.pass(5.0).await;
    assert_eq!(world.phase_of("large"), ("Failed".into(), "Preempting".into()));
    assert_eq!(world.phase_of("small").0, "Running");
    assert_eq!(world.phase_of("system").0, "Running");
    let status = world.workers.status("large").unwrap();
    assert_eq!(
        status.message.as_deref(),
        Some("Preempted in order to admit critical pod")
    );
    let target = status
        .conditions
        .unwrap()
        .into_iter()
        .find(|c| c.type_ == "DisruptionTarget");
    let target = target.unwrap();
    assert_eq!(target.reason.as_deref(), Some("TerminationByKubelet"));
    assert_eq!(
        target.message.as_deref(),
        Some("Pod was preempted by Kubelet to accommodate a critical pod.")
    );
    let events = world.events();
    assert!(
        events.contains(&"large Preempting: Preempted in order to admit critical pod".to_string()),
        "{events:?}"
    );
    let calls = world.calls();
    let place = |text: &str| calls.iter().position(|call| call.starts_with(text)).unwrap();
    assert!(place("StopContainer") < place("RunPodSandbox"), "{calls:?}");
    // One that asks for more than others could free is refused, and nobody goes.
    world.workers.update(Arc::new(named("greedy", 5, 2_000_000_000)));
    world.pass(1.0).await;
    assert_eq!(
        world.phase_of("greedy"),
        ("Failed".into(), "UnexpectedAdmissionError".into())
    );
    assert_eq!(world.phase_of("small").0, "Running");
}

#[tokio::test(start_paused = true)]
async fn a_pod_without_its_devices_leaves_its_room() {
    let world = World::new();
    world.has_cpus(4);
    world.pass(0.1).await;
    world.fakes.allocator.0.lock().refuse_devices = Some(Rejection {
        reason: "UnexpectedAdmissionError".into(),
        message: "none left".into(),
    });
    world.workers.update(Arc::new(named("first", 3, 0)));
    world.pass(0.5).await;
    let status = world.workers.status("first").unwrap();
    assert_eq!(status.reason.as_deref(), Some("UnexpectedAdmissionError"));
    assert_eq!(status.message.as_deref(), Some("Pod was rejected: none left"));
    // As upstream, nothing is said of containers that never were.
    assert_eq!((status.container_statuses, status.conditions), (None, None));
    world.fakes.allocator.0.lock().refuse_devices = None;
    world.workers.update(Arc::new(named("second", 3, 0)));
    world.pass(0.5).await;
    assert_eq!(world.phase_of("second").0, "Running");
}

#[tokio::test(start_paused = true)]
async fn what_a_removed_pod_had_is_for_others_while_it_ends() {
    let world = World::new();
    world.has_cpus(4);
    world.pass(0.1).await;
    world.workers.update(Arc::new(named("first", 3, 0)));
    world.pass(0.5).await;
    assert!(world.fakes.allocator.0.lock().released.is_empty());
    world.workers.remove("first");
    assert!(world.fakes.allocator.0.lock().released.contains("first"));
    world.workers.update(Arc::new(named("second", 3, 0)));
    world.pass(0.5).await;
    assert_eq!(world.phase_of("second").0, "Running");
}

#[tokio::test(start_paused = true)]
async fn resizes_wait_for_room_by_priority() {
    let world = World::new();
    world.has_cpus(4);
    world.pass(0.1).await;
    let (low, high, other) = (named("low", 1, 1), named("high", 1, 9), named("other", 2, 5));
    for pod in [&low, &high, &other] {
        world.workers.update(Arc::new(pod.clone()));
    }
    world.pass(0.5).await;
    world.events();
    world.workers.update(again(&low, 2));
    world.pass(0.5).await;
    world.workers.update(again(&high, 2));
    world.pass(0.5).await;
    let deferred = || ("1".to_string(), Some("Deferred".to_string()));
    assert_eq!(world.has("low", "PodResizePending"), deferred());
    assert_eq!(world.has("high", "PodResizePending"), deferred());
    let events = world.events();
    assert!(
        events[0].starts_with("low ResizeDeferred: Pod resize OutOfcpu: "),
        "{events:?}"
    );
    // One cpu gets free: it is for the higher priority, though that asked later.
    world.workers.update(again(&other, 1));
    world.pass(0.5).await;
    assert_eq!(world.has("other", "PodResizePending"), ("1".into(), None));
    assert_eq!(world.has("high", "PodResizePending"), ("2".into(), None));
    assert_eq!(world.has("low", "PodResizePending"), deferred());
    // A pod goes: all of its room is for who waits.
    world.workers.update(deleted(&again(&other, 1), 1));
    world.workers.remove("other");
    world.pass(5.0).await;
    assert_eq!(world.has("low", "PodResizePending"), ("2".into(), None));
    assert_eq!(world.has("low", "PodResizeInProgress"), ("2".into(), None));
    let events = world.events();
    assert!(
        events.iter().any(|e| e.starts_with("low ResizeCompleted: ")),
        "{events:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn the_pod_as_a_whole_is_resized() {
    let world = World::new();
    world.has_cpus(4);
    world.pass(0.1).await;
    let with = |memory: &str, generation: i64| {
        let mut pod = pod("containers=a,b a.limits=memory:1Gi");
        pod.metadata.generation = Some(generation);
        let resources = serde_json::json!({"requests": {"cpu": "1"}, "limits": {"memory": memory}});
        pod.spec.as_mut().unwrap().resources = Some(orlop_api::types::from_value(resources).unwrap());
        Arc::new(pod)
    };
    world.workers.update(with("2Gi", 1));
    world.pass(0.5).await;
    assert_eq!(world.states(), "a=running b=running");
    world.calls();
    world.workers.update(with("3Gi", 2));
    world.pass(0.5).await;
    // Only the container without a limit of its own has the pod's.
    assert_eq!(world.calls(), ["UpdateContainerResources p/b"]);
    assert_eq!(world.fakes.environment.0.lock().cgroup_updates, 1);
    let status = world.status();
    assert_eq!(status.resources.unwrap().limits.unwrap()["memory"].0, "3Gi");
    assert!(
        status
            .conditions
            .unwrap()
            .iter()
            .all(|c| !c.type_.starts_with("PodResize"))
    );
    // A kubelet that starts later finds it so.
    let world = world.restarted().await;
    let mut shown = (*with("3Gi", 2)).clone();
    shown.status = Some(
        orlop_api::types::from_value(serde_json::json!({
            "phase": "Running", "startTime": "2026-01-01T00:00:00Z",
            "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "3Gi"}},
        }))
        .unwrap(),
    );
    world.workers.update(Arc::new(shown));
    world.pass(0.5).await;
    assert_eq!(world.calls(), [""; 0]);
}

/// Deleted without a time to end in, or left by a former kubelet process: it still runs, but nobody wants it.
#[tokio::test(start_paused = true)]
async fn what_nobody_wants_takes_no_room() {
    let world = World::new();
    world.has_cpus(4);
    world.pass(0.1).await;
    world.workers.update(Arc::new(named("old", 4, 0)));
    world.pass(0.5).await;
    assert_eq!(world.phase_of("old").0, "Running");
    world.workers.remove("old");
    world.workers.update(Arc::new(named("new", 4, 0)));
    world.pass(5.0).await;
    assert_eq!(world.phase_of("new").0, "Running");

    let world = world.restarted().await;
    world.has_cpus(4);
    world.workers.sources_ready();
    world.pass(0.1).await;
    world.workers.update(Arc::new(named("newer", 4, 0)));
    world.pass(5.0).await;
    assert_eq!(world.phase_of("newer").0, "Running");
}
