//! The kinds of the events group.

use crate::kind::KindDef;

mod event;

pub const ALL: &[&KindDef] = &[&event::DEF];
