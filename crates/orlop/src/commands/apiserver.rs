//! `orlop apiserver`: the API server alone, under kube-apiserver's flag names.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use orlop_apiserver::{Config, Running};
use orlop_base::{Clock, Shutdown};

use super::apiserver_access::AccessFlags;
use super::apiserver_flags::{ServerFlags, StatePlace};
use super::{parse_duration, signals};
use crate::components::Components;
use crate::data_dir;
use crate::stop::StopRequest;

#[derive(clap::Args)]
pub(super) struct Args {
    /// Data directory [default: /var/lib/orlop as root, else ~/.local/share/orlop]
    #[arg(long, value_name = "DIR", env = "ORLOP_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// Address to listen on
    #[arg(long, default_value = "0.0.0.0")]
    bind_address: IpAddr,
    /// Address on which to advertise the server to the cluster's members; they must be able to reach it [default: the bind
    /// address, or if that is all of them or loopback, the address of the default interface]
    #[arg(long, value_name = "IP")]
    advertise_address: Option<IpAddr>,
    /// Port to listen on
    #[arg(long, default_value_t = 6443)]
    secure_port: u16,
    /// CIDR ranges of Service cluster IPs, the primary IP family first
    #[arg(long, value_name = "CIDR", value_delimiter = ',', default_value = "10.96.0.0/12")]
    service_cluster_ip_range: Vec<ipnet::IpNet>,
    /// Port range of NodePort services
    #[arg(long, value_name = "FIRST-LAST", default_value = "30000-32767", value_parser = parse_ports)]
    service_node_port_range: (u16, u16),
    /// Issuer of service-account tokens; given more than once, the first one issues and all are taken
    #[arg(long, value_name = "URL")]
    service_account_issuer: Vec<String>,
    /// Audiences of tokens this server accepts [default: the issuer]
    #[arg(long, value_delimiter = ',')]
    api_audiences: Vec<String>,
    /// Additional subject alternative names of the serving certificate
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    tls_san: Vec<String>,
    /// Maximum number of non-mutating requests in flight
    #[arg(long, default_value_t = 400)]
    max_requests_inflight: usize,
    /// Maximum number of mutating requests in flight
    #[arg(long, default_value_t = 200)]
    max_mutating_requests_inflight: usize,
    /// Time after which a request times out ("60s", "1m")
    #[arg(long, default_value = "60s", value_parser = parse_duration)]
    request_timeout: Duration,
    /// Time to live of events
    #[arg(long, default_value = "1h", value_parser = parse_duration)]
    event_ttl: Duration,
    /// Number of changes kept for watches and paginated lists; older resource versions get 410 Expired
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    store_history_events: usize,
    /// How long changes are kept for watches and paginated lists
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_duration)]
    store_history_age: Duration,
    /// Time after which a pending write fails the etcd check of /livez, /healthz and /readyz
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = parse_duration)]
    etcd_healthcheck_timeout: Duration,
    /// Time after which a pending write fails the etcd-readiness check of /readyz
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = parse_duration)]
    etcd_readycheck_timeout: Duration,
    /// Time to delay the termination, during which requests are served and /readyz fails
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = parse_duration)]
    shutdown_delay_duration: Duration,
    #[command(flatten)]
    access: AccessFlags,
    #[command(flatten)]
    flags: ServerFlags,
}

/// Set to 1, the server runs the controllers that tests of operators miss most with envtest, which has none. (Service
/// accounts come from the server itself.)
const ENVTEST_CONTROLLERS: &str = "ORLOP_ENVTEST_CONTROLLERS";
const OF_ENVTEST: [&str; 2] = ["garbage-collector-controller", "namespace-controller"];

pub(super) fn run(args: Args) -> anyhow::Result<()> {
    let (beside_etcd, etcd) = match args.flags.etcd.place()? {
        StatePlace::DataDir => (None, None),
        StatePlace::Beside(directory) => (Some(directory), None),
        StatePlace::Etcd(etcd) => (None, Some(etcd)),
    };
    let data_dir = args
        .data_dir
        .or(beside_etcd)
        .map_or_else(super::up::default_data_dir, Ok)?;
    let mut config = Config::new(data_dir);
    config.etcd = etcd;
    let mut issuers = args.service_account_issuer.into_iter();
    if let Some(issuer) = issuers.next() {
        config.api_audiences = vec![issuer.clone()];
        config.issuer = issuer;
        config.other_issuers = issuers.collect();
    }
    if !args.api_audiences.is_empty() {
        config.api_audiences = args.api_audiences;
    }
    config.bind = args.bind_address;
    config.advertise = args.advertise_address;
    config.port = args.secure_port;
    config.service_cidrs = args.service_cluster_ip_range;
    config.node_ports = args.service_node_port_range;
    config.extra_names = args.tls_san;
    config.max_readonly_in_flight = args.max_requests_inflight;
    config.max_mutating_in_flight = args.max_mutating_requests_inflight;
    config.request_timeout = args.request_timeout;
    config.event_ttl = args.event_ttl;
    config.history_events = args.store_history_events;
    config.history_age = args.store_history_age;
    args.access.apply(&mut config)?;
    config.store_healthcheck_timeout = args.etcd_healthcheck_timeout;
    config.store_readycheck_timeout = args.etcd_readycheck_timeout;
    config.shutdown_delay = args.shutdown_delay_duration;
    args.flags.apply(&mut config)?;
    serve(config, |running, kubeconfig, _| {
        tracing::info!(address = %running.address, kubeconfig = %kubeconfig.display(), "serving");
        let mut components = Components::new(&running.server.health.components, vec![], StopRequest::default());
        if std::env::var_os(ENVTEST_CONTROLLERS).is_some_and(|value| value == "1") {
            let chosen = orlop_controllers::select(orlop_controllers::ALL, &OF_ENVTEST.map(String::from));
            let chosen = chosen.expect("controllers of that name are there");
            components.start_controllers(running, chosen, orlop_controllers::Settings::default(), 0);
        }
        components
    })
}

/// How long a task that blocks its thread may keep everybody else from the network.
const DRIVER_WAKE: Duration = Duration::from_millis(500);

/// Wakes an idle worker of the runtime now and then. A worker that was woken by the I/O driver and then blocks (an endless
/// loop, a hung system call) takes nobody else along: without this the other workers sleep on, nobody polls the driver,
/// and a stalled component could not even be reported.
fn keep_driver_polled(runtime: tokio::runtime::Handle) -> std::io::Result<()> {
    let wake = move || {
        loop {
            std::thread::sleep(DRIVER_WAKE);
            drop(runtime.spawn(async {}));
        }
    };
    std::thread::Builder::new()
        .name("orlop-driver".into())
        .spawn(wake)
        .map(drop)
}

/// Runs a server until it is told to stop: by a signal, or by whoever triggers the shutdown that `ready` is given. `ready` is
/// called once the server serves and its kubeconfig is there, and starts what runs beside it.
pub(super) fn serve(
    config: Config,
    ready: impl FnOnce(&Running, &Path, &Shutdown) -> Components,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_stack_size(orlop_api::schema::STACK_BYTES)
        .enable_all()
        .build()
        .context("failed to start the tokio runtime")?;
    keep_driver_polled(runtime.handle().clone()).context("failed to start a thread")?;
    runtime.block_on(async {
        // Before anything is started, so that an early Ctrl-C stops cleanly too.
        let (stop, _) = signals::stop_on_signal()?;
        let kubeconfig = config.data_dir.join("kubeconfig");
        let running = orlop_apiserver::start(config, Clock::System).await?;
        data_dir::write_private(&kubeconfig, &running.pki.kubeconfig(&url(running.address), "orlop"))
            .with_context(|| format!("failed to write {}", kubeconfig.display()))?;
        let components = ready(&running, &kubeconfig, &stop);
        tokio::select! {
            _ = stop.wait() => {}
            // Nothing can be written any more, and what is in memory may be half of a change.
            _ = running.server.registry.store.stopped() => {
                anyhow::bail!("the store's writer thread panicked; start again: everything acknowledged is on disk")
            }
        }
        running.announce_stop().await;
        components.stop().await;
        running.stop().await;
        Ok(())
    })
}

/// Where a client on this machine reaches a server that listens on this address.
pub(crate) fn url(address: SocketAddr) -> String {
    format!("https://{}", reachable(address))
}

fn reachable(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        ip if ip.is_unspecified() && ip.is_ipv4() => SocketAddr::from(([127, 0, 0, 1], address.port())),
        ip if ip.is_unspecified() => SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, address.port())),
        _ => address,
    }
}

fn parse_ports(text: &str) -> anyhow::Result<(u16, u16)> {
    let range = text
        .split_once('-')
        .and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    range
        .filter(|(a, b)| 0 < *a && a <= b)
        .context("must be a port range such as 30000-32767")
}
