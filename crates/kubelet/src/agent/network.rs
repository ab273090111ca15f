//! The range of this node's pods, told to the runtime and to the plugins that make pods' networks.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use orlop_base::Shutdown;
use orlop_runtime::Runtime;
use orlop_runtime::cni::{self, Network, Written};
use tokio::sync::watch;

/// A runtime that can't be told now is told again after this long.
const AGAIN: Duration = Duration::from_secs(5);

/// Tells every range that comes, until the shutdown.
pub async fn follow(
    mut ranges: watch::Receiver<Option<String>>,
    runtime: Arc<dyn Runtime>,
    directory: Option<PathBuf>,
    shutdown: Shutdown,
) {
    let work = async {
        loop {
            let range = ranges.borrow_and_update().clone();
            let told = match range {
                Some(range) => tell(&range, &*runtime, directory.clone()).await,
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
        let written = tokio::task::spawn_blocking(move || cni::write(&directory, &network)).await;
        match written {
            Ok(Ok(Written::New)) => tracing::info!("pods of this node are in {range}"),
            Ok(Ok(Written::Unchanged)) => {}
            Ok(Ok(Written::SomebodyElses(file))) => {
                tracing::info!("the pod network is {}'s: {range} is not used", file.display());
            }
            Ok(Err(error)) => {
                tracing::error!("the pod network can't be configured in {shown}: {error}");
                return false;
            }
            Err(_) => return false,
        }
    }
    match runtime.update_runtime_config(range).await {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!("the runtime does not take the range of pods {range}: {error}");
            false
        }
    }
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
            Some(directory.clone()),
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
}
