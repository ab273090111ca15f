//! How a controller gets what it needs and comes to run.

use std::sync::Arc;

use futures::future::BoxFuture;
use futures::future::FutureExt;
use orlop_base::{Clock, Shutdown};
use orlop_client::Api;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::cache::{Cache, Caches};
use super::events::Recorder;
use super::key::Key;
use super::metrics::Metrics;
use super::queue::Queue;
use super::rights::Rights;
use super::turn::{AnyReconcile, Failure, Next, Reconcile, Turn};
use crate::objects::Kind;
use crate::settings::Settings;

/// A controller: its name in `--controllers`, whose rights it has, and how it starts.
pub struct Def {
    /// Upstream's name: `replicaset-controller`.
    pub name: &'static str,
    /// The service account in `kube-system` that has the rights it needs; empty: those of the manager itself.
    pub account: &'static str,
    /// Runs unless `--controllers` says otherwise.
    pub on_by_default: bool,
    /// Takes caches, registers what makes work, and hands its loops over to `Setup::run`.
    pub start: fn(&Setup),
}

/// What a controller is started with.
pub struct Setup {
    pub def: &'static Def,
    /// With the controller's own rights.
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
        let cache = self.caches.of::<T>();
        self.syncs.lock().push(cache.reached(0));
        cache
    }

    /// A queue, named in metrics after the controller (or, if it has several, after what is in it).
    pub fn queue(&self, name: &str) -> Queue {
        Queue::new(self.metrics.queue(name))
    }

    /// Works through the queue, on this many keys at the same time.
    pub fn run(&self, queue: Queue, workers: usize, reconciler: impl Reconcile) {
        self.run_any(queue, workers, Arc::new(reconciler));
    }

    fn run_any(&self, queue: Queue, workers: usize, reconciler: Arc<dyn AnyReconcile>) {
        let (api, caches, name) = (self.api.clone(), self.caches.clone(), self.def.name);
        self.loops
            .lock()
            .push(work(name, queue, workers, reconciler, api, caches).boxed());
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

async fn work(
    name: &'static str,
    queue: Queue,
    workers: usize,
    reconciler: Arc<dyn AnyReconcile>,
    api: Api,
    caches: Caches,
) {
    let room = Arc::new(Semaphore::new(workers));
    let rights = Arc::new(Rights::default());
    loop {
        let permit = room
            .clone()
            .acquire_owned()
            .await
            .expect("the semaphore is never closed");
        let key = queue.next().await;
        let (queue, reconciler) = (queue.clone(), reconciler.clone());
        let turn = Turn::new(api.clone(), caches.clone(), rights.clone());
        orlop_base::spawn(async move {
            // A panic costs this turn, not the controller.
            let one = std::panic::AssertUnwindSafe(one_turn(name, &queue, &key, &*reconciler, turn));
            if one.catch_unwind().await.is_err() {
                tracing::error!(controller = name, key = key.to_string(), "reconcile panicked");
                queue.retry(key.clone());
            }
            queue.done(&key);
            drop(permit);
        });
    }
}

async fn one_turn(name: &str, queue: &Queue, key: &Key, reconciler: &dyn AnyReconcile, turn: Turn) {
    let began = queue.began();
    let outcome = reconciler.reconcile(key, &turn).await;
    turn.settle().await;
    queue.ended(began);
    match outcome {
        Ok(next) => {
            queue.forget(key);
            if let Next::After(wait) = next {
                queue.add_after(key.clone(), wait);
            }
        }
        Err(failure) => {
            report(name, key, &failure, queue.failures(key));
            queue.retry(key.clone());
        }
    }
}

/// Races are part of the work, and so is a first failure; what stays is worth a line.
fn report(name: &str, key: &Key, failure: &Failure, failures: u32) {
    let is_quiet = match failure {
        Failure::NotYet(_) => true,
        // That the API server is away is logged by the client, once.
        Failure::Api(error) => matches!(error, orlop_client::Error::Conflict(_)) || error.is_away(),
    };
    let (key, err) = (key.to_string(), failure.to_string());
    if is_quiet || failures < 3 {
        tracing::debug!(controller = name, key, err, "failed to reconcile; retrying");
    } else if failures.is_power_of_two() {
        tracing::warn!(controller = name, key, err, failures, "failed to reconcile; retrying");
    }
}
