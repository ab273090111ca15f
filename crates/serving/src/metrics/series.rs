//! Counters and histograms with labels, cheap enough for every scheduling attempt or call.

use std::hash::Hasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use rustc_hash::{FxHashMap, FxHasher};

use super::text;

/// Sums are kept as whole billionths, so that they can be added up without a lock.
const SUM_UNIT: f64 = 1e9;

/// Upper bounds: `start`, `start * factor`, … The product is taken step by step, as the labels `le` show all its digits.
pub struct Buckets {
    pub start: f64,
    pub factor: f64,
    pub count: usize,
}

impl Buckets {
    /// The upper bounds, lowest first, without +Inf.
    pub fn bounds(&self) -> Arc<[f64]> {
        let next = |bound: &f64| Some(bound * self.factor);
        std::iter::successors(Some(self.start), next).take(self.count).collect()
    }
}

/// A histogram that is observed without a lock.
pub struct Histogram {
    bounds: Arc<[f64]>,
    /// One for each bound, and one for what is above all of them.
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

impl Histogram {
    /// `bounds` are upper bounds, lowest first; +Inf is added.
    pub fn new(bounds: Arc<[f64]>) -> Histogram {
        Histogram {
            counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            bounds,
            sum: AtomicU64::new(0),
        }
    }

    /// Counts a value, which must not be negative.
    pub fn observe(&self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add((value * SUM_UNIT) as u64, Ordering::Relaxed);
    }
}

/// A metric's value for one combination of labels.
pub trait Series {
    /// Writes its samples; `labels` without braces.
    fn write(&self, out: &mut String, name: &str, labels: &str);
}

impl Series for AtomicU64 {
    fn write(&self, out: &mut String, name: &str, labels: &str) {
        text::line(out, name, labels, self.load(Ordering::Relaxed));
    }
}

impl Series for Histogram {
    fn write(&self, out: &mut String, name: &str, labels: &str) {
        let comma = if labels.is_empty() { "" } else { "," };
        let bucket = format!("{name}_bucket");
        let mut total = 0;
        for (count, bound) in self
            .counts
            .iter()
            .zip(self.bounds.iter().copied().chain([f64::INFINITY]))
        {
            total += count.load(Ordering::Relaxed);
            let le = format!("{labels}{comma}le=\"{}\"", text::float(bound));
            text::line(out, &bucket, &le, total);
        }
        let sum = self.sum.load(Ordering::Relaxed) as f64 / SUM_UNIT;
        text::line(out, &format!("{name}_sum"), labels, text::float(sum));
        text::line(out, &format!("{name}_count"), labels, total);
    }
}

/// The series of one metric, one for each combination of label values. Values come from configuration and code, never
/// from users, so there are few.
pub struct Family<T, const N: usize> {
    /// In the order of the alphabet, as they are written.
    names: [&'static str; N],
    make: Box<dyn Fn() -> T + Send + Sync>,
    /// By a hash of the values, to find them without making strings of them.
    series: RwLock<FxHashMap<u64, Vec<([Box<str>; N], Arc<T>)>>>,
}

impl<T: Series, const N: usize> Family<T, N> {
    /// `names` are in alphabetical order; `make` makes the series of a new combination of values.
    pub fn new(names: [&'static str; N], make: impl Fn() -> T + Send + Sync + 'static) -> Family<T, N> {
        Family {
            names,
            make: Box::new(make),
            series: RwLock::default(),
        }
    }

    /// Runs `act` on the series of these label values, which is made if it is new.
    pub fn with(&self, values: [&str; N], act: impl FnOnce(&T)) {
        let key = hash(values);
        let same = |held: &[Box<str>; N]| held.iter().zip(values).all(|(a, b)| **a == *b);
        if let Some((_, found)) = (self.series.read().get(&key)).and_then(|s| s.iter().find(|(held, _)| same(held))) {
            return act(found);
        }
        let mut series = self.series.write();
        let held = series.entry(key).or_default();
        if !held.iter().any(|(held, _)| same(held)) {
            held.push((values.map(Box::from), Arc::new((self.make)())));
        }
        let (_, found) = held.iter().find(|(held, _)| same(held)).expect("added above");
        act(found);
    }

    /// All series, sorted by their values.
    pub fn write(&self, out: &mut String, name: &str) {
        let mut all: Vec<([Box<str>; N], Arc<T>)> = self.series.read().values().flatten().cloned().collect();
        all.sort_by(|(a, _), (b, _)| a.cmp(b));
        for (values, series) in all {
            let pairs: Vec<String> = self.names.iter().zip(&values).map(|(n, v)| text::label(n, v)).collect();
            series.write(out, name, &pairs.join(","));
        }
    }
}

fn hash<const N: usize>(values: [&str; N]) -> u64 {
    let mut hasher = FxHasher::default();
    for value in values {
        hasher.write(value.as_bytes());
        hasher.write_u8(0xff);
    }
    hasher.finish()
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
    fn a_family_keeps_its_series_apart() {
        let family = Family::new(["a", "b"], AtomicU64::default);
        for values in [["x", "y"], ["xy", ""], ["x", "y"], ["", "xy"]] {
            family.with(values, |n| {
                n.fetch_add(1, Ordering::Relaxed);
            });
        }
        let mut out = String::new();
        family.write(&mut out, "m");
        let expected = "m{a=\"\",b=\"xy\"} 1\nm{a=\"x\",b=\"y\"} 2\nm{a=\"xy\",b=\"\"} 1\n";
        assert_eq!(out, expected);
    }
}
