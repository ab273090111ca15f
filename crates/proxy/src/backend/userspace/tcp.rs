//! TCP: each connection that comes gets one of its own to an endpoint.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use super::listeners::Way;
use super::service::{Common, Counted, Service};

/// How long each try to connect to an endpoint may take; the next goes to the next one.
/// Upstream's userspace mode had the same.
const TRIES: [Duration; 4] = [
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
];
/// What is read from one side and not yet written to the other.
const BUFFER: usize = 16 * 1024;
/// After an error that another `accept` would meet with too, such as too many open files.
const PAUSE: Duration = Duration::from_millis(50);

/// Takes connections until it is dropped. Those under way go on by themselves.
pub(super) async fn serve(listener: TcpListener, service: Arc<Service>, way: Way, common: Arc<Common>) {
    loop {
        let (client, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => continue,
            Err(e) => {
                tracing::debug!(listener = ?listener.local_addr(), err = %e, "failed to accept connection");
                common.warn_full("connections");
                sleep(PAUSE).await;
                continue;
            }
        };
        let room = match common.room.clone().try_acquire_owned() {
            Ok(room) => room,
            Err(_) => {
                common.warn_full("connections");
                match common.room.clone().acquire_owned().await {
                    Ok(room) => room,
                    Err(_) => return,
                }
            }
        };
        let counted = Counted::connection(&common);
        let (service, common) = (service.clone(), common.clone());
        tokio::spawn(async move {
            relay(client, peer, &service, way, &common).await;
            drop((room, counted));
        });
    }
}

async fn relay(mut client: TcpStream, peer: SocketAddr, service: &Service, way: Way, common: &Common) {
    let Some(mut endpoint) = connect(&client, peer, service, way, common).await else {
        return reset(&client);
    };
    for side in [&client, &endpoint] {
        prepare(side);
    }
    // Ends when both sides have said all they have to say; one may end earlier than the other.
    let copied = tokio::io::copy_bidirectional_with_sizes(&mut client, &mut endpoint, BUFFER, BUFFER).await;
    if copied.is_err() {
        // Whoever is left learns that it did not end well.
        reset(&client);
        reset(&endpoint);
    }
}

/// A connection to an endpoint; the next is tried if one does not answer.
async fn connect(
    client: &TcpStream,
    peer: SocketAddr,
    service: &Service,
    way: Way,
    common: &Common,
) -> Option<TcpStream> {
    let to = client.local_addr().ok()?;
    for (tries, limit) in TRIES.into_iter().enumerate() {
        let address = service.pick(common, way, peer.ip(), to.ip(), tries > 0)?;
        match timeout(limit, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Some(stream),
            Ok(Err(e)) => {
                tracing::debug!(service_port = %service.port().key, endpoint = %address, err = %e, "failed to connect to endpoint");
            }
            Err(_) => {
                tracing::debug!(service_port = %service.port().key, endpoint = %address, timeout = ?limit, "timed out connecting to endpoint");
            }
        }
    }
    tracing::warn!(service_port = %service.port().key, "failed to connect to any endpoint");
    None
}

fn prepare(stream: &TcpStream) {
    // Small answers go at once, and a peer that has vanished is noticed some time.
    let _ = stream.set_nodelay(true);
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(60))
        .with_interval(Duration::from_secs(15));
    let _ = SockRef::from(stream).set_tcp_keepalive(&keepalive);
}

/// Has the connection reset when it is dropped.
fn reset(stream: &TcpStream) {
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}
