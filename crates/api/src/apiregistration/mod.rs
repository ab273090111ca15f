//! The kinds of the apiregistration group.

use crate::kind::KindDef;

pub const ALL: &[&KindDef] = &[];
