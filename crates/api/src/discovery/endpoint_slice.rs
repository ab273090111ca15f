//! Endpoint slices. Upstream: pkg/registry/discovery/endpointslice, pkg/apis/discovery/validation (v1.36).

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::core::service::validate_port_protocol;
use crate::field::{Cursor, Problems};
use crate::kind::{Column, KindDef};
use crate::meta::{self, invalid_text};
use crate::{fill, ip, names, printing};

pub(super) const DEF: KindDef = KindDef {
    group: "discovery.k8s.io",
    kind: "EndpointSlice",
    plural: "endpointslices",
    singular: "endpointslice",
    schema: "discovery/v1.EndpointSlice",
    columns: &[
        Column::string("AddressType"),
        Column::string("Ports"),
        Column::string("Endpoints"),
        Column::AGE,
    ],
    cells,
    default,
    prepare_create: drop_topology,
    prepare_update,
    validate,
    validate_update,
    warnings,
    generation: true,
    ..KindDef::BASE
};

const MAX_ENDPOINTS: usize = 1000;
const MAX_ADDRESSES: usize = 100;
const MAX_PORTS: usize = 20000;
const MAX_HINTS: usize = 8;

fn default(slice: &mut Value) {
    for port in fill::items(slice, "ports") {
        fill::absent(port, "name", "");
        fill::absent(port, "protocol", "TCP");
    }
}

/// A field of the beta API that is read but not written any more.
fn drop_topology(slice: &mut Value) {
    for endpoint in fill::items(slice, "endpoints") {
        if let Some(map) = endpoint.as_object_mut() {
            map.remove("deprecatedTopology");
        }
    }
}

/// Beside the contents, a change of labels counts as a new generation.
fn prepare_update(new: &mut Value, old: &Value) {
    drop_topology(new);
    if new.pointer("/metadata/labels") != old.pointer("/metadata/labels") {
        let generation = printing::int(old, "/metadata/generation") + 1;
        fill::member(new, "metadata")["generation"] = generation.into();
    }
}

fn validate(slice: &Cursor<'_>, p: &mut Problems) {
    let kind = slice.at("addressType");
    p.one_of(&kind, true, &["FQDN", "IPv4", "IPv6"]);
    validate_ports(&slice.at("ports"), p);
    let endpoints = slice.at("endpoints");
    if endpoints.len() > MAX_ENDPOINTS {
        return p.too_many(&endpoints, endpoints.len(), MAX_ENDPOINTS);
    }
    for endpoint in endpoints.items() {
        validate_endpoint(&endpoint, kind.str(), p);
    }
}

fn validate_ports(ports: &Cursor<'_>, p: &mut Problems) {
    if ports.len() > MAX_PORTS {
        return p.too_many(ports, ports.len(), MAX_PORTS);
    }
    let mut seen = BTreeSet::new();
    for port in ports.items() {
        let name = port.at("name");
        if !name.is_empty() {
            p.invalid_each(&name, names::dns_label(name.str()));
        }
        if !seen.insert(name.str()) {
            p.duplicate(&name);
        }
        validate_port_protocol(&port.at("protocol"), p);
        let app = port.at("appProtocol");
        if app.exists() {
            meta::validate_label_key(app.str(), app.path(), p);
        }
    }
}

fn validate_endpoint(endpoint: &Cursor<'_>, kind: &str, p: &mut Problems) {
    let addresses = endpoint.at("addresses");
    if addresses.is_empty() {
        p.required(&addresses, "must contain at least 1 address");
    } else if addresses.len() > MAX_ADDRESSES {
        p.too_many(&addresses, addresses.len(), MAX_ADDRESSES);
    }
    for address in addresses.items() {
        let fine = match kind {
            "IPv4" => ip::validate_ip(&address, p),
            "IPv6" => ip::validate_canonical_ip(&address, p),
            "FQDN" => {
                validate_domain(&address, p);
                false
            }
            _ => false,
        };
        if fine {
            if ip::family(address.str()) != Some(kind) {
                let detail = format!("must be an {kind} address");
                p.invalid_value(addresses.path(), &json!(address.str()), detail);
            }
            ip::validate_endpoint_ip(&address, p);
        }
    }
    let node = endpoint.at("nodeName");
    if node.exists() {
        for message in names::dns_subdomain(node.str()) {
            invalid_text(&node, message, p);
        }
    }
    let hostname = endpoint.at("hostname");
    if hostname.exists() {
        for message in names::dns_label(hostname.str()) {
            invalid_text(&hostname, message, p);
        }
    }
    let hints = endpoint.at("hints");
    if validate_hints(&hints.at("forZones"), names::label_value, p) {
        validate_hints(&hints.at("forNodes"), names::dns_subdomain, p);
    }
}

/// A domain name of at least two labels, with or without a dot at the end.
fn validate_domain(c: &Cursor<'_>, p: &mut Problems) {
    if c.is_empty() {
        return p.required(c, "");
    }
    let name = c.str().strip_suffix('.').unwrap_or(c.str());
    let messages = names::dns_subdomain(name);
    if !messages.is_empty() {
        return p.invalid_value(c.path(), &json!(name), messages.join(","));
    }
    if !name.contains('.') {
        let detail = "should be a domain with at least two segments separated by dots";
        return p.invalid_value(c.path(), &json!(name), detail);
    }
    let bad = name.split('.').find(|label| !names::dns_label(label).is_empty());
    if let Some(label) = bad {
        p.invalid_value(c.path(), &json!(label), names::dns_label(label).join(","));
    }
}

/// False if there are too many to look at.
fn validate_hints(hints: &Cursor<'_>, rule: names::Rule, p: &mut Problems) -> bool {
    if hints.len() > MAX_HINTS {
        p.too_many(hints, hints.len(), MAX_HINTS);
        return false;
    }
    let mut seen = BTreeSet::new();
    for hint in hints.items() {
        let name = hint.at("name");
        if !seen.insert(name.str()) {
            p.duplicate(&name);
        }
        for message in rule(name.str()) {
            invalid_text(&name, message, p);
        }
    }
    true
}

fn validate_update(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    meta::immutable_text(&new.at("addressType"), &old.at("addressType"), p);
}

fn warnings(slice: &Cursor<'_>, old: Option<&Cursor<'_>>) -> Vec<String> {
    let mut out = vec![];
    if old.is_none() && slice.at("addressType").str() == "FQDN" {
        out.push("spec.addressType: FQDN endpoints are deprecated".to_string());
    }
    // The controllers write addresses as they should be.
    let manager = meta::label(slice, "endpointslice.kubernetes.io/managed-by");
    if matches!(
        manager,
        Some("endpointslice-controller.k8s.io" | "endpointslicemirroring-controller.k8s.io")
    ) {
        return out;
    }
    let endpoints = slice.at("endpoints");
    let addresses = endpoints.items().flat_map(|e| e.at("addresses").items());
    out.extend(addresses.flat_map(|a| ip::ip_warnings(a.path(), a.str())));
    out
}

fn cells(slice: &Value, now: Timestamp) -> Vec<Value> {
    let c = Cursor::root(slice);
    let ports = c.at("ports").items().map(|port| match port.at("port").as_i64() {
        Some(number) => number.to_string(),
        None => port.at("name").as_str().unwrap_or("*").to_string(),
    });
    let endpoints = c.at("endpoints");
    let addresses = endpoints.items().flat_map(|e| e.at("addresses").items());
    vec![
        c.at("addressType").str().into(),
        first_three(ports.collect()).into(),
        first_three(addresses.map(|a| a.str().to_string()).collect()).into(),
        printing::age(slice, now),
    ]
}

fn first_three(all: Vec<String>) -> String {
    const SHOWN: usize = 3;
    let text = all[..all.len().min(SHOWN)].join(",");
    match all.len() {
        n if n > SHOWN => format!("{text} + {} more...", n - SHOWN),
        _ if text.is_empty() => "<unset>".to_string(),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind_check::{create_problems, defaulted, refuses, refuses_update, row};

    fn with(endpoint: Value) -> Value {
        json!({"endpoints": [endpoint]})
    }

    #[test]
    fn defaults_and_preparation() {
        let mut slice = defaulted(
            &DEF,
            json!({"addressType": "IPv4", "ports": [{"port": 1}], "endpoints": [{"addresses": ["1.1.1.1"], "deprecatedTopology": {"a": "b"}}]}),
        );
        (DEF.prepare_create)(&mut slice);
        assert_eq!(
            slice,
            json!({"addressType": "IPv4", "ports": [{"port": 1, "name": "", "protocol": "TCP"}], "endpoints": [{"addresses": ["1.1.1.1"]}]})
        );
        let old = json!({"metadata": {"generation": 4}});
        let mut new = json!({"metadata": {"generation": 4, "labels": {"a": "b"}}});
        (DEF.prepare_update)(&mut new, &old);
        assert_eq!(new["metadata"]["generation"], 5);
    }

    #[test]
    fn rules() {
        let zones = |n: usize| -> Value { (0..n).map(|i| json!({"name": format!("z{i}")})).collect() };
        refuses(
            &DEF,
            &json!({"addressType": "IPv4", "ports": [{"name": "a", "port": 80}], "endpoints": [{"addresses": ["1.1.1.1"]}]}),
            &[
                (
                    json!({"addressType": "", "endpoints": []}),
                    "addressType: Required value",
                ),
                (
                    json!({"addressType": "MAC"}),
                    "addressType: Unsupported value: \"MAC\": supported values: \"FQDN\", \"IPv4\", \"IPv6\"",
                ),
                (
                    json!({"ports": [{"name": "a"}, {"name": "a"}]}),
                    "ports[1].name: Duplicate value: \"a\"",
                ),
                (
                    json!({"ports": [{"protocol": "ICMP"}]}),
                    "ports[0].protocol: Unsupported value: \"ICMP\": supported values: \"SCTP\", \"TCP\", \"UDP\"",
                ),
                (
                    with(json!({"addresses": []})),
                    "endpoints[0].addresses: Required value: must contain at least 1 address",
                ),
                (
                    with(json!({"addresses": vec!["1.1.1.1"; 101]})),
                    "endpoints[0].addresses: Too many: 101: must have at most 100 items",
                ),
                (
                    json!({"endpoints": vec![json!({"addresses": ["1.1.1.1"]}); 1001]}),
                    "endpoints: Too many: 1001: must have at most 1000 items",
                ),
                (
                    with(json!({"addresses": ["::1:2"]})),
                    "endpoints[0].addresses: Invalid value: \"::1:2\": must be an IPv4 address",
                ),
                (
                    with(json!({"addresses": ["127.0.0.1"]})),
                    "endpoints[0].addresses[0]: Invalid value: \"127.0.0.1\": may not be in the loopback range (127.0.0.0/8, ::1/128)",
                ),
                (
                    with(json!({"addresses": ["1.1.1.1"], "hints": {"forZones": zones(9)}})),
                    "endpoints[0].hints.forZones: Too many: 9: must have at most 8 items",
                ),
                (
                    with(json!({"addresses": ["1.1.1.1"], "hints": {"forZones": [{"name": "z"}, {"name": "z"}]}})),
                    "endpoints[0].hints.forZones[1].name: Duplicate value: \"z\"",
                ),
                (
                    with(json!({"addresses": ["1.1.1.1"], "hints": {"forNodes": zones(9)}})),
                    "endpoints[0].hints.forNodes: Too many: 9: must have at most 8 items",
                ),
            ],
        );
        for (kind, address, wanted) in [
            ("IPv6", "fd00::1", ""),
            (
                "IPv6",
                "FD00::1",
                "endpoints[0].addresses[0]: Invalid value: \"FD00::1\": must be in canonical form (\"fd00::1\")",
            ),
            (
                "IPv6",
                "1.1.1.1",
                "endpoints[0].addresses: Invalid value: \"1.1.1.1\": must be an IPv6 address",
            ),
            ("FQDN", "a.example.", ""),
            ("FQDN", "", "endpoints[0].addresses[0]: Required value"),
            (
                "FQDN",
                "a",
                "endpoints[0].addresses[0]: Invalid value: \"a\": should be a domain with at least two segments separated by dots",
            ),
        ] {
            let slice = json!({"addressType": kind, "endpoints": [{"addresses": [address]}]});
            assert_eq!(create_problems(&DEF, slice).join(""), wanted, "{kind} {address}");
        }
        refuses_update(
            &DEF,
            &json!({"addressType": "IPv4", "endpoints": []}),
            &[(
                json!({"addressType": "IPv6"}),
                "addressType: Invalid value: \"IPv6\": field is immutable",
            )],
        );
    }

    #[test]
    fn rows_and_warnings() {
        let slice = json!({"addressType": "IPv4", "ports": [{"port": 80}, {"name": "x"}, {}], "endpoints": [
            {"addresses": ["1.1.1.1", "1.1.1.2"]}, {"addresses": ["1.1.1.3"]}, {"addresses": ["1.1.1.4"]}]});
        assert_eq!(
            row(&DEF, &slice),
            "IPv4|80,x,*|1.1.1.1,1.1.1.2,1.1.1.3 + 1 more...|<unknown>"
        );
        assert_eq!(row(&DEF, &json!({})), "|<unset>|<unset>|<unknown>");
        let odd = json!({"addressType": "FQDN", "endpoints": [{"addresses": ["::0:1"]}]});
        assert_eq!(warnings(&Cursor::root(&odd), None).len(), 2);
        let managed = json!({"metadata": {"labels": {"endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"}}, "endpoints": [{"addresses": ["::0:1"]}]});
        assert!(warnings(&Cursor::root(&managed), None).is_empty());
    }
}
