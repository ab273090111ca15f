//! Unix sockets that carry descriptors.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::libc;

use super::{checked, owned};

/// Descriptors that one message may carry.
pub(crate) const DESCRIPTORS_MAX: usize = 4;
const CONTROL_BYTES: usize = 64;

/// A buffer for control messages, aligned as the kernel wants it.
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

fn pair(kind: libc::c_int) -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [-1; 2];
    // SAFETY: two descriptors are written to the array.
    checked(unsafe { libc::socketpair(libc::AF_UNIX, kind | libc::SOCK_CLOEXEC, 0, fds.as_mut_ptr()) }.into())?;
    // SAFETY: the call succeeded, so both are open and nobody else's.
    Ok(unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) })
}

/// Two connected sockets that keep messages apart.
pub(crate) fn message_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    pair(libc::SOCK_SEQPACKET)
}

/// Two connected stream sockets.
pub(crate) fn stream_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    pair(libc::SOCK_STREAM)
}

/// Both ends of a pipe: to read, to write.
pub(crate) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [-1; 2];
    // SAFETY: two descriptors are written to the array.
    checked(unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) }.into())?;
    // SAFETY: the call succeeded, so both are open and nobody else's.
    Ok(unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) })
}

/// An unconnected TCP socket of this process's network namespace.
pub(crate) fn tcp_socket(family: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: takes numbers only.
    owned(unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0) }.into())
}

pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: takes an open descriptor and numbers.
    unsafe {
        let flags = checked(libc::fcntl(fd.as_raw_fd(), libc::F_GETFL).into())? as libc::c_int;
        checked(libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK).into()).map(drop)
    }
}

/// Sends bytes and at most [`DESCRIPTORS_MAX`] descriptors; returns how many bytes went.
pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
    assert!(
        descriptors.len() <= DESCRIPTORS_MAX,
        "room for {DESCRIPTORS_MAX} descriptors"
    );
    let mut control = Control([0; CONTROL_BYTES]);
    let mut part = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: zero is a valid value of this structure.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    if !descriptors.is_empty() {
        let size = size_of_val(descriptors) as u32;
        // SAFETY: the buffer is aligned and large enough for DESCRIPTORS_MAX descriptors, so the header and its data lie
        // within it; a borrowed descriptor is one integer.
        unsafe {
            message.msg_control = (&raw mut control).cast();
            message.msg_controllen = libc::CMSG_SPACE(size) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size) as _;
            let data = libc::CMSG_DATA(header).cast::<libc::c_int>();
            for (at, fd) in descriptors.iter().enumerate() {
                data.add(at).write_unaligned(fd.as_raw_fd());
            }
        }
    }
    // SAFETY: the message points to parts that outlive the call.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
    Ok(checked(sent as libc::c_long)? as usize)
}

/// Receives bytes, and descriptors that came with them; 0 bytes is the end.
pub(crate) fn receive(socket: BorrowedFd<'_>, into: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut control = Control([0; CONTROL_BYTES]);
    let mut part = libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    };
    // SAFETY: zero is a valid value of this structure.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = CONTROL_BYTES as _;
    // SAFETY: the message points to buffers with their lengths, which outlive the call.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    let received = checked(received as libc::c_long)? as usize;
    // SAFETY: the kernel has filled the control buffer with whole headers within msg_controllen; what SCM_RIGHTS carries
    // are open descriptors that are ours now.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&raw const message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let data = libc::CMSG_DATA(header).cast::<libc::c_int>();
                for at in 0..bytes / size_of::<libc::c_int>() {
                    descriptors.push(OwnedFd::from_raw_fd(data.add(at).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
    }
    Ok(received)
}

/// Brings a network interface of this process's network namespace up.
pub(crate) fn set_interface_up(socket: BorrowedFd<'_>, name: &std::ffi::CStr) -> io::Result<()> {
    // SAFETY: zero is a valid value of this structure.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.to_bytes()) {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
    // SAFETY: the request takes such a structure.
    checked(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) }.into()).map(drop)
}
