//! The pod's place in the network: host ports, DNS, host names.

use super::{Read, legacy_ip};
use crate::field::{Cursor, Problems};
use crate::names;

/// On the host's network a container's port is the host's port.
pub(super) fn host_ports(spec: &Cursor<'_>, is_pod: bool, p: &mut Problems) {
    if spec.flag("hostNetwork") != Some(true) {
        return;
    }
    for port in spec
        .each("containers")
        .flat_map(|c| c.each("ports").collect::<Vec<_>>())
    {
        let host = port.number("hostPort").unwrap_or(0);
        // A template may leave it open: the pod made from it gets the number.
        if (is_pod || host != 0) && host != port.number("containerPort").unwrap_or(0) {
            let detail = "must match `containerPort` when `hostNetwork` is true";
            p.invalid_value(port.at("hostPort").path(), &host.into(), detail);
        }
    }
}

/// What the resolvers of libc can take.
const MAX_NAMESERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_CHARS: usize = 2048;

pub(super) fn dns_config(spec: &Cursor<'_>, p: &mut Problems) {
    let config = spec.given("dnsConfig");
    if spec.text("dnsPolicy") == "None" {
        let Some(config) = &config else {
            return p.required(
                &spec.at("dnsConfig"),
                "must provide `dnsConfig` when `dnsPolicy` is None",
            );
        };
        if config.list("nameservers").is_empty() {
            let detail = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            return p.required(&config.at("nameservers"), detail);
        }
    }
    let Some(config) = config else { return };
    if let Some(servers) = config.given("nameservers") {
        if servers.len() > MAX_NAMESERVERS {
            p.invalid(
                &servers,
                format!("must not have more than {MAX_NAMESERVERS} nameservers"),
            );
        }
        for server in servers.items() {
            legacy_ip(&server, server.path(), p);
        }
    }
    if let Some(searches) = config.given("searches") {
        self::searches(&searches, p);
    }
    for option in config.each("options") {
        if option.text("name").is_empty() {
            p.required(&option, "must not be empty");
        }
    }
}

fn searches(c: &Cursor<'_>, p: &mut Problems) {
    if c.len() > MAX_SEARCHES {
        p.invalid(c, format!("must not have more than {MAX_SEARCHES} search paths"));
    }
    let chars: usize = c.items().map(|s| s.len() + 1).sum();
    if chars.saturating_sub(1) > MAX_SEARCH_CHARS {
        p.invalid(
            c,
            format!("must not have more than {MAX_SEARCH_CHARS} characters (including spaces) in the search list"),
        );
    }
    for search in c.items().filter(|s| s.str() != ".") {
        let name = search.str().strip_suffix('.').unwrap_or(search.str());
        for problem in search_domain(name) {
            p.invalid_value(search.path(), &name.into(), problem);
        }
    }
}

/// A DNS subdomain whose labels may begin with one underscore and hold others.
fn search_domain(name: &str) -> Vec<String> {
    let word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let label = |l: &str| {
        let b = l.as_bytes();
        let rest = b.strip_prefix(b"_").unwrap_or(b);
        let (Some(&first), Some(&last)) = (rest.first(), rest.last()) else {
            return false;
        };
        word(first) && word(last) && rest.iter().all(|&c| word(c) || matches!(c, b'-' | b'_'))
    };
    let mut out = vec![];
    if name.len() > 253 {
        out.push("must be no more than 253 characters".to_string());
    }
    if !name.split('.').all(label) {
        out.push(names::pattern_message(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must start and end with an alphanumeric character",
            r"_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*",
            &["example.com"],
        ));
    }
    out
}

pub(super) fn hostname_override(spec: &Cursor<'_>, p: &mut Problems) {
    let Some(name) = spec.given("hostnameOverride") else {
        return;
    };
    if spec.flag("setHostnameAsFQDN") == Some(true) {
        p.forbidden(&name, "may not be specified when setHostnameAsFQDN is true");
    }
    if spec.flag("hostNetwork") == Some(true) {
        p.forbidden(&name, "may not be specified when hostNetwork is true");
    }
    if name.len() > 64 {
        p.too_long(&name, 64);
    }
    p.invalid_each(&name, names::dns_subdomain(name.str()));
}

pub(super) fn host_aliases(spec: &Cursor<'_>, p: &mut Problems) {
    for alias in spec.each("hostAliases") {
        let ip = alias.at("ip");
        legacy_ip(&ip, ip.path(), p);
        for name in alias.each("hostnames") {
            p.invalid_each(&name, names::dns_subdomain(name.str()));
        }
    }
}
