//! Pipes and terminals as asynchronous streams.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use orlop_streaming::TerminalSize;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::unix::pipe;
use tokio::sync::mpsc;

use super::failed;
use super::sys::{sockets, terminals};
use crate::{Error, Result};

/// What a command may write of each stream to be returned; the rest is dropped, as by containerd.
const EXEC_SYNC_BYTES_MAX: usize = 16 << 20;
/// Sizes that wait for the terminal.
const SIZES_MAX: usize = 4;

pub(super) type Reader = Box<dyn AsyncRead + Send + Unpin>;
pub(super) type Writer = Box<dyn AsyncWrite + Send + Unpin>;

fn pipe_error(error: io::Error) -> Error {
    failed("make a pipe", &error)
}

pub(super) fn raw_pipe() -> Result<(OwnedFd, OwnedFd)> {
    sockets::pipe().map_err(pipe_error)
}

/// Our end to read, theirs to write.
pub(super) fn output_pipe() -> Result<(pipe::Receiver, OwnedFd)> {
    let (ours, theirs) = raw_pipe()?;
    Ok((pipe::Receiver::from_owned_fd(ours).map_err(pipe_error)?, theirs))
}

pub(super) fn open_null() -> Result<OwnedFd> {
    let file = std::fs::File::options().read(true).write(true).open("/dev/null");
    file.map(OwnedFd::from).map_err(|e| failed("open /dev/null", &e))
}

pub(super) fn writer(pipe: OwnedFd) -> Result<Writer> {
    let sender = pipe::Sender::from_owned_fd(pipe).map_err(pipe_error)?;
    Ok(Box::new(ClosingWriter(Some(sender))))
}

/// Shutting it down closes the pipe, which is how its reader learns of the end.
struct ClosingWriter(Option<pipe::Sender>);

impl AsyncWrite for ClosingWriter {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.0 {
            Some(sender) => Pin::new(sender).poll_write(cx, buf),
            None => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0 = None;
        Poll::Ready(Ok(()))
    }
}

/// Reads to the end; what is too much is read and dropped, so that the writer can end.
pub(super) async fn read_bounded(mut pipe: pipe::Receiver) -> Vec<u8> {
    let mut kept = vec![];
    // An error is an end.
    let _ = (&mut pipe)
        .take(EXEC_SYNC_BYTES_MAX as u64)
        .read_to_end(&mut kept)
        .await;
    let _ = tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await;
    kept
}

/// The controlling end of a terminal.
pub(super) struct Terminal(AsyncFd<OwnedFd>);

impl Terminal {
    pub(super) fn new(fd: OwnedFd) -> Result<Terminal> {
        let made = sockets::set_nonblocking(fd.as_fd()).and_then(|()| terminals::watch(fd));
        Ok(Terminal(made.map_err(|e| failed("use a terminal", &e))?))
    }
}

pub(super) fn resizer(terminal: Arc<Terminal>) -> mpsc::Sender<TerminalSize> {
    let (sender, mut sizes) = mpsc::channel::<TerminalSize>(SIZES_MAX);
    // Does not keep the terminal open on its own.
    let terminal = Arc::downgrade(&terminal);
    tokio::spawn(async move {
        while let Some(size) = sizes.recv().await {
            let Some(terminal) = terminal.upgrade() else { return };
            // A terminal that is gone has no size.
            drop(terminals::set_size(
                terminal.0.get_ref().as_fd(),
                size.width,
                size.height,
            ));
        }
    });
    sender
}

pub(super) struct TerminalStream(pub Arc<Terminal>);

impl AsyncRead for TerminalStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut guard = ready!(self.0.0.poll_read_ready(cx))?;
            let read = guard.try_io(|fd| Ok(nix::unistd::read(fd.as_fd(), buf.initialize_unfilled())?));
            match read {
                Ok(Ok(count)) => {
                    buf.advance(count);
                    return Poll::Ready(Ok(()));
                }
                // The other side is closed: that is a terminal's end.
                Ok(Err(e)) if e.raw_os_error() == Some(nix::libc::EIO) => return Poll::Ready(Ok(())),
                Ok(Err(e)) => return Poll::Ready(Err(e)),
                Err(_not_ready) => {}
            }
        }
    }
}

impl AsyncWrite for TerminalStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.0.0.poll_write_ready(cx))?;
            match guard.try_io(|fd| Ok(nix::unistd::write(fd.as_fd(), buf)?)) {
                Ok(result) => return Poll::Ready(result),
                Err(_not_ready) => {}
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// A terminal's input has no end; the program is told by a character, which is the user's to type.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
