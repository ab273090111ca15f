//! DynamicResources: not there yet. A pod that asks for resource claims is refused plainly, as placing it without looking
//! at its devices could put it where they are not.

use crate::cluster::Cluster;
use crate::cluster::node::NodeInfo;
use crate::cluster::pod::PodInfo;
use crate::fit_error::Diagnosis;
use crate::framework::event::{Actions, EventKind, Resource};
use crate::framework::points::{AnyFilter, Filter, Plugin, Scope};
use crate::framework::profile::Profile;
use crate::framework::verdict::{PreFilter, Rejection, Verdict};

const REFUSED: Rejection = Rejection::unresolvable(
    "pods with resource claims can't be scheduled: dynamic resource allocation is not supported",
);

pub const NAME: &str = "DynamicResources";

pub struct DynamicResources;

impl Plugin for DynamicResources {
    fn name(&self) -> &'static str {
        NAME
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

/// What the plugin says at PostFilter of a pod that no node will do for. An error ends PostFilter, with this as the message.
///
/// Upstream: DynamicResources.PostFilter (v1.36). What it is told of the pod is written by its own PreFilter, so that it
/// fails when a plugin before it has ruled out every node for good.
pub fn post_filter(profile: &Profile, pod: &PodInfo, diagnosis: &Diagnosis) -> Result<&'static str, &'static str> {
    if let Some((by, rejection)) = &diagnosis.pre_filter {
        let place = |name: &str| (profile.pre_filter.iter()).position(|p| profile.plugins[*p].name() == name);
        let before_us = match (place(by), place(NAME)) {
            (Some(by), Some(ours)) => by < ours,
            _ => false,
        };
        if rejection.unresolvable && before_us {
            return Err("not found");
        }
    }
    match pod.class.spec.resource_claims {
        0 => Ok("no new claims to deallocate"),
        _ => Ok("still not schedulable"),
    }
}
