//! Formats of strings.
//!
//! Upstream: kube-openapi pkg/validation/strfmt and apiextensions-apiserver pkg/apiserver/validation/formats.go (v1.36).

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::LazyLock;

use jiff::civil::Date;
use orlop_api::structural::SchemaType;
use orlop_api::{duration, names};
use regex::Regex;

/// Formats are told apart without their hyphens.
fn normalized(format: &str) -> Cow<'_, str> {
    match format.contains('-') {
        true => Cow::Owned(format.replace('-', "")),
        false => Cow::Borrowed(format),
    }
}

/// Whether a format says nothing about values of a type: it is then ignored, and whoever wrote it is warned.
pub(crate) fn is_unrecognized(ty: SchemaType, format: &str) -> bool {
    match ty {
        SchemaType::Unspecified | SchemaType::String => is_valid(format, "").is_none(),
        SchemaType::Integer => !matches!(format, "int32" | "int64"),
        SchemaType::Number => !matches!(format, "float" | "double"),
        _ => true,
    }
}

/// The same for a type as it is written.
pub(crate) fn unrecognized(ty: &str, format: &str) -> bool {
    let ty = match ty {
        "" => SchemaType::Unspecified,
        "string" => SchemaType::String,
        "integer" => SchemaType::Integer,
        "number" => SchemaType::Number,
        _ => SchemaType::Object,
    };
    is_unrecognized(ty, format)
}

macro_rules! pattern {
    ($text:expr) => {{
        static REGEX: LazyLock<Regex> = LazyLock::new(|| Regex::new($text).expect("the pattern is a constant"));
        &*REGEX
    }};
}

/// Whether a text is of a format; None if the format is not known.
pub(super) fn is_valid(format: &str, text: &str) -> Option<bool> {
    Some(match &*normalized(format) {
        "bsonobjectid" => text.len() == 24 && text.bytes().all(|b| b.is_ascii_hexdigit()),
        "uri" => is_request_uri(text),
        "email" => is_email(text),
        "hostname" => is_hostname(text),
        "ipv4" => text.contains('.') && is_ip_sloppy(text),
        "ipv6" => text.contains(':') && text.parse::<IpAddr>().is_ok(),
        "cidr" => is_cidr_sloppy(text),
        "mac" => is_mac(text),
        "uuid" => is_uuid(text, None, false),
        "uuid3" => is_uuid(text, Some(b'3'), false),
        "uuid4" => is_uuid(text, Some(b'4'), true),
        "uuid5" => is_uuid(text, Some(b'5'), true),
        "isbn" => is_isbn10(text) || is_isbn13(text),
        "isbn10" => is_isbn10(text),
        "isbn13" => is_isbn13(text),
        "creditcard" => is_credit_card(text),
        "ssn" => pattern!(r"^[0-9]{3}[- ]?[0-9]{2}[- ]?[0-9]{4}$").is_match(text),
        "hexcolor" => {
            let digits = text.strip_prefix('#').unwrap_or(text);
            matches!(digits.len(), 3 | 6) && digits.bytes().all(|b| b.is_ascii_hexdigit())
        }
        "rgbcolor" => is_rgb(text),
        "byte" => is_base64(text),
        "password" => true,
        "date" => is_date(text),
        "datetime" => is_date_time(text),
        "duration" => is_duration(text),
        "k8sshortname" => names::dns_label(text).is_empty(),
        "k8slongname" => names::dns_subdomain(text).is_empty(),
        _ => return None,
    })
}

fn is_date(text: &str) -> bool {
    let shaped = text.len() == 10
        && text.bytes().enumerate().all(|(i, b)| match i {
            4 | 7 => b == b'-',
            _ => b.is_ascii_digit(),
        });
    shaped && text.parse::<Date>().is_ok()
}

fn is_date_time(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    let mut parts = lower.split('t');
    let (Some(date), Some(time)) = (parts.next(), parts.next()) else {
        return false;
    };
    let pattern = pattern!(r"^([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|([+-][0-9]{2}:[0-9]{2}))$");
    is_date(date)
        && pattern
            .captures(time)
            .is_some_and(|c| c[1] <= *"23" && c[2] <= *"59" && c[3] <= *"59")
}

/// Go's durations, and numbers with the names of units.
fn is_duration(text: &str) -> bool {
    if duration::parse_duration(text).is_ok() {
        return true;
    }
    const UNITS: [&[&str]; 8] = [
        &["ns", "nano"],
        &["us", "\u{b5}s", "micro"],
        &["ms", "milli"],
        &["s", "sec"],
        &["m", "min"],
        &["h", "hr", "hour"],
        &["d", "day"],
        &["w", "wk", "week"],
    ];
    let pattern = pattern!("([0-9]+)[\\t\\n\\x0c\\r ]*([A-Za-z\u{b5}]+)");
    let mut known = false;
    for found in pattern.captures_iter(text) {
        if found[1].parse::<i64>().is_err() {
            return false;
        }
        let unit = found[2].to_lowercase();
        known |= UNITS.iter().any(|names| {
            let long = names.last().is_some_and(|long| unit.starts_with(long));
            long || names.iter().any(|name| *name == unit)
        });
    }
    known
}

/// What Go's url.ParseRequestURI takes.
fn is_request_uri(text: &str) -> bool {
    if text.is_empty() || text.bytes().any(|b| b < b' ' || b == 0x7f) {
        return false;
    }
    if text == "*" {
        return true;
    }
    let scheme = text.find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.')));
    let (has_scheme, rest) = match scheme {
        Some(0) if text.starts_with(':') => return false,
        Some(end) if text[end..].starts_with(':') && text.as_bytes()[0].is_ascii_alphabetic() => {
            (true, &text[end + 1..])
        }
        _ => (false, text),
    };
    if !rest.starts_with('/') {
        return has_scheme;
    }
    let rest = rest.split('?').next().unwrap_or(rest);
    let (authority, path) = match rest.strip_prefix("//").filter(|_| has_scheme) {
        Some(rest) => rest.split_at(rest.find('/').unwrap_or(rest.len())),
        None => ("", rest),
    };
    has_valid_escapes(path) && is_authority(authority)
}

fn has_valid_escapes(text: &str) -> bool {
    let mut parts = text.split('%');
    parts.next();
    parts.all(|p| p.len() >= 2 && p.as_bytes()[..2].iter().all(u8::is_ascii_hexdigit))
}

fn is_authority(text: &str) -> bool {
    let host = text.rsplit_once('@').map_or(text, |(_, host)| host);
    let (host, port) = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((_, port)) => ("", port),
            None => return false,
        },
        None => host.find(':').map_or((host, ""), |at| host.split_at(at)),
    };
    let port_fits = port.is_empty()
        || port
            .strip_prefix(':')
            .is_some_and(|p| p.bytes().all(|b| b.is_ascii_digit()));
    port_fits && has_valid_escapes(host) && !host.contains([' ', '"', '<', '>', '\\', '^', '`', '{', '|', '}'])
}

/// An address with or without a name in front.
fn is_email(text: &str) -> bool {
    let text = text.trim_matches([' ', '\t']);
    let address = match text.strip_suffix('>') {
        Some(rest) => match rest.rsplit_once('<') {
            Some((name, address)) if !name.contains(['@', '<', '>']) || name.trim().starts_with('"') => address,
            _ => return false,
        },
        None => text,
    };
    let Some((local, domain)) = address.rsplit_once('@') else {
        return false;
    };
    let is_atom = |part: &str| {
        !part.is_empty()
            && part
                .chars()
                .all(|c| !c.is_ascii() || c.is_ascii_alphanumeric() || "!#$%&'*+-/=?^_`{|}~".contains(c))
    };
    let quoted = local.len() >= 2 && local.starts_with('"') && local.ends_with('"');
    (quoted || local.split('.').all(is_atom)) && domain.split('.').all(is_atom)
}

/// A letter or digit, or a symbol such as an emoji. (As one regular expression with its repetitions, this takes megabytes.)
fn is_host_char(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_alphanumeric() || "$+<=>^`|~".contains(c);
    }
    let mut buffer = [0; 4];
    pattern!(r"^[\p{S}\p{L}]$").is_match(c.encode_utf8(&mut buffer))
}

fn is_host_letter(c: char) -> bool {
    let mut buffer = [0; 4];
    c.is_ascii_alphabetic() || (!c.is_ascii() && pattern!(r"^\p{L}$").is_match(c.encode_utf8(&mut buffer)))
}

fn is_hostname(text: &str) -> bool {
    if text.len() > 255 || text.split('.').any(|label| label.len() > 63) {
        return false;
    }
    let Some((labels, top)) = text.rsplit_once('.') else {
        // Without a domain, a hyphen is taken as the second character only.
        let mut chars = text.chars();
        let first = chars.next().is_some_and(is_host_char);
        let rest = chars.as_str();
        return first && rest.strip_prefix('-').unwrap_or(rest).chars().all(is_host_char);
    };
    let is_label = |label: &str| {
        let inner = label.chars().all(|c| c == '-' || is_host_char(c));
        inner && !label.is_empty() && !label.starts_with('-') && !label.ends_with('-')
    };
    top.chars().count() >= 2 && top.chars().all(is_host_letter) && labels.split('.').all(is_label)
}

/// Leading zeros in IPv4 addresses are read as decimal numbers.
fn without_leading_zeros(text: &str) -> String {
    let part = |part: &str| match part.trim_start_matches('0') {
        "" if !part.is_empty() => "0".to_string(),
        rest => rest.to_string(),
    };
    let parts: Vec<String> = text.split('.').map(part).collect();
    parts.join(".")
}

fn is_ip_sloppy(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok() || without_leading_zeros(text).parse::<IpAddr>().is_ok()
}

fn is_cidr_sloppy(text: &str) -> bool {
    let Some((address, length)) = text.split_once('/') else {
        return false;
    };
    let bits = match address.contains(':') {
        true => 128,
        false => 32,
    };
    let digits = !length.is_empty() && length.len() <= 4 && length.bytes().all(|b| b.is_ascii_digit());
    is_ip_sloppy(address) && digits && length.parse::<u32>().is_ok_and(|n| n <= bits)
}

fn is_mac(text: &str) -> bool {
    let hex = |part: &str, digits: usize| part.len() == digits && part.bytes().all(|b| b.is_ascii_hexdigit());
    let groups = |separator: char, digits: usize, counts: &[usize]| {
        let parts: Vec<&str> = text.split(separator).collect();
        counts.contains(&parts.len()) && parts.iter().all(|p| hex(p, digits))
    };
    groups(':', 2, &[6, 8, 20]) || groups('-', 2, &[6, 8, 20]) || groups('.', 4, &[3, 4, 10])
}

/// Hyphens may be missing. `version` is the digit that tells it; `variant` asks for 8, 9, a or b.
fn is_uuid(text: &str, version: Option<u8>, variant: bool) -> bool {
    let pattern = pattern!("(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$");
    if !pattern.is_match(text) {
        return false;
    }
    let digits: Vec<u8> = text.bytes().filter(|b| *b != b'-').collect();
    version.is_none_or(|v| digits[12] == v) && (!variant || b"89abAB".contains(&digits[16]))
}

fn isbn_digits(text: &str) -> String {
    text.chars()
        .filter(|c| !matches!(c, '-' | ' ' | '\t' | '\n' | '\r'))
        .collect()
}

fn is_isbn10(text: &str) -> bool {
    let digits = isbn_digits(text);
    let b = digits.as_bytes();
    if b.len() != 10 || !b[..9].iter().all(u8::is_ascii_digit) || !(b[9].is_ascii_digit() || b[9] == b'X') {
        return false;
    }
    let value = |b: u8| if b == b'X' { 10 } else { u32::from(b - b'0') };
    (1u32..).zip(b).map(|(i, b)| i * value(*b)).sum::<u32>() % 11 == 0
}

fn is_isbn13(text: &str) -> bool {
    let digits = isbn_digits(text);
    let b = digits.as_bytes();
    b.len() == 13
        && b.iter().all(u8::is_ascii_digit)
        && b.iter()
            .enumerate()
            .map(|(i, b)| u32::from(b - b'0') * if i % 2 == 0 { 1 } else { 3 })
            .sum::<u32>()
            % 10
            == 0
}

fn is_credit_card(text: &str) -> bool {
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    let pattern = pattern!(concat!(
        "^(?:4[0-9]{12}(?:[0-9]{3})?|5[1-5][0-9]{14}|6(?:011|5[0-9][0-9])[0-9]{12}|3[47][0-9]{13}|",
        "3(?:0[0-5]|[68][0-9])[0-9]{11}|(?:2131|1800|35[0-9]{3})[0-9]{11})$"
    ));
    let doubled = |n: u32| if n > 4 { n * 2 - 9 } else { n * 2 };
    let checksum = |text: &str| -> u32 {
        let numbers = text.bytes().rev().map(|b| u32::from(b - b'0'));
        numbers
            .enumerate()
            .map(|(i, n)| if i % 2 == 1 { doubled(n) } else { n })
            .sum()
    };
    pattern.is_match(&digits) && checksum(&digits) % 10 == 0
}

fn is_rgb(text: &str) -> bool {
    let Some(inner) = text.strip_prefix("rgb(").and_then(|t| t.strip_suffix(')')) else {
        return false;
    };
    let channel = |part: &str| {
        let part = part.trim_matches([' ', '\t', '\n', '\r', '\u{c}']);
        let plain =
            !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()) && (part == "0" || !part.starts_with('0'));
        plain && part.parse::<u8>().is_ok()
    };
    let parts: Vec<&str> = inner.split(',').collect();
    parts.len() == 3 && parts.into_iter().all(channel)
}

fn is_base64(text: &str) -> bool {
    pattern!("^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})$").is_match(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_told_by_their_format() {
        for (format, good, bad) in [
            ("date", &["2006-01-02"][..], &["2006-1-2", "2006-13-01", ""][..]),
            (
                "date-time",
                &["2014-12-15T19:30:20.000Z", "2014-12-15t19:30:20+01:00"],
                &["2014-12-15", "2014-12-15T24:30:20Z", "2014-12-15T19:30:20"],
            ),
            (
                "duration",
                &["22ns", "1h30m", "3 weeks", "1 hour"],
                &["", "x", "5 parsecs"],
            ),
            (
                "uri",
                &["http://a/b", "/a", "mailto:x", "https://[::1]:80/x"],
                &["", "a", "http://a b/", "://x"],
            ),
            ("email", &["a@b.c", "A <a@b>", "\"a b\"@c"], &["a", "a@", "@b", "a b@c"]),
            (
                "hostname",
                &[
                    "a",
                    "a1",
                    "a.example.com",
                    "1a.com",
                    "a-b.example.com",
                    "\u{1f600}.example.com",
                ],
                &["", "-a", "a_b", "a.b-", "a.b", "a.1com", "my-host", "-a.com", "a..com"],
            ),
            ("ipv4", &["1.2.3.4", "010.1.2.3"], &["1.2.3", "::1", "256.1.1.1"]),
            ("ipv6", &["::1", "fe80::1"], &["1.2.3.4", "x"]),
            ("cidr", &["10.0.0.0/8", "fd00::/64"], &["10.0.0.0", "10.0.0.0/33"]),
            (
                "mac",
                &["00:00:5e:00:53:01", "00-00-5e-00-53-01", "0000.5e00.5301"],
                &["00:00", "x"],
            ),
            (
                "uuid",
                &["1b4e28ba-2fa1-11d2-883f-0016d3cca427"],
                &["1b4e28ba", "1b4e28ba-2fa1-11d2-883f-0016d3cca42g"],
            ),
            (
                "uuid3",
                &["bcd02ab7-b9b4-3c5f-8e50-d2d7d0b0b0b0"],
                &["bcd02ab7-b9b4-4c5f-8e50-d2d7d0b0b0b0"],
            ),
            (
                "uuid4",
                &["025b0d74-00a2-4048-bf57-227c5111bb34"],
                &["025b0d74-00a2-4048-7f57-227c5111bb34"],
            ),
            (
                "isbn",
                &["0321751043", "978-0321751041"],
                &["836217463", "978-0321751042"],
            ),
            ("creditcard", &["4111-1111-1111-1111"], &["4111-1111-1111-1112", "x"]),
            ("ssn", &["111-11-1111"], &["999 111 999"]),
            ("hexcolor", &["#FFFFFF", "fff"], &["#ffff", "red"]),
            ("rgbcolor", &["rgb(255,255, 255)"], &["rgb(300,0,0)", "rgb(01,0,0)"]),
            ("byte", &["ZWxpemFiZXRocG9zZXk="], &["", "ZW=xpemFiZXRocG9zZXk"]),
            ("bsonobjectid", &["507f1f77bcf86cd799439011"], &["507f"]),
            ("k8s-short-name", &["a-b"], &["a.b", "A"]),
            ("k8s-long-name", &["a-b.c"], &["a..b"]),
            ("password", &["", "x"], &[]),
        ] {
            for text in good {
                assert_eq!(is_valid(format, text), Some(true), "{format} {text:?}");
            }
            for text in bad {
                assert_eq!(is_valid(format, text), Some(false), "{format} {text:?}");
            }
        }
        assert_eq!(is_valid("int-or-string", "x"), None);
        assert!(unrecognized("string", "int32") && !unrecognized("integer", "int32") && unrecognized("object", "uri"));
    }
}
