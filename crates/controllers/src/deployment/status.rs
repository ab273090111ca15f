//! What a Deployment says of itself: counts, and the conditions that people and `kubectl rollout status` wait for.
// Upstream: pkg/controller/deployment/progress.go

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use orlop_base::clock::elapsed;
use serde_json::{Value, json};

use super::sets::Sets;
use crate::objects::condition::{self, whole_seconds};
use crate::objects::deployment::DeploymentStatus;
use crate::objects::{Condition, Deployment};
use crate::runtime::Next;

const PROGRESSING: &str = "Progressing";
const AVAILABLE: &str = "Available";
const REPLICA_FAILURE: &str = "ReplicaFailure";

const NEW_SET_AVAILABLE: &str = "NewReplicaSetAvailable";
const TIMED_OUT: &str = "ProgressDeadlineExceeded";
const PAUSED: &str = "DeploymentPaused";

/// What this reconcile did about the set of the present template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Made {
    Nothing,
    /// By name.
    Created(String),
    /// By name, and why.
    Failed(String, String),
}

/// The counts, without conditions.
pub(crate) fn counts(deployment: &Deployment, sets: &Sets) -> DeploymentStatus {
    let mut status = DeploymentStatus {
        observed_generation: deployment.metadata.generation,
        updated_replicas: sets.new.as_ref().map_or(0, |set| set.status.replicas),
        terminating_replicas: Some(0),
        collision_count: deployment.status.collision_count,
        ..DeploymentStatus::default()
    };
    for set in sets.all() {
        let of = &set.status;
        status.replicas += of.replicas;
        status.ready_replicas += of.ready_replicas;
        status.available_replicas += of.available_replicas;
        // A set that nobody has looked at yet has none; one that was looked at and does not say makes the sum unknown.
        let terminating = of.terminating_replicas.or((of.observed_generation == 0).then_some(0));
        status.terminating_replicas = status.terminating_replicas.zip(terminating).map(|(sum, n)| sum + n);
    }
    status
}

/// All desired replicas are updated and available, and there are no old ones.
pub(crate) fn is_complete(deployment: &Deployment, status: &DeploymentStatus) -> bool {
    let wanted = deployment.replicas();
    status.updated_replicas == wanted
        && status.replicas == wanted
        && status.available_replicas == wanted
        && status.observed_generation >= deployment.metadata.generation
}

/// `total`: the replicas in the specs of all sets.
pub(crate) fn status(
    deployment: &Deployment,
    sets: &Sets,
    total: i64,
    made: &Made,
    now: Timestamp,
) -> DeploymentStatus {
    let mut status = counts(deployment, sets);
    status.unavailable_replicas = (total - status.available_replicas).max(0);
    let mut writer = Writer {
        conditions: deployment.status.conditions.clone(),
        now: whole_seconds(now),
    };
    if !deployment.metadata.is_deleted() {
        paused_or_resumed(deployment, &mut writer);
        first_seen(deployment, sets, made, &mut writer);
    }
    let enough = status.available_replicas >= deployment.replicas() - deployment.max_unavailable();
    match enough {
        true => writer.set(
            AVAILABLE,
            "True",
            "MinimumReplicasAvailable",
            "Deployment has minimum availability.",
        ),
        false => writer.set(
            AVAILABLE,
            "False",
            "MinimumReplicasUnavailable",
            "Deployment does not have minimum availability.",
        ),
    }
    if !deployment.metadata.is_deleted() && !deployment.spec.paused {
        progress(deployment, sets, &status, made, &mut writer);
        failures(sets, &mut writer);
    }
    status.conditions = writer.conditions;
    status
}

fn paused_or_resumed(deployment: &Deployment, writer: &mut Writer) {
    let reason = writer.reason(PROGRESSING);
    // That it got stuck is not forgotten by pausing.
    if deployment.progress_deadline().is_none() || reason == TIMED_OUT {
        return;
    }
    match (deployment.spec.paused, reason == PAUSED) {
        (true, false) => writer.set(PROGRESSING, "Unknown", PAUSED, "Deployment is paused"),
        (false, true) => writer.set(PROGRESSING, "Unknown", "DeploymentResumed", "Deployment is resumed"),
        _ => {}
    }
}

fn first_seen(deployment: &Deployment, sets: &Sets, made: &Made, writer: &mut Writer) {
    if deployment.progress_deadline().is_none() {
        return;
    }
    match (made, &sets.new) {
        (Made::Created(name), _) => {
            let message = format!("Created new replica set \"{name}\"");
            writer.set(PROGRESSING, "True", "NewReplicaSetCreated", &message);
        }
        (Made::Failed(name, why), _) => {
            let message = format!("Failed to create new replica set \"{name}\": {why}");
            writer.set(PROGRESSING, "False", "ReplicaSetCreateError", &message);
        }
        (Made::Nothing, Some(new)) if condition::find(&writer.conditions, PROGRESSING).is_none() => {
            let message = format!("Found new replica set \"{}\"", new.metadata.name);
            writer.set(PROGRESSING, "True", "FoundNewReplicaSet", &message);
        }
        _ => {}
    }
}

fn progress(deployment: &Deployment, sets: &Sets, status: &DeploymentStatus, made: &Made, writer: &mut Writer) {
    let Some(deadline) = deployment.progress_deadline() else {
        return writer.remove(PROGRESSING);
    };
    // Nothing rolls out: the last rollout is over.
    let is_over = status.replicas == status.updated_replicas && writer.reason(PROGRESSING) == NEW_SET_AVAILABLE;
    if is_over || matches!(made, Made::Failed(..)) {
        return;
    }
    let subject = match (&sets.new, made) {
        (Some(new), _) => format!("ReplicaSet \"{}\"", new.metadata.name),
        (None, Made::Created(name)) => format!("ReplicaSet \"{name}\""),
        _ => format!("Deployment \"{}\"", deployment.metadata.name),
    };
    if is_complete(deployment, status) {
        let message = format!("{subject} has successfully progressed.");
        writer.set(PROGRESSING, "True", NEW_SET_AVAILABLE, &message);
    } else if has_progressed(&deployment.status, status) {
        let message = format!("{subject} is progressing.");
        writer.renew(PROGRESSING, "True", "ReplicaSetUpdated", &message);
    } else if writer.is_late(deadline) {
        let message = format!("{subject} has timed out progressing.");
        writer.set(PROGRESSING, "False", TIMED_OUT, &message);
    }
}

/// More new pods, fewer old ones, or more of them ready or available.
fn has_progressed(before: &DeploymentStatus, now: &DeploymentStatus) -> bool {
    now.updated_replicas > before.updated_replicas
        || now.replicas - now.updated_replicas < before.replicas - before.updated_replicas
        || now.ready_replicas > before.ready_replicas
        || now.available_replicas > before.available_replicas
}

/// A failure of the new set goes before those of old ones.
fn failures(sets: &Sets, writer: &mut Writer) {
    let mut newest_first = sets.new.iter().chain(&sets.old);
    let failure = newest_first.find_map(|set| condition::find(&set.status.conditions, REPLICA_FAILURE));
    match failure {
        None => writer.remove(REPLICA_FAILURE),
        Some(failure) => writer.put(Condition {
            last_update_time: failure.last_transition_time,
            ..failure.clone()
        }),
    }
}

/// When to look for progress that did not come.
pub(crate) fn next_look(deployment: &Deployment, status: &DeploymentStatus, now: Timestamp) -> Next {
    let condition = condition::find(&status.conditions, PROGRESSING);
    let (Some(deadline), Some(condition)) = (deployment.progress_deadline(), condition) else {
        return Next::Done;
    };
    let waits = !deployment.spec.paused && !deployment.metadata.is_deleted();
    if !waits || condition.reason == TIMED_OUT || is_complete(deployment, status) {
        return Next::Done;
    }
    let Some(due) = due(condition, deadline) else {
        return Next::Done;
    };
    // A second later it is surely over.
    let wait = elapsed(now, due).saturating_add(Duration::from_secs(1));
    Next::After(wait)
}

fn due(condition: &Condition, deadline: i64) -> Option<Timestamp> {
    let since = condition.last_update_time?;
    since.checked_add(SignedDuration::from_secs(deadline)).ok()
}

struct Writer {
    conditions: Vec<Condition>,
    now: Timestamp,
}

impl Writer {
    fn reason(&self, kind: &str) -> &str {
        condition::find(&self.conditions, kind).map_or("", |c| c.reason.as_str())
    }

    /// Changes nothing if status and reason are what they were.
    fn set(&mut self, kind: &str, status: &str, reason: &str, message: &str) {
        self.put(Condition {
            r#type: kind.to_string(),
            status: status.to_string(),
            reason: reason.to_string(),
            message: message.to_string(),
            last_update_time: Some(self.now),
            last_transition_time: Some(self.now),
            ..Condition::default()
        });
    }

    /// Says it anew even if it was said before.
    fn renew(&mut self, kind: &str, status: &str, reason: &str, message: &str) {
        let before = condition::find(&self.conditions, kind).cloned();
        self.remove(kind);
        self.set(kind, status, reason, message);
        if let (Some(before), Some(now)) = (before, self.conditions.last_mut())
            && before.status == now.status
        {
            now.last_transition_time = before.last_transition_time;
        }
    }

    fn put(&mut self, mut condition: Condition) {
        if let Some(before) = condition::find(&self.conditions, &condition.r#type)
            && before.status == condition.status
        {
            if before.reason == condition.reason {
                return;
            }
            condition.last_transition_time = before.last_transition_time;
        }
        self.conditions.retain(|c| c.r#type != condition.r#type);
        self.conditions.push(condition);
    }

    fn remove(&mut self, kind: &str) {
        self.conditions.retain(|c| c.r#type != kind);
    }

    /// No progress for so many seconds, unless nothing was rolling out.
    fn is_late(&self, deadline: i64) -> bool {
        let Some(condition) = condition::find(&self.conditions, PROGRESSING) else {
            return false;
        };
        match condition.reason.as_str() {
            NEW_SET_AVAILABLE => false,
            TIMED_OUT => true,
            _ => due(condition, deadline).is_some_and(|due| due < self.now),
        }
    }
}

/// As it stands in an object: numbers that are 0 and lists that are empty are left out, hence removed by a patch.
pub(crate) fn written(status: &DeploymentStatus) -> Value {
    let mut value = json!(status);
    for (field, value) in value.as_object_mut().into_iter().flatten() {
        let empty = *value == 0 || value.as_array().is_some_and(Vec::is_empty);
        if empty && field != "terminatingReplicas" && field != "collisionCount" {
            *value = Value::Null;
        }
    }
    value
}
