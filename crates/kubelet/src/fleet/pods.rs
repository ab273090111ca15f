//! The pods of simulated nodes: seen by one watch, moved along by one heap of times, reported by a few writes at once.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use jiff::Timestamp;
use orlop_api::metrics::Usage;
use orlop_base::{Clock, Shutdown};
use orlop_client::{
    Api, DeleteOptions, Delta, Error, Event, EventType, ObjectReference, Preconditions, Selection, path,
};
use tokio::sync::{mpsc, oneshot};

use super::Options;
use super::admission::{self, AllocatedResources, Candidate, Placement};
use super::behaviour::{Behaviour, Fault};
use super::conditions::{Stored, Told, standing};
use super::life::{self, InitContainer, Life, PodView, RestartPolicy, Stage};
use super::nodes::{NodeCache, host_ip, pod_net};
use super::report::{self, CONDITIONS, Facts, READY, Termination};
use super::wire::RawPod;
use crate::sources::admission::Rejection;
use crate::sources::preemption;

#[cfg(test)]
mod tests;

/// Writes under way at once.
const IN_FLIGHT: usize = 64;
const RETRY: Duration = Duration::from_secs(1);
/// Delay before a pod is admitted whose node is not in the cache yet.
const NODE_WAIT: Duration = Duration::from_millis(50);
/// Rejections that depend on the pods of the node alone. Others depend on the Node object, of which the scheduler may
/// have seen a newer version: they are decided again after a moment.
const FINAL_REASONS: [&str; 5] = [
    "OutOfcpu",
    "OutOfmemory",
    "OutOfephemeral-storage",
    "OutOfpods",
    "NodePorts",
];

/// Records an event, with the name of the reporting node.
pub(super) type Record = Box<dyn Fn(&str, Event) + Send + Sync>;

/// What runs on a node right now?
pub(super) struct Question {
    pub node: usize,
    pub answer: oneshot::Sender<Vec<PodNow>>,
}

/// A pod that runs.
pub(super) struct PodNow {
    pub uid: Uid,
    pub namespace: Arc<str>,
    pub name: Box<str>,
    pub shape: Arc<Shape>,
    pub started: Timestamp,
    /// When this run of its containers began.
    pub since: Timestamp,
}

pub(super) async fn keep(
    api: Api,
    options: Options,
    clock: Clock,
    shutdown: Shutdown,
    seen: NodeCache,
    record: Record,
    questions: mpsc::Receiver<Question>,
) {
    let (sender, changes) = mpsc::channel(256);
    let selection = Selection::all(path::collection("v1", None, "pods")).with_fields("spec.nodeName!=");
    orlop_base::spawn(orlop_client::watch(api.clone(), selection, sender, shutdown.clone()));
    let mut pods = Pods {
        api,
        addresses: vec![Addresses::default(); options.nodes.count()],
        by_node: vec![vec![]; options.nodes.count()],
        options,
        clock,
        seen,
        record,
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
pub(super) struct Shape {
    pub init_containers: Vec<InitContainer>,
    /// (name, image)
    pub containers: Vec<(String, String)>,
    /// Of each sidecar, then of each container, in the same order.
    pub usage: Vec<Usage>,
    pub policy: RestartPolicy,
    pub host_network: bool,
    pub behaviour: Behaviour,
    pub allocated: AllocatedResources,
}

impl Shape {
    /// (name, image)
    pub(super) fn sidecars(&self) -> impl Iterator<Item = &(String, String)> {
        let sidecars = self.init_containers.iter().filter(|init| init.sidecar);
        sidecars.map(|init| &init.container)
    }
}

/// All that is remembered of a pod.
struct Kept {
    namespace: Arc<str>,
    name: Box<str>,
    node: u32,
    /// The last byte of its address; 0: the node's own.
    address: u8,
    shape: Arc<Shape>,
    life: Life,
    /// Counts what was planned for it: older entries in the heap are void.
    plan: u32,
    writing: bool,
    /// More is to be said than what was last written.
    unsaid: bool,
    /// The stage that the API server knows of.
    reported: Option<Stage>,
    told: Told,
    /// What its readiness gates lack, as its condition says it.
    unmet: Option<Box<str>>,
    admission: Admission,
}

/// Where a pod is in admission.
#[derive(PartialEq)]
enum Admission {
    /// Not decided yet; `doubted`: rejected once.
    Open {
        placement: Option<Box<Placement>>,
        doubted: bool,
    },
    Admitted,
    /// Rejected or preempted by the node.
    Terminated(Box<Termination>),
}

impl Kept {
    /// Whether its requests count against the node's allocatable resources.
    fn holds_resources(&self) -> bool {
        self.admission == Admission::Admitted && !matches!(self.life.stage, Stage::Finished { .. })
    }

    fn reference(&self, uid: &Uid) -> ObjectReference {
        ObjectReference {
            api_version: "v1".into(),
            kind: "Pod".into(),
            namespace: self.namespace.to_string(),
            name: self.name.to_string(),
            uid: uid.to_string(),
            resource_version: self.told.revision.to_string(),
            field_path: String::new(),
        }
    }

    fn next(&self) -> Option<life::Next> {
        self.life.next(&self.shape.behaviour, self.shape.policy)
    }

    /// Takes in what others made of its conditions. Whether something is to be said about that.
    fn learn(&mut self, pod: &PodView) -> bool {
        self.told.learn(Told {
            revision: pod.revision,
            standing: standing(CONDITIONS, &pod.conditions),
        });
        let unmet = report::unmet(&pod.gates, &pod.conditions);
        let same = self.unmet.as_deref() == unmet.as_deref();
        self.unmet = unmet.map(Into::into);
        let ready = self.life.stage == Stage::Running { ready: true };
        (ready && !same) || self.is_misread()
    }

    /// Whether a pod counts as ready that is not, or the other way round: its gates have changed meanwhile, or the node
    /// controller took a silent node for dead.
    fn is_misread(&self) -> bool {
        let ready = Stage::Running { ready: true };
        let told = self.life.stage == ready && self.reported == Some(ready);
        told && self.told.standing[READY] != Some(self.unmet.is_none())
    }
}

/// The addresses of a node that pods have: one bit each.
#[derive(Clone, Default)]
struct Addresses([u64; 4]);

impl Addresses {
    /// From 2 to 254; 0 when all are allocated, and the pod goes without one of its own.
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

pub(super) type Uid = Arc<str>;
type Written = (Uid, Stage, Result<Told, Error>);

struct Pods {
    api: Api,
    options: Options,
    clock: Clock,
    seen: NodeCache,
    record: Record,
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
            matches!(pod.life.stage, Stage::Running { .. }).then(|| PodNow {
                uid: uid.clone(),
                namespace: pod.namespace.clone(),
                name: pod.name.clone(),
                shape: pod.shape.clone(),
                started: pod.life.started,
                since: pod.life.since,
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
        let Some(node) = self.options.nodes.number(&raw.spec.node_name) else {
            return;
        };
        let pod = raw.view();
        let now = self.clock.now();
        let uid: Uid = pod.uid.as_str().into();
        if self.kept.contains_key(&uid) {
            return self.observe_change(&uid, &pod, now);
        }
        let life = life::first(&pod, now);
        let shape = self.shape(&pod);
        let address = match &pod.ip {
            _ if shape.host_network => 0,
            // Refused, or ended without ever having had one.
            None if matches!(life.stage, Stage::Finished { .. }) => 0,
            Some(ip) => own_address(ip, node)
                .inspect(|n| self.addresses[node].mark(*n))
                .unwrap_or(0),
            None => self.addresses[node].take(),
        };
        let mut kept = Kept {
            namespace: pod.namespace.as_str().into(),
            name: pod.name.as_str().into(),
            node: node as u32,
            address,
            life,
            plan: 0,
            writing: false,
            unsaid: false,
            reported: (life.stage != Stage::Leaving).then_some(life.stage),
            told: Told::default(),
            unmet: None,
            shape,
            admission: match life.stage {
                Stage::Waiting => Admission::Open {
                    placement: (!pod.placement.is_any()).then(|| Box::new(pod.placement.clone())),
                    doubted: false,
                },
                _ => Admission::Admitted,
            },
        };
        kept.learn(&pod);
        let due = match life.stage {
            Stage::Leaving | Stage::Waiting => Some(now),
            _ if kept.is_misread() => Some(now),
            _ => kept.next().map(|next| next.at),
        };
        self.kept.insert(uid.clone(), kept);
        self.by_node[node].push(uid.clone());
        if let Some(due) = due {
            self.plan(&uid, due);
        }
    }

    /// A pod that is known is deleted, told to behave otherwise, or has conditions that others changed.
    fn observe_change(&mut self, uid: &Uid, pod: &PodView, now: Timestamp) {
        let shape = self.shape(pod);
        let Some(kept) = self.kept.get_mut(uid) else { return };
        if pod.deleting.is_some() && kept.life.stage != Stage::Leaving {
            kept.life.stage = Stage::Leaving;
            return self.plan(uid, now);
        }
        let reshaped = kept.shape != shape;
        kept.shape = shape;
        let news = kept.learn(pod);
        kept.unsaid |= news;
        // While a write is under way, its end plans what is next.
        if kept.writing {
            return;
        }
        if news {
            return self.plan(uid, now);
        }
        // What is not admitted yet is due already.
        let open = matches!(kept.admission, Admission::Open { .. });
        if reshaped
            && !open
            && kept.reported == Some(kept.life.stage)
            && let Some(next) = kept.next()
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
        let mut shape = Shape {
            init_containers: pod.init_containers.clone(),
            containers: pod.containers.clone(),
            usage: vec![],
            policy: pod.restart_policy,
            host_network: pod.host_network,
            behaviour: self.options.rules.of(pod),
            allocated: AllocatedResources::unsummed(pod.pod_resources.clone()),
        };
        let running = shape.sidecars().chain(&shape.containers);
        shape.usage = running.map(|(name, _)| self.options.rules.usage(pod, name)).collect();
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
        shape.allocated.sum_up();
        let shape = Arc::new(shape);
        self.shapes.insert(hash, shape.clone());
        shape
    }

    /// Something is due: the pod's next stage, and the write of its status.
    fn step(&mut self, uid: &Uid, now: Timestamp) -> Option<BoxFuture<'static, Written>> {
        let pod = self.kept.get_mut(uid)?;
        if self.seen.fault(pod.node as usize) == Some(Fault::Silent) {
            // What happens on a node that says nothing is not known.
            let later = now.checked_add(RETRY).unwrap_or(Timestamp::MAX);
            self.plan(uid, later);
            return None;
        }
        if pod.writing {
            // Planned anew when the write is done.
            return None;
        }
        let open = matches!(pod.admission, Admission::Open { .. }) && pod.life.stage == Stage::Waiting;
        if open && !self.admit(uid, now) {
            return None;
        }
        let pod = self.kept.get_mut(uid)?;
        if pod.reported == Some(pod.life.stage)
            && let Some(next) = pod.next()
            && next.at <= now
        {
            pod.life.enter(next.stage, now);
        }
        pod.unsaid = false;
        pod.writing = true;
        Some(self.write(uid, now))
    }

    /// Admits or rejects a new pod. False if there is nothing to write now.
    fn admit(&mut self, uid: &Uid, now: Timestamp) -> bool {
        let later = |wait: Duration| now.checked_add(wait).unwrap_or(Timestamp::MAX);
        let Some(verdict) = self.decide(uid) else {
            self.plan(uid, later(NODE_WAIT));
            return false;
        };
        let Some(pod) = self.kept.get_mut(uid) else {
            return false;
        };
        match (verdict, &mut pod.admission) {
            (Err(Rejection { reason, .. }), Admission::Open { doubted, .. })
                if !*doubted && !FINAL_REASONS.contains(&&*reason) =>
            {
                *doubted = true;
                self.plan(uid, later(RETRY));
                return false;
            }
            (Err(Rejection { reason, message }), _) => {
                let why = format!("Pod was rejected: {message}");
                self.terminate(uid, reason, message, why, true, now);
            }
            (Ok(leaving), admission) => {
                *admission = Admission::Admitted;
                for other in leaving {
                    let (reason, message) = (preemption::REASON.to_string(), preemption::MESSAGE.to_string());
                    self.terminate(&other, reason, message.clone(), message, false, now);
                    self.plan(&other, now);
                }
            }
        }
        match self.kept.get(uid).and_then(Kept::next) {
            Some(next) if next.at > now => {
                self.plan(uid, next.at);
                false
            }
            _ => true,
        }
    }

    /// The pods to preempt for it, or why it is rejected. None while its node is not in the cache.
    fn decide(&self, uid: &Uid) -> Option<Result<Vec<Uid>, Rejection>> {
        let pod = &self.kept[uid];
        let node = pod.node as usize;
        let traits = self.seen.traits(node)?;
        let others: Vec<(&Uid, &AllocatedResources)> = self.by_node[node]
            .iter()
            .filter_map(|other| Some((other, self.kept.get(other).filter(|kept| kept.holds_resources())?)))
            .map(|(other, kept)| (other, &kept.shape.allocated))
            .collect();
        let allocated: Vec<&AllocatedResources> = others.iter().map(|(_, allocated)| *allocated).collect();
        let candidate = Candidate {
            pod_resources: &pod.shape.allocated.pod_resources,
            placement: match &pod.admission {
                Admission::Open { placement, .. } => placement.as_deref(),
                Admission::Admitted | Admission::Terminated(_) => None,
            },
            host_network: pod.shape.host_network,
        };
        let name = self.options.nodes.name(node);
        let verdict = admission::admit_candidate(&candidate, &allocated, name, traits, self.seen.fault(node));
        Some(verdict.map(|leaving| leaving.into_iter().map(|place| others[place].0.clone()).collect()))
    }

    /// The node terminates a pod and records an event.
    fn terminate(&mut self, uid: &Uid, reason: String, note: String, message: String, rejected: bool, now: Timestamp) {
        let Some(pod) = self.kept.get_mut(uid) else { return };
        let event = Event {
            regarding: pod.reference(uid),
            related: None,
            kind: EventType::Warning,
            reason: reason.clone().into(),
            action: reason.clone().into(),
            note,
        };
        (self.record)(self.options.nodes.name(pod.node as usize), event);
        if pod.life.stage != Stage::Leaving {
            pod.life.enter(Stage::Finished { failed: true }, now);
        }
        pod.admission = Admission::Terminated(Box::new(Termination {
            reason,
            message,
            rejected,
        }));
        if rejected && pod.address != 0 {
            let (node, address) = (pod.node as usize, std::mem::take(&mut pod.address));
            self.addresses[node].give_back(address);
        }
    }

    fn write(&self, uid: &Uid, now: Timestamp) -> BoxFuture<'static, Written> {
        let pod = &self.kept[uid];
        let (api, uid, stage, told) = (self.api.clone(), uid.clone(), pod.life.stage, pod.told);
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
                (uid, stage, result.map(|()| told))
            });
        }
        let node = pod.node as usize;
        let [a, b, c] = pod_net(node);
        let host_ip = host_ip(node);
        let ip = match pod.address {
            0 => host_ip.clone(),
            n => format!("{a}.{b}.{c}.{n}"),
        };
        let patch = report::status(&Facts {
            uid: &uid,
            namespace: &pod.namespace,
            name: &pod.name,
            ip,
            host_ip,
            shape: &pod.shape,
            life: &pod.life,
            unmet: pod.unmet.as_deref(),
            ended: match &pod.admission {
                Admission::Terminated(ended) => Some(ended),
                _ => None,
            },
            told: told.standing,
            now,
        });
        let standing = report::standing(stage, pod.unmet.is_none());
        let at = path::subresource("v1", Some(&pod.namespace), "pods", &pod.name, "status");
        Box::pin(async move {
            let stored = api.patch_strategic::<Stored>(&at, &patch).await;
            (uid, stage, stored.map(|stored| stored.told(standing)))
        })
    }

    fn written(&mut self, uid: &Uid, stage: Stage, result: Result<Told, Error>) {
        let now = self.clock.now();
        let Some(pod) = self.kept.get_mut(uid) else { return };
        pod.writing = false;
        match result {
            Ok(told) => {
                pod.reported = Some(stage);
                pod.told.learn(told);
            }
            // Gone, or another pod of the name by now: the watch will say so.
            Err(Error::NotFound(_) | Error::Conflict(_)) => {
                let later = now.checked_add(RETRY).unwrap_or(Timestamp::MAX);
                return self.plan(uid, later);
            }
            Err(e) => {
                tracing::debug!(
                    pod = format!("{}/{}", pod.namespace, pod.name),
                    err = e.chain(),
                    "failed to update status for pod"
                );
                let later = now.checked_add(RETRY).unwrap_or(Timestamp::MAX);
                return self.plan(uid, later);
            }
        }
        // It was deleted meanwhile, or others changed its conditions.
        if pod.life.stage != stage || pod.unsaid || pod.is_misread() {
            return self.plan(uid, now);
        }
        if let Some(next) = pod.next() {
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
