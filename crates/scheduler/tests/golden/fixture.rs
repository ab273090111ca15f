//! Clusters in a few lines:
//!
//! ```text
//! node a cpu=4 mem=8Gi pods=110 zone=z1 label=disk=ssd taint=key=value:NoSchedule image=app:1=300Mi cordoned
//! pod p node=a cpu=500m mem=1Gi prio=10 start=5 label=app=x image=app port=80 tolerate=key=value:NoSchedule {"…": …}
//! budget b app=x allowed=0
//! claim c {"spec": {"volumeName": "v"}}
//! ```
//!
//! Volumes, storage classes (`class`) and `csinode`s are written like claims; features of nodes are `feature=Name`.
//! Amounts of other resources are `amount=example.com/gpu=2`. The braces hold more of the pod's spec, as JSON. Pods
//! with a node are on it; the others can be asked about.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use orlop_scheduler::cluster::Cluster;
use orlop_scheduler::cluster::pod::{PodInfo, PodKey};
use orlop_scheduler::config::Config;
use orlop_scheduler::cycle::{Core, ScheduleFailure};
use orlop_scheduler::fit_error::FitError;
use orlop_scheduler::framework::points::Plugin;
use orlop_scheduler::framework::profile::Profile;
use orlop_scheduler::plugins::{self, dynamic_resources};
use orlop_scheduler::preemption::{Candidate, DefaultPreemption, Preemption, best};
use serde_json::{Value, json};

pub(crate) struct Fixture {
    pub cluster: Cluster,
    pub core: Core,
    pods: BTreeMap<String, Arc<PodInfo>>,
}

/// `key=value` or `key=value:effect`, any part but the key left out.
fn taint(text: &str) -> Value {
    let (rest, effect) = text.rsplit_once(':').unwrap_or((text, ""));
    match rest.split_once('=') {
        Some((key, value)) => json!({"key": key, "value": value, "effect": effect}),
        None => json!({"key": rest, "operator": "Exists", "effect": effect}),
    }
}

fn pair(text: &str) -> (&str, &str) {
    text.rsplit_once('=').expect("key=value")
}

fn bytes(text: &str) -> i64 {
    let mebi = text.strip_suffix("Mi").expect("so many Mi");
    mebi.parse::<i64>().expect("a number") << 20
}

fn node(name: &str, words: &[&str]) -> Value {
    let mut node = json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {"taints": []},
        "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}, "images": []},
    });
    for word in words {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        match key {
            "cpu" | "pods" => node["status"]["allocatable"][key] = json!(value),
            "mem" => node["status"]["allocatable"]["memory"] = json!(value),
            "amount" => node["status"]["allocatable"][pair(value).0] = json!(pair(value).1),
            "zone" => node["metadata"]["labels"]["topology.kubernetes.io/zone"] = json!(value),
            "label" => node["metadata"]["labels"][pair(value).0] = json!(pair(value).1),
            "taint" => node["spec"]["taints"]
                .as_array_mut()
                .expect("a list")
                .push(taint(value)),
            "image" => {
                let (name, size) = pair(value);
                let images = node["status"]["images"].as_array_mut().expect("a list");
                images.push(json!({"names": [name], "sizeBytes": bytes(size)}));
            }
            "feature" => {
                if node["status"]["declaredFeatures"].is_null() {
                    node["status"]["declaredFeatures"] = json!([]);
                }
                let features = node["status"]["declaredFeatures"].as_array_mut().expect("a list");
                features.push(json!(value));
            }
            "cordoned" => node["spec"]["unschedulable"] = json!(true),
            other => panic!("a node has no {other:?}"),
        }
    }
    node
}

fn pod(name: &str, text: &str) -> Value {
    let (words, more) = text.find('{').map_or((text, "{}"), |at| text.split_at(at));
    let mut requests = json!({});
    let mut container = json!({"name": "c", "image": "none", "ports": []});
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "default", "uid": name, "labels": {}},
        "spec": {"tolerations": []},
        "status": {},
    });
    for word in words.split_whitespace() {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        match key {
            "node" => pod["spec"]["nodeName"] = json!(value),
            "nominated" => pod["status"]["nominatedNodeName"] = json!(value),
            "cpu" => requests[key] = json!(value),
            "mem" => requests["memory"] = json!(value),
            "amount" => requests[pair(value).0] = json!(pair(value).1),
            "prio" => pod["spec"]["priority"] = json!(value.parse::<i32>().expect("a number")),
            "label" => pod["metadata"]["labels"][pair(value).0] = json!(pair(value).1),
            "image" => container["image"] = json!(value),
            "port" => {
                // [ip:]port[/protocol]
                let (ip, rest) = value.rsplit_once(':').unwrap_or(("", value));
                let (port, protocol) = rest.split_once('/').unwrap_or((rest, ""));
                let port =
                    json!({"hostPort": port.parse::<i32>().expect("a port"), "hostIP": ip, "protocol": protocol});
                container["ports"].as_array_mut().expect("a list").push(port);
            }
            "tolerate" => pod["spec"]["tolerations"]
                .as_array_mut()
                .expect("a list")
                .push(taint(value)),
            "selector" => pod["spec"]["nodeSelector"][pair(value).0] = json!(pair(value).1),
            "start" => {
                let at = Timestamp::from_second(value.parse().expect("seconds")).expect("a time");
                pod["status"]["startTime"] = json!(at.to_string());
            }
            "leaving" => {
                pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
                pod["status"]["conditions"] =
                    json!([{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]);
            }
            other => panic!("a pod has no {other:?}"),
        }
    }
    container["resources"] = json!({"requests": requests});
    pod["spec"]["containers"] = json!([container]);
    let more: Value = serde_json::from_str(more).unwrap_or_else(|e| panic!("{more}: {e}"));
    for (key, value) in more.as_object().expect("an object") {
        pod["spec"][key] = value.clone();
    }
    pod
}

fn budget(name: &str, words: &[&str]) -> Value {
    let mut budget = json!({
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": {"matchLabels": {}}},
        "status": {"disruptionsAllowed": 0},
    });
    for word in words {
        match pair(word) {
            ("allowed", n) => budget["status"]["disruptionsAllowed"] = json!(n.parse::<i64>().expect("a number")),
            ("disrupted", pod) => budget["status"]["disruptedPods"][pod] = json!("2026-01-01T00:00:00Z"),
            (key, value) => budget["spec"]["selector"]["matchLabels"][key] = json!(value),
        }
    }
    budget
}

/// An object of the API, with its name filled in.
fn object<T: serde::de::DeserializeOwned>(name: &str, text: &str) -> T {
    let mut object: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{text}: {e}"));
    let metadata = [
        ("name", name),
        ("namespace", "default"),
        ("uid", name),
        ("resourceVersion", "1"),
    ];
    for (key, value) in metadata {
        object["metadata"][key] = json!(value);
    }
    decode(object)
}

fn decode<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("a sound object")
}

impl Fixture {
    /// Under the default profile.
    pub(crate) fn new(text: &str) -> Fixture {
        Fixture::under(
            plugins::profiles(&Config::default()).expect("the default configuration is sound"),
            text,
        )
    }

    /// With one plugin only.
    pub(crate) fn only(plugin: impl Plugin + 'static, text: &str) -> Fixture {
        Fixture::under(
            vec![Profile::of("default-scheduler", vec![(Box::new(plugin), 1)])],
            text,
        )
    }

    /// With one of Kubernetes' plugins only, under its default arguments.
    pub(crate) fn only_named(plugin: &str, text: &str) -> Fixture {
        let (_, make) = plugins::ALL.iter().find(|(name, _)| *name == plugin).expect("a plugin");
        let plugin = make(&Config::default().profiles[0].args).expect("default arguments are sound");
        Fixture::under(vec![Profile::of("default-scheduler", vec![(plugin, 1)])], text)
    }

    fn under(profiles: Vec<Profile>, text: &str) -> Fixture {
        let mut fixture = Fixture {
            cluster: Cluster::default(),
            core: Core::new(profiles, 1),
            pods: BTreeMap::new(),
        };
        for line in text.lines().map(str::trim).filter(|l| !l.is_empty()) {
            fixture.line(line);
        }
        fixture
    }

    fn line(&mut self, line: &str) {
        let mut parts = line.splitn(3, ' ');
        let (kind, name) = (parts.next().expect("a kind"), parts.next().expect("a name"));
        let rest = parts.next().unwrap_or("");
        let words: Vec<&str> = rest.split_whitespace().collect();
        match kind {
            "node" => drop(self.cluster.observe_node(&decode(node(name, &words)))),
            "pod" => {
                let info = self.cluster.decode(decode(pod(name, rest)));
                if info.node_name.is_some() {
                    self.cluster.add_pod(info.clone());
                } else if let Some(node) = &info.nominated_node {
                    self.cluster.nominated.add(info.clone(), node);
                }
                self.pods.insert(name.to_string(), info);
            }
            "budget" => {
                let key = PodKey::new("default", name);
                drop(self.cluster.budgets.insert(key, decode(budget(name, &words))));
            }
            "volume" => drop(self.cluster.storage.observe_volume(name, Some(object(name, rest)))),
            "claim" => drop(
                self.cluster
                    .storage
                    .observe_claim("default", name, Some(object(name, rest))),
            ),
            "class" => drop(self.cluster.storage.observe_class(name, Some(object(name, rest)))),
            "csinode" => drop(self.cluster.storage.observe_csi_node(name, Some(object(name, rest)))),
            other => panic!("{other}?"),
        }
    }

    pub(crate) fn pod(&self, name: &str) -> Arc<PodInfo> {
        self.pods[name].clone()
    }

    /// `node=raw/normalised` for each node that fits, by name; nothing if the plugin skips the pod.
    pub(crate) fn scores(&mut self, plugin: &str, pod: &str) -> String {
        let account = self
            .core
            .explain(0, &self.cluster, &self.pods[pod])
            .expect("plugins behave");
        let mut lines: Vec<String> = vec![];
        for node in &account.nodes {
            for s in node.scores.iter().filter(|s| s.plugin == plugin) {
                lines.push(format!("{}={}/{}", node.name, s.raw, s.normalized));
            }
        }
        lines.sort();
        lines.join(" ")
    }

    /// Each node by name, with its score (`node raw/normalised`) or why it will not do (`node: reasons`).
    pub(crate) fn account(&mut self, pod: &str) -> String {
        let account = self
            .core
            .explain(0, &self.cluster, &self.pods[pod])
            .expect("plugins behave");
        if let Some((_, rejection)) = account.ruled_out {
            return format!("none: {}", rejection.message());
        }
        let mut lines: Vec<String> = (account.nodes.iter())
            .map(|node| {
                let rejection = node.filters.iter().find_map(|(_, rejection)| rejection.as_ref());
                let score = node.scores.first().map(|s| format!(" {}/{}", s.raw, s.normalized));
                let told = rejection.map_or(score.unwrap_or_default(), |r| format!(": {}", r.message()));
                format!("{}{told}", node.name)
            })
            .collect();
        lines.sort();
        lines.join("; ")
    }

    fn fit_error(&mut self, pod: &str) -> Option<Box<FitError>> {
        match self.core.schedule(0, &self.cluster, &self.pods[pod]) {
            Ok(_) => None,
            Err(ScheduleFailure::Unfit(error)) => Some(error),
            Err(ScheduleFailure::Error(error)) => panic!("{error}"),
        }
    }

    /// `fits`, or why not; with what PostFilter says under the default profile.
    pub(crate) fn message(&mut self, pod: &str) -> String {
        let Some(mut error) = self.fit_error(pod) else {
            return "fits".to_string();
        };
        if !self.cluster.is_empty() {
            let (pod, args) = (&self.pods[pod], DefaultPreemption::default());
            error.post_filter = match dynamic_resources::post_filter(&self.core.profiles[0], pod, &error.diagnosis) {
                Err(message) => message.to_string(),
                Ok(claims) => match self.core.preempt(0, &self.cluster, pod, &error.diagnosis, &args) {
                    Preemption::Hopeless { message, .. } => format!("{claims}, {message}"),
                    Preemption::Candidates(_) => String::new(),
                },
            };
        }
        error.message()
    }

    /// `node: Plugin: reasons` for the nodes that do not do, with `!` where eviction cannot help.
    pub(crate) fn rejections(&mut self, pod: &str) -> String {
        let Some(error) = self.fit_error(pod) else {
            return "fits".to_string();
        };
        let nodes = error.diagnosis.nodes.iter().map(|(id, plugin, rejection)| {
            let mark = if rejection.unresolvable { "!" } else { "" };
            let name = &self.cluster.node(*id).expect("a rejected node is there").name;
            format!("{name}: {plugin}{mark}: {}", rejection.message())
        });
        let mut lines: Vec<String> = nodes.collect();
        lines.sort();
        lines.join("; ")
    }

    /// `node: victims (violations)` by node, and the node that is taken.
    pub(crate) fn victims(&mut self, pod: &str) -> String {
        let error = self.fit_error(pod).expect("it fits nowhere");
        let args = DefaultPreemption::default();
        match self
            .core
            .preempt(0, &self.cluster, &self.pods[pod], &error.diagnosis, &args)
        {
            Preemption::Hopeless { message, .. } => message,
            Preemption::Candidates(candidates) => {
                let mut lines: Vec<String> = candidates.iter().map(one).collect();
                lines.sort();
                format!(
                    "{} → {}",
                    lines.join("; "),
                    best(candidates).expect("there are candidates").name
                )
            }
        }
    }
}

fn one(candidate: &Candidate) -> String {
    let names: Vec<&str> = candidate.victims.iter().map(|p| &*p.key.name).collect();
    format!("{}: {} ({})", candidate.name, names.join(" "), candidate.violations)
}

/// Each case is (what it shows, cluster, answer).
pub(crate) fn check(cases: &[(&str, &str, &str)], ask: impl Fn(&str) -> String) {
    for (name, cluster, expected) in cases {
        assert_eq!(ask(cluster), *expected, "{name}");
    }
}
