//! What `orlop up` does on a machine without any container software: the images that it brings along, its pod network with
//! services and policies, and what is left when it is killed and when it is purged.

use std::collections::BTreeSet;
use std::fs;
use std::process::Stdio;

use orlop_testkit::network::HOST_ADDRESS;
use orlop_testkit::{Leftovers, NodeRuntime, Server, TestRuntime, eventually, orlop};
use serde_json::{Value, json};

use crate::forward::Forward;

/// The order matters: the cluster ends before its runtime does.
struct Cluster {
    server: Server,
    runtime: NodeRuntime,
}

impl Cluster {
    fn start() -> Cluster {
        Cluster::start_on(NodeRuntime::start(TestRuntime::Embedded))
    }

    fn start_on(runtime: NodeRuntime) -> Cluster {
        Cluster::start_with(runtime, &["--proxy-mode=nftables"])
    }

    fn start_with(runtime: NodeRuntime, flags: &[&str]) -> Cluster {
        let launch = runtime.launch(json!({"clusterDNS": ["10.96.0.10"]}));
        let launch = flags.iter().fold(launch, |launch, flag| launch.arg(*flag));
        let server = launch.start();
        let cluster = Cluster { server, runtime };
        cluster.server.run("kubectl wait --for=create sa/default --timeout=60s");
        cluster
    }

    fn run(&self, line: &str) -> String {
        self.server.run(line)
    }

    /// Two pods of the image that is always there, behind a service of their name.
    fn with_hello(self) -> Cluster {
        self.run("kubectl create deployment hello --image=orlop.local/echo --replicas=2");
        self.run("kubectl expose deployment hello --port=80");
        self.run("kubectl rollout status deployment/hello --timeout=60s");
        self
    }

    /// A pod to ask from, with these labels.
    fn client(&self, name: &str, labels: &str) {
        self.run(&format!(
            "kubectl run {name} --labels={labels} --image=busybox --image-pull-policy=IfNotPresent -- sleep infinity"
        ));
        self.run(&format!("kubectl wait --for=condition=Ready pod/{name} --timeout=60s"));
    }

    /// Whether the service answers a pod within a moment.
    fn reaches(&self, pod: &str) -> bool {
        let line = format!("kubectl exec {pod} -- /bin/wget -T 1 -t 1 -qO- http://hello.default/hostname");
        self.server.sh(&line).code == Some(0)
    }

    fn hello_pods(&self) -> Vec<Value> {
        let pods = self.server.get("pods -l app=hello --sort-by=.metadata.name");
        pods["items"].as_array().unwrap().clone()
    }

    fn apply(&self, object: &Value) {
        self.server.run_with("kubectl apply -f -", &object.to_string());
    }

    fn purge(&mut self) {
        let data_dir = self.server.data_dir().display().to_string();
        let line = format!(
            "{} down --purge --grace-period=1 --data-dir={data_dir}",
            orlop().display()
        );
        self.run(&line);
        assert_eq!(self.server.wait_stopped().code(), Some(0));
    }

    fn policy(&self, name: &str, spec: Value) {
        self.apply(
            &json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": name},
            "spec": spec}),
        );
    }
}

/// What a command prints in the network of the test.
fn shown(line: &str) -> String {
    let output = std::process::Command::new("sh").args(["-c", line]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn name(pod: &Value) -> String {
    pod["metadata"]["name"].as_str().unwrap().to_string()
}

#[test]
fn an_image_that_is_always_there_and_kubectls_verbs() {
    let cluster = Cluster::start().with_hello();
    let (server, pods) = (&cluster.server, cluster.hello_pods());
    let names: BTreeSet<String> = pods.iter().map(name).collect();
    assert_eq!(names.len(), 2);
    cluster.client("client", "app=client");
    let mut answered = BTreeSet::new();
    eventually("both pods answer at the service's name", || {
        let asked = server.sh("kubectl exec client -- /bin/wget -T 2 -t 1 -qO- http://hello/hostname");
        if asked.code == Some(0) {
            answered.insert(asked.stdout.trim().to_string());
        }
        (answered == names).then_some(())
    });
    let full = "http://hello.default.svc.cluster.local/hostname";
    let answer = cluster.run(&format!("kubectl exec deploy/hello -- /bin/wget -qO- {full}"));
    assert!(names.contains(answer.trim()), "{answer}");

    assert_eq!(server.sh("kubectl exec client -- sh -c 'exit 7'").code, Some(7));
    let first = names.first().unwrap();
    files_there_and_back(server, first);
    let forward = Forward::start(server, "deploy/hello", 80);
    assert!(names.contains(forward.fetch("/hostname").trim()));
    // Components have no containers, but ports.
    let proxy = Forward::start(server, "--namespace=kube-system pod/kube-proxy-real", 10249);
    assert_eq!(proxy.fetch("/proxyMode"), "nftables");
    a_log_is_followed_to_its_end(&cluster);
    eventually("the pods use something", || {
        let top = server.sh("kubectl top pod --no-headers").stdout;
        names.iter().all(|name| top.contains(name.as_str())).then_some(())
    });

    // Without a cloud the node is the load balancer.
    cluster.run("kubectl expose deployment hello --name=front --type=LoadBalancer --port=8088 --target-port=80");
    let address = "kubectl get service front -o 'jsonpath={.status.loadBalancer.ingress[0].ip}'";
    eventually("the service has an address", || {
        (server.sh(address).stdout == HOST_ADDRESS).then_some(())
    });
    eventually("the service answers there", || {
        let answer = server.sh(&format!("curl -sf -m 2 http://{HOST_ADDRESS}:8088/hostname"));
        names.contains(answer.stdout.trim()).then_some(())
    });
}

fn files_there_and_back(server: &Server, pod: &str) {
    let bytes: Vec<u8> = (0..1u32 << 20)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    fs::write(server.home().join("sent"), &bytes).unwrap();
    server.run(&format!("kubectl cp sent {pod}:/tmp/there"));
    server.run(&format!("kubectl cp {pod}:/tmp/there back"));
    assert!(fs::read(server.home().join("back")).unwrap() == bytes, "a copy differs");
}

fn a_log_is_followed_to_its_end(cluster: &Cluster) {
    let server = &cluster.server;
    let script = "echo first; until [ -e /go ]; do sleep 0.05; done; echo last";
    cluster.apply(
        &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "talker"}, "spec": {
        "restartPolicy": "Never",
        "containers": [{"name": "main", "image": "busybox", "imagePullPolicy": "IfNotPresent", "command": ["sh", "-c", script]}]}}),
    );
    cluster.run("kubectl wait --for=condition=Ready pod/talker --timeout=60s");
    let heard = server.home().join("heard");
    let mut command = server.command("kubectl logs -f talker");
    let mut child = command
        .stdout(Stdio::from(fs::File::create(&heard).unwrap()))
        .spawn()
        .unwrap();
    eventually("the first line", || {
        (fs::read_to_string(&heard).unwrap() == "first\n").then_some(())
    });
    cluster.run("kubectl exec talker -- touch /go");
    let status = eventually("kubectl ends with the log", || child.try_wait().unwrap());
    assert!(status.success());
    assert_eq!(fs::read_to_string(&heard).unwrap(), "first\nlast\n");
}

#[test]
fn containers_outlive_a_killed_cluster() {
    let mut cluster = Cluster::start().with_hello();
    cluster.client("client", "app=client");
    let statuses = |cluster: &Cluster| -> Vec<(Value, Value)> {
        let pods = cluster.hello_pods();
        let containers = pods.iter().map(|pod| &pod["status"]["containerStatuses"][0]);
        containers
            .map(|container| (container["containerID"].clone(), container["restartCount"].clone()))
            .collect()
    };
    let (before, mut running) = (statuses(&cluster), cluster.runtime.running());
    running.sort();
    // Three pods: each a sandbox and a container.
    assert_eq!(running.len(), 6, "{running:?}");
    cluster.server.kill();
    let mut left = cluster.runtime.running();
    left.sort();
    assert_eq!(left, running);

    cluster.server.start_again();
    cluster.run("kubectl wait --for=condition=Ready node/real --timeout=60s");
    eventually("the service answers", || cluster.reaches("client").then_some(()));
    assert_eq!(statuses(&cluster), before);
    assert!(before.iter().all(|(_, restarts)| *restarts == 0), "{before:?}");
    let mut adopted = cluster.runtime.running();
    adopted.sort();
    assert_eq!(adopted, running);
    // They can be told to end, and nothing is left of them.
    cluster.run("kubectl delete deployment hello");
    cluster.run("kubectl delete pod client --grace-period=1");
    eventually("nothing is left of the pods", || {
        (cluster.runtime.leftovers() == Leftovers::default()).then_some(())
    });
}

#[test]
fn policies_are_enforced_and_a_purge_leaves_nothing() {
    let mut cluster = Cluster::start().with_hello();
    cluster.client("friend", "role=friend");
    cluster.client("stranger", "role=stranger");
    for pod in ["friend", "stranger"] {
        eventually("without policies everybody may", || cluster.reaches(pod).then_some(()));
    }
    cluster.policy("nobody", json!({"podSelector": {}, "policyTypes": ["Ingress"]}));
    for pod in ["friend", "stranger"] {
        eventually("by default nobody may", || (!cluster.reaches(pod)).then_some(()));
    }
    cluster.policy(
        "friends",
        json!({"podSelector": {"matchLabels": {"app": "hello"}}, "ingress": [{
            "from": [{"podSelector": {"matchLabels": {"role": "friend"}}}], "ports": [{"port": 80}]}]}),
    );
    eventually("friends may", || cluster.reaches("friend").then_some(()));
    assert!(!cluster.reaches("stranger"));

    let tables = shown("nft list tables");
    assert!(tables.contains("orlop-policy-"), "{tables}");
    let (data_dir, cgroup) = (cluster.server.data_dir().to_path_buf(), cluster.runtime.home().cgroup());
    assert_eq!(cluster.runtime.running().len(), 8);
    cluster.purge();
    assert!(cluster.runtime.is_purged(&data_dir));
    assert_eq!(cluster.runtime.running(), [""; 0]);
    assert_eq!(cluster.runtime.leftovers(), Leftovers::default());
    assert_eq!(shown("nft list tables"), "");
    assert_eq!(shown("ip -o link | cut -d: -f2 | cut -d@ -f1"), " lo\n node1\n node0\n");
    let routes = shown("ip route");
    assert!(!routes.contains("10.213."), "{routes}");
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(data_dir.to_str().unwrap()), "{mounts}");
    // The group that the configuration names is somebody's; nothing is left in it.
    let groups = shown(&format!("find /sys/fs/cgroup -mindepth 1 -type d -path '*/{cgroup}/*'"));
    assert_eq!(groups, "");
}

/// A laptop without a network: pods and services work all the same.
#[test]
fn a_machine_without_an_address_is_given_one() {
    let runtime = NodeRuntime::start(TestRuntime::Embedded);
    shown("ip link delete node0");
    let mut cluster = Cluster::start_on(runtime).with_hello();
    cluster.client("client", "app=client");
    eventually("the service answers", || cluster.reaches("client").then_some(()));
    let own = cluster.run("kubectl get node real -o jsonpath='{.status.addresses[0].address}'");
    assert!(own.starts_with("172.30."), "{own}");
    assert!(
        shown("ip address show dev lo").contains(&format!("inet {own}/")),
        "{own}"
    );
    // The same again after a restart.
    cluster.server.kill();
    cluster.server.start_again();
    let address = "kubectl get node real -o jsonpath='{.status.addresses[0].address}'";
    assert_eq!(cluster.run(address), own);
    eventually("the service answers again", || cluster.reaches("client").then_some(()));
    cluster.purge();
    let left = shown("ip -o -4 address");
    assert_eq!(left.lines().count(), 1, "{left}");
}

/// iptables makes tables when it is first asked, and never takes them away.
#[test]
fn a_purge_leaves_no_tables_of_iptables_but_those_in_use() {
    let runtime = NodeRuntime::start(TestRuntime::Embedded);
    let mut cluster = Cluster::start_with(runtime, &["--proxy-mode=iptables"]);
    let tables = || {
        let listed = std::process::Command::new("nft").args(["list", "tables"]).output();
        String::from_utf8(listed.unwrap().stdout).unwrap()
    };
    eventually("the proxy has written its rules", || {
        cluster.run("iptables-save").contains("-A KUBE-SERVICES").then_some(())
    });
    assert!(tables().contains("table ip nat\n") && tables().contains("table ip filter\n"));
    // Somebody else's rule.
    cluster.run("iptables -t mangle -A PREROUTING -j ACCEPT");
    cluster.purge();
    assert_eq!(tables(), "table ip mangle\n");
}

#[test]
fn pods_wait_for_an_address_while_all_are_taken() {
    let runtime = NodeRuntime::start(TestRuntime::Embedded);
    // Room for five pods.
    let flags = ["--proxy-mode=nftables", "--pod-cidr=10.213.0.0/29"];
    let cluster = Cluster::start_with(runtime, &flags);
    cluster.run("kubectl create deployment many --image=orlop.local/echo --replicas=5");
    cluster.run("kubectl rollout status deployment/many --timeout=60s");
    cluster.run("kubectl run late --image=orlop.local/echo");
    eventually("the sixth says why it does not run", || {
        let events = cluster.run("kubectl get events --field-selector=reason=FailedCreatePodSandBox");
        let why = "no IP addresses available in range set: 10.213.0.1-10.213.0.6";
        events.contains(why).then_some(())
    });
    cluster.run("kubectl scale deployment many --replicas=4");
    cluster.run("kubectl wait --for=condition=Ready pod/late --timeout=120s");
}
