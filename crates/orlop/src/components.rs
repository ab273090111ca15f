//! What runs beside the API server in one process: each component is supervised, and can be stopped and started.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use orlop_apiserver::pki::{Pki, San, Subject};
use orlop_apiserver::{NodesInside, Pipe, Running};
use orlop_base::supervisor::{ComponentError, Start};
use orlop_base::{BoxFuture, Clock, Random, Shutdown, Supervisor};
use orlop_client::Api;
use orlop_controllers::{Def, Settings};
use orlop_kubelet::{agent, fleet};
use orlop_proxy::policy::AttachedPods;
use orlop_runtime::Runtime;
use orlop_runtime::embedded::network::PodNetwork;
use orlop_scheduler::metrics::Metrics;
use orlop_scheduler::serving::SchedulerPages;
use orlop_scheduler::shell;
use orlop_serving::{ALWAYS_ALLOWED, Certificate, Pages};
use parking_lot::Mutex;
use tokio::sync::{OnceCell, watch};
use tokio::task::JoinHandle;

use crate::cluster::{self, ChosenConfig, ComponentPods, ControlPlaneNode, SchedulerConfigSource};
use crate::commands::controller_manager::ManagerPages;
use crate::embedded::{EmbeddedNode, EmbeddedParts, PodTransport};
use crate::node::{NodeCertificate, NodePlan};
use crate::nodes::Workers;
use crate::pod_network;
use crate::services::{self, ServicesPlan};
use crate::signing;
use crate::stop::StopRequest;

pub(crate) const SCHEDULER: &str = "scheduler";
pub(crate) const CONTROLLER_MANAGER: &str = "controller-manager";
pub(crate) const KUBELET: &str = "kubelet";
pub(crate) const PROXY: &str = "proxy";
pub(crate) const DNS: &str = "dns";
pub(crate) const POLICY: &str = "network-policy";
pub(crate) const POD_NETWORK: &str = "pod-network";
pub(crate) const FLEET: &str = "simulated-nodes";

/// All that `orlop up` may start, and that can be left out.
pub(crate) const NAMES: [&str; 8] = [
    SCHEDULER,
    CONTROLLER_MANAGER,
    KUBELET,
    PROXY,
    DNS,
    POLICY,
    POD_NETWORK,
    FLEET,
];

/// The certificate of a component's port. A new one is made at every start.
const CERTIFICATE_AGE: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// How a node's components reach the API server, each as its own user and with its rights.
#[derive(Clone)]
pub(crate) struct NodeApis {
    pub kubelet: Api,
    pub proxy: Api,
    /// For network policies and DNS.
    pub network: Api,
    /// May write whatever the cluster is to have; none on worker nodes.
    pub admin: Option<Api>,
}

impl NodeApis {
    pub(crate) fn in_process(running: &Running, node: &str) -> NodeApis {
        let api = |user: &str, groups: &[&str], agent: &'static str| {
            let service = orlop_apiserver::in_process::service(running.server.clone(), user, groups);
            Api::in_process(service, agent)
        };
        let admin = api("system:orlop:services", &["system:masters"], "orlop");
        NodeApis {
            kubelet: api(&format!("system:node:{node}"), &["system:nodes"], "orlop-kubelet"),
            proxy: api("system:kube-proxy", &[], "kube-proxy"),
            network: admin.clone(),
            admin: Some(admin),
        }
    }
}

/// Components under way. They stop before the server does, so that their last words are heard.
#[derive(Default)]
pub(crate) struct Components {
    supervisor: Supervisor,
    shutdown: Shutdown,
    /// Left out for now.
    disabled: Vec<String>,
    /// What stops all of them, and pods before them.
    stop: StopRequest,
    workers: Option<Workers>,
    tasks: Vec<JoinHandle<()>>,
}

impl Components {
    pub(crate) fn new(supervisor: &Supervisor, disabled: Vec<String>, stop: StopRequest) -> Components {
        Components {
            supervisor: supervisor.clone(),
            disabled,
            stop,
            ..Components::default()
        }
    }

    pub(crate) fn supervisor(&self) -> &Supervisor {
        &self.supervisor
    }

    pub(crate) fn shutdown(&self) -> &Shutdown {
        &self.shutdown
    }

    /// Worker nodes, which stop when the components do.
    pub(crate) fn start_workers(&mut self, workers: Workers) {
        workers.start();
        self.workers = Some(workers);
    }

    pub(crate) fn workers(&self) -> Option<&Workers> {
        self.workers.as_ref()
    }

    /// A task of its own that ends at the shutdown, and is waited for.
    pub(crate) fn keep(&mut self, task: JoinHandle<()>) {
        self.tasks.push(task);
    }

    /// Pods first, while there is a kubelet to stop them and an API server to be told.
    pub(crate) async fn stop(self) {
        if !self.stop.keeps_pods() {
            self.stop_pods().await;
        }
        self.shutdown.trigger();
        for task in self.tasks {
            let _ = task.await;
        }
    }

    async fn stop_pods(&self) {
        let workers = async {
            if let Some(workers) = &self.workers {
                workers.stop_all().await;
            }
        };
        tokio::join!(self.stop.stop_pods(), workers);
    }

    fn add(&mut self, name: &'static str, mut start: Start) {
        let wanted = !self.disabled.iter().any(|disabled| disabled == name);
        let start = move |shutdown: Shutdown| {
            cluster::logs::begin(name);
            start(shutdown)
        };
        let task = (self.supervisor).add(name, wanted, self.shutdown.clone(), Clock::System, Box::new(start));
        self.tasks.push(task);
    }

    /// Somebody who may write whatever the cluster is to have.
    pub(crate) fn admin(running: &Running) -> Api {
        let service =
            orlop_apiserver::in_process::service(running.server.clone(), "system:orlop:cluster", &["system:masters"]);
        Api::in_process(service, "orlop")
    }

    /// Shows the components as pods of the node.
    pub(crate) fn show_pods(&mut self, pods: ComponentPods) {
        let (supervisor, shutdown) = (self.supervisor.clone(), self.shutdown.clone());
        self.keep(tokio::spawn(pods.follow(supervisor, shutdown)));
    }

    /// Shows the components as pods of the node, and the node as the control plane's.
    pub(crate) fn show_cluster(&mut self, running: &Running, pods: ComponentPods, node: ControlPlaneNode) {
        self.show_pods(pods);
        let shutdown = self.shutdown.clone();
        self.keep(tokio::spawn(cluster::mark(Components::admin(running), node, shutdown)));
    }

    /// The scheduler, as kube-scheduler's user and with its rights.
    pub(crate) fn start_scheduler(&mut self, running: &Running, chosen: ChosenConfig, port: u16, data_dir: &Path) {
        let service = orlop_apiserver::in_process::service(running.server.clone(), "system:kube-scheduler", &[]);
        let (api, pki) = (Api::in_process(service, "orlop-scheduler"), running.pki.clone());
        let (source, writing) =
            SchedulerConfigSource::new(Components::admin(running), chosen, data_dir, self.shutdown.clone());
        self.keep(writing);
        let (source, supervisor) = (Arc::new(source), self.supervisor.clone());
        let start = move |shutdown: Shutdown| {
            let (api, pki, source, supervisor) = (api.clone(), pki.clone(), source.clone(), supervisor.clone());
            Box::pin(async move {
                let config = source.load().await;
                let following = shutdown.clone();
                orlop_base::spawn(async move { source.follow(supervisor, following).await });
                let metrics = Arc::new(Metrics::for_lease(&config.leader_election.resource_name));
                let pages = Arc::new(SchedulerPages::new(metrics.clone(), &config, shutdown.clone()));
                let port = ComponentPort::new("kube-scheduler", port, &pki, &api, pages, &shutdown);
                port.serve().await;
                let options = shell::Options {
                    api,
                    config,
                    clock: Clock::System,
                    seed: Random::from_entropy().next_u64(),
                    metrics,
                    // One process has the data directory, so the name may stay the same: after a crash the lease is ours
                    // still.
                    identity: Some("orlop-up".to_string()),
                    shutdown,
                };
                Ok(shell::run(options).await?)
            }) as BoxFuture<'static, Result<(), ComponentError>>
        };
        self.add(SCHEDULER, Box::new(start));
    }

    /// The controllers, each as its service account and with its rights.
    pub(crate) fn start_controllers(
        &mut self,
        running: &Running,
        controllers: Vec<&'static Def>,
        settings: Settings,
        port: u16,
    ) {
        let server = running.server.clone();
        let manager = "system:kube-controller-manager";
        let service = orlop_apiserver::in_process::service(server.clone(), manager, &[]);
        let (api, pki) = (Api::in_process(service, "kube-controller-manager"), running.pki.clone());
        let start = move |shutdown: Shutdown| {
            let server = server.clone();
            let account = move |account: &str| {
                let user = format!("system:serviceaccount:kube-system:{account}");
                let groups = ["system:serviceaccounts", "system:serviceaccounts:kube-system"];
                let service = orlop_apiserver::in_process::service(server.clone(), &user, &groups);
                Api::in_process(service, "kube-controller-manager")
            };
            let metrics = Arc::new(orlop_controllers::Metrics::default());
            let health = Arc::new(orlop_controllers::Health::default());
            let pages = Arc::new(ManagerPages {
                metrics: metrics.clone(),
                health: health.clone(),
                leader_elect: false,
                shutdown: shutdown.clone(),
            });
            let port = ComponentPort::new("kube-controller-manager", port, &pki, &api, pages, &shutdown);
            let options = orlop_controllers::Options {
                api: api.clone(),
                account: Box::new(account),
                controllers: controllers.clone(),
                settings: signing::with_keys_of(&pki, settings.clone()),
                // One process has the data directory: nobody to be elected against.
                election: None,
                clock: Clock::System,
                metrics,
                health,
                shutdown,
            };
            Box::pin(async move {
                port.serve().await;
                Ok(orlop_controllers::run(options).await?)
            }) as BoxFuture<'static, Result<(), ComponentError>>
        };
        self.add(CONTROLLER_MANAGER, Box::new(start));
    }

    /// A node's kubelet.
    pub(crate) fn start_node(&mut self, apis: &NodeApis, plan: NodePlan, certificate: NodeCertificate) {
        let apis = apis.clone();
        let parts = EmbeddedParts {
            attached: self.start_policies(&apis.network, &plan),
            ..EmbeddedParts::default()
        };
        self.start_pod_network(&apis.network, &plan, parts.network.subscribe());
        // Kept from one attempt to the next: a simulated runtime has its containers in memory.
        let runtime: Arc<OnceCell<Arc<dyn Runtime>>> = Arc::default();
        // Simulated pods go with the process: there is nothing to stop.
        let pod_stop = plan.is_real().then(|| self.stop.pods().clone());
        let start = move |shutdown: Shutdown| {
            let (plan, apis, certificate) = (plan.clone(), apis.clone(), certificate.clone());
            let (runtime, parts, stop) = (runtime.clone(), parts.clone(), pod_stop.clone());
            Box::pin(async move {
                let runtime = runtime.get_or_try_init(|| plan.runtime(parts)).await?.clone();
                let options = plan.clone().options(runtime, apis.kubelet, certificate, stop, shutdown);
                let agent = agent::start(options).await?;
                if let Some(admin) = &apis.admin
                    && let Err(error) = cluster::publish_kubelet_config(admin, &agent.config().document).await
                {
                    tracing::warn!(err = %error, "failed to publish the kubelet configuration");
                }
                agent.wait().await;
                Ok(())
            }) as BoxFuture<'static, Result<(), ComponentError>>
        };
        self.add(KUBELET, Box::new(start));
    }

    /// Network policies of the pods that a node runs itself. What comes back has pods wait until their policies are in
    /// effect; none where nobody enforces any.
    fn start_policies(&mut self, api: &Api, plan: &NodePlan) -> Option<AttachedPods> {
        let node = plan.embedded()?.clone();
        let api = api.clone();
        let attached = AttachedPods::default();
        let shared = attached.clone();
        let start = move |shutdown: Shutdown| {
            let (node, api, attached) = (node.clone(), api.clone(), shared.clone());
            Box::pin(async move { Ok(node.enforce_policies(api, attached, shutdown).await?) })
                as BoxFuture<'static, Result<(), ComponentError>>
        };
        self.add(POLICY, Box::new(start));
        let is_disabled = self.disabled.iter().any(|disabled| disabled == POLICY);
        (!is_disabled).then_some(attached)
    }

    /// Tells a node's pod network of the other nodes, unless the machine routes between them.
    fn start_pod_network(&mut self, api: &Api, plan: &NodePlan, opened: watch::Receiver<Option<PodNetwork>>) {
        let needs_nodes = |node: &&EmbeddedNode| node.pod_network == PodTransport::Vxlan;
        let Some(node) = plan.embedded().filter(needs_nodes) else {
            return;
        };
        let (api, name) = (api.clone(), node.name.clone());
        let start = move |shutdown: Shutdown| {
            let run = pod_network::follow_nodes(opened.clone(), name.clone(), api.clone(), shutdown);
            Box::pin(async move { Ok(run.await?) }) as BoxFuture<'static, Result<(), ComponentError>>
        };
        self.add(POD_NETWORK, Box::new(start));
    }

    /// What makes services reachable from a node: the proxy and DNS.
    pub(crate) fn start_services(&mut self, apis: &NodeApis, plan: ServicesPlan) {
        let (dns_plan, dns_api) = (plan.clone(), apis.network.clone());
        let dns = move |shutdown| {
            let run = services::dns(dns_plan.clone(), dns_api.clone(), shutdown);
            Box::pin(async move { Ok(run.await?) }) as BoxFuture<'static, Result<(), ComponentError>>
        };
        self.add(DNS, Box::new(dns));
        let (admin, api) = (apis.admin.clone(), apis.proxy.clone());
        let proxy = move |shutdown| {
            let run = services::proxy(plan.clone(), admin.clone(), api.clone(), shutdown);
            Box::pin(async move { Ok(run.await?) }) as BoxFuture<'static, Result<(), ComponentError>>
        };
        self.add(PROXY, Box::new(proxy));
    }

    /// Simulated nodes. Their keeper speaks for all of them, which no node's user may.
    pub(crate) fn start_fleet(&mut self, running: &Running, options: fleet::Options) {
        let service =
            orlop_apiserver::in_process::service(running.server.clone(), "system:orlop:fleet", &["system:masters"]);
        let api = Api::in_process(service, "orlop-fleet");
        let nodes = SimulatedNodes::default();
        running.server.nodes.set_inside(Arc::new(nodes.clone()));
        let start = move |shutdown: Shutdown| {
            let (kubelets, run) = fleet::prepare(api.clone(), options.clone(), Clock::System, shutdown);
            *nodes.0.lock() = Some(kubelets);
            Box::pin(async move {
                run.await;
                Ok(())
            }) as BoxFuture<'static, Result<(), ComponentError>>
        };
        self.add(FLEET, Box::new(start));
    }
}

/// The API server's way to nodes that have no port: those of the attempt under way.
#[derive(Clone, Default)]
struct SimulatedNodes(Arc<Mutex<Option<fleet::Kubelets>>>);

impl NodesInside for SimulatedNodes {
    fn dial(&self, node: &str) -> Option<Box<dyn Pipe>> {
        Some(Box::new(self.0.lock().as_ref()?.dial(node)?))
    }
}

/// A component's own port on loopback, as kubeadm has it, with a certificate of the cluster.
struct ComponentPort {
    port: u16,
    options: anyhow::Result<orlop_serving::Options>,
}

impl ComponentPort {
    fn new(
        name: &'static str,
        port: u16,
        pki: &Pki,
        api: &Api,
        pages: Arc<dyn Pages>,
        shutdown: &Shutdown,
    ) -> ComponentPort {
        let certificate = serving_certificate(pki, name);
        let options = certificate.map(|certificate| orlop_serving::Options {
            bind: Ipv4Addr::LOCALHOST.into(),
            port,
            certificate,
            name,
            always_allow_paths: ALWAYS_ALLOWED.map(str::to_string).to_vec(),
            authentication: api.clone(),
            authorization: api.clone(),
            pages,
            clock: Clock::System,
            shutdown: shutdown.clone(),
        });
        ComponentPort { port, options }
    }

    /// A port that another process has is no reason not to work.
    async fn serve(self) {
        if self.port == 0 {
            return;
        }
        let started = match self.options {
            Ok(options) => orlop_serving::start(options).await.map_err(anyhow::Error::new),
            Err(error) => Err(error),
        };
        if let Err(error) = started {
            let error = format!("{error:#}");
            tracing::warn!(port = self.port, err = %error, "failed to serve health and metrics of a component");
        }
    }
}

fn serving_certificate(pki: &Pki, name: &str) -> anyhow::Result<Certificate> {
    let subject = Subject {
        common_name: name,
        organizations: &[],
    };
    let sans = ["localhost", "127.0.0.1", "::1"].map(San::parse);
    let made = pki.issue_server(subject, &sans, CERTIFICATE_AGE, Clock::System.now());
    let made = made.map_err(|e| anyhow::anyhow!("failed to issue a serving certificate for {name}: {e}"))?;
    Ok(Certificate::Given {
        certificate: made.certificate,
        key: made.key,
    })
}
