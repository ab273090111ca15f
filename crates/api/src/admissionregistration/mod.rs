//! The kinds of the admissionregistration group.

use crate::kind::KindDef;

pub const ALL: &[&KindDef] = &[];
