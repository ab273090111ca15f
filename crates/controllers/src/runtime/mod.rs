//! What every controller stands on: informer caches, work queues, and a reconcile loop that waits for its own writes.

pub mod cache;
pub mod events;
pub mod key;
pub mod metrics;
mod permissions;
pub mod reconcile;
pub mod setup;
pub mod work_queue;
pub mod writer;

pub use cache::{Cache, Caches};
pub use events::Recorder;
pub use key::Key;
pub use metrics::Metrics;
pub use reconcile::{Next, Reconcile, ReconcileError, ReconcileResult};
pub use setup::{Def, Setup};
pub use work_queue::WorkQueue;
pub use writer::{Writer, precondition, status_patch};
