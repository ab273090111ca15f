//! Worker nodes of this machine: each is a network namespace, a host name, a cgroup and a directory of its own, and a process
//! (`orlop agent`) with the kubelet, the service proxy, DNS and network policies.
//!
//! `orlop up` keeps the agents running (`workers`), connects their namespaces (`links`), and gives them credentials and
//! what else they need to know in a file (`worker_node`). An agent reads what it is to do from its standard input; when that
//! ends, whoever started it is gone, and so it goes, too: its pods go on, as the machine's own do, until both are back.

mod agent;
mod links;
pub(crate) mod ranges;
mod record;
mod rights;
mod worker_node;
mod workers;

pub(crate) use agent::run as run_agent;
pub(crate) use links::{WorkerLink, WorkerLinks, used_networks};
pub(crate) use record::WorkersRecord;
pub(crate) use worker_node::WorkerNode;
pub(crate) use workers::{Workers, WorkersOptions};
