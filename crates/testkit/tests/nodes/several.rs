//! Several real nodes on one machine: `orlop up --nodes 3` and `orlop node`.

use orlop_testkit::{NodeRuntime, Ran, Server, TestRuntime, eventually, orlop};
use serde_json::{Value, json};

/// A pod of each node, also of the one with the control plane, behind a service.
const EVERYWHERE: &str = r#"
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: echo}
spec:
  selector: {matchLabels: {app: echo}}
  template:
    metadata: {labels: {app: echo}}
    spec:
      terminationGracePeriodSeconds: 1
      tolerations: [{operator: Exists}]
      containers: [{name: echo, image: orlop.local/echo}]
---
apiVersion: v1
kind: Service
metadata: {name: echo}
spec:
  selector: {app: echo}
  type: NodePort
  ipFamilyPolicy: PreferDualStack
  ports: [{port: 80, targetPort: 8080, nodePort: 30080}]
"#;

/// The order matters: the cluster ends before its runtime does.
struct Cluster {
    server: Server,
    runtime: NodeRuntime,
    /// What there was before.
    traces: [String; 3],
}

impl Cluster {
    fn start(nodes: usize) -> Cluster {
        Cluster::start_with(nodes, &[])
    }

    fn start_with(nodes: usize, more: &[&str]) -> Cluster {
        let runtime = NodeRuntime::start(TestRuntime::Embedded);
        let traces = traces();
        // A node is missed soon.
        let config = json!({"clusterDNS": ["10.96.0.10"], "nodeLeaseDurationSeconds": 4});
        let launch = runtime.launch(config).arg("--proxy-mode=nftables");
        let launch = launch
            .arg("--node-monitor-grace-period=5s")
            .arg(format!("--nodes={nodes}"));
        let launch = more.iter().fold(launch, |launch, arg| launch.arg(*arg));
        let cluster = Cluster {
            server: launch.start(),
            runtime,
            traces,
        };
        cluster.run("kubectl wait --for=create sa/default --timeout=60s");
        cluster.wait_ready("worker-1");
        cluster
    }

    fn run(&self, line: &str) -> String {
        self.server.run(line)
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

    fn wait_ready(&self, node: &str) {
        self.run(&format!("kubectl wait --for=create node/{node} --timeout=60s"));
        self.run(&format!("kubectl wait --for=condition=Ready node/{node} --timeout=60s"));
    }

    fn with_echo(self, nodes: usize) -> Cluster {
        self.server.run_with("kubectl apply -f -", EVERYWHERE);
        eventually("the pods are wanted on all nodes", || {
            let wanted = self.server.get("daemonset echo")["status"]["desiredNumberScheduled"].clone();
            (wanted == json!(nodes)).then_some(())
        });
        self.run("kubectl rollout status daemonset/echo --timeout=60s");
        self
    }

    fn pods(&self, selector: &str) -> Vec<Value> {
        let pods = self.server.get(&format!("pods -l {selector} --sort-by=.spec.nodeName"));
        pods["items"].as_array().unwrap().clone()
    }

    /// Who answers a pod at this address, by its name.
    fn ask(&self, pod: &Value, host: &str) -> Option<String> {
        let name = pod["metadata"]["name"].as_str().unwrap();
        let line = format!("kubectl exec {name} -- wget -T 2 -qO- http://{host}/hostname");
        let ran = self.server.sh(&line);
        (ran.code == Some(0)).then(|| ran.stdout.trim().to_string())
    }

    /// The row of a node in `orlop node ls`.
    fn row(&self, node: &str) -> String {
        let table = self.orlop("node ls");
        let row = table.lines().find(|line| line.split_whitespace().next() == Some(node));
        row.unwrap_or_default().to_string()
    }

    fn containers(&self) -> Vec<String> {
        let pods = self.pods("app=echo");
        let id = |pod: &Value| {
            let status = &pod["status"]["containerStatuses"][0];
            format!("{} {}", status["containerID"], status["restartCount"])
        };
        pods.iter().map(id).collect()
    }
}

/// Whatever a failed test leaves: its nodes have processes, namespaces and cgroups of their own.
impl Drop for Cluster {
    fn drop(&mut self) {
        drop(self.try_orlop("down --purge --force --grace-period=1"));
    }
}

fn shown(line: &str) -> String {
    let output = std::process::Command::new("sh").args(["-c", line]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What a cluster makes in a network of its own.
fn traces() -> [String; 3] {
    [
        "ip -o link | cut -d: -f2 | sort",
        "ip route; ip -6 route",
        "nft list tables",
    ]
    .map(shown)
}

fn texts(list: &Value, field: &str) -> Vec<String> {
    let texts = list.as_array().into_iter().flatten();
    texts.map(|one| one[field].as_str().unwrap().to_string()).collect()
}

/// As a URL has it.
fn in_url(ip: &str) -> String {
    match ip.contains(':') {
        true => format!("[{ip}]"),
        false => ip.to_string(),
    }
}

#[test]
fn pods_of_both_families_by_routes() {
    pods_of_both_families("routes");
}

#[test]
fn pods_of_both_families_through_vxlan() {
    pods_of_both_families("vxlan");
}

fn pods_of_both_families(pod_network: &str) {
    let mut cluster = Cluster::start_with(
        3,
        &[
            "--pod-cidr=10.213.0.0/24,fd00:213::/64",
            "--service-cidr=10.96.0.0/16,fd00:96::/112",
            &format!("--pod-network={pod_network}"),
        ],
    );
    for node in ["worker-1", "worker-2"] {
        cluster.wait_ready(node);
        let addresses = cluster.server.get(&format!("node {node}"))["status"]["addresses"].clone();
        assert_eq!(
            addresses
                .as_array()
                .unwrap()
                .iter()
                .filter(|one| one["type"] == "InternalIP")
                .count(),
            2
        );
    }
    cluster = cluster.with_echo(3);
    let pods = cluster.pods("app=echo");
    let services = cluster.server.get("service echo")["spec"]["clusterIPs"].clone();
    for from in &pods {
        for to in &pods {
            let ips = texts(&to["status"]["podIPs"], "ip");
            assert_eq!(
                ips.iter().map(|ip| ip.contains(':')).collect::<Vec<_>>(),
                [false, true],
                "{ips:?}"
            );
            for ip in ips {
                // Where nodes come up one after the other, routes do, too.
                let answer = eventually("the pod answers", || {
                    cluster.ask(from, &format!("{}:8080", in_url(&ip)))
                });
                assert_eq!(Some(answer.as_str()), to["metadata"]["name"].as_str(), "{ip}");
            }
        }
        for ip in services.as_array().unwrap() {
            let host = in_url(ip.as_str().unwrap());
            eventually("the service answers", || cluster.ask(from, &host));
        }
    }
    assert_eq!(services.as_array().unwrap().len(), 2);
    // The machine reaches the pods of its nodes, as webhooks and probes need it.
    for ip in texts(&pods[1]["status"]["podIPs"], "ip") {
        let ran = cluster
            .server
            .sh(&format!("curl -gsf -m 5 http://{}:8080/hostname", in_url(&ip)));
        assert_eq!(ran.stdout.trim(), pods[1]["metadata"]["name"].as_str().unwrap(), "{ip}");
    }
    let tunnels = shown("ip -o link show type vxlan").lines().count();
    assert_eq!(tunnels, usize::from(pod_network == "vxlan"));

    cluster.orlop("down --purge --grace-period=1");
    assert_eq!(cluster.server.wait_stopped().code(), Some(0));
    assert_eq!(traces(), cluster.traces);
}

#[test]
fn pods_of_all_nodes_reach_each_other_and_services() {
    let mut cluster = Cluster::start(3).with_echo(3);
    let pods = cluster.pods("app=echo");
    let nodes: Vec<&str> = pods
        .iter()
        .map(|pod| pod["spec"]["nodeName"].as_str().unwrap())
        .collect();
    assert_eq!(nodes, ["real", "worker-1", "worker-2"]);
    for from in &pods {
        for to in &pods {
            let answer = cluster.ask(from, &format!("{}:8080", to["status"]["podIP"].as_str().unwrap()));
            assert_eq!(answer.as_deref(), to["metadata"]["name"].as_str());
        }
        eventually("the service answers by its name", || {
            cluster.ask(from, "echo.default.svc.cluster.local")
        });
    }
    for node in &nodes {
        let address = cluster.server.get(&format!("node {node}"))["status"]["addresses"][0]["address"].clone();
        let url = format!("http://{}:30080/hostname", address.as_str().unwrap());
        eventually("its node port answers", || {
            (cluster.server.sh(&format!("curl -sf -m 2 {url}")).code == Some(0)).then_some(())
        });
    }
    // Names are resolved on a pod's own node, so a policy that lets it ask for names lets it do so everywhere.
    let policy = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "some"},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [{"podSelector": {}}], "ports": [{"port": 8080}]}],
            "egress": [{"to": [{"podSelector": {}}]}, {"ports": [{"port": 53, "protocol": "UDP"}], "to": [
                {"namespaceSelector": {}, "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}}]}]}});
    cluster.server.run_with("kubectl apply -f -", &policy.to_string());
    cluster.run("kubectl create namespace other");
    let stranger = "kubectl run -n other stranger --image=orlop.local/echo";
    cluster.run(stranger);
    cluster.run("kubectl wait -n other --for=condition=Ready pod/stranger --timeout=60s");
    let target = pods[2]["status"]["podIP"].as_str().unwrap();
    let ask = format!("kubectl exec -n other stranger -- wget -T 1 -qO- http://{target}:8080");
    eventually("a stranger is kept out", || {
        (cluster.server.sh(&ask).code != Some(0)).then_some(())
    });
    for from in &pods {
        assert!(cluster.ask(from, "echo").is_some(), "{from}");
    }

    // Killed and started again: the nodes are there, and no container was started anew.
    let containers = cluster.containers();
    cluster.server.kill();
    cluster.server.start_again();
    for node in &nodes {
        cluster.wait_ready(node);
    }
    assert_eq!(cluster.containers(), containers);
    eventually("services work", || cluster.ask(&pods[1], "echo"));

    let data_dir = cluster.server.data_dir().to_path_buf();
    let node = std::fs::read_to_string(data_dir.join("nodes/worker-1/node.json")).unwrap();
    let node: Value = serde_json::from_str(&node).unwrap();
    let group = node["cgroupRoot"].as_str().unwrap();
    let prefix = group.trim_start_matches('/').strip_suffix("worker-1").unwrap();
    // Others of this machine are other tests'.
    let of_machine =
        format!("ls -d /run/netns/{prefix}* /sys/fs/cgroup/*/{prefix}* /sys/fs/cgroup/{prefix}* 2>/dev/null");
    assert!(shown(&of_machine).lines().count() > 2);
    cluster.orlop("down --purge --grace-period=1");
    assert_eq!(cluster.server.wait_stopped().code(), Some(0));
    assert!(cluster.runtime.is_purged(&data_dir));
    assert_eq!(cluster.runtime.running(), [""; 0]);
    assert_eq!((traces(), shown(&of_machine)), (cluster.traces.clone(), String::new()));
}

#[test]
fn a_node_that_is_cut_off_loses_its_pods_until_it_is_back() {
    let cluster = Cluster::start(3);
    cluster.wait_ready("worker-2");
    let tolerations = json!(["not-ready", "unreachable"].map(|name| {
        json!({"key": format!("node.kubernetes.io/{name}"), "effect": "NoExecute", "operator": "Exists", "tolerationSeconds": 1})
    }));
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {
        "replicas": 2, "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": {
            "tolerations": tolerations, "terminationGracePeriodSeconds": 1,
            "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {"matchLabels": {"app": "web"}}}],
            "containers": [{"name": "echo", "image": "orlop.local/echo"}]}}}});
    cluster.server.run_with("kubectl apply -f -", &deployment.to_string());
    cluster.run("kubectl rollout status deployment/web --timeout=60s");
    let places = |cluster: &Cluster| -> Vec<String> {
        let pods = cluster.pods("app=web").into_iter();
        let live = pods.filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        live.map(|pod| pod["spec"]["nodeName"].as_str().unwrap_or_default().to_string())
            .collect()
    };
    // The control plane's node has a taint, since there are others.
    assert_eq!(places(&cluster), ["worker-1", "worker-2"]);
    assert_eq!(cluster.orlop("node cut worker-1"), "node worker-1 cut off\n");
    assert!(cluster.row("worker-1").contains(" cut "));
    cluster.run("kubectl wait --for=condition=Ready=Unknown node/worker-1 --timeout=60s");
    eventually("its pod is made anew elsewhere", || {
        (places(&cluster) == ["worker-2", "worker-2"]).then_some(())
    });
    cluster.run("kubectl rollout status deployment/web --timeout=60s");
    // Nobody answers for it: not the machine's default route either.
    let address = cluster.server.get("node worker-1")["status"]["addresses"][0]["address"].clone();
    let route = shown(&format!("ip route get {} 2>&1", address.as_str().unwrap()));
    assert!(route.contains("No route to host"), "{route}");

    cluster.orlop("node heal worker-1");
    cluster.wait_ready("worker-1");
    eventually("what it had lost is stopped there", || {
        (cluster.pods("app=web").len() == 2).then_some(())
    });
}

#[test]
fn nodes_are_added_stopped_started_and_removed() {
    let mut cluster = Cluster::start(2).with_echo(2);
    assert_eq!(cluster.orlop("node add"), "node worker-2 added\n");
    assert_eq!(cluster.orlop("node add edge"), "node edge added\n");
    for node in ["worker-2", "edge"] {
        cluster.wait_ready(node);
    }
    cluster = cluster.with_echo(4);
    for (verb, wrong) in [
        ("node add edge", "node \"edge\" already exists"),
        ("node add A_b", "invalid node name \"A_b\""),
        ("node stop real", "node real is this machine itself"),
        (
            "node rm nobody",
            "node \"nobody\" not found; worker nodes: worker-1, worker-2, edge",
        ),
    ] {
        let ran = cluster.try_orlop(verb);
        assert!(
            ran.code == Some(1) && ran.stderr.contains(wrong),
            "{verb}: {}",
            ran.stderr
        );
    }

    // As if it was switched off; a restart of the cluster does not switch it on.
    cluster.orlop("node stop worker-1");
    assert!(cluster.row("worker-1").contains(" stopped "));
    cluster.run("kubectl wait --for=condition=Ready=Unknown node/worker-1 --timeout=60s");
    cluster.orlop("node start worker-1");
    cluster.wait_ready("worker-1");
    eventually("its pod is started again", || {
        let pods = cluster.pods("app=echo");
        let pod = pods.iter().find(|pod| pod["spec"]["nodeName"] == "worker-1")?;
        let status = &pod["status"]["containerStatuses"][0];
        (status["ready"] == true && status["restartCount"] == 1).then_some(())
    });

    let namespaces = || shown("ls /run/netns | grep -e -edge$ | wc -l").trim().to_string();
    let others = namespaces().parse::<u32>().unwrap() - 1;
    cluster.orlop("node rm edge");
    assert_eq!(cluster.row("edge"), "");
    assert!(!cluster.server.data_dir().join("nodes/edge").exists());
    assert_eq!(namespaces(), others.to_string());
    cluster.server.fails("kubectl get node edge");
    // The pod garbage collector would do so after a while.
    cluster.run("kubectl delete pods --field-selector=spec.nodeName=edge --force");

    // An agent that is killed is started again, and its containers go on.
    let containers = cluster.containers();
    let pattern = format!(
        "orlop [a]gent {}",
        cluster.server.data_dir().join("nodes/worker-2").display()
    );
    cluster.run(&format!("pkill -9 -f '{pattern}'"));
    eventually("it runs again", || {
        let row = cluster.row("worker-2");
        let cells: Vec<&str> = row.split_whitespace().collect();
        (cells[1] == "running" && cells[5] == "1").then_some(())
    });
    cluster.wait_ready("worker-2");
    assert_eq!(cluster.containers(), containers);
}
