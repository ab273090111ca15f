//! What is said about a simulated pod: its status, as a patch of the status subresource.

use std::time::Duration;

use jiff::Timestamp;
use orlop_api::duration::duration_text;
use orlop_base::clock::rfc3339;
use serde_json::{Value, json};

use super::conditions::{ReportedCondition, Standing, condition};
use super::life::{InitContainer, Life, Stage};
use super::pods::Shape;
use crate::pod::status::is_own_condition;
use crate::sources::preemption;

/// The conditions that are reported.
pub(super) const CONDITIONS: [&str; 4] = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady"];
/// Places among them.
pub(super) const READY: usize = 2;
pub(super) const CONTAINERS_READY: usize = 3;

/// Why a node rejected or preempted a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Termination {
    pub reason: String,
    pub message: String,
    /// It was never admitted.
    pub rejected: bool,
}

/// What a status is made of.
pub(super) struct Facts<'a> {
    pub uid: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
    pub ip: String,
    pub host_ip: String,
    pub shape: &'a Shape,
    pub life: &'a Life,
    /// What its readiness gates lack, if anything.
    pub unmet: Option<&'a str>,
    /// Why it was ended, if the node did that.
    pub ended: Option<&'a Termination>,
    /// How the conditions stand so far.
    pub told: Standing,
    pub now: Timestamp,
}

/// A strategic merge patch: conditions of others stay.
pub(super) fn status(facts: &Facts<'_>) -> Value {
    let mut status = match facts.ended {
        Some(Termination { rejected: true, .. }) => {
            json!({"phase": "Failed", "startTime": rfc3339(facts.life.started)})
        }
        _ => lived(facts),
    };
    if let Some(Termination {
        reason,
        message,
        rejected,
    }) = facts.ended
    {
        status["reason"] = reason.as_str().into();
        status["message"] = message.as_str().into();
        if !rejected && let Some(conditions) = status["conditions"].as_array_mut() {
            let (reason, message) = (Some("TerminationByKubelet"), Some(preemption::CONDITION_MESSAGE));
            conditions.push(condition("DisruptionTarget", true, None, reason, message, facts.now));
        }
    }
    json!({"metadata": {"uid": facts.uid}, "status": status})
}

/// Of an admitted pod.
fn lived(facts: &Facts<'_>) -> Value {
    let phase = match facts.life.stage {
        Stage::Waiting | Stage::Leaving => "Pending",
        Stage::Running { .. } | Stage::BackOff => "Running",
        Stage::Finished { failed: false } => "Succeeded",
        Stage::Finished { failed: true } => "Failed",
    };
    let containers: Vec<Value> = facts.shape.containers.iter().map(|c| container(c, facts)).collect();
    let mut status = json!({
        "phase": phase,
        "conditions": conditions(facts),
        "containerStatuses": containers,
        "hostIP": facts.host_ip,
        "hostIPs": [{"ip": facts.host_ip}],
        "podIP": facts.ip,
        "podIPs": [{"ip": facts.ip}],
        "startTime": rfc3339(facts.life.started),
    });
    let init = &facts.shape.init_containers;
    if !init.is_empty() {
        status["initContainerStatuses"] = init.iter().map(|c| init_container(c, facts)).collect();
    }
    status
}

/// How the conditions of a pod stand that is in this stage.
pub(super) fn standing(stage: Stage, gates_hold: bool) -> Standing {
    let network = !matches!(stage, Stage::Finished { .. });
    let ready = stage == Stage::Running { ready: true };
    [network, true, ready && gates_hold, ready].map(Some)
}

/// What the readiness gates lack, in Kubernetes' words.
// Upstream: pkg/kubelet/status GeneratePodReadyCondition (v1.36)
pub(super) fn unmet(gates: &[String], conditions: &[ReportedCondition]) -> Option<String> {
    // Of the kubelet's own conditions, a readiness gate can only wait for those that are written before Ready.
    let counts = |kind: &str| CONDITIONS[..READY].contains(&kind) || !is_own_condition(kind);
    let lacks = gates.iter().filter_map(|gate| {
        let seen = conditions.iter().find(|c| c.kind == *gate && counts(&c.kind));
        match seen.map(|c| c.status.as_str()) {
            Some("True") => None,
            Some(status) => Some(format!(
                "the status of pod readiness gate {gate:?} is not \"True\", but {status}"
            )),
            None => Some(format!(
                "corresponding condition of pod readiness gate {gate:?} does not exist."
            )),
        }
    });
    let lacks: Vec<String> = lacks.collect();
    (!lacks.is_empty()).then(|| lacks.join(", "))
}

type Why<'a> = (Option<&'a str>, Option<&'a str>);

fn conditions(facts: &Facts<'_>) -> Value {
    let stage = facts.life.stage;
    let names: Vec<&str> = facts.shape.containers.iter().map(|(name, _)| name.as_str()).collect();
    let unready = format!("containers with unready status: [{}]", names.join(" "));
    let containers: Why<'_> = match stage {
        Stage::Running { ready: true } => (None, None),
        Stage::Finished { failed: false } => (Some("PodCompleted"), None),
        Stage::Finished { failed: true } => (Some("PodFailed"), None),
        _ => (Some("ContainersNotReady"), Some(&unready)),
    };
    let ready: Why<'_> = match (containers.0, facts.unmet) {
        (None, Some(unmet)) => (Some("ReadinessGatesNotReady"), Some(unmet)),
        _ => containers,
    };
    let initialized = (stage == Stage::Finished { failed: false }).then_some("PodCompleted");
    let why: [Why<'_>; 4] = [(None, None), (initialized, None), ready, containers];
    let holds = standing(stage, facts.unmet.is_none());
    let made = CONDITIONS.iter().zip(holds).zip(facts.told).zip(why);
    made.map(|(((kind, holds), before), (reason, message))| {
        condition(kind, holds == Some(true), before, reason, message, facts.now)
    })
    .collect()
}

fn container((name, image): &(String, String), facts: &Facts<'_>) -> Value {
    let life = facts.life;
    let id = container_id(facts, name, life.restarts);
    let running = json!({"running": {"startedAt": rfc3339(life.since)}});
    let ended = |id: &str| {
        let behaviour = &facts.shape.behaviour;
        let (end, ran) = (life.ended(), behaviour.run_for.unwrap_or_default());
        let began = end.checked_sub(ran).unwrap_or(end).max(life.started);
        terminated(id, behaviour.exit_code, began, end)
    };
    let (state, last) = match life.stage {
        Stage::Waiting | Stage::Leaving => (json!({"waiting": {"reason": "ContainerCreating"}}), json!({})),
        Stage::Running { .. } if life.restarts > 0 => {
            let before = container_id(facts, name, life.restarts - 1);
            (running, ended(&before))
        }
        Stage::Running { .. } => (running, json!({})),
        Stage::BackOff if life.back_off().is_zero() => (ended(&id), json!({})),
        Stage::BackOff => (crash_loop(name, life.back_off(), facts), ended(&id)),
        Stage::Finished { .. } => (ended(&id), json!({})),
    };
    let started = matches!(life.stage, Stage::Running { .. });
    json!({
        "name": name, "image": image, "imageID": format!("simulated://{image}"), "containerID": id,
        "ready": life.stage == Stage::Running { ready: true }, "started": started, "restartCount": life.restarts,
        "state": state, "lastState": last,
    })
}

// Upstream: pkg/kubelet/kuberuntime doBackOff (v1.36)
fn crash_loop(container: &str, back_off: Duration, facts: &Facts<'_>) -> Value {
    let delay = duration_text(i64::try_from(back_off.as_nanos()).unwrap_or(i64::MAX));
    let (name, namespace, uid) = (facts.name, facts.namespace, facts.uid);
    let message = format!("back-off {delay} restarting failed container={container} pod={name}_{namespace}({uid})");
    json!({"waiting": {"reason": "CrashLoopBackOff", "message": message}})
}

/// Init containers are through with their work by the time that anything is said; sidecars end with the pod.
fn init_container(init: &InitContainer, facts: &Facts<'_>) -> Value {
    let (name, image) = &init.container;
    let (life, id) = (facts.life, container_id(facts, name, 0));
    let runs = init.sidecar && matches!(life.stage, Stage::Running { .. } | Stage::BackOff);
    let state = match (runs, init.sidecar) {
        (true, _) => json!({"running": {"startedAt": rfc3339(life.started)}}),
        (false, true) => terminated(&id, 0, life.started, life.ended()),
        (false, false) => terminated(&id, 0, life.started, life.started),
    };
    json!({
        "name": name, "image": image, "imageID": format!("simulated://{image}"), "containerID": id,
        "ready": runs || !init.sidecar, "started": runs, "restartCount": 0, "state": state, "lastState": {},
    })
}

fn terminated(id: &str, exit_code: i32, began: Timestamp, end: Timestamp) -> Value {
    let reason = if exit_code == 0 { "Completed" } else { "Error" };
    json!({"terminated": {"exitCode": exit_code, "reason": reason, "containerID": id,
        "startedAt": rfc3339(began), "finishedAt": rfc3339(end)}})
}

fn container_id(facts: &Facts<'_>, name: &str, run: u32) -> String {
    format!("simulated://{}/{name}/{run}", facts.uid)
}
