//! Metrics in the Prometheus text format, for every component.

pub mod process;
pub mod series;
pub mod text;
