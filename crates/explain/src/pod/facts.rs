//! What a pod and its events say of themselves.

use jiff::Timestamp;
use orlop_scheduler::cluster::pod::PodKey;
use serde::Serialize;
use serde_json::Value;

/// An event about the pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EventFacts {
    #[serde(rename = "type")]
    pub kind: String,
    pub reason: String,
    pub message: String,
    pub count: u64,
    pub last: Option<Timestamp>,
    pub source: String,
}

#[derive(Clone, Debug)]
pub struct PodFacts {
    pub key: PodKey,
    pub uid: String,
    pub node: Option<String>,
    pub phase: String,
    pub scheduler_name: String,
    pub priority: i32,
    pub priority_class_name: Option<String>,
    pub nominated_node: Option<String>,
    pub is_terminating: bool,
    /// Kind and name.
    pub owner: Option<(String, String)>,
    pub(super) scheduled: Option<ScheduledCondition>,
    /// The newest last.
    pub events: Vec<EventFacts>,
}

/// The condition PodScheduled.
#[derive(Clone, Debug, Default)]
pub(super) struct ScheduledCondition {
    pub status: String,
    pub reason: String,
    pub message: String,
}

impl PodFacts {
    /// From the pod and the events about it, as JSON.
    pub fn new(pod: &Value, events: &[Value]) -> PodFacts {
        let text = |at: &str| pod.pointer(at).and_then(Value::as_str).unwrap_or_default();
        let some = |at: &str| Some(text(at).to_string()).filter(|text| !text.is_empty());
        let conditions = pod.pointer("/status/conditions").and_then(Value::as_array);
        let scheduled = (conditions.into_iter().flatten()).find(|c| c["type"] == "PodScheduled");
        let owners = pod.pointer("/metadata/ownerReferences").and_then(Value::as_array);
        let controller = owners.into_iter().flatten().find(|o| o["controller"] == true);
        let field = |object: &Value, name: &str| object[name].as_str().unwrap_or_default().to_string();
        let mut facts = PodFacts {
            key: PodKey::new(text("/metadata/namespace"), text("/metadata/name")),
            uid: text("/metadata/uid").to_string(),
            node: some("/spec/nodeName"),
            phase: text("/status/phase").to_string(),
            scheduler_name: text("/spec/schedulerName").to_string(),
            priority: pod.pointer("/spec/priority").and_then(Value::as_i64).unwrap_or(0) as i32,
            priority_class_name: some("/spec/priorityClassName"),
            nominated_node: some("/status/nominatedNodeName"),
            is_terminating: some("/metadata/deletionTimestamp").is_some(),
            owner: controller.map(|o| (field(o, "kind"), field(o, "name"))),
            scheduled: scheduled.map(|c| ScheduledCondition {
                status: field(c, "status"),
                reason: field(c, "reason"),
                message: field(c, "message"),
            }),
            events: events.iter().map(EventFacts::new).collect(),
        };
        facts.events.sort_by_key(|event| event.last);
        facts
    }

    pub fn has_ended(&self) -> bool {
        matches!(self.phase.as_str(), "Succeeded" | "Failed")
    }

    pub(super) fn scheduled_message(&self) -> Option<String> {
        let condition = self.scheduled.as_ref().filter(|c| c.status == "False")?;
        Some(condition.message.clone()).filter(|message| !message.is_empty())
    }
}

impl EventFacts {
    /// Of `v1` or `events.k8s.io/v1`.
    pub fn new(event: &Value) -> EventFacts {
        let text = |at: &str| {
            event
                .pointer(at)
                .and_then(Value::as_str)
                .filter(|text| !text.is_empty())
        };
        let first = |all: &[&str]| all.iter().find_map(|at| text(at)).unwrap_or_default().to_string();
        let number = |at: &str| event.pointer(at).and_then(Value::as_u64);
        let last = first(&[
            "/series/lastObservedTime",
            "/lastTimestamp",
            "/deprecatedLastTimestamp",
            "/eventTime",
            "/metadata/creationTimestamp",
        ]);
        EventFacts {
            kind: first(&["/type"]),
            reason: first(&["/reason"]),
            message: first(&["/note", "/message"]),
            count: (number("/series/count")
                .or(number("/count"))
                .or(number("/deprecatedCount")))
            .map_or(1, |n| n.max(1)),
            last: last.parse().ok(),
            source: first(&["/reportingController", "/reportingComponent", "/source/component"]),
        }
    }
}
