//! The life of a pod on this node.
//!
//! ```text
//! desired pod  ─┐
//! observed      ├─▶ steps::next_steps ─▶ workers (takes the steps) ─▶ runtime, volumes, images …
//! worker state  │                                                        │ observe again
//! now          ─┘─▶ status::pod_status ─▶ writer ─▶ API server ◀─────────┘
//! ```
//!
//! Deciding is pure (`steps`, `status`); `workers` is the shell: one task a pod, which observes, decides and acts, and is
//! woken by a changed pod, by the runtime, by probes and by its own timer. `worker_state` is what a worker knows beyond what
//! can be read back from the runtime; a new kubelet process starts with an empty one and restarts nothing.

pub mod interfaces;
pub mod node_allocator;
pub mod node_configurator;
pub mod node_environment;
mod node_prober;
pub mod observed;
pub mod policy;
pub mod resize;
pub mod status;
pub mod steps;
mod termination_message;
#[cfg(test)]
mod testing;
pub mod worker_state;
pub mod workers;
pub mod writer;
