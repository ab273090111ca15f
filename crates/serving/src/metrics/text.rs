//! The Prometheus text format.

use std::fmt::{Display, Write};

/// The HELP and TYPE lines of a metric.
pub fn header(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// A sample; `labels` without braces.
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
    }
}
