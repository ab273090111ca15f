//! Some controllers, by name, on the cluster of $KUBECONFIG: for trying one out.

use std::sync::Arc;

use orlop_base::{Clock, Shutdown};
use orlop_client::{Api, transport};
use orlop_controllers::{ALL, Metrics, Options, Settings, run};

#[tokio::main]
async fn main() {
    let names: Vec<String> = std::env::args().skip(1).collect();
    let kubeconfig = std::env::var_os("KUBECONFIG").expect("KUBECONFIG is set");
    let client = transport::from_kubeconfig(Some(kubeconfig.as_ref()), None, "kube-controller-manager");
    let api = Api::new(client.await.expect("a usable kubeconfig"), "kube-controller-manager");
    let chosen = |def: &&&orlop_controllers::Def| names.is_empty() || names.iter().any(|name| name == def.name);
    let shared = api.clone();
    let options = Options {
        api,
        account: Box::new(move |_| shared.clone()),
        controllers: ALL.iter().filter(chosen).copied().collect(),
        settings: Settings::default(),
        election: None,
        clock: Clock::System,
        metrics: Arc::new(Metrics::default()),
        health: Arc::default(),
        shutdown: Shutdown::default(),
    };
    run(options).await.expect("runs until it is stopped");
}
