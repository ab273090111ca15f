//! The kinds of the resource group.

use crate::kind::KindDef;

pub const ALL: &[&KindDef] = &[];
