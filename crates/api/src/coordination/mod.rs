//! The kinds of the coordination.k8s.io group.

use crate::kind::KindDef;

pub mod lease;

pub const ALL: &[&KindDef] = &[&lease::DEF];
