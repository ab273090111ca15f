//! What kube-controller-manager's flags say, with its defaults. One struct for all controllers; each reads its fields.

#[derive(Clone, Debug)]
pub struct Settings {
    /// `--cluster-name`
    pub cluster_name: String,
    /// `--concurrent-replicaset-syncs` and its siblings: keys worked on at the same time, where a controller has no
    /// reason of its own for another number.
    pub concurrent_syncs: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            cluster_name: "kubernetes".to_string(),
            concurrent_syncs: 16,
        }
    }
}
