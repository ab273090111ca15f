//! DynamicResources: not there yet. A pod that asks for resource claims is refused plainly, as placing it without looking
//! at its devices could put it where they are not.

use crate::cluster::Cluster;
use crate::cluster::node::NodeInfo;
use crate::cluster::pod::PodInfo;
use crate::framework::event::{Actions, EventKind, Resource};
use crate::framework::points::{AnyFilter, Filter, Plugin, Scope};
use crate::framework::verdict::{PreFilter, Rejection, Verdict};

const REFUSED: Rejection = Rejection::unresolvable(
    "pods with resource claims can't be scheduled: dynamic resource allocation is not supported",
);

pub struct DynamicResources;

impl Plugin for DynamicResources {
    fn name(&self) -> &'static str {
        "DynamicResources"
    }

    fn filter(&self) -> Option<&dyn AnyFilter> {
        Some(self)
    }

    /// Nothing in the cluster can change it; only the pod itself could.
    fn events(&self) -> Vec<EventKind> {
        vec![EventKind::new(Resource::OwnPod, Actions::UPDATE)]
    }
}

impl Filter for DynamicResources {
    type State = ();
    const SCOPE: Scope = Scope::Node;

    fn pre_filter(&self, pod: &PodInfo, _: &Cluster) -> PreFilter<()> {
        match pod.class.spec.resource_claims {
            0 => PreFilter::Skip,
            _ => PreFilter::Reject(REFUSED),
        }
    }

    fn filter(&self, (): &(), _: &PodInfo, _: &NodeInfo) -> Verdict {
        Ok(())
    }
}
