//! `orlop agent`: a worker node's process.

use std::io::BufRead;
use std::path::Path;

use anyhow::Context as _;
use orlop_base::{Clock, Supervisor};
use orlop_client::{Api, transport};
use orlop_kubelet::server::Certificate;
use orlop_netlink::Namespace;
use tokio::sync::mpsc;

use super::WorkerNode;
use crate::cluster::{self, CommandLines, ComponentPods};
use crate::components::{Components, NodeApis};
use crate::data_dir;
use crate::node::{NodeCertificate, NodePlan};
use crate::stop::StopRequest;

/// What an agent is asked on its standard input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AgentRequest {
    /// Stop the pods, each within its grace period or this many seconds, and end.
    Down(Option<i64>),
    /// Nobody is there any more: end, and let the pods go on.
    Abandoned,
}

fn parse_request(line: &str) -> Option<AgentRequest> {
    match line.split_whitespace().collect::<Vec<_>>().as_slice() {
        ["down"] => Some(AgentRequest::Down(None)),
        ["down", seconds] => Some(AgentRequest::Down(Some(seconds.parse().ok()?))),
        _ => None,
    }
}

/// Runs the node whose file is in this directory until it is asked to end.
pub(crate) fn run(directory: &Path) -> anyhow::Result<()> {
    let read = WorkerNode::read(directory);
    let node = read.with_context(|| format!("failed to read the node in {}", directory.display()))?;
    // Before there are other threads: they are to be in it as well.
    enter(&node).with_context(|| format!("failed to enter the namespaces of node {}", node.name))?;
    cluster::logs::capture();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_stack_size(orlop_api::schema::STACK_BYTES)
        .enable_all()
        .build()
        .context("failed to start the tokio runtime")?;
    let served = runtime.block_on(serve(node));
    cluster::logs::flush();
    served
}

fn enter(node: &WorkerNode) -> anyhow::Result<()> {
    let path = node.network_namespace().context("it has no network namespace")?;
    Namespace::open(path)?.enter()?;
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWUTS)?;
    nix::unistd::sethostname(&node.name)?;
    Ok(())
}

async fn serve(node: WorkerNode) -> anyhow::Result<()> {
    let mut requests = read_requests()?;
    let (directory, services, name) = (node.directory().to_path_buf(), node.services.clone(), node.name.clone());
    let apis = connect(&node).await?;
    let certificate = certificate(&node)?;
    let stop = StopRequest::default();
    let mut components = Components::new(&Supervisor::default(), vec![], stop.clone());
    let logs = directory.join(data_dir::LOGS);
    if let Err(error) = cluster::logs::write_to(&logs) {
        tracing::warn!(path = %logs.display(), err = %error, "failed to open the components' log files");
    }
    let mut plan = NodePlan::worker(node)?;
    let mut lines = CommandLines::default();
    if let Some(services) = &services {
        services.describe(&mut lines);
    }
    let (pods, hosted) = ComponentPods::new(&name, &lines, &logs, Clock::System.now())?;
    plan.hosted = hosted;
    components.show_pods(pods);
    components.start_node(&apis, plan, certificate);
    if let Some(services) = services {
        components.start_services(&apis, services);
    }
    match requests.recv().await.unwrap_or(AgentRequest::Abandoned) {
        AgentRequest::Down(grace) => {
            stop.request(grace);
            components.stop().await;
        }
        AgentRequest::Abandoned => {
            tracing::info!("exiting: the process that started this one is gone; pods keep running")
        }
    }
    Ok(())
}

fn read_requests() -> std::io::Result<mpsc::Receiver<AgentRequest>> {
    let (sender, requests) = mpsc::channel(1);
    let read = move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if let Some(request) = parse_request(&line) {
                let _ = sender.blocking_send(request);
            }
        }
        let _ = sender.blocking_send(AgentRequest::Abandoned);
    };
    std::thread::Builder::new().name("orlop-requests".into()).spawn(read)?;
    Ok(requests)
}

async fn connect(node: &WorkerNode) -> anyhow::Result<NodeApis> {
    let paths = node.credentials();
    let api = async |path: &Path, agent: &'static str| -> anyhow::Result<Api> {
        Ok(Api::new(
            transport::from_kubeconfig(Some(path), None, agent).await?,
            agent,
        ))
    };
    Ok(NodeApis {
        kubelet: api(&paths.kubelet, "orlop-kubelet").await?,
        proxy: api(&paths.proxy, "kube-proxy").await?,
        network: api(&paths.network, "orlop").await?,
        admin: None,
    })
}

fn certificate(node: &WorkerNode) -> anyhow::Result<NodeCertificate> {
    let paths = node.credentials();
    Ok(NodeCertificate {
        client_authority: std::fs::read_to_string(&paths.client_authority)?,
        certificate: Certificate::Files {
            certificate: paths.certificate,
            key: paths.key,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests() {
        assert_eq!(parse_request("down"), Some(AgentRequest::Down(None)));
        assert_eq!(parse_request("down 5"), Some(AgentRequest::Down(Some(5))));
        for line in ["", "up", "down x", "down 1 2"] {
            assert_eq!(parse_request(line), None, "{line:?}");
        }
    }
}
