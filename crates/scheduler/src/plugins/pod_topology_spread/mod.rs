//! PodTopologySpread: keeps pods of a kind spread over the domains of topology keys.
//!
//! Upstream: pkg/scheduler/framework/plugins/podtopologyspread (v1.36).

mod constraint;
mod filter;
mod hint;
mod score;
#[cfg(test)]
mod tests;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::cluster::Cluster;
use crate::cluster::pod::PodInfo;
use crate::cluster::topology::{PlanKey, Topology};
use crate::framework::event::{Event, EventKind, Hint};
use crate::framework::points::{AnyFilter, AnyScore, Plugin};
use crate::model::TopologySpreadConstraint;
use constraint::{Action, Plan};
pub(crate) use score::rescale;

pub const NAME: &str = "PodTopologySpread";

pub(crate) const UNEVEN: &str = "node(s) didn't match pod topology spread constraints";
pub(crate) const NO_LABEL: &str = "node(s) didn't match pod topology spread constraints (missing required label)";

const HOSTNAME: &str = "kubernetes.io/hostname";
const ZONE: &str = "topology.kubernetes.io/zone";

/// Constraints of pods that have none themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Defaults {
    /// Spread over nodes and zones, if that can be had.
    System,
    List(Vec<TopologySpreadConstraint>),
}

pub struct PodTopologySpread {
    /// Tells the plans of plugins with different defaults apart.
    id: u64,
    system: bool,
    defaults: Vec<TopologySpreadConstraint>,
}

impl PodTopologySpread {
    pub fn new(defaults: Defaults) -> PodTopologySpread {
        static IDS: AtomicU64 = AtomicU64::new(0);
        let system = |key: &str, max_skew| TopologySpreadConstraint {
            topology_key: key.to_string(),
            max_skew,
            when_unsatisfiable: "ScheduleAnyway".to_string(),
            ..TopologySpreadConstraint::default()
        };
        PodTopologySpread {
            // Even numbers: filter; odd ones: score.
            id: 0x5350_0000 + 2 * IDS.fetch_add(1, Ordering::Relaxed),
            system: defaults == Defaults::System,
            defaults: match defaults {
                Defaults::System => vec![system(HOSTNAME, 3), system(ZONE, 5)],
                Defaults::List(list) => list,
            },
        }
    }

    /// Constraints of this kind that hold for pods like this one, as they are written. Whether they are defaults, too.
    fn written<'a>(&'a self, pod: &'a PodInfo, action: Action) -> Option<(&'a [TopologySpreadConstraint], bool)> {
        let own = pod.class.spec.topology_spread_constraints.as_slice();
        let defaulted = own.is_empty();
        let list = if defaulted { &self.defaults } else { own };
        let any = list.iter().any(|c| c.when_unsatisfiable == action.name());
        any.then_some((list, defaulted))
    }

    /// None if there is nothing to do for the pod.
    fn plan(&self, pod: &PodInfo, cluster: &Cluster, topology: &mut Topology, action: Action) -> Option<Arc<Plan>> {
        let (_, defaulted) = self.written(pod, action)?;
        if defaulted {
            // Nothing there selects any pod.
            cluster.owners.version_in(pod.namespace())?;
        }
        topology.refresh(&cluster.namespaces);
        let key = PlanKey {
            plugin: self.id + u64::from(action == Action::Prefer),
            class: pod.class.id,
            labels: pod.labels.id,
            extra: if defaulted { owned(pod, cluster) } else { 0 },
        };
        let plan = topology.planned(key, |topology| {
            let constraints = self.constraints(pod, cluster, action);
            Plan::new(constraints, pod, topology, action, !(defaulted && self.system))
        });
        (!plan.constraints.is_empty()).then_some(plan)
    }

    fn constraints(&self, pod: &PodInfo, cluster: &Cluster, action: Action) -> Vec<constraint::Constraint> {
        let Some((list, defaulted)) = self.written(pod, action) else {
            return vec![];
        };
        let selector = defaulted.then(|| cluster.owners.selector_for(pod));
        if selector.as_ref().is_some_and(|s| s.is_empty()) {
            return vec![];
        }
        constraint::of_kind(list, action, pod.label_set(), selector.as_ref())
    }
}

/// What default constraints depend on beside labels and namespace.
fn owned(pod: &PodInfo, cluster: &Cluster) -> u64 {
    let mut hasher = DefaultHasher::new();
    cluster.owners.version_in(pod.namespace()).hash(&mut hasher);
    pod.controller.hash(&mut hasher);
    hasher.finish()
}

impl Plugin for PodTopologySpread {
    fn name(&self) -> &'static str {
        NAME
    }

    fn filter(&self) -> Option<&dyn AnyFilter> {
        Some(self)
    }

    fn score(&self) -> Option<&dyn AnyScore> {
        Some(self)
    }

    fn events(&self) -> Vec<EventKind> {
        hint::events()
    }

    fn hint(&self, pod: &PodInfo, event: &Event, cluster: &Cluster) -> Hint {
        hint::of(&self.constraints(pod, cluster, Action::Require), pod, event)
    }
}
