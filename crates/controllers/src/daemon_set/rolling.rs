//! From old pods to new ones, a few nodes at a time.
//!
//! Without a surge old pods are deleted, as many as may be missing, and their nodes get new ones in a later reconcile. With a
//! surge a node gets its new pod first, and loses the old one once the new one is available.
// Upstream: pkg/controller/daemon/update.go (v1.36)

use std::sync::Arc;

use super::placement::Fit;
use super::plan::{Plan, Site, View};
use crate::objects::Pod;

/// The living pods of a node by age of their template.
enum Pair<'a> {
    None,
    New(&'a Arc<Pod>),
    Old(&'a Arc<Pod>),
    Both {
        new: &'a Arc<Pod>,
        old: &'a Arc<Pod>,
    },
    /// Two or more of one age; they are thinned out first.
    TooMany,
}

pub(super) fn plan(view: &View<'_>, sites: &[Site<'_>], plan: &mut Plan) {
    let desired = plan.status.desired_number_scheduled;
    let (surge, mut unavailable) = (view.max_surge(desired), view.max_unavailable(desired));
    if desired > 0 && surge == 0 && unavailable == 0 {
        // The API server does not let this through; standing still would be worse.
        unavailable = 1;
    }
    match surge {
        0 => replace(view, sites, unavailable, plan),
        surge => surge_ahead(view, sites, surge, plan),
    }
}

/// Old pods that serve nobody go at once, others as far as `allowed` nodes may be without a pod that is available.
fn replace(view: &View<'_>, sites: &[Site<'_>], allowed: i64, plan: &mut Plan) {
    let mut missing = 0;
    let (mut useless, mut serving) = (vec![], vec![]);
    for site in sites
        .iter()
        .filter(|site| site.fit == Fit::Runs || !site.pods.is_empty())
    {
        match pair(view, site) {
            Pair::None | Pair::Both { .. } | Pair::TooMany => missing += 1,
            Pair::New(pod) => missing += i64::from(!view.is_available(pod)),
            Pair::Old(pod) if view.is_available(pod) => serving.push(pod.clone()),
            Pair::Old(pod) => {
                useless.push(pod.clone());
                missing += 1;
            }
        }
    }
    let more = usize::try_from(allowed - missing).unwrap_or(0);
    plan.delete.extend(useless);
    plan.delete.extend(serving.into_iter().take(more));
}

fn surge_ahead(view: &View<'_>, sites: &[Site<'_>], surge: i64, plan: &mut Plan) {
    let (mut ahead, mut available) = (0, 0);
    let (mut at_once, mut next, mut leaving) = (vec![], vec![], vec![]);
    for site in sites {
        let name = &site.node.metadata.name;
        let pair = pair(view, site);
        if let Pair::New(pod) | Pair::Old(pod) | Pair::Both { old: pod, .. } = &pair {
            available += i64::from(view.is_available(pod));
        }
        match pair {
            Pair::None | Pair::New(_) => {}
            Pair::TooMany => ahead += 1,
            Pair::Old(old) => match (site.fit == Fit::Runs, view.is_available(old)) {
                (true, true) => next.push(name.clone()),
                (true, false) => at_once.push(name.clone()),
                (false, true) => leaving.push(old.clone()),
                (false, false) => plan.delete.push(old.clone()),
            },
            Pair::Both { new, old } if view.is_available(new) => plan.delete.push(old.clone()),
            Pair::Both { .. } => ahead += 1,
        }
    }
    // A set that moves to other nodes leaves the old ones only as pods on the new ones become available.
    let spare = available - plan.status.desired_number_scheduled;
    plan.delete
        .extend(leaving.into_iter().take(usize::try_from(spare).unwrap_or(0)));
    plan.create.extend(at_once);
    plan.create
        .extend(next.into_iter().take(usize::try_from(surge - ahead).unwrap_or(0)));
}

fn pair<'a>(view: &View<'_>, site: &Site<'a>) -> Pair<'a> {
    let living = site.pods.iter().copied().filter(|pod| !pod.metadata.is_deleted());
    let (new, old): (Vec<&Arc<Pod>>, Vec<_>) = living.partition(|pod| view.is_updated(pod));
    match (new.as_slice(), old.as_slice()) {
        ([], []) => Pair::None,
        ([new], []) => Pair::New(new),
        ([], [old]) => Pair::Old(old),
        ([new], [old]) => Pair::Both { new, old },
        _ => Pair::TooMany,
    }
}
