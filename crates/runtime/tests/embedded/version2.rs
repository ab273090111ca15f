//! Cgroups of version 2, as far as a hybrid system has them: their tree is there, without controllers.

use std::path::Path;

use orlop_runtime::Runtime;
use orlop_runtime::cri::messages::*;

use crate::support::*;

/// The tree of version 2, wherever it is mounted.
fn unified() -> Option<&'static Path> {
    let paths = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(Path::new);
    paths.into_iter().find(|path| path.join("cgroup.controllers").exists())
}

#[tokio::test]
async fn containers_in_version_2() {
    let Some(unified) = unified() else { return };
    let node = Node::start_with_cgroups(unified).await;
    let pod = node.run_pod("unified").await;
    let script = "cat /proc/self/cgroup | grep '^0:'; test -e /sys/fs/cgroup/cgroup.procs && echo mounted; \
                  mkdir /sys/fs/cgroup/x 2>/dev/null || echo read-only; \
                  mknod /tmp/mem c 1 1 && head -c 1 /tmp/mem 2>&1; head -c 4 /dev/zero | wc -c; echo up; sleep 100";
    let id = pod.start(container("c", script)).await;
    wait_for_line(&pod, "c", "up").await;
    let output = pod.stdout("c");
    // Its own group is the root that it sees.
    assert!(output.starts_with("0::/\nmounted\nread-only\n"), "{output}");
    // The device filter lets the usual ones through and no other.
    assert!(
        output.contains("Operation not permitted") && output.contains("\n4\n"),
        "{output}"
    );
    let procs = std::fs::read_to_string(
        unified
            .join(node.cgroup.trim_start_matches('/'))
            .join("unified")
            .join(&id)
            .join("cgroup.procs"),
    );
    assert!(!procs.unwrap().is_empty());
    let inside = pod.exec(&id, &["sh", "-c", "grep '^0:' /proc/self/cgroup"]).await;
    assert_eq!(String::from_utf8_lossy(&inside.stdout), "0::/\n");
    node.runtime
        .stop_container(&id, std::time::Duration::ZERO)
        .await
        .unwrap();
    let status = node.runtime.container_status(&id).await.unwrap();
    assert_eq!((status.exit_code, status.state), (137, ContainerState::Exited as i32));
    node.clean_up().await;
}
