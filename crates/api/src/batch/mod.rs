//! The kinds of the batch group.

use crate::kind::KindDef;

pub mod cron_job;
pub mod cron_schedule;
pub mod job;
pub mod job_indexes;
pub mod job_spec;
pub mod job_status;

pub const ALL: &[&KindDef] = &[&cron_job::DEF, &job::DEF];
