//! IP addresses and networks as they stand in fields: what is accepted, what is only warned about.
//!
//! A value may be readable yet refused: leading zeros (which some software takes for octal) and IPv4 addresses dressed as
//! IPv6 mean different things to different programs. Upstream: apimachinery pkg/util/validation/ip.go (v1.36, strict).

use std::net::{IpAddr, Ipv6Addr};

use serde_json::json;

use crate::field::{Cursor, Path, Problems};
use crate::rules;

/// Reads an address, leading zeros in IPv4 octets or not.
pub fn parse(text: &str) -> Option<IpAddr> {
    if let Ok(ip) = text.parse() {
        return Some(ip);
    }
    let (head, v4) = match text.rsplit_once(':') {
        Some((_, last)) => (&text[..text.len() - last.len()], last),
        None => ("", text),
    };
    if !v4.contains('.') {
        return None;
    }
    let octets: Vec<&str> = v4
        .split('.')
        .map(|octet| match octet.trim_start_matches('0') {
            "" if !octet.is_empty() => "0",
            rest => rest,
        })
        .collect();
    format!("{head}{}", octets.join(".")).parse().ok()
}

/// The address and prefix length of `10.0.0.0/8`, read as generously as `parse` does.
pub fn parse_network(text: &str) -> Option<(IpAddr, u8)> {
    let (address, length) = text.split_once('/')?;
    let ip = parse(address)?;
    if length.is_empty() || !length.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let length: u8 = length.parse().ok()?;
    (length <= bits(&ip)).then_some((ip, length))
}

fn bits(ip: &IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

fn is_mapped(ip: &IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some())
}

/// "IPv4" or "IPv6", as services name the families.
pub fn family(text: &str) -> Option<&'static str> {
    let ip = parse(text)?.to_canonical();
    Some(if ip.is_ipv4() { "IPv4" } else { "IPv6" })
}

/// An address, not necessarily in canonical form.
pub fn validate_ip(c: &Cursor<'_>, p: &mut Problems) -> bool {
    complain(c.str(), c.path(), rules::lenient_ip(c.str()), p)
}

/// An address in canonical form: what newer fields demand.
pub fn validate_canonical_ip(c: &Cursor<'_>, p: &mut Problems) -> bool {
    complain(c.str(), c.path(), rules::strict_ip(c.str()), p)
}

/// A network; no bits may be set beyond the prefix.
pub fn validate_cidr(c: &Cursor<'_>, p: &mut Problems) -> bool {
    validate_cidr_text(c.str(), c.path(), p)
}

/// A network that stands in a longer text; the problem is shown at `path`.
pub fn validate_cidr_text(text: &str, path: &Path, p: &mut Problems) -> bool {
    complain(text, path, rules::lenient_cidr(text), p)
}

fn complain(text: &str, path: &Path, messages: Vec<String>, p: &mut Problems) -> bool {
    let fine = messages.is_empty();
    for message in messages {
        p.invalid_value(path, &json!(text), message);
    }
    fine
}

fn is_strict_network(text: &str) -> bool {
    text.split_once('/')
        .is_some_and(|(ip, length)| ip.parse::<IpAddr>().is_ok() && (length == "0" || !length.starts_with('0')))
}

/// The address with all bits beyond the prefix cleared.
pub fn masked(ip: &IpAddr, length: u8) -> IpAddr {
    match ip {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            IpAddr::V4((v4.to_bits() & mask).into())
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask))
        }
    }
}

/// Where traffic is sent to: not unspecified, loopback or link-local.
pub fn validate_endpoint_ip(c: &Cursor<'_>, p: &mut Problems) {
    let Some(ip) = parse(c.str()).map(|ip| ip.to_canonical()) else {
        return p.invalid_value(c.path(), &json!(c.str()), "must be a valid IP address");
    };
    let (link_local, link_local_multicast) = match ip {
        IpAddr::V4(v4) => (v4.is_link_local(), v4.octets()[..3] == [224, 0, 0]),
        IpAddr::V6(v6) => {
            let [a, b, ..] = v6.octets();
            (a == 0xfe && b & 0xc0 == 0x80, a == 0xff && b & 0x0f == 0x02)
        }
    };
    if ip.is_unspecified() {
        p.invalid(c, format!("may not be unspecified ({})", c.str()));
    }
    if ip.is_loopback() {
        p.invalid(c, "may not be in the loopback range (127.0.0.0/8, ::1/128)");
    }
    if link_local {
        p.invalid(c, "may not be in the link-local range (169.254.0.0/16, fe80::/10)");
    }
    if link_local_multicast {
        p.invalid(
            c,
            "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)",
        );
    }
}

/// Advice on an address that is accepted but oddly written.
pub fn ip_warnings(path: &Path, text: &str) -> Vec<String> {
    let Some(ip) = parse(text) else { return vec![] };
    if text.parse::<IpAddr>().is_err() || is_mapped(&ip) {
        let better = ip.to_canonical().to_string();
        return vec![format!(
            "{path}: non-standard IP address {text:?} is invalid: use {better:?}"
        )];
    }
    let canonical = ip.to_string();
    if ip.is_ipv6() && canonical != text {
        return vec![format!(
            "{path}: IPv6 address {text:?} should be in RFC 5952 canonical format ({canonical:?})"
        )];
    }
    vec![]
}

/// Advice on a network that is accepted but oddly written.
pub fn cidr_warnings(path: &Path, text: &str) -> Vec<String> {
    let Some((ip, length)) = parse_network(text) else {
        return vec![];
    };
    let network = format!("{}/{length}", masked(&ip, length));
    let mut out = vec![];
    if masked(&ip, length) != ip {
        let single = format!("{ip}/{}", bits(&ip));
        out.push(format!(
            "{path}: CIDR value {text:?} is ambiguous in this context (should be {network:?} or {single:?}?)"
        ));
    }
    if !is_strict_network(text) || is_mapped(&ip) {
        out.push(format!(
            "{path}: non-standard CIDR value {text:?} is invalid: use {network:?}"
        ));
    }
    if out.is_empty() && ip.is_ipv6() && format!("{ip}/{length}") != text {
        out.push(format!(
            "{path}: IPv6 CIDR value {text:?} should be in RFC 5952 canonical format (\"{ip}/{length}\")"
        ));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families() {
        let found = ["1.2.3.4", "01.2.3.4", "::1", "::ffff:1.2.3.4", "x", "1.2.3"].map(family);
        assert_eq!(
            found,
            [Some("IPv4"), Some("IPv4"), Some("IPv6"), Some("IPv4"), None, None]
        );
        assert_eq!(parse_network("10.0.0.0/08"), Some(("10.0.0.0".parse().unwrap(), 8)));
        for bad in ["10.0.0.0", "10.0.0.0/", "10.0.0.0/33", "10.0.0.0/-1", "x/8"] {
            assert_eq!(parse_network(bad), None, "{bad}");
        }
        assert_eq!(masked(&"10.1.2.3".parse().unwrap(), 0).to_string(), "0.0.0.0");
        assert_eq!(masked(&"2001:db8::1".parse().unwrap(), 32).to_string(), "2001:db8::");
    }

    #[test]
    fn warnings() {
        let path = Path::default().field("f");
        for (text, wanted) in [
            ("1.2.3.4", ""),
            ("nonsense", ""),
            (
                "01.2.3.4",
                "f: non-standard IP address \"01.2.3.4\" is invalid: use \"1.2.3.4\"",
            ),
            (
                "::0:1",
                "f: IPv6 address \"::0:1\" should be in RFC 5952 canonical format (\"::1\")",
            ),
        ] {
            assert_eq!(ip_warnings(&path, text).join("; "), wanted, "{text}");
        }
        for (text, wanted) in [
            ("10.0.0.0/8", ""),
            (
                "10.1.0.0/8",
                "f: CIDR value \"10.1.0.0/8\" is ambiguous in this context (should be \"10.0.0.0/8\" or \"10.1.0.0/32\"?)",
            ),
            (
                "10.0.0.0/08",
                "f: non-standard CIDR value \"10.0.0.0/08\" is invalid: use \"10.0.0.0/8\"",
            ),
            (
                "::0/64",
                "f: IPv6 CIDR value \"::0/64\" should be in RFC 5952 canonical format (\"::/64\")",
            ),
        ] {
            assert_eq!(cidr_warnings(&path, text).join("; "), wanted, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn padding_with_zeros_changes_nothing_but_the_form(bits: u32, length in 0u8..=32) {
            let ip = std::net::Ipv4Addr::from_bits(bits);
            let padded = ip.octets().map(|o| format!("{o:03}")).join(".");
            assert_eq!(parse(&padded), Some(IpAddr::V4(ip)));
            let network = masked(&IpAddr::V4(ip), length);
            assert_eq!(masked(&network, length), network);
            assert_eq!(parse_network(&format!("{padded}/{length:02}")), Some((IpAddr::V4(ip), length)));
            assert!(rules::lenient_cidr(&format!("{network}/{length}")).is_empty());
        }
    }
}
