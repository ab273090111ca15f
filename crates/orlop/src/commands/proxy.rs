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
    /// A KubeProxyConfiguration
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// How to reach the API server; without it, as a pod of the cluster
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Address of the API server, in place of the kubeconfig's
    #[arg(long, value_name = "URL")]
    master: Option<String>,
    /// Take away all rules of all modes, and exit
    #[arg(long)]
    cleanup: bool,
    /// Follow the ConfigMap kube-proxy in kube-system: a change of its mode switches the mode under way
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
    /// Where health is served; port 0 for nowhere [default: 0.0.0.0:10256]
    #[arg(long, value_name = "IP:PORT")]
    healthz_bind_address: Option<String>,
    /// Where metrics are served; port 0 for nowhere [default: 127.0.0.1:10249]
    #[arg(long, value_name = "IP:PORT")]
    metrics_bind_address: Option<String>,
    /// Fail if those ports can't be had
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = parse_bool)]
    bind_address_hard_fail: Option<bool>,
    /// How local pods are told: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix
    #[arg(long, value_name = "MODE")]
    detect_local_mode: Option<String>,
    /// Range of pod addresses (one of each family, separated by a comma)
    #[arg(long, value_name = "CIDR")]
    cluster_cidr: Option<String>,
    /// Bridge of the pods
    #[arg(long, value_name = "NAME")]
    pod_bridge_interface: Option<String>,
    /// How interfaces of pods begin
    #[arg(long, value_name = "PREFIX")]
    pod_interface_name_prefix: Option<String>,
    /// Where node ports are open: ranges, or `primary`
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    nodeport_addresses: Vec<String>,
    /// Masquerade everything that goes to cluster addresses
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = parse_bool)]
    masquerade_all: Option<bool>,
    /// Bit of a packet's mark that asks for masquerading [default: 14]
    #[arg(long, value_name = "BIT")]
    iptables_masquerade_bit: Option<i64>,
    /// Node ports on 127.0.0.1 too [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = parse_bool)]
    iptables_localhost_nodeports: Option<bool>,
    /// How often everything is compared with the kernel [default: 30s]
    #[arg(long, value_name = "DURATION", alias = "ipvs-sync-period")]
    iptables_sync_period: Option<String>,
    /// Least time between two syncs [default: 0s]
    #[arg(long, value_name = "DURATION", alias = "ipvs-min-sync-period")]
    iptables_min_sync_period: Option<String>,
    /// rr, lc, dh, sh, sed, nq, wrr, wlc or mh [default: rr]
    #[arg(long, value_name = "NAME")]
    ipvs_scheduler: Option<String>,
    /// Virtual servers of these ranges are left alone
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    ipvs_exclude_cidrs: Vec<String>,
    /// Answer ARP for an address only on its own interface
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = parse_bool)]
    ipvs_strict_arp: Option<bool>,
    /// How long idle connections are remembered; 0 leaves it as it is
    #[arg(long, value_name = "DURATION")]
    ipvs_tcp_timeout: Option<String>,
    /// The same after a FIN
    #[arg(long, value_name = "DURATION")]
    ipvs_tcpfin_timeout: Option<String>,
    /// The same for UDP
    #[arg(long, value_name = "DURATION")]
    ipvs_udp_timeout: Option<String>,
    /// Connections to track for each processor; 0 leaves it as it is [default: 32768]
    #[arg(long, value_name = "N")]
    conntrack_max_per_core: Option<i64>,
    /// Connections to track at least [default: 131072]
    #[arg(long, value_name = "N")]
    conntrack_min: Option<i64>,
    /// How long established connections that are idle are tracked; 0 leaves it as it is [default: 24h]
    #[arg(long, value_name = "DURATION")]
    conntrack_tcp_timeout_established: Option<String>,
    /// The same for those half closed [default: 1h]
    #[arg(long, value_name = "DURATION")]
    conntrack_tcp_timeout_close_wait: Option<String>,
    /// Track TCP packets that are out of window too
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = parse_bool)]
    conntrack_tcp_be_liberal: Option<bool>,
    /// How long UDP flows without an answer are tracked; 0 leaves it as it is
    #[arg(long, value_name = "DURATION")]
    conntrack_udp_timeout: Option<String>,
    /// The same for those with one
    #[arg(long, value_name = "DURATION")]
    conntrack_udp_timeout_stream: Option<String>,
    /// How eagerly the kernel ends this process when it is out of memory [default: -999]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    oom_score_adj: Option<i64>,
    /// Features to switch on or off; there are none
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
            Some(path) => std::fs::read_to_string(path).with_context(|| format!("{} can't be read", path.display()))?,
        };
        let name = self.config.as_deref().unwrap_or(Path::new("the flags"));
        match config::parse(&text, &self.fields.overrides()) {
            Ok((config, warnings)) => {
                for warning in warnings {
                    tracing::warn!("{}: {warning}", name.display());
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
        .context("no threads to run on")?;
    if args.cleanup {
        return clean_up(&runtime);
    }
    runtime.block_on(proxy(args, config))
}

fn clean_up(runtime: &tokio::runtime::Runtime) -> anyhow::Result<()> {
    let problems = engine::clean_up(&Settings::default(), runtime.handle());
    match problems.is_empty() {
        true => Ok(()),
        false => bail!("not all could be taken away:\n  {}", problems.join("\n  ")),
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
        tracing::warn!("oomScoreAdj can't be set to {score}: {e}");
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
