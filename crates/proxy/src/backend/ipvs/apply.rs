//! Operations, done.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;

use super::held::is_gone;
use super::kernel::{Command, Config};
use super::operations::Operation;
use super::render::{Element, ServerKey, Value};
use super::{Ipvs, Report, Result, written};
use crate::backend::Error;
use orlop_netlink::route::AddressChange;

impl Ipvs {
    pub(super) fn apply(&mut self, operations: Vec<Operation>, link: u32) -> Result<Report> {
        let steps = Steps::new(&operations, self);
        self.change_elements(&steps.first, &steps.add)?;
        let mut problems = self.change_servers(&steps.commands)?;
        let changed = self.route.change_addresses(link, &steps.addresses);
        for (ip, error) in
            changed.map_err(|e| Error(format!("failed to update addresses of {}: {e}", super::DEVICE)))?
        {
            if self.unbound.insert(ip) {
                problems.push(format!("failed to add address {ip} to {}: {error}", super::DEVICE));
            }
        }
        self.retire(&steps.retire)?;
        if steps.look_again {
            self.look_at_leaving()?;
        }
        self.change_servers(&steps.delete)?;
        self.change_elements(&steps.last, &[])?;
        self.count(&operations);
        Ok(Report {
            written: written(&operations),
            problems,
            ..Report::default()
        })
    }

    fn change_elements(&mut self, remove: &[Element], add: &[(Element, Value)]) -> Result<()> {
        if remove.is_empty() && add.is_empty() {
            return Ok(());
        }
        self.nft.change(remove, add).map_err(|e| {
            Error(format!(
                "failed to update elements of table {}: {e}",
                super::rules::TABLE
            ))
        })
    }

    /// Those that are as wanted already, made by others in the meantime, are brought to it anyway.
    fn change_servers(&mut self, commands: &[Command]) -> Result<Vec<String>> {
        let mut problems = Vec::new();
        let mut again = Vec::new();
        let outcomes = self
            .kernel
            .run(commands)
            .map_err(|e| Error(format!("failed to update IPVS: {e}")))?;
        for (command, outcome) in commands.iter().zip(outcomes) {
            let Err(error) = outcome else { continue };
            match command {
                Command::NewServer(key, config) if is_there(&error) => {
                    again.push(Command::SetServer(*key, config.clone()))
                }
                Command::NewReal(key, real) if is_there(&error) => again.push(Command::SetReal(*key, *real, 1)),
                Command::DeleteServer(_) | Command::DeleteReal(..) if is_gone(&error) => {}
                Command::NewServer(key, _) if is_unable(&error) => {
                    if self.refused.insert(*key) {
                        problems.push(failed(command, &error).0);
                    }
                }
                command if self.refused.contains(&command.server()) => {}
                command => return Err(failed(command, &error)),
            }
        }
        let outcomes = self
            .kernel
            .run(&again)
            .map_err(|e| Error(format!("failed to update IPVS: {e}")))?;
        for (command, outcome) in again.iter().zip(outcomes) {
            outcome.map_err(|e| failed(command, &e))?;
        }
        Ok(problems)
    }

    /// Takes their weight from real servers; those without connections go at once, the others later.
    fn retire(&mut self, reals: &[(ServerKey, SocketAddr)]) -> Result<()> {
        if reals.is_empty() {
            return Ok(());
        }
        let idle: Vec<Command> = reals
            .iter()
            .map(|(key, real)| Command::SetReal(*key, *real, 0))
            .collect();
        let outcomes = self
            .kernel
            .run(&idle)
            .map_err(|e| Error(format!("failed to update IPVS: {e}")))?;
        for (command, outcome) in idle.iter().zip(outcomes) {
            match outcome {
                Err(e) if !is_gone(&e) => return Err(failed(command, &e)),
                _ => {}
            }
        }
        let mut servers = BTreeMap::<ServerKey, Vec<SocketAddr>>::new();
        for (key, real) in reals {
            servers.entry(*key).or_default().push(*real);
        }
        for (key, leaving) in servers {
            self.part_with(key, leaving)?;
        }
        Ok(())
    }

    /// Deletes those of these real servers that have no connections.
    fn part_with(&mut self, key: ServerKey, leaving: Vec<SocketAddr>) -> Result<()> {
        let busy: BTreeSet<SocketAddr> = self
            .reals(key)?
            .into_iter()
            .filter(|real| real.connections() > 0)
            .map(|real| real.address)
            .collect();
        let (stay, go): (Vec<_>, Vec<_>) = leaving.into_iter().partition(|real| busy.contains(real));
        let commands: Vec<Command> = go.iter().map(|real| Command::DeleteReal(key, *real)).collect();
        self.counts.reals = self.counts.reals.saturating_sub(go.len());
        self.change_servers(&commands)?;
        let known = self.leaving.entry(key).or_default();
        known.retain(|real| !go.contains(real));
        known.extend(
            stay.iter()
                .filter(|real| !known.contains(real))
                .copied()
                .collect::<Vec<_>>(),
        );
        if known.is_empty() {
            self.leaving.remove(&key);
        }
        Ok(())
    }

    /// Real servers that had connections when they were to leave may have none now.
    pub(super) fn look_at_leaving(&mut self) -> Result<()> {
        for (key, leaving) in self.leaving.clone() {
            self.part_with(key, leaving)?;
        }
        self.looked = orlop_base::clock::monotonic();
        Ok(())
    }

    fn count(&mut self, operations: &[Operation]) {
        let counts = &mut self.counts;
        for operation in operations {
            match operation {
                Operation::AddServer(..) => counts.servers += 1,
                Operation::DeleteServer(_) => counts.servers = counts.servers.saturating_sub(1),
                Operation::AddReal(..) => counts.reals += 1,
                Operation::DeleteReal(..) => counts.reals = counts.reals.saturating_sub(1),
                Operation::Bind(_) => counts.addresses += 1,
                Operation::Unbind(_) => counts.addresses = counts.addresses.saturating_sub(1),
                Operation::AddElement(..) => counts.elements += 1,
                Operation::ClearElement(_) | Operation::DeleteElement(_) => {
                    counts.elements = counts.elements.saturating_sub(1);
                }
                // Those that leave are counted when they have left.
                Operation::RetireReal(..)
                | Operation::DeleteRealIfIdle(..)
                | Operation::SetServer(..)
                | Operation::SetReal(..)
                | Operation::ReplaceElement(..) => {}
            }
        }
    }
}

/// Operations by the part of the kernel they change, each in its order.
#[derive(Default)]
struct Steps {
    first: Vec<Element>,
    add: Vec<(Element, Value)>,
    commands: Vec<Command>,
    addresses: Vec<AddressChange>,
    retire: Vec<(ServerKey, SocketAddr)>,
    look_again: bool,
    delete: Vec<Command>,
    last: Vec<Element>,
}

impl Steps {
    fn new(operations: &[Operation], ipvs: &mut Ipvs) -> Steps {
        let mut steps = Steps::default();
        for operation in operations {
            steps.take(operation, ipvs);
        }
        // Each virtual server is whole before the next is begun.
        steps.commands.sort_by_key(Command::server);
        steps
    }

    fn take(&mut self, operation: &Operation, ipvs: &mut Ipvs) {
        let scheduling = &ipvs.scheduling;
        let config = |affinity: Option<u32>| Config {
            scheduler: scheduling.scheduler.clone(),
            flags: scheduling.flags(affinity),
            timeout: affinity.unwrap_or_default(),
        };
        match operation {
            Operation::ClearElement(element) => self.first.push(*element),
            Operation::AddElement(element, value) => self.add.push((*element, value.clone())),
            Operation::ReplaceElement(element, value) => {
                self.first.push(*element);
                self.add.push((*element, value.clone()));
            }
            Operation::AddServer(key, affinity) => self.commands.push(Command::NewServer(*key, config(*affinity))),
            Operation::SetServer(key, affinity) => self.commands.push(Command::SetServer(*key, config(*affinity))),
            Operation::AddReal(key, real) => self.commands.push(Command::NewReal(*key, *real)),
            Operation::SetReal(key, real) => {
                if let Some(leaving) = ipvs.leaving.get_mut(key) {
                    leaving.retain(|other| other != real);
                }
                self.commands.push(Command::SetReal(*key, *real, 1));
            }
            Operation::Bind(ip) => self.addresses.push(AddressChange::Add(*ip)),
            Operation::Unbind(ip) => {
                ipvs.unbound.remove(ip);
                self.addresses.push(AddressChange::Remove(*ip));
            }
            Operation::RetireReal(key, real) => self.retire.push((*key, *real)),
            Operation::DeleteRealIfIdle(key, real) => {
                ipvs.leaving.entry(*key).or_default().push(*real);
                self.look_again = true;
            }
            Operation::DeleteReal(key, real) => self.delete.push(Command::DeleteReal(*key, *real)),
            Operation::DeleteServer(key) => {
                ipvs.leaving.remove(key);
                ipvs.refused.remove(key);
                self.delete.push(Command::DeleteServer(*key));
            }
            Operation::DeleteElement(element) => self.last.push(*element),
        }
    }
}

fn is_there(error: &io::Error) -> bool {
    error.raw_os_error() == Some(nix::libc::EEXIST)
}

/// The kernel lacks the protocol or the family.
fn is_unable(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(nix::libc::EAFNOSUPPORT | nix::libc::EPROTONOSUPPORT)
    )
}

pub(super) fn failed(command: &Command, error: &io::Error) -> Error {
    let key = command.server();
    match command {
        Command::NewServer(_, config) | Command::SetServer(_, config)
            if error.raw_os_error() == Some(nix::libc::ENOENT) =>
        {
            let scheduler = &config.scheduler;
            Error(format!(
                "virtual server {key}: the kernel has no scheduler {scheduler} (modprobe ip_vs_{scheduler})"
            ))
        }
        Command::NewServer(..) | Command::SetServer(..) | Command::DeleteServer(_) => {
            Error(format!("failed to update virtual server {key}: {error}"))
        }
        Command::NewReal(_, real) | Command::SetReal(_, real, _) | Command::DeleteReal(_, real) => {
            Error(format!("failed to update real server {real} of {key}: {error}"))
        }
    }
}
