//! Two nodes with pods, a router between them, and clients outside: each a namespace.
//!
//! ```text
//!  outside 203.0.113.10 ──┐                 ┌─ client  10.244.1.10
//!                         ├── router ── host ├─ a1…a3   10.244.1.11…13      (node A, where the proxy runs)
//!  stranger 198.18.0.10 ──┘      │           └ 10.244.1.1 on each cable
//!                                └─ node B ── b1, b2    10.244.2.11, 12
//! ```
//!
//! The same in IPv6. The router sends external, load balancer and cluster addresses to node A. Pods hang on cables of
//! their own, with host routes, as many network plugins have it; in the bridged world they share a bridge.
//! Pods serve on port 8080, TCP and UDP: they answer each line with their name and the address it came from.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use ipnet::IpNet;
use orlop_proxy::plan::{Family, Protocol};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;

use crate::netns::{Netns, address, bridge, cable, plug, route, set};

/// Where pods serve.
pub(crate) const POD_PORT: u16 = 8080;
/// How long one waits for what must come, and for what must not.
pub(crate) const PATIENCE: Duration = Duration::from_secs(8);
pub(crate) const IMPATIENCE: Duration = Duration::from_millis(300);

/// Pods by name, with the last number of their address; the first letter says on which node.
pub(crate) const PODS: [(&str, u8); 6] = [
    ("client", 10),
    ("a1", 11),
    ("a2", 12),
    ("a3", 13),
    ("b1", 11),
    ("b2", 12),
];

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// This pod answered, and saw this source.
    Answer {
        pod: String,
        source: IpAddr,
    },
    /// No such thing: an ICMP message or a reset came back.
    Refused,
    /// A connection came about, and ended without an answer.
    Closed,
    /// A router knows no way.
    Unreachable,
    Timeout,
}

/// A namespace and its addresses, IPv4 and IPv6.
#[derive(Clone)]
pub(crate) struct Place {
    pub netns: Netns,
    pub v4: IpAddr,
    pub v6: IpAddr,
}

pub(crate) struct World {
    places: BTreeMap<&'static str, Place>,
    _router: Netns,
    servers: Option<Runtime>,
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

/// A namespace on a cable to the router, which is its way to everywhere.
fn behind_router(router: &Netns, link: &str, network: &str, network6: &str, host: u8) -> Place {
    let netns = Netns::new();
    cable((router, link), (&netns, "eth0"));
    let (near, near6) = (format!("{network}.1"), format!("{network6}::1"));
    let (far, far6) = (format!("{network}.{host}"), format!("{network6}::{host}"));
    router.enter(|| {
        address(link, net(&format!("{near}/24")));
        address(link, net(&format!("{near6}/64")));
    });
    netns.enter(|| {
        address("eth0", net(&format!("{far}/24")));
        address("eth0", net(&format!("{far6}/64")));
        route(net("0.0.0.0/0"), "eth0", Some(ip(&near)));
        route(net("::/0"), "eth0", Some(ip(&near6)));
    });
    Place {
        netns,
        v4: ip(&far),
        v6: ip(&far6),
    }
}

/// A pod on a cable to its node.
fn pod(node: &Netns, number: u8, name: &str, host: u8, on_bridge: bool) -> Place {
    let netns = Netns::new();
    let link = format!("veth-{name}");
    cable((node, &link), (&netns, "eth0"));
    let (gateway, gateway6) = (format!("10.244.{number}.1"), format!("fd00:244:{number}::1"));
    let (own, own6) = (format!("10.244.{number}.{host}"), format!("fd00:244:{number}::{host}"));
    node.enter(|| {
        if on_bridge {
            plug(&link, "cni0");
        } else {
            address(&link, net(&format!("{gateway}/32")));
            address(&link, net(&format!("{gateway6}/128")));
            route(net(&format!("{own}/32")), &link, None);
            route(net(&format!("{own6}/128")), &link, None);
        }
    });
    netns.enter(|| {
        let (width, width6) = if on_bridge { (24, 64) } else { (32, 128) };
        address("eth0", net(&format!("{own}/{width}")));
        address("eth0", net(&format!("{own6}/{width6}")));
        if !on_bridge {
            route(net(&format!("{gateway}/32")), "eth0", None);
            route(net(&format!("{gateway6}/128")), "eth0", None);
        }
        route(net("0.0.0.0/0"), "eth0", Some(ip(&gateway)));
        route(net("::/0"), "eth0", Some(ip(&gateway6)));
    });
    Place {
        netns,
        v4: ip(&own),
        v6: ip(&own6),
    }
}

impl World {
    pub(crate) fn routed() -> World {
        World::new(false)
    }

    /// Node A's pods share a bridge, which netfilter looks into (`br_netfilter`), as packets between two pods of the
    /// same bridge otherwise never come by the node's rules.
    pub(crate) fn bridged() -> World {
        World::new(true)
    }

    fn new(on_bridge: bool) -> World {
        let router = Netns::new();
        router.forward();
        let node = behind_router(&router, "to-a", "172.16.1", "fd00:1", 2);
        let other = behind_router(&router, "to-b", "172.16.2", "fd00:2", 2);
        let outside = behind_router(&router, "outside", "203.0.113", "2001:db8:3", 10);
        let stranger = behind_router(&router, "stranger", "198.18.0", "2001:db8:4", 10);
        node.netns.forward();
        other.netns.forward();
        router.enter(|| {
            for to in [
                "10.244.1.0/24",
                "10.96.0.0/16",
                "198.51.100.0/24",
                "fd00:244:1::/64",
                "fd00:96::/112",
                "2001:db8:100::/64",
            ] {
                let to = net(to);
                let by = if to.addr().is_ipv4() { node.v4 } else { node.v6 };
                route(to, "to-a", Some(by));
            }
            route(net("10.244.2.0/24"), "to-b", Some(other.v4));
            route(net("fd00:244:2::/64"), "to-b", Some(other.v6));
        });
        if on_bridge {
            node.netns.enter(|| {
                bridge("cni0");
                address("cni0", net("10.244.1.1/24"));
                address("cni0", net("fd00:244:1::1/64"));
                set("net/bridge/bridge-nf-call-iptables", "1");
                set("net/bridge/bridge-nf-call-ip6tables", "1");
            });
        }
        let mut places = BTreeMap::new();
        for (name, host) in PODS {
            let place = match name.starts_with('b') {
                true => pod(&other.netns, 2, name, host, false),
                false => pod(&node.netns, 1, name, host, on_bridge),
            };
            places.insert(name, place);
        }
        places.extend([
            ("host", node),
            ("node-b", other),
            ("outside", outside),
            ("stranger", stranger),
        ]);
        let mut world = World {
            places,
            _router: router,
            servers: None,
        };
        world.serve();
        world
    }

    fn serve(&mut self) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        for (name, _) in PODS {
            let (tcp, udp) = self.place(name).netns.enter(|| {
                let any: SocketAddr = format!("[::]:{POD_PORT}").parse().unwrap();
                (TcpListener::bind(any).unwrap(), UdpSocket::bind(any).unwrap())
            });
            tcp.set_nonblocking(true).unwrap();
            udp.set_nonblocking(true).unwrap();
            let _within = runtime.enter();
            let tcp = tokio::net::TcpListener::from_std(tcp).unwrap();
            let udp = tokio::net::UdpSocket::from_std(udp).unwrap();
            runtime.spawn(serve_tcp(name, tcp));
            runtime.spawn(serve_udp(name, udp));
        }
        self.servers = Some(runtime);
    }

    pub(crate) fn place(&self, name: &str) -> &Place {
        self.places.get(name).unwrap_or_else(|| panic!("no place {name}"))
    }

    /// Node A, where the proxy runs.
    pub(crate) fn node(&self) -> &Place {
        self.place("host")
    }

    pub(crate) fn address(&self, place: &str, family: Family) -> IpAddr {
        match family {
            Family::V4 => self.place(place).v4,
            Family::V6 => self.place(place).v6,
        }
    }

    /// An address of node A.
    pub(crate) fn is_nodes(&self, ip: IpAddr) -> bool {
        let node = self.node();
        [node.v4, node.v6, self::ip("10.244.1.1"), self::ip("fd00:244:1::1")].contains(&ip)
    }

    /// One request from a place, on a connection or socket of its own.
    pub(crate) fn ask(&self, from: &str, protocol: Protocol, to: SocketAddr, limit: Duration) -> Outcome {
        let asked = self.place(from).netns.enter(|| match protocol {
            Protocol::Tcp => ask_tcp(to, limit),
            Protocol::Udp => UdpTalk::open(to).and_then(|mut talk| talk.ask(limit)),
            Protocol::Sctp => panic!("the kernel has no SCTP"),
        });
        match asked {
            Ok(outcome) => outcome,
            Err(e) => outcome_of(&e).unwrap_or_else(|| panic!("{from} → {protocol:?} {to}: {e}")),
        }
    }

    /// A TCP connection from a place that stays open.
    pub(crate) fn connect(&self, from: &str, to: SocketAddr) -> TcpTalk {
        let opened = self.place(from).netns.enter(|| TcpTalk::open(to, PATIENCE));
        opened.unwrap_or_else(|e| panic!("{from} → {to}: {e}"))
    }

    /// A UDP socket at a place that stays open.
    pub(crate) fn udp(&self, from: &str, to: SocketAddr) -> UdpTalk {
        self.place(from).netns.enter(|| UdpTalk::open(to).unwrap())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(servers) = self.servers.take() {
            servers.shutdown_background();
        }
    }
}

fn outcome_of(error: &io::Error) -> Option<Outcome> {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Some(Outcome::Refused),
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => Some(Outcome::Unreachable),
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Some(Outcome::Timeout),
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof => {
            Some(Outcome::Closed)
        }
        _ => None,
    }
}

fn parse(line: &str) -> Outcome {
    let (pod, source) = line
        .trim_end()
        .split_once(' ')
        .unwrap_or_else(|| panic!("answer {line:?}"));
    Outcome::Answer {
        pod: pod.to_string(),
        source: source.parse().unwrap(),
    }
}

fn ask_tcp(to: SocketAddr, limit: Duration) -> io::Result<Outcome> {
    let mut talk = TcpTalk::open(to, limit)?;
    match talk.ask() {
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => Ok(Outcome::Closed),
        other => other,
    }
}

pub(crate) struct TcpTalk {
    stream: BufReader<TcpStream>,
}

impl TcpTalk {
    fn open(to: SocketAddr, limit: Duration) -> io::Result<TcpTalk> {
        let stream = TcpStream::connect_timeout(&to, limit)?;
        stream.set_read_timeout(Some(limit))?;
        stream.set_nodelay(true)?;
        Ok(TcpTalk {
            stream: BufReader::new(stream),
        })
    }

    /// One line there, one back.
    pub(crate) fn ask(&mut self) -> io::Result<Outcome> {
        self.stream.get_mut().write_all(b"who?\n")?;
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(parse(&line))
    }
}

pub(crate) struct UdpTalk {
    socket: UdpSocket,
}

impl UdpTalk {
    fn open(to: SocketAddr) -> io::Result<UdpTalk> {
        let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any)?;
        socket.connect(to)?;
        Ok(UdpTalk { socket })
    }

    pub(crate) fn ask(&mut self, limit: Duration) -> io::Result<Outcome> {
        self.socket.set_read_timeout(Some(limit))?;
        match self.socket.send(b"who?") {
            // This host's own rules refuse it; the error that the application gets comes next.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {}
            sent => drop(sent?),
        }
        let mut buffer = [0; 256];
        let length = self.socket.recv(&mut buffer)?;
        Ok(parse(std::str::from_utf8(&buffer[..length]).unwrap()))
    }
}

async fn serve_tcp(name: &'static str, listener: tokio::net::TcpListener) {
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            continue;
        };
        tokio::spawn(async move {
            let _ = stream.set_nodelay(true);
            let (read, mut write) = stream.into_split();
            let mut lines = tokio::io::BufReader::new(read).lines();
            while let Ok(Some(_)) = lines.next_line().await {
                let answer = format!("{name} {}\n", peer.ip().to_canonical());
                if write.write_all(answer.as_bytes()).await.is_err() {
                    break;
                }
            }
        });
    }
}

async fn serve_udp(name: &'static str, socket: tokio::net::UdpSocket) {
    let mut buffer = [0; 256];
    loop {
        // What an earlier client refused comes back here as an error; the next one is served all the same.
        if let Ok((_, peer)) = socket.recv_from(&mut buffer).await {
            let answer = format!("{name} {}", peer.ip().to_canonical());
            let _ = socket.send_to(answer.as_bytes(), peer).await;
        }
    }
}
