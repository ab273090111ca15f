//! The kinds of the flowcontrol group.

use crate::kind::KindDef;

pub const ALL: &[&KindDef] = &[];
