//! `orlop proxy`: the service proxy alone, under kube-proxy's flag names.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use orlop_base::{Clock, Shutdown};
use orlop_client::{Api, transport};
use orlop_kubelet::node::address;
use orlop_proxy::config::{self, Override};
use orlop_proxy::{Config, Metrics, Options, Settings, engine};
use serde_json::{Value, json};

use super::{parse_bool, signals};

const NAME: &str = "kube-proxy";
/// The kernel ends almost anything else first. Upstream: `KubeProxyOOMScoreAdj`.
const OOM_SCORE: i32 = -999;

#[derive(clap::Args)]
pub(super) struct Args {
    /// KubeProxyConfiguration file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Kubeconfig of the API server [default: the in-cluster configuration]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Address of the API server (overrides the kubeconfig)
    #[arg(long, value_name = "URL")]
    master: Option<String>,
    /// Remove the rules of all proxy modes and exit
    #[arg(long)]
    cleanup: bool,
    /// Watch the ConfigMap kube-proxy in kube-system and switch the mode when it changes
    #[arg(long)]
    follow_config_map: bool,
    #[command(flatten, next_help_heading = "In place of the configuration's fields")]
    fields: FieldArgs,
}

/// Each wins over the configuration file.
#[derive(clap::Args, Default)]
struct FieldArgs {
    /// iptables, nftables, ipvs or userspace [default: the first that this machine can do]
    #[arg(long, value_name = "MODE")]
    proxy_mode: Option<String>,
    /// Name of the node [default: this host's]
    #[arg(long, value_name = "NAME")]
    hostname_override: Option<String>,
    /// The node's own address [default: the Node object's]
    #[arg(long, value_name = "IP")]
    bind_address: Option<String>,
    /// Address of the healthz endpoint (port 0: disabled) [default: 0.0.0.0:10256]
    #[arg(long, value_name = "IP:PORT")]
    healthz_bind_address: Option<String>,
    /// Address of the metrics endpoint (port 0: disabled) [default: 127.0.0.1:10249]
    #[arg(long, value_name = "IP:PORT")]
    metrics_bind_address: Option<String>,
    /// Fail if those ports cannot be bound
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = parse_bool)]
    bind_address_hard_fail: Option<bool>,
    /// How local traffic is detected: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix
    #[arg(long, value_name = "MODE")]
    detect_local_mode: Option<String>,
    /// CIDR range of pods in the cluster (one per IP family, comma-separated)
    #[arg(long, value_name = "CIDR")]
    cluster_cidr: Option<String>,
    /// Bridge interface of local pods
    #[arg(long, value_name = "NAME")]
    pod_bridge_interface: Option<String>,
    /// Interface name prefix of local pods
    #[arg(long, value_name = "PREFIX")]
    pod_interface_name_prefix: Option<String>,
    /// CIDR ranges of node addresses that accept NodePort connections, or `primary`
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    nodeport_addresses: Vec<String>,
    /// SNAT all traffic sent to cluster IPs
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = parse_bool)]
    masquerade_all: Option<bool>,
    /// Bit of the fwmark space that marks packets requiring SNAT [default: 14]
    #[arg(long, value_name = "BIT")]
    iptables_masquerade_bit: Option<i64>,
    /// Allow NodePort access on localhost [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = parse_bool)]
    iptables_localhost_nodeports: Option<bool>,
    /// Period of full rule syncs [default: 30s]
    #[arg(long, value_name = "DURATION", alias = "ipvs-sync-period")]
    iptables_sync_period: Option<String>,
    /// Minimum period between two rule syncs [default: 0s]
    #[arg(long, value_name = "DURATION", alias = "ipvs-min-sync-period")]
    iptables_min_sync_period: Option<String>,
    /// rr, lc, dh, sh, sed, nq, wrr, wlc or mh [default: rr]
    #[arg(long, value_name = "NAME")]
    ipvs_scheduler: Option<String>,
    /// CIDR ranges whose IPVS virtual servers are not touched
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    ipvs_exclude_cidrs: Vec<String>,
    /// Enable strict ARP (arp_ignore 1, arp_announce 2)
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = parse_bool)]
    ipvs_strict_arp: Option<bool>,
    /// Timeout of idle IPVS TCP connections (0: unchanged)
    #[arg(long, value_name = "DURATION")]
    ipvs_tcp_timeout: Option<String>,
    /// The same after a FIN
    #[arg(long, value_name = "DURATION")]
    ipvs_tcpfin_timeout: Option<String>,
    /// The same for UDP
    #[arg(long, value_name = "DURATION")]
    ipvs_udp_timeout: Option<String>,
    /// Maximum number of NAT connections to track per CPU core (0: unchanged) [default: 32768]
    #[arg(long, value_name = "N")]
    conntrack_max_per_core: Option<i64>,
    /// Minimum number of conntrack entries [default: 131072]
    #[arg(long, value_name = "N")]
    conntrack_min: Option<i64>,
    /// Idle timeout of established TCP connections (0: unchanged) [default: 24h]
    #[arg(long, value_name = "DURATION")]
    conntrack_tcp_timeout_established: Option<String>,
    /// The same for those half closed [default: 1h]
    #[arg(long, value_name = "DURATION")]
    conntrack_tcp_timeout_close_wait: Option<String>,
    /// Liberal conntrack mode: do not mark out-of-window TCP packets INVALID
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = parse_bool)]
    conntrack_tcp_be_liberal: Option<bool>,
    /// Idle timeout of UNREPLIED UDP connections (0: unchanged)
    #[arg(long, value_name = "DURATION")]
    conntrack_udp_timeout: Option<String>,
    /// The same for those with one
    #[arg(long, value_name = "DURATION")]
    conntrack_udp_timeout_stream: Option<String>,
    /// oom_score_adj of this process [default: -999]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    oom_score_adj: Option<i64>,
    /// Feature gates (none are known)
    #[arg(long, value_name = "NAME=BOOL", value_delimiter = ',')]
    feature_gates: Vec<String>,
}

impl FieldArgs {
    /// What is given, by the fields' paths.
    fn overrides(&self) -> Vec<Override> {
        let text = |value: &Option<String>| value.as_ref().map(|value| json!(value));
        let flag = |value: Option<bool>| value.map(|value| json!(value));
        let number = |value: Option<i64>| value.map(|value| json!(value));
        let list = |values: &[String]| (!values.is_empty()).then(|| json!(values));
        let all: Vec<(&'static str, Option<Value>)> = vec![
            ("mode", text(&self.proxy_mode)),
            ("hostnameOverride", text(&self.hostname_override)),
            ("bindAddress", text(&self.bind_address)),
            ("healthzBindAddress", text(&self.healthz_bind_address)),
            ("metricsBindAddress", text(&self.metrics_bind_address)),
            ("bindAddressHardFail", flag(self.bind_address_hard_fail)),
            ("detectLocalMode", text(&self.detect_local_mode)),
            ("clusterCIDR", text(&self.cluster_cidr)),
            ("detectLocal.bridgeInterface", text(&self.pod_bridge_interface)),
            ("detectLocal.interfaceNamePrefix", text(&self.pod_interface_name_prefix)),
            ("nodePortAddresses", list(&self.nodeport_addresses)),
            ("iptables.masqueradeAll", flag(self.masquerade_all)),
            ("nftables.masqueradeAll", flag(self.masquerade_all)),
            ("iptables.masqueradeBit", number(self.iptables_masquerade_bit)),
            ("iptables.localhostNodePorts", flag(self.iptables_localhost_nodeports)),
            ("iptables.syncPeriod", text(&self.iptables_sync_period)),
            ("nftables.syncPeriod", text(&self.iptables_sync_period)),
            ("ipvs.syncPeriod", text(&self.iptables_sync_period)),
            ("iptables.minSyncPeriod", text(&self.iptables_min_sync_period)),
            ("nftables.minSyncPeriod", text(&self.iptables_min_sync_period)),
            ("ipvs.minSyncPeriod", text(&self.iptables_min_sync_period)),
            ("ipvs.scheduler", text(&self.ipvs_scheduler)),
            ("ipvs.excludeCIDRs", list(&self.ipvs_exclude_cidrs)),
            ("ipvs.strictARP", flag(self.ipvs_strict_arp)),
            ("ipvs.tcpTimeout", text(&self.ipvs_tcp_timeout)),
            ("ipvs.tcpFinTimeout", text(&self.ipvs_tcpfin_timeout)),
            ("ipvs.udpTimeout", text(&self.ipvs_udp_timeout)),
            ("conntrack.maxPerCore", number(self.conntrack_max_per_core)),
            ("conntrack.min", number(self.conntrack_min)),
            (
                "conntrack.tcpEstablishedTimeout",
                text(&self.conntrack_tcp_timeout_established),
            ),
            (
                "conntrack.tcpCloseWaitTimeout",
                text(&self.conntrack_tcp_timeout_close_wait),
            ),
            ("conntrack.tcpBeLiberal", flag(self.conntrack_tcp_be_liberal)),
            ("conntrack.udpTimeout", text(&self.conntrack_udp_timeout)),
            ("conntrack.udpStreamTimeout", text(&self.conntrack_udp_timeout_stream)),
            ("oomScoreAdj", number(self.oom_score_adj)),
        ];
        all.into_iter()
            .filter_map(|(path, value)| Some((path, value?)))
            .collect()
    }
}

impl Args {
    fn configuration(&self) -> anyhow::Result<Config> {
        let text = match &self.config {
            None => String::new(),
            Some(path) => {
                std::fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()))?
            }
        };
        let name = self.config.as_deref().unwrap_or(Path::new("the flags"));
        match config::parse(&text, &self.fields.overrides()) {
            Ok((config, warnings)) => {
                for warning in warnings {
                    tracing::warn!(file = %name.display(), warning = %warning, "loaded configuration with a warning");
                }
                Ok(config)
            }
            Err(problems) => bail!(
                "{}: no usable proxy configuration:\n  {}",
                name.display(),
                problems.join("\n  ")
            ),
        }
    }
}

pub(super) fn run(args: Args) -> anyhow::Result<()> {
    let config = args.configuration()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("failed to start the tokio runtime")?;
    if args.cleanup {
        return clean_up(&runtime);
    }
    runtime.block_on(proxy(args, config))
}

fn clean_up(runtime: &tokio::runtime::Runtime) -> anyhow::Result<()> {
    let problems = engine::clean_up(&Settings::default(), runtime.handle());
    match problems.is_empty() {
        true => Ok(()),
        false => bail!("failed to remove all proxy rules:\n  {}", problems.join("\n  ")),
    }
}

async fn proxy(args: Args, config: Config) -> anyhow::Result<()> {
    let (shutdown, _) = signals::stop_on_signal()?;
    let given = Some(PathBuf::from(&config.kubeconfig)).filter(|path| !path.as_os_str().is_empty());
    let kubeconfig = args.kubeconfig.clone().or(given);
    let client = transport::from_kubeconfig(kubeconfig.as_deref(), args.master.as_deref(), NAME).await?;
    let options = options(config, Api::new(client, NAME), args.follow_config_map, shutdown)?;
    // A task that panics ends the process, which its supervisor starts again.
    let outcome = orlop_base::task::guard(orlop_proxy::run(options)).await;
    outcome
        .map_err(|panic| anyhow::anyhow!("a task of the proxy panicked: {panic}"))?
        .map_err(anyhow::Error::msg)
}

fn options(config: Config, api: Api, follows_config_map: bool, shutdown: Shutdown) -> anyhow::Result<Options> {
    let score = config.oom_score_adj.unwrap_or(OOM_SCORE);
    if let Err(e) = std::fs::write("/proc/self/oom_score_adj", score.to_string()) {
        tracing::warn!(score, err = %e, "failed to set oomScoreAdj");
    }
    let name = Some(&*config.hostname_override).filter(|name| !name.is_empty());
    let node_addresses: Vec<IpAddr> = match config.bind_address.is_unspecified() {
        true => vec![address::default_address()],
        false => vec![config.bind_address],
    };
    Ok(Options {
        node_name: address::node_name(name).map_err(anyhow::Error::msg)?,
        api,
        node_addresses,
        service_ranges: vec![],
        follows_config_map,
        clock: Clock::System,
        metrics: Arc::new(Metrics::default()),
        shutdown,
        config,
    })
}
