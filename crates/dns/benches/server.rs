//! Questions per second that one core answers, and how long they take, with 10,000 services of 5 endpoints.
//!
//!     cargo bench -p orlop-dns                 # 5 s for each line
//!     cargo bench -p orlop-dns -- 20           # 20 s
//!
//! The server has one thread, bound to the first core; the client has the second. Per core-second counts the time that the
//! server's thread was on the core: what a whole core would answer, whatever else the machine does meanwhile.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use hickory_proto::op::{Message, Query};
use hickory_proto::rr::{Name, RecordType};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use orlop_base::{Random, Shutdown};
use orlop_dns::forward::Forward;
use orlop_dns::metrics::Metrics;
use orlop_dns::server::{self, Handler};
use orlop_dns::zone::{Directory, Zone};
use serde_json::json;

const SERVICES: usize = 10_000;
const ENDPOINTS: usize = 5;

fn main() {
    let seconds = std::env::args().filter_map(|a| a.parse().ok()).next().unwrap_or(5);
    let zone = Arc::new(Zone::new("cluster.local", vec!["10.0.0.0/8".parse().unwrap()]).unwrap());
    let mut directory = Directory::new(zone.clone());
    let began = orlop_base::clock::monotonic();
    fill(&mut directory);
    zone.set_synced();
    println!(
        "{SERVICES} services of {ENDPOINTS} endpoints built in {:.1?}",
        began.elapsed()
    );
    measure_changes(&mut directory);

    let (address, stat) = start(zone);
    bind_to(1);
    let packets = packets();
    println!(
        "{:<34} {:>9} {:>14} {:>8} {:>8} {:>8} {:>8} {:>6}",
        "", "per s", "per core-s", "p50 µs", "p99 µs", "p99.9", "max", "lost"
    );
    for (name, window, rate) in [
        ("one at a time", 1, None),
        ("32 at a time", 32, None),
        ("128 at a time", 128, None),
        ("paced", 1024, Some(50_000)),
    ] {
        let load = Load {
            address,
            packets: &packets,
            window,
            rate,
            time: Duration::from_secs(seconds),
        };
        let before = on_core(&stat);
        let mut result = load.run();
        let core = on_core(&stat).saturating_sub(before).as_secs_f64();
        result.latencies.sort_unstable();
        let count = result.latencies.len();
        let at = |part: f64| result.latencies[((count as f64 * part) as usize).min(count - 1)] as f64 / 1000.0;
        println!(
            "{name:<34} {:>9.0} {:>14.0} {:>8.1} {:>8.1} {:>8.1} {:>8.0} {:>6}",
            count as f64 / result.took.as_secs_f64(),
            count as f64 / core,
            at(0.5),
            at(0.99),
            at(0.999),
            at(1.0),
            result.lost
        );
    }
}

fn fill(directory: &mut Directory) {
    let services = (0..SERVICES).map(|n| {
        let ip = match n % 10 {
            0 => "None".to_string(),
            _ => format!("10.{}.{}.{}", 96 + n / 65_536, n / 256 % 256, n % 256),
        };
        json!({"metadata": {"name": format!("service-{n}"), "namespace": format!("namespace-{}", n % 100)},
            "spec": {"clusterIP": ip, "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]}})
    });
    let services = services.map(|s| serde_json::from_value(s).unwrap()).collect();
    directory.reset_services(services);
    directory.reset_slices((0..SERVICES).map(|n| slice(n, 0)).collect());
    let namespaces = (0..100).map(|n| json!({"metadata": {"name": format!("namespace-{n}")}}));
    directory.reset_namespaces(namespaces.map(|n| serde_json::from_value(n).unwrap()).collect());
}

fn slice(n: usize, turn: usize) -> orlop_dns::objects::EndpointSlice {
    let endpoint = |e: usize| {
        let address = n * ENDPOINTS + e + turn * 60_000;
        json!({"addresses": [format!("10.{}.{}.{}", 128 + address / 65_536, address / 256 % 256, address % 256)]})
    };
    let endpoints: Vec<_> = (0..ENDPOINTS).map(endpoint).collect();
    let value = json!({"metadata": {"name": format!("service-{n}-x"), "namespace": format!("namespace-{}", n % 100),
            "labels": {"kubernetes.io/service-name": format!("service-{n}")}},
        "addressType": "IPv4", "endpoints": endpoints, "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}]});
    serde_json::from_value(value).unwrap()
}

fn measure_changes(directory: &mut Directory) {
    let slices: Vec<_> = (0..1000).map(|n| slice(n * 7, 1)).collect();
    let began = orlop_base::clock::monotonic();
    let count = slices.len() as u32;
    slices.into_iter().for_each(|slice| directory.apply_slice(slice));
    println!(
        "a slice with other endpoints: {:.1?}",
        began.elapsed().checked_div(count).unwrap_or_default()
    );
}

/// The server's address, and the file that has its thread's times.
fn start(zone: Arc<Zone>) -> (SocketAddr, String) {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        bind_to(0);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let metrics = Arc::new(Metrics::default());
            let handler = Arc::new(Handler::new(zone, Forward::new(metrics.clone()), metrics));
            let listener = server::listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
            let stat = format!("/proc/self/task/{}/schedstat", nix::unistd::gettid());
            sender.send((listener.address, stat)).unwrap();
            server::serve(&handler, listener, &Arc::default(), &Shutdown::default());
            std::future::pending::<()>().await
        })
    });
    receiver.recv().unwrap()
}

fn bind_to(core: usize) {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let mut set = CpuSet::new();
    set.set(core % cores).unwrap();
    sched_setaffinity(Pid::from_raw(0), &set).unwrap();
}

fn on_core(stat: &str) -> Duration {
    let text = std::fs::read_to_string(stat).unwrap();
    Duration::from_nanos(text.split_whitespace().next().unwrap().parse().unwrap())
}

/// What pods ask: mostly names that are there, and some that the search domains make of others.
fn packets() -> Vec<Vec<u8>> {
    let mut random = Random::seeded(1);
    let question = |n: usize, part: u64| {
        let own = format!("service-{n}.namespace-{}.svc.cluster.local.", n % 100);
        match part {
            0..70 => (own, RecordType::A),
            70..80 => (own, RecordType::AAAA),
            80..85 => (format!("_http._tcp.{own}"), RecordType::SRV),
            _ => (
                format!("www.example.com.{}", &own[own.find('.').unwrap() + 1..]),
                RecordType::A,
            ),
        }
    };
    let packet = |_| {
        let (name, kind) = question(random.below(SERVICES as u64) as usize, random.below(100));
        let mut message = Message::query();
        message.metadata.recursion_desired = true;
        message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
        message.to_vec().unwrap()
    };
    (0..50_000).map(packet).collect()
}

struct Load<'a> {
    address: SocketAddr,
    packets: &'a [Vec<u8>],
    /// Questions without an answer at a time.
    window: usize,
    /// Questions a second; none for as many as there are answers.
    rate: Option<u64>,
    time: Duration,
}

#[derive(Default)]
struct Result {
    /// Nanoseconds.
    latencies: Vec<u32>,
    lost: usize,
    took: Duration,
}

impl Load<'_> {
    fn run(&self) -> Result {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(self.address).unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut result = Result::default();
        // When the question of an id was sent.
        let mut sent: Vec<Option<Instant>> = vec![None; 65_536];
        let (mut next, mut open) = (0usize, 0usize);
        let (mut packet, mut buffer) = (vec![], [0; 2048]);
        let (began, mut heard) = (orlop_base::clock::monotonic(), orlop_base::clock::monotonic());
        while began.elapsed() < self.time {
            let due = self.rate.map_or(u64::MAX, |rate| {
                (began.elapsed().as_nanos() as u64 * (rate / 1000)) / 1_000_000
            });
            if open < self.window && (next as u64) < due {
                packet.clear();
                packet.extend_from_slice(&self.packets[next % self.packets.len()]);
                let id = next as u16;
                packet[..2].copy_from_slice(&id.to_be_bytes());
                sent[usize::from(id)] = Some(orlop_base::clock::monotonic());
                next += 1;
                open += usize::from(socket.send(&packet).is_ok());
            }
            while let Ok(len) = socket.recv(&mut buffer) {
                assert!(len >= 12 && buffer[2] & 0x80 != 0, "an answer");
                let id = u16::from_be_bytes([buffer[0], buffer[1]]);
                let at = sent[usize::from(id)].take().expect("an answer to a question");
                result.latencies.push(at.elapsed().as_nanos() as u32);
                open -= 1;
                heard = orlop_base::clock::monotonic();
            }
            if open > 0 && heard.elapsed() > Duration::from_secs(1) {
                result.lost += open;
                open = 0;
                sent.fill(None);
                heard = orlop_base::clock::monotonic();
            }
        }
        result.took = began.elapsed();
        result
    }
}
