//! Sets of completion indexes, as a Job's status writes them: `0,3-5,9`.
// Upstream: pkg/controller/job/indexed_job_utils.go (v1.36)

use std::fmt;

/// In increasing order, apart from each other by at least one index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Indexes {
    runs: Vec<(i64, i64)>,
}

impl Indexes {
    /// What can be read of it: indexes of `completions` and above do not count, and parts that are none are passed over.
    pub(super) fn parse(text: &str, completions: i64) -> Indexes {
        let runs = text.split(',').filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (i64, i64) = (first.parse().ok()?, last.parse().ok()?);
            let last = last.min(completions - 1);
            (0 <= first && first <= last).then_some((first, last))
        });
        Indexes::from_runs(runs.collect())
    }

    fn from_runs(mut runs: Vec<(i64, i64)>) -> Indexes {
        runs.sort_unstable();
        let mut joined: Vec<(i64, i64)> = Vec::with_capacity(runs.len());
        for (first, last) in runs {
            match joined.last_mut() {
                Some(before) if first <= before.1 + 1 => before.1 = before.1.max(last),
                _ => joined.push((first, last)),
            }
        }
        Indexes { runs: joined }
    }

    pub(super) fn union(&self, other: &Indexes) -> Indexes {
        Indexes::from_runs(self.runs.iter().chain(&other.runs).copied().collect())
    }

    pub(super) fn has(&self, index: i64) -> bool {
        let after = self.runs.partition_point(|run| run.1 < index);
        self.runs.get(after).is_some_and(|run| run.0 <= index)
    }

    pub(super) fn count(&self) -> i64 {
        self.runs.iter().map(|(first, last)| last - first + 1).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// How many indexes are in both.
    pub(super) fn common(&self, other: &Indexes) -> i64 {
        let (mut a, mut b, mut count) = (0, 0, 0);
        while let (Some(x), Some(y)) = (self.runs.get(a), other.runs.get(b)) {
            count += (x.1.min(y.1) - x.0.max(y.0) + 1).max(0);
            if x.1 <= y.1 {
                a += 1;
            } else {
                b += 1;
            }
        }
        count
    }

    /// The first `count` indexes below `completions` that are not in here.
    pub(super) fn missing(&self, completions: i64, count: usize) -> Vec<i64> {
        let mut missing = vec![];
        let mut next: i64 = 0;
        let end = [(completions, completions)];
        for (first, last) in self.runs.iter().chain(&end) {
            let room = i64::try_from(count - missing.len()).unwrap_or(i64::MAX);
            let gap_end = (*first).min(completions).min(next.saturating_add(room));
            missing.extend(next..gap_end);
            next = next.max(last + 1);
        }
        missing
    }
}

impl FromIterator<i64> for Indexes {
    fn from_iter<I: IntoIterator<Item = i64>>(indexes: I) -> Indexes {
        Indexes::from_runs(indexes.into_iter().map(|i| (i, i)).collect())
    }
}

impl fmt::Display for Indexes {
    /// Two neighbours are written one by one, three and more as a run.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (first, last)) in self.runs.iter().enumerate() {
            let comma = if n > 0 { "," } else { "" };
            match last - first {
                0 => write!(f, "{comma}{first}")?,
                1 => write!(f, "{comma}{first},{last}")?,
                _ => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn written_and_read() {
        for (text, completions, wanted) in [
            ("", 5, ""),
            ("0", 5, "0"),
            ("0,1", 5, "0,1"),
            ("0-1", 5, "0,1"),
            ("0-2,4", 5, "0-2,4"),
            ("0-3,4", 5, "0-4"),
            ("0,2,7-9", 8, "0,2,7"),
            ("7-9", 5, ""),
            ("a,2,b-3,4-", 9, "2"),
            ("5,1-2", 9, "1,2,5"),
        ] {
            assert_eq!(Indexes::parse(text, completions).to_string(), wanted, "{text}");
        }
    }

    #[test]
    fn the_first_that_are_missing() {
        for (text, completions, count, wanted) in [
            ("", 3, 9, vec![0, 1, 2]),
            ("", 3, 2, vec![0, 1]),
            ("", 0, 2, vec![]),
            ("0-2", 3, 1, vec![]),
            ("1,3-5", 9, 4, vec![0, 2, 6, 7]),
            ("1,3-5", 9, 0, vec![]),
        ] {
            assert_eq!(
                Indexes::parse(text, completions).missing(completions, count),
                wanted,
                "{text}"
            );
        }
    }

    fn some() -> impl Strategy<Value = BTreeSet<i64>> {
        prop::collection::btree_set(0i64..60, 0..40)
    }

    proptest! {
        #[test]
        fn they_are_sets(a in some(), b in some()) {
            let (x, y): (Indexes, Indexes) = (a.iter().copied().collect(), b.iter().copied().collect());
            prop_assert_eq!(&Indexes::parse(&x.to_string(), 60), &x);
            prop_assert_eq!(x.count(), a.len() as i64);
            prop_assert_eq!(x.common(&y), a.intersection(&b).count() as i64);
            prop_assert_eq!(x.union(&y), a.union(&b).copied().collect::<Indexes>());
            prop_assert!((-1..61).all(|i| x.has(i) == a.contains(&i)));
            let missing: Vec<i64> = (0..60).filter(|i| !a.contains(i)).take(7).collect();
            prop_assert_eq!(x.missing(60, 7), missing);
        }

        #[test]
        fn any_text_is_read(text in "[-,0-9a]{0,20}") {
            let read = Indexes::parse(&text, 50);
            prop_assert_eq!(Indexes::parse(&read.to_string(), 50), read);
        }
    }
}
