//! ResourceQuota: what a namespace may hold, exactly. The use is part of the quota's status and changes in the same
//! transaction as the object that is counted, so concurrent writers can't pass the limit together.
//!
//! Every write moves the use by what it changes. One thing changes without a write: a pod that is overdue (its time to
//! end has run out, its node perhaps gone) stops counting. Nobody knows whether the stored use still has such a pod in
//! it, so whoever writes one has everything counted anew; and the server does so now and then (see `housekeeping`). So
//! the use is never too small, and too large only for a while.
//!
//! Upstream: apiserver/pkg/admission/plugin/resourcequota, pkg/quota/v1 (v1.36), where use only grows at once and a
//! controller takes it back later.

#[cfg(test)]
mod tests;

use jiff::Timestamp;
use orlop_api::quantity::{Format, Quantity};
use orlop_api::quota as usage;
use orlop_api::resources::{self, ResourceList};
use orlop_api::{Status, Value};

use super::{Change, Operation, Plugin, Review};
use crate::kinds;
use crate::lookup::{ObjectLookup, text};
use crate::registry::update::is_finished_deletion;

pub const PLUGIN: Plugin = Plugin {
    name: "ResourceQuota",
    mutate: None,
    validate: Some(validate),
};

fn validate(review: &Review<'_>, new: Option<&Value>, old: Option<&Value>) -> Result<Vec<Change>, Status> {
    // What is created through a subresource (a token, an eviction) is not kept.
    let passing = review.operation == Operation::Create && !review.subresource.is_empty();
    if review.namespace.is_empty() || !usage::is_counted(review.kind) || passing {
        return Ok(vec![]);
    }
    // An update that takes the last finalizer away is the end of the object.
    let new = new.filter(|n| !is_finished_deletion(review.kind, n));
    let mut changes = vec![];
    for quota in review.lookup.list("resourcequotas", Some(&review.namespace)) {
        // A quota counts quotas too, but its own status is its own business.
        if review.kind.plural == "resourcequotas" && text(&quota, &["metadata", "name"]) == review.name {
            continue;
        }
        if let Some(used) = next_use(review, &quota, new, old)? {
            changes.push(change(&quota, used));
        }
    }
    Ok(changes)
}

fn change(quota: &Value, used: ResourceList) -> Change {
    let of_meta = |name: &str| text(quota, &["metadata", name]).to_string();
    let mut value = quota.clone();
    value["status"]["used"] = resources::to_value(&used);
    Change {
        kind: kinds::of_stored("resourcequotas").expect("quotas are built in"),
        namespace: of_meta("namespace"),
        name: of_meta("name"),
        revision: of_meta("resourceVersion")
            .parse()
            .expect("stored objects have a revision"),
        value,
    }
}

/// The use after this write; `None` if it stays as it is.
fn next_use(
    review: &Review<'_>,
    quota: &Value,
    new: Option<&Value>,
    old: Option<&Value>,
) -> Result<Option<ResourceList>, Status> {
    let hard = resources::list(quota.pointer("/status/hard").or(quota.pointer("/spec/hard")));
    let limits: ResourceList = hard
        .into_iter()
        .filter(|(n, _)| usage::concerns(n, review.kind))
        .collect();
    if limits.is_empty() {
        return Ok(None);
    }
    check_requirements(review, quota, &limits, new, old)?;
    let counts = |object: Option<&Value>| -> ResourceList {
        object.map_or_else(ResourceList::new, |o| {
            usage::in_quota(quota, review.kind, o, review.now)
        })
    };
    let write = Write {
        limits: &limits,
        before: &counts(old),
        after: &counts(new),
    };
    let stored = resources::list(quota.pointer("/status/used"));
    let next = write.added_to(match must_recount(review, &stored, &limits, old) {
        true => count(quota, &review.namespace, review.lookup, review.now),
        false => stored.clone(),
    });
    if !next.exceeded.is_empty() && review.subresource != "status" {
        let name = text(quota, &["metadata", "name"]);
        return Err(review.forbidden(format!("exceeded quota: {name}, {}", told(&next.exceeded))));
    }
    Ok((next.used != stored).then_some(next.used))
}

/// What a write changes of what one quota counts.
struct Write<'w> {
    limits: &'w ResourceList,
    before: &'w ResourceList,
    after: &'w ResourceList,
}

struct NextUse {
    used: ResourceList,
    exceeded: Vec<Excess>,
}

struct Excess {
    resource: String,
    requested: Quantity,
    used: Quantity,
    limit: Quantity,
}

impl Write<'_> {
    fn added_to(&self, mut used: ResourceList) -> NextUse {
        let mut exceeded = vec![];
        for (resource, limit) in self.limits {
            let of = |list: &ResourceList| list.get(resource).cloned().unwrap_or_default();
            let mut delta = of(self.after);
            delta.sub(&of(self.before));
            let in_use = of(&used);
            let mut next = in_use.clone();
            next.add(&delta);
            if delta.sign() > 0 && next > *limit {
                exceeded.push(Excess {
                    resource: resource.clone(),
                    requested: delta.clone(),
                    used: in_use,
                    limit: limit.clone(),
                });
            }
            if !delta.is_zero() {
                used.insert(resource.clone(), if next.is_negative() { Quantity::ZERO } else { next });
            }
        }
        NextUse { used, exceeded }
    }
}

fn told(exceeded: &[Excess]) -> String {
    let list = |pick: fn(&Excess) -> &Quantity| {
        let pairs = exceeded
            .iter()
            .map(|e| format!("{}={}", e.resource, pick(e).canonical()));
        pairs.collect::<Vec<_>>().join(",")
    };
    format!(
        "requested: {}, used: {}, limited: {}",
        list(|e| &e.requested),
        list(|e| &e.used),
        list(|e| &e.limit)
    )
}

/// Pods that are new, resized, or now end (or no longer end) by themselves must say what they want of what is limited.
fn check_requirements(
    review: &Review<'_>,
    quota: &Value,
    limits: &ResourceList,
    new: Option<&Value>,
    old: Option<&Value>,
) -> Result<(), Status> {
    let Some(pod) = new else { return Ok(()) };
    let asked = match (review.operation, old) {
        (Operation::Create, _) => review.is("", "pods"),
        (Operation::Update, Some(old)) => {
            let crossed = || usage::is_terminating(pod) != usage::is_terminating(old);
            review.is_sub("", "pods", "resize") || (review.is("", "pods") && crossed())
        }
        _ => false,
    };
    if !asked || !usage::covers(quota, review.kind, pod) {
        return Ok(());
    }
    match usage::missing_requirements(pod, limits) {
        None => Ok(()),
        Some(missing) => {
            let name = text(quota, &["metadata", "name"]);
            Err(review.forbidden(format!("failed quota: {name}: {missing}")))
        }
    }
}

/// Whether the stored use can't be moved on: it lacks something, or nobody knows whether it has the old object in it.
fn must_recount(review: &Review<'_>, stored: &ResourceList, limits: &ResourceList, old: Option<&Value>) -> bool {
    let is_pod = review.kind.group.is_empty() && review.kind.plural == "pods";
    limits.keys().any(|n| !stored.contains_key(n)) || (is_pod && old.is_some_and(|o| usage::is_overdue(o, review.now)))
}

/// The status a quota should have: its limits, and what the namespace holds of each now.
pub fn recount(quota: &Value, namespace: &str, lookup: &dyn ObjectLookup, now: Timestamp) -> Value {
    usage::status(quota, &count(quota, namespace, lookup, now))
}

/// What the namespace holds of each resource that the quota limits.
fn count(quota: &Value, namespace: &str, lookup: &dyn ObjectLookup, now: Timestamp) -> ResourceList {
    let mut used = usage::begin(quota);
    for kind in usage::kinds_to_count(&used) {
        let objects = lookup.list(&kind.store_prefix(), Some(namespace));
        for object in &objects {
            usage::count_one(&mut used, quota, kind, object, now);
        }
        // A quota that is being made is one of them.
        let same = |o: &Value| o["metadata"]["name"] == quota["metadata"]["name"];
        if kind.kind == "ResourceQuota" && !objects.iter().any(|o| same(o)) {
            usage::count_one(&mut used, quota, kind, quota, now);
        }
    }
    // Objects of custom kinds count for one each.
    for (name, sum) in &mut used {
        let resource = name
            .strip_prefix("count/")
            .filter(|resource| kinds::of_stored(resource).is_none());
        if let Some(resource) = resource {
            let there = lookup.list(resource, Some(namespace)).len();
            *sum = Quantity::from_i64(i64::try_from(there).unwrap_or(i64::MAX), Format::DecimalSI);
        }
    }
    used
}
