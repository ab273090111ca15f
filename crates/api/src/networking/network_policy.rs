//! NetworkPolicy.
//!
//! Upstream: pkg/apis/networking/{v1/defaults.go,validation}, pkg/registry/networking/networkpolicy (v1.36).

use ipnet::IpNet;
use serde_json::{Value, json};

use crate::field::{Cursor, Problems};
use crate::kind::{Column, KindDef};
use crate::printing::age;
use crate::workload::selector_cell;
use crate::{fill, ip, meta, names, rules};

pub const DEF: KindDef = KindDef {
    group: super::GROUP,
    kind: "NetworkPolicy",
    plural: "networkpolicies",
    singular: "networkpolicy",
    short_names: &["netpol"],
    schema: "networking/v1.NetworkPolicy",
    columns: &[Column::string("Pod-Selector"), Column::AGE],
    cells: |policy, now| vec![selector_cell(policy.pointer("/spec/podSelector")), age(policy, now)],
    default,
    validate: |policy, p| validate_spec(&policy.at("spec"), p),
    warnings: |policy, _| warnings(policy),
    generation: true,
    ..KindDef::BASE
};

fn default(policy: &mut Value) {
    let spec = fill::member(policy, "spec");
    for direction in ["ingress", "egress"] {
        for port in fill::items(spec, direction).flat_map(|rule| fill::items(rule, "ports")) {
            fill::absent(port, "protocol", "TCP");
        }
    }
    let egress = spec
        .get("egress")
        .and_then(Value::as_array)
        .is_some_and(|e| !e.is_empty());
    let types = if egress {
        json!(["Ingress", "Egress"])
    } else {
        json!(["Ingress"])
    };
    fill::empty(spec, "policyTypes", types);
}

/// The peers of all rules, each with its path.
fn peers<'a>(spec: &Cursor<'a>) -> impl Iterator<Item = Cursor<'a>> + use<'a> {
    let from = spec.at("ingress").items().flat_map(|rule| rule.at("from").items());
    let to = spec.at("egress").items().flat_map(|rule| rule.at("to").items());
    from.chain(to)
}

fn validate_spec(spec: &Cursor<'_>, p: &mut Problems) {
    meta::validate_label_selector(&spec.at("podSelector"), p);
    for (direction, side) in [("ingress", "from"), ("egress", "to")] {
        for rule in spec.at(direction).items() {
            for port in rule.at("ports").items() {
                validate_port(&port, p);
            }
            for peer in rule.at(side).items() {
                validate_peer(&peer, p);
            }
        }
    }
    let types = spec.at("policyTypes");
    if types.len() > 2 {
        return p.invalid(&types, "may not specify more than two policyTypes");
    }
    for kind in types.items() {
        if !["Ingress", "Egress"].contains(&kind.str()) {
            p.not_supported_as_listed(&kind, &["Ingress", "Egress"]);
        }
    }
}

fn validate_port(port: &Cursor<'_>, p: &mut Problems) {
    let protocol = port.at("protocol");
    if !["", "TCP", "UDP", "SCTP"].contains(&protocol.str()) {
        p.not_supported_as_listed(&protocol, &["TCP", "UDP", "SCTP"]);
    }
    let (start, end) = (port.at("port"), port.at("endPort"));
    if let Some(number) = start.as_i64() {
        p.invalid_each(&start, names::port_number(number));
        if let Some(last) = end.as_i64() {
            if last < number {
                p.invalid_value(end.path(), &number.into(), "must be greater than or equal to `port`");
            }
            p.invalid_each(&end, names::port_number(last));
        }
    } else if start.exists() {
        if end.exists() {
            p.invalid(&end, "may not be specified when `port` is non-numeric");
        }
        p.invalid_each(&start, names::port_name(start.str()));
    } else if end.exists() {
        p.invalid(&end, "may not be specified when `port` is not specified");
    }
}

fn validate_peer(peer: &Cursor<'_>, p: &mut Problems) {
    let (pods, namespaces, block) = (peer.at("podSelector"), peer.at("namespaceSelector"), peer.at("ipBlock"));
    meta::validate_label_selector(&pods, p);
    meta::validate_label_selector(&namespaces, p);
    if block.exists() {
        validate_block(&block, p);
    }
    match (pods.exists() || namespaces.exists(), block.exists()) {
        (false, false) => p.required(peer, "must specify a peer"),
        (true, true) => p.forbidden(peer, "may not specify both ipBlock and another peer"),
        _ => {}
    }
}

fn validate_block(block: &Cursor<'_>, p: &mut Problems) {
    let cidr = block.at("cidr");
    if cidr.is_empty() {
        return p.required(&cidr, "");
    }
    p.invalid_each(&cidr, rules::lenient_cidr(cidr.str()));
    let Ok(outer) = cidr.str().parse::<IpNet>() else { return };
    for except in block.at("except").items() {
        rules::follows(&except, rules::lenient_cidr, p);
        let inner = except.str().parse::<IpNet>();
        if inner.is_ok_and(|inner| !outer.contains(&inner) || outer.prefix_len() >= inner.prefix_len()) {
            p.invalid(&except, "must be a strict subset of `cidr`");
        }
    }
}

fn warnings(policy: &Cursor<'_>) -> Vec<String> {
    let blocks = peers(&policy.at("spec")).map(|peer| peer.at("ipBlock"));
    let cidrs = blocks.flat_map(|block| std::iter::once(block.at("cidr")).chain(block.at("except").items()));
    cidrs.flat_map(|c| ip::cidr_warnings(c.path(), c.str())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind_check::{defaulted, refuses, row};

    #[test]
    fn defaults() {
        let p = |spec: Value| defaulted(&DEF, json!({"spec": spec}))["spec"].clone();
        assert_eq!(p(json!({}))["policyTypes"], json!(["Ingress"]));
        let both = p(json!({"egress": [{"ports": [{"port": 53}, {"port": 53, "protocol": "UDP"}]}]}));
        assert_eq!(both["policyTypes"], json!(["Ingress", "Egress"]));
        assert_eq!(both["egress"][0]["ports"][0]["protocol"], "TCP");
        assert_eq!(both["egress"][0]["ports"][1]["protocol"], "UDP");
    }

    #[test]
    fn policies_are_checked() {
        let port = |p: Value| json!({"spec": {"ingress": [{"ports": [p]}]}});
        let peer = |p: Value| json!({"spec": {"egress": [{"to": [p]}]}});
        let block = |b: Value| peer(json!({"ipBlock": b}));
        refuses(
            &DEF,
            &json!({"spec": {"podSelector": {}, "ingress": [{"from": [{"podSelector": {}, "namespaceSelector": {}}]}]}}),
            &[
                (
                    port(json!({"protocol": "ICMP"})),
                    r#"spec.ingress[0].ports[0].protocol: Unsupported value: "ICMP": supported values: "TCP", "UDP", "SCTP""#,
                ),
                (
                    port(json!({"port": 0})),
                    "spec.ingress[0].ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
                ),
                (
                    port(json!({"port": "a--b"})),
                    r#"spec.ingress[0].ports[0].port: Invalid value: "a--b": must not contain consecutive hyphens"#,
                ),
                (
                    port(json!({"port": 90, "endPort": 80})),
                    "spec.ingress[0].ports[0].endPort: Invalid value: 90: must be greater than or equal to `port`",
                ),
                (
                    port(json!({"port": "http", "endPort": 80})),
                    "spec.ingress[0].ports[0].endPort: Invalid value: 80: may not be specified when `port` is non-numeric",
                ),
                (
                    port(json!({"endPort": 80})),
                    "spec.ingress[0].ports[0].endPort: Invalid value: 80: may not be specified when `port` is not specified",
                ),
                (
                    peer(json!({})),
                    "spec.egress[0].to[0]: Required value: must specify a peer",
                ),
                (
                    peer(json!({"podSelector": {}, "ipBlock": {"cidr": "10.0.0.0/8"}})),
                    "spec.egress[0].to[0]: Forbidden: may not specify both ipBlock and another peer",
                ),
                (block(json!({})), "spec.egress[0].to[0].ipBlock.cidr: Required value"),
                (
                    block(json!({"cidr": "10.0.0.1/8"})),
                    r#"spec.egress[0].to[0].ipBlock.cidr: Invalid value: "10.0.0.1/8": must not have bits set beyond the prefix length"#,
                ),
                (
                    block(json!({"cidr": "10.0.0.0/8", "except": ["11.0.0.0/16"]})),
                    r#"spec.egress[0].to[0].ipBlock.except[0]: Invalid value: "11.0.0.0/16": must be a strict subset of `cidr`"#,
                ),
                (
                    block(json!({"cidr": "10.0.0.0/8", "except": ["10.0.0.0/8"]})),
                    r#"spec.egress[0].to[0].ipBlock.except[0]: Invalid value: "10.0.0.0/8": must be a strict subset of `cidr`"#,
                ),
                (
                    json!({"spec": {"policyTypes": ["Sideways"]}}),
                    r#"spec.policyTypes[0]: Unsupported value: "Sideways": supported values: "Ingress", "Egress""#,
                ),
                (
                    json!({"spec": {"policyTypes": ["Ingress", "Egress", "Ingress"]}}),
                    r#"spec.policyTypes: Invalid value: ["Ingress","Egress","Ingress"]: may not specify more than two policyTypes"#,
                ),
            ],
        );
    }

    #[test]
    fn rows_and_warnings() {
        let policy = json!({"spec": {"podSelector": {"matchLabels": {"b": "1"},
            "matchExpressions": [{"key": "a", "operator": "In", "values": ["y", "x"]}, {"key": "c", "operator": "DoesNotExist"}]},
            "ingress": [{"from": [{"ipBlock": {"cidr": "FD00::/8", "except": ["fd00::/16"]}}]}]}});
        assert_eq!(row(&DEF, &policy), "a in (x,y),b=1,!c|<unknown>");
        assert_eq!(row(&DEF, &json!({"spec": {"podSelector": {}}})), "<none>|<unknown>");
        assert_eq!(
            warnings(&Cursor::root(&policy)),
            [
                r#"spec.ingress[0].from[0].ipBlock.cidr: IPv6 CIDR value "FD00::/8" should be in RFC 5952 canonical format ("fd00::/8")"#
            ]
        );
    }
}
