//! Keeps the components of a process running: one that ends or panics is started again, after a pause that grows while
//! it keeps failing. What is decided is in [`Record`]; the rest carries it out.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use crate::task::{Scope, panic_message};
use crate::{BoxFuture, Clock, Shutdown};

/// Before the first restart; each further one waits twice as long.
const BACKOFF: Duration = Duration::from_secs(1);
/// No restart waits longer: whatever was wrong, a component is back this long after its cause is gone.
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// A component that ran this long has recovered: its next failure is its first.
const RECOVERED: Duration = Duration::from_secs(60);
/// How long a component that is told to stop may take, and one of which a part has panicked.
const DRAIN: Duration = Duration::from_secs(30);
const DRAIN_FAILED: Duration = Duration::from_secs(2);
/// How often to look for parts that do not let go of their thread, and how many looks make a stall.
const LOOK: Duration = Duration::from_secs(1);
const STALLED_LOOKS: u32 = 10;
/// A stall made for a test is no longer than this.
const STALL_MAX: Duration = Duration::from_secs(60);

/// How a component comes to run: a future that goes on until the shutdown. Called once for each attempt.
pub type Start = Box<dyn FnMut(Shutdown) -> BoxFuture<'static, Result<(), ComponentError>> + Send>;

/// Why a component ended by itself, whatever that is.
pub type ComponentError = Box<dyn std::error::Error + Send + Sync>;

/// Why nothing can be done to a component.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SupervisorError {
    #[error("component {name:?} not found; there are: {}", known.join(", "))]
    NotFound { name: String, known: Vec<&'static str> },
    #[error("component {0:?} is not running")]
    NotRunning(String),
}

/// What a component is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComponentState {
    /// Its future has not ended, and its tasks let go of their threads.
    Running,
    /// A part of it has not let go of its thread for long.
    Stalled,
    /// Failed; it will be started again.
    BackOff,
    /// Not wanted.
    Stopped,
}

impl ComponentState {
    /// Nothing is wrong with a component that somebody stopped.
    pub fn is_healthy(self) -> bool {
        matches!(self, ComponentState::Running | ComponentState::Stopped)
    }
}

impl fmt::Display for ComponentState {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            ComponentState::Running => "running",
            ComponentState::Stalled => "stalled",
            ComponentState::BackOff => "failed",
            ComponentState::Stopped => "stopped",
        })
    }
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    Asked,
    /// It is to be started again at once, by request.
    Restart,
    /// By itself, without saying that anything is wrong.
    Returned,
    Failed(String),
    Panicked(String),
}

/// What is known of a component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// What it is doing now.
    pub state: ComponentState,
    /// Since when.
    pub since: Timestamp,
    /// When the attempt under way, or else the last one, was started.
    pub started: Timestamp,
    /// The last attempt that ended by itself.
    pub last_failure: Option<FailedAttempt>,
    /// How often it was started again after it ended by itself.
    pub restarts: u64,
    /// How many of its ends were panics.
    pub panics: u64,
    /// Why it failed last.
    pub error: String,
    /// Failures in a row.
    failures: u32,
}

/// An attempt that ended by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedAttempt {
    pub started: Timestamp,
    pub ended: Timestamp,
    pub panicked: bool,
    pub error: String,
}

impl Record {
    /// Of a component that does not run yet.
    pub fn new(now: Timestamp) -> Record {
        Record {
            state: ComponentState::Stopped,
            since: now,
            started: now,
            last_failure: None,
            restarts: 0,
            panics: 0,
            error: String::new(),
            failures: 0,
        }
    }

    fn set(&mut self, state: ComponentState, now: Timestamp) {
        if self.state != state {
            (self.state, self.since) = (state, now);
        }
    }

    fn started(&mut self, now: Timestamp) {
        if self.state == ComponentState::BackOff {
            self.restarts += 1;
        }
        self.started = now;
        self.set(ComponentState::Running, now);
    }

    /// What to do after an attempt that took `ran`: how long to wait for the next, or none if it was to end.
    fn ended(&mut self, end: End, ran: Duration, now: Timestamp) -> Option<Duration> {
        let panicked = matches!(end, End::Panicked(_));
        let error = match end {
            End::Asked => {
                self.failures = 0;
                self.set(ComponentState::Stopped, now);
                return None;
            }
            End::Restart => {
                self.failures = 0;
                return Some(Duration::ZERO);
            }
            End::Returned => "ended by itself".to_string(),
            End::Failed(error) => error,
            End::Panicked(message) => {
                self.panics += 1;
                format!("panicked: {message}")
            }
        };
        self.last_failure = Some(FailedAttempt {
            started: self.started,
            ended: now,
            panicked,
            error: error.clone(),
        });
        self.error = error;
        self.failures = if ran >= RECOVERED {
            1
        } else {
            self.failures.saturating_add(1)
        };
        self.set(ComponentState::BackOff, now);
        Some(backoff(self.failures))
    }

    fn watched(&mut self, looks: u32, stalled_looks: u32, now: Timestamp) {
        match (self.state, looks >= stalled_looks) {
            (ComponentState::Running, true) => self.set(ComponentState::Stalled, now),
            (ComponentState::Stalled, false) => self.set(ComponentState::Running, now),
            _ => {}
        }
    }
}

/// The pause after so many failures in a row.
fn backoff(failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    BACKOFF.saturating_mul(1 << doublings).min(BACKOFF_MAX)
}

/// What a test can do to a component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// One of its tasks panics.
    Panic,
    /// It ends without having been told to.
    End,
    /// One of its tasks blocks a thread this long.
    Stall(Duration),
}

/// All components of a process. Clones are the same.
#[derive(Clone)]
pub struct Supervisor {
    components: Arc<RwLock<Vec<Arc<Component>>>>,
    stalled_looks: Arc<AtomicU32>,
    /// Notified whenever a record changes.
    changes: watch::Sender<()>,
}

impl Default for Supervisor {
    fn default() -> Supervisor {
        Supervisor {
            components: Arc::default(),
            stalled_looks: Arc::new(AtomicU32::new(STALLED_LOOKS)),
            changes: watch::Sender::new(()),
        }
    }
}

struct Component {
    name: &'static str,
    record: Mutex<Record>,
    wanted: watch::Sender<bool>,
    stalled_looks: Arc<AtomicU32>,
    changes: watch::Sender<()>,
    /// Of the attempt under way.
    attempt: Mutex<Option<Attempt>>,
    clock: Clock,
}

#[derive(Clone)]
struct Attempt {
    scope: Scope,
    shutdown: Shutdown,
    /// Triggered to have it started again.
    restart: Shutdown,
}

impl Supervisor {
    /// Keeps a component running until the shutdown; one that is not `wanted` can be started later. The task is over when
    /// the component is.
    pub fn add(
        &self,
        name: &'static str,
        wanted: bool,
        shutdown: Shutdown,
        clock: Clock,
        start: Start,
    ) -> JoinHandle<()> {
        let component = Arc::new(Component {
            name,
            record: Mutex::new(Record::new(clock.now())),
            wanted: watch::Sender::new(wanted),
            stalled_looks: self.stalled_looks.clone(),
            changes: self.changes.clone(),
            attempt: Mutex::default(),
            clock,
        });
        // Whoever asks before the task has had its turn is told what is about to be true.
        if wanted {
            component.record.lock().started(component.clock.now());
        }
        self.components.write().push(component.clone());
        self.changes.send_replace(());
        tokio::spawn(component.supervise(shutdown, start))
    }

    /// A component is stalled once one of its tasks has kept its thread this long, to the second.
    pub fn set_stall_timeout(&self, timeout: Duration) {
        let looks = timeout.as_secs() / LOOK.as_secs();
        let looks = u32::try_from(looks).unwrap_or(u32::MAX).max(1);
        self.stalled_looks.store(looks, Ordering::Relaxed);
    }

    /// In the order in which they were added.
    pub fn all(&self) -> Vec<(&'static str, Record)> {
        let components = self.components.read();
        components.iter().map(|c| (c.name, c.record.lock().clone())).collect()
    }

    /// Resolves whenever a record has changed, or a component was added.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Stops a running component in good order and starts it again at once. This is no failure, and not counted. May be
    /// called by the component itself.
    pub fn restart(&self, name: &str) -> Result<(), SupervisorError> {
        let attempt = self.find(name)?.attempt.lock().clone();
        let attempt = attempt.ok_or_else(|| SupervisorError::NotRunning(name.to_string()))?;
        attempt.restart.trigger();
        Ok(())
    }

    /// None: there is no such component.
    pub fn get(&self, name: &str) -> Option<Record> {
        self.find(name).map(|component| component.record.lock().clone()).ok()
    }

    /// Starts or stops a component, and waits until it is so.
    pub async fn set_wanted(&self, name: &str, wanted: bool) -> Result<(), SupervisorError> {
        let component = self.find(name)?;
        component.wanted.send_replace(wanted);
        let is_done = |record: &Record| (record.state == ComponentState::Stopped) != wanted;
        let _ = timeout(DRAIN.saturating_mul(2), async {
            while !is_done(&component.record.lock()) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
        Ok(())
    }

    /// Makes a running component fail, for tests.
    pub fn inject(&self, name: &str, fault: Fault) -> Result<(), SupervisorError> {
        let component = self.find(name)?;
        let attempt = component.attempt.lock().clone();
        let attempt = attempt.ok_or_else(|| SupervisorError::NotRunning(name.to_string()))?;
        match fault {
            Fault::Panic => drop(attempt.scope.spawn(async { panic!("fault injected") })),
            Fault::End => attempt.shutdown.trigger(),
            Fault::Stall(length) => {
                let length = length.min(STALL_MAX);
                drop(attempt.scope.spawn(async move { std::thread::sleep(length) }));
            }
        }
        Ok(())
    }

    fn find(&self, name: &str) -> Result<Arc<Component>, SupervisorError> {
        let components = self.components.read();
        let found = components.iter().find(|component| component.name == name).cloned();
        found.ok_or_else(|| SupervisorError::NotFound {
            name: name.to_string(),
            known: components.iter().map(|component| component.name).collect(),
        })
    }
}

impl Component {
    fn update<T>(&self, change: impl FnOnce(&mut Record) -> T) -> T {
        let result = change(&mut self.record.lock());
        self.changes.send_replace(());
        result
    }

    async fn supervise(self: Arc<Self>, shutdown: Shutdown, mut start: Start) {
        let mut wanted = self.wanted.subscribe();
        loop {
            let go = tokio::select! {
                biased;
                _ = shutdown.wait() => false,
                changed = wanted.wait_for(|wanted| *wanted) => changed.is_ok(),
            };
            if !go {
                return;
            }
            self.update(|record| record.started(self.clock.now()));
            let began = Instant::now();
            let scope = Scope::of_component(self.name);
            let end = self.attempt(&scope, &mut start, &mut wanted, &shutdown).await;
            let name = self.name;
            match end {
                End::Asked => scope.enter(|| tracing::info!(component = name, "stopped component")),
                End::Restart => scope.enter(|| tracing::info!(component = name, "restarting component")),
                _ => {}
            }
            let is_failure = !matches!(end, End::Asked | End::Restart);
            let pause = self.update(|record| record.ended(end, began.elapsed(), self.clock.now()));
            let Some(pause) = pause.filter(|_| is_failure) else {
                continue;
            };
            let error = self.record.lock().error.clone();
            scope.enter(|| tracing::error!(component = name, err = %error, restart_after = ?pause, "component failed"));
            tokio::select! {
                _ = tokio::time::sleep(pause) => {}
                _ = shutdown.wait() => {}
                _ = wanted.wait_for(|wanted| !wanted) => {
                    self.update(|record| record.ended(End::Asked, Duration::ZERO, self.clock.now()));
                }
            }
        }
    }

    async fn attempt(
        &self,
        scope: &Scope,
        start: &mut Start,
        wanted: &mut watch::Receiver<bool>,
        shutdown: &Shutdown,
    ) -> End {
        let attempt = Attempt {
            scope: scope.clone(),
            shutdown: Shutdown::default(),
            restart: Shutdown::default(),
        };
        *self.attempt.lock() = Some(attempt.clone());
        let own = attempt.shutdown.clone();
        // Made inside of the task, so that a start that panics counts as a failure of the component.
        let begin = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| scope.enter(|| start(own))));
        let end = match begin {
            Err(panic) => End::Panicked(panic_message(&*panic)),
            Ok(future) => {
                let mut main = attempt.scope.spawn(future);
                let end = tokio::select! {
                    biased;
                    message = attempt.scope.failed() => End::Panicked(message),
                    ended = &mut main => match ended {
                        // Told to stop, it may be over before anybody looks.
                        Ok(Ok(())) if shutdown.is_triggered() => End::Asked,
                        Ok(Ok(())) => End::Returned,
                        Ok(Err(error)) => End::Failed(error.to_string()),
                        Err(error) => End::Panicked(error.to_string()),
                    },
                    _ = shutdown.wait() => End::Asked,
                    _ = wanted.wait_for(|wanted| !wanted) => End::Asked,
                    _ = attempt.restart.wait() => End::Restart,
                    _ = self.watch(&attempt.scope) => unreachable!("it watches without end"),
                };
                attempt.shutdown.trigger();
                let is_orderly = matches!(end, End::Asked | End::Restart);
                let drain = if is_orderly { DRAIN } else { DRAIN_FAILED };
                if !main.is_finished() && timeout(drain, &mut main).await.is_err() && is_orderly {
                    tracing::warn!(component = self.name, "component did not stop in time; aborting it");
                }
                end
            }
        };
        *self.attempt.lock() = None;
        // Nothing of it may act beside its successor. What blocks a thread can't be waited for without end.
        attempt.scope.abort();
        let _ = timeout(DRAIN_FAILED, attempt.scope.emptied()).await;
        end
    }

    async fn watch(&self, scope: &Scope) {
        let mut looks = tokio::time::interval(LOOK);
        // After the process itself stood still no look is made up for: they would all see the same poll.
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            let (longest, limit) = (scope.longest_poll(), self.stalled_looks.load(Ordering::Relaxed));
            let mut record = self.record.lock();
            let before = record.state;
            record.watched(longest, limit, self.clock.now());
            if before != record.state {
                self.changes.send_replace(());
                let state = record.state;
                scope.enter(|| tracing::warn!(component = self.name, %state, "component changed state"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record::new(Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn pauses_grow_and_stay_below_the_limit() {
        let pauses: Vec<u64> = (1..=6).map(|n| backoff(n).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 10, 10]);
        assert_eq!(backoff(u32::MAX), BACKOFF_MAX);
    }

    #[test]
    fn what_a_record_says_of_an_end() {
        let (now, mut record) = (Timestamp::UNIX_EPOCH, record());
        let short = Duration::from_secs(1);
        record.started(now);
        assert_eq!((record.state, record.restarts), (ComponentState::Running, 0));
        assert_eq!(record.ended(End::Panicked("x".into()), short, now), Some(BACKOFF));
        assert_eq!(
            (record.state, &*record.error, record.panics),
            (ComponentState::BackOff, "panicked: x", 1)
        );
        assert!(record.last_failure.as_ref().is_some_and(|failure| failure.panicked));
        assert!(!record.state.is_healthy());
        record.started(now);
        assert_eq!(record.restarts, 1);
        assert_eq!(record.ended(End::Returned, short, now), Some(BACKOFF.saturating_mul(2)));
        record.started(now);
        // It had recovered in between.
        assert_eq!(record.ended(End::Failed("y".into()), RECOVERED, now), Some(BACKOFF));
        record.started(now);
        assert_eq!(record.ended(End::Asked, short, now), None);
        assert!(record.state == ComponentState::Stopped && record.state.is_healthy());
        record.started(now);
        assert_eq!(record.restarts, 3, "a start that was asked for is no restart");
    }

    #[test]
    fn a_stall_begins_and_ends() {
        let (now, mut record) = (Timestamp::UNIX_EPOCH, record());
        record.started(now);
        record.watched(STALLED_LOOKS - 1, STALLED_LOOKS, now);
        assert_eq!(record.state, ComponentState::Running);
        record.watched(STALLED_LOOKS, STALLED_LOOKS, now);
        assert!(record.state == ComponentState::Stalled && !record.state.is_healthy());
        record.watched(0, STALLED_LOOKS, now);
        assert_eq!(record.state, ComponentState::Running);
        record.ended(End::Returned, Duration::ZERO, now);
        record.watched(STALLED_LOOKS, STALLED_LOOKS, now);
        assert_eq!(record.state, ComponentState::BackOff);
    }

    /// A component that counts its attempts and runs until it is told to stop.
    fn counting(attempts: &Arc<AtomicU32>) -> Start {
        let attempts = attempts.clone();
        Box::new(move |shutdown| {
            attempts.fetch_add(1, Ordering::SeqCst);
            Box::pin(async move {
                crate::spawn(std::future::pending::<()>());
                shutdown.wait().await;
                Ok(())
            })
        })
    }

    async fn until(supervisor: &Supervisor, state: ComponentState) {
        while supervisor.get("it").unwrap().state != state {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn whatever_ends_it_a_component_comes_back() {
        let (supervisor, shutdown, attempts) = (Supervisor::default(), Shutdown::default(), Arc::default());
        let task = supervisor.add("it", true, shutdown.clone(), Clock::System, counting(&attempts));
        tokio::time::sleep(Duration::from_millis(10)).await;
        for (n, fault) in [Fault::Panic, Fault::End, Fault::Panic].into_iter().enumerate() {
            supervisor.inject("it", fault).unwrap();
            until(&supervisor, ComponentState::BackOff).await;
            assert!(supervisor.inject("it", fault).is_err(), "nothing runs that could fail");
            until(&supervisor, ComponentState::Running).await;
            assert_eq!(attempts.load(Ordering::SeqCst), n as u32 + 2);
        }
        let record = supervisor.get("it").unwrap();
        assert_eq!((record.restarts, record.panics), (3, 2));
        assert_eq!(record.error, "panicked: fault injected");
        shutdown.trigger();
        task.await.unwrap();
        assert_eq!(supervisor.get("it").unwrap().state, ComponentState::Stopped);
    }

    #[tokio::test(start_paused = true)]
    async fn a_restart_by_request_is_no_failure() {
        let (supervisor, shutdown, attempts) = (Supervisor::default(), Shutdown::default(), Arc::default());
        supervisor.add("it", true, shutdown.clone(), Clock::System, counting(&attempts));
        tokio::time::sleep(Duration::from_millis(10)).await;
        let mut changes = supervisor.changes();
        supervisor.restart("it").unwrap();
        while attempts.load(Ordering::SeqCst) < 2 {
            changes.changed().await.unwrap();
            tokio::task::yield_now().await;
        }
        let record = supervisor.get("it").unwrap();
        assert_eq!((record.state, record.restarts), (ComponentState::Running, 0));
        assert_eq!((record.last_failure, record.error.as_str()), (None, ""));
        supervisor.set_wanted("it", false).await.unwrap();
        let refused = supervisor.restart("it").unwrap_err();
        assert_eq!(refused, SupervisorError::NotRunning("it".into()));
        shutdown.trigger();
    }

    #[tokio::test(start_paused = true)]
    async fn components_are_stopped_and_started() {
        let (supervisor, shutdown, attempts) = (Supervisor::default(), Shutdown::default(), Arc::default());
        let task = supervisor.add("it", false, shutdown.clone(), Clock::System, counting(&attempts));
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(supervisor.get("it").unwrap().state, ComponentState::Stopped);
        assert_eq!(attempts.load(Ordering::SeqCst), 0);
        for n in 1..=2 {
            supervisor.set_wanted("it", true).await.unwrap();
            tokio::time::sleep(Duration::from_millis(10)).await;
            assert_eq!(attempts.load(Ordering::SeqCst), n);
            supervisor.set_wanted("it", false).await.unwrap();
            assert_eq!(supervisor.get("it").unwrap().state, ComponentState::Stopped);
        }
        assert_eq!(supervisor.get("it").unwrap().restarts, 0);
        // One that waits for its next attempt stops at once.
        supervisor.set_wanted("it", true).await.unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
        supervisor.inject("it", Fault::Panic).unwrap();
        until(&supervisor, ComponentState::BackOff).await;
        supervisor.set_wanted("it", false).await.unwrap();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(
            (supervisor.get("it").unwrap().state, attempts.load(Ordering::SeqCst)),
            (ComponentState::Stopped, 3)
        );
        let unknown = supervisor.set_wanted("other", true).await;
        assert_eq!(
            unknown.unwrap_err().to_string(),
            "component \"other\" not found; there are: it"
        );
        shutdown.trigger();
        task.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_that_fails_is_tried_again() {
        let (supervisor, shutdown, mut left) = (Supervisor::default(), Shutdown::default(), 3);
        let start: Start = Box::new(move |shutdown| {
            left -= 1;
            assert!(left != 1, "the second one");
            Box::pin(async move {
                if left > 0 {
                    return Err("not yet".into());
                }
                shutdown.wait().await;
                Ok(())
            })
        });
        let task = supervisor.add("it", true, shutdown.clone(), Clock::System, start);
        while supervisor.get("it").unwrap().restarts < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let record = supervisor.get("it").unwrap();
        assert_eq!(
            (&*record.error, record.state),
            ("panicked: the second one", ComponentState::Running)
        );
        shutdown.trigger();
        task.await.unwrap();
    }
}
