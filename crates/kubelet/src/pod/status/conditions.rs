//! The pod conditions that the kubelet owns, beside those of others.

use jiff::Timestamp;
use orlop_api::types::core::{ContainerStatus, Pod, PodCondition, PodStatus};
use orlop_api::types::meta::Time;

use super::{restarting_all, whole_seconds};
use crate::pod::observed::ObservedPod;
use crate::pod::resize::Pending;
use crate::pod::worker_state::WorkerState;
use crate::pod::{policy, steps};

/// Whether the kubelet alone writes conditions of this type.
pub fn is_own(type_: &str) -> bool {
    const OWN: [&str; 8] = [
        "PodScheduled",
        "Ready",
        "Initialized",
        "ContainersReady",
        "PodResizeInProgress",
        "PodResizePending",
        "PodReadyToStartContainers",
        "AllContainersRestarting",
    ];
    OWN.contains(&type_)
}

pub(super) fn of_others(pod: &Pod) -> Vec<PodCondition> {
    let all = pod.status.as_ref().and_then(|s| s.conditions.as_deref());
    let all = all.unwrap_or_default().iter();
    all.filter(|c| !is_own(&c.type_)).cloned().collect()
}

/// Status, reason and message of a condition.
type Verdict = (bool, Option<&'static str>, Option<String>);

pub(super) fn conditions(
    pod: &Pod,
    observed: &ObservedPod,
    memory: &WorkerState,
    status: &PodStatus,
    now: Timestamp,
) -> Vec<PodCondition> {
    let old = memory.status.conditions.as_deref().unwrap_or_default();
    let mut list = of_others(pod);
    let generation = pod.metadata.generation.filter(|g| *g > 0);
    let make = |type_: &str, (yes, reason, message): Verdict| {
        let status = if yes { "True" } else { "False" };
        PodCondition {
            type_: type_.into(),
            status: status.into(),
            reason: reason.map(String::from),
            message,
            observed_generation: generation,
            last_transition_time: Some(since(old, type_, status, now)),
            ..Default::default()
        }
    };
    let terminal = policy::is_terminal(status.phase.as_deref().unwrap_or_default());
    if !terminal {
        let pending = [
            ("PodResizePending", &memory.resize_pending),
            ("PodResizeInProgress", &memory.resize_in_progress),
        ];
        list.extend(
            pending
                .into_iter()
                .filter_map(|(type_, pending)| Some(resize(old, type_, pending.as_ref()?, now))),
        );
    }
    // Told together with the phase, not before.
    if terminal && let Some(target) = memory.requests.evict.as_ref().and_then(|e| e.condition.clone()) {
        let time = since(old, &target.type_, &target.status, now);
        list.retain(|c| c.type_ != target.type_);
        list.push(PodCondition {
            last_transition_time: Some(time),
            observed_generation: generation,
            ..target
        });
    }
    let network = !steps::sandbox_needed(pod, observed).0;
    list.push(make("PodReadyToStartContainers", (network, None, None)));
    list.push(make("Initialized", initialized(pod, old, status)));
    let containers = containers_ready(pod, status);
    let ready = if containers.0 {
        gates_ready(pod, &list)
    } else {
        containers.clone()
    };
    list.push(make("Ready", ready));
    list.push(make("ContainersReady", containers));
    list.push(make("PodScheduled", (true, None, None)));
    if policy::could_restart_all(pod) {
        list.push(make(
            "AllContainersRestarting",
            all_restarting(pod, observed, memory, status),
        ));
    }
    list
}

fn since(old: &[PodCondition], type_: &str, status: &str, now: Timestamp) -> Time {
    let before = old.iter().find(|c| c.type_ == type_ && c.status == status);
    before
        .and_then(|c| c.last_transition_time.clone())
        .unwrap_or(Time(whole_seconds(now)))
}

fn resize(old: &[PodCondition], type_: &str, pending: &Pending, now: Timestamp) -> PodCondition {
    let told = |text: &str| (!text.is_empty()).then(|| text.to_string());
    // Another reason is another state.
    let same: Vec<PodCondition> = old
        .iter()
        .filter(|c| c.reason == told(&pending.reason))
        .cloned()
        .collect();
    PodCondition {
        type_: type_.into(),
        status: "True".into(),
        reason: told(&pending.reason),
        message: told(&pending.message),
        observed_generation: Some(pending.generation).filter(|g| *g > 0),
        last_transition_time: Some(since(&same, type_, "True", now)),
        ..Default::default()
    }
}

fn find<'a>(list: &'a Option<Vec<ContainerStatus>>, name: &str) -> Option<&'a ContainerStatus> {
    list.iter().flatten().find(|s| s.name == name)
}

/// As Go prints a list of words.
fn words(names: &[&str]) -> String {
    format!("[{}]", names.join(" "))
}

fn explained(unknown: &[&str], kind: &str, others: &[&str]) -> Option<String> {
    let mut parts = Vec::new();
    if !unknown.is_empty() {
        parts.push(format!("containers with unknown status: {}", words(unknown)));
    }
    if !others.is_empty() {
        parts.push(format!("containers with {kind} status: {}", words(others)));
    }
    (!parts.is_empty()).then(|| parts.join(", "))
}

fn containers_ready(pod: &Pod, status: &PodStatus) -> Verdict {
    let (mut unknown, mut unready) = (vec![], vec![]);
    let sidecars = policy::init_containers(pod).iter().filter(|c| policy::is_sidecar(c));
    let all = sidecars.map(|c| (c, &status.init_container_statuses));
    let all = all.chain(
        policy::regular_containers(pod)
            .iter()
            .map(|c| (c, &status.container_statuses)),
    );
    for (container, statuses) in all {
        match find(statuses, &container.name) {
            Some(status) if status.ready => {}
            Some(_) => unready.push(container.name.as_str()),
            None => unknown.push(container.name.as_str()),
        }
    }
    match status.phase.as_deref() {
        Some("Succeeded") if unknown.is_empty() => return (false, Some("PodCompleted"), None),
        Some("Failed") => return (false, Some("PodFailed"), None),
        _ => {}
    }
    match explained(&unknown, "unready", &unready) {
        Some(message) => (false, Some("ContainersNotReady"), Some(message)),
        None => (true, None, None),
    }
}

fn gates_ready(pod: &Pod, conditions: &[PodCondition]) -> Verdict {
    let gates = policy::spec(pod).readiness_gates.as_deref().unwrap_or_default();
    let unmet = gates.iter().filter_map(|gate| {
        let type_ = &gate.condition_type;
        match conditions.iter().find(|c| c.type_ == *type_) {
            None => Some(format!(
                "corresponding condition of pod readiness gate {type_:?} does not exist."
            )),
            Some(c) if c.status == "True" => None,
            Some(c) => Some(format!(
                "the status of pod readiness gate {type_:?} is not \"True\", but {}",
                c.status
            )),
        }
    });
    let unmet: Vec<String> = unmet.collect();
    match unmet.is_empty() {
        true => (true, None, None),
        false => (false, Some("ReadinessGatesNotReady"), Some(unmet.join(", "))),
    }
}

fn initialized(pod: &Pod, old: &[PodCondition], status: &PodStatus) -> Verdict {
    let (mut unknown, mut incomplete) = (vec![], vec![]);
    for container in policy::init_containers(pod) {
        let done = |status: &ContainerStatus| match policy::is_sidecar(container) {
            true => status.started == Some(true),
            false => status.ready,
        };
        match find(&status.init_container_statuses, &container.name) {
            Some(status) if done(status) => {}
            Some(_) => incomplete.push(container.name.as_str()),
            None => unknown.push(container.name.as_str()),
        }
    }
    if status.phase.as_deref() == Some("Succeeded") && unknown.is_empty() {
        return (true, Some("PodCompleted"), None);
    }
    let started = |status: &ContainerStatus| {
        let state = status.state.as_ref();
        state.is_some_and(|s| s.running.is_some() || s.terminated.is_some())
    };
    if status.container_statuses.iter().flatten().any(started) {
        return (true, None, None);
    }
    // Once initialized, a pod stays so while its containers start over.
    let before = old.iter().any(|c| c.type_ == "Initialized" && c.status == "True");
    match explained(&unknown, "incomplete", &incomplete) {
        Some(message) if !before => (false, Some("ContainersNotInitialized"), Some(message)),
        _ => (true, None, None),
    }
}

fn all_restarting(pod: &Pod, observed: &ObservedPod, memory: &WorkerState, status: &PodStatus) -> Verdict {
    match status.phase.as_deref() {
        Some("Succeeded") => (false, Some("PodCompleted"), None),
        Some("Failed") => (false, Some("PodFailed"), None),
        _ if restarting_all(pod, observed, &memory.status) => {
            let message = "container exited with restart policy rule".to_string();
            (true, Some("RestartAllContainersStarted"), Some(message))
        }
        _ => (false, None, None),
    }
}
