//! CronJobs.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::template::TemplateMeta;
use super::{Kind, Meta};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CronJob {
    pub metadata: Meta,
    pub spec: CronJobSpec,
    pub status: CronJobStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CronJobSpec {
    pub schedule: String,
    pub time_zone: Option<String>,
    pub starting_deadline_seconds: Option<i64>,
    /// `Allow`, `Forbid` or `Replace`.
    pub concurrency_policy: String,
    pub suspend: Option<bool>,
    pub job_template: JobTemplate,
    pub successful_jobs_history_limit: Option<i64>,
    pub failed_jobs_history_limit: Option<i64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct JobTemplate {
    pub metadata: TemplateMeta,
    /// Only passed on.
    pub spec: Value,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CronJobStatus {
    pub active: Vec<JobReference>,
    pub last_schedule_time: Option<Timestamp>,
    pub last_successful_time: Option<Timestamp>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct JobReference {
    pub kind: String,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub api_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
}

impl Kind for CronJob {
    const API_VERSION: &'static str = "batch/v1";
    const KIND: &'static str = "CronJob";
    const RESOURCE: &'static str = "cronjobs";

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl CronJobStatus {
    /// For a merge patch: what is absent is there as null, so that it goes away.
    pub fn for_patch(&self) -> Value {
        json!({
            "active": if self.active.is_empty() { Value::Null } else { json!(self.active) },
            "lastScheduleTime": self.last_schedule_time,
            "lastSuccessfulTime": self.last_successful_time,
        })
    }
}
