//! Keeps the agents of worker nodes running, and carries out what `orlop node` asks for.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use ipnet::Ipv4Net;
use jiff::Timestamp;
use orlop_apiserver::pki::Pki;
use orlop_base::Clock;
use orlop_client::{Api, DeleteOptions, Error, path};
use orlop_kubelet::node::Identity;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};
use tokio::sync::{Mutex as AsyncMutex, watch};
use tokio::task::JoinHandle;

use super::links::used_networks;
use super::ranges::PodRanges;
use super::record::WorkerRecord;
use super::{WorkerLink, WorkerLinks, WorkerNode, WorkersRecord, ranges, rights};
use crate::embedded::{EmbeddedNode, PodTransport, WorkerPaths};
use crate::machine::{self, Machine};
use crate::node::{self, NodePlan};
use crate::services::ServicesPlan;
use crate::stop::StopRequest;
use crate::{control, data_dir, log_file};

/// Client certificates of agents. New ones are made at every start.
const CERTIFICATE_AGE: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// Before an agent that ended by itself is started again; twice as long each time.
const BACKOFF: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// At most this long for pods of a node that is removed, once its agent has stopped them.
const REMOVAL_GRACE: Duration = Duration::from_secs(5);

/// What all workers of a cluster have in common.
pub(crate) struct WorkersOptions {
    /// By its whole path.
    pub data_dir: PathBuf,
    /// The machine's own node.
    pub own_node: String,
    /// The range of its pods.
    pub pod_cidr: PodRanges,
    pub pod_network: PodTransport,
    pub labels: BTreeMap<String, String>,
    pub dns: Option<IpAddr>,
    pub kubelet_config: Option<PathBuf>,
    pub services: Option<ServicesPlan>,
    /// Where workers reach the API server.
    pub server_url: String,
    pub pki: Arc<Pki>,
    /// May write whatever the cluster is to have.
    pub admin: Api,
    pub stop: StopRequest,
}

/// Cheap to clone; clones are the same.
#[derive(Clone)]
pub(crate) struct Workers {
    options: Arc<WorkersOptions>,
    /// Held by whoever changes something, so that one thing is done after the other.
    record: Arc<AsyncMutex<WorkersRecord>>,
    agents: Arc<Mutex<BTreeMap<String, Agent>>>,
    /// Held by whoever prepares a node: `machine.json` and the rules are everybody's.
    preparing: Arc<Mutex<()>>,
}

/// An agent that is to run, or has run.
struct Agent {
    is_wanted: watch::Sender<bool>,
    state: Arc<Mutex<AgentState>>,
    task: JoinHandle<()>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct AgentState {
    phase: &'static str,
    since: Timestamp,
    restarts: u64,
    error: String,
}

impl AgentState {
    fn new() -> AgentState {
        AgentState {
            phase: "starting",
            since: Clock::System.now(),
            restarts: 0,
            error: String::new(),
        }
    }

    fn set(&mut self, phase: &'static str) {
        if self.phase != phase {
            (self.phase, self.since) = (phase, Clock::System.now());
        }
    }
}

impl Workers {
    pub(crate) fn new(options: WorkersOptions, record: WorkersRecord) -> Workers {
        Workers {
            options: Arc::new(options),
            record: Arc::new(AsyncMutex::new(record)),
            agents: Arc::default(),
            preparing: Arc::default(),
        }
    }

    /// Starts the agents of the nodes that are to run, once what they share is there.
    pub(crate) fn start(&self) {
        let workers = self.clone();
        tokio::spawn(async move {
            let mut record = workers.record.lock().await;
            if record.workers.is_empty() {
                return;
            }
            if let Err(error) = workers.set_up(&mut record).await {
                tracing::error!(err = %format!("{error:#}"), "failed to set up worker nodes");
                return;
            }
            let running: Vec<WorkerRecord> = record.workers.iter().filter(|w| !w.is_stopped).cloned().collect();
            for worker in running {
                workers.start_agent(&worker);
            }
        });
    }

    /// The range of the nodes' addresses, the rights of their agents, and the record of both.
    async fn set_up(&self, record: &mut WorkersRecord) -> anyhow::Result<()> {
        if record.range.is_none() {
            let seed = self.cluster().bytes().map(u64::from).sum();
            let range = ranges::choose_node_range(seed, &used_networks()?);
            record.range = Some(range.context("all address ranges for worker nodes (172.30.0.0/16) are in use")?);
        }
        self.write(record)?;
        rights::grant(&self.options.admin)
            .await
            .context("failed to write the roles of worker nodes")
    }

    fn write(&self, record: &WorkersRecord) -> anyhow::Result<()> {
        record
            .write(&self.options.data_dir)
            .with_context(|| format!("failed to write {}", data_dir::NODES_FILE))
    }

    fn cluster(&self) -> String {
        self.options.data_dir.display().to_string()
    }

    fn start_agent(&self, worker: &WorkerRecord) {
        let (is_wanted, wanted) = watch::channel(true);
        let state = Arc::new(Mutex::new(AgentState::new()));
        let task = tokio::spawn(self.clone().keep(worker.name.clone(), state.clone(), wanted));
        let agent = Agent { is_wanted, state, task };
        self.agents.lock().insert(worker.name.clone(), agent);
    }

    /// Until it is not wanted any more.
    async fn keep(self, name: String, state: Arc<Mutex<AgentState>>, mut wanted: watch::Receiver<bool>) {
        let mut backoff = BACKOFF;
        while *wanted.borrow_and_update() {
            let outcome = self.run_agent(&name, &state, &mut wanted).await;
            let Err(error) = outcome else { break };
            let error = format!("{error:#}");
            tracing::error!(node = name, err = %error, "worker node's agent failed; restarting it");
            {
                let mut state = state.lock();
                state.set("failed");
                state.restarts += 1;
                state.error = error;
            }
            tokio::select! {
                _ = tokio::time::sleep(backoff) => {}
                _ = wanted.wait_for(|wanted| !wanted) => {}
            }
            backoff = backoff.saturating_mul(2).min(BACKOFF_MAX);
        }
        state.lock().set("stopped");
    }

    /// One attempt. An error if it ended by itself.
    async fn run_agent(
        &self,
        name: &str,
        state: &Mutex<AgentState>,
        wanted: &mut watch::Receiver<bool>,
    ) -> anyhow::Result<()> {
        let node = self.prepare(name).await?;
        let mut child = spawn(node.directory()).context("failed to start its process")?;
        let mut requests = child.stdin.take().context("its process has no standard input")?;
        state.lock().set("running");
        tokio::select! {
            ended = child.wait() => {
                let log = node.directory().join(data_dir::LOG);
                bail!("its process ended ({}); see {}", ended?, log.display());
            }
            _ = wanted.wait_for(|wanted| !wanted) => {}
        }
        state.lock().set("stopping");
        let request = match self.options.stop.grace_seconds() {
            Some(seconds) => format!("down {seconds}\n"),
            None => "down\n".to_string(),
        };
        // One that has ended in the meantime need not be asked.
        let _ = requests.write_all(request.as_bytes()).await;
        child.wait().await?;
        Ok(())
    }

    /// Makes all that the agent needs.
    async fn prepare(&self, name: &str) -> anyhow::Result<WorkerNode> {
        // The record is not waited for: whoever stops a node holds it until its agent has ended.
        let record = WorkersRecord::read(&self.options.data_dir)?;
        let range = record.range.context("worker nodes have no addresses yet")?;
        let worker = record.workers.iter().find(|worker| worker.name == name);
        let worker = worker.with_context(|| format!("node {name:?} not found"))?.clone();
        let node = self.node(range, &worker)?;
        let (links, link) = self.links(range, &worker)?;
        let workers = self.clone();
        let prepared = node.clone();
        let prepare = move || -> anyhow::Result<()> {
            let _alone = workers.preparing.lock();
            workers.write_files(&prepared)?;
            links
                .connect(&link)
                .context("failed to connect its network namespace")?;
            if worker.is_cut {
                links.cut(&link).context("failed to take its link down")?;
            }
            Ok(())
        };
        tokio::task::spawn_blocking(prepare).await??;
        Ok(node)
    }

    fn node(&self, range: Ipv4Net, worker: &WorkerRecord) -> anyhow::Result<WorkerNode> {
        let options = &self.options;
        let addresses = self.addresses(range, worker);
        let cluster = self.cluster();
        Ok(WorkerNode {
            name: worker.name.clone(),
            addresses: addresses.clone(),
            pod_cidr: self.pod_ranges(worker)?,
            labels: options.labels.clone(),
            embedded: EmbeddedNode {
                data_dir: options.data_dir.clone(),
                name: worker.name.clone(),
                pod_ranges: options.pod_cidr.of_cluster().iter().collect(),
                pod_network: options.pod_network,
                worker: Some(WorkerPaths {
                    directory: options.data_dir.join(data_dir::NODES).join(&worker.name),
                    network_namespace: WorkerLinks::namespace(&cluster, &worker.name),
                }),
            },
            cgroup_root: node::own_cgroup(&options.data_dir, &worker.name),
            dns: options.dns,
            kubelet_config: options.kubelet_config.clone(),
            services: options
                .services
                .as_ref()
                .map(|services| services.for_worker(&worker.name, addresses)),
        })
    }

    fn addresses(&self, range: Ipv4Net, worker: &WorkerRecord) -> Vec<IpAddr> {
        ranges::worker_addresses(range, worker.number, &self.options.pod_cidr.families())
    }

    fn pod_ranges(&self, worker: &WorkerRecord) -> anyhow::Result<PodRanges> {
        let ranges = self.options.pod_cidr.of_worker(worker.number);
        ranges.with_context(|| format!("--pod-cidr {} leaves no range for another node", self.options.pod_cidr))
    }

    fn links(&self, range: Ipv4Net, worker: &WorkerRecord) -> anyhow::Result<(WorkerLinks, WorkerLink)> {
        let links = WorkerLinks {
            cluster: self.cluster(),
            range,
            pods: self.options.pod_cidr.of_cluster(),
            routes_pods: self.options.pod_network == PodTransport::Routes,
        };
        let link = WorkerLink {
            name: worker.name.clone(),
            number: worker.number,
            pods: self.pod_ranges(worker)?,
        };
        Ok((links, link))
    }

    /// The node's file and credentials, and the record of what it leaves on the machine.
    fn write_files(&self, node: &WorkerNode) -> anyhow::Result<()> {
        data_dir::create_private(node.directory())?;
        let traces = NodePlan::worker(node.clone())?.traces();
        Machine::record(
            &self.options.data_dir,
            Machine {
                nodes: traces.into_iter().collect(),
                ..Machine::default()
            },
        )?;
        node.write()?;
        let (pki, paths) = (&self.options.pki, node.credentials());
        let identity = Identity {
            name: node.name.clone(),
            hostname: node.name.clone(),
            addresses: node.addresses.clone(),
            labels: BTreeMap::new(),
            port: 0,
        };
        let serving = node::issue_certificate(pki, &identity)?;
        let user = format!("system:node:{}", node.name);
        let kubeconfig = |user: &str, groups: &[&str]| -> anyhow::Result<String> {
            let made = pki.issue_client(user, groups, CERTIFICATE_AGE, Clock::System.now())?;
            Ok(pki.kubeconfig_for(&self.options.server_url, "orlop", user, &made))
        };
        let files = [
            (paths.kubelet, kubeconfig(&user, &["system:nodes"])?),
            (paths.proxy, kubeconfig("system:kube-proxy", &[])?),
            (paths.network, kubeconfig(rights::NETWORK_USER, &[])?),
            (paths.certificate, serving.certificate),
            (paths.key, serving.key),
            (paths.client_authority, pki.ca.certificate.clone()),
        ];
        for (path, text) in files {
            data_dir::write_private(&path, &text)?;
        }
        Ok(())
    }

    /// Stops all agents and their pods, for the end of the cluster. Which nodes are to run does not change.
    pub(crate) async fn stop_all(&self) {
        let _record = self.record.lock().await;
        let agents = std::mem::take(&mut *self.agents.lock());
        for agent in agents.values() {
            agent.is_wanted.send_replace(false);
        }
        for agent in agents.into_values() {
            let _ = agent.task.await;
        }
    }

    async fn stop_agent(&self, name: &str) {
        let agent = self.agents.lock().remove(name);
        if let Some(agent) = agent {
            agent.is_wanted.send_replace(false);
            let _ = agent.task.await;
        }
    }

    /// The names of the nodes that are to run.
    pub(crate) fn running(record: &WorkersRecord) -> impl Iterator<Item = String> {
        record.workers.iter().filter(|w| !w.is_stopped).map(|w| w.name.clone())
    }

    /// One more node; says its name.
    pub(crate) async fn add(&self, name: Option<&str>) -> anyhow::Result<String> {
        let mut record = self.record.lock().await;
        let mut changed = record.clone();
        let worker = changed.add(name, &self.options.own_node)?;
        self.pod_ranges(&worker)?;
        self.set_up(&mut changed).await?;
        *record = changed;
        self.start_agent(&worker);
        Ok(format!("node {} added\n", worker.name))
    }

    /// Stops a node's pods and its agent, as if the machine was switched off.
    pub(crate) async fn stop(&self, name: &str) -> anyhow::Result<String> {
        let mut record = self.record.lock().await;
        self.change(&mut record, name, |worker| worker.is_stopped = true)?;
        self.stop_agent(name).await;
        Ok(format!("node {name} stopped\n"))
    }

    pub(crate) async fn start_again(&self, name: &str) -> anyhow::Result<String> {
        let mut record = self.record.lock().await;
        let worker = self.change(&mut record, name, |worker| worker.is_stopped = false)?;
        if !self.agents.lock().contains_key(name) {
            self.start_agent(&worker);
        }
        Ok(format!("node {name} started\n"))
    }

    /// Takes the node's link down, or up again.
    pub(crate) async fn set_cut(&self, name: &str, is_cut: bool) -> anyhow::Result<String> {
        let mut record = self.record.lock().await;
        let worker = self.change(&mut record, name, |worker| worker.is_cut = is_cut)?;
        let range = record.range.context("worker nodes have no addresses yet")?;
        let (links, link) = self.links(range, &worker)?;
        let change = move || match is_cut {
            true => links.cut(&link),
            false => links.connect(&link),
        };
        tokio::task::spawn_blocking(change).await??;
        let verb = if is_cut { "cut off" } else { "connected again" };
        Ok(format!("node {name} {verb}\n"))
    }

    /// Stops a node and takes away all that it had, its Node object included.
    pub(crate) async fn remove(&self, name: &str) -> anyhow::Result<String> {
        let mut record = self.record.lock().await;
        let worker = self.change(&mut record, name, |worker| worker.is_stopped = true)?;
        self.stop_agent(name).await;
        let path = path::object("v1", None, "nodes", name);
        match self.options.admin.delete(&path, &DeleteOptions::default()).await {
            Ok(()) | Err(Error::NotFound(_)) => {}
            Err(error) => return Err(anyhow::Error::new(error).context("failed to delete the Node")),
        }
        machine::remove_worker(&self.options.data_dir, name, REMOVAL_GRACE).await?;
        if let Some(range) = record.range {
            let (links, link) = self.links(range, &worker)?;
            tokio::task::spawn_blocking(move || links.remove(&link)).await??;
        }
        let mut changed = record.clone();
        changed.workers.retain(|worker| worker.name != name);
        self.write(&changed)?;
        *record = changed;
        Ok(format!("node {name} removed\n"))
    }

    /// Changes the record of a worker, on the disk first.
    fn change(
        &self,
        record: &mut WorkersRecord,
        name: &str,
        change: impl FnOnce(&mut WorkerRecord),
    ) -> anyhow::Result<WorkerRecord> {
        if name == self.options.own_node {
            bail!(
                "node {name} is this machine itself, with the control plane: `orlop component stop kubelet` stops its kubelet, \
                 `orlop down` the cluster"
            );
        }
        let mut changed = record.clone();
        let known: Vec<String> = changed.workers.iter().map(|worker| worker.name.clone()).collect();
        let Some(worker) = changed.find(name) else {
            bail!("node {name:?} not found; worker nodes: {}", listed(&known));
        };
        change(worker);
        let worker = worker.clone();
        self.write(&changed)?;
        *record = changed;
        Ok(worker)
    }

    /// A table of all nodes of this machine.
    pub(crate) async fn table(&self) -> anyhow::Result<String> {
        let record = self.record.lock().await.clone();
        let titles = [
            "NAME",
            "STATE",
            "READY",
            "ADDRESS",
            "POD CIDR",
            "RESTARTS",
            "AGE",
            "LAST ERROR",
        ];
        let mut rows = vec![titles.map(str::to_string)];
        let own = &self.options.own_node;
        let (ready, address) = self.reported(own).await;
        let pods = self.options.pod_cidr.to_string();
        rows.push([own, "running", &ready, &address, &pods, "0", "", ""].map(str::to_string));
        for worker in &record.workers {
            let state = self
                .agents
                .lock()
                .get(&worker.name)
                .map(|agent| agent.state.lock().clone());
            let (ready, _) = self.reported(&worker.name).await;
            let addresses = record.range.map(|range| self.addresses(range, worker));
            let address = addresses.and_then(|addresses| Some(addresses.first()?.to_string()));
            let phase = match &state {
                None => "stopped",
                Some(_) if worker.is_cut => "cut",
                Some(state) => state.phase,
            };
            let age = state
                .as_ref()
                .map(|s| control::age(Clock::System.now().duration_since(s.since)));
            let pods = self.pod_ranges(worker).map(|ranges| ranges.to_string());
            rows.push([
                worker.name.clone(),
                phase.to_string(),
                ready,
                address.unwrap_or_default(),
                pods.unwrap_or_default(),
                state.as_ref().map_or(0, |state| state.restarts).to_string(),
                age.unwrap_or_default(),
                state.map_or(String::new(), |state| state.error),
            ]);
        }
        Ok(rendered(&rows))
    }

    /// What the API says of a node: its Ready condition, and its address.
    async fn reported(&self, name: &str) -> (String, String) {
        let found: Result<Value, _> = self.options.admin.get(&path::object("v1", None, "nodes", name)).await;
        let Ok(node) = found else {
            return ("-".to_string(), String::new());
        };
        let of_type = |list: &Value, kind: &str, field: &str| {
            let found = list.as_array().into_iter().flatten().find(|one| one["type"] == kind);
            found.and_then(|one| one[field].as_str()).unwrap_or("-").to_string()
        };
        (
            of_type(&node["status"]["conditions"], "Ready", "status"),
            of_type(&node["status"]["addresses"], "InternalIP", "address"),
        )
    }
}

/// Columns as wide as their longest cell.
fn rendered<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |row: &[String; N]| {
        let cells: Vec<String> = row
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        format!("{}\n", cells.join("   ").trim_end())
    };
    rows.iter().map(line).collect()
}

fn listed(names: &[String]) -> String {
    match names.is_empty() {
        true => "none".to_string(),
        false => names.join(", "),
    }
}

/// In a process group of its own: a Ctrl-C is for whoever started it, who then asks it to stop.
fn spawn(directory: &Path) -> io::Result<Child> {
    let mut log = log_file::open(directory)?;
    writeln!(log, "--- started at {} ---", Clock::System.now())?;
    Command::new(std::env::current_exe()?)
        .arg("agent")
        .arg(directory)
        .stdin(Stdio::piped())
        .stdout(log.try_clone()?)
        .stderr(log)
        .process_group(0)
        .spawn()
}
