//! The kinds of the policy group.

use crate::kind::KindDef;

pub mod pod_disruption_budget;

pub const ALL: &[&KindDef] = &[&pod_disruption_budget::DEF];
