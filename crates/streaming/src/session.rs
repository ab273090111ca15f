//! A session carried over wires that are byte streams, whatever they run over: the part SPDY and WebSocket share.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::mpsc;

use crate::server::OpenError;
use crate::status::StatusFormat;
use crate::{Exit, Session, TerminalSize};

pub(crate) type BoxRead = Box<dyn AsyncRead + Send + Unpin>;
pub(crate) type BoxWrite = Box<dyn AsyncWrite + Send + Unpin>;

const COPY_BYTES: usize = 32 << 10;
/// A terminal size is some thirty bytes; what does not end by then is not one.
const SIZE_BYTES_MAX: usize = 4 << 10;
/// A status with a long message.
const STATUS_BYTES_MAX: u64 = 64 << 10;
/// Sizes that wait for the terminal.
const SIZES_MAX: usize = 4;

/// The server's ends of what a client opened.
pub(crate) struct Wires {
    pub stdin: Option<BoxRead>,
    pub stdout: Option<BoxWrite>,
    pub stderr: Option<BoxWrite>,
    pub resize: Option<BoxRead>,
    pub error: BoxWrite,
    pub format: StatusFormat,
    /// The client has gone.
    pub closed: BoxFuture<'static, ()>,
}

/// Opens a session and carries it to its end, or until the client goes.
pub(crate) async fn carry(wires: Wires, open: impl Future<Output = Result<Session, OpenError>>) {
    let Wires {
        stdin,
        stdout,
        stderr,
        resize,
        mut error,
        format,
        closed,
    } = wires;
    let relayed = async {
        match open.await {
            Ok(session) => relay(session, stdin, stdout, stderr, resize).await,
            Err(error) => Exit::Failed(error.to_string()),
        }
    };
    tokio::select! {
        exit = relayed => {
            let _ = error.write_all(&format.encode(&exit)).await;
            let _ = error.shutdown().await;
        }
        () = closed => {}
    }
}

/// The exit is sent only after all output.
async fn relay(
    session: Session,
    stdin: Option<BoxRead>,
    stdout: Option<BoxWrite>,
    stderr: Option<BoxWrite>,
    resize: Option<BoxRead>,
) -> Exit {
    let output = async {
        let ((), (), exit) = tokio::join!(copy(session.stdout, stdout), copy(session.stderr, stderr), session.exit);
        exit
    };
    let input = async {
        tokio::join!(copy(stdin, session.stdin), pass_sizes(resize, session.resize));
        // Input that has ended does not end a session.
        std::future::pending::<std::convert::Infallible>().await
    };
    tokio::select! {
        exit = output => exit,
        never = input => match never {},
    }
}

/// Copies to the end and passes the end on. A side that breaks is let go, so that the other one notices.
async fn copy(from: Option<BoxRead>, to: Option<BoxWrite>) {
    let (Some(mut from), Some(mut to)) = (from, to) else {
        return;
    };
    let mut buffer = vec![0; COPY_BYTES];
    loop {
        match from.read(&mut buffer).await {
            Ok(0) | Err(_) => break drop(to.shutdown().await),
            Ok(count) => {
                if to.write_all(&buffer[..count]).await.is_err() || to.flush().await.is_err() {
                    break;
                }
            }
        }
    }
}

async fn pass_sizes(from: Option<BoxRead>, to: Option<mpsc::Sender<TerminalSize>>) {
    let Some(mut from) = from else { return };
    let Some(to) = to else {
        // There is no terminal: what a client says about it is taken and dropped.
        let _ = tokio::io::copy(&mut from, &mut tokio::io::sink()).await;
        return;
    };
    let mut buffer = Vec::new();
    while let Ok(1..) = (&mut from).take(SIZE_BYTES_MAX as u64).read_buf(&mut buffer).await {
        let (sizes, used) = parse_sizes(&buffer);
        buffer.drain(..used);
        for size in sizes {
            if to.send(size).await.is_err() {
                return;
            }
        }
        if buffer.len() > SIZE_BYTES_MAX {
            return;
        }
    }
}

/// The sizes at the front of a stream of JSON objects and how many bytes they took. What can't be a size is skipped to the
/// next line.
fn parse_sizes(buffer: &[u8]) -> (Vec<TerminalSize>, usize) {
    let (mut sizes, mut used) = (Vec::new(), 0);
    loop {
        let mut objects = serde_json::Deserializer::from_slice(&buffer[used..]).into_iter::<TerminalSize>();
        match objects.next() {
            Some(Ok(size)) => {
                sizes.push(size);
                used += objects.byte_offset();
            }
            Some(Err(error)) if !error.is_eof() => {
                let line = buffer[used..].iter().position(|byte| *byte == b'\n');
                used = line.map_or(buffer.len(), |end| used + end + 1);
            }
            Some(Err(_)) | None => return (sizes, used),
        }
    }
}

/// A client's ends, made into a session.
pub(crate) fn client_session(
    stdin: Option<BoxWrite>,
    stdout: Option<BoxRead>,
    stderr: Option<BoxRead>,
    resize: Option<BoxWrite>,
    error: BoxRead,
    format: StatusFormat,
) -> Session {
    let resize = resize.map(|mut wire| {
        let (sender, mut sizes) = mpsc::channel::<TerminalSize>(SIZES_MAX);
        tokio::spawn(async move {
            while let Some(size) = sizes.recv().await {
                let mut line = serde_json::to_vec(&size).expect("a size is always JSON");
                line.push(b'\n');
                if wire.write_all(&line).await.is_err() {
                    return;
                }
            }
        });
        sender
    });
    let exit = Box::pin(async move {
        let mut bytes = Vec::new();
        let outcome = error.take(STATUS_BYTES_MAX).read_to_end(&mut bytes).await;
        match outcome {
            // Servers may cut the connection right after the status.
            Err(error) if bytes.is_empty() => Exit::Failed(format!("the connection was lost: {error}")),
            _ => format.decode(&bytes),
        }
    });
    let quiet = |wire: Option<BoxRead>| wire.map(|wire| Box::new(EndOnReset(wire)) as BoxRead);
    Session {
        stdin,
        stdout: quiet(stdout),
        stderr: quiet(stderr),
        resize,
        exit,
    }
}

/// Servers may end output by resetting its stream. Whether something was lost follows from the session's exit.
struct EndOnReset(BoxRead);

impl AsyncRead for EndOnReset {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match std::task::ready!(Pin::new(&mut self.0).poll_read(cx, buf)) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Poll::Ready(Ok(())),
            outcome => Poll::Ready(outcome),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_as_they_come() {
        let size = |width, height| TerminalSize { width, height };
        let both = b"{\"Width\":80,\"Height\":24}\n{\"Width\":100,\"Height\":30}";
        for (bytes, sizes, used) in [
            (both.as_slice(), vec![size(80, 24), size(100, 30)], both.len()),
            (&both[..30], vec![size(80, 24)], 24),
            (b"", vec![], 0),
            (
                b"{\"Width\":-1,\"Height\":2}\n{\"Width\":1,\"Height\":2}",
                vec![size(1, 2)],
                46,
            ),
            (b"nonsense", vec![], 8),
            (b"[1]\n\xff\xff", vec![], 6),
        ] {
            assert_eq!(parse_sizes(bytes), (sizes, used), "{}", String::from_utf8_lossy(bytes));
        }
    }
}
