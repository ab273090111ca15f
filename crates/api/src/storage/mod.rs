//! The kinds of the storage group.

use crate::kind::KindDef;

pub const ALL: &[&KindDef] = &[];
