//! The kinds of the node group.

use crate::kind::KindDef;

pub const ALL: &[&KindDef] = &[];
