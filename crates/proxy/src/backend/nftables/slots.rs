//! Which endpoint has which number, so that a chain can draw one by lot and a change moves as few as possible.
//!
//! Numbers are in shards, one map each. Shards are small because the kernel walks a map's elements for each new rule
//! that looks something up in it, and those rules for each new element.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use rustc_hash::FxHashSet;

use super::ruleset::Range;

/// How many numbers a shard has.
const LENGTH: u32 = 1 << 16;
/// How many ranges a shard has at most, which is how many rules look something up in its map.
const RANGES: u32 = 128;
const SMALLEST: u32 = 4;

/// The shard that a number is in.
pub(super) fn shard_of(number: u32) -> u32 {
    number / LENGTH
}

/// Numbers given away, in ranges whose lengths are powers of two.
#[derive(Clone, Debug, Default)]
pub(super) struct Slots {
    shards: BTreeMap<u32, Shard>,
}

#[derive(Clone, Debug, Default)]
struct Shard {
    /// How many ranges are given away.
    used: u32,
    /// First numbers of ranges that came back, by their length.
    free: BTreeMap<u32, Vec<u32>>,
    /// Everything from here on is free, counted from the shard's first.
    next: u32,
    /// Ranges that were found in the kernel and are spoken for, by their first number.
    claimed: BTreeMap<u32, u32>,
}

impl Slots {
    /// Takes a range that a rule in the kernel has. None if it can't be: another has some of it.
    pub(super) fn claim(&mut self, range: Range) -> Option<Range> {
        let end = range.first.checked_add(range.length)?;
        let shard = shard_of(range.first);
        if !range.length.is_power_of_two() || shard_of(end - 1) != shard {
            return None;
        }
        let shard = self.shards.entry(shard).or_default();
        let before = shard.claimed.range(..end).next_back();
        if before.is_some_and(|(first, length)| first + length > range.first) {
            return None;
        }
        shard.claimed.insert(range.first, range.length);
        shard.next = shard.next.max(range.first % LENGTH + range.length);
        shard.used += 1;
        Some(range)
    }

    /// Gives none of these away: a chain that is about to go may still draw from them.
    pub(super) fn keep_off(&mut self, range: Range) {
        let shard = self.shards.entry(shard_of(range.first)).or_default();
        let end = (range.first % LENGTH).saturating_add(range.length);
        shard.next = shard.next.max(end.min(LENGTH));
    }

    /// None if there are none left: a shard has room for the largest, and there are as many shards as a shard has
    /// numbers.
    pub(super) fn take(&mut self, count: usize) -> Option<Range> {
        let length = u32::try_from(count).ok()?.max(SMALLEST).checked_next_power_of_two()?;
        let mut unused = 0;
        for (number, shard) in &mut self.shards {
            if let Some(range) = shard.take(*number, length) {
                return Some(range);
            }
            if *number == unused {
                unused += 1;
            }
        }
        if unused >= u32::MAX / LENGTH {
            return None;
        }
        self.shards.entry(unused).or_default().take(unused, length)
    }

    pub(super) fn give_back(&mut self, range: Range) {
        let number = shard_of(range.first);
        let Some(shard) = self.shards.get_mut(&number) else {
            return;
        };
        shard.used -= 1;
        if shard.used == 0 {
            self.shards.remove(&number);
        } else {
            shard.free.entry(range.length).or_default().push(range.first);
        }
    }

    /// How many ranges of a shard are given away.
    #[cfg(test)]
    fn used(&self, shard: u32) -> u32 {
        self.shards.get(&shard).map_or(0, |shard| shard.used)
    }
}

impl Shard {
    fn take(&mut self, number: u32, length: u32) -> Option<Range> {
        if self.used >= RANGES {
            return None;
        }
        let first = match self.free.get_mut(&length).and_then(Vec::pop) {
            Some(first) => first,
            None => {
                let end = self.next.checked_add(length).filter(|end| *end <= LENGTH)?;
                let first = number * LENGTH + self.next;
                self.next = end;
                first
            }
        };
        self.used += 1;
        Some(Range { first, length })
    }
}

/// The endpoints of a chain, by their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub range: Range,
    pub order: Vec<SocketAddr>,
}

impl Layout {
    /// Endpoints keep their numbers as far as can be. The count of them is what is drawn from, so there are no holes:
    /// one that went is replaced by a new one, or by one from the end. `wanted` has each once and is not empty.
    pub(super) fn new(old: Option<&Layout>, wanted: &[SocketAddr], slots: &mut Slots) -> Option<Layout> {
        let fits = old.filter(|old| old.range.length as usize >= wanted.len());
        let range = match fits {
            Some(old) => old.range,
            None => slots.take(wanted.len())?,
        };
        let old = old.map_or(&[][..], |old| &old.order[..]);
        if old == wanted {
            let order = wanted.to_vec();
            return Some(Layout { range, order });
        }
        let here: FxHashSet<SocketAddr> = wanted.iter().copied().collect();
        let kept = old.iter().take(wanted.len());
        let mut order: Vec<Option<SocketAddr>> =
            kept.map(|address| here.contains(address).then_some(*address)).collect();
        order.resize(wanted.len(), None);
        let placed: FxHashSet<SocketAddr> = order.iter().flatten().copied().collect();
        let mut others = wanted.iter().filter(|address| !placed.contains(*address));
        let filled = order.into_iter().map(|place| place.or_else(|| others.next().copied()));
        let order = filled.flatten().collect();
        Some(Layout { range, order })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(numbers: &[u8]) -> Vec<SocketAddr> {
        let address = |n: &u8| SocketAddr::from(([10, 0, 0, *n], 80));
        numbers.iter().map(address).collect()
    }

    fn range(first: u32, length: u32) -> Range {
        Range { first, length }
    }

    #[test]
    fn endpoints_keep_their_numbers() {
        let mut slots = Slots::default();
        let first = Layout::new(None, &addresses(&[1, 2, 3]), &mut slots).unwrap();
        assert_eq!(first.range, range(0, 4));
        assert_eq!(first.order, addresses(&[1, 2, 3]));

        let replaced = Layout::new(Some(&first), &addresses(&[2, 3, 9]), &mut slots).unwrap();
        assert_eq!(
            (replaced.range, replaced.order.clone()),
            (first.range, addresses(&[9, 2, 3]))
        );

        let fewer = Layout::new(Some(&replaced), &addresses(&[2, 3]), &mut slots).unwrap();
        assert_eq!(fewer.order, addresses(&[3, 2]));

        let more = Layout::new(Some(&fewer), &addresses(&[2, 3, 4, 5, 6]), &mut slots).unwrap();
        assert_eq!(more.range, range(4, 8));
        assert_eq!(more.order, addresses(&[3, 2, 4, 5, 6]));
    }

    #[test]
    fn ranges_never_overlap() {
        let mut slots = Slots::default();
        assert!(slots.claim(range(8, 8)).is_some());
        for overlapping in [
            range(12, 4),
            range(4, 8),
            range(5, 3),
            range(u32::MAX, 4),
            range(LENGTH - 4, 8),
        ] {
            assert!(slots.claim(overlapping).is_none(), "{overlapping:?}");
        }
        assert!(slots.claim(range(4, 4)).is_some());
        assert_eq!(slots.take(5), Some(range(16, 8)));
        slots.give_back(range(16, 8));
        assert_eq!(slots.take(8), Some(range(16, 8)));
        slots.keep_off(range(24, 8));
        assert_eq!(slots.take(1), Some(range(32, 4)));
        assert_eq!(slots.take(usize::MAX), None);
        assert_eq!(slots.take(LENGTH as usize + 1), None);
    }

    #[test]
    fn shards_are_small_and_go_when_empty() {
        let mut slots = Slots::default();
        let taken: Vec<Range> = (0..RANGES + 1).map(|_| slots.take(5).unwrap()).collect();
        assert_eq!((slots.used(0), slots.used(1)), (RANGES, 1));
        assert_eq!(taken.last(), Some(&range(LENGTH, 8)));
        // Too long for what is left of the second.
        assert_eq!(slots.take(LENGTH as usize), Some(range(2 * LENGTH, LENGTH)));
        for range in taken {
            slots.give_back(range);
        }
        assert_eq!((slots.used(0), slots.used(1), slots.used(2)), (0, 0, 1));
        assert_eq!(slots.take(1), Some(range(0, 4)));
    }
}
