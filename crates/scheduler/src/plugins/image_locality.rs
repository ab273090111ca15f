//! ImageLocality: prefers nodes that have the pod's images already, the more so the more widely an image is spread.

use crate::cluster::Cluster;
use crate::cluster::node::{NodeId, NodeInfo};
use crate::cluster::pod::PodInfo;
use crate::framework::points::{AnyScore, MAX_SCORE, Normalize, Plugin, Scope, Score};
use crate::framework::verdict::PreScore;

const MIB: i64 = 1024 * 1024;
/// Less than this on a node is as good as nothing.
const LEAST: i64 = 23 * MIB;
/// For each container; more than this is no better.
const MOST: i64 = 1000 * MIB;

pub struct ImageLocality;

impl Plugin for ImageLocality {
    fn name(&self) -> &'static str {
        "ImageLocality"
    }

    fn score(&self) -> Option<&dyn AnyScore> {
        Some(self)
    }
}

impl Score for ImageLocality {
    /// The pod's images that some node has, each with the share of nodes that have it.
    type State = Vec<(String, f64)>;
    const SCOPE: Scope = Scope::Node;
    const NORMALIZE: Normalize = Normalize::AsIs;

    fn pre_score(&self, pod: &PodInfo, cluster: &Cluster, _: &[NodeId]) -> PreScore<Self::State> {
        let share = |image: &String| f64::from(cluster.image_nodes(image)) / cluster.len() as f64;
        let spread = |image: &String| (cluster.image_nodes(image) > 0).then(|| (image.clone(), share(image)));
        PreScore::Run(pod.class.images.iter().filter_map(spread).collect())
    }

    fn score(&self, images: &Self::State, pod: &PodInfo, node: &NodeInfo) -> i64 {
        let local = |(image, share): &(String, f64)| Some((*node.images.get(image)? as f64 * share) as i64);
        let sum = images.iter().filter_map(local).fold(0, i64::saturating_add);
        let spec = &pod.class.spec;
        let most = MOST * (spec.containers.len() + spec.init_containers.len()) as i64;
        // A pod without containers cannot be, but must not divide by zero.
        let range = (most - LEAST).max(1);
        MAX_SCORE * (sum.max(LEAST).min(most.max(LEAST)) - LEAST) / range
    }

    /// Shares change when nodes come and go, and when an image arrives somewhere.
    fn stamp(&self, pod: &PodInfo, cluster: &Cluster) -> u64 {
        let known: u64 = pod.class.images.iter().map(|i| u64::from(cluster.image_nodes(i))).sum();
        if known == 0 {
            return 0;
        }
        let each = pod.class.images.iter().map(|i| u64::from(cluster.image_nodes(i)));
        each.fold(cluster.len() as u64, |hash, n| {
            hash.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(n + 1)
        })
    }
}
