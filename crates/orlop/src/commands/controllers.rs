//! Flags about controllers, under kube-controller-manager's names: for it, and for `orlop up`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use orlop_controllers::{ALL, Def, Settings, select};

use super::parse_duration;

/// What is not given stays as upstream has it by default.
#[derive(clap::Args)]
pub(super) struct ControllersArgs {
    /// Controllers to enable: `*` enables all that are on by default, `foo` enables foo, `-foo` disables foo
    #[arg(
        long,
        value_name = "NAME",
        value_delimiter = ',',
        default_value = "*",
        allow_hyphen_values = true
    )]
    controllers: Vec<String>,
    /// Number of ReplicaSets (and other workloads of a kind) that sync concurrently
    #[arg(long, value_name = "N", hide_short_help = true, value_parser = clap::value_parser!(u32).range(1..=1000))]
    #[arg(
        alias = "concurrent-deployment-syncs",
        alias = "concurrent-daemonset-syncs",
        alias = "concurrent-job-syncs"
    )]
    #[arg(
        alias = "concurrent-statefulset-syncs",
        alias = "concurrent-rc-syncs",
        alias = "concurrent-cron-job-syncs"
    )]
    concurrent_replicaset_syncs: Option<u32>,
    /// Number of namespaces that are finalized concurrently
    #[arg(long, value_name = "N", hide_short_help = true, value_parser = clap::value_parser!(u32).range(1..=1000))]
    concurrent_namespace_syncs: Option<u32>,
    /// Number of garbage collector workers
    #[arg(long, value_name = "N", hide_short_help = true, value_parser = clap::value_parser!(u32).range(1..=1000))]
    concurrent_gc_syncs: Option<u32>,
    /// Time without heartbeats after which a node's status is Unknown [default: 50s]
    #[arg(long, value_name = "DURATION", hide_short_help = true, value_parser = parse_duration)]
    node_monitor_grace_period: Option<Duration>,
    /// The same for a node that is starting and has not reported yet [default: 1m]
    #[arg(long, value_name = "DURATION", hide_short_help = true, value_parser = parse_duration)]
    node_startup_grace_period: Option<Duration>,
    /// Nodes per second on which pods are deleted in case of node failure when a zone is healthy [default: 0.1]
    #[arg(long, value_name = "RATE", hide_short_help = true)]
    node_eviction_rate: Option<f64>,
    /// Nodes per second on which pods are deleted in case of node failure when a large zone is unhealthy [default: 0.01]
    #[arg(long, value_name = "RATE", hide_short_help = true)]
    secondary_node_eviction_rate: Option<f64>,
    /// Fraction of NotReady nodes at which a zone is treated as unhealthy [default: 0.55]
    #[arg(long, value_name = "SHARE", hide_short_help = true)]
    unhealthy_zone_threshold: Option<f64>,
    /// Number of nodes up to which an unhealthy zone has its evictions disabled [default: 50]
    #[arg(long, value_name = "N", hide_short_help = true)]
    large_cluster_size_threshold: Option<usize>,
    /// Maximum number of endpoints in an EndpointSlice [default: 100]
    #[arg(long, value_name = "N", hide_short_help = true, value_parser = clap::value_parser!(u32).range(1..=1000))]
    max_endpoints_per_slice: Option<u32>,
    /// Batching period of EndpointSlice updates caused by pod changes [default: 0s]
    #[arg(long, value_name = "DURATION", hide_short_help = true, value_parser = parse_duration)]
    endpointslice_updates_batch_period: Option<Duration>,
    /// Number of terminated pods that can exist before the pod garbage collector deletes them (0: disabled) [default: 12500]
    #[arg(long, value_name = "N", hide_short_help = true)]
    terminated_pod_gc_threshold: Option<usize>,
    /// Do not force-detach volumes from unhealthy nodes after the unmount timeout
    #[arg(long, hide_short_help = true)]
    disable_force_detach_on_timeout: bool,
    /// Sync period of the horizontal pod autoscaler [default: 15s]
    #[arg(long, value_name = "DURATION", hide_short_help = true, value_parser = parse_duration)]
    horizontal_pod_autoscaler_sync_period: Option<Duration>,
    /// Stabilization window of the autoscaler's downscales [default: 5m]
    #[arg(long, value_name = "DURATION", hide_short_help = true, value_parser = parse_duration)]
    horizontal_pod_autoscaler_downscale_stabilization: Option<Duration>,
    /// Tolerated ratio between desired and actual metrics before the autoscaler acts [default: 0.1]
    #[arg(long, value_name = "SHARE", hide_short_help = true)]
    horizontal_pod_autoscaler_tolerance: Option<f64>,
    /// Pods per second that are evicted from nodes that no longer match their node affinity (0: unlimited) [default: 10]
    #[arg(long, value_name = "RATE", hide_short_help = true)]
    node_affinity_eviction_rate: Option<f64>,
    /// Allocate pod CIDRs to nodes
    #[arg(long, hide_short_help = true, requires = "cluster_cidr")]
    allocate_node_cidrs: bool,
    /// CIDR range for pods in the cluster: one, or one per IP family
    #[arg(long, value_name = "CIDR", value_delimiter = ',', hide_short_help = true)]
    cluster_cidr: Vec<ipnet::IpNet>,
    /// Mask size of a node's IPv4 pod CIDR [default: 24]
    #[arg(long, value_name = "BITS", hide_short_help = true, value_parser = clap::value_parser!(u8).range(1..=32))]
    node_cidr_mask_size_ipv4: Option<u8>,
    /// Mask size of a node's IPv6 pod CIDR [default: 64]
    #[arg(long, value_name = "BITS", hide_short_help = true, value_parser = clap::value_parser!(u8).range(1..=128))]
    node_cidr_mask_size_ipv6: Option<u8>,
    /// CA certificate to publish in the kube-root-ca.crt ConfigMap of every namespace
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    root_ca_file: Option<PathBuf>,
}

impl ControllersArgs {
    /// As they were given.
    pub(super) fn names(&self) -> &[String] {
        &self.controllers
    }

    pub(super) fn chosen(&self) -> anyhow::Result<Vec<&'static Def>> {
        select(ALL, &self.controllers).map_err(|e| anyhow::anyhow!("--controllers: {e}"))
    }

    pub(super) fn settings(&self) -> anyhow::Result<Settings> {
        let mut settings = Settings::default();
        let count = |n: Option<u32>, field: &mut usize| *field = n.map_or(*field, |n| n as usize);
        count(self.concurrent_replicaset_syncs, &mut settings.concurrent_syncs);
        count(
            self.concurrent_namespace_syncs,
            &mut settings.concurrent_namespace_syncs,
        );
        count(self.concurrent_gc_syncs, &mut settings.concurrent_gc_syncs);
        count(self.max_endpoints_per_slice, &mut settings.max_endpoints_per_slice);
        set(self.node_monitor_grace_period, &mut settings.node_monitor_grace_period);
        set(self.node_startup_grace_period, &mut settings.node_startup_grace_period);
        set(self.node_eviction_rate, &mut settings.node_eviction_rate);
        set(
            self.secondary_node_eviction_rate,
            &mut settings.secondary_node_eviction_rate,
        );
        set(self.unhealthy_zone_threshold, &mut settings.unhealthy_zone_threshold);
        set(
            self.large_cluster_size_threshold,
            &mut settings.large_cluster_size_threshold,
        );
        set(
            self.endpointslice_updates_batch_period,
            &mut settings.endpoint_updates_batch_period,
        );
        set(
            self.terminated_pod_gc_threshold,
            &mut settings.terminated_pod_gc_threshold,
        );
        settings.disable_force_detach_on_timeout = self.disable_force_detach_on_timeout;
        set(
            self.horizontal_pod_autoscaler_sync_period,
            &mut settings.horizontal_pod_autoscaler_sync_period,
        );
        set(
            self.horizontal_pod_autoscaler_downscale_stabilization,
            &mut settings.horizontal_pod_autoscaler_downscale_stabilization,
        );
        set(
            self.horizontal_pod_autoscaler_tolerance,
            &mut settings.horizontal_pod_autoscaler_tolerance,
        );
        set(
            self.node_affinity_eviction_rate,
            &mut settings.node_affinity_eviction_rate,
        );
        settings.allocate_node_cidrs = self.allocate_node_cidrs;
        settings.cluster_cidrs.clone_from(&self.cluster_cidr);
        set(self.node_cidr_mask_size_ipv4, &mut settings.node_cidr_mask_size_ipv4);
        set(self.node_cidr_mask_size_ipv6, &mut settings.node_cidr_mask_size_ipv6);
        for (flag, rate) in [
            (
                "--horizontal-pod-autoscaler-tolerance",
                settings.horizontal_pod_autoscaler_tolerance,
            ),
            ("--node-affinity-eviction-rate", settings.node_affinity_eviction_rate),
            ("--node-eviction-rate", settings.node_eviction_rate),
            ("--secondary-node-eviction-rate", settings.secondary_node_eviction_rate),
            ("--unhealthy-zone-threshold", settings.unhealthy_zone_threshold),
        ] {
            if !(rate.is_finite() && rate >= 0.0) {
                bail!("{flag}: invalid rate {rate}: must be >= 0");
            }
        }
        if let Some(file) = &self.root_ca_file {
            let text = std::fs::read_to_string(file).with_context(|| format!("failed to read {}", file.display()))?;
            settings.root_ca = Some(text);
        }
        Ok(settings)
    }
}

fn set<T>(given: Option<T>, field: &mut T) {
    if let Some(value) = given {
        *field = value;
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: ControllersArgs,
    }

    fn args(line: &str) -> ControllersArgs {
        let words = std::iter::once("it").chain(line.split_whitespace());
        Cli::try_parse_from(words)
            .unwrap_or_else(|e| panic!("{line}: {e}"))
            .args
    }

    #[test]
    fn flags_are_settings() {
        let settings = args(
            "--node-monitor-grace-period 40s --concurrent-deployment-syncs 3 --node-eviction-rate 1.5 \
             --max-endpoints-per-slice=7",
        );
        let settings = settings.settings().unwrap();
        assert_eq!(settings.node_monitor_grace_period, Duration::from_secs(40));
        assert_eq!((settings.concurrent_syncs, settings.max_endpoints_per_slice), (3, 7));
        assert_eq!(settings.node_eviction_rate, 1.5);
        let chosen = args("--controllers=deployment-controller,-job-controller")
            .chosen()
            .unwrap();
        assert_eq!(
            chosen.iter().map(|def| def.name).collect::<Vec<_>>(),
            ["deployment-controller"]
        );
        assert!(args("").chosen().unwrap().len() > 20);
    }

    #[test]
    fn bad_values_are_named() {
        let refused = |line: &str| {
            let args = args(line);
            let outcome = args.settings().and_then(|_| args.chosen());
            outcome.map(|_| ()).unwrap_err().to_string()
        };
        assert!(refused("--controllers=nonsense").starts_with("--controllers: \"nonsense\" is not in the list"));
        assert!(refused("--node-eviction-rate=-1").starts_with("--node-eviction-rate: invalid rate -1: must be >= 0"));
        assert!(refused("--root-ca-file=/nowhere").contains("failed to read /nowhere"));
    }
}
