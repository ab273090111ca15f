//! Services by iptables: kube-proxy's chains, written with `iptables-restore`.
//!
//! ```text
//!  ServicePort ──render──► rules as text ──script──► input of iptables-restore: only chains that changed
//!                                 ▲
//!  kernel ─────saved─────► compare┘  at the first sync, after an error, and with Change::All
//! ```
//!
//! What a service port had is rendered again from the port that was synced last, so no rules are kept. KUBE-SERVICES,
//! in which every service has a rule, is not written anew as upstream does: single rules are put in and taken out.
//!
//! So what is written follows the change; what a change costs does not quite, with many services. The kernel checks all
//! chains that packets can come to, for loops and misplaced targets, in every transaction that adds a rule (nf_tables),
//! or takes the whole table anew (legacy).
//!
//! Upstream: pkg/proxy/iptables (v1.36).

mod compare;
mod names;
mod nft;
mod program;
mod render;
mod saved;
mod script;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::sync::Arc;

use compare::Counts;
use program::{Installed, Program, Variant};
use render::{Context, Local, NodePorts, Table};
use saved::Saved;
use script::Script;

use super::{Backend, Cleaned, Error, Mode, Report, Result, UnsupportedMode};
use crate::plan::{Change, Family, Key, Plan, ServicePort};
use crate::settings::{DetectLocal, Settings};
use orlop_netlink::route::Route;

/// Rules in one input for the nf_tables variant, whose time grows with the square of the chains in it. The legacy one
/// reads and writes the whole table each time, and so gets everything at once.
const MOST: usize = 2000;

const ROUTE_LOCALNET: &str = "/proc/sys/net/ipv4/conf/all/route_localnet";
const TCP_BE_LIBERAL: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal";

pub struct Iptables {
    settings: Settings,
    installed: Installed,
    stacks: Vec<Stack>,
}

/// One family's rules.
struct Stack {
    program: Program,
    /// None: nothing is known of what the kernel holds.
    synced: Option<Synced>,
}

/// What the kernel holds since the last sync.
struct Synced {
    context: Context,
    ports: BTreeMap<Key, Arc<ServicePort>>,
    endpoints: usize,
    counts: Counts,
}

/// Whether this node has the program and the kernel the tables; else why not.
pub fn check_support() -> Result<(), UnsupportedMode> {
    let installed = program::installed()?;
    let program = Program {
        variant: program::choose(&installed.variants, &[Family::V4]),
        family: Family::V4,
    };
    Ok(program.check()?)
}

pub fn new(settings: Settings) -> Result<Iptables> {
    let installed = program::installed()?;
    let wanted: Vec<Family> = families(&settings).collect();
    let variant = program::choose(&installed.variants, &wanted);
    Iptables::with_variant(settings, installed, variant)
}

fn families(settings: &Settings) -> impl Iterator<Item = Family> + use<> {
    let (v4, v6) = (settings.v4, settings.v6);
    Family::ALL.into_iter().filter(move |family| match family {
        Family::V4 => v4,
        Family::V6 => v6,
    })
}

impl Iptables {
    fn with_variant(settings: Settings, installed: Installed, variant: Variant) -> Result<Iptables> {
        let mut stacks = vec![];
        let mut last = Error("neither IPv4 nor IPv6 is enabled".to_string());
        for family in families(&settings) {
            let program = Program { variant, family };
            match program.check() {
                Ok(()) => stacks.push(Stack { program, synced: None }),
                Err(e) => {
                    tracing::warn!(?family, err = %e, "skipping services of an IP family that iptables does not support");
                    last = e;
                }
            }
        }
        match stacks.is_empty() {
            true => Err(last),
            false => Ok(Iptables {
                settings,
                installed,
                stacks,
            }),
        }
    }
}

impl Backend for Iptables {
    fn mode(&self) -> Mode {
        Mode::Iptables
    }

    fn sync(&mut self, plan: &Plan, change: &Change) -> Result<Report> {
        let (mut rules, mut written) = (Counts::default(), Counts::default());
        let mut problems = vec![];
        for stack in &mut self.stacks {
            let mut facts = RuleContext::new(&self.settings, &self.installed, plan, stack.program.family)?;
            problems.append(&mut facts.problems);
            let done = stack.sync(plan, change, facts.context)?;
            written.merge(done);
            rules.merge(stack.synced.as_ref().map_or(Counts::default(), |synced| synced.counts));
        }
        Ok(Report {
            rules: rules.by_table(),
            written: written.by_table(),
            problems,
        })
    }

    /// Established connections go on: connection tracking remembers where they go.
    fn cleanup(&mut self) -> Result<Cleaned> {
        let plan = Plan::default();
        let mut failed = None;
        for family in Family::ALL {
            for variant in &self.installed.variants {
                let (variant, settings) = (*variant, &self.settings);
                let program = Program { variant, family };
                if !program.may_hold_rules() || program.check().is_err() {
                    continue;
                }
                let cleaned = RuleContext::new(settings, &self.installed, &plan, family)
                    .and_then(|facts| clean(&program, &facts.context));
                failed = failed.or(cleaned.err());
            }
        }
        for stack in &mut self.stacks {
            stack.synced = None;
        }
        match failed {
            Some(e) => Err(e),
            None => Ok(Cleaned::Whole),
        }
    }
}

fn clean(program: &Program, context: &Context) -> Result<()> {
    let saved = read(program)?;
    apply(program, compare::clean(&saved, context))
}

fn read(program: &Program) -> Result<Saved> {
    if program.variant.is_nft() {
        match nft::read(program.family) {
            Ok(Some(saved)) => return Ok(saved),
            Ok(None) => tracing::debug!("falling back to iptables-save: unknown expressions in the proxy's chains"),
            Err(error) => {
                tracing::debug!(err = %error, "falling back to iptables-save: failed to list nf_tables rules")
            }
        }
    }
    let mut saved = Saved::default();
    for table in Table::ALL {
        saved.insert(table, saved::parse(&program.save(table)?));
    }
    Ok(saved)
}

fn apply(program: &Program, script: Script) -> Result<()> {
    let most = if program.variant.is_nft() { MOST } else { usize::MAX };
    script.inputs(most).iter().try_for_each(|input| program.restore(input))
}

impl Stack {
    /// How many rules were written or removed.
    fn sync(&mut self, plan: &Plan, change: &Change, mut context: Context) -> Result<Counts> {
        // Nothing is known any more if this fails half way.
        if let (Some(mut synced), Change::Keys(keys)) = (self.synced.take(), change) {
            // Comments come back only when everything is looked at anyway.
            context.is_large = synced.context.is_large;
            if context == synced.context {
                let script = synced.change(self.program.family, plan, keys);
                if synced.endpoints <= render::LARGE || context.is_large {
                    let written = Counts::written(&script);
                    apply(&self.program, script)?;
                    self.synced = Some(synced);
                    return Ok(written);
                }
            }
        }
        self.sync_all(plan, context)
    }

    fn sync_all(&mut self, plan: &Plan, mut context: Context) -> Result<Counts> {
        let family = self.program.family;
        if context.localhost_node_ports {
            allow_localhost()?;
        }
        let ports = plan.ports.iter().filter(|(key, _)| key.family == family);
        let ports: BTreeMap<Key, Arc<ServicePort>> = ports.map(|(key, port)| (key.clone(), port.clone())).collect();
        let endpoints = ports.values().map(|port| port.endpoints().len()).sum();
        context.is_large = endpoints > render::LARGE;
        let saved = read(&self.program)?;
        let (script, counts) = compare::compare(&saved, &context, ports.values().map(|port| &**port));
        let written = Counts::written(&script);
        apply(&self.program, script)?;
        self.synced = Some(Synced {
            context,
            ports,
            endpoints,
            counts,
        });
        Ok(written)
    }
}

impl Synced {
    /// Takes over what a plan has for some keys, and says what that changes.
    fn change(&mut self, family: Family, plan: &Plan, keys: &[Key]) -> Script {
        let mut script = Script::default();
        for key in keys.iter().filter(|key| key.family == family) {
            let (old, new) = (self.ports.get(key), plan.ports.get(key));
            if old == new {
                continue;
            }
            let render = |port: Option<&Arc<ServicePort>>| match port {
                Some(port) => (render::service(&self.context, port), port.endpoints().len()),
                None => Default::default(),
            };
            let ((before, fewer), (after, more)) = (render(old), render(new));
            script.diff(&before, &after);
            self.endpoints = self.endpoints + more - fewer;
            for table in [Table::Nat, Table::Filter] {
                self.counts.add(table, after.count(table));
                self.counts.subtract(table, before.count(table));
            }
            match new {
                Some(port) => self.ports.insert(key.clone(), port.clone()),
                None => self.ports.remove(key),
            };
        }
        script
    }
}

/// What the machine and the plan say about how rules look.
struct RuleContext {
    context: Context,
    problems: Vec<String>,
}

impl RuleContext {
    fn new(settings: &Settings, installed: &Installed, plan: &Plan, family: Family) -> Result<RuleContext> {
        let node_ip = plan.node.address(family);
        let local = match &settings.detect_local {
            DetectLocal::None => None,
            DetectLocal::Ranges(ranges) => {
                let range = ranges.iter().find(|range| Family::of(range.addr()) == family);
                range.map(|range| Local::Source(*range))
            }
            DetectLocal::Bridge(name) => Some(Local::Interface(name.clone())),
            DetectLocal::Prefix(prefix) => Some(Local::Interface(format!("{prefix}+"))),
        };
        let ranges = || {
            settings
                .node_port_ranges
                .iter()
                .filter(|range| Family::of(range.addr()) == family)
        };
        let takes_all = !settings.node_ports_on_primary
            && (ranges().next().is_none() || ranges().any(|range| range.prefix_len() == 0));
        let has_loopback = takes_all || ranges().any(|range| range.addr().is_loopback());
        let localhost_node_ports = settings.localhost_node_ports && family == Family::V4 && has_loopback;
        let (node_ports, problems) = match takes_all {
            true => (NodePorts::AllLocal, vec![]),
            false => {
                let ips = match settings.node_ports_on_primary {
                    true => node_ip.into_iter().collect(),
                    false => local_addresses(|ip| ranges().any(|range| range.contains(&ip)))?,
                };
                without_loopback(ips, localhost_node_ports)
            }
        };
        let context = Context {
            family,
            mark: settings.masquerade_mark(),
            masquerade_all: settings.masquerade_all,
            local,
            node_ip,
            node_ports,
            localhost_node_ports,
            service_ranges: settings.service_ranges_of(family),
            tcp_be_liberal: fs::read_to_string(TCP_BE_LIBERAL).is_ok_and(|value| value.trim() != "0"),
            random_fully: installed.random_fully,
            is_large: false,
        };
        Ok(RuleContext { context, problems })
    }
}

fn local_addresses(is_wanted: impl Fn(IpAddr) -> bool) -> Result<Vec<IpAddr>> {
    let addresses = Route::open().and_then(|mut route| route.addresses());
    let addresses = addresses.map_err(|e| Error(format!("failed to list node addresses: {e}")))?;
    let mut ips: Vec<IpAddr> = addresses
        .iter()
        .map(|address| address.ip)
        .filter(|ip| is_wanted(*ip))
        .collect();
    ips.sort_unstable();
    ips.dedup();
    Ok(ips)
}

/// Node ports don't work on loopback addresses unless that is asked for, and never in IPv6.
fn without_loopback(ips: Vec<IpAddr>, is_allowed: bool) -> (NodePorts, Vec<String>) {
    let (refused, open): (Vec<IpAddr>, Vec<IpAddr>) = ips.into_iter().partition(|ip| ip.is_loopback() && !is_allowed);
    let problem = |ip: &IpAddr| match ip.is_ipv4() {
        true => format!("node ports disabled on {ip} of nodePortAddresses: iptables.localhostNodePorts is false"),
        false => format!("node ports disabled on {ip} of nodePortAddresses: not supported on IPv6 loopback"),
    };
    (NodePorts::On(open), refused.iter().map(problem).collect())
}

/// Packets from 127/8 may leave this machine's loopback only with this.
fn allow_localhost() -> Result<()> {
    let is_on = fs::read_to_string(ROUTE_LOCALNET).is_ok_and(|value| value.trim() == "1");
    if is_on {
        return Ok(());
    }
    tracing::info!("setting net.ipv4.conf.all.route_localnet to 1 for node ports on localhost");
    fs::write(ROUTE_LOCALNET, "1").map_err(|e| Error(format!("failed to set {ROUTE_LOCALNET}: {e}")))
}
