//! Sets of CPUs, written as the kernel does: `0-3,7`.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::{BitAnd, BitOr, Sub};
use std::str::FromStr;

/// More than any machine has; keeps a typing error from filling memory.
const MOST: u32 = 65_536;

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CpuSet(BTreeSet<u32>);

impl CpuSet {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    pub fn is_subset(&self, of: &CpuSet) -> bool {
        self.0.is_subset(&of.0)
    }

    pub fn overlaps(&self, other: &CpuSet) -> bool {
        !self.0.is_disjoint(&other.0)
    }

    pub fn pop_last(&mut self) {
        self.0.pop_last();
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<T: IntoIterator<Item = u32>>(cpus: T) -> CpuSet {
        CpuSet(cpus.into_iter().collect())
    }
}

impl BitOr for &CpuSet {
    type Output = CpuSet;
    fn bitor(self, other: &CpuSet) -> CpuSet {
        CpuSet(&self.0 | &other.0)
    }
}

impl BitAnd for &CpuSet {
    type Output = CpuSet;
    fn bitand(self, other: &CpuSet) -> CpuSet {
        CpuSet(&self.0 & &other.0)
    }
}

impl Sub for &CpuSet {
    type Output = CpuSet;
    fn sub(self, other: &CpuSet) -> CpuSet {
        CpuSet(&self.0 - &other.0)
    }
}

/// What is wrong with a list of CPUs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CpuSetError {
    #[error("{0:?} is not a CPU number or range")]
    NotANumber(String),
    #[error("{0:?} is not a valid CPU range")]
    Reversed(String),
}

impl FromStr for CpuSet {
    type Err = CpuSetError;

    fn from_str(text: &str) -> Result<CpuSet, CpuSetError> {
        let mut cpus = BTreeSet::new();
        if text.trim().is_empty() {
            return Ok(CpuSet(cpus));
        }
        for part in text.split(',') {
            let part = part.trim();
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| match text.trim().parse::<u32>() {
                Ok(cpu) if cpu < MOST => Ok(cpu),
                _ => Err(CpuSetError::NotANumber(part.to_string())),
            };
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(CpuSetError::Reversed(part.to_string()));
            }
            cpus.extend(first..=last);
        }
        Ok(CpuSet(cpus))
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for cpu in self.iter() {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == cpu => *last = cpu,
                _ => ranges.push((cpu, cpu)),
            }
        }
        for (place, (first, last)) in ranges.into_iter().enumerate() {
            let comma = if place > 0 { "," } else { "" };
            match first == last {
                true => write!(f, "{comma}{first}")?,
                false => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists_of_the_kernel() {
        for (text, shown) in [
            ("", ""),
            ("0-3,7", "0-3,7"),
            ("3,1,2", "1-3"),
            (" 5 - 5 \n", "5"),
            ("0,2", "0,2"),
        ] {
            assert_eq!(text.parse::<CpuSet>().unwrap().to_string(), shown, "{text:?}");
        }
        for text in ["a", "1-", "3-1", "0,,1", "-1", "0-4000000000"] {
            assert!(text.parse::<CpuSet>().is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(cpus in proptest::collection::btree_set(0u32..200, 0..40)) {
            let set: CpuSet = cpus.into_iter().collect();
            prop_assert_eq!(set.to_string().parse::<CpuSet>().unwrap(), set);
        }
    }
}
