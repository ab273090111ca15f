//! What runs beside the API server in one process: each component is supervised, and can be stopped and started.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use orlop_apiserver::pki::{Pki, San, Subject};
use orlop_apiserver::{NodesInside, Pipe, Running};
use orlop_base::supervisor::{ComponentError, Start};
use orlop_base::{BoxFuture, Clock, Random, Shutdown, Supervisor};
use orlop_client::Api;
use orlop_controllers::{Def, Settings};
use orlop_kubelet::{agent, fleet};
use orlop_runtime::Runtime;
use orlop_scheduler::config::Config as SchedulerConfig;
use orlop_scheduler::metrics::Metrics;
use orlop_scheduler::serving::SchedulerPages;
use orlop_scheduler::shell;
use orlop_serving::{ALWAYS_ALLOWED, Certificate, Pages};
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use crate::commands::controller_manager::ManagerPages;
use crate::node::NodePlan;
use crate::services::{self, ServicesPlan};
use crate::signing;

pub(crate) const SCHEDULER: &str = "scheduler";
pub(crate) const CONTROLLER_MANAGER: &str = "controller-manager";
pub(crate) const KUBELET: &str = "kubelet";
pub(crate) const PROXY: &str = "proxy";
pub(crate) const DNS: &str = "dns";
pub(crate) const FLEET: &str = "simulated-nodes";

/// All that `orlop up` may start, and that can be left out.
pub(crate) const NAMES: [&str; 6] = [SCHEDULER, CONTROLLER_MANAGER, KUBELET, PROXY, DNS, FLEET];

/// The certificate of a component's port. A new one is made at every start.
const CERTIFICATE_AGE: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Components under way. They stop before the server does, so that their last words are heard.
#[derive(Default)]
pub(crate) struct Components {
    supervisor: Supervisor,
    shutdown: Shutdown,
    /// Left out for now.
    disabled: Vec<String>,
    tasks: Vec<JoinHandle<()>>,
}

impl Components {
    pub(crate) fn new(running: &Running, disabled: Vec<String>) -> Components {
        Components {
            supervisor: running.server.health.components.clone(),
            disabled,
            ..Components::default()
        }
    }

    pub(crate) fn supervisor(&self) -> &Supervisor {
        &self.supervisor
    }

    pub(crate) fn shutdown(&self) -> &Shutdown {
        &self.shutdown
    }

    /// A task of its own that ends at the shutdown, and is waited for.
    pub(crate) fn keep(&mut self, task: JoinHandle<()>) {
        self.tasks.push(task);
    }

    pub(crate) async fn stop(self) {
        self.shutdown.trigger();
        for task in self.tasks {
            let _ = task.await;
        }
    }

    fn add(&mut self, name: &'static str, start: Start) {
        let wanted = !self.disabled.iter().any(|disabled| disabled == name);
        let task = (self.supervisor).add(name, wanted, self.shutdown.clone(), Clock::System, start);
        self.tasks.push(task);
    }

    /// The scheduler, as kube-scheduler's user and with its rights.
    pub(crate) fn start_scheduler(&mut self, running: &Running, config: SchedulerConfig, port: u16) {
        let service = orlop_apiserver::in_process::service(running.server.clone(), "system:kube-scheduler", &[]);
        let (api, pki) = (Api::in_process(service, "orlop-scheduler"), running.pki.clone());
        let start = move |shutdown: Shutdown| {
            let metrics = Arc::new(Metrics::for_lease(&config.leader_election.resource_name));
            let pages = Arc::new(SchedulerPages::new(metrics.clone(), &config, shutdown.clone()));
            let port = ComponentPort::new("kube-scheduler", port, &pki, &api, pages, &shutdown);
            let options = shell::Options {
                api: api.clone(),
                config: config.clone(),
                clock: Clock::System,
                seed: Random::from_entropy().next_u64(),
                metrics,
                // One process has the data directory, so the name may stay the same: after a crash the lease is ours
                // still.
                identity: Some("orlop-up".to_string()),
                shutdown,
            };
            Box::pin(async move {
                port.serve().await;
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

    /// This machine's node agent, as its node's user and with its rights.
    pub(crate) fn start_node(&mut self, running: &Running, plan: NodePlan) {
        let user = format!("system:node:{}", plan.identity.name);
        let service = orlop_apiserver::in_process::service(running.server.clone(), &user, &["system:nodes"]);
        let (api, pki) = (Api::in_process(service, "orlop-kubelet"), running.pki.clone());
        // Kept from one attempt to the next: a simulated runtime has its containers in memory.
        let mut runtime: Option<Arc<dyn Runtime>> = None;
        let start = move |shutdown: Shutdown| {
            let options = match &runtime {
                Some(runtime) => Ok(runtime.clone()),
                None => plan.runtime().inspect(|made| runtime = Some(made.clone())),
            };
            let options = options.and_then(|runtime| plan.clone().options(runtime, api.clone(), &pki, shutdown));
            Box::pin(async move { Ok(agent::run(options?).await?) }) as BoxFuture<'static, Result<(), ComponentError>>
        };
        self.add(KUBELET, Box::new(start));
    }

    /// What makes services reachable from this machine: the proxy, as kube-proxy's user and with its rights, and DNS.
    pub(crate) fn start_services(&mut self, running: &Running, plan: ServicesPlan) {
        let service =
            |user: &str, groups: &[&str]| orlop_apiserver::in_process::service(running.server.clone(), user, groups);
        let admin = Api::in_process(service("system:orlop:services", &["system:masters"]), "orlop");
        let api = Api::in_process(service("system:kube-proxy", &[]), "kube-proxy");
        let (dns_plan, dns_api) = (plan.clone(), admin.clone());
        let dns = move |shutdown| {
            let run = services::dns(dns_plan.clone(), dns_api.clone(), shutdown);
            Box::pin(async move { Ok(run.await?) }) as BoxFuture<'static, Result<(), ComponentError>>
        };
        self.add(DNS, Box::new(dns));
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
