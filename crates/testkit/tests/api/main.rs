//! Black-box tests of the control plane: the real binary, real clients, nodes at most simulated.
//!
//! One binary for all of them: each would link everything anew.

mod access;
mod admission;
mod admission_versions;
mod aggregation;
mod authentication;
mod bad_connections;
mod bad_input;
mod clients;
mod cluster;
mod controllers;
mod controllers_deletion;
mod custom_resources;
mod durability;
mod envtest;
mod etcd;
mod extending;
mod first_minute;
mod health;
mod images;
mod kubectl_changes;
mod kubectl_verbs;
mod lifecycle;
mod metrics;
mod mutated_input;
mod notes;
mod operators;
mod protobuf;
mod public_kinds;
mod quota;
mod scheduling;
mod shared_etcd;
mod webhook_server;
mod why;
