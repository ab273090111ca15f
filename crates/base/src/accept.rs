//! Taking connections: bounded in number and time, until told to stop.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};

use crate::Shutdown;
use crate::connections::{Connections, Peer};

/// After a connection could not be accepted. Out of file descriptors, most likely: nothing to do but let some end.
const PAUSE: Duration = Duration::from_millis(50);

/// What the kernel takes of a response ahead of what it could send. By default that is megabytes a connection: a server
/// would encode and encrypt long lists whole for clients that read a few kilobytes of them.
const UNSENT_MAX: u32 = 128 * 1024;

/// Answers go out at once, and no further ahead of their reader than `UNSENT_MAX`. A socket that refuses still works.
fn limit_unsent(stream: &TcpStream) {
    let socket = socket2::SockRef::from(stream);
    let _ = socket.set_tcp_nodelay(true);
    let _ = socket.set_tcp_notsent_lowat(UNSENT_MAX);
}

/// Serves each connection that finds room in a task of its own, until it ends or must go. `failed` is told of those that
/// could not be accepted. Returns, and stops listening, at the shutdown; tasks under way go on.
pub async fn accept<S, F>(
    listener: TcpListener,
    connections: &Arc<Connections>,
    shutdown: &Shutdown,
    mut serve: S,
    failed: impl Fn(std::io::Error),
) where
    S: FnMut(TcpStream, Arc<Peer>) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = shutdown.wait() => return,
        };
        match accepted {
            Ok((stream, address)) => {
                limit_unsent(&stream);
                let Some(place) = connections.admit(address) else {
                    continue;
                };
                let connection = serve(stream, place.0.clone());
                tokio::spawn(async move {
                    tokio::select! {
                        () = connection => {}
                        () = place.0.cut() => {}
                    }
                    drop(place);
                });
            }
            Err(error) => {
                failed(error);
                connections.make_room();
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}
