//! What the node, its pods and their containers use: `/stats/summary`, `/metrics/resource`, `/metrics/cadvisor`.
//!
//! [`gather`] asks the runtime and the kernel: what the machine uses ([`host`]), what control groups tell ([`groups`]), what
//! is on disk ([`disk`]) and in volumes ([`volumes`]). [`summary`] is the picture in the shape of Kubernetes'
//! stats/v1alpha1; [`metrics`] and [`cadvisor`] write it as Prometheus' text.

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
