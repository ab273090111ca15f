//! The kinds of the coordination group.

use crate::kind::KindDef;

pub const ALL: &[&KindDef] = &[];
