//! Which endpoint has which number, so that a chain can draw one by lot and a change moves as few as possible.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use rustc_hash::FxHashSet;

use super::ruleset::Range;

/// Numbers not given away, in powers of two.
#[derive(Clone, Debug, Default)]
pub struct Slots {
    /// By length.
    free: BTreeMap<u32, Vec<u32>>,
    /// Everything from here on is free.
    next: u32,
    /// Ranges that were found in the kernel and are spoken for, by their first number.
    claimed: BTreeMap<u32, u32>,
}

const SMALLEST: u32 = 4;

impl Slots {
    /// Takes a range that a rule in the kernel has. None if it can't be: another has some of it.
    pub fn claim(&mut self, range: Range) -> Option<Range> {
        let end = range.first.checked_add(range.length)?;
        let before = self.claimed.range(..end).next_back();
        if !range.length.is_power_of_two() || before.is_some_and(|(first, length)| first + length > range.first) {
            return None;
        }
        self.claimed.insert(range.first, range.length);
        self.next = self.next.max(end);
        Some(range)
    }

    /// Gives none of these away until then: a chain that is about to go may still draw from them.
    pub fn keep_off(&mut self, range: Range) {
        self.next = self.next.max(range.first.saturating_add(range.length));
    }

    /// None once four thousand million are given away.
    pub fn take(&mut self, count: usize) -> Option<Range> {
        let length = u32::try_from(count).ok()?.max(SMALLEST).checked_next_power_of_two()?;
        if let Some(first) = self.free.get_mut(&length).and_then(Vec::pop) {
            return Some(Range { first, length });
        }
        let first = self.next;
        self.next = first.checked_add(length)?;
        Some(Range { first, length })
    }

    pub fn give_back(&mut self, range: Range) {
        self.free.entry(range.length).or_default().push(range.first);
    }
}

/// The endpoints of a chain, by their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    pub range: Range,
    pub order: Vec<SocketAddr>,
}

impl Layout {
    /// Endpoints keep their numbers as far as can be. The count of them is what is drawn from, so there are no holes:
    /// one that went is replaced by a new one, or by one from the end. `wanted` has each once and is not empty.
    pub fn new(old: Option<&Layout>, wanted: &[SocketAddr], slots: &mut Slots) -> Option<Layout> {
        let fits = old.filter(|old| old.range.length as usize >= wanted.len());
        let range = match fits {
            Some(old) => old.range,
            None => slots.take(wanted.len())?,
        };
        let old = old.map_or(&[][..], |old| &old.order[..]);
        if old == wanted {
            return Some(Layout {
                range,
                order: wanted.to_vec(),
            });
        }
        let here: FxHashSet<SocketAddr> = wanted.iter().copied().collect();
        let kept = old
            .iter()
            .take(wanted.len())
            .map(|address| here.contains(address).then_some(*address));
        let mut order: Vec<Option<SocketAddr>> = kept.collect();
        order.resize(wanted.len(), None);
        let placed: FxHashSet<SocketAddr> = order.iter().flatten().copied().collect();
        let mut others = wanted.iter().filter(|address| !placed.contains(*address));
        let order = order
            .into_iter()
            .filter_map(|place| place.or_else(|| others.next().copied()))
            .collect();
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

    #[test]
    fn endpoints_keep_their_numbers() {
        let mut slots = Slots::default();
        let first = Layout::new(None, &addresses(&[1, 2, 3]), &mut slots).unwrap();
        assert_eq!(first.range, Range { first: 0, length: 4 });
        assert_eq!(first.order, addresses(&[1, 2, 3]));

        let replaced = Layout::new(Some(&first), &addresses(&[2, 3, 9]), &mut slots).unwrap();
        assert_eq!(
            (replaced.range, replaced.order.clone()),
            (first.range, addresses(&[9, 2, 3]))
        );

        let fewer = Layout::new(Some(&replaced), &addresses(&[2, 3]), &mut slots).unwrap();
        assert_eq!(fewer.order, addresses(&[3, 2]));

        let more = Layout::new(Some(&fewer), &addresses(&[2, 3, 4, 5, 6]), &mut slots).unwrap();
        assert_eq!(more.range, Range { first: 4, length: 8 });
        assert_eq!(more.order, addresses(&[3, 2, 4, 5, 6]));
    }

    #[test]
    fn ranges_never_overlap() {
        let mut slots = Slots::default();
        assert!(slots.claim(Range { first: 8, length: 8 }).is_some());
        assert!(slots.claim(Range { first: 12, length: 4 }).is_none());
        assert!(slots.claim(Range { first: 4, length: 8 }).is_none());
        assert!(slots.claim(Range { first: 5, length: 3 }).is_none());
        assert!(
            slots
                .claim(Range {
                    first: u32::MAX,
                    length: 4
                })
                .is_none()
        );
        assert!(slots.claim(Range { first: 4, length: 4 }).is_some());
        assert_eq!(slots.take(5), Some(Range { first: 16, length: 8 }));
        slots.give_back(Range { first: 16, length: 8 });
        assert_eq!(slots.take(8), Some(Range { first: 16, length: 8 }));
        assert_eq!(slots.take(usize::MAX), None);
    }
}
