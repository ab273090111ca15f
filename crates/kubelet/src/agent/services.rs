//! The cluster's services, for the service environment variables of containers.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use orlop_api::types::core::Service;
use orlop_base::Shutdown;
use orlop_client::{Api, Delta, Selection, path};
use parking_lot::RwLock;
use tokio::sync::{mpsc, watch};

/// Deltas that may wait.
const QUEUE: usize = 256;
/// How long pods may wait for the services.
const PATIENCE: Duration = Duration::from_secs(10);

/// The newest known services. Cheap to clone.
#[derive(Clone)]
pub(super) struct Services {
    known: Arc<RwLock<HashMap<(String, String), Arc<Service>>>>,
    synced: watch::Receiver<bool>,
    gave_up: Arc<AtomicBool>,
}

impl Services {
    /// Follows the API server until the shutdown; without one there are none.
    pub(super) fn start(api: Option<Api>, shutdown: Shutdown) -> Services {
        let (synced, receiver) = watch::channel(api.is_none());
        let services = Services {
            known: Arc::default(),
            synced: receiver,
            gave_up: Arc::default(),
        };
        if let Some(api) = api {
            let (sender, mut deltas) = mpsc::channel(QUEUE);
            let selection = Selection::all(path::collection("v1", None, "services"));
            orlop_base::spawn(orlop_client::watch::<Service>(api, selection, sender, shutdown));
            let known = services.known.clone();
            orlop_base::spawn(async move {
                while let Some(delta) = deltas.recv().await {
                    observe(&mut known.write(), delta);
                    synced.send_replace(true);
                }
            });
        }
        services
    }

    pub(super) fn all(&self) -> Vec<Arc<Service>> {
        self.known.read().values().cloned().collect()
    }

    /// Waits until they have been heard of: before, containers would start without their variables.
    pub(super) async fn wait(&self) {
        let mut synced = self.synced.clone();
        if self.gave_up.load(Ordering::Relaxed) {
            return;
        }
        let heard = tokio::time::timeout(PATIENCE, synced.wait_for(|synced| *synced)).await;
        if !matches!(heard, Ok(Ok(_))) {
            self.gave_up.store(true, Ordering::Relaxed);
            tracing::warn!("services have not been synced; starting containers without service environment variables");
        }
    }
}

fn observe(known: &mut HashMap<(String, String), Arc<Service>>, delta: Delta<Service>) {
    let key = |service: &Service| {
        let metadata = &service.metadata;
        (
            metadata.namespace.clone().unwrap_or_default(),
            metadata.name.clone().unwrap_or_default(),
        )
    };
    match delta {
        Delta::Reset(all) => *known = all.into_iter().map(|s| (key(&s), Arc::new(s))).collect(),
        Delta::Applied(service) => {
            known.insert(key(&service), Arc::new(service));
        }
        Delta::Deleted(service) => {
            known.remove(&key(&service));
        }
        Delta::Bookmark(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn services_come_and_go() {
        let service = |name: &str| {
            let mut service = Service::default();
            service.metadata.name = Some(name.into());
            service
        };
        let mut known = HashMap::new();
        observe(&mut known, Delta::Reset(vec![service("a"), service("b")]));
        observe(&mut known, Delta::Deleted(service("a")));
        observe(&mut known, Delta::Applied(service("c")));
        observe(&mut known, Delta::Bookmark(1));
        let mut names: Vec<String> = known.into_keys().map(|(_, name)| name).collect();
        names.sort();
        assert_eq!(names, ["b", "c"]);
        Services::start(None, Shutdown::default()).wait().await;
    }
}
