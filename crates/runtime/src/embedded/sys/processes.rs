//! What a process says of itself to the kernel, and how children end.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use nix::libc;

use super::{checked, owned};

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub pid: i32,
    /// As a shell tells it: 128 and the signal for a killed one.
    pub code: i32,
}

/// A child that has ended and was not waited for yet; never blocks.
pub(crate) fn reap() -> Option<Ended> {
    let mut status = 0;
    // SAFETY: the status is written to a valid integer.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG | libc::__WALL) };
    if pid <= 0 {
        return None;
    }
    let code = match libc::WIFSIGNALED(status) {
        true => 128 + libc::WTERMSIG(status),
        false => libc::WEXITSTATUS(status),
    };
    Some(Ended { pid, code })
}

/// Waits for one child.
pub(crate) fn wait_for(pid: i32) -> io::Result<i32> {
    let mut status = 0;
    loop {
        // SAFETY: the status is written to a valid integer.
        match checked(unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL) }.into()) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            other => return other.map(|_| status),
        }
    }
}

fn prctl(option: libc::c_int, value: libc::c_ulong) -> io::Result<()> {
    // SAFETY: the options used here take one number; the others must be zero.
    checked(unsafe { libc::prctl(option, value, 0, 0, 0) }.into()).map(drop)
}

/// Orphaned descendants become children of this process.
pub(crate) fn become_subreaper() -> io::Result<()> {
    prctl(libc::PR_SET_CHILD_SUBREAPER, 1)
}

/// The signal this process gets when its parent dies. Changing the user resets it.
pub(crate) fn set_parent_death_signal(signal: i32) -> io::Result<()> {
    prctl(libc::PR_SET_PDEATHSIG, signal as libc::c_ulong)
}

/// Whether memory of this process, and of those that it becomes and makes, may be in huge pages. Without effect where the
/// kernel has none.
pub(crate) fn allow_huge_pages(allowed: bool) {
    drop(prctl(libc::PR_SET_THP_DISABLE, (!allowed).into()));
}

pub(crate) fn set_no_new_privileges() -> io::Result<()> {
    prctl(libc::PR_SET_NO_NEW_PRIVS, 1)
}

pub(crate) fn keep_capabilities(keep: bool) -> io::Result<()> {
    prctl(libc::PR_SET_KEEPCAPS, keep.into())
}

/// The name that `ps -o comm` shows; at most 15 bytes count.
pub(crate) fn set_name(name: &CStr) {
    // SAFETY: the kernel copies at most 16 bytes of a NUL-terminated text.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr(), 0, 0, 0) };
}

/// Replaces the command line that `ps` shows, as far as the place of the old one reaches.
pub(crate) fn set_command_line(words: &[&str]) {
    let Some((start, end)) = command_line_place() else {
        return;
    };
    let mut text: Vec<u8> = words.iter().flat_map(|w| w.bytes().chain([0])).collect();
    text.resize(end - start, 0);
    if let Some(last) = text.last_mut() {
        *last = 0;
    }
    // SAFETY: the kernel says that this process's arguments are between these addresses; they are on its initial stack,
    // which stays mapped and writable, and std has copied what it needs of them.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), start as *mut u8, text.len()) };
}

/// `arg_start` and `arg_end`, the 48th and 49th field of `/proc/self/stat`.
fn command_line_place() -> Option<(usize, usize)> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The second field is the name in brackets and may hold anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(45);
    let start = fields.next()?.parse().ok()?;
    let end = fields.next()?.parse().ok()?;
    (end > start).then_some((start, end))
}

/// Signals as a new program expects them: none blocked, none ignored.
pub(crate) fn reset_signals() {
    // SAFETY: the set is initialised by sigemptyset before it is used; SIG_DFL is valid for every signal, and the ones
    // that can't be changed are refused with an error that does not matter.
    unsafe {
        for signal in 1..=64 {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}

/// Children that end vanish by themselves.
pub(crate) fn ignore_children() {
    // SAFETY: SIG_IGN is a valid disposition.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
}

/// Blocks signals and returns a descriptor that is readable when one of them comes.
pub(crate) fn signals_as_descriptor(signals: &[i32]) -> io::Result<OwnedFd> {
    // SAFETY: the set is initialised by sigemptyset before it is used.
    unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut set);
        for &signal in signals {
            libc::sigaddset(&raw mut set, signal);
            libc::signal(signal, libc::SIG_DFL);
        }
        libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
        owned(libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK).into())
    }
}

/// Runs a program in place of this one. Returns only if that fails.
pub(crate) fn execute(program: &CStr, arguments: &[CString], environment: &[CString]) -> io::Error {
    let (arguments, environment) = (pointers(arguments), pointers(environment));
    // SAFETY: both lists hold NUL-terminated texts, end with null, and outlive the call.
    unsafe { libc::execve(program.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
    io::Error::last_os_error()
}

/// Ends this process without running anything that was registered for its end.
pub(crate) fn exit(code: i32) -> ! {
    // SAFETY: does not return.
    unsafe { libc::_exit(code) }
}

/// Makes a descriptor the process's standard input (0), output (1) or error (2).
pub(crate) fn replace_standard(stream: RawFd, with: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: takes descriptors; whatever was at `stream` is closed by the kernel.
    checked(unsafe { libc::dup2(with.as_raw_fd(), stream) }.into()).map(drop)
}

/// Closes all descriptors but one and the standard streams.
pub(crate) fn close_all_but_streams_and(kept: BorrowedFd<'_>) -> io::Result<()> {
    close_around(3, kept)
}

/// Closes all descriptors from `first` on: those that whoever started the process left open. To be called before it opens
/// any.
pub(crate) fn close_inherited_from(first: RawFd) -> io::Result<()> {
    // SAFETY: takes numbers only. Nothing in this process owns a descriptor yet.
    checked(unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0) }).map(drop)
}

/// Closes all descriptors but one.
pub(crate) fn close_all_but(kept: BorrowedFd<'_>) -> io::Result<()> {
    close_around(0, kept)
}

fn close_around(first: libc::c_uint, kept: BorrowedFd<'_>) -> io::Result<()> {
    let kept = kept.as_raw_fd() as libc::c_uint;
    for (first, last) in [(first, kept.saturating_sub(1)), (kept + 1, libc::c_uint::MAX)] {
        if first <= last && first != kept {
            // SAFETY: takes numbers only. The caller is about to use nothing but what is kept.
            checked(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) })?;
        }
    }
    Ok(())
}

/// Runs the program of a descriptor in place of this one. Returns only if that fails.
pub(crate) fn execute_descriptor(program: BorrowedFd<'_>, arguments: &[CString], environment: &[CString]) -> io::Error {
    let (arguments, environment) = (pointers(arguments), pointers(environment));
    // SAFETY: both lists hold NUL-terminated texts, end with null, and outlive the call.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_raw_fd(),
            c"".as_ptr(),
            arguments.as_ptr(),
            environment.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    io::Error::last_os_error()
}

/// A list of texts as the kernel takes it.
fn pointers(texts: &[CString]) -> Vec<*const libc::c_char> {
    texts.iter().map(|t| t.as_ptr()).chain([std::ptr::null()]).collect()
}

/// Nobody without power over the node looks into this process, until it runs another program.
pub(crate) fn become_opaque() -> io::Result<()> {
    prctl(libc::PR_SET_DUMPABLE, 0)
}

/// Waits until one of the descriptors is ready, or for `timeout_ms` (-1: as long as it takes).
pub(crate) fn poll(descriptors: &mut [libc::pollfd], timeout_ms: i32) -> io::Result<usize> {
    // SAFETY: the list and its length belong together.
    let result = unsafe { libc::poll(descriptors.as_mut_ptr(), descriptors.len() as libc::nfds_t, timeout_ms) };
    Ok(checked(result.into())? as usize)
}

/// A session keyring of its own, so that keys of the host's root are not found. Kernels without keyrings need none.
pub(crate) fn join_new_session_keyring() {
    const JOIN_SESSION_KEYRING: libc::c_int = 1;
    // SAFETY: a null name asks for an anonymous keyring.
    unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, std::ptr::null::<libc::c_char>()) };
}
