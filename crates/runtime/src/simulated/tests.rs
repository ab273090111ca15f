use std::collections::BTreeMap;
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use orlop_base::Clock;

use super::*;
use crate::{Code, Runtime};

fn clock() -> Clock {
    Clock::manual("2026-01-02T03:04:05Z".parse().unwrap())
}

fn sandbox_config(name: &str, annotations: &[(&str, &str)]) -> PodSandboxConfig {
    PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: name.to_string(),
            namespace: "default".to_string(),
            uid: format!("uid-{name}"),
            attempt: 0,
        }),
        annotations: annotations
            .iter()
            .map(|(k, v)| (k.to_string(), v.to_string()))
            .collect(),
        labels: BTreeMap::from([("pod".to_string(), name.to_string())]),
        ..Default::default()
    }
}

fn container_config(name: &str, attempt: u32) -> ContainerConfig {
    ContainerConfig {
        metadata: Some(ContainerMetadata {
            name: name.to_string(),
            attempt,
        }),
        image: Some(ImageSpec {
            image: "busybox".to_string(),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// A pod with one container, started.
async fn start(runtime: &Simulated, pod: &str, annotations: &[(&str, &str)]) -> (String, String) {
    let config = sandbox_config(pod, annotations);
    let sandbox = runtime.run_pod_sandbox(config.clone(), "").await.unwrap();
    let container = runtime
        .create_container(&sandbox, container_config("main", 0), config)
        .await
        .unwrap();
    runtime.start_container(&container).await.unwrap();
    (sandbox, container)
}

async fn ended(runtime: &Simulated, container: &str) -> Option<(i32, String)> {
    let status = runtime.container_status(container).await.unwrap();
    (status.state() == ContainerState::Exited).then_some((status.exit_code, status.reason))
}

#[tokio::test]
async fn runs_for_as_long_as_told() {
    let clock = clock();
    let runtime = Simulated::for_tests(&clock);
    let told = [("orlop.io/run-for", "90s"), ("orlop.io/exit-code", "3")];
    let (sandbox, container) = start(&runtime, "a", &told).await;
    let mut events = runtime.events().await.unwrap();
    runtime.advance(Duration::from_secs(89));
    assert_eq!(ended(&runtime, &container).await, None);
    assert!(events.next().now_or_never().is_none());

    runtime.advance(Duration::from_secs(2));
    let event = events.next().await.unwrap();
    assert_eq!(
        event,
        Event {
            sandbox: Some(sandbox),
            container: container.clone()
        }
    );
    assert_eq!(ended(&runtime, &container).await, Some((3, "Error".to_string())));
    let status = runtime.container_status(&container).await.unwrap();
    assert_eq!(
        status.finished_at - status.started_at,
        90_000_000_000,
        "not when somebody looked"
    );
}

#[tokio::test]
async fn waits_for_the_clock_when_stopping() {
    let runtime = Simulated::for_tests(&clock());
    let (_, slow) = start(&runtime, "slow", &[("orlop.io/stop-delay", "20s")]).await;
    let (_, stubborn) = start(&runtime, "stubborn", &[("orlop.io/stop-delay", "1h")]).await;
    let grace = Duration::from_secs(30);
    let mut stops = std::pin::pin!(futures::future::join(
        runtime.stop_container(&slow, grace),
        runtime.stop_container(&stubborn, grace)
    ));
    assert!(stops.as_mut().now_or_never().is_none());
    runtime.advance(Duration::from_secs(20));
    assert!(stops.as_mut().now_or_never().is_none());
    assert_eq!(ended(&runtime, &slow).await, Some((143, "Error".to_string())));
    runtime.advance(Duration::from_secs(10));
    assert!(stops.now_or_never().is_some());
    assert_eq!(ended(&runtime, &stubborn).await, Some((137, "Error".to_string())));
    runtime.stop_container(&slow, grace).await.unwrap();
    runtime.stop_container("nobody", grace).await.unwrap();
}

#[tokio::test]
async fn ends_by_itself_on_the_systems_clock() {
    let runtime = Simulated::new(Options::default());
    let mut events = runtime.events().await.unwrap();
    let (_, container) = start(&runtime, "a", &[("orlop.io/run-for", "20ms")]).await;
    for _ in 0..3 {
        // The sandbox, the start, the end.
        events.next().await.unwrap();
    }
    assert_eq!(ended(&runtime, &container).await, Some((0, "Completed".to_string())));
}

#[tokio::test]
async fn out_of_memory_by_script_or_by_limit() {
    let runtime = Simulated::for_tests(&clock());
    let (_, told) = start(&runtime, "told", &[]).await;
    runtime.oom("default/told/main");
    assert_eq!(ended(&runtime, &told).await, Some((137, "OOMKilled".to_string())));

    let config = sandbox_config("greedy", &[("orlop.io/memory", "65Mi")]);
    let sandbox = runtime.run_pod_sandbox(config.clone(), "").await.unwrap();
    let mut container = container_config("main", 0);
    container.linux.get_or_insert_default().resources = Some(LinuxContainerResources {
        memory_limit_in_bytes: 64 << 20,
        ..Default::default()
    });
    let greedy = runtime.create_container(&sandbox, container, config).await.unwrap();
    runtime.start_container(&greedy).await.unwrap();
    assert_eq!(ended(&runtime, &greedy).await, Some((137, "OOMKilled".to_string())));
}

#[tokio::test]
async fn faults_holds_and_the_calls_in_order() {
    let runtime = Simulated::for_tests(&clock());
    runtime.fail_next(Kind::RunPodSandbox, Error::new(Code::Other, "no network"));
    let refused = runtime.run_pod_sandbox(sandbox_config("a", &[]), "").await.unwrap_err();
    assert_eq!(refused.message, "no network");

    let hold = runtime.hold(Kind::StartContainer);
    let mut held = Box::pin(start(&runtime, "a", &[]));
    assert!(held.as_mut().now_or_never().is_none());
    start_of_another_kind_goes_on(&runtime).await;
    drop(hold);
    let (sandbox, container) = held.await;
    runtime.remove_container(&container).await.unwrap();
    runtime.stop_pod_sandbox(&sandbox).await.unwrap();

    let calls: Vec<String> = runtime.take_calls().iter().map(ToString::to_string).collect();
    assert_eq!(
        calls,
        [
            "RunPodSandbox default/a",
            "RunPodSandbox default/a",
            "CreateContainer default/a/main",
            "StartContainer default/a/main",
            "RunPodSandbox default/b",
            "RemoveContainer default/a/main",
            "StopPodSandbox default/a",
        ]
    );
    assert_eq!(runtime.count(Kind::RunPodSandbox), 3);
    assert!(runtime.take_calls().is_empty());
}

async fn start_of_another_kind_goes_on(runtime: &Simulated) {
    runtime.run_pod_sandbox(sandbox_config("b", &[]), "").await.unwrap();
}

#[tokio::test]
async fn sandboxes_have_addresses_and_take_their_containers_along() {
    let runtime = Simulated::for_tests(&clock());
    runtime.update_runtime_config("10.9.0.0/24,fd00:9::/64").await.unwrap();
    let (sandbox, container) = start(&runtime, "a", &[]).await;
    let network = runtime.pod_sandbox_status(&sandbox).await.unwrap().network.unwrap();
    assert_eq!(network.ip, "10.9.0.2");
    assert_eq!(
        network.additional_ips,
        [PodIP {
            ip: "fd00:9::2".to_string()
        }]
    );
    assert!(
        runtime.run_pod_sandbox(sandbox_config("a", &[]), "").await.is_err(),
        "the name is taken"
    );

    runtime.stop_pod_sandbox(&sandbox).await.unwrap();
    assert_eq!(ended(&runtime, &container).await, Some((137, "Error".to_string())));
    let none_ready = PodSandboxFilter {
        state: Some(PodSandboxStateValue {
            state: PodSandboxState::Ready.into(),
        }),
        ..Default::default()
    };
    assert!(runtime.list_pod_sandboxes(none_ready).await.unwrap().is_empty());
    runtime.remove_pod_sandbox(&sandbox).await.unwrap();
    runtime.remove_pod_sandbox(&sandbox).await.unwrap();
    assert!(
        runtime
            .list_containers(ContainerFilter::default())
            .await
            .unwrap()
            .is_empty()
    );
    assert!(runtime.container_status(&container).await.unwrap_err().is_not_found());
    assert!(runtime.pod_sandbox_status(&sandbox).await.unwrap_err().is_not_found());
}

#[tokio::test]
async fn commands_answer_by_script() {
    let runtime = Simulated::for_tests(&clock());
    let (_, container) = start(&runtime, "a", &[("orlop.io/exec-exit-code", "7")]).await;
    let ask = || runtime.exec_sync(&container, vec!["true".to_string()], None);
    assert_eq!(ask().await.unwrap().exit_code, 7);
    runtime.on_exec("main", |command| {
        let stdout = command.join(" ").into_bytes();
        Ok(ExecSyncResponse {
            stdout,
            ..Default::default()
        })
    });
    assert_eq!(ask().await.unwrap().stdout, b"true");
    runtime.exit(&container, 0);
    assert_eq!(
        ask().await.unwrap_err().message,
        "container is in CONTAINER_EXITED state"
    );
}

#[tokio::test]
async fn annotations_make_steps_fail() {
    let runtime = Simulated::for_tests(&clock());
    let bad_sandbox = sandbox_config("a", &[("orlop.io/fail-sandbox", "no network today")]);
    let message = runtime.run_pod_sandbox(bad_sandbox, "").await.unwrap_err().message;
    assert_eq!(message, "no network today");

    let config = sandbox_config(
        "b",
        &[
            ("orlop.io/fail-create.one", "no such file"),
            ("orlop.io/fail-start.two", "exec format error"),
        ],
    );
    let sandbox = runtime.run_pod_sandbox(config.clone(), "").await.unwrap();
    let create = |name| runtime.create_container(&sandbox, container_config(name, 0), config.clone());
    assert_eq!(create("one").await.unwrap_err().message, "no such file");
    let two = create("two").await.unwrap();
    assert_eq!(
        runtime.start_container(&two).await.unwrap_err().message,
        "exec format error"
    );
    assert_eq!(ended(&runtime, &two).await, Some((128, "StartError".to_string())));
}

#[tokio::test]
async fn images_are_there_once_pulled() {
    let runtime = Simulated::for_tests(&clock());
    let spec = |name: &str| ImageSpec {
        image: name.to_string(),
        ..Default::default()
    };
    assert_eq!(runtime.image_status(&spec("busybox")).await.unwrap(), None);
    let id = runtime
        .pull_image(spec("busybox"), None, PodSandboxConfig::default())
        .await
        .unwrap();
    let image = runtime.image_status(&spec(&id)).await.unwrap().unwrap();
    assert_eq!(image.repo_tags, ["docker.io/library/busybox:latest"]);
    assert_eq!(image.repo_digests, [format!("docker.io/library/busybox@{id}")]);
    assert_eq!(
        runtime
            .image_status(&spec("docker.io/library/busybox:latest"))
            .await
            .unwrap(),
        Some(image)
    );
    runtime.remove_image(&spec("busybox")).await.unwrap();
    assert!(runtime.list_images().await.unwrap().is_empty());
}

#[tokio::test]
async fn usage_grows_with_time() {
    let runtime = Simulated::for_tests(&clock());
    let told = [("orlop.io/cpu", "500m"), ("orlop.io/memory", "10Mi")];
    let (sandbox, container) = start(&runtime, "a", &told).await;
    runtime.advance(Duration::from_secs(10));
    let stats = runtime.container_stats(&container).await.unwrap();
    assert_eq!(
        stats.cpu.unwrap().usage_core_nano_seconds,
        Some(UInt64Value { value: 5_000_000_000 })
    );
    let pods = runtime
        .list_pod_sandbox_stats(PodSandboxStatsFilter::default())
        .await
        .unwrap();
    assert_eq!(pods[0].attributes.as_ref().unwrap().id, sandbox);
    let memory = pods[0].linux.as_ref().unwrap().memory.clone().unwrap();
    assert_eq!(memory.working_set_bytes, Some(UInt64Value { value: 10 << 20 }));
}

#[tokio::test]
async fn writes_logs_where_asked() {
    let directory = tempfile::tempdir().unwrap();
    let runtime = Simulated::new(Options {
        clock: clock(),
        logs: true,
        ..Options::default()
    });
    let config = PodSandboxConfig {
        log_directory: directory.path().display().to_string(),
        ..sandbox_config("a", &[("orlop.io/log", "hello\nthere")])
    };
    let sandbox = runtime.run_pod_sandbox(config.clone(), "").await.unwrap();
    let container = ContainerConfig {
        log_path: "main/0.log".to_string(),
        ..container_config("main", 0)
    };
    let id = runtime.create_container(&sandbox, container, config).await.unwrap();
    runtime.start_container(&id).await.unwrap();
    let path = runtime.container_status(&id).await.unwrap().log_path;
    let text = std::fs::read_to_string(path).unwrap();
    assert_eq!(
        text,
        "2026-01-02T03:04:05Z stdout F hello\n2026-01-02T03:04:05Z stdout F there\n"
    );
}
