//! Keeps the graph up to date: one watch for each kind of object that can be deleted, as kinds come and go.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use orlop_base::Shutdown;
use orlop_client::{Api, Delta, EventType, Failures, ObjectReference, Selection, informer, path};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use super::graph::{Beyond, Graph, News, PartialObject, Type};
use super::kinds::{self, Kinds};
use crate::discovery::{self, Discovered, Resource};
use crate::runtime::{Key, Recorder, WorkQueue};

/// How often the API server is asked for its kinds. Upstream: the garbage collector's sync period.
const DISCOVER_EVERY: Duration = Duration::from_secs(30);
/// After a hint that kinds have changed, to let the server get ready and to take several hints as one.
const AFTER_HINT: Duration = Duration::from_secs(1);
const DISCOVER_AGAIN: Duration = Duration::from_secs(1);
/// How long the first whole states may take; after that, what is known must do.
const FIRST_STATE_MAX: Duration = Duration::from_secs(30);

/// Objects of these kinds bring others: their changes are a hint to ask for the kinds.
const BRINGS_KINDS: [&str; 2] = ["CustomResourceDefinition", "APIService"];

/// What is known, shared by those who watch and those who act.
pub(super) struct CollectorState {
    pub graph: Mutex<Graph>,
    pub kinds: RwLock<Kinds>,
    /// Set once the first whole states are in.
    pub ready: watch::Sender<bool>,
    queue: WorkQueue,
    recorder: Recorder,
    hint: Notify,
}

impl CollectorState {
    pub(super) fn new(queue: WorkQueue, recorder: Recorder) -> CollectorState {
        CollectorState {
            graph: Mutex::default(),
            kinds: RwLock::default(),
            ready: watch::channel(false).0,
            queue,
            recorder,
            hint: Notify::new(),
        }
    }

    /// Changes the graph, and says which keys to queue.
    pub(super) fn change(&self, change: impl FnOnce(&mut Graph, &mut News)) {
        let mut news = News::default();
        change(&mut self.graph.lock(), &mut news);
        for uid in news.wake {
            self.queue.add(Key::new("", &*uid));
        }
        for beyond in &news.beyond {
            self.warn(beyond);
        }
    }

    fn warn(&self, Beyond { dependent, uid, owner }: &Beyond) {
        let namespace = &dependent.namespace;
        let (Type { api_version, kind }, name) = (&*owner.ty, &owner.name);
        let note = format!(
            "ownerRef [{api_version}/{kind}, namespace: {namespace}, name: {name}, uid: {}] does not exist in namespace {namespace:?}",
            owner.uid
        );
        let regarding = ObjectReference {
            api_version: dependent.ty.api_version.to_string().into(),
            kind: dependent.ty.kind.to_string().into(),
            namespace: namespace.to_string(),
            name: dependent.name.to_string(),
            uid: uid.to_string(),
            ..ObjectReference::default()
        };
        self.recorder
            .record(regarding, EventType::Warning, "OwnerRefInvalidNamespace".into(), note);
    }

    fn observe(&self, ty: &Arc<Type>, delta: Delta<PartialObject>) {
        match delta {
            Delta::Reset(all) => self.change(|graph, news| graph.reset(ty, &all, news)),
            Delta::Applied(seen) => self.change(|graph, news| graph.observe(ty, &seen, news)),
            Delta::Deleted(seen) => self.change(|graph, news| graph.remove(ty, &seen.metadata.uid, news)),
            Delta::Bookmark(_) => return,
        }
        if BRINGS_KINDS.contains(&&*ty.kind) {
            self.hint.notify_one();
        }
    }
}

/// A watch of one kind. Ends with this value.
struct Monitor {
    ty: Arc<Type>,
    task: JoinHandle<()>,
    synced: watch::Receiver<bool>,
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Until the shutdown, which whoever runs this waits for.
pub(super) async fn run(api: Api, known: Arc<CollectorState>, shutdown: Shutdown) {
    let mut monitors: BTreeMap<Resource, Monitor> = BTreeMap::new();
    let mut failures = Failures::default();
    loop {
        match discovery::discover(&api).await {
            Ok(found) => {
                failures.succeeded();
                follow(&api, &known, &shutdown, &found, &mut monitors);
                if !*known.ready.borrow() {
                    first_states(&monitors).await;
                    known.ready.send_replace(true);
                }
            }
            Err(error) => {
                if failures.is_news(&error) {
                    tracing::warn!(err = error.chain(), "garbage collector failed to discover resources");
                }
                if monitors.is_empty() {
                    tokio::time::sleep(DISCOVER_AGAIN).await;
                    continue;
                }
            }
        }
        tokio::select! {
            _ = tokio::time::sleep(DISCOVER_EVERY) => {}
            _ = known.hint.notified() => tokio::time::sleep(AFTER_HINT).await,
        }
    }
}

/// Begins to watch what is new, and ceases to watch what is no more.
fn follow(
    api: &Api,
    known: &Arc<CollectorState>,
    shutdown: &Shutdown,
    found: &Discovered,
    monitors: &mut BTreeMap<Resource, Monitor>,
) {
    *known.kinds.write() = Kinds::new(found);
    let wanted = kinds::collectable(found);
    let gone = monitors.extract_if(.., |resource, _| {
        // A group whose server is down is not gone.
        !wanted.contains(resource) && !found.failed.contains_key(&resource.api_version)
    });
    for (resource, monitor) in gone.collect::<Vec<_>>() {
        let (version, name) = (&resource.api_version, &resource.name);
        tracing::debug!(version, resource = name, "garbage collector stopped watching resource");
        let ty = monitor.ty.clone();
        drop(monitor);
        known.change(|graph, news| graph.forget_kind(&ty, news));
    }
    for resource in wanted {
        if let Entry::Vacant(coordinates) = monitors.entry(resource) {
            let monitor = begin(api, known, shutdown, coordinates.key());
            coordinates.insert(monitor);
        }
    }
}

fn begin(api: &Api, known: &Arc<CollectorState>, shutdown: &Shutdown, resource: &Resource) -> Monitor {
    let ty = known.graph.lock().ty(&resource.api_version, &resource.kind);
    let selection = Selection::all(path::collection(&resource.api_version, None, &resource.name));
    let (progress, synced) = watch::channel(false);
    let (known, of) = (known.clone(), ty.clone());
    let sink = move |delta| {
        known.observe(&of, delta);
        progress.send_if_modified(|synced| !std::mem::replace(synced, true));
    };
    let task = informer::start(api, selection, sink, shutdown);
    Monitor { ty, task, synced }
}

async fn first_states(monitors: &BTreeMap<Resource, Monitor>) {
    let all = monitors.values().map(|monitor| {
        let mut synced = monitor.synced.clone();
        // An error: the monitor has ended, with the process.
        async move { synced.wait_for(|synced| *synced).await.is_ok() }
    });
    let waited = tokio::time::timeout(FIRST_STATE_MAX, futures::future::join_all(all));
    if waited.await.is_err() {
        let late = monitors.iter().filter(|(_, monitor)| !*monitor.synced.borrow());
        let late: Vec<&str> = late.map(|(resource, _)| resource.name.as_str()).collect();
        let resources = late.join(", ");
        tracing::warn!(
            resources,
            "garbage collector starts without having synced all resources"
        );
    }
}
