//! Where a request goes: the container, the node's kubelet, the pod behind a service. Pure, over stored objects.

use std::net::IpAddr;

use orlop_api::{Status, Value};

use crate::lookup::{ObjectLookup, items, strings, text};

/// What nodes declare whose kubelet takes WebSocket connections of all protocols itself.
const WEBSOCKETS: &str = "ExtendWebSocketsToKubelet";
const KUBELET_PORT: u16 = 10250;
/// Which of a node's addresses to use. Differs from upstream, which prefers the host name: that is often known to the node
/// alone and then costs a failed lookup for each request. Addresses first is also what kubeadm configures.
const ADDRESS_TYPES: [&str; 5] = ["InternalIP", "ExternalIP", "Hostname", "InternalDNS", "ExternalDNS"];

/// A node's kubelet.
#[derive(Debug, PartialEq)]
pub(super) struct Kubelet {
    pub node: String,
    /// To be tried in this order; names among them may not resolve.
    pub hosts: Vec<String>,
    pub port: u16,
    pub speaks_websocket: bool,
}

/// An address to connect to, and what to ask for there.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ConnectTarget {
    pub https: bool,
    /// To be tried in this order.
    pub hosts: Vec<String>,
    pub port: u16,
    /// Path and query.
    pub target: String,
    /// Whose kubelet it is, if it is one: we show a kubelet who we are, and nobody else.
    pub node: Option<String>,
    /// Whether it must not be on this machine itself, nor where only this machine gets: what proxies lead to. Addresses
    /// are looked at once names are resolved.
    pub only_proxyable: bool,
}

impl ConnectTarget {
    pub(super) fn kubelet(kubelet: &Kubelet, target: String) -> ConnectTarget {
        ConnectTarget {
            https: true,
            hosts: kubelet.hosts.clone(),
            port: kubelet.port,
            target,
            node: Some(kubelet.node.clone()),
            only_proxyable: false,
        }
    }

    pub(super) fn authority(&self) -> String {
        let host = self.hosts.first().map_or("", String::as_str);
        if host.contains(':') {
            format!("[{host}]:{}", self.port)
        } else {
            format!("{host}:{}", self.port)
        }
    }

    pub(super) fn url(&self) -> String {
        format!(
            "{}://{}{}",
            if self.https { "https" } else { "http" },
            self.authority(),
            self.target
        )
    }
}

pub(super) fn kubelet(node: &Value) -> Result<Kubelet, Status> {
    let addresses = items(node, &["status", "addresses"]);
    let of_type = |kind: &str| {
        let found = addresses
            .iter()
            .find(|a| text(a, &["type"]) == kind && !text(a, &["address"]).is_empty());
        found.map(|address| text(address, &["address"]).to_string())
    };
    let hosts: Vec<String> = ADDRESS_TYPES.iter().filter_map(|kind| of_type(kind)).collect();
    if hosts.is_empty() {
        return Err(Status::plain_error("no preferred addresses found; known addresses: []"));
    }
    let port = node
        .pointer("/status/daemonEndpoints/kubeletEndpoint/Port")
        .and_then(Value::as_u64);
    Ok(Kubelet {
        node: text(node, &["metadata", "name"]).to_string(),
        hosts,
        port: port
            .and_then(|port| port.try_into().ok())
            .filter(|port| *port > 0)
            .unwrap_or(KUBELET_PORT),
        speaks_websocket: strings(node.pointer("/status/declaredFeatures"))
            .iter()
            .any(|feature| feature == WEBSOCKETS),
    })
}

/// The container a request is about: the one it names, the only one there is, or the one the pod's owner says is meant.
pub(super) fn choose_container(pod: &Value, asked: &str) -> Result<String, Status> {
    let names = |list: &str| {
        items(pod, &["spec", list])
            .iter()
            .map(|c| text(c, &["name"]))
            .collect::<Vec<_>>()
    };
    let own = names("containers");
    let all = [names("initContainers"), own.clone(), names("ephemeralContainers")].concat();
    let name = text(pod, &["metadata", "name"]);
    if !asked.is_empty() {
        return match all.contains(&asked) {
            true => Ok(asked.to_string()),
            false => Err(Status::bad_request(format!(
                "container {asked} is not valid for pod {name}"
            ))),
        };
    }
    // Differs from upstream, where only kubectl knows the annotation: other clients then choose as kubectl does.
    let default = text(
        pod,
        &["metadata", "annotations", "kubectl.kubernetes.io/default-container"],
    );
    match own.as_slice() {
        [only] => Ok(only.to_string()),
        many if many.contains(&default) => Ok(default.to_string()),
        [] => Err(Status::bad_request(format!(
            "a container name must be specified for pod {name}"
        ))),
        _ => Err(Status::bad_request(format!(
            "a container name must be specified for pod {name}, choose one of: [{}]",
            all.join(" ")
        ))),
    }
}

/// How proxied objects are named: `name`, `name:port` or `scheme:name:port`.
#[derive(Debug, PartialEq)]
pub(super) struct ProxyId {
    pub https: bool,
    pub name: String,
    /// Empty, a number or a name.
    pub port: String,
}

impl ProxyId {
    pub(super) fn parse(id: &str) -> Option<ProxyId> {
        let words: Vec<&str> = id.split(':').collect();
        let (scheme, name, port) = match words.as_slice() {
            [name] => ("", *name, ""),
            [name, port] => ("", *name, *port),
            [scheme, name, port] => (*scheme, *name, *port),
            _ => return None,
        };
        let known = matches!(scheme, "" | "http" | "https") && !name.is_empty();
        known.then(|| ProxyId {
            https: scheme == "https",
            name: name.to_string(),
            port: port.to_string(),
        })
    }

    fn place(&self, host: &str, port: u16) -> ConnectTarget {
        ConnectTarget {
            https: self.https,
            hosts: vec![host.to_string()],
            port,
            target: String::new(),
            node: None,
            only_proxyable: true,
        }
    }

    fn number(&self) -> Result<u16, Status> {
        match self.port.as_str() {
            "" => Ok(if self.https { 443 } else { 80 }),
            text => text.parse().map_err(|_| {
                Status::unavailable(format!(
                    "error trying to reach service: dial tcp: lookup tcp/{text}: unknown port"
                ))
            }),
        }
    }
}

pub(super) fn pod(pod: &Value, id: &ProxyId) -> Result<ConnectTarget, Status> {
    let ip = pod.pointer("/status/podIPs/0/ip").and_then(Value::as_str).unwrap_or("");
    if !ip.parse().is_ok_and(is_proxyable) {
        return Err(Status::bad_request("address not allowed"));
    }
    let first_port = || {
        let ports = items(pod, &["spec", "containers"])
            .iter()
            .flat_map(|c| items(c, &["ports"]));
        ports
            .filter_map(|port| port["containerPort"].as_u64()?.try_into().ok())
            .next()
    };
    let port = match id.port.is_empty().then(first_port).flatten() {
        Some(port) => port,
        None => id.number()?,
    };
    Ok(id.place(ip, port))
}

pub(super) fn node(kubelet: &Kubelet, id: &ProxyId) -> Result<ConnectTarget, Status> {
    if id.port.is_empty() || id.port == kubelet.port.to_string() {
        return Ok(ConnectTarget {
            only_proxyable: true,
            ..ConnectTarget::kubelet(kubelet, String::new())
        });
    }
    Ok(ConnectTarget {
        hosts: kubelet.hosts.clone(),
        ..id.place("", id.number()?)
    })
}

/// A pod that serves the service's port. Only addresses that are pods of the namespace are gone to: whoever writes
/// endpoints must not reach more through us than through the network. `turn` says with which of them to begin.
pub(super) fn service(
    lookup: &dyn ObjectLookup,
    namespace: &str,
    id: &ProxyId,
    asked: &str,
    turn: usize,
) -> Result<ConnectTarget, Status> {
    let service = lookup
        .get("services", namespace, &id.name)
        .ok_or_else(|| Status::not_found("", "services", &id.name))?;
    let port_name = match id.port.parse::<u64>() {
        Err(_) => id.port.as_str(),
        Ok(number) => {
            let port = items(&service, &["spec", "ports"])
                .iter()
                .find(|port| port["port"] == number);
            let port = port.ok_or_else(|| {
                Status::unavailable(format!("no service port {number} found for service {:?}", id.name))
            })?;
            text(port, &["name"])
        }
    };
    let mut candidates = backends(lookup, namespace, &id.name, port_name);
    let count = candidates.len().max(1);
    candidates.rotate_left(turn % count);
    let is_pod = |(ip, pod, _): &&(String, String, u16)| {
        let pod = lookup.get("pods", namespace, pod);
        let own = |pod: &Value| {
            items(pod, &["status", "podIPs"])
                .iter()
                .any(|own| text(own, &["ip"]) == ip)
        };
        pod.is_some_and(|pod| own(&pod))
    };
    match candidates.iter().find(is_pod) {
        Some((ip, _, port)) if ip.parse().is_ok_and(is_proxyable) => Ok(id.place(ip, *port)),
        _ => Err(Status::unavailable(format!(
            "no endpoints available for service {asked:?}"
        ))),
    }
}

/// Address, pod and port of what is ready behind a service's port: from its Endpoints, else from its EndpointSlices.
fn backends(lookup: &dyn ObjectLookup, namespace: &str, service: &str, port_name: &str) -> Vec<(String, String, u16)> {
    let port_of = |ports: &[Value]| {
        let port = ports.iter().find(|port| text(port, &["name"]) == port_name)?;
        port["port"].as_u64()?.try_into().ok()
    };
    let mut found = Vec::new();
    if let Some(endpoints) = lookup.get("endpoints", namespace, service) {
        for subset in items(&endpoints, &["subsets"]) {
            let Some(port) = port_of(items(subset, &["ports"])) else {
                continue;
            };
            for address in items(subset, &["addresses"]) {
                let pod = text(address, &["targetRef", "name"]);
                found.push((text(address, &["ip"]).to_string(), pod.to_string(), port));
            }
        }
    }
    if !found.is_empty() {
        return found;
    }
    for slice in lookup.list("endpointslices.discovery.k8s.io", Some(namespace)) {
        if text(&slice, &["metadata", "labels", "kubernetes.io/service-name"]) != service {
            continue;
        }
        let Some(port) = port_of(items(&slice, &["ports"])) else {
            continue;
        };
        let ready = |e: &&Value| e.pointer("/conditions/ready") != Some(&Value::Bool(false));
        for endpoint in items(&slice, &["endpoints"]).iter().filter(ready) {
            let pod = text(endpoint, &["targetRef", "name"]);
            let addresses = strings(endpoint.get("addresses"));
            found.extend(addresses.into_iter().map(|ip| (ip, pod.to_string(), port)));
        }
    }
    found
}

/// Whether the proxies may go to an address: not to this machine itself, nor to what only it can reach.
pub(crate) fn is_proxyable(ip: IpAddr) -> bool {
    match canonical(ip) {
        // All of 0.0.0.0/8 is this host on this network.
        IpAddr::V4(ip) => {
            !(ip.octets()[0] == 0 || ip.is_loopback() || ip.is_link_local() || ip.is_multicast() || ip.is_broadcast())
        }
        IpAddr::V6(ip) => !(ip.is_unspecified() || ip.is_loopback() || ip.is_unicast_link_local() || ip.is_multicast()),
    }
}

/// The IPv4 address that an IPv6 address stands for, in any of the ways to write it: mapped (::ffff:0:0/96), compatible
/// (::/96), translated (::ffff:0:0:0/96) and for NAT64 (64:ff9b::/96).
fn canonical(ip: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = ip else { return ip };
    let segments = v6.segments();
    let stands_for_v4 = matches!(
        segments[..6],
        [0, 0, 0, 0, 0, 0xffff] | [0, 0, 0, 0, 0xffff, 0] | [0x64, 0xff9b, 0, 0, 0, 0]
    );
    // ::1 and :: are in the range of compatible addresses.
    let is_compatible = segments[..6] == [0; 6] && segments[6] != 0;
    match stands_for_v4 || is_compatible {
        true => std::net::Ipv4Addr::from((v6.to_bits() & 0xffff_ffff) as u32).into(),
        false => ip,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::lookup::fixture::Objects;

    #[test]
    fn kubelets_are_found() {
        let node = |status: Value| json!({"metadata": {"name": "n"}, "status": status});
        let found = kubelet(&node(json!({
            "addresses": [{"type": "Hostname", "address": "n"}, {"type": "InternalIP", "address": "10.0.0.1"},
                {"type": "InternalIP", "address": "fd00::1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10999}},
            "declaredFeatures": ["ExtendWebSocketsToKubelet"],
        })));
        let hosts = vec!["10.0.0.1".to_string(), "n".to_string()];
        assert_eq!(
            found.unwrap(),
            Kubelet {
                node: "n".into(),
                hosts,
                port: 10999,
                speaks_websocket: true
            }
        );
        let named = kubelet(&node(json!({"addresses": [{"type": "Hostname", "address": "n"}]}))).unwrap();
        assert_eq!((named.port, named.speaks_websocket), (10250, false));
        let status = kubelet(&node(json!({}))).unwrap_err();
        assert_eq!(
            (status.code, status.message.starts_with("no preferred addresses found")),
            (500, true)
        );
        let place = ConnectTarget::kubelet(
            &Kubelet {
                hosts: vec!["fd00::1".into()],
                ..named
            },
            "/pods".into(),
        );
        assert_eq!(place.url(), "https://[fd00::1]:10250/pods");
    }

    #[test]
    fn containers_are_chosen() {
        let pod = |containers: &[&str], default: &str| {
            let named = |names: &[&str]| names.iter().map(|name| json!({"name": name})).collect::<Vec<_>>();
            json!({"metadata": {"name": "p", "annotations": {"kubectl.kubernetes.io/default-container": default}},
                "spec": {"containers": named(containers), "initContainers": named(&["i"]),
                    "ephemeralContainers": named(&["e"])}})
        };
        let two = ["a", "b"];
        for (containers, default, asked, wanted) in [
            (&["a"][..], "", "", Ok("a")),
            (&two, "", "b", Ok("b")),
            (&two, "", "i", Ok("i")),
            (&two, "", "e", Ok("e")),
            (&two, "b", "", Ok("b")),
            (&two, "b", "a", Ok("a")),
            (
                &two,
                "x",
                "",
                Err("a container name must be specified for pod p, choose one of: [i a b e]"),
            ),
            (&two, "", "x", Err("container x is not valid for pod p")),
            (&[], "", "", Err("a container name must be specified for pod p")),
        ] {
            let got = choose_container(&pod(containers, default), asked).map_err(|status| status.message);
            assert_eq!(
                got,
                wanted.map(str::to_string).map_err(str::to_string),
                "{default} {asked}"
            );
        }
    }

    #[test]
    fn proxied_names_have_three_forms() {
        let id = |https, name: &str, port: &str| {
            Some(ProxyId {
                https,
                name: name.into(),
                port: port.into(),
            })
        };
        for (text, wanted) in [
            ("web", id(false, "web", "")),
            ("web:80", id(false, "web", "80")),
            ("https:web:main", id(true, "web", "main")),
            ("https:web:", id(true, "web", "")),
            ("ftp:web:21", None),
            (":80", None),
            ("a:b:c:d", None),
        ] {
            assert_eq!(ProxyId::parse(text), wanted, "{text}");
        }
    }

    #[test]
    fn proxies_do_not_lead_into_this_machine() {
        for (ip, fine) in [
            ("10.1.2.3", true),
            ("fd00::1", true),
            ("127.0.0.1", false),
            ("::1", false),
            ("169.254.169.254", false),
            ("fe80::1", false),
            ("0.0.0.0", false),
            ("224.0.0.1", false),
            ("255.255.255.255", false),
            ("0.1.2.3", false),
            ("::", false),
            ("ff02::1", false),
            ("::ffff:127.0.0.1", false),
            ("::ffff:169.254.169.254", false),
            ("::ffff:0.0.0.0", false),
            ("::ffff:10.1.2.3", true),
            ("::127.0.0.1", false),
            ("::ffff:0:127.0.0.1", false),
            ("64:ff9b::127.0.0.1", false),
            ("64:ff9b::a9fe:a9fe", false),
            ("64:ff9b::10.1.2.3", true),
        ] {
            assert_eq!(is_proxyable(ip.parse().unwrap()), fine, "{ip}");
        }
    }

    #[test]
    fn pods_that_claim_this_machine_are_not_proxied_to() {
        for ip in ["127.0.0.1", "::ffff:127.0.0.1", "::1", "localhost", ""] {
            let value = json!({"status": {"podIPs": [{"ip": ip}]}});
            let refused = pod(&value, &ProxyId::parse("p").unwrap()).unwrap_err();
            assert_eq!(refused.message, "address not allowed", "{ip}");
        }
    }

    #[test]
    fn nodes_are_proxied_to_only_elsewhere() {
        let kubelet = Kubelet {
            node: "n".into(),
            hosts: vec!["10.0.0.1".into(), "n".into()],
            port: 10250,
            speaks_websocket: false,
        };
        for id in ["n", "n:10250", "n:9090", "https:n:9090"] {
            let place = node(&kubelet, &ProxyId::parse(id).unwrap()).unwrap();
            assert!(place.only_proxyable, "{id}");
            assert_eq!(place.hosts, kubelet.hosts, "{id}");
            assert_eq!(place.node.is_some(), !id.ends_with("9090"), "{id}");
        }
    }

    #[test]
    fn pods_have_a_port_to_start_with() {
        let value = json!({"status": {"podIPs": [{"ip": "10.1.0.5"}]},
            "spec": {"containers": [{"name": "a"}, {"name": "b", "ports": [{"containerPort": 8080}]}]}});
        let at = |id: &str| {
            pod(&value, &ProxyId::parse(id).unwrap())
                .map(|place| place.url())
                .map_err(|s| s.code)
        };
        assert_eq!(at("p").unwrap(), "http://10.1.0.5:8080");
        assert_eq!(at("https:p:8443").unwrap(), "https://10.1.0.5:8443");
        assert_eq!(at("p:web"), Err(503));
        let nowhere = pod(&json!({}), &ProxyId::parse("p").unwrap()).unwrap_err();
        assert_eq!(nowhere.message, "address not allowed");
    }

    #[test]
    fn services_lead_to_their_pods_alone() {
        let pod = |name: &str, ip: &str| json!({"metadata": {"namespace": "d", "name": name}, "status": {"podIPs": [{"ip": ip}]}});
        let address = |ip: &str, pod: &str| json!({"ip": ip, "targetRef": {"kind": "Pod", "name": pod}});
        let cluster = Objects::default()
            .with(
                "services",
                json!({"metadata": {"namespace": "d", "name": "s"},
                "spec": {"ports": [{"name": "web", "port": 80}, {"name": "admin", "port": 81}]}}),
            )
            .with("pods", pod("a", "10.1.0.1"))
            .with("pods", pod("b", "10.1.0.2"))
            .with(
                "endpoints",
                json!({"metadata": {"namespace": "d", "name": "s"}, "subsets": [{
                "addresses": [address("10.9.9.9", "a"), address("10.1.0.1", "a"), address("10.1.0.2", "b"),
                    {"ip": "10.0.0.1"}],
                "ports": [{"name": "web", "port": 8080}]}]}),
            );
        let at = |cluster: &Objects, id: &str, turn| {
            let place = service(cluster, "d", &ProxyId::parse(id).unwrap(), id, turn);
            place.map(|place| place.url()).map_err(|status| status.message)
        };
        assert_eq!(at(&cluster, "s:web", 0).unwrap(), "http://10.1.0.1:8080");
        assert_eq!(at(&cluster, "s:80", 2).unwrap(), "http://10.1.0.2:8080");
        assert_eq!(at(&cluster, "https:s:web", 3).unwrap(), "https://10.1.0.1:8080");
        assert_eq!(
            at(&cluster, "s:82", 0).unwrap_err(),
            "no service port 82 found for service \"s\""
        );
        assert_eq!(
            at(&cluster, "s:admin", 0).unwrap_err(),
            "no endpoints available for service \"s:admin\""
        );
        assert_eq!(at(&cluster, "t", 0).unwrap_err(), "services \"t\" not found");

        cluster.remove("endpoints", "d", "s");
        cluster.put(
            "endpointslices.discovery.k8s.io",
            json!({
            "metadata": {"namespace": "d", "name": "s-1", "labels": {"kubernetes.io/service-name": "s"}},
            "endpoints": [
                {"addresses": ["10.1.0.1"], "conditions": {"ready": false}, "targetRef": {"name": "a"}},
                {"addresses": ["10.1.0.2"], "targetRef": {"name": "b"}}],
            "ports": [{"name": "web", "port": 8080}]}),
        );
        assert_eq!(at(&cluster, "s:web", 0).unwrap(), "http://10.1.0.2:8080");
    }
}
