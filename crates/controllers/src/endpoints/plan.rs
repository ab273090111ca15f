//! What a service's Endpoints are to say.

use std::sync::Arc;

use super::subsets::{canonical, truncate};
use crate::backends;
use crate::objects::endpoint_slice::{HEADLESS, TRIGGER_TIME, TargetRef};
use crate::objects::endpoints::{Address, Port, Subset};
use crate::objects::{Endpoints, Labels, Meta, Pod, Service};

pub(super) const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
pub(super) const CONTROLLER: &str = "endpoint-controller";
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";

/// What to write, if anything. `pods`: those of the service that can receive something. `trigger`: when the change
/// happened that this shows.
pub(super) fn plan(
    service: &Service,
    pods: &[Arc<Pod>],
    existing: Option<&Endpoints>,
    trigger: Option<jiff::Timestamp>,
) -> Option<Endpoints> {
    let mut wanted = canonical(&pods.iter().flat_map(|pod| subsets(service, pod)).collect::<Vec<_>>());
    let over = truncate(&mut wanted);
    let labels = labels(service);
    let mut endpoints = match existing {
        Some(existing) => {
            let marked = existing.metadata.annotation(OVER_CAPACITY) == Some("truncated");
            let unmarked = existing.metadata.annotation(OVER_CAPACITY).is_none();
            let right_mark = if over { marked } else { unmarked };
            if right_mark && existing.metadata.labels == labels && same(&existing.subsets, &wanted) {
                return None;
            }
            existing.clone()
        }
        None => Endpoints {
            metadata: Meta {
                name: service.metadata.name.clone(),
                namespace: service.metadata.namespace.clone(),
                ..Meta::default()
            },
            subsets: vec![],
        },
    };
    endpoints.subsets = wanted;
    endpoints.metadata.labels = labels;
    let annotations = &mut endpoints.metadata.annotations;
    let mut annotate = |name: &str, value: Option<String>| match value {
        Some(value) => annotations.insert(name.to_string(), value),
        None => annotations.remove(name),
    };
    annotate(TRIGGER_TIME, trigger.map(|at| at.to_string()));
    annotate(OVER_CAPACITY, over.then(|| "truncated".to_string()));
    Some(endpoints)
}

/// However they were packed, and whatever revision of a pod they were made from.
fn same(existing: &[Subset], wanted: &[Subset]) -> bool {
    let mut existing = canonical(existing);
    for subset in &mut existing {
        let addresses = subset.addresses.iter_mut().chain(&mut subset.not_ready_addresses);
        for target in addresses.filter_map(|address| address.target_ref.as_mut()) {
            target.resource_version.clear();
        }
    }
    existing == wanted
}

/// What one pod offers.
fn subsets(service: &Service, pod: &Pod) -> Vec<Subset> {
    let Some(address) = address(service, pod) else {
        return vec![];
    };
    let ready = service.spec.publish_not_ready_addresses || pod.is_ready();
    let subset = |ports: Vec<Port>| match ready {
        true => Subset {
            addresses: vec![address.clone()],
            ports,
            ..Subset::default()
        },
        false => Subset {
            not_ready_addresses: vec![address.clone()],
            ports,
            ..Subset::default()
        },
    };
    let spec = &service.spec;
    if spec.ports.is_empty() {
        // Only the name of a headless service leads somewhere without ports.
        return if spec.cluster_ip == "None" {
            vec![subset(vec![])]
        } else {
            vec![]
        };
    }
    let port = |port| {
        let target = backends::target_port(pod, port)?;
        Some(Port {
            name: port.name.clone(),
            port: target,
            protocol: backends::or_tcp(&port.protocol).to_string(),
            app_protocol: port.app_protocol.clone(),
        })
    };
    spec.ports
        .iter()
        .filter_map(port)
        .map(|port| subset(vec![port]))
        .collect()
}

/// Of the service's first family only: there is but one address for a pod here.
fn address(service: &Service, pod: &Pod) -> Option<Address> {
    let family = match service.spec.ip_families.first() {
        Some(family) => family.as_str(),
        None => orlop_api::ip::family(&service.spec.cluster_ip)
            .or_else(|| orlop_api::ip::family(&pod.status.pod_ip))
            .unwrap_or("IPv4"),
    };
    Some(Address {
        ip: backends::addresses(pod, family).into_iter().next()?,
        hostname: backends::hostname(pod, service).unwrap_or_default().to_string(),
        node_name: Some(pod.spec.node_name.clone()).filter(|node| !node.is_empty()),
        target_ref: Some(TargetRef {
            kind: "Pod".to_string(),
            namespace: pod.metadata.namespace.clone(),
            name: pod.metadata.name.clone(),
            uid: pod.metadata.uid.clone(),
            ..TargetRef::default()
        }),
    })
}

fn labels(service: &Service) -> Labels {
    let mut labels = service.metadata.labels.clone();
    labels.remove(HEADLESS);
    if service.is_headless() {
        labels.insert(HEADLESS.to_string(), String::new());
    }
    labels.insert(MANAGED_BY.to_string(), CONTROLLER.to_string());
    labels
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn service() -> Service {
        object(json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "s1", "labels": {"team": "red"}},
            "spec": {"clusterIP": "10.96.0.9", "ipFamilies": ["IPv4"], "selector": {"app": "web"}, "ports": [
                {"name": "http", "port": 80, "protocol": "TCP", "targetPort": "web"},
                {"name": "dns", "port": 53, "protocol": "UDP", "targetPort": 5353}]},
        }))
    }

    fn pod(n: usize, ready: bool, web: u16) -> Arc<Pod> {
        let ip = format!("10.0.{}.{}", n / 256, n % 256);
        Arc::new(object(json!({
            "metadata": {"name": format!("p{n}"), "namespace": "ns", "uid": format!("u{n}")},
            "spec": {"nodeName": "n1", "containers": [{"ports": [{"name": "web", "containerPort": web}]}]},
            "status": {"podIP": ip, "podIPs": [{"ip": ip}],
                       "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]},
        })))
    }

    /// `ready addresses/not ready ones:ports` of each subset.
    fn brief(endpoints: &Endpoints) -> Vec<String> {
        let last = |addresses: &[Address]| {
            let last = |a: &Address| a.ip.rsplit('.').next().unwrap_or_default().to_string();
            addresses.iter().map(last).collect::<Vec<_>>().join(",")
        };
        let subset = |s: &Subset| {
            let ports: Vec<String> = s.ports.iter().map(|p| format!("{}={}", p.name, p.port)).collect();
            format!(
                "{}/{}:{}",
                last(&s.addresses),
                last(&s.not_ready_addresses),
                ports.join(",")
            )
        };
        endpoints.subsets.iter().map(subset).collect()
    }

    #[test]
    fn pods_with_the_same_ports_are_together() {
        let pods = [pod(1, true, 8080), pod(2, false, 8080), pod(3, true, 9090)];
        let made = plan(&service(), &pods, None, None).unwrap();
        assert_eq!(brief(&made), ["1,3/2:dns=5353", "1/2:http=8080", "3/:http=9090"]);
        let made = plan(&service(), &pods[..2], None, None).unwrap();
        assert_eq!(brief(&made), ["1/2:dns=5353,http=8080"]);
        let mut published = service();
        published.spec.publish_not_ready_addresses = true;
        let made = plan(&published, &pods[..2], None, None).unwrap();
        assert_eq!(brief(&made), ["1,2/:dns=5353,http=8080"]);
        let labels = json!({"team": "red", MANAGED_BY: CONTROLLER});
        assert_eq!(json!(made.metadata.labels), labels);
        assert_eq!(made.subsets[0].addresses[0].node_name.as_deref(), Some("n1"));
    }

    #[test]
    fn headless_services_need_no_ports() {
        let mut headless = service();
        headless.spec.ports.clear();
        assert_eq!(plan(&headless, &[pod(1, true, 1)], None, None).unwrap().subsets, []);
        headless.spec.cluster_ip = "None".to_string();
        let made = plan(&headless, &[pod(1, true, 1), pod(2, false, 1)], None, None).unwrap();
        assert_eq!(brief(&made), ["1/2:"]);
        assert_eq!(made.metadata.label(HEADLESS), Some(""));
    }

    #[test]
    fn what_is_right_is_not_written() {
        let pods = [pod(1, true, 8080), pod(2, false, 8080), pod(3, true, 9090)];
        let at = jiff::Timestamp::from_second(1_700_000_000).ok();
        let made = plan(&service(), &pods, None, at).unwrap();
        assert_eq!(made.metadata.annotation(TRIGGER_TIME), Some("2023-11-14T22:13:20Z"));
        assert_eq!(plan(&service(), &pods, Some(&made), None), None);
        let mut packed = made.clone();
        packed.subsets.reverse();
        for subset in &mut packed.subsets {
            subset.ports.reverse();
            subset.addresses[0].target_ref.as_mut().unwrap().resource_version = "7".to_string();
        }
        assert_eq!(plan(&service(), &pods, Some(&packed), None), None, "packed by others");
        let mut relabelled = service();
        relabelled.metadata.labels.clear();
        let again = plan(&relabelled, &pods, Some(&made), None).unwrap();
        assert_eq!(again.metadata.annotation(TRIGGER_TIME), None);
        assert!(plan(&service(), &pods[..2], Some(&made), None).is_some());
    }

    #[test]
    fn a_thousand_addresses_at_most() {
        for (ready, not_ready, wanted) in [(600, 300, (600, 300)), (600, 600, (600, 400)), (1100, 5, (1000, 0))] {
            let all = (0..ready)
                .map(|n| pod(n, true, 80))
                .chain((ready..ready + not_ready).map(|n| pod(n, false, 80)));
            let pods: Vec<Arc<Pod>> = all.collect();
            let made = plan(&service(), &pods, None, None).unwrap();
            let subset = &made.subsets[0];
            assert_eq!((subset.addresses.len(), subset.not_ready_addresses.len()), wanted);
            let over = (ready + not_ready > 1000).then_some("truncated");
            assert_eq!(made.metadata.annotation(OVER_CAPACITY), over);
            assert_eq!(plan(&service(), &pods, Some(&made), None), None);
        }
    }
}
