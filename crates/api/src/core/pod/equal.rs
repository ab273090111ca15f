//! Whether two specs mean the same, and if not, where they differ.

use serde_json::Value;

use crate::quantity::Quantity;

/// Equal, where lists and maps that are empty count as absent and quantities compare by value.
pub(super) fn same(a: Option<&Value>, b: Option<&Value>) -> bool {
    same_at("", a, b)
}

fn is_nothing(value: Option<&Value>, name: &str) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::Array(list)) => list.is_empty(),
        // An empty object may well mean something (`emptyDir: {}`), but these are maps, or always there.
        Some(Value::Object(map)) => {
            matches!(name, "limits" | "requests" | "resources" | "nodeSelector" | "overhead")
                && map.iter().all(|(k, v)| is_nothing(Some(v), k))
        }
        Some(_) => false,
    }
}

/// The same for the values of a field with this name.
pub(super) fn same_at(name: &str, a: Option<&Value>, b: Option<&Value>) -> bool {
    match (a, b) {
        (Some(Value::Object(x)), Some(Value::Object(y))) => {
            let quantities = matches!(name, "limits" | "requests" | "overhead");
            x.iter().all(|(k, v)| match (quantities, v, y.get(k)) {
                (true, Value::String(v), Some(Value::String(w))) => same_quantity(v, w),
                (_, v, w) => same_at(k, Some(v), w),
            }) && y.iter().all(|(k, w)| x.contains_key(k) || is_nothing(Some(w), k))
        }
        (Some(Value::Array(x)), Some(Value::Array(y))) => {
            x.len() == y.len() && x.iter().zip(y).all(|(v, w)| same_at("", Some(v), Some(w)))
        }
        (Some(Value::String(x)), Some(Value::String(y))) if matches!(name, "sizeLimit" | "divisor") => {
            same_quantity(x, y)
        }
        _ => a == b || (is_nothing(a, name) && is_nothing(b, name)),
    }
}

fn same_quantity(a: &str, b: &str) -> bool {
    a == b || matches!((Quantity::parse(a), Quantity::parse(b)), (Ok(a), Ok(b)) if a == b)
}

/// A unified diff of two values as indented JSON, in one hunk.
pub(super) fn diff(old: &Value, new: &Value) -> String {
    const CONTEXT: usize = 3;
    let (old, new) = (lines(old), lines(new));
    let start = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let most = old.len().min(new.len()) - start;
    let end = old
        .iter()
        .rev()
        .zip(new.iter().rev())
        .take(most)
        .take_while(|(a, b)| a == b)
        .count();
    let from = start.saturating_sub(CONTEXT);
    let (old_end, new_end) = (old.len() - end, new.len() - end);
    let tail = (old_end + CONTEXT).min(old.len());
    let mut out = format!(
        "@@ -{},{} +{},{} @@\n",
        from + 1,
        tail - from,
        from + 1,
        new_end + (tail - old_end) - from
    );
    let mut put = |sign: char, lines: &[String]| {
        for line in lines {
            out.push(sign);
            out.push_str(line);
            out.push('\n');
        }
    };
    put(' ', &old[from..start]);
    put('-', &old[start..old_end]);
    put('+', &new[start..new_end]);
    put(' ', &old[old_end..tail]);
    out
}

fn lines(value: &Value) -> Vec<String> {
    let mut out = vec![];
    write_lines(value, 0, String::new(), "", &mut out);
    out
}

/// Pretty JSON with one space a level.
fn write_lines(value: &Value, depth: usize, lead: String, tail: &str, out: &mut Vec<String>) {
    let pad = " ".repeat(depth);
    let comma = |i: usize, n: usize| if i + 1 < n { "," } else { "" };
    match value {
        Value::Object(map) if !map.is_empty() => {
            out.push(format!("{pad}{lead}{{"));
            for (i, (k, v)) in map.iter().enumerate() {
                write_lines(
                    v,
                    depth + 1,
                    format!("{}: ", Value::from(k.as_str())),
                    comma(i, map.len()),
                    out,
                );
            }
            out.push(format!("{pad}}}{tail}"));
        }
        Value::Array(list) if !list.is_empty() => {
            out.push(format!("{pad}{lead}["));
            for (i, v) in list.iter().enumerate() {
                write_lines(v, depth + 1, String::new(), comma(i, list.len()), out);
            }
            out.push(format!("{pad}]{tail}"));
        }
        plain => out.push(format!("{pad}{lead}{plain}{tail}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn sameness_looks_through_spelling() {
        let base = json!({"containers": [{"resources": {"limits": {"cpu": "1"}}}], "volumes": [{"emptyDir": {}}]});
        for (other, want) in [
            (
                json!({"containers": [{"resources": {"limits": {"cpu": "1000m"}}}], "volumes": [{"emptyDir": {}}]}),
                true,
            ),
            (
                json!({"containers": [{"resources": {"limits": {"cpu": "1"}, "requests": {}}}],
                    "volumes": [{"emptyDir": {}}], "tolerations": []}),
                true,
            ),
            (
                json!({"containers": [{"resources": {"limits": {"cpu": "2"}}}], "volumes": [{"emptyDir": {}}]}),
                false,
            ),
            (
                json!({"containers": [{"resources": {"limits": {"cpu": "1"}}}], "volumes": [{}]}),
                false,
            ),
        ] {
            assert_eq!(same(Some(&base), Some(&other)), want, "{other}");
            assert_eq!(same(Some(&other), Some(&base)), want, "{other}");
        }
    }

    #[test]
    fn a_diff_shows_what_changed_with_three_lines_around() {
        let old = json!({"a": 1, "b": [1, 2], "c": "x", "d": {}, "e": 5});
        let new = json!({"a": 1, "b": [1, 2], "c": "y", "d": {}, "e": 5});
        let want = "@@ -4,6 +4,6 @@\n   1,\n   2\n ],\n";
        let got = diff(&old, &new);
        assert!(got.contains("- \"c\": \"x\",\n+ \"c\": \"y\",\n"), "{got}");
        assert!(got.starts_with("@@ -4,7 +4,7 @@\n") || got.starts_with(want), "{got}");
        assert_eq!(got.lines().count(), 1 + 3 + 2 + 3, "{got}");
    }
}
