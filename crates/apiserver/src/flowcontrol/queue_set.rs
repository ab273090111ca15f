//! The core of fair queuing: which request of a priority level is executed when. Pure and deterministic: the time is given,
//! and each call says which waiting requests are to be executed now.
//!
//! The level has seats; a request takes some while it is executed. Requests of a flow go to a few of the queues (its hand),
//! each to the one of those with the least work. Queues share the seats fairly: in virtual time, which passes the slower
//! the more queues are active, each queue has a start tag (`next_start`) that moves on by the work of each request that is
//! dispatched from it (seats × duration: an estimate first, put right when the request ends). Next comes the request
//! that would end first.
//!
//! Invariants: seats in use never exceed the limit, but for one request that is wider than it, executed alone; no queue is
//! longer than its limit; as long as seats are free for the next request, none waits.
//!
//! Upstream: fairqueuing/queueset of k8s.io/apiserver (v1.36). Differs in two ways: a queue that is full takes nothing, even if
//! seats are free that are too few for the request that waits for them; and virtual time has 128 bits, so it needs no epochs.

use std::collections::VecDeque;
use std::time::Duration;

use rustc_hash::FxHashMap;

use super::shuffle::deal;

/// How long a request is thought to take when it is dispatched.
const ESTIMATED: Duration = Duration::from_millis(3);

/// What a request takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Work {
    /// Seats while it is executed.
    pub seats: u32,
    /// Seats after that, and for how long: nobody waits for it, but others can't have them.
    pub final_seats: u32,
    pub afterwards: Duration,
}

impl Work {
    pub(super) const ONE: Work = Work {
        seats: 1,
        final_seats: 0,
        afterwards: Duration::ZERO,
    };

    pub(super) fn seats(seats: u32) -> Work {
        Work { seats, ..Work::ONE }
    }

    /// What it takes at most at one time; reserved from beginning to end.
    pub(super) fn max_seats(self) -> u32 {
        self.seats.max(self.final_seats)
    }

    /// In seats × nanoseconds.
    fn total(self) -> i128 {
        product(self.seats, ESTIMATED) + product(self.final_seats, self.afterwards)
    }
}

fn product(seats: u32, time: Duration) -> i128 {
    i128::from(seats) * time.as_nanos() as i128
}

/// How requests wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queuing {
    /// They are never held up.
    Exempt,
    /// They don't wait: what can't be executed at once is rejected.
    None,
    Queues {
        count: usize,
        hand_size: usize,
        length_limit: usize,
    },
}

pub(super) type RequestId = u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    QueueFull,
    ConcurrencyLimit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    Execute(RequestId),
    Wait(RequestId),
    Reject(Reason),
}

#[derive(Debug)]
pub(super) struct Request {
    pub queue: Option<usize>,
    pub work: Work,
    pub arrived: Duration,
    /// Since when it is executed.
    pub started: Option<Duration>,
    arrived_virtually: i128,
    /// It has ended; its seats are still taken.
    lingers: bool,
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    pub waiting: VecDeque<RequestId>,
    pub executing: u32,
    pub seats_in_use: u32,
    /// Start tag, in virtual time.
    pub next_start: i128,
    /// Of those that wait.
    pub work: i128,
    pub seats_waiting: u64,
    pub max_seats_waiting: u64,
}

impl Queue {
    fn is_active(&self) -> bool {
        !self.waiting.is_empty() || self.executing > 0
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub waiting: u32,
    pub executing: u32,
    pub seats_in_use: u32,
    pub seats_waiting: u64,
    pub dispatched: u64,
    pub rejected: u64,
    pub timed_out: u64,
    pub cancelled: u64,
}

#[derive(Debug)]
pub(super) struct QueueSet {
    queuing: Queuing,
    limit: u32,
    queues: Vec<Queue>,
    requests: FxHashMap<RequestId, Request>,
    totals: Totals,
    active_queues: u32,
    /// Real and virtual time of the last call.
    now: Duration,
    virtual_now: i128,
    next_id: RequestId,
    enqueued: usize,
    /// From which queue was dispatched last: of equals, the next one has its turn.
    last_queue: usize,
}

impl QueueSet {
    pub(super) fn new(queuing: Queuing, limit: u32) -> QueueSet {
        let mut set = QueueSet {
            queuing,
            limit,
            queues: vec![],
            requests: FxHashMap::default(),
            totals: Totals::default(),
            active_queues: 0,
            now: Duration::ZERO,
            virtual_now: 0,
            next_id: 0,
            enqueued: 0,
            last_queue: 0,
        };
        set.fit_queues();
        set
    }

    /// Queues that are too many go once they are empty.
    fn fit_queues(&mut self) {
        let wanted = match self.queuing {
            Queuing::Queues { count, .. } => count,
            _ => 0,
        };
        while self.queues.len() < wanted {
            self.queues.push(Queue::default());
        }
        while self.queues.len() > wanted
            && self
                .queues
                .last()
                .is_some_and(|q| !q.is_active() && q.seats_in_use == 0)
        {
            self.queues.pop();
        }
        if self.last_queue >= self.queues.len() {
            self.last_queue = 0;
        }
    }

    /// Other queues, or other seats. Requests that wait stay where they are.
    pub(super) fn configure(&mut self, now: Duration, queuing: Queuing, limit: u32, dispatched: &mut Vec<RequestId>) {
        self.advance(now);
        (self.queuing, self.limit) = (queuing, limit);
        self.fit_queues();
        self.dispatch(dispatched);
    }

    pub(super) fn totals(&self) -> Totals {
        self.totals
    }

    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    pub(super) fn queues(&self) -> &[Queue] {
        &self.queues
    }

    pub(super) fn request(&self, id: RequestId) -> Option<&Request> {
        self.requests.get(&id)
    }

    /// Seats that could be used: those in use and those waited for.
    pub(super) fn demand(&self) -> u64 {
        u64::from(self.totals.seats_in_use) + self.totals.seats_waiting
    }

    pub(super) fn is_idle(&self) -> bool {
        self.requests.is_empty()
    }

    /// Virtual time passes at the rate at which each active queue is served.
    fn advance(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.now);
        self.now = self.now.max(now);
        if self.active_queues > 0 {
            let rate = self.demand().min(u64::from(self.limit));
            self.virtual_now += passed.as_nanos() as i128 * i128::from(rate) / i128::from(self.active_queues);
        }
    }

    /// A request of a flow. Others may be dispatched before it.
    pub(super) fn arrive(&mut self, now: Duration, flow: u64, work: Work, dispatched: &mut Vec<RequestId>) -> Arrival {
        self.advance(now);
        let mut request = Request {
            queue: None,
            work,
            arrived: now,
            started: None,
            arrived_virtually: self.virtual_now,
            lingers: false,
        };
        let id = self.next_id;
        let Queuing::Queues {
            count,
            hand_size,
            length_limit,
        } = self.queuing
        else {
            if !self.fits(work.max_seats()) {
                self.totals.rejected += 1;
                return Arrival::Reject(Reason::ConcurrencyLimit);
            }
            self.next_id += 1;
            self.begin(&mut request);
            self.requests.insert(id, request);
            return Arrival::Execute(id);
        };
        let index = self.choose_queue(flow, count, hand_size);
        if self.queues[index].waiting.len() >= length_limit {
            self.totals.rejected += 1;
            return Arrival::Reject(Reason::QueueFull);
        }
        self.next_id += 1;
        let is_free = self.totals.waiting == 0 && self.totals.seats_in_use < self.limit && self.fits(work.max_seats());
        let queue = &mut self.queues[index];
        if !queue.is_active() {
            queue.next_start = self.virtual_now;
            self.active_queues += 1;
        }
        request.queue = Some(index);
        // Nobody waits and there is room: that it would be dispatched at once is known without looking.
        if is_free {
            queue.next_start = queue.next_start.max(self.virtual_now) + work.total();
            self.last_queue = index;
            self.begin(&mut request);
            self.requests.insert(id, request);
            return Arrival::Execute(id);
        }
        queue.waiting.push_back(id);
        queue.work += work.total();
        queue.seats_waiting += u64::from(work.seats);
        queue.max_seats_waiting += u64::from(work.max_seats());
        self.totals.waiting += 1;
        self.totals.seats_waiting += u64::from(work.max_seats());
        self.requests.insert(id, request);
        self.bound_start(index);
        self.dispatch(dispatched);
        match dispatched.iter().position(|other| *other == id) {
            Some(place) => {
                dispatched.remove(place);
                Arrival::Execute(id)
            }
            None => Arrival::Wait(id),
        }
    }

    /// Of the flow's hand the queue with the least work.
    fn choose_queue(&mut self, flow: u64, count: usize, hand_size: usize) -> usize {
        let hand = deal(flow, count, hand_size);
        let offset = self.enqueued;
        self.enqueued = self.enqueued.wrapping_add(1);
        let turned = (0..hand.len()).map(|i| hand[(offset + i) % hand.len()]);
        turned.min_by_key(|index| self.queues[*index].work).unwrap_or(0)
    }

    fn fits(&self, seats: u32) -> bool {
        match self.queuing {
            Queuing::Exempt => true,
            // Wider than all there is: alone.
            _ if seats > self.limit => self.totals.executing == 0 && self.totals.seats_in_use == 0 && self.limit > 0,
            _ => self.totals.seats_in_use + seats <= self.limit,
        }
    }

    /// Counts a request as executed from now on.
    fn begin(&mut self, request: &mut Request) {
        let seats = request.work.max_seats();
        request.started = Some(self.now);
        self.totals.executing += 1;
        self.totals.dispatched += 1;
        self.totals.seats_in_use += seats;
        if let Some(index) = request.queue {
            let queue = &mut self.queues[index];
            queue.executing += 1;
            queue.seats_in_use += seats;
        }
    }

    /// Dispatches as much as possible.
    fn dispatch(&mut self, dispatched: &mut Vec<RequestId>) {
        while self.totals.waiting > 0 && self.totals.seats_in_use < self.limit {
            let Some((index, id)) = self.next_request() else { return };
            let mut request = self.requests.remove(&id).expect("who waits is known");
            if !self.fits(request.work.max_seats()) {
                self.requests.insert(id, request);
                return;
            }
            self.leave_queue(index, 0, request.work);
            self.last_queue = index;
            // Final seats beyond what there is become a longer time.
            self.narrow(&mut request.work);
            self.begin(&mut request);
            self.queues[index].next_start += request.work.total();
            self.bound_start(index);
            self.requests.insert(id, request);
            dispatched.push(id);
        }
    }

    fn narrow(&self, work: &mut Work) {
        let limit = self.limit.max(1);
        if work.final_seats > limit {
            let nanos = product(work.final_seats, work.afterwards) / i128::from(limit);
            work.final_seats = limit;
            work.afterwards = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        }
    }

    /// The request that would end first in virtual time, and its queue. Of equals that of the next queue.
    fn next_request(&self) -> Option<(usize, RequestId)> {
        let count = self.queues.len();
        let mut best: Option<(i128, usize, RequestId)> = None;
        for step in 1..=count {
            let index = (self.last_queue + step) % count;
            let queue = &self.queues[index];
            let Some(id) = queue.waiting.front() else { continue };
            let end = queue.next_start + self.requests[id].work.total();
            if best.is_none_or(|(first, ..)| end < first) {
                best = Some((end, index, *id));
            }
        }
        best.map(|(_, index, id)| (index, id))
    }

    /// Takes the request at `place` out of its queue.
    fn leave_queue(&mut self, index: usize, place: usize, work: Work) {
        let queue = &mut self.queues[index];
        queue.waiting.remove(place);
        queue.work -= work.total();
        queue.seats_waiting -= u64::from(work.seats);
        queue.max_seats_waiting -= u64::from(work.max_seats());
        self.totals.waiting -= 1;
        self.totals.seats_waiting -= u64::from(work.max_seats());
    }

    /// No queue starts before its oldest request came: otherwise one that was served better than thought would save up.
    fn bound_start(&mut self, index: usize) {
        let queue = &mut self.queues[index];
        if let Some(oldest) = queue.waiting.front() {
            queue.next_start = queue.next_start.max(self.requests[oldest].arrived_virtually);
        }
    }

    /// A request was executed. Some time after its end its seats are to be given back with `release`; `None`: they are.
    pub(super) fn finish(&mut self, now: Duration, id: RequestId, dispatched: &mut Vec<RequestId>) -> Option<Duration> {
        self.advance(now);
        let request = self
            .requests
            .get_mut(&id)
            .filter(|r| r.started.is_some() && !r.lingers)?;
        request.lingers = true;
        let (work, queue) = (request.work, request.queue);
        let took = now.saturating_sub(request.started.unwrap_or_default());
        self.totals.executing -= 1;
        if let Some(index) = queue {
            let queue = &mut self.queues[index];
            queue.executing -= 1;
            queue.next_start += product(work.seats, took) - product(work.seats, ESTIMATED);
            let is_active = queue.is_active();
            self.bound_start(index);
            self.active_queues -= u32::from(!is_active);
        }
        if !work.afterwards.is_zero() {
            return Some(work.afterwards);
        }
        self.give_back(id, dispatched);
        None
    }

    /// The seats of a request that has ended are free again.
    pub(super) fn release(&mut self, now: Duration, id: RequestId, dispatched: &mut Vec<RequestId>) {
        self.advance(now);
        self.give_back(id, dispatched);
    }

    fn give_back(&mut self, id: RequestId, dispatched: &mut Vec<RequestId>) {
        let Some(request) = self.requests.remove(&id) else {
            return;
        };
        let seats = request.work.max_seats();
        self.totals.seats_in_use -= seats;
        if let Some(index) = request.queue {
            self.queues[index].seats_in_use -= seats;
        }
        self.fit_queues();
        self.dispatch(dispatched);
    }

    /// Somebody does not wait any longer. False: the request is executed already.
    pub(super) fn cancel(
        &mut self,
        now: Duration,
        id: RequestId,
        timed_out: bool,
        dispatched: &mut Vec<RequestId>,
    ) -> bool {
        self.advance(now);
        let Some(request) = self.requests.get(&id).filter(|r| r.started.is_none()) else {
            return false;
        };
        let work = request.work;
        let index = request.queue.expect("only what is in a queue waits");
        let place = self.queues[index].waiting.iter().position(|other| *other == id);
        self.leave_queue(index, place.expect("it is in its queue"), work);
        self.requests.remove(&id);
        self.active_queues -= u32::from(!self.queues[index].is_active());
        match timed_out {
            true => self.totals.timed_out += 1,
            false => self.totals.cancelled += 1,
        }
        self.bound_start(index);
        self.fit_queues();
        self.dispatch(dispatched);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    const QUEUES: Queuing = Queuing::Queues {
        count: 8,
        hand_size: 2,
        length_limit: 4,
    };

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn what_fits_is_executed_at_once() {
        let (mut set, mut out) = (QueueSet::new(QUEUES, 2), vec![]);
        assert_eq!(set.arrive(ms(0), 1, Work::ONE, &mut out), Arrival::Execute(0));
        assert_eq!(set.arrive(ms(0), 2, Work::ONE, &mut out), Arrival::Execute(1));
        assert_eq!(set.arrive(ms(1), 3, Work::ONE, &mut out), Arrival::Wait(2));
        assert!(out.is_empty());
        assert_eq!(set.finish(ms(5), 0, &mut out), None);
        assert_eq!(out, [2]);
        out.clear();
        set.finish(ms(6), 1, &mut out);
        set.finish(ms(6), 2, &mut out);
        assert!(set.is_idle() && out.is_empty());
        assert_eq!(set.totals().dispatched, 3);
    }

    #[test]
    fn queues_have_an_end() {
        let (mut set, mut out) = (QueueSet::new(QUEUES, 1), vec![]);
        let arrivals: Vec<Arrival> = (0..12).map(|_| set.arrive(ms(0), 7, Work::ONE, &mut out)).collect();
        // One is executed, a hand of two queues takes four each.
        assert!(matches!(arrivals[0], Arrival::Execute(_)));
        assert!(arrivals[1..9].iter().all(|a| matches!(a, Arrival::Wait(_))));
        assert_eq!(arrivals[9..], [Arrival::Reject(Reason::QueueFull); 3]);
        // Who gives up makes room.
        assert!(set.cancel(ms(1), 3, true, &mut out));
        assert!(!set.cancel(ms(1), 0, true, &mut out));
        assert_eq!((set.totals().timed_out, set.totals().waiting), (1, 7));
    }

    #[test]
    fn without_queues_what_does_not_fit_is_rejected() {
        let (mut set, mut out) = (QueueSet::new(Queuing::None, 2), vec![]);
        assert_eq!(set.arrive(ms(0), 0, Work::seats(2), &mut out), Arrival::Execute(0));
        assert_eq!(
            set.arrive(ms(0), 0, Work::ONE, &mut out),
            Arrival::Reject(Reason::ConcurrencyLimit)
        );
        let mut exempt = QueueSet::new(Queuing::Exempt, 0);
        for id in 0..100 {
            assert_eq!(exempt.arrive(ms(0), 0, Work::ONE, &mut out), Arrival::Execute(id));
        }
    }

    #[test]
    fn wide_requests_wait_for_all_their_seats_and_nobody_overtakes_them_for_ever() {
        let (mut set, mut out) = (QueueSet::new(QUEUES, 4), vec![]);
        for flow in 0..3 {
            assert!(matches!(
                set.arrive(ms(0), flow, Work::ONE, &mut out),
                Arrival::Execute(_)
            ));
        }
        assert_eq!(set.arrive(ms(1), 50, Work::seats(4), &mut out), Arrival::Wait(3));
        set.finish(ms(2), 0, &mut out);
        set.finish(ms(2), 1, &mut out);
        assert!(out.is_empty());
        set.finish(ms(2), 2, &mut out);
        assert_eq!(out, [3]);
        // One that is wider than all there is goes alone.
        let (mut set, mut out) = (QueueSet::new(QUEUES, 2), vec![]);
        assert_eq!(set.arrive(ms(0), 1, Work::seats(9), &mut out), Arrival::Execute(0));
        assert!(matches!(set.arrive(ms(0), 2, Work::ONE, &mut out), Arrival::Wait(_)));
    }

    #[test]
    fn seats_are_kept_for_what_comes_after_a_request() {
        let (mut set, mut out) = (QueueSet::new(QUEUES, 3), vec![]);
        let work = Work {
            seats: 1,
            final_seats: 3,
            afterwards: ms(5),
        };
        assert_eq!(set.arrive(ms(0), 1, work, &mut out), Arrival::Execute(0));
        assert_eq!(set.arrive(ms(0), 2, Work::ONE, &mut out), Arrival::Wait(1));
        assert_eq!(set.finish(ms(1), 0, &mut out), Some(ms(5)));
        assert_eq!(set.finish(ms(1), 0, &mut out), None);
        assert!(out.is_empty());
        set.release(ms(6), 0, &mut out);
        assert_eq!(out, [1]);
    }

    #[test]
    fn a_flow_with_little_overtakes_one_with_much() {
        let queuing = Queuing::Queues {
            count: 64,
            hand_size: 1,
            length_limit: 100,
        };
        let (mut set, mut out) = (QueueSet::new(queuing, 1), vec![]);
        for _ in 0..50 {
            set.arrive(ms(0), 1, Work::ONE, &mut out);
        }
        // The elephant's first request takes long, and that counts.
        assert!(matches!(set.arrive(ms(10), 2, Work::ONE, &mut out), Arrival::Wait(50)));
        set.finish(ms(20), 0, &mut out);
        assert_eq!(out, [50]);
    }

    #[test]
    fn queues_come_and_go() {
        let (mut set, mut out) = (QueueSet::new(QUEUES, 1), vec![]);
        for flow in 0..8 {
            set.arrive(ms(0), flow * 977, Work::ONE, &mut out);
        }
        let fewer = Queuing::Queues {
            count: 1,
            hand_size: 1,
            length_limit: 4,
        };
        set.configure(ms(1), fewer, 1, &mut out);
        let mut executing = vec![0];
        let mut now = 1;
        while let Some(id) = executing.pop() {
            now += 1;
            set.finish(ms(now), id, &mut out);
            executing.append(&mut out);
        }
        assert!(set.is_idle());
        assert_eq!((set.queues().len(), set.totals().dispatched), (1, 8));
        set.configure(ms(now), QUEUES, 0, &mut out);
        assert!(matches!(set.arrive(ms(now), 1, Work::ONE, &mut out), Arrival::Wait(_)));
        set.configure(ms(now), QUEUES, 1, &mut out);
        assert_eq!(out.len(), 1);
    }

    /// Flows that always have requests waiting, each of its own duration and width. Returns the seat time that each got
    /// within `until` milliseconds.
    fn contend(flows: &[(u64, u64, u32)], limit: u32, until: u64) -> BTreeMap<u64, u64> {
        let queuing = Queuing::Queues {
            count: 64,
            hand_size: 1,
            length_limit: 10_000,
        };
        let (mut set, mut out) = (QueueSet::new(queuing, limit), vec![]);
        let (mut owner, mut ends, mut got) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        for flow in flows {
            let (hash, took, width) = *flow;
            for _ in 0..until * u64::from(limit) / took / u64::from(width) {
                if let Arrival::Execute(id) = set.arrive(ms(0), hash, Work::seats(width), &mut out) {
                    out.push(id);
                }
                owner.insert(set.next_id - 1, *flow);
            }
        }
        let mut now = 0;
        while now < until {
            for id in out.drain(..) {
                ends.insert((now + owner[&id].1, id));
            }
            let (end, id) = ends.pop_first().expect("there is always something to do");
            now = end;
            let (hash, took, width) = owner[&id];
            *got.entry(hash).or_default() += took * u64::from(width);
            set.finish(ms(now), id, &mut out);
        }
        got
    }

    #[test]
    fn flows_get_equal_shares_whatever_their_requests_are_like() {
        // One with long requests, one with short ones, one with wide ones.
        let got = contend(&[(0, 40, 1), (1, 5, 1), (2, 10, 4)], 4, 20_000);
        let (least, most) = (got.values().min().unwrap(), got.values().max().unwrap());
        assert!(got.len() == 3 && most * 4 < least * 5, "{got:?}");
    }

    #[derive(Clone, Debug)]
    enum Step {
        Arrive { flow: u64, seats: u32, final_seats: u32 },
        Finish(usize),
        Release(usize),
        Cancel(usize),
        Configure { limit: u32, queues: usize },
    }

    fn steps() -> impl Strategy<Value = Vec<(u64, Step)>> {
        let step = prop_oneof![
            6 => (0..20_u64, 1..6_u32, 0..6_u32)
                .prop_map(|(flow, seats, final_seats)| Step::Arrive { flow, seats, final_seats }),
            4 => any::<usize>().prop_map(Step::Finish),
            2 => any::<usize>().prop_map(Step::Release),
            1 => any::<usize>().prop_map(Step::Cancel),
            1 => (0..8_u32, 1..10_usize).prop_map(|(limit, queues)| Step::Configure { limit, queues }),
        ];
        proptest::collection::vec((0..5_u64, step), 1..200)
    }

    proptest! {
        /// Whatever happens: bounds hold, no seat is lost, and in the end everybody was served.
        #[test]
        fn nobody_is_lost_and_nothing_exceeds_its_bounds(steps in steps()) {
            let (mut set, mut out) = (QueueSet::new(QUEUES, 3), vec![]);
            let (mut waiting, mut executing, mut lingering) = (vec![], vec![], vec![]);
            let mut now = 0;
            let mut limit_max = 3;
            for (pause, step) in steps {
                now += pause;
                match step {
                    Step::Arrive { flow, seats, final_seats } => {
                        let afterwards = if final_seats > 0 { ms(2) } else { Duration::ZERO };
                        let work = Work { seats, final_seats, afterwards };
                        match set.arrive(ms(now), flow.wrapping_mul(0x9e37_79b9_7f4a_7c15), work, &mut out) {
                            Arrival::Execute(id) => executing.push(id),
                            Arrival::Wait(id) => waiting.push(id),
                            Arrival::Reject(_) => {}
                        }
                    }
                    Step::Finish(n) if !executing.is_empty() => {
                        let id = executing.swap_remove(n % executing.len());
                        if set.finish(ms(now), id, &mut out).is_some() {
                            lingering.push(id);
                        }
                    }
                    Step::Release(n) if !lingering.is_empty() => {
                        set.release(ms(now), lingering.swap_remove(n % lingering.len()), &mut out);
                    }
                    Step::Cancel(n) if !waiting.is_empty() => {
                        let id = waiting.swap_remove(n % waiting.len());
                        prop_assert!(set.cancel(ms(now), id, false, &mut out));
                    }
                    Step::Configure { limit, queues } => {
                        limit_max = limit_max.max(limit);
                        let queuing = Queuing::Queues { count: queues, hand_size: 1, length_limit: 4 };
                        set.configure(ms(now), queuing, limit, &mut out);
                    }
                    _ => {}
                }
                for id in out.drain(..) {
                    let place = waiting.iter().position(|other| *other == id);
                    prop_assert!(place.is_some(), "{id} was not waiting");
                    waiting.swap_remove(place.unwrap());
                    executing.push(id);
                }
                let totals = set.totals();
                prop_assert_eq!(totals.waiting as usize, waiting.len());
                prop_assert_eq!(totals.executing as usize, executing.len());
                let in_use: u32 = executing.iter().chain(&lingering).map(|id| set.request(*id).unwrap().work.max_seats()).sum();
                prop_assert_eq!(totals.seats_in_use, in_use);
                prop_assert!(in_use <= limit_max || executing.len() + lingering.len() == 1);
                prop_assert!(set.queues().iter().all(|q| q.waiting.len() <= 4));
                let active = set.queues().iter().filter(|q| q.is_active()).count();
                prop_assert_eq!(set.active_queues as usize, active);
            }
            set.configure(ms(now), QUEUES, 3, &mut out);
            loop {
                executing.append(&mut out);
                now += 1;
                if let Some(id) = lingering.pop() {
                    set.release(ms(now), id, &mut out);
                } else if let Some(id) = executing.pop() {
                    if set.finish(ms(now), id, &mut out).is_some() {
                        lingering.push(id);
                    }
                } else {
                    break;
                }
            }
            prop_assert!(set.is_idle(), "{:?}", set.totals());
            prop_assert_eq!(set.totals().seats_in_use, 0);
            prop_assert_eq!(set.demand(), 0);
        }
    }
}
