//! Containers from creation to removal.

use std::time::Duration;

use orlop_runtime::cri::messages::*;
use orlop_runtime::{Code, Runtime};

use crate::support::*;

#[tokio::test]
async fn a_container_runs_and_its_exit_code_is_known() {
    let node = Node::start().await;
    let pod = node.run_pod("run").await;
    let status = node.runtime.pod_sandbox_status(&pod.id).await.unwrap();
    assert_eq!(status.state, PodSandboxState::Ready as i32);
    assert_eq!(status.network.unwrap().ip, "10.1.2.3");
    let script = "echo hello; hostname; cat /etc/hostname /etc/resolv.conf; echo $FROM $HOME; exit 7";
    let (status, output) = pod.run(container("c", script)).await;
    assert_eq!(output, "hello\nrun\nrun\nnameserver 10.0.0.10\nimage /root");
    assert_eq!((status.exit_code, status.reason.as_str()), (7, "Error"));
    assert!(status.created_at <= status.started_at && status.started_at <= status.finished_at);
    let (status, _) = pod.run(container("ok", "true")).await;
    assert_eq!((status.exit_code, status.reason.as_str()), (0, "Completed"));
    // The first process of a namespace is not killed by its own.
    assert_eq!(pod.output(container("killed", "kill -9 $$; echo alive")).await, "alive");
    node.clean_up().await;
}

#[tokio::test]
async fn a_signal_from_outside_is_an_exit_code() {
    let node = Node::start().await;
    let pod = node.run_pod("signal").await;
    let id = pod
        .start(container(
            "c",
            "trap 'exit 3' TERM; echo ready; while :; do sleep 0.01; done",
        ))
        .await;
    wait_for_line(&pod, "c", "ready").await;
    node.runtime.stop_container(&id, LONG).await.unwrap();
    let status = node.runtime.container_status(&id).await.unwrap();
    assert_eq!((status.exit_code, status.reason.as_str()), (3, "Error"));

    // A shell that is the first process has no handler for SIGTERM, so it is not ended by it.
    let id = pod
        .start(container("stubborn", "echo ready; sleep 100; sleep 100"))
        .await;
    wait_for_line(&pod, "stubborn", "ready").await;
    node.runtime
        .stop_container(&id, Duration::from_millis(50))
        .await
        .unwrap();
    let status = node.runtime.container_status(&id).await.unwrap();
    assert_eq!((status.exit_code, status.reason.as_str()), (137, "Error"));
    // Again, and what was never there.
    node.runtime.stop_container(&id, LONG).await.unwrap();
    node.runtime.stop_container("no-such", LONG).await.unwrap();
    node.clean_up().await;
}

#[tokio::test]
async fn stop_signals_are_the_pods_choice() {
    let node = Node::start().await;
    let pod = node.run_pod("choice").await;
    let config = ContainerConfig {
        stop_signal: Signal::Sigusr1 as i32,
        ..container("c", "trap 'exit 5' USR1; echo ready; while :; do sleep 0.01; done")
    };
    let id = pod.start(config).await;
    wait_for_line(&pod, "c", "ready").await;
    node.runtime.stop_container(&id, LONG).await.unwrap();
    let status = node.runtime.container_status(&id).await.unwrap();
    assert_eq!((status.exit_code, status.stop_signal), (5, Signal::Sigusr1 as i32));
    node.clean_up().await;
}

#[tokio::test]
async fn a_container_that_cannot_start_says_why() {
    let node = Node::start().await;
    let pod = node.run_pod("bad").await;
    for (name, command, expected) in [
        (
            "a",
            "no-such-program",
            "exec: \"no-such-program\": executable file not found in $PATH",
        ),
        (
            "b",
            "/no/such",
            "exec: \"/no/such\": stat /no/such: no such file or directory",
        ),
        ("c", "/etc/passwd", "exec: \"/etc/passwd\": Permission denied"),
    ] {
        let config = ContainerConfig {
            command: vec![command.to_string()],
            ..container(name, "")
        };
        let id = pod.create(config).await;
        let error = node.runtime.start_container(&id).await.unwrap_err();
        assert!(error.message.contains(expected), "{}", error.message);
        let status = node.runtime.container_status(&id).await.unwrap();
        assert_eq!(status.state, ContainerState::Exited as i32);
        assert_eq!((status.exit_code, status.reason.as_str()), (128, "StartError"));
        assert!(status.message.contains(expected));
        assert!(node.runtime.start_container(&id).await.is_err());
    }
    assert_eq!(
        cgroup_dirs(&format!("{}/bad", node.cgroup))
            .iter()
            .filter(|d| d.ends_with("bad"))
            .count(),
        { cgroup_dirs(&format!("{}/bad", node.cgroup)).len() }
    );
    node.clean_up().await;
}

#[tokio::test]
async fn lists_and_filters() {
    let node = Node::start().await;
    let one = node.run_pod("one").await;
    let two = node.run_pod("two").await;
    let created = one.create(container("c", "true")).await;
    let running = two.start(container("c", "sleep 100")).await;
    let runtime = &node.runtime;
    let list = async |filter: ContainerFilter| {
        let mut ids: Vec<String> = runtime
            .list_containers(filter)
            .await
            .unwrap()
            .into_iter()
            .map(|c| c.id)
            .collect();
        ids.sort();
        ids
    };
    let state = |state: ContainerState| Some(ContainerStateValue { state: state as i32 });
    assert_eq!(list(ContainerFilter::default()).await.len(), 2);
    let of_one = ContainerFilter {
        pod_sandbox_id: one.id.clone(),
        ..ContainerFilter::default()
    };
    assert_eq!(list(of_one).await, std::slice::from_ref(&created));
    let of_state = ContainerFilter {
        state: state(ContainerState::Running),
        ..ContainerFilter::default()
    };
    assert_eq!(list(of_state).await, std::slice::from_ref(&running));
    let prefix = ContainerFilter {
        id: created[..12].to_string(),
        ..ContainerFilter::default()
    };
    assert_eq!(list(prefix).await, std::slice::from_ref(&created));
    let labelled = PodSandboxFilter {
        label_selector: [("app".to_string(), "two".to_string())].into(),
        ..PodSandboxFilter::default()
    };
    let pods = runtime.list_pod_sandboxes(labelled).await.unwrap();
    assert_eq!(
        pods.iter().map(|p| p.id.as_str()).collect::<Vec<_>>(),
        [two.id.as_str()]
    );
    let status = runtime.container_status(&running).await.unwrap();
    assert_eq!(status.image_ref, "test.local/busybox@sha256:busybox");
    assert_eq!(
        (status.image_id.as_str(), status.image.unwrap().image.as_str()),
        ("sha256:busybox", "test.local/busybox")
    );
    for error in [
        runtime.container_status("nothing").await.unwrap_err(),
        runtime.pod_sandbox_status("nothing").await.unwrap_err(),
        runtime.container_stats("nothing").await.unwrap_err(),
        runtime.start_container("nothing").await.unwrap_err(),
    ] {
        assert_eq!(error.code, Code::NotFound, "{error}");
    }
    node.clean_up().await;
}

#[tokio::test]
async fn nothing_is_made_twice() {
    let node = Node::start().await;
    let pod = node.run_pod("twice").await;
    let again = node.runtime.run_pod_sandbox(pod.config.clone(), "").await.unwrap_err();
    assert!(again.message.contains("name is reserved"), "{again}");
    let id = pod.create(container("c", "true")).await;
    let again = node
        .runtime
        .create_container(&pod.id, container("c", "true"), pod.config.clone())
        .await
        .unwrap_err();
    assert!(again.message.contains("name is reserved"), "{again}");
    node.runtime.remove_container(&id).await.unwrap();
    node.runtime.remove_container(&id).await.unwrap();
    let id = pod.start(container("c", "sleep 100")).await;
    // Removing ends it first.
    node.runtime.remove_container(&id).await.unwrap();
    assert!(
        node.runtime
            .run_pod_sandbox(node.pod_config("other"), "no-handler")
            .await
            .is_err()
    );
    node.clean_up().await;
}

#[tokio::test]
async fn a_stopped_pod_starts_nothing() {
    let node = Node::start().await;
    let pod = node.run_pod("stopped").await;
    let created = pod.create(container("created", "true")).await;
    let running = pod.start(container("running", "sleep 100")).await;
    node.runtime.stop_pod_sandbox(&pod.id).await.unwrap();
    node.runtime.stop_pod_sandbox(&pod.id).await.unwrap();
    let status = node.runtime.pod_sandbox_status(&pod.id).await.unwrap();
    assert_eq!(status.state, PodSandboxState::NotReady as i32);
    let status = node.runtime.container_status(&running).await.unwrap();
    assert_eq!((status.state, status.exit_code), (ContainerState::Exited as i32, 137));
    assert!(node.runtime.start_container(&created).await.is_err());
    assert!(
        node.runtime
            .create_container(&pod.id, container("new", "true"), pod.config.clone())
            .await
            .is_err()
    );
    node.runtime.remove_pod_sandbox(&pod.id).await.unwrap();
    node.runtime.remove_pod_sandbox(&pod.id).await.unwrap();
    assert!(
        node.runtime
            .list_containers(ContainerFilter::default())
            .await
            .unwrap()
            .is_empty()
    );
    node.clean_up().await;
}
