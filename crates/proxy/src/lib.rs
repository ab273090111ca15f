//! Services made reachable from a node: services and endpoint slices become one plan (pure), and a back end applies it
//! to the kernel (iptables, nftables, IPVS) or in this process (userspace).
//!
//! ```text
//!  services, slices, node ──► plan::Planner ──► Plan + which service ports changed ──► Backend::sync
//! ```
//!
//! Upstream: pkg/proxy (v1.36).

pub mod backend;
mod choice;
pub mod config;
pub mod conntrack;
pub mod engine;
pub mod health;
pub mod metrics;
pub mod objects;
pub mod plan;
pub mod policy;
mod run;
pub mod settings;
#[cfg(test)]
mod testing;

pub use backend::{Backend, Mode, ParseModeError};
pub use choice::ModeError;
pub use config::Config;
pub use metrics::Metrics;
pub use plan::{Change, Plan, Planner};
pub use run::{CONFIG_KEY, CONFIG_MAP, Options, RunError, run};
pub use settings::Settings;
