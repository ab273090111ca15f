//! Kubernetes' use of WebSocket: numbered channels in one connection, or any byte stream through it.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::stream::{SplitSink, SplitStream};
use futures::{Sink, SinkExt, Stream, StreamExt};
use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, ReadHalf, WriteHalf, duplex, split,
};
use tokio::sync::{mpsc, watch};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::Pipe;

/// Of each channel, each way.
const CHANNEL_BUFFER_BYTES: usize = 64 << 10;
/// The payload of a message we write.
const MESSAGE_BYTES: usize = 32 << 10;
/// Of a message we read, as Kubernetes has it.
const MESSAGE_BYTES_MAX: usize = 32 << 20;
/// Messages of all channels that wait to be written.
const QUEUED_MAX: usize = 4;
/// After our goodbye, how long to wait for the other side's.
const LINGER: Duration = Duration::from_secs(5);
/// While we do not read, how often to write something: only a write finds out whether the peer is still there.
const PROOF_OF_LIFE: Duration = Duration::from_secs(30);
/// Instead of a channel's number: the next byte is a channel that ends.
const CLOSE_SIGNAL: u8 = 255;

/// Makes a WebSocket of a connection whose HTTP handshake is done.
pub(crate) async fn accept<T: Pipe>(io: T) -> WebSocketStream<T> {
    let config = WebSocketConfig::default()
        .max_message_size(Some(MESSAGE_BYTES_MAX))
        .max_frame_size(Some(MESSAGE_BYTES_MAX))
        .max_write_buffer_size(MESSAGE_BYTES_MAX);
    WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await
}

/// How channels are put into messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChannelFormat {
    /// Text messages with the number as a digit and the data in base64, instead of binary ones.
    pub base64: bool,
    /// The client can end a channel (version 5).
    pub close_signal: bool,
}

impl ChannelFormat {
    pub(crate) fn of(protocol: &str) -> Self {
        ChannelFormat {
            base64: protocol.ends_with("base64.channel.k8s.io"),
            close_signal: protocol == "v5.channel.k8s.io",
        }
    }

    fn encode(self, channel: u8, data: &[u8]) -> Message {
        if self.base64 {
            let mut text = String::with_capacity(1 + data.len().div_ceil(3) * 4);
            text.push(char::from(b'0' + channel));
            STANDARD.encode_string(data, &mut text);
            return Message::text(text);
        }
        let mut bytes = Vec::with_capacity(data.len() + 1);
        bytes.push(channel);
        bytes.extend_from_slice(data);
        Message::binary(bytes)
    }

    fn decode(self, message: Bytes) -> Result<Arrival, &'static str> {
        let Some((first, rest)) = message.split_first() else {
            return Ok(Arrival::Nothing);
        };
        if self.close_signal && *first == CLOSE_SIGNAL {
            return match rest {
                [channel] => Ok(Arrival::End(*channel)),
                _ => Err("a single channel byte should follow the stream close signal"),
            };
        }
        if !self.base64 {
            return Ok(Arrival::Data(*first, message.slice(1..)));
        }
        let data = STANDARD.decode(rest).map_err(|_| "the message is not valid base64")?;
        Ok(Arrival::Data(first.wrapping_sub(b'0'), data.into()))
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Arrival {
    Nothing,
    Data(u8, Bytes),
    End(u8),
}

/// The channels of a connection: a pipe for each number below `count`, and what tells when the client has gone. The
/// connection is closed when all pipes are dropped. An empty message on the channel `greeting` tells clients that
/// the connection is made.
pub(crate) fn channels<T: Pipe + 'static>(
    socket: WebSocketStream<T>,
    format: ChannelFormat,
    count: u8,
    greeting: Option<u8>,
) -> (Vec<DuplexStream>, watch::Receiver<bool>) {
    let (pipes, inner): (Vec<_>, Vec<_>) = (0..count).map(|_| duplex(CHANNEL_BUFFER_BYTES)).unzip();
    let (sources, sinks): (Vec<_>, Vec<_>) = inner.into_iter().map(split).unzip();
    let (ended, closed) = watch::channel(false);
    tokio::spawn(async move {
        let (sink, source) = socket.split();
        let stalled = AtomicBool::new(false);
        let writing = write(sink, sources, format, greeting, &stalled);
        let reading = read(source, sinks, format, &stalled);
        tokio::pin!(writing, reading);
        tokio::select! {
            () = &mut reading => {}
            written = &mut writing => {
                if written.is_ok() {
                    let _ = tokio::time::timeout(LINGER, reading).await;
                }
            }
        }
        ended.send_replace(true);
    });
    (pipes, closed)
}

async fn read<T: Pipe>(
    mut source: SplitStream<WebSocketStream<T>>,
    sinks: Vec<WriteHalf<DuplexStream>>,
    format: ChannelFormat,
    stalled: &AtomicBool,
) {
    let mut sinks: Vec<_> = sinks.into_iter().map(Some).collect();
    while let Some(Ok(message)) = source.next().await {
        let message = match message {
            Message::Binary(bytes) => bytes,
            Message::Text(text) => text.into(),
            Message::Close(_) => return,
            _ => continue,
        };
        // What is for a channel that does not exist, or whose owner has gone, is thrown away.
        match format.decode(message) {
            Ok(Arrival::Data(channel, data)) => {
                if let Some(Some(sink)) = sinks.get_mut(usize::from(channel)) {
                    stalled.store(true, Ordering::Relaxed);
                    let _ = sink.write_all(&data).await;
                    stalled.store(false, Ordering::Relaxed);
                }
            }
            Ok(Arrival::End(channel)) => {
                if let Some(mut sink) = sinks.get_mut(usize::from(channel)).and_then(Option::take) {
                    let _ = sink.shutdown().await;
                }
            }
            Ok(Arrival::Nothing) => {}
            Err(error) => {
                tracing::debug!(err = error, "closed WebSocket connection after a protocol error");
                return;
            }
        }
    }
}

/// Writes what the owners of the channels write until all have ended, then says goodbye.
async fn write<T: Pipe>(
    mut sink: SplitSink<WebSocketStream<T>, Message>,
    sources: Vec<ReadHalf<DuplexStream>>,
    format: ChannelFormat,
    greeting: Option<u8>,
    stalled: &AtomicBool,
) -> Result<(), Error> {
    let (queue, mut messages) = mpsc::channel(QUEUED_MAX);
    let pumps = sources.into_iter().enumerate().map(|(channel, mut source)| {
        let queue = queue.clone();
        async move {
            let mut buffer = vec![0; MESSAGE_BYTES];
            while let Ok(read @ 1..) = source.read(&mut buffer).await {
                if queue.send(format.encode(channel as u8, &buffer[..read])).await.is_err() {
                    return;
                }
            }
        }
    });
    let pumps = futures::future::join_all(pumps);
    drop(queue);
    let pumped = async {
        pumps.await;
        // The queue ends with them, and then `written` does.
        std::future::pending::<std::convert::Infallible>().await
    };
    let written = async {
        if let Some(channel) = greeting {
            sink.send(format.encode(channel, b"")).await?;
        }
        loop {
            match tokio::time::timeout(PROOF_OF_LIFE, messages.recv()).await {
                Ok(Some(message)) => sink.send(message).await?,
                Ok(None) => break,
                Err(_) if stalled.load(Ordering::Relaxed) => sink.send(Message::Ping(Bytes::new())).await?,
                Err(_) => {}
            }
        }
        sink.send(goodbye()).await?;
        sink.close().await
    };
    tokio::select! {
        outcome = written => outcome,
        never = pumped => match never {},
    }
}

/// A proper end. Clients take one without a status for a broken connection.
pub(crate) fn goodbye() -> Message {
    Message::Close(Some(CloseFrame {
        code: CloseCode::Normal,
        reason: Default::default(),
    }))
}

/// Any byte stream in the binary messages of a WebSocket.
pub(crate) struct Tunnel<T> {
    socket: WebSocketStream<T>,
    unread: Bytes,
    said_goodbye: bool,
}

impl<T> Tunnel<T> {
    pub(crate) fn new(socket: WebSocketStream<T>) -> Self {
        Tunnel {
            socket,
            unread: Bytes::new(),
            said_goodbye: false,
        }
    }
}

fn io_error(error: Error) -> io::Error {
    match error {
        Error::Io(error) => error,
        Error::ConnectionClosed | Error::AlreadyClosed => io::ErrorKind::BrokenPipe.into(),
        other => io::Error::new(io::ErrorKind::InvalidData, other),
    }
}

impl<T: Pipe> AsyncRead for Tunnel<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        while self.unread.is_empty() {
            match std::task::ready!(Pin::new(&mut self.socket).poll_next(cx)) {
                Some(Ok(Message::Binary(bytes))) => self.unread = bytes,
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
                Some(Ok(Message::Close(_))) | None => return Poll::Ready(Ok(())),
                Some(Ok(Message::Text(_))) => {
                    return Poll::Ready(Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        "a text message in a tunnel",
                    )));
                }
                Some(Err(error)) => return Poll::Ready(Err(io_error(error))),
            }
        }
        let count = self.unread.len().min(buf.remaining());
        buf.put_slice(&self.unread.split_to(count));
        Poll::Ready(Ok(()))
    }
}

impl<T: Pipe> AsyncWrite for Tunnel<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        std::task::ready!(Pin::new(&mut self.socket).poll_ready(cx)).map_err(io_error)?;
        let count = buf.len().min(MESSAGE_BYTES);
        let message = Message::binary(Bytes::copy_from_slice(&buf[..count]));
        Pin::new(&mut self.socket).start_send(message).map_err(io_error)?;
        Poll::Ready(Ok(count))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx).map_err(io_error)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.said_goodbye {
            std::task::ready!(Pin::new(&mut self.socket).poll_ready(cx)).map_err(io_error)?;
            self.said_goodbye = true;
            Pin::new(&mut self.socket).start_send(goodbye()).map_err(io_error)?;
        }
        Pin::new(&mut self.socket).poll_close(cx).map_err(io_error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_carry_channels() {
        let (plain, v5) = (
            ChannelFormat::of("v4.channel.k8s.io"),
            ChannelFormat::of("v5.channel.k8s.io"),
        );
        let base64 = ChannelFormat::of("v4.base64.channel.k8s.io");
        assert_eq!(plain.encode(1, b"hi"), Message::binary(b"\x01hi".as_slice()));
        assert_eq!(base64.encode(1, b"hi\n"), Message::text("1aGkK"));
        for (format, bytes, arrival) in [
            (
                plain,
                b"\x00hi".as_slice(),
                Ok(Arrival::Data(0, Bytes::from_static(b"hi"))),
            ),
            (plain, b"", Ok(Arrival::Nothing)),
            (plain, b"\xff\x00", Ok(Arrival::Data(255, Bytes::from_static(b"\0")))),
            (v5, b"\xff\x00", Ok(Arrival::End(0))),
            (
                v5,
                b"\xff",
                Err("a single channel byte should follow the stream close signal"),
            ),
            (base64, b"0aGkK", Ok(Arrival::Data(0, Bytes::from_static(b"hi\n")))),
            (base64, b"0\xff", Err("the message is not valid base64")),
        ] {
            assert_eq!(format.decode(Bytes::from_static(bytes)), arrival);
        }
    }
}
