//! What people expect of a cluster that kubeadm made: the components as pods of kube-system with states and logs, their
//! configuration in ConfigMaps, the role of the node that they run on.

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Stdio};

use nix::sys::signal::Signal;
use orlop_testkit::{Launch, Server, eventually};
use serde_json::{Value, json};

const CONTROL_PLANE: [&str; 3] = ["kube-apiserver-n1", "kube-controller-manager-n1", "kube-scheduler-n1"];

fn launch() -> Launch {
    Launch::up()
        .arg("--nodes=1")
        .arg("--runtime=simulated")
        .arg("--node-name=n1")
}

/// A cluster with one simulated node whose components are shown.
fn start() -> Server {
    let server = launch().start();
    until_shown(&server, &CONTROL_PLANE);
    server
}

/// The pods of kube-system that are ready.
fn ready_pods(server: &Server) -> Vec<String> {
    let pods = server.get("pods -n kube-system");
    let is_ready = |pod: &&Value| pod["status"]["containerStatuses"][0]["ready"] == true;
    let all = pods["items"].as_array().unwrap().iter().filter(is_ready);
    all.map(|pod| pod["metadata"]["name"].as_str().unwrap().to_string())
        .collect()
}

#[track_caller]
fn until_shown(server: &Server, expected: &[&str]) {
    eventually(&format!("pods of kube-system: {expected:?}"), || {
        (ready_pods(server) == expected).then_some(())
    });
}

fn scheduler_pod(server: &Server) -> Value {
    server.get("pod -n kube-system kube-scheduler-n1")
}

fn component(server: &Server, arguments: &str) {
    let program = orlop_testkit::orlop();
    let (program, directory) = (program.display(), server.data_dir().display());
    server.run(&format!("{program} component {arguments} --data-dir {directory}"));
}

fn logs(server: &Server, arguments: &str) -> String {
    server.run(&format!("kubectl logs -n kube-system {arguments}"))
}

#[test]
fn components_are_pods_of_the_control_planes_node() {
    let server = start();
    let node = server.get("node n1");
    assert_eq!(node["metadata"]["labels"]["node-role.kubernetes.io/control-plane"], "");
    assert_eq!(
        node["spec"]["taints"],
        Value::Null,
        "there is no other node to run pods on"
    );
    let shown = server.run("kubectl get nodes --no-headers");
    assert_eq!(shown.split_whitespace().nth(2), Some("control-plane"), "{shown}");

    let selected = server.run("kubectl get pods -n kube-system -l tier=control-plane -o name");
    assert_eq!(selected.lines().count(), 3, "{selected}");
    let pod = scheduler_pod(&server);
    let (metadata, spec, status) = (&pod["metadata"], &pod["spec"], &pod["status"]);
    assert_eq!(metadata["labels"]["component"], "kube-scheduler");
    assert!(
        metadata["annotations"]["kubernetes.io/config.mirror"].is_string(),
        "{metadata:#}"
    );
    let owner = &metadata["ownerReferences"][0];
    assert_eq!(
        (&owner["kind"], &owner["uid"]),
        (&json!("Node"), &node["metadata"]["uid"])
    );
    assert_eq!((&spec["nodeName"], &spec["hostNetwork"]), (&json!("n1"), &json!(true)));
    assert_eq!(spec["priorityClassName"], "system-node-critical");
    assert_eq!(
        spec["containers"][0]["resources"],
        json!({}),
        "pods have the whole node"
    );
    assert_eq!(spec["containers"][0]["command"][0], "kube-scheduler");
    assert_eq!(status["phase"], "Running");
    assert_eq!(status["podIP"], node["status"]["addresses"][0]["address"]);
    let line = server.run("kubectl get pods -n kube-system --no-headers kube-scheduler-n1");
    let cells: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(cells[1..4], ["1/1", "Running", "0"], "{line}");
    let apiserver = server.run("kubectl describe pod -n kube-system kube-apiserver-n1");
    assert!(
        apiserver.contains("--service-cluster-ip-range=10.96.0.0/12"),
        "{apiserver}"
    );
    assert!(apiserver.contains("Controlled By:  Node/n1"), "{apiserver}");

    let top = server.run("kubectl top pod --all-namespaces --no-headers");
    assert!(
        top.contains("kube-apiserver-n1") && top.lines().count() == 1,
        "what the process uses: {top}"
    );
    let refused = server.fails("kubectl exec -n kube-system kube-scheduler-n1 -- ls");
    assert!(refused.contains("has no container of its own"), "{refused}");
    // Pods are still placed on the node.
    server.run("kubectl wait --for=create sa/default --timeout=60s && kubectl run p --image=nginx");
    server.run("kubectl wait --for=condition=Ready pod/p --timeout=60s");
}

#[test]
fn without_a_node_there_is_nothing_to_show_them_on() {
    let server = Server::start();
    eventually("the scheduler's configuration is there", || {
        let found = server.sh("kubectl get configmap -n kube-system kube-scheduler-config");
        (found.code == Some(0)).then_some(())
    });
    assert_eq!(server.get("pods -A")["items"], json!([]));
}

#[test]
fn pods_come_and_go_with_their_components() {
    let mut server = start();
    server.expect_panics();
    component(&server, "stop scheduler");
    until_shown(&server, &CONTROL_PLANE[..2]);
    let gone = server.fails("kubectl get pod -n kube-system kube-scheduler-n1");
    assert!(gone.contains("NotFound"), "{gone}");
    component(&server, "start scheduler");
    until_shown(&server, &CONTROL_PLANE);

    // Deleted by hand it comes back, as the mirror pod that it is.
    let uid = scheduler_pod(&server)["metadata"]["uid"].clone();
    server.run("kubectl delete pod -n kube-system kube-scheduler-n1 --timeout=30s");
    until_shown(&server, &CONTROL_PLANE);
    assert_ne!(scheduler_pod(&server)["metadata"]["uid"], uid);

    component(&server, "panic scheduler");
    let status = eventually("it is started again", || {
        let status = scheduler_pod(&server)["status"]["containerStatuses"][0].clone();
        (status["restartCount"] == 1 && status["ready"] == true).then_some(status)
    });
    let ended = &status["lastState"]["terminated"];
    assert_eq!(
        (&ended["exitCode"], &ended["message"]),
        (&json!(101), &json!("panicked: fault injected"))
    );
    let before = logs(&server, "-p kube-scheduler-n1");
    assert!(
        before.contains("component failed") && before.contains("fault injected"),
        "{before}"
    );
    let now = logs(&server, "kube-scheduler-n1");
    assert!(
        now.contains("started scheduler") && !now.contains("component failed"),
        "{now}"
    );
}

#[test]
fn a_stalled_component_is_not_ready() {
    let server = launch().arg("--component-stall-timeout=2s").start();
    until_shown(&server, &CONTROL_PLANE);
    component(&server, "stall scheduler 6");
    until_shown(&server, &CONTROL_PLANE[..2]);
    assert_eq!(scheduler_pod(&server)["status"]["phase"], "Running");
    until_shown(&server, &CONTROL_PLANE);
    assert_eq!(
        scheduler_pod(&server)["status"]["containerStatuses"][0]["restartCount"],
        0
    );
}

#[test]
fn pods_outlive_the_process_and_are_not_doubled() {
    let mut server = start();
    let uids = |server: &Server| server.run("kubectl get pods -n kube-system -o jsonpath={.items[*].metadata.uid}");
    let before = uids(&server);
    assert_eq!(server.stop(Signal::SIGTERM).code(), Some(0));
    server.start_again();
    until_shown(&server, &CONTROL_PLANE);
    server.kill();
    server.start_again();
    until_shown(&server, &CONTROL_PLANE);
    assert_eq!(uids(&server), before);
    // What was logged before the process was killed is not lost.
    let earlier = logs(&server, "-p kube-apiserver-n1");
    assert!(earlier.contains("started API server"), "{earlier}");
}

/// `kubectl logs -f`. It is killed with the value.
struct Follower {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Follower {
    fn start(server: &Server, arguments: &str) -> Follower {
        let mut command = server.command(&format!("exec kubectl logs -n kube-system -f {arguments}"));
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Follower { child, lines }
    }

    /// Reads on until a line has this in it.
    #[track_caller]
    fn until(&mut self, part: &str) {
        let found = self
            .lines
            .by_ref()
            .map(|line| line.unwrap())
            .find(|line| line.contains(part));
        assert!(found.is_some(), "the log ended without {part:?}");
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
fn logs_of_components_are_logs_of_pods() {
    let server = start();
    let all = logs(&server, "kube-controller-manager-n1");
    assert!(all.contains("started controllers"), "{all}");
    assert!(
        !all.contains("started scheduler"),
        "every component has a log of its own: {all}"
    );
    let last = logs(&server, "kube-controller-manager-n1 --tail=1 --timestamps");
    assert_eq!(last.lines().count(), 1, "{last}");
    let time = last.split(' ').next().unwrap();
    assert!(time.ends_with('Z') && time.contains("T"), "{last}");
    assert_eq!(
        logs(&server, "kube-controller-manager-n1 --since-time=2100-01-01T00:00:00Z"),
        ""
    );
    let selected = logs(&server, "-l component=kube-apiserver");
    assert!(selected.contains("started API server"), "{selected}");
    let missing = server.fails("kubectl logs -n kube-system kube-scheduler-n1 -c other");
    assert!(missing.contains("container other is not valid"), "{missing}");
    let none = server.fails("kubectl logs -n kube-system -p kube-scheduler-n1");
    assert!(none.contains("previous terminated container"), "{none}");

    let mut follower = Follower::start(&server, "kube-scheduler-n1");
    follower.until("started scheduler");
    component(&server, "stop scheduler");
    follower.until("stopped component");
    assert_eq!(follower.lines.by_ref().count(), 0, "it ends with the component");
    assert!(follower.child.wait().unwrap().success());
}

const HEADER: &str = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";

/// What the scheduler says that it runs with.
fn effective(server: &Server) -> String {
    std::fs::read_to_string(server.data_dir().join("scheduler-config.yaml")).unwrap_or_default()
}

fn write_config(server: &Server, text: &str) {
    let patch = json!({"data": {"config.yaml": text}}).to_string();
    server.run(&format!(
        "kubectl patch configmap -n kube-system kube-scheduler-config --patch '{patch}'"
    ));
}

/// The notes of the ConfigMap's events with this reason.
fn notes(server: &Server, reason: &str) -> Vec<String> {
    let events = server.get(&format!("events -n kube-system --field-selector reason={reason}"));
    let about = |event: &&Value| event["involvedObject"]["name"] == "kube-scheduler-config";
    let events = events["items"].as_array().unwrap().iter().filter(about);
    events
        .map(|event| event["message"].as_str().unwrap().to_string())
        .collect()
}

#[test]
fn a_changed_scheduler_configuration_takes_effect_if_it_is_valid() {
    let mut server = start();
    server.run("kubectl wait --for=create sa/default --timeout=60s");
    let map = server.get("configmap -n kube-system kube-scheduler-config");
    let text = map["data"]["config.yaml"].as_str().unwrap();
    assert!(
        text.contains("kind: KubeSchedulerConfiguration") && text.contains("NodeResourcesFit"),
        "{text}"
    );

    server.run(
        "kubectl create -f - <<< '{\"apiVersion\": \"v1\", \"kind\": \"Pod\", \"metadata\": {\"name\": \"p\"}, \
                \"spec\": {\"schedulerName\": \"other\", \"containers\": [{\"name\": \"c\", \"image\": \"i\"}]}}'",
    );
    write_config(
        &server,
        &format!("{HEADER}profiles: [{{schedulerName: default-scheduler}}, {{schedulerName: other}}]\n"),
    );
    server.run("kubectl wait --for=condition=Ready pod/p --timeout=60s");
    assert_eq!(notes(&server, "ConfigurationApplied").len(), 1);
    let status = scheduler_pod(&server)["status"]["containerStatuses"][0].clone();
    assert_eq!(status["restartCount"], 0, "a restart that is asked for is no failure");

    write_config(
        &server,
        &format!("{HEADER}parallelism: -1\nprofiles: [{{schedulerName: third}}]\n"),
    );
    let refused = eventually("the bad one is reported", || {
        notes(&server, "InvalidConfiguration").pop()
    });
    assert!(refused.contains("parallelism: Invalid value: -1"), "{refused}");
    let log = logs(&server, "kube-scheduler-n1");
    assert!(log.contains("ignored an invalid scheduler configuration"), "{log}");
    assert!(
        effective(&server).contains("schedulerName: other"),
        "{}",
        effective(&server)
    );
    // Not even a restart applies it.
    server.stop(Signal::SIGTERM);
    server.start_again();
    until_shown(&server, &CONTROL_PLANE);
    assert!(
        effective(&server).contains("schedulerName: other"),
        "{}",
        effective(&server)
    );

    server.run("kubectl delete configmap -n kube-system kube-scheduler-config");
    eventually("a deleted one is written anew with the defaults", || {
        let map = server
            .sh("kubectl get configmap -n kube-system kube-scheduler-config -o yaml")
            .stdout;
        let is_default = map.contains("NodeResourcesFit") && !map.contains("schedulerName: other");
        (is_default && !effective(&server).contains("schedulerName: other")).then_some(())
    });
}

#[test]
fn a_file_replaces_the_config_map_at_the_start_only() {
    let server = start();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("scheduler.yaml");
    std::fs::write(&file, format!("{HEADER}parallelism: 7\n")).unwrap();
    write_config(&server, &format!("{HEADER}parallelism: 5\n"));
    eventually("the edit is applied", || {
        effective(&server).contains("parallelism: 5\n").then_some(())
    });
    // Without the flag the edit stays.
    let server = server.relaunch(launch());
    until_shown(&server, &CONTROL_PLANE);
    assert!(
        effective(&server).contains("parallelism: 5\n"),
        "{}",
        effective(&server)
    );
    let server = server.relaunch(launch().arg(format!("--scheduler-config={}", file.display())));
    eventually("the file is applied", || {
        effective(&server).contains("parallelism: 7\n").then_some(())
    });
    let command = scheduler_pod(&server)["spec"]["containers"][0]["command"].clone();
    assert!(command.to_string().contains("--config="), "{command}");
    let map = server.run("kubectl get configmap -n kube-system kube-scheduler-config -o yaml");
    assert!(map.contains("parallelism: 7\n"), "{map}");
    write_config(&server, &format!("{HEADER}parallelism: 9\n"));
    eventually("edits go on to be applied", || {
        effective(&server).contains("parallelism: 9\n").then_some(())
    });
    // A ConfigMap that nobody edited goes back to the defaults with the flag.
    let with_file = launch().arg(format!("--scheduler-config={}", file.display()));
    let server = server.relaunch(with_file);
    eventually("the file is applied again", || {
        effective(&server).contains("parallelism: 7\n").then_some(())
    });
    let server = server.relaunch(launch());
    eventually("the defaults are back", || {
        effective(&server).contains("parallelism: 16\n").then_some(())
    });
}

#[test]
fn the_kubelets_configuration_is_a_config_map() {
    let server = start();
    let text = eventually("it is published", || {
        let map = server.sh("kubectl get configmap -n kube-system kubelet-config -o jsonpath={.data.kubelet}");
        Some(map.stdout).filter(|text| !text.is_empty())
    });
    assert!(
        text.contains("kind: KubeletConfiguration") && text.contains("clusterDomain: cluster.local"),
        "{text}"
    );
    server.run("kubectl get role -n kube-system kubeadm:kubelet-config");
    let can =
        "kubectl auth can-i get configmap/kubelet-config -n kube-system --as=system:node:n2 --as-group=system:nodes";
    assert_eq!(server.run(can), "yes\n");
}
