//! Log files.

use std::path::Path;

use orlop_runtime::Runtime;

use crate::support::*;

#[tokio::test]
async fn lines_have_the_format_of_the_cri() {
    let node = Node::start().await;
    let pod = node.run_pod("format").await;
    pod.run(container("c", "echo out; echo err >&2; printf 'no end'")).await;
    let log = pod.log("c");
    let mut lines: Vec<&str> = log.lines().collect();
    lines.sort_by_key(|line| line.split_once(' ').unwrap().1);
    let texts: Vec<&str> = lines.iter().map(|line| line.split_once(' ').unwrap().1).collect();
    assert_eq!(texts, ["stderr F err", "stdout F out", "stdout P no end"]);
    for line in lines {
        let time = line.split_once(' ').unwrap().0;
        assert_eq!(time.len(), "2026-01-02T03:04:05.000000000Z".len(), "{time}");
        assert!(time.starts_with("20") && time.ends_with('Z'));
    }
    node.clean_up().await;
}

#[tokio::test]
async fn long_and_binary_output_is_kept() {
    let node = Node::start().await;
    let pod = node.run_pod("long").await;
    pod.run(container("long", "head -c 40000 /dev/zero | tr '\\0' x; echo"))
        .await;
    let log = pod.log("long");
    let parts: Vec<(&str, usize)> = log
        .lines()
        .map(|line| line.split_once(" stdout ").unwrap().1)
        .map(|rest| (&rest[..1], rest.len() - 2))
        .collect();
    assert_eq!(parts, [("P", 16384), ("P", 16384), ("F", 40000 - 2 * 16384)]);

    pod.run(container("binary", "head -c 300000 /dev/urandom; echo")).await;
    let path = Path::new(&pod.config.log_directory).join("binary.log");
    let bytes = std::fs::read(path).unwrap();
    let mut total = 0;
    for line in bytes.split(|b| *b == b'\n').filter(|line| !line.is_empty()) {
        let at = line.windows(8).position(|w| w == b" stdout ").unwrap();
        total += line.len() - at - 10 + usize::from(line[at + 8] == b'F');
    }
    assert_eq!(total, 300_001);
    node.clean_up().await;
}

#[tokio::test]
async fn a_log_that_was_moved_away_is_opened_anew() {
    let node = Node::start().await;
    let pod = node.run_pod("rotate").await;
    let id = pod
        .start(container(
            "c",
            "echo one; while [ ! -e /go ]; do sleep 0.01; done; echo two; sleep 100",
        ))
        .await;
    wait_for_line(&pod, "c", "one").await;
    let path = Path::new(&pod.config.log_directory).join("c.log");
    std::fs::rename(&path, path.with_extension("old")).unwrap();
    node.runtime.reopen_container_log(&id).await.unwrap();
    pod.exec(&id, &["touch", "/go"]).await;
    wait_for_line(&pod, "c", "two").await;
    assert!(
        std::fs::read_to_string(path.with_extension("old"))
            .unwrap()
            .contains("one")
    );
    assert!(!pod.log("c").contains("one"));
    node.runtime
        .stop_container(&id, std::time::Duration::ZERO)
        .await
        .unwrap();
    assert!(node.runtime.reopen_container_log(&id).await.is_err());
    node.clean_up().await;
}

#[tokio::test]
async fn without_a_log_path_nothing_is_written() {
    let node = Node::start().await;
    let pod = node.run_pod("silent").await;
    let mut config = container("c", "echo hello");
    config.log_path = String::new();
    let (status, _) = pod.run(config).await;
    assert_eq!((status.exit_code, status.log_path.as_str()), (0, ""));
    node.clean_up().await;
}
