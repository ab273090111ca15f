//! Requests, limits and claims, of a container or of the pod as a whole.

use std::collections::HashSet;

use serde_json::Value;

use super::Read;
use crate::core::resource_rules;
use crate::field::{Cursor, Path, ProblemKind, Problems};
use crate::names;
use crate::quantity::Quantity;
use crate::resources::{self, PodResourceOptions, is_hugepages};

/// `resources` of a container. `claims` are the names in the pod's `resourceClaims`.
pub(super) fn of_container(c: &Cursor<'_>, claims: &[&str], p: &mut Problems) {
    validate_requirements(c, container_resource_name, p);
    claim_names(c, claims, p);
}

/// `overhead`, judged as limits are.
pub(super) fn overhead(c: &Cursor<'_>, p: &mut Problems) {
    let limits = Cursor::new(c.value(), c.path().field("limits"));
    let mut seen = NamedResources::default();
    for (name, q) in limits.entries() {
        seen.entry(name, &q, container_resource_name, p);
    }
    seen.finish(c, p);
}

/// `resources` of the pod itself, which must agree with those of its containers.
pub(super) fn pod_level(spec: &Cursor<'_>, claims: &[&str], p: &mut Problems) {
    let Some(c) = spec.given("resources") else { return };
    if spec.raw("os").and_then(|os| os.get("name")).and_then(Value::as_str) == Some("windows") {
        return p.forbidden(&c, "may not be set for a windows pod");
    }
    if c.has("claims") {
        p.forbidden(&c.at("claims"), "claims may not be set for Resources at pod-level");
    }
    validate_requirements(&c, pod_resource_name, p);
    claim_names(&c, claims, p);
    consistency(spec, &c, p);
}

fn consistency(spec: &Cursor<'_>, c: &Cursor<'_>, p: &mut Problems) {
    // The sums are computed on whole pods.
    let pod = serde_json::json!({"spec": {
        "containers": spec.raw("containers"),
        "initContainers": spec.raw("initContainers"),
    }});
    let own = |part: &str, name: &str| {
        let text = c.raw(part)?.get(name)?.as_str()?;
        Quantity::parse(text).ok()
    };
    let opts = PodResourceOptions::default();
    let sums = [
        ("requests", resources::container_requests(&pod, opts)),
        ("limits", resources::container_limits(&pod, opts)),
    ];
    for (part, sums) in sums {
        for (name, sum) in sums.iter().filter(|(name, _)| part == "requests" || is_hugepages(name)) {
            if let Some(q) = own(part, name).filter(|q| sum > q) {
                let detail = format!("must be greater than or equal to aggregate container {part} of {sum}");
                p.invalid_value(&c.path().field(part).key(name), &q.canonical().into(), detail);
            }
        }
    }
    for (i, container) in spec.list("containers").iter().enumerate() {
        for (name, q) in resources::list(container.pointer("/resources/limits")) {
            if let Some(limit) = own("limits", &name).filter(|limit| q > *limit) {
                let path = c.path().field("containers").index(i).key(&name).field("limits");
                let detail = format!("must be less than or equal to pod limits of {limit}");
                p.invalid_value(&path, &q.canonical().into(), detail);
            }
        }
    }
}

/// What names are allowed: pushes what is wrong with `name` at the path.
pub type NameRule = fn(&str, &Path, &mut Problems);

/// Names, quantities, requests within limits, and the special rules of huge pages and extended resources.
pub fn validate_requirements(c: &Cursor<'_>, rule: NameRule, p: &mut Problems) {
    let (limits, requests) = (c.given("limits"), c.given("requests"));
    if limits.is_none() && requests.is_none() {
        return;
    }
    let mut seen = NamedResources::default();
    for (name, q) in limits.iter().flat_map(Cursor::entries) {
        seen.entry(name, &q, rule, p);
    }
    for (name, at) in requests.iter().flat_map(Cursor::entries) {
        let Some(q) = seen.entry(name, &at, rule, p) else {
            continue;
        };
        let limit = limits.as_ref().and_then(|l| l.raw(name)).and_then(Value::as_str);
        let overcommit = resources::overcommit_allowed(name);
        match limit.map(Quantity::parse) {
            Some(Ok(limit)) if q != limit && !overcommit => {
                refuse(c, &q, format!("must be equal to {name} limit of {limit}"), p);
            }
            Some(Ok(limit)) if q > limit => {
                refuse(
                    c,
                    &q,
                    format!("must be less than or equal to {name} limit of {limit}"),
                    p,
                );
            }
            None if !overcommit => {
                p.required(&c.at("limits"), "Limit must be set for non overcommitable resources");
            }
            _ => {}
        }
    }
    seen.finish(c, p);
}

fn refuse(c: &Cursor<'_>, q: &Quantity, detail: String, p: &mut Problems) {
    p.invalid_value(&c.path().field("requests"), &q.canonical().into(), detail);
}

/// Which kinds of resources were named.
#[derive(Default)]
struct NamedResources {
    compute: bool,
    hugepages: bool,
}

impl NamedResources {
    fn entry(&mut self, name: &str, at: &Cursor<'_>, rule: NameRule, p: &mut Problems) -> Option<Quantity> {
        rule(name, at.path(), p);
        let q = Quantity::parse(at.str()).ok()?;
        resource_rules::validate_quantity(name, at, p);
        self.compute |= matches!(name, resources::CPU | resources::MEMORY);
        if is_hugepages(name) {
            self.hugepages = true;
            if !is_multiple_of_page(name, &q) {
                p.invalid(at, format!("{q} is not positive integer multiple of {name}"));
            }
        }
        Some(q)
    }

    fn finish(self, c: &Cursor<'_>, p: &mut Problems) {
        if self.hugepages && !self.compute {
            p.forbidden(c, "HugePages require cpu or memory");
        }
    }
}

fn is_multiple_of_page(name: &str, q: &Quantity) -> bool {
    let size = name.strip_prefix("hugepages-").map(Quantity::parse);
    match size {
        Some(Ok(size)) if size.sign() > 0 && size.is_whole() => q.value() % size.value() == 0,
        _ => false,
    }
}

fn container_resource_name(name: &str, path: &Path, p: &mut Problems) {
    // Nearly always it is one of these, and there is nothing to say about them.
    if !matches!(name, resources::CPU | resources::MEMORY) {
        resource_rules::validate_container_resource(name, path, p);
    }
}

/// A resource name of any kind: standard, or with a domain. True if it is fine.
pub fn validate_resource_name(name: &str, path: &Path, p: &mut Problems) -> bool {
    let before = p.count();
    resource_rules::validate_resource(name, path, p);
    p.count() == before
}

fn pod_resource_name(name: &str, path: &Path, p: &mut Problems) {
    if validate_resource_name(name, path, p) && !resources::is_pod_level(name) {
        let name = Value::from(name);
        p.not_supported(
            &Cursor::new(Some(&name), path.clone()),
            &["cpu", "hugepages-", "memory"],
        );
    }
}

/// `resources.claims`: each names a claim of the pod, and none is named twice.
fn claim_names(c: &Cursor<'_>, known: &[&str], p: &mut Problems) {
    let shown = |text: &str| Some(Value::from(text).to_string());
    let mut whole = HashSet::new();
    let mut parts: HashSet<(&str, &str)> = HashSet::new();
    for claim in c.each("claims") {
        let (name, request) = (claim.text("name"), claim.text("request"));
        if name.is_empty() {
            p.required(&claim, "");
            continue;
        }
        if whole.contains(name) {
            p.push(ProblemKind::Duplicate, claim.path(), shown(name), "");
        } else if request.is_empty() {
            if parts.iter().any(|(n, _)| *n == name) {
                p.push(ProblemKind::Duplicate, claim.path(), shown(name), "");
            }
            whole.insert(name);
        } else {
            p.invalid_each(&claim.at("request"), names::dns_label(request));
            if !parts.insert((name, request)) {
                p.push(
                    ProblemKind::Duplicate,
                    claim.path(),
                    shown(&format!("{name}/{request}")),
                    "",
                );
            }
        }
        if !known.contains(&name) {
            let mut detail = "must be one of the names in pod.spec.resourceClaims".to_string();
            if known.is_empty() {
                detail.push_str(" which is empty");
            } else {
                let mut sorted = known.to_vec();
                sorted.sort_unstable();
                sorted.dedup();
                detail = format!("{detail}: {}", sorted.join(", "));
            }
            p.push(ProblemKind::NotFound, claim.path(), shown(name), detail);
        }
    }
}
