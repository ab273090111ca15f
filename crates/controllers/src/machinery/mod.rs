//! What every controller stands on: caches that follow the cluster, queues of keys, turns that wait for their own writes.

pub mod cache;
pub mod events;
pub mod key;
pub mod metrics;
pub mod queue;
mod rights;
pub mod setup;
pub mod turn;

pub use cache::{Cache, Caches};
pub use events::Recorder;
pub use key::Key;
pub use metrics::Metrics;
pub use queue::Queue;
pub use setup::{Def, Setup};
pub use turn::{Failure, Next, Outcome, Reconcile, Turn, seen, status_patch};
