//! The same queue as a list that is searched from end to end, and random stories told to both.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Active,
    Backoff,
    ErrorBackoff,
    Unschedulable,
    Gated,
    InFlight,
}

#[derive(Debug)]
struct Known {
    info: Arc<PodInfo>,
    at: At,
    since: i64,
    rejections: u32,
    errors: u32,
    by: BTreeSet<&'static str>,
    pending: BTreeSet<&'static str>,
    gate: Option<&'static str>,
    flushed: i64,
    /// While in flight.
    events: Vec<Event>,
    activated: bool,
}

struct Model<'a> {
    pods: BTreeMap<String, Known>,
    config: QueueConfig,
    plugins: &'a Plugins,
    now: i64,
    leftover: Option<i64>,
}

impl Model<'_> {
    fn hears(plugin: &str, event: &Event) -> bool {
        let kinds = registered().into_iter().find(|(name, _)| *name == plugin).unwrap().1;
        kinds.is_empty() || (kinds.iter()).any(|k| k.resource == event.resource && k.actions.meets(event.actions))
    }

    fn expiry(&self, pod: &Known) -> Option<i64> {
        let count = if pod.errors > 0 { pod.errors } else { pod.rejections };
        let max = self.config.max_backoff.as_millis() as f64;
        if max == 0.0 || count == 0 {
            return None;
        }
        let wait = (self.config.initial_backoff.as_millis() as f64 * 2f64.powi(count as i32 - 1)).min(max);
        let expiry = pod.since + wait as i64;
        Some(if self.config.pop_from_backoff {
            expiry / 1000 * 1000
        } else {
            expiry
        })
    }

    fn backs_off(&self, pod: &Known) -> bool {
        let now = if self.config.pop_from_backoff {
            self.now / 1000 * 1000
        } else {
            self.now
        };
        self.expiry(pod).is_some_and(|expiry| expiry >= now)
    }

    /// Some(true): at once.
    fn wanted(&self, pod: &Known, event: &Event) -> Option<bool> {
        let other = event.pods().1.is_some_and(|p| p.uid != pod.info.uid);
        if matches!(event.resource, Resource::OwnPod) && other {
            return None;
        }
        if event.resource == Resource::Any {
            return Some(false);
        }
        (pod.by.union(&pod.pending))
            .filter(|plugin| Model::hears(plugin, event))
            .filter(|plugin| self.plugins.hint(plugin, &pod.info, event) == Hint::Queue)
            .map(|plugin| pod.pending.contains(plugin))
            .max()
    }

    fn requeue(&mut self, uid: &str, wanted: Option<bool>, check_gate: bool) {
        let mut pod = self.pods.remove(uid).unwrap();
        let waits = wanted == Some(false) && self.backs_off(&pod);
        if wanted.is_none() {
            pod.at = if pod.gate.is_some() {
                At::Gated
            } else {
                At::Unschedulable
            };
        } else {
            let check_gate = check_gate && (!waits || self.config.pop_from_backoff);
            let verdict = if check_gate {
                self.plugins.pre_enqueue(&pod.info)
            } else {
                Ok(())
            };
            pod.gate = verdict.err().map(|(plugin, _)| plugin);
            pod.at = match pod.gate {
                Some(gate) => {
                    pod.by.insert(gate);
                    At::Gated
                }
                None if !waits => At::Active,
                None if pod.by.is_empty() && pod.pending.is_empty() => At::ErrorBackoff,
                None => At::Backoff,
            };
        }
        if matches!(pod.at, At::Gated | At::Unschedulable) {
            self.leftover.get_or_insert(self.now + 30_000);
        }
        self.pods.insert(uid.into(), pod);
    }

    fn add(&mut self, info: Arc<PodInfo>) {
        let uid = info.uid.to_string();
        let known = Known {
            info,
            at: At::Active,
            since: self.now,
            rejections: 0,
            errors: 0,
            by: BTreeSet::new(),
            pending: BTreeSet::new(),
            gate: None,
            flushed: 0,
            events: vec![],
            activated: false,
        };
        self.pods.insert(uid.clone(), known);
        self.requeue(&uid, Some(true), true);
    }

    fn update(&mut self, info: Arc<PodInfo>) {
        let uid = info.uid.to_string();
        let Some(pod) = self.pods.get_mut(&uid) else {
            return self.add(info);
        };
        let event = own_event(std::mem::replace(&mut pod.info, info.clone()), info);
        match pod.at {
            At::InFlight => self.record(&event),
            At::Gated | At::Unschedulable => {
                if let Some(wanted) = self.wanted(&self.pods[&uid], &event) {
                    self.requeue(&uid, Some(wanted), true);
                }
            }
            _ => {}
        }
    }

    fn record(&mut self, event: &Event) {
        for pod in self.pods.values_mut().filter(|p| p.at == At::InFlight) {
            pod.events.push(event.clone());
        }
    }

    fn event(&mut self, event: &Event) {
        let any = event.resource == Resource::Any;
        if !any && !registered().iter().any(|(plugin, _)| Model::hears(plugin, event)) {
            return;
        }
        let uids: Vec<String> = self.pods.keys().cloned().collect();
        for uid in uids {
            let pod = &self.pods[&uid];
            let open = |gate| any || Model::hears(gate, event);
            let waits = pod.at == At::Unschedulable || (pod.at == At::Gated && pod.gate.is_some_and(open));
            if waits && let Some(wanted) = self.wanted(pod, event) {
                self.requeue(&uid, Some(wanted), true);
            }
        }
        self.record(event);
    }

    /// What may be popped: several if they are equal.
    fn first(&self) -> Vec<&str> {
        let by_order = |p: &Known| (-p.info.priority(), p.since);
        let active = self.pods.iter().filter(|(_, p)| p.at == At::Active);
        if let Some(best) = active.clone().map(|(_, p)| by_order(p)).min() {
            return active
                .filter(|(_, p)| by_order(p) == best)
                .map(|(uid, _)| &**uid)
                .collect();
        }
        let by_expiry = |p: &Known| (self.expiry(p), by_order(p));
        let waiting = self.pods.iter();
        let waiting = waiting.filter(|(_, p)| p.at == At::Backoff && self.config.pop_from_backoff);
        let best = waiting.clone().map(|(_, p)| by_expiry(p)).min();
        waiting
            .filter(|(_, p)| Some(by_expiry(p)) == best)
            .map(|(uid, _)| &**uid)
            .collect()
    }

    fn popped(&mut self, uid: &str) {
        let pod = self.pods.get_mut(uid).unwrap();
        pod.at = At::InFlight;
        pod.events.clear();
        pod.activated = false;
    }

    fn failed(&mut self, uid: &str, by: &[&'static str], pending: &[&'static str]) {
        let Some(pod) = self.pods.get_mut(uid) else { return };
        let events = std::mem::take(&mut pod.events);
        pod.by = by.iter().copied().collect();
        pod.pending = pending.iter().copied().collect();
        (pod.gate, pod.since, pod.flushed) = (None, self.now, 0);
        let error = by.is_empty() && pending.is_empty();
        if error {
            pod.errors += 1;
        } else {
            pod.rejections += 1;
            pod.errors = 0;
        }
        let pod = &self.pods[uid];
        let lost = events.len() > self.config.in_flight_events_max;
        let wanted = if error || lost {
            Some(false)
        } else {
            let heard = events.iter().filter_map(|e| self.wanted(pod, e)).max();
            heard.or(pod.activated.then_some(false))
        };
        self.requeue(uid, wanted, true);
    }

    fn activate(&mut self, uid: &str) {
        let Some(pod) = self.pods.get_mut(uid) else { return };
        match pod.at {
            At::InFlight => pod.activated = true,
            At::Active => {}
            At::Gated | At::Unschedulable => self.requeue(uid, Some(true), true),
            At::Backoff | At::ErrorBackoff => self.requeue(uid, Some(true), !self.config.pop_from_backoff),
        }
    }

    fn flush(&mut self) {
        let uids: Vec<String> = self.pods.keys().cloned().collect();
        for uid in &uids {
            let pod = &self.pods[uid];
            if matches!(pod.at, At::Backoff | At::ErrorBackoff) && !self.backs_off(pod) {
                self.requeue(uid, Some(true), !self.config.pop_from_backoff);
            }
        }
        if self.leftover.is_none_or(|at| at > self.now) {
            return;
        }
        let now = self.now;
        let too_long = self.config.max_in_unschedulable.as_millis() as i64;
        for uid in &uids {
            let pod = self.pods.get_mut(uid).unwrap();
            let parked = matches!(pod.at, At::Gated | At::Unschedulable);
            if parked && now - pod.since.max(pod.flushed) > too_long {
                pod.flushed = now;
                self.requeue(uid, Some(false), true);
            }
        }
        let parked = self
            .pods
            .values()
            .any(|p| matches!(p.at, At::Gated | At::Unschedulable));
        self.leftover = parked.then_some(now + 30_000);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Add(usize, Shape),
    Update(usize, Shape),
    Delete(usize),
    Hold(usize),
    Release(usize),
    Pop,
    Done(usize),
    Fail(usize, usize),
    Event(usize),
    Flush,
    Activate(usize),
    Wait(i64),
}

const OUTCOMES: &[(&[&str], &[&str])] = &[
    (&[], &[]),
    (&["A"], &[]),
    (&["A"], &[]),
    (&["B"], &[]),
    (&["A", "B", "C"], &[]),
    (&["C"], &["A"]),
    (&[], &["B"]),
    (&["D"], &[]),
];

const EVENTS: &[(Resource, Actions)] = &[
    (Resource::Node, Actions::ADD),
    (Resource::Node, Actions::DELETE),
    (Resource::Node, Actions::UPDATE_LABEL),
    (Resource::AssignedPod, Actions::ADD),
    (Resource::AssignedPod, Actions::DELETE),
    (Resource::CsiNode, Actions::UPDATE_OTHER),
    (Resource::CsiDriver, Actions::ADD),
    (Resource::Any, Actions::UPDATE),
];

fn shape() -> impl Strategy<Value = Shape> {
    (0..3i32, 0..8usize, 0..2usize).prop_map(|(priority, gates, tolerations)| Shape {
        priority,
        gates: usize::from(gates == 0),
        tolerations,
    })
}

fn step() -> impl Strategy<Value = Step> {
    let uid = || 0..12usize;
    prop_oneof![
        6 => (uid(), shape()).prop_map(|(u, s)| Step::Add(u, s)),
        3 => (uid(), shape()).prop_map(|(u, s)| Step::Update(u, s)),
        1 => uid().prop_map(Step::Delete),
        1 => uid().prop_map(Step::Hold),
        1 => uid().prop_map(Step::Release),
        10 => Just(Step::Pop),
        1 => any::<prop::sample::Index>().prop_map(|i| Step::Done(i.index(1 << 16))),
        10 => (0..1usize << 16, 0..OUTCOMES.len()).prop_map(|(i, o)| Step::Fail(i, o)),
        6 => (0..EVENTS.len()).prop_map(Step::Event),
        4 => Just(Step::Flush),
        1 => uid().prop_map(Step::Activate),
        4 => prop_oneof![4 => 1..3000i64, 1 => 3000..20_000i64, 1 => 30_000..310_000i64].prop_map(Step::Wait),
    ]
}

struct Both<'a> {
    queue: SchedulingQueue,
    model: Model<'a>,
    in_flight: Vec<QueuedPod>,
}

impl Both<'_> {
    fn take(&mut self, step: &Step) {
        let name = |i: &usize| format!("pod{i}");
        let plugins = self.model.plugins;
        let now = at(self.model.now);
        match step {
            Step::Add(i, shape) => {
                let pod = pod(&name(i), *shape);
                self.queue.add(pod.clone(), now, plugins);
                self.model.update(pod);
            }
            Step::Update(i, shape) => {
                let pod = pod(&name(i), *shape);
                self.queue.update(pod.clone(), now, plugins);
                self.model.update(pod);
            }
            Step::Delete(i) => {
                assert_eq!(self.queue.delete(&name(i)), self.model.pods.remove(&name(i)).is_some());
                // What was in flight comes back too late, or not at all.
                self.in_flight.retain(|p| *p.pod.uid != *name(i));
            }
            Step::Hold(i) => drop(plugins.held.borrow_mut().insert(name(i))),
            Step::Release(i) => drop(plugins.held.borrow_mut().remove(&name(i))),
            Step::Pop => self.pop(),
            Step::Done(i) if !self.in_flight.is_empty() => {
                let pod = self.in_flight.swap_remove(i % self.in_flight.len());
                assert!(self.queue.done(&pod.pod.uid));
                self.model.pods.remove(&*pod.pod.uid);
            }
            Step::Fail(i, outcome) if !self.in_flight.is_empty() => {
                let pod = self.in_flight.swap_remove(i % self.in_flight.len());
                let (by, pending) = OUTCOMES[*outcome];
                self.model.failed(&pod.pod.uid, by, pending);
                self.queue
                    .failed(pod, AttemptFailure::Rejected { by, pending }, now, plugins);
            }
            Step::Done(_) | Step::Fail(..) => {}
            Step::Event(i) => {
                let (resource, actions) = EVENTS[*i];
                self.queue.on_event(&event(resource, actions), now, plugins);
                self.model.event(&event(resource, actions));
            }
            Step::Flush => {
                self.queue.flush(now, plugins);
                self.model.flush();
            }
            Step::Activate(i) => {
                self.queue.activate(&name(i), now, plugins);
                self.model.activate(&name(i));
            }
            Step::Wait(ms) => self.model.now += ms,
        }
    }

    fn pop(&mut self) {
        let first = self.model.first();
        assert_eq!(self.queue.is_ready(), !first.is_empty());
        match self.queue.pop() {
            None => assert!(first.is_empty(), "{first:?}"),
            Some(pod) => {
                assert!(first.contains(&&*pod.pod.uid), "{} but {first:?}", pod.pod.uid);
                self.model.popped(&pod.pod.uid);
                self.in_flight.push(pod);
            }
        }
    }

    fn check(&self) {
        let mut counts = Counts::default();
        for (uid, known) in &self.model.pods {
            let (count, place) = match known.at {
                At::Active => (&mut counts.active, Some(SubQueue::Active)),
                At::Backoff | At::ErrorBackoff => (&mut counts.backoff, Some(SubQueue::Backoff)),
                At::Unschedulable => (&mut counts.unschedulable, Some(SubQueue::Unschedulable)),
                At::Gated => (&mut counts.gated, Some(SubQueue::Gated)),
                At::InFlight => (&mut counts.in_flight, None),
            };
            *count += 1;
            let found = self.queue.get(uid);
            assert_eq!(found.map(|(queue, _)| queue), place, "{uid}: {known:?}");
            assert_eq!(self.queue.is_in_flight(uid), place.is_none());
            if let Some((_, pod)) = found {
                assert!(Arc::ptr_eq(&pod.pod, &known.info));
                assert_eq!(pod.gated_by, known.gate);
                let rejectors: BTreeSet<_> = self.queue.names(pod.rejectors()).collect();
                assert_eq!(rejectors, &known.by | &known.pending);
            }
        }
        assert_eq!(self.queue.counts(), counts);
        assert_eq!(self.queue.by_uid.len(), self.model.pods.len());
        let waiting = self.model.pods.len() - counts.in_flight;
        assert_eq!(self.queue.iter().count(), waiting);
        assert_eq!(self.queue.slots.len(), self.queue.free.len() + self.model.pods.len());
    }

    /// If the queue is flushed when it asks for it, every pod that is not gated is tried.
    fn drain(mut self) {
        for pod in std::mem::take(&mut self.in_flight) {
            self.queue.failed(pod, BY_A, at(self.model.now), self.model.plugins);
        }
        let mut now = at(self.model.now);
        for _ in 0..100 {
            while let Some(pod) = self.queue.pop() {
                self.queue.done(&pod.pod.uid);
            }
            let Some(next) = self.queue.next_deadline() else { break };
            now = now.max(next);
            self.queue.flush(now, self.model.plugins);
        }
        let left = self.queue.counts();
        let gated = left.gated;
        assert_eq!(
            left,
            Counts {
                gated,
                ..Default::default()
            }
        );
    }
}

proptest! {
    #[test]
    fn does_what_the_model_does(
        steps in prop::collection::vec(step(), 1..250),
        pop_from_backoff in prop::bool::weighted(0.7),
        max_backoff in prop_oneof![6 => Just(10u64), 1 => Just(0), 1 => Just(1)],
        in_flight_events_max in prop_oneof![Just(3usize), Just(1000)],
    ) {
        let plugins = Plugins::default();
        let config = QueueConfig {
            max_backoff: Duration::from_secs(max_backoff),
            pop_from_backoff,
            in_flight_events_max,
            ..Default::default()
        };
        let mut both = Both {
            queue: SchedulingQueue::new(config, registered()),
            model: Model { pods: BTreeMap::new(), config, plugins: &plugins, now: 1_700_000_000_123, leftover: None },
            in_flight: vec![],
        };
        for step in &steps {
            both.take(step);
            both.check();
        }
        plugins.held.borrow_mut().clear();
        both.drain();
    }
}
