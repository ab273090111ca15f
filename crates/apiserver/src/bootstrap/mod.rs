//! The objects every cluster starts with, as data: the default policy, priority classes, and the flow schemas and
//! priority levels of the API server itself. The server writes what is missing of them when it starts.

pub mod api_services;
pub mod flowcontrol;
pub mod scheduling;

use jiff::Timestamp;
use orlop_api::Value;
use orlop_base::clock::rfc3339;

use crate::authz::bootstrap as rbac;

/// (resource as in `lookup`, object), roles before bindings and priority levels before the flow schemas that name them.
/// The namespaces they are in are not among them.
pub fn default_objects(now: Timestamp) -> Vec<(&'static str, Value)> {
    let now = rfc3339(now);
    let all = [
        rbac::policy(),
        scheduling::priority_classes(),
        flowcontrol::objects(&now),
        api_services::objects(&now),
    ];
    all.into_iter()
        .flatten()
        .map(|object| (resource_of(&object), object))
        .collect()
}

fn resource_of(object: &Value) -> &'static str {
    match object["kind"].as_str().unwrap_or("") {
        "ClusterRole" => "clusterroles.rbac.authorization.k8s.io",
        "ClusterRoleBinding" => "clusterrolebindings.rbac.authorization.k8s.io",
        "Role" => "roles.rbac.authorization.k8s.io",
        "RoleBinding" => "rolebindings.rbac.authorization.k8s.io",
        "PriorityClass" => "priorityclasses.scheduling.k8s.io",
        "PriorityLevelConfiguration" => "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io",
        "FlowSchema" => "flowschemas.flowcontrol.apiserver.k8s.io",
        "APIService" => "apiservices.apiregistration.k8s.io",
        other => unreachable!("no default objects of kind {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use orlop_api::{Cursor, Problems};

    use super::*;
    use crate::kinds;

    #[test]
    fn every_object_is_valid_and_there_once() {
        let mut seen = BTreeSet::new();
        for (resource, mut object) in default_objects(Timestamp::UNIX_EPOCH) {
            let def = kinds::of_stored(resource).unwrap();
            assert_eq!(object["apiVersion"], def.api_version());
            (def.default)(&mut object);
            let mut p = Problems::default();
            (def.validate)(&Cursor::root(&object), &mut p);
            assert!(p.is_empty(), "{object}: {p:?}");
            let name = object["metadata"]["name"].as_str().unwrap();
            assert_eq!((def.name_rule)(name), Vec::<String>::new(), "{name}");
            let namespace = &object["metadata"]["namespace"];
            assert_eq!(namespace.is_string(), def.namespaced, "{object}");
            assert!(
                seen.insert(format!("{} {namespace} {name}", def.plural)),
                "{object} is there twice"
            );
        }
        for wanted in [
            "clusterroles null cluster-admin",
            "priorityclasses null system-node-critical",
            "flowschemas null exempt",
            "prioritylevelconfigurations null catch-all",
        ] {
            assert!(seen.contains(wanted), "{wanted}");
        }
    }

    #[test]
    fn what_is_named_comes_first() {
        let all = default_objects(Timestamp::UNIX_EPOCH);
        let first = |plural: &str| all.iter().position(|(r, _)| r.starts_with(plural)).unwrap();
        let last = |plural: &str| all.iter().rposition(|(r, _)| r.starts_with(plural)).unwrap();
        assert!(last("clusterroles.") < first("clusterrolebindings."));
        assert!(last("roles.") < first("rolebindings."));
        assert!(last("prioritylevelconfigurations.") < first("flowschemas."));
    }
}
