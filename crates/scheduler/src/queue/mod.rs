//! The scheduling queue: active, back-off, unschedulable and gated pods.
//!
//! ```text
//!            add                 pop (highest priority first)
//!   ┌───────────────▶ active ──────────────────────────────────▶ in flight ──▶ done
//!   │                  ▲   ▲                                      ▲   │ failed
//!   │ gate closed      │   └── flush: back-off over ── back-off ──┘   │
//!   ▼                  │         pop: active is empty     ▲           │ error, or an event while in flight
//!  gated ──────────────┤ event, update, activate          ├───────────┤
//!                      │                                  │           │ rejected
//!                      └── back-off over ◀── event ───────┴── unschedulable ◀
//! ```
//!
//! Every pod is in exactly one of these places. A rejected pod waits until an event that one of its rejecting plugins
//! registered, and that the plugin's hint holds to matter, or until it has waited for minutes; then it goes through
//! back-off. A pod that failed by an error waits for its back-off only, and is not taken early from there. Who enters the
//! active or the back-off queue passes the gates (PreEnqueue) first.
//!
//! This is a plain data structure: it reads no clock and knows no plugin. What plugins have to say comes in as `Advice`.
//! Nominated pods are kept elsewhere (`cluster::nominated`).
//!
//! Upstream: pkg/scheduler/backend/queue (v1.36). Differs from upstream: the list of events kept for pods in flight has
//! a limit, beyond which "something happened" is assumed; and pods that are tried again because they waited for long do
//! not count as an event for those in flight.

mod backoff;
mod in_flight;
mod incoming;
mod lane;
mod parked;
mod plugins;
mod pod;
mod rejected;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rustc_hash::FxHashMap;

use crate::cluster::pod::PodInfo;
use crate::framework::event::{Event, EventKind, Hint, Object, Resource};
use crate::framework::verdict::Rejection;
use backoff::Backoff;
use in_flight::InFlightEvents;
pub use incoming::{Incoming, SubQueue, Trigger};
use lane::Lane;
use parked::{Cause, Parked, Spot};
pub use plugins::PluginSet;
use plugins::Registry;
pub use pod::{QueuedPod, SortKey, by_priority, own_changes};
use rejected::Rejected;

/// How often it is checked whether a pod has been unschedulable for too long.
const LEFTOVER_PERIOD: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug)]
pub struct QueueConfig {
    pub initial_backoff: Duration,
    /// Zero: no back-off at all.
    pub max_backoff: Duration,
    /// After this time an unschedulable (or gated) pod is tried again though nothing happened.
    pub max_in_unschedulable: Duration,
    /// Try pods before their back-off is over when there is nothing else to do.
    pub pop_from_backoff: bool,
    /// Events kept for pods in flight, at most.
    pub in_flight_events_max: usize,
    /// The order of the active queue.
    pub order: fn(&QueuedPod) -> SortKey,
}

impl Default for QueueConfig {
    fn default() -> QueueConfig {
        QueueConfig {
            initial_backoff: Duration::from_secs(1),
            max_backoff: Duration::from_secs(10),
            max_in_unschedulable: Duration::from_secs(5 * 60),
            pop_from_backoff: true,
            in_flight_events_max: 1 << 14,
            order: by_priority,
        }
    }
}

/// What plugins have to say to the queue.
pub trait Advice {
    /// May the pod be tried at all? If not, who says so.
    fn pre_enqueue(&self, pod: &PodInfo) -> Result<(), (&'static str, Rejection)>;

    /// Whether this event may make a pod fit that the plugin rejected. Asked only for events that it registered.
    fn hint(&self, plugin: &'static str, pod: &PodInfo, event: &Event) -> Hint;
}

/// Why a try came to nothing.
#[derive(Clone, Copy, Debug)]
pub enum AttemptFailure<'a> {
    Rejected {
        by: &'a [&'static str],
        /// Who has to wait for something else before it can decide.
        pending: &'a [&'static str],
    },
    /// Something went wrong, or there are no nodes; nobody rejected the pod.
    Error,
}

/// How many pods are where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub active: usize,
    pub backoff: usize,
    pub unschedulable: usize,
    pub gated: usize,
    /// Being tried or bound; not pending.
    pub in_flight: usize,
}

/// How to go on with a pod after an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Requeue {
    /// Leave it where it is.
    Not,
    AfterBackoff,
    Immediately,
}

#[derive(Debug)]
enum Slot {
    Free,
    Queued { pod: QueuedPod, place: QueuePosition },
    InFlight(InFlight),
}

#[derive(Clone, Copy, Debug)]
enum QueuePosition {
    /// With the number of its ticket, as in the next two.
    Active(u64),
    Backoff(u64),
    ErrorBackoff(u64),
    Parked(Spot),
}

#[derive(Debug)]
struct InFlight {
    number: u64,
    /// The newest version seen.
    pod: Arc<PodInfo>,
    /// First event that its try did not see.
    seen: u64,
    /// Somebody asked for it to be tried again.
    activated: bool,
}

pub struct SchedulingQueue {
    config: QueueConfig,
    backoff: Backoff,
    registry: Registry,
    slots: Vec<Slot>,
    free: Vec<u32>,
    by_uid: FxHashMap<Arc<str>, u32>,
    active: Lane<SortKey>,
    /// By expiry.
    backing_off: Lane<(i64, SortKey)>,
    error_backing_off: Lane<(i64, SortKey)>,
    parked: Parked,
    in_flight: InFlightEvents,
    /// The last number given to a ticket or a try.
    number: u64,
    /// When to look next for pods that have been parked for too long.
    leftover_at: Option<Timestamp>,
    incoming: Incoming,
    rejected: Rejected,
    /// Kept for its memory.
    moving: Vec<u32>,
}

impl SchedulingQueue {
    /// `plugins`: of all profiles, with the events that they registered (none: all events).
    pub fn new(
        config: QueueConfig,
        plugins: impl IntoIterator<Item = (&'static str, Vec<EventKind>)>,
    ) -> SchedulingQueue {
        SchedulingQueue {
            backoff: Backoff::new(config.initial_backoff, config.max_backoff, config.pop_from_backoff),
            registry: Registry::new(plugins),
            slots: vec![],
            free: vec![],
            by_uid: FxHashMap::default(),
            active: Lane::new(),
            backing_off: Lane::new(),
            error_backing_off: Lane::new(),
            parked: Parked::default(),
            in_flight: InFlightEvents::new(config.in_flight_events_max),
            number: 0,
            leftover_at: None,
            incoming: Incoming::default(),
            rejected: Rejected::default(),
            moving: vec![],
            config,
        }
    }

    // ---- what there is ----

    pub fn counts(&self) -> Counts {
        Counts {
            active: self.active.len(),
            backoff: self.backing_off.len() + self.error_backing_off.len(),
            unschedulable: self.parked.unschedulable(),
            gated: self.parked.gated(),
            in_flight: self.in_flight.running(),
        }
    }

    pub fn incoming(&self) -> &Incoming {
        &self.incoming
    }

    /// How many waiting pods each plugin rejected, by scheduler name; None if that is as it was when last asked. A pod
    /// counts for each plugin that rejected it, until it is tried again.
    pub fn rejected(&mut self) -> Option<impl Iterator<Item = (&'static str, &str, usize)>> {
        let registry = &self.registry;
        let news = self.rejected.news()?;
        Some(news.map(|(id, profile, n)| (registry.name(id), profile, n)))
    }

    /// Whether `pop` would give a pod.
    pub fn is_ready(&self) -> bool {
        self.active.len() > 0 || (self.config.pop_from_backoff && self.backing_off.len() > 0)
    }

    pub fn names(&self, plugins: PluginSet) -> impl Iterator<Item = &'static str> + '_ {
        self.registry.names(plugins)
    }

    pub fn is_in_flight(&self, uid: &str) -> bool {
        (self.by_uid.get(uid)).is_some_and(|slot| matches!(self.slot(*slot), Slot::InFlight(_)))
    }

    /// A waiting pod, and where it waits.
    pub fn get(&self, uid: &str) -> Option<(SubQueue, &QueuedPod)> {
        queued(self.slot(*self.by_uid.get(uid)?))
    }

    /// All waiting pods, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (SubQueue, &QueuedPod)> {
        self.slots.iter().filter_map(queued)
    }

    /// When to call `flush` next.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let over = |lane: &Lane<(i64, SortKey)>| lane.peek().map(|((expiry, _), _)| self.backoff.over_at(expiry));
        let leftover = self.leftover_at.filter(|_| !self.parked.is_empty());
        [over(&self.backing_off), over(&self.error_backing_off), leftover]
            .into_iter()
            .flatten()
            .min()
    }

    // ---- what the watch shows ----

    /// A pod without a node is new. One that is known already is taken as changed.
    pub fn add(&mut self, pod: Arc<PodInfo>, now: Timestamp, advice: &dyn Advice) {
        if self.by_uid.contains_key(&*pod.uid) {
            self.update(pod, now, advice);
        } else {
            self.insert(pod, Trigger::PodAdd, now, advice);
        }
    }

    /// A pod without a node has changed. One that is not known is taken as new.
    pub fn update(&mut self, pod: Arc<PodInfo>, now: Timestamp, advice: &dyn Advice) {
        let Some(slot) = self.by_uid.get(&*pod.uid).copied() else {
            return self.insert(pod, Trigger::PodUpdate, now, advice);
        };
        match &mut self.slots[slot as usize] {
            Slot::Free => {}
            Slot::InFlight(try_) => {
                let event = own_event(std::mem::replace(&mut try_.pod, pod.clone()), pod);
                self.in_flight.record(&event);
            }
            Slot::Queued { pod: queued, place } => {
                let before = (self.config.order)(queued);
                let old = std::mem::replace(&mut queued.pod, pod.clone());
                if let QueuePosition::Parked(_) = place {
                    self.move_if_worth(slot, &own_event(old, pod), now, advice);
                } else if (self.config.order)(queued) != before {
                    self.reorder(slot);
                }
            }
        }
    }

    /// The pod is gone, or has a node. A try of it that is under way is of no consequence any more.
    pub fn delete(&mut self, uid: &str) -> bool {
        let Some(slot) = self.by_uid.remove(uid) else {
            return false;
        };
        match self.slot(slot) {
            Slot::InFlight(_) => self.land(slot),
            _ => drop(self.lift(slot)),
        }
        self.free.push(slot);
        true
    }

    /// Something happened: offers it to the pods it may concern. Gives how many were moved.
    pub fn on_event(&mut self, event: &Event, now: Timestamp, advice: &dyn Advice) -> usize {
        let interested = self.registry.interested(event);
        if interested.is_empty() {
            return 0;
        }
        let mut moving = std::mem::take(&mut self.moving);
        moving.extend(self.parked.concerned(interested));
        let mut moved = 0;
        for slot in moving.drain(..) {
            moved += usize::from(self.move_if_worth(slot, event, now, advice));
        }
        self.moving = moving;
        self.in_flight.record(event);
        moved
    }

    // ---- trying pods ----

    /// The next pod to try; it is in flight until `done`, `failed` or `delete`.
    pub fn pop(&mut self) -> Option<QueuedPod> {
        let slot = match self.active.peek() {
            Some((_, slot)) => slot,
            None => {
                let (_, slot) = self.backing_off.peek().filter(|_| self.config.pop_from_backoff)?;
                self.incoming.count(SubQueue::Active, Trigger::PopFromBackoff);
                slot
            }
        };
        let mut pod = self.lift(slot);
        pod.attempts += 1;
        let number = self.next_number();
        self.slots[slot as usize] = Slot::InFlight(InFlight {
            number,
            pod: pod.pod.clone(),
            seen: self.in_flight.start(slot, number),
            activated: false,
        });
        Some(pod)
    }

    /// The pod was bound, or is not to be tried again.
    pub fn done(&mut self, uid: &str) -> bool {
        self.is_in_flight(uid) && self.delete(uid)
    }

    /// A try came to nothing: the pod waits again. None if it was deleted meanwhile.
    pub fn failed(
        &mut self,
        mut pod: QueuedPod,
        outcome: AttemptFailure<'_>,
        now: Timestamp,
        advice: &dyn Advice,
    ) -> Option<SubQueue> {
        let slot = *self.by_uid.get(&*pod.pod.uid)?;
        let Slot::InFlight(try_) = self.slot(slot) else {
            return None;
        };
        let (seen, activated) = (try_.seen, try_.activated);
        pod.pod = try_.pod.clone();
        (pod.rejected_by, pod.pending) = match outcome {
            AttemptFailure::Rejected { by, pending } => (self.registry.set(by), self.registry.set(pending)),
            AttemptFailure::Error => Default::default(),
        };
        if pod.rejectors().is_empty() {
            pod.consecutive_errors += 1;
        } else {
            pod.unschedulable_count += 1;
            pod.consecutive_errors = 0;
        }
        pod.timestamp = now;
        pod.gated_by = None;
        (pod.flushed, pod.flushed_at) = (false, None);
        let requeue = match self.missed(&pod, seen, advice) {
            Requeue::Not if activated => Requeue::AfterBackoff,
            other => other,
        };
        self.land(slot);
        Some(self.requeue(slot, pod, requeue, Trigger::ScheduleAttemptFailure, now, advice))
    }

    /// Moves the pod to the active queue; one in flight will go through back-off only when it fails. True if it moved.
    pub fn activate(&mut self, uid: &str, now: Timestamp, advice: &dyn Advice) -> bool {
        let Some(slot) = self.by_uid.get(uid).copied() else {
            return false;
        };
        let parked = match &mut self.slots[slot as usize] {
            Slot::InFlight(try_) => {
                try_.activated = true;
                return false;
            }
            Slot::Free => return false,
            Slot::Queued { place, .. } => match place {
                QueuePosition::Active(_) => return false,
                QueuePosition::Backoff(_) | QueuePosition::ErrorBackoff(_) => false,
                QueuePosition::Parked(_) => true,
            },
        };
        let pod = self.lift(slot);
        let queue = if parked {
            self.requeue(slot, pod, Requeue::Immediately, Trigger::ForceActivate, now, advice)
        } else {
            self.leave_backoff(slot, pod, Trigger::ForceActivate, now, advice)
        };
        queue == SubQueue::Active
    }

    /// Moves pods whose time has come.
    pub fn flush(&mut self, now: Timestamp, advice: &dyn Advice) {
        while let Some(slot) = self.backoff_over(&self.backing_off, now) {
            let pod = self.lift(slot);
            self.leave_backoff(slot, pod, Trigger::BackoffComplete, now, advice);
        }
        while let Some(slot) = self.backoff_over(&self.error_backing_off, now) {
            let pod = self.lift(slot);
            self.leave_backoff(slot, pod, Trigger::BackoffComplete, now, advice);
        }
        if self.leftover_at.is_some_and(|at| at <= now) {
            self.flush_leftover(now, advice);
            self.leftover_at = (!self.parked.is_empty()).then(|| after(now, LEFTOVER_PERIOD));
        }
    }

    fn backoff_over(&self, lane: &Lane<(i64, SortKey)>, now: Timestamp) -> Option<u32> {
        let ((expiry, _), slot) = lane.peek()?;
        self.backoff.is_over(expiry, now).then_some(slot)
    }

    fn flush_leftover(&mut self, now: Timestamp, advice: &dyn Advice) {
        let mut moving = std::mem::take(&mut self.moving);
        moving.extend(self.parked.slots().filter(|slot| {
            let Slot::Queued { pod, .. } = self.slot(*slot) else {
                return false;
            };
            let since = pod.timestamp.max(pod.flushed_at.unwrap_or(Timestamp::MIN));
            now > after(since, self.config.max_in_unschedulable)
        }));
        for slot in moving.drain(..) {
            let mut pod = self.lift(slot);
            (pod.flushed, pod.flushed_at) = (true, Some(now));
            let trigger = Trigger::UnschedulableTimeout;
            self.requeue(slot, pod, Requeue::AfterBackoff, trigger, now, advice);
        }
        self.moving = moving;
    }

    // ---- deciding ----

    /// Whether this event is reason to try the pod again.
    fn worth(&self, pod: &QueuedPod, event: &Event, advice: &dyn Advice) -> Requeue {
        if matches!(event.resource, Resource::OwnPod | Resource::Any)
            && let (_, Some(target)) = event.pods()
            && target.uid != pod.pod.uid
        {
            return Requeue::Not;
        }
        if event.resource == Resource::Any {
            return Requeue::AfterBackoff;
        }
        if let (Some(gone), None) = event.pods()
            && gone.uid == pod.pod.uid
        {
            // Its own place was given back: no news to the pod itself.
            return Requeue::Not;
        }
        let mut found = Requeue::Not;
        for id in pod.rejectors().and(self.registry.interested(event)).ids() {
            if advice.hint(self.registry.name(id), &pod.pod, event) == Hint::Skip {
                continue;
            }
            if pod.pending.has(id) {
                return Requeue::Immediately;
            }
            found = Requeue::AfterBackoff;
            if pod.pending.is_empty() {
                break;
            }
        }
        found
    }

    /// What to make of the events that a try did not see.
    fn missed(&self, pod: &QueuedPod, seen: u64, advice: &dyn Advice) -> Requeue {
        if pod.rejectors().is_empty() {
            return Requeue::AfterBackoff;
        }
        let Some(events) = self.in_flight.since(seen) else {
            return Requeue::AfterBackoff;
        };
        let mut found = Requeue::Not;
        for event in events {
            match self.worth(pod, event, advice) {
                Requeue::Not => continue,
                Requeue::Immediately => return Requeue::Immediately,
                Requeue::AfterBackoff => found = Requeue::AfterBackoff,
            }
            if pod.pending.is_empty() {
                break;
            }
        }
        found
    }

    fn move_if_worth(&mut self, slot: u32, event: &Event, now: Timestamp, advice: &dyn Advice) -> bool {
        let Slot::Queued { pod, .. } = self.slot(slot) else {
            return false;
        };
        let requeue = self.worth(pod, event, advice);
        if requeue == Requeue::Not {
            return false;
        }
        let pod = self.lift(slot);
        let queue = self.requeue(slot, pod, requeue, Trigger::of(event), now, advice);
        matches!(queue, SubQueue::Active | SubQueue::Backoff)
    }

    fn requeue(
        &mut self,
        slot: u32,
        mut pod: QueuedPod,
        requeue: Requeue,
        trigger: Trigger,
        now: Timestamp,
        advice: &dyn Advice,
    ) -> SubQueue {
        if requeue == Requeue::Not {
            return self.park(slot, pod, trigger, now);
        }
        let expiry = (self.backoff.expiry(&pod))
            .filter(|expiry| requeue == Requeue::AfterBackoff && !self.backoff.is_over(*expiry, now));
        // A pod that can be popped from back-off must have passed the gates; others pass them on leaving it.
        let gates = expiry.is_none() || self.config.pop_from_backoff;
        if gates && !self.pass_gates(&mut pod, advice) {
            return self.park(slot, pod, trigger, now);
        }
        pod.gated_by = None;
        match expiry {
            Some(expiry) => self.enter_backoff(slot, pod, expiry, trigger),
            None => self.enter_active(slot, pod, trigger, now),
        }
    }

    fn leave_backoff(
        &mut self,
        slot: u32,
        mut pod: QueuedPod,
        trigger: Trigger,
        now: Timestamp,
        advice: &dyn Advice,
    ) -> SubQueue {
        if self.config.pop_from_backoff || self.pass_gates(&mut pod, advice) {
            self.enter_active(slot, pod, trigger, now)
        } else {
            self.park(slot, pod, trigger, now)
        }
    }

    fn pass_gates(&mut self, pod: &mut QueuedPod, advice: &dyn Advice) -> bool {
        match advice.pre_enqueue(&pod.pod) {
            Ok(()) => true,
            Err((plugin, _)) => {
                pod.rejected_by.insert(self.registry.id(plugin));
                pod.gated_by = Some(plugin);
                pod.flushed = false;
                false
            }
        }
    }

    // ---- moving ----

    fn slot(&self, slot: u32) -> &Slot {
        &self.slots[slot as usize]
    }

    fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    fn insert(&mut self, pod: Arc<PodInfo>, trigger: Trigger, now: Timestamp, advice: &dyn Advice) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::Free);
            u32::try_from(self.slots.len() - 1).expect("fewer than four billion pods")
        });
        self.by_uid.insert(pod.uid.clone(), slot);
        let pod = QueuedPod::new(pod, now);
        self.requeue(slot, pod, Requeue::Immediately, trigger, now, advice);
    }

    fn enter_active(&mut self, slot: u32, mut pod: QueuedPod, trigger: Trigger, now: Timestamp) -> SubQueue {
        pod.initial_attempt.get_or_insert(now);
        self.rejected.add(&pod);
        let number = self.next_number();
        self.active.push((self.config.order)(&pod), number, slot);
        let place = QueuePosition::Active(number);
        self.slots[slot as usize] = Slot::Queued { pod, place };
        self.incoming.count(SubQueue::Active, trigger);
        SubQueue::Active
    }

    fn enter_backoff(&mut self, slot: u32, pod: QueuedPod, expiry: i64, trigger: Trigger) -> SubQueue {
        self.rejected.add(&pod);
        let number = self.next_number();
        let key = (expiry, (self.config.order)(&pod));
        let place = if pod.rejectors().is_empty() {
            self.error_backing_off.push(key, number, slot);
            QueuePosition::ErrorBackoff(number)
        } else {
            self.backing_off.push(key, number, slot);
            QueuePosition::Backoff(number)
        };
        self.slots[slot as usize] = Slot::Queued { pod, place };
        self.incoming.count(SubQueue::Backoff, trigger);
        SubQueue::Backoff
    }

    fn park(&mut self, slot: u32, pod: QueuedPod, trigger: Trigger, now: Timestamp) -> SubQueue {
        self.rejected.add(&pod);
        let cause = Cause {
            rejectors: pod.rejectors(),
            gate: pod.gated_by.map(|plugin| self.registry.id(plugin)),
        };
        let place = QueuePosition::Parked(self.parked.insert(cause, slot));
        let queue = sub_queue(&pod, place);
        self.slots[slot as usize] = Slot::Queued { pod, place };
        self.leftover_at.get_or_insert_with(|| after(now, LEFTOVER_PERIOD));
        self.incoming.count(SubQueue::Unschedulable, trigger);
        queue
    }

    /// Takes a waiting pod out of its place; the slot stays its own.
    fn lift(&mut self, slot: u32) -> QueuedPod {
        let Slot::Queued { pod, place } = std::mem::replace(&mut self.slots[slot as usize], Slot::Free) else {
            unreachable!("only waiting pods are moved")
        };
        self.rejected.remove(&pod);
        let slots = &mut self.slots;
        let valid = |slot: u32, number| matches!(&slots[slot as usize], Slot::Queued { place, .. } if place.number() == Some(number));
        match place {
            QueuePosition::Active(_) => self.active.taken_back(valid),
            QueuePosition::Backoff(_) => self.backing_off.taken_back(valid),
            QueuePosition::ErrorBackoff(_) => self.error_backing_off.taken_back(valid),
            QueuePosition::Parked(spot) => {
                if let Some(moved) = self.parked.remove(spot)
                    && let Slot::Queued { place, .. } = &mut slots[moved as usize]
                {
                    *place = QueuePosition::Parked(spot);
                }
            }
        }
        pod
    }

    /// A try is over; the slot stays the pod's own.
    fn land(&mut self, slot: u32) {
        let slots = &mut self.slots;
        slots[slot as usize] = Slot::Free;
        self.in_flight.finish(
            |slot, number| matches!(&slots[slot as usize], Slot::InFlight(InFlight { number: n, .. }) if *n == number),
        );
    }

    /// The pod's place in its order has changed.
    fn reorder(&mut self, slot: u32) {
        let Slot::Queued { place, .. } = *self.slot(slot) else {
            return;
        };
        let pod = self.lift(slot);
        self.rejected.add(&pod);
        let number = self.next_number();
        let key = (self.config.order)(&pod);
        let expiry = self.backoff.expiry(&pod).unwrap_or(i64::MIN);
        let place = match place {
            QueuePosition::Active(_) => {
                self.active.push(key, number, slot);
                QueuePosition::Active(number)
            }
            QueuePosition::Backoff(_) => {
                self.backing_off.push((expiry, key), number, slot);
                QueuePosition::Backoff(number)
            }
            QueuePosition::ErrorBackoff(_) => {
                self.error_backing_off.push((expiry, key), number, slot);
                QueuePosition::ErrorBackoff(number)
            }
            QueuePosition::Parked(_) => unreachable!("parked pods have no order"),
        };
        self.slots[slot as usize] = Slot::Queued { pod, place };
    }
}

impl QueuePosition {
    fn number(self) -> Option<u64> {
        match self {
            QueuePosition::Active(number) | QueuePosition::Backoff(number) | QueuePosition::ErrorBackoff(number) => {
                Some(number)
            }
            QueuePosition::Parked(_) => None,
        }
    }
}

fn sub_queue(pod: &QueuedPod, place: QueuePosition) -> SubQueue {
    match place {
        QueuePosition::Active(_) => SubQueue::Active,
        QueuePosition::Backoff(_) | QueuePosition::ErrorBackoff(_) => SubQueue::Backoff,
        QueuePosition::Parked(_) if pod.gated_by.is_some() => SubQueue::Gated,
        QueuePosition::Parked(_) => SubQueue::Unschedulable,
    }
}

fn queued(slot: &Slot) -> Option<(SubQueue, &QueuedPod)> {
    match slot {
        Slot::Queued { pod, place } => Some((sub_queue(pod, *place), pod)),
        _ => None,
    }
}

fn own_event(old: Arc<PodInfo>, new: Arc<PodInfo>) -> Event {
    Event {
        resource: Resource::OwnPod,
        actions: own_changes(&old, &new),
        old: Object::Pod(old),
        new: Object::Pod(new),
    }
}

fn after(at: Timestamp, wait: Duration) -> Timestamp {
    at.checked_add(wait).unwrap_or(Timestamp::MAX)
}
