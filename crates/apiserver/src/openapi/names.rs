//! The names OpenAPI documents use: of definitions, of group versions, of operations. Clients look things up by them, so
//! they are Kubernetes' own.

use orlop_api::{KindDef, kinds};
use serde_json::{Value, json};

use crate::custom::Snapshot;

/// "core/v1.Pod" → "io.k8s.api.core.v1.Pod"
pub(super) fn of_type(name: &str) -> String {
    let (package, rest) = name.split_once('/').unwrap_or(("core", name));
    let home = match package {
        "meta" => "io.k8s.apimachinery.pkg.apis.",
        "apiextensions" => "io.k8s.apiextensions-apiserver.pkg.apis.",
        "metrics" => "io.k8s.metrics.pkg.apis.",
        "apiregistration" => "io.k8s.kube-aggregator.pkg.apis.",
        _ => "io.k8s.api.",
    };
    format!("{home}{package}.{rest}")
}

/// One version of one group: what an OpenAPI v3 document is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct GroupVersion {
    pub group: &'static str,
    pub version: &'static str,
}

impl GroupVersion {
    /// Those of built-in kinds, in the order of discovery.
    pub(super) fn built_in() -> Vec<GroupVersion> {
        distinct(kinds::all())
    }

    /// All that are served.
    pub(super) fn all(custom: &Snapshot) -> Vec<GroupVersion> {
        distinct(kinds::all().chain(custom.served()))
    }

    pub(super) fn of(kind: &KindDef) -> GroupVersion {
        GroupVersion {
            group: kind.group,
            version: kind.version,
        }
    }

    /// "api/v1", "apis/apps/v1": the path without the leading slash, which is also the document's name.
    pub(super) fn path(self) -> String {
        match self.group {
            "" => format!("api/{}", self.version),
            group => format!("apis/{group}/{}", self.version),
        }
    }

    /// "AppsV1", "RbacAuthorizationV1": the middle of operation ids.
    pub(super) fn title(self) -> String {
        format!("{}{}", group_title(self.group), title(self.version))
    }

    /// "apps_v1", "rbacAuthorization_v1"
    pub(super) fn tag(self) -> String {
        format!("{}_{}", group_tag(self.group), self.version)
    }

    pub(super) fn gvk(self, kind: &str) -> Value {
        json!({"group": self.group, "version": self.version, "kind": kind})
    }

    pub(super) fn kinds(self, custom: &Snapshot) -> Vec<&'static KindDef> {
        let all = kinds::all().chain(custom.served());
        let mut list: Vec<_> = all.filter(|k| GroupVersion::of(k) == self).collect();
        list.sort_by_key(|k| k.plural);
        list
    }
}

fn distinct(kinds: impl Iterator<Item = &'static KindDef>) -> Vec<GroupVersion> {
    let mut all: Vec<GroupVersion> = vec![];
    for gv in kinds.map(GroupVersion::of) {
        // Kinds of a version mostly stand together.
        if all.last() != Some(&gv) && !all.contains(&gv) {
            all.push(gv);
        }
    }
    all
}

/// "rbac.authorization.k8s.io" → "RbacAuthorization"
pub(super) fn group_title(group: &str) -> String {
    match group.strip_suffix(".k8s.io").unwrap_or(group) {
        "" => "Core".to_string(),
        words => words.split(['.', '-']).map(title).collect(),
    }
}

/// "rbac.authorization.k8s.io" → "rbacAuthorization"
pub(super) fn group_tag(group: &str) -> String {
    let title = group_title(group);
    title[..1].to_ascii_lowercase() + &title[1..]
}

/// With a capital first letter.
pub(super) fn title(word: &str) -> String {
    let mut chars = word.chars();
    match chars.next() {
        Some(first) => first.to_uppercase().chain(chars).collect(),
        None => String::new(),
    }
}

/// The full name of a group that the table of types knows by its first word: "rbac" → "rbac.authorization.k8s.io".
pub(super) fn full_group(package: &str) -> &str {
    if package == "core" {
        return "";
    }
    let own = |kind: &&KindDef| kind.schema.split('/').next() == Some(package);
    kinds::all().find(own).map_or(package, |kind| kind.group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_kubernetes_own() {
        for (ours, theirs) in [
            ("core/v1.Pod", "io.k8s.api.core.v1.Pod"),
            ("rbac/v1.Role", "io.k8s.api.rbac.v1.Role"),
            ("meta/v1.ObjectMeta", "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"),
            (
                "apiregistration/v1.APIService",
                "io.k8s.kube-aggregator.pkg.apis.apiregistration.v1.APIService",
            ),
        ] {
            assert_eq!(of_type(ours), theirs);
        }
        for (group, version, path, title, tag) in [
            ("", "v1", "api/v1", "CoreV1", "core_v1"),
            ("apps", "v1", "apis/apps/v1", "AppsV1", "apps_v1"),
            (
                "rbac.authorization.k8s.io",
                "v1",
                "apis/rbac.authorization.k8s.io/v1",
                "RbacAuthorizationV1",
                "rbacAuthorization_v1",
            ),
            (
                "cert-manager.io",
                "v1",
                "apis/cert-manager.io/v1",
                "CertManagerIoV1",
                "certManagerIo_v1",
            ),
        ] {
            let gv = GroupVersion { group, version };
            assert_eq!(
                (gv.path().as_str(), gv.title().as_str(), gv.tag().as_str()),
                (path, title, tag)
            );
        }
        assert_eq!(
            (full_group("core"), full_group("rbac")),
            ("", "rbac.authorization.k8s.io")
        );
    }
}
