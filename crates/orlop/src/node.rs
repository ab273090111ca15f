//! The node that `orlop up` brings with it: which runtime it uses, and what its agent is started with.

use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use orlop_apiserver::pki::{Pki, San, Subject};
use orlop_base::{Clock, Random, Shutdown};
use orlop_client::Api;
use orlop_kubelet::agent::{self, NetworkConfiguration};
use orlop_kubelet::config::effective::{self, Owner};
use orlop_kubelet::config::{self, Config, Override};
use orlop_kubelet::node::{Identity, address};
use orlop_kubelet::server::Certificate;
use orlop_runtime::Runtime;
use orlop_runtime::cri::CriRuntime;
use orlop_runtime::simulated::{self, Simulated};
use serde_json::json;

/// Where containerd and CRI-O listen on most machines.
const USUAL: [&str; 2] = ["unix:///run/containerd/containerd.sock", "unix:///run/crio/crio.sock"];
/// Where people look for a machine's static pods, and for the configuration of its kubelet.
const MACHINE_MANIFESTS: &str = "/etc/kubernetes/manifests";
const MACHINE_CONFIG: &str = "/var/lib/kubelet/config.yaml";
/// The node's serving certificate. A new one is made at every start.
const CERTIFICATE_AGE: Duration = Duration::from_secs(365 * 24 * 60 * 60);

#[derive(clap::Args)]
pub(crate) struct NodeArgs {
    /// Nodes to bring up on this machine: 0 or 1
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    nodes: u8,
    /// Name of the node [default: this host's]
    #[arg(long, value_name = "NAME")]
    node_name: Option<String>,
    /// Container runtime: auto, simulated, or a CRI endpoint (cri:unix:///run/…)
    #[arg(long, value_name = "RUNTIME", default_value = "auto", value_parser = parse_runtime)]
    runtime: RuntimeArg,
    /// CIDR range of the node's pods
    #[arg(long, value_name = "CIDR", default_value = "10.244.0.0/24")]
    pod_cidr: ipnet::IpNet,
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
    Simulated,
    Cri(String),
}

fn parse_runtime(text: &str) -> anyhow::Result<RuntimeArg> {
    match text {
        "auto" => Ok(RuntimeArg::Auto),
        "simulated" => Ok(RuntimeArg::Simulated),
        _ => match text.strip_prefix("cri:").filter(|endpoint| !endpoint.is_empty()) {
            Some(endpoint) => Ok(RuntimeArg::Cri(endpoint.to_string())),
            None => anyhow::bail!("must be auto, simulated or cri:unix:///path/to/socket"),
        },
    }
}

/// What runs the containers of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Choice {
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
    choice: Choice,
    config: Config,
    root_dir: PathBuf,
    pod_cidr: String,
    network: NetworkConfiguration,
    files: NodeFiles,
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
        if self.nodes == 0 {
            return Ok(None);
        }
        let choice = choose(&self.runtime, &USUAL);
        let root_dir = data_dir.join("kubelet");
        let dns = dns.filter(|_| matches!(choice, Choice::Cri(_)));
        let is_machines = matches!(choice, Choice::Cri(_)) && is_usual(data_dir);
        let files = NodeFiles::find(&root_dir, is_machines.then_some(Path::new("/")));
        let config = self.configuration(&files, &root_dir, &choice, dns)?;
        let name = address::node_name(self.node_name.as_deref()).map_err(anyhow::Error::msg)?;
        let identity = Identity {
            hostname: name.clone(),
            name,
            addresses: vec![address::default_address()],
            labels: Default::default(),
            port: self.kubelet_port.unwrap_or(config.port),
        };
        let network = match self.cni_conf_dir {
            _ if matches!(choice, Choice::Simulated { .. }) => NetworkConfiguration::Foreign,
            None => NetworkConfiguration::WhereRuntimeLooks,
            Some(directory) if directory.is_empty() => NetworkConfiguration::Foreign,
            Some(directory) => NetworkConfiguration::In(directory.into()),
        };
        Ok(Some(NodePlan {
            identity,
            choice,
            config,
            root_dir,
            pod_cidr: self.pod_cidr.trunc().to_string(),
            network,
            files,
        }))
    }

    fn configuration(
        &self,
        files: &NodeFiles,
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
            flags.push(("clusterDomain", json!("cluster.local")));
            flags.extend(dns.map(|address| ("clusterDNS", json!([address]))));
            flags.push(("healthzPort", json!(self.kubelet_healthz_port)));
            // A machine to try things on is taken as it is.
            flags.push(("failSwapOn", json!(false)));
            if matches!(choice, Choice::Simulated { .. }) {
                flags.push(("podLogsDir", json!(root_dir.join("pod-logs"))));
            }
        }
        if let Choice::Cri(endpoint) = choice {
            flags.push(("containerRuntimeEndpoint", json!(endpoint)));
        }
        let parse = |flags: &[Override]| config::parse(text.as_deref(), flags);
        let parsed = parse(&flags).and_then(|config| match config.static_pod_path {
            Some(_) => Ok(config),
            None => {
                flags.push(("staticPodPath", json!(files.manifests)));
                parse(&flags)
            }
        });
        let parsed = parsed.map(|mut config| {
            if matches!(choice, Choice::Simulated { .. }) {
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

fn choose(runtime: &RuntimeArg, usual: &[&str]) -> Choice {
    // A socket that we may not talk to is none.
    let answers = |endpoint: &&&str| {
        let connected = endpoint.strip_prefix("unix://").map(UnixStream::connect);
        matches!(connected, Some(Ok(_))) && nix::unistd::geteuid().is_root()
    };
    match runtime {
        RuntimeArg::Simulated => Choice::Simulated {
            for_want_of_another: false,
        },
        RuntimeArg::Cri(endpoint) => Choice::Cri(endpoint.clone()),
        RuntimeArg::Auto => match usual.iter().find(answers) {
            Some(endpoint) => Choice::Cri(endpoint.to_string()),
            None => Choice::Simulated {
                for_want_of_another: true,
            },
        },
    }
}

/// One line for the user.
pub(crate) fn described(plan: Option<&NodePlan>) -> String {
    let Some(plan) = plan else {
        return "No nodes: this is the control plane alone. Pods are placed as soon as there are Node objects."
            .to_string();
    };
    let name = &plan.identity.name;
    match &plan.choice {
        Choice::Cri(endpoint) => format!("Node {name} runs containers with the runtime at {endpoint}."),
        Choice::Simulated {
            for_want_of_another: true,
        } => format!(
            "No container runtime was found: node {name} is simulated, pods report Running, no containers are started."
        ),
        Choice::Simulated { .. } => {
            format!("Node {name} is simulated: pods report Running, no containers are started.")
        }
    }
}

impl NodePlan {
    /// Its pods are processes that send packets.
    pub(crate) fn is_real(&self) -> bool {
        matches!(self.choice, Choice::Cri(_))
    }

    pub(crate) fn pod_cidr(&self) -> &str {
        &self.pod_cidr
    }

    /// What runs the containers. A simulated one has them in memory: it is to outlive the agent.
    pub(crate) fn runtime(&self) -> anyhow::Result<Arc<dyn Runtime>> {
        Ok(match &self.choice {
            Choice::Cri(endpoint) => {
                let failed = |e| anyhow::anyhow!("failed to connect to the container runtime {endpoint}: {e}");
                Arc::new(CriRuntime::connect(endpoint).map_err(failed)?)
            }
            Choice::Simulated { .. } => Arc::new(Simulated::new(simulated::Options {
                clock: Clock::System,
                pod_ranges: vec![self.pod_cidr.clone()],
                seed: Random::from_entropy().next_u64(),
                logs: true,
                ..simulated::Options::default()
            })),
        })
    }

    /// What the agent is started with. An error says why it can't be.
    pub(crate) fn options(
        self,
        runtime: Arc<dyn Runtime>,
        api: Api,
        pki: &Pki,
        shutdown: Shutdown,
    ) -> anyhow::Result<agent::Options> {
        let clock = Clock::System;
        let is_real = self.is_real();
        // A folder that somebody chose is theirs to make.
        if self.config.static_pod_path.as_ref() == Some(&self.files.manifests)
            && let Err(error) = std::fs::create_dir_all(&self.files.manifests)
        {
            let path = self.files.manifests.display();
            tracing::warn!(%path, err = %error, "failed to create the static pod directory");
        }
        let name = format!("system:node:{}", self.identity.name);
        let subject = Subject {
            common_name: &name,
            organizations: &["system:nodes"],
        };
        let mut sans = vec![San::parse(&self.identity.hostname)];
        sans.extend(self.identity.addresses.iter().map(|ip| San::Ip(*ip)));
        let made = pki.issue_server(subject, &sans, CERTIFICATE_AGE, clock.now());
        let made = made.map_err(|e| anyhow::anyhow!("failed to issue a serving certificate for the node: {e}"))?;
        Ok(agent::Options {
            config: self.config,
            api: Some(api),
            runtime,
            identity: self.identity,
            root_dir: self.root_dir,
            certificate: Certificate::Given {
                certificate: made.certificate,
                key: made.key,
            },
            client_authority: Some(pki.ca.certificate.clone()),
            pod_cidr: Some(self.pod_cidr),
            network: self.network,
            effective_config: Some(self.files.shown_config),
            control_groups: is_real,
            credential_providers: None,
            logind: agent::Logind::default(),
            clock,
            shutdown,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn runtimes_by_their_names() {
        assert_eq!(parse_runtime("auto").unwrap(), RuntimeArg::Auto);
        let cri = RuntimeArg::Cri("unix:///x".into());
        assert_eq!(parse_runtime("cri:unix:///x").unwrap(), cri);
        assert!(parse_runtime("cri:").is_err() && parse_runtime("docker").is_err());
    }

    #[test]
    fn a_socket_is_taken_when_there_is_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("containerd.sock");
        let endpoint = format!("unix://{}", path.display());
        let usual = ["unix:///nobody/there.sock", endpoint.as_str()];
        let want = Choice::Simulated {
            for_want_of_another: true,
        };
        assert_eq!(choose(&RuntimeArg::Auto, &usual), want);
        let _listener = UnixListener::bind(&path).unwrap();
        if nix::unistd::geteuid().is_root() {
            assert_eq!(choose(&RuntimeArg::Auto, &usual), Choice::Cri(endpoint.clone()));
        }
        let asked = choose(&RuntimeArg::Simulated, &usual);
        assert_eq!(
            asked,
            Choice::Simulated {
                for_want_of_another: false
            }
        );
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
            args.configuration(&files, dir.path(), &choice, None).unwrap()
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
