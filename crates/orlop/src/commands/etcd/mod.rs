//! `orlop etcd`: etcd's v3 API from Orlop's store, under etcd's flag names.

mod flags;
mod urls;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use orlop_etcd::{AutoCompaction, Port, Server, Serves, Settings, TlsFiles};
use tokio::net::TcpListener;

use self::flags::EtcdFlags;
use self::urls::Url;
use super::upstream_flags::OtherFlags;
use super::{parse_bool, parse_duration, signals};

#[derive(clap::Args)]
pub(super) struct Args {
    /// Human-readable name of this member
    #[arg(long, default_value = "default")]
    name: String,
    /// Data directory [default: NAME.etcd]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// URLs to listen on for clients
    #[arg(
        long,
        value_name = "URL",
        value_delimiter = ',',
        default_value = "http://localhost:2379"
    )]
    listen_client_urls: Vec<Url>,
    /// URLs advertised to clients
    #[arg(
        long,
        value_name = "URL",
        value_delimiter = ',',
        default_value = "http://localhost:2379"
    )]
    advertise_client_urls: Vec<String>,
    /// URLs to serve /metrics and /health on, beside the clients'
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    listen_metrics_urls: Vec<Url>,
    /// URLs to listen on for other members: there are none, so nobody listens
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    listen_peer_urls: Vec<String>,
    /// URLs advertised to other members
    #[arg(
        long,
        value_name = "URL",
        value_delimiter = ',',
        default_value = "http://localhost:2380"
    )]
    initial_advertise_peer_urls: Vec<String>,
    /// Members of the cluster: this one alone
    #[arg(long, value_name = "NAME=URL", value_delimiter = ',')]
    initial_cluster: Vec<String>,
    /// Tells this cluster from others
    #[arg(long, value_name = "TOKEN", default_value = "etcd-cluster")]
    initial_cluster_token: String,
    /// Whether the cluster is new
    #[arg(long, value_name = "STATE", default_value = "new", value_parser = ["new", "existing"])]
    initial_cluster_state: String,
    /// Don't wait for the disk: what was acknowledged is lost if the machine dies
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value = "false", value_parser = parse_bool)]
    unsafe_no_fsync: bool,
    /// Bytes of keys, values and history after which writes are refused (0: 2 GiB; negative: no bound)
    #[arg(long, value_name = "BYTES", default_value_t = 0, allow_negative_numbers = true)]
    quota_backend_bytes: i64,
    /// What --auto-compaction-retention counts: periodic or revision
    #[arg(long, value_name = "MODE", default_value = "periodic", value_parser = ["periodic", "revision"])]
    auto_compaction_mode: String,
    /// How much history to keep: hours or a duration, or a number of revisions (0: all)
    #[arg(long, value_name = "RETENTION", default_value = "0")]
    auto_compaction_retention: String,
    /// Maximum number of operations in a transaction
    #[arg(long, value_name = "N", default_value_t = 128)]
    max_txn_ops: usize,
    /// Maximum size of a request
    #[arg(long, value_name = "BYTES", default_value_t = 1_572_864)]
    max_request_bytes: usize,
    /// How often a watch without events is told how far it is, if it asks for that
    #[arg(long, alias = "experimental-watch-progress-notify-interval", value_name = "DURATION", default_value = "10m",
          value_parser = parse_duration)]
    watch_progress_notify_interval: Duration,
    #[command(flatten, next_help_heading = "TLS")]
    tls: TlsArgs,
    #[command(flatten)]
    others: OtherFlags<EtcdFlags>,
}

#[derive(clap::Args)]
struct TlsArgs {
    /// Certificate to serve clients with
    #[arg(long, value_name = "FILE", requires = "key_file")]
    cert_file: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE", requires = "cert_file")]
    key_file: Option<PathBuf>,
    /// Let in only clients with a certificate that --trusted-ca-file signed
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value = "false", value_parser = parse_bool)]
    client_cert_auth: bool,
    /// Certificate authority of clients
    #[arg(long, value_name = "FILE")]
    trusted_ca_file: Option<PathBuf>,
}

impl TlsArgs {
    fn files(&self) -> anyhow::Result<Option<TlsFiles>> {
        if self.client_cert_auth && self.trusted_ca_file.is_none() {
            bail!("--client-cert-auth: say with --trusted-ca-file who signs clients' certificates");
        }
        // Upstream: with an authority clients' certificates are asked for even without --client-cert-auth.
        let files = self.cert_file.clone().zip(self.key_file.clone());
        Ok(files.map(|(certificate, key)| TlsFiles {
            certificate,
            key,
            client_authority: self.trusted_ca_file.clone(),
        }))
    }
}

pub(super) fn run(args: Args) -> anyhow::Result<()> {
    args.others.settle()?;
    let settings = settings(&args)?;
    let compaction = auto_compaction(&args.auto_compaction_mode, &args.auto_compaction_retention)?;
    let tls = match args.tls.files()? {
        Some(files) => Some(orlop_etcd::server_config(&files)?),
        None => None,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("failed to start the tokio runtime")?;
    runtime.block_on(async {
        let (stop, _) = signals::stop_on_signal()?;
        let mut ports = Vec::new();
        let clients = args.listen_client_urls.iter().map(|url| (url, Serves::Clients));
        let metrics = args.listen_metrics_urls.iter().map(|url| (url, Serves::Metrics));
        for (url, serves) in clients.chain(metrics) {
            let tls = match (url.is_https, &tls) {
                (false, _) => None,
                (true, Some(tls)) => Some(tls.clone()),
                (true, None) => bail!("{url}: --cert-file and --key-file are needed to serve it"),
            };
            for address in url.addresses().await? {
                ports.push(Port {
                    listener: bind(address)
                        .await
                        .with_context(|| format!("failed to listen on {url}"))?,
                    tls: tls.clone(),
                    serves,
                });
            }
        }
        let server = Server::open(settings, stop.clone()).await?;
        orlop_etcd::compact_automatically(&server, compaction);
        for port in &ports {
            let address = port.listener.local_addr()?;
            tracing::info!(%address, tls = port.tls.is_some(), "serving etcd's API");
        }
        tokio::select! {
            () = orlop_etcd::serve(server.clone(), ports) => {}
            () = server.stopped() => {
                bail!("the store's writer thread panicked; start again: everything acknowledged is on disk")
            }
        }
        server.close().await;
        Ok(())
    })
}

async fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    TcpListener::bind(address).await
}

/// Upstream: DefaultQuotaBytes.
const QUOTA: u64 = 2 << 30;

fn settings(args: &Args) -> anyhow::Result<Settings> {
    let mut members = args
        .initial_cluster
        .iter()
        .filter_map(|member| member.split_once('='))
        .map(|(name, _)| name);
    if members.any(|name| name != args.name) {
        bail!(
            "--initial-cluster: only the member {} itself: a cluster of several members is not supported",
            args.name
        );
    }
    // Taken so that manifests can be used as they are.
    if !args.listen_peer_urls.is_empty() {
        tracing::debug!(urls = ?args.listen_peer_urls, "not listening for other members: there are none");
    }
    tracing::debug!(
        state = args.initial_cluster_state,
        "whether the cluster is new shows in the data directory"
    );
    let data_dir = args.data_dir.clone();
    Ok(Settings {
        data_dir: data_dir.unwrap_or_else(|| format!("{}.etcd", args.name).into()),
        name: args.name.clone(),
        peer_urls: args.initial_advertise_peer_urls.clone(),
        client_urls: args.advertise_client_urls.clone(),
        cluster_token: args.initial_cluster_token.clone(),
        sync: !args.unsafe_no_fsync,
        max_txn_ops: args.max_txn_ops,
        max_request_bytes: args.max_request_bytes,
        quota_bytes: match args.quota_backend_bytes {
            0 => Some(QUOTA),
            bytes => u64::try_from(bytes).ok(),
        },
        progress_notify_interval: args.watch_progress_notify_interval,
    })
}

fn auto_compaction(mode: &str, retention: &str) -> anyhow::Result<AutoCompaction> {
    let count: Option<u64> = retention.parse().ok();
    if count == Some(0) || retention.is_empty() {
        return Ok(AutoCompaction::Off);
    }
    let wrong = || format!("--auto-compaction-retention: {retention:?} is no retention for the mode {mode}");
    if mode == "revision" {
        return Ok(AutoCompaction::Revisions(count.with_context(wrong)?));
    }
    let age = match count {
        Some(hours) => Duration::from_secs(hours.checked_mul(3600).with_context(wrong)?),
        None => parse_duration(retention).with_context(wrong)?,
    };
    Ok(match age.is_zero() {
        true => AutoCompaction::Off,
        false => AutoCompaction::Periodic(age),
    })
}

/// A line of arguments with what etcd takes from the environment (`ETCD_DATA_DIR` is `--data-dir`), and with two dashes
/// before each flag: etcd also takes one. What is on the line counts.
pub(super) fn line(line: Vec<std::ffi::OsString>, first: usize) -> Vec<std::ffi::OsString> {
    let vars = std::env::vars().filter_map(|(name, value)| Some((name.strip_prefix("ETCD_")?.to_string(), value)));
    line_with(line, first, vars)
}

fn line_with(
    line: Vec<std::ffi::OsString>,
    first: usize,
    vars: impl Iterator<Item = (String, String)>,
) -> Vec<std::ffi::OsString> {
    use clap::Args as _;
    let command = Args::augment_args(clap::Command::new("etcd"));
    let known: Vec<String> = command
        .get_arguments()
        .filter_map(|arg| arg.get_long())
        .map(str::to_string)
        .collect();
    let name_of = |text: &str| text.split('=').next().unwrap_or_default().to_string();
    let mut out = Vec::with_capacity(line.len());
    let mut given = Vec::new();
    for (at, argument) in line.into_iter().enumerate() {
        let text = argument.to_str().filter(|_| at >= first).unwrap_or_default();
        let name = name_of(text.trim_start_matches('-'));
        if !text.starts_with('-') || !known.contains(&name) {
            out.push(argument);
            continue;
        }
        out.push(format!("--{}", text.trim_start_matches('-')).into());
        given.push(name);
    }
    for (name, value) in vars {
        let flag = name.to_ascii_lowercase().replace('_', "-");
        if known.contains(&flag) && !given.contains(&flag) {
            out.push(format!("--{flag}={value}").into());
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn parsed(line: &str, vars: &[(&str, &str)]) -> Args {
        let words = line.split_whitespace().map(Into::into).collect();
        let vars = vars.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        let cli = Cli::try_parse_from(line_with(words, 1, vars));
        cli.unwrap_or_else(|error| panic!("{line}: {error}")).args
    }

    #[test]
    fn a_manifest_of_kubeadm_can_be_used() {
        let args = parsed(
            "etcd --advertise-client-urls=https://10.0.0.1:2379 --cert-file=/p/server.crt --client-cert-auth=true \
             --data-dir=/var/lib/etcd --feature-gates=InitialCorruptCheck=true \
             --initial-advertise-peer-urls=https://10.0.0.1:2380 --initial-cluster=vm=https://10.0.0.1:2380 \
             --key-file=/p/server.key --listen-client-urls=https://127.0.0.1:2379,https://10.0.0.1:2379 \
             --listen-metrics-urls=http://127.0.0.1:2381 --listen-peer-urls=https://10.0.0.1:2380 --name=vm \
             --peer-cert-file=/p/peer.crt --peer-client-cert-auth=true --peer-key-file=/p/peer.key \
             --peer-trusted-ca-file=/p/ca.crt --snapshot-count=10000 --trusted-ca-file=/p/ca.crt \
             --watch-progress-notify-interval=5s",
            &[],
        );
        args.others.settle().unwrap();
        let settings = settings(&args).unwrap();
        assert_eq!(
            (settings.name.as_str(), settings.sync, settings.quota_bytes),
            ("vm", true, Some(QUOTA))
        );
        assert_eq!(settings.progress_notify_interval, Duration::from_secs(5));
        assert_eq!(args.listen_client_urls.len(), 2);
        assert_eq!(
            args.tls.files().unwrap().unwrap().client_authority,
            Some("/p/ca.crt".into())
        );
    }

    #[test]
    fn flags_come_from_the_environment_too_and_with_one_dash() {
        let vars = [
            ("DATA_DIR", "/env"),
            ("NAME", "env"),
            ("SNAPSHOT_COUNT", "5"),
            ("UNHEARD_OF", "1"),
        ];
        let args = parsed("etcd -data-dir /line -unsafe-no-fsync", &vars);
        let settings = settings(&args).unwrap();
        assert_eq!(
            (settings.data_dir, settings.name, settings.sync),
            ("/line".into(), "env".into(), false)
        );
        args.others.settle().unwrap();
    }

    #[test]
    fn what_can_not_be_done_is_refused_by_name() {
        for (line, message) in [
            (
                "etcd --initial-cluster=default=http://a:1,other=http://b:1",
                "--initial-cluster: only",
            ),
            (
                "etcd --client-cert-auth",
                "--client-cert-auth: say with --trusted-ca-file",
            ),
            ("etcd --discovery=https://discovery.etcd.io/x", "--discovery: "),
            ("etcd --config-file=/etc/etcd.yaml", "--config-file: "),
            ("etcd --auto-tls", "--auto-tls: "),
        ] {
            let args = parsed(line, &[]);
            let refused = args.others.settle().and_then(|()| settings(&args).map(drop));
            let refused = refused.and_then(|()| args.tls.files().map(drop));
            let error = refused.expect_err(line).to_string();
            assert!(error.starts_with(message), "{error}");
        }
    }

    #[test]
    fn retentions() {
        use AutoCompaction::{Off, Periodic, Revisions};
        for (mode, retention, expected) in [
            ("periodic", "0", Some(Off)),
            ("periodic", "1", Some(Periodic(Duration::from_secs(3600)))),
            ("periodic", "5m", Some(Periodic(Duration::from_secs(300)))),
            ("periodic", "soon", None),
            ("revision", "1000", Some(Revisions(1000))),
            ("revision", "5m", None),
            ("revision", "0", Some(Off)),
        ] {
            assert_eq!(auto_compaction(mode, retention).ok(), expected, "{mode} {retention}");
        }
    }
}
