//! HorizontalPodAutoscalers (`autoscaling/v2`), the scales they set, and the measurements they go by.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Condition, Kind, Meta, or_default};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct HorizontalPodAutoscaler {
    pub metadata: Meta,
    pub spec: AutoscalerSpec,
    pub status: AutoscalerStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AutoscalerSpec {
    pub scale_target_ref: TargetReference,
    pub min_replicas: Option<i64>,
    pub max_replicas: i64,
    pub metrics: Vec<MetricSpec>,
    pub behavior: Option<Behavior>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TargetReference {
    pub api_version: String,
    pub kind: String,
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct MetricSpec {
    pub r#type: String,
    pub resource: Option<ResourceMetric>,
    pub container_resource: Option<ResourceMetric>,
    /// Of APIs that are not there: only their names matter.
    pub pods: Option<OtherMetric>,
    pub object: Option<OtherMetric>,
    pub external: Option<OtherMetric>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ResourceMetric {
    pub name: String,
    pub container: String,
    pub target: MetricTarget,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct MetricTarget {
    pub average_utilization: Option<i64>,
    pub average_value: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct OtherMetric {
    pub metric: MetricName,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct MetricName {
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Behavior {
    pub scale_up: ScalingRules,
    pub scale_down: ScalingRules,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ScalingRules {
    pub stabilization_window_seconds: Option<i64>,
    /// `Max`, `Min` or `Disabled`.
    pub select_policy: Option<String>,
    pub policies: Vec<ScalingPolicy>,
    /// A quantity: 0.05 is five percent.
    pub tolerance: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ScalingPolicy {
    /// `Pods` or `Percent`.
    pub r#type: String,
    pub value: i64,
    pub period_seconds: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AutoscalerStatus {
    pub last_scale_time: Option<Timestamp>,
    pub current_replicas: i64,
    pub desired_replicas: i64,
    #[serde(deserialize_with = "or_default")]
    pub current_metrics: Vec<Value>,
    #[serde(deserialize_with = "or_default")]
    pub conditions: Vec<Condition>,
}

impl Kind for HorizontalPodAutoscaler {
    const API_VERSION: &'static str = "autoscaling/v2";
    const KIND: &'static str = "HorizontalPodAutoscaler";
    const RESOURCE: &'static str = "horizontalpodautoscalers";

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl AutoscalerStatus {
    /// For a merge patch: what is absent is there as null, so that it goes away.
    pub fn for_patch(&self) -> Value {
        json!({
            "lastScaleTime": self.last_scale_time,
            "currentReplicas": self.current_replicas,
            "desiredReplicas": self.desired_replicas,
            "currentMetrics": if self.current_metrics.is_empty() { Value::Null } else { json!(self.current_metrics) },
            "conditions": self.conditions,
        })
    }
}

/// `autoscaling/v1` Scale: the part of an object that says how many.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Scale {
    pub api_version: String,
    pub kind: String,
    pub metadata: Meta,
    pub spec: ScaleSpec,
    pub status: ScaleStatus,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct ScaleSpec {
    pub replicas: i64,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct ScaleStatus {
    pub replicas: i64,
    pub selector: String,
}

/// `metrics.k8s.io` PodMetrics.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PodMetrics {
    pub metadata: Meta,
    pub timestamp: Option<Timestamp>,
    /// `30s`
    pub window: String,
    #[serde(deserialize_with = "or_default")]
    pub containers: Vec<ContainerMetrics>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ContainerMetrics {
    pub name: String,
    #[serde(deserialize_with = "or_default")]
    pub usage: BTreeMap<String, String>,
}
