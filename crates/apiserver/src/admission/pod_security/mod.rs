//! PodSecurity: a namespace says with its labels how well behaved its pods must be. Pods that break the enforced
//! standard are refused; whoever makes pods or workloads that break the standard to warn about is told so; and the
//! labels themselves must make sense.
//!
//! Upstream: pod-security-admission, plugin/pkg/admission/security/podsecurity (v1.36). Audit annotations are left out: the audit log has no place for them yet.

mod baseline;
mod checks;
mod configuration;
mod policy;
mod restricted;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use orlop_api::{Problems, Status, Value};

use super::{Change, Operation, Plugin, Review};
use crate::lookup::{items, text};
use checks::{Pod, violations};
pub use configuration::PodSecurityConfiguration;
use policy::{Level, Policy, Standard};

pub(super) const PLUGIN: Plugin = Plugin {
    name: "PodSecurity",
    mutate: None,
    validate: Some(validate),
};

/// How many pods are looked at when a namespace becomes stricter.
const MAX_PODS: usize = 3000;

fn validate(review: &Review<'_>, new: Option<&Value>, old: Option<&Value>) -> Result<Vec<Change>, Status> {
    let Some(new) = new else {
        return Ok(vec![]);
    };
    match (review.kind.group, review.kind.plural) {
        ("", "namespaces") if review.subresource.is_empty() => namespace(review, new, old)?,
        ("", "pods") => pod(review, new, old)?,
        _ if review.subresource.is_empty() => workload(review, new),
        _ => {}
    }
    Ok(vec![])
}

fn namespace(review: &Review<'_>, new: &Value, old: Option<&Value>) -> Result<(), Status> {
    let configuration = &review.config.admission.pod_security;
    let (policy, problems) = policy::of_namespace(new, configuration.defaults);
    let before = old.map(|old| policy::of_namespace(old, configuration.defaults));
    // Who only changes something else need not clean up.
    let known = before.as_ref().is_some_and(|(_, old)| same(&problems, old));
    if !problems.is_empty() && !known {
        return Err(Status::invalid("", "Namespace", review.displayed_name(), &problems));
    }
    let (Some((before, _)), enforce) = (before, policy.enforce) else {
        return Ok(());
    };
    let laxer = enforce.version == before.enforce.version && enforce.level <= before.enforce.level;
    let name = text(new, &["metadata", "name"]);
    if enforce.level != Level::Privileged && !laxer && !configuration.exempts_namespace(name) {
        warn_of_pods(review, name, enforce);
    }
    Ok(())
}

fn same(a: &Problems, b: &Problems) -> bool {
    let shown = |p: &Problems| -> Vec<String> { p.0.iter().map(ToString::to_string).collect() };
    shown(a) == shown(b)
}

/// Tells which pods would not be let into the namespace any more.
fn warn_of_pods(review: &Review<'_>, namespace: &str, enforce: Standard) {
    let pods = one_of_each_first(review.lookup.list("pods", Some(namespace)));
    let checked = &pods[..pods.len().min(MAX_PODS)];
    // Reasons → the first pod by name and how many there are.
    let mut found: BTreeMap<String, (&str, usize)> = BTreeMap::new();
    for pod in checked {
        let wrong = violations(enforce, &whole(pod));
        if wrong.is_empty() {
            continue;
        }
        let name = text(pod, &["metadata", "name"]);
        let entry = found.entry(checks::reasons(&wrong)).or_insert((name, 0));
        *entry = (entry.0.min(name), entry.1 + 1);
    }
    if checked.len() < pods.len() {
        review.warnings.add(format!(
            "new PodSecurity enforce level only checked against the first {} of {} existing pods",
            checked.len(),
            pods.len()
        ));
    }
    if found.is_empty() {
        return;
    }
    review.warnings.add(format!(
        "existing pods in namespace {namespace:?} violate the new PodSecurity enforce level \"{enforce}\""
    ));
    let mut told: Vec<String> = found
        .into_iter()
        .map(|(reasons, (name, count))| match count {
            1 => format!("{name}: {reasons}"),
            2 => format!("{name} (and 1 other pod): {reasons}"),
            n => format!("{name} (and {} other pods): {reasons}", n - 1),
        })
        .collect();
    told.sort();
    told.into_iter().for_each(|text| review.warnings.add(text));
}

/// Pods of one controller are alike, so the first of each comes before the rest.
fn one_of_each_first(pods: Vec<Arc<Value>>) -> Vec<Arc<Value>> {
    let mut seen = HashSet::new();
    let (mut first, rest): (Vec<_>, Vec<_>) = pods.into_iter().partition(|pod| {
        let owners = items(pod, &["metadata", "ownerReferences"]);
        let controller = owners.iter().find(|o| o["controller"] == true);
        controller.is_none_or(|c| seen.insert(text(c, &["uid"]).to_string()))
    });
    first.extend(rest);
    first
}

fn whole(pod: &Value) -> Pod<'_> {
    Pod {
        metadata: &pod["metadata"],
        spec: &pod["spec"],
    }
}

/// Endpoints through which nothing about a pod's security changes.
const IGNORED: &[&str] = &[
    "exec",
    "attach",
    "binding",
    "eviction",
    "log",
    "portforward",
    "proxy",
    "status",
];

fn pod(review: &Review<'_>, pod: &Value, old: Option<&Value>) -> Result<(), Status> {
    if IGNORED.contains(&review.subresource) || is_exempt(review, &pod["spec"]) {
        return Ok(());
    }
    let Some(policy) = policy_of(review) else {
        return Err(Status::internal(format!(
            "failed to lookup namespace {:?}",
            review.namespace
        )));
    };
    let unchanged = review.operation == Operation::Update && old.is_some_and(|old| !is_significant(pod, old));
    if policy.allows_anything() || unchanged {
        return Ok(());
    }
    let wrong = violations(policy.enforce, &whole(pod));
    if !wrong.is_empty() {
        return Err(review.forbidden(format!(
            "violates PodSecurity \"{}\": {}",
            policy.enforce,
            checks::told(&wrong)
        )));
    }
    if policy.warn != policy.enforce {
        warn(review, policy.warn, &whole(pod));
    }
    Ok(())
}

fn policy_of(review: &Review<'_>) -> Option<Policy> {
    let namespace = review.lookup.get("namespaces", "", &review.namespace)?;
    Some(policy::of_namespace(&namespace, review.config.admission.pod_security.defaults).0)
}

/// Whether nobody minds what a pod with this spec, or a workload that makes such pods, does.
fn is_exempt(review: &Review<'_>, spec: &Value) -> bool {
    let configuration = &review.config.admission.pod_security;
    configuration.exempts_namespace(&review.namespace)
        || configuration.exempts_user(&review.user.name)
        || configuration.exempts_class(spec)
}

fn warn(review: &Review<'_>, standard: Standard, pod: &Pod<'_>) {
    let wrong = violations(standard, pod);
    if !wrong.is_empty() {
        let told = checks::told(&wrong);
        review
            .warnings
            .add(format!("would violate PodSecurity \"{standard}\": {told}"));
    }
}

/// Of what may change in a pod only images, and containers added for debugging, can make it less secure.
fn is_significant(new: &Value, old: &Value) -> bool {
    let image = |c: &Value| text(c, &["image"]).to_string();
    let images = |pod: &Value, list: &str| -> Vec<String> { items(pod, &["spec", list]).iter().map(image).collect() };
    let ephemeral = |pod: &Value| items(pod, &["spec", "ephemeralContainers"]).to_vec();
    let before = ephemeral(old);
    let known = |c: &Value| {
        let same = before.iter().find(|b| b["name"] == c["name"]);
        same.is_some_and(|b| image(b) == image(c))
    };
    images(new, "containers") != images(old, "containers")
        || images(new, "initContainers") != images(old, "initContainers")
        || !ephemeral(new).iter().all(known)
}

/// Where each kind of workload has the template of its pods.
pub(super) const TEMPLATES: &[(&str, &str, &str)] = &[
    ("", "replicationcontrollers", "/spec/template"),
    ("", "podtemplates", "/template"),
    ("apps", "replicasets", "/spec/template"),
    ("apps", "deployments", "/spec/template"),
    ("apps", "statefulsets", "/spec/template"),
    ("apps", "daemonsets", "/spec/template"),
    ("batch", "jobs", "/spec/template"),
    ("batch", "cronjobs", "/spec/jobTemplate/spec/template"),
];

/// A workload is not refused: its pods will be.
fn workload(review: &Review<'_>, object: &Value) {
    let template = TEMPLATES
        .iter()
        .find(|(group, plural, _)| review.is(group, plural))
        .and_then(|(_, _, place)| object.pointer(place));
    let (Some(template), Some(policy)) = (template, template.and_then(|_| policy_of(review))) else {
        return;
    };
    if policy.warn.level != Level::Privileged && !is_exempt(review, &template["spec"]) {
        warn(review, policy.warn, &whole(template));
    }
}
