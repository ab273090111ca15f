//! The kinds of the discovery group.

use crate::kind::KindDef;

mod endpoint_slice;

pub const ALL: &[&KindDef] = &[&endpoint_slice::DEF];
