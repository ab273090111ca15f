//! The kubelet: it runs the containers of the pods that are assigned to this node.
//!
//! Pods come from the API server, from files and from a URL. Each has a worker, which asks a pure function for the next steps,
//! given the pod, what the runtime shows and the time, and takes them; another pure function computes the pod's status from
//! the same observation. A pod that is stuck delays no other.

pub mod agent;
mod blocking;
pub mod cgroups;
pub mod config;
pub mod cpus;
pub mod devices;
pub mod events;
pub mod eviction;
pub mod fleet;
pub mod gc;
mod grpc;
pub mod hosted;
pub mod images;
mod json;
pub mod logs;
pub mod metrics;
pub mod node;
pub mod objects;
pub mod pod;
pub mod probes;
pub mod server;
pub mod sources;
pub mod spec;
pub mod stats;
#[cfg(test)]
mod test_bus;
#[cfg(test)]
mod testing;
pub mod volumes;
