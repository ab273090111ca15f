//! The objects by which pods find the server (pure): the Service `kube-dns` and, for each node that runs one, endpoint
//! slices.

use std::net::{IpAddr, SocketAddr};

use serde_json::{Value, json};

use crate::zone::DNS_SERVICE;

/// Where pods expect it.
const PORT: u16 = 53;
const METRICS_PORT: u16 = 9153;
/// In the label `endpointslice.kubernetes.io/managed-by`.
pub const MANAGER: &str = "dns.orlop";

#[derive(Clone, Debug, PartialEq)]
pub struct Resources {
    /// `kube-dns` in `kube-system`.
    pub service: Value,
    /// One for each family that the node has.
    pub slices: Vec<Value>,
}

/// `service_ips`: what pods have in their resolv.conf. `endpoints`: where this node's server is reached. `metrics`: the
/// port of its metrics, if others can reach it.
pub fn resources(service_ips: &[IpAddr], node: &str, endpoints: &[SocketAddr], metrics: Option<u16>) -> Resources {
    let families = [("IPv4", ""), ("IPv6", "-ipv6")];
    let slices = families.iter().filter_map(|(family, suffix)| {
        let name = format!("{}-{node}{suffix}", DNS_SERVICE.1);
        slice(&name, family, node, endpoints, metrics)
    });
    Resources {
        service: service(service_ips),
        slices: slices.collect(),
    }
}

fn family(address: &IpAddr) -> &'static str {
    if address.is_ipv4() { "IPv4" } else { "IPv6" }
}

/// As kubeadm makes it, but without a selector: the server is no pod.
fn service(service_ips: &[IpAddr]) -> Value {
    let port = |name: &str, port: u16, protocol: &str| json!({"name": name, "port": port, "protocol": protocol, "targetPort": port});
    let mut spec = json!({
        "type": "ClusterIP",
        // Each node that has pods of ours has a server. A pod always reaches its own node, whatever policies it has.
        "trafficDistribution": "PreferSameNode",
        "ports": [
            port("dns", PORT, "UDP"),
            port("dns-tcp", PORT, "TCP"),
            port("metrics", METRICS_PORT, "TCP"),
        ],
    });
    if let Some(first) = service_ips.first() {
        spec["clusterIP"] = json!(first);
        spec["clusterIPs"] = json!(service_ips);
        spec["ipFamilies"] = service_ips.iter().map(family).collect();
        spec["ipFamilyPolicy"] = match service_ips.len() {
            1 => json!("SingleStack"),
            _ => json!("PreferDualStack"),
        };
    }
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": DNS_SERVICE.1,
            "namespace": DNS_SERVICE.0,
            "labels": {
                "k8s-app": "kube-dns",
                "kubernetes.io/cluster-service": "true",
                "kubernetes.io/name": "CoreDNS",
            },
            "annotations": {
                "prometheus.io/port": METRICS_PORT.to_string(),
                "prometheus.io/scrape": "true",
            },
        },
        "spec": spec,
    })
}

/// None if the node has no address of that family.
fn slice(name: &str, of: &str, node: &str, endpoints: &[SocketAddr], metrics: Option<u16>) -> Option<Value> {
    let here = || endpoints.iter().filter(|e| family(&e.ip()) == of);
    // A slice has one port of a name.
    let port = here().next()?.port();
    let addresses = here().filter(|e| e.port() == port).map(|e| e.ip());
    let endpoints = addresses.map(|address| {
        json!({
            "addresses": [address],
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": node,
            "hints": {"forNodes": [{"name": node}]},
        })
    });
    let mut ports = vec![
        json!({"name": "dns", "port": port, "protocol": "UDP"}),
        json!({"name": "dns-tcp", "port": port, "protocol": "TCP"}),
    ];
    ports.extend(metrics.map(|port| json!({"name": "metrics", "port": port, "protocol": "TCP"})));
    Some(json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name,
            "namespace": DNS_SERVICE.0,
            "labels": {
                "kubernetes.io/service-name": DNS_SERVICE.1,
                "endpointslice.kubernetes.io/managed-by": MANAGER,
                "k8s-app": "kube-dns",
            },
        },
        "addressType": of,
        "endpoints": endpoints.collect::<Vec<_>>(),
        "ports": ports,
    }))
}

/// Whether an object has all the desired fields; what else it has does not matter.
pub fn has(object: &Value, wanted: &Value) -> bool {
    match (object, wanted) {
        (Value::Object(object), Value::Object(wanted)) => wanted
            .iter()
            .all(|(key, value)| object.get(key).is_some_and(|object| has(object, value))),
        (Value::Array(object), Value::Array(wanted)) => {
            object.len() == wanted.len() && object.iter().zip(wanted).all(|(object, wanted)| has(object, wanted))
        }
        (object, wanted) => object == wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_family_and_two() {
        let ips = |texts: &[&str]| -> Vec<IpAddr> { texts.iter().map(|t| t.parse().unwrap()).collect() };
        let endpoints: Vec<SocketAddr> = vec!["192.168.1.5:10053".parse().unwrap()];
        let made = resources(&ips(&["10.96.0.10"]), "n1", &endpoints, None);
        assert_eq!(made.service["spec"]["clusterIPs"], json!(["10.96.0.10"]));
        assert_eq!(made.service["spec"]["ports"][1]["name"], "dns-tcp");
        assert!(made.service["spec"].get("selector").is_none());
        assert_eq!(made.slices.len(), 1);
        assert_eq!(made.slices[0]["metadata"]["name"], "kube-dns-n1");
        let ports = json!([{"name": "dns", "port": 10053, "protocol": "UDP"},
            {"name": "dns-tcp", "port": 10053, "protocol": "TCP"}]);
        assert_eq!(made.slices[0]["ports"], ports);

        let endpoints = ["[fd00::5]:53", "192.168.1.5:53"].map(|t| t.parse().unwrap());
        let made = resources(&ips(&["10.96.0.10", "fd01::a"]), "n1", &endpoints, Some(9153));
        assert_eq!(made.service["spec"]["ipFamilies"], json!(["IPv4", "IPv6"]));
        assert_eq!(made.slices[1]["metadata"]["name"], "kube-dns-n1-ipv6");
        assert_eq!(made.slices[1]["endpoints"][0]["addresses"], json!(["fd00::5"]));
        assert_eq!(made.slices[1]["ports"][2]["port"], 9153);
    }

    #[test]
    fn what_is_wanted() {
        let object = json!({"a": 1, "b": [{"c": 1, "d": 2}], "e": {}});
        for (wanted, expected) in [
            (json!({"a": 1}), true),
            (json!({"b": [{"c": 1}], "e": {}}), true),
            (json!({"b": []}), false),
            (json!({"b": [{"c": 2}]}), false),
            (json!({"f": null}), false),
        ] {
            assert_eq!(has(&object, &wanted), expected, "{wanted}");
        }
    }
}
