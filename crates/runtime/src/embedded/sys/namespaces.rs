//! Namespaces, and processes made in them.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::libc;

use super::checked;

/// `struct clone_args` of `clone3(2)`, up to the field `cgroup` (Linux 5.7).
#[repr(C)]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Which side of a fork one is on.
#[derive(Debug)]
pub(crate) enum Fork {
    Child,
    Parent { pid: i32, pidfd: OwnedFd },
}

/// Makes a child in new namespaces (`CLONE_NEW*`), at once in a cgroup of version 2 if one is given.
///
/// Only for single-threaded processes: the child may then do what the parent could.
pub(crate) fn fork(namespaces: libc::c_int, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Fork> {
    let mut pidfd: libc::c_int = -1;
    let mut args = CloneArgs {
        flags: namespaces as u64 | libc::CLONE_PIDFD as u64,
        pidfd: std::ptr::from_mut(&mut pidfd) as u64,
        exit_signal: libc::SIGCHLD as u64,
        ..CloneArgs::default()
    };
    if let Some(cgroup) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = cgroup.as_raw_fd() as u64;
    }
    // SAFETY: the arguments have the kernel's layout with their size given; without CLONE_VM the child has its own copy
    // of all memory and goes on with the same stack, as after fork(2). This process has one thread.
    let result = unsafe { libc::syscall(libc::SYS_clone3, std::ptr::from_ref(&args), size_of::<CloneArgs>()) };
    match checked(result)? {
        0 => Ok(Fork::Child),
        pid => Ok(Fork::Parent {
            pid: pid as i32,
            // SAFETY: the call succeeded with CLONE_PIDFD, so the kernel has put an open descriptor there.
            pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) },
        }),
    }
}

pub(crate) fn unshare(namespaces: libc::c_int) -> io::Result<()> {
    // SAFETY: takes flags only.
    checked(unsafe { libc::unshare(namespaces) }.into()).map(drop)
}

/// Enters the namespace of a descriptor, or those of a process that its descriptor stands for.
pub(crate) fn enter(namespace: BorrowedFd<'_>, kinds: libc::c_int) -> io::Result<()> {
    // SAFETY: takes an open descriptor and flags.
    checked(unsafe { libc::setns(namespace.as_raw_fd(), kinds) }.into()).map(drop)
}

/// Sends a signal to the process that a descriptor stands for; never to another one that got its number since.
pub(crate) fn signal_process(process: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    let none = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: a null siginfo is allowed and means what kill(2) sends.
    checked(unsafe { libc::syscall(libc::SYS_pidfd_send_signal, process.as_raw_fd(), signal, none, 0) }).map(drop)
}
