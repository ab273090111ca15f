//! `orlop bench`: load on any Kubernetes API, and what it made of it.

pub mod client;
pub mod measure;
pub mod workloads;
