//! Simulated nodes by the thousand: they register, send heartbeats and "run" their pods, at the cost of a few hundred
//! bytes a pod and no process at all.
//!
//! One watch on pods, one heap of times at which something is due, one loop. What a pod does next is decided by a pure
//! function (`life`) from what is known of it and how it is to behave (`behaviour`: annotations of the pod or rules from
//! a file); what is said about it is built in `report`, and when a condition turned in `conditions`. Nodes are in
//! `nodes`, what the API server may ask them in `kubelets`. Users' view: docs/simulated-nodes.md.

pub mod behaviour;
mod conditions;
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

use orlop_base::{BoxFuture, Clock, Shutdown};
use orlop_client::Api;
use tokio::sync::mpsc;

pub use behaviour::{Rules, RulesError};
pub use kubelets::Kubelets;

/// Questions about what runs that may wait.
const QUESTIONS: usize = 64;

/// What the nodes are like.
#[derive(Clone, Debug)]
pub struct Options {
    pub count: usize,
    /// Names are PREFIX-0, PREFIX-1 …
    pub prefix: String,
    pub cpu: String,
    pub memory: String,
    pub pods: u32,
    /// Nodes are spread over so many zones; 0: no zone labels.
    pub zones: usize,
    pub rules: Rules,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            count: 0,
            prefix: "sim".to_string(),
            cpu: "32".to_string(),
            memory: "256Gi".to_string(),
            pods: 110,
            zones: 3,
            rules: Rules::default(),
        }
    }
}

impl Options {
    fn name(&self, node: usize) -> String {
        format!("{}-{node}", self.prefix)
    }

    /// The number of one of these nodes by its name.
    fn number(&self, name: &str) -> Option<usize> {
        let digits = name.strip_prefix(&*self.prefix)?.strip_prefix('-')?;
        let number: usize = digits.parse().ok()?;
        // No second name for a node: sim-007 and sim-+7 are none.
        (number < self.count && number.to_string() == digits).then_some(number)
    }
}

/// The nodes, which live while the future runs, until the shutdown; and the way to their kubelets. Nodes that are
/// registered already are taken over as they are.
pub fn prepare(api: Api, options: Options, clock: Clock, shutdown: Shutdown) -> (Kubelets, BoxFuture<'static, ()>) {
    let faults = nodes::Faults::default();
    let (sender, questions) = mpsc::channel(QUESTIONS);
    let kubelets = Kubelets::new(api.clone(), options.clone(), clock.clone(), faults.clone(), sender);
    let nodes = nodes::keep(
        api.clone(),
        options.clone(),
        clock.clone(),
        shutdown.clone(),
        faults.clone(),
    );
    let pods = pods::keep(api, options, clock, shutdown, faults, questions);
    let run = async {
        tokio::join!(nodes, pods);
    };
    (kubelets, Box::pin(run))
}
