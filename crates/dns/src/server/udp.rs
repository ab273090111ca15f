//! Questions by UDP. One task reads, answers and sends; only what must be forwarded goes to tasks of its own.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use orlop_base::{Random, Shutdown};
use tokio::net::UdpSocket;

use super::{Handler, Step, Waiting};
use crate::health::Alive;
use crate::metrics::Transport;

/// Questions have a few hundred bytes; what is longer is cut, and then no question.
const PACKET_MAX: usize = 4096;
/// For bursts: thousands of questions may wait.
const BUFFER: usize = 4 << 20;
const PAUSE: Duration = Duration::from_millis(10);

pub(super) async fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(address).await?;
    // Past the system's bound if we may, else up to it.
    if setsockopt(&socket, sockopt::RcvBufForce, &BUFFER).is_err() {
        let _ = setsockopt(&socket, sockopt::RcvBuf, &BUFFER);
    }
    Ok(socket)
}

/// Serves until the shutdown, whatever a packet does to the task that reads it.
pub(super) async fn serve(handler: Arc<Handler>, socket: Arc<UdpSocket>, shutdown: Shutdown, _alive: Alive) {
    loop {
        // In a set, so that it ends with this task however that ends.
        let mut reading = tokio::task::JoinSet::new();
        reading.spawn(read(handler.clone(), socket.clone(), shutdown.clone()));
        match reading.join_next().await {
            Some(Err(error)) if error.is_panic() => tracing::error!(err = %error, "panicked while handling a packet"),
            _ => return,
        }
    }
}

async fn read(handler: Arc<Handler>, socket: Arc<UdpSocket>, shutdown: Shutdown) {
    let (mut packet, mut out) = (vec![0; PACKET_MAX], Vec::with_capacity(PACKET_MAX));
    let mut random = Random::from_entropy();
    let stop = shutdown.wait();
    tokio::pin!(stop);
    loop {
        let received = tokio::select! {
            biased;
            received = socket.recv_from(&mut packet) => received,
            _ = &mut stop => return,
        };
        let (len, peer) = match received {
            Ok(received) => received,
            Err(error) => {
                tracing::warn!(err = %error, "failed to receive packet");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        match handler.begin(&packet[..len], Transport::Udp, peer, &mut random, &mut out) {
            Step::Silence => {}
            Step::Done => send(&socket, &out, peer).await,
            Step::Wait(waiting) => {
                tokio::spawn(finish(handler.clone(), socket.clone(), *waiting, peer));
            }
        }
    }
}

async fn finish(handler: Arc<Handler>, socket: Arc<UdpSocket>, waiting: Waiting, peer: SocketAddr) {
    let (mut random, mut out) = (Random::from_entropy(), vec![]);
    handler.finish(waiting, &mut random, &mut out).await;
    send(&socket, &out, peer).await;
}

async fn send(socket: &UdpSocket, out: &[u8], peer: SocketAddr) {
    let sent = match socket.try_send_to(out, peer) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => socket.send_to(out, peer).await,
        sent => sent,
    };
    if let Err(error) = sent {
        tracing::debug!(%peer, err = %error, "failed to send response");
    }
}
