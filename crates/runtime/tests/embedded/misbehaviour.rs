//! Containers that do what they should not: they end when they are told to, and nothing of them is left.

use std::time::Duration;

use orlop_runtime::Runtime;
use orlop_runtime::cri::messages::*;

use crate::support::*;

/// Processes that a pod may have here.
const PIDS: &str = "64";
const SHORT: Duration = Duration::from_millis(200);

/// Where there is no such controller processes are not counted, and nothing may fork without end.
fn limit_pids(group: &str) -> bool {
    let files: Vec<_> = cgroup_dirs(group).into_iter().map(|dir| dir.join("pids.max")).collect();
    let limited = files.iter().filter(|file| file.exists());
    limited.map(|file| std::fs::write(file, PIDS).unwrap()).count() > 0
}

#[tokio::test]
async fn forks_without_end() {
    let node = Node::start().await;
    let pod = node.run_pod("forks").await;
    // The group of the pod is there as soon as one of its containers is.
    let waits = pod.start(container("waits", "echo ready; sleep 100")).await;
    wait_for_line(&pod, "waits", "ready").await;
    if !limit_pids(&format!("{}/forks", node.cgroup)) {
        return node.clean_up().await;
    }
    let bomb = pod
        .start(container(
            "bomb",
            "f() { f & f; }; (f) 2>/dev/null; echo full; while :; do sleep 100 & done",
        ))
        .await;
    wait_for_line(&pod, "bomb", "full").await;
    // While it goes on, others of the machine and of the pod are looked after as ever.
    let other = node.run_pod("other").await;
    assert_eq!(other.output(container("c", "echo here")).await, "here");
    for id in [&bomb, &waits] {
        node.runtime.stop_container(id, SHORT).await.unwrap();
        assert_eq!(
            node.runtime.container_status(id).await.unwrap().state(),
            ContainerState::Exited
        );
    }
    node.clean_up().await;
}

#[tokio::test]
async fn nobody_may_ignore_the_end() {
    let node = Node::start().await;
    let pod = node.run_pod("deaf").await;
    let deaf = "trap '' TERM INT HUP QUIT; (trap '' TERM; while :; do sleep 0.1; done) & echo ready; while :; do sleep 0.1; done";
    let id = pod.start(container("c", deaf)).await;
    wait_for_line(&pod, "c", "ready").await;
    node.runtime.stop_container(&id, SHORT).await.unwrap();
    let status = node.runtime.container_status(&id).await.unwrap();
    assert_eq!((status.state(), status.exit_code), (ContainerState::Exited, 137));
    node.clean_up().await;
}

#[tokio::test]
async fn closed_output_is_no_end() {
    let node = Node::start().await;
    let pod = node.run_pod("closed").await;
    let script = "trap 'exit 3' TERM; echo last; exec <&- >&- 2>&-; while :; do sleep 0.05; done";
    let id = pod.start(container("c", script)).await;
    wait_for_line(&pod, "c", "last").await;
    let running = pod.exec(&id, &["/bin/echo", "alive"]).await;
    assert_eq!((running.stdout.as_slice(), running.exit_code), (&b"alive\n"[..], 0));
    assert_eq!(
        node.runtime.container_status(&id).await.unwrap().state(),
        ContainerState::Running
    );
    node.runtime.stop_container(&id, LONG).await.unwrap();
    assert_eq!(node.runtime.container_status(&id).await.unwrap().exit_code, 3);
    assert_eq!(pod.stdout("c"), "last");
    node.clean_up().await;
}

/// A process that was started in the background keeps the output open.
#[tokio::test]
async fn output_that_somebody_keeps_open_holds_nobody_up() {
    let node = Node::start().await;
    let pod = node.run_pod("open").await;
    let id = pod
        .start(container("c", "(trap '' TERM HUP; sleep 77778) & echo gone; exit 4"))
        .await;
    assert_eq!(pod.wait(&id).await.exit_code, 4);
    let exec = pod.start(container("d", "echo ready; sleep 100")).await;
    wait_for_line(&pod, "d", "ready").await;
    let command = ["/bin/sh", "-c", "sleep 77779 & echo started"]
        .map(String::from)
        .to_vec();
    let answer = node
        .runtime
        .exec_sync(&exec, command, Some(Duration::from_secs(2)))
        .await;
    // As with containerd: either what was said, or that it took too long; never for ever.
    assert!(answer.is_err() || answer.unwrap().stdout == b"started\n");
    node.runtime.stop_container(&exec, Duration::ZERO).await.unwrap();
    node.clean_up().await;
}

#[tokio::test]
async fn a_log_is_written_as_fast_as_it_is_read() {
    let node = Node::start().await;
    let pod = node.run_pod("talks").await;
    // One line without an end, in more bytes than any buffer has.
    let id = pod
        .start(container(
            "c",
            "head -c 20000000 /dev/zero | tr '\\0' 'x'; echo; echo done",
        ))
        .await;
    assert_eq!(pod.wait(&id).await.exit_code, 0);
    let log = pod.log("c");
    assert!(log.ends_with(" stdout F done\n"));
    assert_eq!(log.bytes().filter(|byte| *byte == b'x').count(), 20_000_000);
    node.clean_up().await;
}
