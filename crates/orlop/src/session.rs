//! What others on this machine know of a running cluster: the context in the user's kubeconfig, the process file, the control
//! socket, and the record of what the cluster makes here.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use orlop_apiserver::Running;
use orlop_base::Clock;
use orlop_client::Api;

use crate::commands::apiserver;
use crate::components::Components;
use crate::kubeconfig::{Access, Merged, Target};
use crate::machine::Machine;
use crate::process_file::{ProcessFile, ProcessId};
use crate::service_manager::ServiceManager;
use crate::stop::StopRequest;
use crate::{control, data_dir, status};

/// What others on this machine know of the cluster, to be taken back at its end.
#[derive(Default)]
pub(crate) struct Session {
    /// None: nobody was told anything.
    data_dir: Option<PathBuf>,
    target: Option<Target>,
    context: Option<String>,
}

impl Session {
    /// The cluster has the data directory. What it is about to make on the machine is written down before it does.
    pub(crate) fn begin(&mut self, data_dir: &Path, own_kubeconfig: &Path, merges: bool, mut machine: Machine) {
        let data_dir = data_dir::absolute(data_dir);
        self.target = merges.then(|| find_kubeconfig(own_kubeconfig)).flatten();
        machine.kubeconfigs.extend(self.target.clone());
        if let Err(error) = Machine::record(&data_dir, machine) {
            tracing::warn!(err = %error, "failed to record what the cluster makes on this machine");
        }
        self.data_dir = Some(data_dir);
    }

    /// Adds the cluster's context to the user's kubeconfig, and tells how to use it. That it can't be is no reason not to run.
    pub(crate) fn join_kubeconfig(&mut self, own_kubeconfig: &Path) -> Vec<String> {
        let target = self.target.as_ref().zip(self.data_dir.as_ref());
        let merged = target.map(|(target, dir)| {
            let merged = merge(target, own_kubeconfig, dir)?;
            anyhow::Ok((context_line(&merged, &target.path), merged.context))
        });
        let use_it = match merged {
            Some(Ok((line, context))) => {
                self.context = Some(context);
                line
            }
            Some(Err(error)) => {
                tracing::warn!(err = %format!("{error:#}"), "failed to add a context to the kubeconfig");
                export_line(own_kubeconfig)
            }
            None => export_line(own_kubeconfig),
        };
        let advice = (!is_in_path("kubectl")).then(kubectl_advice);
        std::iter::once(use_it).chain(advice).collect()
    }

    /// Lets `orlop status`, `down` and `component` find the process.
    pub(crate) fn announce(
        &self,
        running: &Running,
        components: &mut Components,
        stop: &StopRequest,
        own_nodes: Vec<String>,
        greeting: Vec<String>,
    ) {
        let (Some(data_dir), Some(id)) = (&self.data_dir, ProcessId::of(std::process::id() as i32)) else {
            return;
        };
        let process = ProcessFile {
            id,
            started: Clock::System.now(),
            version: env!("CARGO_PKG_VERSION").to_string(),
            url: apiserver::url(running.address),
            greeting,
        };
        let reader =
            orlop_apiserver::in_process::service(running.server.clone(), "system:orlop:status", &["system:masters"]);
        let source = status::Source {
            server: running.server.clone(),
            api: Api::in_process(reader, "orlop-status"),
            process: process.clone(),
            data_dir: data_dir.clone(),
            context: self.context.clone(),
            own_nodes,
            stop: stop.clone(),
        };
        if let Some(manager) = ServiceManager::of_environment() {
            components.keep(tokio::spawn(manager.follow(source.clone())));
        }
        let cluster = control::Cluster {
            supervisor: components.supervisor().clone(),
            status: Some(source.into()),
            stop: stop.clone(),
            workers: components.workers().cloned(),
        };
        match control::start(data_dir, cluster, components.shutdown().clone()) {
            Ok(task) => components.keep(task),
            Err(error) => tracing::warn!(err = %error, "failed to listen for `orlop status` and `orlop component`"),
        }
        // Last: whoever finds it finds the socket, too.
        if let Err(error) = process.write(data_dir) {
            tracing::warn!(err = %error, "failed to write process.json; `orlop status` will not find this process");
        }
    }

    pub(crate) fn end(&self) {
        let Some(data_dir) = &self.data_dir else { return };
        if let Some(target) = &self.target
            && let Err(error) = target.unmerge(data_dir)
        {
            let error = format!("{:#}", anyhow::Error::new(error));
            tracing::warn!(err = %error, "failed to remove the context from the kubeconfig");
        }
        ProcessFile::remove(data_dir);
    }
}

fn merge(target: &Target, own_kubeconfig: &Path, data_dir: &Path) -> anyhow::Result<Merged> {
    let text = std::fs::read_to_string(own_kubeconfig)?;
    let config: serde_json::Value = serde_saphyr::from_str(&text)?;
    let access = Access::of_kubeconfig(&config).context("there is no cluster in it")?;
    Ok(target.merge(&access, data_dir)?)
}

/// The file to add a context to: none if the cluster's own kubeconfig is in use already.
fn find_kubeconfig(own: &Path) -> Option<Target> {
    let target = Target::find()?;
    // It is to mean the same wherever it is read from.
    let path = data_dir::absolute(&target.path);
    (path != data_dir::absolute(own)).then_some(Target { path, ..target })
}

fn context_line(merged: &Merged, path: &Path) -> String {
    let before = match &merged.previous_context {
        Some(name) => format!(", instead of {name} until it ends"),
        None => String::new(),
    };
    format!(
        "Use it:  kubectl get nodes  (context {} is the current one in {}{before})",
        merged.context,
        path.display()
    )
}

fn export_line(kubeconfig: &Path) -> String {
    format!("Use it:  export KUBECONFIG={}", kubeconfig.display())
}

fn is_in_path(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(name).is_file())
}

fn kubectl_advice() -> String {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    format!(
        "kubectl is not in PATH. Get it with:  curl -Lo /usr/local/bin/kubectl https://dl.k8s.io/release/{}/bin/linux/{architecture}/kubectl \
         && chmod +x /usr/local/bin/kubectl",
        // Without what is only ours: `v1.36.4+orlop0.1.0`.
        orlop_apiserver::discovery::GIT_VERSION
            .split('+')
            .next()
            .unwrap_or_default()
    )
}
