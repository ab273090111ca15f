//! The index lists of indexed Jobs: `0,3-5,9`, increasing, each below the number of completions.

/// First and last index of a run, both included.
pub type Run = (i64, i64);

/// An index list that can't be read, in upstream's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct IndexesError(String);

crate::errors_as_text!(IndexesError);

/// The runs of a list in which every index is below `completions`.
pub fn parse(text: &str, completions: i64) -> Result<Vec<Run>, IndexesError> {
    let mut runs: Vec<Run> = vec![];
    for part in text.split(',').filter(|_| !text.is_empty()) {
        let run = parse_run(part, completions)?;
        if let Some(&(_, last)) = runs.last()
            && last >= run.0
        {
            return Err(not_increasing(last, run.0));
        }
        runs.push(run);
    }
    Ok(runs)
}

/// How many indexes there are in a list of runs.
pub fn total(runs: &[Run]) -> i64 {
    runs.iter().map(|(first, last)| last - first + 1).sum()
}

fn not_increasing(previous: i64, current: i64) -> IndexesError {
    IndexesError(format!(
        "non-increasing order, previous: {previous}, current: {current}"
    ))
}

fn parse_run(part: &str, completions: i64) -> Result<Run, IndexesError> {
    let index = |text: &str| -> Result<i64, IndexesError> {
        let no_number = |_| IndexesError(format!("cannot convert string to integer for index: {text:?}"));
        let n: i64 = text.parse().map_err(no_number)?;
        if n >= completions {
            return Err(IndexesError(format!("too large index: {text:?}")));
        }
        Ok(n)
    };
    match part.split('-').collect::<Vec<_>>().as_slice() {
        [one] => index(one).map(|n| (n, n)),
        [first, last] => {
            let (first, last) = (index(first)?, index(last)?);
            if first >= last {
                return Err(not_increasing(first, last));
            }
            Ok((first, last))
        }
        _ => Err(IndexesError(format!(
            "the fragment {part:?} violates the requirement that an index interval can have at most two parts separated by '-'"
        ))),
    }
}

/// The first index that stands in both lists. Parts that cannot be read are passed over: their format is judged apart.
pub fn first_common(a: &str, b: &str, completions: i64) -> Option<i64> {
    let readable =
        |text: &str| -> Vec<Run> { text.split(',').filter_map(|p| parse_run(p, completions).ok()).collect() };
    let (a, b) = (readable(a), readable(b));
    let (mut i, mut j) = (0, 0);
    while let (Some(x), Some(y)) = (a.get(i), b.get(j)) {
        if x.0 <= y.1 && y.0 <= x.1 {
            return Some(x.0.max(y.0));
        }
        if x.0 <= y.0 {
            i += 1;
        } else {
            j += 1;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn lists() {
        for (text, wanted) in [
            ("", Ok(vec![])),
            ("0", Ok(vec![(0, 0)])),
            ("0,2-4,6", Ok(vec![(0, 0), (2, 4), (6, 6)])),
            ("a", Err("cannot convert string to integer for index: \"a\"")),
            ("1-", Err("cannot convert string to integer for index: \"\"")),
            ("10", Err("too large index: \"10\"")),
            ("1-10", Err("too large index: \"10\"")),
            ("3-2", Err("non-increasing order, previous: 3, current: 2")),
            ("2,2", Err("non-increasing order, previous: 2, current: 2")),
            (
                "1-2-3",
                Err(
                    "the fragment \"1-2-3\" violates the requirement that an index interval can have at most two parts separated by '-'",
                ),
            ),
        ] {
            let wanted = wanted.map_err(|why| IndexesError(why.to_string()));
            assert_eq!(parse(text, 10), wanted, "{text}");
        }
        assert_eq!(total(&parse("0,2-4,6", 10).unwrap()), 5);
    }

    fn shown(set: &BTreeSet<i64>) -> String {
        let mut runs: Vec<Run> = vec![];
        for &n in set {
            match runs.last_mut() {
                Some(run) if run.1 + 1 == n => run.1 = n,
                _ => runs.push((n, n)),
            }
        }
        let parts: Vec<String> = runs
            .iter()
            .map(|(a, b)| if a == b { a.to_string() } else { format!("{a}-{b}") })
            .collect();
        parts.join(",")
    }

    proptest! {
        #[test]
        fn lists_mean_sets(a in prop::collection::btree_set(0i64..40, 0..20), b in prop::collection::btree_set(0i64..40, 0..20)) {
            prop_assert_eq!(total(&parse(&shown(&a), 40).unwrap()), a.len() as i64);
            let common = a.intersection(&b).next().copied();
            prop_assert_eq!(first_common(&shown(&a), &shown(&b), 40), common);
        }
    }
}
