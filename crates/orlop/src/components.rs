//! What runs beside the API server in one process, and in which order it starts and stops.

use std::sync::Arc;

use orlop_apiserver::{NodesInside, Pipe, Running};
use orlop_base::{Clock, Random, Shutdown};
use orlop_client::Api;
use orlop_controllers::{Def, Settings};
use orlop_kubelet::{agent, fleet};
use orlop_scheduler::config::Config as SchedulerConfig;
use orlop_scheduler::metrics::Metrics;
use orlop_scheduler::shell;
use tokio::task::JoinHandle;

use crate::node::NodePlan;
use crate::services::{self, ServicesPlan};
use crate::signing;

/// Components under way. They stop before the server does, so that their last words are heard.
#[derive(Default)]
pub struct Components {
    shutdown: Shutdown,
    tasks: Vec<JoinHandle<()>>,
}

impl Components {
    pub async fn stop(self) {
        self.shutdown.trigger();
        for task in self.tasks {
            let _ = task.await;
        }
    }

    /// The scheduler, as kube-scheduler's user and with its rights.
    pub fn start_scheduler(&mut self, running: &Running, config: SchedulerConfig) {
        let service = orlop_apiserver::in_process::service(running.server.clone(), "system:kube-scheduler", &[]);
        let options = shell::Options {
            api: Api::in_process(service, "orlop-scheduler"),
            config,
            clock: Clock::System,
            seed: Random::from_entropy().next_u64(),
            metrics: Arc::new(Metrics::default()),
            // One process has the data directory, so the name may stay the same: after a crash the lease is ours still.
            identity: Some("orlop-up".to_string()),
            shutdown: self.shutdown.clone(),
        };
        self.tasks.push(tokio::spawn(async move {
            if let Err(e) = shell::run(options).await {
                tracing::error!("the scheduler stopped: {e}");
            }
        }));
    }

    /// The controllers, each as its service account and with its rights.
    pub fn start_controllers(&mut self, running: &Running, controllers: Vec<&'static Def>, settings: Settings) {
        let server = running.server.clone();
        let account = move |account: &str| {
            let user = format!("system:serviceaccount:kube-system:{account}");
            let groups = ["system:serviceaccounts", "system:serviceaccounts:kube-system"];
            let service = orlop_apiserver::in_process::service(server.clone(), &user, &groups);
            Api::in_process(service, "kube-controller-manager")
        };
        let manager = "system:kube-controller-manager";
        let service = orlop_apiserver::in_process::service(running.server.clone(), manager, &[]);
        let options = orlop_controllers::Options {
            api: Api::in_process(service, "kube-controller-manager"),
            account: Box::new(account),
            controllers,
            settings: signing::with_keys_of(&running.pki, settings),
            // One process has the data directory: nobody to be elected against.
            election: None,
            clock: Clock::System,
            metrics: Arc::new(orlop_controllers::Metrics::default()),
            shutdown: self.shutdown.clone(),
        };
        self.tasks.push(tokio::spawn(async move {
            if let Err(e) = orlop_controllers::run(options).await {
                tracing::error!("the controllers stopped: {e}");
            }
        }));
    }

    /// This machine's node agent, as its node's user and with its rights.
    pub fn start_node(&mut self, running: &Running, plan: NodePlan) {
        let user = format!("system:node:{}", plan.identity.name);
        let service = orlop_apiserver::in_process::service(running.server.clone(), &user, &["system:nodes"]);
        let api = Api::in_process(service, "orlop-kubelet");
        let options = plan.options(api, &running.pki, self.shutdown.clone());
        self.tasks.push(tokio::spawn(async move {
            let outcome = match options {
                Ok(options) => agent::run(options).await,
                Err(error) => Err(error),
            };
            if let Err(e) = outcome {
                tracing::error!("the node agent stopped: {e}");
            }
        }));
    }

    /// What makes services reachable from this machine: the proxy, as kube-proxy's user and with its rights, and DNS.
    pub fn start_services(&mut self, running: &Running, plan: ServicesPlan) {
        let service =
            |user: &str, groups: &[&str]| orlop_apiserver::in_process::service(running.server.clone(), user, groups);
        let admin = Api::in_process(service("system:orlop:services", &["system:masters"]), "orlop");
        let api = Api::in_process(service("system:kube-proxy", &[]), "kube-proxy");
        let dns = services::dns(plan.clone(), admin.clone(), self.shutdown.clone());
        self.tasks.push(tokio::spawn(async move {
            if let Err(e) = dns.await {
                tracing::error!("DNS stopped: {e}");
            }
        }));
        let shutdown = self.shutdown.clone();
        self.tasks.push(tokio::spawn(async move {
            if let Err(e) = services::proxy(plan, admin, api, shutdown).await {
                tracing::error!("the proxy stopped: {e}");
            }
        }));
    }

    /// Simulated nodes. Their keeper speaks for all of them, which no node's user may.
    pub fn start_fleet(&mut self, running: &Running, options: fleet::Options) {
        let service =
            orlop_apiserver::in_process::service(running.server.clone(), "system:orlop:fleet", &["system:masters"]);
        let api = Api::in_process(service, "orlop-fleet");
        let (kubelets, run) = fleet::prepare(api, options, Clock::System, self.shutdown.clone());
        running.server.nodes.set_inside(Arc::new(SimulatedNodes(kubelets)));
        self.tasks.push(tokio::spawn(run));
    }
}

/// The API server's way to nodes that have no port.
struct SimulatedNodes(fleet::Kubelets);

impl NodesInside for SimulatedNodes {
    fn dial(&self, node: &str) -> Option<Box<dyn Pipe>> {
        Some(Box::new(self.0.dial(node)?))
    }
}
