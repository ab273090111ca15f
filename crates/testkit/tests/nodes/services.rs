//! Services and names from real pods: real containers, the users' own kubectl, and a network of each test's own.

use std::fs;

use orlop_testkit::{Launch, NodeRuntime, Server, TestRuntime, eventually, network};
use serde_json::{Value, json};

// In scripts it is `/bin/wget`: busybox' shell would take its own, and Debian's static one can't look names up.

/// More than sockets hold, so that a download whose reader waits is under way.
const DOWNLOAD_KIB: u32 = 20 * 1024;

/// The order matters: the cluster ends before its runtime does.
struct Cluster {
    server: Server,
    _runtime: NodeRuntime,
}

impl Cluster {
    fn start(mode: &str) -> Cluster {
        Cluster::start_on(TestRuntime::of_suite(), mode)
    }

    fn start_on(kind: TestRuntime, mode: &str) -> Cluster {
        let runtime = NodeRuntime::start(kind);
        let server = runtime
            .launch(json!({"clusterDNS": ["10.96.0.10"]}))
            .arg("--port=6443")
            .arg(format!("--proxy-mode={mode}"))
            .start();
        let cluster = Cluster {
            server,
            _runtime: runtime,
        };
        eventually("pods may be made", || {
            let account = cluster.server.sh("kubectl get sa default -o name");
            (account.code == Some(0)).then_some(())
        });
        cluster
    }

    fn apply(&self, object: &Value) {
        self.server.run_with("kubectl apply -f -", &object.to_string());
    }

    fn run(&self, line: &str) -> String {
        self.server.run(line)
    }

    /// Pods that say who they are, behind a service `web`, and a pod to ask from.
    fn with_web(self, replicas: u32) -> Cluster {
        self.apply(&web(replicas, "one"));
        self.apply(
            &json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {
            "type": "NodePort", "selector": {"app": "web"},
            "ports": [{"port": 80, "targetPort": 8080, "nodePort": 30080}]}}),
        );
        self.apply(
            &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "client"}, "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "busybox", "imagePullPolicy": "IfNotPresent",
                "command": ["sleep", "infinity"]}]}}),
        );
        self.run("kubectl rollout status deployment/web --timeout=120s");
        self.run("kubectl wait --for=condition=Ready pod/client --timeout=60s");
        self
    }

    fn in_client(&self, command: &str) -> String {
        self.run(&format!("kubectl exec client -- {command}"))
    }

    /// Every backend answers, as often as it takes.
    fn until_all_answer(&self, url: &str, replicas: usize) {
        let mut seen = std::collections::BTreeSet::new();
        eventually(&format!("all {replicas} pods answer at {url}"), || {
            let answer = self.server.sh(&format!(
                "kubectl exec client -- wget -T 2 -t 1 -qO- {url}/cgi-bin/name"
            ));
            if answer.code == Some(0) {
                seen.insert(answer.stdout.trim().to_string());
            }
            (seen.len() == replicas).then_some(())
        });
    }

    fn mode(&self) -> String {
        let metrics = self.run("curl -s http://127.0.0.1:10249/metrics");
        let modes = ["iptables", "nftables", "ipvs", "userspace"];
        let shown = |mode: &&&str| metrics.contains(&format!("kubeproxy_sync_proxy_rules_{mode}_total{{"));
        modes.iter().find(shown).unwrap_or(&"none").to_string()
    }

    fn switch(&self, mode: &str) {
        let patch = format!(r#"{{"data":{{"config.conf":"mode: {mode}"}}}}"#);
        self.run(&format!(
            "kubectl patch configmap -n kube-system kube-proxy --patch '{patch}'"
        ));
    }
}

/// A web server of busybox. It answers as long as packets may still come after its pod was told to end, as programs that
/// end gracefully do.
fn web(replicas: u32, version: &str) -> Value {
    let script = format!(
        "mkdir -p /www/cgi-bin; printf '#!/bin/sh\\necho; hostname\\n' > /www/cgi-bin/name; chmod +x /www/cgi-bin/name; \
         dd if=/dev/urandom of=/www/large bs=1k count={DOWNLOAD_KIB} 2>/dev/null; echo {version} > /www/version; \
         trap 'sleep 2; kill $!; exit 0' TERM; httpd -f -p 8080 -h /www & wait"
    );
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {
        "replicas": replicas, "selector": {"matchLabels": {"app": "web"}},
        "strategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": {
            "terminationGracePeriodSeconds": 10,
            "containers": [{"name": "main", "image": "busybox", "imagePullPolicy": "IfNotPresent",
                "command": ["sh", "-c", script],
                "readinessProbe": {"httpGet": {"path": "/version", "port": 8080}, "periodSeconds": 1}}]}}}})
}

#[test]
fn the_notes_commands_from_a_pod() {
    the_notes_commands_on(TestRuntime::of_suite());
}

#[test]
fn the_notes_commands_with_containerd() {
    the_notes_commands_on(TestRuntime::Containerd);
}

fn the_notes_commands_on(kind: TestRuntime) {
    let cluster = Cluster::start_on(kind, "iptables").with_web(3);
    let looked_up = cluster.in_client("nslookup kubernetes.default.svc.cluster.local");
    assert!(looked_up.contains("10.96.0.1"), "{looked_up}");
    let page = cluster.in_client("wget -T 5 -qO- http://web.default.svc.cluster.local/version");
    assert_eq!(page.trim(), "one");
    cluster.until_all_answer("http://web", 3);
    // From the node, at the node's port.
    let page = cluster.run(&format!("curl -sf -m 5 http://{}:30080/version", network::HOST_ADDRESS));
    assert_eq!(page.trim(), "one");
    let rules = cluster.run("iptables -t nat -L KUBE-SERVICES -n");
    assert!(rules.contains("default/web cluster IP"), "{rules}");
    let map = cluster.run("kubectl get configmap -n kube-system kube-proxy -o yaml");
    assert!(map.contains("KubeProxyConfiguration"), "{map}");
    // Proxy and DNS are pods like the other components, and take nothing from the node.
    let pods = cluster.run("kubectl get pods -n kube-system --no-headers");
    let ready: Vec<&str> = pods.lines().filter(|line| line.contains(" 1/1 ")).collect();
    let names: Vec<&str> = ready.iter().filter_map(|line| line.split(' ').next()).collect();
    let expected = [
        "coredns",
        "kube-apiserver",
        "kube-controller-manager",
        "kube-proxy",
        "kube-scheduler",
    ];
    assert_eq!(names, expected.map(|name| format!("{name}-real")), "{pods}");
    let log = cluster.run("kubectl logs -n kube-system -l k8s-app=kube-proxy");
    assert!(log.contains("starting proxy"), "{log}");
    let log = cluster.run("kubectl logs -n kube-system -l k8s-app=kube-dns");
    assert!(log.contains("DNS is ready"), "{log}");
    // The API server, by its service, with the pod's own credentials.
    let token = "/var/run/secrets/kubernetes.io/serviceaccount";
    let script = format!(
        "/bin/wget -T 5 -qO- --ca-certificate={token}/ca.crt --header=\"Authorization: Bearer $(cat {token}/token)\" \
         https://kubernetes.default.svc/version"
    );
    let version = cluster.in_client(&format!("sh -c '{script}'"));
    assert!(version.contains("gitVersion"), "{version}");
    // A service that leads nowhere refuses.
    cluster.run("kubectl create service clusterip nowhere --tcp=80");
    let address = cluster.run("kubectl get service nowhere -o 'jsonpath={.spec.clusterIP}'");
    eventually("a service without endpoints refuses", || {
        let answer = cluster
            .server
            .sh(&format!("kubectl exec client -- wget -T 2 -t 1 -O- http://{address}"));
        answer.stderr.contains("refused").then_some(())
    });
}

#[test]
fn the_mode_is_switched_under_a_download() {
    let cluster = Cluster::start("iptables").with_web(1);
    let sum = cluster.run("kubectl exec deploy/web -- sha256sum /www/large");
    let sum = sum.split_whitespace().next().unwrap().to_string();
    for (mode, gone) in [
        ("nftables", "iptables-save | grep -c KUBE-SVC"),
        ("userspace", "nft list tables | grep -c kube-proxy"),
        ("iptables", "nft list tables | grep -c kube-proxy"),
    ] {
        // It waits in the middle, so that it is under way for as long as the switch takes.
        cluster.in_client(
            "sh -c 'rm -f /tmp/go /tmp/sum /tmp/begun; (/bin/wget -qO- http://web/large | (dd bs=1k count=100 2>/dev/null; \
             touch /tmp/begun; while [ ! -e /tmp/go ]; do sleep 0.1; done; cat) | sha256sum > /tmp/sum) >/dev/null 2>&1 &'",
        );
        eventually("the download is under way", || {
            let begun = cluster.server.sh("kubectl exec client -- test -e /tmp/begun");
            (begun.code == Some(0)).then_some(())
        });
        cluster.switch(mode);
        eventually(&format!("the mode is {mode}"), || {
            (cluster.mode() == mode).then_some(())
        });
        cluster.until_all_answer("http://web", 1);
        eventually("the rules of the mode before are gone", || {
            let left = cluster.server.sh(gone).stdout;
            (left.trim() == "0").then_some(())
        });
        cluster.in_client("touch /tmp/go");
        let found = eventually("the download is done", || {
            let found = cluster.server.sh("kubectl exec client -- cat /tmp/sum").stdout;
            (!found.trim().is_empty()).then_some(found)
        });
        assert!(found.starts_with(&sum), "into {mode}: {found}");
    }
    // What nobody understands changes nothing, and is said.
    cluster.switch("magic");
    eventually("an event tells what is wrong", || {
        let events = cluster.run("kubectl get events");
        events.contains("InvalidProxyConfiguration").then_some(())
    });
    assert_eq!(cluster.mode(), "iptables");
}

#[test]
fn a_rolling_update_under_load_loses_no_request() {
    let cluster = Cluster::start("nftables").with_web(3);
    cluster.until_all_answer("http://web", 3);
    let script = "rm -f /tmp/stop; while [ ! -e /tmp/stop ]; do /bin/wget -T 5 -t 1 -qO- http://web/version || echo failed; done";
    cluster.in_client(&format!("sh -c '({script}) > /tmp/answers 2>&1 &'"));
    cluster.apply(&web(3, "two"));
    cluster.run("kubectl rollout status deployment/web --timeout=180s");
    eventually("only the new ones answer", || {
        let last = cluster.in_client("tail -n 30 /tmp/answers");
        (last.lines().count() == 30 && last.lines().all(|line| line == "two")).then_some(())
    });
    cluster.in_client("touch /tmp/stop");
    let answers = cluster.in_client("sh -c 'sort /tmp/answers | uniq -c'");
    assert!(answers.contains("one") && answers.contains("two"), "{answers}");
    let others: Vec<&str> = answers
        .lines()
        .filter(|line| !line.ends_with("one") && !line.ends_with("two"))
        .collect();
    assert!(others.is_empty(), "{answers}");
}

/// `orlop proxy` as a child; it is killed with the value, as hard as can be.
struct Proxy(std::process::Child);

impl Proxy {
    fn start(server: &Server, mode: &str) -> Proxy {
        Proxy::start_with(server, mode, |_| {})
    }

    fn start_with(server: &Server, mode: &str, more: impl FnOnce(&mut std::process::Command)) -> Proxy {
        let mut command = std::process::Command::new(orlop_testkit::orlop());
        command
            .args(["proxy", "--hostname-override=node-a"])
            .arg(format!("--kubeconfig={}", server.kubeconfig().display()))
            .arg(format!("--proxy-mode={mode}"));
        more(&mut command);
        Proxy(command.spawn().expect("orlop starts"))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn the_proxy_alone_killed_and_cleaned_up() {
    network::enter_private_network();
    let server = Launch::apiserver().start();
    let orlop = orlop_testkit::orlop().display().to_string();
    server.run_with(
        "kubectl apply -f -",
        &json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}}).to_string(),
    );
    server.run_with(
        "kubectl apply -f -",
        &json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {
            "clusterIP": "10.96.7.7", "ports": [{"name": "http", "port": 80}]}})
        .to_string(),
    );
    server.run_with(
        "kubectl apply -f -",
        &json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
            "endpoints": [{"addresses": ["10.1.1.1"]}]})
        .to_string(),
    );
    for (mode, list) in [
        ("iptables", "iptables-save"),
        ("nftables", "nft list table ip kube-proxy"),
    ] {
        let proxy = Proxy::start(&server, mode);
        let rules = eventually(&format!("{mode} has the service"), || {
            let rules = server.sh(list).stdout;
            (rules.contains("10.96.7.7") && rules.contains("10.1.1.1")).then_some(rules)
        });
        eventually("the proxy is healthy", || {
            let health = server.sh("curl -sf http://127.0.0.1:10256/healthz");
            (health.code == Some(0)).then_some(())
        });
        // Killed: nothing goes. Started again: nothing is written that is there.
        drop(proxy);
        let stable = |rules: &str| {
            let lines = rules.lines().filter(|line| !line.starts_with('#'));
            lines
                .map(|line| line.split(" [").next().unwrap_or("").to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(stable(&server.run(list)), stable(&rules), "{mode}");
        let _again = Proxy::start(&server, mode);
        let metrics = eventually("the second proxy has synced", || {
            let metrics = server.sh("curl -s http://127.0.0.1:10249/metrics").stdout;
            let synced = "kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"} 0";
            (metrics.contains("_duration_seconds_count") && !metrics.contains(synced)).then_some(metrics)
        });
        let written = metrics
            .lines()
            .filter(|line| line.starts_with(&format!("kubeproxy_sync_proxy_rules_{mode}_last{{")));
        let written: Vec<&str> = written.collect();
        assert!(
            !written.is_empty() && written.iter().all(|line| line.ends_with(" 0")),
            "{written:?}"
        );
        assert_eq!(stable(&server.run(list)), stable(&rules), "{mode}");
    }
    server.run(&format!("{orlop} proxy --cleanup"));
    let left = server.run("iptables-save; nft list ruleset");
    assert!(!left.contains("10.96.7.7") && !left.contains("KUBE-SVC"), "{left}");
    let refused = server.fails(&format!("{orlop} proxy --proxy-mode=magic --ipvs-scheduler=best"));
    assert!(
        refused.contains("mode:") && refused.contains("ipvs.scheduler:"),
        "{refused}"
    );
}

/// Programs in iptables' place that take everything and hold nothing, or, while a file of the name `broken` is beside
/// them, refuse everything.
fn fake_iptables(directory: &std::path::Path) {
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = --version ] && {{ echo 'iptables v1.8.9 (legacy)'; exit 0; }}\n\
         [ -e {}/broken ] && {{ echo 'iptables: Memory allocation problem' >&2; exit 1; }}\n\
         case $0 in *-restore) while read -r line; do :; done;; esac\nexit 0\n",
        directory.display()
    );
    for family in ["iptables", "ip6tables"] {
        for verb in ["", "-save", "-restore"] {
            let path = directory.join(format!("{family}{verb}"));
            fs::write(&path, &script).unwrap();
            fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        }
    }
}

/// What load balancers and liveness probes are told by a proxy that can't write its rules, and by one whose node goes.
#[test]
fn a_proxy_that_fails_is_unhealthy_until_it_works() {
    network::enter_private_network();
    let server = Launch::apiserver().start();
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}});
    server.run_with("kubectl apply -f -", &node.to_string());
    let programs = tempfile::tempdir().unwrap();
    fake_iptables(programs.path());
    let _proxy = Proxy::start_with(&server, "iptables", |command| {
        command.env("PATH", programs.path()).arg("--iptables-sync-period=1s");
    });
    let code = |path: &str| {
        let page = format!("http://127.0.0.1:10256/{path}");
        server
            .sh(&format!("curl -s -o /dev/null -w '%{{http_code}}' {page}"))
            .stdout
    };
    let until = |what: &str, healthz: &str, livez: &str| {
        eventually(what, || {
            (code("healthz") == healthz && code("livez") == livez).then_some(())
        })
    };
    until("the proxy works", "200", "200");
    let metrics = server.run("curl -sf http://127.0.0.1:10249/metrics");
    orlop_base::metrics::exposition::parse(&metrics).unwrap_or_else(|error| panic!("{error}"));
    server.run("kubectl taint node node-a ToBeDeletedByClusterAutoscaler=1:NoSchedule");
    until("the node goes: no new connections", "503", "200");
    server.run("kubectl taint node node-a ToBeDeletedByClusterAutoscaler-");
    until("the node stays", "200", "200");
    fs::write(programs.path().join("broken"), "").unwrap();
    until("rules can't be written", "503", "503");
    fs::remove_file(programs.path().join("broken")).unwrap();
    until("rules can be written again", "200", "200");
}
