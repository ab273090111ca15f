//! The container runtime interface, version 1, over a socket: containerd, CRI-O and whatever else speaks it.
//!
//! [`CriRuntime`] turns the calls of [`Runtime`](crate::Runtime) into gRPC calls and back, and nothing more: `connection`
//! carries them, `runtime` has one function per call with its time limit, `events` finds the runtime's own stream of
//! events, `streams` carries commands and ports, `settings` learns what the kubelet has to follow. What a runtime says when it fails is kept word for word.

mod connection;
mod containerd;
mod events;
pub mod messages;
mod runtime;
mod settings;
mod streams;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::AtomicU8;

use crate::Result;
use connection::Connection;
pub use settings::Settings;

/// A runtime behind a socket. Clones share its connection.
#[derive(Clone)]
pub struct CriRuntime {
    connection: Connection,
    /// Which way to events to try first; see `events`.
    way: Arc<AtomicU8>,
}

impl CriRuntime {
    /// For an endpoint such as `unix:///run/containerd/containerd.sock`. Connects with the first call, and again after
    /// the runtime was restarted: only an endpoint that makes no sense is an error here.
    pub fn connect(endpoint: &str) -> Result<CriRuntime> {
        let connection = Connection::new(endpoint)?;
        Ok(CriRuntime {
            connection,
            way: Arc::default(),
        })
    }
}
