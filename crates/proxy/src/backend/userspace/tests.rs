//! The back end with real sockets, in network namespaces of their own.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;

use nix::sched::{CloneFlags, setns, unshare};
use proptest::prelude::*;

use super::testing::port;
use super::*;
use crate::plan::Node;

/// How long one waits for what must come.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long for what must not.
const IMPATIENCE: Duration = Duration::from_millis(300);

/// On a thread with a network namespace and a runtime of its own.
fn apart<T: Send>(work: impl FnOnce(Handle) -> T + Send) -> T {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace can be made (as root)");
            let up = Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap();
            assert!(up.success());
            let here = std::fs::File::open("/proc/thread-self/ns/net").unwrap();
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .on_thread_start(move || setns(&here, CloneFlags::CLONE_NEWNET).unwrap())
                .enable_all()
                .build()
                .unwrap();
            let result = work(runtime.handle().clone());
            runtime.shutdown_background();
            result
        });
        thread.join().unwrap()
    })
}

fn settings() -> Settings {
    let mut settings = Settings {
        localhost_node_ports: true,
        ..Settings::default()
    };
    settings.service_ranges = vec!["10.96.0.0/12".parse().unwrap()];
    settings
}

fn plan(ports: &[ServicePort]) -> Plan {
    let keyed = ports.iter().map(|port| (port.key.clone(), Arc::new(port.clone())));
    Plan {
        ports: keyed.collect(),
        node: Node::default(),
    }
}

fn named(name: &str, mut port: ServicePort) -> ServicePort {
    port.key.name = name.into();
    port
}

/// Says its address to whoever comes, once they have said all.
fn server(address: &str) -> TcpListener {
    let listener = TcpListener::bind((address, 8080)).unwrap();
    let (accepting, name) = (listener.try_clone().unwrap(), address.to_string());
    thread::spawn(move || {
        for stream in accepting.incoming() {
            let (mut stream, name) = (stream.unwrap(), name.clone());
            thread::spawn(move || {
                let mut said = String::new();
                if stream.read_to_string(&mut said).is_ok() {
                    let _ = write!(stream, "{name} heard {said}");
                }
            });
        }
    });
    listener
}

fn ask(to: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(to)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"hello")?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn one_side_may_end_before_the_other() {
    apart(|runtime| {
        let _server = server("127.0.0.2");
        let mut proxy = Userspace::new(settings(), runtime).unwrap();
        let report = proxy
            .sync(&plan(&[port("10.96.0.10", &["127.0.0.2"])]), &Change::All)
            .unwrap();
        assert_eq!(report.rules, [("listeners", 1), ("routes", 1)]);
        assert_eq!(ask("10.96.0.10:80").unwrap(), "127.0.0.2 heard hello");
        // A service with no endpoints, and one that is not there, are refused in the same way.
        let report = proxy.sync(&plan(&[port("10.96.0.10", &[])]), &Change::All).unwrap();
        assert_eq!(report.rules, [("listeners", 0), ("routes", 1)]);
        for to in ["10.96.0.10:80", "10.96.0.11:80"] {
            assert_eq!(ask(to).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        }
    });
}

#[test]
fn a_family_that_the_machine_lacks_is_left_alone() {
    apart(|runtime| {
        let settings = Settings {
            v6: false,
            ..settings()
        };
        let mut proxy = Userspace::new(settings, runtime).unwrap();
        let ports = [
            port("10.96.0.10", &["127.0.0.2"]),
            named("six", port("fd00:96::1", &["fd00::2"])),
        ];
        let report = proxy.sync(&plan(&ports), &Change::All).unwrap();
        assert_eq!(report.rules, [("listeners", 1), ("routes", 1)]);
        assert_eq!(report.problems, Vec::<String>::new());
    });
}

#[test]
fn the_next_endpoint_is_tried_where_one_does_not_answer() {
    apart(|runtime| {
        let _server = server("127.0.0.3");
        let mut proxy = Userspace::new(settings(), runtime).unwrap();
        let mut web = port("10.96.0.10", &["127.0.0.2", "127.0.0.3", "127.0.0.4"]);
        web.affinity = Some(600);
        proxy.sync(&plan(&[web]), &Change::All).unwrap();
        for _ in 0..6 {
            assert_eq!(ask("10.96.0.10:80").unwrap(), "127.0.0.3 heard hello");
        }
        // Nobody is there at all: taken, tried, and reset.
        proxy
            .sync(&plan(&[port("10.96.0.10", &["127.0.0.2"])]), &Change::All)
            .unwrap();
        assert_eq!(ask("10.96.0.10:80").unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    });
}

#[test]
fn a_port_that_another_process_has_is_named_and_had_later() {
    apart(|runtime| {
        let _server = server("127.0.0.2");
        let mut proxy = Userspace::new(settings(), runtime).unwrap();
        let other = TcpListener::bind("0.0.0.0:80").unwrap();
        let ports = [
            port("10.96.0.10", &["127.0.0.2"]),
            named("sctp", {
                let mut sctp = port("10.96.0.11", &["127.0.0.2"]);
                sctp.protocol = Protocol::Sctp;
                sctp
            }),
            named("fine", {
                let mut fine = port("10.96.0.12", &["127.0.0.2"]);
                fine.port = 81;
                fine
            }),
        ];
        let report = proxy.sync(&plan(&ports), &Change::All).unwrap();
        assert_eq!(
            report.problems,
            [
                "default/sctp:http: SCTP is not supported in userspace mode",
                "default/web:http: failed to listen on 10.96.0.10:80/tcp: another process has the port",
            ]
        );
        assert_eq!(ask("10.96.0.12:81").unwrap(), "127.0.0.2 heard hello");
        drop(other);
        let report = proxy.sync(&plan(&ports), &Change::All).unwrap();
        assert_eq!(report.problems.len(), 1);
        assert_eq!(ask("10.96.0.10:80").unwrap(), "127.0.0.2 heard hello");
    });
}

#[test]
fn a_change_touches_only_its_own_listeners() {
    apart(|runtime| {
        let _server = server("127.0.0.2");
        let mut proxy = Userspace::new(settings(), runtime).unwrap();
        let mut ports: Vec<ServicePort> = (0..300)
            .map(|n| named(&format!("s{n}"), port(&format!("10.96.1.{}", n % 250), &["127.0.0.2"])))
            .collect();
        for (n, port) in ports.iter_mut().enumerate() {
            port.port = 1000 + n as u16;
            port.node_port = Some(30_000 + n as u16);
        }
        let report = proxy.sync(&plan(&ports), &Change::All).unwrap();
        assert_eq!((report.rules[0].1, report.written[0].1), (600, 600));
        let first = ports[7].cluster[0];
        ports[7].cluster.push(first);
        let keys = Change::Keys(vec![ports[7].key.clone()]);
        assert_eq!(
            proxy.sync(&plan(&ports), &keys).unwrap().written,
            [("listeners", 0), ("routes", 0)]
        );
        ports[7].node_port = Some(31_000);
        assert_eq!(
            proxy.sync(&plan(&ports), &keys).unwrap().written,
            [("listeners", 2), ("routes", 0)]
        );
        assert_eq!(ask("127.0.0.1:31000").unwrap(), "127.0.0.2 heard hello");
        assert_eq!(
            ask("127.0.0.1:30007").unwrap_err().kind(),
            io::ErrorKind::ConnectionRefused
        );
        ports[7].external_ips = vec!["198.51.100.1".parse().unwrap()];
        assert_eq!(
            proxy.sync(&plan(&ports), &keys).unwrap().written,
            [("listeners", 1), ("routes", 1)]
        );
        assert_eq!(ask("198.51.100.1:1007").unwrap(), "127.0.0.2 heard hello");
        let gone = ports.remove(7);
        let report = proxy.sync(&plan(&ports), &Change::Keys(vec![gone.key])).unwrap();
        assert_eq!(report.written, [("listeners", 3), ("routes", 1)]);
        assert_eq!(report.rules, [("listeners", 598), ("routes", 1)]);
    });
}

#[test]
fn connections_under_way_hold_the_routes_until_they_are_done() {
    apart(|runtime| {
        let _server = server("127.0.0.2");
        let mut proxy = Userspace::new(settings(), runtime).unwrap();
        let web = plan(&[port("10.96.0.10", &["127.0.0.2"])]);
        proxy.sync(&web, &Change::All).unwrap();
        let mut stream = TcpStream::connect("10.96.0.10:80").unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"a").unwrap();
        until(|| proxy.common.connections.load(Ordering::Relaxed) == 1);
        assert_eq!(proxy.cleanup().unwrap(), Cleaned::Draining);
        assert_eq!(
            ask("10.96.0.10:80").unwrap_err().kind(),
            io::ErrorKind::ConnectionRefused
        );
        assert_eq!(Route::open().unwrap().local_routes().unwrap().len(), 1);
        stream.write_all(b"b").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "127.0.0.2 heard ab");
        until(|| proxy.cleanup().unwrap() == Cleaned::Whole);
        assert_eq!(Route::open().unwrap().local_routes().unwrap(), []);
        // It can be used again.
        proxy.sync(&web, &Change::All).unwrap();
        assert_eq!(ask("10.96.0.10:80").unwrap(), "127.0.0.2 heard hello");
    });
}

fn until(mut holds: impl FnMut() -> bool) {
    let started = orlop_base::clock::monotonic();
    while !holds() {
        assert!(started.elapsed() < PATIENCE, "never so");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn more_connections_than_may_be_wait() {
    apart(|runtime| {
        let _server = server("127.0.0.2");
        let mut proxy = Userspace::with_limits(settings(), runtime, 1, 1);
        proxy
            .sync(&plan(&[port("10.96.0.10", &["127.0.0.2"])]), &Change::All)
            .unwrap();
        let first = TcpStream::connect("10.96.0.10:80").unwrap();
        until(|| proxy.common.connections.load(Ordering::Relaxed) == 1);
        let second = thread::scope(|scope| {
            let here = std::fs::File::open("/proc/thread-self/ns/net").unwrap();
            let second = scope.spawn(move || {
                setns(&here, CloneFlags::CLONE_NEWNET).unwrap();
                ask("10.96.0.10:80").unwrap()
            });
            thread::sleep(IMPATIENCE);
            assert!(!second.is_finished());
            drop(first);
            second.join().unwrap()
        });
        assert_eq!(second, "127.0.0.2 heard hello");
    });
}

#[test]
fn udp_clients_are_forgotten_when_silent_and_only_so_many() {
    apart(|runtime| {
        let server = UdpSocket::bind("127.0.0.2:8080").unwrap();
        thread::spawn(move || {
            let mut buffer = [0; 100];
            while let Ok((length, peer)) = server.recv_from(&mut buffer) {
                server.send_to(&buffer[..length], peer).unwrap();
            }
        });
        let mut dns = port("10.96.0.10", &["127.0.0.2"]);
        dns.protocol = Protocol::Udp;
        let mut proxy = Userspace::with_limits(settings(), runtime, 1, 2);
        proxy.sync(&plan(&[dns.clone()]), &Change::All).unwrap();
        let client = || {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.connect("10.96.0.10:80").unwrap();
            socket
        };
        let exchange = |socket: &UdpSocket, limit| {
            socket.set_read_timeout(Some(limit)).unwrap();
            socket.send(b"x").unwrap();
            socket.recv(&mut [0; 10])
        };
        let clients = [client(), client(), client()];
        exchange(&clients[0], PATIENCE).unwrap();
        exchange(&clients[1], PATIENCE).unwrap();
        assert!(proxy.common.udp_clients.load(Ordering::Relaxed) <= 2);
        // The third has to wait for one of them to fall silent.
        until(|| exchange(&clients[2], IMPATIENCE).is_ok());
        until(|| proxy.common.udp_clients.load(Ordering::Relaxed) == 0);
        // An endpoint that is gone takes its clients with it.
        exchange(&clients[0], PATIENCE).unwrap();
        dns.cluster[0].address = "127.0.0.3:8080".parse().unwrap();
        proxy.sync(&plan(&[dns]), &Change::All).unwrap();
        until(|| proxy.common.udp_clients.load(Ordering::Relaxed) == 0);
        exchange(&clients[0], IMPATIENCE).unwrap_err();
    });
}

const UNPRIVILEGED: &str = "ORLOP_UNPRIVILEGED";

/// As somebody who may neither make routes nor listen below 1024: this test again, in a process of its own.
#[test]
fn without_rights_there_are_node_ports() {
    if std::env::var_os(UNPRIVILEGED).is_some() {
        return serve_without_rights();
    }
    let place = tempfile::Builder::new()
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .tempdir()
        .unwrap();
    let program = place.path().join("again");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    apart(|_| {
        let output = Command::new(&program)
            .args([
                "--exact",
                "backend::userspace::tests::without_rights_there_are_node_ports",
                "--nocapture",
            ])
            .env(UNPRIVILEGED, "1")
            .current_dir("/")
            .uid(65534)
            .gid(65534)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
    });
}

fn serve_without_rights() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let _server = server("127.0.0.2");
    let mut proxy = Userspace::new(settings(), runtime.handle().clone()).unwrap();
    let mut web = port("10.96.0.10", &["127.0.0.2"]);
    web.node_port = Some(30080);
    web.external_ips = vec!["127.0.0.9".parse().unwrap(), "198.51.100.1".parse().unwrap()];
    let report = proxy.sync(&plan(&[web.clone()]), &Change::All).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    assert_eq!(report.rules, [("listeners", 1), ("routes", 0)]);
    assert_eq!(ask("127.0.0.1:30080").unwrap(), "127.0.0.2 heard hello");
    let keys = Change::Keys(vec![web.key.clone()]);
    web.node_port = Some(80);
    let report = proxy.sync(&plan(&[web]), &keys).unwrap();
    assert_eq!(
        report.problems,
        ["default/web:http: failed to listen on 0.0.0.0:80/tcp: ports below 1024 need rights this process lacks"]
    );
    // The connection of the question may still be closing.
    until(|| proxy.cleanup().unwrap() == Cleaned::Whole);
}

/// Where a proxy listens, by service.
fn listening(proxy: &Userspace) -> BTreeMap<(String, SocketAddr), bool> {
    let mut all = BTreeMap::new();
    for (key, served) in &proxy.services {
        for (spot, _, listener) in &served.spots {
            all.insert((key.to_string(), spot.address), listener.is_some());
        }
    }
    all
}

#[derive(Clone, Debug)]
enum Step {
    Put {
        service: u8,
        node_port: Option<u16>,
        external: bool,
        ready: bool,
    },
    Remove(u8),
    All,
}

fn step() -> impl Strategy<Value = Step> {
    let put = (
        0..4u8,
        prop::option::of(30_000..30_004u16),
        any::<bool>(),
        any::<bool>(),
    );
    prop_oneof![
        6 => put.prop_map(|(service, node_port, external, ready)| Step::Put { service, node_port, external, ready }),
        2 => (0..4u8).prop_map(Step::Remove),
        1 => Just(Step::All),
    ]
}

fn planned(service: u8, node_port: Option<u16>, external: bool, ready: bool) -> ServicePort {
    let endpoints: &[&str] = if ready { &["127.0.0.2"] } else { &[] };
    let mut port = named(&format!("s{service}"), port(&format!("10.96.0.{service}"), endpoints));
    port.node_port = node_port;
    if external {
        port.external_ips = vec![format!("198.51.100.{}", service / 2).parse().unwrap()];
        port.port += u16::from(service);
    }
    port
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Changes one by one end where a fresh start would.
    #[test]
    fn steps_end_where_a_fresh_start_does(steps in prop::collection::vec(step(), 1..12)) {
        apart(|runtime| {
            let mut proxy = Userspace::new(settings(), runtime.clone()).unwrap();
            let mut ports: BTreeMap<u8, ServicePort> = BTreeMap::new();
            let all = |ports: &BTreeMap<u8, ServicePort>| plan(&ports.values().cloned().collect::<Vec<_>>());
            proxy.sync(&all(&ports), &Change::All).unwrap();
            for step in &steps {
                let change = match step {
                    Step::Put { service, node_port, external, ready } => {
                        // The planner gives a node port to one service only.
                        let taken = ports.iter().any(|(n, p)| n != service && p.node_port == *node_port);
                        let port = planned(*service, node_port.filter(|_| !taken), *external, *ready);
                        let key = port.key.clone();
                        ports.insert(*service, port);
                        Change::Keys(vec![key])
                    }
                    Step::Remove(service) => match ports.remove(service) {
                        Some(gone) => Change::Keys(vec![gone.key]),
                        None => Change::Keys(vec![]),
                    },
                    Step::All => Change::All,
                };
                let report = proxy.sync(&all(&ports), &change).unwrap();
                assert_eq!(report.problems, Vec::<String>::new());
            }
            let (found, mut routes) = (listening(&proxy), Route::open().unwrap().local_routes().unwrap());
            assert!(found.values().all(|listens| *listens));
            let count = proxy.sync(&all(&ports), &Change::Keys(vec![])).unwrap().rules[0].1;
            assert_eq!(count, found.len());
            proxy.cleanup().unwrap();
            let mut fresh = Userspace::new(settings(), runtime).unwrap();
            fresh.sync(&all(&ports), &Change::All).unwrap();
            let mut wanted = Route::open().unwrap().local_routes().unwrap();
            routes.sort();
            wanted.sort();
            assert_eq!((found, routes), (listening(&fresh), wanted));
        });
    }
}
