//! The extension points, one small trait each. A plugin implements those it has something to say at.
//!
//! All of this is called from one thread, one pod at a time, and must not wait: what needs the network is returned as a
//! value (`Write`) and done by the shell.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use super::detail::Detail;
use super::event::{Event, EventKind, Hint};
use super::permit::WaitingPods;
use super::verdict::{PreFilter, PreScore, Rejection, Verdict};
use crate::cluster::Cluster;
use crate::cluster::node::{NodeId, NodeInfo};
use crate::cluster::pod::PodInfo;

/// The best score, and the top of the scale that weights are applied to.
pub const MAX_SCORE: i64 = 100;

/// What an answer depends on, and so how long it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// On the pod's class (`pod.class`, not its name, labels or status) and the node with what is on it, nothing else.
    /// Answers are kept per class and asked for again only for nodes that changed.
    Node,
    /// On anything in the cluster. Asked for every node in every cycle, so it must be quick.
    Cluster,
}

/// A plugin: its name, and the extension points it takes part in.
#[allow(unused_variables)]
pub trait Plugin: Send + Sync {
    /// As users write it in configurations.
    fn name(&self) -> &'static str;

    fn pre_enqueue(&self) -> Option<&dyn PreEnqueue> {
        None
    }
    fn filter(&self) -> Option<&dyn AnyFilter> {
        None
    }
    fn score(&self) -> Option<&dyn AnyScore> {
        None
    }
    fn reserve(&self) -> Option<&dyn Reserve> {
        None
    }
    fn permit(&self) -> Option<&dyn Permit> {
        None
    }
    fn pre_bind(&self) -> Option<&dyn PreBind> {
        None
    }
    fn post_bind(&self) -> Option<&dyn PostBind> {
        None
    }

    /// Events after which a pod that this plugin rejected may fit. None at all: any event.
    fn events(&self) -> Vec<EventKind> {
        vec![]
    }

    /// Whether this event may make the rejected pod fit.
    fn hint(&self, pod: &PodInfo, event: &Event, cluster: &Cluster) -> Hint {
        Hint::Queue
    }
}

/// May the pod be tried at all? Asked before it enters the active or the back-off queue.
pub trait PreEnqueue {
    fn pre_enqueue(&self, pod: &PodInfo) -> Verdict;
}

/// Whether a pod may go on a node. PreFilter and Filter in one, as the state of the one is the input of the other.
#[allow(unused_variables)]
pub trait Filter: Send + Sync {
    /// What `pre_filter` worked out of the pod.
    type State: Clone + Send + Sync + 'static;
    const SCOPE: Scope;

    fn pre_filter(&self, pod: &PodInfo, cluster: &Cluster) -> PreFilter<Self::State>;

    fn filter(&self, state: &Self::State, pod: &PodInfo, node: &NodeInfo) -> Verdict;

    /// Keeps the nodes that pass `filter`; tells `rejected` of the others. For plugins that can do so without looking at
    /// the nodes themselves.
    fn retain(
        &self,
        state: &Self::State,
        pod: &PodInfo,
        cluster: &Cluster,
        nodes: &mut Vec<NodeId>,
        rejected: &mut dyn FnMut(NodeId, Rejection),
    ) {
        nodes.retain(|id| {
            let node = cluster.node(*id).expect("candidates are there");
            match self.filter(state, pod, node) {
                Ok(()) => true,
                Err(rejection) => {
                    rejected(*id, rejection);
                    false
                }
            }
        });
    }

    /// What stands behind `filter`'s rejection of the node, in figures. Only asked to explain.
    fn details(&self, state: &Self::State, pod: &PodInfo, node: &NodeInfo) -> Vec<Detail> {
        vec![]
    }

    /// What if `added` were on `node` too? Only plugins that look beyond the node have something to do here: the node
    /// handed to `filter` afterwards has the pod on it.
    fn add_pod(&self, state: &mut Self::State, pod: &PodInfo, added: &PodInfo, node: &NodeInfo) {}

    /// What if `removed` were gone from `node`?
    fn remove_pod(&self, state: &mut Self::State, pod: &PodInfo, removed: &PodInfo, node: &NodeInfo) {}
}

/// How raw scores become 0..=100 over the nodes that passed the filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Normalize {
    /// They are 0..=100 already.
    AsIs,
    /// 100 · raw / largest.
    Share,
    /// 100 − 100 · raw / largest.
    ShareReversed,
    /// By `normalize` of the plugin; only for `Scope::Cluster`.
    Custom,
}

/// How good a node is for a pod. PreScore, Score and NormalizeScore in one.
#[allow(unused_variables)]
pub trait Score: Send + Sync {
    type State: Send + Sync + 'static;
    const SCOPE: Scope;
    const NORMALIZE: Normalize;

    /// `nodes` are those that passed the filters. A plugin of `Scope::Node` is handed an empty list: its answers are kept
    /// for later cycles.
    fn pre_score(&self, pod: &PodInfo, cluster: &Cluster, nodes: &[NodeId]) -> PreScore<Self::State>;

    fn score(&self, state: &Self::State, pod: &PodInfo, node: &NodeInfo) -> i64;

    /// `score` of each of `nodes`, into `scores`. For plugins that can do so without looking at the nodes themselves.
    fn score_all(
        &self,
        state: &Self::State,
        pod: &PodInfo,
        cluster: &Cluster,
        nodes: &[NodeId],
        scores: &mut Vec<i64>,
    ) {
        scores.clear();
        scores.extend(nodes.iter().map(|id| {
            let node = cluster.node(*id).expect("candidates are there");
            self.score(state, pod, node)
        }));
    }

    fn normalize(&self, state: &Self::State, pod: &PodInfo, nodes: &[NodeId], scores: &mut [i64]) {}

    /// Sure to skip, whichever nodes pass: then nodes need not be listed at all. Must be quick. Only for `Scope::Cluster`.
    fn is_idle(&self, pod: &PodInfo, cluster: &Cluster) -> bool {
        false
    }

    /// What beside class and node a `Scope::Node` score depends on, as a number: when it changes, all is asked again.
    fn stamp(&self, pod: &PodInfo, cluster: &Cluster) -> u64 {
        0
    }
}

/// Takes something for the pod on the chosen node before it is bound, and gives it back if that fails.
pub trait Reserve {
    fn reserve(&self, pod: &Arc<PodInfo>, node: &NodeInfo, cluster: &Cluster) -> Result<(), Rejection>;
    /// Undoes `reserve`; called also when a later step failed, and must not mind being called twice.
    fn unreserve(&self, pod: &PodInfo, node: &str);
}

pub enum Permission {
    Allow,
    Reject(Rejection),
    /// The answer comes later, within this time (15 minutes at most) or the pod is turned away.
    Wait(Duration),
}

/// Has the last word before a pod is bound.
pub trait Permit {
    /// Whoever answers `Wait` keeps a clone of `waiting` and says there what became of it. The pod itself is not in it
    /// yet; others of its kind are, so that the last of a group can let all of them go.
    fn permit(&self, pod: &Arc<PodInfo>, node: &NodeInfo, waiting: &WaitingPods) -> Permission;
}

/// A request that the shell is to make.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    pub method: &'static str,
    pub path: String,
    pub body: serde_json::Value,
}

pub enum Progress {
    Done,
    /// Ask again when something changed, until the timeout.
    Waiting(Duration),
    Failed(String),
}

/// What must be written, and be seen to have happened, before a pod is bound.
pub trait PreBind {
    fn writes(&self, pod: &PodInfo, node: &NodeInfo, cluster: &Cluster) -> Vec<Write>;
    fn progress(&self, pod: &PodInfo, node: &NodeInfo, cluster: &Cluster) -> Progress;
}

/// Told after a pod was bound.
pub trait PostBind {
    fn bound(&self, pod: &PodInfo, node: &str);
}

pub type AnyState = Box<dyn Any + Send + Sync>;

/// `Filter` without its state type, so that plugins of all kinds can stand in one list.
pub trait AnyFilter: Send + Sync {
    fn scope(&self) -> Scope;
    fn pre_filter(&self, pod: &PodInfo, cluster: &Cluster) -> PreFilter<AnyState>;
    fn filter(&self, state: &AnyState, pod: &PodInfo, node: &NodeInfo) -> Verdict;
    /// Keeps the nodes that pass; tells `rejected` of the others.
    fn retain(
        &self,
        state: &AnyState,
        pod: &PodInfo,
        cluster: &Cluster,
        nodes: &mut Vec<NodeId>,
        rejected: &mut dyn FnMut(NodeId, Rejection),
    );
    fn details(&self, state: &AnyState, pod: &PodInfo, node: &NodeInfo) -> Vec<Detail>;
    fn clone_state(&self, state: &AnyState) -> AnyState;
    fn add_pod(&self, state: &mut AnyState, pod: &PodInfo, added: &PodInfo, node: &NodeInfo);
    fn remove_pod(&self, state: &mut AnyState, pod: &PodInfo, removed: &PodInfo, node: &NodeInfo);
}

const OWN_STATE: &str = "a plugin is handed back its own state";

impl<P: Filter> AnyFilter for P {
    fn scope(&self) -> Scope {
        P::SCOPE
    }

    fn pre_filter(&self, pod: &PodInfo, cluster: &Cluster) -> PreFilter<AnyState> {
        match Filter::pre_filter(self, pod, cluster) {
            PreFilter::Skip => PreFilter::Skip,
            PreFilter::Run(state) => PreFilter::Run(Box::new(state)),
            PreFilter::Only(state, nodes) => PreFilter::Only(Box::new(state), nodes),
            PreFilter::Reject(rejection) => PreFilter::Reject(rejection),
        }
    }

    fn filter(&self, state: &AnyState, pod: &PodInfo, node: &NodeInfo) -> Verdict {
        Filter::filter(self, state.downcast_ref().expect(OWN_STATE), pod, node)
    }

    fn retain(
        &self,
        state: &AnyState,
        pod: &PodInfo,
        cluster: &Cluster,
        nodes: &mut Vec<NodeId>,
        rejected: &mut dyn FnMut(NodeId, Rejection),
    ) {
        let state = state.downcast_ref().expect(OWN_STATE);
        Filter::retain(self, state, pod, cluster, nodes, rejected);
    }

    fn details(&self, state: &AnyState, pod: &PodInfo, node: &NodeInfo) -> Vec<Detail> {
        Filter::details(self, state.downcast_ref().expect(OWN_STATE), pod, node)
    }

    fn clone_state(&self, state: &AnyState) -> AnyState {
        Box::new(state.downcast_ref::<P::State>().expect(OWN_STATE).clone())
    }

    fn add_pod(&self, state: &mut AnyState, pod: &PodInfo, added: &PodInfo, node: &NodeInfo) {
        Filter::add_pod(self, state.downcast_mut().expect(OWN_STATE), pod, added, node);
    }

    fn remove_pod(&self, state: &mut AnyState, pod: &PodInfo, removed: &PodInfo, node: &NodeInfo) {
        Filter::remove_pod(self, state.downcast_mut().expect(OWN_STATE), pod, removed, node);
    }
}

/// `Score` without its state type.
pub trait AnyScore: Send + Sync {
    fn scope(&self) -> Scope;
    fn normalize_rule(&self) -> Normalize;
    fn stamp(&self, pod: &PodInfo, cluster: &Cluster) -> u64;
    fn is_idle(&self, pod: &PodInfo, cluster: &Cluster) -> bool;
    fn pre_score(&self, pod: &PodInfo, cluster: &Cluster, nodes: &[NodeId]) -> PreScore<AnyState>;
    fn score(&self, state: &AnyState, pod: &PodInfo, node: &NodeInfo) -> i64;
    /// One for each of `nodes`, into `scores`.
    fn score_all(&self, state: &AnyState, pod: &PodInfo, cluster: &Cluster, nodes: &[NodeId], scores: &mut Vec<i64>);
    fn normalize(&self, state: &AnyState, pod: &PodInfo, nodes: &[NodeId], scores: &mut [i64]);
}

impl<P: Score> AnyScore for P {
    fn scope(&self) -> Scope {
        P::SCOPE
    }

    fn normalize_rule(&self) -> Normalize {
        P::NORMALIZE
    }

    fn stamp(&self, pod: &PodInfo, cluster: &Cluster) -> u64 {
        Score::stamp(self, pod, cluster)
    }

    fn is_idle(&self, pod: &PodInfo, cluster: &Cluster) -> bool {
        Score::is_idle(self, pod, cluster)
    }

    fn pre_score(&self, pod: &PodInfo, cluster: &Cluster, nodes: &[NodeId]) -> PreScore<AnyState> {
        match Score::pre_score(self, pod, cluster, nodes) {
            PreScore::Skip => PreScore::Skip,
            PreScore::Run(state) => PreScore::Run(Box::new(state)),
        }
    }

    fn score(&self, state: &AnyState, pod: &PodInfo, node: &NodeInfo) -> i64 {
        Score::score(self, state.downcast_ref().expect(OWN_STATE), pod, node)
    }

    fn score_all(&self, state: &AnyState, pod: &PodInfo, cluster: &Cluster, nodes: &[NodeId], scores: &mut Vec<i64>) {
        let state = state.downcast_ref().expect(OWN_STATE);
        Score::score_all(self, state, pod, cluster, nodes, scores);
    }

    fn normalize(&self, state: &AnyState, pod: &PodInfo, nodes: &[NodeId], scores: &mut [i64]) {
        Score::normalize(self, state.downcast_ref().expect(OWN_STATE), pod, nodes, scores);
    }
}
