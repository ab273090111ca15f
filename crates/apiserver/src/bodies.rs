//! Reading what clients send: of bounded size, at no less than some rate, and not more at once than there is memory for.
//!
//! Small bodies are read at once. Larger ones wait for their share of the memory before the rest of them is read, so that
//! the network holds them back and not the server's memory; whoever sends slowly loses its share.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::Body as _;
use http_body_util::BodyExt;
use orlop_api::Status;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use crate::connect::AnyBody;

/// What is read of every body without asking for memory. What is larger is also worked on aside (`heavy`).
pub(crate) const SMALL: usize = 32 * 1024;
/// Bodies may be slow in the beginning,
const PATIENCE: Duration = Duration::from_secs(5);
/// but must come at this many bytes a second on the whole.
const RATE_FLOOR: usize = 16 * 1024;
/// How long a large body waits for memory before it is refused.
const MEMORY_WAIT: Duration = Duration::from_secs(30);
/// Of a body that nobody wants, for which a client still waits to have sent it: read so that it sees the answer.
const DRAINED_MAX: usize = 16 << 20;
const DRAIN: Duration = Duration::from_secs(5);
const DRAINS_MAX: usize = 32;
/// Bodies that wait, unread, until one of those is done. Whoever floods the server with bodies is held up here: each
/// connection that were closed at once would come back as another TLS handshake.
const UNREAD_MAX: usize = 1024;
/// Nobody waits for the rest of such a body: all of them together are read at about 12 MiB a second, in steps of this
/// size, so that refused bodies by the dozen leave the processor to those who are served.
const DRAIN_STEP: usize = 64 * 1024;
const DRAIN_PAUSE: Duration = Duration::from_millis(5);

/// Memory for large bodies of some users, in bytes.
#[derive(Clone)]
pub(crate) struct Memory(Arc<Semaphore>);

impl Memory {
    pub(crate) fn new(bytes: usize) -> Memory {
        Memory(Arc::new(Semaphore::new(bytes)))
    }

    async fn take(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Status> {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        match timeout(MEMORY_WAIT, self.0.clone().acquire_many_owned(bytes)).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(Status::too_many_requests(
                "Too many requests, please try again later.",
                1,
            )),
        }
    }
}

/// A body and the memory it was granted.
#[derive(Default)]
pub(crate) struct Content {
    pub bytes: Bytes,
    _memory: Option<OwnedSemaphorePermit>,
}

/// Reads the whole of a body of at most `limit` bytes. What is left of one that is not read stays in `body`.
pub(crate) async fn read(body: &mut AnyBody, limit: usize, memory: &Memory) -> Result<Content, Status> {
    let too_large = || Status::too_large(format!("Request entity too large: limit is {limit}"));
    let declared = body.size_hint().exact();
    if declared.is_some_and(|bytes| bytes > limit as u64) {
        return Err(too_large());
    }
    let most = declared.map_or(limit, |bytes| bytes as usize);
    let mut gathered = Gathered::default();
    let mut granted = None;
    let began = Instant::now();
    // Time that was not the client's.
    let mut waited = Duration::ZERO;
    loop {
        let allowed = PATIENCE.saturating_add(Duration::from_secs_f64(gathered.len() as f64 / RATE_FLOOR as f64));
        let taken = began.elapsed().saturating_sub(waited);
        let frame = timeout(allowed.saturating_sub(taken), body.frame())
            .await
            .map_err(|_| Status::timeout("the request body did not arrive in time"))?;
        let Some(frame) = frame else {
            return Ok(Content {
                bytes: gathered.done(),
                _memory: granted,
            });
        };
        let frame = frame.map_err(|e| Status::bad_request(format!("the request body could not be read: {e}")))?;
        let Ok(data) = frame.into_data() else { continue };
        if gathered.len() + data.len() > limit {
            return Err(too_large());
        }
        gathered.add(data);
        if granted.is_none() && gathered.len() > SMALL {
            let asked = Instant::now();
            granted = Some(memory.take(most.max(gathered.len())).await?);
            waited = asked.elapsed();
        }
    }
}

/// The frames of a body: most have one, which is not copied.
#[derive(Default)]
struct Gathered {
    first: Bytes,
    all: Option<BytesMut>,
}

impl Gathered {
    fn len(&self) -> usize {
        self.all.as_ref().map_or(self.first.len(), BytesMut::len)
    }

    fn add(&mut self, data: Bytes) {
        match &mut self.all {
            Some(all) => all.extend_from_slice(&data),
            None if self.first.is_empty() => self.first = data,
            None => {
                let mut all = BytesMut::with_capacity(self.first.len() + data.len());
                all.extend_from_slice(&self.first);
                all.extend_from_slice(&data);
                self.all = Some(all);
            }
        }
    }

    fn done(self) -> Bytes {
        self.all.map_or(self.first, BytesMut::freeze)
    }
}

/// Reads on, for a while, what a client sends although it is answered already: one that sees its stream or connection end
/// before it has sent all does not look for an answer.
pub(crate) fn drain(mut body: AnyBody) {
    static UNREAD: Semaphore = Semaphore::const_new(UNREAD_MAX);
    static DRAINS: Semaphore = Semaphore::const_new(DRAINS_MAX);
    /// Whoever holds it reads the next step; fair, so each body gets its part.
    static STEP: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    if body.is_end_stream() {
        return;
    }
    let Ok(unread) = UNREAD.try_acquire() else { return };
    tokio::spawn(async move {
        let _unread = unread;
        let all = async {
            let _permit = DRAINS.acquire().await;
            let (mut left, mut step) = (DRAINED_MAX, 0);
            while let Some(Ok(frame)) = body.frame().await {
                let length = frame.data_ref().map_or(0, Bytes::len);
                match left.checked_sub(length) {
                    Some(rest) => left = rest,
                    None => break,
                }
                step += length;
                if step >= DRAIN_STEP {
                    step = 0;
                    let _next = STEP.lock().await;
                    tokio::time::sleep(DRAIN_PAUSE).await;
                }
            }
        };
        let _ = tokio::time::timeout(DRAIN, all).await;
    });
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body::Frame;
    use http_body_util::StreamBody;

    use super::*;

    /// A body of these pieces; each comes this long after the one before.
    fn body(pieces: Vec<usize>, pause: Duration) -> AnyBody {
        let pieces = futures::stream::iter(pieces);
        let frames = futures::StreamExt::then(pieces, move |bytes| async move {
            tokio::time::sleep(pause).await;
            Ok::<_, Infallible>(Frame::data(Bytes::from(vec![b'x'; bytes])))
        });
        StreamBody::new(frames).map_err(|never| match never {}).boxed_unsync()
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_come_whole_or_not_at_all() {
        let memory = Memory::new(1 << 20);
        for pieces in [vec![], vec![10], vec![10, 0, 20], vec![SMALL, SMALL, 1]] {
            let wanted: usize = pieces.iter().sum();
            let read = read(&mut body(pieces, Duration::ZERO), 1 << 20, &memory).await;
            assert_eq!(read.unwrap().bytes.len(), wanted);
        }
        let mut large = body(vec![600, 600], Duration::ZERO);
        let status = read(&mut large, 1000, &memory).await.err().unwrap();
        assert_eq!((status.code, &*status.reason), (413, "RequestEntityTooLarge"));
        let mut declared = http_body_util::Full::new(Bytes::from(vec![0; 1001]))
            .map_err(|never| match never {})
            .boxed_unsync();
        let status = read(&mut declared, 1000, &memory).await.err().unwrap();
        assert_eq!(status.code, 413);
        assert_eq!(declared.size_hint().exact(), Some(1001), "nothing of it is read");
    }

    #[tokio::test(start_paused = true)]
    async fn a_trickle_is_cut_off_and_a_steady_stream_is_not() {
        let memory = Memory::new(1 << 20);
        let began = Instant::now();
        let trickle = read(
            &mut body(vec![1; 100_000], Duration::from_millis(100)),
            1 << 20,
            &memory,
        )
        .await;
        assert_eq!(trickle.err().unwrap().code, 504);
        assert!(began.elapsed() < Duration::from_secs(6));
        let steady = body(vec![4096; 100], Duration::from_millis(150));
        let mut steady = steady;
        assert!(read(&mut steady, 1 << 20, &memory).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn large_bodies_wait_for_memory_and_small_ones_never() {
        let memory = Memory::new(100_000);
        let held = read(&mut body(vec![60_000], Duration::ZERO), 100_000, &memory)
            .await
            .unwrap();
        let small = read(&mut body(vec![SMALL], Duration::ZERO), 100_000, &memory).await;
        assert!(small.is_ok());
        let waiting = tokio::spawn({
            let memory = memory.clone();
            async move { read(&mut body(vec![60_000], Duration::ZERO), 100_000, &memory).await }
        });
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert!(!waiting.is_finished());
        drop(held);
        let held = waiting.await.unwrap().unwrap();
        let refused = read(&mut body(vec![60_000], Duration::ZERO), 100_000, &memory).await;
        assert_eq!(refused.err().unwrap().code, 429);
        drop(held);
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_that_nobody_reads_keep_their_connections_for_a_while() {
        let alive = Arc::new(());
        for _ in 0..2 * DRAINS_MAX {
            let alive = alive.clone();
            let endless = futures::stream::pending::<Result<Frame<Bytes>, Infallible>>();
            let body = StreamBody::new(endless).map_err(move |never| {
                let _held = &alive;
                match never {}
            });
            drain(body.boxed_unsync());
        }
        tokio::time::sleep(DRAIN / 2).await;
        assert_eq!(Arc::strong_count(&alive), 1 + 2 * DRAINS_MAX, "none is dropped at once");
        tokio::time::sleep(DRAIN).await;
        assert_eq!(Arc::strong_count(&alive), 1, "nobody is waited for any longer");
    }
}
