//! Taking connections: bounded in number, until told to stop.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::Shutdown;

/// After a connection could not be accepted. Out of file descriptors, most likely: nothing to do but let some end.
const PAUSE: Duration = Duration::from_millis(50);

/// Serves each connection in a task of its own, `most` at the same time; more of them wait to be accepted. `failed` is
/// told of those that could not be. Returns, and stops listening, at the shutdown; tasks under way go on.
pub async fn accept<S, F>(
    listener: TcpListener,
    most: usize,
    shutdown: &Shutdown,
    mut serve: S,
    failed: impl Fn(std::io::Error),
) where
    S: FnMut(TcpStream, SocketAddr) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    let room = Arc::new(Semaphore::new(most));
    loop {
        let permit = room
            .clone()
            .acquire_owned()
            .await
            .expect("the semaphore is never closed");
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = shutdown.wait() => return,
        };
        match accepted {
            Ok((stream, peer)) => {
                let connection = serve(stream, peer);
                tokio::spawn(async move {
                    connection.await;
                    drop(permit);
                });
            }
            Err(error) => {
                failed(error);
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}
