//! Endpoints, the older form of EndpointSlice. Upstream: pkg/registry/core/endpoint, ValidateEndpoints (v1.36).

use jiff::Timestamp;
use serde_json::Value;

use super::service::validate_port_protocol;
use crate::field::{Cursor, Problems};
use crate::kind::{Column, KindDef};
use crate::meta::invalid_text;
use crate::{fill, ip, meta, names, printing};

pub const DEF: KindDef = KindDef {
    kind: "Endpoints",
    plural: "endpoints",
    singular: "endpoints",
    short_names: &["ep"],
    schema: "core/v1.Endpoints",
    columns: &[Column::string("Endpoints"), Column::AGE],
    cells,
    default,
    validate,
    warnings,
    create_on_update: true,
    ..KindDef::BASE
};

fn default(endpoints: &mut Value) {
    for subset in fill::items(endpoints, "subsets") {
        for port in fill::items(subset, "ports") {
            fill::empty(port, "protocol", "TCP");
        }
    }
}

fn validate(endpoints: &Cursor<'_>, p: &mut Problems) {
    for subset in endpoints.at("subsets").items() {
        let (ready, not_ready) = (subset.at("addresses"), subset.at("notReadyAddresses"));
        if ready.is_empty() && not_ready.is_empty() {
            p.required(&subset, "must specify `addresses` or `notReadyAddresses`");
        }
        for address in ready.items().chain(not_ready.items()) {
            validate_address(&address, p);
        }
        let ports = subset.at("ports");
        for port in ports.items() {
            validate_port(&port, ports.len() > 1, p);
        }
    }
}

fn validate_address(address: &Cursor<'_>, p: &mut Problems) {
    let ip = address.at("ip");
    ip::validate_ip(&ip, p);
    let hostname = address.at("hostname");
    if !hostname.is_empty() {
        p.invalid_each(&hostname, names::dns_label(hostname.str()));
    }
    let node = address.at("nodeName");
    if node.exists() {
        p.invalid_each(&node, names::dns_subdomain(node.str()));
    }
    ip::validate_endpoint_ip(&ip, p);
}

fn validate_port(port: &Cursor<'_>, name_required: bool, p: &mut Problems) {
    let name = port.at("name");
    if !name.is_empty() {
        p.invalid_each(&name, names::dns_label(name.str()));
    } else if name_required {
        p.required(&name, "");
    }
    let number = port.at("port");
    for message in names::port_number(number.as_i64().unwrap_or(0)) {
        p.invalid_value(number.path(), &number.as_i64().unwrap_or(0).into(), message);
    }
    validate_port_protocol(&port.at("protocol"), p);
    let app = port.at("appProtocol");
    if app.exists() {
        for message in names::qualified_name(app.str()) {
            invalid_text(&app, message, p);
        }
    }
}

fn warnings(endpoints: &Cursor<'_>, _old: Option<&Cursor<'_>>) -> Vec<String> {
    if meta::label(endpoints, "endpoints.kubernetes.io/managed-by") == Some("endpoint-controller") {
        return vec![];
    }
    let subsets = endpoints.at("subsets");
    let addresses = subsets
        .items()
        .flat_map(|s| s.at("addresses").items().chain(s.at("notReadyAddresses").items()));
    addresses
        .map(|a| a.at("ip"))
        .flat_map(|ip| ip::ip_warnings(ip.path(), ip.str()))
        .collect()
}

/// At most three `ip:port`, then how many more there are.
fn cells(endpoints: &Value, now: Timestamp) -> Vec<Value> {
    const SHOWN: usize = 3;
    let subsets = Cursor::root(endpoints).at("subsets");
    let mut all = vec![];
    for subset in subsets.items() {
        let addresses = || subset.at("addresses").items().map(|a| a.at("ip").str());
        if subset.at("ports").is_empty() {
            all.extend(addresses().map(str::to_string));
        }
        for port in subset.at("ports").items() {
            let port = port.at("port").as_i64().unwrap_or(0);
            all.extend(addresses().map(|ip| match ip.contains(':') {
                true => format!("[{ip}]:{port}"),
                false => format!("{ip}:{port}"),
            }));
        }
    }
    let mut text = all[..all.len().min(SHOWN)].join(",");
    if all.len() > SHOWN {
        text.push_str(&format!(" + {} more...", all.len() - SHOWN));
    }
    if subsets.is_empty() {
        text = "<none>".to_string();
    }
    vec![text.into(), printing::age(endpoints, now)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind_check::{defaulted, refuses, row};
    use serde_json::json;

    #[test]
    fn defaults() {
        let endpoints = defaulted(
            &DEF,
            json!({"subsets": [{"ports": [{"port": 1}, {"port": 2, "protocol": "UDP"}]}]}),
        );
        assert_eq!(
            endpoints["subsets"][0]["ports"],
            json!([{"port": 1, "protocol": "TCP"}, {"port": 2, "protocol": "UDP"}])
        );
    }

    #[test]
    fn rules() {
        let with = |address: Value, ports: Value| json!({"subsets": [{"addresses": [address], "ports": ports}]});
        let address = json!({"ip": "10.0.0.1"});
        let label = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
        refuses(
            &DEF,
            &with(address.clone(), json!([{"port": 80}])),
            &[
                (
                    json!({"subsets": [{}]}),
                    "subsets[0]: Required value: must specify `addresses` or `notReadyAddresses`",
                ),
                (
                    with(json!({"ip": "127.0.0.1"}), json!([])),
                    "subsets[0].addresses[0].ip: Invalid value: \"127.0.0.1\": may not be in the loopback range (127.0.0.0/8, ::1/128)",
                ),
                (
                    with(json!({"ip": "0.0.0.0"}), json!([])),
                    "subsets[0].addresses[0].ip: Invalid value: \"0.0.0.0\": may not be unspecified (0.0.0.0)",
                ),
                (
                    with(json!({"ip": "fe80::1"}), json!([])),
                    "subsets[0].addresses[0].ip: Invalid value: \"fe80::1\": may not be in the link-local range (169.254.0.0/16, fe80::/10)",
                ),
                (
                    with(json!({"ip": "224.0.0.1"}), json!([])),
                    "subsets[0].addresses[0].ip: Invalid value: \"224.0.0.1\": may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)",
                ),
                (
                    with(json!({"ip": "1.1.1.1", "hostname": "A"}), json!([])),
                    &format!("subsets[0].addresses[0].hostname: Invalid value: \"A\": {label}"),
                ),
                (
                    with(address.clone(), json!([{"port": 80}, {"name": "b", "port": 81}])),
                    "subsets[0].ports[0].name: Required value",
                ),
                (
                    with(address.clone(), json!([{"port": 0}])),
                    "subsets[0].ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
                ),
                (
                    with(address.clone(), json!([{"port": 1, "protocol": "IP"}])),
                    "subsets[0].ports[0].protocol: Unsupported value: \"IP\": supported values: \"SCTP\", \"TCP\", \"UDP\"",
                ),
            ],
        );
    }

    #[test]
    fn rows_and_warnings() {
        let addresses = json!([{"ip": "1.1.1.1"}, {"ip": "::0:1"}]);
        let endpoints = json!({"subsets": [{"addresses": addresses, "ports": [{"port": 1}, {"port": 2}]}]});
        assert_eq!(
            row(&DEF, &endpoints),
            "1.1.1.1:1,[::0:1]:1,1.1.1.1:2 + 1 more...|<unknown>"
        );
        assert_eq!(
            row(&DEF, &json!({"subsets": [{"addresses": addresses}]})),
            "1.1.1.1,::0:1|<unknown>"
        );
        assert_eq!(row(&DEF, &json!({})), "<none>|<unknown>");
        assert_eq!(
            warnings(&Cursor::root(&endpoints), None),
            ["subsets[0].addresses[1].ip: IPv6 address \"::0:1\" should be in RFC 5952 canonical format (\"::1\")"]
        );
    }
}
