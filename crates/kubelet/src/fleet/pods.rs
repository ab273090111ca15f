//! The pods of simulated nodes: seen by one watch, moved along by one heap of times, reported by a few writes at once.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use jiff::Timestamp;
use orlop_api::metrics::Usage;
use orlop_base::{Clock, Shutdown};
use orlop_client::{Api, DeleteOptions, Delta, Error, Preconditions, Selection, path};
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::sync::{mpsc, oneshot};

use super::Options;
use super::behaviour::{Behaviour, Fault};
use super::life::{self, Deleting, PodView, RestartPolicy, Stage};
use super::nodes::{Faults, host_ip, pod_net};
use super::report::{self, Facts};

/// Writes under way at once.
const IN_FLIGHT: usize = 64;
const RETRY: Duration = Duration::from_secs(1);

/// What runs on a node right now?
pub struct Question {
    pub node: usize,
    pub answer: oneshot::Sender<Vec<PodNow>>,
}

/// A pod that runs.
pub struct PodNow {
    pub uid: Uid,
    pub namespace: Arc<str>,
    pub name: Box<str>,
    pub shape: Arc<Shape>,
    pub started: Timestamp,
    /// When this run of its containers began.
    pub since: Timestamp,
}

pub async fn keep(
    api: Api,
    options: Options,
    clock: Clock,
    shutdown: Shutdown,
    faults: Faults,
    questions: mpsc::Receiver<Question>,
) {
    let (sender, changes) = mpsc::channel(256);
    let selection = Selection::all(path::collection("v1", None, "pods")).with_fields("spec.nodeName!=");
    tokio::spawn(orlop_client::watch(api.clone(), selection, sender, shutdown.clone()));
    let mut pods = Pods {
        api,
        addresses: vec![Addresses::default(); options.count],
        by_node: vec![vec![]; options.count],
        options,
        clock,
        faults,
        kept: HashMap::new(),
        due: BinaryHeap::new(),
        shapes: HashMap::new(),
    };
    tokio::select! {
        () = shutdown.wait() => {}
        () = pods.run(changes, questions) => {}
    }
}

/// What many pods have in common, kept once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Shape {
    /// (name, image)
    pub init_containers: Vec<(String, String)>,
    pub containers: Vec<(String, String)>,
    /// Of each container, in the same order.
    pub usage: Vec<Usage>,
    pub policy: RestartPolicy,
    pub host_network: bool,
    pub behaviour: Behaviour,
}

/// All that is remembered of a pod.
struct Kept {
    namespace: Arc<str>,
    name: Box<str>,
    node: u32,
    /// The last byte of its address; 0: the node's own.
    address: u8,
    shape: Arc<Shape>,
    stage: Stage,
    /// When the stage began (for a running pod: when it was started).
    since: Timestamp,
    started: Timestamp,
    restarts: u32,
    /// Counts what was planned for it: older entries in the heap are void.
    plan: u32,
    writing: bool,
    /// The stage that the API server knows of.
    reported: Option<Stage>,
}

/// The addresses of a node that pods have: one bit each.
#[derive(Clone, Default)]
struct Addresses([u64; 4]);

impl Addresses {
    /// From 2 to 254; 0 when all are taken, and the pod goes without one of its own.
    fn take(&mut self) -> u8 {
        let free = (2..255u8).find(|n| self.0[*n as usize / 64] & (1 << (n % 64)) == 0);
        if let Some(n) = free {
            self.mark(n);
        }
        free.unwrap_or(0)
    }

    fn mark(&mut self, n: u8) {
        self.0[n as usize / 64] |= 1 << (n % 64);
    }

    fn give_back(&mut self, n: u8) {
        self.0[n as usize / 64] &= !(1 << (n % 64));
    }
}

pub type Uid = Arc<str>;
type Written = (Uid, Stage, Result<(), Error>);

struct Pods {
    api: Api,
    options: Options,
    clock: Clock,
    faults: Faults,
    addresses: Vec<Addresses>,
    /// The pods of each node.
    by_node: Vec<Vec<Uid>>,
    kept: HashMap<Uid, Kept>,
    due: BinaryHeap<Reverse<(Timestamp, Uid, u32)>>,
    shapes: HashMap<u64, Arc<Shape>>,
}

impl Pods {
    async fn run(&mut self, mut changes: mpsc::Receiver<Delta<RawPod>>, mut questions: mpsc::Receiver<Question>) {
        let mut writing: FuturesUnordered<BoxFuture<'static, Written>> = FuturesUnordered::new();
        loop {
            let now = self.clock.now();
            while writing.len() < IN_FLIGHT
                && let Some(uid) = self.pop_due(now)
            {
                writing.extend(self.step(&uid, now));
            }
            let wait = match self.due.peek() {
                Some(Reverse((at, ..))) if writing.len() < IN_FLIGHT => until(now, *at),
                _ => Duration::from_secs(3600),
            };
            tokio::select! {
                delta = changes.recv() => match delta {
                    Some(delta) => self.observe(delta),
                    None => return,
                },
                Some((uid, stage, result)) = writing.next(), if !writing.is_empty() => self.written(&uid, stage, result),
                Some(question) = questions.recv() => {
                    // Whoever does not wait for it any more does not need it.
                    let _ = question.answer.send(self.running_on(question.node));
                }
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    fn running_on(&self, node: usize) -> Vec<PodNow> {
        let pods = self.by_node.get(node).into_iter().flatten();
        let running = pods.filter_map(|uid| {
            let pod = self.kept.get(uid)?;
            matches!(pod.stage, Stage::Running { .. }).then(|| PodNow {
                uid: uid.clone(),
                namespace: pod.namespace.clone(),
                name: pod.name.clone(),
                shape: pod.shape.clone(),
                started: pod.started,
                since: pod.since,
            })
        });
        running.collect()
    }

    fn pop_due(&mut self, now: Timestamp) -> Option<Uid> {
        while let Some(Reverse((at, uid, plan))) = self.due.peek() {
            if *at > now {
                return None;
            }
            let (uid, plan) = (uid.clone(), *plan);
            self.due.pop();
            if self.kept.get(&uid).is_some_and(|pod| pod.plan == plan) {
                return Some(uid);
            }
        }
        None
    }

    fn plan(&mut self, uid: &Uid, at: Timestamp) {
        if let Some(pod) = self.kept.get_mut(uid) {
            pod.plan += 1;
            self.due.push(Reverse((at, uid.clone(), pod.plan)));
        }
    }

    fn observe(&mut self, delta: Delta<RawPod>) {
        match delta {
            Delta::Reset(all) => {
                let gone: Vec<Uid> = {
                    let here: std::collections::HashSet<&str> = all.iter().map(|p| &*p.metadata.uid).collect();
                    self.kept
                        .keys()
                        .filter(|uid| !here.contains(&***uid))
                        .cloned()
                        .collect()
                };
                gone.iter().for_each(|uid| self.forget(uid));
                all.into_iter().for_each(|pod| self.observe_one(pod));
            }
            Delta::Applied(pod) => self.observe_one(pod),
            Delta::Deleted(pod) => self.forget(&pod.metadata.uid),
            Delta::Bookmark(_) => {}
        }
    }

    fn observe_one(&mut self, raw: RawPod) {
        let Some(node) = self.options.number(&raw.spec.node_name) else {
            return;
        };
        let pod = raw.view();
        let now = self.clock.now();
        let uid: Uid = pod.uid.as_str().into();
        if self.kept.contains_key(&uid) {
            return self.observe_change(&uid, &pod, now);
        }
        let stage = life::first(&pod);
        let shape = self.shape(&pod);
        let address = match &pod.ip {
            _ if shape.host_network => 0,
            Some(ip) => own_address(ip, node)
                .inspect(|n| self.addresses[node].mark(*n))
                .unwrap_or(0),
            None => self.addresses[node].take(),
        };
        let kept = Kept {
            namespace: pod.namespace.as_str().into(),
            name: pod.name.into(),
            node: node as u32,
            address,
            stage,
            since: now,
            started: now,
            restarts: pod.restarts,
            plan: 0,
            writing: false,
            reported: (stage != Stage::Leaving).then_some(stage),
            shape,
        };
        let next = life::next(stage, now, &kept.shape.behaviour, kept.shape.policy, kept.restarts);
        self.kept.insert(uid.clone(), kept);
        self.by_node[node].push(uid.clone());
        match (stage, next) {
            (Stage::Leaving, _) => self.plan(&uid, now),
            (_, Some(next)) => self.plan(&uid, next.at),
            (_, None) => {}
        }
    }

    /// A pod that is known is deleted, or told to behave otherwise.
    fn observe_change(&mut self, uid: &Uid, pod: &PodView, now: Timestamp) {
        let shape = self.shape(pod);
        let Some(kept) = self.kept.get_mut(uid) else { return };
        if pod.deleting.is_some() && kept.stage != Stage::Leaving {
            kept.stage = Stage::Leaving;
            return self.plan(uid, now);
        }
        if kept.shape == shape {
            return;
        }
        kept.shape = shape.clone();
        let (stage, since, restarts) = (kept.stage, kept.since, kept.restarts);
        // While a write is under way, its end plans what is next.
        if !kept.writing
            && kept.reported == Some(stage)
            && let Some(next) = life::next(stage, since, &shape.behaviour, shape.policy, restarts)
        {
            self.plan(uid, next.at);
        }
    }

    fn forget(&mut self, uid: &str) {
        let Some(pod) = self.kept.remove(uid) else { return };
        let node = pod.node as usize;
        self.by_node[node].retain(|other| **other != *uid);
        if pod.address != 0 {
            self.addresses[node].give_back(pod.address);
        }
    }

    fn shape(&mut self, pod: &PodView) -> Arc<Shape> {
        use std::hash::{BuildHasher, BuildHasherDefault};
        let shape = Shape {
            init_containers: pod.init_containers.clone(),
            containers: pod.containers.clone(),
            usage: pod
                .containers
                .iter()
                .map(|(name, _)| self.options.rules.usage(pod, name))
                .collect(),
            policy: pod.restart_policy,
            host_network: pod.host_network,
            behaviour: self.options.rules.of(pod),
        };
        let hash = BuildHasherDefault::<rustc_hash::FxHasher>::default().hash_one(&shape);
        if let Some(known) = self.shapes.get(&hash)
            && **known == shape
        {
            return known.clone();
        }
        // Shapes that no pod has any more go now and then.
        if self.shapes.len() >= 4096 {
            self.shapes.retain(|_, shape| Arc::strong_count(shape) > 1);
        }
        let shape = Arc::new(shape);
        self.shapes.insert(hash, shape.clone());
        shape
    }

    /// Something is due: the pod moves on, and the write that tells of it.
    fn step(&mut self, uid: &Uid, now: Timestamp) -> Option<BoxFuture<'static, Written>> {
        let pod = self.kept.get_mut(uid)?;
        if self.faults.of(pod.node as usize) == Some(Fault::Silent) {
            // What happens on a node that says nothing is not known.
            let later = now.checked_add(RETRY).unwrap_or(Timestamp::MAX);
            self.plan(uid, later);
            return None;
        }
        if pod.writing {
            // Planned anew when the write is done.
            return None;
        }
        let shape = pod.shape.clone();
        if pod.reported == Some(pod.stage)
            && let Some(next) = life::next(pod.stage, pod.since, &shape.behaviour, shape.policy, pod.restarts)
            && next.at <= now
        {
            pod.restarts += u32::from(pod.stage == Stage::BackOff);
            // A pod that becomes ready runs on: how long it runs counts from its start.
            if !matches!((pod.stage, next.stage), (Stage::Running { .. }, Stage::Running { .. })) {
                pod.since = now;
            }
            if pod.stage == Stage::Waiting {
                pod.started = now;
            }
            pod.stage = next.stage;
        }
        pod.writing = true;
        Some(self.write(uid, now))
    }

    fn write(&self, uid: &Uid, now: Timestamp) -> BoxFuture<'static, Written> {
        let pod = &self.kept[uid];
        let (api, uid, stage) = (self.api.clone(), uid.clone(), pod.stage);
        if stage == Stage::Leaving {
            let at = path::object("v1", Some(&pod.namespace), "pods", &pod.name);
            let options = DeleteOptions {
                grace_period_seconds: Some(0),
                preconditions: Some(Preconditions {
                    uid: Some(uid.to_string()),
                    resource_version: None,
                }),
                ..DeleteOptions::default()
            };
            return Box::pin(async move {
                let result = api.delete(&at, &options).await;
                (uid, stage, result)
            });
        }
        let node = pod.node as usize;
        let [a, b, c] = pod_net(node);
        let host_ip = host_ip(node);
        let ip = match pod.address {
            0 => host_ip.clone(),
            n => format!("{a}.{b}.{c}.{n}"),
        };
        let facts = Facts {
            uid: &uid,
            ip,
            host_ip,
            init_containers: &pod.shape.init_containers,
            containers: &pod.shape.containers,
            restarts: pod.restarts,
            exit_code: pod.shape.behaviour.exit_code,
            started: pod.started,
            run_began: pod.since,
            now,
        };
        let patch = report::status(stage, &facts);
        let at = path::subresource("v1", Some(&pod.namespace), "pods", &pod.name, "status");
        Box::pin(async move {
            let result = api.patch_strategic::<IgnoredAny>(&at, &patch).await.map(drop);
            (uid, stage, result)
        })
    }

    fn written(&mut self, uid: &Uid, stage: Stage, result: Result<(), Error>) {
        let now = self.clock.now();
        let Some(pod) = self.kept.get_mut(uid) else { return };
        pod.writing = false;
        match result {
            Ok(()) => pod.reported = Some(stage),
            // Gone, or another pod of the name by now: the watch will say so.
            Err(Error::NotFound(_) | Error::Conflict(_)) => {
                let later = now.checked_add(RETRY).unwrap_or(Timestamp::MAX);
                return self.plan(uid, later);
            }
            Err(e) => {
                tracing::debug!("{}/{} is not reported: {}", pod.namespace, pod.name, e.chain());
                let later = now.checked_add(RETRY).unwrap_or(Timestamp::MAX);
                return self.plan(uid, later);
            }
        }
        if pod.stage != stage {
            // It was deleted meanwhile.
            return self.plan(uid, now);
        }
        let shape = pod.shape.clone();
        if let Some(next) = life::next(pod.stage, pod.since, &shape.behaviour, shape.policy, pod.restarts) {
            self.plan(uid, next.at);
        }
    }
}

fn until(now: Timestamp, at: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(now)).unwrap_or_default()
}

/// The last byte of an address that this node gave to a pod before.
fn own_address(ip: &str, node: usize) -> Option<u8> {
    let ip: std::net::Ipv4Addr = ip.parse().ok()?;
    let [a, b, c, n] = ip.octets();
    ([a, b, c] == pod_net(node)).then_some(n)
}

/// What is read of a pod on the wire.
#[derive(Deserialize)]
pub(super) struct RawPod {
    metadata: RawMeta,
    spec: RawSpec,
    #[serde(default)]
    status: RawStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawMeta {
    #[serde(default)]
    namespace: String,
    name: String,
    uid: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    #[serde(default)]
    owner_references: Vec<RawOwner>,
    deletion_timestamp: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct RawOwner {
    kind: String,
    #[serde(default)]
    controller: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawSpec {
    #[serde(default)]
    node_name: String,
    #[serde(default)]
    host_network: bool,
    #[serde(default)]
    restart_policy: RestartPolicy,
    #[serde(default)]
    init_containers: Vec<RawContainer>,
    containers: Vec<RawContainer>,
}

#[derive(Deserialize)]
struct RawContainer {
    name: String,
    #[serde(default)]
    image: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawStatus {
    phase: String,
    #[serde(rename = "podIP")]
    pod_ip: Option<String>,
    container_statuses: Vec<RawContainerStatus>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawContainerStatus {
    restart_count: u32,
}

impl RawPod {
    fn view(self) -> PodView {
        let pairs = |list: Vec<RawContainer>| list.into_iter().map(|c| (c.name, c.image)).collect();
        PodView {
            namespace: self.metadata.namespace,
            name: self.metadata.name,
            uid: self.metadata.uid,
            labels: self.metadata.labels,
            annotations: self.metadata.annotations,
            owner: self
                .metadata
                .owner_references
                .into_iter()
                .find(|o| o.controller)
                .map(|o| o.kind),
            host_network: self.spec.host_network,
            restart_policy: self.spec.restart_policy,
            init_containers: pairs(self.spec.init_containers),
            containers: pairs(self.spec.containers),
            deleting: self.metadata.deletion_timestamp.map(|_| Deleting),
            phase: self.status.phase,
            ip: self.status.pod_ip,
            restarts: self.status.container_statuses.first().map_or(0, |c| c.restart_count),
        }
    }
}
