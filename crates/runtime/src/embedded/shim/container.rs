//! One container: from the request to start it to the record of its end.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use nix::libc;

use crate::embedded::cgroups::CgroupSpec;
use crate::embedded::protocol::{ContainerStateFile, Exited, OOM_KILLED, START_ERROR, START_ERROR_CODE};
use crate::embedded::spec::{ContainerSpec, PidMode};
use crate::embedded::sys::{namespaces, sockets};

use super::error::{Result, Step};
use super::launch::{self, Launched};
use super::log::LogFile;
use super::output::{Outputs, Stream};
use super::program::Standard;
use super::rootfs::MappedUsers;
use super::sandbox::Sandbox;
use super::state_file;

/// Nanoseconds since the epoch.
pub(super) fn now_ns() -> i64 {
    let since = orlop_base::clock::wall().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

#[derive(Debug)]
pub(super) struct Container {
    pub id: String,
    pub dir: PathBuf,
    pub pid: i32,
    pub pidfd: OwnedFd,
    pub cgroup: CgroupSpec,
    /// Its program has not begun: what it says of that, and who waits for it.
    pub starting: Option<Starting>,
    pub started_at: i64,
    /// Namespaces that a command in it enters.
    pub namespaces: libc::c_int,
    /// Other processes of it may outlive its first one.
    shares_pids: bool,
    pub outputs: Outputs,
    /// Where its input is written to; for a terminal, the terminal.
    pub stdin: Option<OwnedFd>,
    pub stdin_once: bool,
    pub tty: bool,
}

#[derive(Debug)]
pub(super) struct Starting {
    pub status: OwnedFd,
    pub connection: u64,
}

/// Ends of pipes: the container's, and ours.
struct Pipes {
    theirs: Option<Standard>,
    stdin: Option<OwnedFd>,
    streams: Vec<Stream>,
}

impl Container {
    /// Begins to start a container.
    pub(super) fn start(
        spec: ContainerSpec,
        sandbox: &Sandbox,
        users: Option<MappedUsers<'_>>,
        target: Option<BorrowedFd<'_>>,
        connection: u64,
    ) -> Result<Container> {
        let log = spec
            .log
            .clone()
            .map(LogFile::open)
            .transpose()
            .step("open the log file")?;
        let pipes = open_pipes(&spec)?;
        spec.cgroup.create().step("create the cgroup")?;
        let launched = launch::start_container(&spec, sandbox, pipes.theirs, users, target);
        let Launched { pid, pidfd, status } = launched.inspect_err(|_| drop(spec.cgroup.group().remove()))?;
        let mut namespaces = libc::CLONE_NEWNS;
        if spec.cgroup_namespace {
            namespaces |= libc::CLONE_NEWCGROUP;
        }
        if users.is_some() {
            namespaces |= libc::CLONE_NEWUSER;
        }
        Ok(Container {
            id: spec.id,
            dir: spec.dir,
            pid,
            pidfd,
            // Its limits are set.
            cgroup: CgroupSpec {
                writes: vec![],
                devices: vec![],
                ..spec.cgroup
            },
            starting: Some(Starting { status, connection }),
            started_at: 0,
            namespaces,
            shares_pids: spec.pid != PidMode::Container,
            outputs: Outputs {
                streams: pipes.streams,
                log,
                attached: vec![],
            },
            stdin: pipes.stdin,
            stdin_once: spec.stdin_once,
            tty: spec.process.tty,
        })
    }

    /// The container has opened its terminal.
    pub(super) fn set_terminal(&mut self, terminal: OwnedFd) -> std::io::Result<()> {
        sockets::set_nonblocking(terminal.as_fd())?;
        self.stdin = Some(terminal.try_clone()?);
        self.outputs.streams = vec![Stream::new("stdout", terminal)];
        Ok(())
    }

    /// Its program has begun.
    pub(super) fn set_started(&mut self) -> std::io::Result<()> {
        self.started_at = now_ns();
        self.write_state(None)
    }

    fn write_state(&self, exited: Option<Exited>) -> std::io::Result<()> {
        let state = ContainerStateFile {
            pid: self.pid,
            started_at: self.started_at,
            exited,
        };
        state_file::write(&self.dir, &state)
    }

    /// A signal for its first process, or death for all of them.
    pub(super) fn signal(&self, signal: i32, all: bool) {
        // What has ended already needs no signal.
        drop(namespaces::signal_process(self.pidfd.as_fd(), signal));
        if all && self.shares_pids {
            self.cgroup.group().kill();
        }
    }

    /// Its first process has ended: ends the others, takes the last output, and records it all.
    pub(super) fn record_exit(&mut self, code: i32, buffer: &mut [u8]) -> Exited {
        if self.shares_pids {
            self.cgroup.group().kill();
        }
        self.outputs.drain(buffer);
        let oom_killed = self.cgroup.group().oom_kills() > 0;
        let exited = Exited {
            id: self.id.clone(),
            code,
            reason: if oom_killed { OOM_KILLED } else { "" }.to_string(),
            message: String::new(),
            started_at: self.started_at,
            finished_at: now_ns(),
        };
        // A full disk must not keep the exit from being told; a runtime that starts later finds the container gone.
        drop(self.write_state(Some(exited.clone())));
        exited
    }
}

/// Records that a container could not be started.
pub(super) fn record_failure(dir: &Path, id: &str, message: &str) -> Exited {
    let exited = Exited {
        id: id.to_string(),
        code: START_ERROR_CODE,
        reason: START_ERROR.to_string(),
        message: message.to_string(),
        started_at: 0,
        finished_at: now_ns(),
    };
    let state = ContainerStateFile {
        exited: Some(exited.clone()),
        ..ContainerStateFile::default()
    };
    drop(state_file::write(dir, &state));
    exited
}

fn open_pipes(spec: &ContainerSpec) -> Result<Pipes> {
    if spec.process.tty {
        return Ok(Pipes {
            theirs: None,
            stdin: None,
            streams: vec![],
        });
    }
    let (stdout, their_stdout) = output_pipe()?;
    let (stderr, their_stderr) = output_pipe()?;
    let (their_stdin, stdin) = match spec.stdin {
        true => {
            let (theirs, ours) = sockets::pipe().step("make a pipe")?;
            (theirs, Some(ours))
        }
        false => (open_null()?, None),
    };
    Ok(Pipes {
        theirs: Some(Standard {
            stdin: their_stdin,
            stdout: their_stdout,
            stderr: their_stderr,
        }),
        stdin,
        streams: vec![Stream::new("stdout", stdout), Stream::new("stderr", stderr)],
    })
}

fn output_pipe() -> Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = sockets::pipe().step("make a pipe")?;
    sockets::set_nonblocking(ours.as_fd()).step("make a pipe")?;
    Ok((ours, theirs))
}

pub(super) fn open_null() -> Result<OwnedFd> {
    let file = File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
        .step("open /dev/null")?;
    Ok(file.into())
}

/// What a container is made of, as the runtime wrote it.
pub(super) fn read_spec(pod: &Path, id: &str) -> Result<ContainerSpec> {
    let path = pod.join("containers").join(id).join("spec.json");
    let bytes = std::fs::read(&path).step_with(|| format!("read {}", path.display()))?;
    serde_json::from_slice(&bytes)
        .map_err(std::io::Error::from)
        .step("parse the container's spec")
}

/// Ready to be waited for.
pub(super) fn readable(fd: BorrowedFd<'_>) -> libc::pollfd {
    libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    }
}

pub(super) fn writable(fd: BorrowedFd<'_>) -> libc::pollfd {
    libc::pollfd {
        events: libc::POLLOUT,
        ..readable(fd)
    }
}
