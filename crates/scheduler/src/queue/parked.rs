//! Pods that wait for something to happen, in buckets of those that wait for the same.
//!
//! A bucket is everything that decides which events concern a pod: the plugins that rejected it, and the one that gates
//! it. There are few buckets however many pods there are, so an event reaches the pods that it may concern and no others.

use rustc_hash::FxHashMap;

use super::plugins::{PluginId, PluginSet};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Cause {
    pub rejectors: PluginSet,
    pub gate: Option<PluginId>,
}

impl Cause {
    /// A gated pod is of no interest to an event that cannot open its gate.
    fn concerned(self, interested: PluginSet) -> bool {
        !self.rejectors.and(interested).is_empty() && self.gate.is_none_or(|gate| interested.has(gate))
    }
}

#[derive(Debug)]
struct Bucket {
    cause: Cause,
    slots: Vec<u32>,
}

/// Where a parked pod is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    bucket: u32,
    at: u32,
}

#[derive(Debug, Default)]
pub(super) struct Parked {
    buckets: Vec<Bucket>,
    by_cause: FxHashMap<Cause, u32>,
    gated: usize,
    unschedulable: usize,
}

impl Parked {
    pub(super) fn gated(&self) -> usize {
        self.gated
    }

    pub(super) fn unschedulable(&self) -> usize {
        self.unschedulable
    }

    pub(super) fn is_empty(&self) -> bool {
        self.gated + self.unschedulable == 0
    }

    fn count(&mut self, cause: Cause) -> &mut usize {
        if cause.gate.is_some() {
            &mut self.gated
        } else {
            &mut self.unschedulable
        }
    }

    pub(super) fn insert(&mut self, cause: Cause, slot: u32) -> Spot {
        let bucket = *self.by_cause.entry(cause).or_insert_with(|| {
            self.buckets.push(Bucket { cause, slots: vec![] });
            index(self.buckets.len() - 1)
        });
        *self.count(cause) += 1;
        let slots = &mut self.buckets[bucket as usize].slots;
        slots.push(slot);
        Spot {
            bucket,
            at: index(slots.len() - 1),
        }
    }

    /// The slot that is on this spot now, if any.
    pub(super) fn remove(&mut self, spot: Spot) -> Option<u32> {
        let bucket = &mut self.buckets[spot.bucket as usize];
        bucket.slots.swap_remove(spot.at as usize);
        let moved = bucket.slots.get(spot.at as usize).copied();
        let cause = bucket.cause;
        *self.count(cause) -= 1;
        moved
    }

    pub(super) fn slots(&self) -> impl Iterator<Item = u32> + '_ {
        self.buckets.iter().flat_map(|b| b.slots.iter().copied())
    }

    pub(super) fn concerned(&self, interested: PluginSet) -> impl Iterator<Item = u32> + '_ {
        (self.buckets.iter())
            .filter(move |b| b.cause.concerned(interested))
            .flat_map(|b| b.slots.iter().copied())
    }
}

fn index(at: usize) -> u32 {
    u32::try_from(at).expect("fewer than four billion pods")
}
