//! The kinds of the rbac group.

use crate::kind::KindDef;

pub const ALL: &[&KindDef] = &[];
