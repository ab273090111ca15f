//! TaintToleration: keeps pods off tainted nodes, and prefers nodes with fewer taints that the pod would rather avoid.

use crate::cluster::Cluster;
use crate::cluster::node::{NodeId, NodeInfo};
use crate::cluster::pod::PodInfo;
use crate::framework::detail::Detail;
use crate::framework::event::{Actions, Event, EventKind, Hint, Resource};
use crate::framework::points::{AnyFilter, AnyScore, Filter, Normalize, Plugin, Scope, Score};
use crate::framework::verdict::{PreFilter, PreScore, Rejection, Verdict};
use crate::model::{Taint, Toleration};

const UNTOLERATED: Rejection = Rejection::unresolvable("node(s) had untolerated taint(s)");

pub struct TaintToleration;

/// Whether any of the tolerations covers the taint.
pub fn tolerates(tolerations: &[Toleration], taint: &Taint) -> bool {
    tolerations.iter().any(|t| t.tolerates(taint))
}

/// Has a taint that keeps the pod away.
pub fn is_kept_off(tolerations: &[Toleration], taints: &[Taint]) -> bool {
    untolerated(tolerations, taints).next().is_some()
}

/// The taints that keep the pod away.
pub fn untolerated<'a>(tolerations: &'a [Toleration], taints: &'a [Taint]) -> impl Iterator<Item = &'a Taint> {
    let hard = |t: &&Taint| t.effect == "NoSchedule" || t.effect == "NoExecute";
    taints.iter().filter(hard).filter(|t| !tolerates(tolerations, t))
}

fn detail(taint: &Taint) -> Detail {
    Detail::Taint {
        key: taint.key.clone(),
        value: taint.value.clone(),
        effect: taint.effect.clone(),
    }
}

impl Plugin for TaintToleration {
    fn name(&self) -> &'static str {
        "TaintToleration"
    }

    fn filter(&self) -> Option<&dyn AnyFilter> {
        Some(self)
    }

    fn score(&self) -> Option<&dyn AnyScore> {
        Some(self)
    }

    fn events(&self) -> Vec<EventKind> {
        vec![
            EventKind::new(Resource::Node, Actions::ADD.or(Actions::UPDATE_TAINT)),
            EventKind::new(Resource::OwnPod, Actions::UPDATE_TOLERATION),
        ]
    }

    fn hint(&self, pod: &PodInfo, event: &Event, _: &Cluster) -> Hint {
        let off = |node: &NodeInfo| is_kept_off(&pod.class.spec.tolerations, &node.taints);
        match event.nodes() {
            (before, Some(now)) => Hint::queue_if(before.is_none_or(|b| off(b)) && !off(now)),
            _ => super::own_pod(pod, event),
        }
    }
}

impl Filter for TaintToleration {
    type State = ();
    const SCOPE: Scope = Scope::Node;

    fn pre_filter(&self, _: &PodInfo, _: &Cluster) -> PreFilter<()> {
        PreFilter::Run(())
    }

    fn filter(&self, (): &(), pod: &PodInfo, node: &NodeInfo) -> Verdict {
        if is_kept_off(&pod.class.spec.tolerations, &node.taints) {
            Err(UNTOLERATED)
        } else {
            Ok(())
        }
    }

    fn details(&self, (): &(), pod: &PodInfo, node: &NodeInfo) -> Vec<Detail> {
        let untolerated = untolerated(&pod.class.spec.tolerations, &node.taints);
        untolerated.map(detail).collect()
    }
}

impl Score for TaintToleration {
    /// The tolerations that can cover a soft taint.
    type State = Vec<Toleration>;
    const SCOPE: Scope = Scope::Node;
    const NORMALIZE: Normalize = Normalize::ShareReversed;

    fn pre_score(&self, pod: &PodInfo, _: &Cluster, _: &[NodeId]) -> PreScore<Vec<Toleration>> {
        let soft = |t: &&Toleration| t.effect.is_empty() || t.effect == "PreferNoSchedule";
        PreScore::Run(pod.class.spec.tolerations.iter().filter(soft).cloned().collect())
    }

    fn score(&self, tolerations: &Vec<Toleration>, _: &PodInfo, node: &NodeInfo) -> i64 {
        let soft = node.taints.iter().filter(|t| t.effect == "PreferNoSchedule");
        soft.filter(|t| !tolerates(tolerations, t)).count() as i64
    }
}
