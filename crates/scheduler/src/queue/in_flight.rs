//! Events that happened while pods were being tried: one list for all of them, each remembers where it came in.

use std::collections::VecDeque;

use crate::framework::event::Event;

/// Finished tries that are not worth a sweep.
const SPARE: usize = 1024;

#[derive(Clone, Copy, Debug)]
struct Start {
    slot: u32,
    number: u64,
    /// First event that it did not see.
    seen: u64,
}

#[derive(Debug)]
pub(super) struct InFlightEvents {
    events: VecDeque<Event>,
    /// Number of the first event kept.
    first: u64,
    /// In the order of their starts, some of them over.
    starts: VecDeque<Start>,
    running: usize,
    kept_max: usize,
}

impl InFlightEvents {
    pub(super) fn new(kept_max: usize) -> InFlightEvents {
        InFlightEvents {
            events: VecDeque::new(),
            first: 0,
            starts: VecDeque::new(),
            running: 0,
            kept_max,
        }
    }

    pub(super) fn running(&self) -> usize {
        self.running
    }

    /// A try begins; what happens from here on is kept for it.
    pub(super) fn start(&mut self, slot: u32, number: u64) -> u64 {
        let seen = self.end();
        self.starts.push_back(Start { slot, number, seen });
        self.running += 1;
        seen
    }

    /// A try is over. `running` tells (by slot and number) which are not.
    pub(super) fn finish(&mut self, running: impl Fn(u32, u64) -> bool) {
        self.running -= 1;
        // One that takes minutes must not hold the records of all that came and went since.
        if self.starts.len() > 2 * self.running + SPARE {
            self.starts.retain(|s| running(s.slot, s.number));
        }
        while let Some(start) = self.starts.front()
            && !running(start.slot, start.number)
        {
            self.starts.pop_front();
        }
        let needed = self.starts.front().map_or(self.end(), |s| s.seen);
        while self.first < needed && self.events.pop_front().is_some() {
            self.first += 1;
        }
    }

    pub(super) fn record(&mut self, event: &Event) {
        if self.running == 0 {
            return;
        }
        self.events.push_back(event.clone());
        if self.events.len() > self.kept_max {
            self.events.pop_front();
            self.first += 1;
        }
    }

    fn end(&self) -> u64 {
        self.first + self.events.len() as u64
    }

    /// What happened since. None: too much.
    pub(super) fn since(&self, seen: u64) -> Option<impl Iterator<Item = &Event>> {
        let skip = usize::try_from(seen.checked_sub(self.first)?).ok()?;
        Some(self.events.range(skip.min(self.events.len())..))
    }

    #[cfg(test)]
    pub(super) fn kept(&self) -> (usize, usize) {
        (self.events.len(), self.starts.len())
    }
}
