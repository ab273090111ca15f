//! What the node agent makes of pod specs, as the kernel and the containers see it: a real containerd is given the agent's
//! messages, without any agent in between.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use orlop_api::quantity::Quantity;
use orlop_api::types::core::Pod;
use orlop_kubelet::cgroups::{Cgroups, Tree};
use orlop_kubelet::objects::Objects;
use orlop_kubelet::spec::{self, CgroupLayout, ContainerInput, ContainerKind, NodeFacts, Swap, files};
use orlop_runtime::Runtime;
use orlop_runtime::cri::messages::*;
use orlop_testkit::{Leftovers, NodeRuntime, PATIENCE, TestRuntime, network};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A node with a runtime, a folder and a control group of its own.
struct Node<'a> {
    runtime: Arc<dyn Runtime>,
    facts: Arc<NodeFacts>,
    cgroups: Cgroups,
    objects: Objects,
    _directory: TempDir,
    test: &'a NodeRuntime,
}

/// A pod that runs.
struct Running {
    pod: Pod,
    sandbox: String,
    container: String,
}

impl Node<'_> {
    async fn start(test: &NodeRuntime) -> Node<'_> {
        let runtime = test.connect().await;
        let directory = tempfile::tempdir().unwrap();
        let tree = Tree::at(Path::new("/sys/fs/cgroup")).unwrap();
        let facts = Arc::new(NodeFacts {
            name: "node".into(),
            addresses: vec!["192.168.1.1".parse().unwrap()],
            root_dir: directory.path().join("root"),
            pod_logs_dir: directory.path().join("logs"),
            cluster_dns: vec!["10.96.0.10".parse().unwrap()],
            cluster_domain: "cluster.local".into(),
            cgroups: CgroupLayout {
                version: tree.version(),
                root: format!("/{}", test.home().cgroup()),
                ..CgroupLayout::default()
            },
            memory_capacity: 4 << 30,
            allocatable: [("cpu".to_string(), Quantity::parse("2").unwrap())].into(),
            pod_pids_limit: Some(100),
            hugepage_sizes: vec!["2MB".into(), "1GB".into()],
            swap: Swap {
                controller: tree.limits_swap(),
                ..Swap::default()
            },
            ..NodeFacts::default()
        });
        let cgroups = Cgroups::new(tree, Arc::clone(&facts));
        cgroups.ensure_node_level().await.unwrap();
        Node {
            runtime,
            objects: Objects::new(None, orlop_base::Clock::System),
            cgroups,
            facts,
            _directory: directory,
            test,
        }
    }

    /// Runs a pod of one container the way the agent does.
    async fn run(&self, uid: &str, spec: Value) -> Running {
        let pod = json!({"metadata": {"name": uid, "namespace": "default", "uid": uid, "labels": {"app": "x"}}, "spec": spec});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        files::make_dirs(&pod, &self.facts).unwrap();
        self.cgroups.ensure_pod(&pod).await.unwrap();
        let config = spec::sandbox_config(&pod, &self.facts, 0, None).unwrap();
        let sandbox = self.runtime.run_pod_sandbox(config.clone(), "").await.unwrap();
        let network = self.runtime.pod_sandbox_status(&sandbox).await.unwrap().network;
        let ips = [network.unwrap().ip];
        files::write_hosts(&pod, &self.facts, &ips).unwrap();
        let (kind, container) = spec::containers(&pod).next().unwrap();
        assert_eq!(kind, ContainerKind::Regular);
        files::make_log_dir(&pod, &container.name, &self.facts).unwrap();
        let env = spec::env::resolve(&pod, &container, &self.objects, &[], &ips, &self.facts)
            .await
            .unwrap();
        let log = files::termination_log(&pod, &container, &self.facts, "0").unwrap();
        let input = ContainerInput {
            env,
            pod_ips: &ips,
            termination_log: log.as_deref(),
            ..ContainerInput::new(&pod, &container, kind, "busybox", &self.facts)
        };
        let container = spec::container_config(&input).unwrap();
        let container = self
            .runtime
            .create_container(&sandbox, container, config)
            .await
            .unwrap();
        self.runtime.start_container(&container).await.unwrap();
        Running {
            pod,
            sandbox,
            container,
        }
    }

    async fn exec(&self, running: &Running, script: &str) -> String {
        let command = ["sh", "-c", script].map(String::from).to_vec();
        let answer = self
            .runtime
            .exec_sync(&running.container, command, Some(Duration::from_secs(20)));
        let answer = answer.await.unwrap();
        String::from_utf8_lossy(&[answer.stdout, answer.stderr].concat()).into_owned()
    }

    async fn ended(&self, running: &Running) -> ContainerStatus {
        let wait = async {
            loop {
                let status = self.runtime.container_status(&running.container).await.unwrap();
                if status.state() == ContainerState::Exited {
                    return status;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.expect("the container ends")
    }

    async fn remove(&self, running: Running) {
        self.runtime.stop_pod_sandbox(&running.sandbox).await.unwrap();
        self.runtime.remove_pod_sandbox(&running.sandbox).await.unwrap();
        self.cgroups.remove_pod(spec::uid(&running.pod)).await.unwrap();
        assert!(!self.cgroups.has_pod(&running.pod));
    }
}

fn has(text: &str, line: &str) {
    let squeezed = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(squeezed.contains(line), "{line:?} is not in:\n{text}");
}

#[test]
fn containers_are_what_their_specs_say() {
    let test = NodeRuntime::start(TestRuntime::of_suite());
    network::block_on(containers_are_what_their_specs_say_on(&test));
}

#[test]
fn containers_are_what_their_specs_say_with_containerd() {
    let test = NodeRuntime::start(TestRuntime::Containerd);
    network::block_on(containers_are_what_their_specs_say_on(&test));
}

async fn containers_are_what_their_specs_say_on(test: &NodeRuntime) {
    let node = Node::start(test).await;
    names_files_and_variables(&node).await;
    users_and_privileges(&node).await;
    without_restrictions(&node).await;
    cpu_limits(&node).await;
    memory_limits(&node).await;
    new_limits(&node).await;
    assert_eq!(node.test.leftovers(), Leftovers::default());
    assert!(node.cgroups.pods().is_empty());
}

async fn names_files_and_variables(node: &Node<'_>) {
    let running = node
        .run(
            "names",
            json!({
                "hostname": "box", "subdomain": "sub", "hostAliases": [{"ip": "1.2.3.4", "hostnames": ["alias.example"]}],
                "dnsConfig": {"searches": ["mine.example"], "options": [{"name": "ndots", "value": "2"}]},
                "securityContext": {"sysctls": [{"name": "net.ipv4.ip_local_port_range", "value": "20000 21000"}]},
                "containers": [{
                    "name": "main", "image": "busybox", "command": ["sh", "-c"],
                    "args": ["echo '$(GREETING), $$(GREETING) and $(NOTHING)'; echo last words > /dev/termination-log; exec sleep 1000"],
                    "workingDir": "/tmp", "terminationMessagePath": "/dev/termination-log",
                    "env": [
                        {"name": "GREETING", "value": "hello"},
                        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                        {"name": "APP", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
                        {"name": "CPUS", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
                    ],
                }],
            }),
        )
        .await;
    let ip = node.exec(&running, "echo -n $IP").await;
    assert!(
        node.test.pod_range().starts_with(ip.rsplit_once('.').unwrap().0),
        "{ip}"
    );
    let shown = node
        .exec(
            &running,
            "hostname; pwd; echo $APP $CPUS; cat /proc/sys/net/ipv4/ip_local_port_range",
        )
        .await;
    has(&shown, "box /tmp x 2 20000 21000");
    let hosts = node.exec(&running, "cat /etc/hosts").await;
    assert!(
        hosts.starts_with("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n"),
        "{hosts}"
    );
    assert!(
        hosts.contains(&format!("\n{ip}\tbox.sub.default.svc.cluster.local\tbox\n")),
        "{hosts}"
    );
    assert!(
        hosts.ends_with("# Entries added by HostAliases.\n1.2.3.4\talias.example\n"),
        "{hosts}"
    );
    let resolv = node.exec(&running, "cat /etc/resolv.conf").await;
    has(
        &resolv,
        "search default.svc.cluster.local svc.cluster.local cluster.local mine.example",
    );
    has(&resolv, "nameserver 10.96.0.10");
    has(&resolv, "options ndots:2");
    let log = spec::pod_log_dir(&running.pod, &node.facts).join("main/0.log");
    has(
        &std::fs::read_to_string(log).unwrap(),
        "stdout F hello, $(GREETING) and $(NOTHING)",
    );
    let words = node.facts.container_dir("names", "main").join("0");
    assert_eq!(std::fs::read_to_string(words).unwrap(), "last words\n");
    let status = node.runtime.container_status(&running.container).await.unwrap();
    assert_eq!(status.labels[spec::labels::CONTAINER_NAME], "main");
    let notes = spec::labels::ContainerNotes::read(&status.annotations);
    assert_eq!(notes.termination_message_path, "/dev/termination-log");
    node.remove(running).await;
}

async fn users_and_privileges(node: &Node<'_>) {
    let running = node
        .run(
            "users",
            json!({
                "securityContext": {
                    "runAsUser": 1000, "runAsGroup": 2000, "fsGroup": 3000, "supplementalGroups": [4000], "runAsNonRoot": true,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
                "containers": [{
                    "name": "main", "image": "busybox", "command": ["sleep", "1000"],
                    "securityContext": {
                        "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
                        "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
                    },
                }],
            }),
        )
        .await;
    let status = node.exec(&running, "cat /proc/1/status").await;
    has(&status, "Uid: 1000 1000 1000 1000");
    has(&status, "Gid: 2000 2000 2000 2000");
    has(&status, "Groups: 2000 3000 4000");
    has(&status, "NoNewPrivs: 1 Seccomp: 2");
    // Just the one that binds low ports, and for no user but root in effect.
    has(&status, "CapBnd: 0000000000000400");
    has(&node.exec(&running, "touch /x").await, "Read-only file system");
    let masked = node
        .exec(&running, "wc -c < /proc/timer_list; touch /proc/sys/kernel/domainname")
        .await;
    has(&masked, "0 ");
    node.remove(running).await;
}

async fn without_restrictions(node: &Node<'_>) {
    let running = node
        .run(
            "free",
            json!({
                "hostNetwork": true, "hostPID": true, "dnsPolicy": "Default",
                "containers": [{
                    "name": "main", "image": "busybox", "command": ["sleep", "1000"],
                    "securityContext": {"privileged": true, "procMount": "Default"},
                }],
            }),
        )
        .await;
    let status = node.exec(&running, "cat /proc/self/status").await;
    has(&status, "Uid: 0 0 0 0");
    has(&status, "NoNewPrivs: 0 Seccomp: 0");
    let own = nix::unistd::gethostname().unwrap();
    has(&node.exec(&running, "hostname").await, own.to_str().unwrap());
    has(
        &node.exec(&running, "head -1 /etc/hosts").await,
        "# Kubernetes-managed hosts file (host network).",
    );
    // All the machine's processes are there, this one too.
    has(
        &node
            .exec(&running, &format!("ls -d /proc/{}", std::process::id()))
            .await,
        "/proc/",
    );
    node.remove(running).await;
}

async fn cpu_limits(node: &Node<'_>) {
    let running = node
        .run(
            "cpu",
            json!({"containers": [{
                "name": "main", "image": "busybox", "command": ["sh", "-c", "i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done"],
                "resources": {"requests": {"cpu": "50m"}, "limits": {"cpu": "50m", "memory": "64Mi"}},
            }]}),
        )
        .await;
    let group = node.cgroups.pod_group(&running.pod);
    let inner = node
        .cgroups
        .tree()
        .usage(&format!("{group}/{}", running.container))
        .unwrap();
    assert_eq!(inner.memory_limit, Some(64 << 20));
    assert_eq!(node.ended(&running).await.exit_code, 0);
    let usage = node.cgroups.pod_usage(&running.pod).unwrap();
    assert!(
        usage.cpu_throttled_periods > 0 && usage.cpu_throttled_ns > 0,
        "{usage:?}"
    );
    node.remove(running).await;
}

async fn memory_limits(node: &Node<'_>) {
    let running = node
        .run(
            "memory",
            json!({"containers": [{
                "name": "main", "image": "busybox", "command": ["sh", "-c", "sleep 1; x=0123456789abcdef; while :; do x=$x$x; done"],
                "resources": {"limits": {"memory": "16Mi"}},
            }]}),
        )
        .await;
    let status = node.ended(&running).await;
    assert_eq!((status.exit_code, status.reason.as_str()), (137, "OOMKilled"));
    node.remove(running).await;
}

async fn new_limits(node: &Node<'_>) {
    let spec = |memory: &str| {
        json!({"containers": [{
            "name": "main", "image": "busybox", "command": ["sleep", "1000"],
            "resources": {"requests": {"cpu": "50m", "memory": memory}, "limits": {"cpu": "100m", "memory": memory}},
        }]})
    };
    let mut running = node.run("resized", spec("32Mi")).await;
    let group = node.cgroups.pod_group(&running.pod);
    let inner = format!("{group}/{}", running.container);
    for megabytes in [96, 48] {
        running.pod.spec = serde_json::from_value(spec(&format!("{megabytes}Mi"))).unwrap();
        let container = &running.pod.spec.as_ref().unwrap().containers[0];
        let resources = spec::resources::linux_resources(&running.pod, container, &node.facts);
        node.cgroups.update_pod(&running.pod).await.unwrap();
        let updated = node.runtime.update_container_resources(&running.container, resources);
        updated.await.unwrap();
        for group in [&group, &inner] {
            let usage = node.cgroups.tree().usage(group).unwrap();
            assert_eq!(usage.memory_limit, Some(megabytes << 20), "{group}");
        }
    }
    assert!(node.cgroups.tree().usage(&inner).unwrap().processes > 0);
    node.remove(running).await;
}
