//! What the runtime asks of a shim, request by request.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::libc;

use crate::embedded::protocol::{Answer, Request};
use crate::embedded::spec::{PidMode, ProcessSpec};
use crate::embedded::sys::{namespaces, processes, sockets};

use super::container::{self, Container, now_ns};
use super::error::Result;
use super::launch::{self, ChildStatus, Launched};
use super::output::{Attached, Sink};
use super::program::Standard;
use super::rootfs::MappedUsers;
use super::server::{Exec, Server};

impl Server {
    pub(super) fn handle(&mut self, from: u64, request: Request, descriptors: Vec<OwnedFd>) {
        match request {
            Request::Watch => self.watch(from),
            Request::Start { id } if self.find(&id).is_some() => {
                self.fail(from, format!("container {id:?} is already running"), false);
            }
            Request::Start { id } => {
                if let Err(message) = self.start(from, &id) {
                    self.report_failure(from, &id, &message);
                }
            }
            Request::Signal { id, signal, all } => match self.find(&id) {
                Some(container) => {
                    self.containers[&container].signal(signal, all);
                    self.answer(from, &Answer::Done, &[]);
                }
                None => self.not_running(from, &id),
            },
            Request::Exec { id, process } => match self.find(&id) {
                Some(container) => {
                    if let Err(error) = self.exec(from, container, &process, descriptors) {
                        self.fail(from, error, false);
                    }
                }
                None => self.not_running(from, &id),
            },
            Request::SignalExec { signal } => {
                for exec in self.execs.values().filter(|exec| exec.connection == from) {
                    drop(namespaces::signal_process(exec.pidfd.as_fd(), signal));
                }
            }
            Request::Attach {
                id,
                stdin,
                stdout,
                stderr,
            } => match self.find(&id) {
                Some(container) => self.attach(from, container, (stdin, stdout, stderr), descriptors),
                None => self.not_running(from, &id),
            },
            Request::ReopenLog { id } => match self.find(&id) {
                Some(container) => {
                    let container = self.containers.get_mut(&container).expect("it was just found");
                    match container.outputs.reopen_log() {
                        Ok(()) => self.answer(from, &Answer::Done, &[]),
                        Err(error) => self.fail(from, error, false),
                    }
                }
                None => self.not_running(from, &id),
            },
            Request::Sockets => self.send_sockets(from),
            Request::Shutdown => self.shut_down(from),
        }
    }

    fn not_running(&mut self, from: u64, id: &str) {
        self.fail(from, format!("container {id:?} is not running"), true);
    }

    fn find(&self, id: &str) -> Option<u64> {
        self.containers
            .iter()
            .find(|(_, c)| c.id == id)
            .map(|(serial, _)| *serial)
    }

    fn watch(&mut self, from: u64) {
        if let Some(connection) = self.connections.get_mut(&from) {
            connection.watches = true;
        }
        let answer = Answer::Watching {
            pid: std::process::id() as i32,
            containers: self.containers.values().map(|c| c.id.clone()).collect(),
        };
        self.answer(from, &answer, &[]);
    }

    fn start(&mut self, from: u64, id: &str) -> std::result::Result<(), String> {
        if self.shutdown.is_some() {
            return Err("the sandbox is being stopped".to_string());
        }
        let spec = container::read_spec(&self.spec.dir, id).map_err(|e| e.to_string())?;
        let target = match &spec.pid {
            PidMode::Target(target) => {
                let target = self
                    .find(target)
                    .ok_or_else(|| format!("target container {target:?} is not running"))?;
                Some(self.containers[&target].pidfd.as_fd())
            }
            _ => None,
        };
        let users = self.sandbox.user.as_ref().zip(self.spec.user.as_ref());
        let users = users.map(|(namespace, spec)| MappedUsers {
            namespace: namespace.as_fd(),
            root: spec.root(),
        });
        let container = Container::start(spec, &self.sandbox, users, target, from).map_err(|e| e.to_string())?;
        let serial = self.next_serial();
        self.containers.insert(serial, container);
        Ok(())
    }

    /// The container is not started and never will be.
    fn report_failure(&mut self, from: u64, id: &str, message: &str) {
        let dir = self.spec.dir.join("containers").join(id);
        let exited = container::record_failure(&dir, id, message);
        self.fail(from, message, false);
        self.tell_watchers(&Answer::Exited(exited));
    }

    /// Looks at what a starting container says.
    pub(super) fn observe_start(&mut self, serial: u64) {
        while let Some(container) = self.containers.get_mut(&serial) {
            let Some(starting) = &container.starting else { return };
            let connection = starting.connection;
            match launch::read_status(starting.status.as_fd()) {
                ChildStatus::NothingYet => return,
                ChildStatus::Terminal(terminal) => {
                    // Without its terminal it is of no use; its end follows.
                    if container.set_terminal(terminal).is_err() {
                        container.signal(libc::SIGKILL, true);
                    }
                }
                ChildStatus::Failed(message) => {
                    // It has ended, or is about to.
                    let container = self.containers.remove(&serial).expect("it was just found");
                    drop(processes::wait_for(container.pid));
                    self.remove_cgroup(container.cgroup);
                    self.report_failure(connection, &container.id, &message);
                }
                ChildStatus::Done => {
                    container.starting = None;
                    let recorded = container.set_started();
                    let (id, pid, started_at) = (container.id.clone(), container.pid, container.started_at);
                    match recorded {
                        Ok(()) => {
                            self.answer(connection, &Answer::Started { pid, started_at }, &[]);
                            self.tell_watchers(&Answer::Running { id, pid, started_at });
                        }
                        Err(error) => {
                            container.signal(libc::SIGKILL, true);
                            self.fail(connection, format!("record the container's start: {error}"), false);
                        }
                    }
                }
            }
        }
    }

    fn exec(&mut self, from: u64, container: u64, process: &ProcessSpec, mut streams: Vec<OwnedFd>) -> Result<()> {
        let container = &self.containers[&container];
        let standard = match process.tty {
            true => None,
            false => {
                let mut next = || match streams.is_empty() {
                    true => container::open_null(),
                    false => Ok(streams.remove(0)),
                };
                Some(Standard {
                    stdin: next()?,
                    stdout: next()?,
                    stderr: next()?,
                })
            }
        };
        let (first, kinds) = (container.pidfd.as_fd(), container.namespaces);
        let launched = launch::start_exec(process, &container.cgroup, &self.sandbox, first, kinds, standard)?;
        let Launched { pid, pidfd, status } = launched;
        let exec = Exec {
            pid,
            pidfd,
            status: Some(status),
            terminal: None,
            connection: from,
        };
        let serial = self.next_serial();
        self.execs.insert(serial, exec);
        Ok(())
    }

    pub(super) fn observe_exec(&mut self, serial: u64) {
        while let Some(exec) = self.execs.get_mut(&serial) {
            let Some(status) = &exec.status else { return };
            let connection = exec.connection;
            match launch::read_status(status.as_fd()) {
                ChildStatus::NothingYet => return,
                ChildStatus::Terminal(terminal) => exec.terminal = Some(terminal),
                ChildStatus::Failed(message) => {
                    drop(processes::wait_for(exec.pid));
                    self.execs.remove(&serial);
                    self.fail(connection, message, false);
                }
                ChildStatus::Done => {
                    exec.status = None;
                    let answer = Answer::Started {
                        pid: exec.pid,
                        started_at: now_ns(),
                    };
                    // The client is the only one that holds the terminal: when it goes, the command is told so.
                    let terminal = exec.terminal.take();
                    let descriptors: Vec<BorrowedFd<'_>> = terminal.iter().map(OwnedFd::as_fd).collect();
                    self.answer(connection, &answer, &descriptors);
                }
            }
        }
    }

    fn attach(
        &mut self,
        from: u64,
        serial: u64,
        (stdin, stdout, stderr): (bool, bool, bool),
        mut descriptors: Vec<OwnedFd>,
    ) {
        let container = self.containers.get_mut(&serial).expect("it was just found");
        let mut sink = |wanted: bool| match wanted && !descriptors.is_empty() {
            true => Some(descriptors.remove(0)).filter(|fd| sockets::set_nonblocking(fd.as_fd()).is_ok()),
            false => None,
        };
        let client = Attached {
            connection: from,
            stdout: sink(stdout).map(Sink::new),
            stderr: sink(stderr).map(Sink::new),
        };
        container.outputs.attached.push(client);
        // The terminal also for its size.
        let handed = match (container.tty, stdin, container.stdin_once) {
            (true, _, _) => container.stdin.as_ref().and_then(|fd| fd.try_clone().ok()),
            // The client's is then the only one, and its end is the container's.
            (false, true, true) => container.stdin.take(),
            (false, true, false) => container.stdin.as_ref().and_then(|fd| fd.try_clone().ok()),
            (false, false, _) => None,
        };
        let descriptors: Vec<BorrowedFd<'_>> = handed.iter().map(OwnedFd::as_fd).collect();
        self.answer(from, &Answer::Attached, &descriptors);
    }

    fn send_sockets(&mut self, from: u64) {
        match (sockets::tcp_socket(libc::AF_INET), sockets::tcp_socket(libc::AF_INET6)) {
            (Ok(v4), Ok(v6)) => self.answer(from, &Answer::Done, &[v4.as_fd(), v6.as_fd()]),
            // A kernel without IPv6.
            (Ok(v4), Err(_)) => self.answer(from, &Answer::Done, &[v4.as_fd()]),
            (Err(error), _) => self.fail(from, error, false),
        }
    }

    fn shut_down(&mut self, from: u64) {
        self.shutdown = Some(from);
        for container in self.containers.values() {
            container.signal(libc::SIGKILL, true);
        }
    }
}
