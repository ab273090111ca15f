//! The back ends, by mode, and what they leave in a kernel.
//!
//! A mode is added here (`HERE`) and with a line in `modes!` of main.rs.

use orlop_proxy::backend::{self, Backend, Mode};
use orlop_proxy::settings::Settings;
use tokio::runtime::Handle;

use crate::bed::Bed;

/// Modes whose back ends run on the kernel that tests run on.
pub(crate) const HERE: &[Mode] = &[Mode::Iptables, Mode::Nftables, Mode::Userspace];

/// A back end, for the namespace one is in.
pub(crate) fn start(mode: Mode, settings: &Settings, runtime: Handle) -> Box<dyn Backend> {
    backend::create(mode, settings, &runtime).unwrap_or_else(|e| panic!("{mode}: {e}"))
}

/// Everything of the node's network that any mode writes, one thing a line, without numbers that count packets.
pub(crate) fn kernel(bed: &Bed) -> Vec<String> {
    let mut lines = Vec::new();
    let mut table = String::new();
    for (program, family) in [("iptables-save", "ip"), ("ip6tables-save", "ip6")] {
        for line in bed.command(program, &[]).lines() {
            match line.as_bytes().first() {
                Some(b'*') => table = format!("{family} {}", &line[1..]),
                // A built-in chain is as good as none.
                Some(b':') if !line.contains(" - ") => {}
                Some(b':') => lines.push(format!("{table}: chain {}", line.split(' ').next().unwrap_or_default())),
                Some(b'-') => lines.push(format!("{table}: {line}")),
                _ => {}
            }
        }
    }
    // Tables of iptables are in the list above already, and some of its versions leave their built-in chains behind.
    let tables = bed.command("nft", &["list", "tables"]);
    for table in tables.lines().filter(|t| !is_of_iptables(t)) {
        let table: Vec<&str> = table.split(' ').collect();
        let listed = bed.command("nft", &["--stateless", "list", "table", table[1], table[2]]);
        lines.extend(listed.lines().map(str::to_string));
    }
    for family in ["-4", "-6"] {
        let routes = bed.command("ip", &[family, "route", "show", "table", "all"]);
        lines.extend(routes.lines().map(|line| line.trim_end().to_string()));
    }
    let addresses = bed.command("ip", &["-o", "addr"]);
    // A device that is made anew has another number.
    lines.extend(
        addresses
            .lines()
            .map(|line| line.split_once(": ").map_or(line, |(_, rest)| rest).to_string()),
    );
    if let Ok(servers) = bed
        .world
        .node()
        .netns
        .enter(|| std::fs::read_to_string("/proc/net/ip_vs"))
    {
        lines.extend(servers.lines().map(without_counts));
    }
    lines
}

/// A line of the kernel's list of servers, without the connections that a real server has.
fn without_counts(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words[..] {
        ["->", address, method, weight, ..] => format!("-> {address} {method} {weight}"),
        _ => line.to_string(),
    }
}

fn is_of_iptables(table: &str) -> bool {
    let names = ["filter", "nat", "mangle", "raw", "security"];
    let of = |family: &str| names.iter().any(|name| table == format!("table {family} {name}"));
    of("ip") || of("ip6")
}

/// Takes away what the back end has made, behind its back.
pub(crate) fn sabotage(bed: &Bed) {
    match bed.mode {
        Mode::Nftables => {
            bed.shell("nft flush ruleset");
        }
        Mode::Iptables => {
            for program in ["iptables", "ip6tables"] {
                for table in ["nat", "filter", "mangle"] {
                    bed.shell(&format!("{program} -t {table} -F"));
                    bed.shell(&format!("{program} -t {table} -X"));
                }
            }
        }
        Mode::Ipvs => {
            bed.shell("ipvsadm -C");
            bed.shell("ip link delete kube-ipvs0");
        }
        Mode::Userspace => {
            bed.shell("ip route delete local 10.96.0.0/16 dev lo");
            bed.shell("ip -6 route delete local fd00:96::/112 dev lo");
        }
    }
}
