//! Amounts of resources as people write them.

use std::collections::BTreeMap;

use orlop_api::quantity::{Format, Quantity};
use orlop_scheduler::cluster::resources::Resources;

fn is_bytes(resource: &str) -> bool {
    resource == "memory" || resource == "ephemeral-storage" || resource.starts_with("hugepages-")
}

/// Exactly, as a Quantity; cpu is in thousandths.
pub(crate) fn exact(resource: &str, amount: i64) -> String {
    if resource == "cpu" {
        Quantity::from_milli(amount, Format::DecimalSI).canonical()
    } else if is_bytes(resource) {
        Quantity::from_i64(amount, Format::BinarySI).canonical()
    } else {
        Quantity::from_i64(amount, Format::DecimalSI).canonical()
    }
}

/// For reading: bytes to three digits (`1.25Gi`), cpu in cores (`1.3`), the rest as it is.
pub(crate) fn short(resource: &str, amount: i64) -> String {
    const UNITS: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    if resource == "cpu" {
        let (whole, milli) = (amount / 1000, (amount % 1000).abs());
        let sign = if amount < 0 && whole == 0 { "-" } else { "" };
        let fraction = format!(".{milli:03}");
        return match fraction.trim_end_matches('0') {
            "." => whole.to_string(),
            fraction => format!("{sign}{whole}{fraction}"),
        };
    }
    if !is_bytes(resource) || amount.unsigned_abs() < 1024 {
        return amount.to_string();
    }
    let mut value = amount as f64 / 1024.0;
    let mut unit = 0;
    while value.abs() >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = match value.abs() {
        v if v < 10.0 => 2,
        v if v < 100.0 => 1,
        _ => 0,
    };
    let text = format!("{value:.digits$}");
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    format!("{text}{}", UNITS[unit])
}

/// All that is more than nothing, exactly.
pub(crate) fn list(resources: &Resources) -> BTreeMap<String, String> {
    let basic = ["cpu", "memory", "ephemeral-storage"].into_iter();
    let names = basic.chain(resources.scalars.iter().map(|(name, _)| &**name));
    names
        .filter(|name| resources.amount(name) != 0)
        .map(|name| (name.to_string(), exact(name, resources.amount(name))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_short_or_exact() {
        let cases = [
            ("cpu", 1300, "1.3", "1300m"),
            ("cpu", 2000, "2", "2"),
            ("cpu", -50, "-0.05", "-50m"),
            ("cpu", -1500, "-1.5", "-1500m"),
            ("memory", 1 << 30, "1Gi", "1Gi"),
            ("memory", 1_342_177_280, "1.25Gi", "1280Mi"),
            ("memory", 1_000_000_000, "954Mi", "1000000000"),
            ("memory", 100, "100", "100"),
            ("example.com/gpu", 2, "2", "2"),
            ("hugepages-2Mi", 4 << 20, "4Mi", "4Mi"),
        ];
        for (resource, amount, in_short, exactly) in cases {
            assert_eq!(short(resource, amount), in_short, "{resource} {amount}");
            assert_eq!(exact(resource, amount), exactly, "{resource} {amount}");
        }
    }
}
