//! Simulated nodes by the thousand: they register, send heartbeats and "run" their pods, at the cost of a few hundred
//! bytes a pod and no process at all.
//!
//! One watch on pods, one heap of times at which something is due, one loop. What a pod does next is decided by a pure
//! function (`life`) from what is known of it and how it is to behave (`behaviour`: annotations of the pod or rules from
//! a file); what is said about it is built in `report`, and when a condition turned in `conditions`. What nodes are like is
//! in `groups`, their life in `nodes`, whether a pod may run on one in `admission`, what the API server may ask them in
//! `kubelets`. Users' view: docs/simulated-nodes.md.

mod admission;
pub mod behaviour;
mod conditions;
pub mod groups;
mod kubelets;
mod life;
mod nodes;
mod pods;
mod report;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod wire;

use std::sync::Arc;

use orlop_base::{BoxFuture, Clock, Shutdown};
use orlop_client::{Api, Event, Recorder};
use tokio::sync::mpsc;

pub use behaviour::{Rules, RulesError};
pub use groups::{Group, GroupError, Groups};
pub use kubelets::Kubelets;

/// Questions about what runs that may wait.
const QUESTIONS: usize = 64;

/// Which nodes there are, and how their pods behave.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub nodes: Arc<Groups>,
    pub rules: Rules,
}

/// The nodes, which live while the future runs, until the shutdown; and the way to their kubelets. Nodes that are
/// registered already are allocated over as they are.
pub fn prepare(api: Api, options: Options, clock: Clock, shutdown: Shutdown) -> (Kubelets, BoxFuture<'static, ()>) {
    let seen = nodes::NodeCache::new(options.nodes.clone());
    let (sender, questions) = mpsc::channel(QUESTIONS);
    let kubelets = Kubelets::new(api.clone(), options.clone(), clock.clone(), seen.clone(), sender);
    let nodes = nodes::keep(
        api.clone(),
        options.clone(),
        clock.clone(),
        shutdown.clone(),
        seen.clone(),
    );
    let run = async {
        let (recorder, writing) = Recorder::start(api.clone(), "kubelet", clock.clone(), shutdown.clone());
        let record = Box::new(move |node: &str, event: Event| recorder.core_v1_source("kubelet", node).record(event));
        let pods = pods::keep(api, options, clock, shutdown, seen, record, questions);
        let _ = tokio::join!(nodes, pods, writing);
    };
    (kubelets, Box::pin(run))
}
