//! The slices that say what hand-made Endpoints say.

use std::sync::Arc;

use crate::backends;
use crate::endpoints::{LEADER, canonical};
use crate::objects::endpoint_slice::{
    Endpoint, EndpointConditions, EndpointPort, MANAGED_BY, SERVICE_NAME, TRIGGER_TIME,
};
use crate::objects::endpoints::{Address, Port};
use crate::objects::{EndpointSlice, Endpoints, Labels, Meta, Service};
use crate::ownership::controller_reference;
use crate::pod_template::generate_name;

pub(super) const CONTROLLER: &str = "endpointslicemirroring-controller.k8s.io";
const SKIP: &str = "endpointslice.kubernetes.io/skip-mirror";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

#[derive(Debug, Default)]
pub(super) struct Plan {
    pub create: Vec<EndpointSlice>,
    pub update: Vec<EndpointSlice>,
    pub delete: Vec<Arc<EndpointSlice>>,
    /// Addresses that are none.
    pub invalid: usize,
    /// Those, and the ones that were too many.
    pub skipped: usize,
}

/// Whether slices are made after these Endpoints: those of services with a selector come from its pods.
pub(super) fn is_mirrored(endpoints: &Endpoints, service: &Service) -> bool {
    let meta = &endpoints.metadata;
    service.spec.selector.is_empty() && meta.label(SKIP) != Some("true") && meta.annotation(LEADER).is_none()
}

/// `slices`: those that this controller made for the service. `max`: addresses taken from one subset.
pub(super) fn plan(endpoints: &Endpoints, slices: &[Arc<EndpointSlice>], max: usize) -> Plan {
    let mut plan = Plan::default();
    let mut left: Vec<Arc<EndpointSlice>> = slices.to_vec();
    let mut new = vec![];
    for subset in canonical(&endpoints.subsets) {
        let ready = subset.addresses.iter().map(|address| (address, true));
        let all = ready.chain(subset.not_ready_addresses.iter().map(|address| (address, false)));
        let (mut found, mut skipped) = (vec![], 0);
        for (address, ready) in all {
            if found.len() >= max {
                skipped += 1;
                continue;
            }
            match endpoint(address, ready) {
                Some(endpoint) => found.push(endpoint),
                None => {
                    plan.invalid += 1;
                    skipped += 1;
                }
            }
        }
        plan.skipped += skipped;
        let ports = ports(&subset.ports);
        for family in ["IPv4", "IPv6"] {
            let of_family = found.iter().filter(|(of, _)| *of == family);
            let endpoints: Vec<Endpoint> = of_family.map(|(_, endpoint)| endpoint.clone()).collect();
            if !endpoints.is_empty() {
                new.push((family, ports.clone(), endpoints));
            }
        }
    }
    // First those that are there, so that none of them is made into something else.
    new.retain(|(family, ports, wanted)| {
        let at = left
            .iter()
            .position(|s| s.address_type == *family && sorted(&s.ports) == *ports);
        let Some(at) = at else { return true };
        plan.update.extend(changed(endpoints, &left.remove(at), ports, wanted));
        false
    });
    for (family, ports, wanted) in new {
        match left.iter().position(|slice| slice.address_type == family) {
            Some(at) => plan
                .update
                .extend(changed(endpoints, &left.remove(at), &ports, &wanted)),
            None => plan.create.push(slice(endpoints, family, ports, wanted)),
        }
    }
    plan.delete = left;
    if endpoints.metadata.is_deleted() {
        plan.create.clear();
    }
    plan
}

fn endpoint(address: &Address, ready: bool) -> Option<(&'static str, Endpoint)> {
    let ip = orlop_api::ip::parse(&address.ip)?.to_canonical();
    let endpoint = Endpoint {
        addresses: vec![ip.to_string()],
        conditions: EndpointConditions {
            ready: Some(ready),
            ..EndpointConditions::default()
        },
        hostname: Some(address.hostname.clone()).filter(|name| !name.is_empty()),
        target_ref: address.target_ref.clone(),
        node_name: address.node_name.clone(),
        ..Endpoint::default()
    };
    Some((backends::family(&ip), endpoint))
}

fn ports(ports: &[Port]) -> Vec<EndpointPort> {
    let port = |port: &Port| EndpointPort {
        name: Some(port.name.clone()),
        protocol: Some(backends::or_tcp(&port.protocol).to_string()),
        port: Some(port.port),
        app_protocol: port.app_protocol.clone(),
    };
    sorted(&ports.iter().map(port).collect::<Vec<_>>())
}

fn sorted(ports: &[EndpointPort]) -> Vec<EndpointPort> {
    let mut ports = ports.to_vec();
    ports.sort();
    ports
}

fn labels(endpoints: &Endpoints) -> Labels {
    let mut labels = endpoints.metadata.labels.clone();
    labels.insert(SERVICE_NAME.to_string(), endpoints.metadata.name.clone());
    labels.insert(MANAGED_BY.to_string(), CONTROLLER.to_string());
    labels
}

fn annotations(endpoints: &Endpoints) -> Labels {
    let mut annotations = endpoints.metadata.annotations.clone();
    annotations.remove(TRIGGER_TIME);
    annotations.remove(LAST_APPLIED);
    annotations
}

fn slice(endpoints: &Endpoints, family: &str, ports: Vec<EndpointPort>, wanted: Vec<Endpoint>) -> EndpointSlice {
    EndpointSlice {
        metadata: Meta {
            generate_name: generate_name(&endpoints.metadata.name),
            namespace: endpoints.metadata.namespace.clone(),
            labels: labels(endpoints),
            annotations: annotations(endpoints),
            owner_references: vec![controller_reference(endpoints)],
            ..Meta::default()
        },
        address_type: family.to_string(),
        endpoints: wanted,
        ports,
    }
}

/// The slice as it should be, if it is not.
fn changed(
    endpoints: &Endpoints,
    from: &EndpointSlice,
    ports: &[EndpointPort],
    wanted: &[Endpoint],
) -> Option<EndpointSlice> {
    let mut slice = from.clone();
    slice.metadata.labels = labels(endpoints);
    slice.metadata.annotations = annotations(endpoints);
    // Endpoints that were made anew have another uid.
    slice.metadata.owner_references = vec![controller_reference(endpoints)];
    if sorted(&from.ports) != ports {
        slice.ports = ports.to_vec();
    }
    if in_order(&from.endpoints) != in_order(wanted) {
        slice.endpoints = wanted.to_vec();
    }
    (slice != *from).then_some(slice)
}

fn in_order(endpoints: &[Endpoint]) -> Vec<&Endpoint> {
    let mut endpoints: Vec<&Endpoint> = endpoints.iter().collect();
    endpoints.sort_by_key(|e| (&e.addresses, e.target_ref.as_ref().map(|target| &target.uid)));
    endpoints
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn endpoints(subsets: Value) -> Endpoints {
        object(json!({
            "metadata": {"name": "db", "namespace": "ns", "uid": "e1", "labels": {"team": "red"},
                         "annotations": {"why": "outside", TRIGGER_TIME: "x", LAST_APPLIED: "{}"}},
            "subsets": subsets,
        }))
    }

    /// Writes the plan; says how many slices were made, changed, deleted.
    fn reconcile(endpoints: &Endpoints, slices: &mut Vec<Arc<EndpointSlice>>, max: usize) -> (usize, usize, usize) {
        let plan = plan(endpoints, slices, max);
        let writes = (plan.create.len(), plan.update.len(), plan.delete.len());
        let gone = |name: &str| plan.delete.iter().any(|s| s.metadata.name == name);
        slices.retain(|slice| !gone(&slice.metadata.name));
        for new in plan.update {
            let at = slices
                .iter()
                .position(|s| s.metadata.name == new.metadata.name)
                .unwrap();
            slices[at] = Arc::new(new);
        }
        for mut new in plan.create {
            new.metadata.name = format!("{}{}", new.metadata.generate_name, slices.len());
            slices.push(Arc::new(new));
        }
        writes
    }

    #[test]
    fn a_slice_for_each_family_and_set_of_ports() {
        let made = endpoints(json!([
            {"addresses": [{"ip": "192.0.2.1", "hostname": "one"}, {"ip": "2001:db8::1"}],
             "notReadyAddresses": [{"ip": "192.0.2.2", "nodeName": "n1"}],
             "ports": [{"port": 5432, "protocol": "TCP"}]},
            {"addresses": [{"ip": "192.0.2.3"}], "ports": [{"port": 5433, "name": "b", "protocol": "TCP"}]},
        ]));
        let mut slices = vec![];
        assert_eq!(reconcile(&made, &mut slices, 1000), (3, 0, 0));
        let sent = crate::objects::with_type_meta(&*slices[0]);
        assert_eq!(
            sent["endpoints"],
            json!([
                {"addresses": ["192.0.2.1"], "conditions": {"ready": true}, "hostname": "one"},
                {"addresses": ["192.0.2.2"], "conditions": {"ready": false}, "nodeName": "n1"},
            ])
        );
        assert_eq!(sent["ports"], json!([{"name": "", "protocol": "TCP", "port": 5432}]));
        let meta = &sent["metadata"];
        let labels = json!({"team": "red", SERVICE_NAME: "db", MANAGED_BY: CONTROLLER});
        assert_eq!(
            (&meta["labels"], &meta["annotations"]),
            (&labels, &json!({"why": "outside"}))
        );
        assert_eq!(meta["ownerReferences"][0]["kind"], "Endpoints");
        assert_eq!(slices[1].address_type, "IPv6");
        assert_eq!(reconcile(&made, &mut slices, 1000), (0, 0, 0));

        let moved = endpoints(json!([{"addresses": [{"ip": "192.0.2.3"}], "ports": [{"port": 7, "protocol": "TCP"}]}]));
        assert_eq!(reconcile(&moved, &mut slices, 1000), (0, 1, 2), "a slice is used again");
        let mut again = moved.clone();
        again.metadata.uid = "e2".to_string();
        assert_eq!(reconcile(&again, &mut slices, 1000), (0, 1, 0));
        assert_eq!(slices[0].metadata.owner_references[0].uid, "e2");
        assert_eq!(reconcile(&endpoints(json!(null)), &mut slices, 1000), (0, 0, 1));
    }

    #[test]
    fn what_is_too_much_or_no_address_is_left_out() {
        let many: Vec<Value> = (0..5).map(|n| json!({"ip": format!("192.0.2.{n}")})).collect();
        let made = endpoints(json!([
            {"addresses": many, "notReadyAddresses": [{"ip": "0.0.0.999"}], "ports": [{"port": 1}]},
        ]));
        let few = plan(&made, &[], 3);
        assert_eq!((few.create[0].endpoints.len(), few.skipped, few.invalid), (3, 3, 0));
        let all = plan(&made, &[], 10);
        assert_eq!((all.create[0].endpoints.len(), all.skipped, all.invalid), (5, 1, 1));
    }

    #[test]
    fn not_all_endpoints_are_mirrored() {
        let service: Service = object(json!({"metadata": {"name": "db"}}));
        let with_selector: Service = object(json!({"spec": {"selector": {"a": "b"}}}));
        let mut made = endpoints(json!([]));
        assert!(is_mirrored(&made, &service) && !is_mirrored(&made, &with_selector));
        made.metadata.annotations.insert(LEADER.to_string(), String::new());
        assert!(!is_mirrored(&made, &service));
        made.metadata.annotations.clear();
        made.metadata.labels.insert(SKIP.to_string(), "true".to_string());
        assert!(!is_mirrored(&made, &service));
    }
}
