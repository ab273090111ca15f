//! When the probes of one container run next and what their answers mean. Pure: `now` and the random source come in.
//!
//! ```text
//!             initialDelay          run of failureThreshold / successThreshold
//! (started) ───────────────► probing ─────────────────────────────────────────► result changes
//!      startup not yet passed: liveness and readiness wait
//!      liveness failed, startup decided: on hold until the container is replaced (then there is a new `Track`)
//! ```
//!
//! Upstream: pkg/kubelet/prober/worker.go (v1.36). Differs in when a probe first runs: readiness at once, startup within
//! a second, liveness some random part of the period later, so that a container is ready as soon as it can be and the
//! probes of many containers spread out. Containers that ran before the kubelet did are probed a random part of the
//! period after it started.

use std::time::Duration;

use orlop_api::types::core::Probe;
use orlop_base::Random;
use orlop_base::clock::Shift;
use tokio::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Liveness,
    Readiness,
    Startup,
}

pub const KINDS: [Kind; 3] = [Kind::Liveness, Kind::Readiness, Kind::Startup];

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Liveness => "Liveness",
            Kind::Readiness => "Readiness",
            Kind::Startup => "Startup",
        }
    }

    /// What counts until the first answer.
    fn initial(self) -> Option<bool> {
        match self {
            Kind::Liveness => Some(true),
            Kind::Readiness => Some(false),
            Kind::Startup => None,
        }
    }
}

/// The longest that a container's first startup probe waits beyond its initial delay.
const STARTUP_SPREAD: Duration = Duration::from_secs(1);

/// The numbers of a probe, with Kubernetes' defaults for what an unvalidated (static) pod left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    pub initial_delay: Duration,
    pub period: Duration,
    pub timeout: Duration,
    pub success_threshold: u32,
    pub failure_threshold: u32,
}

impl Settings {
    pub fn of(probe: &Probe) -> Settings {
        let positive = |value: Option<i32>, default: u32| match value.map(u32::try_from) {
            Some(Ok(value)) if value > 0 => value,
            _ => default,
        };
        let seconds = |value, default| Duration::from_secs(u64::from(positive(value, default)));
        Settings {
            initial_delay: seconds(probe.initial_delay_seconds, 0),
            period: seconds(probe.period_seconds, 10),
            timeout: seconds(probe.timeout_seconds, 1),
            success_threshold: positive(probe.success_threshold, 1),
            failure_threshold: positive(probe.failure_threshold, 3),
        }
    }
}

/// What is known of a container that ran before this kubelet did, from the pod's last status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adopted {
    pub started: bool,
    pub ready: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProbePhase {
    /// Not before `startup` has passed.
    Gated,
    Due(Instant),
    /// A run is under way; it was due then.
    Running(Instant),
    /// Nothing more to find out about this container.
    OnHold,
}

#[derive(Clone, Debug)]
struct Machine {
    settings: Settings,
    state: ProbePhase,
    last: Option<bool>,
    run: u32,
    result: Option<bool>,
}

impl Machine {
    /// True if the result is another one now.
    fn count(&mut self, success: bool) -> bool {
        if self.last == Some(success) {
            self.run = self.run.saturating_add(1);
        } else {
            self.last = Some(success);
            self.run = 1;
        }
        let threshold = match success {
            true => self.settings.success_threshold,
            false => self.settings.failure_threshold,
        };
        self.run >= threshold && self.result.replace(success) != Some(success)
    }

    fn decided(&self) -> bool {
        let threshold = match self.last {
            Some(true) => self.settings.success_threshold,
            _ => self.settings.failure_threshold,
        };
        self.run >= threshold
    }
}

/// The probes of one container, from its start to its end.
#[derive(Clone, Debug)]
pub struct Track {
    machines: [Option<Machine>; 3],
    adopted: bool,
    /// The time before which no probe runs on account of its initial delay is measured from here.
    seen: Instant,
    age: Duration,
}

impl Track {
    /// `settings` by [`KINDS`]; the container has run for `age` by now.
    pub fn new(
        settings: [Option<Settings>; 3],
        age: Duration,
        adopted: Option<Adopted>,
        now: Instant,
        random: &mut Random,
    ) -> Track {
        let mut kinds = KINDS.iter();
        let machines = settings.map(|settings| {
            let kind = *kinds.next().expect("as many as there are kinds");
            settings.map(|settings| Machine {
                settings,
                state: ProbePhase::Gated,
                last: None,
                run: 0,
                result: kind.initial(),
            })
        });
        let mut track = Track {
            machines,
            adopted: adopted.is_some(),
            seen: now,
            age,
        };
        if let Some(adopted) = adopted {
            if let Some(readiness) = track.machine(Kind::Readiness) {
                readiness.result = Some(adopted.ready);
            }
            if let Some(startup) = track.machine(Kind::Startup).filter(|_| adopted.started) {
                startup.result = Some(true);
                startup.state = ProbePhase::OnHold;
            }
        }
        if track.started() {
            track.schedule(Kind::Liveness, now, random);
            track.schedule(Kind::Readiness, now, random);
        } else {
            track.schedule(Kind::Startup, now, random);
        }
        track
    }

    fn machine(&mut self, kind: Kind) -> Option<&mut Machine> {
        self.machines[kind as usize].as_mut()
    }

    fn schedule(&mut self, kind: Kind, now: Instant, random: &mut Random) {
        let (adopted, seen, age) = (self.adopted, self.seen, self.age);
        let Some(machine) = self.machine(kind) else { return };
        let Settings {
            initial_delay, period, ..
        } = machine.settings;
        let spread = match kind {
            _ if adopted => period,
            Kind::Readiness => Duration::ZERO,
            Kind::Startup => period.min(STARTUP_SPREAD),
            Kind::Liveness => period,
        };
        let allowed = seen.later(initial_delay.saturating_sub(age));
        let micros = u64::try_from(spread.as_micros()).expect("a period is seconds in 32 bits");
        let extra = Duration::from_micros(random.below(micros.max(1)));
        machine.state = ProbePhase::Due(allowed.max(now).later(extra));
    }

    /// Startup probe passed, or there is none.
    pub fn started(&self) -> bool {
        let startup = self.machines[Kind::Startup as usize].as_ref();
        startup.is_none_or(|startup| startup.result == Some(true))
    }

    /// `None` also where there is no such probe.
    pub fn result(&self, kind: Kind) -> Option<bool> {
        self.machines[kind as usize].as_ref()?.result
    }

    /// When this probe is to run; `None` while it runs, waits or is done.
    pub fn due(&self, kind: Kind) -> Option<Instant> {
        match self.machines[kind as usize].as_ref()?.state {
            ProbePhase::Due(at) => Some(at),
            _ => None,
        }
    }

    /// A run begins. The answer goes to [`Track::finish`].
    pub fn begin(&mut self, kind: Kind) {
        if let Some(machine) = self.machine(kind)
            && let ProbePhase::Due(at) = machine.state
        {
            machine.state = ProbePhase::Running(at);
        }
    }

    /// A run ended; `None`: the probe itself did not work, which says nothing about the container. True if a result
    /// is another one now.
    pub fn finish(&mut self, kind: Kind, success: Option<bool>, now: Instant, random: &mut Random) -> bool {
        let Some(machine) = self.machine(kind) else {
            return false;
        };
        let ProbePhase::Running(was_due) = machine.state else {
            return false;
        };
        machine.state = ProbePhase::Due(was_due.later(machine.settings.period).max(now));
        let Some(success) = success else { return false };
        let changed = machine.count(success);
        let holds = match kind {
            Kind::Startup => machine.decided(),
            Kind::Liveness => !success && machine.decided(),
            Kind::Readiness => false,
        };
        if holds {
            machine.state = ProbePhase::OnHold;
        }
        if changed && kind == Kind::Startup && success {
            self.schedule(Kind::Liveness, now, random);
            self.schedule(Kind::Readiness, now, random);
        }
        changed
    }

    /// The pod is being ended: only readiness is still of interest. The others count as passed, so that nobody restarts
    /// what is to end. True if a result is another one now.
    pub fn stop_liveness_and_startup(&mut self, now: Instant, random: &mut Random) -> bool {
        let was_started = self.started();
        let mut changed = false;
        for kind in [Kind::Liveness, Kind::Startup] {
            if let Some(machine) = self.machine(kind) {
                machine.state = ProbePhase::OnHold;
                changed |= machine.result.replace(true) != Some(true);
            }
        }
        if !was_started {
            self.schedule(Kind::Readiness, now, random);
        }
        changed
    }
}

#[cfg(test)]
mod tests;
