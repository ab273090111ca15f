//! What the standard library lacks and every crate of Orlop needs: a clock that tests can hold still, a seeded random
//! source, a shutdown signal, a bounded accept loop, the table of who is connected, supervised tasks, metrics,
//! verbosities of log lines. Kept tiny on purpose.

pub mod accept;
pub mod clock;
pub mod connections;
pub mod join;
pub mod metrics;
pub mod plain_http;
pub mod random;
pub mod shutdown;
pub mod supervisor;
pub mod task;
pub mod verbosity;

pub use accept::accept;
pub use clock::Clock;
pub use connections::{Busy, Connections, Counts, Limits, Peer};
pub use join::{BoxFuture, join_all};
pub use random::Random;
pub use shutdown::Shutdown;
pub use supervisor::Supervisor;
pub use task::{in_scope, spawn};
