//! The kinds of the apps group.

use crate::kind::KindDef;

pub mod controller_revision;
pub mod daemon_set;
pub mod deployment;
pub mod replica_set;
pub mod stateful_set;

pub const ALL: &[&KindDef] = &[
    &controller_revision::DEF,
    &daemon_set::DEF,
    &deployment::DEF,
    &replica_set::DEF,
    &stateful_set::DEF,
];
