//! The kinds of the events group.

use crate::kind::KindDef;

pub const ALL: &[&KindDef] = &[];
