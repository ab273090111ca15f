//! `orlop bench`: load on any Kubernetes API or scheduler, and what it made of it.

pub mod client;
pub mod controllers;
pub mod hostile;
pub mod measure;
pub mod own_server;
pub mod pods;
pub mod process;
pub mod scheduling;
pub mod services;
pub mod workloads;
