//! The kinds of the networking group.

use crate::kind::KindDef;

pub const ALL: &[&KindDef] = &[];
