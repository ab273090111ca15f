//! What a connection through each mode costs, beside one without a proxy: real packets from one pod to others, between
//! network namespaces on this machine.
//!
//! `cargo bench -p orlop-proxy --bench packets -- [mode …] [number of services …] [seconds=3]`. A connection is opened, one
//! line is sent, one answered, and it is reset (so that ports don't run out). The service that is measured is in the
//! middle of the others, in the order of their names. Servers, proxy and clients share this machine's cores.

#[path = "../tests/packets/netns.rs"]
mod netns;
#[expect(dead_code, reason = "the tests' tools, of which a bench needs some")]
#[path = "../tests/packets/world.rs"]
mod world;

use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use orlop_proxy::Settings;
use orlop_proxy::backend::{self, Mode};
use orlop_proxy::plan::{Change, Endpoint, Family, Key, Node, Plan, Protocol, ServicePort};
use orlop_proxy::settings::DetectLocal;
use socket2::SockRef;

use crate::netns::set;
use crate::world::{POD_PORT, World};

/// Clients at once when connections are counted.
const CLIENTS: usize = 8;
const PODS: [&str; 3] = ["a1", "a2", "a3"];
const TARGET: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1)), 80);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let modes: Vec<Mode> = arguments.iter().filter_map(|a| a.parse().ok()).collect();
    let modes = if modes.is_empty() { Mode::ALL.to_vec() } else { modes };
    let sizes: Vec<u32> = arguments.iter().filter_map(|a| a.parse().ok()).collect();
    let sizes = if sizes.is_empty() { vec![1, 10_000] } else { sizes };
    let seconds = arguments.iter().find_map(|a| a.strip_prefix("seconds="));
    let time = Duration::from_secs(seconds.map_or(3, |text| text.parse().expect("seconds")));

    println!(
        "{:<10} {:>9} {:>14} {:>22} {:>22}",
        "mode", "services", "connections/s", "connect + answer", "answer when open"
    );
    println!("{:<34} {:>22} {:>22}", "", "p50 / p99", "p50 / p99");
    let world = World::routed();
    let to = SocketAddr::new(world.address("a1", Family::V4), POD_PORT);
    println!("{:<10} {:>9} {}", "no proxy", "", measure(&world, to, time));
    for mode in modes {
        if let Err(why) = world.node().netns.enter(|| backend::check_support(mode)) {
            println!("{:<10} {:>9} not measured: {why}", mode.as_str(), "");
            continue;
        }
        for services in &sizes {
            match through(mode, *services, time) {
                Ok(figures) => println!("{:<10} {services:>9} {figures}", mode.as_str()),
                Err(why) => println!("{:<10} {services:>9} not measured: {why}", mode.as_str()),
            }
        }
    }
}

fn through(mode: Mode, services: u32, time: Duration) -> Result<String, String> {
    let world = World::routed();
    let node = world.node().netns.clone();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .on_thread_start(move || node.set_here())
        .enable_all()
        .build()
        .map_err(|e| e.to_string())?;
    let mut settings = Settings {
        detect_local: DetectLocal::Ranges(vec!["10.244.0.0/16".parse().expect("a range")]),
        ..Settings::default()
    };
    settings.service_ranges = vec!["10.96.0.0/12".parse().expect("a range")];
    let plan = plan(&world, services);
    let _backend = world.node().netns.enter(|| {
        let mut backend = backend::create(mode, &settings, runtime.handle())?;
        let report = backend.sync(&plan, &Change::All)?;
        match report.problems.first() {
            Some(problem) => Err(backend::Error(problem.clone())),
            None => Ok(backend),
        }
    });
    let _backend = _backend.map_err(|e| e.to_string())?;
    Ok(measure(&world, TARGET, time))
}

fn plan(world: &World, services: u32) -> Plan {
    let mut ports: Vec<ServicePort> = (0..services).map(|number| port(world, number, services)).collect();
    ports.sort_by(|a, b| a.key.cmp(&b.key));
    Plan {
        ports: ports
            .into_iter()
            .map(|port| (port.key.clone(), Arc::new(port)))
            .collect(),
        node: Node {
            name: "a".to_string(),
            addresses: vec![world.node().v4],
            pod_ranges: vec!["10.244.1.0/24".parse().expect("a range")],
            ..Node::default()
        },
    }
}

/// The n-th service: that in the middle leads to pods, the others to nobody.
fn port(world: &World, number: u32, of: u32) -> ServicePort {
    let is_target = number == of / 2;
    let ip = |n: u32| Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 96, 1, 0)) + n).into();
    let cluster: Vec<Endpoint> = match is_target {
        true => PODS.map(|pod| world.address(pod, Family::V4)).to_vec(),
        false => (0..3)
            .map(|n| Ipv4Addr::from(0x0a80_0000 + number * 3 + n).into())
            .collect(),
    }
    .into_iter()
    .map(|ip| Endpoint {
        address: SocketAddr::new(ip, POD_PORT),
        is_local: is_target,
    })
    .collect();
    ServicePort {
        local: cluster.iter().copied().filter(|e| e.is_local).collect(),
        cluster,
        has_endpoints: true,
        ..ServicePort::bare(
            Key {
                family: Family::V4,
                namespace: "bench".into(),
                name: format!("service-{number:06}").into(),
                port: "http".into(),
            },
            Protocol::Tcp,
            if is_target { TARGET.ip() } else { ip(number) },
            80,
        )
    }
}

fn measure(world: &World, to: SocketAddr, time: Duration) -> String {
    let client = &world.place("client").netns;
    client.enter(|| set("net/ipv4/ip_local_port_range", "1024 65535"));
    // One first, so that nobody's link address has to be asked for any more.
    client.enter(|| once(to)).expect("the service answers");
    let begun = orlop_base::clock::monotonic();
    let counted: usize = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| scope.spawn(|| client.enter(|| connections(to, time).len())))
            .collect();
        clients
            .into_iter()
            .map(|c| c.join().expect("a client does not panic"))
            .sum()
    });
    let per_second = counted as f64 / begun.elapsed().as_secs_f64();
    let alone = client.enter(|| connections(to, time.checked_div(2).unwrap_or_default()));
    let open = client
        .enter(|| answers(to, time.checked_div(2).unwrap_or_default()))
        .expect("the service answers");
    format!("{per_second:>14.0} {:>22} {:>22}", shown(alone), shown(open))
}

/// How long each of one client's connections takes, one after the other.
fn connections(to: SocketAddr, time: Duration) -> Vec<Duration> {
    let begun = orlop_base::clock::monotonic();
    let mut all = Vec::new();
    while begun.elapsed() < time {
        all.push(once(to).expect("the service answers"));
    }
    all
}

fn once(to: SocketAddr) -> io::Result<Duration> {
    let begun = orlop_base::clock::monotonic();
    let mut stream = BufReader::new(TcpStream::connect_timeout(&to, Duration::from_secs(5))?);
    exchange(&mut stream)?;
    let took = begun.elapsed();
    SockRef::from(stream.get_ref()).set_linger(Some(Duration::ZERO))?;
    Ok(took)
}

fn exchange(stream: &mut BufReader<TcpStream>) -> io::Result<()> {
    stream.get_mut().write_all(b"who?\n")?;
    let mut line = String::new();
    match stream.read_line(&mut line)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

/// How long each answer takes on a connection that stays open.
fn answers(to: SocketAddr, time: Duration) -> io::Result<Vec<Duration>> {
    let mut stream = BufReader::new(TcpStream::connect(to)?);
    stream.get_ref().set_nodelay(true)?;
    exchange(&mut stream)?;
    let begun = orlop_base::clock::monotonic();
    let mut all = Vec::new();
    while begun.elapsed() < time {
        let asked = orlop_base::clock::monotonic();
        exchange(&mut stream)?;
        all.push(asked.elapsed());
    }
    Ok(all)
}

fn shown(mut all: Vec<Duration>) -> String {
    all.sort_unstable();
    let at = |share: usize| all.get(all.len() * share / 100).map_or(0, Duration::as_micros);
    format!("{} / {} µs", at(50), at(99))
}
