//! The kinds of the apps group.

use crate::kind::KindDef;

pub const ALL: &[&KindDef] = &[];
