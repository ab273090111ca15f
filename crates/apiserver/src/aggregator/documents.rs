//! Discovery of extension API servers: asked for when an APIService changes, and every minute, and kept.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use orlop_api::Value;
use parking_lot::RwLock;
use serde_json::json;
use tokio::time::Instant;

use super::due::{Due, Pace};
use super::resolve::{self, Endpoint};
use super::service::ServiceRef;
use super::{Remote, aggregator_user, merge};
use crate::chain::Server;
use crate::connect::{Backend, FetchError, FetchLimits, Fetched};

/// Upstream: discoveryRefreshInterval, and the rate limiter beside it.
const PACE: Pace = Pace {
    every: Duration::from_secs(60),
    retry_first: Duration::from_millis(500),
    retry_max: Duration::from_secs(60),
};
/// Of a server with a thousand resources.
const LIMITS: FetchLimits = FetchLimits {
    bytes: 4 << 20,
    wait: Duration::from_secs(5),
};
/// What all servers together may have us keep. Those beyond it are listed without their resources, as stale.
const KEPT_BYTES_MAX: usize = 32 << 20;
const AT_ONCE: usize = 16;
const ACCEPT_AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
                                 application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";

/// What is known of one version of a group.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    /// An item of `versions` in aggregated discovery.
    pub version: Value,
    /// Where its OpenAPI 3 document is, if there is one.
    pub openapi: Option<Value>,
    bytes: usize,
}

impl Entry {
    fn stale(version: &str) -> Entry {
        Entry {
            version: json!({"version": version, "freshness": "Stale"}),
            openapi: None,
            bytes: 0,
        }
    }
}

#[derive(Default)]
pub(super) struct Documents {
    /// By name of the APIService.
    entries: RwLock<BTreeMap<String, Entry>>,
    generation: AtomicU64,
}

impl Documents {
    /// Counts changes.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// What is known; of what was not asked yet that it is stale.
    pub(super) fn entry(&self, remote: &Remote) -> Entry {
        let known = self.entries.read().get(&remote.api.name).cloned();
        known.unwrap_or_else(|| Entry::stale(&remote.api.version))
    }

    fn put(&self, entries: Vec<(String, Entry)>) {
        let mut all = self.entries.write();
        for (name, mut entry) in entries {
            let others = all.iter().filter(|(other, _)| **other != name);
            let kept: usize = others.map(|(_, other)| other.bytes).sum();
            if kept + entry.bytes > KEPT_BYTES_MAX {
                tracing::warn!(api_service = name, "failed to keep discovery: too large");
                entry = Entry::stale(entry.version["version"].as_str().unwrap_or_default());
            }
            if all.get(&name) != Some(&entry) {
                all.insert(name, entry);
                self.generation.fetch_add(1, Ordering::AcqRel);
            }
        }
    }

    fn retain(&self, keep: impl Fn(&str) -> bool) {
        self.entries.write().retain(|name, _| keep(name));
        self.generation.fetch_add(1, Ordering::AcqRel);
    }
}

/// One server with all that it serves.
struct Source {
    backend: Arc<Backend>,
    remotes: Vec<Arc<Remote>>,
}

type Sources = BTreeMap<ServiceRef, Source>;

/// Runs until shutdown.
pub(super) async fn run(server: &Arc<Server>) {
    let aggregator = &server.aggregator;
    let (mut changed, mut due) = (aggregator.changed.subscribe(), Due::new(PACE));
    changed.mark_changed();
    let mut sources = Sources::new();
    let mut reads = FuturesUnordered::new();
    loop {
        let now = Instant::now();
        while reads.len() < AT_ONCE {
            let Some(key) = due.start(now) else { break };
            let Some(source) = sources.get(&key) else { continue };
            let (backend, remotes) = (source.backend.clone(), source.remotes.clone());
            reads.push(async move {
                let worked = read(server, &backend, &remotes).await;
                (key, worked, now)
            });
        }
        let next = due.next().filter(|_| reads.len() < AT_ONCE);
        let next = async move {
            match next {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = changed.changed() => sources = renew(server, sources, &mut due),
            Some((key, worked, began)) = reads.next(), if !reads.is_empty() => {
                due.done(&key, worked, began, Instant::now());
            }
            () = next => {}
            () = server.shutdown.wait() => return,
        }
    }
}

/// The servers that there are now; those about which something changed are to be read.
fn renew(server: &Arc<Server>, before: Sources, due: &mut Due<ServiceRef>) -> Sources {
    let table = server.aggregator.table();
    let mut sources = Sources::new();
    for remote in table.all_remotes() {
        // What can't be connected to at all has no documents.
        let Ok(backend) = &remote.backend else { continue };
        let source = sources.entry(backend.service.clone()).or_insert_with(|| Source {
            backend: backend.clone(),
            remotes: vec![],
        });
        source.remotes.push(remote.clone());
    }
    for source in sources.values_mut() {
        source.remotes.sort_by(|a, b| a.api.name.cmp(&b.api.name));
    }
    due.retain(|key| sources.contains_key(key));
    let is_known = |name: &str| table.services.get(name).is_some_and(super::ApiService::is_delegated);
    server.aggregator.documents.retain(is_known);
    let now = Instant::now();
    for (key, source) in &sources {
        let same = before.get(key).is_some_and(|old| {
            let pairs = || old.remotes.iter().zip(&source.remotes);
            old.remotes.len() == source.remotes.len() && pairs().all(|(a, b)| a.api == b.api)
        });
        if !same {
            due.touch(key, now);
        }
    }
    sources
}

/// Reads the documents of one server. False: again soon.
async fn read(server: &Arc<Server>, backend: &Backend, remotes: &[Arc<Remote>]) -> bool {
    let endpoints = resolve::endpoints(&*server.registry, &backend.service).unwrap_or_default();
    let is_available = remotes.iter().any(|remote| remote.api.is_available());
    let endpoint = backend.choose(&endpoints).filter(|_| is_available);
    let Some(endpoint) = endpoint else {
        let stale = remotes
            .iter()
            .map(|r| (r.api.name.clone(), Entry::stale(&r.api.version)));
        server.aggregator.documents.put(stale.collect());
        // There is nobody to ask; when that changes this is due at once.
        return true;
    };
    let (aggregated, index) = tokio::join!(aggregated(backend, endpoint), openapi_index(backend, endpoint));
    let mut entries = vec![];
    let mut worked = true;
    for remote in remotes {
        let api = &remote.api;
        let version = match &aggregated {
            Ok(Some(all)) => {
                let found = all.get(&(api.group.clone(), api.version.clone())).cloned();
                // It answers, but serves nothing of this version.
                Ok(found.unwrap_or_else(|| json!({"version": api.version})))
            }
            Ok(None) => legacy(backend, endpoint, remote).await,
            Err(why) => Err(why.clone()),
        };
        let entry = match version {
            Ok(mut version) => {
                version["version"] = api.version.clone().into();
                version["freshness"] = "Current".into();
                let path = format!("apis/{}/{}", api.group, api.version);
                let openapi = index.as_ref().and_then(|index| index.get(&path)).cloned();
                let bytes = version.to_string().len();
                Entry {
                    version,
                    openapi,
                    bytes,
                }
            }
            Err(why) => {
                tracing::debug!(api_service = api.name, err = why, "failed to read discovery");
                worked = false;
                Entry::stale(&api.version)
            }
        };
        entries.push((api.name.clone(), entry));
    }
    server.aggregator.documents.put(entries);
    worked
}

type ByGroupVersion = BTreeMap<(String, String), Value>;

/// Aggregated discovery; `None` if the server does not have it.
async fn aggregated(backend: &Backend, endpoint: &Endpoint) -> Result<Option<ByGroupVersion>, String> {
    let user = aggregator_user();
    let answer = backend.fetch(endpoint, "/apis", ACCEPT_AGGREGATED, &user, LIMITS).await;
    let answer: Fetched = answer.map_err(|error: FetchError| error.to_string())?;
    if answer.code == 503 {
        return Err(format!(
            "service {} returned non-success response code: 503",
            backend.service
        ));
    }
    if answer.code != 200 || !answer.content_type.contains("as=APIGroupDiscoveryList") {
        return Ok(None);
    }
    let list: Value = serde_json::from_slice(&answer.bytes).map_err(|error| error.to_string())?;
    Ok(Some(merge::versions_of(&list)))
}

/// The resources of one version in the older form.
async fn legacy(backend: &Backend, endpoint: &Endpoint, remote: &Remote) -> Result<Value, String> {
    let path = format!("/apis/{}/{}", remote.api.group, remote.api.version);
    let user = aggregator_user();
    let answer = backend.fetch(endpoint, &path, "application/json", &user, LIMITS).await;
    let answer = answer.map_err(|error| error.to_string())?;
    if answer.code != 200 {
        return Err(format!(
            "failed to download legacy discovery for {path}: {}",
            answer.code
        ));
    }
    let list: Value = serde_json::from_slice(&answer.bytes).map_err(|error| error.to_string())?;
    Ok(merge::from_legacy(&list))
}

async fn openapi_index(backend: &Backend, endpoint: &Endpoint) -> Option<Value> {
    let user = aggregator_user();
    let answer = backend
        .fetch(endpoint, "/openapi/v3", "application/json", &user, LIMITS)
        .await;
    let answer = answer.ok().filter(|answer| answer.code == 200)?;
    let mut index: Value = serde_json::from_slice(&answer.bytes).ok()?;
    index.get_mut("paths").map(Value::take)
}
