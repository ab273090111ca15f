//! Checks of one field that several kinds share, where an absent string is the empty one.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;

use crate::field::{Cursor, Problems};
use crate::names::{self, Rule};

static EMPTY: Value = Value::String(String::new());

/// The same place, with "" where nothing is: complaints about a string show it as Go would.
pub(crate) fn as_text<'a>(c: &Cursor<'a>) -> Cursor<'a> {
    Cursor::new(Some(c.value().unwrap_or(&EMPTY)), c.path().clone())
}

/// The rule holds, also for the empty string.
pub(crate) fn follows(c: &Cursor<'_>, rule: Rule, p: &mut Problems) {
    p.invalid_each(&as_text(c), rule(c.str()));
}

/// There is a string and the rule holds for it.
pub(crate) fn required(c: &Cursor<'_>, rule: Rule, p: &mut Problems) {
    if c.is_empty() {
        p.required(c, "");
    } else {
        p.invalid_each(c, rule(c.str()));
    }
}

/// The rule holds if there is a string at all.
pub(crate) fn optional(c: &Cursor<'_>, rule: Rule, p: &mut Problems) {
    if !c.is_empty() {
        p.invalid_each(c, rule(c.str()));
    }
}

/// An IP address as Kubernetes wants new ones: no leading zeros, no IPv4 in IPv6, canonical.
pub(crate) fn strict_ip(text: &str) -> Vec<String> {
    let found = lenient_ip(text);
    match text.parse::<IpAddr>() {
        Ok(ip) if found.is_empty() && ip.to_string() != text => {
            vec![format!("must be in canonical form ({:?})", ip.to_string())]
        }
        _ => found,
    }
}

/// An IP address in a field of old: it need not be canonical.
pub(crate) fn lenient_ip(text: &str) -> Vec<String> {
    let complaint = match text.parse::<IpAddr>() {
        Ok(IpAddr::V6(ip)) if ip.to_ipv4_mapped().is_some() => "must not be an IPv4-mapped IPv6 address",
        Ok(_) => return vec![],
        Err(_) if without_leading_zeros(text).parse::<IpAddr>().is_ok() => "must not have leading 0s",
        Err(_) => "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
    };
    vec![complaint.to_string()]
}

/// A CIDR in canonical form.
pub(crate) fn strict_cidr(text: &str) -> Vec<String> {
    let found = lenient_cidr(text);
    match text.parse::<IpNet>() {
        Ok(net) if found.is_empty() && net.to_string() != text => {
            vec![format!("must be in canonical form ({:?})", net.to_string())]
        }
        _ => found,
    }
}

/// A CIDR in a field of old: the IPv6 part need not be canonical.
pub(crate) fn lenient_cidr(text: &str) -> Vec<String> {
    let complaint = match parse_cidr(text) {
        Some(IpNet::V6(net)) if net.addr().to_ipv4_mapped().is_some() => "must not have an IPv4-mapped IPv6 address",
        Some(net) if net.addr() != net.network() => "must not have bits set beyond the prefix length",
        Some(_) => return vec![],
        None => {
            let (address, prefix) = text.split_once('/').unwrap_or((text, ""));
            let digits = match prefix.trim_start_matches('0') {
                "" if !prefix.is_empty() => "0",
                other => other,
            };
            let relaxed = format!("{}/{digits}", without_leading_zeros(address));
            match relaxed != text && parse_cidr(&relaxed).is_some() {
                true => "must not have leading 0s in IP or prefix length",
                false => "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
            }
        }
    };
    vec![complaint.to_string()]
}

/// As `IpNet` reads it, but for a prefix length with a leading zero or a sign.
fn parse_cidr(text: &str) -> Option<IpNet> {
    let (_, prefix) = text.split_once('/')?;
    let plain = prefix.bytes().all(|b| b.is_ascii_digit()) && (prefix == "0" || !prefix.starts_with('0'));
    if plain { text.parse().ok() } else { None }
}

fn without_leading_zeros(address: &str) -> String {
    let octets = address.split('.').map(|octet| match octet.trim_start_matches('0') {
        "" if !octet.is_empty() => "0",
        other => other,
    });
    octets.collect::<Vec<_>>().join(".")
}

/// `example.com/signer`: a domain of at least two labels, a slash, and a name that may have dots.
pub(crate) fn signer_name(c: &Cursor<'_>, p: &mut Problems) {
    if c.is_empty() {
        return p.required(c, "");
    }
    let parts: Vec<&str> = c.str().split('/').collect();
    let &[domain, name] = parts.as_slice() else {
        let detail = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        return p.invalid(c, detail);
    };
    if domain.len() > 253 {
        p.too_long(c, 253);
    }
    first_bad_label(c, domain, names::dns_label, p);
    if !domain.contains('.') {
        let detail = "should be a domain with at least two segments separated by dots";
        p.invalid_value(c.path(), &domain.into(), detail);
    }
    first_bad_label(c, name, names::dns_subdomain, p);
    // What fits in a label: a domain, a slash, and 253 characters that may hold a namespace and a name.
    let longest = 253 + 1 + 63 + 1 + 253;
    if c.len() > longest {
        p.too_long(c, longest);
    }
}

fn first_bad_label(c: &Cursor<'_>, text: &str, rule: Rule, p: &mut Problems) {
    let bad = text.split('.').find_map(|label| {
        let found = rule(label);
        (!found.is_empty()).then_some((label, found))
    });
    for (label, message) in bad
        .into_iter()
        .flat_map(|(l, found)| found.into_iter().map(move |m| (l, m)))
    {
        let detail = format!("validating label {label:?}: {message}");
        p.invalid_value(c.path(), &text.into(), detail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::Problem;

    #[test]
    fn addresses() {
        for (text, strict, lenient) in [
            ("10.1.2.3", "", ""),
            ("fe80::1", "", ""),
            ("FE80::1", r#"must be in canonical form ("fe80::1")"#, ""),
            ("010.1.2.3", "must not have leading 0s", "must not have leading 0s"),
            (
                "::ffff:10.1.2.3",
                "must not be an IPv4-mapped IPv6 address",
                "must not be an IPv4-mapped IPv6 address",
            ),
            (
                "a.b",
                "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
                "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
            ),
        ] {
            assert_eq!(strict_ip(text).join(";"), strict, "{text}");
            assert_eq!(lenient_ip(text).join(";"), lenient, "{text}");
        }
    }

    #[test]
    fn cidrs() {
        let invalid = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
        for (text, strict, lenient) in [
            ("10.1.2.0/24", "", ""),
            ("0.0.0.0/0", "", ""),
            ("fd00::/64", "", ""),
            ("FD00:0::/64", r#"must be in canonical form ("fd00::/64")"#, ""),
            (
                "10.1.2.3/24",
                "must not have bits set beyond the prefix length",
                "must not have bits set beyond the prefix length",
            ),
            (
                "10.1.2.0/024",
                "must not have leading 0s in IP or prefix length",
                "must not have leading 0s in IP or prefix length",
            ),
            (
                "::ffff:10.1.2.0/120",
                "must not have an IPv4-mapped IPv6 address",
                "must not have an IPv4-mapped IPv6 address",
            ),
            ("10.1.2.0", invalid, invalid),
            ("10.1.2.0/33", invalid, invalid),
            ("", invalid, invalid),
        ] {
            assert_eq!(strict_cidr(text).join(";"), strict, "{text}");
            assert_eq!(lenient_cidr(text).join(";"), lenient, "{text}");
        }
    }

    #[test]
    fn signer_names() {
        for (text, wanted) in [
            ("example.com/s", ""),
            ("", "<nil>: Required value"),
            (
                "example.com",
                r#"<nil>: Invalid value: "example.com": must be a fully qualified domain and path of the form 'example.com/signer-name'"#,
            ),
            (
                "example/s",
                r#"<nil>: Invalid value: "example": should be a domain with at least two segments separated by dots"#,
            ),
        ] {
            let value = Value::from(text);
            let mut p = Problems::default();
            signer_name(&Cursor::root(&value), &mut p);
            assert_eq!(
                p.0.iter().map(Problem::to_string).collect::<Vec<_>>().join("; "),
                wanted
            );
        }
    }
}
