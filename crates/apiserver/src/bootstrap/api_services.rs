//! An APIService for every group and version this server serves itself: how clients see where an API comes from.
//!
//! Upstream: pkg/controlplane/apiserver, the priorities of the built-in groups (v1.36).

use std::collections::BTreeSet;

use serde_json::{Value, json};

/// How early a group stands in discovery; the higher the earlier.
fn group_priority(group: &str) -> i64 {
    match group {
        "" => 18000,
        "apps" => 17800,
        "events.k8s.io" => 17750,
        "authentication.k8s.io" => 17700,
        "authorization.k8s.io" => 17600,
        "autoscaling" => 17500,
        "batch" => 17400,
        "certificates.k8s.io" => 17300,
        "networking.k8s.io" => 17200,
        "policy" => 17100,
        "rbac.authorization.k8s.io" => 17000,
        "storage.k8s.io" => 16800,
        "admissionregistration.k8s.io" | "apiextensions.k8s.io" => 16700,
        "scheduling.k8s.io" => 16600,
        "coordination.k8s.io" => 16500,
        "node.k8s.io" => 16300,
        "flowcontrol.apiserver.k8s.io" => 16100,
        "metrics.k8s.io" => 100,
        // discovery.k8s.io, resource.k8s.io
        _ => 16200,
    }
}

fn version_priority(group: &str, version: &str) -> i64 {
    match (group, version) {
        ("", _) => 1,
        ("metrics.k8s.io", _) => 100,
        (_, "v2") => 30,
        ("flowcontrol.apiserver.k8s.io" | "resource.k8s.io", _) => 21,
        _ => 15,
    }
}

/// `now` is when they became available.
pub fn objects(now: &str) -> Vec<Value> {
    let served: BTreeSet<(&str, &str)> = orlop_api::kinds::all()
        .map(|kind| (kind.group, kind.version))
        // The group of APIServices themselves is not among them.
        .filter(|(group, _)| *group != "apiregistration.k8s.io")
        .collect();
    let object = |(group, version): (&str, &str)| {
        let mut spec = json!({
            "version": version, "groupPriorityMinimum": group_priority(group),
            "versionPriority": version_priority(group, version),
        });
        if !group.is_empty() {
            spec["group"] = group.into();
        }
        json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {
                "name": format!("{version}.{group}"),
                "labels": {"kube-aggregator.kubernetes.io/automanaged": "onstart"},
            },
            "spec": spec,
            "status": {"conditions": [{
                "type": "Available", "status": "True", "lastTransitionTime": now, "reason": "Local",
                "message": "Local APIServices are always available",
            }]},
        })
    };
    served.into_iter().map(object).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_of_each_group_has_one() {
        let all = objects("2026-01-01T00:00:00Z");
        let names: Vec<&str> = all.iter().filter_map(|o| o["metadata"]["name"].as_str()).collect();
        for wanted in [
            "v1.",
            "v1.apps",
            "v1.autoscaling",
            "v2.autoscaling",
            "v1.resource.k8s.io",
            "v1beta1.metrics.k8s.io",
        ] {
            assert!(names.contains(&wanted), "{wanted}");
        }
        assert!(all[0]["spec"].get("group").is_none());
    }
}
