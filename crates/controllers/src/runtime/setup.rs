//! How a controller gets what it needs and comes to run.

use std::sync::Arc;

use futures::future::BoxFuture;
use futures::future::FutureExt;
use orlop_base::{Clock, Shutdown};
use orlop_client::Api;
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use super::cache::{Cache, Caches};
use super::events::Recorder;
use super::metrics::Metrics;
use super::reconcile::{AnyReconcile, Reconcile, run_workers};
use super::work_queue::WorkQueue;
use crate::objects::Kind;
use crate::settings::Settings;

/// A controller: its name in `--controllers`, whose permissions it has, and how it starts.
pub struct Def {
    /// Upstream's name: `replicaset-controller`.
    pub name: &'static str,
    /// The service account in `kube-system` that has the permissions it needs; empty: those of the manager itself.
    pub account: &'static str,
    /// Runs unless `--controllers` says otherwise.
    pub on_by_default: bool,
    /// Takes caches, registers what makes work, and hands its loops over to `Setup::run`.
    pub start: fn(&Setup),
}

/// What a controller is started with.
pub struct Setup {
    pub def: &'static Def,
    /// With the controller's own permissions.
    pub api: Api,
    pub clock: Clock,
    pub recorder: Recorder,
    pub settings: Arc<Settings>,
    pub shutdown: Shutdown,
    pub caches: Caches,
    pub metrics: Arc<Metrics>,
    syncs: Mutex<Vec<BoxFuture<'static, ()>>>,
    loops: Mutex<Vec<BoxFuture<'static, ()>>>,
}

impl Setup {
    #[expect(
        clippy::too_many_arguments,
        reason = "what a controller is started with, called once"
    )]
    pub fn new(
        def: &'static Def,
        api: Api,
        clock: Clock,
        recorder: Recorder,
        settings: Arc<Settings>,
        shutdown: Shutdown,
        caches: Caches,
        metrics: Arc<Metrics>,
    ) -> Setup {
        let (syncs, loops) = (Mutex::default(), Mutex::default());
        Setup {
            def,
            api,
            clock,
            recorder,
            settings,
            shutdown,
            caches,
            metrics,
            syncs,
            loops,
        }
    }

    /// A cache; the controller's loops begin only when it holds the whole state.
    pub fn cache<T: Kind>(&self) -> Cache<T> {
        let cache = self.caches.cache::<T>();
        self.syncs.lock().push(cache.reached(0));
        cache
    }

    /// A queue, named in metrics after the controller (or, if it has several, after what is in it).
    pub fn queue(&self, name: &str) -> WorkQueue {
        WorkQueue::new(self.metrics.queue(name))
    }

    /// Works through the queue, on this many keys at the same time.
    pub fn run(&self, queue: WorkQueue, workers: usize, reconciler: impl Reconcile) {
        self.run_any(queue, workers, Arc::new(reconciler));
    }

    fn run_any(&self, queue: WorkQueue, workers: usize, reconciler: Arc<dyn AnyReconcile>) {
        let (api, caches, name) = (self.api.clone(), self.caches.clone(), self.def.name);
        self.loops
            .lock()
            .push(run_workers(name, queue, workers, reconciler, api, caches).boxed());
    }

    /// Something that is not a queue: it must end by itself at the shutdown.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.loops.lock().push(task.boxed());
    }

    /// Starts everything; the tasks end at the shutdown.
    pub(crate) fn begin(self) -> Vec<JoinHandle<()>> {
        let syncs = futures::future::join_all(self.syncs.into_inner()).shared();
        let shutdown = self.shutdown;
        let begin = |task: BoxFuture<'static, ()>| {
            let (syncs, shutdown) = (syncs.clone(), shutdown.clone());
            orlop_base::spawn(async move {
                tokio::select! {
                    _ = shutdown.wait() => {}
                    _ = async { syncs.await; task.await } => {}
                }
            })
        };
        self.loops.into_inner().into_iter().map(begin).collect()
    }
}
