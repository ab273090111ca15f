//! One way only: a body of HTTP in the messages of a WebSocket, for clients that can't read one as it comes (browsers).
// Upstream: staging/src/k8s.io/streaming/pkg/httpstream/wsstream/stream.go (v1.36)

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::{SinkExt, Stream, StreamExt};
use http::HeaderMap;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio_tungstenite::tungstenite::Message;

use crate::Pipe;
use crate::handshake::{Agreed, Refusal, agree};
use crate::server::Upgrade;
use crate::websocket::{accept, goodbye};

const BASE64: &str = "base64.binary.k8s.io";
const PROTOCOLS: [&str; 3] = ["", "binary.k8s.io", BASE64];

/// How data becomes messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// As it comes: bytes, or base64 for those who ask for it.
    AsItComes,
    /// Every line is a message of text. The data comes in whole lines.
    Lines,
}

/// Sends all data, says goodbye, and ends early when the client does.
pub fn serve_download(
    headers: &HeaderMap,
    upgrade: OnUpgrade,
    cut: Cut,
    data: impl Stream<Item = Bytes> + Send + Unpin + 'static,
) -> Result<Upgrade, Refusal> {
    let (agreed, response) = agree(headers, &[], &PROTOCOLS)?;
    let is_base64 = agreed == Agreed::WebSocket(BASE64);
    let run = Box::pin(async move {
        match upgrade.await {
            Ok(upgraded) => send(TokioIo::new(upgraded), data, cut, is_base64).await,
            Err(error) => tracing::debug!(err = %error, "failed to upgrade the client's connection"),
        }
    });
    Ok(Upgrade { response, run })
}

async fn send(io: impl Pipe + 'static, mut data: impl Stream<Item = Bytes> + Unpin, cut: Cut, is_base64: bool) {
    let (mut sink, mut source) = accept(io).await.split();
    loop {
        tokio::select! {
            bytes = data.next() => {
                let Some(bytes) = bytes else {
                    let _ = sink.send(goodbye()).await;
                    return;
                };
                for message in messages(bytes, cut, is_base64) {
                    if sink.feed(message).await.is_err() {
                        return;
                    }
                }
                if sink.flush().await.is_err() {
                    return;
                }
            }
            // Nothing is expected but pings, which are answered here, and the end.
            arrived = source.next() => if !matches!(arrived, Some(Ok(ref message)) if !message.is_close()) {
                return;
            },
        }
    }
}

fn messages(bytes: Bytes, cut: Cut, is_base64: bool) -> Vec<Message> {
    match cut {
        Cut::AsItComes if is_base64 => vec![Message::text(STANDARD.encode(&bytes))],
        Cut::AsItComes => vec![Message::binary(bytes)],
        Cut::Lines => {
            let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
            lines
                .map(|line| Message::text(String::from_utf8_lossy(line).into_owned()))
                .collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_of_it_and_goodbye() {
        for (cut, is_base64, expected) in [
            (
                Cut::AsItComes,
                false,
                vec![Message::binary(b"a\nb\n".as_slice()), Message::binary(b"c".as_slice())],
            ),
            (
                Cut::AsItComes,
                true,
                vec![Message::text("YQpiCg=="), Message::text("Yw==")],
            ),
            (
                Cut::Lines,
                false,
                vec![Message::text("a"), Message::text("b"), Message::text("c")],
            ),
        ] {
            let (near, far) = tokio::io::duplex(1 << 10);
            let data = futures::stream::iter([Bytes::from_static(b"a\nb\n"), Bytes::from_static(b"c")]);
            let sending = tokio::spawn(send(near, data, cut, is_base64));
            let role = tokio_tungstenite::tungstenite::protocol::Role::Client;
            let client = tokio_tungstenite::WebSocketStream::from_raw_socket(far, role, None).await;
            let got: Vec<Message> = client.filter_map(|m| futures::future::ready(m.ok())).collect().await;
            let (last, rest) = got.split_last().unwrap();
            assert!(last.is_close(), "{cut:?}: {got:?}");
            assert_eq!(rest, expected, "{cut:?}");
            sending.await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_client_that_leaves_ends_it() {
        let (near, far) = tokio::io::duplex(1 << 10);
        let sending = tokio::spawn(send(near, futures::stream::pending(), Cut::Lines, false));
        drop(far);
        sending.await.unwrap();
    }
}
