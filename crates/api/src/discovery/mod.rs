//! The kinds of the discovery group.

use crate::kind::KindDef;

pub const ALL: &[&KindDef] = &[];
