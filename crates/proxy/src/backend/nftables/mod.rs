//! Services in nftables: tables `ip kube-proxy` and `ip6 kube-proxy`, made and changed over netlink.
//!
//! ```text
//!  plan ──► table::Table ──► Script (steps, pure) ──► encode ──► kernel: one transaction
//!                ▲                                                  │
//!                └───────────── Snapshot (all that is there) ◄──────┘
//! ```
//!
//! A packet is looked up in maps, so it costs the same whatever the number of services; a change writes the chains and
//! elements of the service ports that changed. A full sync reads the tables first and writes what differs: a proxy that
//! starts anew on a table that is right writes nothing. Rules carry a tag by which they are known again.
//!
//! Differs from upstream in these: endpoints are in one map for all services (see
//! [`ruleset::Container::ServiceEndpoints`]); source ranges are one rule each, since intervals would need a set for
//! each service; the timeout of session affinity is in the rule and not in the set, so that a new one forgets nobody.
//!
//! Upstream: pkg/proxy/nftables (v1.36).

mod base;
mod encode;
mod kernel;
mod names;
mod ruleset;
mod service;
mod slots;
mod table;
#[cfg(test)]
mod tests;
mod text;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use kernel::{Kernel, Snapshot};
use ruleset::{Script, family_name};
use table::Table;

use crate::backend::{Backend, Cleaned, Error, Mode, Report, Result, UnsupportedMode};
use crate::plan::{Change, Endpoint, Family, Key, Node, Plan, Protocol, ServicePort};
use crate::settings::Settings;

pub struct Nftables {
    settings: Settings,
    kernel: Kernel,
    tables: Vec<(Family, Table)>,
    /// What the tables are made for; none if what is in the kernel is not known.
    node: Option<Node>,
}

/// For the network namespace that the calling thread is in.
pub fn new(settings: Settings) -> Result<Nftables> {
    let families = [(Family::V4, settings.v4), (Family::V6, settings.v6)];
    let families = families.into_iter().filter(|(_, wanted)| *wanted);
    Ok(Nftables {
        kernel: Kernel::open()?,
        tables: families.map(|(family, _)| (family, Table::new(family))).collect(),
        node: None,
        settings,
    })
}

/// Whether the kernel has what the tables need and lets us have it, or why not.
pub fn check_support() -> Result<(), UnsupportedMode> {
    let release = nix::sys::utsname::uname();
    let release = release.map_err(|e| UnsupportedMode(format!("failed to read the kernel version: {e}")))?;
    let release = release.release().to_string_lossy().into_owned();
    // Upstream: older ones may come with an nft that can't read the tables.
    if version(&release) < (5, 13) {
        return Err(UnsupportedMode(format!(
            "requires Linux 5.13 or later, the kernel is {release}"
        )));
    }
    let mut kernel = Kernel::open()?;
    let settings = Settings::default();
    // Settings say which families are wanted; without IPv6 in the kernel there is nothing to lack.
    let v6 = std::path::Path::new("/proc/net/if_inet6").exists();
    for family in [Family::V4, Family::V6]
        .into_iter()
        .filter(|family| v6 || *family == Family::V4)
    {
        if kernel.has_table(family)? {
            continue;
        }
        let plan = rehearsal(family);
        let script = Table::new(family).rebuild(&settings, &plan, &[], &Snapshot::default(), &mut vec![]);
        let script = script.unwrap_or_default();
        kernel
            .rehearse(family, &script)
            .map_err(|e| UnsupportedMode(format!("the kernel lacks a feature: {e}")))?;
    }
    Ok(())
}

/// Two services that need everything the tables are made of.
fn rehearsal(family: Family) -> Plan {
    let ip = match family {
        Family::V4 => IpAddr::from([192, 0, 2, 1]),
        Family::V6 => IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1]),
    };
    let service = |name: &str, port, affinity| ServicePort {
        node_port: Some(port),
        affinity,
        external_local: true,
        cluster: vec![Endpoint {
            address: SocketAddr::new(ip, port),
            is_local: false,
        }],
        has_endpoints: true,
        ..ServicePort::bare(
            Key {
                family,
                namespace: "default".into(),
                name: name.into(),
                port: "".into(),
            },
            Protocol::Tcp,
            ip,
            port,
        )
    };
    let services = [service("a", 1, None), service("b", 2, Some(1))];
    Plan {
        ports: services
            .map(|port| (port.key.clone(), Arc::new(port)))
            .into_iter()
            .collect(),
        node: Node::default(),
    }
}

fn version(release: &str) -> (u32, u32) {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn own_addresses() -> Result<Vec<IpAddr>> {
    let interfaces = nix::ifaddrs::getifaddrs().map_err(|e| Error(format!("failed to list node addresses: {e}")))?;
    let addresses = interfaces.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|a| IpAddr::from(a.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::from(a.ip())))
    });
    Ok(addresses.collect())
}

impl Nftables {
    fn script(
        &mut self,
        at: usize,
        plan: &Plan,
        change: &Change,
        own: Option<&[IpAddr]>,
        problems: &mut Vec<String>,
    ) -> Result<Script> {
        let (family, table) = &mut self.tables[at];
        let script = match (own, change) {
            (None, Change::Keys(keys)) => table.change(&self.settings, plan, keys, problems),
            (own, _) => {
                let snapshot = self.kernel.read(*family)?;
                table.rebuild(&self.settings, plan, own.unwrap_or_default(), &snapshot, problems)
            }
        };
        script.ok_or_else(|| {
            Error(format!(
                "nftables: table {} has no slots left for endpoints",
                family_name(*family)
            ))
        })
    }
}

impl Backend for Nftables {
    fn mode(&self) -> Mode {
        Mode::Nftables
    }

    fn sync(&mut self, plan: &Plan, change: &Change) -> Result<Report> {
        let known = self.node.take();
        let whole = *change == Change::All || known.as_ref() != Some(&plan.node);
        let own = match whole {
            true if !self.settings.node_port_ranges.is_empty() => Some(own_addresses()?),
            true => Some(vec![]),
            false => None,
        };
        let mut report = Report::default();
        for at in 0..self.tables.len() {
            let script = self.script(at, plan, change, own.as_deref(), &mut report.problems)?;
            let (family, table) = &mut self.tables[at];
            self.kernel.apply(*family, &script)?;
            table.done();
            table.stale.extend(script.stale.iter().cloned());
            self.kernel.delete_chains(*family, &mut table.stale)?;
            report.rules.push((family_name(*family), table.count()));
            report
                .written
                .push((family_name(*family), script.ops.len() + script.stale.len()));
        }
        self.node = Some(
            known
                .filter(|node| *node == plan.node)
                .unwrap_or_else(|| plan.node.clone()),
        );
        Ok(report)
    }

    fn cleanup(&mut self) -> Result<Cleaned> {
        self.node = None;
        for family in Family::ALL {
            self.kernel.delete_table(family)?;
        }
        Ok(Cleaned::Whole)
    }
}

#[cfg(test)]
#[test]
fn kernel_versions_are_read() {
    assert_eq!(version("6.18.44-fc-v445"), (6, 18));
    assert_eq!(version("5.4"), (5, 4));
    assert_eq!(version("odd"), (0, 0));
}
