//! The kinds of the autoscaling group.

use crate::kind::KindDef;

pub const ALL: &[&KindDef] = &[];
