//! What a look into a terminating namespace comes to.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Deserialize;

use crate::discovery::Resource;
use crate::objects::{Condition, Meta, condition};

/// How long finalizers are taken to need. Upstream: finalizerEstimateSeconds
const FINALIZERS_SECONDS: i64 = 15;
/// When to look again if nobody can say how long it takes.
const LATER_SECONDS: i64 = 15;
/// Upstream: a namespace is looked at once a minute at least.
const LATEST_SECONDS: i64 = 60;

/// An object in the namespace: the little that says how it goes. The pod's fields are there in pods alone.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Held {
    pub metadata: Meta,
    pub spec: HeldSpec,
    pub status: HeldStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct HeldSpec {
    pub termination_grace_period_seconds: Option<i64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct HeldStatus {
    pub phase: Phase,
}

/// Other kinds have phases that are not even texts.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Phase {
    Text(String),
    Other(serde::de::IgnoredAny),
}

impl Default for Phase {
    fn default() -> Phase {
        Phase::Text(String::new())
    }
}

/// What is left of a resource after its deletion was requested.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Left {
    pub count: usize,
    /// Who holds how many.
    pub finalizers: BTreeMap<String, usize>,
    /// How many seconds it may take; 0 if nobody can say.
    pub estimate: i64,
    pub error: Option<String>,
}

/// A look at everything in the namespace.
#[derive(Clone, Debug, Default)]
pub(super) struct Report {
    /// What is wrong with the list of kinds, in words.
    pub discovery: Option<String>,
    pub left: Vec<(Resource, Left)>,
}

impl Report {
    pub(super) fn is_clean(&self) -> bool {
        self.discovery.is_none() && self.left.is_empty()
    }

    pub(super) fn errors(&self) -> Vec<&str> {
        let mut errors: Vec<&str> = self.left.iter().filter_map(|(_, left)| left.error.as_deref()).collect();
        errors.sort_unstable();
        errors
    }

    pub(super) fn remaining(&self) -> impl Iterator<Item = &Resource> {
        let left = self.left.iter().filter(|(_, left)| left.count > 0);
        left.map(|(resource, _)| resource)
    }

    /// When to look again, should nothing be heard before: halfway through what it may take.
    pub(super) fn look_after_seconds(&self) -> i64 {
        match self.left.iter().map(|(_, left)| left.estimate).max().unwrap_or(0) {
            0 => LATER_SECONDS,
            estimate => (estimate / 2 + 1).min(LATEST_SECONDS),
        }
    }
}

/// How long pods may take that have been asked to end; nothing if they should have ended by now.
pub(super) fn grace_seconds(pods: &[Held], deleted_at: Timestamp, now: Timestamp) -> i64 {
    let ended =
        |pod: &Held| matches!(&pod.status.phase, Phase::Text(phase) if phase == "Succeeded" || phase == "Failed");
    let graces = pods.iter().filter(|pod| !ended(pod));
    let longest = graces.filter_map(|pod| pod.spec.termination_grace_period_seconds).max();
    let longest = longest.unwrap_or(0).max(0);
    match now.duration_since(deleted_at).as_secs() >= longest {
        true => 0,
        false => longest,
    }
}

/// What these leftovers mean. None if there are none.
pub(super) fn left(namespace: &str, resource: &Resource, items: &[Held], grace: i64) -> Option<Left> {
    if items.is_empty() {
        return None;
    }
    let mut finalizers: BTreeMap<String, usize> = BTreeMap::new();
    for finalizer in items.iter().flat_map(|item| &item.metadata.finalizers) {
        *finalizers.entry(finalizer.clone()).or_default() += 1;
    }
    let estimate = match (grace, finalizers.is_empty()) {
        (0, true) => 0,
        (0, false) => FINALIZERS_SECONDS,
        (grace, _) => grace,
    };
    let unexpected = || {
        let (group, version, name) = (resource.group(), resource.version(), &resource.name);
        format!("unexpected items still remain in namespace: {namespace} for gvr: {group}/{version}, Resource={name}")
    };
    Some(Left {
        count: items.len(),
        error: (estimate == 0).then(unexpected),
        finalizers,
        estimate,
    })
}

/// Type, and reason and message if all is well.
const WELL: [(&str, &str, &str); 5] = [
    (
        "NamespaceDeletionDiscoveryFailure",
        "ResourcesDiscovered",
        "All resources successfully discovered",
    ),
    (
        "NamespaceDeletionGroupVersionParsingFailure",
        "ParsedGroupVersions",
        "All legacy kube types successfully parsed",
    ),
    (
        "NamespaceDeletionContentFailure",
        "ContentDeleted",
        "All content successfully deleted, may be waiting on finalization",
    ),
    (
        "NamespaceContentRemaining",
        "ContentRemoved",
        "All content successfully removed",
    ),
    (
        "NamespaceFinalizersRemaining",
        "ContentHasNoFinalizers",
        "All content-preserving finalizers finished",
    ),
];

/// The namespace's conditions after this look. Those of others stay.
pub(super) fn conditions(old: &[Condition], report: &Report, now: Timestamp) -> Vec<Condition> {
    let mut all = old.to_vec();
    for (kind, reason, message) in WELL {
        let trouble = trouble(kind, report);
        let status = if trouble.is_some() { "True" } else { "False" };
        let (reason, message) = trouble.unwrap_or((reason, message.to_string()));
        let before = condition::find(old, kind);
        let since = before
            .filter(|c| c.status == status)
            .and_then(|c| c.last_transition_time);
        let new = Condition {
            r#type: kind.to_string(),
            status: status.to_string(),
            last_transition_time: since.or(Some(now)),
            reason: reason.to_string(),
            message,
            ..Condition::default()
        };
        match all.iter_mut().find(|c| c.r#type == kind) {
            Some(at) => *at = new,
            None => all.push(new),
        }
    }
    all
}

/// Reason and message of a condition that holds.
fn trouble(kind: &str, report: &Report) -> Option<(&'static str, String)> {
    match kind {
        "NamespaceDeletionDiscoveryFailure" => report.discovery.clone().map(|why| ("DiscoveryFailed", why)),
        "NamespaceDeletionContentFailure" => {
            let errors = report.errors();
            let (count, errors) = (errors.len(), errors.join(", "));
            let message = format!("Failed to delete all resource types, {count} remaining: {errors}");
            (count > 0).then_some(("ContentDeletionFailed", message))
        }
        "NamespaceContentRemaining" => {
            let left = report.left.iter().filter(|(_, left)| left.count > 0);
            let text = |(resource, left): &(Resource, Left)| {
                let (name, group, count) = (&resource.name, resource.group(), left.count);
                format!("{name}.{group} has {count} resource instances")
            };
            let texts = sorted(left.map(text));
            let message = format!("Some resources are remaining: {texts}");
            (!texts.is_empty()).then_some(("SomeResourcesRemain", message))
        }
        "NamespaceFinalizersRemaining" => {
            let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
            for (finalizer, count) in report.left.iter().flat_map(|(_, left)| &left.finalizers) {
                *counts.entry(finalizer).or_default() += count;
            }
            let texts = sorted(
                counts
                    .iter()
                    .map(|(f, count)| format!("{f} in {count} resource instances")),
            );
            let message = format!("Some content in the namespace has finalizers remaining: {texts}");
            (!texts.is_empty()).then_some(("SomeFinalizersRemain", message))
        }
        _ => None,
    }
}

fn sorted(texts: impl Iterator<Item = String>) -> String {
    let mut texts: Vec<String> = texts.collect();
    texts.sort_unstable();
    texts.join(", ")
}
