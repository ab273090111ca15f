//! Jobs.

use jiff::Timestamp;
use orlop_api::selector::LabelSelector;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Condition, Kind, Meta, PodTemplate, condition};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Job {
    pub metadata: Meta,
    pub spec: JobSpec,
    pub status: JobStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct JobSpec {
    pub parallelism: Option<i64>,
    pub completions: Option<i64>,
    pub completion_mode: Option<String>,
    pub backoff_limit: Option<i64>,
    pub backoff_limit_per_index: Option<i64>,
    pub max_failed_indexes: Option<i64>,
    pub active_deadline_seconds: Option<i64>,
    pub ttl_seconds_after_finished: Option<i64>,
    pub suspend: Option<bool>,
    pub selector: Value,
    pub template: PodTemplate,
    pub pod_failure_policy: Option<PodFailurePolicy>,
    pub success_policy: Option<SuccessPolicy>,
    pub pod_replacement_policy: Option<String>,
    pub managed_by: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PodFailurePolicy {
    pub rules: Vec<FailureRule>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FailureRule {
    /// `Ignore`, `Count`, `FailIndex` or `FailJob`.
    pub action: String,
    pub on_exit_codes: Option<OnExitCodes>,
    pub on_pod_conditions: Vec<OnPodCondition>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct OnExitCodes {
    pub container_name: Option<String>,
    pub operator: String,
    pub values: Vec<i32>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct OnPodCondition {
    pub r#type: String,
    pub status: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct SuccessPolicy {
    pub rules: Vec<SuccessRule>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SuccessRule {
    pub succeeded_indexes: Option<String>,
    pub succeeded_count: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct JobStatus {
    pub active: i64,
    pub ready: Option<i64>,
    pub terminating: Option<i64>,
    pub succeeded: i64,
    pub failed: i64,
    pub start_time: Option<Timestamp>,
    pub completion_time: Option<Timestamp>,
    pub completed_indexes: String,
    pub failed_indexes: Option<String>,
    pub uncounted_terminated_pods: Uncounted,
    pub conditions: Vec<Condition>,
}

/// Pods that have ended and hold the tracking finalizer still, or have just lost it: not in the counters yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Uncounted {
    pub succeeded: Vec<String>,
    pub failed: Vec<String>,
}

impl Uncounted {
    pub fn is_empty(&self) -> bool {
        self.succeeded.is_empty() && self.failed.is_empty()
    }
}

impl Kind for Job {
    const API_VERSION: &'static str = "batch/v1";
    const KIND: &'static str = "Job";
    const RESOURCE: &'static str = "jobs";

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl Job {
    pub fn selector(&self) -> Option<LabelSelector> {
        LabelSelector::from_object(&self.spec.selector)
            .ok()
            .filter(|s| !s.is_empty())
    }

    pub fn is_indexed(&self) -> bool {
        self.spec.completion_mode.as_deref() == Some("Indexed")
    }

    pub fn is_suspended(&self) -> bool {
        self.spec.suspend == Some(true)
    }

    pub fn is_complete(&self) -> bool {
        condition::holds(&self.status.conditions, "Complete")
    }

    /// Complete or failed: nothing more will happen to it.
    pub fn is_finished(&self) -> bool {
        self.is_complete() || condition::holds(&self.status.conditions, "Failed")
    }

    /// Somebody else looks after this Job.
    pub fn is_managed_elsewhere(&self) -> bool {
        let manager = self.spec.managed_by.as_deref();
        manager.is_some_and(|name| name != "kubernetes.io/job-controller")
    }

    /// Pods on their way out are replaced only when they have ended.
    pub fn replaces_only_ended_pods(&self) -> bool {
        self.spec.pod_replacement_policy.as_deref() == Some("Failed") || self.spec.pod_failure_policy.is_some()
    }
}

impl JobStatus {
    /// For a merge patch: what is absent is there as null, so that it goes away.
    pub fn for_patch(&self) -> Value {
        let number = |n: i64| if n == 0 { Value::Null } else { json!(n) };
        let list = |uids: &[String]| if uids.is_empty() { Value::Null } else { json!(uids) };
        let text = |t: &str| if t.is_empty() { Value::Null } else { json!(t) };
        let uncounted = &self.uncounted_terminated_pods;
        json!({
            "active": number(self.active),
            "ready": self.ready,
            "terminating": self.terminating,
            "succeeded": number(self.succeeded),
            "failed": number(self.failed),
            "startTime": self.start_time,
            "completionTime": self.completion_time,
            "completedIndexes": text(&self.completed_indexes),
            "failedIndexes": self.failed_indexes,
            "uncountedTerminatedPods": {"succeeded": list(&uncounted.succeeded), "failed": list(&uncounted.failed)},
            "conditions": if self.conditions.is_empty() { Value::Null } else { json!(self.conditions) },
        })
    }
}
