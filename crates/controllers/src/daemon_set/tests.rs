//! Plans for single nodes, and sets driven through random schedules.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use orlop_base::Random;
use orlop_base::clock::Shift;
use serde_json::{Value, json};

use super::failures::Failures;
use super::placement::{self, Fit, Placement};
use super::plan::{self, Plan, View};
use crate::objects::{ControllerRevision, DaemonSet, Node, Pod};
use crate::revisions;

fn start() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

fn set(strategy: Value, min_ready: u32) -> DaemonSet {
    serde_json::from_value(json!({
        "metadata": {"name": "d", "namespace": "ns", "uid": "d", "generation": 1},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "updateStrategy": strategy, "minReadySeconds": min_ready,
                 "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"nodeSelector": {"runs": "d"}}}},
        "status": {"observedGeneration": 1},
    }))
    .unwrap()
}

fn rolling(unavailable: impl Into<Value>, surge: impl Into<Value>) -> Value {
    json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": unavailable.into(), "maxSurge": surge.into()}})
}

/// `fits`: also `tainted` (keeps its pods) and `no`.
fn node(name: &str, fits: &str) -> Arc<Node> {
    let labels = if fits == "no" { json!({}) } else { json!({"runs": "d"}) };
    let taints = if fits == "tainted" {
        json!([{"key": "t", "effect": "NoSchedule"}])
    } else {
        json!([])
    };
    let node = json!({"metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}});
    Arc::new(serde_json::from_value(node).unwrap())
}

/// `pod n1 new ready`: on n1, of the present template, ready for ten seconds. Further words: `old`, `unready`, `pending`
/// (not placed), `failed`, `succeeded`, `leaving`, `just` (ready now), `young`.
fn pod(name: &str, words: &str) -> Arc<Pod> {
    let words: Vec<&str> = words.split(' ').collect();
    let is = |word: &str| words.contains(&word);
    let mut spec = json!({});
    placement::bind(&mut spec, words[0]);
    if !is("pending") {
        spec["nodeName"] = words[0].into();
    }
    let phase = match () {
        () if is("failed") => "Failed",
        () if is("succeeded") => "Succeeded",
        () if is("pending") => "Pending",
        () => "Running",
    };
    let since = if is("just") {
        start()
    } else {
        start().earlier(Duration::from_secs(10))
    };
    let ready = json!([{"type": "Ready", "status": if is("ready") || is("just") { "True" } else { "False" },
                        "lastTransitionTime": since}]);
    let created = start().earlier(Duration::from_secs(if is("young") { 50 } else { 100 }));
    let deleted = is("leaving").then(start);
    let pod = json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name, "creationTimestamp": created, "deletionTimestamp": deleted,
                     "labels": {revisions::POD_LABEL: if is("old") { "h1" } else { "h2" }}},
        "spec": spec, "status": {"phase": phase, "conditions": ready},
    });
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn planned(set: &DaemonSet, nodes: &[Arc<Node>], pods: &[Arc<Pod>], failures: &Failures) -> Plan {
    plan::plan(&View {
        set,
        hash: "h2",
        placement: &Placement::from_template(&set.spec.template),
        nodes,
        pods,
        failures,
        now: start(),
    })
}

/// `create n1, n2; delete p1`, in the order of names.
fn told(plan: &Plan) -> String {
    let mut create = plan.create.clone();
    create.sort();
    let mut delete: Vec<String> = plan.delete.iter().map(|p| p.metadata.name.clone()).collect();
    delete.sort();
    let mut parts = vec![];
    if !create.is_empty() {
        parts.push(format!("create {}", create.join(", ")));
    }
    if !delete.is_empty() {
        parts.push(format!("delete {}", delete.join(", ")));
    }
    parts.join("; ")
}

fn check(case: &str, strategy: &Value, min_ready: u32, nodes: &str, pods: &[&str], wanted: &str) {
    let nodes: Vec<_> = nodes
        .split_whitespace()
        .map(|text| text.split_once('=').unwrap_or((text, "yes")))
        .map(|(name, fits)| node(name, fits))
        .collect();
    let pods: Vec<_> = pods
        .iter()
        .enumerate()
        .map(|(i, words)| pod(&format!("p{}", i + 1), words))
        .collect();
    let plan = planned(&set(strategy.clone(), min_ready), &nodes, &pods, &Failures::default());
    assert_eq!(told(&plan), wanted, "{case}");
}

#[test]
fn every_node_gets_what_it_should() {
    let plain = rolling(1, 0);
    for (case, nodes, pods, wanted) in [
        ("none yet", "n1 n2 n3=no n4=tainted", vec![], "create n1, n2"),
        ("all there", "n1 n2", vec!["n1 new ready", "n2 new pending"], ""),
        ("not meant for it", "n1=no", vec!["n1 new ready"], "delete p1"),
        ("not meant, leaving", "n1=no", vec!["n1 new ready leaving"], ""),
        ("keeps", "n1=tainted", vec!["n1 new ready"], ""),
        (
            "two of them",
            "n1",
            vec!["n1 new young ready", "n1 new ready"],
            "delete p1",
        ),
        (
            "a placed one counts first",
            "n1",
            vec!["n1 new pending", "n1 new young"],
            "delete p1",
        ),
        ("leaving: wait for its end", "n1", vec!["n1 new ready leaving"], ""),
        ("leaving and ended", "n1", vec!["n1 new failed leaving"], "create n1"),
        ("failed", "n1", vec!["n1 new failed"], "delete p1"),
        ("succeeded", "n1", vec!["n1 new succeeded"], "delete p1"),
        (
            "failed beside a living one",
            "n1",
            vec!["n1 new failed", "n1 new ready"],
            "delete p1",
        ),
        (
            "the node is gone",
            "",
            vec!["n1 new pending", "n2 new ready"],
            "delete p1",
        ),
    ] {
        check(case, &plain, 0, nodes, &pods, wanted);
    }
    let surge = rolling(0, 1);
    for (case, nodes, pods, wanted) in [
        (
            "leaving holds nothing up",
            "n1",
            vec!["n1 new ready leaving"],
            "create n1",
        ),
        (
            "keeps, and gets no new one",
            "n1=tainted",
            vec!["n1 new ready leaving"],
            "",
        ),
        (
            "the new one waits",
            "n1",
            vec!["n1 old ready", "n1 new young unready"],
            "",
        ),
        (
            "the new one serves",
            "n1",
            vec!["n1 old ready", "n1 new young ready"],
            "delete p1",
        ),
        (
            "none serves",
            "n1",
            vec!["n1 old unready", "n1 new young unready"],
            "delete p1",
        ),
        (
            "three",
            "n1",
            vec!["n1 old ready", "n1 new unready", "n1 new young unready"],
            "delete p3",
        ),
    ] {
        check(case, &surge, 0, nodes, &pods, wanted);
    }
}

#[test]
fn an_update_takes_a_few_nodes_at_a_time() {
    let old = ["n1 old ready", "n2 old ready", "n3 old ready", "n4 old ready"];
    for (case, strategy, pods, wanted) in [
        ("one", rolling(1, 0), old.to_vec(), "delete p1"),
        ("half", rolling("50%", 0), old.to_vec(), "delete p1, p2"),
        ("a little is one", rolling("1%", 0), old.to_vec(), "delete p1"),
        ("on delete", json!({"type": "OnDelete"}), old.to_vec(), ""),
        (
            "one is missing",
            rolling(1, 0),
            vec!["n1 old ready", "n2 new unready", "n3 old ready", "n4 old ready"],
            "",
        ),
        (
            "one is leaving",
            rolling(1, 0),
            vec!["n1 old ready", "n2 old leaving", "n3 old ready", "n4 old ready"],
            "",
        ),
        (
            "of no use",
            rolling(1, 0),
            vec!["n1 old ready", "n2 old unready", "n3 old unready", "n4 old ready"],
            "delete p2, p3",
        ),
        (
            "of no use, with room",
            rolling(2, 0),
            vec!["n1 old ready", "n2 old unready", "n3 old ready", "n4 new ready"],
            "delete p1, p2",
        ),
        ("surge", rolling(0, 1), old.to_vec(), "create n1"),
        ("surge by half", rolling(0, "50%"), old.to_vec(), "create n1, n2"),
        (
            "surge under way",
            rolling(0, 2),
            vec![
                "n1 old ready",
                "n1 new young unready",
                "n2 old ready",
                "n3 old ready",
                "n4 new ready",
            ],
            "create n2",
        ),
        (
            "surge onto what does not serve",
            rolling(0, 1),
            vec![
                "n1 old ready",
                "n1 new young unready",
                "n2 old unready",
                "n3 old ready",
                "n4 new ready",
            ],
            "create n2",
        ),
        ("neither allowed", rolling(0, 0), old.to_vec(), "delete p1"),
    ] {
        check(case, &strategy, 0, "n1 n2 n3 n4", &pods, wanted);
    }
    // Ready is not available while minReadySeconds run.
    let pods = ["n1 new just", "n2 old ready"];
    check("too young", &rolling(1, 0), 5, "n1 n2", &pods, "");
    let plan = planned(
        &set(rolling(1, 0), 5),
        &[node("n1", "")],
        &[pod("p", "n1 new just")],
        &Failures::default(),
    );
    assert_eq!(plan.look_again, Some(Duration::from_secs(5)));
    // A set that moves elsewhere leaves a node when there are enough without it.
    check(
        "moving",
        &rolling(0, 1),
        0,
        "n1=tainted n2",
        &["n1 old ready", "n2 new unready"],
        "",
    );
    check(
        "moved",
        &rolling(0, 1),
        0,
        "n1=tainted n2",
        &["n1 old ready", "n2 new ready"],
        "delete p1",
    );
    check(
        "no use there",
        &rolling(0, 1),
        0,
        "n1=tainted n2",
        &["n1 old unready", "n2 new ready"],
        "delete p1",
    );
}

#[test]
fn failed_pods_wait_before_they_are_replaced() {
    let set = set(rolling(1, 0), 0);
    let mut failures = Failures::default();
    let place = super::failures::BackoffKey {
        uid: "d".into(),
        generation: 1,
        node: "n1".into(),
    };
    failures.replaced(place, start() - Duration::from_millis(400));
    let plan = planned(&set, &[node("n1", "")], &[pod("p", "n1 new failed")], &failures);
    assert_eq!(
        (told(&plan).as_str(), plan.look_again),
        ("", Some(Duration::from_millis(600)))
    );
    assert!(plan.ended.is_empty());
}

#[test]
fn the_status_counts_nodes() {
    let nodes = [
        node("n1", ""),
        node("n2", ""),
        node("n3", ""),
        node("n4", ""),
        node("n5", "no"),
        node("n6", "tainted"),
    ];
    let pods = [
        pod("a", "n1 new ready"),
        pod("b", "n2 new just"),
        pod("c", "n3 old unready"),
        pod("e", "n6 new ready"),
        pod("f", "n6 new ready leaving failed"),
    ];
    let status = planned(&set(rolling(1, 0), 5), &nodes, &pods, &Failures::default()).status;
    let counts = [
        status.desired_number_scheduled,
        status.current_number_scheduled,
        status.number_ready,
        status.number_available,
        status.number_unavailable,
        status.updated_number_scheduled,
        status.number_misscheduled,
    ];
    assert_eq!(counts, [4, 3, 2, 1, 3, 2, 1]);
}

#[test]
fn revisions_beyond_the_limit_go_unless_pods_are_made_from_them() {
    let revision = |n: i64| {
        let hash = format!("h{n}");
        let made =
            json!({"metadata": {"name": format!("d-{hash}"), "labels": {revisions::POD_LABEL: hash}}, "revision": n});
        Arc::new(serde_json::from_value::<ControllerRevision>(made).unwrap())
    };
    let old: Vec<_> = (1..=4).map(revision).collect();
    let mut set = set(rolling(1, 0), 0);
    for (limit, wanted) in [
        (4, vec![]),
        (2, vec!["d-h2", "d-h3"]),
        (0, vec!["d-h2", "d-h3", "d-h4"]),
    ] {
        set.spec.revision_history_limit = Some(limit);
        let gone = plan::revisions_to_forget(&set, &old, &[pod("p", "n1 old")]);
        let names: Vec<&str> = gone.iter().map(|r| r.metadata.name.as_str()).collect();
        assert_eq!(names, wanted, "{limit}");
    }
}

/// A cluster with one set, and things that happen to it.
struct World {
    random: Random,
    set: DaemonSet,
    placement: Placement,
    nodes: BTreeMap<String, Arc<Node>>,
    pods: BTreeMap<String, Arc<Pod>>,
    failures: Failures,
    now: Timestamp,
    template: u64,
    made: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random::seeded(seed);
        let strategy = match random.below(4) {
            0 => json!({"type": "OnDelete"}),
            1 => rolling(1 + random.below(3), 0),
            2 => rolling(format!("{}%", 1 + random.below(60)), 0),
            _ => rolling(0, 1 + random.below(3)),
        };
        let set = set(strategy, if random.below(3) == 0 { 5 } else { 0 });
        let mut world = World {
            placement: Placement::from_template(&set.spec.template),
            random,
            set,
            nodes: BTreeMap::new(),
            pods: BTreeMap::new(),
            failures: Failures::default(),
            now: start(),
            template: 1,
            made: 0,
        };
        for _ in 0..1 + world.random.below(6) {
            world.change_node();
        }
        world
    }

    fn hash(&self) -> String {
        format!("h{}", self.template)
    }

    fn change_node(&mut self) {
        let name = format!("n{}", self.random.below(7));
        match self.random.below(6) {
            0 => drop(self.nodes.remove(&name)),
            1 => drop(self.nodes.insert(name.clone(), node(&name, "no"))),
            2 => drop(self.nodes.insert(name.clone(), node(&name, "tainted"))),
            _ => drop(self.nodes.insert(name.clone(), node(&name, "yes"))),
        }
    }

    fn something_happens(&mut self) {
        match self.random.below(16) {
            0 | 1 => self.change_node(),
            2 => self.template += 1,
            3 => self.now = self.now.later(Duration::from_secs(1 + self.random.below(20))),
            4..=9 => self.reconcile(),
            10 => self.worsen(),
            _ => self.kubelet(),
        }
    }

    fn some_pod(&mut self) -> Option<String> {
        let at = self.random.below(self.pods.len().max(1) as u64) as usize;
        self.pods.keys().nth(at).cloned()
    }

    /// Something bad happens to a pod.
    fn worsen(&mut self) {
        let (what, now) = (self.random.below(4), self.now);
        let Some(name) = self.some_pod() else { return };
        let pod = Arc::make_mut(self.pods.get_mut(&name).unwrap());
        match what {
            0 => pod.status.phase = "Failed".into(),
            1 => pod.status.phase = "Succeeded".into(),
            2 => set_ready(pod, false, now),
            _ => pod.metadata.deletion_timestamp = Some(now),
        }
    }

    fn kubelet(&mut self) {
        if let Some(name) = self.some_pod() {
            self.get_on(&name);
        }
    }

    /// A pod gets on, as it should.
    fn get_on(&mut self, name: &str) {
        let pod = Arc::make_mut(self.pods.get_mut(name).unwrap());
        let target = placement::target(pod).unwrap();
        let has_node = self.nodes.contains_key(target);
        if pod.metadata.is_deleted() || !(has_node || pod.spec.node_name.is_empty()) {
            self.pods.remove(name);
        } else if pod.spec.node_name.is_empty() {
            if has_node {
                pod.spec.node_name = target.to_string();
            }
        } else if !pod.is_terminal() {
            pod.status.phase = "Running".into();
            if !pod.is_ready() {
                set_ready(pod, true, self.now);
            }
        }
    }

    fn plan(&self) -> Plan {
        let nodes: Vec<_> = self.nodes.values().cloned().collect();
        let pods: Vec<_> = self.pods.values().cloned().collect();
        plan::plan(&View {
            set: &self.set,
            hash: &self.hash(),
            placement: &self.placement,
            nodes: &nodes,
            pods: &pods,
            failures: &self.failures,
            now: self.now,
        })
    }

    fn reconcile(&mut self) {
        let plan = self.plan();
        self.check_creates(&plan);
        let before = self.unserved();
        for ended in plan.ended.iter().filter(|e| e.pod.status.phase == "Failed") {
            let (uid, node) = ("d".to_string(), ended.node.clone());
            self.failures.replaced(
                super::failures::BackoffKey {
                    uid,
                    generation: 1,
                    node,
                },
                self.now,
            );
        }
        for pod in &plan.delete {
            let pod = self
                .pods
                .get_mut(&pod.metadata.name)
                .expect("only what is there is deleted");
            let pod = Arc::make_mut(pod);
            assert!(!pod.metadata.is_deleted(), "deleted twice: {}", pod.metadata.name);
            pod.metadata.deletion_timestamp = Some(self.now);
            if pod.spec.node_name.is_empty() {
                let name = pod.metadata.name.clone();
                self.pods.remove(&name);
            }
        }
        let after = self.unserved();
        let desired = self.nodes_that_run().len() as i64;
        if after.len() > before.len() {
            let allowed = self.allowed(desired).0;
            assert!(
                after.len() as i64 <= allowed,
                "{allowed} may be missing: {before:?} → {after:?}"
            );
        }
        for node in plan.create {
            self.made += 1;
            let (name, now) = (format!("p{}", self.made), self.now);
            let mut made = Pod::clone(&pod(&name, &format!("{node} new pending")));
            made.metadata.labels.insert(revisions::POD_LABEL.into(), self.hash());
            made.metadata.creation_timestamp = Some(now);
            self.pods.insert(name, Arc::new(made));
        }
        let most = if self.allowed(desired).1 > 0 { 2 } else { 1 };
        for node in self.nodes.keys() {
            assert!(self.living(node).len() <= most, "too many on {node}");
        }
    }

    /// maxUnavailable and maxSurge, of so many nodes.
    fn allowed(&self, desired: i64) -> (i64, i64) {
        let count = |field: &Option<Value>| match field {
            Some(Value::String(percent)) => {
                (percent.trim_end_matches('%').parse::<i64>().unwrap() * desired + 99) / 100
            }
            Some(number) => number.as_i64().unwrap(),
            None => 0,
        };
        let rolling = self.set.spec.update_strategy.rolling_update.as_ref();
        rolling.map_or((0, 0), |r| (count(&r.max_unavailable), count(&r.max_surge)))
    }

    fn check_creates(&self, plan: &Plan) {
        let desired = self.nodes_that_run();
        let surge = self.allowed(desired.len() as i64).1;
        let unique: BTreeSet<&String> = plan.create.iter().collect();
        assert_eq!(unique.len(), plan.create.len(), "one a node at a time");
        let mut ahead = 0;
        for node in &plan.create {
            assert!(desired.contains(node), "{node} is not meant for it");
            let living = self.living(node);
            assert!(living.len() <= usize::from(surge > 0), "{node} has one");
            ahead += i64::from(living.iter().any(|pod| self.serves(pod)));
        }
        let two: i64 = self
            .nodes
            .keys()
            .map(|node| i64::from(self.living(node).len() > 1))
            .sum();
        assert!(ahead == 0 || ahead + two <= surge, "{ahead} more than {two} of {surge}");
    }

    fn serves(&self, pod: &Pod) -> bool {
        pod.is_available(Duration::from_secs(self.set.spec.min_ready_seconds.into()), self.now)
    }

    fn living(&self, node: &str) -> Vec<&Arc<Pod>> {
        let pods = self.pods.values().filter(|pod| pod.is_active());
        pods.filter(|pod| placement::target(pod) == Some(node)).collect()
    }

    fn nodes_that_run(&self) -> Vec<String> {
        let nodes = self
            .nodes
            .iter()
            .filter(|(_, node)| self.placement.fit(node) == Fit::Runs);
        nodes.map(|(name, _)| name.clone()).collect()
    }

    /// Nodes that should have a pod which serves, and have none.
    fn unserved(&self) -> Vec<String> {
        let mut nodes = self.nodes_that_run();
        nodes.retain(|node| !self.living(node).iter().any(|pod| self.serves(pod)));
        nodes
    }

    /// Nothing bad happens any more.
    fn calm(&mut self) {
        for _ in 0..60 {
            let settled = |pod: &Arc<Pod>| self.serves(pod) && pod.is_active();
            if told(&self.plan()).is_empty() && self.pods.values().all(settled) {
                break;
            }
            self.reconcile();
            for name in self.pods.keys().cloned().collect::<Vec<_>>() {
                self.get_on(&name);
            }
            self.now = self.now.later(Duration::from_secs(60));
        }
        let plan = self.plan();
        assert_eq!(told(&plan), "", "it goes on and on");
        let desired = self.nodes_that_run();
        for (name, node) in &self.nodes {
            let pods: Vec<_> = self
                .pods
                .values()
                .filter(|p| placement::target(p) == Some(name))
                .collect();
            match self.placement.fit(node) {
                Fit::Runs => assert_eq!(pods.len(), 1, "one on {name}"),
                Fit::Keeps => assert!(pods.len() <= 1, "at most one on {name}"),
                Fit::Not => assert_eq!(pods.len(), 0, "none on {name}"),
            }
            let is_new = |pod: &&Arc<Pod>| pod.metadata.label(revisions::POD_LABEL) == Some(&self.hash());
            assert!(self.set.spec.update_strategy.r#type == "OnDelete" || pods.iter().all(is_new));
        }
        let status = plan.status;
        let counts = [
            status.desired_number_scheduled,
            status.current_number_scheduled,
            status.number_available,
        ];
        assert_eq!(counts, [desired.len() as i64; 3]);
        assert_eq!(status.number_unavailable, 0);
    }
}

fn set_ready(pod: &mut Pod, ready: bool, now: Timestamp) {
    let condition = &mut pod.status.conditions[0];
    condition.status = if ready { "True" } else { "False" }.into();
    condition.last_transition_time = Some(now);
}

#[test]
fn sets_converge_and_keep_their_limits_on_the_way() {
    for seed in 0..1000 {
        let mut world = World::new(seed);
        let story = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..60 {
                world.something_happens();
            }
            world.calm();
        }));
        assert!(story.is_ok(), "seed {seed}");
    }
}
