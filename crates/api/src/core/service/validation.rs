//! What a service may be. Upstream: ValidateServiceCreate, ValidateServiceUpdate (v1.36).

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{TOPOLOGY_HINTS, TOPOLOGY_MODE, is_external, needs_health_check};
use crate::field::{Cursor, Path, ProblemKind, Problems};
use crate::meta::{self, invalid_text};
use crate::{ip, names};

const SOURCE_RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
const MAX_AFFINITY_SECONDS: i64 = 86400;

pub(super) fn validate(service: &Cursor<'_>, p: &mut Problems) {
    let spec = service.at("spec");
    let (hints, mode) = (
        meta::annotation(service, TOPOLOGY_HINTS),
        meta::annotation(service, TOPOLOGY_MODE),
    );
    if let (Some(hints), Some(mode)) = (hints, mode)
        && hints != mode
    {
        let path = Path::default()
            .field("metadata")
            .field("annotations")
            .key(TOPOLOGY_MODE);
        let detail = format!("must match annotations[{TOPOLOGY_HINTS}] when both are specified");
        p.invalid_value(&path, &json!(mode), detail);
    }
    validate_type(&spec, p);
    validate_ports(&spec, p);
    meta::validate_labels(&spec.at("selector"), p);
    validate_affinity(&spec, p);
    validate_cluster_ips(&spec, p);
    for external in spec.at("externalIPs").items() {
        if ip::validate_ip(&external, p) {
            ip::validate_endpoint_ip(&external, p);
        }
    }
    p.one_of(
        &spec.at("type"),
        true,
        &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"],
    );
    validate_port_uniqueness(&spec, p);
    validate_load_balancer(service, &spec, p);
    validate_traffic(&spec, p);
}

fn is_headless(spec: &Cursor<'_>) -> bool {
    let ips = spec.at("clusterIPs");
    ips.len() == 1 && ips.items().all(|ip| ip.str() == "None")
}

/// What each type demands or rules out.
fn validate_type(spec: &Cursor<'_>, p: &mut Problems) {
    let kind = spec.at("type").str();
    let headless = is_headless(spec);
    if spec.at("ports").is_empty() && !headless && kind != "ExternalName" {
        p.required(&spec.at("ports"), "");
    }
    match kind {
        "LoadBalancer" | "NodePort" if headless => {
            let path = spec.at("clusterIPs").path().index(0);
            p.invalid_value(
                &path,
                &json!("None"),
                format!("may not be set to 'None' for {kind} services"),
            );
        }
        "ExternalName" => {
            for field in ["clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
                if !spec.at(field).is_empty() {
                    p.forbidden(&spec.at(field), "may not be set for ExternalName services");
                }
            }
            // A dot at the end only says that the name is complete.
            let name = spec.at("externalName");
            let bare = name.str().strip_suffix('.').unwrap_or(name.str());
            if bare.is_empty() {
                p.required(&name, "");
            }
            for message in names::dns_subdomain(bare).into_iter().filter(|_| !bare.is_empty()) {
                p.invalid_value(name.path(), &json!(bare), message);
            }
        }
        _ => {}
    }
}

fn validate_ports(spec: &Cursor<'_>, p: &mut Problems) {
    let ports = spec.at("ports");
    let mut seen = BTreeSet::new();
    for port in ports.items() {
        let name = port.at("name");
        if !name.is_empty() {
            p.invalid_each(&name, names::dns_label(name.str()));
            if !seen.insert(name.str()) {
                p.duplicate(&name);
            }
        } else if ports.len() > 1 {
            p.required(&name, "");
        }
        validate_number(&port.at("port"), p);
        validate_port_protocol(&port.at("protocol"), p);
        validate_number_or_name(&port.at("targetPort"), p);
        let app = port.at("appProtocol");
        if app.exists() {
            meta::validate_label_key(app.str(), app.path(), p);
        }
    }
}

fn validate_number(c: &Cursor<'_>, p: &mut Problems) {
    let n = c.as_i64().unwrap_or(0);
    for message in names::port_number(n) {
        p.invalid_value(c.path(), &json!(n), message);
    }
}

fn validate_number_or_name(c: &Cursor<'_>, p: &mut Problems) {
    match c.as_str() {
        Some(name) => p.invalid_each(c, names::port_name(name)),
        None => validate_number(c, p),
    }
}

/// The protocol of a port: TCP, UDP or SCTP.
pub fn validate_port_protocol(protocol: &Cursor<'_>, p: &mut Problems) {
    p.one_of(protocol, true, &["SCTP", "TCP", "UDP"]);
}

fn validate_affinity(spec: &Cursor<'_>, p: &mut Problems) {
    let (affinity, config) = (spec.at("sessionAffinity"), spec.at("sessionAffinityConfig"));
    p.one_of(&affinity, true, &["ClientIP", "None"]);
    match affinity.str() {
        "None" if config.exists() => p.forbidden(&config, "must not be set when session affinity is None"),
        "ClientIP" => {
            let client = config.at("clientIP");
            let timeout = client.at("timeoutSeconds");
            if let Some(missing) = [&config, &client, &timeout].into_iter().find(|c| !c.exists()) {
                return p.required(missing, "when session affinity type is ClientIP");
            }
            if !(1..=MAX_AFFINITY_SECONDS).contains(&timeout.as_i64().unwrap_or(0)) {
                p.invalid(
                    &timeout,
                    format!("must be greater than 0 and less than {MAX_AFFINITY_SECONDS}"),
                );
            }
        }
        _ => {}
    }
}

/// `clusterIP`, `clusterIPs`, `ipFamilies` and `ipFamilyPolicy` among themselves.
pub(super) fn validate_cluster_ips(spec: &Cursor<'_>, p: &mut Problems) {
    if spec.at("type").str() == "ExternalName" {
        return;
    }
    let (single, ips, families) = (spec.at("clusterIP").str(), spec.at("clusterIPs"), spec.at("ipFamilies"));
    let shown = ips.value().cloned().unwrap_or(Value::Null);
    let complain = |detail: &str, p: &mut Problems| p.invalid_value(ips.path(), &shown, detail);
    match (single.is_empty(), ips.items().next()) {
        (false, None) => p.required(&ips, ""),
        (false, Some(first)) if first.str() != single => complain("first value must match `clusterIP`", p),
        (true, Some(_)) => complain("must be empty when `clusterIP` is not specified", p),
        _ => {}
    }
    let mut seen = BTreeSet::new();
    for family in families.items() {
        if !matches!(family.str(), "IPv4" | "IPv6") {
            p.not_supported(&family, &["IPv4", "IPv6"]);
        }
        if !seen.insert(family.str()) {
            p.duplicate(&family);
        }
    }
    let policy = spec.at("ipFamilyPolicy");
    if policy.exists() && !matches!(policy.str(), "SingleStack" | "PreferDualStack" | "RequireDualStack") {
        p.not_supported(&policy, &["PreferDualStack", "RequireDualStack", "SingleStack"]);
    }
    let mut all_valid = true;
    for (i, address) in ips.items().enumerate() {
        if i == 0 && address.str() == "None" {
            if ips.len() > 1 {
                all_valid = false;
                complain("'None' must be the first and only value", p);
            }
        } else {
            all_valid &= ip::validate_ip(&address, p);
        }
    }
    if ips.len() > 2 {
        complain("may only hold up to 2 values", p);
    }
    // Judging families of addresses that are none would only confuse.
    if !all_valid {
        return;
    }
    let kinds: BTreeSet<_> = ips.items().map(|ip| ip::family(ip.str())).collect();
    if ips.len() > 1 && kinds.len() < 2 {
        complain("may specify no more than one IP for each IP family", p);
    }
    if is_headless(spec) {
        return;
    }
    for (i, (address, family)) in ips.items().zip(families.items()).enumerate() {
        if matches!(family.str(), "IPv4" | "IPv6") && ip::family(address.str()) != Some(family.str()) {
            let wanted = family.str();
            p.invalid(
                &address,
                format!("expected an {wanted} value as indicated by `ipFamilies[{i}]`"),
            );
        }
    }
}

fn validate_port_uniqueness(spec: &Cursor<'_>, p: &mut Problems) {
    let ports = spec.at("ports");
    let number = |c: Cursor<'_>| c.as_i64().unwrap_or(0);
    if spec.at("type").str() == "ClusterIP" {
        for port in ports.items().filter(|port| number(port.at("nodePort")) != 0) {
            p.forbidden(&port.at("nodePort"), "may not be used when `type` is 'ClusterIP'");
        }
    }
    let mut seen = BTreeSet::new();
    for port in ports.items().filter(|port| number(port.at("nodePort")) != 0) {
        if !seen.insert((port.at("protocol").str(), number(port.at("nodePort")))) {
            p.duplicate(&port.at("nodePort"));
        }
    }
    let mut seen = BTreeSet::new();
    for port in ports.items() {
        let key = (port.at("protocol").str(), number(port.at("port")));
        if !seen.insert(key) {
            // As upstream prints its inner form of a port.
            let shown = format!(
                r#"{{"Name":"","Protocol":"{}","AppProtocol":null,"Port":{},"TargetPort":0,"NodePort":0}}"#,
                key.0, key.1
            );
            p.push(ProblemKind::Duplicate, port.path(), Some(shown), "");
        }
    }
}

fn validate_load_balancer(service: &Cursor<'_>, spec: &Cursor<'_>, p: &mut Problems) {
    const ONLY: &str = "may only be used when `type` is 'LoadBalancer'";
    let balanced = spec.at("type").str() == "LoadBalancer";
    let ranges = spec.at("loadBalancerSourceRanges");
    if !ranges.is_empty() {
        // The path is capitalised upstream, too.
        let path = spec.path().field("LoadBalancerSourceRanges");
        if !balanced {
            p.push(ProblemKind::Forbidden, &path, None, ONLY);
        }
        for (i, range) in ranges.items().enumerate() {
            ip::validate_cidr_text(range.str().trim(), &path.index(i), p);
        }
    } else if let Some(ranges) = meta::annotation(service, SOURCE_RANGES) {
        let path = Path::default()
            .field("metadata")
            .field("annotations")
            .key(SOURCE_RANGES);
        if !balanced {
            p.push(ProblemKind::Forbidden, &path, None, ONLY);
        }
        for range in ranges.trim().split(',').filter(|_| !ranges.trim().is_empty()) {
            ip::validate_cidr_text(range.trim(), &path, p);
        }
    }
    let allocate = spec.at("allocateLoadBalancerNodePorts");
    if allocate.exists() && !balanced {
        p.forbidden(&allocate, ONLY);
    }
    if balanced && !allocate.exists() {
        p.required(&allocate, "");
    }
    let class = spec.at("loadBalancerClass");
    if class.exists() {
        if balanced {
            meta::validate_label_key(class.str(), class.path(), p);
        } else {
            p.forbidden(&class, ONLY);
        }
    }
}

fn validate_traffic(spec: &Cursor<'_>, p: &mut Problems) {
    let value = spec.value().unwrap_or(&Value::Null);
    let external = spec.at("externalTrafficPolicy");
    if is_external(value) {
        p.one_of(&external, true, &["Cluster", "Local"]);
    } else if !external.is_empty() {
        p.invalid(&external, "may only be set for externally-accessible services");
    }
    let check = spec.at("healthCheckNodePort");
    // Differs from upstream: a port that is needed and not there is no problem, it is allocated after this.
    if !check.is_empty() {
        if needs_health_check(value) {
            validate_number(&check, p);
        } else {
            let detail = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
            p.invalid(&check, detail);
        }
    }
    let internal = spec.at("internalTrafficPolicy");
    if internal.exists() {
        if !matches!(internal.str(), "Cluster" | "Local") {
            p.not_supported(&internal, &["Cluster", "Local"]);
        }
    } else if matches!(spec.at("type").str(), "NodePort" | "LoadBalancer" | "ClusterIP") {
        p.required(&internal, "");
    }
    let distribution = spec.at("trafficDistribution");
    if distribution.exists() {
        const KNOWN: [&str; 3] = ["PreferClose", "PreferSameZone", "PreferSameNode"];
        if !KNOWN.contains(&distribution.str()) {
            meta::not_supported(&distribution, &KNOWN, p);
        }
    }
}

pub(super) fn validate_update(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    let (new, old) = (new.at("spec"), old.at("spec"));
    let named = |spec: &Cursor<'_>| spec.at("type").str() == "ExternalName";
    if !named(&new) && !named(&old) {
        validate_ips_update(&new, &old, p);
        if !is_headless(&new) && !is_headless(&old) {
            validate_families_update(&new, &old, p);
        }
    }
    let balanced = |spec: &Cursor<'_>| spec.at("type").str() == "LoadBalancer";
    let class = new.at("loadBalancerClass");
    if balanced(&new) && balanced(&old) && class.value() != old.at("loadBalancerClass").value() {
        p.invalid(&class, "may not change once set");
    }
    let checked = |spec: &Cursor<'_>| spec.value().is_some_and(needs_health_check);
    let port = new.at("healthCheckNodePort");
    if checked(&new) && checked(&old) && port.as_i64() != old.at("healthCheckNodePort").as_i64() {
        p.forbidden(&port, "field is immutable");
    }
}

/// A second address may come and go, the first stays.
fn validate_ips_update(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    if is_headless(new) && is_headless(old) {
        return;
    }
    let (ips, before) = (new.at("clusterIPs"), old.at("clusterIPs"));
    let shown = ips.value().cloned().unwrap_or(Value::Null);
    let changed = |i: usize, p: &mut Problems| p.invalid_value(&ips.path().index(i), &shown, "may not change once set");
    let pairs = ips.items().zip(before.items()).enumerate();
    let compared = if ips.len() == before.len() { ips.len() } else { 1 };
    for (i, (a, b)) in pairs.take(compared) {
        if a.str() != b.str() {
            changed(i, p);
        }
    }
    if ips.len() < before.len() {
        if ips.is_empty() {
            p.invalid_value(&ips.path().index(0), &shown, "primary clusterIP can not be unset");
        }
        require_single_stack(new, ips.len(), "clusterIP", p);
    }
}

fn validate_families_update(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    let (families, before) = (new.at("ipFamilies"), old.at("ipFamilies"));
    let path = families.path().index(0);
    let shown = |c: &Cursor<'_>| c.value().cloned().unwrap_or(Value::Null);
    let same_count = families.len() == before.len();
    let compared = if same_count { families.len() } else { 1 };
    for (a, b) in families.items().zip(before.items()).take(compared) {
        if a.str() != b.str() {
            let value = if same_count {
                shown(&families)
            } else {
                shown(&new.at("clusterIPs"))
            };
            p.invalid_value(&path, &value, "may not change once set");
        }
    }
    if families.len() < before.len() {
        if new.at("clusterIPs").is_empty() {
            p.invalid_value(&path, &shown(&families), "primary ipFamily can not be unset");
        }
        require_single_stack(new, families.len(), "ipFamily", p);
    }
}

fn require_single_stack(spec: &Cursor<'_>, left: usize, what: &str, p: &mut Problems) {
    let policy = spec.at("ipFamilyPolicy");
    if left == 1 && policy.str() != "SingleStack" {
        p.invalid(
            &policy,
            format!("must be set to 'SingleStack' when releasing the secondary {what}"),
        );
    }
}

pub(super) fn validate_status(new: &Cursor<'_>, _old: &Cursor<'_>, p: &mut Problems) {
    let balanced = new.at("spec").at("type").str() == "LoadBalancer";
    let ingress = new.at("status").at("loadBalancer").at("ingress");
    if !balanced && !ingress.is_empty() {
        p.forbidden(&ingress, "may only be used when `spec.type` is 'LoadBalancer'");
    } else {
        validate_load_balancer_status(&ingress, p);
    }
}

/// The ingress list of a service's status.
pub fn validate_load_balancer_status(ingress: &Cursor<'_>, p: &mut Problems) {
    for ingress in ingress.items() {
        let (address, mode, hostname) = (ingress.at("ip"), ingress.at("ipMode"), ingress.at("hostname"));
        if !address.is_empty() {
            ip::validate_ip(&address, p);
        }
        match (mode.exists(), address.is_empty()) {
            (false, false) => p.required(&mode, "must be specified when `ip` is set"),
            (true, true) => p.forbidden(&mode, "may not be specified when `ip` is not set"),
            (true, false) => p.one_of(&mode, true, &["Proxy", "VIP"]),
            (false, true) => {}
        }
        if !hostname.is_empty() {
            p.invalid_each(&hostname, names::dns_subdomain(hostname.str()));
            if ip::parse(hostname.str()).is_some() {
                invalid_text(&hostname, "must be a DNS name, not an IP address", p);
            }
        }
    }
}
