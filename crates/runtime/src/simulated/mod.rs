//! A runtime that runs nothing and says it did: for simulated nodes, and for testing what drives a runtime.
//!
//! Containers "run" for as long as their pod's annotations say ([`behaviour`]), on the time of a [`Clock`]. On the
//! system's clock they end by themselves; on a manual one when a test moves it with [`Simulated::advance`]. No call
//! waits for anything but that clock, and no process, file (but logs, if asked for) or mount is touched.
//!
//! Tests can script it: [`Simulated::fail_next`], [`Simulated::hold`], [`Simulated::exit`], [`Simulated::oom`],
//! [`Simulated::on_exec`], [`Simulated::emit`]; and ask what was called, in order: [`Simulated::take_calls`].

mod addresses;
pub mod behaviour;
mod runtime;
mod script;
mod sessions;
mod state;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use orlop_base::{Clock, Random};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};

use crate::cri::messages::*;
use crate::{Error, Event, Result};
use addresses::Pool;
use script::Script;
pub use script::{Call, Hold, Kind};
use state::{Ending, SimulatedState, reason_of};

/// How a simulated runtime is set up.
#[derive(Clone, Debug)]
pub struct Options {
    pub clock: Clock,
    /// Pods get their addresses from here, one from each range.
    pub pod_ranges: Vec<String>,
    /// Makes ids different from those of other nodes.
    pub seed: u64,
    /// Keep the calls for [`Simulated::take_calls`]; only tests want that.
    pub keep_calls: bool,
    /// Write the containers' log files.
    pub logs: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            clock: Clock::System,
            pod_ranges: vec!["10.244.0.0/24".to_string()],
            seed: 1,
            keep_calls: false,
            logs: false,
        }
    }
}

/// Events that wait for one reader. One that is slower loses its stream, asks again and lists.
const EVENTS_MAX: usize = 1024;

/// The runtime. Clones are the same one.
#[derive(Clone)]
pub struct Simulated(Arc<Shared>);

struct Shared {
    clock: Clock,
    keep_calls: bool,
    logs: bool,
    inner: Mutex<Inner>,
    /// Something changed, or time moved.
    changed: Notify,
}

struct Inner {
    state: SimulatedState,
    script: Script,
    conditions: Vec<RuntimeCondition>,
    readers: Vec<mpsc::Sender<Event>>,
}

impl Simulated {
    pub fn new(options: Options) -> Simulated {
        let state = SimulatedState {
            sandboxes: Default::default(),
            containers: Default::default(),
            images: Default::default(),
            pools: options.pod_ranges.iter().filter_map(|r| Pool::parse(r)).collect(),
            random: Random::seeded(options.seed),
        };
        let ready = |r#type: &str| RuntimeCondition {
            r#type: r#type.to_string(),
            status: true,
            ..Default::default()
        };
        let inner = Inner {
            state,
            script: Script::default(),
            conditions: vec![ready("RuntimeReady"), ready("NetworkReady")],
            readers: vec![],
        };
        Simulated(Arc::new(Shared {
            clock: options.clock,
            keep_calls: options.keep_calls,
            logs: options.logs,
            inner: Mutex::new(inner),
            changed: Notify::new(),
        }))
    }

    /// For tests: a manual clock that stands at this time, and calls are kept.
    pub fn for_tests(clock: &Clock) -> Simulated {
        Simulated::new(Options {
            clock: clock.clone(),
            keep_calls: true,
            ..Options::default()
        })
    }

    /// Moves a manual clock forward and ends what was to end by then.
    pub fn advance(&self, by: Duration) {
        self.0.clock.advance(by);
        self.settle();
    }

    /// Looks at the clock again, after somebody else moved it.
    pub fn settle(&self) {
        self.0.with(|_, _| ());
        self.0.changed.notify_waiters();
    }

    /// The next call of this kind fails; called twice, the one after it as well.
    pub fn fail_next(&self, kind: Kind, error: Error) {
        self.0.inner.lock().script.fail_next(kind, error);
    }

    /// Every call of this kind fails until this is set to `None`.
    pub fn fail_always(&self, kind: Kind, error: Option<Error>) {
        self.0.inner.lock().script.fail_always(kind, error);
    }

    /// Calls of this kind wait until what is returned is dropped.
    pub fn hold(&self, kind: Kind) -> Hold {
        self.0.inner.lock().script.hold(kind)
    }

    /// What commands answer in containers of this name, or in the one `namespace/pod/container`.
    pub fn on_exec(
        &self,
        container: &str,
        answer: impl Fn(&[String]) -> Result<ExecSyncResponse> + Send + Sync + 'static,
    ) {
        self.0.inner.lock().script.answer(container, Arc::new(answer));
    }

    /// Ends a running container now. By its id, or `namespace/pod/container`: whichever of these runs.
    pub fn exit(&self, container: &str, code: i32) {
        self.end(container, code, reason_of(code));
    }

    /// As when a container used more memory than it may.
    pub fn oom(&self, container: &str) {
        self.end(container, 137, "OOMKilled");
    }

    fn end(&self, container: &str, exit_code: i32, reason: &'static str) {
        self.0.with(|inner, now| {
            let id = inner
                .running(container)
                .unwrap_or_else(|| panic!("no container {container} is running"));
            let found = inner.state.containers.get_mut(&id).expect("just found");
            found.ending = Some(Ending {
                at: now,
                exit_code,
                reason,
            });
        });
        self.settle();
    }

    /// Takes a sandbox's network and processes away, as when the node was rebooted. By id or `namespace/pod`.
    pub fn kill_sandbox(&self, sandbox: &str) {
        self.0.with(|inner, now| {
            let state = &mut inner.state;
            let ids: Vec<String> = state.sandboxes.keys().cloned().collect();
            let named = ids
                .into_iter()
                .find(|id| id == sandbox || state.sandboxes[id].ready && state.sandbox_name(id) == sandbox);
            let id = named.unwrap_or_else(|| panic!("there is no sandbox {sandbox}"));
            let events = state.stop_sandbox(&id, now);
            inner.tell(events);
        });
        self.settle();
    }

    /// Tells readers of events this.
    pub fn emit(&self, event: Event) {
        self.0.inner.lock().tell(vec![event]);
    }

    /// Ends all streams of events, as when the runtime was restarted.
    pub fn end_events(&self) {
        self.0.inner.lock().readers.clear();
        self.0.changed.notify_waiters();
    }

    /// Sets `RuntimeReady` or `NetworkReady`.
    pub fn set_condition(&self, r#type: &str, status: bool, reason: &str, message: &str) {
        let mut inner = self.0.inner.lock();
        inner.conditions.retain(|c| c.r#type != r#type);
        inner.conditions.push(RuntimeCondition {
            r#type: r#type.to_string(),
            status,
            reason: reason.to_string(),
            message: message.to_string(),
        });
    }

    /// As if this image had been pulled before.
    pub fn add_image(&self, name: &str) -> String {
        let spec = ImageSpec {
            image: name.to_string(),
            ..Default::default()
        };
        self.0.inner.lock().state.pull(&spec)
    }

    /// The calls that change something, in order, since the last time this was asked.
    pub fn take_calls(&self) -> Vec<Call> {
        self.0.inner.lock().script.take_calls()
    }

    /// How often a call was made.
    pub fn count(&self, kind: Kind) -> u64 {
        self.0.inner.lock().script.count(kind)
    }

    /// The id of the container `namespace/pod/container` made last.
    pub fn container_id(&self, name: &str) -> Option<String> {
        let inner = self.0.inner.lock();
        let state = &inner.state;
        let named = state
            .containers
            .iter()
            .filter(|(id, _)| state.container_name(id) == name);
        let newest = named.max_by_key(|(_, c)| c.config.metadata.as_ref().map_or(0, |m| m.attempt));
        newest.map(|(id, _)| id.clone())
    }
}

impl Shared {
    fn now(&self) -> i64 {
        i64::try_from(self.clock.now().as_nanosecond()).unwrap_or(i64::MAX)
    }

    /// Works on the state as it is now: what was to end has ended, before and after.
    fn with<T>(&self, work: impl FnOnce(&mut Inner, i64) -> T) -> T {
        let mut inner = self.inner.lock();
        let now = self.now();
        inner.settle(now);
        let done = work(&mut inner, now);
        inner.settle(now);
        done
    }

    /// Notes the call, waits if it is held, and fails if it is to.
    async fn enter(&self, kind: Kind, subject: impl FnOnce(&SimulatedState) -> String) -> Result<()> {
        let (hold, fault) = {
            let mut guard = self.inner.lock();
            let inner = &mut *guard;
            let subject = if kind.only_looks() {
                String::new()
            } else {
                subject(&inner.state)
            };
            inner.script.called(kind, subject, self.keep_calls)
        };
        if let Some(mut hold) = hold {
            while hold.changed().await.is_ok() {}
        }
        fault.map_or(Ok(()), Err)
    }

    /// Until something changes, or until this time at the latest.
    async fn pause(&self, changed: impl Future<Output = ()>, until: Option<i64>) {
        match (&self.clock, until) {
            (Clock::System, Some(until)) => {
                let left = Duration::from_nanos(u64::try_from(until - self.now()).unwrap_or(0));
                tokio::select! {
                    () = changed => {}
                    () = tokio::time::sleep(left) => {}
                }
            }
            _ => changed.await,
        }
    }

    /// Asks until there is an answer; `work` says when to ask again at the latest, where it knows.
    async fn wait_for<T>(&self, mut work: impl FnMut(&mut Inner, i64) -> Result<T, Option<i64>>) -> T {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // From here on no change is missed, even one that comes before the pause.
            changed.as_mut().enable();
            match self.with(&mut work) {
                Ok(done) => return done,
                Err(until) => self.pause(changed, until).await,
            }
        }
    }
}

impl Inner {
    fn settle(&mut self, now: i64) {
        let events = self.state.settle(now);
        self.tell(events);
    }

    fn tell(&mut self, events: Vec<Event>) {
        for event in events {
            self.readers.retain(|reader| reader.try_send(event.clone()).is_ok());
        }
    }

    fn running(&self, container: &str) -> Option<String> {
        let state = &self.state;
        let mut running = state
            .containers
            .iter()
            .filter(|(_, c)| c.state == ContainerState::Running);
        let found = running.find(|(id, _)| *id == container || state.container_name(id) == container);
        found.map(|(id, _)| id.clone())
    }
}
