//! Network policies with real packets, from objects in an API server to what arrives: each direction, each kind of peer.
//!
//! Node A enforces; `a1` is what policies are about. Pods: `a1` and `a2` (node A) and `b1` (node B) in namespace `shop`,
//! `client` and `a3` (node A) and `b2` (node B) in namespace `other`. Labels are `app: NAME`, of namespaces `team: NAME`.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use orlop_base::{Clock, Shutdown};
use orlop_client::testing::Server;
use orlop_proxy::backend::Mode;
use orlop_proxy::plan::{Family, Protocol};
use orlop_proxy::policy::{self, AttachedPods};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::bed::Bed;
use crate::service::Svc;
use crate::world::{IMPATIENCE, Outcome, PATIENCE, POD_PORT, World};

const TABLE: &str = "orlop-policy-test";
const PODS: [(&str, &str, &str); 6] = [
    ("client", "other", "a"),
    ("a1", "shop", "a"),
    ("a2", "shop", "a"),
    ("a3", "other", "a"),
    ("b1", "shop", "b"),
    ("b2", "other", "b"),
];

/// A bed whose node A enforces the policies of an API server in memory.
struct PolicyBed {
    bed: Bed,
    server: Server,
    attached: AttachedPods,
    runtime: Option<Runtime>,
    shutdown: Shutdown,
    running: Mutex<Option<JoinHandle<()>>>,
}

impl PolicyBed {
    fn new() -> PolicyBed {
        let bed = Bed::new(Mode::Nftables, World::routed());
        let server = Server::new(Clock::System, 1);
        for namespace in ["shop", "other"] {
            put_namespace(&server, namespace, namespace);
        }
        for (name, namespace, node) in PODS {
            let ips = [Family::V4, Family::V6].map(|family| bed.world.address(name, family));
            put_pod(&server, name, namespace, node, name, &ips);
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        let (attached, shutdown) = (AttachedPods::default(), Shutdown::default());
        let bed = PolicyBed {
            bed,
            server,
            attached,
            runtime: Some(runtime.unwrap()),
            shutdown,
            running: Mutex::default(),
        };
        bed.start();
        bed
    }

    fn start(&self) {
        let options = policy::Options {
            api: self.server.api(),
            node_name: "a".to_string(),
            table: TABLE.to_string(),
            namespace: Some(self.node()),
            attached: self.attached.clone(),
            shutdown: self.shutdown.clone(),
        };
        let run = async { policy::run(options).await.expect("policies can be enforced") };
        *self.running.lock().unwrap() = Some(self.runtime().spawn(run));
    }

    /// Ends enforcement, and waits until it has ended: what comes next would race with its last changes.
    fn stop(&self) {
        self.shutdown.trigger();
        if let Some(running) = self.running.lock().unwrap().take() {
            self.runtime().block_on(running).unwrap();
        }
    }

    /// A file that stands for node A's namespace.
    fn node(&self) -> PathBuf {
        let file = self.bed.world.node().netns.as_raw_fd();
        format!("/proc/{}/fd/{file}", std::process::id()).into()
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("until it is dropped")
    }

    /// The only policies there are from now on, once the kernel has them.
    fn set(&self, policies: &[(&str, Value)]) {
        let path = |name: &str| format!("/apis/networking.k8s.io/v1/namespaces/shop/networkpolicies/{name}");
        let listed = self.rules();
        let known: Vec<&str> = listed.lines().filter_map(policy_of).collect();
        for name in known
            .into_iter()
            .filter(|name| !policies.iter().any(|(other, _)| other == name))
        {
            self.server.remove(&path(name));
        }
        for (name, spec) in policies {
            let object = json!({"metadata": {"namespace": "shop", "name": name}, "spec": spec});
            self.server.put(&path(name), object);
        }
        let wanted: Vec<&str> = policies.iter().map(|(name, _)| *name).collect();
        self.until("the policies are in the kernel", || {
            let listed = self.rules();
            let mut known: Vec<&str> = listed.lines().filter_map(policy_of).collect();
            known.sort_unstable();
            known.dedup();
            known == wanted
        });
    }

    /// The rules of node A; those of IPv6, which come last. Read in one go: the table may go at any time.
    fn rules(&self) -> String {
        let ruleset = self.bed.shell("nft list ruleset ip6");
        let table = ruleset.split_once(&format!("table ip6 {TABLE} {{"));
        table
            .map(|(_, rules)| rules.split("\n}").next().unwrap_or(rules).to_string())
            .unwrap_or_default()
    }

    fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let waiting = async {
            while !holds() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let waited = self
            .runtime()
            .block_on(async { tokio::time::timeout(PATIENCE, waiting).await });
        assert!(waited.is_ok(), "never: {what}\n{}", self.rules());
    }

    fn reaches(&self, from: &str, protocol: Protocol, to: SocketAddr, limit: Duration) -> bool {
        reaches(&self.bed.world, from, protocol, to, limit)
    }

    /// Exactly these of all places reach the target, by both families.
    fn only(&self, sources: &[&str], to: &str, protocol: Protocol, port: u16) {
        // What node B's pods send each other never comes by node A.
        let others = EVERYBODY
            .iter()
            .filter(|from| **from != to && !(from.starts_with('b') && to.starts_with('b')));
        self.check(
            others.map(|from| (*from, to, sources.contains(from))).collect(),
            protocol,
            port,
        );
    }

    /// What `a1` reaches, by both families.
    fn only_from_a1(&self, targets: &[&str], protocol: Protocol, port: u16) {
        let all = ["client", "a2", "a3", "b1", "b2", "host"];
        self.check(all.map(|to| ("a1", to, targets.contains(&to))).to_vec(), protocol, port);
    }

    /// All at once: what must not get through takes its time.
    fn check(&self, cases: Vec<(&str, &str, bool)>, protocol: Protocol, port: u16) {
        let world = &self.bed.world;
        let wrong: Vec<String> = std::thread::scope(|scope| {
            let mut running = vec![];
            for family in Family::ALL {
                for (from, to, wanted) in cases.iter().copied() {
                    running.push(scope.spawn(move || {
                        let address = SocketAddr::new(world.address(to, family), port);
                        let limit = if wanted { PATIENCE } else { IMPATIENCE };
                        let reached = reaches(world, from, protocol, address, limit);
                        (reached != wanted).then(|| format!("{from} → {to} {protocol:?} {port} {family:?}: {reached}"))
                    }));
                }
            }
            running.into_iter().filter_map(|case| case.join().unwrap()).collect()
        });
        assert!(wrong.is_empty(), "{wrong:#?}\n{}", self.rules());
    }
}

fn reaches(world: &World, from: &str, protocol: Protocol, to: SocketAddr, limit: Duration) -> bool {
    match world.ask(from, protocol, to, limit) {
        // Nobody listens there, but it got through.
        Outcome::Answer { .. } | Outcome::Refused => true,
        Outcome::Timeout => false,
        other => panic!("{from} → {to}: {other:?}"),
    }
}

impl Drop for PolicyBed {
    fn drop(&mut self) {
        self.shutdown.trigger();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The policy that a line of `nft list` begins the chain of.
fn policy_of(line: &str) -> Option<&str> {
    line.trim().strip_prefix("chain policy/shop/")?.split('/').next()
}

fn put_namespace(server: &Server, name: &str, team: &str) {
    let object = json!({"metadata": {"name": name, "labels": {"team": team}}});
    server.put(&format!("/api/v1/namespaces/{name}"), object);
}

fn put_pod(server: &Server, name: &str, namespace: &str, node: &str, app: &str, ips: &[IpAddr]) {
    let object = json!({
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": app}},
        "spec": {
            "nodeName": node,
            "containers": [{"ports": [
                {"name": "web", "containerPort": POD_PORT}, {"name": "talk", "containerPort": POD_PORT, "protocol": "UDP"},
            ]}],
        },
        "status": {"phase": "Running", "podIPs": ips.iter().map(|ip| json!({"ip": ip.to_string()})).collect::<Vec<_>>()},
    });
    server.put(&format!("/api/v1/namespaces/{namespace}/pods/{name}"), object);
}

fn about_a1(types: &[&str], rules: Value) -> Value {
    let mut spec = json!({"podSelector": {"matchLabels": {"app": "a1"}}, "policyTypes": types});
    for (key, value) in rules.as_object().expect("rules by direction") {
        spec[key] = value.clone();
    }
    spec
}

fn ingress(rules: Value) -> Value {
    about_a1(&["Ingress"], json!({"ingress": rules}))
}

fn egress(rules: Value) -> Value {
    about_a1(&["Egress"], json!({"egress": rules}))
}

fn app(name: &str) -> Value {
    json!({"matchLabels": {"app": name}})
}

fn team(name: &str) -> Value {
    json!({"matchLabels": {"team": name}})
}

const EVERYBODY: &[&str] = &["client", "a1", "a2", "a3", "b1", "b2", "host", "outside", "stranger"];
const TCP: Protocol = Protocol::Tcp;
const UDP: Protocol = Protocol::Udp;

#[test]
fn ingress_by_peer() {
    let bed = PolicyBed::new();
    bed.only(EVERYBODY, "a1", TCP, POD_PORT);
    bed.set(&[("deny", ingress(json!([])))]);
    bed.only(&["host"], "a1", TCP, POD_PORT);
    bed.only(&["host"], "a1", UDP, POD_PORT);
    bed.only(EVERYBODY, "a2", TCP, POD_PORT);
    bed.only_from_a1(&["client", "a2", "a3", "b1", "b2", "host"], TCP, POD_PORT);
    bed.set(&[("pods", ingress(json!([{"from": [{"podSelector": app("a2")}]}])))]);
    bed.only(&["host", "a2"], "a1", TCP, POD_PORT);
    bed.set(&[("all-pods-here", ingress(json!([{"from": [{"podSelector": {}}]}])))]);
    bed.only(&["host", "a2", "b1"], "a1", TCP, POD_PORT);
    bed.set(&[(
        "namespaces",
        ingress(json!([{"from": [{"namespaceSelector": team("other")}]}])),
    )]);
    bed.only(&["host", "client", "a3", "b2"], "a1", TCP, POD_PORT);
    let both = json!([{"from": [{"namespaceSelector": team("other"), "podSelector": app("b2")}]}]);
    bed.set(&[("both", ingress(both))]);
    bed.only(&["host", "b2"], "a1", TCP, POD_PORT);
    let blocks = json!([{"from": [
        {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["198.18.0.0/24", "10.244.0.0/16"]}},
        {"ipBlock": {"cidr": "::/0", "except": ["2001:db8:4::/64", "fd00:244::/32"]}},
    ]}]);
    bed.set(&[("blocks", ingress(blocks))]);
    bed.only(&["host", "outside"], "a1", TCP, POD_PORT);
    bed.set(&[("everybody", ingress(json!([{}])))]);
    bed.only(EVERYBODY, "a1", TCP, POD_PORT);
}

#[test]
fn ports_of_both_directions() {
    let bed = PolicyBed::new();
    let open = ["host", "client", "a2", "a3", "b1", "b2", "outside", "stranger"];
    for (name, ports, tcp, udp) in [
        ("number", json!([{"port": POD_PORT}]), true, false),
        ("protocol", json!([{"protocol": "UDP"}]), false, true),
        (
            "range",
            json!([{"port": 8000, "endPort": 8100}, {"port": 8080}, {"port": 8090, "endPort": 8200}]),
            true,
            false,
        ),
        ("named", json!([{"port": "web"}]), true, false),
        ("named-udp", json!([{"port": "talk", "protocol": "UDP"}]), false, true),
        (
            "others",
            json!([{"port": 1}, {"port": 2, "endPort": 8079}, {"port": 8081, "protocol": "UDP"}]),
            false,
            false,
        ),
        ("sctp", json!([{"port": POD_PORT, "protocol": "SCTP"}]), false, false),
    ] {
        println!("{name}");
        bed.set(&[(name, ingress(json!([{"ports": ports}])))]);
        bed.only(if tcp { &open } else { &["host"] }, "a1", TCP, POD_PORT);
        bed.only(if udp { &open } else { &["host"] }, "a1", UDP, POD_PORT);
        bed.set(&[(&format!("{name}-egress"), egress(json!([{"ports": ports}])))]);
        let pods = ["client", "a2", "a3", "b1", "b2", "host"];
        bed.only_from_a1(if tcp { &pods } else { &["host"] }, TCP, POD_PORT);
        bed.only_from_a1(if udp { &pods } else { &["host"] }, UDP, POD_PORT);
    }
}

#[test]
fn egress_by_peer() {
    let bed = PolicyBed::new();
    bed.set(&[("deny", egress(json!([])))]);
    // The node that a pod is on stays in reach; nobody listens there.
    bed.only_from_a1(&["host"], TCP, POD_PORT);
    bed.only_from_a1(&["host"], UDP, POD_PORT);
    bed.only(EVERYBODY, "a1", TCP, POD_PORT);
    bed.set(&[("pods", egress(json!([{"to": [{"podSelector": app("b1")}]}])))]);
    bed.only_from_a1(&["host", "b1"], TCP, POD_PORT);
    let both =
        json!([{"to": [{"namespaceSelector": team("other"), "podSelector": app("a3")}, {"podSelector": app("a2")}]}]);
    bed.set(&[("both", egress(both))]);
    bed.only_from_a1(&["host", "a3", "a2"], TCP, POD_PORT);
    bed.set(&[(
        "namespaces",
        egress(json!([{"to": [{"namespaceSelector": team("other")}], "ports": [{"port": "web"}]}])),
    )]);
    bed.only_from_a1(&["host", "client", "a3", "b2"], TCP, POD_PORT);
    let blocks = json!([{"to": [
        {"ipBlock": {"cidr": "10.244.0.0/16", "except": ["10.244.2.0/24"]}},
        {"ipBlock": {"cidr": "fd00:244::/32", "except": ["fd00:244:2::/64"]}},
    ]}]);
    bed.set(&[("blocks", egress(blocks))]);
    bed.only_from_a1(&["host", "client", "a2", "a3"], TCP, POD_PORT);
    // Named ports are those of the pods that are there.
    let named = json!([{"to": [{"ipBlock": {"cidr": "10.244.0.0/16"}}, {"ipBlock": {"cidr": "fd00:244::/32"}}], "ports": [{"port": "web"}]}]);
    bed.set(&[("named", egress(named))]);
    bed.only_from_a1(&["host", "client", "a2", "a3", "b1", "b2"], TCP, POD_PORT);
}

/// What one policy allows no other forbids; both ends must allow it; and replies need no policy.
#[test]
fn policies_add_up() {
    let bed = PolicyBed::new();
    let deny = json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]});
    let from_a2 = ingress(json!([{"from": [{"podSelector": app("a2")}]}]));
    let from_b1 = ingress(json!([{"from": [{"podSelector": app("b1")}]}]));
    bed.set(&[
        ("deny", deny.clone()),
        ("from-a2", from_a2.clone()),
        ("from-b1", from_b1.clone()),
    ]);
    // Node B enforces nothing here, and a2 may not send.
    bed.only(&["host", "b1"], "a1", TCP, POD_PORT);
    bed.only_from_a1(&["host"], TCP, POD_PORT);
    let to_a1 = json!({
        "podSelector": app("a2"), "policyTypes": ["Egress"],
        "egress": [{"to": [{"podSelector": app("a1")}]}],
    });
    bed.set(&[
        ("deny", deny),
        ("from-a2", from_a2),
        ("from-b1", from_b1),
        ("to-a1", to_a1),
    ]);
    bed.only(&["host", "b1", "a2"], "a1", TCP, POD_PORT);
    bed.only(&["host", "b1", "a2"], "a1", UDP, POD_PORT);
}

/// Destinations are those behind services; and nobody can keep a pod from itself.
#[test]
fn services_and_pods_themselves() {
    let mut bed = PolicyBed::new();
    let service = Svc::new("web", 1, &["a1"]);
    bed.bed.put(&[&service]);
    let deny = about_a1(&["Ingress", "Egress"], json!({}));
    bed.set(&[("deny", deny.clone())]);
    let cluster_ips = Family::ALL.map(|family| service.cluster(family));
    for to in cluster_ips {
        assert!(bed.reaches("a1", TCP, to, PATIENCE), "itself, by its service {to}");
        assert!(!bed.reaches("a2", TCP, to, IMPATIENCE));
        assert!(!bed.reaches("client", TCP, to, IMPATIENCE));
    }
    let from_a2 = ingress(json!([{"from": [{"podSelector": app("a2")}], "ports": [{"port": POD_PORT}]}]));
    bed.set(&[("deny", deny), ("from-a2", from_a2)]);
    for to in cluster_ips {
        assert!(
            bed.reaches("a2", TCP, to, PATIENCE),
            "the port is the pod's, not the service's"
        );
        assert!(!bed.reaches("client", TCP, to, IMPATIENCE));
    }
}

#[test]
fn peers_follow_labels_and_connections_go_on() {
    let bed = PolicyBed::new();
    let spec = json!([{"from": [{"namespaceSelector": team("other"), "podSelector": app("a3")}]}]);
    bed.set(&[("follow", ingress(spec))]);
    bed.only(&["host", "a3"], "a1", TCP, POD_PORT);
    let ips = |name: &str| [Family::V4, Family::V6].map(|family| bed.bed.world.address(name, family));
    let to = SocketAddr::new(bed.bed.world.address("a1", Family::V4), POD_PORT);
    let mut open = bed.bed.world.connect("a3", to);
    assert!(open.ask().is_ok());
    // Another label: out; the label on another pod: in.
    put_pod(&bed.server, "a3", "other", "a", "changed", &ips("a3"));
    put_pod(&bed.server, "client", "other", "a", "a3", &ips("client"));
    bed.until("labels count", || {
        !bed.reaches("a3", TCP, to, IMPATIENCE) && bed.reaches("client", TCP, to, IMPATIENCE)
    });
    assert!(open.ask().is_ok(), "a connection that was allowed goes on");
    put_namespace(&bed.server, "other", "another");
    bed.until("labels of namespaces count", || {
        !bed.reaches("client", TCP, to, IMPATIENCE)
    });
    put_namespace(&bed.server, "other", "other");
    bed.until("and count again", || bed.reaches("client", TCP, to, IMPATIENCE));
    bed.server.remove("/api/v1/namespaces/other/pods/client");
    bed.until("a pod that went is nobody", || {
        !bed.reaches("client", TCP, to, IMPATIENCE)
    });
    // No policy, no table.
    bed.set(&[]);
    bed.until("nothing is left", || !bed.bed.shell("nft list tables").contains(TABLE));
    bed.only(EVERYBODY, "a1", TCP, POD_PORT);
}

/// A pod that policies isolate is isolated before anybody reads its addresses in its status.
#[test]
fn pods_are_isolated_before_they_run() {
    let bed = PolicyBed::new();
    let ips = [Family::V4, Family::V6].map(|family| bed.bed.world.address("a1", family));
    let wait = |ips: &[IpAddr]| bed.runtime().block_on(bed.attached.attach("shop", "a1", ips));
    assert!(wait(&ips), "without policies nobody waits");
    bed.attached.detach("shop", "a1", &ips);
    put_pod(&bed.server, "a1", "shop", "a", "a1", &[]);
    put_pod(&bed.server, "a2", "shop", "a", "a2", &[]);
    bed.set(&[("deny", json!({"podSelector": {}}))]);
    assert!(
        bed.reaches("client", TCP, SocketAddr::new(ips[0], POD_PORT), PATIENCE),
        "nobody knows its address"
    );
    assert!(wait(&ips));
    assert!(
        !bed.reaches("client", TCP, SocketAddr::new(ips[0], POD_PORT), IMPATIENCE),
        "at once"
    );
    assert!(!bed.reaches("client", TCP, SocketAddr::new(ips[1], POD_PORT), IMPATIENCE));
    bed.attached.detach("shop", "a1", &ips);
    bed.until("it is forgotten", || {
        bed.reaches("client", TCP, SocketAddr::new(ips[0], POD_PORT), IMPATIENCE)
    });
}

/// Rules outlive the process; the next one takes them over, and removes what nobody wants.
#[test]
fn rules_outlive_the_process() {
    let mut bed = PolicyBed::new();
    bed.set(&[("deny", ingress(json!([])))]);
    let before = bed.rules();
    let restart = |bed: &mut PolicyBed| {
        bed.stop();
        bed.shutdown = Shutdown::default();
        bed.start();
    };
    restart(&mut bed);
    bed.only(&["host"], "a1", TCP, POD_PORT);
    assert_eq!(bed.rules(), before);
    bed.stop();
    bed.server
        .remove("/apis/networking.k8s.io/v1/namespaces/shop/networkpolicies/deny");
    bed.only(&["host"], "a1", TCP, POD_PORT);
    restart(&mut bed);
    bed.until("what nobody wants is removed", || {
        !bed.bed.shell("nft list tables").contains(TABLE)
    });
    bed.set(&[("deny", ingress(json!([])))]);
    bed.stop();
    policy::clean_up(TABLE, Some(&bed.node())).unwrap();
    assert!(!bed.bed.shell("nft list tables").contains(TABLE));
}
