//! Pseudo terminals.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use nix::libc;
use tokio::io::unix::AsyncFd;

use super::{checked, owned};

/// The other side of a terminal's controlling end.
pub(crate) fn open_other_side(terminal: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let unlock: libc::c_int = 0;
    // SAFETY: the first request reads one integer, the second takes flags and returns a descriptor.
    unsafe {
        checked(libc::ioctl(terminal.as_raw_fd(), libc::TIOCSPTLCK, &raw const unlock).into())?;
        owned(libc::ioctl(terminal.as_raw_fd(), libc::TIOCGPTPEER, libc::O_RDWR | libc::O_NOCTTY).into())
    }
}

/// The number `N` of `/dev/pts/N`.
pub(crate) fn number(terminal: BorrowedFd<'_>) -> io::Result<u32> {
    let mut number: libc::c_uint = 0;
    // SAFETY: the request writes one integer.
    checked(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCGPTN, &raw mut number) }.into())?;
    Ok(number)
}

/// Makes a terminal that of this session, whose leader this process is.
pub(crate) fn make_controlling(terminal: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the request takes a number.
    checked(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSCTTY, 0) }.into()).map(drop)
}

pub(crate) fn set_size(terminal: BorrowedFd<'_>, width: u16, height: u16) -> io::Result<()> {
    let size = libc::winsize {
        ws_row: height,
        ws_col: width,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: the request reads one such structure.
    checked(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) }.into()).map(drop)
}

/// A nonblocking descriptor that tasks can wait for.
pub(crate) fn watch(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an owned descriptor is the same open one until it is dropped, which is after it was deregistered.
    Ok(unsafe { AsyncFd::register(fd)? })
}
