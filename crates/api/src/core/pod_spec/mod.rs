//! The pod spec, wherever it stands: in a pod or in the template of one.
//!
//! One file per part of the spec; `validate` below goes through them in the order in which Kubernetes reports problems.
//! Upstream: pkg/apis/core/validation, pkg/apis/core/v1/defaults.go (v1.36). Differs from upstream: there is no
//! tolerance for stored objects that older rules let in, because nothing older than these rules was ever stored.

mod affinity;
mod annotations;
mod claim_template;
mod containers;
mod defaults;
mod env;
mod handlers;
mod image;
mod mounts;
mod network;
mod projected;
mod read;
mod requirements;
mod scheduling;
mod security;
mod volume_sources;
mod volumes;
mod windows;

#[cfg(test)]
pub(crate) mod tests;

use serde_json::Value;

use crate::field::{Cursor, Path, Problems};
use crate::{meta, names};

pub use affinity::validate_node_selector;
pub use annotations::validate as validate_annotations;
pub use annotations::validate_match as validate_annotations_match;
pub use claim_template::validate as validate_claim_template;
pub use defaults::{default, default_pod_only, mirror_service_account};
pub use image::{is_latest, tag};
pub use requirements::{NameRule, validate_requirements, validate_resource_name};
pub use scheduling::{validate_taint_effect, validate_tolerations};
pub use security::app_armor_from_annotation;

pub(crate) use annotations::{APP_ARMOR_PREFIX, SECCOMP_POD, SECCOMP_PREFIX};
pub(crate) use containers::untrimmed_image;
pub(crate) use defaults::round_up;
pub(crate) use read::{Read, legacy_ip};
pub(crate) use scheduling::MIRROR_POD;
pub(crate) use security::{user_id_problems, validate_app_armor};

/// Validates the spec of a pod template.
pub fn validate(spec: &Cursor<'_>, p: &mut Problems) {
    Scope::of(spec, None).validate(spec, p);
}

/// Validates the spec of a pod, whose metadata some rules look at.
pub fn validate_in_pod(spec: &Cursor<'_>, metadata: &Cursor<'_>, p: &mut Problems) {
    Scope::of(spec, Some(metadata)).validate(spec, p);
}

/// Init containers, containers and ephemeral containers, in this order.
pub fn all_containers<'a>(spec: &Cursor<'a>) -> impl Iterator<Item = Cursor<'a>> + use<'a> {
    let lists = ["initContainers", "containers", "ephemeralContainers"].map(|list| spec.given(list));
    lists.into_iter().flatten().flat_map(|list| list.items())
}

/// What the rules for one part of a spec need to know of the rest.
struct Scope<'a> {
    /// The metadata, if this is a pod and not a template.
    pod: Option<&'a Cursor<'a>>,
    grace_period: Option<i64>,
    restart_policy: &'a str,
    host_users: bool,
    /// The volumes found to be good, by name.
    volumes: volumes::Named<'a>,
    /// Names in `resourceClaims`.
    claims: Vec<&'a str>,
}

impl<'a> Scope<'a> {
    fn of(spec: &Cursor<'a>, pod: Option<&'a Cursor<'a>>) -> Scope<'a> {
        let claims = spec.list("resourceClaims").iter();
        Scope {
            pod,
            grace_period: spec.number("terminationGracePeriodSeconds"),
            restart_policy: spec.text("restartPolicy"),
            host_users: spec.flag("hostUsers") != Some(false),
            volumes: volumes::Named::default(),
            claims: claims
                .filter_map(|c| c.get("name")?.as_str())
                .filter(|n| !n.is_empty())
                .collect(),
        }
    }

    fn is_pod(&self) -> bool {
        self.pod.is_some()
    }

    fn validate(mut self, spec: &Cursor<'a>, p: &mut Problems) {
        if self.grace_period.is_none() {
            p.required(&spec.at("terminationGracePeriodSeconds"), "");
        }
        self.volumes = volumes::validate(spec, self.pod, p);
        scheduling::resource_claims(spec, self.pod, p);
        containers::validate(spec, &self, p);
        requirements::pod_level(spec, &self.claims, p);
        network::host_ports(spec, self.is_pod(), p);
        read::choice(spec, "restartPolicy", &["Always", "OnFailure", "Never"], p);
        let dns_policies = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
        read::choice(spec, "dnsPolicy", &dns_policies, p);
        if let Some(selector) = spec.given("nodeSelector") {
            meta::validate_labels(&selector, p);
        }
        security::pod(spec, p);
        affinity::validate(spec, p);
        network::dns_config(spec, p);
        scheduling::gates(spec, p);
        scheduling::topology_spread(spec, p);
        windows::host_process(spec, p);
        security::host_users(spec, p);
        network::hostname_override(spec, p);
        names_and_numbers(spec, p);
        if let Some(tolerations) = spec.given("tolerations") {
            validate_tolerations(&tolerations, p);
        }
        network::host_aliases(spec, p);
        if let Some(overhead) = spec.given("overhead") {
            requirements::overhead(&overhead, p);
        }
        windows::operating_system(spec, p);
        env::file_volumes(spec, p);
    }
}

/// Fields that stand for themselves.
fn names_and_numbers(spec: &Cursor<'_>, p: &mut Problems) {
    let rules: [(&'static str, names::Rule); 5] = [
        ("serviceAccountName", names::dns_subdomain),
        ("nodeName", names::dns_subdomain),
        ("hostname", names::dns_label),
        ("subdomain", names::dns_label),
        ("priorityClassName", names::dns_subdomain),
    ];
    for (field, rule) in rules {
        if let Some(name) = spec.given(field).filter(|n| !n.is_empty()) {
            p.invalid_each(&name, rule(name.str()));
        }
    }
    if let Some(class) = spec.given("runtimeClassName") {
        p.invalid_each(&class, names::dns_subdomain(class.str()));
    }
    if let Some(seconds) = spec.given("activeDeadlineSeconds") {
        let n = seconds.as_i64().unwrap_or(0);
        p.invalid_each(&seconds, names::in_range(n, 1, i64::from(i32::MAX)));
    }
    if spec.has("preemptionPolicy") {
        read::choice(spec, "preemptionPolicy", &["PreemptLowerPriority", "Never"], p);
    }
}

/// The spec of an object that has one, or an empty object put there: Kubernetes always shows a spec.
pub(crate) fn ensure_object<'v>(parent: &'v mut Value, name: &str) -> Option<&'v mut Value> {
    let map = parent.as_object_mut()?;
    let spec = map.entry(name).or_insert_with(|| Value::Object(Default::default()));
    if spec.is_null() {
        *spec = Value::Object(Default::default());
    }
    Some(spec)
}

/// Where Kubernetes reports what is wrong with a pod as such: a path that it shows as `[]`.
pub(crate) fn whole_pod() -> Cursor<'static> {
    Cursor::new(None, Path::default().key(""))
}
