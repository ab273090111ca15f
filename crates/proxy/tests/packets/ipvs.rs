//! What only IPVS has, in a machine that has it: its own view of services, schedulers, servers that leave slowly.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::panic::catch_unwind;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use orlop_proxy::backend::{Backend, Cleaned, Mode, ipvs};
use orlop_proxy::plan::{Change, Endpoint, Family, Key, Plan, Protocol, ServicePort};
use orlop_proxy::settings::Settings;
use orlop_testkit::machine::Machine;

use crate::bed::Bed;
use crate::cases;
use crate::netns::Netns;
use crate::service::Svc;
use crate::world::{PATIENCE, World};

/// Those that something asks for.
const MODULES: &[&str] = &[
    "dummy",
    "veth",
    "nf_tables",
    "nft_ct",
    "nft_chain_nat",
    "nft_masq",
    "nft_nat",
    "nft_numgen",
    "nft_hash",
    "nft_limit",
    "nft_fib_ipv4",
    "nft_fib_ipv6",
    "nft_fib_inet",
    "nft_reject_ipv4",
    "nft_reject_ipv6",
    "nft_reject_inet",
    "nft_compat",
    "nft_objref",
    "nf_conntrack_netlink",
    "xt_comment",
    "xt_mark",
    "xt_conntrack",
    "xt_nat",
    "xt_MASQUERADE",
    "xt_addrtype",
    "xt_statistic",
    "xt_recent",
    "xt_tcpudp",
    "xt_physdev",
    "xt_nfacct",
    "ipt_REJECT",
    "ip6t_REJECT",
    "ip_vs",
    "ip_vs_rr",
    "ip_vs_lc",
    "ip_vs_dh",
    "ip_vs_sh",
    "ip_vs_sed",
    "ip_vs_nq",
    "ip_vs_wrr",
    "ip_vs_wlc",
    "ip_vs_mh",
];

/// Programs, and under which other names they are used.
const PROGRAMS: &[(&str, &[&str])] = &[
    ("ip", &[]),
    ("nft", &[]),
    ("ipvsadm", &[]),
    (
        "xtables-nft-multi",
        &[
            "iptables",
            "iptables-save",
            "iptables-restore",
            "ip6tables",
            "ip6tables-save",
            "ip6tables-restore",
        ],
    ),
];

/// The machine that has it.
pub(crate) fn machine() -> Machine {
    let mut machine = Machine::new().modules(MODULES).variable("ORLOP_SERVICES");
    for (name, others) in PROGRAMS {
        machine = machine.program(name, others);
    }
    // iptables finds its extensions by path.
    let extensions = ["/usr/lib/x86_64-linux-gnu/xtables", "/usr/lib/xtables"];
    match extensions.iter().map(Path::new).find(|path| path.is_dir()) {
        Some(extensions) => machine.same(extensions),
        None => machine,
    }
}

/// Everything, two at a time; what fails is told in the end.
pub(crate) fn all() {
    let groups = cases::GROUPS.iter().map(|(group, _)| group.to_string());
    // The others are as slow to start here as their programs are.
    let switches = ["from nftables", "to nftables"].map(str::to_string);
    let first = ["leaving", "many services"].map(str::to_string).into_iter();
    let mut names: VecDeque<String> = first.chain(groups).chain(switches).collect();
    names.extend(["as in the notes", "schedulers", "others' servers"].map(str::to_string));
    let names = Mutex::new(names);
    let failed = Mutex::new(Vec::new());
    let next = || names.lock().unwrap().pop_front();
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(name) = next() {
                    let started = orlop_base::clock::monotonic();
                    let outcome = catch_unwind(|| run(&name));
                    let well = if outcome.is_ok() { "well" } else { "FAILED" };
                    println!("ipvs: {name}: {well}, {:.1?}", started.elapsed());
                    if outcome.is_err() {
                        failed.lock().unwrap().push(name);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "failed: {failed:?}");
}

fn run(name: &str) {
    match name {
        "as in the notes" => as_in_the_notes(),
        "schedulers" => schedulers(),
        "others' servers" => others_servers(),
        "leaving" => leaving(),
        "many services" => many(std::env::var("ORLOP_SERVICES").map_or(300, |n| n.parse().expect("a number"))),
        group => match group.split_once(' ') {
            Some(("from", other)) => cases::run_switch(other.parse().unwrap(), Mode::Ipvs),
            Some(("to", other)) => cases::run_switch(Mode::Ipvs, other.parse().unwrap()),
            _ => cases::run(Mode::Ipvs, group),
        },
    }
}

fn port(number: u32, reals: &[SocketAddr]) -> Arc<ServicePort> {
    let endpoint = |address: &SocketAddr| Endpoint {
        address: *address,
        is_local: false,
    };
    let key = Key {
        family: Family::V4,
        namespace: "default".into(),
        name: format!("service-{number}").into(),
        port: "".into(),
    };
    Arc::new(ServicePort {
        cluster: reals.iter().map(endpoint).collect(),
        has_endpoints: !reals.is_empty(),
        ..ServicePort::bare(key, Protocol::Tcp, Ipv4Addr::from(0x0a60_0000 + number).into(), 80)
    })
}

fn plan(ports: impl IntoIterator<Item = Arc<ServicePort>>) -> Plan {
    let ports: BTreeMap<Key, Arc<ServicePort>> = ports.into_iter().map(|port| (port.key.clone(), port)).collect();
    Plan {
        ports,
        ..Plan::default()
    }
}

fn backend(scheduler: &str) -> ipvs::Ipvs {
    let mut settings = Settings::default();
    settings.ipvs.scheduler = scheduler.to_string();
    ipvs::check_support().unwrap();
    ipvs::new(settings).unwrap()
}

fn said(program: &str, args: &[&str]) -> String {
    let output = Command::new(program)
        .args(args)
        .output()
        .unwrap_or_else(|e| panic!("{program}: {e}"));
    assert!(
        output.status.success(),
        "{program} {args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn total(written: &[(&'static str, usize)]) -> usize {
    written.iter().map(|(_, count)| count).sum()
}

/// 10.96.100.100
const NOTES: u32 = 100 * 256 + 100;

fn as_in_the_notes() {
    Netns::new().enter(|| {
        let mut backend = backend("rr");
        let reals = ["192.168.1.10:80", "192.168.1.11:80"].map(|address| address.parse().unwrap());
        let plan = plan([port(NOTES, &reals)]);
        backend.sync(&plan, &Change::All).unwrap();
        let found = said("ipvsadm", &["-L", "-n"]);
        println!("$ ipvsadm -L -n\n{found}");
        let lines: Vec<String> = found
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(
            lines[lines.len() - 3..],
            [
                "TCP 10.96.100.100:80 rr",
                "-> 192.168.1.10:80 Masq 1 0 0",
                "-> 192.168.1.11:80 Masq 1 0 0"
            ]
        );
        println!(
            "$ ip addr show kube-ipvs0\n{}",
            said("ip", &["addr", "show", "kube-ipvs0"])
        );
        for (name, value) in [
            ("conntrack", "1"),
            ("expire_nodest_conn", "1"),
            ("expire_quiescent_template", "1"),
        ] {
            let found = std::fs::read_to_string(format!("/proc/sys/net/ipv4/vs/{name}"));
            assert_eq!(found.unwrap().trim(), value, "{name}");
        }
        // Another process finds nothing to do.
        let report = self::backend("rr").sync(&plan, &Change::All).unwrap();
        assert_eq!(total(&report.written), 0, "{report:?}");
        assert_eq!(backend.cleanup().unwrap(), Cleaned::Whole);
        assert!(!said("ipvsadm", &["-L", "-n"]).contains("10.96"));
    });
}

fn schedulers() {
    Netns::new().enter(|| {
        for scheduler in ["rr", "lc", "dh", "sh", "sed", "nq", "wrr", "wlc", "mh"] {
            let mut backend = backend(scheduler);
            let plan = plan([port(1, &["192.168.1.10:80".parse().unwrap()])]);
            backend.sync(&plan, &Change::All).unwrap();
            let found = said("ipvsadm", &["-L", "-n"]);
            let wanted = format!("TCP  10.96.0.1:80 {scheduler}");
            assert!(found.contains(&wanted), "{wanted} in {found}");
            // Each changes what its predecessor left, once.
            let report = backend.sync(&plan, &Change::All).unwrap();
            assert_eq!(total(&report.written), 0, "{scheduler}: {report:?}");
        }
        let mut settings = Settings::default();
        settings.ipvs.tcp_timeout = Duration::from_secs(800);
        settings.ipvs.udp_timeout = Duration::from_secs(70);
        ipvs::new(settings)
            .unwrap()
            .sync(&Plan::default(), &Change::All)
            .unwrap();
        let found = said("ipvsadm", &["-L", "--timeout"]);
        assert!(found.contains("800 120 70"), "{found}");
        let mut unknown = backend("none-such");
        let plan = plan([port(2, &[])]);
        let error = unknown.sync(&plan, &Change::All).unwrap_err();
        assert!(error.to_string().contains("scheduler none-such"), "{error}");
    });
}

/// Virtual servers that somebody else has, beside ours and in ranges that are not ours.
fn others_servers() {
    Netns::new().enter(|| {
        said("ip", &["addr", "add", "172.16.9.9/24", "dev", "lo"]);
        said("ipvsadm", &["-A", "-t", "172.16.9.9:25", "-s", "wlc"]);
        said("ipvsadm", &["-a", "-t", "172.16.9.9:25", "-r", "192.168.7.7:25", "-m"]);
        let mut settings = Settings::default();
        settings.ipvs.exclude_ranges = vec!["10.100.0.0/16".parse().unwrap()];
        let mut backend = ipvs::new(settings).unwrap();
        let plan = plan([port(1, &["192.168.1.10:80".parse().unwrap()])]);
        backend.sync(&plan, &Change::All).unwrap();
        said("ip", &["addr", "add", "10.100.0.1/32", "dev", "kube-ipvs0"]);
        said("ipvsadm", &["-A", "-t", "10.100.0.1:80", "-s", "rr"]);
        // One of ours that nobody asked for, of an earlier process.
        said("ip", &["addr", "add", "10.96.9.9/32", "dev", "kube-ipvs0"]);
        said("ipvsadm", &["-A", "-t", "10.96.9.9:80", "-s", "rr"]);
        backend.sync(&plan, &Change::All).unwrap();
        let found = said("ipvsadm", &["-L", "-n"]);
        for (line, there) in [
            ("172.16.9.9:25 wlc", true),
            ("192.168.7.7:25", true),
            ("10.100.0.1:80", true),
            ("10.96.9.9", false),
        ] {
            assert_eq!(found.contains(line), there, "{line} in {found}");
        }
        assert!(!said("ip", &["addr", "show", "kube-ipvs0"]).contains("10.96.9.9"));
        assert_eq!(backend.cleanup().unwrap(), Cleaned::Whole);
        let found = said("ipvsadm", &["-L", "-n"]);
        assert!(
            found.contains("172.16.9.9:25") && !found.contains("10.96.0.1"),
            "{found}"
        );
    });
}

/// Who answers on a connection that stays.
fn who(stream: &TcpStream) -> String {
    (&*stream).write_all(b"who?\n").unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line.split_whitespace().next().unwrap_or_default().to_string()
}

fn connect(bed: &Bed, to: SocketAddr) -> TcpStream {
    let stream = bed
        .world
        .place("client")
        .netns
        .enter(|| TcpStream::connect_timeout(&to, PATIENCE))
        .unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Ends a connection with a reset, which the kernel remembers for ten seconds, not for two minutes.
fn reset(stream: TcpStream) {
    let linger = nix::libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    setsockopt(&stream, sockopt::Linger, &linger).unwrap();
}

fn weight_of(bed: &Bed, pod: &str) -> Option<String> {
    let address = format!("{}:8080", bed.world.address(pod, Family::V4));
    let found = bed.shell("ipvsadm -L -n");
    let line = found.lines().find(|line| line.contains(&address))?;
    line.split_whitespace().nth(3).map(str::to_string)
}

/// A real server that has a connection stays without weight until the connection is over; so does everything at the end.
fn leaving() {
    let mut bed = Bed::new(Mode::Ipvs, World::routed());
    let web = Svc::new("web", 10, &["a1", "a2"]);
    bed.put(&[&web]);
    let to = web.cluster(Family::V4);
    let stream = connect(&bed, to);
    let pod = who(&stream);
    let other = if pod == "a1" { "a2" } else { "a1" };
    let rest: &[&'static str] = if pod == "a1" { &["a2"] } else { &["a1"] };
    bed.put(&[&web.clone().pods(rest)]);
    assert_eq!(weight_of(&bed, &pod).as_deref(), Some("0"));
    assert_eq!(who(&stream), pod);
    for _ in 0..4 {
        let next = connect(&bed, to);
        assert_eq!(who(&next), other);
        reset(next);
    }
    // It comes back, and leaves again.
    bed.put(&[&web]);
    assert_eq!(weight_of(&bed, &pod).as_deref(), Some("1"));
    bed.put(&[&web.clone().pods(rest)]);
    assert_eq!(
        (weight_of(&bed, &pod).as_deref(), who(&stream)),
        (Some("0"), pod.clone())
    );
    // A process that starts now takes that over.
    bed.restart();
    assert_eq!(
        (weight_of(&bed, &pod).as_deref(), who(&stream)),
        (Some("0"), pod.clone())
    );
    reset(stream);
    let started = orlop_base::clock::monotonic();
    while weight_of(&bed, &pod).is_some() {
        assert!(started.elapsed() < Duration::from_secs(60), "{pod} is still there");
        thread::sleep(Duration::from_millis(500));
        bed.sync_all();
    }

    let stream = connect(&bed, to);
    assert_eq!(who(&stream), other);
    assert_eq!(bed.cleanup(), Cleaned::Draining);
    assert_eq!(who(&stream), other);
    let refused = bed
        .world
        .place("client")
        .netns
        .enter(|| TcpStream::connect_timeout(&to, PATIENCE));
    assert!(refused.is_err(), "no new connection goes through it");
    assert_eq!(bed.cleanup(), Cleaned::Draining);
    drop(stream);
    let started = orlop_base::clock::monotonic();
    while bed.cleanup() != Cleaned::Whole {
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "{}",
            bed.shell("cat /proc/net/ip_vs_conn")
        );
        thread::sleep(Duration::from_millis(50));
    }
    assert!(!bed.shell("ipvsadm -L -n").contains("10.96"), "nothing is left");
    bed.finish();
}

/// How long it takes with so many services of five endpoints; figures only, the machine is an emulated one.
fn many(count: u32) {
    Netns::new().enter(|| {
        let real =
            |service: u32, n: u32| SocketAddr::new(IpAddr::from(Ipv4Addr::from(0x0af4_0000 + service * 6 + n)), 8080);
        let of = |service: u32, last: u32| port(service, &[0, 1, 2, 3, last].map(|n| real(service, n)));
        let mut plan = plan((1..=count).map(|service| of(service, 4)));
        let mut backend = backend("rr");
        let mut timed = |what: &str, plan: &Plan, change: &Change| {
            let started = orlop_base::clock::monotonic();
            let report = backend.sync(plan, change).unwrap();
            println!(
                "ipvs, {count} services: {what}: {:.1?}, wrote {}",
                started.elapsed(),
                total(&report.written)
            );
            report
        };
        let report = timed("first sync", &plan, &Change::All);
        assert_eq!(
            report.rules[..2],
            [("servers", count as usize), ("real-servers", 5 * count as usize)]
        );
        assert_eq!(total(&timed("nothing to do", &plan, &Change::All).written), 0);
        for round in 0..3 {
            let changed = of(count / 2, 4 + (round + 1) % 2);
            let key = changed.key.clone();
            plan.ports.insert(key.clone(), changed);
            let report = timed("one endpoint replaced", &plan, &Change::Keys(vec![key]));
            assert_eq!(total(&report.written), 2);
        }
        let started = orlop_base::clock::monotonic();
        assert_eq!(backend.cleanup().unwrap(), Cleaned::Whole);
        println!("ipvs, {count} services: taken away: {:.1?}", started.elapsed());
    });
}
