//! For tests of whatever talks to an API server: a server in memory, a script in its place, and patience.
//!
//! `Server` keeps objects and their history, takes the usual requests by Kubernetes' rules and lets them be watched.
//! `Faults` make it lag, fail and forget by a seed; `set_hook` answers what it does not know, or otherwise. `Fake` answers
//! by script, or by a function. Kinds need no registration.

mod faults;
mod parts;
mod script;
mod server;
mod store;

use std::time::Duration;

pub use faults::Faults;
pub use script::{Fake, FakeReply, ReceivedRequest};
pub use server::{Call, Connection, Reply, Server};
pub use store::{Collection, ListSelector, ObjectPath, Refusal, Store, StoreResult, collection};

/// Longer than anything takes, in real time or in virtual.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between two looks.
const STEP: Duration = Duration::from_millis(5);

/// Waits until it holds, in the time of the runtime. `what` is for the message if it never does.
pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(STEP).await;
        }
    };
    if tokio::time::timeout(PATIENCE, waiting).await.is_err() {
        panic!("not within {PATIENCE:?}: {what}");
    }
}
