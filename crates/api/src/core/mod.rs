//! The kinds of the core group.

use crate::kind::KindDef;

pub mod pod_spec;
pub mod pod_template;
pub mod replication_controller;

pub const ALL: &[&KindDef] = &[&replication_controller::DEF];
