//! What a sync costs: all of it, and one endpoint that changes, by mode and number of services (5 endpoints each).
//!
//! `cargo bench -p orlop-proxy --bench sync -- [mode …] [number …]`. Each measurement has a network namespace of its own;
//! modes that this machine can't do are said to be missing.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};
use orlop_proxy::Settings;
use orlop_proxy::backend::{self, Mode};
use orlop_proxy::plan::{Change, Endpoint, Family, Key, Node, Plan, Protocol, ServicePort};

const ENDPOINTS: u32 = 5;
/// Changes of one endpoint, of which the middle one is told.
const CHANGES: u32 = 21;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let modes: Vec<Mode> = arguments.iter().filter_map(|a| a.parse().ok()).collect();
    let sizes: Vec<u32> = arguments.iter().filter_map(|a| a.parse().ok()).collect();
    let modes = if modes.is_empty() { Mode::ALL.to_vec() } else { modes };
    let sizes = if sizes.is_empty() {
        vec![1_000, 10_000, 50_000]
    } else {
        sizes
    };
    println!(
        "{:<10} {:>9} {:>12} {:>14} {:>12} {:>12}",
        "mode", "services", "full sync", "one endpoint", "compare all", "take over"
    );
    for mode in modes {
        for services in &sizes {
            let services = *services;
            // A listener for each service needs a file descriptor for each.
            if mode == Mode::Userspace && services > 10_000 {
                println!("{:<10} {services:>9} not meant for so many", mode.as_str());
                continue;
            }
            let measured = std::thread::spawn(move || measure(mode, services)).join();
            match measured.expect("a measurement does not panic") {
                Ok(figures) => println!("{:<10} {services:>9} {figures}", mode.as_str()),
                Err(why) => println!("{:<10} {services:>9} not measured: {why}", mode.as_str()),
            }
        }
    }
}

fn measure(mode: Mode, services: u32) -> Result<String, String> {
    unshare(CloneFlags::CLONE_NEWNET).map_err(|e| format!("no network namespace: {e}"))?;
    let up = std::process::Command::new("ip")
        .args(["link", "set", "lo", "up"])
        .status();
    up.map_err(|e| format!("no ip command: {e}"))?;
    backend::check_support(mode).map_err(|e| e.to_string())?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    let runtime = runtime.map_err(|e| e.to_string())?;
    let settings = Settings {
        service_ranges: vec!["10.96.0.0/12".parse().expect("a range")],
        ..Settings::default()
    };
    let text = |e: backend::Error| e.to_string();
    let mut plan = plan(services);
    let mut engine = backend::create(mode, &settings, runtime.handle()).map_err(text)?;
    let full = timed(|| engine.sync(&plan, &Change::All)).map_err(text)?;
    let mut changes = vec![];
    for change in 0..CHANGES {
        let number = (u64::from(change) * 7919 % u64::from(services)) as u32;
        let port = port(number, change % 2 == 0);
        let key = port.key.clone();
        plan.ports.insert(key.clone(), Arc::new(port));
        changes.push(timed(|| engine.sync(&plan, &Change::Keys(vec![key]))).map_err(text)?);
    }
    changes.sort();
    let compared = timed(|| engine.sync(&plan, &Change::All)).map_err(text)?;
    drop(engine);
    let mut next = backend::create(mode, &settings, runtime.handle()).map_err(text)?;
    let taken = timed(|| next.sync(&plan, &Change::All)).map_err(text)?;
    let shown = |d: Duration| format!("{:.1} ms", d.as_secs_f64() * 1e3);
    let middle = changes[changes.len() / 2];
    Ok(format!(
        "{:>12} {:>14} {:>12} {:>12}",
        shown(full),
        shown(middle),
        shown(compared),
        shown(taken)
    ))
}

fn timed<T>(work: impl FnOnce() -> backend::Result<T>) -> backend::Result<Duration> {
    let begun = orlop_base::clock::monotonic();
    work()?;
    Ok(begun.elapsed())
}

fn plan(services: u32) -> Plan {
    let ports = (0..services).map(|number| port(number, false));
    Plan {
        ports: ports.map(|port| (port.key.clone(), Arc::new(port))).collect(),
        node: Node {
            name: "node".to_string(),
            addresses: vec![IpAddr::from([192, 168, 0, 1])],
            ..Node::default()
        },
    }
}

/// The n-th service; `moved` has another last endpoint.
fn port(number: u32, moved: bool) -> ServicePort {
    let endpoint = |place: u32| {
        let place = if moved && place == ENDPOINTS - 1 {
            ENDPOINTS
        } else {
            place
        };
        let ip = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 0, 0, 1)) + number * (ENDPOINTS + 1) + place);
        Endpoint {
            address: SocketAddr::new(ip.into(), 8080),
            is_local: false,
        }
    };
    ServicePort {
        cluster: (0..ENDPOINTS).map(endpoint).collect(),
        has_endpoints: true,
        ..ServicePort::bare(
            Key {
                family: Family::V4,
                namespace: "bench".into(),
                name: format!("service-{number}").into(),
                port: "http".into(),
            },
            Protocol::Tcp,
            Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 96, 0, 1)) + number).into(),
            80,
        )
    }
}
