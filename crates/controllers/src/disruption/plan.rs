//! How many pods of a budget may be disrupted, and since when its evictions have been waiting.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use orlop_api::int_or_string::{IntOrPercent, Round};
use serde_json::{Value, json};

use crate::objects::pod_disruption_budget::{BudgetStatus, PodDisruptionBudget};
use crate::objects::{Condition, Pod, condition};

/// A pod that was evicted is seen on its way out within this time, or it will not go at all.
const DELETION_TIMEOUT: Duration = Duration::from_secs(120);
/// A pod that says it is about to be disrupted is on its way out within this time, or the plan was dropped.
const STALE_AFTER: Duration = Duration::from_secs(120);
const DISRUPTION_ALLOWED: &str = "DisruptionAllowed";

#[derive(Debug)]
pub(super) struct Plan {
    pub status: BudgetStatus,
    /// Evicted long ago, and still there.
    pub not_deleted: Vec<Arc<Pod>>,
    /// When an eviction that waits becomes one that was dropped.
    pub look_after: Option<Duration>,
}

/// Whether the budget is a share of what the pods' owners want, not of what is there.
pub(super) fn asks_owners(budget: &PodDisruptionBudget) -> bool {
    let spec = &budget.spec;
    spec.max_unavailable.is_some() || spec.min_available.as_ref().is_some_and(Value::is_string)
}

/// `wanted`: how many pods their owners want, if `asks_owners`.
pub(super) fn plan(
    budget: &PodDisruptionBudget,
    pods: &[Arc<Pod>],
    wanted: i64,
    now: Timestamp,
) -> Result<Plan, InvalidBudget> {
    let (expected, desired) = expectation(budget, pods.len(), wanted)?;
    let (disrupted, not_deleted) = disrupted(budget, pods, now);
    let deadline = disrupted.values().map(|since| after(*since, DELETION_TIMEOUT)).min();
    let is_healthy =
        |pod: &&Arc<Pod>| !pod.metadata.is_deleted() && !disrupted.contains_key(&pod.metadata.name) && pod.is_ready();
    let healthy = i64::try_from(pods.iter().filter(is_healthy).count()).unwrap_or(i64::MAX);
    // A budget that covers nothing yet allows nothing: its first pods must not slip through before it is looked at again.
    let allowed = if expected > 0 { (healthy - desired).max(0) } else { 0 };
    let mut status = BudgetStatus {
        observed_generation: budget.metadata.generation,
        disrupted_pods: disrupted,
        disruptions_allowed: allowed,
        current_healthy: healthy,
        desired_healthy: desired,
        expected_pods: expected,
        conditions: budget.status.conditions.clone(),
    };
    let (answer, reason) = match allowed > 0 {
        true => ("True", "SufficientPods"),
        false => ("False", "InsufficientPods"),
    };
    set_allowed(&mut status, answer, reason, "", now);
    Ok(Plan {
        status,
        not_deleted,
        // Past it, not at it.
        look_after: deadline.map(|at| until(at, now).saturating_add(Duration::from_millis(1))),
    })
}

/// What to say if nothing can be said: nothing may be disrupted.
pub(super) fn failed(budget: &PodDisruptionBudget, message: &str, now: Timestamp) -> BudgetStatus {
    let mut status = budget.status.clone();
    status.disruptions_allowed = 0;
    set_allowed(&mut status, "False", "SyncFailed", message, now);
    status
}

fn set_allowed(status: &mut BudgetStatus, answer: &str, reason: &str, message: &str, now: Timestamp) {
    let allowed = Condition {
        r#type: DISRUPTION_ALLOWED.to_string(),
        status: answer.to_string(),
        observed_generation: Some(status.observed_generation),
        reason: reason.to_string(),
        message: message.to_string(),
        ..Condition::default()
    };
    condition::set(&mut status.conditions, allowed, now);
}

/// A budget whose bound is neither a number nor a percentage.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct InvalidBudget(String);

fn parse(bound: &Value) -> Result<IntOrPercent, InvalidBudget> {
    IntOrPercent::parse(bound).map_err(|error| InvalidBudget(error.to_string()))
}

/// How many pods there should be, and how many of them healthy.
fn expectation(budget: &PodDisruptionBudget, there: usize, wanted: i64) -> Result<(i64, i64), InvalidBudget> {
    let spec = &budget.spec;
    match (&spec.max_unavailable, &spec.min_available) {
        (Some(most), _) => {
            let most = parse(most)?.of(wanted, Round::Up);
            Ok((wanted, (wanted - most).max(0)))
        }
        (None, Some(least)) => match parse(least)? {
            IntOrPercent::Int(least) => Ok((i64::try_from(there).unwrap_or(i64::MAX), least)),
            share => Ok((wanted, share.of(wanted, Round::Up))),
        },
        (None, None) => Ok((0, 0)),
    }
}

/// Evictions that still wait for their pods to go, and pods that did not go.
fn disrupted(
    budget: &PodDisruptionBudget,
    pods: &[Arc<Pod>],
    now: Timestamp,
) -> (BTreeMap<String, Timestamp>, Vec<Arc<Pod>>) {
    let (mut waiting, mut late) = (BTreeMap::new(), vec![]);
    for pod in pods.iter().filter(|pod| !pod.metadata.is_deleted()) {
        let name = &pod.metadata.name;
        match budget.status.disrupted_pods.get(name) {
            Some(since) if after(*since, DELETION_TIMEOUT) < now => late.push(pod.clone()),
            Some(since) => {
                waiting.insert(name.clone(), *since);
            }
            None => {}
        }
    }
    (waiting, late)
}

/// The status as it is sent: what is gone must be named, and messages are written even if there is none.
pub(super) fn status_json(old: &BudgetStatus, new: &BudgetStatus) -> Value {
    let mut status = json!(new);
    for condition in status["conditions"].as_array_mut().into_iter().flatten() {
        if condition.get("message").is_none() {
            condition["message"] = json!("");
        }
    }
    match new.disrupted_pods.is_empty() {
        true => status["disruptedPods"] = Value::Null,
        false => {
            for gone in old
                .disrupted_pods
                .keys()
                .filter(|name| !new.disrupted_pods.contains_key(*name))
            {
                status["disruptedPods"][gone] = Value::Null;
            }
        }
    }
    status
}

/// When the pod's announcement that it is about to be disrupted is no longer to be believed; zero is now.
pub(super) fn stale_in(pod: &Pod, now: Timestamp) -> Option<Duration> {
    let target = pod.condition("DisruptionTarget").filter(|c| c.is_true())?;
    // A kubelet may take any time, and an ended pod no longer matters.
    if target.reason == "TerminationByKubelet" || pod.metadata.is_deleted() || pod.is_terminal() {
        return None;
    }
    let since = target.last_transition_time.unwrap_or(Timestamp::MIN);
    Some(until(after(since, STALE_AFTER), now))
}

/// The pod's conditions without that announcement.
pub(super) fn without_target(pod: &Pod, now: Timestamp) -> Vec<Condition> {
    let mut conditions = pod.status.conditions.clone();
    let target = Condition {
        r#type: "DisruptionTarget".to_string(),
        status: "False".to_string(),
        observed_generation: Some(pod.metadata.generation).filter(|generation| *generation != 0),
        ..Condition::default()
    };
    condition::set(&mut conditions, target, now);
    conditions
}

fn after(since: Timestamp, time: Duration) -> Timestamp {
    since.checked_add(time).unwrap_or(Timestamp::MAX)
}

fn until(at: Timestamp, now: Timestamp) -> Duration {
    at.duration_since(now).try_into().unwrap_or(Duration::ZERO)
}
