//! What stands behind a rejection, as text and as JSON.

use orlop_scheduler::framework::detail::Detail;
use serde_json::{Value, json};

use crate::amount::{exact, short};

/// One line for people: `needs 2 cpu, has 1.3 free of 4`.
pub(crate) fn text(detail: &Detail) -> String {
    match detail {
        Detail::Resource {
            resource,
            requested,
            used,
            allocatable,
        } => format!(
            "needs {} {resource}, has {} free of {}",
            short(resource, *requested),
            short(resource, allocatable.saturating_sub(*used).max(0)),
            short(resource, *allocatable)
        ),
        Detail::Pods { running, allowed } => format!("{running} of {allowed} pods are running"),
        Detail::Taint { key, value, effect } => taint_text(key, value, effect),
        Detail::NodeSelector { key, wanted, found } => match found {
            Some(found) => format!("label {key}={found}, the pod selects {wanted}"),
            None => format!("no label {key}, the pod selects {key}={wanted}"),
        },
        Detail::NodeAffinity { requirement, found, .. } => match found {
            Some(found) => format!("required {requirement}, the node has {found}"),
            None => format!("required {requirement}, the node has no such label"),
        },
        Detail::HostPort { protocol, port, pod } => {
            let by = pod
                .as_ref()
                .map_or(String::new(), |pod| format!(" is used by pod {pod}"));
            format!("host port {port}/{protocol}{by}")
        }
        Detail::Spread {
            key,
            domain,
            pods,
            least,
            max_skew,
        } => format!("{key}={domain} has {pods} matching pods, the fewest anywhere are {least}, maxSkew is {max_skew}"),
        Detail::MissingTopologyKey { key } => format!("no label {key}"),
        Detail::PodAffinity { key, domain } => format!("no matching pod in {key}={domain}"),
        Detail::PodAntiAffinity { key, domain, pods } => {
            format!("{pods} matching pod{} in {key}={domain}", plural(*pods))
        }
        Detail::ExistingAntiAffinity { key, domain, pods } => {
            format!(
                "anti-affinity of {pods} pod{} in {key}={domain} matches this pod",
                plural(*pods)
            )
        }
        Detail::VolumeLimit {
            driver,
            attached,
            added,
            limit,
        } => format!("driver {driver}: {attached} volumes attached, {added} more needed, at most {limit}"),
        Detail::Volume { volume, problem } if volume.is_empty() => problem.clone(),
        Detail::Volume { volume, problem } => format!("{volume}: {problem}"),
        Detail::Feature { name } => format!("kubelet does not declare {name}"),
    }
}

pub(crate) fn taint_text(key: &str, value: &str, effect: &str) -> String {
    match value {
        "" => format!("{key}:{effect}"),
        value => format!("{key}={value}:{effect}"),
    }
}

fn plural(number: i64) -> &'static str {
    if number == 1 { "" } else { "s" }
}

/// `{"type": "Resource", …, "text": "…"}`; quantities are exact.
pub(crate) fn json(detail: &Detail) -> Value {
    let mut value = match detail {
        Detail::Resource {
            resource,
            requested,
            used,
            allocatable,
        } => json!({
            "type": "Resource", "resource": resource, "requested": exact(resource, *requested),
            "free": exact(resource, allocatable.saturating_sub(*used)), "allocatable": exact(resource, *allocatable),
        }),
        Detail::Pods { running, allowed } => json!({"type": "Pods", "running": running, "allowed": allowed}),
        Detail::Taint { key, value, effect } => json!({"type": "Taint", "key": key, "value": value, "effect": effect}),
        Detail::NodeSelector { key, wanted, found } => {
            json!({"type": "NodeSelector", "key": key, "wanted": wanted, "found": found})
        }
        Detail::NodeAffinity {
            term,
            requirement,
            found,
        } => json!({"type": "NodeAffinity", "term": term, "requirement": requirement, "found": found}),
        Detail::HostPort { protocol, port, pod } => {
            json!({"type": "HostPort", "protocol": protocol, "port": port, "pod": pod})
        }
        Detail::Spread {
            key,
            domain,
            pods,
            least,
            max_skew,
        } => json!({"type": "TopologySpread", "topologyKey": key, "domain": domain, "pods": pods, "fewest": least,
                    "maxSkew": max_skew}),
        Detail::MissingTopologyKey { key } => json!({"type": "MissingTopologyKey", "topologyKey": key}),
        Detail::PodAffinity { key, domain } => json!({"type": "PodAffinity", "topologyKey": key, "domain": domain}),
        Detail::PodAntiAffinity { key, domain, pods } => {
            json!({"type": "PodAntiAffinity", "topologyKey": key, "domain": domain, "pods": pods})
        }
        Detail::ExistingAntiAffinity { key, domain, pods } => {
            json!({"type": "ExistingPodAntiAffinity", "topologyKey": key, "domain": domain, "pods": pods})
        }
        Detail::VolumeLimit {
            driver,
            attached,
            added,
            limit,
        } => json!({"type": "VolumeLimit", "driver": driver, "attached": attached, "added": added, "limit": limit}),
        Detail::Volume { volume, problem } => json!({"type": "Volume", "volume": volume, "problem": problem}),
        Detail::Feature { name } => json!({"type": "Feature", "name": name}),
    };
    value["text"] = text(detail).into();
    value
}
