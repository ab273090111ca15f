//! `orlop kubelet`: the node agent alone, under kubelet's flag names.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use orlop_base::{Clock, Shutdown};
use orlop_client::{Api, transport};
use orlop_kubelet::agent::{self, NetworkConfiguration};
use orlop_kubelet::config::{self, Config, Override};
use orlop_kubelet::hosted::HostedPods;
use orlop_kubelet::node::{Identity, address};
use orlop_kubelet::server::Certificate;
use orlop_runtime::Runtime;
use orlop_runtime::cri::CriRuntime;
use serde_json::{Map, Value, json};
use tokio::signal::unix::{SignalKind, signal};

use super::parse_bool;

#[derive(clap::Args)]
pub(super) struct Args {
    /// KubeletConfiguration file (YAML or JSON)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Kubeconfig of the API server [default: standalone mode, static pods only]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Directory of the kubelet's files (volume mounts and so on)
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet")]
    root_dir: PathBuf,
    /// Directory of TLS certificates [default: pki below the root directory]
    #[arg(long, value_name = "DIR")]
    cert_dir: Option<PathBuf>,
    /// CNI configuration directory to write a configuration to [default: none is written]
    #[arg(long, value_name = "DIR")]
    cni_conf_dir: Option<PathBuf>,
    /// CredentialProviderConfig of the image credential providers: a file, or a directory of files
    #[arg(long, value_name = "PATH", requires = "image_credential_provider_bin_dir")]
    image_credential_provider_config: Option<PathBuf>,
    /// Directory of the image credential provider binaries
    #[arg(long, value_name = "DIR", requires = "image_credential_provider_config")]
    image_credential_provider_bin_dir: Option<PathBuf>,
    #[command(flatten, next_help_heading = "The node")]
    node: NodeArgs,
    #[command(flatten, next_help_heading = "In place of the configuration's")]
    fields: FieldArgs,
}

#[derive(clap::Args)]
struct NodeArgs {
    /// Name of the node [default: this host's]
    #[arg(long, value_name = "NAME")]
    hostname_override: Option<String>,
    /// IP address of the node, or one per IP family [default: that of the default route]
    #[arg(long, value_name = "IP")]
    node_ip: Option<String>,
    /// Labels to register the node with
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',')]
    node_labels: Vec<String>,
}

/// Each wins over the configuration file.
#[derive(clap::Args, Default)]
struct FieldArgs {
    /// Register the node with the API server
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = parse_bool)]
    register_node: Option<bool>,
    /// Taints to register the node with
    #[arg(long, value_name = "KEY=VALUE:EFFECT", value_delimiter = ',')]
    register_with_taints: Vec<String>,
    /// Directory of static pod manifests, or one file
    #[arg(long, value_name = "PATH")]
    pod_manifest_path: Option<String>,
    /// URL of static pod manifests
    #[arg(long, value_name = "URL")]
    manifest_url: Option<String>,
    /// Endpoint of the container runtime
    #[arg(long, value_name = "ENDPOINT")]
    container_runtime_endpoint: Option<String>,
    /// Maximum number of pods on this node
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    max_pods: Option<i64>,
    /// CIDR range of pod IPs in standalone mode
    #[arg(long, value_name = "CIDR")]
    pod_cidr: Option<String>,
    /// DNS server IP addresses of pods
    #[arg(long, value_name = "IP", value_delimiter = ',')]
    cluster_dns: Vec<String>,
    /// Domain of the cluster
    #[arg(long, value_name = "DOMAIN")]
    cluster_domain: Option<String>,
    /// Resources reserved for Kubernetes components
    #[arg(long, value_name = "NAME=QUANTITY", value_delimiter = ',')]
    kube_reserved: Vec<String>,
    /// Resources reserved for the operating system
    #[arg(long, value_name = "NAME=QUANTITY", value_delimiter = ',')]
    system_reserved: Vec<String>,
    /// Hard eviction thresholds
    #[arg(long, value_name = "SIGNAL<QUANTITY", value_delimiter = ',')]
    eviction_hard: Vec<String>,
    /// Cgroup driver: cgroupfs or systemd
    #[arg(long, value_name = "DRIVER")]
    cgroup_driver: Option<String>,
    /// Address to serve on
    #[arg(long, value_name = "IP")]
    address: Option<String>,
    /// Port to serve on
    #[arg(long, value_name = "PORT", allow_negative_numbers = true)]
    port: Option<i64>,
    /// Port of the healthz endpoint (0: disabled)
    #[arg(long, value_name = "PORT", allow_negative_numbers = true)]
    healthz_port: Option<i64>,
    /// Allow anonymous requests
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = parse_bool)]
    anonymous_auth: Option<bool>,
    /// Authorization mode: Webhook or AlwaysAllow
    #[arg(long, value_name = "MODE")]
    authorization_mode: Option<String>,
    /// CA bundle that client certificates are verified with
    #[arg(long, value_name = "FILE")]
    client_ca_file: Option<String>,
    /// TLS serving certificate
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    tls_cert_file: Option<String>,
    /// Its key
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    tls_private_key_file: Option<String>,
    /// Feature gates to enable or disable
    #[arg(long, value_name = "NAME=BOOL", value_delimiter = ',')]
    feature_gates: Vec<String>,
}

pub(super) fn run(args: Args) -> anyhow::Result<()> {
    let text = match &args.config {
        None => None,
        Some(path) => {
            let read = std::fs::read_to_string(path);
            Some(read.with_context(|| format!("failed to read the configuration {}", path.display()))?)
        }
    };
    let flags = overrides(&args.fields)?;
    let config = match config::parse(text.as_deref(), &flags) {
        Ok(config) => config,
        Err(problems) => bail!("invalid configuration:\n{}", problems.join("\n")),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_stack_size(orlop_api::schema::STACK_BYTES)
        .enable_all()
        .build()
        .context("failed to start the tokio runtime")?;
    // A task that panics ends the process, which its supervisor starts again.
    let outcome = runtime.block_on(orlop_base::task::guard(serve(args, config)));
    outcome.map_err(|panic| anyhow::anyhow!("a task of the kubelet panicked: {panic}"))?
}

async fn serve(args: Args, config: Config) -> anyhow::Result<()> {
    // Before anything is started, so that an early Ctrl-C stops cleanly too.
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let identity = identity(&args.node, &config)?;
    let api = match &args.kubeconfig {
        Some(path) => {
            let client = transport::from_kubeconfig(Some(path), None, "kubelet").await?;
            Some(Api::new(client, "kubelet"))
        }
        None => None,
    };
    let endpoint = &config.container_runtime_endpoint;
    let runtime = CriRuntime::connect(endpoint);
    let runtime: Arc<dyn Runtime> =
        Arc::new(runtime.map_err(|e| anyhow::anyhow!("failed to connect to the container runtime {endpoint}: {e}"))?);
    let certificate = match (&config.tls_cert_file, &config.tls_private_key_file) {
        (Some(certificate), Some(key)) => Certificate::Files {
            certificate: certificate.clone(),
            key: key.clone(),
        },
        _ => {
            let mut names = vec![identity.hostname.clone()];
            names.extend(identity.addresses.iter().map(ToString::to_string));
            let directory = args.cert_dir.clone().unwrap_or(args.root_dir.join("pki"));
            Certificate::Directory { directory, names }
        }
    };
    let client_authority = match &config.authentication.x509.client_ca_file {
        Some(path) => {
            let read = std::fs::read_to_string(path);
            Some(read.with_context(|| format!("failed to read {}", path.display()))?)
        }
        None => None,
    };
    let shutdown = Shutdown::default();
    let agent = agent::start(agent::Options {
        pod_cidr: Some(config.pod_cidr.clone()).filter(|range| !range.is_empty()),
        config,
        api,
        runtime,
        identity,
        root_dir: args.root_dir,
        certificate,
        client_authority,
        network: args
            .cni_conf_dir
            .map_or(NetworkConfiguration::Foreign, NetworkConfiguration::In),
        effective_config: None,
        control_groups: true,
        credential_providers: args
            .image_credential_provider_config
            .zip(args.image_credential_provider_bin_dir),
        hosted: HostedPods::none(),
        logind: agent::Logind::default(),
        pod_stop: None,
        clock: Clock::System,
        shutdown: shutdown.clone(),
    });
    let agent = agent.await.map_err(anyhow::Error::msg)?;
    if let Some(address) = agent.address() {
        tracing::info!(%address, node = agent.keeper().identity().name, "started kubelet");
    }
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    tracing::info!("stopping; pods keep running");
    shutdown.trigger();
    agent.wait().await;
    Ok(())
}

fn identity(args: &NodeArgs, config: &Config) -> anyhow::Result<Identity> {
    let hostname = address::node_name(args.hostname_override.as_deref()).map_err(anyhow::Error::msg)?;
    let addresses = match &args.node_ip {
        None => vec![address::default_address()],
        Some(text) => address::parse_node_ips(text).map_err(|e| anyhow::anyhow!("--node-ip: {e}"))?,
    };
    Ok(Identity {
        name: hostname.clone(),
        hostname,
        addresses,
        labels: pairs("--node-labels", &args.node_labels, "=")?,
        port: config.port,
    })
}

/// `name=value` each.
fn pairs(flag: &str, texts: &[String], separator: &str) -> anyhow::Result<BTreeMap<String, String>> {
    let pair = |text: &String| {
        let split = text.split_once(separator);
        let (name, value) = split.with_context(|| format!("{flag}: {text:?} has no {separator:?} in it"))?;
        Ok((name.trim().to_string(), value.trim().to_string()))
    };
    texts.iter().map(pair).collect()
}

fn map(flag: &str, texts: &[String], separator: &str) -> anyhow::Result<Option<Value>> {
    let pairs = pairs(flag, texts, separator)?;
    Ok((!pairs.is_empty()).then(|| json!(pairs)))
}

/// `key=value:effect` or `key:effect`
fn taint(text: &str) -> anyhow::Result<Value> {
    let wrong = || format!("--register-with-taints: {text:?} is not a valid taint (example: key=value:NoSchedule)");
    let (rest, effect) = text.rsplit_once(':').with_context(wrong)?;
    let (key, value) = rest.split_once('=').unwrap_or((rest, ""));
    Ok(json!({"key": key, "value": value, "effect": effect}))
}

/// Flags that were given, and the fields they stand for.
fn overrides(args: &FieldArgs) -> anyhow::Result<Vec<Override>> {
    let text = |value: &Option<String>| value.clone().map(Value::from);
    let taints: anyhow::Result<Vec<Value>> = args.register_with_taints.iter().map(|text| taint(text)).collect();
    let taints = taints?;
    let mut gates = Map::new();
    for (name, value) in pairs("--feature-gates", &args.feature_gates, "=")? {
        gates.insert(name, parse_bool(&value)?.into());
    }
    let some = |list: &Vec<String>| (!list.is_empty()).then(|| json!(list));
    let all = [
        ("registerNode", args.register_node.map(Value::from)),
        ("registerWithTaints", (!taints.is_empty()).then(|| json!(taints))),
        ("staticPodPath", text(&args.pod_manifest_path)),
        ("staticPodURL", text(&args.manifest_url)),
        ("containerRuntimeEndpoint", text(&args.container_runtime_endpoint)),
        ("maxPods", args.max_pods.map(Value::from)),
        ("podCIDR", text(&args.pod_cidr)),
        ("clusterDNS", some(&args.cluster_dns)),
        ("clusterDomain", text(&args.cluster_domain)),
        ("kubeReserved", map("--kube-reserved", &args.kube_reserved, "=")?),
        ("systemReserved", map("--system-reserved", &args.system_reserved, "=")?),
        ("evictionHard", map("--eviction-hard", &args.eviction_hard, "<")?),
        ("cgroupDriver", text(&args.cgroup_driver)),
        ("address", text(&args.address)),
        ("port", args.port.map(Value::from)),
        ("healthzPort", args.healthz_port.map(Value::from)),
        ("authentication.anonymous.enabled", args.anonymous_auth.map(Value::from)),
        ("authorization.mode", text(&args.authorization_mode)),
        ("authentication.x509.clientCAFile", text(&args.client_ca_file)),
        ("tlsCertFile", text(&args.tls_cert_file)),
        ("tlsPrivateKeyFile", text(&args.tls_private_key_file)),
        ("featureGates", (!gates.is_empty()).then_some(Value::Object(gates))),
    ];
    Ok(all.into_iter().filter_map(|(at, value)| Some((at, value?))).collect())
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

    fn args(line: &str) -> Args {
        let words = std::iter::once("kubelet").chain(line.split_whitespace());
        Cli::try_parse_from(words)
            .unwrap_or_else(|e| panic!("{line}: {e}"))
            .args
    }

    #[test]
    fn flags_become_fields() {
        let line = "--max-pods 5 --kube-reserved cpu=500m,memory=1Gi --eviction-hard memory.available<5% --port=1234 \
                    --register-with-taints a=b:NoSchedule,c:NoExecute --anonymous-auth --cluster-dns 10.0.0.10 \
                    --authorization-mode AlwaysAllow --feature-gates X=true --pod-manifest-path /m --register-node=false";
        let config = config::parse(None, &overrides(&args(line).fields).unwrap()).unwrap();
        assert_eq!((config.max_pods, config.port), (5, 1234));
        assert_eq!(config.kube_reserved["cpu"], "500m");
        assert_eq!(config.eviction_hard["memory.available"], "5%");
        assert_eq!(config.register_with_taints[1].effect, "NoExecute");
        assert!(config.authentication.anonymous.enabled && !config.register_node && config.feature_gates["X"]);
        for (line, wrong) in [
            ("--kube-reserved cpu", "--kube-reserved: \"cpu\" has no \"=\" in it"),
            (
                "--register-with-taints a",
                "--register-with-taints: \"a\" is not a valid taint",
            ),
            ("--feature-gates X=maybe", "must be true or false"),
        ] {
            let error = overrides(&args(line).fields).unwrap_err().to_string();
            assert!(error.starts_with(wrong), "{error}");
        }
    }

    #[test]
    fn the_node_is_named() {
        let args = args("--hostname-override Node-1 --node-ip 10.0.0.5 --node-labels a=b,c=");
        let identity = identity(&args.node, &Config::default()).unwrap();
        assert_eq!((identity.name.as_str(), identity.port), ("node-1", 10250));
        assert_eq!(identity.addresses.len(), 1);
        assert_eq!(identity.labels["c"], "");
    }
}
