//! What the kernel holds of ours, and how all of it is taken away.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use super::apply::failed;
use super::kernel::{Command, Real};
use super::operations::KernelState;
use super::render::{At, Element, KernelObject, Match, ServerKey, Set};
use super::{Counts, DEVICE, Ipvs, Result, connections, desired, rules};
use crate::backend::{Cleaned, Error};
use crate::plan::{Family, Protocol};
use orlop_netlink::conntrack::{Conntrack, Flow};
use orlop_netlink::route::is_reachable;

impl KernelState {
    pub(super) fn counts(&self) -> Counts {
        Counts {
            servers: self.servers.len(),
            reals: self.servers.values().map(|seen| seen.reals.len()).sum(),
            addresses: self.addresses.len(),
            elements: self.elements.len(),
        }
    }
}

impl Ipvs {
    /// Everything of ours, with the tables there.
    pub(super) fn held(&mut self, link: u32) -> Result<KernelState> {
        let mut held = KernelState::default();
        for family in self.families() {
            for set in Set::ALL {
                let read = self.nft.elements(family, set, &mut held.elements);
                read.map_err(|e| {
                    Error(format!(
                        "failed to list set {} of table {}: {e}",
                        set.name(),
                        rules::TABLE
                    ))
                })?;
            }
        }
        let addresses = self
            .route
            .addresses()
            .map_err(|e| Error(format!("failed to list node addresses: {e}")))?;
        let on_device = addresses.iter().filter(|a| a.link == link).map(|a| a.ip);
        held.addresses = on_device
            .filter(|ip| is_reachable(*ip) && !self.is_excluded(*ip))
            .collect();
        for (key, mut seen) in self
            .kernel
            .servers()
            .map_err(|e| Error(format!("failed to list virtual servers: {e}")))?
        {
            if self.is_ours(key, &held) {
                seen.reals = self
                    .reals(key)?
                    .into_iter()
                    .map(|real| (real.address, real.weight))
                    .collect();
                held.servers.insert(key, seen);
            }
        }
        Ok(held)
    }

    pub(super) fn reals(&mut self, key: ServerKey) -> Result<Vec<Real>> {
        self.kernel
            .reals(key)
            .map_err(|e| Error(format!("failed to list real servers of {key}: {e}")))
    }

    fn is_excluded(&self, ip: IpAddr) -> bool {
        self.settings
            .ipvs
            .exclude_ranges
            .iter()
            .any(|range| range.contains(&ip))
    }

    /// Made by us, in this process or an earlier one, or wanted now.
    fn is_ours(&self, key: ServerKey, held: &KernelState) -> bool {
        if self.desired.value(&KernelObject::Server(key)).is_some() {
            return true;
        }
        match key {
            ServerKey::Marked(_, mark) => desired::is_our_mark(mark, self.settings.masquerade_bit),
            ServerKey::At(at) if self.is_excluded(at.address.ip()) => false,
            ServerKey::At(at) => {
                let recorded = Element {
                    family: key.family(),
                    set: Set::Services,
                    matches: Match::At(at),
                };
                held.addresses.contains(&at.address.ip()) || held.elements.contains_key(&recorded)
            }
        }
    }

    /// No new connections; those under way go on, and with the last of them everything goes.
    pub(super) fn remove_all(&mut self) -> Result<Cleaned> {
        let link = self
            .route
            .link(DEVICE)
            .map_err(|e| Error(format!("failed to delete device {DEVICE}: {e}")))?;
        let held = self.held_if_any(link.as_ref().map(|link| link.index))?;
        let mut commands = Vec::new();
        for key in held.servers.keys() {
            // Datagrams of a client that goes on sending would keep all this for ever.
            if matches!(key, ServerKey::At(at) if at.protocol == Protocol::Udp) {
                commands.push(Command::DeleteServer(*key));
                continue;
            }
            let weighty = self.reals(*key)?.into_iter().filter(|real| real.weight != 0);
            commands.extend(weighty.map(|real| Command::SetReal(*key, real.address, 0)));
        }
        self.run(&commands)?;
        self.forget_datagrams(&held)?;
        if !held.servers.is_empty() && connections::under_way(|at| held.servers.contains_key(&ServerKey::At(at)))? {
            return Ok(Cleaned::Draining);
        }
        if let Some(link) = link {
            self.route
                .delete_link(link.index)
                .map_err(|e| Error(format!("failed to delete device {DEVICE}: {e}")))?;
        }
        let servers: Vec<Command> = held.servers.keys().map(|key| Command::DeleteServer(*key)).collect();
        self.run(&servers)?;
        for family in Family::ALL {
            let gone = self.nft.delete_table(family);
            gone.map_err(|e| Error(format!("failed to delete table {}: {e}", rules::TABLE)))?;
        }
        Ok(Cleaned::Whole)
    }

    /// Flows of datagrams that the kernel remembers would go on looking for us; forgotten, their next packet is looked at
    /// anew by whoever serves services now.
    fn forget_datagrams(&mut self, held: &KernelState) -> Result<()> {
        let is_ours = |flow: &Flow| {
            let at = At {
                protocol: Protocol::Udp,
                address: flow.destination,
            };
            held.servers.contains_key(&ServerKey::At(at))
        };
        let families: BTreeSet<Family> = held.servers.keys().map(|key| key.family()).collect();
        let forget = || -> io::Result<()> {
            for family in families {
                let mut conntrack = Conntrack::open()?;
                let flows = conntrack.flows(family, Protocol::Udp, is_ours)?;
                conntrack.delete(family, &flows)?;
            }
            Ok(())
        };
        forget().map_err(|e| Error(format!("failed to delete conntrack entries: {e}")))
    }

    /// As `held`, where some of it may not be there.
    fn held_if_any(&mut self, link: Option<u32>) -> Result<KernelState> {
        let mut held = KernelState::default();
        for family in Family::ALL {
            let found = match self.nft.find(family) {
                // A kernel without nftables has no table of ours.
                Err(e) if is_unsupported(&e) => None,
                outcome => outcome.map_err(|e| Error(format!("failed to list table {}: {e}", rules::TABLE)))?,
            };
            for set in found.map(|found| found.sets).unwrap_or_default() {
                let read = self.nft.elements(family, set, &mut held.elements);
                read.map_err(|e| {
                    Error(format!(
                        "failed to list set {} of table {}: {e}",
                        set.name(),
                        rules::TABLE
                    ))
                })?;
            }
        }
        let addresses = self
            .route
            .addresses()
            .map_err(|e| Error(format!("failed to list node addresses: {e}")))?;
        let on_device = addresses.iter().filter(|a| Some(a.link) == link).map(|a| a.ip);
        held.addresses = on_device.filter(|ip| !self.is_excluded(*ip)).collect();
        let servers = self
            .kernel
            .servers()
            .map_err(|e| Error(format!("failed to list virtual servers: {e}")))?;
        held.servers = servers
            .into_iter()
            .filter(|(key, _)| self.is_ours(*key, &held))
            .collect();
        Ok(held)
    }

    fn run(&mut self, commands: &[Command]) -> Result<()> {
        let outcomes = self
            .kernel
            .run(commands)
            .map_err(|e| Error(format!("failed to update IPVS: {e}")))?;
        for (command, outcome) in commands.iter().zip(outcomes) {
            match outcome {
                Err(e) if !is_gone(&e) => return Err(failed(command, &e)),
                _ => {}
            }
        }
        Ok(())
    }
}

/// There is no such virtual or real server.
pub(super) fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(nix::libc::ESRCH | nix::libc::ENOENT))
}

fn is_unsupported(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(nix::libc::EINVAL | nix::libc::EOPNOTSUPP | nix::libc::EAFNOSUPPORT)
    )
}
