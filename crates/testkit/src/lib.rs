//! What the black-box tests (`tests/*.rs`) share: the real `orlop` binary on a free port with a data directory of its
//! own, the real kubectl and other clients pointed at it, and a plain HTTPS client for what well-behaved clients never
//! send. Nothing here is shipped.
//!
//! A test reads like a terminal session:
//!
//! ```no_run
//! # use orlop_testkit::Server;
//! let server = Server::start();
//! server.run("kubectl create namespace a");
//! assert!(server.fails("kubectl create namespace a").contains("AlreadyExists"));
//! ```
//!
//! Rules: a test starts its own server; it waits for conditions ([`eventually`]), never for time; a missing tool is a
//! failure that says what to install. When a server goes away at the end of a test, its log must be free of panics.

mod agent_home;
mod binary;
mod containerd;
mod etcd;
mod fixtures;
mod http;
mod images;
pub mod machine;
mod manifests;
pub mod network;
mod nodes;
mod python;
mod runtime;
mod server;
mod shell;
mod users;
mod wait;

pub use agent_home::AgentHome;
pub use binary::{orlop, workspace_root};
pub use containerd::{Containerd, Leftovers};
pub use etcd::Members;
pub use fixtures::fixture;
pub use http::{Http, HttpResponse, Identity, Stream};
pub use images::build as build_images;
pub use manifests::{DEPLOYMENT, config_map_manifest, pod_manifest};
pub use nodes::add_node;
pub use python::{python, script};
pub use runtime::{NodeRuntime, TestRuntime};
pub use server::{Launch, Server};
pub use shell::{Ran, require};
pub use users::User;
pub use wait::{PATIENCE, eventually, until};
