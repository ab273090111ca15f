//! Numbers with units, times, and looking at arguments.

use alloc::format;
use alloc::string::String;

/// `500ms`, `2s`, `1m`, `1h`, `0.5`: milliseconds.
pub fn duration_ms(text: &str) -> Option<u64> {
    let units = [
        ("ms", 1),
        ("s", 1_000),
        ("m", 60_000),
        ("h", 3_600_000),
        ("d", 86_400_000),
        ("", 1_000),
    ];
    let (suffix, factor) = units.iter().find(|(suffix, _)| text.ends_with(suffix))?;
    thousandths(&text[..text.len() - suffix.len()])?
        .checked_mul(*factor)
        .map(|product| product / 1000)
}

/// `1.25` as 1250. Without floating point, whose tables would be a tenth of this program.
fn thousandths(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let digits: String = fraction.chars().chain("000".chars()).take(3).collect();
    whole
        .parse::<u64>()
        .ok()?
        .checked_mul(1000)?
        .checked_add(digits.parse().ok()?)
}

/// Processors as Kubernetes writes them, in thousandths: `500m`, `2`, `0.5`.
pub fn milli_cpu(text: &str) -> Option<u64> {
    match text.strip_suffix('m') {
        Some(number) => number.parse().ok(),
        None => thousandths(text),
    }
}

/// Memory as Kubernetes writes it, in bytes: `64Mi`, `1G`, `1000`.
pub fn bytes(text: &str) -> Option<u64> {
    let units = [
        ("Ki", 1u64 << 10),
        ("Mi", 1 << 20),
        ("Gi", 1 << 30),
        ("k", 1_000),
        ("K", 1_000),
        ("M", 1_000_000),
        ("G", 1_000_000_000),
        ("", 1),
    ];
    let (suffix, factor) = units.iter().find(|(suffix, _)| text.ends_with(suffix))?;
    text[..text.len() - suffix.len()]
        .parse::<u64>()
        .ok()?
        .checked_mul(*factor)
}

/// Year, month, day, hour, minute, second and day of the week (0: Sunday) of a time in UTC.
pub fn civil(seconds: i64) -> (i64, i64, i64, i64, i64, i64, usize) {
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Years that begin in March have their leap day at the end.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 {
        month_index + 3
    } else {
        month_index - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let weekday = (days + 4).rem_euclid(7) as usize;
    (year, month, day, rest / 3600, rest / 60 % 60, rest % 60, weekday)
}

/// As in logs: `2026-01-02T03:04:05Z`.
pub fn timestamp(seconds: i64) -> String {
    let (year, month, day, hour, minute, second, _) = civil(seconds);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

pub const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];
pub const WEEKDAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];

/// `%2F` and `+` of queries.
pub fn percent_decode(text: &str) -> String {
    let mut bytes = alloc::vec::Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, more)) = rest.split_first() {
        let hex = |byte: &u8| (*byte as char).to_digit(16).map(|d| d as u8);
        match (first, more) {
            (b'%', [high, low, ..]) if hex(high).is_some() && hex(low).is_some() => {
                bytes.push(hex(high).unwrap_or(0) * 16 + hex(low).unwrap_or(0));
                rest = &more[2..];
                continue;
            }
            (b'+', _) => bytes.push(b' '),
            _ => bytes.push(*first),
        }
        rest = more;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
