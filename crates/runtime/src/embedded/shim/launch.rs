//! How processes of containers are made: forked from the shim, set up, and turned into their programs.
//!
//! A child tells how it fares over a socket: the terminal it opened, an error, or nothing but the socket's end, which
//! is when its program has begun.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::libc;
use nix::sys::stat::{Mode, umask};

use crate::embedded::cgroups::CgroupSpec;
use crate::embedded::spec::{ContainerSpec, PidMode, ProcessSpec};
use crate::embedded::sys::namespaces::{self, Fork};
use crate::embedded::sys::{identity, mounts as raw_mounts, processes, sockets, terminals};

use super::container::readable;
use super::error::{Result, Step, StepError};
use super::program::{self, Standard};
use super::rootfs::{self, MappedUsers};
use super::sandbox::Sandbox;
use super::{devices, mounts};

/// A process that is being started.
#[derive(Debug)]
pub(super) struct Launched {
    pub pid: i32,
    pub pidfd: OwnedFd,
    pub status: OwnedFd,
}

/// What a child has said.
#[derive(Debug)]
pub(super) enum ChildStatus {
    /// Its terminal's controlling end.
    Terminal(OwnedFd),
    Failed(String),
    /// Its program runs, or it is dead.
    Done,
    NothingYet,
}

const TERMINAL: u8 = b'T';
const ERROR: u8 = b'E';
const ERROR_BYTES_MAX: usize = 4096;

/// Reads what a child has said; never blocks.
pub(super) fn read_status(status: BorrowedFd<'_>) -> ChildStatus {
    let (mut bytes, mut fds) = ([0; ERROR_BYTES_MAX], vec![]);
    match sockets::receive(status, &mut bytes, &mut fds) {
        Ok(0) => ChildStatus::Done,
        Ok(count) => match (bytes[0], fds.pop()) {
            (TERMINAL, Some(terminal)) => ChildStatus::Terminal(terminal),
            _ => ChildStatus::Failed(String::from_utf8_lossy(&bytes[1..count]).into_owned()),
        },
        Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => ChildStatus::NothingYet,
        Err(_) => ChildStatus::Done,
    }
}

fn report(status: BorrowedFd<'_>, error: &StepError) {
    let mut bytes = vec![ERROR];
    bytes.extend(error.to_string().bytes().take(ERROR_BYTES_MAX - 1));
    drop(sockets::send(status, &bytes, &[]));
}

/// Starts a container's first process. `target` is the process whose PID namespace it joins, if it does.
pub(super) fn start_container(
    spec: &ContainerSpec,
    sandbox: &Sandbox,
    streams: Option<Standard>,
    users: Option<MappedUsers<'_>>,
    target: Option<BorrowedFd<'_>>,
) -> Result<Launched> {
    let pids = match spec.pid {
        PidMode::Container => libc::CLONE_NEWPID,
        PidMode::Pod | PidMode::Node | PidMode::Target(_) => 0,
    };
    let joined = match spec.pid {
        PidMode::Pod => {
            // Without it the container would see the node's processes.
            let shared = sandbox
                .shared_pids
                .as_ref()
                .ok_or(io::Error::from(io::ErrorKind::NotFound));
            Some(shared.step("join the pod's PID namespace")?.namespace.as_fd())
        }
        PidMode::Target(_) => target,
        PidMode::Container | PidMode::Node => None,
    };
    launch(sandbox, &spec.cgroup, libc::CLONE_NEWNS | pids, joined, |status| {
        container_child(spec, sandbox, streams, users, status)
    })
}

/// Starts a command beside a container's first process.
pub(super) fn start_exec(
    process: &ProcessSpec,
    cgroup: &CgroupSpec,
    sandbox: &Sandbox,
    first: BorrowedFd<'_>,
    kinds: libc::c_int,
    streams: Option<Standard>,
) -> Result<Launched> {
    launch(sandbox, cgroup, 0, Some(first), |status| {
        exec_child(process, first, kinds, streams, status)
    })
}

fn launch(
    sandbox: &Sandbox,
    cgroup: &CgroupSpec,
    kinds: libc::c_int,
    joined_pids: Option<BorrowedFd<'_>>,
    child: impl FnOnce(BorrowedFd<'_>) -> StepError,
) -> Result<Launched> {
    let (ours, theirs) = sockets::message_pair().step("make a socket")?;
    let directory = cgroup.group().open_for_clone().step("open the cgroup")?;
    if let Some(pids) = joined_pids {
        namespaces::enter(pids, libc::CLONE_NEWPID).step("join the PID namespace")?;
    }
    let forked = namespaces::fork(kinds, directory.as_ref().map(OwnedFd::as_fd)).step("fork");
    if let Ok(Fork::Child) = forked {
        drop(ours);
        let error = match join_cgroup(cgroup, directory.is_some(), theirs.as_fd()) {
            Ok(()) => child(theirs.as_fd()),
            Err(error) => error,
        };
        report(theirs.as_fd(), &error);
        processes::exit(1);
    }
    if joined_pids.is_some() {
        namespaces::enter(sandbox.own_pids.as_fd(), libc::CLONE_NEWPID).step("leave the PID namespace")?;
    }
    match forked? {
        Fork::Child => unreachable!("the child has ended above"),
        Fork::Parent { pid, pidfd } => {
            sockets::set_nonblocking(ours.as_fd()).step("make a socket")?;
            Ok(Launched {
                pid,
                pidfd,
                status: ours,
            })
        }
    }
}

/// First of all: whatever happens from here on, the process can be found and killed.
fn join_cgroup(cgroup: &CgroupSpec, made_in_it: bool, status: BorrowedFd<'_>) -> Result<()> {
    processes::set_parent_death_signal(libc::SIGKILL).step("follow the shim")?;
    // A shim that died before that was not followed; its end of the socket went with it.
    let mut shim = [readable(status)];
    if processes::poll(&mut shim, 0).step("look for the shim")? > 0 {
        processes::exit(1);
    }
    processes::reset_signals();
    match made_in_it {
        true => Ok(()),
        false => cgroup.group().join().step("join the cgroup"),
    }
}

fn begin(process: &ProcessSpec) -> Result<()> {
    nix::unistd::setsid().step("start a session")?;
    umask(Mode::from_bits_truncate(0));
    match process.oom_score_adj {
        Some(adjustment) => set_oom_score_adj(adjustment).step("set oom_score_adj"),
        None => Ok(()),
    }
}

/// Lower than ours it can be made only with CAP_SYS_RESOURCE, which root lacks in many containers: then it stays ours, as
/// with containerd's `restrict_oom_score_adj`.
fn set_oom_score_adj(adjustment: i32) -> io::Result<()> {
    match fs::write("/proc/self/oom_score_adj", adjustment.to_string()) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        outcome => outcome,
    }
}

fn container_child(
    spec: &ContainerSpec,
    sandbox: &Sandbox,
    streams: Option<Standard>,
    users: Option<MappedUsers<'_>>,
    status: BorrowedFd<'_>,
) -> StepError {
    let made = begin(&spec.process)
        .and_then(|()| build_root(spec, sandbox, users))
        .and_then(|()| {
            let owner = users.map_or(spec.process.uid, |users| users.outside(spec.process.uid));
            open_streams(owner, streams, status, true)
        })
        .and_then(|()| match users {
            Some(users) => enter_user_namespace(users),
            None => Ok(()),
        });
    match made {
        Ok(()) => run(&spec.process, status),
        Err(error) => error,
    }
}

fn run(process: &ProcessSpec, status: BorrowedFd<'_>) -> StepError {
    umask(Mode::from_bits_truncate(0o022));
    processes::join_new_session_keyring();
    program::run(process, status)
}

fn build_root(spec: &ContainerSpec, sandbox: &Sandbox, users: Option<MappedUsers<'_>>) -> Result<()> {
    if spec.cgroup_namespace {
        namespaces::unshare(libc::CLONE_NEWCGROUP).step("create a cgroup namespace")?;
    }
    let trees = mounts::open_trees(spec, sandbox, users)?;
    let root = rootfs::mount_root(&spec.root, users)?;
    mounts::mount_all(spec, &root, trees, users)?;
    devices::create_all(spec, &root)?;
    let cwd = Path::new(&spec.process.cwd);
    root.open_or_create(cwd, true)
        .step_with(|| format!("create the working directory {}", cwd.display()))?;
    for path in &spec.read_only_paths {
        mounts::protect(&root, path)?;
    }
    for path in &spec.masked_paths {
        mounts::mask(&root, path)?;
    }
    if spec.root.read_only {
        mounts::set_read_only(root.dir.as_fd()).step("make the root read-only")?;
    }
    rootfs::enter_root(&root)
}

/// The mounts are locked to those of the user namespace: what was masked or made read-only stays so.
fn enter_user_namespace(users: MappedUsers<'_>) -> Result<()> {
    namespaces::enter(users.namespace, libc::CLONE_NEWUSER).step("enter the user namespace")?;
    namespaces::unshare(libc::CLONE_NEWNS).step("own the mounts")
}

/// The streams of a process, owned by its user as this process knows it.
fn open_streams(owner: u32, streams: Option<Standard>, status: BorrowedFd<'_>, console: bool) -> Result<()> {
    if let Some(streams) = streams {
        return program::use_streams(&streams, owner);
    }
    let (controlling, terminal) = program::open_terminal()?;
    if console {
        mount_console(&controlling)?;
    }
    sockets::send(status, &[TERMINAL], &[controlling.as_fd()]).step("hand out the terminal")?;
    program::use_terminal(terminal.as_fd(), owner)
}

fn mount_console(controlling: &OwnedFd) -> Result<()> {
    let console = Path::new("/dev/console");
    if !console.exists() {
        fs::write(console, "").step("create /dev/console")?;
    }
    let number = terminals::number(controlling.as_fd()).step("number the terminal")?;
    let tree = raw_mounts::clone_tree_at(Path::new(&format!("/dev/pts/{number}")), false).step("open the terminal")?;
    let target = rootfs::open_path(console).step("open /dev/console")?;
    raw_mounts::attach_tree(tree.as_fd(), target.as_fd()).step("mount /dev/console")
}

fn exec_child(
    process: &ProcessSpec,
    first: BorrowedFd<'_>,
    kinds: libc::c_int,
    streams: Option<Standard>,
    status: BorrowedFd<'_>,
) -> StepError {
    let entered = begin(process)
        .and_then(|()| namespaces::enter(first, kinds).step("enter the container's namespaces"))
        .and_then(|()| match kinds & libc::CLONE_NEWUSER {
            0 => Ok(()),
            // Whoever it was outside is nobody here, and could own nothing.
            _ => identity::become_user(0, 0, &[]).step("become root of the user namespace"),
        })
        .and_then(|()| open_streams(process.uid, streams, status, false));
    match entered {
        Ok(()) => run(process, status),
        Err(error) => error,
    }
}
