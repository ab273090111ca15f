//! Reads the Prometheus text format back and checks it; for the tests of what components expose.

use std::collections::BTreeMap;
use std::fmt;

/// The first line or metric of an exposition that is wrong, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpositionError(String);

impl fmt::Display for ExpositionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ExpositionError {}

/// Rendered labels by name.
pub type Labels = BTreeMap<String, String>;

/// One metric.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MetricFamily {
    /// `counter`, `gauge` or `histogram`.
    pub kind: String,
    /// Its HELP, as written.
    pub help: String,
    /// In the order in which they are written.
    pub samples: Vec<Sample>,
}

/// One line of a metric.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// What follows the family's name: nothing, or `_bucket`, `_sum` or `_count` of a histogram.
    pub suffix: String,
    /// Unescaped.
    pub labels: Labels,
    /// The value.
    pub value: f64,
}

impl MetricFamily {
    /// The value of the plain sample with exactly these labels.
    pub fn value(&self, labels: &[(&str, &str)]) -> Option<f64> {
        let is_same = |sample: &&Sample| {
            let mut held = sample
                .labels
                .iter()
                .map(|(name, value)| (name.as_str(), value.as_str()));
            sample.suffix.is_empty() && sample.labels.len() == labels.len() && held.all(|pair| labels.contains(&pair))
        };
        self.samples.iter().find(is_same).map(|sample| sample.value)
    }

    fn of(&self, suffix: &'static str) -> impl Iterator<Item = &Sample> {
        self.samples.iter().filter(move |sample| sample.suffix == suffix)
    }
}

/// The metrics of an exposition by name. It is an error if there is a metric without
/// HELP or TYPE or with two, samples apart from their TYPE, a series twice, a sample that does not fit the type, a
/// counter not called `_total`, a histogram whose buckets are not cumulative, do not end at `+Inf` with the count, or
/// that lacks `_sum` or `_count`.
pub fn parse(text: &str) -> Result<BTreeMap<String, MetricFamily>, ExpositionError> {
    let mut families = BTreeMap::<String, MetricFamily>::new();
    let mut current = String::new();
    for line in text.lines() {
        let wrong = |what: &str| ExpositionError(format!("{what}: {line}"));
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').ok_or_else(|| wrong("HELP is empty"))?;
            let family = MetricFamily {
                help: help.to_string(),
                ..MetricFamily::default()
            };
            if families.insert(name.to_string(), family).is_some() {
                return Err(wrong("metric has two HELP lines"));
            }
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').ok_or_else(|| wrong("TYPE is empty"))?;
            let family = families.get_mut(name).ok_or_else(|| wrong("TYPE without HELP"))?;
            if !std::mem::replace(&mut family.kind, kind.to_string()).is_empty() {
                return Err(wrong("metric has two TYPE lines"));
            }
            current = name.to_string();
        } else {
            let sample = parse_sample(line, &current).ok_or_else(|| wrong("sample is malformed or not of its TYPE"))?;
            let family = families.get_mut(&current).ok_or_else(|| wrong("sample without TYPE"))?;
            family.samples.push(sample);
        }
    }
    for (name, family) in &families {
        check(name, family).map_err(|what| ExpositionError(format!("{name}: {what}")))?;
    }
    Ok(families)
}

fn parse_sample(line: &str, family: &str) -> Option<Sample> {
    let (mut series, mut value) = line.rsplit_once(' ')?;
    // Behind the value there may be a timestamp, in milliseconds.
    if let Some((before, number)) = series.rsplit_once(' ')
        && number.parse::<f64>().is_ok()
    {
        value.parse::<i64>().ok()?;
        (series, value) = (before, number);
    }
    let (name, labels) = match series.split_once('{') {
        Some((name, labels)) => (name, parse_labels(labels.strip_suffix('}')?)?),
        None => (series, Labels::new()),
    };
    Some(Sample {
        suffix: name.strip_prefix(family)?.to_string(),
        labels,
        value: value.parse().ok()?,
    })
}

/// Splits `a="b",c="d"`; none if a label is there twice.
fn parse_labels(mut text: &str) -> Option<Labels> {
    let mut labels = Labels::new();
    while !text.is_empty() {
        let (name, rest) = text.split_once("=\"")?;
        let (value, rest) = parse_value(rest)?;
        if labels.insert(name.to_string(), value).is_some() {
            return None;
        }
        text = match rest.strip_prefix(',') {
            Some(rest) => rest,
            None if rest.is_empty() => rest,
            None => return None,
        };
    }
    Some(labels)
}

/// A label's value up to its closing quote, and what follows it.
fn parse_value(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(match characters.next()?.1 {
                'n' => '\n',
                other => other,
            }),
            other => value.push(other),
        }
    }
    None
}

/// Counters that Kubernetes calls otherwise than Prometheus would have it.
const UPSTREAM_NAMES: [&str; 3] = [
    "apiserver_admission_webhook_fail_open_count",
    "apiserver_admission_webhook_rejection_count",
    "kubelet_evictions",
];

fn check(name: &str, family: &MetricFamily) -> Result<(), String> {
    let mut series: Vec<_> = family.samples.iter().map(|s| (&s.suffix, &s.labels)).collect();
    series.sort();
    if !series.is_sorted_by(|a, b| a < b) {
        return Err("a series is there twice".to_string());
    }
    let is_plain = family.samples.iter().all(|sample| sample.suffix.is_empty());
    match family.kind.as_str() {
        "counter" if !name.ends_with("_total") && !UPSTREAM_NAMES.contains(&name) => {
            Err("a counter's name must end in _total".to_string())
        }
        "counter" if family.samples.iter().any(|sample| sample.value < 0.0) => Err("a counter is negative".to_string()),
        "gauge" if ["_bucket", "_sum", "_count"].iter().any(|part| name.ends_with(part)) => {
            Err("a gauge must not look like a part of a histogram".to_string())
        }
        "counter" | "gauge" if !is_plain => Err("a sample has another name".to_string()),
        "counter" | "gauge" => Ok(()),
        "histogram" => check_histogram(family),
        other => Err(format!("unknown TYPE {other:?}")),
    }
}

fn check_histogram(family: &MetricFamily) -> Result<(), String> {
    let known = ["_bucket", "_sum", "_count"];
    if !family
        .samples
        .iter()
        .all(|sample| known.contains(&sample.suffix.as_str()))
    {
        return Err("a sample has another name".to_string());
    }
    let mut buckets = BTreeMap::<Labels, Vec<(f64, f64)>>::new();
    for sample in family.of("_bucket") {
        let mut labels = sample.labels.clone();
        let bound = labels.remove("le").and_then(|bound| bound.parse().ok());
        let bound = bound.ok_or("a bucket has no bound")?;
        buckets.entry(labels).or_default().push((bound, sample.value));
    }
    if family.of("_sum").count() != buckets.len() || family.of("_count").count() != buckets.len() {
        return Err("not every series has one _sum and one _count".to_string());
    }
    for (labels, buckets) in &buckets {
        if !buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1) {
            return Err(format!("buckets of {labels:?} are not cumulative"));
        }
        let count = family.of("_count").find(|sample| sample.labels == *labels);
        let count = count.ok_or_else(|| format!("{labels:?} has no _count"))?;
        if buckets.last() != Some(&(f64::INFINITY, count.value)) {
            return Err(format!("buckets of {labels:?} do not end at +Inf with the count"));
        }
        if !family
            .of("_sum")
            .any(|sample| sample.labels == *labels && sample.value >= 0.0)
        {
            return Err(format!("{labels:?} has no _sum"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::text;

    #[test]
    fn what_is_written_is_read() {
        let mut out = String::new();
        text::header(&mut out, "a_total", "counter", "A.");
        text::line(&mut out, "a_total", &text::label("x", "q\"\\\n,y=\"z}"), 7);
        text::header(&mut out, "h", "histogram", "H.");
        text::histogram(&mut out, "h", "x=\"y\"", &[0.5, 1.0], &[1, 0, 2], 9.5);
        let families = parse(&out).unwrap();
        assert_eq!(families["a_total"].value(&[("x", "q\"\\\n,y=\"z}")]), Some(7.0));
        assert_eq!(families["h"].samples.len(), 5);
        assert_eq!(families["h"].help, "H.");
        let families = parse("# HELP b B.\n# TYPE b gauge\nb{x=\"1 2\"} 0.5 1795006398000\n").unwrap();
        assert_eq!(families["b"].value(&[("x", "1 2")]), Some(0.5));
    }

    #[test]
    fn what_is_wrong_is_noticed() {
        let histogram = |samples: &str| format!("# HELP h H.\n# TYPE h histogram\n{samples}");
        for (text, what) in [
            ("a 1\n".to_string(), "sample without TYPE"),
            ("# TYPE a gauge\n".to_string(), "TYPE without HELP"),
            ("# HELP a A.\n# HELP a A.\n".to_string(), "two HELP"),
            ("# HELP a A.\n# TYPE a counter\na 1\n".to_string(), "_total"),
            ("# HELP a A.\n# TYPE a gauge\na 1\na 1\n".to_string(), "twice"),
            ("# HELP a A.\n# TYPE a gauge\nb 1\n".to_string(), "not of its TYPE"),
            ("# HELP a A.\n# TYPE a gauge\na{x=\"1} 1\n".to_string(), "malformed"),
            (
                histogram("h_bucket{le=\"1\"} 2\nh_bucket{le=\"+Inf\"} 1\nh_sum 1\nh_count 1\n"),
                "cumulative",
            ),
            (histogram("h_bucket{le=\"1\"} 2\nh_sum 1\nh_count 2\n"), "+Inf"),
            (histogram("h_bucket{le=\"+Inf\"} 2\nh_count 2\n"), "_sum"),
        ] {
            let error = parse(&text).unwrap_err().to_string();
            assert!(error.contains(what), "{error}\n{text}");
        }
    }
}
