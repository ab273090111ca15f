//! The kinds of the scheduling.k8s.io group.

use crate::kind::KindDef;

pub mod priority_class;

pub const ALL: &[&KindDef] = &[&priority_class::DEF];
