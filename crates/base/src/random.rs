//! A small seeded random source (SplitMix64): reproducible where a seed is given, unpredictable enough for name
//! suffixes and tie-breaking where it is not. Never used for keys or tokens.

use std::hash::{BuildHasher, RandomState};

/// A source of numbers; a clone goes on with the same ones.
#[derive(Clone, Debug)]
pub struct Random(u64);

/// Kubernetes' alphabet for generated names: no vowels and no look-alikes, so no accidental words.
const NAME_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

impl Random {
    /// The same numbers for the same seed, on every machine.
    pub fn seeded(seed: u64) -> Random {
        Random(seed)
    }

    /// Seeded by the process-wide hash keys, which the standard library draws from the operating system.
    pub fn from_entropy() -> Random {
        Random(RandomState::new().hash_one(std::thread::current().id()))
    }

    /// The next number, of all that there are.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in `0..bound`; `bound` must not be zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "below() needs a positive bound");
        self.next_u64() % bound
    }

    /// A suffix for `generateName`.
    pub fn name_suffix(&mut self, len: usize) -> String {
        (0..len)
            .map(|_| NAME_ALPHABET[self.below(NAME_ALPHABET.len() as u64) as usize] as char)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_same_numbers() {
        let (mut a, mut b) = (Random::seeded(7), Random::seeded(7));
        assert_eq!(
            (0..5).map(|_| a.next_u64()).collect::<Vec<_>>(),
            (0..5).map(|_| b.next_u64()).collect::<Vec<_>>()
        );
        assert_eq!(a.name_suffix(5).len(), 5);
    }
}
