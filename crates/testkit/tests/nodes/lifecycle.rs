//! What becomes of real pods when their cluster stops, and what is left of a cluster that is purged: nothing.

use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use orlop_testkit::{AgentHome, Launch, Leftovers, NodeRuntime, Ran, Server, TestRuntime, eventually, orlop};
use serde_json::{Value, json};

/// The order matters: the cluster ends before its runtime does.
struct Cluster {
    server: Server,
    runtime: NodeRuntime,
    /// Shared with pods, for what they have to say.
    notes: PathBuf,
}

impl Cluster {
    /// With a proxy, and a pod network that the cluster makes itself.
    fn start(runtime: NodeRuntime) -> Cluster {
        Cluster::start_with(runtime, |launch| launch)
    }

    fn start_with(runtime: NodeRuntime, change: impl FnOnce(Launch) -> Launch) -> Cluster {
        let notes = runtime.home().path().join("notes");
        fs::create_dir(&notes).unwrap();
        let server = change(runtime.launch(json!({})).arg("--proxy-mode=nftables")).start();
        let cluster = Cluster { server, runtime, notes };
        cluster.server.run("kubectl wait --for=create sa/default --timeout=60s");
        cluster
    }

    /// Runs a script; what it writes to `/notes/NAME` can be read here.
    fn run_pod(&self, name: &str, restart_policy: &str, grace: u32, script: &str) {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
            "restartPolicy": restart_policy, "terminationGracePeriodSeconds": grace,
            "volumes": [{"name": "notes", "hostPath": {"path": self.notes}}, {"name": "own", "emptyDir": {"medium": "Memory"}}],
            "containers": [{"name": "main", "image": "busybox", "imagePullPolicy": "IfNotPresent",
                "command": ["sh", "-c", script],
                "volumeMounts": [{"name": "notes", "mountPath": "/notes"}, {"name": "own", "mountPath": "/own"}]}]}});
        self.server.run_with("kubectl apply -f -", &pod.to_string());
        self.server
            .run(&format!("kubectl wait --for=condition=Ready pod/{name} --timeout=60s"));
    }

    fn note(&self, name: &str) -> String {
        fs::read_to_string(self.notes.join(name)).unwrap_or_default()
    }

    fn pod(&self, name: &str) -> Value {
        self.server.get(&format!("pod {name}"))
    }

    fn try_orlop(&self, verb: &str) -> Ran {
        let line = format!(
            "{} {verb} --data-dir={}",
            orlop().display(),
            self.server.data_dir().display()
        );
        self.server.sh(&line)
    }

    fn orlop(&self, verb: &str) -> String {
        self.try_orlop(verb).ok()
    }
}

/// Says so when it is asked to end, and ends.
const POLITE: &str = "trap 'echo asked >> /notes/polite; exit 0' TERM; while true; do sleep 0.1; done";
const STUBBORN: &str = "trap '' TERM; while true; do sleep 0.1; done";

#[test]
fn pods_end_within_their_grace_and_go_on_after_a_restart() {
    let mut cluster = Cluster::start(NodeRuntime::start_without_network(TestRuntime::of_suite()));
    cluster.run_pod("polite", "Always", 60, POLITE);
    cluster.run_pod("stubborn", "Always", 2, STUBBORN);
    cluster.run_pod("job", "OnFailure", 60, &POLITE.replace("/notes/polite", "/notes/job"));
    // Polite pods need no time, and the others get what they are allowed.
    assert_eq!(cluster.server.stop(Signal::SIGINT).code(), Some(0));
    assert_eq!(cluster.runtime.running(), [""; 0]);
    assert_eq!(
        (cluster.note("polite"), cluster.note("job")),
        ("asked\n".into(), "asked\n".into())
    );
    let log = cluster.server.log();
    assert!(log.contains("stopping pods within their grace periods pods=3"), "{log}");

    cluster.server.start_again();
    for name in ["polite", "stubborn"] {
        let count = eventually("it runs again", || {
            let pod = cluster.pod(name);
            let status = &pod["status"]["containerStatuses"][0];
            (status["state"]["running"].is_object()).then(|| status["restartCount"].clone())
        });
        assert_eq!(count, 1, "{name}");
    }
    // It was not done: whoever made it makes another.
    let status = cluster.pod("job")["status"].clone();
    assert_eq!(
        (&status["phase"], &status["reason"]),
        (&"Failed".into(), &"Terminated".into())
    );

    // A second signal leaves containers to the next start.
    cluster.run_pod("slow", "Always", 600, STUBBORN);
    let before = cluster.runtime.running();
    nix::sys::signal::kill(cluster.server.pid(), Signal::SIGINT).unwrap();
    eventually("it waits for pods", || {
        let left: Value = serde_json::from_str(&cluster.try_orlop("status -o json").stdout).ok()?;
        (left["stoppingPods"] == 1).then_some(())
    });
    assert_eq!(cluster.server.stop(Signal::SIGINT).code(), Some(1));
    let left = cluster.runtime.running();
    assert!(
        !left.is_empty() && left.iter().all(|id| before.contains(id)),
        "{left:?}"
    );
    // `down` finds them without a cluster, too.
    let stopped = cluster.orlop("down --grace-period=1");
    assert!(stopped.contains("Stopped 1 pod left running."), "{stopped}");
    assert_eq!(cluster.runtime.running(), [""; 0]);
    cluster.server.start_again();
    cluster
        .server
        .run("kubectl wait --for=condition=Ready pod/slow --timeout=60s");
    cluster.orlop("down --grace-period=1");
    assert_eq!(cluster.runtime.running(), [""; 0]);
    assert_eq!(cluster.server.wait_stopped().code(), Some(0));
    cluster.orlop("down --purge");
}

#[test]
fn pods_run_on_while_their_cluster_restarts() {
    let runtime = NodeRuntime::start_without_network(TestRuntime::of_suite());
    let mut cluster = Cluster::start_with(runtime, |launch| launch.arg("--keep-pods"));
    cluster.run_pod("web", "Always", 60, POLITE);
    let before = cluster.runtime.running();
    assert_eq!(cluster.server.stop(Signal::SIGTERM).code(), Some(0));
    assert_eq!(cluster.runtime.running(), before);
    cluster.server.start_again();
    let count = eventually("it is taken over", || {
        let status = cluster.pod("web")["status"]["containerStatuses"][0].clone();
        let ready = cluster
            .server
            .sh("kubectl wait --for=condition=Ready node/real --timeout=1s");
        (status["ready"] == true && ready.succeeded()).then(|| status["restartCount"].clone())
    });
    assert_eq!(count, 0);
    assert_eq!(cluster.runtime.running(), before);
    // Whoever wants them gone says so.
    cluster.orlop("down");
    assert_eq!(cluster.server.wait_stopped().code(), Some(0));
    assert_eq!(
        (cluster.runtime.running(), cluster.note("polite")),
        (vec![], "asked\n".into())
    );
    cluster.orlop("down --purge");
}

/// What a cluster could leave on the machine.
fn traces(home: &AgentHome, data_dir: &Path) -> Vec<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mounts = mounts
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .filter(|point| Path::new(point).starts_with(data_dir) || Path::new(point).starts_with(home.path()))
        .map(|point| format!("mount {point}"));
    let shown = |line: &str| {
        let output = std::process::Command::new("sh").args(["-c", line]).output().unwrap();
        String::from_utf8_lossy(&output.stdout)
            .lines()
            .map(String::from)
            .collect::<Vec<_>>()
    };
    let links = shown("ip -o link | cut -d: -f2 | cut -d@ -f1");
    // Without the chains that iptables makes when it is first asked, and without counters.
    let rules =
        shown("nft list tables | grep -v 'table ip nat'; iptables-save | grep -e '^-A' -e '^:.* - ' | sed 's/\\[.*//'");
    let cgroups = shown(&format!("find /sys/fs/cgroup -type d -path '*{}*'", home.cgroup()));
    let namespaces = shown("ls /run/netns /var/run/netns 2>/dev/null");
    let logs = shown(&format!("find {} -mindepth 1", home.path().join("logs").display()));
    let all = mounts.chain(links).chain(rules).chain(cgroups).chain(namespaces);
    all.chain(logs).collect()
}

#[test]
fn a_purge_leaves_nothing_even_after_a_kill() {
    a_purge_leaves_nothing_on(TestRuntime::of_suite());
}

#[test]
fn a_purge_leaves_nothing_with_containerd() {
    a_purge_leaves_nothing_on(TestRuntime::Containerd);
}

fn a_purge_leaves_nothing_on(kind: TestRuntime) {
    let runtime = NodeRuntime::start_without_network(kind);
    let empty = AgentHome::new();
    // Tools load what they need into the network at their first call.
    traces(&empty, empty.path());
    let before: Vec<String> = traces(&empty, empty.path());
    let mut cluster = Cluster::start(runtime);
    cluster.run_pod("polite", "Always", 60, POLITE);
    cluster.run_pod("stubborn", "Always", 600, STUBBORN);
    let data_dir = cluster.server.data_dir().to_path_buf();
    let during = traces(cluster.runtime.home(), &data_dir);
    assert!(during.iter().any(|line| line.starts_with("mount ")), "{during:?}");
    // Other tests may have addresses there, too.
    let address = cluster.pod("polite")["status"]["podIP"].as_str().unwrap().to_string();
    let address = cluster.runtime.lease(&address);
    assert!(address.exists());
    cluster.server.kill();
    assert_eq!(
        cluster.runtime.running().len(),
        4,
        "two pods, with their sandboxes, go on"
    );

    let purged = cluster.orlop("down --purge --grace-period=1");
    let (pods, network) = match kind {
        TestRuntime::Embedded => ("2 pods of node real", "pod network of node real"),
        TestRuntime::Containerd => ("2 pods in the container runtime", "interface orlop-"),
    };
    for what in [pods, network, "proxy rules", "mounts below", "cgroups of 2 pods"] {
        assert!(purged.contains(what), "{what}: {purged}");
    }
    assert!(cluster.runtime.is_purged(&data_dir) && !address.exists());
    if let Some(containerd) = cluster.runtime.containerd() {
        assert!(!containerd.cni_directory().join("10-orlop.conflist").exists());
    }
    assert_eq!(cluster.runtime.running(), [""; 0]);
    assert_eq!(cluster.runtime.leftovers(), Leftovers::default());
    let after = traces(cluster.runtime.home(), &data_dir);
    let new: Vec<&String> = after.iter().filter(|line| !before.contains(line)).collect();
    let new: Vec<&&String> = new
        .iter()
        .filter(|line| !line.ends_with(&cluster.runtime.home().cgroup()))
        .collect();
    assert!(new.is_empty(), "left: {new:#?}");
}
