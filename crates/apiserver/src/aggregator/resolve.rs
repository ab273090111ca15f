//! Where the extension API server behind a service is, from the stored objects. Pure.

use orlop_api::Value;

use super::service::{Condition, ServiceRef};
use crate::lookup::{ObjectLookup, items, strings, text};

/// Of one service so many are tried at most.
const ENDPOINTS_MAX: usize = 256;

/// An address of an extension API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// An address, or for services that are only names the name.
    pub host: String,
    pub port: u16,
}

impl Endpoint {
    pub(crate) fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

/// The ready endpoints of the service, those of its first address family first; never none. Or why there are none.
///
/// Upstream goes to the cluster IP unless `--enable-aggregator-routing` is set, which needs a service proxy on the API
/// server's machine. Endpoints need none.
pub(crate) fn endpoints(lookup: &dyn ObjectLookup, reference: &ServiceRef) -> Result<Vec<Endpoint>, Condition> {
    let (namespace, name) = (&reference.namespace, &reference.name);
    let Some(service) = lookup.get("services", namespace, name) else {
        let message = format!("service/{name} in {namespace:?} is not present");
        return Err(Condition::unavailable("ServiceNotFound", message));
    };
    let kind = text(&service, &["spec", "type"]);
    if kind == "ExternalName" {
        return Ok(vec![Endpoint {
            host: text(&service, &["spec", "externalName"]).to_string(),
            port: reference.port,
        }]);
    }
    let ports = items(&service, &["spec", "ports"]);
    let Some(port) = ports.iter().find(|port| port["port"] == reference.port) else {
        let message = format!(
            "service/{name} in {namespace:?} is not listening on port {}",
            reference.port
        );
        return Err(Condition::unavailable("ServicePortError", message));
    };
    let port_name = text(port, &["name"]);
    let mut slices = lookup.list("endpointslices.discovery.k8s.io", Some(namespace));
    slices.retain(|slice| text(slice, &["metadata", "labels", "kubernetes.io/service-name"]) == name);
    if slices.is_empty() {
        let message = format!("cannot find endpointslices for service/{name} in {namespace:?}");
        return Err(Condition::unavailable("EndpointsNotFound", message));
    }
    let family = service
        .pointer("/spec/ipFamilies/0")
        .and_then(Value::as_str)
        .unwrap_or("");
    slices.sort_by_key(|slice| text(slice, &["addressType"]) != family);
    let mut found: Vec<Endpoint> = slices.iter().flat_map(|slice| ready(slice, port_name)).collect();
    found.truncate(ENDPOINTS_MAX);
    if found.is_empty() {
        let message = format!(
            "endpointslices for service/{name} in {namespace:?} have no addresses with port name {port_name:?}"
        );
        return Err(Condition::unavailable("MissingEndpoints", message));
    }
    Ok(found)
}

fn ready(slice: &Value, port_name: &str) -> Vec<Endpoint> {
    let ports = items(slice, &["ports"]);
    let named = ports.iter().find(|port| text(port, &["name"]) == port_name);
    let Some(port) = named.and_then(|port| port["port"].as_u64()?.try_into().ok()) else {
        return vec![];
    };
    let is_ready = |endpoint: &&Value| endpoint.pointer("/conditions/ready") != Some(&Value::Bool(false));
    let endpoints = items(slice, &["endpoints"]).iter().filter(is_ready);
    // Of several addresses of one endpoint all but the first are ignored, as proxies do.
    let first = endpoints.filter_map(|endpoint| strings(endpoint.get("addresses")).into_iter().next());
    first.map(|host| Endpoint { host, port }).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::lookup::fixture::Objects;

    fn cluster(kind: &str, slices: &[Value]) -> Objects {
        let objects = Objects::default();
        objects.put(
            "services",
            json!({"metadata": {"namespace": "n", "name": "s"}, "spec": {"type": kind, "externalName": "x.example",
                "ipFamilies": ["IPv4"], "ports": [{"name": "web", "port": 80}, {"name": "api", "port": 443}]}}),
        );
        for slice in slices {
            objects.put("endpointslices.discovery.k8s.io", slice.clone());
        }
        objects
    }

    fn slice(name: &str, service: &str, family: &str, addresses: &[(&str, Value)]) -> Value {
        let endpoint = |(ip, ready): &(&str, Value)| json!({"addresses": [ip], "conditions": {"ready": ready}});
        json!({"metadata": {"namespace": "n", "name": name, "labels": {"kubernetes.io/service-name": service}},
            "addressType": family, "ports": [{"name": "web", "port": 8080}, {"name": "api", "port": 8443}],
            "endpoints": addresses.iter().map(endpoint).collect::<Vec<_>>()})
    }

    fn found(objects: &Objects, name: &str, port: u16) -> Result<Vec<String>, (String, String)> {
        let reference = ServiceRef {
            namespace: "n".into(),
            name: name.into(),
            port,
        };
        endpoints(objects, &reference)
            .map(|found| found.iter().map(Endpoint::authority).collect())
            .map_err(|condition| (condition.reason, condition.message))
    }

    #[test]
    fn services_lead_to_what_is_ready() {
        let slices = [
            slice("six", "s", "IPv6", &[("fd00::1", json!(true))]),
            slice("other", "t", "IPv4", &[("10.0.0.9", json!(true))]),
            slice(
                "four",
                "s",
                "IPv4",
                &[
                    ("10.0.0.1", json!(true)),
                    ("10.0.0.2", json!(false)),
                    ("10.0.0.3", json!(null)),
                ],
            ),
        ];
        let objects = cluster("ClusterIP", &slices);
        let wanted = ["10.0.0.1:8443", "10.0.0.3:8443", "[fd00::1]:8443"];
        assert_eq!(found(&objects, "s", 443).unwrap(), wanted);
        assert_eq!(
            found(&cluster("ExternalName", &[]), "s", 6443).unwrap(),
            ["x.example:6443"]
        );
    }

    #[test]
    fn what_is_missing_is_said_as_upstream_says_it() {
        let none = cluster("ClusterIP", &[]);
        let dead = cluster("ClusterIP", &[slice("a", "s", "IPv4", &[("10.0.0.1", json!(false))])]);
        for (objects, name, port, reason, message) in [
            (&none, "t", 443, "ServiceNotFound", "service/t in \"n\" is not present"),
            (
                &none,
                "s",
                444,
                "ServicePortError",
                "service/s in \"n\" is not listening on port 444",
            ),
            (
                &none,
                "s",
                443,
                "EndpointsNotFound",
                "cannot find endpointslices for service/s in \"n\"",
            ),
            (
                &dead,
                "s",
                443,
                "MissingEndpoints",
                "endpointslices for service/s in \"n\" have no addresses with port name \"api\"",
            ),
        ] {
            assert_eq!(found(objects, name, port), Err((reason.into(), message.into())));
        }
    }
}
