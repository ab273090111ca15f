//! Shuffle sharding: each flow has a hand of a few of the queues, so that a flow that fills all of its hand leaves most
//! others at least one queue of theirs. Upstream: util/shufflesharding.

use smallvec::SmallVec;

/// Upstream allows hands of up to 10, which validation enforces.
type Hand = SmallVec<[usize; 12]>;

/// Deals a hand from a deck of `deck` cards; the hash decides which.
pub(super) fn deal(mut hash: u64, deck: usize, hand: usize) -> Hand {
    let hand = hand.min(deck);
    let (mut cards, mut gone) = (Hand::new(), Hand::new());
    for i in 0..hand {
        let left = (deck - i) as u64;
        let mut card = (hash % left) as usize;
        hash /= left;
        // Counted among those that are left: each card before it that is gone, in ascending order, moves it on.
        let mut place = 0;
        while place < gone.len() && card >= gone[place] {
            card += 1;
            place += 1;
        }
        gone.insert(place, card);
        cards.push(card);
    }
    cards
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn hands_have_different_cards() {
        for hash in (0..2000_u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)) {
            for (deck, hand) in [(1, 1), (8, 8), (128, 6), (64, 4), (3, 10)] {
                let cards = deal(hash, deck, hand);
                assert_eq!(cards.len(), hand.min(deck));
                assert!(cards.iter().all(|card| *card < deck));
                assert_eq!(cards.iter().collect::<BTreeSet<_>>().len(), cards.len());
            }
        }
    }

    #[test]
    fn every_hand_is_as_likely() {
        // All pairs of a deck of four, in order, once.
        let hands: BTreeSet<Vec<usize>> = (0..12).map(|hash| deal(hash, 4, 2).to_vec()).collect();
        assert_eq!(hands.len(), 12);
    }
}
