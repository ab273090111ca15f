//! The settings of kube-controller-manager's flags, with its defaults. One struct for all controllers; each reads its fields.

use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use jiff::Timestamp;

/// The settings of all controllers; `Default` is kube-controller-manager's.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `--cluster-name`
    pub cluster_name: String,
    /// `--concurrent-replicaset-syncs` and its siblings: keys reconciled at the same time by each controller that has no
    /// setting of its own.
    pub concurrent_syncs: usize,
    /// `--concurrent-namespace-syncs`
    pub concurrent_namespace_syncs: usize,
    /// How long the content of a deleted namespace is left alone, so that all API servers of the cluster have observed
    /// the deletion and admit nothing new. Upstream: a constant of five seconds; of use where there are several.
    pub namespace_deletion_delay: Duration,
    /// `--concurrent-gc-syncs`: objects that the garbage collector looks at, and deletes, at the same time.
    pub concurrent_gc_syncs: usize,
    /// `--node-monitor-grace-period`: how long a node may be unresponsive before its status is Unknown.
    pub node_monitor_grace_period: Duration,
    /// `--node-startup-grace-period`: the same for a node that has not reported a status yet.
    pub node_startup_grace_period: Duration,
    /// `--node-eviction-rate`: nodes per second and zone whose pods are evicted because the node failed.
    pub node_eviction_rate: f64,
    /// `--secondary-node-eviction-rate`: the same in a large zone of which much has failed.
    pub secondary_node_eviction_rate: f64,
    /// `--unhealthy-zone-threshold`: the share of failed nodes from which on a zone counts as unhealthy.
    pub unhealthy_zone_threshold: f64,
    /// `--large-cluster-size-threshold`: unhealthy zones of no more nodes than this have no evictions at all.
    pub large_cluster_size_threshold: usize,
    /// `--max-endpoints-per-slice`
    pub max_endpoints_per_slice: usize,
    /// `--endpoint-updates-batch-period`, `--endpointslice-updates-batch-period`: how long a changed pod waits for others.
    pub endpoint_updates_batch_period: Duration,
    /// `--mirroring-max-endpoints-per-subset`
    pub mirroring_max_endpoints_per_subset: usize,
    /// `--terminated-pod-gc-threshold`: terminated pods that can exist before the garbage collector deletes them; zero: disabled.
    pub terminated_pod_gc_threshold: usize,
    /// `--enable-dynamic-provisioning`: claims that find no volume have one made for them.
    pub enable_dynamic_provisioning: bool,
    /// `--disable-force-detach-on-timeout`: volumes that a lost node may still have mounted stay with it.
    pub disable_force_detach_on_timeout: bool,
    /// Directory of `local-path` volumes on each node; none: they are not provisioned.
    pub local_path_dir: Option<PathBuf>,
    /// The name of this machine's node, whose volume directories are removed again.
    pub local_node: Option<String>,
    /// `--horizontal-pod-autoscaler-sync-period`
    pub horizontal_pod_autoscaler_sync_period: Duration,
    /// `--horizontal-pod-autoscaler-downscale-stabilization`: how long lower recommendations must last before scaling down.
    pub horizontal_pod_autoscaler_downscale_stabilization: Duration,
    /// `--horizontal-pod-autoscaler-tolerance`: relative change of usage below which nothing is scaled.
    pub horizontal_pod_autoscaler_tolerance: f64,
    /// `--horizontal-pod-autoscaler-cpu-initialization-period`
    pub horizontal_pod_autoscaler_cpu_initialization_period: Duration,
    /// `--horizontal-pod-autoscaler-initial-readiness-delay`
    pub horizontal_pod_autoscaler_initial_readiness_delay: Duration,
    /// `--root-ca-file`, in PEM: published in each namespace as `kube-root-ca.crt`. Without it nothing is published.
    pub root_ca: Option<String>,
    /// `--service-account-private-key-file`. Without it secrets get no tokens.
    pub token_signer: Option<Arc<dyn TokenSigner>>,
    /// `--legacy-service-account-token-clean-up-period`
    pub legacy_service_account_token_clean_up_period: Duration,
    /// `--node-affinity-eviction-rate` (ours): pods per second evicted because their node no longer matches;
    /// zero: unlimited.
    pub node_affinity_eviction_rate: f64,
    /// `--allocate-node-cidrs`: give each node ranges of pod addresses.
    pub allocate_node_cidrs: bool,
    /// `--cluster-cidr`: where pod addresses come from, one range, or one of each family.
    pub cluster_cidrs: Vec<IpNet>,
    /// `--node-cidr-mask-size-ipv4`
    pub node_cidr_mask_size_ipv4: u8,
    /// `--node-cidr-mask-size-ipv6`
    pub node_cidr_mask_size_ipv6: u8,
    /// `--service-cluster-ip-range`: these addresses are not for pods.
    pub service_cluster_ip_ranges: Vec<IpNet>,
    /// `--resource-quota-sync-period`: full resync period of quota usage.
    pub resource_quota_sync_period: Duration,
    /// `--cluster-signing-cert-file`, `--cluster-signing-key-file`. Without it requests for certificates are left alone.
    pub certificates: Option<Arc<dyn Certificates>>,
    /// `--cluster-signing-duration`: how long a certificate is valid at most.
    pub cluster_signing_duration: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            cluster_name: "kubernetes".to_string(),
            concurrent_syncs: 16,
            concurrent_namespace_syncs: 10,
            namespace_deletion_delay: Duration::from_secs(5),
            concurrent_gc_syncs: 20,
            node_monitor_grace_period: Duration::from_secs(50),
            node_startup_grace_period: Duration::from_secs(60),
            node_eviction_rate: 0.1,
            secondary_node_eviction_rate: 0.01,
            unhealthy_zone_threshold: 0.55,
            large_cluster_size_threshold: 50,
            max_endpoints_per_slice: 100,
            endpoint_updates_batch_period: Duration::ZERO,
            mirroring_max_endpoints_per_subset: 1000,
            terminated_pod_gc_threshold: 12_500,
            enable_dynamic_provisioning: true,
            disable_force_detach_on_timeout: false,
            local_path_dir: None,
            local_node: None,
            root_ca: None,
            token_signer: None,
            resource_quota_sync_period: Duration::from_secs(300),
            certificates: None,
            cluster_signing_duration: Duration::from_secs(8760 * 3600),
            legacy_service_account_token_clean_up_period: Duration::from_secs(8760 * 3600),
            horizontal_pod_autoscaler_sync_period: Duration::from_secs(15),
            horizontal_pod_autoscaler_downscale_stabilization: Duration::from_secs(300),
            horizontal_pod_autoscaler_tolerance: 0.1,
            horizontal_pod_autoscaler_cpu_initialization_period: Duration::from_secs(300),
            horizontal_pod_autoscaler_initial_readiness_delay: Duration::from_secs(30),
            node_affinity_eviction_rate: 10.0,
            allocate_node_cidrs: false,
            cluster_cidrs: vec![],
            node_cidr_mask_size_ipv4: 24,
            node_cidr_mask_size_ipv6: 64,
            service_cluster_ip_ranges: vec![],
        }
    }
}

/// A certificate request (PKCS #10 in PEM) that can't be decoded, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MalformedRequest(pub String);

/// Why a token or a certificate was not signed.
#[derive(Debug, thiserror::Error)]
pub enum SigningError {
    #[error("no signing key is configured")]
    NoKey,
    #[error(transparent)]
    MalformedRequest(#[from] MalformedRequest),
    #[error("the request is not the one that was validated")]
    RequestChanged,
    /// The key, or what is to be signed, is of no use for it.
    #[error("{0}")]
    Failed(String),
}

/// Signs service account tokens. Keys are held elsewhere: this crate knows no cryptography.
pub trait TokenSigner: Debug + Send + Sync {
    /// A token for a secret, good as long as the secret has it.
    fn token(&self, namespace: &str, account: &str, account_uid: &str, secret: &str) -> Result<String, SigningError>;
}

/// Reads requests for certificates (PKCS #10 in PEM), and signs them if there is an authority to do so.
pub trait Certificates: Debug + Send + Sync {
    fn read(&self, request: &str) -> Result<RequestedIdentity, MalformedRequest>;

    /// Whether there is an authority; without one `sign` always fails.
    fn can_sign(&self) -> bool;

    /// A certificate in PEM of what is asked for: subject, key and alternative names; for these usages, as the API names
    /// them; for this long, or as long as the authority itself is good. An error if the request, or the certificate, is
    /// about anything but what was validated.
    fn sign(
        &self,
        request: &str,
        validated: &RequestedIdentity,
        usages: &[String],
        valid: Duration,
        now: Timestamp,
    ) -> Result<String, SigningError>;
}

/// Whom a certificate request names: its subject and alternative names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestedIdentity {
    pub common_name: String,
    pub organizations: Vec<String>,
    /// What else the subject says: object identifiers and values.
    pub other_attributes: Vec<(String, String)>,
    pub dns_names: Vec<String>,
    pub emails: Vec<String>,
    pub addresses: Vec<String>,
    pub uris: Vec<String>,
}
