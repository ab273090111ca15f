//! Names for services and pods: services and endpoint slices become records (pure), and a server answers for them.
//!
//! ```text
//!  services, slices, namespaces ──► zone::Directory ──► zone::Zone ◄── server (UDP, TCP) ◄── pods
//!  resolv.conf, ConfigMap kube-dns ──────────────────► forward::Forward ◄──┘      └──► metrics
//! ```
//!
//! `run` starts all of it, and keeps the Service `kube-dns` and the node's endpoint slices. Invariants: every queue, cache
//! and number of clients has a bound; nothing a client sends makes the server ask itself, answer an answer, or answer with
//! more than 1,232 bytes of UDP.
//!
//! Upstream: the DNS-based service discovery specification 1.1.0, and CoreDNS' kubernetes, forward and cache plugins.

pub mod forward;
pub mod health;
pub mod metrics;
pub mod objects;
mod publish;
pub mod resources;
mod run;
#[cfg(test)]
mod run_tests;
pub mod server;
#[cfg(test)]
mod testing;
mod wire;
pub mod zone;

pub use resources::{Resources, resources};
pub use run::{Options, Publish, Running, StartError, run};
