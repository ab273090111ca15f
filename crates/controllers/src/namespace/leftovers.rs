//! Waits for what is still in a namespace to go: by watching it, not by asking again and again.

use std::sync::Arc;

use futures::future::join_all;
use orlop_base::Shutdown;
use orlop_client::{Api, Delta, Selection};
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::runtime::{Key, WorkQueue};

const QUEUE: usize = 64;

/// One wait a namespace, which ends with its key put into the queue.
#[derive(Clone)]
pub(super) struct Leftovers {
    api: Api,
    queue: WorkQueue,
    shutdown: Shutdown,
    waits: Arc<Mutex<FxHashMap<Key, AbortHandle>>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Named {
    metadata: Name,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Name {
    name: String,
}

impl Leftovers {
    pub(super) fn new(api: Api, queue: WorkQueue, shutdown: Shutdown) -> Leftovers {
        Leftovers {
            api,
            queue,
            shutdown,
            waits: Arc::default(),
        }
    }

    /// Puts the key into the queue when these collections are empty. Instead of what was waited for before.
    pub(super) fn wait(&self, key: &Key, collections: Vec<String>) {
        self.forget(key);
        let (this, of) = (self.clone(), key.clone());
        let task = orlop_base::spawn(async move {
            let empty = collections.into_iter().map(|path| this.until_empty(path));
            tokio::select! {
                _ = this.shutdown.wait() => {}
                _ = join_all(empty) => this.queue.add(of),
            }
        });
        self.waits.lock().insert(key.clone(), task.abort_handle());
    }

    pub(super) fn forget(&self, key: &Key) {
        if let Some(wait) = self.waits.lock().remove(key) {
            wait.abort();
        }
    }

    async fn until_empty(&self, path: String) {
        let (sender, mut deltas) = mpsc::channel(QUEUE);
        // Ends when nobody receives any more.
        orlop_base::spawn(orlop_client::watch(
            self.api.clone(),
            Selection::all(path),
            sender,
            self.shutdown.clone(),
        ));
        let mut names: FxHashSet<String> = FxHashSet::default();
        while let Some(delta) = deltas.recv().await {
            match delta {
                Delta::Reset(all) => names = all.into_iter().map(|Named { metadata }| metadata.name).collect(),
                Delta::Applied(new) => drop(names.insert(new.metadata.name)),
                Delta::Deleted(old) => drop(names.remove(&old.metadata.name)),
                Delta::Bookmark(_) => continue,
            }
            if names.is_empty() {
                return;
            }
        }
    }
}
