//! `orlop bench`: load on any Kubernetes API or scheduler, and what it made of it.

pub(crate) mod client;
pub(crate) mod controllers;
pub(crate) mod extensions;
pub(crate) mod hostile;
pub(crate) mod measure;
pub(crate) mod own_server;
pub(crate) mod pods;
pub(crate) mod process;
pub(crate) mod reference;
pub(crate) mod scheduling;
pub(crate) mod services;
pub(crate) mod workloads;
