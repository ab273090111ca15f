//! Service environment variables: the `_SERVICE_HOST` kind and those of Docker links.

use std::collections::BTreeMap;

use orlop_api::types::core::Service;

/// Variables of the API server's service, and with `links` of all services in the namespace.
pub fn service_variables<'a>(
    services: impl IntoIterator<Item = &'a Service>,
    namespace: &str,
    links: bool,
) -> BTreeMap<String, String> {
    let mut chosen: BTreeMap<&str, &Service> = BTreeMap::new();
    for service in services.into_iter().filter(|s| cluster_ip(s).is_some()) {
        let name = service.metadata.name.as_deref().unwrap_or_default();
        let own = service.metadata.namespace.as_deref() == Some(namespace);
        if name == "kubernetes" && service.metadata.namespace.as_deref() == Some("default") {
            chosen.entry(name).or_insert(service);
        } else if own && links {
            chosen.insert(name, service);
        }
    }
    let mut out = BTreeMap::new();
    for (name, service) in chosen {
        add(&mut out, &variable_name(name), service);
    }
    out
}

fn cluster_ip(service: &Service) -> Option<&str> {
    let ip = service.spec.as_ref()?.cluster_ip.as_deref()?;
    (!ip.is_empty() && ip != "None").then_some(ip)
}

fn variable_name(name: &str) -> String {
    name.replace('-', "_").to_uppercase()
}

fn add(out: &mut BTreeMap<String, String>, prefix: &str, service: &Service) {
    let ports = service.spec.iter().flat_map(|s| s.ports.iter().flatten());
    let (Some(ip), Some(first)) = (cluster_ip(service), ports.clone().next()) else {
        return;
    };
    // Addresses with colons go into brackets where a port follows.
    let host = if ip.contains(':') {
        format!("[{ip}]")
    } else {
        ip.to_string()
    };
    out.insert(format!("{prefix}_SERVICE_HOST"), ip.to_string());
    out.insert(format!("{prefix}_SERVICE_PORT"), first.port.to_string());
    for (i, port) in ports.enumerate() {
        if let Some(name) = port.name.as_deref().filter(|n| !n.is_empty()) {
            let name = variable_name(name);
            out.insert(format!("{prefix}_SERVICE_PORT_{name}"), port.port.to_string());
        }
        let protocol = port.protocol.as_deref().filter(|p| !p.is_empty()).unwrap_or("TCP");
        let lower = protocol.to_lowercase();
        let url = format!("{lower}://{host}:{}", port.port);
        if i == 0 {
            out.insert(format!("{prefix}_PORT"), url.clone());
        }
        let one = format!("{prefix}_PORT_{}_{}", port.port, protocol.to_uppercase());
        out.insert(format!("{one}_PROTO"), lower);
        out.insert(format!("{one}_PORT"), port.port.to_string());
        out.insert(format!("{one}_ADDR"), ip.to_string());
        out.insert(one, url);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn service(namespace: &str, name: &str, spec: Value) -> Service {
        orlop_api::types::from_value(json!({"metadata": {"namespace": namespace, "name": name}, "spec": spec})).unwrap()
    }

    fn shown(services: &[Service], namespace: &str, links: bool) -> Vec<String> {
        let variables = service_variables(services, namespace, links);
        variables.iter().map(|(k, v)| format!("{k}={v}")).collect()
    }

    #[test]
    fn all_variables_of_a_service() {
        let ports = json!([{"port": 80, "protocol": "TCP", "name": "web-ui"}, {"port": 53, "protocol": "UDP"}]);
        let one = service("ns", "my-svc", json!({"clusterIP": "1.2.3.4", "ports": ports}));
        assert_eq!(
            shown(&[one], "ns", true),
            [
                "MY_SVC_PORT=tcp://1.2.3.4:80",
                "MY_SVC_PORT_53_UDP=udp://1.2.3.4:53",
                "MY_SVC_PORT_53_UDP_ADDR=1.2.3.4",
                "MY_SVC_PORT_53_UDP_PORT=53",
                "MY_SVC_PORT_53_UDP_PROTO=udp",
                "MY_SVC_PORT_80_TCP=tcp://1.2.3.4:80",
                "MY_SVC_PORT_80_TCP_ADDR=1.2.3.4",
                "MY_SVC_PORT_80_TCP_PORT=80",
                "MY_SVC_PORT_80_TCP_PROTO=tcp",
                "MY_SVC_SERVICE_HOST=1.2.3.4",
                "MY_SVC_SERVICE_PORT=80",
                "MY_SVC_SERVICE_PORT_WEB_UI=80",
            ]
        );
        let six = service("ns", "six", json!({"clusterIP": "fd00::1", "ports": [{"port": 1}]}));
        let six = shown(&[six], "ns", true);
        assert_eq!(six[0], "SIX_PORT=tcp://[fd00::1]:1");
        assert_eq!(six[2], "SIX_PORT_1_TCP_ADDR=fd00::1");
    }

    #[test]
    fn the_right_services_are_chosen() {
        let ports = json!([{"port": 1}]);
        let make = |namespace, name, ip: &str| service(namespace, name, json!({"clusterIP": ip, "ports": ports}));
        let services = [
            make("default", "kubernetes", "10.0.0.1"),
            make("ns", "kubernetes", "10.0.0.2"),
            make("ns", "a", "10.0.0.3"),
            make("ns", "headless", "None"),
            make("ns", "pending", ""),
            make("other", "b", "10.0.0.4"),
            service("ns", "portless", json!({"clusterIP": "10.0.0.9"})),
            service("ns", "external", json!({"externalName": "x"})),
        ];
        let hosts = |namespace, links| {
            let all = shown(&services, namespace, links);
            all.into_iter()
                .filter(|v| v.contains("_SERVICE_HOST"))
                .collect::<Vec<_>>()
        };
        assert_eq!(hosts("ns", false), ["KUBERNETES_SERVICE_HOST=10.0.0.1"]);
        assert_eq!(
            hosts("other", true),
            ["B_SERVICE_HOST=10.0.0.4", "KUBERNETES_SERVICE_HOST=10.0.0.1"]
        );
        assert_eq!(hosts("none", true), ["KUBERNETES_SERVICE_HOST=10.0.0.1"]);
        // The namespace's own goes before the cluster's.
        assert_eq!(
            hosts("ns", true),
            ["A_SERVICE_HOST=10.0.0.3", "KUBERNETES_SERVICE_HOST=10.0.0.2"]
        );
    }
}
