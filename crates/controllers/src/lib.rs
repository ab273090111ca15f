//! Controllers: they bring the cluster to the state that its objects specify.
//!
//! Objects come in through shared caches that follow the cluster (`runtime`), writes go out through the API server. A
//! controller gets *which* object to look at, never *what* changed: it reads the caches, a pure function `plan` says what
//! is to be done, and a thin shell does it. The next reconcile of the same key waits until the caches have observed what
//! was written, so that nothing is decided on a snapshot older than one's own writes.
//!
//! One file (or folder) a controller, with its `DEF`; `ALL` is the list. `docs/how-to/add-a-controller.md` says how to add
//! one.

mod attach_detach;
mod backends;
mod bootstrap_tokens;
mod certificates;
mod clusterrole_aggregation;
#[cfg(test)]
mod convergence;
mod cron_job;
mod daemon_set;
mod deployment;
mod discovery;
mod disruption;
mod endpoint_slice;
mod endpoint_slice_mirroring;
mod endpoints;
mod ephemeral_volume;
mod garbage_collector;
pub mod health;
mod horizontal_pod_autoscaler;
mod index;
mod job;
mod local_path;
mod namespace;
mod node_ipam;
mod node_lifecycle;
pub mod objects;
mod ownership;
mod persistent_volume;
mod pod_gc;
mod pod_template;
mod protection;
mod replica_set;
mod required_during_execution;
mod resource_claim;
mod resource_quota;
mod revisions;
pub mod run;
pub mod runtime;
mod selection;
mod service_account;
mod service_lb;
pub mod settings;
mod stateful_set;
mod taint_eviction;
#[cfg(test)]
mod testing;
mod ttl;
mod ttl_after_finished;
mod volume_expand;

pub use health::Health;
pub use run::{Options, RunError, run};
pub use runtime::{Def, Metrics};
pub use selection::{UnknownController, select};
pub use settings::Settings;

/// All controllers, in the order in which they start.
pub const ALL: &[&Def] = &[
    &deployment::DEF,
    &replica_set::REPLICA_SET,
    &replica_set::REPLICATION_CONTROLLER,
    &daemon_set::DEF,
    &stateful_set::DEF,
    &node_lifecycle::DEF,
    &endpoints::DEF,
    &endpoint_slice::DEF,
    &endpoint_slice_mirroring::DEF,
    &service_lb::DEF,
    &taint_eviction::DEF,
    &pod_gc::DEF,
    &persistent_volume::DEF,
    &protection::CLAIMS,
    &protection::VOLUMES,
    &protection::ATTRIBUTES_CLASSES,
    &ephemeral_volume::DEF,
    &local_path::DEF,
    &attach_detach::DEF,
    &volume_expand::DEF,
    &resource_claim::DEF,
    &job::DEF,
    &cron_job::DEF,
    &ttl_after_finished::DEF,
    &service_account::tokens::DEF,
    &service_account::accounts::DEF,
    &service_account::root_ca::DEF,
    &service_account::cleaner::DEF,
    &clusterrole_aggregation::DEF,
    &ttl::DEF,
    &namespace::DEF,
    &garbage_collector::DEF,
    &horizontal_pod_autoscaler::DEF,
    &disruption::DEF,
    &node_ipam::DEF,
    &required_during_execution::DEF,
    &resource_quota::DEF,
    &certificates::approve::DEF,
    &certificates::sign::DEF,
    &certificates::clean::DEF,
    &bootstrap_tokens::sign::DEF,
    &bootstrap_tokens::clean::DEF,
];
