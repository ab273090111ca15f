//! Counters, gauges and histograms with labels, cheap enough for every scheduling attempt, query or call.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use parking_lot::RwLock;

use super::text;

/// Sums of seconds are kept in nanoseconds, so that they can be added up without a lock.
const NANOS: f64 = 1e9;

/// Upper bounds of exponential buckets: `start`, `start * factor`, …
pub struct Buckets {
    /// The lowest bound.
    pub start: f64,
    /// Each bound is the one before times this.
    pub factor: f64,
    /// Number of bounds, without `+Inf`.
    pub count: usize,
}

impl Buckets {
    /// The bounds, ascending. The product is taken step by step, as in Kubernetes' components: the labels `le` show all
    /// its digits.
    pub fn bounds(&self) -> Arc<[f64]> {
        let next = |bound: &f64| Some(bound * self.factor);
        std::iter::successors(Some(self.start), next).take(self.count).collect()
    }
}

/// Counts of observations by bucket, and their sum. Lock-free; observations may be lost from neither.
pub struct Histogram {
    bounds: Arc<[f64]>,
    /// One for each bound, and one for what is above all of them.
    counts: Box<[AtomicU64]>,
    /// In parts of `1 / unit`.
    sum: AtomicU64,
    unit: f64,
}

impl Histogram {
    /// A histogram of seconds. `bounds` must ascend; `+Inf` is added. The sum is exact to a nanosecond and wraps after
    /// 584 years.
    pub fn new(bounds: Arc<[f64]>) -> Histogram {
        Histogram::with_unit(bounds, NANOS)
    }

    /// A histogram of whole numbers, such as bytes, whose sum would wrap too early in billionths.
    pub fn of_integers(bounds: Arc<[f64]>) -> Histogram {
        Histogram::with_unit(bounds, 1.0)
    }

    fn with_unit(bounds: Arc<[f64]>, unit: f64) -> Histogram {
        Histogram {
            counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            bounds,
            sum: AtomicU64::new(0),
            unit,
        }
    }

    /// Counts a value, which must not be negative. A value that equals a bound is in that bound's bucket.
    pub fn observe(&self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add((value * self.unit) as u64, Ordering::Relaxed);
    }

    /// Whether nothing was observed yet.
    pub fn is_empty(&self) -> bool {
        self.counts.iter().all(|count| count.load(Ordering::Relaxed) == 0)
    }
}

/// What can be written as the samples of a metric.
pub trait Series {
    /// Appends the samples of metric `name`. `labels` are rendered (`a="b",c="d"`), or empty.
    fn write(&self, out: &mut String, name: &str, labels: &str);
}

/// A counter.
impl Series for AtomicU64 {
    fn write(&self, out: &mut String, name: &str, labels: &str) {
        text::line(out, name, labels, self.load(Ordering::Relaxed));
    }
}

/// A gauge.
impl Series for AtomicI64 {
    fn write(&self, out: &mut String, name: &str, labels: &str) {
        text::line(out, name, labels, self.load(Ordering::Relaxed));
    }
}

impl<T: Series> Series for Arc<T> {
    fn write(&self, out: &mut String, name: &str, labels: &str) {
        T::write(self, out, name, labels);
    }
}

impl Series for Histogram {
    fn write(&self, out: &mut String, name: &str, labels: &str) {
        let counts: Vec<u64> = self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let sum = self.sum.load(Ordering::Relaxed) as f64 / self.unit;
        text::histogram(out, name, labels, &self.bounds, &counts, sum);
    }
}

/// The series of one metric, one for each combination of label values. Values come from configuration and code; where
/// clients can influence them, the family must be [`bounded`](Family::bounded).
pub struct Family<T, const N: usize> {
    names: [&'static str; N],
    make: Box<dyn Fn() -> T + Send + Sync>,
    series: RwLock<SeriesByHash<T, N>>,
    bound: Option<Bound<N>>,
}

/// By a hash of the values, to find them without making strings of them.
type SeriesByHash<T, const N: usize> = HashMap<u64, Vec<LabelledSeries<T, N>>, BuildHasherDefault<NoHasher>>;
type LabelledSeries<T, const N: usize> = ([Box<str>; N], Arc<T>);

struct Bound<const N: usize> {
    max_series: usize,
    overflow: [&'static str; N],
}

impl<T, const N: usize> Family<T, N> {
    /// A family without series. `names` are the label names in the order in which they are written (Kubernetes'
    /// components: that of the alphabet); `make` gives a new series.
    pub fn new(names: [&'static str; N], make: impl Fn() -> T + Send + Sync + 'static) -> Family<T, N> {
        Family {
            names,
            make: Box::new(make),
            series: RwLock::default(),
            bound: None,
        }
    }

    /// Holds at most `max_series` label sets: what has a further one is counted in the series labelled `overflow`.
    pub fn bounded(mut self, max_series: usize, overflow: [&'static str; N]) -> Family<T, N> {
        self.bound = Some(Bound { max_series, overflow });
        self
    }

    /// Calls `act` with the series of these label values, in the order of `names`; makes it if there is none yet. `act`
    /// runs under a lock of the family and must not use the family.
    pub fn with<R>(&self, values: [&str; N], act: impl FnOnce(&T) -> R) -> R {
        let key = hash(values);
        if let Some(found) = find(&self.series.read(), key, values) {
            return act(found);
        }
        let mut series = self.series.write();
        let is_full = |bound: &&Bound<N>| series.values().map(Vec::len).sum::<usize>() >= bound.max_series;
        let (key, values) = match self.bound.as_ref().filter(is_full) {
            Some(bound) if find(&series, key, values).is_none() => (hash(bound.overflow), bound.overflow),
            _ => (key, values),
        };
        if find(&series, key, values).is_none() {
            let made = (values.map(Box::from), Arc::new((self.make)()));
            series.entry(key).or_default().push(made);
        }
        act(find(&series, key, values).expect("added above"))
    }

    /// Appends the samples of all series of metric `name`, sorted by label values.
    pub fn write(&self, out: &mut String, name: &str)
    where
        T: Series,
    {
        self.write_part(out, name, |series| Some(series));
    }

    /// The same for a family whose series are several metrics with the same labels: `part` picks one of them, or nothing
    /// where there is nothing to report.
    pub fn write_part<P: Series>(&self, out: &mut String, name: &str, part: impl Fn(&T) -> Option<&P>) {
        let mut all: Vec<LabelledSeries<T, N>> = self.series.read().values().flatten().cloned().collect();
        all.sort_by(|(a, _), (b, _)| a.cmp(b));
        for (values, series) in all {
            let Some(part) = part(&series) else { continue };
            let pairs: Vec<String> = self.names.iter().zip(&values).map(|(n, v)| text::label(n, v)).collect();
            part.write(out, name, &pairs.join(","));
        }
    }
}

fn find<'a, T, const N: usize>(series: &'a SeriesByHash<T, N>, key: u64, values: [&str; N]) -> Option<&'a T> {
    let is_same = |held: &[Box<str>; N]| held.iter().zip(values).all(|(a, b)| **a == *b);
    let (_, found) = series.get(&key)?.iter().find(|(held, _)| is_same(held))?;
    Some(found)
}

/// Eight bytes at a time, multiplied: the values are few and not chosen by an attacker, and are compared anyway.
fn hash<const N: usize>(values: [&str; N]) -> u64 {
    const FACTOR: u64 = 0xf135_7aea_2e62_a9c5;
    let mut hash = 0_u64;
    for value in values {
        for chunk in value.as_bytes().chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            hash = hash.wrapping_add(u64::from_le_bytes(word)).wrapping_mul(FACTOR);
            hash ^= hash >> 32;
        }
        hash = hash.wrapping_add(0xff).wrapping_mul(FACTOR);
    }
    hash
}

/// For keys that are hashes.
#[derive(Default)]
struct NoHasher(u64);

impl Hasher for NoHasher {
    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are u64");
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_on_a_bound_is_below_it() {
        let histogram = Histogram::new(
            Buckets {
                start: 1.0,
                factor: 2.0,
                count: 3,
            }
            .bounds(),
        );
        for value in [0.0, 1.0, 1.5, 4.0, 4.5] {
            histogram.observe(value);
        }
        let mut out = String::new();
        histogram.write(&mut out, "h", "");
        let expected = "h_bucket{le=\"1\"} 2\nh_bucket{le=\"2\"} 3\nh_bucket{le=\"4\"} 4\nh_bucket{le=\"+Inf\"} 5\n\
                        h_sum 11\nh_count 5\n";
        assert_eq!(out, expected);
    }

    #[test]
    fn a_sum_of_bytes_does_not_wrap() {
        let histogram = Histogram::of_integers([1e9].into());
        (0..4).for_each(|_| histogram.observe(8e9));
        let mut out = String::new();
        histogram.write(&mut out, "h", "a=\"b\"");
        assert!(out.contains("h_sum{a=\"b\"} 32000000000\n"), "{out}");
    }

    #[test]
    fn a_family_keeps_its_series_apart() {
        let family = Family::new(["a", "b"], AtomicU64::default);
        for values in [["x", "y"], ["xy", ""], ["x", "y"], ["", "xy"]] {
            family.with(values, |n| n.fetch_add(1, Ordering::Relaxed));
        }
        let mut out = String::new();
        family.write(&mut out, "m");
        let expected = "m{a=\"\",b=\"xy\"} 1\nm{a=\"x\",b=\"y\"} 2\nm{a=\"xy\",b=\"\"} 1\n";
        assert_eq!(out, expected);
    }

    #[test]
    fn a_bounded_family_counts_the_rest_together() {
        let family = Family::new(["a"], AtomicU64::default).bounded(2, ["other"]);
        for value in ["x", "y", "z", "x", "w"] {
            family.with([value], |n| n.fetch_add(1, Ordering::Relaxed));
        }
        let mut out = String::new();
        family.write(&mut out, "m");
        assert_eq!(out, "m{a=\"other\"} 2\nm{a=\"x\"} 2\nm{a=\"y\"} 1\n");
    }
}
