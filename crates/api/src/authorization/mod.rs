//! The kinds of the authorization group.

use crate::kind::KindDef;

pub const ALL: &[&KindDef] = &[];
