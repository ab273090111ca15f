//! Streams to and from a container: commands, terminals and forwarded ports, over SPDY/3.1 and WebSocket.
//!
//! Every runtime hands out the same [`Session`] for exec and attach and the same [`Pipe`] for a forwarded port; this
//! crate carries them over the wire protocols that Kubernetes' clients speak, in both directions. It knows nothing of
//! pods, runtimes or who may do what.

mod client;
mod download;
mod handshake;
mod idle;
mod port_forward;
mod server;
mod session;
mod spdy;
mod status;
#[cfg(test)]
mod tests;
mod websocket;

use std::future::Future;
use std::pin::Pin;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

pub use client::{ConnectError, connect_port_forward, connect_session, port_forward_over, session_over};
pub use download::{Cut, serve_download};
pub use handshake::{Refusal, is_upgrade, is_websocket, websocket_protocols};
pub use port_forward::{PortForward, serve_port_forward};
pub use server::{IDLE_DEFAULT, OpenError, Upgrade, serve_session};

/// A byte stream both ways, such as a forwarded port.
pub trait Pipe: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Pipe for T {}

/// A new size of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct TerminalSize {
    pub width: u16,
    pub height: u16,
}

/// Which streams a client asks for. With a terminal there is no stderr, whatever is said here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Streams {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub tty: bool,
}

/// How a command in a container ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It ran and gave this exit code.
    Code(i32),
    /// It could not be run, or its streams failed: the message for the client.
    Failed(String),
}

/// A command that runs in a container, or a container's own streams: what one side offers and the other carries.
/// A stream that was not asked for is `None`. Shutting `stdin` down is the end of the command's input; output goes on. The
/// exit may come before the output has been read to its end. Dropping the session lets the command go.
pub struct Session {
    pub stdin: Option<Box<dyn AsyncWrite + Send + Unpin>>,
    pub stdout: Option<Box<dyn AsyncRead + Send + Unpin>>,
    pub stderr: Option<Box<dyn AsyncRead + Send + Unpin>>,
    pub resize: Option<mpsc::Sender<TerminalSize>>,
    pub exit: Pin<Box<dyn Future<Output = Exit> + Send>>,
}
