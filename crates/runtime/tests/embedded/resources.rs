//! Limits and usage.

use orlop_runtime::Runtime;
use orlop_runtime::cri::messages::*;

use crate::support::*;

#[tokio::test]
async fn limits_are_those_of_the_pod() {
    let node = Node::start().await;
    let pod = node.run_pod("limits").await;
    let config = limited(container("c", "cat /proc/self/oom_score_adj; sleep 100"), |r| {
        r.cpu_period = 100_000;
        r.cpu_quota = 50_000;
        r.cpu_shares = 512;
        r.memory_limit_in_bytes = 64 << 20;
        r.oom_score_adj = 777;
        r.cpuset_cpus = "0".to_string();
    });
    let id = pod.start(config).await;
    let read = |v1: &str, v2: &str| read_cgroup(&node, "limits", &id, v1, v2);
    assert_eq!(read("memory.limit_in_bytes", "memory.max"), (64 << 20).to_string());
    assert!(["512", "20"].contains(&read("cpu.shares", "cpu.weight").as_str()));
    assert!(["50000", "50000 100000"].contains(&read("cpu.cfs_quota_us", "cpu.max").as_str()));
    assert_eq!(read("cpuset.cpus", "cpuset.cpus"), "0");
    wait_for_line(&pod, "c", "777").await;
    // And it sees them itself.
    let seen = "cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/memory.max";
    let seen = pod.exec(&id, &["sh", "-c", seen]).await;
    assert_eq!(String::from_utf8_lossy(&seen.stdout).trim(), (64 << 20).to_string());
    // In place, up and down.
    for megabytes in [128i64, 32] {
        let resources = LinuxContainerResources {
            memory_limit_in_bytes: megabytes << 20,
            cpu_quota: 70_000,
            ..LinuxContainerResources::default()
        };
        node.runtime.update_container_resources(&id, resources).await.unwrap();
        assert_eq!(
            read("memory.limit_in_bytes", "memory.max"),
            (megabytes << 20).to_string()
        );
        assert!(["70000", "70000 100000"].contains(&read("cpu.cfs_quota_us", "cpu.max").as_str()));
        let status = node.runtime.container_status(&id).await.unwrap();
        let shown = status.resources.unwrap().linux.unwrap();
        assert_eq!((shown.memory_limit_in_bytes, shown.cpu_shares), (megabytes << 20, 512));
    }
    node.clean_up().await;
}

#[tokio::test]
async fn too_much_memory_is_an_oom_kill() {
    let node = Node::start().await;
    let pod = node.run_pod("oom").await;
    let config = limited(
        container("c", "head -c 100000000 /dev/zero | tail -c 90000000 | wc -c"),
        |r| {
            r.memory_limit_in_bytes = 16 << 20;
        },
    );
    let (status, _) = pod.run(config).await;
    assert_eq!(status.reason, "OOMKilled", "{status:?}");
    let config = limited(container("first", "exec tail -c 90000000 /dev/zero"), |r| {
        r.memory_limit_in_bytes = 16 << 20;
    });
    let (status, _) = pod.run(config).await;
    assert_eq!((status.reason.as_str(), status.exit_code), ("OOMKilled", 137));
    node.clean_up().await;
}

#[tokio::test]
async fn usage_is_measured() {
    let node = Node::start().await;
    let pod = node.run_pod("usage").await;
    let script = "head -c 5000000 /dev/urandom > /file; i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; echo ready; sleep 100";
    let id = pod.start(container("c", script)).await;
    wait_for_line(&pod, "c", "ready").await;
    let stats = node.runtime.container_stats(&id).await.unwrap();
    assert!(stats.cpu.unwrap().usage_core_nano_seconds.unwrap().value > 1_000_000);
    assert!(stats.memory.unwrap().usage_bytes.unwrap().value > 0);
    assert!(stats.writable_layer.unwrap().used_bytes.unwrap().value >= 5_000_000);
    let pods = node
        .runtime
        .list_pod_sandbox_stats(PodSandboxStatsFilter::default())
        .await
        .unwrap();
    let linux = pods[0].linux.clone().unwrap();
    assert_eq!(linux.containers.len(), 1);
    assert!(linux.cpu.unwrap().usage_core_nano_seconds.unwrap().value > 1_000_000);
    assert!(linux.process.unwrap().process_count.unwrap().value >= 1);
    let info = node.runtime.image_fs_info().await.unwrap();
    assert!(info.container_filesystems[0].used_bytes.clone().unwrap().value >= 5_000_000);
    node.clean_up().await;
}
