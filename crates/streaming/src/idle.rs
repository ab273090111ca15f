//! A transport that fails when nothing has passed over it for too long, so that forgotten sessions end.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

pub(crate) struct Idle<T> {
    inner: T,
    limit: Duration,
    last: Instant,
    timer: Pin<Box<Sleep>>,
}

impl<T> Idle<T> {
    pub(crate) fn new(inner: T, limit: Duration) -> Self {
        let last = Instant::now();
        Idle {
            inner,
            limit,
            last,
            timer: Box::pin(sleep_until(later(last, limit))),
        }
    }
}

/// Limits come from configurations; one beyond all time is a day, after which the clock is looked at again.
fn later(last: Instant, limit: Duration) -> Instant {
    let day = Duration::from_secs(86_400);
    last.checked_add(limit)
        .or_else(|| Instant::now().checked_add(day))
        .unwrap_or(last)
}

impl<T: AsyncRead + Unpin> AsyncRead for Idle<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Poll::Ready(outcome) = Pin::new(&mut this.inner).poll_read(cx, buf) {
            this.last = Instant::now();
            return Poll::Ready(outcome);
        }
        // The timer is set again only when it rings: traffic just notes the time.
        while this.timer.as_mut().poll(cx).is_ready() {
            let due = later(this.last, this.limit);
            if due <= Instant::now() {
                return Poll::Ready(Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "nothing was sent for too long",
                )));
            }
            this.timer.as_mut().reset(due);
        }
        Poll::Pending
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Idle<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let outcome = std::task::ready!(Pin::new(&mut this.inner).poll_write(cx, buf));
        this.last = Instant::now();
        Poll::Ready(outcome)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn silence_ends_it_and_traffic_puts_that_off() {
        let (near, mut far) = duplex(16);
        let limit = Duration::from_millis(40);
        let mut idle = Idle::new(near, limit);
        let start = Instant::now();
        let mut byte = [0];
        let later = start + Duration::from_secs(3600);
        idle.last = later;
        far.write_all(b"x").await.unwrap();
        idle.read_exact(&mut byte).await.unwrap();
        assert!(idle.last < later, "reading notes the time");
        idle.last = start + limit;
        let error = idle.read_exact(&mut byte).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(start.elapsed() >= 2 * limit);
    }
}
