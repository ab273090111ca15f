//! A bounded map that forgets what was used longest ago. Keys are hashes.

use std::collections::{BTreeMap, HashMap};

pub(super) struct Lru<V> {
    max: usize,
    /// With the turn in which it was used last.
    values: HashMap<u64, (u64, V)>,
    by_turn: BTreeMap<u64, u64>,
    turn: u64,
}

impl<V> Lru<V> {
    pub(super) fn new(max: usize) -> Lru<V> {
        Lru {
            max,
            values: HashMap::new(),
            by_turn: BTreeMap::new(),
            turn: 0,
        }
    }

    /// The value of that key, made if there is none, as the one that was used last.
    pub(super) fn entry(&mut self, key: u64, make: impl FnOnce() -> V) -> &mut V {
        self.turn += 1;
        let turn = self.turn;
        if let Some((used, _)) = self.values.get_mut(&key) {
            self.by_turn.remove(&std::mem::replace(used, turn));
        } else if self.values.len() >= self.max
            && let Some((_, oldest)) = self.by_turn.pop_first()
        {
            self.values.remove(&oldest);
        }
        self.by_turn.insert(turn, key);
        &mut self.values.entry(key).or_insert_with(|| (turn, make())).1
    }

    #[cfg(test)]
    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        self.values.values().map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_longest_ago_is_forgotten() {
        let mut lru = Lru::new(2);
        *lru.entry(1, || 'a') = 'A';
        lru.entry(2, || 'b');
        assert_eq!(*lru.entry(1, || '-'), 'A');
        lru.entry(3, || 'c');
        assert_eq!(*lru.entry(1, || '-'), 'A');
        assert_eq!(*lru.entry(2, || 'B'), 'B', "forgotten when 3 came");
        assert_eq!(*lru.entry(3, || 'C'), 'C', "forgotten when 2 came again");
        assert_eq!((lru.values().count(), lru.by_turn.len()), (2, 2));
    }
}
