//! In-place resize of CPU and memory.
//!
//! A pod's spec says what is desired. The node first *allocates* it, if it fits; otherwise the resize stays pending, and the
//! pod keeps what it was allocated before. Then what is allocated is *actuated*: applied to the pod's cgroup and to the
//! containers, or by restarting a container where its resize policy says so.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use orlop_api::quantity::{Format, Quantity as Amount};
use orlop_api::types::core::{Container, Pod, ResourceRequirements};
use orlop_api::types::meta::Quantity;

use super::policy;
use super::worker_state::WorkerState;
use crate::spec::resources::{QosClass, amount_of, pod_requests, qos_class};

/// Cpu and memory of a container, or of a pod as a whole: what can be changed while it runs. Zero is "none".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    pub cpu_request_milli: i64,
    pub cpu_limit_milli: i64,
    pub memory_request: i64,
    pub memory_limit: i64,
    /// The pod's limits, where the container has none of its own: they are set for it.
    pub inherited_cpu_milli: i64,
    pub inherited_memory: i64,
}

/// A resize that waits or is under way: reason and message of its condition, and of which generation of the pod it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pending {
    pub reason: String,
    pub message: String,
    pub generation: i64,
}

type Amounts = BTreeMap<String, Quantity>;

pub fn milli(amounts: Option<&Amounts>, name: &str) -> i64 {
    parsed(amounts, name).map_or(0, |q| q.milli_value())
}

pub fn whole(amounts: Option<&Amounts>, name: &str) -> i64 {
    parsed(amounts, name).map_or(0, |q| q.value())
}

fn parsed(amounts: Option<&Amounts>, name: &str) -> Option<Amount> {
    Amount::parse(&amounts?.get(name)?.0).ok()
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
            ..Applied::default()
        }
    }

    /// What a container of this pod is to have.
    pub fn in_pod(pod: &Pod, container: &Container) -> Applied {
        let (own, of_pod) = (Applied::of(container.resources.as_ref()), Applied::of_pod(pod));
        let inherited = |own: i64, of_pod: i64| if own == 0 { of_pod } else { 0 };
        Applied {
            inherited_cpu_milli: inherited(own.cpu_limit_milli, of_pod.cpu_limit_milli),
            inherited_memory: inherited(own.memory_limit, of_pod.memory_limit),
            ..own
        }
    }

    /// What the pod itself says, beside its containers.
    pub fn of_pod(pod: &Pod) -> Applied {
        Applied::of(policy::spec(pod).resources.as_ref())
    }

    /// The limits that hold, whoever set them.
    pub fn cpu_max_milli(&self) -> i64 {
        self.cpu_limit_milli.max(self.inherited_cpu_milli)
    }

    pub fn memory_max(&self) -> i64 {
        self.memory_limit.max(self.inherited_memory)
    }

    pub fn cpu_differs(&self, other: &Applied) -> bool {
        let cpu = |a: &Applied| (a.cpu_request_milli, a.cpu_limit_milli, a.inherited_cpu_milli);
        cpu(self) != cpu(other)
    }

    pub fn memory_differs(&self, other: &Applied) -> bool {
        let memory = |a: &Applied| (a.memory_request, a.memory_limit, a.inherited_memory);
        memory(self) != memory(other)
    }
}

/// Whether a change of this resource starts the container again.
pub fn needs_restart(container: &Container, resource: &str) -> bool {
    let policies = container.resize_policy.as_deref().unwrap_or_default();
    policies
        .iter()
        .any(|p| p.resource_name == resource && p.restart_policy == "RestartContainer")
}

/// The pod with what a former kubelet process had allocated to it, by its status.
pub fn adopted(pod: &Arc<Pod>) -> Arc<Pod> {
    let Some(status) = &pod.status else { return pod.clone() };
    let mut allocated = (**pod).clone();
    let Some(spec) = &mut allocated.spec else {
        return pod.clone();
    };
    let lists = [&status.container_statuses, &status.init_container_statuses];
    let statuses = || {
        lists
            .into_iter()
            .flatten()
            .flatten()
            .filter(|s| s.container_id.is_some())
    };
    let init = spec.init_containers.iter_mut().flatten();
    for container in spec.containers.iter_mut().chain(init) {
        let told = statuses().find(|status| status.name == container.name);
        if let Some(told) = told.and_then(|status| status.resources.as_ref()) {
            keep_all(container.resources.get_or_insert_default(), told, |_, _| true);
        }
    }
    if let (Some(own), Some(told)) = (&mut spec.resources, &status.resources)
        && statuses().next().is_some()
    {
        // The status sums up all: what the pod itself says nothing of is its containers'.
        keep_all(own, told, |own, name| {
            own.as_ref().is_some_and(|own| own.contains_key(name))
        });
    }
    match differs(pod, &allocated) {
        true => Arc::new(allocated),
        false => pod.clone(),
    }
}

fn keep_all(
    own: &mut ResourceRequirements,
    told: &ResourceRequirements,
    counts: impl Fn(&Option<Amounts>, &str) -> bool,
) {
    for name in ["cpu", "memory"] {
        for (own, told) in [(&mut own.requests, &told.requests), (&mut own.limits, &told.limits)] {
            if counts(own, name) {
                keep(own, told.as_ref(), name);
            }
        }
    }
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
pub fn with_allocation(pod: &Pod, allocated: &Pod) -> Pod {
    let mut pod = pod.clone();
    if let Some(spec) = &mut pod.spec {
        spec.resources = policy::spec(allocated).resources.clone();
        let init = spec.init_containers.iter_mut().flatten();
        for container in spec.containers.iter_mut().chain(init) {
            if let Some(allocated) = policy::container_named(allocated, &container.name) {
                container.resources = allocated.resources.clone();
            }
        }
    }
    pod
}

/// Whether a pod asks for other cpu or memory than it was allocated.
pub fn differs(pod: &Pod, allocated: &Pod) -> bool {
    let mut all = policy::init_containers(pod)
        .iter()
        .chain(policy::regular_containers(pod));
    let of = |pod: &Pod, name: &str| Applied::of(policy::container_named(pod, name).and_then(|c| c.resources.as_ref()));
    Applied::of_pod(pod) != Applied::of_pod(allocated)
        || all.any(|c| Applied::of(c.resources.as_ref()) != of(allocated, &c.name))
}

/// Whether something that runs has not yet got what it was allocated.
pub fn in_progress(pod: &Pod, running: impl Fn(&str) -> bool, memory: &WorkerState) -> bool {
    let mut all = policy::init_containers(pod)
        .iter()
        .chain(policy::regular_containers(pod));
    let of_pod = memory.applied_to_pod;
    of_pod.is_some_and(|applied| applied != Applied::of_pod(pod))
        || all.any(|c| {
            let applied = memory.applied.get(&c.name);
            running(&c.name) && applied.is_some_and(|applied| *applied != Applied::in_pod(pod, c))
        })
}

/// The order in which resizes that wait are tried again: those that ask for no more first, then by priority, class and
/// time.
pub fn order(pod: &Pod, allocated: &Pod, since: Timestamp) -> impl Ord + use<> {
    let requests = |pod: &Pod| {
        let all = pod_requests(pod, true);
        ["cpu", "memory"].map(|name| all.get(name).map_or(0, |q| amount_of(name, q)))
    };
    let (new, old) = (requests(pod), requests(allocated));
    let grows = new.iter().zip(old).any(|(new, old)| *new > old);
    let priority = policy::spec(pod).priority.unwrap_or(0);
    (grows, Reverse(priority), qos_class(pod) != QosClass::Guaranteed, since)
}

/// What was applied, as written in the spec where that is the same.
pub fn told(mut wanted: ResourceRequirements, applied: &Applied) -> ResourceRequirements {
    let now = Applied::of(Some(&wanted));
    let amounts = [
        (true, "cpu", now.cpu_request_milli, applied.cpu_request_milli),
        (true, "memory", now.memory_request, applied.memory_request),
        (false, "cpu", now.cpu_limit_milli, applied.cpu_limit_milli),
        (false, "memory", now.memory_limit, applied.memory_limit),
    ];
    for (is_request, name, wanted_amount, applied) in amounts {
        if wanted_amount == applied {
            continue;
        }
        let list = match is_request {
            true => &mut wanted.requests,
            false => &mut wanted.limits,
        };
        let list = list.get_or_insert_default();
        let amount = match name {
            "cpu" => Amount::from_milli(applied, Format::DecimalSI),
            _ => Amount::from_i64(applied, Format::BinarySI),
        };
        match applied {
            0 => list.remove(name),
            _ => list.insert(name.to_string(), Quantity(amount.canonical())),
        };
    }
    wanted
}

/// The message of events about a resize: the resources in JSON.
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

    fn set(pod: &mut Pod, cpu: &str) {
        let resources = pod.spec.as_mut().unwrap().containers[0].resources.as_mut().unwrap();
        resources
            .requests
            .as_mut()
            .unwrap()
            .insert("cpu".into(), Quantity(cpu.into()));
    }

    fn of_pod(pod: &mut Pod, resources: serde_json::Value) {
        pod.spec.as_mut().unwrap().resources = Some(orlop_api::types::from_value(resources).unwrap());
    }

    #[test]
    fn amounts_are_compared_not_texts() {
        let mut desired = pod("containers=a a.requests=cpu:1,memory:1Gi a.limits=cpu:2");
        let allocated = desired.clone();
        assert!(!differs(&desired, &allocated));
        set(&mut desired, "1000m");
        assert!(!differs(&desired, &allocated));
        set(&mut desired, "1500m");
        assert!(differs(&desired, &allocated));
        assert!(!differs(&with_allocation(&desired, &allocated), &allocated));
        let mut whole = allocated.clone();
        of_pod(&mut whole, serde_json::json!({"limits": {"memory": "2Gi"}}));
        assert!(differs(&whole, &allocated));
        assert!(!differs(&with_allocation(&whole, &allocated), &allocated));
        let container = &policy::regular_containers(&whole)[0];
        let applied = Applied::in_pod(&whole, container);
        assert_eq!(
            (applied.memory_max(), applied.memory_limit, applied.cpu_max_milli()),
            (2 << 30, 0, 2000)
        );
    }

    #[test]
    fn a_new_agent_learns_the_allocation_from_the_status() {
        let mut desired = pod("containers=a a.requests=cpu:2");
        of_pod(&mut desired, serde_json::json!({"requests": {"cpu": "4"}}));
        let status = serde_json::json!({
            "containerStatuses": [{
                "name": "a", "image": "", "imageID": "", "ready": true, "restartCount": 0, "containerID": "x://1",
                "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}},
            }],
            "resources": {"requests": {"cpu": "3"}},
        });
        desired.status = Some(orlop_api::types::from_value(status).unwrap());
        let allocated = adopted(&Arc::new(desired));
        let applied = Applied::of(policy::regular_containers(&allocated)[0].resources.as_ref());
        assert_eq!((applied.cpu_request_milli, applied.memory_limit), (1000, 1 << 30));
        assert_eq!(Applied::of_pod(&allocated).cpu_request_milli, 3000);
    }

    #[test]
    fn who_is_tried_first() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let with = |cpu: &str, priority: i32, class: &str| {
            let mut pod = pod("containers=a a.requests=cpu:2");
            set(&mut pod, cpu);
            pod.spec.as_mut().unwrap().priority = Some(priority);
            pod.status.get_or_insert_default().qos_class = Some(class.into());
            pod
        };
        let all = [
            (with("3", 0, "Burstable"), at(5)),
            (with("3", 0, "Burstable"), at(4)),
            (with("3", 0, "Guaranteed"), at(6)),
            (with("3", 9, "Burstable"), at(7)),
            (with("1", 0, "Burstable"), at(8)),
        ];
        let mut order: Vec<usize> = (0..all.len()).collect();
        order.sort_by_key(|i| super::order(&all[*i].0, &pod("containers=a a.requests=cpu:2"), all[*i].1));
        assert_eq!(order, [4, 3, 2, 1, 0]);
    }

    #[test]
    fn the_summary_names_resources_generation_and_error() {
        let pod = pod("containers=a a.requests=cpu:2");
        let expected =
            r#"{"containers":[{"name":"a","resources":{"requests":{"cpu":"2"}}}],"generation":3,"error":"no"}"#;
        assert_eq!(summary(&pod, 3, "no"), expected);
    }
}
