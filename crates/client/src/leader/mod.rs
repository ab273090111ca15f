//! Leader election on a Lease: of several processes that could do the same work, one does. Upstream: client-go
//! tools/leaderelection, with which this can share a lease.
//!
//! The holder writes the lease anew every `retry_period`. If it has not managed to for `renew_deadline`, it stops, well
//! before the others, who wait `lease_duration`, may take over: whoever hears `Lost` must stop at once.

mod plan;

use std::time::Duration;

use orlop_base::clock::Shift;
use orlop_base::{Clock, Random, Shutdown};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

pub use self::plan::{Candidate, LeaderElectionRecord, LeaseStep, ObservedRecord, plan, released};
use crate::api::Api;
use crate::backoff::jittered;
use crate::error::{Error, Result};
use crate::path;
use crate::reachability::Failures;

/// Candidates wait up to this much longer, in parts of the retry period, so that they do not all try at once.
const JITTER: f64 = 1.2;

/// The lease, and the times of the election.
#[derive(Clone, Debug)]
pub struct Config {
    /// Of the lease.
    pub namespace: String,
    pub name: String,
    /// Ours; no two candidates may have the same.
    pub identity: String,
    /// After this long without a renewal others may take the lease.
    pub lease_duration: Duration,
    /// A leader that can't renew for this long gives up.
    pub renew_deadline: Duration,
    /// Between two tries to acquire or renew.
    pub retry_period: Duration,
    /// Give the lease up at shutdown, so that another can lead at once. Only for those whose work is over by then.
    pub release_on_shutdown: bool,
    pub clock: Clock,
}

impl Config {
    /// As Kubernetes' components have it: 15 s, 10 s, 2 s; the identity is `<hostname>_<uuid>`.
    pub fn new(namespace: &str, name: &str) -> Config {
        let hostname = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
        Config {
            namespace: namespace.to_string(),
            name: name.to_string(),
            identity: format!("{}_{}", hostname.unwrap_or_default(), uuid::Uuid::new_v4()),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
            release_on_shutdown: false,
            clock: Clock::System,
        }
    }

    /// What is wrong with these durations, if anything: with them two could lead, or nobody for long.
    pub fn problem(&self) -> Option<&'static str> {
        if self.lease_duration <= self.renew_deadline {
            Some("leaseDuration must be greater than renewDeadline")
        } else if self.renew_deadline <= self.retry_period.mul_f64(JITTER) {
            Some("renewDeadline must be greater than retryPeriod*JitterFactor")
        } else if self.lease_duration < Duration::from_secs(1) || self.retry_period.is_zero() {
            Some("leaseDuration must be at least a second, retryPeriod greater than zero")
        } else if self.identity.is_empty() {
            Some("identity must not be empty")
        } else {
            None
        }
    }
}

/// Who leads, as this candidate knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leadership {
    /// Somebody else leads (empty: not known yet).
    Standby {
        leader: String,
    },
    Leading,
    /// The lease was lost, or the shutdown came. Final.
    Lost,
}

/// An election under way. It goes on in a task of its own, also if this is dropped.
pub struct Election {
    state: watch::Receiver<Leadership>,
    held_until: watch::Receiver<Instant>,
    task: JoinHandle<()>,
}

impl Election {
    /// The state right now.
    pub fn current(&self) -> Leadership {
        self.state.borrow().clone()
    }

    /// Every change, for those who want to follow.
    pub fn subscribe(&self) -> watch::Receiver<Leadership> {
        self.state.clone()
    }

    /// For a health check; valid also when this is dropped.
    pub fn lease_health(&self) -> LeaseHealth {
        LeaseHealth {
            state: self.state.clone(),
            held_until: self.held_until.clone(),
        }
    }

    /// Waits until we lead. False if it is over before that: stop.
    pub async fn acquired(&mut self) -> bool {
        let decided = self.state.wait_for(|s| !matches!(s, Leadership::Standby { .. })).await;
        decided.is_ok_and(|state| *state == Leadership::Leading)
    }

    /// Waits until we lead no more, at once if it is so already.
    pub async fn lost(&mut self) {
        let _ = self.state.wait_for(|s| *s == Leadership::Lost).await;
    }

    /// Waits for the end of it all, a release of the lease included.
    pub async fn stopped(self) {
        let _ = self.task.await;
    }
}

/// Whether a leader still holds its lease, for health checks. Clones follow the same election.
// Upstream: client-go tools/leaderelection HealthzAdaptor
#[derive(Clone)]
pub struct LeaseHealth {
    state: watch::Receiver<Leadership>,
    held_until: watch::Receiver<Instant>,
}

impl LeaseHealth {
    /// False once the leadership is lost, and as long as we take ourselves for the leader by a lease that has run out
    /// (the elector is stuck). Whoever stands by is healthy.
    pub fn is_healthy(&self) -> bool {
        match &*self.state.borrow() {
            Leadership::Standby { .. } => true,
            Leadership::Leading => Instant::now() <= *self.held_until.borrow(),
            Leadership::Lost => false,
        }
    }
}

/// Takes part in the election until the shutdown or until the leadership is lost.
pub fn elect(api: Api, config: Config, shutdown: Shutdown) -> Election {
    let standby = Leadership::Standby { leader: String::new() };
    let (sender, receiver) = watch::channel(standby);
    let (held_until, held) = watch::channel(Instant::now());
    // A request that takes longer leaves no time for a second try.
    let api = api.with_timeout(config.renew_deadline.checked_div(2).unwrap_or_default());
    let elector = Elector {
        api,
        config,
        state: sender,
        lease: None,
        observed: None,
        held_until,
        random: Random::from_entropy(),
        failures: Failures::default(),
    };
    Election {
        state: receiver,
        held_until: held,
        task: orlop_base::spawn(elector.run(shutdown)),
    }
}

#[derive(Deserialize)]
struct Lease {
    #[serde(default)]
    spec: LeaderElectionRecord,
}

struct Elector {
    api: Api,
    config: Config,
    state: watch::Sender<Leadership>,
    /// The whole object as the server last gave it, for what others put there.
    lease: Option<Value>,
    observed: Option<ObservedRecord>,
    /// When the lease that we last wrote runs out at the earliest.
    held_until: watch::Sender<Instant>,
    random: Random,
    failures: Failures,
}

impl Elector {
    async fn run(mut self, shutdown: Shutdown) {
        let led = tokio::select! {
            _ = shutdown.wait() => matches!(*self.state.borrow(), Leadership::Leading),
            _ = self.acquire_and_hold() => false,
        };
        if led && self.config.release_on_shutdown {
            self.release().await;
        }
        self.state.send_replace(Leadership::Lost);
    }

    async fn acquire_and_hold(&mut self) {
        let lock = format!("{}/{}", self.config.namespace, self.config.name);
        tracing::info!(lock, "attempting to acquire leader lease");
        while !self.tried().await {
            let pause = jittered(self.config.retry_period, JITTER, &mut self.random);
            tokio::time::sleep(pause).await;
        }
        tracing::info!(lock, "successfully acquired lease");
        self.state.send_replace(Leadership::Leading);
        loop {
            tokio::time::sleep(self.config.retry_period).await;
            // Nor later than when others may take what we last wrote for run out.
            let deadline = Instant::now()
                .later(self.config.renew_deadline)
                .min(*self.held_until.borrow());
            if !matches!(tokio::time::timeout_at(deadline, self.renewed()).await, Ok(true)) {
                // Whoever was elected learns that it leads no more, and says what it makes of it.
                break tracing::info!(lock, "failed to renew lease");
            }
        }
    }

    /// Tries until the lease is renewed (true) or somebody else has it.
    async fn renewed(&mut self) -> bool {
        loop {
            if self.tried().await {
                return true;
            }
            let holder = self.observed.as_ref().map_or("", |o| o.record.holder());
            if !holder.is_empty() && holder != self.config.identity {
                return false;
            }
            tokio::time::sleep(self.config.retry_period).await;
        }
    }

    /// One try to get or keep the lease.
    async fn tried(&mut self) -> bool {
        let local_now = Instant::now();
        let ours = |o: &ObservedRecord| o.record.holder() == self.config.identity && o.is_valid(local_now);
        // Whoever leads knows the lease as it wrote it, and need not read it first.
        if self.observed.as_ref().is_some_and(ours) && self.lease.is_some() {
            match self.act().await {
                Ok(held) => return held,
                Err(error) => tracing::debug!(err = error.chain(), "failed to update lease optimistically"),
            }
        }
        match self.read_and_act().await {
            Ok(held) => {
                self.failures.succeeded();
                held
            }
            Err(error) => {
                let lost_race = matches!(error, Error::Conflict(_) | Error::AlreadyExists(_));
                if !lost_race && self.failures.is_news(&error) {
                    tracing::warn!(err = error.chain(), "failed to retrieve or update lease");
                } else {
                    tracing::debug!(err = error.chain(), "failed to retrieve or update lease");
                }
                false
            }
        }
    }

    async fn read_and_act(&mut self) -> Result<bool> {
        match self.api.get::<Value>(&self.path()).await {
            Ok(lease) => {
                let record = spec(&lease)?;
                let before = self.observed.take();
                self.observed = Some(ObservedRecord::after_reading(before, record, Instant::now()));
                self.lease = Some(lease);
            }
            Err(Error::NotFound(_)) => {
                self.observed = None;
                self.lease = None;
            }
            Err(error) => return Err(error),
        }
        self.act().await
    }

    /// Does what the plan says about the lease as it is known.
    async fn act(&mut self) -> Result<bool> {
        let me = Candidate {
            identity: &self.config.identity,
            lease_duration: self.config.lease_duration,
        };
        let step = plan(self.observed.as_ref(), &me, Instant::now(), self.config.clock.now());
        let begun = Instant::now();
        match step {
            LeaseStep::Create(record) => {
                let lease = json!({
                    "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                    "metadata": {"namespace": self.config.namespace, "name": self.config.name},
                    "spec": record,
                });
                let path = path::collection("coordination.k8s.io/v1", Some(&self.config.namespace), "leases");
                let written = self.api.create(&path, &lease).await?;
                self.wrote(record, written);
                self.held_until.send_replace(begun.later(self.config.lease_duration));
                Ok(true)
            }
            LeaseStep::Update(record) => {
                self.update(record).await?;
                self.held_until.send_replace(begun.later(self.config.lease_duration));
                Ok(true)
            }
            LeaseStep::Wait { holder } => {
                self.report_leader(holder);
                Ok(false)
            }
        }
    }

    async fn update(&mut self, record: LeaderElectionRecord) -> Result<()> {
        // The object carries the revision it was read at: a change by somebody else makes this fail.
        let mut lease = self.lease.clone().unwrap_or_default();
        lease["spec"] = json!(record);
        let written = self.api.replace(&self.path(), &lease).await?;
        self.wrote(record, written);
        Ok(())
    }

    fn wrote(&mut self, record: LeaderElectionRecord, lease: Value) {
        let since = Instant::now();
        self.observed = Some(ObservedRecord { record, since });
        self.lease = Some(lease);
    }

    fn report_leader(&self, holder: String) {
        let standby = Leadership::Standby { leader: holder };
        self.state.send_if_modified(|state| {
            let news = matches!(state, Leadership::Standby { .. }) && *state != standby;
            if news {
                *state = standby;
            }
            news
        });
    }

    async fn release(&mut self) {
        let released = tokio::time::timeout(self.config.renew_deadline, self.try_release());
        if let Ok(Err(error)) = released.await {
            tracing::warn!(err = error.chain(), "failed to release lease");
        }
    }

    async fn try_release(&mut self) -> Result<()> {
        // Read again: the shutdown may have come upon a write whose answer we never saw.
        let lease: Value = self.api.get(&self.path()).await?;
        let held = spec(&lease)?;
        if held.holder() != self.config.identity {
            return Ok(());
        }
        self.lease = Some(lease);
        self.update(released(&held, self.config.clock.now())).await
    }

    fn path(&self) -> String {
        let namespace = Some(self.config.namespace.as_str());
        path::object("coordination.k8s.io/v1", namespace, "leases", &self.config.name)
    }
}

fn spec(lease: &Value) -> Result<LeaderElectionRecord> {
    let lease = Lease::deserialize(lease).map_err(|source| Error::Unreadable {
        request: "the read of the lease".to_string(),
        source,
    })?;
    Ok(lease.spec)
}

#[cfg(test)]
mod tests;
