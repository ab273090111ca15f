//! System calls that neither std nor nix wraps, one thin function each.
//!
//! The only modules of Orlop with `unsafe`: what is called here gets valid pointers and lengths from the arguments' types,
//! and whatever a call returns is checked before it is used.
#![allow(unsafe_code)]

pub(crate) mod identity;
pub(crate) mod mounts;
pub(crate) mod namespaces;
pub(crate) mod processes;
pub(crate) mod sockets;
pub(crate) mod terminals;

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::libc;

/// The result of a call that returns -1 and sets `errno` when it fails.
fn checked(result: libc::c_long) -> io::Result<libc::c_long> {
    match result {
        -1 => Err(io::Error::last_os_error()),
        value => Ok(value),
    }
}

/// A descriptor that the kernel has just handed out.
fn owned(result: libc::c_long) -> io::Result<OwnedFd> {
    let fd = checked(result)?;
    // SAFETY: the call succeeded, so this is an open descriptor that nobody else knows of.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// A path as the kernel takes it.
pub(crate) fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// The path by which an open descriptor can be named, for calls that only take paths.
pub(crate) fn fd_path(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}
