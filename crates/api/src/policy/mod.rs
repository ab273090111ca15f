//! The kinds of the policy group.

use crate::kind::KindDef;

pub const ALL: &[&KindDef] = &[];
