//! What stands behind a rejection, in names and figures: for people. Nothing is decided by it.

/// One fact about one node, from the plugin that rejects it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Detail {
    /// The pod requests more of a resource than is free; cpu in thousandths.
    Resource {
        resource: String,
        requested: i64,
        used: i64,
        allocatable: i64,
    },
    /// The node has as many pods as it takes.
    Pods { running: i64, allowed: i64 },
    /// A taint that the pod does not tolerate.
    Taint { key: String, value: String, effect: String },
    /// A nodeSelector entry that the node's labels do not have.
    NodeSelector {
        key: String,
        wanted: String,
        found: Option<String>,
    },
    /// A requirement of a term of required node affinity that does not hold.
    NodeAffinity {
        term: usize,
        requirement: String,
        found: Option<String>,
    },
    /// A host port that another pod of the node has.
    HostPort {
        protocol: String,
        port: i32,
        pod: Option<String>,
    },
    /// The topology domain of the node would hold too many matching pods.
    Spread {
        key: String,
        domain: String,
        /// Matching pods in the domain, without this one.
        pods: i64,
        /// Matching pods in the domain with the fewest.
        least: i64,
        max_skew: i64,
    },
    /// The node lacks the label of a topology key.
    MissingTopologyKey { key: String },
    /// A required affinity term that no pod of the node's topology domain matches.
    PodAffinity { key: String, domain: String },
    /// A required anti-affinity term that pods of the node's topology domain match.
    PodAntiAffinity { key: String, domain: String, pods: i64 },
    /// Pods of the node's topology domain whose required anti-affinity matches this pod.
    ExistingAntiAffinity { key: String, domain: String, pods: i64 },
    /// Volumes of a CSI driver on the node.
    VolumeLimit {
        driver: String,
        attached: usize,
        added: usize,
        limit: i64,
    },
    /// Something about one volume.
    Volume { volume: String, problem: String },
    /// A feature that the node's kubelet does not declare.
    Feature { name: String },
}
