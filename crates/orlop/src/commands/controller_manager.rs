//! `orlop controller-manager`: the controllers alone, under kube-controller-manager's flag names.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{Context as _, bail};
use orlop_base::{Clock, Shutdown, task};
use orlop_client::{Api, transport};
use orlop_controllers::{Def, Health, Metrics, Options, Settings};
use orlop_serving::health::{self, Check};
use orlop_serving::metrics::process;
use orlop_serving::{Page, Pages};

use super::controllers::ControllersArgs;
use super::election::ElectionArgs;
use super::serving::ServingArgs;
use super::{parse_bool, signals};
use crate::accounts::Accounts;
use crate::signing::KeyFiles;

/// kube-controller-manager's port.
pub(super) const PORT: u16 = 10257;
const NAME: &str = "kube-controller-manager";

#[derive(clap::Args)]
pub(super) struct Args {
    /// Kubeconfig of the API server [default: the in-cluster configuration]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Address of the API server (overrides the kubeconfig)
    #[arg(long, value_name = "URL")]
    master: Option<String>,
    /// Use individual service account credentials for each controller
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value = "false",
          default_missing_value = "true", value_parser = parse_bool)]
    use_service_account_credentials: bool,
    #[command(flatten, next_help_heading = "Keys of the cluster")]
    keys: KeyFiles,
    #[command(flatten, next_help_heading = "Leader election")]
    election: ElectionArgs,
    #[command(flatten, next_help_heading = "Serving")]
    serving: ServingArgs,
    #[command(flatten, next_help_heading = "Controllers")]
    controllers: ControllersArgs,
}

pub(super) fn run(args: Args) -> anyhow::Result<()> {
    let controllers = args.controllers.chosen()?;
    let settings = args.keys.read(args.controllers.settings()?)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("failed to start the tokio runtime")?;
    runtime.block_on(manage(args, controllers, settings))
}

async fn manage(args: Args, controllers: Vec<&'static Def>, settings: Settings) -> anyhow::Result<()> {
    let (shutdown, asked) = signals::stop_on_signal()?;
    let election = args.election.config(NAME)?;
    let master = args.master.as_deref();
    let connect = async |kubeconfig: Option<&Path>| {
        let client = transport::from_kubeconfig(kubeconfig, master, NAME).await?;
        anyhow::Ok(Api::new(client, NAME))
    };
    let api = connect(args.kubeconfig.as_deref()).await?;
    let (metrics, health) = (Arc::new(Metrics::default()), Arc::new(Health::default()));
    let pages = Arc::new(ManagerPages {
        metrics: metrics.clone(),
        health: health.clone(),
        leader_elect: election.is_some(),
        shutdown: shutdown.clone(),
    });
    let connect = |path: PathBuf| async move { connect(Some(&path)).await };
    let serve = args.serving.start(NAME, PORT, &api, connect, pages, shutdown.clone());
    serve.await?;
    let account: Box<dyn Fn(&str) -> Api + Send + Sync> = match args.use_service_account_credentials {
        false => {
            let shared = api.clone();
            Box::new(move |_| shared.clone())
        }
        true => {
            let client = transport::without_credentials(args.kubeconfig.as_deref(), master, NAME).await?;
            let accounts = Accounts::new(api.clone(), client);
            Box::new(move |name| accounts.api(name))
        }
    };
    // A task that panics ends the process, which its supervisor starts again.
    let outcome = task::guard(orlop_controllers::run(Options {
        api,
        account,
        controllers,
        settings,
        election,
        clock: Clock::System,
        metrics,
        health,
        shutdown: shutdown.clone(),
    }));
    let outcome = outcome.await;
    shutdown.trigger();
    match outcome {
        _ if asked.load(Ordering::Relaxed) => {
            tracing::info!("stopped");
            Ok(())
        }
        Err(panic) => bail!("a task of the controllers panicked: {panic}"),
        Ok(Err(error)) => bail!(error),
        Ok(Ok(())) => bail!("the controllers stopped by themselves"),
    }
}

/// What the controller manager serves on its own port: metrics and health.
pub(crate) struct ManagerPages {
    pub metrics: Arc<Metrics>,
    pub health: Arc<Health>,
    pub leader_elect: bool,
    pub shutdown: Shutdown,
}

impl Pages for ManagerPages {
    fn show(&self, path: &str, query: &str) -> Option<Page> {
        if path == "/metrics" {
            let mut text = String::new();
            self.metrics.render(&mut text);
            process::write(&mut text);
            return Some(Page::metrics(text));
        }
        let checks = self.health.checks(self.leader_elect, &self.shutdown);
        let checks: Vec<Check> = (checks.into_iter())
            .map(|check| Check {
                name: check.name,
                at: check.endpoints,
                passes: check.passes,
            })
            .collect();
        health::respond(&checks, path, query).map(|(code, text)| Page::plain(code, text))
    }
}
