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
use orlop_kubelet::agent;
use orlop_kubelet::config::{self, Config, Override};
use orlop_kubelet::node::{Identity, address};
use orlop_kubelet::server::Certificate;
use orlop_runtime::Runtime;
use orlop_runtime::cri::CriRuntime;
use orlop_runtime::simulated::{self, Simulated};
use serde_json::json;

/// Where containerd and CRI-O listen on most machines.
const USUAL: [&str; 2] = ["unix:///run/containerd/containerd.sock", "unix:///run/crio/crio.sock"];
/// Where runtimes look for the configuration of pod networks.
const CNI_DIRECTORY: &str = "/etc/cni/net.d";
/// The node's serving certificate. A new one is made at every start.
const CERTIFICATE_AGE: Duration = Duration::from_secs(365 * 24 * 60 * 60);

#[derive(clap::Args)]
pub struct NodeArgs {
    /// Nodes to bring up on this machine: 0 or 1
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    nodes: u8,
    /// Name of the node [default: this host's]
    #[arg(long, value_name = "NAME")]
    node_name: Option<String>,
    /// What runs containers: auto, simulated, or cri: and the endpoint of a socket (cri:unix:///run/…)
    #[arg(long, value_name = "RUNTIME", default_value = "auto", value_parser = parse_runtime)]
    runtime: RuntimeArg,
    /// Range of addresses for the node's pods
    #[arg(long, value_name = "CIDR", default_value = "10.244.0.0/24")]
    pod_cidr: ipnet::IpNet,
    /// Where the runtime looks for the configuration of the pod network; empty to leave it alone
    #[arg(long, value_name = "DIR", default_value = CNI_DIRECTORY)]
    cni_conf_dir: String,
    /// A KubeletConfiguration for the node agent [default: kubelet/config.yaml in the data directory, if it is there]
    #[arg(long, value_name = "FILE")]
    kubelet_config: Option<PathBuf>,
    /// Folder of static pods
    #[arg(long, value_name = "DIR")]
    pod_manifest_path: Option<PathBuf>,
    /// Port of the node agent; 0 takes any free one [default: 10250]
    #[arg(long, value_name = "PORT")]
    kubelet_port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum RuntimeArg {
    Auto,
    Simulated,
    Cri(String),
}

fn parse_runtime(text: &str) -> Result<RuntimeArg, String> {
    match text {
        "auto" => Ok(RuntimeArg::Auto),
        "simulated" => Ok(RuntimeArg::Simulated),
        _ => match text.strip_prefix("cri:").filter(|endpoint| !endpoint.is_empty()) {
            Some(endpoint) => Ok(RuntimeArg::Cri(endpoint.to_string())),
            None => Err("auto, simulated or cri:unix:///path/to/socket is wanted".to_string()),
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
pub struct NodePlan {
    pub identity: Identity,
    choice: Choice,
    config: Config,
    root_dir: PathBuf,
    pod_cidr: String,
    network_directory: Option<PathBuf>,
}

impl NodeArgs {
    /// What is to be started; none for a control plane alone. `dns` is where real pods look names up.
    pub fn plan(self, data_dir: &Path, dns: Option<IpAddr>) -> anyhow::Result<Option<NodePlan>> {
        if self.nodes == 0 {
            return Ok(None);
        }
        let choice = choose(&self.runtime, &USUAL);
        let root_dir = data_dir.join("kubelet");
        let dns = dns.filter(|_| matches!(choice, Choice::Cri(_)));
        let config = self.configuration(&root_dir, &choice, dns)?;
        let name = address::node_name(self.node_name.as_deref()).map_err(anyhow::Error::msg)?;
        let identity = Identity {
            hostname: name.clone(),
            name,
            addresses: vec![address::default_address()],
            labels: Default::default(),
            port: self.kubelet_port.unwrap_or(config.port),
        };
        let network = matches!(choice, Choice::Cri(_)).then_some(self.cni_conf_dir);
        Ok(Some(NodePlan {
            identity,
            choice,
            config,
            root_dir,
            pod_cidr: self.pod_cidr.trunc().to_string(),
            network_directory: network.filter(|dir| !dir.is_empty()).map(PathBuf::from),
        }))
    }

    fn configuration(&self, root_dir: &Path, choice: &Choice, dns: Option<IpAddr>) -> anyhow::Result<Config> {
        let usual = root_dir.join("config.yaml");
        let file = self.kubelet_config.clone().or_else(|| usual.exists().then_some(usual));
        let text = match &file {
            None => None,
            Some(path) => {
                let read = std::fs::read_to_string(path);
                Some(read.with_context(|| format!("{} can't be read", path.display()))?)
            }
        };
        let mut flags: Vec<Override> = Vec::new();
        if let Some(folder) = &self.pod_manifest_path {
            flags.push(("staticPodPath", json!(folder)));
        }
        if text.is_none() {
            flags.push(("clusterDomain", json!("cluster.local")));
            flags.extend(dns.map(|address| ("clusterDNS", json!([address]))));
            // Whoever wants to know whether this process is alive asks the API server.
            flags.push(("healthzPort", json!(0)));
            // A machine to try things on is taken as it is.
            flags.push(("failSwapOn", json!(false)));
            if matches!(choice, Choice::Simulated { .. }) {
                flags.push(("podLogsDir", json!(root_dir.join("pod-logs"))));
            }
        }
        config::parse(text.as_deref(), &flags).map_err(|problems| {
            let name = file.map_or("the flags".into(), |path| path.display().to_string());
            anyhow::anyhow!("{name}: no usable kubelet configuration:\n  {}", problems.join("\n  "))
        })
    }
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
pub fn described(plan: Option<&NodePlan>) -> String {
    let Some(plan) = plan else {
        return "No nodes: this is the control plane alone. Pods are placed as soon as there are Node objects."
            .to_string();
    };
    let name = &plan.identity.name;
    match &plan.choice {
        Choice::Cri(endpoint) => format!("Node {name} runs containers with the runtime at {endpoint}."),
        Choice::Simulated {
            for_want_of_another: true,
        } => format!("No container runtime was found: node {name} is simulated, its pods only seem to run."),
        Choice::Simulated { .. } => format!("Node {name} is simulated: its pods only seem to run."),
    }
}

impl NodePlan {
    /// Its pods are processes that send packets.
    pub fn is_real(&self) -> bool {
        matches!(self.choice, Choice::Cri(_))
    }

    pub fn pod_cidr(&self) -> &str {
        &self.pod_cidr
    }

    /// What the agent is started with. An error says why it can't be.
    pub fn options(self, api: Api, pki: &Pki, shutdown: Shutdown) -> Result<agent::Options, String> {
        let clock = Clock::System;
        let is_real = self.is_real();
        let runtime: Arc<dyn Runtime> = match &self.choice {
            Choice::Cri(endpoint) => {
                let runtime = CriRuntime::connect(endpoint);
                Arc::new(runtime.map_err(|e| format!("{endpoint} can't be used: {e}"))?)
            }
            Choice::Simulated { .. } => Arc::new(Simulated::new(simulated::Options {
                clock: clock.clone(),
                pod_ranges: vec![self.pod_cidr.clone()],
                seed: Random::from_entropy().next_u64(),
                logs: true,
                ..simulated::Options::default()
            })),
        };
        let name = format!("system:node:{}", self.identity.name);
        let subject = Subject {
            common_name: &name,
            organizations: &["system:nodes"],
        };
        let mut sans = vec![San::parse(&self.identity.hostname)];
        sans.extend(self.identity.addresses.iter().map(|ip| San::Ip(*ip)));
        let made = pki.issue_server(subject, &sans, CERTIFICATE_AGE, clock.now());
        let made = made.map_err(|e| format!("no certificate for the node: {e}"))?;
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
            network_directory: self.network_directory,
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
        assert_eq!(parse_runtime("auto"), Ok(RuntimeArg::Auto));
        assert_eq!(parse_runtime("cri:unix:///x"), Ok(RuntimeArg::Cri("unix:///x".into())));
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
}
