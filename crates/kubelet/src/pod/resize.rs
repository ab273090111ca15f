//! Changing cpu and memory of containers that run.
//!
//! A pod's spec says what is desired. The node first *allocates* it, if there is room for it; what does not fit stays
//! pending, and the pod goes on with what it was allocated before. Then what is allocated is *applied*: to the pod's
//! cgroup and to the containers, or by starting a container again where its policy says so.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::policy;

/// Cpu and memory of a container: what can be changed while it runs. Zero is "none".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    pub cpu_request_milli: i64,
    pub cpu_limit_milli: i64,
    pub memory_request: i64,
    pub memory_limit: i64,
}

/// A resize that waits or is under way: reason and message of its condition, and of which generation of the pod it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pending {
    pub reason: String,
    pub message: String,
    pub generation: i64,
}

/// By container name; init and regular containers.
pub type Allocation = BTreeMap<String, ResourceRequirements>;

type Amounts = BTreeMap<String, Quantity>;

pub fn milli(amounts: Option<&Amounts>, name: &str) -> i64 {
    parsed(amounts, name).map_or(0, |q| q.milli_value())
}

pub fn whole(amounts: Option<&Amounts>, name: &str) -> i64 {
    parsed(amounts, name).map_or(0, |q| q.value())
}

fn parsed(amounts: Option<&Amounts>, name: &str) -> Option<orlop_api::quantity::Quantity> {
    orlop_api::quantity::Quantity::parse(&amounts?.get(name)?.0).ok()
}

impl Applied {
    pub fn of(resources: Option<&ResourceRequirements>) -> Applied {
        let requests = resources.and_then(|r| r.requests.as_ref());
        let limits = resources.and_then(|r| r.limits.as_ref());
        Applied {
            cpu_request_milli: milli(requests, "cpu"),
            cpu_limit_milli: milli(limits, "cpu"),
            memory_request: whole(requests, "memory"),
            memory_limit: whole(limits, "memory"),
        }
    }

    pub fn cpu_differs(&self, other: &Applied) -> bool {
        (self.cpu_request_milli, self.cpu_limit_milli) != (other.cpu_request_milli, other.cpu_limit_milli)
    }

    pub fn memory_differs(&self, other: &Applied) -> bool {
        (self.memory_request, self.memory_limit) != (other.memory_request, other.memory_limit)
    }
}

/// Whether a change of this resource starts the container again.
pub fn needs_restart(container: &Container, resource: &str) -> bool {
    let policies = container.resize_policy.as_deref().unwrap_or_default();
    policies
        .iter()
        .any(|p| p.resource_name == resource && p.restart_policy == "RestartContainer")
}

/// What a pod asks for.
pub fn allocation_of(pod: &Pod) -> Allocation {
    let all = policy::init_containers(pod)
        .iter()
        .chain(policy::regular_containers(pod));
    all.map(|c| (c.name.clone(), c.resources.clone().unwrap_or_default()))
        .collect()
}

/// What a pod that a former agent ran had been allocated, as its status tells; for all else what it asks for.
pub fn adopted(pod: &Pod) -> Allocation {
    let mut allocation = allocation_of(pod);
    let Some(status) = &pod.status else { return allocation };
    let lists = [&status.container_statuses, &status.init_container_statuses];
    for status in lists.into_iter().flatten().flatten() {
        if let (Some(entry), Some(resources)) = (allocation.get_mut(&status.name), &status.resources)
            && status.container_id.is_some()
        {
            for name in ["cpu", "memory"] {
                keep(&mut entry.requests, resources.requests.as_ref(), name);
                keep(&mut entry.limits, resources.limits.as_ref(), name);
            }
        }
    }
    allocation
}

/// A value is taken over only where it is another amount: `1` and `1000m` are one.
fn keep(entry: &mut Option<Amounts>, told: Option<&Amounts>, name: &str) {
    let amount = |amounts: Option<&Amounts>| parsed(amounts, name).map(|q| q.nanos());
    if amount(entry.as_ref()) == amount(told) {
        return;
    }
    match told.and_then(|t| t.get(name)) {
        Some(value) => {
            entry.get_or_insert_default().insert(name.to_string(), value.clone());
        }
        None => {
            if let Some(amounts) = entry {
                amounts.remove(name);
            }
        }
    }
}

/// The pod with what it was allocated in place of what it asks for.
pub fn with_allocation(pod: &Pod, allocation: &Allocation) -> Pod {
    let mut pod = pod.clone();
    if let Some(spec) = &mut pod.spec {
        let init = spec.init_containers.iter_mut().flatten();
        for container in spec.containers.iter_mut().chain(init) {
            if let Some(resources) = allocation.get(&container.name) {
                container.resources = Some(resources.clone());
            }
        }
    }
    pod
}

/// Whether a pod asks for other cpu or memory than it was allocated.
pub fn differs(pod: &Pod, allocation: &Allocation) -> bool {
    let all = policy::init_containers(pod)
        .iter()
        .chain(policy::regular_containers(pod));
    all.into_iter()
        .any(|c| Applied::of(c.resources.as_ref()) != Applied::of(allocation.get(&c.name)))
}

/// What a container of this pod that runs and is not in `applied` was given: the resources of its allocation.
pub fn in_progress(pod: &Pod, running: impl Fn(&str) -> bool, applied: &BTreeMap<String, Applied>) -> bool {
    let sidecars = policy::init_containers(pod).iter().filter(|c| policy::is_sidecar(c));
    let resizable = sidecars.chain(policy::regular_containers(pod));
    resizable.into_iter().any(|c| {
        let wanted = Applied::of(c.resources.as_ref());
        running(&c.name) && applied.get(&c.name).is_some_and(|applied| *applied != wanted)
    })
}

/// What events about a resize tell: the resources in JSON.
pub fn summary(pod: &Pod, generation: i64, error: &str) -> String {
    #[derive(serde::Serialize)]
    struct Entry<'a> {
        name: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        resources: Option<&'a ResourceRequirements>,
    }
    #[derive(serde::Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Summary<'a> {
        #[serde(skip_serializing_if = "Vec::is_empty")]
        init_containers: Vec<Entry<'a>>,
        containers: Vec<Entry<'a>>,
        generation: i64,
        #[serde(skip_serializing_if = "str::is_empty")]
        error: &'a str,
    }
    fn entries(list: &[Container]) -> Vec<Entry<'_>> {
        list.iter()
            .map(|c| Entry {
                name: &c.name,
                resources: c.resources.as_ref(),
            })
            .collect()
    }
    let summary = Summary {
        init_containers: entries(policy::init_containers(pod)),
        containers: entries(policy::regular_containers(pod)),
        generation,
        error,
    };
    serde_json::to_string(&summary).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::testing::pod;

    #[test]
    fn amounts_are_compared_not_texts() {
        let mut desired = pod("containers=a a.requests=cpu:1,memory:1Gi a.limits=cpu:2");
        let allocation = allocation_of(&desired);
        assert!(!differs(&desired, &allocation));
        let requests = |pod: &mut Pod, cpu: &str| {
            let resources = pod.spec.as_mut().unwrap().containers[0].resources.as_mut().unwrap();
            resources
                .requests
                .as_mut()
                .unwrap()
                .insert("cpu".into(), Quantity(cpu.into()));
        };
        requests(&mut desired, "1000m");
        assert!(!differs(&desired, &allocation));
        requests(&mut desired, "1500m");
        assert!(differs(&desired, &allocation));
        let effective = with_allocation(&desired, &allocation);
        assert!(!differs(&effective, &allocation));
    }

    #[test]
    fn a_new_agent_learns_the_allocation_from_the_status() {
        let mut desired = pod("containers=a a.requests=cpu:2");
        let status = serde_json::json!({"containerStatuses": [{
            "name": "a", "image": "", "imageID": "", "ready": true, "restartCount": 0, "containerID": "x://1",
            "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}},
        }]});
        desired.status = Some(crate::json::from_value(&status).unwrap());
        let applied = Applied::of(adopted(&desired).get("a"));
        assert_eq!((applied.cpu_request_milli, applied.memory_limit), (1000, 1 << 30));
    }

    #[test]
    fn the_summary_names_resources_generation_and_error() {
        let pod = pod("containers=a a.requests=cpu:2");
        let expected =
            r#"{"containers":[{"name":"a","resources":{"requests":{"cpu":"2"}}}],"generation":3,"error":"no"}"#;
        assert_eq!(summary(&pod, 3, "no"), expected);
    }
}
