//! The Prometheus text format.

use std::fmt::{Display, Write};

/// Begins a metric: its HELP and TYPE (`counter`, `gauge`, `histogram`). Its samples must follow.
pub fn header(out: &mut String, name: &str, kind: &str, help: &str) {
    let help = help.replace('\\', "\\\\").replace('\n', "\\n");
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// A sample. `labels` are rendered (`a="b",c="d"`; see [`label`]), or empty.
pub fn line(out: &mut String, name: &str, labels: &str, value: impl Display) {
    let _ = match labels {
        "" => writeln!(out, "{name} {value}"),
        labels => writeln!(out, "{name}{{{labels}}} {value}"),
    };
}

/// `name="value"`, escaped.
pub fn label(name: &str, value: &str) -> String {
    let escaped = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("{name}=\"{escaped}\"")
}

/// The samples of one series of a histogram: cumulative buckets, sum and count. `counts` are those of each bucket alone,
/// the last one that of what is above all `bounds`.
pub fn histogram(out: &mut String, name: &str, labels: &str, bounds: &[f64], counts: &[u64], sum: f64) {
    debug_assert_eq!(counts.len(), bounds.len() + 1, "{name}");
    let comma = if labels.is_empty() { "" } else { "," };
    let bucket = format!("{name}_bucket");
    let mut cumulative = 0;
    for (bound, count) in bounds.iter().copied().chain([f64::INFINITY]).zip(counts) {
        cumulative += count;
        let labels = format!("{labels}{comma}le=\"{}\"", float(bound));
        line(out, &bucket, &labels, cumulative);
    }
    line(out, &format!("{name}_sum"), labels, float(sum));
    line(out, &format!("{name}_count"), labels, cumulative);
}

/// A number as Kubernetes' components write it, so that the labels `le` are the same text: with an exponent if it is below
/// 0.0001.
pub fn float(value: f64) -> String {
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_string();
    }
    let short = format!("{value:e}");
    let (digits, exponent) = short.split_once('e').expect("the format has an exponent");
    match exponent.parse::<i32>() {
        Ok(exponent) if exponent < -4 => format!("{digits}e-{:02}", -exponent),
        _ => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_labels() {
        let cases = [
            (0.0, "0"),
            (1.0, "1"),
            (0.001, "0.001"),
            (16.384, "16.384"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (0.00001 * 1.5, "1.5000000000000002e-05"),
            (5242.88, "5242.88"),
            (f64::INFINITY, "+Inf"),
        ];
        for (value, expected) in cases {
            assert_eq!(float(value), expected);
        }
        assert_eq!(label("a", "b\"c\\\nd"), r#"a="b\"c\\\nd""#);
        let mut out = String::new();
        header(&mut out, "m", "counter", "a \\ b\nc");
        assert_eq!(out, "# HELP m a \\\\ b\\nc\n# TYPE m counter\n");
    }
}
