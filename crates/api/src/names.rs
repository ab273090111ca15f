//! Rules for names, label keys and values, ports and the like. Each returns the messages of what is wrong; none: fine.

/// A rule for a string: the list of complaints.
pub type Rule = fn(&str) -> Vec<String>;

fn max_len(max: usize) -> String {
    format!("must be no more than {max} characters")
}

/// The same for labels, in the words of their own rules.
fn max_bytes(max: usize) -> String {
    format!("must be no more than {max} bytes")
}

/// The message for a value that does not match its pattern, with examples and the pattern itself.
pub fn pattern_message(message: &str, pattern: &str, examples: &[&str]) -> String {
    if examples.is_empty() {
        return format!("{message} (regex used for validation is '{pattern}')");
    }
    // Two spaces before "or": clients see it so.
    let shown: Vec<String> = examples.iter().map(|e| format!("'{e}', ")).collect();
    format!(
        "{message} (e.g. {}regex used for validation is '{pattern}')",
        shown.join(" or ")
    )
}

const LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const SUBDOMAIN: &str = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const LABEL_1035: &str = "[a-z]([-a-z0-9]*[a-z0-9])?";
const QUALIFIED: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const LABEL_VALUE: &str = "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?";

fn lower_alnum(b: u8) -> bool {
    b.is_ascii_lowercase() || b.is_ascii_digit()
}

fn is_label_shaped(s: &str) -> bool {
    let b = s.as_bytes();
    !b.is_empty() && lower_alnum(b[0]) && lower_alnum(b[b.len() - 1]) && b.iter().all(|&c| lower_alnum(c) || c == b'-')
}

pub fn dns_label(s: &str) -> Vec<String> {
    let mut out = vec![];
    if s.len() > 63 {
        out.push(max_len(63));
    }
    if !is_label_shaped(s) {
        out.push(if s.is_empty() || !s.split('.').all(is_label_shaped) {
            pattern_message(
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character",
                LABEL,
                &["my-name", "123-abc"],
            )
        } else {
            // A subdomain where a label is expected: report just that.
            "must not contain dots".to_string()
        });
    }
    out
}

pub fn dns_subdomain(s: &str) -> Vec<String> {
    let mut out = vec![];
    if s.len() > 253 {
        out.push(max_len(253));
    }
    if !s.split('.').all(is_label_shaped) {
        out.push(pattern_message(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character",
            SUBDOMAIN,
            &["example.com"],
        ));
    }
    out
}

pub fn dns_1035_label(s: &str) -> Vec<String> {
    let mut out = vec![];
    if s.len() > 63 {
        out.push(max_len(63));
    }
    if !is_label_shaped(s) || !s.as_bytes()[0].is_ascii_lowercase() {
        out.push(pattern_message(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character",
            LABEL_1035,
            &["my-name", "abc-123"],
        ));
    }
    out
}

/// A name that stands as one segment of a URL path (RBAC kinds): anything but ".", "..", "/" and "%".
pub fn path_segment(s: &str) -> Vec<String> {
    if s == "." || s == ".." {
        return vec![format!("may not be '{s}'")];
    }
    ["/", "%"]
        .iter()
        .filter(|c| s.contains(**c))
        .map(|c| format!("may not contain '{c}'"))
        .collect()
}

fn is_name_part(s: &str) -> bool {
    let b = s.as_bytes();
    !b.is_empty()
        && b[0].is_ascii_alphanumeric()
        && b[b.len() - 1].is_ascii_alphanumeric()
        && b.iter()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.'))
}

/// A label key, annotation key, taint key, extended resource …: `[prefix/]name`.
pub fn qualified_name(s: &str) -> Vec<String> {
    let shape = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";
    let examples = ["MyName", "my.name", "123-abc"];
    let mut out = vec![];
    let parts: Vec<&str> = s.split('/').collect();
    let name = match parts.as_slice() {
        [name] => name,
        [prefix, name] => {
            if prefix.is_empty() {
                out.push("prefix part must be non-empty".to_string());
            } else {
                out.extend(dns_subdomain(prefix).into_iter().map(|m| format!("prefix part {m}")));
            }
            name
        }
        _ => {
            let text = pattern_message(&format!("a valid label key {shape}"), QUALIFIED, &examples);
            return vec![format!(
                "{text} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
    };
    if name.is_empty() {
        out.push("name part must be non-empty".to_string());
    } else if name.len() > 63 {
        out.push(format!("name part {}", max_bytes(63)));
    }
    if !is_name_part(name) {
        out.push(format!("name part {}", pattern_message(shape, QUALIFIED, &examples)));
    }
    out
}

pub fn label_value(s: &str) -> Vec<String> {
    let mut out = vec![];
    if s.len() > 63 {
        out.push(max_bytes(63));
    }
    if !s.is_empty() && !is_name_part(s) {
        out.push(pattern_message(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character",
            LABEL_VALUE,
            &["MyValue", "my_value", "12345"],
        ));
    }
    out
}

/// A key of a ConfigMap or Secret.
pub fn config_key(s: &str) -> Vec<String> {
    let mut out = vec![];
    if s.len() > 253 {
        out.push(max_len(253));
    }
    if s.is_empty()
        || !s
            .bytes()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.'))
    {
        out.push(pattern_message(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
            "[-._a-zA-Z0-9]+",
            &["key.name", "KEY_NAME", "key-name"],
        ));
    }
    match s {
        "." => out.push("must not be '.'".to_string()),
        ".." => out.push("must not be '..'".to_string()),
        _ if s.starts_with("..") => out.push("must not start with '..'".to_string()),
        _ => {}
    }
    out
}

/// A named port: at most 15 characters, a letter in it, no double or outer hyphens.
pub fn port_name(s: &str) -> Vec<String> {
    let mut out = vec![];
    if s.len() > 15 {
        out.push(max_len(15));
    }
    if !s.bytes().all(|c| lower_alnum(c) || c == b'-') {
        out.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_string());
    }
    if !s.bytes().any(|c| c.is_ascii_lowercase()) {
        out.push("must contain at least one letter (a-z)".to_string());
    }
    if s.contains("--") {
        out.push("must not contain consecutive hyphens".to_string());
    }
    if s.starts_with('-') || s.ends_with('-') {
        out.push("must not begin or end with a hyphen".to_string());
    }
    out
}

pub fn port_number(n: i64) -> Vec<String> {
    in_range(n, 1, 65535)
}

pub fn in_range(n: i64, min: i64, max: i64) -> Vec<String> {
    if (min..=max).contains(&n) {
        vec![]
    } else {
        vec![format!("must be between {min} and {max}, inclusive")]
    }
}

/// Any printable ASCII but '='.
pub fn env_var_name(s: &str) -> Vec<String> {
    let mut out = vec![];
    if s.is_empty() {
        out.push("environment variable name must have at least one character".to_string());
    }
    if !s.bytes().all(|c| (0x20..0x7f).contains(&c) && c != b'=') {
        out.push(
            "a valid environment variable name must consist only of printable ASCII characters other than '='"
                .to_string(),
        );
    }
    out
}

/// An IP address in canonical form is not asked for; leading zeros and other legacy forms are refused.
pub fn ip_address(s: &str) -> Vec<String> {
    match s.parse::<std::net::IpAddr>() {
        Ok(_) => vec![],
        Err(_) => vec!["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".to_string()],
    }
}

pub fn cidr(s: &str) -> Vec<String> {
    match s.parse::<ipnet::IpNet>() {
        Ok(_) => vec![],
        Err(_) => vec!["must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)".to_string()],
    }
}

pub fn percent(s: &str) -> Vec<String> {
    let digits = s.strip_suffix('%').unwrap_or("");
    if !digits.is_empty() && digits.bytes().all(|c| c.is_ascii_digit()) {
        return vec![];
    }
    vec![pattern_message(
        "a valid percent string must be a numeric string followed by an ending '%'",
        "[0-9]+%",
        &["1%", "93%"],
    )]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_judged_as_kubernetes_does() {
        for (rule, good, bad) in [
            (
                dns_label as Rule,
                &["a", "a-1", "1a"][..],
                &["", "A", "-a", "a-", "a.b", "ä"][..],
            ),
            (dns_subdomain, &["a", "a.b-c.d"], &["", "a..b", ".a", "a_b"]),
            (dns_1035_label, &["a", "a1"], &["1a", "", "A"]),
            (
                qualified_name,
                &["app", "example.com/App_1.x"],
                &["", "/a", "a/", "a/b/c", "-a", "Ex.com/a"],
            ),
            (label_value, &["", "a", "A.b_c-1"], &["-", "a b", "a/"]),
            (config_key, &["a", ".x", "A_b"], &["", ".", "..", "..a", "a/b"]),
            (
                port_name,
                &["http", "a-1"],
                &["", "1", "a--b", "-a", "Http", "abcdefghijklmnop"],
            ),
        ] {
            for s in good {
                assert_eq!(rule(s), Vec::<String>::new(), "{s:?} should be fine");
            }
            for s in bad {
                assert!(!rule(s).is_empty(), "{s:?} should be refused");
            }
        }
        assert!(!dns_label(&"a".repeat(64)).is_empty());
    }
}
