//! Why a workload has fewer pods than it should: refused by the API server, by no node, or not ready.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use crate::pod::{API_VERSION, EventFacts, PodExplanation, PodFacts, PodState, counted, explain};
use crate::snapshot::Unreadable;
use crate::world::World;

/// Pods that are explained one by one; further ones are counted.
const PODS: usize = 50;

/// A workload and what belongs to it, as JSON.
#[derive(Clone, Debug, Default)]
pub struct WorkloadObjects {
    pub workload: Value,
    /// Of a Deployment.
    pub replica_sets: Vec<Value>,
    /// Whose controller is the workload, or one of its ReplicaSets.
    pub pods: Vec<Value>,
    /// About the workload, its ReplicaSets and its pods.
    pub events: Vec<Value>,
    /// ResourceQuotas of the namespace.
    pub quotas: Vec<Value>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadExplanation {
    pub api_version: &'static str,
    pub kind: &'static str,
    pub workload_kind: String,
    pub namespace: String,
    pub name: String,
    /// One sentence.
    pub verdict: String,
    pub desired: i64,
    pub current: usize,
    pub ready: usize,
    /// Why pods are not even created.
    pub refusals: Vec<Refusal>,
    pub quotas: Vec<QuotaRow>,
    /// Pods without a node, by what is said of them.
    pub pending: Vec<PodGroup>,
    /// Pods on nodes that are not ready, by reason.
    pub not_ready: Vec<PodGroup>,
    pub conditions: Vec<ConditionRow>,
    /// The first pod of the largest group, in full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub example: Option<PodExplanation>,
    pub unreadable: Vec<Unreadable>,
}

/// Who says that no pod can be made, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// `event FailedCreate`, `condition ReplicaFailure` or `spec`.
    pub source: String,
    /// `ReplicaSet/web-1`
    pub object: String,
    pub message: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct QuotaRow {
    pub quota: String,
    pub resource: String,
    pub used: String,
    pub hard: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PodGroup {
    pub reason: String,
    pub pods: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConditionRow {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: String,
    pub reason: String,
    pub message: String,
}

fn text<'a>(object: &'a Value, at: &str) -> &'a str {
    object.pointer(at).and_then(Value::as_str).unwrap_or_default()
}

fn list<'a>(object: &'a Value, at: &str) -> impl Iterator<Item = &'a Value> {
    object.pointer(at).and_then(Value::as_array).into_iter().flatten()
}

pub fn explain_workload(world: &mut World, objects: &WorkloadObjects) -> WorkloadExplanation {
    let workload = &objects.workload;
    let mut answer = WorkloadExplanation {
        api_version: API_VERSION,
        kind: "WorkloadExplanation",
        workload_kind: text(workload, "/kind").to_string(),
        namespace: text(workload, "/metadata/namespace").to_string(),
        name: text(workload, "/metadata/name").to_string(),
        verdict: String::new(),
        desired: desired(workload),
        current: 0,
        ready: 0,
        refusals: refusals(objects),
        quotas: exhausted(&objects.quotas),
        pending: vec![],
        not_ready: vec![],
        conditions: conditions(workload),
        example: None,
        unreadable: world.unreadable.clone(),
    };
    let is_live = |pod: &&Value| !matches!(text(pod, "/status/phase"), "Succeeded" | "Failed");
    let pods: Vec<&Value> = objects.pods.iter().filter(is_live).collect();
    answer.current = pods.len();
    answer.ready = pods.iter().filter(|pod| is_ready(pod)).count();
    let (pending, placed): (Vec<&Value>, Vec<&Value>) =
        pods.iter().partition(|pod| text(pod, "/spec/nodeName").is_empty());
    answer.not_ready = not_ready(&placed);
    (answer.pending, answer.example) = explain_pending(world, objects, &pending);
    answer.verdict = verdict(&answer, workload, pending.len());
    answer
}

fn desired(workload: &Value) -> i64 {
    let number = |at: &str| workload.pointer(at).and_then(Value::as_i64);
    match text(workload, "/kind") {
        "DaemonSet" => number("/status/desiredNumberScheduled").unwrap_or(0),
        "Job" => {
            let left = number("/spec/completions").map(|all| all - number("/status/succeeded").unwrap_or(0));
            let parallel = number("/spec/parallelism").unwrap_or(1);
            left.map_or(parallel, |left| left.clamp(0, parallel))
        }
        _ => number("/spec/replicas").unwrap_or(1),
    }
}

fn conditions(object: &Value) -> Vec<ConditionRow> {
    let rows = list(object, "/status/conditions").map(|c| ConditionRow {
        kind: text(c, "/type").to_string(),
        status: text(c, "/status").to_string(),
        reason: text(c, "/reason").to_string(),
        message: text(c, "/message").to_string(),
    });
    rows.collect()
}

/// What conditions, events and the workload itself say against new pods; each message once.
fn refusals(objects: &WorkloadObjects) -> Vec<Refusal> {
    let mut all: Vec<Refusal> = vec![];
    let mut push = |refusal: Refusal| {
        if !all.iter().any(|r| r.message == refusal.message) {
            all.push(refusal);
        }
    };
    let workload = &objects.workload;
    let name = |object: &Value| format!("{}/{}", text(object, "/kind"), text(object, "/metadata/name"));
    let spec = [("/spec/paused", "it is paused"), ("/spec/suspend", "it is suspended")];
    for (at, message) in spec {
        if workload.pointer(at) == Some(&Value::Bool(true)) {
            push(Refusal {
                source: "spec".into(),
                object: name(workload),
                message: message.into(),
            });
        }
    }
    for object in std::iter::once(workload).chain(&objects.replica_sets) {
        for row in conditions(object) {
            let refuses = row.status == "True"
                && (row.kind == "ReplicaFailure" || row.kind == "Failed" || row.kind == "FailureTarget");
            if refuses {
                push(Refusal {
                    source: format!("condition {}", row.kind),
                    object: name(object),
                    message: row.message,
                });
            }
        }
    }
    let mut events: Vec<(&Value, EventFacts)> = objects.events.iter().map(|e| (e, EventFacts::new(e))).collect();
    // The newest first.
    events.sort_by_key(|(_, facts)| std::cmp::Reverse(facts.last));
    for (event, facts) in events.iter().filter(|(_, facts)| facts.reason == "FailedCreate") {
        let about = event
            .get("regarding")
            .or(event.get("involvedObject"))
            .unwrap_or(&Value::Null);
        push(Refusal {
            source: "event FailedCreate".into(),
            object: format!("{}/{}", text(about, "/kind"), text(about, "/name")),
            message: facts.message.clone(),
        });
    }
    all
}

/// Quotas of which nothing is left.
fn exhausted(quotas: &[Value]) -> Vec<QuotaRow> {
    let parse = |text: &str| orlop_api::quantity::Quantity::parse(text).ok();
    let mut rows = vec![];
    for quota in quotas {
        let hard = quota.pointer("/status/hard").and_then(Value::as_object);
        for (resource, hard) in hard.into_iter().flatten() {
            let used = text(
                quota,
                &format!("/status/used/{}", resource.replace('~', "~0").replace('/', "~1")),
            );
            let hard = hard.as_str().unwrap_or_default();
            if let (Some(u), Some(h)) = (parse(used), parse(hard))
                && u >= h
            {
                rows.push(QuotaRow {
                    quota: text(quota, "/metadata/name").to_string(),
                    resource: resource.clone(),
                    used: used.to_string(),
                    hard: hard.to_string(),
                });
            }
        }
    }
    rows
}

fn is_ready(pod: &Value) -> bool {
    list(pod, "/status/conditions").any(|c| text(c, "/type") == "Ready" && text(c, "/status") == "True")
}

fn not_ready(pods: &[&Value]) -> Vec<PodGroup> {
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| !is_ready(pod)) {
        let statuses = list(pod, "/status/initContainerStatuses").chain(list(pod, "/status/containerStatuses"));
        let waiting = statuses
            .filter_map(|s| s.pointer("/state/waiting"))
            .map(|w| text(w, "/reason"));
        let reason = match waiting.filter(|reason| !reason.is_empty()).min() {
            _ if pod.pointer("/metadata/deletionTimestamp").is_some() => "being deleted",
            Some(reason) => reason,
            None => "not ready",
        };
        let name = text(pod, "/metadata/name").to_string();
        groups.entry(reason.to_string()).or_default().push(name);
    }
    sorted(groups)
}

fn sorted(groups: BTreeMap<String, Vec<String>>) -> Vec<PodGroup> {
    let mut all: Vec<PodGroup> = groups
        .into_iter()
        .map(|(reason, pods)| PodGroup { reason, pods })
        .collect();
    all.sort_by_key(|group| std::cmp::Reverse(group.pods.len()));
    all
}

fn explain_pending(
    world: &mut World,
    objects: &WorkloadObjects,
    pods: &[&Value],
) -> (Vec<PodGroup>, Option<PodExplanation>) {
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut examples: BTreeMap<String, PodExplanation> = BTreeMap::new();
    for pod in pods.iter().take(PODS) {
        let uid = text(pod, "/metadata/uid");
        let about = |e: &&Value| text(e, "/regarding/uid") == uid || text(e, "/involvedObject/uid") == uid;
        let events: Vec<Value> = objects.events.iter().filter(about).cloned().collect();
        let facts = PodFacts::new(pod, &events);
        let answer = explain(world, &facts);
        // The same sentence of different pods is one reason.
        let reason = answer.verdict.replacen(&format!("{} ", facts.key), "", 1);
        groups
            .entry(reason.clone())
            .or_default()
            .push(facts.key.name.to_string());
        examples.entry(reason).or_insert(answer);
    }
    if let Some(rest) = pods.get(PODS..) {
        let names = rest
            .iter()
            .map(|pod| text(pod, "/metadata/name").to_string())
            .collect::<Vec<_>>();
        if !names.is_empty() {
            groups.insert(format!("not looked at: only {PODS} are"), names);
        }
    }
    let groups = sorted(groups);
    let example = groups.first().and_then(|group| examples.remove(&group.reason));
    (groups, example)
}

fn verdict(answer: &WorkloadExplanation, workload: &Value, pending: usize) -> String {
    let name = format!("{} {}/{}", answer.workload_kind, answer.namespace, answer.name);
    let finished = answer
        .conditions
        .iter()
        .find(|c| c.status == "True" && (c.kind == "Complete" || c.kind == "Failed"));
    if answer.workload_kind == "Job"
        && let Some(condition) = finished
    {
        return match condition.kind.as_str() {
            "Complete" => format!("{name} is complete."),
            _ => format!("{name} has failed: {}.", condition.message.trim_end_matches('.')),
        };
    }
    let desired = usize::try_from(answer.desired).unwrap_or(0);
    let missing = desired.saturating_sub(answer.current);
    let mut parts = vec![];
    if missing > 0 {
        let why = match answer.refusals.first() {
            Some(refusal) => format!(": {}", refusal.message.trim_end_matches('.')),
            None if observed(workload) => ", and no event or condition says why".to_string(),
            None => ": its controller has not seen the last change yet".to_string(),
        };
        parts.push(format!("{} not created{why}", counted(missing, "pod")));
    }
    if pending > 0 {
        let states = answer.example.as_ref().map(|example| example.state);
        let what = match states {
            Some(PodState::Gated) => "are held back",
            Some(PodState::Schedulable) => "wait for the scheduler",
            _ => "fit no node",
        };
        let reason = answer
            .pending
            .first()
            .map_or("", |group| group.reason.trim_end_matches('.'));
        parts.push(format!("{} {what}: {reason}", counted(pending, "pod")));
    }
    let late: usize = answer.not_ready.iter().map(|group| group.pods.len()).sum();
    if late > 0 {
        let reasons: Vec<String> = (answer.not_ready.iter())
            .map(|group| format!("{} {}", group.pods.len(), group.reason))
            .collect();
        parts.push(format!(
            "{} on nodes not ready ({})",
            counted(late, "pod"),
            reasons.join(", ")
        ));
    }
    match parts.as_slice() {
        [] if desired == 0 => format!("{name} wants no pods."),
        [] => format!("{name} has all {} ready.", counted(desired, "pod")),
        parts => format!(
            "{name} has {} of {} ready: {}.",
            answer.ready,
            counted(desired, "pod"),
            parts.join("; ")
        ),
    }
}

/// Whether its controller has seen what it is now.
fn observed(workload: &Value) -> bool {
    let number = |at: &str| workload.pointer(at).and_then(Value::as_i64);
    match (number("/metadata/generation"), number("/status/observedGeneration")) {
        (Some(now), Some(seen)) => seen >= now,
        (Some(_), None) => text(workload, "/kind") == "Job",
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use orlop_scheduler::config::Config;
    use serde_json::json;

    use super::*;
    use crate::Snapshot;

    fn verdict_of(objects: &WorkloadObjects) -> String {
        let mut snapshot = Snapshot::default();
        for pod in &objects.pods {
            snapshot.add(pod).unwrap();
        }
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"},
            "status": {"allocatable": {"cpu": "1", "pods": "10"}}});
        snapshot.add(&node).unwrap();
        let mut world = World::new(snapshot, &Config::default()).unwrap();
        let answer = explain_workload(&mut world, objects);
        let text = crate::render::workload(&answer, Default::default());
        assert!(text.starts_with(&answer.verdict[..20]), "{text}");
        answer.verdict
    }

    fn pod(name: &str, node: &str, cpu: &str, status: Value) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "d", "name": name, "uid": name},
            "spec": {"nodeName": node, "schedulerName": "default-scheduler",
                     "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}, "status": status})
    }

    fn deployment(replicas: i64) -> Value {
        json!({"kind": "Deployment", "metadata": {"namespace": "d", "name": "web", "generation": 1},
            "spec": {"replicas": replicas}, "status": {"observedGeneration": 1}})
    }

    #[test]
    fn workloads_say_what_they_lack() {
        let ready = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
        let crashing =
            json!({"phase": "Running", "containerStatuses": [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]});
        let quota =
            "pods \"web-x\" is forbidden: exceeded quota: small, requested: pods=1, used: pods=1, limited: pods=1";
        let failed_create = json!({"reason": "FailedCreate", "message": format!("Error creating: {quota}"), "type": "Warning",
            "involvedObject": {"kind": "ReplicaSet", "name": "web-1"}});
        let cases: [(&str, WorkloadObjects, &str); 8] = [
            (
                "all is well",
                WorkloadObjects {
                    workload: deployment(1),
                    pods: vec![pod("a", "n", "1", ready.clone())],
                    ..Default::default()
                },
                "Deployment d/web has all 1 pod ready.",
            ),
            (
                "a quota",
                WorkloadObjects {
                    workload: deployment(2),
                    pods: vec![pod("a", "n", "1", ready.clone())],
                    events: vec![failed_create],
                    quotas: vec![
                        json!({"metadata": {"name": "small"}, "status": {"hard": {"pods": "1"}, "used": {"pods": "1"}}}),
                    ],
                    ..Default::default()
                },
                "Deployment d/web has 1 of 2 pods ready: 1 pod not created: Error creating: pods \"web-x\" is forbidden: \
                 exceeded quota: small, requested: pods=1, used: pods=1, limited: pods=1.",
            ),
            (
                "no room",
                WorkloadObjects {
                    workload: deployment(1),
                    pods: vec![pod("a", "", "2", json!({"phase": "Pending"}))],
                    ..Default::default()
                },
                "Deployment d/web has 0 of 1 pod ready: 1 pod fit no node: does not fit the only node: 1 Insufficient cpu (needs \
                 2, the largest of them has 1).",
            ),
            (
                "a crash",
                WorkloadObjects {
                    workload: deployment(1),
                    pods: vec![pod("a", "n", "1", crashing)],
                    ..Default::default()
                },
                "Deployment d/web has 0 of 1 pod ready: 1 pod on nodes not ready (1 CrashLoopBackOff).",
            ),
            (
                "paused",
                WorkloadObjects {
                    workload: json!({"kind": "Deployment", "metadata": {"namespace": "d", "name": "web"},
                        "spec": {"paused": true}}),
                    ..Default::default()
                },
                "Deployment d/web has 0 of 1 pod ready: 1 pod not created: it is paused.",
            ),
            (
                "not seen yet",
                WorkloadObjects {
                    workload: json!({"kind": "Deployment", "metadata": {"namespace": "d", "name": "web", "generation": 2},
                        "spec": {"replicas": 3}, "status": {"observedGeneration": 1}}),
                    ..Default::default()
                },
                "Deployment d/web has 0 of 3 pods ready: 3 pods not created: its controller has not seen the last change yet.",
            ),
            (
                "scaled to nothing",
                WorkloadObjects {
                    workload: deployment(0),
                    ..Default::default()
                },
                "Deployment d/web wants no pods.",
            ),
            (
                "a job that failed",
                WorkloadObjects {
                    workload: json!({"kind": "Job", "metadata": {"namespace": "d", "name": "j"}, "status": {"conditions":
                        [{"type": "Failed", "status": "True", "message": "Job has reached the specified backoff limit"}]}}),
                    ..Default::default()
                },
                "Job d/j has failed: Job has reached the specified backoff limit.",
            ),
        ];
        for (case, objects, expected) in cases {
            assert_eq!(verdict_of(&objects), expected, "{case}");
        }
    }
}
