//! The kinds of the certificates group.

use crate::kind::KindDef;

pub const ALL: &[&KindDef] = &[];
