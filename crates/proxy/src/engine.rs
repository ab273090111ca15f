//! The plan and the back end that applies it; the mode can be changed while running. Everything here blocks.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::backend::{self, Backend, Cleaned, Mode, Report};
use crate::conntrack::{self, DeletedFlows};
use crate::plan::{Change, Key, Plan, Planner, Refusal, ServicePort};
use crate::settings::Settings;

/// A planner and the back end of the mode in use. One at a time; what it leaves in the kernel outlives it.
pub struct Engine {
    /// Fed by the caller; what it has planned is applied by `sync`.
    pub planner: Planner,
    backend: Box<dyn Backend>,
    settings: Settings,
    runtime: Handle,
    /// Back ends of modes that were switched away from, until their last connections are gone.
    retiring: Vec<Box<dyn Backend>>,
    /// The next sync must look at everything.
    needs_full_sync: bool,
    /// Modes whose leftovers of an earlier process are yet to be looked for.
    leftovers: Vec<Mode>,
    no_local: NoLocalEndpoints,
    /// Modes whose rules could not be removed, since somebody last asked.
    failed_cleanups: Vec<Mode>,
}

/// Service ports under a policy Local whose endpoints are all on other nodes; kept up to date with each change, so that a
/// sync need not look at all services to count them.
#[derive(Default)]
struct NoLocalEndpoints {
    internal: BTreeSet<Key>,
    external: BTreeSet<Key>,
}

impl NoLocalEndpoints {
    fn update(&mut self, plan: &Plan, change: &Change) {
        match change {
            Change::All => {
                *self = NoLocalEndpoints::default();
                plan.ports.values().for_each(|port| self.set(&port.key, Some(port)));
            }
            Change::Keys(keys) => keys
                .iter()
                .for_each(|key| self.set(key, plan.ports.get(key).map(|port| &**port))),
        }
    }

    fn set(&mut self, key: &Key, port: Option<&ServicePort>) {
        let internal = |port: &ServicePort| port.internal_local && port.internal_refusal() == Some(Refusal::Drop);
        let external = |port: &ServicePort| {
            port.external_local && port.is_external() && port.external_refusal() == Some(Refusal::Drop)
        };
        for (keys, holds) in [
            (&mut self.internal, port.is_some_and(internal)),
            (&mut self.external, port.is_some_and(external)),
        ] {
            match holds {
                true => drop(keys.insert(key.clone())),
                false => drop(keys.remove(key)),
            }
        }
    }
}

/// A sync that succeeded.
pub struct SyncResult {
    /// What the back end wrote.
    pub report: Report,
    /// How long the plan and the back end took.
    pub took: Duration,
    /// Service ports under internal and external policy Local that have endpoints on other nodes only.
    pub no_local: (usize, usize),
    /// Stale flows that were deleted, and how long that took.
    pub flows: Option<(DeletedFlows, Duration)>,
    /// Everything was compared with what the kernel holds, not only what changed.
    pub was_full: bool,
    /// When the changes of endpoints that are now in place happened.
    pub triggered: Vec<jiff::Timestamp>,
}

/// Why a sync failed. What is in place is not known: the next sync is a full one.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct SyncError {
    /// Everything was to be compared, not only what changed.
    pub was_full: bool,
    /// The back end's reason.
    pub error: backend::Error,
}

impl Engine {
    /// Sets up the back end of a mode that is supported; writes nothing yet. `runtime` runs what the userspace mode serves.
    pub fn new(planner: Planner, mode: Mode, settings: Settings, runtime: Handle) -> backend::Result<Engine> {
        Ok(Engine {
            planner,
            backend: backend::create(mode, &settings, &runtime)?,
            settings,
            runtime,
            retiring: vec![],
            needs_full_sync: true,
            leftovers: Mode::ALL.into_iter().filter(|other| *other != mode).collect(),
            no_local: NoLocalEndpoints::default(),
            failed_cleanups: vec![],
        })
    }

    /// With a back end of a test's own.
    #[cfg(test)]
    pub(crate) fn with_backend(planner: Planner, backend: Box<dyn Backend>, runtime: Handle) -> Engine {
        Engine {
            planner,
            backend,
            settings: Settings::default(),
            runtime,
            retiring: vec![],
            needs_full_sync: true,
            leftovers: vec![],
            no_local: NoLocalEndpoints::default(),
            failed_cleanups: vec![],
        }
    }

    /// The mode in use.
    pub fn mode(&self) -> Mode {
        self.backend.mode()
    }

    /// Nothing waits for a sync.
    pub fn is_settled(&self) -> bool {
        self.planner.is_settled() && !self.needs_full_sync
    }

    /// Modes that were switched away from still have connections, or rules that could not be removed.
    pub fn is_retiring(&self) -> bool {
        !self.retiring.is_empty()
    }

    /// The next sync compares everything with what the kernel holds.
    pub fn require_full_sync(&mut self) {
        self.needs_full_sync = true;
    }

    /// Applies what changed since the last sync, or everything if that failed or `require_full_sync` was called.
    pub fn sync(&mut self) -> Result<SyncResult, SyncError> {
        let begun = orlop_base::clock::monotonic();
        let taken = self.planner.take_changes();
        let change = match self.needs_full_sync {
            true => Change::All,
            false => taken.change,
        };
        let was_full = change == Change::All;
        // Should this fail, nothing is known of what is in place.
        self.needs_full_sync = true;
        let report = self.backend.sync(self.planner.plan(), &change);
        let report = report.map_err(|error| SyncError { was_full, error })?;
        self.needs_full_sync = false;
        let took = begun.elapsed();
        self.no_local.update(self.planner.plan(), &change);
        Ok(SyncResult {
            no_local: (self.no_local.internal.len(), self.no_local.external.len()),
            report,
            took,
            flows: self.clean_flows(&change),
            was_full,
            triggered: taken.triggered,
        })
    }

    /// Flows of UDP would go on to endpoints that are gone. How many there were, and how long that took.
    fn clean_flows(&self, change: &Change) -> Option<(DeletedFlows, Duration)> {
        // In userspace mode the kernel translates nothing.
        if self.mode() == Mode::Userspace {
            return None;
        }
        let begun = orlop_base::clock::monotonic();
        let serving = |port: &ServicePort| self.planner.serving(&port.key);
        match conntrack::clean_stale(self.planner.plan(), change, serving) {
            Ok(deleted) => Some((deleted, begun.elapsed())),
            Err(error) => {
                tracing::warn!(err = %error, "failed to delete stale UDP conntrack entries");
                None
            }
        }
    }

    /// Other settings, or another mode: the new one is in place before the old one goes, so that there is always one.
    /// If it fails, all stays as it was. None: there is nothing to change.
    pub fn switch(&mut self, mode: Mode, settings: Settings) -> backend::Result<Option<SyncResult>> {
        if mode == self.mode() && settings == self.settings {
            return Ok(None);
        }
        let begun = orlop_base::clock::monotonic();
        let mut next = backend::create(mode, &settings, &self.runtime)?;
        let triggered = self.planner.take_changes().triggered;
        let report = next.sync(self.planner.plan(), &Change::All)?;
        // Back in a mode whose last connections are still under way: they are the new one's from now on.
        self.retiring.retain(|old| old.mode() != mode);
        let before = std::mem::replace(&mut self.backend, next);
        self.settings = settings;
        self.needs_full_sync = false;
        if before.mode() != mode {
            self.retiring.push(before);
        }
        self.no_local.update(self.planner.plan(), &Change::All);
        let synced = SyncResult {
            no_local: (self.no_local.internal.len(), self.no_local.external.len()),
            report,
            took: begun.elapsed(),
            flows: self.clean_flows(&Change::All),
            was_full: true,
            triggered,
        };
        self.retire();
        Ok(Some(synced))
    }

    /// Removes what modes switched away from have left. Those that still have connections are tried again later.
    pub fn retire(&mut self) {
        let failed = &mut self.failed_cleanups;
        self.retiring.retain_mut(|old| match old.cleanup() {
            Ok(Cleaned::Whole) => false,
            Ok(Cleaned::Draining) => true,
            Err(error) => {
                tracing::warn!(mode = %old.mode(), err = %error, "failed to clean up rules of another proxy mode");
                failed.push(old.mode());
                true
            }
        });
    }

    /// The modes whose cleanup failed since the last call, once for each failure.
    pub fn take_failed_cleanups(&mut self) -> Vec<Mode> {
        std::mem::take(&mut self.failed_cleanups)
    }

    /// Looks, once, for what earlier processes have left in other modes.
    pub fn clean_leftovers(&mut self) {
        for mode in std::mem::take(&mut self.leftovers) {
            if mode != self.mode() && backend::check_support(mode).is_ok() {
                match backend::create(mode, &self.settings, &self.runtime) {
                    Ok(old) => self.retiring.push(old),
                    Err(error) => tracing::debug!(%mode, err = %error, "skipping cleanup of proxy mode"),
                }
            }
        }
        self.retire();
    }
}

/// Removes what any mode has made on this node, in this process or an earlier one. What could not be removed, with the
/// reason.
pub fn clean_up(settings: &Settings, runtime: &Handle) -> Vec<String> {
    let mut problems = vec![];
    for mode in Mode::ALL {
        if backend::check_support(mode).is_err() {
            continue;
        }
        let cleaned = backend::create(mode, settings, runtime).and_then(|mut backend| backend.cleanup());
        match cleaned {
            Ok(Cleaned::Whole) => {}
            Ok(Cleaned::Draining) => problems.push(format!("{mode}: connections are still open")),
            Err(error) => problems.push(format!("{mode}: {error}")),
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::plan::{Endpoint, Family, Protocol};

    fn port(name: &str, internal_local: bool, external_local: bool, is_here: bool) -> ServicePort {
        let key = Key {
            family: Family::V4,
            namespace: "default".into(),
            name: name.into(),
            port: "".into(),
        };
        let endpoint = Endpoint {
            address: "10.244.1.1:80".parse().unwrap(),
            is_local: is_here,
        };
        ServicePort {
            node_port: Some(30_000),
            internal_local,
            external_local,
            cluster: vec![endpoint],
            local: Vec::from_iter(is_here.then_some(endpoint)),
            has_endpoints: true,
            ..ServicePort::bare(key, Protocol::Tcp, "10.96.0.1".parse().unwrap(), 80)
        }
    }

    #[test]
    fn services_without_local_endpoints_are_counted() {
        let mut plan = Plan::default();
        let mut counts = NoLocalEndpoints::default();
        let mut put = |plan: &mut Plan, port: ServicePort| {
            let change = Change::Keys(vec![port.key.clone()]);
            plan.ports.insert(port.key.clone(), Arc::new(port));
            counts.update(plan, &change);
            (counts.internal.len(), counts.external.len())
        };
        assert_eq!(put(&mut plan, port("a", true, false, false)), (1, 0));
        assert_eq!(put(&mut plan, port("b", true, true, false)), (2, 1));
        assert_eq!(put(&mut plan, port("c", false, false, false)), (2, 1));
        assert_eq!(put(&mut plan, port("b", true, true, true)), (1, 0));
        let gone = plan.ports.pop_first().expect("there are some").0;
        counts.update(&plan, &Change::Keys(vec![gone]));
        assert!(counts.internal.is_empty());
        plan.ports.clear();
        let external = port("d", false, true, false);
        plan.ports.insert(external.key.clone(), Arc::new(external));
        counts.update(&plan, &Change::All);
        assert_eq!((counts.internal.len(), counts.external.len()), (0, 1));
    }
}
