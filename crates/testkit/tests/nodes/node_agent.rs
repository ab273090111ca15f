//! The node agent as kubectl shows it: `orlop up` with real containers, in a network of each test's own.

use std::fs;

use orlop_testkit::{Containerd, Launch, Leftovers, NodeRuntime, Server, TestRuntime, eventually};
use serde_json::{Value, json};

use crate::forward::Forward;

/// A cluster of one real node. The order matters: the cluster ends before its runtime does.
struct Cluster {
    server: Server,
    runtime: NodeRuntime,
}

impl Cluster {
    fn start() -> Cluster {
        Cluster::start_on(TestRuntime::of_suite())
    }

    fn start_on(kind: TestRuntime) -> Cluster {
        Cluster::launch_on(kind, json!({}), |launch| launch)
    }

    /// With these fields in the agent's configuration.
    fn launch(config: Value, with: impl Fn(Launch) -> Launch) -> Cluster {
        Cluster::launch_on(TestRuntime::of_suite(), config, with)
    }

    fn launch_on(kind: TestRuntime, config: Value, with: impl Fn(Launch) -> Launch) -> Cluster {
        let runtime = NodeRuntime::start(kind);
        let server = with(runtime.launch(config)).start();
        let cluster = Cluster { server, runtime };
        cluster.ready_node();
        cluster
    }

    fn ready_node(&self) {
        eventually("the node is ready and pods may be made", || {
            let node = self
                .server
                .sh("kubectl get node real -o 'jsonpath={.status.conditions[?(@.type==\"Ready\")].status}'");
            let account = self.server.sh("kubectl get sa default -o name");
            (node.stdout.trim() == "True" && account.code == Some(0)).then_some(())
        });
    }

    fn apply(&self, object: &Value) {
        self.server.run_with("kubectl apply -f -", &object.to_string());
    }

    fn pod(&self, name: &str) -> Value {
        self.server.get(&format!("pod {name}"))
    }

    fn until(&self, name: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        eventually(&format!("pod {name}: {what}"), || {
            let pod = self.pod(name);
            holds(&pod).then_some(pod)
        })
    }

    fn until_phase(&self, name: &str, phase: &str) -> Value {
        self.until(name, phase, |pod| pod["status"]["phase"] == phase)
    }

    fn until_ready(&self, name: &str) -> Value {
        self.until(name, "ready", |pod| condition(pod, "Ready")["status"] == "True")
    }

    fn gone(&self, name: &str) {
        eventually(&format!("pod {name} is gone"), || {
            let left = self.server.sh(&format!("kubectl get pod {name} -o name"));
            (left.code != Some(0)).then_some(())
        });
    }

    fn no_leftovers(&self) {
        eventually("nothing is left of the pods", || {
            (self.runtime.leftovers() == Leftovers::default()).then_some(())
        });
    }
}

fn condition(pod: &Value, kind: &str) -> Value {
    let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.into_iter().find(|c| c["type"] == kind).unwrap_or_default()
}

/// A pod of one busybox container that runs this script.
fn shell(name: &str, script: &str, more: Value) -> Value {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "image": "busybox", "imagePullPolicy": "IfNotPresent", "command": ["sh", "-c", script]}],
    }});
    for (key, value) in more.as_object().into_iter().flatten() {
        match key.as_str() {
            "container" => {
                for (key, value) in value.as_object().into_iter().flatten() {
                    pod["spec"]["containers"][0][key] = value.clone();
                }
            }
            _ => pod["spec"][key] = value.clone(),
        }
    }
    pod
}

/// What runs until it is told to end, and then ends at once.
const WAITS: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";

/// The same without a moment in between.
const ENDS_AT_ONCE: &str = "trap 'exit 0' TERM; sleep 1000 & wait";

#[test]
fn a_pod_lives_and_leaves_nothing() {
    a_pod_lives_and_leaves_nothing_on(TestRuntime::of_suite());
}

#[test]
fn a_pod_lives_and_leaves_nothing_with_containerd() {
    a_pod_lives_and_leaves_nothing_on(TestRuntime::Containerd);
}

fn a_pod_lives_and_leaves_nothing_on(kind: TestRuntime) {
    let cluster = Cluster::start_on(kind);
    let node = cluster.server.get("node real");
    assert_eq!(
        node["status"]["nodeInfo"]["containerRuntimeVersion"]
            .as_str()
            .unwrap()
            .split(':')
            .next(),
        Some(cluster.runtime.name())
    );
    assert!(node["status"]["capacity"]["cpu"].is_string() && node["status"]["allocatable"]["memory"].is_string());
    cluster.apply(&shell(
        "first",
        &format!("echo hello from $HOSTNAME; {WAITS}"),
        json!({}),
    ));
    let pod = cluster.until_ready("first");
    for kind in [
        "PodScheduled",
        "Initialized",
        "PodReadyToStartContainers",
        "ContainersReady",
        "Ready",
    ] {
        assert_eq!(condition(&pod, kind)["status"], "True", "{kind}");
    }
    assert_eq!(pod["status"]["qosClass"], "BestEffort");
    assert!(pod["status"]["podIP"].is_string());
    let log = eventually("the log has the line", || {
        let log = cluster.server.run("kubectl logs first");
        (!log.is_empty()).then_some(log)
    });
    assert_eq!(log, "hello from first\n");
    let events = cluster
        .server
        .run("kubectl get events --field-selector involvedObject.name=first -o jsonpath={.items[*].reason}");
    for reason in ["Scheduled", "Pulled", "Created", "Started"] {
        assert!(events.split(' ').any(|e| e == reason), "{reason} in {events}");
    }
    cluster.server.run("kubectl delete pod first --wait=false");
    cluster.gone("first");
    cluster.no_leftovers();
}

/// What people look at and change on a node: its configuration in effect, its static pods, its pod network.
#[test]
fn the_configuration_in_effect_and_static_pods() {
    let cluster = Cluster::start();
    the_configuration_in_effect(&cluster);
    let server = &cluster.server;
    // The folder is there for whoever has a manifest.
    let folder = server.data_dir().join("kubelet/manifests");
    fs::write(folder.join("still.json"), shell("still", WAITS, json!({})).to_string()).unwrap();
    eventually("the static pod runs and is shown", || {
        let pod = server.sh("kubectl get pod still-real -o jsonpath={.status.phase}");
        (pod.stdout == "Running").then_some(())
    });
    fs::remove_file(folder.join("still.json")).unwrap();
    cluster.gone("still-real");
}

#[test]
fn the_configuration_in_effect_with_containerd() {
    let cluster = Cluster::start_on(TestRuntime::Containerd);
    let (containerd, server) = (cluster.runtime.containerd().unwrap(), &cluster.server);
    the_configuration_in_effect(&cluster);
    // The runtime told where it looks: the network there is somebody else's, and is left alone.
    let theirs = containerd.cni_directory().join("05-test.conflist");
    eventually("the log tells whose the pod network is", || {
        server.log().contains(&theirs.display().to_string()).then_some(())
    });
    assert!(!server.log().contains("pod network is not ready"), "{}", server.log());
}

fn the_configuration_in_effect(cluster: &Cluster) {
    let server = &cluster.server;
    // The embedded runtime has none.
    let endpoint = cluster
        .runtime
        .containerd()
        .map(Containerd::endpoint)
        .unwrap_or_default();
    let configz = server.run("kubectl get --raw /api/v1/nodes/real/proxy/configz");
    let config: Value = serde_json::from_str(&configz).unwrap();
    let config = &config["kubeletconfig"];
    let folder = server.data_dir().join("kubelet/manifests");
    assert_eq!(config["containerRuntimeEndpoint"], endpoint);
    assert_eq!(config["staticPodPath"], json!(folder));
    assert_eq!(config["cgroupDriver"], "cgroupfs");
    let node = server.get("node real");
    assert_eq!(
        config["port"],
        node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    );
    let shown = fs::read_to_string(server.data_dir().join("kubelet/config.yaml")).unwrap();
    let line = format!("\nstaticPodPath: {}\n", folder.display());
    assert!(shown.starts_with("# ") && shown.contains(&line), "{shown}");
}

/// A node on which one pod at a time has room, and pods that come and go in it: none may be refused for room that the
/// scheduler found free.
#[test]
fn room_that_is_free_is_given_away_at_once() {
    let cluster = Cluster::start();
    let server = &cluster.server;
    let cpus = server.run("kubectl get node real -o jsonpath={.status.allocatable.cpu}");
    let most = format!("{}m", cpus.parse::<u32>().unwrap() * 1000 - 400);
    // As the conformance suite does.
    server.run(
        "kubectl patch node real --subresource=status --type=merge -p \
         '{\"status\":{\"capacity\":{\"scheduling.k8s.io/foo\":\"5\"},\"allocatable\":{\"scheduling.k8s.io/foo\":\"5\"}}}'",
    );
    let classes: Vec<Value> = (0..16)
        .map(|n| {
            json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
                   "metadata": {"name": format!("class-{n}")}, "value": 1000 + n})
        })
        .collect();
    cluster.apply(&json!({"apiVersion": "v1", "kind": "List", "items": classes}));
    let asking = |name: &str, resource: &str, amount: &str, more: Value| {
        let mut pod = shell(name, ENDS_AT_ONCE, more);
        pod["spec"]["containers"][0]["resources"] =
            json!({"requests": {resource: amount}, "limits": {resource: amount}});
        pod
    };
    let runs = |name: &str| {
        cluster.until(name, "runs", |pod| {
            assert_ne!(pod["status"]["phase"], "Failed", "{}", pod["status"]);
            pod["status"]["phase"] == "Running"
        })
    };
    let mut rounds = 0;
    // A pod waits for the room of another that is deleted.
    cluster.apply(&asking("turn-0", "cpu", &most, json!({})));
    for turn in 1..=18 {
        let (old, new) = (format!("turn-{}", turn - 1), format!("turn-{turn}"));
        runs(&old);
        cluster.apply(&asking(&new, "cpu", &most, json!({})));
        server.run(&format!("kubectl delete pod {old} --wait=false"));
        runs(&new);
        rounds += 1;
    }
    server.run("kubectl delete pod turn-18 --wait=false");
    // A pod pushes another off, by what the node has itself and by what somebody says it has.
    for (resource, amount, count) in [("cpu", most.as_str(), 10), ("scheduling.k8s.io/foo", "3", 8)] {
        let name = |n: u32| format!("{}-{n}", resource.replace(['.', '/'], "-"));
        for n in 0..=count {
            let class = json!({"priorityClassName": format!("class-{n}")});
            cluster.apply(&asking(&name(n), resource, amount, class));
            runs(&name(n));
            rounds += u32::from(n > 0);
        }
        server.run(&format!("kubectl delete pod {} --wait=false", name(count)));
    }
    // A rollout ends what there is before it starts anew.
    let template = |version: u32| {
        let mut pod = asking("x", "cpu", &most, json!({}));
        pod["spec"]["containers"][0]["env"] = json!([{"name": "VERSION", "value": version.to_string()}]);
        json!({"metadata": {"labels": {"app": "recreated"}}, "spec": pod["spec"]})
    };
    for version in 0..=14 {
        cluster.apply(
            &json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "recreated"},
            "spec": {"strategy": {"type": "Recreate"}, "selector": {"matchLabels": {"app": "recreated"}},
                     "template": template(version)}}),
        );
        server.run("kubectl rollout status deployment recreated --timeout=60s");
        rounds += u32::from(version > 0);
    }
    assert_eq!(rounds, 50);
    let reasons = server.run("kubectl get events -o jsonpath={.items[*].reason}");
    let refused = |reason: &&str| reason.starts_with("OutOf") || *reason == "UnexpectedAdmissionError";
    assert_eq!(reasons.split(' ').find(refused), None, "{reasons}");
    let failed = server.run("kubectl get pods --field-selector=status.phase=Failed -o name");
    assert_eq!(failed, "");
}

#[test]
fn commands_files_and_ports_of_a_container() {
    commands_files_and_ports_on(TestRuntime::of_suite());
}

#[test]
fn commands_files_and_ports_with_containerd() {
    commands_files_and_ports_on(TestRuntime::Containerd);
}

fn commands_files_and_ports_on(kind: TestRuntime) {
    let cluster = Cluster::start_on(kind);
    let serve = "mkdir -p /www; echo page > /www/index.html; httpd -p 8080 -h /www; trap 'exit 0' TERM; while :; do sleep 0.1; done";
    cluster.apply(&shell(
        "work",
        serve,
        json!({"container": {"ports": [{"containerPort": 8080}],
        "readinessProbe": {"httpGet": {"port": 8080, "path": "/index.html"}, "periodSeconds": 1}}}),
    ));
    cluster.until_ready("work");
    let server = &cluster.server;
    assert_eq!(
        server.run("kubectl exec work -- sh -c 'echo out; echo err >&2'"),
        "out\n"
    );
    let failed = server.sh("kubectl exec work -- sh -c 'exit 7'");
    assert!(failed.stderr.contains("exit code 7"), "{}", failed.stderr);
    assert_eq!(
        server
            .run_with("kubectl exec -i work -- wc -c", &"x".repeat(100_000))
            .trim(),
        "100000"
    );
    // Ten megabytes there and back.
    let bytes: Vec<u8> = (0..10u32 << 20)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    fs::write(server.home().join("sent"), &bytes).unwrap();
    server.run("kubectl cp sent work:/tmp/there");
    server.run("kubectl cp work:/tmp/there back");
    assert!(fs::read(server.home().join("back")).unwrap() == bytes, "a copy differs");
    // A port, by whatever protocol this kubectl speaks.
    let forward = Forward::start(server, "pod/work", 8080);
    assert_eq!(forward.fetch("/index.html"), "page\n");
    fs::write(server.home().join("big"), &bytes).unwrap();
    server.run("kubectl cp big work:/www/big");
    assert!(
        forward.fetch_bytes("/big") == bytes,
        "a download through the forwarded port differs"
    );
    server.run("kubectl delete pod work --wait=false");
    cluster.gone("work");
    cluster.no_leftovers();
}

#[test]
fn what_can_not_start_says_why_and_goes_on_when_it_can() {
    let cluster = Cluster::start();
    let waiting = |name: &str, reason: &str| {
        cluster.until(name, reason, |pod| {
            pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == reason
        })
    };
    cluster.apply(&shell(
        "no-image",
        WAITS,
        json!({"container": {"image": "localhost/nothing:1"}}),
    ));
    cluster.apply(&shell("bad-name", WAITS, json!({"container": {"image": "BAD::NAME"}})));
    cluster.apply(&shell(
        "no-command",
        "",
        json!({"container": {"command": ["/no/such/program"]}}),
    ));
    cluster.apply(&shell(
        "no-config",
        WAITS,
        json!({"container": {"env": [
        {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "later", "key": "a"}}}]}}),
    ));
    cluster.apply(&shell(
        "fails",
        "echo no >&2; exit 3",
        json!({"restartPolicy": "Never"}),
    ));
    cluster.apply(&shell(
        "works",
        "echo done > /dev/termination-log",
        json!({"restartPolicy": "Never"}),
    ));
    cluster.apply(&shell("loops", "exit 1", json!({})));
    waiting("no-image", "ErrImagePull");
    let pod = waiting("no-image", "ImagePullBackOff");
    let message = &pod["status"]["containerStatuses"][0]["state"]["waiting"]["message"];
    let message = message.as_str().unwrap();
    assert!(
        message.starts_with("Back-off pulling image \"localhost/nothing:1\": ErrImagePull: "),
        "{message}"
    );
    waiting("bad-name", "InvalidImageName");
    let pod = waiting("no-config", "CreateContainerConfigError");
    let message = &pod["status"]["containerStatuses"][0]["state"]["waiting"]["message"];
    assert_eq!(message, "configmap \"later\" not found");
    let failed = cluster.until_phase("fails", "Failed");
    let ended = &failed["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!((&ended["exitCode"], &ended["reason"]), (&json!(3), &json!("Error")));
    let done = cluster.until_phase("works", "Succeeded");
    let ended = &done["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!(
        (&ended["message"], &ended["reason"]),
        (&json!("done\n"), &json!("Completed"))
    );
    waiting("loops", "CrashLoopBackOff");
    // The second try waits as containers do that end by themselves.
    let pod = waiting("no-command", "CrashLoopBackOff");
    let last = &pod["status"]["containerStatuses"][0]["lastState"]["terminated"];
    assert_eq!(
        (&last["exitCode"], &last["reason"]),
        (&json!(128), &json!("StartError")),
        "{pod}"
    );
    assert!(
        pod["status"].to_string().contains("no such file or directory"),
        "{}",
        pod["status"]
    );
    cluster.server.run("kubectl create configmap later --from-literal=a=b");
    cluster.until_phase("no-config", "Running");
}

#[test]
fn probes_limits_and_restarts() {
    let cluster = Cluster::start();
    cluster.apply(&shell(
        "alive",
        "touch /tmp/ok; sleep 2; rm /tmp/ok; sleep 600",
        json!({"container": {
        "livenessProbe": {"exec": {"command": ["cat", "/tmp/ok"]}, "periodSeconds": 1, "failureThreshold": 1}}}),
    ));
    cluster.apply(&shell(
        "hungry",
        "sleep 1; tail /dev/zero",
        json!({"restartPolicy": "Never",
        "container": {"resources": {"limits": {"memory": "16Mi"}}}}),
    ));
    cluster.apply(&shell(
        "busy",
        "while :; do :; done",
        json!({
        "container": {"resources": {"limits": {"cpu": "100m"}}}}),
    ));
    let hungry = cluster.until_phase("hungry", "Failed");
    let ended = &hungry["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!(
        (&ended["reason"], &ended["exitCode"]),
        (&json!("OOMKilled"), &json!(137))
    );
    cluster.until("alive", "restarted by its probe", |pod| {
        pod["status"]["containerStatuses"][0]["restartCount"].as_u64() >= Some(1)
    });
    cluster.until_phase("busy", "Running");
    let stat = "cat /sys/fs/cgroup/cpu/cpu.stat /sys/fs/cgroup/cpu.stat 2>/dev/null | grep nr_throttled";
    eventually("the busy one is throttled", || {
        let said = cluster
            .server
            .sh(&format!("kubectl exec busy -- sh -c '{stat}'"))
            .stdout;
        let throttled: u64 = said.split_whitespace().nth(1)?.parse().ok()?;
        (throttled > 0).then_some(())
    });
    assert_eq!(cluster.pod("busy")["status"]["qosClass"], "Burstable");
}

#[test]
fn whole_cpus_are_for_those_who_ask_for_them() {
    let config = json!({"cpuManagerPolicy": "static", "reservedSystemCPUs": "0", "cpuManagerReconcilePeriod": "1s"});
    let cluster = Cluster::launch(config, |launch| launch);
    let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    let cpus = |pod: &str| {
        let line = format!("kubectl exec {pod} -- grep Cpus_allowed_list /proc/1/status");
        cluster.server.run(&line).split_whitespace().last().unwrap().to_string()
    };
    let until_on = |pod: &str, what: &str, holds: &dyn Fn(&str) -> bool| {
        eventually(&format!("{pod} runs on {what}"), || holds(&cpus(pod)).then_some(()));
    };
    // All but the one that is kept for the system.
    let most = cluster.server.get("node real")["status"]["allocatable"]["cpu"].clone();
    let whole = |name: &str| {
        let limits = json!({"container": {"resources": {"limits": {"cpu": most, "memory": "32Mi"}}}});
        shell(name, "sleep 1000", limits)
    };
    cluster.apply(&shell("shared", "sleep 1000", json!({})));
    cluster.until_ready("shared");
    until_on("shared", "all", &|on| on == online.trim());
    cluster.apply(&whole("first"));
    cluster.until_ready("first");
    until_on("shared", "the system's", &|on| on == "0");
    until_on("first", "its own", &|on| !on.starts_with('0'));
    // Gone without grace: the next one gets in while the first one still ends.
    cluster.apply(&whole("second"));
    cluster.server.run("kubectl delete pod first --grace-period=0 --force");
    cluster.until_ready("second");
    until_on("second", "its own", &|on| !on.starts_with('0'));
    cluster.server.run("kubectl delete pod second");
    until_on("shared", "all", &|on| on == online.trim());
    // What the node can't give whole it refuses, and says nothing of containers.
    let mut odd = whole("odd");
    odd["spec"]["nodeName"] = json!("real");
    odd["spec"]["containers"][0]["resources"]["limits"]["cpu"] = json!("100");
    cluster.apply(&odd);
    let status = cluster.until_phase("odd", "Failed")["status"].clone();
    assert_eq!(status["reason"], "UnexpectedAdmissionError", "{status}");
    assert!(
        status["containerStatuses"].is_null() && status["conditions"].is_null(),
        "{status}"
    );
}

#[test]
fn volumes_variables_and_init_containers() {
    let cluster = Cluster::start();
    let server = &cluster.server;
    server.run("kubectl create configmap words --from-literal=greeting=hello");
    server.run("kubectl create secret generic hidden --from-literal=key=secret-value");
    let script = format!(
        "cat /etc/words/greeting; echo; cat /etc/hidden/key; echo; cat /shared/from-init; echo $GREETING $NODE; cat /info/name; echo; \
         ls /var/run/secrets/kubernetes.io/serviceaccount; id -u; {WAITS}"
    );
    cluster.apply(&shell("mounts", &script, json!({
        "securityContext": {"runAsUser": 1000, "fsGroup": 2000},
        "initContainers": [{"name": "first", "image": "busybox", "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", "echo init was here > /shared/from-init"],
            "volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}],
        "container": {
            "env": [{"name": "GREETING", "valueFrom": {"configMapKeyRef": {"name": "words", "key": "greeting"}}},
                {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
            "volumeMounts": [{"name": "words", "mountPath": "/etc/words"}, {"name": "hidden", "mountPath": "/etc/hidden"},
                {"name": "shared", "mountPath": "/shared"}, {"name": "info", "mountPath": "/info"}],
        },
        "volumes": [{"name": "words", "configMap": {"name": "words"}}, {"name": "hidden", "secret": {"secretName": "hidden"}},
            {"name": "shared", "emptyDir": {}},
            {"name": "info", "downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}}],
    })));
    cluster.until_ready("mounts");
    let log = eventually("it said all", || {
        let log = server.run("kubectl logs mounts");
        log.ends_with("1000\n").then_some(log)
    });
    assert_eq!(
        log,
        "hello\nsecret-value\ninit was here\nhello real\nmounts\nca.crt\nnamespace\ntoken\n1000\n"
    );
    let pod = cluster.pod("mounts");
    assert_eq!(
        pod["status"]["initContainerStatuses"][0]["state"]["terminated"]["reason"],
        "Completed"
    );
    server.run("kubectl delete pod mounts --wait=false");
    cluster.gone("mounts");
    cluster.no_leftovers();
}

/// What a container is known by, and whether it is the same one still.
fn container_identity(pod: &Value) -> (Value, Value, Value) {
    let container = &pod["status"]["containerStatuses"][0];
    (
        container["containerID"].clone(),
        container["restartCount"].clone(),
        container["state"].clone(),
    )
}

/// The agent is killed: what runs goes on running, and is known again.
#[test]
fn what_runs_survives_the_agent() {
    let mut cluster = Cluster::start();
    survives_the_agent(&mut cluster);
    cluster.server.run("kubectl delete pod stays --wait=false");
    cluster.gone("stays");
    cluster.no_leftovers();
}

/// A pod `stays` with which nothing happens while the agent is killed and started again.
fn survives_the_agent(cluster: &mut Cluster) -> Value {
    cluster.apply(&shell("stays", WAITS, json!({})));
    let before = cluster.until_ready("stays");
    cluster.server.kill();
    cluster.server.start_again();
    cluster.ready_node();
    cluster.until_ready("stays");
    assert_eq!(container_identity(&cluster.pod("stays")), container_identity(&before));
    before
}

/// The runtime is a process of its own: it is killed, too.
#[test]
fn what_runs_survives_the_agent_and_containerd() {
    let mut cluster = Cluster::start_on(TestRuntime::Containerd);
    let before = survives_the_agent(&mut cluster);
    let containerd = cluster.runtime.containerd_mut().unwrap();
    containerd.kill();
    containerd.restart();
    cluster.apply(&shell("new", WAITS, json!({})));
    cluster.until_ready("new");
    assert_eq!(
        container_identity(&cluster.until_ready("stays")),
        container_identity(&before)
    );
    cluster.server.run("kubectl delete pod stays new --wait=false");
    cluster.gone("stays");
    cluster.gone("new");
    cluster.no_leftovers();
}

#[test]
fn static_pods_come_from_files_and_go_with_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_path_buf();
    let manifest = shell("still", WAITS, json!({}));
    fs::write(path.join("still.yaml"), manifest.to_string()).unwrap();
    fs::write(path.join("broken.yaml"), "apiVersion: v1\nkind: Pod\nmetadata: {name").unwrap();
    let cluster = Cluster::launch(json!({}), |launch| {
        launch.arg(format!("--pod-manifest-path={}", path.display()))
    });
    let mirror = cluster.until_ready("still-real");
    assert_eq!(mirror["metadata"]["ownerReferences"][0]["kind"], "Node");
    assert_eq!(mirror["metadata"]["annotations"]["kubernetes.io/config.source"], "file");
    let id = mirror["status"]["containerStatuses"][0]["containerID"].clone();
    // Deleting the mirror does nothing to what it shows.
    cluster.server.run("kubectl delete pod still-real --timeout=60s");
    cluster
        .server
        .run("kubectl wait --for=create pod/still-real --timeout=60s");
    let again = cluster.until("still-real", "back", |pod| {
        pod["metadata"]["uid"] != mirror["metadata"]["uid"]
            && pod["status"]["containerStatuses"][0]["containerID"] == id
    });
    assert!(again["metadata"]["deletionTimestamp"].is_null());
    fs::remove_file(path.join("still.yaml")).unwrap();
    cluster.gone("still-real");
    cluster.no_leftovers();
}

#[test]
fn top_shows_what_containers_burn() {
    let cluster = Cluster::start();
    let limits = json!({"container": {"resources": {"limits": {"cpu": "100m", "memory": "32Mi"}}}});
    cluster.apply(&shell("burn", "while :; do :; done", limits));
    cluster.apply(&shell("rest", "exec sleep 1000", json!({})));
    cluster.until_ready("burn");
    cluster.until_ready("rest");
    let milli = |cpu: &str| cpu.strip_suffix('m').and_then(|n| n.parse::<u64>().ok());
    // A machine with much else to do may give it less for a while; the limit is never passed by much.
    eventually("the pod burns about its limit", || {
        let all = cluster.server.sh("kubectl top pod --no-headers --containers").stdout;
        let used = |pod: &str| {
            let line = all.lines().find(|line| line.starts_with(pod))?;
            milli(line.split_whitespace().nth(2)?)
        };
        let (burn, rest) = (used("burn")?, used("rest")?);
        ((70..=130).contains(&burn) && rest < 20).then_some(())
    });
    let node = cluster.server.run("kubectl top node real --no-headers");
    assert!(node.split_whitespace().nth(3).unwrap().ends_with("Mi"), "{node}");
    // A pod is its containers and its sandbox.
    let summary = cluster
        .server
        .run("kubectl get --raw /api/v1/nodes/real/proxy/stats/summary");
    let summary: Value = serde_json::from_str(&summary).unwrap();
    let pods = summary["pods"].as_array().unwrap();
    let burn = pods.iter().find(|pod| pod["podRef"]["name"] == "burn").unwrap();
    let container = &burn["containers"][0];
    for (part, figure) in [
        ("cpu", "usageCoreNanoSeconds"),
        ("memory", "workingSetBytes"),
        ("memory", "usageBytes"),
    ] {
        let (whole, one) = (burn[part][figure].as_u64(), container[part][figure].as_u64());
        assert!(one > Some(0) && whole >= one, "{part} {figure}: {burn}");
    }
    burn_in_prometheus(&cluster, &burn["podRef"]["uid"]);
    cluster.server.run("kubectl delete pod burn rest --wait=false");
    cluster.gone("burn");
    cluster.gone("rest");
    cluster.no_leftovers();
}

/// The pages that monitoring reads, with the pod `burn` of this uid on them.
fn burn_in_prometheus(cluster: &Cluster, uid: &Value) {
    let page = |name: &str| {
        let path = format!("/api/v1/nodes/real/proxy/metrics{name}");
        cluster.server.run(&format!("kubectl get --raw {path}"))
    };
    let value = |page: &str, start: &str| -> f64 {
        let line = page.lines().find(|line| line.starts_with(start));
        let line = line.unwrap_or_else(|| panic!("{start} is not in\n{page}"));
        let rest = line[start.len()..].rsplit('}').next().unwrap_or_default();
        rest.split_whitespace().next().unwrap().parse().unwrap()
    };
    let own = page("");
    for (start, least) in [
        (
            "kubelet_runtime_operations_total{operation_type=\"run_podsandbox\"}",
            2.0,
        ),
        (
            "kubelet_runtime_operations_duration_seconds_count{operation_type=\"start_container\"}",
            2.0,
        ),
        ("kubelet_started_containers_total{container_type=\"container\"}", 2.0),
        ("kubelet_pod_start_duration_seconds_count", 2.0),
        ("kubelet_running_pods", 2.0),
        ("process_resident_memory_bytes", 1e6),
    ] {
        assert!(value(&own, start) >= least, "{start}\n{own}");
    }
    let cadvisor = page("/cadvisor");
    let uid = uid.as_str().unwrap();
    let of_burn = |name: &str| {
        let lines = cadvisor.lines().filter(|line| line.starts_with(&format!("{name}{{")));
        let mut lines = lines.filter(|line| line.contains("container=\"burn\"") || line.contains("container=\"main\""));
        lines.find(|line| line.contains(uid)).map(str::to_string)
    };
    for name in [
        "container_cpu_usage_seconds_total",
        "container_cpu_cfs_throttled_periods_total",
        "container_memory_working_set_bytes",
        "container_spec_memory_limit_bytes",
    ] {
        let line = of_burn(name).unwrap_or_else(|| panic!("{name} of the pod is not in\n{cadvisor}"));
        let figure: f64 = line
            .rsplit('}')
            .next()
            .unwrap()
            .split_whitespace()
            .next()
            .unwrap()
            .parse()
            .unwrap();
        assert!(figure > 0.0, "{line}");
    }
    let limit = of_burn("container_spec_memory_limit_bytes").unwrap();
    assert!(
        limit.contains("} 33554432") || limit.contains("} 3.3554432e+07"),
        "{limit}"
    );
    let network = cadvisor
        .lines()
        .find(|l| l.starts_with("container_network_receive_packets_total{") && l.contains(uid));
    assert!(network.is_some(), "{cadvisor}");
}
