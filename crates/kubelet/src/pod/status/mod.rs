//! The status of a pod, from the same observation that its next steps come from.
//!
//! The status made last is an input as well: it keeps start and transition times, restart counts of containers that the
//! runtime has forgotten, and makes phases go one way only. What the kubelet does not own (claims, conditions of others)
//! is carried over from the pod.

mod conditions;
mod containers;
mod phase;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use orlop_api::types::core::{ContainerStateTerminated, HostIP, Pod, PodIP, PodStatus, ResourceRequirements};
use orlop_api::types::meta::Quantity;
use orlop_api::types::meta::Time;

use orlop_api::resources::{ResourceList, pod_limits, pod_requests};

use super::observed::{ObservedPod, ObservedState};
use super::policy::{self, Kind};
use super::resize::{self, Applied};
use super::worker_state::WorkerState;

pub use conditions::is_own as is_own_condition;
use containers::Statuses;

/// Containers that have ended since the status was another.
pub fn newly_ended<'a>(
    old: &PodStatus,
    new: &'a PodStatus,
) -> impl Iterator<Item = (Kind, &'a ContainerStateTerminated)> + use<'a> {
    let known: BTreeSet<String> = ends(old).filter_map(|(_, ended)| ended.container_id.clone()).collect();
    ends(new).filter(move |(_, ended)| ended.container_id.as_ref().is_some_and(|id| !known.contains(id)))
}

/// How long init containers took that are to end.
pub fn spent_on_init(status: &PodStatus) -> Duration {
    let took = |ended: &ContainerStateTerminated| {
        let (from, to) = (ended.started_at.as_ref()?.0, ended.finished_at.as_ref()?.0);
        Duration::try_from(to.duration_since(from)).ok()
    };
    let init = ends(status).filter(|(kind, _)| *kind == Kind::Init);
    init.filter_map(|(_, ended)| took(ended)).sum()
}

fn ends(status: &PodStatus) -> impl Iterator<Item = (Kind, &ContainerStateTerminated)> {
    let lists = [
        (Kind::Init, &status.init_container_statuses),
        (Kind::Regular, &status.container_statuses),
        (Kind::Ephemeral, &status.ephemeral_container_statuses),
    ];
    lists.into_iter().flat_map(|(kind, list)| {
        let ended = list
            .iter()
            .flatten()
            .filter_map(|c| c.state.as_ref()?.terminated.as_ref());
        ended.map(move |ended| (kind, ended))
    })
}

/// What a status says of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// The primary address first.
    pub ips: Vec<String>,
    /// What container ids begin with: `containerd`.
    pub runtime_name: String,
    pub recursive_read_only: bool,
}

/// The status for the API server.
pub fn pod_status(pod: &Pod, observed: &ObservedPod, memory: &WorkerState, host: &Host, now: Timestamp) -> PodStatus {
    let old = &memory.status;
    let api = pod.status.as_ref();
    let statuses = containers::statuses(pod, observed, memory, host);
    let (mut phase, mut reason, mut message) = told_phase(pod, observed, memory, &statuses);
    if policy::is_terminal(&phase) && !is_over(observed, memory) {
        // What the pod holds may be given to others once it is seen as over: not while anything of it runs.
        let before = old.phase.clone().unwrap_or_default();
        phase = if before.is_empty() { "Pending".into() } else { before };
        (reason, message) = (old.reason.clone(), old.message.clone());
    }
    let mut status = PodStatus {
        phase: Some(phase),
        reason,
        message,
        qos_class: old.qos_class.clone(),
        start_time: Some(old.start_time.clone().unwrap_or(Time(whole_seconds(now)))),
        observed_generation: pod.metadata.generation.max(old.observed_generation),
        nominated_node_name: api.and_then(|s| s.nominated_node_name.clone()),
        resource_claim_statuses: api.and_then(|s| s.resource_claim_statuses.clone()),
        extended_resource_claim_status: api.and_then(|s| s.extended_resource_claim_status.clone()),
        node_allocatable_resource_claim_statuses: api.and_then(|s| s.node_allocatable_resource_claim_statuses.clone()),
        ..Default::default()
    };
    if memory.rejected {
        status.conditions = some(conditions::of_others(pod));
        return status;
    }
    totals(&mut status, pod, memory);
    addresses(&mut status, pod, observed, memory, host);
    status.container_statuses = some(statuses.regular);
    status.init_container_statuses = some(statuses.init);
    status.ephemeral_container_statuses = some(statuses.ephemeral);
    if memory.freed && memory.ending.is_some() {
        containers::finalize(pod, &mut status);
    }
    containers::cut_messages(pod, &mut status);
    status.conditions = some(conditions::conditions(pod, observed, memory, &status, now));
    status
}

/// Kubernetes writes times in whole seconds; comparing a status with the one it became needs the same.
pub fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

fn some<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

/// The phase as the containers have it, before anything has been stopped.
pub fn current_phase(pod: &Pod, observed: &ObservedPod, memory: &WorkerState) -> String {
    let statuses = containers::statuses(pod, observed, memory, &Host::default());
    told_phase(pod, observed, memory, &statuses).0
}

/// Phase, reason and message.
fn told_phase(
    pod: &Pod,
    observed: &ObservedPod,
    memory: &WorkerState,
    statuses: &Statuses,
) -> (String, Option<String>, Option<String>) {
    let old = &memory.status;
    let api = pod.status.as_ref();
    if let Some((reason, message)) = memory.ending.as_ref().and_then(|e| e.failed.clone()) {
        return ("Failed".into(), Some(reason), Some(message));
    }
    let ended = memory.ending.is_some() && observed.running().next().is_none();
    let initialized = observed
        .containers
        .iter()
        .any(|c| observed.in_active_sandbox(c) && policy::regular_containers(pod).iter().any(|r| r.name == c.name));
    let mut phase = phase::phase(pod, statuses, ended, initialized).to_string();
    let known = [old.phase.as_deref(), api.and_then(|s| s.phase.as_deref())];
    if let Some(terminal) = known.into_iter().flatten().find(|phase| policy::is_terminal(phase)) {
        phase = terminal.to_string();
    }
    if memory.freed && memory.ending.is_some() && !policy::is_terminal(&phase) && !policy::is_static(pod) {
        phase = "Failed".into();
    }
    if old.phase.as_deref() == Some(phase.as_str()) {
        // Reason and message belong to the phase.
        let reason = old.reason.clone().or_else(|| api.and_then(|s| s.reason.clone()));
        let message = old.message.clone().or_else(|| api.and_then(|s| s.message.clone()));
        return (phase, reason, message);
    }
    (phase, None, None)
}

/// Nothing of the pod runs and nothing will: its sandboxes are stopped.
fn is_over(observed: &ObservedPod, memory: &WorkerState) -> bool {
    let told = policy::is_terminal(memory.status.phase.as_deref().unwrap_or_default());
    let stopped = observed
        .sandboxes
        .iter()
        .all(|s| !s.ready || memory.stopped_sandboxes.contains(&s.id));
    told || (memory.ending.is_some() && stopped && observed.running().next().is_none())
}

/// Whether all containers are being removed to start over. Once begun it goes on until none is left.
pub fn restarting_all(pod: &Pod, observed: &ObservedPod, old: &PodStatus) -> bool {
    policy::could_restart_all(pod) && wants_restart_of_all(pod, observed, old) && {
        let all = policy::init_containers(pod)
            .iter()
            .chain(policy::regular_containers(pod));
        all.into_iter().any(|c| observed.latest(&c.name).is_some())
    }
}

fn wants_restart_of_all(pod: &Pod, observed: &ObservedPod, old: &PodStatus) -> bool {
    let begun = old
        .conditions
        .iter()
        .flatten()
        .any(|c| c.type_ == "AllContainersRestarting" && c.status == "True");
    let lists = [&old.init_container_statuses, &old.container_statuses];
    let told = |name: &str| {
        let mut all = lists.iter().flat_map(|list| list.iter().flatten());
        let status = all.find(|s| s.name == name)?;
        status.state.as_ref()?.terminated.as_ref().map(|t| t.exit_code)
    };
    let all = policy::init_containers(pod)
        .iter()
        .chain(policy::regular_containers(pod));
    begun
        || all.into_iter().any(|c| {
            let Some(seen) = observed
                .latest(&c.name)
                .filter(|seen| seen.state == ObservedState::Exited)
            else {
                return false;
            };
            policy::restarts_all(c, seen.exit_code) || told(&c.name).is_some_and(|code| policy::restarts_all(c, code))
        })
}

/// What follows from the spec's resources: class, what is allocated in all, and what the pod as a whole has.
fn totals(status: &mut PodStatus, pod: &Pod, memory: &WorkerState) {
    let spec = Pod {
        spec: pod.spec.clone(),
        ..Default::default()
    };
    let spec = orlop_api::types::to_value(&spec);
    let class = || orlop_api::resources::qos_class(&spec).to_string();
    status.qos_class = status.qos_class.take().or_else(|| Some(class()));
    let list = |amounts: ResourceList| {
        let amounts = amounts.into_iter();
        let amounts = amounts.map(|(name, amount)| (name, Quantity(amount.canonical())));
        Some(amounts.collect()).filter(|amounts: &BTreeMap<_, _>| !amounts.is_empty())
    };
    status.allocated_resources = list(pod_requests(&spec, Default::default()));
    let own = policy::spec(pod).resources.as_ref();
    let whole = ResourceRequirements {
        requests: status.allocated_resources.clone(),
        limits: list(pod_limits(&spec, Default::default())),
        ..own.cloned().unwrap_or_default()
    };
    let applied = memory.applied_to_pod.filter(|applied| *applied != Applied::of_pod(pod));
    status.resources = match (own, applied) {
        // A resize of the pod as a whole is under way.
        (Some(own), Some(applied)) => Some(resize::told(own.clone(), &applied)),
        _ => Some(whole).filter(|whole| whole.requests.is_some() || whole.limits.is_some()),
    };
}

fn addresses(status: &mut PodStatus, pod: &Pod, observed: &ObservedPod, memory: &WorkerState, host: &Host) {
    let seen = if observed.ips().is_empty() {
        &memory.ips
    } else {
        observed.ips()
    };
    let is_v6 = |ip: &str| ip.contains(':');
    let primary_v6 = host.ips.first().is_some_and(|ip| is_v6(ip));
    let first = |v6: bool| seen.iter().find(|ip| is_v6(ip) == v6);
    let mut ips: Vec<&String> = [first(primary_v6), first(!primary_v6)].into_iter().flatten().collect();
    status.host_ip = host.ips.first().cloned();
    status.host_ips = some(host.ips.iter().take(2).map(|ip| HostIP { ip: ip.clone() }).collect());
    if policy::is_host_network(pod) && ips.is_empty() {
        ips = host.ips.iter().take(2).collect();
    }
    status.pod_ip = ips.first().map(|ip| ip.to_string());
    status.pod_ips = some(ips.into_iter().map(|ip| PodIP { ip: ip.clone() }).collect());
}
