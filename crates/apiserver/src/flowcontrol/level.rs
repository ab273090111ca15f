//! One priority level at work: its queue set behind a lock, and the requests that wait for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use orlop_base::clock::monotonic;
use orlop_base::metrics::series::Histogram;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::oneshot;

use super::borrowing::{Bounds, Demand, Integrator, Party, Share};
use super::config::PriorityLevel;
use super::queue_set::{Arrival, QueueSet, Queuing, Reason, RequestId, Work};
use super::retry::RetryAfter;
use super::{Described, Flow, Rejected};
use crate::authn::UserInfo;

/// Seconds. Upstream: requestDurationSecondsBuckets.
const SECONDS: [f64; 13] = [0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0];
const LENGTHS: [f64; 8] = [0.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0];
const WIDTHS: [f64; 8] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 100.0];

/// What was counted of the requests of one flow schema in one level.
pub(super) struct FlowStats {
    pub dispatched: AtomicU64,
    pub queue_full: AtomicU64,
    pub concurrency_limit: AtomicU64,
    pub timed_out: AtomicU64,
    pub cancelled: AtomicU64,
    pub waiting: AtomicI64,
    pub waiting_seats: AtomicI64,
    pub executing: AtomicI64,
    pub executing_seats: AtomicI64,
    pub waited: Histogram,
    pub waited_in_vain: Histogram,
    pub executed: Histogram,
    pub executed_watch: Histogram,
    pub lengths: Histogram,
    pub widths: Histogram,
}

impl Default for FlowStats {
    fn default() -> FlowStats {
        let seconds = || Histogram::new(SECONDS.as_slice().into());
        FlowStats {
            dispatched: AtomicU64::default(),
            queue_full: AtomicU64::default(),
            concurrency_limit: AtomicU64::default(),
            timed_out: AtomicU64::default(),
            cancelled: AtomicU64::default(),
            waiting: AtomicI64::default(),
            waiting_seats: AtomicI64::default(),
            executing: AtomicI64::default(),
            executing_seats: AtomicI64::default(),
            waited: seconds(),
            waited_in_vain: seconds(),
            executed: seconds(),
            executed_watch: seconds(),
            lengths: Histogram::of_integers(LENGTHS.as_slice().into()),
            widths: Histogram::of_integers(WIDTHS.as_slice().into()),
        }
    }
}

impl FlowStats {
    pub(super) fn note_width(&self, work: Work) {
        self.widths.observe(f64::from(work.max_seats()));
    }

    fn wait(&self, work: Work, sign: i64) {
        self.waiting.fetch_add(sign, Ordering::Relaxed);
        self.waiting_seats
            .fetch_add(sign * i64::from(work.max_seats()), Ordering::Relaxed);
    }

    fn execute(&self, sign: i64) {
        self.executing.fetch_add(sign, Ordering::Relaxed);
    }

    fn occupy(&self, work: Work, sign: i64) {
        self.executing_seats
            .fetch_add(sign * i64::from(work.max_seats()), Ordering::Relaxed);
    }

    fn dispatched(&self, work: Work) {
        self.dispatched.fetch_add(1, Ordering::Relaxed);
        self.execute(1);
        self.occupy(work, 1);
    }
}

/// A request that waits or is executed.
pub(super) struct Held {
    pub flow: Arc<Flow>,
    pub request: Arc<dyn Described>,
    pub user: Arc<UserInfo>,
    waker: Option<oneshot::Sender<()>>,
}

pub(super) struct Core {
    pub spec: PriorityLevel,
    pub bounds: Bounds,
    pub set: QueueSet,
    pub held: FxHashMap<RequestId, Held>,
    pub demand: Demand,
    pub share: Share,
    pub is_retiring: bool,
    integrator: Integrator,
    retry: RetryAfter,
}

pub(super) struct Level {
    pub name: String,
    pub core: Mutex<Core>,
    epoch: Instant,
    seats_max: AtomicU32,
}

impl Level {
    pub(super) fn new(epoch: Instant, now: Duration, spec: PriorityLevel, bounds: Bounds) -> Level {
        let mut integrator = Integrator::default();
        integrator.reset(now);
        // Half of what can be lent is.
        let seats = bounds.nominal - (bounds.nominal - bounds.min) / 2;
        let share = Share {
            seats,
            target: f64::from(seats),
        };
        Level {
            name: spec.name.clone(),
            epoch,
            seats_max: AtomicU32::new(spec.seats_max(bounds)),
            core: Mutex::new(Core {
                set: QueueSet::new(spec.queuing, seats),
                held: FxHashMap::default(),
                demand: Demand::default(),
                is_retiring: false,
                retry: RetryAfter::default(),
                spec,
                bounds,
                share,
                integrator,
            }),
        }
    }

    fn now(&self) -> Duration {
        monotonic().saturating_duration_since(self.epoch)
    }

    pub(super) fn uid(&self) -> String {
        self.core.lock().spec.uid.clone()
    }

    pub(super) fn queuing(&self) -> Queuing {
        self.core.lock().spec.queuing
    }

    pub(super) fn seats_max(&self) -> u32 {
        self.seats_max.load(Ordering::Relaxed)
    }

    pub(super) fn configure(&self, now: Duration, spec: PriorityLevel, bounds: Bounds) {
        self.seats_max.store(spec.seats_max(bounds), Ordering::Relaxed);
        let core = &mut *self.core.lock();
        let mut dispatched = vec![];
        let limit = core.set.limit();
        core.set.configure(now, spec.queuing, limit, &mut dispatched);
        (core.spec, core.bounds, core.is_retiring) = (spec, bounds, false);
        core.wake(now, &dispatched);
    }

    /// It is not configured any more. True: nobody needs it any more, either.
    pub(super) fn retire(&self) -> bool {
        let mut core = self.core.lock();
        core.is_retiring = true;
        core.set.is_idle()
    }

    /// Ends a period of the observed demand.
    pub(super) fn observe(&self, now: Duration) -> Party {
        let core = &mut *self.core.lock();
        let observed = core.integrator.reset(now);
        core.demand.update(observed);
        Party {
            is_exempt: core.spec.is_exempt(),
            bounds: core.bounds,
            demand: core.demand,
        }
    }

    pub(super) fn set_share(&self, now: Duration, share: Share) {
        let core = &mut *self.core.lock();
        core.share = share;
        let (mut dispatched, queuing) = (vec![], core.spec.queuing);
        core.set.configure(now, queuing, share.seats, &mut dispatched);
        core.wake(now, &dispatched);
    }

    /// Seats of a request that ended a while ago.
    fn release(&self, id: RequestId) {
        let (core, now) = (&mut *self.core.lock(), self.now());
        if let (Some(request), Some(held)) = (core.set.request(id), core.held.get(&id)) {
            held.flow.stats.occupy(request.work, -1);
        }
        core.held.remove(&id);
        let mut dispatched = vec![];
        core.set.release(now, id, &mut dispatched);
        core.wake(now, &dispatched);
    }

    fn finish(self: &Arc<Self>, id: RequestId) {
        let core = &mut *self.core.lock();
        let now = self.now();
        let Some(work) = core.set.request(id).map(|request| request.work) else {
            return;
        };
        let mut dispatched = vec![];
        let afterwards = core.set.finish(now, id, &mut dispatched);
        if let Some(held) = core.held.get(&id) {
            held.flow.stats.execute(-1);
            if afterwards.is_none() {
                held.flow.stats.occupy(work, -1);
            }
        }
        core.wake(now, &dispatched);
        match afterwards {
            None => drop(core.held.remove(&id)),
            Some(wait) => {
                let level = self.clone();
                // Where there is no runtime the server is gone.
                if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                    runtime.spawn(async move {
                        tokio::time::sleep(wait).await;
                        level.release(id);
                    });
                }
            }
        }
    }

    /// True: it does not wait any more. False: it is executed already.
    fn cancel(&self, id: RequestId, timed_out: bool) -> bool {
        let core = &mut *self.core.lock();
        let now = self.now();
        let Some(request) = core.set.request(id) else {
            return true;
        };
        let (work, arrived) = (request.work, request.arrived);
        let mut dispatched = vec![];
        let is_cancelled = core.set.cancel(now, id, timed_out, &mut dispatched);
        core.wake(now, &dispatched);
        if is_cancelled && let Some(held) = core.held.remove(&id) {
            let stats = &held.flow.stats;
            stats.wait(work, -1);
            let counter = if timed_out { &stats.timed_out } else { &stats.cancelled };
            counter.fetch_add(1, Ordering::Relaxed);
            stats.waited_in_vain.observe(now.saturating_sub(arrived).as_secs_f64());
        }
        is_cancelled
    }

    fn reject(&self) -> Rejected {
        let now = self.now().as_secs();
        let seconds = self.core.lock().retry.rejected(now);
        Rejected {
            retry_after_seconds: u32::try_from(seconds).unwrap_or(u32::MAX),
        }
    }
}

impl Core {
    /// Tells those that were dispatched, and notes what is demanded now.
    fn wake(&mut self, now: Duration, dispatched: &[RequestId]) {
        for id in dispatched {
            let (Some(held), Some(request)) = (self.held.get_mut(id), self.set.request(*id)) else {
                continue;
            };
            let stats = &held.flow.stats;
            stats.wait(request.work, -1);
            stats.dispatched(request.work);
            stats.waited.observe(now.saturating_sub(request.arrived).as_secs_f64());
            if let Some(waker) = held.waker.take() {
                // Whoever does not wait any more finds out itself that it was dispatched.
                let _ = waker.send(());
            }
        }
        self.integrator.set(now, self.set.demand() as f64);
    }
}

/// Seats of a request, until it is dropped.
pub(crate) struct Ticket {
    flow: Arc<Flow>,
    id: RequestId,
    began: Instant,
    is_watch: bool,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let stats = &self.flow.stats;
        let took = self.began.elapsed().as_secs_f64();
        match self.is_watch {
            true => stats.executed_watch.observe(took),
            false => stats.executed.observe(took),
        }
        self.flow.level.finish(self.id);
    }
}

/// A request in a queue. Whoever stops waiting, because its client left, leaves the queue.
struct Waiting {
    flow: Arc<Flow>,
    id: RequestId,
    is_over: bool,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // It may have been dispatched just now: its seats are free again.
        if !self.is_over && !self.flow.level.cancel(self.id, false) {
            self.flow.level.finish(self.id);
        }
    }
}

pub(super) async fn admit(
    flow: &Arc<Flow>,
    request: Arc<dyn Described>,
    user: Arc<UserInfo>,
    work: Work,
    hash: u64,
    wait_max: Duration,
) -> Result<Ticket, Rejected> {
    let is_watch = request.info().verb == "watch";
    let ticket = |id| Ticket {
        flow: flow.clone(),
        id,
        began: monotonic(),
        is_watch,
    };
    let (id, woken) = match arrive(flow, request, user, work, hash) {
        Ok((id, None)) => return Ok(ticket(id)),
        Ok((id, Some(woken))) => (id, woken),
        Err(reason) => {
            let counter = match reason {
                Reason::QueueFull => &flow.stats.queue_full,
                Reason::ConcurrencyLimit => &flow.stats.concurrency_limit,
            };
            counter.fetch_add(1, Ordering::Relaxed);
            return Err(flow.level.reject());
        }
    };
    let mut waiting = Waiting {
        flow: flow.clone(),
        id,
        is_over: false,
    };
    let answer = tokio::time::timeout(wait_max, woken).await;
    waiting.is_over = true;
    if !matches!(answer, Ok(Ok(()))) && flow.level.cancel(id, true) {
        return Err(flow.level.reject());
    }
    Ok(ticket(id))
}

/// Its number, and if it must wait how it will know that it need not any more.
fn arrive(
    flow: &Arc<Flow>,
    request: Arc<dyn Described>,
    user: Arc<UserInfo>,
    work: Work,
    hash: u64,
) -> Result<(RequestId, Option<oneshot::Receiver<()>>), Reason> {
    let level = &flow.level;
    let core = &mut *level.core.lock();
    let now = level.now();
    let mut dispatched = vec![];
    let arrival = core.set.arrive(now, hash, work, &mut dispatched);
    let mut held = Held {
        flow: flow.clone(),
        request,
        user,
        waker: None,
    };
    let answer = match arrival {
        Arrival::Reject(reason) => Err(reason),
        Arrival::Execute(id) => {
            flow.stats.dispatched(work);
            core.held.insert(id, held);
            Ok((id, None))
        }
        Arrival::Wait(id) => {
            let (waker, woken) = oneshot::channel();
            held.waker = Some(waker);
            core.held.insert(id, held);
            flow.stats.wait(work, 1);
            let queue = core.set.request(id).and_then(|request| request.queue);
            let length = queue.map_or(0, |index| core.set.queues()[index].waiting.len());
            flow.stats.lengths.observe(length as f64);
            Ok((id, Some(woken)))
        }
    };
    core.wake(now, &dispatched);
    answer
}
