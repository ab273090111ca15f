//! The pod's phase, computed from the statuses of its containers.

use orlop_api::types::core::{Container, ContainerState, ContainerStatus, Pod};

use super::containers::{RESTARTING_ALL, Statuses};
use crate::pod::policy;

#[derive(Default)]
struct Counts {
    pending_init: usize,
    pending_sidecars: usize,
    init_failed_for_good: bool,
    unknown: usize,
    running: usize,
    waiting: usize,
    stopped: usize,
    stopped_for_good: usize,
    succeeded: usize,
}

/// `ended`: no container will start again, whatever the policies say. `initialized`: a regular container was created in
/// the sandbox there is now.
pub(super) fn phase(pod: &Pod, statuses: &Statuses, ended: bool, initialized: bool) -> &'static str {
    let counts = count(pod, statuses);
    if counts.init_failed_for_good {
        return "Failed";
    }
    if counts.pending_init > 0 || (counts.pending_sidecars > 0 && !initialized) || counts.waiting > 0 {
        return "Pending";
    }
    if counts.unknown > 0 {
        return "Pending";
    }
    if counts.running > 0 {
        return "Running";
    }
    if counts.stopped == 0 {
        return "Pending";
    }
    let over = if counts.stopped == counts.succeeded {
        "Succeeded"
    } else {
        "Failed"
    };
    if ended && !policy::is_static(pod) {
        return over;
    }
    if counts.stopped != counts.stopped_for_good {
        "Running"
    } else {
        over
    }
}

/// How a container that waits or has ended did end: exit code, and whether it does not start again.
fn end_of(pod: &Pod, container: &Container, state: Option<&ContainerState>) -> Option<(i32, bool)> {
    let end = state?.terminated.as_ref()?;
    let again =
        policy::restarts_after_exit(pod, container, end.exit_code) || end.reason.as_deref() == Some(RESTARTING_ALL);
    Some((end.exit_code, !again))
}

fn count(pod: &Pod, statuses: &Statuses) -> Counts {
    let mut counts = Counts::default();
    let find = |list: &'_ [ContainerStatus], name: &str| list.iter().find(|s| s.name == name).cloned();
    for container in policy::init_containers(pod) {
        let status = find(&statuses.init, &container.name);
        match policy::is_sidecar(container) {
            true => count_sidecar(&mut counts, status.as_ref()),
            false => count_init(&mut counts, pod, container, status.as_ref()),
        }
    }
    for container in policy::regular_containers(pod) {
        let status = find(&statuses.regular, &container.name);
        count_regular(&mut counts, pod, container, status.as_ref());
    }
    counts
}

fn count_init(counts: &mut Counts, pod: &Pod, container: &Container, status: Option<&ContainerStatus>) {
    let state = status.and_then(|s| s.state.as_ref());
    let waiting = state.is_some_and(|s| s.waiting.is_some());
    let end = end_of(pod, container, state).or_else(|| {
        let last = status.filter(|_| waiting).and_then(|s| s.last_state.as_ref());
        end_of(pod, container, last)
    });
    match end {
        Some((0, _)) => {}
        Some((_, for_good)) => counts.init_failed_for_good |= for_good,
        None => counts.pending_init += 1,
    }
}

/// A sidecar that has ended does not count: it says nothing about what the pod is for.
fn count_sidecar(counts: &mut Counts, status: Option<&ContainerStatus>) {
    let Some((status, state)) = status.and_then(|s| Some((s, s.state.as_ref()?))) else {
        return counts.unknown += 1;
    };
    if state.running.is_some() {
        counts.running += 1;
        counts.pending_sidecars += usize::from(status.started != Some(true));
    } else if state.waiting.is_some() {
        if status.last_state.as_ref().is_none_or(|s| s.terminated.is_none()) {
            counts.pending_sidecars += 1;
            counts.waiting += 1;
        }
    } else if state.terminated.is_none() {
        counts.pending_sidecars += 1;
        counts.unknown += 1;
    }
}

fn count_regular(counts: &mut Counts, pod: &Pod, container: &Container, status: Option<&ContainerStatus>) {
    let Some((status, state)) = status.and_then(|s| Some((s, s.state.as_ref()?))) else {
        return counts.unknown += 1;
    };
    if state.running.is_some() {
        return counts.running += 1;
    }
    let (end, in_state) = match end_of(pod, container, Some(state)) {
        Some(end) => (Some(end), true),
        None => (end_of(pod, container, status.last_state.as_ref()), false),
    };
    match end {
        Some((code, for_good)) => {
            counts.stopped += 1;
            counts.stopped_for_good += usize::from(for_good);
            counts.succeeded += usize::from(in_state && code == 0);
        }
        None if state.waiting.is_some() => counts.waiting += 1,
        None => counts.unknown += 1,
    }
}
