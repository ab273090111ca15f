//! The kinds of the authentication group.

use crate::kind::KindDef;

pub const ALL: &[&KindDef] = &[];
