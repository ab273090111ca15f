//! NodeResourcesFit: a pod goes where what it asks for is still free, and prefers nodes by how much of them is taken.

use std::sync::Arc;

use crate::cluster::Cluster;
use crate::cluster::node::{NodeId, NodeInfo};
use crate::cluster::pod::PodInfo;
use crate::cluster::resources::{is_extended, is_scalar};
use crate::framework::detail::Detail;
use crate::framework::event::{Actions, Event, EventKind, Hint, Resource};
use crate::framework::points::{AnyFilter, AnyScore, Filter, MAX_SCORE, Normalize, Plugin, Scope, Score};
use crate::framework::verdict::{PreFilter, PreScore, Reason, Reasons, Rejection, Verdict};

pub struct NodeResourcesFit {
    ignored: Vec<String>,
    ignored_groups: Vec<String>,
    strategy: Strategy,
    /// Resource and weight.
    resources: Vec<(String, i64)>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Strategy {
    LeastAllocated,
    MostAllocated,
    /// Points of utilisation (0..=100) and score (0..=100), by utilisation.
    RequestedToCapacityRatio(Vec<(i64, i64)>),
}

impl Default for NodeResourcesFit {
    fn default() -> NodeResourcesFit {
        let resources = vec![("cpu".to_string(), 1), ("memory".to_string(), 1)];
        NodeResourcesFit::new(Strategy::LeastAllocated, resources, vec![], vec![])
    }
}

impl NodeResourcesFit {
    pub fn new(
        strategy: Strategy,
        resources: Vec<(String, i64)>,
        ignored: Vec<String>,
        ignored_groups: Vec<String>,
    ) -> NodeResourcesFit {
        NodeResourcesFit {
            ignored,
            ignored_groups,
            strategy,
            resources,
        }
    }

    fn is_ignored(&self, name: &str) -> bool {
        let group = name.split('/').next().unwrap_or(name);
        is_extended(name) && (self.ignored.iter().any(|n| n == name) || self.ignored_groups.iter().any(|g| g == group))
    }
}

impl Plugin for NodeResourcesFit {
    fn name(&self) -> &'static str {
        "NodeResourcesFit"
    }

    fn filter(&self) -> Option<&dyn AnyFilter> {
        Some(self)
    }

    fn score(&self) -> Option<&dyn AnyScore> {
        Some(self)
    }

    fn events(&self) -> Vec<EventKind> {
        vec![
            EventKind::new(Resource::AssignedPod, Actions::DELETE.or(Actions::SCALE_DOWN)),
            EventKind::new(Resource::OwnPod, Actions::SCALE_DOWN),
            EventKind::new(Resource::Node, Actions::ADD.or(Actions::UPDATE_ALLOCATABLE)),
        ]
    }

    fn hint(&self, pod: &PodInfo, event: &Event, _: &Cluster) -> Hint {
        match (event.pods(), event.nodes()) {
            ((Some(gone), None), _) => Hint::queue_if(gone.node_name.is_some() || gone.nominated_node.is_some()),
            ((before, Some(now)), _) => Hint::queue_if(now.uid == pod.uid || frees(pod, before, now)),
            (_, (before, Some(now))) => Hint::queue_if(grows(pod, before, now)),
            _ => Hint::Queue,
        }
    }
}

/// An assigned pod that now asks for less of something that the waiting one wants.
fn frees(pod: &PodInfo, before: Option<&Arc<PodInfo>>, now: &PodInfo) -> bool {
    let (Some(before), Some(_)) = (before, &now.node_name) else {
        return false;
    };
    let (was, is) = (&before.requests().exact, &now.requests().exact);
    wanted(pod).any(|name| was.amount(name) > is.amount(name))
}

/// The node could hold the pod if it were empty, and has more of something than it had.
fn grows(pod: &PodInfo, before: Option<&Arc<NodeInfo>>, now: &NodeInfo) -> bool {
    let fits = now.allowed_pods >= 1 && wanted(pod).all(|n| amount_of(pod, n) <= now.allocatable.amount(n));
    fits && before.is_none_or(|b| {
        now.allowed_pods > b.allowed_pods || wanted(pod).any(|n| now.allocatable.amount(n) > b.allocatable.amount(n))
    })
}

fn amount_of(pod: &PodInfo, name: &str) -> i64 {
    pod.class.requests.exact.amount(name)
}

/// Resources that the pod asks for.
fn wanted(pod: &PodInfo) -> impl Iterator<Item = &str> {
    let own = &pod.class.requests.exact;
    let basic = ["cpu", "memory", "ephemeral-storage"].into_iter();
    basic
        .filter(|n| own.amount(n) > 0)
        .chain(own.scalars.iter().filter(|(_, a)| *a > 0).map(|(n, _)| &**n))
}

impl Filter for NodeResourcesFit {
    type State = ();
    const SCOPE: Scope = Scope::Node;

    fn pre_filter(&self, _: &PodInfo, _: &Cluster) -> PreFilter<()> {
        PreFilter::Run(())
    }

    fn filter(&self, (): &(), pod: &PodInfo, node: &NodeInfo) -> Verdict {
        let want = &pod.class.requests.exact;
        let (have, used) = (&*node.allocatable, &node.requested);
        let full = node.pods.len() as i64 + 1 > node.allowed_pods;
        let short = |want: i64, have: i64, used: i64| want > 0 && want > have.saturating_sub(used);
        let cpu = short(want.milli_cpu, have.milli_cpu, used.milli_cpu);
        let memory = short(want.memory, have.memory, used.memory);
        let storage = short(want.ephemeral_storage, have.ephemeral_storage, used.ephemeral_storage);
        let scalars = (want.scalars.iter()).any(|(n, a)| short(*a, have.scalar(n), used.scalar(n)));
        if !(full || cpu || memory || storage || scalars) {
            return Ok(());
        }
        let mut reasons: Vec<Reason> = vec![];
        let mut unresolvable = false;
        let mut lacks = |yes: bool, reason: Reason, hopeless: bool| {
            if yes {
                reasons.push(reason);
                unresolvable |= hopeless;
            }
        };
        lacks(full, "Too many pods".into(), false);
        lacks(cpu, "Insufficient cpu".into(), want.milli_cpu > have.milli_cpu);
        lacks(memory, "Insufficient memory".into(), want.memory > have.memory);
        let hopeless = want.ephemeral_storage > have.ephemeral_storage;
        lacks(storage, "Insufficient ephemeral-storage".into(), hopeless);
        for (name, amount) in want.scalars.iter().filter(|(n, _)| !self.is_ignored(n)) {
            let lacking = short(*amount, have.scalar(name), used.scalar(name));
            lacks(
                lacking,
                format!("Insufficient {name}").into(),
                *amount > have.scalar(name),
            );
        }
        if reasons.is_empty() {
            return Ok(());
        }
        Err(Rejection {
            reasons: Reasons::Many(reasons.into()),
            unresolvable,
        })
    }

    fn details(&self, (): &(), pod: &PodInfo, node: &NodeInfo) -> Vec<Detail> {
        let mut all = vec![];
        let running = node.pods.len() as i64;
        if running >= node.allowed_pods {
            all.push(Detail::Pods {
                running,
                allowed: node.allowed_pods,
            });
        }
        for name in wanted(pod).filter(|name| !self.is_ignored(name)) {
            let (requested, used) = (amount_of(pod, name), node.requested.amount(name));
            let allocatable = node.allocatable.amount(name);
            if requested > allocatable.saturating_sub(used) {
                all.push(Detail::Resource {
                    resource: name.to_string(),
                    requested,
                    used,
                    allocatable,
                });
            }
        }
        all
    }
}

/// What a strategy weighs of one resource.
struct Weighed {
    kind: Kind,
    weight: i64,
    asked: i64,
}

#[derive(Clone, PartialEq)]
enum Kind {
    Cpu,
    Memory,
    EphemeralStorage,
    Scalar(Arc<str>),
}

#[doc(hidden)]
pub struct FitScore(Vec<Weighed>);

impl Score for NodeResourcesFit {
    type State = FitScore;
    const SCOPE: Scope = Scope::Node;
    const NORMALIZE: Normalize = Normalize::AsIs;

    fn pre_score(&self, pod: &PodInfo, _: &Cluster, _: &[NodeId]) -> PreScore<FitScore> {
        let weighed = self.resources.iter().filter_map(|(name, weight)| {
            let asked = pod.class.scoring.amount(name);
            // A scalar that the pod does not ask for says nothing about it.
            (asked != 0 || !is_scalar(name)).then(|| Weighed {
                kind: match name.as_str() {
                    "cpu" => Kind::Cpu,
                    "memory" => Kind::Memory,
                    "ephemeral-storage" => Kind::EphemeralStorage,
                    _ => Kind::Scalar(name.as_str().into()),
                },
                weight: *weight,
                asked,
            })
        });
        PreScore::Run(FitScore(weighed.collect()))
    }

    fn score(&self, FitScore(weighed): &FitScore, _: &PodInfo, node: &NodeInfo) -> i64 {
        let mut sum = 0;
        let mut weights = 0;
        for w in weighed {
            let (have, used) = match &w.kind {
                Kind::Cpu => (node.allocatable.milli_cpu, node.nonzero_milli_cpu),
                Kind::Memory => (node.allocatable.memory, node.nonzero_memory),
                Kind::EphemeralStorage => (node.allocatable.ephemeral_storage, node.requested.ephemeral_storage),
                Kind::Scalar(name) => (node.allocatable.scalar(name), node.requested.scalar(name)),
            };
            if have == 0 {
                continue;
            }
            let score = self.strategy.score(used.saturating_add(w.asked), have);
            // Differs by strategy: a ratio of 0 does not count at all.
            if score > 0 || !matches!(self.strategy, Strategy::RequestedToCapacityRatio(_)) {
                sum += score * w.weight;
                weights += w.weight;
            }
        }
        match &self.strategy {
            _ if weights == 0 => 0,
            Strategy::RequestedToCapacityRatio(_) => (sum as f64 / weights as f64).round() as i64,
            _ => sum / weights,
        }
    }
}

impl Strategy {
    fn score(&self, requested: i64, capacity: i64) -> i64 {
        match self {
            Strategy::LeastAllocated if requested > capacity => 0,
            Strategy::LeastAllocated => percentage(capacity.saturating_sub(requested), capacity),
            Strategy::MostAllocated => percentage(requested.min(capacity), capacity),
            Strategy::RequestedToCapacityRatio(shape) => {
                let used = if requested > capacity {
                    100
                } else {
                    percentage(requested, capacity)
                };
                broken_line(shape, used)
            }
        }
    }
}

/// Between 0 and 100, also of amounts that are so large, or so wrong, that the product can't be counted.
fn percentage(part: i64, whole: i64) -> i64 {
    let exact = part.checked_mul(MAX_SCORE).and_then(|n| n.checked_div(whole));
    let percentage = exact.unwrap_or_else(|| (part as f64 / whole as f64 * MAX_SCORE as f64) as i64);
    percentage.clamp(0, MAX_SCORE)
}

/// The value at `x` of the line through these points, level beyond the first and the last.
pub fn broken_line(points: &[(i64, i64)], x: i64) -> i64 {
    let Some(at) = points.iter().position(|(px, _)| x <= *px) else {
        return points.last().map_or(0, |(_, y)| *y);
    };
    if at == 0 {
        return points[0].1;
    }
    let ((x0, y0), (x1, y1)) = (points[at - 1], points[at]);
    y0 + (y1 - y0) * (x - x0) / (x1 - x0)
}
