//! The runtime's side of the connections to shims.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::libc;
use serde::Serialize;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::process::{Child, Command};

use super::protocol::{self, Answer, Request};
use super::shim;
use super::spec::SandboxSpec;
use super::sys::{fd_path, sockets};
use crate::{Code, Error, Result};

/// A shim answers at once, or after the few milliseconds that a container takes to start.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// A connection to a shim.
#[derive(Debug)]
pub(crate) struct ShimConnection {
    socket: UnixStream,
    input: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

impl ShimConnection {
    fn new(socket: OwnedFd) -> io::Result<ShimConnection> {
        let socket = std::os::unix::net::UnixStream::from(socket);
        socket.set_nonblocking(true)?;
        Ok(ShimConnection {
            socket: UnixStream::from_std(socket)?,
            input: vec![],
            descriptors: vec![],
        })
    }

    /// Connects to the shim of a pod. The directory's path may be longer than a socket's address, its descriptor is not.
    pub(crate) async fn connect(pod: &Path) -> io::Result<ShimConnection> {
        let dir = std::fs::OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_PATH)
            .open(pod)?;
        let path = PathBuf::from(fd_path(dir.as_fd())).join(shim::SOCKET);
        Ok(ShimConnection {
            socket: UnixStream::connect(path).await?,
            input: vec![],
            descriptors: vec![],
        })
    }

    pub(crate) async fn send(&self, message: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = protocol::encode(message)?;
        let mut sent = 0;
        while sent < bytes.len() {
            let with = if sent == 0 { descriptors } else { &[] };
            let send = || sockets::send(self.socket.as_fd(), &bytes[sent..], with);
            sent += self.socket.async_io(Interest::WRITABLE, send).await?;
        }
        Ok(())
    }

    /// The next answer with its descriptors; `None`: the shim has gone, or has nothing more to say.
    pub(crate) async fn receive(&mut self) -> io::Result<Option<(Answer, Vec<OwnedFd>)>> {
        loop {
            if let Some(answer) = protocol::decode(&mut self.input)? {
                return Ok(Some((answer, std::mem::take(&mut self.descriptors))));
            }
            let mut chunk = [0; 4096];
            let descriptors = &mut self.descriptors;
            let socket = &self.socket;
            let mut receive = || sockets::receive(socket.as_fd(), &mut chunk, descriptors);
            match self.socket.async_io(Interest::READABLE, &mut receive).await {
                Ok(0) => return Ok(None),
                Ok(count) => self.input.extend_from_slice(&chunk[..count]),
                Err(e) if e.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                Err(e) => return Err(e),
            }
        }
    }

    /// The next answer, within the time that a shim has for it.
    pub(crate) async fn answer(&mut self) -> Result<(Answer, Vec<OwnedFd>)> {
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, self.receive()).await;
        match answer {
            Err(_) => Err(Error::new(Code::DeadlineExceeded, "shim did not answer in time")),
            Ok(Err(e)) => Err(Error::new(
                Code::Unavailable,
                format!("connection to the shim failed: {e}"),
            )),
            Ok(Ok(None)) => Err(Error::new(Code::Unavailable, "shim has gone")),
            Ok(Ok(Some((Answer::Failed { message, missing }, _)))) => {
                Err(Error::new(if missing { Code::NotFound } else { Code::Other }, message))
            }
            Ok(Ok(Some(answer))) => Ok(answer),
        }
    }
}

/// One request and its first answer.
pub(crate) async fn request(
    pod: &Path,
    request: &Request,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(ShimConnection, Answer, Vec<OwnedFd>)> {
    let unreachable = |e: io::Error| Error::new(Code::Unavailable, format!("failed to reach the shim: {e}"));
    let mut connection = ShimConnection::connect(pod).await.map_err(unreachable)?;
    connection.send(request, descriptors).await.map_err(unreachable)?;
    let (answer, received) = connection.answer().await?;
    Ok((connection, answer, received))
}

/// How the spawner of shims is started: this very binary, unless a test has another.
#[derive(Clone, Debug)]
pub struct ShimCommand {
    pub program: PathBuf,
    pub arguments: Vec<String>,
}

impl Default for ShimCommand {
    fn default() -> ShimCommand {
        ShimCommand {
            program: "/proc/self/exe".into(),
            arguments: vec!["shim".to_string()],
        }
    }
}

/// The process that forks shims.
#[derive(Debug)]
pub(crate) struct Spawner {
    connection: ShimConnection,
    child: Child,
}

impl Spawner {
    pub(crate) fn start(command: &ShimCommand, network_namespace: Option<&Path>) -> io::Result<Spawner> {
        let (ours, theirs) = sockets::stream_pair()?;
        let mut process = Command::new(&command.program);
        process.arg0("orlop").args(&command.arguments);
        if let Some(path) = network_namespace {
            process.arg("--network-namespace").arg(path);
        }
        // Shims write their own command line over this one.
        process.arg(" ".repeat(shim::COMMAND_LINE_ROOM));
        // Its allocator is set up before it can refuse huge pages itself.
        process.env_clear().env("MIMALLOC_ALLOW_THP", "0").current_dir("/");
        process
            .stdin(theirs)
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null());
        Ok(Spawner {
            child: process.spawn()?,
            connection: ShimConnection::new(ours)?,
        })
    }

    /// Forks a shim. The connection that comes back is told when the sandbox is made, and then of its containers.
    pub(crate) async fn fork(&mut self, spec: &SandboxSpec) -> io::Result<ShimConnection> {
        let (ours, theirs) = sockets::stream_pair()?;
        self.connection.send(spec, &[theirs.as_fd()]).await?;
        ShimConnection::new(ours)
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}
