//! One connection and its streams.
//!
//! A connection is one task (`drive`) that reads and writes the transport; streams have none. A slow owner fills its inbox
//! and the connection is not read on; a slow connection fills the outbox and owners wait.
//!
//! A stream is ended in three ways. Shutting it down ends one direction (FIN). Dropping it while the other side may still
//! send says that nobody listens any more (RST_STREAM). The end of the connection resets all streams. What was
//! written before is delivered in every case but the last. When the last [`Stream`] and [`Connection`] are gone, what is
//! queued is written, the other side is told to go away, and the transport is closed.

use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf, split};
use tokio::sync::{mpsc, oneshot, watch};

use super::buffers::{End, Inbox, Outbox};
use super::frame::{Decoder, Encoder, Frame, ProtocolError, RESET_CANCEL, RESET_PROTOCOL_ERROR, RESET_REFUSED};
use super::headers::Headers;
use crate::Pipe;

const READ_BYTES: usize = 32 << 10;
/// Streams open at once; more are refused.
const STREAMS_MAX: usize = 1024;
/// Streams that wait to be accepted.
const INCOMING_MAX: usize = 16;
/// How long the other side may take to accept a stream.
const REPLY_WAIT: Duration = Duration::from_secs(30);
/// After the last byte is written, how long to read on: closing with unread input would destroy what the other side has
/// not read yet.
const LINGER: Duration = Duration::from_secs(5);
/// How long to try to say that the other side's frames are wrong.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Which end of the connection we are: clients' streams have odd numbers, servers' even ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

/// A stream that the other side opened.
pub(crate) struct Incoming {
    pub headers: Headers,
    pub stream: Stream,
}

/// A connection's handle, cheap to clone.
#[derive(Clone)]
pub(crate) struct Connection(Arc<Shared>);

/// Held by all handles and streams; the connection is finished when it is dropped.
struct Shared {
    outbox: Arc<Outbox>,
    table: Arc<Table>,
    closed: watch::Receiver<bool>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.outbox.finish();
    }
}

/// The open streams; `None` once the connection has ended.
struct Table(Mutex<Option<HashMap<u32, Entry>>>);

struct Entry {
    inbox: Arc<Inbox>,
    /// Taken by the reply to our SYN_STREAM.
    reply: Option<oneshot::Sender<()>>,
}

impl Table {
    /// False when there are too many or the connection has ended.
    fn insert(&self, stream: u32, entry: Entry) -> bool {
        match &mut *self.0.lock() {
            Some(entries) if entries.len() < STREAMS_MAX => entries.insert(stream, entry).is_none(),
            _ => false,
        }
    }

    fn inbox(&self, stream: u32) -> Option<Arc<Inbox>> {
        self.0.lock().as_ref()?.get(&stream).map(|entry| entry.inbox.clone())
    }

    fn take_reply(&self, stream: u32) -> Option<oneshot::Sender<()>> {
        self.0.lock().as_mut()?.get_mut(&stream)?.reply.take()
    }

    fn remove(&self, stream: u32) -> Option<Entry> {
        self.0.lock().as_mut()?.remove(&stream)
    }

    fn shut(&self) {
        for entry in self.0.lock().take().into_iter().flatten() {
            entry.1.inbox.finish(End::Reset);
        }
    }
}

impl Connection {
    /// Starts to carry streams over a transport. The receiver yields the streams that the other side opens; a client drops
    /// it, and refuses them by that.
    pub(crate) fn start(io: impl Pipe + 'static, side: Side) -> (Self, mpsc::Receiver<Incoming>) {
        let (incoming, accepted) = mpsc::channel(INCOMING_MAX);
        let (ended, closed) = watch::channel(false);
        let table = Arc::new(Table(Mutex::new(Some(HashMap::new()))));
        let outbox = Arc::new(Outbox::new(if side == Side::Client { 1 } else { 2 }));
        let shared = Arc::new(Shared {
            outbox: outbox.clone(),
            table: table.clone(),
            closed,
        });
        let reader = Reader {
            side,
            shared: Arc::downgrade(&shared),
            table,
            outbox,
            incoming,
            last: 0,
        };
        tokio::spawn(async move {
            let (table, outbox) = (reader.table.clone(), reader.outbox.clone());
            drive(io, reader).await;
            table.shut();
            outbox.close();
            ended.send_replace(true);
        });
        (Connection(shared), accepted)
    }

    /// Opens a stream and waits until the other side has accepted it: what is sent earlier may be dropped there.
    pub(crate) async fn open(&self, headers: Headers) -> io::Result<Stream> {
        let (reply, replied) = oneshot::channel();
        let stream = self.0.outbox.open(headers, |id| self.add(id, Some(reply)));
        let stream = stream.ok_or_else(|| io::Error::other("the connection does not accept more streams"))?;
        match tokio::time::timeout(REPLY_WAIT, replied).await {
            Ok(Ok(())) => Ok(stream),
            Ok(Err(_)) => Err(io::Error::new(io::ErrorKind::ConnectionReset, "the stream was refused")),
            Err(_) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the stream was not accepted in time",
            )),
        }
    }

    /// Returns when the connection has ended. Does not hold the connection open.
    pub(crate) fn closed(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut closed = self.0.closed.clone();
        async move {
            let _ = closed.wait_for(|ended| *ended).await;
        }
    }

    fn add(&self, id: u32, reply: Option<oneshot::Sender<()>>) -> Option<Stream> {
        let inbox = Arc::new(Inbox::new());
        let added = self.0.table.insert(
            id,
            Entry {
                inbox: inbox.clone(),
                reply,
            },
        );
        added.then(|| Stream {
            id,
            inbox,
            fin_sent: false,
            shared: self.0.clone(),
        })
    }
}

/// A byte stream both ways. Reading a stream that was reset gives an error, so that a cut never looks like an end.
pub(crate) struct Stream {
    id: u32,
    inbox: Arc<Inbox>,
    fin_sent: bool,
    shared: Arc<Shared>,
}

impl Stream {
    pub(crate) fn id(&self) -> u32 {
        self.id
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.inbox.poll_read(cx, buf)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.fin_sent || self.inbox.is_cut() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.shared.outbox.poll_data(cx, self.id, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.fin_sent && !self.inbox.is_cut() {
            self.fin_sent = true;
            self.shared.outbox.push_end(Frame::Data {
                stream: self.id,
                fin: true,
                data: Bytes::new(),
            });
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.shared.table.remove(self.id);
        let cut = self.inbox.is_cut();
        let end = self.inbox.abandon();
        if cut || (end == End::Finished && self.fin_sent) {
            return;
        }
        self.shared.outbox.push_end(match end {
            End::Finished => Frame::Data {
                stream: self.id,
                fin: true,
                data: Bytes::new(),
            },
            _ => Frame::Reset {
                stream: self.id,
                status: RESET_CANCEL,
            },
        });
    }
}

/// Carries the connection until one side ends it.
async fn drive(io: impl Pipe, mut reader: Reader) {
    let (source, sink) = split(io);
    let outbox = reader.outbox.clone();
    let writing = write(sink, &outbox);
    let reading = reader.run(source);
    tokio::pin!(writing, reading);
    let broken = tokio::select! {
        outcome = &mut reading => outcome,
        outcome = &mut writing => match outcome {
            Ok(()) => tokio::time::timeout(LINGER, &mut reading).await.unwrap_or(Ok(())),
            Err(error) => Err(Broken::Transport(error)),
        }
    };
    match broken {
        Ok(()) => {}
        Err(Broken::Transport(error)) => tracing::debug!(err = %error, "SPDY connection failed"),
        Err(Broken::Protocol(error)) => {
            tracing::debug!(err = %error, "closed SPDY connection after a protocol error");
            outbox.give_up();
            let _ = tokio::time::timeout(LAST_WORDS, writing).await;
        }
    }
}

enum Broken {
    Transport(io::Error),
    Protocol(ProtocolError),
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        Broken::Transport(error)
    }
}

impl From<ProtocolError> for Broken {
    fn from(error: ProtocolError) -> Self {
        Broken::Protocol(error)
    }
}

/// Writes frames until all who could send any are gone; then says goodbye.
async fn write(mut sink: impl AsyncWrite + Unpin, outbox: &Outbox) -> io::Result<()> {
    let (mut encoder, mut out) = (Encoder::new(), BytesMut::new());
    loop {
        let batch = outbox.batch().await;
        let last = batch.is_err();
        for frame in batch.unwrap_or_else(|status| vec![Frame::GoAway { last_stream: 0, status }]) {
            encoder.encode(&frame, &mut out);
        }
        sink.write_all(&out).await?;
        sink.flush().await?;
        out.clear();
        if last {
            return sink.shutdown().await;
        }
    }
}

/// The reading half of a connection.
struct Reader {
    side: Side,
    shared: Weak<Shared>,
    table: Arc<Table>,
    outbox: Arc<Outbox>,
    incoming: mpsc::Sender<Incoming>,
    /// The number of the last stream that the other side opened.
    last: u32,
}

impl Reader {
    async fn run(&mut self, mut source: impl AsyncRead + Unpin) -> Result<(), Broken> {
        let (mut decoder, mut input) = (Decoder::new(), BytesMut::with_capacity(READ_BYTES));
        loop {
            while let Some(frame) = decoder.decode(&mut input)? {
                if let Some(answer) = self.take(frame).await {
                    self.outbox.answer(answer)?;
                }
            }
            input.reserve(READ_BYTES);
            if (&mut source).take(READ_BYTES as u64).read_buf(&mut input).await? == 0 {
                return Ok(());
            }
        }
    }

    /// Does what a frame says and returns what to answer.
    async fn take(&mut self, frame: Frame) -> Option<Frame> {
        match frame {
            Frame::SynStream { stream, fin, headers } => return Some(self.accept(stream, fin, headers).await),
            Frame::SynReply { stream, fin } => {
                if let Some(reply) = self.table.take_reply(stream) {
                    let _ = reply.send(());
                }
                self.deliver(stream, Bytes::new(), fin).await;
            }
            Frame::Data { stream, fin, data } => self.deliver(stream, data, fin).await,
            Frame::Headers { stream, fin } => self.deliver(stream, Bytes::new(), fin).await,
            Frame::Reset { stream, .. } => {
                if let Some(entry) = self.table.remove(stream) {
                    entry.inbox.finish(End::Reset);
                }
            }
            Frame::Ping { id } if self.is_theirs(id) => return Some(Frame::Ping { id }),
            Frame::Ping { .. } | Frame::GoAway { .. } | Frame::Ignored => {}
        }
        None
    }

    fn is_theirs(&self, id: u32) -> bool {
        (id % 2 == 1) == (self.side == Side::Server)
    }

    async fn accept(&mut self, id: u32, fin: bool, headers: Headers) -> Frame {
        if !self.is_theirs(id) || id <= self.last {
            return Frame::Reset {
                stream: id,
                status: RESET_PROTOCOL_ERROR,
            };
        }
        self.last = id;
        let refusal = Frame::Reset {
            stream: id,
            status: RESET_REFUSED,
        };
        // Wait for a place before the stream exists, so that a refusal leaves nothing behind.
        let Ok(place) = self.incoming.reserve().await else {
            return refusal;
        };
        let Some(stream) = self
            .shared
            .upgrade()
            .and_then(|shared| Connection(shared).add(id, None))
        else {
            return refusal;
        };
        if fin {
            stream.inbox.finish(End::Finished);
        }
        // The owner can write from now on, and the reply still goes out first: the writer is this same task.
        place.send(Incoming { headers, stream });
        Frame::SynReply { stream: id, fin: false }
    }

    /// Hands data to a stream; what is for a stream that is gone is thrown away.
    async fn deliver(&self, stream: u32, data: Bytes, fin: bool) {
        let Some(inbox) = self.table.inbox(stream) else { return };
        if !data.is_empty() {
            self.outbox.set_stalled(true);
            poll_fn(|cx| inbox.poll_room(cx)).await;
            self.outbox.set_stalled(false);
            inbox.push(data);
        }
        if fin {
            inbox.finish(End::Finished);
        }
    }
}
