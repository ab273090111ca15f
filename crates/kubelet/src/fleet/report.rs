//! What is said about a simulated pod: its status, as a patch of the status subresource.

use jiff::Timestamp;
use orlop_base::clock::rfc3339;
use serde_json::{Value, json};

use super::life::Stage;

/// What a status is made of, apart from the stage.
pub struct Facts<'a> {
    pub uid: &'a str,
    pub ip: String,
    pub host_ip: String,
    pub init_containers: &'a [(String, String)],
    pub containers: &'a [(String, String)],
    pub restarts: u32,
    pub exit_code: i32,
    /// When it was first started, this run began, and the stage began.
    pub started: Timestamp,
    pub run_began: Timestamp,
    pub now: Timestamp,
}

/// A strategic merge patch: conditions of others stay.
pub fn status(stage: Stage, facts: &Facts<'_>) -> Value {
    let phase = match stage {
        Stage::Waiting | Stage::Leaving => "Pending",
        Stage::Running { .. } | Stage::BackOff => "Running",
        Stage::Finished { failed: false } => "Succeeded",
        Stage::Finished { failed: true } => "Failed",
    };
    let containers: Vec<Value> = facts.containers.iter().map(|c| container(c, stage, facts)).collect();
    let mut status = json!({
        "phase": phase,
        "conditions": conditions(stage, facts),
        "containerStatuses": containers,
        "hostIP": facts.host_ip,
        "hostIPs": [{"ip": facts.host_ip}],
        "podIP": facts.ip,
        "podIPs": [{"ip": facts.ip}],
        "startTime": rfc3339(facts.started),
    });
    if !facts.init_containers.is_empty() {
        status["initContainerStatuses"] = facts.init_containers.iter().map(|c| initialised(c, facts)).collect();
    }
    json!({"metadata": {"uid": facts.uid}, "status": status})
}

fn conditions(stage: Stage, facts: &Facts<'_>) -> Value {
    let now = rfc3339(facts.now);
    let one = |kind: &str, holds: bool, reason: Option<String>, message: Option<String>| {
        let mut condition = json!({"type": kind, "status": if holds { "True" } else { "False" },
            "lastProbeTime": null, "lastTransitionTime": now});
        if let Some(reason) = reason {
            condition["reason"] = reason.into();
        }
        if let Some(message) = message {
            condition["message"] = message.into();
        }
        condition
    };
    let ready = stage == Stage::Running { ready: true };
    let (reason, message) = match stage {
        Stage::Running { ready: true } => (None, None),
        Stage::Finished { failed: false } => (Some("PodCompleted".to_string()), None),
        Stage::Finished { failed: true } => (Some("PodFailed".to_string()), None),
        _ => {
            let names: Vec<&str> = facts.containers.iter().map(|(name, _)| name.as_str()).collect();
            let message = format!("containers with unready status: [{}]", names.join(" "));
            (Some("ContainersNotReady".to_string()), Some(message))
        }
    };
    let finished = matches!(stage, Stage::Finished { .. });
    let initialised = matches!(stage, Stage::Finished { failed: false }).then(|| "PodCompleted".to_string());
    json!([
        one("PodReadyToStartContainers", !finished, None, None),
        one("Initialized", true, initialised, None),
        one("Ready", ready, reason.clone(), message.clone()),
        one("ContainersReady", ready, reason, message),
    ])
}

fn container((name, image): &(String, String), stage: Stage, facts: &Facts<'_>) -> Value {
    let id = container_id(facts, name, facts.restarts);
    let running = json!({"running": {"startedAt": rfc3339(facts.run_began)}});
    let ended = |id: &str| {
        let reason = if facts.exit_code == 0 { "Completed" } else { "Error" };
        json!({"terminated": {"exitCode": facts.exit_code, "reason": reason, "containerID": id,
            "startedAt": rfc3339(facts.run_began), "finishedAt": rfc3339(facts.now)}})
    };
    let (state, last) = match stage {
        Stage::Waiting | Stage::Leaving => (json!({"waiting": {"reason": "ContainerCreating"}}), json!({})),
        Stage::Running { .. } if facts.restarts > 0 => {
            let before = container_id(facts, name, facts.restarts - 1);
            (running, ended(&before))
        }
        Stage::Running { .. } => (running, json!({})),
        Stage::BackOff => (json!({"waiting": {"reason": "CrashLoopBackOff"}}), ended(&id)),
        Stage::Finished { .. } => (ended(&id), json!({})),
    };
    let started = matches!(stage, Stage::Running { .. });
    json!({
        "name": name, "image": image, "imageID": format!("simulated://{image}"), "containerID": id,
        "ready": stage == Stage::Running { ready: true }, "started": started, "restartCount": facts.restarts,
        "state": state, "lastState": last,
    })
}

fn initialised((name, image): &(String, String), facts: &Facts<'_>) -> Value {
    let (id, at) = (container_id(facts, name, 0), rfc3339(facts.started));
    json!({
        "name": name, "image": image, "imageID": format!("simulated://{image}"), "containerID": id, "ready": true,
        "started": false, "restartCount": 0, "lastState": {},
        "state": {"terminated": {"exitCode": 0, "reason": "Completed", "containerID": id, "startedAt": at, "finishedAt": at}},
    })
}

fn container_id(facts: &Facts<'_>, name: &str, run: u32) -> String {
    format!("simulated://{}/{name}/{run}", facts.uid)
}
