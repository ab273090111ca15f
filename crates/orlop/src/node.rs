//! The node that `orlop up` brings with it: which runtime it uses, and what its agent is started with.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use ipnet::IpNet;
use orlop_apiserver::pki::{Credential, Pki, San, Subject};
use orlop_base::{Clock, Random, Shutdown};
use orlop_client::Api;
use orlop_kubelet::agent::{self, NetworkConfiguration, PodStop};
use orlop_kubelet::config::effective::{self, Owner};
use orlop_kubelet::config::{self, Config, Override};
use orlop_kubelet::hosted::HostedPods;
use orlop_kubelet::node::{Identity, address};
use orlop_kubelet::server::Certificate;
use orlop_runtime::Runtime;
use orlop_runtime::cri::CriRuntime;
use orlop_runtime::embedded::network::nodes_prefix;
use orlop_runtime::simulated::{self, Simulated};
use serde_json::json;

use crate::data_dir;
use crate::embedded::{EmbeddedNode, EmbeddedParts, PodTransport};
use crate::machine::{self, NodeTraces, own_address};
use crate::nodes::ranges::{self, PodRanges, WORKERS_MAX};
use crate::nodes::{WorkerNode, WorkersRecord};

/// Where people look for a machine's static pods, and for the configuration of its kubelet.
const MACHINE_MANIFESTS: &str = "/etc/kubernetes/manifests";
const MACHINE_CONFIG: &str = "/var/lib/kubelet/config.yaml";
/// The node's serving certificate. A new one is made at every start.
const CERTIFICATE_AGE: Duration = Duration::from_secs(365 * 24 * 60 * 60);

#[derive(clap::Args)]
pub(crate) struct NodeArgs {
    /// Nodes with real pods to bring up on this machine: the machine itself and N - 1 worker nodes, each a network namespace with
    /// a kubelet of its own (0: the control plane alone) [default: 1, and the worker nodes that there were]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=i64::from(WORKERS_MAX) + 1))]
    nodes: Option<u8>,
    /// Name of the node [default: this host's]
    #[arg(long, value_name = "NAME")]
    node_name: Option<String>,
    /// Container runtime: auto (embedded as root, else simulated), embedded, simulated, or a CRI endpoint (cri:unix:///run/…)
    #[arg(long, value_name = "RUNTIME", default_value = "auto", value_parser = parse_runtime)]
    runtime: RuntimeArg,
    /// CIDR range of the node's pods (one per IP family, comma-separated); those of worker nodes follow it
    #[arg(long, value_name = "CIDR", default_value = "10.244.0.0/24")]
    pod_cidr: PodRanges,
    /// How pods of other nodes are reached, with the embedded runtime
    #[arg(long, value_name = "HOW", value_enum, default_value_t)]
    pod_network: PodTransport,
    /// CNI configuration directory to write to; empty to write none [default: the runtime's]
    #[arg(long, value_name = "DIR")]
    cni_conf_dir: Option<String>,
    /// KubeletConfiguration file of the kubelet [default: kubelet/config.yaml in the data directory, or
    /// /var/lib/kubelet/config.yaml, if somebody wrote or edited it]
    #[arg(long, value_name = "FILE")]
    kubelet_config: Option<PathBuf>,
    /// Directory of static pod manifests [default: /etc/kubernetes/manifests for root's cluster with a container runtime, else
    /// kubelet/manifests in the data directory]
    #[arg(long, value_name = "DIR")]
    pod_manifest_path: Option<String>,
    /// Port of the kubelet (0: any free port) [default: 10250]
    #[arg(long, value_name = "PORT")]
    kubelet_port: Option<u16>,
    /// Port of the kubelet's healthz endpoint on 127.0.0.1 (0: disabled)
    #[arg(long, value_name = "PORT", default_value_t = 10248)]
    kubelet_healthz_port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum RuntimeArg {
    Auto,
    Embedded,
    Simulated,
    Cri(String),
}

fn parse_runtime(text: &str) -> anyhow::Result<RuntimeArg> {
    match text {
        "auto" => Ok(RuntimeArg::Auto),
        "embedded" => Ok(RuntimeArg::Embedded),
        "simulated" => Ok(RuntimeArg::Simulated),
        _ => match text.strip_prefix("cri:").filter(|endpoint| !endpoint.is_empty()) {
            Some(endpoint) => Ok(RuntimeArg::Cri(endpoint.to_string())),
            None => anyhow::bail!("must be auto, embedded, simulated or cri:unix:///path/to/socket"),
        },
    }
}

/// What runs the containers of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Choice {
    Embedded,
    Cri(String),
    Simulated {
        /// Nobody asked for it: there is no other.
        for_want_of_another: bool,
    },
}

/// A node to be started.
#[derive(Clone)]
pub(crate) struct NodePlan {
    pub identity: Identity,
    embedded: EmbeddedNode,
    choice: Choice,
    config: Config,
    root_dir: PathBuf,
    pod_cidr: PodRanges,
    network: NetworkConfiguration,
    files: NodeFiles,
    /// Components that are shown as pods of this node.
    pub hosted: HostedPods,
    /// `--kubelet-config`, which is for worker nodes too.
    kubelet_config: Option<PathBuf>,
    /// The worker nodes of this machine.
    pub workers: WorkersRecord,
}

/// What a kubelet serves with, and whose clients it believes.
#[derive(Clone)]
pub(crate) struct NodeCertificate {
    pub certificate: Certificate,
    pub client_authority: String,
}

/// Files that belong to the machine or, where several clusters share one, to the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NodeFiles {
    /// Static pods, unless the configuration says otherwise.
    manifests: PathBuf,
    /// Where the configuration in effect is shown.
    shown_config: PathBuf,
    /// What somebody wrote or edited, to be read as the configuration.
    config: Option<PathBuf>,
}

/// What a node has to itself unless it is the machine's own. Kubelets tidy up after pods that they do not know, so two
/// that share these end each other's.
struct OwnPlaces {
    cgroup_root: String,
    pod_logs_dir: PathBuf,
}

impl OwnPlaces {
    fn new(data_dir: &Path, root_dir: &Path, name: &str) -> OwnPlaces {
        OwnPlaces {
            cgroup_root: own_cgroup(&data_dir::absolute(data_dir), name),
            pod_logs_dir: root_dir.join("pod-logs"),
        }
    }
}

/// The cgroup of a node that shares the machine with others.
pub(crate) fn own_cgroup(data_dir: &Path, node: &str) -> String {
    format!("/{}-{node}", nodes_prefix(&data_dir.display().to_string()))
}

impl NodeFiles {
    /// `machine`: `/` for the cluster that is this machine's own. Only one can be, and no other kubelet beside it: they would
    /// run each other's static pods.
    fn find(root_dir: &Path, machine: Option<&Path>) -> NodeFiles {
        let below = |root: &Path, path: &str| root.join(path.trim_start_matches('/'));
        let own = root_dir.join("config.yaml");
        let is_wish = |path: &Path| matches!(effective::owner(path), Owner::Edited | Owner::SomebodyElse);
        let files = NodeFiles {
            manifests: root_dir.join("manifests"),
            config: is_wish(&own).then(|| own.clone()),
            shown_config: own,
        };
        let Some(machine) = machine else { return files };
        let shown_config = below(machine, MACHINE_CONFIG);
        if effective::owner(&shown_config) == Owner::SomebodyElse {
            tracing::info!(
                path = %shown_config.display(), manifests = %files.manifests.display(),
                "found the configuration of another kubelet, using the data directory for static pods"
            );
            return files;
        }
        let edited = is_wish(&shown_config).then(|| shown_config.clone());
        NodeFiles {
            manifests: below(machine, MACHINE_MANIFESTS),
            config: files.config.or(edited),
            shown_config,
        }
    }
}

impl NodeArgs {
    /// What is to be started; none for a control plane alone. `dns` is where real pods look names up.
    pub(crate) fn plan(self, data_dir: &Path, dns: Option<IpAddr>) -> anyhow::Result<Option<NodePlan>> {
        if self.nodes == Some(0) {
            return Ok(None);
        }
        let choice = choose(&self.runtime, nix::unistd::geteuid().is_root());
        let name = address::node_name(self.node_name.as_deref()).map_err(anyhow::Error::msg)?;
        let workers = self.workers(data_dir, &choice, &name)?;
        let root_dir = data_dir.join("kubelet");
        let dns = dns.filter(|_| choice.is_real());
        let is_machines = choice.is_real() && is_usual(data_dir);
        let files = NodeFiles::find(&root_dir, is_machines.then_some(Path::new("/")));
        let own = (choice == Choice::Embedded && !is_machines).then(|| OwnPlaces::new(data_dir, &root_dir, &name));
        let config = self.configuration(&files, own.as_ref(), &root_dir, &choice, dns)?;
        let own_address = match choice.is_real() {
            true => own_address::node_address(data_dir).context("failed to give this machine an address")?,
            false => address::default_address(),
        };
        let mut identity = Identity {
            hostname: name.clone(),
            name,
            addresses: vec![own_address],
            labels: Default::default(),
            port: self.kubelet_port.unwrap_or(config.port),
        };
        identity.addresses.extend(self.further_address(identity.addresses[0]));
        let network = match self.cni_conf_dir {
            _ if !matches!(choice, Choice::Cri(_)) => NetworkConfiguration::Foreign,
            None => NetworkConfiguration::WhereRuntimeLooks,
            Some(directory) if directory.is_empty() => NetworkConfiguration::Foreign,
            Some(directory) => NetworkConfiguration::In(directory.into()),
        };
        Ok(Some(NodePlan {
            embedded: EmbeddedNode::new(data_dir, &identity.name, &self.pod_cidr.of_cluster(), self.pod_network),
            identity,
            choice,
            config,
            root_dir,
            pod_cidr: self.pod_cidr,
            network,
            files,
            hosted: HostedPods::none(),
            kubelet_config: self.kubelet_config,
            workers,
        }))
    }

    /// The node's address of the other family, if pods have addresses of both.
    fn further_address(&self, than: IpAddr) -> Option<IpAddr> {
        if self.pod_cidr.families().len() < 2 {
            return None;
        }
        let mut not_the_nodes: Vec<IpNet> = self.pod_cidr.of_cluster().iter().collect();
        not_the_nodes.extend(ranges::all_node_ranges());
        address::further_address(than, &not_the_nodes)
    }

    /// Those that there were, or as many as are asked for.
    fn workers(&self, data_dir: &Path, choice: &Choice, own: &str) -> anyhow::Result<WorkersRecord> {
        let read = WorkersRecord::read(data_dir);
        let mut record = read.with_context(|| format!("failed to read {}", data_dir::NODES_FILE))?;
        if let Some(nodes) = self.nodes {
            record.set_running(usize::from(nodes.saturating_sub(1)), own)?;
        }
        if record.workers.is_empty() {
            return Ok(record);
        }
        anyhow::ensure!(
            *choice == Choice::Embedded,
            "several nodes need the embedded runtime, which needs root; for simulated nodes use --simulate N"
        );
        anyhow::ensure!(
            self.pod_cidr.primary().addr().is_ipv4(),
            "several nodes need an IPv4 --pod-cidr, alone or before one of IPv6"
        );
        let last = record.workers.iter().map(|worker| worker.number).max().unwrap_or(0);
        anyhow::ensure!(
            self.pod_cidr.of_worker(last).is_some(),
            "--pod-cidr {} leaves no ranges of this size for the worker nodes",
            self.pod_cidr
        );
        Ok(record)
    }

    fn configuration(
        &self,
        files: &NodeFiles,
        own: Option<&OwnPlaces>,
        root_dir: &Path,
        choice: &Choice,
        dns: Option<IpAddr>,
    ) -> anyhow::Result<Config> {
        let file = self.kubelet_config.clone().or_else(|| files.config.clone());
        let text = match &file {
            None => None,
            Some(path) => {
                let read = std::fs::read_to_string(path);
                Some(read.with_context(|| format!("failed to read {}", path.display()))?)
            }
        };
        let mut flags: Vec<Override> = Vec::new();
        if let Some(folder) = &self.pod_manifest_path {
            flags.push(("staticPodPath", json!(folder)));
        }
        if text.is_none() {
            flags.extend(usual_settings(dns));
            flags.push(("healthzPort", json!(self.kubelet_healthz_port)));
            if matches!(choice, Choice::Simulated { .. }) {
                flags.push(("podLogsDir", json!(root_dir.join("pod-logs"))));
            }
        }
        if let Choice::Cri(endpoint) = choice {
            flags.push(("containerRuntimeEndpoint", json!(endpoint)));
        }
        let parse = |flags: &[Override]| config::parse(text.as_deref(), flags);
        let parsed = parse(&flags).and_then(|config| {
            if config.static_pod_path.is_none() {
                flags.push(("staticPodPath", json!(files.manifests)));
            }
            // What somebody chose is theirs.
            let usual = Config::default();
            if let Some(own) = own.filter(|_| config.cgroup_root == usual.cgroup_root) {
                flags.push(("cgroupRoot", json!(own.cgroup_root)));
            }
            if let Some(own) = own.filter(|_| config.pod_logs_dir == usual.pod_logs_dir) {
                flags.push(("podLogsDir", json!(own.pod_logs_dir)));
            }
            parse(&flags)
        });
        let parsed = parsed.map(|mut config| {
            if !matches!(choice, Choice::Cri(_)) {
                config.turned_out("containerRuntimeEndpoint", json!(""));
            }
            config
        });
        parsed.map_err(|problems| {
            let name = file.map_or("the flags".into(), |path| path.display().to_string());
            anyhow::anyhow!("{name}: no usable kubelet configuration:\n  {}", problems.join("\n  "))
        })
    }
}

/// The cluster in the usual place is the machine's.
fn is_usual(data_dir: &Path) -> bool {
    let whole = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    nix::unistd::geteuid().is_root()
        && crate::commands::up::default_data_dir().is_ok_and(|usual| whole(&usual) == whole(data_dir))
}

fn choose(runtime: &RuntimeArg, is_root: bool) -> Choice {
    match runtime {
        RuntimeArg::Embedded => Choice::Embedded,
        RuntimeArg::Simulated => Choice::Simulated {
            for_want_of_another: false,
        },
        RuntimeArg::Cri(endpoint) => Choice::Cri(endpoint.clone()),
        RuntimeArg::Auto if is_root => Choice::Embedded,
        RuntimeArg::Auto => Choice::Simulated {
            for_want_of_another: true,
        },
    }
}

impl Choice {
    /// Its pods are processes that send packets.
    fn is_real(&self) -> bool {
        matches!(self, Choice::Embedded | Choice::Cri(_))
    }
}

/// One line for the user.
pub(crate) fn described(plan: Option<&NodePlan>) -> String {
    let Some(plan) = plan else {
        return "No nodes: this is the control plane alone. Pods are placed as soon as there are Node objects."
            .to_string();
    };
    let name = &plan.identity.name;
    let workers = plan.workers.workers.iter().filter(|worker| !worker.is_stopped);
    let workers: Vec<&str> = workers.map(|worker| worker.name.as_str()).collect();
    match &plan.choice {
        Choice::Embedded if !workers.is_empty() => format!(
            "Node {name} has the control plane, worker nodes are {}; they run containers themselves.",
            workers.join(", ")
        ),
        Choice::Embedded => format!("Node {name} runs containers itself."),
        Choice::Cri(endpoint) => format!("Node {name} runs containers with the runtime at {endpoint}."),
        Choice::Simulated {
            for_want_of_another: true,
        } => format!(
            "Node {name} is simulated: pods report Running, no containers are started. For real pods run as root: sudo orlop up"
        ),
        Choice::Simulated { .. } => {
            format!("Node {name} is simulated: pods report Running, no containers are started.")
        }
    }
}

impl NodePlan {
    /// Its pods are processes that send packets.
    pub(crate) fn is_real(&self) -> bool {
        self.choice.is_real()
    }

    /// The node, if it runs containers itself.
    pub(crate) fn embedded(&self) -> Option<&EmbeddedNode> {
        matches!(self.choice, Choice::Embedded).then_some(&self.embedded)
    }

    /// What it will leave on the machine; none for a simulated node.
    pub(crate) fn traces(&self) -> Option<NodeTraces> {
        let runtime = match &self.choice {
            Choice::Embedded => String::new(),
            Choice::Cri(endpoint) => endpoint.clone(),
            Choice::Simulated { .. } => return None,
        };
        let is_own_folder = self.config.static_pod_path.as_ref() == Some(&self.files.manifests);
        let directories = [
            is_own_folder.then_some(&*self.files.manifests),
            self.files.shown_config.parent(),
            Some(&self.config.pod_logs_dir),
        ];
        let directories = directories.into_iter().flatten();
        Some(NodeTraces {
            runtime,
            embedded: self.embedded().cloned(),
            pod_logs_dir: self.config.pod_logs_dir.clone(),
            cgroup_root: self.config.cgroup_root.clone(),
            made_kubepods: !machine::kubepods_exist(&self.config.cgroup_root),
            owns_cgroup_root: self.config.cgroup_root == own_cgroup(&self.embedded.data_dir, &self.identity.name),
            cni_conf_dir: match &self.network {
                NetworkConfiguration::Foreign => None,
                NetworkConfiguration::WhereRuntimeLooks => Some(PathBuf::new()),
                NetworkConfiguration::In(directory) => Some(directory.clone()),
            },
            kubelet_config: self.files.shown_config.clone(),
            made_directories: directories.flat_map(machine::missing_directories).collect(),
        })
    }

    /// The ranges of the node's pods.
    pub(crate) fn pod_cidr(&self) -> &PodRanges {
        &self.pod_cidr
    }

    /// `--kubelet-config`
    pub(crate) fn kubelet_config(&self) -> Option<&PathBuf> {
        self.kubelet_config.as_ref()
    }

    /// A worker node, in its own process.
    pub(crate) fn worker(worker: WorkerNode) -> anyhow::Result<NodePlan> {
        let root_dir = worker.directory().join("kubelet");
        let files = NodeFiles::find(&root_dir, None);
        let text = worker
            .kubelet_config
            .as_ref()
            .map(std::fs::read_to_string)
            .transpose()?;
        let mut flags: Vec<Override> = vec![
            ("podLogsDir", json!(worker.directory().join("pod-logs"))),
            ("cgroupRoot", json!(worker.cgroup_root)),
            ("staticPodPath", json!(files.manifests)),
        ];
        if text.is_none() {
            flags.extend(usual_settings(worker.dns));
        }
        let mut config = config::parse(text.as_deref(), &flags)
            .map_err(|problems| anyhow::anyhow!("invalid configuration:\n{}", problems.join("\n")))?;
        config.turned_out("containerRuntimeEndpoint", json!(""));
        let identity = Identity {
            hostname: worker.name.clone(),
            name: worker.name,
            addresses: worker.addresses,
            labels: worker.labels,
            port: config.port,
        };
        Ok(NodePlan {
            embedded: worker.embedded,
            identity,
            choice: Choice::Embedded,
            config,
            root_dir,
            pod_cidr: worker.pod_cidr,
            network: NetworkConfiguration::Foreign,
            files,
            hosted: HostedPods::none(),
            kubelet_config: None,
            workers: WorkersRecord::default(),
        })
    }

    /// What runs the containers. A simulated one has them in memory: it is to outlive the agent.
    pub(crate) async fn runtime(&self, parts: EmbeddedParts) -> anyhow::Result<Arc<dyn Runtime>> {
        Ok(match &self.choice {
            Choice::Embedded => self.embedded.open(parts).await?,
            Choice::Cri(endpoint) => {
                let failed = |e| anyhow::anyhow!("failed to connect to the container runtime {endpoint}: {e}");
                Arc::new(CriRuntime::connect(endpoint).map_err(failed)?)
            }
            Choice::Simulated { .. } => Arc::new(Simulated::new(simulated::Options {
                clock: Clock::System,
                pod_ranges: self.pod_cidr.iter().map(|range| range.to_string()).collect(),
                seed: Random::from_entropy().next_u64(),
                logs: true,
                ..simulated::Options::default()
            })),
        })
    }

    /// What the agent is started with.
    pub(crate) fn options(
        self,
        runtime: Arc<dyn Runtime>,
        api: Api,
        certificate: NodeCertificate,
        pod_stop: Option<PodStop>,
        shutdown: Shutdown,
    ) -> agent::Options {
        let clock = Clock::System;
        let is_real = self.is_real();
        // A folder that somebody chose is theirs to make.
        if self.config.static_pod_path.as_ref() == Some(&self.files.manifests)
            && let Err(error) = std::fs::create_dir_all(&self.files.manifests)
        {
            let path = self.files.manifests.display();
            tracing::warn!(%path, err = %error, "failed to create the static pod directory");
        }
        agent::Options {
            config: self.config,
            api: Some(api),
            runtime,
            identity: self.identity,
            root_dir: self.root_dir,
            certificate: certificate.certificate,
            client_authority: Some(certificate.client_authority),
            pod_cidr: Some(self.pod_cidr.to_string()),
            network: self.network,
            effective_config: Some(self.files.shown_config),
            control_groups: is_real,
            credential_providers: None,
            hosted: self.hosted,
            logind: agent::Logind::default(),
            pod_stop,
            clock,
            shutdown,
        }
    }
}

/// What a kubelet serves with. One is made at every start.
pub(crate) fn issue_certificate(pki: &Pki, identity: &Identity) -> anyhow::Result<Credential> {
    let name = format!("system:node:{}", identity.name);
    let subject = Subject {
        common_name: &name,
        organizations: &["system:nodes"],
    };
    let mut sans = vec![San::parse(&identity.hostname)];
    sans.extend(identity.addresses.iter().map(|ip| San::Ip(*ip)));
    let made = pki.issue_server(subject, &sans, CERTIFICATE_AGE, Clock::System.now());
    made.map_err(|e| anyhow::anyhow!("failed to issue a serving certificate for node {}: {e}", identity.name))
}

impl NodeCertificate {
    pub(crate) fn issue(pki: &Pki, identity: &Identity) -> anyhow::Result<NodeCertificate> {
        let made = issue_certificate(pki, identity)?;
        Ok(NodeCertificate {
            certificate: Certificate::Given {
                certificate: made.certificate,
                key: made.key,
            },
            client_authority: pki.ca.certificate.clone(),
        })
    }
}

/// Of a kubelet whose user has no configuration of their own. A machine to try things on is taken as it is.
fn usual_settings(dns: Option<IpAddr>) -> Vec<Override> {
    let mut settings: Vec<Override> = vec![("clusterDomain", json!("cluster.local")), ("failSwapOn", json!(false))];
    settings.extend(dns.map(|address| ("clusterDNS", json!([address]))));
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtimes_by_their_names() {
        assert_eq!(parse_runtime("auto").unwrap(), RuntimeArg::Auto);
        assert_eq!(parse_runtime("embedded").unwrap(), RuntimeArg::Embedded);
        let cri = RuntimeArg::Cri("unix:///x".into());
        assert_eq!(parse_runtime("cri:unix:///x").unwrap(), cri);
        assert!(parse_runtime("cri:").is_err() && parse_runtime("docker").is_err());
    }

    #[test]
    fn root_runs_containers_and_others_simulate_them() {
        let simulated = |for_want_of_another| Choice::Simulated { for_want_of_another };
        assert_eq!(choose(&RuntimeArg::Auto, true), Choice::Embedded);
        assert_eq!(choose(&RuntimeArg::Auto, false), simulated(true));
        assert_eq!(choose(&RuntimeArg::Simulated, true), simulated(false));
        let cri = RuntimeArg::Cri("unix:///x".into());
        assert_eq!(choose(&cri, true), Choice::Cri("unix:///x".into()));
    }

    #[test]
    fn one_cluster_is_the_machines_and_the_others_keep_to_themselves() {
        let dir = tempfile::tempdir().unwrap();
        let (machine, root_dir) = (dir.path().join("machine"), dir.path().join("data/kubelet"));
        let find = |is_machines: bool| NodeFiles::find(&root_dir, is_machines.then_some(&*machine));
        let files = |manifests: PathBuf, shown_config: PathBuf, config: Option<&Path>| NodeFiles {
            manifests,
            shown_config,
            config: config.map(Path::to_path_buf),
        };
        let (own, theirs) = (
            root_dir.join("config.yaml"),
            machine.join("var/lib/kubelet/config.yaml"),
        );
        let kept = |config: Option<&Path>| files(root_dir.join("manifests"), own.clone(), config);
        let shared = |config| files(machine.join("etc/kubernetes/manifests"), theirs.clone(), config);
        assert_eq!(find(false), kept(None));
        assert_eq!(find(true), shared(None));
        // What we wrote is shown; once it is edited, it is read.
        effective::write(&own, &json!({})).unwrap();
        effective::write(&theirs, &json!({"maxPods": 5})).unwrap();
        assert_eq!((find(false), find(true)), (kept(None), shared(None)));
        let edited = std::fs::read_to_string(&theirs)
            .unwrap()
            .replace("maxPods: 5", "maxPods: 6");
        std::fs::write(&theirs, edited).unwrap();
        assert_eq!((find(false), find(true)), (kept(None), shared(Some(&theirs))));
        std::fs::write(&own, "kind: KubeletConfiguration").unwrap();
        assert_eq!((find(false), find(true)), (kept(Some(&own)), shared(Some(&own))));
        // The machine has another kubelet already.
        std::fs::write(&theirs, "kind: KubeletConfiguration").unwrap();
        assert_eq!(find(true), kept(Some(&own)));
    }

    #[test]
    fn the_configuration_tells_what_is_in_effect() {
        use clap::Parser;
        #[derive(Parser)]
        struct Cli {
            #[command(flatten)]
            node: NodeArgs,
        }
        let dir = tempfile::tempdir().unwrap();
        let files = NodeFiles::find(dir.path(), None);
        let read = |line: &str, choice: Choice| {
            let words = std::iter::once("up").chain(line.split_whitespace());
            let args = Cli::try_parse_from(words).unwrap().node;
            let own = (choice == Choice::Embedded).then(|| OwnPlaces::new(dir.path(), dir.path(), "n"));
            args.configuration(&files, own.as_ref(), dir.path(), &choice, None)
                .unwrap()
        };
        let endpoint = |config: &Config| {
            config.document["containerRuntimeEndpoint"]
                .as_str()
                .unwrap()
                .to_string()
        };
        let cri = || Choice::Cri("unix:///x.sock".into());
        let config = read("", cri());
        assert_eq!(endpoint(&config), "unix:///x.sock");
        assert_eq!(config.static_pod_path, Some(files.manifests.clone()));
        let simulated = Choice::Simulated {
            for_want_of_another: false,
        };
        assert_eq!(endpoint(&read("", simulated)), "");
        // A node that shares the machine has cgroups and logs to itself, unless its configuration says where they are.
        let own = read("", Choice::Embedded);
        assert_eq!(own.cgroup_root, own_cgroup(&data_dir::absolute(dir.path()), "n"));
        assert!(own.pod_logs_dir.starts_with(dir.path()));
        let chosen = dir.path().join("chosen.yaml");
        let text = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncgroupRoot: /mine\n";
        std::fs::write(&chosen, text).unwrap();
        let config = read(&format!("--kubelet-config {}", chosen.display()), Choice::Embedded);
        assert_eq!(config.cgroup_root, "/mine");
        let file = dir.path().join("given.yaml");
        let text = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 7\n";
        std::fs::write(&file, text).unwrap();
        let flag = format!("--kubelet-config {}", file.display());
        let config = read(&flag, cri());
        assert_eq!(
            (config.max_pods, config.static_pod_path),
            (7, Some(files.manifests.clone()))
        );
        std::fs::write(&file, format!("{text}staticPodPath: /mine\n")).unwrap();
        assert_eq!(read(&flag, cri()).static_pod_path, Some("/mine".into()));
        let off = read(&format!("{flag} --pod-manifest-path="), cri());
        assert_eq!(off.static_pod_path, Some("".into()));
    }
}
