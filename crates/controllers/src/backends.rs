//! The pods behind a service: which they are, at which ports they listen, and which keys to queue when one changes.
// Upstream: staging/src/k8s.io/endpointslice/util, staging/src/k8s.io/endpointslice/utils.go (v1.36)

use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::objects::service::{ServicePort, TargetPort};
use crate::objects::{Pod, Service};
use crate::runtime::{Cache, Key};

/// Whether the pod can receive anything at all. Pods on their way out may, as long as nobody else can.
pub(crate) fn is_backend(pod: &Pod, with_terminating: bool) -> bool {
    let has_address = !pod.status.pod_ip.is_empty() || !pod.status.pod_ips.is_empty();
    !pod.is_terminal() && has_address && (with_terminating || !pod.metadata.is_deleted())
}

/// The pods of a service, in the order of their names.
pub(crate) fn select_pods(pods: &Cache<Pod>, service: &Service, with_terminating: bool) -> Vec<Arc<Pod>> {
    let mut found = pods.list_in(&service.metadata.namespace);
    found.retain(|pod| service.selects(&pod.metadata.labels) && is_backend(pod, with_terminating));
    found
}

/// Where a service's port leads in this pod; none if no container has a port of that name.
pub(crate) fn target_port(pod: &Pod, port: &ServicePort) -> Option<u16> {
    let name = match &port.target_port {
        TargetPort::Number(number) => return Some(*number),
        TargetPort::Name(name) => name,
    };
    let sidecars = pod.spec.init_containers.iter().filter(|c| c.restart_policy == "Always");
    let ports = pod.spec.containers.iter().chain(sidecars).flat_map(|c| &c.ports);
    let mut named = ports.filter(|p| p.name == *name && or_tcp(&p.protocol) == or_tcp(&port.protocol));
    named.next().map(|p| p.container_port)
}

pub(crate) fn or_tcp(protocol: &str) -> &str {
    if protocol.is_empty() { "TCP" } else { protocol }
}

/// The pod's name within the service's domain, if it asked for one.
pub(crate) fn hostname<'a>(pod: &'a Pod, service: &Service) -> Option<&'a str> {
    let named = !pod.spec.hostname.is_empty() && pod.spec.subdomain == service.metadata.name;
    named.then_some(pod.spec.hostname.as_str())
}

/// The pod's addresses of one family, however they were written.
pub(crate) fn addresses(pod: &Pod, family: &str) -> Vec<String> {
    let parsed = pod.status.pod_ips.iter().filter_map(|ip| orlop_api::ip::parse(&ip.ip));
    let canonical = parsed.map(|ip| ip.to_canonical());
    canonical
        .filter(|ip| self::family(ip) == family)
        .map(|ip| ip.to_string())
        .collect()
}

pub(crate) fn family(ip: &IpAddr) -> &'static str {
    if ip.is_ipv4() { "IPv4" } else { "IPv6" }
}

/// Wakes the services that a change of a pod may matter to.
pub(crate) fn wake(
    services: &Cache<Service>,
    old: Option<&Arc<Pod>>,
    new: Option<&Arc<Pod>>,
    mut wake: impl FnMut(Key),
) {
    let backend = |pod: Option<&Arc<Pod>>| pod.filter(|pod| is_backend(pod, true)).cloned();
    let (old, new) = (backend(old), backend(new));
    let looks_same = match (&old, &new) {
        (None, None) => true,
        (Some(old), Some(new)) => looks_same(old, new),
        _ => false,
    };
    let Some(any) = new.as_ref().or(old.as_ref()).filter(|_| !looks_same) else {
        return;
    };
    for service in services.list_in(&any.metadata.namespace) {
        let selects = |pod: &Option<Arc<Pod>>| pod.as_ref().is_some_and(|p| service.selects(&p.metadata.labels));
        if selects(&old) || selects(&new) {
            wake(Key::from_object(&*service));
        }
    }
}

fn looks_same(old: &Pod, new: &Pod) -> bool {
    old.metadata.uid == new.metadata.uid
        && old.metadata.is_deleted() == new.metadata.is_deleted()
        && old.metadata.labels == new.metadata.labels
        && old.spec.node_name == new.spec.node_name
        && old.is_ready() == new.is_ready()
        && old.status.pod_ips == new.status.pod_ips
}

/// Remembers when the pods of each service last changed, to say which change an object shows. That says how long
/// endpoints take to follow their pods, and nothing else: after a restart the first answer is the service's creation.
#[derive(Default)]
pub(crate) struct TriggerTimes(Mutex<FxHashMap<Key, LastTriggers>>);

#[derive(Default)]
struct LastTriggers {
    service: Option<Timestamp>,
    pods: FxHashMap<String, Timestamp>,
}

impl TriggerTimes {
    /// The earliest change since the service's last reconcile; none if nothing has a new time.
    pub(crate) fn observe(&self, service: &Service, pods: &[Arc<Pod>]) -> Option<Timestamp> {
        let created = service.metadata.creation_timestamp;
        let changed = |pod: &Arc<Pod>| {
            let at = pod.condition("Ready")?.last_transition_time?;
            Some((pod.metadata.name.clone(), at))
        };
        let now = LastTriggers {
            service: created,
            pods: pods.iter().filter_map(changed).collect(),
        };
        let mut known = self.0.lock();
        let Some(before) = known.get(&Key::from_object(service)) else {
            known.insert(Key::from_object(service), now);
            return created;
        };
        let newer = now
            .pods
            .iter()
            .filter(|(name, at)| before.pods.get(*name).is_none_or(|b| *at > b));
        let pods = newer.map(|(_, at)| *at).min();
        let service_again = now.service.filter(|at| before.service.is_none_or(|b| *at > b));
        known.insert(Key::from_object(service), now);
        [pods, service_again].into_iter().flatten().min()
    }

    pub(crate) fn forget(&self, key: &Key) {
        self.0.lock().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(value: Value) -> Arc<Pod> {
        Arc::new(serde_json::from_value(value).unwrap())
    }

    fn service(value: Value) -> Service {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn named_ports_are_looked_for_in_containers_and_sidecars() {
        let pod = pod(json!({"spec": {
            "containers": [{"ports": [{"name": "web", "containerPort": 8080, "protocol": "UDP"}]},
                           {"ports": [{"name": "web", "containerPort": 8081}]}],
            "initContainers": [{"ports": [{"name": "early", "containerPort": 1}]},
                               {"restartPolicy": "Always", "ports": [{"name": "mesh", "containerPort": 15001}]}],
        }}));
        for (target, protocol, wanted) in [
            (json!(7), "TCP", Some(7)),
            (json!("web"), "TCP", Some(8081)),
            (json!("web"), "UDP", Some(8080)),
            (json!("web"), "SCTP", None),
            (json!("mesh"), "TCP", Some(15001)),
            (json!("early"), "TCP", None),
            (json!("none"), "TCP", None),
        ] {
            let port = serde_json::from_value(json!({"targetPort": target, "protocol": protocol})).unwrap();
            assert_eq!(target_port(&pod, &port), wanted, "{target} {protocol}");
        }
    }

    #[test]
    fn the_trigger_time_is_the_earliest_new_change() {
        let service = service(json!({"metadata": {"name": "s", "creationTimestamp": "2026-01-01T00:00:00Z"}}));
        let ready = |name: &str, second: u32| {
            pod(json!({"metadata": {"name": name}, "status": {"conditions": [
                {"type": "Ready", "status": "True", "lastTransitionTime": format!("2026-01-01T00:00:{second:02}Z")}]}}))
        };
        let times = TriggerTimes::default();
        let observe = |pods: &[Arc<Pod>]| times.observe(&service, pods).map(|t| t.to_string());
        assert_eq!(observe(&[ready("a", 5)]).unwrap(), "2026-01-01T00:00:00Z");
        assert_eq!(observe(&[ready("a", 5)]), None);
        let both = [ready("a", 9), ready("b", 7)];
        assert_eq!(observe(&both).unwrap(), "2026-01-01T00:00:07Z");
        assert_eq!(observe(&both[..1]), None);
        times.forget(&Key::new("", "s"));
        assert_eq!(observe(&both).unwrap(), "2026-01-01T00:00:00Z");
    }
}
