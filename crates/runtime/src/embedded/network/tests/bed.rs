//! A node, pods and somebody outside, each a network namespace.
//!
//! ```text
//!  outside 192.0.2.1, 2001:db8::1 ──── node 192.0.2.2, 2001:db8::2 ──── pods
//! ```

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, SockaddrIn6};
use orlop_netlink::route::{Route, RouteEntry, Veth, everywhere};
use orlop_netlink::{Family, Namespace};
use tempfile::TempDir;

use super::super::*;

/// How long one waits for what must come, and for what must not.
pub(super) const PATIENCE: Duration = Duration::from_secs(8);
const IMPATIENCE: Duration = Duration::from_millis(300);

pub(super) const V4: &str = "10.244.1.0/24";
pub(super) const V6: &str = "fd00:244:1::/64";
pub(super) const OUTSIDE: &str = "192.0.2.1";
pub(super) const NODE: &str = "192.0.2.2";
pub(super) const OUTSIDE6: &str = "2001:db8::1";
pub(super) const NODE6: &str = "2001:db8::2";

pub(super) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(super) fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

/// A file that stands for a namespace while the value that it is of is there.
pub(super) fn path(namespace: &Namespace) -> PathBuf {
    use std::os::fd::AsRawFd;
    format!("/proc/{}/fd/{}", std::process::id(), namespace.as_fd().as_raw_fd()).into()
}

/// An empty namespace with its loopback up, where addresses can be used at once.
pub(super) fn namespace() -> Namespace {
    let namespace = Namespace::create().expect("network namespaces (as root)");
    namespace
        .run(|| {
            node::set_unless_same("net/ipv6/conf/all/accept_dad", "0").unwrap();
            node::set_unless_same("net/ipv6/conf/default/accept_dad", "0").unwrap();
            let mut route = Route::open().unwrap();
            route.set_up(1).unwrap();
        })
        .unwrap();
    namespace
}

/// A cable between two namespaces; each end has these addresses, and a route to the other's.
pub(super) fn cable(left: (&Namespace, &str, &[IpAddr]), right: (&Namespace, &str, &[IpAddr])) {
    left.0
        .run(|| {
            let veth = Veth {
                name: left.1,
                peer_name: right.1,
                peer_namespace: right.0.as_fd(),
                mtu: 1500,
            };
            Route::open().unwrap().create_veth(&veth).unwrap();
        })
        .unwrap();
    let set_up = |(namespace, name, own): (&Namespace, &str, &[IpAddr]), others: &[IpAddr]| {
        namespace
            .run(|| {
                let mut route = Route::open().unwrap();
                let index = route.link(name).unwrap().unwrap().index;
                own.iter().for_each(|ip| route.add_address(index, *ip).unwrap());
                route.set_up(index).unwrap();
                for other in others {
                    let entry = RouteEntry::by_link(IpNet::from(*other), index);
                    route.replace_route(&entry).unwrap();
                }
            })
            .unwrap();
    };
    set_up(left, right.2);
    set_up(right, left.2);
}

pub(super) struct Bed {
    pub node: Namespace,
    pub outside: Namespace,
    pub network: PodNetwork,
    pub state: TempDir,
}

impl Bed {
    pub(super) async fn new(ranges: &[&str]) -> Bed {
        let (node, outside) = (namespace(), namespace());
        let (own, other) = ([ip(NODE), ip(NODE6)], [ip(OUTSIDE), ip(OUTSIDE6)]);
        cable((&node, "uplink", &own), (&outside, "eth0", &other));
        node.run(|| {
            let mut route = Route::open().unwrap();
            for (family, gateway) in [(Family::V4, OUTSIDE), (Family::V6, OUTSIDE6)] {
                let entry = RouteEntry::by_gateway(everywhere(family), ip(gateway));
                route.replace_route(&entry).unwrap();
            }
        })
        .unwrap();
        let state = tempfile::tempdir().unwrap();
        let network = open(&node, &state);
        let bed = Bed {
            node,
            outside,
            network,
            state,
        };
        bed.set_ranges(ranges).await;
        bed
    }

    /// As a new process has it.
    pub(super) async fn restart(&mut self, ranges: &[&str]) {
        self.network = open(&self.node, &self.state);
        self.set_ranges(ranges).await;
    }

    async fn set_ranges(&self, ranges: &[&str]) {
        self.network
            .set_ranges(ranges.iter().map(|r| net(r)).collect())
            .await
            .unwrap();
    }

    pub(super) async fn pod(&self, id: &str, ports: &[PortMapping]) -> Pod {
        let namespace = Namespace::create().unwrap();
        let addresses = self.network.attach(id, &path(&namespace), ports).await.unwrap();
        Pod { namespace, addresses }
    }

    /// What there is of the network on the node: links, routes and tables.
    pub(super) fn leftovers(&self) -> String {
        let show = "ip -o link | grep -v -e ': lo:' -e ': uplink@'; ip -4 route; ip -6 route; nft list tables";
        let shown = shell(&self.node, show);
        let own = [OUTSIDE, OUTSIDE6, "dev uplink"];
        let lines = shown.lines().filter(|line| !own.iter().any(|own| line.contains(own)));
        lines.map(|line| format!("{line}\n")).collect()
    }
}

fn open(node: &Namespace, state: &TempDir) -> PodNetwork {
    PodNetwork::open(options(node, state, "node-1", Transport::Routes)).unwrap()
}

pub(super) fn options(node: &Namespace, state: &TempDir, name: &str, transport: Transport) -> Options {
    Options {
        state_dir: state.path().join("network"),
        cluster: "test".to_string(),
        node: name.to_string(),
        cluster_ranges: vec![net("10.244.0.0/16"), net("fd00:244::/32")],
        mtu: None,
        transport,
        namespace: Some(path(node)),
    }
}

pub(super) struct Pod {
    pub namespace: Namespace,
    pub addresses: Vec<IpAddr>,
}

impl Pod {
    pub(super) fn v4(&self) -> IpAddr {
        *self.addresses.iter().find(|ip| ip.is_ipv4()).unwrap()
    }

    pub(super) fn v6(&self) -> IpAddr {
        *self.addresses.iter().find(|ip| ip.is_ipv6()).unwrap()
    }
}

pub(super) fn shell(namespace: &Namespace, command: &str) -> String {
    let run = || std::process::Command::new("sh").args(["-c", command]).output().unwrap();
    let output = namespace.run(run).unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Answers each connection with the address it came from, until the value is dropped.
pub(super) struct Server {
    address: SocketAddr,
    namespace: Namespace,
    thread: Option<std::thread::JoinHandle<()>>,
}

pub(super) fn serve(namespace: &Namespace, address: &str) -> Server {
    let address: SocketAddr = address.parse().unwrap();
    let listener = namespace.run(|| TcpListener::bind(address).unwrap()).unwrap();
    let thread = std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut line = [0; 4];
            match stream.read(&mut line) {
                Ok(4) if line == *b"end\n" => return,
                Ok(_) => {
                    let peer = stream
                        .peer_addr()
                        .map_or(String::new(), |peer| peer.ip().to_canonical().to_string());
                    let _ = stream.write_all(peer.as_bytes());
                }
                Err(_) => {}
            }
        }
    });
    Server {
        address,
        namespace: namespace.clone(),
        thread: Some(thread),
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let mut to = self.address;
        if to.ip().is_unspecified() {
            to.set_ip(if to.is_ipv4() { ip("127.0.0.1") } else { ip("::1") });
        }
        let _ = self.namespace.run(|| {
            let mut stream = TcpStream::connect_timeout(&to, PATIENCE).ok()?;
            stream.write_all(b"end\n").ok()
        });
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The address that a server saw; none if it was not reached.
pub(super) fn ask(from: &Namespace, to: IpAddr, port: u16) -> Option<IpAddr> {
    ask_within(from, to, port, PATIENCE)
}

/// The same for what must not get through.
pub(super) fn is_out_of_reach(from: &Namespace, to: IpAddr, port: u16) -> bool {
    ask_within(from, to, port, IMPATIENCE).is_none()
}

/// Why no connection comes about.
pub(super) fn refusal(from: &Namespace, to: IpAddr, port: u16) -> Option<std::io::ErrorKind> {
    let connect = || TcpStream::connect_timeout(&SocketAddr::new(to, port), PATIENCE);
    from.run(connect).unwrap().err().map(|error| error.kind())
}

fn ask_within(from: &Namespace, to: IpAddr, port: u16, limit: Duration) -> Option<IpAddr> {
    from.run(|| {
        let mut stream = TcpStream::connect_timeout(&SocketAddr::new(to, port), limit).ok()?;
        stream.set_read_timeout(Some(limit)).unwrap();
        stream.write_all(b"ask\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.parse().ok()
    })
    .unwrap()
}

/// Sends a datagram to a socket that is bound there, and back; the address that it came from.
pub(super) fn ask_udp(from: &Namespace, to: (IpAddr, u16), server: &Namespace, at: (IpAddr, u16)) -> Option<IpAddr> {
    let socket = server.run(|| UdpSocket::bind(at).unwrap()).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let any = if to.0.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let client = from.run(|| UdpSocket::bind(any).unwrap()).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.send_to(b"ask", to).ok()?;
    let mut buffer = [0; 8];
    let (_, source) = socket.recv_from(&mut buffer).ok()?;
    socket.send_to(b"told", source).unwrap();
    let (_, answered) = client.recv_from(&mut buffer).ok()?;
    assert_eq!(answered.ip(), to.0, "the answer comes from where it was asked");
    Some(source.ip())
}

/// A packet with a source address of somebody else arrives nowhere; one with the pod's own does.
pub(super) fn send_from(pod: &Namespace, source: IpAddr, to: (IpAddr, u16)) -> bool {
    use nix::sys::socket::{self, sockopt};
    pod.run(|| {
        let family = if source.is_ipv4() {
            AddressFamily::Inet
        } else {
            AddressFamily::Inet6
        };
        let fd = socket::socket(family, SockType::Datagram, SockFlag::empty(), None).unwrap();
        socket::setsockopt(&fd, sockopt::IpTransparent, &true).unwrap();
        use std::os::fd::AsRawFd;
        let bound = match SocketAddr::new(source, 0) {
            SocketAddr::V4(a) => socket::bind(fd.as_raw_fd(), &SockaddrIn::from(a)),
            SocketAddr::V6(a) => socket::bind(fd.as_raw_fd(), &SockaddrIn6::from(a)),
        };
        bound.unwrap();
        UdpSocket::from(fd).send_to(b"hello", to).is_ok()
    })
    .unwrap()
}
