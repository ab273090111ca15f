//! kube-scheduler's decisions, number for number: a pure core (cluster state → decision) and a thin shell around it.

pub mod config;
pub mod queue;
