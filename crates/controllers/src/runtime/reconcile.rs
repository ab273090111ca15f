//! The reconcile loop: keys from a work queue, one reconcile each, retried with back-off.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use orlop_client::Api;
use tokio::sync::Semaphore;

use super::cache::Caches;
use super::key::Key;
use super::permissions::Permissions;
use super::work_queue::WorkQueue;
use super::writer::Writer;

/// What to do with the key after its reconcile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing, until something changes.
    Done,
    /// Look again after this long, should nothing change before.
    After(Duration),
}

impl Next {
    /// The sooner of two.
    pub fn or(self, other: Next) -> Next {
        match (self, other) {
            (Next::After(a), Next::After(b)) => Next::After(a.min(b)),
            (Next::Done, next) | (next, Next::Done) => next,
        }
    }
}

/// Why a reconcile did not do all it wanted. The key comes again, later and later.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    #[error("{}", .0.chain())]
    Api(#[from] orlop_client::Error),
    /// Something that should be there soon is not.
    #[error("{0}")]
    NotYet(String),
}

/// How a reconcile ended.
pub type ReconcileResult = std::result::Result<Next, ReconcileError>;

/// What a controller does about a key. Never called for one key twice at the same time.
pub trait Reconcile: Send + Sync + 'static {
    /// Looks at what the key names, decides, and acts. Told *which* object to look at, never *what* changed.
    fn reconcile(&self, key: &Key, writer: &Writer) -> impl Future<Output = ReconcileResult> + Send;
}

impl<R: Reconcile> Reconcile for Arc<R> {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        R::reconcile(self, key, writer).await
    }
}

/// `Reconcile` as a trait object: the loops that work through queues are compiled once, not once for each controller.
pub(super) trait AnyReconcile: Send + Sync {
    fn reconcile<'a>(&'a self, key: &'a Key, writer: &'a Writer) -> BoxFuture<'a, ReconcileResult>;
}

impl<R: Reconcile> AnyReconcile for R {
    fn reconcile<'a>(&'a self, key: &'a Key, writer: &'a Writer) -> BoxFuture<'a, ReconcileResult> {
        Box::pin(Reconcile::reconcile(self, key, writer))
    }
}

/// Reconciles what comes out of the queue, up to `workers` keys at the same time. Never ends.
pub(super) async fn run_workers(
    name: &'static str,
    queue: WorkQueue,
    workers: usize,
    reconciler: Arc<dyn AnyReconcile>,
    api: Api,
    caches: Caches,
) {
    let room = Arc::new(Semaphore::new(workers));
    let permissions = Arc::new(Permissions::default());
    loop {
        let permit = room
            .clone()
            .acquire_owned()
            .await
            .expect("the semaphore is never closed");
        let key = queue.next().await;
        let (queue, reconciler) = (queue.clone(), reconciler.clone());
        let writer = Writer::new(api.clone(), caches.clone(), permissions.clone());
        orlop_base::spawn(async move {
            // A panic costs this reconcile, not the controller.
            let reconcile = std::panic::AssertUnwindSafe(reconcile_key(name, &queue, &key, &*reconciler, writer));
            if reconcile.catch_unwind().await.is_err() {
                tracing::error!(controller = name, key = key.to_string(), "reconcile panicked");
                queue.retry(key.clone());
            }
            queue.done(&key);
            drop(permit);
        });
    }
}

async fn reconcile_key(name: &str, queue: &WorkQueue, key: &Key, reconciler: &dyn AnyReconcile, writer: Writer) {
    let began = queue.began();
    let result = reconciler.reconcile(key, &writer).await;
    writer.wait_until_observed().await;
    queue.ended(began);
    match result {
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
fn report(name: &str, key: &Key, failure: &ReconcileError, failures: u32) {
    let is_quiet = match failure {
        ReconcileError::NotYet(_) => true,
        // That the API server is away is logged by the client, once.
        ReconcileError::Api(error) => matches!(error, orlop_client::Error::Conflict(_)) || error.is_away(),
    };
    let (key, err) = (key.to_string(), failure.to_string());
    if is_quiet || failures < 3 {
        tracing::debug!(controller = name, key, err, "failed to reconcile; retrying");
    } else if failures.is_power_of_two() {
        tracing::warn!(controller = name, key, err, failures, "failed to reconcile; retrying");
    }
}
