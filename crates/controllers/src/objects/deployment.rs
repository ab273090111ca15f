//! Deployments.

use orlop_api::int_or_string::{Round, scaled};
use orlop_api::selector::LabelSelector;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Condition, Kind, Meta, PodTemplate};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Deployment {
    pub metadata: Meta,
    pub spec: DeploymentSpec,
    pub status: DeploymentStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DeploymentSpec {
    pub replicas: Option<i64>,
    pub selector: Value,
    pub template: PodTemplate,
    pub strategy: Strategy,
    pub min_ready_seconds: u32,
    pub revision_history_limit: Option<i64>,
    pub progress_deadline_seconds: Option<i64>,
    pub paused: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Strategy {
    pub r#type: String,
    pub rolling_update: RollingUpdate,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RollingUpdate {
    pub max_surge: Option<Value>,
    pub max_unavailable: Option<Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DeploymentStatus {
    pub observed_generation: i64,
    pub replicas: i64,
    pub updated_replicas: i64,
    pub ready_replicas: i64,
    pub available_replicas: i64,
    pub unavailable_replicas: i64,
    pub terminating_replicas: Option<i64>,
    pub collision_count: Option<i64>,
    pub conditions: Vec<Condition>,
}

impl Kind for Deployment {
    const API_VERSION: &'static str = "apps/v1";
    const KIND: &'static str = "Deployment";
    const RESOURCE: &'static str = "deployments";

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

/// Upstream: this number of seconds or of revisions stands for "no limit".
const UNLIMITED: i64 = i32::MAX as i64;

impl Deployment {
    /// Its ReplicaSets and pods; none if the selector can't be read or selects everything.
    pub fn selector(&self) -> Option<LabelSelector> {
        LabelSelector::from_object(&self.spec.selector)
            .ok()
            .filter(|s| !s.is_empty())
    }

    pub fn replicas(&self) -> i64 {
        self.spec.replicas.unwrap_or(1)
    }

    pub fn is_rolling(&self) -> bool {
        self.spec.strategy.r#type != "Recreate"
    }

    /// How many pods there may be beyond the wanted ones.
    pub fn max_surge(&self) -> i64 {
        match self.is_rolling() {
            true => scaled(
                self.spec.strategy.rolling_update.max_surge.as_ref(),
                self.replicas(),
                Round::Up,
            ),
            false => 0,
        }
    }

    /// How many of the wanted pods may be missing. At least one if there may be none beyond: else nothing could move.
    pub fn max_unavailable(&self) -> i64 {
        if !self.is_rolling() || self.replicas() == 0 {
            return 0;
        }
        let given = self.spec.strategy.rolling_update.max_unavailable.as_ref();
        let some = scaled(given, self.replicas(), Round::Down);
        let some = if some == 0 && self.max_surge() == 0 { 1 } else { some };
        some.min(self.replicas())
    }

    pub fn min_available(&self) -> i64 {
        self.replicas() - self.max_unavailable()
    }

    pub fn max_replicas(&self) -> i64 {
        self.replicas() + self.max_surge()
    }

    /// In seconds; none if progress is not watched.
    pub fn progress_deadline(&self) -> Option<i64> {
        self.spec.progress_deadline_seconds.filter(|s| *s != UNLIMITED)
    }

    pub fn history_limit(&self) -> Option<usize> {
        let limit = self.spec.revision_history_limit.filter(|n| *n != UNLIMITED)?;
        Some(usize::try_from(limit).unwrap_or(0))
    }
}
