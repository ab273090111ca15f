//! Services made reachable from a node: services and endpoint slices become one plan (pure), and a back end brings the
//! kernel (iptables, nftables, IPVS) or this process (userspace) to it.
//!
//! ```text
//!  services, slices, node ──► plan::Planner ──► Plan + which service ports changed ──► Backend::sync
//! ```
//!
//! Upstream: pkg/proxy (v1.36).

pub mod backend;
pub mod config;
pub mod netlink;
pub mod objects;
pub mod plan;
pub mod route;
pub mod settings;

pub use backend::{Backend, Mode};
pub use plan::{Change, Plan, Planner};
pub use settings::Settings;
