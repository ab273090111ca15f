//! Why a pod fits nowhere: who rejected which node, and the sentence that users read.

use std::collections::{BTreeSet, HashMap};

use crate::cluster::node::NodeId;
use crate::framework::verdict::Rejection;

#[derive(Clone, Debug, Default)]
pub struct Diagnosis {
    /// Nodes with the plugin that rejected each.
    pub nodes: Vec<(NodeId, &'static str, Rejection)>,
    /// Nodes that were not looked at, as they could not do.
    pub others: Option<Rejection>,
    /// A plugin ruled out every node before any was looked at.
    pub pre_filter: Option<(&'static str, Rejection)>,
    /// Everyone who rejected a node: what must change for the pod to be tried again.
    pub rejected_by: BTreeSet<&'static str>,
}

#[derive(Clone, Debug, Default)]
pub struct FitError {
    pub all_nodes: usize,
    pub diagnosis: Diagnosis,
    /// What PostFilter plugins have to say.
    pub post_filter: String,
}

impl FitError {
    /// `0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint(s). …`
    ///
    /// Upstream: FitError.Error in pkg/scheduler/framework/types.go (v1.36).
    pub fn message(&self) -> String {
        if self.all_nodes == 0 {
            return NO_NODES.to_string();
        }
        let mut text = format!("0/{} nodes are available:", self.all_nodes);
        if let Some((_, rejection)) = &self.diagnosis.pre_filter {
            text += &format!(" {}.", rejection.message());
        } else {
            let reasons = self.reasons();
            if !reasons.is_empty() {
                text += &format!(" {}.", reasons.join(", "));
            }
        }
        if !self.post_filter.is_empty() {
            text += &format!(" {}", self.post_filter);
        }
        text
    }

    /// `<count> <reason>`, sorted as text.
    pub fn reasons(&self) -> Vec<String> {
        let mut counts: HashMap<&str, usize> = HashMap::new();
        for (_, _, rejection) in &self.diagnosis.nodes {
            for reason in rejection.reasons() {
                *counts.entry(reason).or_default() += 1;
            }
        }
        let missing = self.all_nodes.saturating_sub(self.diagnosis.nodes.len());
        if let (Some(others), true) = (&self.diagnosis.others, missing > 0) {
            for reason in others.reasons() {
                *counts.entry(reason).or_default() += missing;
            }
        }
        let mut lines: Vec<String> = counts.into_iter().map(|(reason, n)| format!("{n} {reason}")).collect();
        lines.sort();
        lines
    }
}

pub const NO_NODES: &str = "no nodes available to schedule pods";
