//! The plan and what brings it about, with the mode changed under way. Everything here blocks.

use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use crate::backend::{self, Backend, Cleaned, Mode, Report};
use crate::conntrack;
use crate::plan::{Change, Planner, ServicePort};
use crate::settings::Settings;

pub struct Engine {
    pub planner: Planner,
    backend: Box<dyn Backend>,
    settings: Settings,
    runtime: Handle,
    /// Back ends of modes that were switched away from, until their last connections are gone.
    retiring: Vec<Box<dyn Backend>>,
    /// The next sync must look at everything.
    unsure: bool,
    /// Modes whose leftovers of an earlier process are yet to be looked for.
    leftovers: Vec<Mode>,
}

/// What a sync did.
pub struct Synced {
    pub report: Report,
    pub took: Duration,
    /// Stale flows that were deleted, and how long that took.
    pub flows: Option<(usize, Duration)>,
    pub was_full: bool,
    pub triggered: Vec<jiff::Timestamp>,
}

impl Engine {
    pub fn new(planner: Planner, mode: Mode, settings: Settings, runtime: Handle) -> backend::Result<Engine> {
        Ok(Engine {
            planner,
            backend: backend::create(mode, &settings, &runtime)?,
            settings,
            runtime,
            retiring: vec![],
            unsure: true,
            leftovers: Mode::ALL.into_iter().filter(|other| *other != mode).collect(),
        })
    }

    pub fn mode(&self) -> Mode {
        self.backend.mode()
    }

    pub fn is_settled(&self) -> bool {
        self.planner.is_settled() && !self.unsure
    }

    pub fn is_retiring(&self) -> bool {
        !self.retiring.is_empty()
    }

    /// Everything is looked at next time.
    pub fn distrust(&mut self) {
        self.unsure = true;
    }

    pub fn sync(&mut self) -> backend::Result<Synced> {
        let begun = Instant::now();
        let taken = self.planner.take();
        let change = match self.unsure {
            true => Change::All,
            false => taken.change,
        };
        let was_full = change == Change::All;
        // Should this fail, nothing is known of what is in place.
        self.unsure = true;
        let report = self.backend.sync(self.planner.plan(), &change)?;
        self.unsure = false;
        let took = begun.elapsed();
        Ok(Synced {
            report,
            took,
            flows: self.clean_flows(&change),
            was_full,
            triggered: taken.triggered,
        })
    }

    /// Flows of UDP would go on to endpoints that are gone. How many there were, and how long that took.
    fn clean_flows(&self, change: &Change) -> Option<(usize, Duration)> {
        // In userspace mode the kernel translates nothing.
        if self.mode() == Mode::Userspace {
            return None;
        }
        let begun = Instant::now();
        let serving = |port: &ServicePort| self.planner.serving(&port.key);
        match conntrack::clean_stale(self.planner.plan(), change, serving) {
            Ok(deleted) => Some((deleted, begun.elapsed())),
            Err(error) => {
                tracing::warn!("stale UDP flows can't be deleted: {error}");
                None
            }
        }
    }

    /// Other settings, or another mode: the new one is in place before the old one goes, so that there is always one.
    /// If it can't be brought about, all stays as it was. None: there is nothing to change.
    pub fn switch(&mut self, mode: Mode, settings: Settings) -> backend::Result<Option<Synced>> {
        if mode == self.mode() && settings == self.settings {
            return Ok(None);
        }
        let begun = Instant::now();
        let mut next = backend::create(mode, &settings, &self.runtime)?;
        let triggered = self.planner.take().triggered;
        let report = next.sync(self.planner.plan(), &Change::All)?;
        // Back in a mode whose last connections are still under way: they are the new one's from now on.
        self.retiring.retain(|old| old.mode() != mode);
        let before = std::mem::replace(&mut self.backend, next);
        self.settings = settings;
        self.unsure = false;
        if before.mode() != mode {
            self.retiring.push(before);
        }
        let synced = Synced {
            report,
            took: begun.elapsed(),
            flows: self.clean_flows(&Change::All),
            was_full: true,
            triggered,
        };
        self.retire();
        Ok(Some(synced))
    }

    /// Takes away what modes of the past have left. Those that still have connections are asked again later.
    pub fn retire(&mut self) {
        self.retiring.retain_mut(|old| match old.cleanup() {
            Ok(Cleaned::Whole) => false,
            Ok(Cleaned::Draining) => true,
            Err(error) => {
                tracing::warn!("what mode {} has left can't be taken away: {error}", old.mode());
                true
            }
        });
    }

    /// Looks, once, for what earlier processes have left in other modes.
    pub fn clean_leftovers(&mut self) {
        for mode in std::mem::take(&mut self.leftovers) {
            if mode != self.mode() && backend::supported(mode).is_ok() {
                match backend::create(mode, &self.settings, &self.runtime) {
                    Ok(old) => self.retiring.push(old),
                    Err(error) => tracing::debug!("mode {mode} is not looked at: {error}"),
                }
            }
        }
        self.retire();
    }
}

/// Takes away all that any mode has made on this machine. What could not be, with the reason.
pub fn clean_up(settings: &Settings, runtime: &Handle) -> Vec<String> {
    let mut problems = vec![];
    for mode in Mode::ALL {
        if backend::supported(mode).is_err() {
            continue;
        }
        let cleaned = backend::create(mode, settings, runtime).and_then(|mut backend| backend.cleanup());
        match cleaned {
            Ok(Cleaned::Whole) => {}
            Ok(Cleaned::Draining) => problems.push(format!("{mode}: connections are still under way")),
            Err(error) => problems.push(format!("{mode}: {error}")),
        }
    }
    problems
}
