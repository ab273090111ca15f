use super::*;
use crate::spec::{CgroupVersion, testing};
use orlop_api::quantity::Quantity;
use serde_json::json;
use std::fs;
use std::path::Path;
use std::process::{Child, Command};

fn facts(version: CgroupVersion, driver: CgroupDriver) -> NodeFacts {
    let quantity = |text| Quantity::parse(text).unwrap();
    NodeFacts {
        cgroups: CgroupLayout {
            version,
            driver,
            ..CgroupLayout::default()
        },
        pods_limit: [("cpu", "2"), ("memory", "1Gi"), ("pid", "5000")]
            .map(|(name, text)| (name.to_string(), quantity(text)))
            .into(),
        pod_pids_limit: Some(64),
        ..NodeFacts::default()
    }
}

/// A directory that looks like the file system of either version.
fn fake(version: CgroupVersion) -> (tempfile::TempDir, Tree) {
    let dir = tempfile::tempdir().unwrap();
    match version {
        CgroupVersion::V2 => fs::write(dir.path().join("cgroup.controllers"), "cpu cpuset io memory pids\n").unwrap(),
        CgroupVersion::V1 => {
            for name in [
                "cpu,cpuacct",
                "cpuset",
                "memory",
                "pids",
                "systemd",
                "unified",
                "something",
            ] {
                fs::create_dir(dir.path().join(name)).unwrap();
            }
            std::os::unix::fs::symlink("cpu,cpuacct", dir.path().join("cpu")).unwrap();
            std::os::unix::fs::symlink("cpu,cpuacct", dir.path().join("cpuacct")).unwrap();
            fs::write(dir.path().join("cpuset/cpuset.cpus"), "0-3\n").unwrap();
            fs::write(dir.path().join("cpuset/cpuset.mems"), "0\n").unwrap();
        }
    }
    let tree = Tree::at(dir.path()).unwrap();
    (dir, tree)
}

fn burstable() -> Pod {
    testing::pod(json!({"containers": [
        {"name": "a", "resources": {"requests": {"cpu": "500m", "memory": "16Mi"}, "limits": {"cpu": "1", "memory": "32Mi"}}},
    ]}))
}

fn text(dir: &Path, file: &str) -> String {
    fs::read_to_string(dir.join(file))
        .unwrap_or_else(|e| panic!("{file}: {e}"))
        .trim()
        .to_string()
}

#[test]
fn trees_are_told_apart() {
    let (_dir, tree) = fake(CgroupVersion::V2);
    assert_eq!((tree.version(), tree.missing()), (CgroupVersion::V2, vec![]));
    let (dir, tree) = fake(CgroupVersion::V1);
    assert_eq!((tree.version(), tree.missing()), (CgroupVersion::V1, vec![]));
    fs::remove_dir(dir.path().join("memory")).unwrap();
    assert_eq!(Tree::at(dir.path()).unwrap().missing(), ["memory"]);
    assert!(Tree::at(&dir.path().join("nothing")).is_err());
}

#[tokio::test]
async fn groups_of_version_1() {
    let (dir, tree) = fake(CgroupVersion::V1);
    let cgroups = Cgroups::new(tree, Arc::new(facts(CgroupVersion::V1, CgroupDriver::Cgroupfs)));
    let root = dir.path();
    cgroups.ensure_node_level().await.unwrap();
    assert_eq!(text(root, "cpu/kubepods/cpu.shares"), "2048");
    assert_eq!(
        text(root, "memory/kubepods/memory.limit_in_bytes"),
        (1u64 << 30).to_string()
    );
    assert_eq!(text(root, "pids/kubepods/pids.max"), "5000");
    assert_eq!(text(root, "cpu/kubepods/besteffort/cpu.shares"), "2");
    assert_eq!(text(root, "cpuset/kubepods/burstable/cpuset.cpus"), "0-3");
    assert!(root.join("systemd/kubepods/burstable").is_dir());
    assert!(!root.join("something/kubepods").exists() && !root.join("unified/kubepods").exists());

    let pod = burstable();
    assert!(!cgroups.has_pod(&pod));
    cgroups.ensure_pod(&pod).await.unwrap();
    cgroups.update_classes([&pod]).await.unwrap();
    assert_eq!(text(root, "cpu/kubepods/burstable/cpu.shares"), "512");
    let group = "kubepods/burstable/podu-1";
    assert_eq!(text(root, &format!("cpu/{group}/cpu.shares")), "512");
    assert_eq!(text(root, &format!("cpu/{group}/cpu.cfs_quota_us")), "100000");
    assert_eq!(
        text(root, &format!("memory/{group}/memory.limit_in_bytes")),
        (32u64 << 20).to_string()
    );
    assert_eq!(text(root, &format!("pids/{group}/pids.max")), "64");
    assert_eq!(text(root, &format!("cpuset/{group}/cpuset.mems")), "0");
    assert!(cgroups.has_pod(&pod));
    assert_eq!(cgroups.pods(), [("u-1".to_string(), QosClass::Burstable)].into());

    // What is there stays as it is once something runs in it, until a resize.
    fs::create_dir(root.join(format!("memory/{group}/container"))).unwrap();
    fs::write(root.join(format!("cpu/{group}/cpu.shares")), "7").unwrap();
    cgroups.ensure_pod(&pod).await.unwrap();
    assert_eq!(text(root, &format!("cpu/{group}/cpu.shares")), "7");
    cgroups.update_pod(&pod).await.unwrap();
    assert_eq!(text(root, &format!("cpu/{group}/cpu.shares")), "512");
}

#[tokio::test]
async fn groups_of_version_2_with_systemds_names() {
    let (dir, tree) = fake(CgroupVersion::V2);
    let cgroups = Cgroups::new(tree, Arc::new(facts(CgroupVersion::V2, CgroupDriver::Systemd)));
    let root = dir.path();
    cgroups.ensure_node_level().await.unwrap();
    cgroups.ensure_pod(&burstable()).await.unwrap();
    assert_eq!(text(root, "cgroup.subtree_control"), "+cpu +cpuset +memory +pids");
    let all = "kubepods.slice";
    assert_eq!(text(root, &format!("{all}/cpu.weight")), "79");
    assert_eq!(
        text(root, &format!("{all}/cgroup.subtree_control")),
        "+cpu +cpuset +memory +pids"
    );
    let group = format!("{all}/kubepods-burstable.slice/kubepods-burstable-podu_1.slice");
    assert_eq!(text(root, &format!("{group}/cpu.max")), "100000 100000");
    assert_eq!(text(root, &format!("{group}/memory.max")), (32u64 << 20).to_string());
    fs::create_dir(root.join(all).join("kubepods-podother.slice")).unwrap();
    fs::create_dir(root.join(all).join("kubepods-stranger.slice")).unwrap();
    assert_eq!(
        cgroups.pods(),
        [
            ("other".to_string(), QosClass::Guaranteed),
            ("u-1".to_string(), QosClass::Burstable)
        ]
        .into()
    );
    let unlimited = testing::pod(json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": "1"}}}]}));
    cgroups.update_pod(&unlimited).await.unwrap();
    assert_eq!(text(root, &format!("{group}/cpu.max")), "max 100000");
    assert_eq!(text(root, &format!("{group}/memory.max")), "max");
}

/// A pod whose cpu limit falls and whose memory limit rises: no container may be above its pod at any moment.
#[tokio::test]
async fn groups_grow_before_containers_and_shrink_after_them() {
    for version in [CgroupVersion::V1, CgroupVersion::V2] {
        let (dir, tree) = fake(version);
        let cgroups = Cgroups::new(tree, Arc::new(facts(version, CgroupDriver::Cgroupfs)));
        let limited = |cpu: &str, memory: &str| {
            let limits = json!({"cpu": cpu, "memory": memory});
            let mut pod = burstable();
            let spec = testing::pod(json!({"containers": [{"name": "a", "resources": {"limits": limits,
                "requests": {"cpu": "10m"}}}]}));
            pod.spec = spec.spec;
            pod
        };
        let group = "kubepods/burstable/podu-1";
        let shown = || match version {
            CgroupVersion::V1 => {
                let quota = text(dir.path(), &format!("cpu/{group}/cpu.cfs_quota_us"));
                let memory = text(dir.path(), &format!("memory/{group}/memory.limit_in_bytes"));
                format!("{quota} {memory}")
            }
            CgroupVersion::V2 => {
                let quota = text(dir.path(), &format!("{group}/cpu.max"));
                let memory = text(dir.path(), &format!("{group}/memory.max"));
                format!("{} {memory}", quota.split(' ').next().unwrap())
            }
        };
        cgroups.ensure_pod(&limited("500m", "100")).await.unwrap();
        assert_eq!(shown(), "50000 100");
        let wanted = limited("200m", "300");
        cgroups.make_room(&wanted).await.unwrap();
        assert_eq!(shown(), "50000 300", "{version:?}");
        cgroups.update_pod(&wanted).await.unwrap();
        assert_eq!(shown(), "20000 300");
        let back = limited("500m", "100");
        cgroups.make_room(&back).await.unwrap();
        assert_eq!(shown(), "50000 300");
        cgroups.update_pod(&back).await.unwrap();
        assert_eq!(shown(), "50000 100");
    }
}

#[tokio::test]
async fn a_limit_below_what_is_in_use_is_refused() {
    let (dir, tree) = fake(CgroupVersion::V2);
    let cgroups = Cgroups::new(tree, Arc::new(facts(CgroupVersion::V2, CgroupDriver::Cgroupfs)));
    cgroups.ensure_pod(&burstable()).await.unwrap();
    let group = dir.path().join("kubepods/burstable/podu-1");
    fs::write(group.join("memory.current"), "50000000\n").unwrap();
    // The limit is this one already: nothing gets lower.
    cgroups.make_room(&burstable()).await.unwrap();
    fs::write(group.join("memory.max"), "60000000\n").unwrap();
    assert_eq!(
        cgroups.make_room(&burstable()).await.unwrap_err().to_string(),
        "cannot decrease memory limits: attempting to set pod memory limit (33554432) below current usage (50000000)"
    );
}

#[tokio::test]
async fn a_group_whose_limits_could_not_be_set_gets_them_later() {
    let (dir, tree) = fake(CgroupVersion::V2);
    let cgroups = Cgroups::new(tree, Arc::new(facts(CgroupVersion::V2, CgroupDriver::Cgroupfs)));
    let group = dir.path().join("kubepods/burstable/podu-1");
    // A link to nowhere in the place of the file: it can't be written.
    fs::create_dir_all(&group).unwrap();
    std::os::unix::fs::symlink(dir.path().join("no/where"), group.join("memory.max")).unwrap();
    let failed = cgroups.ensure_pod(&burstable()).await.unwrap_err().to_string();
    assert!(
        failed.starts_with("write ") && failed.contains("memory.max"),
        "{failed}"
    );
    fs::remove_file(group.join("memory.max")).unwrap();
    cgroups.ensure_pod(&burstable()).await.unwrap();
    assert_eq!(text(&group, "memory.max"), (32u64 << 20).to_string());
    // Once processes are in it, it is as a former kubelet process left it.
    fs::write(group.join("memory.max"), "7").unwrap();
    fs::write(group.join("cgroup.procs"), "4242\n").unwrap();
    cgroups.ensure_pod(&burstable()).await.unwrap();
    assert_eq!(text(&group, "memory.max"), "7");
}

#[tokio::test]
async fn without_groups_for_pods_nothing_is_made() {
    let (dir, tree) = fake(CgroupVersion::V2);
    let mut facts = facts(CgroupVersion::V2, CgroupDriver::Cgroupfs);
    facts.cgroups.per_qos = false;
    let cgroups = Cgroups::new(tree, Arc::new(facts));
    cgroups.ensure_node_level().await.unwrap();
    cgroups.ensure_pod(&burstable()).await.unwrap();
    cgroups.update_classes([&burstable()]).await.unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn usage_of_both_versions() {
    let (dir, tree) = fake(CgroupVersion::V1);
    let write = |file: &str, text: &str| {
        let path = dir.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    assert!(tree.usage("/x").is_err());
    write("cpu/x/cpuacct.usage", "123456789\n");
    write("cpu/x/cpu.stat", "nr_periods 10\nnr_throttled 4\nthrottled_time 5000\n");
    write("cpu/x/cpu.cfs_quota_us", "50000\n");
    write("cpu/x/cpu.cfs_period_us", "100000\n");
    write("memory/x/memory.usage_in_bytes", "1000\n");
    write("memory/x/memory.limit_in_bytes", "9223372036854771712\n");
    write(
        "memory/x/memory.stat",
        "inactive_file 1\ntotal_rss 600\ntotal_pgfault 7\ntotal_pgmajfault 8\ntotal_inactive_file 300\n",
    );
    write(
        "memory/x/memory.oom_control",
        "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
    );
    write("pids/x/pids.current", "5\n");
    let expected = Usage {
        cpu_ns: 123_456_789,
        cpu_periods: 10,
        cpu_throttled_periods: 4,
        cpu_throttled_ns: 5000,
        cpu_quota: Some((50_000, 100_000)),
        memory: 1000,
        memory_working_set: 700,
        memory_rss: 600,
        memory_limit: None,
        page_faults: 7,
        major_page_faults: 8,
        oom_kills: 2,
        processes: 5,
    };
    assert_eq!(tree.usage("/x").unwrap(), expected);

    let (dir, tree) = fake(CgroupVersion::V2);
    let own = dir.path().join("x");
    fs::create_dir(&own).unwrap();
    assert_eq!(tree.usage("/x").unwrap(), Usage::default());
    for (file, text) in [
        (
            "cpu.stat",
            "usage_usec 123456\nnr_periods 10\nnr_throttled 4\nthrottled_usec 5\n",
        ),
        ("cpu.max", "50000 100000\n"),
        ("memory.current", "1000\n"),
        ("memory.max", "max\n"),
        ("memory.stat", "anon 600\ninactive_file 300\npgfault 7\npgmajfault 8\n"),
        ("memory.events", "low 0\noom 3\noom_kill 2\n"),
        ("pids.current", "5\n"),
    ] {
        fs::write(own.join(file), text).unwrap();
    }
    let expected = Usage {
        cpu_ns: 123_456_000,
        ..expected
    };
    assert_eq!(tree.usage("/x").unwrap(), expected);
    fs::write(own.join("memory.max"), "4096\n").unwrap();
    fs::write(own.join("memory.current"), "100\n").unwrap();
    let usage = tree.usage("x").unwrap();
    assert_eq!((usage.memory_limit, usage.memory_working_set), (Some(4096), 0));
}

#[tokio::test]
async fn removing_goes_down_and_never_up() {
    let (dir, tree) = fake(CgroupVersion::V1);
    let cgroups = Cgroups::new(tree, Arc::new(facts(CgroupVersion::V1, CgroupDriver::Cgroupfs)));
    // A directory of files can't be removed like a group: make the groups without any.
    for name in ["cpu", "memory", "unified"] {
        fs::create_dir_all(dir.path().join(name).join("kubepods/poda/container/inner")).unwrap();
        fs::create_dir_all(dir.path().join(name).join("kubepods/podb")).unwrap();
    }
    cgroups.remove_pod("a").await.unwrap();
    cgroups.remove_pod("a").await.unwrap();
    for name in ["cpu", "memory", "unified"] {
        assert!(!dir.path().join(name).join("kubepods/poda").exists());
        assert!(dir.path().join(name).join("kubepods/podb").exists());
    }
    for nothing in ["", "/", "/..", "../.."] {
        cgroups.tree().remove(nothing).unwrap();
    }
    assert!(dir.path().join("cpu/kubepods/podb").exists());
}

/// Groups in the kernel, under a name of the test's own.
struct Real {
    cgroups: Cgroups,
    name: String,
}

impl Real {
    /// `None` where the test may not make groups.
    fn new(test: &str) -> Option<Real> {
        let tree = Tree::at(Path::new("/sys/fs/cgroup")).ok()?;
        let name = format!("/orlop-{test}-{}", std::process::id());
        if !nix::unistd::geteuid().is_root() || tree.create(&name).is_err() {
            return None;
        }
        let mut facts = facts(tree.version(), CgroupDriver::Cgroupfs);
        facts.cgroups.root = name.clone();
        let cgroups = Cgroups::new(tree, Arc::new(facts));
        Some(Real { cgroups, name })
    }

    /// A shell in a pod's group that runs a script.
    fn shell(&self, pod: &Pod, script: &str) -> Child {
        let group = self.cgroups.pod_group(pod);
        let dirs = ["cpu", "cpuacct", "memory", "pids"]
            .iter()
            .filter_map(|c| self.cgroups.tree.dir(c, &group));
        let join: String = dirs
            .map(|dir| format!("echo $$ > {}/cgroup.procs; ", dir.display()))
            .collect();
        Command::new("sh")
            .arg("-c")
            .arg(format!("{join}{script}"))
            .spawn()
            .unwrap()
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        // Children of a test that failed are killed, and gone a moment later.
        for _ in 0..10_000 {
            if self.cgroups.tree.remove(&self.name).is_ok() {
                break;
            }
            std::thread::yield_now();
        }
    }
}

#[tokio::test]
async fn the_kernel_keeps_the_limits() {
    let Some(real) = Real::new("limits") else {
        return;
    };
    real.cgroups.ensure_node_level().await.unwrap();
    let resources = json!({"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"cpu": "20m", "memory": "16Mi"}});
    let pod = testing::pod(json!({"containers": [{"name": "a", "resources": resources}]}));
    real.cgroups.ensure_pod(&pod).await.unwrap();
    real.cgroups.update_classes([&pod]).await.unwrap();
    real.cgroups.update_pod(&pod).await.unwrap();
    assert_eq!(real.cgroups.pods().into_keys().collect::<Vec<_>>(), ["u-1"]);

    let mut busy = real.shell(&pod, "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done");
    assert!(busy.wait().unwrap().success());
    let usage = real.cgroups.pod_usage(&pod).unwrap();
    assert!(usage.cpu_ns > 0 && usage.cpu_throttled_periods > 0, "{usage:?}");
    assert_eq!(usage.memory_limit, Some(16 << 20));

    // A string that doubles until there is no room for it.
    let mut hungry = real.shell(&pod, "x=0123456789abcdef; while :; do x=$x$x; done");
    assert!(!hungry.wait().unwrap().success());
    let usage = real.cgroups.pod_usage(&pod).unwrap();
    assert!(usage.oom_kills > 0, "{usage:?}");
}

#[tokio::test]
async fn what_is_left_in_a_group_is_killed() {
    use std::os::unix::process::ExitStatusExt;
    let Some(real) = Real::new("kill") else {
        return;
    };
    let pod = burstable();
    real.cgroups.ensure_pod(&pod).await.unwrap();
    let mut left = real.shell(&pod, "exec sleep 1000");
    let group = real.cgroups.pod_group(&pod);
    while real.cgroups.tree().pids(&group).is_empty() {
        tokio::task::yield_now().await;
    }
    // Reaped as soon as it ends, as its parent would.
    let ended = tokio::task::spawn_blocking(move || left.wait().unwrap());
    real.cgroups.remove_pod("u-1").await.unwrap();
    assert_eq!(ended.await.unwrap().signal(), Some(9));
    assert!(!real.cgroups.has_pod(&pod) && real.cgroups.pods().is_empty());
    real.cgroups.remove_pod("u-1").await.unwrap();
}
