//! What the columns of tables have in common: ages, counts, joined lists.

use jiff::Timestamp;
use serde_json::Value;

/// The AGE cell: time since creation, or `<unknown>`.
pub fn age(object: &Value, now: Timestamp) -> Value {
    since(
        object.pointer("/metadata/creationTimestamp").and_then(Value::as_str),
        now,
    )
    .into()
}

/// Time since a timestamp in kubectl's short form.
pub fn since(timestamp: Option<&str>, now: Timestamp) -> String {
    match timestamp.and_then(|t| t.parse::<Timestamp>().ok()) {
        Some(then) => human_duration(now.as_second() - then.as_second()),
        None => "<unknown>".to_string(),
    }
}

/// Kubernetes' short durations: "45s", "3m10s", "5h", "2d3h", "400d", "3y12d".
pub fn human_duration(seconds: i64) -> String {
    let two = |major: i64, unit: &str, minor: i64, sub: &str| match minor {
        0 => format!("{major}{unit}"),
        _ => format!("{major}{unit}{minor}{sub}"),
    };
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match seconds {
        ..-1 => "<invalid>".to_string(),
        -1 => "0s".to_string(),
        0..120 => format!("{seconds}s"),
        _ if minutes < 10 => two(minutes, "m", seconds % 60, "s"),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => two(hours, "h", minutes % 60, "m"),
        _ if hours < 48 => format!("{hours}h"),
        _ if hours < 24 * 8 => two(days, "d", hours % 24, "h"),
        _ if days < 365 * 2 => format!("{days}d"),
        _ if days < 365 * 8 => two(days / 365, "y", days % 365, "d"),
        _ => format!("{}y", days / 365),
    }
}

/// The string at a JSON pointer, or "".
pub fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or("")
}

/// The string at a JSON pointer, or `<none>`.
pub fn text_or_none(object: &Value, pointer: &str) -> Value {
    match text(object, pointer) {
        "" => "<none>".into(),
        s => s.into(),
    }
}

/// The integer at a JSON pointer, or 0.
pub fn int(object: &Value, pointer: &str) -> i64 {
    object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0)
}

/// A string map as `a=b,c=d`, or `<none>`.
pub fn labels(map: Option<&Value>) -> String {
    let pairs: Vec<String> = map
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or("")))
        .collect();
    if pairs.is_empty() {
        "<none>".to_string()
    } else {
        pairs.join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::human_duration;

    #[test]
    fn durations_read_as_in_kubectl() {
        for (seconds, shown) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (599, "9m59s"),
            (600, "10m"),
            (10799, "179m"),
            (10800, "3h"),
            (11100, "3h5m"),
            (28800, "8h"),
            (172800, "2d"),
            (176400, "2d1h"),
            (691200, "8d"),
            (63072000, "2y"),
        ] {
            assert_eq!(human_duration(seconds), shown, "{seconds}");
        }
    }
}
