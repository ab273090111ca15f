//! A priority queue whose entries can be taken back.
//!
//! Entries carry their key, so that sifting touches nothing but the heap itself. Taking one back only tells the lane
//! that it is stale; stale entries are dropped when they reach the top, or all at once when they are the majority.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Stale entries that are not worth a sweep.
const SPARE: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Ticket<K> {
    key: K,
    /// Never given twice: equal keys go first come, first served.
    number: u64,
    slot: u32,
}

/// Smallest key first. The top is never stale.
#[derive(Debug)]
pub(super) struct Lane<K> {
    heap: BinaryHeap<Reverse<Ticket<K>>>,
    live: usize,
}

impl<K: Ord + Copy> Lane<K> {
    pub(super) fn new() -> Lane<K> {
        Lane {
            heap: BinaryHeap::new(),
            live: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.live
    }

    pub(super) fn push(&mut self, key: K, number: u64, slot: u32) {
        self.heap.push(Reverse(Ticket { key, number, slot }));
        self.live += 1;
    }

    pub(super) fn peek(&self) -> Option<(K, u32)> {
        self.heap.peek().map(|Reverse(t)| (t.key, t.slot))
    }

    /// An entry is stale from now on. `valid` tells (by slot and number) which are not.
    pub(super) fn taken_back(&mut self, valid: impl Fn(u32, u64) -> bool) {
        self.live -= 1;
        if self.heap.len() > 2 * self.live + SPARE {
            self.heap.retain(|Reverse(t)| valid(t.slot, t.number));
        }
        while let Some(Reverse(top)) = self.heap.peek()
            && !valid(top.slot, top.number)
        {
            self.heap.pop();
        }
    }
}
