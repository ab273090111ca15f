//! Black-box tests of real nodes: the real binary with real containers, real networks and emulated machines. They run on
//! the embedded runtime, `ORLOP_TEST_RUNTIME=containerd` has all of them run on containerd; a selection always does.
//!
//! One binary for all of them: each would link everything anew.

mod cri;
mod embedded;
mod forward;
mod lifecycle;
mod machine;
mod node_agent;
mod pods;
mod services;
mod several;
mod specs;
mod tidying;
mod top;
mod volumes;
