//! Clients against servers in one process, over pipes instead of sockets.

mod ports;
mod sessions;

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use http::Request;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use proptest::prelude::Rng;
use proptest::test_runner::TestRunner;
use tokio::io::{DuplexStream, duplex};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use crate::{Refusal, Upgrade};

/// Serves one connection with what `answer` makes of its request; returns the client's end.
fn serve(answer: impl Fn(&mut Request<Incoming>) -> Result<Upgrade, Refusal> + Send + Sync + 'static) -> DuplexStream {
    let (near, far) = duplex(16 << 10);
    let answer = Arc::new(answer);
    let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        let answer = answer.clone();
        async move {
            Ok::<_, Infallible>(match answer(&mut request) {
                Ok(upgrade) => {
                    tokio::spawn(upgrade.run);
                    upgrade.response.map(|()| Full::new(Bytes::new()))
                }
                Err(refusal) => refusal.response().map(Full::from),
            })
        }
    });
    let connection = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(far), service);
    tokio::spawn(connection.with_upgrades());
    near
}

async fn websocket(io: DuplexStream, path: &str, protocol: &str) -> WebSocketStream<DuplexStream> {
    let mut request = format!("ws://node{path}").into_client_request().unwrap();
    request
        .headers_mut()
        .insert("sec-websocket-protocol", protocol.parse().unwrap());
    let (socket, response) = tokio_tungstenite::client_async(request, io).await.unwrap();
    assert_eq!(response.headers()["sec-websocket-protocol"], protocol);
    socket
}

/// Sends all messages while it gathers what comes until the other side closes.
async fn exchange(socket: WebSocketStream<DuplexStream>, messages: Vec<Message>) -> Vec<Message> {
    let (mut sink, mut source) = socket.split();
    let sending = async {
        for message in messages {
            sink.send(message).await.unwrap();
        }
        std::future::pending::<Infallible>().await
    };
    let receiving = async {
        let mut received = Vec::new();
        while let Some(Ok(message)) = source.next().await {
            if let Message::Close(frame) = message {
                assert_eq!(frame.expect("a goodbye has a status").code, CloseCode::Normal);
                break;
            }
            received.push(message);
        }
        received
    };
    tokio::select! {
        received = receiving => received,
        never = sending => match never {},
    }
}

/// Bytes that do not compress, repeat, or depend on the run.
fn noise(length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    TestRunner::deterministic().rng().fill_bytes(&mut bytes);
    bytes
}
