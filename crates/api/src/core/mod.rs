//! The kinds of the core group.

use crate::kind::KindDef;

pub mod pod_spec;
pub mod pod_template;

pub const ALL: &[&KindDef] = &[];
