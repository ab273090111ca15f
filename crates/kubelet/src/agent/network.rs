//! The node's pod CIDR, passed to the runtime and to the CNI plugins, and advice for the user where the network does not
//! become ready.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use orlop_base::Shutdown;
use orlop_runtime::Runtime;
use orlop_runtime::cni::{self, Folders, Network, Written};
use tokio::sync::watch;

use crate::node::RuntimeView;
use crate::node::status::network_trouble;

/// How long to wait before UpdateRuntimeConfig is retried.
const AGAIN: Duration = Duration::from_secs(5);
/// A network that is being set up needs a moment.
const PATIENCE: Duration = Duration::from_secs(5);
/// The default CNI directory, for runtimes that do not report theirs.
const USUAL: &str = "/etc/cni/net.d";

/// Where the configuration of the pod network goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetworkConfiguration {
    /// It is somebody else's.
    Foreign,
    /// Where the runtime says that it looks.
    WhereRuntimeLooks,
    In(PathBuf),
}

impl NetworkConfiguration {
    async fn directory(&self, runtime: &dyn Runtime) -> Option<PathBuf> {
        match self {
            NetworkConfiguration::Foreign => None,
            NetworkConfiguration::In(directory) => Some(directory.clone()),
            NetworkConfiguration::WhereRuntimeLooks => {
                let told = runtime.network_folders().await.unwrap_or_default();
                Some(told.configuration.unwrap_or(USUAL.into()))
            }
        }
    }
}

/// Tells every range that comes, until the shutdown.
pub(super) async fn follow(
    mut ranges: watch::Receiver<Option<String>>,
    runtime: Arc<dyn Runtime>,
    configuration: NetworkConfiguration,
    shutdown: Shutdown,
) {
    let work = async {
        loop {
            let range = ranges.borrow_and_update().clone();
            let told = match range {
                Some(range) => tell(&range, &*runtime, configuration.directory(&*runtime).await).await,
                None => true,
            };
            if told {
                if ranges.changed().await.is_err() {
                    return;
                }
            } else {
                let _ = tokio::time::timeout(AGAIN, ranges.changed()).await;
            }
        }
    };
    tokio::select! {
        _ = work => {}
        _ = shutdown.wait() => {}
    }
}

/// Whether all heard it.
async fn tell(range: &str, runtime: &dyn Runtime, directory: Option<PathBuf>) -> bool {
    if let Some(directory) = directory {
        let mut network = Network::new(range.split(','));
        network.mtu = cni::host_mtu();
        let shown = directory.display().to_string();
        let written = crate::blocking::run(move || cni::write(&directory, &network)).await;
        match written {
            Ok(Ok(Written::New)) => tracing::info!(cidr = %range, "configured the pod network"),
            Ok(Ok(Written::Unchanged)) => {}
            Ok(Ok(Written::SomebodyElses(file))) => {
                tracing::info!(file = %file.display(), cidr = %range, "kept the pod network that is configured already");
            }
            Ok(Err(error)) => {
                tracing::error!(path = %shown, err = %error, "failed to configure the pod network");
                return false;
            }
            Err(_) => return false,
        }
    }
    match runtime.update_runtime_config(range).await {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(cidr = %range, err = %error, "failed to update pod CIDR of the runtime");
            false
        }
    }
}

/// Says once what to do about a network that is not ready; again only after it was.
pub(super) async fn advise(
    mut views: watch::Receiver<RuntimeView>,
    runtime: Arc<dyn Runtime>,
    configuration: NetworkConfiguration,
    say: impl Fn(String) + Send,
    shutdown: Shutdown,
) {
    let is_ready = |view: &RuntimeView| view.status.is_some() && network_trouble(view).is_none();
    let work = async {
        while views.wait_for(|view| network_trouble(view).is_some()).await.is_ok() {
            let is_soon = tokio::time::timeout(PATIENCE, views.wait_for(is_ready)).await.is_ok();
            let trouble = network_trouble(&views.borrow());
            let Some(trouble) = trouble.filter(|_| !is_soon) else {
                continue;
            };
            let told = runtime.network_folders().await.unwrap_or_default();
            say(advice(&trouble, &configuration, &told, has_plugins(&told.plugins)));
            if views.wait_for(is_ready).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = work => {}
        () = shutdown.wait() => {}
    }
}

/// The plugin that our own configuration names first.
fn has_plugins(folders: &[PathBuf]) -> bool {
    folders.is_empty() || folders.iter().any(|folder| folder.join("bridge").exists())
}

fn advice(trouble: &str, configuration: &NetworkConfiguration, told: &Folders, has_plugins: bool) -> String {
    let read = told.configuration.as_deref().unwrap_or(Path::new(USUAL));
    let shown = read.display();
    let what = match configuration {
        _ if !has_plugins => {
            let folders: Vec<String> = told.plugins.iter().map(|folder| folder.display().to_string()).collect();
            format!("there are no CNI plugins in {}: install them", folders.join(", "))
        }
        NetworkConfiguration::In(written) if written != read => format!(
            "its configuration is written to {}, but the container runtime reads {shown}: use --cni-conf-dir {shown}",
            written.display()
        ),
        NetworkConfiguration::Foreign => {
            format!("the container runtime reads {shown}: put a CNI configuration there, or use --cni-conf-dir {shown}")
        }
        _ => format!("the container runtime reads {shown}: see what is there, or say another --cni-conf-dir"),
    };
    format!("pod network is not ready; {what} ({trouble})")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::quiet::QuietRuntime;

    #[tokio::test]
    async fn a_range_becomes_a_configuration() {
        let dir = tempfile::tempdir().unwrap();
        let directory = dir.path().join("net.d");
        let (sender, ranges) = watch::channel(None);
        let shutdown = Shutdown::default();
        let task = tokio::spawn(follow(
            ranges,
            Arc::new(QuietRuntime),
            NetworkConfiguration::In(directory.clone()),
            shutdown.clone(),
        ));
        let has = |range: &str| {
            let text = std::fs::read_to_string(directory.join(cni::FILE)).unwrap_or_default();
            text.contains(range)
        };
        for range in ["10.244.3.0/24", "10.9.0.0/16"] {
            sender.send_replace(Some(range.to_string()));
            while !has(range) {
                tokio::task::yield_now().await;
            }
        }
        shutdown.trigger();
        task.await.unwrap();
    }

    #[test]
    fn what_to_do_about_a_network_that_is_not_ready() {
        use NetworkConfiguration::*;
        let told = Folders {
            configuration: Some("/etc/other".into()),
            plugins: vec!["/opt/cni/bin".into()],
        };
        let none = Folders::default();
        for (configuration, told, has_plugins, expected) in [
            (
                In("/etc/cni/net.d".into()),
                &told,
                true,
                "written to /etc/cni/net.d, but the container runtime reads /etc/other: use --cni-conf-dir /etc/other",
            ),
            (
                In("/etc/cni/net.d".into()),
                &none,
                true,
                "reads /etc/cni/net.d: see what is there, or say another --cni-conf-dir",
            ),
            (WhereRuntimeLooks, &told, true, "reads /etc/other: see what is there"),
            (
                WhereRuntimeLooks,
                &told,
                false,
                "there are no CNI plugins in /opt/cni/bin: install them",
            ),
            (
                Foreign,
                &told,
                true,
                "put a CNI configuration there, or use --cni-conf-dir /etc/other",
            ),
        ] {
            let text = advice("cni plugin not initialized", &configuration, told, has_plugins);
            assert!(
                text.contains(expected) && text.ends_with("(cni plugin not initialized)"),
                "{text}"
            );
        }
    }

    /// The runtime tells where it looks; the network is not ready for a minute, and again later.
    #[tokio::test(start_paused = true)]
    async fn one_line_for_each_time_it_is_not_ready() {
        let said = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let lines = || said.lock().len();
        let say = {
            let said = said.clone();
            move |line| said.lock().push(line)
        };
        let view = |ready: bool| {
            let condition = orlop_runtime::cri::messages::RuntimeCondition {
                r#type: "NetworkReady".into(),
                status: ready,
                ..Default::default()
            };
            let mut view = RuntimeView::default();
            let status = view.status.get_or_insert_default();
            status.status.get_or_insert_default().conditions.push(condition);
            view
        };
        let (sender, views) = watch::channel(RuntimeView::default());
        let shutdown = Shutdown::default();
        let task = tokio::spawn(advise(
            views,
            Arc::new(QuietRuntime),
            NetworkConfiguration::WhereRuntimeLooks,
            say,
            shutdown.clone(),
        ));
        for (ready, seconds, expected) in [
            (false, 2, 0),
            (true, 10, 0),
            (false, 60, 1),
            (false, 60, 1),
            (true, 10, 1),
            (false, 10, 2),
        ] {
            sender.send_replace(view(ready));
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            assert_eq!(lines(), expected);
        }
        shutdown.trigger();
        task.await.unwrap();
    }
}
