//! Black-box tests of real nodes: the real binary on a real containerd, real networks and emulated machines.
//!
//! One binary for all of them: each would link everything anew.

mod cri;
mod machine;
mod node_agent;
mod pods;
mod services;
mod specs;
mod tidying;
mod top;
mod volumes;
