//! The kinds of the batch group.

use crate::kind::KindDef;

pub const ALL: &[&KindDef] = &[];
