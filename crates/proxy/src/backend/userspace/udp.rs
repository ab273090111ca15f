//! UDP: each client has a socket of its own to an endpoint, until both have been silent for a while.

use std::cell::RefCell;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use nix::libc;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, sendmsg};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use super::listeners::Way;
use super::service::{Common, Counted, Service};

/// The longest datagram there is.
const DATAGRAM: usize = 65_535;
const PAUSE: Duration = Duration::from_millis(50);

thread_local! {
    /// One for each thread, not for each client: nothing stays in it while a task waits.
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; DATAGRAM]);
}

/// Who sends, and to which of our addresses: answers come from there.
type Client = (SocketAddr, IpAddr);

struct Session {
    socket: Arc<UdpSocket>,
    endpoint: SocketAddr,
    used: Arc<Mutex<Instant>>,
    answers: AbortHandle,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.answers.abort();
    }
}

/// The clients at one listener.
#[derive(Clone, Default)]
pub(super) struct Sessions(Arc<Mutex<FxHashMap<Client, Session>>>);

impl Sessions {
    /// Forgets those whose endpoint is no more, so that their next datagram goes elsewhere.
    pub(super) fn keep_only(&self, is_there: impl Fn(SocketAddr) -> bool) {
        self.0.lock().retain(|_, session| is_there(session.endpoint));
    }

    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }
}

/// Takes datagrams until it is dropped.
pub(super) async fn serve(
    socket: Arc<UdpSocket>,
    service: Arc<Service>,
    way: Way,
    common: Arc<Common>,
    sessions: Sessions,
) {
    loop {
        if socket.readable().await.is_err() {
            sleep(PAUSE).await;
            continue;
        }
        let received = BUFFER.with_borrow_mut(|buffer| {
            let (length, client) = match socket.try_io(Interest::READABLE, || receive(&socket, buffer)) {
                Ok(received) => received,
                Err(e) => return Err(e),
            };
            let known = sessions.0.lock().get(&client).map(|session| {
                *session.used.lock() = Instant::now();
                session.socket.clone()
            });
            match known {
                // A datagram that can't be sent at once is lost, as datagrams may be.
                Some(known) => {
                    let _ = SockRef::from(&*known).send(&buffer[..length]);
                    Ok(None)
                }
                None => Ok(Some((client, buffer[..length].to_vec()))),
            }
        });
        match received {
            Ok(None) => {}
            Ok(Some((client, first))) => {
                if let Some(upstream) = open(&socket, client, &service, way, &common, &sessions) {
                    let _ = SockRef::from(&*upstream).send(&first);
                }
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            // What an earlier answer met with: not this listener's end.
            Err(e) => tracing::debug!(service_port = %service.port().key, err = %e, "failed to receive datagram"),
        }
    }
}

/// A session for a client that has none; none if it is turned away or there are too many.
fn open(
    listener: &Arc<UdpSocket>,
    client: Client,
    service: &Service,
    way: Way,
    common: &Arc<Common>,
    sessions: &Sessions,
) -> Option<Arc<UdpSocket>> {
    let endpoint = service.pick(common, way, client.0.ip(), client.1, false)?;
    let Some(counted) = Counted::udp_client(common) else {
        common.warn_full("UDP clients");
        return None;
    };
    let socket = match connected(endpoint) {
        Ok(socket) => Arc::new(socket),
        Err(e) => {
            tracing::debug!(service_port = %service.port().key, %endpoint, err = %e, "failed to open session to endpoint");
            common.warn_full("UDP clients");
            return None;
        }
    };
    let used = Arc::new(Mutex::new(Instant::now()));
    let answers = {
        // The listener closes its socket when it ends, whatever answers there are.
        let listener = Arc::downgrade(listener);
        let (socket, used, sessions) = (socket.clone(), used.clone(), sessions.clone());
        let idle = common.settings.userspace.udp_idle_timeout;
        tokio::spawn(async move {
            answer(&listener, client, &socket, &used, idle).await;
            drop(counted);
            let mut sessions = sessions.0.lock();
            if sessions.get(&client).is_some_and(|s| Arc::ptr_eq(&s.socket, &socket)) {
                sessions.remove(&client);
            }
        })
    };
    let session = Session {
        socket: socket.clone(),
        endpoint,
        used,
        answers: answers.abort_handle(),
    };
    sessions.0.lock().insert(client, session);
    Some(socket)
}

fn connected(endpoint: SocketAddr) -> io::Result<UdpSocket> {
    let any: IpAddr = match endpoint {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = std::net::UdpSocket::bind((any, 0))?;
    socket.connect(endpoint)?;
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket)
}

/// Brings an endpoint's answers to its client, until both are silent or the endpoint says that nobody is there.
async fn answer(listener: &Weak<UdpSocket>, client: Client, socket: &UdpSocket, used: &Mutex<Instant>, idle: Duration) {
    loop {
        let waited = used.lock().elapsed();
        let Some(rest) = idle.checked_sub(waited).filter(|rest| !rest.is_zero()) else {
            return;
        };
        match timeout(rest, socket.readable()).await {
            Err(_) => continue,
            Ok(Err(_)) => return,
            Ok(Ok(())) => {}
        }
        let Some(listener) = listener.upgrade() else { return };
        let done = BUFFER.with_borrow_mut(|buffer| match socket.try_recv(buffer) {
            Ok(length) => {
                *used.lock() = Instant::now();
                let _ = send(&listener, &buffer[..length], client);
                false
            }
            Err(e) => e.kind() != io::ErrorKind::WouldBlock,
        });
        if done {
            return;
        }
    }
}

/// One datagram, with who sent it and to which address.
fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<(usize, Client)> {
    let mut control = nix::cmsg_space!(libc::in6_pktinfo);
    let mut parts = [IoSliceMut::new(buffer)];
    let message = recvmsg::<SockaddrStorage>(
        socket.as_raw_fd(),
        &mut parts,
        Some(&mut control),
        MsgFlags::MSG_DONTWAIT,
    )?;
    let peer = message.address.as_ref().and_then(socket_address);
    let to = message.cmsgs()?.find_map(|control| match control {
        ControlMessageOwned::Ipv4PacketInfo(info) => {
            Some(IpAddr::from(Ipv4Addr::from(u32::from_be(info.ipi_addr.s_addr))))
        }
        ControlMessageOwned::Ipv6PacketInfo(info) => Some(IpAddr::from(Ipv6Addr::from(info.ipi6_addr.s6_addr))),
        _ => None,
    });
    match (peer, to) {
        (Some(peer), Some(to)) => Ok((message.bytes, (peer, to))),
        _ => Err(io::Error::other("a datagram without addresses")),
    }
}

fn socket_address(address: &SockaddrStorage) -> Option<SocketAddr> {
    if let Some(v4) = address.as_sockaddr_in() {
        return Some(SocketAddrV4::from(*v4).into());
    }
    address.as_sockaddr_in6().map(|v6| SocketAddrV6::from(*v6).into())
}

/// Sends to a client from the address that it sent to.
fn send(socket: &UdpSocket, datagram: &[u8], (peer, from): Client) -> io::Result<()> {
    let parts = [IoSlice::new(datagram)];
    let to = SockaddrStorage::from(peer);
    let send = |control: ControlMessage| {
        sendmsg(
            socket.as_raw_fd(),
            &parts,
            &[control],
            MsgFlags::MSG_DONTWAIT,
            Some(&to),
        )?;
        Ok(())
    };
    match from {
        IpAddr::V4(ip) => send(ControlMessage::Ipv4PacketInfo(&libc::in_pktinfo {
            ipi_ifindex: 0,
            ipi_spec_dst: libc::in_addr {
                s_addr: u32::from(ip).to_be(),
            },
            ipi_addr: libc::in_addr { s_addr: 0 },
        })),
        IpAddr::V6(ip) => send(ControlMessage::Ipv6PacketInfo(&libc::in6_pktinfo {
            ipi6_addr: libc::in6_addr { s6_addr: ip.octets() },
            ipi6_ifindex: 0,
        })),
    }
}
