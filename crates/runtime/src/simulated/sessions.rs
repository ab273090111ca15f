//! Commands and ports of simulated containers: just enough for clients to have something to talk to.

use std::future::Future;
use std::io::Cursor;

use orlop_streaming::{Exit, Pipe, Session, TerminalSize};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

use crate::cri::messages::{AttachRequest, ExecRequest, ExecSyncResponse};

/// What is on its way through an echo at most.
const ECHO_BYTES: usize = 64 * 1024;

type Reader = Box<dyn AsyncRead + Send + Unpin>;
type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// A size that nobody looks at; the receiver is dropped with the first one that does not fit.
fn resize(tty: bool) -> Option<mpsc::Sender<TerminalSize>> {
    tty.then(|| mpsc::channel(1).0)
}

/// A command that has answered already. `cat` sends back what it is sent.
pub(super) fn command(request: &ExecRequest, answer: ExecSyncResponse) -> Session {
    let echoes = request.stdin && request.cmd.first().is_some_and(|c| c == "cat");
    let (stdin, stdout): (Writer, Reader) = if echoes {
        let (near, far) = tokio::io::duplex(ECHO_BYTES);
        (Box::new(near), Box::new(far))
    } else {
        (Box::new(tokio::io::sink()), Box::new(Cursor::new(answer.stdout)))
    };
    Session {
        stdin: request.stdin.then_some(stdin),
        stdout: request.stdout.then_some(stdout),
        stderr: request.stderr.then(|| Box::new(Cursor::new(answer.stderr)) as Reader),
        resize: resize(request.tty),
        exit: Box::pin(std::future::ready(Exit::Code(answer.exit_code))),
    }
}

/// A container's own streams: silent until it ends.
pub(super) fn attached(request: &AttachRequest, ended: impl Future<Output = i32> + Send + 'static) -> Session {
    let silent = || Box::new(tokio::io::empty()) as Reader;
    Session {
        stdin: request.stdin.then(|| Box::new(tokio::io::sink()) as Writer),
        stdout: request.stdout.then(silent),
        stderr: request.stderr.then(silent),
        resize: resize(request.tty),
        exit: Box::pin(async move { Exit::Code(ended.await) }),
    }
}

/// A port that sends back what it is sent.
pub(super) fn echo() -> Box<dyn Pipe> {
    let (near, far) = tokio::io::duplex(ECHO_BYTES);
    tokio::spawn(async move {
        let (mut from, mut to) = tokio::io::split(far);
        // Ends when the other side does; a broken pipe is how.
        drop(tokio::io::copy(&mut from, &mut to).await);
    });
    Box::new(near)
}
