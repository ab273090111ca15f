//! NetworkPolicies enforced on a node: policies, pods and namespaces become one plan (pure), which is applied to nf_tables
//! as differences, as services are.
//!
//! ```text
//!  policies, pods, namespaces ──► Planner ──► PolicyPlan + what changed ──► Tables: one transaction a family
//! ```
//!
//! Pods share sets and policies their chains, so that a pod that comes or goes is an element or two wherever it is a peer,
//! and a chain where it is isolated itself. Nothing but policies is watched until there is one.

mod attached;
mod facts;
mod objects;
mod plan;
mod planner;
mod rules;
mod run;
#[cfg(test)]
mod tests;

pub use attached::AttachedPods;
pub use run::{Options, PolicyError, clean_up, run};
