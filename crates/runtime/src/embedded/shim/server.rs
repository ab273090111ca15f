//! The shim's loop: one thread, one `poll`, every buffer bounded.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;

use nix::libc;
use nix::sys::stat::{Mode, umask};

use crate::embedded::cgroups::CgroupSpec;
use crate::embedded::protocol::Answer;
use crate::embedded::spec::SandboxSpec;
use crate::embedded::sys::processes;

use super::connection::Connection;
use super::container::{self, Container, readable, writable};
use super::error::{Result, Step};
use super::output::{Attached, CHUNK_BYTES, Sink};
use super::sandbox::{self, Sandbox};
use super::{COMMAND_LINE_ROOM, SOCKET};

/// More wait until one of them ends: each is a command or a client of the runtime's.
const CONNECTIONS_MAX: usize = 256;
/// Between tries to remove the cgroup of a container whose last processes are on their way out.
const REMOVAL_WAIT_MS: i32 = 10;

pub(super) struct Server {
    pub spec: SandboxSpec,
    pub sandbox: Sandbox,
    pub listener: UnixListener,
    pub signals: OwnedFd,
    pub connections: BTreeMap<u64, Connection>,
    pub containers: BTreeMap<u64, Container>,
    pub execs: BTreeMap<u64, Exec>,
    /// Clients of containers that have ended, with output that they have not read.
    pub leaving: Vec<Attached>,
    /// Cgroups of containers that have ended.
    pub removals: Vec<Removal>,
    /// Everything is to end, and who asked for it.
    pub shutdown: Option<u64>,
    /// Serial numbers of connections, containers and commands.
    pub last: u64,
    pub buffer: Vec<u8>,
}

/// A command in a container.
pub(super) struct Exec {
    pub pid: i32,
    pub pidfd: OwnedFd,
    /// Its program has not begun.
    pub status: Option<OwnedFd>,
    pub terminal: Option<OwnedFd>,
    pub connection: u64,
}

pub(super) struct Removal {
    pub cgroup: CgroupSpec,
    pub tries: u32,
}

/// What a descriptor in the poll set stands for.
#[derive(Clone, Copy, Debug)]
enum Token {
    Signals,
    Listener,
    Connection(u64),
    Starting(u64),
    Exec(u64),
    Output(u64, usize),
    Sinks(u64),
    Leaving,
}

impl Server {
    /// Makes the sandbox, in this process.
    pub(super) fn create(spec: &SandboxSpec, first: &OwnedFd) -> Result<Server> {
        let words = ["orlop", "shim", &spec.id];
        processes::set_command_line(&words);
        nix::unistd::setsid().step("start a session")?;
        processes::become_subreaper().step("become a subreaper")?;
        // The runtime is noticed by its sockets; signals are for the containers.
        let signals = [libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGPIPE];
        let signals = processes::signals_as_descriptor(&signals).step("listen for signals")?;
        processes::replace_standard(0, container::open_null()?.as_fd()).step("leave the spawner")?;
        let sandbox = Sandbox::create(spec)?;
        let listener = listen(spec).step("listen")?;
        let server = Server {
            spec: spec.clone(),
            sandbox,
            listener,
            signals,
            connections: BTreeMap::new(),
            containers: BTreeMap::new(),
            execs: BTreeMap::new(),
            leaving: vec![],
            removals: vec![],
            shutdown: None,
            last: 0,
            buffer: vec![0; CHUNK_BYTES],
        };
        server.send_ready(first.as_fd())?;
        Ok(server)
    }

    fn send_ready(&self, first: BorrowedFd<'_>) -> Result<()> {
        let answer = Answer::Ready {
            pid: std::process::id() as i32,
        };
        let network = match self.spec.network {
            true => Some(sandbox::open_own("net")?),
            false => None,
        };
        let descriptors: Vec<BorrowedFd<'_>> = network.iter().map(OwnedFd::as_fd).collect();
        crate::embedded::protocol::send_message(first, &answer, &descriptors).step("report the sandbox")
    }

    /// Serves until the pod is stopped. The first connection watches it from the start.
    pub(super) fn run(mut self, first: OwnedFd) -> Result<()> {
        let id = self.add_connection(first).step("serve the runtime")?;
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.watches = true;
        }
        loop {
            self.turn().step("poll")?;
            if self.shutdown.is_some() && self.containers.is_empty() && self.removals.is_empty() {
                self.finish();
                return Ok(());
            }
        }
    }

    /// Says so, and goes.
    fn finish(&mut self) {
        drop(std::fs::remove_file(self.spec.dir.join(SOCKET)));
        if let Some(connection) = self.shutdown {
            self.answer(connection, &Answer::Done, &[]);
        }
    }

    pub(super) fn next_serial(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn add_connection(&mut self, socket: OwnedFd) -> std::io::Result<u64> {
        let connection = Connection::new(socket)?;
        let id = self.next_serial();
        self.connections.insert(id, connection);
        Ok(id)
    }

    /// Waits for something to happen and handles it.
    fn turn(&mut self) -> std::io::Result<()> {
        let (tokens, mut polled) = self.poll_set();
        let timeout = if self.removals.is_empty() { -1 } else { REMOVAL_WAIT_MS };
        match processes::poll(&mut polled, timeout) {
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => return Ok(()),
            Err(e) => return Err(e),
            Ok(_) => {}
        }
        let mut children = false;
        for (token, fd) in tokens.iter().zip(&polled).filter(|(_, fd)| fd.revents != 0) {
            match *token {
                Token::Signals => children = true,
                Token::Listener => self.accept(),
                Token::Connection(id) => self.serve(id, fd.revents),
                Token::Starting(id) => self.observe_start(id),
                Token::Exec(id) => self.observe_exec(id),
                Token::Output(id, stream) => self.read_output(id, stream),
                Token::Sinks(id) => self.flush_sinks(id),
                Token::Leaving => self.flush_leaving(),
            }
        }
        if children {
            self.reap();
        }
        self.remove_cgroups();
        Ok(())
    }

    fn poll_set(&self) -> (Vec<Token>, Vec<libc::pollfd>) {
        let mut set = vec![(Token::Signals, readable(self.signals.as_fd()))];
        if self.connections.len() < CONNECTIONS_MAX {
            set.push((Token::Listener, readable(self.listener.as_fd())));
        }
        for (id, connection) in &self.connections {
            let mut fd = readable(connection.socket());
            if connection.wants_to_write() {
                fd.events |= libc::POLLOUT;
            }
            set.push((Token::Connection(*id), fd));
        }
        for (id, container) in &self.containers {
            if let Some(starting) = &container.starting {
                set.push((Token::Starting(*id), readable(starting.status.as_fd())));
            }
            for (at, stream) in container.outputs.streams.iter().enumerate() {
                if let Some(source) = &stream.source
                    && container.outputs.may_read(stream.name)
                {
                    set.push((Token::Output(*id, at), readable(source.as_fd())));
                }
            }
            let sinks = behind(&container.outputs.attached);
            set.extend(sinks.map(|fd| (Token::Sinks(*id), fd)));
        }
        let execs = self
            .execs
            .iter()
            .filter_map(|(id, exec)| Some((id, exec.status.as_ref()?)));
        set.extend(execs.map(|(id, status)| (Token::Exec(*id), readable(status.as_fd()))));
        set.extend(behind(&self.leaving).map(|fd| (Token::Leaving, fd)));
        set.into_iter().unzip()
    }

    fn accept(&mut self) {
        if let Ok((stream, _)) = self.listener.accept() {
            drop(self.add_connection(stream.into()));
        }
    }

    fn serve(&mut self, id: u64, events: libc::c_short) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        if events & libc::POLLOUT != 0 && connection.flush().is_err() {
            return self.close(id);
        }
        if events & !libc::POLLOUT == 0 {
            return self.close_if_finished(id);
        }
        let open = connection.read().unwrap_or(false);
        loop {
            let Some(connection) = self.connections.get_mut(&id) else {
                return;
            };
            match connection.next_request() {
                Ok(Some((request, descriptors))) => self.handle(id, request, descriptors),
                Ok(None) => break,
                Err(_) => return self.close(id),
            }
        }
        match open {
            true => self.close_if_finished(id),
            false => self.close(id),
        }
    }

    /// The client has gone. Its command goes on without it.
    fn close(&mut self, id: u64) {
        self.connections.remove(&id);
        for container in self.containers.values_mut() {
            container.outputs.attached.retain(|client| client.connection != id);
        }
        self.leaving.retain(|client| client.connection != id);
    }

    pub(super) fn close_if_finished(&mut self, id: u64) {
        if self
            .connections
            .get(&id)
            .is_some_and(|c| c.finished && !c.wants_to_write())
        {
            self.close(id);
        }
    }

    /// Sends an answer; a client that can't take it is let go.
    pub(super) fn answer(&mut self, id: u64, answer: &Answer, descriptors: &[BorrowedFd<'_>]) {
        if let Some(connection) = self.connections.get_mut(&id)
            && connection.send(answer, descriptors).is_err()
        {
            self.close(id);
        }
    }

    pub(super) fn fail(&mut self, id: u64, message: impl std::fmt::Display, missing: bool) {
        let answer = Answer::Failed {
            message: message.to_string(),
            missing,
        };
        self.answer(id, &answer, &[]);
    }

    fn read_output(&mut self, serial: u64, stream: usize) {
        if let Some(container) = self.containers.get_mut(&serial) {
            container.outputs.read(stream, &mut self.buffer);
        }
    }

    fn flush_sinks(&mut self, serial: u64) {
        if let Some(container) = self.containers.get_mut(&serial) {
            container.outputs.attached.retain_mut(flush);
        }
    }

    /// A client has its last output: its connection ends.
    pub(super) fn flush_leaving(&mut self) {
        let mut done = vec![];
        self.leaving.retain_mut(|client| {
            let stays = flush(client) && (client.is_behind("stdout") || client.is_behind("stderr"));
            if !stays {
                done.push(client.connection);
            }
            stays
        });
        for connection in done {
            self.connections.remove(&connection);
        }
    }

    pub(super) fn tell_watchers(&mut self, news: &Answer) {
        let watchers = self.connections.iter().filter(|(_, connection)| connection.watches);
        for watcher in watchers.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.answer(watcher, news, &[]);
        }
    }
}

/// Sinks with output that their clients have not read.
fn behind(clients: &[Attached]) -> impl Iterator<Item = libc::pollfd> {
    let sinks = clients
        .iter()
        .flat_map(|client| [&client.stdout, &client.stderr])
        .flatten();
    sinks
        .filter(|sink| !sink.pending.is_empty())
        .map(|sink| writable(sink.descriptor.as_fd()))
}

/// `false`: the client has gone.
fn flush(client: &mut Attached) -> bool {
    [&mut client.stdout, &mut client.stderr]
        .into_iter()
        .flatten()
        .all(Sink::flush)
}

/// Listens in the pod's directory, for root alone. The directory's path may be longer than a socket's address.
fn listen(spec: &SandboxSpec) -> std::io::Result<UnixListener> {
    debug_assert!(spec.id.len() < COMMAND_LINE_ROOM);
    nix::unistd::chdir(&spec.dir)?;
    let old = umask(Mode::from_bits_truncate(0o177));
    drop(std::fs::remove_file(SOCKET));
    let listener = UnixListener::bind(SOCKET);
    umask(old);
    nix::unistd::chdir("/")?;
    let listener = listener?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}
