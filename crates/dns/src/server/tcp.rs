//! Questions by TCP: any number over one connection, one after another.

use std::sync::Arc;
use std::time::Duration;

use orlop_base::{Connections, Limits, Peer, Random, Shutdown};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::{Handler, Step};
use crate::health::Alive;
use crate::metrics::Transport;

const CONNECTIONS_MAX: usize = 1000;
/// A connection may be silent for this long. Upstream: CoreDNS' server.
const IDLE: Duration = Duration::from_secs(10);
/// Within which a question that has begun comes, and an answer goes.
const MESSAGE: Duration = Duration::from_secs(5);
/// Questions have a few hundred bytes.
const QUESTION_MAX: usize = 4096;

pub(super) async fn serve(handler: Arc<Handler>, listener: TcpListener, shutdown: Shutdown, _alive: Alive) {
    let connections = Connections::new(Limits {
        first_request: IDLE.saturating_add(MESSAGE),
        ..Limits::of(CONNECTIONS_MAX)
    });
    let take = |stream, peer: Arc<Peer>| {
        let (handler, shutdown) = (handler.clone(), shutdown.clone());
        async move {
            tokio::select! {
                ended = converse(&handler, stream, &peer) => {
                    if let Err(error) = ended {
                        tracing::debug!(peer = %peer.address, err = %error, "connection ended with an error");
                    }
                }
                _ = shutdown.wait() => {}
            }
        }
    };
    let failed = |error| tracing::warn!(err = %error, "failed to accept connection");
    orlop_base::accept(listener, &connections, &shutdown, take, failed).await;
}

async fn converse(handler: &Handler, mut stream: TcpStream, peer: &Arc<Peer>) -> std::io::Result<()> {
    let (mut packet, mut out, mut framed) = (vec![], vec![], vec![]);
    let mut random = Random::from_entropy();
    loop {
        let len = match timeout(IDLE, stream.read_u16()).await {
            Ok(Ok(len)) => usize::from(len),
            // The client is done, or has nothing to say.
            _ => return Ok(()),
        };
        let _busy = peer.request();
        if len > QUESTION_MAX {
            return Ok(());
        }
        packet.resize(len, 0);
        timeout(MESSAGE, stream.read_exact(&mut packet)).await??;
        match handler.begin(&packet, Transport::Tcp, peer.address, &mut random, &mut out) {
            Step::Silence => return Ok(()),
            Step::Done => {}
            Step::Wait(waiting) => handler.finish(*waiting, &mut random, &mut out).await,
        }
        framed.clear();
        framed.extend_from_slice(&(out.len() as u16).to_be_bytes());
        framed.extend_from_slice(&out);
        timeout(MESSAGE, stream.write_all(&framed)).await??;
    }
}
