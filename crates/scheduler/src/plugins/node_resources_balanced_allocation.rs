//! NodeResourcesBalancedAllocation: prefers nodes whose resources are used evenly once the pod is there.

use crate::cluster::Cluster;
use crate::cluster::node::{NodeId, NodeInfo};
use crate::cluster::pod::PodInfo;
use crate::cluster::resources::is_scalar;
use crate::framework::points::{AnyScore, MAX_SCORE, Normalize, Plugin, Scope, Score};
use crate::framework::verdict::PreScore;

pub struct NodeResourcesBalancedAllocation {
    resources: Vec<String>,
}

impl Default for NodeResourcesBalancedAllocation {
    fn default() -> NodeResourcesBalancedAllocation {
        NodeResourcesBalancedAllocation::new(vec!["cpu".into(), "memory".into()])
    }
}

impl NodeResourcesBalancedAllocation {
    pub fn new(resources: Vec<String>) -> NodeResourcesBalancedAllocation {
        NodeResourcesBalancedAllocation { resources }
    }
}

impl Plugin for NodeResourcesBalancedAllocation {
    fn name(&self) -> &'static str {
        "NodeResourcesBalancedAllocation"
    }

    fn score(&self) -> Option<&dyn AnyScore> {
        Some(self)
    }
}

impl Score for NodeResourcesBalancedAllocation {
    /// Resource and how much the pod asks of it.
    type State = Vec<(String, i64)>;
    const SCOPE: Scope = Scope::Node;
    const NORMALIZE: Normalize = Normalize::AsIs;

    fn pre_score(&self, pod: &PodInfo, _: &Cluster, _: &[NodeId]) -> PreScore<Self::State> {
        let asked: Vec<(String, i64)> = (self.resources.iter())
            .map(|name| (name.clone(), pod.class.requests.exact.amount(name)))
            .collect();
        if asked.iter().all(|(_, amount)| *amount == 0) {
            return PreScore::Skip;
        }
        let says_something = |(name, amount): &(String, i64)| *amount != 0 || !is_scalar(name);
        PreScore::Run(asked.into_iter().filter(says_something).collect())
    }

    fn score(&self, asked: &Self::State, _: &PodInfo, node: &NodeInfo) -> i64 {
        let balance = |with_pod: bool| {
            let share = |(name, amount): &(String, i64)| {
                let have = node.allocatable.amount(name);
                let used = node
                    .requested
                    .amount(name)
                    .saturating_add(if with_pod { *amount } else { 0 });
                (have != 0).then(|| (used as f64 / have as f64).clamp(0.0, 1.0))
            };
            evenness(asked.iter().filter_map(share))
        };
        MAX_SCORE / 2 + (MAX_SCORE / 2 + balance(true) - balance(false)) / 2
    }
}

/// 100 if all shares are equal, less the more they differ (by their standard deviation).
fn evenness(shares: impl Iterator<Item = f64> + Clone) -> i64 {
    let count = shares.clone().count();
    let deviation = match count {
        0 | 1 => 0.0,
        2 => {
            let mut both = shares;
            let (a, b) = (both.next().unwrap_or(0.0), both.next().unwrap_or(0.0));
            ((a - b) / 2.0).abs()
        }
        _ => {
            let mean = shares.clone().sum::<f64>() / count as f64;
            let variance = shares.map(|s| (s - mean) * (s - mean)).sum::<f64>() / count as f64;
            variance.sqrt()
        }
    };
    ((1.0 - deviation) * MAX_SCORE as f64) as i64
}
