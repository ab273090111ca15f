//! Black-box tests of the control plane: the real binary, real clients, nodes at most simulated.
//!
//! One binary for all of them: each would link everything anew.

mod access;
mod bad_connections;
mod bad_input;
mod clients;
mod controllers;
mod controllers_deletion;
mod durability;
mod extending;
mod first_minute;
mod health;
mod kubectl_changes;
mod kubectl_verbs;
mod metrics;
mod mutated_input;
mod notes;
mod protobuf;
mod quota;
mod scheduling;
