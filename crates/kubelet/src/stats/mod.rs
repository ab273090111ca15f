//! Usage of the node, its pods and their containers: `/stats/summary`, `/metrics/resource`, `/metrics/cadvisor`.
//!
//! [`gather`] collects it from the runtime and the kernel: the node ([`host`]), cgroups ([`groups`]), disk ([`disk`]) and
//! volumes ([`volumes`]). [`summary`] has the types of Kubernetes' stats/v1alpha1; [`metrics`] and [`cadvisor`] render them in
//! Prometheus' text format.

pub mod cadvisor;
pub mod disk;
pub mod gather;
pub mod groups;
pub mod host;
pub mod metrics;
pub mod summary;
pub mod volumes;

pub use gather::{Gatherer, Options, StatsError};
pub use summary::Summary;
pub use volumes::VolumeSizes;
