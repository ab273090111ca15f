//! Pods by the agent's workers on a real runtime, without an API server: what they do, what they say, and what is left.

use std::sync::Arc;
use std::time::Duration;

use orlop_api::types::core::{ContainerStatus, Pod, PodStatus};
use orlop_api::types::meta::Time;
use orlop_base::clock::{Shift, monotonic};
use orlop_base::{Clock, Random, Shutdown};
use orlop_kubelet::cgroups::{Cgroups, Tree};
use orlop_kubelet::events::Events;
use orlop_kubelet::images::{ImageSettings, Images};
use orlop_kubelet::objects::Objects;
use orlop_kubelet::pod::node_allocator::NodeAllocator;
use orlop_kubelet::pod::node_configurator::NodeConfigurator;
use orlop_kubelet::pod::node_environment::NodeEnvironment;
use orlop_kubelet::pod::status::Host;
use orlop_kubelet::pod::workers::{self, Workers};
use orlop_kubelet::pod::writer::Writer;
use orlop_kubelet::probes::Probes;
use orlop_kubelet::spec::{self, ContainerInput, ContainerKind, Ids, NodeFacts, Users};
use orlop_kubelet::volumes::{Options, Volumes};
use orlop_runtime::Runtime;
use orlop_testkit::{Leftovers, NodeRuntime, PATIENCE, TestRuntime, network, until};
use serde_json::{Value, json};
use tempfile::TempDir;

/// An agent without a server; it can be ended and started again over the same files.
struct Agent {
    workers: Workers,
    shutdown: Shutdown,
}

struct Node {
    runtime: NodeRuntime,
    files: TempDir,
}

impl Node {
    fn new(kind: TestRuntime) -> Node {
        Node {
            runtime: NodeRuntime::start(kind),
            files: tempfile::tempdir().unwrap(),
        }
    }

    /// The runtime, once pods can have a network.
    async fn connect(&self) -> Arc<dyn Runtime> {
        let runtime = self.runtime.connect().await;
        until("the network", async || {
            let conditions = runtime.status().await.ok()?.status?.conditions;
            conditions.iter().all(|c| c.status).then_some(())
        })
        .await;
        runtime
    }

    fn facts(&self) -> (Tree, Arc<NodeFacts>) {
        let tree = Tree::at("/sys/fs/cgroup".as_ref()).unwrap();
        let mut facts = NodeFacts {
            name: "node".into(),
            addresses: vec!["127.0.0.1".parse().unwrap()],
            root_dir: self.files.path().join("root"),
            pod_logs_dir: self.files.path().join("logs"),
            memory_capacity: 1 << 34,
            ..NodeFacts::default()
        };
        facts.cgroups.version = tree.version();
        facts.cgroups.root = format!("/{}", self.runtime.home().cgroup());
        (tree, Arc::new(facts))
    }

    async fn start(&self) -> Agent {
        let (clock, shutdown) = (Clock::System, Shutdown::default());
        let runtime = self.connect().await;
        let (tree, facts) = self.facts();
        let cgroups = Cgroups::new(tree, facts.clone());
        cgroups.ensure_node_level().await.unwrap();
        let objects = Objects::new(None, clock.clone());
        let events = Events::to(|event| println!("{} {}: {}", event.regarding.name, event.reason, event.note));
        let volumes = Volumes::new(Options::new(facts.root_dir.clone(), objects.clone(), clock.clone())).unwrap();
        let settings = ImageSettings::default();
        let images = Images::new(
            runtime.clone(),
            objects.clone(),
            events.clone(),
            clock.clone(),
            settings,
        );
        let probes = Probes::start(runtime.clone(), events.clone(), clock.clone(), shutdown.clone());
        let mut changes = probes.changes();
        let users = Users::new(&facts.root_dir, Ids::all(65_536));
        let reported = tokio::sync::watch::channel(Default::default()).1;
        let allocator = Arc::new(NodeAllocator {
            facts: facts.clone(),
            cpus: None,
            devices: None,
            admission: None,
            refresh_node: None,
        });
        let environment = NodeEnvironment {
            facts: facts.clone(),
            volumes: volumes.clone(),
            cgroups: Some(cgroups),
            users: users.clone(),
            allocator: allocator.clone(),
            runtime: reported.clone(),
            events: events.clone(),
        };
        let configurator = NodeConfigurator {
            facts: facts.clone(),
            objects,
            images,
            volumes,
            users,
            cpus: None,
            devices: None,
            services: Arc::new(Vec::new),
            runtime: reported,
            events: events.clone(),
            random: Random::from_entropy().into(),
        };
        let (writer, _) = Writer::start(None, Arc::new(|_| None), shutdown.clone());
        let workers = Workers::new(workers::Options {
            runtime,
            allocator,
            environment: Arc::new(environment),
            configurator: Arc::new(configurator),
            prober: Arc::new(probes),
            writer,
            events,
            metrics: Default::default(),
            host: Host {
                ips: facts.addresses.iter().map(|ip| ip.to_string()).collect(),
                runtime_name: self.runtime.name().into(),
                recursive_read_only: false,
            },
            restart_pace: Default::default(),
            sync_frequency: facts.sync_frequency,
            clock,
            shutdown: shutdown.clone(),
        });
        let (running, told) = (workers.clone(), workers.clone());
        tokio::spawn(async move { running.run().await });
        tokio::spawn(async move {
            while let Some(uid) = changes.recv().await {
                told.probed(&uid);
            }
        });
        Agent { workers, shutdown }
    }

    async fn nothing_is_left(&self) {
        until("all to be gone", async || {
            (self.runtime.leftovers() == Leftovers::default()).then_some(())
        })
        .await;
        let pods = self.files.path().join("root/pods");
        assert_eq!(std::fs::read_dir(pods).unwrap().count(), 0);
        assert_eq!(std::fs::read_dir(self.files.path().join("logs")).unwrap().count(), 0);
    }
}

impl Agent {
    fn status(&self, name: &str) -> PodStatus {
        self.workers.status(&format!("uid-{name}")).unwrap_or_default()
    }

    /// Waits for a status; what was last seen is part of the complaint.
    async fn wait(&self, name: &str, what: &str, is: impl Fn(&PodStatus) -> bool) -> PodStatus {
        let deadline = monotonic().later(PATIENCE);
        loop {
            let status = self.status(name);
            if is(&status) {
                return status;
            }
            assert!(monotonic() < deadline, "{name} is not {what}: {status:#?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn phase(&self, name: &str, phase: &str) -> PodStatus {
        self.wait(name, phase, |status| status.phase.as_deref() == Some(phase))
            .await
    }

    async fn delete(&self, pod: &Pod, grace: i64) {
        let mut pod = pod.clone();
        let name = pod.metadata.name.clone().unwrap();
        pod.metadata.deletion_timestamp = Some(Time(Clock::System.now()));
        pod.metadata.deletion_grace_period_seconds = Some(grace);
        let uid = pod.metadata.uid.clone().unwrap();
        self.workers.update(Arc::new(pod));
        self.wait(&name, "over", |s| {
            matches!(s.phase.as_deref(), Some("Succeeded" | "Failed"))
        })
        .await;
        self.workers.remove(&uid);
        until("the worker to go", async || {
            self.workers.view(&uid).is_none().then_some(())
        })
        .await;
    }
}

fn pod(name: &str, mut spec: Value) -> Pod {
    spec["terminationGracePeriodSeconds"] = 5.into();
    for list in ["containers", "initContainers"] {
        for container in spec[list].as_array_mut().into_iter().flatten() {
            let fields = [
                ("image", json!("busybox")),
                ("imagePullPolicy", json!("IfNotPresent")),
                ("terminationMessagePath", json!("/dev/termination-log")),
                ("terminationMessagePolicy", json!("File")),
            ];
            for (key, value) in fields {
                if container.get(key).is_none() {
                    container[key] = value;
                }
            }
        }
    }
    let metadata = json!({"name": name, "namespace": "default", "uid": format!("uid-{name}"), "generation": 1});
    serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
}

fn shell(name: &str, script: &str) -> Value {
    json!({"name": name, "command": ["sh", "-c", script]})
}

const FOREVER: &str = "trap 'exit 0' TERM; while :; do sleep 0.05; done";

fn container<'a>(status: &'a PodStatus, name: &str) -> &'a ContainerStatus {
    let lists = [&status.container_statuses, &status.init_container_statuses];
    let mut all = lists.into_iter().flatten().flatten();
    all.find(|c| c.name == name).expect("a container of that name")
}

fn waiting(status: &PodStatus, name: &str) -> Option<(String, String)> {
    let lists = [&status.container_statuses, &status.init_container_statuses];
    let found = lists.into_iter().flatten().flatten().find(|c| c.name == name)?;
    let waiting = found.state.as_ref()?.waiting.as_ref()?;
    Some((
        waiting.reason.clone().unwrap_or_default(),
        waiting.message.clone().unwrap_or_default(),
    ))
}

#[test]
fn pods_run_end_and_leave_nothing() {
    let node = Node::new(TestRuntime::of_suite());
    network::block_on(pods_run_end_and_leave_nothing_on(&node));
}

async fn pods_run_end_and_leave_nothing_on(node: &Node) {
    let agent = node.start().await;
    let shared = node.files.path().join("shared");
    std::fs::create_dir(&shared).unwrap();
    let mut web = shell("main", &format!("echo hello; echo $MY_IP >/shared/ip; {FOREVER}"));
    web["env"] = json!([{"name": "MY_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]);
    web["volumeMounts"] = json!([{"name": "shared", "mountPath": "/shared"}, {"name": "empty", "mountPath": "/empty"}]);
    web["lifecycle"] = json!({
        "postStart": {"exec": {"command": ["sh", "-c", "echo begun >/shared/begun"]}},
        "preStop": {"exec": {"command": ["sh", "-c", "echo ending >/shared/ending"]}},
    });
    let volumes = json!([{"name": "shared", "hostPath": {"path": shared}}, {"name": "empty", "emptyDir": {}}]);
    let init = json!([
        shell("first", "echo first >/dev/termination-log"),
        {"name": "side", "restartPolicy": "Always", "command": ["sh", "-c", FOREVER]},
    ]);
    let web = pod(
        "web",
        json!({"containers": [web], "initContainers": init, "volumes": volumes}),
    );
    agent.workers.update(Arc::new(web.clone()));
    let status = agent.phase("web", "Running").await;
    let ready = |s: &PodStatus| {
        s.conditions
            .iter()
            .flatten()
            .any(|c| c.type_ == "Ready" && c.status == "True")
    };
    let status = if ready(&status) {
        status
    } else {
        agent.wait("web", "ready", ready).await
    };
    let ip = status.pod_ip.clone().unwrap();
    assert!(ip.starts_with("10.213."), "{ip}");
    assert_eq!(std::fs::read_to_string(shared.join("ip")).unwrap().trim(), ip);
    assert_eq!(std::fs::read_to_string(shared.join("begun")).unwrap(), "begun\n");
    let first = container(&status, "first")
        .state
        .as_ref()
        .unwrap()
        .terminated
        .as_ref()
        .unwrap();
    assert_eq!(
        (first.exit_code, first.message.as_deref(), first.reason.as_deref()),
        (0, Some("first\n"), Some("Completed"))
    );
    assert!(
        container(&status, "main")
            .container_id
            .as_ref()
            .unwrap()
            .starts_with(&format!("{}://", node.runtime.name()))
    );

    // A new agent takes over: nothing is started anew.
    let before = agent.status("web");
    agent.shutdown.trigger();
    let agent = node.start().await;
    let mut known = web.clone();
    known.status = Some(before.clone());
    agent.workers.update(Arc::new(known.clone()));
    agent.workers.sources_ready();
    agent.phase("web", "Running").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(agent.status("web"), before);

    agent.delete(&known, 5).await;
    assert_eq!(std::fs::read_to_string(shared.join("ending")).unwrap(), "ending\n");
    node.nothing_is_left().await;
}

#[test]
fn what_fails_says_why() {
    let node = Node::new(TestRuntime::of_suite());
    network::block_on(what_fails_says_why_on(&node));
}

async fn what_fails_says_why_on(node: &Node) {
    let agent = node.start().await;
    let mut loud = shell("main", "echo one; echo two >&2; exit 3");
    loud["terminationMessagePolicy"] = "FallbackToLogsOnError".into();
    let loud = pod("loud", json!({"containers": [loud]}));
    let once = pod(
        "once",
        json!({"restartPolicy": "Never", "containers": [shell("main", "exit 7")]}),
    );
    let mut never = shell("main", FOREVER);
    (never["image"], never["imagePullPolicy"]) = ("missing.test/x:1".into(), "Never".into());
    let never = pod("never", json!({"containers": [never]}));
    let absent = pod(
        "absent",
        json!({"containers": [{"name": "main", "command": ["/no/such/thing"]}]}),
    );
    let mut config = shell("main", FOREVER);
    config["envFrom"] = json!([{"configMapRef": {"name": "nothing"}}]);
    let config = pod("config", json!({"containers": [config]}));
    let mut greedy = shell(
        "main",
        "sleep 1; dd if=/dev/zero of=/dev/shm/x bs=1M count=60; x=$(head -c 60m /dev/zero | tr '\\0' x); sleep 60",
    );
    greedy["resources"] = json!({"limits": {"memory": "16Mi"}, "requests": {"memory": "16Mi"}});
    let greedy = pod("greedy", json!({"restartPolicy": "Never", "containers": [greedy]}));
    let mut sick = shell("main", FOREVER);
    sick["livenessProbe"] = json!({"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 1, "successThreshold": 1});
    let sick = pod("sick", json!({"containers": [sick]}));
    let all = [&loud, &once, &never, &absent, &config, &greedy, &sick];
    for pod in all {
        agent.workers.update(Arc::new(pod.clone()));
    }
    let reason = |name: &'static str, reason: &'static str| {
        let is = move |s: &PodStatus| waiting(s, "main").is_some_and(|(r, _)| r == reason);
        agent.wait(name, reason, is)
    };
    let status = reason("loud", "CrashLoopBackOff").await;
    let (_, message) = waiting(&status, "main").unwrap();
    assert_eq!(
        message,
        "back-off 10s restarting failed container=main pod=loud_default(uid-loud)"
    );
    let main = container(&status, "main");
    let last = main.last_state.as_ref().unwrap().terminated.as_ref().unwrap();
    assert_eq!(
        (last.exit_code, last.reason.as_deref(), main.restart_count),
        (3, Some("Error"), 1)
    );
    let mut said: Vec<&str> = last.message.as_deref().unwrap().lines().collect();
    said.sort();
    assert_eq!(said, ["one", "two"]);
    let status = agent.phase("once", "Failed").await;
    assert_eq!(
        container(&status, "main")
            .state
            .as_ref()
            .unwrap()
            .terminated
            .as_ref()
            .unwrap()
            .exit_code,
        7
    );
    reason("never", "ErrImageNeverPull").await;
    let status = agent
        .wait("absent", "failing", |s| {
            waiting(s, "main").is_some_and(|(r, _)| r.ends_with("Error") || r == "CrashLoopBackOff")
        })
        .await;
    assert!(
        format!("{status:?}").contains("no such file or directory"),
        "{status:#?}"
    );
    reason("config", "CreateContainerConfigError").await;
    let status = agent.phase("greedy", "Failed").await;
    let end = container(&status, "main")
        .state
        .as_ref()
        .unwrap()
        .terminated
        .as_ref()
        .unwrap()
        .clone();
    assert_eq!((end.exit_code, end.reason.as_deref()), (137, Some("OOMKilled")));
    agent
        .wait("sick", "restarted", |s| {
            s.container_statuses.iter().flatten().any(|c| c.restart_count > 0)
        })
        .await;
    for pod in all {
        agent.delete(pod, 1).await;
    }
    node.nothing_is_left().await;
}

/// The agent's own share of the time from a pod's creation to its running, beside the runtime's calls by themselves.
#[test]
fn ten_pods_beside_ten_that_the_runtime_alone_starts() {
    let node = Node::new(TestRuntime::of_suite());
    network::block_on(ten_pods_beside_ten_that_the_runtime_alone_starts_on(&node));
}

async fn ten_pods_beside_ten_that_the_runtime_alone_starts_on(node: &Node) {
    let agent = node.start().await;
    let runtime = node.connect().await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let (mut bare, mut whole) = (Vec::new(), Vec::new());
    for number in 0..10 {
        bare.push(start_bare(node, &*runtime, &format!("bare{number}")).await);
        let name = format!("p{number}");
        let pod = pod(&name, json!({"containers": [shell("main", FOREVER)]}));
        let began = monotonic();
        agent.workers.update(Arc::new(pod.clone()));
        while agent.status(&name).phase.as_deref() != Some("Running") {
            assert!(began.elapsed() < PATIENCE);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        whole.push(began.elapsed());
        agent.delete(&pod, 1).await;
    }
    bare.sort();
    whole.sort();
    let (bare, whole) = (bare[bare.len() / 2], whole[whole.len() / 2]);
    println!(
        "p50 of the bare calls {bare:?}, of the agent {whole:?}: {:.2}",
        whole.as_secs_f64() / bare.as_secs_f64()
    );
    node.nothing_is_left().await;
}

/// What the agent asks of the runtime to start a pod, and nothing else.
async fn start_bare(node: &Node, runtime: &dyn Runtime, name: &str) -> Duration {
    let (tree, facts) = node.facts();
    let pod = pod(name, json!({"containers": [shell("main", FOREVER)]}));
    let cgroups = Cgroups::new(tree, facts.clone());
    cgroups.ensure_pod(&pod).await.unwrap();
    spec::files::make_dirs(&pod, &facts).unwrap();
    spec::files::make_log_dir(&pod, "main", &facts).unwrap();
    spec::files::write_hosts(&pod, &facts, &["10.0.0.1".into()]).unwrap();
    let sandbox = spec::sandbox_config(&pod, &facts, 0, None).unwrap();
    let container = &pod.spec.as_ref().unwrap().containers[0];
    let input = ContainerInput::new(&pod, container, ContainerKind::Regular, "busybox", &facts);
    let config = spec::container_config(&input).unwrap();
    let began = monotonic();
    let id = runtime.run_pod_sandbox(sandbox.clone(), "").await.unwrap();
    let container = runtime.create_container(&id, config, sandbox).await.unwrap();
    runtime.start_container(&container).await.unwrap();
    let took = began.elapsed();
    runtime.stop_pod_sandbox(&id).await.unwrap();
    runtime.remove_pod_sandbox(&id).await.unwrap();
    let uid = pod.metadata.uid.as_deref().unwrap();
    cgroups.remove_pod(uid).await.unwrap();
    std::fs::remove_dir_all(facts.pod_dir(uid)).unwrap();
    std::fs::remove_dir_all(spec::pod_log_dir(&pod, &facts)).unwrap();
    took
}
