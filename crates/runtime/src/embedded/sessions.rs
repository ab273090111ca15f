//! Commands in containers, their own streams, and ports of pods.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use orlop_streaming::{Exit, Pipe, Session};
use tokio::net::unix::pipe;
use tokio::net::{TcpSocket, TcpStream};

use super::client::{self, ShimConnection};
use super::protocol::{Answer, Request};
use super::spec::{ContainerSpec, ProcessSpec};
use super::store::{Container, Stage};
use super::streams::{
    Reader, Terminal, TerminalStream, Writer, open_null, output_pipe, raw_pipe, read_bounded, resizer, writer,
};
use super::{Embedded, blocking, failed};
use crate::cri::messages::{AttachRequest, ExecRequest, ExecSyncResponse};
use crate::{Code, Error, Result};

/// How long after the end of a command others may still hold its output open.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

impl Embedded {
    /// A container that runs, and the process of it that a command is like.
    async fn running(&self, id: &str) -> Result<(Arc<Container>, ProcessSpec)> {
        let container = self.container(id)?;
        if !matches!(container.stage(), Stage::Running { .. }) {
            let state = container.stage().state();
            return Err(Error::new(Code::Other, format!("container is in {state:?} state")));
        }
        let path = container.dir.join("spec.json");
        let spec = blocking(move || {
            let bytes = std::fs::read(path);
            let spec = bytes.and_then(|bytes| Ok(serde_json::from_slice::<ContainerSpec>(&bytes)?));
            spec.map_err(|e| failed("read the container's spec", &e))
        });
        Ok((container, spec.await?.process))
    }

    async fn start_command(
        &self,
        id: &str,
        command: Vec<String>,
        tty: bool,
        streams: &[&OwnedFd],
    ) -> Result<(ShimConnection, Option<OwnedFd>)> {
        let (container, process) = self.running(id).await?;
        let request = Request::Exec {
            id: container.id.clone(),
            process: Box::new(ProcessSpec {
                args: command,
                tty,
                ..process
            }),
        };
        let streams: Vec<_> = streams.iter().map(|fd| fd.as_fd()).collect();
        let started = client::request(&container.sandbox.dir, &request, &streams).await;
        match started {
            Ok((connection, Answer::Started { .. }, mut descriptors)) => Ok((connection, descriptors.pop())),
            Ok((_, other, _)) => Err(Error::new(
                Code::Other,
                format!("unexpected answer of the shim: {other:?}"),
            )),
            Err(error) => Err(Error::new(
                error.code,
                format!("failed to exec in container: {}", error.message),
            )),
        }
    }

    pub(super) async fn run_command(
        &self,
        id: &str,
        command: Vec<String>,
        timeout: Option<Duration>,
    ) -> Result<ExecSyncResponse> {
        let (stdout, their_stdout) = output_pipe()?;
        let (stderr, their_stderr) = output_pipe()?;
        let null = open_null()?;
        let streams = [&null, &their_stdout, &their_stderr];
        let (mut connection, _) = self.start_command(id, command, false, &streams).await?;
        drop((their_stdout, their_stderr, null));
        let mut streams = Box::pin(async { tokio::join!(read_bounded(stdout), read_bounded(stderr)) });
        let finished = async {
            // Both at once: a command that writes much ends only if it is read.
            let mut exit = Box::pin(exit_code(&mut connection));
            tokio::select! {
                output = &mut streams => (exit.await, output),
                code = &mut exit => match tokio::time::timeout(DRAIN_TIMEOUT, &mut streams).await {
                    Ok(output) => (code, output),
                    Err(_) => (code, Default::default()),
                },
            }
        };
        let limit = timeout.filter(|timeout| !timeout.is_zero());
        let finished = match limit {
            Some(limit) => tokio::time::timeout(limit, finished).await,
            None => Ok(finished.await),
        };
        match finished {
            Ok((code, (stdout, stderr))) => Ok(ExecSyncResponse {
                stdout,
                stderr,
                exit_code: code?,
            }),
            Err(_) => {
                let kill = Request::SignalExec {
                    signal: nix::libc::SIGKILL,
                };
                drop(connection.send(&kill, &[]).await);
                let message = format!(
                    "timeout {:?} exceeded: context deadline exceeded",
                    limit.unwrap_or_default()
                );
                Err(Error::new(
                    Code::DeadlineExceeded,
                    format!("failed to exec in container: {message}"),
                ))
            }
        }
    }

    pub(super) async fn open_exec(&self, request: ExecRequest) -> Result<Session> {
        let ExecRequest {
            container_id, cmd, tty, ..
        } = request;
        if tty {
            let (connection, terminal) = self.start_command(&container_id, cmd, true, &[]).await?;
            let terminal = terminal.ok_or_else(|| Error::new(Code::Other, "shim sent no terminal"))?;
            return terminal_session(
                terminal,
                request.stdin,
                request.stdout,
                Box::pin(command_exit(connection)),
            );
        }
        let (stdin, their_stdin) = match request.stdin {
            true => {
                let (theirs, ours) = raw_pipe()?;
                (Some(writer(ours)?), theirs)
            }
            false => (None, open_null()?),
        };
        let output = |wanted: bool| match wanted {
            true => output_pipe().map(|(ours, theirs)| (Some(ours), theirs)),
            false => open_null().map(|null| (None, null)),
        };
        let (stdout, their_stdout) = output(request.stdout)?;
        let (stderr, their_stderr) = output(request.stderr)?;
        let streams = [&their_stdin, &their_stdout, &their_stderr];
        let (connection, _) = self.start_command(&container_id, cmd, false, &streams).await?;
        Ok(Session {
            stdin,
            stdout: stdout.map(|pipe| Box::new(pipe) as Reader),
            stderr: stderr.map(|pipe| Box::new(pipe) as Reader),
            resize: None,
            exit: Box::pin(command_exit(connection)),
        })
    }

    pub(super) async fn open_attach(&self, request: AttachRequest) -> Result<Session> {
        let container = self.container(&request.container_id)?;
        if !matches!(container.stage(), Stage::Running { .. }) {
            let state = container.stage().state();
            return Err(Error::new(Code::Other, format!("container is in {state:?} state")));
        }
        let tty = container.record.lock().config.clone().unwrap_or_default().tty;
        let mut theirs = vec![];
        let mut output = |wanted: bool| -> Result<Option<pipe::Receiver>> {
            if !wanted {
                return Ok(None);
            }
            let (ours, their) = output_pipe()?;
            theirs.push(their);
            Ok(Some(ours))
        };
        let stdout = output(request.stdout)?;
        let stderr = output(request.stderr && !tty)?;
        let message = Request::Attach {
            id: container.id.clone(),
            stdin: request.stdin,
            stdout: request.stdout,
            stderr: request.stderr && !tty,
        };
        let streams: Vec<_> = theirs.iter().map(OwnedFd::as_fd).collect();
        let (connection, _, mut handed) = client::request(&container.sandbox.dir, &message, &streams).await?;
        drop(theirs);
        let exit = Box::pin(attach_exit(connection));
        let (stdin, resize) = match (handed.pop(), tty) {
            (Some(terminal), true) => {
                let terminal = Arc::new(Terminal::new(terminal)?);
                let stdin = request
                    .stdin
                    .then(|| Box::new(TerminalStream(terminal.clone())) as Writer);
                (stdin, Some(resizer(terminal)))
            }
            (Some(pipe), false) => (request.stdin.then(|| writer(pipe)).transpose()?, None),
            // Its input was closed, or it never had any.
            (None, _) => (request.stdin.then(|| Box::new(tokio::io::sink()) as Writer), None),
        };
        Ok(Session {
            stdin,
            stdout: stdout.map(|pipe| Box::new(pipe) as Reader),
            stderr: stderr.map(|pipe| Box::new(pipe) as Reader),
            resize,
            exit,
        })
    }

    pub(super) async fn open_port(&self, sandbox: &str, port: u16) -> Result<Box<dyn Pipe>> {
        let sandbox = self.sandbox(sandbox)?;
        if sandbox.shim.lock().is_none() {
            return Err(Error::new(
                Code::Other,
                format!("sandbox {:?} is not running", sandbox.id),
            ));
        }
        let (_, _, sockets) = client::request(&sandbox.dir, &Request::Sockets, &[]).await?;
        let addresses: [SocketAddr; 2] = [(Ipv4Addr::LOCALHOST, port).into(), (Ipv6Addr::LOCALHOST, port).into()];
        let mut first_error = None;
        for (socket, address) in sockets.into_iter().zip(addresses) {
            match connect(socket, address).await {
                Ok(stream) => return Ok(Box::new(stream)),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        let error = first_error.map_or("no socket".to_string(), |e| e.to_string());
        Err(Error::new(
            Code::Other,
            format!("failed to connect to localhost:{port} inside namespace: {error}"),
        ))
    }
}

/// The socket is of the pod's network, wherever it is used.
async fn connect(socket: OwnedFd, address: SocketAddr) -> io::Result<TcpStream> {
    TcpSocket::from_std_stream(std::net::TcpStream::from(socket))
        .connect(address)
        .await
}

async fn exit_code(connection: &mut ShimConnection) -> Result<i32> {
    match connection.receive().await {
        Ok(Some((Answer::Exited(exited), _))) => Ok(exited.code),
        Ok(Some((other, _))) => Err(Error::new(
            Code::Other,
            format!("unexpected answer of the shim: {other:?}"),
        )),
        Ok(None) => Err(Error::new(Code::Unavailable, "shim has gone")),
        Err(e) => Err(Error::new(
            Code::Unavailable,
            format!("connection to the shim failed: {e}"),
        )),
    }
}

async fn command_exit(mut connection: ShimConnection) -> Exit {
    match exit_code(&mut connection).await {
        Ok(code) => Exit::Code(code),
        Err(error) => Exit::Failed(error.message),
    }
}

/// The connection ends with the container's output.
async fn attach_exit(mut connection: ShimConnection) -> Exit {
    while let Ok(Some(_)) = connection.receive().await {}
    Exit::Code(0)
}

fn terminal_session(
    terminal: OwnedFd,
    stdin: bool,
    stdout: bool,
    exit: Pin<Box<dyn Future<Output = Exit> + Send>>,
) -> Result<Session> {
    let terminal = Arc::new(Terminal::new(terminal)?);
    let stream = || TerminalStream(terminal.clone());
    Ok(Session {
        stdin: stdin.then(|| Box::new(stream()) as Writer),
        stdout: stdout.then(|| Box::new(stream()) as Reader),
        stderr: None,
        resize: Some(resizer(terminal.clone())),
        exit,
    })
}
