//! Services by IPVS, the kernel's own load balancer: a virtual server for each way to a service port, real servers for
//! endpoints, all service addresses on the dummy device kube-ipvs0, and a small table of rules for what IPVS can't say.
//!
//! ```text
//!  ServicePort ─ render ─► things asked for ─ desired ─► all things ─ operations ─► what to do, in order ─ apply ─► kernel
//! ```
//!
//! Upstream: pkg/proxy/ipvs (v1.36).

mod apply;
mod connections;
pub mod desired;
mod held;
mod kernel;
mod nft;
pub mod operations;
pub mod render;
mod rules;
mod sysctl;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use self::desired::{DesiredState, Touched};
use self::kernel::Kernel;
use self::nft::Nft;
use self::operations::{Leaving, Operation, Scheduling, change, repair};
use self::render::{Host, ServerKey};
use super::{Backend, Cleaned, Error, Mode, Report, Result, UnsupportedMode};
use crate::plan::{Change, Family, Key, Plan};
use crate::settings::Settings;
use orlop_netlink::route::Route;

/// The device that has the addresses of services.
pub const DEVICE: &str = "kube-ipvs0";

/// How often real servers that are leaving are looked at, at most.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// Whether this machine has IPVS. Tries to load it.
pub fn check_support() -> Result<(), UnsupportedMode> {
    let Err(first) = Kernel::open() else { return Ok(()) };
    let loading = match Command::new("modprobe").arg("ip_vs").output() {
        Err(e) => format!("failed to run `modprobe ip_vs`: {e}"),
        Ok(output) if output.status.success() => match Kernel::open() {
            Ok(_) => return Ok(()),
            Err(e) => format!("unavailable after `modprobe ip_vs`: {e}"),
        },
        Ok(output) => format!(
            "`modprobe ip_vs` failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        ),
    };
    Err(UnsupportedMode(format!(
        "IPVS is not available in the kernel ({first}; {loading}): load the modules ip_vs and ip_vs_rr, or that of \
         another scheduler"
    )))
}

/// Does nothing to the kernel yet.
pub fn new(settings: Settings) -> Result<Ipvs> {
    let failed = |what: &'static str| move |e: io::Error| Error(format!("{what}: {e}"));
    let scheduling = Scheduling {
        scheduler: settings.ipvs.scheduler.as_str().into(),
    };
    Ok(Ipvs {
        kernel: Kernel::open().map_err(failed("failed to open IPVS"))?,
        route: Route::open().map_err(failed("failed to open a route socket"))?,
        nft: Nft::open().map_err(failed("failed to open a netfilter socket"))?,
        desired: DesiredState::new(settings.masquerade_bit),
        scheduling,
        leaving: Leaving::new(),
        looked: orlop_base::clock::monotonic(),
        refused: BTreeSet::new(),
        unbound: BTreeSet::new(),
        counts: Counts::default(),
        link: None,
        settings,
    })
}

pub struct Ipvs {
    settings: Settings,
    scheduling: Scheduling,
    kernel: Kernel,
    route: Route,
    nft: Nft,
    desired: DesiredState,
    /// Real servers without weight, which go when they have no connections.
    leaving: Leaving,
    /// When they were last looked at.
    looked: Instant,
    /// Virtual servers that this kernel can't have.
    refused: BTreeSet<ServerKey>,
    /// Addresses that kube-ipvs0 can't have.
    unbound: BTreeSet<IpAddr>,
    counts: Counts,
    /// The index of kube-ipvs0, once all was compared with the kernel.
    link: Option<u32>,
}

/// How much there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    servers: usize,
    reals: usize,
    addresses: usize,
    elements: usize,
}

impl Counts {
    fn report(self) -> Vec<(&'static str, usize)> {
        let Counts {
            servers,
            reals,
            addresses,
            elements,
        } = self;
        vec![
            ("servers", servers),
            ("real-servers", reals),
            ("addresses", addresses),
            ("elements", elements),
        ]
    }
}

impl Backend for Ipvs {
    fn mode(&self) -> Mode {
        Mode::Ipvs
    }

    fn sync(&mut self, plan: &Plan, change: &Change) -> Result<Report> {
        let outcome = match (change, self.link) {
            (Change::Keys(keys), Some(link)) => self.sync_keys(plan, keys, link),
            _ => self.sync_all(plan),
        };
        if outcome.is_err() {
            // What was done and what was not is seen when all is compared again.
            self.link = None;
        }
        outcome
    }

    fn cleanup(&mut self) -> Result<Cleaned> {
        self.link = None;
        self.desired = DesiredState::new(self.settings.masquerade_bit);
        self.leaving.clear();
        self.remove_all()
    }
}

impl Ipvs {
    fn sync_keys(&mut self, plan: &Plan, keys: &[Key], link: u32) -> Result<Report> {
        let mut touched = Touched::default();
        let settings = &self.settings;
        for key in keys.iter().filter(|key| settings.does(key.family)) {
            self.desired
                .set(key, plan.ports.get(key).map(|port| &**port), &mut touched);
        }
        let operations = change(touched, &self.desired, &self.leaving, &self.scheduling);
        let mut report = self.apply(operations, link)?;
        if self.looked.elapsed() >= LOOK_AGAIN {
            self.look_at_leaving()?;
        }
        report.rules = self.counts.report();
        Ok(report)
    }

    fn sync_all(&mut self, plan: &Plan) -> Result<Report> {
        if self.link.is_none() {
            sysctl::apply(&self.settings)?;
            self.set_timeouts()?;
        }
        self.link = None;
        let link = self
            .route
            .ensure_dummy(DEVICE)
            .map_err(|e| Error(format!("failed to create device {DEVICE}: {e}")))?;
        self.ensure_tables()?;
        self.set_desired_state(plan, link.index)?;
        let held = self.held(link.index)?;
        self.leaving.clear();
        self.counts = held.counts();
        let operations = repair(&held, &self.desired, &self.scheduling);
        let mut report = self.apply(operations, link.index)?;
        self.looked = orlop_base::clock::monotonic();
        self.link = Some(link.index);
        report.rules = self.counts.report();
        Ok(report)
    }

    fn families(&self) -> Vec<Family> {
        Family::ALL
            .into_iter()
            .filter(|family| self.settings.does(*family))
            .collect()
    }

    fn set_timeouts(&mut self) -> Result<()> {
        let ipvs = &self.settings.ipvs;
        let timeouts = [ipvs.tcp_timeout, ipvs.tcp_fin_timeout, ipvs.udp_timeout];
        if timeouts.iter().all(Duration::is_zero) {
            return Ok(());
        }
        let [tcp, tcp_fin, udp] = timeouts;
        self.kernel
            .set_timeouts(tcp, tcp_fin, udp)
            .map_err(|e| Error(format!("failed to set IPVS timeouts: {e}")))
    }

    /// Everything the plan asks for.
    fn set_desired_state(&mut self, plan: &Plan, link: u32) -> Result<()> {
        let all = self
            .route
            .reachable_addresses(&[link])
            .map_err(|e| Error(format!("failed to list node addresses: {e}")))?;
        let addresses: Vec<IpAddr> = all
            .into_iter()
            .filter(|ip| self.settings.does(Family::of(*ip)))
            .collect();
        let host = host(&self.settings, plan, addresses);
        let mut touched = Touched::default();
        self.desired.set_host(host, &mut touched);
        let gone: Vec<Key> = self
            .desired
            .keys()
            .filter(|key| !plan.ports.contains_key(key))
            .cloned()
            .collect();
        for key in &gone {
            self.desired.set(key, None, &mut touched);
        }
        let settings = &self.settings;
        for (key, port) in plan.ports.iter().filter(|(key, _)| settings.does(key.family)) {
            self.desired.set(key, Some(port), &mut touched);
        }
        Ok(())
    }

    /// The table of each family, with its sets and rules as they should be.
    fn ensure_tables(&mut self) -> Result<()> {
        for family in self.families() {
            let failed = |e: io::Error| Error(format!("failed to sync nftables table {}: {e}", rules::TABLE));
            let marks = desired::marks(self.settings.masquerade_bit);
            let chains = rules::chains(&self.settings, family, marks);
            let mut missing: FxHashMap<&str, Vec<String>> = chains
                .iter()
                .map(|chain| (chain.name, chain.rules.iter().map(|r| r.to_string()).collect()))
                .collect();
            let mut is_right = false;
            if let Some(found) = self.nft.find(family).map_err(failed)? {
                let mut there: FxHashMap<&str, Vec<String>> = FxHashMap::default();
                for (chain, comment) in &found.rules {
                    there.entry(chain).or_default().push(comment.clone());
                }
                missing.retain(|chain, rules| there.get(chain) != Some(rules));
                is_right =
                    missing.is_empty() && there.len() == chains.len() && found.sets.len() == render::Set::ALL.len();
            }
            if !is_right {
                self.nft.write_table(family, &chains).map_err(failed)?;
            }
        }
        Ok(())
    }
}

/// What rendering needs to know of this node. `addresses` are sorted.
fn host(settings: &Settings, plan: &Plan, addresses: Vec<IpAddr>) -> Host {
    let own = &plan.node.addresses;
    let ranges = &settings.node_port_ranges;
    let has_node_ports = |ip: &&IpAddr| {
        if settings.node_ports_on_primary {
            return own.contains(ip);
        }
        // Ranges of one family say nothing of the other.
        let mut of_family = ranges
            .iter()
            .filter(|range| range.addr().is_ipv4() == ip.is_ipv4())
            .peekable();
        of_family.peek().is_none() || of_family.any(|range| range.contains(*ip))
    };
    Host {
        node_port_addresses: addresses.iter().filter(has_node_ports).copied().collect(),
        own: own.clone(),
        addresses,
    }
}

/// How many of these operations bring or take away something.
fn written(operations: &[Operation]) -> Vec<(&'static str, usize)> {
    let mut counts = Counts::default();
    for operation in operations {
        match operation {
            Operation::AddServer(..) | Operation::SetServer(..) | Operation::DeleteServer(_) => counts.servers += 1,
            Operation::AddReal(..) | Operation::SetReal(..) | Operation::RetireReal(..) | Operation::DeleteReal(..) => {
                counts.reals += 1
            }
            Operation::DeleteRealIfIdle(..) => {}
            Operation::Bind(_) | Operation::Unbind(_) => counts.addresses += 1,
            Operation::ClearElement(_)
            | Operation::AddElement(..)
            | Operation::ReplaceElement(..)
            | Operation::DeleteElement(_) => counts.elements += 1,
        }
    }
    counts.report()
}
