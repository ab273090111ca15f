//! kube-scheduler's decisions, number for number: a pure core (cluster state → decision) and a thin shell around it.

pub mod model;

pub mod cluster;
pub mod framework;
pub mod plugins;

pub mod columns;
pub mod cycle;
pub mod explain;
pub mod fit_error;
pub mod preemption;
pub mod timing;
pub mod tournament;

pub mod config;
pub mod extender;
pub mod metrics;
pub mod queue;
pub mod serving;
pub mod shell;
