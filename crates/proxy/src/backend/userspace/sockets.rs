//! Sockets to listen at, and how many there may be.

use std::io;
use std::net::SocketAddr;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Socket, Type};

use super::listeners::Spot;
use crate::plan::Protocol;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// A socket at a spot, in the network namespace of this thread.
pub(super) fn bind(spot: &Spot) -> io::Result<Socket> {
    let kind = match spot.protocol {
        Protocol::Tcp => Type::STREAM,
        Protocol::Udp => Type::DGRAM,
        Protocol::Sctp => {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "SCTP is not served in this mode",
            ));
        }
    };
    let socket = Socket::new(Domain::for_address(spot.address), kind.nonblocking().cloexec(), None)?;
    // A cluster address may have a port that is also a node port at all addresses, and a proxy that starts anew may find
    // its forerunner still there.
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    // A route makes a whole range local, which is not enough for IPv6 to let one listen in it.
    match spot.address {
        SocketAddr::V4(_) => socket.set_freebind_v4(true)?,
        SocketAddr::V6(_) => {
            socket.set_only_v6(true)?;
            socket.set_freebind_v6(true)?;
        }
    }
    if spot.protocol == Protocol::Udp {
        match spot.address {
            SocketAddr::V4(_) => setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?,
            SocketAddr::V6(_) => setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)?,
        }
    }
    socket.bind(&spot.address.into())?;
    if spot.protocol == Protocol::Tcp {
        socket.listen(BACKLOG)?;
    }
    Ok(socket)
}

/// Lets this process open as many files as it ever may; how many that is.
pub(super) fn raise_file_limit() -> usize {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return 1024;
    };
    if soft < hard && setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok() {
        return usize::try_from(hard).unwrap_or(usize::MAX);
    }
    usize::try_from(soft).unwrap_or(usize::MAX)
}
