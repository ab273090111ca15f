//! Which dead containers and sandboxes to remove. Pure.
//!
//! Upstream: pkg/kubelet/kuberuntime/kuberuntime_gc.go (v1.36).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use orlop_runtime::cri::messages::{Container, ContainerState, PodSandbox, PodSandboxState};

use crate::spec::labels::POD_UID;

/// State of the pod that a container or a log directory belongs to. Until all sources are ready, an
/// unknown pod counts as alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodState {
    Alive,
    /// It has terminated and its object still exists: containers are kept for their logs, unless disk space is needed.
    Ended,
    /// It is deleted.
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContainerPolicy {
    /// Dead containers to keep of each container of a pod; below 0: all.
    pub max_per_pod_container: i32,
    /// Dead containers to keep on the node; below 0: all.
    pub max_containers: i32,
    pub min_age: Duration,
}

impl Default for ContainerPolicy {
    fn default() -> ContainerPolicy {
        ContainerPolicy {
            max_per_pod_container: 1,
            max_containers: -1,
            min_age: Duration::ZERO,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Removal {
    pub id: String,
    /// The runtime does not know whether it runs.
    pub stop_first: bool,
}

/// A dead container; sorts by its age, the oldest first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Dead {
    created: i64,
    removal: Removal,
}

/// The containers to remove. `make_room`: also those of pods that have ended.
pub fn plan_containers(
    containers: &[Container],
    policy: &ContainerPolicy,
    make_room: bool,
    state: impl Fn(&str) -> PodState,
    now: Timestamp,
) -> Vec<Removal> {
    let newest = now.as_nanosecond() - policy.min_age.as_nanos() as i128;
    let mut units: BTreeMap<(&str, &str), Vec<Dead>> = BTreeMap::new();
    for container in containers {
        // What carries no pod's label is not ours.
        let Some(uid) = container.labels.get(POD_UID) else {
            continue;
        };
        if container.state == ContainerState::Running as i32 || i128::from(container.created_at) > newest {
            continue;
        }
        let name = container.metadata.as_ref().map_or("", |metadata| &metadata.name);
        units.entry((uid, name)).or_default().push(Dead {
            created: container.created_at,
            removal: Removal {
                id: container.id.clone(),
                stop_first: container.state == ContainerState::Unknown as i32,
            },
        });
    }
    let mut removals = Vec::new();
    units.retain(|(uid, _), unit| {
        unit.sort();
        let over = match state(uid) {
            PodState::Gone => true,
            PodState::Ended => make_room,
            PodState::Alive => false,
        };
        if over {
            remove_oldest(unit, 0, &mut removals);
        }
        !over
    });
    if let Ok(keep) = usize::try_from(policy.max_per_pod_container) {
        units
            .values_mut()
            .for_each(|unit| remove_oldest(unit, keep, &mut removals));
    }
    if let Ok(most) = usize::try_from(policy.max_containers) {
        enforce_total(units.into_values().collect(), most, &mut removals);
    }
    removals
}

/// The same number of each container, at least one, and then the oldest.
fn enforce_total(mut units: Vec<Vec<Dead>>, most: usize, removals: &mut Vec<Removal>) {
    let total: usize = units.iter().map(Vec::len).sum();
    if total <= most {
        return;
    }
    let each = (most / units.len()).max(1);
    units.iter_mut().for_each(|unit| remove_oldest(unit, each, removals));
    let mut left: Vec<Dead> = units.into_iter().flatten().collect();
    left.sort();
    remove_oldest(&mut left, most, removals);
}

fn remove_oldest(sorted: &mut Vec<Dead>, keep: usize, removals: &mut Vec<Removal>) {
    let excess = sorted.len().saturating_sub(keep);
    removals.extend(sorted.drain(..excess).map(|dead| dead.removal));
}

/// The sandboxes to remove: not ready, without containers, of a pod that is gone or not its newest.
pub fn plan_sandboxes(
    sandboxes: &[PodSandbox],
    containers: &[Container],
    make_room: bool,
    state: impl Fn(&str) -> PodState,
) -> Vec<String> {
    let used: BTreeSet<&str> = containers.iter().map(|c| c.pod_sandbox_id.as_str()).collect();
    let mut pods: BTreeMap<&str, Vec<&PodSandbox>> = BTreeMap::new();
    for sandbox in sandboxes {
        if let Some(metadata) = &sandbox.metadata {
            pods.entry(&metadata.uid).or_default().push(sandbox);
        }
    }
    let mut removals = Vec::new();
    for (uid, mut sandboxes) in pods {
        sandboxes.sort_by_key(|sandbox| sandbox.created_at);
        let keep = match state(uid) {
            PodState::Gone => 0,
            PodState::Ended => usize::from(!make_room),
            PodState::Alive => 1,
        };
        let candidates = &sandboxes[..sandboxes.len().saturating_sub(keep)];
        let idle = candidates
            .iter()
            .filter(|s| s.state != PodSandboxState::Ready as i32 && !used.contains(s.id.as_str()));
        removals.extend(idle.map(|sandbox| sandbox.id.clone()));
    }
    removals
}

#[cfg(test)]
mod tests {
    use super::*;
    use orlop_runtime::cri::messages::{ContainerMetadata, PodSandboxMetadata};
    use proptest::prelude::*;

    /// `id pod container state age`: age in minutes; state r(unning), d(ead), u(nknown).
    fn container(text: &str) -> Container {
        let part: Vec<&str> = text.split(' ').collect();
        let state = match part[3] {
            "r" => ContainerState::Running,
            "u" => ContainerState::Unknown,
            _ => ContainerState::Exited,
        };
        Container {
            id: part[0].to_string(),
            pod_sandbox_id: format!("s-{}", part[1]),
            metadata: Some(ContainerMetadata {
                name: part[2].to_string(),
                attempt: 0,
            }),
            labels: [(POD_UID.to_string(), part[1].to_string())].into(),
            state: state as i32,
            created_at: (now().as_nanosecond() as i64) - part[4].parse::<i64>().unwrap() * 60_000_000_000,
            ..Container::default()
        }
    }

    fn now() -> Timestamp {
        "2026-01-02T03:04:05Z".parse().unwrap()
    }

    fn state(uid: &str) -> PodState {
        match uid.as_bytes()[0] {
            b'g' => PodState::Gone,
            b'e' => PodState::Ended,
            _ => PodState::Alive,
        }
    }

    #[test]
    fn dead_containers_beyond_what_is_kept_go() {
        let policy = |per, most, minutes: u64| ContainerPolicy {
            max_per_pod_container: per,
            max_containers: most,
            min_age: Duration::from_secs(minutes * 60),
        };
        for (containers, policy, make_room, want) in [
            (
                &["a p c d 3", "b p c d 2", "c p c d 1", "r p c r 0"][..],
                policy(1, -1, 0),
                false,
                "a b",
            ),
            (&["a p c d 3", "b p x d 2"], policy(1, -1, 0), false, ""),
            (&["a p c d 3", "b p c d 2"], policy(0, -1, 0), false, "a b"),
            (&["a p c d 3", "b p c d 2"], policy(-1, -1, 0), false, ""),
            (&["a g c d 3", "b g c d 0", "r g c r 5"], policy(1, -1, 0), false, "a b"),
            (&["a g c d 3", "b g c d 0"], policy(1, -1, 2), false, "a"),
            (&["a e c d 3", "b e c d 2"], policy(1, -1, 0), false, "a"),
            (&["a e c d 3", "b e c d 2"], policy(1, -1, 0), true, "a b"),
            (&["a p c u 3"], policy(0, -1, 0), false, "a!"),
            // One of each.
            (
                &[
                    "a p c d 9",
                    "b p c d 8",
                    "c p c d 7",
                    "d q c d 3",
                    "e q c d 2",
                    "f r c d 6",
                ],
                policy(5, 4, 0),
                false,
                "a b d",
            ),
            // Then the oldest of all.
            (&["a p c d 9", "b q c d 8", "c r c d 7"], policy(5, 2, 0), false, "a"),
        ] {
            let containers: Vec<Container> = containers.iter().map(|text| container(text)).collect();
            let plan = plan_containers(&containers, &policy, make_room, state, now());
            let shown: Vec<String> = plan
                .iter()
                .map(|r| format!("{}{}", r.id, if r.stop_first { "!" } else { "" }))
                .collect();
            assert_eq!(shown.join(" "), want, "{containers:?} {policy:?}");
        }
    }

    #[test]
    fn others_containers_stay() {
        let mut other = container("a g c d 3");
        other.labels.clear();
        assert!(plan_containers(&[other], &ContainerPolicy::default(), true, state, now()).is_empty());
    }

    #[test]
    fn sandboxes_that_nobody_needs_go() {
        let sandbox = |id: &str, uid: &str, ready: bool, created: i64| PodSandbox {
            id: id.to_string(),
            metadata: Some(PodSandboxMetadata {
                uid: uid.to_string(),
                ..PodSandboxMetadata::default()
            }),
            state: i32::from(!ready),
            created_at: created,
            ..PodSandbox::default()
        };
        let sandboxes = [
            sandbox("old", "p", false, 1),
            sandbox("new", "p", false, 2),
            sandbox("s-q", "q", false, 1),
            sandbox("newer", "q", true, 2),
            sandbox("gone", "g", false, 1),
            sandbox("gone-ready", "g", true, 2),
            sandbox("ended", "e", false, 1),
        ];
        let containers = [container("a q c d 1")];
        assert_eq!(plan_sandboxes(&sandboxes, &containers, false, state), ["gone", "old"]);
        assert_eq!(
            plan_sandboxes(&sandboxes, &containers, true, state),
            ["ended", "gone", "old"]
        );
    }

    proptest! {
        /// Never what runs, never the last dead one of a living pod under the default policy, nothing twice.
        #[test]
        fn safe(all in proptest::collection::vec(("[pqge]", "[cd]", "[rdu]", 0u8..9), 0..30), most in -1i32..10) {
            let containers: Vec<Container> = all
                .iter()
                .enumerate()
                .map(|(i, (pod, name, state, age))| container(&format!("{i} {pod} {name} {state} {age}")))
                .collect();
            let policy = ContainerPolicy { max_containers: most, ..ContainerPolicy::default() };
            let plan = plan_containers(&containers, &policy, false, state, now());
            let ids: BTreeSet<&str> = plan.iter().map(|r| r.id.as_str()).collect();
            prop_assert_eq!(ids.len(), plan.len());
            let mut left = BTreeMap::new();
            for c in &containers {
                let removed = ids.contains(c.id.as_str());
                prop_assert!(!removed || c.state != ContainerState::Running as i32);
                if c.state != ContainerState::Running as i32 && !removed {
                    *left.entry((c.labels[POD_UID].clone(), c.metadata.clone().unwrap().name)).or_insert(0) += 1;
                }
            }
            prop_assert!(left.values().all(|n| *n <= 1));
            if most >= 0 {
                prop_assert!(left.len() <= most as usize);
            } else {
                let dead: BTreeSet<_> = all.iter().filter(|(p, _, s, _)| s != "r" && p != "g").map(|(p, n, ..)| (p, n)).collect();
                prop_assert_eq!(left.len(), dead.len());
            }
        }
    }
}
