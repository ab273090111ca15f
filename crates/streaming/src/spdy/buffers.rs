//! What lies between the owners of streams and the connection's task: an inbox per stream and one outbox. Both are bounded,
//! and both keep order: what is done first is seen first, also across streams.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Buf, Bytes};
use parking_lot::Mutex;
use tokio::io::ReadBuf;
use tokio::sync::Notify;

use super::frame::{Frame, GOAWAY_OK, GOAWAY_PROTOCOL_ERROR, ID_MASK, ProtocolError};
use super::headers::Headers;

/// What may wait for the owner of a stream.
const INBOX_BYTES_MAX: usize = 64 << 10;
/// What a piece costs besides its bytes, so that many tiny ones fill an inbox too.
const PIECE_BYTES: usize = 64;
/// The payload of a data frame we write.
const DATA_BYTES_MAX: usize = 32 << 10;
/// What may wait to be written, of all streams together.
const OUTBOX_BYTES_MAX: usize = 256 << 10;
/// What is written at once.
const BATCH_BYTES: usize = 64 << 10;
/// Answers (replies, pings, resets) that may wait to be written. Whoever provokes more without reading them is cut off.
const ANSWERS_MAX: usize = 1024;

/// While we do not read, how often to write something: only a write finds out whether the peer is still there.
const PROOF_OF_LIFE: Duration = Duration::from_secs(30);

/// How the other side's direction of a stream stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Open,
    Finished,
    Reset,
}

/// What has come for a stream and was not read yet.
pub(super) struct Inbox(Mutex<InboxState>);

struct InboxState {
    pieces: VecDeque<Bytes>,
    /// What the pieces weigh.
    weight: usize,
    end: End,
    /// The other side, or the end of the connection, has reset the stream: writing is over too.
    cut: bool,
    /// The owner is gone: what comes is thrown away.
    dropped: bool,
    reader: Option<Waker>,
    deliverer: Option<Waker>,
}

impl Inbox {
    pub(super) fn new() -> Self {
        Inbox(Mutex::new(InboxState {
            pieces: VecDeque::new(),
            weight: 0,
            end: End::Open,
            cut: false,
            dropped: false,
            reader: None,
            deliverer: None,
        }))
    }

    pub(super) fn is_cut(&self) -> bool {
        self.0.lock().cut
    }

    /// Waits until there is room for another piece, or nobody wants it.
    pub(super) fn poll_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.0.lock();
        if state.weight < INBOX_BYTES_MAX || state.dropped {
            return Poll::Ready(());
        }
        state.deliverer = Some(cx.waker().clone());
        Poll::Pending
    }

    pub(super) fn push(&self, data: Bytes) {
        let mut state = self.0.lock();
        if state.dropped || state.end != End::Open || data.is_empty() {
            return;
        }
        state.weight += data.len() + PIECE_BYTES;
        state.pieces.push_back(data);
        wake(state.reader.take());
    }

    /// Nothing more will come.
    pub(super) fn finish(&self, end: End) {
        let mut state = self.0.lock();
        state.cut |= end == End::Reset;
        // A reset after a proper end changes nothing for who reads.
        if state.end == End::Open {
            state.end = end;
        }
        wake(state.reader.take());
    }

    pub(super) fn poll_read(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut state = self.0.lock();
        let before = buf.filled().len();
        while buf.remaining() > 0 {
            let Some(piece) = state.pieces.front_mut() else { break };
            let count = piece.len().min(buf.remaining());
            buf.put_slice(&piece[..count]);
            piece.advance(count);
            state.weight -= count;
            if state.pieces.front().is_some_and(Bytes::is_empty) {
                state.pieces.pop_front();
                state.weight -= PIECE_BYTES;
            }
            wake(state.deliverer.take());
        }
        if buf.filled().len() > before || buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        match state.end {
            End::Open => {
                state.reader = Some(cx.waker().clone());
                Poll::Pending
            }
            End::Finished => Poll::Ready(Ok(())),
            End::Reset => Poll::Ready(Err(io::Error::new(
                io::ErrorKind::ConnectionReset,
                "the stream was reset",
            ))),
        }
    }

    /// The owner is gone. Returns how the other side stood.
    pub(super) fn abandon(&self) -> End {
        let mut state = self.0.lock();
        state.dropped = true;
        state.pieces.clear();
        state.weight = 0;
        wake(state.deliverer.take());
        state.end
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// Frames that wait to be written.
pub(super) struct Outbox {
    state: Mutex<OutboxState>,
    /// Rings for the writer.
    ready: Notify,
    /// The connection is not read, since somebody's inbox is full.
    stalled: AtomicBool,
    /// A ping's number must be of our side.
    ping: u32,
    proof_of_life: Duration,
}

struct OutboxState {
    answers: VecDeque<Frame>,
    frames: VecDeque<Frame>,
    /// The payload of the frames.
    bytes: usize,
    /// The number of the next stream we open.
    next: u32,
    /// Owners that wait for room.
    waiting: Vec<Waker>,
    /// Set when what is here is the last: why the connection is left.
    finished: Option<u32>,
    /// The connection has ended.
    closed: bool,
}

impl Outbox {
    pub(super) fn new(first_stream: u32) -> Self {
        Outbox::with_proof_of_life(first_stream, PROOF_OF_LIFE)
    }

    fn with_proof_of_life(first_stream: u32, proof_of_life: Duration) -> Self {
        Outbox {
            state: Mutex::new(OutboxState {
                answers: VecDeque::new(),
                frames: VecDeque::new(),
                bytes: 0,
                next: first_stream,
                waiting: Vec::new(),
                finished: None,
                closed: false,
            }),
            ready: Notify::new(),
            stalled: AtomicBool::new(false),
            ping: first_stream,
            proof_of_life,
        }
    }

    /// Queues the opening of a stream, with its number taken in the same moment: numbers must go out in order. `add`
    /// takes the number and may decline.
    pub(super) fn open<T>(&self, headers: Headers, add: impl FnOnce(u32) -> Option<T>) -> Option<T> {
        let mut state = self.state.lock();
        if state.closed || state.next > ID_MASK {
            return None;
        }
        let stream = state.next;
        let added = add(stream)?;
        state.next += 2;
        state.frames.push_back(Frame::SynStream {
            stream,
            fin: false,
            headers,
        });
        self.ready.notify_one();
        Some(added)
    }

    /// Queues data; waits while there is too much.
    pub(super) fn poll_data(&self, cx: &mut Context<'_>, stream: u32, data: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = self.state.lock();
        if state.closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if state.bytes >= OUTBOX_BYTES_MAX {
            if !state.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                state.waiting.push(cx.waker().clone());
            }
            return Poll::Pending;
        }
        let count = data.len().min(DATA_BYTES_MAX);
        state.bytes += count;
        state.frames.push_back(Frame::Data {
            stream,
            fin: false,
            data: Bytes::copy_from_slice(&data[..count]),
        });
        self.ready.notify_one();
        Poll::Ready(Ok(count))
    }

    /// Queues the end of a stream, of which there are at most two for each.
    pub(super) fn push_end(&self, frame: Frame) {
        let mut state = self.state.lock();
        if !state.closed {
            state.frames.push_back(frame);
            self.ready.notify_one();
        }
    }

    pub(super) fn set_stalled(&self, stalled: bool) {
        self.stalled.store(stalled, Ordering::Relaxed);
    }

    pub(super) fn answer(&self, frame: Frame) -> Result<(), ProtocolError> {
        let mut state = self.state.lock();
        if state.answers.len() >= ANSWERS_MAX {
            return Err(ProtocolError::Flood);
        }
        state.answers.push_back(frame);
        self.ready.notify_one();
        Ok(())
    }

    /// All owners are gone: what is here is the last.
    pub(super) fn finish(&self) {
        self.state.lock().finished.get_or_insert(GOAWAY_OK);
        self.ready.notify_one();
    }

    /// The other side's frames are wrong: nothing is left but to say so.
    pub(super) fn give_up(&self) {
        self.close();
        self.state.lock().finished = Some(GOAWAY_PROTOCOL_ERROR);
        self.ready.notify_one();
    }

    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.frames.clear();
        state.bytes = 0;
        state.answers.clear();
        state.waiting.drain(..).for_each(Waker::wake);
    }

    /// The next frames to write, answers first, or why to leave when all are written.
    pub(super) async fn batch(&self) -> Result<Vec<Frame>, u32> {
        loop {
            {
                let mut state = self.state.lock();
                let mut batch: Vec<Frame> = state.answers.drain(..).collect();
                let mut bytes = 0;
                while bytes < BATCH_BYTES {
                    let Some(frame) = state.frames.pop_front() else { break };
                    if let Frame::Data { data, .. } = &frame {
                        bytes += data.len();
                    }
                    batch.push(frame);
                }
                state.bytes -= bytes;
                if state.bytes < OUTBOX_BYTES_MAX {
                    state.waiting.drain(..).for_each(Waker::wake);
                }
                if !batch.is_empty() {
                    return Ok(batch);
                }
                if let Some(why) = state.finished {
                    return Err(why);
                }
            }
            let waited = tokio::time::timeout(self.proof_of_life, self.ready.notified()).await;
            if waited.is_err() && self.stalled.load(Ordering::Relaxed) {
                return Ok(vec![Frame::Ping { id: self.ping }]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[tokio::test]
    async fn a_connection_that_is_not_read_is_written_now_and_then() {
        let outbox = Outbox::with_proof_of_life(2, Duration::from_millis(1));
        outbox.set_stalled(true);
        assert_eq!(outbox.batch().await, Ok(vec![Frame::Ping { id: 2 }]));
        outbox.set_stalled(false);
        let quiet = tokio::time::timeout(Duration::from_millis(20), outbox.batch()).await;
        assert!(quiet.is_err(), "what is read needs no proof");
        outbox.finish();
        assert_eq!(outbox.batch().await, Err(GOAWAY_OK));
    }

    #[test]
    fn both_boxes_are_bounded() {
        let mut cx = Context::from_waker(Waker::noop());
        let (inbox, outbox) = (Inbox::new(), Outbox::new(1));
        let mut pushed = 0;
        while inbox.poll_room(&mut cx).is_ready() {
            inbox.push(Bytes::from_static(b"x"));
            pushed += 1;
        }
        assert_eq!(
            pushed,
            INBOX_BYTES_MAX.div_ceil(PIECE_BYTES + 1),
            "tiny pieces count for more than their bytes"
        );
        let mut taken = 0;
        while let Poll::Ready(count) = outbox.poll_data(&mut cx, 1, &[0; 100_000]) {
            taken += count.unwrap();
        }
        assert_eq!(taken, OUTBOX_BYTES_MAX);
        outbox.close();
        assert!(
            matches!(outbox.poll_data(&mut cx, 1, b"x"), Poll::Ready(Err(_))),
            "who waits learns of the end"
        );
        inbox.abandon();
        assert!(inbox.poll_room(&mut cx).is_ready(), "nobody waits for who is gone");
    }

    #[test]
    fn answers_nobody_reads_are_bounded() {
        let outbox = Outbox::new(1);
        let answered = (0..)
            .take_while(|_| outbox.answer(Frame::Ping { id: 1 }).is_ok())
            .count();
        assert_eq!(answered, ANSWERS_MAX);
    }
}
