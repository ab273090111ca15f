//! PodDisruptionBudgets.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Condition, Kind, LabelSelector, Meta};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PodDisruptionBudget {
    pub metadata: Meta,
    pub spec: BudgetSpec,
    pub status: BudgetStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BudgetSpec {
    /// A number, or a percentage in a string.
    pub min_available: Option<Value>,
    pub max_unavailable: Option<Value>,
    /// An empty one selects all pods, none none.
    pub selector: Option<LabelSelector>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BudgetStatus {
    pub observed_generation: i64,
    /// Pods that were evicted and have not been seen on their way out yet: when.
    pub disrupted_pods: BTreeMap<String, Timestamp>,
    pub disruptions_allowed: i64,
    pub current_healthy: i64,
    pub desired_healthy: i64,
    pub expected_pods: i64,
    pub conditions: Vec<Condition>,
}

impl Kind for PodDisruptionBudget {
    const API_VERSION: &'static str = "policy/v1";
    const KIND: &'static str = "PodDisruptionBudget";
    const RESOURCE: &'static str = "poddisruptionbudgets";

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl PodDisruptionBudget {
    pub fn covers(&self, pod: &Meta) -> bool {
        let selector = self.spec.selector.as_ref();
        selector.is_some_and(|selector| selector.matches(&pod.labels))
    }
}
