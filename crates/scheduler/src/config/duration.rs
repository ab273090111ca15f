//! Durations as Go writes and reads them: `15s`, `1m30s`, `100ms`.

/// The signed nanoseconds of a duration.
pub(super) fn parse(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let number_end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(number_end);
        let unit_end = after
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_end);
        total = total.checked_add(part(number, unit_nanos(unit)?)?)?;
        rest = after;
    }
    i64::try_from(if negative { -total } else { total }).ok()
}

fn unit_nanos(unit: &str) -> Option<i128> {
    Some(match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    })
}

/// `1.5` of a unit; what is below a nanosecond is cut off.
fn part(number: &str, unit: i128) -> Option<i128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let read = |digits: &str| match digits {
        "" => Some(0),
        digits if digits.len() > 18 => None,
        digits => digits.parse::<i128>().ok(),
    };
    // More than 18 digits after the point are below any nanosecond.
    let fraction = &fraction[..fraction.len().min(18)];
    let scale = 10_i128.pow(fraction.len() as u32);
    Some(read(whole)? * unit + read(fraction)? * unit / scale)
}

/// `1m30s`, `2m0s`, `1.5ms`, `0s`.
pub(super) fn text(nanos: u128) -> String {
    let below_second = |unit: u128, name: &str| format!("{}{name}", decimal(nanos, unit));
    match nanos {
        0 => "0s".to_string(),
        1..1_000 => below_second(1, "ns"),
        1_000..1_000_000 => below_second(1_000, "µs"),
        1_000_000..1_000_000_000 => below_second(1_000_000, "ms"),
        _ => {
            let minutes = nanos / 60_000_000_000;
            let seconds = decimal(nanos % 60_000_000_000, 1_000_000_000);
            match (minutes / 60, minutes % 60) {
                (0, 0) => format!("{seconds}s"),
                (0, m) => format!("{m}m{seconds}s"),
                (h, m) => format!("{h}h{m}m{seconds}s"),
            }
        }
    }
}

/// n / unit without zeros at the end.
fn decimal(n: u128, unit: u128) -> String {
    let digits = unit.ilog10() as usize;
    let fraction = format!("{:0digits$}", n % unit);
    match fraction.trim_end_matches('0') {
        "" => (n / unit).to_string(),
        _ if unit == 1 => n.to_string(),
        fraction => format!("{}.{fraction}", n / unit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations_read_as_in_go() {
        const S: i64 = 1_000_000_000;
        for (text, nanos) in [
            ("0", Some(0)),
            ("15s", Some(15 * S)),
            ("1m30s", Some(90 * S)),
            ("1.5h", Some(5400 * S)),
            ("100ms", Some(S / 10)),
            (".5s", Some(S / 2)),
            ("1.s", Some(S)),
            ("-2s", Some(-2 * S)),
            ("1.0000000000000000000000001s", Some(S)),
            ("15", None),
            ("", None),
            ("-", None),
            (".s", None),
            ("1..2s", None),
            ("15 s", None),
            ("1d", None),
            ("9999999999h", None),
            ("99999999999999999999999999999999999999999999h", None),
        ] {
            assert_eq!(parse(text), nanos, "{text}");
        }
    }

    #[test]
    fn durations_are_written_as_in_go() {
        for (nanos, wanted) in [
            (0, "0s"),
            (7, "7ns"),
            (1_500, "1.5µs"),
            (100_000_000, "100ms"),
            (15_000_000_000, "15s"),
            (120_000_000_000, "2m0s"),
            (90_500_000_000, "1m30.5s"),
            (3_600_000_000_000, "1h0m0s"),
        ] {
            assert_eq!(text(nanos), wanted);
        }
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(nanos in 0..i64::MAX) {
            prop_assert_eq!(parse(&text(nanos as u128)), Some(nanos));
        }

        #[test]
        fn any_text_is_read_or_refused(text in ".{0,30}|[0-9.hmsnu]{0,30}") {
            let _ = parse(&text);
        }
    }
}
