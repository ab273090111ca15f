//! The kinds of the autoscaling group.

use crate::kind::KindDef;

pub mod horizontal_pod_autoscaler;
pub mod horizontal_pod_autoscaler_v1;
pub mod metrics;
mod metrics_v1;
pub mod scale;

pub const ALL: &[&KindDef] = &[&horizontal_pod_autoscaler::DEF, &horizontal_pod_autoscaler_v1::DEF];
