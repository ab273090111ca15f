//! Pods on an API server that merges as a real one does: what it has in the end, and how often it was bothered.

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::super::admission::NodeTraits;
use super::super::testing::Server;
use super::super::{Group, Groups};
use super::*;

const PATH: &str = "/api/v1/namespaces/d/pods/p";

struct World {
    server: Server,
    clock: Clock,
    pods: Pods,
    told: Arc<Mutex<Vec<String>>>,
}

fn pods(server: &Server, clock: &Clock) -> Pods {
    pods_on(server, clock, "sim=1")
}

fn pods_on(server: &Server, clock: &Clock, group: &str) -> Pods {
    let nodes = Arc::new(Groups::new(vec![Group::parse(group).unwrap()]).unwrap());
    let seen = NodeCache::new(nodes.clone());
    seen.registered(0);
    Pods {
        api: server.api(),
        options: Options {
            nodes,
            ..Options::default()
        },
        clock: clock.clone(),
        seen,
        record: Box::new(|_, _| {}),
        addresses: vec![Addresses::default()],
        by_node: vec![vec![]],
        kept: HashMap::new(),
        due: BinaryHeap::new(),
        shapes: HashMap::new(),
    }
}

impl World {
    /// A pod that was just bound.
    fn new(annotations: Value, spec: Value) -> World {
        let (server, clock) = (Server::default(), Clock::manual(Timestamp::UNIX_EPOCH));
        let mut pod = json!({"kind": "Pod", "metadata": {"namespace": "d", "name": "p", "uid": "u", "annotations": annotations},
            "spec": {"nodeName": "sim-0", "containers": [{"name": "web", "image": "nginx"}]}, "status": {"phase": "Pending"}});
        pod["spec"]
            .as_object_mut()
            .unwrap()
            .extend(spec.as_object().unwrap().clone());
        server.put(PATH, pod);
        let pods = pods(&server, &clock);
        World {
            server,
            clock,
            pods,
            told: Arc::default(),
        }
    }

    /// A node like that, without pods.
    fn on(group: &str) -> World {
        let (server, clock) = (Server::default(), Clock::manual(Timestamp::UNIX_EPOCH));
        let told: Arc<Mutex<Vec<String>>> = Arc::default();
        let heard = told.clone();
        let mut pods = pods_on(&server, &clock, group);
        pods.record = Box::new(move |node, event| {
            let line = format!("{node} {} {}: {}", event.regarding.name, event.reason, event.note);
            heard.lock().push(line);
        });
        World {
            server,
            clock,
            pods,
            told,
        }
    }

    fn path(name: &str) -> String {
        format!("/api/v1/namespaces/d/pods/{name}")
    }

    /// Another pod is bound to the node.
    fn bind(&mut self, name: &str, spec: Value) {
        let mut pod = json!({"kind": "Pod", "metadata": {"namespace": "d", "name": name, "uid": name},
            "spec": {"nodeName": "sim-0", "containers": [{"name": "web", "image": "nginx"}]}, "status": {"phase": "Pending"}});
        pod["spec"]
            .as_object_mut()
            .unwrap()
            .extend(spec.as_object().unwrap().clone());
        self.server.put(&World::path(name), pod);
        let pod = serde_json::from_value(self.server.get(&World::path(name))).unwrap();
        self.pods.observe(Delta::Applied(pod));
    }

    fn unbind(&mut self, name: &str) {
        let pod = serde_json::from_value(self.server.get(&World::path(name))).unwrap();
        self.pods.observe(Delta::Deleted(pod));
    }

    /// Does what is due, without news from the watch.
    async fn act(&mut self) {
        loop {
            let now = self.clock.now();
            let Some(uid) = self.pods.pop_due(now) else { return };
            if let Some(write) = self.pods.step(&uid, now) {
                self.finish(write).await;
            }
        }
    }

    /// "Running", "Failed OutOfcpu: Pod was …".
    async fn outcome(&mut self, name: &str) -> String {
        self.act().await;
        let status = self.server.get(&World::path(name))["status"].clone();
        let text = |field: &str| status[field].as_str().unwrap_or_default().to_string();
        match text("reason").as_str() {
            "" => text("phase"),
            reason => format!("{} {reason}: {}", text("phase"), text("message")),
        }
    }

    fn told(&self) -> Vec<String> {
        std::mem::take(&mut self.told.lock())
    }

    fn seen(&self) -> Delta<RawPod> {
        Delta::Applied(serde_json::from_value(self.server.get(PATH)).unwrap())
    }

    fn due(&mut self) -> Option<BoxFuture<'static, Written>> {
        let now = self.clock.now();
        let uid = self.pods.pop_due(now)?;
        self.pods.step(&uid, now)
    }

    async fn finish(&mut self, write: BoxFuture<'static, Written>) {
        let (uid, stage, result) = write.await;
        self.pods.written(&uid, stage, result);
    }

    /// What is due now, with the watch a step behind; how many writes that took.
    async fn settle(&mut self) -> usize {
        let mut writes = 0;
        let mut news = self.seen();
        loop {
            self.pods.observe(news);
            news = self.seen();
            let Some(write) = self.due() else { return writes };
            self.finish(write).await;
            writes += 1;
        }
    }

    async fn after(&mut self, seconds: u64) -> usize {
        self.clock.advance(Duration::from_secs(seconds));
        self.settle().await
    }

    async fn changed(&mut self, kind: &str, status: &str) -> usize {
        let condition = json!({"type": kind, "status": status, "lastTransitionTime": self.clock.now().to_string()});
        self.server.change(PATH, json!({"status": {"conditions": [condition]}}));
        self.settle().await
    }

    fn status(&self) -> Value {
        self.server.get(PATH)["status"].clone()
    }

    /// Status, reason and message.
    fn ready(&self) -> (String, String, String) {
        let status = self.status();
        let ready = status["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .find(|c| c["type"] == "Ready")
            .unwrap();
        let text = |field: &str| ready[field].as_str().unwrap_or_default().to_string();
        (text("status"), text("reason"), text("message"))
    }

    /// Only of our own.
    fn conditions(&self) -> String {
        let all = self.server.conditions(PATH);
        let own = all
            .split(' ')
            .filter(|c| CONDITIONS.iter().any(|own| c.starts_with(&format!("{own}="))));
        own.map(|c| {
            c.replace("PodReadyToStartContainers", "Network")
                .replace("ContainersReady", "Containers")
        })
        .collect::<Vec<_>>()
        .join(" ")
    }
}

#[tokio::test]
async fn conditions_keep_the_time_at_which_they_turned() {
    let annotations = json!({"orlop.io/start-delay": "5s", "orlop.io/ready-delay": "10s", "orlop.io/run-for": "60s"});
    let mut world = World::new(annotations, json!({}));
    assert_eq!(world.settle().await, 0);
    for (wait, writes, expected) in [
        (
            5,
            1,
            "Network=True@5 Initialized=True@5 Ready=False@5 Containers=False@5",
        ),
        (
            10,
            1,
            "Network=True@5 Initialized=True@5 Ready=True@15 Containers=True@15",
        ),
        // It ends, and starts again at once.
        (
            50,
            2,
            "Network=True@5 Initialized=True@5 Ready=False@65 Containers=False@65",
        ),
        (
            10,
            1,
            "Network=True@5 Initialized=True@5 Ready=True@75 Containers=True@75",
        ),
        (
            50,
            1,
            "Network=True@5 Initialized=True@5 Ready=False@125 Containers=False@125",
        ),
        // After the back-off it runs, and is not ready still.
        (
            10,
            1,
            "Network=True@5 Initialized=True@5 Ready=False@125 Containers=False@125",
        ),
        (
            10,
            1,
            "Network=True@5 Initialized=True@5 Ready=True@145 Containers=True@145",
        ),
    ] {
        assert_eq!(world.after(wait).await, writes, "before {expected}");
        assert_eq!(world.conditions(), expected);
    }
    assert_eq!(world.ready(), ("True".into(), String::new(), String::new()));
    let container = world.status()["containerStatuses"][0].clone();
    assert_eq!(container["restartCount"], 2);
    assert_eq!(container["state"]["running"]["startedAt"], "1970-01-01T00:02:15Z");
    let ended = &container["lastState"]["terminated"];
    assert_eq!(
        (&ended["startedAt"], &ended["finishedAt"]),
        (&json!("1970-01-01T00:01:05Z"), &json!("1970-01-01T00:02:05Z"))
    );
}

#[tokio::test]
async fn a_gated_pod_is_ready_once_somebody_says_so() {
    let gates = json!({"readinessGates": [{"conditionType": "x/a"}, {"conditionType": "x/b"}]});
    let mut world = World::new(json!({}), gates);
    assert_eq!(world.settle().await, 1);
    let missing = |gate: &str| format!("corresponding condition of pod readiness gate {gate:?} does not exist.");
    let unready = |message: String| ("False".to_string(), "ReadinessGatesNotReady".to_string(), message);
    assert_eq!(
        world.ready(),
        unready(format!("{}, {}", missing("x/a"), missing("x/b")))
    );
    assert_eq!(
        world.conditions(),
        "Network=True@0 Initialized=True@0 Ready=False@0 Containers=True@0"
    );

    world.clock.advance(Duration::from_secs(10));
    assert_eq!(world.changed("x/a", "True").await, 1);
    assert_eq!(world.changed("x/b", "False").await, 1);
    let refused = "the status of pod readiness gate \"x/b\" is not \"True\", but False";
    assert_eq!(world.ready(), unready(refused.to_string()));
    assert_eq!(world.changed("x/c", "False").await, 0, "nobody's gate");
    assert_eq!(world.changed("x/b", "True").await, 1);
    assert_eq!(world.ready(), ("True".into(), String::new(), String::new()));
    assert_eq!(
        world.conditions(),
        "Network=True@0 Initialized=True@0 Ready=True@10 Containers=True@0"
    );

    world.clock.advance(Duration::from_secs(10));
    assert_eq!(world.changed("x/a", "Unknown").await, 1);
    assert_eq!(
        world.ready().2,
        "the status of pod readiness gate \"x/a\" is not \"True\", but Unknown"
    );
    assert_eq!(
        world.conditions(),
        "Network=True@0 Initialized=True@0 Ready=False@20 Containers=True@0"
    );
}

#[tokio::test]
async fn gates_may_change_during_a_write() {
    let mut world = World::new(json!({}), json!({"readinessGates": [{"conditionType": "x/a"}]}));
    let news = world.seen();
    world.pods.observe(news);
    let write = world.due().unwrap();
    world.server.change(PATH, json!({"status": {"conditions": [{"type": "x/a", "status": "True", "lastTransitionTime": "1970-01-01T00:00:00Z"}]}}));
    let news = world.seen();
    world.pods.observe(news);
    assert!(world.due().is_none(), "one write at a time");
    world.finish(write).await;
    assert_eq!(world.ready().0, "False");
    assert_eq!(world.settle().await, 1);
    assert_eq!(world.ready().0, "True");
}

#[tokio::test]
async fn pods_are_taken_over_as_they_are() {
    let gates = json!({"readinessGates": [{"conditionType": "x/a"}]});
    let mut world = World::new(json!({"orlop.io/run-for": "60s", "orlop.io/exit-code": "1"}), gates);
    world.settle().await;
    world.clock.advance(Duration::from_secs(20));
    world.pods = pods(&world.server, &world.clock);
    assert_eq!(world.settle().await, 0);

    // What changed while nobody looked.
    world.pods = pods(&world.server, &world.clock);
    assert_eq!(world.changed("x/a", "True").await, 1);
    assert_eq!(
        world.conditions(),
        "Network=True@0 Initialized=True@0 Ready=True@20 Containers=True@0"
    );
    let status = world.status();
    assert_eq!(status["startTime"], "1970-01-01T00:00:00Z");
    assert_eq!(
        status["containerStatuses"][0]["state"]["running"]["startedAt"],
        "1970-01-01T00:00:00Z"
    );

    // The run goes on from where it was; a second end is followed by a back-off, which the next one knows nothing of.
    assert_eq!(world.after(40).await, 2);
    assert_eq!(world.after(60).await, 1);
    assert!(!world.status()["containerStatuses"][0]["state"]["waiting"].is_null());
    world.pods = pods(&world.server, &world.clock);
    assert_eq!(world.settle().await, 1);
    assert_eq!(world.status()["containerStatuses"][0]["restartCount"], 2);
    assert_eq!(world.ready().0, "True");
}

/// The node controller marks the pods of nodes that it does not hear of.
#[tokio::test]
async fn a_pod_taken_for_dead_is_ready_again() {
    let mut world = World::new(json!({}), json!({}));
    world.settle().await;
    world.clock.advance(Duration::from_secs(60));
    assert_eq!(world.changed("Ready", "False").await, 1);
    assert_eq!(
        world.conditions(),
        "Network=True@0 Initialized=True@0 Ready=True@60 Containers=True@0"
    );
}

#[tokio::test]
async fn sidecars_run_beside_the_containers() {
    let init = json!([{"name": "prepare"}, {"name": "proxy", "restartPolicy": "Always"}]);
    let spec = json!({"initContainers": init, "restartPolicy": "OnFailure"});
    let mut world = World::new(json!({"orlop.io/run-for": "30s", "orlop.io/exit-code": "1"}), spec);
    world.settle().await;
    let told = |world: &World| {
        let list = world.status()["initContainerStatuses"].clone();
        [0, 1].map(|n| {
            let (state, ready, started) = (&list[n]["state"], &list[n]["ready"], &list[n]["started"]);
            let state = state.as_object().unwrap().keys().next().unwrap();
            format!(
                "{} {state} ready={ready} started={started}",
                list[n]["name"].as_str().unwrap()
            )
        })
    };
    let done = "prepare terminated ready=true started=false";
    let runs = [done, "proxy running ready=true started=true"];
    assert_eq!(told(&world), runs);
    // Containers that start again or wait to do so do not touch it.
    assert_eq!(world.after(30).await, 2);
    assert_eq!(told(&world), runs);
    assert_eq!(world.after(30).await, 1);
    assert_eq!(told(&world), runs);
    assert_eq!(world.ready().2, "containers with unready status: [web]");
    let usage: Vec<usize> = world.pods.kept.values().map(|pod| pod.shape.usage.len()).collect();
    assert_eq!(usage, [2], "of the sidecar and the container");

    world
        .server
        .change(PATH, json!({"metadata": {"annotations": {"orlop.io/exit-code": "0"}}}));
    assert_eq!(world.after(10).await, 1);
    assert_eq!(world.after(30).await, 1);
    assert_eq!(world.status()["phase"], "Succeeded");
    assert_eq!(told(&world), [done, "proxy terminated ready=false started=false"]);
    let ended = world.status()["initContainerStatuses"][1]["state"]["terminated"].clone();
    assert_eq!((&ended["exitCode"], &ended["reason"]), (&json!(0), &json!("Completed")));
    assert_eq!(
        (&ended["startedAt"], &ended["finishedAt"]),
        (&json!("1970-01-01T00:00:00Z"), &json!("1970-01-01T00:01:40Z"))
    );
}

/// A fleet has tens of thousands of them.
#[test]
fn a_pod_takes_little_room() {
    let bytes = size_of::<Kept>();
    assert!(bytes <= 152, "{bytes}");
}

fn asking(cpu: &str) -> Value {
    json!({"containers": [{"name": "web", "image": "nginx", "resources": {"requests": {"cpu": cpu}}}]})
}

#[tokio::test]
async fn pods_without_room_are_refused_as_by_a_kubelet() {
    let mut world = World::on("sim=1:cpu=2,pods=3");
    world.bind("a", asking("1500m"));
    assert_eq!(world.outcome("a").await, "Running");
    world.bind("b", asking("1500m"));
    let why = "Node didn't have enough resource: cpu, requested: 1500, used: 1500, capacity: 2000";
    assert_eq!(
        world.outcome("b").await,
        format!("Failed OutOfcpu: Pod was rejected: {why}")
    );
    assert_eq!(world.told(), [format!("sim-0 b OutOfcpu: {why}")]);
    let status = world.server.get(&World::path("b"))["status"].clone();
    assert!(status["containerStatuses"].is_null() && status["podIP"].is_null());
    assert_eq!(status["startTime"], "1970-01-01T00:00:00Z");
    // What was refused takes nothing; what ended or went leaves its room.
    world.bind("c", asking("500m"));
    assert_eq!(world.outcome("c").await, "Running");
    world.unbind("a");
    world.bind("d", asking("1500m"));
    assert_eq!(world.outcome("d").await, "Running");
    world.bind("e", asking("0"));
    assert_eq!(world.outcome("e").await, "Running");
    world.bind("f", asking("0"));
    let why = "Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3";
    assert_eq!(
        world.outcome("f").await,
        format!("Failed OutOfpods: Pod was rejected: {why}")
    );
    // A new keeper leaves it at that.
    let pod = serde_json::from_value(world.server.get(&World::path("f"))).unwrap();
    world.pods = pods_on(&world.server, &world.clock, "sim=1:cpu=2,pods=3");
    world.pods.observe(Delta::Reset(vec![pod]));
    assert!(world.pods.pop_due(world.clock.now()).is_none());
}

#[tokio::test]
async fn pods_that_end_leave_their_room() {
    let mut world = World::on("sim=1:cpu=2");
    let mut short = asking("2");
    short["restartPolicy"] = json!("Never");
    world.bind("a", short);
    world.server.change(
        &World::path("a"),
        json!({"metadata": {"annotations": {"orlop.io/run-for": "5s"}}}),
    );
    let seen = serde_json::from_value(world.server.get(&World::path("a"))).unwrap();
    world.pods.observe(Delta::Applied(seen));
    assert_eq!(world.outcome("a").await, "Running");
    world.clock.advance(Duration::from_secs(5));
    assert_eq!(world.outcome("a").await, "Succeeded");
    world.bind("b", asking("2"));
    assert_eq!(world.outcome("b").await, "Running");
}

#[tokio::test]
async fn pods_wait_for_room_while_they_wait_to_start() {
    let mut world = World::on("sim=1:cpu=2");
    world.bind("a", asking("2"));
    world.server.change(
        &World::path("a"),
        json!({"metadata": {"annotations": {"orlop.io/start-delay": "5s"}}}),
    );
    let seen = serde_json::from_value(world.server.get(&World::path("a"))).unwrap();
    world.pods.observe(Delta::Applied(seen));
    // It was admitted before it starts: nobody else gets its room.
    assert_eq!(world.outcome("a").await, "Pending");
    world.bind("b", asking("2"));
    assert!(world.outcome("b").await.starts_with("Failed OutOfcpu"));
    world.clock.advance(Duration::from_secs(5));
    assert_eq!(world.outcome("a").await, "Running");
}

#[tokio::test]
async fn pods_in_the_wrong_place_are_refused_at_the_second_look() {
    let mut world = World::on("sim=1:label=disk=ssd,taint=gone:NoExecute");
    let tolerated = json!([{"operator": "Exists"}]);
    let selecting = |disk: &str| json!({"nodeSelector": {"disk": disk}, "tolerations": tolerated});
    world.bind("ssd", selecting("ssd"));
    assert_eq!(world.outcome("ssd").await, "Running");
    world.bind("hdd", selecting("hdd"));
    world.bind("plain", json!({}));
    world.bind("windows", json!({"os": {"name": "windows"}, "tolerations": tolerated}));
    for name in ["hdd", "plain", "windows"] {
        assert_eq!(
            world.outcome(name).await,
            "Pending",
            "{name}: the node may have changed"
        );
    }
    world.clock.advance(RETRY);
    let place = "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector";
    assert_eq!(
        world.outcome("hdd").await,
        format!("Failed NodeAffinity: Pod was rejected: {place}")
    );
    let taint = "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate";
    assert_eq!(
        world.outcome("plain").await,
        format!("Failed TaintToleration: Pod was rejected: {taint}")
    );
    assert!(world.outcome("windows").await.starts_with("Failed PodOSNotSupported: "));
    assert_eq!(world.told().len(), 3);

    // Heard of in time: somebody gave the node the label.
    world.bind("late", selecting("nvme"));
    assert_eq!(world.outcome("late").await, "Pending");
    let traits = NodeTraits {
        labels: [("disk".to_string(), "nvme".to_string())].into(),
        ..world.pods.seen.traits(0).unwrap()
    };
    world.pods.seen.learn(0, traits, None);
    world.clock.advance(RETRY);
    assert_eq!(world.outcome("late").await, "Running");
}

#[tokio::test]
async fn nodes_under_pressure_take_no_more() {
    let mut world = World::on("sim=1");
    let traits = world.pods.seen.traits(0).unwrap();
    world.pods.seen.learn(0, traits, Some(Fault::DiskPressure));
    world.bind("a", json!({}));
    world.act().await;
    world.clock.advance(RETRY);
    assert_eq!(
        world.outcome("a").await,
        "Failed Evicted: Pod was rejected: The node had condition: [DiskPressure]. "
    );
}

#[tokio::test]
async fn a_critical_pod_pushes_others_off() {
    let mut world = World::on("sim=1:cpu=2");
    world.bind("small", asking("500m"));
    world.bind("large", asking("1500m"));
    assert_eq!(world.outcome("large").await, "Running");
    let mut critical = asking("1");
    critical["priority"] = json!(2_000_000_000);
    world.bind("critical", critical);
    assert_eq!(world.outcome("critical").await, "Running");
    assert_eq!(
        world.outcome("large").await,
        "Failed Preempting: Preempted in order to admit critical pod"
    );
    assert_eq!(world.outcome("small").await, "Running");
    let conditions = world.server.conditions(&World::path("large"));
    assert!(conditions.contains("DisruptionTarget=True@0"), "{conditions}");
    assert_eq!(
        world.told(),
        ["sim-0 large Preempting: Preempted in order to admit critical pod"]
    );
}

#[tokio::test]
async fn nobody_is_judged_by_a_node_that_was_not_seen() {
    let mut world = World::on("sim=1:cpu=2");
    world.pods.seen = NodeCache::new(world.pods.options.nodes.clone());
    world.bind("a", asking("3"));
    assert_eq!(world.outcome("a").await, "Pending");
    world.pods.seen.registered(0);
    world.clock.advance(NODE_WAIT);
    assert!(world.outcome("a").await.starts_with("Failed OutOfcpu"));
}
