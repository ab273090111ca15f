//! Where a service's webhook listens: its ready endpoints, from what is stored. Pure but for the choice of the first.
//!
//! Upstream: apiserver/pkg/util/proxy (ResolveEndpoint).

use std::net::{IpAddr, SocketAddr};

use orlop_api::Value;

use crate::connect::is_proxyable;
use crate::lookup::{ObjectLookup, items, strings, text};

/// A service that leads nowhere.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct ResolveError(String);

/// The addresses behind a service's port, in an order that differs from call to call.
pub(super) fn endpoints(
    lookup: &(dyn ObjectLookup + Sync),
    namespace: &str,
    name: &str,
    port: u16,
) -> Result<Vec<SocketAddr>, ResolveError> {
    let service = lookup.get("services", namespace, name);
    let service = service.ok_or_else(|| ResolveError(format!("service {name:?} not found")))?;
    match text(&service, &["spec", "type"]) {
        "" | "ClusterIP" | "NodePort" | "LoadBalancer" => {}
        other => return Err(ResolveError(format!("unsupported service type {other:?}"))),
    }
    let ports = items(&service, &["spec", "ports"]);
    let number = u64::from(port);
    let found = ports.iter().find(|p| p["port"].as_u64() == Some(number));
    let found = found.ok_or_else(|| ResolveError(format!("no service port {port} found for service {name:?}")))?;
    let mut ready = ready_addresses(lookup, namespace, name, text(found, &["name"]));
    if ready.is_empty() {
        return Err(ResolveError(format!("no endpoints available for service {name:?}")));
    }
    let turn = uuid::Uuid::new_v4().as_u64_pair().0 as usize;
    let count = ready.len();
    ready.rotate_left(turn % count);
    Ok(ready)
}

fn ready_addresses(
    lookup: &(dyn ObjectLookup + Sync),
    namespace: &str,
    service: &str,
    port_name: &str,
) -> Vec<SocketAddr> {
    let mut found = vec![];
    for slice in lookup.list("endpointslices.discovery.k8s.io", Some(namespace)) {
        if text(&slice, &["metadata", "labels", "kubernetes.io/service-name"]) != service {
            continue;
        }
        if let Some(port) = port_of(items(&slice, &["ports"]), port_name) {
            let ready = |e: &&Value| e.pointer("/conditions/ready") != Some(&Value::Bool(false));
            for endpoint in items(&slice, &["endpoints"]).iter().filter(ready) {
                found.extend(
                    strings(endpoint.get("addresses"))
                        .iter()
                        .filter_map(|ip| address(ip, port)),
                );
            }
        }
    }
    if found.is_empty()
        && let Some(endpoints) = lookup.get("endpoints", namespace, service)
    {
        for subset in items(&endpoints, &["subsets"]) {
            if let Some(port) = port_of(items(subset, &["ports"]), port_name) {
                let addresses = items(subset, &["addresses"]).iter();
                found.extend(addresses.filter_map(|a| address(text(a, &["ip"]), port)));
            }
        }
    }
    found
}

fn port_of(ports: &[Value], name: &str) -> Option<u16> {
    let port = ports.iter().find(|port| text(port, &["name"]) == name)?;
    port["port"].as_u64()?.try_into().ok()
}

/// Not this machine's own loopback and the like: whoever writes endpoints must not reach more through us than they
/// could themselves.
fn address(ip: &str, port: u16) -> Option<SocketAddr> {
    let ip: IpAddr = ip.parse().ok()?;
    is_proxyable(ip).then(|| SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::lookup::fixture::Objects;

    #[test]
    fn services_lead_to_their_ready_endpoints() {
        let service = |spec: Value| json!({"metadata": {"namespace": "n", "name": "s"}, "spec": spec});
        let slice = |ip: &str, ready: bool| {
            json!({"metadata": {"namespace": "n", "name": ip, "labels": {"kubernetes.io/service-name": "s"}},
                "endpoints": [{"addresses": [ip], "conditions": {"ready": ready}}], "ports": [{"name": "w", "port": 8443}]})
        };
        let objects = Objects::default();
        let at =
            |port| endpoints(&objects, "n", "s", port).map(|list| list.iter().map(SocketAddr::to_string).collect());
        let refused = |why: &str| Err(ResolveError(why.to_string()));
        assert_eq!(at(443), refused("service \"s\" not found"));
        objects.put("services", service(json!({"ports": [{"name": "w", "port": 443}]})));
        assert_eq!(at(80), refused("no service port 80 found for service \"s\""));
        assert_eq!(at(443), refused("no endpoints available for service \"s\""));
        objects.put("endpointslices.discovery.k8s.io", slice("10.0.0.1", false));
        objects.put("endpointslices.discovery.k8s.io", slice("127.0.0.1", true));
        assert_eq!(at(443), refused("no endpoints available for service \"s\""));
        objects.put("endpointslices.discovery.k8s.io", slice("10.0.0.2", true));
        assert_eq!(at(443), Ok(vec!["10.0.0.2:8443".to_string()]));
        objects.put(
            "services",
            service(json!({"type": "ExternalName", "externalName": "a"})),
        );
        assert_eq!(at(443), refused("unsupported service type \"ExternalName\""));
    }
}
