//! The kinds of the scheduling group.

use crate::kind::KindDef;

pub const ALL: &[&KindDef] = &[];
