//! Short texts for pods and what the runtime shows of them.
//!
//! A pod: `restartPolicy=OnFailure init=i,s* containers=a,b ephemeral=e a.rule=In:42:Restart a.startup s.image=x`.
//! A star makes an init container a sidecar. What runs, newest first: `sandbox=ready a=running:5 b=exited:1@20-30#2`
//! (state, exit code, started and finished in seconds after [`epoch`], `#` restarts, `!` another image).

use std::time::Duration;

use jiff::Timestamp;
use orlop_api::types::core::{
    Container, ContainerResizePolicy, ContainerRestartRule, ContainerRestartRuleOnExitCodes, EphemeralContainer,
    Lifecycle, LifecycleHandler, Pod, PodReadinessGate, PodSpec, Probe, ResourceRequirements, SleepAction,
};
use orlop_api::types::meta::Quantity;
use orlop_api::types::meta::Time;
use orlop_base::clock::Shift;

use super::observed::{ObservedContainer, ObservedPod, ObservedSandbox, ObservedState};
use super::resize::Applied;
use super::worker_state::{Backoff, Ending, Eviction, Failure, Hook, Probed, Suspension, WorkerState};
use super::{policy, steps};

pub(super) fn epoch() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

pub(super) fn at(seconds: u64) -> Timestamp {
    epoch().later(Duration::from_secs(seconds))
}

pub(super) fn pod(text: &str) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.name = Some("p".into());
    pod.metadata.namespace = Some("ns".into());
    pod.metadata.uid = Some("uid".into());
    pod.metadata.generation = Some(1);
    let mut spec = PodSpec {
        restart_policy: Some("Always".into()),
        termination_grace_period_seconds: Some(30),
        ..Default::default()
    };
    let words: Vec<(&str, &str)> = text
        .split_whitespace()
        .map(|w| w.split_once('=').unwrap_or((w, "")))
        .collect();
    for (key, value) in &words {
        let names = value.split(',').filter(|n| !n.is_empty());
        match *key {
            "init" => spec.init_containers = Some(names.map(container).collect()),
            "containers" => spec.containers = names.map(container).collect(),
            "ephemeral" => spec.ephemeral_containers = Some(names.map(ephemeral).collect()),
            "restartPolicy" => spec.restart_policy = Some(value.to_string()),
            "grace" => spec.termination_grace_period_seconds = Some(value.parse().unwrap()),
            "deadline" => spec.active_deadline_seconds = Some(value.parse().unwrap()),
            "hostNetwork" => spec.host_network = Some(true),
            "gate" => {
                let gate = PodReadinessGate {
                    condition_type: value.to_string(),
                };
                spec.readiness_gates.get_or_insert_default().push(gate);
            }
            "deleted" => {
                pod.metadata.deletion_timestamp = Some(Time(epoch()));
                pod.metadata.deletion_grace_period_seconds = Some(value.parse().unwrap());
            }
            "static" => {
                let notes = pod.metadata.annotations.get_or_insert_default();
                notes.insert("kubernetes.io/config.source".into(), "file".into());
            }
            _ => {}
        }
    }
    for (key, value) in &words {
        if let Some((name, field)) = key.split_once('.') {
            let all = spec
                .containers
                .iter_mut()
                .chain(spec.init_containers.iter_mut().flatten());
            let container = all
                .into_iter()
                .find(|c| c.name == name)
                .expect("a container of that name");
            set(container, field, value);
        }
    }
    pod.spec = Some(spec);
    pod
}

fn container(name: &str) -> Container {
    let sidecar = name.ends_with('*');
    Container {
        name: name.trim_end_matches('*').to_string(),
        image: Some("image".into()),
        restart_policy: sidecar.then(|| "Always".to_string()),
        ..Default::default()
    }
}

fn ephemeral(name: &str) -> EphemeralContainer {
    EphemeralContainer {
        name: name.to_string(),
        image: Some("image".into()),
        ..Default::default()
    }
}

fn set(container: &mut Container, field: &str, value: &str) {
    let probe = || {
        let grace = (!value.is_empty()).then(|| value.parse().unwrap());
        Some(Probe {
            termination_grace_period_seconds: grace,
            ..Default::default()
        })
    };
    let amounts = || {
        let pairs = value.split(',').map(|pair| pair.split_once(':').unwrap());
        Some(
            pairs
                .map(|(name, amount)| (name.to_string(), Quantity(amount.to_string())))
                .collect(),
        )
    };
    match field {
        "restartPolicy" => container.restart_policy = Some(value.to_string()),
        "image" => container.image = Some(value.to_string()),
        "liveness" => container.liveness_probe = probe(),
        "readiness" => container.readiness_probe = probe(),
        "startup" => container.startup_probe = probe(),
        "requests" => {
            container
                .resources
                .get_or_insert_with(ResourceRequirements::default)
                .requests = amounts()
        }
        "limits" => {
            container
                .resources
                .get_or_insert_with(ResourceRequirements::default)
                .limits = amounts()
        }
        "preStop" => {
            let sleep = SleepAction {
                seconds: value.parse().unwrap(),
            };
            let handler = LifecycleHandler {
                sleep: Some(sleep),
                ..Default::default()
            };
            container.lifecycle = Some(Lifecycle {
                pre_stop: Some(handler),
                ..Default::default()
            });
        }
        "resize" => {
            let resize = ContainerResizePolicy {
                resource_name: value.to_string(),
                restart_policy: "RestartContainer".into(),
            };
            container.resize_policy.get_or_insert_default().push(resize);
        }
        "rule" => {
            let parts: Vec<&str> = value.split(':').collect();
            let exit_codes = ContainerRestartRuleOnExitCodes {
                operator: parts[0].to_string(),
                values: Some(parts[1].split('+').map(|c| c.parse().unwrap()).collect()),
            };
            let rule = ContainerRestartRule {
                action: parts[2].to_string(),
                exit_codes: Some(exit_codes),
            };
            container.restart_policy_rules.get_or_insert_default().push(rule);
        }
        other => panic!("no field {other}"),
    }
}

/// What the runtime shows; see the module.
pub(super) fn observed(pod: &Pod, text: &str) -> ObservedPod {
    let mut seen = ObservedPod::default();
    let words: Vec<&str> = text.split_whitespace().collect();
    for (age, word) in words.iter().enumerate() {
        let (name, value) = word.split_once('=').expect("name=state");
        // Later words are older.
        let created_at = epoch().earlier(Duration::from_secs(age as u64));
        if name == "sandbox" {
            let (state, attempt) = value.split_once('#').unwrap_or((value, "0"));
            seen.sandboxes.push(ObservedSandbox {
                id: format!("s{attempt}"),
                attempt: attempt.parse().unwrap(),
                ready: state == "ready",
                created_at,
                host_network: policy::is_host_network(pod),
                has_network: true,
                ips: if policy::is_host_network(pod) {
                    vec![]
                } else {
                    vec!["10.0.0.1".into()]
                },
            });
        } else {
            let sandbox = seen.sandboxes.first().map_or_else(String::new, |s| s.id.clone());
            seen.containers
                .push(observed_container(pod, name, value, sandbox, created_at));
        }
    }
    seen
}

fn observed_container(pod: &Pod, name: &str, text: &str, sandbox: String, created_at: Timestamp) -> ObservedContainer {
    let (text, other_image) = text.strip_suffix('!').map_or((text, false), |t| (t, true));
    let (text, restarts) = text.split_once('#').unwrap_or((text, "0"));
    let (text, times) = text.split_once('@').unwrap_or((text, "1-2"));
    let (state, code) = text.split_once(':').unwrap_or((text, "0"));
    let (started, finished) = times.split_once('-').unwrap_or((times, "0"));
    let state = match state {
        "created" => ObservedState::Created,
        "running" => ObservedState::Running,
        "exited" => ObservedState::Exited,
        _ => ObservedState::Unknown,
    };
    let exited = state == ObservedState::Exited;
    let exit_code = if exited { code.parse().unwrap() } else { 0 };
    let spec = policy::place_of(pod, name)
        .and_then(|place| policy::container_at(pod, place))
        .unwrap_or_default();
    ObservedContainer {
        id: format!("{name}{restarts}"),
        sandbox,
        name: name.to_string(),
        state,
        restart_count: restarts.parse().unwrap(),
        hash: if other_image {
            "other".into()
        } else {
            policy::fingerprint(&spec)
        },
        created_at,
        started_at: (state != ObservedState::Created).then(|| at(started.parse().unwrap())),
        finished_at: exited.then(|| at(finished.parse().unwrap())),
        exit_code,
        reason: match (exited, exit_code) {
            (true, 0) => "Completed".into(),
            (true, _) => "Error".into(),
            _ => String::new(),
        },
        image: "image".into(),
        image_ref: "image@sha256:1".into(),
        ..Default::default()
    }
}

/// `backoff.a=20@90` (delay, since), `a.live=no`, `a.start=yes`, `failed.a=110`, `hold=110`, `applied.a=cpu:…`,
/// `evict=5`, `removed`, `hook.a0=running`, `stop.a0=130`, `stopped=s0`, `freed`, `started=10`, `phase=…`, `now=…`.
pub(super) fn memory(pod: &Pod, text: &str) -> (WorkerState, Timestamp) {
    let mut memory = WorkerState {
        status: pod.status.clone().unwrap_or_default(),
        ..Default::default()
    };
    let mut now = 100;
    for word in text.split_whitespace() {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        let second = || at(value.parse().unwrap());
        match key.split_once('.') {
            Some(("backoff", name)) => {
                let (delay, since) = value.split_once('@').unwrap();
                let of = policy::container_named(pod, name).map(steps::identity).unwrap();
                let delay = Duration::from_secs(delay.parse().unwrap());
                memory.backoffs.insert(
                    name.into(),
                    Backoff {
                        delay,
                        since: at(since.parse().unwrap()),
                        of,
                    },
                );
            }
            Some(("told", name)) => {
                memory.reported_backoffs.insert(name.into(), second());
            }
            Some((what @ ("failed" | "unstarted"), name)) => {
                let was_made = what == "unstarted";
                let reason = if was_made { "RunContainerError" } else { "ErrImagePull" };
                let failure = Failure {
                    reason: reason.into(),
                    message: "no".into(),
                    retry_at: second(),
                    was_made,
                };
                memory.failures.insert(name.into(), failure);
            }
            Some(("applied", name)) => {
                let other = self::pod(&format!("containers={name} {name}.requests={value}"));
                let resources = policy::regular_containers(&other)[0].resources.clone();
                memory.applied.insert(name.into(), Applied::of(resources.as_ref()));
            }
            Some(("hook", id)) => {
                let hook = if value == "running" { Hook::Running } else { Hook::Done };
                memory.hooks.insert(id.into(), hook);
            }
            Some(("stop", id)) => {
                memory.stops.insert(id.into(), second());
            }
            Some((name, probe)) => {
                let probed = memory.probes.entry(name.into()).or_insert_with(|| Probed {
                    container_id: format!("{name}0"),
                    ..Default::default()
                });
                let result = match probe {
                    "live" => &mut probed.liveness,
                    "start" => &mut probed.startup,
                    _ => &mut probed.readiness,
                };
                *result = Some(value == "yes");
            }
            None => match key {
                "hold" => memory.hold = Some(second()),
                "removed" => memory.requests.removed = true,
                "stopped" => drop(memory.stopped_sandboxes.insert(value.into())),
                "freed" => memory.freed = true,
                "started" => memory.status.start_time = Some(Time(second())),
                "phase" => memory.status.phase = Some(value.into()),
                "teardown" => memory.teardown = Some(second()),
                "now" => now = value.parse().unwrap(),
                "evict" => {
                    memory.requests.evict = Some(Eviction {
                        reason: "Evicted".into(),
                        message: "low on memory".into(),
                        grace_seconds: (!value.is_empty()).then(|| value.parse().unwrap()),
                        condition: None,
                    });
                }
                "suspend" => {
                    memory.requests.suspend = Some(Suspension {
                        grace_seconds: (!value.is_empty()).then(|| value.parse().unwrap()),
                    });
                }
                "ending" => {
                    let (grace, deadline) = value.split_once('@').unwrap();
                    memory.ending = Some(Ending {
                        grace_seconds: grace.parse().unwrap(),
                        deadline: at(deadline.parse().unwrap()),
                        failed: None,
                        deleted: false,
                    });
                }
                other => panic!("no memory of {other}"),
            },
        }
    }
    (memory, at(now))
}
