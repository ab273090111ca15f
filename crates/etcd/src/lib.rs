//! etcd's v3 API over `orlop-store`: one member, all calls that clients make (kube-apiserver's above all).
//!
//! ```text
//!   gRPC call ──► check (pure) ──► apply, in the store's writer thread ──► answer
//!                                        │ events, in order
//!                                        ▼
//!                     hub: one task ──► inboxes ──► watch streams      (who lags reads history alone)
//!                                  └──► leases: which keys each has
//! ```
//!
//! Invariants:
//! - What an answer or an event says is durable (unless `--unsafe-no-fsync`): the store shows nothing else.
//! - A transaction sees one state and nothing comes between it and its writes: it is decided in the writer thread.
//! - A watch gets every event of its range from its start revision on, once, in order, revisions whole; or is told at which
//!   revision history was compacted.
//! - Inboxes, streams, requests and history are bounded.
//!
//! Deliberately absent: other members, users and roles, snapshots as database files, the v2 API, the JSON gateway.

mod apply;
mod check;
mod compactor;
mod errors;
mod grpc;
mod hub;
mod keys;
mod lease;
mod listen;
mod pair;
mod query;
mod server;
mod tls;
mod watch;
mod web;

#[cfg(test)]
mod tests;

/// Shared with the store, which is a client of etcd's too.
use orlop_store::etcd::messages;

pub use compactor::AutoCompaction;
pub use listen::{Port, Serves, serve};
pub use server::{Server, Settings, StartError, VERSION};
pub use tls::{TlsError, TlsFiles, server_config};
pub use web::DATA_DIR_PAGE;

use std::sync::Arc;

/// Starts to compact history now and then.
pub fn compact_automatically(server: &Arc<Server>, mode: AutoCompaction) {
    orlop_base::spawn(compactor::run(server.clone(), mode));
}
