//! What the node, its pods and their containers use: `/stats/summary`, `/metrics/resource`, `/metrics/cadvisor`.
//!
//! [`gather`] asks the runtime and the kernel; [`summary`] is the picture in the shape of Kubernetes' stats/v1alpha1;
//! [`metrics`] writes it as Prometheus' text.

pub mod gather;
pub mod host;
pub mod metrics;
pub mod summary;

pub use gather::{Gatherer, StatsError};
pub use summary::Summary;
